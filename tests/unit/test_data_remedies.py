"""The call of Ray Data that a remedy shows for the name of an operator or of a pool."""

from __future__ import annotations

import pytest

from raydoctor.rules.shared.waiting import fewer_actors, request


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("MapBatches(decode)", "ds.map_batches(decode, num_cpus=4)"),
        ("ReadRange->Map(price)->Filter(is_cheap)", "ds.filter(is_cheap, num_cpus=4)"),
        ("class MapWorker(ReadParquet->MapBatches(Embed))", "ds.map_batches(Embed, num_cpus=4)"),
        ("MapBatches(<lambda>)", "ds.map_batches(…, num_cpus=4)"),
        ("ReadParquet", "@ray.remote(num_cpus=4)   # ReadParquet"),
        ("class Simulator", "@ray.remote(num_cpus=4)   # class Simulator"),
    ],
)
def test_a_request_is_changed_where_the_program_makes_it(name: str, step: str) -> None:
    assert request("Request less", {"CPU": 4.0}, name).steps == (step,)


def test_a_pool_is_limited_by_its_concurrency() -> None:
    pool = fewer_actors("MapWorker(MapBatches(Embed))", 2, 4)
    assert pool.steps == ("ds.map_batches(Embed, concurrency=2)",)
    assert fewer_actors("Simulator", 2, 4).steps == (
        "actors = [Simulator.remote() for _ in range(2)]",
    )

"""Who waits for what, on a real cluster: the four ways to wait for ever, and a busy cluster in good health."""

from __future__ import annotations

import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from raydoctor.capture.open import open_capture
from raydoctor.cluster import waiting as now
from raydoctor.diagnosis import engine
from raydoctor.model.values import Diagnosis, Event, Report
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.table import Piece
from raydoctor.observe.gcs import state
from tests.helpers.real_ray import RealRay, real_ray
from tests.helpers.waiting import until

SOON = {"RAY_metrics_report_interval_ms": "1000"}
"""Workers report to their node's metrics port every ten seconds, unless configured otherwise."""

RESOURCES = '--resources={"seat": 2, "licence": 2, "desk": 2}'
BUSY = """
import ray, time
ray.init()

@ray.remote
def short(): time.sleep(0.3)

@ray.remote(num_cpus=0, resources={"desk": 1})
class Desk:
    def ping(self): return 1
    def work(self): time.sleep(1)

desk, idle = Desk.remote(), Desk.remote()
ray.get([desk.ping.remote(), idle.ping.remote()])
queue = [short.remote() for _ in range(1000)]  # the most that is listed
calls = [desk.work.remote() for _ in range(300)]
ray.get(queue[0])
print("busy", flush=True)
time.sleep(9999)
"""
STUCK = """
import ray, time
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as In
ray.init()
free = dict(num_cpus=0)

@ray.remote(resources={"seat": 1}, **free)
class Simulator:
    def ping(self): return 1

simulators = [Simulator.remote() for _ in range(2)]
ray.get([s.ping.remote() for s in simulators])

@ray.remote(resources={"seat": 1}, **free)
def train(): pass

@ray.remote(resources={"licence": 1}, **free)
def part(): pass

@ray.remote(resources={"licence": 1}, **free)
def plan(): return ray.get([part.remote() for _ in range(3)])

@ray.remote(num_gpus=1, **free)
def render(): pass

@ray.remote(resources={"licenc": 1}, **free)
class Typist: pass

@ray.remote(label_selector={"zone": "x"}, **free)
def far(): pass

@ray.remote(resources={"seat": 1}, **free)
def rank(): pass

spread = placement_group([{"seat": 1}] * 3, strategy="STRICT_SPREAD", name="spread")
taken = placement_group([{"seat": 1}], name="taken")
waits = [train.remote() for _ in range(3)] + [plan.remote() for _ in range(2)] + [render.remote(), far.remote()]
waits += [rank.options(scheduling_strategy=In(placement_group=spread)).remote()]
typist = Typist.remote()

@ray.remote(**free)
class Book:
    def know(self, other): self.other = other
    def buy(self): return ray.get(self.other.check.remote())
    def price(self): return 1

@ray.remote(**free)
class Risk:
    def know(self, other): self.other = other
    def check(self): return ray.get(self.other.price.remote())

book, risk = Book.remote(), Risk.remote()
ray.get([book.know.remote(risk), risk.know.remote(book)])
waits.append(book.buy.remote())
while ray.available_resources().get("licence"): time.sleep(0.1)
print("stuck", flush=True)
time.sleep(9999)
"""


FIXED = """
import ray
from ray.util.placement_group import placement_group
ray.init()

@ray.remote(num_cpus=0, resources={{"seat": 1}})
class Simulator:
    def ping(self): return 1

{fewer}
ray.get([actor.ping.remote() for actor in actors])

@ray.remote(num_cpus=0, resources={{"seat": 1}})
def train(): pass

ray.get([train.remote() for _ in range(3)])
for actor in actors: ray.kill(actor)
ray.get({group}.ready())

{less}
def render(): pass

@ray.remote(num_cpus=0, {name})
class Typist:
    def ping(self): return 1

ray.get([render.remote(), Typist.remote().ping.remote()])
print("well", flush=True)
"""
"""What waited, changed as the report advises."""

EXPECTED = {
    "infeasible-request": 3,
    "nested-get-deadlock": 1,
    "placement-group-pending": 2,
    "cluster-starved": 1,
    "actor-deadlock": 1,
}
"""How many findings of which rule there must be."""
SEATS = "2 Simulator actors hold 2 of 2 seat and run nothing"


class Clinic(NamedTuple):
    """What is found out about a cluster while it is busy, and when some in it wait for ever."""

    busy: Report
    stuck: Report

    def headlines(self, rule: str) -> list[str]:
        return sorted(d.headline for d in self.of(rule))

    def of(self, rule: str) -> list[Diagnosis]:
        return [d for d in self.stuck.diagnoses if d.rule == rule]


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clinic]:
    """First the busy program is alone, then beside what is stuck."""
    with real_ray() as ray:
        ray.start(RESOURCES, lean=True, dashboard=False, agents=True, env=SOON)
        ray.run(BUSY)
        ray.wait_for("busy")
        time.sleep(now.AGE + 3)
        busy = look(ray, tmp_path_factory.mktemp("busy"))
        ray.run(STUCK)
        ray.wait_for("stuck", "driver-1.txt")
        stuck: list[Report] = []

        def all_is_found() -> (
            bool
        ):  # what waits must have waited for `now.AGE`, and the GCS hears of it later
            stuck.append(look(ray, tmp_path_factory.mktemp("stuck")))
            reply = Counter(d.rule for d in stuck[-1].diagnoses)
            return all(reply[rule] >= count for rule, count in EXPECTED.items())

        until(all_is_found, every=2)
        found = Clinic(busy, stuck[-1])
        for driver in ray.drivers:
            driver.kill()
        ray.run(fixed(found))
        ray.wait_for("well", "driver-2.txt")
        yield found


def fixed(clinic: Clinic) -> str:
    """The program with the steps of the report."""

    def step(rule: str, words: str) -> str:
        steps = (s for d in clinic.of(rule) for r in d.remedies for s in r.steps if words in s)
        return next(steps).partition("   #")[0].rstrip()

    return FIXED.format(
        fewer=step("cluster-starved", "actors = ["),
        group=step("placement-group-pending", "placement_group([{"),
        less=step("infeasible-request", "# render"),
        name=step("infeasible-request", "not licenc"),
    )


def look(ray: RealRay, folder: Path) -> Report:
    """Diagnose what the collectors bring, and the logs so far."""
    cluster = Cluster(str(ray.session), ray.address, ray.dashboard)
    (folder / "live").mkdir()
    for item in state.tables(cluster, 60):
        if isinstance(item, Piece):
            (folder / item.path).write_bytes(item.data)
    logs = shutil.ignore_patterns("events", "export_events", "old")
    shutil.copytree(ray.session / "logs", folder / "logs", ignore=logs)
    with open_capture(str(folder)) as capture:
        return engine.run(capture, strict=True)


@pytest.mark.ray
def test_busy_is_no_failure(clinic: Clinic) -> None:
    """A thousand tasks queued, actors with calls queued, an actor that does nothing: no task waits in vain."""
    assert clinic.busy.diagnoses == ()


@pytest.mark.ray
def test_starved(clinic: Clinic) -> None:
    assert clinic.headlines("cluster-starved") == [
        f"3 train() tasks wait for 1 seat each, because {SEATS}"
    ]
    (found,) = clinic.of("cluster-starved")
    assert {s.name for s in found.subjects} == {"Simulator"}
    assert all(s.pid for s in found.subjects)
    assert row(found, "tasks", "has waited")["name"] == "train"


@pytest.mark.ray
def test_infeasible(clinic: Clinic) -> None:
    """By amount, by name and by label; what the raylet wrote belongs to the same incident."""
    typist, label, render = clinic.headlines("infeasible-request")
    assert "1 Typist actor can never start: it needs 1 licenc, but no node has any licenc" in typist
    assert (
        "1 far() task can never start: it needs a node with zone=x, but no node carries these labels"
        in label
    )
    assert "1 render() task can never start: it needs 1 GPU, but no node has any GPU" in render
    by_name = {d.subjects[0].name: d for d in clinic.of("infeasible-request")}
    assert any('"licence"' in step for r in by_name["Typist"].remedies for step in r.steps)
    assert any(link.event.kind == "request.infeasible" for link in by_name["render"].chain)


@pytest.mark.ray
def test_placement_groups(clinic: Clinic) -> None:
    """By the cluster's shape, and by what others hold; who is to run in a group is no request of its own."""
    spread, taken = clinic.headlines("placement-group-pending")
    assert "(STRICT_SPREAD, 3 × 1 seat) is pending: it needs 3 nodes" in spread
    assert spread.endswith("1 rank() task waits for the group")
    assert (
        taken
        == f"Placement group 'taken' (PACK, 1 × 1 seat) is pending: no node has room for it: {SEATS}"
    )
    reply = [link.event.kind for d in clinic.of("placement-group-pending") for link in d.chain]
    assert reply.count("pg.registered") == 2


@pytest.mark.ray
def test_nested_get(clinic: Clinic) -> None:
    assert clinic.headlines("nested-get-deadlock") == [
        "2 plan() tasks hold 2 of 2 licence and wait for child tasks that can never start: "
        "6 part() tasks wait for 1 licence each"
    ]
    (found,) = clinic.of("nested-get-deadlock")
    child = row(found, "tasks", "its parent is plan")
    assert child["parent_task_id"] in {s.id for s in found.subjects}
    assert row(found, "ray-get", "the node's metrics")["count"] == "2"


@pytest.mark.ray
def test_actors_in_a_circle(clinic: Clinic) -> None:
    (headline,) = clinic.headlines("actor-deadlock")
    names = re.sub(r" \(pid \d+\)", "", headline)
    assert re.match(r"Deadlock: (Book|Risk)\.\w+\(\) waits for .*(Book|Risk)\.\w+\(\)", names)
    assert "which is queued behind Book." in names
    (found,) = clinic.of("actor-deadlock")
    assert row(found, "tasks", "has been queued")["name"] == "Book.price"


@pytest.mark.ray
def test_nothing_else(clinic: Clinic) -> None:
    """One finding each: none is reported twice, and the busy program beside them is none."""
    assert Counter(d.rule for d in clinic.stuck.roots if d.severity == "error") == EXPECTED


def row(found: Diagnosis, table: str, words: str) -> Event:
    """The row of a table that a link rests on."""
    return next(
        link.event
        for link in found.chain
        if words in link.shows and link.event.source.path == f"live/live-{table}.json"
    )

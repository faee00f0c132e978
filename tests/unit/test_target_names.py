"""Names of tasks, actors and processes, as people type them after a report."""

from __future__ import annotations

import pytest

from raydoctor.model.target_names import parse, pid_of, short_names

TASK = "c8ef45ccd0112571ffffffffffffffffffffffff01000000"


@pytest.mark.parametrize(
    ("typed", "name", "pid"),
    [
        (TASK, TASK, None),
        (f"TaskID({TASK})", TASK, None),
        (f"{TASK}01000000", TASK, None),
        (f"ObjectRef({TASK}01000000)", TASK, None),
        (f"Actor(Loader, {'ee' * 12}01000000)", f"{'ee' * 12}01000000", None),
        (TASK.upper(), TASK, None),
        ("c8ef45cc", "c8ef45cc", None),
        ("Trainer.step", "Trainer.step", None),
        (" pid 478 ", "", 478),
        ("load (pid 812)", "load", 812),
        ("load() (pid 812)", "load", 812),
        ("Trainer.step()", "Trainer.step", None),
        ("MapBatches(slow) (pid 812)", "MapBatches(slow)", 812),
        ("MapBatches(facade)", "MapBatches(facade)", None),
        ("pid=812", "", 812),
        ("pid", "pid", None),
    ],
)
def test_what_is_meant(typed: str, name: str, pid: int | None) -> None:
    assert parse(typed) == (name, pid)


@pytest.mark.parametrize(
    ("full", "short"),
    [
        ("pkg.Api.step", {"pkg.Api.step", "Api.step", "step"}),
        ("ReadRange->MapBatches(slow)", {"MapBatches(slow)", "ReadRange"}),
        ("MapWorker(MapBatches(Slow)).submit", {"MapBatches(Slow)"}),
        ("MapBatches(Slow.__call__)", {"MapBatches(Slow.__call__)"}),
        ("ServeReplica:default:Api", {"Api", "ServeReplica:default:Api"}),
        ("ServeReplica:default:Api.handle_request", {"handle_request", "Api.handle_request"}),
    ],
)
def test_how_it_may_be_called(full: str, short: set[str]) -> None:
    assert short <= set(short_names(full))


@pytest.mark.parametrize(
    ("typed", "pid"),
    [
        ("812", 812),
        ("pid 812", 812),
        ("load (pid 812)", None),
        ("load", None),
        ("", None),
        ("9" * 5000, None),
    ],
)
def test_a_pid_alone(typed: str, pid: int | None) -> None:
    assert pid_of(typed) == pid


def test_a_name_of_any_length_has_few_names() -> None:
    """Another user's task in the same cluster may have a name of a megabyte."""
    long = "a." * 500_000
    assert list(short_names(long)) == [long]


def test_nothing_has_no_name() -> None:
    assert list(short_names(None)) == list(short_names("")) == []

"""When processes wrote their own logs: from the two ends of each log alone."""

from __future__ import annotations

from pathlib import Path

from raydoctor.model.entities import Entity
from raydoctor.model.values import Source
from raydoctor.read.clock import NodeClocks
from raydoctor.read.detail import spans

WORKER = "ab" * 28
_INIT = "[2026-11-21 08:43:31,715 I 387 387] core_worker_process.cc:299: Initializing worker\n"
_MIDDLE = "[2026-11-21 08:43:32,000 I 387 387] core_worker.cc:1: a record of the middle\n"
_LEAVES = {
    "2.9": "[2026-11-21 08:43:33,034 I 387 387] raylet_client.cc:163: RayletClient::Disconnect, exit_type=INTENDED_USER_EXIT, a\n",
    "2.60": "[2026-11-21 08:43:33,034 I 387 387] raylet_ipc_client.cc:133: RayletIpcClient::Disconnect, exit_type=SYSTEM_ERROR, a\n",
}


def read(tmp_path: Path, *texts: str, role: str = "core-worker") -> dict[str, tuple[float, bool]]:
    clock = NodeClocks()
    clock.learn_zone("", "+00:00")
    files = {}
    for number, text in enumerate(texts):
        path = tmp_path / f"{number}.log"
        path.write_text(text)
        source = Source(f"logs/{number}.log", role, entities=(Entity("worker", WORKER),))
        files[source] = str(path)
    found = spans.read(files, clock)
    return {worker: (own.last - own.first, own.has_left) for worker, own in found.items()}


def test_the_first_and_the_last_record_of_a_log_that_is_read_at_its_ends(tmp_path: Path) -> None:
    for leave in _LEAVES.values():
        for between in ("", _MIDDLE * 2, _MIDDLE * 5_000):
            (own,) = read(tmp_path, _INIT + between + leave).values()
            seconds, has_left = own
            assert abs(seconds - 1.319) < 0.001
            assert has_left


def test_a_log_that_goes_on_shows_no_end(tmp_path: Path) -> None:
    (own,) = read(tmp_path, _INIT + _MIDDLE * 5_000 + "a line without a time\n").values()
    assert own[1] is False


def test_rotated_logs_are_one_and_the_last_one_decides(tmp_path: Path) -> None:
    ends = read(tmp_path, _INIT, _MIDDLE + _LEAVES["2.60"])
    assert [own[1] for own in ends.values()] == [True]
    goes_on = read(tmp_path, _INIT + _LEAVES["2.60"], _MIDDLE.replace(":32,", ":40,"))
    assert [own[1] for own in goes_on.values()] == [False]


def test_logs_without_a_time_or_of_other_processes_yield_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, "", "no time\n") == {}
    assert read(tmp_path, _INIT, role="raylet-out") == {}
    source = Source("logs/gone.log", "core-worker", entities=(Entity("worker", WORKER),))
    assert spans.read({source: "/nowhere/gone.log"}, NodeClocks()) == {}

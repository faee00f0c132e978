"""What the logs of Ray show of processes that ended without a record of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raydoctor.case.rule import Example
from raydoctor.cli.diagnose import exit_code
from raydoctor.model.values import Report
from raydoctor.rules import driver_vanished, raylet_defunct, raylet_died, worker_vanished
from tests.helpers.examples import run_of


def _report(examples: tuple[Example, ...], words: str) -> Report:
    return run_of(next(each for each in examples if words in each.title))[0]


def test_the_caller_s_log_shows_that_no_retry_is_left() -> None:
    (diagnosis,) = _report(worker_vanished.EXAMPLES, "the log of the caller").diagnoses
    assert diagnosis.chain[-1].shows == (
        "the caller records that kill() failed for good after 2 attempts, with max_retries=1"
    )
    assert "python-core-driver" in diagnosis.chain[-1].event.source.path


def test_the_last_line_of_the_worker_is_evidence() -> None:
    """Of its `.err`, without Ray's own lines; a library may print there why it ends the process."""
    (diagnosis,) = _report(worker_vanished.EXAMPLES, "a library prints why").diagnoses
    last = diagnosis.chain[-1]
    assert last.shows == "the last line that solve() (pid 379) printed"
    assert last.event.text == "solver: no license for feature MESH (4 of 4 in use)"
    assert (last.event.source.role, last.event.line) == ("worker-err", 3)


@pytest.mark.parametrize(
    ("words", "fail_on", "code"),
    [
        ("the raylet ended a worker of the driver's tasks", "error", 1),
        ("after its last task", "error", 0),
        ("after its last task", "warning", 1),
    ],
)
def test_a_driver_that_did_not_disconnect_is_no_all_clear(
    words: str, fail_on: str, code: int
) -> None:
    """`os._exit` and SIGKILL leave no other record; a warning alone exits with 0."""
    report = _report(driver_vanished.EXAMPLES, words)
    assert [each.rule for each in report.diagnoses] == ["driver-vanished"]
    assert exit_code(report, fail_on) == code


@pytest.mark.parametrize(("nodes", "adds_one"), [(0, False), (1, True), (2, False)])
def test_retries_help_a_cluster_of_one_node_only_with_a_second_one(
    nodes: int, adds_one: bool
) -> None:
    """Without a record of the nodes, there may be others."""
    example = raylet_died.EXAMPLES[0]
    joined = "".join(
        "[2026-11-21 07:44:02,993 I 13 13] (gcs_server) gcs_node_manager.cc:80: Registering new node. "
        f"node_id={node * 28} node_name=10.0.0.2 node_address=10.0.0.2\n"
        for node in ("fd", "ab")[:nodes]
    )
    files = {**example.files, "logs/gcs_server.out": joined}
    (diagnosis,) = run_of(replace(example, files=files))[0].diagnoses
    titles = [remedy.title for remedy in diagnosis.remedies]
    assert any(title.startswith("Add a second node") for title in titles) is adds_one


def test_the_end_of_a_raylet_has_a_fix_for_its_workers_that_keep_running() -> None:
    (root,) = _report(raylet_defunct.EXAMPLES, "PID 1 of the container is not an init").roots
    assert root.rule == "raylet-died"
    assert any("kill 88 89" in step for remedy in root.remedies for step in remedy.steps)


def test_the_kernel_log_that_is_missing_has_the_node_of_the_worker() -> None:
    """As the fix has it; of workers on several nodes, all are meant."""
    (one,) = _report(worker_vanished.EXAMPLES, "a library prints why").diagnoses
    assert [gap.what for gap in one.gaps] == ["kernel log of node 10.0.0.2"]
    assert one.gaps[0].why.endswith("ended pid 379")

"""Errors of nodes that the session never had belong to another cluster; without the GCS's word all count."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydoctor.capture.open import open_capture
from raydoctor.diagnosis import engine
from raydoctor.model.values import Report
from raydoctor.read import foreign

HERE, THERE = "a" * 56, "b" * 56
GCS = "[2026-11-21 07:44:{:02},000 I 13 13] (gcs_server) gcs.cc:1: {}\n"
REGISTERED = GCS.format(
    1, f"Registering new node. node_id={HERE} node_name=10.0.0.2 node_address=10.0.0.2"
)
STARTED = GCS.format(2, "Registering job. job_id=01000000 driver_pid=7")
FINISHED = GCS.format(9, "Marking job as finished. job_id=01000000")
LOST = (
    "Traceback (most recent call last):\nray.exceptions.OwnerDiedError: Failed to retrieve object "
    f"00ffc1d7a3e0b5f9{'f' * 24}0100000001000000. The object's owner has exited. "
    "Check cluster logs at IP address {} for more information\n"
)


def report_of(folder: Path, driver: str, gcs: str) -> Report:
    (folder / "logs").mkdir()
    (folder / "driver.log").write_text(driver)
    (folder / "logs/gcs_server.out").write_text(gcs)
    (folder / "logs/raylet.out").write_text(
        "[2026-11-21 07:34:50,741 I 9 9] (raylet) agent_manager.cc:78: Monitor agent process\n"
    )
    with open_capture(str(folder)) as capture:
        return engine.run(capture, strict=True)


def test_an_error_of_another_clusters_node_is_a_gap(tmp_path: Path) -> None:
    report = report_of(tmp_path, LOST.format("10.4.1.7"), REGISTERED + STARTED + FINISHED)
    assert report.diagnoses == () == report.unexplained
    assert "errors of 10.4.1.7 in driver.log" in [gap.what for gap in report.gaps]


def test_a_local_ray_has_one_node(tmp_path: Path) -> None:
    local = "2026-11-21 07:44:00,000\tINFO worker.py:2029 -- Started a local Ray instance.\n"
    raylet = f"Raylet of id, {HERE} started. Raylet consists of x. node_manager address: 10.0.0.2:0"
    (tmp_path / "logs").mkdir()
    (tmp_path / "driver.log").write_text(local + LOST.format("10.4.1.7"))
    (tmp_path / "logs/raylet.out").write_text(GCS.format(1, raylet).replace("gcs_server", "raylet"))
    with open_capture(str(tmp_path)) as capture:
        report = engine.run(capture, strict=True)
    assert "owner-died" not in [d.rule for d in report.diagnoses]
    assert "errors of 10.4.1.7 in driver.log" in [gap.what for gap in report.gaps]


@pytest.mark.parametrize(
    ("ip", "gcs"),
    [
        ("10.0.0.2", REGISTERED + STARTED + FINISHED),
        ("127.0.0.1", REGISTERED + STARTED + FINISHED),
        ("10.4.1.7", REGISTERED + STARTED),  # its end may be cut off, and with it a node
        ("10.4.1.7", STARTED + FINISHED),  # so may its beginning
        ("10.4.1.7", ""),
    ],
)
def test_it_counts_where_the_gcs_does_not_speak_against_it(
    tmp_path: Path, ip: str, gcs: str
) -> None:
    report = report_of(tmp_path, LOST.format(ip), gcs)
    assert [d.rule for d in report.roots] == ["owner-died"]


def test_a_program_may_print_where_a_node_is_not(tmp_path: Path) -> None:
    where = f"(raylet, ip=10.4.1.7) at node (ID: {THERE}, IP: 10.4.1.7)\n"
    report = report_of(tmp_path, where, REGISTERED + STARTED + FINISHED)
    assert report.gaps == ()


LOCAL = "2026-11-21 07:44:00,000\tINFO worker.py:2029 -- Started a local Ray instance.\n"
OF_JOB_3 = LOST.format("127.0.0.1").replace("0100000001000000", "0300000001000000")


def alone(folder: Path, driver: str) -> Report:
    (folder / "driver.log").write_text(driver)
    with open_capture(str(folder / "driver.log")) as capture:
        return engine.run(capture, strict=True)


def test_a_ray_of_ones_own_has_one_job(tmp_path: Path) -> None:
    report = alone(tmp_path, LOCAL + OF_JOB_3)
    assert report.diagnoses == ()
    assert "errors of job 3" in "".join(gap.what for gap in report.gaps)


@pytest.mark.parametrize("driver", [LOCAL + LOST.format("127.0.0.1"), OF_JOB_3])
def test_its_own_job_counts_and_so_does_any_of_a_cluster(tmp_path: Path, driver: str) -> None:
    assert "owner-died" in [d.rule for d in alone(tmp_path, driver).diagnoses]


def test_without_known_nodes_no_record_is_searched_for_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A console of long records alone took a fifth longer."""
    monkeypatch.setattr(foreign, "_PLACES", None)
    report = report_of(tmp_path, LOST.format("10.4.1.7"), STARTED)
    assert "owner-died" in [d.rule for d in report.diagnoses]

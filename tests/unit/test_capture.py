"""Every layout that a user may give, and whose file is whose."""

from __future__ import annotations

import subprocess
import sys
import time
from fnmatch import fnmatch
from pathlib import Path

import pytest

from raydoctor.capture import session
from raydoctor.capture.layout import SHAPES, files_of, identify, node_label
from raydoctor.capture.open import open_capture
from raydoctor.case import signals
from raydoctor.case.signals import RAYLET_STARTED, WORKER_EXIT
from raydoctor.diagnosis import engine
from raydoctor.model.entities import Entity
from raydoctor.model.errors import RaydoctorError
from raydoctor.read import build

W = "cd09fc46897e18918275a6d03cc3a6abc2becabe5e0fd27a533d35a7"
EXIT = (
    f"[2026-11-21 07:34:50,741 W 8 8] (gcs_server) gcs_worker_manager.cc:70: {WORKER_EXIT.sample}\n"
)
DRIVER = "ray.exceptions.LocalRayletDiedError: The task's local raylet died. Check raylet.out for more information.\n"


def session_at(folder: Path, name: str = "session_2026-11-21_07-34-46_172399_7") -> Path:
    logs = folder / name / "logs"
    logs.mkdir(parents=True)
    (logs / "gcs_server.out").write_text(EXIT)
    (logs / "raylet.out").write_text("")
    return folder / name


def found(path: Path | None, driver_log: str | None = None) -> list[str]:
    with open_capture(None if path is None else str(path), driver_log) as capture:
        return [d.rule for d in engine.run(capture, strict=True).diagnoses]


# ---------------------------------------------------------------- layouts


def test_session_logs_and_trees(tmp_path: Path) -> None:
    inside = session_at(tmp_path)
    assert found(inside) == ["worker-vanished"]
    assert found(inside / "logs") == ["worker-vanished"]
    assert found(tmp_path) == ["worker-vanished"]
    with open_capture(str(inside)) as capture:
        assert (capture.kind, [s.path for s in capture.sources]) == (
            "session",
            ["logs/gcs_server.out", "logs/raylet.out"],
        )


def test_old_and_rotated_files_count(tmp_path: Path) -> None:
    logs = session_at(tmp_path) / "logs"
    (logs / "gcs_server.out").rename(logs / "gcs_server.1.out")
    (logs / "gcs_server.out").write_text("")
    (logs / "old").mkdir()
    (logs / "old" / f"worker-{W}-01000000-379.out").write_text(
        ":job_id:01000000\n:task_name:train\n"
    )
    with open_capture(str(logs)) as capture:
        report = engine.run(capture, strict=True)
    assert "train() (pid 379)" in report.diagnoses[0].headline


def test_a_ray_temp_folder_means_its_latest_session(tmp_path: Path) -> None:
    session_at(tmp_path, "session_2026-11-20_07-34-46_172399_7")
    newest = session_at(tmp_path, "session_2026-11-21_07-34-46_172399_7")
    with open_capture(str(tmp_path)) as capture:
        assert Path(capture.path) == newest.resolve()
        assert "session_2026-11-20" in capture.notes[0]
    (tmp_path / "session_latest").symlink_to(tmp_path / "session_2026-11-20_07-34-46_172399_7")
    with open_capture(str(tmp_path)) as capture:
        assert "session_2026-11-20" in capture.path


def test_one_folder_per_node(tmp_path: Path) -> None:
    session_at(tmp_path / "head-pod")
    other = tmp_path / "worker-pod" / "logs"
    other.mkdir(parents=True)
    (other / "raylet.out").write_text("")
    with open_capture(str(tmp_path)) as capture:
        assert {s.node for s in capture.sources} == {"head-pod", "worker-pod"}


def test_single_files_and_driver_output(tmp_path: Path) -> None:
    log = tmp_path / "what-i-saw.txt"
    log.write_text(DRIVER)
    assert found(log) == ["raylet-died"]
    assert found(None, str(log)) == ["raylet-died"]
    inside = session_at(tmp_path)
    assert set(found(inside, str(log))) == {"worker-vanished", "raylet-died"}
    (inside / "driver.log").write_text(DRIVER)
    assert set(found(inside)) == {"worker-vanished", "raylet-died"}


def test_driver_output_from_standard_input() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "raydoctor", "--driver-log", "-"],
        input=DRIVER, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "raylet-died" in done.stdout
    assert "<stdin>:1" in done.stdout


def test_no_path_means_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    newest = session_at(tmp_path / "ray")
    (tmp_path / "ray" / "session_latest").symlink_to(newest)
    assert found(None) == ["worker-vanished"]


def test_the_temporary_folder_of_the_shell_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    newest = session_at(tmp_path / "ray")
    assert session.this_machine().path == newest


def test_when_a_session_began() -> None:
    stamp = time.mktime((2026, 11, 21, 13, 41, 8, 0, 0, -1))
    assert session.began("/tmp/ray/session_2026-11-21_13-41-08_673983_16224") == stamp
    assert session.began("/tmp/ray/session_latest") is None


def test_nothing_here_says_what_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_roots", lambda: [tmp_path / "ray"])  # not this machine's /tmp
    with pytest.raises(RaydoctorError, match="session_latest") as refused:
        session.this_machine()
    assert "raydoctor demo" in refused.value.hint


# ---------------------------------------------------------------- names


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.sample)
def test_shapes_know_their_samples(shape: object) -> None:
    for name in (shape.sample, f"{shape.sample}.gz"):  # type: ignore[attr-defined]
        source = identify(f"logs/{name}")
        assert source is not None
        assert source.role == shape.role  # type: ignore[attr-defined]


def test_names_carry_ids() -> None:
    source = identify(f"n1/logs/worker-{W}-01000000-503.out")
    assert source is not None
    assert source.entities == (Entity("worker", W), Entity("job", "01000000"))
    assert (source.pid, source.node) == (503, "n1")
    prestarted = identify(f"logs/worker-{W}-ffffffff-503.err")
    assert prestarted is not None
    assert prestarted.entities == (Entity("worker", W),)
    for name in ("notes.txt", "worker.out", "raylet.out.tmp", "raylet.outer"):
        assert identify(f"logs/{name}") is None


def test_node_labels() -> None:
    assert node_label("logs") == ""
    assert node_label("head/session_2026-11-21/logs/old") == "head"
    assert node_label("ns/pod-1/logs/events") == "ns/pod-1"


# ---------------------------------------------------------------- raylet.1.out


def started(node: str, pid: int) -> str:
    text = RAYLET_STARTED.sample.replace(
        "4392271d343578a32aee264b3908f06bdc8a6dc43675e3227cbbe483", node * 56
    )
    return f"[2026-11-21 07:34:49,929 I {pid} {pid}] (raylet) node_manager.cc:355: {text}\n"


def later(pid: int) -> str:
    return f"[2026-11-21 07:44:49,929 I {pid} {pid}] (raylet) main.cc:1174: received SIGTERM. Existing local drain request = None\n"


def node_of(folder: Path, name: str) -> str:
    with open_capture(str(folder)) as capture:
        case = build.read(capture, signals.FACTS).case
        return case.node_of(next(s for s in case.sources if s.path.endswith(name)))


def test_raylet_1_is_a_second_raylet_when_it_starts_one(tmp_path: Path) -> None:
    logs = session_at(tmp_path) / "logs"
    (logs / "raylet.out").write_text(started("a", 10) + later(10))
    (logs / "raylet.1.out").write_text(started("b", 20) + later(20))
    assert node_of(logs, "raylet.out") == "a" * 56
    assert node_of(logs, "raylet.1.out") == "b" * 56


def test_raylet_1_is_a_rotation_when_the_process_is_the_same(tmp_path: Path) -> None:
    logs = session_at(tmp_path) / "logs"
    (logs / "raylet.1.out").write_text(started("a", 10))
    (logs / "raylet.out").write_text(later(10))
    assert node_of(logs, "raylet.out") == "a" * 56
    assert node_of(logs, "raylet.1.out") == "a" * 56


def test_raylet_err_goes_with_its_out(tmp_path: Path) -> None:
    logs = session_at(tmp_path) / "logs"
    (logs / "raylet.out").write_text(started("a", 10))
    (logs / "raylet.1.out").write_text(started("b", 20))
    (logs / "raylet.1.err").write_text("")
    assert node_of(logs, "raylet.1.err") == "b" * 56


def test_a_page_names_the_logs_of_controllers_and_workers_of_train() -> None:
    """The page of `train-worker-failed` searches both for `[FailurePolicy]`, which only a controller logs."""
    for name in ("ray-train-sys-controller-a.log", "ray-train-sys-worker-b.log"):
        source = identify(f"logs/train/{name}")
        assert source is not None
        assert fnmatch(name, files_of(source.role))

"""Bad input: one clear line and the right exit code, or a gap; never a traceback, a hang, a false "healthy"."""

from __future__ import annotations

import ctypes
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from captures import capture_of

from raydoctor.capture import open as opening
from raydoctor.capture.open import Capture, open_capture
from raydoctor.case.signals import WORKER_EXIT
from raydoctor.diagnosis import engine
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.values import Source

EXIT = (
    f"[2026-11-21 07:34:50,741 W 8 8] (gcs_server) gcs_worker_manager.cc:70: {WORKER_EXIT.sample}\n"
)
FIXTURE = capture_of(
    Path(__file__).parent.parent / "fixtures" / "worker-sigkill--ray-2.60.0--1-node"
)


def raydoctor(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "raydoctor", *map(str, arguments)],
        capture_output=True, text=True, errors="surrogateescape", timeout=120, check=False, **options,  # type: ignore[call-overload]
    )  # fmt: skip


def logs(folder: Path, **files: str | bytes) -> Path:
    inside = folder / "logs"
    inside.mkdir(parents=True)
    for name, content in {"raylet.out": "", "gcs_server.out": "", **files}.items():
        data = content if isinstance(content, bytes) else content.encode()
        (inside / name).write_bytes(data)
    return folder


def refused(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    first, *rest = done.stderr.strip().splitlines()
    assert first.startswith("raydoctor: ")
    assert rest, "says what to do next"


def test_missing_path(tmp_path: Path) -> None:
    refused(raydoctor("diagnose", tmp_path / "nowhere"))


def test_empty_directory(tmp_path: Path) -> None:
    refused(raydoctor("diagnose", tmp_path))


def test_no_ray_session(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("hello")
    (tmp_path / "src").mkdir()
    refused(raydoctor("diagnose", tmp_path))


def test_a_path_with_a_nul_or_control_characters(tmp_path: Path) -> None:
    done = raydoctor("diagnose", tmp_path / "a\x1b[31mb\nc")
    refused(done)
    assert "\x1b" not in done.stderr


def test_a_socket_is_no_log(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(raydoctor("diagnose", tmp_path / "pipe"))


def test_no_archive(tmp_path: Path) -> None:
    (tmp_path / "x.tar.gz").write_bytes(b"not an archive")
    refused(raydoctor("diagnose", tmp_path / "x.tar.gz"))


def test_missing_driver_log(tmp_path: Path) -> None:
    refused(raydoctor("diagnose", logs(tmp_path), "--driver-log", tmp_path / "none.txt"))


def test_usage(tmp_path: Path) -> None:
    assert raydoctor("diagnose", "--format", "yaml").returncode == 2
    assert raydoctor("diagnose", logs(tmp_path), "--since", "yesterdayish").returncode == 2


def test_empty_logs_are_not_called_healthy_without_their_files(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "dashboard.log").write_text("")
    done = raydoctor("diagnose", tmp_path, "--format", "json")
    assert done.returncode == 3
    assert {g["what"] for g in json.loads(done.stdout)["gaps"]} >= {"gcs_server.out", "raylet.out"}


def without_override() -> None:
    """Root reads what it likes: take that right from a child before it starts (Linux)."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


@pytest.mark.skipif(sys.platform != "linux", reason="takes rights away as Linux does")
def test_unreadable_files_are_gaps(tmp_path: Path) -> None:
    folder = logs(tmp_path, **{"gcs_server.out": EXIT, "raylet.out": "x"})
    (folder / "logs" / "raylet.out").chmod(0)
    rights = {"preexec_fn": without_override} if os.getuid() == 0 else {}
    done = raydoctor("diagnose", folder, "--format", "json", **rights)
    report = json.loads(done.stdout)
    assert any("raylet.out" in g["what"] and "ermission" in g["why"] for g in report["gaps"])
    assert done.returncode == 1


def test_binary_junk(tmp_path: Path) -> None:
    junk = random.Random(7).randbytes(200_000) + b"\n" + EXIT.encode() + b"\0\0\xff\xfe\n"
    folder = logs(tmp_path, **{"gcs_server.out": junk, "raylet.out": bytes(range(256)) * 100})
    done = raydoctor("diagnose", folder)
    assert done.returncode == 1
    assert "worker-vanished" in done.stdout
    assert not any(ord(c) < 32 and c != "\n" for c in done.stdout)


def test_logs_cannot_steer_the_terminal(tmp_path: Path) -> None:
    evil = EXIT.rstrip("\n") + "\x1b]0;owned\x07\x1b[2J\u202e [bold red]rich[/] \x9b31m\r\n"
    done = raydoctor("diagnose", logs(tmp_path, **{"gcs_server.out": evil}), "-v")
    assert done.returncode == 1
    assert not any((ord(c) < 32 and c != "\n") or c in "\x7f\x9b\u202e" for c in done.stdout)


def test_names_with_control_characters(tmp_path: Path) -> None:
    folder = logs(tmp_path)
    name = f"worker-{'a' * 56}-01000000-1.out"
    (folder / "logs" / f"x\n\x1b[31m{name}").write_text("x")
    (folder / "a\nb\x1b[0m").mkdir()
    (folder / "a\nb\x1b[0m" / "gcs_server.out").write_text(EXIT)
    done = raydoctor("diagnose", folder)
    assert done.returncode == 1
    assert "\x1b" not in done.stdout
    assert "worker-vanished" in done.stdout


def test_symlink_loops(tmp_path: Path) -> None:
    folder = logs(tmp_path, **{"gcs_server.out": EXIT})
    (folder / "loop").symlink_to(folder)
    (folder / "logs" / "raylet.1.out").symlink_to(folder / "logs" / "raylet.1.out")
    done = raydoctor("diagnose", folder, "--format", "json")
    report = json.loads(done.stdout)
    assert [d["rule"] for d in report["diagnoses"]] == ["worker-vanished"]
    assert any("symbolic link" in g["why"] for g in report["gaps"])


def test_a_giant_line_costs_little_and_hides_nothing(tmp_path: Path) -> None:
    folder = logs(tmp_path, **{"gcs_server.out": EXIT})
    with (folder / "logs" / "raylet.out").open("r+b") as out:
        out.truncate(2 << 30)  # sparse: two gigabytes of NULs without a line break
    began = time.monotonic()
    done = raydoctor("diagnose", folder, "--format", "json")
    assert time.monotonic() - began < 60
    assert [d["rule"] for d in json.loads(done.stdout)["diagnoses"]] == ["worker-vanished"]


def test_truncated_records(tmp_path: Path) -> None:
    for size in range(1, len(EXIT), 7):
        with_cut = logs(tmp_path / str(size), **{"gcs_server.out": EXIT[:size]})
        with open_capture(str(with_cut)) as capture:
            engine.run(capture, strict=True)


def test_files_that_vanish_grow_and_shrink(tmp_path: Path) -> None:
    folder = logs(tmp_path, **{"gcs_server.out": EXIT * 3, "raylet.err": "x", "monitor.log": EXIT})
    with open_capture(str(folder)) as capture:
        (folder / "logs" / "raylet.err").unlink()
        (folder / "logs" / "monitor.log").write_text("")
        with (folder / "logs" / "gcs_server.out").open("a") as out:
            out.write(EXIT)
        report = engine.run(capture, strict=True)
    assert [d.rule for d in report.diagnoses] == ["worker-vanished"]
    assert any("raylet.err" in gap.what for gap in report.gaps)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_mutated_capture_never_raises(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A real capture with bytes flipped, lines lost and files cut."""
    folder = tmp_path_factory.mktemp("mutated")
    for file in FIXTURE.rglob("*"):
        if file.is_file() and file.stat().st_size:
            content = bytearray(file.read_bytes())
            for _ in range(data.draw(st.integers(0, 3))):
                at = data.draw(st.integers(0, len(content) - 1))
                content[at : at + data.draw(st.integers(0, 200))] = data.draw(
                    st.binary(max_size=50)
                )
                if not content:
                    break
            target = folder / file.relative_to(FIXTURE)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(bytes(content))
    with open_capture(str(folder)) as capture:
        report = engine.run(capture, strict=True)
    assert all(d.chain for d in report.diagnoses)


@settings(max_examples=10, deadline=None)
@given(order=st.randoms(use_true_random=False))
def test_the_order_of_files_does_not_matter(order: random.Random) -> None:
    with open_capture(str(FIXTURE)) as capture:
        expected = summary(capture)
        items = list(capture.files.items())
        order.shuffle(items)
        capture.files = dict[Source, Path](items)
        assert summary(capture) == expected


def summary(capture: Capture) -> list[tuple[str, str, tuple[tuple[str, int], ...]]]:
    report = engine.run(capture, strict=True)
    return [
        (d.rule, d.headline, tuple((x.event.source.path, x.event.line) for x in d.chain))
        for d in report.diagnoses
    ]


# ---------------------------------------------------------------- streams, odd places


def test_driver_output_from_a_pipe(tmp_path: Path) -> None:
    """`--driver-log <(kubectl logs …)` names a pipe, which can be read only once."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    line = "ray.exceptions.LocalRayletDiedError: The task's local raylet died.\n"
    writer = threading.Thread(target=lambda: pipe.write_text(line))
    writer.start()
    with open_capture(None, str(pipe)) as capture:
        assert [d.rule for d in engine.run(capture).diagnoses] == ["raylet-died"]
    writer.join()


def test_a_stream_without_end_is_cut(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(opening, "STREAM_LIMIT", 3 << 20)
    with Path("/dev/zero").open() as endless:
        monkeypatch.setattr(sys, "stdin", endless)
        with open_capture(None, "-") as capture:
            assert capture.sources[0].size == 3 << 20
            assert "the rest was not read" in capture.gaps[0].why


@pytest.mark.parametrize("what", ["/dev/zero", "/", "no\0name"])
def test_what_is_no_driver_log(what: str, tmp_path: Path) -> None:
    with pytest.raises(RaydoctorError, match="cannot read the driver log"):
        open_capture(str(logs(tmp_path)), what)


def test_no_temporary_folder_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "raylet.out.1.gz").write_bytes(gzip.compress(b"x"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(RaydoctorError, match="temporary folder"):
        open_capture(str(tmp_path))


def test_folders_nested_without_end(tmp_path: Path) -> None:
    """Deeper than Python recurses and than a path may be long."""
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("deep", dir_fd=here)
        below = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    folder = logs(tmp_path / "node", **{"gcs_server.out": EXIT})
    try:
        done = raydoctor("diagnose", folder.parent)
    finally:  # shutil recurses: pytest itself would fail on it, three runs later
        subprocess.run(["rm", "-rf", tmp_path / "deep"], check=True)
    assert done.returncode == 1
    assert "worker-vanished" in done.stdout


def test_only_the_latest_of_several_sessions(tmp_path: Path) -> None:
    """Wherever in a tree they lie: the others are other clusters' lives."""
    for day in ("20", "21"):
        logs(
            tmp_path / "tmp" / "ray" / f"session_2026-11-{day}_07-34-46_1_7",
            **{"gcs_server.out": EXIT},
        )
    with open_capture(str(tmp_path)) as capture:
        assert {s.path.split("/")[2] for s in capture.sources} == {
            "session_2026-11-21_07-34-46_1_7"
        }
        assert "session_2026-11-20" in capture.notes[0]

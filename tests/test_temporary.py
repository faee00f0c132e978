"""Temporary folders: removed whatever ends the process; those of other users stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from captures import FIXTURES, capture_of

from raydoctor.capture import temporary
from raydoctor.capture.open import Capture
from raydoctor.capture.temporary import PREFIX, private_folder, sweep

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and locks")


@pytest.fixture(autouse=True)
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of the test's own."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    file = tmp_path / "logs.tar.gz"
    with tarfile.open(file, "w:gz") as tar:
        tar.add(capture_of(FIXTURES / "healthy--ray-2.60.0--1-node"), ".")
    return file


STOPS = """
import sys, time
from raydoctor import diagnosis
def stop(*a, **k):
    print("unpacked", flush=True)
    time.sleep(60)
diagnosis.run = stop
from raydoctor.cli import main
main()
"""
"""The command line, standing still when the archive is unpacked."""


def unpacking(archive: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", STOPS, "diagnose", str(archive)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == "unpacked\n"
    return child


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_takes_the_folder_along(
    number: signal.Signals, archive: Path, ground: Path
) -> None:
    child = unpacking(archive)
    assert any(ground.iterdir())
    child.send_signal(number)
    child.communicate(timeout=20)
    assert not any(ground.iterdir())
    assert child.returncode == (130 if number == signal.SIGINT else -number)


WRITES = """
import sys, time
from raydoctor.observe import bundle
def stop(*a, **k):
    print("writing", flush=True)
    time.sleep(60)
bundle.write_to = stop
bundle.write(sys.argv[1], None, None)
"""


def test_a_partial_bundle_goes_with_the_process(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    child = subprocess.Popen(
        [sys.executable, "-c", WRITES, str(out / "x.tar.gz")], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "writing\n"
    assert any(out.iterdir())
    child.terminate()
    child.communicate(timeout=20)
    assert child.returncode == -signal.SIGTERM
    assert not any(out.iterdir())


def test_what_a_kill_leaves_is_removed_by_the_next(
    archive: Path, ground: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = unpacking(archive)
    (left,) = ground.iterdir()
    monkeypatch.setattr(temporary, "_SETTLED", -1.0)
    sweep(str(ground))
    assert left.exists(), "its process runs"
    child.kill()
    child.communicate(timeout=20)
    assert left.exists()
    private_folder().remove()
    assert not left.exists()


def test_a_folder_that_was_just_made_is_left(ground: Path) -> None:
    (ground / f"{PREFIX}abcdefgh").mkdir(mode=0o700)
    sweep(str(ground))
    assert any(ground.iterdir())


def test_others_folders_links_and_files_are_left(
    ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary, "_SETTLED", -1.0)
    precious = tmp_path / "precious"
    precious.mkdir(mode=0o700)
    (precious / "file").touch()
    (ground / f"{PREFIX}linklink").symlink_to(precious)
    (ground / f"{PREFIX}filefile").touch(mode=0o700)
    os.mkfifo(ground / f"{PREFIX}fifofifo", 0o700)
    (ground / f"{PREFIX}openopen").mkdir(mode=0o755)
    (ground / f"{PREFIX}mine").mkdir(mode=0o700)
    (ground / "raydoctor-captures-abcdefgh").mkdir(mode=0o700)
    expected = {p.name for p in ground.iterdir()}
    if os.getuid() == 0:
        (ground / f"{PREFIX}theirs_1").mkdir(mode=0o700)
        os.chown(ground / f"{PREFIX}theirs_1", 65534, 65534)
        expected.add(f"{PREFIX}theirs_1")
    inside = ground / f"{PREFIX}ours_own"
    inside.mkdir(mode=0o700)
    (inside / "link").symlink_to(precious)
    sweep(str(ground))
    assert {p.name for p in ground.iterdir()} == expected
    assert (precious / "file").exists()


def test_a_sweep_is_bounded(ground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporary, "_SETTLED", -1.0)
    for number in range(30):
        (ground / f"{PREFIX}{number:08}").mkdir(mode=0o700)
    sweep(str(ground))
    assert len(list(ground.iterdir())) == 10


def test_handlers_are_there_only_while_a_folder_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    with Capture("", "tree", {}) as one, Capture("", "tree", {}) as two:
        one.temporary()
        two.temporary()
        one.close()
        assert callable(signal.getsignal(signal.SIGTERM))
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_programs_own_handlers_stay() -> None:
    def mine(number: int, frame: object) -> None: ...

    before = signal.signal(signal.SIGTERM, mine), signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        folder = private_folder()
        assert signal.getsignal(signal.SIGTERM) is mine
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, "nohup"
        folder.remove()
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGHUP, before[1])


def test_another_thread_installs_no_handlers() -> None:
    made = []
    thread = threading.Thread(target=lambda: made.append(private_folder()))
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    made[0].remove()
    assert not made[0].path.exists()


def test_a_fork_does_not_remove_its_parents_folder() -> None:
    folder = private_folder()
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(20)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM
    assert folder.path.exists()
    folder.remove()

"""Which files of running drivers are read: child processes in place of drivers, no cluster."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raydoctor.capture import owners
from raydoctor.model.values import Gap, Source
from raydoctor.observe import bundle, live
from raydoctor.observe.collector.cluster import Cluster, Daemon
from raydoctor.observe.collector.run import Collection
from raydoctor.observe.processes import driver_output, proc
from raydoctor.observe.processes.redact import Redactor

_DRIVER = """
import os, sys
log = open(f"{sys.argv[1]}/logs/python-core-driver-{'01' * 28}_{os.getpid()}.log", "w")
exec(sys.argv[2])
os.write(2, b"ready")
os.read(0, 1)
"""
DAEMON = Daemon("raylet", 1, 1.0, "S")
TEXT = (
    "".join(f"GetTimeoutError: Get timed out in call {n}\n" for n in range(50)) + "THE LAST LINE\n"
)


@pytest.fixture
def session(tmp_path: Path) -> Path:
    session = tmp_path / "session"
    (session / "logs").mkdir(parents=True)
    return session


@contextmanager
def driver(session: Path, program: str = "") -> Iterator[int]:
    """A process with a driver's log open, once it has run this program; its standard error is a pipe."""
    with subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", _DRIVER, str(session), program],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        assert process.stderr.read(5) == b"ready"
        yield process.pid
        process.kill()


def to(file: Path, flags: str = "os.O_WRONLY") -> str:
    """A program whose standard output is then this file."""
    return f"os.dup2(os.open({str(file)!r}, {flags}), 1)"


def found(session: Path, *pids: int) -> list[object]:
    """The contents of the files, and the gaps."""
    sources = [Source(f"logs/{pid}", "core-driver", pid=pid) for pid in pids]
    return [
        each if isinstance(each, Gap) else (each.pid, each.path, each.stream.read())
        for each in driver_output.find(str(session), sources)
    ]


def written(path: Path, text: str = TEXT) -> Path:
    path.write_text(text)
    return path


def test_a_file_is_read_once_and_only_while_its_driver_runs(session: Path) -> None:
    file = written(session.parent / "out.txt")
    with driver(session, to(file)) as pid:
        with driver(session, to(file)) as other:
            content = (min(pid, other), str(file), TEXT.encode())
            assert found(session, pid, other) == [content]
        file.unlink()
        assert found(session, pid, other) == [(pid, str(file), TEXT.encode())]
        assert found(session / "other", pid) == []
    assert found(session, pid) == []


@pytest.mark.parametrize("flags", ["os.O_PATH", "os.O_RDONLY"])
def test_a_file_that_a_driver_does_not_write_is_not_read(session: Path, flags: str) -> None:
    """Any user can open these for a file that only root can read, or that `sudo` reads for them."""
    with driver(session, to(written(session.parent / "secret"), flags)) as pid:
        assert found(session, pid) == []


def test_a_file_of_another_user_is_a_gap(session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.geteuid() + 1
    file = written(session.parent / "out.txt")
    with driver(session, to(file)) as pid:
        monkeypatch.setattr(proc, "credentials", lambda pid: other)
        assert found(session, pid) == []  # the driver of a user who is not trusted
        monkeypatch.setattr(owners, "trusted", lambda: frozenset({os.geteuid(), other}))
        (gap,) = found(session, pid)
    assert isinstance(gap, Gap)
    assert gap.what == str(file)
    assert "not to the driver's user" in gap.why


def test_only_regular_files_are_opened(session: Path) -> None:
    fifo = session.parent / "fifo"
    os.mkfifo(fifo)
    for program in (
        to(fifo, "os.O_RDWR"),
        to(Path("/dev/null")),
        to(written(fifo.with_name("empty"), "")),
    ):
        with driver(session, program) as pid:
            assert found(session, pid) == []


def test_a_submitted_jobs_log_is_not_read_twice(session: Path) -> None:
    link = session.parent / "link"
    link.symlink_to(written(session / "logs" / "job-driver-raysubmit_x.log"))
    with driver(session, to(link)) as pid:
        assert found(session, pid) == []


def test_a_large_file_is_a_gap(session: Path) -> None:
    file = session.parent / "out.txt"
    with driver(
        session, f"{to(file, 'os.O_WRONLY | os.O_CREAT')}; os.ftruncate(1, {20 << 30})"
    ) as pid:
        (gap,) = found(session, pid)
        assert isinstance(gap, Gap)
        assert gap.why.startswith("20,480 MiB")


def test_many_files_have_a_limit_together(session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_output, "MOST_OF_ALL", len(TEXT))
    files = [written(session.parent / name) for name in ("a.txt", "b.txt")]
    with driver(session, to(files[0])) as pid, driver(session, to(files[1])) as other:
        _, gap = found(session, pid, other)
    assert isinstance(gap, Gap)
    assert gap.why.startswith("not read: drivers' output has more than")


@pytest.mark.parametrize("what", ["file", "user", "driver"])
def test_what_is_exchanged_after_the_check_is_not_read(
    session: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    other = written(session.parent / "secret")
    real_open = os.open

    def exchange(path: str, flags: int) -> int:
        monkeypatch.undo()
        if what == "user":
            monkeypatch.setattr(proc, "credentials", lambda pid: os.geteuid() + 1)
        elif what == "driver":
            monkeypatch.setattr(proc, "files", lambda pid: {1: str(other)})
        return real_open(other if what == "file" else path, flags)

    with driver(session, to(written(session.parent / "out.txt"))) as pid:
        monkeypatch.setattr(driver_output.os, "open", exchange)
        assert found(session, pid) == []
        assert len(found(session, pid)) == (what == "file")


def live_of(session: Path, *, logs: bool = True) -> live.Live:
    cluster = Cluster(session_dir=str(session), daemons=(DAEMON,))
    return live.Live(cluster, Collection(), Redactor(), logs=logs)


def test_an_archive_holds_the_bytes_that_the_driver_wrote(session: Path, tmp_path: Path) -> None:
    """And not the rewritten console, which is longer and has lost its levels and times."""
    written(session / "logs" / "job-driver-raysubmit_x.log")
    with driver(session, to(written(tmp_path / "out.txt"))) as pid:
        one = live_of(session)
        with one.capture() as capture:
            assert len(capture.originals) == 2
            bundle.write(str(tmp_path / "x.tar"), live.bundle_of(one, capture), Redactor())
    with tarfile.open(tmp_path / "x.tar") as tar:
        texts = {n: tar.extractfile(n).read().decode() for n in tar.getnames()}  # type: ignore[union-attr]
    assert [n for n, text in texts.items() if text == TEXT] == [
        "logs/job-driver-raysubmit_x.log",
        next(n for n in texts if n.startswith(f"driver-{pid}-")),
    ]


def test_without_logs_drivers_are_not_read(session: Path, tmp_path: Path) -> None:
    """`raydoctor hung` never uses them."""
    with (
        driver(session, to(written(tmp_path / "out.txt"))),
        live_of(session, logs=False).capture() as capture,
    ):
        assert [source.role for source in capture.files] == ["core-driver"]


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("target", ["temporary.private_folder", "open._spooled"])
def test_a_full_disk_is_a_gap(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.setattr(f"raydoctor.capture.{target}", _full)
    file = written(tmp_path / "out.txt")
    with driver(session, to(file)), live_of(session).capture() as capture:
        (gap,) = capture.gaps
    assert gap.what == str(file)
    assert os.strerror(errno.ENOSPC) in gap.why


def test_a_console_is_read_without_a_temporary_folder(
    session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(session / "logs" / "job-driver-raysubmit_x.log")
    monkeypatch.setattr("raydoctor.capture.temporary.private_folder", _full)
    with live_of(session).capture() as capture:
        assert [source.role for source in capture.files] == ["job-driver"]
        assert os.strerror(errno.ENOSPC) in capture.gaps[0].why

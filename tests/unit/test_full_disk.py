"""Files that cannot take more: no program waits for them, and no part of one looks like the whole."""

from __future__ import annotations

import errno
import gzip
import io
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest

from raydoctor.act.run.tee import Tee
from raydoctor.capture import outputs
from raydoctor.cli._files import write_atomically
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.values import Source
from raydoctor.observe import bundle
from raydoctor.redact.redactor import Redactor

CUT = b"\n[raydoctor: a part of the output is missing here]\n"
PROGRAM = "for n in range(4000): print('line', n, 'x' * 90)\nraise SystemExit('the last words')"


class SmallFile(io.FileIO):
    """A file on a disk that has room for this many bytes."""

    room = 0

    def write(self, data: Any) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        size = super().write(bytes(data)[: self.room]) or 0
        self.room -= size
        return size


def shown(log: SmallFile) -> Tee:
    """Run a program that prints 400 kB; its output beyond the log's room would fill its pipe."""
    tee = Tee(cast("BinaryIO", log))
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=tee.stdout, stderr=tee.stderr, text=True
    )
    tee.begin()
    assert child.wait(60) == 1
    tee.finish(60)
    return tee


@pytest.mark.parametrize("room", [0, 100, 20_000])
def test_a_program_does_not_wait_for_a_full_disk(
    room: int, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with SmallFile(tmp_path / "log", "wb") as log:
        log.room = room
        tee = shown(log)
    out, err = capfdbinary.readouterr()
    kept = (tmp_path / "log").read_bytes()
    assert tee.problem == os.strerror(errno.ENOSPC)
    assert out.count(b"\n") == 4000
    assert len(kept) <= room
    assert tee.lacking == len(out + err) - len(kept.replace(CUT, b""))
    assert kept.count(CUT) == (room > 1000)
    if CUT in kept:
        assert kept.startswith(b"line 0 ")
        assert kept.endswith(b"the last words\n")


def test_a_log_with_room_has_the_whole_output(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with SmallFile(tmp_path / "log", "wb") as log:
        log.room = 1 << 20
        tee = shown(log)
    out, err = capfdbinary.readouterr()
    assert (tee.problem, tee.lacking) == ("", 0)
    assert len((tmp_path / "log").read_bytes()) == len(out + err)


# ---------------------------------------------------------------- files that are written as a whole


def closing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on NFS, where the server's full disk is reported when the file is closed."""

    class Remote(io.FileIO):
        def close(self) -> None:
            was_open = not self.closed
            super().close()
            if was_open:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(outputs, "open", Remote, raising=False)


def test_a_file_that_cannot_be_closed_replaces_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "report.html"
    report.write_text("the old one")
    closing_fails(monkeypatch)
    with pytest.raises(RaydoctorError, match=r"cannot write .*: No space left on device"):
        write_atomically(str(report), "the new one")
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    assert report.read_text() == "the old one"


LIMITED = """
import resource, sys
sys.dont_write_bytecode = True
resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES, BYTES))
from raydoctor import cli
sys.exit(cli.execute(sys.argv[1:]))
"""


def limited(size: int, *words: str, data: bytes = b"") -> tuple[int, str, str]:
    """A command that can write no file of more than this many bytes."""
    program = LIMITED.replace("BYTES", str(size))
    done = subprocess.run(
        [sys.executable, "-c", program, *words], input=data, capture_output=True, check=False
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def a_log(records: int) -> bytes:
    line = "[2026-11-21 07:47:10,028 I 2 2] (raylet) a.cc:1: started a worker {}\n"
    return "".join(map(line.format, range(records))).encode()


def test_no_room_for_files_of_ours_is_no_damage_of_the_input(tmp_path: Path) -> None:
    (packed := tmp_path / "raylet.out").write_bytes(gzip.compress(a_log(2000)))
    with tarfile.open(tmp_path / "logs.tar.gz", "w:gz") as archive:
        archive.add(packed, "logs/raylet.out")
    for file, why in (
        (packed, "the disk has no room to decode all of it"),
        (tmp_path / "logs.tar.gz", "the disk has no room to unpack it"),
    ):
        code, out, err = limited(1000, "diagnose", str(file))
        assert (code, err) == (3, ""), file
        assert why in out
        assert "Set TMPDIR" in out
        assert "damaged" not in out
    code, out, err = limited(1000, "story", "name:worker 3", str(tmp_path / "logs.tar.gz"))
    assert "the disk has no room to unpack it" in out + err
    code, out, err = limited(1000, "diagnose", "--driver-log", "-", data=a_log(2000))
    assert (code, out) == (2, "")
    assert re.fullmatch(r"raydoctor: cannot prepare .*: File too large\n  Set TMPDIR .*\n", err)


def test_a_command_that_cannot_write_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "raylet.out").write_bytes(a_log(3))
    (made := tmp_path / "made").mkdir()
    for words in (
        ("diagnose", str(tmp_path), "-o", f"{made}/report.json", "--format", "json"),
        ("rules", "new", "flux-hot", "--dir", str(made)),
        ("skill", f"{made}/raydoctor"),
    ):
        code, out, err = limited(100, *words)
        assert (code, out) == (2, ""), words
        assert re.fullmatch(r"raydoctor: cannot write .*: File too large\n  .*\n", err), words
    assert [each.name for each in made.rglob("*")] == ["raydoctor"]


def test_a_line_of_the_audit_that_is_cut_is_a_problem(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    program = f"""
import resource, sys
sys.dont_write_bytecode = True
from raydoctor.act.audit import Audit
resource.setrlimit(resource.RLIMIT_FSIZE, (150, 150))
import os
import re
os.environ["XDG_STATE_HOME"] = {str(tmp_path)!r}
audit = Audit("zombies")
for n in range(2):
    audit.write("kill", pid=n)
    print(bool(audit.problem))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True"]


# ---------------------------------------------------------------- archives


def test_a_full_temporary_folder_is_not_the_archive_s_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (log := tmp_path / "raylet.out").write_bytes(a_log(3))
    held = {Source("raylet.out", "raylet-out", size=log.stat().st_size): str(log)}
    spool = SmallFile(tmp_path / "spool", "wb")
    monkeypatch.setattr(bundle.tempfile, "SpooledTemporaryFile", lambda max_size: spool)
    with pytest.raises(RaydoctorError) as raised:
        bundle.write(str(tmp_path / "x.tar"), bundle.Bundle(held, {}, (), {}), Redactor())
    assert raised.value.hint == "Set TMPDIR to a folder with room."
    assert not (tmp_path / "x.tar").exists()


def test_a_log_that_cannot_be_read_is_a_gap(tmp_path: Path) -> None:
    (tmp_path / "raylet.out").mkdir()  # reading fails, as on a disk with damage
    held = {Source("raylet.out", "raylet-out", size=3): str(tmp_path / "raylet.out")}
    bundle.write(str(tmp_path / "x.tar"), bundle.Bundle(held, {}, (), {}), Redactor())
    with tarfile.open(tmp_path / "x.tar") as archive:
        text = cast("BinaryIO", archive.extractfile("raydoctor.json")).read()
    assert b"cannot be read: Is a directory" in text

"""Logs in forms that no search for text reads: they are decoded, or they are a gap; never "healthy".

Five fixtures, healthy and failing, each in every form, as the raylet's log, as the GCS's, as both.
"""

from __future__ import annotations

import base64
import bz2
import gzip
import lzma
import random
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

sys.path.insert(0, str(Path(__file__).parent))
from captures import FIXTURES, capture_of, report_of

from raydoctor.capture import open as opening
from raydoctor.capture.open import Capture, open_capture
from raydoctor.case.signals import WORKER_DIED
from raydoctor.cli.diagnose import exit_code
from raydoctor.diagnosis import engine
from raydoctor.model.values import Report

HEALTHY = (
    "healthy--ray-2.9.3--1-node",
    "healthy--ray-2.40.0--1-node",
    "healthy--ray-2.60.0--1-node",
)
FAILING = ("worker-sigkill--ray-2.60.0--1-node", "oom-task--ray-2.9.3--1-node")
REQUIRED = ("raylet.out", "gcs_server.out")


def hex_dump(data: bytes) -> bytes:
    return b"".join(
        b"%08x  %s\n" % (at, data[at : at + 16].hex(" ").encode()) for at in range(0, len(data), 16)
    )


def with_hole(data: bytes) -> bytes:
    third = len(data) // 3
    return data[:third] + bytes(third) + data[2 * third :]


READ: dict[str, Callable[[bytes], bytes]] = {
    "utf-16": lambda data: data.decode().encode("utf-16"),
    "utf-16-le without a mark": lambda data: data.decode().encode("utf-16-le"),
    "utf-16-be with a mark": lambda data: b"\xfe\xff" + data.decode().encode("utf-16-be"),
    "utf-16-be without a mark": lambda data: data.decode().encode("utf-16-be"),
    "utf-32": lambda data: data.decode().encode("utf-32"),
    "utf-8 with a mark": lambda data: b"\xef\xbb\xbf" + data,
    "CR": lambda data: data.replace(b"\n", b"\r"),
    "CR LF": lambda data: data.replace(b"\n", b"\r\n"),
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "bzip2": bz2.compress,
    "zstd": lambda data: zstandard.ZstdCompressor().compress(data),
    "gzip of utf-16": lambda data: gzip.compress(data.decode().encode("utf-16")),
}
"""Forms that are decoded: the report is that of the plain log."""

UNREADABLE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "white space": lambda data: b"\n \n" * 50,
    "cut after 1 kB": lambda data: data[:1000],
    "cut after 3 kB": lambda data: data[:3000],
    "cut at a line in start-up": lambda data: b"".join(data.splitlines(keepends=True)[:4]),
    "NUL between all letters": lambda data: data.replace(b"", b"\0\0"),
    "NUL in each word": lambda data: data.replace(b"e", b"e\0"),
    "NUL-filled hole": with_hole,
    "NUL only": lambda data: bytes(len(data)),
    "base64": base64.encodebytes,
    "base64 in one line": base64.b64encode,
    "hex dump": hex_dump,
    "EBCDIC": lambda data: data.decode().encode("cp500", "replace"),
    "inverted": lambda data: bytes(255 - byte for byte in data),
    "random": lambda data: random.Random(1).randbytes(len(data)),
    "encrypted": lambda data: b"Salted__" + random.Random(2).randbytes(len(data)),
    "damaged gzip": lambda data: gzip.compress(data)[:300],
    "another program's log": lambda data: b"server listening on :8080\nready\n" * 40,
}


def changed(fixture: str, to: Path, form: Callable[[bytes], bytes], names: tuple[str, ...]) -> Path:
    """A copy of a fixture's capture with some of its logs (all, where none is named) in a form."""
    shutil.copytree(capture_of(FIXTURES / fixture), to, dirs_exist_ok=True)
    for file in to.rglob("*"):
        if file.is_file() and (file.name in names or not names):
            file.write_bytes(form(file.read_bytes()))
    return to


def report_on(path: Path) -> Report:
    with open_capture(str(path)) as capture:
        return engine.run(capture, strict=True)


def findings(report: Report) -> tuple[object, ...]:
    """What a reader learns from a report."""
    return (
        [(d.rule, d.severity, d.headline, d.count, d.consequences) for d in report.diagnoses],
        [(link.event.source.path, link.event.line, link.shows) for d in report.diagnoses for link in d.chain],
        [(u.kind, u.file, u.text) for u in report.unexplained],
        report.gaps,
    )  # fmt: skip


@pytest.mark.parametrize("form", READ)
@pytest.mark.parametrize("names", [("raylet.out",), ("gcs_server.out",), ()], ids=repr)
def test_what_can_be_decoded_is_read(form: str, names: tuple[str, ...], tmp_path: Path) -> None:
    fixture = HEALTHY[0] if names == ("raylet.out",) else FAILING[len(form) % 2]
    report = report_on(changed(fixture, tmp_path / "capture", READ[form], names))
    assert findings(report) == findings(report_of(FIXTURES / fixture))
    assert exit_code(report, "error") == (0 if fixture in HEALTHY else 1)


@pytest.mark.parametrize("form", UNREADABLE)
@pytest.mark.parametrize("names", [("raylet.out",), ("gcs_server.out",), ()], ids=repr)
def test_what_cannot_be_read_is_a_gap(form: str, names: tuple[str, ...], tmp_path: Path) -> None:
    fixture = HEALTHY[len(form) % 3]
    report = report_on(changed(fixture, tmp_path / "capture", UNREADABLE[form], names))
    told = {gap.what for gap in report.gaps if not gap.optional}
    assert {f"logs/{name}" for name in (names or REQUIRED)} <= told
    assert exit_code(report, "error") == 3


def test_a_driver_log_in_utf_16_is_read_from_a_file_a_pipe_and_an_archive(tmp_path: Path) -> None:
    text = "(raylet) " + WORKER_DIED.sample + "\n"
    file = tmp_path / "driver.log"
    file.write_bytes(gzip.compress(text.encode("utf-16")))
    assert [d.rule for d in report_on(file).diagnoses] == ["worker-vanished"]
    for arguments, given in ([str(file)], None), (["--driver-log", "-"], file.read_bytes()):
        command = [sys.executable, "-m", "raydoctor", "diagnose", *arguments]
        done = subprocess.run(command, input=given, capture_output=True, check=False)
        assert done.returncode == 1
        assert b"worker-vanished" in done.stdout
    with tarfile.open(tmp_path / "plain-name", "w:gz") as tar:
        tar.add(file, "driver.log")
    with open_capture(str(tmp_path / "plain-name")) as capture:
        assert capture.kind == "archive"
        assert [d.rule for d in engine.run(capture, strict=True).diagnoses] == ["worker-vanished"]


def test_a_rotated_log_may_begin_anywhere_and_its_successor_be_empty(tmp_path: Path) -> None:
    shutil.copytree(capture_of(FIXTURES / HEALTHY[2]), tmp_path, dirs_exist_ok=True)
    log = tmp_path / "logs" / "raylet.out"
    lines = log.read_bytes().splitlines(keepends=True)
    (tmp_path / "logs" / "raylet.1.out").write_bytes(b"".join(lines[60:]))
    log.write_bytes(b"")
    assert report_on(tmp_path).gaps == ()


def test_a_log_of_a_daemon_that_says_why_it_died_is_whole(tmp_path: Path) -> None:
    report = report_of(FIXTURES / "resource-isolation-failed--ray-2.60.0--1-node")
    assert report.gaps == ()


def test_binary_output_of_a_worker_is_a_gap(tmp_path: Path) -> None:
    shutil.copytree(capture_of(FIXTURES / HEALTHY[2]), tmp_path, dirs_exist_ok=True)
    name = f"worker-{'ab' * 28}-01000000-77.err"
    (tmp_path / "logs" / name).write_bytes(random.Random(3).randbytes(9000))
    assert [gap.what for gap in report_on(tmp_path).gaps] == [f"logs/{name}"]


def test_a_hole_in_a_large_log_is_skipped_and_reported(tmp_path: Path) -> None:
    shutil.copytree(capture_of(FIXTURES / FAILING[0]), tmp_path, dirs_exist_ok=True)
    log = tmp_path / "logs" / "gcs_server.out"
    data = log.read_bytes()
    with log.open("wb") as out:
        out.write(data[:3000])
        out.seek(20 << 30)
        out.write(data[3000:])
    began = time.process_time()
    report = report_on(tmp_path)
    assert time.process_time() - began < 5
    assert any(g.what == "logs/gcs_server.out" and "holes" in g.why for g in report.gaps)
    assert [d.rule for d in report.roots] == [
        d.rule for d in report_of(FIXTURES / FAILING[0]).roots
    ]


def test_one_encoded_file_among_thousands_of_workers_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_LOOKED_INTO", 4)
    shutil.copytree(capture_of(FIXTURES / HEALTHY[2]), tmp_path, dirs_exist_ok=True)
    text = "*** SIGSEGV received at time=1763712345 ***\n"
    for number in range(20):
        file = tmp_path / "logs" / f"worker-{number:056x}-01000000-{number}.err"
        file.write_bytes(text.encode("utf-16" if number % 2 == 0 else "utf-8"))
    with open_capture(str(tmp_path)) as capture:
        sizes = {source.size for source in capture.files if source.role == "worker-err"}
    assert sizes == {len(text)}


def test_a_driver_log_added_to_a_live_capture_is_decoded(tmp_path: Path) -> None:
    (tmp_path / "driver.log").write_bytes("hello\n".encode("utf-16"))
    with Capture("live", "live", {}) as capture:
        opening.add_driver_log(capture, str(tmp_path / "driver.log"))
        assert [Path(file).read_bytes() for file in capture.files.values()] == [b"hello\n"]

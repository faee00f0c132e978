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
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

sys.path.insert(0, str(Path(__file__).parent))
from captures import FIXTURES, capture_of, report_of

from raydoctor import diagnosis
from raydoctor.capture.open import open_capture
from raydoctor.cli.diagnose import exit_code
from raydoctor.model import Report

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
        return diagnosis.run(capture, strict=True)


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

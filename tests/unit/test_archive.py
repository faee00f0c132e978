"""Archives: nothing escapes, nothing fills the disk, what can be read is read."""

from __future__ import annotations

import errno
import gzip
import io
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from raydoctor.capture import archive, budget
from raydoctor.capture.open import open_capture
from raydoctor.case.signals import WORKER_EXIT
from raydoctor.diagnosis import engine
from raydoctor.model.errors import RaydoctorError

EXIT = (
    f"[2026-11-21 07:34:50,741 W 8 8] (gcs_server) gcs_worker_manager.cc:70: {WORKER_EXIT.sample}\n"
)
FILES = {
    "session_2026-11-21_07-34-46_1_7/logs/gcs_server.out": EXIT,
    "session_2026-11-21_07-34-46_1_7/logs/raylet.out": "",
    "session_2026-11-21_07-34-46_1_7/runtime_resources/big.bin": "x" * 1000,
}


def tar_bytes(files: dict[str, str], mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content.encode())
            tar.addfile(info, io.BytesIO(content.encode()))
    return out.getvalue()


def zip_bytes(files: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, content in files.items():
            bundle.writestr(name, content)
    return out.getvalue()


FORMS: dict[str, Callable[[], bytes]] = {
    "x.tar": lambda: tar_bytes(FILES),
    "x.tar.gz": lambda: tar_bytes(FILES, "w:gz"),
    "x.tgz": lambda: tar_bytes(FILES, "w:gz"),
    "x.tar.xz": lambda: tar_bytes(FILES, "w:xz"),
    "x.tar.bz2": lambda: tar_bytes(FILES, "w:bz2"),
    "x.tar.zst": lambda: zstandard.ZstdCompressor().compress(tar_bytes(FILES)),
    "x.zip": lambda: zip_bytes(FILES),
}


def rules_of(path: Path) -> list[str]:
    with open_capture(str(path)) as capture:
        return [d.rule for d in engine.run(capture, strict=True).diagnoses]


@pytest.mark.parametrize("name", FORMS)
def test_every_kind_is_read(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(FORMS[name]())
    assert rules_of(file) == ["worker-vanished"]
    reply: list[tuple[int, int]] = []
    open_capture(str(file), report=lambda *at: reply.append(at)).close()
    size = file.stat().st_size
    assert {total for _, total in reply} == {size}
    assert 0 < max(done for done, _ in reply) <= size


def test_an_archive_beside_texts_is_named(tmp_path: Path) -> None:
    (tmp_path / "my logs.tar").write_bytes(tar_bytes(FILES))
    (tmp_path / "notes.txt").write_text("It failed again.\n")
    with open_capture(str(tmp_path)) as capture:
        assert any(f"diagnose '{tmp_path}/my logs.tar'" in gap.hint for gap in capture.gaps)


def test_only_logs_are_written_and_the_folder_goes(tmp_path: Path) -> None:
    file = tmp_path / "x.tar"
    file.write_bytes(tar_bytes(FILES))
    with open_capture(str(file)) as capture:
        folder = capture.temporary()
        assert folder.stat().st_mode & 0o77 == 0
        assert not list(folder.rglob("big.bin"))
    assert not folder.exists()


@pytest.mark.parametrize(
    "name", ["../../logs/raylet.out", "/etc/logs/raylet.out", "a/../../raylet.out"]
)
@pytest.mark.parametrize("form", ["tar", "zip"])
def test_no_way_out(name: str, form: str, tmp_path: Path) -> None:
    content = {**FILES, name: "escaped"}
    file = tmp_path / f"x.{form}"
    file.write_bytes(tar_bytes(content) if form == "tar" else zip_bytes(content))
    before = set(tmp_path.rglob("*"))
    with open_capture(str(file)) as capture:
        assert all(
            Path(p).resolve().is_relative_to(capture.temporary()) for p in capture.files.values()
        )
        assert any("outside the archive" in gap.why for gap in capture.gaps)
    assert set(tmp_path.rglob("*")) == before


def test_links_and_devices_are_refused(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind in (
            ("raylet.out", tarfile.SYMTYPE),
            ("gcs_server.out", tarfile.CHRTYPE),
            ("raylet.err", tarfile.LNKTYPE),
        ):
            info = tarfile.TarInfo(f"logs/{name}")
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
    file = tmp_path / "x.tar"
    file.write_bytes(out.getvalue())
    with open_capture(str(file)) as capture:
        assert capture.files == {}
        assert len(capture.gaps) == 3


BOMB = 48 << 20
"""Bytes; packed, a thousandth of it and less."""


@pytest.mark.parametrize("form", ["tar.gz", "zip", "tar.zst"])
def test_a_bomb_is_stopped(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "BASE_BYTES", 1 << 20)
    content = {"logs/raylet.out": "\0" * BOMB}
    data = {
        "tar.gz": lambda: tar_bytes(content, "w:gz"),
        "zip": lambda: zip_bytes(content),
        "tar.zst": lambda: zstandard.ZstdCompressor(level=19).compress(tar_bytes(content)),
    }[form]()
    file = tmp_path / f"x.{form}"
    file.write_bytes(data)
    with open_capture(str(file)) as capture:
        assert any("far more than its size allows" in gap.why for gap in capture.gaps)
        assert sum(p.stat().st_size for p in capture.temporary().rglob("*") if p.is_file()) < BOMB


def test_nested_archives_as_ray_cluster_dump_writes_them(tmp_path: Path) -> None:
    inner = tar_bytes(FILES, "w:gz")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        info = tarfile.TarInfo("dump/local_node.tar.gz")
        info.size = len(inner)
        tar.addfile(info, io.BytesIO(inner))
    file = tmp_path / "dump.tar.gz"
    file.write_bytes(out.getvalue())
    assert rules_of(file) == ["worker-vanished"]


def test_many_empty_members_cost_no_files(tmp_path: Path) -> None:
    file = tmp_path / "x.tar"
    file.write_bytes(tar_bytes({f"logs/{n}.txt": "" for n in range(20_000)}))
    with pytest.raises(RaydoctorError):
        open_capture(str(file))
    names = [f"logs/worker-{n:056x}-01000000-{n}.out" for n in range(1, 20_001)]
    file.write_bytes(tar_bytes({**dict.fromkeys(names, ""), "logs/gcs_server.out": EXIT}))
    with open_capture(str(file)) as capture:
        assert [s.path for s in capture.sources] == ["logs/gcs_server.out", *sorted(names)]
        assert sum(1 for p in capture.temporary().rglob("*") if p.is_file()) == 2
        assert [d.rule for d in engine.run(capture).diagnoses] == ["worker-vanished"]


def test_the_suffix_may_be_wrong(tmp_path: Path) -> None:
    file = tmp_path / "x.zip"
    file.write_bytes(tar_bytes(FILES, "w:gz"))
    assert rules_of(file) == ["worker-vanished"]


@pytest.mark.parametrize("keep", [1, 2])
def test_a_cut_between_members_is_noticed(keep: int, tmp_path: Path) -> None:
    """The standard library takes a missing header for the end of the archive."""
    content = {f"logs/worker-{n:056x}-01000000-{n}.out": "x" * 512 for n in range(1, 4)}
    file = tmp_path / "x.tar"
    file.write_bytes(tar_bytes(content)[: keep * 1024])
    with open_capture(str(file)) as capture:
        assert len(capture.files) == keep
        assert any("damaged" in gap.why for gap in capture.gaps)


@pytest.mark.parametrize("form", ["tar.gz", "tar.xz", "tar.bz2", "zip"])
def test_damage_in_the_middle_is_noticed(form: str, tmp_path: Path) -> None:
    noise = "".join(f"{n * 7919 % 1_000_003:x}\n" for n in range(100_000))
    content = {"logs/raylet.out": noise, "logs/gcs_server.out": noise + EXIT}
    data = bytearray(zip_bytes(content) if form == "zip" else tar_bytes(content, f"w:{form[4:]}"))
    data[len(data) // 2] ^= 1
    file = tmp_path / f"x.{form}"
    file.write_bytes(data)
    try:
        with open_capture(str(file)) as capture:
            said = [gap.why for gap in capture.gaps]
    except RaydoctorError as error:
        said = [error.message]
    assert any("damaged" in text or "cannot read x." in text for text in said)


def test_one_damaged_member_of_a_zip_leaves_the_others(tmp_path: Path) -> None:
    data = bytearray(zip_bytes({"logs/raylet.out": "x" * 1000, "logs/gcs_server.out": EXIT}))
    data[len("logs/raylet.out") + 32] ^= 0xFF
    file = tmp_path / "x.zip"
    file.write_bytes(data)
    with open_capture(str(file)) as capture:
        assert [gap.what for gap in capture.gaps] == ["x.zip: logs/raylet.out"]
        assert [d.rule for d in engine.run(capture).diagnoses] == ["worker-vanished"]


def test_an_encrypted_zip_is_a_gap(tmp_path: Path) -> None:
    data = bytearray(zip_bytes({"logs/gcs_server.out": EXIT}))
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    file = tmp_path / "x.zip"
    file.write_bytes(data)
    with open_capture(str(file)) as capture:
        assert "encrypted" in capture.gaps[0].why


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.zip"
    with zipfile.ZipFile(file, "w") as bundle:
        info = zipfile.ZipInfo("logs/raylet.out")
        info.external_attr = 0o120777 << 16
        bundle.writestr(info, "/etc/passwd")
    with open_capture(str(file)) as capture:
        assert "is a link or device" in capture.gaps[0].why


def test_a_header_that_announces_gigabytes_is_damage(tmp_path: Path) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 6 << 30
    file = tmp_path / "x.tar.gz"
    file.write_bytes(gzip.compress(header.tobuf(tarfile.USTAR_FORMAT) + b"\0" * (8 << 20)))
    with pytest.raises(RaydoctorError, match=r"a header of|empty header"):
        open_capture(str(file))


def test_a_bomb_in_what_is_not_wanted_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "BASE_BYTES", 1 << 20)
    content = {"logs/gcs_server.out": EXIT, "huge.bin": "\0" * BOMB, "logs/raylet.out": "x"}
    file = tmp_path / "x.tar.gz"
    file.write_bytes(gzip.compress(tar_bytes(content)))
    with open_capture(str(file)) as capture:
        assert [s.path for s in capture.sources] == ["logs/gcs_server.out"]
        assert any("far more than its size allows" in gap.why for gap in capture.gaps)


def test_names_that_no_folder_takes_are_gaps(tmp_path: Path) -> None:
    content = {
        "logs/gcs_server.out": EXIT,
        "logs/gcs_server.out/raylet.out": "x",
        f"{'n' * 300}/raylet.out": "x",
    }
    file = tmp_path / "x.tar"
    file.write_bytes(tar_bytes(content))
    with open_capture(str(file)) as capture:
        assert len([gap for gap in capture.gaps if "cannot be unpacked" in gap.why]) == 2
        assert [d.rule for d in engine.run(capture).diagnoses] == ["worker-vanished"]


def test_no_room_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(stream: object, out: object, limit: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(archive, "copy", full)
    file = tmp_path / "x.tar"
    file.write_bytes(tar_bytes(FILES))
    with open_capture(str(file)) as capture:
        assert "TMPDIR" in capture.gaps[0].hint


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=15, deadline=None)
@given(cut=st.floats(0, 1))
def test_a_truncated_archive_is_a_gap_or_an_error(
    name: str, cut: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = FORMS[name]()
    file = tmp_path_factory.mktemp("cut") / name
    file.write_bytes(data[: int(len(data) * cut)])
    try:
        with open_capture(str(file)) as capture:
            report = engine.run(capture, strict=True)
    except RaydoctorError:
        return
    assert report.gaps or report.diagnoses, "a damaged archive never looks healthy"


def test_rotated_gz_logs_count(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "raylet.out").write_text("")
    with gzip.open(logs / "gcs_server.out.1.gz", "wt") as stream:
        stream.write(EXIT)
    with open_capture(str(tmp_path)) as capture:
        report = engine.run(capture, strict=True)
    assert [d.rule for d in report.diagnoses] == ["worker-vanished"]
    assert report.diagnoses[0].chain[0].event.source.path == "logs/gcs_server.out.1.gz"


def test_a_damaged_gz_is_a_gap(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "raylet.out").write_text("")
    (logs / "gcs_server.out.1.gz").write_bytes(gzip.compress(EXIT.encode())[:-20])
    with open_capture(str(tmp_path)) as capture:
        assert any("damaged" in gap.why for gap in capture.gaps)


def test_the_time_of_a_report_includes_the_unpacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of large archives, it takes most of the time that the reader waited."""
    at = [100.0]
    unpack = archive.unpack

    def slow(*given: Any, **options: Any) -> Any:
        at[0] += 60.0
        return unpack(*given, **options)

    monkeypatch.setattr(time, "monotonic", lambda: at[0])
    monkeypatch.setattr(archive, "unpack", slow)
    path = tmp_path / "x.tar"
    path.write_bytes(FORMS["x.tar"]())
    with open_capture(str(path)) as capture:
        at[0] += 3600.0  # a caller that does something else
        assert engine.run(capture).stats.seconds == 60.0


def test_an_archive_beside_logs_is_a_gap(tmp_path: Path) -> None:
    """Such as one archive per node: its errors must not be missing silently."""
    (tmp_path / "gcs_server.out").write_text(EXIT)
    (tmp_path / "node-b.tar.gz").write_bytes(tar_bytes(FILES, "w:gz"))
    with open_capture(str(tmp_path)) as capture:
        (gap,) = (gap for gap in capture.gaps if gap.what == "node-b.tar.gz")
        report = engine.run(capture)
    assert "not read" in gap.why
    assert f"raydoctor diagnose {tmp_path / 'node-b.tar.gz'}" in gap.hint
    assert gap in report.gaps
    assert not report.complete


def test_a_folder_of_archives_alone_names_the_command(tmp_path: Path) -> None:
    (tmp_path / "logs.zip").write_bytes(b"")
    with pytest.raises(RaydoctorError) as raised:
        open_capture(str(tmp_path))
    assert f"raydoctor diagnose {tmp_path / 'logs.zip'}" in raised.value.hint

"""Archives and trees made to cost much or to lead astray: bounded, without a way out, never "healthy"."""

from __future__ import annotations

import ast
import gzip
import io
import lzma
import os
import struct
import subprocess
import sys
import tarfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import zstandard

from raydoctor.capture import budget, members
from raydoctor.capture import open as opening
from raydoctor.capture.console import files as console_files
from raydoctor.capture.open import open_capture
from raydoctor.case import Case
from raydoctor.cluster import resources
from raydoctor.diagnosis import engine, plugins
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.values import Event, Gap, Source
from raydoctor.read import slurm, structured
from raydoctor.read.clock import NodeClocks
from raydoctor.rules import placement_group_pending
from raydoctor.rules.shared import serve, waiting
from tests.helpers import ROOT

PACKAGE = ROOT / "raydoctor"
RECORD = b"[2026-11-21 07:34:50,741 I 8 8] (raylet) event.cc:234: Set ray event level to warning\n"


@contextmanager
def processor_time(most: float) -> Iterator[None]:
    """Fail if the block takes more seconds of processor time."""
    began = time.process_time()
    yield
    assert time.process_time() - began < most


def gaps_of(path: Path) -> tuple[Gap, ...]:
    """The gaps of a diagnosis; a refusal counts as one."""
    try:
        with open_capture(str(path)) as capture:
            return engine.run(capture, strict=True).gaps
    except RaydoctorError as error:
        return (Gap(str(path), error.message),)


def tar_of(files: dict[str, bytes], mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def test_archives_in_archives_share_one_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "BASE_BYTES", 16 << 20)
    bomb = tar_of({"core": bytes(15 << 20)}, "w:gz")
    middle = tar_of({f"{n}.tar.gz": bomb for n in range(20)}, "w:gz")
    outer = tar_of({f"{n}.tar.gz": middle for n in range(20)}, "w:gz")
    (tmp_path / "x.tar.gz").write_bytes(outer)
    assert len(outer) < 5000
    with processor_time(3):
        assert any(
            "far more than its size allows" in gap.why for gap in gaps_of(tmp_path / "x.tar.gz")
        )


def test_an_archive_too_deep_inside_others_is_a_gap(tmp_path: Path) -> None:
    data = tar_of({"logs/raylet.out": RECORD})
    for _ in range(4):
        data = tar_of({"x.tar": data})
    (tmp_path / "x.tar").write_bytes(data)
    assert any("is an archive inside 3 others" in gap.why for gap in gaps_of(tmp_path / "x.tar"))


def test_packed_logs_of_a_tree_share_one_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "BASE_BYTES", 16 << 20)
    (tmp_path / "logs").mkdir()
    for number in range(1, 20):
        packed = gzip.compress(bytes(15 << 20))
        (tmp_path / "logs" / f"dashboard.log.{number}.gz").write_bytes(packed)
    with processor_time(5):
        assert any("far more than" in gap.why for gap in gaps_of(tmp_path))


def test_millions_of_members_end_with_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "MEMBERS", 5_000)
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz", compresslevel=1) as tar:
        for number in range(10_000):
            tar.addfile(tarfile.TarInfo(f"f{number}"))
    with processor_time(3):
        assert any("more than 5,000 members" in gap.why for gap in gaps_of(tmp_path / "x.tar.gz"))


def test_a_million_empty_gzip_members_end_with_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "SECONDS", 0.01)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "raylet.out").write_bytes(gzip.compress(b"") * 50_000)
    with processor_time(5):
        assert any("processor time" in gap.why for gap in gaps_of(tmp_path))


def test_members_of_a_zip_may_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of names for the same compressed bytes, as in a zip bomb without nesting."""
    monkeypatch.setattr(budget, "BASE_BYTES", 16 << 20)
    zeros = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = zeros.compress(bytes(8 << 20)) + zeros.flush()
    crc = zlib.crc32(bytes(8 << 20))
    name = b"logs/raylet.out"
    local = struct.pack(
        "<4s5H3L2H", b"PK\3\4", 20, 0, 8, 0, 0, crc, len(body), 8 << 20, len(name), 0
    )
    central = b""
    for number in range(1000):
        other = b"n%d/logs/raylet.out" % number
        central += struct.pack(
            "<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 8, 0, 0, crc, len(body), 8 << 20, len(other), 0, 0, 0, 0, 0, 0
        ) + other  # fmt: skip
    start = len(local) + len(name) + len(body)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1000, 1000, len(central), start, 0)
    (tmp_path / "x.zip").write_bytes(local + name + body + central + end)
    with processor_time(5):
        assert gaps_of(tmp_path / "x.zip")


def test_a_zip_that_announces_millions_of_members_is_refused(tmp_path: Path) -> None:
    entry = struct.pack("<4s6H3L5H2L", b"PK\1\2", *[0] * 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    central = entry * 600_000
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 65535, 65535, len(central), 0, 0)
    (tmp_path / "x.zip").write_bytes(central + end)
    with processor_time(2):
        assert gaps_of(tmp_path / "x.zip")


MEMORY = """
import resource, sys
from raydoctor.capture.console import files as console_files
from raydoctor.capture.open import open_capture
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
with open_capture(sys.argv[1]) as capture:
    print([gap.why for gap in capture.gaps])
"""


def xz_that_wants_gigabytes() -> bytes:
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 20}]
    data = bytearray(lzma.compress(tar_of({"logs/raylet.out": RECORD}), filters=filters))
    size = (data[12] + 1) * 4
    header = data[12 : 12 + size - 4]
    header[header.index(b"\x21\x01") + 2] = 39  # 3 GiB
    data[12 : 12 + size] = header + struct.pack("<L", zlib.crc32(header))
    return bytes(data)


def zstd_that_wants_gigabytes() -> bytes:
    parameters = zstandard.ZstdCompressionParameters(window_log=31, enable_ldm=True)
    maker = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return maker.compress(tar_of({"logs/raylet.out": RECORD * 9000})) + maker.flush()


@pytest.mark.parametrize("make", [xz_that_wants_gigabytes, zstd_that_wants_gigabytes])
def test_a_dictionary_of_gigabytes_is_refused(make: Callable[[], bytes], tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "raylet.out").write_bytes(make())
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "damaged" in done.stdout
    assert "emory" in done.stdout


def test_a_sparse_member_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "BASE_BYTES", 4 << 20)
    info = tarfile.TarInfo("logs/raylet.out")
    info.type = tarfile.GNUTYPE_SPARSE
    info.size = 512
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"%011o\0%011o\0" % ((8 << 30) - 512, 512)
    header[483:495] = b"%011o\0" % ((8 << 30) - 1)
    header[148:156] = b"        "
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "x.tar").write_bytes(bytes(header) + bytes(512) + bytes(1024))
    with processor_time(5):
        assert any(
            "may hold" in gap.why or "damaged" in gap.why for gap in gaps_of(tmp_path / "x.tar")
        )


def test_a_path_of_thousands_of_folders_is_one_gap(tmp_path: Path) -> None:
    files = {"a/" * 1500 + "raylet.out": RECORD, "logs/gcs_server.out": RECORD}
    (tmp_path / "x.tar").write_bytes(tar_of(files))
    with open_capture(str(tmp_path / "x.tar")) as capture:
        assert [source.path for source in capture.sources] == ["logs/gcs_server.out"]
        assert any("folders deep" in gap.why for gap in capture.gaps)


def test_a_tree_too_deep_for_a_path_is_a_gap(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "raylet.out").write_bytes(RECORD)
    here = os.open(tmp_path, os.O_RDONLY)
    try:
        for _ in range(30):
            os.mkdir("d" * 200, dir_fd=here)
            deeper = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = deeper
    finally:
        os.close(here)
    assert any("name too long" in gap.why for gap in gaps_of(tmp_path))


def test_a_tree_of_too_many_files_ends_with_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "ENTRIES", 50)
    (tmp_path / "logs").mkdir()
    for number in range(100):
        (tmp_path / f"n{number}").mkdir()
    assert any("more than 50 files and folders" in gap.why for gap in gaps_of(tmp_path))


def test_gaps_are_counted_and_not_all_listed(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "raylet.out").write_bytes(RECORD)
    for number in range(500):
        (tmp_path / "logs" / f"dashboard.log.{number}").symlink_to("/etc/passwd")
    with open_capture(str(tmp_path)) as capture:
        assert len(capture.gaps) == 101
        assert "400 further" in capture.gaps[-1].why


def test_a_folder_swapped_for_a_link_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Swapped between its listing and its opening, at the end of the path and in its middle."""
    secret = tmp_path / "secret"
    (secret / "deep" / "logs").mkdir(parents=True)
    (secret / "deep" / "logs" / "raylet.out").write_bytes(RECORD)
    given = tmp_path / "given"
    for name in ("one", "two"):
        (given / name / "deep" / "logs").mkdir(parents=True)
    listed = opening._one_session

    def swap(folder: str, entries: object, notes: object) -> object:
        if folder == str(given / "one"):
            (given / "one").rename(tmp_path / "moved-one")
            (given / "one").symlink_to(secret)
        if folder == str(given):
            (given / "two").rename(tmp_path / "moved-two")
            (given / "two").symlink_to(secret)
        return listed(folder, entries, notes)  # type: ignore[arg-type]

    monkeypatch.setattr(opening, "_one_session", swap)
    with open_capture(str(given)) as capture:
        assert capture.files == {}
        assert {gap.what for gap in capture.gaps} == {"one/deep", "two"}


@pytest.mark.skipif(sys.platform != "linux", reason="devices and /proc of Linux")
def test_pipes_and_devices_in_a_tree_do_not_block(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "gcs_server.out").write_bytes(RECORD)
    os.mkfifo(logs / "raylet.out")
    if os.getuid() == 0:
        with suppress(PermissionError):
            os.mknod(logs / "raylet.1.out", 0o20600, os.makedev(1, 5))
    done = threading.Event()
    thread = threading.Thread(target=lambda: (gaps_of(tmp_path), done.set()), daemon=True)
    thread.start()
    assert done.wait(20)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc of Linux")
def test_proc_as_a_path_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "SECONDS", 0.5)
    with processor_time(8):
        assert gaps_of(Path("/proc"))


def test_files_that_shrink_and_grow_while_they_are_read(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "gcs_server.out").write_bytes(RECORD)
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            (logs / "raylet.out").write_bytes(RECORD * 5000)
            os.truncate(logs / "raylet.out", 100)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(5):
            gaps_of(tmp_path)
    finally:
        stop.set()
        thread.join()


def test_hard_links_are_files(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "raylet.out").write_bytes(RECORD)
    os.link(tmp_path / "logs" / "raylet.out", tmp_path / "logs" / "raylet.1.out")
    with open_capture(str(tmp_path)) as capture:
        assert len(capture.files) == 2


def test_thousands_of_nodes_cost_no_more_than_so_many_times_one() -> None:
    """Rules look each node's events up; comparing all with all took minutes."""
    gcs, events = Source("head/logs/gcs_server.out", "gcs-out", "head"), []
    for number in range(1_000):
        node, place = f"{number:056x}", f"node-{number}"
        source = Source(f"{place}/logs/raylet.out", "raylet-out", place)
        fields = {"node": node, "ip": "10.0.0.1", "worker": node, "worker_pid": "7"}
        for kind, where in (
            ("raylet.started", source),
            ("worker.started", source),
            ("node.registered", gcs),
            ("node.dead", gcs),
            ("raylet.seen_dead", gcs),
        ):
            events.append(Event(kind, where, number, 0, "", at=1e9 + number, fields=fields))
    case = Case(events, [gcs, *(e.source for e in events if e.kind == "raylet.started")], {}, [])
    catalogue = plugins.catalogue()
    with processor_time(2.5):
        engine.judge(case, catalogue.rules, [], strict=True)


def test_a_look_whether_a_file_is_an_archive_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "driver.log").write_bytes(gzip.compress(b"") * 150_000)
    with processor_time(3):
        assert not members.is_archive(tmp_path / "driver.log")


@pytest.mark.parametrize("number", ["1" + "0" * 400, "[" * 20_000, "NaN", "1e999"])
def test_amounts_that_are_no_numbers_are_not_read(number: str) -> None:
    assert serve.amounts(f'{{"CPU": {number}}}') == {}
    assert serve.amounts('{"CPU": 8}') == {"CPU": 8.0}


def test_numbers_of_a_log_are_not_counted_up_to() -> None:
    """`{'CPU': 1} * 99999999999` filled the memory."""
    bundle = frozenset({("CPU", 1.0)})
    event = Event("pg.demand", Source("a.log", "driver"), 1, 0, "")
    group = waiting.ListedGroup("PACK", ((bundle, 99_999_999_999),), event)
    assert placement_group_pending._each(group) == []
    assert placement_group_pending._each(group._replace(bundles=((bundle, 2),))) == [
        {"CPU": 1.0},
        {"CPU": 1.0},
    ]
    with processor_time(1):
        room = [{"memory": 60e9}]
        (smaller,) = placement_group_pending._smaller(
            "PACK", [{"memory": 1e11}], room, is_first=True
        )
    assert "55.9 GiB memory" in smaller.title


def test_amounts_are_finite() -> None:
    for text in ("CPU: 1e999", "CPU: 1.-0.0", f"CPU: {'9' * 400}", "CPU: 1.2.3", "CPU: nan"):
        assert resources.amounts(text) == resources.ten_thousandths(text) == {}
        assert resources.python_amounts("{'" + text.replace(":", "':") + "}") == [{}]
    assert resources.python_amounts("{'CPU': 1.0, 'memory': 1.07e+11}") == [
        {"CPU": 1.0, "memory": 1.07e11}
    ]
    assert resources.numbers("[10000, 1.5e+2]") == [10000.0, 150.0]


def test_a_damaged_dump_of_a_raylet_has_no_counts(tmp_path: Path) -> None:
    file = tmp_path / "debug_state.txt"
    file.write_text("num_waiting_for_resource: bundles\nGrant queue length: 3\n")
    (state,) = structured.read({Source(file.name, "debug-state", size=1): str(file)}, [])
    assert (state["num_waiting_for_resource"], state["grant_queue_length"]) == ("", "3")


def test_code_that_expects_damaged_json_expects_deep_json() -> None:
    """`json` raises RecursionError for `[[[[…`, which is no ValueError: this disabled a rule."""
    bad = []
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Try):
                caught = [ast.unparse(each.type) for each in node.handlers if each.type]
            elif isinstance(node, ast.With):
                caught = [ast.unparse(each.context_expr) for each in node.items]
            else:
                continue
            reply = " ".join(caught)
            body = " ".join(map(ast.unparse, node.body))
            if "json.load" in body and "ValueError" in reply and "RecursionError" not in reply:
                bad.append(f"{file.relative_to(PACKAGE)}:{node.lineno} {reply}")
    assert bad == []


def test_accounts_of_thousands_of_jobs_are_read_in_their_order(tmp_path: Path) -> None:
    """The line of each was searched from the beginning: 800 kB took more than a minute."""
    file = tmp_path / "slurm.json"
    rows = ",\n".join(f'{{"job_id": {number}}}' for number in range(10_000, 60_000))
    file.write_text(f'{{"meta": {{"slurm": {{}}}}, "jobs": [\n{rows}\n]}}')
    gaps: list[Gap] = []
    began = time.process_time()
    events = slurm.read({Source(file.name, "slurm"): str(file)}, gaps, NodeClocks())
    assert time.process_time() - began < 5
    assert [(gap.what, "in part" in gap.why) for gap in gaps] == [("slurm.json", True)]
    assert [event.line for event in events[:3]] == [2, 3, 4]
    assert events[-1].line == len(events) + 1


def test_a_console_of_short_lines_is_rewritten_in_small_blocks(tmp_path: Path) -> None:
    """A line takes a hundred times its bytes: 8 MB of line breaks took 1.1 GB."""
    file = tmp_path / "driver.log"
    file.write_bytes(
        b"x\n" * 250_000 + b"Traceback (most recent call last):\n  File\n" + b"\n" * 250_000
    )
    with file.open("rb") as stream:
        blocks = list(console_files._blocks(stream))
    assert max(map(len, blocks)) <= 100_000
    whole = [line for block in blocks for line in block]
    assert "\n".join(whole) + "\n" == file.read_text()

"""The search: what rg is made to say equals what a plain search in Python says, for any bytes."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydoctor.model.errors import RaydoctorError
from raydoctor.model.values import Gap
from raydoctor.read import prefilter
from raydoctor.read.prefilter import Hit, batches, find_rg, search

LITERALS = ("ab", "abc", "bca", "b c", "ca", "é", "x.y", "-e", "aaa")
"""They hold and overlap one another, and look like patterns and options."""
CONTENT = st.lists(
    st.sampled_from([*(x.encode() for x in LITERALS), b"a", b"b", b"c", b" ", b"\n", b"\r\n", b"\0", b"\xff", b"\xc3"]),
    max_size=60,
).map(b"".join)  # fmt: skip
NAMES = st.sampled_from(["raylet.out", ".hidden", "a b", "new\nline", "-v", "é", "old/x", "\udcff"])


def occurrences(data: bytes, literals: Iterable[str]) -> set[tuple[int, int, str]]:
    """(line, offset, literal) wherever a literal stands."""
    found = set()
    for literal in literals:
        at = data.find(literal.encode())
        while at >= 0:
            found.add((data.count(b"\n", 0, at) + 1, at, literal))
            at = data.find(literal.encode(), at + 1)
    return found


def check(data: bytes, hits: list[Hit], literals: Iterable[str] = LITERALS) -> None:
    """Each hit is true and reported once, in order; what is not reported overlaps with what is."""
    reply = [(h.line, h.offset, h.literal) for h in hits]
    assert [t[1] for t in reply] == sorted({t[1] for t in reply})
    true = occurrences(data, literals)
    assert set(reply) <= true
    ends = [(offset, offset + len(literal.encode())) for _, offset, literal in reply]
    for _, offset, literal in true - set(reply):
        end = offset + len(literal.encode())
        assert any(a < end and offset < b for a, b in ends)


@settings(max_examples=60, deadline=None)
@given(files=st.dictionaries(NAMES, CONTENT, min_size=1, max_size=4))
def test_hits_are_those_of_a_plain_search(
    files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("tree")
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    gaps: list[Gap] = []
    hits = list(search([str(folder / name) for name in files], LITERALS, gaps))
    assert gaps == []
    for name, data in files.items():
        check(data, [h for h in hits if h.file == str(folder / name)])
    assert {h.file for h in hits} <= {str(folder / name) for name in files}


@settings(max_examples=60, deadline=None)
@given(data=CONTENT, chunk=st.integers(3, 40))
def test_giant_lines_are_searched_alike(
    data: bytes, chunk: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Line breaks put in wherever `chunk` bytes have none neither cut a literal nor shift a place."""
    file = tmp_path_factory.mktemp("giant") / "raylet.out"
    file.write_bytes(data)
    gaps: list[Gap] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefilter, "LONG_LINE", chunk)
        raw = [
            hit for _, hits in prefilter._search_piped(str(file), LITERALS, gaps) for hit in hits
        ]
    assert gaps == []
    check(data, [Hit(str(file), int(line), int(at), lit.decode()) for line, at, lit in raw])


def test_files_with_giant_lines_are_noticed(tmp_path: Path) -> None:
    giant = tmp_path / "giant"
    with giant.open("wb") as out:
        out.write(b"ab\n")
        out.truncate(80 << 20)
        out.seek(0, os.SEEK_END)
        out.write(b"\nabc\n")
    wanted = {str(giant): frozenset(LITERALS)}
    plan = prefilter._plan(wanted, {str(giant): giant.stat().st_size})
    assert plan == ([], [str(giant)])
    hits = list(search([str(giant)], LITERALS, []))
    assert [(h.line, h.offset, h.literal) for h in hits] == [
        (1, 0, "ab"),
        (3, (80 << 20) + 1, "ab"),
    ]


def test_each_file_is_searched_for_its_own_literals(tmp_path: Path) -> None:
    """Or for more, where one pass is quicker: then `scan` drops what is not asked for."""
    for name in "12":
        (tmp_path / name).write_text("ab x.y")
    wanted = {str(tmp_path / "1"): frozenset({"ab"}), str(tmp_path / "2"): frozenset[str]()}
    assert [(Path(file).name, hits) for file, hits in batches(wanted, [])] == [
        ("1", [(b"1", b"0", b"ab")])
    ]


def test_passes_keep_literals_few_where_much_is_read() -> None:
    wanted = {str(n): frozenset(f"literal {n // 2} {i}" for i in range(30)) for n in range(6)}

    def literals(size: int) -> list[int]:
        plan = prefilter._plan(wanted, dict.fromkeys(wanted, size))
        return sorted(sum(map(len, each.shares)) for each in plan.passes)

    assert literals(100) == [90]
    assert literals(prefilter.LARGE - 1) == [30, 30, 30]
    assert literals(prefilter.GIANT) == [30] * 6


def test_a_small_file_is_searched_only_for_literals_that_it_contains(tmp_path: Path) -> None:
    def shares(content: bytes) -> list[tuple[tuple[str, ...], ...]]:
        (file := tmp_path / "a.out").write_bytes(content)
        wanted = {str(file): frozenset(LITERALS), str(tmp_path / "b.out"): frozenset(LITERALS)}
        return [each.shares for each in prefilter._plan(wanted, dict.fromkeys(wanted, 9)).passes]

    everything = [(tuple(sorted(LITERALS, reverse=True)),)]
    assert shares(b"x ab \xff \xc3\xa9") == everything, "rg reports why b.out cannot be read"
    (tmp_path / "b.out").touch()
    assert shares(b"x ab \xff \xc3\xa9") == [(("é", "ab"),)]
    assert shares(b"x \xc3") == []


@settings(max_examples=40, deadline=None)
@given(contents=st.lists(CONTENT, min_size=1, max_size=4))
def test_several_rg_share_the_literals_of_large_files(contents: list[bytes]) -> None:
    """Each finds its own, and together they come file by file, in each file's order."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(prefilter, "TINY", -1)
        patch.setattr(prefilter, "LARGE", 0)
        patch.setattr(prefilter, "LITERALS_PER_PASS", 4)
        patch.setattr(prefilter, "_READ", 64)
        files = {os.path.join(folder, f"{n}.out"): each * 5 for n, each in enumerate(contents)}
        for file, data in files.items():
            Path(file).write_bytes(data)
        wanted = dict.fromkeys(files, frozenset(LITERALS))
        sizes = {file: len(data) for file, data in files.items()}
        assert {len(each.shares) for each in prefilter._plan(wanted, sizes).passes} == {3}
        gaps: list[Gap] = []
        hits = list(search(files, LITERALS, gaps))
    assert gaps == []
    assert len([file for file, _ in groupby(h.file for h in hits)]) == len({h.file for h in hits})
    shares = [sorted(LITERALS, reverse=True)[n : n + 3] for n in (0, 3, 6)]
    for file, data in files.items():
        of_file = [h for h in hits if h.file == file]
        assert [h.offset for h in of_file] == sorted(h.offset for h in of_file)
        assert len({(h.line, h.offset, h.literal) for h in of_file}) == len(of_file)
        for share in shares:
            check(data, [h for h in of_file if h.literal in share], share)


def test_of_literals_that_begin_alike_the_longer_is_named(tmp_path: Path) -> None:
    """Else a storm of lines with the longer one is never recognized by a template."""
    (tmp_path / "1").write_text("abc ab")
    hits = search([str(tmp_path / "1")], ["ab", "abc"], [])
    assert [(h.offset, h.literal) for h in hits] == [(0, "abc"), (4, "ab")]


def test_more_files_than_a_command_line_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefilter, "_ARGUMENTS", 200)
    files = [tmp_path / f"raylet-{n}.out" for n in range(40)]
    for file in files:
        file.write_text("x\nab\n")
    hits = list(search(map(str, files), LITERALS, []))
    assert sorted(h.file for h in hits) == sorted(map(str, files))


def test_files_that_cannot_be_read_are_gaps(tmp_path: Path) -> None:
    gaps: list[Gap] = []
    (tmp_path / "there").write_text("ab")
    files = [tmp_path / "gone: away\nrg: here", tmp_path / "there", tmp_path / "gone"]
    assert [Path(h.file).name for h in search(map(str, files), LITERALS, gaps)] == ["there"]
    assert any("No such file" in gap.why for gap in gaps)
    assert str(tmp_path / "gone") in {gap.what for gap in gaps}


def test_gaps_are_few_but_none_is_lost(tmp_path: Path) -> None:
    gaps: list[Gap] = []
    assert list(search([str(tmp_path / f"gone-{n}") for n in range(100)], LITERALS, gaps)) == []
    assert len(gaps) == 21
    assert "80 could not be read" in gaps[-1].why


def test_a_search_given_up_ends_its_processes(tmp_path: Path) -> None:
    file = tmp_path / "raylet.out"
    file.write_bytes(b"ab\n" * 1_000_000)
    hits = search([str(file)], LITERALS, [])
    assert next(hits).line == 1
    hits.close()  # type: ignore[attr-defined]


def test_a_killed_rg_is_a_gap() -> None:
    assert "ended with code -9" in prefilter._complaints([], -9)[0].why
    assert prefilter._complaints([], 1) == []


def test_an_rg_that_cannot_run_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "rg"
    broken.write_bytes(b"\x7fELF")
    broken.chmod(0o755)
    monkeypatch.setattr(prefilter, "find_rg", lambda: str(broken))
    (tmp_path / "x").write_text("ab")
    with pytest.raises(RaydoctorError, match="cannot run ripgrep"):
        list(search([str(tmp_path / "x")], LITERALS, []))


def test_rg_is_found_beside_the_interpreter_or_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert os.access(find_rg(), os.X_OK)
    monkeypatch.setattr(prefilter.sysconfig, "get_path", lambda *_: None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RaydoctorError, match="ripgrep is not installed"):
        find_rg()
    (tmp_path / "rg").touch(0o755)
    assert find_rg() == str(tmp_path / "rg")


@settings(max_examples=100, deadline=None)
@given(
    blocks=st.lists(
        st.tuples(st.text("ab\n/", min_size=1, max_size=5), st.lists(st.sampled_from(LITERALS), min_size=1, max_size=5)),
        max_size=4,
    ),
    size=st.integers(1, 30),
)  # fmt: skip
def test_output_in_any_portions(blocks: list[tuple[str, list[str]]], size: int) -> None:
    """What a pipe delivers may end anywhere."""
    printed = "\n".join(
        f"{file}\0" + "".join(f"{n}:{n * 10}:{literal}\n" for n, literal in enumerate(found, 1))
        for file, found in blocks
    ).encode()
    read, write = os.pipe()
    with os.fdopen(read, "rb") as stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefilter, "_READ", size)
        with os.fdopen(write, "wb") as out:
            out.write(printed)
        parsed = [(file, hit) for file, hits in prefilter._parse(stream) for hit in hits]
    assert parsed == [
        (file, (b"%d" % n, b"%d" % (n * 10), literal.encode()))
        for file, found in blocks
        for n, literal in enumerate(found, 1)
    ]

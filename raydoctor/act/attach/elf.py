"""Finds functions and unused memory in a process, by the ELF files that it has mapped.

Facts: elf(5), proc(5). It only reads files and does not touch the process. 64 bits, little endian.

The files may belong to another user, and libraries have up to 1.5 GB. So each read is a `pread` of a few
headers or one table, with a limit. A mapping would be as cheap, but if the owner truncates the file,
raydoctor would get SIGBUS; `pread` only returns less data.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from raydoctor.model.patterns import pattern

_LOAD, _DYNSYM = 1, 11
_EXECUTE = 1
_OBJECT, _FUNCTION = 1, 2
_PAGE = mmap.PAGESIZE
ALLOCATORS = ("libc.", "libc-", "ld-", "libstdc++", "libjemalloc", "libtcmalloc", "libmimalloc")
"""Prefixes of files whose code a thread may be executing during an allocation."""
SYSTEM = ("libc.", "libc-", "libpthread", "ld-")
"""Prefixes of the files of the C library."""
RUNTIME = "_PyRuntime"
"""A variable of Python 3.7 and newer that contains the locks and condition variables of the main GIL."""
_SEGMENT, _SECTION, _SYMBOL = (
    struct.Struct("<IIQQQQQQ"),
    struct.Struct("<IIQQQQIIQQ"),
    struct.Struct("<IBBHQQ"),
)
_HEADER = 64
_LARGEST = {_SEGMENT: 1 << 16, _SECTION: 1 << 20, _SYMBOL: 4 << 20}
"""Bytes of a table. The largest libpython (3.12) has 0.1 MiB of symbols."""
_LARGEST_STRINGS = 16 << 20


class CodeMapping(NamedTuple):
    """An executable mapping of a file in a process."""

    start: int
    end: int
    offset: int
    """Of the file."""
    path: str

    def __contains__(self, address: object) -> bool:
        return isinstance(address, int) and self.start <= address < self.end


class Segment(NamedTuple):
    """The executable segment of a file (PT_LOAD with PF_X)."""

    offset: int
    address: int
    size: int


def code(pid: int) -> list[CodeMapping]:
    """Its executable mappings of files, ordered by address."""
    found = []
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as stream:
        for line in stream:
            words = line.split(None, 5)
            if len(words) == 6 and words[1] == "r-xp" and words[5].startswith("/"):
                start, _, end = words[0].partition("-")
                path = words[5].rstrip("\n")
                found.append(CodeMapping(int(start, 16), int(end, 16), int(words[2], 16), path))
    return found


def python(pid: int) -> tuple[int, int] | None:
    """The version of its Python, by the names of its mapped files. Raises OSError."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            if found := pattern(r"/(?:lib)?python(\d)\.(\d+)").search(line):
                return int(found[1]), int(found[2])
    return None


class Library:
    """One file that a process has mapped, open until the `with` block ends.

    Raises OSError if it cannot be read, ValueError if it is not an ELF file or too large.
    """

    def __init__(self, pid: int, mapping: CodeMapping) -> None:
        self.mapping = mapping
        # Through the root folder of the process, which may differ from ours. Opening a FIFO must not block.
        self._file = os.open(f"/proc/{pid}/root{mapping.path}", os.O_RDONLY | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise ValueError(f"{mapping.path} is not a regular file")
            self._header = self._read(0, _HEADER)
            if self._header[:6] != b"\x7fELF\x02\x01":
                raise ValueError(f"{mapping.path} is not a 64-bit ELF file")
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Library:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def segment(self) -> Segment | None:
        """The segment of this mapping."""
        for kind, flags, offset, address, _, length, _, _ in self._rows(_SEGMENT, 32, 54):
            # A mapping begins with the page in which the segment does.
            is_this = offset // _PAGE * _PAGE == self.mapping.offset
            if kind == _LOAD and flags & _EXECUTE and is_this:
                return Segment(offset, address, length)
        return None

    def symbols(self, names: Iterable[str]) -> dict[str, range]:
        """Addresses in the process of these functions and variables, if it exports them."""
        segment, wanted = self.segment(), {name.encode(): name for name in names}
        if segment is None:
            return {}
        # The address in the process that corresponds to address 0 of the file.
        base = self.mapping.start - segment.address // _PAGE * _PAGE
        found = {}
        for table, strings in self._symbol_tables():
            for name, info, _, section, value, size in _SYMBOL.iter_unpack(table):
                if info & 0xF not in (_OBJECT, _FUNCTION) or not section or not value:
                    continue  # it is defined in another file
                end = strings.find(b"\0", name)
                if (known := wanted.get(strings[name:end])) is not None:
                    found[known] = range(base + value, base + value + size)
        return found

    def unused(self) -> tuple[int, int]:
        """Address and size of the unused end of its last page of code."""
        segment = self.segment()
        if segment is None:
            return 0, 0
        begin = self.mapping.start + segment.offset % _PAGE + segment.size
        begin = -(-begin // 16) * 16
        return begin, max(0, self.mapping.end - begin)

    def _symbol_tables(self) -> Iterator[tuple[bytes, bytes]]:
        """Each table of exported symbols, and its strings."""
        sections = list(self._rows(_SECTION, 40, 58))
        for section in sections:
            if section[1] != _DYNSYM or section[6] >= len(sections):
                continue
            offset, size = section[4], section[5]
            if size > _LARGEST[_SYMBOL]:
                raise ValueError(f"{self.mapping.path} has a table of {size} bytes of symbols")
            where, length = sections[section[6]][4:6]
            strings = self._read(where, min(length, _LARGEST_STRINGS))
            yield self._read(offset, size // _SYMBOL.size * _SYMBOL.size), strings

    def _rows(self, layout: struct.Struct, at: int, counted_at: int) -> Iterator[tuple[int, ...]]:
        """The rows of a table; the header has its offset, row size and row count at these positions."""
        (start,) = struct.unpack_from("<Q", self._header, at)
        size, count = struct.unpack_from("<HH", self._header, counted_at)
        if size != layout.size or size * count > _LARGEST[layout]:
            raise ValueError(f"{self.mapping.path} has {count} headers of {size} bytes")
        yield from layout.iter_unpack(self._read(start, size * count))

    def _read(self, offset: int, size: int) -> bytes:
        try:
            data = os.pread(self._file, size, offset)
        except OverflowError:
            data = b""
        if len(data) < size:
            raise ValueError(f"{self.mapping.path} ends before {offset + size} bytes")
        return data


def exported(pid: int, names: Iterable[str], files: Iterable[CodeMapping]) -> dict[str, range]:
    """Addresses of functions and variables, from the first of these files that has each."""
    wanted = set(names)
    found: dict[str, range] = {}
    for mapping in files:
        if not wanted - found.keys():
            break
        try:
            with Library(pid, mapping) as library:
                found.update(library.symbols(wanted - found.keys()))
        except (OSError, ValueError):
            continue
    return found


def runtime(pid: int) -> range | None:
    """The range of Python's own locks in that process; None if it cannot be found. Raises OSError."""
    return exported(pid, [RUNTIME], [f for f in code(pid) if is_python(pid, f)]).get(RUNTIME)


def is_python(pid: int, mapping: CodeMapping) -> bool:
    """Whether that file may contain Python itself: a libpython or, with Debian and conda, the program."""
    return "python" in name(mapping).lower() or mapping.path == os.readlink(f"/proc/{pid}/exe")


def name(mapping: CodeMapping) -> str:
    """`libc.so.6`."""
    return os.path.basename(mapping.path)

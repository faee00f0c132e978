"""Where a process has a library's functions, and where nothing is: ELF files, as it has them mapped.

Facts: elf(5), proc(5). Only reads files; nothing of the process is touched. 64 bits, little endian.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable
from typing import NamedTuple

from raydoctor._pattern import pattern

_LOAD, _DYNSYM = 1, 11
_EXECUTE = 1
_PAGE = mmap.PAGESIZE
ALLOCATORS = ("libc.", "libc-", "ld-", "libstdc++", "libjemalloc", "libtcmalloc", "libmimalloc")
"""How the files begin in whose code a thread may be amid an allocation."""


class Mapping(NamedTuple):
    """A mapping of a file that can be executed, in a process."""

    start: int
    end: int
    offset: int
    """Of the file."""
    path: str

    def __contains__(self, address: object) -> bool:
        return isinstance(address, int) and self.start <= address < self.end


class Segment(NamedTuple):
    """What is loaded of a file to be executed (PT_LOAD with PF_X)."""

    offset: int
    address: int
    size: int


def code(pid: int) -> list[Mapping]:
    """The files of which it can execute something, in the order of their addresses."""
    found = []
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as stream:
        for line in stream:
            words = line.split(None, 5)
            if len(words) == 6 and words[1] == "r-xp" and words[5].startswith("/"):
                start, _, end = words[0].partition("-")
                path = words[5].rstrip("\n")
                found.append(Mapping(int(start, 16), int(end, 16), int(words[2], 16), path))
    return found


def python(pid: int) -> tuple[int, int] | None:
    """Of the Python that it runs, by the names of the files that it has mapped. Raises OSError."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            if found := pattern(r"/(?:lib)?python(\d)\.(\d+)").search(line):
                return int(found[1]), int(found[2])
    return None


class Library:
    """One file that a process has mapped."""

    def __init__(self, pid: int, mapping: Mapping) -> None:
        self.mapping = mapping
        # As the process sees it: it may live in another root than we do, and the file may be replaced.
        with open(f"/proc/{pid}/root{mapping.path}", "rb") as stream:
            self._data = stream.read()
        if self._data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{mapping.path} is no ELF file of 64 bits")

    def segment(self) -> Segment | None:
        """The part of it that this mapping shows."""
        start, size, count = *struct.unpack_from("<Q", self._data, 32), *self._two(54)
        for number in range(count):
            kind, flags, offset, address, _, length, _, _ = struct.unpack_from(
                "<IIQQQQQQ", self._data, start + number * size
            )
            # A mapping begins with the page in which the segment does.
            is_this = offset // _PAGE * _PAGE == self.mapping.offset
            if kind == _LOAD and flags & _EXECUTE and is_this:
                return Segment(offset, address, length)
        return None

    def functions(self, names: Iterable[str]) -> dict[str, int]:
        """Addresses, in the process, of those of these functions that it exports."""
        segment, wanted = self.segment(), {name.encode(): name for name in names}
        if segment is None:
            return {}
        # Where the process has address 0 of the file's own count.
        base = self.mapping.start - segment.address // _PAGE * _PAGE
        found = {}
        for offset, size, strings in self._symbol_tables():
            for at in range(offset, offset + size, 24):
                name, info, _, section, value, _ = struct.unpack_from("<IBBHQQ", self._data, at)
                if info & 0xF != 2 or not section or not value:  # STT_FUNC that is defined here
                    continue
                end = self._data.index(b"\0", strings + name)
                if (known := wanted.get(self._data[strings + name : end])) is not None:
                    found[known] = base + value
        return found

    def unused(self) -> tuple[int, int]:
        """Address and size of the end of its last page of code, which holds nothing."""
        segment = self.segment()
        if segment is None:
            return 0, 0
        begin = self.mapping.start + segment.offset % _PAGE + segment.size
        begin = -(-begin // 16) * 16
        return begin, max(0, self.mapping.end - begin)

    def _symbol_tables(self) -> Iterable[tuple[int, int, int]]:
        """Offset and size of each table of exported symbols, and the offset of its strings."""
        start, size, count = *struct.unpack_from("<Q", self._data, 40), *self._two(58)
        sections = [
            struct.unpack_from("<IIQQQQIIQQ", self._data, start + number * size)
            for number in range(count)
        ]
        for section in sections:
            if section[1] == _DYNSYM:
                yield section[4], section[5], sections[section[6]][4]

    def _two(self, at: int) -> tuple[int, int]:
        size, count = struct.unpack_from("<HH", self._data, at)
        return int(size), int(count)


def exported(pid: int, names: Iterable[str], files: Iterable[Mapping]) -> dict[str, int]:
    """Addresses of functions, from the first of these files that has each."""
    wanted = set(names)
    found: dict[str, int] = {}
    for mapping in files:
        if not wanted - found.keys():
            break
        try:
            told = Library(pid, mapping).functions(wanted - found.keys())
        except (OSError, ValueError, struct.error):
            continue
        found.update(told)
    return found


def is_python(pid: int, mapping: Mapping) -> bool:
    """Whether Python itself may be in that file: a libpython, or, with Debian and conda, the program."""
    return "python" in name(mapping).lower() or mapping.path == os.readlink(f"/proc/{pid}/exe")


def name(mapping: Mapping) -> str:
    """`libc.so.6`."""
    return os.path.basename(mapping.path)

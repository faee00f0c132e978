"""What an archive holds, member by member, in one pass and without trust in what it says.

Archives are recognised by their first bytes, not by their names. The standard library's readers take
damage for the end of an archive, and a header's size for an amount to read at once; here damage is an
error (`DAMAGED`), and headers are small.
"""

from __future__ import annotations

import gzip
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, NamedTuple, Protocol

CHUNK = 1 << 20
_MOST_AT_ONCE = 4 * CHUNK
"""Bytes: more than any name or attribute that a header announces."""
_BEHIND_THE_END = 64 * CHUNK
"""Bytes read behind the last member, for the checksum of what was compressed."""
DAMAGED = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError,
    # What the standard library lets slip on damaged (tarfile), encrypted or odd (zipfile) archives.
    TypeError, IndexError, RuntimeError,
)  # fmt: skip


class TooMuchError(Exception):
    """An archive holds far more than its size allows."""


class Readable(Protocol):
    """A stream of bytes, as far as it is used here."""

    def read(self, size: int, /) -> bytes:
        """Up to so many bytes; none at the end."""


class _Closable(Readable, Protocol):
    def close(self) -> None: ...


class Member(NamedTuple):
    """A file in an archive."""

    name: str
    size: int
    open: Callable[[], Readable] | None
    """None: a link or device."""
    alone: bool
    """Damage to it says nothing about the others."""


def members(archive: Path, most: int) -> Iterator[Member]:
    """The members of an archive of any kind; each is to be read before the next is asked for.

    Raises one of DAMAGED where it ends before its end, and TooMuchError where what was compressed into it
    is more than `most` bytes, wanted or not.
    """
    with archive.open("rb") as raw:
        kind = raw.read(6)
        raw.seek(0)
        if kind.startswith(b"PK"):
            yield from _of_zip(raw)
        else:
            with closing(_decompressed(raw, kind)) as stream:
                yield from _of_tar(_Forward(stream, most))


def _decompressed(raw: IO[bytes], kind: bytes) -> _Closable:
    if kind.startswith(b"\x1f\x8b"):
        return gzip.open(raw)
    if kind.startswith(b"\xfd7zXZ\x00"):
        return lzma.open(raw)
    if kind.startswith(b"BZh"):
        import bz2

        return bz2.open(raw)
    if kind.startswith(b"\x28\xb5\x2f\xfd"):
        return _Zstd(raw)
    return raw


class _Zstd:
    """A zstd stream whose errors are those of the other kinds."""

    def __init__(self, raw: IO[bytes]) -> None:
        import zstandard  # 6 ms, and few captures need it

        self._error = zstandard.ZstdError
        self._stream = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)

    def read(self, size: int, /) -> bytes:
        try:
            data: bytes = self._stream.read(size)
        except self._error as error:
            raise EOFError(str(error)) from None
        return data

    def close(self) -> None:
        self._stream.close()  # type: ignore[no-untyped-call]


class _Forward:
    """A stream for `tarfile`: it goes forwards only, counts what it gives, and gives no giants."""

    def __init__(self, stream: Readable, most: int) -> None:
        self._stream = stream
        self._most = most
        self._at = 0
        self._last = b""
        """The last bytes given: `tarfile` goes back by one to see whether data was complete."""
        self._again = b""

    @property
    def saw_end_mark(self) -> bool:
        """Whether the last bytes given were those that end every tar."""
        return self._last == tarfile.NUL * tarfile.BLOCKSIZE

    def tell(self) -> int:
        return self._at

    def read(self, size: int, /) -> bytes:
        if not 0 <= size <= _MOST_AT_ONCE:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        data = self._again[:size]
        self._again = self._again[size:]
        while len(data) < size and (chunk := self._stream.read(size - len(data))):
            data += chunk
        self._at += len(data)
        if self._at > self._most:
            raise TooMuchError
        self._last = data or self._last
        return data

    def seek(self, to: int, /) -> int:
        if to < self._at:
            back = self._at - to
            if back > len(self._last):
                raise tarfile.ReadError("damaged header")
            self._again = self._last[-back:] + self._again
            self._at = to
        while self._at < to and self.read(min(to - self._at, CHUNK)):
            pass
        return self._at

    def drain(self) -> None:
        """Read on to the end, where the checksum of what was compressed stands."""
        end = self._at + _BEHIND_THE_END
        while self._at < end and self.read(CHUNK):
            pass


def _of_tar(stream: _Forward) -> Iterator[Member]:
    with tarfile.open(fileobj=stream, mode="r:") as tar:  # type: ignore[call-overload]
        while info := tar.next():
            # It keeps every member it has seen, and there may be hundreds of thousands.
            tar.members.clear()
            if info.isfile():
                yield Member(info.name, info.size, _in_tar(tar, info), alone=False)
            elif not info.isdir():
                yield Member(info.name, 0, None, alone=False)
    if not stream.saw_end_mark:
        raise EOFError("it ends without the mark that ends an archive")
    stream.drain()


def _in_tar(tar: tarfile.TarFile, info: tarfile.TarInfo) -> Callable[[], Readable]:
    def open_member() -> Readable:
        stream = tar.extractfile(info)
        if stream is None:
            raise tarfile.ReadError(f"{info.name} cannot be opened")
        return stream

    return open_member


def _of_zip(raw: IO[bytes]) -> Iterator[Member]:
    with zipfile.ZipFile(raw) as bundle:
        for info in bundle.infolist():
            if info.is_dir():
                continue
            linked = stat.S_ISLNK(info.external_attr >> 16)
            yield Member(
                info.filename, info.file_size, None if linked else _in_zip(bundle, info), alone=True
            )


def _in_zip(bundle: zipfile.ZipFile, info: zipfile.ZipInfo) -> Callable[[], Readable]:
    return lambda: bundle.open(info)

"""The members of an archive, in one pass, without trust in its headers.

Archives are recognized by their first bytes, not by their names. The standard library treats damage as the
end of an archive, and reads as many bytes at once as a header announces; here damage is an error
(`DAMAGED`), and headers are small.
"""

from __future__ import annotations

import gzip
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple, Protocol, cast

from raydoctor.capture.budget import Budget, TooMuchError
from raydoctor.capture.layout import compression

CHUNK = 1 << 20
_HEAD = 16
"""Bytes that show an archive's kind."""
_MOST_AT_ONCE = 4 * CHUNK
"""Bytes: more than any name or attribute that a header announces."""
_BEHIND_THE_END = 64 * CHUNK
"""Bytes read after the last member, to reach the checksum of the compressed data."""
_MOST_DIRECTORY = 24 << 20
"""Bytes of a zip's list of members: some 200,000 of them, or 300 MB once they are objects."""
_MOST_MEMORY = 256 << 20
"""Bytes that decompressing may take: `xz -9` takes 65 MiB; zstd's own limit is 128 MiB."""
_XZ_INPUT = 64 << 10
DAMAGED = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError,
    # Raised by the standard library for damaged (tarfile), encrypted or odd (zipfile) archives.
    TypeError, IndexError, RuntimeError,
)  # fmt: skip


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
    """Whether damage to this member leaves the others readable."""


def members(archive: Path, budget: Budget) -> Iterator[Member]:
    """The members of an archive of any kind; each is to be read before the next is asked for.

    Raises one of DAMAGED if the archive is truncated, and TooMuchError if the budget is spent.
    """
    with archive.open("rb") as file:
        raw = _Metered(file, budget)
        kind = file.read(_HEAD)
        file.seek(0)
        if kind.startswith(b"PK"):
            yield from _of_zip(raw, budget)
        else:
            with closing(decompressed(raw, kind)) as stream:
                yield from _of_tar(_Forward(stream, budget))


def is_archive(file: Path) -> bool:
    """Whether the content is that of an archive, whatever the file's name. Raises OSError."""
    with file.open("rb") as raw:
        head = raw.read(tarfile.BLOCKSIZE)
        raw.seek(0)
        if head.startswith(b"PK\x03\x04"):
            return True
        if compression(head):
            try:
                with closing(decompressed(_Metered(raw, Budget(seconds=1.0)), head)) as stream:
                    head = stream.read(tarfile.BLOCKSIZE)
            except (*DAMAGED, TooMuchError):
                return False
    return head[257:262] == b"ustar"


def decompress(file: Path, budget: Budget) -> Iterator[bytes]:
    """The content of a compressed file, in chunks. Raises one of DAMAGED, or TooMuchError."""
    with file.open("rb") as raw:
        kind = raw.read(_HEAD)
        raw.seek(0)
        with closing(decompressed(_Metered(raw, budget), kind)) as stream:
            while chunk := stream.read(CHUNK):
                budget.unpack(len(chunk))
                yield chunk


def decompressed(raw: _Metered, kind: bytes) -> _Closable:
    """A decompressing stream, or the stream itself if it is not compressed. `kind`: its first bytes."""
    name = compression(kind)
    if name == "gzip":
        return gzip.GzipFile(fileobj=cast("IO[bytes]", raw), mode="rb")
    if name == "xz":
        return _Xz(raw)
    if name == "bzip2":
        import bz2

        return bz2.open(cast("IO[bytes]", raw))
    if name == "zstd":
        return _Zstd(cast("IO[bytes]", raw))
    return raw


class _Metered:
    """A file that checks the budget at each read: a megabyte of NULs can take a minute to unpack."""

    def __init__(self, file: IO[bytes], budget: Budget) -> None:
        self._file = file
        self._budget = budget
        self._size = os.fstat(file.fileno()).st_size

    def read(self, size: int = -1, /) -> bytes:
        """Up to so many bytes."""
        self._budget.check_time()
        self._budget.report(self._file.tell(), self._size)
        if not -1 <= size <= _MOST_DIRECTORY:
            raise TooMuchError("announces more members than are read")
        return self._file.read(size)

    def seek(self, to: int, whence: int = 0, /) -> int:
        return self._file.seek(to, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing: the caller owns the file."""


class _Xz:
    """An xz stream, or several, decompressed in bounded memory: a header may ask for 4 GiB."""

    def __init__(self, raw: Readable) -> None:
        self._raw = raw
        self._decoder: lzma.LZMADecompressor | None = None
        self._rest = b""
        """Input behind the end of a stream."""

    def read(self, size: int, /) -> bytes:
        while True:
            if self._decoder is None and not self._next_stream():
                return b""
            assert self._decoder is not None
            data, self._rest = self._rest, b""
            if not data and self._decoder.needs_input:
                data = self._raw.read(_XZ_INPUT)
                if not data:
                    raise EOFError("the compressed data ends before its end")
            out = self._decoder.decompress(data, size)
            if self._decoder.eof:
                self._rest, self._decoder = self._decoder.unused_data, None
            if out:
                return out

    def _next_stream(self) -> bool:
        """Begin the next stream, behind padding; False at the end."""
        while not (rest := self._rest.lstrip(b"\0")):
            self._rest = self._raw.read(_XZ_INPUT)
            if not self._rest:
                return False
        self._rest = rest
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MOST_MEMORY)
        return True

    def close(self) -> None:
        """Nothing is held."""


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
    """A stream for `tarfile`: it only moves forwards, counts its bytes, and limits each read."""

    def __init__(self, stream: Readable, budget: Budget) -> None:
        self._stream = stream
        self._budget = budget
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
            self._budget.unpack(len(chunk))
        self._at += len(data)
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
        """Read to the end, where the checksum of the compressed data is."""
        end = self._at + _BEHIND_THE_END
        while self._at < end and self.read(CHUNK):
            pass


def _of_tar(stream: _Forward) -> Iterator[Member]:
    with tarfile.open(fileobj=stream, mode="r:") as tar:  # type: ignore[call-overload]
        while info := tar.next():
            # `tarfile` keeps every member, and there may be hundreds of thousands.
            tar.members.clear()
            if info.isfile():
                yield Member(info.name, info.size, _in_tar(tar, info), alone=False)
            elif not info.isdir():
                yield Member(info.name, 0, None, alone=False)
    if not stream.saw_end_mark:
        raise EOFError("it lacks the mark at the end of an archive")
    stream.drain()


def _in_tar(tar: tarfile.TarFile, info: tarfile.TarInfo) -> Callable[[], Readable]:
    def open_member() -> Readable:
        stream = tar.extractfile(info)
        if stream is None:
            raise tarfile.ReadError(f"{info.name} cannot be opened")
        return stream

    return open_member


def _of_zip(raw: _Metered, budget: Budget) -> Iterator[Member]:
    with zipfile.ZipFile(cast("IO[bytes]", raw)) as bundle:
        for info in bundle.infolist():
            if info.is_dir():
                continue
            linked = stat.S_ISLNK(info.external_attr >> 16)
            content = None if linked else partial(_in_zip, bundle, info, budget)
            yield Member(info.filename, info.file_size, content, alone=True)


def _in_zip(bundle: zipfile.ZipFile, info: zipfile.ZipInfo, budget: Budget) -> Readable:
    return _Counted(bundle.open(info), budget)


class _Counted:
    """A stream whose bytes are taken from the budget."""

    def __init__(self, stream: Readable, budget: Budget) -> None:
        self._stream = stream
        self._budget = budget

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        self._budget.unpack(len(data))
        return data

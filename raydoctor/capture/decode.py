"""A file's first bytes -> how it is read: compressed, UTF-16, lines that end in CR, holes.

The search works on bytes, so files that are not plain UTF-8 with line feeds are decoded into the private
folder. File names do not matter here: rotation, `kubectl cp` and Windows shells give any content any name.
"""

from __future__ import annotations

import codecs
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from raydoctor.capture.budget import Budget, TooMuchError
from raydoctor.capture.layout import compression
from raydoctor.model.errors import NO_ROOM

HEAD = 2048
"""Bytes at the start of a file that show its form."""
_LAYERS = 4
"""Nested forms that are decoded: `gzip` of UTF-16 with CR is three."""
_CHUNK = 1 << 20
_MARKS = (
    (b"\xff\xfe\0\0", "utf-32-le"),
    (b"\0\0\xfe\xff", "utf-32-be"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
    (b"\xef\xbb\xbf", "utf-8"),
)
"""Byte order marks; the longer ones first."""
_MOSTLY = 0.8
_SPARSE_FROM = 1 << 20
"""File size in bytes from which holes are searched."""
_COPIED_DATA = 1 << 30
"""Bytes of a file with holes that are copied; one that holds more is searched as it is."""
_CONTROLS = bytes(set(range(32)) - set(b"\a\b\t\n\v\f\r\x1b")) + b"\x7f"
_MOST_CONTROLS = 0.05
BINARY = "binary"
FULL = "the disk has no room to decode all of it"
"""Why a file is incomplete that another folder for temporary files would make complete."""


def form_of(file: str, size: int = 0) -> str:
    """A file's form; empty for plain text and for a file that cannot be opened.

    Forms: those of `compression`, `utf-…`, `cr`, `sparse`, and `binary`, which nothing decodes.
    `size`: bytes, as far as known; large files are looked at for holes.
    """
    try:
        # O_NONBLOCK: a pipe that replaced the file must not block.
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    try:
        head = os.read(handle, HEAD)
        if size >= _SPARSE_FROM and _has_holes(handle):
            return "sparse"
        if b"\n" in head and 0 not in head and head[0] not in _ODD:
            return ""
        return _form(head)
    except OSError:
        return ""
    finally:
        os.close(handle)


_ODD = b"\x1f\xfd\x42\x28\xff\xfe\xef"
"""First bytes of compressed files and byte order marks."""


def text_of(head: bytes) -> str:
    """The text that begins with these bytes, in the forms that shells write; empty for other forms."""
    form = _form(head) if head else ""
    if form == "gzip":
        try:
            return text_of(zlib.decompressobj(31).decompress(head, len(head)))
        except zlib.error:
            return ""
    if form in ("", "cr") or form.startswith("utf"):
        return head.decode(form if form.startswith("utf") else "utf-8", "replace").lstrip("\ufeff")
    return ""


def _form(head: bytes) -> str:
    if name := compression(head):
        return name
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding
    if 0 in head:
        return _without_mark(head) or _binary(head)
    if b"\r" in head and b"\n" not in head:
        return "cr"
    return _binary(head)


def _without_mark(head: bytes) -> str:
    """UTF-16 without a mark, by the positions of its NULs: log text is mostly ASCII."""
    even, odd = head[::2], head[1::2]
    in_even, in_odd = even.count(0) / len(even), odd.count(0) / max(len(odd), 1)
    if in_odd >= _MOSTLY and in_even <= 1 - _MOSTLY:
        return "utf-16-le"
    return "utf-16-be" if in_even >= _MOSTLY and in_odd <= 1 - _MOSTLY else ""


def _has_holes(handle: int) -> bool:
    status = os.fstat(handle)
    if status.st_blocks * 512 >= min(status.st_size, _COPIED_DATA) or not hasattr(os, "SEEK_HOLE"):
        return False
    # A compressing file system also uses fewer blocks.
    return os.lseek(handle, 0, os.SEEK_HOLE) < status.st_size


def _binary(head: bytes) -> str:
    controls = len(head) - len(head.translate(None, _CONTROLS))
    return BINARY if controls > _MOST_CONTROLS * len(head) else ""


def decode(file: str, form: str, to: Path, budget: Budget) -> str:
    """Write a file's text to `to`; return why it is incomplete, or an empty string.

    The text before damage, or before the end of the budget, is kept.
    """
    why = _written(file, form, to, budget)
    for _ in range(_LAYERS - 1):
        inner = "" if why else form_of(str(to))
        if inner == BINARY:
            return "is not text"
        if not inner:
            break
        outer = to.rename(to.with_name(to.name + ".packed"))
        why = _written(str(outer), inner, to, budget)
        outer.unlink()
    return why


def _written(file: str, form: str, to: Path, budget: Budget) -> str:
    from raydoctor.capture.members import DAMAGED

    try:
        with to.open("wb") as out:
            for chunk in _chunks(file, form, budget):
                budget.write(len(chunk))
                out.write(chunk)
    except TooMuchError as error:
        return f"{error}; the rest was not read"
    except DAMAGED as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            return FULL
        reason = str(error).partition("\n")[0] or type(error).__name__
        return f"damaged {form} file ({reason}); read up to the damage"
    if form == "sparse":
        return "has holes: parts of it were never written, or are lost"
    return ""


def _chunks(file: str, form: str, budget: Budget) -> Iterator[bytes]:
    if form == "sparse":
        return _data(file, budget)
    if form == "cr":
        return _with_line_feeds(_plain(file, budget))
    if form.startswith("utf-"):
        return _as_utf8(_plain(file, budget), form)
    from raydoctor.capture.members import decompress

    return decompress(Path(file), budget)


def _plain(file: str, budget: Budget) -> Iterator[bytes]:
    with open(file, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            budget.check_time()
            yield chunk


def _as_utf8(chunks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    first = True
    for chunk in chunks:
        text = decoder.decode(chunk)
        yield (text.removeprefix("\ufeff") if first else text).encode("utf-8", "replace")
        first = False
    yield decoder.decode(b"", True).encode("utf-8", "replace")


def _with_line_feeds(chunks: Iterable[bytes]) -> Iterator[bytes]:
    held = b""
    for chunk in chunks:
        data = held + chunk
        held = b"\r" if data.endswith(b"\r") else b""
        data = data[: len(data) - len(held)]
        yield data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if held:
        yield b"\n"


def _data(file: str, budget: Budget) -> Iterator[bytes]:
    """The content of a file between its holes."""
    handle = os.open(file, os.O_RDONLY)
    try:
        end, at = os.fstat(handle).st_size, 0
        while at < end:
            budget.check_time()
            try:
                at = os.lseek(handle, at, os.SEEK_DATA)
            except OSError:  # ENXIO: a hole up to the end
                return
            stop = os.lseek(handle, at, os.SEEK_HOLE)
            while at < stop and (chunk := os.pread(handle, min(_CHUNK, stop - at), at)):
                at += len(chunk)
                yield chunk.strip(b"\0")
            if at < stop:  # cut off while it is read
                return
    finally:
        os.close(handle)

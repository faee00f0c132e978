"""Archives -> files in a private folder: nothing escapes it, nothing fills the disk.

Only members that a diagnosis reads are written, each below the folder given, under a path made of
the member's own cleaned parts. Links, devices and names with `..` are refused and become gaps, as
does whatever lies behind the size limit or a truncation: what was read before it is kept.
"""

from __future__ import annotations

import errno
import gzip
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from raydoctor.capture.layout import ARCHIVE_SUFFIXES, identify, is_archive
from raydoctor.capture.members import CHUNK, DAMAGED, Member, Readable, TooMuchError, members
from raydoctor.errors import RaydoctorError
from raydoctor.model import Gap

BASE_LIMIT = 256 << 20
RATIO_LIMIT = 300
"""Logs shrink 10 to 100 times; a bomb a thousand times and more."""
TOTAL_LIMIT = 16 << 30
MEMBER_LIMIT = 500_000
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_DEPTH = 2
"""Archives in archives: `ray cluster-dump` writes one for each node into one for all."""


@dataclass(slots=True)
class Unpacked:
    """What came of an archive."""

    gaps: list[Gap] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    """Paths of members without content: that they exist counts, but they need no file."""


@dataclass(slots=True)
class _Unpacking:
    """An archive on its way into a folder."""

    into: Path
    bytes: int
    """How many may still be written."""
    members: int = MEMBER_LIMIT
    done: Unpacked = field(default_factory=Unpacked)
    folders: set[Path] = field(default_factory=set)


def unpack(archive: Path, into: Path) -> Unpacked:
    """Write an archive's log files below `into`; what was refused or lost comes back as gaps.

    Raises RaydoctorError if it is no archive at all.
    """
    work = _Unpacking(into, min(_limit(archive), TOTAL_LIMIT, _room(into)))
    _unpack(archive, archive.name, into, work, depth=0)
    return work.done


def gunzip(file: Path, to: Path) -> Gap | None:
    """Decompress one rotated log, within the limits of an archive."""
    limit = min(_limit(file), TOTAL_LIMIT, _room(to.parent))
    try:
        with gzip.open(file) as stream, to.open("wb") as out:
            copy(stream, out, limit)
    except TooMuchError:
        return Gap(file.name, f"unpacks to more than {limit >> 20} MiB; the rest was not read")
    except DAMAGED as error:
        return Gap(file.name, f"damaged gzip file ({_reason(error)}); read up to the damage")
    return None


def copy(stream: Readable, out: IO[bytes], limit: int) -> int:
    """Copy a stream; the bytes copied. Raises TooMuchError behind `limit` bytes."""
    total = 0
    while chunk := stream.read(CHUNK):
        total += len(chunk)
        if total > limit:
            raise TooMuchError
        out.write(chunk)
    return total


def _limit(archive: Path) -> int:
    return BASE_LIMIT + RATIO_LIMIT * archive.stat().st_size


def _room(folder: Path) -> int:
    """Bytes that may be written there: all but 1 GiB of what is free."""
    return max(shutil.disk_usage(folder).free - (1 << 30), 1 << 20)


def _unpack(archive: Path, shown: str, into: Path, work: _Unpacking, depth: int) -> None:
    read_any = False
    try:
        for member in members(archive, _limit(archive)):
            read_any = True
            work.members -= 1
            if work.members < 0:
                why = f"more than {MEMBER_LIMIT:,} members; the rest was not read"
                work.done.gaps.append(Gap(shown, why))
                return
            _take(member, shown, into, work, depth)
    except TooMuchError:
        why = "unpacks to far more than its size allows; read up to there"
        work.done.gaps.append(Gap(shown, why, "Unpack it yourself and give the folder."))
    except DAMAGED as error:
        if not read_any and depth == 0:
            raise RaydoctorError(
                f"cannot read {shown}: {_reason(error)}",
                "Check that the copy is whole (compare its size with the original); read are "
                f"{', '.join(ARCHIVE_SUFFIXES)}.",
            ) from None
        work.done.gaps.append(_lost(shown, error))


def _lost(what: str, error: BaseException) -> Gap:
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        why = "no room to unpack it"
        return Gap(what, why, "Set TMPDIR to a folder with room, or unpack it yourself.")
    why = f"the archive is damaged ({_reason(error)}); read up to the damage"
    return Gap(what, why, "Copy it again.")


def _take(member: Member, shown: str, into: Path, work: _Unpacking, depth: int) -> None:
    """Write one member if it is wanted."""
    parts = [p for p in member.name.replace("\\", "/").split("/") if p not in ("", ".")]
    nested = is_archive(member.name) and depth < _DEPTH
    if not parts or not (nested or identify("/".join(parts))):
        return
    if member.open is None or ".." in parts or member.name.startswith(("/", "\\")):
        kind = "a link or device" if member.open is None else "a path outside the archive"
        work.done.gaps.append(Gap(f"{shown}: {member.name}", f"is {kind}; not read"))
        return
    target = into.joinpath(*parts)
    if not member.size:
        work.done.empty.append(target.relative_to(work.into).as_posix())
    elif out := _created(target, f"{shown}: {member.name}", work):
        with out:
            _fill(member, out, f"{shown}: {member.name}", work)
        if nested:
            folder = target.with_name(target.name + ".d")
            folder.mkdir(exist_ok=True)
            _unpack(target, f"{shown}: {member.name}", folder, work, depth + 1)
            target.unlink()


def _created(target: Path, shown: str, work: _Unpacking) -> IO[bytes] | None:
    """A new file, or None where it is there already or cannot be: a name that no folder takes."""
    try:
        if target.parent not in work.folders:
            target.parent.mkdir(parents=True, exist_ok=True)
            work.folders.add(target.parent)
        return None if target.exists() else target.open("xb")
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            raise
        work.done.gaps.append(Gap(shown, f"cannot be unpacked: {_reason(error)}"))
        return None


def _fill(member: Member, out: IO[bytes], shown: str, work: _Unpacking) -> None:
    assert member.open is not None
    try:
        work.bytes -= copy(member.open(), out, work.bytes)
    except DAMAGED as error:
        if not member.alone:
            raise
        work.done.gaps.append(_lost(shown, error))


def _reason(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__

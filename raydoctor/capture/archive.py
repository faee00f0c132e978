"""Archives -> files in a private folder, within limits of path and size.

Only members that a diagnosis reads, or may read for their content, are written, each below the given folder,
under a path made of the member's own cleaned parts. Links, devices and names with `..` are refused and become
gaps, and so does everything after the size limit or a truncation. The members before it are kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from raydoctor.capture import budget as limits
from raydoctor.capture import contents
from raydoctor.capture.budget import Budget, TooMuchError
from raydoctor.capture.decode import text_of
from raydoctor.capture.layout import ARCHIVE_SUFFIXES, identify, is_archive
from raydoctor.capture.members import CHUNK, DAMAGED, Member, Readable, members
from raydoctor.model.errors import NO_ROOM, RaydoctorError
from raydoctor.model.text import join_names
from raydoctor.model.values import Gap

_MOST_GAPS = 100
"""Gaps that the members of one archive can cause; further ones are only counted."""
_MOST_UNNAMED = 500
"""Members whose names say nothing and whose first bytes are looked at."""
_SUFFIXES = join_names(ARCHIVE_SUFFIXES, len(ARCHIVE_SUFFIXES))


@dataclass(slots=True)
class Unpacked:
    """The result of unpacking an archive."""

    gaps: list[Gap] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    """Paths of empty members: a diagnosis needs to know that they exist."""


@dataclass(slots=True)
class _Unpacking:
    """An archive while it is being unpacked."""

    into: Path
    budget: Budget
    done: Unpacked = field(default_factory=Unpacked)
    folders: set[Path] = field(default_factory=set)
    refused: int = 0
    unnamed: int = 0

    def refuse(self, gap: Gap) -> None:
        """Record a member that is not read."""
        self.refused += 1
        if self.refused <= _MOST_GAPS:
            self.done.gaps.append(gap)


def unpack(archive: Path, into: Path, budget: Budget, name: str = "") -> Unpacked:
    """Write an archive's log files below `into`; refused and lost members become gaps.

    `name`: of the archive, if its path has another one. Raises RaydoctorError if the file is not an archive.
    """
    budget.allow(archive.stat().st_size)
    work = _Unpacking(into, budget)
    name = name or archive.name
    _unpack(archive, name, into, work, depth=0)
    if (more := work.refused - _MOST_GAPS) > 0:
        work.done.gaps.append(Gap(name, f"{more:,} further members could not be read"))
    return work.done


def copy(stream: Readable, out: IO[bytes], budget: Budget) -> None:
    """Copy a stream. Raises TooMuchError where the budget is spent."""
    while chunk := stream.read(CHUNK):
        budget.write(len(chunk))
        out.write(chunk)


def _unpack(archive: Path, shown: str, into: Path, work: _Unpacking, depth: int) -> None:
    read_any = False
    try:
        for member in members(archive, work.budget):
            read_any = True
            work.budget.open_member()
            _take(member, shown, into, work, depth)
    except TooMuchError as error:
        if depth:  # the budget is that of the archive around it
            raise
        why = f"{error}; it was read up to there"
        work.done.gaps.append(Gap(shown, why, "Unpack it yourself and give the folder."))
    except DAMAGED as error:
        if not read_any and depth == 0:
            raise RaydoctorError(
                f"cannot read {shown}: {_reason(error)}",
                "Check that the copy is complete (compare its size with the original). raydoctor reads "
                f"{_SUFFIXES}.",
            ) from None
        work.refuse(_lost(shown, error))


def _lost(what: str, error: BaseException) -> Gap:
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        why = "the disk has no room to unpack it"
        return Gap(what, why, "Set TMPDIR to a folder with room, or unpack it yourself.")
    why = f"the archive is damaged ({_reason(error)}); read up to the damage"
    return Gap(what, why, "Copy it again.")


def _take(member: Member, shown: str, into: Path, work: _Unpacking, depth: int) -> None:
    """Write one member if it is wanted."""
    parts = [p for p in member.name.replace("\\", "/").split("/") if p not in ("", ".")]
    nested = is_archive(member.name)
    is_named = nested or identify("/".join(parts)) is not None
    if not parts or not (is_named or _may_be_read(member, work)):
        return
    if nested and depth >= limits.DEPTH:
        why = f"is an archive inside {depth + 1} others; not read"
        work.refuse(Gap(f"{shown}: {member.name}", why, "Unpack it yourself."))
        return
    if member.open is None or ".." in parts or member.name.startswith(("/", "\\")):
        kind = "a link or device" if member.open is None else "a path outside the archive"
        work.refuse(Gap(f"{shown}: {member.name}", f"is {kind}; not read"))
        return
    if len(parts) > limits.FOLDERS:
        why = f"lies more than {limits.FOLDERS} folders deep; not read"
        work.refuse(Gap(f"{shown}: {member.name}", why))
        return
    target = into.joinpath(*parts)
    if not member.size:
        work.done.empty.append(target.relative_to(work.into).as_posix())
    elif out := _created(target, f"{shown}: {member.name}", work):
        try:
            with out:
                is_read = _fill(member, out, f"{shown}: {member.name}", work, is_named)
        except OSError as error:
            if error.errno in NO_ROOM:
                target.unlink()  # otherwise a part of it would be read as damaged
            raise
        if not is_read:
            target.unlink()
        if nested:
            folder = target.with_name(target.name + ".d")
            folder.mkdir(exist_ok=True)
            _unpack(target, f"{shown}: {member.name}", folder, work, depth + 1)
            target.unlink()


def _created(target: Path, shown: str, work: _Unpacking) -> IO[bytes] | None:
    """A new file, or None if it already exists or its name is not possible."""
    try:
        if target.parent not in work.folders:
            target.parent.mkdir(parents=True, exist_ok=True)
            work.folders.add(target.parent)
        return None if target.exists() else target.open("xb")
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise
        work.refuse(Gap(shown, f"cannot be unpacked: {_reason(error)}"))
        return None


def _may_be_read(member: Member, work: _Unpacking) -> bool:
    """Whether a file's first bytes can show that it is read, though its name does not."""
    if member.open is None or not member.size or not contents.is_candidate(member.name):
        return False
    work.unnamed += 1
    return work.unnamed <= _MOST_UNNAMED


def _fill(member: Member, out: IO[bytes], shown: str, work: _Unpacking, is_named: bool) -> bool:
    """Write a member; False for one whose first bytes do not show that it is read."""
    assert member.open is not None
    try:
        stream = member.open()
        head = b"" if is_named else stream.read(contents.HEAD)
        if not is_named and not contents.role_of_text(text_of(head)):
            return False
        work.budget.write(len(head))
        out.write(head)
        copy(stream, out, work.budget)
    except DAMAGED as error:
        if not member.alone:
            raise
        work.refuse(_lost(shown, error))
    return True


def _reason(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__

"""Archives -> files in a private folder: nothing escapes it, nothing fills the disk.

Only members that a diagnosis reads are written, each below the folder given, under a path made of
the member's own cleaned parts. Links, devices and names with `..` are refused and become gaps, as
does whatever lies behind the size limit or a truncation: what was read before it is kept.
"""

from __future__ import annotations

import gzip
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from raydoctor.capture.layout import ARCHIVE_SUFFIXES, identify, is_archive
from raydoctor.errors import RaydoctorError
from raydoctor.model import Gap

BASE_LIMIT = 256 << 20
RATIO_LIMIT = 300
"""Logs shrink 10 to 100 times; a bomb a thousand times and more."""
TOTAL_LIMIT = 16 << 30
MEMBER_LIMIT = 500_000
_CHUNK = 1 << 20
_BROKEN = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError,
    # What the standard library lets slip on damaged (tarfile), encrypted or odd (zipfile) archives.
    TypeError, IndexError, RuntimeError,
)  # fmt: skip


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Member(NamedTuple):
    name: str
    stream: IO[bytes] | None
    """None: a link or device."""


@dataclass(slots=True)
class _Budget:
    bytes: int
    members: int = MEMBER_LIMIT
    gaps: list[Gap] = field(default_factory=list)


def unpack(archive: Path, into: Path) -> list[Gap]:
    """Write an archive's log files below `into`; what was refused or lost comes back as gaps.

    Raises RaydoctorError if it is no archive at all.
    """
    budget = _Budget(
        min(BASE_LIMIT + RATIO_LIMIT * archive.stat().st_size, TOTAL_LIMIT, _room(into))
    )
    _unpack(archive, archive.name, into, budget, depth=0)
    return budget.gaps


def gunzip(file: Path, to: Path) -> Gap | None:
    """Decompress one rotated log, within the limits of an archive."""
    limit = min(BASE_LIMIT + RATIO_LIMIT * file.stat().st_size, TOTAL_LIMIT, _room(to.parent))
    try:
        with gzip.open(file) as stream, to.open("wb") as out:
            if _copy(stream, out, limit) < 0:
                return Gap(
                    file.name, f"unpacks to more than {limit >> 20} MiB; the rest was not read"
                )
    except _BROKEN as error:
        return Gap(file.name, f"damaged gzip file ({_reason(error)}); read up to the damage")
    return None


def _room(folder: Path) -> int:
    """Bytes that may be written there: all but 1 GiB of what is free."""
    return max(shutil.disk_usage(folder).free - (1 << 30), 1 << 20)


def _unpack(archive: Path, shown: str, into: Path, budget: _Budget, depth: int) -> None:
    read_any = False
    try:
        for member in _members(archive):
            read_any = True
            if not _take(member, shown, into, budget, depth):
                return
    except _BROKEN as error:
        if not read_any and depth == 0:
            raise RaydoctorError(
                f"cannot read {shown}: {_reason(error)}",
                "Check that the copy is whole (compare its size with the original) and its suffix "
                f"is right; read are {', '.join(ARCHIVE_SUFFIXES)}.",
            ) from None
        budget.gaps.append(
            Gap(
                shown,
                f"the archive is damaged ({_reason(error)}); read up to the damage",
                "Copy it again.",
            )
        )


def _take(member: _Member, shown: str, into: Path, budget: _Budget, depth: int) -> bool:
    """Write one member if it is wanted; False when the budget is spent."""
    budget.members -= 1
    if budget.members < 0:
        budget.gaps.append(Gap(shown, f"more than {MEMBER_LIMIT:,} members; the rest was not read"))
        return False
    parts = member.name.replace("\\", "/").split("/")
    nested = is_archive(member.name) and depth < 2
    if not nested and identify("/".join(parts)) is None:
        return True
    if member.stream is None or ".." in parts or member.name.startswith(("/", "\\")):
        kind = "a link or device" if member.stream is None else "a path outside the archive"
        budget.gaps.append(Gap(f"{shown}: {member.name}", f"is {kind}; not read"))
        return True
    target = into.joinpath(*(p for p in parts if p not in ("", ".")))
    if target.exists():
        return True
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        spent = _copy(member.stream, out, budget.bytes)
    if spent < 0:
        budget.gaps.append(
            Gap(
                shown,
                f"unpacks to far more than its size allows (stopped in {member.name})",
                "Unpack it yourself and give the folder.",
            )
        )
        return False
    budget.bytes -= spent
    if nested:
        folder = target.with_name(target.name + ".d")
        folder.mkdir(exist_ok=True)
        _unpack(target, f"{shown}: {member.name}", folder, budget, depth + 1)
        target.unlink()
    return True


def _copy(stream: _Readable, out: IO[bytes], limit: int) -> int:
    """Bytes copied, or -1 if there were more than `limit`."""
    total = 0
    while chunk := stream.read(_CHUNK):
        total += len(chunk)
        if total > limit:
            return -1
        out.write(chunk)
    return total


def _members(archive: Path) -> Iterator[_Member]:
    if archive.name.lower().endswith(".zip"):
        yield from _zip_members(archive)
        return
    if archive.name.lower().endswith(".zst"):
        import zstandard  # 6 ms to import, and few captures need it

        with archive.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as stream:
            try:
                yield from _tar_members(tarfile.open(fileobj=stream, mode="r|"))  # noqa: SIM115 - closed there
            except zstandard.ZstdError as error:
                raise EOFError(str(error)) from None
        return
    with archive.open("rb") as raw:
        yield from _tar_members(tarfile.open(fileobj=raw, mode="r|*"))  # noqa: SIM115 - closed there


def _tar_members(tar: tarfile.TarFile) -> Iterator[_Member]:
    with tar:
        for info in tar:
            if info.isfile():
                yield _Member(info.name, tar.extractfile(info))
            elif not info.isdir():
                yield _Member(info.name, None)


def _zip_members(archive: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as bundle:
        for info in bundle.infolist():
            if not info.is_dir():
                with bundle.open(info) as stream:
                    yield _Member(info.filename, stream)


def _reason(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__

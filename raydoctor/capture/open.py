"""A path -> a capture: its sources, where their bytes are, and what could not be had.

Reads folders and names only; the one thing written is a private temporary folder for what archives
and `.gz` files hold, removed by `Capture.close()`.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import IO

from raydoctor import paste
from raydoctor.capture import manifest, session
from raydoctor.capture.layout import (
    SKIPPED_FOLDERS,
    SKIPPED_PREFIXES,
    identify,
    is_archive,
    node_label,
    read_name,
    source_of,
)
from raydoctor.errors import RaydoctorError
from raydoctor.model import Gap, Source

STREAM_LIMIT = 8 << 30
"""Bytes of standard input or a pipe: they are written to a temporary file, and may never end."""
_MOST_HELD = 200
"""Files without a name at once: each takes a descriptor, and a process may have as few as 1,024."""
_LOOKED_FOR = (
    "Looked for a session folder (…/session_*/), its logs/, a tree with such folders, an archive "
    "of them, or one log file. To see a real failure explained: raydoctor demo"
)


@dataclass(slots=True)
class Capture:
    """Files to diagnose. `files` maps each source to where its bytes lie now."""

    path: str
    kind: str
    files: dict[Source, str]
    """Paths as text: fifty thousand are common, and making a `Path` of each takes a third of the walk."""
    gaps: list[Gap] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """For stderr: what was chosen and how to choose otherwise."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """What no report may show: the token of the cluster that was asked."""
    _temporary: Path | None = None
    _held: list[int] = field(default_factory=list)
    """Descriptors of files that have no name."""

    @property
    def sources(self) -> tuple[Source, ...]:
        """All sources, by path."""
        return tuple(self.files)

    def temporary(self) -> Path:
        """A private folder (mode 0700) that goes with the capture."""
        if self._temporary is None:
            try:
                self._temporary = Path(tempfile.mkdtemp(prefix="raydoctor-"))
            except OSError as error:
                raise RaydoctorError(
                    f"cannot make a temporary folder: {error.strerror or error}",
                    "Set TMPDIR to a folder that can be written to.",
                ) from None
        return self._temporary

    def add(self, path: str, data: bytes) -> None:
        """Add a file that a collector brought, if it is one that a diagnosis reads."""
        if source := identify(path, len(data)):
            self.files[source] = self._hold(data)

    def _hold(self, data: bytes) -> str:
        """Keep bytes where they can be read by path: in memory, which a full disk does not hinder."""
        if sys.platform == "linux" and len(self._held) < _MOST_HELD:
            number = os.memfd_create("raydoctor")
            self._held.append(number)
            with open(number, "wb", closefd=False) as out:
                out.write(data)
            return f"/proc/{os.getpid()}/fd/{number}"
        handle, name = tempfile.mkstemp(dir=self.temporary())
        with open(handle, "wb") as out:
            out.write(data)
        return name

    def close(self) -> None:
        """Remove the private folder."""
        while self._held:
            os.close(self._held.pop())
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def __enter__(self) -> Capture:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_capture(path: str | None = None, driver_log: str | None = None) -> Capture:
    """Open what a user names: any layout of the contract, or this machine's session.

    `driver_log` adds one file (`-`: standard input) as driver output. Raises RaydoctorError if
    there is nothing that can be read.
    """
    driver_alone = path is None and driver_log is not None
    capture = Capture(driver_log or "", "driver", {}) if driver_alone else _open(path)
    try:
        if driver_log is not None:
            add_driver_log(capture, driver_log)
        _expand_gz(capture)
    except BaseException:
        capture.close()
        raise
    return capture


def _open(path: str | None) -> Capture:
    if path is None:
        choice = session.this_machine()
        return _from_folder(choice.path, [choice.note] if choice.note else [])
    given = Path(path)
    try:
        mode = given.stat().st_mode
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise RaydoctorError(f"cannot read {path}: {why}", _LOOKED_FOR) from None
    except ValueError as error:  # an embedded NUL
        raise RaydoctorError(f"cannot read {path!r}: {error}", _LOOKED_FOR) from None
    if stat.S_ISDIR(mode):
        return _from_folder(given, [])
    if not stat.S_ISREG(mode):
        raise RaydoctorError(f"cannot read {path}: neither a file nor a folder", _LOOKED_FOR)
    return _from_archive(given) if is_archive(given.name) else _from_file(given)


def _from_folder(folder: Path, notes: list[str]) -> Capture:
    if choice := session.latest_in(folder):
        notes = [*notes, choice.note] if choice.note else notes
        folder = choice.path
    capture = Capture(str(folder), _kind(folder), {}, notes=notes)
    _walk(folder, capture)
    if not capture.files and not capture.gaps:
        raise RaydoctorError(f"no Ray logs in {folder}", _LOOKED_FOR)
    return capture


def _kind(folder: Path) -> str:
    if folder.name.startswith("session_"):
        return "session"
    return "logs" if folder.name == "logs" else "tree"


def _from_archive(path: Path) -> Capture:
    from raydoctor.capture import archive  # tarfile, zipfile, lzma: 15 ms that folders need not pay

    capture = Capture(str(path), "archive", {})
    try:
        inside = capture.temporary() / "archive"
        inside.mkdir()
        unpacked = archive.unpack(path, inside)
        capture.gaps += unpacked.gaps
        _walk(inside, capture)
        _add_empty(capture, unpacked.empty)
        if not capture.files and not capture.gaps:
            raise RaydoctorError(f"no Ray logs in {path}", _LOOKED_FOR)
    except BaseException:
        capture.close()
        raise
    return capture


def _add_empty(capture: Capture, paths: list[str]) -> None:
    """Add files that exist and hold nothing."""
    empty = capture.temporary() / "empty"
    empty.touch()
    known = _paths(capture)
    found = [identify(path) for path in dict.fromkeys(paths) if path not in known]
    files = {**capture.files, **{source: str(empty) for source in found if source}}
    capture.files = dict(sorted(files.items(), key=lambda item: item[0].path))


def _from_file(path: Path) -> Capture:
    size = path.stat().st_size
    source = identify(path.name, size) or Source(path.name, "driver", size=size)
    if not os.access(path, os.R_OK):
        hint = paste.shell("Try: sudo raydoctor diagnose {path:path}", path=str(path))
        raise RaydoctorError(f"cannot read {path}: permission denied", hint)
    return Capture(str(path), "file", {source: str(path)})


def _walk(root: Path, capture: Capture) -> None:
    """Add every source below `root`; links are not followed, so that no loop and no way out exists."""
    found: list[tuple[str, str, Source]] = []
    folders = [(str(root), "")]
    while folders:
        folder, relative = folders.pop()
        try:
            with os.scandir(folder) as scan:
                entries = list(scan)
        except OSError as error:
            why = f"cannot be listed: {error.strerror}"
            hint = paste.shell("Try: sudo raydoctor diagnose {path:path}", path=folder)
            capture.gaps.append(Gap(relative or folder, why, hint))
            continue
        entries = _one_session(folder, entries, capture.notes)
        label = node_label(relative)
        for entry in entries:
            path = f"{relative}/{entry.name}" if relative else entry.name
            if entry.is_dir(follow_symlinks=False):
                if not _is_skipped(entry.name):
                    folders.append((entry.path, path))
            elif (name := read_name(entry.name)) and (
                size := _size(entry, path, capture.gaps)
            ) >= 0:
                found.append((path, entry.path, source_of(name, path, label, size)))
    found.sort()
    capture.files.update((source, file) for _, file, source in found)
    for _, file, source in found:
        if source.role == "manifest":
            capture.gaps += manifest.gaps_of(file)


def _one_session(
    folder: str, entries: list[os.DirEntry[str]], notes: list[str]
) -> list[os.DirEntry[str]]:
    """Of several sessions side by side only the latest: the others are other clusters' lives."""
    sessions = {
        e.name for e in entries if session.is_session(e.name) and e.is_dir(follow_symlinks=False)
    }
    choice = session.latest_in(Path(folder)) if len(sessions) > 1 else None
    if choice is None or choice.path.name not in sessions:
        return entries
    notes.append(choice.note)
    return [e for e in entries if e.name not in sessions - {choice.path.name}]


def _is_skipped(folder: str) -> bool:
    return folder in SKIPPED_FOLDERS or folder.startswith(SKIPPED_PREFIXES)


def _size(entry: os.DirEntry[str], path: str, gaps: list[Gap]) -> int:
    """A file's size, or -1 with a gap where it is none that is read."""
    try:
        if entry.is_file(follow_symlinks=False):
            return entry.stat(follow_symlinks=False).st_size
        if entry.is_symlink():
            gaps.append(Gap(path, "is a symbolic link; not followed", "Copy the file itself."))
    except OSError as error:
        gaps.append(Gap(path, f"cannot be read: {error.strerror}"))
    return -1


def add_driver_log(capture: Capture, name: str) -> None:
    """Add a file (`-`: standard input) as driver output. Raises RaydoctorError where it cannot be read."""
    if name == "-":
        capture.files[_spooled(capture, "<stdin>", sys.stdin.buffer)] = str(_spool(capture))
        return
    try:
        status = os.stat(name)
        if stat.S_ISFIFO(status.st_mode):  # `--driver-log <(kubectl logs …)`
            with open(name, "rb") as stream:
                capture.files[_spooled(capture, name, stream)] = str(_spool(capture))
            return
        if not stat.S_ISREG(status.st_mode):
            raise OSError(None, "neither a file nor a pipe")
        open(name, "rb").close()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise RaydoctorError(
            f"cannot read the driver log {name}: {why}",
            "Give the file that holds the driver's output, or - for standard input.",
        ) from None
    shown = name if name not in _paths(capture) else f"{name} (driver)"
    capture.files[Source(shown, "driver", size=status.st_size)] = name


def _spool(capture: Capture) -> Path:
    return capture.temporary() / "driver.log"


def _spooled(capture: Capture, shown: str, stream: IO[bytes]) -> Source:
    """The source of a stream, kept in the private folder: reading seeks."""
    with _spool(capture).open("wb") as out:
        left = STREAM_LIMIT
        while left > 0 and (chunk := stream.read(min(left, 1 << 20))):
            left -= out.write(chunk)
    if left <= 0:
        why = f"more than {STREAM_LIMIT >> 30} GiB; the rest was not read"
        capture.gaps.append(Gap(shown, why, "Give it as a file."))
    return Source(shown, "driver", size=STREAM_LIMIT - left)


def _paths(capture: Capture) -> set[str]:
    return {source.path for source in capture.files}


def _expand_gz(capture: Capture) -> None:
    """Replace `.gz` files by what they hold, in the private folder; names and roles stay."""
    packed = [
        (source, file) for source, file in capture.files.items() if source.path.endswith(".gz")
    ]
    for number, (source, file) in enumerate(packed):
        from raydoctor.capture import archive

        unpacked = capture.temporary() / f"{number}-{os.path.basename(file)[:-3]}"
        if gap := archive.gunzip(Path(file), unpacked):
            capture.gaps.append(replace(gap, what=source.path))
        if unpacked.exists():
            del capture.files[source]
            capture.files[replace(source, size=unpacked.stat().st_size)] = str(unpacked)

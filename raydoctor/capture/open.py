"""A path -> a capture: its sources, the location of their bytes, and gaps.

Only folders and names are read. Only a private temporary folder is written, for the content of archives and
`.gz` files; `Capture.close()` removes it.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import count, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from raydoctor.capture import contents, manifest, owners, session
from raydoctor.capture.budget import ENTRIES, Budget, ReportBytes, TooMuchError
from raydoctor.capture.decode import BINARY, FULL, decode, form_of, text_of
from raydoctor.capture.layout import (
    SKIPPED_FOLDERS,
    SKIPPED_PREFIXES,
    SUBFOLDERS_OF_LOGS,
    identify,
    is_archive,
    node_label,
    read_name,
    source_of,
)
from raydoctor.model import paste
from raydoctor.model.errors import NO_ROOM, RaydoctorError
from raydoctor.model.text import join_names
from raydoctor.model.values import CONSOLES, Gap, Source

if TYPE_CHECKING:
    from raydoctor.capture.temporary import PrivateFolder

STREAM_LIMIT = 8 << 30
"""Bytes of standard input or a pipe: they are written to a temporary file, and may never end."""
_MOST_HELD = 200
"""Files without a name at once: each takes a descriptor, and a process may have as few as 1,024."""
_MOST_GAPS = 100
"""Gaps that the files of one tree can cause; further ones are only counted."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CAN_PIN = sys.platform == "linux"
_PINNED = getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_CLOEXEC
"""Needs no right to read the file, and does not wait for a pipe."""
_OF_DRIVERS = frozenset({"core-driver", "driver"})
_OF_EVENTS = frozenset({"event", "export-event"})
"""Roles of files that a driver writes into a session; events of Ray's daemons have no pid in their names."""
_LIMIT = "Permit more open files (ulimit -Hn), or remove others' right to write into the folder."
_SAVE_AGAIN = "Save the output again, for example: kubectl get pods -o json > pods.json"
_SPARE, _MOST_PINNED = 256, 1 << 20
"""Descriptors that other work needs, and those that are asked for."""
_OF_WORKERS = frozenset(
    {"worker-out", "worker-err", "core-worker", "core-io", "io-worker", "event", "export-event"}
)
"""Roles with at least one file per worker."""
_JUDGED = ("raylet-out", "gcs-out")
"""Roles whose text is checked when it is read (`read/coverage.py`)."""
_SPOOLED = "driver.log"
_TEXT = "<text>"
"""The name of a text that is in no file."""
_LOOKED_INTO = 1_000
"""Files of these roles whose first bytes are looked at: it takes 10 µs each."""
_MOST_TEXTS, _MOST_TEXT = 20, 64 << 20
"""Files of unknown names, and their bytes, that are read as consoles: a larger folder holds no pastes."""
_TEXT_SUFFIXES = frozenset(
    {"", ".txt", ".text", ".log", ".out", ".err", ".json", ".jsonl", ".ndjson", ".ipynb"}
)
_MOST_UNNAMED = 500
"""Files of one tree whose names say nothing and whose first bytes are looked at."""
_MORE_ROOM = "Set TMPDIR to a folder with room."
_NOT_TEXT = "Copy the file again from the node where Ray wrote it."
_LOOKED_FOR = (
    "Looked for a session folder (…/session_*/), its logs/, a tree with such folders, an archive "
    "of them, or one log file. To see a real failure explained: raydoctor demo"
)


@dataclass(slots=True)
class Capture:
    """Files to diagnose. `files` maps each source to the current path of its bytes."""

    path: str
    kind: str
    files: dict[Source, str]
    """Paths as text: fifty thousand are common, and making a `Path` of each takes a third of the walk."""
    gaps: list[Gap] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """For standard error: choices made for the user, and how to choose otherwise."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Texts that no report may show, such as the token of the cluster."""
    session: str = ""
    """The only session to read; the newest if empty."""
    sessions: set[str] = field(default_factory=set)
    """The names of all sessions that there are, read or not."""
    others: dict[int, str] = field(default_factory=dict)
    """Users whose drivers wrote into the session of another user, each with one of their files."""
    owner: int | None = None
    """The user who must own the folder, if known: its path may lead to another folder by now."""
    budget: Budget = field(default_factory=Budget, repr=False)
    originals: dict[tuple[str, int | None], tuple[Source, str]] = field(
        default_factory=dict, repr=False
    )
    """By path and pid, each rewritten console as it was: an archive holds these bytes."""
    numbers: Iterator[int] = field(default_factory=count, repr=False)
    """For the names of files in the private folder."""
    report: ReportBytes = field(default=lambda done, total: None, repr=False)
    """Called while the files are read; roughly, as files without a hit count when all are done."""
    seconds: float = 0.0
    """Seconds that it took to open it; most of them unpack an archive."""
    _temporary: PrivateFolder | None = None
    _held: list[int] = field(default_factory=list)
    """Descriptors of files that have no name."""
    _pinned: list[int] = field(default_factory=list)
    """Descriptors of files that other users can replace."""

    @property
    def sources(self) -> tuple[Source, ...]:
        """All sources, by path."""
        return tuple(self.files)

    def temporary(self) -> Path:
        """A private folder (mode 0700) that `close` removes."""
        if self._temporary is None:
            from raydoctor.capture.temporary import private_folder  # most captures need none

            try:
                self._temporary = private_folder()
            except OSError as error:
                raise RaydoctorError(
                    f"cannot make a temporary folder: {error.strerror or error}",
                    "Set TMPDIR to a folder that can be written to.",
                ) from None
        return self._temporary.path

    def add(self, path: str, data: bytes) -> None:
        """Add a collected file, if a diagnosis reads such a file."""
        if source := identify(path, len(data)):
            self.files[source] = self._hold(data)

    def _hold(self, data: bytes) -> str:
        """Keep bytes so that they can be read by path: in memory if possible, as the disk may be full."""
        if sys.platform == "linux" and len(self._held) < _MOST_HELD:
            number = os.memfd_create("raydoctor")
            self._held.append(number)
            with open(number, "wb", closefd=False) as out:
                out.write(data)
            return f"/proc/{os.getpid()}/fd/{number}"
        import tempfile

        handle, name = tempfile.mkstemp(dir=self.temporary())
        with open(handle, "wb") as out:
            out.write(data)
        return name

    def pin(self, name: str, folder: int | None = None) -> str:
        """A path that leads to this file while the capture is open, even if another user replaces the file.

        Empty for a link, and for what is not a regular file. Raises OSError.
        """
        if not _CAN_PIN:
            return name
        if not _has_room(len(self._pinned)):
            raise OSError(errno.EMFILE, "too many files that other users can replace")
        number = os.open(name, _PINNED, dir_fd=folder)
        if not stat.S_ISREG(os.fstat(number).st_mode):
            os.close(number)
            return ""
        self._pinned.append(number)
        return f"/proc/{os.getpid()}/fd/{number}"

    def close(self) -> None:
        """Remove the private folder."""
        for descriptors in (self._held, self._pinned):
            while descriptors:
                os.close(descriptors.pop())
        if self._temporary is not None:
            self._temporary.remove()
            self._temporary = None

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_capture(  # noqa: PLR0913 - each has a default
    path: str | None = None,
    driver_log: str | None = None,
    text: str | None = None,
    report: ReportBytes = lambda done, total: None,
    session: str = "",
    *,
    owner: int | None = None,
) -> Capture:
    """Open a path with any supported layout, or this machine's session.

    `driver_log` adds one file (`-`: standard input) as driver output, and so does `text`. `report` is called
    while an archive is unpacked. `session`: of several sessions the one to read; by default the newest.
    `owner`: the user to whom a folder must belong. Raises RaydoctorError if there is nothing to read.
    """
    began = time.monotonic()
    driver_alone = path is None and (driver_log is not None or text is not None)
    name = driver_log if driver_log is not None else _TEXT
    capture = Capture(name, "driver", {}) if driver_alone else _open(path, report, session, owner)
    try:
        if driver_log is not None:
            _add_driver_log(capture, driver_log, driver_log)
        if text is not None:
            copy = f"driver-{next(capture.numbers)}.log"
            data = text.encode("utf-8", "surrogateescape")
            source = _spooled(capture, _TEXT, BytesIO(data), copy)
            capture.files[source] = str(capture.temporary() / copy)
        _decode(capture)
        _split_pastes(capture)
        _take_apart(capture, capture.files)
        _rewrite_consoles(capture, capture.files)
    except OSError as error:
        capture.close()
        raise _unprepared(error) from error
    except BaseException:
        capture.close()
        raise
    capture.seconds = time.monotonic() - began
    return capture


def _unprepared(error: OSError) -> Exception:
    """The error of a capture that cannot be copied or decoded into the temporary folder."""
    if error.errno not in NO_ROOM:
        return error
    why = f"cannot prepare the capture in {owners.temporary_parent()}: {error.strerror}"
    return RaydoctorError(why, _MORE_ROOM)


def _open(path: str | None, report: ReportBytes, wanted: str, owner: int | None) -> Capture:
    if path is None:
        choice = session.this_machine()
        return _from_folder(choice.path, [choice.note] if choice.note else [], wanted)
    given = Path(path)
    try:
        status = given.stat()
        mode = status.st_mode
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise RaydoctorError(f"cannot read {path}: {why}", _LOOKED_FOR) from None
    except ValueError as error:  # an embedded NUL
        raise RaydoctorError(f"cannot read {path!r}: {error}", _LOOKED_FOR) from None
    if stat.S_ISDIR(mode):
        capture = _from_folder(given, [], wanted, owner)
    elif not stat.S_ISREG(mode):
        raise RaydoctorError(f"cannot read {path}: neither a file nor a folder", _LOOKED_FOR)
    else:
        capture = _from_named_file(given, report, wanted)
    if status.st_uid not in owners.trusted():
        capture.notes.append(f"{path} belongs to user {owners.user(status.st_uid)}")
    return capture


def _from_named_file(path: Path, report: ReportBytes, wanted: str) -> Capture:
    capture = Capture(str(path), "file", {}, session=wanted)
    try:
        file = _pinned(path, capture)
        if _holds_archive(path.name, file):
            _add_archive(capture, file, report)
        else:
            _add_file(capture, path, file)
    except BaseException:
        capture.close()
        raise
    return capture


def _pinned(path: Path, capture: Capture) -> Path:
    """The path by which a named file is read. Raises RaydoctorError if it was replaced by something else."""
    real, file = os.path.realpath(path), ""
    above = os.path.dirname(real)
    try:
        handle = os.open(above, _FOLDER)
        try:
            place = owners.opened_path(handle)
            if not owners.is_shared(handle, place):
                return path
            file = capture.pin(os.path.basename(real), handle) if place in ("", above) else ""
        finally:
            os.close(handle)
    except PermissionError:
        return path  # in a folder that this user may not list
    except OSError as error:
        raise RaydoctorError(f"cannot read {path}: {error.strerror}", _LOOKED_FOR) from None
    if not file:
        raise RaydoctorError(f"cannot read {path}: it was replaced meanwhile", _LOOKED_FOR)
    return Path(file)


def _holds_archive(name: str, file: Path) -> bool:
    """Whether a file is an archive, by its name or else by its content."""
    if is_archive(name):
        return True
    from raydoctor.capture import members

    try:
        return members.is_archive(file)
    except OSError:
        return False  # reading it reports why


def _from_folder(folder: Path, notes: list[str], wanted: str, owner: int | None = None) -> Capture:
    known = session.names_in(folder)
    archives = _archives(folder)
    if not wanted and (choice := session.latest_in(folder, is_named=True)):
        notes = [*notes, choice.note] if choice.note else notes
        folder = choice.path
    capture = Capture(
        str(folder), _kind(folder), {}, notes=notes, session=wanted, sessions=known, owner=owner
    )
    _walk(folder, capture)
    if all(source.role in contents.ROLES for source in capture.files):
        known = _paths(capture)
        texts = {s: file for s, file in _texts(folder, capture).items() if s.path not in known}
        capture.files.update(texts)
        if names := [source.path for source in texts if source.role == "driver"]:
            capture.notes.append(
                paste.text("treated as the output of programs: {names}", names=names)
            )
    if not capture.files and not capture.gaps:
        raise RaydoctorError(f"no Ray logs in {folder}", archives.hint if archives else _LOOKED_FOR)
    if archives:
        capture.gaps.append(archives)
    return capture


def _archives(folder: Path) -> Gap | None:
    """A gap for archives beside the files of a folder, such as one per node: they are not unpacked."""
    try:
        names = sorted(n for n in islice(os.listdir(folder), ENTRIES) if is_archive(n))
    except OSError:
        return None  # the walk reports why
    if not names:
        return None
    return Gap(
        join_names(names),
        "not read: raydoctor unpacks an archive only if it is the PATH",
        paste.shell(
            "Unpack each into a folder of its own there, or run: raydoctor diagnose {path:path}",
            path=str(folder / names[0]),
        ),
    )


def _texts(folder: Path, capture: Capture) -> dict[Source, str]:
    """The few text files of a folder without Ray's logs: saved outputs of programs."""
    found: dict[Source, str] = {}
    try:
        handle = os.open(folder, _FOLDER)
    except OSError:
        return {}  # the walk reports why
    is_shared = owners.is_shared(handle, owners.opened_path(handle))
    with suppress(OSError), os.scandir(handle) as scan:
        entries = sorted(islice(scan, ENTRIES), key=lambda each: each.name)
        listed = _Listed(str(folder), "", entries, handle, is_shared, None)
        for entry in entries:
            if not entry.is_file(follow_symlinks=False) or entry.name.startswith("."):
                continue
            if read_name(entry.name):
                continue  # the walk read it, or says why not
            size = entry.stat(follow_symlinks=False).st_size
            is_named = Path(entry.name).suffix.lower() in _TEXT_SUFFIXES
            file = _file(listed, entry.name, capture, []) if is_named and size else ""
            if file and form_of(file, size) != BINARY:
                role = contents.role_of(file) or "driver"
                found[Source(entry.name, role, size=size)] = file
    os.close(handle)
    is_few = len(found) <= _MOST_TEXTS and sum(source.size for source in found) <= _MOST_TEXT
    return found if is_few else {}


def _kind(folder: Path) -> str:
    if folder.name.startswith("session_"):
        return "session"
    return "logs" if folder.name == "logs" else "tree"


def _add_archive(capture: Capture, file: Path, report: ReportBytes) -> None:
    from raydoctor.capture import archive  # tarfile, zipfile, lzma: 15 ms that folders need not pay

    capture.kind = "archive"
    capture.budget.report = report
    inside = capture.temporary() / "archive"
    inside.mkdir()
    capture.budget.limit_to_room(inside)
    unpacked = archive.unpack(file, inside, capture.budget, os.path.basename(capture.path))
    capture.gaps += unpacked.gaps
    _walk(inside, capture)
    _add_empty(capture, unpacked.empty)
    if not capture.files and not capture.gaps:
        raise RaydoctorError(f"no Ray logs in {capture.path}", _LOOKED_FOR)


def _add_empty(capture: Capture, paths: list[str]) -> None:
    """Add files that exist and are empty."""
    empty = capture.temporary() / "empty"
    empty.touch()
    known = _paths(capture)
    found = [identify(path) for path in dict.fromkeys(paths) if path not in known]
    files = {**capture.files, **{source: str(empty) for source in found if source}}
    capture.files = dict(sorted(files.items(), key=lambda item: item[0].path))


def _add_file(capture: Capture, path: Path, file: Path) -> None:
    size = file.stat().st_size
    source = identify(path.name, size) or Source(
        path.name, contents.role_of(str(file)) or "driver", size=size
    )
    if not os.access(file, os.R_OK):
        hint = paste.shell("Try: sudo raydoctor diagnose {path:path}", path=str(path))
        raise RaydoctorError(f"cannot read {path}: permission denied", hint)
    capture.files[source] = str(file)


def _walk(root: Path, capture: Capture) -> None:
    """Add every source below `root`. Links are not followed, which excludes loops and files outside."""
    found: list[tuple[str, str, Source]] = []
    unnamed: list[tuple[str, str, Source]] = []
    missed: list[Gap] = []
    try:
        for listed in _folders(root, capture, missed):
            _take_files(listed, capture, found, unnamed, missed)
    except TooMuchError as error:
        hint = "Give the folder of one session: raydoctor …/session_*/"
        missed.append(Gap(str(root), f"{error}; the rest was not read", hint))
    for path, file, source in sorted(unnamed)[:_MOST_UNNAMED]:
        if role := contents.role_of(file):
            found.append((path, file, replace(source, role=role)))
        elif contents.is_announced(os.path.basename(path)) and os.access(file, os.R_OK):
            missed.append(
                Gap(
                    path,
                    "is not recognized as an output of kubectl or Slurm; not read",
                    _SAVE_AGAIN,
                )
            )
    for owner, path in capture.others.items():
        capture.notes.append(f"{path} belongs to user {owners.user(owner)}")
    found = _of_one_cluster(root, sorted(found), capture)
    capture.files.update((source, file) for _, file, source in found)
    for _, file, source in found:
        if source.role == "manifest":
            missed += manifest.gaps_of(file)
    capture.gaps += missed[:_MOST_GAPS]
    if (more := len(missed) - _MOST_GAPS) > 0:
        capture.gaps.append(Gap(str(root), f"{more:,} further files and folders are not read"))


class _Listed(NamedTuple):
    """An open folder and its entries."""

    path: str
    relative: str
    entries: list[os.DirEntry[str]]
    handle: int
    is_shared: bool
    """Whether another user can replace its entries, or a folder above it."""
    owner: int | None
    """Of the session that the folder belongs to; None outside of sessions."""


def _folders(root: Path, capture: Capture, missed: list[Gap]) -> Iterator[_Listed]:
    """Every folder below `root`, its entries while it is open. Raises TooMuchError."""
    folders: list[tuple[str, str, bool, int | None]] = [(str(root), "", False, None)]
    top = ""
    while folders:
        folder, relative, is_shared, owner = folders.pop()
        try:
            handle = os.open(folder, _FOLDER | (os.O_NOFOLLOW if relative else 0))
        except OSError as error:
            why = f"cannot be listed: {error.strerror}"
            hint = paste.shell("Try: sudo raydoctor diagnose {path:path}", path=folder)
            is_refused = error.errno in (errno.EACCES, errno.EPERM)
            missed.append(Gap(relative or folder, why, hint if is_refused else ""))
            continue
        try:
            top = top or owners.opened_path(handle)
            if relative and top and owners.opened_path(handle) != os.path.join(top, relative):
                missed.append(Gap(relative, "was replaced while it was read; not followed"))
                continue
            if not relative and capture.owner not in (None, os.fstat(handle).st_uid):
                missed.append(Gap(folder, "was replaced while it was read; not followed"))
                continue
            is_shared = is_shared or owners.is_shared(handle, top if not relative else "")
            begins = os.path.basename(relative) if relative else _session_of(top or folder)
            owner = os.fstat(handle).st_uid if session.is_session(begins) else owner
            with os.scandir(handle) as scan:
                entries = list(islice(scan, ENTRIES + 1))
            capture.budget.list_entries(len(entries))
            entries = _one_session(folder, entries, capture)
            yield _Listed(folder, relative, entries, handle, is_shared, owner)
            folders += (
                (f"{folder}/{entry.name}", _below(relative, entry.name), is_shared, owner)
                for entry in entries
                if entry.is_dir(follow_symlinks=False) and not _is_skipped(entry.name)
            )
        except OSError as error:
            missed.append(Gap(relative or folder, f"cannot be listed: {error.strerror}"))
        finally:
            os.close(handle)


def _below(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _take_files(
    listed: _Listed,
    capture: Capture,
    found: list[tuple[str, str, Source]],
    unnamed: list[tuple[str, str, Source]],
    missed: list[Gap],
) -> None:
    """Add the sources among a folder's entries, and the files that only their content can name."""
    label = node_label(listed.relative)
    # Descriptors may run out: those of Ray's daemons come first.
    entries = sorted(listed.entries, key=_is_of_worker) if listed.is_shared else listed.entries
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            continue
        path = _below(listed.relative, entry.name)
        if name := read_name(entry.name):
            size = _size(entry, path, missed)
            if size >= 0 and (file := _file(listed, entry.name, capture, missed)):
                source = source_of(name, path, label, size)
                if _is_believed(listed, source, file, capture, missed):
                    found.append((path, file, source))
        elif _is_link_to_logs(listed, entry):
            missed.append(Gap(path, "is a symbolic link; not followed", "Copy the folder itself."))
        elif contents.is_candidate(entry.name):
            is_announced = contents.is_announced(entry.name)
            # Of other files, nothing says that a diagnosis would need them.
            size = _size(entry, path, missed if is_announced else [])
            file = _file(listed, entry.name, capture, missed) if size > 0 else ""
            if not file:
                continue
            if is_announced and not os.access(file, os.R_OK):
                missed.append(Gap(path, "cannot be read: Permission denied"))
            unnamed.append((path, file, Source(path, "", label, size=size)))


def _is_of_worker(entry: os.DirEntry[str]) -> bool:
    return "worker-" in entry.name


def _file(listed: _Listed, name: str, capture: Capture, missed: list[Gap]) -> str:
    """The path by which a file is read; empty, with a gap, for what has replaced it."""
    if not listed.is_shared:
        return f"{listed.path}/{name}"
    hint = ""
    try:
        file = capture.pin(name, listed.handle)
        why = "" if file else "was replaced while it was read; not followed"
    except OSError as error:
        file, why = "", f"cannot be read: {error.strerror}"
        hint = _LIMIT if error.errno == errno.EMFILE else ""
    if why:
        missed.append(Gap(_below(listed.relative, name), why, hint))
    return file


def _is_believed(
    listed: _Listed, source: Source, file: str, capture: Capture, missed: list[Gap]
) -> bool:
    """Whether a file in a session is what Ray wrote there: Ray lets every user create files in its folders.

    A driver of another user writes its own logs. They are read, and their owner is named.
    """
    if listed.owner is None or not listed.is_shared:
        return True
    try:
        owner = os.stat(file).st_uid
    except OSError:
        return True  # reading it fails as well, and says why
    if owner == listed.owner or owner in owners.trusted():
        return True
    whose = f"belongs to user {owners.user(owner)}"
    if source.role in _OF_DRIVERS or (source.role in _OF_EVENTS and source.pid):
        capture.others.setdefault(owner, source.path)
        return True
    session_of = f"the session to user {owners.user(listed.owner)}"
    missed.append(Gap(source.path, f"{whose}, {session_of}: not written by Ray; not read"))
    return False


def _is_link_to_logs(listed: _Listed, entry: os.DirEntry[str]) -> bool:
    """Whether a link has the name of a folder with logs. Where it leads is not looked up."""
    is_below = os.path.basename(listed.path) == "logs" and entry.name in SUBFOLDERS_OF_LOGS
    return (is_below or entry.name == "logs") and entry.is_symlink()


def _has_room(held: int) -> bool:
    """Whether this process may open more files; the limit is raised as far as it may be."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_PINNED if hard == resource.RLIM_INFINITY else min(hard, _MOST_PINNED)
    if soft != resource.RLIM_INFINITY and held >= soft - _SPARE and soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    return soft == resource.RLIM_INFINITY or held < soft - _SPARE


def _session_of(path: str) -> str:
    """The session that a path lies in; empty if in none."""
    return next((part for part in path.split("/") if session.is_session(part)), "")


def _of_one_cluster(
    root: Path, found: list[tuple[str, str, Source]], capture: Capture
) -> list[tuple[str, str, Source]]:
    """The files of one cluster, of all that a KubeRay History Server keeps: those of the newest session.

    It keeps the sessions of each cluster in a folder of their own, below `cluster-history/`.
    """
    wanted = capture.session
    sessions = sorted({name for path, _, _ in found if (name := _session_of(path))})
    if (
        not wanted
        and len(sessions) > 1
        and any("cluster-history/" in f"{root}/{f[0]}" for f in found)
    ):
        wanted = sessions[-1]
        others = join_names(reversed(sessions[:-1]))
        note = "reading {wanted}, the newest session; to read another: --session NAME ({others})"
        capture.notes.append(paste.text(note, wanted=wanted, others=others))
    capture.sessions.update(sessions)
    if not wanted:
        return found
    if not any(source.role == "export" for _, _, source in found) and (
        wanted not in sessions and wanted != root.name
    ):
        hint = paste.text("Sessions: {known}", known=join_names(sessions) or "none")
        raise RaydoctorError(f"no session {wanted} in {root}", hint)
    return [each for each in found if _session_of(each[0]) in ("", wanted)]


def _one_session(
    folder: str, entries: list[os.DirEntry[str]], capture: Capture
) -> list[os.DirEntry[str]]:
    """Of several sessions in one folder, only the latest: the others belong to other clusters."""
    sessions = {
        e.name for e in entries if session.is_session(e.name) and e.is_dir(follow_symlinks=False)
    }
    capture.sessions.update(sessions)
    if capture.session:
        for entry in entries:
            owner = entry.stat(follow_symlinks=False).st_uid if entry.name == capture.session else 0
            if owner and owner not in owners.trusted():
                capture.notes.append(f"{entry.path} belongs to user {owners.user(owner)}")
        return entries
    choice = session.latest_in(Path(folder), is_named=True) if len(sessions) > 1 else None
    if choice is None or choice.path.name not in sessions:
        return entries
    capture.notes.append(choice.note)
    return [e for e in entries if e.name not in sessions - {choice.path.name}]


def _is_skipped(folder: str) -> bool:
    return folder in SKIPPED_FOLDERS or folder.startswith(SKIPPED_PREFIXES)


def _size(entry: os.DirEntry[str], path: str, gaps: list[Gap]) -> int:
    """A file's size; -1, with a gap if needed, for an entry that is not read."""
    try:
        if entry.is_file(follow_symlinks=False):
            return entry.stat(follow_symlinks=False).st_size
        if entry.is_symlink():
            gaps.append(Gap(path, "is a symbolic link; not followed", "Copy the file itself."))
        else:
            gaps.append(Gap(path, "is a pipe, a socket or a device; not read"))
    except OSError as error:
        gaps.append(Gap(path, f"cannot be read: {error.strerror}"))
    return -1


def add_driver_log(capture: Capture, name: str, file: str = "") -> None:
    """Add a file (`-`: standard input) as driver output; `file`: where its bytes are, if not at that path.

    Raises RaydoctorError where it cannot be read.
    """
    known = set(capture.files)
    try:
        _add_driver_log(capture, name, file or name)
        _decode(capture, set(capture.files) - known)
        _take_apart(capture, set(capture.files) - known)
        _rewrite_consoles(capture, set(capture.files) - known)
    except OSError as error:
        raise _unprepared(error) from error


def add_driver_output(capture: Capture, shown: str, stream: IO[bytes], pid: int, most: int) -> None:
    """Add at most the first `most` bytes of a running driver's output, under this name.

    Raises OSError if they cannot be copied, RaydoctorError without a temporary folder.
    """
    known = set(capture.files)
    copy = capture.temporary() / f"driver-{next(capture.numbers)}.log"
    try:
        source = replace(_spooled(capture, shown, stream, copy.name, most), pid=pid)
    except OSError:
        copy.unlink(missing_ok=True)  # a full disk has no room for half a file
        raise
    capture.files[source] = str(copy)
    _decode(capture, set(capture.files) - known)
    _take_apart(capture, set(capture.files) - known)
    _rewrite_consoles(capture, set(capture.files) - known)


def _add_driver_log(capture: Capture, name: str, file: str) -> None:
    if name == "-":
        capture.files[_spooled(capture, "<stdin>", sys.stdin.buffer)] = str(_spool(capture))
        return
    try:
        status = os.stat(file)
        if stat.S_ISFIFO(status.st_mode):  # `--driver-log <(kubectl logs …)`
            with open(file, "rb") as stream:
                capture.files[_spooled(capture, name, stream)] = str(_spool(capture))
            return
        if not stat.S_ISREG(status.st_mode):
            raise OSError(None, "neither a file nor a pipe")
        open(file, "rb").close()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise RaydoctorError(
            f"cannot read the driver log {name}: {why}",
            "Give the file that holds the driver's output, or - for standard input.",
        ) from None
    shown = name if name not in _paths(capture) else f"{name} (driver)"
    role = contents.role_of(file) or "driver"
    capture.files[Source(shown, role, size=status.st_size)] = file


def _spool(capture: Capture) -> Path:
    return capture.temporary() / _SPOOLED


def _spooled(
    capture: Capture,
    shown: str,
    stream: IO[bytes],
    name: str = _SPOOLED,
    most: int | None = None,
) -> Source:
    """The source of a stream, kept in the private folder: reading seeks."""
    with (capture.temporary() / name).open("wb") as out:
        left = most = STREAM_LIMIT if most is None else most
        while left > 0 and (chunk := stream.read(min(left, 1 << 20))):
            left -= out.write(chunk)
    if left <= 0:
        why = f"more than {most >> 20:,} MiB; the rest was not read"
        capture.gaps.append(Gap(shown, why, "Give it as a file.", about="driver"))
    role = contents.role_of(str(capture.temporary() / name)) or "driver"
    return Source(shown, role, size=most - left)


def _paths(capture: Capture) -> set[str]:
    return {source.path for source in capture.files}


def _decode(capture: Capture, sources: Iterable[Source] | None = None) -> None:
    """Decode files that are not plain text into the private folder; their names in the capture stay."""
    forms = _forms(capture.files if sources is None else {s: capture.files[s] for s in sources})
    replaced: dict[Source, tuple[Source, str]] = {}
    for source, form in forms.items():
        if form == BINARY:
            if source.role not in _JUDGED:
                capture.gaps.append(Gap(source.path, "is not text", _NOT_TEXT))
            continue
        target = capture.temporary() / f"decoded-{next(capture.numbers)}"
        capture.budget.allow(source.size)
        capture.budget.limit_to_room(target.parent)
        if why := decode(capture.files[source], form, target, capture.budget):
            capture.gaps.append(Gap(source.path, why, _MORE_ROOM if why == FULL else _NOT_TEXT))
        if target.exists():
            now = replace(source, size=target.stat().st_size)
            replaced[source] = (now, str(target))
    if replaced:
        capture.files = dict(replaced.get(item[0], item) for item in capture.files.items())


def _forms(files: Mapping[Source, str]) -> dict[Source, str]:
    """The files that are not plain text, and their forms.

    Of tens of thousands of workers' files, a sample is checked, and all of them if one needs decoding.
    """
    workers = [source for source in files if source.role in _OF_WORKERS]
    apart = set(workers) if len(workers) > _LOOKED_INTO else set()
    first = [source for source in files if source not in apart]
    first += workers[:: len(workers) // _LOOKED_INTO + 1] if apart else []
    forms = {source: form_of(files[source], source.size) for source in first}
    if apart and any(forms.values()):
        rest = [source for source in files if source not in forms]
        forms.update({source: form_of(files[source], source.size) for source in rest})
    return {source: form for source, form in forms.items() if form}


def _split_pastes(capture: Capture) -> None:
    """Give a paste of logs and output of kubectl to the readers of both."""
    texts = [s for s in capture.files if s.role in ("driver", "kubernetes")]
    if not 0 < len(texts) <= _MOST_TEXTS:
        return
    from raydoctor.capture import mixed  # few captures of a session hold such a text

    for source in texts:
        if not 0 < source.size <= mixed.LIMIT:
            continue
        try:
            data = Path(capture.files[source]).read_bytes()
        except OSError:
            continue  # reading it reports why
        if not any(word in data for word in mixed.WORDS):
            continue
        parts = mixed.split(text_of(data), is_of_kubernetes=source.role == "kubernetes")
        if parts is None:
            continue
        file = capture.files.pop(source)
        capture.originals[source.path, source.pid] = (source, file)
        for role, part in (("kubernetes", parts.objects), ("driver", parts.rest)):
            target = capture.temporary() / f"part-{next(capture.numbers)}"
            target.write_text(part, encoding="utf-8", errors="replace", newline="")
            own = replace(source, role=role, size=target.stat().st_size)
            capture.files[own] = str(target)


def _take_apart(capture: Capture, sources: Iterable[Source]) -> None:
    """Replace the exports of log stores among the sources by the files in them."""
    wanted = {source for source in sources if source.role == "export"}
    if not wanted:
        return
    from raydoctor.capture.exports import files, streams  # few captures hold one

    has_logs = any(source.role not in (*contents.ROLES, *CONSOLES) for source in capture.files)
    result: dict[Source, str] = {}
    for source, file in capture.files.items():
        if source not in wanted:
            result[source] = file
            continue
        try:
            capture.budget.allow(source.size)
            folder = capture.temporary()
            capture.budget.limit_to_room(folder)
            into = streams.Streams(folder, capture.numbers, capture.budget)
            parts = files.parts_of(source, file, into, capture.session)
        except OSError as error:
            why = f"cannot be taken apart: {error.strerror or error}"
            hint = "Set TMPDIR to a folder with room."
            capture.gaps.append(Gap(source.path, why, hint))
            parts = None
        if parts is None:
            if capture.kind in ("file", "driver") or not has_logs:
                result[replace(source, role="driver")] = file
            else:
                note = "Not read, because its records name no pod, container or file: {path}"
                capture.notes.append(paste.text(note, path=source.path))
            continue
        capture.gaps += parts.gaps
        capture.notes += parts.notes
        capture.sessions |= parts.sessions
        for part, target in parts.files.items():
            capture.originals[part.path, part.pid] = (source, file)
            result[part] = target
    capture.files = result


def _rewrite_consoles(capture: Capture, sources: Iterable[Source]) -> None:
    """Replace the consoles among the sources by what is read of them."""
    if not any(source.role in CONSOLES for source in sources):
        return
    from raydoctor.capture.console import files  # few captures of a session hold one

    try:
        known = capture.files
        capture.files = files.rewritten(
            known, capture.temporary(), capture.numbers, capture.gaps, sources
        )
        replaced = known.keys() - capture.files.keys()
        for source in replaced:
            capture.originals.setdefault((source.path, source.pid), (source, known[source]))
    except (OSError, RaydoctorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        why = f"cannot be prepared for reading: {reason}"
        capture.gaps.append(Gap("the driver's output", why, _MORE_ROOM))

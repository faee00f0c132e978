"""A folder that only one user can access, for files shared by that user's processes and raydoctor.

`/run/user/UID/raydoctor` where the system has made such a folder (pam_systemd(8), the XDG base directory
specification), else `/tmp/raydoctor-UID`. Both sides derive the path from the user id, because their
environment variables may differ. The system removes the first folder when the user logs out, so files that
must be kept (`lasting`) prefer the second.

Every local user can create files in /tmp, and root may act for a user who replaces folders by links at the
same time. Therefore:

- A folder is opened once, without following a link, and must belong to that user alone (fstat(2)).
- Its files are named relative to that descriptor, and opened without following links and without blocking.
- Only regular files that belong to that user and that no other user can write are used; reads have a limit.
- For another user, the kernel checks every path as that user (setfsuid(2)), who owns new files.

Uses only the standard library: `arm.py` loads this file in processes without raydoctor.
"""

from __future__ import annotations

import _thread
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import islice
from typing import Any

MOST = 1 << 20
"""Bytes that are read of a file at most."""
_MOST_NAMES, _MOST_FORGOTTEN = 10_000, 1000
_SHARED = "/tmp"
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FILE = _NO_LINK | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_FOLDER = _NO_LINK | getattr(os, "O_DIRECTORY", 0) | os.O_RDONLY


def places(user: int) -> tuple[tuple[str, str], ...]:
    """Where that user's folder may be, the preferred place first: the parent folder and the name in it."""
    return ((f"/run/user/{user}", "raydoctor"), (_SHARED, f"raydoctor-{user}"))


class Folder:
    """An open folder of one user. Every method raises OSError if a file has the wrong type, owner or mode."""

    __slots__ = ("_fd", "group", "path", "user")

    def __init__(self, fd: int, path: str, user: int, group: int) -> None:
        self._fd, self.path, self.user, self.group = fd, path, user, group
        try:
            _require(os.fstat(fd), user, stat.S_IFDIR, 0o077, path)
        except OSError:
            self.close()
            raise

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it. All methods raise OSError afterwards."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def folder(self, name: str, create: bool = False) -> Folder:
        """A subfolder, created if `create` is set."""
        with acting_as(self.user, self.group):
            path = os.path.join(self.path, name)
            return _in(self._fd, path, self.user, self.group, create=create)

    def names(self) -> list[str]:
        """Names of its files, at most 10,000."""
        with os.scandir(self._fd) as entries:
            return [each.name for each in islice(entries, _MOST_NAMES)]

    def status(self, name: str) -> os.stat_result:
        """The status of a file. Raises PermissionError for a link and for a file of another user."""
        found = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        _require(found, self.user, stat.S_IFREG, 0o022, name)
        return found

    def has(self, name: str) -> bool:
        """Whether the file exists and can be used."""
        with suppress(OSError):
            return bool(self.status(name))
        return False

    def read(self, name: str, most: int = MOST) -> bytes:
        """The content of a file. Raises OSError if it has more than `most` bytes."""
        with os.fdopen(self._open(name, os.O_RDONLY), "rb", buffering=0) as stream:
            pieces, left = [], most + 1
            while left and (piece := stream.read(left)):
                pieces.append(piece)
                left -= len(piece)
        if not left:
            raise OSError(errno.EFBIG, f"it has more than {most} bytes", name)
        return b"".join(pieces)

    def write(self, name: str, data: bytes) -> None:
        """Create or replace a file atomically."""
        # Named so that `forget_the_dead` removes it if this process is killed meanwhile.
        fresh = f"new-{os.getpid()}-{_thread.get_ident()}-{name}"
        with suppress(FileNotFoundError):
            self.remove(fresh)
        with os.fdopen(self._open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as stream:
            stream.write(data)
        self.rename(fresh, name)

    def append(self, name: str, data: bytes, create: bool = False) -> None:
        """Append with one write, so that several processes can append at the same time."""
        file = self._open(name, os.O_WRONLY | os.O_APPEND | (os.O_CREAT if create else 0))
        try:
            if os.write(file, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        finally:
            os.close(file)

    def link(self, name: str, target: str) -> None:
        """Create or replace a symbolic link."""
        fresh = f"new-{os.getpid()}-{_thread.get_ident()}-{name}"
        with acting_as(self.user, self.group):
            with suppress(OSError):
                if os.readlink(name, dir_fd=self._fd) == target:
                    return
            with suppress(FileNotFoundError):
                os.unlink(fresh, dir_fd=self._fd)
            os.symlink(target, fresh, dir_fd=self._fd)
        self.rename(fresh, name)

    def rename(self, old: str, new: str) -> None:
        """Rename a file within the folder."""
        with acting_as(self.user, self.group):
            os.rename(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def remove(self, name: str) -> None:
        """Remove a file, or a link."""
        with acting_as(self.user, self.group):
            os.unlink(name, dir_fd=self._fd)

    def forget_the_dead(self) -> None:
        """Remove files `WHAT-PID-…` of processes that have ended."""
        for name in self.names()[:_MOST_FORGOTTEN]:
            pid = name.split("-")[1] if name.count("-") >= 2 else ""
            if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
                with suppress(OSError):  # another process removed it
                    self.remove(name)

    def _open(self, name: str, flags: int) -> int:
        with acting_as(self.user, self.group):
            file = os.open(name, flags | _FILE, 0o600, dir_fd=self._fd)
        try:
            _require(os.fstat(file), self.user, stat.S_IFREG, 0o022, name)
        except OSError:
            os.close(file)
            raise
        return file


def opened(path: str, user: int | None = None, group: int = -1) -> Folder:
    """The folder with that path, which belongs to `user` (default: this user). Raises OSError."""
    owner = os.geteuid() if user is None else user
    with acting_as(owner, group):
        return Folder(os.open(path, _FOLDER), path, owner, group)


def make_private(path: str) -> None:
    """Remove other users' access to a folder of this user. Raises OSError for links and others' folders.

    `os.makedirs` sets the mode of the last folder only, so older versions created readable parent folders.
    """
    fd = os.open(path, _FOLDER)
    try:
        _require(os.fstat(fd), os.geteuid(), stat.S_IFDIR, 0, path)
        os.fchmod(fd, 0o700)
    finally:
        os.close(fd)


def created(user: int | None = None, group: int = -1, lasting: bool = False) -> Folder:
    """The folder to write files to, created if it does not exist. Raises OSError.

    `lasting`: the files are still needed after the user has logged out.
    """
    owner = os.geteuid() if user is None else user
    problem: OSError | None = None
    for parent, name in places(owner)[:: -1 if lasting else 1]:
        try:
            with acting_as(owner, group):
                return _made(parent, name, owner, group)
        except OSError as error:
            # Most machines have no /run/user: the reason why /tmp cannot be used is more helpful.
            problem = problem if isinstance(problem, PermissionError) else error
    assert problem is not None
    raise problem


def existing(user: int | None = None, group: int = -1) -> Iterator[Folder]:
    """The existing folders of that user; each is closed after its iteration."""
    owner = os.geteuid() if user is None else user
    for parent, name in places(owner):
        with suppress(OSError), opened(os.path.join(parent, name), owner, group) as folder:
            yield folder


def distrusted() -> str:
    """Which folder with this user's name is ignored, and what may be missing as a result; else empty."""
    user = os.geteuid()
    for parent, name in places(user):
        path = os.path.join(parent, name)
        try:
            opened(path, user).close()
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EACCES, errno.ELOOP, errno.ENOTDIR):
                return (
                    f"{path} is ignored, with its records of vanished workers: "
                    "other users can access the folder, or own it"
                )
    return ""


@contextmanager
def acting_as(user: int, group: int) -> Iterator[None]:
    """Have the kernel check file accesses of this thread as that user's. Raises PermissionError."""
    if user == os.geteuid():
        yield
        return
    libc = _libc()
    nothing = 0xFFFFFFFF  # an invalid id: changes nothing and returns the current one
    groups = libc.setfsgid(group if group >= 0 else nothing)
    before = libc.setfsuid(user)
    try:
        if libc.setfsuid(nothing) != user:
            raise PermissionError(errno.EPERM, f"this user cannot act as user {user}")
        yield
    finally:
        libc.setfsuid(before)
        libc.setfsgid(groups)


@lru_cache(None)
def _libc() -> Any:
    import ctypes

    libc = ctypes.CDLL(None)
    for each in (libc.setfsuid, libc.setfsgid):
        each.argtypes, each.restype = [ctypes.c_uint], ctypes.c_uint
    return libc


def _made(parent: str, name: str, user: int, group: int) -> Folder:
    path = os.path.join(parent, name)
    if parent != _SHARED:
        with opened(parent, user, group) as runtime:
            return _in(runtime._fd, path, user, group, create=True)
    base = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _in(base, path, user, group, create=True)
    finally:
        os.close(base)


def _in(base: int, path: str, user: int, group: int, *, create: bool) -> Folder:
    name = os.path.basename(path)
    if create:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=base)
    return Folder(os.open(name, _FOLDER, dir_fd=base), path, user, group)


def _require(found: os.stat_result, user: int, kind: int, others: int, name: str) -> None:
    """Raise PermissionError unless type and owner are as given and no bit of `others` is set in the mode."""
    if stat.S_IFMT(found.st_mode) != kind or found.st_uid != user or found.st_mode & others:
        what = "folder" if kind == stat.S_IFDIR else "file"
        raise PermissionError(
            errno.EPERM, f"it is not a {what} that only user {user} can use", name
        )

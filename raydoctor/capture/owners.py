"""The users whose files and processes raydoctor trusts: the current user and root.

Any local user can create files in `/tmp/ray` and start processes with any name and arguments; only the kernel
knows the owner. Root trusts root, and the user who called `sudo`. Another user's files are read only if the
user names them, and never through a link that another user can move.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection
from contextlib import suppress
from functools import cache
from typing import NamedTuple

_ROOT = 0
_MOST_LINKS = 40
"""As Linux follows."""
_SYSTEM_TEMPORARY = ("/tmp", "/var/tmp")
_LONGEST_PATH = 4096


def trusted() -> frozenset[int]:
    """Users whose files and processes are used without a question."""
    calling = sudo_user()
    return frozenset({os.geteuid(), _ROOT} | ({calling} if calling is not None else set()))


def sudo_user() -> int | None:
    """The uid that called `sudo`; None without it, or where this does not run as root."""
    calling = os.environ.get("SUDO_UID", "")
    if os.geteuid() != _ROOT or not (calling.isascii() and calling.isdigit()):
        return None
    return int(calling) or None


def rank(uid: int | None) -> int:
    """The order in which users' clusters are chosen: our own, root's or that of the user behind `sudo`."""
    if uid == os.geteuid():
        return 0
    return 1 if uid in trusted() else 2


@cache
def user(uid: int) -> str:
    """The name of a user, or the number where it has none (containers)."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


def of_folder(path: str) -> int | None:
    """The uid of a folder's owner; None if there is no folder.

    For a link, its owner if the target has the same owner, otherwise -1, which is no user's uid.
    """
    try:
        link, found = os.lstat(path), os.stat(path)
    except OSError:
        return None
    return found.st_uid if stat.S_ISDIR(found.st_mode) and found.st_uid == link.st_uid else -1


def output_path(path: str) -> str:
    """The path without links, where a file is to be written; the file need not exist.

    Raises PermissionError if another user's link leads there, because it can name any file of this user, and
    for another user's pipe. The kernel's own check (`fs.protected_symlinks`) does not see what a program
    resolves itself.
    """
    rest = os.path.join(os.getcwd(), path).split("/")[::-1]
    done, followed = "/", 0
    while rest:
        name = rest.pop()
        if name in ("", ".", ".."):
            done = os.path.dirname(done) if name == ".." else done
            continue
        done = os.path.join(done, name)
        try:
            found = os.lstat(done)
        except FileNotFoundError:
            continue
        what = "link" if stat.S_ISLNK(found.st_mode) else "pipe"
        if not stat.S_ISLNK(found.st_mode) and not stat.S_ISFIFO(found.st_mode):
            continue
        if found.st_uid not in trusted():
            raise PermissionError(errno.EACCES, f"{done} is a {what} of {user(found.st_uid)}", path)
        if what == "pipe" or done.startswith("/proc/"):  # a link of /proc leads to an open file
            continue
        followed += 1
        if followed > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        leads_to = os.readlink(done)
        done = "/" if os.path.isabs(leads_to) else os.path.dirname(done)
        rest += leads_to.split("/")[::-1]
    return done


def is_shared(folder: int, path: str = "") -> bool:
    """Whether a user who is not trusted can replace the entries of an open folder.

    `path`: of the folder, to include those above it. Entries of a sticky folder are replaced by their owners.
    """
    found = [os.fstat(folder)]
    while path and path != (path := os.path.dirname(path)):
        with suppress(OSError):
            found.append(os.stat(path))
    known = trusted()
    return any(
        each.st_uid not in known
        or (_is_open(each) and not (each is not found[0] and each.st_mode & stat.S_ISVTX))
        for each in found
    )


def is_shared_path(path: str) -> bool:
    """The same of a folder that exists. Raises OSError."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return is_shared(folder, os.path.realpath(path))
    finally:
        os.close(folder)


def temporary_parent(longest: int = _LONGEST_PATH) -> str:
    """The folder for temporary files: `TMPDIR`, or a system's if another user can replace what is made in it.

    They could put a script of their own in the place of ours. `longest`: characters that the path may have.
    Raises OSError if there is none.
    """
    import tempfile

    chosen = tempfile.gettempdir()
    if not hasattr(os, "geteuid"):
        return chosen
    for path in map(os.path.realpath, (chosen, *_SYSTEM_TEMPORARY)):
        if len(path) <= longest and _keeps_entries(path):
            return path
    raise PermissionError(errno.EACCES, "other users can replace its files", chosen)


def _keeps_entries(path: str) -> bool:
    """Whether only trusted users can replace what they make in a folder. Its path has no links."""
    try:
        # Who owns the root of all paths can do that anyway; in a container it may be a user without a number.
        known = trusted() | {os.stat("/").st_uid}
        while True:
            found = os.lstat(path)
            is_kept = bool(found.st_mode & stat.S_ISVTX) or not _is_open(found)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid not in known or not is_kept:
                return False
            if path == (path := os.path.dirname(path)):
                return True
    except OSError:
        return False


def _is_open(folder: os.stat_result) -> bool:
    """Whether others may write into a folder; a group with the number of its owner has no other members."""
    if folder.st_mode & stat.S_IWGRP and folder.st_gid != folder.st_uid:
        return True
    return bool(folder.st_mode & stat.S_IWOTH)


def opened_path(handle: int) -> str:
    """The path of an open file or folder (Linux); empty if unknown."""
    try:
        return os.readlink(f"/proc/self/fd/{handle}")
    except OSError:
        return ""


class Content(NamedTuple):
    """The first bytes of a file, with its owner and time."""

    data: bytes
    owner: int
    changed: float
    """Epoch seconds."""


def read_regular(path: str, most: int, uids: Collection[int] | None = None) -> Content:
    """The first bytes of a regular file; `uids`: only of these users' files.

    Raises OSError, also for a file that is not regular: a link, a device, or a FIFO, which would block.
    """
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, "not a regular file", path)
        if uids is not None and found.st_uid not in uids:
            raise PermissionError(0, f"belongs to user {user(found.st_uid)}", path)
        return Content(os.read(file, most), found.st_uid, found.st_mtime)
    finally:
        os.close(file)


def state_folder() -> str:
    """raydoctor's folder for what it keeps, of the user that runs it, whatever the environment contains.

    `${XDG_STATE_HOME:-~/.local/state}/raydoctor` (the XDG base directory specification).
    """
    base, home = os.environ.get("XDG_STATE_HOME", ""), os.path.expanduser("~")
    if not (os.path.isabs(base) and _is_ours(base)):
        base = os.path.join(home if _is_ours(home) else _home(), ".local", "state")
    return os.path.join(base, "raydoctor")


def _is_ours(path: str) -> bool:
    """Whether a folder, or its closest existing parent, is ours or root's, and no other can change it."""
    while not os.path.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    with suppress(OSError):
        return os.stat(path).st_uid in (os.geteuid(), _ROOT) and not is_shared_path(path)
    return False


def _home() -> str:
    """The home folder in the password database; the environment is ignored."""
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:  # possible in a container
        return os.path.expanduser("~")

"""Files that raydoctor writes where the user names a path, also in a folder that another user may change.

The folder is opened once, and all that follows is relative to its descriptor. A user who may rename its
entries can therefore redirect neither the write nor a change of the mode to another file.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO

from raydoctor.capture import owners
from raydoctor.capture.temporary import done_if_ended

_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_KERNELS = "/proc/"
"""Only the kernel makes links there: `/dev/stderr` leads to one."""
_LONGEST = 200
"""Bytes of the name that a temporary name repeats: file systems permit 255."""


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """A file's folder, open, and its name in it; the file need not exist."""

    folder: int
    name: str
    path: str
    """Without links."""

    def open(self, flags: int, mode: int = 0o600) -> int:
        """Open the file itself: a link is refused, and a pipe without a reader is not waited for.

        Raises OSError.
        """
        own = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        own |= 0 if self._is_kernels else os.O_NOFOLLOW
        file = os.open(self.name, flags | own, mode, dir_fd=self.folder)
        os.set_blocking(file, True)
        return file

    def status(self) -> os.stat_result | None:
        """The file's status; None if there is none, or it cannot be read."""
        with suppress(OSError):
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=self._is_kernels)
        return None

    @contextmanager
    def replaced(self, mode: int) -> Iterator[BinaryIO]:
        """A new file that replaces the file when the block ends, unless it raises. Raises OSError."""
        fresh = f".{os.fsdecode(os.fsencode(self.name)[:_LONGEST])}.{os.urandom(4).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(fresh, flags, 0o600, dir_fd=self.folder)

        def unlink() -> None:
            with suppress(OSError):
                os.unlink(fresh, dir_fd=self.folder)

        try:
            with done_if_ended(unlink):
                with open(file, "wb") as out:
                    yield out
                    out.flush()
                    os.fchmod(file, mode)
                # Only now: a file system of another machine may report a full disk when a file is closed.
                os.replace(fresh, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
        except BaseException:
            unlink()
            raise

    def mode(self) -> int:
        """The mode of the replaced file; the default mode if there is none, or if it is another user's."""
        found = self.status()
        if found is not None and stat.S_ISREG(found.st_mode) and found.st_uid in owners.trusted():
            return found.st_mode & 0o777
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask

    @property
    def _is_kernels(self) -> bool:
        return self.path.startswith(_KERNELS)


@contextmanager
def place(path: str) -> Iterator[OutputPlace]:
    """The place where a file is to be written.

    Raises PermissionError where a link of another user leads, also one that appears meanwhile, and other
    OSErrors if the folder cannot be opened.
    """
    target = owners.output_path(path)
    above, name = os.path.split(target)
    folder = os.open(above, _FOLDER | (0 if target.startswith(_KERNELS) else os.O_NOFOLLOW))
    try:
        if not target.startswith(_KERNELS) and owners.opened_path(folder) not in ("", above):
            raise PermissionError(errno.EACCES, f"{above} was replaced meanwhile", path)
        yield OutputPlace(folder, name, target)
    finally:
        os.close(folder)

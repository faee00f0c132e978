"""Private temporary folders that are removed at the end of the process, however it ends.

A process holds a lock on its folder (`flock` on the folder itself). SIGTERM and SIGHUP remove the folder,
then end the process as they would without a handler. SIGKILL or a power cut leaves the folder behind. The
next process of this user that makes one removes it if its name has our form and no process holds the lock.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import FrameType

from raydoctor.capture import owners
from raydoctor.model.patterns import pattern

PREFIX = "raydoctor-tmp-"
_NAME = pattern(re.escape(PREFIX) + r"[a-z0-9_]{8}")
_SETTLED = 60.0
"""Seconds after which a folder without a lock is abandoned: it is locked right after it is made."""
_LOOKED_AT, _REMOVED, _SECONDS = 10_000, 20, 2.0
"""Entries of the temporary folder, abandoned folders, and seconds that one sweep takes at most."""
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


@dataclass(slots=True)
class PrivateFolder:
    """A folder (mode 0700) that exists until `remove` or the end of the process."""

    path: Path
    _lock: int
    _removal: Callable[[], None] = field(repr=False)

    def remove(self) -> None:
        """Remove the folder and all that is in it."""
        _run(self._removal)
        with suppress(OSError):
            os.close(self._lock)


def private_folder() -> PrivateFolder:
    """Make a folder in a temporary one. Raises OSError where it cannot be made."""
    parent = owners.temporary_parent()
    sweep(parent)
    path = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
    lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    _locks(lock)
    return PrivateFolder(Path(path), lock, _guard(lambda: shutil.rmtree(path, ignore_errors=True)))


@contextmanager
def done_if_ended(action: Callable[[], None]) -> Iterator[None]:
    """Run the action if a signal ends the process inside the block. It must not raise."""
    removal = _guard(action)
    try:
        yield
    finally:
        _forget(removal)


# ---------------------------------------------------------------- signals

_removals: dict[Callable[[], None], int] = {}
"""Functions that remove something, with the process that made it: a forked child must not remove it."""
_replaced: list[int] = []
"""Signals that have our handler."""


def _guard(removal: Callable[[], None]) -> Callable[[], None]:
    """Register a removal for the case that a signal ends this process. Existing handlers are kept."""
    _removals[removal] = os.getpid()
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, _end)
                _replaced.append(number)
    return removal


def _run(removal: Callable[[], None]) -> None:
    """Remove it now."""
    if _removals.get(removal) == os.getpid():
        removal()
    _forget(removal)


def _forget(removal: Callable[[], None]) -> None:
    _removals.pop(removal, None)
    if not _removals and threading.current_thread() is threading.main_thread():
        while _replaced:
            if signal.getsignal(number := _replaced.pop()) is _end:
                signal.signal(number, signal.SIG_DFL)


def _end(number: int, _: FrameType | None) -> None:
    """Remove everything, then end by the same signal, so that the exit status shows it."""
    for removal in list(_removals):
        _run(removal)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


# ---------------------------------------------------------------- abandoned folders


def sweep(parent: str) -> None:
    """Remove raydoctor's folders whose processes have exited; never fails, and takes at most seconds."""
    deadline = time.monotonic() + _SECONDS
    removed = 0
    with suppress(OSError), os.scandir(parent) as scan:
        for entry in islice(scan, _LOOKED_AT):
            if removed >= _REMOVED or time.monotonic() > deadline:
                return
            if _NAME.fullmatch(entry.name):
                removed += _remove_abandoned(entry.path)


def _remove_abandoned(path: str) -> bool:
    """Remove a folder if it is this user's, old enough and not locked. Links are not followed."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        status = os.fstat(folder)
        if (
            status.st_uid != os.geteuid()
            or stat.S_IMODE(status.st_mode) != 0o700
            or time.time() - status.st_ctime < _SETTLED
            or not _locks(folder)
            # Another process may have removed it meanwhile, and a third have made one of that name.
            or not os.path.samestat(status, os.lstat(path))
        ):
            return False
        shutil.rmtree(path, ignore_errors=True)
        return True
    except OSError:
        return False
    finally:
        os.close(folder)


def _locks(folder: int) -> bool:
    """Lock an open folder; False where another process holds the lock, or the system has none."""
    try:
        import fcntl

        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True

"""Past and present sessions of this machine and their raylets, from their folders, logs and sockets."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from raydoctor.capture.session import began, is_session
from raydoctor.model.patterns import pattern

_HEAD = 4096
_RAYLET_LINE = pattern(rb"\[[^\[\]]{0,200} (\d{1,20}) \1\] \(raylet\)")
"""`[2026-11-21 14:03:00,123 I 812 812] (raylet) main.cc:…`, in every line of its log, Ray 2.9 to 2.60."""
_MOST = 300
"""Number of sessions that are searched, the newest first."""


def session_folders(known: Iterable[str] = ()) -> list[str]:
    """Folders of sessions in Ray's default places and beside known ones; the newest first."""
    bases = (os.environ.get("RAY_TMPDIR"), os.environ.get("TMPDIR"), "/tmp")
    roots = [f"{base.rstrip('/')}/ray" for base in bases if base]
    roots += [os.path.dirname(session) for session in known if session]
    found: dict[str, str] = {}
    for root in dict.fromkeys(roots):
        with suppress(OSError):
            for name in os.listdir(root):
                path = f"{root}/{name}"
                if is_session(name) and not os.path.islink(path) and os.path.isdir(path):
                    found.setdefault(os.path.realpath(path), path)
    return sorted(found.values(), key=os.path.basename, reverse=True)


def bound_sockets() -> list[str]:
    """Paths of Unix sockets that living processes of this network namespace have bound."""
    with suppress(OSError), open("/proc/net/unix", encoding="utf-8", errors="replace") as stream:
        return [line.split(maxsplit=7)[7].strip() for line in stream if line.count(" /")]
    return []


@dataclass(slots=True)
class Raylets:
    """The raylets of these sessions, read from their logs on first use."""

    folders: Sequence[str]
    _by_session: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def of(self, session: str) -> tuple[int, ...]:
        """Pids of the raylets that have written logs in a session's folder on this machine."""
        if session not in self._by_session:
            self._by_session[session] = tuple(dict.fromkeys(_pids(session)))
        return self._by_session[session]

    def session(self, pid: int, before: float) -> str:
        """The session whose raylet had this pid, of those older than `before`; empty if unknown."""
        for folder in self.folders[:_MOST]:
            begun = began(folder)
            if begun is not None and begun <= before + 1.0 and pid in self.of(folder):
                return folder
        return ""


def _pids(session: str) -> Iterator[int]:
    for path in raylet_logs(session):
        # Another user may have created the session: opening a FIFO must not block.
        with suppress(OSError), open(path, "rb", opener=_opened) as stream:
            for line in stream.read(_HEAD).splitlines():
                if match := _RAYLET_LINE.match(line):
                    yield int(match[1])
                    break


def _opened(path: str, flags: int) -> int:
    """Raises OSError unless it is a regular file and not a link."""
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return file


def raylet_logs(session: str) -> list[str]:
    """Paths of the logs of a session's raylets."""
    with suppress(OSError):
        names = sorted(os.listdir(f"{session}/logs"))
        return [
            f"{session}/logs/{n}" for n in names if n.startswith("raylet") and n.endswith(".out")
        ]
    return []

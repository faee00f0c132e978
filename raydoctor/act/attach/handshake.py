"""Exchanges a request and its reply between `attach` and a process, as files of the process's user.

`arm.py` is the other side. The process takes a request by a rename, raydoctor withdraws it by a removal of
the same file, and only one of them can succeed: a withdrawn request is never carried out.

The process may belong to another user, who can change the folder at any time: see `private.py`.
"""

from __future__ import annotations

import ipaddress
import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from raydoctor.act import private
from raydoctor.act.attach import arm, enter
from raydoctor.act.private import Folder
from raydoctor.observe.processes import proc

_INTERVAL = 0.02
_LARGEST = 4096
"""Bytes of a reply at most; another user's process may have written it."""
_PROGRAM = ("arm", "enter", "private", "door")
_TEXT = f"""\
import _thread, posix, sys, threading
state, key, taken = vars(threading), {enter.INTERVAL!r}, False
first = key not in state
if first:
 state[key] = sys.getswitchinterval()
 sys.setswitchinterval(max({enter.SHORTEST}, {enter.PER_THREAD} * _thread._count()))
try:
 file = posix.open({{entry!r}}, posix.O_CLOEXEC | posix.O_NOFOLLOW | posix.O_NONBLOCK)
 try:
  text = posix.read(file, 1 << 16)
 finally:
  posix.close(file)
 space = dict(__name__='raydoctor_enter', __file__={{entry!r}})
 exec(compile(text, {{entry!r}}, 'exec'), space)
 taken = space['enter']({{request!r}}, {{program!r}})
except BaseException:
 pass
finally:
 if first and not taken:
  sys.setswitchinterval(state.pop(key, sys.getswitchinterval()))
"""
"""Executes `enter.py` in the process, from a file because the text has little room (`elf.Library.unused`).

The switch interval is shortened before the first system call. Errors are suppressed, as they would be printed
to the worker's log.
"""


class HandshakeReply(NamedTuple):
    """The reply of a process; empty if there is none."""

    host: str = ""
    port: int = 0
    """0: it has a debugger with a closed port."""
    was_open: bool = False
    """Whether the port was open before the request."""
    problem: str = ""
    is_there: bool = False


@dataclass(slots=True)
class Handshake:
    """The handshake with one process."""

    pid: int
    user: int
    group: int
    start: str
    """With the pid its identity (proc(5), field 22 of `stat`)."""
    _folder: Folder | None = field(default=None, repr=False)
    _is_open: bool = False

    @property
    def request(self) -> str:
        """The name of the file that the process takes."""
        return f"request-{self.pid}-{self.start}"

    @property
    def answer(self) -> str:
        """The name of the file with its address, which is kept for later attaches."""
        return f"answer-{self.pid}-{self.start}"

    def ask(self, host: str, port: int, seconds: float, open_for: float = 0.0) -> None:
        """Write a request that is valid for so many seconds. Raises OSError.

        `open_for`: seconds after which the port closes by itself; 0: never.
        """
        debugpy = _debugpys_folder()
        folder = self._folder = private.created(self.user, self.group)
        folder.forget_the_dead()
        with suppress(FileNotFoundError):
            folder.remove(self.answer)
        request = {
            "host": host,
            "port": port,
            "until": proc.monotonic_of(self.pid) + seconds,
            "seconds": open_for,
            "debugpy": _linked(folder, debugpy) if debugpy else "",
        }
        folder.write(self.request, json.dumps(request).encode())
        self._is_open = True

    def withdraw(self) -> bool:
        """Withdraw the request; False if the process has already taken it."""
        if not self._is_open or self._folder is None:
            return True
        self._is_open = False
        try:
            self._folder.remove(self.request)
        except FileNotFoundError:
            return False
        except OSError:  # the process has ended
            return True
        return True

    def close(self) -> None:
        """Withdraw the request and close the folder."""
        self.withdraw()
        if self._folder is not None:
            self._folder.close()

    @property
    def is_taken(self) -> bool:
        """Whether the process has taken the request."""
        return self._folder is not None and not self._folder.has(self.request)

    def answered(self, seconds: float) -> HandshakeReply:
        """Wait for the reply; empty if there is none in time, or the process has ended."""
        deadline = time.monotonic() + seconds
        while True:
            if self._folder is not None and (reply := self._read(self._folder)).is_there:
                return reply
            if time.monotonic() >= deadline or not os.path.exists(f"/proc/{self.pid}"):
                return HandshakeReply()
            time.sleep(_INTERVAL)

    def earlier(self) -> HandshakeReply:
        """The reply to an earlier request."""
        for folder in private.existing(self.user, self.group):
            if (reply := self._read(folder)).is_there:
                return reply
        return HandshakeReply()

    def note_closed(self) -> None:
        """Record for later attaches that its port is closed."""
        for folder in private.existing(self.user, self.group):
            if folder.has(self.answer):
                folder.write(self.answer, b'{"port": 0}')

    def _read(self, folder: Folder) -> HandshakeReply:
        with suppress(OSError):
            return _answer(folder.read(self.answer, _LARGEST))
        return HandshakeReply()

    def text(self) -> str:
        """The text that an unarmed process must execute to take the request. Raises OSError."""
        assert self._folder is not None, "`ask` was called before"
        for name in _PROGRAM:
            _copy(Path(arm.path_of(name)).read_bytes(), self._folder, f"{name}.py")
        request, program, entry = (
            os.path.join(self._folder.path, name) for name in (self.request, "arm.py", "enter.py")
        )
        return _TEXT.format(request=request, program=program, entry=entry)


def handshake(pid: int) -> Handshake:
    """A handshake with that process. Raises OSError if it has ended."""
    found = os.stat(f"/proc/{pid}")
    return Handshake(pid, found.st_uid, found.st_gid, arm.start_of(pid))


def _answer(data: bytes) -> HandshakeReply:
    """Parse a reply, which may be hostile: a malformed one counts as none."""
    try:
        reply = json.loads(data)
        if "problem" in reply:
            return HandshakeReply(problem=str(reply["problem"])[:500], is_there=True)
        port = int(reply["port"])
        host = str(ipaddress.ip_address(reply["host"])) if port else ""
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return HandshakeReply()
    if not 0 <= port < 1 << 16:
        return HandshakeReply()
    return HandshakeReply(host, port, bool(reply.get("was_open")), is_there=True)


def _debugpys_folder() -> str:
    spec = find_spec("debugpy")
    if spec is None or not spec.submodule_search_locations:
        return ""
    return os.path.realpath(spec.submodule_search_locations[0])


def _linked(folder: Folder, debugpy: str) -> str:
    """A folder with a link to our debugpy only, so that the process cannot import other packages of ours."""
    with folder.folder("packages", create=True) as packages:
        packages.link("debugpy", debugpy)
        return packages.path


def _copy(program: bytes, folder: Folder, name: str) -> None:
    """Copy a program to the user's folder; it stays a file because debuggers show the handler's source."""
    with suppress(OSError):
        if folder.read(name) == program:
            return
    folder.write(name, program)

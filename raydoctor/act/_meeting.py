"""What `attach` and the process tell each other: a request, and its answer, as files of the process's user.

`arm.py` is the other side. Taking back a request and taking it up are both a rename or a removal of the
same file, of which the system lets only one succeed: what was withdrawn is never acted upon.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from raydoctor.act import arm

_LOOK = 0.02
_LARGEST = 4096
"""Bytes of an answer; whoever wrote it is another process, maybe another user's."""


@dataclass(slots=True)
class Meeting:
    """With one process, of one user."""

    pid: int
    user: int
    folder: str
    is_open: bool = False

    @property
    def request(self) -> str:
        """The file that the process takes."""
        return arm.path_of("request", self.pid, self.folder)

    @property
    def answer(self) -> str:
        """The file that says where it listens; it stays, for those who attach later."""
        return arm.path_of("answer", self.pid, self.folder)

    def ask(self, host: str, port: int, seconds: float) -> None:
        """Leave a request there. Raises OSError."""
        arm.make(self.folder, self.user)
        arm.forget_the_dead(self.folder)
        with suppress(FileNotFoundError):
            os.unlink(self.answer)
        told = {
            "host": host,
            "port": port,
            "until": time.time() + seconds,
            "debugpy": self._debugpy(),
            "answer": self.answer,
        }
        arm.write(self.request, told, self.user)
        self.is_open = True

    def withdraw(self) -> bool:
        """Take the request back; whether the process had not taken it up."""
        if not self.is_open:
            return True
        self.is_open = False
        try:
            os.unlink(self.request)
        except FileNotFoundError:
            return False
        except OSError:  # nobody reads it any more: the process has ended
            return True
        return True

    @property
    def is_taken(self) -> bool:
        """Whether the process has taken the request up."""
        with suppress(OSError):
            return not os.path.exists(self.request)
        return False

    def answered(self, seconds: float) -> dict[str, Any]:
        """The answer; empty where none has come by then, or it has ended."""
        deadline = time.monotonic() + seconds
        while True:
            with suppress(OSError):
                if told := read(self.answer, self.user):
                    return told
            if time.monotonic() >= deadline or not os.path.exists(f"/proc/{self.pid}"):
                return {}
            time.sleep(_LOOK)

    def text(self) -> str:
        """What a process that is not armed has to execute to take the request up."""
        program = _copied(Path(arm.__file__).read_bytes(), self.folder, self.user)
        names = {"__name__": "raydoctor_attached", "__file__": program, "REQUEST": self.request}
        # Errors of its own would be printed to the worker's log, and only there.
        return (
            f"try: exec(compile(open({program!r}, 'rb').read(), {program!r}, 'exec'), {names!r})\n"
            "except BaseException: pass"
        )

    def _debugpy(self) -> str:
        """A folder with our debugpy and nothing else: what else is installed here is none of its business."""
        spec = find_spec("debugpy")
        if spec is None or not spec.submodule_search_locations:
            return ""
        ours = os.path.realpath(spec.submodule_search_locations[0])
        folder = os.path.join(self.folder, "packages")
        arm.make(folder, self.user)
        link = os.path.join(folder, "debugpy")
        with suppress(OSError):
            if os.readlink(link) == ours:
                return folder
        fresh = f"{link}.{os.getpid()}.new"
        os.symlink(ours, fresh)
        os.rename(fresh, link)
        return folder


def meeting(pid: int) -> Meeting:
    """With that process. Raises OSError where it has ended."""
    user = os.stat(f"/proc/{pid}").st_uid
    return Meeting(pid, user, arm.folder_of(user))


def read(path: str, user: int) -> dict[str, Any]:
    """A file that a process of that user wrote; empty where it is not one. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(file, "rb") as stream:
        if os.fstat(file).st_uid != user:
            return {}
        said = stream.read(_LARGEST)
    try:
        told = json.loads(said)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _copied(program: bytes, folder: str, user: int) -> str:
    """The program, where that user can read it; a debugger shows where the handler is, so it is a file."""
    path = os.path.join(folder, "arm.py")
    with suppress(OSError), open(path, "rb") as stream:
        if stream.read() == program:
            return path
    arm.leave(path, program, user)
    return path

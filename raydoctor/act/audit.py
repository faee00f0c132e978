"""What raydoctor did, for later: one JSON line for each signal sent and each thing removed.

Appended to `${XDG_STATE_HOME:-~/.local/state}/raydoctor/audit.jsonl` (the XDG base directory specification),
readable by its owner alone. Where it cannot be written, the deed is done all the same, and `problem` says so.
`sudo` may leave HOME and XDG_STATE_HOME as they were: root writes into no folder of another user's.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from raydoctor.act import private
from raydoctor.observe.processes.redact import shared


def default_path() -> str:
    """The audit file of this user; `~` is who runs us, whatever the environment of a task says."""
    base, home = os.environ.get("XDG_STATE_HOME", ""), os.path.expanduser("~")
    if not (os.path.isabs(base) and _is_ours(base)):
        base = os.path.join(home if _is_ours(home) else _home(), ".local", "state")
    return os.path.join(base, "raydoctor", "audit.jsonl")


def _is_ours(path: str) -> bool:
    """Whether a folder, or the one that it would be made in, is this user's or root's."""
    while not os.path.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    with suppress(OSError):
        return not hasattr(os, "geteuid") or os.stat(path).st_uid in (os.geteuid(), 0)
    return False


def _home() -> str:
    """As the system has it, whatever the environment says."""
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:  # in a container, maybe
        return os.path.expanduser("~")


@dataclass(slots=True)
class Audit:
    """Writes lines on behalf of one purpose (`zombies`, `cancel 16310a0f…`)."""

    purpose: str
    about: Mapping[tuple[int, float], Mapping[str, str]] = field(default_factory=dict)
    """Pid and start of a process -> what else its lines tell: `why`, `command`, `session`."""
    path: str = ""
    """Empty: the user's own file."""
    problem: str = ""
    """Why a line could not be written."""

    def write(self, what: str, **details: Any) -> None:
        """Append one line: `what` was done, and all that is told of it."""
        line = {
            "at": round(time.time(), 3),
            "what": what,
            "purpose": self.purpose,
            "by_pid": os.getpid(),
            "by_uid": os.geteuid() if hasattr(os, "geteuid") else None,
            **shared().redact_json(details),
        }
        try:
            self._append(json.dumps(line, default=str, separators=(",", ":")) + "\n")
        except OSError as error:
            self.problem = f"{self.path or default_path()}: {error.strerror or error}"

    def _append(self, line: str) -> None:
        folder, name = os.path.split(self.path or default_path())
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if not self.path:
            private.make_private(folder)
            with private.opened(folder) as opened:
                opened.append(name, line.encode("ascii"), create=True)
            return
        # One write, which the system appends whole: others may write at the same time.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        file = os.open(self.path, flags, 0o600)
        try:
            os.write(file, line.encode("ascii"))
        finally:
            os.close(file)

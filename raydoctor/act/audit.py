"""What raydoctor did, for later: one JSON line for each signal sent and each thing removed.

Appended to `${XDG_STATE_HOME:-~/.local/state}/raydoctor/audit.jsonl` (the XDG base directory specification),
readable by its owner alone. Where it cannot be written, the deed is done all the same, and `problem` says so.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raydoctor.collect.redact import shared


def default_path() -> str:
    """The audit file of this user; `~` is who runs us, whatever the environment of a task says."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.local/state")
    return os.path.join(base, "raydoctor", "audit.jsonl")


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

    def write(self, what: str, **told: Any) -> None:
        """Append one line: `what` was done, and all that is told of it."""
        line = {
            "at": round(time.time(), 3),
            "what": what,
            "purpose": self.purpose,
            "by_pid": os.getpid(),
            "by_uid": os.geteuid() if hasattr(os, "geteuid") else None,
            **shared().redact_json(told),
        }
        try:
            self._append(json.dumps(line, default=str, separators=(",", ":")) + "\n")
        except OSError as error:
            self.problem = f"{self.path or default_path()}: {error.strerror or error}"

    def _append(self, line: str) -> None:
        path = self.path or default_path()
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        # One write, which the system appends whole: others may write at the same time.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        file = os.open(path, flags, 0o600)
        try:
            os.write(file, line.encode("ascii"))
        finally:
            os.close(file)

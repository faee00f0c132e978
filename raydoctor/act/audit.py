"""The audit log: one JSON line for each signal sent and each file removed.

The file is `${XDG_STATE_HOME:-~/.local/state}/raydoctor/audit.jsonl` (the XDG base directory specification),
readable by its owner only. If it cannot be written, the action is still carried out, and `problem` has the
reason. `sudo` may keep HOME and XDG_STATE_HOME, so root never writes into a folder of another user.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raydoctor.act import private
from raydoctor.capture import owners
from raydoctor.observe.processes.redact import shared


def default_path() -> str:
    """The audit file of the user that runs raydoctor, whatever the environment of a task contains."""
    return os.path.join(owners.state_folder(), "audit.jsonl")


@dataclass(slots=True)
class Audit:
    """Writes lines on behalf of one purpose (`zombies`, `cancel 16310a0f…`)."""

    purpose: str
    about: Mapping[tuple[int, float], Mapping[str, str]] = field(default_factory=dict)
    """Pid and start of a process -> further fields of its lines: `why`, `command`, `session`."""
    path: str = ""
    """Empty: the default file of this user."""
    problem: str = ""
    """Why a line could not be written."""

    def write(self, what: str, **details: Any) -> None:
        """Append one line: the action `what`, and its details."""
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
        # A single write is appended atomically: other processes may append at the same time.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        file = os.open(self.path, flags, 0o600)
        try:
            os.write(file, line.encode("ascii"))
        finally:
            os.close(file)

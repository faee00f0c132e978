"""Injects a few lines into a process of Python 3.14 or newer by `sys.remote_exec` (PEP 768).

The call stores the name of a file in the process, whose main thread executes it at its next safe point. A
main thread that waits in native code reaches none, so this is only for running threads. The caller must run
the same version of Python; if raydoctor's differs, the interpreter of the process is used, as its user.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import suppress
from typing import Any

from raydoctor.act import private
from raydoctor.act.attach import arm
from raydoctor.observe.processes import as_user

SINCE = (3, 14)
_SECONDS = 10.0
_PROGRAM = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"


def inject(pid: int, start: str, text: str, version: tuple[int, int]) -> None:
    """Have the main thread execute the text at its next safe point. Raises OSError."""
    found = os.stat(f"/proc/{pid}")
    with private.created(found.st_uid, found.st_gid) as folder:
        name = arm.name_of("entry", pid)
        if not name.endswith(f"-{start}"):
            raise ProcessLookupError(errno.ESRCH, "its pid now belongs to another process")
        path = os.path.join(folder.path, name)
        folder.write(name, f"import os; os.unlink({path!r})\n{text}".encode())
        try:
            _ask(pid, path, version, found.st_uid)
        except BaseException:
            with suppress(OSError):
                folder.remove(name)
            raise


def _ask(pid: int, path: str, version: tuple[int, int], user: int) -> None:
    python = sys.executable
    if sys.version_info[:2] != version:
        python = os.readlink(f"/proc/{pid}/exe")
    asked = subprocess.run(
        [python, "-I", "-S", "-c", _PROGRAM, str(pid), path],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
        **_as(user),
    )
    if asked.returncode:
        words = asked.stderr.strip().splitlines() or ["it printed nothing"]
        raise OSError(errno.EPERM, f"sys.remote_exec: {words[-1]}")


def _as(user: int) -> dict[str, Any]:
    """Options for `subprocess` to run as another user, without our environment."""
    if user == os.geteuid():
        return {}
    other = as_user.find(user)
    return as_user.options(other, as_user.environment(other))

"""A few lines of Python, executed by a process of Python 3.14 or newer: `sys.remote_exec` (PEP 768).

It only notes a file's name in the process, which executes it at its main thread's next step. A main thread
that waits in native code takes none, so this is for one that runs. Whoever asks must run the same Python;
where raydoctor's own is another, that of the process is taken, as its user and never as root for it.
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
    """Have the main thread execute the text at its next step. Raises OSError where it cannot be asked to."""
    found = os.stat(f"/proc/{pid}")
    with private.created(found.st_uid, found.st_gid) as folder:
        name = arm.name_of("entry", pid)
        if not name.endswith(f"-{start}"):
            raise ProcessLookupError(errno.ESRCH, "its pid is another process's by now")
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
        words = asked.stderr.strip().splitlines() or ["it said nothing"]
        raise OSError(errno.EPERM, f"sys.remote_exec: {words[-1]}")


def _as(user: int) -> dict[str, Any]:
    """Options for `subprocess`: a program of another user runs as that user, without our environment."""
    if user == os.geteuid():
        return {}
    other = as_user.find(user)
    return as_user.options(other, as_user.environment(other))

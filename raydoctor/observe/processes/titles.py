"""The names of tasks and actors that run on this machine, for completions. No cluster is queried.

Ray titles a worker `ray::FUNCTION`, `ray::CLASS` or `ray::CLASS.METHOD` (2.9 to 2.60). A process may call
itself anything: only processes of this user count, and only names that no shell acts on. (Click's script for
bash neither quotes words nor keeps `*` from becoming file names.)
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from raydoctor.model.patterns import pattern
from raydoctor.observe.processes import proc

_TITLE = pattern(r"ray::([A-Za-z_][\w.-]{0,99})")
_RAYS_OWN = ("IDLE", "DashboardAgent", "RuntimeEnvAgent")
_MOST = 1_000


def names() -> list[str]:
    """Tasks and actors that run now, sorted; empty on systems other than Linux."""
    return sorted(set(_names())) if proc.LINUX else []


def _names() -> Iterator[str]:
    own = os.geteuid()
    count = 0
    for process in proc.table().values():
        if process.name.startswith("ray::") and proc.owner(process.pid) == own and count < _MOST:
            count += 1
            title = "".join(proc.command(process.pid, 256)[:1])
            match = _TITLE.fullmatch(title.strip())
            if match and match[1].isascii() and not match[1].startswith(_RAYS_OWN):
                yield match[1]

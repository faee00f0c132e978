"""Which session of this machine is meant when no path is given.

Ray keeps sessions below `<temp>/ray`, where `<temp>` is RAY_TMPDIR, else TMPDIR, else /tmp
(`get_default_system_temp_dir` in `ray/_common/utils.py`, 2.9 to 2.60, Linux). Whether one of them is alive
is for `collect/discover.py` to say.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from raydoctor.errors import RaydoctorError


class Choice(NamedTuple):
    """A session folder, and a note if there was more than one to choose from."""

    path: Path
    note: str = ""


def this_machine() -> Choice:
    """The newest session of this machine, running or not.

    Raises RaydoctorError, saying what was looked for, if there is none.
    """
    if choice := latest():
        return choice
    looked = " and ".join(str(root / "session_latest") for root in _roots())
    raise RaydoctorError(
        f"no Ray session on this machine: no raylet is running, and there is no {looked}",
        "Give the folder or archive with the logs: raydoctor diagnose PATH. "
        "To see a real failure explained first: raydoctor demo",
    )


def latest() -> Choice | None:
    """The newest session where Ray would put one for this user, else in /tmp/ray; None if there is none."""
    return next((found for root in _roots() if (found := latest_in(root))), None)


def _roots() -> list[Path]:
    bases = (os.environ.get("RAY_TMPDIR"), os.environ.get("TMPDIR"), "/tmp")
    return list(dict.fromkeys(Path(base) / "ray" for base in bases if base))


def is_session(folder: str) -> bool:
    """Whether a folder is named as Ray names sessions: `session_<date>_…`, not `session_latest`."""
    return folder.startswith("session_2")


def began(folder: str) -> float | None:
    """When a session began, by its name (local time, Ray 2.3 to 2.60); None where the name says none."""
    stamp = Path(folder).name.removeprefix("session_")[:19]
    try:
        return time.mktime(time.strptime(stamp, "%Y-%m-%d_%H-%M-%S"))
    except (ValueError, OverflowError):
        return None


def latest_in(root: Path) -> Choice | None:
    """The newest session below a Ray temp folder such as `/tmp/ray`, or None if it holds none."""
    try:
        sessions = sorted(
            (p for p in root.iterdir() if is_session(p.name) and p.is_dir()),
            key=lambda p: p.name,
        )
        link = root / "session_latest"
        chosen = link.resolve() if link.is_dir() else sessions[-1] if sessions else None
    except OSError:
        return None
    if chosen is None:
        return None
    others = [str(p) for p in sessions if p.resolve() != chosen]
    return Choice(chosen, _note(chosen, others, f"in {root}") if others else "")


def _note(chosen: Path, others: list[str], where: str) -> str:
    shown = ", ".join(others[-3:]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    return (
        f"reading {chosen}, the newest session {where}; to read another, name it: "
        f"raydoctor diagnose PATH ({shown})"
    )

"""Which session of this machine is meant when no path is given.

Ray keeps sessions below `<temp>/ray`, where `<temp>` is RAY_TMPDIR, else /tmp
(`ray/_common/utils.py`, 2.3 to 2.60), or where a raylet's own `--session_dir` says.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from raydoctor.errors import RaydoctorError


class Choice(NamedTuple):
    """A session folder, and a note if there was more than one to choose from."""

    path: Path
    note: str = ""


def this_machine() -> Choice:
    """The session of this machine: of a running raylet, else `session_latest`.

    Raises RaydoctorError, saying what was looked for, if there is none.
    """
    running = _sessions_of_raylets()
    roots = [Path(base) / "ray" for base in (os.environ.get("RAY_TMPDIR"), "/tmp") if base]
    latest = next((found for root in roots if (found := latest_in(root))), None)
    if running:
        chosen = latest.path if latest and latest.path in running else running[0]
        others = [str(p) for p in running if p != chosen]
        return Choice(chosen, _note(chosen, others, "of the running raylets") if others else "")
    if latest:
        return latest
    looked = " and ".join(str(root / "session_latest") for root in roots)
    raise RaydoctorError(
        f"no Ray session on this machine: no raylet is running, and there is no {looked}",
        "Give the folder or archive with the logs: raydoctor diagnose PATH. "
        "To see a real failure explained first: raydoctor demo",
    )


def is_session(folder: str) -> bool:
    """Whether a folder is named as Ray names sessions: `session_<date>_…`, not `session_latest`."""
    return folder.startswith("session_2")


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


def _sessions_of_raylets() -> list[Path]:
    """Session folders of the raylets that run on this machine, newest process first."""
    import psutil  # only here: costs 20 ms that the offline path does not pay

    found: dict[Path, float] = {}
    for process in psutil.process_iter(["name", "cmdline", "create_time"]):
        if process.info["name"] != "raylet":
            continue
        for arg in process.info["cmdline"] or ():
            if arg.startswith("--session_dir="):
                path = Path(arg.partition("=")[2])
                if path.is_dir():
                    found[path.resolve()] = process.info["create_time"] or 0.0
    return sorted(found, key=lambda p: -found[p])

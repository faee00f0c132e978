"""The session of this machine that is read if the user names no path.

Ray keeps sessions below `<temp>/ray`, where `<temp>` is RAY_TMPDIR, else TMPDIR, else /tmp
(`get_default_system_temp_dir` in `ray/_common/utils.py`, 2.9 to 2.60, Linux).
`observe/processes/discover.py` finds out whether one of them is alive.

Ray makes that folder writable for all users, so any user can leave sessions and links in it. The user's own
sessions (and root's) come first. Another user's session is read if there is no other, with a note that names
its owner. As root, raydoctor never follows another user's link, and reads another user's session only if its
folder or the parent folder was named.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from raydoctor.capture import owners
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.text import join_names

_MOST_BESIDE = 100
"""Folders beside a driver's output that are searched for logs."""
_AFTER = 600.0
"""Seconds after the last record of Ray's daemons in which a driver may still write."""


class SessionChoice(NamedTuple):
    """A session folder, and a note if there was more than one to choose from."""

    path: Path
    note: str = ""
    is_foreign: bool = False
    """Whether it belongs to another user."""


def this_machine() -> SessionChoice:
    """The newest session of this machine, running or not.

    Raises RaydoctorError, saying what was looked for, if there is none.
    """
    if choice := latest():
        return choice
    if passed := next((f for root in _roots() for f in reversed(_sessions(root))), None):
        from raydoctor.model import paste  # the offline path need not load it

        owner = owners.user(passed.owner)
        raise RaydoctorError(
            f"no Ray session of root's on this machine; the newest one is {passed.path} of user {owner}",
            paste.shell("To read it: raydoctor diagnose {path:path}", path=str(passed.path)),
        )
    looked = " and ".join(str(root / "session_latest") for root in _roots())
    raise RaydoctorError(
        f"no Ray session on this machine: no raylet is running, and there is no {looked}",
        "Give the folder or archive with the logs: raydoctor diagnose PATH. "
        "To see a real failure explained first: raydoctor demo",
    )


def latest() -> SessionChoice | None:
    """The newest session where Ray would put one for this user, else in /tmp/ray; None if there is none.

    Another user's session counts only if there is no own session.
    """
    found = [choice for root in _roots() if (choice := latest_in(root))]
    return next((c for c in found if not c.is_foreign), found[0] if found else None)


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


def beside(output: str) -> Path | None:
    """The logs that may belong to a driver's output (`-`: standard input), or None.

    They are in the same folder as the file or one below it, or in the newest session of this machine if it
    was running when the file was last written.
    """
    at = time.time()
    if output != "-":
        folder = Path(output).absolute().parent
        below = (folder, *islice(_folders_in(folder), _MOST_BESIDE))
        logs = (place for each in below for place in (each, each / "logs"))
        if any(_last_record(place) is not None for place in logs):
            return folder
        with suppress(OSError):
            at = os.stat(output).st_mtime
    choice = latest()
    if choice is None or choice.is_foreign:
        return None
    start, end = began(str(choice.path)), _last_record(choice.path / "logs")
    if start is None or end is None or not start <= at <= end + _AFTER:
        return None
    return choice.path


def _folders_in(folder: Path) -> Iterator[Path]:
    with suppress(OSError), os.scandir(folder) as entries:
        yield from (Path(each.path) for each in entries if each.is_dir(follow_symlinks=False))


def _last_record(logs: Path) -> float | None:
    """When a raylet or the GCS last wrote to its log in this folder (epoch seconds); None without logs."""
    found = []
    for name in ("raylet.out", "gcs_server.out"):
        with suppress(OSError):
            found.append((logs / name).stat().st_mtime)
    return max(found, default=None)


def latest_in(root: Path, is_named: bool = False) -> SessionChoice | None:
    """The newest session below a Ray temp folder such as `/tmp/ray`, or None if it holds none.

    `is_named`: the user named the folder, so that root reads other users' sessions in it.
    """
    sessions = _sessions(root)
    link = _linked(root)
    own = [found for found in sessions if found.owner in owners.trusted()]
    others = sessions if is_named or os.geteuid() != 0 else []
    candidates = [link, *own[-1:], *others[-1:]]
    if link is not None and link.owner not in owners.trusted():
        candidates = [*own[-1:], link, *others[-1:]]
    chosen = next((found for found in candidates if found is not None), None)
    if chosen is None:
        return None
    rest = [str(f.path) for f in sessions if f.path.resolve() != chosen.path]
    is_foreign = chosen.owner not in owners.trusted()
    whose = "your" if not is_foreign and len(own) < len(sessions) else "the"
    notes = [_note(chosen.path, rest, whose, f"in {root}")] if rest else []
    if is_foreign:
        notes.insert(0, f"{chosen.path} belongs to user {owners.user(chosen.owner)}")
    return SessionChoice(chosen.path, "; ".join(notes), is_foreign)


def names_in(root: Path) -> set[str]:
    """The names of the sessions of a folder."""
    return {found.path.name for found in _sessions(root)}


class _Session(NamedTuple):
    """A session's folder and who owns it."""

    path: Path
    owner: int


def _sessions(root: Path) -> list[_Session]:
    """The sessions of a folder, the newest last: real folders, no links."""
    found = []
    with suppress(OSError), os.scandir(root) as entries:
        for entry in entries:
            if is_session(entry.name) and entry.is_dir(follow_symlinks=False):
                owner = entry.stat(follow_symlinks=False).st_uid
                found.append(_Session(Path(os.path.realpath(entry.path)), owner))
    return sorted(found, key=lambda each: each.path.name)


def _linked(root: Path) -> _Session | None:
    """The target of `session_latest`, if the link can be trusted.

    An own link may point anywhere, another user's only to that user's own folders; root follows only own
    ones.
    """
    path = root / "session_latest"
    try:
        link, target = path.lstat(), path.stat()
    except OSError:
        return None
    if not stat.S_ISDIR(target.st_mode):
        return None
    is_own = link.st_uid in (os.geteuid(), 0)
    if not is_own and link.st_uid != target.st_uid:
        return None
    if os.geteuid() == 0 and link.st_uid not in owners.trusted():
        return None
    return _Session(path.resolve(), target.st_uid)


def _note(chosen: Path, others: list[str], whose: str, where: str) -> str:
    shown = join_names(reversed(others))
    return (
        f"reading {chosen}, {whose} newest session {where}; to read another, name it: "
        f"raydoctor diagnose PATH ({shown}); for all: --session all"
    )

"""Processes that may be leftovers and could not be examined, with the remedy.

The kernel shows an ordinary user neither the environment nor the files of another user's process. A child of
a task that changed its user (sudo, a setuid program) and lost its parent is such a process, and looks like a
service of the machine. It is reported unless something that every user may read excludes it: it is older
than this user's sessions, another user's login started it, it is in a cgroup without processes of this user,
or it started processes of this user (sshd, login). It is never ended.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress

from raydoctor.act import private
from raydoctor.act.zombies import history
from raydoctor.capture import owners
from raydoctor.capture.session import began
from raydoctor.model import text
from raydoctor.observe.machine import cgroups
from raydoctor.observe.processes import daemons, proc
from raydoctor.observe.processes.proc import Process
from raydoctor.observe.processes.redact import command_line

_NO_LOGIN = ("", "4294967295")
_NAMED = 5
_TITLE = 60


def unseen(found: Collection[int] = ()) -> str:
    """Which processes could not be examined, and the remedy; empty if there are none.

    `found`: pids of known leftovers.
    """
    if not proc.LINUX:
        return (
            "leftovers are found on Linux only: other systems do not show what processes inherited"
        )
    mine = os.geteuid()
    hidden = [private.distrusted()]
    others = {proc.owner(d.daemon.pid) for d in daemons.find()} - {mine, None}
    if mine and others:
        hidden.append(proc.needs_sudo(uid for uid in others if uid is not None).rstrip("."))
    if mine:
        hidden.append(_unattributed(mine, found))
    return "; ".join(filter(None, hidden))


def _unattributed(mine: int, found: Collection[int]) -> str:
    begun = _first_session(mine)
    if begun is None:
        return ""
    table = proc.table()
    if 1 not in table:
        return (
            "this system hides the processes of other users (hidepid), and a task may have started one "
            "of them (sudo): to search them, run sudo raydoctor zombies"
        )
    these = [each for each in changed(table, mine, begun) if each.pid not in found]
    these.sort(key=lambda each: -each.started_at)
    if not these:
        return ""
    named = "; ".join(
        text.one_line(f"pid {each.pid} of {_user(each.pid)}, {_title(each)}")
        for each in these[:_NAMED]
    )
    rest = f" and {len(these) - _NAMED:,} more" if len(these) > _NAMED else ""
    count = text.plural(len(these), "process", "processes")
    return (
        f"{count} of other users may come from a task that changed its user (sudo), which only root can "
        f"find out: {named}{rest}. To examine them, run sudo raydoctor zombies"
    )


def _user(pid: int) -> str:
    uid = proc.owner(pid)
    return "another user" if uid is None else proc.user(uid)


def _title(process: Process) -> str:
    return text.cut(command_line(process.pid), _TITLE) or f"[{process.name}]"


def _first_session(user: int) -> float | None:
    """When the oldest known session of a user began; None if there is none."""
    for folder in reversed(history.session_folders()):
        if owners.of_folder(folder) == user:
            # The name has the time of day of that program's time zone, which need not be ours.
            return min([*_times(folder), began(folder) or 0.0])
    return None


def _times(folder: str) -> Iterator[float]:
    with suppress(OSError), os.scandir(f"{folder}/logs") as entries:
        for entry in entries:
            with suppress(OSError):
                yield entry.stat(follow_symlinks=False).st_mtime


def changed(table: Mapping[int, Process], user: int, since: float) -> list[Process]:
    """Detached processes of other users, started after `since`, that may come from processes of `user`."""
    own = {pid for pid in table if proc.credentials(pid) == user}
    reapers = {1, *(pid for pid in own if table[pid].name == "systemd")}
    places = {_cgroup(pid) for pid in own}
    parents = _ancestors(table, own)
    return [
        each
        for each in table.values()
        if each.ppid in reapers
        and each.pid not in own
        and each.pid not in parents
        and each.state != "Z"
        and each.started_at >= since
        and _login(each.pid) in (*_NO_LOGIN, str(user))
        and (place := _cgroup(each.pid))
        and (place in places or f"/user-{user}.slice/" in place)
    ]


def _ancestors(table: Mapping[int, Process], pids: Iterable[int]) -> set[int]:
    found: set[int] = set()
    waiting = list(pids)
    while waiting:
        process = table.get(waiting.pop())
        if process and process.ppid not in found:
            found.add(process.ppid)
            waiting.append(process.ppid)
    return found


def _login(pid: int) -> str:
    """The user that logged in and started it: `sudo` does not change that. Empty if not recorded."""
    return "".join(cgroups.lines(f"/proc/{pid}/loginuid"))


def _cgroup(pid: int) -> str:
    return "\n".join(cgroups.lines(f"/proc/{pid}/cgroup"))

"""What exactly a thread waits on: the peer of its socket, the child, the file, the holder of the lock.

The source is the row of `clues`, which names the threads (`tids`) whose calls are on a socket or a file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from raydoctor.cluster.samples import SampledProcess
from raydoctor.model.text import cut, join_names
from raydoctor.waits.kinds.catalog import Activity, Kind, WaitCode
from raydoctor.waits.kinds.thread import Doing

Row = Mapping[str, Any]
_MOST = 3
_COMMAND = 80
_HELPER = "from multiprocessing.resource_tracker import"


class Specifics(NamedTuple):
    """What a thread does, with what the clues add."""

    activity: Activity
    on: str = ""
    """What it waits on outside of the process: `10.0.0.9:5432`, `pid 812 (sleep 100)`, a path."""
    evidence: tuple[str, ...] = ()
    runs: bool = False
    """Whether what it waits for runs."""
    rested: float | None = None
    """Seconds since what it waits for last ran."""


def specifics(process: SampledProcess, done: Doing) -> Specifics:
    """What a thread does, with the names of what it waits on."""
    add = _BY_KIND.get(done.kind)
    return add(process, done) if add else Specifics(done.activity)


# ------------------------------------------------------------------ sockets, pipes, files


def _socket(process: SampledProcess, done: Doing) -> Specifics:
    sockets = [row for row in _rows(process, "sockets") if done.thread.tid in _tids(row)]
    peers = [peer for row in sockets if (peer := str(row.get("peer") or ""))]
    code = _socket_code(done)
    if any(row.get("state") == "LISTEN" for row in sockets):
        return Specifics(Activity("accept"), evidence=_states(sockets))
    if peers:
        connects = any(row.get("state") == "SYN_SENT" for row in sockets)
        activity = Activity("connect" if connects else code, join_names(peers))
        return Specifics(activity, peers[0], _states(sockets))
    if sockets:
        local = next((str(row["local"]) for row in sockets if row.get("local")), "")
        own = f", its own end is {local}" if local else ""
        types = {str(row.get("type") or "") for row in sockets}
        name = "a unix socket" if types == {"unix"} else "a socket without a peer"
        return Specifics(Activity(code), evidence=(f"it waits on {name}{own}",))
    return _file(process, done) or Specifics(done.activity)


def _socket_code(done: Doing) -> WaitCode:
    """What a thread waits in that is known to wait on a socket."""
    if done.kind == "socket":
        return done.code
    return "poll" if done.code == "select" else "socket"


def _unknown(process: SampledProcess, done: Doing) -> Specifics:
    if done.code != "coroutines":
        return _socket(process, done)
    # No coroutine is on a stack, but what its event loop watches is known; a pipe to itself is always there.
    watched = [row for row in _rows(process, "sockets") if done.thread.tid in _tids(row)]
    peers = [row for row in watched if row.get("peer")]
    if any(row.get("state") == "LISTEN" for row in watched):
        return Specifics(Activity("asyncio-server"))
    if not peers:
        return Specifics(done.activity)
    activity = Activity("asyncio-socket", join_names([str(row["peer"]) for row in peers]))
    return Specifics(activity, str(peers[0]["peer"]), _states(peers))


def watched_peers(process: SampledProcess, tids: Collection[int]) -> str:
    """The peers of the sockets that these threads wait on; empty where there are none."""
    rows = (row for row in _rows(process, "sockets") if set(tids) & set(_tids(row)))
    return join_names([str(row["peer"]) for row in rows if row.get("peer")])


def is_isolated(process: SampledProcess, tid: int) -> bool:
    """Whether an event loop watches nothing but the socket by which other threads of its process wake it.

    Then a child process, a connection or a pipe cannot end the wait of a coroutine. False if it is unknown.
    """
    sockets = [row for row in _rows(process, "sockets") if tid in _tids(row)]
    files = [row for row in _rows(process, "files") if tid in _tids(row)]
    own = len(sockets) == 1 and sockets[0].get("type") == "unix"
    is_pair = own and sockets[0].get("state") != "LISTEN"
    return is_pair and not _children(process) and all(_wakes_a_loop(row) for row in files)


def _wakes_a_loop(row: Row) -> bool:
    return str(row.get("path")).startswith("anon_inode:[event")


def _states(sockets: Sequence[Row]) -> tuple[str, ...]:
    return tuple(
        f"socket {row.get('local')} to {row.get('peer')}: {row.get('state')}"
        for row in sockets[:_MOST]
    )


def _file(process: SampledProcess, done: Doing) -> Specifics | None:
    """What a call waits on whose descriptor is no socket."""
    used = [row for row in _rows(process, "files") if done.thread.tid in _tids(row)]
    if not used:
        return None
    row = used[0]
    path = str(row.get("path") or "")
    holders = [
        child for child in _children(process) if child.get("pid") in (row.get("held_by") or ())
    ]
    if path.startswith("pipe:") and holders:
        shared = f"{len(holders)} of its children have the pipe open"
        return _of_children("child-pipe", holders, shared)
    if path.startswith("pipe:"):
        return Specifics(Activity("pipe"), evidence=(f"it waits on {path}",))
    if path.startswith(("/dev/pts/", "/dev/tty", "/dev/console")):
        return Specifics(Activity("terminal", path), path)
    if path.startswith("anon_inode:"):
        return Specifics(done.activity, evidence=(f"it waits on {path}",))
    activity = Activity("pipe") if done.call == "pipe" else done.activity
    return Specifics(activity.with_detail(path), path)


def _disk(process: SampledProcess, done: Doing) -> Specifics:
    return _file(process, done) or Specifics(done.activity)


# ------------------------------------------------------------------ processes


def _subprocess(process: SampledProcess, done: Doing) -> Specifics:
    children = _children(process)
    if not children:
        return Specifics(done.activity, evidence=("it has no running child process",))
    return _of_children(done.code, children)


def _of_children(code: WaitCode, children: Sequence[Row], *evidence: str) -> Specifics:
    names = [process_name(child) for child in children]
    running = [
        name
        for child, name in zip(children, names, strict=True)
        if child.get("state") in ("R", "D")
    ]
    stopped = [
        name
        for child, name in zip(children, names, strict=True)
        if child.get("state") in ("T", "t")
    ]
    states = (
        *(f"{name} runs" for name in running[:_MOST]),
        *(f"{name} is stopped" for name in stopped[:_MOST]),
    )
    rested = [float(r) for child in children if (r := child.get("rested_s")) is not None]
    since = min(rested, default=None)
    activity = Activity(code, join_names(names))
    return Specifics(activity, names[0], (*evidence, *states), bool(running), since)


def _children(process: SampledProcess) -> list[Row]:
    """Its running children, without the helper of multiprocessing that outlives every pool."""
    return [
        row
        for row in _rows(process, "children")
        if row.get("state") != "Z" and _HELPER not in str(row.get("command") or "")
    ]


FORK = "(a fork of it)"
"""Of a child process that runs its parent's program. No fork can use its parent's connection to Ray."""


def process_name(row: Row) -> str:
    """`pid 812 (sleep 100)`; a process that runs its parent's program is a fork of it."""
    if row.get("is_fork"):
        return f"pid {row.get('pid')} {FORK}"
    command = " ".join(str(row.get("command") or "").split())
    short = cut(command, _COMMAND)
    return f"pid {row.get('pid')} ({short})" if short else f"pid {row.get('pid')}"


# ------------------------------------------------------------------ locks


_OF_THREADING = ("Lock", "RLock")


def _lock(process: SampledProcess, done: Doing) -> Specifics:
    """A lock's type and name, and its holder as far as that is recorded."""
    rows = _rows(process, "locks")
    if done.call == "file-lock":
        return _file_lock(process, done, [row for row in rows if row.get("type") == "file"])
    own = next((row for row in rows if done.thread.tid and row.get("tid") == done.thread.tid), None)
    if own is None or done.code != "lock":
        return Specifics(done.activity)
    kind, name = own.get("type") or "lock", own.get("name")
    unnamed = f"a threading.{kind}" if kind in _OF_THREADING else f"a {kind}"
    lock = f"the {kind} {name}" if name else unnamed
    if not own.get("holder_tid") and not own.get("seen_in"):
        lock += " (which it may already hold)"
    return Specifics(Activity("named-lock", lock), evidence=tuple(_holder(done, own)))


def _holder(done: Doing, row: Row) -> Iterator[str]:
    holder = row.get("holder_tid")
    if holder == done.thread.tid:
        yield "it holds the lock itself"
    elif holder:
        yield f"thread {row.get('holder') or holder} holds the lock"
    else:
        for place in (row.get("seen_in") or ())[:_MOST]:
            where = f"{place.get('function')}, line {place.get('line')}"
            yield f"thread {place.get('tid')} has the same lock, in {where}"
        if not row.get("seen_in"):
            yield (
                "no other thread refers to this lock: the waiting thread may hold it already, acquired in a "
                "calling function"
            )


def _file_lock(process: SampledProcess, done: Doing, rows: Sequence[Row]) -> Specifics:
    file = _file(process, done)
    path = file.on if file else ""
    if not rows:
        return Specifics(Activity("file-lock", path), path)
    pid = rows[0].get("holder_pid")
    name = process_name({"pid": pid, "command": rows[0].get("holder")})
    holder = "the process itself" if pid == process.pid else name
    held = f"{path}, held by {holder}" if path else f"held by {holder}"
    return Specifics(Activity("file-lock", held), path if pid == process.pid else name)


# ------------------------------------------------------------------ rows


def holder_of(process: SampledProcess, done: Doing) -> list[int]:
    """The threads that hold the lock a thread waits for, or may."""
    for row in _rows(process, "locks"):
        if row.get("tid") == done.thread.tid and done.thread.tid:
            if row.get("holder_tid"):
                return [int(row["holder_tid"])]
            return [int(place["tid"]) for place in row.get("seen_in") or () if place.get("tid")]
    return []


def tracer_of(process: SampledProcess) -> Row | None:
    """The process that traces this one."""
    row = process.clues.get("tracer")
    return row if isinstance(row, Mapping) and row.get("pid") else None


def _rows(process: SampledProcess, name: str) -> list[Row]:
    rows = process.clues.get(name)
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, Sequence) else []


def _tids(row: Row) -> Sequence[object]:
    tids = row.get("tids")
    return tids if isinstance(tids, list) else ()


_BY_KIND: Mapping[Kind, Callable[[SampledProcess, Doing], Specifics]] = {
    "socket": _socket,
    "unknown": _unknown,
    "disk": _disk,
    "subprocess": _subprocess,
    "lock": _lock,
}

"""The lock that a thread waits for, and its holder, if that can be determined.

A Python lock is an object with a C semaphore: a waiting thread is in `futex` at the semaphore's address,
which follows the object's header. In an `RLock`, its owner and the owner's count follow
(`Modules/_threadmodule.c`, CPython 3.10 to 3.13). The object is searched among the locals, then in the heap;
it must point to that semaphore, and its type must be named `lock` or `RLock`. A plain `threading.Lock` has no
owner: instead, the threads are reported that have the same lock among their locals.

From 3.14 on, a lock is one byte of its object. Each waiting thread has a semaphore on its own stack, right
after the address of that byte (`struct wait_entry` in `Python/parking_lot.c`).

The kernel lists file locks and the processes that wait for them in `/proc/locks`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from raydoctor.model.patterns import pattern
from raydoctor.observe.processes.redact import command_line
from raydoctor.observe.stacks import pyspy
from raydoctor.observe.stacks.calls import futex_of
from raydoctor.observe.stacks.memory import ProcessMemory, memory
from raydoctor.observe.stacks.pyspy import Dump
from raydoctor.observe.stacks.threads import KernelThread

Row = dict[str, Any]
_HEADER = 16
_TYPES = {"_thread.lock": "Lock", "_thread.RLock": "RLock"}
_CHUNK = 8 << 20
_MOST = 1 << 30
"""Bytes of the heap that are searched."""
_PATIENCE = 0.5
"""Seconds of CPU time that the search may take."""
_PAGE = 4096


class _Lock(NamedTuple):
    address: int
    type: str
    owner: int
    """Python's id of the thread (`threading.get_ident`); 0 if the lock is free, or keeps no owner."""
    depth: int
    """How often the owner acquired it."""


def may_wait(thread: dict[str, Any]) -> bool:
    """Whether a thread may wait for a lock, judged by its stack: idle, and not in a known other call."""
    top = next((f for f in pyspy.frames(thread) if not f.get("module")), None)
    if top is None or thread.get("active") or thread.get("owns_gil"):
        return False
    known = (
        "threading.py",
        "concurrent/futures/thread.py",
        "selectors.py",
        "ray/_private/worker.py",
    )
    return not str(top.get("filename") or "").endswith(known)


def of_threads(pid: int, threads: Mapping[int, KernelThread], dump: Dump) -> Iterator[Row]:
    """The locks that threads wait for."""
    waiting = {int(each.get("os_thread_id") or 0): each for each in dump.threads if may_wait(each)}
    futexes = {tid: futex_of(threads[tid]) for tid in waiting if tid in threads}
    wanted = {tid: address for tid, address in futexes.items() if address}
    if not wanted:
        return
    with memory(pid) as found:
        if found is None:
            return
        for tid, address in wanted.items():
            lock = (
                _parked(found, address)
                or _among_locals(found, dump, address)
                or _in_heap(found, pid, address)
            )
            if lock is not None:
                yield _row(tid, lock, dump)


def _row(tid: int, lock: _Lock, dump: Dump) -> Row:
    holder = next((t for t in dump.threads if lock.owner and t.get("thread_id") == lock.owner), {})
    seen = {
        int(t.get("os_thread_id") or 0): place for t in dump.threads for place in _places(t, lock)
    }
    own = seen.pop(tid, {})
    return {
        "tid": tid,
        "type": lock.type,
        "name": own.get("name", ""),
        "address": f"{lock.address:#x}",
        "holder_tid": holder.get("os_thread_id"),
        "holder": holder.get("thread_name") or "",
        "count": lock.depth,
        "seen_in": [{"tid": other, **place} for other, place in seen.items()],
    }


def _places(thread: dict[str, Any], lock: _Lock) -> Iterator[Row]:
    """The innermost frame of a thread with the lock among its locals."""
    for frame in pyspy.frames(thread):
        for variable in frame.get("locals") or ():
            if variable.get("addr") == lock.address:
                yield {
                    "name": str(variable.get("name")),
                    "function": str(frame.get("name")),
                    "line": frame.get("line"),
                }
                return


def _parked(found: ProcessMemory, semaphore: int) -> _Lock | None:
    """The lock for which a thread of Python 3.14 waits at this semaphore on its stack."""
    (byte,) = found.words(semaphore - 8) or (0,)
    words = found.words(byte - _HEADER, 5) or (*found.words(byte - _HEADER, 3), 0, 0)
    if byte < _HEADER or len(words) != 5 or (kind := _type(found, words[1])) is None:
        return None
    owner, again = words[3:] if kind == "RLock" else (0, 0)
    # `_PyRecursiveMutex` counts from the second acquisition on.
    return _Lock(byte - _HEADER, kind, owner, again + 1 if owner else 0)


def _among_locals(found: ProcessMemory, dump: Dump, semaphore: int) -> _Lock | None:
    for thread in dump.threads:
        for frame in pyspy.frames(thread):
            for variable in frame.get("locals") or ():
                address = int(variable.get("addr") or 0)
                if "_thread." in str(variable.get("repr")) and (
                    lock := _lock(found, address, semaphore)
                ):
                    return lock
    return None


def _lock(found: ProcessMemory, address: int, semaphore: int) -> _Lock | None:
    """The lock object at an address; None if it is not a lock, or has another semaphore."""
    words = found.words(address, 5) or (*found.words(address, 3), 0, 0)
    if len(words) != 5 or words[2] != semaphore:
        return None
    kind = _type(found, words[1])
    if kind is None:
        return None
    return _Lock(address, kind, *(words[3:] if kind == "RLock" else (0, 0)))


def _type(found: ProcessMemory, address: int) -> str | None:
    """The kind of lock of a type object; None if it is another type."""
    name = found.words(address + 24)
    return _TYPES.get(found.text(name[0])) if name else None


def _in_heap(found: ProcessMemory, pid: int, semaphore: int) -> _Lock | None:
    """A lock in an attribute, a global or a closure: a lock object in the heap with this semaphore."""
    pointer = semaphore.to_bytes(8, "little")
    deadline, searched = time.thread_time() + _PATIENCE, 0
    for begin, end in _heap(pid):
        for start in range(begin, end, _CHUNK):
            data = found.read(start, min(_CHUNK, end - start))
            searched += len(data)
            at = data.find(pointer)
            while at >= 0:
                if at % 8 == 0 and (lock := _lock(found, start + at - _HEADER, semaphore)):
                    return lock
                at = data.find(pointer, at + 1)
            if searched > _MOST or time.thread_time() > deadline:
                return None
    return None


def _heap(pid: int) -> Iterator[tuple[int, int]]:
    """Address ranges of writable anonymous memory that are not a thread's stack."""
    line_of = pattern(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ (\d+) *(.*)")
    guard = 0
    with suppress(OSError), open(f"/proc/{pid}/maps") as stream:
        for line in stream:
            match = line_of.match(line)
            if match is None:
                continue
            begin, end = int(match[1], 16), int(match[2], 16)
            is_own = match[3] == "rw-p" and match[4] == "0" and match[5] in ("", "[heap]")
            # glibc places an inaccessible guard page below each stack.
            if is_own and guard != begin:
                yield begin, end
            guard = end if match[3] == "---p" and end - begin == _PAGE else 0


# ------------------------------------------------------------------ locks of files


def of_files(pid: int) -> Iterator[Row]:
    """File locks that the process waits for (`flock`, `fcntl`), and their holders."""
    holder = 0
    for words in _table():
        # `7: FLOCK  ADVISORY  WRITE 471 08:01:1234 0 EOF`; waiting processes follow as `7: -> FLOCK …`.
        if len(words) > 5 and words[1] == "->":
            if words[5] == str(pid) and holder:
                command = command_line(holder)[:200]
                lock = {"type": "file", "holder_pid": holder, "holder": command}
                yield {"tid": 0, **lock, "inode": words[6] if len(words) > 6 else ""}
        elif len(words) > 4 and words[4].lstrip("-").isdigit():
            holder = max(0, int(words[4]))


def _table() -> list[list[str]]:
    try:
        with open("/proc/locks") as stream:
            return [line.split() for line in stream]
    except OSError:
        return []

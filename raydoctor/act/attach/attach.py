"""Starts a debugger (debugpy) in a running process, a worker or a driver, which need not be prepared.

The ways in this order; each is used only if the previous one is not available:

1. The process already listens: after an earlier attach, or because Ray's own `breakpoint()` waits in it.
2. It is armed (`raydoctor.arm()`): a signal is enough.
3. Its main thread executes a few injected lines (`inject.py`) that install a signal handler and start a
   thread; that thread imports debugpy and listens. raydoctor's own code injects them; where it is not
   supported, gdb or `sys.remote_exec` does. They get the same lines instead of `debugpy --pid`, which loads a
   library, stops every thread until debugpy is loaded, takes 1.7 s and 212 MB, and leaves a process (1.8.22).

If none works, the stack is still available.

The main thread is stopped for less than a millisecond each time. A failed attempt leaves nothing behind; that
is verified, and reported otherwise. Ray declares a worker dead that is stopped for seven minutes (2.60.0).
"""

from __future__ import annotations

import ctypes
import ipaddress
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from raydoctor.act.attach import arm, gil, progress
from raydoctor.act.attach import inject as _inject
from raydoctor.act.attach.gil import GilSample
from raydoctor.act.attach.handshake import Handshake, handshake
from raydoctor.act.attach.obstacles import Obstacle, handles, is_armed, obstacle, status
from raydoctor.act.audit import Audit
from raydoctor.act.signals.process import Identity, identity_of
from raydoctor.model import paste
from raydoctor.model.errors import RaydoctorError
from raydoctor.observe.machine import holdings
from raydoctor.observe.processes import proc

__all__ = [
    "AttachTarget",
    "Attached",
    "Listening",
    "NotAttachedError",
    "Obstacle",
    "attach",
    "has_closed",
    "listening",
    "obstacle",
    "wake",
    "waking",
]
LOOPBACK = "127.0.0.1"
GRACE = 5.0
"""Seconds until the process must listen. An idle machine needs one.

The process must import debugpy, which needs 0.2 to 0.4 s of processor time, and more than 2000 system calls
that release the GIL. Each thread that competes for the GIL multiplies both.
"""
_VALID = 20.0
"""Seconds for which a request is valid: the import continues after a timeout."""
_PULSE = 0.25
"""Seconds between two signals to a thread in native code that checks for signals now and then (`re`)."""
_OFTEN = 0.02
_NEXT_STEP = 0.6
"""Seconds within which a thread that runs Python code executes a pending call, even on a busy machine."""
_AGAIN = 5
"""Further injections while a request is queued and not taken."""
_END_OF_CALL = 3.0
"""Seconds to wait for the end of a native call that blocks every way in."""
_RETRIES, _RETRY_PAUSE = 2, 0.2
"""Another tracer, such as py-spy or a monitoring agent, may hold the process for a moment."""
_SETTLES = 1.0
_SAME_START = 0.02
"""Seconds: start times are rounded in JSON."""
_TGKILL = {"x86_64": 234, "aarch64": 131}

ReportProgress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class AttachTarget:
    """The process to attach to."""

    pid: int
    started_at: float = 0.0
    """Its start time, which with the pid is its identity; 0: any process with the pid."""
    worker_id: str = ""
    node: str = ""
    debugger_port: int = 0
    """Port of Ray's own debugger, from the worker's row."""


@dataclass(frozen=True, slots=True)
class Attached:
    """The address of the debugger, and how it was started."""

    pid: int
    host: str
    port: int
    method: str
    """`listening`, `ray-breakpoint`, `armed`, `entered` (before), `injected`, `gdb`, `remote-exec`."""
    notes: tuple[str, ...] = ()
    """Remarks for the user."""
    wants_waking: bool = False
    """Whether its main thread holds the GIL in native code: the debugger answers only while it is woken."""
    is_temporary: bool = False
    """Whether the port was opened for one inspection and must be closed afterwards."""


class Listening(NamedTuple):
    """A debugger that already listens in a process."""

    host: str
    port: int
    method: str
    """`listening` or `ray-breakpoint`."""
    wakes: bool
    """Whether its main thread can be woken for a debugger's pause."""


class NotAttachedError(RaydoctorError):
    """The process could not be entered; `why` is one of `Obstacle.what`, `gil`, `late` or `still`."""

    def __init__(self, why: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.why = why


def attach(  # noqa: PLR0913 - one more than usual, each with a default that is safe
    target: AttachTarget,
    *,
    port: int | None = None,
    host: str = LOOPBACK,
    grace: float = GRACE,
    open_for: float = 0.0,
    report_progress: ReportProgress = lambda doing: None,
    audit: Audit | None = None,
) -> Attached:
    """Start a debugger in that process, and return once it listens.

    `open_for`: seconds after which the port closes by itself; 0: it stays open until it is closed.
    Raises NotAttachedError if that fails; the process is then unchanged, or the message says what remains.
    """
    identity = _identified(target)
    if there := listening(target.pid, target.debugger_port):
        notes = _notes(target.pid, there, port, host)
        made = Attached(target.pid, there.host, there.port, there.method, notes)
        return replace(made, wants_waking=_wants_waking(target.pid))
    is_prepared = is_armed(target.pid)
    for each in obstacle(target.pid):
        if not (is_prepared and each.only_injection):
            raise NotAttachedError(each.what, each.why, each.fix)
    audit = audit or Audit("attach")
    try:
        with closing(handshake(target.pid)) as shake:
            was_entered = shake.earlier().is_there and handles(target.pid)
            shake.ask(host, port or 0, max(grace, _VALID) + _SETTLES, open_for)
            entry = _Entry(
                identity, shake, grace, report_progress, audit, is_temporary=bool(open_for)
            )
            if not is_prepared and not (was_entered and entry.by_signal_soon()):
                return entry.finished(entry.by_injection())
            return entry.finished(entry.by_signal() if is_prepared else "entered")
    except OSError as error:
        raise NotAttachedError(
            "system", f"pid {target.pid} cannot be reached: {error.strerror or error}"
        ) from error


def listening(pid: int, debugger_port: int = 0) -> Listening | None:
    """The debugger that already listens in it, if any. `debugger_port`: of Ray's own debugger."""
    if not proc.LINUX:
        return None
    mine = holdings.ports([pid]).get(pid, ())
    with suppress(OSError, IndexError):
        reply = handshake(pid).earlier()
        if (
            reply.port
            and (reply.port in mine or not mine)
            and reply.host in _hosts(pid, reply.port)
        ):
            return Listening(reply.host, reply.port, "listening", handles(pid))
    if debugger_port and debugger_port in mine:
        host = next(iter(_hosts(pid, debugger_port)), LOOPBACK)
        return Listening(host, debugger_port, "ray-breakpoint", handles(pid))
    return None


def has_closed(pid: int, host: str, port: int) -> bool:
    """Whether the process stops listening there within a second; records that for later attaches."""
    deadline = time.monotonic() + _SETTLES
    while host in _hosts(pid, port):
        if time.monotonic() > deadline:
            return False
        time.sleep(_OFTEN)
    with suppress(OSError, IndexError):
        handshake(pid).note_closed()
    return True


def wake(pid: int) -> bool:
    """Have its main thread run Python code for a moment, for a debugger's pause; whether a signal was sent.

    A process without a handler ignores the signal (signal(7)).
    """
    if not handles(pid):
        return False
    # To the main thread itself: a signal to the process may reach another thread.
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "tgkill"):  # glibc >= 2.30
        return bool(libc.tgkill(pid, pid, arm.SIGNAL) == 0)
    return bool(libc.syscall(_TGKILL[platform.machine()], pid, pid, arm.SIGNAL) == 0)


@contextmanager
def waking(attached: Attached) -> Iterator[None]:
    """While its debugger is used: have a main thread that keeps the GIL release it now and then.

    Does nothing for other threads, because a signal cuts a bare sleep in C code short.
    """
    if not attached.wants_waking:
        yield
        return
    done = threading.Event()

    def pulse() -> None:
        while not done.wait(_OFTEN) and wake(attached.pid):
            pass

    thread = threading.Thread(target=pulse, daemon=True, name="raydoctor-waking")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


# ------------------------------------------------------------------ one entry


@dataclass(slots=True)
class _Entry:
    """One attempt to enter one process."""

    identity: Identity
    shake: Handshake
    grace: float
    report_progress: ReportProgress
    audit: Audit
    pulses: bool = False
    """Whether its main thread holds the GIL, so that a signal lets the import continue (`arm.wake`)."""
    keeps_gil: bool = False
    """Whether it holds the GIL in native code."""
    is_temporary: bool = False
    """Whether the port is opened for one inspection."""
    to_be_taken: float = 3600.0
    """Seconds until the process must take the request, at most the grace."""
    began: float = field(default_factory=time.monotonic)

    def by_signal(self) -> str:
        """Enter an armed process."""
        self.report_progress("sending a signal to the armed process")
        sample = gil.sample(self.identity.pid)
        self.pulses = sample.main_holds_gil or sample.is_unknown
        self.keeps_gil = sample.main_holds_gil and sample.stays
        wake(self.identity.pid)
        self._write("signal", signal.Signals(arm.SIGNAL).name)
        return "armed"

    def by_signal_soon(self) -> bool:
        """Enter a process that has a handler from an earlier attach; whether it responds soon."""
        self.by_signal()
        return self._is_taken(_NEXT_STEP)

    def by_injection(self) -> str:
        """Enter an unprepared process."""
        pid = self.identity.pid
        sample = gil.sample(pid)
        if sample.is_stuck:
            raise NotAttachedError(
                "gil",
                f"pid {pid} cannot be entered: native code in {sample.holder} and is blocked",
                _stack(pid),
            )
        self.report_progress("injecting a few lines into its main thread")
        self.pulses = sample.main_holds_gil
        made = again = self._inject(now=False, sample=sample)
        if not made.did:
            raise NotAttachedError(
                "ptrace", f"pid {pid} could not be entered: {made.problem}", _stack(pid)
            )
        for _ in range(_AGAIN):
            if again.did != "queued" or self._is_taken(_NEXT_STEP):
                break
            # It executes pending calls only after its native call has ended. A process that waits for
            # a processor may begin that call after it was sampled.
            sample = gil.sample(pid)
            self.pulses = self.keeps_gil = sample.main_holds_gil
            again = self._inject(now=True, sample=sample)
            if not again.did:
                self.to_be_taken = _END_OF_CALL
        return made.way

    def finished(self, method: str) -> Attached:
        """Wait until it listens. Raises NotAttachedError."""
        self.report_progress("waiting until debugpy listens in it")
        began = time.monotonic()
        reply = self.shake.answered(0)
        while not reply.is_there and (left := self._patience(time.monotonic() - began)) > 0:
            if self.pulses:
                wake(self.identity.pid)
            reply = self.shake.answered(min(_PULSE, left))
            if status(self.identity.pid).get("State", "Z")[0] in "ZX":
                raise NotAttachedError("gone", f"pid {self.identity.pid} has ended meanwhile")
        if progress.is_stuck(self.identity.pid):
            raise self._stuck()
        pid = self.identity.pid
        if not reply.port:
            raise self._failure(reply.problem)
        if reply.host not in _hosts(pid, reply.port):
            raise self._failure(f"it does not listen on {reply.host}:{reply.port}")
        found = Listening(reply.host, reply.port, method, handles(pid))
        is_temporary = self.is_temporary and not reply.was_open
        notes = _notes(pid, found, is_temporary=is_temporary)
        if self.keeps_gil and method not in (
            "armed",
            "entered",
        ):  # no Python code ran for a while
            notes += (f"{_KEEPS} kill -URG {pid}",)
        return Attached(
            *(pid, found.host, found.port, method, notes),
            wants_waking=self.keeps_gil or _wants_waking(pid),
            is_temporary=is_temporary,
        )

    def _patience(self, waited: float) -> float:
        """Seconds left of the grace period, which includes the injection, or for the request to be taken."""
        left = max(self.grace - (time.monotonic() - self.began), min(self.grace, _SETTLES) - waited)
        return left if self.shake.is_taken else min(left, self.to_be_taken - waited)

    def _stuck(self) -> NotAttachedError:
        pid, seconds = self.identity.pid, progress.STILL
        self._write("still", f"no processor time for {seconds:g} s")
        return NotAttachedError(
            "still",
            f"pid {pid} has made no progress for {seconds:g} s since raydoctor entered it: its threads wait "
            "for the GIL",
            _stack(pid),
        )

    def _failure(self, problem: str) -> NotAttachedError:
        pid, was_not_taken = self.identity.pid, self.shake.withdraw()
        if problem:
            why = f"debugpy does not start in pid {pid}: {problem}{self._left()}"
            return NotAttachedError("debugpy", why, _DEBUGPY)
        if was_not_taken:
            reason = gil.sample(pid).holder or _not_taken(progress.competitors(pid))
            waited = min(self.grace, self.to_be_taken)
            why = f"pid {pid} did not respond within {waited:g} s: {reason}"
            return NotAttachedError("gil", why, _stack(pid))
        return NotAttachedError(
            "late",
            f"debugpy did not start in pid {pid} within {self.grace:g} s: "
            f"its import competes with {progress.competitors(pid)} other threads for the GIL",
            paste.shell(
                "Its import continues, takes about 0.4 s of CPU time, and then opens the port: "
                "attach again in a moment. Until then: raydoctor stack --native {pid:pid}",
                pid=pid,
            ),
        )

    def _left(self) -> str:
        """What remains of raydoctor in the process; verified by its signal handlers."""
        deadline = time.monotonic() + _SETTLES
        while handles(self.identity.pid) and not is_armed(self.identity.pid):
            if time.monotonic() > deadline:
                return "; a handler of SIGURG, which does nothing, remains in it"
            time.sleep(0.05)
        return ""

    def _inject(self, *, now: bool, sample: GilSample) -> _inject.Injection:
        pid = self.identity.pid
        start = self.shake.start
        text = self.shake.text()
        made = _inject.inject(pid, start, text, now=now, holds_gil=sample.main_holds_gil)
        for _ in range(_RETRIES):
            if made.did:
                break
            time.sleep(_RETRY_PAUSE)
            made = _inject.inject(pid, start, text, now=now, holds_gil=sample.main_holds_gil)
        self._write("inject", made.did or made.problem)
        held = status(pid)
        if (
            held.get("TracerPid", "0") != "0"
        ):  # raydoctor's child has ended, so another process traces it
            self.report_progress(
                f"pid {pid} is traced by pid {held['TracerPid']}, which raydoctor did not start"
            )
        return made

    def _is_taken(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self.shake.is_taken:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def _write(self, what: str, result: str) -> None:
        pid, started_at = self.identity
        self.audit.write(what, pid=pid, started_at=started_at, result=result)


_KEEPS = (
    "Its main thread is in native code that keeps the GIL: a debugger gets an answer only while this is "
    "repeated:"
)
_DEBUGPY = "Install debugpy for that Python, or in the job's runtime_env: {'pip': ['debugpy']}"


def _not_taken(competitors: int) -> str:
    """Why a process in which no thread holds the GIL for long did not respond."""
    if competitors > 1:  # one is normal for a moment
        return f"{competitors} threads compete for the GIL"
    return "its main thread runs no Python code"


def _stack(pid: int) -> str:
    return paste.shell("Its stack is available: raydoctor stack --native {pid:pid}", pid=pid)


def _identified(target: AttachTarget) -> Identity:
    found = identity_of(target.pid)
    if found is None:
        raise NotAttachedError("gone", f"pid {target.pid} has ended")
    if target.started_at and abs(found.started_at - target.started_at) > _SAME_START:
        raise NotAttachedError("gone", f"pid {target.pid} now belongs to another process")
    return found


def _wants_waking(pid: int) -> bool:
    sample = gil.sample(pid)
    return sample.main_holds_gil and sample.stays


def _permitted(pid: int) -> str:
    """The users that can connect to the port (`door.py`)."""
    user = proc.owner(pid)
    return f"{proc.user(user)} and root" if user else "root"


def _notes(
    pid: int,
    there: Listening,
    port: int | None = None,
    host: str = LOOPBACK,
    *,
    is_temporary: bool = False,
) -> tuple[str, ...]:
    notes = []
    if port and port != there.port:
        notes.append(
            f"It already listens on port {there.port} and cannot listen on {port} as well."
        )
    if host not in (LOOPBACK, there.host):
        notes.append(f"It already listens on {there.host} and cannot listen on {host} as well.")
    if there.method == "ray-breakpoint" and there.host != LOOPBACK:
        notes.append(
            f"Ray has bound {there.host}:{there.port} without a password: everyone who can reach it can "
            "run code in the process."
        )
    elif there.host not in (LOOPBACK, "::1"):
        notes.append(
            f"{there.host}:{there.port} has no password: until it is closed, everyone who can reach it can "
            "run code in the process."
        )
    elif there.method != "ray-breakpoint" and not is_temporary:
        notes.append(
            f"{there.host}:{there.port} stays open until it is closed or the process ends. "
            f"Only {_permitted(pid)} can connect."
        )
    if not there.wakes:
        notes.append(
            "The process does not handle SIGURG: threads that wait in native code cannot be paused."
        )
    return tuple(notes)


def _hosts(pid: int, port: int) -> list[str]:
    """The local addresses with that port in its network namespace (`/proc/PID/net/tcp`, proc(5))."""
    rows: list[list[str]] = []
    for name in ("tcp", "tcp6"):
        with suppress(OSError), open(f"/proc/{pid}/net/{name}", encoding="ascii") as stream:
            rows += map(str.split, stream)
    bound = (row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}"))
    return [_address(each.partition(":")[0]) for each in bound]


def _address(spelled: str) -> str:
    """The kernel writes words of 4 bytes, in the machine's order."""
    words = (spelled[at : at + 8] for at in range(0, len(spelled), 8))
    return str(ipaddress.ip_address(b"".join(int(w, 16).to_bytes(4, sys.byteorder) for w in words)))

"""Runs a driver until it ends, reaches its time limit or raydoctor gets a signal; then ends its processes.

On Linux, raydoctor adopts all orphans of the driver, at any depth and in any session
(PR_SET_CHILD_SUBREAPER), so it knows every remaining process: daemons, and the cluster that the driver
started. Elsewhere it records the driver's tree while the driver runs, and the processes that workers of a
cluster start that the driver only joined (`lineage.py`). The Ray sessions of a driver are found by its open
files, which include its own log (Ray 2.9.3 to 2.60.0).
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import BinaryIO, Literal, NamedTuple, TypeVar

from raydoctor.act.audit import Audit
from raydoctor.act.run import task_events
from raydoctor.act.run.guard import ProcessGuard
from raydoctor.act.run.tee import Tee, flush_own
from raydoctor.act.signals import process
from raydoctor.act.signals.process import Identity, Outcome
from raydoctor.act.tracking.lineage import JoinedClusters
from raydoctor.capture import owners
from raydoctor.model.patterns import pattern
from raydoctor.observe.processes import proc
from raydoctor.observe.processes.redact import command_line

TIMED_OUT = 124
"""Exit code, as of timeout(1)."""
NOT_FOUND, NOT_STARTED = 127, 126
"""Exit codes, as of a shell: no such program; a program that cannot be executed."""
_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
_PR_SET_CHILD_SUBREAPER = 36
_INTERVALS = 0.5, 30.0
"""Minimum and maximum seconds between two samples of the process table."""
_SHARE = 0.008
"""Share of a core that samples may take: with many processes, samples are less frequent."""
_BY_ITSELF = 3.0
"""Seconds that a cluster takes to shut down after its driver has ended."""
_IMPATIENT = 1.0
"""Grace period in seconds after a second signal."""
_DRIVER_LOG = r"^(.*/session_[^/]+)/logs/python-core-driver-([0-9a-f]{8})[0-9a-f]*_(\d+)\.log$"
"""Session, job and pid: a driver's id begins with its job's, `01000000ffff…`."""

_T = TypeVar("_T")
Why = Literal["ended", "timeout", "signal"]


class WaitEnd(NamedTuple):
    """Why a wait ended."""

    why: Why
    number: int = 0
    """Number of the signal that raydoctor got."""


@dataclass(slots=True)
class Driver:
    """A driver that runs or has ended."""

    child: subprocess.Popen[bytes]
    tee: Tee
    identity: Identity
    started_at: float
    """Epoch seconds."""
    signals: _Signals
    guard: ProcessGuard
    sessions: dict[str, None] = field(default_factory=dict)
    """Folders of the Ray sessions that it was connected to, in order."""
    tree: dict[int, Identity] = field(default_factory=dict)
    """All processes ever sampled in its tree."""
    joined: JoinedClusters = field(default_factory=JoinedClusters)
    names: dict[Identity, str] = field(default_factory=dict)
    _due: float = 0.0
    """Time of the next sample."""
    _is_shared: bool = False
    """Whether other threads may wait for their own children."""

    @property
    def code(self) -> int:
        """Its exit code as a shell reports it: 128 + n if signal n ended it."""
        code = self.child.returncode
        if code is None:
            return 128 + signal.SIGKILL
        return 128 - code if code < 0 else code

    def wait(self, seconds: float | None) -> WaitEnd:
        """Wait until it ends, the time is up, or raydoctor gets a signal."""
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            if self.child.poll() is not None:
                self.joined.sample()  # its workers exit soon after it
                return WaitEnd("ended")
            if number := self.signals.take():
                return WaitEnd("signal", number)
            now = time.monotonic()
            if until is not None and now >= until:
                return WaitEnd("timeout")
            self._sample(now)
            # SIGCHLD ends the sleep as well.
            self.signals.sleep(min(self._due, until or self._due) - time.monotonic())
            self._reap()

    def find_sessions(self) -> None:
        """Find its sessions by the logs that it left: it may have ended before the first sample."""
        from raydoctor.act.zombies.history import session_folders
        from raydoctor.observe.processes import discover

        pids = {self.child.pid, *self.tree}
        for folder in session_folders(c.session_dir for c in discover.clusters()):
            if owners.of_folder(folder) not in owners.trusted():
                continue  # any user can make a session with a log of this name
            for path in _changed_since(f"{folder}/logs", self.started_at):
                found = pattern(_DRIVER_LOG).match(path)
                if found and int(found[3]) in pids:
                    self.sessions[folder] = None

    def jobs(self, session: str) -> frozenset[str]:
        """The ids of its jobs in a session, by the logs that Ray names after them."""
        pids = {self.child.pid, *self.tree}
        found = map(pattern(_DRIVER_LOG).match, _own_files(f"{session}/logs"))
        return frozenset(m[2] for m in found if m and int(m[3]) in pids)

    def is_own(self, pids: Iterable[int]) -> bool:
        """Whether any of these pids belongs to its tree."""
        tree = {target.pid for target in self._tree(proc.table())}
        return not tree.isdisjoint(pids)

    def meanwhile(self, work: Callable[[], _T]) -> _T | None:
        """Run a long operation in a thread; None if raydoctor got a signal first."""
        self._is_shared = True
        results: list[_T] = []
        failures: list[BaseException] = []

        def run() -> None:
            try:
                results.append(work())
            except BaseException as error:
                failures.append(error)
            self.signals.wake()

        threading.Thread(target=run, name="look", daemon=True).start()
        while not results and not failures:
            if self.signals.take():
                return None
            self.signals.sleep(1.0)
        if failures:
            raise failures[0]
        return results[0]

    def stop(self, number: int, grace: float) -> None:
        """Forward a signal to it; end it if it still runs after `grace` seconds, or at a second signal."""
        audit = Audit("run")
        self.joined.sample()
        # SIGINT goes to the whole process group, as from a terminal: Ray's daemons ignore it. Any other
        # signal would end the daemons before the driver has disconnected.
        for member in self._group() if number == signal.SIGINT else [self.identity]:
            process.send(member, number, audit=audit)
        why = self.wait(grace).why
        if why == "ended":
            return
        # Shorter if SIGTERM was already sent, or the user has sent a second signal.
        more = 0.0 if number == signal.SIGTERM else _IMPATIENT if why == "signal" else grace
        process.end([self.identity], more, audit=audit)
        with suppress(subprocess.TimeoutExpired):  # a process that waits for a disk cannot be ended
            self.child.wait(1.0)

    def clear(self, grace: float) -> list[Outcome]:
        """End its remaining processes after they had time to exit by themselves; the outcomes."""
        patience = time.monotonic() + min(_BY_ITSELF if self.sessions else 0.0, grace)
        while self._is_going() and time.monotonic() < patience and not self.signals.take():
            time.sleep(0.05)
        left = self._left()
        self.names = {t: _name(t.pid) for t in left}
        outcomes = process.end(left, grace, more=self._left, audit=Audit("run")) if left else []
        self.tee.finish(1.0)
        return outcomes

    # -------------------------------------------------------------- its tree

    def _group(self) -> list[Identity]:
        """The processes that a terminal would signal."""
        table = proc.table().values()
        return [Identity(p.pid, p.started_at) for p in table if p.pgid == self.identity.pid]

    def _left(self) -> list[Identity]:
        """Living processes of its tree, and processes that ended workers of its jobs have started."""
        return list(dict.fromkeys([*self._tree(proc.table()), *self.joined.left()]))

    def _is_going(self) -> bool:
        """Whether processes remain that may still exit by themselves."""
        return bool(self._tree(proc.table())) or self.joined.is_awaited()

    def _tree(self, table: dict[int, proc.Process]) -> list[Identity]:
        """Living processes of its tree."""
        alive = {pid: p for pid, p in table.items() if p.state != "Z"}
        me = os.getpid()
        roots = [p.pid for p in alive.values() if p.ppid == me and p.pid != self.guard.pid]
        roots += [pid for pid, identity in self.tree.items() if _is(alive.get(pid), identity)]
        return [Identity(p, alive[p].started_at) for p in proc.trees(alive, roots, without=me)]

    def _sample(self, now: float) -> None:
        """Record its tree, the sessions that are open in it, and the processes that their workers start."""
        if now < self._due:
            return
        began = time.thread_time()
        table = proc.table()
        tree = self._tree(table)
        self.guard.record(table[target.pid] for target in tree)
        for target in tree:
            self.tree[target.pid] = target
            for path in proc.logs(target.pid):
                if found := pattern(_DRIVER_LOG).match(path):
                    self.sessions[found[1]] = None
                    self.joined.add(found[1], found[2])
        self.joined.sample(table)
        task_events.limit(self.sessions, self.started_at)
        pause = (time.thread_time() - began) / _SHARE
        self._due = now + min(max(pause, _INTERVALS[0]), _INTERVALS[1])

    def _reap(self) -> None:
        """Reap ended orphans, unless another thread may wait for a child."""
        if self._is_shared or not sys.platform.startswith("linux"):
            return  # elsewhere this process adopts no orphans
        ended_only = os.WEXITED | os.WNOHANG | os.WNOWAIT
        with suppress(ChildProcessError):
            # WNOWAIT: the exit status of the driver must not be lost.
            while (ended := os.waitid(os.P_ALL, 0, ended_only)) is not None:
                if ended.si_pid == self.child.pid:
                    return
                os.waitpid(ended.si_pid, 0)


def _changed_since(folder: str, at: float) -> list[str]:
    """Files of a folder that are ours, if the folder has changed since."""
    with suppress(OSError):
        if os.stat(folder).st_mtime > at - 1.0:
            return _own_files(folder)
    return []


def _own_files(folder: str) -> list[str]:
    """Paths of a folder's drivers' logs that are ours: any user can create files there."""
    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        for each in entries:
            with suppress(OSError):
                if (
                    each.name.startswith("python-core-driver-")
                    and each.stat(follow_symlinks=False).st_uid in owners.trusted()
                ):
                    found.append(f"{folder}/{each.name}")
    return found


def _is(found: proc.Process | None, identity: Identity) -> bool:
    return found is not None and found.started_at == identity.started_at


def _name(pid: int) -> str:
    """Its command line, else its name."""
    command = command_line(pid)
    found = proc.read(pid)
    return command or (found.name if found else "")


# ------------------------------------------------------------------ signals to raydoctor


class _Signals:
    """Signals to raydoctor while a driver runs: queued until taken; each ends a `sleep`."""

    def __init__(self) -> None:
        self._pending: list[int] = []
        self._wakes, self._wake = os.pipe()
        self._is_closed = False
        for end in (self._wakes, self._wake):
            os.set_blocking(end, False)

    def note(self, number: int, frame: FrameType | None) -> None:
        """Queue a signal."""
        if number != signal.SIGCHLD:
            self._pending.append(number)

    def take(self) -> int:
        """The next queued signal; 0 if there is none."""
        return self._pending.pop(0) if self._pending else 0

    def sleep(self, seconds: float) -> None:
        """Sleep until a signal arrives, at most so long."""
        select.select([self._wakes], [], [], max(0.0, seconds))
        with suppress(BlockingIOError):
            os.read(self._wakes, 4096)

    def wake(self) -> None:
        """End the sleep."""
        with suppress(BlockingIOError):
            if not self._is_closed:
                os.write(self._wake, b".")

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Queue signals instead of acting on them in the block; ignored signals stay ignored (nohup)."""
        numbers = [n for n in _SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
        before = {n: signal.signal(n, self.note) for n in (*numbers, signal.SIGCHLD)}
        pipe = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(pipe)
            for number, handler in before.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
            self._is_closed = True
            os.close(self._wakes)
            os.close(self._wake)


# ------------------------------------------------------------------ starting it


@contextmanager
def driver(command: Sequence[str], log: BinaryIO, grace: float = process.GRACE) -> Iterator[Driver]:
    """Start a driver in its own session; its output is shown, and saved in `log`.

    Raises OSError if it cannot be started. Its remaining processes are ended when the block ends, or by a
    guard (with `grace` seconds between SIGTERM and SIGKILL) if this process is killed before.
    """
    _adopt_orphans()
    signals = _Signals()
    with signals.taken(), closing(ProcessGuard(grace)) as guard:
        running = _start(command, log, signals, guard)
        try:
            yield running
        finally:
            if running.child.poll() is None:
                process.end([running.identity], audit=Audit("run"))
            if left := running._left():
                process.end(left, more=running._left, audit=Audit("run"))


def _start(command: Sequence[str], log: BinaryIO, signals: _Signals, guard: ProcessGuard) -> Driver:
    flush_own()
    tee = Tee(log)
    at = time.time()
    # Python buffers output to a pipe: it would be out of order, and lost if the driver is killed.
    added = {"PYTHONUNBUFFERED": "1", **task_events.ENVIRONMENT}
    environment = {**added, **os.environ, **guard.environment}
    child = subprocess.Popen(
        command, stdout=tee.stdout, stderr=tee.stderr, env=environment, start_new_session=True
    )
    tee.begin()
    identity = process.identity_of(child.pid) or Identity(child.pid, at)
    return Driver(child, tee, identity, at, signals, guard)


def _adopt_orphans() -> None:
    """Make this process the parent of all orphans of the driver."""
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

"""Ends processes by identity: the only place where raydoctor sends a signal.

A process is identified by its pid *and* its start time. Before a signal, raydoctor opens a pidfd (Linux 5.3)
and reads the start time again. If the process still runs then, the pidfd refers to the intended process, and
the signal is sent through it: a process that gets the same pid later cannot be hit. On systems without
pidfds, the start time is read immediately before the signal; `System.is_exact` is False, as a race remains.

Never signalled: pid 1, raydoctor itself, its ancestors, and processes of other users unless root requests
that (`all_users`).
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from raydoctor.act.audit import Audit
from raydoctor.act.signals.system import real_system

GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""
_AFTER_KILL = 5.0
"""Seconds that a killed process may take to exit: one that waits for a disk exits only afterwards."""
_AT_ONCE = 256
"""Processes held at a time: each needs a file descriptor, and the usual limit is 1024."""
_ROUNDS = 20
"""Rounds after which processes that keep appearing are reported as running."""
_SAME = 0.005
"""Seconds: start times are counted in ticks of 0.01 s."""

Action = Literal["none", "term", "kill"]
State = Literal["running", "gone", "refused"]


class Identity(NamedTuple):
    """A process: its pid, and when it started (`proc.Process.started_at`)."""

    pid: int
    started_at: float


class Outcome(NamedTuple):
    """The result for one process that was to end."""

    identity: Identity
    action: Action
    """The last signal sent to it."""
    outcome: State
    reason: str = ""
    """Why it was refused or still runs, or how raydoctor knows that it is gone if no signal was sent."""


class Unsent(NamedTuple):
    """A signal that was not sent."""

    why: str
    is_gone: bool = False
    """Whether the process had ended before."""


class System(Protocol):
    """Operations of the operating system; tests replace them."""

    @property
    def is_exact(self) -> bool:
        """Whether a handle refers to a process, not only to a pid."""

    def hold(self, pid: int) -> int | None:
        """A handle on the process that has this pid now; None if there is none."""

    def release(self, handle: int) -> None:
        """Close a handle."""

    def started_at(self, pid: int) -> float | None:
        """When the process that has this pid now started."""

    def signal(self, handle: int, number: int) -> None:
        """Send a signal (0 only checks) to the held process.

        Raises ProcessLookupError if it is gone, PermissionError if it may not be signalled.
        """

    def ended(self, handles: Collection[int], seconds: float) -> set[int]:
        """Handles whose process has ended or is defunct; waits up to `seconds` for all of them."""

    def users(self, pid: int) -> frozenset[int]:
        """Its real and effective user ids; empty if they cannot be read."""

    def protected(self) -> frozenset[int]:
        """Pids of this process and its ancestors."""

    def uid(self) -> int:
        """The effective user id of this process."""

    def now(self) -> float:
        """Seconds of a monotonic clock."""


Relist = Callable[[], Iterable[Identity]]


def end(  # noqa: PLR0913 - one more than usual, each with a default that is safe
    targets: Iterable[Identity],
    grace: float = GRACE,
    *,
    more: Relist | None = None,
    all_users: bool = False,
    audit: Audit | None = None,
    system: System | None = None,
) -> list[Outcome]:
    """End these processes: SIGTERM, and SIGKILL to those that have not ended after `grace` seconds.

    After each round, `more` returns further processes to end (children forked meanwhile), until there are no
    new ones. Returns an outcome for each process, in the order of discovery; `gone` only if that was
    verified.
    """
    ending = _Ending(
        system or real_system(), audit or Audit("end"), grace=max(0.0, grace), all_users=all_users
    )
    waiting = list(dict.fromkeys(targets))
    for _ in range(_ROUNDS):
        for first in range(0, len(waiting), _AT_ONCE):
            ending.end(waiting[first : first + _AT_ONCE])
        waiting = [t for t in dict.fromkeys(more() if more else ()) if t not in ending.outcomes]
        if not waiting:
            break
    for target in waiting:
        ending.settle(
            target, "none", "running", "new processes kept appearing while others were ended"
        )
    return list(ending.outcomes.values())


def send(
    target: Identity,
    number: int,
    *,
    all_users: bool = False,
    audit: Audit | None = None,
    system: System | None = None,
) -> str:
    """Send one signal (0 only checks) with the same checks. Empty if it was sent, else why not."""
    ending = _Ending(system or real_system(), audit or Audit("send"), all_users=all_users)
    with_handle = ending.hold(target)
    if with_handle is None:
        return ending.outcomes[target].reason
    try:
        unsent = ending.signal(target, with_handle, number)
        return unsent.why if unsent else ""
    finally:
        ending.system.release(with_handle)


def identity_of(pid: int, system: System | None = None) -> Identity | None:
    """The process that has this pid now."""
    begun = (system or real_system()).started_at(pid)
    return None if begun is None else Identity(pid, begun)


@dataclass(slots=True)
class _Ending:
    """One call of `end` and its outcomes."""

    system: System
    audit: Audit
    grace: float = GRACE
    all_users: bool = False
    outcomes: dict[Identity, Outcome] = field(default_factory=dict)
    deadline: float | None = None
    """From then on new processes get SIGKILL without a grace period: something forks without end."""
    protected: frozenset[int] | None = None

    def settle(self, target: Identity, action: Action, state: State, reason: str = "") -> None:
        self.outcomes[target] = Outcome(target, action, state, reason)

    def end(self, targets: Sequence[Identity]) -> None:
        if self.deadline is None:
            self.deadline = self.system.now() + 2 * self.grace
        held: dict[Identity, int] = {}
        try:
            for target in targets:
                handle = self.hold(target)
                if handle is not None:
                    held[target] = handle
            self._end_held(held)
        finally:
            for handle in held.values():
                self.system.release(handle)

    def hold(self, target: Identity) -> int | None:
        """A handle on exactly this process; None if its outcome is already known."""
        if why := self._refusal(target):
            self._refuse(target, why)
            return None
        handle = self.system.hold(target.pid)
        if handle is None:
            self.settle(target, "none", "gone", "it had ended before")
            return None
        why = self._other_than(target, handle)
        if not why and (refusal := self._refusal_of_user(target)):
            self._refuse(target, refusal)
        elif why:
            self.settle(target, "none", "gone", why)
        elif handle in self.system.ended([handle], 0.0):
            self.settle(target, "none", "gone", "it had ended before")
        else:
            return handle
        self.system.release(handle)
        return None

    def _other_than(self, target: Identity, handle: int) -> str:
        """Why the held process is not the target; empty if it is.

        The order matters: a process that still runs *after* its start was read has had this pid all the time.
        """
        begun = self.system.started_at(target.pid)
        try:
            self.system.signal(handle, 0)
        except ProcessLookupError:
            return "it had ended before"
        except PermissionError:
            pass  # it runs; permission is checked next
        if begun is None:
            return "it had ended before"
        is_same = abs(begun - target.started_at) < _SAME
        return "" if is_same else "its pid now belongs to another process"

    def _refusal(self, target: Identity) -> str:
        if target.pid <= 1:
            return "pid 1 is the init process of the machine or container"
        if self.protected is None:
            self.protected = self.system.protected()
        if target.pid in self.protected:
            return "it is raydoctor itself or one of its ancestors"
        return ""

    def _refusal_of_user(self, target: Identity) -> str:
        users = self.system.users(target.pid)
        mine = self.system.uid()
        if users == {mine}:
            return ""
        if not users:
            return "its user cannot be determined"
        if mine != 0:
            return "it belongs to another user"
        return "" if self.all_users else "it belongs to another user: --all-users includes those"

    def _refuse(self, target: Identity, why: str) -> None:
        self.settle(target, "none", "refused", why)

    def _end_held(self, held: dict[Identity, int]) -> None:
        patience = max(0.0, min(self.grace, (self.deadline or 0.0) - self.system.now()))
        left = dict(held)
        steps: tuple[tuple[Action, int, float], ...] = (
            ("term", signal.SIGTERM, patience),
            ("kill", _KILL, _AFTER_KILL),
        )
        for action, number, wait in steps:
            left = self._step(left, action, number, wait)

    def _step(
        self, held: dict[Identity, int], action: Action, number: int, wait: float
    ) -> dict[Identity, int]:
        """Signal all and wait; returns those that have not ended."""
        signalled = {}
        for target, handle in held.items():
            unsent = self.signal(target, handle, number)
            if unsent is None:
                signalled[target] = handle
                self.settle(
                    target, action, "running", f"still running {wait:g} s after SIG{action.upper()}"
                )
            elif unsent.is_gone:
                self._gone(target)
            else:
                self._refuse(target, unsent.why)
        ended = self.system.ended(signalled.values(), wait) if signalled else set()
        for target, handle in signalled.items():
            if handle in ended:
                self._gone(target)
        return {target: handle for target, handle in signalled.items() if handle not in ended}

    def _gone(self, target: Identity) -> None:
        before = self.outcomes.get(target)
        self.settle(target, before.action if before else "none", "gone")

    def signal(self, target: Identity, handle: int, number: int) -> Unsent | None:
        """Send a signal and record it in the audit. None if it was sent."""
        unsent = None
        try:
            self.system.signal(handle, number)
        except ProcessLookupError:
            unsent = Unsent("it had ended before", is_gone=True)
        except PermissionError:
            unsent = Unsent("the system does not permit a signal to it")
        if number == 0:
            return unsent
        self.audit.write(
            "signal",
            pid=target.pid,
            started_at=target.started_at,
            signal=signal.Signals(number).name,
            result=unsent.why if unsent else "sent",
            **self.audit.about.get(target, {}),
        )
        return unsent


_KILL = int(getattr(signal, "SIGKILL", signal.SIGTERM))

"""What one thread does, by all looks at it: it runs, or stands, and where.

py-spy's flags (`active`, `gil`), the kernel's state and call, the processor's time between the looks, and the
frames each tell a part. Measured on workers of Ray 2.60 that hung in 32 ways (py-spy 0.4.3, Linux 6.18):
native code that holds the interpreter's lock while it sleeps is the only one that has `gil` without `active`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from raydoctor.cluster.samples import Frame, Kind, Thread
from raydoctor.model.patterns import pattern
from raydoctor.waits.kinds import calls, frames, kernel

_BUSY = 0.5
"""Processors: a thread that uses as much runs, whatever the single looks say."""
_LITTLE = 0.05
"""A thread that uses less stands; Ray's own waits wake up now and then."""
_POLLS = 1.5
"""Times a second: who wakes up more often polls. A look itself costs up to two."""
_ASKS = 20.0
"""Times a second: who wants the interpreter's lock asks for it every 5 ms (`sys.getswitchinterval`)."""

BASE: dict[Kind, str] = {
    "python-loop": "runs Python code",
    "native-gil": "waits in native code that holds the interpreter's lock",
    "native": "runs native code",
    "collective": "waits in a collective operation",
    "subprocess": "waits for a subprocess",
    "socket": "waits for a socket",
    "lock": "waits for a lock",
    "sleep": "sleeps",
    "disk": "waits for a disk",
    "unknown": "waits in a call (a lock, a sleep, a file or a socket)",
}
"""The plainest words for each kind."""

_BY_CALL: dict[kernel.Call, tuple[Kind, str]] = {
    "sleep": ("sleep", "sleeps"),
    "futex": ("lock", "waits for a lock"),
    "child": ("subprocess", "waits for a subprocess"),
    "recv": ("socket", "waits for a socket"),
    "send": ("socket", "waits until a socket takes more"),
    "connect": ("socket", "connects to a socket"),
    "accept": ("socket", calls.SERVES),
    "poll": ("socket", "waits for sockets or pipes"),
    "pipe": ("socket", "waits for a pipe"),
    "terminal": ("socket", "waits for input at a terminal"),
    "file-lock": ("lock", "waits for a lock on a file"),
    "semaphore": ("lock", "waits for a semaphore of several processes"),
    "start-child": ("subprocess", "waits until a process that it starts runs its program"),
    "device": ("disk", "waits for a disk"),
    "frozen": ("stopped", "is frozen with its cgroup (docker pause, a freezer)"),
    "select": ("unknown", "sleeps, or waits for sockets (select)"),
    "read": ("unknown", "reads or writes a file or a pipe"),
}


class Seen(NamedTuple):
    """One thread in all looks."""

    looks: tuple[Thread, ...]
    """Oldest first, at least one."""
    seconds: float = 0.0
    """From the first look to the last."""
    gil_holder: Thread | None = None
    """Another thread, which had the interpreter's lock in most looks."""
    is_arm: bool = False

    @property
    def last(self) -> Thread:
        """The newest look."""
        return self.looks[-1]

    @property
    def share(self) -> float | None:
        """Processors that it used; None where that is not known."""
        grown = self.last.cpu_seconds - self.looks[0].cpu_seconds
        return grown / self.seconds if self.seconds > 0 and self.last.state else None


class Doing(NamedTuple):
    """What a thread does."""

    kind: Kind
    words: str
    thread: Thread
    """In its newest look."""
    user: Frame | None
    """The innermost frame of its user's."""
    moves: bool
    """Whether it gets on: its stack changes, or it uses a processor."""
    call: kernel.Call | None = None
    """The call that it waits in, where that is known."""


def doing(seen: Seen) -> Doing:
    """What a thread does."""
    last = seen.last
    runs = _runs(seen)
    kind, words = _running(seen) if runs else _standing(seen)
    call = None if runs else kernel.call_of(last, _natives(seen), seen.is_arm)
    gets_on = runs or changes(seen) or (seen.share or 0.0) > _LITTLE
    moves = gets_on and kind != "debugger"  # a debugger works while it holds its thread
    return Doing(kind, words, last, frames.user_frame(last.frames), moves, call)


def _runs(seen: Seen) -> bool:
    """Whether it runs or wants to: state R, on a machine however busy."""
    if seen.last.state in ("T", "t"):
        return False
    running = [t.state == "R" if t.state else t.active for t in seen.looks]
    if seen.share is not None and seen.share >= _BUSY:
        return True
    if calls.waits(frames.inner(seen.last)) is not None:  # it may just be waking up
        return all(running) and (seen.share or 0.0) > _LITTLE
    return 2 * sum(running) > len(running)


def changes(seen: Seen) -> bool:
    """Whether its stack was not the same in all looks."""
    return len({_position(thread) for thread in seen.looks if thread.frames}) > 1


def _position(thread: Thread) -> tuple[tuple[str, int], ...]:
    """Where it stands: the lines of its frames of Python."""
    return tuple((frame.function, frame.line) for frame in frames.python(thread))


def _natives(seen: Seen) -> tuple[Frame, ...]:
    """The native frames of the newest look that has them, where it stands now."""
    now = _position(seen.last)
    for thread in reversed(seen.looks):
        found = frames.natives(thread)
        if found and _position(thread) == now:
            return found
    return ()


# ------------------------------------------------------------------ it runs

_LONG = pattern(
    r"_?sre_|_?json_|scanner_|encoder_|_parse_|_Pickler|_Unpickler|save|load_|list_?sort|binarysort|merge_"
    r"|k_mul|x_mul|x_divrem|k_lopsided|long_(?:pow|to_decimal|format|from)|_?PyLong_(?:Format|From)|deepcopy"
    r"|unicode_(?:find|count|replace)|fastsearch|stringlib_|two_?way|gc_collect|builtin_(?:sum|sorted|max|min)"
)
"""Functions of the interpreter that may take long by themselves, unlike those that every loop calls."""
_WRAPS = pattern(r"^(?:re/|re\.py|sre_|json/|pickle\.py|copy\.py)")
"""Modules whose Python functions only hand over to C."""


def _running(seen: Seen) -> tuple[Kind, str]:
    """Python code or native code, by who has the interpreter's lock and by what stands on top."""
    held = sum(thread.gil for thread in seen.looks)
    inner = frames.inner(seen.last)
    waits = calls.waits(inner)
    if waits is not None and waits.kind not in ("lock", "unknown"):
        return waits.kind, waits.words
    module = calls.imported(inner)
    if module:
        return "python-loop", f"imports {module}"
    native = kernel.telling(_natives(seen))
    if not held and not changes(seen):
        return "native", f"runs native code{_name(native)}"
    if not changes(seen) and _is_native_work(seen, native):
        name = _name(native) or f": {frames.shape(frames.python(seen.last)[0])}"
        return "native-gil", f"runs native code that holds the interpreter's lock{name}"
    return "python-loop", f"runs Python code{_lines(seen)}"


def _is_native_work(seen: Seen, native: Frame | None) -> bool:
    """Whether what holds the lock is one long call of C, not a loop of Python with short ones."""
    if native is not None and (_LONG.match(native.function) or not kernel.is_runtime(native)):
        return True
    top = frames.python(seen.last)
    return (
        bool(top) and frames.whose(top[0]) == "python" and bool(_WRAPS.match(frames.short(top[0])))
    )


def _lines(seen: Seen) -> str:
    """The lines of one function that it was seen at."""
    places = [f for t in seen.looks if (f := frames.user_frame(t.frames)) is not None]
    lines = sorted({frame.line for frame in places})
    if len(lines) < 2 or len({(frame.function, frame.file) for frame in places}) > 1:
        return ""
    return f", lines {lines[0]} to {lines[-1]}"


# ------------------------------------------------------------------ it stands


def _standing(seen: Seen) -> tuple[Kind, str]:
    """What it waits for, by the frames that tell, then by the kernel."""
    last, looks = seen.last, len(seen.looks)
    waits = calls.waits(frames.inner(last))
    if waits is not None and waits.kind == "debugger":
        return waits.kind, waits.words
    if 2 * sum(thread.state == "D" for thread in seen.looks) > looks:
        return kernel.held(last.wchan)
    # One that is active, too, has gone on between the kernel's word and py-spy's: a loop of work and naps.
    if 2 * sum(t.gil and not t.active for t in seen.looks) > looks and last.state not in ("T", "t"):
        return "native-gil", BASE["native-gil"]
    return waits or _by_call(seen)


def _by_call(seen: Seen) -> tuple[Kind, str]:
    """What the kernel's call says, of a stack that ends in its user's own frame."""
    native = _natives(seen)
    call = kernel.call_of(seen.last, native, seen.is_arm)
    if any(_COLLECTIVE.match(frame.function) for frame in native):
        return "collective", BASE["collective"]
    if call in ("futex", None):
        return _locked(seen, call is not None, native)
    if call == "sleep" and (often := _wakes(seen)) is not None:
        return "sleep", f"sleeps again and again, {often:.0f} times a second: it polls"
    if call == "select" and frames.tells_classes(seen.last):
        # Before Python 3.11, `time.sleep` is a `select` of nothing; only from there on frames have classes.
        call = "poll"
    return _BY_CALL[call]


def _locked(seen: Seen, is_futex: bool, native: Sequence[Frame]) -> tuple[Kind, str]:
    """A lock of Python's, of native code, or the interpreter's own."""
    if kernel.takes_gil(native) or (is_futex and _wants_gil(seen)):
        return "native-gil", f"waits for {_gil(seen)}"
    if any(map(kernel.says, native)) and not kernel.is_acquire(native):
        return "native", f"waits in native code{_name(kernel.telling(native))}"
    if is_futex and seen.gil_holder is not None and not native and len(seen.looks) == 1:
        return "unknown", f"waits for a lock, or for {_gil(seen)}"
    return ("lock", BASE["lock"]) if is_futex else ("unknown", BASE["unknown"])


_COLLECTIVE = pattern(r"_{0,8}(?:nccl|rccl|gloo::|c10d::|MPI_)")


def _name(function: Frame | None) -> str:
    return f": {function.function} ({function.file})" if function is not None else ""


def _wants_gil(seen: Seen) -> bool:
    """Whether it asks for the interpreter's lock, which another thread has, all the time."""
    return seen.gil_holder is not None and _woken(seen) > _ASKS


def _gil(seen: Seen) -> str:
    holder = seen.gil_holder
    whom = f", which thread {holder.name or holder.tid} holds" if holder is not None else ""
    return f"the interpreter's lock{whom}"


def _wakes(seen: Seen) -> float | None:
    """Times a second that it wakes up; None where that is what looking costs."""
    often = _woken(seen)
    return often if often * seen.seconds > _POLLS * (seen.seconds + len(seen.looks)) else None


def _woken(seen: Seen) -> float:
    """Times a second that it gave its processor away by itself."""
    grown = seen.last.voluntary - seen.looks[0].voluntary
    return grown / seen.seconds if seen.seconds > 0 else 0.0

"""What one thread does, by all samples of it: whether it runs or waits, and where.

The evidence is py-spy's flags (`active`, `gil`), the kernel's state and call, the CPU time between the
samples, and the frames. Measured on workers of Ray 2.60 that hung in 32 ways (py-spy 0.4.3, Linux 6.18):
only native code that holds the interpreter's lock while it sleeps has `gil` without `active`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from raydoctor.cluster.samples import SampledFrame, SampledThread
from raydoctor.model.patterns import pattern
from raydoctor.waits.kinds import calls, catalog, frames, kernel
from raydoctor.waits.kinds.catalog import Activity, Kind, WaitCode

_BUSY = 0.5
"""CPUs: a thread that uses as much runs, whatever the single samples show."""
_LITTLE = 0.05
"""CPUs: a thread that uses less is idle; Ray's own waits wake up now and then."""
_POLLS = 1.5
"""Times a second: a thread that wakes up more often polls. A sample itself costs up to two."""
_ASKS = 20.0
"""Times a second: a thread that waits for the GIL asks for it every 5 ms (`sys.getswitchinterval`)."""


class ThreadHistory(NamedTuple):
    """One thread in all samples."""

    samples: tuple[SampledThread, ...]
    """Oldest first, at least one."""
    seconds: float = 0.0
    """From the first sample to the last."""
    gil_holder: SampledThread | None = None
    """Another thread, which held the interpreter's lock in most samples."""
    is_arm: bool = False

    @property
    def last(self) -> SampledThread:
        """The newest sample."""
        return self.samples[-1]

    @property
    def share(self) -> float | None:
        """CPUs that it used; None where that is not known."""
        grown = self.last.cpu_seconds - self.samples[0].cpu_seconds
        return grown / self.seconds if self.seconds > 0 and self.last.state else None


class Doing(NamedTuple):
    """What a thread does."""

    activity: Activity
    thread: SampledThread
    """In its newest sample."""
    user: SampledFrame | None
    """The innermost frame of the user's code."""
    moves: bool
    """Whether it makes progress: its stack changes, or it uses a CPU."""
    call: kernel.Call | None = None
    """The call that it waits in, where that is known."""

    @property
    def code(self) -> WaitCode:
        """What it waits in, or runs."""
        return self.activity.code

    @property
    def kind(self) -> Kind:
        """The kind that reports show."""
        return self.activity.kind

    @property
    def plain(self) -> Activity:
        """The same as generally as possible: `waits for a lock`, whatever kind of lock it is."""
        code = catalog.PLAIN.get(self.kind)
        return Activity(code) if code else self.activity


def doing(history: ThreadHistory) -> Doing:
    """What a thread does."""
    last = history.last
    runs = _runs(history)
    activity = _running(history) if runs else _waiting(history)
    call = None if runs else kernel.call_of(last, _natives(history), history.is_arm)
    has_progress = runs or changes(history) or (history.share or 0.0) > _LITTLE
    moves = (
        has_progress and activity.kind != "debugger"
    )  # a debugger works while it holds its thread
    return Doing(activity, last, frames.user_frame(last.frames), moves, call)


def _runs(history: ThreadHistory) -> bool:
    """Whether it runs or is ready to: state R, on a machine however busy."""
    if history.last.state in ("T", "t"):
        return False
    running = [t.state == "R" if t.state else t.active for t in history.samples]
    if history.share is not None and history.share >= _BUSY:
        return True
    if calls.waits(frames.inner(history.last)) is not None:  # it may just be waking up
        return all(running) and (history.share or 0.0) > _LITTLE
    return 2 * sum(running) > len(running)


def changes(history: ThreadHistory) -> bool:
    """Whether its stack was not the same in all samples."""
    return len({_position(thread) for thread in history.samples if thread.frames}) > 1


def _position(thread: SampledThread) -> tuple[tuple[str, int], ...]:
    """The lines of its frames of Python."""
    return tuple((frame.function, frame.line) for frame in frames.python(thread))


def _natives(history: ThreadHistory) -> tuple[SampledFrame, ...]:
    """The native frames of the newest sample that has them, at the stack position of the last one."""
    now = _position(history.last)
    for thread in reversed(history.samples):
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


def _running(history: ThreadHistory) -> Activity:
    """Python code or native code, by which thread holds the interpreter's lock and by the innermost frame."""
    held = sum(thread.gil for thread in history.samples)
    inner = frames.inner(history.last)
    code = calls.waits(inner)
    if code is not None and catalog.WAITS[code].kind not in ("lock", "unknown"):
        return Activity(code)
    module = calls.imported(inner)
    if module:
        return Activity("import", module)
    native = kernel.most_specific(_natives(history))
    if not held and not changes(history):
        return Activity("native", _name(native))
    if not changes(history) and _is_native_work(history, native):
        name = _name(native) or frames.shape(frames.python(history.last)[0])
        return Activity("native-gil-call", name)
    return Activity("python-loop", _lines(history))


def _is_native_work(history: ThreadHistory, native: SampledFrame | None) -> bool:
    """Whether one long call of C holds the lock, not a loop of Python with short ones."""
    if native is not None and (_LONG.match(native.function) or not kernel.is_runtime(native)):
        return True
    top = frames.python(history.last)
    return (
        bool(top) and frames.whose(top[0]) == "python" and bool(_WRAPS.match(frames.short(top[0])))
    )


def _lines(history: ThreadHistory) -> str:
    """`, lines 31 to 35`: the lines of one function that the samples show."""
    places = [f for t in history.samples if (f := frames.user_frame(t.frames)) is not None]
    lines = sorted({frame.line for frame in places})
    if len(lines) < 2 or len({(frame.function, frame.file) for frame in places}) > 1:
        return ""
    return f", lines {lines[0]} to {lines[-1]}"


# ------------------------------------------------------------------ it waits


def _waiting(history: ThreadHistory) -> Activity:
    """What it waits for, by its frames, then by the kernel."""
    last, count = history.last, len(history.samples)
    code = calls.waits(frames.inner(last))
    if code is not None and catalog.WAITS[code].kind == "debugger":
        return Activity(code)
    if 2 * sum(thread.state == "D" for thread in history.samples) > count:
        return kernel.uninterruptible(last.wchan)
    # An active one has gone on between the kernel's sample and py-spy's: a loop of work and naps.
    holds = 2 * sum(t.gil and not t.active for t in history.samples) > count
    if holds and last.state not in ("T", "t"):
        return Activity("native-gil")
    return Activity(code) if code is not None else _by_call(history)


def _by_call(history: ThreadHistory) -> Activity:
    """What the kernel's call adds to a stack that ends in the user's own frame."""
    native = _natives(history)
    call = kernel.call_of(history.last, native, history.is_arm)
    if any(_COLLECTIVE.match(frame.function) for frame in native):
        return Activity("collective")
    if call in ("futex", None):
        return _locked(history, call is not None, native)
    if call == "sleep" and _polls(history):
        return Activity("polling")
    if call == "select" and frames.has_classes(history.last):
        # Before Python 3.11, `time.sleep` is a `select` of nothing; only from there on frames have classes.
        call = "poll"
    return Activity(kernel.WAIT_OF_CALL[call])


def _locked(history: ThreadHistory, is_futex: bool, native: Sequence[SampledFrame]) -> Activity:
    """A lock of Python's, of native code, or the interpreter's own."""
    if kernel.takes_gil(native) or (is_futex and _asks_for_gil(history)):
        return Activity("gil", _holder(history))
    if any(map(kernel.is_informative, native)) and not kernel.is_acquire(native):
        return Activity("native-wait", _name(kernel.most_specific(native)))
    if is_futex and history.gil_holder is not None and not native and len(history.samples) == 1:
        return Activity("lock-or-gil", _holder(history))
    return Activity("lock" if is_futex else "unknown")


_COLLECTIVE = pattern(r"_{0,8}(?:nccl|rccl|gloo::|c10d::|MPI_)")


def _name(function: SampledFrame | None) -> str:
    return f"{function.function} ({function.file})" if function is not None else ""


def _asks_for_gil(history: ThreadHistory) -> bool:
    """Whether it asks all the time for the interpreter's lock, which another thread holds."""
    return history.gil_holder is not None and _woken(history) > _ASKS


def _holder(history: ThreadHistory) -> str:
    holder = history.gil_holder
    return f", which thread {holder.name or holder.tid} holds" if holder is not None else ""


def _polls(history: ThreadHistory) -> bool:
    """Whether it wakes up more often than sampling alone accounts for."""
    sampling = _POLLS * (history.seconds + len(history.samples))
    return _woken(history) * history.seconds > sampling


def _woken(history: ThreadHistory) -> float:
    """Times a second that it gave up its CPU by itself."""
    grown = history.last.voluntary - history.samples[0].voluntary
    return grown / history.seconds if history.seconds > 0 else 0.0

"""What a process hangs in, by a few samples of it: which kind, on what exactly, and whether it makes
progress.

Only the threads of a worker count that run what Ray was asked for: its main thread inside a task, the
threads of an actor with several, an event loop in the middle of a step. All of them are judged, and the
worst is reported. A loop that ends looks like an endless one: a verdict records that it `moves`, and
`candidates.py` how long is too long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from raydoctor.cluster.samples import Sample, SampledFrame, SampledProcess, SampledThread
from raydoctor.model.text import duration
from raydoctor.waits.kinds import frames as _frames
from raydoctor.waits.kinds import kernel
from raydoctor.waits.kinds.catalog import WORST_FIRST, Activity, Kind, WaitCode
from raydoctor.waits.kinds.specifics import (
    Specifics,
    holder_of,
    is_isolated,
    process_name,
    specifics,
    tracer_of,
)
from raydoctor.waits.kinds.thread import Doing, ThreadHistory, changes, doing

EVENT_LOOP = _frames.EVENT_LOOP
user_frame = _frames.user_frame
_LISTED = 3
_CERTAIN = frozenset(
    {"sleep", "child", "recv", "send", "connect", "accept", "pipe", "file-lock", "device"}
)
"""Calls that are enough without a stack; Ray itself waits in the others."""


class Verdict(NamedTuple):
    """What a process hangs in."""

    activity: Activity
    """What it does, without the place: `waits on a socket to 10.0.0.9:5432`."""
    thread: SampledThread | None
    """The thread that does it, in the newest sample."""
    user: SampledFrame | None
    """The innermost frame of the user's code on that thread."""
    evidence: tuple[str, ...]
    """What was observed, one sentence each."""
    moves: bool = False
    """Whether it makes progress: its stack changes, it uses a CPU, or the child it waits for does."""
    on: str = ""
    """What it waits on outside of the process: an address, `pid 812 (sleep 100)`, a path."""
    others: str = ""
    """What the thread does that it waits for."""
    rested: float | None = None
    """Seconds since it, or what it waits for in its process or below, last ran; None if unknown."""
    at_least: float = 0.0
    """Seconds for which it has certainly waited: it has not run since, or has merely been stopped."""
    wakes: float | None = None
    """Seconds until its sleep or the next timer of its event loop ends, where that is known."""
    changes: bool = False
    """Whether its stack was not the same in all samples."""
    helper: str = ""
    """`thread beat`: another thread, which wakes up by itself and may end the wait."""

    @property
    def code(self) -> WaitCode:
        """What it waits in, or runs."""
        return self.activity.code

    @property
    def kind(self) -> Kind:
        """The kind that reports show."""
        return self.activity.kind

    @property
    def still(self) -> bool:
        """Whether all samples are the same, and nothing that it waits for runs."""
        return not self.moves

    @property
    def is_open(self) -> bool:
        """Whether this wait alone is not a hang: a server without callers, an idle event loop."""
        return self.activity.type.is_open or bool(self.helper)

    @property
    def in_asyncio(self) -> bool:
        """Whether it waits for coroutines, none of which is on its stack."""
        return self.activity.type.in_asyncio

    @property
    def summary(self) -> str:
        """`waits for a lock in load (train.py:31), while thread pump sleeps in fill (train.py:9)`."""
        place = f" in {self.user.place}" if self.user is not None else ""
        return f"{self.activity.summary}{place}{f', while {self.others}' if self.others else ''}"


def kind_of(process: SampledProcess, is_async: bool = False) -> Verdict | None:
    """What it hangs in; None where it does not: it is idle, or its coroutines merely await.

    `is_async`: it runs a coroutine, though no thread of its event loop could be recognized.
    """
    found = verdicts_of(process, is_async)
    if not found:
        return None
    others = tuple(f"another thread {verdict.summary}" for verdict in found[1 : _LISTED + 1])
    return found[0]._replace(evidence=(*found[0].evidence, *others))


def verdicts_of(process: SampledProcess, is_async: bool = False) -> tuple[Verdict, ...]:
    """One for each of its threads that runs what Ray was asked for, the worst first."""
    if process.title.startswith("ray::IDLE"):
        return ()
    whole = _held(process)
    if whole is None and not any(thread.frames for thread in process.last.threads):
        whole = _without_stack(process)
    if whole is not None:
        return (whole,)
    histories = _histories(process)
    known = {each.last.tid: doing(each) for each in histories}
    by_pool = any(done.code == "future" for done in known.values())
    found = [
        _verdict(process, each, known)
        for each in histories
        if _counts(process, each, is_async) or (by_pool and _is_pool_user(known[each.last.tid]))
    ]
    return tuple(sorted(found, key=lambda v: (v.moves, WORST_FIRST.index(v.kind))))


def doing_of(thread: SampledThread) -> Doing:
    """What one thread of a single sample does, without clues."""
    return doing(ThreadHistory((thread,)))


def is_background(thread: SampledThread) -> bool:
    """Whether it is a `threading.Thread` of Python code, not one that Ray made for tasks."""
    return _frames.is_started_by_python(thread)


# ------------------------------------------------------------------ the process as a whole


def _held(process: SampledProcess) -> Verdict | None:
    """It is stopped, traced or frozen: none of its threads run, whatever its stack shows."""
    mains = [main for sample in process.samples if (main := _main(process, sample)) is not None]
    if not mains:
        return None
    last = mains[-1]
    user = user_frame(last.frames)
    tracer = tracer_of(process)
    if all(thread.state == "t" for thread in mains) or (tracer is not None and not last.state):
        name = process_name(tracer) if tracer is not None else "another process"
        evidence = ("paused by its tracer", _place(last))
        return Verdict(Activity("traced", name), last, user, evidence, on=name)
    if all(thread.state == "T" for thread in mains):
        evidence = (f"state T: kill -CONT {process.pid} resumes it", _place(last))
        return Verdict(Activity("stopped"), last, user, evidence)
    if all(kernel.uninterruptible(thread.wchan).kind == "stopped" for thread in mains):
        return Verdict(kernel.uninterruptible(last.wchan), last, user, (f"in {last.wchan}",))
    return None


def _main(process: SampledProcess, sample: Sample) -> SampledThread | None:
    """The main thread: its tid is the pid."""
    of_pid = (thread for thread in sample.threads if thread.tid == process.pid)
    named = (thread for thread in sample.threads if thread.name == "MainThread")
    return next(of_pid, None) or next(named, None)


def _without_stack(process: SampledProcess) -> Verdict | None:
    """What the kernel alone shows, where py-spy may not read the process."""
    mains = tuple(m for sample in process.samples if (m := _main(process, sample)) is not None)
    problem = process.last.problem or "no stack"
    if not mains:
        return Verdict(Activity("not-inspected"), None, None, (problem,))
    seconds = process.samples[-1].at - process.samples[0].at
    history = ThreadHistory(mains, seconds, is_arm=kernel.is_arm(process.last.threads))
    done = doing(history)
    evidence = (problem, *_evidence(process, history, done))
    if done.call in _CERTAIN:
        exact = specifics(process, done)
        evidence = (*evidence, *exact.evidence)
        return Verdict(exact.activity, done.thread, None, evidence, done.moves, exact.on)
    share = process.cpu_share
    if done.moves or (share or 0.0) > 0.5:
        used = f"{share:.0%} of a CPU" if share is not None else "a CPU"
        return Verdict(
            Activity("busy-without-stack", used), done.thread, None, evidence, moves=True
        )
    where = f" in the kernel ({done.thread.wchan})" if done.thread.wchan else ""
    return Verdict(Activity("waits-without-stack", where), done.thread, None, evidence)


# ------------------------------------------------------------------ its threads


def _histories(process: SampledProcess) -> list[ThreadHistory]:
    """Each thread of the newest sample, with its earlier samples."""
    is_arm = kernel.is_arm(process.last.threads)
    return [_history(process, thread, is_arm) for thread in process.last.threads]


def _history(process: SampledProcess, thread: SampledThread, is_arm: bool) -> ThreadHistory:
    same = [(s.at, t) for s in process.samples for t in s.threads if _is_same(t, thread)]
    samples = tuple(_credible(t) for _, t in same)
    seconds = process.last.at - same[0][0]
    return ThreadHistory(samples, seconds, _gil_holder(process, thread), is_arm)


def _credible(thread: SampledThread) -> SampledThread:
    """Without the thread's tid, py-spy cannot know whether it runs, and reports that it does.

    This happens with Python 3.10 in a process that cannot be paused for a sample (py-spy 0.4.3).
    """
    return thread if thread.tid else thread._replace(active=False, gil=False)


def _is_same(one: SampledThread, other: SampledThread) -> bool:
    """The tid identifies the thread; its name follows what it runs."""
    return one.tid == other.tid if one.tid or other.tid else one.name == other.name


def _gil_holder(process: SampledProcess, thread: SampledThread) -> SampledThread | None:
    """The other thread that held the interpreter's lock in most samples."""
    holders = [t for s in process.samples for t in s.threads if t.gil and t.tid != thread.tid]
    return holders[-1] if 2 * len(holders) > len(process.samples) else None


def _counts(process: SampledProcess, history: ThreadHistory, is_async: bool) -> bool:
    """Whether a thread runs a task, a method or the main program."""
    thread = history.last
    if not thread.frames:
        return False
    is_async = is_async or any(_frames.is_event_loop(t) for t in process.last.threads)
    if _frames.is_event_loop(thread) or (is_async and _is_loop(thread)):
        # One sample in which it is idle proves that its steps end.
        return not any(_frames.is_resting(sample) for sample in history.samples)
    if thread.tid == process.pid or thread.name == "MainThread":
        return _is_inside(thread)
    if _frames.is_started_by_python(thread):
        if _frames.is_training(thread):
            return True
        return is_async and _frames.is_pool_work(thread)
    return user_frame(thread.frames) is not None


def _is_pool_user(done: Doing) -> bool:
    """Whether a thread of a pool runs a function of the user's; another thread waits for its result."""
    user = done.user
    return user is not None and _frames.whose(user) == "user" and _frames.is_pool_work(done.thread)


def _is_loop(thread: SampledThread) -> bool:
    """Whether coroutines run in it: Ray's thread for them, or one of Ray Serve's."""
    own = _frames.is_started_by_python(thread) and _frames.is_own_loop(thread)
    return own or _frames.is_event_loop(thread)


def _is_inside(main: SampledThread) -> bool:
    """Whether the main thread is in a task, or in its own program; that of an idle worker is not."""
    frames = _frames.python(main)
    return bool(frames) and not _frames.is_main_loop(frames[0])


# ------------------------------------------------------------------ verdicts


def _verdict(
    process: SampledProcess, history: ThreadHistory, known: Mapping[int, Doing]
) -> Verdict:
    done = _of_processes(known[history.last.tid], known)
    helpers = _helpers(process, done, known)
    exact = specifics(process, done)
    if exact.activity.code == "coroutines" and not helpers:
        exact = _of_loop(process, done.thread.tid, exact)
    activity = _activity(history, exact)
    rested, at_least = _rested(process, [done.thread.tid, *helpers], exact)
    has_timer = activity.kind == "sleep" or activity.type.in_asyncio
    rest = process.rest(done.thread.tid) if has_timer else None
    sleeping = [tid for tid in helpers if known[tid].kind == "sleep"]
    is_helped = bool(sleeping) and activity.type.ended_by_thread
    return Verdict(
        activity,
        done.thread,
        done.user,
        (*_evidence(process, history, done), *exact.evidence),
        done.moves or exact.runs or any(known[tid].moves for tid in helpers),
        exact.on,
        _other_threads(process, done, known),
        rested,
        at_least,
        rest.wakes if rest is not None else None,
        changes(history),
        _thread_name(known[sleeping[0]]) if is_helped else "",
    )


def _of_loop(process: SampledProcess, tid: int, exact: Specifics) -> Specifics:
    """The wait of an event loop that only a timer can end, or nothing in its process."""
    rest = process.rest(tid)
    if rest is None or not is_isolated(process, tid):
        return exact
    if rest.is_endless:
        return exact._replace(activity=Activity("asyncio-event"))
    if rest.wakes is None:
        return exact
    timer = f"the next timer of its event loop is due in {duration(max(0.0, rest.wakes))}"
    return exact._replace(activity=Activity("asyncio-sleep"), evidence=(timer,))


def is_asleep(process: SampledProcess) -> bool:
    """Whether no thread, timer or connection of an async actor's process can end the wait of a coroutine.

    Then only a call of the actor can. False if that is unknown.
    """
    threads = process.last.threads
    loops = [thread for thread in threads if _is_loop(thread)]
    rests = [process.rest(thread.tid) for thread in loops]
    is_endless = bool(rests) and all(rest is not None and rest.is_endless for rest in rests)
    isolated = is_endless and all(is_isolated(process, thread.tid) for thread in loops)
    return isolated and not has_own_threads(process)


def has_own_threads(process: SampledProcess) -> bool:
    """Whether the user's code or a library started threads, which may act while the main one waits."""
    return any(
        _frames.is_started_by_python(thread) and not _is_loop(thread) and _is_own(doing_of(thread))
        for thread in process.last.threads
    )


def _of_processes(done: Doing, known: Mapping[int, Doing]) -> Doing:
    """A wait for the future of a pool of processes, where a thread of such a pool exists."""
    threads = (each.thread for each in known.values())
    if done.code == "future" and any(map(_frames.is_process_pool, threads)):
        return done._replace(activity=Activity("process-pool"))
    return done


def _rested(
    process: SampledProcess, tids: Iterable[int], exact: Specifics
) -> tuple[float | None, float]:
    """Seconds that neither the thread nor what it waits for has run: exactly, and at least.

    A thread that polls a child every few seconds makes no progress by that: the child's own idle time counts.
    """
    if exact.rested is not None:
        return exact.rested, exact.rested
    rests = [rest for tid in tids if (rest := process.rest(tid))]
    unbroken = [rest.seconds for rest in rests if not rest.woken]
    woken = [rest.seconds for rest in rests if rest.woken]
    return min(unbroken, default=None), min([*unbroken, *woken], default=0.0)


def _activity(history: ThreadHistory, exact: Specifics) -> Activity:
    """What the thread does; of an event loop and of a starting worker, that it does so there."""
    thread, activity = history.last, exact.activity
    if _is_loop(thread) and activity.kind != "debugger":
        return Activity("event-loop", activity.summary, activity.code)
    if _frames.is_starting(thread):
        return Activity("worker-start", activity.summary, activity.code)
    return activity


def _other_threads(process: SampledProcess, done: Doing, known: Mapping[int, Doing]) -> str:
    """What the threads do that this one may wait for."""
    if done.kind not in ("lock", "native-gil"):
        return ""
    tids = holder_of(process, done) or _others(done, known)
    texts = [_thread_text(known[tid]) for tid in tids if tid in known]
    return "; ".join(list(dict.fromkeys(texts))[:_LISTED])


def _helpers(process: SampledProcess, done: Doing, known: Mapping[int, Doing]) -> list[int]:
    """The threads that may end a thread's wait: the holders of its lock, or all that run the user's code."""
    if done.activity.type.ended_by_thread or done.code == "coroutines":
        return _others(done, known)
    holders = holder_of(process, done) if done.kind == "lock" else []
    return [tid for tid in holders if tid in known]


def _others(done: Doing, known: Mapping[int, Doing]) -> list[int]:
    return [tid for tid in known if tid != done.thread.tid and _is_own(known[tid])]


def _is_own(done: Doing) -> bool:
    """Whether the user's code or a library started this thread, not Ray, a debugger or Python itself."""
    user = done.user
    return _frames.is_bare_target(done.thread) or (
        user is not None and _frames.whose(user) == "user"
    )


def _thread_text(done: Doing) -> str:
    place = f" in {done.user.place}" if done.user is not None else ""
    return f"{_thread_name(done)} {done.activity.summary}{place}"


def _thread_name(done: Doing) -> str:
    return f"thread {done.thread.name or done.thread.tid}"


def _evidence(process: SampledProcess, history: ThreadHistory, done: Doing) -> Iterator[str]:
    """What was observed of a thread."""
    count = len(history.samples)
    if count > 1 and done.thread.frames:
        stack = "its stack changed" if changes(history) else "its stack did not change"
        yield f"{stack} in {count} samples within {history.seconds:.1f} s"
    if history.share is not None:
        yield f"it used {history.share:.0%} of a CPU"
    rest = process.rest(done.thread.tid)
    if rest is not None and rest.seconds >= 1:
        yield f"it had not run for {duration(rest.seconds)} before"
    place = _place(done.thread)
    if place:
        yield place
    native = kernel.most_specific(_frames.natives(done.thread))
    if native is not None:
        yield f"native code: {native.function} ({native.file})"


def _place(thread: SampledThread) -> str:
    """`state S, in futex_do_wait`."""
    if not thread.state:
        return ""
    return f"state {thread.state}{f', in {thread.wchan}' if thread.wchan else ''}"

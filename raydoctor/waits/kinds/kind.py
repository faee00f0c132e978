"""In what a process hangs, by a few looks at it: which kind, on what exactly, and whether it gets on.

Of a worker's threads only those count that run what Ray was asked for: its main thread inside a task, the
threads of an actor with several, an event loop in the middle of a step. All of them are judged, and the one
that stands is told. A loop that makes progress looks like one without end: a verdict says that it `moves`,
and how long is too long is for others to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from raydoctor.cluster.samples import Frame, Kind, Process, Sample, Thread
from raydoctor.model.text import duration
from raydoctor.waits.kinds import calls, kernel
from raydoctor.waits.kinds import frames as _frames
from raydoctor.waits.kinds.specifics import Specifics, holder_of, process_name, specifics, tracer_of
from raydoctor.waits.kinds.thread import BASE, Doing, Seen, changes, doing

EVENT_LOOP = _frames.EVENT_LOOP
user_frame = _frames.user_frame
_WORST: tuple[Kind, ...] = (
    "debugger", "stopped", "async-blocked", "native-gil", "disk", "socket", "subprocess", "collective",
    "ray-get", "sleep", "lock", "unknown", "native", "python-loop", "worker-start",
)  # fmt: skip
"""Of several threads the one to tell: who waits for a lock may wait for one that waits for something else."""
_TOLD = 3
_CERTAIN = frozenset(
    {"sleep", "child", "recv", "send", "connect", "accept", "pipe", "file-lock", "device"}
)
"""Calls that say enough without a stack; Ray itself waits in the others."""


class Verdict(NamedTuple):
    """In what a process hangs."""

    kind: Kind
    words: str
    """What it does, without the place: `waits for a socket: 10.0.0.9:5432`."""
    thread: Thread | None
    """The thread that does it, in the newest look."""
    user: Frame | None
    """The innermost frame of its user's on that thread."""
    evidence: tuple[str, ...]
    """What was seen, one sentence each."""
    moves: bool = False
    """Whether it gets on: its stack changes, it uses a processor, or the child it waits for does."""
    on: str = ""
    """What it waits on outside of the process: an address, `pid 812 (sleep 100)`, a path."""
    more: str = ""
    """What the thread does that it waits for."""
    rested: float | None = None
    """Seconds since it, or what it waits for in its process or below, last ran; None where nobody knows."""
    at_least: float = 0.0
    """Seconds for which it has certainly stood: since then it has not run, or has merely been stopped."""
    wakes: float | None = None
    """Seconds until its sleep ends, where that is known."""

    @property
    def still(self) -> bool:
        """Whether it stands: no look differs from another, and nothing works for it."""
        return not self.moves

    @property
    def is_open(self) -> bool:
        """Whether to stand there is no hang by itself: a server without callers, an event loop at rest."""
        return self.words.startswith((calls.SERVES, calls.COROUTINES))

    @property
    def in_asyncio(self) -> bool:
        """Whether it waits for coroutines, none of which is on its stack."""
        return self.words.startswith(calls.IN_ASYNCIO)

    @property
    def told(self) -> str:
        """`waits for a lock in load (train.py:31); thread pump sleeps in fill (train.py:9)`."""
        place = f" in {self.user.place}" if self.user is not None else ""
        return f"{self.words}{place}{f'; {self.more}' if self.more else ''}"


def kind_of(process: Process, is_async: bool = False) -> Verdict | None:
    """In what it hangs; None where nothing of it does: it is idle, or its coroutines merely await.

    `is_async`: what it runs is a coroutine, though no thread of its event loop could be told.
    """
    found = verdicts_of(process, is_async)
    if not found:
        return None
    others = tuple(f"another thread {verdict.told}" for verdict in found[1 : _TOLD + 1])
    return found[0]._replace(evidence=(*found[0].evidence, *others))


def verdicts_of(process: Process, is_async: bool = False) -> tuple[Verdict, ...]:
    """One for each of its threads that runs what Ray was asked for, the worst first."""
    if process.title.startswith("ray::IDLE"):
        return ()
    whole = _held(process)
    if whole is None and not any(thread.frames for thread in process.last.threads):
        whole = _without_stack(process)
    if whole is not None:
        return (whole,)
    seen = _seen(process)
    known = {each.last.tid: doing(each) for each in seen}
    by_pool = any(done.words == calls.FUTURE for done in known.values())
    found = [
        _verdict(process, each, known)
        for each in seen
        if _counts(process, each, is_async) or (by_pool and _is_pool_user(known[each.last.tid]))
    ]
    return tuple(sorted(found, key=lambda v: (v.moves, _WORST.index(v.kind))))


def doing_of(thread: Thread) -> Doing:
    """What one thread of a single look does, without clues."""
    return doing(Seen((thread,)))


def base_words(done: Doing) -> str:
    """What it does, in the plainest words: `waits for a lock`, whatever kind of lock it is."""
    return BASE.get(done.kind, done.words)


def is_background(thread: Thread) -> bool:
    """Whether somebody's own `threading.Thread` it is, not one that Ray made for tasks."""
    return _frames.is_started_by_python(thread)


# ------------------------------------------------------------------ the process as a whole


def _held(process: Process) -> Verdict | None:
    """It is stopped, traced or frozen: nothing of it runs, whatever its stack says."""
    mains = [main for sample in process.samples if (main := _main(process, sample)) is not None]
    if not mains:
        return None
    last = mains[-1]
    user = user_frame(last.frames)
    tracer = tracer_of(process)
    if all(thread.state == "t" for thread in mains) or (tracer is not None and not last.state):
        name = process_name(tracer) if tracer is not None else "another process"
        evidence = ("held by its tracer", _place(last))
        return Verdict(
            "debugger", f"is held by {name}, which traces it", last, user, evidence, on=name
        )
    if all(thread.state == "T" for thread in mains):
        evidence = (f"state T: kill -CONT {process.pid} lets it go on", _place(last))
        return Verdict("stopped", "is stopped (SIGSTOP)", last, user, evidence)
    if all(kernel.held(thread.wchan).kind == "stopped" for thread in mains):
        words = kernel.held(last.wchan).words
        return Verdict("stopped", words, last, user, (f"in {last.wchan}",))
    return None


def _main(process: Process, sample: Sample) -> Thread | None:
    """The main thread: the kernel's number of it is the pid."""
    of_pid = (thread for thread in sample.threads if thread.tid == process.pid)
    named = (thread for thread in sample.threads if thread.name == "MainThread")
    return next(of_pid, None) or next(named, None)


def _without_stack(process: Process) -> Verdict | None:
    """What the kernel alone tells, where py-spy was not allowed to look."""
    mains = tuple(m for sample in process.samples if (m := _main(process, sample)) is not None)
    problem = process.last.problem or "no stack"
    if not mains:
        return Verdict("unknown", "could not be looked at", None, None, (problem,))
    seconds = process.samples[-1].at - process.samples[0].at
    seen = Seen(mains, seconds, is_arm=kernel.is_arm(process.last.threads))
    done = doing(seen)
    evidence = (problem, *_evidence(process, seen, done))
    if done.call in _CERTAIN:
        told = specifics(process, done)
        seen_too = (*evidence, *told.evidence)
        return Verdict(told.kind, told.words, done.thread, None, seen_too, done.moves, told.on)
    share = process.cpu_share
    if done.moves or (share or 0.0) > 0.5:
        used = f"{share:.0%} of a processor" if share is not None else "a processor"
        return Verdict(
            "unknown", f"uses {used}, nobody knows for what", done.thread, None, evidence, True
        )
    where = f" in the kernel ({done.thread.wchan})" if done.thread.wchan else ""
    return Verdict("unknown", f"waits{where}, nobody knows for what", done.thread, None, evidence)


# ------------------------------------------------------------------ its threads


def _seen(process: Process) -> list[Seen]:
    """Each thread of the newest look, with the looks before."""
    is_arm = kernel.is_arm(process.last.threads)
    return [_history(process, thread, is_arm) for thread in process.last.threads]


def _history(process: Process, thread: Thread, is_arm: bool) -> Seen:
    same = [(s.at, t) for s in process.samples for t in s.threads if _is_same(t, thread)]
    looks = [(at, _credible(t)) for at, t in same]
    seconds = process.last.at - looks[0][0]
    return Seen(tuple(t for _, t in looks), seconds, _gil_holder(process, thread), is_arm)


def _credible(thread: Thread) -> Thread:
    """Without the kernel's number py-spy does not know whether a thread runs, and says that it does.

    So it is of a process with Python 3.10 that cannot be stopped for a look (py-spy 0.4.3).
    """
    return thread if thread.tid else thread._replace(active=False, gil=False)


def _is_same(one: Thread, other: Thread) -> bool:
    """The kernel's number is the thread; its name follows what it runs."""
    return one.tid == other.tid if one.tid or other.tid else one.name == other.name


def _gil_holder(process: Process, thread: Thread) -> Thread | None:
    """Who else had the interpreter's lock in most looks."""
    holders = [t for s in process.samples for t in s.threads if t.gil and t.tid != thread.tid]
    return holders[-1] if 2 * len(holders) > len(process.samples) else None


def _counts(process: Process, seen: Seen, is_async: bool) -> bool:
    """Whether a thread runs what Ray, or its own main program, was asked for."""
    thread = seen.last
    if not thread.frames:
        return False
    is_async = is_async or any(_frames.is_event_loop(t) for t in process.last.threads)
    if _frames.is_event_loop(thread) or (is_async and _is_loop(thread)):
        # One look at which it rests proves that its steps end.
        return not any(_frames.is_resting(look) for look in seen.looks)
    if thread.tid == process.pid or thread.name == "MainThread":
        return _is_inside(thread)
    if _frames.is_started_by_python(thread):
        if _frames.is_training(thread):
            return True
        return is_async and _frames.is_pool_work(thread)
    return user_frame(thread.frames) is not None


def _is_pool_user(done: Doing) -> bool:
    """Whether a thread of a pool runs a user's function, for whose result another thread waits."""
    user = done.user
    return user is not None and _frames.whose(user) == "user" and _frames.is_pool_work(done.thread)


def _is_loop(thread: Thread) -> bool:
    """Whether coroutines run in it: Ray's thread for them, or one of Ray Serve's."""
    own = _frames.is_started_by_python(thread) and _frames.is_own_loop(thread)
    return own or _frames.is_event_loop(thread)


def _is_inside(main: Thread) -> bool:
    """Whether the main thread is in a task, or in its own program; a worker that waits for tasks is not."""
    frames = _frames.python(main)
    return bool(frames) and not _frames.is_main_loop(frames[0])


# ------------------------------------------------------------------ verdicts


def _verdict(process: Process, seen: Seen, known: Mapping[int, Doing]) -> Verdict:
    done = _of_processes(known[seen.last.tid], known)
    told = specifics(process, done)
    more = _more(process, done, known)
    kind, words = _kind(seen, told)
    evidence = (*_evidence(process, seen, done), *told.evidence)
    helpers = _helpers(process, done, known)
    moves = done.moves or told.works or any(known[tid].moves for tid in helpers)
    rested = _rested(process, [done.thread.tid, *helpers], told)
    rest = process.rest(done.thread.tid) if kind == "sleep" else None
    wakes = rest.wakes if rest is not None else None
    verdict = Verdict(kind, words, done.thread, done.user, evidence, moves, told.on, more, *rested)
    return verdict._replace(wakes=wakes)


def _of_processes(done: Doing, known: Mapping[int, Doing]) -> Doing:
    """A wait for a future that a pool of processes is to fulfil: a thread of that pool's tells of it."""
    threads = (each.thread for each in known.values())
    if done.words == calls.FUTURE and any(map(_frames.is_process_pool, threads)):
        return done._replace(kind="subprocess", words="waits for a pool of processes")
    return done


def _rested(process: Process, tids: Iterable[int], told: Specifics) -> tuple[float | None, float]:
    """Seconds that neither the thread nor what it waits for has run: exactly, and at least.

    Who looks every few seconds whether a child has an answer does not get on by that: the child's counts.
    """
    if told.rested is not None:
        return told.rested, told.rested
    rests = [rest for tid in tids if (rest := process.rest(tid))]
    exact = [rest.seconds for rest in rests if not rest.woken]
    woken = [rest.seconds for rest in rests if rest.woken]
    return min(exact, default=None), min([*exact, *woken], default=0.0)


def _kind(seen: Seen, told: Specifics) -> tuple[Kind, str]:
    thread = seen.last
    if _is_loop(thread) and told.kind != "debugger":
        return "async-blocked", f"blocks its event loop: {told.words}"
    if _frames.is_starting(thread):
        return "worker-start", f"starts, and {told.words}"
    return told.kind, told.words


def _more(process: Process, done: Doing, known: Mapping[int, Doing]) -> str:
    """What other threads do, where this one waits for one of them."""
    if done.kind not in ("lock", "native-gil"):
        return ""
    tids = holder_of(process, done) or _others(done, known)
    told = [_as_thread(known[tid]) for tid in tids if tid in known]
    return "; ".join(list(dict.fromkeys(told))[:_TOLD])


def _helpers(process: Process, done: Doing, known: Mapping[int, Doing]) -> list[int]:
    """The threads that have to bring about what a thread waits for, as far as anybody can tell."""
    if done.words in calls.FOR_THREADS or done.words == calls.COROUTINES:
        return _others(done, known)
    holders = holder_of(process, done) if done.kind == "lock" else []
    return [tid for tid in holders if tid in known]


def _others(done: Doing, known: Mapping[int, Doing]) -> list[int]:
    return [tid for tid in known if tid != done.thread.tid and _is_own(known[tid])]


def _is_own(done: Doing) -> bool:
    """Whether somebody else than Ray, a debugger or Python itself started this thread for some work."""
    user = done.user
    return _frames.is_bare_target(done.thread) or (
        user is not None and _frames.whose(user) == "user"
    )


def _as_thread(done: Doing) -> str:
    place = f" in {done.user.place}" if done.user is not None else ""
    return f"thread {done.thread.name or done.thread.tid} {done.words}{place}"


def _evidence(process: Process, seen: Seen, done: Doing) -> Iterator[str]:
    """What was seen of a thread."""
    looks = len(seen.looks)
    if looks > 1 and done.thread.frames:
        same = "other lines" if changes(seen) else "the same lines"
        yield f"{same} of its stack in {looks} looks within {seen.seconds:.1f} s"
    if seen.share is not None:
        yield f"used {seen.share:.0%} of a processor"
    rest = process.rest(done.thread.tid)
    if rest is not None and rest.seconds >= 1:
        yield f"had not run for {duration(rest.seconds)} before"
    place = _place(done.thread)
    if place:
        yield place
    native = kernel.telling(_frames.natives(done.thread))
    if native is not None:
        yield f"native code: {native.function} ({native.file})"


def _place(thread: Thread) -> str:
    """`state S, in futex_do_wait`."""
    if not thread.state:
        return ""
    return f"state {thread.state}{f', in {thread.wchan}' if thread.wchan else ''}"

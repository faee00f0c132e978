"""An actor could not be created because its `__init__` raised an exception.

## What you see
`ActorDiedError` (`RayActorError` up to Ray 2.10) on a later call: `The actor died because of an error raised in its
creation task, ray::ModelServer.__init__() …`. The error often appears far from its cause: a task that received the
handle fails with `RayTaskError(ActorDiedError)`. If the program never calls the actor, no exception is raised in the
driver.

## Why
`.remote()` returns a handle immediately, and `__init__` runs later in another process. An exception in it ends that
process (exit type `USER_ERROR`), and every call on any handle of the actor fails with the same error. `max_restarts`
does not help: Ray does not repeat an `__init__` that raised (measured with Ray 2.9.3 and 2.60, `max_restarts=2`).

## Confirm
- The diagnosis names the exception, the innermost line of your own code and, after `raise … from`, the original
  exception.
- `raylet.out` of the actor's node has the whole traceback below `Formatted creation task exception:`, even if the
  program caught the exception and did not print it.
- If the constructor works on your machine, compare its arguments, files and environment: run the same constructor on
  the actor's node.

## Fix
Fix the line that raised, or its input. To get the exception at creation instead of at the first call, wait for the
actor: `ray.get(handle.__ray_ready__.remote())`.

## Not this when
- the process of the constructor was killed or crashed (`ray-oom-kill`, `worker-native-crash`, `worker-vanished`).
- Ray could not set up the actor's runtime environment or its worker (`runtime-env-failed`, `worker-start-crashed`).
- the constructor returned, and the actor died later (`actor-killed`, `actor-restart-loop`).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import (
    ACTOR_FAILED,
    CORE,
    DRIVER,
    RAY_EXCEPTION,
    RAYLET,
    TRACEBACK,
    WORKER_EXIT,
)
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import cut
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import ended
from raydoctor.rules.shared.disks import FULL, NO_SPACE
from raydoctor.rules.shared.failures import cause_above, constructors, ended_programs, program
from raydoctor.rules.shared.setup import imports, misuse
from raydoctor.rules.shared.task_error import ERROR_TEXT, error_entity
from raydoctor.rules.shared.traceback import Raised, parse

_DOC = "https://docs.ray.io/en/latest/ray-core/fault_tolerance/actors.html"
_OPENING = "The actor died because of an error raised in its creation task, "
_CREATION = pattern(
    # Markdown removes the underscores of `__init__`, people remove the ids, and Ray 1.4 has no parentheses.
    r"raised in its creation task, ray::(?P<class>[^\n]{0,300}?)\.(?:__init__|init)(?:\(\))?(?: \(pid=(?P<pid>\d{1,20}), "
    r"ip=(?P<ip>[^,)\s]*)(?:, actor_id=(?P<actor>[0-9a-f]{32}))?| \(repr=|$)",
    re.MULTILINE,
)
_LONGEST = 160
"""Characters of an exception that a headline has room for."""

_A = "7dbdc85090b37cd39fb9e77001000000"


def _creation_text(cls: str, pid: int, actor: str, body: str) -> str:
    return (
        f"{_OPENING}ray::{cls}.__init__() (pid={pid}, ip=10.0.0.2, actor_id={actor}, "
        f"repr=<serve.{cls} object at 0x7fba4289b9d0>)\n           ^^^^^^^^^^^^^^^^^^^^\n{body}"
    )


_BODY = (
    '  File "/home/user/project/serve.py", line 37, in __init__\n    self.weights = load_checkpoint(path)\n'
    '                   ^^^^^^^^^^^^^^^^^^^^^\n  File "/home/user/project/serve.py", line 25, in read_header\n'
    '    raise ValueError(f"not a checkpoint: magic {magic}")\nValueError: not a checkpoint: magic 7'
)
_TEXT = _creation_text("ModelServer", 463, _A, _BODY)

LOGGED = Signal(
    "actor.creation_exception",
    "Formatted creation task exception: ",
    r"^Formatted creation task exception: (?P<what>.*)",
    RAYLET,
    f"Formatted creation task exception: Traceback (most recent call last):\n\nray.exceptions.ActorDiedError: {_TEXT}",
    extent="record",
)
PRINTED = Signal(
    "actor.creation_printed",
    "Exception raised in creation task: ",
    r"^Exception raised in creation task: (?P<what>.*)",
    (*DRIVER, "worker-echo"),
    f"Exception raised in creation task: {_TEXT}",
    extent="record",
)
"""In the output of the actor's own process (2.3 to 2.60)."""

QUOTED = Signal(
    PRINTED.kind,
    "raised in its creation task, ray::",
    r"^(?!ray\.exceptions\.|Exception raised in creation|Formatted )[^\n]{1,200}?"
    r"(?P<what>The actor died because of an error raised in its creation task, ray::.*)",
    (*DRIVER, "worker-echo"),
    f"Ray error, taking actor 2 out of service. {_TEXT}",
    extent="record",
)
"""In a message of a library that logs the error of a call: RLlib's `utils/actor_manager.py`, 2.2 to 2.60."""

EXITS = Signal(
    "actor.init_exit",
    "Worker exits because there was an exception in the initialization method",
    r"^Exit signal received, .{0,200}?exit_type=USER_ERROR, detail=Worker exits because there was an exception in the initialization "
    r"method \(e\.g\., __init__\)\.(?P<what>.*)",
    (*DRIVER, *CORE),
    "Exit signal received, this process will exit after all outstanding tasks have finished, exit_type=USER_ERROR, detail=Worker exits "
    "because there was an exception in the initialization method (e.g., __init__). Fix the exceptions from the initialization to "
    f"resolve the issue. Exception raised from an actor init method. Traceback: {_TEXT}",
    extent="record",
)
"""In the log of the actor's own process (`core_worker.cc`, 2.9 to 2.40), for a paste of this log alone."""

UNPICKLED = Signal(
    "actor.not_unpickled",
    "Failed to unpickle actor class '",
    r"^Failed to unpickle actor class '(?P<class>[^'\n]{1,300})' for actor ID (?P<short_id>[0-9a-f]{8,64})\. Traceback:",
    DRIVER,
    "Failed to unpickle actor class 'Trainer' for actor ID 3261819f0100. Traceback:",
)
"""Up to 0.8; later the first call raises `The actor with name … failed to import on the worker`."""


@dataclass(slots=True)
class _Failure:
    """One actor that could not be created, with the records of all files."""

    name: str = ""
    pid: int | None = None
    actor: str = ""
    raised: Raised | None = None
    exit: WorkerExit | None = None
    events: list[Event] = field(default_factory=list)
    """The most detailed record first."""
    source: tuple[Event, Raised] | None = None
    """The exception of another process to which its own only refers."""
    end: Entity | None = None
    """The program whose output ends with it, if only its traceback shows the failure."""
    is_import: bool = False
    """Its class could not be unpickled, so that its constructor never ran."""

    @property
    def entities(self) -> tuple[Entity, ...]:
        own = (Entity("actor", self.actor),) if self.actor else ()
        return (
            *(self.exit.entities if self.exit else ()),
            *own,
            *((self.end,) if self.end else ()),
        )


@rule(
    tier="root",
    severity="error",
    rank=45,
    explains=("actor", "process", "program", "worker"),
    caused_by=("actor", "disk", "task-error"),
    daemons_record=True,
    looks_for=(
        *misuse.SIGNALS,
        WORKER_EXIT,
        ACTOR_FAILED,
        RAY_EXCEPTION,
        ERROR_TEXT,
        LOGGED,
        PRINTED,
        QUOTED,
        UNPICKLED,
        EXITS,
        TRACEBACK,
    ),
)
def actor_init_failed(case: Case) -> Iterator[Finding]:
    """One finding per class, exception and line of code."""
    groups: dict[tuple[str, str, str], list[_Failure]] = {}
    for failure in _failures(case):
        raised = failure.raised
        if raised and raised.is_elsewhere:
            failure.source = cause_above(case, failure.events[0])
        key = (failure.name, raised.type if raised else "", str(raised.place) if raised else "")
        groups.setdefault(key, []).append(failure)
    known = {id(seen.event): error_entity(seen) for seen in constructors(case)}
    for failures in groups.values():
        yield _finding(case, failures, known)


def _failures(case: Case) -> list[_Failure]:
    """Every actor whose creation task raised: from the worker's exit or from a driver's exception."""
    found: list[_Failure] = []
    for exit_ in case.exits:
        if exit_.exit_type == "USER_ERROR":
            name = exit_.names[-1] if exit_.names else ""
            failure = _Failure(name, exit_.pid, exit_.actor, exit=exit_)
            failure.events += exit_.events
            _complete(failure, exit_.detail)
            found.append(failure)
    by_actor = {f.actor: f for f in found if f.actor}
    headless = list(_headless(case))
    beheaded = {id(e) for e in headless}
    known = ("actor.creation_exception", PRINTED.kind, "driver.exception")
    for event in (*case.of(*known), *headless):
        text = f"{_OPENING}{event.message}" if id(event) in beheaded else event["what"]
        creation = _CREATION.search(text)
        direct = event.kind != "driver.exception" or text.startswith(_OPENING)
        logged = event.kind != PRINTED.kind or event.level or event.message.startswith(PRINTED.find)
        if not creation or not (direct and logged) or case.torn_down(event):
            continue
        actor = (
            creation["actor"] or f"{creation['ip'] or ''}/{creation['pid'] or creation['class']}"
        )
        if actor not in by_actor:
            by_actor[actor] = _Failure(actor=creation["actor"] or "")
            found.append(by_actor[actor])
        by_actor[actor].events.append(event)
        _complete(by_actor[actor], text)
    for event in () if found or not evidence.is_console(case) else case.of(EXITS.kind):
        if event.level:
            failure = _Failure(pid=event.pid, events=[event])
            _complete(failure, event["what"])
            found.append(failure)
    found += () if found else _of_frames(case)
    for event in case.of(UNPICKLED.kind):
        below = (
            e
            for e in case.of(TRACEBACK.kind)
            if e.source is event.source and 0 < e.line - event.line <= 2
        )
        trace = next(below, None)
        if event.level and trace:
            failure = _Failure(event["class"], raised=parse(trace.message), events=[event, trace])
            failure.is_import = True
            found.append(failure)
    return found


def _of_frames(case: Case) -> Iterator[_Failure]:
    """Constructors in whose traceback an excerpt ends: only a worker calls `__init__` through these frames."""
    for ending, raised in ended_programs(case):
        if ending.source.is_excerpt and raised.executed == "__init__" and not raised.is_rays_own:
            if not raised.type and raised.is_waiting:
                continue
            yield _Failure(
                raised=raised if raised.type else None, events=[ending], end=program(ending)
            )


def _headless(case: Case) -> Iterator[Event]:
    """Errors of constructors of which a paste lacks the beginning, and those in Tune's list of a trial's failures."""
    quoted = evidence.grouped(case.of(PRINTED.kind, "driver.exception"), lambda e: e.source)
    for records in quoted.values():
        records.sort(key=lambda e: e.line)
    for event in case.of(ERROR_TEXT.kind):
        is_whole = event.source.is_excerpt and event.message.startswith("ray::")
        if not is_whole or not event["function"].endswith(".__init__"):
            continue
        above = quoted.get(event.source, [])
        before = bisect_right(above, event.line, key=lambda e: e.line)
        last = above[before - 1] if before else None
        if last is None or event.line > last.line + last.text.count("\n"):
            yield event


def _complete(failure: _Failure, text: str) -> None:
    """Fill the fields that are still empty from the text of one record."""
    creation = _CREATION.search(text)
    if not creation:
        return
    failure.name = creation["class"].rpartition(":")[2]
    failure.pid = failure.pid or (int(creation["pid"]) if creation["pid"] else None)
    failure.actor = failure.actor or creation["actor"] or ""
    failure.raised = failure.raised or parse(
        text[creation.start() + len("raised in its creation task, ") :]
    )


def _finding(case: Case, failures: list[_Failure], known: dict[int, Entity]) -> Finding:
    """`known`: by the identity of a record, its exception, which another rule may explain."""
    events = [e for f in failures for e in f.events]
    return Finding(
        _headline(failures),
        _chain(case, failures),
        explains=tuple(dict.fromkeys(e for f in failures for e in f.entities)),
        caused_by=(
            *_causes(failures),
            *(known[id(e)] for e in events if id(e) in known),
            *((FULL,) if NO_SPACE in str(failures[0].raised) else ()),
        ),
        subjects=tuple(
            Subject(
                "actor", f.actor or None, f.name or None, f.pid, (f.exit and f.exit.node) or None
            )
            for f in failures[:10]
        ),
        count=len(failures),
        remedies=_remedies(case, failures[0]),
        covers=(
            *events,
            *_printed_at_end(case, failures),
            *_wrappers(case, events),
            *(f.source[0] for f in failures if f.source),
        ),
    )


_FAR = 80
"""Most lines between a wrapper and the exception that it wraps: a quoted traceback has blank lines between its own."""


def _wrappers(case: Case, events: list[Event]) -> Iterator[Event]:
    """`UnserializableException` (2.50+) precedes the text of an exception that the caller cannot deserialize."""
    for event in case.of("driver.exception"):
        quoted = range(event.line, event.line + _FAR)
        wraps = any(e.source is event.source and e.line in quoted for e in events)
        if event["type"] == "UnserializableException" and wraps:
            yield event


def _printed_at_end(case: Case, failures: list[_Failure]) -> Iterator[Event]:
    """The tracebacks with which these excerpts end."""
    for ending in (f.events[0] for f in failures if f.end):
        yield from (
            e
            for e in case.of("log.traceback", "log.error", "driver.exception")
            if e.source is ending.source and e.line >= ending.line
        )


def _headline(failures: list[_Failure]) -> str:
    first = failures[0]
    if len(failures) > 1:
        subject = f"{len(failures)} {first.name or 'equal'} actors"
    else:
        subject = f"Actor {first.name}" if first.name else "An actor"
        subject += f" (pid {first.pid})" if first.pid else ""
    what = "unpickling its class" if first.is_import else "__init__"
    if first.source:
        return f"{subject} could not be created because a process that it started raised {_exception(first.source[1])}"
    return f"{subject} could not be created: {what} raised {_exception(first.raised)}"


def _exception(raised: Raised | None) -> str:
    """`ConfigError: no model, in read_config() (serve.py:11), from KeyError: 'model'`."""
    if raised is None:
        return "an exception whose text is not in the capture"
    text = str(raised)
    if raised.is_rays_own and raised.name in ("ActorDiedError", "RayActorError"):
        text = f"{raised.name} because an actor that it called is dead"
    shown = cut(text, _LONGEST).removesuffix(".")
    shown += f", in {raised.place}" if raised.place else ""
    return f"{shown}, from {str(raised.first)[:_LONGEST]}" if raised.cause else shown


def _chain(case: Case, failures: list[_Failure]) -> tuple[Link, ...]:
    first = failures[0]
    name = first.name or "the actor"
    links = []
    if first.source:
        above, its = first.source
        links.append(Link(above, f"another process raised {_exception(its)}", its.code))
    for event in first.events:
        if event.kind != "driver.exception":
            shows = (
                f"a worker could not unpickle {name}: {_exception(first.raised)}"
                if first.is_import
                else f"the worker of {name} exited because __init__ raised {_exception(first.raised)}"
            )
            links.append(Link(event, shows, first.raised.code if first.raised else ""))
            break
    given_up = [
        e for e in case.actor(first.actor).failures if e["context"] == "CreationTaskFailureContext"
    ]
    links += [
        Link(e, "the GCS marks the actor as dead and does not repeat __init__")
        for e in given_up[:1]
    ]
    seen = [e for f in failures for e in f.events if e.kind == "driver.exception"]
    if seen:
        often = f"{len(seen)} calls" if len(seen) > 1 else "a call"
        code = "" if any(link.code for link in links) or not first.raised else first.raised.code
        links.append(Link(seen[0], f"{often} on {name} failed with {seen[0]['type']}", code))
    return tuple(links)


def _causes(failures: list[_Failure]) -> tuple[Entity, ...]:
    """The entities that a constructor waited for, if the exception is one of Ray's own errors."""
    own = {f.actor for f in failures}
    found: dict[Entity, None] = {}
    for failure in failures:
        if failure.raised is None or not failure.raised.is_rays_own:
            continue
        if failure.raised.name == "GetTimeoutError":
            found[Entity("waiting", "cluster")] = None
        for entity in (e for event in failure.events for e in event.entities):
            if entity.kind in ("actor", "object", "task") and entity.value not in own:
                found[entity] = None
    return tuple(sorted(found))


def _remedies(case: Case, failure: _Failure) -> tuple[Remedy, ...]:
    raised, name = failure.raised, failure.name or "the actor"
    if known := imports.remedy(case, raised) or misuse.in_worker(case, raised):
        return (known,)
    place = raised.place if raised else None
    where = f" at {place.file}:{place.line}" if place else ""
    fix = f"Fix the code or the input that makes __init__ raise {raised.name if raised else 'the exception'}{where}"
    if ended.is_of_library(name):
        return (Remedy(fix, doc=_DOC),)
    return (
        Remedy(
            fix,
            (
                paste.python(
                    "# reproduce it without Ray: remove @ray.remote from the class and call {actor}(…)",
                    actor=name,
                ),
                "# with the same arguments, on the node of the actor and in its environment",
            ),
            doc=_DOC,
        ),
        Remedy(
            f"To get the exception where {name} is created, wait for the actor there",
            (
                paste.python("handle = {actor:name}.remote(ARGUMENTS)", actor=name),
                "ray.get(handle.__ray_ready__.remote())",
            ),
            doc=_DOC,
        ),
    )


# ------------------------------------------------------------------ examples

_CHILD = "99bc65675c0710f662ee9b7101000000"
_W = "6616787a8526d94be7228afa1d3bfac9b8a161ecc5b6198713d8dc4e"
_N = "391d8f898779c8955d2f7368368e9667f32956a74c0220a5c3ca2eb1"
_NESTED = _creation_text(
    "Pool",
    490,
    _A,
    '  File "/home/user/project/serve.py", line 52, in __init__\n    ray.get(self.child.ping.remote())\n'
    f"ray.exceptions.ActorDiedError: {_creation_text('ModelServer', 518, _CHILD, _BODY)}",
)


def _exit_line(worker: str, text: str) -> str:
    return (
        "[2026-11-21 07:42:41,363 W 13 13] (gcs_server) gcs_worker_manager.cc:70: Reporting worker exit, worker id = "
        f"{worker}, node id = {_N}, address = 10.0.0.2, exit_type = USER_ERROR, exit_detail = Worker exits because there was an "
        "exception in the initialization method (e.g., __init__). Fix the exceptions from the initialization to resolve the issue. "
        f"Exception raised from an actor init method. Traceback: {text}. Unintentional worker failures have been reported. If "
        "there are lots of this logs, that might indicate there are unexpected failures in the cluster.\n"
    )


def _logged_by_rllib(text: str) -> str:
    line, _, below = text.partition("\n")
    head = f"(PPO pid=12) 2026-11-21 10:40:11,306\tERROR actor_manager.py:507 -- {line}\n"
    return head + "".join(f"(PPO pid=12) {each}\n" for each in below.splitlines())


EXAMPLES: tuple[Example, ...] = (
    Example(
        "a constructor raises in a nested call, and the driver sees the error inside a task's error",
        {
            "logs/gcs_server.out": _exit_line(_W, _TEXT),
            "logs/raylet.out": "",
            "driver.log": "Traceback (most recent call last):\nray.exceptions.RayTaskError(ActorDiedError): ray::evaluate() "
            '(pid=387, ip=10.0.0.2)\n  File "/home/user/project/serve.py", line 48, in evaluate\n    return ray.get(ref)\n'
            f"ray.exceptions.ActorDiedError: {_TEXT}\n",
        },
        says=(
            "ModelServer (pid 463)",
            "ValueError: not a checkpoint",
            "read_header() (serve.py:25)",
        ),
    ),
    console(
        "Tune's list of a trial's failures, without Ray's sentence above the error",
        f"Failure # 1 (occurred at 2026-11-21_07-44-26)\n{_TEXT.removeprefix(_OPENING)}\n",
        says=("ModelServer (pid 463)", "read_header() (serve.py:25)"),
    ),
    console(
        "the constructor refers to the exception of a process that it started",
        "(ModelServer pid=463) (EngineCore_DP0 pid=470) ERROR 11-21 10:53:18 [core.py:845] EngineCore failed to start.\n"
        "(ModelServer pid=463) (EngineCore_DP0 pid=470) ERROR 11-21 10:53:18 [core.py:845] Traceback (most recent call last):\n"
        '(ModelServer pid=463) (EngineCore_DP0 pid=470) ERROR 11-21 10:53:18 [core.py:845]   File "/app/engine.py", line 8, in build\n'
        "(ModelServer pid=463) (EngineCore_DP0 pid=470) ERROR 11-21 10:53:18 [core.py:845] KeyError: 'mlp.w1'\n"
        "ray.exceptions.ActorDiedError: "
        + _creation_text(
            "ModelServer",
            463,
            _A,
            '  File "/app/serve.py", line 37, in __init__\n    self.engine = start()\nRuntimeError: Engine core initialization '
            "failed. See root cause above. Failed core proc(s): {}\n",
        ),
        says=("a process that it started raised KeyError: 'mlp.w1', in build() (engine.py:8)",),
    ),
    console(
        "a paste of the actor's own log, cut off within the error",
        f"[2026-11-21 07:44:22,071 I 463 463] core_worker.cc:878: {EXITS.sample.partition('k, ray::')[0]}\n",
        says=("An actor (pid 463) could not be created",),
    ),
    console(
        "a paste of the actor's own log",
        f"[2026-11-21 07:44:22,071 I 463 463] core_worker.cc:878: {EXITS.sample}\n",
        says=("Actor ModelServer (pid 463)", "read_header() (serve.py:25)"),
    ),
    console(
        "a program prints the same words",
        f"{EXITS.sample.partition('Traceback')[0]}\nstep 1\n",
    ),
    console(
        "three equal actors, and only the driver's output is available",
        "".join(
            f"ray.exceptions.RayActorError: {_creation_text('Loader', pid, f'{pid:024x}01000000', _BODY)}\ngoing on\n"
            for pid in (211, 212, 240)
        ),
        says=("3 Loader actors", "read_header() (serve.py:25)"),
    ),
    Example(
        "a constructor calls another actor, which has died",
        {
            "logs/gcs_server.out": _exit_line("5" * 56, _TEXT.replace(_A, _CHILD))
            + _exit_line(_W, _NESTED),
            "logs/raylet.out": "",
        },
        says=("Pool (pid 490)", "an actor that it called is dead"),
    ),
    console(
        "a task prints lines of an old log",
        f"(grep pid=12) ray.exceptions.ActorDiedError: {_TEXT}\nsummary: {_TEXT}\n",
        logs=QUIET_LOGS,
    ),
    console(
        "Ray 0.8: a worker lacks a module of the actor's class",
        f"2026-11-21 10:40:11,306\tWARNING worker.py:1134 -- {UNPICKLED.sample}\nTraceback (most recent call last):\n"
        '  File "/venv/lib/python3.8/site-packages/ray/cloudpickle/cloudpickle.py", line 1096, in subimport\n'
        "    __import__(name)\nModuleNotFoundError: No module named 'loader'\n",
        says=(
            "Actor Trainer",
            "unpickling its class raised ModuleNotFoundError: No module named 'loader'",
            "Send loader to the workers",
        ),
    ),
    console(
        "a program that prints such a line",
        f"{UNPICKLED.sample}\nno traceback follows\n",
    ),
    console(
        "only the output of an actor of Ray Data is available, behind its prefix",
        "".join(
            f"(MapWorker(ReadRange->MapBatches(Bad)) pid=463) {line}\n"
            for line in f"{PRINTED.find}{_creation_text('MapWorker(ReadRange->MapBatches(Bad))', 463, _A, _BODY)}".split(
                "\n"
            )
        ),
        says=("(pid 463)", "read_header() (serve.py:25)"),
    ),
    console(
        "RLlib logs the error of an env runner's constructor",
        _logged_by_rllib(f"Ray error ({_TEXT}), taking actor 2 out of service."),
        says=("(pid 463)", "read_header() (serve.py:25)"),
    ),
    console(
        "the head of the error has lost its ids",
        f"{PRINTED.find}{_OPENING}ray::ModelServer.__init__()\n{_BODY}\n",
        says=("Actor ModelServer could not be created", "read_header() (serve.py:25)"),
    ),
    console(
        "RLlib restores an env runner, and quotes no error",
        _logged_by_rllib("Ray error, taking actor 2 out of service. The actor is being restarted."),
    ),
    console(
        "Ray 1.4 prints the constructor without parentheses",
        f"(pid=463) 2026-11-21 10:40:11,306\tERROR worker.py:414 -- {PRINTED.find}{_OPENING}ray::ModelServer.__init__ (pid=463, "
        f"ip=10.0.0.2)\n{_BODY}\n",
        says=("Actor ModelServer (pid 463)",),
    ),
    console(
        "a text without pid and with shorter indentation, as people retype it",
        "Exception raised in creation task: The actor died because of an error raised in its creation task, "
        "ray::Server.__init__() (repr=<app.Server object at 0x150c>)\n"
        ' File "/app/server.py", line 58, in __init__\n self.engine = Engine(**options)\n'
        "TypeError: Engine.__init__() got an unexpected keyword argument 'use_ray'\n",
        says=("Actor Server could not be created", "unexpected keyword argument", "server.py:58"),
    ),
    console(
        "a paste that begins within Ray's sentence above a constructor's traceback",
        "raised in its creation task, ray::Model.__init__() (pid=8, ip=10.0.0.1, repr=<m.Model object at 0x7f>)\n"
        '  File "/app/m.py", line 9, in __init__\n    self.w = open(p).read()\n'
        "FileNotFoundError: [Errno 2] No such file or directory: '/models/w.bin'\n",
        says=("Actor Model (pid 8) could not be created", "m.py:9"),
    ),
    console(
        "a paste begins within the traceback of a constructor: its frames are those of a worker",
        "    return method(__ray_actor, *args, **kwargs)\n"
        '  File "/venv/lib/python3.10/site-packages/ray/util/tracing/tracing_helper.py", line 463, in _resume_span\n'
        "    return method(self, *_args, **_kwargs)\n"
        '  File "/app/device.py", line 38, in __init__\n    self.link = connect(rank)\n'
        "RuntimeError: what:\n\t[context.cc:19] no connection to rank 1\n",
        says=("__init__ raised RuntimeError: [context.cc:19] no connection to rank 1",),
    ),
    console(
        "the constructor of a program's own class raises in a method of an actor",
        '  File "/venv/lib/python3.10/site-packages/ray/util/tracing/tracing_helper.py", line 463, in _resume_span\n'
        "    return method(self, *_args, **_kwargs)\n"
        '  File "/app/device.py", line 58, in step\n    Link(rank)\n  File "/app/device.py", line 38, in __init__\n'
        "    raise RuntimeError(7)\nRuntimeError: 7\n",
        roots=("task-exception",),
    ),
)

"""An actor could not be created: its `__init__` raised an exception.

## What you see
`ActorDiedError` (`RayActorError` up to Ray 2.10) on a call that has nothing to do with it:
`The actor died because of an error raised in its creation task, ray::ModelServer.__init__() …`. Often
far from the cause: a task that was handed the actor fails with `RayTaskError(ActorDiedError)`, or
nothing fails at all, because nobody calls the actor.

## Why
`.remote()` returns a handle at once and `__init__` runs later, in another process. What it raises ends
that process (exit type `USER_ERROR`), and every call on the handle, from wherever, gets the same error.
`max_restarts` does not help: Ray does not try an `__init__` that raised again (measured with 2.9.3 and
2.60, `max_restarts=2`).

## Confirm
- The diagnosis names the exception, the innermost line of your own code, and what it was raised from.
- The whole traceback is in `raylet.out` of the actor's node, below `Formatted creation task exception:`,
  even where the program caught and lost it.
- The actor's arguments and its node's files and environment are what differs from your machine: run
  the same constructor there.

## Fix
Mend the line that raised. To fail where the mistake is rather than at the first use, wait for the actor
once it is made: `ray.get(handle.__ray_ready__.remote())`.

## Not this when
The constructor's process was killed or crashed (`ray-oom-kill`, `worker-native-crash`,
`worker-vanished`), the actor's runtime environment or its worker could not be set up
(`runtime-env-failed`, `worker-start-crashed`), or it lived and died later (`actor-killed`,
`actor-restart-loop`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from raydoctor.case import Case
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import Example, Signal, rule
from raydoctor.case.signals import ACTOR_FAILED, RAY_EXCEPTION, RAYLET, WORKER_EXIT
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared.traceback import Raised, parse

_DOC = "https://docs.ray.io/en/latest/ray-core/fault_tolerance/actors.html"
_OPENING = "The actor died because of an error raised in its creation task, "
_CREATION = pattern(
    r"raised in its creation task, ray::(?P<class>[^()\n]{0,300})\.__init__\(\) \(pid=(?P<pid>\d+), "
    r"ip=(?P<ip>[^,)\s]+)(?:, actor_id=(?P<actor>[0-9a-f]{32}))?"
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


@dataclass(slots=True)
class _Failure:
    """One actor that could not be created, as all files together tell it."""

    name: str = ""
    pid: int | None = None
    actor: str = ""
    raised: Raised | None = None
    exit: WorkerExit | None = None
    events: list[Event] = field(default_factory=list)
    """The most telling first."""

    @property
    def entities(self) -> tuple[Entity, ...]:
        own = (Entity("actor", self.actor),) if self.actor else ()
        return (*(self.exit.entities if self.exit else ()), *own)


@rule(
    tier="root",
    severity="error",
    rank=45,
    daemons_record=True,
    looks_for=(WORKER_EXIT, ACTOR_FAILED, RAY_EXCEPTION, LOGGED),
)
def actor_init_failed(case: Case) -> Iterator[Finding]:
    """One finding per class, exception and line of code: equal constructors fail alike."""
    groups: dict[tuple[str, str, str], list[_Failure]] = {}
    for failure in _failures(case):
        raised = failure.raised
        key = (failure.name, raised.type if raised else "", str(raised.place) if raised else "")
        groups.setdefault(key, []).append(failure)
    for failures in groups.values():
        yield _finding(case, failures)


def _failures(case: Case) -> list[_Failure]:
    """Every actor whose creation task raised: by its worker's exit, or by what drivers saw."""
    found: list[_Failure] = []
    for exit_ in case.exits:
        if exit_.exit_type == "USER_ERROR":
            name = exit_.names[-1] if exit_.names else ""
            failure = _Failure(name, exit_.pid, exit_.actor, exit=exit_)
            failure.events += exit_.events
            _tell(failure, exit_.detail)
            found.append(failure)
    by_actor = {f.actor: f for f in found if f.actor}
    for event in case.of("actor.creation_exception", "driver.exception"):
        text = event["what"]
        told = _CREATION.search(text)
        direct = event.kind != "driver.exception" or text.startswith(_OPENING)
        if not told or not direct or case.torn_down(event):
            continue
        actor = told["actor"] or f"{told['ip']}/{told['pid']}"
        if actor not in by_actor:
            by_actor[actor] = _Failure(actor=told["actor"] or "")
            found.append(by_actor[actor])
        by_actor[actor].events.append(event)
        _tell(by_actor[actor], text)
    return found


def _tell(failure: _Failure, text: str) -> None:
    """Take what a text says and was not known yet."""
    told = _CREATION.search(text)
    if not told:
        return
    failure.name = told["class"].rpartition(":")[2]
    failure.pid = failure.pid or int(told["pid"])
    failure.actor = failure.actor or told["actor"] or ""
    failure.raised = failure.raised or parse(
        text[told.start() + len("raised in its creation task, ") :]
    )


def _finding(case: Case, failures: list[_Failure]) -> Finding:
    events = [e for f in failures for e in f.events]
    return Finding(
        _headline(failures),
        _chain(case, failures),
        explains=tuple(dict.fromkeys(e for f in failures for e in f.entities)),
        caused_by=_causes(failures),
        subjects=tuple(
            Subject(
                "actor", f.actor or None, f.name or None, f.pid, (f.exit and f.exit.node) or None
            )
            for f in failures[:10]
        ),
        count=len(failures),
        remedies=_remedies(failures[0]),
        covers=(*events, *_wrappers(case, events)),
    )


_FAR = 80
"""Lines from a wrapper to what it wraps: blank ones stand between all of a quoted traceback's."""


def _wrappers(case: Case, events: list[Event]) -> Iterator[Event]:
    """`UnserializableException` (2.50+) stands above the text of an exception that the caller cannot rebuild."""
    for event in case.of("driver.exception"):
        quoted = range(event.line, event.line + _FAR)
        wraps = any(e.source is event.source and e.line in quoted for e in events)
        if event["type"] == "UnserializableException" and wraps:
            yield event


def _headline(failures: list[_Failure]) -> str:
    first = failures[0]
    name = first.name or "An actor"
    if len(failures) > 1:
        who = f"{len(failures)} {first.name or 'equal'} actors"
    else:
        who = f"{name} (pid {first.pid})" if first.pid else name
    return f"{who} could not be created: __init__ raised {_what(first.raised)}"


def _what(raised: Raised | None) -> str:
    """`ConfigError: no model in read_config (serve.py:11), from KeyError: 'model'`."""
    if raised is None:
        return "an exception whose text is not in the capture"
    text = str(raised)
    if raised.is_rays_own and raised.name in ("ActorDiedError", "RayActorError"):
        text = f"{raised.name}: an actor that it called is dead,"
    said = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    said += f" in {raised.place}" if raised.place else ""
    return f"{said}, from {str(raised.first)[:_LONGEST]}" if raised.cause else said


def _chain(case: Case, failures: list[_Failure]) -> tuple[Link, ...]:
    first = failures[0]
    name = first.name or "the actor"
    links = []
    for event in first.events:
        if event.kind != "driver.exception":
            shows = f"{name}'s worker ended because __init__ raised {_what(first.raised)}"
            links.append(Link(event, shows))
            break
    given_up = [
        e for e in case.actor(first.actor).failures if e["context"] == "CreationTaskFailureContext"
    ]
    links += [
        Link(e, "GCS gives the actor up, it does not try __init__ again") for e in given_up[:1]
    ]
    seen = [e for f in failures for e in f.events if e.kind == "driver.exception"]
    if seen:
        often = f"{len(seen)} calls" if len(seen) > 1 else "a call"
        links.append(Link(seen[0], f"{often} on {name} failed with {seen[0]['type']}"))
    return tuple(links)


def _causes(failures: list[_Failure]) -> tuple[Entity, ...]:
    """What a constructor waited for, where it was one of Ray's own errors that it raised."""
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


def _remedies(failure: _Failure) -> tuple[Remedy, ...]:
    raised, name = failure.raised, failure.name or "the actor"
    place = raised.place if raised else None
    where = f" at {place.file}:{place.line}" if place else ""
    what = raised.name if raised else "the exception"
    return (
        Remedy(
            f"Mend what raises {what}{where}",
            (
                paste.python(
                    "# the same without Ray: leave @ray.remote off the class, call {actor}(…) with the same arguments,",
                    actor=name,
                ),
                "# on the node and in the environment that the actor had",
            ),
            doc=_DOC,
        ),
        Remedy(
            f"Fail where {name} is made, not at its first use",
            (
                paste.python("handle = {actor:name}.remote(…)", actor=name),
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


EXAMPLES: tuple[Example, ...] = (
    Example(
        "a constructor that raises three calls deep; the driver sees it inside a task's error",
        {
            "logs/gcs_server.out": _exit_line(_W, _TEXT),
            "logs/raylet.out": "",
            "driver.log": "Traceback (most recent call last):\nray.exceptions.RayTaskError(ActorDiedError): ray::evaluate() "
            '(pid=387, ip=10.0.0.2)\n  File "/home/user/project/serve.py", line 48, in evaluate\n    return ray.get(ref)\n'
            f"ray.exceptions.ActorDiedError: {_TEXT}\n",
        },
        roots=("actor-init-failed",),
        says=(
            "ModelServer (pid 463)",
            "ValueError: not a checkpoint",
            "read_header (serve.py:25)",
        ),
    ),
    Example(
        "three equal actors, and only the driver's output is left",
        {
            "driver.log": "".join(
                f"ray.exceptions.RayActorError: {_creation_text('Loader', pid, f'{pid:024x}01000000', _BODY)}\ngoing on\n"
                for pid in (211, 212, 240)
            )
        },
        roots=("actor-init-failed",),
        says=("3 Loader actors", "read_header (serve.py:25)"),
    ),
    Example(
        "a constructor that waits for another actor fails with that one",
        {
            "logs/gcs_server.out": _exit_line("5" * 56, _TEXT.replace(_A, _CHILD))
            + _exit_line(_W, _NESTED),
            "logs/raylet.out": "",
        },
        roots=("actor-init-failed",),
        says=("Pool (pid 490)", "an actor that it called is dead"),
    ),
    Example(
        "a task prints what it found in an old log",
        {
            "driver.log": f"(grep pid=12) ray.exceptions.ActorDiedError: {_TEXT}\nsummary: {_TEXT}\n",
            "logs/gcs_server.out": "",
            "logs/raylet.out": "",
        },
    ),
)

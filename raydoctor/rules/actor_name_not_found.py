"""A program called `ray.get_actor` with a name that no actor in the program's namespace has.

## What you see
`ValueError: Failed to look up actor with name 'metrics'. This could because 1. You are trying to look up a named actor
you didn't create. 2. The named actor died. 3. You did not use a namespace matching …`

## Why
A name belongs to a namespace. A driver that sets none in `ray.init` gets an anonymous namespace with a random name, so
two such drivers never find each other's actors. Ray frees the name when the actor ends, and an actor that is not
detached ends with the process that created it.

## Confirm
- On a live cluster, `ray.init("auto")` and `ray.util.list_named_actors(all_namespaces=True)` list all names with
  their namespaces.
- `gcs_server.out`: `Actor name metrics is cleaned up.` (`cleand` up to Ray 2.40) records when an actor of that name
  ended.
- The text of `ActorDiedError` contains the namespace of its actor. The log files do not.
- The warning with the same text in `python-core-driver-*.log` proves nothing: Ray looks up the name before it creates
  any named actor.

## Fix
Set the same namespace in both programs, make the actor detached if it must outlive its creator, or create it with
`get_if_exists=True`, which reuses an existing actor.

## Not this when
- the program expects that the actor may be missing, and catches the error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, Signal, console, rule
from raydoctor.case.signals import CORE, DRIVER, GCS, TRACEBACKS
from raydoctor.cluster import tables as live
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.actor_owner_died import DESTROYED
from raydoctor.rules.shared import actor_deaths as actors
from raydoctor.rules.shared.actor_deaths import CALL_FAILED
from raydoctor.rules.shared.failures import (
    SIGNALS,
    constructors,
    ended_programs,
    failures,
    program,
)
from raydoctor.rules.shared.live.examples import actor as live_actor
from raydoctor.rules.shared.live.examples import tables as live_tables
from raydoctor.rules.shared.live.examples import task as live_task
from raydoctor.rules.shared.task_error import Printed, TaskFailure, error_entities
from raydoctor.rules.shared.traceback import Raised

_NAMESPACES = "https://docs.ray.io/en/latest/ray-core/namespaces.html"
_NAMED = "https://docs.ray.io/en/latest/ray-core/actors/named-actors.html"
_CAUGHT = "During handling of the above exception"
_TEXT = (
    "Failed to look up actor with name 'metrics'. This could because 1. You are trying to look up a named actor you didn't "
    "create. 2. The named actor died. 3. You did not use a namespace matching the namespace of the actor."
)
_WORDS = r"Failed to look up actor with name '(?P<name>[^']*)'\. This could"
_IN_TASK = pattern(_WORDS)
_LOOKS_UP = pattern(r"\bget_named_actor_handle\(")
"""The line of Ray's `get_actor` that raises (`_private/worker.py`, 1.0 to 2.60)."""
_CALLED = pattern(r"\bget_actor\((?:name=)?(?P<quote>['\"])(?P<name>[^'\"\n]{1,100})(?P=quote)")

NOT_FOUND = Signal(
    "actor.not_found",
    "Failed to look up actor with name ",
    rf"^ValueError: {_WORDS}",
    DRIVER,
    f"ValueError: {_TEXT}",
    extent="record",
    fold=("name",),
)
LOOKED_UP = Signal(
    "actor.looked_up",
    "Failed to look up actor with name ",
    rf"^{_WORDS}",
    CORE,
    _TEXT,
    fold=("name",),
)
FREED = Signal(
    "actor.name_freed",
    "Actor name ",
    r"^Actor name (?P<name>.+) is clean(?:e)?d up\.",
    GCS,
    "Actor name metrics is cleaned up.",
    fold=("name",),
)

_EXITS = 2.0
"""Seconds between the GCS's record of an actor's end and its worker's."""
_SECONDS = 0.1
"""GCS frees a name in the same step in which it destroys the actor."""


class _Fate(NamedTuple):
    """What happened to the actors of one name."""

    summary: str
    event: Event | None = None
    kind: str = ""
    """`elsewhere`, `ended`, or empty: unknown."""
    left: Event | None = None
    """The record of its worker that no handle was left."""
    namespace: str = ""
    """Of the live actor of that name, if there is only one."""


@rule(
    tier="symptom",
    severity="error",
    rank=49,
    explains=("actor-name", "program", "task-error"),
    looks_for=(NOT_FOUND, LOOKED_UP, FREED, DESTROYED, CALL_FAILED, *actors.LEFT, *SIGNALS),
)
def actor_name_not_found(case: Case) -> Iterator[Finding]:
    """One finding per name."""
    by_name = evidence.grouped(
        (
            e
            for e in case.of("actor.not_found")
            if not e.text.rpartition("\n")[2].startswith(_CAUGHT)
        ),
        lambda e: e["name"],
    )
    in_tasks: dict[str, list[Printed]] = {}
    for seen in (*failures(case), *constructors(case)):
        raised = seen.failure.raised
        if raised is not None and (found := _IN_TASK.match(raised.message)):
            in_tasks.setdefault(found["name"], []).append(seen)
    for name in dict.fromkeys((*by_name, *in_tasks)):
        yield _finding(case, name, by_name.get(name, []), in_tasks.get(name, []))
    if not (by_name or in_tasks):
        for ending, raised in ended_programs(case):
            if not raised.type and raised.frames and _LOOKS_UP.search(raised.frames[-1].code):
                yield _cut_off(case, ending, raised)


def _cut_off(case: Case, ending: Event, raised: Raised) -> Finding:
    """A console that ends within the traceback of the look-up: the frames show what failed, but not the exception."""
    names = [found["name"] for frame in raised.frames if (found := _CALLED.search(frame.code))]
    call = f"ray.get_actor('{names[-1]}')" if names else "ray.get_actor"
    where = f" in {raised.place}" if raised.place and raised.place.is_user_code else ""
    return Finding(
        f"A call to {call}{where} failed, most likely because no actor of that name exists in its namespace",
        (
            Link(
                ending,
                "the console ends within the traceback of the look-up, before the exception",
                raised.code,
            ),
        ),
        explains=(Entity("actor-name", names[-1] if names else ""), program(ending)),
        severity="warning",
        remedies=(
            Remedy(
                "List the names of all actors, and compare them and their namespaces with those of the call",
                ("print(ray.util.list_named_actors(all_namespaces=True))",),
                doc=_NAMESPACES,
            ),
        ),
        covers=tuple(
            e for e in case.of(*TRACEBACKS) if e.source is ending.source and e.line >= ending.line
        ),
    )


def _finding(case: Case, name: str, events: list[Event], in_tasks: list[Printed]) -> Finding:
    """`in_tasks`: the failures of tasks and constructors that looked the name up; the program may have caught them."""
    fate = _fate(case, name)
    words = f"Failed to look up actor with name '{name}'"
    around = [e for e in case.of("driver.exception") if words in e["what"]]
    where = f" in {_place(in_tasks[0].failure)}" if in_tasks else ""
    is_printed = any(not event["who"] for event in events)
    events = events or [seen.event for seen in in_tasks]
    links = [Link(fate.event, _freed_when(name, fate))] if fate.event else []
    if fate.left:
        links.append(Link(fate.left, f"its worker records why it exits: {fate.left['detail']}"))
    links.append(Link(events[0], f"ray.get_actor('{name}') raised ValueError"))
    often = f" ({evidence.total(events)} times)" if evidence.total(events) > 1 else ""
    return Finding(
        f"A call to ray.get_actor('{name}'){where} found no such actor{often}: {fate.summary}",
        tuple(links),
        explains=(Entity("actor-name", name), *error_entities(in_tasks)),
        caused_by=_ended_actors(case, name, fate),
        count=evidence.total(events),
        severity="error" if is_printed else "warning",
        remedies=_remedies(case, name, fate),
        covers=(*events, *around, *(event for seen in in_tasks for event in seen.records)),
    )


def _place(failure: TaskFailure) -> str:
    """The line of the user's code that looked the name up, else the task."""
    place = failure.raised.place if failure.raised else None
    return str(place) if place and place.is_user_code else failure.function


def _freed_when(name: str, fate: _Fate) -> str:
    if fate.namespace:
        return f"the namespace {fate.namespace} now has an actor named '{name}'"
    if fate.kind == "ended":
        return f"the GCS frees the name '{name}' because its actor ended"
    return f"the GCS frees the name '{name}', so such an actor existed"


def _fate(case: Case, name: str) -> _Fate:
    """Whether such an actor exists or existed."""
    alive = [e for e in live.rows(case, "actors") if e["name"] == name and e["state"] == "ALIVE"]
    if len(alive) == 1 and alive[0]["ray_namespace"]:
        namespace = alive[0]["ray_namespace"]
        return _Fate(
            f"the only actor of that name is now in the namespace {namespace}",
            alive[0],
            "elsewhere",
            namespace=namespace,
        )
    freed = [e for e in case.of("actor.name_freed") if e["name"] == name]
    asked = [e.at for e in case.of("actor.looked_up") if e["name"] == name and e.at is not None]
    last = max(asked, default=None)
    before = [e for e in freed if e.at is not None and last is not None and e.at <= last]
    if before and last is not None:
        ago = last - (before[-1].at or last)
        left = case.near(before[-1], "actor.left", before=_EXITS, after=_EXITS)
        is_lost = len(left) == 1 and actors.BY_SCOPE in left[0]["detail"]
        why = ", because no handle of it was left" if is_lost else ""
        return _Fate(
            f"an actor of that name had ended {ago:.1f} s before{why}",
            before[-1],
            "ended",
            left[0] if is_lost else None,
        )
    if freed and len(asked) > 1:
        # Creating a named actor looks the name up as well: the first of several lookups most likely did.
        return _Fate(
            "an actor of that name was alive at that time, so it is in another namespace",
            freed[0],
            "elsewhere",
        )
    if freed:
        return _Fate(
            "an actor of that name existed, at another time or in another namespace", freed[0]
        )
    if "gcs-out" in case.roles:
        return _Fate(
            "none of that name ended in this log, so it was never created or is still alive in another namespace"
        )
    return _Fate("it was never created, had died, or is in another namespace")


def _ended_actors(case: Case, name: str, fate: _Fate) -> tuple[Entity, ...]:
    """Ended actors of that name: the cause of their end is the cause of the failed lookup."""
    if fate.kind == "elsewhere":
        return ()
    found = [d.entity for d in actors.deaths(case) if d.name == name]
    if fate.event and fate.kind == "ended":
        near = case.near(fate.event, "actor.destroyed", before=_SECONDS, after=_SECONDS)
        found += [Entity("actor", e["actor"]) for e in near]
    return tuple(dict.fromkeys(found))


def _remedies(case: Case, name: str, fate: _Fate) -> tuple[Remedy, ...]:
    known = next((d.namespace for d in actors.deaths(case) if d.name == name and d.namespace), "")
    namespace = fate.namespace or known or "NAMESPACE"
    elsewhere = Remedy(
        f"Look for '{name}' in the namespace where it was created",
        (
            "print(ray.util.list_named_actors(all_namespaces=True))   # all names with their namespaces",
            paste.python(
                "ray.get_actor({name}, namespace={namespace})", name=name, namespace=namespace
            ),
            paste.python(
                "ray.init(namespace={namespace})   # or once per program, in both programs",
                namespace=namespace,
            ),
        ),
        doc=_NAMESPACES,
    )
    missing = Remedy(
        f"Keep a handle of '{name}' as long as it is needed, or create it detached"
        if fate.left
        else f"Create '{name}' if it is missing, and let it outlive its creator",
        (
            paste.python(
                'Actor.options(name={name}, lifetime="detached", get_if_exists=True).remote(ARGUMENTS)',
                name=name,
            ),
        ),
        doc=_NAMED,
    )
    if fate.left:
        return (missing,)
    return (missing, elsewhere) if fate.kind == "ended" else (elsewhere, missing)


# ------------------------------------------------------------------ examples

_CORE = f"logs/python-core-driver-01000000{'f' * 48}_12.log"
_TRACEBACK = "Traceback (most recent call last):\n"


def _lookup(at: str) -> str:
    return f"[2026-11-21 07:41:{at} W 12 12] actor_manager.cc:110: {_TEXT}\n"


def _freed(at: str) -> dict[str, str]:
    line = (
        f"[2026-11-21 07:41:{at} I 13 13] (gcs_server) gcs_actor_manager.cc:916: {FREED.sample}\n"
    )
    return {"logs/gcs_server.out": line, "logs/raylet.out": ""}


EXAMPLES: tuple[Example, ...] = (
    Example(
        "the actor exists in another namespace",
        {
            **_freed("18,425"),
            _CORE: _lookup("17,737") + _lookup("17,899"),
            "driver.log": f"{_TRACEBACK}ValueError: {_TEXT}\n",
        },
        says=("'metrics'", "another namespace", 'ray.get_actor("metrics", namespace='),
    ),
    Example(
        "a constructor looked the name up",
        {
            "driver.log": "(Loader pid=12) Exception raised in creation task: The actor died because of an error raised in its "
            "creation task, ray::Loader.__init__() (pid=12, ip=10.0.0.2)\n"
            '(Loader pid=12)   File "/app/load.py", line 37, in __init__\n(Loader pid=12)     self.metrics = ray.get_actor("metrics")\n'
            f"(Loader pid=12) ValueError: {_TEXT}\n"
        },
        roots=("actor-name-not-found",),
        consequences=("actor-init-failed",),
        says=("in __init__() (load.py:37)",),
        severity="warning",
    ),
    Example(
        "the actor had ended before",
        {
            **_freed("14,399"),
            _CORE: _lookup("13,737") + _lookup("17,899"),
            "driver.log": f"{_TRACEBACK}ValueError: {_TEXT}\n",
        },
        says=("had ended 3.5 s before",),
    ),
    Example(
        "the task that created the actor returned, and with it the only handle went",
        {
            **_freed("14,399"),
            _CORE: _lookup("13,737") + _lookup("17,899"),
            f"logs/python-core-worker-{'a' * 56}_88.log": f"[2026-11-21 07:41:14,410 I 88 88] raylet_ipc_client.cc:133: {actors.LEFT[1].sample}\n",
            "driver.log": f"{_TRACEBACK}ValueError: {_TEXT}\n",
        },
        says=("because no handle of it was left", "or create it detached"),
    ),
    console(
        "a task looks the name up: the missing actor is the cause of the task's error",
        f"{_TRACEBACK}ray.exceptions.RayTaskError(ValueError): ray::find() (pid=388, ip=10.0.0.2)\n"
        f'  File "/home/user/project/names.py", line 10, in find\n    ray.get_actor(name)\nValueError: {_TEXT}\n',
        says=("in find() (names.py:10)",),
    ),
    Example(
        "a live cluster records the failed task, and nothing else shows it",
        live_tables(
            tasks=[
                {
                    **live_task(1, "publish", {}),
                    "state": "FAILED",
                    "error_type": "TASK_EXECUTION_EXCEPTION",
                    "error_message": "User exception:\nray::publish() (pid=812, ip=10.0.0.2)\n"
                    f'  File "/app/train.py", line 9, in publish\n    ray.get_actor("metrics")\nValueError: {_TEXT}',
                }
            ]
        ),
        severity="warning",
        says=("in publish() (train.py:9)",),
    ),
    Example(
        "a live cluster lists the actor in an anonymous namespace",
        {
            "driver.log": f"{_TRACEBACK}ValueError: {_TEXT}\n",
            **live_tables(
                actors=[
                    {**live_actor(1, "Metrics", {}), "name": "metrics", "ray_namespace": "920da363"}
                ]
            ),
        },
        says=(
            "the only actor of that name is now in the namespace 920da363",
            'ray.get_actor("metrics", namespace="920da363")',
        ),
    ),
    console(
        "only the driver's output is available",
        f"{_TRACEBACK}ValueError: {_TEXT}\n",
        roots=("actor-name-not-found",),
    ),
    Example(
        "a named actor is created: Ray looks the name up first, and warns",
        {**_freed("18,425"), _CORE: _lookup("17,737"), "driver.log": "events 0\n"},
    ),
    Example(
        "the program catches the error and fails elsewhere",
        {
            **_freed("18,425"),
            "driver.log": f"{_TRACEBACK}ValueError: {_TEXT}\n\nDuring handling of the above exception, another exception "
            f"occurred:\n\n{_TRACEBACK}SystemExit: start the metrics actor first\n",
        },
    ),
    console(
        "a console that ends within the traceback of the look-up",
        f'{_TRACEBACK}  File "/app/ids.py", line 8, in handle\n    return ray.get_actor("metrics")\n'
        '  File "/venv/lib/python3.11/site-packages/ray/_private/worker.py", line 3154, in get_actor\n'
        '    return worker.core_worker.get_named_actor_handle(name, namespace or "")\n',
        says=("ray.get_actor('metrics') in handle() (ids.py:8)", "list_named_actors"),
        severity="warning",
    ),
    console(
        "a console that ends within the traceback of a function of the program with such a name",
        f'{_TRACEBACK}  File "/app/ids.py", line 8, in <module>\n    handle = get_actor("metrics")\n'
        '  File "/app/ids.py", line 3, in get_actor\n    return table[name]\n',
        roots=("job-failed",),
    ),
)

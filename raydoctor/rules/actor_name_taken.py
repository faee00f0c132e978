"""A program created an actor with a name that another actor in the same namespace already has.

## What you see
`ray.exceptions.ActorAlreadyExistsError: The name metrics (namespace=None) is already taken. Please use a different name
or get the existing actor using ray.get_actor(…)`; older versions raise a `ValueError` with the same text.

## Why
A name is unique in its namespace, and Ray frees it when its actor ends. A detached actor outlives the program that
created it, so that the next run of the same program finds the name taken. The same happens if a program creates the
actor twice, or if two programs use one namespace. `namespace=None` means the namespace of the program itself.

## Confirm
- While the cluster runs, `ray list actors --detail --filter state=ALIVE` shows the actor with this name, its namespace
  and its job.

## Fix
Create the actor with `get_if_exists=True`, which returns the existing actor. To replace it, kill the old one first.

## Not this when
- the program catches the error and uses the existing actor.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import DRIVER, RAY_EXCEPTION
from raydoctor.cluster import tables as live
from raydoctor.model import ids, paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared.failures import constructors, failures
from raydoctor.rules.shared.live import examples as sample
from raydoctor.rules.shared.task_error import Printed, error_entities

_DOC = "https://docs.ray.io/en/latest/ray-core/actors/named-actors.html"
_CAUGHT = "During handling of the above exception"
_WORDS = (
    r"The name (?P<name>\S{1,300}) \(namespace=(?P<namespace>[^)]{1,300})\) is already taken\. "
    "Please use a different name"
)
_IN_TASK = pattern(_WORDS)
TAKEN = Signal(
    "actor.name_taken",
    " is already taken. Please use a different name",
    rf"^(?:ray\.exceptions\.ActorAlreadyExistsError|ValueError): {_WORDS}",
    DRIVER,
    "ray.exceptions.ActorAlreadyExistsError: The name metrics (namespace=None) is already taken. Please use a different name "
    "or get the existing actor using ray.get_actor('metrics', namespace='None')",
    extent="record",
    fold=("name",),
)


@rule(
    tier="symptom",
    severity="error",
    rank=49,
    explains=("actor-name", "task-error"),
    looks_for=(TAKEN, RAY_EXCEPTION),
)
def actor_name_taken(case: Case) -> Iterator[Finding]:
    """One finding per name."""
    printed = (e for e in case.of(TAKEN.kind) if not e.text.rpartition("\n")[2].startswith(_CAUGHT))
    by_name = evidence.grouped(printed, lambda e: e["name"])
    in_tasks: dict[str, list[Printed]] = {}
    for seen in (*failures(case), *constructors(case)):
        if seen.failure.raised and (found := _IN_TASK.match(seen.failure.raised.message)):
            in_tasks.setdefault(found["name"], []).append(seen)
    for name in dict.fromkeys((*by_name, *in_tasks)):
        yield _finding(case, name, by_name.get(name, []), in_tasks.get(name, []))


def _finding(case: Case, name: str, printed: list[Event], in_tasks: list[Printed]) -> Finding:
    """`in_tasks`: the failures of tasks and constructors that created the actor."""
    events = printed or [seen.event for seen in in_tasks]
    around = [e for e in case.of("driver.exception") if f"The name {name} (namespace=" in e["what"]]
    holder = _holder(case, name)
    links = [Link(events[0], f"the creation of an actor named '{name}' raised an exception")]
    if holder:
        links.append(Link(holder, f"the actor that has the name: {_described(holder)}"))
    who = _described(holder) if holder else "an actor of this run or an earlier one"
    often = f" ({evidence.total(events)} times)" if evidence.total(events) > 1 else ""
    return Finding(
        f"The name '{name}' of a new actor is already taken{often} in its namespace by {who}",
        tuple(links),
        explains=(Entity("actor-name", f"taken {name}"), *error_entities(in_tasks)),
        count=evidence.total(events),
        severity="error" if printed else "warning",
        remedies=_remedies(name, holder),
        covers=(*events, *around, *(event for seen in in_tasks for event in seen.records)),
    )


def _holder(case: Case, name: str) -> Event | None:
    """The only live actor with this name."""
    found = [
        row for row in live.rows(case, "actors") if row["name"] == name and row["state"] == "ALIVE"
    ]
    return found[0] if len(found) == 1 else None


def _described(row: Event) -> str:
    """`a detached actor Metrics of job 1`."""
    kind = "a detached actor" if live.truth(row, "is_detached") else "an actor"
    job = f" of job {ids.job_number(row['job_id'])}" if row["job_id"] else ""
    return f"{kind} {row['class_name']}".rstrip() + job


def _remedies(name: str, holder: Event | None) -> tuple[Remedy, ...]:
    namespace = (holder["ray_namespace"] if holder else "") or "NAMESPACE"
    return (
        Remedy(
            f"Use the existing actor '{name}' if there is one",
            (
                paste.python(
                    "Actor.options(name={name}, get_if_exists=True).remote(ARGUMENTS)   # plus its other options",
                    name=name,
                ),
            ),
            doc=_DOC,
        ),
        Remedy(
            f"Or kill the existing actor '{name}' first, if this run needs a new one",
            (
                paste.python(
                    "ray.kill(ray.get_actor({name}, namespace={namespace}))",
                    name=name,
                    namespace=namespace,
                ),
            ),
            risk="destructive",
            doc=_DOC,
        ),
    )


# ------------------------------------------------------------------ examples

_TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "/app/train.py", line 30, in <module>\n    metrics = Metrics.options(name="metrics").remote()\n'
)

EXAMPLES: tuple[Example, ...] = (
    console(
        "a second run of a program with a detached actor",
        f"{_TRACEBACK}{TAKEN.sample}\n",
        logs=QUIET_LOGS,
        says=("The name 'metrics' of a new actor is already taken", "get_if_exists=True"),
    ),
    console(
        "Ray 2.9 raises a ValueError",
        f"{_TRACEBACK}{TAKEN.sample.replace('ray.exceptions.ActorAlreadyExistsError', 'ValueError')}\n",
        logs=QUIET_LOGS,
        says=("The name 'metrics' of a new actor is already taken",),
    ),
    Example(
        "a task creates the actor, and a live cluster has the one with the name",
        {
            "driver.log": "Traceback (most recent call last):\nray.exceptions.RayTaskError(ActorAlreadyExistsError): "
            '\x1b[36mray::start()\x1b[39m (pid=389, ip=10.0.0.2)\n  File "/app/train.py", line 9, in start\n'
            '    Metrics.options(name="metrics").remote()\n' + TAKEN.sample + "\n",
            **sample.tables(
                actors=[
                    {
                        **sample.actor(1, "Metrics", {}),
                        "name": "metrics",
                        "is_detached": True,
                        "ray_namespace": "jobs",
                    }
                ]
            ),
        },
        says=("a detached actor Metrics", 'ray.get_actor("metrics", namespace="jobs")'),
        severity="error",
    ),
    console(
        "the program catches the error",
        "the name metrics (namespace=None) is already taken. Please use a different name: using the old actor\n",
        logs=QUIET_LOGS,
    ),
)

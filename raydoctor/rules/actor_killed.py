"""An actor was ended on purpose, and a later call on it failed.

## What you see
`ActorDiedError` (`RayActorError` up to Ray 2.10) with one of four endings:
- ``because it was killed by `ray.kill` ``: the program, or a library that it uses, called `ray.kill` on a handle.
- `Worker exit type: INTENDED_USER_EXIT … exit_actor() is called`: the actor called `ray.actor.exit_actor()`.
- `because all references to the actor were removed`: the last handle that keeps the actor alive went out of scope, and
  Ray ended the actor. Up to Ray 2.9, `Actor.remote().method.remote()` raises `RuntimeError: Lost reference to actor`.
- `because its associated placement group was removed`: the program removed the group that the actor ran in, or waited
  for. Calls then also fail with `ActorPlacementGroupRemoved` or `TaskPlacementGroupRemoved`.

## Why
None of these is a crash: Ray ended the process as requested. The fault is in the program's sequence: it cleans up too
early, a loop calls the actor once more after its end, or the only handle was a local variable of a function that has
returned.

Which handles keep an actor alive depends on the version. A handle from `ray.get_actor` keeps it alive with Ray 2.9.3
and 2.20, but not with Ray 2.40, 2.50 and 2.60 (measured). With these, only the handle that `.remote()` returned and its
copies keep the actor alive.

If the capture contains this actor's log but no record of its callers, raydoctor reports the removal of the last
reference as a warning.

## Confirm
- The actor's own core log (`python-core-worker-*.log`) records the time and, after `exit_detail=`, the reason.
- No Ray log records which process called `ray.kill`: search your program for it. Ray Tune, Train and Serve also kill
  the actors that they manage.

## Fix
- `ray.kill`: call it only after the last call has returned.
- `exit_actor`: return an end marker (`None`), or let the caller treat the error as the end.
- Out of scope: keep the handle that `.remote()` returned, or make the actor detached.
- Placement group: remove it only after the last call on its actors and tasks has returned.

## Not this when
- the process that created the actor died (`actor-owner-died`).
- the actor's own process was killed or crashed (`worker-vanished`, `worker-native-crash`).
- the actor ended on purpose, and no call failed or the program caught the error: raydoctor reports nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, Signal, console, rule
from raydoctor.case.signals import ACTOR_PLACED, DRIVER, GCS, RAY_EXCEPTION, RAYLET, WORKER_DIED
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Gap, Link, Remedy, Subject
from raydoctor.rules.shared import actor_deaths as actors
from raydoctor.rules.shared.actor_deaths import CALL_FAILED, LEFT, Death
from raydoctor.rules.shared.failures import SIGNALS, failures
from raydoctor.rules.shared.task_error import error_entity

_TERMINATING = "https://docs.ray.io/en/latest/ray-core/actors/terminating-actors.html"

LOST_REFERENCE = Signal(
    "actor.lost_reference",
    "RuntimeError: Lost reference to actor",
    r"^RuntimeError: Lost reference to actor$",
    DRIVER,
    "RuntimeError: Lost reference to actor",
    symptom=True,
)

_CALLER = Gap(
    "output of the driver",
    "the actor's own log does not show which call on it failed, or waits",
    "Add the driver's output (--driver-log FILE), and gcs_server.out of the head to the folder with the logs.",
    optional=True,
)
_KINDS = (actors.BY_KILL, actors.BY_EXIT, actors.BY_SCOPE, actors.BY_GROUP)
_NO_GROUP = "its associated placement group was removed"
"""In an `ActorUnschedulableError`: the group was removed before the actor was created."""
_GROUP_REMOVED = ("ActorPlacementGroupRemoved", "TaskPlacementGroupRemoved")
_GROUPS_DOC = "https://docs.ray.io/en/latest/ray-core/scheduling/placement-group.html"


@rule(
    tier="root",
    severity="error",
    rank=48,
    explains=("actor",),
    caused_by=("process", "task-error", "worker"),
    daemons_record=True,
    looks_for=(
        CALL_FAILED,
        RAY_EXCEPTION,
        *LEFT,
        LOST_REFERENCE,
        WORKER_DIED,
        *ACTOR_PLACED,
        *SIGNALS,
    ),
)
def actor_killed(case: Case) -> Iterator[Finding]:
    """One finding per way of ending and class."""
    groups: dict[tuple[str, str], list[Death]] = {}
    for death in actors.deaths(case):
        kind = next((k for k in _KINDS if k in death.cause), "")
        if kind and not _is_serves_own(case, death):
            groups.setdefault((kind, death.class_name), []).append(death)
    for (kind, _), found in groups.items():
        yield _finding(case, kind, found)
    if lost := case.of("actor.lost_reference"):
        yield _lost(lost)
    refused = [
        e
        for e in case.of(RAY_EXCEPTION.kind)
        if e["type"] in _GROUP_REMOVED or _NO_GROUP in e["what"]
    ]
    if refused and not any(kind == actors.BY_GROUP for kind, _ in groups):
        yield _without_group(refused)
    if not groups:
        yield from _of_its_own_log(case)


_SHOW_CALLS = frozenset((*DRIVER, *GCS, *RAYLET, "core-driver"))
"""Logs that show whether a call on the actor failed, or that its job had ended."""


def _of_its_own_log(case: Case) -> Iterator[Finding]:
    """The end of the only actor whose log was given: a reader who picks that log asks why the actor ended."""
    ends = [end for end in case.of("actor.left") if actors.BY_SCOPE in end["detail"]]
    if len({(end.source.path, end.pid) for end in ends}) != 1 or case.roles & _SHOW_CALLS:
        return
    names = [n for e in ends[0].entities if e.kind == "worker" for n in case.names.get(e.value, ())]
    actor = Death("", class_name=names[-1] if names else "", pid=ends[0].pid)
    yield Finding(
        f"{_subject(actor)} was ended by Ray because no handle was left: calls to it fail or never return",
        (Link(ends[0], f"{actor.label} records why it exits: {ends[0]['detail']}"),),
        subjects=(Subject("actor", None, actor.class_name or None, actor.pid),),
        severity="warning",
        remedies=_remedies(actors.BY_SCOPE, actor),
        covers=tuple(ends),
        gaps=(_CALLER,),
    )


def _finding(case: Case, kind: str, found: list[Death]) -> Finding:
    first = found[0]
    ends = [end for death in found for end in _ends(case, death)]
    links = [Link(end, f"{first.label} records why it exits: {end['detail']}") for end in ends[:1]]
    links += [
        Link(event, f"a call on {first.label} failed")
        for event in (*first.calls[:1], *first.seen[:1])
    ]
    return Finding(
        _headline(kind, found, ends, _is_ambiguous(case, kind)),
        tuple(links),
        explains=tuple(death.entity for death in found),
        caused_by=(
            *(_creators(case) if _is_ambiguous(case, kind) else ()),
            *(_errors_before(case, first) if kind == actors.BY_KILL else ()),
        ),
        subjects=tuple(death.subject for death in found[:10]),
        count=len(found),
        # Without a driver's output it is unknown whether the program caught the error.
        severity="error"
        if any(case.about(d.entity, "driver.exception") for d in found)
        else "warning",
        remedies=_remedies(kind, first),
        covers=(*actors.all_events(found), *ends),
    )


def _errors_before(case: Case, death: Death) -> Iterator[Entity]:
    """Failures that a console shows above the kill: a program that meets one kills its actors, and exits."""
    last = min((*death.calls, *death.seen), key=lambda e: e.line, default=None)
    if last is None or not evidence.is_console(case):
        return
    for seen in failures(case):
        raised = seen.failure.raised
        if raised and not raised.is_rays_own and _is_above(seen.event, last):
            yield error_entity(seen)
    for event in case.of("cuda.oom_printed"):
        if _is_above(event, last):
            yield Entity("task-error", f"GPU memory in {event.source.path}")


def _is_above(event: Event, other: Event) -> bool:
    return event.source is other.source and event.line < other.line


def _is_serves_own(case: Case, death: Death) -> bool:
    """Serve kills replicas that it replaces, and its controller and proxies when it shuts down.

    Serve's own rules report the former. The latter counts only where a driver printed an exception.
    """
    if death.name.startswith("SERVE_REPLICA::"):
        return True
    return death.name.startswith("SERVE_") and not case.about(death.entity, "driver.exception")


def _is_ambiguous(case: Case, kind: str) -> bool:
    """Whether Ray's message also fits the creator's death: only the GCS log distinguishes the two."""
    return kind == actors.BY_SCOPE and not case.roles & {"gcs-out", "gcs-err"}


def _creators(case: Case) -> tuple[Entity, ...]:
    """Workers that died: one of them may have been the actor's owner."""
    return evidence.exit_entities(case.exits)


def _ends(case: Case, death: Death) -> list[Event]:
    """The actor's own records of its exit."""
    return [
        end for worker in case.actor(death.actor).workers for end in actors.last_words(case, worker)
    ]


def _headline(kind: str, found: list[Death], ends: list[Event], ambiguous: bool) -> str:
    first = found[0]
    many = len(found) > 1
    subject = f"{len(found)} {first.class_name or 'unnamed'} actors" if many else _subject(first)
    was = "were" if many else "was"
    calls = evidence.many(sum(d.count for d in found), "call")
    end = {
        actors.BY_KILL: f"{subject} {was} killed by ray.kill",
        actors.BY_EXIT: f"{subject} called exit_actor()",
        actors.BY_SCOPE: f"{subject} {was} ended by Ray because no handle was left",
        actors.BY_GROUP: f"{subject} {was} ended by Ray because the placement group had been removed",
    }[kind]
    they = "they were" if many else "it was"
    if ambiguous:
        their = "their" if many else "its"
        end += f" or {their} creator died (only the GCS log shows which)"
    link = " while" if kind in (actors.BY_KILL, actors.BY_EXIT) else ", but"
    return f"{end}{link} {they} still in use: {calls} failed{_later(found, ends)}"


def _subject(death: Death) -> str:
    """`Actor Cache (pid 386)`: the label as the subject of a sentence."""
    return f"Actor {death.label}" if death.class_name else f"A{death.label[1:]}"


def _later(found: list[Death], ends: list[Event]) -> str:
    """How long after its end the call failed, for a single actor."""
    called = next((e.at for e in found[0].calls), None)
    if len(found) > 1 or not ends or called is None or ends[0].at is None:
        return ""
    return f" {max(0.0, called - ends[0].at):.1f} s later"


def _lost(events: list[Event]) -> Finding:
    return Finding(
        "A method was called on an actor without keeping its handle, as in Actor.remote().method.remote(): Ray had already ended the actor",
        (Link(events[0], "Python freed the handle before Ray sent the call"),),
        count=evidence.total(events),
        remedies=_remedies(actors.BY_SCOPE, Death("")),
        covers=tuple(events),
    )


def _without_group(events: list[Event]) -> Finding:
    what = "task" if events[0]["type"] == _GROUP_REMOVED[1] else "actor"
    return Finding(
        f"A call failed because the placement group of its {what} had been removed",
        (Link(events[0], f"the driver got {events[0]['type']}"),),
        explains=(Entity("actor", f"{what}s of a removed placement group"),),
        count=evidence.total(events),
        remedies=(_group_of(what),),
        covers=tuple(events),
    )


def _remedies(kind: str, death: Death) -> tuple[Remedy, ...]:
    handle = death.name or (death.class_name or "Actor").lower()
    return {
        actors.BY_KILL: _kill_later,
        actors.BY_EXIT: _return_the_end,
        actors.BY_SCOPE: _keep_the_handle,
        actors.BY_GROUP: _keep_the_group,
    }[kind](death, handle)


def _creation(death: Death, *options: str) -> str:
    """The expression that creates the actor, with its name if it has one."""
    cls = death.class_name or "Actor"
    given = [paste.python("name={name}", name=death.name), *options] if death.name else options
    if not given:
        return paste.python("{actor:name}.remote(ARGUMENTS)", actor=cls)
    return paste.python(
        "{actor:name}.options({options}).remote(ARGUMENTS)", actor=cls, options=given
    )


def _kill_later(death: Death, handle: str) -> tuple[Remedy, ...]:
    cls = death.class_name or "Actor"
    return (
        Remedy(
            f"Kill {cls} after the last call on it has returned",
            (
                "ray.get(CALLS)   # wait for the calls that are still running",
                paste.python("ray.kill({handle:name})", handle=handle),
            ),
            doc=_TERMINATING,
        ),
        Remedy("Find the code that calls ray.kill", ("grep -rn 'ray.kill(' .",)),
        Remedy(
            f"Restart {cls} instead, if the program kills it to reset its state",
            (
                paste.python(
                    "{handle:name} = {create}",
                    handle=handle,
                    create=_creation(death, paste.python("max_restarts=1")),
                ),
                paste.python("ray.kill({handle:name}, no_restart=False)", handle=handle),
            ),
            doc=_TERMINATING,
        ),
    )


def _return_the_end(death: Death, handle: str) -> tuple[Remedy, ...]:
    cls = death.class_name or "Actor"
    return (
        Remedy(
            f"When {cls} has no more work, return an end marker instead of calling exit_actor(), which fails later calls",
            (
                "return None   # in the method, instead of exit_actor()",
                paste.python(
                    "del {handle:name}      # in the caller, after it received None: Ray ends an actor when its last handle is gone",
                    handle=handle,
                ),
            ),
            doc=_TERMINATING,
        ),
    )


def _keep_the_handle(death: Death, handle: str) -> tuple[Remedy, ...]:
    cls = death.class_name or "Actor"
    create = _creation(death)
    return (
        Remedy(
            f"Keep the handle that .remote() returned for as long as {cls} is in use",
            (
                paste.python(
                    "{handle:name} = {create}   # at the top level of the driver. A handle from ray.get_actor does not keep the actor alive",
                    handle=handle,
                    create=create,
                ),
            ),
            doc=_TERMINATING,
        ),
        Remedy(
            "Or keep that handle in an attribute of an object that exists for as long as the actor is needed",
            (paste.python("self.{handle:name} = {create}", handle=handle, create=create),),
            doc=_TERMINATING,
        ),
        actors.detached(f"Or make {cls} independent of handles", cls, handle),
    )


def _keep_the_group(death: Death, _handle: str) -> tuple[Remedy, ...]:
    return (_group_of(death.class_name or "Actor"),)


def _group_of(user: str) -> Remedy:
    return Remedy(
        f"Remove the placement group after the last call on its {user} has returned",
        (
            "ray.get(CALLS)   # wait for the calls that are still running",
            "ray.util.remove_placement_group(group)",
        ),
        doc=_GROUPS_DOC,
    )


# ------------------------------------------------------------------ examples

_A = "c4647def073eea9d8fbb251801000000"
_W = "a07fa00a6cf9b3258fd6316159a56d965c516ff1108012ab20f3bd9b"
_N = "d6ee7b2fc9aa6e457ead8e404153759d8d28b085e2ec49238aa515d8"
_LOST_SCOPE = (
    "[2026-11-21 07:41:07,079 I 386 405] {writer}::Disconnect, exit_type=INTENDED_SYSTEM_EXIT, exit_detail=Worker exits because "
    "the actor is killed. The actor is dead because all references to the actor were removed{more}., has "
    "creation_task_exception_pb_bytes=0\n"
)
_KILLED = "it was killed by `ray.kill`."
_LEFT_TEXT = (
    "its worker process has died. Worker exit type: INTENDED_USER_EXIT Worker exit detail: Worker exits by an user request. "
    "Worker exits with an exit code 0. exit_actor() is called."
)
_NO_MEMORY = "CUDA out of memory. Tried to allocate 388.00 MiB. GPU 0 has a total capacity of 23.64 GiB of which 62.06 MiB is free."
_SCOPE = "all references to the actor were removed."


def _frame(cause: str, actor: str = _A) -> str:
    return (
        "Traceback (most recent call last):\nray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this "
        f"task.\n\tclass_name: Cache\n\tactor_id: {actor}\n\tpid: 386\n\tname: cache\n\tnamespace: shared\n\tip: 10.0.0.2\n"
        f"The actor is dead because {cause}\n"
    )


_PLACED = (
    "[2026-11-21 07:41:06,968 I 13 13] (gcs_server) gcs_actor_scheduler.cc:424: Submitting actor creation task to worker. "
    f"actor_id={_A} worker_id={_W} node_id={_N} job_id=01000000\n"
)
_OWN_LOG = f"logs/python-core-worker-{_W}_386.log"
_OWN_END = (
    "[2026-11-21 07:41:07,079 I 386 405] raylet_ipc_client.cc:133: RayletIpcClient::Disconnect, exit_type=INTENDED_SYSTEM_EXIT, "
    f"exit_detail=Worker exits because the actor is killed. The actor is dead because {_KILLED}, has "
    "creation_task_exception_pb_bytes=0\n"
)
_OWN_SCOPE = _LOST_SCOPE.format(writer="raylet_client.cc:162: RayletClient", more="")
_CALLER_LOG = f"logs/python-core-driver-01000000{'f' * 48}_12.log"
_CALL = (
    f"[2026-11-21 07:41:08,073 W 12 12] task_manager.cc:1678: Task attempt c2668a65bda616c1{_A} failed with error ACTOR_DIED Fail "
    "immediately? 0, status IOError: cancelling task of dead actor, error info actor_died_error {\n  actor_died_error_context "
    f'{{\n    error_message: "The actor is dead because {_KILLED}"\n    pid: 386\n    class_name: "Cache"\n  }}\n}}\n'
)
_GCS = {"logs/gcs_server.out": _PLACED, "logs/raylet.out": ""}

EXAMPLES: tuple[Example, ...] = (
    console(
        "the driver's output holds only the last line of the error",
        f"The actor is dead because {_KILLED}\n",
        says=("An actor",),
        severity="warning",
    ),
    Example(
        "an actor is killed one second before a call",
        {**_GCS, _OWN_LOG: _OWN_END, _CALLER_LOG: _CALL, "driver.log": _frame(_KILLED)},
        says=(
            "Cache 'cache' (pid 386) was killed by ray.kill",
            "1 call failed 1.0 s later",
        ),
        is_typical=True,
    ),
    console(
        "a worker has no GPU memory left, and the program kills its other actors",
        f"(Rollout pid=51) torch.OutOfMemoryError: {_NO_MEMORY}\n{_frame(_KILLED)}",
        roots=("cuda-oom",),
        consequences=("actor-killed",),
    ),
    console(
        "an error below the kill is not its reason",
        f"{_frame(_KILLED)}(Rollout pid=51) torch.OutOfMemoryError: {_NO_MEMORY}\n",
        roots=("actor-killed", "cuda-oom"),
    ),
    console(
        "an actor called exit_actor(), and only the driver's output is available",
        _frame(_LEFT_TEXT),
        says=("called exit_actor()",),
    ),
    console(
        "two actors whose handles went out of scope",
        _frame(_SCOPE) + _frame(_SCOPE, "d" * 24 + "01000000"),
        says=("2 Cache actors", 'lifetime="detached"'),
    ),
    console(
        "the same message after a worker's death, without the GCS log: that worker may be the creator",
        f"(raylet) {WORKER_DIED.sample}\n{_frame(_SCOPE)}",
        roots=("worker-vanished",),
        consequences=("actor-killed",),
        says=("or its creator died",),
    ),
    console(
        "a method call on a handle that was not kept, up to 2.9",
        "Traceback (most recent call last):\nRuntimeError: Lost reference to actor\n",
        roots=("actor-killed",),
    ),
    Example(
        "only the log of an actor whose last handle is gone, of Ray 2.40",
        {_OWN_LOG: _OWN_SCOPE},
        says=(
            "(pid 386) was ended by Ray because no handle was left",
            "at the top level of",
        ),
        severity="warning",
    ),
    console(
        "the same record in a pasted text, of Ray 2.60",
        _LOST_SCOPE.format(
            writer="raylet_ipc_client.cc:133: RayletIpcClient",
            more=" including lineage ref count",
        ),
        severity="warning",
    ),
    Example(
        "the same record beside the daemons' logs: the program needed the actor no longer",
        {**_GCS, _OWN_LOG: _OWN_SCOPE},
    ),
    Example(
        "the logs of two actors that the program needed no longer",
        {
            _OWN_LOG: _OWN_SCOPE,
            _OWN_LOG.replace(_W, _N).replace("386", "387"): _OWN_SCOPE.replace("386", "387"),
        },
    ),
    Example(
        "the program caught the error",
        {**_GCS, _OWN_LOG: _OWN_END, _CALLER_LOG: _CALL, "driver.log": "as intended\n"},
    ),
    Example(
        "a task prints the same message",
        {
            "driver.log": f"(check pid=12) The actor is dead because {_KILLED}\nthe runbook: {_frame(_KILLED)[42:]}",
            **_GCS,
        },
    ),
    Example(
        "the placement group of an actor that had not started was removed",
        {
            "driver.log": _frame("of the following.").replace(
                "The actor is dead because of the following.",
                "Could not create the actor because its associated placement group was removed.\n"
                "The actor never ran - it was cancelled before it started running.",
            )
        },
        roots=("actor-killed",),
        says=("because the placement group had been removed", "remove_placement_group"),
    ),
    Example(
        "a task of a placement group that was removed",
        {
            "driver.log": "Traceback (most recent call last):\nray.exceptions.TaskPlacementGroupRemoved: The placement group "
            "corresponding to this task has been removed.\n"
        },
        roots=("actor-killed",),
        says=("the placement group of its task had been removed",),
    ),
    Example(
        "a program that explains the exception",
        {
            "driver.log": "TaskPlacementGroupRemoved is raised when the placement group was removed\ndone\n"
        },
    ),
    console(
        "the group of an actor is removed before the actor is created",
        "Traceback (most recent call last):\nray.exceptions.ActorUnschedulableError: The actor is not schedulable: Could not create the "
        "actor because its associated placement group was removed.\n",
        says=("the placement group of its actor had been removed",),
    ),
)

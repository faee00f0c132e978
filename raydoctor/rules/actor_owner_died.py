"""An actor died with the process that created it.

## What you see
A call that worked a moment ago fails with `The actor is dead because its owner has died. Owner Id: <WorkerID> … Owner's
worker process has crashed.`

If the owner was a driver that ended normally, the message is `because all references to the actor were removed`: such a
driver releases its handles first. Ray 2.50 and older print this text for a crashed owner as well (seen with Ray 2.9.3
to 2.50).

## Why
The process that calls `.remote()` on an actor class owns the actor: a driver, a task, or another actor. Unless the
actor is detached, Ray ends it with its owner process, even if other processes hold handles. If the logs record why the
owner ended, the report shows that as the root cause, and this finding as its consequence.

## Confirm
- `raydoctor story OWNER_ID` with the `Owner Id` of the message shows the owner's end. A WorkerID made of a JobID
  followed by 48 `f` belongs to a driver.
- The owner's raylet logs `Killing leased worker because its owner died` (Ray 2.52 and later) or `The leased worker … is
  killed because the owner process … died`.

## Fix
Create the actor in a process that runs long enough, or make the actor detached: `lifetime="detached"` with a name. End
a detached actor with `ray.kill` when it is no longer needed.

## Not this when
- the program called `ray.kill`, or the actor called `exit_actor()` (`actor-killed`).
- the actor's own process died (`worker-vanished`, `worker-native-crash`, `ray-oom-kill`), or its node (`node-died`).
- the owner is a driver that ended, and no other driver used the actor: it is normal that its actors end with it, and
  raydoctor reports nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import Example, Signal, console, rule
from raydoctor.case.signals import ACTOR_PLACED, GCS, JOB_FINISHED, OWNER_GONE_KILLED, RAY_EXCEPTION
from raydoctor.model import ids, paste
from raydoctor.model.entities import Entity, EntityKind
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import actor_deaths as actors
from raydoctor.rules.shared.actor_deaths import CALL_FAILED, LEFT, Death

_A = "b4203f7090329c495f28327601000000"
_W = "4f059f01e4e7c97759a38e087d85b28db9ab784c2cf818d6307ac1c0"

OWNER_FAILED = Signal(
    "actor.owner_failed",
    " failed, destroying actor child",
    r"^Worker (?P<owner>[0-9a-f]{56}) failed, destroying actor child",
    GCS,
    f"Worker {_W} failed, destroying actor child, job id = 01000000",
)
DESTROYED = Signal(
    "actor.destroyed",
    "Destroying actor",
    r"^Destroying actor(?:, actor id = |\b.*? actor_id=)(?P<actor>[0-9a-f]{32})",
    GCS,
    f"Destroying actor, force_kill=1, timeout_ms=-1 job_id=01000000 actor_id={_A}",
)


class _Orphan(NamedTuple):
    """An actor that died with its owner, and the evidence."""

    death: Death
    owner: str
    exit: WorkerExit | None
    ended: Event | None
    """The record of the raylet or the GCS that it ended the actor because of its owner."""


@rule(
    tier="cause",
    severity="error",
    rank=42,
    explains=("actor",),
    caused_by=("actor", "job", "node", "process", "worker"),
    daemons_record=True,
    looks_for=(
        CALL_FAILED,
        *LEFT,
        RAY_EXCEPTION,
        OWNER_FAILED,
        DESTROYED,
        *OWNER_GONE_KILLED,
        *ACTOR_PLACED,
        *JOB_FINISHED,
    ),
)
def actor_owner_died(case: Case) -> Iterator[Finding]:
    """One finding per owner: all actors that died with it and were called afterwards."""
    by_owner: dict[str, list[_Orphan]] = {}
    for death in actors.deaths(case):
        if orphan := _orphan(case, death):
            by_owner.setdefault(orphan.owner, []).append(orphan)
    for orphans in by_owner.values():
        yield _finding(case, orphans)


def _orphan(case: Case, death: Death) -> _Orphan | None:
    """The actor and its owner, if the actor died because of the owner's end."""
    ended = _ended_with_owner(case, death)
    owner = death.owner or (ended and (ended["owner"] or ended["owner_b"])) or ""
    by_owner = actors.BY_OWNER in death.cause
    released = actors.BY_SCOPE in death.cause and (ended or _outlived(case, death, owner))
    if not by_owner and not released:
        return None
    return _Orphan(death, owner, case.exit_of(owner), ended)


def _ended_with_owner(case: Case, death: Death) -> Event | None:
    """The record of the raylet that killed the actor's worker, or of the GCS that destroyed the actor.

    They race: if the GCS is first, the raylet has no worker left to kill (seen with 2.40).
    """
    for worker in case.actor(death.actor).workers:
        for event in case.about(Entity("worker", worker), "worker.killed_with_owner"):
            if worker in (event["worker"], event["worker_a"], event["worker_b"]):
                return event
    for destroyed in case.about(death.entity, "actor.destroyed"):
        for event in case.near(destroyed, "actor.owner_failed", before=1, after=1):
            if death.owner in ("", event["owner"]):
                return event
    return None


def _outlived(case: Case, death: Death, owner: str) -> bool:
    """Whether the owner was a driver and a call came after its job had ended, so from another job."""
    ended = case.job(ids.job_of_driver(owner)).ended
    return ended is not None and any(e.at is not None and e.at > ended for e in death.calls)


def _finding(case: Case, orphans: list[_Orphan]) -> Finding:
    first = orphans[0]
    found = [o.death for o in orphans]
    label, it = found[0].label, "it"
    subject = f"Actor {label}" if found[0].class_name else f"A{label[1:]}"
    if len(found) > 1:
        subject = f"{len(found)} actors ({evidence.join_names(d.label for d in found)})"
        it = "them"
    calls = evidence.many(sum(d.count for d in found), "later call")
    return Finding(
        f"{subject} died because {_owner_end(case, first, it)}: {calls} failed",
        _chain(case, orphans),
        explains=tuple(d.entity for d in found),
        caused_by=_owner_entities(case, first),
        subjects=(*(d.subject for d in found[:9]), Subject("worker", first.owner or None)),
        count=len(found),
        remedies=_remedies(first),
        covers=(*actors.all_events(found), *(o.ended for o in orphans if o.ended)),
    )


def _owner_entities(case: Case, orphan: _Orphan) -> tuple[Entity, ...]:
    """What can explain the owner's end: its worker, its job, its actor, its node."""
    named: tuple[tuple[EntityKind, str], ...] = (
        ("worker", orphan.owner),
        ("job", ids.job_of_driver(orphan.owner)),
        ("actor", case.actor_of_worker(orphan.owner)),
        ("node", case.ledger.worker_nodes.get(orphan.owner, "")),
    )
    under_its_names = orphan.exit.entities if orphan.exit else ()
    return (*under_its_names, *(Entity(kind, value) for kind, value in named if value))


def _owner_end(case: Case, orphan: _Orphan, it: str) -> str:
    """`the driver of job 1 (pid 4), which created it, ended`.

    The GCS reports an owner as lost once it marks the owner's node as dead: the process may outlive that.
    """
    lost = ""
    if _is_lost(orphan):
        node = f"node{ip}" if (ip := _on(orphan)) else "the node of its owner"
        lost = f"the GCS marked {node} as dead, and with it "
    if job := ids.job_of_driver(orphan.owner):
        pid = case.job(job).driver_pid
        driver = f"the driver of job {ids.job_number(job)}{f' (pid {pid})' if pid else ''}, which created {it}"
        return f"{lost}{driver}" if lost else f"{driver}, ended"
    if orphan.exit:
        kind = "actor " if orphan.exit.actor else "worker "
        kind = kind if orphan.exit.names else ""
        return f"{kind}{orphan.exit.noun}, which created {it}, died"
    name = (case.names.get(orphan.owner) or ("the process",))[-1]
    pid = case.ledger.pids.get(orphan.owner)
    owner = f"{name} (pid {pid})" if pid else name
    left = actors.last_words(case, orphan.owner)
    end = next(
        (end for words, end in _ENDS.items() if left and words in left[0]["detail"]),
        "" if lost else "ended",
    )
    if not case.names.get(orphan.owner) and not pid:
        return (
            f"the process that created {it} {end}"
            if end
            else f"{lost}the process that created {it}"
        )
    return f"{owner}, which created {it}, {end}" if end else f"{lost}{owner}, which created {it}"


def _is_lost(orphan: _Orphan) -> bool:
    """Whether the error says that the owner's node crashed, not only its process."""
    return "Owner's node has crashed" in orphan.death.cause


_OWNER_IP = pattern(r"Owner Ip address: (?P<ip>[\w.:]{1,60})")


def _on(orphan: _Orphan) -> str:
    found = _OWNER_IP.search(orphan.death.cause)
    return f" {found['ip']}" if found else ""


_ENDS = {
    actors.BY_KILL: "was killed by ray.kill",
    actors.BY_EXIT: "called exit_actor()",
    actors.BY_SCOPE: "was ended because no handle kept it alive",
}


def _chain(case: Case, orphans: list[_Orphan]) -> tuple[Link, ...]:
    first = orphans[0]
    links = []
    job = case.job(ids.job_of_driver(first.owner))
    if job.end_event:
        links.append(Link(job.end_event, f"the owner's job {ids.job_number(job.id)} ends"))
    if first.exit:
        links += evidence.exit_links(first.exit, most=1)
    for event in actors.last_words(case, first.owner)[:1]:
        links.append(Link(event, f"the owner records why it exits: {event['detail']}"))
    ended = next((o.ended for o in orphans if o.ended), None)
    if ended:
        kills = "the GCS destroys" if ended.kind == "actor.owner_failed" else "the raylet kills"
        links.append(Link(ended, f"{kills} {first.death.label} because its owner process died"))
    links += [
        Link(event, f"a call on {first.death.label} failed: {_reason(first.death)}")
        for event in (*first.death.calls[:1], *first.death.seen[:1])
    ]
    return tuple(links)


def _reason(death: Death) -> str:
    return (
        "its owner has died" if actors.BY_OWNER in death.cause else "all references to it are gone"
    )


def _remedies(orphan: _Orphan) -> tuple[Remedy, ...]:
    death = orphan.death
    cls, name = death.class_name or "Actor", death.name or (death.class_name or "actor").lower()
    detached = actors.detached(f"Make {cls} outlive the process that creates it", cls, name)
    if _is_lost(orphan):
        why = Remedy(
            f"Find out why node{_on(orphan)} died: its raylet's log, the kernel log, and whether its machine still runs",
            (
                "tail -n 50 /tmp/ray/session_latest/logs/raylet.out   # on that node. After a restart of Ray, read the old session instead of session_latest",
                "sudo dmesg -T | grep -iE 'killed process|out of memory'   # on that node",
            ),
            finds_cause=True,
        )
        return why, detached
    if ids.job_of_driver(orphan.owner):
        keep = f"Keep the driver that creates {cls} running as long as other drivers use the actor"
        return detached, Remedy(keep, doc=actors.LIFETIMES)
    owner = orphan.exit.names[-1] if orphan.exit and orphan.exit.names else "that worker"
    moved = Remedy(
        f"Create {cls} in the driver and pass the handle to {owner}",
        (
            paste.python(
                "handle = {actor:name}.remote(ARGUMENTS)   # in the driver, not in {owner}",
                actor=cls,
                owner=owner,
            ),
        ),
        doc=actors.LIFETIMES,
    )
    return detached, moved


# ------------------------------------------------------------------ examples

_CHILD = "b12e2f43e80a8ffe0602be5efcee3d0268ebc7cb3760c4a29e21fad8"
_N = "7242d0307271711d187811091629336d2817d1540779835256818d3c"
_DRIVER = "01000000" + "f" * 48


def _frame(cause: str) -> str:
    return (
        "Traceback (most recent call last):\nray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this "
        f"task.\n\tclass_name: Trainer\n\tactor_id: {_A}\n\tpid: 383\n\tname: trainer\n\tnamespace: shared\n\tip: 10.0.0.2\n"
        f"The actor is dead because {cause}\n"
    )


def _owner_text(owner: str, exit_type: str) -> str:
    return (
        f"its owner has died. Owner Id: {owner} Owner Ip address: 10.0.0.2 Owner worker exit type: {exit_type} Worker exit "
        "detail: Owner's worker process has crashed."
    )


_REFERENCES = "all references to the actor were removed."
_OWNER_EXIT = (
    "[2026-11-21 07:41:27,935 W 13 13] (gcs_server) gcs_worker_manager.cc:70: Reporting worker exit, worker id = "
    f"{_W}, node id = {_N}, address = 10.0.0.2, exit_type = SYSTEM_ERROR, exit_detail = Worker unexpectedly exits with a connection "
    "error code 2. End of file. Some common causes include: (1) the process was killed by the OOM killer due to high memory usage, "
    "(2) ray stop --force was called, or (3) the worker crashed unexpectedly due to SIGSEGV or another unexpected error.\n"
)
_PLACED = (
    "[2026-11-21 07:41:27,632 I 13 13] (gcs_server) gcs_actor_scheduler.cc:447: Start creating actor "
    f"{_A} on worker {_CHILD} at node {_N}, job id = 01000000\n"
)
_DESTROYED = (
    f"[2026-11-21 07:41:27,939 I 20 20] (gcs_server) gcs_actor_manager.cc:999: {OWNER_FAILED.sample}\n"
    f"[2026-11-21 07:41:27,939 I 20 20] (gcs_server) gcs_actor_manager.cc:1023: {DESTROYED.sample}\n"
)
_WITH_OWNER = (
    "[2026-11-21 07:41:27,938 I 78 78] (raylet) node_manager.cc:1090: The leased worker "
    f"{_CHILD} is killed because the owner process {_W} died.\n"
)
_TWO_JOBS = "".join(
    f"[2026-11-21 07:41:{at},000 I 17 17] (gcs_server) gcs_job_manager.cc:115: {text}\n"
    for at, text in (
        ("21", "Registering job. job_id=01000000 driver_pid=400"),
        ("23", "Registering job. job_id=02000000 driver_pid=399"),
        ("37", "Marking job as finished. job_id=01000000"),
        ("45", "Marking job as finished. job_id=02000000"),
    )
)


def _call(at: str, owner: str, cause: str) -> str:
    escaped = "".join(f"\\{byte:03o}" for byte in bytes.fromhex(owner))
    return (
        f"[2026-11-21 07:41:{at},073 W 12 12] task_manager.cc:1678: Task attempt e0dc174c83599034{_A} failed with error ACTOR_DIED "
        "Fail immediately? 0, status IOError: cancelling task of dead actor, error info actor_died_error {\n  "
        f'actor_died_error_context {{\n    error_message: "The actor is dead because {cause}"\n    owner_id: "{escaped}"\n'
        '    pid: 383\n    ray_namespace: "shared"\n    name: "trainer"\n    class_name: "Trainer"\n  }\n}\n'
    )


_SECOND_LOG = f"logs/python-core-driver-02000000{'f' * 48}_399.log"

EXAMPLES: tuple[Example, ...] = (
    console(
        "the driver's output holds only the last line of the error",
        f"The actor is dead because its owner has died. Owner Id: {'0200' + 'ab' * 26} Owner Ip address: 10.0.0.2 Owner worker exit type: "
        "SYSTEM_ERROR Worker exit detail: Owner's worker process has crashed.\n",
        says=("An actor",),
    ),
    console(
        "a task prints the same line",
        "(check pid=12) The actor is dead because its owner has died. Owner Id: 0200\nstep 2\n",
    ),
    Example(
        "the actor that created it was killed",
        {
            "driver.log": _frame(_owner_text(_W, "SYSTEM_ERROR")),
            "logs/gcs_server.out": _OWNER_EXIT,
            "logs/raylet.out": "",
        },
        roots=("worker-vanished",),
        consequences=("actor-owner-died",),
        says=(
            "Trainer 'trainer' (pid 383) died because worker 4f059f01, which created it",
            'lifetime="detached"',
        ),
        is_typical=True,
    ),
    Example(
        "up to 2.50 the message names references, and the raylet's log names the owner",
        {
            "driver.log": _frame(_REFERENCES).replace("ActorDiedError", "RayActorError"),
            "logs/gcs_server.out": _PLACED + _OWNER_EXIT,
            "logs/raylet.out": _WITH_OWNER,
        },
        roots=("worker-vanished",),
        consequences=("actor-owner-died",),
    ),
    Example(
        "the GCS destroyed the actor before the raylet killed its worker (2.40)",
        {
            "driver.log": _frame(_REFERENCES.replace(".", " including lineage ref count.")),
            "logs/gcs_server.out": _PLACED + _DESTROYED + _OWNER_EXIT,
            "logs/raylet.out": "",
        },
        roots=("worker-vanished",),
        consequences=("actor-owner-died",),
    ),
    Example(
        "the driver that created it ended, and another driver still used it",
        {
            "driver.log": _frame(_REFERENCES),
            "logs/gcs_server.out": _TWO_JOBS,
            "logs/raylet.out": "",
            _SECOND_LOG: _call("44", _DRIVER, _REFERENCES),
        },
        says=("driver of job 1", "get_if_exists=True"),
    ),
    console(
        "only the driver's output is available",
        _frame(_owner_text(_DRIVER, "INTENDED_USER_EXIT")),
        says=("driver of job 1",),
    ),
    console(
        "the node of the driver that created it crashed",
        _frame(_owner_text(_DRIVER, "SYSTEM_ERROR").replace("worker process", "node")),
        says=(
            "because the GCS marked node 10.0.0.2 as dead, and with it the driver of job 1, which created it",
            "Find out why node 10.0.0.2 died",
        ),
    ),
    Example(
        "an actor logs the same message at the normal end of its driver",
        {
            "driver.log": "done\n",
            "logs/gcs_server.out": _TWO_JOBS,
            "logs/raylet.out": "",
            f"logs/python-core-worker-{_CHILD}_383.log": "[2026-11-21 07:41:37,100 I 383 402] core_worker.cc:4630: Force kill "
            "actor request has received. exiting immediately... The actor is dead because "
            f"{_owner_text(_DRIVER, 'INTENDED_USER_EXIT')}\n",
        },
    ),
)

"""An object is lost because the process that owned it exited.

## What you see
`ray.exceptions.OwnerDiedError: Failed to retrieve object …`, and below it `The object's owner has exited`.

## Why
Every object has one owner: the worker or driver that called `.remote()` or `ray.put()`. The owner records where the
copies are and how to recreate the object. When the owner exits, Ray can neither find nor recreate the object, even if a
copy still exists. The root cause is whatever ended the owner. If the logs record it, the report lists `owner-died` as a
consequence of that cause.

## Confirm
- The object's id names its creator: the first 48 digits are the id of the task. The last 8 digits are `01e1f505`,
  `02e1f505`, … for a `ray.put`, and `01000000`, `02000000`, … for a result.
- The message has the owner's WorkerID; `raydoctor story OWNER_ID` shows how the owner ended.
- A WorkerID made of a JobID followed by 48 `f` belongs to a driver: the script that created the object had ended.

## Fix
Keep the owner running, or let a long-lived process own the data. For example, return values instead of references made
by `ray.put` inside a task, create the objects in a detached actor, or keep the script that created them running. If the
owner crashed, fix that crash first.

## Not this when
- all copies were lost with a node while the owner still runs (`object-lost`).
- a raylet shut down gracefully: Ray 2.3 to 2.57 then raises `OwnerDiedError` although the owner runs (ray issue 64899).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import ACTOR_PLACED, DRIVER, GCS, RAY_EXCEPTION
from raydoctor.model import ids, paste
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Gap, Link, Remedy, Subject
from raydoctor.rules.shared import objects

_DOC = "https://docs.ray.io/en/latest/ray-core/fault_tolerance/objects.html"
_O = "00310a0f0a45af5cdbb301fe3ce0f2e9437a848d0100000004e1f505"
_W = "e64e4832551c3c1027ce48a5503320a76dfc45ef15a75f6f908d6be7"
_ERROR = (
    f"Failed to retrieve object {_O}. To see information about where this ObjectRef was created in Python, set the environment "
    "variable RAY_record_ref_creation_sites=1 during `ray start` and `ray.init()`.\n\nThe object's owner has exited. This is the "
    "Python worker that first created the ObjectRef via `.remote()` or `ray.put()`. Check cluster logs "
    f"(`/tmp/ray/session_latest/logs/*{_W}*` at IP address 10.0.0.2) for more information about the Python worker failure."
)

LOST = Signal(
    "object.owner_died",
    "Failed to retrieve object ",
    r"Failed to retrieve object (?P<object>[0-9a-f]{56})\..{0,2000}?The object's owner has exited\."
    r"(?:.{0,2000}?logs/\*(?P<owner>[0-9a-f]{56})\*(?:. at IP address (?P<ip>[\w.:-]+))?)?"
    r"(?:.{0,2000}?owner node ID: (?P<owner_node>[0-9a-f]{56}))?",
    (*DRIVER, "raylet-echo"),
    _ERROR,
    extent="record",
)
CUT = Signal(
    "object.owner_died",
    "OwnerDiedError: Failed to retrieve object ",
    r"\bray\.exceptions\.OwnerDiedError: Failed to retrieve object (?P<object>[0-9a-f]{56})"
    r"(?!.{0,2000}?The object's owner has exited\.)",
    DRIVER,
    f"ray.exceptions.OwnerDiedError: Failed to retrieve object {_O}. To see information about where",
    extent="record",
)
"""The exception says that the owner died, even where a paste or a logger cut its text off."""


KILLED = Signal(
    "owner.killed",
    "Received KillLocalActor RPC",
    r"^Received KillLocalActor RPC worker_id=(?P<worker>[0-9a-f]{56}) actor_id=(?P<actor>[0-9a-f]{32})",
    ("raylet-out",),
    f"Received KillLocalActor RPC worker_id={_W} actor_id=e01d15f447ee45922acace5001000000",
)
"""The GCS asks for it after `ray.kill`, and when no handle keeps the actor (2.5x to 2.60)."""
_DESTROYED = Signal(
    "actor.destroyed",
    "Destroying actor",
    r"^Destroying actor(?:, actor id = |\b.*? actor_id=)(?P<actor>[0-9a-f]{32})",
    GCS,
    "Destroying actor, actor id = e01d15f447ee45922acace5001000000, job id = 01000000",
)
"""The GCS's own record, in every version: all that 2.9 to 2.40 log of it."""


class _Loss(NamedTuple):
    event: Event
    object: str
    owner: str
    node: str


@rule(
    tier="symptom",
    severity="error",
    rank=80,
    explains=("object",),
    caused_by=("job", "node", "process", "worker"),
    daemons_record=True,
    looks_for=(LOST, CUT, KILLED, _DESTROYED, *ACTOR_PLACED, RAY_EXCEPTION),
)
def owner_died(case: Case) -> Iterator[Finding]:
    """One finding per owner, for all objects that were lost with it."""
    by_owner: dict[str, list[_Loss]] = {}
    for event in case.of("object.owner_died"):
        owner = event["owner"]
        by_owner.setdefault(owner, []).append(
            _Loss(event, event["object"], owner, event["owner_node"])
        )
    for losses in by_owner.values():
        yield _finding(case, losses)


def _finding(case: Case, losses: list[_Loss]) -> Finding:
    first = losses[0]
    job = ids.job_of_driver(first.owner)
    lost = list(dict.fromkeys(loss.object for loss in losses))
    exit_ = case.exit_of(first.owner) if first.owner else None
    echoes = _echoes(case, losses)
    shown = next((e for e in echoes if e.kind == "driver.exception"), first.event)
    chain = [
        Link(
            shown,
            f"{objects.described(case, first.object)} cannot be retrieved: its owner has exited",
        )
    ]
    chain = [*_owner_end(case, first, job), *chain]
    gaps = () if exit_ or job or first.owner == "" or _killed(case, first) else (_no_record(first),)
    return Finding(
        _headline(case, first, lost, job),
        tuple(chain),
        explains=tuple(Entity("object", o) for o in lost),
        caused_by=_caused_by(case, first, job),
        subjects=tuple(Subject("object", o) for o in lost[:10]),
        count=len(lost),
        remedies=(*_keep(case, first), *_remedies(first, job, bool(_killed(case, first)))),
        covers=tuple(echoes),
        gaps=gaps,
    )


def _headline(case: Case, first: _Loss, lost: list[str], job: str) -> str:
    are_theirs = "is lost because its" if len(lost) == 1 else "are lost because their"
    return f"{objects.counted(case, lost)} {are_theirs} owner, {_owner_exit(case, first, job)}"


def _echoes(case: Case, losses: list[_Loss]) -> list[Event]:
    """The exceptions that raised these losses, plain or nested in a task's error."""
    lost = {loss.object for loss in losses}
    found = [loss.event for loss in losses]
    for event in case.of("driver.exception"):
        is_named = any(o in event["what"] for o in lost)
        if is_named or (event["inner"] == "OwnerDiedError"):
            found.append(event)
    return found


def _owner_exit(case: Case, loss: _Loss, job: str) -> str:
    """The owner and its end: `Preprocessor (pid 400), ended with exit type SYSTEM_ERROR`."""
    if job:
        return f"the driver of job {ids.job_number(job)}, had exited"
    exit_ = case.exit_of(loss.owner)
    if exit_:
        return f"{exit_.noun}, ended with exit type {exit_.exit_type}"
    if not loss.owner:
        return "a worker that the message does not name, exited"
    killed = _killed(case, loss)
    actor = case.actor(killed["actor"] if killed else case.actor_of_worker(loss.owner)).class_name
    if killed:
        return f"actor {actor or evidence.short(killed['actor'])}, was ended on request"
    worker = f"worker {evidence.short(loss.owner)}"
    return f"actor {actor} ({worker}), exited" if actor else f"{worker}, exited"


def _owner_end(case: Case, loss: _Loss, job: str) -> list[Link]:
    if job:
        ended = case.job(job).end_event
        return (
            [Link(ended, f"job {ids.job_number(job)} ended, and its driver with it")]
            if ended
            else []
        )
    if killed := _killed(case, loss):
        return [Link(killed, "Ray was asked to end the owner: ray.kill, or no handle kept it")]
    exit_ = next((e for e in case.all_exits if e.worker == loss.owner), None)
    return list(evidence.exit_links(exit_, most=1)) if exit_ else []


def _killed(case: Case, loss: _Loss) -> Event | None:
    """The record that the owner, an actor, was ended on request."""
    found = [e for e in case.of(KILLED.kind) if loss.owner and e["worker"] == loss.owner]
    if not found and (actor := case.actor_of_worker(loss.owner)):
        destroyed = case.about(Entity("actor", actor), _DESTROYED.kind)
        found = [e for e in destroyed if not case.torn_down(e) and not case.actor(actor).failures]
    return found[0] if found else None


def _keep(case: Case, loss: _Loss) -> tuple[Remedy, ...]:
    if not _killed(case, loss):
        return ()
    return (
        Remedy(
            "Fetch the objects before the actor ends: do not ray.kill it earlier, and keep a handle",
            ("values = ray.get(refs)   # then ray.kill(actor)",),
            doc=_DOC,
        ),
    )


def _caused_by(case: Case, loss: _Loss, job: str) -> tuple[Entity, ...]:
    if job:
        return (Entity("job", job),)
    exit_ = case.exit_of(loss.owner)
    node = (
        loss.node or (exit_.node if exit_ else "") or case.ledger.worker_nodes.get(loss.owner, "")
    )
    named = (*exit_.entities,) if exit_ else ((Entity("worker", loss.owner),) if loss.owner else ())
    return (*named, *((Entity("node", node),) if node else ()))


def _no_record(loss: _Loss) -> Gap:
    return Gap(
        f"the end of owner {evidence.short(loss.owner)}",
        "this capture has no record of it: Ray does not log intended exits (idle, max_calls, actor out of scope), and the "
        "log of the node or of the GCS may be missing",
        paste.shell(
            "Run this on node {node}, where the owner ran, to see what its logs record: raydoctor story {owner:id}"
            if loss.node
            else "Run this on the node where the owner ran, to see what its logs record: raydoctor story {owner:id}",
            node=evidence.short(loss.node),
            owner=loss.owner,
        ),
        about="cause",
    )


def _remedies(loss: _Loss, job: str, is_killed: bool) -> tuple[Remedy, ...]:
    parts = ids.parse_object_id(loss.object)
    if job:
        return (
            Remedy(
                "Let a detached actor own the data: such an actor outlives the script",
                (
                    "# create the objects inside a detached actor, and keep the references there:",
                    paste.python(
                        'Owner.options(name="data", lifetime="detached").remote()   # instead of ray.put in the driver of job {job}',
                        job=ids.job_number(job),
                    ),
                    "# or keep that driver running until its references are no longer used",
                ),
                doc=_DOC,
            ),
        )
    if parts and parts.put:
        return (
            Remedy(
                "Return the value instead of a ray.put reference: then the caller owns the value",
                ("return value            # instead of: return ray.put(value)",),
                doc=_DOC,
            ),
            *(
                ()
                if is_killed
                else (
                    Remedy(
                        "Find out why the owner exited, and fix that first",
                        _story(loss),
                        finds_cause=True,
                    ),
                )
            ),
        )
    if is_killed:
        return ()
    return (
        Remedy(
            "Find out why the owner exited, and fix that first: Ray cannot rebuild objects without their owner",
            _story(loss),
            doc=_DOC,
            finds_cause=True,
        ),
    )


def _story(loss: _Loss) -> tuple[str, ...]:
    """The command that shows the owner's end, if the message names the owner."""
    if not loss.owner:
        return ()
    return (
        paste.shell("raydoctor story {owner:id} PATH   # the path of these logs", owner=loss.owner),
    )


# ------------------------------------------------------------------ examples

_N = "3b7270e6630acc23bf1acf26c5be4fb455bc251041d661fd77e8a723"

_DRIVER_ENDED = "[2026-11-21 07:35:02,000 I 8 8] (gcs_server) gcs_job_manager.cc:156: Marking job as finished. job_id=01000000\n"
_OOM = (
    "[2026-11-21 07:43:10,000 W 8 8] (gcs_server) gcs_worker_manager.cc:70: Reporting worker exit, worker id = "
    f"{_W}, node id = {_N}, address = 10.0.0.2, exit_type = NODE_OUT_OF_MEMORY, exit_detail = 1 worker(s) were killed due to the "
    f"node running low on memory. Memory on the node (IP: 10.0.0.2, ID: {_N}) was 14.40GB used / 15.00GB limit (0.960000)\n"
    f"Top 10 memory users: PID\tMEM(GB)\tCOMMAND\n251\t13.00\tray::Preprocessor.run\n"
)

_PLACED = (
    "[2026-11-21 07:42:09,758 I 8 8] (gcs_server) gcs_actor_scheduler.cc:447: Start creating actor "
    f"e01d15f447ee45922acace5001000000 on worker {_W} at node {_N}, job id = 01000000\n"
)

EXAMPLES: tuple[Example, ...] = (
    Example(
        "the program killed the actor that owns the object, and only the GCS of Ray 2.9 records it",
        {
            "driver.log": f"ray.exceptions.OwnerDiedError: {_ERROR}\n",
            "logs/gcs_server.out": f"{_PLACED}[2026-11-21 07:42:10,932 I 8 8] (gcs_server) gcs_actor_manager.cc:816: "
            f"{_DESTROYED.sample}\n",
            "logs/raylet.out": "",
        },
        says=("was ended on request", "do not ray.kill it earlier"),
    ),
    Example(
        "Ray's memory monitor killed the owner",
        {
            "driver.log": f"ray.exceptions.OwnerDiedError: {_ERROR}\n\nOwner worker ID: {_W}, owner node ID: {_N}, owner "
            "address: 10.0.0.2:38433.\n",
            "logs/gcs_server.out": _OOM,
            "logs/raylet.out": "",
        },
        roots=("ray-oom-kill",),
        consequences=("owner-died",),
        says=("ray.put",),
    ),
    Example(
        "the owner was a driver that exited",
        {
            "driver.log": f"ray.exceptions.OwnerDiedError: {_ERROR}\n".replace(
                _W, "01000000" + "f" * 48
            ),
            "logs/gcs_server.out": _DRIVER_ENDED,
            "logs/raylet.out": "",
        },
        says=("driver of job 1", "detached"),
    ),
    Example(
        "the owner is an actor that the program killed",
        {
            "driver.log": f"ray.exceptions.OwnerDiedError: {_ERROR}\n\nOwner worker ID: {_W}, owner node ID: {_N}, owner "
            "address: 10.0.0.2:38433.\n",
            "logs/gcs_server.out": "",
            "logs/raylet.out": f"[2026-11-21 07:43:10,000 I 9 9] (raylet) node_manager.cc:3647: {KILLED.sample}\n",
        },
        says=("was ended on request", "ray.kill(actor)"),
    ),
    console(
        "a console that cuts the exception's text off",
        f"Traceback (most recent call last):\n{CUT.sample}\n",
        says=("a worker that the message does not name",),
    ),
    console(
        "a task prints the error's name",
        "(check pid=12) ray.exceptions.OwnerDiedError is what we test for: The object's owner has exited.\n",
        logs=QUIET_LOGS,
    ),
)

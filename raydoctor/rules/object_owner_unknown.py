"""The program uses a reference that Ray no longer counts, or whose owner belongs to another driver or cluster.

## What you see
`ValueError: You are trying to access Ray objects whose owner is unknown` (up to Ray 2.49 `An application is trying to
access …`), ``ObjectFreedError: … manually freed using the internal `free` call``, `ReferenceCountingAssertionError: The
object has already been deleted by the reference counting protocol`, or `OufOfBandObjectRefSerializationException: It is
not allowed to serialize ray.ObjectRef …`. A `ray.get` on a rebuilt reference may also hang (`GetTimeoutError`).

## Why
An ObjectRef is not an address: it is valid only while Ray counts it. Ray counts references that are passed as
arguments, returned, or kept in a variable. Ray does not count:

- an id that was written to a file or a database and read back (`ObjectRef(bytes)`),
- a reference from before `ray.shutdown()` or from another driver,
- a reference that the program itself pickled, and unpickled after the last counted one was deleted.

An actor handle is also valid in its session only: `Can't find actor …. It might be dead or it's from a different
cluster`, or `ActorHandle objects are not valid across Ray sessions`.

`free` deletes the value even if Ray still counts references.

## Confirm
- The object's id names its creator: the first 48 digits are the id of the task, and the last 8 of these are the job.
  The id ends in `01e1f505`, `02e1f505`, … for a `ray.put`, and in `01000000`, `02000000`, … for a result.
- Search the program for `ray.shutdown`, `.binary()`, `.hex()`, `ObjectRef(`, `pickle.dumps` of something that holds
  references.
- Set `RAY_record_ref_creation_sites=1` for `ray start` and for the driver, and run the program again: errors then
  contain the line that created the reference.

## Fix
Pass references through Ray: as arguments, as results, or in an actor that keeps them. Between sessions or drivers, pass
the values through storage, or let a detached actor of the same namespace own them.

## Not this when
- the owner is known, and exited (`owner-died`).
- the object was lost with its node (`object-lost`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import DRIVER, RAY_EXCEPTION
from raydoctor.model import ids
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import objects
from raydoctor.rules.shared.task_error import ERROR_TEXT, printed

_DOC = "https://docs.ray.io/en/latest/ray-core/objects.html"
_OUT_OF_BAND = "https://docs.ray.io/en/latest/ray-core/objects/serialization.html"
_FREED_TEXT = (
    "The object was manually freed using the internal `free` call. Please ensure that `free` is only called once the object is no "
    "longer needed."
)
_DELETED_TEXT = "The object has already been deleted by the reference counting protocol. This should not happen."
_UNKNOWN_TEXT = (
    "Please make sure that all Ray objects you are trying to access are part of the current Ray session. Note that object IDs "
    "generated randomly (ObjectID.from_random()) or out-of-band (ObjectID.from_binary(...)) cannot be passed as a task argument "
    "because Ray does not know which task created them. If this was not how your object ID was generated, please file an issue at "
    "https://github.com/ray-project/ray/issues/"
)
_ID_LIST = "[0-9a-f]{56}[0-9a-f, ]*"

UNKNOWN = Signal(
    "owner.unknown", " whose owner is unknown",
    r"^(?:\| )*ValueError: (?:You are|An application is) trying to access (?:a Ray object|Ray objects) whose owner is unknown"
    rf"(?:\((?P<objects_a>{_ID_LIST})\))?\.(?:.*? Owners not found for objects \[(?P<objects_b>{_ID_LIST})\])?", DRIVER,
    f"ValueError: You are trying to access Ray objects whose owner is unknown. {_UNKNOWN_TEXT}. Owners not found for objects "
    f"[{objects.A_PUT}, ].",
    symptom=True,
)  # fmt: skip
"""`core_worker.cc`: the first form, of `ray.get` and `ray.wait`, since 2.50; the second, of task arguments, in every version."""
FREED = Signal(
    "object.freed", objects.HEAD, objects.HEAD_PATTERN + "The object was manually freed", DRIVER, objects.error(_FREED_TEXT),
    extent="record",
)  # fmt: skip
DELETED = Signal(
    "object.deleted", objects.HEAD, objects.HEAD_PATTERN + "The object has already been deleted by the reference counting", DRIVER,
    objects.error(_DELETED_TEXT), extent="record",
)  # fmt: skip
OUT_OF_BAND = Signal(
    "ref.out_of_band", "It is not allowed to serialize ray.ObjectRef ",
    r"It is not allowed to serialize ray\.ObjectRef (?P<object>[0-9a-f]{56})\.(?:.*?\nCallsite: (?P<callsite>[^\n]*))?", DRIVER,
    f"ray.exceptions.OufOfBandObjectRefSerializationException: It is not allowed to serialize ray.ObjectRef {objects.A_PUT}. If you "
    "want to allow serialization, set `RAY_allow_out_of_band_object_ref_serialization=1.` If you set the env var, the object is pinned "
    "forever in the lifetime of the worker process and can cause Ray object leaks. See the callsite and trace to find where the "
    "serialization occurs.\nCallsite: Disabled. Set RAY_record_ref_creation_sites=1",
    extent="record",
)  # fmt: skip
"""`serialization.py`, Ray 2.40 and later, if the variable was set to 0."""

HANDLE = (
    Signal(
        "handle.unknown", "might be dead or it's from a different cluster",
        r"(?:^|[^\w\s] ?)(?:E {1,8})?(?:\w{0,60}(?:Error|Exception): )?(?:Failed to submit task to actor ActorID\([0-9a-f]{32}\) due to b[\"'])?"
        r"Can't find actor (?P<actor>[0-9a-f]{32})\. It might be dead or it's from a different cluster", DRIVER,
        f"Exception: Failed to submit task to actor ActorID({'c6' * 12}01000000) due to b\"Can't find actor {'c6' * 12}01000000. It might "
        "be dead or it's from a different cluster\"",
        symptom=True, fold=("actor",),
    ),
    Signal(
        "handle.unknown", "ActorHandle objects are not valid across Ray sessions.",
        r"^(?:E {1,8})?(?:ray\.exceptions\.)?(?:ActorHandleNotFoundError: )?ActorHandle objects are not valid across Ray sessions\."
        r"(?: The actor handle was created in job (?P<job>[0-9a-f]{8}), but the current job is (?P<now>[0-9a-f]{8}))?", DRIVER,
        "ray.exceptions.ActorHandleNotFoundError: ActorHandle objects are not valid across Ray sessions. The actor handle was created in job "
        "01000000, but the current job is 02000000.",
        symptom=True,
    ),
)  # fmt: skip
"""`core_worker.cc` since 2.5, for a call; `worker.py` since 2.47, for `ray.kill`."""


@rule(
    tier="root",
    severity="error",
    rank=49,
    explains=("object", "reference"),
    looks_for=(UNKNOWN, FREED, DELETED, OUT_OF_BAND, *HANDLE, RAY_EXCEPTION, ERROR_TEXT),
)  # fmt: skip
def object_owner_unknown(case: Case) -> Iterator[Finding]:
    """One finding per kind of error."""
    for kind, finding_of in (
        ("owner.unknown", _unknown),
        ("object.freed", _freed),
        ("object.deleted", _deleted),
        ("ref.out_of_band", _refused),
    ):
        if events := case.of(kind):
            yield finding_of(case, events)
    if events := case.of(HANDLE[0].kind):
        yield _of_handles(case, events)


def _of_handles(case: Case, events: list[Event]) -> Finding:
    """Actor handles that the running session does not know."""
    actors = list(dict.fromkeys(e["actor"] for e in events if e["actor"]))
    first = events[0]
    many = evidence.many(len(actors) or 1, "actor handle")
    jobs = (
        f" (created in job {ids.job_number(first['job'])}, used in job {ids.job_number(first['now'])})"
        if first["now"]
        else ""
    )
    return Finding(
        f"The program used {many} of another Ray session, or of an actor that is dead{jobs}",
        (Link(first, "Ray does not know the actor of this handle"),),
        explains=(Entity("reference", HANDLE[0].kind),),
        subjects=tuple(Subject("actor", actor) for actor in actors[:10]),
        count=len(actors) or 1,
        severity="warning" if evidence.goes_on(case, events[-1]) else None,
        remedies=(
            Remedy(
                "Create the actor, or look it up again, after ray.init: keep no handle in a global, a cache or a file across sessions",
                (
                    'actor = ray.get_actor("NAME", namespace="NAMESPACE")   # in the session that calls it',
                    "grep -rn -e 'ray.shutdown' -e 'ray.init' .   # code that restarts Ray, for example between tests",
                ),
                doc="https://docs.ray.io/en/latest/ray-core/actors/named-actors.html",
            ),
        ),
        covers=tuple(events),
    )  # fmt: skip


def _finding(
    case: Case, events: list[Event], headline: str, shows: str, remedies: tuple[Remedy, ...]
) -> Finding:
    named = _named(events)
    places = {(e.source, e.line) for e in events}
    errors = objects.raised_for(case, {*named, *(e["object"] for e in events if e["object"])})
    around = [p for p in printed(case) if any(_inside(p.event, p.failure.lines, e) for e in events)]
    same = [e for e in case.of("driver.exception") if (e.source, e.line) in places]
    return Finding(
        headline,
        (Link(events[0], shows),),
        explains=(*(Entity("object", o) for o in named), Entity("reference", events[0].kind)),
        subjects=tuple(Subject("object", o) for o in named[:10]),
        count=len(named) or evidence.total(events),
        remedies=remedies,
        covers=(
            *events, *same, *errors, *(e for p in around for e in p.records),
        ),
    )  # fmt: skip


def _inside(outer: Event, lines: int, event: Event) -> bool:
    return outer.source == event.source and outer.line <= event.line <= outer.line + lines


def _named(events: list[Event]) -> list[str]:
    """The ids that these records name."""
    texts = [e["object"] or e["objects_a"] or e["objects_b"] for e in events]
    return objects.named(o.strip() for text in texts for o in text.split(",") if o.strip())


def _what(case: Case, events: list[Event]) -> str:
    named = _named(events)
    return objects.described(case, named[0]) if named else "the message does not name the object"


# ---------------------------------------------------------------- the four kinds


def _unknown(case: Case, events: list[Event]) -> Finding:
    named = _named(events)
    count = len(named) or evidence.total(events)
    return _finding(
        case,
        events,
        f"The program used {evidence.many(count, 'reference')} without an owner in this session: {_what(case, events)}{_origin(case, named)}",
        "Ray has no owner for this reference",
        (
            Remedy(
                "Pass the reference through Ray, in the session that created it",
                (
                    "f.remote(ref)                     # as an argument, or inside one: f.remote([ref])",
                    "# not: ObjectRef(bytes), a reference from before ray.shutdown(), an id from a file",
                ),
                doc=_DOC,
            ),
            Remedy(
                "Let a detached actor own the data that several drivers share",
                (
                    'Owner.options(name="data", lifetime="detached", namespace="shared").remote()',
                    'ray.get(ray.get_actor("data", namespace="shared").value.remote())',
                ),
                doc="https://docs.ray.io/en/latest/ray-core/actors/named-actors.html",
            ),
        ),
    )


def _origin(case: Case, named: list[str]) -> str:
    """Whether the reference's job is in this capture, and whether it ended or another followed."""
    parts = ids.parse_object_id(named[0]) if named else None
    jobs = case.ledger.jobs
    if parts is None or not jobs:
        return ""
    if parts.job not in jobs:
        return ", of a job that is not in this session"
    later = [job for job in jobs if ids.job_number(job) > ids.job_number(parts.job)]
    if jobs[parts.job].ended is not None or later:
        return f", after job {ids.job_number(parts.job)} had ended"
    return ""


def _freed(case: Case, events: list[Event]) -> Finding:
    count = len(_named(events))
    return _finding(
        case,
        events,
        f"The program used {evidence.many(count, 'object')} after it had freed {'it' if count == 1 else 'them'} with Ray's internal "
        f"free(): {_what(case, events)}",
        "Ray reports that free() was called on it",
        (
            Remedy(
                "Delete the references instead of calling free(): Ray then frees the object",
                ("del ref                           # instead of free([ref]): Ray frees objects without references",),
                doc=_DOC,
            ),
        ),
    )  # fmt: skip


def _deleted(case: Case, events: list[Event]) -> Finding:
    count = len(_named(events))
    return _finding(
        case,
        events,
        f"The program used {evidence.many(count, 'object')} after the last counted reference was deleted: {_what(case, events)}",
        "Ray had deleted it: no counted reference was left",
        (_THROUGH_RAY,),
    )


def _refused(case: Case, events: list[Event]) -> Finding:
    line = events[0]["callsite"]
    site = f", at {line}" if line and not line.startswith("Disabled") else ""
    return _finding(
        case,
        events,
        f"Ray refused to let the program pickle an ObjectRef itself, as a setting forbids it: {_what(case, events)}{site}",
        "refused: RAY_allow_out_of_band_object_ref_serialization=0",
        (
            _THROUGH_RAY,
            Remedy(
                "Or allow it: each such object then stays in memory until the process that pickled it ends",
                ("unset RAY_allow_out_of_band_object_ref_serialization   # default: 1",),
                risk="disruptive",
                doc=_OUT_OF_BAND,
                since=(2, 38),
            ),
        ),
    )


_THROUGH_RAY = Remedy(
    "Do not pickle references into a file, a database or a message: pass them through Ray",
    (
        "f.remote(ref)                     # or f.remote([ref]), or keep it in an actor: Ray counts these",
        "ref = ray.put(value); refs.append(ref)   # keep a counted reference while other processes may use it",
    ),
    doc=_OUT_OF_BAND,
)


# ------------------------------------------------------------------ examples


_JOBS = "".join(
    f"[2026-11-21 10:42:{9 + 26 * n:02d},000 I 8 8] (gcs_server) gcs_job_manager.cc:90: Registering job. job_id=0{n + 1}000000 driver_pid={7 + n}\n"
    for n in range(2)
)

EXAMPLES: tuple[Example, ...] = (
    *(
        console(
            f"a handle of an earlier session: {signal.find}",
            f'Traceback (most recent call last):\n  File "/app/train.py", line 8, in <module>\n    step()\n{signal.sample}\n',
            says=("of another Ray session", "ray.get_actor"),
        )
        for signal in HANDLE
    ),
    console(
        "pytest's summary names a handle of an earlier session",
        f"FAILED tests/test_store.py::test_read - {HANDLE[0].sample}\n",
        says=("The program used 1 actor handle of another Ray session",),
    ),
    console(
        "a program reports a handle, creates the actor again, and continues",
        f"WARNING: {HANDLE[0].sample}\ncreated a new one\nloss 0.1\n",
        severity="warning",
    ),
    console(
        "a program that quotes the message",
        "(check pid=12) if Ray says 'It might be dead or it is from a different cluster', call get_actor again\nstep 2\n",
    ),
    Example(
        "a reference from before ray.shutdown()",
        {**QUIET_LOGS, "logs/gcs_server.out": _JOBS, "driver.log": f"{UNKNOWN.sample}\n"},
        says=("1 reference", "the driver of job 1", "ended"),
        is_typical=True,
    ),
    console(
        "a reference without an owner in a task's arguments, Ray 2.9",
        f"ValueError: An application is trying to access a Ray object whose owner is unknown({objects.A_PUT}). "
        f"{_UNKNOWN_TEXT}\n",
        logs=QUIET_LOGS,
        says=("1 reference",),
    ),
    console(
        "a value that the program freed; Ray prints a failed argument with the nil id",
        f"ray.exceptions.ObjectFreedError: {objects.error(_FREED_TEXT)}Traceback (most recent call last):\n"
        f"ray.exceptions.RayTaskError(ObjectFreedError): ray::total() (pid=129, ip=10.0.0.2)\n  At least one of the input arguments "
        f"for this task could not be computed:\nray.exceptions.ObjectFreedError: {objects.error(_FREED_TEXT, objects.NIL)}",
        logs=QUIET_LOGS,
        says=("1 object", "task c8ef45cc", "del ref"),
    ),
    console(
        "the last counted reference was deleted",
        f"ray.exceptions.ReferenceCountingAssertionError: {objects.error(_DELETED_TEXT)}",
        logs=QUIET_LOGS,
        says=("last counted reference",),
    ),
    Example(
        "a reference pickled by the program",
        {**QUIET_LOGS, "driver.log": f"{OUT_OF_BAND.sample}\n"},
        says=("refused", "pass them through Ray"),
    ),
    console(
        "a task prints all these messages",
        f"(check pid=12) {UNKNOWN.sample}\n(check pid=12) {OUT_OF_BAND.sample}\n(check pid=12) "
        f"{objects.error(_FREED_TEXT)}",
        logs=QUIET_LOGS,
    ),
)

"""Ray's ids: the ids of jobs, actors and tasks that another id contains.

Layout (measured with Ray 2.60, the same since 2.6): JobID 8 digits, a little-endian counter; ActorID
32 = 24 unique + JobID; TaskID 48 = 16 unique + ActorID; ObjectID 56 = TaskID + 8 digits of a
little-endian index, where 1..n are returns and 100,000,001 upwards come from `ray.put`; LeaseID 64
= counter + WorkerID of the submitter; a driver's WorkerID is its JobID followed by 48 `f`.
"""

from __future__ import annotations

from typing import NamedTuple

FIRST_PUT_INDEX = 100_000_001
"""`RAY_max_num_generator_returns` (1e8) + 1: Ray >= 2.6 numbers `ray.put` objects from here."""

NIL_WORKER = "f" * 56


class ObjectIdParts(NamedTuple):
    """The parts of an ObjectID."""

    task: str
    """The creator: the task that returned it or called `ray.put`."""
    actor: str
    """The actor, if the creator was an actor's method; empty for a normal task or a driver."""
    job: str
    number: int
    """1 to n: the n-th return value; from FIRST_PUT_INDEX on: `ray.put`."""
    put: bool


def parse_object_id(value: str) -> ObjectIdParts | None:
    """Split an ObjectID; None if it is not one (length, digits, or nil)."""
    if len(value) != 56 or not _is_hex(value) or value == "f" * 56:
        return None
    number = int.from_bytes(bytes.fromhex(value[48:]), "little")
    task = value[:48]
    return ObjectIdParts(task, actor_of_task(task), task[40:], number, number >= FIRST_PUT_INDEX)


def actor_of_task(task: str) -> str:
    """The actor of an actor task or creation task; empty for normal tasks and drivers."""
    actor = task[16:]
    return "" if len(task) != 48 or actor.startswith("f" * 24) else actor


def is_creation_task(task: str) -> bool:
    """Whether this task creates an actor: its id is 16 `f` and the ActorID."""
    return len(task) == 48 and task.startswith("f" * 16) and not task.startswith("f" * 40)


def creation_task(actor: str) -> str:
    """The id of the task that creates an actor."""
    return "f" * 16 + actor


def job_of_task(task: str) -> str:
    """The job a task belongs to."""
    return task[40:] if len(task) == 48 else ""


def is_driver_task(task: str) -> bool:
    """Whether this is the task id of a driver itself."""
    return len(task) == 48 and task[2:40] == "f" * 38


def job_of_actor(actor: str) -> str:
    """The job that created an actor."""
    return actor[24:] if len(actor) == 32 else ""


def job_of_driver(worker: str) -> str:
    """The job of the driver with this WorkerID; empty for an ordinary worker."""
    if len(worker) == 56 and worker.endswith("f" * 48) and worker != NIL_WORKER:
        return worker[:8]
    return ""


def driver_of_job(job: str) -> str:
    """The WorkerID of a job's driver."""
    return job + "f" * 48


def submitter_of_lease(lease: str) -> str:
    """The worker or driver that requested a lease (Ray >= 2.50), or empty."""
    return lease[8:] if len(lease) == 64 and _is_hex(lease) else ""


def is_job(value: str) -> bool:
    """Whether this has the form of a JobID."""
    return len(value) == 8 and _is_hex(value)


def job_number(job: str) -> int:
    """The counter in a JobID: job 1 is `01000000`."""
    return int.from_bytes(bytes.fromhex(job), "little") if is_job(job) else 0


def _is_hex(value: str) -> bool:
    return all(c in "0123456789abcdef" for c in value)

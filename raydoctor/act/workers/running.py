"""Which tasks of a job run, since when and where: asked of the GCS, or of the workers themselves.

Workers tell the GCS about their tasks once a second (`task_events_report_interval_ms`), with the time of each
state, so a look is late and exact: what has begun since `LAG` may be missing. Where they tell nothing (that
interval may be 0), each worker is asked: its C++ thread says what it runs, even while native code holds the
GIL, but not since when. Once such a worker was sent a cancel it says nothing more, as that thread waits for
the GIL, too (2.60.0): a caller has to query it before.

Ray's `RUNNING` begins before a worker loads the function, for its first task of that name with all that it
imports, and the arguments; the user's function begins when the profile event `task:deserialize_arguments`
ends (`_raylet.pyx`, `execute_task`; measured: 5.1 s after `RUNNING` where the import takes 5 s). That is a
task's start here. Until it is reported, the task loads, for which it has time of its own.

Methods and messages: Ray 2.9.3, 2.40.0 and 2.60.0; before 2.40 the GCS cannot be asked for running tasks
alone. A start is the worker's clock. It is taken as no earlier than the owner sent the task, and no later
than it was first seen running: a node whose clock is off cannot make a task look old.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from raydoctor.observe.gcs.programs import gcs_rows, gcs_wire
from raydoctor.observe.gcs.programs.gcs_wire import TaskFilter, Wire

LAG = 1.2
"""Seconds by which the GCS may be behind."""
LOADING = 30.0
"""Seconds that a worker may take to load a function and its arguments. After that it counts as running."""
_LOADED = "task:deserialize_arguments"
"""The last of Ray's profile events before the user's function (Python's; none with `enable_timeline` off)."""
_EXECUTED = "task:execute"
"""The profile event of the user's function."""
_DEADLINE = 5.0
_WORKER_DEADLINE = 1.0
_WORKERS = 1_000
"""More are not asked one by one: each is a connection."""
_ENDED = ("FINISHED", "FAILED")


class WorkerTask(NamedTuple):
    """A task that runs."""

    task: bytes
    attempt: int
    name: str
    started_at: float
    """On our `time.monotonic`."""
    worker: bytes
    pid: int
    node: str


def is_method(task: bytes) -> bool:
    """Whether a task's id names an actor: 8 bytes of its own, 12 of the actor (ones: none), 4 of the job."""
    return task[8:20] != b"\xff" * 12


class TaskSource(Protocol):
    """Who knows what runs."""

    @property
    def cost(self) -> float:
        """Seconds that the GCS took for its last answer."""

    def running(self, wanted: Callable[[bytes], bool]) -> list[WorkerTask]:
        """What runs of the wanted tasks. Raises whatever the wire raises."""

    def confirm(self, runs: Sequence[WorkerTask]) -> list[bool | None]:
        """Whether its worker itself says that it runs, now, for each; None where it does not answer."""

    def ran(self, task: bytes) -> float | None:
        """Seconds that the last attempt of a task ran; None if its end is not recorded (yet)."""

    def close(self) -> None:
        """Ask no more."""


class Nobody:
    """Where no component can be queried (Ray Client): nothing is known to run."""

    cost = 0.0

    def running(self, wanted: Callable[[bytes], bool]) -> list[WorkerTask]:
        """Nothing."""
        return []

    def confirm(self, runs: Sequence[WorkerTask]) -> list[bool | None]:
        """Not known."""
        return [None] * len(runs)

    def ran(self, task: bytes) -> float | None:
        """Not known."""
        return None

    def close(self) -> None:
        """Nothing to close."""


class RayMessages:
    """Ray's own message classes, found where `call_of` looks for them: `rpc.TaskEvents`."""

    def __init__(self, *modules: Any) -> None:
        self._modules = modules

    @property
    def rpc(self) -> RayMessages:
        """The package `ray.rpc`, which Ray spreads over several modules."""
        return self

    def __getattr__(self, name: str) -> Any:
        """Raises AttributeError for a message that this version of Ray does not have."""
        for module in self._modules:
            if hasattr(module, name):
                return getattr(module, name)
        raise AttributeError(f"this version of Ray has no {name}")


@dataclass(slots=True)
class JobCluster:
    """What runs of one job, as the cluster reports it."""

    of: RayMessages
    gcs: Wire
    workers: Wire
    """Its channels are closed after each use: gRPC writes to our standard error when a worker goes."""
    address: str
    """The GCS's."""
    job: bytes
    loading: float = LOADING
    """Seconds that a task may load, 0 where Ray does not tell when that has ended."""
    _first_seen: dict[tuple[bytes, int], float] = field(default_factory=dict)
    """Start of what runs, on our monotonic clock: set once, so that it never moves."""
    _loading: dict[tuple[bytes, int], float] = field(default_factory=dict)
    """The same of what is being loaded: when that began."""
    _known: dict[bytes, Any] = field(default_factory=dict)
    """Workers that lived when they were last asked for, by id."""
    cost: float = 0.0
    _looked: float = 0.0
    """When was looked last, on our monotonic clock; 0: never."""

    def running(self, wanted: Callable[[bytes], bool]) -> list[WorkerTask]:
        """What runs of the wanted tasks; the workers are asked where the GCS knows of none."""
        found = list(self._of_gcs(wanted)) or list(self._of_workers(wanted))
        self._looked = time.monotonic()
        now = {(run.task, run.attempt) for run in found}
        self._first_seen = {key: at for key, at in self._first_seen.items() if key in now}
        self._loading = {key: at for key, at in self._loading.items() if key in now}
        return found

    def confirm(self, runs: Sequence[WorkerTask]) -> list[bool | None]:
        """Whether its worker says that it runs; None where it does not answer, False where it is gone."""
        if any(run.worker not in self._known for run in runs):
            self._alive()
        alive = list({run.worker for run in runs} & self._known.keys())
        task_lists = self._tasks_of([self._known[worker] for worker in alive])
        tasks = dict(zip(alive, task_lists, strict=True))
        return [_is_among(run.task, tasks.get(run.worker, [])) for run in runs]

    def ran(self, task: bytes) -> float | None:
        """Seconds that the function itself ran in the task's last attempt; None if not recorded (yet).

        The end is the owner's record, the rest is the worker's. Without Ray's profile events, the time
        includes loading the function and its arguments.
        """
        call = gcs_wire.task_events(self.of, TaskFilter(ids=[task]))
        reply = self.gcs.ask(self.address, call, _DEADLINE)
        attempts = [event for event in reply.events_by_task if event.task_id == task]
        if not attempts:
            return None
        last = max(attempts, key=lambda event: int(event.attempt_number))
        times = _times(last.state_updates, self.of.TaskStatus)
        executed = [e for e in last.profile_events.events if e.event_name == _EXECUTED]
        if executed:
            return float(sum(e.end_time - e.start_time for e in executed) / 1e9)
        ended = [times[state] for state in _ENDED if state in times]
        if not ended or "RUNNING" not in times or (self.loading and not _loaded(last)):
            return None
        return max(0.0, ended[0] - max(times["RUNNING"], _loaded(last)))

    def close(self) -> None:
        """Ask no more."""
        self.gcs.close()
        self.workers.close()

    # -------------------------------------------------------------- the GCS

    def _of_gcs(self, wanted: Callable[[bytes], bool]) -> Iterable[WorkerTask]:
        call = gcs_wire.task_events(self.of, TaskFilter(self.job, state="RUNNING"))
        asked = time.monotonic()
        reply = self.gcs.ask(self.address, call, _DEADLINE)
        self.cost = time.monotonic() - asked
        names = self.of.TaskStatus
        for event in reply.events_by_task:
            if wanted(event.task_id):
                times = _times(event.state_updates, names)
                if "RUNNING" in times and not any(state in times for state in _ENDED):
                    yield self._run(event, times)

    def _run(self, event: Any, times: dict[str, float]) -> WorkerTask:
        where = event.state_updates
        return WorkerTask(
            task=event.task_id,
            attempt=event.attempt_number,
            name=event.task_info.name or event.task_info.func_or_class_name,
            started_at=self._started_at(event, times),
            worker=where.worker_id,
            pid=where.worker_pid,
            node=where.node_id.hex(),
        )

    def _started_at(self, event: Any, times: dict[str, float]) -> float:
        """When the user's function began; for one that is being loaded, the latest time that it may begin."""
        now, clock = time.monotonic(), time.time()
        key = (event.task_id, event.attempt_number)
        if key in self._first_seen:
            return self._first_seen[key]
        loaded = _loaded(event)
        began = max(times["RUNNING"], times.get("SUBMITTED_TO_WORKER", 0.0), loaded)
        ago = max(0.0, clock - began)
        if self._looked:
            # It did not run at the last look: the clock was set since it began, else it would have.
            ago = min(ago, now - self._looked + LAG)
        if self.loading and not loaded and event.task_info.language == self._python():
            first = self._loading.setdefault(key, now - ago)
            return first + self.loading
        return self._first_seen.setdefault(key, now - ago)

    def _python(self) -> int:
        return int(self.of.Language.Value("PYTHON"))

    # -------------------------------------------------------------- the workers

    def _of_workers(self, wanted: Callable[[bytes], bool]) -> Iterable[WorkerTask]:
        now = time.monotonic()
        workers = self._alive()
        if len(workers) > _WORKERS:
            return
        task_lists = zip(workers, self._tasks_of(workers), strict=True)
        for task, worker in (
            (task, worker) for worker, tasks in task_lists for task in tasks or ()
        ):
            if wanted(task):
                where = worker.worker_address
                yield WorkerTask(
                    task=task,
                    attempt=-1,
                    name="",
                    started_at=self._first_seen.setdefault((task, -1), now),
                    worker=where.worker_id,
                    pid=worker.pid,
                    node=gcs_rows.node_of(where),
                )

    def _alive(self) -> list[Any]:
        call = gcs_wire.call_of(self.of, "WorkerInfoGcsService", "GetAllWorkerInfo")
        workers = self.gcs.ask(self.address, call, _DEADLINE).worker_table_data
        alive = [each for each in workers if each.is_alive]
        self._known = {each.worker_address.worker_id: each for each in alive}
        return alive

    def _tasks_of(self, workers: Sequence[Any]) -> list[list[bytes] | None]:
        """What each worker runs, a list of task ids; None for one that does not answer."""
        addresses = [worker.worker_address for worker in workers]
        calls = [
            self.workers.start(
                gcs_wire.host_port(each),
                gcs_wire.worker_stats(self.of, each.worker_id),
                _WORKER_DEADLINE,
            )
            for each in addresses
        ]
        replies = [gcs_wire.reply_or_none(call) for call in calls]
        self.workers.close()
        return [None if reply is None else list(reply.running_task_ids) for reply in replies]


def _is_among(task: bytes, tasks: list[bytes] | None) -> bool | None:
    return None if tasks is None else task in tasks


def _loaded(event: Any) -> float:
    """When its function and its arguments were loaded, in epoch seconds; 0 where that is not reported."""
    events = event.profile_events.events
    return max((each.end_time / 1e9 for each in events if each.event_name == _LOADED), default=0.0)


def _times(states: Any, names: Any) -> dict[str, float]:
    """When each state began, in epoch seconds."""
    since = {name: gcs_rows.since(states, name, number) for name, number in names.items()}
    return {name: ns / 1e9 for name, ns in since.items() if ns is not None}

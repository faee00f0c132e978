"""Submitted jobs, from records of the job manager and of each job's supervisor (Ray 2.9 to 2.60)."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

from raydoctor.case import Case
from raydoctor.case.facts import Job
from raydoctor.case.rule import Signal
from raydoctor.case.signals import DRIVER
from raydoctor.cluster import tables as live
from raydoctor.cluster.resources import Needs
from raydoctor.model import ids, paste
from raydoctor.model.values import Event, Remedy, Source

JOBS_DOC = (
    "https://docs.ray.io/en/latest/cluster/running-applications/job-submission/quickstart.html"
)

SUBMITTED = Signal(
    "submission.started", "Started a ray job ", r"^Started a ray job (?P<submission>\S+?)\.$", ("event",),
    "Started a ray job raysubmit_63HYmcYcwYNggBEX.",
)  # fmt: skip
COMPLETED = Signal(
    "submission.completed", "Completed a ray job ",
    r"^Completed a ray job (?P<submission>\S+) with a status (?P<status>[A-Z]+)\.(?: (?P<why>.+))?", ("event",),
    "Completed a ray job raysubmit_H6JUxhF6QzatFfvR with a status FAILED.", extent="record",
)  # fmt: skip
EXITED = Signal(
    "submission.exited", " entrypoint command exited with code ",
    r"^Job (?P<submission>\S+) entrypoint command exited with code (?P<code>-?\d+)", ("worker-err",),
    "Job raysubmit_H6JUxhF6QzatFfvR entrypoint command exited with code 1 job_id=01000000",
)  # fmt: skip
ENTRYPOINT = Signal(
    "submission.entrypoint", "Running entrypoint for job ",
    r"^Running entrypoint for job (?P<submission>\S+): (?P<command>.+)", ("job-driver",),
    "Running entrypoint for job raysubmit_63HYmcYcwYNggBEX: python job.py slow",
)  # fmt: skip
_BEFORE = r"(?:Status message: | {0,40}[Mm]essage: {1,40}[\"'|>-]{0,3} ?)?"
"""In front of the message: `ray job status`, or KubeRay's status of a RayJob."""
STATUS_MESSAGE = Signal(
    "submission.status", "Job entrypoint command failed with exit code ",
    rf"^{_BEFORE}Job entrypoint command failed with exit code (?P<code>-?\d+)", DRIVER,
    "Status message: Job entrypoint command failed with exit code 1, last available logs (truncated to 20,000 chars):",
)  # fmt: skip
"""Last output of `ray job submit`, below the job's own output."""
CUT_STATUS_MESSAGE = Signal(
    STATUS_MESSAGE.kind, "Job entrypoint command failed",
    rf"^{_BEFORE}Job entrypoint command failed(?: (?:w|wi|wit|with)(?: (?:e|ex|exi|exit)(?: (?:c|co|cod|code))?)?)?[ .…]{{0,4}}$", DRIVER,
    "Status message: Job entrypoint command failed with exi",
)  # fmt: skip
"""The same, within which a paste ends."""
OLD_STATUS_MESSAGE = Signal(
    STATUS_MESSAGE.kind, "Job failed due to an application error, last available logs",
    rf"^{_BEFORE}Job failed due to an application error, last available logs", DRIVER,
    "Status message: Job failed due to an application error, last available logs:",
)  # fmt: skip
"""Up to 2.6, without the exit code."""

UNEXPECTED = Signal(
    STATUS_MESSAGE.kind, "Status message: Unexpected error occurred: ",
    r"^Status message: Unexpected error occurred: (?P<why>[^\n]{1,300})", DRIVER,
    "Status message: Unexpected error occurred: The actor died unexpectedly before finishing this task.",
)  # fmt: skip
"""The job manager lost the job's supervisor, or could not ask for it (`job_manager.py`, 2.9 to 2.60)."""
ACCEPTED = Signal(
    "submission.accepted", " submitted successfully",
    r"^(?:[^\n']{0,60}\bSUCC cli\.py:\d{1,6} -- )?Job '(?P<submission>[^'\s]{1,100})' submitted successfully", DRIVER,
    "Job 'raysubmit_x1' submitted successfully",
)  # fmt: skip
"""Below it, `ray job submit` prints the job's own output."""

SIGNALS = (
    SUBMITTED,
    COMPLETED,
    EXITED,
    ENTRYPOINT,
    STATUS_MESSAGE,
    CUT_STATUS_MESSAGE,
    OLD_STATUS_MESSAGE,
    UNEXPECTED,
)

_SHELL = 128
"""The number that a shell adds to the signal that ended its command."""
_EVENT_SLACK = 1.0
"""Event files round down to a second."""


@dataclass(slots=True)
class Submission:
    """One submitted job."""

    id: str
    started: Event | None = None
    completed: Event | None = None
    exited: Event | None = None
    command: Event | None = None
    source: Source | None = None
    """Its `job-driver-<id>.log`."""
    jobs: list[Job] = field(default_factory=list)
    """Jobs that its program registered, usually one."""

    @property
    def status(self) -> str:
        """FAILED, SUCCEEDED, STOPPED; empty if it is running or unknown."""
        return self.completed["status"] if self.completed else ""

    @property
    def why(self) -> str:
        """The job manager's reason, if the entrypoint did not end by itself."""
        return self.completed["why"] if self.completed else ""

    @property
    def code(self) -> int | None:
        """The entrypoint's exit code."""
        return int(self.exited["code"]) if self.exited else None


def submissions(case: Case) -> list[Submission]:
    """Every submitted job in the capture, in order of time."""
    found: dict[str, Submission] = {}
    for source in sorted(case.sources, key=lambda s: s.path):
        if source.role == "job-driver":
            name = source.path.rpartition("/")[2].removeprefix("job-driver-").partition(".log")[0]
            known = found.setdefault(name, Submission(name))
            known.source = known.source or source
    for event in case.of("submission.started", "submission.completed", "submission.exited"):
        known = found.setdefault(event["submission"], Submission(event["submission"]))
        setattr(known, event.kind.rpartition(".")[2], event)
    for event in case.of("submission.entrypoint"):
        if event["submission"] in found and not found[event["submission"]].command:
            found[event["submission"]].command = event
    ordered = sorted(found.values(), key=lambda s: (_at(s.started), s.id))
    _assign_jobs(case, ordered)
    return ordered


def managers(case: Case) -> set[int]:
    """Pids of Ray's job managers, for which the GCS registers a job as for a driver."""
    return {event.pid for event in case.of(SUBMITTED.kind) if event.pid is not None}


def begun_later(case: Case) -> set[str]:
    """Jobs that began after a live collection had listed the jobs: such as its own that reaches other nodes."""
    looked = live.looked(case, "jobs")
    if looked is None or looked.at is None:
        return set()
    listed = {row["job_id"] for row in live.rows(case, "jobs")}
    jobs = case.ledger.jobs.values()
    return {j.id for j in jobs if j.id not in listed and (j.started or 0.0) > looked.at}


def unstarted(case: Case) -> list[Submission]:
    """Submissions of which no log shows that the program started or ended."""
    return [s for s in submissions(case) if s.started and _did_not_start(case, s)]


def _did_not_start(case: Case, job: Submission) -> bool:
    has_output = job.source is not None and job.source in case.endings
    over = job.exited or job.command or job.jobs or job.status in ("SUCCEEDED", "STOPPED")
    return not (has_output or over) or bool(job.why and "upervisor actor could not" in job.why)


def _at(event: Event | None) -> float:
    return event.at if event and event.at is not None else float("inf")


def _assign_jobs(case: Case, found: list[Submission]) -> None:
    """A job belongs to the submission that was running when its driver registered, if only one was."""
    of_ray = managers(case)
    for job in case.ledger.jobs.values():
        if job.started is None or job.driver_pid in of_ray:
            continue
        running = [
            s for s in found if _at(s.started) - _EVENT_SLACK <= job.started <= _at(s.completed)
        ]
        if len(running) == 1:
            running[0].jobs.append(job)


def ended_with(case: Case, worker: str) -> bool:
    """Whether a worker is the driver of a submitted job whose exit code is known."""
    job = ids.job_of_driver(worker)
    return bool(job) and any(s.code and job in [j.id for j in s.jobs] for s in submissions(case))


def signal_of(code: int) -> str:
    """The signal that an exit code means: `-9` and, from a shell, `137` are SIGKILL."""
    number = -code if code < 0 else code - _SHELL
    return signal.Signals(number).name if number in set(signal.Signals) else ""


def entrypoint(given: Needs, waiting: str = "") -> Remedy:
    """The submission with entrypoint resources that a node has; empty if unknown: then with those of the head.

    `waiting`: the job that would otherwise stay queued.
    """
    asked = {name: given[name] for name in _ENTRYPOINT if given.get(name)}
    options = " ".join(_ENTRYPOINT[name] for name in asked)
    return Remedy(
        "Request entrypoint resources that a single node has. Without a request, the program runs on the head",
        (
            *(
                (paste.shell("ray job stop {job}   # first: the job that waits", job=waiting),)
                if waiting
                else ()
            ),
            "ray job submit -- python your_script.py   # without a request: the program runs on the head",
            *(
                (
                    paste.shell(
                        f"ray job submit {options} -- python your_script.py   # or with what a node has",
                        **asked,
                    ),
                )
                if asked
                else ()
            ),
        ),
        doc=JOBS_DOC,
    )


_ENTRYPOINT = {
    "CPU": "--entrypoint-num-cpus {CPU:g}",
    "GPU": "--entrypoint-num-gpus {GPU:g}",
    "memory": "--entrypoint-memory {memory:.0f}",
}

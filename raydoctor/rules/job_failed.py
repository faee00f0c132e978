"""A job ended with an error: the report shows its exit code and its exception, or the last line that it printed.

## What you see
`ray job status` prints `FAILED` and `Job entrypoint command failed with exit code N, last available logs …`. Or a
driver that you ran yourself ends with a Python traceback. In console output the traceback may have a prefix
(`(main_task pid=12) `, `[rank0]: `); vLLM logs it below `EngineCore failed to start.` or `WorkerProc failed to start.`
raydoctor also reports this rule for an excerpt of output (`--driver-log`) that ends with a traceback and shows no other
failure, or in which Ray Tune counts failed trials (`Number of errored trials: 2`).

## Why
The exit code is that of the program: 1 after an uncaught exception or `sys.exit("…")`, and often 2 for wrong arguments.
126 means that the shell cannot run the command, and 127 that it cannot find it. -N or 128+N means that signal N ended
the program. -9 and 137 mean SIGKILL, sent by a person, the kernel's OOM killer or a container's limit.

If the output contains several tracebacks, the last one ended the program. The earlier ones were caught by the program,
are chained to the last one, or come from workers or threads. If the last one only refers to another process (`See root
cause above.`), the report shows the exception before it, as a warning.

If the capture contains no output of a driver, raydoctor reads the driver's traceback from the GCS of the running
cluster, which stores neither the exception's type nor its message. The report then names the place, and the type if the
last line is `raise X(…)`. Ctrl-C leaves the same record: if that line is a call, and not a `raise`, raydoctor reports
the driver's end only as information.

## Confirm
- `job-driver-SUBMISSION_ID.log` (`ray job logs SUBMISSION_ID`) ends with the exception.
- The supervisor's log (`worker-*.err` of the actor `_ray_internal_job_actor_SUBMISSION_ID`) contains `entrypoint
  command exited with code`.

## Fix
If the report shows another root cause, fix that first. Otherwise fix the line that the traceback names. If a signal
ended the program, find out what sent it.

## Not this when
- a user stopped the job (`STOPPED`).
- the job never started (`job-pending`).
- the driver printed a traceback and continued.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import DRIVER, HYDRA, JOB_STARTED, TRACEBACK, TRACEBACKS
from raydoctor.cluster import hosts
from raydoctor.model import ids, paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import clause, cut, join_names
from raydoctor.model.values import Event, Finding, Link, Remedy, Source, Subject
from raydoctor.rules.shared import jobs, kernel
from raydoctor.rules.shared.failures import cause_above, exception_at_end, is_certain_end, program
from raydoctor.rules.shared.live import drivers
from raydoctor.rules.shared.live import examples as sample
from raydoctor.rules.shared.setup import imports, misuse
from raydoctor.rules.shared.task_error import RETRIED, raised_by_task
from raydoctor.rules.shared.traceback import (
    BEGIN,
    FIND_TRACEBACKS,
    NO_FAILURES,
    Raised,
    TracebackFrame,
    cut_off,
    parse,
)

_LONGEST = 160
_LONGEST_SAID = 400
_SENTENCE = 3
"""Blanks in the shortest message that says what to change; others only name a key or a file."""
_PENDING = ("Job supervisor actor could not be scheduled", "Job supervisor actor failed to start")
_NO_ENVIRONMENT = "runtime_env setup failed"
_CODE_MEANINGS = {
    126: "the shell cannot run the command",
    127: "the shell cannot find the command",
    2: "often wrong arguments",
}
_OF_WORKERS = Remedy(
    "Find the first exception of the process that failed: it is in its own output, above this one",
    (
        "grep -n -e 'failed to start' -e 'Error: ' /tmp/ray/session_latest/logs/worker-*.err   # on each node",
    ),
)
_ONLY_KERNEL_LOG = "only this log shows whether the kernel's OOM killer sent the SIGKILL"


_ERRORED = (
    Signal(
        "trials.errored", "Number of errored trials: ", r"^.{0,8}?Number of errored trials: (?P<count>[1-9]\d{0,8})\b", DRIVER,
        "Number of errored trials: 2",
    ),
    Signal(
        "trials.errored", "Number of trials: ", r"^Number of trials: \d{1,9}[^\n(]{0,60}(?:\(requested[^)\n]{0,60}\) )?\((?:\d{1,9} [A-Z]{3,12}, ){0,6}(?P<count>[1-9]\d{0,8}) ERROR\b",
        DRIVER, "Number of trials: 29 (8 ERROR, 1 RUNNING, 20 TERMINATED)",
    ),
    Signal(
        "trials.errored", "Trial status: ", r"^Trial status: (?:\d{1,9} [A-Z]{3,12} \| ){0,6}(?P<count>[1-9]\d{0,8}) ERROR\b", DRIVER,
        "Trial status: 7 TERMINATED | 1 ERROR",
    ),
)  # fmt: skip
"""Tune's reports (`tune/progress_reporter.py`, 0.8 to 2.60, and `tune/experimental/output.py`, 2.5 and later)."""
_NO_SCRIPT = Signal(
    "program.no_script", ": can't open file '", r"^(?:\S{0,300}[/\\ ])?python[\d.]{0,6}(?:\.exe)?: can't open file '(?P<file>[^'\n]{1,400})': \[Errno \d{1,3}\] (?P<why>[^\n]{1,80})",
    DRIVER, "python: can't open file '/home/me/trian.py': [Errno 2] No such file or directory",
)  # fmt: skip
"""What Python prints instead of starting a program."""
_ERROR_FILE = Signal(
    "trials.error_file", "error.txt", r"^[|│ ]{1,8}(?P<trial>[\w.-]{1,200})[ |│]{1,40}\d{1,9}(?P<passed>\*?)[ |│]{1,40}(?P<file>/\S{1,400}/error\.txt)\b", DRIVER,
    "| fit_5c8f1_00003 |            1 | /home/me/ray_results/fit/fit_5c8f1_00003/error.txt |",
)  # fmt: skip
"""A row of Tune's table of failed trials; the star marks one that succeeded when Tune retried it."""

_CRASHED = Signal(
    "simulation.crashed", "simulation crashed :(", r"^(?:ERROR ?:? {1,9})?Your simulation crashed :\(", DRIVER,
    "ERROR :     Your simulation crashed :(. This could be because of several reasons. The most common are:", symptom=True,
)  # fmt: skip
"""Flower's message for any exception of a simulation on Ray (`simulation/app.py`, 1.5 to 1.20); its list names no cause."""
_SKYPILOT = (
    Signal(
        "skypilot.failed", "Job finished (status: FAILED", r"(?:^|[✓✗⨯] ?)Job finished \(status: (?P<status>FAILED(?:_[A-Z]{2,12}){0,2})\)", DRIVER,
        "✓ Job finished (status: FAILED_DRIVER).",
    ),
    Signal(
        "skypilot.failed", " failed with return code list:",
        r"^(?:ERROR: )?Job (?P<job>\d{1,9})(?P<setup>'s setup)? failed with return code list:\s{0,4}\[(?P<codes>-?\d{1,4}(?:, -?\d{1,4}){0,999})\]", DRIVER,
        "ERROR: Job 3 failed with return code list: [1]",
    ),
    Signal(
        "skypilot.failed", " is already in terminal state FAILED",
        r"^(?:Managed )?[Jj]ob (?P<job>\d{1,9}) is already in terminal state (?P<status>FAILED(?:_[A-Z]{2,12}){0,2})\b", DRIVER,
        "Job 68 is already in terminal state FAILED_CONTROLLER. For more details, run: sky jobs logs --controller 68",
    ),
)  # fmt: skip
"""SkyPilot's end of a job, which a program of Ray runs on its cluster (`skylet/job_lib.py`, `skylet/log_lib.py`, `jobs/utils.py`, 0.3 to 0.11)."""
_OF_SKYPILOT = {
    "FAILED_DRIVER": "the program of Ray that runs the job ended before the job did",
    "FAILED_SETUP": "its setup commands failed",
    "FAILED_PRECHECKS": "its checks before the start failed",
    "FAILED_NO_RESOURCE": "no cloud had the machine that it asks for",
    "FAILED_CONTROLLER": "its controller failed",
}
_NO_RAY = Signal(
    "program.no_ray", "Failed to start ra",
    r"(?:^|[|:\]] ?)Failed to start ra(?:y(?: (?:head|worker|cluster|node|service)\b[^\n]{0,200})?)?[.!… ]{0,4}$", DRIVER,
    "Failed to start ray",
)  # fmt: skip
"""What a program logs (SecretFlow's `entry.py`) whose `ray start` failed; a paste may end within it."""
_SEVERE = pattern(r"\b(?:CRITICAL|FATAL|ERROR)\b")
_NOT_STARTED = Signal(
    "trials.not_started", "ing runner", r"^Error (?:starting|stopping) runner\b(?: for Trial (?P<trial>[\w.-]{1,200}))?", DRIVER,
    "Error starting runner for Trial fit_5c8f1_00003",
)  # fmt: skip
"""Tune's message above the exception for which it could not start a trial (`tune/ray_trial_executor.py`, 0.5 to 2.6)."""


@rule(
    tier="symptom",
    severity="error",
    rank=95,
    explains=("job", "process", "program", "submission", "worker"),
    caused_by=(
        "daemon",
        "dashboard",
        "gcs",
        "host",
        "job",
        "process",
        "raylet",
        "runtime-env",
        "task-error",
        "waiting",
        "worker",
    ),
    fallback=True,
    looks_for=(
        *jobs.SIGNALS,
        *JOB_STARTED,
        RETRIED,
        *_ERRORED,
        _ERROR_FILE,
        _NO_SCRIPT,
        _CRASHED,
        *_SKYPILOT,
        _NOT_STARTED,
        _NO_RAY,
        TRACEBACK,
    ),
)
def job_failed(case: Case) -> Iterator[Finding]:
    """One finding per submitted job that failed, and one per program that its own exception ended."""
    covered: set[Source] = set()
    for submission in jobs.submissions(case):
        if submission.source and submission.status:
            covered.add(submission.source)
        failed = submission.status == "FAILED" or bool(submission.code and not submission.status)
        if failed and not submission.why.startswith(_PENDING):
            copies = _copies(case, submission)
            covered |= {each.source for each in copies}
            yield _of_submission(case, submission, copies)
    if not covered and (ends := case.of("submission.status")):
        yield _of_status_message(case, ends[-1])
        covered.add(ends[-1].source)
    known = {submission.id for submission in jobs.submissions(case)}
    for record in case.of("kube.job"):
        if record["reason"] == "AppFailed" and record["submission"] not in known:
            yield _of_rayjob(record)
    for source, ending in sorted(case.endings.items(), key=lambda item: item[0].path):
        if source not in covered and (finding := _of_program(case, ending)):
            yield finding
    yield from _of_drivers(case, known)
    missing = [e for e in case.of(_NO_SCRIPT.kind) if e.source not in covered]
    if not case.accounted and missing:
        yield from _of_missing_script(case, missing[-1])
    if not case.accounted and (errored := case.of(_ERRORED[0].kind)):
        yield from _of_trials(case, errored)
    if not case.accounted:
        yield from _of_libraries(case)


# ---------------------------------------------------------------- submitted jobs


def _copies(case: Case, job: jobs.Submission) -> list[Event]:
    """Ends of other outputs with the job's traceback, in full: the program that submitted it printed its message."""
    ending = case.endings.get(job.source) if job.source else None
    raised = exception_at_end(ending) if ending else None
    others = [e for e in case.endings.values() if e is not ending]
    return [e for e in others if raised and raised.frames and exception_at_end(e) == raised]


def _of_submission(case: Case, job: jobs.Submission, copies: Sequence[Event]) -> Finding:
    ending = case.endings.get(job.source) if job.source else None
    raised = parse(ending.text) if ending and ending["ended_by"] else None
    inside = [*(_inside(case, ending) if ending else ()), *_environment(case, job)]
    inside += chain.from_iterable(_inside(case, each) for each in copies)
    first = job.completed or job.exited
    assert first is not None
    links = [Link(first, f"job {job.id!r} ended: {_how(job)}")]
    links += (
        [Link(job.exited, "the job's supervisor recorded the exit code")]
        if job.exited and job.completed
        else []
    )
    links += [Link(ending, "the job's output ends here")] if ending and not job.why else []
    causes = [entity for event in inside for entity in case.explained_with(event)]
    return Finding(
        f"Job {job.id!r}{_command(job)} failed{_how_it_ended(job, raised, ending)}",
        tuple(links),
        explains=(Entity("submission", job.id), *evidence.exit_entities(_drivers(case, job))),
        caused_by=(*causes, *_lost_with(case, job)),
        subjects=(Subject("job", job.id, job.command["command"] if job.command else None),),
        remedies=tuple(_remedies(job, raised, bool(causes))),
        covers=(*inside, *evidence.exit_events(_drivers(case, job))),
        gaps=kernel.gaps(case, "the job's node", _ONLY_KERNEL_LOG) if _killed(job) else (),
    )


def _drivers(case: Case, job: jobs.Submission) -> list[WorkerExit]:
    """Exits of the job's own drivers that no other finding explains: the exit code is theirs."""
    found = [case.exit_of(ids.driver_of_job(each.id)) for each in job.jobs] if job.code else []
    return [e for e in found if e and not e.expected and not case.is_explained(*e.entities)]


def _environment(case: Case, job: jobs.Submission) -> list[Event]:
    """Records of the runtime environment agent, if the job failed because its environment failed."""
    if not job.why.startswith(_NO_ENVIRONMENT):
        return []
    return [e for e in case.events if e.source.role == "runtime-env-agent"]


def _how(job: jobs.Submission) -> str:
    return job.status or f"its entrypoint exited with code {job.code}"


def _command(job: jobs.Submission) -> str:
    return f" ({_cut(job.command['command'])})" if job.command else ""


def _how_it_ended(job: jobs.Submission, raised: Raised | None, ending: Event | None) -> str:
    if job.why:
        return f": {_cut(evidence.last_line(job.why.partition(chr(10))[0]))}"
    code = ""
    if job.code is not None:
        meaning = jobs.signal_of(job.code) or _CODE_MEANINGS.get(job.code, "")
        code = f" with exit code {job.code}" + (f" ({meaning})" if meaning else "")
    if raised:
        return f"{code}: {_what(raised, raised_by_task(ending.text) if ending else '')}"
    last = evidence.last_words(ending.text) if ending else ""
    return f"{code}, and its last line is: {_cut(last)}" if last else code


def _what(raised: Raised, of_task: str = "") -> str:
    """The exception and the innermost named function of user code. Ray's exceptions have rules of their own.

    `of_task`: the class of the exception of a task that Ray's own one passes on.
    """
    where = _at(raised)
    if not raised.type:
        first = raised.first
        is_chained = first is not raised and not first.is_rays_own
        after = f", after {_cut(str(first))}" if is_chained else ""
        return f"an exception that the console cut off{where}{after}"
    if raised.is_rays_own:
        is_passed_on = of_task and raised.name == "RayTaskError"
        kind = f"{of_task} from a task" if is_passed_on else raised.name
        return f"its program got {kind}{where}"
    first = raised.first
    source = f", after {_cut(str(first))}" if first is not raised and not first.is_rays_own else ""
    return f"{_cut(str(raised))}{where}{source}"


def _place(raised: Raised) -> TracebackFrame | None:
    frames = raised.frames[1:] if raised.command else raised.frames
    named = [f for f in frames if f.is_user_code and not f.function.startswith("<")]
    return named[-1] if named else raised.place


def _cut(text: str) -> str:
    return cut(text, _LONGEST)


def _killed(job: jobs.Submission) -> bool:
    return job.code is not None and jobs.signal_of(job.code) == "SIGKILL"


def _lost_with(case: Case, job: jobs.Submission) -> Iterator[Entity]:
    """Components whose end would end the job: its driver, its supervisor, their node, the GCS."""
    for driver in job.jobs:
        yield from (Entity("job", driver.id), Entity("worker", ids.driver_of_job(driver.id)))
        if driver.driver_pid is not None:
            yield from (
                Entity("process", f"{ip}/{driver.driver_pid}")
                for ip in case.ledger.node_ips.values()
            )
    for event in (job.completed, job.exited):
        if event and job.why:
            yield from event.entities
    yield Entity("gcs", "gcs")


def _inside(case: Case, ending: Event) -> list[Event]:
    """Events in the traceback that ended a program, and the record that its first or last line is part of."""

    def is_in(event: Event) -> bool:
        if ending["ended_by"] and event.offset >= ending.offset:
            return True
        return event.line <= ending.line <= event.line + event.text.count("\n")

    of_program = (e for e in case.events if not e.kind.startswith("submission."))
    return [e for e in of_program if e.source is ending.source and is_in(e)]


# ---------------------------------------------------------------- programs without a submission


def _of_status_message(case: Case, message: Event) -> Finding:
    code = int(message["code"]) if message["code"] else None
    name = jobs.signal_of(code) if code is not None else ""
    how = "because its command failed" if code is None else f"with exit code {code}"
    how = f"because Ray lost its supervisor: {clause(message['why'])}" if message["why"] else how
    ending = case.endings.get(message.source)
    raised = exception_at_end(ending) if ending else None
    inside = [e for e in case.of("driver.exception", "log.traceback") if e.source is message.source]
    last = evidence.last_words(ending.text) if ending and ending.line > message.line else ""
    said = (
        f": {_what(raised)}" if raised else f", and its last line is: {_cut(last)}" if last else ""
    )
    return Finding(
        f"The submitted job failed {how}" + (f" ({name})" if name else "") + said,
        (
            Link(message, "ray job submit printed the status of the job"),
            *((Link(ending, "the job's output ends here"),) if ending else ()),
        ),
        explains=(Entity("submission", ""),),
        caused_by=tuple(entity for event in inside for entity in case.explained_with(event)),
        remedies=(
            *(
                _fix_place(raised)
                if raised and not (raised.is_rays_own or raised.is_elsewhere)
                else ()
            ),
            Remedy(
                "Read the job's whole output", ("ray job logs SUBMISSION_ID",), doc=jobs.JOBS_DOC
            ),
        ),
        covers=tuple(inside),
    )


def _of_rayjob(record: Event) -> Finding:
    """A RayJob whose entrypoint failed, if only KubeRay's status is left: its message holds the end of the output."""
    last = f", and its last line is: {_cut(record['last_words'])}" if record["last_words"] else ""
    return Finding(
        f"RayJob {record['name']} failed: its entrypoint ended with an error{last}",
        (Link(record, "KubeRay's status of the job"),),
        explains=(Entity("submission", record["submission"] or record["name"]),),
        caused_by=(hosts.entity("head"),),
        subjects=(Subject("job", record["submission"] or None, record["name"]),),
        remedies=(
            Remedy(
                "Read the end of the job's output, which KubeRay kept",
                (
                    paste.shell(
                        "kubectl get rayjob {name} -n {namespace} -o jsonpath='{{.status.message}}'",
                        name=record["name"],
                        namespace=record["namespace"] or "default",
                    ),
                ),
                doc=jobs.JOBS_DOC,
            ),
        ),
    )


def _of_program(case: Case, ending: Event) -> Finding | None:
    """A program that its own exception ended, unless another finding already accounts for it."""
    raised = exception_at_end(ending)
    if raised is None or raised.name in NO_FAILURES:
        is_hydras = raised is None and ending.text.startswith(HYDRA) and ending.source.is_excerpt
        return _of_hydra(case, ending) if is_hydras and not case.accounted else None
    if raised.is_rays_own or raised.name == "RayTaskError":
        return (_of_rays_own if raised.is_rays_own else _of_task)(case, ending, raised)
    inside = _inside(case, ending)
    is_certain = is_certain_end(ending)
    is_known = is_certain and (bool(raised.type) or _is_start_up(raised))
    is_away = not raised.type and any(entity.kind == "gcs-away" for entity in case.explained)
    is_told = (
        is_away
        or any(case.is_accounted_for(e) for e in inside)
        or (case.accounted and not is_known)
    )
    if is_told or _is_retried(case, ending) or _is_consequence(case, ending):
        return None
    above = None if raised.type else cause_above(case, ending, within=_NEAR)
    if above or raised.is_elsewhere:
        return (
            _of_cut_program(case, ending, raised, above)
            if above
            else _of_other_process(case, ending, raised)
        )
    if not (raised.type or is_certain) and (logged := _logged_above(case, ending)):
        return _of_logged(ending, raised, *logged)
    name = ending.source.path.rpartition("/")[2]
    headline = f"{_program(raised)} ended with" if is_certain else "The console ends with"
    return Finding(
        f"{headline} {_what(raised)}",
        (
            Link(
                ending,
                f"{name} ends {_how_output_ends(ending, raised)}",
                raised.code,
            ),
        ),
        explains=(program(ending),),
        severity=None if is_certain else "warning",
        caused_by=(
            *(_START_UP if _is_start_up(raised) else ()),
            *(_WAITS if _is_own_timeout(raised) else ()),
        ),
        remedies=tuple(_fix_place(raised)),
        covers=tuple(inside),
    )


_ERROR_LINE = pattern(r"(?:.*?\b(?:ERROR|CRITICAL)\b[\]|: -]{1,4})?(?P<said>[^\n]*: \S[^\n]*)$")


def _logged_above(case: Case, ending: Event) -> tuple[Event, str] | None:
    """The line at the level of an error right above a traceback, which a logger printed with the text of the exception."""
    for event in case.of("log.error", "log.failure"):
        said = _ERROR_LINE.match(event.message.partition("\n")[0])
        if said and event.source is ending.source and event.line == ending.line - 1:
            return event, said["said"]
    return None


def _of_logged(ending: Event, raised: Raised, event: Event, said: str) -> Finding:
    """An exception that the program caught and logged, with a traceback within which a console ends."""
    return Finding(
        f"The program logged an error and may have gone on: {_cut(said)}{_at(raised)}",
        (
            Link(event, "the program's logger prints the text of the exception"),
            Link(ending, "the console ends within its traceback", raised.code),
        ),
        explains=(program(ending),),
        severity="warning",
        remedies=(
            Remedy("Read the output below this traceback: it shows whether the program went on"),
        ),
        covers=(event,),
    )


def _how_output_ends(ending: Event, raised: Raised) -> str:
    if not raised.type:
        return "within this traceback"
    if not is_certain_end(ending):
        return "with this line"
    nothing = "" if ending.source.is_excerpt else ", and the program printed nothing after it"
    return f"with this traceback{nothing}"


def _of_cut_program(
    case: Case, ending: Event, raised: Raised, above: tuple[Event, Raised]
) -> Finding:
    """A traceback that a console cuts off, below the exception that led to it: no other output is between them."""
    event, before = above
    return Finding(
        f"The program printed {_what(before)}, and the console ends within the traceback below it",
        (
            Link(event, "the last exception that the console shows", before.code),
            Link(ending, "the console ends within this traceback", raised.code),
        ),
        explains=(program(ending),),
        severity=None if is_certain_end(ending) else "warning",
        remedies=(*_fix_place(before),) or (*_fix_place(raised),),
        covers=(*_inside(case, ending), *_alike(case, event, before)),
    )


def _alike(case: Case, event: Event, raised: Raised) -> Iterator[Event]:
    """The records of an exception in the output of an event."""
    for each in case.of(*TRACEBACKS, "log.error"):
        if each.source is event.source and str(parse(f"{BEGIN}\n{each.message}")) == str(raised):
            yield each


def _of_task(case: Case, ending: Event, raised: Raised) -> Finding | None:
    """A program that got a task's exception, of which a notebook's console has the heading alone."""
    if case.accounted:
        return None
    found = _FROM_TASK.search(ending.text)
    kind = found["kind"] if found else "an exception"
    return Finding(
        f"A task raised {kind}, and the driver program got it{_at(raised)}; the console has no line of the task",
        (Link(ending, "this traceback is the driver's; that of the task is not in the console", raised.code),),
        explains=(program(ending),),
        severity=None if is_certain_end(ending) else "warning",
        remedies=(
            Remedy(
                "Read the rest of this exception where the program ran: below its line with ray::, it names the task, its process and the line that raised"
            ),
        ),
        covers=tuple(_inside(case, ending)),
    )  # fmt: skip


def _of_hydra(case: Case, ending: Event) -> Finding:
    """A program of hydra's whose console ends above the exception."""
    return Finding(
        "The driver program ended with an exception that the console cut off",
        (Link(ending, "hydra reports that the program failed, and the console ends above the traceback"),),
        explains=(program(ending),),
        severity="warning",
        remedies=(
            Remedy(
                "Read the traceback below this line in the program's output, with hydra's frames",
                ("export HYDRA_FULL_ERROR=1   # before the program starts",),
            ),
        ),
        covers=tuple(_inside(case, ending)),
    )  # fmt: skip


def _of_rays_own(case: Case, ending: Event, raised: Raised) -> Finding | None:
    """A program that one of Ray's exceptions ended, if no other rule knows the exception: its message says why."""
    is_cut = not raised.message and ending.source.is_excerpt
    if case.accounted or not is_certain_end(ending) or not (raised.message or is_cut):
        return None
    said = ", whose message the console cut off" if is_cut else ""
    return Finding(
        f"{_program(raised)} ended with {_cut(str(raised))}{_at(raised)}{said}",
        (Link(ending, "the program ends with an exception of Ray", raised.code),),
        explains=(program(ending),),
        severity="warning",
        remedies=(_CLOSED,)
        if raised.name == "RayChannelError"
        else (_READ_MESSAGE,)
        if is_cut
        else (),
        covers=tuple(_inside(case, ending)),
    )


_READ_MESSAGE = Remedy(
    "Read the message of this exception where the program ran: Ray's message names the cause"
)
_CLOSED = Remedy(
    "Find the actor of the compiled graph that ended or raised first: its end closes the channels of the others",
    (
        "ray list actors --detail   # states and causes of death",
        "grep -n -e 'Traceback' -e 'Error: ' /tmp/ray/session_latest/logs/worker-*.err   # on each node",
    ),
    finds_cause=True,
)


def _of_other_process(case: Case, ending: Event, raised: Raised) -> Finding:
    """A program that ended because another of its processes failed: the exception of that process, if it is shown."""
    above = cause_above(case, ending)
    causes = (
        e for e in case.events if e.source is ending.source and e.line < ending.line
    )  # fmt: skip
    what = (
        f"after {_what(above[1])}"
        if above
        else f"with {_what(raised)}; the exception that it refers to is not in this output"
    )
    return Finding(
        f"{_program(raised)} ended {what}",
        (
            *(
                (Link(above[0], "the last exception of another process", above[1].code),)
                if above
                else ()
            ),
            Link(ending, "the program ends with an exception that only refers to another process"),
        ),
        explains=(program(ending),),
        severity="warning",
        caused_by=tuple(dict.fromkeys(x for e in causes for x in case.explained_with(e))),
        remedies=() if above else (_OF_WORKERS,),
        covers=(*_inside(case, ending), *((above[0],) if above else ())),
    )


def _program(raised: Raised) -> str:
    """`The driver program`, the engine of vLLM, or the installed command whose script the traceback begins with."""
    if any(frame.function == "run_engine_core" for frame in raised.frames[:3]):
        return "The engine process of vLLM"
    return f"The command {raised.command}" if raised.command else "The driver program"


def _is_retried(case: Case, ending: Event) -> bool:
    """Whether the lines are the end of a record in which Ray announces that it will retry the task."""
    return any(
        e.source.path == ending.source.path and e.line <= ending.line <= e.line + e.text.count("\n")
        for e in case.of(RETRIED.kind)
    )


_LINK = 5
"""Lines from an exception to the traceback of the next one in its chain."""


def _is_consequence(case: Case, ending: Event) -> bool:
    """Whether the exception was raised while another one was handled that a finding explains."""
    above = (
        e
        for e in case.events
        if e.source is ending.source and 0 < ending.line - e.line - e.text.count("\n") <= _LINK
    )
    return bool(ending["is_chained"]) and any(map(case.is_accounted_for, above))


_START_UP = (
    Entity("gcs", "gcs"),
    Entity("daemon", "gcs_server"),
    Entity("raylet", "local"),
    Entity("dashboard", "head"),
)
_WAITS = (Entity("waiting", "cluster"),)
_FROM_TASK = pattern(r"\bRayTaskError\((?P<kind>\w{1,100})\)")
_TIME_LIMIT = pattern(
    r"(?i)time(?:d[ -]?|-)?out|\bstill (?:pending|waiting|not)\b"
    r"|\b(?:not|never) (?:become |became |get |got )?(?:ready|scheduled|placed)\b"
)


def _is_own_timeout(raised: Raised) -> bool:
    """Whether a `raise` of the program itself reports that something did not become ready in time."""
    last = raised.frames[-1] if raised.frames else None
    is_own = last is not None and last.is_user_code and last.code.startswith("raise ")
    return is_own and not raised.cause and _TIME_LIMIT.search(str(raised)) is not None


_STARTS = ("ray/_private/node.py", "ray/scripts/scripts.py")


def _is_start_up(raised: Raised) -> bool:
    """Whether Ray's own code raised it, in its command or while it started the processes of a node."""
    return any(frame.file.replace("\\", "/").endswith(_STARTS) for frame in raised.frames)


def _of_missing_script(case: Case, event: Event) -> Iterator[Finding]:
    """An entrypoint whose file does not exist where the program starts."""
    if event.source.is_excerpt and not evidence.later_output(case, event):
        yield Finding(
            f"The program did not start: Python cannot open {event['file']} ({event['why'].strip()})",
            (Link(event, "Python reports that it cannot open the file"),),
            explains=(Entity("program", event.source.path),),
            severity="warning",
            remedies=(
                Remedy(
                    "Correct the path: a job's entrypoint starts in its working_dir, or in the home folder of the container without one",
                    ("ray job submit --working_dir . -- python train.py   # the path inside working_dir",),
                    doc=jobs.JOBS_DOC,
                ),
            ),
            covers=(event,),
        )  # fmt: skip


def _of_trials(case: Case, errored: list[Event]) -> Iterator[Finding]:
    """Trials that Tune counts as failed, if the console shows nothing of their exceptions."""
    last = errored[-1]
    rows = [e for e in case.of(_ERROR_FILE.kind) if e.source is last.source]
    failed = [e for e in rows if not e["passed"]]
    if not last.source.is_excerpt or (rows and not failed):
        return
    yield Finding(
        f"{evidence.many(int(last['count']), 'trial')} of Ray Tune failed, and the console does not show why",
        (
            Link(last, "Tune counts the failed trials"),
            *(Link(e, f"the exception of trial {e['trial']} is in this file") for e in failed[:1]),
        ),
        explains=(Entity("job", "trials"),),
        count=int(last["count"]),
        severity="warning",
        remedies=(
            Remedy(
                "Read the exception of a failed trial in its folder",
                tuple(paste.shell("cat {file}", file=e["file"]) for e in failed[:1])
                or ("cat ~/ray_results/*/*/error.txt   # or below storage_path",),
            ),
        ),
        covers=(*errored, *rows),
    )


_NEAR = 3
"""Lines from a message down to its traceback."""


def _of_libraries(case: Case) -> Iterator[Finding]:
    """Failures that Tune or Flower announces, in an excerpt that shows no more: Tune logs the exception below."""
    for event in case.of(_NOT_STARTED.kind)[:1]:
        below = [
            e
            for e in case.of(TRACEBACK.kind)
            if e.source is event.source
            and 0 < e.line - event.line <= _NEAR
            and event.source.is_excerpt
        ]
        raised = (parse(below[0].message) or cut_off(below[0].message)) if below else None
        if raised and not raised.is_rays_own:
            trial = f" trial {event['trial']}" if event["trial"] else " a trial"
            yield Finding(
                f"Ray Tune could not start{trial}: {_what(raised)}",
                (
                    Link(
                        event,
                        "Tune logs the exception for which the trial did not start",
                        raised.code,
                    ),
                ),
                explains=(Entity("job", "trials"),),
                severity="warning",
                remedies=tuple(_fix_place(raised)),
                covers=(*case.of(_NOT_STARTED.kind), *below),
            )
            return
    refused = [e for e in case.of(_NO_RAY.kind) if e.level or _SEVERE.search(e.text)]
    if refused and refused[-1].source.is_excerpt and not evidence.later_output(case, refused[-1]):
        yield _of_ray_start(refused)
    if failed := [e for e in case.of(_SKYPILOT[0].kind) if e.source.is_excerpt]:
        yield _of_skypilot(failed)
    for event in case.of(_CRASHED.kind)[:1]:
        if event.source.is_excerpt:
            yield Finding(
                "A simulation of Flower on Ray crashed, and the output shows only Flower's general guesses",
                (Link(event, "Flower reports that the simulation raised an exception"),),
                explains=(Entity("job", "simulation"),),
                severity="warning",
                remedies=(
                    Remedy(
                        "Read the exception of the client: it is above this message in the whole output, or in Ray's logs",
                        (FIND_TRACEBACKS,),
                    ),
                ),
                covers=tuple(case.of(_CRASHED.kind)),
            )


def _of_ray_start(failed: list[Event]) -> Finding:
    """A program whose `ray start` failed, if the output does not show why."""
    return Finding(
        "The program could not start Ray on this machine, and the output does not show why `ray start` failed",
        (Link(failed[-1], "the program reports that Ray did not start"),),
        explains=(program(failed[-1]),),
        caused_by=_START_UP,
        severity="warning",
        remedies=(
            Remedy(
                "Run the same command by hand: it prints why it fails, also for an address that is not this machine's",
                (
                    "ray start --head --block   # plus the options that the program passes, such as --node-ip-address",
                    "tail -n 50 /tmp/ray/session_latest/logs/gcs_server.out /tmp/ray/session_latest/logs/raylet.out",
                ),
            ),
        ),
        covers=tuple(failed),
    )  # fmt: skip


def _of_skypilot(failed: list[Event]) -> Finding:
    """A job of SkyPilot that failed, if the output shows no more."""
    last = failed[-1]
    status = next((e["status"] for e in failed if e["status"]), "")
    codes = next((e for e in failed if e["codes"]), None)
    number = next((e["job"] for e in failed if e["job"]), "")
    why = _OF_SKYPILOT.get(status, "its commands failed")
    if codes:
        why = f"{'its setup' if codes['setup'] else 'its commands'} ended with {'exit code' if codes['codes'].isdecimal() else 'exit codes'} {codes['codes']}"
    return Finding(
        f"Job{f' {number}' if number else ''} of SkyPilot failed{f' ({status})' if status else ''}: {why}, and the output does not show the reason",
        (Link(last, "SkyPilot reports the end of the job"),),
        explains=(Entity("job", f"skypilot {number}"),),
        severity="warning",
        remedies=(
            Remedy(
                "Read the job's whole log, and the log of the program that ran it",
                (
                    "sky logs NAME JOB   # NAME: the cluster. All files: sky logs --sync-down NAME JOB",
                    "sky jobs logs --controller JOB   # of a managed job",
                ),
            ),
        ),
        covers=tuple(failed),
    )  # fmt: skip


# ---------------------------------------------------------------- drivers whose output is missing


def _of_drivers(case: Case, known: set[str]) -> Iterator[Finding]:
    """One finding per place where the GCS records that an exception ended a driver, if no output shows it.

    `known`: submissions with records of their own.
    """
    shown = {
        place[:2]
        for ending in case.endings.values()
        if (raised := exception_at_end(ending)) and (place := raised.place)
    }
    found = [
        end
        for end in drivers.ends(case)
        if end.submission not in known
        and (place := end.raised.place) is not None
        and place[:2] not in shown
    ]
    for ends in evidence.grouped(found, lambda e: (e.raised.place, e.raised.type)).values():
        yield _of_driver(case, ends)


def _of_driver(case: Case, ends: Sequence[drivers.DriverEnd]) -> Finding:
    last = ends[-1]
    causes = _causes(case, last) if last.is_passed_on else ()
    of_ray_get = "as_instanceof_cause" in last.raised.frames[-1].code
    what = (
        last.raised.name
        or ("the error of a failed task, which ray.get raised" if of_ray_get else "")
        or ("an exception" if last.is_error else "an exception or Ctrl-C (Ray records both alike)")
    )
    known = "" if last.raised.type else ", without the type of its exception"
    explained = [
        (Entity("job", end.job), Entity("worker", ids.driver_of_job(end.job))) for end in ends
    ]
    return Finding(
        f"{_drivers_of(ends)} ended with {what}{_at(last.raised)}",
        (Link(last.event, f"the GCS keeps the driver's traceback{known}", last.raised.code),),
        explains=tuple(chain.from_iterable(explained)),
        caused_by=causes,
        severity=None if last.is_error else "info",
        subjects=tuple(Subject("job", end.job, None, end.pid) for end in ends[:10]),
        count=len(ends),
        remedies=() if causes else tuple(_fix_place(last.raised)),
        covers=tuple(end.event for end in ends),
    )


def _drivers_of(ends: Sequence[drivers.DriverEnd]) -> str:
    """`The driver of job 2 (pid 5)`, `3 drivers (jobs 2, 3 and 4)`."""
    numbers = join_names([str(ids.job_number(end.job)) for end in ends])
    if len(ends) > 1:
        return f"{len(ends)} drivers (jobs {numbers})"
    pid = f" (pid {ends[0].pid})" if ends[0].pid else ""
    return f"The driver of job {numbers}{pid}"


def _at(raised: Raised) -> str:
    place = _place(raised)
    if place is None:
        return ""
    return f", in {place}" if not place.function.startswith("<") else f", at {place.place}"


def _causes(case: Case, end: drivers.DriverEnd) -> tuple[Entity, ...]:
    """What explains failures of the driver's tasks and actors, and the workers of its failed tasks."""
    found: dict[Entity, None] = {}
    for event in case.events:
        if any(_job_of(entity) == end.job for entity in event.entities):
            found |= dict.fromkeys(case.explained_with(event))
            if event.kind == "live.tasks" and event["state"] == "FAILED":
                found |= dict.fromkeys(e for e in event.entities if e.kind == "worker")
    return tuple(found)


def _job_of(entity: Entity) -> str:
    match entity.kind:
        case "job":
            return entity.value
        case "task":
            return ids.job_of_task(entity.value)
        case "actor":
            return ids.job_of_actor(entity.value)
    return ""


# ---------------------------------------------------------------- remedies


def _remedies(job: jobs.Submission, raised: Raised | None, explained: bool) -> Iterator[Remedy]:
    if explained:
        return
    if raised and not raised.is_rays_own:
        yield from _fix_place(raised)
    elif _killed(job):
        yield Remedy(
            "Find out what sent the SIGKILL: the kernel's OOM killer, a container's limit or a person",
            (
                "sudo dmesg -T | grep -iE 'killed process|out of memory'",
                "kubectl describe pod POD | grep -A3 'Last State'",
            ),
            finds_cause=True,
        )
    elif job.code == 127:
        yield Remedy(
            "Submit a command that exists on the node where the entrypoint runs (usually the head)",
            ("ray job submit --working-dir . -- python your_script.py",),
            doc=jobs.JOBS_DOC,
        )
    yield Remedy(
        "Read the job's whole output",
        (paste.shell("ray job logs {submission}", submission=job.id),),
        doc=jobs.JOBS_DOC,
    )


def _fix_place(raised: Raised) -> Iterator[Remedy]:
    if not raised.type:
        yield Remedy(
            "Read the end of this traceback in the program's output: it names the exception"
        )
    elif raised.name == "ModuleNotFoundError" and (module := _MODULE.search(raised.message)):
        yield _install(module["name"], module["extra"])
    elif file := _shadow(raised):
        yield Remedy(
            f"Rename {file}: Python imports it in place of the module of that name",
            ("rm -rf __pycache__   # in its folder, after you have renamed it",),
        )
    elif misused := misuse.in_driver(raised):
        yield misused
    elif place := _place(raised):
        if place.is_user_code:
            in_function = place.function not in ("", "<module>")
            where = str(place) if in_function else f"line {place.line} of {place.short_file}"
            if not raised.frames[-1].is_rays:
                yield Remedy(f"Fix {where}, which raises {raised.name}")
            elif raised.message.count(" ") < _SENTENCE:
                yield Remedy(f"Check what {where} passes to Ray, which raises {raised.name}")
            else:
                said = cut(raised.message, _LONGEST_SAID)
                yield Remedy(f"Change what {where} passes to Ray. Ray says: {said}")
        else:
            yield Remedy(f"Check what the program passes to {place}: it raises {raised.name}")


_LOADERS = ("runpy", "importlib")
"""Modules that load a program by its file's name."""
_PARTLY = pattern(r"partially initialized module '(?P<name>\w{1,100})'")


def _shadow(raised: Raised) -> str:
    """The program's file that hides a module of the same name: a library imports it, or it imports itself."""
    partly = _PARTLY.search(raised.message)
    for above, frame in pairwise(raised.frames):
        stem = frame.short_file.removesuffix(".py")
        is_own = (
            frame.is_user_code and frame.function == "<module>" and imports.LIKELY.fullmatch(stem)
        )
        by_library = not above.is_user_code and not any(w in above.file for w in _LOADERS)
        if is_own and (by_library or (partly and partly["name"] == stem)):
            return frame.file
    return ""


_MODULE = pattern(
    r"No module named '(?P<name>[\w.]{1,200})'(?:.{0,40}pip install \"(?P<extra>ray\[[\w,-]{1,40}\])\")?"
)
"""Ray adds the extra that a library of its own needs (Ray Serve, 2.60)."""


def _install(module: str, extra: str | None) -> Remedy:
    top = module.partition(".")[0]
    if extra:
        step = paste.shell("python -m pip install {extra}", extra=extra)
        return Remedy(
            f"Install {extra}, which contains {top}, for the Python of this program", (step,)
        )
    step = paste.shell("python -m pip install {package:package}", package=top)
    return Remedy(
        f"Install {top} for the Python of this program, or add its folder to PYTHONPATH if it is your own",
        (step,),
    )


# ------------------------------------------------------------------ examples


_END = "logs/events/event_JOBS.log"
_ERR = "logs/worker-cd09fc46897e18918275a6d03cc3a6abc2becabe5e0fd27a533d35a7-01000000-503.err"
_FRAMES = (
    'Traceback (most recent call last):\n  File "/app/train.py", line 21, in <module>\n    main()\n'
    '  File "/app/train.py", line 10, in best\n    return max(r["accuracy"] for r in results)\n'
)
_KEY_ERROR = f"{_FRAMES}KeyError: 'accuracy'\n"
_SURVIVED = (
    'Traceback (most recent call last):\n  File "/app/train.py", line 15, in main\n    open("/data/resume.ckpt")\n'
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/resume.ckpt'\n"
)
_TASK_ERROR = (
    f"{_FRAMES}ray.exceptions.RayTaskError(ValueError): ray::load() (pid=389, ip=10.0.0.2)\n"
    '  File "/app/train.py", line 4, in load\n    raise ValueError("empty shard")\nValueError: empty shard\n'
)


def _job(status: str, code: int, output: str) -> dict[str, str]:
    """The logs of a submitted job."""
    record = '{{"source_type": "JOBS", "source_pid": 335, "message": "{}", "timestamp": "{}", "severity": "INFO"}}\n'
    return {
        **QUIET_LOGS,
        _END: record.format("Started a ray job train.", 1795258391)
        + record.format(f"Completed a ray job train with a status {status}.", 1795258399),
        _ERR: f"Job train entrypoint command exited with code {code}\n",
        "logs/job-driver-train.log": f"Running entrypoint for job train: python train.py --epochs 3\n{output}",
    }


_VLLM = "({} pid=7) ERROR 11-21 10:53:18 [{}] "
_ENGINE, _SERVER = _VLLM.format("EngineCore_DP0", "core.py:845"), "(APIServer pid=6) "


_ELSEWHERE = (
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)


def _prefixed(prefix: str, text: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


_COMMAND = (
    'Traceback (most recent call last):\n  File "/home/user/venv/bin/{}", line 8, in <module>\n    sys.exit(main())\n'
    '  File "/home/user/venv/lib/python3.11/site-packages/{}", line 2690, in main\n    return cli()\n{}'
)

_MAIN = '  File "/app/train.py", line 21, in <module>\n    main()\n'
_OF_USER = f'{_MAIN}  File "/app/train.py", line 10, in best\n    return rows[0][column]\n           ~~~~~~~^^^^^^^^\n'
_OF_RAISE = f'{_MAIN}  File "/app/train.py", line 12, in check\n    raise ConfigError(column)\n'
_OF_WAIT = f'{_MAIN}  File "/app/train.py", line 14, in wait\n    time.sleep(60)\n'
_OF_RAY_GET = (
    f'{_MAIN}  File "/app/train.py", line 8, in main\n    ray.get(refs)\n'
    '  File "/venv/lib/python3.12/site-packages/ray/_private/worker.py", line 1053, in get_objects\n'
    "    raise value.as_instanceof_cause()\n"
)
_FAILED_TASK = sample.running(
    1,
    "load",
    {"CPU": 1},
    state="FAILED",
    error_type="TASK_EXECUTION_EXCEPTION",
    error_message="User exception:\nray::load() (pid=389, ip=10.0.0.2)\n"
    '  File "/app/train.py", line 4, in load\n    raise ValueError("empty shard")\nValueError: empty shard',
    end_time_ms=int(sample.AT - 61) * 1000,
)


def _live(*drivers: sample.Row, **tables: list[sample.Row]) -> dict[str, str]:
    return sample.tables(workers=drivers, jobs=[sample.job(1, 70), sample.job(2, 71)], **tables)


EXAMPLES: tuple[Example, ...] = (
    *(
        console(
            f"SkyPilot reports the end of a job: {signal.find}",
            f"Job submitted, ID: 3\n{signal.sample}\n",
            says=("of SkyPilot failed", says, "sky logs"),
            severity="warning",
        )
        for signal, says in zip(
            _SKYPILOT,
            (
                "the program of Ray that runs the job ended",
                "ended with exit code 1",
                "its controller failed",
            ),
            strict=True,
        )
    ),
    console(
        "SkyPilot's job succeeds",
        "Job submitted, ID: 3\n✓ Job finished (status: SUCCEEDED).\n",
    ),
    Example(
        "an uncaught exception ends the job's program, after one that it caught",
        _job("FAILED", 1, f"{_SURVIVED}no checkpoint: starting afresh\n{_KEY_ERROR}"),
        says=("train", "exit code 1", "KeyError: 'accuracy'", "best() (train.py:10)"),
        is_typical=True,
    ),
    Example(
        "the program that submitted the job prints its message: one failure",
        {**_job("FAILED", 1, _KEY_ERROR), "driver.log": f"job train FAILED\n{_KEY_ERROR}"},
        roots=("job-failed",),
        says=("Job 'train'",),
    ),
    Example(
        "another program ended with another exception",
        {**_job("FAILED", 1, _KEY_ERROR), "driver.log": _KEY_ERROR.replace("train.py", "other.py")},
        roots=("job-failed", "job-failed"),
        says=("Job 'train'",),
    ),
    *(
        console(f"a paste that is only an exception: {title}", text, says=says, severity="warning")
        for title, text, says in (
            (
                "pyarrow",
                "pyarrow.lib.ArrowInvalid: URI has empty scheme: 'out/run'\n",
                ("ArrowInvalid: URI has empty scheme",),
            ),
            (
                "a client library's",
                "google.api_core.exceptions.BadRequest: 400 Schema does not match\n",
                ("BadRequest: 400 Schema",),
            ),
            (
                "a message of several lines",
                "ValueError: Attempt to convert a value (PerReplica:{\n  0: 1\n}) to a Tensor.\n",
                ("Attempt to convert",),
            ),
        )
    ),
    console(
        "a traceback that is a comment of the program",
        'step 1\n#   File "/app/a.py", line 4, in <module>\n#     run()\n#   File "/app/a.py", line 2, in run\n#     f()\n'
        "# # ValueError: no metric\n",
        says=("ValueError: no metric, in run() (a.py:2)",),
    ),
    console(
        "lines that look like an exception's and are a logger's",
        "app.workers.Loader: 12 rows\n# step 1\n# step 2\n",
    ),
    console(
        "the status of a job, with the end of its traceback",
        "Status message: Job entrypoint command failed with exit code 1, last available logs (truncated to 20,000 chars):\n"
        '  File "/app/a.py", line 2, in run\n    f()\nValueError: no metric\n',
        says=("failed with exit code 1: ValueError: no metric",),
    ),
    Example(
        "live: the line that ended two drivers calls nothing, so that it was not Ctrl-C",
        _live(sample.driver(1, _OF_USER), sample.driver(2, _OF_USER)),
        says=("2 drivers (jobs 1 and 2) ended with an exception, in best() (train.py:10)",),
    ),
    Example(
        "live: the last line names the exception",
        _live(sample.driver(1, _OF_RAISE)),
        says=("job 1 (pid 70) ended with ConfigError, in check() (train.py:12)", "Fix check"),
    ),
    Example(
        "live: a call, which Ctrl-C can interrupt",
        _live(sample.driver(1, _OF_WAIT)),
        severity="info",
        says=("an exception or Ctrl-C (Ray records both alike), in wait() (train.py:14)",),
    ),
    Example(
        "live: ray.get raised the error of a task that failed",
        _live(sample.driver(1, _OF_RAY_GET), tasks=[_FAILED_TASK]),
        roots=("task-exception",),
        consequences=("job-failed",),
        says=("the error of a failed task, which ray.get raised, in main() (train.py:8)",),
    ),
    Example(
        "live: drivers that ended yesterday, still run, or have the frames of a prompt",
        _live(
            sample.driver(1, _OF_RAISE, end_time_ms=int(sample.AT - 86400) * 1000),
            sample.driver(2, _OF_RAISE, is_alive=True, end_time_ms=0),
            sample.driver(3, '  File "<stdin>", line 1, in <module>\n    raise ValueError(1)\n'),
        ),
    ),
    Example(
        "only the status of the RayJob is left",
        {
            "rayjob.yaml": "apiVersion: ray.io/v1\nkind: RayJob\nmetadata: {name: train, namespace: ml}\nstatus:\n  jobDeploymentStatus: Failed\n"
            "  jobId: train-x1\n  reason: AppFailed\n  message: |-\n    Job entrypoint command failed with exit code 1, last available logs\n"
            "    Traceback (most recent call last):\n    ValueError: no such column\n"
        },
        says=(
            "RayJob train failed",
            "ValueError: no such column",
            "kubectl get rayjob train -n ml",
        ),
    ),
    console(
        "Ray Serve names the extra that is not installed",
        'Traceback (most recent call last):\n  File "/app/serve_it.py", line 2, in <module>\n    from ray import serve\n'
        '  File "/home/user/venv/lib/python3.11/site-packages/ray/serve/_private/common.py", line 6, in <module>\n'
        "    from starlette.types import Scope\nModuleNotFoundError: No module named 'starlette'. You can run "
        '`pip install "ray[serve]"` to install all Ray Serve dependencies.\n',
        says=("python -m pip install 'ray[serve]'",),
    ),
    console(
        "a module of another package is missing",
        'Traceback (most recent call last):\n  File "/app/train.py", line 2, in <module>\n    import torch.cuda\n'
        "ModuleNotFoundError: No module named 'torch.cuda'; 'torch' is not a package\n",
        says=("python -m pip install torch", "PYTHONPATH"),
    ),
    console(
        "an installed command of Ray ends with an exception: no code of the user is in its traceback",
        _COMMAND.format("ray", "ray/scripts/scripts.py", "ConnectionError: no cluster answers\n"),
        says=("The command ray ended with ConnectionError", "main() (ray/scripts/scripts.py:2690)"),
    ),
    console(
        "an installed command that runs the user's program: the program is to fix",
        _COMMAND.format(
            "torchrun",
            "torch/distributed/run.py",
            '  File "/app/train.py", line 10, in best\n    return max(scores)\nKeyError: 3\n',
        ),
        says=(
            "The command torchrun ended with KeyError: 3, in best() (train.py:10)",
            "Fix best() (train.py:10)",
        ),
    ),
    Example(
        "an exit code and a last line of output",
        _job("FAILED", 3, "config: batch_size is not set\n"),
        says=("exit code 3", "config: batch_size is not set", "python train.py --epochs 3"),
    ),
    Example(
        "SIGKILL ended the program",
        _job("FAILED", 137, "loading\nKilled\n"),
        says=("SIGKILL", "137"),
    ),
    Example(
        "a failed task ended the program",
        _job("FAILED", 1, _TASK_ERROR),
        roots=("task-exception",),
        consequences=("job-failed",),
    ),
    Example(
        "the job's runtime environment could not be created",
        {
            **QUIET_LOGS,
            _END: '{"source_type": "JOBS", "source_pid": 335, "message": "Completed a ray job train with a status FAILED. '
            'runtime_env setup failed: Failed to set up runtime environment.", "timestamp": "1795258399", "severity": "ERROR"}\n',
            "logs/runtime_env_agent.log": "2026-11-21 10:53:18,100\tERROR runtime_env_agent.py:569 -- Failed to create runtime env "
            '{"pip": {"packages": ["acme==1.4.2"], "pip_check": false}}.\nTraceback (most recent call last):\n'
            "ray._private.runtime_env.utils.SubprocessCalledProcessError: Run cmd[9] failed with the following details.\n"
            "Command '['/tmp/ray/session_x/runtime_resources/pip/0772/virtualenv/bin/python', '-m', 'pip', 'install']' returned "
            "non-zero exit status 1.\nLast 50 lines of stdout:\n    ERROR: No matching distribution found for acme==1.4.2\n",
        },
        roots=("runtime-env-failed",),
        consequences=("job-failed",),
        says=("Job 'train' failed: runtime_env setup failed",),
    ),
    console(
        "a file of the program hides a module that a library imports",
        'Traceback (most recent call last):\n  File "/app/train.py", line 1, in <module>\n    import ray\n'
        '  File "/venv/lib/python3.11/site-packages/ray/__init__.py", line 3, in <module>\n    import pickle\n'
        "  File \"/app/pickle.py\", line 3, in <module>\n    ray.init()\nNameError: name 'ray' is not defined\n",
        logs=QUIET_LOGS,
        says=("Rename /app/pickle.py",),
    ),
    console(
        "a module that python -m runs and that is called like a standard one",
        'Traceback (most recent call last):\n  File "<frozen runpy>", line 198, in _run_module_as_main\n'
        '  File "/app/profile.py", line 3, in <module>\n    rows[3]\nIndexError: list index out of range\n',
        logs=QUIET_LOGS,
        says=("Fix line 3 of profile.py",),
    ),
    console(
        "a program that is called like Ray itself",
        'Traceback (most recent call last):\n  File "/app/ray.py", line 1, in <module>\n    import ray\n'
        "  File \"/app/ray.py\", line 2, in <module>\n    ray.init()\nAttributeError: partially initialized module 'ray' has no "
        "attribute 'init' (most likely due to a circular import)\n",
        logs=QUIET_LOGS,
        says=("Rename /app/ray.py",),
    ),
    console(
        "Ray refuses what the program passes to it, and says what it accepts",
        'Traceback (most recent call last):\n  File "/app/train.py", line 10, in <module>\n'
        "    load.options(num_gpu=1).remote()\n"
        '  File "/venv/lib/python3.11/site-packages/ray/_common/ray_option_utils.py", line 295, in _check_options\n'
        "    raise ValueError(\nValueError: Invalid option keyword num_gpu for remote functions. Valid ones are ['num_gpus'].\n",
        logs=QUIET_LOGS,
        says=(
            "at train.py:10",
            "Change what line 10 of train.py passes to Ray",
            "Invalid option keyword num_gpu",
        ),
    ),
    Example(
        "an exception ends a program that was run by hand",
        {"driver.log": f"{_SURVIVED}starting afresh\n{_KEY_ERROR}", **QUIET_LOGS},
        says=("KeyError: 'accuracy'", "best() (train.py:10)"),
    ),
    console(
        "the status message names an error of the job manager",
        f"{jobs.UNEXPECTED.sample}\n",
        says=("failed because Ray lost its supervisor: The actor died unexpectedly",),
    ),
    Example(
        "only the output of ray job submit is in the capture",
        {"driver.log": f"epoch 1\n{jobs.STATUS_MESSAGE.sample}\nno such shard\n", **QUIET_LOGS},
        says=("exit code 1",),
    ),
    Example(
        "the program printed a traceback and continued",
        {"driver.log": f"{_KEY_ERROR}best epoch: unknown\n", **QUIET_LOGS},
    ),
    Example(
        "a failed task ended a program that was run by hand: task-exception explains it",
        {"driver.log": _TASK_ERROR, **QUIET_LOGS},
        roots=("task-exception",),
    ),
    Example("the job succeeded although it printed a traceback", _job("SUCCEEDED", 0, _KEY_ERROR)),
    Example(
        "a user stopped the job", _job("STOPPED", -15, "*** SIGTERM received at time=1795249532\n")
    ),
    console(
        "a task prints the same messages",
        f"(check pid=12) {jobs.STATUS_MESSAGE.sample}\n"
        "(check pid=12) Job train entrypoint command exited with code 1\n",
        logs=QUIET_LOGS,
    ),
    console(
        "vLLM's engine logs the exception that ended it, and the server reports only that it ended",
        _prefixed(_ENGINE, f"EngineCore failed to start.\n{_SURVIVED}")
        + _prefixed(_SERVER, f"{_FRAMES}{_ELSEWHERE}"),
        says=("FileNotFoundError", "main() (train.py:15)"),
    ),
    console(
        "vLLM's engine logs only the exception's own line, and the server refers to it",
        _prefixed(_ENGINE, "ValueError: No valid attention backend found for cuda")
        + _prefixed(_SERVER, f"{_FRAMES}{_ELSEWHERE}"),
        says=("ended after ValueError: No valid attention backend",),
        severity="warning",
    ),
    console(
        "the exception to which the server refers is not in the paste",
        _prefixed(
            _SERVER, f"{_FRAMES}RuntimeError: Server process terminated unexpectedly during startup"
        ),
        says=("is not in this output", "worker-*.err"),
        severity="warning",
    ),
    console(
        "the server refers to an exception that another rule knows",
        _prefixed(
            _ENGINE, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
        )
        + _prefixed(_SERVER, f"{_FRAMES}{_ELSEWHERE}"),
        roots=("cuda-oom",),
        consequences=("job-failed",),
        severity="warning",
    ),
    console(
        "an exception of Ray's own, and the one that the program raised while handling it",
        "Traceback (most recent call last):\nray.exceptions.ObjectRefStreamEndOfStreamError\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        f"{_FRAMES}RuntimeError: no rows left\n",
        says=("RuntimeError: no rows left",),
    ),
    console(
        "SGLang's scheduler logs its traceback in the line of its message",
        "[2026-11-21 03:41:24 TP2] Scheduler hit an exception: Traceback (most recent call last):\n"
        "  File \"/app/scheduler.py\", line 42, in run\n    self.loop()\nKeyError: 'hidden_size'\n",
        says=("KeyError: 'hidden_size', in run() (scheduler.py:42)",),
    ),
    console(
        "a program logs such a line and continues",
        "[2026-11-21 03:41:24] Loader hit an exception: Traceback (most recent call last):\n"
        '  File "/app/loader.py", line 42, in load\n    self.read()\nOSError: no shard\n[2026-11-21 03:41:25] epoch 2\n',
    ),
    console(
        "a program logs the words with which vLLM refers to another process, and continues",
        "Engine core initialization failed. See root cause above.\nfalling back to another engine\nepoch 1\n",
    ),
    console(
        "an exception in the main task of a trainer",
        _prefixed("(main_task pid=7) ", _KEY_ERROR),
        says=("KeyError: 'accuracy'", "best() (train.py:10)"),
    ),
    console(
        "a console that ends within the traceback",
        _prefixed("2026-11-21 10:53:18 ", _FRAMES),
        says=("an exception that the console cut off, in best() (train.py:10)",),
    ),
    console(
        "a main task that catches an exception and continues",
        _prefixed("(main_task pid=7) ", f"{_KEY_ERROR}epoch 2\nepoch 3\n"),
    ),
    console(
        "an excerpt that ends with an exception's own line",
        "loading\nValueError: 40 heads must be divisible by 16\n",
        says=("ends with ValueError: 40 heads",),
        severity="warning",
    ),
    console(
        "an excerpt that ends with an exception's own line, which a task prints",
        "(Worker pid=7) loading\n(Worker pid=7) ValueError: 40 heads must be divisible by 16\n",
        roots=("task-exception",),
        severity="warning",
    ),
    console(
        "an excerpt that ends with the exception of a task that Ray retries",
        "(raylet) Task download failed. There are 4 retries remaining, so the task will be retried. Error: User exception:\n"
        'ray::download() (pid=391, ip=10.0.0.2)\n  File "/app/a.py", line 29, in download\n    raise OSError(503)\nOSError: 503\n',
    ),
    console(
        "an excerpt that goes on after such a line",
        "ValueError: row 7 is empty\nskipped 1 row\n",
    ),
    console(
        "ray start prints why it could not start the dashboard, and the console cuts its traceback off",
        "2026-11-21 07:44:06,259\tERROR services.py:1355 -- Failed to start the dashboard , return code 3221226505\n"
        'Traceback (most recent call last):\n  File "<frozen runpy>", line 198, in _run_module_as_main\n'
        '  File "D:\\venv\\Lib\\site-packages\\ray\\scripts\\scripts.py", line 2800, in main\n    return cli()\n',
        roots=("dashboard-died",),
        consequences=("job-failed",),
    ),
    console(
        "up to 2.6, ray job submit prints no exit code",
        f"/bin/sh: 1: train.py: not found\n{jobs.OLD_STATUS_MESSAGE.sample}\n/bin/sh: 1: train.py: not found\n",
        says=("The submitted job failed because its command failed",),
    ),
    console(
        "the driver waits for a worker whose exception is known, and the console cuts its own off",
        _prefixed(
            "(Trainer pid=7) ",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        )
        + 'Traceback (most recent call last):\n  File "/app/train.py", line 21, in <module>\n    main()\n'
        '  File "/app/train.py", line 10, in main\n    ray.get(\n',
        roots=("cuda-oom",),
    ),
    console(
        "an exception of Ray that no rule knows",
        'Traceback (most recent call last):\n  File "/app/train.py", line 5, in <module>\n    main()\n'
        "ray.exceptions.AsyncioActorExit: Exit the actor of the loader.\n",
        says=("AsyncioActorExit: Exit the actor of the loader",),
        severity="warning",
    ),
    console(
        "a channel of a compiled graph is closed, and nothing shows who closed it",
        'Traceback (most recent call last):\n  File "/app/train.py", line 5, in <module>\n    ray.get(graph.execute(1))\n'
        "ray.exceptions.RayChannelError: System error: Channel closed.\n",
        says=(
            "RayChannelError: System error: Channel closed",
            "Find the actor of the compiled graph",
        ),
        severity="warning",
    ),
    console(
        "a console that ends with hydra's report of a failure",
        f"(WorkerDict pid=51) /usr/bin/ld: cannot find -lcudart\n{HYDRA}['trainer.epochs=3', 'data.path=/d",
        says=("an exception that the console cut off", "HYDRA_FULL_ERROR"),
        severity="warning",
    ),
    console(
        "a program that goes on below such a line",
        f"{HYDRA}['trainer.epochs=3']\nnext trial\n",
    ),
    console(
        "Tune's table of failed trials",
        f"{_ERRORED[0].sample}\n+------+------+------+\n| Trial name | # failures | error file |\n{_ERROR_FILE.sample}\n",
        says=(
            "2 trials of Ray Tune failed",
            "cat /home/me/ray_results/fit/fit_5c8f1_00003/error.txt",
        ),
        severity="warning",
    ),
    *(
        console(
            f"Tune's status: {signal.sample}",
            f"== Status ==\n{signal.sample}\n",
            says=("of Ray Tune failed, and the console does not show why",),
            severity="warning",
        )
        for signal in _ERRORED[1:]
    ),
    console(
        "Tune cannot start a trial",
        f"{_NOT_STARTED.sample}\n{_SURVIVED}Worker ip unknown, skipping log sync for /ho\n",
        says=("Ray Tune could not start trial fit_5c8f1_00003:",),
        severity="warning",
    ),
    console(
        "Flower reports that a simulation crashed",
        f"{_CRASHED.sample}\n\t > Sometimes, issues in the simulation code itself can cause crashes.\n",
        says=("A simulation of Flower on Ray crashed",),
        severity="warning",
    ),
    console(
        "Ray raises a warning about an environment variable that it no longer reads",
        "DeprecationWarning: The environment variable `RAY_AIR_LOCAL_CACHE_DIR` is deprecated. You should set the `storage_path` instead.\n",
        says=("The console ends with DeprecationWarning: The environment variable",),
        severity="warning",
    ),
    console(
        "warnings that are only printed",
        "/app/train.py:8: DeprecationWarning: The `local_dir` argument of `ray.tune` is deprecated.\n"
        "DeprecationWarning: the old cache format is read more slowly\n",
    ),
    console(
        "a part of the status of a RayJob",
        "  Job Status:             FAILED\n  Message:                Job failed due to an application error, last available logs (truncated to 20,000 chars):\n"
        "python: can't open file '/app/trian.py': [Errno 2] No such file or directory\n",
        says=("because its command failed, and its last line is: python: can't open file",),
    ),
    console(
        "a trial that succeeded when Tune retried it, and a status without failures",
        f"Number of errored trials: 1\n{_ERROR_FILE.sample.replace(' 1 |', '1* |')}\nTrial status: 7 TERMINATED\n",
    ),
    console(
        "`ray start` reaches no GCS, and the console ends within its traceback",
        "[2026-11-21 17:24:52,119 W 1 1] rpc_client.h:153: Failed to connect to GCS at address 10.0.0.9:41000 within 5 seconds.\n"
        'Traceback (most recent call last):\n  File "/venv/bin/ray", line 10, in <module>\n    sys.exit(main())\n'
        '  File "/venv/lib/python3.11/site-packages/ray/scripts/scripts.py", line 2894, in main\n    return cli()\n',
        roots=("gcs-unreachable",),
    ),
    console(
        "a script that does not exist",
        f"{_NO_SCRIPT.sample}\n",
        says=("Python cannot open /home/me/trian.py", "--working_dir"),
        severity="warning",
    ),
    console(
        "a launcher tries two places of a script",
        f"{_NO_SCRIPT.sample}\nstarting /srv/trian.py\nepoch 1\n",
    ),
    console(
        "a notebook's traceback of a task's exception, copied without its end",
        "RayTaskError(TypeError)                   Traceback (most recent call last)\n"
        "Cell In[4], line 2\n      1 table = load()\n----> 2 rows = ray.get(count.remote(table))\n      3 rows\n\n"
        "File /app/venv/lib/python3.11/site-packages/ray/_private/worker.py:2962, in get(object_refs, timeout)\n"
        "   2960     worker = global_worker\n-> 2962     values = worker.get_objects(object_refs, timeout=timeout)\n",
        says=("A task raised TypeError", "Cell In[4]", "Read the rest of this exception"),
    ),
    console(
        "the same above a later cell that ran",
        "RayTaskError(TypeError)                   Traceback (most recent call last)\n"
        "Cell In[4], line 2\n----> 2 rows = ray.get(count.remote(table))\n\nthe loader retries\nepoch 2\nepoch 3\n",
    ),
    console(
        "the end of an engine's exception, and the traceback below it, which the console cuts off",
        f"ERROR 11-21 10:53:18 [core.py:845] ValueError: bundle 8 is invalid\nProcess EngineCore_0:\n{_OF_USER}".replace(
            "_0:\n", f"_0:\n{BEGIN}\n"
        ),
        says=("The program printed ValueError: bundle 8 is invalid", "ends within the traceback"),
    ),
    console(
        "the program worked after that exception",
        f"ERROR 11-21 10:53:18 [core.py:845] ValueError: bundle 8 is invalid\nuses bundle 0\nepoch 1\nepoch 2\n{BEGIN}\n{_OF_USER}",
        says=("ended with an exception that the console cut off",),
    ),
    console(
        "the second traceback of a chain is cut off",
        f"{_KEY_ERROR}\nDuring handling of the above exception, another exception occurred:\n\n{BEGIN}\n{_OF_WAIT}",
        says=("cut off, in wait() (train.py:14), after KeyError: 'accuracy'",),
    ),
    console(
        "a program on Windows",
        f'{BEGIN}\n  File "C:\\app\\train.py", line 3, in load\n    tables.read(path)\n'
        '  File "C:\\Users\\me\\Python311\\Lib\\pathlib.py", line 9, in read\n    open(self)\n'
        '  File "C:\\Users\\me\\venv\\Lib\\site-packages\\tables\\io.py", line 9, in read\n    f(x)\nKeyError: 1\n',
        says=("KeyError: 1, in load() (train.py:3)", "Fix load() (train.py:3)"),
        severity="warning",
    ),
)

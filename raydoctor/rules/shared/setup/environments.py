"""Failed setups of runtime environments by cause: signals and joins that their rules share.

The agent tries three times and returns the error of the last attempt. After an attempt that timed out, the next one may
fail on files that it left behind (`dest dir … exists`, seen with 2.60). That counts as the same failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from raydoctor.case import Case, evidence
from raydoctor.case.case import order
from raydoctor.case.rule import Signal
from raydoctor.case.signals import DRIVER, RAY_EXCEPTION, RAYLET, TASK_FAILED, TRACEBACK, TRACEBACKS
from raydoctor.model.values import Event, Link
from raydoctor.rules.shared.setup.errors import SetupError, read, tool_of

AGENT = ("runtime-env-agent", "dashboard-agent")
"""Up to 2.6 the dashboard's agent set environments up."""

ATTEMPT = Signal(
    "runtime_env.attempt_failed",
    "Failed to create runtime env {",
    r"^Failed to create runtime env (?P<env>\{[^\n]*\})\.\n(?P<what>.*)",
    AGENT,
    'Failed to create runtime env {"pip": {"packages": ["acme-features==1.4.2"], "pip_check": false}}.\n'
    "Traceback (most recent call last):\nValueError: …",
    extent="record",
    fold=("env",),
)
CREATED = Signal(
    "runtime_env.created",
    "Successfully created runtime env: ",
    r"^Successfully created runtime env: (?P<env>\{.*?\}), (?:the )?context: ",
    AGENT,
    'Successfully created runtime env: {"env_vars": {"A": "1"}}, the context: {"command_prefix": []}',
    fold=("env",),
)
KEPT = Signal(
    "runtime_env.failure_kept",
    "Runtime env already failed. Env: ",
    r"^Runtime env already failed\. Env: (?P<env>\{[^\n]*\}), err: (?P<what>.*)",
    AGENT,
    'Runtime env already failed. Env: {"pip": {"packages": ["acme-features==1.4.2"]}}, err: Traceback (most recent call last):',
    extent="record",
    fold=("env",),
)
REFUSED = Signal(
    "runtime_env.refused",
    "Failed to create runtime env for job ",
    r"^Failed to create runtime env for job (?P<job>[0-9a-f]{8}), error message: (?P<what>.*)",
    RAYLET,
    "Failed to create runtime env for job 01000000, error message: Traceback (most recent call last):\nValueError: …",
    extent="record",
)
JOB_FAILED = Signal(
    "runtime_env.job_failed",
    "Status message: runtime_env setup failed: ",
    r"^Status message: runtime_env setup failed: (?P<what>.*)",
    DRIVER,
    "Status message: runtime_env setup failed: Failed to set up runtime environment.\nTraceback (most recent call last):\n…",
    extent="record",
    symptom=True,
)

CLIENT_FAILED = Signal(
    "runtime_env.client_failed",
    "Failed to create runtime_env for Ray client server",
    r"^(?:\w{1,40}: )?Failed to create runtime_env for Ray client server(?:, it is caused by)?:\s{0,20}(?P<what>.*)",
    (*DRIVER, "client-server"),
    "RuntimeError: Failed to create runtime_env for Ray client server, it is caused by:\nTraceback (most recent call last):\n…",
    extent="record",
    symptom=True,
)
"""From the proxy of Ray Client (`util/client/server/proxier.py`, 1.9 to 2.60), which the client prints as well."""

RAISED = (
    Signal(
        "runtime_env.raised",
        " does not exist on the cluster. Something may have gone wrong while ",
        r"(?P<what>Local directory \S{1,500} for URI \S{1,500} does not exist on the cluster\. Something may have gone wrong "
        r"while \w.*)",
        DRIVER,
        "ValueError: Local directory /tmp/ray/session_x/runtime_resources/pip/4950 for URI pip://4950 does not exist on the "
        "cluster. Something may have gone wrong while installing the runtime_env `pip` packages.",
    ),
    Signal(
        "runtime_env.raised",
        "Failed to download runtime_env file package ",
        r"(?P<what>Failed to download runtime_env file package \S{1,500} from the GCS to the Ray worker node\.)",
        DRIVER,
        "OSError: Failed to download runtime_env file package gcs://_ray_pkg_4950.zip from the GCS to the Ray worker node. The "
        "package may have prematurely been deleted from the GCS due to a long upload time or a problem with Ray.",
    ),
    Signal(
        "runtime_env.raised",
        "The given conda environment",
        r"(?P<what>The given conda environment(?: '[^'\n]{1,300}' from the runtime env [^\n]{0,300}?doesn't exist|$))",
        DRIVER,
        "RuntimeError: The given conda environment 'py39' from the runtime env {'conda': 'py39'} doesn't exist from the output of "
        "`conda info --json`. You can only specify an env that already exists. Please make sure to create an env py39",
    ),
    Signal(
        "runtime_env.raised",
        "' field currently cannot be used together with other fields",
        r"^(?:ValueError: )?(?P<what>The '(?:container|image_uri)' field currently cannot be used together with other fields of runtime_env\."
        r"(?: Specified fields: [^\n]{1,300})?)",
        DRIVER,
        "The 'container' field currently cannot be used together with other fields of runtime_env. Specified fields: "
        "dict_keys(['container', 'config'])",
    ),
    Signal(
        "runtime_env.raised",
        "] failed with the following details.",
        r"(?P<what>Run cmd\[\d{1,9}\] failed with the following details\..*)",
        DRIVER,
        "ray._private.runtime_env.utils.SubprocessCalledProcessError: Run cmd[9] failed with the following details.\nCommand "
        "'['pip', 'install']' returned non-zero exit status 1.\nLast 50 lines of stdout:\n    ERROR: no network",
        extent="record",
    ),
    Signal(
        "runtime_env.raised",
        "Failed to install conda environment /",
        r"(?P<what>Failed to install conda environment /\S{1,500}:(?:\n.*|$))",
        DRIVER,
        "RuntimeError: Failed to install conda environment /tmp/ray/session_x/runtime_resources/conda/bda0:\nOutput:\n"
        "ResolvePackageNotFound:\n  - acme=3",
        extent="record",
    ),
    Signal(
        "runtime_env.raised",
        "GetOrCreateRuntimeEnv request failed after ",
        r"(?P<what>GetOrCreateRuntimeEnv request failed after \d{1,6} attempts\. Last exception: [^\n]{0,600})",
        DRIVER,
        "TimeoutError: GetOrCreateRuntimeEnv request failed after 5 attempts. Last exception: HTTP Error 503: Service Unavailable",
    ),
)
"""Exceptions of the agent's plugins (`_private/runtime_env`, 2.2 to 2.60): an excerpt may have lost the records around them."""

SIGNALS = (
    ATTEMPT,
    CREATED,
    KEPT,
    REFUSED,
    JOB_FAILED,
    CLIENT_FAILED,
    *RAISED,
    RAY_EXCEPTION,
    TASK_FAILED,
    TRACEBACK,
)

_RECEIVERS = {JOB_FAILED.kind: "the job", CLIENT_FAILED.kind: "the Ray Client"}
_SECONDS = 2.0
"""Seconds within which a task's failure follows that of its environment."""


@dataclass(slots=True)
class SetupFailure:
    """One cause and all records of it."""

    error: SetupError
    attempts: list[Event] = field(default_factory=list)
    kept: list[Event] = field(default_factory=list)
    refused: list[Event] = field(default_factory=list)
    seen: list[Event] = field(default_factory=list)
    """In drivers' output."""

    @property
    def events(self) -> list[Event]:
        """All records, the most informative first."""
        return [*self.attempts, *self.refused, *self.seen, *self.kept]

    @property
    def environments(self) -> set[str]:
        """The environments that failed for this cause, as the agent writes them."""
        return {e["env"] for e in self.events if e["env"]}

    def join(self, other: SetupFailure) -> None:
        """Add a failure that this one caused."""
        self.attempts = sorted([*self.attempts, *other.attempts], key=order)
        self.kept += other.kept
        self.refused += other.refused
        self.seen += other.seen

    @property
    def tool(self) -> str:
        """The part of the environment that failed, if it has only one to set up."""
        return next((t for e in self.events if (t := tool_of(e["env"]))), "")


def failures(case: Case) -> list[SetupFailure]:
    """Every cause of failed setups; errors that follow a timed-out attempt are joined with it."""
    found: dict[tuple[str, str], SetupFailure] = {}
    for event in _records(case):
        error = read(event["what"] or event.message)
        said = "" if error.kind == "timeout" else error.said
        _place(found.setdefault((error.kind, said), SetupFailure(error)), event)
    late = found.get(("timeout", ""))
    for key, failure in list(found.items()):
        if late and failure is not late and failure.environments & late.environments:
            late.join(found.pop(key))
    return list(found.values())


def _records(case: Case) -> list[Event]:
    kinds = (ATTEMPT.kind, REFUSED.kind, KEPT.kind, JOB_FAILED.kind, CLIENT_FAILED.kind)
    recorded = [e for e in case.of(*kinds) if not case.torn_down(e)]
    recorded += [e for e in case.of("driver.exception") if e["type"] == "RuntimeEnvSetupError"]
    if recorded:
        return recorded
    raised = [e for e in case.of(RAISED[0].kind) if e.source.is_excerpt]
    return raised or [e for e in case.of(*TRACEBACKS) if _is_agents(e)]


_AGENTS_FRAMES = ("in _create_runtime_env_with_retry\n", '/runtime_env_agent.py", line ')
"""The agent's function around every setup (2.9 to 2.60), and its own file (1.4 to 2.60)."""


def _is_agents(event: Event) -> bool:
    """Whether an excerpt shows a traceback of the agent without the record around it."""
    return event.source.is_excerpt and any(words in event.message for words in _AGENTS_FRAMES)


def _place(failure: SetupFailure, event: Event) -> None:
    places = {
        ATTEMPT.kind: failure.attempts,
        REFUSED.kind: failure.refused,
        KEPT.kind: failure.kept,
    }
    places.get(event.kind, failure.seen).append(event)


def links(failure: SetupFailure) -> Iterator[Link]:
    """From the first attempt to the driver."""
    error = failure.error.said
    attempts = failure.attempts
    for event in attempts[:1]:
        yield Link(event, f"the agent's first attempt fails: {error}")
    for event in attempts[-1:] if len(attempts) > 1 else ():
        yield Link(event, f"attempt {evidence.total(attempts)} fails as well")
    for event in failure.refused[:1]:
        yield Link(event, "the raylet gives up starting a worker in this environment")
    for event in failure.seen[:1]:
        receiver = _RECEIVERS.get(event.kind, "the driver")
        yield Link(event, f"{receiver} got the error: {error}")
    later = evidence.many(evidence.total(failure.kept), "later request")
    for event in failure.kept[:1]:
        yield Link(
            event, f"{later} failed immediately with the error that the agent had cached: {error}"
        )


def affected(case: Case, failure: SetupFailure) -> list[str]:
    """Tasks and actors that failed at that moment, from their submitters' logs."""
    ends = [*failure.attempts[-1:], *failure.refused, *failure.kept]
    names = {
        task["name"]
        for event in ends
        for task in case.near(event, "task.failed", before=0.5, after=_SECONDS)
        if task["status"] == "OK"  # no worker replied: it never started
    }
    return sorted(names)


def made_later(case: Case, failure: SetupFailure) -> bool:
    """Whether each environment that failed was created later."""
    last: dict[str, float] = {}
    for event in (*failure.attempts, *failure.kept):
        if event.at is None:
            return False
        last[event["env"]] = max(event.at, last.get(event["env"], event.at))
    made = case.of("runtime_env.created")
    return bool(last) and all(
        any(e["env"] == env and (e.at or 0.0) >= at for e in made) for env, at in last.items()
    )


def wrappers(case: Case, failure: SetupFailure) -> list[Event]:
    """Errors of tasks that repeat the failure."""
    return [
        e for e in case.of("driver.exception")
        if "RuntimeEnvSetupError" in (e["inner"], e["type"]) and failure.error.said in e["what"]
    ]  # fmt: skip

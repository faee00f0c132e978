"""Records of Ray Serve's controller about failed replicas: signals, and one form for all versions.

Texts of `serve/_private/deployment_state.py` (2.9 to 2.60): up to 2.9 a replica is `app#deployment#id`, later
`Replica(id='…', deployment='…', app='…')`. The controller's log is `logs/serve/controller_*.log`. Drivers print it as
`(ServeController pid=…) …`, which is read if the logs are missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from raydoctor.case import Case
from raydoctor.case.rule import Signal
from raydoctor.case.signals import DRIVER
from raydoctor.cluster import resources
from raydoctor.model import paste
from raydoctor.model.text import plural
from raydoctor.model.values import Event, Remedy

_DOC = "https://docs.ray.io/en/latest/serve/resource-allocation.html"
CONTROLLER = ("serve", "worker-echo")
_PRINTED = (*CONTROLLER, "worker-err")
"""The controller's own `.err` repeats its log: recognized, but not read again."""
_REPLICA = (
    r"(?:Replica\(id='(?P<id>\w+)', deployment='(?P<deployment>[^'\n]*)', app='(?P<app>[^'\n]*)'\)"
    r"|(?P<tag>[^\s',#]+(?:#[^\s',#]+){1,2}))"
)
SAMPLE = "Replica(id='g7278tvw', deployment='Translator', app='translation')"

FAILED = Signal(
    "serve.replica_failed",
    ", the replica will be stopped.",
    rf"^Exception in (?:replica ')?{_REPLICA}'?, the replica will be stopped\.(?P<what>.*)",
    _PRINTED,
    f"Exception in {SAMPLE}, the replica will be stopped.\nTraceback (most recent call last):\nValueError: x",
    extent="record",
    fold=("deployment", "tag"),
)
NOT_ALLOCATED = Signal(
    "serve.replica_failed",
    "Exception when allocating ",
    rf"^Exception when allocating (?:replica ')?{_REPLICA}'?:(?P<what>.*)",
    _PRINTED,
    f"Exception when allocating {SAMPLE}: Failed to set up runtime environment.\nTraceback (most recent call last):\n"
    "ray.exceptions.RuntimeEnvSetupError: Failed to set up runtime environment.",
    extent="record",
    fold=("deployment", "tag"),
)
"""Its process never started: its runtime environment failed, or its actor ended before the constructor."""
NO_ANSWER = Signal(
    "serve.health_timeout",
    "t receive health check response for",
    rf"^Didn't receive health check response for replica {_REPLICA} after (?P<seconds>\d{{1,20}}(?:\.\d{{1,20}})?)s, marking it unhealthy",
    CONTROLLER,
    f"Didn't receive health check response for replica {SAMPLE} after 5.0s, marking it unhealthy.",
    fold=("deployment", "tag"),
)
CHECK_FAILED = Signal(
    "serve.health_failed",
    "Health check for ",
    rf"^Health check for (?:replica )?{_REPLICA} failed: (?P<what>.*)",
    CONTROLLER,
    f"Health check for {SAMPLE} failed: ray::ServeReplica:translation:Translator.check_health() (pid=484, ip=10.0.0.2)\nValueError: x",
    extent="record",
    fold=("deployment", "tag"),
)
UNHEALTHY = Signal(
    "serve.unhealthy",
    " failed the health check ",
    rf"^Replica {_REPLICA} failed the health check (?P<times>\d+) times in a row, marking it unhealthy",
    CONTROLLER,
    f"Replica {SAMPLE} failed the health check 3 times in a row, marking it unhealthy.",
    fold=("deployment", "tag"),
)
STOPPED = Signal(
    "serve.stopped",
    " failed health check, ",
    rf"^(?:Replica )?{_REPLICA}(?: of deployment \S+ in application '[^'\n]*')? failed health check, (?:forcefully )?stopping it",
    CONTROLLER,
    f"Replica {SAMPLE} failed health check, stopping it.",
    fold=("deployment", "tag"),
)
"""Also of a replica whose process is gone, behind CRASHED."""
CRASHED = Signal(
    "serve.replica_crashed",
    " crashed, marking it unhealthy immediately.",
    rf"^Actor for (?:replica )?{_REPLICA} crashed, marking it unhealthy immediately\.",
    CONTROLLER,
    f"Actor for {SAMPLE} crashed, marking it unhealthy immediately.",
    fold=("deployment", "tag"),
)
APP_FAILED = (
    Signal(
        "serve.app_failed",
        "Failed to update the deployments [",
        r"^Failed to update the deployments \[(?P<names>[^\]\n]*)\]\.",
        CONTROLLER,
        "Failed to update the deployments ['Translator'].",
        symptom=True,
        fold=("names",),
    ),
    Signal(
        "serve.app_failed",
        "] are UNHEALTHY.",
        r"^The deployments \[(?P<names>[^\]\n]*)\] are UNHEALTHY\.",
        CONTROLLER,
        "The deployments ['Translator'] are UNHEALTHY.",
        symptom=True,
        fold=("names",),
    ),
)
APP_STATUS = Signal(
    "serve.app_failed",
    "ailed to update the deployments [",
    r"^ {0,60}[Mm]essage: {1,8}[\"']?Failed to update the deployments \[(?P<names>[^\]\n]{1,500})\]",
    DRIVER,
    "    message: 'Failed to update the deployments [''Translator''].'",
)
"""The same in the output of `serve status` and in the status of a RayService."""
DEPLOY_FAILED = Signal(
    "serve.deploy_failed",
    "RuntimeError: Deploying application ",
    r"^RuntimeError: Deploying application (?P<deployed>.+?) failed: (?P<why>.*)",
    DRIVER,
    "RuntimeError: Deploying application translation failed: Failed to update the deployments ['Translator'].",
    symptom=True,
)
UNHEALTHY_SAID = Signal(
    "serve.said_unhealthy",
    " is UNHEALTHY: ",
    r"^RuntimeError: Deployment (?P<deployment>\S{1,200}) is UNHEALTHY: (?P<why>[^\n]{1,500})",
    DRIVER,
    "RuntimeError: Deployment Translator is UNHEALTHY: The deployment failed to start 3 times in a row.",
    symptom=True,
)
"""`serve/_private/client.py`, 2.9 to 2.60: a deployment that its caller waits for."""
NOT_APPLIED = (
    Signal(
        "serve.build_failed",
        "Deployment failed:",
        r"^ {0,60}(?:message: {0,4})?[\"'|>-]{0,3}\s{0,80}Deployment failed:\s{1,80}(?P<what>ray::\w{1,80}\(\) .*)",
        DRIVER,
        "message: |-\n    Deployment failed:\n    ray::run_graph() (pid=49869, ip=10.0.0.2)\n"
        "      File \"/venv/ray/serve/controller.py\", line 934, in run_graph\n        app.deployments[name]\n    KeyError: 'text'",
        extent="record",
        symptom=True,
    ),
    *(
        Signal(
            "serve.build_failed",
            f"Unexpected error occurred while {find} application",
            r"^ {0,60}(?:message: {0,4})?[\"'|>-]{0,3}\s{0,80}(?:RuntimeError: Deploying application \S+ failed: )?"
            rf"Unexpected error occurred while {find} application\s+'{{1,2}}(?P<app>[^'\n]*?)'{{1,2}}: ?(?P<what>.*)",
            (*_PRINTED, *DRIVER),
            f"Unexpected error occurred while {find} application 'translation': \nTraceback (most recent call last):\nValueError: x",
            extent="record",
            symptom=True,
            fold=("app",),
        )
        for find in ("applying config for", "deploying")
    ),
)
"""`controller.py`, 2.0 to 2.5, and `_private/application_state.py`, 2.7 to 2.60: the config does not fit the application."""
NO_DEPLOYMENT = Signal(
    "serve.no_deployment",
    " does not exist. Available: [",
    r"^ {0,60}ValueError: Deployment '{1,2}(?P<deployment>[^'\n]{1,200})'{1,2} does not exist\. Available: \[(?P<available>[^\]\n]{0,4000})",
    (*_PRINTED, *DRIVER),
    "ValueError: Deployment 'Tanslator' does not exist. Available: ['Translator', 'Router']",
    symptom=True,
    fold=("deployment",),
)
"""`_private/application_state.py`: the status of the application contains the whole traceback."""
BUILD_FAILED = Signal(
    "serve.build_failed",
    "failed with exception:",
    r"^ {0,60}(?:message: {0,4})?[\"'|>-]{0,3}\s{0,80}(?:RuntimeError: Deploying application \S+ failed: )?"
    r"Deploying app '{1,2}(?P<app>[^'\n]*?)'{1,2} failed with exception:(?P<what>.*)",
    (*_PRINTED, *DRIVER),
    "Deploying app 'translation' failed with exception:\nTraceback (most recent call last):\nModuleNotFoundError: No module named 'text'",
    extent="record",
    symptom=True,
    fold=("app",),
)
"""`_private/application_state.py`, 2.9 to 2.60: the import path or the function that builds the application raised."""
RAISED = Signal(
    "serve.raised",
    "RuntimeError: Traceback (most recent call last):",
    r"^RuntimeError: (?P<what>Traceback \(most recent call last\):\n.*/serve/_private/replica\.py\".*)",
    ("worker-echo",),
    "RuntimeError: Traceback (most recent call last):\n"
    '  File "/usr/lib/python3.11/site-packages/ray/serve/_private/replica.py", line 728, in initialize\n    await self.check_health()\n'
    "ValueError: x",
    extent="record",
)
"""A replica's exception inside FAILED's record: for consoles that lost the record's beginning."""
_STATUS = r"^ {0,60}(?:RuntimeError: )?(?:Deploying application (?P<app>\S+) failed: )?(?:Deployment (?P<deployment>\S+) is UNHEALTHY: )?"
_STATUS += r"(?:message: {0,4})?[\"'|>-]{0,3} ?"
STATUS = (
    Signal(
        "serve.status",
        "eployment failed to start ",
        rf"{_STATUS}The [dD]eployment failed to start (?P<times>\d+) times in a row(?: during a rolling update)?\. This may be\b"
        r"(?P<what>.*)",
        DRIVER,
        "message: 'The deployment failed to start 3 times in a row. This may be due to a problem with its constructor or initial health "
        "check failing. See controller logs for details. Error:",
        extent="record",
    ),
    Signal(
        "serve.status",
        "eployment constructor failed ",
        rf"{_STATUS}The [dD]eployment constructor failed (?P<times>\d+) times in a row\.",
        DRIVER,
        "RuntimeError: Deployment Translator is UNHEALTHY: The Deployment constructor failed 3 times in a row. See logs for details.",
    ),
    Signal(
        "serve.status",
        " failed, deleting it asynchronously.",
        r"^RuntimeError: Deployment '(?P<deployment>[^'\n]{1,200})' failed, deleting it asynchronously\.",
        DRIVER,
        "RuntimeError: Deployment 'translator' failed, deleting it asynchronously.",
    ),
    Signal(
        "serve.status",
        "A replica failed to start with exception. ",
        rf"{_STATUS}A replica failed to start with exception\. (?P<retries>Retrying)(?P<what>.*)",
        DRIVER,
        "message: 'A replica failed to start with exception. Retrying 1 more time(s). Error:",
        extent="record",
    ),
    Signal(
        "serve.status",
        "s health check failed. This deployment will be UNHEALTHY until",
        rf"{_STATUS}A replica's (?P<check>health check) failed\. This deployment will be UNHEALTHY until",
        DRIVER,
        "message: A replica's health check failed. This deployment will be UNHEALTHY until the replica recovers or a new deploy happens.",
    ),
)
"""Messages of `serve status`, and of the RuntimeError that quotes one."""
PENDING = Signal(
    "serve.replica_pending",
    " replicas that have taken more than ",
    r"^Deployment '(?P<deployment>[^'\n]*)' in application '(?P<app>[^'\n]*)' (?:has )?(?P<replicas>\d+) replicas that have taken more "
    r"than (?P<seconds>\d{1,20}(?:\.\d{1,20})?)s to (?P<step>be scheduled|initialize)\."
    r"(?:.{0,1000}?[Rr]esources required for each\s{1,20}replica:\s{0,20}(?P<required>.{1,1000}?),?\s{1,20}[Tt]otal resources available:\s{0,20}(?P<available>.{1,1000}?)\.?\s{1,20}Use `ray)?",
    CONTROLLER,
    "Deployment 'Generator' in application 'generation' has 1 replicas that have taken more than 30s to be scheduled. This may be due to "
    "waiting for the cluster to auto-scale or for a runtime environment to be installed. Resources required for each replica: "
    '{"CPU": 8}, total resources available: {"CPU": 4.0}. Use `ray status` for more details.',
    extent="record",
    fold=("deployment", "step"),
)
READY = Signal(
    "serve.ready",
    " is ready",
    r"^(?:Application|Deployment) '(?P<ready>[^'\n]*)' is ready(?: at |\.)",
    DRIVER,
    "Application 'translation' is ready at http://127.0.0.1:8000/.",
)
REPLICA_READY = Signal(
    "serve.replica_ready",
    " started successfully on node ",
    rf"^(?:Replica )?{_REPLICA} started successfully on node ",
    CONTROLLER,
    f"{SAMPLE} started successfully on node '3f1c' after 3.2s (PID: 1213). Replica constructor took 1.1s, reconfigure method took 0.0s.",
    fold=("deployment", "tag"),
)
"""`_private/deployment_state.py`, 2.9 to 2.60."""
SIGNALS = (
    FAILED,
    NOT_ALLOCATED,
    NO_ANSWER,
    CHECK_FAILED,
    UNHEALTHY,
    STOPPED,
    CRASHED,
    *APP_FAILED,
    APP_STATUS,
    DEPLOY_FAILED,
    BUILD_FAILED,
    NO_DEPLOYMENT,
    *NOT_APPLIED,
    RAISED,
    *STATUS,
    READY,
)


class Said(NamedTuple):
    """One record about one replica."""

    event: Event
    app: str
    deployment: str
    replica: str

    @property
    def actor_name(self) -> str:
        """The name that Serve gives to the replica's actor."""
        parts = [part for part in (self.app, self.deployment, self.replica) if part]
        return f"SERVE_REPLICA::{'#'.join(parts)}"

    @property
    def class_name(self) -> str:
        """The class of the replica's actor, which also names its worker."""
        return ":".join(part for part in ("ServeReplica", self.app, self.deployment) if part)


def said(case: Case, *kinds: str) -> Iterator[Said]:
    """The controller's records about replicas, each once."""
    for event in controllers(case, *kinds):
        tag = event["tag"].split("#")
        replica = event["id"] or tag[-1]
        deployment = event["deployment"] or (tag[-2] if len(tag) > 1 else "")
        app = event["app"] or (tag[0] if len(tag) > 2 else "")
        yield Said(event, app, deployment, replica)


def controllers(case: Case, *kinds: str) -> Iterator[Event]:
    """Records of the controller itself, without tasks' output and without echoes of the log."""
    yield from _logged(case, "ServeController", *kinds)


def replicas(case: Case, *kinds: str) -> Iterator[Event]:
    """Records of replicas themselves, without tasks' output and without echoes of the log."""
    yield from _logged(case, "ServeReplica", *kinds)


def _logged(case: Case, writer: str, *kinds: str) -> Iterator[Event]:
    for event in case.of(*kinds):
        if event.source.is_excerpt and event.level and not event["who"]:
            yield event  # a pasted log
            continue
        is_echo = event.source.role != "serve"
        is_own = event["who"].partition(":")[0] == writer
        if not case.torn_down(event) and not (is_echo and ("serve" in case.roles or not is_own)):
            yield event


# ---------------------------------------------------------------- resources of a replica


def amounts(text: str) -> Mapping[str, float]:
    """`{"CPU": 8}` as the controller prints it; empty if it is cut off or damaged."""
    try:
        found = json.loads(text)
        numbers = found.items() if isinstance(found, dict) else ()
        given = {name: float(v) for name, v in numbers if isinstance(v, int | float)}
    except (ValueError, OverflowError, RecursionError):
        return {}
    return given if all(map(math.isfinite, given.values())) else {}


def deployment_of(class_name: str) -> str:
    """`Generator`, of a replica's class `ServeReplica:generation:Generator`; empty for other classes."""
    kind, _, rest = class_name.partition(":")
    return rest.rpartition(":")[2] if kind == "ServeReplica" else ""


def fewer_replicas(deployment: str, most: int, wanted: int) -> Remedy:
    """Fewer replicas of a deployment."""
    return Remedy(
        f"Start at most {plural(most, 'replica')} of {deployment} instead of {wanted}",
        (
            paste.python(
                "@serve.deployment(num_replicas={most})   # {of}", most=most, of=deployment
            ),
        ),
        doc=_DOC,
    )


def request(title: str, given: Mapping[str, float]) -> Remedy:
    """The decorator of a deployment whose replicas request these resources."""
    parts = [
        paste.python("{option}: {amount:g}", option=resources.OPTIONS[name], amount=amount)
        if name != "memory"
        else paste.python("{option}: {amount:.0f}", option=name, amount=amount)
        for name, amount in given.items()
        if name in resources.OPTIONS
    ]
    custom = [
        paste.python("{name}: {amount:g}", name=name, amount=amount)
        for name, amount in given.items()
        if name not in resources.OPTIONS and amount
    ]
    if custom:
        parts.append(paste.python("{option}: {{{custom}}}", option="resources", custom=custom))
    step = paste.python("@serve.deployment(ray_actor_options={{{parts}}})", parts=parts)
    return Remedy(title, (step,), doc=_DOC)

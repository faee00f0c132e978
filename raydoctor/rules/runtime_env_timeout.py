"""A runtime environment was not ready within its time limit, so the tasks, actors or job that need it could not start.

## What you see
- `RuntimeEnvSetupError: … Failed to install runtime_env within the timeout of 600 seconds. Consider increasing the
  timeout in the runtime_env config.` (up to Ray 2.10: `Failed due to timeout; check runtime_env setup logs`).
- The error arrives after three attempts, which take three times the limit. raydoctor reports a setup that has been
  running for more than a minute as a warning: it has not failed yet, or the driver ended first.

## Why
The node's agent cancels an attempt after `setup_timeout_seconds` (600) and starts again. The second and third attempt
repeat the same work. Usual causes are large packages, compilation, a slow or silent package index, a slow disk, and
many environments at once on one node. A cancelled attempt may leave files behind, so the next one fails with another
error (`dest dir … exists`), which is not the cause.

## Confirm
- In `runtime_env_setup-<job>.log`, the last `Run cmd[n] …` before the gap in the timestamps is the slow command. Run it
  by hand on the node, with `time`.
- `runtime_env_agent.log` contains `Failed to create runtime env {…}` with a traceback that ends in `TimeoutError`.

## Fix
Build the packages into the image, so that nothing is left to install. Or fix what is slow (index, proxy, disk), or
raise the time limit, which is in seconds:

    ray.init(runtime_env={"pip": ["PACKAGE"], "config": {"setup_timeout_seconds": 1800}})

## Not this when
- the tool itself failed, for example on a network error (`runtime-env-failed`).
- the environment was ready, and the worker did not register (`worker-start-slow`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, console, rule
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.status import EnvironmentBuild
from raydoctor.model.text import called, duration
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared.setup import builds, environments
from raydoctor.rules.shared.setup.builds import Build
from raydoctor.rules.shared.setup.environments import SetupFailure
from raydoctor.rules.shared.setup.errors import read
from raydoctor.rules.shared.setup.remedies import DOC, IMAGE, KEPT
from raydoctor.rules.shared.traceback import Raised, parse

_DEFAULT = 600
"""`setup_timeout_seconds` (`ray/_private/runtime_env/…`, 2.9 to 2.60)."""
_STEPS = {
    "_install_pip_packages": "pip install",
    "_install_uv_packages": "uv pip install",
    "create_or_get_virtualenv": "the creation of the virtual environment",
    "create_conda_env": "conda",
    "get_or_create_conda_env": "conda",
    "download_and_unpack_package": "the download of a package",
}
"""Functions of Ray's plugins (`ray/_private/runtime_env/*.py`) in which an attempt may be cancelled."""


@rule(
    tier="root",
    severity="error",
    rank=69,
    explains=("runtime-env", "waiting"),
    daemons_record=True,
    looks_for=(*environments.SIGNALS, *builds.SIGNALS),
)  # fmt: skip
def runtime_env_timeout(case: Case) -> Iterator[Finding]:
    """At most one finding for all cancelled attempts, and one for each setup that has not ended."""
    for failure in environments.failures(case):
        if failure.error.kind == "timeout":
            yield _finding(case, failure)
    for build in builds.lasting(case):
        yield _unfinished(build, build.at(build.ended_by(builds.seen_until(case))))


def _finding(case: Case, failure: SetupFailure) -> Finding:
    names = environments.affected(case, failure)
    recovered = not failure.seen and environments.made_later(case, failure)
    seconds = _seconds(failure)
    step = _step(failure)
    waiting = () if failure.seen or recovered else (Entity("waiting", "cluster"),)
    return Finding(
        _headline(failure, seconds, step, names, recovered),
        tuple(_links(failure, seconds, step)),
        explains=(Entity("runtime-env", "timeout"), *waiting),
        subjects=tuple(Subject("task", None, name) for name in names[:10]),
        count=max(1, evidence.total(failure.seen), evidence.total(failure.refused)),
        severity="warning" if recovered else None,
        remedies=tuple(_remedies(bool(failure.kept), seconds, step)),
        covers=(*failure.events, *_wrappers(case)),
    )


def _unfinished(build: Build, state: EnvironmentBuild) -> Finding:
    """A setup that has not ended yet, or had not when its driver left. Its tasks wait, and none has failed."""
    part = f"the {build.tool} part of a" if build.tool else "a"
    limit = f"its time limit is {duration(build.limit)}"
    lasts = duration(state.age or 0.0)
    text = f"Ray had not set up {part} runtime environment after {lasts} ({limit})"
    links = [Link(build.begun, f"the setup begins; {limit}, and it has not ended after {lasts}")]
    if build.command is not None and build.step:
        text += f": it was still in {build.step}"
        took = duration(state.command_age or 0.0)
        links.append(Link(build.command, f"{build.step} has not ended after {took}"))
    if build.left is not None:
        text += " when its driver or its tasks ended"
        links.append(Link(build.left, "nothing needs the environment any more"))
    return Finding(
        text,
        tuple(links),
        explains=(build.entity,),
        severity="warning",
        remedies=tuple(_remedies(False, int(build.limit), build.step)),
    )


def _headline(
    failure: SetupFailure, seconds: int, step: str, names: list[str], recovered: bool
) -> str:
    part = f"the {failure.tool} part of a" if failure.tool else "a"
    attempts = evidence.total(failure.attempts)
    place = next((ip for e in failure.events if (ip := read(e["what"]).ip)), "")
    limit = (
        f"the time limit of {seconds} s" if seconds else "the time limit (setup_timeout_seconds)"
    )
    each = "each " if attempts > 1 else ""
    text = f"{evidence.many(attempts, 'attempt') if attempts else 'An attempt'} to set up {part} runtime environment"
    text += f"{f' on node {place}' if place else ''} {each}exceeded {limit}{f' during {step}' if step else ''}"
    if recovered:
        return f"{text}, and a later attempt succeeded"
    return (
        f"{text}, so {evidence.join_names(map(called, names))} could not start" if names else text
    )


def _links(failure: SetupFailure, seconds: int, step: str) -> Iterator[Link]:
    after = f" after {seconds} s" if seconds else ""
    late = [e for e in failure.attempts if read(e["what"]).kind == "timeout"]
    for event in late[:1]:
        yield Link(event, f"the agent cancels an attempt{after}{f', during {step}' if step else ''}")  # fmt: skip
    for event in late[-1:] if len(late) > 1 else ():
        yield Link(event, f"attempt {evidence.total(failure.attempts)} exceeds the limit as well")
    for event in failure.refused[:1]:
        yield Link(event, "the raylet gives up starting a worker in this environment")
    for event in failure.seen[:1]:
        receiver = "the job" if event.kind == environments.JOB_FAILED.kind else "the driver"
        yield Link(event, f"{receiver} got the error")
    if not (late or failure.refused or failure.seen):
        yield Link(failure.events[0], "a request got the failure that the agent had cached")


def _wrappers(case: Case) -> list[Event]:
    """Errors of tasks that repeat the failure."""
    return [
        e
        for e in case.of("driver.exception")
        if e["inner"] == "RuntimeEnvSetupError" and read(e["what"]).kind == "timeout"
    ]


def _seconds(failure: SetupFailure) -> int:
    """The time limit, from the error's text or from the environment that the agent logs; 0 if unknown."""
    for event in failure.events:
        if limit := read(event["what"]).seconds:
            return int(float(limit))
    for event in failure.attempts:
        try:
            config = json.loads(event["env"]).get("config")
        except (ValueError, AttributeError, RecursionError):
            continue
        if isinstance(config, dict) and isinstance(config.get("setup_timeout_seconds"), int):
            return int(config["setup_timeout_seconds"])
    return 0


def _step(failure: SetupFailure) -> str:
    """The step that was cancelled: the innermost known function of the first attempt."""
    for event in failure.events:
        raised: Raised | None = parse(event["what"])
        while raised:
            for frame in reversed(raised.frames):
                if frame.function in _STEPS:
                    return _STEPS[frame.function]
            raised = raised.cause
    return ""


def _remedies(is_kept: bool, seconds: int, step: str) -> Iterator[Remedy]:
    more = max(3 * (seconds or _DEFAULT), _DEFAULT)
    yield Remedy(
        f"Find why {step or 'the setup'} takes so long on that node",
        (
            "grep 'Run cmd' /tmp/ray/session_latest/logs/runtime_env_setup-*.log   # run the last one by hand: time …",
            "curl -vsSI https://pypi.org/simple/ 2>&1 | grep -iE 'proxy|connected|< http'   # or your index. Run it on that node: does the index answer, and through which proxy?",
        ),
        doc=f"{DOC}#debugging",
    )
    yield IMAGE
    yield Remedy(
        f"Raise the time limit from {seconds or _DEFAULT} s to {more} s",
        (
            paste.python(
                'runtime_env={{"config": {{"setup_timeout_seconds": {seconds}}}}}   # plus your other entries',
                seconds=more,
            ),
        ),
        doc=DOC,
    )
    if is_kept:
        yield from KEPT


# ------------------------------------------------------------------ examples


_ENV = '{"config": {"eager_install": true, "setup_timeout_seconds": 25}, "pip": {"packages": ["acme==1.4.2"]}}'
_PACKAGE = "/home/user/venv/lib/python3.11/site-packages/ray/_private/runtime_env"
_BROKEN_OFF = (
    "Traceback (most recent call last):\n"
    f'  File "{_PACKAGE}/pip.py", line 264, in _run\n    await self._install_pip_packages(path)\n'
    f'  File "{_PACKAGE}/pip.py", line 190, in _install_pip_packages\n    await check_output_cmd(cmd)\n'
    "asyncio.exceptions.CancelledError\n\nThe above exception was the direct cause of the following exception:\n\n"
    "Traceback (most recent call last):\n"
    f'  File "{_PACKAGE}/agent/runtime_env_agent.py", line 561, in _create_runtime_env_with_retry\n'
    "    runtime_env_context = await asyncio.wait_for(\n"
    '  File "/usr/lib/python3.11/asyncio/tasks.py", line 502, in wait_for\n    raise exceptions.TimeoutError() from exc\n'
    "TimeoutError\n"
)
_LEFT_BEHIND = (
    "Traceback (most recent call last):\n"
    f'  File "{_PACKAGE}/utils.py", line 105, in check_output_cmd\n    raise SubprocessCalledProcessError(\n'
    "ray._private.runtime_env.utils.SubprocessCalledProcessError: Run cmd[3] failed with the following details.\n"
    "Command '['python', '_clonevirtualenv.py']' returned non-zero exit status 2.\nLast 50 lines of stdout:\n"
    "    _clonevirtualenv.py: error: dest dir '/tmp/ray/pip/7460/virtualenv' exists\n"
)
_HINT = (
    "Failed to install runtime_env within the timeout of 25 seconds. Consider increasing the timeout in the runtime_env "
    'config. For example: \n    runtime_env={"config": {"setup_timeout_seconds": 1800}, ...}\n'
    "If not provided, the default timeout is 600 seconds. "
)
_BEGUN = f"2026-11-21 10:45:01,100\tINFO runtime_env_agent.py:543 -- Creating runtime env: {_ENV} with timeout 600 seconds.\n"
_RUNS_PIP = (
    "2026-11-21 10:45:05,100\tINFO utils.py:76 -- Run cmd[3] ['/tmp/ray/session_x/runtime_resources/pip/0772/virtualenv/bin/python', "
    "'-m', 'pip', 'install', '-r', '/tmp/ray/ray_runtime_env_internal_pip_requirements.txt']\n"
)
_RAISED = "ray.exceptions.RuntimeEnvSetupError: Failed to set up runtime environment.\n"


def _attempt(second: int, text: str) -> str:
    return f"2026-11-21 10:45:{second:02},100\tERROR runtime_env_agent.py:569 -- Failed to create runtime env {_ENV}.\n{text}"


EXAMPLES: tuple[Example, ...] = (
    Example(
        "`pip` waits for its index, and the second attempt fails on files that the first left behind",
        {
            "logs/runtime_env_agent.log": _attempt(10, _BROKEN_OFF)
            + _attempt(12, _LEFT_BEHIND)
            + _attempt(38, _BROKEN_OFF),
            **QUIET_LOGS,
            "driver.log": f"Traceback (most recent call last):\n{_RAISED}[Node 10.0.0.2] {_HINT}{_BROKEN_OFF}",
        },
        says=("pip", "25 s", "3 attempts", "pip install", '"setup_timeout_seconds": 600'),
    ),
    Example(
        "without the driver's output",
        {"logs/runtime_env_agent.log": _attempt(10, _BROKEN_OFF), **QUIET_LOGS},
        roots=("runtime-env-timeout",),
    ),
    console(
        "Ray 2.9, whose message lacks the limit",
        f"Traceback (most recent call last):\n{_RAISED}Failed due to timeout; check runtime_env setup logs and "
        "consider increasing `setup_timeout_seconds` beyond the default of 600.For example: \n"
        f'    runtime_env={{"config": {{"setup_timeout_seconds": 1800}}, ...}}\n{_BROKEN_OFF}',
        roots=("runtime-env-timeout",),
    ),
    console(
        "the tool's own timeout",
        f"Traceback (most recent call last):\n{_RAISED}{_LEFT_BEHIND.partition('    _clone')[0]}"
        "    pip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool(host='pypi.org', port=443): Read timed out.\n",
        roots=("runtime-env-failed",),
    ),
    Example(
        "the driver left while pip waited for its index",
        {
            **QUIET_LOGS,
            "logs/runtime_env_agent.log": f"{_BEGUN}2026-11-21 10:46:31,100\tINFO runtime_env_agent.py:284 -- Unused runtime "
            f"env {_ENV}.\n",
            "logs/runtime_env_setup-01000000.log": _RUNS_PIP,
        },
        says=("pip part", "90 s", "10 min", "in pip install when its driver"),
        severity="warning",
    ),
    Example(
        "a ray.get gave up while pip waited for its index",
        {
            "logs/raylet.out": "",
            "logs/gcs_server.out": "[2026-11-21 10:46:17,100 I 8 8] (gcs_server) gcs_job_manager.cc:12: Finished marking job state, "
            "job id = 01000000\n",
            "logs/runtime_env_agent.log": _BEGUN,
            "logs/runtime_env_setup-01000000.log": _RUNS_PIP,
            "driver.log": 'Traceback (most recent call last):\n  File "/app/train.py", line 27, in <module>\n'
            "    ray.get(train.remote(3), timeout=75)\n"
            "ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.\n",
        },
        consequences=("get-timeout",),
        says=("after 76 s",),
        severity="warning",
    ),
    Example(
        "Ray was killed while pip waited for its index",
        {
            **QUIET_LOGS,
            "logs/runtime_env_agent.log": _BEGUN,
            "logs/runtime_env_setup-01000000.log": _RUNS_PIP,
            "logs/monitor.log": "2026-11-21 10:46:31,100\tINFO monitor.py:243 -- Ray version: 2.60.0\n",
        },
        says=("90 s", "in pip install"),
        severity="warning",
    ),
    Example(
        "a setup that took long and ended",
        {
            **QUIET_LOGS,
            "logs/runtime_env_agent.log": f"{_BEGUN}2026-11-21 10:46:21,100\tINFO runtime_env_agent.py:593 -- Successfully "
            f'created runtime env: {_ENV}, context: {{"command_prefix": []}}\n',
            "logs/runtime_env_setup-01000000.log": f"{_RUNS_PIP}2026-11-21 10:46:20,100\tINFO utils.py:103 -- No output for cmd[3]\n",
            "logs/monitor.log": "2026-11-21 10:46:31,100\tINFO monitor.py:243 -- Ray version: 2.60.0\n",
        },
    ),
    console(
        "a task prints the advice",
        f"(audit pid=12) {_HINT.partition(chr(10))[0]}\n",
        logs=QUIET_LOGS,
    ),
)

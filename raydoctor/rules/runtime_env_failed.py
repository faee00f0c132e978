"""Ray could not set up a runtime environment, so the tasks, actors or job that need it could not start.

## What you see
- `ray.exceptions.RuntimeEnvSetupError: Failed to set up runtime environment.`, with the traceback of Ray's own agent.
  One of its last lines names the cause: the error of pip, uv or conda.
- A submitted job fails with `runtime_env setup failed: …`.
- The driver ends with an exception of `ray/_private/runtime_env`, such as `ValueError: directory … must be an existing
  directory`.

## Why
Before the first worker with this `runtime_env` starts on a node, Ray's agent there creates a virtual environment,
installs the packages and fetches `working_dir`. The agent tries three times, one second apart. Then it caches the
failure for ten minutes (`BAD_RUNTIME_ENV_CACHE_TTL_SECONDS`) and returns it to every request for the same environment
on that node. During these ten minutes requests fail even if the cause (network, index) has been fixed.

The driver itself checks the environment and uploads local directories. If a directory is missing or an entry is
invalid, `ray.init` fails before anything starts.

## Confirm
- `runtime_env_agent.log` of the node has one `Failed to create runtime env {…}` per attempt, then `giving up` (up to
  Ray 2.40 `don't retry any more`). Later requests show `Runtime env already failed`.
- `runtime_env_setup-<job>.log` has the whole output of the tool.
- Run the same command by hand on that node: what matters is that node's network, disk, compiler and Python, not your
  machine's.

## Fix
Fix the error that the tool reports. Build stable packages into an image instead of installing them at run time. To get
past a cached failure, change the environment in any way, wait, or restart the node.

## Not this when
- the setup exceeded its time limit (`runtime-env-timeout`), or the directory to upload was too large
  (`package-too-large`).
- the environment was ready, and the worker crashed or hung while it started (`worker-start-crashed`,
  `worker-start-slow`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, console, rule
from raydoctor.model.entities import Entity
from raydoctor.model.text import called
from raydoctor.model.values import Event, Finding, Link, Severity, Subject
from raydoctor.rules.shared.failures import ended_programs, is_certain_end, program
from raydoctor.rules.shared.setup import environments
from raydoctor.rules.shared.setup.environments import SetupFailure
from raydoctor.rules.shared.setup.errors import SetupError, refused
from raydoctor.rules.shared.setup.remedies import remedies
from raydoctor.rules.shared.traceback import Raised

ELSEWHERE = ("timeout", "too-large")
"""Kinds that other rules report."""


@rule(
    tier="root",
    severity="error",
    rank=70,
    explains=("program", "runtime-env", "waiting"),
    daemons_record=True,
    looks_for=environments.SIGNALS,
)
def runtime_env_failed(case: Case) -> Iterator[Finding]:
    """One finding per cause, which is the tool's error, or per environment that the driver refused."""
    known = environments.failures(case)
    for failure in known:
        if failure.error.kind not in ELSEWHERE:
            yield _finding(case, failure)
    for ending, raised in () if known else ended_programs(case):
        refusal = refused(raised)
        if refusal and refusal.error.kind not in ELSEWHERE:
            yield _refused(ending, *refusal)


def _refused(ending: Event, raised: Raised, error: SetupError) -> Finding:
    return Finding(
        f"Ray refused the program's runtime environment: {raised}",
        (Link(ending, f"the program ends with Ray's exception in {raised.frames[-1]}"),),
        explains=(
            program(ending),
            Entity("runtime-env", f"{error.kind}: {error.said}"),
        ),
        severity=None if is_certain_end(ending) else "warning",
        remedies=remedies(error, "", kept=False),
    )


def _finding(case: Case, failure: SetupFailure) -> Finding:
    error = failure.error
    affected = environments.affected(case, failure)
    recovered = not failure.seen and environments.made_later(case, failure)
    severity: Severity | None = "warning" if recovered else None
    nodes = sorted({case.node_of(e.source) for e in failure.attempts})
    explains = [Entity("runtime-env", f"{error.kind}: {error.said}")]
    if not failure.seen and not recovered:
        explains.append(Entity("waiting", "cluster"))
    return Finding(
        _headline(failure, affected, recovered),
        tuple(environments.links(failure)),
        explains=tuple(explains),
        caused_by=tuple(Entity("disk", node) for node in nodes) if error.kind == "disk" else (),
        subjects=tuple(Subject("task", None, name) for name in affected[:10]),
        count=max(1, evidence.total(failure.seen), evidence.total(failure.refused)),
        severity=severity,
        remedies=remedies(error, failure.tool, bool(failure.kept)),
        covers=(*failure.events, *environments.wrappers(case, failure)),
    )


def _headline(failure: SetupFailure, affected: list[str], recovered: bool) -> str:
    part = f"the {failure.tool} part of a" if failure.tool else "a"
    attempts = evidence.total(failure.attempts)
    text = f"Ray could not set up {part} runtime environment"
    text += f" on node {failure.error.ip}" if failure.error.ip else ""
    text += f" in {evidence.many(attempts, 'attempt')}" if attempts else ""
    text += f": {failure.error.said}"
    if failure.error.available not in ("", "none"):
        text += f" (available: {failure.error.available})"
    if recovered:
        return f"{text}, and a later attempt succeeded"
    if affected:
        text += f", so {evidence.join_names(map(called, affected))} could not start"
    return text


# ------------------------------------------------------------------ examples

_ENV = '{"_ray_commit": "b7f4259e944b", "pip": {"packages": ["acme-features==1.4.2"], "pip_check": false}}'
_PIP = (
    "Traceback (most recent call last):\n"
    '  File "/home/user/venv/lib/python3.11/site-packages/ray/_private/runtime_env/utils.py", line 105, in check_output_cmd\n'
    "    raise SubprocessCalledProcessError(\nray._private.runtime_env.utils.SubprocessCalledProcessError: Run cmd[9] failed "
    "with the following details.\nCommand '['/tmp/ray/session_x/runtime_resources/pip/0772/virtualenv/bin/python', '-m', 'pip', "
    "'install']' returned non-zero exit status 1.\nLast 50 lines of stdout:\n"
)
_NO_PACKAGE = (
    f"{_PIP}    Looking in indexes: http://10.0.0.9/simple\n    ERROR: Could not find a version that satisfies the requirement "
    "acme-features==1.4.2 (from versions: none)\n    ERROR: No matching distribution found for acme-features==1.4.2\n"
)
_OFFLINE = (
    f"{_PIP}    WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('<pip._vendor.urllib3.connection."
    "HTTPSConnection object at 0x7fd>: Failed to establish a new connection: [Errno 110] Connection timed out')': /simple/acme/\n"
    "    ERROR: Could not find a version that satisfies the requirement acme (from versions: none)\n"
    "    ERROR: No matching distribution found for acme\n"
)
_NO_DIRECTORY = (
    'Traceback (most recent call last):\n  File "/app/train.py", line 9, in <module>\n    ray.init(runtime_env=env)\n'
    '  File "/venv/lib/python3.11/site-packages/ray/_private/runtime_env/packaging.py", line 540, in get_uri_for_directory\n'
    '    raise ValueError(f"directory {directory} must be an existing directory")\n'
    "ValueError: directory /data/jobs/etl must be an existing directory\n"
)
_DIRECTORY_OF_TASK = (
    'Traceback (most recent call last):\n  File "/usr/lib/python3.11/enum.py", line 1135, in __new__\n    raise ve_exc\n'
    "ValueError: '' is not a valid Protocol\n\nDuring handling of the above exception, another exception occurred:\n\n"
    'Traceback (most recent call last):\n  File "/app/train.py", line 9, in <module>\n    @ray.remote(runtime_env=env)\n'
    '  File "/venv/lib/python3.11/site-packages/ray/_private/runtime_env/validation.py", line 23, in validate_uri\n'
    "    raise ValueError(\nValueError: /app/shared is not a valid URI. Passing directories or modules to be dynamically "
    "uploaded is only supported at the job level (i.e., passed to `ray.init`).\n"
)
_RAISED = "Traceback (most recent call last):\nray.exceptions.RuntimeEnvSetupError: Failed to set up runtime environment.\n"


def _agent_log(*attempts: str) -> dict[str, str]:
    return {
        "logs/runtime_env_agent.log": "".join(
            f"2026-11-21 07:43:3{n},100\tERROR runtime_env_agent.py:569 -- Failed to create runtime env {_ENV}.\n{text}"
            for n, text in enumerate(attempts)
        )
        + f"2026-11-21 07:43:40,100\tERROR runtime_env_agent.py:587 -- runtime_env creation failed {len(attempts)} times, giving up.\n"
        f"2026-11-21 07:43:40,101\tINFO runtime_env_agent.py:643 -- Runtime env already failed. Env: {_ENV}, err: {attempts[-1]}",
        **QUIET_LOGS,
    }


EXAMPLES: tuple[Example, ...] = (
    Example(
        "the index lacks the package: three attempts fail, and a second task gets the cached error",
        {
            **_agent_log(*[_NO_PACKAGE] * 3),
            "driver.log": f"{_RAISED}[Node 10.0.0.2] {_NO_PACKAGE}",
        },
        says=(
            "pip",
            "3 attempts",
            "acme-features==1.4.2",
            "To retry immediately",
            "--index-url",
        ),
    ),
    console(
        "the same last line, but pip never reached the index (driver's output only, 2.40 and older)",
        f"{_RAISED}{_OFFLINE}",
        says=("Connection timed out", "reach"),
    ),
    console(
        "a paste that holds only the traceback of the agent",
        'Traceback (most recent call last):\n  File "/venv/lib/python3.9/site-packages/ray/dashboard/modules/runtime_env/'
        'runtime_env_agent.py", line 104, in _setup_runtime_env\n    return await loop.run_in_executor(None, run_setup)\n'
        '  File "/venv/lib/python3.9/site-packages/ray/dashboard/modules/runtime_env/runtime_env_agent.py", line 97, in run_setup\n'
        '    for uri in env.get("uris", []):\nTypeError: no such list\n',
        says=("could not set up a runtime environment: TypeError: no such list",),
    ),
    console(
        "a package that does not build",
        f"{_RAISED}{_PIP}      error: subprocess-exited-with-error\n      × Preparing metadata "
        "(pyproject.toml) did not run successfully.\n          RuntimeError: CUDA_HOME is not set\n          [end of output]\n"
        "    error: metadata-generation-failed\n",
        says=("RuntimeError: CUDA_HOME is not set", "wheel"),
    ),
    console(
        "a submitted job whose packages conflict",
        "Status message: runtime_env setup failed: Failed to set up runtime environment.\n"
        f"[Node 10.0.0.2] {_PIP}    error: No solution found when resolving dependencies\n      cause: Because acme==1 "
        "depends on numpy<2 and you require numpy==2.1, we can conclude that your requirements are unsatisfiable.\n",
        roots=("runtime-env-failed",),
    ),
    Example(
        "the second attempt succeeds",
        {
            "logs/runtime_env_agent.log": "2026-11-21 07:43:30,100\tERROR runtime_env_agent.py:569 -- Failed to create runtime "
            f"env {_ENV}.\n{_OFFLINE}2026-11-21 07:43:40,100\tINFO runtime_env_agent.py:593 -- Successfully created runtime env: "
            f'{_ENV}, context: {{"command_prefix": []}}\n',
            **QUIET_LOGS,
        },
        severity="warning",
    ),
    console(
        "the end of an agent's traceback, as older drivers echo it",
        '(pid=runtime_env, ip=10.0.0.2)   File "/venv/site-packages/ray/_private/runtime_env/pip.py", line 542, in '
        "modify_context\n(pid=runtime_env, ip=10.0.0.2)     raise ValueError(\n"
        f"(pid=runtime_env, ip=10.0.0.2) {environments.RAISED[0].sample}\n",
        says=("for URI pip://4950 does not exist",),
    ),
    console(
        "the exception of an agent, alone",
        f"{environments.RAISED[1].sample}\n",
        says=("_ray_pkg_4950.zip",),
    ),
    console(
        "options that exclude each other",
        f"{environments.RAISED[3].sample}\n",
        says=("'container' field currently cannot be used together",),
    ),
    console(
        "an agent's traceback that a document viewer has escaped, cut off",
        "RuntimeEnvSetupError: Failed to set up runtime environment.\nTraceback (most recent call last):\n"
        '  File \\"/venv/site-packages/ray/_private/runtime_env/plugin.py\\", line 254, in create_for_plugin_if_needed\n'
        "    size_bytes = await plugin.create(uri)\n                 ^^^^^^^^^^^^^^^^^^^^^^\n",
        says=("that the console cut off, in create_for_plugin_if_needed",),
    ),
    console(
        "the environment of a Ray Client fails, and the paste begins within the traceback",
        '    "Failed to create runtime_env for Ray client "\nRuntimeError: Failed to create runtime_env for Ray client '
        "server: Failed to install conda environment /tmp/ray/session_x/runtime_resources/conda/bda0:\n"
        "RuntimeError: no Java runtime, set JAVA_HOME\n",
        says=("no Java runtime, set JAVA_HOME",),
    ),
    console(
        "the last lines of the agent's traceback, alone",
        f"{_PIP.partition('ray._private')[2].join(('ray._private', ''))}    ERROR: No matching distribution found for acme\n",
        says=("No matching distribution found for acme",),
    ),
    console(
        "a program of its own that runs commands",
        "(build pid=12) Run cmd[2] of 9\n(build pid=12) cmd[2] failed with the following details: none\n",
    ),
    console(
        "a conda environment that does not exist",
        f"{environments.RAISED[2].sample}\n",
        says=("The given conda environment 'py39'",),
    ),
    console(
        "a pasted log of an agent that ends within the traceback",
        f"2026-11-21 07:43:30,100\tERROR runtime_env_agent.py:569 -- Failed to create runtime env {_ENV}.\n"
        'Traceback (most recent call last):\n  File "/venv/site-packages/ray/_private/runtime_env/pip.py", line 394, in '
        "create\n    pip_dir_bytes = await task\n",
        says=("an error that the console cut off, in create",),
    ),
    console(
        "a task has a local directory in its own environment",
        _DIRECTORY_OF_TASK,
        logs=QUIET_LOGS,
        says=(
            "Ray refused",
            "/app/shared is not a valid URI",
            "Pass local directories in ray.init",
        ),
    ),
    console(
        "ray.init gets a directory that does not exist",
        _NO_DIRECTORY,
        says=("must be an existing directory", "/an/existing/directory"),
    ),
    console(
        "a program whose own runtime_env.py raises the same words",
        _NO_DIRECTORY.replace("/site-packages/ray/_private/runtime_env", "/app"),
        roots=("job-failed",),
    ),
    console(
        "a task prints the error of an old incident",
        f"(grep pid=12) {_NO_PACKAGE.replace(chr(10), chr(10) + '(grep pid=12) ')}\n"
        "summary: RuntimeEnvSetupError: see chapter 4\n",
        logs=QUIET_LOGS,
    ),
    console(
        "the proxy of Ray Client gets no answer from the agent",
        "ConnectionAbortedError: Initialization failure from server:\nTraceback (most recent call last):\n"
        '  File "/venv/lib/python3.8/site-packages/ray/util/client/server/proxier.py", line 281, in _create_runtime_env\n'
        "    raise TimeoutError(\nTimeoutError: GetOrCreateRuntimeEnv request failed after 5 attempts. Last exception: HTTP Error 503: Service Unavailable\n",
        says=("GetOrCreateRuntimeEnv request failed after 5 attempts", "503"),
    ),
)

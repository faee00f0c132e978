"""Worker processes died while they were starting.

## What you see
`Some workers of the worker process(450) have not registered within the timeout. The process is dead, probably it
crashed during start.`, again and again. Since Ray 2.55 the task finally fails with `RaySystemError: … Failed to startup
worker after retrying 5 times`, and an actor with `Could not create the actor because worker startup repeatedly failed`.
Before Ray 2.55 nothing fails: tasks wait forever.

## Why
A worker is a new Python process that imports Ray and then registers with its raylet. Something in its environment
breaks the import: a module of yours that hides a standard one (`queue.py`, `types.py` on `PYTHONPATH`), a Ray or Python
version other than the raylet's, a missing library, or a limit on threads or files. A module of yours that parses
`sys.argv` while it is imported also ends the worker: the command line of a worker holds Ray's own options
(`default_worker.py: error: unrecognized arguments: --node-ip-address=…`).

## Confirm
- `raylet.err` of that node contains what the process printed: a worker that fails this early has no `.err` file yet.
  The report quotes the exception.
- On that node, `python -c "import ray"` with the same environment fails with the same error.

## Fix
Fix what the import error names, or remove the part of `runtime_env` that causes the error (`PYTHONPATH`, `working_dir`,
`py_executable`, `pip`).

## Not this when
- the process is `still alive` (`worker-start-slow`).
- the runtime environment could not be created (`runtime-env-failed`).
- the worker had registered, and died later (`worker-vanished`, `worker-native-crash`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, console, rule
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import called
from raydoctor.model.values import Finding, Link, Remedy, Subject
from raydoctor.rules.shared.setup import imports, worker_start
from raydoctor.rules.shared.setup.worker_start import Starts
from raydoctor.rules.shared.traceback import BEGIN, Raised, cut_off

_DOC = "https://docs.ray.io/en/latest/ray-core/handling-dependencies.html"
_HIDDEN = pattern(
    r"module '(?P<module>\w+)' has no attribute|cannot import name '\w+' from (?:partially initialized module )?'(?P<package>\w+)'"
)


_VARIABLES = "env_vars of the runtime_env"
_PARSE = Remedy(
    "Parse arguments only where the file runs as a program: workers import the module, and their command line is Ray's",
    (
        'if __name__ == "__main__": args = parser.parse_args()   # not at the level of the module',
        "args, _ = parser.parse_known_args()   # if the module must parse while it is imported",
    ),
    doc=_DOC,
)


@rule(
    tier="root",
    severity="error",
    rank=71,
    explains=("start-crashed", "waiting"),
    caused_by=("ports",),
    daemons_record=True,
    looks_for=worker_start.SIGNALS,
)
def worker_start_crashed(case: Case) -> Iterator[Finding]:
    """One finding per node: its environment breaks every start alike."""
    for one in worker_start.starts(case, "dead"):
        yield _finding(case, one)


def _finding(case: Case, one: Starts) -> Finding:
    raised = worker_start.raised(one.words)
    names = worker_start.affected(case, one)
    return Finding(
        _headline(one, raised, names),
        tuple(_links(one, raised)),
        explains=(Entity("start-crashed", one.node), *one.entities),
        caused_by=tuple(
            Entity("ports", node)
            for node in ((one.node, "") if one.node else (*case.ledger.node_ips, ""))
        ),
        subjects=(
            Subject("node", one.node or None, one.ip or None),
            *(Subject("task", None, n) for n in names[:9]),
        ),
        count=max(1, one.count),
        severity="warning" if worker_start.is_over(case, one) else None,
        remedies=(_PARSE,)
        if _arguments(one) and not raised
        else tuple(_remedies(case, one, raised)),
        covers=(*one.events, *one.words, *one.given_up, *worker_start.echoes(case, "dead")),
    )


def _headline(one: Starts, raised: Raised | None, names: list[str]) -> str:
    if not (one.events or one.given_up):
        text = f"A worker process died while starting{one.place}"
    elif not one.events:
        text = "Ray gave up starting workers because every one died or did not register"
    else:
        text = f"{evidence.many(one.count, 'worker process', 'worker processes')} died while starting{one.place}"
    so = f"so task{'s' if len(names) > 1 else ''} {evidence.join_names(map(called, names))} could not run"
    if module := _standard_module(raised):
        text = f"A {module}.py hides Python's own module '{module}': {text[:1].lower()}{text[1:]}"
    else:
        text += f": {_what(one, raised)}"
    return f"{text}, {so}" if names else text


def _standard_module(raised: Raised | None) -> str:
    """The module of Python itself in whose place workers import another file; empty if it is none."""
    found = _HIDDEN.search(raised.message) if raised else None
    module = (found["module"] or found["package"]) if found else ""
    return module if imports.LIKELY.fullmatch(module) and module != "ray" else ""


def _what(one: Starts, raised: Raised | None) -> str:
    if raised:
        return f"{raised}" + (f", in {raised.place}" if raised.place else "")
    if parsed := _arguments(one):
        return f"a module that it imported parses Ray's own options ({parsed})"
    if any(cut_off(e.message) or e.message.startswith(BEGIN) for e in one.words):
        return "an exception that the console cut off"
    words = next((e["what"] for e in one.words if e.kind == "worker.start_words"), "")
    return words.strip() or "their output is not in the capture (see raylet.err on that node)"


def _arguments(one: Starts) -> str:
    """What a parser of command lines printed about Ray's own options; empty if none did."""
    return next((e["what"] for e in one.words if e.kind == worker_start.ARGUMENTS[0].kind), "")


def _links(one: Starts, raised: Raised | None) -> Iterator[Link]:
    for event in one.words[:1]:
        what = "the error of a parser" if _arguments(one) else _what(one, raised)
        yield Link(event, f"a starting worker printed {what}")
    for event in one.events[:1]:
        after = f" after {one.timeout:.0f} s" if one.timeout else ""
        yield Link(event, f"the raylet found the starting process dead{after}")
    if one.count > 1:
        yield Link(one.events[-1], f"the last of {one.count} processes that died while starting")
    for event in one.given_up[:1]:
        yield Link(event, f"Ray gave up, and the driver got {event['type']}")


def _remedies(case: Case, one: Starts, raised: Raised | None) -> Iterator[Remedy]:
    path = worker_start.search_path(case)
    run = worker_start.python_with(path)
    node = f"node {one.ip}" if one.ip else "the node"
    variables = ", with the " + ("other " if path else "PYTHONPATH and other ") + _VARIABLES
    message = raised.message if raised else ""
    hidden = _HIDDEN.search(message)
    missing = imports.MISSING.search(message)
    if hidden:
        module = hidden["module"] or hidden["package"]
        own = f"Python's own module '{module}'" if _standard_module(raised) else "the package"
        yield Remedy(
            f"Find the {module}.py that hides {own}, and rename it: run Python with the environment of the workers",
            (
                paste.shell(
                    '{python} -c "import {module:name}; print({module:name}.__file__)"   # on {node}{variables}',
                    python=run,
                    module=module,
                    node=node,
                    variables=variables,
                ),
                paste.shell(
                    "git mv {module:name}.py our_{module:name}.py   # then change the imports of it",
                    module=module,
                ),
            ),
            doc=_DOC,
        )
    elif homes := case.of(worker_start.PYTHON_HOME.kind):
        yield Remedy(
            "Remove PYTHONHOME from env_vars of the runtime environment, or from the environment of ray start: "
            f"Python found no standard library under {homes[0]['home']}",
            (
                paste.shell(
                    "ls -d {home:path}/lib/python*/encodings   # on the node: Python needs it there",
                    home=homes[0]["home"],
                ),
            ),
            doc=_DOC,
        )
    elif missing:
        yield Remedy(
            f"Install '{missing['module']}' in the environment that the workers start with",
            (
                paste.shell(
                    'PYTHON -c "import {module:name}"   # with the Python of the workers, on the node',
                    module=missing["module"],
                ),
            ),
            doc=_DOC,
        )
    yield Remedy(
        "Check the fix: with the environment of the workers, Python must import Ray"
        if hidden or missing
        else "Find the error: start Python with the environment of the workers, until it imports Ray",
        (
            paste.shell(
                '{python} -X faulthandler -c "import ray; print(ray.__version__, ray.__file__)"   # on {node}{variables}',
                python=run,
                node=node,
                variables=variables,
            ),
            "less /tmp/ray/session_latest/logs/raylet.err   # what the starting workers printed",
        ),
        doc=_DOC,
    )


# ------------------------------------------------------------------ examples


_TRACEBACK = (
    f"Traceback (most recent call last):\n{worker_start.TRACEBACK.sample.partition(chr(10))[0]}\n    import ray\n"
    '  File "/home/user/venv/lib/python3.11/site-packages/urllib3/connectionpool.py", line 64, in <module>\n'
    "    _DEFAULT_QUEUE_CLASS = queue.LifoQueue\n                           ^^^^^^^^^^^^^^^\n"
    "AttributeError: module 'queue' has no attribute 'LifoQueue'\n"
)
_N = "8a48de2b3090914191b0346f524bc049995481c98e6489957c318fee"


def _unregistered(at: str, pid: int) -> str:
    text = worker_start.UNREGISTERED.sample.replace("(450)", f"({pid})")
    return f"[2026-11-21 07:48:{at} E 285 285] (raylet) worker_pool.cc:660: {text}\n"


_RAISED = (
    "ray.exceptions.RaySystemError: System error: Failed to startup worker after retrying 5 times. This is most often caused by "
    "errors in the worker's Python environment setup. For additional context, please look at the raylet.err on node "
    f"{_N}. lease_id=0000000001000000{'f' * 48}\n"
)

_NO_HOME = (
    f"Python path configuration:\n{worker_start.PYTHON_HOME.sample}\n  PYTHONPATH = (not set)\n  sys.path = [\n    '/opt/python3/lib',\n  ]\n"
    f"{worker_start.FATAL.sample}\nPython runtime state: core initialized\nModuleNotFoundError: No module named 'encodings'\n\n"
)

EXAMPLES: tuple[Example, ...] = (
    *(
        console(
            f"a module parses the worker's command line: {signal.find}",
            f"(pid=450) usage: default_worker.py [-h] [--lr LR]\n(pid=450) {signal.sample}\n",
            says=("parses Ray's own options", "parse_known_args"),
        )
        for signal in worker_start.ARGUMENTS
    ),
    console(
        "a program of the user rejects its own options",
        "(main pid=450) usage: train.py [-h] [--lr LR]\n(main pid=450) train.py: error: unrecognized arguments: --node-ip-address=10.0.0.2\n",
    ),
    Example(
        "a user module hides a standard one, and Ray gives up",
        {
            "logs/raylet.out": "".join(
                worker_start.started_line(f"{8 * n:02},119", 450 + n)
                + _unregistered(f"{8 * n + 8:02},119", 450 + n)
                for n in range(6)
            ),
            "logs/raylet.err": "".join(
                _TRACEBACK + _unregistered(f"{8 * n + 8:02},119", 450 + n) for n in range(6)
            ),
            "logs/gcs_server.out": "",
            "driver.log": _RAISED,
        },
        says=(
            "6 worker processes",
            "A queue.py hides Python's own module 'queue'",
            "queue.__file__",
        ),
        is_typical=True,
    ),
    Example(
        "env_vars set PYTHONHOME to a folder without a standard library",
        {
            "logs/raylet.out": worker_start.started_line("00,119", 450)
            + _unregistered("50,119", 450),
            "logs/gcs_server.out": "",
            "logs/raylet.err": _NO_HOME,
        },
        says=("Fatal Python error: init_fs_encoding", "Remove PYTHONHOME", "/opt/python3"),
    ),
    console(
        "before 2.55 the caller only times out; only the driver's output is available",
        "".join(
            "".join(f"(raylet) {line}\n" for line in _TRACEBACK.splitlines())
            + f"(raylet) {_unregistered(f'{8 * n + 8:02},119', 450 + n)}"
            for n in range(3)
        )
        + "Traceback (most recent call last):\nray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.\n",
        consequences=("get-timeout",),
        says=("3 worker processes", "A queue.py hides Python's own module"),
    ),
    console(
        "only the final error is available: the cause is Ray's guess",
        _RAISED,
        roots=("worker-start-crashed",),
    ),
    console(
        "a task prints the sentence",
        f"(check pid=12) {worker_start.UNREGISTERED.sample}\n",
        logs=QUIET_LOGS,
    ),
    console(
        "a console shows only what a starting worker printed",
        "(raylet) Traceback (most recent call last):\n"
        '(raylet)   File "/opt/venv/lib/python3.12/site-packages/ray/_private/workers/default_worker.py", line 8, in <module>\n'
        "(raylet)     import ray\n(raylet) ModuleNotFoundError: No module named 'ray'\n",
        says=("A worker process died while starting", "No module named 'ray'"),
    ),
    console(
        "Ctrl-C while workers start",
        '(raylet) Traceback (most recent call last):\n(raylet)   File "/venv/lib/python3.11/site-packages/ray/_private/workers/'
        'default_worker.py", line 8, in <module>\n(raylet)     import ray\n(raylet) KeyboardInterrupt\n',
    ),
    *(
        console(
            f"the raylet prints a traceback of a worker that uv starts, {what}",
            "(raylet) Creating virtual environment at: .venv\n(raylet) Traceback (most recent call last):\n"
            '(raylet)   File "/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_79/.venv/lib/python3.13/site-packages/tool.py", line 3, in <module>\n'
            f"(raylet)     import core{rest}",
            says=(says,),
        )
        for what, rest, says in (
            (
                "whole",
                "\n(raylet) ModuleNotFoundError: No module named 'core'\n",
                "No module named 'core'",
            ),
            ("cut off", "", "an exception that the console cut off"),
        )
    ),
    console(
        "the raylet prints a traceback of an agent",
        "(raylet) Traceback (most recent call last):\n"
        '(raylet)   File "/venv/lib/python3.13/site-packages/ray/dashboard/agent.py", line 3, in <module>\n'
        "(raylet)     import core\n(raylet) ModuleNotFoundError: No module named 'core'\n(train pid=7) epoch 1\n(train pid=7) epoch 2\n",
        roots=("agent-died",),
    ),
)

"""A result of a compiled graph was not ready in time: an actor of the graph did not answer.

## What you see
`ray.exceptions.RayChannelTimeoutError: System error: Timed out waiting for object available to read. ObjectID: …`, then
`… increase RAY_CGRAPH_get_timeout which is currently 300 seconds. Otherwise, this may indicate that the execution is
hanging.` vLLM then reports `EngineCore encountered a fatal error` and `EngineDeadError`.

## Why
The caller of a compiled graph (vLLM's engine, if its executor is Ray) waits for a channel that one of the actors writes.
That actor is hung in a collective operation, has died, or is still computing (the first request may compile kernels). The
ObjectID contains the id of the actor that writes the channel.

The limit is 10 s, or the value of `RAY_CGRAPH_get_timeout` when the *calling* process imports `ray.dag`. vLLM 0.8 to 0.32
sets 300 s in its engine. A process that imported `ray.dag` earlier keeps 10 s, even if vLLM prints another value.

## Confirm
- `ray list actors --detail --filter actor_id=ACTOR_ID`, with the id in the report: is the actor alive, and where?
- `py-spy dump --pid PID` of the actors while the call waits: the actor with a different stack blocks the others.
- If a small request succeeds and only a long one fails, the actor is slow, not hung.

## Fix
Fix the actor that did not answer. If the actor is only slow, set the limit in seconds in the environment of the process that calls
the graph, before it starts:

    export RAY_CGRAPH_get_timeout=900

## Not this when
- the error is `RayChannelError: Channel closed`: an actor of the graph exited.
- the error is `GetTimeoutError` (`get-timeout`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import RAY_EXCEPTION, WORKER_DIED, WORKER_EXIT
from raydoctor.model import ids, paste
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import engine
from raydoctor.rules.shared import failures as user_errors
from raydoctor.rules.shared import gpu_fault as gpu
from raydoctor.rules.shared.task_error import Printed, error_entities

_DOC = "https://docs.ray.io/en/latest/ray-core/compiled-graph/troubleshooting.html"
_OUTPUT = (*gpu.OUTPUT, "serve", "train")
_DEFAULT, _LONGER = 10, 300
"""Seconds: Ray's default (`ray/dag/context.py`, 2.41 to 2.60), and what vLLM 0.8 to 0.32 sets."""

TIMED_OUT = (
    Signal(
        "cgraph.channel",
        "RayChannelTimeoutError: ",
        r"RayChannelTimeoutError: (?:System error: )?(?:Timed out waiting for object available to read"
        r"(?:\. ObjectID: (?P<channel>[0-9a-f]{56}))?|Timed out waiting for semaphore|Timed out acquiring the read lock|"
        r"Cannot read all channels within )",
        _OUTPUT,
        "ray.exceptions.RayChannelTimeoutError: System error: Timed out waiting for object available to read. ObjectID: "
        "00db14a0419b947be8629230a5372fe48e7380ad0100000002e1f505",
        fold=("channel",),
    ),
    Signal(
        "cgraph.timeout",
        " seconds. Otherwise, this may indicate that ",
        r"If the execution is expected to take a long time, increase RAY_CGRAPH_(?P<setting>get|submit)_timeout which is currently "
        r"(?P<seconds>\d+) seconds\. Otherwise, this may indicate that ",
        _OUTPUT,
        "ray.exceptions.RayChannelTimeoutError: System error: If the execution is expected to take a long time, increase "
        "RAY_CGRAPH_get_timeout which is currently 10 seconds. Otherwise, this may indicate that the execution is hanging.",
        fold=("seconds",),
    ),
)
SET = Signal(
    "cgraph.set",
    "RAY_CGRAPH_get_timeout is set to ",
    r"RAY_CGRAPH_get_timeout is set to (?P<seconds>\d+)\s*$",
    _OUTPUT,
    "RAY_CGRAPH_get_timeout is set to 300",
)
"""vLLM's engine prints the variable's value, not the effective limit."""


@rule(
    tier="root",
    severity="error",
    rank=39,
    explains=("task-error",),
    caused_by=("gpu-fault", "process", "worker"),
    looks_for=(
        *TIMED_OUT,
        SET,
        *gpu.SIGNALS,
        *user_errors.SIGNALS,
        RAY_EXCEPTION,
        WORKER_EXIT,
        WORKER_DIED,
    ),
)
def compiled_graph_timeout(case: Case) -> Iterator[Finding]:
    """One finding for all timeouts of the capture."""
    lines = sorted(
        (e for e in case.of("cgraph.channel", "cgraph.timeout") if _is_raised(e)),
        key=lambda e: (e.at is None, e.at or 0.0, e.line),
    )
    if lines:
        yield _finding(case, lines)


def _is_raised(event: Event) -> bool:
    """Whether the line is the exception as Python prints it, not a sentence that quotes it."""
    before, found, _ = event.message.partition("RayChannelTimeoutError: ")
    start = before.rpartition("] ")[2].strip()
    return bool(found) and start in ("", "ray.exceptions.", "raise ray.exceptions.")


def _finding(case: Case, lines: list[Event]) -> Finding:
    limits = [e for e in lines if e["seconds"]]
    seconds = int(limits[0]["seconds"][:9]) if limits else 0
    setting = limits[0]["setting"] if limits else "get"
    wanted = [e for e in case.of(SET.kind) if seconds and int(e["seconds"][:9]) != seconds]
    actors = list(dict.fromkeys(a for e in lines if (a := _writer(e))))
    exits = engine.earlier_exits(case, lines[0], actors)
    errors = [seen for seen in user_errors.failures(case) if _is_of_graph(seen)]
    return Finding(
        _headline(case, seconds, actors, wanted),
        (
            *(Link(e, "the channel contained no result at the timeout") for e in lines[:1]),
            *(Link(e, f"the limit of the calling process was {seconds} s") for e in limits[:1] if e is not lines[0]),
            *(Link(e, f"vLLM set {e['seconds']} s, but ray.dag had already been imported") for e in wanted[:1]),
            *(link for exit_ in exits[:1] for link in evidence.exit_links(exit_, most=1)),
        ),
        explains=error_entities(errors),
        caused_by=(*gpu.earlier(case, lines[0]), *evidence.exit_entities(exits)),
        subjects=tuple(Subject("actor", a, case.actor(a).class_name or None) for a in actors[:10]),
        count=max(1, len(limits)),
        remedies=tuple(_remedies(seconds or _limit(case), setting, actors, wanted)),
        covers=(
            *lines,
            *gpu.tracebacks(case, "RayChannelTimeoutError"),
            *(e for e in case.of("driver.exception") if "RayChannelTimeoutError" in (e["type"], e["inner"])),
            *(e for e in case.of("driver.exception") if e["inner"] == "EngineDeadError"),
            *(e for seen in errors for e in seen.records),
        ),
    )  # fmt: skip


_VLLM_FRAME = pattern(
    r'[/"]vllm/(?:v1|executor|engine|worker|entrypoints)/[\w/]{1,100}\.py", line \d'
)
_OF_VLLM = 300
"""Seconds that vLLM (0.8 to 0.32) sets unless the variable is set."""


def _limit(case: Case) -> int:
    """The limit that applies where the text does not contain it: vLLM's, if its frames show that it made the graph."""
    shown = case.of("log.traceback", "driver.exception")
    return _OF_VLLM if any(_VLLM_FRAME.search(event.text) for event in shown) else _DEFAULT


def _writer(event: Event) -> str:
    """The actor that writes the channel: it created the channel's object."""
    parts = ids.parse_object_id(event["channel"]) if event["channel"] else None
    return parts.actor if parts else ""


def _is_of_graph(seen: Printed) -> bool:
    raised = seen.failure.raised
    return engine.died(seen) or (raised is not None and raised.name == "RayChannelTimeoutError")


def _headline(case: Case, seconds: int, actors: list[str], wanted: list[Event]) -> str:
    after = f" within {seconds} s" if seconds else " in time"
    subject = "an actor of the graph"
    if len(actors) == 1:
        name = case.actor(actors[0]).class_name
        subject = (
            f"{name} ({evidence.short(actors[0])})"
            if name
            else f"actor {evidence.short(actors[0])}"
        )
    elif actors:
        subject = f"{len(actors)} actors"
    text = f"A compiled graph had no result{after}: {subject} did not answer"
    if wanted:
        text += f", and vLLM set the limit of {wanted[0]['seconds']} s too late to have an effect"
    return text


def _remedies(
    seconds: int, setting: str, actors: list[str], wanted: list[Event]
) -> Iterator[Remedy]:
    listing = "ray list actors --detail   # state, pid and node of the actors of the graph"
    yield Remedy(
        "Find out what the actor is doing while the call waits",
        (
            paste.shell("ray list actors --detail --filter actor_id={actor}", actor=actors[0])
            if actors
            else listing,
            "py-spy dump --pid PID   # on its node. Compare all ranks: a different stack shows the blocking rank",
        ),
        doc=_DOC,
    )
    longer = max(_LONGER, 6 * seconds)
    if wanted:
        longer = max(longer, int(wanted[0]["seconds"][:9]))
    yield Remedy(
        f"If the actor is only slow, raise the limit from {seconds or _DEFAULT} s to {longer} s in the process that calls the graph",
        (
            paste.shell(
                "export RAY_CGRAPH_{setting:id}_timeout={longer}   # before that process starts (vllm serve, the driver)",
                setting=setting,
                longer=longer,
            ),
            paste.python(
                'ray.init(runtime_env={{"env_vars": {{"RAY_CGRAPH_{setting:id}_timeout": "{longer}"}}}})   # if an actor calls the graph',
                setting=setting,
                longer=longer,
            ),
        ),
        risk="disruptive",
        since=(2, 41),
        doc=_DOC,
    )


# ------------------------------------------------------------------ examples

_A = "e8629230a5372fe48e7380ad01000000"
_W = "cd09fc46897e18918275a6d03cc3a6abc2becabe5e0fd27a533d35a7"
_ERROR = f"{TIMED_OUT[0].sample}\n\nThe above exception was the direct cause of the following exception:\n\n{TIMED_OUT[1].sample}\n"
_PLAIN = (
    'Traceback (most recent call last):\n  File "/app/graph.py", line 21, in <module>\n    print(ray.get(dag.execute(3)))\n'
    + _ERROR
)
_FAULT = f"(Stage pid=379, ip=10.0.0.2) {gpu.WATCHDOG.sample}\n"
_EXIT = (
    f"[2026-11-21 07:34:13,741 W 8 8] (gcs_server) gcs_worker_manager.cc:70: {WORKER_EXIT.sample}\n"
)

_TASK = (
    "Traceback (most recent call last):\nray.exceptions.RayTaskError(RayChannelTimeoutError): ray::Caller.run() (pid=389, ip=10.0.0.2, "
    "actor_id=7dbdc85090b37cd39fb9e77001000000, repr=<graph.Caller object>)\n"
    '  File "/app/graph.py", line 49, in run\n    return ray.get(self.dag.execute(3))\n'
    f"{TIMED_OUT[1].sample}\n"
)

EXAMPLES: tuple[Example, ...] = (
    console(
        "a driver waits for a hung actor",
        _PLAIN,
        says=("within 10 s", _A, "RAY_CGRAPH_get_timeout=300"),
    ),
    console(
        "the graph takes no further input",
        _PLAIN.replace(TIMED_OUT[0].sample.partition("waiting for ")[2], "semaphore.")
        .replace("_get_timeout", "_submit_timeout")
        .replace("the execution is hanging", "execution is hanging"),
        says=("within 10 s", '"RAY_CGRAPH_submit_timeout": "300"'),
    ),
    console(
        "an actor that calls the graph fails with the error",
        _TASK,
        says=("within 10 s", "an actor of the graph"),
    ),
    Example(
        "vLLM raised the limit after ray.dag had been imported",
        {"driver.log": f"{SET.sample}\n{_ERROR}", **QUIET_LOGS},
        says=(
            "within 10 s",
            "vLLM set the limit of 300 s too late",
            "export RAY_CGRAPH_get_timeout=300",
        ),
    ),
    console(
        "a GPU fault in one of the actors came first",
        _FAULT + _ERROR.replace("10 seconds", "300 seconds"),
        roots=("gpu-fault",),
        consequences=("compiled-graph-timeout",),
        says=("within 300 s", "1800 s"),
    ),
    Example(
        "a worker of the graph died",
        {
            "driver.log": f"(raylet) {WORKER_DIED.sample}\n" + _ERROR,
            "logs/gcs_server.out": _EXIT,
            "logs/raylet.out": "",
        },
        roots=("worker-vanished",),
        consequences=("compiled-graph-timeout",),
    ),
    console(
        "a program quotes the error and the setting",
        "if you see RayChannelTimeoutError: Timed out waiting for object available to read, increase RAY_CGRAPH_get_timeout\n"
        f"{SET.sample}\n",
        logs=QUIET_LOGS,
    ),
)

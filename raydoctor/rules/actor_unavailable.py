"""A call to an actor failed because the caller could not reach the actor at that moment.

## What you see
`ray.exceptions.ActorUnavailableError: The actor … is unavailable: The actor is temporarily unavailable: RpcError: … The
task may or may not have been executed on the actor.`

## Why
The connection between caller and actor broke while the GCS counts the actor as alive or restarts it. Possible causes:
the actor's process is frozen or restarts after a crash, its machine is overloaded, or the network fails. Ray cannot
determine whether the actor executed the call, so it does not repeat the call by itself.

`ActorUnavailableError` exists since Ray 2.12. Ray 2.9.3 raises a `RayActorError` that names the actor but no cause. The
caller's core log has the `RPC Error message`.

## Confirm
- `ray list actors --detail` shows the actor's state and number of restarts.
- The text after `RPC error:` shows the reason. `keepalive watchdog timeout` means that the process does not answer,
  `Socket closed` that it ended, and `failed to connect` that it ended or is cut off from the network.

## Fix
Find out why the actor's process did not answer, and fix that. For calls that may be executed twice, set
`max_task_retries`.

## Not this when
- the actor is dead for good: the error is then `ActorDiedError`, with its cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.facts import ActorInfo
from raydoctor.case.rule import QUIET_LOGS, Example, console, rule
from raydoctor.case.signals import (
    ACTOR_FAILED,
    ACTOR_PLACED,
    DRIVER,
    RAY_EXCEPTION,
    TASK_ATTEMPT_FAILED,
    TRACEBACK,
    TRACEBACKS,
    WORKER_EXIT,
)
from raydoctor.model import ids, paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import called
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import actor_deaths as actors
from raydoctor.rules.shared.actor_deaths import LEFT
from raydoctor.rules.shared.failures import program
from raydoctor.rules.shared.traceback import cut_off

_ACTOR = pattern(r"The actor (?P<actor>[0-9a-f]{32}) is unavailable: (?P<why>.*?)(?:\. The task may|$)", re.DOTALL)  # fmt: skip
_RPC = pattern(r"RPC [Ee]rror(?: message)?: (?P<words>.*?)(?: rpc_code|; RPC|$)", re.DOTALL)
_WITHOUT_CAUSE = pattern(
    r"^The actor died unexpectedly before finishing this task\.\n\tclass_name: *\n\tactor_id: (?P<actor>[0-9a-f]{32})\s*$"
)


@rule(
    tier="cause",
    severity="error",
    rank=82,
    explains=("program", "unavailable"),
    caused_by=("actor", "node", "raylet", "worker"),
    daemons_record=True,
    looks_for=(RAY_EXCEPTION, WORKER_EXIT, ACTOR_FAILED, TASK_ATTEMPT_FAILED, *LEFT, *ACTOR_PLACED, actors.CALL_RETRIED, TRACEBACK),
)  # fmt: skip
def actor_unavailable(case: Case) -> Iterator[Finding]:
    """One finding per actor. The end of its process is the cause, if the logs have one."""
    by_actor: dict[str, list[tuple[Event, str]]] = {}
    for event in case.of("driver.exception"):
        named = _ACTOR.search(event["what"])
        if "ActorUnavailableError" in (event["type"], event["inner"]) and named:
            by_actor.setdefault(named["actor"], []).append((event, named["why"]))
        elif silent := _WITHOUT_CAUSE.match(event["what"]):
            for why in _broken_calls(case, silent["actor"])[-1:]:
                by_actor.setdefault(silent["actor"], []).append((event, why))
    if not any(source.role in DRIVER for source in case.sources):
        by_actor = _unprinted(case)
    for actor, failures in by_actor.items():
        yield _finding(case, actor, failures)
    if not by_actor:
        yield from _repeated(case)


def _repeated(case: Case) -> Iterator[Finding]:
    """Calls that Ray repeats, in an excerpt that ends within the traceback of the program."""
    cut_short = {
        end.source: end
        for end in case.endings.values()
        if end.source.is_excerpt and end["ended_by"] and cut_off(end.text)
    }
    repeated = [e for e in case.of(actors.CALL_RETRIED.kind) if e.source in cut_short]
    for (source, name), events in evidence.grouped(
        repeated, lambda e: (e.source, e["name"])
    ).items():
        last = events[-1]
        rpc = _RPC.search(last.message)
        words = f" ({' '.join(rpc['words'].split())[:120]})" if rpc else ""
        yield Finding(
            f"The actor of {called(name)} was unreachable{words}: Ray repeats the call, and the console ends before the program's exception",
            (Link(last, "Ray repeats a call because its actor is unavailable"),),
            explains=(Entity("unavailable", name), program(cut_short[source])),
            caused_by=tuple(x for e in case.exits for x in e.entities),
            subjects=(Subject("actor", None, name.rpartition(".")[0]),),
            count=evidence.total(events),
            severity="warning",
            remedies=(
                Remedy(
                    "Find out whether the actor's process ended, and why",
                    ("ray list actors --detail   # its state, restarts and cause of death",),
                    finds_cause=True,
                ),
            ),
            covers=(*events, *(e for e in case.of(*TRACEBACKS, "log.error") if e.source is source)),
        )


def _unprinted(case: Case) -> dict[str, list[tuple[Event, str]]]:
    """Calls that failed for good according to their callers' core logs, if no driver's output is in the capture."""
    found: dict[str, list[tuple[Event, str]]] = {}
    for event in case.of("task.attempt_failed"):
        ended = event["error"] == "ACTOR_UNAVAILABLE" and event["task"] in case.ledger.tasks
        if ended and not case.torn_down(event):
            status = event.message.partition(", status ")[2].partition(", error info")[0]
            if status.startswith("IntentionalSystemExit"):
                continue  # the program's own exit_actor()
            found.setdefault(ids.actor_of_task(event["task"]), []).append((event, status))
    return found


def _broken_calls(case: Case, actor: str) -> list[str]:
    """The RPC errors of calls to an actor that has not ended, from its callers' core logs."""
    if any(e.actor == actor for e in case.all_exits):
        return []
    attempts = [e for e in case.of("task.attempt_failed") if ids.actor_of_task(e["task"]) == actor]
    return [e.message for e in attempts if _RPC.search(e.message)]


_MEANING = (
    ("keepalive", "its process did not answer"),
    ("Socket closed", "its process ended while the call ran"),
    ("Connection reset", "its process ended while the call ran"),
    ("failed to connect", "no connection could be made"),
    ("Connection refused", "no connection could be made"),
    ("actor was restarted", "its process ended while the call ran (Ray restarted it)"),
)


def _finding(case: Case, actor: str, failures: list[tuple[Event, str]]) -> Finding:
    event, why = failures[-1]
    known = case.actor(actor)
    rpc = _RPC.search(why)
    words = " ".join((rpc["words"] if rpc else why).split())[:120]
    killed = [e for e in actors.kills(case, actor) if _is_cause(e, event)][-1:]
    meaning = (
        "ray.kill ended its process"
        if killed
        else next((m for text, m in _MEANING if text in words), "")
    )
    printed = event.kind == "driver.exception"
    label = known.class_name or evidence.short(actor)
    exits = [e for e in case.exits if e.actor == actor]
    lost = () if exits else _last_process(case, known)
    count = sum(e.count for e, _ in failures)
    return Finding(
        f"Actor {label} was unreachable{f' for {count} calls' if count > 1 else ''} because {meaning or f'of an RPC error ({words})'}, and it is unknown "
        f"whether the actor executed the call{'s' if count > 1 else ''}",
        (
            *(Link(e, f"{label} records why it exits: {e['detail']}") for e in killed),
            Link(event, f"the call failed with the {'RPC ' if rpc else ''}error: {words}"),
        ),
        explains=(Entity("unavailable", actor),),
        caused_by=(Entity("actor", actor), *evidence.exit_entities(exits), *(Entity("node", e.node) for e in exits if e.node), *lost),
        subjects=(Subject("actor", actor, known.class_name or None),),
        count=count,
        severity=None if printed else "warning",
        remedies=(*(_KILLED if killed else ()), *_remedies(known.class_name, actor, "keepalive" in words)),
        covers=(*killed, *(e for e, _ in failures), *evidence.unreachable_nodes(case)),
    )  # fmt: skip


def _last_process(case: Case, actor: ActorInfo) -> tuple[Entity, ...]:
    """The actor's last worker and the raylet of its node: Ray 2.9.3 records no exit of a worker whose raylet is gone."""
    workers = actor.workers[-1:]
    nodes = [case.ledger.worker_nodes.get(worker, "") for worker in workers]
    return (
        *(Entity("worker", worker) for worker in workers),
        *(Entity(kind, node) for node in nodes if node for kind in ("raylet", "node")),
    )


_KILLED = (
    Remedy(
        "Wait for calls on an actor before ray.kill ends it, even with no_restart=False",
        ("ray.get(pending)   # all calls on the actor", "ray.kill(actor, no_restart=False)"),
        doc="https://docs.ray.io/en/latest/ray-core/actors/terminating-actors.html",
    ),
)
_BEFORE = 60.0
"""Seconds between the end of an actor's process and the failure of a call on it."""


def _is_cause(end: Event, call: Event) -> bool:
    """Whether the process ended shortly before the call failed; a printed exception has no time."""
    return end.at is None or call.at is None or -1.0 <= call.at - end.at <= _BEFORE


def _remedies(name: str, actor: str, frozen: bool) -> tuple[Remedy, ...]:
    inspect = (
        paste.shell(
            "pgrep -f {title} | xargs -r ps -o pid,stat,wchan:30,cmd -p   # on its node. T: stopped (kill -CONT PID resumes it), D: waits for I/O",
            title=f"^ray::{name or '[A-Z]'}",
        )
        if frozen
        else paste.shell(
            "ray list actors --detail --filter {key:name}={actor}   # its state, restarts and node",
            key="class_name" if name else "actor_id",
            actor=name or actor,
        )
    )  # fmt: skip
    return (
        Remedy("Check the state of the actor's process", (inspect,), finds_cause=True),
        Remedy(
            "If the calls are safe to repeat, let Ray retry them",
            (
                paste.python(
                    "{actor:name}.options(max_restarts=3, max_task_retries=3).remote(...)",
                    actor=name,
                )
                if name
                else "CLASS.options(max_restarts=3, max_task_retries=3).remote(...)   # CLASS: the actor's",
            ),
            doc="https://docs.ray.io/en/latest/ray-core/fault_tolerance/actors.html#actor-method-exceptions",
        ),
    )


# ------------------------------------------------------------------ examples


_A = "b1806ac952ef89a14d88127801000000"
_ERROR = (
    f"ray.exceptions.ActorUnavailableError: The actor {_A} is unavailable: The actor is temporarily unavailable: RpcError: RPC "
    "error: keepalive watchdog timeout rpc_code: 14. The task may or may not have been executed on the actor.\n"
)
_OLD_ERROR = f"ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.\n\tclass_name: \n\tactor_id: {_A}\n\n"
_OLD_ATTEMPT = (
    "[2026-11-21 11:56:39,824 W 16 127] task_manager.cc:1048: Task attempt "
    f"c2668a65bda616c1{_A} failed with error ACTOR_DIED Fail immediately? 0, status GrpcUnavailable: RPC Error message: "
    'keepalive watchdog timeout; RPC Error details: , error info error_message: "Death cause not recorded."\n'
)
_W = "622a448be4c8523542c2896ce010fdfa8a6cba201bb6557aa88497b9"
_KILLED_LOGS = {
    "logs/gcs_server.out": "[2026-11-23 01:07:25,000 I 7 7] (gcs_server) gcs_actor_scheduler.cc:424: Submitting actor creation task to "
    f"worker. actor_id={_A} worker_id={_W} node_id={'8' * 56} job_id=01000000\n",
    "logs/raylet.out": "",
    f"logs/python-core-worker-{_W}_391.log": "[2026-11-23 01:07:27,015 I 391 406] raylet_ipc_client.cc:133: "
    "RayletIpcClient::Disconnect, exit_type=INTENDED_SYSTEM_EXIT, exit_detail=Worker exits because the actor is killed. The actor is "
    "dead because it was killed by `ray.kill`., has creation_task_exception_pb_bytes=0\n",
}
_RESTARTED = (
    f"ray.exceptions.ActorUnavailableError: The actor {_A} is unavailable: The actor is temporarily unavailable: IOError: The actor was "
    "restarted. The task may or may not have been executed on the actor.\n"
)
_CALLER = f"logs/python-core-driver-01000000{'f' * 48}_6.log"
_FAILED_ATTEMPT = (
    f"[2026-11-23 01:07:27,021 W 6 389] task_manager.cc:1678: Task attempt 16310a0f0a45af5c{_A} failed with error ACTOR_UNAVAILABLE "
    "Fail immediately? 0, status IOError: The actor was restarted, error info actor_unavailable_error {\n}\n"
)
_FAILED_TASK = (
    "[2026-11-23 01:07:28,762 I 6 389] task_manager.cc:1649: Task failed: IOError: The actor was restarted: Type=ACTOR_TASK, "
    "Language=PYTHON, Resources: {CPU: 1, }, function_descriptor={type=PythonFunctionDescriptor, module_name=e1, class_name=Worker, "
    f"function_name=f, function_hash=}}, task_id=16310a0f0a45af5c{_A}, task_name=Worker.f, job_id=01000000, num_args=0, num_returns=1\n"
)

EXAMPLES: tuple[Example, ...] = (
    Example(
        "`ray.kill` ended the process and Ray restarted the actor: the actor's own log names the reason",
        {**_KILLED_LOGS, "driver.log": _RESTARTED},
        says=("ray.kill ended its process", "no_restart=False"),
    ),
    Example(
        "the same without the driver's output",
        {**_KILLED_LOGS, _CALLER: f"{_FAILED_ATTEMPT}{_FAILED_TASK}"},
        says=("ray.kill ended its process",),
        severity="warning",
    ),
    Example(
        "Ray repeated the call: it did not fail",
        {**_KILLED_LOGS, _CALLER: _FAILED_ATTEMPT},
    ),
    Example(
        "an actor left on purpose long before a call could not reach its successor",
        {**_KILLED_LOGS, _CALLER: f"{_FAILED_ATTEMPT}{_FAILED_TASK}".replace("01:07:", "01:27:")},
        says=("its process ended while the call ran",),
        severity="warning",
    ),
    Example(
        "an actor whose process does not answer",
        {**QUIET_LOGS, "driver.log": _ERROR},
        says=("did not answer", "kill -CONT", "max_task_retries"),
    ),
    console(
        "an actor that refuses connections",
        _ERROR.replace(
            "keepalive watchdog timeout",
            "failed to connect to all addresses; last error: UNKNOWN",
        ),
        logs=QUIET_LOGS,
        says=("no connection",),
    ),
    Example(
        "Ray 2.9.3 names no cause, but the caller's core log does",
        {
            **QUIET_LOGS,
            "driver.log": _OLD_ERROR,
            f"logs/python-core-driver-01000000{'f' * 48}_16.log": _OLD_ATTEMPT,
        },
        says=("did not answer",),
    ),
    console(
        "Ray repeats a call, and the console ends within the program's traceback",
        f"(raylet) {actors.CALL_RETRIED.sample}\n"
        'Traceback (most recent call last):\n  File "/app/train.py", line 8, in <module>\n    run()\n',
        says=("The actor of Trainer.step() was unreachable (Socket closed)",),
        severity="warning",
    ),
    console(
        "Ray repeats a call, and the program ends with another exception",
        f"(raylet) {actors.CALL_RETRIED.sample}\n"
        'Traceback (most recent call last):\n  File "/app/train.py", line 8, in <module>\n    run()\nKeyError: 1\n',
        roots=("job-failed",),
    ),
    console(
        "Ray repeats a call, and the program goes on",
        f"(raylet) {actors.CALL_RETRIED.sample}\nepoch 2\n",
    ),
    console(
        "a program handles the error and prints its name",
        "(serve pid=7) retrying after ActorUnavailableError: The actor is unavailable\n",
        logs=QUIET_LOGS,
    ),
)

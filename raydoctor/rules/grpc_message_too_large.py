"""A message between two processes of Ray is larger than gRPC may carry.

## What you see
`Sent message larger than max (4502277 vs. 2000000)` or `Received message larger than max (…)`, with `RESOURCE_EXHAUSTED`
or `rpc_code: 8`. Around it Ray sees a broken connection and says so: `WorkerCrashedError: The worker died unexpectedly`,
`ActorUnavailableError: … is temporarily unavailable`, a worker's exit as SYSTEM_ERROR. The worker was well.

## Why
Arguments and results of up to 100 KB each travel inside the message that starts a task or answers it, and all of a
call's share one message. Many of them, a huge runtime environment, a query for the state of very many tasks, or a
large value over Ray Client exceed the limit: 250 MiB up to Ray 2.42, 512 MiB since 2.44 (`RAY_max_grpc_message_size`),
less where somebody lowered it. A retry sends the same message again; up to Ray 2.40 the request for a worker carries the
arguments too, and is sent again many times a second, without end (measured: 2.9.3, 2.40).

## Confirm
- The two numbers: what was to be sent, and the limit, in bytes.
- The core-driver log: `Task failed: RpcError: RPC error: Sent message larger than max …` names the function.
- `env | grep RAY_max_grpc_message_size` on every node and for the driver.

## Fix
Send less in one call: large values by `ray.put` and reference, many small ones as one array or in batches, results by
a generator. A limit below the default goes back to it. A higher limit must be set on all nodes and for the driver alike.

## Not this when
The message has no such sentence: then the worker really died. `ValueError: … is too large … FUNCTION_SIZE_ERROR_THRESHOLD`
is `large-closure`.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import Example, Signal, rule
from raydoctor.case.signals import (
    CORE,
    DRIVER,
    GCS,
    RAY_EXCEPTION,
    RAYLET,
    TASK_FAILED,
    WORKER_DIED,
    WORKER_EXIT,
)
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import size
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject

_DOC = "https://docs.ray.io/en/latest/ray-core/patterns/pass-large-arg-by-value.html"
_MIB = 1024**2
_TASK = "c8ef45ccd0112571ffffffffffffffffffffffff01000000"
_TEXT = "Sent message larger than max (4502277 vs. 2000000)"
_SIZES = pattern(r"(?:Sent|Received) message larger than max \((?P<size>\d+) vs\. (?P<limit>\d+)\)")

TOO_LARGE = Signal(
    "message.too_large", " message larger than max (",
    r"(?P<direction>Sent|Received) message larger than max \((?P<size>\d+) vs\. (?P<limit>\d+)\)", (*CORE, *RAYLET, *GCS, *DRIVER),
    f"Task attempt {_TASK} failed with error WORKER_DIED Fail immediately? 0, status RpcError: RPC error: {_TEXT} rpc_code: 8, error "
    "info null",
    fold=("limit",),
)  # fmt: skip
"""gRPC's own words (`message_size_filter.cc`); every Ray carries them."""


@rule(
    tier="root",
    severity="error",
    rank=28,
    looks_for=(TOO_LARGE, WORKER_EXIT, WORKER_DIED, TASK_FAILED, RAY_EXCEPTION),
)  # fmt: skip
def grpc_message_too_large(case: Case) -> Iterator[Finding]:
    """One finding per limit that was met: usually one."""
    exits = [e for e in case.exits if _SIZES.search(e.detail)]
    told = [e for e in case.of("message.too_large") if not case.torn_down(e)]
    limits = {e["limit"] for e in told} | {
        m["limit"] for x in exits if (m := _SIZES.search(x.detail))
    }
    for limit in sorted(limits, key=int):
        mine = [x for x in exits if (m := _SIZES.search(x.detail)) and m["limit"] == limit]
        yield _finding(case, int(limit), [e for e in told if e["limit"] == limit], mine)


def _finding(case: Case, limit: int, told: list[Event], exits: list[WorkerExit]) -> Finding:
    sizes = [int(e["size"]) for e in told]
    sizes += [int(m["size"]) for x in exits if (m := _SIZES.search(x.detail))]
    failed = [e for e in case.of("task.failed") if _SIZES.search(e["status"])]
    names = evidence.join_names(e["name"] for e in failed)
    errors = [e for e in case.of("driver.exception") if _SIZES.search(e["what"])]
    shown = failed[:1] or told[:1]
    actors = {e for x in (*failed, *errors) for e in x.entities if e.kind == "actor"}
    return Finding(
        f"A message of {size(max(sizes))}{f' for {names}' if names else ''} is larger than gRPC may carry here "
        f"({size(limit)}){_taken_for(exits)}{_asked_again(told)}",
        (
            *(Link(e, f"{size(int(m['size']))} to send, {size(limit)} allowed") for e in shown if (m := _SIZES.search(e.text))),
            *(evidence.exit_links(exits[0], most=1) if exits else ()),
            *(Link(e, f"the driver got {e['type']}") for e in errors[:1] if e.line != (shown[0].line if shown else 0)),
        ),
        explains=(
            *evidence.exit_entities(exits), *(Entity("task", e["task"]) for e in failed), *sorted(actors), Entity("message", str(limit)),
        ),
        subjects=tuple(Subject("function", None, e["name"]) for e in failed[:3]),
        count=len(failed) or len(exits) or evidence.total(told),
        remedies=_remedies(case, limit),
        covers=(*told, *failed, *errors, *evidence.exit_events(exits), *(evidence.attempts_covered(case, exits) if exits else ())),
    )  # fmt: skip


def _taken_for(exits: list[WorkerExit]) -> str:
    """What Ray made of it."""
    if not exits:
        return ""
    count = evidence.deaths(exits)
    return f"; Ray took it for the death of {evidence.many(count, 'worker')} that {'was' if count == 1 else 'were'} well"


def _asked_again(told: list[Event]) -> str:
    """Up to 2.40 a request for a worker carries the arguments too, and is sent again for ever."""
    count = evidence.total(
        [e for e in told if "failed to receive a response from the local raylet" in e.message]
    )
    return f"; a request for a worker was sent {count} times, in vain" if count else ""


# ---------------------------------------------------------------- remedies

_RAISED_IN = (2, 44)
_BEFORE, _SINCE = 250 * _MIB, 512 * _MIB


def _remedies(case: Case, limit: int) -> tuple[Remedy, ...]:
    default = _BEFORE if case.version and case.version < _RAISED_IN else _SINCE
    less = Remedy(
        "Send less in one call: a reference in place of values, one array in place of many small ones",
        (
            "ref = ray.put(parts)              # once; any size",
            "f.remote(ref)                     # instead of f.remote(*parts)",
            '@ray.remote(num_returns="streaming")   # for results: a generator, one message each',
        ),
        doc=_DOC,
    )
    if limit < _BEFORE:
        return (
            Remedy(
                f"The limit of {size(limit)} was set by somebody: use Ray's default of {size(default)} again",
                (
                    "unset RAY_max_grpc_message_size   # on every node before ray start, and for the driver",
                ),
                risk="disruptive",
            ),
            less,
        )
    more = Remedy(
        "Only to gain time: a higher limit, in bytes, the same everywhere (gRPC allows 2 GB)",
        (
            paste.shell(
                "RAY_max_grpc_message_size={size} ray start …   # on every node, and for the driver",
                size=min(limit * 2, 2**31 - 1),
            ),
        ),
        risk="disruptive",
    )  # fmt: skip
    return (less, more)


# ------------------------------------------------------------------ examples

_W = "3fa2185144e3788c517e217f74cfab0f81ab74486cb0aaabaecaead4"
_N = "eb7f4ca8aaaa54b51cc4bd1ea9b7ef447d180e345d90e2ced6af11db"

_DRIVER_LOG = f"logs/python-core-driver-01000000{'f' * 48}_16.log"
_ATTEMPT = f"[2026-11-21 10:49:52,509 W 16 1132] task_manager.cc:1678: {TOO_LARGE.sample}\n"
_FAILED = (
    f"[2026-11-21 10:49:52,755 I 16 1132] task_manager.cc:1649: Task failed: RpcError: RPC error: {_TEXT} rpc_code: 8: "
    "Type=NORMAL_TASK, Language=PYTHON, Resources: {CPU: 1, }, function_descriptor={type=PythonFunctionDescriptor, module_name=t, "
    f"class_name=, function_name=total, function_hash=b21}}, task_id={_TASK}, task_name=total, job_id=01000000, num_args=100, "
    "num_returns=1, max_retries=1, depth=1, attempt_number=1, dependencies={}\n"
)
_EXIT = (
    f"[2026-11-21 10:49:52,510 W 52 52] (gcs_server) gcs_worker_manager.cc:70: Reporting worker exit, worker id = {_W}, node id = "
    f"{_N}, address = 10.0.0.2, exit_type = SYSTEM_ERROR, exit_detail = The leased worker has unrecoverable failure. Worker is "
    "requested to be destroyed when it is returned. RPC error: {}. Unintentional worker failures have been reported. If there are lots "
    "of this logs, that might indicate there are unexpected failures in the cluster.\n"
)
_CRASHED = (
    "ray.exceptions.WorkerCrashedError: The worker died unexpectedly while executing this task. Check python-core-worker-*.log files "
    "for more information.\n"
)

EXAMPLES: tuple[Example, ...] = (
    Example(
        "a task's arguments: Ray takes it for a dead worker",
        {
            "logs/gcs_server.out": _EXIT.format(_TEXT),
            "logs/raylet.out": "",
            _DRIVER_LOG: _ATTEMPT + _FAILED,
            "driver.log": _CRASHED,
        },
        roots=("grpc-message-too-large",),
        says=("total", "4.3 MiB", "1.9 MiB", "unset RAY_max_grpc_message_size"),
    ),
    Example(
        "an actor's arguments, and only the driver's output is left",
        {
            "driver.log": "ray.exceptions.ActorUnavailableError: The actor 69bc922ec1ae773e0135365401000000 is unavailable: The actor "
            "is temporarily unavailable: RpcError: RPC error: Sent message larger than max (600000000 vs. 536870912) rpc_code: 8. The "
            "task may or may not have been executed on the actor.\n"
        },
        roots=("grpc-message-too-large",),
        says=("572 MiB", "512 MiB", "ray.put"),
    ),
    Example(
        "a worker that really died, and a task that prints the words",
        {
            "logs/gcs_server.out": _EXIT.format("Socket closed"),
            "logs/raylet.out": "",
            "driver.log": f"(check pid=12) RPC error: {_TEXT}\n{_CRASHED}",
        },
        roots=("worker-vanished",),
    ),
)

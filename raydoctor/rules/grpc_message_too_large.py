"""A message between two Ray processes exceeds the gRPC size limit.

## What you see
`Sent message larger than max (4502277 vs. 2000000)` or `Received message larger than max (…)`, with
`RESOURCE_EXHAUSTED` or `rpc_code: 8`. Ray treats the error as a broken connection and reports `WorkerCrashedError: The
worker died unexpectedly`, `ActorUnavailableError: … is temporarily unavailable`, or a worker exit with SYSTEM_ERROR,
although the worker was healthy.

## Why
Arguments and results of up to 100 KiB each travel inside the message that starts a task or returns its result, and all
values of a call share one message. The limit is 250 MiB up to Ray 2.42 and 512 MiB since Ray 2.43
(`RAY_max_grpc_message_size` changes it). Messages that exceed the limit usually contain one of these:
- very many small arguments or results in one call;
- a huge runtime environment;
- a query for the state of very many tasks;
- a large value over Ray Client.

A retry sends the same message again. Up to Ray 2.40 the request for a worker carries the arguments as well, and Ray
repeats it many times a second without end (measured with Ray 2.9.3 and 2.40).

## Confirm
- The two numbers in the error are the message's size and the limit, in bytes.
- `Task failed: RpcError: RPC error: Sent message larger than max …` in the core-driver log names the function.
- `env | grep RAY_max_grpc_message_size`, on every node and for the driver, prints nothing if the default applies.

## Fix
Send less in one call: pass large values as references from `ray.put`, many small values as one array or in batches, and
return results with a generator. If the limit is below the default, restore the default. A higher limit must be set on
all nodes and for the driver.

## Not this when
- no log contains this message: the worker really died.
- the error is `ValueError: … is too large … FUNCTION_SIZE_ERROR_THRESHOLD` (`large-closure`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import Example, Signal, console, rule
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
from raydoctor.model.text import called, size
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject

_DOC = "https://docs.ray.io/en/latest/ray-core/patterns/pass-large-arg-by-value.html"
_MIB = 1024**2
_OTHERS_LIMIT = "4194304"
"""gRPC's default for received messages. Ray sets a limit of its own in each of its servers and clients."""
_TASK = "c8ef45ccd0112571ffffffffffffffffffffffff01000000"
_TEXT = "Sent message larger than max (4502277 vs. 2000000)"
_SIZES = pattern(
    r"(?:Sent|Received) message larger than max \((?P<size>\d{1,20}) vs\. (?P<limit>\d{1,20})\)"
)

TOO_LARGE = Signal(
    "message.too_large", " message larger than max (",
    r"(?P<direction>Sent|Received) message larger than max \((?P<size>\d{1,20}) vs\. (?P<limit>\d{1,20})\)", (*CORE, *RAYLET, *GCS, *DRIVER),
    f"Task attempt {_TASK} failed with error WORKER_DIED Fail immediately? 0, status RpcError: RPC error: {_TEXT} rpc_code: 8, error "
    "info null",
    fold=("limit",),
)  # fmt: skip
"""gRPC's own message (`message_size_filter.cc`), in every version of Ray."""


@rule(
    tier="root",
    severity="error",
    rank=28,
    explains=("actor", "message", "process", "task", "worker"),
    looks_for=(TOO_LARGE, WORKER_EXIT, WORKER_DIED, TASK_FAILED, RAY_EXCEPTION),
)  # fmt: skip
def grpc_message_too_large(case: Case) -> Iterator[Finding]:
    """One finding per limit that a message exceeded: usually one."""
    exits = [e for e in case.exits if _SIZES.search(e.detail)]
    reports = [
        e
        for e in case.of("message.too_large")
        if not case.torn_down(e)
        and not (e.source.role in DRIVER and e["limit"] == _OTHERS_LIMIT and not exits)
    ]
    limits = {e["limit"] for e in reports} | {
        m["limit"] for x in exits if (m := _SIZES.search(x.detail))
    }
    for limit in sorted(limits, key=int):
        matching = [x for x in exits if (m := _SIZES.search(x.detail)) and m["limit"] == limit]
        yield _finding(case, int(limit), [e for e in reports if e["limit"] == limit], matching)


def _finding(case: Case, limit: int, reports: list[Event], exits: list[WorkerExit]) -> Finding:
    sizes = [int(e["size"]) for e in reports]
    sizes += [int(m["size"]) for x in exits if (m := _SIZES.search(x.detail))]
    failed = [e for e in case.of("task.failed") if _SIZES.search(e["status"])]
    names = evidence.join_names(called(e["name"]) for e in failed)
    errors = [e for e in case.of("driver.exception") if _SIZES.search(e["what"])]
    # The line with the largest size, which the headline names.
    shown = sorted([*failed, *reports], key=_size, reverse=True)[:1]
    actors = {e for x in (*failed, *errors) for e in x.entities if e.kind == "actor"}
    several = len({e["name"] for e in failed}) > 1
    subject = (
        f"Messages of up to {size(max(sizes))}" if several else f"A message of {size(max(sizes))}"
    )
    return Finding(
        f"{subject}{f' (calls to {names})' if names else ''} {'exceed' if several else 'exceeds'} the gRPC limit "
        f"of {size(limit)}{_consequence(exits)}{_repeated(reports)}",
        (
            *(Link(e, f"the message{_of(e)} is {size(_size(e))}, and the limit is {size(limit)}") for e in shown),
            *(evidence.exit_links(exits[0], most=1) if exits else ()),
            *(Link(e, f"the driver got {e['type']}") for e in errors[:1] if e.line != (shown[0].line if shown else 0)),
        ),
        explains=(
            *evidence.exit_entities(exits), *(Entity("task", e["task"]) for e in failed), *sorted(actors), Entity("message", str(limit)),
        ),
        subjects=tuple(Subject("function", None, e["name"]) for e in failed[:3]),
        count=len(failed) or len(exits) or evidence.total(reports),
        remedies=_remedies(case, limit),
        covers=(*reports, *failed, *errors, *evidence.exit_events(exits), *(evidence.attempts_covered(case, exits) if exits else ())),
    )  # fmt: skip


def _size(event: Event) -> int:
    """Bytes of the message that an event is about; 0 if its text has lost them."""
    found = _SIZES.search(event.text)
    return int(found["size"]) if found else 0


def _of(event: Event) -> str:
    return f" for {called(event['name'])}" if event["name"] else ""


def _consequence(exits: list[WorkerExit]) -> str:
    """How Ray reported it."""
    if not exits:
        return ""
    count = evidence.deaths(exits)
    return f", so Ray treated {evidence.many(count, 'healthy worker')} as dead"


def _repeated(reports: list[Event]) -> str:
    """Up to 2.40 a request for a worker also carries the arguments, and Ray repeats it without end."""
    count = evidence.total(
        [e for e in reports if "failed to receive a response from the local raylet" in e.message]
    )
    return (
        f", and Ray repeated a request for a worker {count} times without success" if count else ""
    )


# ---------------------------------------------------------------- remedies

_RAISED_IN = (2, 43)
"""`ray/_private/ray_constants.py`: 250 MiB up to 2.42, then 512 MiB."""
_BEFORE, _SINCE = 250 * _MIB, 512 * _MIB


def _remedies(case: Case, limit: int) -> tuple[Remedy, ...]:
    default = _BEFORE if case.version and case.version < _RAISED_IN else _SINCE
    less = Remedy(
        "Send less in one call: pass a reference instead of values, or one array instead of many small values "
        "(small values travel inside the message, an array of more than 100 KiB goes through the object store)",
        (
            "ref = ray.put(parts)              # once; any size",
            "f.remote(ref)                     # instead of f.remote(*parts)",
            '@ray.remote(num_returns="streaming")   # for results: a generator sends one message for each value',
        ),
        doc=_DOC,
    )
    if limit < _BEFORE:
        return (
            Remedy(
                f"Restore Ray's default limit of {size(default)}: it was lowered to {size(limit)}",
                (
                    "unset RAY_max_grpc_message_size   # on every node before ray start, and in the shell that starts the driver",
                ),
                risk="disruptive",
            ),
            less,
        )
    more = Remedy(
        "To gain time, set a higher limit on every node and for the driver (gRPC allows less than 2 GiB)",
        (
            paste.shell(
                "export RAY_max_grpc_message_size={size}   # bytes. On every node before ray start, and in the shell that starts the driver",
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
        "a task's arguments are too large, and Ray reports a dead worker",
        {
            "logs/gcs_server.out": _EXIT.format(_TEXT),
            "logs/raylet.out": "",
            _DRIVER_LOG: _ATTEMPT + _FAILED,
            "driver.log": _CRASHED,
        },
        says=("total", "4.3 MiB", "1.9 MiB", "unset RAY_max_grpc_message_size"),
    ),
    console(
        "an actor's arguments are too large, seen only in the driver's output",
        "ray.exceptions.ActorUnavailableError: The actor 69bc922ec1ae773e0135365401000000 is unavailable: The actor "
        "is temporarily unavailable: RpcError: RPC error: Sent message larger than max (600000000 vs. 536870912) rpc_code: 8. The "
        "task may or may not have been executed on the actor.\n",
        says=("572 MiB", "512 MiB", "ray.put"),
    ),
    console(
        "a client of another gRPC server",
        'details = "Received message larger than max (5308389 vs. 4194304)"\n',
    ),
    Example(
        "a worker really died, and a task prints the message",
        {
            "logs/gcs_server.out": _EXIT.format("Socket closed"),
            "logs/raylet.out": "",
            "driver.log": f"(check pid=12) RPC error: {_TEXT}\n{_CRASHED}",
        },
        roots=("worker-vanished",),
    ),
)

"""A Ray Data pipeline is stalled: it makes no progress, or cannot get the resources that it needs.

## What you see
The progress bar does not move, or Ray Data prints one of these messages:
- `Cluster resources are not enough to run any task from …. The job may hang forever` (Ray 2.46 and later)
- `Operator … is running but has no outputs for 60.4 seconds` (Ray 2.9 and later)
- `A task … has been running …, which is longer than the average task duration` (Ray 2.49 and later)
- `ExecutionTimeoutError: Dataset execution made no progress`, after half an hour (Ray 2.58 and later). Older versions
  wait forever.
- `GetTimeoutError: Timed out while starting actors` (Ray 2.9 and later), `Only 3 out of 8 hash-shuffle aggregators are
  ready` (Ray 2.48 and later)
- `(MapWorker(…) pid=…) Cancelling stale RPC with seqno 41 < 43`, again and again

## Why
- No resources are free: actors of the same program, of another job, or of the pipeline's own pools hold the CPUs or
  GPUs.
- One operator requests more than the cluster has: `num_gpus=1` without a GPU, or more shuffle aggregators than CPUs.
- A task is hung or slow: a UDF waits for a service, or a block is huge.
- Nothing consumes the output, so the object store fills, and Ray Data holds back its tasks (backpressure).
- The connection to an actor of the pool broke, and the pipeline sends the same call again. The actor has already run
  the call, and cancels the repeated one as stale. Up to Ray 2.44 a repeated call keeps its number, so this may never
  end.

## Confirm
- The progress bar or `logs/ray-data/ray-data.log` shows which operator has queued blocks and no active task, `pending`
  actors, or `[backpressured:…]`.
- `ray status` shows requested and used resources; `ray list tasks --filter state=RUNNING` and `ray stack` show running
  tasks.

## Fix
Free or add the resources that the operator needs, or request less. Tell Ray Data which resources other actors hold. If
the function needs that long, raise the timeout (Ray 2.58 and later).

    from ray.data import DataContext, ExecutionResources
    DataContext.get_current().execution_options.exclude_resources = ExecutionResources(cpu=4)   # held by other actors
    DataContext.get_current().execution_no_progress_timeout_s = 3600                           # seconds
    ds = ds.map_batches(f, num_cpus=0.5, concurrency=2)                                        # requests less

## Not this when
- a function of the pipeline raised an exception (`task-exception`).
- Ray's memory monitor killed workers of the pipeline (`ray-oom-kill`, `oom-kill-loop`).
- a task is only slow: the slowest of many tasks always takes longer than the average. raydoctor then reports this rule
  as information, and as a warning if the driver's output repeats the message until its end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, console, rule
from raydoctor.case.signals import GCS, RAYLET, WORKER_EXIT
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Link, Remedy, Severity, Subject
from raydoctor.rules.shared import data

_DOC = "https://docs.ray.io/en/latest/data/execution-configurations.html"
_RETRIES = "https://github.com/ray-project/ray/pull/51904"
_TIPS = "https://docs.ray.io/en/latest/data/performance-tips.html"
_RUNNING = pattern(
    r"^  - (?P<operator>.+?): (?P<active>\d{1,20}) active task\(s\), (?P<finished>\d{1,20}) finished, ",
    re.MULTILINE,
)
_LISTED = pattern(r"\bOperators still running:\s*(?:- )?(?P<operator>[^\n,]+)")
_STALE = data.STALE[0].kind
_KINDS = tuple(dict.fromkeys(signal.kind for signal in (*data.STALLS, data.STALE[0])))
_WARNINGS = {data.NOT_ENOUGH.kind, data.SHUFFLE.kind, data.AGGREGATORS.kind, _STALE}

_OFTEN = 3
"""Warnings of slow tasks, which Ray Data checks every 30 s: "if this message persists", it says, the tasks may be hung."""


@dataclass(slots=True)
class _Stall:
    """The reports about one operator."""

    operator: str
    events: dict[str, list[Event]] = field(default_factory=dict)
    """By kind, the earliest first."""
    active: str = ""
    finished: str = ""
    persists: bool = False
    """Whether Ray Data warned of slow tasks again and again, up to the end of what is known."""

    def first(self, kind: str) -> Event | None:
        """The first record of a kind."""
        return next(iter(self.events.get(kind, ())), None)

    @property
    def all(self) -> list[Event]:
        """Every record, the most serious kinds first."""
        return [event for kind in _KINDS for event in self.events.get(kind, ())]

    @property
    def severity(self) -> Severity:
        """An error if Ray Data ended the pipeline, a note if the pipeline may only be slow."""
        if {"data.no_progress", "data.no_actors"} & set(self.events):
            return "error"
        return "warning" if self.persists or _WARNINGS & set(self.events) else "info"


@rule(
    tier="cause",
    severity="error",
    rank=85,
    explains=("data-operator",),
    caused_by=("task", "waiting"),
    looks_for=(*data.STALLS, data.SPLIT, *data.STALE, data.FINISHED, data.RUN_FAILED, WORKER_EXIT),
)
def data_stalled(case: Case) -> Iterator[Finding]:
    """One finding per operator."""
    stalls: dict[str, _Stall] = {}
    for kind in dict.fromkeys(signal.kind for signal in data.STALLS):
        for event in data.records(case, kind):
            stall = _stall_of(event)
            known = stalls.setdefault(stall.operator, stall)
            known.events.setdefault(kind, []).append(event)
    for operator, events in data.stale_calls(case).items():
        stalls.setdefault(operator, _Stall(operator)).events[_STALE] = events
    if split := list(data.records(case, data.SPLIT.kind)):
        yield _split_waits(case, split)
    for stall in stalls.values():
        stall.persists = _persists(case, stall.events.get(data.SLOW_TASK.kind, []))
        yield _finding(case, stall)


def _split_waits(case: Case, events: list[Event]) -> Finding:
    """Readers of a split dataset that wait for one that does not begin the epoch."""
    first = events[0]
    waiting = sorted({int(e["split"]) for e in events if e["epoch"] == first["epoch"]})
    splits = (
        f"split{'s' if len(waiting) > 1 else ''} {evidence.join_names(map(str, waiting), most=6)}"
    )
    return Finding(
        f"A split dataset waited more than {first['seconds']} s at the start of epoch {first['epoch']}: the reader{'s' if len(waiting) > 1 else ''} of {splits} "
        f"wait{'' if len(waiting) > 1 else 's'} for another rank that does not read its split",
        (Link(first, "Ray Data starts an epoch when every split is read"),),
        explains=(Entity("data-operator", "split"),),
        caused_by=(*evidence.exit_entities(case.exits), Entity("waiting", "cluster")),
        count=len(waiting),
        severity="info" if any(evidence.later_output(case, e) for e in events) else "warning",
        remedies=(
            Remedy(
                "Let every rank iterate over its split once per epoch, also those that validate, save or skip",
                ("for batch in ray.train.get_dataset_shard('train').iter_batches(): ...   # on all ranks, equally often",),
                doc="https://docs.ray.io/en/latest/train/user-guides/data-loading-preprocessing.html",
            ),
            Remedy(
                "Find the rank that does something else",
                ("raydoctor stack   # of all workers: the one that is not in iter_batches",),
            ),
        ),
        covers=tuple(events),
    )  # fmt: skip


def _persists(case: Case, slow: list[Event]) -> bool:
    """Whether a console without the daemons' logs repeats the warning, and no pipeline finished after it."""
    is_console = case.roles.isdisjoint((*GCS, *RAYLET))
    ends = case.of(data.FINISHED.kind)
    return (
        is_console
        and evidence.total(slow) >= _OFTEN
        and not any(evidence.is_before(slow[-1], end) for end in ends)
    )


def _stall_of(event: Event) -> _Stall:
    running = list(_RUNNING.finditer(event["what"]))
    if running:
        # No operator is active: the first idle one blocks the operators after it.
        waits = next((r for r in running if r["active"] == "0"), running[0])
        return _Stall(data.operator(waits["operator"]), {}, waits["active"], waits["finished"])
    listed = _LISTED.search(event["what"])
    if listed:
        return _Stall(data.operator(listed["operator"].strip()))
    is_shuffle = event.kind in (data.SHUFFLE.kind, data.AGGREGATORS.kind)
    name = event["operator"] or ("the hash shuffle" if is_shuffle else "the pipeline")
    return _Stall(data.operator(name))


def _finding(case: Case, stall: _Stall) -> Finding:
    exits = [e for e in case.exits if stall.operator in e.names]
    tasks = [Entity("task", e["slow_task"]) for e in stall.all if e["slow_task"]]
    return Finding(
        _headline(stall),
        tuple(_links(stall)),
        explains=(Entity("data-operator", stall.operator),),
        caused_by=(*evidence.exit_entities(exits), *tasks, Entity("waiting", "cluster")),
        subjects=(Subject("operator", None, stall.operator),),
        severity=stall.severity,
        remedies=tuple(_remedies(stall)),
        covers=(*stall.all, *_outcome(case, stall)),
    )


def _outcome(case: Case, stall: _Stall) -> list[Event]:
    """Records that only repeat that the pipeline ended."""
    if stall.severity != "error":
        return []
    seen = {(e.source.path, e.line) for e in stall.all}
    repeated = [e for e in case.of("driver.exception") if (e.source.path, e.line) in seen]
    return [*case.of(data.RUN_FAILED.kind), *repeated]


def _headline(stall: _Stall) -> str:
    return _end(stall) or _lack(stall) or _delay(stall)


def _end(stall: _Stall) -> str:
    """The headline of a pipeline that Ray Data ended, else empty."""
    if event := stall.first("data.no_progress"):
        tasks = f" ({stall.active} active tasks, {stall.finished} finished)" if stall.active else ""
        return f"Ray Data ended the pipeline after {event['seconds']} s without progress at {stall.operator}{tasks}"
    if stall.first("data.no_actors"):
        return "Ray Data ended the pipeline because the actors of its pool did not start: the cluster did not provide the resources that they request"
    return ""


def _lack(stall: _Stall) -> str:
    """The headline of an operator that does not get its resources, else empty."""
    if stall.first("data.not_enough"):
        return f"Ray Data cannot start any {stall.operator} task: the cluster does not provide the resources that it requests"
    if event := stall.first("data.shuffle_needs"):
        needs = (
            f"{_number(event['required'])} {event['unit']} for {event['aggregators']} aggregators"
        )
        return f"A hash shuffle of Ray Data needs {needs}, but the cluster has {_number(event['total'])}"
    if event := stall.first("data.aggregators"):
        cpus = (
            f" (it needs {_number(event['required'])} CPUs, {_number(event['free'])} are free)"
            if event["required"] and event["free"]
            else ""
        )
        return (
            f"Only {event['ready']} of {event['aggregators']} aggregators of a hash shuffle have started after "
            f"{float(event['seconds']):.0f} s{cpus}"
        )
    return ""


def _delay(stall: _Stall) -> str:
    """The headline of an operator that may be hung, or only slow."""
    if stall.first(_STALE):
        return _stale_headline(stall)
    if event := stall.first("data.idle"):
        return f"Operator {stall.operator} had no output for {float(event['seconds']):.0f} s: it may be stalled, or only slow"
    event = stall.all[0]
    longest = max(float(e["seconds"]) for e in stall.all)
    return f"A task of {stall.operator} has been running for {longest:.0f} s or more, but the average is {_number(event['average'])} s"


def _stale_headline(stall: _Stall) -> str:
    events = stall.events[_STALE]
    pids = list(dict.fromkeys(e.pid for e in events if e.pid is not None))
    actor = (
        f"an actor of {stall.operator}"
        if len(pids) != 1
        else f"an actor of {stall.operator} (pid {pids[0]})"
    )
    refused = [e for e in events if e["seqno"]]
    if not refused:
        return f"{actor[:1].upper()}{actor[1:]} never received call {events[0]['expected']}, and cancelled the calls after it"
    count = evidence.many(evidence.total(refused), "call")
    return f"{actor[:1].upper()}{actor[1:]} cancelled {count} that the pipeline had sent again: the pipeline may never end"


def _number(text: str) -> str:
    return f"{float(text):g}"


def _links(stall: _Stall) -> Iterator[Link]:
    shows = {
        "data.not_enough": f"the cluster does not have enough resources for a task of {stall.operator}",
        "data.shuffle_needs": "the shuffle requests more than the cluster has",
        "data.no_actors": "the actors of the pool did not start in time, and Ray Data ended the pipeline",
        "data.aggregators": "the shuffle waits for its aggregators",
        _STALE: "the actor counts this call as done, or as cancelled",
        "data.idle": f"{stall.operator} runs and produces no output",
        "data.slow_task": f"a task of {stall.operator} takes longer than usual",
        "data.no_progress": "no operator made progress, and Ray Data ended the pipeline",
    }
    for kind, reason in shows.items():
        if event := stall.first(kind):
            yield Link(event, reason)


def _remedies(stall: _Stall) -> Iterator[Remedy]:
    if event := stall.first("data.shuffle_needs"):
        if event["resource"] == "CPU":
            step = paste.python(
                "ray.data.DataContext.get_current().max_hash_shuffle_aggregators = {total}",
                total=int(float(event["total"])),
            )
            yield Remedy(
                f"Use at most {int(float(event['total']))} shuffle aggregators",
                (step,),
                doc=_TIPS,
                since=(2, 48),
            )
        return
    if list(stall.events) == [_STALE]:
        yield from _stale_remedies(stall)
        return
    yield Remedy(
        f"Find out what holds the resources that {stall.operator} needs",
        (
            "ray status",
            "ray list actors --filter state=ALIVE --detail   # actors that hold CPUs and GPUs, and their jobs",
        ),
    )
    yield Remedy(
        "Exclude resources that other actors hold from the pipeline",
        (
            "from ray.data import DataContext, ExecutionResources",
            "DataContext.get_current().execution_options.exclude_resources = ExecutionResources(cpu=4)   # CPUs that other actors hold",
        ),
        doc=_DOC,
    )
    if event := stall.first("data.no_progress"):
        yield Remedy(
            "Raise the timeout, if one step of the pipeline takes that long",
            (
                paste.python(
                    "ds.context.execution_no_progress_timeout_s = {seconds}   # -1: no timeout",
                    seconds=max(3600, 2 * int(event["timeout"] or event["seconds"])),
                ),
            ),
            doc=_DOC,
            since=(2, 58),
        )


def _stale_remedies(stall: _Stall) -> Iterator[Remedy]:
    events = stall.events[_STALE]
    pid = next((e.pid for e in events if e.pid is not None), None)
    ip = next((e["ip"] for e in events if e["ip"]), "")
    yield Remedy(
        "Upgrade Ray: since 2.45 a call that is sent again gets a new number",
        ('pip install -U "ray[data]"',),
        doc=_RETRIES,
        until=(2, 45),
    )
    if pid is not None:
        yield Remedy(
            f"End the actor, so that the pool starts another one{f' (on node {ip})' if ip else ''}",
            (paste.shell("kill {pid}   # on its node: the pipeline repeats its blocks", pid=pid),),
            risk="disruptive",
        )
    yield Remedy(
        "Find out why the connection between the driver and the actor broke: an overloaded node, or the network",
        (
            "ray summary tasks   # calls to MapWorker that fail again and again",
            "uptime; free -m   # on the actor's node",
        ),
        doc=_TIPS,
    )


# ------------------------------------------------------------------ examples


_LOG = "2026-11-21 10:48:33,745\t{level} streaming_executor.py:371 -- "
_WARNING = _LOG.replace("{level}", "WARNING")

_MAP_WORKER = "MapWorker(ReadParquet->MapBatches(Embed))"

EXAMPLES: tuple[Example, ...] = (
    Example(
        "Ray Data ends the pipeline after forty seconds without progress",
        {"driver.log": f"{data.NO_PROGRESS.sample}\n", **QUIET_LOGS},
        says=(
            "after 40 s without progress",
            "ReadRange->MapBatches(Embed)",
            "0 active",
            "execution_no_progress_timeout_s = 3600",
        ),
    ),
    Example(
        "too few resources for any task, reported by the driver and the log",
        {
            "logs/ray-data/ray-data.log": f"{_WARNING}{data.NOT_ENOUGH.sample}\n",
            "driver.log": f"{_WARNING}{data.NOT_ENOUGH.sample}\n{_WARNING}{data.IDLE.sample}\n",
            **QUIET_LOGS,
        },
        says=("ReadRange->Map(f)", "not provide the resources", "exclude_resources"),
        severity="warning",
    ),
    Example(
        "a shuffle with more aggregators than CPUs",
        {"logs/ray-data/ray-data.log": f"{_WARNING}{data.SHUFFLE.sample}\n", **QUIET_LOGS},
        says=("8 aggregators", "max_hash_shuffle_aggregators = 4"),
        severity="warning",
    ),
    Example(
        "one slow task is only a note",
        {
            "logs/ray-data/ray-data.log": f"{_WARNING}A task (task_id=c8ef45ccd0112571ffffffffffffffffffffffff01000000) of operator "
            "Map(f) (pid=476, node_id=ab, attempt=0) has been running or stuck in scheduling for 61.20s, which is longer than the "
            "average task duration + z-score * stddev of this operator (2.10 + 10 * 0.50s).\n",
            **QUIET_LOGS,
        },
        says=("61 s", "2.1 s"),
        severity="info",
    ),
    console(
        "the timeout in other words, in a console of a job",
        "2026-11-21 10:48:33,745\tERROR streaming_executor.py:400 -- ⚠️  Dataset train_7_0 execution failed\n"
        f"{data.TIMED_OUT.sample}\n",
        says=(
            "after 1800 s without progress at ReadParquet->MapBatches(f)",
            "execution_no_progress_timeout_s = 3600",
        ),
    ),
    console(
        "the actors of a pool do not start",
        "Traceback (most recent call last):\n"
        f'  File "/app/etl.py", line 12, in <module>\n    ds.materialize()\n{data.NO_ACTORS.sample}\n',
        says=("the actors of its pool did not start",),
    ),
    console(
        "aggregators that wait for CPUs, in the driver's output",
        f"{_WARNING}{data.AGGREGATORS.sample}\n",
        says=("Only 3 of 8 aggregators", "needs 8 CPUs, 0 are free"),
        severity="warning",
    ),
    console(
        "an actor that cancels each call that is sent again, in a console",
        "".join(
            f"({_MAP_WORKER} pid=702, ip=10.0.0.2) [2026-11-21 10:48:{n},679 E 702 702] actor_scheduling_queue.cc:135: "
            f"Cancelling stale RPC with seqno {n} < {n + 2}\n"
            for n in (41, 42, 43)
        ),
        says=(
            "An actor of ReadParquet->MapBatches(Embed) (pid 702) cancelled 3 calls",
            "kill 702",
            "2.45",
        ),
        severity="warning",
    ),
    Example(
        "the same in the actor's own files, whose name says what it runs; the daemons report nothing",
        {
            f"logs/worker-{'5d' * 28}-01000000-702.out": f":job_id:01000000\n:actor_name:{_MAP_WORKER}\n",
            f"logs/worker-{'5d' * 28}-01000000-702.err": "[2026-11-21 10:48:12,679 E 702 702] actor_scheduling_queue.cc:160: Timed out "
            "waiting for seq_no 43 in concurrency group , after waiting for 30 seconds. Cancelling all queued tasks. This means an "
            "expected task failed to arrive at the actor via RPC.\n",
            **QUIET_LOGS,
        },
        says=("never received call 43",),
        severity="warning",
    ),
    console(
        "a call that is cancelled once, calls to another actor, and a pipeline that finished",
        f"({_MAP_WORKER} pid=702) [2026-11-21 10:48:12,679 E 702 702] actor_scheduling_queue.cc:135: {data.STALE[0].sample}\n"
        + 2
        * f"(MapWorker(Map(g)) pid=703) [2026-11-21 10:48:13,679 E 703 703] actor_scheduling_queue.cc:135: {data.STALE[0].sample}\n"
        + 3 * f"(Cache pid=704) {data.STALE[0].sample}\n"
        + f"2026-11-21 10:49:01,100\tINFO streaming_executor.py:300 -- {data.FINISHED.sample}\n",
    ),
    console(
        "a console in which the warning of slow tasks persists",
        f"{_WARNING}{data.SLOW_TASK.sample}\n" * 3,
        says=("has been running for 128 s or more",),
        severity="warning",
    ),
    console(
        "the same, and the pipeline finishes",
        f"{_WARNING}{data.SLOW_TASK.sample}\n" * 3
        + f"{_LOG.replace('{level}', 'INFO')}{data.FINISHED.sample}\n",
        severity="info",
    ),
    Example(
        "a program prints the messages, and a pipeline runs",
        {
            "driver.log": f"{data.NOT_ENOUGH.sample}\n{data.IDLE.sample}\n",
            "logs/ray-data/ray-data.log": f"{_LOG.replace('{level}', 'INFO')}ReadRange->Map(f): 3/10 [backpressured:tasks(ResourceBudget)]\n",
            **QUIET_LOGS,
        },
    ),
    console(
        "one rank does not read its split",
        "epoch 0\n(SplitCoordinator pid=812) 2026-11-21 10:43:01,589\tWARNING stream_split_iterator.py:583 -- "
        f"{data.SPLIT.sample} This warning will not be printed again for this epoch.\n",
        says=("more than 30 s at the start of epoch 0", "split 1", "iter_batches"),
        severity="warning",
    ),
    console(
        "a program quotes the warning",
        f"note: {data.SPLIT.sample}\nloss 0.1\n",
    ),
)

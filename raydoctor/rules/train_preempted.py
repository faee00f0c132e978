"""Nodes of a Ray Train run were preempted: the cloud or an operator reclaimed them while ranks ran there.

## What you see
The controller logs `PreemptionWatcher: preemption detected` with nodes, ranks and a deadline (Ray 2.57 and later), or
`[FailurePolicy]` with `Source: preemption`. The driver gets `PreemptionError: Training was interrupted by node
preemption (preempted_ranks=[1], drain_timed_out=False)` (Ray 2.58 and later). Older versions print only the error of
a rank: `… because its node has died`, followed by `the actor's node was preempted:` with the reason (Ray 2.31 and
later).

## Why
The cloud reclaims spot and preemptible machines after a notice of 30 s to 2 min. The autoscaler or `ray drain-node`
then drains the node: Ray places nothing new on it, and ends it at the deadline. The ranks on the node end with it. All
other ranks wait for them in their next collective operation.

## Confirm
- The text after `the actor's node was preempted:`, or the notice of the cloud provider, names the reason.
- `gcs_server.out` contains `Set node to be draining` (Ray 2.40 and later) and then the node's death reason
  `AUTOSCALER_DRAIN_PREEMPTED`.
- The controller's log contains `Checkpoint successfully created at:` between the notice and the end if the run saved
  its work.

## Fix
Save a checkpoint when the notice arrives, keep `storage_path` outside the nodes, and let the run restart. Put rank 0
and the head node on machines that are not preempted.

## Not this when
- the run finished between the notice and the deadline.
- a node died without a notice (`node-died`), or Ray's memory monitor killed a worker (`ray-oom-kill`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, Signal, console, rule
from raydoctor.case.signals import DRIVER
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import train
from raydoctor.rules.shared.train import TrainRun

_DOC = "https://docs.ray.io/en/latest/train/user-guides/fault-tolerance.html"
_LOGGED = ("train", "worker-echo")
_N = "b157c93de9603b1458ae4bd22668b46a4f0ae249bf9467072ba6fd45"

DETECTED = Signal(
    "train.preemption_detected",
    "PreemptionWatcher: ",
    r"^PreemptionWatcher: (?:drain|preemption) detected\b(?P<what>.*)",
    (*_LOGGED, "worker-err"),
    f"PreemptionWatcher: preemption detected — preempted_node_ids=['{_N}'], preempted_ranks=[1], deadline_ms=1795247733000",
)
"""2.57 and later, from an actor of its own beside the controller."""
TOLD = Signal(
    "train.preemption_noticed",
    " received preemption signal (this_worker_preempted=",
    r"^Rank \d+ received preemption signal \(this_worker_preempted=(?:True|False), (?P<what>preempted_ranks=\[.*)",
    (*_LOGGED, "worker-err"),
    "Rank 0 received preemption signal (this_worker_preempted=False, preempted_ranks=[1], deadline_ms=1795247733000).",
)
INTERRUPTED = Signal(
    "train.interrupted",
    "Training was interrupted by node preemption",
    r"(?:^|Error: )Training was interrupted by node preemption \((?P<what>preempted_ranks=\[[^\]\n]{0,2000}\], drain_timed_out=(?P<forced>\w+))",
    (*_LOGGED, *DRIVER),
    "Error: Training was interrupted by node preemption (preempted_ranks=[1], drain_timed_out=False).",
)
LOST = Signal(
    "train.rank_preempted",
    "s node was preempted:",
    r"^\s*the actor's node was preempted: ?(?P<reason>.{0,300})",
    ("worker-echo",),
    "\tthe actor's node was preempted: the spot machine is reclaimed",
)
"""Below the error of a rank in the controller's output; 2.31 and later."""
LOST_NODE = Signal(
    "train.rank_lost_node",
    "because its node has died. Node Id: ",
    r"^The actor (?:is dead|died) because its node has died\. Node Id: (?P<node>[0-9a-f]{56})",
    ("worker-echo",),
    f"The actor died because its node has died. Node Id: {_N}",
)
CHECKPOINT = Signal(
    "train.checkpoint",
    "Checkpoint successfully created at: ",
    r"^Checkpoint successfully created at: (?P<checkpoint>.{0,1000})",
    (*_LOGGED, "train-app", "worker-err"),
    "Checkpoint successfully created at: Checkpoint(filesystem=local, path=/mnt/runs/prices/checkpoint_2026-11-21_10-42-20)",
)
FINISHED = Signal(
    "train.finished",
    "[State Transition] ",
    r"^\[State Transition\] \w+ -> FINISHED",
    _LOGGED,
    "[State Transition] RUNNING -> FINISHED.",
)
_RANKS = pattern(r"preempted_ranks=\[((?:\d{1,9}, ?)*\d{0,9})\]")
_NODES = pattern(r"\b[0-9a-f]{56}\b")
_RANK = pattern(r"\bworld_rank=(\d{1,20})")


@rule(
    tier="root",
    severity="error",
    rank=62,
    explains=("train-run",),
    caused_by=("node",),
    looks_for=(DETECTED, TOLD, INTERRUPTED, LOST, LOST_NODE, CHECKPOINT, FINISHED, *train.SIGNALS),
)
def train_preempted(case: Case) -> Iterator[Finding]:
    """One finding for all preempted nodes of a capture's runs."""
    kinds = (DETECTED.kind, TOLD.kind, INTERRUPTED.kind, LOST.kind)
    ends = case.of(FINISHED.kind)
    seen = [
        e for e in train.logged(case, *kinds) if not any(evidence.is_before(e, end) for end in ends)
    ]
    runs = [run for run in train.runs(case) if run.attempts[-1].is_preempted]
    if seen or runs:
        yield _finding(case, seen, runs)


def _finding(case: Case, seen: list[Event], runs: list[TrainRun]) -> Finding:
    decisions = [run.attempts[-1].event for run in runs]
    texts = [*(e.message for e in seen), *(e["what"] for e in decisions)]
    texts += [e.message for e in train.logged(case, LOST_NODE.kind)] if seen else []
    nodes = list(dict.fromkeys(n for text in texts for n in _NODES.findall(text) if text))
    ranks = sorted(
        {int(r) for t in texts for m in _RANKS.findall(t) for r in m.split(",") if r.strip()}
    )
    ranks = ranks or sorted({int(r) for e in decisions for r in _RANK.findall(e["what"])})
    saved = _saved(case, seen, decisions)
    gave_up = any(run.attempts[-1].gave_up for run in runs) or any(map(_is_raised, seen))
    is_over = bool(runs) or any(e.kind in (INTERRUPTED.kind, LOST.kind) for e in seen)
    named = next((f" {run.name}" for run in runs if run.name), "")
    own = Entity("train-run", f"preempted {(seen or decisions)[0].source.path}")
    return Finding(
        f"{_nodes(case, nodes)} of the training run{named}{_of(ranks)} {'were' if len(nodes) > 1 else 'was'} preempted"
        f"{_checkpoint(saved, is_over=is_over)}",
        tuple(_links(seen, decisions, saved)),
        explains=(own, *(train.entity(run) for run in runs)),
        caused_by=tuple(Entity("node", node) for node in nodes),
        subjects=tuple(Subject("node", node, _ip(case, node), None, node) for node in nodes[:10]),
        count=max(len(nodes), 1),
        severity="error" if gave_up else "warning",
        remedies=_remedies(runs),
        covers=(*train.echoes(case), *seen, *decisions, *train.logged(case, LOST_NODE.kind), *(e for run in runs for e in run.raised)),
    )  # fmt: skip


def _is_raised(event: Event) -> bool:
    """Whether the driver got the exception: the run did not restart."""
    return event.kind == INTERRUPTED.kind and not event["who"] and "PreemptionError: " in event.text


def _ip(case: Case, node: str) -> str | None:
    return case.ledger.node_ips.get(node)


def _nodes(case: Case, nodes: list[str]) -> str:
    if not nodes:
        return "A node"
    names = evidence.join_names(_ip(case, node) or evidence.short(node) for node in nodes)
    return f"Nodes {names}" if len(nodes) > 1 else f"Node {names}"


def _of(ranks: list[int]) -> str:
    if not ranks:
        return ""
    numbers = evidence.join_names((str(rank) for rank in ranks), most=8)
    return f" (rank{'s' if len(ranks) > 1 else ''} {numbers})"


def _saved(case: Case, seen: list[Event], decisions: list[Event]) -> Event | None:
    """The last checkpoint between the notice and the end; without a notice, the last one."""
    notices = [e for e in seen if e.kind in (DETECTED.kind, TOLD.kind)]
    ends = [*(e for e in seen if e not in notices), *decisions]
    for event in reversed(train.logged(case, CHECKPOINT.kind)):
        late = not notices or not evidence.is_before(event, notices[0])
        if late and not any(evidence.is_before(end, event) for end in ends):
            return event
    return None


def _checkpoint(saved: Event | None, *, is_over: bool) -> str:
    if saved:
        return ", after a checkpoint was saved" if is_over else ", and a checkpoint was saved"
    return ", and the capture shows no checkpoint after the notice" if is_over else ""


def _links(seen: list[Event], decisions: list[Event], saved: Event | None) -> Iterator[Link]:
    shows = {
        DETECTED.kind: "Ray Train receives the notice that nodes of the run are being drained",
        TOLD.kind: "a rank receives the notice of the preemption",
        INTERRUPTED.kind: "Ray Train reports that a preemption ended the attempt",
        LOST.kind: "a rank ended because its node was preempted",
    }
    for kind, reason in shows.items():
        if event := next((e for e in seen if e.kind == kind), None):
            yield Link(event, reason)
    if saved:
        yield Link(saved, "the last checkpoint")
    for event in decisions[-1:]:
        yield Link(event, "the controller decides whether the run restarts")


def _remedies(runs: list[TrainRun]) -> tuple[Remedy, ...]:
    is_limited = any(run.attempts[-1].gave_up for run in runs)
    return (
        Remedy(
            "Save a checkpoint when the notice arrives, in storage that outlives the nodes",
            (
                "if train.get_preemption_info() is not None:   # in the training loop, in every rank",
                "    train.report(metrics, checkpoint=train.Checkpoint.from_directory(path))",
                "RunConfig(storage_path='s3://…')",
            ),
            doc=_DOC,
            since=(2, 58),
        ),
        Remedy(
            "Let the run restart from its last checkpoint" + (": it had no attempts left" if is_limited else ""),
            ("RunConfig(failure_config=FailureConfig(max_failures=3))   # Ray 2.58 and later: max_preemption_failures=-1",),
            doc=_DOC,
        ),
        Remedy(
            "Keep the head node and rank 0 on machines that are not preempted",
            ("ray start --labels=NAME=VALUE   # plus your other options. In the program: ScalingConfig(label_selector={\"NAME\": \"VALUE\"})",),
            doc=_DOC,
        ),
    )  # fmt: skip


# ------------------------------------------------------------------ examples

_WATCHER = f"(PreemptionWatcher pid=90) {DETECTED.sample}\n"
_TOLD = f"(RayTrainWorker pid=91, ip=10.0.0.2) {TOLD.sample}\n"
_SAVED = f"(RayTrainWorker pid=91, ip=10.0.0.2) {CHECKPOINT.sample}\n"
_GAVE_UP = (
    "(TrainController pid=80) [FailurePolicy] RAISE\n(TrainController pid=80)   Source: preemption\n"
    f"(TrainController pid=80)   Error count: 1 (max allowed: 0)\n(TrainController pid=80) {INTERRUPTED.sample}\n"
)
_CUT = (
    "(TrainController pid=80)   distributed_context=DistributedContext(world_rank=1, world_size=2, local_rank=1, local_world_size=2, "
    "node_rank=0),\n(TrainController pid=80) )\n(TrainController pid=80) The actor died unexpectedly before finishing this task.\n"
    f"(TrainController pid=80) \tclass_name: RayTrainWorker\n(TrainController pid=80) {LOST_NODE.sample}\n"
    f"(TrainController pid=80) {LOST.sample}\n"
)

EXAMPLES: tuple[Example, ...] = (
    console(
        "the notice, a checkpoint, and the controller gives up",
        _WATCHER + _TOLD + _SAVED + _GAVE_UP,
        says=("Node b157c93d", "(rank 1)", "after a checkpoint was saved", "no attempts left"),
    ),
    console(
        "a console that begins inside the error of a rank, of Ray 2.56",
        _CUT,
        says=("b157c93d", "no checkpoint after the notice"),
        severity="warning",
    ),
    console(
        "the notice alone, in the words of a development version",
        f"(PreemptionWatcher pid=90) PreemptionWatcher: drain detected: {{'{_N}': 0}}\n",
        says=("Node b157c93d of the training run was preempted",),
        severity="warning",
    ),
    Example(
        "the GCS reports the node's death: the node is the cause",
        {
            "driver.log": _WATCHER + _GAVE_UP,
            "logs/gcs_server.out": "[2026-11-21 10:44:46,741 W 8 8] (gcs_server) gcs_node_manager.cc:300: Removing node, "
            f"node name = 10.0.0.2, death reason = AUTOSCALER_DRAIN_PREEMPTED, death message = spot node_id={_N}\n",
            "logs/raylet.out": "",
        },
        roots=("node-died",),
        consequences=("train-preempted",),
    ),
    console(
        "a run that finishes before the deadline",
        f"{_WATCHER}{_TOLD}{_SAVED}(TrainController pid=80) {FINISHED.sample}\n",
    ),
    console(
        "a task and a program print the words",
        f"(report pid=12) {DETECTED.sample}\n(report pid=12) {LOST.sample}\n"
        "runbook: Training was interrupted by node preemption means that the spot machine is gone\n",
    ),
)  # fmt: skip

"""Shared by rules about waiting: requests, the nodes' resources, their holders, and drivers that stopped waiting.

Texts read in the logs of Ray 2.9.3, 2.20, 2.40, 2.50 and 2.60.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Signal
from raydoctor.case.signals import CORE, DRIVER, DRIVER_GONE, RAYLET, TRACEBACK, WORKER_DISCONNECTED
from raydoctor.cluster import resources, tables
from raydoctor.cluster import waiting as now
from raydoctor.model import paste
from raydoctor.model.patterns import pattern
from raydoctor.model.text import called
from raydoctor.model.values import Event, Remedy, Severity

_WHO = r"(?:actor or task with ID (?P<task>[0-9a-f]{48})|lease with ID (?P<lease>[0-9a-f]{64}))"
_TASK = "ffffffffffffffffc49f0dc5b78fa1b30dbe726e01000000"
_LEASE = "0000000001000000ffffffffffffffffffffffffffffffffffffffffffffffff"

INFEASIBLE = Signal(
    "request.infeasible", " cannot be scheduled right now. It requires ",
    rf"^The {_WHO} cannot be scheduled right now\. It requires \{{(?P<needs>[^}}]*(?:\}}, \{{[^{{}}]*){{0,20}})\}} for placement", (*RAYLET, "raylet-echo"),
    f"The lease with ID {_LEASE} cannot be scheduled right now. It requires {{CPU: 1, GPU: 1}} for placement, however the cluster "
    "currently cannot provide the requested resources. The required resources may be added as autoscaling takes place or placement "
    "groups are scheduled. Otherwise, consider reducing the resource requirements of the lease.",
)  # fmt: skip
"""Level W, once when a request is set aside (`{CPU: 1}, {GPU: 1}` before 2.0); drivers see it only with RAY_legacy_scheduler_warnings."""

STARVED = Signal(
    "request.starved", " cannot be scheduled right now. You can ignore this message if this ",
    rf"^The {_WHO} cannot be scheduled right now\. You can ignore this message if this .{{0,2000}}?\nRequired resources for this (?:actor or task|lease): "
    r"\{(?P<needs>[^}]*)\}\nAvailable resources on this node: (?P<node_state>.*?) ?In total there are (?P<tasks>\d+) pending "
    r"(?:tasks|leases) and (?P<actors>\d+) pending actors on this node", (*RAYLET, "raylet-echo"),
    f"The lease with ID {_LEASE} cannot be scheduled right now. You can ignore this message if this Ray cluster is expected to "
    "auto-scale or if you specified a runtime_env for this actor or lease, which may take time to install.  Otherwise, this is likely "
    "due to all cluster resources being claimed by actors. To resolve the issue, consider creating fewer actors or increasing the "
    "resources available to this Ray cluster.\nRequired resources for this lease: {CPU: 1}\nAvailable resources on this node: "
    '{"total":{node:127.0.0.1: 10000, CPU: 20000, memory: 27059228680000}, "available": {node:127.0.0.1: 10000, memory: '
    '27059228680000}, "labels":{}, "is_draining": 0} In total there are 2 pending leases and 0 pending actors on this node.',
    extent="record",
)  # fmt: skip
"""Level W, once, about twenty seconds after the last worker that could take work was gone."""

OLD_STARVED = Signal(
    "request.starved_old", ", but this node only has remaining ",
    r"^The actor or task with ID (?P<task>[0-9a-f]{16,48}) (?:cannot be scheduled right now|is pending and cannot currently be scheduled)\. "
    r"It requires \{(?P<needs>[^}]*(?:\}, \{[^{}]*){0,20})\} for (?:execution and \{[^}]{0,400}(?:\}, \{[^}]{0,400}){0,20}\} for )?placement, but this node only has remaining "
    r"(?:\{.{0,4000}?\}\s{0,3}\. In total there are (?P<tasks>\d+) pending tasks and (?P<actors>\d+) pending actors on this node)?",
    (*RAYLET, "raylet-echo"),
    "The actor or task with ID 124a2b0fc855a8f8ffffffff01000000 cannot be scheduled right now. It requires {CPU: 1.000000} for placement, but "
    "this node only has remaining {node:10.0.0.2: 1.000000}, {memory: 71.142578 GiB}, {GPU: 0.250000}. In total there are 7 pending tasks and 0 "
    "pending actors on this node. This is likely due to all cluster resources being claimed by actors.",
    extent="record",
)  # fmt: skip
"""The same up to 1.8, which drivers show."""

NO_NODE_TYPE = (
    Signal(
        "request.no_node_type", "No available node types can fulfill resource request",
        r"No available node types can fulfill resource requests? (?P<combined>defaultdict\()?(?P<asked>.*?)(?:\. Add suitable|$)",
        ("monitor", "event", "autoscaler-echo"),
        ":event_summary:Error: No available node types can fulfill resource request {'CPU': 1.0, 'GPU': 1.0}. Add suitable node types "
        "to this cluster to resolve this issue.", fold=("asked",),
    ),
    Signal(
        "request.no_node_type", "No available node types can fulfill placement group requests",
        r"No available node types can fulfill (?P<gang>placement group) requests \(detail=.*?\): (?P<asked>.*?)(?:\. Add suitable|$)",
        ("monitor", "event", "autoscaler-echo"),
        "No available node types can fulfill placement group requests (detail=c9a9): {'GPU': 1.0}*2. Add suitable node types to this "
        "cluster to resolve this issue.", fold=("asked",),
    ),
)  # fmt: skip
"""Autoscaler v1 repeats one request every 30 s and merges a STRICT_PACK group into one `defaultdict`; v2
(2.10 and later) lists them with counts and names groups as such."""

CLAIMED = Signal(
    "request.claimed", "This is likely due to all cluster resources being claimed by actors.",
    r"The following resource request cannot be scheduled right now: (?P<asked>\{[^}]*\})\. This is likely due to all cluster "
    r"resources being claimed by actors\.", ("monitor", "event", "autoscaler-echo"),
    "Warning: The following resource request cannot be scheduled right now: {'CPU': 1.0}. This is likely due to all cluster resources "
    "being claimed by actors. Consider creating fewer actors or adding more nodes to this Ray cluster.", fold=("asked",),
)  # fmt: skip
"""Autoscaler v1 up to 2.50, every 30 s while it lasts."""

GROUP_PENDING = Signal(
    "pg.demand", "+ pending placement groups",
    r"^ *(?P<bundles>\{.*\}(?: \* \d+)?) \((?P<strategy>[A-Z_]+)\): (?P<count>\d+)\+ pending placement groups", ("monitor",),
    " {'CPU': 4.0} * 2 (STRICT_PACK): 1+ pending placement groups", fold=("bundles", "strategy"),
)  # fmt: skip
"""`Demands` of the autoscaler's status, every five seconds while it lasts."""

RESUBMITTED = Signal(
    "task.resubmitted", "Will resubmit task after a ",
    r"^Will resubmit task after a \d+ms delay: Type=NORMAL_TASK, .*?Resources: \{(?P<needs>[^}]*)\}.*?function_name=(?P<function>[^,}]*)",
    CORE,
    "Will resubmit task after a 0ms delay: Type=NORMAL_TASK, Language=PYTHON, Resources: {big_disk: 1, CPU: 1, }, function_descriptor="
    "{type=PythonFunctionDescriptor, module_name=t, class_name=, function_name=train, function_hash=4045}, "
    "task_id=c8ef45ccd0112571ffffffffffffffffffffffff01000000, task_name=train, job_id=01000000", fold=("function",),
)  # fmt: skip
"""A submitter's retry: the task ran before, so its request fitted once. Amounts are plain in every Ray."""

RESIZED = Signal(
    "autoscaler.resized", "Resized to ", r"^(?::event_summary:)?Resized to \d+ ", ("monitor", "event", "autoscaler-echo"),
    ":event_summary:Resized to 100 CPUs, 4 GPUs.",
)  # fmt: skip

STATUS = Signal(
    "cluster.status", " Autoscaler status: ",
    r"^=+ Autoscaler status: (?P<table>.*)", ("console",),
    "======== Autoscaler status: 2026-11-21 07:36:14.406028 ========\nNode status\n-----------\nActive:\n 1 node_9ce4595c\nPending:\n"
    " (no pending nodes)\nRecent failures:\n (no failures)\n\nResources\n-----------\nUsage:\n 0.0/112.0 CPU\n 0.0/1.0 GPU\n"
    " 0B/337.53GiB memory\n\nDemands:\n {'GPU': 1.0, 'CPU': 1.0} * 8 (STRICT_PACK): 1+ pending placement groups",
    extent="record",
)  # fmt: skip
"""What `ray status` prints, as people paste it below an error."""

CALLER_GONE = (
    Signal(
        "request.caller_gone", "Caller of RequestWorkerLease is dead",
        r"^Caller of RequestWorkerLease is dead\.(?:.*?worker_id=(?P<worker>[0-9a-f]{56}))?", RAYLET,
        "Caller of RequestWorkerLease is dead. Skip leasing. worker_id=01000000ffffffffffffffffffffffffffffffffffffffffffffffff",
    ),
    Signal(
        "request.caller_gone", "caller is no longer running. Cancelling task.",
        r"^RayTask: (?P<task>[0-9a-f]{48})'s caller is no longer running\. Cancelling task\.", RAYLET,
        f"RayTask: {_TASK}'s caller is no longer running. Cancelling task.",
    ),
)  # fmt: skip
"""A request was still pending when the process that made it ended."""

GC_SENT = Signal(
    "raylet.gc_sent", "Sending Python GC request to ", r"^Sending Python GC request to \d+ local workers", ("raylet-out",),
    "Sending Python GC request to 3 local workers to clean up Python cyclic references.",
)  # fmt: skip
"""Every ten seconds from STARVED on, for as long as it lasts (and, rarely, when the object store is full)."""

CLIENT_GONE = Signal(
    "raylet.client_gone", "NodeManager::DisconnectClient, disconnect_type=",
    r"^NodeManager::DisconnectClient, disconnect_type=(?P<disconnect_type>\d)", ("raylet-out",),
    "NodeManager::DisconnectClient, disconnect_type=3, has creation task exception = false",
)  # fmt: skip
"""2.9.3 to 2.40, without an id; a driver's own record follows on the next line."""
INTERRUPTED = Signal(
    "driver.interrupted", "KeyboardInterrupt", r"^KeyboardInterrupt\b", DRIVER, "KeyboardInterrupt"
)

TERMINATED = Signal(
    "driver.terminated", "*** SIGTERM received at time=", r"^\*\*\* SIGTERM received at time=", ("core-driver", "driver"),
    "*** SIGTERM received at time=1795249532 on cpu 0 ***",
)  # fmt: skip
"""A driver that a time limit or a user ended; it then disconnects as at a normal end."""

DRIVER_END = (INTERRUPTED, TERMINATED, TRACEBACK, WORKER_DISCONNECTED, CLIENT_GONE, DRIVER_GONE)
"""The end of a driver that was waiting."""

# ---------------------------------------------------------------- nodes' resources

_NODE_TOTAL = pattern(r'node id: (-?\d{1,20})\{"total":\{([^{}]*)\}')
_OWN_TOTAL = pattern(r'"total":\{([^{}]*)\}')


def totals(case: Case, at: float | None) -> list[resources.Needs]:
    """Each node's total resources, from the last dumps of raylets that were alive at that moment."""
    dead = {node for node, death in deaths(case) if at is not None and death <= at}
    found: dict[str, resources.Needs] = {}
    for state in case.of("debug.state"):
        for node, text in _NODE_TOTAL.findall("" if state["node"] in dead else state["local_id"]):
            found[node] = resources.ten_thousandths(text)
    if not found:
        table = status(case)
        if table and table.nodes == 1:
            found[table.event.source.path] = table.total
        for event in case.of("request.starved"):
            if own := _OWN_TOTAL.search(event["node_state"]):
                found[event.source.path] = resources.ten_thousandths(own[1])
    return list(found.values())


_STATUS_TOTAL = pattern(
    r"^ ?(?P<used>\d{1,20}(?:\.\d{1,20})?)/(?P<amount>\d{1,20}\.\d{1,20}) (?P<name>[\w.:-]+)(?: \(.{0,200}\))?$",
    re.MULTILINE,
)
_STATUS_NODE = pattern(r"^ (?P<count>\d{1,6}) \S+$", re.MULTILINE)
_NOT_IN_STATUS = ("memory", "object_store_memory")
"""`ray status` rounds them."""


class ClusterStatus(NamedTuple):
    """A table of `ray status`."""

    total: resources.Needs
    nodes: int
    """Active nodes; 0 if the table does not list them."""
    used: resources.Needs
    event: Event

    def lacks(self, needs: resources.Needs) -> bool:
        """Whether the whole cluster has less, as far as `ray status` shows that."""
        return not resources.fits(self.total, _listed(needs))


def status(case: Case) -> ClusterStatus | None:
    """The last table of `ray status` in a console, unless it lists nodes that are starting."""
    for event in reversed(case.of("cluster.status")):
        table = event["table"]
        amounts = list(_STATUS_TOTAL.finditer(table))
        if amounts and "(no pending nodes)" in table:
            active = table.partition("Pending:")[0]
            nodes = sum(int(m["count"]) for m in _STATUS_NODE.finditer(active))
            total = {m["name"]: float(m["amount"]) for m in amounts}
            used = {m["name"]: float(m["used"]) for m in amounts}
            return ClusterStatus(total, nodes, used, event)
    return None


def is_beyond(case: Case, needs: resources.Needs) -> bool:
    """Whether a table of `ray status` shows that the whole cluster has less, and that no node is starting."""
    table = status(case)
    return table is not None and table.lacks(needs)


def free(table: ClusterStatus, needs: resources.Needs) -> resources.Needs | None:
    """The free amounts of what is requested, if they suffice for it; `ray status` rounds memory."""
    listed = _listed(needs)
    amounts = {name: table.total.get(name, 0.0) - table.used.get(name, 0.0) for name in listed}
    return amounts if resources.fits(amounts, listed) else None


def _listed(needs: resources.Needs) -> resources.Needs:
    """The resources that `ray status` lists: not those that only one node has."""
    return {
        name: amount
        for name, amount in needs.items()
        if name not in _NOT_IN_STATUS and not name.startswith(resources.NODES_OWN)
    }


_DEMAND = pattern(r"^ (?P<asked>\{[^{}\n]{1,2000}\}): \d+\+ pending tasks/actors", re.MULTILINE)


def demands_beyond(case: Case) -> list[tuple[resources.Needs, Event]]:
    """Requests of tasks and actors that the last table of `ray status` lists, and the whole cluster has less."""
    table = status(case)
    if table is None or table.event is not case.of("cluster.status")[-1]:
        return []
    asked = [
        resources.python_amounts(m["asked"])[0] for m in _DEMAND.finditer(table.event["table"])
    ]
    return [(needs, table.event) for needs in asked if table.lacks(needs)]


_OWN_RESOURCE = pattern(r"\{'node:[^'{}]{1,100}': [\d.]{1,20}\}")


def is_last_word(case: Case, reports: Iterable[Event]) -> bool:
    """Whether a console shows nothing of the program after one of these reports.

    A node's own resource (`node:10.0.0.2`), if nothing else is asked for, is also reported for a node that was
    removed in the meantime.
    """
    return any(
        event.source.is_excerpt
        and not _OWN_RESOURCE.search(event.message)
        and (
            case.is_last_of_console(event)
            or _is_monitors_last(case, event)
            or _is_still_asked(case, event)
        )
        for event in reports
    )


def _is_still_asked(case: Case, event: Event) -> bool:
    """Whether the console ends with a table of `ray status` that lists the request of a report above it."""
    table = status(case)
    if table is None or table.event.source is not event.source or table.event.line < event.line:
        return False
    end = case.endings.get(event.source)
    is_last = end is None or end.line <= table.event.line + table.event.text.count("\n")
    return is_last and bool(event["asked"]) and event["asked"] in table.event["table"]


def _is_monitors_last(case: Case, event: Event) -> bool:
    """Whether a pasted log of the autoscaler itself shows no node that joined after its report."""
    is_monitors = event.message.startswith(":event_summary:")
    return is_monitors and not any(e.line > event.line for e in case.of(RESIZED.kind))


def had(case: Case, node: str, needs: resources.Needs) -> bool:
    """Whether a node's own last dump shows that a request would have fitted."""
    return any(resources.fits(own, needs) for own in _dumped(case, node))


def resources_of(case: Case, node: str) -> resources.Needs:
    """A node's total resources: from a live collection, else from its raylet's last dump; empty if unknown."""
    snapshot = now.picture(case)
    live = (n.total for n in (*snapshot.nodes, *snapshot.lost) if n.id == node) if snapshot else ()
    return next((total for total in live if total), next(_dumped(case, node), {}))


def _dumped(case: Case, node: str) -> Iterator[resources.Needs]:
    for state in case.of("debug.state"):
        totals_ = dict(_NODE_TOTAL.findall(state["local_id"])) if state["node"] == node else {}
        if own := totals_.get(state["local_id"].partition(" ")[0], ""):
            yield resources.ten_thousandths(own)


def deaths(case: Case) -> list[tuple[str, float]]:
    """(NodeID, when the GCS marked it dead)."""
    found = [(e["node"] or e["node_a"] or e["node_b"], e.at) for e in case.of("node.dead")]
    return [(node, at) for node, at in found if node and at is not None]


def retries(case: Case, needs: resources.Needs) -> list[Event]:
    """Retries of tasks with the same request: it fitted once."""
    return [
        e
        for e in case.of("task.resubmitted")
        if resources.key(resources.amounts_of_spec(e["needs"])) == resources.key(needs)
    ]


_BUNDLE = pattern(r"(?P<one>\{[^{}]*\})(?: \* (?P<times>\d{1,20}))?")


class ListedGroup(NamedTuple):
    """A pending placement group as the autoscaler lists it."""

    strategy: str
    bundles: tuple[tuple[frozenset[tuple[str, float]], int], ...]
    """(resources of a bundle, how many such bundles)."""
    event: Event


def pending_groups(case: Case) -> list[ListedGroup]:
    """Placement groups that the autoscaler's status lists as pending, each with its last record."""
    found: dict[tuple[str, str], ListedGroup] = {}
    for event in case.of("pg.demand"):
        bundles = tuple(
            (resources.key(resources.python_amounts(b["one"])[0]), int(b["times"] or 1))
            for b in _BUNDLE.finditer(event["bundles"])
        )
        found[(event["strategy"], event["bundles"])] = ListedGroup(
            event["strategy"], bundles, event
        )
    return list(found.values())


_ADDRESS = Remedy(
    "Ask for an address under which a node of the cluster is registered",
    (
        "ray list nodes   # the addresses of the nodes",
        "export VLLM_HOST_IP=NODE_IP   # vLLM: on each node, the address that Ray shows for it",
    ),
)


def addresses(needs: resources.Needs) -> tuple[Remedy, ...]:
    """What to do if a request names a node by its address."""
    return (_ADDRESS,) if any(name.startswith(resources.NODES_OWN) for name in needs) else ()


def group_bundles(case: Case) -> set[frozenset[tuple[str, float]]]:
    """Shapes that only placement groups request: the autoscaler reports these bundle by bundle."""
    return {bundle for group in pending_groups(case) for bundle, _ in group.bundles}


# ---------------------------------------------------------------- holders


class DumpedHolder(NamedTuple):
    """A worker that holds resources: an actor, or a task that is running or waiting."""

    name: str
    pid: int
    held: resources.Needs

    @property
    def is_actor(self) -> bool:
        """Whether it is an actor, which the raylet lists under its creation task."""
        return self.name.endswith(".__init__")


_HOLDER = pattern(
    r"actor_or_task=?(?P<name>.{0,300}?) pid=(?P<pid>\d{1,20})(?: worker_id=[0-9a-f]*)?\): \{(?P<held>[^{}]*)\}"
)


def holders_in(state: Event) -> list[DumpedHolder]:
    """The holders in a raylet's last dump of its state."""
    text = state.message.partition("Resource usage {")[2].partition("\n}")[0]
    return [
        DumpedHolder(m["name"], int(m["pid"]), resources.amounts(m["held"]))
        for m in _HOLDER.finditer(text)
    ]


def holders(case: Case) -> tuple[list[DumpedHolder], Event | None]:
    """The holders in the last dump of each node, and the dump with most of them. Empty after their job's end.

    (The raylet also dumps them when it prints STARVED, but in the same form as the dump that it writes to its log
    every minute: searching for it is too expensive.)
    """
    dumps = [(holders_in(state), state) for state in case.of("debug.state")]
    dumps = [(found, state) for found, state in dumps if found]
    fullest = max(dumps, key=lambda dump: len(dump[0]), default=None)
    return [holder for found, _ in dumps for holder in found], fullest[1] if fullest else None


def at_holder(state: Event, holder: DumpedHolder) -> Event:
    """The dump at the line of a holder, which a report quotes."""
    return _at_row(
        state, lambda row: (m := _HOLDER.search(row)) is not None and int(m["pid"]) == holder.pid
    )


def at_queue(state: Event) -> Event:
    """The dump at the line with the length of its queue, which a report quotes."""
    return _at_row(
        state, lambda row: row.lower().startswith(("grant queue length:", "dispatch queue length:"))
    )


def _at_text(state: Event, text: str) -> Event:
    return _at_row(state, lambda row: text in row)


def _at_row(state: Event, is_it: Callable[[str], bool]) -> Event:
    rows = state.message.split("\n")
    number = next((n for n, row in enumerate(rows) if is_it(row)), 0)
    text = "\n".join(row.strip() for row in rows[number:])
    return replace(state, line=state.line + number, text=text, message=text)


def alive_actors(case: Case, at: float | None) -> tuple[list[str], list[Event]]:
    """Class names (if known) of the actors that were alive at a moment, and the records of their placement."""
    if at is None:
        return [], []
    ended = {e.worker for e in case.all_exits if e.at is not None and e.at <= at}
    placed = [
        e
        for e in case.of("actor.placed")
        if e.at is not None and e.at <= at and e["worker"] not in ended
    ]
    last = {e["actor"]: e for e in placed}
    names = [
        next(iter(case.names.get(e["worker"], ())), "") or case.actor(actor).class_name
        for actor, e in last.items()
    ]
    return names, list(last.values())


END_ACTORS = (
    "ray list actors --filter state=ALIVE --detail   # their names, namespaces and jobs",
    'ray.kill(ray.get_actor("NAME", namespace="NAMESPACE"))   # a named actor, from any driver',
    "ray job stop SUBMISSION_ID   # an actor without a name ends with its job. ray list jobs shows the ids of submitted jobs",
    "kill PID   # on the node of the driver, for a job that was started without ray job submit: the pid is in driver_info of ray list jobs --detail",
)
"""Only a handle can end an actor, and another job has handles of named actors only."""


def held_by(found: Iterable[DumpedHolder], most: int = 3) -> str:
    """`2 Simulator actors, 1 train task`."""
    counts: dict[tuple[str, str], int] = {}
    for holder in found:
        key = (holder.name.removesuffix(".__init__"), "actor" if holder.is_actor else "task")
        counts[key] = counts.get(key, 0) + 1
    listed = sorted(counts.items(), key=lambda item: -item[1])
    words = [
        evidence.many(count, f"{name if kind == 'actor' else called(name)} {kind}")
        for (name, kind), count in listed[:most]
    ]
    rest = len(listed) - most
    return ", ".join(words) + (f" and {rest} more" if rest > 0 else "")


# ---------------------------------------------------------------- whether it lasted

_GC_PERIOD = 11.0
"""`debug_dump_period_milliseconds` (10 s), and a second for a busy machine."""


def gave_up(case: Case) -> list[Event]:
    """Drivers that stopped waiting: a timeout of `ray.get`, or Ctrl-C."""
    timeouts = [e for e in case.of("driver.exception") if e["type"] == "GetTimeoutError"]
    return [*timeouts, *case.of("driver.interrupted")]


def severity(case: Case, *, over: bool = False) -> Severity:
    """An error, or a warning if the driver's output is in the capture without an exception and the driver ended by itself.

    A program may leave something unscheduled and still succeed. On a live cluster, if nothing waits for it any more
    (`over`), it is a warning unless a program failed because of it: current waits come first.
    """
    if over and not gave_up(case):
        return "warning"
    seen = case.roles & set(DRIVER)
    succeeded = _ended_in_order(case)
    raised = case.of("driver.exception", "driver.interrupted")
    raised += [e for e in case.of("driver.terminated") if not e["who"]]
    raised += [e for e in case.of(TRACEBACK.kind) if e.source.role in DRIVER]
    open_jobs = any(job.ended is None for job in case.ledger.jobs.values())
    return "warning" if seen and succeeded and not raised and not open_jobs else "error"


_INTENDED_EXITS = ("1", "3")
"""WorkerExitType INTENDED_SYSTEM_EXIT and INTENDED_USER_EXIT."""


def _ended_in_order(case: Case) -> bool:
    """Whether every driver disconnected normally; up to 2.40 the line before its end contains the type."""
    ends = [e["disconnect_type"] for e in case.of("worker.disconnected") if e["what"] == "driver"]
    gone = {(e.source.path, e.line): e["disconnect_type"] for e in case.of("raylet.client_gone")}
    before = [(e.source.path, e.line - 1) for e in case.of("driver.disconnected")]
    ends += [gone[place] for place in before if place in gone]
    return bool(ends) and all(how in _INTENDED_EXITS for how in ends)


def abandoned(case: Case) -> list[Event]:
    """Requests that were still pending when their process ended."""
    return case.of("request.caller_gone")


def starved_until(case: Case, end: float | None) -> list[Event]:
    """The raylets' attempts to free resources, if they continued until that moment."""
    last = case.of("raylet.gc_sent")[-1:]
    return [
        e
        for e in last
        if end is not None and e.at is not None and (end - e.at <= _GC_PERIOD or e.count > 1)
    ]


def queued_at_the_end(case: Case) -> list[Event]:
    """The last state of each raylet with requests that wait for resources."""
    return [
        s
        for s in case.of("debug.state")
        if (tables.whole(s, "num_waiting_for_resource") or 0) > 0 and queue(s) > 0
    ]


_OWN_FREE = pattern(r'Local resources: \{"total":\{([^{}]*)\}\}?, "available": \{([^{}]*)\}')


def used_up(state: Event) -> resources.Needs:
    """The total of each resource of which a raylet's node has none left. Empty if the dump does not show it."""
    found = _OWN_FREE.search(state["local_id"])
    if not found:
        return {}
    total, free = (
        resources.ten_thousandths(re.sub(r"[\[\]]", "", each)) for each in found.groups()
    )
    return {name: amount for name, amount in total.items() if amount and not free.get(name)}


_LEASES = pattern(
    r"function_descriptor=\{[^{}]{0,900}?class_name=(?P<class>[^,{}]*), function_name=(?P<function>[^,{}]*),[^{}]*\} [^\n]{0,900}\n"
    r"(?:[^\n=]{0,900}\n){0,2} resource_set=\{(?P<needs>[^{}]*)\}[^\n]{0,900}: (?P<number>\d{1,9})/\d{1,19}$",
    re.MULTILINE,
)
"""`Granted leases by scheduling class` (2.55; before it `Running tasks by …`): of each class, how many were granted."""


class GrantedLeases(NamedTuple):
    """Tasks or actors of one function or class that a raylet had granted their resources."""

    name: str
    number: int
    needs: resources.Needs
    at: Event
    """The dump at their line."""

    def amount(self, resource: str) -> str:
        """How much of a resource they held."""
        return f"{self.number * self.needs[resource]:g}"

    @property
    def label(self) -> str:
        """`2 plan() tasks`, `1 Simulator actor`."""
        holder = [DumpedHolder(self.name, 0, self.needs)] * self.number
        return held_by(holder)


def granted(state: Event, resource: str, total: float) -> list[GrantedLeases]:
    """What held all units of a resource in a raylet's last dump; empty if the dump accounts for another amount."""
    found = []
    for match in _LEASES.finditer(state.message):
        needs = resources.amounts_of_spec(match["needs"].replace(" : ", ": "))
        name = f"{match['class']}.{match['function']}".lstrip(".")
        if needs.get(resource) and match["number"] != "0":
            row = match[0].partition("\n")[0]
            found.append(GrantedLeases(name, int(match["number"]), needs, _at_text(state, row)))
    return found if sum(f.number * f.needs[resource] for f in found) == total else []


def at_totals(state: Event) -> Event:
    """The dump at the line with the node's total and available resources, which a report quotes."""
    return _at_row(state, lambda row: "Local resources: " in row)


def queue(state: Event) -> int:
    """The number of requests in a raylet's queue, whose name depends on Ray's version."""
    names = ("grant_queue_length", "dispatch_queue_length")
    return next(filter(None, (tables.whole(state, name) for name in names)), 0)


def joined_after(case: Case, at: float | None) -> list[Event]:
    """Nodes that joined after a moment."""
    return [
        e for e in case.of("node.registered") if at is not None and e.at is not None and e.at > at
    ]


def one_role(events: Iterable[Event]) -> list[Event]:
    """Autoscaler messages from one source: log, event file and driver each contain all of them."""
    listed = list(events)
    for roles in (("monitor",), ("event",), DRIVER):
        chosen = [e for e in listed if e.source.role in roles]
        if chosen:
            return chosen
    return []


# ---------------------------------------------------------------- remedies

DOC = "https://docs.ray.io/en/latest/ray-core/scheduling/resources.html"


def request(title: str, given: resources.Needs, of: str) -> Remedy:
    """The decorator of a task or actor that requests these resources; `of`: its name, for a comment.

    A name of Ray Data's, such as `Read->MapBatches(f)`, stands for the call that adds this operator to the pipeline.
    """
    step = data_step(of, _arguments(given)) or paste.python(
        "@ray.remote({parts})   # {of}", parts=_arguments(given), of=of
    )
    return Remedy(title, (step,), doc=DOC)


_OPERATOR = pattern(
    r"(?:class )?(?:MapWorker\()?[^,()]*(?:\([^()]*\)->[^,()]*)*?"
    r"\b(?P<kind>MapBatches|Map|FlatMap|Filter)\((?P<function>[^()]+)\)\)?"
)
_METHODS = {"MapBatches": "map_batches", "Map": "map", "FlatMap": "flat_map", "Filter": "filter"}


def data_step(operator: str, arguments: list[str]) -> str:
    """The call of Ray Data that adds an operator or pool, with these arguments; empty for any other name."""
    found = _OPERATOR.fullmatch(operator)
    if not found:
        return ""
    method = _METHODS[found["kind"]]
    if not found["function"].isidentifier():
        return paste.python("ds.{method:name}(…, {parts})", method=method, parts=arguments)
    return paste.python(
        "ds.{method:name}({function:name}, {parts})",
        method=method,
        function=found["function"],
        parts=arguments,
    )


def fewer_actors(name: str, most: int, wanted: int) -> Remedy:
    """Fewer actors of a class, or a smaller pool of Ray Data."""
    step = data_step(name, [paste.python("concurrency={most}", most=most)]) or paste.python(
        "actors = [{actor:name}.remote() for _ in range({room})]", actor=name, room=most
    )
    title = f"Start at most {evidence.many(most, f'{name} actor')} instead of {wanted}"
    return Remedy(title, (step,), doc=DOC)


def add(title: str, more: resources.Needs, local: resources.Needs | None = None) -> Remedy:
    """Another node with these resources, or the program's own Ray with `local` ones.

    `ray start` finds CPUs, GPUs and memory itself. `ray.init` has no option for memory, and a GPU cannot be made up.
    """
    steps = []
    if local and "GPU" not in local and set(local) != {"memory"}:
        given = {name: amount for name, amount in local.items() if name != "memory"}
        steps.append(
            paste.python(
                "ray.init({parts})   # only if your program starts Ray itself, and this machine has these resources (Ray does not check)",
                parts=_arguments(given),
            )
        )
    custom = {n: v for n, v in more.items() if n not in resources.OPTIONS}
    if custom:
        table = json.dumps({n: int(v) if v == int(v) else v for n, v in custom.items()})
        steps.append(
            paste.shell(
                "ray start --address=HEAD:6379 --resources={table}   # on another machine",
                table=table,
            )
        )
    else:
        steps.append(
            paste.shell(
                "ray start --address=HEAD:6379   # on another machine with {needs}",
                needs=resources.describe(more),
            )
        )
    return Remedy(title, tuple(steps), doc=DOC)


def _arguments(given: resources.Needs) -> list[str]:
    """The arguments of `@ray.remote` and `ray.init` for these resources; memory in whole MiB, rounded down."""
    parts: list[str] = [
        paste.python("{option:name}={amount:g}", option=option, amount=given[name])
        for name, option in resources.OPTIONS.items()
        if name in given and name != "memory"
    ]
    if "memory" in given:
        parts.append(paste.python("memory={mib} * 1024**2", mib=int(given["memory"] / 2**20)))
    custom = [
        paste.python("{name}: {amount:g}", name=name, amount=amount)
        for name, amount in given.items()
        if name not in resources.OPTIONS and amount
    ]
    if custom:
        parts.append(paste.python("resources={{{custom}}}", custom=custom))
    return parts

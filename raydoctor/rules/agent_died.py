"""An agent of a node died, so the node's raylet ended itself.

## What you see
The driver and `raylet.err` print `The raylet exited immediately because one Ray agent failed, agent_name =
dashboard_agent. The raylet fate shares with the agent.` The GCS marks the node as dead (`dashboard_agent failed and
raylet fate-shares with it`, Ray 2.24 and later), and drivers get `LocalRayletDiedError` or `NodeDiedError`.

## Why
Each raylet starts two Python processes: the dashboard agent (metrics, logs, jobs) and, since Ray 2.7, the runtime
environment agent. If one of them ends, the raylet exits, and the node leaves the cluster. Usual causes: an incompatible
`grpcio` version crashes the agent, a port is in use, or the kernel killed the agent.

## Confirm
- Look at the end of `dashboard_agent.log` or `runtime_env_agent.log`. `Agent is working abnormally` with a traceback
  means that the agent failed by itself. `Exiting with SIGTERM` means that another process ended it. If neither is
  there, the agent was killed or crashed.
- `sudo dmesg -T | grep -i 'killed process'` on that node names the agent's pid if the kernel's OOM killer ended it.
- The exit code that the raylet prints is not evidence: it was 0 for an agent that received SIGKILL (Ray 2.60).

## Fix
Fix the error in the traceback. Without a traceback, check the kernel log and the version of `grpcio`. Then start the
node again.

## Not this when
- the raylet died first: its agents then log `Raylet is terminated` (`raylet-died`).
- Ray was stopped: the raylet then ends its agents itself (`ray-stopped`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, Signal, console, rule
from raydoctor.case.signals import (
    DRIVER,
    NODE_DEAD,
    RAY_EXCEPTION,
    RAYLET,
    RAYLET_STARTED,
    TRACEBACKS,
)
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import cut
from raydoctor.model.values import Event, Finding, Gap, Link, Remedy, Subject
from raydoctor.rules.shared import cluster, kernel
from raydoctor.rules.shared.cluster import (
    AGENT_FAILED,
    FAULT_TOLERANCE_DOC,
    DeadRaylet,
    node_of_death,
)
from raydoctor.rules.shared.traceback import NO_FAILURES, parse

EXITED = Signal(
    "agent.exited",
    "Agent process with name ",
    r"^Agent process with name (?P<agent>\w+)(?:/\d+)? exited, exit code (?P<code>-?\d+)",
    RAYLET,
    "Agent process with name dashboard_agent exited, exit code 0.",
)
ABNORMAL = Signal(
    "agent.abnormal",
    "Agent is working abnormally. It will exit immediately.",
    r"^Agent is working abnormally\. It will exit immediately\.(?P<what>.*)",
    (*DRIVER, "dashboard-agent"),
    "Agent is working abnormally. It will exit immediately.\nTraceback (most recent call last):\nImportError: cygrpc",
    extent="record",
    symptom=True,
)
SIGTERM = Signal(
    "agent.sigterm",
    "Exiting with SIGTERM immediately...",
    r"^Exiting with SIGTERM immediately\.\.\.",
    ("dashboard-agent",),
    "Exiting with SIGTERM immediately...",
)
ERROR = Signal(
    "agent.error",
    "The agent on node ",
    r"^The agent on node (?P<name>\S{1,255}) failed with the following error:\s*$",
    (*DRIVER, "raylet-echo"),
    "The agent on node ray-head failed with the following error:",
    symptom=True,
)
"""Up to 1.13, agents push the exception that ends them to drivers (`dashboard/agent.py`)."""

_OWN_PROGRAM = pattern(r"/ray/(?:(?:new_)?dashboard/agent|_private/runtime_env/agent/main)\.py$")
_PORT_TAKEN = "ddress already in use"


class _Agent(NamedTuple):
    """The agent whose exit ended its raylet, and the records of the exit."""

    name: str
    failed: Event
    exited: tuple[Event, ...]
    abnormal: tuple[Event, ...]
    sigterm: tuple[Event, ...]
    is_log_read: bool
    """Whether its own log is in the capture."""

    @property
    def reason(self) -> str:
        """Why it ended, from its own log."""
        if self.abnormal:
            raised = parse(self.abnormal[-1]["what"])
            return f"it raised {raised}" if raised else "it failed by itself"
        if self.sigterm:
            return "it received SIGTERM"
        return "its logs name no reason" if self.is_log_read else ""

    @property
    def because(self) -> str:
        """The reason in brackets; the gaps list a log that is missing."""
        return f" ({self.reason})" if self.reason else ""


@rule(
    tier="root",
    severity="error",
    rank=9,
    explains=("job", "raylet"),
    caused_by=("gcs", "gcs-lost"),
    looks_for=(AGENT_FAILED, EXITED, ABNORMAL, SIGTERM, ERROR, RAYLET_STARTED, *NODE_DEAD, RAY_EXCEPTION),
)  # fmt: skip
def agent_died(case: Case) -> Iterator[Finding]:
    """One finding per raylet that ended with its agent, or one if only the driver's output is available."""
    found = False
    for raylet in cluster.dead_raylets(case):
        records = [e for e in raylet.said if e.kind == AGENT_FAILED.kind]
        if records:
            found = True
            yield _finding(case, raylet, _agent(case, records[0]))
    echoes = [e for e in case.of(AGENT_FAILED.kind) if not case.torn_down(e)]
    if echoes and not found:
        yield _from_echoes(case, echoes)
    elif not found and (errors := [*case.of(ERROR.kind), *_own_tracebacks(case), *_ends(case)]):
        yield _from_errors(case, errors)


_FATE = pattern(r"\b(?P<agent>\w{1,60}_agent) failed and raylet fate-shares with it")


def _ends(case: Case) -> Iterator[Event]:
    """An agent's own last record in an excerpt, or the GCS's reason for a node's death, without the raylet's log.

    `port-conflict` reports a port that is in use.
    """
    for event in case.of(ABNORMAL.kind):
        if event.source.is_excerpt and _PORT_TAKEN not in event.text:
            yield event
    yield from (e for e in case.of("node.dead") if _FATE.search(e["why"]) and not case.torn_down(e))


def _own_tracebacks(case: Case) -> Iterator[Event]:
    """Tracebacks with which an agent ends, as a driver echoes them: agents share the raylet's output."""
    for event in case.of(*TRACEBACKS):
        raised = parse(event.message) if event["who"] == "raylet" else None
        if (
            raised
            and raised.frames
            and raised.frames[0].function == "<module>"
            and _OWN_PROGRAM.search(raised.frames[0].file)
            and raised.type not in NO_FAILURES
            and not case.torn_down(event)
        ):
            yield event


def _from_errors(case: Case, errors: list[Event]) -> Finding:
    """The exception of an agent in a driver's output, without the logs of its node."""
    dead = next((e for e in errors if e.kind == "node.dead"), None)
    first = next((e for e in errors if e is not dead), errors[0])
    below = [
        e
        for e in case.of(*TRACEBACKS)
        if e is first or (e.source is first.source and e.line == first.line + 1)
    ]
    raised = parse(below[0].message) if below else None
    what = f": it raised {cut(str(raised), 160)}" if raised else ""
    is_of_environments = bool(raised and raised.frames and "runtime_env" in raised.frames[0].file)
    fate = _FATE.search(dead["why"]) if dead else None
    name = (
        fate["agent"] if fate else "runtime_env_agent" if is_of_environments else "dashboard_agent"
    )
    agent = _Agent(name, first, (), (), (), is_log_read=False)
    node = first["name"] or first["ip"]
    if dead:
        what += ", so its raylet exited and the node went down"
        node = case.node_name(node_of_death(dead)).removeprefix("node ")
    return Finding(
        f"The {name.replace('_', ' ')}{f' of node {node}' if node else ''} ended{what}",
        (
            *(
                Link(e, "the agent reports the exception that ends it")
                for e in (first,)
                if e is not dead
            ),
            *(
                Link(e, f"the GCS records that the raylet ended with its {name}")
                for e in (dead,)
                if e
            ),
        ),
        explains=(
            Entity("raylet", "local"),
            *(Entity("raylet", node_of_death(e)) for e in errors if e.kind == "node.dead"),
        ),
        caused_by=_without_gcs(case),
        severity=None if dead else "warning",
        count=evidence.total(errors),
        remedies=_remedies(agent),
        covers=(*errors, *below),
        gaps=_gaps(case, agent, node),
    )


def _agent(case: Case, failed: Event) -> _Agent:
    # 2.9 adds the agent's own id: `dashboard_agent/424238335`.
    name = failed["agent"] or ("runtime_env_agent" if failed["late"] else "dashboard_agent")

    def near(kind: str) -> tuple[Event, ...]:
        return tuple(
            e
            for e in case.near(failed, kind, before=10, after=1)
            if case.node_of(e.source) == case.node_of(failed.source)
        )

    exited = tuple(e for e in near(EXITED.kind) if e["agent"] == name)
    is_log_read = _has_log(case, name, case.node_of(failed.source))
    if name != "dashboard_agent":
        return _Agent(name, failed, exited, (), (), is_log_read)
    return _Agent(name, failed, exited, near(ABNORMAL.kind), near(SIGTERM.kind), is_log_read)


def _has_log(case: Case, name: str, node: str) -> bool:
    role = "runtime-env-agent" if name == "runtime_env_agent" else "dashboard-agent"
    return any(s.role == role and case.node_of(s) == node for s in case.sources)


def _finding(case: Case, raylet: DeadRaylet, agent: _Agent) -> Finding:
    errors = cluster.lost_driver_errors(case)
    local = cluster.is_drivers(case, raylet.node)
    return Finding(
        f"The {agent.name} of {case.node_name(raylet.node, raylet.ip)} died{agent.because}, so the raylet (pid {raylet.pid}) "
        "exited and the node went down",
        (*_links(agent), *cluster.witnesses(raylet)[:2], *_seen(errors)),
        explains=(
            Entity("raylet", raylet.node),
            *cluster.lost_jobs(case, raylet),
            *cluster.crashed_owners(errors),
        ),
        caused_by=_without_gcs(case),
        subjects=(Subject("raylet", raylet.node, "raylet", raylet.pid, raylet.node),),
        severity="critical" if local else "error",
        remedies=_remedies(agent),
        covers=(*raylet.said, *raylet.seen, *agent.abnormal, *errors, *_echoes(case)),
        gaps=_gaps(case, agent, raylet.ip),
    )


def _without_gcs(case: Case) -> tuple[Entity, ...]:
    """Agents end if they lose the GCS: its end, or a failed connection to it (from any node)."""
    nodes = dict.fromkeys((*case.ledger.node_ips, ""))
    return (Entity("gcs", "gcs"), *(Entity("gcs-lost", node) for node in nodes))


def _from_echoes(case: Case, echoes: list[Event]) -> Finding:
    """Without the raylet's own log."""
    agent = _agent(case, echoes[0])
    errors = cluster.lost_driver_errors(case)
    place = f" of node {echoes[0]['ip']}" if echoes[0]["ip"] else ""
    return Finding(
        f"The {agent.name}{place} died{agent.because}, so its raylet exited and the node went down",
        (*_links(agent), *_seen(errors)),
        explains=(
            Entity("raylet", "local"),
            *cluster.dead_node(case, echoes[0]["ip"]),
            *cluster.crashed_owners(errors),
        ),
        caused_by=_without_gcs(case),
        subjects=(Subject("raylet", None, "raylet", echoes[0].pid),),
        severity="critical" if errors else "error",
        remedies=_remedies(agent),
        covers=(*echoes, *agent.abnormal, *errors),
        gaps=_gaps(case, agent, echoes[0]["ip"]),
    )


def _links(agent: _Agent) -> Iterator[Link]:
    for event in agent.abnormal[-1:]:
        yield Link(event, f"the {agent.name} exits: {agent.reason}")
    for event in agent.sigterm[-1:]:
        yield Link(event, f"the {agent.name} received SIGTERM")
    for event in agent.exited[:1]:
        zero = " (Ray logs exit code 0 even if it was killed)" if event["code"] == "0" else ""
        yield Link(event, f"the raylet reports that the {agent.name} exited{zero}")
    yield Link(agent.failed, "the raylet exits because its agent died")


def _seen(errors: tuple[Event, ...]) -> Iterator[Link]:
    for event in errors[:1]:
        yield Link(event, f"the driver got {event['type']}")


def _echoes(case: Case) -> tuple[Event, ...]:
    return tuple(e for e in case.of(AGENT_FAILED.kind) if e.source.role not in RAYLET)


def _gaps(case: Case, agent: _Agent, ip: str) -> tuple[Gap, ...]:
    if agent.abnormal or agent.sigterm:
        return ()
    on_node = f" of node {ip}" if ip else ""
    node = case.node_of(agent.failed.source)
    kernel_log = kernel.gaps(
        case,
        f"node {ip}" if ip else "the agent's node",
        f"only this log shows whether the kernel killed the {agent.name} (out of memory, segmentation fault)",
        kernel.raylet_logs(case, [node] if node else []),
    )
    if not kernel_log:
        return ()
    its_log = (
        f"{agent.name}.log{on_node}",
        f"this log usually shows why the {agent.name} exited",
        f"Copy /tmp/ray/session_latest/logs/{agent.name}.log from that machine into the folder with the logs, and diagnose that folder.",
    )
    return (
        *(() if agent.is_log_read else (Gap(*its_log),)),
        *kernel_log,
    )


def _remedies(agent: _Agent) -> tuple[Remedy, ...]:
    if agent.abnormal and _PORT_TAKEN in agent.abnormal[-1]["what"]:
        return (
            Remedy(
                "Give the agent free ports on that node",
                (
                    "ss -ltnp   # which process holds the port",
                    "ray start --dashboard-agent-listen-port=PORT --metrics-export-port=PORT   # plus your other options",
                ),
                risk="disruptive",
                doc="https://docs.ray.io/en/latest/ray-core/configure.html#ports-configurations",
            ),
        )
    find = Remedy(
        f"Find out what ended the {agent.name}",
        (
            paste.shell(
                "tail -n 50 /tmp/ray/session_latest/logs/{agent}.log /tmp/ray/session_latest/logs/{agent}.err   # on that node. After a restart of Ray, read the old session instead of session_latest",
                agent=agent.name,
            ),
            "sudo dmesg -T | grep -iE 'killed process|segfault'   # on that node",
            "pip freeze | grep -iE 'grpcio|protobuf|^ray'   # compare with a working environment",
        ),
        doc=FAULT_TOLERANCE_DOC,
        finds_cause=True,
    )
    again = Remedy(
        "If the log shows an import error or a version conflict, reinstall Ray with the packages that it requires, and start the node again",
        (
            "pip install -U 'ray[default]==VERSION'   # the Ray version of the cluster",
            "ray start   # with the options that this node was started with",
        ),
        risk="disruptive",
    )
    return (find, again)


# ------------------------------------------------------------------ examples

_N = "946bde575ec494f0d7d35f9d5596571774b3d8661d4853b0781b56d5"
_STARTED = (
    f"[2026-11-21 10:45:58,136 I 313 313] (raylet) node_manager.cc:355: Raylet of id, {_N} started. Raylet consists of "
    "node_manager and object_manager. node_manager address: 10.0.0.2:0 object_manager address: 10.0.0.2:46637 hostname: n\n"
)
_EXITED = f"[2026-11-21 10:46:12,577 I 313 337] (raylet) agent_manager.cc:83: {EXITED.sample}\n"
_FAILED = (
    f"[2026-11-21 10:46:12,577 E 313 337] (raylet) agent_manager.cc:87: {AGENT_FAILED.sample}\n"
    "The raylet fate shares with the agent. This can happen because\n- The version of `grpcio` doesn't follow Ray's "
    "requirement. Agent can segfault with the incorrect `grpcio` version. Check the grpcio version `pip freeze | grep grpcio`.\n"
    "- The agent is killed by the OS (e.g., out of memory).\n"
)
_NODE_DEAD = (
    "[2026-11-21 10:46:12,580 I 17 33] (gcs_server) gcs_node_manager.cc:734: , death reason = UNEXPECTED_TERMINATION, death message "
    f"= dashboard_agent failed and raylet fate-shares with it. node_id={_N} node_name=10.0.0.2\n"
)
_ECHOED = (
    "(raylet) Traceback (most recent call last):\n"
    '(raylet)   File "/venv/lib/python3.11/site-packages/ray/dashboard/agent.py", line 425, in <module>\n'
    "(raylet)     loop.run_until_complete(agent.run())\n"
)
_PORT = (
    "2026-11-21 10:46:12,100\tERROR agent.py:430 -- Agent is working abnormally. It will exit immediately.\n"
    "Traceback (most recent call last):\n"
    '  File "/home/user/venv/lib/python3.11/site-packages/ray/dashboard/agent.py", line 425, in <module>\n'
    "    loop.run_until_complete(agent.run())\n"
    "OSError: [Errno 98] error while attempting to bind on address ('10.0.0.2', 52365): address already in use\n"
)
_LOST = "ray.exceptions.LocalRayletDiedError: The task's local raylet died. Check raylet.out for more information.\n"

EXAMPLES: tuple[Example, ...] = (
    Example(
        "the dashboard agent was killed, so its log stops, and the raylet reports that the agent exited",
        {
            "logs/raylet.out": _STARTED + _EXITED + _FAILED,
            "logs/raylet.err": _FAILED,
            "logs/gcs_server.out": _NODE_DEAD,
            "driver.log": _LOST,
        },
        consequences=("node-died",),
        says=("dashboard_agent", "10.0.0.2", "grpcio"),
        severity="critical",
    ),
    Example(
        "the port of the agent is in use",
        {
            "logs/raylet.out": _STARTED + _FAILED,
            "logs/gcs_server.out": "",
            "logs/dashboard_agent.log": _PORT,
        },
        says=("address already in use", "52365", "--dashboard-agent-listen-port"),
        severity="critical",
    ),
    console(
        "only the driver's output is available",
        "".join(f"(raylet) {line}\n" for line in _FAILED.splitlines()) + _LOST,
        severity="critical",
    ),
    console(
        "an agent of Ray 1.x reports the exception that ends it",
        "2021-12-21 10:46:06,431\tWARNING worker.py:1227 -- The agent on node ray-head failed with the following error:\n"
        'Traceback (most recent call last):\n  File "/venv/site-packages/ray/new_dashboard/agent.py", line 351, in <module>\n'
        "    loop.run_until_complete(agent.run())\nImportError: cannot import name 'cygrpc'\n",
        severity="warning",
        says=(
            "The dashboard agent of node ray-head ended: it raised ImportError: cannot import name 'cygrpc'",
        ),
    ),
    Example(
        "only the GCS's record of the death names the agent",
        {"logs/gcs_server.out": _NODE_DEAD},
        consequences=("node-died",),
        says=("The dashboard agent of node ", "so its raylet exited"),
    ),
    console(
        "the GCS's record, and the agent's log cut within the traceback",
        f"In gcs_server.out:\n{_NODE_DEAD}\nIn dashboard_agent.log:\n{_PORT.rpartition('OSError')[0]}",
        consequences=("node-died",),
        says=("The dashboard agent of node ", "went down"),
    ),
    console(
        "the end of an agent's log is pasted alone",
        f"{_PORT.rpartition('OSError')[0]}ImportError: cannot import name 'cygrpc'\n",
        severity="warning",
        says=("it raised ImportError: cannot import name 'cygrpc'",),
    ),
    console(
        "a program writes the words",
        "note: found 'dashboard_agent failed and raylet fate-shares with it' in the FAQ\n"
        "check: Agent is working abnormally. It will exit immediately.\nstep 2\n",
    ),
    console(
        "a task of the program quotes an agent's report",
        "(audit pid=12) found 'The agent on node n7 failed with the following error:'\nstep 2\n",
    ),
    Example(
        "at a normal stop the raylet ends its agents",
        {
            "logs/raylet.out": _STARTED
            + "[2026-11-21 10:46:12,500 I 313 313] (raylet) main.cc:1174: received SIGTERM. Existing local drain request = None\n"
            + _EXITED,
            "logs/gcs_server.out": "",
            "logs/dashboard_agent.log": f"2026-11-21 10:46:12,570\tWARNING agent.py:421 -- {SIGTERM.sample}\n",
        },
    ),
    Example(
        "the raylet was killed, and its agents logged that",
        {
            "logs/raylet.out": _STARTED,
            "logs/gcs_server.out": "",
            "logs/dashboard_agent.log": "2026-11-21 10:46:13,100\tERROR process_watcher.py:115 -- Raylet is terminated. "
            "Termination is unexpected. Possible reasons include: (1) SIGKILL by the user or system OOM killer\n",
            "driver.log": _LOST,
        },
        roots=("raylet-died",),
    ),
    console(
        "the driver echoes the traceback with which an agent ends",
        f"{_ECHOED}(raylet) ModuleNotFoundError: No module named 'aiohttp'\nloss 0.1\n",
        says=(
            "The dashboard agent ended: it raised ModuleNotFoundError: No module named 'aiohttp'",
        ),
        severity="warning",
    ),
    console(
        "an agent is stopped, a task imports its module, and another daemon prints a traceback",
        f"{_ECHOED}(raylet) KeyboardInterrupt\n{_ECHOED.replace('(raylet)', '(check pid=12)')}(check pid=12) ValueError: x\n"
        f"{_ECHOED.replace('dashboard/agent.py', 'dashboard/modules/log/log_agent.py')}(raylet) ValueError: x\nloss 0.1\n",
    ),
    console(
        "a paste that begins within the raylet's message",
        "agent failed, agent_name = dashboard_agent.\n(raylet) The raylet fate shares with the agent. This can happen because\n",
        roots=("agent-died",),
    ),
)

"""One of a node's daemons died, and `ray start --block` then ended the whole node.

## What you see
A node ends within a second: raylet and GCS end without a final record in their logs. If it is the head, the cluster
ends with it. `Some Ray subprocesses exited unexpectedly:` names the daemon that died first. The line is in
`ray_process_exit.log` (Ray 2.54 and later) and, with all versions, in the output of `ray start --block` (`kubectl
logs`: KubeRay starts every node this way).

## Why
`ray start --block` checks its processes once a second. If one of them ended with an exit code that is neither 0 nor
that of SIGTERM, `ray start` kills all others with SIGKILL (`scripts/scripts.py`, Ray 2.9 to 2.60). It then exits with
code 1, so that Kubernetes or systemd restarts the node. The cause is the daemon that ended first, for example a
dashboard that the kernel's OOM killer killed.

## Confirm
- `cat /tmp/ray/session_latest/logs/ray_process_exit.log`, or `kubectl logs --previous POD`, names the daemon that ended
  first.
- The last lines of that daemon's own log show its error. `sudo dmesg -T | grep -i 'killed process'` shows its pid if
  the kernel's OOM killer ended it.

## Fix
Keep that daemon alive: fix the error in its own log, and leave memory for it (`ray start --head --num-cpus=0` keeps
tasks off the head). The restart of the node itself is intended.

## Not this when
- the daemon that ended first was the raylet or the GCS, and its log shows why (`raylet-died`, `gcs-died`): the node
  then ends in any case.
- the node was stopped by SIGTERM (`ray-stopped`).
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, Signal, console, rule
from raydoctor.case.signals import LOCAL_RAYLET_FAILED, NODE_REGISTERED, RAYLET_STARTED
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Link, Remedy, Severity, Subject
from raydoctor.rules.shared.cluster import CHECK_FAILED, DAEMON_CRASH, MARKED_DEAD, UNHANDLED

_DOC = "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/config.html"
_CENTRAL = ("raylet", "gcs_server")
_DAEMONS = r"(?:gcs_server|raylet|dashboard|log_monitor|monitor|ray_client_server|reporter|reaper|redis_server|\w*agent\w*)"

EXITED = (
    Signal(
        "block.exited", "Some Ray subprocesses exited unexpectedly:",
        r"Some Ray subprocesses exited unexpectedly:\n(?P<daemons>.*)", ("start-block",),
        "Some Ray subprocesses exited unexpectedly:\n  dashboard [exit code=-9 (signal 9)]", extent="record",
    ),
    Signal(
        "block.exited", " [exit code=", rf"^(?:\S+ \S+\s+ERR scripts\.py:\d+ -- )?\s*(?P<daemons>{_DAEMONS} \[exit code=-?\d+\])",
        ("driver",), "2026-11-21 14:49:15,419\tERR scripts.py:87 -- dashboard [exit code=-9]",
    ),
    Signal(
        "block.exited", " died with exit code ", rf"^\s*(?P<daemons>{_DAEMONS} died with exit code -?\d+)", ("driver",),
        "    raylet died with exit code -6",
    ),
)  # fmt: skip
"""The file since Ray 2.54, the output of `ray start --block` since 2.9, and before 1.0."""
_ANNOUNCED = tuple(
    Signal(
        "block.announced", text, rf"^(?:\S+ \S+\s+ERR\w* scripts\.py:\d+ -- )?\s*{text}", ("driver",), text, precedes=True
    )
    for text in ("Some Ray subprocesses exited unexpectedly:", "Ray processes died unexpectedly:")
)  # fmt: skip
"""The line above the names, without which a program's own table of exit codes is read."""

_DAEMON = pattern(
    r"(?P<name>\w{1,100}) (?:\[exit code=|died with exit code )(?P<code>-?\d{1,10}|None)"
)


class _Daemon(NamedTuple):
    name: str
    code: int

    @property
    def end(self) -> str:
        """`was killed by SIGKILL`."""
        if self.code >= 0:
            return f"exited with code {self.code}"
        try:
            return f"was killed by {signal.Signals(-self.code).name}"
        except ValueError:
            return f"was killed by signal {-self.code}"


@rule(
    tier="root",
    severity="critical",
    rank=8,
    explains=("block", "daemon", "dashboard", "gcs", "job", "node", "raylet"),
    caused_by=("daemon",),
    daemons_record=True,
    looks_for=(*EXITED, *_ANNOUNCED, CHECK_FAILED, DAEMON_CRASH, UNHANDLED, MARKED_DEAD, RAYLET_STARTED, *NODE_REGISTERED, LOCAL_RAYLET_FAILED),
)  # fmt: skip
def block_ended_node(case: Case) -> Iterator[Finding]:
    """One finding per node that ended this way."""
    by_node: dict[str, Event] = {}
    for event in case.of("block.exited"):
        daemons = _daemons(event)
        is_central = any(d.name in _CENTRAL for d in daemons)
        if daemons and (not is_central or _is_only_witness(case, event)):
            by_node.setdefault(event.source.node, event)
    recorded = [_daemons(event) for node, event in by_node.items() if node]
    for node, event in by_node.items():
        # The output of `ray start --block` may be a file whose node is unknown, beside that node's own log.
        if node or _daemons(event) not in recorded:
            yield _finding(case, event, _daemons(event))


def _is_only_witness(case: Case, event: Event) -> bool:
    """Whether nothing but the output of `ray start` shows the end of the raylet or the GCS."""
    announced = any(
        e.source is event.source and 0 < event.line - e.line <= _LIST
        for e in case.of(_ANNOUNCED[0].kind)
    )
    return announced and evidence.is_console(case) and not case.of(*_LAST_WORDS)


_LAST_WORDS = (CHECK_FAILED.kind, DAEMON_CRASH.kind, UNHANDLED.kind, MARKED_DEAD.kind)
_LIST = 8
"""Lines below the announcement: at most one for each kind of daemon."""


def _daemons(event: Event) -> list[_Daemon]:
    """Daemons that ended with a code other than 0 or that of SIGTERM, as `ray start` checks them."""
    found = [
        _Daemon(match["name"], int(match["code"]))
        for match in _DAEMON.finditer(event["daemons"])
        if match["code"] != "None"
    ]
    return [
        d for d in found if d.code not in (0, signal.SIGTERM, -signal.SIGTERM, 128 + signal.SIGTERM)
    ]


def _finding(case: Case, event: Event, daemons: list[_Daemon]) -> Finding:
    nodes = _nodes(case, event)
    is_head = _is_head(case, event) or any(d.name == "gcs_server" for d in daemons)
    ends = " and ".join(f"the {d.name} {d.end}" for d in daemons)
    ips = evidence.join_names(case.ledger.node_ips.get(n, "") for n in nodes)
    where = "the head" if is_head else f"node {ips}" if ips else "a node"
    scope = " and ended the cluster" if is_head else ""
    severity: Severity = "critical" if is_head or not nodes else "error"
    return Finding(
        f"On {where}, {ends}, so ray start --block killed all other Ray processes there{scope}",
        (Link(event, f"the {daemons[0].name} {daemons[0].end}, and ray start --block killed the rest"), *_seen_by_others(case, event)),
        explains=(
            Entity("block", event.source.node or event.source.path),
            *(Entity(kind, node) for node in nodes for kind in ("raylet", "node")),
            *((Entity("raylet", "local"),) if not nodes else ()),
            *((Entity("gcs", "gcs"), Entity("daemon", "gcs_server")) if is_head else ()),
            *(Entity("job", j.id) for j in case.ledger.jobs.values() if is_head and j.ended is None),
            *((Entity("dashboard", "head"),) if any(d.name == "dashboard" for d in daemons) else ()),
        ),
        caused_by=tuple(Entity("daemon", d.name) for d in daemons),
        subjects=tuple(Subject("daemon", None, d.name) for d in daemons),
        severity=severity,
        remedies=_remedies(daemons),
        covers=tuple(case.of("block.exited")),
    )  # fmt: skip


def _nodes(case: Case, event: Event) -> list[str]:
    """The nodes whose raylet log is in the same folder as this file."""
    return [e["node"] for e in case.of("raylet.started") if e.source.node == event.source.node]


def _is_head(case: Case, event: Event) -> bool:
    return any(s.role == "gcs-out" and s.node == event.source.node for s in case.sources)


def _seen_by_others(case: Case, event: Event) -> Iterator[Link]:
    """A process that reported the loss of its raylet at that moment."""
    for seen in case.near(event, "raylet.seen_dead", "gcs.lost", before=3, after=30)[:1]:
        yield Link(
            seen,
            "another process reports the loss of the GCS"
            if seen.kind == "gcs.lost"
            else "another process reports the loss of its raylet",
        )


def _remedies(daemons: list[_Daemon]) -> tuple[Remedy, ...]:
    name = daemons[0].name
    log = {
        "gcs_server": "gcs_server.out",
        "raylet": "raylet.out",
        "ray_client_server": "ray_client_server.err",
    }.get(name, f"{name}.log")
    return (
        Remedy(
            f"Find out what ended the {name}",
            (
                paste.shell(
                    "tail -n 50 /tmp/ray/session_latest/logs/{log}   # on that node. After a restart of Ray, read the old session instead of session_latest",
                    log=log,
                ),
                paste.shell(
                    "sudo dmesg -T | grep -iE {words}   # on that node. SIGKILL usually comes from the OOM killer of the kernel",
                    words=f"killed process|{name}",
                ),
            ),
            finds_cause=True,
        ),
        Remedy(
            "If it was the OOM killer, keep tasks off the head to leave memory for its daemons",
            (
                'ray start --head --num-cpus=0 --block   # if other nodes run the tasks, plus your other options. KubeRay: rayStartParams: {num-cpus: "0"}',
            ),
            risk="disruptive",
            doc=_DOC,
        ),
    )


# ------------------------------------------------------------------ examples


_HEADER = "2026-11-21 14:49:15,419\tERROR scripts.py:100 -- "
_REPORT = f"{_HEADER}{EXITED[0].sample}\n"
_RAYLET = f"[2026-11-21 14:48:54,100 I 305 305] (raylet) main.cc:1: {RAYLET_STARTED.sample}\n"
_GCS = f"[2026-11-21 14:48:54,200 I 13 25] (gcs_server) gcs_node_manager.cc:1: {NODE_REGISTERED[0].sample}\n"
_SEEN = f"[2026-11-21 14:49:15,300 C 379 379] core_worker.cc:1: {LOCAL_RAYLET_FAILED.sample}\n"
_CONSOLE = (
    "2026-11-21 14:49:15,419\tERR scripts.py:1307 -- Some Ray subprocesses exited unexpectedly:\n"
    f"{EXITED[1].sample}\n2026-11-21 14:49:15,420\tERR scripts.py:1315 -- Remaining processes will be killed.\n"
)

EXAMPLES: tuple[Example, ...] = (
    console(
        "the raylet ends soon after the start, and only the output of `ray start --block` is available",
        f"{_CONSOLE.replace('dashboard [exit code=-9]', 'raylet [exit code=1]')}",
        says=("the raylet exited with code 1", "raylet.out"),
    ),
    console(
        "the same before Ray 1.0",
        "2026-11-21 14:49:15,419 ERROR scripts.py:447 -- Ray processes died unexpectedly:\n"
        f"2026-11-21 14:49:15,420 ERROR scripts.py:450 -- {EXITED[2].sample}\n"
        "2026-11-21 14:49:15,421 ERROR scripts.py:452 -- Killing remaining processes and exiting...\n",
        says=("the raylet was killed by SIGABRT",),
    ),
    console(
        "a program's own table of exit codes, without the announcement",
        "raylet [exit code=1]\nraylet died with exit code -6\nloss 0.1\n",
    ),
    Example(
        "the dashboard of the head was killed",
        {
            "logs/ray_process_exit.log": _REPORT,
            "logs/raylet.out": _RAYLET,
            "logs/gcs_server.out": _GCS,
        },
        says=("dashboard", "was killed by SIGKILL", "On the head", "ended the cluster"),
        is_typical=True,
    ),
    console(
        "only the output of `ray start --block` is available",
        _CONSOLE,
        says=("dashboard", "was killed by SIGKILL"),
    ),
    Example(
        "the raylet itself ended first",
        {
            "logs/ray_process_exit.log": _REPORT.replace("dashboard", "raylet"),
            "logs/raylet.out": _RAYLET,
            "logs/gcs_server.out": _GCS,
            f"logs/python-core-worker-{'cd09fc46' * 7}_379.log": _SEEN,
        },
        roots=("raylet-died",),
    ),
    console(
        "a user's program prints exit codes of its own",
        "dashboard [exit code=0]\nstep train [exit code=-9]\nexporter [exit code=1]\n",
    ),
)

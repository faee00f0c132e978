"""A raylet has exited but is still in the process table, so its workers treat it as alive and keep running.

## What you see
- `ps` shows `[raylet] <defunct>`.
- Tasks and actors of the node hang, or keep running without a cluster. The node's memory, GPUs and ports stay in use,
  and a new `ray start` there finds them occupied.

## Why
A process that has exited stays in the table as a zombie until its parent reads its exit status. Here the parent never
does. In a container PID 1 is often the program itself instead of an init, and orphans become its children. Elsewhere
the process that started the raylet is stopped, or does not wait for its children. Workers detect the end of their
raylet by looking for its pid, which still exists (measured with Ray 2.60: with an init they exit after 0.4 s; without
one they were still running after 60 s).

## Confirm
- `ps -eo pid,ppid,stat,comm | grep 'Z.*raylet'` lists the raylet with its parent. `cat /proc/1/comm` shows whether PID
  1 is an init.
- `ps -eo pid,ppid,stat,args | grep '[r]ay::'` shows workers whose parent is 1.

## Fix
Run the container with an init that reaps zombies (`docker run --init`, `tini`; Kubernetes: `tini` in the image, or
`shareProcessNamespace: true`). For now, end those workers with `raydoctor zombies --kill`, then restart the node.

## Not this when
- the raylet exited a second ago, and its parent has not reaped it yet: its workers have exited or are about to.
- another process is defunct, for instance a worker's child: that is harmless.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, rule
from raydoctor.case.signals import RAYLET_STARTED
from raydoctor.cluster import tables as rows
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.text import size
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared.live import examples as sample
from raydoctor.rules.shared.live import processes as live
from raydoctor.rules.shared.live.processes import Defunct

_DOC = "https://docs.docker.com/reference/cli/docker/container/run/#init"
_STOPPED = ("T", "t")


@rule(
    tier="root",
    severity="error",
    rank=10,
    explains=("process",),
    caused_by=("raylet",),
    looks_for=(RAYLET_STARTED,),
)  # fmt: skip
def raylet_defunct(case: Case) -> Iterator[Finding]:
    """One finding per defunct raylet whose workers keep running; a consequence of the raylet's end if that is known."""
    for defunct in live.defunct_raylets(case):
        started = _started(case, defunct)
        node = defunct.event["node_id"] or (started["node"] if started else "")
        workers = defunct.workers
        those = (*workers, *defunct.others)
        memory = size(sum(p.memory for p in those))
        names = evidence.join_names(worker.named for worker in workers)
        keep = "1 worker keeps" if len(workers) == 1 else f"{len(workers)} workers keep"
        hold = "holds" if len(workers) == 1 else "hold"
        yield Finding(
            f"The raylet (pid {defunct.pid}) has exited, but {_parent(defunct.event)} does not reap it, so "
            f"{keep} running and {hold} {memory}: {names}",
            tuple(_links(defunct, started)),
            explains=tuple(
                Entity("process", f"{defunct.event.source.node}/{p.pid}") for p in those
            ),
            caused_by=(Entity("raylet", node),) if node else (),
            subjects=(Subject("raylet", node or None, "raylet", defunct.pid, node or None),),
            count=len(workers),
            severity="error" if rows.truth(defunct.event, "is_this") else "warning",
            covers=tuple(p.event for p in those),
            remedies=_remedies(defunct, [p.pid for p in those], live.place(case, those)),
        )


def _started(case: Case, defunct: Defunct) -> Event | None:
    """The raylet's own start record, on the machine with this process table."""
    label = defunct.event.source.node
    found = [
        e for e in case.of("raylet.started") if e.pid == defunct.pid and e.source.node == label
    ]
    return found[-1] if found else None


def _parent(row: Event) -> str:
    name = f" ({row['parent']})" if row["parent"] else ""
    return f"PID 1{name}" if row["ppid"] == "1" else f"its parent pid {row['ppid']}{name}"


def _links(defunct: Defunct, started: Event | None) -> Iterator[Link]:
    if started:
        yield Link(started, f"the raylet starts as pid {defunct.pid}")
    yield Link(
        defunct.event,
        f"the raylet is defunct (state Z) and a child of {_parent(defunct.event).removeprefix('its parent ')}",
    )
    for worker in defunct.workers[:3]:
        yield Link(
            worker.event, f"{worker.named} is still running, and its raylet was pid {defunct.pid}"
        )


def _remedies(defunct: Defunct, pids: list[int], place: str) -> tuple[Remedy, ...]:
    ppid = defunct.event["ppid"]
    end = (
        live.end("End the remaining workers of the dead raylet", pids, place),
        Remedy(
            "Then restart the node",
            ("ray start   # with the options that this node was started with",),
            risk="disruptive",
        ),
    )
    if ppid == "1":
        init = Remedy(
            "Run the container with an init that reaps zombies, so that this cannot happen again",
            (
                "docker run --init   # plus your other options",
                'ENTRYPOINT ["tini", "--"]      # in the image',
                "shareProcessNamespace: true    # Kubernetes: in the pod's spec",
            ),
            doc=_DOC,
        )
        return init, *end
    if rows.number(defunct.event, "ppid") and defunct.event["parent_state"] in _STOPPED:
        again = paste.shell("kill -CONT {pid:pid}", pid=ppid)
        return Remedy(f"Resume its parent (pid {ppid}), which is stopped", (again,)), *end
    inspect = Remedy(
        f"Find why pid {ppid} does not wait for its child: the raylet's entry disappears when that process ends",
        (paste.shell("ps -o pid,ppid,stat,lstart,args -p {pid:pid}", pid=ppid),),
    )
    return inspect, *end


# ------------------------------------------------------------------ examples

_N = "fd875f52489dc9a2f53c85a6f87fba13611a3340ab1d20bc262561bf"
_STARTED = (
    f"[2026-11-21 13:00:03,993 I 40 40] (raylet) node_manager.cc:355: Raylet of id, {_N} started. Raylet consists of "
    "node_manager and object_manager. node_manager address: 10.0.0.2:0 object_manager address: 10.0.0.2:46637 hostname: n\n"
)
_STOPS = "[2026-11-21 13:10:10,000 I 40 40] (raylet) main.cc:1174: received SIGTERM. Existing local drain request = None\n"


def _daemon(kind: str, pid: int, state: str, **more: object) -> sample.Row:
    return sample.daemon(kind, pid, state, **{"ppid": 1, "parent": "python", **more})


_GCS = _daemon("gcs_server", 13, "S")
_WORKERS = (
    live.process(88, "worker", "ray::train", outlived="raylet", raylet_pid=40),
    live.process(89, "worker", "ray::Server.run", outlived="raylet", raylet_pid=40),
)
_LOGS = {"logs/gcs_server.out": "", "logs/raylet.out": _STARTED}

EXAMPLES: tuple[Example, ...] = (
    Example(
        "PID 1 of the container is not an init, and the raylet was killed",
        {
            **_LOGS,
            **live.machine(*_WORKERS),
            **sample.tables(daemons=[_GCS, _daemon("raylet", 40, "Z")]),
        },
        roots=("raylet-died",),
        consequences=("raylet-defunct",),
        says=("2 workers keep running", "PID 1 (python)", "kill 88 89", "--init"),
    ),
    Example(
        "the raylet received SIGTERM, and the process that started it is stopped",
        {
            "logs/gcs_server.out": "",
            "logs/raylet.out": _STARTED + _STOPS,
            **live.machine(_WORKERS[0]),
            **sample.tables(
                daemons=[_daemon("raylet", 40, "Z", ppid=7, parent="ray", parent_state="T")]
            ),
        },
        says=("1 worker", "pid 7 (ray)", "kill -CONT 7"),
    ),
    Example(
        "defunct, but its workers have exited as well",
        {
            "logs/gcs_server.out": "",
            "logs/raylet.out": _STARTED + _STOPS,
            **live.machine({**_WORKERS[0], "state": "Z"}),
            **sample.tables(daemons=[_GCS, _daemon("raylet", 40, "Z")]),
        },
    ),
    Example(
        "a defunct raylet of another cluster on the machine: its workers are leftovers and do not affect this cluster",
        {
            "logs/gcs_server.out": "",
            **live.machine(*_WORKERS),
            **sample.tables(
                daemons=[
                    _GCS,
                    _daemon("raylet", 20, "S"),
                    _daemon(
                        "raylet",
                        40,
                        "Z",
                        is_this=False,
                        session_dir="/tmp/ray/session_2026-11-20_x",
                    ),
                ]
            ),
        },
        roots=("leftover-process",),
    ),
    Example(
        "another raylet runs with its own workers, and the dashboard is defunct",
        {
            **_LOGS,
            **live.machine(
                live.process(
                    88, "worker", "ray::train", ppid=40, parent_kind="daemon", raylet_pid=40
                )
            ),
            **sample.tables(
                daemons=[_daemon("raylet", 40, "S"), _GCS, _daemon("dashboard", 15, "Z")]
            ),
        },
    ),
)

"""Small live tables for rules' examples: rows with the keys that the rules read.

Real rows have every key of the state API (Ray 2.9 to 2.60).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from raydoctor.cluster import resources

AT = 1795268951.0
"""When the example's tables were collected."""
NODE = "bc9f98176fe7ee70e9fce1a98018b5a45c33157769b177af34723d11"
_JOB = "01000000"
_DRIVER = f"{'f' * 40}{_JOB}"
Row = Mapping[str, Any]


def tables(at: float = AT, /, **rows: Sequence[Row]) -> dict[str, str]:
    """Files of a collection: `tables(nodes=[…], tasks=[…])`; `ray_get` is the table `ray-get`."""
    return {
        f"live/live-{name.replace('_', '-')}.json": table(name.replace("_", "-"), found, at)
        for name, found in rows.items()
    }


def table(name: str, rows: Sequence[Row], at: float = AT) -> str:
    """One table's text."""
    head = {"table": name, "at": at, "from": "dashboard", "total": len(rows)}
    lines = (json.dumps(row, separators=(",", ":")) for row in rows)
    return json.dumps(head)[:-1] + ', "rows": [\n' + ",\n".join(lines) + "\n]}\n"


def node(total: resources.Needs, node_id: str = NODE, **more: object) -> Row:
    """A row of `nodes`."""
    return {"node_id": node_id, "state": "ALIVE", "resources_total": total, "labels": {}, **more}


def daemon(kind: str, pid: int, state: str = "S", **more: object) -> Row:
    """A row of `daemons`: a running daemon of this cluster."""
    return {"kind": kind, "pid": pid, "state": state, "node_id": "", "is_this": True, **more}


def task(number: int, name: str, needs: resources.Needs, **more: object) -> Row:
    """A row of `tasks`: pending for fifteen seconds, unless `more` overrides it."""
    return {
        "task_id": task_id(number),
        "name": name,
        "func_or_class_name": name,
        "state": "PENDING_NODE_ASSIGNMENT",
        "type": "NORMAL_TASK",
        "job_id": _JOB,
        "parent_task_id": _DRIVER,
        "required_resources": needs,
        "events": [{"state": "PENDING_NODE_ASSIGNMENT", "created_ms": int(AT - 15) * 1000}],
        **more,
    }


def running(number: int, name: str, needs: resources.Needs, **more: object) -> Row:
    """A row of `tasks`: a running task."""
    runs = {"state": "RUNNING", "node_id": NODE, "worker_pid": 800 + number}
    return task(number, name, needs, **{**runs, **more})


def call(number: int, name: str, of: Row, **more: object) -> Row:
    """A row of `tasks`: a running method of an actor."""
    return running(number, name, {}, type="ACTOR_TASK", actor_id=of["actor_id"], **more)


def actor(number: int, name: str, held: resources.Needs, **more: object) -> Row:
    """A row of `actors`: a live actor."""
    return {
        "actor_id": f"{number:024x}{_JOB}",
        "class_name": name,
        "state": "ALIVE",
        "job_id": _JOB,
        "node_id": NODE,
        "pid": 900 + number,
        "required_resources": held,
        **more,
    }


def driver(number: int, frames: str, **more: object) -> Row:
    """A row of `workers`: the driver of a job that an exception with these frames ended a minute ago."""
    return {
        "worker_id": f"{number:02x}000000{'f' * 48}",
        "is_alive": False,
        "worker_type": "DRIVER",
        "exit_type": "INTENDED_USER_EXIT",
        "pid": 0,
        "end_time_ms": int(AT - 60) * 1000,
        "exception": frames,
        **more,
    }


def job(number: int, pid: int) -> Row:
    """A row of `jobs`: a driver that no submission started."""
    job_id = f"{number:02x}000000"
    info = {"id": job_id, "node_ip_address": "10.0.0.2", "pid": str(pid)}
    return {"type": "DRIVER", "job_id": job_id, "status": "SUCCEEDED", "driver_info": info}


def task_id(number: int) -> str:
    """A task's id by its number."""
    return f"{number:016x}{'f' * 24}{_JOB}"


def in_ray_get(name: str, count: int) -> Row:
    """A row of `ray-get`."""
    return {"name": name, "state": "RUNNING_IN_RAY_GET", "job_id": _JOB, "count": count}

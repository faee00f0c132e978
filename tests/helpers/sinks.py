"""A capture as log stores and shippers export it: Ray's files by a sidecar, a driver's output by its container."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

SESSION = "/tmp/ray/session_2026-11-21_07-34-00_123456_1"
BEGIN = 1_795_246_440_000_000_001
_STEP = 1_001_001
"""Nanoseconds from one line to the next."""


class Line(NamedTuple):
    """One line of a capture, with where and when it was written."""

    pod: str
    path: str
    """Of the file on its node; empty for a container's output."""
    text: str
    at: int

    @property
    def stamp(self) -> str:
        """RFC 3339 with nanoseconds, without the zeros at its end."""
        whole = datetime.fromtimestamp(self.at // 10**9, timezone.utc)
        return f"{whole:%Y-%m-%dT%H:%M:%S}.{self.at % 10**9:09}".rstrip("0") + "Z"

    @property
    def sidecar(self) -> str:
        """What Fluent Bit beside Ray prints of it."""
        return json.dumps({"date": self.at / 1e9, "log": self.text, "true": self.path})


def lines(capture: Path) -> list[Line]:
    """The lines of a capture, those of its files one after another."""
    found = []
    for file in sorted(each for each in capture.rglob("*") if each.is_file()):
        parts = file.relative_to(capture).parts
        is_log = "logs" in parts
        at = parts.index("logs") if is_log else len(parts) - 1
        path = f"{SESSION}/{'/'.join(parts[at:])}" if is_log else ""
        path = "/var/log/kern.log" if parts[-1] == "dmesg.txt" else path
        pod = "-".join(parts[:at]) or "head"
        texts = file.read_bytes().decode("utf-8", "replace").split("\n")
        found += [(pod, path, text) for text in (texts if texts[-1] else texts[:-1])]
    return [Line(*each, BEGIN + n * _STEP) for n, each in enumerate(found)]


def loki_lines(all_: list[Line]) -> str:
    """`logcli query -o jsonl`: newest first."""
    rows = ({"labels": _loki(x), "line": x.text, "timestamp": x.stamp} for x in reversed(all_))
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def loki_answer(all_: list[Line]) -> str:
    """The answer of `/loki/api/v1/query_range`."""
    streams: dict[str, dict[str, Any]] = {}
    for x in reversed(all_):
        stream = streams.setdefault(f"{x.pod}{x.path}", {"stream": _loki(x), "values": []})
        stream["values"].append([str(x.at), x.text])
    result = {"resultType": "streams", "result": list(streams.values()), "stats": {"summary": {}}}
    return json.dumps({"status": "success", "data": result})


def _loki(x: Line) -> dict[str, str]:
    own = {"filename": x.path} if x.path else {"container": "driver"}
    return {"app": "ray", "namespace": "ml", "pod": x.pod, **own}


def cloudwatch(all_: list[Line]) -> str:
    """`aws logs filter-log-events`, two pages that overlap."""
    events = [
        {
            "logStreamName": f"node.application.var.log.containers.{x.pod}_ml_driver-{'0f' * 32}.log",
            "timestamp": x.at // 10**6,
            "message": x.text if not x.path else json.dumps({"log": x.text, "path": x.path}),
            "ingestionTime": x.at // 10**6 + 7,
            "eventId": str(n),
        }
        for n, x in enumerate(all_)
    ]
    middle = len(events) // 2
    pages = (events[: middle + 20], events[middle - 20 :])
    return "\n".join(json.dumps({"events": p, "searchedLogStreams": []}, indent=4) for p in pages)


def cloud_logging(all_: list[Line]) -> str:
    """`gcloud logging read --format json`: newest first."""
    entries = []
    for n, x in enumerate(reversed(all_)):
        own = (
            {"jsonPayload": {"log": x.text, "path": x.path}} if x.path else {"textPayload": x.text}
        )
        where = {"container_name": "driver", "namespace_name": "ml", "pod_name": x.pod}
        entries.append(
            {
                "insertId": f"id{n}",
                **own,
                "logName": "projects/p/logs/stderr",
                "resource": {"labels": where, "type": "k8s_container"},
                "severity": "ERROR",
                "timestamp": x.stamp,
            }
        )
    return json.dumps(entries, indent=2)


def fluent_bit(all_: list[Line]) -> str:
    """Fluent Bit's `json_lines`, with the names of Kubernetes."""
    rows = []
    for x in all_:
        where = {"pod_name": x.pod, "namespace_name": "ml", "container_name": "driver"}
        row: dict[str, Any] = {"date": x.at / 1e9, "time": x.stamp, "_p": "F", "log": x.text}
        rows.append({**row, **({"path": x.path} if x.path else {}), "kubernetes": where})
    return "".join(json.dumps(row) + "\n" for row in rows)


def vector(all_: list[Line]) -> str:
    """Vector's sources `file` and `kubernetes_logs`, as its `file` sink encodes them."""
    rows = []
    for x in all_:
        own: dict[str, Any] = {"file": x.path, "host": x.pod}
        if not x.path:
            own = {"kubernetes": {"pod_name": x.pod, "container_name": "driver"}}
        rows.append({**own, "message": x.text, "source_type": "file", "timestamp": x.stamp})
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def kubectl(all_: list[Line]) -> str:
    """`kubectl logs -l ray.io/cluster=x --all-containers --prefix --timestamps`."""
    return "".join(
        f"[pod/{x.pod}/{'fluentbit' if x.path else 'driver'}] {x.stamp} "
        f"{x.sidecar if x.path else x.text}\n"
        for x in all_
    )


def docker(all_: list[Line]) -> Iterator[tuple[str, str]]:
    """`/var/lib/docker/containers/ID/ID-json.log`; lines of more than 16 KiB are in several records."""
    for pod, is_log in sorted({(x.pod, bool(x.path)) for x in all_}):
        own = [x for x in all_ if (x.pod, bool(x.path)) == (pod, is_log)]
        rows = []
        for x in own:
            whole = x.text
            if is_log:
                whole = json.dumps({"log": x.text, "path": x.path, "pod": x.pod})
            pieces = [whole[n : n + 1000] for n in range(0, len(whole), 1000)] or [""]
            pieces[-1] += "\n"
            rows += [{"log": each, "stream": "stderr", "time": x.stamp} for each in pieces]
        text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
        yield f"{pod}{is_log:d}-json.log", text


def cri(all_: list[Line]) -> Iterator[tuple[str, str]]:
    """`/var/log/pods/NAMESPACE_POD_UID/CONTAINER/0.log`; long lines are in several parts."""
    for pod, is_log in sorted({(x.pod, bool(x.path)) for x in all_}):
        rows = []
        for x in (x for x in all_ if (x.pod, bool(x.path)) == (pod, is_log)):
            whole = x.sidecar if is_log else x.text
            pieces = [whole[n : n + 1000] for n in range(0, len(whole), 1000)] or [""]
            rows += [f"{x.stamp} stderr P {piece}\n" for piece in pieces[:-1]]
            rows.append(f"{x.stamp} stderr F {pieces[-1]}\n")
        yield f"pods/ml_{pod}_3f1c/{'fluentbit' if is_log else 'driver'}/0.log", "".join(rows)


FILES: dict[str, Callable[[list[Line]], str]] = {
    "Loki, jsonl": loki_lines,
    "Loki, query_range": loki_answer,
    "CloudWatch": cloudwatch,
    "Cloud Logging": cloud_logging,
    "Fluent Bit": fluent_bit,
    "Vector": vector,
    "kubectl": kubectl,
}
TREES: dict[str, Callable[[list[Line]], Iterator[tuple[str, str]]]] = {"Docker": docker, "CRI": cri}


def export(capture: Path, form: str, folder: Path) -> Path:
    """Write the export of a capture; returns the file or folder to diagnose."""
    if form in FILES:
        file = folder / "export.json"
        file.write_text(FILES[form](lines(capture)), encoding="utf-8")
        return file
    for name, text in TREES[form](lines(capture)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


# ---------------------------------------------------------------- KubeRay

NODE = "0c" * 28
"""The id of a node, and its folder below a History Server's session."""


def _aggregated(record: dict[str, Any]) -> dict[str, Any] | None:
    """A record of `export_events/`, as Ray's event aggregator sends it to a History Server."""
    data, moment = record["event_data"], datetime.fromtimestamp(record["timestamp"], timezone.utc)
    at = {"timestamp": moment.isoformat()}
    if record["source_type"] == "EXPORT_ACTOR":
        own = {"actorId": data["actor_id"], "className": data["class_name"], "name": data["name"]}
        return {"eventType": "ACTOR_DEFINITION_EVENT", "actorDefinitionEvent": own, **at}
    updates = data.get("state_updates", {}) if record["source_type"] == "EXPORT_TASK" else {}
    if not (error := updates.get("error_info")):
        return None
    own = {
        "taskId": data["task_id"],
        "jobId": data["job_id"],
        "taskAttempt": data["attempt_number"],
    }
    own |= {"workerId": updates.get("worker_id", ""), "nodeId": updates.get("node_id", "")}
    own["rayErrorInfo"] = {"errorType": error["error_type"], "errorMessage": error["error_message"]}
    return {"eventType": "TASK_LIFECYCLE_EVENT", "taskLifecycleEvent": own, **at}


def keep(logs: Path, node: Path) -> None:
    """Store a node's logs as the collector of a History Server does, its events in a file of their own."""
    shutil.copytree(logs, node / "logs")
    events = []
    for file in sorted((node / "logs/export_events").glob("*.log")):
        events += [_aggregated(json.loads(line)) for line in file.read_text().splitlines()]
        file.unlink()
    folder = node / "job_events/01000000"
    folder.mkdir(parents=True)
    text = "".join(f"{json.dumps(event)}\n" for event in events if event)
    (folder / f"{NODE}_1795246503000000000.jsonl.gz").write_bytes(gzip.compress(text.encode()))

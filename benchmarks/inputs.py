"""Trees to measure on, made of real lines.

`lines/quiet/` holds bodies of healthy logs of Ray 2.60 (state dumps, event statistics, user output);
`lines/storm/` holds units of lines parted by a blank one, of which the last matches a signal. Both are
repeated until a file has its size; stamps, ids and pids change from one repetition to the next.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raydoctor.rules.shared.hosts import kubernetes as hosts
from tests.helpers.captures import FIXTURES, capture_of

LINES = Path(__file__).with_name("lines")
BEGAN = 1_795_246_000
NODE = "c0a2e48139bba0b5259e7cc66a1ab9f151f1abc659890443014ba815"
_BLOCK = 256 << 10

_VARYING = re.compile(
    rb"(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})|(?P<epoch>(?<=\"timestamp\":)\d+)"
    rb"|(?P<pid>(?<=Worker PID: )\d+)|(?P<node>(?<=node id = )[0-9a-f]{56}|(?<=Node ID: )[0-9a-f]{56}"
    rb"|(?<=\"node_id\":\")[0-9a-f]{56}|(?<=at node )[0-9a-f]{56})"
    rb"|(?P<actor>(?<=actor_id=)[0-9a-f]{32})|(?P<task>\b[0-9a-f]{48}\b)|(?P<worker>\b[0-9a-f]{56}\b)"
)

HEAD = {
    "gcs_server.out": (
        "[2026-11-21 07:42:46,690 I 14 14] (gcs_server) gcs_server_main.cc:98: "
        "Ray cluster metadata ray_version=2.60.0 ray_commit=b7f4259e944bf6959f721b106adc366ddfa0c356\n"
        "[2026-11-21 07:42:51,536 I 14 14] (gcs_server) gcs_node_manager.cc:115: Registering new node. "
        f"node_id={NODE} node_name=127.0.0.1 node_address=127.0.0.1\n"
    ),
    "raylet.out": (
        "[2026-11-21 07:42:51,537 I 287 287] (raylet) node_manager.cc:355: Raylet of id, "
        f"{NODE} started. Raylet consists of node_manager and object_manager. node_manager address: "
        "127.0.0.1:33935 object_manager address: 127.0.0.1:37885 hostname: ray-node\n"
    ),
}
"""What every session begins with."""

STORM_KINDS: dict[str, tuple[str, ...]] = {
    "gcs_server.out": ("worker.exit", "actor.failed"),
    "raylet.out": ("worker.disconnected",),
    "events/event_RAYLET.log": ("worker.died",),
    "python-core-driver.log": ("task.attempt_failed", "task.failed"),
    "driver.log": ("worker.died", "driver.exception"),
}
"""The event kind of each unit's last line, in the order of the units."""

_STORM_SHARES = {
    "gcs_server.out": 0.2,
    "raylet.out": 0.2,
    "events/event_RAYLET.log": 0.01,
    "driver.log": 0.2,
}
_STORM_DRIVERS = 40


@dataclass(slots=True)
class Tree:
    """A session made for a measurement."""

    path: Path
    files: int = 0
    bytes: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    """Events written, by kind; what a diagnosis must count."""

    def add(self, name: str, blocks: Iterator[bytes]) -> None:
        """Write one file below `logs/`."""
        self.write(f"logs/{name}", blocks)

    def write(self, name: str, blocks: Iterator[bytes]) -> None:
        """Write one file."""
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as out:
            for block in blocks:
                out.write(block)
                self.bytes += len(block)
        self.files += 1


class Template:
    """Lines whose stamps, ids and pids change with a counter."""

    def __init__(self, text: bytes) -> None:
        self._parts: list[tuple[bytes, str]] = []
        at = 0
        for match in _VARYING.finditer(text):
            self._parts.append((text[at : match.start()], match.lastgroup or ""))
            at = match.end()
        self._rest = text[at:]

    def render(self, number: int) -> bytes:
        """The lines for the `number`-th repetition, a hundred a second."""
        values = _values(number)
        pieces = [piece for part, kind in self._parts for piece in (part, values[kind])]
        return b"".join((*pieces, self._rest))


def _values(number: int) -> dict[str, bytes]:
    seconds, hundredths = divmod(number, 100)
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(BEGAN + seconds))
    mixed = (number * 0x9E3779B97F4A7C15D1B54A32D192ED03) & ((1 << 192) - 1)
    return {
        "stamp": f"{stamp},{hundredths * 10:03d}".encode(),
        "epoch": b"%d" % (BEGAN + seconds),
        "pid": b"%d" % (1000 + number % 4_000_000),
        "node": NODE.encode(),
        "actor": b"%024x01000000" % (mixed >> 96),
        "task": b"%040x01000000" % (mixed >> 32),
        "worker": b"%056x" % mixed,
    }


def quiet(path: Path, size: int, files: int) -> Tree:
    """A session in which little happens: `files` logs of equal size."""
    tree = Tree(path)
    names = [*HEAD, *(name for n in range((files - 2) // 3) for name in _worker_names(n))]
    names += [f"python-core-worker-{n:056x}_{n}.log" for n in range(files - len(names))]
    for name in names[:files]:
        body = Template((LINES / "quiet" / _quiet_body(name)).read_bytes())
        tree.add(name, _repeat(HEAD.get(name, "").encode(), body, size // files))
    return tree


def _worker_names(number: int) -> tuple[str, str, str]:
    worker, pid = f"{number + 0xABC:056x}", number + 400
    return (
        f"python-core-worker-{worker}_{pid}.log",
        f"worker-{worker}-01000000-{pid}.out",
        f"worker-{worker}-01000000-{pid}.err",
    )


def _quiet_body(name: str) -> str:
    if name.startswith("worker-"):
        return "worker.out"
    return "python-core-worker.log" if name.startswith("python-core") else name


def _repeat(head: bytes, body: Template, size: int) -> Iterator[bytes]:
    written, number = len(head), 0
    yield head
    while written < size:
        block = b"".join(
            body.render(number + i) for i in range(max(1, _BLOCK // len(body.render(0))))
        )
        number += 10
        block = block[: max(size - written, 1)] if written + len(block) > size else block
        written += len(block)
        yield block


def healthy(path: Path, size: int, files: int) -> Tree:
    """A healthy session's own files over and over: many lines with a literal, and no failure."""
    tree = Tree(path)
    logs = capture_of(FIXTURES / "healthy--ray-2.60.0--1-node") / "logs"
    for name in HEAD:
        tree.add(name, _repeat(b"", Template((logs / name).read_bytes()), size // files))
    bodies = [Template(log.read_bytes()) for log in sorted(logs.glob("python-core-worker-*.log"))]
    for n in range(files - len(HEAD)):
        name = f"python-core-worker-{n:056x}_{n + 400}.log"
        tree.add(name, _repeat(b"", bodies[n % len(bodies)], size // files))
    return tree


def storm(path: Path, size: int) -> Tree:
    """A session whose every fourth line is an error, each of another worker, task or time."""
    tree = Tree(path)
    names = {name: int(share * size) for name, share in _STORM_SHARES.items()}
    rest = (size - sum(names.values())) // _STORM_DRIVERS
    for number in range(_STORM_DRIVERS):
        names[f"python-core-driver-{number + 1:02x}000000{'f' * 48}_{number + 7}.log"] = rest
    start = 0
    for name, share in names.items():
        kind = "python-core-driver.log" if name.startswith("python-core") else name
        tree.add(name, _blow(tree, kind, share, start))
        start += 10_000_019
    return tree


def _blow(tree: Tree, name: str, size: int, start: int) -> Iterator[bytes]:
    """Units in turn until the file has its size; what they say is counted in the tree."""
    text = (LINES / "storm" / Path(name).name).read_bytes()
    units = [Template(unit.strip(b"\n") + b"\n") for unit in text.split(b"\n\n")]
    head = HEAD.get(name, "").encode()
    written, number = len(head), start
    yield head
    while written < size:
        block = b"".join(units[n % len(units)].render(n) for n in range(number, number + 200))
        for n in range(number, number + 200):
            kind = STORM_KINDS[name][n % len(units)]
            tree.kinds[kind] = tree.kinds.get(kind, 0) + 1
        number += 200
        written += len(block)
        yield block


def kubernetes(path: Path, pods: int, events: int) -> Tree:
    """What `kubectl get pods,events -o json` prints of a large cluster, one pod of which ran out of memory.

    Nine of ten events are normal; the others are warnings of probes that later succeeded.
    """
    tree = Tree(path)
    killed = hosts.terminated("OOMKilled", 137)
    listed = [_pod(n, killed if n == pods // 2 else {}) for n in range(pods)]
    normal = ("Scheduled", "Pulling", "Pulled", "Created", "Started")
    happened = (
        _event(n, "Unhealthy" if n % 10 == 9 else normal[n % 5], n % pods) for n in range(events)
    )
    tree.write("pods.json", _list(listed))
    tree.write("events.json", _list(happened))
    return tree


def _list(objects: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    """A list as kubectl prints it, without holding it."""
    yield b'{\n    "apiVersion": "v1",\n    "items": ['
    for n, each in enumerate(objects):
        text = json.dumps(each, indent=4).replace("\n", "\n        ")
        yield f"{',' * (n > 0)}\n        {text}".encode()
    yield b'\n    ],\n    "kind": "List",\n    "metadata": {\n        "resourceVersion": ""\n    }\n}\n'


def _pod(number: int, last: dict[str, Any]) -> dict[str, Any]:
    """A pod with as many variables, probes, mounts and tolerations as KubeRay's usually have."""
    name = f"train-gpu-worker-{number:05x}"
    pod = hosts.pod(name, ip=f"10.{number >> 14}.{number >> 7 & 127}.{number & 127}", last=last)
    container = pod["spec"]["containers"][0]
    names = [f"RAY_SETTING_{n}" for n in range(20)]
    container["env"] = [{"name": each, "value": f"value of {each}"} for each in names]
    container["env"] += [{"name": "RAY_ADDRESS", "value": "train-head-svc.ml.svc:6379"}]
    probe = {"exec": {"command": ["bash", "-c", "wget -q -O- localhost:52365 | grep success"]}}
    for each in ("livenessProbe", "readinessProbe"):
        container[each] = {**probe, "failureThreshold": 120, "periodSeconds": 5}
    mounts = [{"mountPath": f"/mnt/{n}", "name": f"volume-{n}"} for n in range(8)]
    container["volumeMounts"] = mounts
    pod["spec"]["volumes"] = [{"emptyDir": {}, "name": each["name"]} for each in mounts]
    pod["spec"]["tolerations"] = [
        {"effect": "NoExecute", "key": f"node.kubernetes.io/{n}", "operator": "Exists"}
        for n in range(4)
    ]
    types = ("Initialized", "Ready", "ContainersReady", "PodScheduled", "PodReadyToStartContainers")
    pod["status"]["conditions"] = [
        {"lastProbeTime": None, "lastTransitionTime": "2026-11-22T18:40:02Z", "status": "True", "type": each}
        for each in types
    ]  # fmt: skip
    return pod


def _event(number: int, reason: str, pod: int) -> dict[str, Any]:
    event = hosts.event(
        reason,
        f"{reason}: 10.{number & 255}.0.1 of container ray-worker",
        f"train-gpu-worker-{pod:05x}",
        type="Warning" if reason == "Unhealthy" else "Normal",
        eventTime=None,
        firstTimestamp="2026-11-22T18:40:01Z",
        lastTimestamp="2026-11-22T18:40:10Z",
        reportingComponent="kubelet",
        reportingInstance=f"node-{number % 500}",
        source={"component": "kubelet", "host": f"node-{number % 500}"},
    )
    event["metadata"] = {
        "creationTimestamp": "2026-11-22T18:40:01Z",
        "name": f"train-gpu-worker-{pod:05x}.{number:016x}",
        "namespace": "ml",
        "resourceVersion": str(9_000_000 + number),
        "uid": f"{number:08x}-51ab-4c4e-9d1a-0f1e2d3c4b5a",
    }
    return dict(sorted(event.items()))


def loki(path: Path, size: int) -> Tree:
    """What `logcli query -o jsonl` prints of a quiet session, newest first, in one file."""
    tree = Tree(path)
    logs = [
        (name, Template((LINES / "quiet" / _quiet_body(name)).read_bytes()))
        for name in (*HEAD, *_worker_names(0))
    ]
    tree.write("loki.jsonl", _loki(logs, size))
    return tree


def _loki(logs: list[tuple[str, Template]], size: int) -> Iterator[bytes]:
    at, written, number = BEGAN * 10**9, 0, 0
    while written < size:
        name, body = logs[number % len(logs)]
        labels = {"app": "ray", "namespace": "ml", "pod": "train-head-x7k2p",
                  "filename": f"/tmp/ray/session_2026-11-21_07-34-00_123456_1/logs/{name}"}  # fmt: skip
        rows = []
        for line in reversed(body.render(number).decode().splitlines()):
            at -= 1_001_001
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at // 10**9))
            row = {"labels": labels, "line": line, "timestamp": f"{stamp}.{at % 10**9:09}Z"}
            rows.append(json.dumps(row, separators=(",", ":")))
        block = "".join(f"{row}\n" for row in rows).encode()
        number += 1
        written += len(block)
        yield block

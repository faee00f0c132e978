"""Processes of a distributed group could not connect to each other, lost a peer, or waited for one in vain.

## What you see
While vLLM, verl or Ray Train starts its ranks, one of them raises `RuntimeError: Gloo connectFullMesh failed with
[…/gloo/transport/tcp/pair.cc:144] no error`, or `torch.distributed.DistNetworkError: The client socket has timed out
after 60s while trying to connect to (10.0.0.2, 29502)`. Rank 0 may report `Timed out after 601 seconds waiting for
clients. 1/2 clients joined`. Later, while the ranks work, a rank reports `[…/gloo/transport/tcp/pair.cc:534] Connection
closed by peer [10.0.0.3]:41677`, or `[…/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv
operation to complete`. vLLM compares addresses first, and reports `Every node should have a unique IP address. Got 2
nodes with node ids … and 1 unique IP addresses`.

## Why
Ray connects nodes by their node addresses. torch's Gloo and its rendezvous (c10d) choose the interface themselves: the
one with the host name's address, or `GLOO_SOCKET_IFNAME`. If the host name resolves to 127.0.0.1 or 127.0.1.1, the
other nodes receive an address that refers to themselves. With several interfaces, Gloo may choose one that the other
nodes cannot reach. A firewall, or the wrong address for rank 0 (`MASTER_ADDR`, `VLLM_HOST_IP`), has the same effect. A
connection that a peer closes later is a consequence: the process at that address exited first. A rank that waits for
data until the time limit of the group (30 min by default) shows that another rank is hung, is much slower, or does not
take part in the operation.

## Confirm
- On each node, `getent hosts $(hostname)` must print the address that Ray uses, not 127.0.0.1 or 127.0.1.1.
- `ip -br addr` shows which interface has that address on each node.
- From the node that reports the timeout, `nc -vz ADDRESS PORT` fails while rank 0 waits if the network blocks the
  connection.

## Fix
Set `GLOO_SOCKET_IFNAME` and `NCCL_SOCKET_IFNAME` to the interface that connects the nodes, before `ray start` on each
node:

    export GLOO_SOCKET_IFNAME=eth0 NCCL_SOCKET_IFNAME=eth0   # the interface that `ip -br addr` shows

Or set them in the program's runtime environment:

    ray.init(runtime_env={"env_vars": {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0"}})

Correct `/etc/hosts`, and open the ports between the nodes.

## Not this when
- a rank exited before the others reported an error: the report then lists the cause of that exit as the root
  (`ray-oom-kill`, `task-exception`, …).
- all ranks are on one node, and the only symptom is the warning `Unable to resolve hostname to a (local) address`,
  which is harmless there.
- a collective operation of NCCL timed out after the ranks were connected (`nccl-failure`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import OUTPUT, WORKER_DIED, WORKER_EXIT
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Link, Remedy, Severity, Subject
from raydoctor.rules.shared.failures import METHOD_FAILED, SIGNALS, constructors, failures
from raydoctor.rules.shared.task_error import Printed, error_entities, error_entity

_DOC = "https://docs.pytorch.org/docs/stable/distributed.html#choosing-the-network-interface-to-use"
_RAISED = r"(?P<raised>\b\w{0,60}Error: )?"

INTERFACE = Signal(
    "rendezvous.interface",
    ". Unable to find ",
    rf"{_RAISED}\[enforce fail at [^\[\]\s]{{1,200}}gloo/transport/\w+/device\.cc:\d+\] \w+ (?:!= nullptr|== 0)\. "
    r"Unable to find (?:address|interface) for:? \[?(?P<interface>[\w.:-]{1,100})",
    OUTPUT,
    "RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address "
    "for: ib7",
    fold=("interface",),
)
MESH = Signal(
    "rendezvous.mesh",
    "Gloo connectFullMesh failed with [",
    rf"{_RAISED}Gloo connectFullMesh failed with \[[^\[\]\s]{{1,200}}\.cc:\d+\](?P<what>.{{0,500}})",
    OUTPUT,
    "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
)
TIMED_OUT = Signal(
    "rendezvous.timed_out",
    "The client socket has timed out after ",
    rf"{_RAISED}The client socket has timed out after (?P<time>\d+ ?[a-z]{{1,12}}) while trying to connect to "
    r"\((?P<host>[^,()\s]{1,255}), (?P<port>\d{1,5})\)",
    OUTPUT,
    "torch.distributed.DistNetworkError: The client socket has timed out after 60s while trying to connect to (10.0.0.2, 29502).",
    fold=("host", "port"),
)
NO_ADDRESS = Signal(
    "rendezvous.no_address",
    "The client socket has failed to connect to any network address of (",
    rf"{_RAISED}The client socket has failed to connect to any network address of "
    r"\((?P<host>[^,()\s]{1,255}), (?P<port>\d{1,5})\)",
    OUTPUT,
    "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (trainer-head-0, 29502).",
    fold=("host", "port"),
)
CLIENTS = Signal(
    "rendezvous.clients",
    " seconds waiting for clients. ",
    rf"{_RAISED}Timed out after (?P<seconds>\d{{1,9}}) seconds waiting for clients\. (?P<joined>\d{{1,9}})/(?P<world>\d{{1,9}}) "
    r"clients joined",
    OUTPUT,
    "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
)
LOOPBACK = Signal(
    "rendezvous.loopback",
    "Unable to resolve hostname to a (local) address. Using the loopback address as fallback",
    r"Unable to resolve hostname to a \(local\) address\. Using the loopback address as fallback",
    OUTPUT,
    "[rank1]:[W1121 07:34:12.164295950 ProcessGroupGloo.cpp:715] Warning: Unable to resolve hostname to a (local) address. Using the "
    "loopback address as fallback. Manually set the network interface to bind to with GLOO_SOCKET_IFNAME. (function operator())",
)
"""Harmless by itself; in a group of several nodes it explains a failure."""
ADDRESSES = Signal(
    "rendezvous.addresses",
    "Every node should have a unique IP address.",
    rf"{_RAISED}Every node should have a unique IP address\. Got (?P<nodes>\d{{1,6}}) nodes with node ids .{{0,4000}}? and "
    r"(?P<ips>\d{1,6}) unique IP addresses \{(?P<addresses>[^{}]{1,4000})\}",
    OUTPUT,
    "RuntimeError: Every node should have a unique IP address. Got 2 nodes with node ids ['4392', '2333'] and 1 unique IP addresses "
    "{'10.0.0.3'}. Please check your network configuration. If you set `VLLM_HOST_IP` environment variable, make sure it is unique "
    "for each node.",
)
"""vLLM's check of its workers before they start (`ray_executor.py`, 0.5 to 0.20)."""
_OF_PAIR = (
    rf"{_RAISED}(?:\w[^\[\]]{{0,200}})?\[[^\[\]\s]{{1,200}}gloo/transport/tcp/pair\.cc:\d+\] "
)
_PEER = r"\[(?P<peer>[0-9A-Fa-f.:]{2,45})\]:(?P<port>\d{1,5})"
CONNECT = Signal(
    MESH.kind,
    "] connect [",
    rf"{_OF_PAIR}(?P<what>connect \[[0-9A-Fa-f.:]{{2,45}}\]:\d{{1,5}}: "
    r"(?:Connection refused|Connection timed out|No route to host|Network is unreachable))",
    OUTPUT,
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:799] connect [127.0.0.1]:14221: Connection refused",
)
"""The same failure before torch 2.3, whose Gloo raises the first refused connection."""
CLOSED = Signal(
    "rendezvous.closed",
    "Connection closed by peer [",
    rf"{_OF_PAIR}Connection closed by peer {_PEER}",
    OUTPUT,
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:41677",
    fold=("peer",),
)
RESET = Signal(
    CLOSED.kind,
    " error [",
    rf"{_OF_PAIR}(?:Read|Write) error {_PEER}: (?:Connection reset by peer|Broken pipe)",
    OUTPUT,
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:525] Read error [10.0.0.3]:41677: Connection reset by peer",
    fold=("peer",),
)
"""The same end of a peer, if the connection still carried data (`gloo/transport/tcp/pair.cc`)."""

WAITED = Signal(
    "rendezvous.waited",
    " operation to complete",
    rf"(?:{_RAISED}(?:\w[^\[\]]{{0,200}})?\[[^\[\]\s]{{1,200}}gloo/transport/\w{{1,20}}/unbound_buffer\.cc:\d{{1,6}}\] |^\s{{0,8}})"
    r"Timed out waiting (?P<time>\d{1,12}ms) for (?P<what>recv|send) operation to complete",
    OUTPUT,
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete",
    fold=("time",),
)
"""A console may break the line in front of these words."""
MESH_FRAME = Signal(
    "rendezvous.mesh",
    ": gloo::rendezvous::Context::connectFullMesh(",
    r"^frame #\d{1,3}: (?P<raised>gloo)::rendezvous::Context::connectFullMesh\((?P<what>.{0,500})",
    OUTPUT,
    "frame #12: gloo::rendezvous::Context::connectFullMesh(std::shared_ptr<gloo::rendezvous::Store>, std::shared_ptr<gloo::transport::"
    "Device>&) + 0x109 (0x7f4e in /venv/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so)",
)
"""The C++ stack of an exception that torch raised while Gloo waited for the other ranks."""

MEETING = (
    Signal(
        "rendezvous.meeting",
        "Unable to meet other processes at the rendezvous store.",
        rf"(?:^|\] ){_RAISED}Unable to meet other processes at the rendezvous store\.",
        OUTPUT,
        "RuntimeError: Unable to meet other processes at the rendezvous store. If you are using P2P communication, please check if tensors "
        "are put in the correct GPU. ",
    ),
    Signal(
        "rendezvous.meeting",
        "Unable to get the NCCLUniqueID from the store within ",
        rf"(?:^|\] ){_RAISED}Unable to get the NCCLUniqueID from the store within (?P<seconds>\d{{1,9}}) seconds\.",
        OUTPUT,
        "RuntimeError: Unable to get the NCCLUniqueID from the store within 180 seconds.",
    ),
    Signal(
        "rendezvous.meeting",
        "Timed out waiting for GLOO rendezvous metadata for group ",
        rf"(?:^|\] ){_RAISED}Timed out waiting for GLOO rendezvous metadata for group '(?P<group>[^'\n]{{1,200}})'",
        OUTPUT,
        "TimeoutError: Timed out waiting for GLOO rendezvous metadata for group 'default'.",
    ),
    Signal(
        "rendezvous.meeting",
        "Failed to receive worker ports from node 0 within timeout",
        rf"(?:^|\] ){_RAISED}Failed to receive worker ports from (?P<node>node 0) within timeout",
        OUTPUT,
        "RuntimeError: Failed to receive worker ports from node 0 within timeout",
    ),
    Signal(
        "rendezvous.meeting",
        "Timed out initializing process group in store based barrier on rank",
        rf"(?:^|\] ){_RAISED}Timed out initializing process group in store based barrier on rank:? (?P<own>\d{{1,6}}), for key: "
        r"(?P<key>\S{1,100}) \(world_size=(?P<world>\d{1,9}), (?:worker_count|num_workers_joined)=(?P<joined>\d{1,9})",
        OUTPUT,
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 1, for key: store_based_barrier_key:1 "
        "(world_size=2, worker_count=1, timeout=0:30:00)",
    ),
    Signal(
        "rendezvous.meeting",
        "DistStoreError: wait timeout after ",
        r"\b(?P<raised>DistStoreError: )wait timeout after (?P<ms>\d{1,12})ms, keys: (?P<key>\S{1,200})",
        OUTPUT,
        "torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /default_pg/0//cuda//0",
    ),
)
"""`ray.util.collective` (2.9 to 2.60), whose ranks exchange their addresses through Ray, SGLang on several nodes, and torch's store."""
STORE_LOST = tuple(
    Signal(
        "rendezvous.store_lost",
        f"DistNetworkError: {words}",
        rf"\b(?P<raised>DistNetworkError: )(?P<what>{words})",
        OUTPUT,
        f"torch.distributed.DistNetworkError: {words}",
    )
    for words in ("failed to recv, got 0 bytes", "Connection reset by peer", "Broken pipe")
)
"""torch 2.1 and later (`c10d/Utils.hpp`): the process of rank 0, which serves the store of a group, closed the connection. Only as
an exception: torch logs the same words at a normal end, if rank 0 ends first."""
_LOST = (CLOSED, RESET)
_FAILED = (INTERFACE, MESH, TIMED_OUT, NO_ADDRESS, CLIENTS)
"""The most specific first: one failure can cause all of them."""
_REMOTE = pattern(r"(?:remote=|connect )\[(?P<ip>[0-9A-Fa-f.:]{2,45})\]:(?P<port>\d{1,5})")
_ERRNO = pattern(r"(?:SO_ERROR|\]:\d{1,5}): (?P<error>[A-Z][a-z]+(?: [a-z]+){0,6})")
_RANK = pattern(r"\[rank(?P<a>\d{1,6})\]|\(rank=(?P<b>\d{1,6})[,)]")
_LOOPBACK_IP = ("127.", "::1")


@rule(
    tier="root",
    severity="error",
    rank=44,
    explains=("task-error",),
    caused_by=("process", "task-error", "worker"),
    looks_for=(
        *_FAILED,
        CONNECT,
        MESH_FRAME,
        LOOPBACK,
        ADDRESSES,
        *MEETING,
        *STORE_LOST,
        *_LOST,
        WAITED,
        *SIGNALS,
        WORKER_EXIT,
        WORKER_DIED,
    ),
)
def rendezvous_failed(case: Case) -> Iterator[Finding]:
    """One finding for all ranks that could not connect, or else one per peer that closed its connection."""
    found = {signal: case.of(signal.kind) for signal in _FAILED}
    best = next((signal for signal in _FAILED if found[signal]), None)
    if same := case.of(ADDRESSES.kind):
        yield _addresses(case, same)
    elif best:
        yield _not_connected(case, best, found)
    elif apart := case.of(MEETING[0].kind):
        yield _apart(case, apart)
    elif evidence.is_console(case):
        closed = evidence.grouped(case.of(CLOSED.kind), lambda e: e["peer"])
        for peer, events in closed.items():
            yield _closed(case, peer, events)
        if not closed and (waited := case.of(WAITED.kind)):
            yield _waited(case, waited)
        elif not closed and (lost := case.of(STORE_LOST[0].kind)):
            yield _store_lost(case, lost)


def _store_lost(case: Case, events: list[Event]) -> Finding:
    """Ranks whose connection to the store of their group ended."""
    first = events[0]
    errors = _task_errors(case, STORE_LOST)
    return Finding(
        f"A rank lost its connection to the store of its process group{_reporters(events)} ({first['what']}): the process of rank 0, "
        "which serves the store, has probably ended",
        (Link(first, "torch cannot reach the store any more"),),
        explains=error_entities(errors),
        caused_by=tuple(_ends_at(case, "")),
        subjects=tuple(_subjects(events)),
        count=max(1, len(_processes(events))),
        severity=_severity(case, errors, events),
        remedies=(_last_lines("the process of rank 0"),),
        covers=(*events, *(e for seen in errors for e in seen.records)),
    )  # fmt: skip


def _severity(case: Case, errors: Sequence[Printed], events: Sequence[Event]) -> Severity | None:
    """A rank's log line is a warning, and so is an exception that the program survived."""
    last = max(events, key=lambda e: e.line)
    survived = not any(e["raised"] for e in events) or evidence.goes_on(case, last)
    return "warning" if survived and not errors else None


# ------------------------------------------------------------------ ranks that could not connect


def _not_connected(case: Case, best: Signal, found: dict[Signal, list[Event]]) -> Finding:
    events = sorted(found[best], key=lambda e: not e["raised"])
    every = [event for signal in _FAILED for event in found[signal]]
    loopback = case.of(LOOPBACK.kind)
    links = [Link(events[0], _shows(best, events[0]))]
    links += [
        Link(event, "Gloo uses the loopback address of this host, which no other node can reach")
        for event in loopback[:1]
        if best is MESH
    ]
    links += [
        Link(found[signal][0], _shows(signal, found[signal][0]))
        for signal in _FAILED
        if signal is not best and found[signal]
    ]
    errors = _task_errors(case, _FAILED)
    return Finding(
        _headline(best, events, bool(loopback)),
        tuple(links[:4]),
        explains=error_entities(errors),
        subjects=tuple(_subjects(every)),
        count=max(1, len(_processes(every))),
        severity=_severity(case, errors, every),
        remedies=tuple(_remedies(events[0], events[0]["host"])),
        covers=(*every, *loopback, *(e for seen in errors for e in seen.records)),
    )


def _apart(case: Case, events: list[Event]) -> Finding:
    """Ranks that waited for rank 0, or for the rank that publishes the address of their group."""
    first = next((e for e in events if e["seconds"] or e["group"]), events[0])
    errors = _task_errors(case, MEETING)
    group = f" of group {first['group']}" if first["group"] else ""
    seconds = first["seconds"] or (f"{int(first['ms']) // 1000}" if first["ms"] else "")
    within, for_ = (f" within {seconds} s", f" for {seconds} s") if seconds else ("", "")
    what = (
        "Node 0 of SGLang did not send its workers' ports in time"
        if first["node"]
        else f"A rank{group} did not meet rank 0{within}: the others did not join, or ended before"
    )
    if first["world"]:
        what = f"Only {first['joined']} of {first['world']} processes joined the process group"
    elif first["key"]:
        what = f"A rank waited{for_} in vain for another rank to write {first['key']} to the store of the process group"
    return Finding(
        f"{what}{_reporters(events)}",
        (Link(first, "the rank stops waiting for the first one"),),
        explains=error_entities(errors),
        subjects=tuple(_subjects(events)),
        count=max(1, len(_processes(events))),
        severity=_severity(case, errors, events),
        remedies=(
            Remedy(
                "Check that the node starts, and that the others reach it at --dist-init-addr"
                if first["node"]
                else "Check that every rank creates the group, with the same name, world size and backend, and that rank 0 is alive",
                (
                    "nc -vz HEAD 20000   # from the other nodes. HEAD and 20000: host and port of --dist-init-addr"
                    if first["node"]
                    else "ray list actors --detail   # state and death_cause of each rank",
                ),
            ),
            *_remedies(first, ""),
        ),
        covers=(*events, *(e for seen in errors for e in seen.records)),
    )  # fmt: skip


def _shows(signal: Signal, event: Event) -> str:
    if signal is INTERFACE:
        return f"Gloo found no address for {event['interface']}"
    if signal is MESH:
        return "Gloo could not connect this rank to all others"
    if signal is CLIENTS:
        return f"rank 0 saw {event['joined']} of {event['world']} processes"
    return f"torch could not connect to {event['host']} port {event['port']}"


def _headline(best: Signal, events: Sequence[Event], loopback: bool) -> str:
    first = events[0]
    if best is INTERFACE:
        return f"Gloo could not start{_reporters(events)}: the interface or host name {first['interface']} has no address on that node"
    if best is CLIENTS:
        return (
            f"Only {first['joined']} of {first['world']} processes joined the torch process group "
            f"within {first['seconds']} s"
        )
    if best is MESH:
        return f"The ranks of a Gloo group could not connect to each other{_reporters(events)}{_mesh_reason(events, loopback)}"
    target = f"rank 0 at {first['host']} port {first['port']}"
    if best is NO_ADDRESS:
        return f"torch could not connect to {target}{_reporters(events)}: no address of that host accepts the connection"
    return (
        f"torch could not connect to {target} within {_duration(first['time'])}{_reporters(events)}"
    )


def _mesh_reason(events: Sequence[Event], loopback: bool) -> str:
    text = next((e["what"] for e in events if _REMOTE.search(e["what"])), "")
    remote, error = _REMOTE.search(text), _ERRNO.search(text)
    why = f" ({error['error'].lower()})" if error else ""
    if remote and remote["ip"].startswith(_LOOPBACK_IP):
        return f": a rank received the loopback address {remote['ip']} port {remote['port']}{why}"
    if loopback:
        return ": a host name resolves to no address of its node, so Gloo used the loopback address"
    return f": {remote['ip']} port {remote['port']} did not accept{why}" if remote else ""


def _duration(time: str) -> str:
    milliseconds = time.removesuffix("ms").strip()
    if milliseconds != time and milliseconds.isdecimal():
        return f"{int(milliseconds) / 1000:g} s"
    seconds = time.removesuffix("s").strip()
    return f"{seconds} s" if seconds.isdecimal() else time


def _processes(events: Sequence[Event]) -> set[tuple[str, int | None]]:
    return {(event["ip"], event.pid) for event in events}


def _reporters(events: Sequence[Event]) -> str:
    """The ranks that report it, or the number of processes."""
    ranks = sorted({int(m["a"] or m["b"]) for e in events if (m := _RANK.search(e.text))})
    if ranks:
        return f" (rank{'s' if len(ranks) > 1 else ''} {evidence.join_names(map(str, ranks), most=6)})"  # fmt: skip
    many = len(_processes(events))
    return f" ({many} processes)" if many > 1 else ""


def _subjects(events: Sequence[Event]) -> Iterator[Subject]:
    seen: set[tuple[str, int | None]] = set()
    for event in events:
        key = (event["ip"], event.pid)
        if event.pid is not None and key not in seen and len(seen) < 10:
            seen.add(key)
            yield Subject("worker", evidence.worker_of(event) or None, None, event.pid)


def _task_errors(case: Case, signals: Sequence[Signal]) -> list[Printed]:
    """Failures of tasks whose exception is one of these."""
    return [
        seen
        for seen in (*failures(case), *constructors(case))
        if (raised := seen.failure.raised)
        and any(s.find in raised.message and s.regex.search(raised.message) for s in signals)
    ]


# ------------------------------------------------------------------ addresses of nodes


def _addresses(case: Case, events: list[Event]) -> Finding:
    first = events[0]
    nodes, ips = int(first["nodes"]), int(first["ips"])
    listed = evidence.join_names(part.strip(" '\"") for part in first["addresses"].split(","))
    why = (
        "several nodes report the same address"
        if ips < nodes
        else "a process uses an address that is not its node's"
    )
    errors = _task_errors(case, (ADDRESSES,))
    return Finding(
        f"vLLM counts {evidence.many(nodes, 'node')} but {evidence.many(ips, 'address', 'addresses')} ({listed}): {why}",
        (Link(first, "vLLM compares the addresses of its workers and its driver"),),
        explains=tuple(dict.fromkeys(error_entity(seen) for seen in errors)),
        subjects=tuple(_subjects(events)),
        remedies=(
            Remedy(
                "Give each node its own address, the one that Ray uses, before `ray start` on that node",
                (
                    "export VLLM_HOST_IP=ADDRESS_OF_THIS_NODE   # not the same value on all nodes, e.g. of a shared image",
                    "ray start --address=HEAD:6379 --node-ip-address=$VLLM_HOST_IP",
                    "env | grep VLLM_HOST_IP; ip -br addr   # on each node, and in the shell of the driver",
                ),
                risk="disruptive",
                doc=_DOC,
            ),
        ),
        covers=(*events, *(e for seen in errors for e in (seen.event, *seen.inside))),
    )


# ------------------------------------------------------------------ a peer that closed its connection


def _closed(case: Case, peer: str, events: list[Event]) -> Finding:
    events = sorted(events, key=lambda e: not e["raised"])
    errors = _task_errors(case, _LOST)
    errors = [seen for seen in errors if f"[{peer}]" in str(seen.failure.raised)]
    return Finding(
        f"The process at {peer} port {events[0]['port']} closed its Gloo connection{_reporters(events)}, "
        "probably because that process exited",
        (Link(events[0], "a rank lost the connection to this peer"),),
        explains=error_entities(errors),
        caused_by=tuple(_ends_at(case, peer)),
        subjects=tuple(_subjects(events)),
        count=max(1, len(_processes(events))),
        severity=_severity(case, errors, events),
        remedies=(_last_lines("the peer", peer),),
        covers=(*events, *(e for seen in errors for e in seen.records)),
    )  # fmt: skip


def _last_lines(of: str, ip: str = "") -> Remedy:
    """How to find why a process ended, of which the address may be known."""
    return Remedy(
        f"Find out why {of} ended: its last log lines contain the cause",
        (
            paste.shell(
                "ray list workers --detail --filter is_alive=False --filter ip={ip:address}", ip=ip
            )
            if ip
            else "ray list workers --detail --filter is_alive=False",
            "less /tmp/ray/session_latest/logs/worker-*.err   # of the process that ended first",
        ),
        doc=_DOC,
    )


def _waited(case: Case, events: list[Event]) -> Finding:
    """A rank that waited for another one until the time limit of the group."""
    events = sorted(events, key=lambda e: not e["raised"])
    first = events[0]
    errors = _task_errors(case, (WAITED,))
    what = "data from" if first["what"] == "recv" else "a receiver in"
    return Finding(
        f"A rank waited {_duration(first['time'])} for {what} another rank in vain{_reporters(events)}: "
        "that rank is hung, too slow, or has ended",
        (Link(first, "Gloo stops waiting for the other rank"),),
        explains=error_entities(errors),
        caused_by=tuple(_ends_at(case, "")),
        subjects=tuple(_subjects(events)),
        count=max(1, len(_processes(events))),
        severity=_severity(case, errors, events),
        remedies=(
            Remedy(
                "Compare the stacks of all ranks while they wait: the one that differs is behind",
                ("pgrep -f 'ray::|VLLM::|sglang::' | xargs -n1 py-spy dump --pid   # on each node",),
                finds_cause=True,
            ),
            Remedy(
                "If a rank needs longer between two operations, raise the time limit of the group",
                ("dist.init_process_group('gloo', timeout=datetime.timedelta(hours=2))   # in every rank",),
                doc=_DOC,
            ),
        ),
        covers=(*events, *(e for seen in errors for e in seen.records)),
    )  # fmt: skip


def _ends_at(case: Case, peer: str) -> Iterator[Entity]:
    """Exits of processes that may be the peer (empty: any), and exceptions of tasks other than a lost peer."""
    is_any = not peer or peer.startswith(_LOOPBACK_IP)
    for exit_ in case.exits:
        if is_any or exit_.ip in ("", peer):
            yield from exit_.entities
    for seen in failures(case):
        raised = seen.failure.raised
        is_other = raised and not any(
            s.find in raised.message for s in (*_LOST, WAITED, *STORE_LOST)
        )
        if raised and is_other and not raised.is_rays_own:
            yield error_entity(seen)


# ------------------------------------------------------------------ remedies


def _remedies(event: Event, host: str) -> Iterator[Remedy]:
    if host:
        yield Remedy(
            "Test the connection from the node that reports the timeout, while rank 0 waits",
            (
                paste.shell(
                    "nc -vz {host:address} {port:number}", host=host, port=int(event["port"])
                ),
                "getent hosts $(hostname)   # on the node of rank 0: must not be 127.0.0.1 or 127.0.1.1",
                "env | grep -E 'MASTER_ADDR|VLLM_HOST_IP|_SOCKET_IFNAME'   # on each node",
            ),
            doc=_DOC,
        )
    else:
        yield Remedy(
            "Compare the addresses that the nodes use",
            (
                "getent hosts $(hostname); ip -br addr   # on each node",
                "env | grep -E 'VLLM_HOST_IP|_SOCKET_IFNAME'   # on each node: the interface must exist there",
            ),
            doc=_DOC,
        )
    yield Remedy(
        "Set the interface between the nodes, and restart Ray",
        (
            "export GLOO_SOCKET_IFNAME=eth0 NCCL_SOCKET_IFNAME=eth0   # on every node, before ray start",
            'ray.init(runtime_env={"env_vars": {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0"}})   # or per job',
        ),
        risk="disruptive",
        doc=_DOC,
    )


# ------------------------------------------------------------------ examples

_ECHO = "(RayWorkerWrapper pid=1890, ip=10.0.0.3)"
_VLLM = "ERROR 11-21 07:34:14 [worker_base.py:620]"
_PLACE = "/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc"
_TASK = (
    "Traceback (most recent call last):\nray.exceptions.RayTaskError(RuntimeError): ray::Ranks.join() (pid=389, ip=10.0.0.2, "
    "actor_id=7dbdc85090b37cd39fb9e77001000000, repr=<ranks.Ranks object>)\n"
    '  File "/app/ranks.py", line 49, in join\n    {call}\n{error}\n'
)

EXAMPLES: tuple[Example, ...] = (
    *(
        console(
            f"rank 0 closes the store of the group: {signal.find}",
            f'Traceback (most recent call last):\n  File "/app/train.py", line 3, in <module>\n    main()\n{signal.sample}\n',
            says=(
                "lost its connection to the store",
                "the process of rank 0, which serves the store",
            ),
        )
        for signal in STORE_LOST
    ),
    *(
        console(
            f"ranks do not meet in the store of torch: {signal.find}",
            f'Traceback (most recent call last):\n  File "/app/train.py", line 3, in <module>\n    main()\n{signal.sample}\n',
            says=(says,),
        )
        for signal, says in zip(
            MEETING[-2:],
            (
                "Only 1 of 2 processes joined",
                "waited for 600 s in vain for another rank to write /default_pg/0//cuda//0",
            ),
            strict=True,
        )
    ),
    console(
        "rank 0 ends first at a normal end, and torch warns",
        "[rank1]:[W1121 07:34:12.123 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=96, addr=[n1]:60368, remote=[n0]:29500): "
        "failed to recv, got 0 bytes\n",
    ),
    console(
        "a rank of ray.util.collective waits in vain for the first one",
        'Traceback (most recent call last):\n  File "/app/train.py", line 3, in <module>\n    main()\n'
        f"{MEETING[1].sample}\n",
        says=("did not meet rank 0 within 180 s", "ray list actors"),
    ),
    console(
        "a second node of SGLang waits in vain for the first one",
        'Traceback (most recent call last):\n  File "/app/serve.py", line 3, in <module>\n    main()\n'
        f"{MEETING[3].sample}\n",
        says=("Node 0 of SGLang", "--dist-init-addr"),
    ),
    console(
        "a program quotes the error of a rank, and continues",
        f"retry after {MEETING[2].sample}\nloss 0.1\n",
    ),
    console(
        "a host name resolves to the loopback address, and vLLM's ranks do not connect",
        f"{_ECHO} {LOOPBACK.sample}\n"
        f"{_ECHO} {_VLLM} RuntimeError: Gloo connectFullMesh failed with [{_PLACE}:152] timed out connecting: SO_ERROR: "
        "Connection refused, remote=[127.0.0.1]:14215 (rank=8, size=16, local=[127.0.0.1])\n",
        says=("rank 8", "loopback address 127.0.0.1", "connection refused", "GLOO_SOCKET_IFNAME"),
        is_typical=True,
    ),
    console(
        "rank 0 cannot be reached",
        f"{_ECHO} [E socket.cpp:957] [c10d] {TIMED_OUT.sample.partition(': ')[2]}\n{_ECHO} {_VLLM} {TIMED_OUT.sample}\n",
        says=("10.0.0.2 port 29502", "within 60 s", "nc -vz 10.0.0.2 29502"),
    ),
    console(
        "GLOO_SOCKET_IFNAME names an interface that the node lacks",
        _TASK.format(call='dist.init_process_group("gloo")', error=INTERFACE.sample),
        logs=QUIET_LOGS,
        says=("ib7 has no address", "ip -br addr"),
    ),
    console(
        "one of two processes never joins",
        _TASK.format(call="start()", error=CLIENTS.sample),
        says=("Only 1 of 2 processes", "601 s"),
    ),
    console(
        "a peer closes its connection, for an unknown reason",
        f"{_ECHO} {CLOSED.sample}\n",
        says=("10.0.0.3 port 41677", "probably because that process exited"),
    ),
    Example(
        "a method of vLLM's worker reads from a peer that is gone",
        {
            "driver.log": "".join(
                f"{_ECHO} ERROR 11-21 07:34:14 worker_base.py:348] {line}\n"
                for line in (
                    METHOD_FAILED.sample,
                    "Traceback (most recent call last):",
                    '  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2144, in broadcast',
                    "    work.wait()",
                    RESET.sample,
                )
            )
        },
        roots=("rendezvous-failed",),
        says=("10.0.0.3 port 41677",),
    ),
    console(
        "a task raises, and the other rank loses its peer",
        _TASK.format(call="float(row)", error="ValueError: not a number: 'n/a'")
        + f"{_ECHO} {CLOSED.sample}\n",
        roots=("task-exception",),
        consequences=("rendezvous-failed",),
    ),
    console(
        "a worker dies, and the other rank loses its peer",
        f"(raylet) {WORKER_DIED.sample.replace('127.0.0.1', '10.0.0.3')}\n{_ECHO} {CLOSED.sample}\n",
        roots=("worker-vanished",),
        consequences=("rendezvous-failed",),
    ),
    console(
        "all ranks are on one node, and Gloo only warns",
        f"{_ECHO} {LOOPBACK.sample}\n",
    ),
    console(
        "a program quotes the words",
        "retrying: last time Gloo connectFullMesh failed with no error\n"
        "note: The client socket has timed out after a minute, as in the README\n"
        "nginx: Connection closed by peer [10.0.0.3]\n",
    ),
    console(
        "vLLM on two nodes that report one address",
        f"(EngineCore_DP0 pid=1890) ERROR 11-21 07:34:12 [core.py:845] {ADDRESSES.sample}\n",
        says=("2 nodes but 1 address (10.0.0.3)", "VLLM_HOST_IP"),
    ),
    console(
        "a program that names the rule",
        "note: Every node should have a unique IP address.\nstep 1\n",
    ),
    console(
        "a console that ends with the C++ stack",
        f"{MESH_FRAME.sample}\n",
        roots=("rendezvous-failed",),
    ),
    console(
        "the same in a program that connects again",
        f"{MESH_FRAME.sample}\nretrying process group; connected\nepoch 1\n",
        severity="warning",
    ),
    console(
        "an older Gloo is refused at the loopback address of another node",
        f"{CONNECT.sample}\n",
        says=("a rank received the loopback address 127.0.0.1 port 14221 (connection refused)",),
    ),
    console(
        "a program whose own client is refused",
        "RuntimeError: [client.cc:799] connect [127.0.0.1]:14221: Connection refused\n",
        roots=("job-failed",),
    ),
    console(
        "a rank waits for data until the time limit",
        f"{_ECHO} {_VLLM} {METHOD_FAILED.sample}\n"
        + "".join(
            f"{_ECHO} {_VLLM} {line}\n"
            for line in (
                "Traceback (most recent call last):",
                '  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 5237, in barrier',
                "    work.wait()",
                WAITED.sample,
            )
        ),
        says=("waited 1800 s for data from another rank in vain", "py-spy dump"),
    ),
    console(
        "a task raises, and the other rank waits for it",
        _TASK.format(call="float(row)", error="ValueError: not a number: 'n/a'")
        + f"{_ECHO} {WAITED.sample}\n",
        roots=("task-exception",),
        consequences=("rendezvous-failed",),
    ),
    console(
        "a console breaks the line",
        "".join(f"{part}\n" for part in WAITED.sample.partition("Timed out")[::2]).replace(
            " waiting", "Timed out waiting"
        ),
        severity="warning",
        says=("for data from another rank",),
    ),
    console(
        "a program's own words",
        "(load pid=12) note: Timed out waiting 30ms for recv operation to complete, next\n",
    ),
)

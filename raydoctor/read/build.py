"""A capture -> a case: the scan, clocks, twins, and the tasks of dead workers.

A capture may contain files (of this machine, for example) and readings that other nodes made of theirs. Facts
that need all nodes (which workers died, which processes waited, which errors belong to another cluster) are
determined after the events of all nodes are merged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from raydoctor.capture.open import Capture
from raydoctor.case.case import Case, order
from raydoctor.case.rule import Signal
from raydoctor.model import paste
from raydoctor.model.patterns import pattern
from raydoctor.model.text import short_id
from raydoctor.model.timeline import OwnRecords
from raydoctor.model.values import Event, Gap, Source
from raydoctor.read import (
    coverage,
    dumps,
    ending,
    foreign,
    live,
    slurm,
    stacks,
    structured,
)
from raydoctor.read.clock import NodeClocks, as_utc, instant
from raydoctor.read.detail import silence
from raydoctor.read.index import DRIVERS, index_of
from raydoctor.read.keep import Draft
from raydoctor.read.scan import finish, scan

if TYPE_CHECKING:
    from raydoctor.read.portable import NodeReading

_NAME_LINES = (":task_name:", ":actor_name:")
_NAMES_HEAD = 4096
_NAMES_TAIL = 64 << 10
_KEPT_NAMES = 20
_MOST_NAMES = 5000
"""Workers whose task names a node reports without knowing whether they died."""
_NAMED = frozenset(
    (
        "worker.exit",
        "worker.died",
        "worker.disconnected",
        "actor.failed",
        "worker.calls",
        "stack.printed",
        "debugger.open",
        "data.stale_calls",
        "debugger.waits",
        "async.blocking_get",
        "async.slow_step",
    )
)
"""Kinds of events about workers whose tasks matter to a diagnosis."""

_FAILED_IN = pattern(r"ray::[^\n]{1,300}?\(\) \(pid=(?P<pid>\d{1,9}),")


@dataclass(frozen=True, slots=True)
class Reading:
    """A case, with the gaps and the number of hits of reading it."""

    case: Case
    gaps: tuple[Gap, ...]
    hits: int
    is_complete: bool = False
    """Whether the GCS's and every raylet's log was read without a gap."""
    own_records: Mapping[str, OwnRecords] = field(default_factory=dict)
    """WorkerID -> when it wrote its own logs, if a chart needs it."""


@dataclass(slots=True)
class _Read:
    """The events of the files of this machine."""

    events: list[Event]
    clock: NodeClocks
    hits: int
    gaps: list[Gap] = field(default_factory=list)


def read(capture: Capture, signals: Iterable[Signal], with_usage: bool = False) -> Reading:
    """Read a capture once; `with_usage`: with what only charts show (`read/detail`)."""
    files = capture.files
    signals = list(signals)
    own = _read(capture, signals)
    others = _readings(files, own.gaps, signals)
    events = own.events + [event for other in others for event in other.events]
    events += in_order(dumps.read(files, events, own.clock, own.gaps))
    events += silence.read(files, events, own.clock)
    own_records: dict[str, OwnRecords] = {}
    if with_usage:
        from raydoctor.read.detail import spans, usage

        events += usage.read(files, own.clock, own.gaps)
        own_records = spans.read(files, own.clock)
    sources = (*capture.sources, *(source for other in others for source in other.sources))
    events, elsewhere = foreign.without_foreign(sorted(events, key=order), sources)
    dead = _dead(events)
    names = {worker: ran for other in others for worker, ran in other.names.items()}
    names = {worker: ran for worker, ran in names.items() if worker in dead}
    names.update(_names(_outputs(files, dead | _raised_in(events, files))))
    endings = in_order([*ending.read(files, own.gaps), *ending.of_workers(files, dead)])
    endings += [e for other in others for e in other.endings]
    gaps = [*own.gaps, *(gap for other in others for gap in other.gaps)]
    gaps += _missing_logs(sources, events)
    # Text of another cluster in a program's output leaves Ray's own logs complete.
    is_complete = all(gap.optional for gap in (*capture.gaps, *gaps))
    gaps += elsewhere
    hits = own.hits + sum(other.hits for other in others)
    is_known = own.clock.offset("") is not None or any(other.has_zone for other in others)
    has_zone = is_known or _are_utc(events) or capture.kind == "live"
    case = Case(events, sources, names, endings, has_zone)
    case.is_packed = capture.kind == "archive"
    return Reading(case, tuple(gaps), hits, is_complete, own_records)


def _are_utc(events: list[Event]) -> bool:
    """Whether all times are those of Kubernetes."""
    return bool(events) and all(e.kind.startswith("kube.") for e in events if e.at is not None)


def read_node(capture: Capture, signals: Iterable[Signal]) -> NodeReading:
    """Read one node's files, for a diagnosis that merges several nodes.

    The GCS, which records deaths, may be on another node, so the names of living workers are included.
    """
    from raydoctor.read.portable import NodeReading

    files = capture.files
    own = _read(capture, list(signals))
    own.events += in_order(dumps.read(files, own.events, own.clock, own.gaps))
    dead = _dead(own.events)
    endings = in_order([*ending.read(files, own.gaps), *ending.of_workers(files, dead)])
    names = _names(_outputs(files, dead | _raised_in(own.events, files)))
    names.update(_names(islice(_outputs(files), _MOST_NAMES)))
    return NodeReading(
        tuple(sorted(own.events, key=order)),
        capture.sources,
        names,
        tuple(endings),
        (*capture.gaps, *own.gaps),
        own.hits,
        own.clock.offset("") is not None,
    )


def _readings(
    files: Mapping[Source, str], gaps: list[Gap], signals: list[Signal]
) -> list[NodeReading]:
    """The readings of other nodes, which few captures contain."""
    if all(source.role != "reading" for source in files):
        return []
    from raydoctor.read import portable

    return portable.read(files, gaps, signals)


def _read(capture: Capture, signals: list[Signal]) -> _Read:
    files = capture.files
    result = scan(_searched(files, index_of(tuple(signals)).roles), signals, capture.report)
    _learn_clock(result.drafts, result.clock)
    _learn_zones(files, result.clock)
    pods = _kubernetes(files, result.gaps)
    _learn_from_pods(result.drafts, pods, result.clock)
    events = merge_twins(finish(result.drafts, result.clock)) + pods
    events += structured.read(files, result.gaps)
    events += stacks.read(files, result.gaps)
    events += live.of_capture(capture, result.gaps)
    events += slurm.read(files, result.gaps, result.clock)
    result.gaps += coverage.gaps_of(files)
    return _Read(in_order(events), result.clock, result.hits, result.gaps)


def in_order(events: Iterable[Event]) -> list[Event]:
    """The events with places for lines, so that rules can compare lines of one console."""
    return [
        replace(event, line=event.source.place(event.line)) if event.source.places else event
        for event in events
    ]


def _searched(files: dict[Source, str], roles: Set[str]) -> dict[Source, str]:
    """The files that may contain a signal; the others are not read."""
    return {s: f for s, f in files.items() if s.role in roles or s.role in DRIVERS}


def _learn_clock(drafts: list[Draft], clock: NodeClocks) -> None:
    """Learn offsets from deaths in both event files (epoch seconds) and logs (local timestamps)."""
    epochs = {
        death: draft.head.epoch
        for draft in drafts
        if draft.source.role == "event" and draft.head.epoch and (death := _death(draft))
    }
    for draft in drafts:
        death = _death(draft)
        epoch = epochs.get(death) if death else None
        if epoch and draft.head.stamp and draft.source.role == "gcs-out":
            clock.learn(draft.source.node, draft.head.stamp, epoch)


_LONGEST_ZONE = 1000
"""Bytes of `{"offset": "+01:00", "value": "Europe/Amsterdam"}`, with room."""


def _learn_zones(files: Mapping[Source, str], clock: NodeClocks) -> None:
    """Learn the offset that the dashboard of a dead cluster reported to a KubeRay History Server."""
    for source, file in files.items():
        if source.role == "time-zone":
            with suppress(OSError, ValueError, RecursionError), open(file, "rb") as stream:
                data = json.loads(stream.read(_LONGEST_ZONE))
                if isinstance(data, dict):
                    clock.learn_zone(source.node, str(data.get("offset")))


def _kubernetes(files: Mapping[Source, str], gaps: list[Gap]) -> list[Event]:
    """The facts of Kubernetes, which few captures contain."""
    if all(source.role != "kubernetes" for source in files):
        return []
    from raydoctor.read.kubernetes import files as kubernetes

    return kubernetes.read(files, gaps)


_STARTS_WITHIN = 300.0
"""Seconds from the start of a container to that of its raylet."""


def _learn_from_pods(drafts: list[Draft], pods: list[Event], clock: NodeClocks) -> None:
    """Learn offsets from the starts of containers (UTC) and of their raylets (local time of the image)."""
    begun: dict[str, list[float]] = {}
    for event in pods:
        if event.kind == "kube.container" and (at := instant(event["began"])) is not None:
            begun.setdefault(event["ip"], []).append(at)
    for draft in drafts:
        stamp = draft.head.stamp
        if draft.signal.kind != "raylet.started" or not stamp or (local := as_utc(stamp)) is None:
            continue
        for at in begun.get(draft.fields.get("ip", ""), ()):
            if (local - at) % 900 <= _STARTS_WITHIN:
                clock.learn(draft.source.node, stamp, at)


def _death(draft: Draft) -> tuple[str, str] | None:
    """The worker, or the node without heartbeats, whose death a record reports."""
    if draft.signal.kind in ("worker.exit", "worker.died") and draft.fields.get("worker"):
        return ("worker", draft.fields["worker"])
    if draft.signal.kind == "node.dead" and draft.fields.get("node"):
        return ("node", draft.fields["node"])
    return None


def merge_twins(events: Iterable[Event]) -> list[Event]:
    """One event for a record that `.out` and `.err` (or two captures of one file) both hold.

    Ray's C++ writes E and C records to both; the header (time, pid) and text are equal.
    """
    merged: dict[tuple[str, str, float, int | None, str], Event] = {}
    untimed: list[Event] = []
    for event in sorted(events, key=_prefer_out):
        if event.at is None or not event.source.role.endswith(("-out", "-err")):
            untimed.append(event)
            continue
        key = (event.kind, event.source.node, event.at, event.pid, event.message[:300])
        first = merged.get(key)
        if first is None or first.source.path == event.source.path:
            merged[(*key[:4], f"{key[4]}#{event.line}") if first else key] = event
        else:
            merged[key] = replace(
                first, sightings=(*first.sightings, event), count=max(first.count, event.count)
            )
    return sorted([*merged.values(), *untimed], key=order)


def _prefer_out(event: Event) -> tuple[bool, str, int]:
    return (event.source.role.endswith("-err"), event.source.path, event.line)


def _dead(events: Iterable[Event]) -> set[str]:
    """Workers whose tasks matter to a diagnosis."""
    return {
        e.value
        for event in events
        if event.kind in _NAMED
        for e in event.entities
        if e.kind == "worker"
    }


def _raised_in(events: Iterable[Event], sources: Iterable[Source]) -> set[str]:
    """Workers whose tasks raised an exception: an earlier task may have left something behind."""
    pids = {
        int(found["pid"])
        for event in events
        if event.kind in ("driver.exception", "task.error_text")
        and (found := _FAILED_IN.search(event.message))
    }
    return {
        source.entities[0].value
        for source in sources
        if source.role == "worker-out" and source.entities and source.pid in pids
    }


def _outputs(
    files: Mapping[Source, str], workers: set[str] | None = None
) -> Iterator[tuple[str, str]]:
    """(worker, file) for the `.out` of these workers, or of any."""
    outputs = [
        (len(source.path), source.path, source.entities[0].value, file)
        for source, file in files.items()
        if source.role == "worker-out"
        and source.entities
        and (workers is None or source.entities[0].value in workers)
    ]
    # The shorter path first: the live file before its rotations and before `old/`.
    for _, _, worker, file in sorted(outputs):
        yield worker, file


def _names(outputs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """The tasks of each worker, from the magic lines of its `.out`."""
    names: dict[str, tuple[str, ...]] = {}
    for worker, file in outputs:
        if worker not in names and (found := _magic_names(file)):
            names[worker] = found
    return names


def _magic_names(file: str) -> tuple[str, ...]:
    try:
        with open(file, "rb") as stream:
            data = stream.read(_NAMES_HEAD)
            stream.seek(0, 2)
            if stream.tell() > _NAMES_HEAD:
                stream.seek(max(_NAMES_HEAD, stream.tell() - _NAMES_TAIL))
                data += b"\n" + stream.read(_NAMES_TAIL)
    except OSError:
        return ()
    lines = data.decode("utf-8", "replace").splitlines()
    found = [line.rpartition(":")[2] for line in lines if line.startswith(_NAME_LINES)]
    return tuple(dict.fromkeys(reversed(found[-_KEPT_NAMES:])))[::-1]


def _missing_logs(sources: tuple[Source, ...], events: list[Event]) -> list[Gap]:
    """Logs that every session has and this capture lacks."""
    roles = {source.role for source in sources if not source.is_excerpt}
    gaps = []
    if not roles & {"gcs-out"}:
        gaps.append(
            Gap(
                "gcs_server.out",
                "missing. The GCS log records worker exits and the deaths of actors and nodes",
                "Copy /tmp/ray/session_latest/logs/gcs_server.out from the head into the folder "
                "with the logs, and diagnose that folder.",
                about="gcs-out",
            )
        )
    if not roles & {"raylet-out"}:
        gaps.append(
            Gap(
                "raylet.out",
                "missing. The raylets' logs record OOM kills, full disks and scheduling problems",
                "Copy /tmp/ray/session_latest/logs from each node, one folder per node, and diagnose "
                "the folder above.",
                about="raylet-out",
            )
        )
        return gaps
    started = {event["node"] for event in events if event.kind == "raylet.started"}
    for event in events:
        if event.kind == "node.registered" and started and event["node"] not in started:
            started.add(event["node"])
            gaps.append(
                Gap(
                    f"raylet.out of node {short_id(event['node'])} ({event['ip']})",
                    "the logs of that node are missing from the capture",
                    paste.text(
                        "Copy /tmp/ray/session_latest/logs from {node} into a folder beside those of the "
                        "other nodes, and diagnose the folder above.",
                        node=event["ip"],
                    ),
                )
            )
    return gaps

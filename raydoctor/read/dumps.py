"""Reads the last state tables of raylets and workers if a process waited without success.

Ray's C++ processes print a table of their own state every minute (`event_stats_print_interval_ms`). A
raylet's `[state-dump]` lists the queued tasks and the holders of resources. A worker's `Event stats:` count
the calls that it serves (`grpc_server.PushTask`), the calls that it awaits (`grpc_client.PushTask`) and the
workers that it requested (`grpc_client.RequestWorkerLease`). Two tables with equal counts prove that nothing
progressed between them. Observed in logs of Ray 2.9.3, 2.40, 2.50 and 2.60.

Every healthy worker prints such tables, so they are not signals. Only the ends of files are read, and only if
an event shows that a process waits, or (for fewer files) if the capture has no driver's output.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from raydoctor.model import ids
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Gap, Source
from raydoctor.read.clock import NodeClocks
from raydoctor.read.records import parse_line
from raydoctor.read.structured import drop_damaged_counts

_TAIL = 256 << 10
_HEAD = 64 << 10
_MOST_FILES, _MOST_WITHOUT_WAIT = 2000, 300
_WAITERS = ("driver.interrupted", "request.starved", "task.cancel_running")
"""Kinds of events that show a wait, in addition to a `GetTimeoutError` and a queue in debug_state.txt."""


def read(
    files: dict[Source, str], events: Iterable[Event], clock: NodeClocks, gaps: list[Gap]
) -> list[Event]:
    """The last states of raylets and workers, if a process waited or the capture has no driver's output."""
    waits = any(_is_wait(event) for event in events)
    if not waits and any(source.role in ("driver", "job-driver") for source in files):
        return []
    most = _MOST_FILES if waits else _MOST_WITHOUT_WAIT
    found: list[Event] = []
    for log in sorted(_logs(files), key=lambda log: log[0][0].path)[:most]:
        read_one = _raylet_dump if log[0][0].role == "raylet-out" else _worker_calls
        try:
            found += read_one(log, clock)
        except OSError as error:
            gaps.append(Gap(log[0][0].path, f"could not be read: {error.strerror}"))
    return found


_Log = list[tuple[Source, str]]
"""The files of one log: several if it was rotated."""


def _logs(files: dict[Source, str]) -> Iterable[_Log]:
    """A raylet's files one by one, a worker's together."""
    logs: dict[tuple[str, object], _Log] = {}
    for source, file in files.items():
        if source.role == "raylet-out":
            logs[(source.node, source)] = [(source, file)]
        elif source.role == "core-worker":
            logs.setdefault((source.node, source.entities), []).append((source, file))
    return [sorted(log, key=lambda item: item[0].path) for log in logs.values()]


def _is_wait(event: Event) -> bool:
    if event.kind == "driver.exception":
        return "GetTimeoutError" in (event["type"], event["inner"])
    if event.kind == "debug.state":
        return event["num_waiting_for_resource"] not in ("", "0")
    return event.kind in _WAITERS


@dataclass(slots=True)
class _Block:
    """One record of several lines, and its location."""

    stamp: str
    pid: int | None
    line: int
    """Number of its first line, counted from the start of the last part of the file."""
    offset: int
    rows: list[str] = field(default_factory=list)
    is_json: bool = False
    """Whether all rows are in one line (`RAY_BACKEND_LOG_JSON=1`)."""


def _blocks(file: str, opening: re.Pattern[str]) -> Iterator[_Block]:
    """The records at the end of a file that begin with a matching line."""
    start, text = _end_of(file)
    block: _Block | None = None
    offset = start
    for number, raw in enumerate(text.splitlines(keepends=True), 1):
        if raw.startswith(("[", "{")):
            line = parse_line(raw)
            if line.headed:
                if block:
                    yield block
                block = None
                if opening.search(line.message.partition("\n")[0]):
                    block = _Block(line.stamp, line.pid, number, offset)
                    if raw.startswith("{"):
                        block.is_json = True
                        block.rows = line.message.splitlines()
        if block and not block.is_json:
            block.rows.append(raw.rstrip("\n"))
        offset += len(raw.encode("utf-8", "surrogateescape"))
    if block:
        yield block


def _end_of(file: str) -> tuple[int, str]:
    """(offset, text) of the last part of a file."""
    with open(file, "rb") as stream:
        start = max(0, os.fstat(stream.fileno()).st_size - _TAIL)
        stream.seek(start)
        return start, stream.read(_TAIL).decode("utf-8", "surrogateescape")


def _lines_before(file: str) -> int:
    """The number of lines before the last part; counted only for reported records."""
    with open(file, "rb") as stream:
        left = max(0, os.fstat(stream.fileno()).st_size - _TAIL)
        count = 0
        while left and (data := stream.read(min(1 << 20, left))):
            count += data.count(b"\n")
            left -= len(data)
        return count


# ---------------------------------------------------------------- raylets

_STATE_DUMP = pattern(r"^(?:\[state-dump\] )?NodeManager:|^\[state-dump\]")
_WAITING = ("num_waiting_for_resource", "infeasible_queue_length", "schedule_queue_length")
_QUEUES = ("Grant queue length:", "Dispatch queue length:", "num_waiting_for_resource:")
"""Rows that count queued requests, those with the total first."""


def _raylet_dump(log: _Log, clock: NodeClocks) -> Iterator[Event]:
    """The last dump with queued requests: later ones were written after the failure."""
    ((source, file),) = log
    for block in reversed(list(_blocks(file, _STATE_DUMP))):
        rows = [row.rpartition("[state-dump]")[2].removeprefix(" ") for row in block.rows]
        fields: dict[str, str] = {}
        for row in rows:
            key, colon, value = row.strip(" -").partition(":")
            if colon and len(key) < 80:
                fields.setdefault(key.strip().lower().replace(" ", "_"), value.strip())
        drop_damaged_counts(fields)
        if not any(fields.get(key, "0") != "0" for key in _WAITING):
            continue
        text = "\n".join(rows)
        fields["node"] = fields.get("node_id", "")
        line, offset, row = _row_to_show(file, block, _QUEUES)
        yield Event(
            "raylet.dump", source, line, offset, row, f"{row}\n{text}"[:20_000],
            clock.epoch(source.node, block.stamp), pid=block.pid, fields=fields,
        )  # fmt: skip
        return


def _row_to_show(file: str, block: _Block, texts: Sequence[str]) -> tuple[int, int, str]:
    """(line, offset, row) of the row to show, which has the first of these texts that the block has."""
    first = block.line + _lines_before(file)
    text = next((each for each in texts if any(each in row for row in block.rows)), None)
    if text is None:
        return first, block.offset, block.rows[0]
    number = next(n for n, row in enumerate(block.rows) if text in row)
    row = block.rows[number].strip()
    if block.is_json:
        return first, block.offset, row
    before = (len(row.encode("utf-8", "surrogateescape")) + 1 for row in block.rows[:number])
    return first + number, block.offset + sum(before), row


# ---------------------------------------------------------------- workers

_STATS = pattern(r"^Event stats:\s*$")
_ROW = pattern(
    r"^\t(?P<what>CoreWorkerService\.grpc_(?:server|client)\.PushTask|"
    r"NodeManagerService\.grpc_client\.RequestWorkerLease|CoreWorker\.HandlePushTask(?:Actor)?) - "
    r"(?P<total>\d{1,20}) total \((?P<active>\d{1,20}) active"
    r"(?:, (?P<running>\d{1,20}) running)?\), "
    r"Execution time: mean = \S+(?: s| ms| us)?, "
    r"total = (?P<took>\d{1,20}(?:\.\d{1,20})?) ?(?P<unit>us|ms|s)\b"
)
_UNANSWERED = re.compile(rb"grpc_server\.PushTask - \d+ total \([1-9]")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_SERVER, _CLIENT = (
    "CoreWorkerService.grpc_server.PushTask",
    "CoreWorkerService.grpc_client.PushTask",
)
_LEASE = "NodeManagerService.grpc_client.RequestWorkerLease"
_PEER = pattern(
    r"received notification on actor, state: \w{1,50}.{0,500}?actor_id(?:: |=)([0-9a-f]{32})"
)
_OWN_ACTOR = pattern(r"Actor creation task finished, task_id: \w{1,100}, actor_id: ([0-9a-f]{32})")
_ASYNC = "Setting actor as asyncio with max_concurrency="


@dataclass(frozen=True, slots=True)
class _Counts:
    """One worker's calls at one moment."""

    server: tuple[int, int] = (0, 0)
    """Calls that reached it: (total, not yet answered)."""
    client: tuple[int, int] = (0, 0)
    leases: tuple[int, int] = (0, 0)
    running: int = 0
    took: float = 0.0
    """Total seconds of the answered calls."""

    @property
    def state(self) -> tuple[tuple[int, int], ...]:
        """The counts that stay equal while nothing progresses."""
        return (self.server, self.client, self.leases)


def _worker_calls(log: _Log, clock: NodeClocks) -> Iterator[Event]:
    """The calls that a worker served and waited for, by its last table; nothing if it was idle."""
    if not any(_serves(file) for _, file in log):
        return
    tables = [(b, source, file) for source, file in log for b in _blocks(file, _STATS)]
    states = [(b, _counts(b), source, file) for b, source, file in tables]
    states.sort(key=lambda one: one[0].stamp)
    if not states or not states[-1][1].server[1]:
        return
    block, last, source, file = states[-1]
    at = clock.epoch(source.node, block.stamp)
    since = at
    for earlier, counts, _, _ in reversed(states):
        if counts.state != last.state:
            break
        since = clock.epoch(source.node, earlier.stamp)
    unmoved = at - since if at is not None and since is not None else 0.0
    fields = {**_fields(last), **_handles(log), "unmoved": f"{unmoved:.0f}"}
    line, offset, row = _row_to_show(file, block, (_SERVER,))
    rows = [row, *(other.strip() for other in block.rows if _ROW.match(other))]
    message = "\n".join(dict.fromkeys(r.partition(", Execution time")[0] for r in rows))
    yield Event(
        "worker.calls", source, line, offset, row, message, at,
        pid=source.pid or block.pid, fields=fields, entities=_entities(source, fields),
    )  # fmt: skip


def _serves(file: str) -> bool:
    """Whether the last table counts an unanswered call; most workers are idle and are skipped."""
    with open(file, "rb") as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL))
        data = stream.read(_TAIL)
    last = _UNANSWERED.search(data, max(0, data.rfind(b"grpc_server.PushTask - ")))
    return last is not None


def _counts(block: _Block) -> _Counts:
    rows = {m["what"]: m for row in block.rows if (m := _ROW.match(row))}
    pairs = {name: (int(m["total"]), int(m["active"])) for name, m in rows.items()}
    handlers = [m for name, m in rows.items() if "HandlePushTask" in name]
    served = rows.get(_SERVER)
    running = sum(int(m["running"] or 0) for m in handlers)
    if not handlers and served:  # older Rays do not count these
        running = min(1, int(served["active"]))
    return _Counts(
        pairs.get(_SERVER, (0, 0)),
        pairs.get(_CLIENT, (0, 0)),
        pairs.get(_LEASE, (0, 0)),
        running,
        float(served["took"]) * _SECONDS[served["unit"]] if served else 0.0,
    )


def _fields(counts: _Counts) -> dict[str, str]:
    done = counts.server[0] - counts.server[1]
    return {
        "serving": str(counts.server[1]),
        "calling": str(counts.client[1]),
        "leases": str(counts.leases[1]),
        "leased": str(counts.leases[0] - counts.leases[1]),
        "running": str(counts.running),
        "done": str(done),
        "mean": f"{counts.took / done:.3f}" if done else "",
    }


def _handles(log: _Log) -> dict[str, str]:
    """The worker's actor and the actors that it calls, from the beginning of its log."""
    text = ""
    for _, file in log:
        with open(file, "rb") as stream:
            text += stream.read(_HEAD).decode("utf-8", "replace") + _end_of(file)[1]
    own = _OWN_ACTOR.search(text)
    return {
        "actor": own[1] if own else "",
        "peers": " ".join(dict.fromkeys(_PEER.findall(text))),
        "async": "1" if _ASYNC in text else "",
    }


def _entities(source: Source, fields: dict[str, str]) -> frozenset[Entity]:
    own = {Entity("actor", fields["actor"])} if fields["actor"] else set()
    job = ids.job_of_actor(fields["actor"])
    return frozenset({*source.entities, *own, *({Entity("job", job)} if job else set())})

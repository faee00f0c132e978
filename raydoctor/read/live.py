"""Tables that a live collection wrote (`live/live-<name>.json`) -> events, one per row.

The event's kind is `live.<name>`. Its fields are those of the row: scalars as text (`None` is empty, booleans
are `true` or `false`), lists and objects as JSON. `cluster/tables.py` converts them back. Each table also
yields one event `live.table` with its name, source, total and number of rows, so that a table without rows
differs from one that was not collected.

A capture may come from anywhere, so its values are made safe here: numbers are finite and in the range of
counters, times and sizes, texts are valid Unicode of bounded length, nesting is shallow. Other values become
null, so that rules see a missing value and never an impossible one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from sys import intern
from typing import TYPE_CHECKING, Any, NamedTuple

from raydoctor.capture.cpu import CpuTimeSpent, cpu_limit
from raydoctor.case.evidence import last_line
from raydoctor.model.text import size
from raydoctor.model.values import Event, Gap, Source
from raydoctor.read import budget
from raydoctor.read.entities import in_fields
from raydoctor.read.records import plausible
from raydoctor.redact import Redactor

if TYPE_CHECKING:
    from raydoctor.capture.open import Capture

_LIMIT = 64 << 20
"""Bytes of one table; a table of ten thousand tasks has about 10 MB."""
_SHOWN = 300
_FRAMES = 4000
"""Characters of the frames of a driver's exception that are shown."""
_LARGEST = float(1 << 63)
"""Upper limit of a 64-bit counter."""
_LONGEST = 1 << 20
"""Characters of one value; the stacks of hundreds of threads are shorter."""
_DEEPEST = 12


def of_capture(capture: Capture, gaps: list[Gap]) -> list[Event]:
    """Events of every table of a capture, without secrets.

    A live collection is already redacted. Tables of a capture may come from another program, and a secret is
    recognized by the structure of its row, which is lost once sentences join and cut values.
    """
    redactor = None if capture.kind == "live" else Redactor(capture.secrets)
    return read(capture.files, gaps, redactor)


def read(
    files: dict[Source, str], gaps: list[Gap], redactor: Redactor | None = None
) -> list[Event]:
    """Events of every table. An unreadable table is a gap, and a damaged row is skipped."""
    events: list[Event] = []
    for source, file in files.items():
        if source.role != "live":
            continue
        try:
            with open(file, "rb") as stream:
                data = stream.read(_LIMIT)
                if stream.read(1):
                    gaps.append(
                        Gap(source.path, f"only its first {size(_LIMIT)} are read", about="table")
                    )
            events += _table(source, _without_secrets(data, redactor) if redactor else data)
        except CpuTimeSpent:
            why = "not read: its secrets were not removed within the time budget"
            gaps.append(Gap(source.path, why, budget.HINT, about="table"))
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "damaged"
            gaps.append(Gap(source.path, f"could not be read: {why}", about="table"))
    return events


def _without_secrets(data: bytes, redactor: Redactor) -> bytes:
    """A table without secrets. Raises CpuTimeSpent for a table that is made to take long."""
    with cpu_limit(budget.of_file(len(data)).seconds):
        return redactor.redact_rows(data)


def _table(source: Source, data: bytes) -> Iterator[Event]:
    head_line, _, rest = data.partition(b"\n")
    head: Any = _row(head_line + b"]}")
    if not isinstance(head, dict) or not isinstance(head.get("table"), str):
        raise ValueError(head_line[:80])
    at = plausible(head.get("at"))
    if at is None:
        raise ValueError(head_line[:80])
    rows = 0
    offset = len(head_line) + 1
    for number, raw in enumerate(rest.split(b"\n"), 2):
        line = raw.removesuffix(b",")
        if line.startswith(b"{") and (row := _row(line)) is not None:
            rows += 1
            place = _RowPlace(source, number, offset)
            yield _event(f"live.{head['table']}", place, row, at)
        offset += len(raw) + 1
    fields = {
        "name": head["table"],
        "from": head.get("from"),
        "total": head.get("total"),
        "rows": rows,
    }
    yield _event("live.table", _RowPlace(source, 1, 0), fields, at)


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return _clean(row) if isinstance(row, dict) else None


def _clean(value: Any, depth: int = 0) -> Any:
    """A value that rules can trust; null for a number out of range or a deeply nested value."""
    if isinstance(value, str):
        return value if value.isascii() and len(value) <= _LONGEST else _clean_text(value)
    if isinstance(value, (int, float)):
        return value if -_LARGEST < value < _LARGEST else None  # no NaN is
    if isinstance(value, (dict, list)) and depth >= _DEEPEST:
        return None
    if isinstance(value, dict):
        return {_clean(name): _clean(each, depth + 1) for name, each in value.items()}
    if isinstance(value, list):
        return [_clean(each, depth + 1) for each in value]
    return value


def _clean_text(text: str) -> str:
    """Without lone surrogates, which JSON can contain but no encoding can represent."""
    return text[:_LONGEST].encode("utf-8", "replace").decode("utf-8")


class _RowPlace(NamedTuple):
    source: Source
    line: int
    offset: int


def _event(kind: str, place: _RowPlace, row: dict[str, Any], at: float) -> Event:
    # Rows of one table have the same keys and many equal values: a third of the memory if they are shared.
    fields = {intern(name): intern(_as_text(value)) for name, value in row.items()}
    pid = fields.get("worker_pid") or fields.get("pid") or ""
    return Event(
        kind,
        *place,
        _shown(row),
        fields.get("message", ""),
        _ended(row) or at,
        pid=int(pid) if pid.isdigit() and pid.isascii() and len(pid) < 11 else None,
        fields=fields,
        entities=in_fields(fields),
    )


def _ended(row: dict[str, Any]) -> float | None:
    """When the task of a row ended; None for other rows."""
    return plausible(row.get("end_time_ms"), 1000)


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"))


def _shown(row: dict[str, Any]) -> str:
    """The row for people: an error's last line or a driver's frames, then `name=train state=RUNNING …`."""
    frames = row.get("exception")
    if isinstance(frames, str) and frames.strip():
        return f"{frames[-_FRAMES:].rstrip()}\n{_shown({**row, 'exception': None})}"
    error = row.get("error_message")
    pairs = [last_line(error)] if isinstance(error, str) and error.strip() else []
    for name, value in row.items():
        if value in (None, "", [], {}) or (
            isinstance(value, (list, dict)) and len(str(value)) > 80
        ):
            continue
        pairs.append(f"{name}={_as_text(value)}")
    line = " ".join(pairs)
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]} …"

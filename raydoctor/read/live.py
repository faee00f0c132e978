"""Tables that a live collection wrote (`live/live-<name>.json`) -> events, one a row.

The event's kind is `live.<name>`; its fields are the row's: scalars as text (`None` is empty, truth is
`true` or `false`), lists and objects as JSON. `cluster/tables.py` turns them back. Each table also gives one
event `live.table` with its name, source, total and number of rows: "no row" and "not looked" differ.

A capture may come from anywhere, so this is where its values are made safe: numbers are finite and of a
range that counters, times and sizes have, texts are valid Unicode of bounded length, nesting is shallow.
What is not becomes null, so that rules see a missing value and never an impossible one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from raydoctor.model.text import size
from raydoctor.model.values import Event, Gap, Source
from raydoctor.read.entities import in_fields
from raydoctor.read.records import plausible
from raydoctor.redact import Redactor

_LIMIT = 64 << 20
"""Bytes of one table: ten thousand tasks have ten."""
_SHOWN = 300
_LARGEST = float(1 << 63)
"""What a counter of 64 bits may hold."""
_LONGEST = 1 << 20
"""Characters of one value: a stack of hundreds of threads is shorter."""
_DEEPEST = 12


def read(
    files: dict[Source, str], gaps: list[Gap], redactor: Redactor | None = None
) -> list[Event]:
    """Events of every table; a table that cannot be read is a gap, a damaged row is passed over.

    `redactor`: for tables that raydoctor may not have written, and nothing else redacts afterwards.
    """
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
            events += _table(source, redactor.redact_rows(data) if redactor else data)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "damaged"
            gaps.append(Gap(source.path, f"could not be read: {why}", about="table"))
    return events


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
    told = {
        "name": head["table"],
        "from": head.get("from"),
        "total": head.get("total"),
        "rows": rows,
    }
    yield _event("live.table", _RowPlace(source, 1, 0), told, at)


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return _clean(row) if isinstance(row, dict) else None


def _clean(value: Any, depth: int = 0) -> Any:
    """A value as rules may trust it, null for a number out of range and for what is nested too deep."""
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
    """Without lone surrogates, which JSON can hold and no encoding can."""
    return text[:_LONGEST].encode("utf-8", "replace").decode("utf-8")


class _RowPlace(NamedTuple):
    source: Source
    line: int
    offset: int


def _event(kind: str, place: _RowPlace, row: dict[str, Any], at: float) -> Event:
    fields = {name: _as_text(value) for name, value in row.items()}
    pid = fields.get("worker_pid") or fields.get("pid") or ""
    return Event(
        kind,
        *place,
        _shown(row),
        fields.get("message", ""),
        at,
        pid=int(pid) if pid.isdigit() and pid.isascii() and len(pid) < 11 else None,
        fields=fields,
        entities=in_fields(fields),
    )


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"))


def _shown(row: dict[str, Any]) -> str:
    """The row as a line for people: `name=train state=RUNNING worker_pid=812 …`."""
    told = []
    for name, value in row.items():
        if value in (None, "", [], {}) or (
            isinstance(value, (list, dict)) and len(str(value)) > 80
        ):
            continue
        told.append(f"{name}={_as_text(value)}")
    line = " ".join(told)
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]} …"

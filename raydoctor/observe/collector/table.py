"""How a collector writes its rows: a table with one row per line, in a file `live/live-<name>.json`.

    {"table": "tasks", "at": 1795240000.5, "from": "dashboard", "total": 12122, "rows": [
    {"task_id": "…", "state": "RUNNING", …},
    {"task_id": "…", "state": "PENDING_NODE_ASSIGNMENT", …}
    ]}

With one row per line, a diagnosis can cite the line of its evidence, and `grep` finds it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

FOLDER = "live"


class Piece(NamedTuple):
    """One file of a collection."""

    path: str
    """Relative to the node's folder in the capture, with forward slashes."""
    data: bytes


def table(
    name: str,
    rows: Iterable[Mapping[str, Any]],
    *,
    source: str,
    total: int | None = None,
    at: float | None = None,
) -> Piece:
    """A table as a file. `source`: where it is from (`dashboard`, `gcs`, `proc`, …); `at`: epoch seconds.

    `total`: how many rows exist, if these are only some of them; a reader of the capture must be able to
    distinguish "all" from "the first thousand".
    """
    lines = [json.dumps(row, separators=(",", ":"), default=str) for row in rows]
    head = {
        "table": name,
        "at": time.time() if at is None else at,
        "from": source,
        "total": len(lines) if total is None else total,
    }
    text = json.dumps(head)[:-1] + ', "rows": [\n' + ",\n".join(lines) + "\n]}\n"
    return Piece(f"{FOLDER}/live-{name}.json", text.encode("utf-8", "backslashreplace"))


def text(name: str, content: str | bytes) -> Piece:
    """A plain text as a file, such as `dmesg.txt` or a stack."""
    data = content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")
    return Piece(f"{FOLDER}/{name}", data)

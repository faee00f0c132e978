"""Disks in a live collection (tables `disks` and `disk-usage`), joined by node and file system."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.cluster import disk_contents as contents
from raydoctor.cluster import tables as live
from raydoctor.model.entities import Entity
from raydoctor.model.text import cut_middle, one_line, size
from raydoctor.model.values import Event, Link
from raydoctor.rules.shared.kernel import nodes_beside

DEFAULT_THRESHOLD = 0.95
NO_SPACE = "No space left on device"
"""The system's own words (ENOSPC), in exceptions of Python, Rust and C++."""
FULL = Entity("disk", "")
"""The disk that a program's exception is about, which does not name it."""
_MOST_OF = 0.5
"""The share of a use from which its largest file stands for it."""
_NAME = 60
"""Letters of a file's name."""
_WORTH_LISTING = 0.01
"""Share of the disk's used space from which on a use is listed."""


class Use(NamedTuple):
    """One kind of data on a disk."""

    event: Event
    what: str
    path: str
    bytes: int
    number: int
    """How many of them."""
    truncated: bool
    largest: str = ""
    """The path of its largest file; empty if it was not collected."""
    largest_bytes: int = 0

    @property
    def is_other(self) -> bool:
        """Whether these are files of the session that are neither logs nor spilled objects."""
        return self.what in (contents.OTHER, contents.FORMER_OTHER)

    @property
    def file(self) -> str:
        """Its largest file, with the size: `data/last.ckpt (1.2 GiB)`; empty if it was not collected."""
        if not self.largest:
            return ""
        name = self.largest.removeprefix(f"{self.path.rstrip('/')}/")
        return f"{cut_middle(one_line(name), _NAME)} ({size(self.largest_bytes)})"

    @property
    def is_one_file(self) -> bool:
        """Whether most of it is in one file."""
        return bool(self.largest) and self.largest_bytes >= _MOST_OF * self.bytes

    @property
    def summary(self) -> str:
        """`31 old sessions in /tmp/ray: 12.0 GiB`."""
        least = "at least " if self.truncated else ""
        is_many = self.what == contents.OLD_SESSIONS
        what = evidence.many(self.number, "old session") if is_many else self.what
        what = "files that are neither logs nor spilled objects" if self.is_other else what
        largest = f"; the largest is {self.file}" if self.file else ""
        return f"{what} in {self.path}: {least}{size(self.bytes)}{largest}"


class RayDisk(NamedTuple):
    """One file system of one node, with everything that Ray uses it for."""

    event: Event
    node: str
    """NodeID, if only one raylet writes there; otherwise empty."""
    path: str
    """Ray's folder that a report names."""
    mount: str
    free: float
    capacity: float
    used: float
    """The share in use as Ray counts it: everything that an unprivileged user cannot allocate."""
    threshold: float
    inodes: float
    """Number of files that it can hold; 0 if it has no such limit (btrfs) or it is unknown."""
    inodes_free: float
    takes_objects: bool
    """Whether Ray spills objects to it, so that the threshold applies."""
    paths: tuple[str, ...]
    uses: tuple[Use, ...]
    """The largest first."""

    @property
    def is_over(self) -> bool:
        """Whether Ray stores no more objects there."""
        return self.threshold < 1 and self.used >= self.threshold

    @property
    def room(self) -> float:
        """Bytes left below the threshold."""
        return max(0.0, (min(self.threshold, 1.0) - self.used) * self.capacity)

    @property
    def entity(self) -> Entity:
        """This file system alone: nodes on one machine share it and also have others."""
        return Entity("disk", f"{self.event.source.node}:{self.mount}")

    def holds(self, path: str, node: str) -> bool:
        """Whether this folder (of that node, if known) is on it."""
        if node and self.node and node != self.node:
            return False
        return any(path == own or path.startswith(f"{own}/") for own in self.paths)

    def of(self, what: str) -> Use | None:
        """The use of one kind, if it is known."""
        return next((use for use in self.uses if use.what == what), None)

    def links(self, most: int = 3) -> tuple[Link, ...]:
        """The large uses by Ray that fill it."""
        in_use = self.used * self.capacity
        large = [u for u in self.uses if u.bytes >= in_use * _WORTH_LISTING]
        return tuple(Link(use.event, use.summary) for use in large[:most])


def disks(case: Case) -> list[RayDisk]:
    """File systems to which Ray writes its session or its objects, at the time of the collection."""
    rows = [e for e in live.rows(case, "disks") if e["use"] in ("spill", "session")]
    groups: dict[tuple[str, str, str], list[Event]] = {}
    for row in rows:
        key = (row.source.node, row["device"], row["mount"] or row["path"])
        groups.setdefault(key, []).append(row)
    # Without a raylet's setting, the spill directory is below the session.
    spilling = {row.source.node for row in rows if row["use"] == "spill"}
    return [_disk(case, group, label not in spilling) for (label, *_), group in groups.items()]


def _disk(case: Case, rows: list[Event], is_default: bool) -> RayDisk:
    first = next((row for row in rows if row["use"] == "spill"), rows[0])
    nodes = {row["node_id"] for row in rows} - {""}
    threshold = live.number(first, "threshold")
    return RayDisk(
        event=first,
        node=nodes.pop() if len(nodes) == 1 else _only_node(case, first),
        path=first["path"],
        mount=first["mount"] or first["path"],
        free=live.number(first, "free") or 0.0,
        capacity=live.number(first, "capacity") or 0.0,
        used=live.number(first, "used_fraction") or 0.0,
        threshold=DEFAULT_THRESHOLD if threshold is None else threshold,
        inodes=live.number(first, "inodes") or 0.0,
        inodes_free=live.number(first, "inodes_free") or 0.0,
        takes_objects=is_default or first["use"] == "spill",
        paths=tuple(dict.fromkeys(row["path"] for row in rows)),
        uses=tuple(_uses(case, first)),
    )


def _only_node(case: Case, event: Event) -> str:
    """The node whose raylet's log is in the same folder, if there is only one."""
    found = nodes_beside(case, event)
    return found.pop() if len(found) == 1 else ""


def _uses(case: Case, disk: Event) -> list[Use]:
    label = disk.source.node
    mounts = {e["mount"] for e in live.rows(case, "disks") if e.source.node == label}
    found = []
    for event in live.rows(case, "disk-usage"):
        on = _mount_of(event["path"], mounts)
        if event.source.node == label and on == disk["mount"]:
            size, count = live.whole(event, "bytes") or 0, live.whole(event, "count") or 1
            truncated = live.truth(event, "truncated")
            largest, in_it = event["largest"], live.whole(event, "largest_bytes") or 0
            found.append(
                Use(event, event["what"], event["path"], size, count, truncated, largest, in_it)
            )
    return sorted(found, key=lambda use: (-use.bytes, use.what))


def _mount_of(path: str, mounts: Iterable[str]) -> str:
    held = [m for m in mounts if path == m or path.startswith(m.rstrip("/") + "/")]
    return max(held, key=len, default="")

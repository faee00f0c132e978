"""The kernel log of this machine, as `live/dmesg.txt`: `2026-11-21T11:56:12.314095+00:00 host kernel: text`.

That is the format of `journalctl -k -o short-iso-precise`, which includes the time zone. The sources are
`/dev/kmsg` (one record per read; Documentation/ABI/testing/dev-kmsg), `dmesg --raw` (a container has no such
device), and the journal. Only records of the kernel itself are kept, because any process may write to the
log.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from raydoctor.model.patterns import pattern
from raydoctor.model.text import joined
from raydoctor.model.values import Gap
from raydoctor.observe.collector import child
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.table import Piece, text
from raydoctor.observe.processes import proc

MOST = 2 << 20
"""Bytes of the log that are kept, from its end."""
WHAT = "kernel log"
_TIMEOUT = 3.0
_RECORD = 8192
"""Larger than any record (PRINTK_MESSAGE_MAX): a read into a smaller buffer fails."""
_WEEK = 7 * 86400.0
_KMSG = "/dev/kmsg"
_KMSG_LINE = pattern(r"(\d+),\d+,(\d+),[^;]*;(.*)")
_RAW_LINE = pattern(r"<(\d+)>\[ *(\d+\.\d+)\] ?(.*)")
_ESCAPED = pattern(r"\\x([0-9a-f]{2})")
_HINT = (
    "Permit it for this user (sudo sysctl kernel.dmesg_restrict=0; or group adm or systemd-journal), or run "
    "`sudo dmesg -T > dmesg.txt`, put the file into the folder with the logs, and diagnose that folder."
)


class _Record(NamedTuple):
    """One line of the kernel log."""

    at: float
    text: str


def tables(cluster: Cluster, since: float | None = None) -> Iterator[Piece | Gap]:
    """The kernel log from `since` (epoch seconds) on, or why it cannot be read."""
    del cluster
    if not sys.platform.startswith("linux"):
        yield Gap(WHAT, "read on Linux only", optional=True, about="kernel")
        return
    refused = {}
    for name, ask in _ways():
        try:
            lines = ask(since)
        except OSError as error:
            refused[name] = error.strerror or error
            continue
        yield text("dmesg.txt", _last(lines))
        return
    (first, reason), *others = refused.items()
    sources = joined([f"{first} ({reason})", *(name for name, _ in others)], "or")
    why = f"could not be read from {sources}"
    yield Gap(WHAT, why, _HINT, optional=True, about="kernel")


def _ways() -> list[tuple[str, Callable[[float | None], list[str]]]]:
    """The sources, best first.

    The kernel's clock drifts from the machine's by some ten parts in a million: seconds in a day, minutes in
    some months. The journal records when it received a line, so it comes first after a week of uptime.
    """
    ways: list[tuple[str, Callable[[float | None], list[str]]]] = [
        (_KMSG, _from_device),
        ("dmesg", _from_dmesg),
    ]
    journal = ("journalctl", _from_journal)
    return [journal, *ways] if time.monotonic() > _WEEK else [*ways, journal]


# ------------------------------------------------------------------ the kernel's own ring buffer


def _from_device(since: float | None) -> list[str]:
    file = os.open(_KMSG, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return _stamped(_device_records(_reads(file)), since)
    finally:
        os.close(file)


def _reads(file: int) -> Iterator[str]:
    """All records in the buffer; those that are overwritten meanwhile are skipped (EPIPE)."""
    while True:
        try:
            yield os.read(file, _RECORD).decode("utf-8", "replace")
        except BlockingIOError:
            return
        except BrokenPipeError:
            continue


def _device_records(raw: Iterable[str]) -> Iterator[_Record]:
    boot = time.time() - proc.kernel_clock()
    for record in raw:
        # Further lines are properties of the device: ` SUBSYSTEM=pci`.
        found = _KMSG_LINE.match(record.partition("\n")[0])
        if found and _is_kernels(found[1]):
            at = boot + int(found[2]) / 1e6
            for line in _ESCAPED.sub(_character, found[3]).split("\n"):
                yield _Record(at, line)


def _is_kernels(priority: str) -> bool:
    """Whether the facility (all but the last three bits) is the kernel's, which user space cannot set."""
    return int(priority) >> 3 == 0


def _character(escaped: re.Match[str]) -> str:
    return chr(int(escaped[1], 16))


def _from_dmesg(since: float | None) -> list[str]:
    printed = child.output(["dmesg", "--raw"], _TIMEOUT)
    if printed.problem:
        raise OSError(printed.problem)
    return _stamped(_raw_records(printed.text), since)


def _raw_records(printed: str) -> Iterator[_Record]:
    boot = time.time() - proc.kernel_clock()
    for line in printed.splitlines():
        found = _RAW_LINE.match(line)
        if found and _is_kernels(found[1]):
            yield _Record(boot + float(found[2]), found[3])


def _stamped(records: Iterable[_Record], since: float | None) -> list[str]:
    host = os.uname().nodename.partition(".")[0] or "localhost"
    lines = []
    for at, words in records:
        if since is None or at >= since:
            second, fraction = divmod(at, 1)
            day_and_time, zone = _local(int(second))
            micros = int(fraction * 1e6)
            lines.append(f"{day_and_time}.{micros:06d}{zone} {host} kernel: {words}\n")
    return lines


@lru_cache(maxsize=1)
def _local(second: int) -> tuple[str, str]:
    """`2026-11-21T11:56:12` and `+00:00`; cached because many lines have the same second."""
    stamp = datetime.fromtimestamp(second).astimezone().isoformat(timespec="seconds")
    return stamp[:19], stamp[19:]


# ------------------------------------------------------------------ the journal


def _from_journal(since: float | None) -> list[str]:
    printed = _journal("--lines=20000", *([f"--since=@{int(since)}"] if since is not None else []))
    # Without permission it may print nothing and exit with 0. A boot always has kernel lines.
    if not printed and (since is None or not _journal("--lines=1")):
        raise OSError("shows nothing to this user")
    return printed.splitlines(keepends=True)


def _journal(*options: str) -> str:
    command = (
        "journalctl",
        "--dmesg",
        "--output=short-iso-precise",
        "--no-pager",
        "--quiet",
        *options,
    )
    printed = child.output(command, _TIMEOUT)
    if printed.problem:
        raise OSError(printed.problem)
    return printed.text


def _last(lines: list[str]) -> str:
    """As many of the last lines as fit into `MOST` bytes."""
    size = 0
    for number in range(len(lines) - 1, -1, -1):
        size += len(lines[number].encode("utf-8", "replace"))
        if size > MOST:
            return "".join(lines[number + 1 :])
    return "".join(lines)

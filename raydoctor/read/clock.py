"""Stamps -> epoch seconds.

Ray's stamps are local time without a zone. A node's offset is learned from lines that carry both
(the crash handler's `received at time=<epoch>`, JSON `timestamp_ns`, event files against the log
record of the same worker); else this machine's own zone is assumed, and `slack` says so.
"""

from __future__ import annotations

import calendar
import time
from datetime import datetime
from functools import lru_cache

UNKNOWN_ZONE_SLACK = 0.0
"""An unlearned offset shifts a whole node alike, so that order within the node still holds."""


@lru_cache(maxsize=4096)
def _second(text: str) -> int | None:
    """`YYYY-MM-DD HH:MM:SS` read as if it were UTC."""
    try:
        return calendar.timegm(time.strptime(text, "%Y-%m-%d %H:%M:%S"))
    except ValueError:
        return None


def as_utc(stamp: str) -> float | None:
    """A stamp read as if it were UTC, with its milliseconds."""
    seconds = _second(stamp[:19].replace("T", " "))
    if seconds is None:
        return None
    fraction = stamp[20:23]
    return seconds + (int(fraction) / 1000 if fraction.isdigit() else 0.0)


def zone_here(at: float) -> float:
    """This machine's offset from UTC at (roughly) that time, in seconds."""
    return time.localtime(at).tm_gmtoff


def offset_between(local: float, epoch: float) -> float:
    """The UTC offset that a pair of equal moments shows, to a quarter of an hour."""
    return round((local - epoch) / 900) * 900.0


class Clock:
    """Offsets per node, and the reading of stamps with them."""

    def __init__(self) -> None:
        self._offsets: dict[str, float] = {}

    def learn(self, node: str, stamp: str, epoch: float) -> None:
        """Take the first pair seen for a node."""
        local = as_utc(stamp)
        if local is not None and abs(local - epoch) < 15 * 3600:
            self._offsets.setdefault(node, offset_between(local, epoch))

    def epoch(self, node: str, stamp: str) -> float | None:
        """Epoch seconds of a stamp, or None if it is none."""
        local = as_utc(stamp)
        if local is None:
            return None
        if node in self._offsets:
            return local - self._offsets[node]
        if "" in self._offsets:
            return local - self._offsets[""]
        return local - zone_here(local)

    def kernel(self, fields: dict[str, str], node: str) -> float | None:
        """Epoch seconds of a kernel line; None for bare uptimes and for stamps without a year."""
        if date := fields.get("date"):
            try:
                moment = datetime.strptime(date, "%a %b %d %H:%M:%S %Y")
            except ValueError:
                return None
            return self.epoch(node, moment.strftime("%Y-%m-%d %H:%M:%S"))
        if iso := fields.get("iso"):
            text = iso.replace("Z", "+00:00").replace(",", ".")
            try:
                moment = datetime.fromisoformat(
                    text if text[-3:-2] == ":" else f"{text[:-2]}:{text[-2:]}"
                )
            except ValueError:
                return None
            return moment.timestamp() if moment.tzinfo else self.epoch(node, str(moment)[:19])
        return None

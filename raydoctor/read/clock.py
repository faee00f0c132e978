"""Timestamps -> epoch seconds.

Ray's stamps are local time without a zone. A node's offset is learned from records that carry both
(the crash handler's `received at time=<epoch>`, JSON `timestamp_ns`, an event file and the log record of
the same worker). Without such records this machine's own zone is assumed. An error then shifts all times of
a node equally, so the order within the node remains correct.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from functools import lru_cache

from raydoctor.model.patterns import pattern

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_ISO = pattern(
    r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:[.,](\d{1,20}))?(?:(Z)|([+-])(\d\d):?(\d\d))?", re.ASCII
)
_PARTS_OF_HOURS = frozenset(
    (-9.5, -3.5, -2.5, 3.5, 4.5, 5.5, 5.75, 6.5, 8.75, 9.5, 10.5, 12.75, 13.75)
)
"""The zones (hours from UTC) that are not whole hours, with their summer times."""


@lru_cache(maxsize=4096)
def _second(text: str) -> int | None:
    """`YYYY-MM-DD HH:MM:SS` read as if it were UTC. (`strptime` would cost 8 ms to import.)"""
    try:
        moment = datetime(
            int(text[:4]), int(text[5:7]), int(text[8:10]),
            int(text[11:13]), int(text[14:16]), int(text[17:19]), tzinfo=timezone.utc,
        )  # fmt: skip
    except ValueError:
        return None
    return int(moment.timestamp())


def as_utc(stamp: str) -> float | None:
    """A stamp with milliseconds, read as if it were UTC."""
    seconds = _second(stamp[:19])
    if seconds is None:
        return None
    fraction = stamp[20:23]
    return seconds + (int(fraction) / 1000 if fraction.isdecimal() else 0.0)


def instant(text: str) -> float | None:
    """Epoch seconds of a time as Kubernetes (RFC 3339) or `kubectl describe` (RFC 5322) writes it."""
    if not text[:1].isdigit():
        from email.utils import parsedate_to_datetime  # only `describe` writes such times

        with suppress(ValueError, TypeError, IndexError, OverflowError):
            moment = parsedate_to_datetime(text)
            return moment.timestamp() if moment.tzinfo else None
        return None
    day, fraction, zone = text[:19], "", text[19:].removesuffix("Z")
    if zone[:1] == ".":
        fraction, zone = _split_fraction(zone[1:])
    with suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(f"{day}{zone or '+00:00'}")
        return moment.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)
    return None


def _split_fraction(text: str) -> tuple[str, str]:
    """`123456+08:00` -> its digits, and the zone after them."""
    rest = text.lstrip("0123456789")
    return text[: len(text) - len(rest)], rest


def zone_here(at: float) -> float:
    """This machine's offset from UTC at (roughly) that time, in seconds."""
    try:
        return time.localtime(at).tm_gmtoff
    except (OverflowError, OSError, ValueError):
        return 0.0


def offset_between(local: float, epoch: float) -> float:
    """The UTC offset between two forms of one moment, rounded to a quarter of an hour."""
    return round((local - epoch) / 900) * 900.0


def is_zone(offset: float) -> bool:
    """Whether the clocks of a zone are so many seconds ahead of UTC."""
    hours = offset / 3600
    return hours in _PARTS_OF_HOURS or (hours.is_integer() and -12 <= hours <= 14)


_OFFSET = pattern(r"([+-])(\d\d):(\d\d)")


class NodeClocks:
    """Offsets per node, with which stamps are converted."""

    def __init__(self) -> None:
        self._seen: dict[str, Counter[float]] = {}

    def learn(self, node: str, stamp: str, epoch: float) -> None:
        """Record a moment that a node's record has as local time and as epoch seconds."""
        local = as_utc(stamp)
        if local is not None and is_zone(offset := offset_between(local, epoch)):
            self._seen.setdefault(node, Counter())[offset] += 1

    def learn_zone(self, node: str, text: str) -> None:
        """Record a node's offset from UTC, for example `+05:30`; other text is ignored."""
        if found := _OFFSET.fullmatch(text):
            seconds = int(found[2]) * 3600.0 + int(found[3]) * 60.0
            offset = -seconds if found[1] == "-" else seconds
            self._seen.setdefault(node, Counter())[offset] += 1

    def offset(self, node: str) -> float | None:
        """A node's offset from UTC, by the majority of its records.

        A node without such records is assumed to be in the zone of the others: clusters rarely span zones,
        and the machine that reads a capture is often in another one.
        """
        seen = self._seen.get(node) or sum(self._seen.values(), Counter[float]())
        if not seen:
            return None
        return min(seen, key=lambda offset: (-seen[offset], abs(offset), offset))

    def epoch(self, node: str, stamp: str) -> float | None:
        """Epoch seconds of a stamp; None for other text."""
        local = as_utc(stamp)
        if local is None:
            return None
        offset = self.offset(node)
        return local - (zone_here(local) if offset is None else offset)

    def kernel(self, fields: Mapping[str, str], node: str) -> float | None:
        """Epoch seconds of a kernel line; None for bare uptimes and for stamps without a year."""
        if date := fields.get("date"):
            return self._kernel_date(date, node)
        if iso := _ISO.fullmatch(fields.get("iso", "")):
            day, clock, fraction, utc, sign, hours, minutes = iso.groups()
            stamp = f"{day} {clock},{(fraction or '')[:3]:0<3}"
            if not utc and not sign:
                return self.epoch(node, stamp)
            ahead = int(hours or 0) * 3600 + int(minutes or 0) * 60
            local = as_utc(stamp)
            return None if local is None else local - (-ahead if sign == "-" else ahead)
        return None

    def _kernel_date(self, date: str, node: str) -> float | None:
        """`Sat Nov 21 07:34:50 2026`, as `dmesg -T` prints it."""
        _, month, day, clock, year = date.split()
        if month not in _MONTHS:
            return None
        return self.epoch(node, f"{year}-{_MONTHS.index(month) + 1:02d}-{day:0>2} {clock}")

"""What `--since` and `--until` take: ISO times, epoch seconds, or how long ago."""

from __future__ import annotations

import re
import time
from datetime import datetime

from raydoctor._pattern import pattern

_AGO = pattern(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d|w)(?:\s+ago)?")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_EPOCH = pattern(r"\d{9,11}(?:\.\d+)?")
EXAMPLES = "2026-11-21T07:30, '2026-11-21 07:34:50,739' (local time), 1795237984, 2h, 30m, 1d"


def parse_time(text: str, now: float | None = None) -> float:
    """Epoch seconds. Raises ValueError, with examples, for anything else.

    Ray's own stamps (`2026-11-21 07:34:50,739`) can be pasted as they stand.
    """
    text = text.strip()
    if match := _AGO.fullmatch(text):
        return (time.time() if now is None else now) - float(match[1]) * _SECONDS[match[2]]
    if _EPOCH.fullmatch(text):
        return float(text)
    # Python 3.10 reads no `Z`, no comma before the fraction, and no fraction but of 3 or 6 digits.
    iso = re.sub(r"[Zz]$", "+00:00", text)
    iso = re.sub(r"[.,](\d{1,6})\d*", lambda match: "." + match[1].ljust(6, "0"), iso)
    try:
        return datetime.fromisoformat(iso).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"not a time: {text!r}; write it like {EXAMPLES}") from None

"""Times and durations as users write them."""

from __future__ import annotations

import re
import time
from datetime import datetime

from raydoctor.model.patterns import pattern

_DURATION = pattern(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|min|h|d|w)?")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_EPOCH = pattern(r"\d{9,11}(?:\.\d+)?")
EXAMPLES = "2026-11-21T07:30, '2026-11-21 07:34:50,739' (local time), 1795237984, 2h, 30m, 1d"


def parse_duration(text: str) -> float:
    """Seconds: `90`, `90s`, `500ms`, `2.5m`, `10min`, `2h`, `1d`. Raises ValueError, with examples, else."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not a duration: {text!r}; write it like 90, 500ms, 10m or 2h")
    return float(match[1]) * _SECONDS[match[2] or "s"]


def parse_time(text: str, now: float | None = None) -> float:
    """Epoch seconds. Raises ValueError, with examples, for anything else.

    Ray's own timestamps (`2026-11-21 07:34:50,739`) are accepted.
    """
    text = text.strip()
    if _EPOCH.fullmatch(text):
        return float(text)
    ago = _DURATION.fullmatch(text.removesuffix("ago").rstrip())
    if ago and ago[2]:
        return (time.time() if now is None else now) - parse_duration(ago[0])
    # Python 3.10 does not parse `Z`, a comma before the fraction, or a fraction of other than 3 or 6 digits.
    iso = re.sub(r"[Zz]$", "+00:00", text)
    iso = re.sub(r"[.,](\d{1,6})\d*", lambda match: "." + match[1].ljust(6, "0"), iso)
    try:
        return datetime.fromisoformat(iso).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"not a time: {text!r}; write it like {EXAMPLES}") from None

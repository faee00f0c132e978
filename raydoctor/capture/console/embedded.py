"""Text inside JSON and inside string literals, taken out of them.

Log shippers (Docker, Fluent Bit, Loki, Cloud Logging), structured loggers and API replies wrap a
console's lines in JSON; programs print a traceback's `repr`. Ray's own structured records (`"asctime"`,
`"levelname"`) stay as they are where they say what they say in one line: `read/records.py` reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from raydoctor.model.patterns import pattern

_TEXTS = pattern(
    "(?i:"
    "log|msg|message|text|line|event|body|textpayload|content|output|exc_text|exc_info|"
    "exception|traceback|stack|stacktrace|stack_trace|error|stdout|stderr|stdout_tail|"
    "stderr_tail|logs|details?|reason"
    ")"
)
"""Keys whose values are text for people."""
_LEVELS = ("level", "levelname", "severity", "lvl")
_MOST_LINES = 5_000
"""Taken out of one line."""
_DEEPEST = 6
_MEMBER = pattern(r'\s{0,200}(?:"(?P<key>[\w.-]{1,60})"\s{0,20}:\s{0,20})?"')
"""The beginning of a line of JSON that is printed over several lines."""
_ESCAPED = "Traceback (most recent call last):\\n"


def may_hold(text: str) -> bool:
    """Whether something may be wrapped in a line: a quick test."""
    return text[:1] == "{" or "\\n" in text


def take_out(text: str) -> list[str] | None:
    """The lines inside a line; None where it wraps nothing."""
    if text[:1] in ("{", "["):
        try:
            data: Any = json.loads(text)
        except (ValueError, RecursionError):
            data = None
        if isinstance(data, dict | list):
            lines = (line for value in _texts(data, 0) for line in value.splitlines())
            found = list(islice(lines, _MOST_LINES))
            return found if found and not _is_rays_own(data) else None
    match = _MEMBER.match(text) if "\\n" in text else None
    if match and (match["key"] is None or _TEXTS.fullmatch(match["key"])):
        # The closing quotation mark may be cut off.
        value = text.rstrip().rstrip(",").removesuffix('"')[match.end() :]
        if match["key"] or value.endswith("\\n"):
            return _unescaped(value)
    if _ESCAPED in text:
        return _unescaped(text)
    return None


def _is_rays_own(data: Any) -> bool:
    """One of Ray's structured records, whose text is one line."""
    return (
        isinstance(data, dict)
        and "asctime" in data
        and not data.get("exc_text")
        and "\n" not in str(data.get("message"))
    )


def _texts(data: Any, depth: int) -> Iterator[str]:
    """Texts for people in a document; of Loki's streams the lines."""
    if depth > _DEEPEST:
        return
    if isinstance(data, list):
        for each in data[:_MOST_LINES]:
            # Loki: `"values": [["1700000000000000000", "the line"], …]`
            if (
                isinstance(each, list)
                and len(each) == 2
                and str(each[0]).isdecimal()
                and isinstance(each[1], str)
            ):
                yield from _nested(each[1], depth)
            else:
                yield from _texts(each, depth + 1)
    elif isinstance(data, dict):
        level = next((str(data[key]) for key in _LEVELS if data.get(key)), "").upper()
        for key, value in data.items():
            if isinstance(value, dict | list):
                if _TEXTS.fullmatch(key) and isinstance(value, list):  # notebooks: a list of lines
                    yield from (each for each in value if isinstance(each, str))
                yield from _texts(value, depth + 1)
            elif isinstance(value, str) and _TEXTS.fullmatch(key):
                is_headed = level in ("ERROR", "CRITICAL", "FATAL") and key.lower() in (
                    "message",
                    "msg",
                    "event",
                )
                yield from (
                    (f"{level}:{key}:{line}" if is_headed else line)
                    for line in _nested(value, depth)
                )


def _nested(value: str, depth: int) -> Iterator[str]:
    """A text, or what is in it where it is JSON again."""
    if value[:1] == "{" and value.rstrip()[-1:] == "}":
        try:
            inner = json.loads(value)
        except (ValueError, RecursionError):
            inner = None
        if isinstance(inner, dict):
            yield from _texts(inner, depth + 1)
            return
    yield value


def _unescaped(text: str) -> list[str]:
    """A string literal's lines."""
    plain = text.replace("\\\\", "\0").replace("\\n", "\n").replace("\\t", "\t").replace("\\r", "")
    return (
        plain.replace('\\"', '"').replace("\\'", "'").replace("\0", "\\").splitlines()[:_MOST_LINES]
    )

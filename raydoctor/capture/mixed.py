"""Pastes that mix prose, logs and output of kubectl: each reader gets its part, at the same line numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from raydoctor.capture import kubectl
from raydoctor.model.patterns import pattern

LIMIT = 4 << 20
"""Bytes of a text that is looked into."""
WORDS = (b"Name:  ", b"  READY ", b"LAST SEEN ", b"Reason  ", b"State:  ", b"Warning  ")
"""Only a text with one of them holds such output."""
_DESCRIBED = pattern(kubectl.DESCRIBED)
_TABLE = pattern(kubectl.TABLE)
_EVENTS = pattern(rf" *(?:{kubectl.EVENTS}|{kubectl.EVENT})")
_STATE = pattern(rf" {{0,12}}{kubectl.STATE}")
_EVENT = pattern(r" *(?:Normal|Warning|-{4}) +\S+ +\S")
_FIELD = pattern(
    r"(?!Traceback|Error|Warning)[A-Z][\w-]{0,40}(?: [A-Z][\w-]{0,40}){0,3}:(?: {2,}\S|$)"
)
_OF_OBJECT = pattern(
    r"(?:Namespace|Labels|Annotations|Containers|Init Containers|API Version|Taints|Node|Status):"
)
_ROW = pattern(r"\S+(?: {2,}\S+(?: \S+){0,6}){3,}")
_COMMAND = pattern(r"(?:[^\n]{0,200}[$#>%❯] ?)?(?:kubectl|k|oc) (?:-n \S+ )?(?:describe|get)\b")
_LOGGED = pattern(
    r"Traceback \(most recent call|\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d|\b[EWIF]\d{4} \d\d:\d\d:\d\d"
    r"|\(\w[^()\n]{0,80} pid=\d|\b(?:ERROR|FATAL|CRITICAL)\b"
    r"|\b\w{0,60}(?:Error|Exception): |\bis (?:forbidden|invalid): "
)
_OBJECT = pattern(r"\{$|apiVersion: \S")
"""The first line of an object in JSON or YAML."""
_OF_DOCUMENT = pattern(r"[ \t}-]|$|[a-z][A-Za-z]{0,19}:(?: |$)")
_NEAR = 40
"""Lines below `Name:` in which a described object has one of its own fields."""


class PasteParts(NamedTuple):
    """A text twice: with only the objects of Kubernetes, and with only the rest."""

    objects: str
    rest: str


def split(text: str, *, is_of_kubernetes: bool) -> PasteParts | None:
    """The two parts of a text; None if it is of one kind.

    `is_of_kubernetes`: whether it is known as output of kubectl; then it is split only if the rest is a log.
    """
    lines = text.splitlines(keepends=True)
    plain = [line.rstrip("\r\n") for line in lines]
    inside = set(_object_lines(plain, has_json=is_of_kubernetes))
    rest = [
        line
        for number, line in enumerate(plain)
        if number not in inside and line.strip() and not _COMMAND.match(line)
    ]
    if not inside or not rest or (is_of_kubernetes and not any(map(_LOGGED.search, rest))):
        return None
    kept = {number for number, line in enumerate(plain) if _COMMAND.match(line)}
    return PasteParts(
        "".join(line if n in inside | kept else "\n" for n, line in enumerate(lines)),
        "".join("\n" if n in inside else line for n, line in enumerate(lines)),
    )


def _object_lines(lines: Sequence[str], *, has_json: bool) -> Iterator[int]:
    """The numbers of the lines that kubectl printed; JSON in prose may be a program's."""
    belongs = None
    for number, line in enumerate(lines):
        if _DESCRIBED.match(line) and any(
            map(_OF_OBJECT.match, lines[number + 1 : number + _NEAR])
        ):
            belongs = _is_described
        elif _TABLE.match(line):
            belongs = _is_row
        elif belongs is None and _EVENTS.match(line):
            belongs = _is_event
        elif belongs is None and _STATE.match(line):
            belongs = _is_indented
        elif has_json and _OBJECT.match(line):
            belongs = _is_object
        elif belongs and not belongs(line):
            belongs = None
        if belongs:
            yield number


def _is_described(line: str) -> bool:
    return not line.strip() or line.startswith((" ", "\t")) or _FIELD.match(line) is not None


def _is_indented(line: str) -> bool:
    return line.startswith(" ") and bool(line.strip())


def _is_object(line: str) -> bool:
    return _OF_DOCUMENT.match(line) is not None


def _is_row(line: str) -> bool:
    return _ROW.match(line) is not None


def _is_event(line: str) -> bool:
    return _EVENT.match(line) is not None

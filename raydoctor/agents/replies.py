"""Replies of bounded size, page by page, in which text of logs is marked. Pure.

A reply is one JSON object. Whatever a log, a name or a path contributed is below a key `untrusted_text`,
where JSON's own quoting keeps it; all other fields are numbers, ids and raydoctor's own words. The only
exception are `commands`, in which such values are quoted for a shell (`model/paste.py`).
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from raydoctor.model import paste
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.patterns import pattern
from raydoctor.model.text import printable

LIMIT = 8_000
"""Characters of a whole reply: the object, and the same object as text for clients that read only text."""
UNTRUSTED = "untrusted_text"
_ENVELOPE = 300
"""Characters of the protocol around a reply."""
_LONGEST = 1_200
"""Characters of one text."""
_KEPT = 32
"""Results whose further pages and files can be asked for."""
_HEAVIEST = 64 << 20
"""Bytes of the JSON of all kept results together; the newest is kept whatever its size."""
_CURSOR = pattern(r"(?P<result>r\d{1,9})\.(?P<index>\d{1,9})")
_STEPS = (1_000, 300, 100, 30)
"""Lengths to which the texts of an item are cut that alone is larger than a reply."""
_IGNORABLE = pattern(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]"
)
"""Characters that count as printable and show nothing (Unicode's `Default_Ignorable_Code_Point`)."""

Row = dict[str, Any]
Items = Sequence[tuple[str, Row]]
"""Section of the reply -> what to add to it, in order of importance."""


class ToolResult(NamedTuple):
    """What a tool has found."""

    tool: str
    head: Row
    """On every page; small, and without untrusted text."""
    items: Items
    document: Mapping[str, Any] = {}
    """The command's own JSON."""
    source: Mapping[str, Any] = {}
    """Arguments that name the capture."""
    weight: int = 0
    """Bytes of the command's JSON."""


class Shelf:
    """The results of a server that were used last, by id."""

    def __init__(self) -> None:
        self._results: OrderedDict[str, ToolResult] = OrderedDict()
        self._count = 0

    def add(self, result: ToolResult) -> str:
        """Keep a result, and return its id; those that were not used for longest are dropped."""
        self._count += 1
        name = f"r{self._count}"
        self._results[name] = result
        while len(self._results) > 1 and (len(self._results) > _KEPT or self._weight() > _HEAVIEST):
            self._results.popitem(last=False)
        return name

    def _weight(self) -> int:
        return sum(each.weight for each in self._results.values())

    def get(self, name: str, tool: str) -> ToolResult:
        """A result of this tool. Raises RaydoctorError if there is none of that id."""
        found = self._results.get(name)
        if found is None or found.tool != tool:
            raise RaydoctorError(
                f"this server keeps no result {name!r} of {tool}",
                paste.text("Call {tool} again, without cursor.", tool=tool),
            )
        self._results.move_to_end(name)
        return found

    def latest(self, tool: str) -> str:
        """The id of the tool's newest result. Raises RaydoctorError if there is none."""
        made = [int(name[1:]) for name, each in self._results.items() if each.tool == tool]
        if not made:
            raise RaydoctorError(
                f"this server keeps no result of {tool}",
                paste.text("Call {tool} first.", tool=tool),
            )
        return f"r{max(made)}"

    def page(self, name: str, tool: str, start: int = 0) -> Row:
        """A page of a result, from this item on. Raises RaydoctorError if there is no such result."""
        return page_of(self.get(name, tool), start, name)

    def continued(self, cursor: str, tool: str) -> Row:
        """The page that a cursor names. Raises RaydoctorError if it is none of this tool."""
        match = _CURSOR.fullmatch(cursor)
        if match is None:
            raise RaydoctorError(
                f"{cursor!r} is not a cursor", "Pass next_cursor as it was returned."
            )
        return self.page(match["result"], tool, int(match["index"]))


def page_of(result: ToolResult, start: int = 0, name: str = "r999999999") -> Row:
    """As many items of a result as fit into a reply, from this one on."""
    reply: Row = {"result": name, **result.head, "next_cursor": None}
    at = min(start, len(result.items))
    while at < len(result.items):
        section, item = result.items[at]
        cursor = f"{name}.{at + 1}" if at + 1 < len(result.items) else None
        longer = _with(reply, section, item, cursor)
        if size(longer) > LIMIT:
            if at > start:
                break
            longer = _with(reply, section, _shrunk(reply, section, item, cursor), cursor)
        reply, at = longer, at + 1
    return {**reply, "next_cursor": f"{name}.{at}" if at < len(result.items) else None}


def _with(reply: Row, section: str, item: Row, cursor: str | None) -> Row:
    return {**reply, section: [*reply.get(section, ()), item], "next_cursor": cursor}


def _shrunk(reply: Row, section: str, item: Row, cursor: str | None) -> Row:
    """An item with its texts cut so that it fits alone."""
    for most in _STEPS:
        cut: Row = _cut(item, most)
        if size(_with(reply, section, cut, cursor)) <= LIMIT:
            return cut
    return {"omitted": "larger than a reply"}


def _cut(value: Any, most: int, is_untrusted: bool = False) -> Any:
    """A value with its untrusted texts cut. A command is left out as a whole: half a command is not safe."""
    if isinstance(value, dict):
        cut = {k: _cut(v, most, is_untrusted or k == UNTRUSTED) for k, v in value.items()}
        if isinstance(commands := value.get("commands"), list):
            kept = [each for each in commands if len(each) <= most]
            cut |= {"commands": kept, "omitted_commands": len(commands) - len(kept)}
        return cut
    if isinstance(value, list) and is_untrusted:
        few = [_cut(each, most, True) for each in value[: max(1, most // 30)]]
        return [*few, *([f"[{len(value) - len(few)} more]"] if len(few) < len(value) else [])]
    if isinstance(value, list):
        return [_cut(each, most, is_untrusted) for each in value]
    return shortened(value, most) if isinstance(value, str) and is_untrusted else value


def as_text(reply: Any) -> str:
    """A reply, or a part of it, as text."""
    return json.dumps(reply, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def size(reply: Mapping[str, Any]) -> int:
    """Characters that the reply takes in the protocol."""
    text = as_text(reply)
    return _ENVELOPE + len(text) + len(json.dumps(text, ensure_ascii=False))


def untrusted(**fields: Any) -> Row:
    """`{"untrusted_text": …}` with these texts escaped and cut; empty ones are left out."""
    return {UNTRUSTED: {name: _shown(value) for name, value in fields.items() if value}}


def _shown(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_shown(each) for each in value]
    return shown(str(value))


def shown(text: str) -> str:
    """The first 1,200 characters of a text, with every invisible one escaped."""
    # Cut first: a log may hold megabytes in a line.
    return _IGNORABLE.sub(_escaped, printable(shortened(text, _LONGEST)))


def _escaped(match: Any) -> str:
    return str(match[0].encode("unicode_escape").decode("ascii"))


def shortened(text: str, most: int) -> str:
    """The beginning of a longer text, with the number of characters that are left out."""
    if len(text) <= most:
        return text
    return f"{text[:most]}… [{len(text) - most} more characters]"

"""A file of Kubernetes objects -> the objects, each with the place where it begins.

Items of a list are parsed one by one: a list that is cut off keeps its complete items, and a large one needs
the memory of a few items. YAML is read without tags and anchors, its scalars as text: no file can make
it grow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, TextIO

from raydoctor.capture.contents import ABOVE
from raydoctor.capture.window import Window
from raydoctor.model.patterns import pattern

LONGEST = 8 << 20
"""Characters of one object: a pod has some 20,000, and etcd stores at most 1.5 MiB."""
_AHEAD = 1 << 20
"""Characters to hold: few objects have more."""
_DEEPEST = 60
_HEAD = r'(?:"(?:apiVersion|kind)"\s*:\s*"[^"]{0,100}"|"metadata"\s*:\s*\{[^{}]{0,1000}\})'
_LIST = pattern(rf'\{{\s*(?:{_HEAD}\s*,\s*)*"items"\s*:\s*\[')
_BARE = pattern(r"\[")
_LIST_END = pattern(rf"\]\s*(?:,\s*{_HEAD}\s*)*\}}")
_BETWEEN = pattern(r"[\s,\ufeff]*")
_NEXT_ITEM = pattern(r",\n(?P<indent> {1,40})(?=\{\n(?P=indent) )")
_AFTER_ITEM = pattern(r",\n {1,40}\{|\n {0,40}\]")
_YAML_LIST = pattern(r"(?:(?!-)[^\n]*\n){0,20}?items:[^\S\n]*\n(?=- )")
_YAML_END = pattern(r"^(?:- |---|kind: |metadata:)", re.MULTILINE)
_YAML_BREAK = pattern(r"^---[^\n]*\n", re.MULTILINE)
_IGNORED = pattern(rf"(?:[ \t]*(?:#[^\n]*)?\n|---[^\n]*\n|\.\.\.\n|{ABOVE})*")
_KIND_OF_ITEMS = pattern(r'"kind"\s*:\s*"(?P<kind>\w{1,100})List"')
_CHANGES = frozenset({"ADDED", "MODIFIED", "DELETED"})
"""What `kubectl get --watch --output-watch-events` and the API print around an object that changed."""


class Document(NamedTuple):
    """One object."""

    data: dict[str, Any]
    line: int
    """1-based, in the file."""
    raw: str
    """Its text in the file."""


class Damage(NamedTuple):
    """Where a file could not be parsed, and why."""

    line: int
    why: str


_CUT = "is cut off or damaged: the objects from here on were not read"


def documents(
    stream: TextIO, leave_out: Callable[[str, int], bool] = lambda raw, line: False
) -> Iterator[Document | Damage]:
    """The objects of a text in JSON or YAML; those of lists one by one.

    Items of an indented list whose text and line `leave_out` accepts are not parsed.
    """
    window = Window(stream)
    window.ensure(LONGEST)
    window.skip(_IGNORED)
    window.skip(_BETWEEN)
    is_json = window.text[window.place : window.place + 1] in ("{", "[")
    yield from _of_json(window, leave_out) if is_json else _of_yaml(window)


# ---------------------------------------------------------------- JSON


def _of_json(window: Window, leave_out: Callable[[str, int], bool]) -> Iterator[Document | Damage]:
    decoder = json.JSONDecoder()
    is_list, is_bare = False, False
    kind = ""
    """Of the items of the API's own lists (`PodList`), which do not name it."""
    while True:
        window.ensure(_AHEAD)
        window.skip(_BETWEEN)
        if window.is_end:
            if is_list:
                yield Damage(window.line, _CUT)
            return
        char = window.text[window.place]
        if is_list and char == "]":
            is_list = False
            if is_bare or not window.skip(_LIST_END):
                window.place += 1
        elif not is_list and (opened := window.skip(_BARE) or window.skip(_LIST)):
            is_list, is_bare = True, char == "["
            named = _KIND_OF_ITEMS.search(opened[0])
            kind = named["kind"] if named else ""
        else:
            try:
                data, end = decoder.raw_decode(window.text, window.place)
            except (ValueError, RecursionError):
                held = len(window.text) - window.place
                window.ensure(LONGEST)
                if held < len(window.text) - window.place:
                    continue
                yield Damage(window.line, _CUT)
                return
            raw, line = window.text[window.place : end], window.line
            window.place = end
            if isinstance(data, dict):
                yield Document(_object(data, kind if is_list else ""), line, raw)
            if is_list:
                _leave_out(window, leave_out)


def _object(data: dict[str, Any], kind: str) -> dict[str, Any]:
    """The object itself, with the kind that its list names."""
    changed = data.get("object")
    if data.get("type") in _CHANGES and isinstance(changed, dict):
        data = changed
    return {"kind": kind, **data} if kind else data


def _leave_out(window: Window, leave_out: Callable[[str, int], bool]) -> None:
    """Go past items that are not needed. An item ends at its brace: values contain no ends of lines."""
    while found := _NEXT_ITEM.match(window.text, window.place):
        begin, last = found.end(), f"\n{found['indent']}}}"
        end = window.text.find(last, begin, begin + _AHEAD) + len(last)
        is_whole = end > begin and _AFTER_ITEM.match(window.text, end)
        if not is_whole or not leave_out(window.text[begin:end], window.line + 1):
            return
        window.place = end
        window.ensure(_AHEAD)


# ---------------------------------------------------------------- YAML


def _of_yaml(window: Window) -> Iterator[Document | Damage]:
    while True:
        window.ensure(LONGEST)
        window.skip(_IGNORED)
        if window.is_end:
            return
        if window.skip(_YAML_LIST):
            while window.text.startswith("- ", window.place):
                window.ensure(LONGEST)
                yield _parsed(window, _YAML_END, "  ", 2)
            # What is left of the list: `kind: List` and its metadata.
            _take(window, _YAML_BREAK)
        else:
            yield _parsed(window, _YAML_BREAK, "", 0)


def _take(window: Window, end: re.Pattern[str], after: int = 0) -> str:
    """The text up to a match, which becomes the current place."""
    begin = window.place
    found = end.search(window.text, begin + after)
    window.place = found.start() if found else len(window.text)
    return window.text[begin : window.place]


def _parsed(window: Window, end: re.Pattern[str], indent: str, after: int) -> Document | Damage:
    line = window.line
    raw = _take(window, end, after)
    if len(raw) > LONGEST:
        return Damage(line, _CUT)
    text = indent + raw[after:]
    # The last line of a paste may be cut off.
    data = _yaml(text) or _yaml(text.rstrip().rpartition("\n")[0])
    return (
        Document(data, line, raw) if isinstance(data, dict) else Damage(line, "is not valid YAML")
    )


def _yaml(text: str) -> Any:
    """The value of a YAML document; None where it is damaged or refers to itself."""
    import yaml  # type: ignore[import-untyped]  # 20 ms; rarely needed

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _value(iter(yaml.parse(text, Loader=loader)))
    except (yaml.YAMLError, StopIteration, RecursionError, ValueError):
        return None


_NO_VALUE = object()


def _value(events: Iterator[Any], depth: int = 0) -> Any:
    """The value that begins with the next event; `_NO_VALUE` at the end of a list or mapping."""
    from yaml import events as kinds

    for event in events:
        if isinstance(event, kinds.ScalarEvent):
            is_empty = event.implicit[0] and event.value in ("null", "~", "")
            return None if is_empty else event.value
        if isinstance(event, (kinds.CollectionEndEvent, kinds.DocumentEndEvent)):
            return _NO_VALUE
        if isinstance(event, kinds.AliasEvent) or depth > _DEEPEST:
            raise ValueError("an alias, or too deep")
        if isinstance(event, kinds.SequenceStartEvent):
            return list(_values(events, depth))
        if isinstance(event, kinds.MappingStartEvent):
            parts = _values(events, depth)
            # `zip` over one iterator pairs each key with the value after it.
            return {
                key: value for key, value in zip(parts, parts, strict=False) if isinstance(key, str)
            }
    return _NO_VALUE


def _values(events: Iterator[Any], depth: int) -> Iterator[Any]:
    with suppress(StopIteration):
        while (value := _value(events, depth + 1)) is not _NO_VALUE:
            yield value

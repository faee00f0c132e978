"""A file of Kubernetes objects -> the objects, each with the place where it begins.

A file may hold several outputs of kubectl, in JSON and in YAML. Items of a list are parsed one by one: a
list that is cut off keeps its complete items, and a large one needs the memory of a few items. YAML is read
without tags and anchors, its scalars as text: no file can make it grow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TextIO

from raydoctor.capture.contents import ABOVE
from raydoctor.capture.window import Window
from raydoctor.model.patterns import pattern
from raydoctor.read.kubernetes import described
from raydoctor.read.kubernetes.document import CUT, Damage, Document

LONGEST = 8 << 20
"""Characters of one object: a pod has some 20,000, and etcd stores at most 1.5 MiB."""
_AHEAD = 1 << 20
"""Characters to hold: few objects have more."""
_DEEPEST = 60
_NEAR = 4096
_MOST_DAMAGES = 5
"""So many objects in JSON may not end; the rest is not read: each costs a search of the whole text."""
_OBJECT = pattern(r"^(?:\{\s*$|apiVersion: )", re.MULTILINE)
"""The begin of an object in JSON or YAML."""
_HEAD = r'(?:"(?:apiVersion|kind)"\s*:\s*"[^"]{0,100}"|"metadata"\s*:\s*\{[^{}]{0,1000}\})'
_LIST = pattern(rf'\{{\s*(?:{_HEAD}\s*,\s*)*"items"\s*:\s*\[')
_BARE = pattern(r"\[")
_LIST_END = pattern(rf"\]\s*(?:,\s*{_HEAD}\s*)*\}}")
_BETWEEN = pattern(r"[\s,\ufeff]*")
_NEXT_ITEM = pattern(r",\n(?P<indent> {1,40})(?=\{\n(?P=indent) )")
_AFTER_ITEM = pattern(r",\n {1,40}\{|\n {0,40}\]")
_YAML_LIST = pattern(r"(?:(?!-)[^\n]*\n){0,20}?items:[^\S\n]*\n(?=- )")
_OTHER = r"^(?:---|\{|[^\s$#>%{-][^\n$#>%{]{0,200}[$#>%] ?kubectl "
"""What follows a YAML document: a mark, an object in JSON, or the next command."""
_YAML_END = pattern(rf"{_OTHER}|- |apiVersion:|kind:|metadata:)", re.MULTILINE)
_YAML_BREAKS = {
    key: pattern(rf"{_OTHER}|{key}:)" if key else rf"{_OTHER})", re.MULTILINE)
    for key in ("", "apiVersion", "items", "kind", "metadata", "status")
}
"""The end of a document that begins with this key: a mapping has each key once."""
_YAML_KEY = pattern(r"(?P<key>\w{1,20}):")
_KIND = pattern(r"^kind:", re.MULTILINE)
_YAML_BEGIN = pattern(r"(?:apiVersion|items|kind|metadata|status):|- ")
_RESUMES = pattern(r"^(?=[{\[]|---|apiVersion:)", re.MULTILINE)
"""Where an object can begin after damage: those within a list or another object are indented."""
_DESCRIBED_LIMIT = 64 << 20
"""Characters of outputs of `describe`, which are read as a whole."""
_LAST_LINE = "is cut off or damaged in its last line"
_IGNORED = pattern(rf"(?:[ \t]*(?:#[^\n]*)?\n|---[^\n]*(?:\n|\Z)|\.\.\.\n|{ABOVE})*")
_KIND_OF_ITEMS = pattern(r'"kind"\s*:\s*"(?P<kind>\w{1,100})List"')
_CHANGES = frozenset({"ADDED", "MODIFIED", "DELETED"})
"""What `kubectl get --watch --output-watch-events` and the API print around an object that changed."""


def documents(
    stream: TextIO, leave_out: Callable[[str, int], bool] = lambda raw, line: False
) -> Iterator[Document | Damage]:
    """The objects of a text; those of lists one by one.

    Items of an indented list whose text and line `leave_out` accepts are not parsed.
    """
    window = Window(stream)
    damages = 0
    while damages < _MOST_DAMAGES:
        window.ensure(LONGEST)
        begin = window.place
        window.skip(_IGNORED)
        window.skip(_BETWEEN)
        if window.is_end:
            return
        if window.text[window.place : window.place + 1] in ("{", "["):
            for each in _of_json(window, leave_out):
                damages += isinstance(each, Damage)
                yield each
        elif _is_described(window):
            window.place = begin  # the command above may name the pod
            yield from _of_description(window)
        else:
            yield from _of_yaml(window)


def _is_described(window: Window) -> bool:
    if _YAML_BEGIN.match(window.text, window.place):
        return False
    # Only this document: to look far ahead from each of many small ones takes too long.
    end = _YAML_BREAKS[""].search(window.text, window.place + 1, window.place + _NEAR)
    return described.is_described(
        window.text[window.place : end.start() if end else window.place + _NEAR]
    )


def _of_description(window: Window) -> Iterator[Document | Damage]:
    """The objects of outputs of `describe`, and of tables, up to the next object."""
    window.ensure(_DESCRIBED_LIMIT)
    above = window.line - 1
    for each in described.documents(_take(window, _OBJECT, 1)):
        yield each._replace(line=each.line + above)


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
                yield Damage(window.line, CUT)
            return
        char = window.text[window.place]
        if not is_list and char not in ("{", "["):
            return
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
                yield Damage(window.line, CUT)
                window.place += 1
                window.seek(_RESUMES)
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
    if isinstance(changed, dict) and str(data.get("type")) in _CHANGES:
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
    """The objects of one document."""
    line = window.line
    opened = window.skip(_YAML_LIST)
    if not opened:
        key = _YAML_KEY.match(window.text, window.place)
        end = _YAML_BREAKS.get(key["key"] if key else "", _YAML_BREAKS[""])
        yield from _parsed(window, end, "")
        return
    while window.text.startswith("- ", window.place):
        window.ensure(LONGEST)
        yield from _parsed(window, _YAML_END, "  ")
    # What is left of the list: `kind: List` and its metadata.
    tail = _take(window, _YAML_BREAKS["apiVersion"], 0)
    if not (_KIND.search(opened[0]) or _KIND.search(tail)):
        yield Damage(window.line if tail else line, CUT)


def _take(window: Window, end: re.Pattern[str], after: int) -> str:
    """The text up to a match, which becomes the current place."""
    begin = window.place
    found = end.search(window.text, begin + after)
    window.place = found.start() if found else len(window.text)
    return window.text[begin : window.place]


def _parsed(window: Window, end: re.Pattern[str], indent: str) -> Iterator[Document | Damage]:
    """The object at the current place; `indent` replaces the dash of an item."""
    line = window.line
    raw = _take(window, end, 1)
    if len(raw) > LONGEST:
        yield Damage(line, CUT)
        return
    text = indent + raw[len(indent) :]
    data = _yaml(text)
    if not isinstance(data, dict):
        # The last line of a paste may be cut off.
        data = _yaml(text.rstrip().rpartition("\n")[0])
        yield Damage(line, _LAST_LINE if isinstance(data, dict) else "is not valid YAML")
    if isinstance(data, dict):
        yield Document(data, line, raw)
        if _is_cut(data):
            yield Damage(line, CUT)


def _is_cut(data: dict[str, Any]) -> bool:
    """Whether an object of the API lacks a part that each has and that comes late: no manifest has a UID."""
    metadata, status = data.get("metadata"), data.get("status")
    if not isinstance(metadata, dict) or not metadata.get("uid"):
        return False
    if data.get("kind") == "Pod":
        return not isinstance(status, dict) or not status.get("phase")
    return data.get("kind") == "Event" and not data.get("type")


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

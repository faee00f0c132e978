"""JSON documents with lists of records -> their records.

Lists are parsed entry by entry, so that the memory of a few entries suffices and a document that is cut off
keeps its complete entries.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from raydoctor.capture.exports import labels
from raydoctor.capture.exports.labels import Place, Record
from raydoctor.capture.exports.repeats import Repeats
from raydoctor.capture.exports.streams import Streams
from raydoctor.capture.window import Window
from raydoctor.model.patterns import pattern

_LONGEST = 64 << 20
"""Characters of one entry: Loki answers with at most 5,000 lines for each stream."""
_AHEAD = 1 << 20
"""Characters to hold: an entry that they do not hold is parsed again from its beginning."""
_USUAL = 2_400
"""Characters of most entries."""
_BETWEEN = pattern(r"[\s,\ufeff]*")
_LIST = pattern(
    r'\{\s{0,99}(?:"\w{1,30}"\s{0,9}:\s{0,9}(?:"[^"\n]{0,200}"|[\w.]{1,30}|\{[^{}\[\]]{0,300}\}|\{),?\s{0,99}){0,8}?'
    r'"(?:events|result|results|streams|entries|hits)"\s{0,9}:\s{0,9}\['
)
"""Up to the list of entries of a document: CloudWatch's, Loki's, Cloud Logging's, Elasticsearch's."""
_NEXT = pattern(r"\n(?=[\[{])")
"""Where a document begins after damage, or after the rest of a document behind its list."""
_STREAM = pattern(r'\{\s*"stream"\s*:\s*(\{[^{}]{0,20000}\})\s*,\s*"values"\s*:\s*\[')
"""The beginning of one of Loki's streams."""
_VALUE = pattern(
    r'[\s,]*\[\s*"(\d{1,30})"\s*,\s*"([^"\\]*(?:\\.[^"\\]*)*)"\s*(?:,\s*\{[^{}]*\}\s*)?\]'
)
"""Time and text of a line, and its structured metadata."""
_VALUES_END = pattern(r"[\s,]*\]\s*\}")
_BETWEEN_PARTS = pattern(r'"\s*,\s*"')
_LENIENT = json.JSONDecoder(strict=False)
"""Shippers write tabs and other control characters as they are."""


@dataclass(slots=True)
class Documents:
    """The documents of one file. `is_one_line`: then no line numbers are given."""

    window: Window
    outer: Place
    is_one_line: bool
    add: Callable[[Record, int], None]
    into: Streams
    repeats: Repeats

    def read(self) -> None:
        """Add all records. Raises TooMuchError where the budget is spent."""
        window = self.window
        while self._is_more():
            if window.text[window.place] == "[" or window.skip(_LIST):
                window.place += window.text.startswith("[", window.place)
                self._read_list()
            elif not self._read_entry():
                self.into.note_damage(window.line)
                window.seek(_NEXT)

    def _is_more(self) -> bool:
        """Go to the next value; False at the end."""
        window = self.window
        window.skip(_BETWEEN)
        if len(window.text) - window.place < _AHEAD:
            self.into.check_time()
            window.fill()
            window.skip(_BETWEEN)
        return not window.is_end or (window.fill() and self._is_more())

    def _read_list(self) -> None:
        window = self.window
        begin, text = window.place, window.text
        while self._is_more():
            between = text[begin : window.place] if text is window.text else ""
            if window.text[window.place] == "]":
                window.place += 1
                self.into.end_page()
                window.seek(_NEXT)
                return
            if found := window.skip(_STREAM):
                data = _decoded(found[1])
                self._read_values(labels.place_of(data, self.outer) if data else self.outer)
            elif self._read_entry():
                if between:
                    self._read_repeated(between)
            else:
                self.into.note_damage(window.line)
                window.seek(_NEXT)
                return
            begin, text = window.place, window.text
        self.into.note_damage(window.line)

    def _read_entry(self) -> bool:
        """Read the value at the current place; False if it is damaged."""
        found = self._next()
        if not found:
            return False
        data, raw, line = found
        for record, place in records(data, self.outer, raw):
            self._add(record, line + raw.count("\n", 0, place))
            if isinstance(data, dict):
                self.repeats.learn(raw, data, record, self.outer)
        return True

    def _add(self, record: Record, line: int) -> None:
        self.add(record, 0 if self.is_one_line else line)

    def _read_repeated(self, between: str) -> None:
        """Read on while the entries of a list repeat earlier ones. `between`: what parts two of them."""
        window = self.window
        text, begin, line = window.text, window.place, window.line
        end_of_entry = f"}}{between}{{"
        while text.startswith(between, begin):
            first = begin + len(between)
            # A search in a short text needs no preparation.
            end = text.find(end_of_entry, first, first + _USUAL) + 1
            end = end or text.find(end_of_entry, first) + 1
            raw = text[first:end]
            if not end or not (found := self.repeats.find(raw, self.outer)):
                break
            if self.is_one_line:
                self.add(found, 0)
            else:
                place = first + _place_of_text(raw)
                line += text.count("\n", begin, place)
                self.add(found, line)
                line += text.count("\n", place, end)
            begin = end
        window.place = begin

    def _read_values(self, place: Place) -> None:
        """Read the values of one of Loki's streams."""
        window = self.window
        while True:
            if len(window.text) - window.place < _AHEAD:
                self.into.check_time()
                window.fill()
            if window.skip(_VALUES_END):
                return
            if record := self._value(place):
                self.add(*record)
                continue
            window.skip(_BETWEEN)
            found = self._next()
            if not found:
                self.into.note_damage(window.line)
                return
            data, raw, line = found
            for each, at in records({"values": [data]}, place, raw):
                self._add(each, line + raw.count("\n", 0, at))

    def _value(self, place: Place) -> tuple[Record, int] | None:
        """The value at the current place, and its line; None if it has to be parsed."""
        window = self.window
        found = _VALUE.match(window.text, window.place)
        if not found:
            return None
        text = found[2]
        if "\\" in text:
            try:
                text = _LENIENT.raw_decode(f'"{text}"')[0]
            except ValueError:
                return None
        window.place = found.start(2)
        line = 0 if self.is_one_line else window.line
        window.place = found.end()
        return Record(place, labels.nanoseconds(found[1]), text.removesuffix("\n")), line

    def _next(self) -> tuple[Any, str, int] | None:
        """The value at the current place, its text and line; None if it is damaged."""
        window = self.window
        while True:
            try:
                data, end = _LENIENT.raw_decode(window.text, window.place)
            except (ValueError, RecursionError) as error:
                if (
                    _is_cut_off(error, len(window.text))
                    and len(window.text) - window.place < _LONGEST
                    and window.fill()
                ):
                    continue
                return None
            line = window.line
            raw = window.text[window.place : end]
            window.place = end
            return data, raw, line


def _decoded(raw: str) -> dict[str, Any] | None:
    try:
        data = _LENIENT.decode(raw)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _is_cut_off(error: Exception, length: int) -> bool:
    """Whether more text may complete it."""
    return isinstance(error, json.JSONDecodeError) and (
        error.pos > length - 20 or error.msg.startswith("Unterminated string")
    )


def records(data: Any, outer: Place, raw: str) -> Iterator[tuple[Record, int]]:
    """The records in a value, each with the place of its text in `raw`."""
    if isinstance(data, list):  # of CloudWatch's Logs Insights: a list of fields
        data = {
            each["field"]: each.get("value")
            for each in data
            if isinstance(each, dict) and isinstance(each.get("field"), str)
        }
    if not isinstance(data, dict):
        return
    values = data.get("values")
    if isinstance(values, list):
        stream = data.get("stream", data.get("labels"))
        place = labels.place_of(stream, outer) if isinstance(stream, dict) else outer
        begin, end = 0, len(raw)
        for value in values:
            if isinstance(value, list) and len(value) > 1 and isinstance(value[1], str):
                # Where one is not found, none is looked for after it.
                begin = at if (at := raw.find(f'"{value[0]}"', begin, end)) >= 0 else (end := begin)
                found = _BETWEEN_PARTS.search(raw, begin, end)
                text = value[1].removesuffix("\n")
                yield (
                    Record(place, labels.nanoseconds(value[0]), text),
                    found.end() if found else begin,
                )
    elif record := labels.record_of(data, outer):
        yield record, _place_of_text(raw)


def _place_of_text(raw: str) -> int:
    if "\n" in raw:
        for key in _TEXT_KEYS:
            if (at := raw.find(key)) >= 0:
                return at
    return 0


_TEXT_KEYS = tuple(f'"{key}":' for key in ("message", "textPayload", "log", "line", "msg"))

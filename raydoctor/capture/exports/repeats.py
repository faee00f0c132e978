"""Recognizes records that differ from an earlier one only in text, time and numbers, without parsing them.

Nearly all records of an export do: their labels are those of an earlier record. A record is cut at the keys
of its varying values. If everything between the values equals that of a parsed record, so does its structure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from raydoctor.capture.exports import labels
from raydoctor.capture.exports.labels import Place, Record
from raydoctor.model.patterns import pattern

_MOST, _LONGEST = 10_000, 4096
"""Records to remember, and characters of each without its values."""
_END = pattern(r'[^"\\]*(?:\\.[^"\\]*)*"')
_FLOAT = pattern(r"\d{1,20}\.\d{1,20}")
_LENIENT = json.JSONDecoder(strict=False)
_TEXT, _TIME, _OTHER, _NONE = range(4)


class _Value(NamedTuple):
    """A value that varies."""

    place: int
    """In the record that it was found in: values are sorted by it."""
    key: str
    """As it is written, up to the value."""
    end: str
    """The character behind the value."""
    kind: int


class _Template(NamedTuple):
    place: Place
    output: str
    is_docker: bool
    """Whether a text without an end of line is a part of a line."""


class UsualLine(NamedTuple):
    """What lines with one text before one time have around these."""

    key: str
    """Up to the text."""
    between: str
    end: str
    """Behind the quote that ends the time."""
    places: dict[str, Place]
    """By what is before `key`."""


class Repeats:
    """The records that were parsed so far."""

    def __init__(self) -> None:
        self._values: tuple[_Value, ...] = ()
        self._known: dict[tuple[Place, tuple[str, ...]], _Template] = {}
        self._learned = 0

    def find(self, raw: str, outer: Place) -> tuple[Record, int] | None:
        """The record of a JSON object, and the place of its text; None if it must be parsed.

        `outer`: the place of the text around it.
        """
        if not self._known or not (pieces := _cut(raw, self._values)):
            return None
        fixed, text, at, place = pieces
        known = self._known.get((outer, tuple(fixed)))
        record = _repeated(known, text, at) if known else None
        return (record, place) if record else None

    def usual_line(self, outer: Place) -> UsualLine | None:
        """What the records that were parsed last have in common, if they have one text before one time."""
        if [(each.kind, each.end) for each in self._values] != [(_TEXT, '"'), (_TIME, '"')]:
            return None
        key = self._values[0].key
        between, end = next(reversed(self._known))[1][1:]
        places = {
            fixed[0].removesuffix(key): known.place
            for (where, fixed), known in self._known.items()
            if where == outer
            and fixed[1:] == (between, end)
            and not (known.output or known.is_docker)
        }
        return UsualLine(key, between, end[1:], places)

    def learn(self, raw: str, data: dict[str, Any], record: Record, outer: Place) -> None:
        """Remember a record that was parsed."""
        if self._learned >= _MOST or record.is_partial:
            return
        self._learned += 1
        values = tuple(sorted(_values(raw, data, record)))
        kinds = {each.kind for each in values} - {_OTHER}
        pieces = _cut(raw, values) if kinds == ({_TEXT, _TIME} if record.at else {_TEXT}) else None
        if pieces is None or sum(map(len, pieces[0])) > _LONGEST:
            return
        fixed, text, at, _ = pieces
        known = _Template(record.place, record.output, labels.is_docker(data))
        if _repeated(known, text, at) == record:
            self._values = values
            self._known[outer, tuple(fixed)] = known


def _values(raw: str, data: dict[str, Any], record: Record) -> Iterator[_Value]:
    """The values of a record that vary."""
    nested = [data[key] for key in labels.NESTED if isinstance(data.get(key), dict)][:1]
    wanted = {_TEXT, _TIME}
    for each in (data, *nested):
        has_text = not nested or each is nested[0]
        for name in labels.VARYING:
            value = each.get(name)
            kind = _OTHER
            if name in labels.TEXTS:
                is_text = isinstance(value, str) and value.removesuffix("\n") == record.text
                kind = _TEXT if is_text and has_text else _NONE
            elif name in labels.TIMES and _TIME in wanted:
                kind = _TIME if labels.nanoseconds(value) == record.at else _NONE
            key = re.search(
                rf'"{re.escape(name)}"\s{{0,9}}:\s{{0,9}}(?:"|(?=\d[\w.+-]{{0,40}}([^\w.+-])))', raw
            )
            if kind == _NONE or (kind != _OTHER and kind not in wanted):
                continue
            if key and raw.count(key[0]) == 1 and isinstance(value, str | int | float):
                wanted.discard(kind)
                yield _Value(key.start(), key[0], key[1] or '"', kind)


def _cut(raw: str, values: tuple[_Value, ...]) -> tuple[list[str], str, str, int] | None:
    """What is between the varying values of an object, its text, its time, and the place of the text.

    None if it does not contain the values in this order.
    """
    end, place = 0, 0
    text = at = ""
    fixed: list[str] = []
    for _, key, char, kind in values:
        begin = raw.find(key, end)
        if begin < 0:
            return None
        begin += len(key)
        fixed.append(raw[end:begin])
        end = raw.find(char, begin)
        if end < 0:
            return None
        if raw[end - 1] == "\\":
            found = _END.match(raw, begin)
            if not found:
                return None
            end = found.end() - 1
        if kind == _TEXT:
            text, place = raw[begin:end], begin
        elif kind == _TIME:
            at = raw[begin:end]
    fixed.append(raw[end:])
    return fixed, text, at, place


def _repeated(known: _Template, text: str, at: str) -> Record | None:
    """The record that consists of known labels and a text and a time as they are written; None if damaged."""
    is_float = at[10:11] == "." and _FLOAT.fullmatch(at)
    time = labels.nanoseconds(float(at) if is_float else at)
    if at and not time:
        return None
    whole = unescaped(text) if "\\" in text else text
    if whole is None or (known.is_docker and whole[-1:] != "\n"):
        return None
    return Record(known.place, time, whole.removesuffix("\n"), known.output)


def unescaped(text: str) -> str | None:
    """A text of JSON as it is written between its quotes, without escapes; None if it is damaged."""
    try:
        decoded, end = _LENIENT.raw_decode(f'"{text}"')
    except ValueError:
        return None
    return decoded if end == len(text) + 2 else None

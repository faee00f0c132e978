"""A file of an export -> its records, in the order of the file.

JSON is read as one record to a line, or as documents. CRI's lines and those of `kubectl logs --prefix` are
read as lines.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from raydoctor.capture.exports import labels
from raydoctor.capture.exports.documents import Documents
from raydoctor.capture.exports.labels import Place, Record
from raydoctor.capture.exports.repeats import Repeats
from raydoctor.capture.exports.streams import Streams
from raydoctor.capture.window import Window

_CHUNK, _FEW = 4 << 20, 128 << 10
"""Bytes to read at once, and those that are read one by one if one line among them is unusual."""
_LINE_LIMIT = 4 << 20
_LONGEST_JOINED, _MOST_BEGUN = 1 << 20, 500
"""Characters of a line that is joined, and such lines at once."""
_CRI = re.compile(
    r"(\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:\d\d)) (stdout|stderr) ([FP])[:\w]* "
)
_KUBECTL = re.compile(r"\[pod/([^/\]\s]{1,253})/([^\]\s]{1,253})\] ?")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:\d\d)) ")
_FLUENT_FILE = re.compile(r"[\w.*-]{1,200}: \[(\d{10}\.\d{1,9}), (?=\{)")
"""A line of Fluent Bit's `file` output: `tag: [1700000000.123, {…}]`."""
_LENIENT = json.JSONDecoder(strict=False)
"""Shippers write tabs and other control characters as they are."""


def read(file: str, outer: Place, into: Streams) -> None:
    """Add the records of a file to streams; `outer`: the place that the path of the file names.

    Raises OSError, and TooMuchError where the budget is spent.
    """
    reader = _Reader(into)
    with open(file, "rb") as stream:
        head = stream.read(_LINE_LIMIT).decode("utf-8", "replace")
        stream.seek(0)
        if any(form.match(head) for form in (_CRI, _KUBECTL, _STAMP, _FLUENT_FILE)):
            reader.read_lines(stream, outer)
        elif _is_line_by_line(head):
            reader.read_json_lines(stream, outer)
        else:
            text = codecs.getreader("utf-8")(stream, "replace")
            reader.read_documents(Window(text), outer, is_one_line=head.count("\n") < 2)
    reader.end()


def _is_line_by_line(head: str) -> bool:
    """Whether the first line is a whole record."""
    first = _object(head.lstrip("\ufeff\r\n ").partition("\n")[0])
    return first is not None and "values" not in first and labels.record_of(first) is not None


def _object(raw: str) -> dict[str, Any] | None:
    try:
        data = _LENIENT.decode(raw)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


class _Reader:
    """Reads the records of one file, joins the parts of lines, and opens the records inside of records."""

    def __init__(self, into: Streams) -> None:
        self._into = into
        self._begun: dict[tuple[Place, str], tuple[Record, int]] = {}
        """Lines that go on, by place and output."""
        self._outer, self._inner = Repeats(), Repeats()

    def end(self) -> None:
        """Add the lines that nothing completed."""
        for record, line in self._begun.values():
            self._into.add(record, line)

    def _add(self, record: Record, line: int) -> None:
        """Add a record of the file, or the one inside it."""
        if record.is_partial or self._begun:
            key = (record.place, record.output)
            if earlier := self._begun.pop(key, None):
                record = record._replace(text=earlier[0].text + record.text)
            is_short = len(record.text) < _LONGEST_JOINED and len(self._begun) < _MOST_BEGUN
            if record.is_partial and is_short:
                self._begun[key] = (record, line)
                return
        text = record.text
        if text[:1] == "{" and text[-1:] == "}":
            record = self._inside(record) or record
        self._into.add(record, line)

    def _inside(self, record: Record) -> Record | None:
        """The record of a shipper inside a record: a sidecar prints those of Ray's files as its output."""
        inner = self._inner.find(record.text, record.place)
        if inner is None:
            data = _object(record.text) or {}
            parsed = labels.record_of(data, record.place)
            if parsed is None or not parsed.place.file:
                return None
            inner = parsed
            self._inner.learn(record.text, data, inner, record.place)
        return inner if inner.at else Record(inner.place, record.at, inner.text, inner.output)

    # ------------------------------------------------------------ lines

    def read_lines(self, stream: BinaryIO, outer: Place) -> None:
        """Read CRI's lines, those of `kubectl logs`, and those of Fluent Bit's `file` output."""
        places: dict[str, Place] = {}
        at, first = 0, 1
        for block in _blocks(stream):
            self._into.check_time()
            lines = block.decode("utf-8", "replace").split("\n")
            for number, raw in enumerate(lines, first):
                place, output, is_partial, begin, end = outer, "", False, 0, len(raw)
                if raw[:1] == "[" and (found := _KUBECTL.match(raw)):
                    begin = found.end()
                    if found[0] not in places:
                        places[found[0]] = outer._replace(pod=found[1], container=found[2])
                    place = places[found[0]]
                if found := _CRI.match(raw, begin):
                    at, begin = labels.nanoseconds(found[1]), found.end()
                    output, is_partial = found[2], found[3] == "P"
                elif found := _STAMP.match(raw, begin):
                    at, begin = labels.nanoseconds(found[1]), found.end()
                elif found := _FLUENT_FILE.match(raw):
                    at, begin = labels.nanoseconds(float(found[1])), found.end()
                    end = raw.rfind("]")
                self._add(Record(place, at, raw[begin:end], output, is_partial), number)
            first += len(lines)

    # ------------------------------------------------------------ JSON, one record to a line

    def read_json_lines(self, stream: BinaryIO, outer: Place) -> None:
        """Read one record from each line."""
        first = 1
        for block in _blocks(stream, _FEW):
            self._into.check_time()
            rows = block.split(b"\n")
            found = None if self._begun else self._outer.find_all(rows, outer)
            if found is None:
                self._read_each(rows, first, outer)
            for place, output, lines, times, texts in found or ():
                self._into.extend(place, times, [first + line for line in lines], texts, output)
            first += len(rows)

    def _read_each(self, lines: list[bytes], first: int, outer: Place) -> None:
        for number, line in enumerate(lines, first):
            raw = line.decode("utf-8", "replace")
            record = self._outer.find(raw, outer)
            if record is None:
                data = _object(raw)
                if data is None:
                    if raw.strip():
                        self._into.note_damage(number)
                elif record := labels.record_of(data, outer):
                    self._outer.learn(raw, data, record, outer)
            if record:
                self._add(record, number)

    # ------------------------------------------------------------ JSON, as documents

    def read_documents(self, window: Window, outer: Place, is_one_line: bool) -> None:
        """Read documents that are records, or hold lists of them."""
        Documents(window, outer, is_one_line, self._add, self._into, self._outer).read()


def _blocks(stream: BinaryIO, size: int = _CHUNK) -> Iterator[bytes]:
    """Many lines at once, without the end of the last; of one that is too long, the beginning."""
    while block := stream.read(size):
        rest = stream.readline(_LINE_LIMIT)
        block += rest
        while rest and rest[-1:] != b"\n":
            rest = stream.readline(_LINE_LIMIT)
        yield block.removesuffix(b"\n")

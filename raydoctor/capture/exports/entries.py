"""A file of an export -> its records, in the order of the file.

JSON is read as a sequence of documents, whether they are one to a line or printed over many; the lists of
entries in them are parsed entry by entry, so that the memory of a few entries suffices and a document that is
cut off keeps its complete entries. CRI's lines and those of `kubectl logs --prefix` are read as lines.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from raydoctor.capture.exports import labels
from raydoctor.capture.exports.labels import Place, Record
from raydoctor.model.patterns import pattern

_CHUNK = 4 << 20
_LONGEST = 64 << 20
"""Characters of one entry: Loki answers with at most 5,000 lines for each stream."""
_LINE_LIMIT = 4 << 20
_LONGEST_JOINED, _MOST_BEGUN = 1 << 20, 500
"""Characters of a line that is joined, and such lines at once."""
_CRI = re.compile(
    rb"(\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:\d\d)) (stdout|stderr) ([FP])[:\w]* "
)
_KUBECTL = re.compile(rb"\[pod/([^/\]\s]{1,253})/([^\]\s]{1,253})\] ?")
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:\d\d)) ")
_FLUENT_FILE = re.compile(rb"[\w.*-]{1,200}: \[(\d{10}\.\d{1,9}), (?=\{)")
"""A line of Fluent Bit's `file` output: `tag: [1700000000.123, {…}]`."""
_BETWEEN = pattern(r"[\s,\ufeff]*")
_LIST = pattern(
    r'\{\s{0,99}(?:"\w{1,30}"\s{0,9}:\s{0,9}(?:"[^"\n]{0,200}"|[\w.]{1,30}|\{[^{}\[\]]{0,300}\}|\{),?\s{0,99}){0,8}?'
    r'"(?:events|result|results|streams|entries|hits)"\s{0,9}:\s{0,9}\['
)
"""Up to the list of entries of a document: CloudWatch's, Loki's, Cloud Logging's, Elasticsearch's."""
_NEXT = pattern(r"\n(?=[\[{])")
"""Where a document begins after damage, or after the rest of a document behind its list."""
_VALUE = pattern(r'"\s*,\s*"')


class Entry(NamedTuple):
    """A record, with its place in the export."""

    record: Record
    line: int
    """1-based; 0 if the whole export is one line."""


class Damaged(NamedTuple):
    """Where a file could not be parsed."""

    line: int


class Page(NamedTuple):
    """The end of a document: the next one may repeat entries."""


def entries(file: str, outer: Place) -> Iterator[Entry | Damaged | Page]:
    """The records of a file; `outer`: the place that the path of the file names. Raises OSError."""
    begun: dict[tuple[Place, str], Entry] = {}
    for entry in _entries(file, outer):
        if not isinstance(entry, Entry):
            yield entry
        elif entry.record.is_partial or begun:
            if whole := _joined(entry, begun):
                yield _unwrapped(whole)
        else:
            yield _unwrapped(entry)
    yield from begun.values()


def _joined(entry: Entry, begun: dict[tuple[Place, str], Entry]) -> Entry | None:
    """The whole line that ends with a record; None if the line goes on. `begun`: lines that go on."""
    record = entry.record
    key = (record.place, record.output)
    if earlier := begun.pop(key, None):
        record = record._replace(text=earlier.record.text + record.text)
    is_short = len(record.text) < _LONGEST_JOINED and len(begun) < _MOST_BEGUN
    if record.is_partial and is_short:
        begun[key] = Entry(record, entry.line)
        return None
    return Entry(record, entry.line)


def _entries(file: str, outer: Place) -> Iterator[Entry | Damaged | Page]:
    with open(file, "rb") as stream:
        head = stream.read(_LINE_LIMIT)
        stream.seek(0)
        if any(form.match(head) for form in (_CRI, _KUBECTL, _STAMP, _FLUENT_FILE)):
            yield from _of_lines(stream, outer)
        elif _is_line_by_line(head):
            yield from _of_json_lines(stream, outer)
        else:
            text = codecs.getreader("utf-8")(stream, "replace")
            yield from _of_json(text, outer, is_one_line=head.count(b"\n") < 2)


# ---------------------------------------------------------------- lines


def _of_lines(stream: BinaryIO, outer: Place) -> Iterator[Entry | Damaged]:
    places: dict[tuple[bytes, bytes], Place] = {}
    at = 0
    for number, raw in enumerate(_lines(stream), 1):
        place, output, is_partial, begin, end = outer, "", False, 0, len(raw)
        if found := _KUBECTL.match(raw):
            key = (found[1], found[2])
            if key not in places:
                pod, container = (part.decode("utf-8", "replace") for part in key)
                places[key] = outer._replace(pod=pod, container=container)
            place, begin = places[key], found.end()
        if found := _CRI.match(raw, begin):
            at, begin = labels.nanoseconds(found[1].decode()), found.end()
            output, is_partial = found[2].decode(), found[3] == b"P"
        elif found := _STAMP.match(raw, begin):
            at, begin = labels.nanoseconds(found[1].decode()), found.end()
        elif found := _FLUENT_FILE.match(raw):
            at, begin = labels.nanoseconds(float(found[1])), found.end()
            end = raw.rfind(b"]")
        text = raw[begin:end].decode("utf-8", "replace")
        yield Entry(Record(place, at, text, output, is_partial), number)


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines without their ends; of one that is too long, the beginning."""
    while raw := stream.readline(_LINE_LIMIT):
        rest = raw
        while rest[-1:] != b"\n" and (rest := stream.readline(_LINE_LIMIT)):
            pass
        yield raw.removesuffix(b"\n")


def _unwrapped(entry: Entry) -> Entry:
    """The record of a shipper inside a record: a sidecar prints those of Ray's files as its output."""
    text = entry.record.text
    if text[:1] != "{" or text[-1:] != "}":
        return entry
    data = _object(text)
    inner = labels.record_of(data, entry.record.place) if data is not None else None
    if inner is None or not inner.place.file:
        return entry
    return Entry(inner._replace(at=inner.at or entry.record.at), entry.line)


# ---------------------------------------------------------------- JSON, one record to a line


def _is_line_by_line(head: bytes) -> bool:
    """Whether the first line is a whole record."""
    first = _object(head.lstrip(b"\xef\xbb\xbf\r\n ").partition(b"\n")[0])
    return first is not None and "values" not in first and labels.record_of(first) is not None


def _object(raw: bytes | str) -> dict[str, Any] | None:
    try:
        data = json.loads(raw, strict=False)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


class _Form(NamedTuple):
    """What a line consists of besides its text and its time; the beginning of the line is the key."""

    place: Place
    before: bytes
    """Between text and time, with the quotation marks of both."""
    after: bytes
    """Behind the time."""


def _of_json_lines(stream: BinaryIO, outer: Place) -> Iterator[Entry | Damaged]:
    """The records of lines. Most begin as an earlier one does, and need no parsing."""
    forms: dict[bytes, _Form] = {}
    learned, mark = 0, b""
    for number, raw in enumerate(_lines(stream), 1):
        if mark:
            begin = raw.find(mark) + len(mark)
            if (form := forms.get(raw[:begin])) and (known := _by_form(raw, begin, form)):
                yield Entry(known, number)
                continue
        data = _object(raw)
        if data is None:
            if raw.strip():
                yield Damaged(number)
            continue
        record = labels.record_of(data, outer)
        if record is None:
            continue
        yield Entry(record, number)
        if (
            learned < _MOST_FORMS
            and not record.is_partial
            and (found := _form_of(raw, data, record))
        ):
            mark, key, form = found
            forms[key] = form
            learned += 1


_MOST_FORMS, _LONGEST_FORM = 10_000, 4096
_LENIENT = json.JSONDecoder(strict=False)
"""Shippers write tabs and other control characters as they are."""
_ESCAPED_END = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


def _form_of(raw: bytes, data: dict[str, Any], record: Record) -> tuple[bytes, bytes, _Form] | None:
    """The form of a line: its text's key, its beginning and the rest; None if it has another."""
    key, stamp = labels.text_key(data), labels.stamp(data)
    mark = f'"{key}":"'.encode()
    begin = raw.find(mark) + len(mark)
    end = _ESCAPED_END.match(raw, begin)
    if begin < len(mark) or not end or not stamp or stamp[-1:] != "Z" or labels.is_docker(data):
        return None
    is_other = _object(b'{"":' + raw[begin - 1 : end.end()] + b"}") != {"": data[key]}
    if is_other:  # a label of the same name
        return None
    before, at, after = raw[end.end() - 1 :].partition(f'"{stamp}"'.encode())
    is_long = begin + len(before) + len(after) > _LONGEST_FORM
    if not at or is_long or any(name in data for name in labels.NESTED):
        return None
    return mark, raw[:begin], _Form(record.place, before + b'"', b'"' + after)


def _by_form(raw: bytes, begin: int, form: _Form) -> Record | None:
    """The record of a line that begins as an earlier one; None if it differs from it further on."""
    end = raw.rfind(form.before)
    at = raw[end + len(form.before) : len(raw) - len(form.after)]
    if end < begin or not raw.endswith(form.after) or not 19 < len(at) < 36 or b'"' in at:
        return None
    text = raw[begin:end].decode("utf-8", "replace")
    if "\\" in text:
        try:
            text = str(_LENIENT.decode(f'"{text}"'))
        except ValueError:
            return None
    return Record(
        form.place, labels.nanoseconds(at.decode("ascii", "replace")), text.removesuffix("\n")
    )


# ---------------------------------------------------------------- JSON, as documents


class _Text:
    """A part of a long text, from the current place on."""

    def __init__(self, stream: codecs.StreamReader) -> None:
        self._stream = stream
        self._line, self._counted = 1, 0
        self.text, self.place = "", 0

    def fill(self, more: int = _CHUNK) -> bool:
        """Read on; False at the end."""
        self._count()
        chunk = self._stream.read(more)
        self.text, self.place, self._counted = self.text[self.place :] + chunk, 0, 0
        return bool(chunk)

    def skip(self, form: re.Pattern[str]) -> bool:
        """Go past a match at the current place."""
        found = form.match(self.text, self.place)
        self.place = found.end() if found else self.place
        return found is not None

    @property
    def line(self) -> int:
        """The number of the current line."""
        self._count()
        return self._line

    def _count(self) -> None:
        self._line += self.text.count("\n", self._counted, self.place)
        self._counted = self.place

    def seek_next(self) -> bool:
        """Go to the next document; False if there is none."""
        while True:
            if found := _NEXT.search(self.text, self.place):
                self.place = found.end()
                return True
            self.place = max(len(self.text) - 1, self.place)
            if not self.fill():
                return False


def _of_json(
    stream: codecs.StreamReader, outer: Place, is_one_line: bool
) -> Iterator[Entry | Damaged | Page]:
    window = _Text(stream)
    in_list = False
    while True:
        window.skip(_BETWEEN)
        if len(window.text) - window.place < _CHUNK // 4:
            window.fill()
            window.skip(_BETWEEN)
        if window.place >= len(window.text):
            if window.fill():
                continue
            if in_list:
                yield Damaged(window.line)
            return
        char = window.text[window.place]
        if in_list and char == "]":
            in_list = False
            window.place += 1
            yield Page()
            if not window.seek_next():
                return
        elif not in_list and (char == "[" or window.skip(_LIST)):
            in_list = True
            window.place += char == "["
        elif found := _decoded(window):
            data, raw, line = found
            for record, place in records(data, outer, raw):
                yield Entry(record, 0 if is_one_line else line + raw.count("\n", 0, place))
        else:
            yield Damaged(window.line)
            in_list = False
            if not window.seek_next():
                return


def _decoded(window: _Text) -> tuple[Any, str, int] | None:
    """The value at the current place, its text and line; None if it is damaged."""
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
                found = _VALUE.search(raw, begin, end)
                text = value[1].removesuffix("\n")
                yield (
                    Record(place, labels.nanoseconds(value[0]), text),
                    found.end() if found else begin,
                )
    elif record := labels.record_of(data, outer):
        yield record, _place_of_text(raw)


def _place_of_text(raw: str) -> int:
    if "\n" not in raw:
        return 0
    return max(next((at for key in _TEXT_KEYS if (at := raw.find(key)) >= 0), 0), 0)


_TEXT_KEYS = tuple(f'"{key}":' for key in ("message", "textPayload", "log", "line", "msg"))

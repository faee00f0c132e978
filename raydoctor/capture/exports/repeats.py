"""Recognizes records that differ from an earlier one only in text, time and numbers, and decodes only these.

Nearly all records of an export do: their labels are those of an earlier record. The fields that name the
place of a record are compared as they are written. If they equal those of a parsed record, so does the place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from raydoctor.capture.exports import labels
from raydoctor.capture.exports.labels import Place, Record

_MOST, _LONGEST, _MOST_FIELDS = 10_000, 4096, 100
"""Records to remember, bytes of the place of each as it is written, and fields of a form."""
_OF_FORM = 50
"""Records that a change of a form counts for: it takes as long as to learn so many."""
_TEXT, _TIME, _PLACE, _OTHER = range(4)
"""What a field is for."""
Time = int | float | str | None
"""As it is written; None if records of this kind have none."""
ERRORS = (ValueError, RecursionError)
"""Of `Form.decode`: the record has other fields or types, or is not strict JSON."""


class Template(NamedTuple):
    """What records whose places are written alike have in common."""

    place: Place
    output: str
    may_be_docker: bool
    """Whether a text without an end of line may be a part of a line."""

    def record(self, text: str, time: Time) -> Record | None:
        """The record with this text and time; None if it must be parsed."""
        at = labels.nanoseconds(time)
        if (not at and time is not None) or (self.may_be_docker and text[-1:] != "\n"):
            return None
        return Record(self.place, at, text.removesuffix("\n"), self.output)


class _Kind(NamedTuple):
    """Where the text and the time of a record are."""

    nested: str
    """The object with the text; empty if it is the record itself."""
    text: str
    is_time_nested: bool
    time: str
    """Empty if there is none."""

    def use(self, is_nested: bool, name: str) -> int:
        """What a field is for."""
        if name in labels.TEXTS:
            is_here = is_nested == bool(self.nested)
            return _use(labels.TEXTS, name, self.text, _TEXT) if is_here else _OTHER
        if name in labels.TIMES:
            if is_nested == self.is_time_nested:
                return _use(labels.TIMES, name, self.time, _TIME)
            return _OTHER if is_nested else _PLACE
        return _OTHER if name in labels.VARYING else _PLACE


def _use(names: tuple[str, ...], name: str, chosen: str, use: int) -> int:
    """A field that would be chosen before the chosen one has to stay as it is."""
    if name == chosen:
        return use
    return _OTHER if chosen and names.index(name) > names.index(chosen) else _PLACE


def _kind(data: Mapping[str, Any]) -> _Kind | None:
    """The kind of a record; None if its text is in no field, or deeper."""
    nested = next((key for key in labels.NESTED if isinstance(data.get(key), dict)), "")
    inner = data[nested] if nested else {}
    text = labels.text_key(inner if nested else data)
    if not text or any(isinstance(inner.get(key), dict) for key in labels.NESTED):
        return None
    for is_nested, each in ((False, data), (True, inner)):
        for name in labels.TIMES:
            if labels.nanoseconds(each.get(name)):
                return _Kind(nested, text, is_nested, name)
    return _Kind(nested, text, True, "")


class Records(NamedTuple):
    """Some records of one place."""

    place: Place
    output: str
    lines: list[int]
    """Counted from the first line, which is 0."""
    times: list[int]
    texts: list[str]


class Form:
    """The records of one kind: how to decode them, and the places of those that were parsed."""

    decode: Callable[[bytes | str], Any]
    """Decodes a record. Raises `ERRORS`."""
    text: Callable[[Any], str]
    """Of a decoded record."""
    time: Callable[[Any], Time]
    key: Callable[[Any], bytes]
    """What names its place, as it is written."""

    def __init__(self, kind: _Kind) -> None:
        self._kind = kind
        self._names: frozenset[tuple[bool, str]] = frozenset()
        self.templates: dict[Place, dict[bytes, Template]] = {}
        """By the place of the text around a record, and by the fields that name its own."""

    def grow(self, data: Mapping[str, Any]) -> bool:
        """Add the fields of a record; returns whether there are new ones.

        Raises ValueError if they have strange names, or are too many.
        """
        nested = self._kind.nested
        names = {(False, name) for name in data if not nested or name != nested}
        names |= {(True, name) for name in (data[nested] if nested else ())}
        if names <= self._names:
            return False
        names |= self._names
        if len(names) > _MOST_FIELDS:
            raise ValueError("too many fields")
        self._prepare(sorted(names))
        self._names = frozenset(names)
        return True

    def _prepare(self, names: list[tuple[bool, str]]) -> None:
        import msgspec  # slow to import, and only exports need it

        nothing = msgspec.Raw(b"")
        fields: tuple[list[Any], list[Any]] = ([], [])
        rename = {"inner": self._kind.nested}
        wanted = {_TEXT: "none", _TIME: "none"}
        fixed = []
        for number, (is_nested, name) in enumerate(names):
            field = f"f{number}"
            path, use = f"inner.{field}" if is_nested else field, self._kind.use(is_nested, name)
            rename[field] = name
            if use in wanted:
                wanted[use] = path
                fields[is_nested].append((field, str if use == _TEXT else int | float | str))
            else:
                fields[is_nested].append((field, msgspec.Raw, nothing))
                fixed += [path] * (use == _PLACE)
        options: dict[str, Any] = {"rename": rename, "forbid_unknown_fields": True}
        options |= {"kw_only": True, "gc": False, "namespace": {"none": None, "nothing": nothing}}
        if self._kind.nested:
            fields[False].append(("inner", msgspec.defstruct("Inner", fields[True], **options)))
        row = msgspec.defstruct("Row", fields[False], **options)
        self.decode = msgspec.json.Decoder(row).decode
        self.text, self.time = map(attrgetter, wanted.values())
        fields_of = attrgetter("nothing", *(fixed or ["nothing"]))
        self.key = lambda row: b"\0".join(fields_of(row))


class Repeats:
    """The records that were parsed so far."""

    def __init__(self) -> None:
        self._forms: dict[_Kind, Form] = {}
        self._learned = 0
        self.form: Form | None = None
        """Of the record that was parsed last."""

    def find(self, raw: str, outer: Place) -> Record | None:
        """The record of a JSON object; None if it must be parsed.

        `outer`: the place of the text around it.
        """
        if self.form is None or not (templates := self.form.templates.get(outer)):
            return None
        try:
            row = self.form.decode(raw)
        except ERRORS:
            return None
        known = templates.get(self.form.key(row))
        return known.record(self.form.text(row), self.form.time(row)) if known else None

    def find_all(self, lines: list[bytes], outer: Place) -> list[Records] | None:
        """The records of some lines; None if one of them is not as usual."""
        form = self.form
        if form is None:
            return None
        try:
            rows = list(map(form.decode, lines))
        except ERRORS:
            return None
        texts, times = list(map(form.text, rows)), list(map(form.time, rows))
        at = labels.all_nanoseconds(times)
        if (0 in at and times[0] is not None) or "{" in [text[:1] for text in texts]:
            return None
        by_key: defaultdict[bytes, list[int]] = defaultdict(list)
        for index, key in enumerate(map(form.key, rows)):
            by_key[key].append(index)
        templates = form.templates.get(outer, {})
        found = []
        for key, indices in by_key.items():
            known, own = templates.get(key), [texts[n] for n in indices]
            if known is None or (known.may_be_docker and {text[-1:] for text in own} != {"\n"}):
                return None
            own = [text.removesuffix("\n") for text in own]
            found.append(Records(known.place, known.output, indices, [at[n] for n in indices], own))
        return found

    def learn(self, raw: str, data: dict[str, Any], record: Record, outer: Place) -> None:
        """Remember a record that was parsed."""
        kind = _kind(data)
        if self._learned >= _MOST or kind is None or record.is_partial or "values" in data:
            return
        self._learned += 1
        form = self._forms.setdefault(kind, Form(kind))
        try:
            self._learned += _OF_FORM * form.grow(data)
            row = form.decode(raw)
        except ERRORS:
            return
        is_nested = bool(kind.nested)
        own = data[kind.nested] if is_nested else data
        names = dict.fromkeys(name for name in own if kind.use(is_nested, name) != _OTHER)
        template = Template(record.place, record.output, labels.is_docker(names))
        key = form.key(row)
        if len(key) <= _LONGEST and template.record(form.text(row), form.time(row)) == record:
            self.form = form
            form.templates.setdefault(outer, {})[key] = template

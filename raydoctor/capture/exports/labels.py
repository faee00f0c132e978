"""A record of a log store -> the place where its text was written, its time and its text.

The names of fields are those of Loki (labels of Promtail and Alloy), CloudWatch, Cloud Logging, Fluent Bit,
Vector, Filebeat and the OpenTelemetry conventions: all are reduced to letters and digits without the names of
the objects around them, so that `kubernetes.pod_name`, `k8s.pod.name` and `resource.labels.pod_name` are one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, NamedTuple

from raydoctor.capture.layout import read_name
from raydoctor.model.patterns import pattern

_AROUND = (
    "kubernetes", "k8s", "resource", "labels", "label", "stream", "fields", "attributes", "attr",
    "jsonpayload", "metadata", "meta", "source", "docker", "ecs", "logevent",
)  # fmt: skip
"""Names of objects around a field, as prefixes of its full name."""
_PODS = ("pod", "podname")
_CONTAINERS = ("container", "containername")
_NAMESPACES = ("namespace", "podnamespace")
_HOSTS = ("host", "hostname", "instance", "instanceid", "node", "logstreamname", "logstream")
_STREAMS = ("instanceid", "logstreamname", "logstream")
"""Those that only a store writes."""
_FILES = ("filename", "file", "filepath", "path", "logfilepath", "logfile")
TEXTS = ("line", "log", "message", "msg", "textPayload", "@message", "body")
TIMES = ("timestamp", "time", "@timestamp", "ts", "date", "_time", "receiveTimestamp")
NESTED = ("jsonPayload", "_source")
"""Objects that hold the text and the fields of a record."""
_SPLITS = pattern(r"[^a-z0-9]+")
_IN_SESSION = pattern(r"(?:^|/)(?P<session>session_[^/]{1,200})/logs/(?P<file>.{1,500})\Z")
_IN_LOGS = pattern(r"(?:^|/)logs/(?P<file>.{1,500})\Z")
_OF_LOG = pattern(r"(?:^|/)logs?/|\.(?:log|out|err)(?:\.\d+)?\Z")
"""A file with a log: `file` and `path` of a program's own logger name its code, or a request."""
_OF_POD = pattern(
    r"(?:^|/)pods/(?P<namespace>[^/_]{1,253})_(?P<pod>[^/_]{1,253})_[^/]{1,100}/(?P<container>[^/]{1,253})/[^/]+\Z"
)
_OF_CONTAINER = pattern(
    r"(?:^|[/.])(?P<pod>[a-z0-9][a-z0-9-]{0,252})_(?P<namespace>[a-z0-9-]{1,63})_"
    r"(?P<container>[a-z0-9-]{1,253}?)-[0-9a-f]{12,64}(?:\.log)?\Z"
)
"""`/var/log/containers/POD_NAMESPACE_CONTAINER-ID.log`, which also ends the names of streams."""
_DEEPEST = 4
_MOST_FIELDS = 200


class Place(NamedTuple):
    """Where a text was written."""

    namespace: str = ""
    pod: str = ""
    """Or the host, if it was not in a pod."""
    container: str = ""
    session: str = ""
    file: str = ""
    """Below `logs/` of a session; empty for the output of a container."""


NOWHERE = Place()


class Record(NamedTuple):
    """One record of an export."""

    place: Place
    at: int
    """Nanoseconds since 1970; 0 if unknown."""
    text: str
    output: str = ""
    """Of a container: `stdout` or `stderr`, if the record says so."""
    is_partial: bool = False
    """Whether the next record of this output continues the line."""


def record_of(data: dict[str, Any], outer: Place = NOWHERE) -> Record | None:
    """A record of any of the stores; None if it has no text. `outer`: the place of the text around it."""
    for key in NESTED:
        if isinstance(inner := data.get(key), dict):
            found = record_of(inner)
            place = _known_place(data, _known_place(inner, outer))
            if key == "jsonPayload" and not place.file:
                # What a program logged as an object keeps its level and its other fields.
                return Record(place, _time(data), json.dumps(inner))
            return found and found._replace(place=place, at=_time(data) or found.at)
    key = text_key(data)
    if not key:
        return None
    text = data[key]
    is_partial = data.get("_p") == "P" or (is_docker(data) and text[-1:] != "\n")
    output = data.get("stream")
    output = output if output in ("stdout", "stderr") else ""
    place = _known_place(data, outer)
    return Record(place, _time(data), text.removesuffix("\n"), output, is_partial)


def text_key(data: Mapping[str, Any]) -> str:
    """The name of the field with the text; empty if there is none."""
    for key in TEXTS:
        if isinstance(data.get(key), str):
            return key
    return ""


def stamp(data: Mapping[str, Any]) -> str:
    """The time of a record as it is written; empty if that is no text."""
    value = next((data[key] for key in TIMES if nanoseconds(data.get(key))), "")
    return value if isinstance(value, str) else ""


def _known_place(data: Mapping[str, Any], outer: Place) -> Place:
    """The same as `place_of`, remembered: the labels of most records are those of earlier ones."""
    key = (outer, repr([each for each in data.items() if each[0] not in _NO_PLACE]))
    if len(key[1]) > _LONGEST_KEY:
        return place_of(data, outer)
    place = _PLACES.get(key)
    if place is None:
        if len(_PLACES) >= _MOST_PLACES:
            _PLACES.clear()
        place = _PLACES[key] = place_of(data, outer)
    return place


VARYING = (*TEXTS, *TIMES, "eventId", "insertId", "ingestionTime", "offset", "@ptr")
"""Fields that differ from record to record, in the order in which the text and the time are looked for."""
_NO_PLACE = frozenset({*VARYING, *NESTED})
_PLACES: dict[tuple[Place, str], Place] = {}
_MOST_PLACES, _LONGEST_KEY = 10_000, 4096


def is_docker(data: Mapping[str, Any]) -> bool:
    """Whether it is a line of Docker's json-file: `{"log": "…\\n", "stream": "stderr", "time": "…"}`."""
    return data.keys() <= {"log", "stream", "time", "attrs"} and {"log", "stream"} <= data.keys()


def place_of(data: Mapping[str, Any], outer: Place = NOWHERE) -> Place:
    """The place that labels name; what they do not name is that of `outer`."""
    found: dict[str, str] = {}
    for name, value in _fields(data, "", 0):
        found.setdefault(name, value)
        # The name of Fluent Bit's field (`Path_Key`) is the user's choice.
        if value[0] == "/" and "/log" in value and in_session(value):
            found["filename"] = value
    namespace, pod, container = (
        _first(found, _NAMESPACES),
        _first(found, _PODS),
        _first(found, _CONTAINERS),
    )
    path = _first(found, _FILES)
    stream = found.get("logstreamname", found.get("logstream", ""))
    named = _named(path) or _named(stream)
    if not path and "/" in stream:  # of CloudWatch's agent: `INSTANCE/raylet.out`
        found["host"], path = stream.partition("/")[0], f"logs/{stream.partition('/')[2]}"
        path = path if in_session(path) else ""
    if not pod and named:
        namespace, pod, container = named.namespace, named.pod, named.container
    own = in_session(path) if not named else None
    if own is None and not named and not container and _OF_LOG.search(path):
        container = path.rpartition("/")[2]
    # A program's own logger names its host as well.
    hosts = _HOSTS if own or container else _STREAMS
    pod = pod or outer.pod or _first(found, hosts)
    return Place(
        namespace or outer.namespace,
        pod,
        container or outer.container,
        own.session if own else "",
        own.file if own else "",
    )


def of_path(path: str) -> Place:
    """The place that the path of a container's log on its node names."""
    return _named(path) or Place()


def in_session(path: str) -> Place | None:
    """The file of a Ray session that a path names; None for any other file."""
    found = _IN_SESSION.search(path)
    if found:
        session = "" if found["session"] == "session_latest" else found["session"]
        return Place(session=session, file=found["file"])
    found = _IN_LOGS.search(path)
    if found and read_name(found["file"].rpartition("/")[2]):
        return Place(file=found["file"])
    folder, _, name = path.rpartition("/")
    known = read_name(name)
    return (
        Place(file=name)
        if known and ("ray" in folder or known.role == "kernel" or not folder)
        else None
    )


@lru_cache(maxsize=4096)
def _named(path: str) -> Place | None:
    found = _OF_POD.search(path) or _OF_CONTAINER.search(path)
    return Place(found["namespace"], found["pod"], found["container"]) if found else None


def _fields(data: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, str]]:
    """(reduced name, value) of the texts in a record."""
    for count, (key, value) in enumerate(data.items()):
        if count > _MOST_FIELDS:
            return
        if isinstance(value, str):
            if 0 < len(value) < 1000 and (key not in TEXTS or depth):
                yield _reduced((prefix + key)[:200]), value
        elif isinstance(value, dict) and depth < _DEEPEST:
            yield from _fields(value, f"{prefix}{key}.", depth + 1)


@lru_cache(maxsize=4096)
def _reduced(name: str) -> str:
    parts = [part for part in _SPLITS.split(name.lower()) if part]
    while len(parts) > 1 and parts[0] in _AROUND:
        del parts[0]
    if len(parts) > 1 and parts[-2:] != ["host", "name"] and parts[-1] == "name":
        parts.pop()
    return "".join(parts)


def _first(found: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((found[name] for name in names if found.get(name)), "")


# ---------------------------------------------------------------- times


def _time(data: Mapping[str, Any]) -> int:
    return next((at for key in TIMES if (at := nanoseconds(data.get(key)))), 0)


def nanoseconds(value: Any) -> int:
    """A time as text (ISO 8601, or a number) or as a number of any unit; 0 for anything else.

    Also 0 before 1970 and after 2262: streams keep times as 64 bits.
    """
    if isinstance(value, str):
        digits = value[20:-1]
        if digits.isdecimal() and value[19] == "." and value[-1] == "Z":  # of nearly all stores
            seconds = _second(value[:19])
            digits = digits[:9]
            at = seconds * 1_000_000_000 + int(digits) * _SCALE[len(digits)] if seconds else 0
            return at if 0 < at < 1 << 63 else 0
    at = _nanoseconds(value)
    return at if 0 < at < 1 << 63 else 0


def all_nanoseconds(values: Sequence[Any]) -> list[int]:
    """The same for each of many values."""
    try:  # the form of nearly all stores
        heads, digits = [value[:20] for value in values], [value[20:-1] for value in values]
        whole = {head: _second(head[:19]) for head in set(heads) if head[-1] == "."}
        is_usual = {value[-1] for value in values} == {"Z"} and "".join(digits).isdecimal()
        if is_usual and min(whole.values()) > 0 and max(whole.values()) < _LAST_SECOND:
            parts = [int(each) * _SCALE[len(each)] for each in digits]
            return [
                whole[head] * 1_000_000_000 + part for head, part in zip(heads, parts, strict=True)
            ]
    except (TypeError, ValueError, LookupError):
        pass
    return [nanoseconds(value) for value in values]


def _nanoseconds(value: Any) -> int:
    if isinstance(value, str):
        if value.isascii() and value.isdecimal() and 9 < len(value) < 20:
            return _scaled(int(value))
        return _of_text(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1e9 <= value < 1e19:
        return 0
    if isinstance(value, int):
        return _scaled(value)
    while value < 1e15:  # as many digits as a float has
        value *= 1000
    return _scaled(int(value))


def _scaled(number: int) -> int:
    """A time in any unit as nanoseconds: until the year 2286 those have 19 digits."""
    return int(number * 10 ** max(19 - len(str(number)), 0))


def _of_text(text: str) -> int:
    seconds = _second(text[:19])
    if not seconds or len(text) > 40:
        return 0
    rest = text[19:]
    digits = ""
    if rest[:1] in (".", ","):
        digits = rest[1:10]
        while not digits.isdecimal() and digits:
            digits = digits[:-1]
        rest = rest[1 + len(digits) :].lstrip("0123456789")
    ahead = 0
    if rest[:1] in ("+", "-") and rest[1:3].isdecimal():
        minutes = int(rest[1:3]) * 60 + int(
            rest[-2:] if rest[-2:].isdecimal() and len(rest) > 3 else 0
        )
        ahead = minutes * 60 if rest[0] == "+" else -minutes * 60
    return (seconds - ahead) * 1_000_000_000 + int(f"{digits or 0:0<9}")


_LAST_SECOND = (1 << 63) // 1_000_000_000
_SCALE = [10 ** (9 - digits) for digits in range(10)]


@lru_cache(maxsize=8192)
def _second(text: str) -> int:
    try:
        return int(datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp())
    except ValueError:
        return 0

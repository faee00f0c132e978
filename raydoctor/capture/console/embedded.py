"""Text inside JSON and inside string literals, taken out of them.

Log shippers (Docker, Fluent Bit, Loki, CloudWatch, Cloud Logging), structured loggers (structlog, loguru,
Ray's own `LoggingConfig(encoding="JSON")`) and API replies wrap a console's lines in JSON; programs print
a traceback's `repr`. What a logger wrote at level WARNING or above keeps its level and time as a header,
and its process as a prefix. A record of Ray that says what it says in one line stays as it is where
nothing stands in front of it: `read/records.py` reads it.

The keys are those of `ray/_private/ray_logging/formatters.py` (2.35 to 2.60), `ray/util/logging.cc`,
structlog's and loguru's serializers, and the exports of Loki, CloudWatch and Cloud Logging.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple

from raydoctor.capture.console import prefixes
from raydoctor.model.patterns import pattern

_TEXTS = pattern(
    "(?i:"
    "log|msg|message|text|line|event|body|textpayload|content|output|exc|exc_text|exc_info|err|"
    "exception|traceback|stack|stacktrace|stack_trace|error|stdout|stderr|stdout_tail|"
    "stderr_tail|logs|details?|reason"
    ")"
)
"""Last parts of keys whose values are text for people."""
_MESSAGES = ("message", "msg", "event")
"""Keys of what a logger was asked to write, at the level of its record."""
_ENTRIES = (*_MESSAGES, "line", "log", "textpayload")
"""Keys of one line of a console, which may be empty."""
_LEVEL_KEYS = ("level", "levelname", "severity", "lvl")
_LEVELS = {
    "W": "WARNING", "WARN": "WARNING", "WARNING": "WARNING", "E": "ERROR", "ERROR": "ERROR",
    "C": "CRITICAL", "CRITICAL": "CRITICAL", "F": "FATAL", "FATAL": "FATAL",
}  # fmt: skip
_TIME_KEYS = ("asctime", "timestamp", "time", "ts", "@timestamp")
_MOST_LINES = 5_000
"""Taken out of one line."""
_DEEPEST = 6
_LONGEST_PREFIX = 400
"""Characters in front of JSON."""
_MEMBER = pattern(r'\s{0,200}(?:"(?P<key>[\w.-]{1,60})"\s{0,20}:\s{0,20})?"')
"""The beginning of a line of JSON that is printed over several lines."""
_LIST = pattern(r'"(?P<key>[\w.-]{1,60})": \[')
"""A list that is printed with one string on each line."""
_ESCAPED = (
    *("Traceback (most recent call last):\\n", '\\n  File "', "\\n\\tclass_name: "),
    *("\\nray.exceptions.", "\\n  At least one of the input arguments for this task "),
)
_TRACEBACK = "Traceback (most recent call last):"
"""What marks a text for people under any key: formatters of a program's own name their keys freely."""
_QUOTE = pattern(r"['\"]")
_BEFORE_LITERAL = (" ", "=", ":", "(", "[", "{", ",", "")
_ISO = pattern(
    r"(?P<day>\d{4}-\d\d-\d\d)[T ](?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
)
_EARLIEST, _LATEST = 1e9, 1e10
"""Seconds since 1970; larger numbers count thousandths, millionths and so on."""


class _Head(NamedTuple):
    """What a record says of itself."""

    level: str = ""
    stamp: str = ""
    """`YYYY-MM-DD HH:MM:SS,mmm`, in the zone of the record."""


def may_hold(text: str) -> bool:
    """Whether something may be wrapped in a line: a quick test."""
    return "\\n" in text or (
        '"' in text
        and (
            text[:1] == "{"
            or text[:2] in ("[{", "[[")
            or '": "' in text
            or ('{"' in text and text[-1:] in ("}", "]"))
        )
    )


def take_out(text: str) -> list[str] | None:
    """The lines inside a line; None where it wraps nothing."""
    if (data := _parsed(text)) is not None:
        found = _lines(data)
        return found if found and not _is_rays_own(data) else None
    if text[:1] != "{" and '{"' in text[:_LONGEST_PREFIX]:
        line = prefixes.strip(text)
        data = _parsed(line.text) if line.text[:1] == "{" else None
        if data is not None and (found := _lines(data)):
            rank = f"[rank{line.rank}]: " if line.rank else ""
            return [f"{rank}{line.process}{each}" for each in found]
    match = _MEMBER.match(text)
    if match and (match["key"] is None or _is_text(match["key"])):
        value = text.rstrip().rstrip(",")[match.end() :]
        is_whole = value.endswith('"')
        value = value.removesuffix('"')
        # Of a literal with escaped line breaks the closing quotation mark may be cut off.
        is_long = text[:1] == '"' and is_whole and value.count("\\n") > 1
        if (match["key"] and (is_whole or "\\n" in value)) or value.endswith("\\n") or is_long:
            is_entry = (match["key"] or "").lower() in _ENTRIES
            return _unescaped(value) or ([""] if is_entry else [])
    if any(each in text for each in _ESCAPED):
        return _of_literal(text)
    return None


def _of_literal(text: str) -> list[str]:
    """The lines of a line that holds a string literal with line breaks, as `repr` writes it."""
    broken, begin = text.find("\\n"), 0
    while match := _QUOTE.search(text, begin, broken):
        opening = match.start()
        if text[max(0, opening - 1) : opening] not in _BEFORE_LITERAL:
            begin = opening + 1
            continue
        closing = _at(text, text[opening], opening + 1)
        while closing < len(text) and text[closing - 1] == "\\":
            closing = _at(text, text[opening], closing + 1)
        if closing > broken:
            before, after = text[:opening].rstrip(), text[closing + 1 :].strip(" )]},")
            inside = _unescaped(text[opening + 1 : closing])
            return [*([before] if before else []), *inside, *([after] if after else [])]
        begin = closing + 1
    return _unescaped(text)


def _at(text: str, part: str, begin: int) -> int:
    """The place of a part of a text; its length if it is not there."""
    place = text.find(part, begin)
    return place if place >= 0 else len(text)


def of_documents(raws: list[str]) -> dict[int, list[tuple[int, list[str]]]]:
    """Of documents that are printed over several lines: (index, lines inside) of each line, oldest first.

    The key is the index of a line; the first line of a document has the whole document.
    """
    found: dict[int, list[tuple[int, list[str]]]] = {}
    for begin, end in (*_spans(raws, "{", "}"), *_spans(raws, "[", "]")):
        data = _parsed("\n".join(raws[begin : end + 1]))
        if data is None or not (whole := _lines(data)):
            continue
        numbers = list(range(begin, end + 1))
        found |= {n: [] for n in numbers}
        if isinstance(data, list) and _in_order(data) != data:
            numbers = _last_entry_first(raws, numbers)
        inside = _strings_in_lists(raws, begin, end)
        by_line = [(n, inside[n] if n in inside else take_out(raws[n]) or []) for n in numbers]
        is_complete = sum(map(_count, (texts for _, texts in by_line))) >= _count(whole)
        found[begin] = by_line if is_complete else [(begin, whole)]
    return found


def _count(texts: list[str]) -> int:
    """The number of texts that are not empty."""
    return sum(map(bool, texts))


def _strings_in_lists(raws: list[str], begin: int, end: int) -> dict[int, list[str]]:
    """The lines inside each string of a printed document's lists: those of keys that hold text, else none."""
    found: dict[int, list[str]] = {}
    is_list = is_text = False
    for n in range(begin + 1, end):
        raw = raws[n].strip()
        if match := _LIST.fullmatch(raw):
            is_list, is_text = True, _is_text(match["key"])
        elif raw.startswith(("]", "{")):
            is_list = False
        elif is_list and raw.startswith('"'):
            value = _parsed(f"[{raw.rstrip(',')}]") if is_text else None
            found[n] = str(value[0]).splitlines()[:_MOST_LINES] if value else []
    return found


def _last_entry_first(raws: list[str], numbers: list[int]) -> list[int]:
    """The indices of a printed list, with its entries in reverse."""
    opening = raws[numbers[1]]
    entries: list[list[int]] = []
    for n in numbers[1:-1]:
        if raws[n] == opening:
            entries.append([])
        entries[-1].append(n)
    return [n for entry in reversed(entries) for n in entry]


def _spans(raws: list[str], opening: str, closing: str) -> Iterator[tuple[int, int]]:
    """Indices of each line that is an opening bracket, and of the next that is a closing one."""
    end = -1
    with suppress(ValueError):
        while True:
            begin = raws.index(opening, end + 1)
            end = raws.index(closing, begin)
            yield begin, end


def _parsed(text: str) -> Any:
    """A document or list of JSON; None for any other text."""
    if text[:1] not in ("{", "[") or text.rstrip()[-1:] not in ("}", "]"):
        return None
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict | list) else None


def _is_text(key: str) -> bool:
    return _TEXTS.fullmatch(key.rpartition(".")[2]) is not None


def _is_rays_own(data: Any) -> bool:
    """One of the structured records of Ray's Python, whose text is one line."""
    return (
        isinstance(data, dict)
        and "asctime" in data
        and not _is_of_cpp(data)
        and not _is_of_serve(data)
        and not any(data.get(key) for key in ("exc_text", "exc_info"))
        and "\n" not in str(data.get("message"))
    )


def _is_of_cpp(data: dict[str, Any]) -> bool:
    """A record of a raylet or GCS with RAY_BACKEND_LOG_JSON=1 (2.24 and later)."""
    return len(str(data.get("levelname"))) == 1 and str(data.get("filename")).endswith(
        (".cc", ".h")
    )


def _is_of_serve(data: dict[str, Any]) -> bool:
    """A record of Serve's controller, proxies or replicas with `LoggingConfig(encoding="JSON")`."""
    return all(data.get(key) for key in ("asctime", "levelname", "component_name", "component_id"))


def _is_error_of_kuberay(data: dict[str, Any]) -> bool:
    """A record of KubeRay's operator with its exception, as charts of 1.1 and later write it."""
    is_named = data.get("controllerGroup") == "ray.io" or "Ray" in str(data.get("logger"))
    return (
        is_named
        and data.get("level") == "error"
        and all(isinstance(data.get(key), str) for key in ("ts", "msg", "error"))
    )


def _record_of_kuberay(data: dict[str, Any]) -> str:
    """The form of the operator's text log, which older charts write."""
    logger = data.get("logger") or f"controller.{data.get('controller')}"
    more = {key: value for key, value in data.items() if key not in _ZAP_KEYS}
    return f"{data['ts']}\tERROR\t{logger}\t{data['msg']}\t{json.dumps(more)}"


_ZAP_KEYS = frozenset({"level", "ts", "logger", "msg", "stacktrace"})


def _lines(data: Any) -> list[str]:
    texts = _texts(data, _Head(), 0)
    lines = (line for value in texts for line in value.splitlines() or [""])
    return list(islice(lines, _MOST_LINES))


def _texts(data: Any, outer: _Head, depth: int) -> Iterator[str]:
    """Texts for people in a document; of Loki's streams the lines."""
    if depth > _DEEPEST:
        return
    if isinstance(data, list):
        for each in _in_order(data[:_MOST_LINES]):
            if _is_lokis(each):
                yield from _nested(each[1], outer, depth)
            else:
                yield from _texts(each, outer, depth + 1)
    elif isinstance(data, dict) and any(
        isinstance(each, str | list | dict) for each in data.values()
    ):
        if _is_of_cpp(data):
            yield _record_of_cpp(data)
        elif _is_of_serve(data):
            yield _record_of_serve(data)
        elif _is_error_of_kuberay(data):
            yield _record_of_kuberay(data)
        elif isinstance(data.get("frames"), list) and "exc_type" in data:
            yield _traceback(data)
        elif isinstance(data.get("record"), dict) and isinstance(data.get("text"), str):
            yield data["text"]  # loguru: the record says the same in parts
        else:
            yield from _members(data, _head(data, outer), depth)


def _members(data: dict[str, Any], head: _Head, depth: int) -> Iterator[str]:
    """Texts in a record: its message first."""
    for key, value in sorted(data.items(), key=lambda item: item[0].lower() not in _MESSAGES):
        if isinstance(value, dict | list):
            if _is_text(key) and isinstance(value, list):  # notebooks: a list of lines
                yield from (each for each in value if isinstance(each, str))
            yield from _texts(value, head, depth + 1)
        elif isinstance(value, str) and (
            (_is_text(key) and (value or key.lower() in _ENTRIES)) or _TRACEBACK in value
        ):
            is_message = key.lower() in _MESSAGES
            for line in _nested(value, head, depth):
                yield _headed(line, head) if is_message else line


def _head(data: dict[str, Any], outer: _Head) -> _Head:
    level = next((str(data[key]) for key in _LEVEL_KEYS if data.get(key)), "")
    stamp = next((stamp for key in _TIME_KEYS if (stamp := _stamp(data.get(key)))), "")
    return _Head(_LEVELS.get(level.upper(), "") if level else outer.level, stamp or outer.stamp)


def _headed(text: str, head: _Head) -> str:
    """A text with the header of its record, unless it has a header or prefix of its own."""
    if not head.level or not text[:1].isalnum() or prefixes.is_rays(text):
        return text
    return f"{head.stamp} {head.level}: {text}" if head.stamp else f"{head.level}:json:{text}"


def _stamp(value: object) -> str:
    """A time, written or as a number, as Ray's logs write it; empty for anything else."""
    if isinstance(value, str) and (match := _ISO.match(value)):
        return f"{match['day']} {match['time']},{match['fraction'] or '':0<3.3}"
    seconds = _number(value)
    while seconds >= _LATEST:
        seconds /= 1000
    if seconds < _EARLIEST:
        return ""
    whole = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
    return f"{whole},{int(seconds % 1 * 1000):03}"


def _number(value: object) -> float:
    """A time as a number, of whatever unit, to compare with others of the same export."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        return float(value)
    return float(value) if isinstance(value, int | float) and 0 < value < 1e20 else 0.0


def _is_lokis(entry: Any) -> bool:
    """An entry of a stream: `["1700000000000000000", "the line"]`, perhaps with labels behind."""
    return (
        isinstance(entry, list)
        and len(entry) in (2, 3)
        and str(entry[0]).isdecimal()
        and isinstance(entry[1], str)
    )


def _in_order(entries: list[Any]) -> list[Any]:
    """Oldest first: Loki and Cloud Logging export the newest entry first, structlog the last exception."""
    times = [_time(each) for each in entries]
    if len(entries) > 1 and all(times):
        return entries[::-1] if times[0] > times[-1] else entries
    is_chain = all(isinstance(each, dict) and "exc_type" in each for each in entries)
    return entries[::-1] if is_chain else entries


def _time(entry: Any) -> str:
    """When an entry was written, as texts of one export compare."""
    if _is_lokis(entry):
        return str(entry[0])
    return _head(entry, _Head()).stamp if isinstance(entry, dict) else ""


def _record_of_cpp(data: dict[str, Any]) -> str:
    """The form of a text log: patterns and `components.py` are written for that."""
    more = "".join(f" {key}={value}" for key, value in data.items() if key not in _CPP_KEYS)
    component = f"({data['component']}) " if data.get("component") else ""
    return (
        f"[{data.get('asctime', '')} {data['levelname']} 0 0] {component}"
        f"{data['filename']}:{data.get('lineno', 0)}: {data.get('message', '')}{more}"
    )


def _record_of_serve(data: dict[str, Any]) -> str:
    """The form of a text log; 2.9 to 2.20 put `file.py:12 - ` into the message."""
    text = str(data.get("message", ""))
    text = _PLACE.sub("", text, count=1) if _PLACE.match(text) else text
    more = "".join(f"\n{data[key]}" for key in ("exc_text",) if data.get(key))
    return (
        f"{data['levelname']} {data['asctime']} {data['component_name']} {data['component_id']} "
        f"-- {text}{more}"
    )


_PLACE = pattern(r"[\w./-]{1,100}:\d{1,6} - ")
_CPP_KEYS = frozenset({"asctime", "levelname", "message", "component", "filename", "lineno"})


def _traceback(data: dict[str, Any]) -> str:
    """What Python prints for a traceback of structlog's (`dict_tracebacks`)."""
    frames = [each for each in data["frames"] if isinstance(each, dict)]
    return "\n".join(
        (
            "Traceback (most recent call last):",
            *(
                f'  File "{frame.get("filename")}", line {frame.get("lineno")}, in {frame.get("name")}'
                for frame in frames
            ),
            f"{data['exc_type']}: {data.get('exc_value') or ''}",
        )
    )


def _nested(value: str, outer: _Head, depth: int) -> Iterator[str]:
    """A text, or what is in it where it is JSON again."""
    inner = _parsed(value.strip()) if value[:1] == "{" else None
    if isinstance(inner, dict):
        yield from _texts(inner, outer, depth + 1)
    else:
        yield value


def _unescaped(text: str) -> list[str]:
    """A string literal's lines."""
    if "\\u" in text:
        with suppress(ValueError, RecursionError):
            value = json.loads(f'"{text}"', strict=False)
            return str(value).splitlines()[:_MOST_LINES]
    plain = text.replace("\\\\", "\0").replace("\\n", "\n").replace("\\t", "\t").replace("\\r", "")
    return (
        plain.replace('\\"', '"').replace("\\'", "'").replace("\0", "\\").splitlines()[:_MOST_LINES]
    )

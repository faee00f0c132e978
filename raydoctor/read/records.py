"""Log lines -> records: headers, driver prefixes, colours, and the end of each record.

The formats (Ray 2.3 to 2.60): C++ `[2026-11-21 07:34:50,739 W 283 293] (raylet) store.cc:366: text`,
Python `2026-11-21 07:35:03,092<TAB>WARNING worker.py:2622 -- text`, Serve's
`ERROR 2026-11-21 07:35:03,092 controller 402 -- text`, one JSON object a line (RAY_BACKEND_LOG_JSON,
LoggingConfig), gRPC's and abseil's `E1121 04:58:43.606480 31606 f.cc:378] text`, the kernel's, and
plain text. The driver's output adds a coloured prefix, `(raylet, ip=…)` or `(train pid=12, ip=…)`, and
may append `[repeated 3x across cluster]`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any

from raydoctor.capture.console.prefixes import HEADER, NAMED, STAMP
from raydoctor.model.patterns import pattern
from raydoctor.model.values import CONSOLES

MAX_RECORD_LINES = 250
MAX_LINE = 16_384
"""Maximum of inspected characters of one line; exit details and task specs are much shorter."""

_ANSI = pattern(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_CPP = re.compile(
    rf"\[(?P<stamp>{STAMP}) (?P<level>[TDIWECF]) (?P<pid>\d{{1,10}}) \d+\] "
    r"(?:\([\w.-]+\) )?[\w./-]+:\d+: ?"
)
_PYTHON = pattern(
    rf"(?P<stamp>{STAMP})[\t ]+(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)[\t ]+"
    r"(?:[\w./-]+:\d+ -- )?"
)
_SERVE = pattern(
    rf"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<stamp>{STAMP}) (?:[^\s]{{1,200}} ){{2,5}}?"
    r"(?:--|[\w./-]+:\d+ -) "
)
"""Component, its id and (for a request) request id, route and application precede the text
(`ray/serve/_private/logging_utils.py`): `file.py:12 - text` in 2.9 and 2.20, `-- text` in 2.40 and after."""
_ABSL = pattern(
    r"(?P<level>[IWEF])(?P<monthday>\d{4}) (?P<time>\d\d:\d\d:\d\d\.\d+)\s+(?P<pid>\d{1,10}) "
    r"(?:\d{1,10} )?[\w./-]+:\d+\]\s*"
)
_KERNEL = (
    pattern(r"\[(?P<date>\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4})\] "),
    pattern(r"\[ *(?P<uptime>\d+\.\d+)\] "),
    pattern(
        r"(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?) \S+ kernel: "
        r"(?:\[ *\d+\.\d+\] )?"
    ),
    pattern(r"(?P<syslog>\w{3} +\d+ \d\d:\d\d:\d\d) \S+ kernel: (?:\[ *\d+\.\d+\] )?"),
)
_PREFIX = pattern(
    r"\((?:pid=)?(?P<who>(?:raylet|gcs_server|autoscaler|scheduler)(?:[ ,][^()]*)?"
    rf"|{NAMED}?pid=\d{{1,10}}(?:, ip=[^()]{{1,100}})?)\) ?"
)
_PREFIX_PARTS = pattern(r"^(?P<name>.*?)[ ,]{0,9}\bpid=(?P<pid>\d{1,10})(?:, ip=(?P<ip>\S+))?$")
_REPEATED = pattern(
    r" ?\[repeated (\d{1,10})x across (?:cluster|all nodes)\](?: \(Ray deduplicates logs by default\..*)?$"
)
_LEVELS = {
    "DEBUG": "D",
    "INFO": "I",
    "WARNING": "W",
    "ERROR": "E",
    "CRITICAL": "C",
    "FATAL": "C",
    "F": "C",
}
_LONGEST_PID = 10
_TRACEBACK = "Traceback (most recent call last):"
_PLAIN_BREAKS = (
    ":task_name:",
    ":actor_name:",
    ":job_id:",
    "*** SIG",
    "Fatal Python error:",
)

_CHAINED = (
    "During handling of the above exception, another",
    "The above exception was the direct cause of",
)
"""Between the tracebacks of a chain. `RayTaskError` prints `ray::f() (pid=…)` instead of `Traceback` lines,
so after such a line the same record continues unless a `Traceback` follows."""
_QUOTING = (
    "ray.exceptions.RuntimeEnvSetupError: ",
    "Status message: runtime_env setup failed: ",
    "ray.train.WorkerGroupError: ",
    "ray.train.v2.api.exceptions.WorkerGroupError: ",
    "Training failed due to worker errors:",
    "Graceful shutdown of backend failed. ",
    "Failed to send resource request for ",
    "Exception when allocating ",
    "Exception in replica ",
    "Exception in Replica(",
)
"""Starts of plain records that quote the whole traceback of another process."""
_ONE_WRITER = frozenset(
    {
        "raylet-out",
        "gcs-out",
        "core-driver",
        "core-worker",
        "core-io",
        "runtime-env-agent",
        "runtime-env-setup",
        "dashboard",
        "dashboard-agent",
        "monitor",
        "log-monitor",
        "serve",
        "data",
        "train",
    }
)
"""Roles in which all records have headers, so that a traceback belongs to the record above it."""


@dataclass(slots=True)
class LogLine:
    """One parsed line."""

    text: str
    """The line without colours."""
    message: str
    headed: bool = False
    """Whether it starts a record: it has its own header."""
    stamp: str = ""
    """`YYYY-MM-DD HH:MM:SS,mmm` in the writer's local time, or empty."""
    epoch: float | None = None
    """The time if the line contains it as epoch (JSON `timestamp_ns`)."""
    level: str = ""
    pid: int | None = None
    who: str = ""
    """The driver prefix: `raylet`, `gcs_server`, `autoscaler`, or the name of a task or actor."""
    echo: str = ""
    """The process that a prefixed driver line echoes: raylet, gcs, autoscaler, worker, driver."""
    ip: str = ""
    repeated: int = 1
    fields: dict[str, str] = field(default_factory=dict)


def strip_ansi(text: str) -> str:
    """Text without terminal control sequences."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def parse_line(raw: str, role: str = "") -> LogLine:
    """Parse one line. Never fails: any other text is a plain line."""
    text = strip_ansi(raw.rstrip("\r\n"))
    first = text[:1]
    line = LogLine(text, text)
    if first == "{" and text.endswith("}") and _parse_json(line):
        return line
    if role == "kernel":
        _parse_kernel(line)
        return line
    if first == "(" and role in CONSOLES:
        _parse_prefix(line)
        first = line.message[:1]
    if first == HEADER and role in CONSOLES:
        _apply_rewritten(line)
        first = line.message[:1]
    if first == "[":
        _apply_header(line, _CPP.match(line.message))
    elif first.isdigit():
        _apply_header(line, _PYTHON.match(line.message))
    elif first in _SERVES_OR_ABSL:
        if match := _SERVE.match(line.message):
            _apply_header(line, match)
        else:
            _apply_absl_header(line, _ABSL.match(line.message))
    return line


_SERVES_OR_ABSL = ("E", "W", "I", "F", "D", "C")


def message_of(text: str, role: str) -> tuple[str, str, int]:
    """(message, echo, repeated) of a line, as `parse_line` would return them.

    Most records of a log and of an error storm come from C++, and matching one is faster than parsing it
    completely.
    """
    if text[:1] == "[" and role != "kernel" and "\x1b" not in text:
        text = text.rstrip("\r\n")
        match = _CPP.match(text)
        return (text[match.end() :] if match else text, "", 1)
    line = parse_line(text, role)
    return line.message, line.echo, line.repeated


def header_length(text: str) -> int:
    """The length of a line's own header (not a driver prefix) in characters; 0 without one."""
    match = _CPP.match(text) or _PYTHON.match(text) or _ABSL.match(text) or _SERVE.match(text)
    return match.end() if match else 0


_CPP_BYTES = pattern(_CPP.pattern.encode())


def begins_record(data: bytes, at: int) -> bool:
    """Whether a record of C++ begins there, in a file of any role."""
    return _CPP_BYTES.match(data, at) is not None


def _apply_header(line: LogLine, match: re.Match[str] | None) -> None:
    if not match:
        return
    line.headed = True
    line.stamp, level = match.group("stamp", "level")
    line.level = _LEVELS.get(level, level)
    if match.re is _CPP and line.pid is None:
        line.pid = int(match["pid"])
    line.message = line.message[match.end() :]


def _apply_absl_header(line: LogLine, match: re.Match[str] | None) -> None:
    """The header has no year, so the record has no time of its own."""
    if not match:
        return
    line.headed = True
    line.level = _LEVELS.get(match["level"], match["level"])
    if line.pid is None:
        line.pid = int(match["pid"])
    line.fields["monthday"], line.fields["time"] = match.group("monthday", "time")
    line.message = line.message[match.end() :]


def _apply_rewritten(line: LogLine) -> None:
    """Parse the header of a rewritten line (`capture/console`)."""
    parts, closed, rest = line.message[1:].partition(HEADER)
    if not closed:
        return
    level, stamp, rank, printed = (*parts.split("|"), "", "", "", "")[:4]
    line.text = line.text.replace(f"{HEADER}{parts}{HEADER}", "", 1)
    line.message, line.level, line.stamp = rest, level, stamp
    line.headed = line.headed or bool(level or printed)
    if rank:
        line.fields["rank"] = rank
        line.echo = line.echo or "driver"
        line.who = line.who or f"rank {rank}"
    if printed:
        line.fields["printed"] = "yes"


def _parse_prefix(line: LogLine) -> None:
    """`(train pid=12, ip=…) text [repeated 3x across cluster]`."""
    match = _PREFIX.match(line.text)
    if not match:
        return
    line.message = line.text[match.end() :]
    line.headed = True
    if "[repeated " in line.message and (repeated := _REPEATED.search(line.message)):
        line.repeated = int(repeated[1])
        line.message = line.message[: repeated.start()]
    line.who, line.pid, line.ip, line.echo = _prefix(match["who"])


@lru_cache(maxsize=1024)
def _prefix(who: str) -> tuple[str, int | None, str, str]:
    """(name, pid, ip, the process that it echoes)."""
    pid: int | None = None
    if parts := _PREFIX_PARTS.match(who):
        name, pid, ip = parts["name"].strip(), int(parts["pid"]), parts["ip"] or ""
    else:
        name, _, rest = who.replace(",", " ").partition(" ")
        ip = rest.partition("ip=")[2].strip()
    return name, pid, ip, _ECHO_OF.get(name) or ("driver" if _DRIVERS.match(name) else "worker")


_DRIVERS = pattern(
    r"EngineCore|APIServer|ApiServer|Worker_|VllmWorker|main_task\b|\w{0,40}TaskRunner\b|head\b"
    r"|worker\d{1,6}, rank=|rank \d"
)
"""Processes of vLLM, main tasks of verl and OpenRLHF, and nodes of launchers: these use Ray like drivers."""
_ECHO_OF = {
    "raylet": "raylet",
    "gcs_server": "gcs",
    "autoscaler": "autoscaler",
    "scheduler": "autoscaler",
}


def _parse_kernel(line: LogLine) -> None:
    for form in _KERNEL:
        if match := form.match(line.text):
            line.headed = True
            line.fields.update({k: v for k, v in match.groupdict().items() if v})
            line.message = line.text[match.end() :]
            return


def _parse_json(line: LogLine) -> bool:
    """RAY_BACKEND_LOG_JSON (C++: letter levels) and LoggingConfig (Python) lines."""
    try:
        data: Any = json.loads(line.text)
    except (ValueError, RecursionError):
        return False
    if not isinstance(data, dict) or "message" not in data:
        return False
    # Event files escape line breaks twice.
    parts = [str(data["message"]).replace("\\n", "\n").replace("\\t", "\t")]
    parts += [str(data[key]) for key in ("exc_text",) if data.get(key)]
    line.message = strip_ansi("\n".join(parts)) + _appended(data)
    line.headed = True
    level = str(data.get("levelname", data.get("severity", "")))
    line.level = _LEVELS.get(level, level[:1])
    line.stamp = str(data.get("asctime", ""))
    line.epoch = _json_epoch(data)
    pid = next((str(data[key]) for key in ("process", "pid", "source_pid") if data.get(key)), "")
    if pid.isdecimal() and len(pid) <= _LONGEST_PID:
        line.pid = int(pid)
    extra = data.get("custom_fields")
    flat = {**data, **(extra if isinstance(extra, dict) else {})}
    line.fields = {
        k: str(v)
        for k, v in flat.items()
        if isinstance(v, (str, int, float)) and k not in ("message", "exc_text")
    }
    return True


_CPP_OWN = frozenset({"asctime", "levelname", "message", "component", "filename", "lineno"})


def _appended(data: dict[str, Any]) -> str:
    """The fields as C++ text logs append them, ` key=value`: patterns are written for that format."""
    if not str(data.get("filename", "")).endswith((".cc", ".h")):
        return ""
    return "".join(f" {key}={value}" for key, value in data.items() if key not in _CPP_OWN)


def _json_epoch(data: dict[str, Any]) -> float | None:
    """LoggingConfig's nanoseconds, or the seconds of event files (C++ int, Python str)."""
    if "timestamp_ns" in data:
        return plausible(data["timestamp_ns"], 1e9)
    return plausible(data.get("timestamp"))


def plausible(value: object, unit: float = 1.0) -> float | None:
    """Epoch seconds; None for anything but a number that can be the time of a record."""
    if not isinstance(value, (str, int, float)):
        return None
    try:
        seconds = float(value) / unit
    except (ValueError, OverflowError):
        return None
    return seconds if 0 < seconds < _LATEST else None


_LATEST = 1e11
"""Seconds: the year 5138. A larger number has another unit or is not a time."""


def assemble(first: LogLine, following: Iterable[str], role: str) -> tuple[str, str]:
    """The whole record that starts with `first`: (text, message).

    `following`: the next raw lines of the file; those of the record are consumed.
    """
    texts, messages = [first.text], [first.message]
    breaks: tuple[str, ...] = _PLAIN_BREAKS
    quotes = first.message.lstrip().startswith(_QUOTING)
    if not (quotes or (first.headed and role in _ONE_WRITER)):
        breaks = (*breaks, _TRACEBACK)
    is_streamed = False
    for raw in islice(following, MAX_RECORD_LINES - 1):
        if raw[:1] in _MAY_BEGIN_RECORDS or not raw.isascii() or "\x1b" in raw or role == "kernel":
            line = parse_line(raw, role)
            if not _continues(first, line) or line.text.startswith(breaks):
                break
            if is_streamed and not line.echo:
                break
            is_streamed = bool(line.echo) and first.pid is not None
            text, message = line.text, line.message
        elif is_streamed or raw.startswith(breaks):
            break
        else:
            text = message = raw.rstrip("\r\n")
        texts.append(text)
        messages.append(message)
    # The text keeps the words that announce another traceback; patterns should not see them.
    while len(messages) > 1 and (not messages[-1].strip() or messages[-1].startswith(_CHAINED)):
        messages.pop()
    return "\n".join(texts).rstrip(), "\n".join(messages).rstrip()


def _continues(first: LogLine, line: LogLine) -> bool:
    """Whether a line continues a record: a pushed message has one prefix, a streamed file one per line."""
    if first.echo and line.echo == first.echo and line.pid == first.pid:
        return not _has_own_header(line.message)
    return not line.headed


_MAY_BEGIN_RECORDS = frozenset("[({0123456789EWIFDC" + HEADER)
"""First characters of headers, prefixes and JSON; other lines cannot begin a record and are not parsed."""


def _has_own_header(message: str) -> bool:
    """Whether the text after a driver prefix begins a new record.

    Messages that Ray pushes to drivers have no header, so consecutive ones with equal prefixes are separated
    by their first words.
    """
    headers = (_CPP, _PYTHON, _SERVE)
    return any(h.match(message) for h in headers) or message.startswith(_PUSHED)


_PUSHED = (
    "A worker died or was killed while executing a task",
    "Task ",
    "The node with node id:",
    "WARNING:",
    "Warning:",
)


_KEY_VALUE = pattern(r"(?:^|\s)([a-z][a-z_]*)=([^\s=,;]+)(?=\s|$)")


def trailing_fields(message: str) -> dict[str, str]:
    """The `key=value` pairs that Ray's structured C++ logging appends (2.40+) to a message."""
    tail = message.rpartition("\n")[2][-600:]
    return dict(_KEY_VALUE.findall(tail))

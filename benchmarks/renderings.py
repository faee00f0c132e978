"""What launchers, containers, log stores, terminals and people make of a driver's output.

Each rendering is a pure function from a text to a text; the times and names in it are constants. The
formats are those that `raydoctor/capture/console/` reads.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from raydoctor.read.records import strip_ansi

_START = datetime(2026, 11, 2, 7, 35, 3, tzinfo=timezone.utc)
_COLUMNS = 80
_UNCAUGHT = re.compile(
    r'\n?Traceback \(most recent call last\):\n(?=  File "[^"]*", line \d+, in <module>)'
)


class Rendering(NamedTuple):
    """A change of a whole output; its lines are separated by newlines and end in none."""

    name: str
    change: Callable[[str], str]

    def of(self, data: bytes) -> bytes:
        """The rendering of a file."""
        text = data.decode("utf-8", "replace").rstrip("\n")
        return f"{self.change(text)}\n".encode()


def _each(form: str) -> Callable[[str], str]:
    """Each line in a form, in which `%` is the line."""
    return lambda text: "\n".join(form.replace("%", line) for line in text.split("\n"))


def _moment(n: int) -> datetime:
    return _START + timedelta(milliseconds=7 * n)


def _iso(n: int, digits: int) -> str:
    """The time of the nth line in the form of RFC 3339."""
    moment = _moment(n)
    fraction = f"{moment.microsecond * 1000 + n % 1000:09}"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{fraction[:digits]}Z"


def _stamped(form: str, digits: int) -> Callable[[str], str]:
    """Each line in a form, in which `@` is its time and `%` the line."""

    def change(text: str) -> str:
        return "\n".join(
            form.replace("@", _iso(n, digits)).replace("%", line)
            for n, line in enumerate(text.split("\n"))
        )

    return change


def _json_lines(record: Callable[[int, str], dict[str, Any]]) -> Callable[[str], str]:
    return lambda text: "\n".join(
        json.dumps(record(n, line)) for n, line in enumerate(text.split("\n"))
    )


def _loki(text: str, indent: int | None = None) -> str:
    """As Loki's API answers a query: the newest entry first."""
    values = [
        [f"{int(_moment(n).timestamp() * 1000)}{n % 1_000_000:06}", line]
        for n, line in enumerate(text.split("\n"))
    ]
    stream = {"stream": {"pod": "ray-head-1"}, "values": values[::-1]}
    answer = {"status": "success", "data": {"resultType": "streams", "result": [stream]}}
    return json.dumps(answer, indent=indent)


def _cloudwatch(text: str) -> str:
    """As `aws logs get-log-events` prints."""
    events = [
        {"timestamp": int(_moment(n).timestamp() * 1000), "message": line, "ingestionTime": 1}
        for n, line in enumerate(text.split("\n"))
    ]
    return json.dumps({"events": events, "nextForwardToken": "f/3"}, indent=4)


def _cloud_logging(text: str) -> str:
    """As `gcloud logging read --format=json` prints: the newest entry first."""
    entries = [
        {"insertId": str(n), "severity": "ERROR", "textPayload": f"{x}\n", "timestamp": _iso(n, 9)}
        for n, x in enumerate(text.split("\n"))
    ]
    return json.dumps(entries[::-1], indent=2)


def _notebook(text: str) -> str:
    """A notebook with the text as the output of a cell."""
    lines = [f"{line}\n" for line in text.split("\n")]
    output = {"name": "stderr", "output_type": "stream", "text": lines}
    cell = {"cell_type": "code", "execution_count": 3, "outputs": [output], "source": ["main()"]}
    return json.dumps({"cells": [cell], "nbformat": 4, "nbformat_minor": 5}, indent=1)


def _wrapped(text: str) -> str:
    """As a terminal breaks lines at its last column."""
    lines = strip_ansi(text).expandtabs(8).split("\n")
    return "\n".join(
        line[at : at + _COLUMNS] for line in lines for at in range(0, max(1, len(line)), _COLUMNS)
    )


def _coloured(text: str) -> str:
    """Every line in a colour of its own, as an editor or `grep --color` shows it."""
    lines = strip_ansi(text).split("\n")
    return "\n".join(f"\x1b[1;3{n % 7 + 1}m{line}\x1b[0m" for n, line in enumerate(lines))


def _without_escapes(text: str) -> str:
    """Colours whose escape characters a web page removed."""
    return _coloured(text).replace("\x1b", "")


def _newest_first(text: str) -> str:
    return "\n".join(reversed(_stamped("@ %", 3)(text).split("\n")))


def _pytest(text: str) -> str:
    """As pytest shows a test whose code under test printed the text and raised its last exception."""
    printed, raised = strip_ansi(text), ""
    for begin in _UNCAUGHT.finditer(printed):
        printed, raised = begin.string[: begin.start()], begin.string[begin.end() :]
    lines = [
        "=================================== FAILURES ===================================",
        "__________________________________ test_main ___________________________________",
        "",
        "    def test_main():",
        ">       main()",
        "",
        "tests/test_main.py:12: ",
        "_ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ ",
        *_pytest_raised(raised),
        "----------------------------- Captured stderr call -----------------------------",
        *printed.split("\n"),
        "=========================== short test summary info ============================",
        "FAILED tests/test_main.py::test_main",
        "============================== 1 failed in 12.34s ==============================",
    ]
    return "\n".join(lines)


def _pytest_raised(raised: str) -> list[str]:
    """A traceback below its first line as pytest shows it: sources above places, `E` before the exception."""
    lines = raised.split("\n") if raised else []
    message = next((n for n, line in enumerate(lines) if line[:1].strip()), len(lines))
    shown: list[str] = []
    place = ""
    for line in lines[:message]:
        if line.startswith('  File "'):
            file, number, function = line.strip().split(", ", 2)
            shown += [place] if place else []
            place = f"{file[6:-1]}:{number.removeprefix('line ')}: {function}"
        elif line.strip(" ^~"):
            shown.append(f">   {line}")
    return [*shown, *(f"E   {line}".rstrip() for line in lines[message:]), "", place]


RENDERINGS = (
    Rendering("vLLM", _each("(EngineCore_0 pid=12) ERROR 11-02 07:35:03 [core.py:845] %")),
    Rendering("verl", _each("(TaskRunner pid=4711) %")),
    Rendering("torchrun, rank", _each("[rank0]: %")),
    Rendering("torchrun, tee", _each("[default0]:%")),
    Rendering("compose", _each("ray-head-1  | %")),
    Rendering(
        "docker",
        _json_lines(lambda n, x: {"log": f"{x}\n", "stream": "stderr", "time": _iso(n, 9)}),
    ),
    Rendering("CRI", _stamped("@ stderr F %", 9)),
    Rendering("kubectl --prefix", _each("[pod/ray-head-1/ray-head] %")),
    Rendering("kubectl --timestamps", _stamped("@ %", 9)),
    Rendering(
        "logcli",
        _json_lines(
            lambda n, x: {"labels": {"pod": "ray-head-1"}, "line": x, "timestamp": _iso(n, 9)}
        ),
    ),
    Rendering("Loki", _loki),
    Rendering("Loki, indented", lambda text: _loki(text, indent=2)),
    Rendering("CloudWatch", _cloudwatch),
    Rendering("Cloud Logging", _cloud_logging),
    Rendering("notebook", _notebook),
    Rendering("80 columns", _wrapped),
    Rendering("colours", _coloured),
    Rendering("colours without ESC", _without_escapes),
    Rendering("tabs as spaces", lambda text: text.expandtabs(8)),
    Rendering("indented", lambda text: textwrap.indent(text, "    ", lambda line: True)),
    Rendering("GitHub Actions", _stamped("@ %", 7)),
    Rendering("gh run view", _stamped("test (3.11)\tRun tests\t@ %", 7)),
    Rendering("srun --label", _each("0: %")),
    Rendering("pytest", _pytest),
    Rendering("newest first", _newest_first),
    Rendering("quoted", _each("> %")),
    Rendering("journald", _each("Nov 02 07:35:03 node7 python[812]: %")),
    Rendering("Windows", lambda text: "\ufeff" + text.replace("\n", "\r\n")),
    Rendering(
        "U+FFFD", lambda text: "".join(each if each.isascii() else "\ufffd" for each in text)
    ),
)
"""All renderings; an output that one of them does not change is not run."""

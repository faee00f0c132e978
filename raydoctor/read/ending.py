"""The end of a program's output: its own last line, or the traceback that ended it.

A driver's output mixes the program's lines with Ray's (`2026-… INFO worker.py:1691 -- …`, `(raylet) …`,
`(train pid=12) …`, crash frames). A traceback ended the program if no line of the program follows it and its
first frame is the module's. A traceback that was caught and printed begins in the function that caught it
(`traceback.print_exc`, `logging.exception`), or the program continues.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Gap, Source
from raydoctor.read.records import LogLine, parse_line

KIND = "driver.tail"
ROLES = ("driver", "job-driver")
_TAIL = 64 << 10
_COUNTED = 64 << 20
"""Bytes; in larger outputs lines are not counted."""
_KEPT_LINES = 250

_TRACEBACK = "Traceback (most recent call last):"
_RAYS_RECORD = pattern(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\t[A-Z]+ [\w./-]+\.py:\d+ -- |\[\d{4}-\d\d-\d\d "
)
_CRASH = ("*** SIG", "PC: @", "    @ ", ":job_id:", ":task_name:", ":actor_name:")
_FRAME = '  File "'
_OUTERMOST = pattern(r'  File "[^"]*", line \d+, in (?:<module>|_run_module_as_main)$')
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


@dataclass(frozen=True, slots=True)
class _Own:
    """A line of the program's own output."""

    offset: int
    text: str


def read(files: dict[Source, str], gaps: list[Gap]) -> list[Event]:
    """One event for each driver's output that is not empty."""
    events: list[Event] = []
    for source, file in files.items():
        if source.role in ROLES:
            try:
                events += _ending(source, file)
            except OSError as error:
                gaps.append(Gap(source.path, f"could not be read: {error.strerror}"))
    return events


def _ending(source: Source, file: str) -> Iterator[Event]:
    with open(file, "rb") as stream:
        size = stream.seek(0, 2)
        begin = max(0, size - _TAIL)
        stream.seek(begin)
        data = stream.read(_TAIL)
        own = list(_own_lines(source, data, begin))
        if not own:
            return
        ended_by = _last_traceback(own)
        shown = own[-1:] if ended_by is None else own[ended_by:]
        number = _line_number(stream, shown[0].offset) if size <= _COUNTED else 0
    text = "\n".join(line.text for line in shown[-_KEPT_LINES:])
    fields = {"ended_by": "traceback" if ended_by is not None else ""}
    yield Event(KIND, source, number, shown[0].offset, text, text, fields=fields)


def _own_lines(source: Source, data: bytes, offset: int) -> Iterator[_Own]:
    """The program's own lines in the tail, without a partial first line."""
    for number, raw in enumerate(data.splitlines(keepends=True)):
        whole = number > 0 or offset == 0
        line = parse_line(raw.decode("utf-8", "replace"), source.role)
        if whole and line.text.strip() and not _is_rays(line):
            yield _Own(offset, line.text)
        offset += len(raw)


def _is_rays(line: LogLine) -> bool:
    return bool(line.echo) or line.text.startswith(_CRASH) or bool(_RAYS_RECORD.match(line.text))


def _last_traceback(own: list[_Own]) -> int | None:
    """The index at which the final chain of tracebacks begins; None if the output ends otherwise."""
    starts = [n for n, line in enumerate(own) if line.text.startswith(_TRACEBACK)]
    if not starts or not _ends_with(own[starts[-1] :]):
        return None
    first = starts[-1]
    for start in reversed(starts[:-1]):
        if not any(line.text.startswith(_CHAINED) for line in own[start:first]):
            break
        first = start
    return first


def _ends_with(block: list[_Own]) -> bool:
    """Whether a block is one traceback of an uncaught exception with nothing after it."""
    texts = [line.text for line in block[1:]]
    frames = [n for n, text in enumerate(texts) if text.startswith(_FRAME)]
    if not frames or not _OUTERMOST.match(texts[frames[0]]):
        return False
    raised = [n for n, text in enumerate(texts) if n > frames[-1] and not text.startswith(" ")]
    return len(raised) == 1 or _is_rays_error(texts[raised[0] :] if raised else [])


def _is_rays_error(texts: list[str]) -> bool:
    """Ray's exceptions quote other processes for many lines."""
    return bool(texts) and texts[0].startswith("ray.exceptions.")


def _line_number(stream: BinaryIO, offset: int) -> int:
    """1-based number of the line at an offset."""
    stream.seek(0)
    return stream.read(offset).count(b"\n") + 1

"""Stacks of workers in a file: the output of `ray stack` or `py-spy dump`.

The files are next to the logs: `ray-stack.txt`, `stack-471.txt`, `stacks.log`, `py-spy-2.txt` and the like.
One file may contain several processes, and one process several times. Each dump becomes an event
`stack.dump` with the dump as its message; other text is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Gap, Source
from raydoctor.read.records import strip_ansi

_LIMIT = 8 << 20
_MOST = 500
_PROCESS = pattern(r"^Process (?P<pid>\d{1,10}): (?P<title>.*)$", re.MULTILINE)
_ENDS = pattern(r"^(?:Stack dump for |Process \d{1,10}: )", re.MULTILINE)


def read(files: dict[Source, str], gaps: list[Gap]) -> list[Event]:
    """One event per process and dump."""
    events: list[Event] = []
    for source, file in files.items():
        if source.role != "stack":
            continue
        try:
            with open(file, "rb") as stream:
                text = strip_ansi(stream.read(_LIMIT).decode("utf-8", "replace"))
        except OSError as error:
            gaps.append(Gap(source.path, f"could not be read: {error.strerror}"))
            continue
        events += islice(_dumps(source, text), _MOST)
    return events


def _dumps(source: Source, text: str) -> Iterator[Event]:
    line, offset, counted = 1, 0, 0
    for match in _PROCESS.finditer(text):
        end = _ENDS.search(text, match.end())
        part = text[match.start() : end.start() if end else len(text)].rstrip()
        if "\nThread " not in part:
            continue
        passed = text[counted : match.start()]
        line, offset, counted = (
            line + passed.count("\n"),
            offset + len(passed.encode()),
            match.start(),
        )
        fields = {"worker_pid": match["pid"], "title": match["title"].strip()}
        yield Event(
            "stack.dump",
            source,
            line,
            offset,
            part[:2000],
            part[:20_000],
            pid=int(match["pid"]),
            fields=fields,
        )

"""Rewrites the consoles of a capture for reading, into files in the capture's private folder.

Samples decide whether a large console is rewritten, because rewriting takes some microseconds a line.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

from raydoctor.capture.console.components import AGENT
from raydoctor.capture.console.numbering import Numbering
from raydoctor.capture.console.prefixes import HEADER
from raydoctor.capture.console.rewrite import Rewriter, RewrittenLine
from raydoctor.capture.console.shape import opens, uncoloured
from raydoctor.capture.cpu import CpuTimeSpent, cpu_limit
from raydoctor.model.values import CONSOLES, Gap, Source

_OF_SESSION = frozenset(
    {"reading", "raylet-out", "gcs-out", "worker-err", "worker-out", "core-driver", "core-worker"}
)
"""Roles of a session's logs. Beside such a log, a console is a driver's output and not an excerpt."""
_SEPARATED_ROLES = frozenset({"raylet-out", "gcs-out", "kernel", "event", AGENT})
_BLOCK = 4 << 20
_LINES = 100_000
"""Lines of a block."""
_LONGEST_LINE = 4 << 20
"""Bytes of a line that are read after a block's end."""
_KEPT_BACK = 400
"""Number of lines at the end of a block that are searched for the start of the next block."""
_WHOLE = 8 << 20
"""Bytes; a smaller console is rewritten without sampling."""
_SAMPLES = (0.0, 0.3, 0.6, 0.9)
_SAMPLE = 64 << 10
_SECONDS = 20.0
"""CPU time for one console; the rest of the console is read without rewriting."""
_RUN_SECONDS = 60.0
"""CPU time for all consoles."""


def rewritten(
    files: Mapping[Source, str],
    folder: Path,
    numbers: Iterator[int],
    gaps: list[Gap],
    only: Iterable[Source] | None = None,
) -> dict[Source, str]:
    """The files, with each console (or each console in `only`) replaced by its rewritten files.

    `numbers` number the new files in `folder`. Raises OSError if the folder is full.
    """
    wanted = set(files if only is None else only)
    is_alone = not any(source.role in _OF_SESSION for source in files)
    result: dict[Source, str] = {}
    end = time.process_time() + _RUN_SECONDS
    for source, file in files.items():
        if source.role in CONSOLES and source in wanted:
            own, target = replace(source, is_excerpt=is_alone), folder / f"console-{next(numbers)}"
            until = min(end, time.process_time() + _SECONDS)
            result.update(_rewritten(own, file, target, gaps, until))
        else:
            result[source] = file
    return result


def _rewritten(
    source: Source, file: str, target: Path, gaps: list[Gap], until: float
) -> dict[Source, str]:
    outputs = _Outputs(target)
    try:
        with open(file, "rb") as stream:
            is_changed = (source.size <= _WHOLE or _is_foreign(stream, source.size)) and _write(
                stream, outputs, source, gaps, until
            )
    except OSError:
        if outputs.logs:  # the folder is full
            raise
        return {source: file}  # the search reports why it cannot be read
    finally:
        outputs.close()
    return outputs.sources(source) if is_changed else {source: file}


@dataclass(slots=True)
class _Outputs:
    """The rewritten lines, by the role of the process that wrote them; an empty role is the console's own."""

    target: Path
    logs: dict[str, tuple[BinaryIO, Numbering]] = field(default_factory=dict)
    """The file of each role, and the places of its lines."""
    numbers: Numbering = field(default_factory=Numbering)
    """The number in the original of each place."""

    def write(self, shown: Iterable[RewrittenLine]) -> None:
        """Append lines."""
        texts: dict[str, list[str]] = {}
        for role, lines in groupby(shown, key=itemgetter(0)):
            if role not in self.logs:
                self.logs[role] = (self._path(role).open("wb"), Numbering())
            first, own = len(self.numbers) + 1, texts.setdefault(role, [])
            for _, number, text in lines:
                self.numbers.append(number)
                own.append(text)
            self.logs[role][1].extend(range(first, len(self.numbers) + 1))
        for role, own in texts.items():
            self.logs[role][0].write(("\n".join(own) + "\n").encode("utf-8", "replace"))

    def close(self) -> None:
        """Complete the files."""
        for log, _ in self.logs.values():
            log.close()

    def sources(self, source: Source) -> dict[Source, str]:
        """The sources that replace a source, with their files."""
        lines: Sequence[int] = self.numbers
        if source.lines:  # a part of an export
            lines = array("I", map(source.line, lines))
        return {
            replace(
                source,
                role=role or source.role,
                is_excerpt=source.is_excerpt or bool(role),
                # The console's own part represents the file that was given.
                size=self._path(role).stat().st_size if role else source.size,
                places=places,
                lines=lines,
            ): str(self._path(role))
            for role, (_, places) in self.logs.items()
        }

    def _path(self, role: str) -> Path:
        return self.target.with_name(f"{self.target.name}-{role}") if role else self.target


def _write(
    stream: BinaryIO, outputs: _Outputs, source: Source, gaps: list[Gap], until: float
) -> bool:
    """Write the lines to the files of their roles; whether a rewritten line differs from the original.

    `until`: the process's CPU time from which on lines are written as they are.
    """
    rewriter = Rewriter(
        _SEPARATED_ROLES if source.is_excerpt else frozenset(), is_alone=source.is_excerpt
    )
    first = 1
    is_changed = is_late = False
    for raws in _blocks(stream):
        shown = None if is_late else _in_time(rewriter, raws, first, until)
        if shown is None:
            if not is_late:
                why = f"its format takes long to rewrite; read without rewriting from line {first:,} on"
                hint = "Diagnose the part of it that contains the failure."
                gaps.append(Gap(source.path, why, hint))
            is_late = True
            shown = [("", n, raw.replace(HEADER, "")) for n, raw in enumerate(raws, first)]
        is_changed = is_changed or len(shown) != len(raws) or any(map(_differs, shown, raws))
        outputs.write(shown)
        first += len(raws)
    return is_changed


def _in_time(
    rewriter: Rewriter, raws: list[str], first: int, until: float
) -> list[RewrittenLine] | None:
    """The rewritten lines of a block; None if the CPU time is spent."""
    seconds = until - time.process_time()
    with suppress(CpuTimeSpent), cpu_limit(seconds):
        return rewriter.rewrite(raws, first) if seconds > 0 else None
    return None


def _differs(shown: RewrittenLine, raw: str) -> bool:
    """Whether a line has to be replaced. Colours do not count, because the reader removes them as well."""
    role, _, text = shown
    if role or HEADER in raw:
        return True
    return text != raw and ("\x1b" not in raw or text != uncoloured(raw))


def _blocks(stream: BinaryIO) -> Iterator[list[str]]:
    """Whole lines, some MiB at a time, cut before a record or a traceback if one begins near the end."""
    stream.seek(0)
    kept: list[str] = []
    while data := stream.read(_BLOCK):
        data += (rest := stream.readline(_LONGEST_LINE))
        while rest and rest[-1:] != b"\n":  # the rest of such a line is not text for people
            rest = stream.readline(_LONGEST_LINE)
        lines = kept + data.decode("utf-8", "replace").split("\n")
        if not lines[-1]:
            lines.pop()
        kept = []
        while len(lines) > _LINES:  # a line takes some hundred bytes of memory
            block, rest_of_block = _cut(lines[:_LINES])
            yield block
            lines = rest_of_block + lines[_LINES:]
        if len(data) >= _BLOCK:
            lines, kept = _cut(lines)
        yield lines
    if kept:
        yield kept


def _cut(lines: list[str]) -> tuple[list[str], list[str]]:
    """A block without the record or traceback that begins near its end, and that."""
    cut = next((n for n in range(1, min(_KEPT_BACK, len(lines))) if opens(lines[-n])), 0)
    return (lines[:-cut], lines[-cut:]) if cut else (lines, [])


def _is_foreign(stream: BinaryIO, size: int) -> bool:
    """Whether samples of a console need rewriting, or the console contains `HEADER`."""
    for part in _SAMPLES:
        stream.seek(int(size * part))
        raws = stream.read(_SAMPLE).decode("utf-8", "replace").split("\n")[1:-1]
        # Not from line 1: a sample may begin within a traceback without a lost beginning.
        shown = Rewriter(frozenset()).rewrite(raws, 2)
        if len(shown) != len(raws) or any(map(_differs, shown, raws)):
            return True
    stream.seek(0)
    return any(HEADER.encode() in data for data in iter(lambda: stream.read(_BLOCK), b""))

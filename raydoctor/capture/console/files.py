"""Replaces the consoles of a capture by the lines that are read of them, in the capture's private folder.

Whether a large console is rewritten is decided by samples: rewriting takes some microseconds a line.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from raydoctor.capture.console.numbering import Numbering
from raydoctor.capture.console.prefixes import HEADER
from raydoctor.capture.console.rewrite import Rewriter, Shown
from raydoctor.capture.console.shape import opens, uncoloured
from raydoctor.model.values import Gap, Source

CONSOLES = frozenset({"driver", "job-driver"})
_OF_SESSION = frozenset(
    {"reading", "raylet-out", "gcs-out", "worker-err", "worker-out", "core-driver", "core-worker"}
)
"""Roles of logs beside which a console is a driver's output, and no excerpt of anything else."""
_TOLD_APART = frozenset({"raylet-out", "gcs-out", "kernel"})
_BLOCK = 4 << 20
_LONGEST_LINE = 4 << 20
"""Bytes of a line that are read beyond a block's end."""
_KEPT_BACK = 400
"""Lines at the end of a block among which the next block's beginning is looked for."""
_WHOLE = 8 << 20
"""Bytes up to which a console is rewritten without a look at samples."""
_SAMPLES = (0.0, 0.3, 0.6, 0.9)
_SAMPLE = 64 << 10
_SECONDS = 20.0
"""CPU time for one console; what is left then is read as it is."""


def rewritten(
    files: Mapping[Source, str],
    folder: Path,
    numbers: Iterator[int],
    gaps: list[Gap],
    only: Iterable[Source] | None = None,
) -> dict[Source, str]:
    """The files with each console, or those of `only`, replaced by what is read of it.

    `numbers`: for names of files in `folder`. Raises OSError where the folder is full.
    """
    wanted = set(files if only is None else only)
    is_alone = not any(source.role in _OF_SESSION for source in files)
    result: dict[Source, str] = {}
    for source, file in files.items():
        if source.role in CONSOLES and source in wanted:
            own = replace(source, is_excerpt=is_alone)
            result.update(_rewritten(own, file, folder / f"console-{next(numbers)}", gaps))
        else:
            result[source] = file
    return result


def _rewritten(source: Source, file: str, target: Path, gaps: list[Gap]) -> dict[Source, str]:
    outs = _Outs(target)
    try:
        with open(file, "rb") as stream:
            is_changed = (source.size <= _WHOLE or _is_foreign(stream, source.size)) and _write(
                stream, outs, source, gaps
            )
    except OSError:
        if outs.logs:  # the folder is full
            raise
        return {source: file}  # the search says why it cannot be read
    finally:
        outs.close()
    return outs.sources(source) if is_changed else {source: file}


@dataclass(slots=True)
class _Outs:
    """The rewritten lines by their writers' roles; empty for the console's own."""

    target: Path
    logs: dict[str, tuple[BinaryIO, Numbering]] = field(default_factory=dict)

    def write(self, shown: Iterable[Shown]) -> None:
        """Append lines."""
        texts: dict[str, list[str]] = {}
        for role, number, text in shown:
            if role not in self.logs:
                self.logs[role] = (self._path(role).open("wb"), Numbering())
            self.logs[role][1].append(number)
            texts.setdefault(role, []).append(text)
        for role, lines in texts.items():
            self.logs[role][0].write(("\n".join(lines) + "\n").encode("utf-8", "replace"))

    def close(self) -> None:
        """Complete the files."""
        for log, _ in self.logs.values():
            log.close()

    def sources(self, source: Source) -> dict[Source, str]:
        """What takes the place of a source."""
        return {
            replace(
                source,
                role=role or source.role,
                is_excerpt=source.is_excerpt or bool(role),
                # The console's own part stands for the file that was given.
                size=self._path(role).stat().st_size if role else source.size,
                lines=numbers,
            ): str(self._path(role))
            for role, (_, numbers) in self.logs.items()
        }

    def _path(self, role: str) -> Path:
        return self.target.with_name(f"{self.target.name}-{role}") if role else self.target


def _write(stream: BinaryIO, outs: _Outs, source: Source, gaps: list[Gap]) -> bool:
    """Write the lines of each writer; whether anything differs from the original that matters."""
    rewriter = Rewriter(
        _TOLD_APART if source.is_excerpt else frozenset(), is_alone=source.is_excerpt
    )
    until, first = time.process_time() + _SECONDS, 1
    is_changed = is_late = False
    for raws in _blocks(stream):
        if not is_late and time.process_time() > until:
            why = f"in a form that takes long to read; read as it is from line {first:,} on"
            gaps.append(Gap(source.path, why, "Give the part of it that holds the failure."))
            is_late = True
        if is_late:
            shown = [("", n, raw.replace(HEADER, "")) for n, raw in enumerate(raws, first)]
        else:
            shown = rewriter.rewrite(raws, first)
        is_changed = is_changed or len(shown) != len(raws) or any(map(_differs, shown, raws))
        outs.write(shown)
        first += len(raws)
    return is_changed


def _differs(shown: Shown, raw: str) -> bool:
    """Whether a line has to be replaced: colours are taken off where it is read, too."""
    role, _, text = shown
    if role or HEADER in raw:
        return True
    return text != raw and ("\x1b" not in raw or text != uncoloured(raw))


def _blocks(stream: BinaryIO) -> Iterator[list[str]]:
    """Whole lines, some MiB at a time, cut where a record or a traceback begins if that is near."""
    stream.seek(0)
    kept: list[str] = []
    while data := stream.read(_BLOCK):
        data += (rest := stream.readline(_LONGEST_LINE))
        while rest and rest[-1:] != b"\n":  # no text for people: left out
            rest = stream.readline(_LONGEST_LINE)
        lines = kept + data.decode("utf-8", "replace").split("\n")
        if not lines[-1]:
            lines.pop()
        kept = []
        if len(data) >= _BLOCK:
            cut = next((n for n in range(1, min(_KEPT_BACK, len(lines))) if opens(lines[-n])), 0)
            lines, kept = (lines[:-cut], lines[-cut:]) if cut else (lines, [])
        yield lines
    if kept:
        yield kept


def _is_foreign(stream: BinaryIO, size: int) -> bool:
    """Whether a console is in another form than that of Ray, by samples, or holds our own mark."""
    for part in _SAMPLES:
        stream.seek(int(size * part))
        raws = stream.read(_SAMPLE).decode("utf-8", "replace").split("\n")[1:-1]
        shown = Rewriter(frozenset()).rewrite(raws)
        if len(shown) != len(raws) or any(map(_differs, shown, raws)):
            return True
    stream.seek(0)
    return any(HEADER.encode() in data for data in iter(lambda: stream.read(_BLOCK), b""))

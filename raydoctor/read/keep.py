"""Decides which records of an error storm are kept.

Of equal records (one signal, one file, equal `fold` fields) the first and the last ones are kept. The last
of the first ones counts the records between. The number of kept records depends on the number of records in
the whole capture, and not on the order of files: counts remain correct, memory is bounded, and the report
is the same in every order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raydoctor.case.rule import Signal
from raydoctor.model.entities import Entity
from raydoctor.model.values import Source
from raydoctor.read.records import LogLine

KEPT_AT_EACH_END = 256
KEPT_PER_SIGNAL = 2048
KEPT_CHARS = 8_000_000
"""Characters of all drafts of one signal; records of normal length need far less."""


@dataclass(slots=True)
class Draft:
    """An event before its time is known: clocks are learned during the same pass."""

    signal: Signal
    source: Source
    line: int
    offset: int
    head: LogLine
    text: str
    message: str
    fields: dict[str, str]
    entities: frozenset[Entity]
    count: int

    @property
    def chars(self) -> int:
        """The approximate memory in characters."""
        return len(self.text) + len(self.message)


@dataclass(slots=True)
class Keeper:
    """The drafts of one signal."""

    each: int = KEPT_AT_EACH_END
    """Number of drafts kept at either end of a run; halved until the total is small enough."""
    _runs: list[list[Draft]] = field(default_factory=list)
    _kept: int = 0
    _chars: int = 0
    _dropped: int = 0

    def add(self, run: list[Draft]) -> None:
        """Take the drafts of one run, in the file's order."""
        self._runs.append(_thinned(run, self.each))
        self._kept += len(self._runs[-1])
        self._chars += sum(draft.chars for draft in self._runs[-1])
        while (self._kept > KEPT_PER_SIGNAL or self._chars > KEPT_CHARS) and self.each > 1:
            self.each //= 2
            self._runs = [_thinned(kept, self.each) for kept in self._runs]
            self._recount()
        while self._kept > 2 * KEPT_PER_SIGNAL or (
            self._chars > 2 * KEPT_CHARS and len(self._runs) > 1
        ):
            self._drop_most(min(KEPT_PER_SIGNAL, len(self._runs)) // 2)

    def drafts(self) -> list[Draft]:
        """All kept drafts, by file and line."""
        if self._dropped or self._kept > KEPT_PER_SIGNAL:
            self._drop_most(KEPT_PER_SIGNAL // 2)
        drafts = [draft for run in self._runs for draft in run]
        drafts.sort(key=lambda d: (d.source.path, d.line))
        if self._dropped:
            drafts[-1].count += self._dropped
            self._dropped = 0
        return drafts

    def _recount(self) -> None:
        self._kept = sum(map(len, self._runs))
        self._chars = sum(draft.chars for run in self._runs for draft in run)

    def _drop_most(self, most: int) -> None:
        """Keep only the runs of the first files by path, because even the shortest runs are too many."""
        self._runs.sort(key=lambda run: (run[0].source.path, run[0].line))
        self._dropped += sum(draft.count for run in self._runs[most:] for draft in run)
        del self._runs[most:]
        self._recount()


def _thinned(run: list[Draft], each: int) -> list[Draft]:
    """The first and last drafts of a run; the last of the first ones counts those between."""
    if len(run) <= 2 * each:
        return run
    run[each - 1].count += sum(draft.count for draft in run[each:-each])
    return run[:each] + run[-each:]

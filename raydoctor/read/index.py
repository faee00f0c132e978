"""Signals by literal and role: the signals to try on a line in which rg found a literal."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from raydoctor.case.rule import Signal
from raydoctor.model.values import Source

ECHOES = ("raylet-echo", "gcs-echo", "autoscaler-echo", "worker-echo")
DRIVERS = frozenset({"driver", "job-driver"})
"""Roles of files that also echo other processes, after a prefix."""

_TRIVIAL_END = re.compile(r"(?<!\\)(?:\(\?P<\w+>\.\*\??\)|\.\*\??)(?:\(\?:[^()|]*\)\?)?\$?\Z")
"""The end of a pattern that matches any text with re.DOTALL: it only names a field."""
_LATER_LINES_MATTER = re.compile(r"\$|\\Z|\(\?!|\(\?<!")

_LISTED = ("console", "console-prefixed", "console-echo")
"""Roles of signals that apply to excerpts only (`diagnosis/unexplained.py`): to all lines, to those with a
process prefix, and to those of other processes than the driver."""
EXCERPTS = {
    "raylet-out-excerpt": ("raylet-out", "raylet-err", "raylet-echo", *_LISTED),
    "gcs-out-excerpt": ("gcs-out", "gcs-err", "gcs-echo", *_LISTED),
    "autoscaler-echo-excerpt": ("autoscaler-echo", *_LISTED),
    "worker-echo-excerpt": ("worker-echo", *_LISTED),
    "core-driver-excerpt": ("core-driver", "core-worker", "driver", "job-driver"),
    "kernel-excerpt": ("kernel",),
    "event-excerpt": ("event", *_LISTED),
    "runtime-env-agent-excerpt": ("runtime-env-agent", "runtime-env-setup", *_LISTED),
    "driver-excerpt": (
        *(
            "console",
            "driver",
            "job-driver",
            "worker-err",
            "worker-out",
            "core-driver",
            "core-worker",
        ),
        *("dashboard", "dashboard-agent", "runtime-env-agent", "runtime-env-setup", "monitor"),
        *("log-monitor", "client-server", "data", "serve", "train", "train-app", "start-block"),
    ),
}
"""Roles of lines that an excerpt may contain: part of a console, or a log without its file name."""
DRIVERS_ECHO = "driver-echo-excerpt"
"""Lines with a process prefix. Launchers and engines print such prefixes too, even for a driver."""
EXCERPTS[DRIVERS_ECHO] = ("worker-echo", "console-prefixed", *EXCERPTS["driver-excerpt"])


class SignalProbe:
    """A signal prepared for matching; its pattern is compiled at the first use."""

    __slots__ = ("first_line_decides", "fold", "search", "signal", "text", "whole", "with_header")

    def __init__(self, signal: Signal) -> None:
        self.signal = signal
        self.fold = signal.fold
        self.with_header = signal.with_header
        self.whole = signal.extent != "line"
        """Whether the pattern needs the whole record."""
        self.text = _deciding(signal)
        """The signal's own pattern without a trivial end: it alone decides whether the signal matches."""
        self.first_line_decides = not _LATER_LINES_MATTER.search(self.text)
        """Whether a match of the record's first line is final: the pattern neither is anchored to the end nor
        forbids any text. An error storm is then counted without assembling records."""
        self.search: Callable[[str], re.Match[str] | None] = self._first_search
        """The match of the signal in a message, or None."""

    @property
    def pattern(self) -> re.Pattern[str]:
        """The deciding pattern, compiled (and cached by `re` itself)."""
        return re.compile(self.text, re.DOTALL if self.whole else 0)

    def _first_search(self, message: str) -> re.Match[str] | None:
        # If only the start of a message can match, `search` would still try every character.
        once = _only_begins(self.text)
        self.search = self.pattern.match if once else self.pattern.search
        return self.search(message)


class LiteralEntry(NamedTuple):
    """The signals to try if rg reports a literal."""

    own: tuple[SignalProbe, ...]
    hidden: tuple[tuple[str, tuple[SignalProbe, ...]], ...]
    """Literals that rg may have hidden, because they share characters with the reported one."""
    inside: tuple[SignalProbe, ...] = ()
    """Signals whose literals are part of the reported one: for lines in which the others find no symptom."""


class Index:
    """Literals, the signals of each, and the literals that can hide one another."""

    def __init__(self, signals: Iterable[Signal]) -> None:
        self._by_literal: dict[str, list[SignalProbe]] = {}
        for signal in dict.fromkeys(signals):
            self._by_literal.setdefault(signal.find, []).append(SignalProbe(signal))
        self.probes = [probe for probes in self._by_literal.values() for probe in probes]
        self._parts = list(_contained(list(self._by_literal)))
        self._hidden = _overlaps(list(self._by_literal), self._parts)
        self._tables: dict[str, Mapping[bytes, LiteralEntry]] = {}
        self._literals: dict[str, frozenset[str]] = {}
        self._relevant: dict[str, frozenset[bytes]] = {}

    def literals(self, role: str) -> frozenset[str]:
        """The literals to search for in a file of this role."""
        if role not in self._literals:
            roles = frozenset(_possible_roles(role))
            self._literals[role] = frozenset(
                literal
                for literal, probes in self._by_literal.items()
                if any(not roles.isdisjoint(p.signal.roles) for p in probes)
            )
        return self._literals[role]

    def relevant(self, role: str) -> frozenset[bytes]:
        """Literals that make a line of such a file worth parsing."""
        if role not in self._relevant:
            tables = (self.table(each) for each in (role, *_possible_roles(role)))
            self._relevant[role] = frozenset(literal for table in tables for literal in table)
        return self._relevant[role]

    def table(self, role: str) -> Mapping[bytes, LiteralEntry]:
        """literal -> the signals to try on a line of this role."""
        if role not in self._tables:
            self._tables[role] = self._made_table(role)
        return self._tables[role]

    def _made_table(self, role: str) -> dict[bytes, LiteralEntry]:
        # Only from the few literals of this role's signals: they also determine which literal hides which.
        roles = frozenset(EXCERPTS.get(role, (role,)))
        own = {
            literal: fitting
            for literal, probes in self._by_literal.items()
            if (fitting := tuple(p for p in probes if not roles.isdisjoint(p.signal.roles)))
        }
        hidden: dict[str, list[tuple[str, tuple[SignalProbe, ...]]]] = {
            literal: [] for literal in own
        }
        for literal in sorted(own):
            for other in self._hidden.get(literal, ()):
                hidden.setdefault(other, []).append((literal, own[literal]))
        inside: dict[str, list[SignalProbe]] = {}
        for part, whole in self._parts:
            if part in own:
                inside.setdefault(whole, []).extend(own[part])
                hidden.setdefault(whole, [])
        return {
            literal.encode(): LiteralEntry(
                own.get(literal, ()), tuple(others), tuple(inside.get(literal, ()))
            )
            for literal, others in hidden.items()
        }


@lru_cache(maxsize=8)
def index_of(signals: tuple[Signal, ...]) -> Index:
    """The index of these signals: one for all captures that a process reads (`diff`, `rules test`).

    Making one takes as long as reading a small capture. The literals depend on the files of a capture.
    """
    return Index(signals)


def table_of(source: Source) -> str:
    """The name of the table for the lines of a file."""
    return f"{source.role}-excerpt" if source.is_excerpt else source.role


def echo_table(source: Source, echo: str) -> str:
    """The name of the table for a line of a console; `echo`: the process that it echoes, or empty."""
    if not echo:
        return table_of(source)
    if source.is_excerpt:
        return f"{_LOGS.get(echo) or f'{echo}-echo'}-excerpt"
    return "worker-echo" if echo == "driver" else f"{echo}-echo"


_LOGS = {"raylet": "raylet-out", "gcs": "gcs-out"}


def _possible_roles(role: str) -> tuple[str, ...]:
    """Roles that lines of such a file may have."""
    echoes = ECHOES if role.removesuffix("-excerpt") in DRIVERS else ()
    others = ("raylet-out", "raylet-err", "gcs-out", "gcs-err", *_LISTED)
    return (*EXCERPTS.get(role, (role,)), *echoes, *(others if role == "driver-excerpt" else ()))


def _deciding(signal: Signal) -> str:
    if signal.extent == "line":
        return signal.pattern
    shorter = _TRIVIAL_END.sub("", signal.pattern)
    named = all(f"(?P<{name}>" in shorter for name in signal.fold)
    return shorter if named else signal.pattern


def _only_begins(pattern: str) -> bool:
    """Whether a pattern begins with `^` and has no alternative outside brackets."""
    bare = re.sub(r"\\.|\[\^?\]?(?:[^\]\\]|\\.)*\]", "", pattern, flags=re.DOTALL)
    depth = 0
    for char in bare:
        depth += (char == "(") - (char == ")")
        if char == "|" and not depth:
            return False
    return pattern.startswith("^")


def _overlaps(literals: list[str], parts: list[tuple[str, str]]) -> dict[str, list[str]]:
    """literal -> others that it can hide, because both can share characters in a line."""
    found: dict[str, set[str]] = {}
    for literal, other in _touching(literals):
        found.setdefault(literal, set()).add(other)
        found.setdefault(other, set()).add(literal)
    for other, literal in parts:
        found.setdefault(literal, set()).add(other)
    return {literal: sorted(others) for literal, others in found.items()}


def _touching(literals: list[str]) -> Iterator[tuple[str, str]]:
    """Pairs with an overlap: the end of the first equals the start of the second."""
    starting: dict[str, list[str]] = {}
    for literal in literals:
        for size in (1, 2):
            starting.setdefault(literal[:size], []).append(literal)
    for literal in literals:
        # Comparing two characters first excludes most positions.
        for begin in range(len(literal)):
            for other in starting.get(literal[begin : begin + 2], ()):
                if other != literal and other.startswith(literal[begin:]):
                    yield literal, other


def _contained(literals: list[str]) -> Iterator[tuple[str, str]]:
    """Pairs in which the second contains the first."""
    text = "\0".join(literals)
    starts = list(accumulate((len(literal) + 1 for literal in literals), initial=0))
    for literal in literals:
        at = text.find(literal)
        while at >= 0:
            container = literals[bisect_right(starts, at) - 1]
            if container != literal:
                yield literal, container
            at = text.find(literal, at + 1)

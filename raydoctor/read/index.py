"""Signals by literal and role: the signals to try on a line in which rg found a literal."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple, TypeVar

from raydoctor.case.rule import Signal
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Source

_Value = TypeVar("_Value")

ECHOES = ("raylet-echo", "gcs-echo", "autoscaler-echo", "worker-echo")
DRIVERS = frozenset({"driver", "job-driver"})
"""Roles of files that also echo other processes, after a prefix."""

_TRIVIAL_END = re.compile(r"(?<!\\)(?:\(\?P<\w+>\.\*\??\)|\.\*\??)(?:\(\?:[^()|]*\)\?)?\$?\Z")
"""The end of a pattern that matches any text with re.DOTALL: it only names a field."""
_MIN_LITERAL = 8
"""Characters below which a literal keeps its spaces, which tell ` 500 ` from other numbers."""
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


class _Computed(dict[bytes, _Value]):
    """Values by literal, each made at its first use: a capture contains few of the literals."""

    def __init__(self, make: Callable[[bytes], _Value]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, literal: bytes) -> _Value:
        self[literal] = value = self._make(literal)
        return value


class Index:
    """Literals, the signals of each, and the literals that can hide one another."""

    def __init__(self, signals: Iterable[Signal]) -> None:
        self._by_literal: dict[str, list[SignalProbe]] = {}
        for signal in dict.fromkeys(signals):
            self._by_literal.setdefault(_literal(signal), []).append(SignalProbe(signal))
        self.probes = [probe for probes in self._by_literal.values() for probe in probes]
        self.roles = frozenset(role for probe in self.probes for role in probe.signal.roles)
        """Roles of the files that may contain a signal."""
        self._overlaps = _Overlaps(list(self._by_literal))
        self._tables: dict[str, Mapping[bytes, LiteralEntry | None]] = {}
        self._literals: dict[str, frozenset[str]] = {}
        self._relevant: dict[str, Mapping[bytes, bool]] = {}

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

    def relevant(self, role: str) -> Mapping[bytes, bool]:
        """literal -> whether it makes a line of such a file worth parsing."""
        if role not in self._relevant:
            tables = [self.table(each) for each in (role, *_possible_roles(role))]
            self._relevant[role] = _Computed(lambda key: any(table[key] for table in tables))
        return self._relevant[role]

    def table(self, role: str) -> Mapping[bytes, LiteralEntry | None]:
        """literal -> the signals to try on a line of this role, if any."""
        if role not in self._tables:
            # The literals of this role's signals also determine which literal hides which.
            roles = frozenset(EXCERPTS.get(role, (role,)))
            self._tables[role] = _Computed(lambda key: self._entry(key.decode(), roles))
        return self._tables[role]

    def _entry(self, literal: str, roles: frozenset[str]) -> LiteralEntry | None:
        hidden = ((each, self._own(each, roles)) for each in self._overlaps.hidden_by(literal))
        inside = (self._own(each, roles) for each in self._overlaps.inside(literal))
        entry = LiteralEntry(
            self._own(literal, roles),
            tuple((other, probes) for other, probes in hidden if probes),
            tuple(probe for probes in inside for probe in probes),
        )
        return entry if any(entry) else None

    def _own(self, literal: str, roles: frozenset[str]) -> tuple[SignalProbe, ...]:
        probes = self._by_literal.get(literal, ())
        return tuple(probe for probe in probes if not roles.isdisjoint(probe.signal.roles))


@lru_cache(maxsize=8)
def index_of(signals: tuple[Signal, ...]) -> Index:
    """The index of these signals: one for all captures that a process reads (`diff`, `rules test`).

    The literals depend on the files of a capture.
    """
    return Index(signals)


def table_of(source: Source) -> str:
    """The name of the table for the lines of a file."""
    return f"{source.role}-excerpt" if source.is_excerpt else source.role


_EXCEPTION = pattern(
    r"(?:[a-z_]\w{0,60}\.){0,8}[A-Z]\w{1,80}(?:Error|Exception)\b(?:\(\w{1,80}\))?: "
)


def echo_table(source: Source, echo: str, message: str) -> str:
    """The name of the table for a line of a console; `echo`: the process that it echoes, or empty.

    In an excerpt, an exception that a worker prints counts like a driver's: the worker may call Ray as well.
    """
    if not echo:
        return table_of(source)
    if source.is_excerpt:
        if echo == "worker" and _EXCEPTION.match(message):
            return DRIVERS_ECHO
        return f"{_LOGS.get(echo) or f'{echo}-echo'}-excerpt"
    return "worker-echo" if echo == "driver" else f"{echo}-echo"


_LOGS = {"raylet": "raylet-out", "gcs": "gcs-out"}


def _possible_roles(role: str) -> tuple[str, ...]:
    """Roles that lines of such a file may have."""
    echoes = ECHOES if role.removesuffix("-excerpt") in DRIVERS else ()
    others = ("raylet-out", "raylet-err", "gcs-out", "gcs-err", *_LISTED)
    return (*EXCERPTS.get(role, (role,)), *echoes, *(others if role == "driver-excerpt" else ()))


def _literal(signal: Signal) -> str:
    """A signal's literal without the spaces at its ends: they overlap with those of hundreds of literals."""
    shorter = signal.find.strip(" ")
    return shorter if len(shorter) >= _MIN_LITERAL else signal.find


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


class _Overlaps:
    """Which literals can share characters in a line."""

    def __init__(self, literals: list[str]) -> None:
        self._literals = literals
        self._text = "\0".join(literals)
        self._begins = list(accumulate((len(literal) + 1 for literal in literals), initial=0))
        self._order = {literal: number for number, literal in enumerate(literals)}
        # Comparing two characters first excludes most literals.
        self._starting: dict[str, list[str]] = {}
        self._ending: dict[str, list[str]] = {}
        for literal in literals:
            for size in (1, 2):
                self._starting.setdefault(literal[:size], []).append(literal)
                self._ending.setdefault(literal[-size:], []).append(literal)

    def hidden_by(self, literal: str) -> list[str]:
        """Literals that it can hide: they overlap with it, or contain it."""
        found = {*self._continuing(literal), *self._preceding(literal), *self._containing(literal)}
        return sorted(found - {literal})

    def inside(self, literal: str) -> list[str]:
        """Literals that are part of it."""
        found = {
            other
            for begin in range(len(literal))
            for size in (1, 2)
            for other in self._starting.get(literal[begin : begin + size], ())
            if (size == 2 or len(other) == 1) and literal.startswith(other, begin)
        }
        return sorted(found - {literal}, key=self._order.__getitem__)

    def _continuing(self, literal: str) -> Iterator[str]:
        for begin in range(len(literal)):
            for other in self._starting.get(literal[begin : begin + 2], ()):
                if other.startswith(literal[begin:]):
                    yield other

    def _preceding(self, literal: str) -> Iterator[str]:
        for end in range(1, len(literal) + 1):
            for other in self._ending.get(literal[max(0, end - 2) : end], ()):
                if other.endswith(literal[:end]):
                    yield other

    def _containing(self, literal: str) -> Iterator[str]:
        at = self._text.find(literal)
        while at >= 0:
            yield self._literals[bisect_right(self._begins, at) - 1]
            at = self._text.find(literal, at + 1)

"""The parts of a rule: signals, examples, the `rule` decorator.

A rule is a *value*: declaring one takes microseconds and registers nothing; `rules.load()` finds the values.
Its function is pure: it takes a `Case` and yields findings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Literal

from raydoctor.model.entities import EntityKind
from raydoctor.model.values import Finding, Remedy, Severity, Tier

if TYPE_CHECKING:
    from raydoctor.case import Case

Extent = Literal["line", "record", "traceback"]
Judge = Callable[["Case"], Iterator[Finding]]


class _HashedOnce:
    """A hash that is computed once: a scan of a small file is faster than the hashes of all signals."""

    __slots__ = ("_hash",)
    _hash: int


@dataclass(frozen=True, slots=True)
class Signal(_HashedOnce):
    """A record that becomes an event: a literal to search for, a pattern to match, and its possible sources.

    Signals are compared by value: two rules may use the same one, and it is read once.
    """

    kind: str
    """Name of the event, as in `thing.happened`."""
    find: str
    """The literal that `rg` looks for. A property test proves that `pattern` cannot match without
    it. No quotes, backslashes or tabs: JSON logs escape them."""
    pattern: str
    """Searched in the record's message (header and driver prefix removed), with re.DOTALL for
    `record` and `traceback`. Named groups become fields."""
    roles: tuple[str, ...]
    """Roles of sources that may contain it: Ray's boilerplate mentions causes in many other files."""
    sample: str
    """A real line (or whole record) that must match."""
    extent: Extent = "line"
    """`line`: the hit's own line. `record`: up to the next record's header. `traceback`: a Python
    traceback from its first line to the exception's last."""
    symptom: bool = False
    """Whether it reports a failure: if no diagnosis covers it, the report lists it as unexplained."""
    fold: tuple[str, ...] = ()
    """Fields that tell events of one kind apart when a storm is folded (beyond the cap)."""
    with_header: bool = False
    """Whether the pattern is searched in the record's whole first line, including the header."""
    precedes: bool = False
    """Whether it only records that something began, or its settings: as evidence it dates no failure."""

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            value = hash((self.kind, self.find, self.pattern, self.roles))
            object.__setattr__(self, "_hash", value)
            return value

    @property
    def regex(self) -> re.Pattern[str]:
        """The pattern, compiled on first use."""
        return _compile(self.pattern, self.extent != "line")


@cache
def _compile(pattern: str, dotall: bool) -> re.Pattern[str]:
    return re.compile(pattern, re.DOTALL if dotall else 0)


QUIET_LOGS = {"logs/gcs_server.out": "", "logs/raylet.out": ""}
"""Files of an example: complete logs of Ray's daemons that report no failure."""


@dataclass(frozen=True, slots=True)
class Example:
    """A small capture and the root diagnoses that it must give with *all* rules loaded."""

    title: str
    files: Mapping[str, str]
    """Path in the capture -> content."""
    roots: tuple[str, ...] = ()
    """Rules expected as roots, in any order. Without any, an example that `says` something or has a severity
    expects its own rule, and any other example expects no diagnosis."""
    consequences: tuple[str, ...] = ()
    """Rules that must appear below a root."""
    says: tuple[str, ...] = ()
    """Strings that this rule's headline or remedies must contain."""
    severity: Severity | None = None
    """Of this rule's diagnoses, if it is not the rule's own."""
    is_typical: bool = False
    """Whether the page of the rule shows it, instead of the first one in which the rule finds something."""


def console(  # noqa: PLR0913 - the fields of an example
    title: str,
    output: str,
    *,
    logs: Mapping[str, str] = {},
    roots: tuple[str, ...] = (),
    consequences: tuple[str, ...] = (),
    says: tuple[str, ...] = (),
    severity: Severity | None = None,
    is_typical: bool = False,
) -> Example:
    """An example of what a driver printed, alone or beside Ray's logs."""
    files = {"driver.log": output, **logs}
    return Example(title, files, roots, consequences, says, severity, is_typical)


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """One failure."""

    name: str
    tier: Tier
    severity: Severity
    rank: int
    """If two rules explain the same entity, the lower rank wins. The order is that of causes, not of
    importance: a crash explains a death better than an owner's end, and either does so better than
    "vanished" (CONTRIBUTING.md documents the precedence)."""
    explains: tuple[EntityKind, ...] | None
    """Kinds of entities that its findings explain. None: not declared and not checked (rules of others)."""
    caused_by: tuple[EntityKind, ...] | None
    """Kinds of the entities that its findings name as causes; None as above."""
    looks_for: tuple[Signal, ...]
    remedies: tuple[Remedy, ...]
    judge: Judge
    doc: str
    fallback: bool = False
    """Whether it runs after all others and may use `case.is_explained(entity)`."""
    daemons_record: bool = False
    """Whether the GCS or a raylet records every such failure. If so, a program's output alone proves none
    while their logs are complete and report no failure (`diagnosis/corroboration.py`)."""

    @property
    def examples(self) -> tuple[Example, ...]:
        """`EXAMPLES` at the end of the rule's module, each with its roots."""
        found: Iterable[Example] = self.judge.__globals__.get("EXAMPLES", ())
        return tuple(
            e if e.roots or not (e.says or e.severity) else replace(e, roots=(self.name,))
            for e in found
        )


def rule(  # noqa: PLR0913 - one keyword per part of a rule file, all named at the call
    *,
    tier: Tier,
    severity: Severity,
    rank: int,
    explains: Iterable[EntityKind] | None = None,
    caused_by: Iterable[EntityKind] = (),
    looks_for: Iterable[Signal],
    remedies: Iterable[Remedy] = (),
    fallback: bool = False,
    daemons_record: bool = False,
) -> Callable[[Judge], Rule]:
    """Make a rule of a function `case -> findings`; its name, page and examples come from its module."""

    def declare(judge: Judge) -> Rule:
        module = judge.__globals__
        return Rule(
            name=str(module["__name__"]).rpartition(".")[2].replace("_", "-"),
            tier=tier,
            severity=severity,
            rank=rank,
            explains=None if explains is None else tuple(explains),
            caused_by=None if explains is None and not caused_by else tuple(caused_by),
            looks_for=tuple(looks_for),
            remedies=tuple(remedies),
            judge=judge,
            doc=str(module.get("__doc__") or ""),
            fallback=fallback,
            daemons_record=daemons_record,
        )

    return declare

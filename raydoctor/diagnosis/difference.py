"""Two reports -> the new, gone, worse and better diagnoses.

The comparison uses the contract (`raydoctor/report/1`), so an old report and a new capture compare alike.
Ids, pids, addresses and times differ between clusters. Diagnoses are about the same subject if their rule
is the same and the names of their subjects agree, or overlap most.

The order of a report's parts and of its files does not matter; `compare(b, a)` mirrors `compare(a, b)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from raydoctor.diagnosis.fingerprint import folded
from raydoctor.diagnosis.unexplained import template
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.patterns import pattern
from raydoctor.model.values import SEVERITIES, Severity

_SCHEMA = "raydoctor/report/"
_VERSION = 1


class Compared(NamedTuple):
    """A diagnosis of a report."""

    id: str
    rule: str
    severity: Severity
    times: int
    headline: str
    names: frozenset[str]
    """The names of its subjects, without the parts that differ between runs."""
    document: Mapping[str, Any]
    """The whole diagnosis."""


class Side(NamedTuple):
    """The compared parts of a report."""

    path: str
    ray_versions: tuple[str, ...]
    nodes: int
    begin: float | None
    end: float | None
    diagnoses: tuple[Compared, ...]
    unexplained: tuple[Mapping[str, Any], ...]
    gaps: tuple[Mapping[str, Any], ...]


class Change(NamedTuple):
    """Diagnoses of both reports about the same subjects."""

    before: tuple[Compared, ...]
    after: tuple[Compared, ...]

    @property
    def rule(self) -> str:
        """The rule that found it."""
        return self.before[0].rule


class Difference(NamedTuple):
    """The changes from `a` to `b`, worst first."""

    a: Side
    b: Side
    new: tuple[Compared, ...]
    gone: tuple[Compared, ...]
    worse: tuple[Change, ...]
    better: tuple[Change, ...]
    same: tuple[Change, ...]
    new_unexplained: tuple[Mapping[str, Any], ...]
    gone_unexplained: tuple[Mapping[str, Any], ...]
    new_gaps: tuple[Mapping[str, Any], ...]
    gone_gaps: tuple[Mapping[str, Any], ...]

    @property
    def grave(self) -> tuple[Severity, ...]:
        """Severities of the new and the worse diagnoses."""
        return (*(d.severity for d in self.new), *(severity(c.after) for c in self.worse))

    @property
    def unsure(self) -> bool:
        """Whether a diagnosis may be gone only because `b` lacks the evidence for it."""
        hidden = any(not gap.get("optional") for gap in self.new_gaps)
        return hidden and bool(self.gone or self.better)

    @property
    def is_new_unsure(self) -> bool:
        """Whether a diagnosis may be new only because `a` lacks the evidence for it."""
        hidden = any(not gap.get("optional") for gap in self.gone_gaps)
        return hidden and bool(self.new or self.worse)


def compare(a: Side, b: Side) -> Difference:
    """The new, gone, worse and better diagnoses in `b`."""
    changes, gone, new = _paired(_together(a.diagnoses), _together(b.diagnoses))
    verdicts: dict[str, list[Change]] = {"worse": [], "better": [], "same": []}
    for change in sorted(changes, key=lambda c: (_rank(c.after), c.rule, c.after[0].headline)):
        verdicts[_verdict(change)].append(change)
    return Difference(
        a,
        b,
        new,
        gone,
        tuple(verdicts["worse"]),
        tuple(verdicts["better"]),
        tuple(verdicts["same"]),
        _only(b.unexplained, a.unexplained, _symptom),
        _only(a.unexplained, b.unexplained, _symptom),
        _only(b.gaps, a.gaps, _gap),
        _only(a.gaps, b.gaps, _gap),
    )


def severity(group: Sequence[Compared]) -> Severity:
    """The worst of a group."""
    return min((d.severity for d in group), key=SEVERITIES.index)


def count(group: Iterable[Compared]) -> int:
    """The total count of a group."""
    return sum(d.times for d in group)


# ---------------------------------------------------------------- pairs

Group = tuple[Compared, ...]
_Key = Callable[[Mapping[str, Any]], object]


def _together(diagnoses: Iterable[Compared]) -> list[Group]:
    """Diagnoses of one report by the same rule about the same subjects."""
    groups: dict[object, list[Compared]] = {}
    for each in diagnoses:
        groups.setdefault((each.rule, each.names), []).append(each)
    return [tuple(group) for group in groups.values()]


def _paired(before: list[Group], after: list[Group]) -> tuple[list[Change], Group, Group]:
    """The groups about the same subjects, those with most subjects in common first; and the others."""
    pairs = sorted(
        (
            (-likeness, sorted((_key(one), _key(other))), one, other)
            for one in before
            for other in after
            if (likeness := _likeness(one[0], other[0]))
        ),
        key=lambda pair: pair[:2],
    )
    left = {id(group): group for group in before}
    right = {id(group): group for group in after}
    changes = []
    for _, _, one, other in pairs:
        if id(one) in left and id(other) in right:
            changes.append(Change(left.pop(id(one)), right.pop(id(other))))
    return changes, _in_order(left.values()), _in_order(right.values())


def _key(group: Group) -> str:
    """Orders equally similar pairs, independent of the order of the reports."""
    return " ".join(sorted(group[0].names))


def _in_order(groups: Iterable[Group]) -> Group:
    """In the order of their report, in which consequences follow their cause."""
    return tuple(sorted((t for group in groups for t in group), key=lambda t: _number(t.id)))


def _number(name: str) -> tuple[int, str]:
    """`d9` comes before `d10`."""
    digits = name[1:]
    return (int(digits) if digits.isdecimal() and len(digits) < 9 else 0, name)


def _likeness(one: Compared, other: Compared) -> float:
    """From 0 (different subjects) to 1 (the same subjects)."""
    if one.rule != other.rule:
        return 0.0
    if one.names == other.names:
        return 1.0
    return len(one.names & other.names) / len(one.names | other.names)


# ---------------------------------------------------------------- verdicts


def _verdict(change: Change) -> str:
    before, after = _rank(change.before), _rank(change.after)
    if before == after:
        return "same"
    return "worse" if after < before else "better"


def _rank(group: Group) -> tuple[int, int]:
    """By severity, then by count; lower is worse."""
    return (SEVERITIES.index(severity(group)), -count(group))


def _only(
    items: Iterable[Mapping[str, Any]], others: Iterable[Mapping[str, Any]], key: _Key
) -> tuple[Mapping[str, Any], ...]:
    """Items without an equal one among the others, one of each kind."""
    known = {key(other) for other in others}
    fresh: dict[object, Mapping[str, Any]] = {}
    for item in items:
        if key(item) not in known:
            fresh.setdefault(key(item), item)
    return tuple(fresh.values())


def _symptom(item: Mapping[str, Any]) -> tuple[str, str]:
    return str(item.get("kind", "")), template(str(item.get("text", "")))


def _gap(item: Mapping[str, Any]) -> tuple[str, str]:
    return template(str(item.get("what", ""))), template(str(item.get("why", "")))


# ---------------------------------------------------------------- names

_WORD = pattern(r"#|[^\W#](?:[\w.'-]*\w)?")


# ---------------------------------------------------------------- reading a report


def side(document: object, path: str) -> Side:
    """One side, from a report's JSON. Raises RaydoctorError for other documents.

    `path` is the name that the user gave.
    """
    report = _checked(document, path)
    info = _mapping(report.get("capture", {}), "capture", path)
    return Side(
        str(info.get("path") or path),
        tuple(str(version) for version in _list(info, "ray_versions", path)),
        len(_list(info, "nodes", path)),
        _time(info.get("from")),
        _time(info.get("to")),
        tuple(_compared(d, path) for d in _list(report, "diagnoses", path)),
        tuple(_mapping(u, "unexplained", path) for u in _list(report, "unexplained", path)),
        tuple(_mapping(g, "gaps", path) for g in _list(report, "gaps", path)),
    )


def _checked(document: object, path: str) -> Mapping[str, Any]:
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(schema, str):
        raise _unfit(path, "is JSON, but not a report of raydoctor")
    version = schema.removeprefix(_SCHEMA)
    if not schema.startswith(_SCHEMA) or not version.isdecimal():
        raise _unfit(path, f"is not a report: its schema is {schema[:60]}")
    if version != str(_VERSION):
        raise RaydoctorError(
            f"{path} is a report of a later raydoctor: {schema[:60]}",
            "Update raydoctor, or give the capture that the report was made from.",
        )
    if "diagnoses" not in document:
        raise _damaged(path, "diagnoses")
    return document


def _compared(value: object, path: str) -> Compared:
    item = _mapping(value, "diagnoses", path)
    rule, grade, headline = item.get("rule"), item.get("severity"), item.get("headline")
    times = item.get("count", 1)
    if not isinstance(rule, str) or not isinstance(headline, str) or not isinstance(times, int):
        raise _damaged(path, "diagnoses")
    if grade not in SEVERITIES:
        raise _damaged(path, f"severity of {rule[:60]}")
    subjects = [_mapping(s, "subjects", path) for s in _list(item, "subjects", path)]
    return Compared(
        str(item.get("id", "")),
        rule,
        grade,
        times,
        headline,
        frozenset(name for s in subjects if (name := _name(s))),
        item,
    )


def _name(subject: Mapping[str, Any]) -> str:
    """A subject's name, if it identifies the subject."""
    name = folded(str(subject.get("name") or ""))
    return name if _WORD.search(name.replace("#", "")) else ""


def _mapping(value: object, what: str, path: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _damaged(path, what)
    return value


def _list(holder: Mapping[str, Any], name: str, path: str) -> Sequence[Any]:
    value = holder.get(name, [])
    if not isinstance(value, list):
        raise _damaged(path, name)
    return value


def _time(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e12 else None


def _damaged(path: str, where: str) -> RaydoctorError:
    return _unfit(path, f"is a damaged report: {where}")


def _unfit(path: str, why: str) -> RaydoctorError:
    return RaydoctorError(
        f"{path} {why}",
        "Give a capture, or what `raydoctor diagnose --format json` printed.",
    )

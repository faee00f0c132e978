"""Fields of a reading that another machine sent: a damaged one ends no rule, and no genuine one is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from raydoctor.case import Case
from raydoctor.case.rule import Rule, Signal
from raydoctor.diagnosis import engine, plugins
from raydoctor.model.values import Event
from raydoctor.read import portable
from raydoctor.read.portable import NodeReading
from raydoctor.read.valid_fields import ValidFields
from tests.helpers.tainted import case_of

DAMAGED = ("x1", "", "1.5", "9" * 5000)


def sent(events: tuple[Event, ...], signals: list[Signal]) -> NodeReading:
    """The events as another machine reads them."""
    sources = tuple(dict.fromkeys(event.source for event in events))
    return portable.load(portable.dump(NodeReading(events, sources)), "", signals)


def damaged(events: tuple[Event, ...]) -> Iterator[tuple[Event, ...]]:
    """The events with one field of one kind changed, for each of these."""
    fields = {(e.kind, n) for e in events for n in e.fields if not e.kind.startswith("live.")}
    for number, (kind, name) in enumerate(sorted(fields)):
        value = DAMAGED[number % len(DAMAGED)]
        yield tuple(
            replace(e, fields={**e.fields, name: value})
            if e.kind == kind and name in e.fields
            else e
            for e in events
        )


@pytest.mark.parametrize("part", range(8))
def test_a_damaged_field_ends_no_rule(part: int) -> None:
    catalogue = plugins.catalogue()
    signals = list(engine.signals_of(catalogue))
    ended = []
    for rule in catalogue.rules[part::8]:
        case = case_of(rule, rule.examples[0])
        genuine = tuple(case.events)
        assert len(sent(genuine, signals).events) == len(genuine), rule.name
        ended += [
            failure
            for events in damaged(genuine)
            if (failure := failed(rule, case, sent(events, signals)))
        ]
    assert not ended


def failed(rule: Rule, case: Case, reading: NodeReading) -> str:
    """Why the rule ends with these events; empty if it does not."""
    try:
        list(rule.judge(Case(list(reading.events), reading.sources, case.names, [])))
    except Exception as error:
        return f"{rule.name}: {error!r}"
    return ""


STARTED = Signal(
    "x", "a", r"a (?P<pid>\d+)(?: on (?P<ip>\d+(?:\.\d+){3}))?(?P<state> up| down)", (), ""
)
OTHER = Signal("x", "b", r"b (?P<why>.+)(?=!)", (), "")


@pytest.mark.parametrize(
    ("fields", "is_valid"),
    [
        ({"pid": "7", "state": " up"}, True),
        ({"pid": "7", "state": " up", "ip": "10.0.0.1", "more": "x"}, True),
        ({"pid": "7", "state": " up", "ip": "ip-1"}, True),
        ({"why": "anything"}, True),
        ({"pid": "<secret:token-1>", "state": " up"}, False),
        ({"pid": "7", "state": " sideways"}, False),
        ({"pid": "7"}, False),
        ({"pid": "x", "why": "anything"}, False),
        ({"why": "anything", "more": "9" * 5000}, False),
    ],
)
def test_fields_are_those_of_a_signal(fields: dict[str, str], is_valid: bool) -> None:
    assert ValidFields([STARTED, OTHER]).has("x", fields) is is_valid


def test_any_field_of_an_unknown_kind_is_valid() -> None:
    assert ValidFields([STARTED]).has("y", {"pid": "x"})

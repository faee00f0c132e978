"""One machine swept: what is left over on it, what is meant to go, and what became of that.

The same here and inside a task on another node (`sweep_nodes.py`): between the look and the deed somebody is
asked, so the look travels as a value, and the deed touches only what was shown, and what that forked since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from raydoctor.act.audit import Audit
from raydoctor.act.signals.process import Identity, Outcome
from raydoctor.act.signals.system import real_system
from raydoctor.act.zombies import clean, leftovers
from raydoctor.act.zombies.clean import Stale
from raydoctor.act.zombies.leftovers import Leftover, SweepOptions
from raydoctor.observe.processes import proc

_T = TypeVar("_T")


class SweepReport(NamedTuple):
    """What was seen of a machine, and what was done."""

    leftovers: Sequence[Leftover]
    spared: Mapping[Identity, str]
    """Why one is not ended; those that are not in it are, or would be."""
    stale: Sequence[Stale]
    outcomes: Mapping[Identity, Outcome]
    """Empty before anything was done."""
    unseen: str = ""
    """What could not be looked at, and how it could."""
    youngest: float = 0.0
    """When the youngest process of the machine was started, as it was when the look began."""
    notes: Sequence[str] = ()
    """What else is to be said of the deed."""
    boot: float = 0.0
    """What the starts of processes count from (`proc.boot_time`), where the machine was looked at."""

    @property
    def is_left(self) -> bool:
        """Whether anything that was to go is still there."""
        ended = all(outcome.outcome == "gone" for outcome in self.outcomes.values())
        is_kept = any(why == leftovers.INHERITED_ONLY for why in self.spared.values())
        return not ended or is_kept or any(each.reason and not each.removed for each in self.stale)


class SweepNode(NamedTuple):
    """A node of the cluster; with an empty id, this machine without one."""

    id: str = ""
    ip: str = ""


class SweptMachine(NamedTuple):
    """A machine, and what was seen or done there."""

    node: SweepNode
    view: SweepReport | None
    """None where it could not be asked, or is another node's machine."""
    problem: str = ""
    hint: str = ""
    machine: str = ""
    same_as: str = ""
    """The node that has the same machine, and tells it all; `here` for this one's."""
    is_here: bool = False
    """Whether it is this machine, looked at without a task."""


class SweepRequest(NamedTuple):
    """What the user wants done."""

    options: SweepOptions
    grace: float
    kill: bool
    remove: bool
    """What dead sessions keep on the disk."""


class Plan(NamedTuple):
    """What is to be ended, and what is to be removed."""

    ending: Sequence[Leftover]
    removing: Sequence[Stale]


def inspect(options: SweepOptions, with_disk: bool) -> SweepReport:
    """What is left over; with what dead sessions keep on the disk, if that is wanted."""
    youngest = leftovers.youngest()
    found = leftovers.find(options)
    stale = clean.find(options) if with_disk else []
    spared = {each.identity: why for each in found if (why := leftovers.spared(each, options))}
    return SweepReport(
        found, spared, stale, {}, leftovers.unseen(), youngest, boot=proc.boot_time()
    )


def plan(view: SweepReport, deed: SweepRequest) -> Plan:
    """What would be done about it."""
    ending = [each for each in view.leftovers if each.identity not in view.spared]
    removing = [each for each in view.stale if not each.reason]
    return Plan(ending if deed.kill else [], removing if deed.remove else [])


def doubtful(view: SweepReport) -> list[Leftover]:
    """Leftovers that are kept only because nothing but an inherited environment ties them to Ray."""
    return [e for e in view.leftovers if view.spared.get(e.identity) == leftovers.INHERITED_ONLY]


def with_doubtful(
    places: Sequence[SweptMachine], deed: SweepRequest
) -> tuple[list[SweptMachine], SweepRequest]:
    """The same machines and deed, after the user has agreed to end those too."""

    def agreed(view: SweepReport) -> SweepReport:
        kept = {each.identity for each in doubtful(view)}
        return view._replace(spared={i: why for i, why in view.spared.items() if i not in kept})

    these = [each._replace(view=agreed(each.view)) if each.view else each for each in places]
    return these, deed._replace(options=replace(deed.options, inherited=True))


def carry_out(view: SweepReport, deed: SweepRequest) -> SweepReport:
    """Do it, on the machine that was looked at."""
    meant = plan(view, deed)
    audit = Audit("zombies")
    notes = []
    if meant.ending and not real_system().is_exact:
        notes.append("this system cannot hold processes: a pid is checked right before each signal")
    outcomes: Mapping[Identity, Outcome] = {}
    if meant.ending:
        outcomes = leftovers.clear(
            meant.ending, deed.options, deed.grace, audit=audit, since=view.youngest
        )
    removed = clean.remove(meant.removing, deed.options, audit) if meant.removing else []
    if audit.problem:
        notes.append(f"the audit could not be written: {audit.problem}")
    gone = {each.path for each in removed}
    kept = [each for each in view.stale if each.path not in gone]
    return view._replace(outcomes=outcomes, stale=[*removed, *kept], notes=notes)


# ------------------------------------------------------------------ as JSON


def packed(view: SweepReport) -> dict[str, Any]:
    """A view as JSON has it: named tuples become lists."""
    return {
        **view._asdict(),
        "spared": list(view.spared.items()),
        "outcomes": list(view.outcomes.values()),
    }


def unpacked(data: Mapping[str, Any]) -> SweepReport:
    """What `packed` made, after its way through JSON. Raises DAMAGED for what another program made."""
    outcomes = [_made(Outcome, each) for each in data["outcomes"]]
    return SweepReport(
        [_made(Leftover, each) for each in data["leftovers"]],
        {_made(Identity, identity): str(why) for identity, why in data["spared"]},
        [_made(Stale, each) for each in data["stale"]],
        {each.identity: each for each in outcomes},
        str(data["unseen"]),
        _typed(float, data["youngest"]),
        [str(note) for note in data["notes"]],
        _typed(float, data["boot"]),
    )


DAMAGED = (ValueError, TypeError, LookupError, AttributeError, OverflowError)
"""What a view that is none raises."""


def _made(kind: type[_T], values: Any) -> _T:
    """A named tuple of values that have its types."""
    hints = get_type_hints(kind)
    if not isinstance(values, list):
        raise ValueError(f"no {kind.__name__}")
    typed = [_typed(hint, value) for hint, value in zip(hints.values(), values, strict=False)]
    return kind(*typed, *values[len(typed) :])


def _typed(hint: Any, value: Any) -> Any:
    """The value as this type has it. Raises ValueError where it has another type."""
    options = get_args(hint)
    if get_origin(hint) is Literal:
        fits = isinstance(value, str) and value in options
    elif get_origin(hint) is tuple:
        return tuple(_typed(options[0], each) for each in value)
    elif options:  # `int | None`
        return None if value is None else _typed(options[0], value)
    elif hint is float:
        fits = type(value) in (int, float) and isfinite(value)
    elif hint in (int, str, bool):
        fits = type(value) is hint
    else:
        return _made(hint, value)
    if not fits:
        raise ValueError(f"no {hint}")
    return value


def as_of_now(view: SweepReport) -> SweepReport:
    """The same, on the machine that was looked at: its clock may have been set since."""
    step = proc.boot_time() - view.boot if view.boot else 0.0
    if not step:
        return view

    def moved(identity: Identity) -> Identity:
        return Identity(identity.pid, identity.started_at + step)

    return view._replace(
        leftovers=[each._replace(identity=moved(each.identity)) for each in view.leftovers],
        spared={moved(identity): why for identity, why in view.spared.items()},
        youngest=view.youngest + step,
        boot=view.boot + step,
    )

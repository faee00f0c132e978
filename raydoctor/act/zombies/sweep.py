"""Sweeps one machine: finds leftovers, plans what to end or remove, and does it.

The same code runs here and in a task on another node (`sweep_nodes.py`). The user confirms the plan after
leftovers were found, so the report is passed on as a value. The sweep then affects only processes that were
shown, and their new children.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from raydoctor.act.audit import Audit
from raydoctor.act.signals.process import Identity, Outcome
from raydoctor.act.signals.system import real_system
from raydoctor.act.zombies import clean, leftovers, unseen
from raydoctor.act.zombies.clean import Stale
from raydoctor.act.zombies.leftovers import Leftover, Spared, SweepOptions
from raydoctor.observe.nodes.typed import made, typed
from raydoctor.observe.processes import proc


class SweepReport(NamedTuple):
    """The leftovers of a machine, and the results once they were ended."""

    leftovers: Sequence[Leftover]
    spared: Mapping[Identity, Spared]
    """The leftovers that are not ended; all others are to be ended."""
    stale: Sequence[Stale]
    outcomes: Mapping[Identity, Outcome]
    """Empty before the sweep."""
    unseen: str = ""
    """Which processes could not be examined, and the remedy."""
    youngest: float = 0.0
    """Start time of the youngest process on the machine when the search began."""
    notes: Sequence[str] = ()
    """Further remarks about the sweep."""
    boot: float = 0.0
    """Boot time of that machine, the origin of process start times (`proc.boot_time`)."""

    @property
    def is_left(self) -> bool:
        """Whether anything remains that should be ended or removed."""
        ended = all(outcome.outcome == "gone" for outcome in self.outcomes.values())
        is_kept = any(each.is_doubtful or each.has_changed_user for each in self.spared.values())
        return not ended or is_kept or any(each.reason and not each.removed for each in self.stale)


class SweepNode(NamedTuple):
    """A node of the cluster; an empty id stands for this machine without a cluster."""

    id: str = ""
    ip: str = ""


class SweptMachine(NamedTuple):
    """A machine and its report."""

    node: SweepNode
    view: SweepReport | None
    """None if it did not answer, or is the machine of another node."""
    problem: str = ""
    hint: str = ""
    machine: str = ""
    same_as: str = ""
    """The node on the same machine that has the report; `here` for this machine."""
    is_here: bool = False
    """Whether it is this machine, swept without a task."""


class SweepRequest(NamedTuple):
    """What the user wants to be ended and removed."""

    options: SweepOptions
    grace: float
    kill: bool
    remove: bool
    """Whether to remove files of dead sessions."""


class Plan(NamedTuple):
    """The processes to end and the files to remove."""

    ending: Sequence[Leftover]
    removing: Sequence[Stale]


def inspect(options: SweepOptions, with_disk: bool) -> SweepReport:
    """The leftovers of this machine; `with_disk`: including files of dead sessions."""
    youngest = leftovers.youngest()
    found = leftovers.find(options)
    stale = clean.find(options) if with_disk else []
    spared = {each.identity: why for each in found if (why := leftovers.spared(each, options))}
    hidden = unseen.unseen({each.pid for each in found})
    return SweepReport(found, spared, stale, {}, hidden, youngest, boot=proc.boot_time())


def only(view: SweepReport, shown: str) -> SweepReport:
    """The report with the leftovers that an earlier plan showed: their identities, separated by commas."""
    known = set(shown.split(","))
    kept = [e for e in view.leftovers if proc.identity(*e.identity, view.boot) in known]
    return view._replace(leftovers=kept)


def plan(view: SweepReport, deed: SweepRequest) -> Plan:
    """What the request would end and remove."""
    ending = [each for each in view.leftovers if each.identity not in view.spared]
    removing = [each for each in view.stale if not each.reason]
    return Plan(ending if deed.kill else [], removing if deed.remove else [])


def doubtful(view: SweepReport) -> list[Leftover]:
    """Leftovers that are kept only because their inherited environment is the only tie to Ray."""
    found = {identity for identity, spared in view.spared.items() if spared.is_doubtful}
    return [each for each in view.leftovers if each.identity in found]


def with_doubtful(
    places: Sequence[SweptMachine], deed: SweepRequest
) -> tuple[list[SweptMachine], SweepRequest]:
    """The same machines and request, after the user has agreed to end the doubtful leftovers as well."""

    def agreed(view: SweepReport) -> SweepReport:
        kept = {each.identity for each in doubtful(view)}
        return view._replace(spared={i: why for i, why in view.spared.items() if i not in kept})

    these = [each._replace(view=agreed(each.view)) if each.view else each for each in places]
    return these, deed._replace(options=replace(deed.options, inherited=True))


def carry_out(view: SweepReport, deed: SweepRequest) -> SweepReport:
    """End and remove what is planned, on the machine of the report."""
    meant = plan(view, deed)
    audit = Audit("zombies")
    notes = []
    if meant.ending and not real_system().is_exact:
        notes.append("this system has no pidfds: each process is identified right before a signal")
    outcomes: Mapping[Identity, Outcome] = {}
    if meant.ending:
        outcomes = leftovers.clear(
            meant.ending, deed.options, deed.grace, audit=audit, since=view.youngest
        )
    removed = clean.remove(meant.removing, deed.options, audit) if meant.removing else []
    if audit.problem:
        notes.append(f"the audit log could not be written: {audit.problem}")
    gone = {each.path for each in removed}
    kept = [each for each in view.stale if each.path not in gone]
    return view._replace(outcomes=outcomes, stale=[*removed, *kept], notes=notes)


# ------------------------------------------------------------------ as JSON


def packed(view: SweepReport) -> dict[str, Any]:
    """A report for JSON, which turns named tuples into lists."""
    return {
        **view._asdict(),
        "spared": list(view.spared.items()),
        "outcomes": list(view.outcomes.values()),
    }


def unpacked(data: Mapping[str, Any]) -> SweepReport:
    """A report from the JSON of `packed`. Raises one of DAMAGED if it is malformed."""
    outcomes = [made(Outcome, each) for each in data["outcomes"]]
    return SweepReport(
        [made(Leftover, each) for each in data["leftovers"]],
        {made(Identity, identity): made(Spared, why) for identity, why in data["spared"]},
        [made(Stale, each) for each in data["stale"]],
        {each.identity: each for each in outcomes},
        str(data["unseen"]),
        typed(float, data["youngest"]),
        [str(note) for note in data["notes"]],
        typed(float, data["boot"]),
    )


def as_of_now(view: SweepReport) -> SweepReport:
    """The same report with start times as of now: the clock of its machine may have been set since."""
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

"""Answers of other nodes to `zombies` and `cancel`: one that is damaged or forged is a problem of that node, no error of ours."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import asdict
from typing import Any

import pytest

from raydoctor.act.cancel import elsewhere
from raydoctor.act.cancel.ladder import Cancellation, Taken
from raydoctor.act.cancel.processes import Survivor
from raydoctor.act.cancel.steps import CancelOptions
from raydoctor.act.cancel.target import CancelTarget
from raydoctor.act.signals.process import Identity, Outcome
from raydoctor.act.zombies import sweep, sweep_nodes
from raydoctor.act.zombies.clean import Stale
from raydoctor.act.zombies.leftovers import Leftover, Spared
from raydoctor.act.zombies.sweep import SweepNode, SweepReport
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.nodes.there import RemoteReply
from raydoctor.render import cancel
from raydoctor.render.page import plain

WHO = Identity(812, 5.5)
VIEW = SweepReport(
    [Leftover(WHO, "orphan", "why", "a", "python", "", "ray", 1000, 5, 5, ports=(80, 81))],
    {Identity(813, 6.0): Spared("spared")},
    [Stale("/tmp/ray/a", "session", 5, 60.0)],
    {WHO: Outcome(WHO, "term", "gone")},
    "",
    5.5,
    ["a note"],
    1.0,
)


def place(view: Any) -> sweep_nodes.SweptMachine:
    """What is made of an answer with this view."""
    return sweep_nodes._place(
        SweepNode("ab", "10.0.0.2"), RemoteReply("ab", {"view": view, "machine": "m"})
    )


def sent() -> Any:
    return json.loads(json.dumps(sweep.packed(VIEW)))


def test_a_view_comes_back_as_it_was() -> None:
    assert place(sent()).view == VIEW


def test_a_sweep_can_be_limited_to_what_was_shown() -> None:
    other = VIEW.leftovers[0]._replace(identity=Identity(812, 9.5))  # the pid was reused
    both = VIEW._replace(leftovers=[*VIEW.leftovers, other])
    assert sweep.only(both, "812:4.50,1:2.00").leftovers == list(VIEW.leftovers)
    assert sweep.only(both, "812:5.50").leftovers == []


@pytest.mark.parametrize(
    "bad", [None, {}, [], "x", -1.5, float("nan"), True, [["a"]], {"a": 1}], ids=repr
)
def test_a_damaged_view_is_a_problem_of_its_node(bad: Any) -> None:
    whole = sent()
    views: list[Any] = [bad, *({**whole, name: bad} for name in ("leftovers", "stale", "outcomes"))]
    for number in (0, 1, 8):
        view = deepcopy(whole)
        view["leftovers"][0][number] = bad
        views.append(view)
    for view in views:
        made = place(view)
        assert made.problem == "its reply is malformed" or made.view is not None
        if made.view is not None:
            for each in made.view.leftovers:
                assert isinstance(each.identity.pid, int)
                assert isinstance(each.rss, int)
                assert isinstance(each.kind, str)


# ---------------------------------------------------------------- cancel

TARGET = CancelTarget(
    "ab" * 24, "f", "task", "running", "RUNNING", 0, 5.0, "cd" * 28, 812, "10.0.0.2", "ef" * 28, "", 0,
    "01000000", "", "", 4.0,
)  # fmt: skip
CANCELLED = Cancellation(
    TARGET,
    [Taken("cancel", "ended", 1.0)],
    ended=True,
    survivors=[Survivor(WHO, "sleep", "running", "it resists")],
    children=[TARGET],
    unknown=[TARGET],
)


def cancelled(reply: Any, monkeypatch: pytest.MonkeyPatch) -> Cancellation | str:
    """What is made of a node's reply to a cancel."""
    monkeypatch.setattr(elsewhere, "ask", lambda *_: iter([RemoteReply("ab", reply)]))
    return elsewhere.there(Cluster(), TARGET, CancelOptions())


def test_a_cancellation_comes_back_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cancelled(json.loads(json.dumps(asdict(CANCELLED))), monkeypatch) == CANCELLED


@pytest.mark.parametrize("bad", [None, {}, [], "x", -1.5, True, [["a"]], {"a": 1}], ids=repr)
def test_a_damaged_cancellation_is_a_problem_of_its_node(
    bad: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole: Any = json.loads(json.dumps(asdict(CANCELLED)))
    replies = [bad, *({**whole, name: bad} for name in whole)]
    replies += [{**whole, "target": {**whole["target"], name: bad}} for name in whole["target"]]
    for number in range(4):
        reply = deepcopy(whole)
        reply["survivors"][0][number] = bad
        replies.append(reply)
    for reply in replies:
        made = cancelled(reply, monkeypatch)
        if isinstance(made, str):
            assert made == "its reply is malformed"
        else:
            assert plain(cancel.render(made))
            assert cancel.to_json(made)

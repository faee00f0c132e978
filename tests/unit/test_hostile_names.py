"""Names that others choose, in every place of every command's output: reports are in tests/fixtures/test_formats.py."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from markdown_it import MarkdownIt
from prometheus_client import parser

from raydoctor.act.attach.target import FoundProcess
from raydoctor.act.cancel.ladder import Cancellation
from raydoctor.act.cancel.steps import Step
from raydoctor.act.cancel.target import CancelTarget
from raydoctor.act.zombies.sweep import SweptMachine
from raydoctor.diagnosis.difference import Difference
from raydoctor.model.values import Event, Gap, Source
from raydoctor.observe.kubectl.choice import Pod
from raydoctor.observe.kubectl.leftovers import PodLeftovers
from raydoctor.observe.preflight.checks import Check
from raydoctor.observe.stacks.worker_stacks import Found, Stack
from raydoctor.read.story import Story
from raydoctor.render import attach, cancel, check, diff, hung, pods, stack, status, story, watch
from raydoctor.render import zombies as leftovers
from raydoctor.render.html import hung as hung_page
from raydoctor.render.page import Page as Layout
from raydoctor.render.page import plain
from raydoctor.watch.event import WatchEvent
from raydoctor.watch.rounds import Watch
from raydoctor.watch.view import WatchView
from tests.helpers import pages, tainted
from tests.helpers.filled import filled
from tests.helpers.hostile_text import CORPUS

TEXTS = tuple(filter(str.strip, dict.fromkeys((*CORPUS[::2], *tainted.PAYLOADS))))


class Outputs(NamedTuple):
    """What every command would print, by format."""

    texts: dict[str, str]
    documents: dict[str, str]
    """JSON."""
    metrics: dict[str, str]
    html: str
    markdown: str
    pasted: tuple[str, ...]
    """Lines to paste."""


def row(text: str) -> dict[str, Any]:
    """A row as a live table, a pod's reply and a JSON report have it."""
    texts = "node_id worker_id title how problem task_id name actor_id class_name kind command why id rule"
    frames = [
        {"function": text, "file": text, "line": 3, "whose": whose, "locals": {text: text}}
        for whose in ("user", "ray", "python")
    ]
    thread = {"tid": 7, "name": text, "active": True, "gil": True, "state": "S", "wchan": text}
    where = {"function": text, "file": text, "line": 3, "thread": text, "number": 1}
    return {
        **dict.fromkeys(f"{texts} headline text what hint words awaits".split(), text),
        "pid": 7,
        "started_at": 7.5,
        "start_time_ms": 7,
        "memory": 7,
        "line": 3,
        "file": text,
        "consequences": [text],
        "chain": [{"file": text, "line": 3}],
        "frames": frames,
        "threads": [{**thread, "frames": frames}],
        "where": where,
        "variables": [{"name": text, "type": text, "value": text}],
        "task": {"id": text, "name": text},
        "waits_for": [{"name": text}],
        "severity": text,
    }


KNOWN = {
    Source: lambda text: Source(f"logs/{text}", "raylet-out", text),
    Event: lambda text: Event("x", Source(text, "raylet-out", text), 3, 0, text, text),
    dict[str, Any]: row,
    Mapping[str, Any]: row,
    Counter[str]: lambda text: Counter({text: 3, "FINISHED": 3}),
}


def of(kind: Any, text: str) -> Any:
    return filled(kind, text, KNOWN)


def watch_of(text: str) -> Watch:
    """A watch whose cluster has this text in every place."""
    view, event = of(WatchView, text), of(WatchEvent, text)
    guard = SimpleNamespace(limits=SimpleNamespace(timeout=3.0, mode="report"), reported=1)
    made = SimpleNamespace(view=view, events=[event], state="lost", problem=text, guard=guard)
    vars(guard).update(cancelled=0, under_way=0)
    vars(made).update(interval=2.0, cost=0.1, background_s=0.0)
    vars(made).update(cluster=SimpleNamespace(node_ids=(), gcs_address=text))
    return cast("Watch", SimpleNamespace(**vars(made), options=SimpleNamespace(hung=True)))


def pasted(layouts: Mapping[str, Layout]) -> Iterator[str]:
    """Lines to paste. Code of a process, such as a stack, is in the same style."""
    for name, starts in PASTED.items():
        codes = [s.text for line in layouts[name] for s in line if s.style == "code"]
        yield from (code for code in codes if code.startswith(starts))


PASTED = {"attach": ("raydoctor ", ":lua"), "attach, waiting": ("raydoctor ",), "hung": ("",)}


def outputs(text: str) -> Outputs:
    layouts: dict[str, Layout] = {}
    documents: dict[str, str] = {}

    one, seen = of(FoundProcess, text), row(text)
    state = {"method": text, "seconds": 1.0, "host": text, "port": 7, "notes": [text]}
    inside = {"stacks": [seen], "variables": seen, "evaluated": seen, "executed": {"error": text}}
    reply = {"doing": seen, "attached": state, "seen": {**inside, "notes": [text]}}
    made = attach.AttachResult(one, reply, {"connect": {"host": text, "port": 7}}, "", text)
    refused = attach.AttachResult(one, {"failed": text, "hint": text, "doing": seen}, {})
    layouts |= {
        "attach": attach.render(made),
        "attach, refused": attach.render(refused),
        "attach, several": attach.several([one], text),
        "attach, waiting": attach.waiting([one]),
        "attach, planned": attach.planned(one, text, seen["where"]),
        "attach, exec": attach.intent(seen, text),
    }
    documents |= {
        "attach": attach.to_json(made),
        "attach, several": attach.several_to_json([one], text),
        "attach, waiting": attach.waiting_to_json([one]),
    }

    target, steps = of(CancelTarget, text), [of(Step, text)] * 2
    cancelled = of(Cancellation, text)
    layouts |= {
        "cancel": cancel.render(cancelled),
        "cancel, plan": cancel.plan(target, steps, 3.0),
        "cancel, several": cancel.several([target], text),
    }
    documents |= {
        "cancel": cancel.to_json(cancelled),
        "cancel, plan": cancel.plan_to_json(target, steps),
        "cancel, several": cancel.several_to_json([target], text),
    }

    hangs, difference, history = of(hung.HungView, text), of(Difference, text), of(Story, text)
    swept, view = [of(SweptMachine, text)], of(status.StatusView, text)
    stacks = [Stack(seen, kind, (seen,), seen) for kind in ("driver", "worker")]
    found = Found(stacks, [of(Gap, text)], 7.5)
    report = {"leftovers": [seen], "stale_sessions": [seen]}
    there = [PodLeftovers(of(Pod, text), report, problem) for problem in ("", text)]
    watched = watch_of(text)
    layouts |= {
        "check": check.render([of(Check, text)]),
        "diff": diff.render(difference, verbose=True),
        "hung": hung.render(hangs),
        "pods": pods.render(there, lambda pod: "", 100),
        "stack": stack.render(found, stack.Style(whole=True)),
        "status": status.render(view, is_whole=True),
        "story": story.render(history, 100),
        "story, unknown": story.unknown(history, 100),
        "watch": watch.page(watched, 120, 99),
        "zombies": leftovers.render(swept),
    }
    documents |= {
        "check": check.to_json([of(Check, text)]),
        "diff": diff.to_json(difference),
        "hung": hung.to_json(hangs),
        "pods": pods.to_json(there),
        "stack": stack.to_json(found),
        "status": status.to_json(view),
        "story": story.to_json(history),
        "watch": watch.round_to_json(watched),
        "watch, event": watch.event_to_json(watched.events[0]),
        "zombies": leftovers.to_json(swept),
    }
    metrics = {"hung": hung.to_metrics(hangs), "zombies": leftovers.to_metrics(swept)}
    shown = {name: plain(layout) for name, layout in layouts.items()}
    html, markdown = hung_page.render(hangs, text), diff.to_markdown(difference)
    return Outputs(shown, documents, metrics, html, markdown, tuple(pasted(layouts)))


BENIGN = outputs("benign")


@pytest.fixture(scope="module", name="attacked")
def all_outputs() -> dict[str, Outputs]:
    return {text: outputs(text) for text in TEXTS}


def test_the_names_are_many_and_reach_every_output() -> None:
    assert len(TEXTS) > 200
    shown = {**BENIGN.texts, **BENIGN.documents, "html": BENIGN.html, "diff": BENIGN.markdown}
    assert [name for name, text in shown.items() if "benign" not in text] == []
    assert len(BENIGN.pasted) > 5


def test_no_name_reaches_a_terminal_as_more_than_text(attacked: dict[str, Outputs]) -> None:
    for name, made in attacked.items():
        for command, shown in {**made.texts, **made.documents, **made.metrics}.items():
            assert shown.replace("\n", "").isprintable(), (command, name)
            assert shown.encode("utf-8")


def shape(value: Any) -> Any:
    """A document without its texts; some names are left out as no address or id."""
    if isinstance(value, dict):
        return [shape(each) for each in value.values()]
    if isinstance(value, list):
        return [shape(each) for each in value]
    return "text" if value is None or isinstance(value, str) else type(value).__name__


def test_json_keeps_its_shape(attacked: dict[str, Outputs]) -> None:
    expected = {command: shape(json.loads(text)) for command, text in BENIGN.documents.items()}
    for name, made in attacked.items():
        for command, text in made.documents.items():
            assert text.isascii(), (command, name)
            assert shape(json.loads(text)) == expected[command], (command, name)
    lines = [made.documents[of] for made in attacked.values() for of in ("watch", "watch, event")]
    assert [line for line in lines if line.count("\n") != 1] == []


def names_of(metrics: str) -> list[str]:
    return [s.name for each in parser.text_string_to_metric_families(metrics) for s in each.samples]


def test_metrics_keep_their_names(attacked: dict[str, Outputs]) -> None:
    expected = {command: names_of(text) for command, text in BENIGN.metrics.items()}
    for name, made in attacked.items():
        found = {command: names_of(text) for command, text in made.metrics.items()}
        assert found == expected, name


def test_a_page_keeps_its_elements(attacked: dict[str, Outputs]) -> None:
    expected = pages.Page(BENIGN.html)
    assert expected.problems == []
    for name, made in attacked.items():
        page = pages.Page(made.html)
        assert page.problems == [], name
        fixed = ("script", "style", "table", "a", "article", "code", "details")
        assert [page.counts.get(tag) for tag in fixed] == [
            expected.counts.get(tag) for tag in fixed
        ]


def tokens(markdown: str) -> list[str]:
    """What GitHub would make of it, without code spans: some names become one."""
    parsed = MarkdownIt("gfm-like", {"linkify": False}).parse(markdown)
    inner = [each.type for token in parsed for each in token.children or ()]
    return [token.type for token in parsed] + [
        each for each in inner if each not in ("text", "code_inline", "html_inline", "text_special")
    ]


def test_markdown_keeps_its_structure(attacked: dict[str, Outputs]) -> None:
    expected = tokens(BENIGN.markdown)
    assert [name for name, made in attacked.items() if tokens(made.markdown) != expected] == []


def test_no_line_to_paste_runs_a_name(attacked: dict[str, Outputs], tmp_path: Path) -> None:
    lines = sorted({line for made in attacked.values() for line in made.pasted})
    assert tainted.unprintable(lines) == []
    assert tainted.harm_in_python(lines) == []
    assert tainted.harm_in_bash(lines, tmp_path) == []

"""`raydoctor diff`: what is new, gone, worse and better, whatever ids and order the two sides have."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from captures import capture_of

from raydoctor import cli
from raydoctor.diagnosis import difference as diffing
from raydoctor.render import diff as render
from raydoctor.render.page import plain

FIXTURES = Path(__file__).parent.parent / "fixtures"


def capture(name: str) -> str:
    return str(capture_of(FIXTURES / name))


def say(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    capsys.readouterr()
    code = cli.execute(["diff", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def compared(
    capsys: pytest.CaptureFixture[str], *arguments: object
) -> tuple[int, dict[str, list[Any]]]:
    """Exit code, and the rules in each part of the difference."""
    code, out, _ = say(capsys, *arguments, "--format", "json")
    document = json.loads(out)
    assert document["schema"] == "raydoctor/diff/1"
    parts = ("new", "gone", "worse", "better", "same")
    return code, {name: [d["rule"] for d in document[name]] for name in parts if document[name]}


def diagnosis(
    rule: str,
    headline: str,
    *names: str,
    count: int = 1,
    severity: str = "error",
    **rest: Any,
) -> dict[str, Any]:
    subjects = [{"kind": "task", "id": None, "name": n, "pid": 7, "node": None} for n in names]
    return {"rule": rule, "headline": headline, "count": count, "severity": severity, "subjects": subjects, "chain": [], **rest}  # fmt: skip


def report(*diagnoses: dict[str, Any], **rest: Any) -> dict[str, Any]:
    numbered = [{"id": f"d{n}", **d} for n, d in enumerate(diagnoses, 1)]
    return {"schema": "raydoctor/report/1", "capture": {"path": "x", "ray_versions": [], "nodes": []}, "diagnoses": numbered, "unexplained": [], "gaps": [], **rest}  # fmt: skip


def compare(before: dict[str, Any], after: dict[str, Any]) -> diffing.Difference:
    return diffing.compare(diffing.side(before, "a"), diffing.side(after, "b"))


# ---------------------------------------------------------------- real captures


def test_a_capture_does_not_differ_from_itself(capsys: pytest.CaptureFixture[str]) -> None:
    path = capture("failures-200--ray-2.60.0--1-node")
    code, parts = compared(capsys, path, path)
    assert (code, parts) == (0, {"same": ["task-exception"]})
    assert "No difference" in say(capsys, path, path)[1]


def test_what_broke_since_is_new_with_what_follows_from_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    healthy, broken = map(
        capture, ("healthy--ray-2.60.0--1-node", "owner-died-oom--ray-2.60.0--1-node")
    )
    assert compared(capsys, healthy, broken) == (1, {"new": ["ray-oom-kill", "owner-died"]})
    assert compared(capsys, broken, healthy) == (0, {"gone": ["ray-oom-kill", "owner-died"]})
    code, out, _ = say(capsys, healthy, broken)
    assert code == 1
    assert out.startswith("2 new\n")
    assert "└─ ERROR  owner-died" in out
    assert max(map(len, out.splitlines()[:-3])) <= 100


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("owner-died-oom--ray-2.9.3--1-node", "owner-died-oom--ray-2.60.0--1-node"),
        ("actor-cycle--ray-2.9.3--1-node", "actor-cycle--ray-2.60.0--1-node"),
        ("two-nodes-two-failures--ray-2.9.3--2-nodes", "two-nodes-two-failures--ray-2.60.0--2-nodes"),
        ("worker-sigsegv--ray-2.9.3--1-node", "worker-sigsegv--ray-2.60.0--1-node"),
        ("pip-failed--ray-2.9.3--1-node", "pip-failed--ray-2.60.0--1-node"),
    ],
)  # fmt: skip
def test_one_failure_in_two_clusters_and_versions_is_the_same(
    capsys: pytest.CaptureFixture[str], before: str, after: str
) -> None:
    code, parts = compared(capsys, capture(before), capture(after))
    assert code == 0
    assert set(parts) == {"same"}


def test_more_of_the_same_is_worse(capsys: pytest.CaptureFixture[str]) -> None:
    three, four = (capture(f"oom-kill-loop--ray-{v}--1-node") for v in ("2.55.1", "2.60.0"))
    code, parts = compared(capsys, three, four)
    assert (code, set(parts["worse"])) == (1, {"oom-kill-loop", "ray-oom-kill"})
    code, parts = compared(capsys, four, three)
    assert (code, set(parts["better"])) == (0, {"oom-kill-loop", "ray-oom-kill"})
    assert "×3 → ×4" in say(capsys, three, four)[1]


def test_a_report_stands_for_its_capture(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = capture("two-incidents--ray-2.60.0--1-node")
    kept = tmp_path / "kept"
    cli.execute(["diagnose", broken, "--format", "json", "-o", str(kept)])
    code, parts = compared(capsys, kept, broken)
    assert (code, set(parts)) == (0, {"same"})
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(kept.read_bytes())))
    assert compared(capsys, "-", kept)[0] == 0


def test_severity_decides_what_fails(capsys: pytest.CaptureFixture[str]) -> None:
    healthy, warned = (capture(f"{n}--ray-2.60.0--1-node") for n in ("healthy", "spill-heavy"))
    assert compared(capsys, healthy, warned) == (0, {"new": ["spill-heavy"]})
    assert compared(capsys, healthy, warned, "--fail-on", "warning")[0] == 1
    broken = capture("worker-sigkill--ray-2.60.0--1-node")
    assert compared(capsys, healthy, broken, "--fail-on", "never")[0] == 0


def test_markdown_names_captures_and_not_folders(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("healthy--ray-2.60.0--1-node", "task-exception--ray-2.60.0--1-node")
    out = say(capsys, *map(capture, names), "--format", "markdown")[1]
    assert out.startswith("## raydoctor diff: 2 new\n")
    assert str(FIXTURES) not in out
    assert all(name in out for name in names)


# ---------------------------------------------------------------- what is the same


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        # Pids, ids, addresses, times and numbers aside.
        ("train (pid 5) ended suddenly", "train (pid 99) ended suddenly", True),
        ("Node 10.0.0.2 is gone", "Node 192.168.7.14 is gone", True),
        ("job raysubmit_rv4sY822ZiCNAKtJ failed", "job raysubmit_df39PtTAThvsCKh8 failed", True),
        ("1 object lost with node 6aaa477814a6", "7 objects lost with node 4ca5cc9a6845", True),
        ("its pickle has 900 KiB", "its pickle has 1.2 GiB", True),
        ("5 × Trainer crashed: SIGABRT", "Trainer crashed: SIGABRT", True),
        ("/tmp/a1/x/job.py failed", "/tmp/b2/y/job.py failed", True),
        ("A task asks for 8 CPU", "2 tasks ask for 8 CPU", True),
        ("Node 10.0.0.2 is gone", "Node 10.0.0.3 is gone; lost with it: 2 tasks", True),
        # About other things.
        ("ray.get gave up for train after 5 s", "ray.get gave up for plan after 5 s", False),
        ("a task asks for 1 GPU", "a task asks for 1 CPU", False),
        ("load raised KeyError: 'price'", "load raised ValueError: 'price'", False),
        ("/tmp/a1/train.py failed", "/tmp/a1/check.py failed", False),
    ],
)  # fmt: skip
def test_words_that_tell(before: str, after: str, same: bool) -> None:
    difference = compare(report(diagnosis("r", before)), report(diagnosis("r", after)))
    found = difference.same or difference.worse or difference.better
    assert bool(found) == same
    assert bool(difference.new) != same


def test_who_it_is_about_goes_before_how_it_is_said() -> None:
    before = report(
        diagnosis("hung", "load has run for 60 s", "load"),
        diagnosis("hung", "train has run for 60 s", "train"),
    )
    after = report(diagnosis("hung", "train does not end: it waits for a socket", "train"))
    difference = compare(before, after)
    assert [t.names for t in difference.gone] == [{"load"}]
    assert [c.before[0].names for c in difference.same] == [{"train"}]
    assert not difference.new


def test_another_exception_in_the_same_task_is_new() -> None:
    before = report(diagnosis("x", "load raised KeyError: 'a'", "load", count=10))
    after = report(
        diagnosis("x", "load raised KeyError: 'b', in read (job.py:7)", "load", count=10),
        diagnosis("x", "load raised OSError: disk", "load"),
    )
    difference = compare(before, after)
    assert [t.headline for t in difference.new] == ["load raised OSError: disk"]
    assert len(difference.same) == 1


def test_several_of_one_kind_are_counted_together() -> None:
    one = diagnosis("gone", "work ended suddenly", "work")
    difference = compare(report({**one, "count": 2}), report(one, one, one))
    (change,) = difference.worse
    assert (diffing.count(change.before), diffing.count(change.after)) == (2, 3)
    assert not compare(report({**one, "count": 3}), report(one, one, one)).worse


def test_graver_is_worse_however_rare() -> None:
    warned = diagnosis("x", "it stood still", severity="warning", count=9)
    failed = diagnosis("x", "it stood still", severity="error", count=1)
    assert compare(report(warned), report(failed)).worse
    assert compare(report(failed), report(warned)).better


def test_errors_without_a_rule_and_gaps_are_compared_by_their_words() -> None:
    def side(text: str, *gaps: dict[str, Any]) -> dict[str, Any]:
        unexplained = {"kind": "log.error", "file": "a", "line": 1, "text": text, "count": 1}
        return report(unexplained=[unexplained], gaps=list(gaps))

    lost = {"what": "raylet.out", "why": "no raylet log", "hint": "", "optional": False}
    one = side("store.cc:36: cannot seal 00ffaa1122334455 after 3 s")
    again = side("store.cc:36: cannot seal ffee001122334455 after 9 s", lost)
    difference = compare(one, again)
    assert not difference.new_unexplained
    assert [gap["what"] for gap in difference.new_gaps] == ["raylet.out"]
    assert [gap["what"] for gap in compare(again, one).gone_gaps] == ["raylet.out"]
    assert compare(one, side("cannot open")).new_unexplained


def test_what_can_no_longer_be_seen_is_not_called_mended() -> None:
    lost = {"what": "gcs_server.out", "why": "no GCS log", "hint": "", "optional": False}
    before, after = report(diagnosis("x", "it broke")), report(gaps=[lost])
    assert "out of sight" in plain(render.render(compare(before, after)))
    assert "out of sight" not in plain(render.render(compare(before, report())))
    optional = report(gaps=[{**lost, "optional": True}])
    assert not compare(before, optional).unsure


RULES, HEADLINES = ("a", "b"), ("it broke", "it broke 3 times", "it broke and burnt", "x.y is late")
DIAGNOSES = st.lists(
    st.builds(
        lambda rule, headline, names, count, severity: diagnosis(
            rule, headline, *names, count=count, severity=severity
        ),
        st.sampled_from(RULES),
        st.sampled_from(HEADLINES),
        st.lists(st.sampled_from(["load", "train", "plan"]), max_size=2),
        st.integers(1, 3),
        st.sampled_from(["error", "warning"]),
    ),
    max_size=6,
)


def parts_of(difference: diffing.Difference) -> dict[str, list[object]]:
    def said(told: diffing.Told) -> tuple[object, ...]:
        return (told.rule, told.headline, sorted(told.names), told.times, told.severity)

    def pair(change: diffing.Change) -> tuple[object, ...]:
        return sorted(map(said, change.before)), sorted(map(said, change.after))

    told = {name: sorted(map(said, getattr(difference, name))) for name in ("new", "gone")}
    changes = {n: sorted(map(pair, getattr(difference, n))) for n in ("worse", "better", "same")}
    return {**told, **changes}


@settings(max_examples=80, deadline=None)
@given(DIAGNOSES, DIAGNOSES, st.randoms(use_true_random=False))
def test_order_does_not_matter_and_the_other_way_round_mirrors(
    before: list[dict[str, Any]], after: list[dict[str, Any]], chance: random.Random
) -> None:
    found = parts_of(compare(report(*before), report(*after)))
    shuffled = [chance.sample(each, len(each)) for each in (before, after)]
    assert parts_of(compare(report(*shuffled[0]), report(*shuffled[1]))) == found
    back = parts_of(compare(report(*after), report(*before)))
    assert (back["new"], back["gone"]) == (found["gone"], found["new"])
    assert sorted((b, a) for a, b in back["worse"]) == found["better"]
    itself = parts_of(compare(report(*before), report(*before)))
    assert not any(itself[name] for name in ("new", "gone", "worse", "better"))


# ---------------------------------------------------------------- what cannot be compared


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "is no JSON"),
        ("{", "is no JSON"),
        ('{"schema": NaN}', "NaN is no number"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "no report of raydoctor"),
        ('{"tasks": []}', "no report of raydoctor"),
        ('{"schema": "raydoctor/story/1"}', "its schema is raydoctor/story/1"),
        ('{"schema": "raydoctor/report/2"}', "a later raydoctor"),
        ('{"schema": "raydoctor/report/1"}', "damaged report: diagnoses"),
        ('{"schema": "raydoctor/report/1", "diagnoses": {}}', "damaged report: diagnoses"),
        ('{"schema": "raydoctor/report/1", "diagnoses": [7]}', "damaged report: diagnoses"),
        ('{"schema": "raydoctor/report/1", "diagnoses": [{"rule": "x"}]}', "damaged report"),
        ('{"schema": "raydoctor/report/1", "diagnoses": [{"rule": "x", "headline": "y", "severity": "odd"}]}', "severity of x"),
        ('{"schema": "raydoctor/report/1", "diagnoses": [], "gaps": [1]}', "damaged report: gaps"),
    ],
)  # fmt: skip
def test_what_is_no_report_is_a_line_and_a_hint(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str, why: str
) -> None:
    bad, good = tmp_path / "bad.json", tmp_path / "good.json"
    bad.write_text(content)
    good.write_text(json.dumps(report()))
    for arguments in ((bad, good), (good, bad)):
        code, out, err = say(capsys, *arguments)
        assert (code, out) == (2, "")
        message, hint, *more = err.splitlines()
        assert why in message
        assert hint.startswith("  ")
        assert not more


def test_neither_side_may_be_missing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = say(capsys, tmp_path / "nowhere", tmp_path)
    assert (code, out) == (2, "")
    assert "nowhere: No such file or directory" in err
    assert say(capsys, tmp_path)[0] == 2
    assert say(capsys, "-", "-")[0] == 2


def test_a_report_through_a_pipe(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps(report(diagnosis("x", "it \x1b[2J broke \ud800"))))
    words = f"{sys.executable} -m raydoctor diff <(cat {kept}) {kept}"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Unchanged: x" in done.stdout
    empty = tmp_path / "empty.json"
    empty.write_text(json.dumps(report()))
    words = [sys.executable, "-m", "raydoctor", "diff", str(empty), str(kept)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "\x1b" not in done.stdout


def test_a_rule_that_was_renamed_is_the_same(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from raydoctor import rules

    renamed = rules.find("task-exception")
    assert renamed is not None
    monkeypatch.setattr(rules, "find", lambda name: renamed if name == "task-raised" else None)
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(json.dumps(report(diagnosis("task-raised", "load raised KeyError", "load"))))
    new.write_text(json.dumps(report(diagnosis("task-exception", "load raised KeyError", "load"))))
    assert compared(capsys, old, new) == (0, {"same": ["task-exception"]})

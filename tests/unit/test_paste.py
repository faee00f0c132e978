"""Lines to paste: every value in them is data, whatever it holds and wherever they are pasted."""

from __future__ import annotations

import ast
import copy
import json
import pickle
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydoctor import rules
from raydoctor.diagnosis import rulecheck
from raydoctor.model import paste
from raydoctor.model.paste import Pasted, python, shell, text
from raydoctor.model.values import CaptureInfo, Diagnosis, Event, Gap, Link, Remedy, Report, Source
from raydoctor.read import portable, prefilter
from raydoctor.redact.report import scrub
from tests.helpers import tainted

RULES = rules.load()
HOSTILE = [*tainted.PAYLOADS, "\udc80canary", "a\0b", "x" * 5000, "", " ", "-", "'", "\\", "%1", "=ls", "~", "…"]  # fmt: skip


# ------------------------------------------------------------------ quoting


EVAL = r'true() { printf "%s\0" "$@"; }; for line; do (eval "$line"); printf "\1\0"; done'


def words_of(lines: list[str]) -> list[list[bytes]]:
    """The arguments that bash makes of each line `true …`."""
    command = ["/bin/bash", "-f", "-c", EVAL, "bash", *lines]
    done = subprocess.run(command, capture_output=True, check=True)
    return [words.split(b"\0")[:-1] for words in done.stdout.split(b"\1\0")[:-1]]


def test_a_word_of_the_shell_is_the_value_itself() -> None:
    values = [value for value in HOSTILE if not value.startswith("-")]
    lines = [shell("true {value}", value=value) for value in values]
    fits = [0 < len(value) <= 1000 and "\0" not in value for value in values]
    assert words_of(list(lines)) == [
        [value.encode("utf-8", "surrogateescape") if fit else b"VALUE"]
        for value, fit in zip(values, fits, strict=True)
    ]
    assert [line for line in lines if not line.isprintable()] == []


@given(st.text(min_size=1, max_size=20))
def test_any_text_is_one_printable_word(value: str) -> None:
    word = paste.word(value.encode("utf-8", "replace").decode())
    assert word.isprintable()
    assert "\0" in value or ast.literal_eval(paste.literal(value)) == value


@given(st.text(alphabet="ab\\\"'$`!; \n#{}[]()", min_size=1, max_size=8))
def test_quotes_of_any_shell_are_balanced(value: str) -> None:
    """Outside of `'…'` stand only words, `\\'` and `\\\\`: fish, which reads a backslash in quotes, sees the same."""
    rest = paste.word(value)
    while rest:
        if rest.startswith("'"):
            inner, _, rest = rest[1:].partition("'")
            assert "\\" not in inner
        elif rest.startswith("$'"):
            inner, _, rest = rest[2:].partition("'")
            assert set(inner) <= set("\\x0123456789abcdef _./-")
        else:
            assert rest[0].isalnum() or rest[:2] in ("\\'", "\\\\")
            rest = rest[1:] if rest[0].isalnum() else rest[2:]


def test_a_literal_is_the_value_in_python_and_json() -> None:
    for value in HOSTILE:
        line = python("f({value})", value=value)
        shown = value if len(value) <= 1000 else "VALUE"
        assert ast.literal_eval(line[2:-1]) == shown
        if "\\U" not in line:
            assert json.loads(line[2:-1]) == shown
        assert not set(line[3:-2]) & set("\"'$`!"), line


def test_prose_and_comments_hold_nothing_that_acts() -> None:
    prose = [text("On {value}: look", value=value) for value in HOSTILE]
    for line in (*prose, *(shell("ls   # {value}", value=value) for value in HOSTILE)):
        assert line.isprintable(), line
        assert not set(line.removeprefix("ls   #")) & set("'\"$`;&|<>(){}!*?~#=\\%"), line
        assert " -" not in line


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (shell("kill {pid:pid}", pid=-1), "kill PID"),
        (shell("kill {pid:pid}", pid=0), "kill PID"),
        (shell("kill {pid:pid}", pid="1"), "kill PID"),
        (shell("kill {pid:pid}", pid="٣"), "kill PID"),
        (shell("kill {pids:pid}", pids=[812, -1, 813]), "kill 812 813"),
        (shell("kill {pids:pid}", pids=[]), "kill PIDS"),
        (shell("nice {n}", n=-1), "nice N"),
        (shell("a {x:.1f}", x=float("nan")), "a X"),
        (shell("a {x}", x=10**40), "a X"),
        (shell("rm -rf {path:path}", path="-rf"), "rm -rf ./-rf"),
        (shell("rm -rf {path:path}/old", path=""), "rm -rf PATH/old"),
        (shell("raydoctor cancel {task}", task="--all"), "raydoctor cancel TASK"),
        (shell("pip install 'ray=={v:version}'", v="2.9.0rc1"), "pip install 'ray==2.9.0rc1'"),
        (shell("pip install 'ray=={v:version}'", v="2.9 @ evil"), "pip install 'ray==V'"),
        (shell("pip install {package:package}", package="evil @ https://a"), "pip install PACKAGE"),
        (shell("nc {host:address} 1", host="-oProxyCommand=x"), "nc HOST 1"),
        (shell("nc {host:address} 1", host="fe80::1"), "nc fe80::1 1"),
        (shell("a?q={q:url}", q="x & y=1\n"), "a?q=x+%26+y%3D1%0A"),
        (python("{actor:name}.remote()", actor="a;b"), "ACTOR.remote()"),
        (python("{actor:name}.remote()", actor="class"), "ACTOR.remote()"),
        (python("{actor:name}.remote()", actor="ｓｙｓ"), "ACTOR.remote()"),
        (python("{actor:name}.remote()", actor="a.B"), "a.B.remote()"),
        (python("f({x:number})", x="1.5"), "f(1.5)"),
        (python("f({x:number})", x="1 or 2"), "f(X)"),
        (python("f([{xs}])", xs=["a", 'b"']), 'f(["a", "b\\u0022"])'),
        (python("# coding: {x}", x="a coding: utf-7"), "# coding: a coding_ utf-7"),
    ],
)
def test_a_value_that_does_not_fit_gives_way_to_its_name(line: str, shown: str) -> None:
    assert line == shown


@pytest.mark.parametrize(
    ("kind", "template"),
    [
        (shell, "a '{x}'"),
        (shell, 'a "{x}"'),
        (shell, "the node's logs: {x}"),
        (shell, "{x} a"),
        (shell, "a; {x}"),
        (shell, "a | {x}"),
        (shell, "a $({x})"),
        (shell, "a {x:oops}"),
        (python, 'f("{x}")'),
        (python, "f({x:path})"),
        (text, "{x}: look"),
        (text, "Look; {x}"),
    ],
)
def test_a_template_in_which_a_value_could_act_is_refused(kind: type, template: str) -> None:
    with pytest.raises(ValueError, match="the value 'x'"):
        kind(template, x="a")


def test_a_part_that_is_quoted_already_stays_as_it_is() -> None:
    part = shell("A={x}", x="b c")
    assert shell("{env} ray start", env=part) == "A='b c' ray start"
    assert python("f({x})", x=part) == 'f("A=\\u0027b c\\u0027")'


def test_a_line_is_copied_and_quoted_again() -> None:
    line = shell("a {x} {y}", x="it's", y=[shell("{z:path}", z="b'")])
    assert pickle.loads(pickle.dumps(line)) == copy.deepcopy(line) == line
    changed = line.changed(str.upper)
    assert changed == r"a 'IT'\''S' 'B'\'''"
    assert isinstance(changed, Pasted)
    assert line.changed(str) is line


SECRETS = ("token=hunter2hunter2'; canary #", "password='x y", "--api-key 's3cr3t", "AKIAABCDEFGHIJKLMNOP'", "https://u:p'w@h/x;canary")  # fmt: skip


@pytest.mark.parametrize("value", SECRETS)
def test_redaction_takes_no_quote_away(value: str, tmp_path: Path) -> None:
    """A mark in the place of a secret, whatever it covers, leaves the line as it was quoted."""
    steps = (
        shell("raydoctor story {x} {y:path}   # {x}", x=value, y=f"/tmp/{value}"),
        python("ray.get_actor({x})   # {x}", x=value),
    )
    gap = Gap("a", "b", shell("Try: sudo raydoctor diagnose {x:path}", x=value))
    event = Event("a", Source("a", "driver"), 1, 0, "a")
    found = Diagnosis(
        "d1", "a", "root", "error", "a", 1, (Link(event, "a"),), (Remedy("a", steps),)
    )
    report = scrub(Report(CaptureInfo("a", "file"), (found,), gaps=(gap,)))
    lines = [*report.diagnoses[0].remedies[0].steps, report.gaps[0].hint]
    assert all(isinstance(line, Pasted) for line in lines)
    assert tainted.harm_in_bash(lines, tmp_path) == []
    assert not any(secret in line for secret in ("hunter2", "s3cr3t", "ABCDEFGH") for line in lines)


def test_a_line_that_is_a_secret_as_a_whole_loses_its_values() -> None:
    step = shell("export RAY_AUTH_TOKEN={token}", token="abcdefgh12345678")
    event = Event("a", Source("a", "driver"), 1, 0, "a")
    remedy = Remedy("a", (step,))
    found = Diagnosis("d1", "a", "root", "error", "a", 1, (Link(event, "a"),), (remedy,))
    report = scrub(Report(CaptureInfo("a", "file"), (found,)))
    assert report.diagnoses[0].remedies[0].steps == ("export RAY_AUTH_TOKEN=TOKEN",)


# ------------------------------------------------------------------ all rules


@cache
def attacked() -> tainted.Advice:
    """What all rules show, with payloads in every place that takes one; `benchmarks/pasting.py` tries them all."""
    return tainted.attacked(RULES, share=10)


@pytest.mark.parametrize("place", ["a {}", "a '{}'", 'a "{}"', "a # {}"])
def test_a_value_in_a_line_of_the_shell_is_found_out(place: str, tmp_path: Path) -> None:
    """By the payloads that every place meets, whatever others it meets."""
    steps = [place.replace("{}", payload) for payload in tainted.ESSENTIAL]
    assert tainted.harm_in_bash(steps, tmp_path)


@pytest.mark.parametrize("place", ["f({})", 'f("{}")', "f('{}')", "f(x)  # {}"])
def test_a_value_in_a_line_of_python_is_found_out(place: str) -> None:
    steps = [place.replace("{}", payload) for payload in tainted.ESSENTIAL]
    assert tainted.harm_in_python(steps)


def test_no_rule_advises_to_run_a_name(tmp_path: Path) -> None:
    steps = attacked().steps
    assert len(steps) > 800
    assert tainted.unprintable(steps) == []
    assert tainted.harm_in_python(steps) == []
    assert tainted.harm_in_bash(steps, tmp_path) == []
    (folder := tmp_path / "typed").mkdir()
    assert tainted.harm_in_bash([s for s in steps if "#" in s], folder, comments=False) == []


ZSH = pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")


@ZSH
def test_no_rule_advises_to_type_a_name_at_the_prompt_of_zsh(tmp_path: Path) -> None:
    assert tainted.harm_in_zsh(attacked().steps, tmp_path) == []


@ZSH
@pytest.mark.parametrize(
    "step",
    ["a; canary", "a `canary`", "a # b; canary", "echo a >canary", "a -canary", "a =(canary)"],
)
def test_the_prompt_of_zsh_is_seen_to_run_what_is_harmful(step: str, tmp_path: Path) -> None:
    assert tainted.harm_in_zsh(["x 'y'", step, "z"], tmp_path)


def test_no_headline_or_title_acts_when_pasted(tmp_path: Path) -> None:
    prose = attacked().prose
    assert len(prose) > 2500
    assert tainted.unprintable(prose) == []
    assert not any("\n" in line for line in prose)
    assert tainted.harm_in_python(prose) == []
    assert tainted.harm_in_bash(prose[::3], tmp_path, prose=True) == []  # a millisecond for each


def test_the_sandboxes_see_what_runs(tmp_path: Path) -> None:
    harmful = ["a; canary", "a `canary`", "a $(canary)", "rm -rf -canary", "kill 1\ncanary"]
    assert len(tainted.harm_in_bash(harmful, tmp_path)) == len(harmful)
    (folder := tmp_path / "2").mkdir()
    assert tainted.harm_in_bash(["echo a >canary"], folder) == ["wrote canary"]
    (folder := tmp_path / "3").mkdir()
    assert tainted.harm_in_bash(["a # b; canary"], folder, comments=False)
    code = ["canary()", "f(x)\rcanary()", "class A:\n  def f(): canary()", "ray.get(canary())"]
    assert len(tainted.harm_in_python(code)) == len(code)
    assert tainted.harm_in_python(['f("canary()")', "a.canary", "# canary()"]) == []


def test_the_rows_of_a_pipeline_stay_apart(tmp_path: Path) -> None:
    value = "\n".join("long value" for _ in range(400))
    calls = tainted.in_bash([f"a '{value}' | b '{value}' | c '{value}'"] * 20, tmp_path)
    assert sorted(call.words for call in calls) == sorted([(n, value) for n in "abc"] * 20)


# ------------------------------------------------------------------ no hint is forgotten


PACKAGE = Path(rules.__file__).parent.parent
tree_of = cache(lambda path: ast.parse(path.read_text()))
FILES = sorted([*(PACKAGE / "rules").glob("*.py"), *(PACKAGE / "waits").glob("*.py")])


def test_steps_and_hints_are_constants_or_pasted() -> None:
    """An f-string in a step would bring a name into it as it is."""
    found = [(p.name, what) for p in FILES for what in rulecheck.line_problems(p.read_text())]
    assert found == []


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [
        ('Remedy("a", (f"kill {pid}",))', True),
        ('Remedy("a", steps=("kill " + pid,))', True),
        ('steps = []\nsteps.append(f"kill {pid}")\nRemedy("a", tuple(steps))', True),
        ('Gap("a", "b", f"See {path}")', True),
        ('paste.shell(f"kill {pid}")', True),
        ('Remedy("a", (paste.shell("kill {pid:pid}", pid=pid), "ray stop"))', False),
        ('Remedy("a", (shell("kill {pid:pid}", pid=pid),))', False),
    ],
)
def test_a_rule_that_puts_a_value_into_a_step_as_it_is_is_refused(
    line: str, is_refused: bool
) -> None:
    assert bool(list(rulecheck.line_problems(line))) is is_refused


OTHERS = sorted(p for p in PACKAGE.rglob("*.py") if p not in FILES)
HINTS = {"Gap": 2, "RaydoctorError": 1, "NotAttachedError": 2, "UnknownTargetError": 1, "Check": 3, "Obstacle": 2}  # fmt: skip
OWN = {"other", "oldest", "moved", "where", "how", "hint", "close[0]", "share"}
"""What hints outside of rules are made of: numbers, options and sentences of ours."""


def test_hints_outside_of_rules_hold_no_value_as_it_is() -> None:
    calls = [(p, n) for p in OTHERS for n in ast.walk(tree_of(p)) if isinstance(n, ast.Call)]
    assert [(str(path), ast.unparse(call)) for path, call in calls if _takes_a_value(call)] == []


def _takes_a_value(call: ast.Call) -> bool:
    """Whether the call makes a hint of a value as it is."""
    number = HINTS.get(call.func.id) if isinstance(call.func, ast.Name) else None
    if number is None:
        return False
    hints = [*call.args[number : number + 1], *(k.value for k in call.keywords if k.arg in ("hint", "fix"))]  # fmt: skip
    for value in (n for hint in hints for n in _raw(hint)):
        names = [n.id for n in ast.walk(value) if isinstance(n, ast.Name)]
        if ast.unparse(value) not in OWN and not all(map(str.isupper, names)):
            return True
    return False


@pytest.mark.parametrize(
    ("call", "takes"),
    [
        ('Gap("a", "b", f"See {path}")', True),
        ('RaydoctorError("a", hint=f"See {path}")', True),
        ('Gap("a", "b", f"See {PAGE}")', False),
        ('Gap("a", f"b {path}", "See it")', False),
    ],
)
def test_a_hint_that_takes_a_value_is_found(call: str, takes: bool) -> None:
    (found,) = (n for n in ast.walk(ast.parse(call)) if isinstance(n, ast.Call))
    assert _takes_a_value(found) is takes


def _raw(hint: ast.expr) -> Iterator[ast.expr]:
    """Values that an f-string of the hint takes as they are."""
    if isinstance(hint, ast.Call):
        return  # a helper's, or a function's that is checked where it makes its hint
    if isinstance(hint, ast.FormattedValue):
        yield hint.value
    for child in ast.iter_child_nodes(hint):
        if isinstance(child, ast.expr):
            yield from _raw(child)


# ------------------------------------------------------------------ advice from another node


def hint_of(hint: str) -> str:
    """The hint of a gap after it came from another node."""
    reading = portable.NodeReading((), (), gaps=(Gap("logs", "unread", hint),))
    return portable.load(portable.dump(reading)).gaps[0].hint


def test_advice_of_another_node_does_not_act(tmp_path: Path) -> None:
    sent = [text for p in tainted.PAYLOADS for text in (p, f"Copy that node's logs.\n{p}")]
    hints = [hint_of(text) for text in (*sent, "rm -rf ~")]
    assert [h for h in hints if not h.startswith("There: ") or not h.isprintable()] == []
    assert tainted.harm_in_bash(hints, tmp_path) == []


@pytest.mark.parametrize("hint", [portable.COPY, portable.MORE_TIME, prefilter.AGAIN, ""])
def test_advice_of_ours_comes_back_as_written(hint: str) -> None:
    assert hint_of(hint) == hint


def test_no_comment_of_a_shell_s_line_acts_where_it_is_no_comment() -> None:
    """Interactive zsh reads what follows `#` as further words, and acts on `;` and backticks among them.

    An apostrophe opens a quotation there, which ends at the first one of the next pasted line: what that
    line quotes is then code.
    """
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        nodes = list(ast.walk(tree_of(path)))
        pages = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            comment = re.search(r"(?:^| {2,})# .*", node.value)
            if not comment or id(node) in pages or is_python(node.value):
                continue
            is_open = any(comment[0].count(quote) % 2 for quote in "'\"")
            if is_open or re.search(r"[;`|&<>]", comment[0]):
                found.append(f"{path.name}:{node.lineno}: {comment[0]}")
    assert found == []


def is_python(step: str) -> bool:
    try:
        tree = ast.parse(step.replace("{{", "{").replace("}}", "}").replace(" pass", "")).body
    except SyntaxError:
        return step.startswith("@")
    return bool(tree)


@pytest.mark.parametrize(
    ("line", "reaching"),
    [
        ("raydoctor cancel abc", "raydoctor cancel --address 10.0.0.1:6379 abc"),
        ("raydoctor diagnose", "raydoctor diagnose --address 10.0.0.1:6379"),
        ("raydoctor diagnose   # why", "raydoctor diagnose --address 10.0.0.1:6379   # why"),
        ("raydoctor diagnose logs/", "raydoctor diagnose logs/"),
        ("raydoctor", "raydoctor --address 10.0.0.1:6379"),
        ("raydoctor       # why", "raydoctor --address 10.0.0.1:6379       # why"),
        ("raydoctor logs/", "raydoctor logs/"),
        ("raydoctor diagnose --address 10.0.0.2:6379", "raydoctor diagnose --address 10.0.0.2:6379"),
        ("raydoctor hung --address 10.0.0.2:6379", "raydoctor hung --address 10.0.0.2:6379"),
        ("raydoctor explain task-hung", "raydoctor explain task-hung"),
    ],
)  # fmt: skip
def test_a_command_reaches_the_cluster_that_the_user_named(line: str, reaching: str) -> None:
    assert paste.at(line, "10.0.0.1:6379") == reaching
    assert paste.at(line, None) == paste.at(line, "auto") == paste.at(line, "x; reboot") == line


def test_a_value_that_names_a_command_stays_as_it_is() -> None:
    made = paste.shell("raydoctor cancel {name}", name="raydoctor hung")
    assert paste.at(made, "10.0.0.1:6379") == (
        "raydoctor cancel --address 10.0.0.1:6379 'raydoctor hung'"
    )


# ---------------------------------------------------------------- blocks of steps


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        ("ray start --head", "shell"),
        ("RAY_x=1 ray start", "shell"),
        ("grep -rn 'ray.kill(' .", "shell"),
        ("if [ -f x ]", "shell"),
        ("@ray.remote(memory=2e9)", "python"),
        ("Preprocessor.options(memory=2e9).remote()", "python"),
        ("ready, pending = ray.wait(refs)", "python"),
        ("try: ...", "python"),
        ("# a comment that ends with a full stop.", "shell"),
        ("Raise the limit", "text"),
        ("raise it, then try again.", "text"),
        (shell("Xvfb"), "shell"),
        (python("@ray.remote\ndef f(): ..."), "python"),
        (text("on node {node}", node="a"), "text"),
    ],
)
def test_the_language_of_a_step(step: str, kind: str) -> None:
    assert paste.language(step) == kind
    assert paste.is_code(step) is (kind != "text")


@pytest.mark.parametrize(
    "blocks",
    [
        [["dmesg -T   # the kernel"], ["sacct -j JOB   # Slurm"]],
        [["ray start --head"], ["ray.init(address='auto')"]],
        [["class A:", "    x = 1", "A()"], ["B()   # or another class"]],
        [["# resumes a process:", shell("kill -CONT {pid:pid}", pid=7)], ["ray status"]],
        [["Do this."], ["Then that."], ["# a comment", "# and its second line"]],
        [["available_node_types:", "  big-worker:", python("    max_workers: 2")]],
        [["ray.init()"], ["# or, instead:", "ray.init(address='auto')"]],
    ],
)
def test_only_lines_that_belong_together_are_pasted_together(blocks: list[list[str]]) -> None:
    assert list(paste.blocks(step for block in blocks for step in block)) == blocks


@pytest.mark.parametrize(
    ("step", "shown"),
    [
        ("kubectl describe pod POD   # POD: its pod", "kubectl describe pod [POD]"),
        ("export RAY_ADDRESS=HEAD:6379", "export RAY_ADDRESS=[HEAD]:6379"),
        ("HANDLE = ray.get_actor('a')", "HANDLE = ray.get_actor('a')"),
        ("echo $PATH", "echo $PATH"),
        ("rm -rf /tmp/ray/session_OLD", "rm -rf /tmp/ray/[session_OLD]"),
        ("f.remote(...); g(…)", "f.remote([...]); g([…])"),
        (paste.shell("raydoctor cancel {task}", task="-rf"), "raydoctor cancel [TASK]"),
    ],
)
def test_words_to_replace_are_parts_of_their_own(step: str, shown: str) -> None:
    parts = list(paste.parts(step))
    assert "".join(text for _, text in parts) == step
    marks = {"fill-in": "[{}]", "code": "{}", "comment": ""}
    assert "".join(marks[kind].format(text) for kind, text in parts) == shown


def test_a_comment_ends_with_its_line() -> None:
    step = "table = ray.put(table)   # once\n        self.table = table"
    assert list(paste.rows(step)) == [
        [("code", "table = ray.put(table)"), ("comment", "   # once")],
        [("code", "        self.table = table"), ("comment", "")],
    ]
    assert [kind for kind, part in paste.parts(step) if "self" in part] == ["code"]

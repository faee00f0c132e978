"""Cases whose names are hostile, and sandboxes that see what a pasted line does with them.

Every name, path, address and text in an example is replaced by a payload, as far as the signal's own pattern lets
it pass. A sandboxed bash finds no program at all: what it looks for is logged instead. The payloads call `canary`.
"""

from __future__ import annotations

import ast
import json
import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import tempfile
import time
import tty
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from signal import SIGKILL
from typing import Any, NamedTuple

from raydoctor.capture.open import open_capture
from raydoctor.case import Case
from raydoctor.case.rule import Example, Rule, Signal
from raydoctor.diagnosis import engine, unexplained
from raydoctor.diagnosis.plugins import Catalogue
from raydoctor.model.values import Event, Finding
from raydoctor.read import build
from tests.helpers.waiting import PATIENCE

PAYLOADS = (
    "a;canary",
    "a; canary #",
    "a&&canary",
    "a||canary&",
    "a|canary",
    "$(canary)",
    "a$(canary)b",
    "`canary`",
    "a`canary`",
    "<(canary)",
    ">canary",
    "a>canary",
    "a'b;canary;'c",
    "a' ; canary ; echo '",
    'a";canary;"b',
    'a"$(canary)"b',
    "a'$(canary)'b",
    "a\\';canary;echo \\'",
    "a\ncanary\nb",
    "a\rcanary\rb",
    "a\x0bcanary",
    "a\x0ccanary",
    "a\x85canary",
    "a\u2028canary\u2029",
    "a\u202ecanary\u200b",
    "a\x1b[2Jcanary\t",
    "-canary",
    "--canary=1",
    "-rf canary",
    "{a,canary}",
    "~canary",
    "!canary",
    "*canary*?",
    "$canary",
    "a\uff02;canary;\uff07b",
    'a");canary("b',
    'a"+canary()+"b',
    "a'+canary()+'b",
    '"""+canary()+"""',
    "canary()",
    "canary(1).b",
    "a]+[canary()",
    "a)\ncanary()\n(b",
    "a\\N{QUOTATION MARK}canary",
    "{canary()}",
    "%s%(canary)s",
    "a:canary()",
    "# canary",
    "a#canary",
    "a=canary()",
)
ESSENTIAL = (
    "a; canary #",
    "a'$(canary)'b",
    'a"$(canary)"b',
    "a\ncanary\nb",
    "-canary",
    "canary()",
    'a"+canary()+"b',
    "a'+canary()+'b",
    "a)\ncanary()\n(b",
)
"""One at least does harm wherever a value stands as it is: bare, in either quotes, behind a `#`, in Python."""
SHARP = ("a; canary #", "$(canary)", "`canary`", "a\ncanary\nb", "a>canary", "a|canary")
"""For places of which there are many."""
_ID = re.compile(r"(?:[0-9a-f]{8}|[0-9a-f]{28,})\Z|[-+\d.:TZ eE]+\Z|(?:true|false|null)\Z")
_TOKEN = re.compile(r"[\w./-]{3,}")
MARK = "zqxjk"


class Advice(NamedTuple):
    """What a report shows of a rule."""

    steps: tuple[str, ...] = ()
    """Lines to paste, hints among them."""
    prose: tuple[str, ...] = ()
    """The headline and the titles of remedies, which people paste by mistake."""


# ------------------------------------------------------------------ cases


def case_of(rule: Rule, example: Example) -> Case:
    """What the rule would see of its example."""
    catalogue = Catalogue((rule,))
    with tempfile.TemporaryDirectory() as folder:
        for name, content in example.files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        with open_capture(folder) as capture:
            wanted = [
                *engine.signals_of(catalogue),
                *unexplained.signals(s.role for s in capture.sources),
            ]
            return build.read(capture, wanted).case


def advice(rule: Rule, case: Case) -> Advice:
    """What the report shows for this case; nothing where the rule does not find anything."""
    try:
        found = list(rule.judge(case))
    except (ValueError, TypeError, KeyError, IndexError, OverflowError):
        return Advice()  # a number that is none: the report has a gap instead
    return _advice(rule, found)


def _advice(rule: Rule, found: Iterable[Finding]) -> Advice:
    steps: list[str] = []
    prose: list[str] = []
    for shown in engine.shown(rule, found):
        steps += [step for remedy in shown.remedies for step in remedy.steps]
        steps += [gap.hint for gap in shown.gaps if gap.hint]
        prose += [shown.headline, *(remedy.title for remedy in shown.remedies)]
    return Advice(tuple(steps), tuple(prose))


def targets(rule: Rule, case: Case) -> list[str]:
    """Texts of the example that a name could stand in for: fields, leaves of tables, words of the advice."""
    reply: dict[str, None] = {}
    for event in case.events:
        is_row = event.kind.startswith("live.")
        for value in event.fields.values():
            for leaf in _leaves(value) if is_row else (value,):
                if len(leaf) > 1 and (is_row or not _ID.match(leaf)) and not leaf.isdigit():
                    reply[leaf] = None
    given = advice(rule, case)
    corpus = "\n".join(e.text for e in case.events)
    for text in (*given.steps, *given.prose):
        reply.update((w, None) for w in _TOKEN.findall(text) if not _ID.match(w) and w in corpus)
    for names in case.names.values():
        reply.update((name, None) for name in names)
    return list(reply)


def _leaves(value: str) -> Iterator[str]:
    if value[:1] not in "[{":
        yield value
        return
    try:
        yield from _strings(json.loads(value))
    except ValueError:
        yield value


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)
    elif isinstance(value, str):
        yield value


class Tainter:
    """Replaces targets in a case, where the signals' patterns allow it."""

    def __init__(self, rule: Rule, case: Case) -> None:
        self.case = case
        self.signals: dict[str, list[Signal]] = {}
        for signal in engine.signals_of(Catalogue((rule,))):
            self.signals.setdefault(signal.kind, []).append(signal)

    def case_with(self, wanted: Iterable[str], payload: str) -> Case:
        """The case with these texts replaced by the payload."""
        ordered = sorted(wanted, key=len, reverse=True)
        events = [self._event(event, ordered, payload) for event in self.case.events]
        names = {
            worker: tuple(_put(name, ordered, payload) for name in ran)
            for worker, ran in self.case.names.items()
        }
        endings = [*self.case.endings.values(), *chain(*self.case.outputs.values())]
        return Case(events, self.case.sources, names, endings)

    def _event(self, event: Event, wanted: list[str], payload: str) -> Event:
        here = [w for w in wanted if w in event.text or any(w in v for v in event.fields.values())]
        if not here:
            return event
        known = self.signals.get(event.kind)
        if not known:
            return _row(event, here, payload)
        for some in (here, *([each] for each in here)):
            if changed := _matched(event, known, some, payload):
                event = changed
                if some is here:
                    break
        return event


def _put(text: str, wanted: Collection[str], payload: str) -> str:
    if not any(word in text for word in wanted):
        return text
    return _words(tuple(wanted)).sub(lambda _: payload, text)


@cache
def _words(wanted: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, wanted))})(?!\w)")


def _matched(event: Event, known: list[Signal], wanted: list[str], payload: str) -> Event | None:
    """The event as the scan would have read the changed record, if its pattern still matches."""
    message, text = _put(event.message, wanted, payload), _put(event.text, wanted, payload)
    for signal in known:
        if signal.extent == "line" and ("\n" in payload or "\n" in event.message):
            continue
        if found := signal.regex.search(text if signal.with_header else message):
            own = {k: _put(v, wanted, payload) for k, v in event.fields.items()}
            groups = {k: v for k, v in found.groupdict().items() if v}
            rest = {k: v for k, v in own.items() if k not in found.groupdict()}
            return replace(event, text=text, message=message, fields={**rest, **groups})
    return None


def _row(event: Event, wanted: list[str], payload: str) -> Event:
    """A row of a table, or a record that no signal read: every text in it may be anything."""
    fields = {name: _value(value, wanted, payload) for name, value in event.fields.items()}
    text, message = _put(event.text, wanted, payload), _put(event.message, wanted, payload)
    return replace(event, text=text, message=message, fields=fields)


def _value(value: str, wanted: list[str], payload: str) -> str:
    if value[:1] in "[{" and value:
        try:
            return json.dumps(_deep(json.loads(value), wanted, payload), separators=(",", ":"))
        except ValueError:
            pass
    return _put(value, wanted, payload)


def _deep(value: Any, wanted: list[str], payload: str) -> Any:
    if isinstance(value, dict):
        return {_put(k, wanted, payload): _deep(v, wanted, payload) for k, v in value.items()}
    if isinstance(value, list):
        return [_deep(each, wanted, payload) for each in value]
    return _put(value, wanted, payload) if isinstance(value, str) else value


def attacks(rule: Rule, share: int = 1) -> Iterator[Advice]:
    """What the rule shows, with a payload in every place of a line where a text of the input shows.

    Prose has many places: each is tried with one sharp payload, all of them together with every payload.
    A `share` of 10 tries the essential payloads and one in ten of the others, for each place different ones.
    """
    seen: set[frozenset[str]] = {frozenset()}
    for example in rule.examples:
        if rule.name not in (*example.roots, *example.consequences):
            continue
        tainter = Tainter(rule, case_of(rule, example))
        places = {t: _places(rule, tainter, [t]) for t in targets(rule, tainter.case)}
        flowing = [target for target, where in places.items() if any(where)]
        for group in (*([each] for each in flowing), flowing):
            steps, prose = places[group[0]] if len(group) == 1 else _places(rule, tainter, group)
            if steps | prose in seen:
                continue
            seen.add(steps | prose)
            is_whole = bool(steps) or group is flowing
            sharp = SHARP[len(seen) % len(SHARP) :][:1]
            some = dict.fromkeys((*ESSENTIAL, *PAYLOADS[len(seen) % share :: share]))
            payloads = some if is_whole else sharp
            yield from (advice(rule, tainter.case_with(group, payload)) for payload in payloads)


def attacked(rules: Iterable[Rule], share: int = 1) -> Advice:
    """All that these rules show with a payload in it, each line once."""
    shown = [advice for rule in rules for advice in attacks(rule, share)]
    steps = {s for advice in shown for s in advice.steps if "canary" in s}
    prose = {s for advice in shown for s in advice.prose if "canary" in s}
    return Advice(tuple(sorted(steps)), tuple(sorted(prose)))


def _places(
    rule: Rule, tainter: Tainter, group: list[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """The lines to paste and the prose in which these texts show, with a mark in their place."""
    given = advice(rule, tainter.case_with(group, MARK))
    steps, prose = (frozenset(text for text in texts if MARK in text) for texts in given)
    return steps, prose


# ------------------------------------------------------------------ sandboxes

# The commands of a pipeline run at the same time, and bash writes a long row in pieces: each process writes its
# own file.
_DRIVER = r"""
called() { printf '%s\x1f' "$number" "$@" $'\x1e' >>"$HOME/calls/$BASHPID"; }
command_not_found_handle() { called "$@"; }
for name in kill cd pushd exec source . eval_ trap alias enable hash; do
  eval "$name() { called $name \"\$@\"; }"
done
exit() { return 1; }
number=0
while IFS= read -r -d '' step; do
  number=$((number + 1))
  ( builtin eval "$step" ) </dev/null >/dev/null 2>&1
done <&8
builtin exit 0
"""


class Call(NamedTuple):
    """A program that bash looked for."""

    step: str
    words: tuple[str, ...]


def in_bash(steps: Iterable[str], folder: Path, *, comments: bool = True) -> list[Call]:
    """What the steps would run, each in a subshell without programs, in a folder of its own.

    Without `comments`: as zsh reads what is typed, where `#` is a word like any other.
    """
    steps = [step if comments else re.sub(r"(^|\s)#", r"\1X", step) for step in steps]
    (folder / "cwd").mkdir()
    (folder / "calls").mkdir()
    (folder / "driver").write_text(_DRIVER)
    (folder / "steps").write_bytes(
        b"".join(s.encode("utf-8", "surrogateescape") + b"\0" for s in steps)
    )
    start = "exec 8<../steps; exec /bin/bash --norc --noprofile ../driver"
    subprocess.run(
        ["/bin/bash", "--norc", "--noprofile", "-c", start],
        cwd=folder / "cwd",
        env={"PATH": "/nonexistent", "HOME": str(folder), "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    calls = [(int(number), tuple(words)) for number, *words in _rows(folder)]
    return [Call(steps[number - 1], words) for number, words in sorted(calls)]


_TYPED = r"""
command_not_found_handler() {
  printf '%s\x1f' "$number" "$@" $'\x1e' >>"$HOME/calls/${sysparams[pid]}"
}
for name in kill cd pushd source trap alias enable hash exit; do
  functions[$name]="command_not_found_handler $name \"\$@\""
done
"""


def in_zsh(steps: Sequence[str], folder: Path) -> list[Call]:
    """What the steps would run if they are typed at the prompt of an interactive zsh without programs.

    Raises TimeoutError if the shell stops before the last step.
    """
    (folder / "cwd").mkdir()
    (folder / "calls").mkdir()
    (folder / ".zshrc").write_text("zmodload zsh/system; unsetopt zle\n" + _TYPED)
    master, slave = pty.openpty()
    tty.setraw(slave)  # no limit on a line, and no character that interrupts
    shell = subprocess.Popen(
        [shutil.which("zsh") or "zsh", "-i"],
        cwd=folder / "cwd",
        env={"PATH": "/nonexistent", "HOME": str(folder), "ZDOTDIR": str(folder), "LC_ALL": "C.UTF-8"},
        stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    typed = "".join(f"number={n}\n{step}\n" for n, step in enumerate(steps, 1))
    end = folder / "end"
    unsent = f"{typed}: >{shlex.quote(str(end))}\n".encode("utf-8", "surrogateescape")
    deadline = time.monotonic() + PATIENCE
    try:
        while not end.exists():
            if time.monotonic() > deadline or shell.poll() is not None:
                raise TimeoutError("zsh did not come to the last step")
            writable = [master] if unsent else []
            readable, writable, _ = select.select([master], writable, [], 0.2)
            if readable:
                os.read(master, 1 << 16)
                deadline = time.monotonic() + PATIENCE
            if writable:
                unsent = unsent[os.write(master, unsent[:512]) :]
    finally:
        os.killpg(shell.pid, SIGKILL)
        shell.wait()
        os.close(master)
    return [Call(steps[int(number) - 1], tuple(words)) for number, *words in _rows(folder)]


def _rows(folder: Path) -> Iterator[list[str]]:
    """The number of the step and the words of each call."""
    for path in (folder / "calls").iterdir():
        for row in path.read_bytes().decode("utf-8", "replace").split("\x1f\x1e\x1f")[:-1]:
            yield row.split("\x1f")


def _opens(call: Call) -> bool:
    """Whether the program looked for has the name of the sentence's first word."""
    command, first = call.words[0], re.sub(r"['\"\\]", "", call.step.split(" ")[0])
    # After an apostrophe in the first word (`Ray's`), the sentence itself is the name up to the next one.
    return command == first or command.startswith(("‘", f"{first} "))


def harm_in_bash(
    steps: Iterable[str], folder: Path, *, comments: bool = True, prose: bool = False
) -> list[str]:
    """Steps of which a value was run, taken as an option, or written to a file.

    Of prose, the first word is always looked for as a program, and what follows are its arguments.
    """
    return _harm(in_bash(steps, folder, comments=comments), folder, prose)


def harm_in_zsh(steps: Sequence[str], folder: Path) -> list[str]:
    """The same for what is typed at zsh's prompt."""
    return _harm(in_zsh(steps, folder), folder, prose=False)


def _harm(calls: Iterable[Call], folder: Path, prose: bool) -> list[str]:
    harm = []
    for call in calls:
        command, *words = call.words
        if "canary" in command and not (prose and _opens(call)):
            harm.append(f"runs {command!r}: {call.step!r}")
        is_program = re.fullmatch(r"[\w./-]+", command) is not None
        if is_program and not prose and any(re.match(r"--?(?:rf )?canary", word) for word in words):
            harm.append(f"takes an option: {call.step!r}")
    harm += [f"wrote {path.name}" for path in (folder / "cwd").iterdir()]
    return harm


class _Anything:
    """Stands for `ray`, actors, references and whatever else a line uses."""

    def __init__(self, name: str = "") -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return _Anything(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if "canary" in self._name or self._name in ("__import__", "exec", "eval", "open"):
            raise AssertionError(self._name)
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else _Anything()

    def __iter__(self) -> Iterator[Any]:
        return iter((_Anything(), _Anything()))

    def __getitem__(self, key: object) -> Any:
        return _Anything()

    def __len__(self) -> int:
        return 0


class _Namespace(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        return range if name == "range" else _Anything(name)


def harm_in_python(steps: Iterable[str]) -> list[str]:
    """Steps of which a value is code: as a whole, and line by line as a prompt reads it."""
    harm = []
    for step in steps:
        for source in {step, *re.split(r"[\r\n\x0b\x0c\x85\u2028\u2029]", step)}:
            tree = _parsed(source.strip().replace("…", "..."))
            if tree is not None and "canary" in source and (_calls_it(tree) or _runs(tree)):
                harm.append(f"is code: {step!r}")
                break
    return harm


def _parsed(source: str) -> ast.Module | None:
    for text in (source, f"{source} pass"):
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError):
            pass
    return None


def _calls_it(tree: ast.Module) -> bool:
    """Whether it is called anywhere, also in a body that does not run now."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(isinstance(func, ast.Name) and "canary" in func.id for func in calls)


def _runs(tree: ast.Module) -> bool:
    try:
        code = compile(tree, "step", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        exec(
            code,
            {"__builtins__": {"__build_class__": __build_class__}},
            _Namespace(__name__="step"),
        )
    except AssertionError:
        return True
    except Exception:  # what the stand-ins cannot do
        return False
    return False


def unprintable(steps: Iterable[str]) -> list[str]:
    """Steps with characters that a terminal acts on, or that do not show."""
    return [s for s in steps if not s.replace("\n", "").isprintable()]

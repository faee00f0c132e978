"""Lines to paste: raydoctor's own template with untrusted values, each quoted for its place.

Logs, process tables and archives name tasks, paths, packages and addresses, and their authors may be
hostile. A value in a line to paste is therefore always only data: in bash, zsh and Python, even if a line
for one of them is pasted into another, and in fish for lines that are meant for a shell.

    shell("raydoctor cancel {task}", task=name)
    python("ray.get_actor({name}, namespace={namespace})", name=…, namespace=…)
    text("On node {node}: sudo dmesg -T", node=…)

Some places do not allow quotes: a class name, a version, a pid, an argument that must not be an option.
There the shape of a value is checked. A value that does not fit is replaced by its field's name in capitals,
for the reader to fill in.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import lru_cache
from keyword import iskeyword
from typing import Any, Literal

from raydoctor.model.patterns import pattern
from raydoctor.model.text import one_line

Kind = Literal["shell", "python", "text"]
Value = str | int | float
Values = Value | Sequence[Value]

_LONGEST = 1000
"""Characters of a value; a longer value is replaced by its field's name."""
_LONGEST_IN_TEXT = 200
_BARE = pattern(r"[\w@+:,./-][\w@%+=:,./-]*", re.ASCII)
"""A word that no shell expands: zsh expands a leading `=`, every shell a leading `~`."""
_PLAIN = pattern(r"[^\w .,:@+/×…‘’\[\]-]")
"""Text that a shell interprets if a comment or prose is pasted by mistake; zsh runs the text after a `#`."""
_QUOTES = pattern(r"(?<=\w)'(?=\w)|`(?P<code>[^`]*)`")
"""An apostrophe, and a command that is quoted as in Markdown; `’` acts in no shell."""
_ACTS = pattern(
    r"""[$|&]|(?<!\S)\#|!(?=[\w!$?*\#^:-])   # expansions, pipes, the end of a line, history
      |(?P<ends>;(?!\ (?:\d[\d.,]*|a|after|it|its|job|largest:|lost|no|nobody|nothing|raylet|the|then|there
        |they|those|unchanged|whether|without|KubeRay:|Ray)\s))
      |(?P<own><secret:[\w:.-]+>
         |`(?:ray(?:\ list|\ status|\ start\ --block|\ job\ submit|\.\w+(?:\(\))?)?|check_health)`)
      |`(?P<code>[^`]*)`|(?P<tick>`)
      |(?P<op>->(?=\w+\()|<(?:module|locals|lambda|\w+comp|genexpr)>)|(?P<less><)|(?P<more>>)""",
    re.VERBOSE,
)
"""Text that a shell interprets in a sentence pasted by mistake, except words of raydoctor and Python."""
_OPENS = pattern(
    r"[A-Z][\w'-]*[:,]?(?:\s|$)|\d[\d,.]*\s|[\w.]+(?:\s|$)|[\w.:/→<>-]+(?: \(|\((?=[^\s)]))|[‘`]"
)
"""Starts of a sentence that run no file and assign nothing: a word, a number, a name before brackets."""
_SENTENCE = pattern(r"[A-Z][\w'-]*[,:;]?(?:\s|$)")
_STOP = pattern(r"(?<![\s.])\.\s*$")
_PYTHON = pattern(
    r"@|\w[\w.]*\(|[\w.,\[\] ]+ = |\w+=[\[{]|(?:else|finally|try):"
    r"|if\s(?!\[)|(?:async|await|class|def|del|except|for|from|import|return|raise|while|with)\s"
)
_CODING = pattern(r"coding[:=]", re.IGNORECASE)
"""Python reads the encoding of a file from a comment in its first lines."""
_FIELD = pattern(r"(?P<brace>\{\{|\}\})|\{(?P<name>\w+)(?::(?P<spec>[^{}]*))?\}|[{}]")
_VERSION = r"\d{1,9}(?:\.\d{1,9})*(?:\.?(?:a|b|rc|dev|post)\d{1,9})*(?:\+[A-Za-z0-9.]{1,40})?"
_ADDRESS = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d{1,5})?|[0-9A-Fa-f:]{2,39}"
_SHAPES: Mapping[str, Callable[[str], bool]] = {
    "name": lambda text: all(map(_is_identifier, text.split("."))),
    "number": lambda text: _is(r"-?\d{1,30}(?:\.\d{1,30})?", text),
    "size": lambda text: _is(r"\d{1,30}(?:\.\d{1,30})?(?:[KMGTkmgt]i?)?[Bb]?", text),
    "pid": lambda text: _is(r"[1-9]\d{0,9}", text) and text != "1",
    "pids": lambda text: _is(r"[1-9]\d{0,9}(?:,[1-9]\d{0,9})*", text),
    "version": lambda text: _is(_VERSION, text),
    "package": lambda text: _is(r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?", text),
    "address": lambda text: _is(_ADDRESS, text),
    "id": lambda text: _is(r"[A-Za-z0-9](?:[\w.:-]*\w)?", text),
}
"""Shapes of values that need no quotes and are allowed inside quotes of the template. For `kill`, 0 and less
mean groups or everything, and 1 is init."""


_LIVE = pattern(
    r"\braydoctor (?:(?:hung|status|watch|stack|attach|cancel|collect)\b(?! --address| PATH)"
    r"|diagnose(?=$|[.,;)]|  | #))|^raydoctor(?=$| +#)"
)
"""Commands of raydoctor on a live cluster. `diagnose`, also without its name, reads a path as well, and
refuses an address beside it."""


def at(line: str, address: str | None) -> str:
    """The line with `--address` in each command of raydoctor, so that it reaches the cluster of this one.

    The line is unchanged without an address, or if the address would need quotes.
    """
    place = (address or "").rpartition("://")[2]
    if place in ("", "auto", "local") or not _is(rf"(?:\w+://)?(?:{_ADDRESS})", address or ""):
        return line
    if not isinstance(line, Pasted):
        return _LIVE.sub(lambda found: f"{found[0]} --address {address}", line)
    return Pasted(line.kind, at(str(line.template), address), line.values)


def _is_identifier(text: str) -> bool:
    return text.isascii() and text.isidentifier() and not iskeyword(text)


def _is(shape: str, text: str) -> bool:
    return re.fullmatch(shape, text, re.ASCII) is not None


class Pasted(str):
    """A line to paste, with its template and values, so that a value can be changed and quoted again."""

    __slots__ = ("kind", "template", "values")
    kind: Kind
    template: str
    values: Mapping[str, Values]

    def __new__(cls, kind: Kind, template: str, values: Mapping[str, Values]) -> Pasted:
        """Fill the template."""
        made = super().__new__(cls, _filled(kind, template, values))
        made.kind, made.template, made.values = kind, template, values
        return made

    def __getnewargs__(self) -> Any:
        return self.kind, self.template, self.values

    def changed(self, change: Callable[[str], str]) -> Pasted:
        """The same line with every text value changed."""
        values = {name: _changed(value, change) for name, value in self.values.items()}
        return self if values == self.values else Pasted(self.kind, self.template, values)

    def without_texts(self) -> Pasted:
        """The same line with each text value replaced by its name in capitals."""
        names = {name: _named(name, value) for name, value in self.values.items()}
        return Pasted(self.kind, self.template, names)


def _named(name: str, value: Values) -> Values:
    return value if isinstance(value, (int, float)) else name.upper()


def _changed(value: Values, change: Callable[[str], str]) -> Values:
    if isinstance(value, str):
        return changed(value, change)
    if isinstance(value, (int, float)):
        return value
    return [changed(each, change) if isinstance(each, str) else each for each in value]


def changed(value: str, change: Callable[[str], str]) -> str:
    """The text with a function applied to it; for a line to paste, only to its values."""
    return value.changed(change) if isinstance(value, Pasted) else change(value)


def shell(template: str, /, **values: Values) -> Pasted:
    """A line for a shell. `{x}` becomes one word, `{x:path}` a path, several values several words.

    A value with a shape (`{pid:pid}`, `{ray:version}`, …) is allowed inside quotes of the template; other
    values are not. Raises ValueError for a template that is unsafe for every value: a mistake in raydoctor.
    """
    return Pasted("shell", template, values)


def python(template: str, /, **values: Values) -> Pasted:
    """Python, YAML or JSON. `{x}` becomes a literal, `{x:name}` an identifier, numbers numbers."""
    return Pasted("python", template, values)


def text(template: str, /, **values: Values) -> Pasted:
    """Prose: its values have no effect, even if the prose is pasted into a shell."""
    return Pasted("text", template, values)


def plain(value: str) -> str:
    """A value for prose and comments: letters, digits and harmless punctuation."""
    kept = value if len(value) <= _LONGEST_IN_TEXT else value[: _LONGEST_IN_TEXT - 1] + "…"
    kept = _QUOTES.sub(lambda m: "’" if m["code"] is None else f"‘{m['code']}’", kept)
    shown = _CODING.sub("coding_", _PLAIN.sub("_", kept))
    return f"_{shown[1:]}" if shown.startswith("-") else shown


def inert(sentence: str) -> str:
    """A headline or title in one line that has no effect in a shell, even with untrusted values in it.

    Unlike `plain` it keeps brackets and quotes, so that names and error messages remain as Ray wrote them. It
    also keeps a bare name at the start: a shell only searches for a program of that name.
    """
    if isinstance(sentence, Pasted):
        return sentence
    shown = _ACTS.sub(_disarmed, one_line(sentence))
    if shown and not _OPENS.match(shown):
        first = shown.split(" ", 1)[0].rstrip(",:")
        shown = f"‘{first}’{shown[len(first) :]}"
    return shown


def _disarmed(found: re.Match[str]) -> str:
    kind = found.lastgroup
    if kind in ("own", "op"):
        return found[0]
    if kind == "code":
        return f"‘{_ACTS.sub(_disarmed, found['code'])}’"
    return _LOOKS_LIKE.get(kind or "", "_")


_LOOKS_LIKE = {"ends": ",", "tick": "’", "less": "‹", "more": "›"}


# ------------------------------------------------------------------ steps of remedies


def language(step: str) -> Kind:
    """`text` for prose, else the language of a line to paste; `python` includes YAML and JSON.

    A rule may write a line without values as a plain string. Prose then begins with a capitalised word or
    ends with a full stop. An indented line, a comment, a command, a call and an assignment do neither.
    """
    if isinstance(step, Pasted):
        return step.kind
    is_sentence = _SENTENCE.match(step) or _STOP.search(step)
    if is_sentence and not step.startswith((" ", "\t", "#")):
        return "text"
    return "python" if _PYTHON.match(step) else "shell"


def is_code(step: str) -> bool:
    """Whether a remedy's step is a line to paste and not prose."""
    return language(step) != "text"


def blocks(steps: Iterable[str]) -> Iterator[list[str]]:
    """The steps that are pasted together: one sentence, one shell command, or one piece of Python.

    Alternatives, and lines for different languages, are separate. A comment belongs to the lines below it.
    """
    block: list[str] = []
    for step in steps:
        if block and not _continues(block, step):
            yield block
            block = []
        block.append(step)
    if block:
        yield block


def _continues(block: Sequence[str], step: str) -> bool:
    if not (is_code(block[0]) and is_code(step)):
        return False
    if all(line.startswith("#") for line in block) or step.startswith((" ", "\t")):
        return True
    if step.startswith("#") or "# or " in step:
        return False
    return language(step) == "python" == next(language(s) for s in block if s[:1] != "#")


_WORDS = (
    "ADDRESS_OF_THIS_NODE ARGUMENTS BYTES CALLS CLASS CORES CORE_FILE FEWER FOLDER FREE_PORT HANDLE HEAD "
    "HEAD_POD HOST HOURS IMAGE IP JOB JOB_SCRIPT METHOD MODEL MODULE NAME NAMESPACE NODE_ID NODE_IP OUTPUT "
    "OWNER PACKAGE PATH PID POD PORT PP PYTHON REDIS_POD RUN SERVER_LOG SIZE SUBMISSION_ID TOKEN_FILE TP "
    "VALUE VERSION WORKING_DIR session_OLD your_script.py "
)
PLACEHOLDERS = frozenset(_WORDS.split())
"""Words of templates that the reader replaces before the line can run."""
_FILL_IN = pattern(
    r"(?<![\w$])(?:[A-Z][A-Z_]*[A-Z]|session_OLD|your_script\.py)(?!\w| = )|…|(?<=\()\.\.\.(?=\))"
)
_COMMENT = pattern(r"(?:^|(?<=\s\s))#\s.*")
Part = Literal["code", "fill-in", "comment"]


def rows(step: str) -> Iterator[list[tuple[Part, str]]]:
    """The parts of each line of a step."""
    names = PLACEHOLDERS.union(map(str.upper, step.values if isinstance(step, Pasted) else ()))
    for line in step.split("\n"):
        yield list(_parts(line, names))


def parts(step: str) -> Iterator[tuple[Part, str]]:
    """A step to paste in its parts: what runs, what the reader replaces first, and comments."""
    for number, row in enumerate(rows(step)):
        if number:
            yield "code", "\n"
        yield from row


def _parts(step: str, names: Collection[str]) -> Iterator[tuple[Part, str]]:
    comment = _COMMENT.search(step)
    end = len(step[: comment.start()].rstrip()) if comment else len(step)
    at = 0
    for word in _FILL_IN.finditer(step, 0, end):
        if word[0] in names or not word[0][0].isalpha():
            yield "code", step[at : word.start()]
            yield "fill-in", word[0]
            at = word.end()
    yield "code", step[at:end]
    yield "comment", step[end:]


# ------------------------------------------------------------------ templates


def _filled(kind: Kind, template: str, values: Mapping[str, Values]) -> str:
    parts: list[str] = []
    for before, name, spec, place in _parsed(kind, template):
        parts.append(before)
        if name:
            parts.append(_several(place, name, spec, values[name]))
    return "".join(parts)


@lru_cache(maxsize=512)
def _parsed(kind: Kind, template: str) -> tuple[tuple[str, str, str, _Place], ...]:
    """Text, and name, shape and place of the field after it. Cached: a template is filled many times."""
    place, made = _Place(kind), []
    for before, name, spec in _fields(template):
        place.read(before)
        made.append((before, name, spec, copy(place)))
        place.fresh = place.starts = False
    return tuple(made)


def _fields(template: str) -> Iterator[tuple[str, str, str]]:
    """Text, and name and shape of the field after it (empty at the end).

    Like `string.Formatter().parse`, but that module takes 2 ms to import. Raises ValueError for a lone brace.
    """
    before, at = "", 0
    for match in _FIELD.finditer(template):
        before += template[at : match.start()] + (match["brace"] or "")[:1]
        at = match.end()
        if match["name"]:
            yield before, match["name"], match["spec"] or ""
            before = ""
        elif not match["brace"]:
            raise ValueError(f"lone {match[0]} in a template: {template}")
    yield before + template[at:], "", ""


class _Place:
    """The position of a value in a template: in quotes, in a comment, at the start of a word or command."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.quote = ""
        self.comment = False
        self.fresh = self.starts = True

    def read(self, literal: str) -> None:
        escaped = False
        for char in literal:
            if escaped:
                escaped = False
            elif char == "\n":
                self.comment, self.fresh, self.starts = False, True, not self.quote
                continue
            elif self.comment or self.kind == "text":
                pass
            elif char == "\\" and self.quote != "'":
                escaped = True
            elif self.quote:
                self.quote = "" if char == self.quote else self.quote
            elif char in "'\"":
                self.quote = char
            elif char == "#" and (self.fresh or self.kind == "python"):
                self.comment = True
            self._step(char)

    def _step(self, char: str) -> None:
        ends = char in (";|&`" if self.kind == "text" else ";|&(`")
        self.fresh = char.isspace() or ends
        self.starts = ends or (self.starts and char.isspace())


def _several(place: _Place, name: str, spec: str, value: Values) -> str:
    if isinstance(value, (str, int, float)):
        return _one(place, name, spec, value) or name.upper()
    made = [part for each in value if (part := _one(place, name, spec, each))]
    return (" " if place.kind == "shell" else ", ").join(made) or name.upper()


def _one(place: _Place, name: str, spec: str, value: Value) -> str:
    """A value in the form that its place allows; empty if it allows none."""
    bare = not (place.quote or place.comment)
    if isinstance(value, Pasted) and value.kind == place.kind and bare:
        return str(value)
    if not isinstance(value, str) and spec not in _SHAPES:
        return _number(value, spec, place)
    if place.comment or place.kind == "text":
        _refuse(place.starts, name, "begins a line of prose")
        return plain(str(value))
    if spec in _SHAPES or spec == "url":
        return _shaped(spec, str(value))
    _refuse(bool(place.quote), name, "is inside quotes of the template")
    return _quoted(place, name, spec, str(value))


def _shaped(spec: str, value: str) -> str:
    if spec == "url":
        return _escaped_url(value[:_LONGEST_IN_TEXT])
    return value if len(value) <= _LONGEST and _SHAPES[spec](value) else ""


def _quoted(place: _Place, name: str, spec: str, value: str) -> str:
    if place.kind == "python":
        _refuse(spec != "", name, f"has the unknown shape {spec!r}")
        return literal(value if len(value) <= _LONGEST else name.upper())
    _refuse(spec not in ("", "path"), name, f"has the unknown shape {spec!r}")
    _refuse(place.starts and spec != "path", name, "is run as a command")
    is_option = place.fresh and value.startswith("-")
    if len(value) > _LONGEST or (is_option and spec != "path"):
        return ""
    return word(f"./{value}" if is_option else value)


def _refuse(is_wrong: bool, name: str, why: str) -> None:
    if is_wrong:
        raise ValueError(f"the value {name!r} {why}")


def _number(value: float, spec: str, place: _Place) -> str:
    if not math.isfinite(value) or abs(value) >= 1e30:
        return ""
    number = format(value, spec)
    # `kill -1` means a signal or all processes.
    is_option = place.kind == "shell" and place.fresh and not place.comment and number[0] == "-"
    return "" if is_option else number


# ------------------------------------------------------------------ quoting


def word(value: str) -> str:
    """The value as one word of bash, zsh, fish or sh; empty if there is none (NUL).

    Single quotes disable everything, including history expansion. Only fish interprets a backslash in them,
    so it is put outside. Characters that are invisible or move text on a screen are written as `$'\\x1b'`.
    """
    if not value or "\0" in value:
        return ""
    if _BARE.fullmatch(value):
        return value
    if all(map(_shows, value)):
        inner = "".join(f"'\\{char}'" if char in "'\\" else char for char in value)
        return f"'{inner}'"
    return f"$'{''.join(map(_hex, value))}'"


def _shows(char: str) -> bool:
    return " " <= char <= "~" or (char > "~" and char.isalnum())


def _hex(char: str) -> str:
    # Without quotes and backslashes, a shell that lacks `$'…'` reads an ordinary quoted word.
    if char.isascii() and (char.isalnum() or char in " _./-"):
        return char
    # A byte of a path that is no UTF-8, or half a character from JSON (`\ud800`).
    errors = "surrogateescape" if "\udc80" <= char <= "\udcff" else "surrogatepass"
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", errors))


def literal(value: str) -> str:
    """The value as a string of Python, JSON, YAML and TOML in which a shell expands nothing."""
    return f'"{"".join(map(_escaped, value))}"'


def _escaped(char: str) -> str:
    if _shows(char) and char not in "\"'\\$`!":
        return char
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def _escaped_url(value: str) -> str:
    """The value for a URL's query, `+` for spaces."""
    return "".join(map(_url, value))


def _url(char: str) -> str:
    if char.isascii() and (char.isalnum() or char in "_.-"):
        return char
    encoded = char.encode("utf-8", "replace")
    return "+" if char == " " else "".join(f"%{byte:02X}" for byte in encoded)

"""Converts tracebacks that rich and IPython draw to Python's form, and separates interleaved tracebacks.

rich (`rich/traceback.py`): a box, `│ /path/f.py:12 in g │`, the exception below it. IPython
(`IPython/core/ultratb.py`): a rule of dashes, `GetTimeoutError     Traceback (most recent call last)`,
`File /path/f.py:12, in g(x)` or `Cell In[3], line 5`, source lines with `---->`, the exception.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

from raydoctor.capture.console.prefixes import Stripped
from raydoctor.model.patterns import pattern

STATEMENT_LINES = 12
"""The most lines that a `raise` statement and its frame have, for `exception_of`."""
Placed = tuple[int, Stripped]
"""A line and its number in the original."""
BEGIN = "Traceback (most recent call last):"
_BEGINS = BEGIN[:-1]
_ANNOUNCED = pattern(
    r"(?P<head>.{0,300}\b(?:hit|got|met|caught|encountered|raised) an? (?:\w{1,20} )?(?:exception|error):) "
    r"Traceback \(most recent call last\):"
)
"""A traceback in the same line as the message above it: SGLang's schedulers, and vLLM's engine before 0.9."""
_BOX = pattern(r"\s*[╭+][─-]{2,} ?Traceback \(most recent call last\) ?[─-]*")
_BOX_END = pattern(r"\s*[╰+][─-]{10,}[╯+]?\s*$")
_RICH_FRAME = pattern(
    r"\s{0,80}(?:❱ )?(?P<file>[/~<.\w][^:\n]{0,400}):(?P<line>\d{1,7}) in (?P<function>\S+)"
)
_IPYTHON = pattern(
    r"\s*(?P<name>[A-Z]\w{2,80}(?:\(\w{1,80}\))?)\s{2,}(?P<begin>T[a-z]{0,9}(?: \([a-z ]{0,21}\)?)?)\s*$"
)
"""The heading, within which a paste may end."""
_IPYTHON_FRAME = pattern(
    r"\s*(?:File (?P<file>\S+):(?P<line>\d{1,7}), in (?P<function>[\w<>.]+)"
    r"|(?P<cell>Cell In ?\[\d+\]|Input In \[\d+\])"
    r"(?:, line (?P<cell_line>\d{1,7})|,? in (?:<cell line: (?P<first_line>\d{1,7})>|(?P<in>\S+)))?)"
)
_OLD_FRAME = pattern(
    r"(?P<file>(?:[~/.]|[A-Za-z]:\\)[^\s:()]{1,400}|<[\w.-][\w .-]{0,80}>) in "
    r"(?P<function>[\w<>.]{1,200}|<cell line: \d{1,7}>)(?:\(.*)?$"
)
"""IPython 7 and Colab: the line's number is only at the arrow below."""
_COLAB_LINK = pattern(r"\[(?P<text>[^\[\]\n]{1,400})\]\(https?://localhost:\d{1,5}/#\)")
_VSCODE_LINK = pattern(
    r"\[(?P<text>(?:[^\[\]\n]|\[\d{1,6}\]){1,400})\]\(vscode-[\w-]{1,40}:[^()\n]{0,600}\)"
)
_ARROW = pattern(r"-{1,8}> ?(?P<line>\d{1,7})\b")
_FRAMES = pattern(r"\d{1,4} frames$")
_OF_FRAME = "File "
_IPYTHON_SOURCE = pattern(r"\s*(?:-+> ?)?\d{1,7}(?: .*)?$")
_FRAME = pattern(r'  File "[^"\n]{1,400}", line \d{1,7}, in ')
_FIRST_LINES = 20
_OF_STACK = ("Traceback (", "Stack (", "ray::")
"""What stands above frames."""
_LONGEST_MESSAGE = 200
"""Lines of an exception below a box."""
_BOXES = frozenset("╭│╰")
_MOST_HELD = 2_000
"""Maximum of lines that are held back until a traceback is complete."""


def with_beginning(lines: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """The lines of a paste, with `BEGIN` above the first frame if the paste begins within a traceback."""
    for n, (number, text) in enumerate(lines[:_FIRST_LINES]):
        if any(words in text for words in _OF_STACK):
            break
        at = text.find('  File "')
        if at >= 0 and _FRAME.match(text, at) and not text[:at].endswith("  "):
            return [*lines[:n], (number, text[:at] + BEGIN), *lines[n:]]
    return lines


def unfolded(lines: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """The lines, with an exception joined that rich broke between words at the width of the box above it."""
    ends: list[int] = []
    is_traceback = False
    for n, (_, text) in enumerate(lines):
        edge = text[:1]
        if edge == "╭":
            is_traceback = BEGIN[:9] in text and _BOX.match(text) is not None
        elif edge == "╰" and is_traceback:
            ends.append(n)
            is_traceback = False
    if not ends:
        return lines
    joined: list[tuple[int, str]] = []
    first = 0
    for n in (*ends, len(lines)):
        if first:
            width = len(lines[first - 1][1].rstrip())
            joined += _unfolded(lines[first : n + 1], width)
        else:
            joined += lines[: n + 1]
        first = n + 1
    return joined


def _unfolded(lines: list[tuple[int, str]], width: int) -> list[tuple[int, str]]:
    """The lines below a box, with those of the exception joined."""
    result: list[tuple[int, str]] = []
    length = width
    is_open = True
    for n, (number, text) in enumerate(lines):
        word = text.partition(" ")[0]
        is_open = is_open and n < _LONGEST_MESSAGE and len(text.rstrip()) <= width
        is_open = is_open and text[:1] not in _BOXES
        if is_open and result and word and text[0] != " " and length + 1 + len(word) > width:
            result[-1] = (result[-1][0], f"{result[-1][1].rstrip()} {text}")
        else:
            result.append((number, text))
        length = len(text.rstrip())
    return result


_LINKED = pattern(
    r'(?P<indent>\s*)File "\[(?P<file>[^"\]\n]{1,400})", line (?P<line>\d{1,7})\]\(file:[^()\n]{1,800}\), in '
)
"""A frame whose place a notebook's viewer made a link."""


_AUTOLINK = pattern(
    r"\[(?P<place>[\w./-]{1,200}\.(?:py|cc|sh)(?::\d{1,7})?)\]\(https?://(?P=place)/?\)"
)
"""The name of a file that a mail program or chat took for an address: `[worker.py:18](http://worker.py:18)`."""


def unlinked(text: str) -> str:
    """A line that contains `](file:` or `](http`, without links around places in programs."""
    text = _AUTOLINK.sub(r"\g<place>", text)
    if frame := _LINKED.match(text):
        start = f'{frame["indent"]}File "{frame["file"]}", line {frame["line"]}, in '
        return start + text[frame.end() :]
    return text


def with_heading(text: str) -> str:
    """The last line of a paste, with the heading of a notebook's traceback completed within which it ends."""
    match = _IPYTHON.match(text)
    is_cut = (
        match is not None
        and len(match["begin"]) < len(_BEGINS)
        and _BEGINS.startswith(match["begin"])
    )
    return f"{match['name']}    {_BEGINS}" if match and is_cut else text


_STATEMENT = pattern(
    r"(?:^|\n)\s*File \"[^\"\n]{1,400}\", line \d{1,7}, in [^\n]{1,200}\n\s*raise "
    r"(?P<type>(?:[A-Za-z_]\w{0,60}\.){0,5}[A-Z]\w{0,60}(?:Error|Exception|Timeout))"
    r"\(\s*(?P<arguments>\S[^\x00]{0,2000})$"
)
_UNDERLINED = pattern(r"\s*[~^][~^\s]*")
_LITERAL = pattern(
    r"\s*(?:[rf]|fr|rf)?(?P<quote>[\"'])(?P<text>(?!(?P=quote))[^\n]{1,500}?)"
    r"(?:(?P=quote)|\s*$)",
    re.MULTILINE,
)


def exception_of(lines: Sequence[str]) -> str:
    """The exception of a traceback that ends within its `raise` statement, as far as that names it; or empty.

    `lines`: the last ones of a paste, without prefixes. The message ends where a value would stand.
    """
    text = "\n".join(each for each in lines if not _UNDERLINED.fullmatch(each))
    found = _STATEMENT.search(text)
    if found is None:
        return ""
    message, rest = "", found["arguments"]
    while literal := _LITERAL.match(rest):
        message, rest = message + literal["text"], rest[literal.end() :]
    message = message.partition("{")[0].rstrip()
    is_last = "\n" not in rest.strip()  # and no exception is printed below the statement
    return f"{found['type']}: {message}" if message and is_last else ""


def announcement(line: Stripped) -> Stripped | None:
    """The message in front of a traceback that begins in the same line; `line` keeps the traceback."""
    match = _ANNOUNCED.fullmatch(line.text)
    if not match:
        return None
    head = replace(line, text=match["head"], changed=True)
    line.text, line.level, line.changed = BEGIN, "", True
    return head


class DrawnTracebacks:
    """Converts drawn tracebacks to Python's form, line by line."""

    def __init__(self) -> None:
        self.form = ""
        """`rich` or `ipython` inside a drawn traceback, otherwise empty."""
        self.name = ""
        """The exception that the heading of IPython's traceback names."""
        self._frame = ("", "")
        """File and function of a frame whose line's number is still to come."""

    def convert(self, line: Stripped) -> bool:
        """Replace the text of a line by Python's form; false for a line without a counterpart in it."""
        text = line.text
        if BEGIN[:9] in text and _BOX.match(text):
            self.form, line.text = "rich", BEGIN
        elif _BEGINS in text and (heading := _IPYTHON.match(text)):
            self.form, self.name, line.text = "ipython", heading["name"], BEGIN
        elif self.form:
            if self.form == "rich" and _BOX_END.match(text):
                self.form = ""
                return False
            shown = self._boxed(text) if self.form == "rich" else self._ipython(text)
            if shown is None:
                return False
            line.text = shown
        line.changed |= line.text != text
        return True

    def _boxed(self, text: str) -> str | None:
        inner = text.strip()
        if inner[:1] not in ("│", "|"):
            self.form = ""
            return text
        frame = _RICH_FRAME.match(inner[1:])
        return frame and _as_python(frame["file"], frame["line"], frame["function"])

    def _ipython(self, text: str) -> str | None:
        if "](http" in text:
            text = _COLAB_LINK.sub(r"\g<text>", text, count=1)
        elif "](vscode-" in text:
            text = _VSCODE_LINK.sub(r"\g<text>", text)
        if frame := _OLD_FRAME.match(text):
            is_cell = frame["function"].startswith("<cell ")
            self._frame = (frame["file"], "<module>" if is_cell else frame["function"])
            return None
        if self._frame[0] and (arrow := _ARROW.match(text)):
            (file, function), self._frame = self._frame, ("", "")
            return _as_python(file, arrow["line"], function)
        if frame := _IPYTHON_FRAME.match(text):
            return _as_python(
                frame["file"] or frame["cell"],
                frame["line"] or frame["cell_line"] or frame["first_line"] or "0",
                frame["function"] or frame["in"] or "<module>",
            )
        is_cut = _OF_FRAME.startswith(text.strip())  # also an empty line
        if (
            is_cut
            or _IPYTHON_SOURCE.match(text)
            or _FRAMES.match(text)
            or text.startswith(("   ", "(...)"))
        ):
            return None
        self.form = ""
        return text


def _as_python(file: str, line: str, function: str) -> str:
    return f'  File "{file}", line {line}, in {function}'


class Deinterleaver:
    """Separates tracebacks of several processes that are interleaved line by line."""

    def __init__(self) -> None:
        self.waiting: list[list[Placed]] = []
        """Lines that are held back."""
        self._incomplete: dict[tuple[str, str], list[Placed]] = {}
        self._held = 0

    def add(self, number: int, line: Stripped) -> Iterable[Placed]:
        """Hold a line back, or return it after all lines that were held back."""
        block = self._incomplete.get(line.key)
        if block is not None:
            block.append((number, line))
            if line.text.strip() and not line.text[0].isspace():
                del self._incomplete[line.key]
        elif line.text.startswith(BEGIN) and line.key != ("", ""):
            self._incomplete[line.key] = [(number, line)]
            self.waiting.append(self._incomplete[line.key])
        elif self._incomplete:
            self.waiting.append([(number, line)])
        else:
            return ((number, line),)
        self._held += 1
        return () if self._incomplete and self._held < _MOST_HELD else self.release()

    def release(self) -> Iterable[Placed]:
        """Release all lines that are held back."""
        held, self.waiting = self.waiting, []
        self._incomplete.clear()
        self._held = 0
        return list(chain.from_iterable(held))

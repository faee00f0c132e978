"""Rewrites a console's text as Ray, Python and the kernel would have written it, as numbered lines.

The steps, in this order: remove the line ends of Windows and the entities of a web page, quotation marks and
an unknown prefix of nearly all lines, terminal codes and control characters, extract texts from JSON and
split joined lines, remove marks around a block of text, the known prefix of nearly all lines and a label
that a paste cuts off, remove quoted reports of this program, join wrapped and broken lines, reverse a
newest-first order, remove indentation, restore that of tracebacks, name calls as Ray does since 1.0, join
what rich broke below a box, restore the lost beginning of a traceback or of a message of Ray, remove links
and the prefixes of single lines, convert drawn tracebacks to Python's form, and rewrite exceptions that a
program printed in the form that rules match.
All other text remains unchanged.
"""

from __future__ import annotations

import html

from raydoctor.capture.console import beheaded, embedded, exceptions, prefixes, shape, tracebacks
from raydoctor.capture.console.components import AGENT, Components, is_event
from raydoctor.capture.console.prefixes import Stripped
from raydoctor.capture.console.shape import Numbered
from raydoctor.model.patterns import pattern

_SAMPLED = 50
"""Lines in which a carriage return at the end shows the line ends of Windows, and an entity a web page."""
_OF_HTML = pattern(r"&(?:lt|gt|amp|quot|apos|nbsp|#\d{1,6}|#x[0-9a-fA-F]{1,5});")
_OF_WINDOWS = ".exe) "
_DAEMON_OF_WINDOWS = pattern(r"\((?P<name>raylet|gcs_server)\.exe\)")
_OPENS_RECORD = frozenset("[{0123456789")
"""First characters of records that may belong to a log of Ray's."""
_LEAST = 20
"""Characters of such a record: its time alone has more."""
_OF_TRACEBACK = (" ", "\t", tracebacks.BEGIN)

RewrittenLine = tuple[str, int, str]
"""The writer's role (empty: the console's own), the number in the original, the rewritten line."""


class Rewriter:
    """Rewrites a console block by block.

    Separates records that have one of `roles`: of Ray's C++ code, its runtime environment agent, its event
    files and the kernel. `is_alone`: whether Ray's logs are missing.
    """

    def __init__(self, roles: frozenset[str], is_alone: bool = True) -> None:
        self._roles = roles
        self._is_alone = is_alone
        self._components = Components()
        self._role = ""
        self._header = ""
        self._in_traceback = False

    def rewrite(self, raws: list[str], first: int = 1) -> list[RewrittenLine]:
        """Rewrite a block; `first` is the number of its first line in the original."""
        raws = _plain(raws, first)
        numbers = shape.numbers_between(raws)
        raws = ["" if n in numbers else raw for n, raw in enumerate(raws)]
        raws = shape.without_unknown_prefix(shape.without_quotation(raws))
        lines = shape.without_markup(_pieces(raws, first, "event" in self._roles))
        lines = [line for line in lines if line[0] - first not in numbers]
        lines = shape.without_foreign_logs(shape.without_common_prefix(lines))
        lines = shape.without_cut_label(lines)
        lines = shape.without_reports(lines)
        lines = shape.oldest_first(shape.rejoined(shape.unwrapped(lines)))
        lines = shape.reindented(shape.dedented(lines))
        lines = [(number, exceptions.with_call(text)) for number, text in lines]
        lines = tracebacks.unfolded(lines)
        if first == 1 and self._is_alone:
            lines = beheaded.with_beginning(tracebacks.with_beginning(lines))
        if self._is_alone:
            lines = _completed(lines)
        shown: list[RewrittenLine] = []
        drawn, deinterleaver = tracebacks.DrawnTracebacks(), tracebacks.Deinterleaver()
        for number, raw in lines:
            text = tracebacks.unlinked(raw) if "](file:" in raw or "](http" in raw else raw
            if not (drawn.form or deinterleaver.waiting or self._role == "event") and (
                not text or self._may_pass(text)
            ):
                shown.append((self._role, number, text))
                self._header = ""
                if not self._role:
                    self._in_traceback = text[:1] in (" ", "\t")
                continue
            line = prefixes.strip(text)
            if text.endswith(tracebacks.BEGIN) and (head := tracebacks.announcement(line)):
                self._append(number, head, shown)
            if drawn.convert(line):
                for each in deinterleaver.add(number, line):
                    self._append(*each, shown)
        if self._is_alone and drawn.form == "ipython":  # the heading names the exception
            named = Stripped(exceptions.named(drawn.name), changed=True)
            for each in deinterleaver.add(lines[-1][0], named):
                self._append(*each, shown)
        for each in deinterleaver.release():
            self._append(*each, shown)
        return shown

    def _may_pass(self, text: str) -> bool:
        """Whether a line remains as it is: a quick test."""
        return (
            prefixes.is_bare(text)
            and (text[:1] != "(" if self._role else not exceptions.may_hold(text))
            and not (
                self._roles and len(text) >= _LEAST and (text[:1] in _OPENS_RECORD or "[20" in text)
            )
        )

    def _append(self, number: int, line: Stripped, shown: list[RewrittenLine]) -> None:
        is_new = bool(line.level) and not self._header.startswith(line.header)
        if is_new or not line.level:
            self._header = line.header
        if self._roles:
            # A record that a driver echoes remains in the driver's output: its prefix names the node.
            role = "" if line.process else self._components.role(line.text)
            is_agents = self._role == AGENT and line.text.startswith(tracebacks.BEGIN)
            is_other = self._role == "event" or (_begins_other(line) and not is_agents)
            if role or is_other:
                self._role = role if role in self._roles else ""
            if self._role:
                shown.append((self._role, number, line.text))
                return
        for text in exceptions.normalised(line, is_new, self._in_traceback, self._is_alone):
            shown += [("", number, each) for each in text.split("\n")]
        self._in_traceback = line.text.startswith(_OF_TRACEBACK)


def _completed(lines: list[Numbered]) -> list[Numbered]:
    """The lines of a paste, with what is lost of the name, heading or statement within which it ends."""
    last = max((n for n, (_, text) in enumerate(lines) if text.strip()), default=None)
    if last is None:
        return lines
    number, text = lines[last]
    text = tracebacks.with_heading(exceptions.completed(text))
    added: list[Numbered] = []
    end = [each for _, each in lines[max(0, last - tracebacks.STATEMENT_LINES) : last + 1]]
    if any("raise " in each for each in end):
        stripped = [prefixes.strip(each).text for each in end]
        if raised := tracebacks.exception_of(stripped):
            added = [(number, text.removesuffix(stripped[-1]) + raised)]
    return [*lines[:last], (number, text), *added, *lines[last + 1 :]]


def _plain(raws: list[str], first: int) -> list[str]:
    """The lines without what Windows adds (line ends, a mark), and as text what a web page writes as HTML."""
    if first == 1 and raws and raws[0].startswith("\ufeff"):
        raws = [raws[0][1:], *raws[1:]]
    if any(raw.endswith("\r") for raw in raws[:_SAMPLED]):
        raws = [raw.removesuffix("\r") for raw in raws]
    if any("\xa0" in raw or "&" in raw for raw in raws[:_SAMPLED]):
        raws = [html.unescape(raw) if _OF_HTML.search(raw) else raw for raw in raws]
        raws = [raw.replace("\xa0", " ") for raw in raws]
    if any(_OF_WINDOWS in raw for raw in raws[:_SAMPLED]):
        raws = [_DAEMON_OF_WINDOWS.sub(r"(\g<name>)", raw) for raw in raws]
    return raws


def _pieces(raws: list[str], first: int, separates: bool) -> list[Numbered]:
    """The lines of a block, with joined lines split and wrapped ones extracted.

    `separates`: whether records of event files remain as they are, to be separated.
    """
    lines: list[Numbered] = []
    documents = embedded.of_documents(raws)
    for number, raw in enumerate(raws, first):
        if documents and number - first in documents:
            lines += [
                (first + n, piece)
                for n, texts in documents[number - first]
                for each in texts
                for piece in shape.split(each)
            ]
            continue
        may_hold = bool(raw) and embedded.may_hold(raw)
        if not (raw and (may_hold or not shape.is_simple(raw))):
            lines.append((number, raw))
            continue
        plain = shape.uncoloured(raw)
        if may_hold and separates and is_event(plain):
            lines.append((number, plain))
            continue
        whole = embedded.take_out(plain) if may_hold and "\r" not in raw else None
        if whole is not None:
            lines += [(number, piece) for each in whole for piece in shape.split(each)]
            continue
        for text in shape.split(raw):
            is_other = text != plain and embedded.may_hold(text)
            inner = embedded.take_out(text) if is_other else None
            if inner is None:
                lines.append((number, text))
            else:
                lines += [(number, piece) for each in inner for piece in shape.split(each)]
    return lines


def _begins_other(line: Stripped) -> bool:
    """Whether a line cannot continue a record of a daemon's log."""
    return (
        bool(line.process or line.rank or (line.level and not prefixes.is_rays(line.text)))
        or line.text[:1].isdigit()
        or line.text.startswith(tracebacks.BEGIN)
    )

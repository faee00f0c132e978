"""Finds all secrets in a text: line by line, decoded, and with the context of other lines."""

from __future__ import annotations

import bisect
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator

from raydoctor.model.patterns import pattern
from raydoctor.redact import assigned, blocks, decode, elements, places, reasons, shapes, wrapped
from raydoctor.redact.blocks import State
from raydoctor.redact.budget import SHAPED, JudgingBudget
from raydoctor.redact.span import Span
from raydoctor.redact.wrapped import WrappedGroup

UNREAD = "unread"
"""The kind of a line that takes too long to be judged."""
_STRING = pattern(rb'"(?:[^"\\]|\\.)*"')
_MOST_ELEMENTS = 20_000
"""A line with more NULs is neither a command line nor an environment."""
_NEWLINE = pattern(rb"\r?\n")


def block_spans(
    block: bytes, state: State, before: int = 0, depth: int = 0, *, pays: bool = False
) -> list[Span]:
    """Spans of secrets in whole lines; they may overlap. `before`: the length of the previous line.

    With `pays`, the lines pay for what follows them.
    """
    shaped, worded = _starts(block)
    starts = shaped | worded
    joined: list[Span] = []
    found: list[Span] = []
    groups = _wrapped_groups(block, starts, before) if b"\n" in block else deque()
    order = sorted(starts)
    judged: dict[tuple[bytes, bool], list[Span]] = {}
    at, paid = 0 if state else _first(order, 0), 0
    while 0 <= at < len(block):
        if pays:  # what comes later pays for nothing before it
            state.budget.earn(at - paid)
            paid = at
        while groups and groups[0].start <= at:
            joined += _wrapped_spans(block, groups.popleft(), depth, state.budget)
        end = block.find(b"\n", at)
        end = len(block) if end < 0 else end
        line = block[at:end]
        if at and line.lstrip().startswith(b"password "):
            blocks.note_machine(block[block.rfind(b"\n", 0, at - 1) + 1 : at - 1], state)
        own = _own_spans(line, state, at in shaped, depth, judged)
        if found and own and own[0].kind == found[-1].kind == UNREAD and found[-1].end >= at - 2:
            found[-1] = found[-1]._replace(
                end=at + own[0].end
            )  # many lines in a row are one secret
        else:
            found += [span.moved(at) for span in own]
        if at and state.named and (name := blocks.name_alone(line)):
            begin = block.rfind(b"\n", 0, at - 1) + 1
            found += [s.moved(begin) for s in blocks.value_before(block[begin : at - 1], name)]
        at = end + 1 if state else _first(order, end)
    if pays:
        state.budget.earn(len(block) - paid)
    for group in groups:
        joined += _wrapped_spans(block, group, depth, state.budget)
    return joined + found


def _own_spans(
    line: bytes,
    state: State,
    shaped: bool,
    depth: int,
    judged: dict[tuple[bytes, bool], list[Span]],
) -> list[Span]:
    """The spans of a line; `judged` has those of earlier lines without context."""
    if state:
        return line_spans(line, state, shaped, depth)
    key = (line, True) if shaped else (_template(line), False)
    own = judged.get(key)
    if own is None:
        own = line_spans(line, state, shaped, depth)
        if not (state or state.budget.is_spent):
            judged[key] = own
    return own


_DIGITS = bytes.maketrans(b"0123456789", b"5" * 10)
_WITH_CODES = pattern(
    # Escapes, codes of URLs and HTML, colours, hashes, ports, and words with a digit.
    rb"\\[ux0-9/]|%[0-9A-Fa-f]|&#|[\x1b\0$]|\[[\d;]*m|:\d{4,5}:|s3|64|0x|7z"
)


def _template(line: bytes) -> bytes:
    """A key that is equal only for lines with equal spans: they have other digits in the same places."""
    return line if _WITH_CODES.search(line) else line.translate(_DIGITS)


def _starts(block: bytes) -> tuple[set[int], set[int]]:
    """Offsets of lines that may hold a secret, because of a possible token, and because of a word."""
    clean = decode.without_colours(block) if b"\x1b" in block else block
    both = [
        {clean.rfind(b"\n", 0, at) + 1 for at in reason(clean)}
        for reason in (reasons.shaped, reasons.worded)
    ]
    if clean is not block and any(both):
        own = dict(_same_lines(clean, sorted(both[0] | both[1]), block))
        both = [{own[at] for at in starts} for starts in both]
    return both[0], both[1]


def _same_lines(clean: bytes, starts: list[int], block: bytes) -> Iterator[tuple[int, int]]:
    """Offsets of lines in a block without colours, with the same lines' offsets in the block."""
    seen = own = 0
    for start in starts:
        for _ in range(clean.count(b"\n", seen, start)):
            own = block.find(b"\n", own) + 1
        seen = start
        yield start, own


def _first(starts: list[int], after: int) -> int:
    """The first of the sorted offsets that is at least `after`, or -1."""
    at = bisect.bisect_left(starts, after)
    return starts[at] if at < len(starts) else -1


def _wrapped_groups(block: bytes, starts: set[int], before: int) -> deque[WrappedGroup]:
    """Wrapped lines that may hold a secret, in order."""
    return deque(sorted(_with_reason(block, wrapped.groups(block, starts, before), starts)))


def _wrapped_spans(
    block: bytes, group: WrappedGroup, depth: int, budget: JudgingBudget
) -> Iterator[Span]:
    """Spans in wrapped lines, which are joined first."""
    text = block[group.start : group.end]
    if budget.is_spent:
        if b"<secret:" not in text:
            yield Span(group.start, group.end, UNREAD)
        return
    joined = decode.view(text, _NEWLINE, _joint)
    if joined is None:
        return
    for span in block_spans(joined.data, State(budget), 0, depth + 1):
        # Placeholders were judged before, so that redaction is idempotent.
        if b"<secret:" not in joined.data[span.start : span.end]:
            yield joined.original(span).moved(group.start)


def _joint(match: re.Match[bytes]) -> bytes:
    """The text at a line break before wrapping: a blank, or nothing."""
    before = match.string[max(0, match.start() - wrapped.NEAR) : match.start()]
    return b" " if wrapped.waits(before) else b""


_JOINT = 32
"""Bytes on both sides of a line break: more than a name has."""


def _with_reason(
    block: bytes, groups: Iterable[WrappedGroup], starts: set[int]
) -> Iterator[WrappedGroup]:
    """Groups with a line that may hold a secret, or with a possible name of one across a line break."""
    joints: list[bytes] = []
    groups_of: list[WrappedGroup] = []
    for group in groups:
        if group.start in starts or any(end + 1 in starts for end in group.breaks):
            yield group
            continue
        for end in group.breaks:
            begin = end - 1 if block[end - 1 : end] == b"\r" else end
            left = block[max(group.start, begin - _JOINT) : begin]
            joints.append(left + block[end + 1 : min(group.end, end + 1 + _JOINT)])
            groups_of.append(group)
    numbers = {id(groups_of[number]): number for number in reasons.of_lines(joints)}
    yield from (groups_of[number] for number in numbers.values())


def line_spans(line: bytes, state: State, shaped: bool, depth: int = 0) -> list[Span]:
    """Spans of all secrets in a line; they may overlap, those of shapes come first."""
    if not state.budget.affords(line):
        if state or _BEGINS_BLOCK.search(line):
            _note_context(line, state)
        return [Span(0, len(line.rstrip(b"\r")), UNREAD)]
    state.budget.spend(SHAPED if shaped else 0.0)
    if seen := decode.seen(line):
        return [seen.original(span) for span in line_spans(seen.data, state, shaped, depth)]
    if b"\0" in line and not _is_wide(line):
        if line.count(b"\0") > _MOST_ELEMENTS:
            return list(_plain_spans(line.replace(b"\0", b" "), state, shaped))
        return _element_spans(line, state, depth)
    found = list(_plain_spans(line, state, shaped))
    if depth < decode.DEPTH:
        for view in decode.views(line):
            found += [
                view.original(span) for span in text_spans(view.data, depth + 1, state.budget)
            ]
        for span, decoded in decode.coded(line) if shaped else ():
            if inner := text_spans(decoded, depth + 1, state.budget):
                found.append(span._replace(kind=inner[0].kind))
    return _within_strings(line, found) if found else found


_BEGINS_BLOCK = pattern(rb"[:{\[\x1b\x08\x80-\xff]|machine|login|default|PRIVATE KEY")
"""Every line that changes the context of the next has one of these, or one that decoding removes."""


def _note_context(line: bytes, state: State) -> None:
    """Update the context by a line that is replaced: the values of a block that it begins have no words."""
    seen = decode.seen(line)
    text = seen.data if seen else line
    parts = (text.partition(b"\0")[0], text.rpartition(b"\0")[2]) if b"\0" in text else (text,)
    for part in parts:
        _key_spans(part, state)
        blocks.note(part, state)


def _element_spans(line: bytes, state: State, depth: int) -> list[Span]:
    """Spans in a line with NULs; its first element may continue a block, and its last may begin one."""
    first, last = line.find(b"\0"), line.rfind(b"\0") + 1
    found = list(_plain_spans(line[:first], state, True))
    found += elements.spans(line, lambda text: text_spans(text, depth + 1, state.budget))
    return found + [span.moved(last) for span in _plain_spans(line[last:], state, True)]


def text_spans(text: bytes, depth: int, budget: JudgingBudget) -> list[Span]:
    """Spans in a text without context: a string, a part of a line, or a decoded copy of it."""
    if depth > decode.DEPTH:
        return []
    if b"\n" in text or b"\x1b" in text:
        return block_spans(text, State(budget), 0, depth)
    shaped = any(True for _ in reasons.shaped(text))
    if shaped or any(True for _ in reasons.worded(text)):
        return line_spans(text, State(budget), shaped, depth)
    return []


def _is_wide(line: bytes) -> bool:
    return line.count(b"\0") * 5 > len(line) * 2


def _plain_spans(line: bytes, state: State, shaped: bool) -> Iterator[Span]:
    yield from _key_spans(line, state)
    if shaped:
        yield from shapes.spans(line)
    if b"@" in line:
        yield from places.url_spans(line)
    yield from places.spans(line)
    yield from blocks.spans(line, state)
    yield from assigned.spans(line)


def _key_spans(line: bytes, state: State) -> list[Span]:
    if not (state.key_lines or b"PRIVATE KEY" in line):
        return []
    found, state.key_lines = shapes.key_spans(line, state.key_lines)
    return found


def _within_strings(line: bytes, spans: list[Span]) -> list[Span]:
    """Clip the spans of a JSON line to its strings, so that quotes and brackets remain and it stays JSON."""
    text = line.strip().removesuffix(b",").rstrip()
    if text[:1] + text[-1:] not in (b"{}", b"[]"):
        return spans
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return spans
    strings = [(m.start() + 1, m.end() - 1) for m in _STRING.finditer(line)]
    begins = [start for start, _ in strings]
    clipped = []
    for span in spans:
        at = max(0, bisect.bisect_right(begins, span.start) - 1)
        inside = False
        while at < len(strings) and strings[at][0] < span.end:
            start, end = max(span.start, strings[at][0]), min(span.end, strings[at][1])
            if start < end:
                inside = True
                clipped.append(Span(start, end, span.kind))
            at += 1
        if not inside:
            clipped.append(span)  # a number
    return clipped

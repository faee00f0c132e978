"""The timeline as a chart: one lane per node, process and rank, and a table of the same marks.

A large cluster is aggregated, not cut: lanes without a failure share one, marks that would overlap are one
mark with a count, and the table lists what the chart merges.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from raydoctor.model import text as _text
from raydoctor.model.patterns import pattern
from raydoctor.model.timeline import Lane, MarkKind, Timeline, TimelineMark
from raydoctor.render.html.axis import LAYOUTS, Axis, axis
from raydoctor.render.html.markup import Markup, el, folded, join, table

WORDS: Mapping[MarkKind, str] = {
    "kill": "killed for lack of memory",
    "death": "failed exit",
    "failure": "failure",
    "silent": "no reply",
    "spill": "write to or read from disk",
    "restart": "restart or retry",
    "sign": "evidence",
    "start": "start",
    "end": "end",
}
_SHAPES: Mapping[MarkKind, str] = {
    "kill": "M-6-5H6L0 6Z",
    "death": "M-5-5L5 5M-5 5L5-5",
    "failure": "M0-6L6 0L0 6L-6 0Z",
    "silent": "M-6-2H-2M2-2H6M-6 2H-2M2 2H6",
    "spill": "M-4.5-4.5h9v9h-9Z",
    "restart": "M4.5-1.5A4.7 4.7 0 1 0 4.5 2M5-5V-1H1",
    "sign": "M0-4.5A4.5 4.5 0 1 1 0 4.5A4.5 4.5 0 1 1 0-4.5Z",
    "start": "M-3-5L5 0L-3 5Z",
    "end": "M0-6V6",
}
_GRAVE: tuple[MarkKind, ...] = ("kill", "death", "failure", "silent", "restart", "sign", "spill")
_FAILURES: tuple[MarkKind, ...] = ("kill", "death", "failure")
_NODES, _PROCESSES = 12, 36
"""Nodes and processes with a lane of their own."""
_TOP, _ROW = 26.0, 22.0
_ABOVE = 13.0
"""Height of words or a name above a lane's bar: they hide neither the bar nor the time that it covers."""
_BEFORE = 600.0
"""Seconds before the first sign that the chart shows: the job's start is often among them."""
_NEAR = 11.0
"""Distance within which marks of one kind are one mark."""
_NAME_LETTER = 6.4
"""Width of a letter of a lane's name."""
_NAME_ALONE = 6.0
"""Height below the name of a lane that has no bar."""
_LETTER, _CAPITAL, _DOTS = 6.1, 2.4, 5.0
"""Width of a letter beside a mark, at most, and how much wider a capital and `…` are."""
_CLAUSE = pattern(r"(?=[,:] )|(?<=\w\.)(?= [A-Z])")
"""Where a text may be cut: never within a word or a number."""
_ADDITION = pattern(r"(?=, )|(?<=\w\.)(?= [A-Z])")
"""Where one may be cut that has a shorter form: what follows a colon is often what matters."""
_SUBORDINATE = pattern(r" because | while | so that ")
"""What follows is shown as a whole or not at all."""
_LEAST_LETTERS, _MOST_LETTERS = 20, 90
"""Letters in a line above a mark: longer texts are cut after a clause that is not too short."""
_SPARE = (1.05, 1.15, 1.3, 1.5)
"""How much longer than the mean a line may be, the least that does first."""
_EDGE = 6.0
"""Room that words leave at the right edge of the chart."""
_CLEAR = 50
"""Letters from which a text may be cut at a colon although it has a shorter form."""
_LINES, _LEAST_ROOM = 2, 150.0
"""Lines of words above a failure, and the room from which there is more than one."""
_KINDS: Mapping[MarkKind, str] = {k: WORDS[k] for k in ("kill", "death", "silent", "spill")}
"""Words for marks whose text does not fit, where they say more than the shape alone."""
_NAMED = 5
"""Texts that a merged mark lists."""


class _LaneRow(NamedTuple):
    """A lane of the chart: one component, or several that share it."""

    name: str
    marks: Sequence[TimelineMark]
    begin: float | None = None
    end: float | None = None
    is_process: bool = False
    missing: str = ""
    is_shared: bool = False


class _Spot(NamedTuple):
    """A drawn mark: one or several of a kind."""

    x: float
    kind: MarkKind
    marks: tuple[TimelineMark, ...]

    @property
    def total(self) -> int:
        return sum(mark.count for mark in self.marks)

    @property
    def text(self) -> str:
        said = list(dict.fromkeys(_text.one_line(mark.text) for mark in self.marks))
        more = f"; {len(said) - _NAMED:,} more texts" if len(said) > _NAMED else ""
        return "; ".join(said[:_NAMED]) + more

    @property
    def when(self) -> str:
        ends = [_clock(m.at) for m in self.marks] + [_clock(m.until) for m in self.marks if m.until]
        first, last = min(ends), max(ends)
        return first if first == last else f"{first} to {last.removeprefix(first[:11])}"


def has_signs(timeline: Timeline | None) -> bool:
    """Whether the chart shows more than starts and ends."""
    return timeline is not None and any(mark.kind in _GRAVE for mark in timeline.marks)


def section(
    timeline: Timeline,
    untimed: str = "",
    read_at: Iterable[float] = (),
    until: float | None = None,
) -> tuple[Markup, Sequence[Axis]]:
    """The chart with its table, and its axis in each layout, which other charts share.

    `untimed`: a note about incidents that have no time. `read_at`: times that other charts need room for.
    `until`: the end of the logs, to which a chart without a failure reaches.
    """
    begin = _first_shown(timeline.marks)
    shown = [mark for mark in timeline.marks if mark.at >= begin]
    times = [m.at for m in shown] + [m.until for m in shown if m.until]
    if not any(mark.kind in _GRAVE for mark in shown):
        times += [at for lane in timeline.lanes for at in (lane.begin, lane.end) if at is not None]
        times += [until] if times and until is not None else []
    rows = list(_rows(timeline.lanes, shown))
    ends = [at for row in rows for at in (row.begin, row.end) if at is not None]
    busy = (*ends, *read_at)
    scales = [scale for layout in LAYOUTS if (scale := axis(times, layout, busy)) is not None]
    if not scales:
        return el("p", "dim", "No record of this incident has a time."), ()
    drawn = [
        (scale, [(row, list(_labels(_spots(row.marks, scale), scale))) for row in rows])
        for scale in scales
    ]
    spots = [(row, [label.spot for label in labels]) for row, labels in drawn[0][1]]
    earlier = [mark for mark in timeline.marks if mark.at < begin]
    long_before = (
        f"{_text.plural(len(earlier), 'earlier mark')}, long before the failure: see the table."
    )
    notes = filter(None, (untimed, long_before if earlier else ""))
    return join([
        el("div", {"class": "chart", "tabindex": 0, "role": "region", "aria-label": "Timeline"},
           *(_chart(scale, lanes) for scale, lanes in drawn)),
        _legend(drawn),
        *(el("p", "dim", note) for note in notes),
        folded("Timeline as a table", _table(spots, timeline.lanes, earlier)),
        _sharing(timeline.lanes, timeline.marks, {row.name for row in rows if not row.is_shared}),
    ]), scales  # fmt: skip


def symbols() -> Markup:
    """The shapes of marks, which charts refer to."""
    shapes = (
        el("symbol", {"id": f"k-{kind}", "overflow": "visible"}, el("path", {"d": shape}))
        for kind, shape in _SHAPES.items()
    )
    return el("svg", {"class": "symbols", "width": 0, "height": 0, "aria-hidden": "true"}, *shapes)


def mark(kind: MarkKind, x: float, y: float, *children: Markup) -> Markup:
    """One mark of a chart."""
    shape = el("use", {"href": f"#k-{kind}", "x": x, "y": y})
    return el("g", f"mark {kind}", *children, shape)


def _clock(at: float | None) -> str:
    return _text.moment(at, "%Y-%m-%d %H:%M:%S")


def _first_shown(marks: Iterable[TimelineMark]) -> float:
    """The begin of the chart: some minutes before the first sign of the incident."""
    marks = list(marks)
    signs = [m.at for m in marks if m.diagnoses or m.kind in ("kill", "death", "failure", "silent")]
    if not signs:
        return float("-inf")
    last = max(mark.until or mark.at for mark in marks)
    return min(signs) - max(0.25 * (last - min(signs)), _BEFORE)


# ---------------------------------------------------------------- lanes


def _rows(lanes: Sequence[Lane], marks: Sequence[TimelineMark]) -> Iterator[_LaneRow]:
    """The cluster, drivers, then each node with its processes; those without a failure share lanes."""
    of_lane: dict[str, list[TimelineMark]] = {}
    for each in marks:
        of_lane.setdefault(each.lane, []).append(each)
    processes = [lane for lane in lanes if lane.kind == "process"]
    nodes = [lane for lane in lanes if lane.kind == "node"]
    own = _with_own_lane(processes, of_lane)
    ranked = sorted(nodes, key=lambda n: _weight(n, of_lane, (p for p in own if p.node == n.id)))
    chosen = ranked[:_NODES]
    for lane in lanes:
        if lane.kind == "cluster" and lane.id in of_lane:
            yield _row(lane, of_lane)
    known = {node.id for node in nodes}
    for lane in (p for p in own if p.node not in known):
        yield _row(lane, of_lane)._replace(is_process=False)
    rest = [p for p in processes if p not in own]
    for node in chosen:
        yield _row(node, of_lane)
        yield from (_row(p, of_lane) for p in own if p.node == node.id)
        yield from _shared([p for p in rest if p.node == node.id], "other process", of_lane)
    yield from _shared(ranked[_NODES:], "other node", of_lane)
    left = {node.id for node in chosen}
    far = [p for p in (*own, *rest) if p.node in known - left]
    yield from _shared(far, "process", of_lane, "on these nodes")
    yield from _shared(
        [p for p in rest if p.node not in known], "process", of_lane, "of unknown nodes"
    )


def _row(lane: Lane, of_lane: Mapping[str, list[TimelineMark]]) -> _LaneRow:
    marks = of_lane.get(lane.id, [])
    return _LaneRow(lane.name, marks, lane.begin, lane.end, lane.kind == "process", lane.missing)


def _shared(
    lanes: Sequence[Lane], noun: str, of_lane: Mapping[str, list[TimelineMark]], where: str = ""
) -> Iterator[_LaneRow]:
    if lanes:
        many = noun.replace("process", "processes") if "process" in noun else ""
        name = f"{_text.plural(len(lanes), noun, many)} {where}".strip()
        marks = [mark for lane in lanes for mark in of_lane.get(lane.id, ())]
        is_process = lanes[0].kind == "process"
        yield _LaneRow(name, marks, is_process=is_process, is_shared=True)


def _with_own_lane(
    processes: Sequence[Lane], of_lane: Mapping[str, list[TimelineMark]]
) -> list[Lane]:
    """The processes that the incident is about, in the order of their starts."""
    concerned = [p for p in processes if p.has_own_row or _severity(of_lane.get(p.id, ())) < 3]
    best = sorted(concerned, key=lambda p: (_severity(of_lane.get(p.id, ())), p.begin or 0.0))
    kept = {id(p) for p in best[:_PROCESSES]}
    return sorted((p for p in processes if id(p) in kept), key=lambda p: (p.begin or 0.0, p.name))


def _severity(marks: Iterable[TimelineMark]) -> int:
    """0: evidence of a diagnosis, 1: a failure, 2: a sign of one, 3: neither."""
    found = 3
    for each in marks:
        if each.diagnoses:
            return 0
        if each.kind in _GRAVE:
            found = min(found, 1 if each.kind in _FAILURES else 2)
    return found


def _weight(
    node: Lane, of_lane: Mapping[str, list[TimelineMark]], processes: Iterable[Lane]
) -> tuple[int, float, str]:
    lanes = [node, *processes]
    grave = [m.at for lane in lanes for m in of_lane.get(lane.id, ()) if m.kind in _GRAVE]
    severity = min(_severity(of_lane.get(lane.id, ())) for lane in lanes)
    return (severity, min(grave, default=float("inf")), node.name)


def _spots(marks: Iterable[TimelineMark], scale: Axis) -> list[_Spot]:
    """Marks of one kind that would overlap, as one."""
    by_kind: dict[MarkKind, list[TimelineMark]] = {}
    for each in sorted(marks, key=lambda m: m.at):
        by_kind.setdefault(each.kind, []).append(each)
    spots = []
    for kind, those in by_kind.items():
        near: list[TimelineMark] = []
        for each in those:
            if near and scale.x(each.at) - scale.x(near[0].at) > _NEAR:
                spots.append(_Spot(scale.x(near[0].at), kind, tuple(near)))
                near = []
            near.append(each)
        spots.append(_Spot(scale.x(near[0].at), kind, tuple(near)))
    return sorted(spots, key=lambda s: (s.x, s.kind))


# ---------------------------------------------------------------- the chart


def _chart(scale: Axis, rows: Sequence[tuple[_LaneRow, Sequence[_Label]]]) -> Markup:
    bottom, drawn, layout = _TOP + 6, [], scale.layout
    for row, labels in rows:
        most = max((len(each.lines) for each in labels), default=0)
        above = _ABOVE * max(most, bool(row.missing))
        if layout.has_margin:
            bottom += _ROW + above
            drawn.append(_lane(row, labels, bottom - _ROW / 2, bottom - _ROW / 2 + 4, scale))
        else:
            has_bar = not row.is_shared or bool(labels)
            bottom += _ABOVE + (_ROW + above if has_bar else _NAME_ALONE)
            name_y = bottom - (_ROW + above if has_bar else _NAME_ALONE) + 1
            drawn.append(_lane(row, labels, bottom - _ROW / 2, name_y, scale))
    bottom += 4
    name = f"timeline-{layout.style}"
    return el(
        "svg",
        {"class": layout.style, "viewBox": f"0 0 {layout.width:.0f} {bottom:.0f}", "role": "img",
         "aria-labelledby": name, "display": layout.unstyled},
        el("title", {"id": name},
           f"Timeline from {_clock(scale.begin)} to {_clock(scale.end)}; the table below has its marks"),
        scale.draw(bottom),
        *drawn,
    )  # fmt: skip


def _lane(row: _LaneRow, labels: Sequence[_Label], y: float, name_y: float, scale: Axis) -> Markup:
    layout = scale.layout
    indent = 14 if row.is_process and layout.has_margin else 0
    room = (layout.left if layout.has_margin else layout.width) - indent
    name = _text.cut_middle(_text.one_line(row.name), int(room / _NAME_LETTER))
    begin = scale.x(row.begin) if row.begin is not None else layout.left
    end = scale.x(row.end) if row.end is not None else layout.width - layout.right
    # Beside other marks, that of the end may be moved.
    end = max((end, *(each.x for each in labels if each.spot.kind == "end")))
    bar = "bar unknown" if row.missing else "bar"
    missing = _fitting(_clauses(row.missing), layout.width - layout.left - 6)
    line = el(
        "path",
        {"class": bar, "d": f"M{begin:.1f} {y:.1f}H{max(end, begin + 1):.1f}", "stroke-width": 3},
    )
    return el(
        "g", "lane process" if row.is_process else "lane",
        el("title", "", row.name + (f": {row.missing}" if row.missing else "")),
        el("text", {"class": "name", "x": indent, "y": name_y}, name),
        None if row.is_shared else line,
        join(_words_above([missing], layout.left + 6, y, "word")) if missing else None,
        *(_mark(each, y) for each in labels),
    )  # fmt: skip


class _Label(NamedTuple):
    """A mark at its place in the chart, and the words above it."""

    spot: _Spot
    x: float
    end: float | None
    """Where its period ends; None for a moment."""
    lines: Sequence[str]
    at: float
    """Where the words begin, or end if they are `before` the mark, for lack of room behind it."""
    is_before: bool


def _labels(spots: Sequence[_Spot], scale: Axis) -> Iterator[_Label]:
    """The marks, moved apart where kinds overlap, each with the words for which there is room.

    Failures get their words first: what led to them may have many marks.
    """
    layout = scale.layout
    taken = layout.left - 20
    placed = []
    for spot in spots:
        if _period_end(spot, scale) is None:
            taken = min(max(spot.x, taken + 13), layout.width - 7)
            placed.append((spot, taken))
        else:  # a period has no shape that could hide another one
            placed.append((spot, spot.x))
    worded: dict[int, _Words] = {}
    said: set[Sequence[str]] = set()
    for is_failure in (True, False):
        own = [n for n, (spot, _) in enumerate(placed) if (spot.kind in _FAILURES) == is_failure]
        ends = [placed[n][1] - 12 for n in own[1:]] + [layout.width - _EDGE]
        for n, end in zip(own, ends, strict=False):
            others = [w for w in worded.values() if w.lines]
            before = max(
                (x + 8 for other, x in placed[:n] if other.kind != placed[n][0].kind),
                default=layout.left,
            )
            words = _placed(*placed[n], end, others, (layout.left, before))
            # Beside the first mark, words hold for the same ones that follow.
            is_repeat = not is_failure and tuple(words.lines) in said
            said.add(tuple(words.lines))
            worded[n] = words._replace(lines=()) if is_repeat else words
    for n, (spot, x) in enumerate(placed):
        period = _period_end(spot, scale)
        yield _Label(spot, x, period, worded[n].lines, worded[n].at, worded[n].is_before)


def _period_end(spot: _Spot, scale: Axis) -> float | None:
    """Where the period of a spot ends; None if the spot is a moment."""
    end = max((scale.x(mark.until) for mark in spot.marks if mark.until), default=spot.x)
    return end if end > spot.x + 6 else None


class _Words(NamedTuple):
    """Words above a lane, and the room that they take."""

    lines: Sequence[str]
    at: float
    is_before: bool
    begin: float
    end: float


def _placed(
    spot: _Spot, x: float, most: float, others: Sequence[_Words], least: tuple[float, float]
) -> _Words:
    """The words of a mark, behind it or before it, where no others are; those of a period only behind.

    `least`: where words may begin, and those before the mark: above another kind they read as its own.
    """
    free = max((each.end for each in others if each.begin < x - 6), default=least[0])
    behind = [each.begin - 8 for each in others if each.begin >= x - 6]
    most, edge = min([most, *behind]), min([x + 6, *behind])
    left = max(x - 6, free)
    after = _words(spot, most - left) if left < x + 14 else ()
    is_period = any(mark.until for mark in spot.marks)
    before = () if is_period else _words(spot, edge - max(free, least[1]))
    if sum(map(len, before)) > sum(map(len, after)):
        return _Words(before, edge, True, edge - _widest(before), edge + 8)
    return _Words(after, left, False, left, left + 8 + _widest(after))


def _words_above(lines: Sequence[str], x: float, y: float, style: str) -> Iterator[Markup]:
    """Words above a mark, on a background that hides the grid."""
    for above, words in enumerate(reversed(lines)):
        wide, bottom = _wide(words), y - 10 - _ABOVE * above
        left = x - wide if style.endswith("before") else x
        yield el(
            "rect",
            {"class": "ground", "x": left - 2, "y": bottom - 11, "width": wide + 4, "height": 13,
             "fill": "#fff", "stroke": "none"},
        )  # fmt: skip
        yield el("text", {"class": style, "x": x, "y": bottom}, words)


def _words(spot: _Spot, room: float) -> Sequence[str]:
    """The whole text, its first clauses, its short form, or its kind, with the count: whatever fits."""
    said = list(dict.fromkeys(_statement(mark.text) for mark in spot.marks))
    if spot.kind not in _GRAVE or all(mark.is_repeat for mark in spot.marks):
        return ()
    short = spot.marks[0].short
    whole, *parts = _clauses(said[0])
    if short:
        added = set(_clauses(said[0], _ADDITION))
        parts = [each for each in parts if each in added or len(each) >= _CLEAR]
    lines = _LINES if spot.kind in _FAILURES and room >= _LEAST_ROOM else 1
    most = lines * _MOST_LETTERS
    parts = [each for each in parts if _LEAST_LETTERS <= len(each) <= most]
    few = [*([whole] if len(whole) <= most else []), *parts, *([short] if short else [])]
    counted = f" ({spot.total:,} times)" if spot.total > 1 else ""
    if len(said) > 1:  # the count is not that of the first text
        more = f" (and {len(said) - 1:,} more)"
        together = "; ".join(said)
        every = [together] if len(together) <= most else []
        others = [each for each in said[1:_NAMED] if len(each) <= most]
        choices = [*every, *(words + more for words in (*few, *others))]
    else:
        choices = [words + counted for words in few]
    if spot.kind in _KINDS:
        choices += (_KINDS[spot.kind] + counted, _KINDS[spot.kind])
    wide = min(room, _MOST_LETTERS * _LETTER)
    broken = (_broken(each, wide) for each in choices)
    found = next((each for each in broken if 0 < len(each) <= lines), ())
    return _balanced(found, wide) if len(found) > 1 else found


def _balanced(lines: Sequence[str], wide: float) -> Sequence[str]:
    """The same words in as many lines of about one length: no word stands alone in the last one."""
    words = " ".join(lines)
    widths = (min(wide, _wide(words) / len(lines) * more) for more in _SPARE)
    even = (_broken(words, width) for width in widths)
    return next((each for each in even if len(each) == len(lines)), lines)


def _statement(text: str) -> str:
    """A text without what it adds behind a semicolon, such as the words of Ray's record."""
    text = _text.one_line(text)
    first = text.partition("; ")[0]
    return first if first.count("(") == first.count(")") else text


def _broken(words: str, room: float) -> Sequence[str]:
    """The words in lines that fit; none if a word does not."""
    lines: list[str] = []
    whole = words.replace(f" {_text.ELLIPSIS}", f"\u00a0{_text.ELLIPSIS}")
    for word in filter(None, whole.split(" ")):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and _wide(longer) <= room:
            lines[-1] = longer
        elif _wide(word) <= room:
            lines.append(word)
        else:
            return ()
    return lines


def _fitting(choices: Iterable[str], room: float) -> str:
    return next((each for each in choices if _wide(each) <= room), "")


def _widest(lines: Iterable[str]) -> float:
    return max(map(_wide, lines), default=0.0)


def _wide(words: str) -> float:
    capitals = sum(each.isupper() or each == "×" for each in words)
    return len(words) * _LETTER + capitals * _CAPITAL + words.count("…") * _DOTS


def _clauses(text: str, boundary: re.Pattern[str] = _CLAUSE) -> Iterator[str]:
    """The whole text, then ever fewer of its main clauses, with a sign that more follows."""
    main = _SUBORDINATE.split(text, 1)[0]
    main = main if main.count("(") == main.count(")") else text
    parts = boundary.split(main)
    yield text
    most = len(parts) if main != text else len(parts) - 1
    cut = ("".join(parts[:n]) for n in range(most, 0, -1))
    yield from (f"{each} …" for each in cut if each.count("(") == each.count(")"))


def _mark(label: _Label, y: float) -> Markup:
    spot, x, end = label.spot, label.x, label.end
    count = f" ×{spot.total:,}" if spot.total > 1 else ""
    about = f"{spot.when} {WORDS[spot.kind]}{count}"
    style = "word before" if label.is_before else "word"
    title = el("title", "", f"{about}: {spot.text}")
    words = join(_words_above(label.lines, label.at, y, style))
    if end is None:
        return mark(spot.kind, x, y, title, words)
    period = el("path", {"class": "period", "d": f"M{x:.1f} {y:.1f}H{end:.1f}"})
    return el("g", f"mark {spot.kind}", title, words, period)


def _legend(
    drawn: Sequence[tuple[Axis, Sequence[tuple[_LaneRow, Sequence[_Label]]]]],
) -> Markup:
    kinds = {label.spot.kind for _, lanes in drawn for _, labels in lanes for label in labels}
    items = [
        el("li", "",
           el("svg", {"viewBox": "-8 -8 16 16", "width": 16, "height": 16, "aria-hidden": "true"},
              mark(kind, 0, 0)), " ", word)
        for kind, word in WORDS.items() if kind in kinds
    ]  # fmt: skip
    if any(piece.is_break for scale, _ in drawn for piece in scale.pieces):
        items.append(el("li", "", "⋯ on grey: quiet time that is left out"))
    return el("ul", {"class": "legend", "aria-label": "Marks"}, *items)


def _sharing(lanes: Sequence[Lane], marks: Iterable[TimelineMark], own: set[str]) -> Markup | None:
    """The nodes and processes without a lane of their own, each with its marks, for a search."""
    of_lane: dict[str, dict[MarkKind, list[TimelineMark]]] = {}
    for each in marks:
        of_lane.setdefault(each.lane, {}).setdefault(each.kind, []).append(each)
    names = {lane.id: lane.name for lane in lanes}
    rows = [
        (
            lane.name,
            names.get(lane.node, ""),
            "; ".join(map(_brief, of_lane.get(lane.id, {}).values())) or "–",
        )
        for lane in lanes
        if lane.kind != "cluster" and lane.name not in own
    ]
    if not rows:
        return None
    caption = f"Nodes and processes that share a lane ({len(rows):,})"
    listed = table(caption, ("Name", "Node", "Marks"), rows, "find")
    return folded(caption, listed, name="sharing")


def _brief(marks: Sequence[TimelineMark]) -> str:
    """Marks of one kind: when, how many, and the text of the first."""
    spot = _Spot(0.0, marks[0].kind, tuple(marks))
    count = f"{spot.total:,} × " if spot.total > 1 else ""
    return f"{spot.when} {count}{_text.one_line(marks[0].text)}"


def _table(
    rows: Sequence[tuple[_LaneRow, list[_Spot]]],
    lanes: Sequence[Lane],
    earlier: Sequence[TimelineMark],
) -> Markup:
    names = {lane.id: lane.name for lane in lanes}
    found: list[tuple[str, str, _Spot]] = [
        (spot.when, row.name, spot) for row, spots in rows for spot in spots
    ]
    before: dict[tuple[str, MarkKind], list[TimelineMark]] = {}
    for each in earlier:
        shared = names.get(each.lane, each.lane) if len(lanes) < _PROCESSES else "earlier"
        before.setdefault((shared, each.kind), []).append(each)
    for (name, kind), marks in before.items():
        spot = _Spot(0.0, kind, tuple(marks))
        found.append((spot.when, name, spot))
    return table(
        "Marks of the timeline",
        ("Time", "Where", "What", "Count", "Text"),
        (
            (when, name, WORDS[spot.kind], f"{spot.total:,}", spot.text)
            for when, name, spot in sorted(found, key=lambda row: row[:2])
        ),
    )

"""Elements of a page. Text is escaped where an element is made, and nowhere else.

`el` takes names and attributes from raydoctor's own code, and text from anywhere: a `str` becomes text. Only
a `Markup` stays as it is, and only this module makes one from text.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from raydoctor.model.patterns import pattern
from raydoctor.model.text import printable


class Markup(str):
    """Text that is a part of a page as it is."""

    __slots__ = ()


Child = str | Markup | None
_LONG_WORD = 24
_LONG_NAME = 16
"""Letters of a name that may be broken."""
_JOINT = pattern(r"(?<=[\w)][_/.=-])(?=\w)")
_FLOOR = {"svg": ' fill="none" stroke="#555"', "text": ' fill="#222" stroke="none"'}
"""How drawings look where a viewer blocks the style of the page, which has precedence."""
_VOID = ("meta", "link", "input", "br", "hr", "wbr")


def text(value: str) -> Markup:
    """Any text as a part of a page: invisible characters become visible, and nothing acts."""
    return Markup(escape(printable(value)))


def el(name: str, attributes: dict[str, str | float | bool] | str = "", *children: Child) -> Markup:
    """An element. `attributes`: a dictionary, or the class. True: without a value; False: left out."""
    given = {"class": attributes} if isinstance(attributes, str) else attributes
    head = "".join(
        _attribute(key, value) for key, value in given.items() if value is not False and value != ""
    )
    if name in _VOID:
        return Markup(f"<{name}{head}>")
    return Markup(f"<{name}{head}{_FLOOR.get(name, '')}>{join(children)}</{name}>")


def join(children: Iterable[Child], between: str = "") -> Markup:
    """Parts one after the other."""
    parts = (c if isinstance(c, Markup) else text(c) for c in children if c is not None)
    return Markup(between.join(parts))


def breakable(value: str) -> Markup:
    """Text whose long names and paths a narrow screen breaks behind a sign, and not within a word."""
    words = (_JOINT.split(word) if len(word) > _LONG_NAME else [word] for word in value.split(" "))
    return join((join(parts, "<wbr>") for parts in words), " ")


def _attribute(name: str, value: str | float | bool) -> str:
    if value is True:
        return f" {name}"
    shown = f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
    return f' {name}="{text(" ".join(shown.split(chr(10))))}"'


def table(
    caption: str, head: Iterable[str], rows: Iterable[Iterable[Child]], row_class: str = ""
) -> Markup:
    """A table with a caption that a screen reader announces."""
    return el(
        "div", {"class": "scroll", "tabindex": 0, "role": "region", "aria-label": caption},
        el(
            "table", "",
            el("caption", "", caption),
            el("thead", "", el("tr", "", *(el("th", {"scope": "col"}, h) for h in head))),
            el("tbody", "", *(el("tr", row_class, *map(_cell, row)) for row in rows)),
        ),
    )  # fmt: skip


def _cell(content: Child) -> Markup:
    """A cell: a short one is one line, and a word is broken only if it is too long for a column."""
    words = content or ""
    is_long = any(len(word) > _LONG_WORD for word in words.split())
    return el("td", "long" if is_long else "text" if len(words) > _LONG_WORD else "", content)


def folded(summary: Child, *children: Child, is_open: bool = False, name: str = "") -> Markup:
    """A part that the reader unfolds."""
    return el("details", {"class": name, "open": is_open}, el("summary", "", summary), *children)

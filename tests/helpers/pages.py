"""A page's elements, attributes and text, as a parser of the standard library sees them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "input", "br", "hr", "wbr"}
ELEMENTS = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "script",
        "header",
        "main",
        "footer",
        "section",
    ),
    *(
        "article",
        "div",
        "span",
        "p",
        "a",
        "b",
        "code",
        "pre",
        "mark",
        "time",
        "var",
        "h1",
        "h2",
        "h3",
        "h4",
    ),
    *("ul", "ol", "li", "details", "summary", "figure", "figcaption", "label", "input", "output"),
    *("table", "caption", "thead", "tbody", "tr", "th", "td"),
    "wbr",
    *("svg", "symbol", "g", "path", "rect", "circle", "text", "use", "title"),
}
ATTRIBUTES = {
    *(
        "lang",
        "charset",
        "http-equiv",
        "content",
        "name",
        "id",
        "class",
        "href",
        "rel",
        "hidden",
        "open",
    ),
    *("role", "for", "type", "placeholder", "autocomplete", "tabindex", "scope"),
    *("aria-label", "aria-labelledby", "aria-hidden", "viewbox", "width", "height", "overflow"),
    *("fill", "stroke", "stroke-width", "display"),
    *("x", "y", "cx", "cy", "r", "rx", "d", "start"),
}
_COLOURLESS = re.compile(r"[\s\u00a0]+")


@dataclass
class Page(HTMLParser):
    """What a page contains, and what is wrong with it."""

    source: str
    problems: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    references: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    _level: int = 0
    _open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.feed(self.source)
        self.close()
        if self._open:
            self.problems.append(f"not closed: {self._open}")
        doubles = {name for name in self.ids if self.ids.count(name) > 1}
        self.problems += [f"id {name} twice" for name in sorted(doubles)]
        missing = set(self.references) - set(self.ids)
        self.problems += [f"reference to {name}, which is missing" for name in sorted(missing)]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if len(tag) == 2 and tag[0] == "h" and tag[1].isdigit():
            if int(tag[1]) > self._level + 1:
                self.problems.append(
                    f"{tag} follows h{self._level}: a reader of headings misses one"
                )
            self._level = int(tag[1])
        if tag not in ELEMENTS:
            self.problems.append(f"element {tag}")
        names = [name for name, _ in attrs]
        if len(names) != len(set(names)):
            self.problems.append(f"{tag} has an attribute twice: {names}")
        for name, value in attrs:
            if name not in ATTRIBUTES:
                self.problems.append(f"attribute {name} of {tag}")
            self._refers(tag, name, value or "")
        if tag not in VOID:
            self._open.append(tag)

    def _refers(self, tag: str, name: str, value: str) -> None:
        if name == "id":
            self.ids.append(value)
        elif name in ("aria-labelledby", "for"):
            self.references += value.split()
        elif name == "href" and value.startswith("#"):
            self.references.append(value[1:])
        elif name == "href":
            self.links.append(value)
            if tag != "a" or not value.startswith("https://"):
                self.problems.append(f"{tag} leads to {value}")

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.problems.append(f"</{tag}> ends nothing")

    def handle_data(self, data: str) -> None:
        if not self._open and data.strip():
            self.problems.append(f"text outside of the page: {data[:40]}")
        if not self._open or self._open[-1] not in ("style", "script"):
            self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.problems.append(f"comment {data[:40]}")

    def handle_pi(self, data: str) -> None:
        self.problems.append(f"instruction {data[:40]}")

    def unknown_decl(self, data: str) -> None:
        self.problems.append(f"declaration {data[:40]}")

    @property
    def text(self) -> str:
        """The visible text with single blanks."""
        return _COLOURLESS.sub(" ", "".join(self.texts))

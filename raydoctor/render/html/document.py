"""The frame of a page: its policy, its style and its script.

The policy lets nothing in but this style and this script, by their hashes: what a log contains could not run
even if it were not escaped, and the page contacts nothing.
"""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib import resources

from raydoctor.model.version import __version__
from raydoctor.render.html.markup import Child, Markup, el


def document(title: str, *body: Child) -> str:
    """A whole page with this title and content."""
    style, script = _asset("style.css"), _asset("script.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    head = el(
        "head", "",
        el("meta", {"charset": "utf-8"}),
        el("meta", {"http-equiv": "Content-Security-Policy", "content": policy}),
        el("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        el("meta", {"name": "color-scheme", "content": "light dark"}),
        el("meta", {"name": "referrer", "content": "no-referrer"}),
        el("meta", {"name": "generator", "content": f"raydoctor {__version__}"}),
        el("title", "", title),
        el("style", "", Markup(style)),
    )  # fmt: skip
    end = el("script", "", Markup(script))
    page = el("html", {"lang": "en"}, head, el("body", "", *body, end))
    return f"<!DOCTYPE html>\n{page}\n"


@cache
def _asset(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return f"sha256-{b64encode(sha256(content.encode()).digest()).decode()}"

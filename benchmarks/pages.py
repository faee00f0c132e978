"""The pages of all fixtures in a browser: size, messages, requests, overflow, overlaps.

At 1280 px light, at 390 px dark, and as they are printed on A4 across.

    python -m benchmarks.pages            # all fixtures, some minutes
    python -m benchmarks.pages oom        # fixtures with such a name

Prints each problem, and exits 1 if there is any. The suite looks at a sample.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from raydoctor.capture.open import open_capture
from raydoctor.cli import execute
from raydoctor.diagnosis import engine
from raydoctor.model.errors import RaydoctorError
from raydoctor.render.html.report import render
from tests.helpers import FIXTURES
from tests.helpers.browser import Browser, browser
from tests.helpers.captures import capture_of

MOST = 400_000
"""Bytes of a page."""
_PAPER = 1032
"""Pixels of A4 across, without the margins of 12 mm."""
_OUTSIDE = """[...document.querySelectorAll('body *')].filter(e => {
    if (e.closest('.chart, .scroll, .symbols, .skip, pre')) return false;
    const box = e.getBoundingClientRect();
    return box.width && (box.right > innerWidth + 1 || box.left < -1);
}).map(e => e.tagName + ' ' + e.textContent.slice(0, 60))"""

_OVERLAPS = """[...document.querySelectorAll('.chart svg')].filter(e => e.clientWidth).flatMap(svg => {
    const frame = svg.getBoundingClientRect();
    const boxes = [...svg.querySelectorAll('text')].map(e => [e, e.getBoundingClientRect()]);
    const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1.5
        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3.5;
    const found = boxes.filter(([, b]) => b.left < frame.left - 1 || b.right > frame.right + 8)
        .map(([e]) => 'cut: ' + e.textContent);
    boxes.forEach(([e, a], n) => boxes.slice(n + 1).forEach(([f, b]) => {
        if (meet(a, b)) found.push(e.textContent + ' | ' + f.textContent);
    }));
    return found;
})"""
"""Texts of charts that cover each other, or that their chart cuts."""


def problems(tab: Browser, page: Path) -> Iterator[str]:
    """What is wrong with a page."""
    if page.stat().st_size > MOST:
        yield f"{page.stat().st_size:,} bytes"
    for width in (1280, 390, _PAPER):
        tab.show(page, width, dark=width == 390)
        if width == _PAPER:
            tab.emulate(medium="print")
            tab.value("dispatchEvent(new Event('beforeprint'))")
        if tab.messages:
            yield f"{width}: console: {tab.messages[0][:300]}"
        if tab.requests != [page.as_uri()]:
            yield f"{width}: requests: {tab.requests}"
        if (wide := tab.value("document.documentElement.scrollWidth")) > width:
            yield f"{width}: the page is {wide} wide"
        if outside := tab.value(_OUTSIDE):
            yield f"{width}: outside: {outside[:3]}"
        if overlaps := tab.value(_OVERLAPS):
            yield f"{width}: texts of a chart overlap: {overlaps[:3]}"


def written(fixture: Path, folder: Path) -> Iterator[Path]:
    """The pages of a fixture: of its diagnosis and, for a hang, of `hung`."""
    page = folder / f"{fixture.name}.html"
    with open_capture(str(capture_of(fixture))) as capture:
        page.write_text(render(engine.run(capture, detailed=True)))
    yield page
    if fixture.name.startswith("live-hung"):
        page = folder / f"{fixture.name}.hung.html"
        with contextlib.redirect_stderr(io.StringIO()):
            execute(["hung", str(capture_of(fixture)), "--format", "html", "-o", str(page)])
        yield page


def main() -> int:
    """Look at all pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", default="")
    wanted = parser.parse_args().name
    count = largest = bad = 0
    with browser() as tab, tempfile.TemporaryDirectory() as name:
        for fixture in sorted(each for each in FIXTURES.glob("*--ray-*") if wanted in each.name):
            try:
                pages = list(written(fixture, Path(name)))
            except RaydoctorError as error:
                print(f"{fixture.name}: {error.message}")
                continue
            for page in pages:
                count, largest = count + 1, max(largest, page.stat().st_size)
                for problem in problems(tab, page):
                    bad += 1
                    print(f"{page.stem}: {problem}")
    print(f"{count} pages, the largest {largest:,} bytes, {bad} problems")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

"""Reports with hostile text in every place where a page for a browser shows text of a capture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from raydoctor.model.timeline import Lane, Neighbours, Timeline, TimelineMark, UsageReading
from raydoctor.model.values import Report
from raydoctor.render.html import timeline
from tests.helpers import hostile_text

AT = 1795440332.0
PWNED = "window.__pwned=1"
ATTACKS = tuple(
    piece.replace("!", PWNED)
    for piece in (
        *("<script>!</script>", "</script><script>!</script>", "</title><script>!</script>"),
        *(
            "</style><script>!</script>",
            "</textarea><script>!</script>",
            "<scr<script>ipt>!</script>",
        ),
        *("<img src=x onerror=!>", "<svg onload=!>", "<svg><script>!</script></svg>"),
        *("</svg><img src=x onerror=!>", "<svg><animate onbegin=! attributeName=x dur=1s>"),
        *("<svg><use href='data:image/svg+xml,<svg id=x onload=!/>#x'/>", "<body onload=!>"),
        *("<svg><foreignObject><iframe srcdoc='<script>!</script>'/></foreignObject></svg>",),
        *("<math><mtext><table><mglyph><style><img src=x onerror=!>",),
        *(
            "<iframe src='javascript:!'>",
            "<object data='javascript:!'>",
            "<embed src='javascript:!'>",
        ),
        *(
            "<a href='javascript:!' autofocus onfocus=!>x</a>",
            "<form action='javascript:!'><button>",
        ),
        *("<input autofocus onfocus=!>", "<details open ontoggle=!>", "<video><source onerror=!>"),
        *(
            "<style>@import 'http://127.0.0.1:9/x'</style>",
            "<link rel=stylesheet href=http://127.0.0.1:9/x>",
        ),
        *("<base href='javascript:!//'>", "<meta http-equiv=refresh content='0;url=javascript:!'>"),
        *(
            '" onmouseover="!',
            "' autofocus onfocus='!",
            "` onclick=`!",
            'x" style="background:url(x)',
        ),
        *('"><svg onload=!>', "'><svg onload=!>", "--><script>!</script>", "]]><script>!</script>"),
        *("<!--<script>!</script>", "<![CDATA[<script>!</script>]]>", "<?php !?>", "<%! %>"),
        *(
            "&lt;script&gt;!&lt;/script&gt;",
            "&#60;script&#62;!&#60;/script&#62;",
            "\\u003cscript\\u003e!",
        ),
        *("\x3cscript\x3e!\x3c/script\x3e", "<\x00script>!</script>", "<script\x0c>!</script>"),
        *(
            "javascript:!",
            "data:text/html,<script>!</script>",
            "vbscript:!",
            'https://x" onclick="!',
        ),
        *(
            "https://evil.example/<script>!</script>",
            "expression(!)",
            "url(javascript:!)",
            '#main"onx=!',
        ),
        *("d1", "d1-fix", "main", "q", "timeline-title", "k-kill", "__proto__", "constructor"),
        *("\u202e<script>!</script>", "\u200b<img src=x onerror=!>", "\x1b[31m<script>!</script>"),
        *("\ud800<script>!</script>", "\udc80<img src=x onerror=!>", "\ufeff<svg onload=!>"),
        *(
            "<template><script>!</script></template>",
            "<noscript><p title='</noscript><img src=x onerror=!>'>",
        ),
        *(
            "<plaintext>",
            "<xmp>",
            "<frameset onload=!>",
            "<marquee onstart=!>",
            "<isindex action=javascript:!>",
        ),
    )
)
HOSTILE = (*ATTACKS, *hostile_text.CORPUS)


def hostile_report(text: str) -> Report:
    """A report with this text wherever a page shows text of a capture."""
    report = hostile_text.report(text)
    diagnoses = tuple(
        replace(
            each,
            chain=tuple(
                replace(link, around=Neighbours(text, text), code=text) for link in each.chain
            ),
        )
        for each in report.diagnoses
    )
    lanes = (
        Lane("cluster", "cluster", text),
        Lane(text, "node", text, "", AT, None, text),
        Lane(f"{text}-1", "process", text, text, AT, AT + 60),
    )
    kinds = timeline.WORDS
    marks = tuple(
        TimelineMark(
            lane.id,
            kind,
            text,
            AT + 5 * n,
            AT + 5 * n + 3 if kind == "silent" else None,
            n + 1,
            ("d1",),
        )
        for lane in lanes
        for n, kind in enumerate(kinds)
    )
    readings = tuple(
        UsageReading(text, what, text, AT + n, 4e9 + n, 5e9, 4.5e9)
        for what in ("memory", "object store", "disk")
        for n in range(3)
    )  # fmt: skip
    return replace(report, diagnoses=diagnoses, timeline=Timeline(lanes, marks, readings))


def joined(texts: Sequence[str]) -> Report:
    """One report of several."""
    reports = [hostile_report(text) for text in texts]
    timelines = [report.timeline or Timeline() for report in reports]
    diagnoses = [
        replace(d, id=f"{d.id}-{n}", consequences=tuple(f"{c}-{n}" for c in d.consequences))
        for n, report in enumerate(reports)
        for d in report.diagnoses
    ]
    return replace(
        reports[0],
        diagnoses=tuple(diagnoses),
        unexplained=tuple(u for report in reports for u in report.unexplained),
        gaps=tuple(gap for report in reports for gap in report.gaps),
        timeline=Timeline(
            tuple(lane for each in timelines for lane in each.lanes),
            tuple(mark for each in timelines for mark in each.marks),
            tuple(reading for each in timelines for reading in each.readings),
        ),
    )

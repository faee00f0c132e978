"""Text that tries to break out of a format: what a log, a name of a task or a file may contain.

`CORPUS` holds each piece alone, and inside a sentence, after a line break and between quotation marks, because
most formats end an element only at certain places.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.model.values import (
    CaptureInfo,
    Diagnosis,
    Event,
    Gap,
    Link,
    Remedy,
    Report,
    Source,
    Stats,
    Subject,
    Unexplained,
)

_PIECES = {
    "workflow commands": (
        "::set-output name=token::1",
        "::add-mask::raydoctor",
        "::error file=a.py,line=1::pwned",
        "::stop-commands::x",
        "##[command]rm -rf /",
        "##[add-mask]a",
        "%0A::set-env name=PATH::/tmp",
        "%250A::warning::x",
        "title=a,file=b::c",
        "\r::save-state name=a::b",
    ),
    "xml": (
        "]]>",
        "<![CDATA[x]]>",
        "<!-- -->",
        "<!DOCTYPE x [<!ENTITY a SYSTEM 'file:///etc/passwd'>]>&a;",
        "&lt;&amp;&#0;&#x1b;",
        "</failure></testcase><testcase name='x'/>",
        "<?xml version='1.0'?>",
        "\x00\x01\x08\x0b\x0c\x0e\x1f",
        "\ufffe\uffff",
        "\ud800 lone",
        "a\tb\x85c\u2028d\u2029e",
    ),
    "html": (
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "<svg/onload=alert(1)>",
        "</script><script>alert(1)//",
        "</style><style>*{display:none}",
        "</title></pre></textarea><b>",
        "javascript:alert(1)",
        "data:text/html,<script>alert(1)</script>",
        "\"><a href='//evil.example'>",
        "' onmouseover='alert(1)",
        "<iframe srcdoc='<b>'>",
        "<base href=//evil.example>",
        "&#60;script&#62;",
        "<meta http-equiv=refresh content='0;url=//evil.example'>",
    ),
    "markdown": (
        "```\n# heading\n```",
        "~~~\n- item",
        "[link](https://evil.example)",
        "![image](https://evil.example/x.png)",
        "@everyone #1 GH-2",
        "| a | b |",
        "<details open>",
        "$\\href{javascript:alert(1)}{x}$",
        "- [ ] task",
        "[//]: # (comment)",
    ),
    "prometheus": (
        'a"} 1\nfake_metric 2',
        "a\\",
        'rule="x",rule="y"',
        "# HELP raydoctor_up x",
        "# EOF",
        "a 1 1795440332\n",
        "{job='x'}",
    ),
    "terminal": (
        "\x1b[2J\x1b[H",
        "\x1b]0;title\x07",
        "\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\",
        "\x9b31m",
        "back\x08\x08space",
        "over\rwritten",
        "\x1bP+q\x1b\\",
        "\u202eexe.txt",
        "\u2066a\u2069",
        "zero\u200bwidth\ufeff",
        "\U000e0041tag",
        "e" + "\u0301" * 50,
        "\u3164\u115f",
    ),
    "templates": (
        "{0} {1} {{x}}",
        "%s %n %d %(x)s",
        "${PATH} $(id) `id`",
        "{{ 7*7 }} {% x %}",
        "[text](1) \\[x\\]",
        '", "ruleId": "x',
        "\\u0000 \\",
        "'; DROP TABLE x; --",
        "../../etc/passwd",
        "file:///etc/passwd",
        "C:\\x\\..\\y",
        "a?b#c%2e%2e/",
        "",
        " ",
        "\n\n\n",
        "x" * 5_000,
        "😀 ünïcode 中文",
    ),
}
CORPUS: tuple[str, ...] = tuple(
    dict.fromkeys(
        shaped
        for pieces in _PIECES.values()
        for piece in pieces
        for shaped in (piece, f"task {piece} failed", f"\n{piece}", f"\"{piece}'")
    )
)


def reports() -> Iterator[tuple[str, Report]]:
    """Each text of the corpus, and a report that has it in every place where a capture's text appears."""
    for text in CORPUS:
        yield text, report(text)


def report(text: str) -> Report:
    """A report with two roots, a consequence, an unexplained error and missing evidence, all of this text."""
    event = Event(
        "x", Source(f"logs/{text}", "raylet-out", text), 3, 0, text, text, at=1795440332.5
    )
    remedies = (Remedy(text, (text, f"run {text}"), "safe", text),)
    made = [
        Diagnosis(
            f"d{number}",
            "task-exception",
            "root",
            "error",
            text,
            number,
            (Link(event, text, text),),
            remedies,
            (Subject("task", text, text, 7, text),),
            (Gap(text, text, text),),
            ("d2",) if number == 1 else (),
        )
        for number in (1, 2, 3)
    ]
    return Report(
        CaptureInfo(text, "logs", (text,), (), 1795440300.0, 1795440400.0, 3, 4096),
        tuple(made),
        (Unexplained("log.error", f"logs/{text}", 4, text, 2),),
        (Gap(text, text, text),),
        Stats(0.1, 1, 1, 1),
    )

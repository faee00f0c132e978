"""A name for a cause that is the same in two runs of one program: for code scanning, and for incidents.

What goes in: the rule, and the words of the headline, which states the cause with the names of the program's
functions, classes and files, its exception and its message. The place in the program (`train.py:33`), an
exit code and a requested amount are kept, because another one is another cause.

What does not: ids, pids, addresses, ports, times, sizes, counts, folders, versions, and the order and number
of the words. A headline that a later raydoctor words differently gets another fingerprint.
"""

from __future__ import annotations

from hashlib import sha256

from raydoctor.model.patterns import pattern
from raydoctor.model.values import Diagnosis

_FOLDS = (
    (pattern(r"^\d+ × "), ""),
    (pattern(r" \(pid \d+\)"), ""),
    (pattern(r"\blocalhost\b"), "#"),
    (
        pattern(r"(?<![\w.])(?:/[^/\s'\"()]+)*/(?=[^/\s])"),
        "",
    ),  # only the last part of a path is compared
    (pattern(r"raysubmit_[A-Za-z0-9]+"), "#"),
    (pattern(r"\b(?=[0-9a-f]*\d)[0-9a-f]{5,}(?:-[0-9a-f]{4,})*\b"), "#"),
    (pattern(r"(?<=_)(?=[0-9a-f]*\d)[0-9a-f]{5,}(?![^\W_])"), "#"),
    (pattern(r"\b\d+(?:[.,:_-]\d+)*(?:\s?(?:[kKMGT]i?B|B|ms|s|min|h|%)(?!\w))?"), "#"),
)
"""Parts of a name that differ between runs."""
_KEPT = (
    (pattern(r"(\.py):(\d+)"), r"\1_line_\2"),
    (pattern(r"\b(exit code|Errno|needs) (\d[\d.]*)"), r"\1_\2"),
)
"""Numbers that belong to the cause, written as a part of a word."""
_WORD = pattern(r"\w(?:[\w.+-]*\w)?")
_PLURAL = {"was": "be", "were": "be", "is": "be", "are": "be", "has": "have", "its": "their"}
_PLAIN = frozenset(["a", "an", "the", "and", "each", "at", "about", "up", "to", "least", "later"])
"""Words that belong to a number, or that only connect others."""


def folded(text: str) -> str:
    """A name or sentence without ids, pids, folders, numbers and sizes, which become `#`."""
    for what, by in _FOLDS:
        text = what.sub(by, text)
    return text


def fingerprint(diagnosis: Diagnosis) -> str:
    """32 hexadecimal digits: equal for the same cause in another run, different for another cause."""
    return of_cause(diagnosis.rule, diagnosis.headline)


def of_cause(rule: str, headline: str) -> str:
    """The fingerprint of a diagnosis with this rule and headline."""
    text = headline
    for what, by in _KEPT:
        text = what.sub(by, text)
    words = {_singular(word) for word in _WORD.findall(folded(text))} - _PLAIN
    return sha256("\n".join((rule, *sorted(words))).encode()).hexdigest()[:32]


def _singular(word: str) -> str:
    """A word of which one and several are equal: a count differs between runs."""
    if word in _PLURAL:
        return _PLURAL[word]
    if word.endswith("sses"):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") and len(word) > 3 else word

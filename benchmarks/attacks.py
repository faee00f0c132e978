"""Texts that make a regular expression slow, derived from the expression itself.

A backtracking matcher is slow where two parts of a pattern can take the same characters, or where a
search begins again at every repetition of the pattern's head. So each attack repeats what one of the
pattern's repetitions takes, what precedes it, or almost all of a match, and never completes the match.
"""

from __future__ import annotations

import re
import string
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    from re import _constants as sre  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
else:
    import sre_constants as sre
    import sre_parse as parser

_MANY = 20
"""Repetitions from which on a part of a pattern counts as one that an attacker can feed."""
_ALPHABET = "aA0 :./'\"=,(){}[]<>-_\t\n|\\^~\x00é" + string.ascii_letters + string.digits
_CATEGORIES = {
    sre.CATEGORY_DIGIT: "0",
    sre.CATEGORY_WORD: "a",
    sre.CATEGORY_SPACE: " ",
    sre.CATEGORY_NOT_DIGIT: "a",
    sre.CATEGORY_NOT_WORD: " ",
    sre.CATEGORY_NOT_SPACE: "a",
}


class Attack(NamedTuple):
    """A text of any length: `head`, `unit` as often as fits, `tail`."""

    name: str
    head: str
    unit: str
    tail: str = ""

    def text(self, size: int) -> str:
        """The text with about that many characters."""
        room = max(0, size - len(self.head) - len(self.tail))
        return f"{self.head}{self.unit * (room // max(1, len(self.unit)))}{self.tail}"


def attacks(pattern: str, flags: int = 0, literal: str = "", sample: str = "") -> Iterator[Attack]:
    """Every attack on a pattern, each once."""
    seen = set()
    for attack in (*_by_words(literal, sample), *_by_parts(pattern, flags)):
        if attack.unit and attack[1:] not in seen:
            seen.add(attack[1:])
            yield attack


def _by_words(literal: str, sample: str) -> Iterator[Attack]:
    """Repetitions of the literal and of the sample, whole and cut short."""
    if not literal:
        return
    begin, found, _ = sample.partition(literal)
    yield Attack("literal repeated", "", literal)
    yield Attack("literal and blanks", "", f"{literal} ")
    yield Attack("sample repeated", "", sample)
    yield Attack("sample cut short, repeated", "", sample[:-1])
    yield Attack("sample, its last word repeated", sample, " " + sample.rsplit(maxsplit=1)[-1])
    if found:
        yield Attack("sample up to its literal, repeated", "", begin + found)
        for char in "a0 \n":
            yield Attack(f"literal and {char!r} repeated", begin + found, char)
            yield Attack(f"sample and {char!r} repeated", sample, char, "\x00")


def _by_parts(pattern: str, flags: int) -> Iterator[Attack]:
    """For each repetition in the pattern: what it takes, behind what must precede it."""
    tree = parser.parse(pattern, flags & ~re.UNICODE if flags else 0)
    whole = _example(tree)
    yield Attack("almost a match, repeated", "", whole[:-1])
    yield Attack("a match, repeated", "", whole)
    for head, body, rest in _repetitions(tree, ""):
        chars = _accepted(body, _follow(rest))
        for char in chars:
            yield Attack(f"{char!r} repeated", head, char, "\x00")
            yield Attack(f"{char!r} repeated, then almost the rest", head, char, rest[:-1])
            yield Attack(f"head and {char!r}, repeated", "", f"{head}{char}")
            yield Attack(f"short runs of {char!r}", head, f"{char * 9}\x01", "")
        yield Attack("head repeated", "", head)
        yield Attack("almost the rest, repeated", head, rest[:-1])
        yield Attack("a match cut after a repetition, repeated", "", head + chars[0] + rest[:-1])


def _follow(rest: str) -> str:
    """Characters with which the rest begins: a repetition that takes them, too, must try them all."""
    return rest[:1]


def _repetitions(tree: Any, head: str) -> Iterator[tuple[str, Any, str]]:
    """(example of what precedes, body, example of what follows) of each long repetition."""
    items = list(tree)
    for number, (code, value) in enumerate(items):
        rest = "".join(_one(*item) for item in items[number + 1 :])
        for body_head, body, body_rest in _inside(code, value):
            yield head + body_head, body, body_rest + rest
        head += _one(code, value)


def _inside(code: Any, value: Any) -> Iterator[tuple[str, Any, str]]:
    if code in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        _, most, body = value
        if most >= _MANY:
            yield "", body, ""
        yield from _repetitions(body, "")
    elif code is sre.SUBPATTERN:
        yield from _repetitions(value[-1], "")
    elif code is sre.BRANCH:
        for branch in value[1]:
            yield from _repetitions(branch, "")


def _accepted(body: Any, extra: str) -> list[str]:
    """Short texts that a repetition's body takes, of different kinds."""
    items = list(body)
    whole = _example(body)
    if len(items) != 1 or items[0][0] in (sre.BRANCH, sre.SUBPATTERN, sre.MAX_REPEAT):
        return [whole or "a", f"{whole}{whole[-1:]}" or "a"]
    wanted = [*extra, *"a0 \n:/'\"=,(."]
    taken = [char for char in wanted if _takes(items[0], char)]
    return list(dict.fromkeys([*taken, whole]))[:7] if whole else taken[:7] or ["a"]


def _takes(item: tuple[Any, Any], char: str) -> bool:
    code, value = item
    if code is sre.ANY:
        return True
    if code is sre.LITERAL:
        return chr(value) == char
    if code is sre.NOT_LITERAL:
        return chr(value) != char
    return code is sre.IN and _in_set(value, char)


def _in_set(members: Sequence[tuple[Any, Any]], char: str) -> bool:
    negated = bool(members) and members[0][0] is sre.NEGATE
    return negated != any(_is_member(code, value, char) for code, value in members)


def _is_member(code: Any, value: Any, char: str) -> bool:
    if code is sre.LITERAL:
        return chr(value) == char
    if code is sre.RANGE:
        return value[0] <= ord(char) <= value[1]
    if code is sre.CATEGORY:
        kinds = {
            sre.CATEGORY_DIGIT: char.isdigit(),
            sre.CATEGORY_SPACE: char.isspace(),
            sre.CATEGORY_WORD: char.isalnum() or char == "_",
            sre.CATEGORY_NOT_DIGIT: not char.isdigit(),
            sre.CATEGORY_NOT_SPACE: not char.isspace(),
            sre.CATEGORY_NOT_WORD: not (char.isalnum() or char == "_"),
        }
        return kinds.get(value, False)
    return False


def _example(tree: Any) -> str:
    """A text that the pattern takes, as far as that is known without trying."""
    return "".join(_one(code, value) for code, value in tree)


def _one(code: Any, value: Any) -> str:  # noqa: PLR0911 - one case per kind of node
    if code is sre.LITERAL:
        return chr(value)
    if code is sre.NOT_LITERAL:
        return "b" if value == ord("a") else "a"
    if code is sre.ANY:
        return "a"
    if code is sre.IN:
        return next((char for char in _ALPHABET if _in_set(value, char)), "a")
    if code is sre.CATEGORY:
        return _CATEGORIES.get(value, "a")
    if code is sre.SUBPATTERN:
        return _example(value[-1])
    if code is sre.BRANCH:
        return _example(value[1][0])
    if code in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        least, most, body = value
        return _example(body) * max(least, 1 if most >= _MANY else 0)
    return ""

"""Decodes a text and maps offsets back: colours, escapes, URL codes, HTML, base64, UTF-16.

A view is a decoded copy of a text that records the origin of each of its bytes, so that a secret found in the
copy can be replaced in the original. Decoding is repeated (JSON in a string in JSON) up to `DEPTH` times.
"""

from __future__ import annotations

import base64
import binascii
import bisect
import re
import sys
from collections.abc import Callable, Iterator

from raydoctor.model.patterns import pattern
from raydoctor.redact.span import Span

DEPTH = 5
"""Levels of nested encodings that are decoded: enough for three levels of JSON, URL codes and base64."""
_MOST, _OVERLAP = 1 << 18, 1 << 12
"""Bytes of a line that are decoded at once, and of those that are decoded again with what follows."""


class DecodedView:
    """A decoded copy of a text. `data` is the copy."""

    __slots__ = ("_ends", "_origins", "_plain", "_starts", "data")

    def __init__(self, pieces: list[tuple[bytes, int, int]]) -> None:
        """`pieces`: bytes of the copy, with start and end of their origin."""
        self.data = b"".join([piece[0] for piece in pieces])
        self._starts: list[int] = []
        self._origins = [piece[1] for piece in pieces]
        self._ends = [piece[2] for piece in pieces]
        self._plain = [len(piece[0]) == piece[2] - piece[1] for piece in pieces]
        at = 0
        for piece in pieces:
            self._starts.append(at)
            at += len(piece[0])

    def original(self, span: Span) -> Span:
        """The span of the original that corresponds to a span of the copy."""
        first = bisect.bisect_right(self._starts, span.start) - 1
        last = bisect.bisect_right(self._starts, max(span.end - 1, span.start)) - 1
        start, end = self._origins[first], self._ends[last]
        if self._plain[first]:
            start += span.start - self._starts[first]
        if self._plain[last]:
            end = self._origins[last] + span.end - self._starts[last]
        return Span(start, end, span.kind)


def view(
    data: bytes,
    code: re.Pattern[bytes],
    meaning: Callable[[re.Match[bytes]], bytes],
    begin: int = 0,
    stop: int = sys.maxsize,
) -> DecodedView | None:
    """`data` from `begin` to `stop` with each `code` replaced by its meaning; None if there is none."""
    pieces: list[tuple[bytes, int, int]] = []
    at = begin
    for match in code.finditer(data, begin, stop):
        start, end = match.span()
        if start > at:
            pieces.append((data[at:start], at, start))
        if decoded := meaning(match):
            pieces.append((decoded, start, end))
        at = end
    if at == begin:
        return None
    if rest := data[at:stop]:
        pieces.append((rest, at, at + len(rest)))
    return DecodedView(pieces)


def views(line: bytes) -> Iterator[DecodedView]:
    """The decoded copies of a line, one for each encoding in it; of a long line, for each window."""
    for begin in range(0, max(1, len(line) - _OVERLAP), _MOST - _OVERLAP):
        stop = begin + _MOST
        for mark, quick, code, meaning in _CODES:
            if line.find(mark, begin, stop) < 0 or not quick.search(line, begin, stop):
                continue
            if found := view(line, code, meaning, begin, stop):
                yield found


# ---------------------------------------------------------------- colours and invisible characters

_UNSEEN = pattern(
    rb"\x1b(?:\[[0-?]{0,30}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,500}(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>78MDEHc])"
    rb"|\[(?:\d{1,3};){0,6}\d{0,3}m(?![\w\]])"  # a colour whose escape was filtered
    rb"|\[(?:\d{1,3};){1,6}\d{1,3}m|\[(?:[0-9]|[34][0-7]|9[0-7])m"
    rb"|\xe2\x80[\x8b-\x8f\xaa-\xae]|\xe2\x81[\xa0-\xaf]|\xef\xbb\xbf|\xc2\xad"
    rb"|[\xc2-\xf4][\x80-\xbf]{1,3}\x08|[^\x08\n]\x08"  # an overstruck character
)
_BARE_COLOUR = pattern(rb"\[[\d;]{0,24}m")


def seen(line: bytes) -> DecodedView | None:
    """The line without colours and invisible characters; None if it has none."""
    if b"\x1b" in line or b"\b" in line or not line.isascii() or _BARE_COLOUR.search(line):
        return view(line, _UNSEEN, lambda match: b"")
    return None


def without_colours(block: bytes) -> bytes:
    """A block of lines without colours: faster than `seen`, without a mapping back."""
    return _COLOUR.sub(b"", block)


_COLOUR = pattern(rb"\x1b\[[0-9;:?]{0,30}[@-~]")

# ---------------------------------------------------------------- escapes

_ESCAPE = pattern(rb"\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|(033|0|e(?=\[))|([nrtbf\"'\\/]))")
_LETTERS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f"}
_OCTALS = {b"0": b"\0", b"033": b"\x1b", b"e": b"\x1b"}


def _unescaped(match: re.Match[bytes]) -> bytes:
    if match[4]:
        return _LETTERS.get(match[4], match[4])
    if match[3]:
        return _OCTALS[match[3]]
    code = int(match[1] or match[2], 16)
    return chr(code).encode("utf-8", "surrogatepass") if match[1] else bytes((code,))


# ---------------------------------------------------------------- URLs, HTML, UTF-16

_PERCENT = pattern(rb"%([0-9A-Fa-f]{2})")
_ENTITIES = {b"quot": b'"', b"apos": b"'", b"#39": b"'", b"#34": b'"', b"amp": b"&", b"#61": b"="}
_ENTITY = pattern(rb"&(quot|apos|#39|#34|amp|#61);")
_SHELL_QUOTE = pattern(rb"'(?:\"'\"|\\')'")
"""A single quote inside single quotes, as `shlex.join` and `printf %q` write it."""
_WIDE = pattern(rb"(?:[\x09\x20-\x7e]\0){8,}|(?:\0[\x09\x20-\x7e]){8,}")
_WIDE_BYTE = pattern(rb"([\x09\x20-\x7e])\0|\0([\x09\x20-\x7e])")

_CODES: tuple[
    tuple[bytes, re.Pattern[bytes], re.Pattern[bytes], Callable[[re.Match[bytes]], bytes]], ...
]
_CODES = (
    (b"\\", pattern(rb"\\[ux0e\"'\\/nrt]"), _ESCAPE, _unescaped),
    (
        b"%",
        pattern(rb"%(?:25|3[ADFadf]|2[23567CFcf]|40|7[BDbd]|0[Aa])"),
        _PERCENT,
        lambda m: bytes((int(m[1], 16),)),
    ),
    (b"&", _ENTITY, _ENTITY, lambda m: _ENTITIES[m[1]]),
    (b"'", _SHELL_QUOTE, _SHELL_QUOTE, lambda m: b"'"),
    (b"\0", _WIDE, _WIDE_BYTE, lambda m: m[1] or m[2]),
)
"""A byte and a pattern that are present with an encoding, the encoding's pattern, and its decoder."""

# ---------------------------------------------------------------- base64

_CODED = pattern(rb"(?<![\w+/-])[A-Za-z0-9+/_-]{20,}={0,2}(?![\w+/=-])")
_TEXT = bytes((*range(0x20, 0x7F), 9, 10, 13))
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_HEAD = 16
"""Characters of base64 that show whether it encodes a text."""


def may_be_coded(run: bytes) -> bool:
    """Whether the beginning of a run of letters and digits is base64 of a text."""
    head = run[:_HEAD].translate(_URL_SAFE)
    try:
        decoded = base64.b64decode(head[: len(head) // 4 * 4])
    except (binascii.Error, ValueError):
        return False
    return bool(decoded) and not decoded.translate(None, _TEXT)


def coded(line: bytes) -> Iterator[tuple[Span, bytes]]:
    """Each part of a line that is base64 of a text, with the text."""
    for match in _CODED.finditer(line):
        run = match[0].rstrip(b"=")
        if not may_be_coded(run):
            continue
        run = run[: len(run) // 4 * 4 + (len(run) % 4 if len(run) % 4 != 1 else 0)]
        try:
            decoded = base64.b64decode(run.translate(_URL_SAFE) + b"=" * (-len(run) % 4))
        except (binascii.Error, ValueError):
            continue
        if len(decoded.translate(None, _TEXT)) * 20 <= len(decoded):
            yield Span(*match.span(), "base64"), decoded


# ---------------------------------------------------------------- UTF-16 files

SAMPLE = 4096
"""Bytes of a file from which its encoding is determined."""


def wide_encoding(head: bytes) -> str:
    """`utf-16-le` or `utf-16-be` if a file with this beginning is encoded so, else empty."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) and not head.startswith(b"\xff\xfe\0\0"):
        return "utf-16-le" if head[0] == 0xFF else "utf-16-be"
    if len(head) < 16 or b"\0" not in head:
        return ""
    half = len(head) // 2
    even, odd = head[0::2].count(0), head[1::2].count(0)
    if odd > 0.7 * half and even < 0.05 * half:
        return "utf-16-le"
    if even > 0.7 * half and odd < 0.05 * half:
        return "utf-16-be"
    return ""

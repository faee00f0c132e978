"""Secrets that the caller knows, in every way in which they may be written."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote

from raydoctor.redact.span import Span

_SHORT = 8
"""A literal shorter than this counts only where it stands alone, and below `_TINY` not at all."""
_TINY = 4


def variants(secret: str) -> Iterator[bytes]:
    """A secret as it may be written: plain, in JSON, in a repr, in a URL, inside base64."""
    for line in secret.splitlines():
        plain = line.strip()
        if len(plain) < _TINY:
            continue
        raw = plain.encode("utf-8", "surrogateescape")
        yield raw
        yield json.dumps(plain)[1:-1].encode()
        yield json.dumps(plain, ensure_ascii=False)[1:-1].encode("utf-8", "surrogateescape")
        yield repr(plain)[1:-1].encode("utf-8", "surrogateescape")
        yield quote(raw, safe="").encode()
        if len(raw) >= 2 * _SHORT:
            # Where the secret begins in a group of three bytes decides what it looks like; the characters
            # that its neighbours share are left out.
            for skip, lost in ((0, 0), (1, 2), (2, 3)):
                coded = base64.b64encode(b"\0" * skip + raw).rstrip(b"=")
                yield coded[lost : len(coded) - ((skip + len(raw)) % 3 > 0)]


def spans(block: bytes, literals: Mapping[bytes, bytes]) -> Iterator[Span]:
    """Where a block holds one of these; a short one counts only as a word of its own."""
    for literal in literals:
        at = block.find(literal)
        while at >= 0:
            end = at + len(literal)
            around = block[max(0, at - 1) : at] + block[end : end + 1]
            if len(literal) >= _SHORT or not re.search(rb"\w", around):
                yield Span(at, end, "given")
            at = block.find(literal, end)

"""Secrets that the caller passes, in all encodings that are recognized."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote

from raydoctor.redact.span import Span

_SHORT = 8
"""A shorter literal counts only as a separate word, and one shorter than `_TINY` does not count."""
_TINY = 4


def variants(secret: str) -> Iterator[bytes]:
    """The encodings of a secret: plain, in JSON, in a repr, in a URL, inside base64."""
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
            # The encoding depends on the secret's offset in a group of three bytes; characters that also
            # depend on neighbouring bytes are left out.
            for skip, lost in ((0, 0), (1, 2), (2, 3)):
                coded = base64.b64encode(b"\0" * skip + raw).rstrip(b"=")
                yield coded[lost : len(coded) - ((skip + len(raw)) % 3 > 0)]


def spans(block: bytes, literals: Mapping[bytes, bytes]) -> Iterator[Span]:
    """Occurrences of these literals in a block; short ones count only as separate words."""
    for literal in literals:
        at = block.find(literal)
        while at >= 0:
            end = at + len(literal)
            around = block[max(0, at - 1) : at] + block[end : end + 1]
            if len(literal) >= _SHORT or not re.search(rb"\w", around):
                yield Span(at, end, "given")
            at = block.find(literal, end)

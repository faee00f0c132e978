"""Addresses and names of hosts, for anonymous captures."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from raydoctor.model.patterns import pattern
from raydoctor.redact.span import Span

_IPV4 = pattern(rb"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)")
_IPV4_DASHED = pattern(rb"(?<![\w.-])ip-\d{1,3}(?:-\d{1,3}){3}(?:\.[a-z][\w.-]*[a-z])?(?![\w-])")
_IPV6 = pattern(
    rb"(?<![\w:.)>])(?=[0-9A-Fa-f]*:)(?:[0-9A-Fa-f]{0,4}:){2,7}"
    rb"(?:[0-9A-Fa-f]{1,4}|(?:\d{1,3}\.){3}\d{1,3})?(?![\w:])"
)
_VERSION_BEFORE = pattern(rb"(?i)(?:[=<>~!]=|[<>]|version[\"'\s:=]{0,4}|\bv|\bray |[a-z0-9]-)$")


def spans(block: bytes, hosts: re.Pattern[bytes] | None) -> Iterator[Span]:
    """Addresses and names of hosts, except those that every machine has."""
    for match in _IPV4.finditer(block):
        before = block[max(0, match.start() - 12) : match.start()]
        if _is_someones(match[0]) and not _VERSION_BEFORE.search(before):
            yield Span(*match.span(), "ip")
    for match in _IPV6.finditer(block):
        if any(digit in match[0] for digit in b"0123456789") and _is_someones(match[0]):
            yield Span(*match.span(), "ip")
    for shape in (_IPV4_DASHED, hosts):
        for match in shape.finditer(block) if shape else ():
            yield Span(*match.span(), "host")


@lru_cache(maxsize=4096)
def _is_someones(address: bytes) -> bool:
    try:
        ip = ipaddress.ip_address(address.decode())
    except ValueError:
        return False
    return not (ip.is_loopback or ip.is_unspecified or address.startswith(b"255.255."))


def any_of(words: Iterable[str]) -> re.Pattern[bytes] | None:
    """A pattern that matches any of these host names; None if there are none."""
    listed = sorted(
        {w.encode() for w in words if w not in ("", "localhost")}, key=len, reverse=True
    )
    named = b"|".join(re.escape(word) for word in listed)
    return re.compile(rb"(?<![\w.-])(?:" + named + rb")(?![\w-])") if listed else None

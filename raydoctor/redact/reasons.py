"""Selects lines that may hold a secret, by literals and by runs of characters that may be a token.

Regular expressions are only applied to these lines. Runs are found in a translated copy, in which a run is a
literal (`bytes.find`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, chain

from raydoctor.model.patterns import pattern
from raydoctor.redact import shapes
from raydoctor.redact.decode import may_be_coded

WORDS = (
    *b"token secret pass credential key auth cookie signature sig= bearer _pat env_vars".split(),
    *b"curl @ pw psk $ data: n_string n-string nstring mnemonic redis- smbclient login openssl".split(),
    *b"--user --proxy --cred creds= _creds -creds salt otp sessid= sessionid connect.sid".split(),
    *b"samlresponse code_verifier code-verifier phrase setuser fernet( jwt.encode jwt.decode".split(),
    *b"minio( hmac.new( mac= aes.new( hook snmp freerdp code=".split(),
    *(
        b" -p",
        b" -w",
        b" -u ",
        b" -a ",
        b'"kty',
        b"echo ",
        b"alias set",
        b"seed words",
        b"identified by",
    ),
)
"""Lower-case words; each line with one of them is examined."""
_LOWER = bytes(c + 32 if 65 <= c <= 90 else c for c in range(256))
_DROPPED = bytes({*range(0x80)} - {*b"\n$=-@:_(", *b"acghklnoprstuwy", *b"ACGHKLNOPRSTUWY"})
_FIELDS = pattern(rb":(?:\d{4,5}|\*):[\w.*-]{1,80}:[\w.*-]{1,80}:")
"""An entry of a password file of PostgreSQL."""
_SKELETONS = tuple((word, word.translate(None, _DROPPED)) for word in WORDS)
"""Each word with its skeleton, which lacks some letters: such a copy is half as long and searched first."""
_PIECE = 1 << 14
_LONGEST = max(map(len, WORDS))
_RUN = b"a" * 20
_RUNS = bytes(97 if (c < 128 and chr(c).isalnum()) or c in b"_-" else 32 for c in range(256))
_ONLY_ID = pattern(
    # Ids, snake_case, UPPER_CASE and settings (RAY_memory_usage_threshold), CamelCase, dashboard threads.
    rb"(?:(?:worker-|session_|node_|(?:CPU|bundle)_group_)?[0-9a-f_-]{20,}|[a-z_-]{20,}|(?:[A-Z]{2,}_)+[A-Za-z_]+"
    rb"|(?:t?ray-dashboard-)?(?:[A-Z]{1,3}[a-z]{2,})+[A-Z]{0,3}(?:-\d+)?)(?![\w-])"
)
"""Runs that are certainly not tokens; a token of at least 20 random characters does not match."""
_JOINTS = frozenset((b".", b"/", b":", b"+", b"=", b"~"))
_AROUND = 96
"""Largest distance of a token's parts that are joined by a character outside of runs."""


def worded(block: bytes) -> Iterator[int]:
    """Offsets of words that may name or precede a secret, at least one for each such line."""
    for begin in range(0, len(block), _PIECE):
        piece = block[begin : begin + _PIECE + _LONGEST]
        skeleton = piece.translate(_LOWER, _DROPPED)
        words = [word for word, bones in _SKELETONS if bones in skeleton]
        yield from (begin + match.start() for match in _FIELDS.finditer(piece))
        lower = piece.lower() if words else b""
        for word in words:
            at = lower.find(word)
            while at >= 0:
                yield begin + at
                at = lower.find(b"\n", at)
                at = lower.find(word, at) if at >= 0 else -1


def of_lines(lines: list[bytes]) -> list[int]:
    """Numbers of the lines that may hold a secret, in order."""
    block = b"\n".join(lines)
    starts = list(accumulate([len(line) + 1 for line in lines], initial=0))
    found = {bisect_right(starts, at) - 1 for at in chain(worded(block), shaped(block))}
    if b"\0" in block:
        found.update(number for number, line in enumerate(lines) if b"\0" in line)
    return sorted(found)


def shaped(block: bytes) -> Iterator[int]:
    """Offsets of runs that may be (a part of) a token or of base64 of a text."""
    runs = block.translate(_RUNS)
    find, is_id = runs.find, _ONLY_ID.match
    others: list[tuple[int, tuple[int, int]]] = []
    at = find(_RUN)
    while at >= 0:
        end = find(b" ", at)
        end = len(block) if end < 0 else end
        # After a dot, an id may be the second half of a token: Airtable's, Amazon's.
        if not is_id(block, at) or block[at - 1 : at] == b".":
            if may_be_coded(block[at : at + 16]):
                yield at
            else:
                others.append((at, _around(block, at, end)))
        at = find(_RUN, end)
    if others:
        found = shapes.within(block, [part for _, part in others])
        yield from (at for at, part in others if part in found)


def _around(block: bytes, at: int, end: int) -> tuple[int, int]:
    """A run with the parts that are joined to it: in `SG.x.y` and web tokens, they identify the run."""
    begin, stop = at, end
    if block[at - 1 : at] in _JOINTS:
        begin = max(0, at - _AROUND)
        begin = block.rfind(b" ", begin, at) + 1 or begin  # no token contains a blank
    if block[end : end + 1] in _JOINTS:
        stop = block.find(b" ", end, end + _AROUND)
        stop = min(len(block), end + _AROUND) if stop < 0 else stop
    return begin, stop

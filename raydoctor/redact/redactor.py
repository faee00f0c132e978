"""Replaces secrets by placeholders, in texts, streams, command lines and JSON."""

from __future__ import annotations

import codecs
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from threading import Lock
from typing import Any

from raydoctor.model.patterns import pattern
from raydoctor.redact import addresses, decode, elements, literals, wrapped
from raydoctor.redact.blocks import State, is_half
from raydoctor.redact.budget import JudgingBudget
from raydoctor.redact.lines import block_spans, text_spans
from raydoctor.redact.names import is_plain, kind_of, looks_random, looks_secret
from raydoctor.redact.span import HELD, PLACEHOLDER, Span, merged

_CHUNK = 1 << 20
_STRING = 40.0
"""Microseconds that a string with a secret takes in addition to its text."""
_LONG = 1 << 20
"""A longer line is redacted window by window, before its end is known."""
_OVERLAP = 1 << 16
"""Context on both sides of a cut in a long line: more than any secret with its name."""


_PASSES = 4
_REPEATED = 1 << 16
"""A longer text is redacted only once, as each pass takes the same time."""
_LEARNT = 16
"""Largest number of learnt secrets: searching for each takes half a millisecond per megabyte."""


class RedactionLedger:
    """Maps secrets to placeholders. It contains secrets, so it is never written or shown."""

    def __init__(self) -> None:
        self._known: dict[tuple[bool, bytes], bytes] = {}
        self._numbers: Counter[str] = Counter()
        self._lock = Lock()

    def placeholder(self, secret: bytes, kind: str) -> bytes:
        """The placeholder of a secret; the same for the same secret."""
        is_address = kind in ("ip", "host")
        with self._lock:
            key = (is_address, secret)
            if key not in self._known:
                self._numbers[kind] += 1
                named = f"{kind}-{self._numbers[kind]}"
                self._known[key] = (named if is_address else f"<secret:{named}>").encode()
            return self._known[key]

    def values(self) -> tuple[str, ...]:
        """Secrets that can be searched for without context: long, and unlike other log content."""
        with self._lock:
            found = [
                secret
                for is_address, secret in self._known
                if not is_address
                and 12 <= len(secret) <= 200
                and len(secret.split()) == 1
                and looks_random(secret)
            ]
        return tuple(secret.decode("utf-8", "replace") for secret in found[:_LEARNT])


def _chunks(data: bytes) -> Iterator[bytes]:
    return (data[at : at + _CHUNK] for at in range(0, len(data), _CHUNK))


_HELD = pattern(HELD.decode())
_ESCAPED_CONTROL = pattern(rb"\\(?:[bfnrt]|u00[01])")
"""A control character inside a text of JSON."""
_SHORT, _MOST_CLEAN = 400, 20_000
"""Characters of a string that is remembered as clean, and the number of such strings."""


class Redactor:
    """Replaces secrets by placeholders such as `<secret:aws-key-1>`, equal secrets by the same one.

    One redactor serves one capture: its placeholders are numbered in order of first appearance and contain
    nothing of the secret; redactors with the same ledger share the numbering. Redaction is idempotent. With
    `anonymize`, addresses and `hosts` become `ip-1` and `host-1`. It does no I/O and keeps secrets in memory
    only.
    """

    def __init__(
        self,
        secrets: Iterable[str] = (),
        anonymize: bool = False,
        hosts: Iterable[str] = (),
        ledger: RedactionLedger | None = None,
    ) -> None:
        # Longest first: of two overlapping literals, the longer one is replaced.
        known = {
            v: s.encode("utf-8", "surrogateescape") for s in secrets for v in literals.variants(s)
        }
        self._literals = {v: known[v] for v in sorted(known, key=len, reverse=True)}
        self._anonymize = anonymize
        self._hosts = addresses.any_of(hosts) if anonymize else None
        self._ledger = ledger or RedactionLedger()
        self._spots: Counter[str] = Counter()
        self._budget = JudgingBudget()
        self._clean: set[str] = set()
        """Short strings of JSON without a secret: keys and labels are the same in thousands of objects."""

    @property
    def summary(self) -> dict[str, int]:
        """Number of replacements of each kind so far."""
        return dict(sorted(self._spots.items()))

    @property
    def secrets(self) -> tuple[str, ...]:
        """Replaced secrets that can be searched for without context (`learn`). Must never be shown."""
        return self._ledger.values()

    def redact(self, text: str) -> str:
        """The text without its secrets; lines stay lines."""
        data = text.encode("utf-8", "surrogatepass")
        self._budget.earn(len(data) if len(data) < _REPEATED else 0)
        # In a line that became shorter, a value may now be close enough to its name.
        for _ in range(_PASSES if len(data) < _REPEATED else 1):
            before = data
            if len(data) < _REPEATED:
                spans = text_spans(data, 0, self._budget)
                data = self._replaced(data, self._with_given(data, spans), 0, len(data))
                self._budget.spend(_STRING if spans else 0.0)
            else:
                # Not `redact_bytes`: a text with many NULs is no UTF-16.
                data = b"".join(self._stream(_chunks(data)))
            if data == before or PLACEHOLDER.fullmatch(data):
                break
        return data.decode("utf-8", "surrogatepass")

    def redact_bytes(self, data: bytes) -> bytes:
        """Like `redact`, for bytes in any superset of ASCII, and in UTF-16."""
        return b"".join(self.redact_stream(_chunks(data)))

    def learn(self, secrets: Iterable[str]) -> None:
        """From now on, replace these literals as well."""
        self._clean.clear()
        for secret in secrets:
            self._literals.setdefault(*[secret.encode("utf-8", "surrogateescape")] * 2)

    def redact_argv(self, words: Iterable[str]) -> list[str]:
        """The elements of a command line or an environment, without secrets."""
        data = "\0".join(words).encode("utf-8", "surrogatepass")
        self._budget.earn(len(data))
        found = list(literals.spans(data, self._literals))
        if self._budget.affords(data):
            found += elements.spans(data, lambda element: text_spans(element, 0, self._budget))
        else:
            found += elements.unread(data)
        clean = self._replaced(data, merged(found, data), 0, len(data), keeps_lines=False)
        shown = clean.decode("utf-8", "surrogatepass").split("\0")
        return [self.redact(each) if "\x1b" in each or "\n" in each else each for each in shown]

    def redact_stream(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Like `redact_bytes`, for a file that does not fit in memory; independent of the chunks' limits."""
        source, head = iter(chunks), b""
        while len(head) < decode.SAMPLE and (chunk := next(source, None)) is not None:
            head += chunk
        encoding = decode.wide_encoding(head[: decode.SAMPLE])
        if not encoding:
            yield from self._stream(chain((head,), source))
            return
        decoder = codecs.getincrementaldecoder(encoding)("replace")
        texts = (decoder.decode(chunk) for chunk in chain((head,), source))
        whole = chain(texts, (decoder.decode(b"", True) for _ in range(1)))
        for clean in self._stream(text.encode("utf-8", "surrogatepass") for text in whole):
            yield clean.decode("utf-8", "surrogatepass").encode(encoding, "surrogatepass")

    def _stream(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        state, before = State(self._budget), 0
        buffer, seen, limit = b"", 0, _LONG
        source = iter(chunks)
        following = next(source, None)
        while following is not None:
            buffer += following
            following = next(source, None)
            if following is None:
                break  # the input has ended: all lines can be judged
            cut = _complete(buffer)
            if cut:
                yield self._block(buffer[:cut], state, before, seen)
                before = _last_length(buffer[:cut])
                buffer, seen, limit = buffer[cut:], 0, _LONG
            elif len(buffer) - seen > limit and b"\n" not in buffer:
                spans = self._spans(buffer, state, before)
                cut = _safe_cut(spans, len(buffer) - _OVERLAP)
                if cut <= seen:
                    limit *= 2  # the window is inside a secret: wait for its end
                    continue
                yield self._replaced(buffer, spans, seen, cut)
                kept = max(0, cut - _OVERLAP)
                buffer, seen, limit = buffer[kept:], cut - kept, _LONG
        if buffer:
            yield self._block(buffer, state, before, seen)

    def redact_rows(self, data: bytes) -> bytes:
        """Like `redact_bytes`, for a table with a JSON object per line, which stay valid JSON."""
        clean = self.redact_bytes(data)
        if clean == data and not _ESCAPED_CONTROL.search(data):
            return data
        lines = zip(data.split(b"\n"), clean.split(b"\n"), strict=True)
        return b"\n".join(self._row(before, after) for before, after in lines)

    def _row(self, before: bytes, after: bytes) -> bytes:
        """A redacted line that is still valid JSON, if it was: a placeholder may have replaced a number.

        Of a row whose texts have colours or several lines, each value is redacted by itself.
        """
        comma = b"," if before.endswith(b",") else b""
        is_sound = before == after or _is_json(after.removesuffix(b","))
        if not before.startswith(b"{") or (is_sound and not _ESCAPED_CONTROL.search(before)):
            return after
        try:
            row = json.loads(before.removesuffix(b","))
        except (ValueError, RecursionError):
            return after
        return json.dumps(self.redact_json(row), separators=(",", ":")).encode() + comma

    def redact_json(self, value: Any) -> Any:
        """A value of dicts, lists and scalars without secrets; JSON inside strings is parsed as well."""
        if isinstance(value, dict):
            return self._mapping(value)
        if isinstance(value, (list, tuple)):
            return list(self._items(value))
        if isinstance(value, str):
            return self._string(value)
        return value

    # -------- text

    def _block(self, block: bytes, state: State, before: int, seen: int = 0) -> bytes:
        spans = self._spans(block, state, before)
        return self._replaced(block, spans, seen, len(block)) if spans else block[seen:]

    def _spans(self, block: bytes, state: State, before: int) -> list[Span]:
        """The disjoint spans of whole lines, in order."""
        return self._with_given(block, block_spans(block, state, before, pays=True))

    def _with_given(self, block: bytes, spans: list[Span]) -> list[Span]:
        """These spans with those of literals and addresses."""
        found = [*literals.spans(block, self._literals), *spans]
        if self._anonymize:
            found.extend(addresses.spans(block, self._hosts))
        return merged(found, block) if found else found

    def _replaced(
        self, block: bytes, spans: list[Span], begin: int, end: int, *, keeps_lines: bool = True
    ) -> bytes:
        """The block from `begin` to `end` with the spans replaced."""
        parts, at = [], begin
        for span in spans:
            if at <= span.start < end or span.start < at < span.end:
                parts.append(block[at : max(at, span.start)])
                secret = block[span.start : span.end]
                parts.append(
                    self._placeholder(secret.replace(b"\r\n", b"").replace(b"\n", b""), span.kind)
                )
                # Line breaks inside a wrapped secret stay.
                parts.append(b"\n" * secret.count(b"\n") if keeps_lines else b"")
                at = span.end
        return b"".join((*parts, block[at:end]))

    def _placeholder(self, secret: bytes, kind: str) -> bytes:
        self._spots[kind] += 1
        return self._ledger.placeholder(self._literals.get(secret, secret), kind)

    # -------- JSON

    def _mapping(self, value: dict[Any, Any]) -> dict[Any, Any]:
        named = str(value.get("name") or value.get("key") or "") if "value" in value else ""
        is_secret = value.get("kind") == "Secret"
        result = {}
        for key, inner in value.items():
            name = named if key == "value" and kind_of(named)[0] else str(key)
            shown = self._string(key) if isinstance(key, str) else key
            if is_secret and key in ("data", "stringData"):
                result[shown] = self._gone(inner, "secret", "data")
            elif key == "key" and "username" in value and isinstance(inner, str):
                result[shown] = self._gone(inner, "key", "key")
            else:
                result[shown] = self._under(name, inner)
        return result

    def _items(self, values: Iterable[Any]) -> Iterator[Any]:
        """The items of a list; the second one of `["--token", "X"]` and `["Authorization", "Bearer X"]` is a
        secret."""
        listed = list(values)
        if len(listed) > 1 and all(isinstance(value, str) for value in listed):
            shown = self.redact_argv([value.replace("\0", " ") for value in listed])
            listed = shown if len(shown) == len(listed) else listed
        name = ""
        for value in listed:
            yield self._under(name, value) if name else self.redact_json(value)
            is_name = isinstance(value, str) and (value.startswith("-") or len(listed) == 2)
            name = (
                value if is_name and re.fullmatch(r"[\w.-]+", value) and kind_of(value)[1] else ""
            )

    def _under(self, name: str, value: Any) -> Any:
        """A value, redacted with regard to its name."""
        if name == "env_vars" and isinstance(value, dict):
            return {key: self._gone(inner, "env", name) for key, inner in value.items()}
        kind, certain = kind_of(name)
        text = (
            value.strip("b\"'") if isinstance(value, str) else ""
        )  # locals are given as their repr
        if certain or (kind and looks_secret(text.encode("utf-8", "surrogatepass"))):
            return self._gone(value, kind, name)
        return self.redact_json(value)

    def _gone(self, value: Any, kind: str, name: str) -> Any:
        """A value with every scalar replaced, except words for "none"."""
        if isinstance(value, dict):
            return {key: self._gone(inner, kind, name) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._gone(inner, kind, name) for inner in value]
        if value is None or isinstance(value, bool):
            return value
        data = str(value).encode("utf-8", "surrogatepass")
        if PLACEHOLDER.fullmatch(data) or (kind != "env" and is_plain(data, name)):
            return value
        return self._placeholder(data, kind).decode()

    def _string(self, value: str) -> str:
        if value in self._clean or (value[:1] == "<" and _HELD.fullmatch(value)):
            return value
        if value[:1] in ("{", "["):
            try:
                inner = json.loads(value)
            except (ValueError, RecursionError):
                return self.redact(value)
            clean = self.redact_json(inner)
            return value if clean == inner else json.dumps(clean)
        shown = self.redact(value)
        if shown == value and len(value) <= _SHORT:
            if len(self._clean) >= _MOST_CLEAN:
                self._clean.clear()
            self._clean.add(value)
        return shown


def _complete(buffer: bytes) -> int:
    """Offset up to which lines can be judged; the last ones may continue in the next chunk."""
    end = buffer.rfind(b"\n")
    if end < 0:
        return 0
    head = end + 1
    for _ in range(wrapped.MOST_LINES + 2):  # the lines below, and their neighbours
        head = buffer.rfind(b"\n", 0, max(0, head - 1)) + 1
    lines = wrapped.WrappedLines(buffer[head:end], 0)
    last = len(lines.texts) - 1
    for number in range(last - 1, last - 1 - wrapped.MOST_LINES, -1):
        if number < 0:
            return 0
        if not (lines.joins(number) or is_half(lines.texts[number])):
            return head + lines.ends[number] + 1
    return head + lines.ends[last - 1] + 1


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _last_length(block: bytes) -> int:
    """The length of a block's last line."""
    return len(block) - 1 - (block.rfind(b"\n", 0, len(block) - 1) + 1)


def _safe_cut(spans: list[Span], cut: int) -> int:
    """The last offset up to `cut` that is not inside a secret."""
    for span in spans:
        if span.start < cut <= span.end:
            return span.start
    return cut

"""Text for people: hostile characters escaped, long lines cut, numbers with units.

Logs contain whatever user code printed. Raydoctor's output contains no control characters except line breaks,
and nothing that reorders or hides text on a screen.
"""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

ELLIPSIS = "…"
_COLOUR = re.compile(r"\x1b\[[0-9;:]{0,30}m")
_LONG_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{31,64}(?![0-9a-f])")
"""An ActorID has 32 digits, a LeaseID 64; a JobID is not cut."""
_LEAD = re.compile(r"(?:f{16}|.{8}(?=.{56}$))?.{8}")
"""Eight digits that distinguish ids: before them a TaskID of a driver or actor creation has 16 `f`, and a
LeaseID has its counter."""


def printable(text: str) -> str:
    """Text with all invisible characters except line breaks escaped: controls, bidi marks and the like.

    `str.isprintable` follows Unicode (no `Cc`, `Cf`, `Cs`, `Co`, `Cn`, `Zl`, `Zp`), so it excludes ANSI
    sequences, right-to-left overrides and zero-width characters.
    """
    if text.isprintable():
        return text
    return "".join(map(_shown, text))


def _shown(char: str) -> str:
    if char.isprintable() or char == "\n":
        return char
    if char == "\t":
        return "    "
    if unicodedata.category(char) == "Zs":
        return " "
    return char.encode("unicode_escape").decode("ascii")


def uncoloured(text: str) -> str:
    """Text of a log for a page: without colours, and with a bar for Ray's separator of fields (`\\x1e`)."""
    return _COLOUR.sub("", text).replace("\x1e", "|")


def one_line(text: str) -> str:
    """Printable text without line breaks: for headlines, cells and names."""
    return " ".join(printable(text).split("\n")).strip()


_RAW = re.compile(r"b(?P<quote>['\"])(?=[^'\"]{0,200}\\x)[^'\"]{0,20000}(?:(?P=quote)|$)")
_HEADLINE = 280
"""Characters of a headline: two lines of a wide terminal."""


def headline(text: str) -> str:
    """A headline on one line, without raw bytes, that fits on two lines of a wide terminal."""
    text = _RAW.sub("(bytes)", one_line(text))
    if len(text) <= _HEADLINE:
        return text
    return f"{text[:_HEADLINE].rpartition(' ')[0] or text[:_HEADLINE]}…"


def behind_preamble(line: str) -> str:
    """`… Check failed: it != end()` of a line in which Ray's request to report a bug precedes the check."""
    before, check, rest = line.partition("Check failed: ")
    return f"… {check}{rest}" if "An unexpected system state has occurred" in before else line


def first_line(text: str) -> str:
    """The first line that is not blank, printable."""
    return next((one_line(line) for line in text.split("\n") if line.strip()), "")


def cells(text: str) -> int:
    """Columns that printable text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(map(_cells_of, text))


def _cells_of(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def cut(text: str, width: int) -> str:
    """Text of at most `width` columns; an ellipsis marks a cut."""
    if cells(text) <= width:
        return text
    kept, room = [], max(width, 1) - 1
    for char in text:
        room -= _cells_of(char)
        if room < 0:
            break
        kept.append(char)
    return "".join(kept).rstrip() + ELLIPSIS


def cut_middle(text: str, width: int) -> str:
    """Text of at most `width` columns without its middle: the end of a name may be what differs."""
    if cells(text) <= width:
        return text
    tail = text[len(text) - width // 3 :]
    starts = (tail.rfind(" ("), tail.rfind(" "), 0)
    tail = tail[next(at for at in starts if at >= 0) :]
    return f"{cut(text, width - cells(tail))}{tail}"


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns, broken at spaces; a longer word gets its own line."""
    lines: list[str] = []
    current = ""
    for word in text.split():
        if current and cells(current) + 1 + cells(word) > width:
            lines.append(current)
            current = word
        else:
            current = f"{current} {word}" if current else word
    return [*lines, current] if current or not lines else lines


def clause(message: str, most: int = 20) -> str:
    """The first words of another program's message, without its full stop, as a part of a sentence."""
    words = message.split()
    if len(words) > most:
        return " ".join(words[:most]) + ELLIPSIS
    return " ".join(words).rstrip(".")


_FUNCTION = re.compile(r"(?:(?:\w+|<locals>)\.)*[^\WA-Z\d]\w*")


def called(name: str) -> str:
    """`load()`, `Trainer.step()`: a function in a sentence. Other names, such as `Map(parse)`, stay."""
    return f"{name}()" if _FUNCTION.fullmatch(name) else name


def short_id(value: str) -> str:
    """Enough first digits of an id to distinguish it from others and to pass it to `raydoctor story`."""
    match = _LEAD.match(value)
    return match[0] if match else value


def short_ids(text: str) -> str:
    """Text with its long hexadecimal ids cut to their first digits."""
    return _LONG_ID.sub(lambda match: short_id(match[0]) + ELLIPSIS, text)


def id_parts(text: str) -> Iterator[tuple[str, str]]:
    """Text in pieces, each with the digits of an id behind it that `short_ids` leaves out."""
    at = 0
    for match in _LONG_ID.finditer(text):
        kept = match.start() + len(short_id(match[0]))
        yield text[at:kept], text[kept : match.end()]
        at = match.end()
    yield text[at:], ""


def plural(count: int, noun: str, many: str = "") -> str:
    """`1 file`, `1,234 files`."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def joined(parts: Sequence[str], word: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    return f" {word} ".join(part for part in (", ".join(parts[:-1]), *parts[-1:]) if part)


def join_names(names: Iterable[str], most: int = 3) -> str:
    """`a, b, c and 4 more`, or `a, b and c`; each name once, empty ones left out."""
    unique = list(dict.fromkeys(filter(None, names)))
    rest = len(unique) - most
    return joined([*unique[:most], f"{rest:,} more"] if rest > 0 else unique)


def size(count: float, digits: int = 1) -> str:
    """Bytes in binary units, as Ray counts them: `900 B`, `1.2 MiB`, `640 GiB`; `digits` after the point."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1023.5:
            return (
                f"{count:.0f} {unit}"
                if unit == "B" or count >= 99.95
                else f"{count:.{digits}f} {unit}"
            )
        count /= 1024
    return f"{count:.{digits}f} TiB"


def duration(seconds: float) -> str:
    """`0.12 s`, `14 s`, `3 min 20 s`, `5 min`."""
    if seconds < 9.95:
        return f"{seconds:.2f} s" if seconds < 0.995 else f"{seconds:.1f} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    large, small, units = minutes, rest, ("min", "s")
    if minutes >= 120:
        large, small, units = *divmod(minutes, 60), ("h", "min")
    return f"{large} {units[0]} {small} {units[1]}" if small else f"{large} {units[0]}"


def moment(at: float | None, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """A time in this machine's zone; empty if unknown or outside the calendar."""
    if at is None:
        return ""
    try:
        return time.strftime(form, time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return ""


def utc(at: float | None) -> str:
    """A time as `2026-11-21T07:34:50Z`; empty if unknown or outside the calendar."""
    if at is None:
        return ""
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    except (OverflowError, ValueError, OSError):
        return ""

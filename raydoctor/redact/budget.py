"""Limits the work that a text may cause, so that no text takes long, however it was made.

The time for a line depends on its words: each name of a secret, quote and escape is examined, in the line and
in its decoded copies. A text of short lines that are all made for this would take minutes. So each text has
an estimated cost, and the bytes that were read pay for it: an ordinary log costs a tenth of that. A line that
is too expensive counts as one secret. Estimates, not clocks, so that a text has the same result every time.
Once the budget is spent, lines are refused without an estimate until some kilobytes have paid for a reserve:
otherwise most lines of such a text would be estimated in vain.
"""

from __future__ import annotations

_PER_BYTE = 0.5
"""Microseconds of a processor."""
_ADVANCE, _RESERVE = 200_000.0, 2_000.0
_TEXT, _ELEMENT, _BYTE, _MARK, _WORD = 55.0, 12.0, 0.12, 0.2, 6.0
"""Microseconds for a text, and for each of its NULs, its bytes, its quotes and escapes, and its words."""
SHAPED = 80.0
"""Microseconds more for a line that may hold a token or base64: all shapes are tried, and it is decoded."""
_MARKS = b"\\%&'\"\x1b@$"
_WORDS = (
    *b"pass pw psk token secret key auth cookie credential sig bearer".split(),
    *b"login value string -p -w --".split(),
)


class JudgingBudget:
    """What is left for the texts of one stream, or of one redactor."""

    __slots__ = ("_left", "is_spent")

    def __init__(self) -> None:
        self._left = _ADVANCE
        self.is_spent = False
        """Whether texts are refused until the reserve is paid for."""

    def earn(self, count: int) -> None:
        """Add what this many bytes pay for."""
        self._left += count * _PER_BYTE
        self.is_spent = self.is_spent and self._left < _RESERVE

    def spend(self, cost: float) -> None:
        """Pay for something that was done."""
        self._left -= cost

    def affords(self, text: bytes) -> bool:
        """Whether a text may be judged, which is then paid for."""
        if self.is_spent:
            return False
        cost = estimate(text)
        if cost > self._left:
            self.is_spent = self._left < _RESERVE
            return False
        self._left -= cost
        return True


def estimate(text: bytes) -> float:
    """Microseconds for which a text may be judged, without its decoded copies."""
    marks = len(text) - len(text.translate(None, _MARKS))
    lower = text.lower()
    words = sum([lower.count(word) for word in _WORDS])
    parts = _ELEMENT * text.count(b"\0") + _MARK * marks + _WORD * words
    return _TEXT + _BYTE * len(text) + parts

"""A long text, of which only the part from the current place on is in memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from codecs import StreamReader

_CHUNK = 4 << 20


class Window:
    """The part of a text from the current place on."""

    def __init__(self, stream: TextIO | StreamReader) -> None:
        self._stream = stream
        self._line, self._counted = 1, 0
        self._is_read = False
        self.text, self.place = "", 0

    def fill(self) -> bool:
        """Read on, at least as much as is left; False at the end."""
        if self._is_read:
            return False
        left = len(self.text) - self.place
        chunk = self._stream.read(max(_CHUNK, left))
        if chunk:
            self._count()
            self.text = self.text[self.place :] + chunk
            self.place = self._counted = 0
        self._is_read = not chunk
        return not self._is_read

    def ensure(self, count: int) -> None:
        """Read on until the window holds so many characters, or all that is left."""
        while len(self.text) - self.place < count and self.fill():
            pass

    def skip(self, form: re.Pattern[str]) -> re.Match[str] | None:
        """Go past a match at the current place; returns it."""
        found = form.match(self.text, self.place)
        if found:
            self.place = found.end()
        return found

    def seek(self, form: re.Pattern[str]) -> bool:
        """Go past the next match; False, and at the end, if there is none."""
        while True:
            if found := form.search(self.text, self.place):
                self.place = found.end()
                return True
            self.place = max(len(self.text) - 1, self.place)
            if not self.fill():
                self.place = len(self.text)
                return False

    @property
    def is_end(self) -> bool:
        """Whether the window is empty."""
        return self.place >= len(self.text)

    @property
    def line(self) -> int:
        """The number of the current line."""
        self._count()
        return self._line

    def _count(self) -> None:
        self._line += self.text.count("\n", self._counted, self.place)
        self._counted = self.place

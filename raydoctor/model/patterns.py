"""Regular expressions that are compiled when they are first used.

The rules contain hundreds of them, and a diagnosis needs a few dozen. Compiling all at import would take
longer than reading a megabyte of logs.
"""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast

_METHODS = ("search", "match", "fullmatch", "finditer", "findall", "sub", "subn", "split")
_DATA = ("pattern", "flags", "groups", "groupindex")


class _Late:
    """Represents a compiled pattern, and takes its attributes when one of them is used."""

    def __init__(self, text: str | bytes, flags: int) -> None:
        self.late = (text, flags)

    def __getattr__(self, name: str) -> Any:
        if name not in _METHODS and name not in _DATA:
            raise AttributeError(name)
        made: re.Pattern[Any] = re.compile(*self.late)
        # Copied to this object, so that later uses are as fast as with a compiled pattern.
        self.__dict__.update({each: getattr(made, each) for each in (*_METHODS, *_DATA)})
        return getattr(made, name)


def pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """`re.compile` at the first use. An error in the text appears only then; a test compiles all patterns."""
    return cast("re.Pattern[AnyStr]", _Late(text, flags))

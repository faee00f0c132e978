"""Regular expressions that are compiled when they are first used.

Rules hold some hundreds of them, a diagnosis needs a few dozen, and compiling all of them at import takes
longer than reading a megabyte of logs.
"""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast

_METHODS = ("search", "match", "fullmatch", "finditer", "findall", "sub", "subn", "split")
_DATA = ("pattern", "flags", "groups", "groupindex")


class _Late:
    """Stands for a compiled pattern; becomes one, as far as its attributes go, when one is asked for."""

    def __init__(self, text: str | bytes, flags: int) -> None:
        self.late = (text, flags)

    def __getattr__(self, name: str) -> Any:
        if name not in _METHODS and name not in _DATA:
            raise AttributeError(name)
        made: re.Pattern[Any] = re.compile(*self.late)
        # As attributes of its own, so that the next use costs what a compiled pattern's costs.
        self.__dict__.update({each: getattr(made, each) for each in (*_METHODS, *_DATA)})
        return getattr(made, name)


def pattern(text: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """`re.compile`, late: what is wrong with the text shows at its first use (a test tries all)."""
    return cast("re.Pattern[AnyStr]", _Late(text, flags))

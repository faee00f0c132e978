"""A progress line on standard error: on a terminal only, after two seconds, and erased at the end."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

PATIENCE = 2.0
_STEP = 0.5


class Progress:
    """Shows the current activity and the elapsed seconds while the block runs."""

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._done = threading.Event()
        self._teller: threading.Thread | None = None

    def say(self, doing: str) -> None:
        """Change the activity."""
        self._doing = doing

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            self._teller = threading.Thread(target=self._tell, daemon=True)
            self._teller.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        if self._teller is not None:
            self._teller.join()

    def _tell(self) -> None:
        began = time.monotonic()
        if self._done.wait(PATIENCE):
            return
        while True:
            seconds = time.monotonic() - began
            sys.stderr.write(f"\r\x1b[K{self._doing} … {seconds:.0f} s ")
            sys.stderr.flush()
            if self._done.wait(_STEP):
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()
                return


def patience(doing: str) -> Progress:
    """The same for one thing that is done."""
    return Progress(doing)

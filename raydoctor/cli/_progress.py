"""A line on standard error while something takes long; nothing where nobody looks.

Shown on a terminal only, after two seconds only, and erased at the end.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 2.0
_STEP = 0.5


@contextmanager
def patience(doing: str) -> Iterator[None]:
    """Say `doing` and the seconds gone by, while the block runs."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    teller = threading.Thread(target=_tell, args=(doing, done), daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def _tell(doing: str, done: threading.Event) -> None:
    began = time.monotonic()
    if done.wait(PATIENCE):
        return
    while True:
        sys.stderr.write(f"\r{doing} … {time.monotonic() - began:.0f} s ")
        sys.stderr.flush()
        if done.wait(_STEP):
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            return

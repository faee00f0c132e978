"""Passes on what a program prints as it comes, and keeps it in a file.

Where we print to a terminal, the program does too (a pseudo terminal in between), so that its colours and
progress bars stay; else it gets a pipe. Standard output and error stay apart, as far as they are with us, and
are one text in the file, in the order in which they came, as far as two pipes can tell.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from contextlib import suppress
from typing import BinaryIO

_CHUNK = 1 << 16


class Tee:
    """Takes a program's output. `stdout` and `stderr` are for it to write to, until `begin`."""

    def __init__(self, log: BinaryIO) -> None:
        self._log = log
        self._shown_on: dict[int, int] = {}
        """What comes from a descriptor is shown on one of ours; -1 where nobody takes it any more."""
        self.stdout = self._channel(1)
        same = os.isatty(1) and os.isatty(2)
        self.stderr = self.stdout if same else self._channel(2)
        self._thread = threading.Thread(target=self._pass_on, name="tee", daemon=True)

    def _channel(self, shown_on: int) -> int:
        """A descriptor to write to, of which what comes is shown on one of ours."""
        reading, writing = _terminal(shown_on) if os.isatty(shown_on) else os.pipe()
        self._shown_on[reading] = shown_on
        return writing

    def begin(self) -> None:
        """The program has its ends now."""
        for end in {self.stdout, self.stderr}:
            os.close(end)
        self._thread.start()

    def finish(self, seconds: float) -> None:
        """Wait until all has come, but not for ever: whoever still holds the other end may never close it."""
        self._thread.join(seconds)

    def _pass_on(self) -> None:
        poll = select.poll()
        for reading in self._shown_on:
            poll.register(reading, select.POLLIN)
        while self._shown_on:
            for reading, _ in poll.poll():
                data = _read(reading)
                self._log.write(data)  # unbuffered: a diagnosis may read it at any time
                if not data:
                    poll.unregister(reading)
                    os.close(reading)
                    del self._shown_on[reading]
                elif not _write(self._shown_on[reading], data):
                    self._shown_on[reading] = -1


def _read(file: int) -> bytes:
    try:
        return os.read(file, _CHUNK)
    except OSError:  # a terminal whose other end is closed
        return b""


def _write(file: int, data: bytes) -> bool:
    """Show it; whether anybody still takes it."""
    try:
        while data:
            data = data[os.write(file, data) :]
    except OSError:
        return False
    return True


def _terminal(like: int) -> tuple[int, int]:
    """A pseudo terminal of the size of ours, that passes on what is written as it is."""
    import fcntl
    import pty
    import termios

    ours, theirs = pty.openpty()
    with suppress(OSError, termios.error):
        attributes = termios.tcgetattr(theirs)
        attributes[1] &= ~termios.OPOST  # our own terminal makes line ends what they are to be
        termios.tcsetattr(theirs, termios.TCSANOW, attributes)
        size = fcntl.ioctl(like, termios.TIOCGWINSZ, b"\0" * 8)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    return ours, theirs


def flush_own() -> None:
    """Have what we printed ourselves out before the program prints."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()

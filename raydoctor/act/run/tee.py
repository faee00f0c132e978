"""Shows the output of a program immediately, and saves it in a file.

If raydoctor prints to a terminal, the program gets a pseudo terminal, which preserves its colours and
progress bars; otherwise it gets a pipe. Standard output and error stay separate if they are separate for
raydoctor. In the file they are merged in order of arrival, as far as two pipes preserve it.
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
    """Reads a program's output. `stdout` and `stderr` are the program's ends, open until `begin`."""

    def __init__(self, log: BinaryIO) -> None:
        self._log = log
        self._shown_on: dict[int, int] = {}
        """Descriptor to read -> our descriptor that shows it; -1 once that is closed."""
        self.stdout = self._channel(1)
        same = os.isatty(1) and os.isatty(2)
        self.stderr = self.stdout if same else self._channel(2)
        self._thread = threading.Thread(target=self._pass_on, name="tee", daemon=True)

    def _channel(self, shown_on: int) -> int:
        """A descriptor for the program to write to; its output is shown on `shown_on`."""
        reading, writing = _terminal(shown_on) if os.isatty(shown_on) else os.pipe()
        self._shown_on[reading] = shown_on
        return writing

    def begin(self) -> None:
        """Start reading: the program has its descriptors now."""
        for end in {self.stdout, self.stderr}:
            os.close(end)
        self._thread.start()

    def finish(self, seconds: float) -> None:
        """Wait for the end of the output, at most so long: another process may keep the other end open."""
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
    """Show the data; False if the descriptor is closed."""
    try:
        while data:
            data = data[os.write(file, data) :]
    except OSError:
        return False
    return True


def _terminal(like: int) -> tuple[int, int]:
    """A pseudo terminal of the same size that passes output on unchanged."""
    import fcntl
    import pty
    import termios

    ours, theirs = pty.openpty()
    with suppress(OSError, termios.error):
        attributes = termios.tcgetattr(theirs)
        attributes[1] &= ~termios.OPOST  # our own terminal converts line ends
        termios.tcsetattr(theirs, termios.TCSANOW, attributes)
        size = fcntl.ioctl(like, termios.TIOCGWINSZ, b"\0" * 8)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    return ours, theirs


def flush_own() -> None:
    """Flush our own output before the program prints."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()

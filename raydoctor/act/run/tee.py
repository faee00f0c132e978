"""Shows the output of a program immediately, and saves it in a file.

If raydoctor prints to a terminal, the program gets a pseudo terminal, which preserves its colours and
progress bars; otherwise it gets a pipe. Standard output and error stay separate if they are separate for
raydoctor. In the file they are merged in order of arrival, as far as two pipes preserve it.

If the file cannot take more (a full disk), the output is still read and shown: otherwise the program
would block. The last part of it then replaces the end of the file, because it usually has the error.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import threading
from contextlib import suppress
from typing import BinaryIO

_CHUNK = 1 << 16
_TAIL = 1 << 18
"""Bytes from the end of an output for which the file has no room."""
_CUT = b"\n[raydoctor: a part of the output is missing here]\n"


class Tee:
    """Reads a program's output. `stdout` and `stderr` are the program's ends, open until `begin`."""

    def __init__(self, log: BinaryIO) -> None:
        self._log = log
        self.problem = ""
        """Why the file lacks a part of the output; empty if it does not."""
        self.lacking = 0
        """Bytes that the file lacks."""
        self._tail = b""
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
        if self._tail:
            tail, self._tail = self._tail, b""
            with suppress(OSError):
                self._replace_end(tail)

    def _pass_on(self) -> None:
        poll = select.poll()
        for reading in self._shown_on:
            poll.register(reading, select.POLLIN)
        while self._shown_on:
            for reading, _ in poll.poll():
                data = _read(reading)
                self._keep(data)
                if not data:
                    poll.unregister(reading)
                    os.close(reading)
                    del self._shown_on[reading]
                elif not _write(self._shown_on[reading], data):
                    self._shown_on[reading] = -1

    def _keep(self, data: bytes) -> None:
        try:
            while data and not self.problem:  # unbuffered: a diagnosis may read it at any time
                data = data[self._log.write(data) :]
        except OSError as error:
            self.problem = error.strerror or str(error)
        self.lacking += len(data)
        self._tail = (self._tail + data)[-_TAIL:]

    def _replace_end(self, tail: bytes) -> None:
        """Overwrite the end of the file, which needs no further room. Raises OSError."""
        file = self._log.fileno()
        status = os.fstat(file)
        room = min(status.st_size // 2, _TAIL) - len(_CUT)
        if not stat.S_ISREG(status.st_mode) or room <= 0:
            return
        end = tail[-room:]
        end = end.partition(b"\n")[2] or end
        begin = status.st_size - len(_CUT) - len(end)
        os.pwrite(file, _CUT + end, begin)
        self.lacking += status.st_size - begin - len(end)


def _read(file: int) -> bytes:
    try:
        return os.read(file, _CHUNK)
    except OSError:  # a terminal whose other end is closed
        return b""


def _write(file: int, data: bytes) -> bool:
    """Show the data; False if the descriptor is closed."""
    try:
        while data:
            with suppress(
                BlockingIOError
            ):  # another process made our terminal or pipe non-blocking
                data = data[os.write(file, data) :]
                continue
            select.select((), (file,), ())
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

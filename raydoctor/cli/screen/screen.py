"""A terminal that is redrawn in place, with its keys, signals and size changes.

The alternate screen keeps the previous content of the terminal. One `select` waits for keys and signals
(`signal.set_wakeup_fd`); between redraws nothing runs. A redraw writes only the lines that have changed.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO

from raydoctor.render.page import Page
from raydoctor.render.terminal import is_terminal, painted, wants_colour

_ENDING = ("SIGTERM", "SIGHUP", "SIGINT")
_WIDTH, _HEIGHT = 80, 24
_OPEN, _CLOSE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
"""The alternate screen without a cursor and without wrapping, and back."""
_CLEAR = "\x1b[2J"


class Signals:
    """Signals as events to wait for; the first terminating signal is kept."""

    def __init__(self) -> None:
        self.ended_by = 0
        """The number of the terminating signal; 0 if none has arrived."""
        self.has_new_size = False
        self.has_data = False
        """Whether the file that the last `wait` watched also has data."""
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        os.set_blocking(self._read, False)
        self._before: list[tuple[int, Any]] = []
        self._fd_before = -1

    def __enter__(self) -> Signals:
        self._fd_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for name in _ENDING:
            self._take(name, self._end)
        self._take("SIGWINCH", self._resize)
        return self

    def _take(self, name: str, handler: Callable[[int, object], None]) -> None:
        number = getattr(signal, name, None)
        # A signal that the parent process ignores (SIGHUP under nohup) stays ignored.
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            self._before.append((number, signal.signal(number, handler)))

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd_before)
        os.close(self._read)
        os.close(self._write)

    def wait(self, seconds: float, keys: int | None = None, also: int | None = None) -> str:
        """Wait for a signal, a key, data in `also` or the end of the time; return the pressed keys."""
        watched = [each for each in (self._read, keys, also) if each is not None]
        ready, _, _ = select.select(watched, [], [], max(0.0, seconds))
        self.has_data = also in ready
        if self._read in ready:
            with suppress(BlockingIOError):
                os.read(self._read, 512)
        if keys is not None and keys in ready:
            pressed = os.read(keys, 64)
            if not pressed:  # the terminal is gone
                self.ended_by = self.ended_by or int(getattr(signal, "SIGHUP", signal.SIGTERM))
            return pressed.decode("utf-8", "replace")
        return ""

    def _end(self, number: int, frame: object) -> None:
        if self.ended_by == number == signal.SIGINT:  # pressed twice: stop waiting
            raise KeyboardInterrupt
        self.ended_by = self.ended_by or number

    def _resize(self, number: int, frame: object) -> None:
        self.has_new_size = True


class Screen:
    """The terminal in full-screen mode while the block runs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_unwanted = False
        """Whether Ctrl-Z was pressed: `pause` is due."""
        self._is_coloured = wants_colour(stream)
        self._size = 0, 0
        self._lines: list[str] = []
        """What the terminal shows, for its size at the last redraw."""
        self._keys_before: Any = None
        self._stop_before: Any = None

    @property
    def keys(self) -> int | None:
        """The file descriptor of the keyboard; None if standard input is not a terminal."""
        return sys.stdin.fileno() if self._keys_before is not None else None

    def __enter__(self) -> Screen:
        self._open()
        number = getattr(signal, "SIGTSTP", None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            self._stop_before = signal.signal(number, self._stop)
        return self

    def _stop(self, number: int, frame: object) -> None:
        self.is_unwanted = True

    def pause(self) -> None:
        """Restore the terminal and stop this process until the shell's `fg`."""
        self.is_unwanted = False
        self._close()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._open()

    def _open(self) -> None:
        self._write(_OPEN)
        self._size = 0, 0
        self._listen()

    def _listen(self) -> None:
        """Read single keys without echo; Ctrl-C stays a signal."""
        with suppress(Exception):
            import termios
            import tty

            if is_terminal(sys.stdin):
                self._keys_before = termios.tcgetattr(sys.stdin.fileno())
                tty.setcbreak(sys.stdin.fileno())

    def __exit__(self, *_: object) -> None:
        if self._stop_before is not None:
            signal.signal(signal.SIGTSTP, self._stop_before)
        self._close()

    def _close(self) -> None:
        with suppress(OSError):  # the terminal may be gone
            self._write(_CLOSE)
        if self._keys_before is not None:
            with suppress(Exception):
                import termios

                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._keys_before)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        try:
            width, height = os.get_terminal_size(self._stream.fileno())
        except OSError:  # not known
            width = height = 0
        return width or _WIDTH, height or _HEIGHT

    def draw(self, page: Callable[[int, int], Page], *, is_whole: bool = False) -> None:
        """Draw a page for the current size of the terminal; `is_whole`: also the unchanged lines."""
        size = self.size
        lines = [
            painted(spans, self._stream, is_coloured=self._is_coloured) for spans in page(*size)
        ]
        parts: list[str] = []
        if is_whole or size != self._size:
            parts, self._size, self._lines = [_CLEAR], size, []
        for number in range(max(len(lines), len(self._lines))):
            text = lines[number] if number < len(lines) else ""
            if number >= len(self._lines) or text != self._lines[number]:
                # Cleared first: after a line of full width, the cursor stays in its last column.
                parts.append(f"\x1b[{number + 1};1H\x1b[2K{text}")
        self._lines = lines
        self._write("".join(parts))

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

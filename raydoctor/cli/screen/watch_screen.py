"""The screen of `raydoctor watch`: rounds and keys, and the commands that keys start.

A stack and a cancel are commands of their own, so that they ask, check and record what they do as always.
They get the watched cluster's address: in another cluster, the first tasks of a job have the same ids.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from raydoctor.cli.screen.screen import Screen, Signals
from raydoctor.model.text import short_ids
from raydoctor.render import watch as render
from raydoctor.render.page import Page
from raydoctor.watch import controls
from raydoctor.watch.controls import Controls, PaneOutput, UserRequest
from raydoctor.watch.rounds import Watch

_GONE = (errno.EIO, errno.ENXIO)
"""Errors of writing to a closed terminal."""
_MOST = 1 << 20
"""Bytes of output that are kept."""


def show(watch: Watch, signals: Signals, until: float | None) -> None:
    """Show the rounds, until the user or the time (of `time.monotonic`) ends the watch."""
    view = _WatchScreen(watch)
    try:
        with Screen(sys.stdout) as screen:
            _rounds(view, signals, screen, until)
    except OSError as error:
        if error.errno not in _GONE:
            raise
    finally:
        view.command.end()
        watch.close()


def _rounds(view: _WatchScreen, signals: Signals, screen: Screen, until: float | None) -> None:
    watch = view.watch
    while True:
        next_round = watch.next_round
        deadline = next_round if until is None else min(next_round, until)
        screen.draw(view.page)
        while time.monotonic() < deadline and not signals.ended_by:
            rest = deadline - time.monotonic()
            pressed = signals.wait(rest, screen.keys, view.command.fileno())
            began = time.process_time()
            if not view.take(pressed, signals.has_data, screen.size[0]):
                return
            if screen.is_unwanted:
                screen.pause()
            elif not (pressed or signals.has_data or signals.has_new_size):
                continue
            signals.has_new_size = False
            # A key also repairs what another program wrote to the terminal.
            screen.draw(view.page, is_whole=bool(pressed))
            watch.spent_on_keys += time.process_time() - began
        if signals.ended_by or (until is not None and time.monotonic() >= until):
            return
        watch.round()


class _WatchScreen:
    """What the user chose, and the last command."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.command = CommandBeside()
        self._controls = Controls()

    def page(self, width: int, height: int) -> Page:
        """The page for a terminal of this size."""
        return render.page(self.watch, width, height, self._controls, self.command.output)

    def take(self, pressed: str, has_data: bool, width: int) -> bool:
        """Take keys and a command's output; False if the user ends the watch."""
        if has_data:
            self.command.read()
        for key in controls.keys(pressed):
            self._controls, request = controls.press(self._controls, key, self.watch.view.lines)
            if request and request.what == "quit":
                return False
            if request:
                self._start(request, width)
        return True

    def _start(self, request: UserRequest, width: int) -> None:
        assert request.task is not None
        options = ["--yes"] if request.what == "cancel" else []
        cluster = self.watch.cluster
        if cluster.gcs_address not in cluster.typed:
            options.append("--found")
        task = request.task.running.run.task
        self.command.start([request.what, task, *options, "--address", cluster.gcs_address], width)


class CommandBeside:
    """One `raydoctor` command at a time; `fileno` becomes readable when it prints or ends."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._title = ""
        self._text = b""

    def start(self, words: Sequence[str], width: int) -> None:
        """Start it with these words; the previous one is ended."""
        self.end()
        self._title, self._text = short_ids(f"raydoctor {' '.join(words)}"), b""
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "raydoctor", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd="/",  # -m puts the working folder first on the path
                env={**os.environ, "COLUMNS": str(width)},
                start_new_session=True,  # Ctrl-C is for the screen
            )
        except OSError as error:
            self._text = f"could not be started: {error.strerror}".encode()

    def fileno(self) -> int | None:
        """The file descriptor of its output; None if none runs."""
        return self._process.stdout.fileno() if self._process and self._process.stdout else None

    def read(self) -> None:
        """Take what it has printed; blocks if there is nothing."""
        assert self._process is not None
        assert self._process.stdout is not None
        data = os.read(self._process.stdout.fileno(), 1 << 16)
        if data:
            self._text = (self._text + data)[:_MOST]
            return
        code = self._process.wait()
        self._process.stdout.close()
        self._process = None
        self._title += f": exit code {code}"

    @property
    def output(self) -> PaneOutput | None:
        """What it has printed so far; None before the first command."""
        if not self._title:
            return None
        title = f"{self._title} …" if self._process else self._title
        return PaneOutput(title, self._text.decode("utf-8", "replace").splitlines())

    def end(self) -> None:
        """Interrupt it if it runs."""
        if self._process is None:
            return
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGINT)
        if self._process.stdout:
            self._process.stdout.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)
        self._process = None

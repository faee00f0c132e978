"""Notifications of a watch: one JSON object per incident, to a webhook or to a command.

A thread delivers them, so that a slow receiver never delays the watch. An incident is notified once, however
often it goes and comes back in one session of the cluster. In an hour at most `_MOST` notifications are sent;
the next one says how many were left out. A receiver that fails is one event of the watch, and one more only
after it has worked again; what it did not take is not sent again.
"""

from __future__ import annotations

import json
import os
import queue
import shlex
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.client import HTTPException
from typing import Any, Protocol
from urllib.parse import urlsplit

from raydoctor.act.run.guard import ProcessGuard
from raydoctor.diagnosis.fingerprint import of_cause
from raydoctor.model.errors import RaydoctorError
from raydoctor.watch.event import WatchEvent, event

KINDS = ("diagnosis", "task-hung", "log-silent", "cluster-lost")
"""The events that are notified."""
_MOST = 30
_HOUR = 3600.0
_WAITING = 50
_POST_S, _COMMAND_S = 10.0, 30.0
_END_S = 5.0
_GRACE_S = 1.0

Encode = Callable[[WatchEvent], str]


class Receiver(Protocol):
    """What notifications go to."""

    def send(self, document: str) -> str:
        """Deliver a document; the problem, or nothing."""

    def end(self) -> None:
        """End a delivery that is still under way."""


class Notifier:
    """Takes the events of each round and sends those of `KINDS`."""

    def __init__(self, target: str, encode: Encode) -> None:
        self._receiver = receiver(target)
        self._encode = encode
        self._known: set[tuple[str, ...]] = set()
        self._sent: deque[float] = deque()
        self._left_out = 0
        self._waiting: queue.Queue[str | None] = queue.Queue(_WAITING)
        self._problems: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="notify", daemon=True)
        self._thread.start()

    def __call__(self, events: Sequence[WatchEvent]) -> list[WatchEvent]:
        """Queue what is new; the events are problems with the receiver."""
        for each in events:
            if each.event == "cluster-new":
                self._known.clear()
            if each.event in KINDS and (key := _key(each)) not in self._known:
                self._known.add(key)
                self._queue(each)
        found = []
        while not self._problems.empty():
            text = f"The notification was not delivered: {self._problems.get()}"
            found.append(event("notify-failed", "warning", text))
        return found

    def close(self) -> None:
        """Deliver what waits, for a few seconds at most; a command that still runs then is ended."""
        with suppress(queue.Full):
            self._waiting.put_nowait(None)
            self._thread.join(_END_S)
        self._receiver.end()

    def _queue(self, each: WatchEvent) -> None:
        now = time.monotonic()
        while self._sent and now - self._sent[0] > _HOUR:
            self._sent.popleft()
        if len(self._sent) >= _MOST:
            self._left_out += 1
            return
        document = json.loads(self._encode(each))
        if self._left_out:
            document["left_out"] = self._left_out
        try:
            self._waiting.put_nowait(json.dumps(document))
        except queue.Full:
            self._left_out += 1
            return
        self._left_out = 0
        self._sent.append(now)

    def _work(self) -> None:
        has_failed = False
        while (document := self._waiting.get()) is not None:
            problem = self._receiver.send(document)
            if problem and not has_failed:
                self._problems.put(problem)
            has_failed = bool(problem)


def _key(each: WatchEvent) -> tuple[str, ...]:
    """What makes an incident the same one: its numbers may have grown."""
    facts: dict[str, Any] = each.facts
    if each.event == "task-hung":
        task = facts.get("task") or {}
        return each.event, str(task.get("id")), str(facts.get("pid"))
    if each.event == "diagnosis":
        return each.event, of_cause(str(facts.get("rule")), str(facts.get("headline")))
    # A silence or a loss that ended can begin again.
    return each.event, str(each.at)


def receiver(target: str) -> Receiver:
    """The receiver that a target names.

    `target` is an http(s) address, or a command line: its words are run without a shell, and the document is
    its standard input. Raises RaydoctorError if it is neither.
    """
    if target.startswith(("http://", "https://")):
        return _Webhook(target)
    try:
        words = shlex.split(target)
    except ValueError as error:
        raise RaydoctorError(
            f"cannot split the command of --notify into words: {error}", "Close each quotation."
        ) from None
    if not words:
        raise RaydoctorError("--notify has no command", "Give an https:// address or a command.")
    return _Command(words)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """A redirected POST would become a GET without the document."""


class _Webhook:
    """POSTs each document. A problem names the host only: the path is often a secret."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._host = _host(url)
        self._late: queue.SimpleQueue[str] | None = None
        """Of the last request that got no reply in time: its result, once it ends."""

    def send(self, document: str) -> str:
        """Wait a limited time for the reply: a server that sends it byte by byte keeps each read alive."""
        if self._late is not None and self._late.empty():
            return f"{self._host} has not replied to the last notification yet"
        reply: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(
            target=lambda: reply.put(self._post(document)), name="webhook", daemon=True
        ).start()
        try:
            return reply.get(timeout=_POST_S)
        except queue.Empty:
            self._late = reply
            return f"{self._host} did not reply within {_POST_S:g} s"

    def _post(self, document: str) -> str:
        headers = {"Content-Type": "application/json", "User-Agent": "raydoctor"}
        try:
            request = urllib.request.Request(self._url, document.encode(), headers)
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=_POST_S):
                return ""
        except urllib.error.HTTPError as error:
            error.close()
            return f"{self._host} replied with HTTP {error.code}"
        except urllib.error.URLError as error:
            why = error.reason
        except (OSError, ValueError, HTTPException) as error:  # also a reply that is not HTTP
            why = error
        return f"{self._host}: {getattr(why, 'strerror', None) or type(why).__name__}"

    def end(self) -> None:
        """A request changes nothing on this machine: it ends with this process."""


def _host(url: str) -> str:
    """The host of a webhook's address. Raises RaydoctorError for an address that cannot be requested."""
    try:
        split = urlsplit(url)
        host, _ = split.hostname, split.port
    except ValueError:
        host = None
    if not host:
        raise RaydoctorError(
            "the webhook's address has no valid host or port", "Give https://HOST/PATH."
        )
    if "@" in split.netloc:
        raise RaydoctorError(
            "the webhook's address contains a user name, which --notify cannot send",
            "Use a command that authenticates: --notify 'curl --netrc -sfd @- https://HOST/PATH'",
        )
    if not url.isascii() or not url.isprintable() or " " in url:
        raise RaydoctorError(
            "the webhook's address contains a space or a character that is not ASCII",
            "Encode it, a space as %20.",
        )
    return host


class _Command:
    """Runs a command with each document as its standard input."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._guard = ProcessGuard(_GRACE_S)
        self._process: subprocess.Popen[bytes] | None = None

    def send(self, document: str) -> str:
        name = self._words[0]
        try:
            process = self._process = subprocess.Popen(
                self._words,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **self._guard.environment},
                start_new_session=True,  # Ctrl-C is for the watch
            )
            process.communicate(document.encode(), _COMMAND_S)
        except subprocess.TimeoutExpired:
            self._kill()
            return f"{name} ran for more than {_COMMAND_S:.0f} s and was ended"
        except (OSError, ValueError) as error:
            return f"{name}: {getattr(error, 'strerror', None) or error}"
        code = process.returncode
        return f"{name} failed with exit code {code}" if code else ""

    def end(self) -> None:
        """End a command that still runs, and the guard that would end it if this process were killed."""
        self._kill()
        self._guard.close()

    def _kill(self) -> None:
        """Kill the command and what it started: it leads a session of its own."""
        process = self._process
        if process is not None and process.poll() is None:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

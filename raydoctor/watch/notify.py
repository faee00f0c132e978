"""Notifications of a watch: one JSON object per incident, to a webhook or to a command.

A thread delivers them, so that a slow receiver never delays the watch. An incident is notified once, however
often it goes and comes back. In an hour at most `_MOST` notifications are sent; the next one says how many
were left out. A receiver that fails is one event of the watch, and one more only after it has worked again.
"""

from __future__ import annotations

import json
import queue
import shlex
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from raydoctor.diagnosis.fingerprint import folded
from raydoctor.model.errors import RaydoctorError
from raydoctor.watch.event import WatchEvent, event

KINDS = ("diagnosis", "task-hung", "log-silent", "cluster-lost")
"""The events that are notified."""
_MOST = 30
_HOUR = 3600.0
_WAITING = 50
_POST_S, _COMMAND_S = 10.0, 30.0
_END_S = 5.0

Encode = Callable[[WatchEvent], str]


class Notifier:
    """Takes the events of each round and sends those of `KINDS`."""

    def __init__(self, target: str, encode: Encode) -> None:
        self._send = sender(target)
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
            if each.event in KINDS and (key := _key(each)) not in self._known:
                self._known.add(key)
                self._queue(each)
        found = []
        while not self._problems.empty():
            text = f"The notification was not delivered: {self._problems.get()}"
            found.append(event("notify-failed", "warning", text))
        return found

    def close(self) -> None:
        """Deliver what waits, for a few seconds at most."""
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(_END_S)

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
            problem = self._send(document)
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
        return each.event, str(facts.get("rule")), folded(str(facts.get("headline")))
    # A silence or a loss that ended can begin again.
    return each.event, str(each.at)


def sender(target: str) -> Callable[[str], str]:
    """What delivers a document and returns the problem, or nothing.

    `target` is an http(s) address, or a command line: its words are run without a shell, and the document is
    its standard input. Raises RaydoctorError if it is neither.
    """
    if target.startswith(("http://", "https://")):
        try:
            host = urlsplit(target).hostname
        except ValueError:
            host = None
        if not host:
            raise RaydoctorError("the webhook's address has no host", "Give https://HOST/PATH.")
        return lambda document: _post(target, host, document)
    try:
        words = shlex.split(target)
    except ValueError as error:
        raise RaydoctorError(
            f"cannot split the command of --notify into words: {error}", "Close each quotation."
        ) from None
    if not words:
        raise RaydoctorError("--notify has no command", "Give an https:// address or a command.")
    return lambda document: _run(words, document)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """A redirected POST would become a GET without the document."""


def _post(url: str, host: str, document: str) -> str:
    """POST the document. A problem names the host only: the path is often a secret."""
    request = urllib.request.Request(
        url, document.encode(), {"Content-Type": "application/json", "User-Agent": "raydoctor"}
    )
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=_POST_S):
            return ""
    except urllib.error.HTTPError as error:
        return f"{host} replied with HTTP {error.code}"
    except urllib.error.URLError as error:
        return f"{host}: {getattr(error.reason, 'strerror', None) or type(error.reason).__name__}"
    except (OSError, ValueError) as error:
        return f"{host}: {getattr(error, 'strerror', None) or type(error).__name__}"


def _run(words: Sequence[str], document: str) -> str:
    name = words[0]
    try:
        done = subprocess.run(
            words,
            input=document.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_COMMAND_S,
            start_new_session=True,  # Ctrl-C is for the watch
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{name} ran for more than {_COMMAND_S:.0f} s and was ended"
    except (OSError, ValueError) as error:
        return f"{name}: {getattr(error, 'strerror', None) or error}"
    return f"{name} failed with exit code {done.returncode}" if done.returncode else ""

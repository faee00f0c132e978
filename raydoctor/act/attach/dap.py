"""A client of the Debug Adapter Protocol over TCP: each request and each event has a deadline.

The protocol of debugpy 1.8 (https://microsoft.github.io/debug-adapter-protocol). Waiting times and memory are
limited whatever the other side sends, because the process may be unhealthy.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple

from raydoctor.model.errors import RaydoctorError

Body = dict[str, Any]
Trouble = Literal["unreachable", "closed", "late", "refused", "broken"]
ANSWER = 10.0
"""Seconds to wait for a reply."""
_FAREWELL = 3.0
"""Seconds to wait for the reply to a disconnect."""
_CONNECT = 3.0
_HEADER = 4096
_MOST = 32 << 20
"""Bytes of one message: the variables of a large program take a few MB."""
_KEPT = 500
"""Events kept until they are requested; the oldest are dropped first."""


class DapError(RaydoctorError):
    """A request failed."""

    def __init__(self, trouble: Trouble, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.trouble = trouble


class DapEvent(NamedTuple):
    """An event from the debugger."""

    name: str
    body: Body


class DapMessages:
    """Splits a stream of bytes into messages."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._length = -1

    def feed(self, data: bytes) -> Iterator[Body]:
        """The messages that these bytes complete. Raises DapError if the stream is not DAP."""
        self._rest += data
        while True:
            if self._length < 0 and not self._header():
                return
            if len(self._rest) < self._length:
                return
            text = bytes(self._rest[: self._length])
            del self._rest[: self._length]
            self._length = -1
            yield _parsed(text)

    def _header(self) -> bool:
        """Read a header; whether it was complete."""
        end = self._rest.find(b"\r\n\r\n", 0, _HEADER)
        if end < 0:
            if len(self._rest) >= _HEADER:
                raise DapError(
                    "broken", "the process that listens there is not a debugger: it sent no header"
                )
            return False
        length = -1
        for line in bytes(self._rest[:end]).split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"content-length" and value.strip().isdigit():
                length = int(value) if len(value) < 16 else _MOST + 1
        if length < 0:
            raise DapError(
                "broken", "the process that listens there is not a debugger: it sent no length"
            )
        if length > _MOST:
            raise DapError("broken", f"the debugger sent a message of more than {_MOST >> 20} MiB")
        del self._rest[: end + 4]
        self._length = length
        return True


def _parsed(text: bytes) -> Body:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise DapError("broken", "the debugger sent a message that is not a JSON object")
    return message


class Connection:
    """One connection, for one thread."""

    def __init__(self, stream: socket.socket) -> None:
        stream.setblocking(False)
        self._socket = stream
        self._messages = DapMessages()
        self._sequence = 0
        self._answers: dict[int, Body] = {}
        self._awaited: set[int] = set()
        self._events: deque[DapEvent] = deque(maxlen=_KEPT)

    def close(self) -> None:
        """Close it; paused threads stay paused."""
        with suppress(OSError):
            self._socket.close()

    def request(
        self, command: str, arguments: Mapping[str, Any] | None = None, seconds: float = ANSWER
    ) -> Body:
        """Send a request and wait for the body of the reply. Raises DapError."""
        return self.answer(self.send(command, arguments), command, seconds)

    def send(self, command: str, arguments: Mapping[str, Any] | None = None) -> int:
        """Send a request without waiting; returns the number to pass to `answer`."""
        self._sequence += 1
        self._awaited.add(self._sequence)
        self._write(
            {
                "seq": self._sequence,
                "type": "request",
                "command": command,
                "arguments": dict(arguments or {}),
            }
        )
        return self._sequence

    def answer(self, sequence: int, command: str, seconds: float = ANSWER) -> Body:
        """The body of the reply to a request. Raises DapError."""
        self._pump_until(lambda: sequence in self._answers, seconds)
        answer = self._answers.pop(sequence, None)
        if answer is None:
            self._awaited.discard(sequence)
            raise DapError(
                "late", f"the debugger did not reply to `{command}` within {seconds:g} s"
            )
        if answer.get("success") is not True:
            raise DapError("refused", _refusal(command, answer))
        body = answer.get("body")
        return body if isinstance(body, dict) else {}

    def event(
        self, name: str, seconds: float, where: Callable[[Body], bool] = lambda body: True
    ) -> Body | None:
        """The first unread event of that name; None if none arrives in time."""

        def there() -> bool:
            return any(each.name == name and where(each.body) for each in self._events)

        self._pump_until(there, seconds)
        for each in self._events:
            if each.name == name and where(each.body):
                self._events.remove(each)
                return each.body
        return None

    def _pump_until(self, done: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            left = deadline - time.monotonic()
            if left <= 0 or not self._ready(select.POLLIN, left):
                return
            self._read()

    def _ready(self, for_what: int, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._socket, for_what)
        return bool(poll.poll(max(1.0, seconds * 1000)))

    def _read(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            raise _closed(error) from error
        if not data:
            raise _closed()
        for message in self._messages.feed(data):
            self._take(message)

    def _take(self, message: Body) -> None:
        kind = message.get("type")
        if kind == "response":
            sequence = message.get("request_seq")
            if isinstance(sequence, int) and sequence in self._awaited:
                self._awaited.discard(sequence)
                self._answers[sequence] = message
        elif kind == "event":
            body = message.get("body")
            # The program's own output is not needed.
            if message.get("event") != "output":
                self._events.append(
                    DapEvent(str(message.get("event")), body if isinstance(body, dict) else {})
                )
        elif kind == "request":  # to start a terminal or another session, which is not supported
            self._sequence += 1
            self._write(
                {
                    "seq": self._sequence,
                    "type": "response",
                    "request_seq": message.get("seq"),
                    "command": message.get("command"),
                    "success": False,
                    "message": "not supported",
                }
            )

    def _write(self, message: Body) -> None:
        text = json.dumps(message).encode()
        data = memoryview(b"Content-Length: %d\r\n\r\n%s" % (len(text), text))
        deadline = time.monotonic() + ANSWER
        while data:
            left = deadline - time.monotonic()
            if left <= 0 or not self._ready(select.POLLOUT, left):
                raise DapError("late", "the debugger does not read requests")
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise _closed(error) from error


def _closed(error: OSError | None = None) -> DapError:
    why = f": {error.strerror or error}" if error else ""
    return DapError("closed", f"the debugger closed the connection{why}")


def _refusal(command: str, answer: Body) -> str:
    body = answer.get("body")
    error = body.get("error") if isinstance(body, dict) else None
    detail = error.get("format") if isinstance(error, dict) else None
    return f"`{command}`: {answer.get('message') or detail or 'refused without a reason'}"


def connect(host: str, port: int, seconds: float = _CONNECT) -> Connection:
    """Connect to a debugger. Raises DapError."""
    try:
        return Connection(socket.create_connection((host, port), seconds))
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise DapError("unreachable", f"cannot connect to {host}:{port}: {why}") from error


def hello(connection: Connection, seconds: float = ANSWER) -> int:
    """The first half of attaching, up to where breakpoints may be set; returns the number for `configured`.

    It pauses nothing in the program, and needs only debugpy's own threads.
    """
    connection.request(
        "initialize",
        {
            "clientID": "raydoctor",
            "clientName": "raydoctor",
            "adapterID": "debugpy",
            "pathFormat": "path",
            "linesStartAt1": True,
            "columnsStartAt1": True,
            "supportsVariableType": True,
        },
        seconds,
    )
    # Without subprocesses of the program.
    options = {"type": "debugpy", "justMyCode": False, "subProcess": False, "redirectOutput": False}
    sequence = connection.send("attach", {"name": "raydoctor", "request": "attach", **options})
    if connection.event("initialized", seconds) is None:
        connection.answer(
            sequence, "attach", 0.0
        )  # may raise the reason: another debugger is attached
        raise DapError("late", f"the debugger was not ready within {seconds:g} s")
    return sequence


def configured(connection: Connection, sequence: int, seconds: float = ANSWER) -> None:
    """The second half of attaching."""
    connection.request("configurationDone", {}, seconds)
    connection.answer(sequence, "attach", seconds)


def farewell(connection: Connection, seconds: float = _FAREWELL) -> bool:
    """Disconnect, which resumes paused threads; whether the debugger confirmed it."""
    try:
        connection.request("disconnect", {"restart": False, "terminateDebuggee": False}, seconds)
    except DapError as error:
        return error.trouble == "closed"
    finally:
        connection.close()
    return True


@contextmanager
def attached(host: str, port: int, seconds: float = ANSWER) -> Iterator[Connection]:
    """A complete session, which always ends with a disconnect."""
    connection = connect(host, port)
    try:
        configured(connection, hello(connection, seconds), seconds)
        yield connection
    finally:
        farewell(connection)

"""A client of the Debug Adapter Protocol over TCP: each request and each event has a deadline.

What debugpy 1.8 speaks (https://microsoft.github.io/debug-adapter-protocol). Whatever the other side
sends, this neither waits nor takes memory without end: it talks to a process that is sick.
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
"""Seconds for an answer."""
_FAREWELL = 3.0
"""Seconds for the answer to a disconnect."""
_CONNECT = 3.0
_HEADER = 4096
_MOST = 32 << 20
"""Bytes of one message: a list of all variables of a large program has a few MB."""
_KEPT = 500
"""Events that nobody has asked for yet; the oldest go first."""


class DapError(RaydoctorError):
    """The other side did not do what it was asked."""

    def __init__(self, trouble: Trouble, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.trouble = trouble


class DapEvent(NamedTuple):
    """Something that the other side tells by itself."""

    name: str
    body: Body


class DapMessages:
    """Bytes of the wire, in whatever pieces they come, as messages."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._length = -1

    def feed(self, data: bytes) -> Iterator[Body]:
        """The messages that are complete with these bytes. Raises DapError where it is no DAP."""
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
        """Whether a whole header was there; its length is known then."""
        end = self._rest.find(b"\r\n\r\n", 0, _HEADER)
        if end < 0:
            if len(self._rest) >= _HEADER:
                raise DapError("broken", "what listens there is no debugger: it sent no header")
            return False
        length = -1
        for line in bytes(self._rest[:end]).split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"content-length" and value.strip().isdigit():
                length = int(value) if len(value) < 16 else _MOST + 1
        if length < 0:
            raise DapError("broken", "what listens there is no debugger: it sent no length")
        if length > _MOST:
            raise DapError("broken", f"the debugger sent a message of more than {_MOST >> 20} MB")
        del self._rest[: end + 4]
        self._length = length
        return True


def _parsed(text: bytes) -> Body:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise DapError("broken", "the debugger sent a message that is no JSON object")
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
        """Close it; what it holds halted stays so."""
        with suppress(OSError):
            self._socket.close()

    def request(
        self, command: str, arguments: Mapping[str, Any] | None = None, seconds: float = ANSWER
    ) -> Body:
        """Ask, and wait for the answer: its body. Raises DapError."""
        return self.answer(self.send(command, arguments), command, seconds)

    def send(self, command: str, arguments: Mapping[str, Any] | None = None) -> int:
        """Ask without waiting; the number to ask `answer` for."""
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
        """The body of the answer to what was sent. Raises DapError."""
        self._pump_until(lambda: sequence in self._answers, seconds)
        answer = self._answers.pop(sequence, None)
        if answer is None:
            self._awaited.discard(sequence)
            raise DapError("late", f"the debugger did not answer to `{command}` in {seconds:g} s")
        if answer.get("success") is not True:
            raise DapError("refused", _refusal(command, answer))
        body = answer.get("body")
        return body if isinstance(body, dict) else {}

    def event(
        self, name: str, seconds: float, where: Callable[[Body], bool] = lambda body: True
    ) -> Body | None:
        """The first event of that name that has not been asked for; None where none comes in time."""

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
            # What the program prints meanwhile is its own affair.
            if message.get("event") != "output":
                self._events.append(
                    DapEvent(str(message.get("event")), body if isinstance(body, dict) else {})
                )
        elif kind == "request":  # to start a terminal, or another session: not here
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
                raise DapError("late", "the debugger does not read what it is sent")
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
    """A connection to what listens there. Raises DapError."""
    try:
        return Connection(socket.create_connection((host, port), seconds))
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise DapError("unreachable", f"nothing answers at {host}:{port}: {why}") from error


def hello(connection: Connection, seconds: float = ANSWER) -> int:
    """The first half of attaching, up to where breakpoints may be set; for `configured`.

    Nothing in the program is halted by it, and it needs no one there but debugpy's own threads.
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
    # Of no subprocess: those of the program are none of this session's.
    options = {"type": "debugpy", "justMyCode": False, "subProcess": False, "redirectOutput": False}
    sequence = connection.send("attach", {"name": "raydoctor", "request": "attach", **options})
    if connection.event("initialized", seconds) is None:
        connection.answer(sequence, "attach", 0.0)  # may tell why: somebody else is attached
        raise DapError("late", f"the debugger was not ready within {seconds:g} s")
    return sequence


def configured(connection: Connection, sequence: int, seconds: float = ANSWER) -> None:
    """The second half of attaching."""
    connection.request("configurationDone", {}, seconds)
    connection.answer(sequence, "attach", seconds)


def farewell(connection: Connection, seconds: float = _FAREWELL) -> bool:
    """Disconnect: what is halted goes on, and others may attach. Whether that was confirmed."""
    try:
        connection.request("disconnect", {"restart": False, "terminateDebuggee": False}, seconds)
    except DapError as error:
        return error.trouble == "closed"
    finally:
        connection.close()
    return True


@contextmanager
def attached(host: str, port: int, seconds: float = ANSWER) -> Iterator[Connection]:
    """A session in which all may be asked; it ends with a disconnect, however the block ends."""
    connection = connect(host, port)
    try:
        configured(connection, hello(connection, seconds), seconds)
        yield connection
    finally:
        farewell(connection)

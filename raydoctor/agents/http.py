"""The MCP server over HTTP: on loopback only, and only for clients that send the token.

Any user of the machine can connect to a port of loopback, and a web page can make a browser do so.
Connections of other users, except root, are closed before a byte is read (Linux): they could use up the files
that the server may open. Every request needs the token, no request of a web page is accepted (`Origin`), and
the `Host` must be this port of loopback, so that a foreign name that resolves to 127.0.0.1 does not help (DNS
rebinding).
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import stat
import sys
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from raydoctor.agents import child
from raydoctor.capture import owners
from raydoctor.model.errors import RaydoctorError
from raydoctor.observe.collector.programs import peers
from raydoctor.observe.processes import proc

_HOST = "127.0.0.1"
_PATH = "/mcp"
_BACKLOG = 128
_LEAST = 16
"""Characters of a token."""


class TokenCheck:
    """Passes on requests with the token, and answers all others with 401."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request (ASGI)."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) == 1 and hmac.compare_digest(given[0], self._expected):
            await self._app(scope, receive, send)
            return
        reply = PlainTextResponse(
            "The token is missing or wrong.\n", 401, {"WWW-Authenticate": "Bearer"}
        )
        await reply(scope, receive, send)


def token_from(path: str) -> str:
    """The token in a file that only its owner can read. Raises RaydoctorError otherwise."""
    try:
        with open(path, encoding="ascii", opener=_opened) as stream:
            status = os.fstat(stream.fileno())
            token = stream.read(4096).strip()
    except (OSError, ValueError) as error:
        raise RaydoctorError(f"cannot read {path}: {error}") from None
    if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077 or status.st_uid != os.geteuid():
        raise RaydoctorError(
            f"{path} is not a private file of yours", "Run: chmod 600 on that file."
        )
    if len(token) < _LEAST or not token.isprintable() or " " in token:
        raise RaydoctorError(
            f"{path} holds no token of at least {_LEAST} characters",
            "Make one: python -c 'import secrets; print(secrets.token_urlsafe())'",
        )
    return token


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def serve_http(server: MCPServer[Any], port: int, token: str = "") -> None:
    """Serve on a port of loopback (0: any free one) until interrupted; without a token, one is made and
    printed.

    Raises RaydoctorError if the port is taken.
    """
    import uvicorn

    listener = _listener(port)
    port = listener.getsockname()[1]
    hosts = [f"{_HOST}:{port}", f"localhost:{port}"]
    app = server.streamable_http_app(
        streamable_http_path=_PATH,
        host=_HOST,
        transport_security=TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=[]),
    )
    print(f"raydoctor: MCP server at http://{_HOST}:{port}{_PATH}", file=sys.stderr)
    if not token:
        token = secrets.token_urlsafe(32)
        print(f"  Header of every request: Authorization: Bearer {token}", file=sys.stderr)
    sys.stderr.flush()
    config = uvicorn.Config(
        TokenCheck(app, token), log_level="error", access_log=False, timeout_graceful_shutdown=3
    )
    child.end_on_hangup()
    uvicorn.Server(config).run(sockets=[listener])


class _Listener(socket.socket):
    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection. Raises BlockingIOError if there is none, or it is another user's."""
        connection, address = super().accept()
        if proc.LINUX and not _may_enter(connection):
            connection.close()
            raise BlockingIOError  # the loop serves others, and asks again
        return connection, address


def _may_enter(connection: socket.socket) -> bool:
    try:
        return peers.client_of(connection) in owners.trusted()
    except OSError:  # it is closed already
        return False


def _listener(port: int) -> socket.socket:
    listener = _Listener()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((_HOST, port))
        # Until then, another user can bind the port as well, and would get the clients' token.
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise RaydoctorError(
            f"cannot listen on {_HOST}:{port}: {error.strerror}", "Choose another port, or 0."
        ) from None
    return listener

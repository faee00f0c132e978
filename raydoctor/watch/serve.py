"""The metrics of a watch over HTTP, for a Prometheus server.

Each round replaces the served text, so a request never waits for the watch and costs nothing in the cluster.
Requests are bounded in number, size and time. A request whose `Host` is a name other than the listener's is
refused, so that a web page cannot read the metrics through a name that resolves to this machine.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from socket import AF_INET6, SHUT_RDWR, socket
from typing import Any
from urllib.parse import urlsplit

from raydoctor.model.errors import RaydoctorError

_MOST = 8
"""Requests at once; another one is closed."""
_PATIENCE = 5.0
"""Seconds that a request may take, from the connection to the end of the reply."""
_LOCAL = "127.0.0.1"


def address(text: str) -> tuple[str, int]:
    """Host and port of `9100`, `127.0.0.1:9100` or `[::1]:9100`. Raises ValueError for anything else."""
    split = urlsplit(f"//{_LOCAL}:{text}" if text.isdecimal() else f"//{text}")
    host, port = split.hostname, split.port
    if not host or port is None or "@" in text or split.path or split.query or split.fragment:
        raise ValueError(f"{text} is no HOST:PORT")
    host = _LOCAL if host == "localhost" else host
    ip_address(host)
    return host, port


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a listener at this IP address."""
    return ip_address(host).is_loopback


class MetricsServer:
    """Serves `text` at `/metrics` while the block runs. Raises RaydoctorError if it cannot listen."""

    def __init__(self, host: str, port: int, content_type: str) -> None:
        self.text = ""
        """What is served; replaced as a whole."""
        self.content_type = content_type
        try:
            self._server = _Server((host, port), self)
        except OSError as error:
            raise RaydoctorError(
                f"cannot listen on {host}:{port}: {error.strerror}",
                "Choose another port: raydoctor watch --serve PORT",
            ) from None
        self.port: int = self._server.server_address[1]
        """The port, even if 0 was requested."""

    def __enter__(self) -> MetricsServer:
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(self, at: tuple[str, int], metrics: MetricsServer) -> None:
        self.metrics = metrics
        self._room = threading.BoundedSemaphore(_MOST)
        if ":" in at[0]:
            self.address_family = AF_INET6
        super().__init__(at, _Handler)

    def server_bind(self) -> None:
        """Bind without a look-up of the host's name, which can take seconds."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Refuse a client beyond the limit: a thread each would be a way to fill the memory."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # the thread could not be started
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one client, in limited time also if it sends a byte now and then."""
        end = threading.Timer(_PATIENCE, _cut, [request])
        end.daemon = True
        try:
            end.start()
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._room.release()

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """A client that disconnects does not disturb the watch."""


def _cut(link: socket) -> None:
    with suppress(OSError):
        link.shutdown(SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "raydoctor", ""

    def do_GET(self) -> None:
        """The metrics, at one path."""
        if not self._is_for_us():
            self.send_error(403, "The Host header names another server")
        elif urlsplit(self.path).path not in ("/", "/metrics"):
            self.send_error(404, "The metrics are at /metrics")
        elif not self.server.metrics.text:
            self.send_error(503, "The cluster has not been read yet")
        else:
            body = self.server.metrics.text.encode()
            self.send_response(200)
            self.send_header("Content-Type", self.server.metrics.content_type)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815

    def _is_for_us(self) -> bool:
        """Whether the client asked for an address or for `localhost`, and not for a name of its choice."""
        try:
            host = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
            return host == "localhost" or bool(ip_address(host))
        except ValueError:
            return False

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's own name
        """Print nothing: standard error belongs to the watch."""

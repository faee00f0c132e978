"""The port of a debugger in a process: only the process's user and root can connect, and it can be closed.

debugpy accepts every connection without a password. A `GuardedSocket` replaces the socket that debugpy
listens on (`create_server_socket` in pydevd, debugpy 1.5 to 1.8). The kernel lists the user at the other end
of a connection (`/proc/self/net/tcp`, proc(5)), so connections of other users are closed before a byte is
read. Across `ssh -L` the other end is the user's own sshd.

Uses only the standard library: `arm.py` loads this file in processes without raydoctor.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import NamedTuple

_REFUSED = 0.05
"""Seconds until the next connection after a refused one: each costs a read of the kernel's table."""
_ESTABLISHED = "01"
_MAPPED = "0000000000000000FFFF0000"
"""Prefix of IPv4 addresses in the table of IPv6 sockets: `::ffff:127.0.0.1`."""


class Peer(NamedTuple):
    """The socket at the other end of a connection."""

    user: int
    inode: str


class GuardedSocket:
    """Acts as debugpy's listening socket; opens and closes real sockets as requested."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._listener: socket.socket | None = None
        self._until = 0.0
        self._is_dead = False

    def open(self, host: str, port: int, seconds: float = 0.0) -> tuple[str, int]:
        """Listen, unless it does already; returns the address. Raises OSError.

        It closes by itself after `seconds`; 0: it stays open. A socket that is to stay open stays open.
        """
        with self._changed:
            if self._listener is None:
                self._listener = _listening(host, port)
                self._until = time.monotonic() + seconds if seconds else 0.0
            elif not seconds:
                self._until = 0.0
            self._changed.notify_all()
        return self.getsockname()

    def shut(self) -> None:
        """Stop listening; accepted connections stay open."""
        with self._changed:
            if self._listener is None:
                return
            with suppress(OSError):
                # Wakes `accept`, and also affects forks of the process.
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None

    @property
    def is_open(self) -> bool:
        """Whether it listens."""
        return self._listener is not None

    # ------------------------------------------------------------------ the methods of a socket

    def getsockname(self) -> tuple[str, int]:
        """Its address. Raises OSError if it does not listen."""
        listener = self._listener
        if listener is None:
            raise OSError("the port is closed")
        host, port = listener.getsockname()[:2]
        return str(host), int(port)

    def listen(self, backlog: int = 0) -> None:
        """Has no effect."""

    def settimeout(self, seconds: float | None) -> None:
        """Has no effect."""

    def shutdown(self, how: int) -> None:
        """Stop listening."""
        self.shut()

    def close(self) -> None:
        """Stop listening permanently."""
        self._is_dead = True
        self.shut()
        with self._changed:
            self._changed.notify_all()

    def accept(self) -> tuple[socket.socket, object]:
        """The next connection of a permitted user. Raises OSError once it is closed permanently."""
        while not self._is_dead:
            with self._changed:
                while self._listener is None and not self._is_dead:
                    self._changed.wait()
                listener, until = self._listener, self._until
            if listener is None:
                continue
            try:
                listener.settimeout(max(0.01, until - time.monotonic()) if until else None)
                connection, address = listener.accept()
            except socket.timeout:  # noqa: UP041 - another class before Python 3.10
                if self._until and time.monotonic() >= self._until:
                    self.shut()
                continue
            except OSError:  # it was closed meanwhile; or the process has too many open files
                time.sleep(_REFUSED)
                continue
            if may_enter(connection):
                connection.settimeout(None)
                return _Connection(fileno=connection.detach()), address
            connection.close()
            time.sleep(_REFUSED)
        raise OSError("the port is closed")


class _Connection(socket.socket):
    """A connection that passes data to debugpy only if it begins like the DAP protocol.

    debugpy skips lines that it does not understand, so that a web page in the user's browser could send
    commands in the body of an HTTP request.
    """

    _BEGINNING = b"content-length:"
    _begun = b""

    def recv(self, size: int, flags: int = 0) -> bytes:
        """The next bytes; none if the peer is not a debugger."""
        data = super().recv(size, flags)
        if len(self._begun) < len(self._BEGINNING):
            self._begun += data[: len(self._BEGINNING)].lower()
            if self._BEGINNING[: len(self._begun)] != self._begun[: len(self._BEGINNING)]:
                with suppress(OSError):
                    self.shutdown(socket.SHUT_RDWR)
                return b""
        return data


def _listening(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(8)
    except OSError:
        listener.close()
        raise
    return listener


def may_enter(connection: socket.socket) -> bool:
    """Whether a connection belongs to this user or root, or does not use a loopback address."""
    try:
        if not ipaddress.ip_address(connection.getsockname()[0].partition("%")[0]).is_loopback:
            return True  # the user of a process on another machine is unknown
        peer = peer_of(connection)
        # Some kernels list a closing socket as root's; it is gone a moment later.
        return peer is not None and peer.user in (os.geteuid(), 0) and peer == peer_of(connection)
    except (OSError, ValueError):
        return False


def peer_of(connection: socket.socket) -> Peer | None:
    """The other end; None if the kernel does not list exactly one, or it is being closed."""
    ends = [_spelled(*each[:2]) for each in (connection.getpeername(), connection.getsockname())]
    rows = [row for name in ("tcp", "tcp6") for row in _rows(name, ends)]
    if len(rows) != 1:
        return None
    state, user, inode = rows[0][3], int(rows[0][7]), rows[0][9]
    if state != _ESTABLISHED or inode == "0" or _is_unmapped(user):
        return None
    return Peer(user, inode)


def _rows(name: str, ends: list[str]) -> list[list[str]]:
    """Rows of the kernel's table for the connection from one end to the other (proc_net_tcp.rst)."""
    found = []
    with suppress(FileNotFoundError), open(f"/proc/self/net/{name}", encoding="ascii") as stream:
        for line in stream:
            if ends[0] in line and ends[1] in line:
                words = line.split()
                if [each.replace(_MAPPED, "", 1) for each in words[1:3]] == ends:
                    found.append(words)
    return found


def _spelled(host: str, port: int) -> str:
    """An address in the kernel's notation: words of 4 bytes in native byte order."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    data = address.packed
    words = [int.from_bytes(data[at : at + 4], sys.byteorder) for at in range(0, len(data), 4)]
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"


def _is_unmapped(user: int) -> bool:
    """Whether the number stands for all users that this container does not map (user_namespaces(7))."""
    if not user:
        return False
    with open("/proc/self/uid_map", encoding="ascii") as stream:
        is_all = stream.read().split() == ["0", "0", "4294967295"]
    with open("/proc/sys/kernel/overflowuid", encoding="ascii") as stream:
        return not is_all and user == int(stream.read())

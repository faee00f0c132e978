"""Connections to a cluster, made only to listeners of permitted users; also used by the child programs.

Any local user can listen on a port that a dead dashboard or GCS has released. The kernel reports the owner of
the socket at the other end of a loopback connection, so each connection itself is checked: a listener that is
replaced later has no access to an existing connection. gRPC opens its connections itself, and again after an
error; instead, a relay inside this process (`Relay`) opens and checks them.

Linux only: `sock_diag(7)` takes microseconds; `/proc/net/tcp`, which takes 10 ms on a large machine, is read
if a sandbox (gVisor) has no `sock_diag`. On other systems the owner is unknown, and no token is sent.

Imports no other module of raydoctor: the programs load it from this folder.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from contextlib import suppress
from typing import Any, NamedTuple

_CONNECT_S = 0.5
_CHUNK = 1 << 18
_SOCK_DIAG_BY_FAMILY = 20
_ESTABLISHED, _SYN_RECV, _LISTEN = 1, 3, 10
UNVOUCHED = "{} is on another machine, and only an unverified process names it (use it: --address)"
UNKNOWN = "the owner of the listener at {} cannot be determined (use it: --address)"


class Access(NamedTuple):
    """The token for a cluster, and the listeners that may receive it."""

    token: str = ""
    uids: tuple[int, ...] | None = None
    """Users on this machine whose listeners may be connected to; None: only the current user."""
    typed: tuple[str, ...] = ()
    """Addresses that the user typed: their listeners may belong to any user."""
    elsewhere: bool = True
    """Whether connections to other machines are permitted."""

    def __repr__(self) -> str:
        """Without the token: a traceback or a log may print it."""
        return f"Access(uids={self.uids}, typed={self.typed}, elsewhere={self.elsewhere})"

    def without_token(self) -> Access:
        """The same listeners, without the token."""
        return self._replace(token="")


class RefusedListenerError(OSError):
    """The listener belongs to a user who must not receive this; the message names the user."""


def access_of(fields: list[Any]) -> Access:
    """An `Access` from its JSON."""
    token, uids, typed, elsewhere = fields
    return Access(token, None if uids is None else tuple(uids), tuple(typed), elsewhere)


def connect(address: str, access: Access, timeout: float = _CONNECT_S) -> socket.socket:
    """A TCP connection to `host:port` after a check of its listener, with a socket timeout of `timeout` s.

    Raises RefusedListenerError, OSError, and ValueError for a malformed address.
    """
    host, _, port = address.rpartition(":")
    link = socket.create_connection((host.strip("[]"), int(port)), timeout)
    try:
        verify(link, address, access)
    except BaseException:
        link.close()
        raise
    return link


def check(address: str, access: Access) -> None:
    """Check a listener before another client connects to it. Raises RefusedListenerError only."""
    try:
        connect(address, access).close()
    except RefusedListenerError:
        raise
    except (OSError, ValueError):
        return


def verify(link: socket.socket, address: str, access: Access) -> None:
    """Raise RefusedListenerError if `access` does not permit the other end of this connection."""
    if address in access.typed:
        return
    peer = link.getpeername()[:2]
    if not is_local(peer[0]):
        if not access.elsewhere:
            raise RefusedListenerError(UNVOUCHED.format(address))
        return
    owner = _listener(peer, link.getsockname()[:2])
    allowed = (os.geteuid(),) if access.uids is None else access.uids
    if owner is None:
        if access.token:
            raise RefusedListenerError(UNKNOWN.format(address))
    elif owner not in allowed:
        raise RefusedListenerError(f"the listener at {address} belongs to {name_of(owner)}")


def owner_of(address: str, timeout: float = _CONNECT_S) -> int | None:
    """The user who listens at `host:port` on this machine; None if there is no such listener."""
    host, _, port = address.rpartition(":")
    with (
        suppress(OSError, ValueError),
        socket.create_connection((host.strip("[]"), int(port)), timeout) as link,
    ):
        peer = link.getpeername()[:2]
        return _listener(peer, link.getsockname()[:2]) if is_local(peer[0]) else None
    return None


def client_of(link: socket.socket) -> int | None:
    """The user at the other end of an accepted connection within this machine.

    None if it cannot be determined, or that end is being closed: some kernels list it as root's then.
    """
    peer, own = link.getpeername()[:2], link.getsockname()[:2]
    try:
        found = _by_netlink(peer, own) if hasattr(socket, "AF_NETLINK") else None
    except OSError:
        found = _by_proc(peer, own)
    is_live = found is not None and found.state == _ESTABLISHED and found.inode
    return found.uid if found is not None and is_live else None


def is_elsewhere(address: str) -> bool:
    """Whether `host:port` is on another machine. Raises OSError if the host cannot be resolved."""
    host, _, port = address.rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    return not any(is_local(str(where[0])) for *_, where in found)


def name_of(uid: int) -> str:
    """`user alice`, or `uid 1234` for a user without a name."""
    import pwd

    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except (KeyError, OverflowError):
        return f"uid {uid}"


def is_local(ip: str) -> bool:
    """Whether an address belongs to this machine: only those can be bound."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((ip, 0))
        return True
    return False


# ------------------------------------------------------------------ the owner of a listener


class _Row(NamedTuple):
    """A socket, as the kernel lists it."""

    state: int
    uid: int
    inode: int


def _listener(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """The uid at the other end of a connection within this machine; None if it cannot be determined.

    A connection that is not accepted yet has no owner (inode 0; older kernels report uid 0). It is in the
    listener's queue, which ends with the listener, so the listener's owner counts.
    """
    lookup = _by_netlink if hasattr(socket, "AF_NETLINK") else _unknown
    try:
        found = lookup(peer, own)
    except OSError:
        lookup = _by_proc
        found = lookup(peer, own)
    if found is None or found.state == _LISTEN:
        return None
    if found.inode == 0 or found.state == _SYN_RECV:
        found = lookup(peer, ("::" if ":" in peer[0] else "0.0.0.0", 0))
        if found is None or found.state != _LISTEN:
            return None
    return found.uid


def _unknown(peer: tuple[str, int], own: tuple[str, int]) -> _Row | None:
    return None


def _by_netlink(peer: tuple[str, int], own: tuple[str, int]) -> _Row | None:
    """One socket by `sock_diag(7)`, which finds it like a packet's receiver. Raises OSError without it."""
    family = socket.AF_INET6 if ":" in peer[0] else socket.AF_INET
    ends = struct.pack(">HH", peer[1], own[1])
    for ip, _ in (peer, own):
        ends += socket.inet_pton(family, ip.partition("%")[0]).ljust(16, b"\0")
    body = (
        struct.pack("=BBxxI", family, socket.IPPROTO_TCP, 0xFFFFFFFF)
        + ends
        + b"\0\0\0\0"
        + b"\xff" * 8
    )
    head = struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, 1, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as diag:
        diag.settimeout(_CONNECT_S)
        diag.send(head + body)
        reply = diag.recv(8192)
    kind = struct.unpack_from("=H", reply, 4)[0]
    if kind != _SOCK_DIAG_BY_FAMILY:
        error = -struct.unpack_from("=i", reply, 16)[0]
        if error == 2:  # ENOENT: there is no such socket
            return None
        raise OSError(error, os.strerror(error))
    uid, inode = struct.unpack_from("=II", reply, 16 + 4 + 48 + 12)
    return _Row(reply[17], uid, inode)


def _by_proc(peer: tuple[str, int], own: tuple[str, int]) -> _Row | None:
    """The same from `/proc/net/tcp` and `tcp6`; None if they cannot be read.

    None also if listeners of different users could have received the connection.
    """
    listeners = []
    for name in ("tcp", "tcp6"):
        with suppress(OSError), open(f"/proc/net/{name}", encoding="ascii") as stream:
            for line in stream.readlines()[1:]:
                words = line.split()
                local, remote = _end_of(words[1]), _end_of(words[2])
                row = _Row(int(words[3], 16), int(words[7]), int(words[9]))
                if (local, remote) == (peer, own) and row.state != _LISTEN:
                    return row
                if row.state == _LISTEN and local[1] == peer[1]:
                    listeners.append((local[0] in ("0.0.0.0", "::", peer[0]), row))
    fitting = [row for fits, row in listeners if fits]
    return fitting[0] if fitting and len({row.uid for row in fitting}) == 1 else None


def _end_of(word: str) -> tuple[str, int]:
    """`0100007F:1F90` -> `("127.0.0.1", 8080)`; an IPv4-mapped IPv6 address becomes an IPv4 address."""
    ip, _, port = word.partition(":")
    raw = b"".join(
        struct.pack("=I", int(ip[start : start + 8], 16)) for start in range(0, len(ip), 8)
    )
    if raw.startswith(b"\0" * 10 + b"\xff\xff"):
        raw = raw[12:]
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, raw), int(port, 16)


# ------------------------------------------------------------------ the relay for gRPC


class _End:
    """One end of a relayed connection."""

    __slots__ = ("other", "socket", "waiting")

    def __init__(self, link: socket.socket) -> None:
        self.socket = link
        self.other = self
        self.waiting = b""
        """Bytes from the other end that could not be sent yet; until then the other end is not read."""


class Relay:
    """Abstract Unix sockets, each forwarding to one address through checked connections.

    Only this process can connect to them. One daemon thread serves all of them. The relay adds 0.1 ms of CPU
    time to a call of `watch`.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._doors: dict[int, tuple[socket.socket, str]] = {}
        self._ready: dict[str, list[socket.socket]] = {}
        self._ends: dict[int, _End] = {}
        self._room = memoryview(bytearray(_CHUNK))
        self._poll: select.epoll | None = None

    def lead(self, address: str, link: socket.socket) -> str:
        """A gRPC target that forwards to an address; `link` is its first connection, already checked."""
        name = f"raydoctor-{os.urandom(16).hex()}"
        door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        door.bind(f"\0{name}")
        door.listen(16)
        door.setblocking(False)
        self._ready.setdefault(address, []).append(link)
        self._doors[door.fileno()] = door, address
        if self._poll is None:
            self._poll = select.epoll()
            serve = threading.Thread(
                target=self._serve, args=(self._poll,), name="relay", daemon=True
            )
            serve.start()
        self._poll.register(door.fileno(), select.EPOLLIN)
        return f"unix-abstract:{name}"

    def _serve(self, poll: select.epoll) -> None:
        while True:
            for number, event in poll.poll():
                if end := self._ends.get(number):
                    try:
                        is_open = self._move(poll, end, event)
                    except OSError:
                        is_open = False
                    if not is_open:
                        self._close(end)
                elif door := self._doors.get(number):
                    self._accept(poll, *door)

    def _move(self, poll: select.epoll, end: _End, event: int) -> bool:
        """Forward bytes from an end, or those that wait for it; False when the connection is closed."""
        if end.waiting and event & select.EPOLLOUT:
            end.waiting = end.waiting[end.socket.send(end.waiting) :]
            _watch(poll, end)
            return True
        if end.other.waiting:
            return not event & (select.EPOLLHUP | select.EPOLLERR)
        try:
            count = end.socket.recv_into(self._room)
        except BlockingIOError:  # an event of a previous connection with the same descriptor
            return True
        try:
            sent = end.other.socket.send(self._room[:count]) if count else 0
        except BlockingIOError:
            sent = 0
        if sent < count:
            end.other.waiting = bytes(self._room[sent:count])
            _watch(poll, end)
        return count > 0

    def _accept(self, poll: select.epoll, door: socket.socket, address: str) -> None:
        try:
            client, _ = door.accept()
        except OSError:
            return
        who = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        try:
            if struct.unpack("=iII", who)[0] != os.getpid():
                raise RefusedListenerError("another process")
            waiting = self._ready.get(address)
            link = waiting.pop() if waiting else connect(address, self._access)
        except (OSError, ValueError):
            client.close()  # gRPC reports a closed connection
            return
        ends = _End(client), _End(link)
        for each, other in (ends, ends[::-1]):
            each.other = other
            each.socket.setblocking(False)
            self._ends[each.socket.fileno()] = each
            poll.register(each.socket.fileno(), select.EPOLLIN)

    def _close(self, end: _End) -> None:
        for each in (end, end.other):
            self._ends.pop(each.socket.fileno(), None)
            each.socket.close()  # also removes it from the poll


def _watch(poll: select.epoll, end: _End) -> None:
    """Select the events to wait for: an end is not read while the other one cannot receive more."""
    for each in (end, end.other):
        mask = select.EPOLLOUT if each.waiting else 0
        poll.modify(each.socket.fileno(), mask if each.other.waiting else mask | select.EPOLLIN)

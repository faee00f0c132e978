"""Resources that processes hold: ports and GPU memory; and the clients of a process.

Facts: proc(5) and Documentation/networking/proc_net_tcp.rst of Linux. A line of `/proc/PID/net/tcp` has the
local and the remote address (hexadecimal), the state (`0A` listens, `01` is established) and the inode of the
socket, which is the same number as in `/proc/PID/fd/N -> socket:[inode]`, in whatever network namespace.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.table import Piece
from raydoctor.observe.machine import gpus
from raydoctor.observe.processes.redact import command_line

_LISTENS, _CONNECTED = "0A", "01"
_SOCKET = "socket:["
_FILES = 4096


class _Socket(NamedTuple):
    local: str
    remote: str
    state: str
    inode: int

    @property
    def port(self) -> int:
        return int(self.local.rpartition(":")[2], 16)


def ports(pids: Iterable[int]) -> dict[int, tuple[int, ...]]:
    """The TCP ports that each of these processes listens on; processes without any are left out."""
    found: dict[int, tuple[int, ...]] = {}
    # The kernel takes 10 ms to list the sockets of a network namespace, however few they are.
    networks: dict[str, list[_Socket]] = {}
    for pid in pids:
        if mine := _inodes(pid):
            network = _network(pid)
            if network not in networks:
                networks[network] = [s for s in _sockets(pid) if s.state == _LISTENS]
            if its := {s.port for s in networks[network] if s.inode in mine}:
                found[pid] = tuple(sorted(its))
    return found


def _network(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return f"of pid {pid}"


def clients(pid: int, processes: Iterable[int]) -> set[int] | None:
    """Which of these processes are connected to its ports; None if there are other clients, or unknown.

    Other clients are on another machine, in another container, or of another user.
    """
    table, mine = _sockets(pid), _inodes(pid)
    listening = {s.port for s in table if s.state == _LISTENS and s.inode in mine}
    if not listening:
        return None
    accepted = [s for s in table if s.state == _CONNECTED and s.port in listening]
    by_ends = {(s.local, s.remote): s.inode for s in table if s.state == _CONNECTED}
    wanted = {by_ends.get((s.remote, s.local), 0) for s in accepted}
    owners = {inode: p for p in processes for inode in _inodes(p) & wanted}
    return set(owners.values()) if wanted <= owners.keys() else None


def gpu_memory() -> dict[int, int]:
    """Bytes that each process holds on all GPUs together; empty if unknown."""
    found: dict[int, int] = {}
    for piece in gpus.tables(Cluster()):
        if isinstance(piece, Piece) and piece.path.endswith("-gpu-processes.json"):
            for row in json.loads(piece.data)["rows"]:
                pid, held = row["pid"], row["memory"]
                # In a container the pids may be the host's: the title must match as well.
                if pid and held and row["title"].startswith(command_line(pid)[:100] or "\0"):
                    found[pid] = found.get(pid, 0) + held
    return found


def _inodes(pid: int) -> set[int]:
    """Inodes of its open sockets."""
    folder = f"/proc/{pid}/fd"
    found = set()
    with suppress(OSError):
        for name in os.listdir(folder)[:_FILES]:
            with suppress(OSError):
                target = os.readlink(f"{folder}/{name}")
                if target.startswith(_SOCKET):
                    found.add(int(target[len(_SOCKET) : -1]))
    return found


def _sockets(pid: int) -> list[_Socket]:
    """All TCP sockets of its network namespace."""
    found = []
    for name in ("tcp", "tcp6"):
        with suppress(OSError), open(f"/proc/{pid}/net/{name}", encoding="ascii") as stream:
            next(stream, None)
            for line in stream:
                words = line.split()
                if len(words) > 9 and words[9].isdigit():
                    local, remote = _plain(words[1]), _plain(words[2])
                    found.append(_Socket(local, remote, words[3], int(words[9])))
    return found


_MAPPED = "0000000000000000FFFF0000"
"""How an IPv4 address begins in the table of IPv6 sockets (`::ffff:127.0.0.1`), in words of 4 bytes."""


def _plain(address: str) -> str:
    """The IPv4 form of an IPv4-mapped address: the two ends may be in different tables."""
    return address.removeprefix(_MAPPED) if len(address) > 32 else address

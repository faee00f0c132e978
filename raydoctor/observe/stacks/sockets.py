"""The sockets of a process with both ends, from `/proc/PID/net` of its own network namespace."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from raydoctor.model.patterns import pattern

Row = dict[str, Any]
_FILES = (("tcp", "tcp"), ("tcp6", "tcp"), ("udp", "udp"), ("udp6", "udp"))
_MOST = 32 << 20
"""Bytes of a table: a server may have a million connections."""
_STATES = (
    *("", "ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT", "CLOSE"),
    *("CLOSE_WAIT", "LAST_ACK", "LISTEN", "CLOSING", "NEW_SYN_RECV"),
)
"""`include/net/tcp_states.h`."""


def rows(pid: int, links: Mapping[int, str], used: Mapping[int, list[int]]) -> list[Row]:
    """Its sockets, those with waiting threads first. `links`: targets of its descriptors."""
    inodes = {path[8:-1]: number for number, path in links.items() if path.startswith("socket:[")}
    found = {}
    if inodes:
        for inode, row in (*_internet(pid, inodes), *_unix(pid, inodes)):
            number = inodes[inode]
            found[number] = {"fd": number, **row, "tids": used.get(number, [])}
    return sorted(found.values(), key=lambda row: (not row["tids"], row["fd"]))


def _internet(pid: int, inodes: Mapping[str, int]) -> Iterator[tuple[str, Row]]:
    for name, kind in _FILES:
        for words in _table(pid, name):
            if len(words) > 9 and words[9] in inodes:
                state = int(words[3], 16)
                yield (
                    words[9],
                    {
                        "type": kind,
                        "local": _address(words[1]),
                        "peer": _address(words[2]),
                        "state": _STATES[state] if state < len(_STATES) else "",
                    },
                )


def _unix(pid: int, inodes: Mapping[str, int]) -> Iterator[tuple[str, Row]]:
    """Unix sockets; the kernel does not list their peer there."""
    for words in _table(pid, "unix"):
        if len(words) > 6 and words[6] in inodes:
            path = words[7] if len(words) > 7 else ""
            state = {"01": "LISTEN" if words[3] == "00010000" else "", "03": "ESTABLISHED"}
            ends = {"local": path, "peer": "", "state": state.get(words[5], "")}
            yield words[6], {"type": "unix", **ends}


def _table(pid: int, name: str) -> Iterator[list[str]]:
    try:
        with open(f"/proc/{pid}/net/{name}", "rb") as stream:
            data = stream.read(_MOST)
    except OSError:
        return
    for line in data.decode("ascii", "replace").splitlines()[1:]:
        yield line.split()


def _address(entry: str) -> str:
    """`0100007F:1F90` -> `127.0.0.1:8080`; empty for no peer."""
    match = pattern(r"((?:[0-9A-F]{8}){1,4}):([0-9A-F]{4})").fullmatch(entry)
    if match is None:
        return ""
    port = int(match[2], 16)
    words = [int(match[1][at : at + 8], 16) for at in range(0, len(match[1]), 8)]
    if not port and not any(words):
        return ""
    # Each word is in the processor's byte order, the address in network byte order.
    order = "<" if sys.byteorder == "little" else ">"
    packed = struct.pack(f"{order}{len(words)}I", *words)
    if len(packed) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, packed)}:{port}"
    if packed.startswith(b"\0" * 10 + b"\xff\xff"):
        return f"{socket.inet_ntop(socket.AF_INET, packed[12:])}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, packed)}]:{port}"

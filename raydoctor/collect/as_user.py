"""Starting a program as another user: as root, what may run a user's code runs with that user's rights.

A program so started has none of our privileges and none of our environment: its home and its groups are the
user's, its working folder is `/`, and it has no terminal. What it prints is to be read as that user's text.
"""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from raydoctor.collect import proc

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LANGUAGE = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")
_PRIVATE = 0o077
_LISTEN = "0A"


class User(NamedTuple):
    """Whom a program runs as."""

    uid: int
    gid: int
    name: str
    home: str


def of_process(pid: int) -> frozenset[int]:
    """The users whose rights a process has: a set-uid program has two; none where it is gone."""
    if not proc.LINUX:
        owner = proc.owner(pid)
        return frozenset() if owner is None else frozenset((owner,))
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as stream:
            line = next((each for each in stream if each.startswith("Uid:")), "")
    except OSError:
        return frozenset()
    return frozenset(map(int, line.split()[1:]))  # real, effective, saved, and that of files


def of_listener(address: str) -> frozenset[int]:
    """The users who listen at `host:port` on this machine; none where it is another machine's.

    The kernel lists the owner of every socket of this network namespace: proc_net_tcp.rst.
    """
    host, _, port = address.rpartition(":")
    try:
        places = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return frozenset()
    ips = {str(where[0]) for *_, where in places}
    if not all(map(_is_local, ips)):
        return frozenset()
    rows = [row for name in ("tcp", "tcp6") for row in _sockets(name)]
    return frozenset(
        int(uid)
        for _, local, _, state, _, _, _, uid, *_ in rows
        if state == _LISTEN and int(local.rpartition(":")[2], 16) == int(port)
    )


def _is_local(ip: str) -> bool:
    """Whether an address is this machine's: others cannot be bound."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((ip, 0))
    except OSError:
        return False
    return True


def _sockets(name: str) -> list[list[str]]:
    try:
        with open(f"/proc/net/{name}", encoding="ascii") as stream:
            return [line.split() for line in stream][1:]
    except OSError:
        return []


def find(uid: int) -> User:
    """A user, with the group of that number where nobody is registered under it (containers)."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return User(uid, uid, str(uid), "/")
    return User(uid, entry.pw_gid, entry.pw_name, entry.pw_dir)


def environment(user: User, passed: Iterable[str] = ()) -> dict[str, str]:
    """What the user's program gets: of our variables only the language and those in `passed`."""
    kept = {name: os.environ[name] for name in (*_LANGUAGE, *passed) if name in os.environ}
    own = {"HOME": user.home, "USER": user.name, "LOGNAME": user.name, "PATH": _SYSTEM_PATH}
    return {**kept, **own}


def options(user: User, env: Mapping[str, str]) -> dict[str, Any]:
    """For `subprocess.Popen`, which sets real, effective and saved ids before it runs the program.

    Raises KeyError where the user's groups cannot be listed. Popen raises PermissionError where the user may
    not run the program.
    """
    return {
        "user": user.uid,
        "group": user.gid,
        "extra_groups": os.getgrouplist(user.name, user.gid),
        "umask": _PRIVATE,
        "env": dict(env),
        "cwd": "/",
        "start_new_session": True,  # no terminal of ours either
    }

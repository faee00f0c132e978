"""A network of its own for the demo's processes (Linux): a loopback that no other user's process can reach.

Root may create one. Other users may where the kernel lets them create a user namespace, in which they keep
their uid.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
from functools import cache
from pathlib import Path

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
"""CLONE_NEWUSER and CLONE_NEWNET (unshare(2)); Python has them from 3.12 on."""
_SET_FLAGS, _UP_AND_RUNNING = 0x8914, 0x41
"""SIOCSIFFLAGS, and IFF_UP | IFF_RUNNING (netdevice(7))."""


@cache
def is_available() -> bool:
    """Whether a child process can have such a network: one tries it."""
    if not sys.platform.startswith("linux"):
        return False
    command = [sys.executable, "-I", "-S", "-c", "pass"]
    try:
        subprocess.run(command, preexec_fn=enter, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def enter() -> None:
    """Move this process and its later children to a new network; OSError or AttributeError if it cannot."""
    user, group = os.geteuid(), os.getegid()
    unshare = ctypes.CDLL(None, use_errno=True).unshare
    if unshare(_NEW_NET):
        if unshare(_NEW_USER | _NEW_NET):
            raise OSError(ctypes.get_errno(), "unshare")
        own = Path("/proc/self")
        (own / "setgroups").write_bytes(b"deny")
        (own / "uid_map").write_bytes(b"%d %d 1" % (user, user))
        (own / "gid_map").write_bytes(b"%d %d 1" % (group, group))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP_AND_RUNNING))

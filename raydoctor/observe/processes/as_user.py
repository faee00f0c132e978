"""Starts a program as another user: root runs a program that may execute a user's code as that user.

The program has none of root's privileges and environment: its home and groups are the user's, its working
folder is `/`, and it has no terminal. Its output is controlled by that user.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LANGUAGE = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")
_PRIVATE = 0o077


class User(NamedTuple):
    """The user for a program."""

    uid: int
    gid: int
    name: str
    home: str


def find(uid: int) -> User:
    """A user; an unregistered one (containers) gets the group of the same number."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return User(uid, uid, str(uid), "/")
    return User(uid, entry.pw_gid, entry.pw_name, entry.pw_dir)


def environment(user: User, passed: Iterable[str] = ()) -> dict[str, str]:
    """The environment of the user's program: of ours, only the language and the variables in `passed`."""
    kept = {name: os.environ[name] for name in (*_LANGUAGE, *passed) if name in os.environ}
    own = {"HOME": user.home, "USER": user.name, "LOGNAME": user.name, "PATH": _SYSTEM_PATH}
    return {**kept, **own}


def options(user: User, env: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of `subprocess.Popen`, which sets real, effective and saved ids before it runs the program.

    Raises KeyError if the user's groups cannot be listed. Popen raises PermissionError if the user may not
    run the program.
    """
    return {
        "user": user.uid,
        "group": user.gid,
        "extra_groups": os.getgrouplist(user.name, user.gid),
        "umask": _PRIVATE,
        "env": dict(env),
        "cwd": "/",
        "start_new_session": True,  # also no controlling terminal
    }

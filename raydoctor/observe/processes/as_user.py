"""Starting a program as another user: as root, what may run a user's code runs with that user's rights.

A program so started has none of our privileges and none of our environment: its home and its groups are the
user's, its working folder is `/`, and it has no terminal. What it prints is to be read as that user's text.
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
    """Whom a program runs as."""

    uid: int
    gid: int
    name: str
    home: str


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

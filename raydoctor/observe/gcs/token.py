"""The auth token that Ray itself would send as this user: read in Ray's order, never written or shown.

Ray >= 2.52 (`AuthenticationTokenLoader` in `_raylet.so`; 2.60.0 read): `RAY_AUTH_TOKEN`; else the file that
`RAY_AUTH_TOKEN_PATH` names, and no other if it is set; else `~/.ray/auth_token`. White space around the token
is ignored, and an empty one counts as missing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from raydoctor.capture import owners
from raydoctor.observe.collector.cluster import Cluster, Token
from raydoctor.observe.processes import proc

VALUE = "RAY_AUTH_TOKEN"
PATH = "RAY_AUTH_TOKEN_PATH"
_LIMIT = 64 << 10
"""A file larger than this holds no token: `RAY_AUTH_TOKEN_PATH` may name anything."""


def find(
    cluster: Cluster | None = None, environment: Mapping[str, str] | None = None
) -> Token | None:
    """The token, or None; a token that the cluster is known to accept takes precedence.

    As root, another user's cluster receives that user's token and never root's. Variables that the user
    behind `sudo` set for this command count as that user's.
    """
    if cluster is not None and cluster.token is not None:
        return cluster.token
    variables = os.environ if environment is None else environment
    owner = cluster.owner if cluster is not None else None
    if os.geteuid() != 0 or owner in (None, 0):
        return _chosen(variables)
    given = {name: value for name, value in variables.items() if name in (VALUE, PATH)}
    if owner == owners.sudo_user() and (found := _chosen(given)):
        return found
    assert cluster is not None
    return next((t for each in _of_owner(cluster) if (t := _chosen(each, cluster.owner))), None)


def _of_owner(cluster: Cluster) -> Iterator[Mapping[str, str]]:
    """Variables that name the token of a cluster's owner: those of its daemons, then the owner's home."""
    import pwd

    for daemon in cluster.daemons:
        if variables := proc.environment(daemon.pid, (VALUE, PATH, "HOME")):
            yield variables
    with suppress(KeyError):
        yield {"HOME": pwd.getpwuid(cluster.owner or 0).pw_dir}


def _chosen(variables: Mapping[str, str], owner: int | None = None) -> Token | None:
    """The first token in Ray's order. `owner`: the user to whom a file must belong, if not this one."""
    if value := variables.get(VALUE, "").strip():
        return Token(value, VALUE)
    path = _path(variables)
    return _of_file(path, owner) if path is not None else None


def _path(variables: Mapping[str, str]) -> Path | None:
    if named := variables.get(PATH, ""):
        return Path(named)
    home = variables.get("HOME", "")
    return Path(home) / ".ray" / "auth_token" if home else None


def _of_file(path: Path, owner: int | None) -> Token | None:
    try:
        if owner is not None:
            data = owners.read_regular(str(path), _LIMIT + 1, (owner,)).data
        elif not path.is_file():  # a FIFO would hang the read
            return None
        else:
            with path.open("rb") as stream:
                data = stream.read(_LIMIT + 1)
    except OSError:
        return None
    value = data.decode("utf-8", "replace").strip() if len(data) <= _LIMIT else ""
    return Token(value, str(path)) if value else None

"""The auth token that Ray itself would send as this user: read in Ray's order, never written or shown.

Ray >= 2.52 (`AuthenticationTokenLoader` in `_raylet.so`; 2.60.0 read): `RAY_AUTH_TOKEN`; else the file that
`RAY_AUTH_TOKEN_PATH` names, and no other where that is set; else `~/.ray/auth_token`. White space around it
does not count, and what is empty is none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from raydoctor.collect.cluster import Cluster, Token

VALUE = "RAY_AUTH_TOKEN"
PATH = "RAY_AUTH_TOKEN_PATH"
_LIMIT = 64 << 10
"""A file larger than this holds no token: `RAY_AUTH_TOKEN_PATH` may name anything."""


def find(
    cluster: Cluster | None = None, environment: Mapping[str, str] | None = None
) -> Token | None:
    """The token, or None where there is none; what the cluster is known to take goes first."""
    if cluster is not None and cluster.token is not None:
        return cluster.token
    variables = os.environ if environment is None else environment
    if value := variables.get(VALUE, "").strip():
        return Token(value, VALUE)
    path = _path(variables)
    return _of_file(path) if path is not None else None


def _path(variables: Mapping[str, str]) -> Path | None:
    if named := variables.get(PATH, ""):
        return Path(named)
    home = variables.get("HOME", "")
    return Path(home) / ".ray" / "auth_token" if home else None


def _of_file(path: Path) -> Token | None:
    try:
        if not path.is_file():  # a FIFO would hang the read
            return None
        with path.open("rb") as stream:
            data = stream.read(_LIMIT + 1)
    except OSError:
        return None
    value = data.decode("utf-8", "replace").strip() if len(data) <= _LIMIT else ""
    return Token(value, str(path)) if value else None

"""The program inside a Ray task on another node (`observe/nodes/there.py`): one function, JSON to JSON."""

from __future__ import annotations

import importlib
import json
import zlib
from typing import Any

from raydoctor.model.errors import RaydoctorError

_ABOUT = 1024
"""Bytes for the header of the reply."""


def respond(request: bytes, chunks: int, chunk_bytes: int) -> tuple[bytes, ...]:
    """What the task returns: the function's value, split into chunks that Ray returns inline."""
    asked = json.loads(zlib.decompress(request))
    about: dict[str, Any] = {}
    data = b""
    try:
        data = zlib.compress(json.dumps(_function(asked["function"])(asked["ask"])).encode())
    except RaydoctorError as error:
        about = {"problem": str(error), "hint": error.hint}
    room = chunks * chunk_bytes - _ABOUT
    if len(data) > room:
        about, data = (
            {"problem": f"its reply has {len(data):,} bytes, more than the limit of {room:,}"},
            b"",
        )
    whole = json.dumps(about).encode() + b"\n" + data
    return tuple(whole[n * chunk_bytes : (n + 1) * chunk_bytes] for n in range(chunks))


def _function(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)

"""Creates the entry of VS Code's `launch.json` for a debugger, and writes it to the file."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from raydoctor.capture import outputs, owners
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.patterns import pattern

_MOST = 1 << 20
_UNPACKED = r"(.*/runtime_resources/working_dir_files/[^/]+)(?:/.*)?"
"""Where Ray unpacks a `working_dir` (2.9 to 2.60)."""
_MINE = "Ray: "
"""Prefix of the names of raydoctor's entries."""


class PathMapping(NamedTuple):
    """A local folder and the same folder on the worker's node."""

    local: str
    remote: str


def entry(name: str, host: str, port: int, mappings: Sequence[PathMapping] = ()) -> dict[str, Any]:
    """The entry of `launch.json`; VS Code connects directly to debugpy's adapter in the process."""
    made: dict[str, Any] = {
        "name": f"{_MINE}{name}",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": host, "port": port},
        "justMyCode": False,
        "subProcess": False,
    }
    if mappings:
        made["pathMappings"] = [
            {"localRoot": each.local, "remoteRoot": each.remote} for each in mappings
        ]
    return made


def mappings_of(folder: str, is_here: bool) -> list[PathMapping]:
    """Mappings for a worker with this working directory: Ray unpacks a `working_dir` to another path."""
    match = pattern(_UNPACKED).fullmatch(folder)
    if match:
        return [PathMapping("${workspaceFolder}", match[1])]
    return [] if is_here or not folder else [PathMapping("${workspaceFolder}", folder)]


def write(path: Path, made: dict[str, Any]) -> str:
    """Add the entry to the file, or replace one with the same name; returns what was done.

    Raises RaydoctorError if the file is not plain JSON (VS Code allows comments, which would be lost) or
    cannot be written.
    """
    try:
        os.makedirs(os.path.dirname(owners.output_path(str(path))), exist_ok=True)
        with outputs.place(str(path)) as place:  # a link stays a link
            text = _text(place)
            there = json.loads(text) if text.strip() else {"version": "0.2.0"}
            done = _put(there, made)
            if done:
                with place.replaced(place.mode()) as out:
                    out.write((json.dumps(there, indent=4) + "\n").encode())
    except OSError as error:
        raise _untouched(path, error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        raise _untouched(path, "it is not plain JSON with a list of configurations") from error
    return done or "already there"


def _put(there: Any, made: dict[str, Any]) -> str:
    """Insert the entry; returns what was done, empty if it exists already. Raises ValueError."""
    entries = there.setdefault("configurations", []) if isinstance(there, dict) else None
    if not isinstance(entries, list):
        raise ValueError
    if made in entries:
        return ""
    names = [each.get("name") if isinstance(each, dict) else None for each in entries]
    if made["name"] in names:
        entries[names.index(made["name"])] = made
        return "renewed"
    entries.insert(0, made)
    return "added"


def _untouched(path: Path, why: str) -> RaydoctorError:
    return RaydoctorError(
        f"{path} was not changed: {why}", "Add the entry to its list `configurations` yourself."
    )


def _text(place: outputs.OutputPlace) -> str:
    """The file's text; empty if there is none. Raises OSError; ValueError for another kind of file."""
    try:
        file = place.open(os.O_RDONLY)
    except FileNotFoundError:
        return ""
    with open(file, "rb") as stream:
        data = stream.read(_MOST + 1) if stat.S_ISREG(os.fstat(file).st_mode) else None
    if data is None or len(data) > _MOST:
        raise ValueError
    return data.decode("utf-8-sig")

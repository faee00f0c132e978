"""How an IDE connects to a debugger: the entry of VS Code's `launch.json`, and the file with the entry."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from raydoctor.model.errors import RaydoctorError
from raydoctor.model.patterns import pattern

_MOST = 1 << 20
_UNPACKED = r"(.*/runtime_resources/working_dir_files/[^/]+)(?:/.*)?"
"""Where Ray unpacks a `working_dir` (2.9 to 2.60)."""
_MINE = "Ray: "
"""How the names of entries begin that raydoctor has made."""


class PathMapping(NamedTuple):
    """A folder here, and the same where the worker runs."""

    local: str
    remote: str


def entry(name: str, host: str, port: int, mappings: Sequence[PathMapping] = ()) -> dict[str, Any]:
    """The entry of `launch.json`; debugpy's adapter in the process takes VS Code directly."""
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
    """For a worker with this working folder: Ray unpacks a `working_dir` elsewhere than it was."""
    match = pattern(_UNPACKED).fullmatch(folder)
    if match:
        return [PathMapping("${workspaceFolder}", match[1])]
    return [] if is_here or not folder else [PathMapping("${workspaceFolder}", folder)]


def write(path: Path, made: dict[str, Any]) -> str:
    """Put the entry into the file, in the place of one of the same name; what was done.

    Raises RaydoctorError where the file is not plain JSON (VS Code allows comments, which would be lost), and
    where it cannot be written.
    """
    path = path.resolve()  # a link stays one
    try:
        text = path.read_text("utf-8-sig") if path.exists() else ""
        if len(text) > _MOST:
            raise ValueError
        there = json.loads(text) if text.strip() else {"version": "0.2.0"}
        done = _put(there, made)
        if done:
            _replace(path, json.dumps(there, indent=4) + "\n")
    except OSError as error:
        raise _untouched(path, error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        raise _untouched(path, "it is not plain JSON with a list of configurations") from error
    return done or "already there"


def _put(there: Any, made: dict[str, Any]) -> str:
    """What was done to the file's content; nothing where it has the entry. Raises ValueError."""
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
        f"{path} was not changed: {why}", "Put the entry into its list `configurations` yourself."
    )


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, "utf-8")
        if path.exists():
            beside.chmod(path.stat().st_mode & 0o7777)
        beside.replace(path)
    finally:
        with suppress(OSError):
            beside.unlink()

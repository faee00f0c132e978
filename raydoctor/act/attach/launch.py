"""How an IDE gets to a debugger: the entry for VS Code's `launch.json`, and that file with the entry in it.

The file is JSON with comments and trailing commas, made by hand. It is changed as text, so that all else in
it stays as it is; what this does not understand, and what another has made, it leaves alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from re import Match
from typing import Any, NamedTuple

from raydoctor.model.errors import RaydoctorError
from raydoctor.model.patterns import pattern

_MOST = 1 << 20
_UNPACKED = r"(.*/runtime_resources/working_dir_files/[^/]+)(?:/.*)?"
"""Where Ray unpacks a `working_dir` (2.9 to 2.60)."""
_MINE = "Ray: "
"""How the names of entries begin that raydoctor has made."""


class Mapping(NamedTuple):
    """A folder here, and the same where the worker runs."""

    local: str
    remote: str


def entry(name: str, host: str, port: int, mappings: Sequence[Mapping] = ()) -> dict[str, Any]:
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


def mappings_of(folder: str, is_here: bool) -> list[Mapping]:
    """For a worker with this working folder: Ray unpacks a `working_dir` elsewhere than it was."""
    match = pattern(_UNPACKED).fullmatch(folder)
    if match:
        return [Mapping("${workspaceFolder}", match[1])]
    return [] if is_here or not folder else [Mapping("${workspaceFolder}", folder)]


def write(path: Path, made: dict[str, Any]) -> str:
    """Put the entry into the file; what was done. Raises RaydoctorError where it must not be touched."""
    path = path.resolve()  # a link stays one
    try:
        text = path.read_text("utf-8") if path.exists() else ""
        if len(text) > _MOST:
            raise ValueError
        changed, done = with_entry(text, made)
        if changed != text:
            _replace(path, changed)
    except OSError as error:
        raise _untouched(path, error.strerror or str(error)) from error
    except (ValueError, RecursionError) as error:
        raise _untouched(path, "it is not what VS Code writes") from error
    return done


def _untouched(path: Path, why: str) -> RaydoctorError:
    return RaydoctorError(
        f"{path} was not touched: {why}", "Put the entry into its list `configurations` yourself."
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


def with_entry(text: str, made: dict[str, Any]) -> tuple[str, str]:
    """The file's text with the entry, and what was done to it. Raises ValueError where it is no such file."""
    if not text.strip():
        whole = {"version": "0.2.0", "configurations": [made]}
        return json.dumps(whole, indent=4) + "\n", "written"
    bare = _bare(text)
    there = json.loads(_without_trailing_commas(bare))
    entries = there.get("configurations", []) if isinstance(there, dict) else None
    if not isinstance(entries, list):
        raise ValueError
    if made in entries:
        return text, "it was there already"
    start = _list_of_entries(bare)
    if start is None:
        return _with_list(text, bare, made), "added"
    spans = _spans(bare, start)
    for span, old in zip(spans, entries, strict=True):
        if isinstance(old, dict) and old.get("name") == made["name"]:
            return _exchanged(text, bare, span, made)
    return _inserted(text, bare, start, made), "added"


def _exchanged(text: str, bare: str, span: slice, made: dict[str, Any]) -> tuple[str, str]:
    """An entry of before, of the same name, gives way; one that somebody has written in does not."""
    if text[span] != bare[span]:
        raise ValueError
    indent = _indent(text, span.start)
    return text[: span.start] + _lines(made, indent).lstrip() + text[span.stop :], "renewed"


def _inserted(text: str, bare: str, start: int, made: dict[str, Any]) -> str:
    """The entry as the first of the list that begins at `start`."""
    rest = bare[start:].lstrip()
    indent = _indent(text, text.rindex("\n", 0, start) + 1 if "\n" in text[:start] else 0) + "    "
    comma = "" if rest.startswith("]") else ","
    after = "" if comma and text[start:].startswith(("\n", "\r")) else f"\n{indent[:-4]}"
    return f"{text[:start]}\n{_lines(made, indent)}{comma}{after}{text[start:].lstrip(' ')}"


def _with_list(text: str, bare: str, made: dict[str, Any]) -> str:
    """The list, in an object that had none."""
    start = bare.index("{") + 1
    comma = "" if bare[start:].lstrip().startswith("}") else ","
    made_list = f'"configurations": [\n{_lines(made, " " * 8)}\n    ]{comma}'
    return f"{text[:start]}\n    {made_list}{text[start:]}"


def _lines(made: dict[str, Any], indent: str) -> str:
    return "\n".join(indent + each for each in json.dumps(made, indent=4).splitlines())


def _indent(text: str, at: int) -> str:
    begin = text.rfind("\n", 0, at) + 1 if at and text[at - 1] != "\n" else at
    line = text[begin:]
    return line[: len(line) - len(line.lstrip(" \t"))]


# ------------------------------------------------------------------ JSON with comments

_TOKEN = r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/'


def _bare(text: str) -> str:
    """As long, with blanks for comments."""

    def blank(match: Match[str]) -> str:
        token: str = match[0]
        return (
            token if token.startswith('"') else "".join("\n" if c == "\n" else " " for c in token)
        )

    return pattern(f"(?s){_TOKEN}").sub(blank, text).replace("\ufeff", " ")


def _without_trailing_commas(bare: str) -> str:
    def kept(match: Match[str]) -> str:
        return match[0] if match[0].startswith('"') else match[0].replace(",", " ", 1)

    return pattern(r'"(?:[^"\\\n]|\\.)*"|,(?=\s*[\]}])').sub(kept, bare)


def _list_of_entries(bare: str) -> int | None:
    """Behind the bracket that opens `configurations` of the outermost object."""
    depth = 0
    for match in pattern(r'"(?:[^"\\\n]|\\.)*"(\s*:\s*\[)?|[\[\]{}]').finditer(bare):
        token = match[0]
        if token.startswith('"'):
            if depth == 1 and match[1] and token.startswith('"configurations"'):
                return match.end()
            depth += bool(match[1])
        else:
            depth += 1 if token in "[{" else -1
    return None


def _spans(bare: str, start: int) -> list[slice]:
    """Where each entry of the list stands."""
    found, depth, begin = [], 0, start
    for match in pattern(r'"(?:[^"\\\n]|\\.)*"|[\[\]{}]').finditer(bare, start):
        token = match[0]
        if token in ("{", "["):
            begin = match.start() if depth == 0 else begin
            depth += 1
        elif token in ("}", "]"):
            depth -= 1
            if depth < 0:
                break
            if depth == 0:
                found.append(slice(begin, match.end()))
    return found

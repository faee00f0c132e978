"""Imports point down only, rules are pure, and the offline path never imports Ray.

The tests see every module: programs that run in another process are part of the graph, with the modules that
they find beside themselves, and so are modules that are started by name (`"raydoctor.x.y:respond"`).
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.helpers import ROOT as REPOSITORY

ROOT = REPOSITORY / "raydoctor"
FLOORS = (
    "model",
    "redact",
    "capture",
    "case",
    "read",
    "cluster",
    "waits",
    "rules",
    "diagnosis",
    "observe",
    "act",
    "watch",
    "render",
    "demo",
    "integrations",
    "agents",
    "cli",
    "__main__",
)
"""The rooms, lowest first: a module imports its own room and rooms below."""
INSIDE = {
    "waits": ("kinds", "*"),
    "rules": ("shared", "*"),
    "observe": (
        *("collector", "processes", "gcs", "machine", "nodes", "stacks", "preflight", "watching"),
        *("bundle", "gathered", "slurm", "kubectl", "live", "status"),
    ),
    "act": (
        *("private", "audit", "signals", "tracking", "workers", "zombies", "cancel", "poll"),
        *("run", "attach"),
    ),
}
"""Floors inside a room, lowest first; `*` is every module that is in no folder of its own."""
LARGEST = 25
PURE = {"raydoctor", "__future__", "re", "collections", "dataclasses", "typing", "math", "itertools", "functools", "string", "textwrap", "json", "posixpath", "difflib", "shlex", "bisect", "signal", "datetime", "statistics", "operator", "hashlib"}  # fmt: skip
EFFECTS = {"capture", "read", "observe", "act", "watch", "render", "demo", "agents", "cli"}
LIBRARY = {"act.poll.poll", "act.tracking.tracking", "act.cancel.cancel"}
"""What user code calls in its drivers and tasks."""


def name_of(path: Path) -> str:
    """`act.poll.poll`; a package has its folder's name, raydoctor itself none."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}
PROGRAMS = {path.stem: name for name, path in MODULES.items() if path.parent.name == "programs"}


class Import(NamedTuple):
    name: str
    """`psutil`, `act.poll.poll`: modules of raydoctor without its name."""
    is_ours: bool
    at_import: bool
    """Whether the import of the module executes it."""


@cache
def imports_of(module: str) -> frozenset[Import]:
    path = MODULES[module]
    found = set()
    for name, at_import in _named(ast.parse(path.read_text()), True):
        first, _, rest = name.partition(".")
        if first == "raydoctor":
            while rest not in MODULES:
                rest = rest.rpartition(".")[0]
            found.add(Import(rest, True, at_import))
        elif path.parent.name == "programs" and first in PROGRAMS:
            found.add(Import(PROGRAMS[first], True, at_import))
        else:
            found.add(Import(name, False, at_import))
    return frozenset(found)


def _named(node: ast.AST, at_import: bool) -> Iterator[tuple[str, bool]]:
    """Dotted names of what is imported, or started by name, and whether the module's import does that."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        for each in node.body:
            yield from _named(each, False)
        for each in node.orelse:
            yield from _named(each, at_import)
        return
    if isinstance(node, ast.Import):
        yield from ((alias.name, at_import) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from ((f"{node.module}.{alias.name}", at_import) for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        started = re.fullmatch(r"raydoctor\.([\w.]+?)(?::\w+)?", node.value)
        if started and started[1] in MODULES:
            yield f"raydoctor.{started[1]}", False
    is_code = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(node):
        yield from _named(child, at_import and not is_code)


def ours(module: str) -> set[str]:
    return {each.name for each in imports_of(module) if each.is_ours and each.name != module}


def floor_inside(module: str) -> tuple[str, int] | None:
    """Room and floor of a module in a room that has several."""
    room, _, rest = module.partition(".")
    if room not in INSIDE or not rest:
        return None
    part, floors = rest.split(".")[0], INSIDE[room]
    return room, floors.index(part if part in floors else "*")


def test_every_room_has_a_floor() -> None:
    rooms = {name.split(".")[0] for name in MODULES} - {""}
    assert rooms == set(FLOORS)
    for room, floors in INSIDE.items():
        parts = {name.split(".")[1] for name in MODULES if name.startswith(f"{room}.")}
        assert set(floors) - {"*"} <= parts
        if "*" not in floors:
            assert parts == set(floors)


def test_imports_point_down() -> None:
    up = []
    for module in MODULES:
        if not module:
            continue  # the facade, which is above everything that it offers
        for name in ours(module):
            own, other = floor_inside(module), floor_inside(name)
            if not name:
                up.append(f"{module} imports the facade")
            elif FLOORS.index(name.split(".")[0]) > FLOORS.index(module.split(".")[0]) or (
                own and other and own[0] == other[0] and other[1] > own[1]
            ):
                up.append(f"{module} imports {name}")
    assert up == []


def test_no_module_imports_itself_through_others() -> None:
    done: set[str] = set()

    def follow(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            for name in sorted(ours(module)):
                follow(name, (*path, module))
            done.add(module)

    for module in MODULES:
        follow(module, ())


def test_a_program_lives_beside_the_feature_that_starts_it() -> None:
    for module, path in MODULES.items():
        if path.parent.name != "programs" or "demo" in path.parts:
            continue
        feature = path.parent.parent
        started = any(f"{path.stem}" in each.read_text() for each in feature.glob("*.py"))
        used = any(module in ours(other) for other in MODULES if other != module)
        assert started or used, module


def test_a_folder_can_be_taken_in_at_a_glance() -> None:
    for folder in [ROOT, *(p for p in ROOT.rglob("*") if p.is_dir() and p.name != "__pycache__")]:
        if folder != ROOT / "rules":
            files = [p for p in folder.iterdir() if p.suffix == ".py"]
            assert len(files) <= LARGEST, folder


def test_a_class_name_is_used_once() -> None:
    """A name that occurs twice sends a reader, and a search, to the wrong class."""
    places: dict[str, list[str]] = {}
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


@pytest.mark.parametrize("room", ["case", "cluster", "waits", "rules"])
def test_rules_and_what_they_see_are_pure(room: str) -> None:
    for module, path in MODULES.items():
        if module.split(".")[0] != room or module == "rules":
            continue
        for each in imports_of(module):
            first = each.name.split(".")[0]
            assert first not in EFFECTS if each.is_ours else first in PURE, (module, each.name)
        calls = [n.func.id for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]  # fmt: skip
        assert "open" not in calls


def test_ray_is_never_imported_here() -> None:
    """Programs that run as children may; and what user code calls inside its own Ray, when it is called."""
    for module, path in MODULES.items():
        if "programs" in path.parts:
            continue
        for each in imports_of(module):
            if module not in LIBRARY or each.at_import:
                assert each.is_ours or each.name.split(".")[0] != "ray", module


def test_slow_libraries_wait_until_they_are_needed() -> None:
    slow = {"rich", "psutil", "asyncio", "zstandard", "msgspec", "importlib.metadata"}
    for module, path in MODULES.items():
        if module.split(".")[0] == "demo" or "programs" in path.parts:
            continue  # loaded only by the command of that name; a process of its own
        names = {each.name for each in imports_of(module) if each.at_import and not each.is_ours}
        assert not slow & {*names, *(n.split(".")[0] for n in names)}, module


def test_pure_names_are_of_the_standard_library() -> None:
    assert {"raydoctor"} | set(sys.stdlib_module_names) >= PURE

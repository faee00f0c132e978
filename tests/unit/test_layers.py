"""Imports point down only, rules are pure, and the offline path never imports Ray."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.helpers import ROOT as REPOSITORY

ROOT = REPOSITORY / "raydoctor"
LAYERS = (
    ("errors", "model", "ids", "_pattern", "_text", "_temporary", "paste"),
    ("redact",),
    ("rule",),
    ("signals", "facts"),
    ("case",),
    ("capture",),
    ("collect",),
    ("read",),
    ("rules", "waits"),
    ("plugins",),
    ("corroboration", "unexplained", "scrub"),
    ("diagnosis", "diffing"),
    ("rulecheck",),
    ("act",),
    ("render",),
    ("demo",),
    ("cli", "__main__", "__init__"),
)
"""Lowest first; a module imports its own layer and those below."""
HEIGHT = {name: height for height, names in enumerate(LAYERS) for name in names}
PURE = {"raydoctor", "__future__", "re", "collections", "dataclasses", "typing", "math", "itertools", "functools", "string", "textwrap", "json", "posixpath", "difflib", "shlex", "signal", "datetime", "statistics", "operator"}  # fmt: skip
LIBRARY = {"act/poll.py", "act/tracking.py", "act/cancel.py"}
"""What user code calls in its drivers and tasks."""
MODULES = sorted(p for p in ROOT.rglob("*.py") if "programs" not in p.parts)


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def imports_of(path: Path, *, at_import: bool) -> frozenset[str]:
    """Dotted names a module imports; with `at_import`, only what its import alone loads."""
    tree = ast.parse(path.read_text())
    tree.body = [
        n for n in tree.body if not (isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test))
    ]
    nodes = tree.body if at_import else list(ast.walk(tree))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    if layer_of(path) == "__init__":
        return
    own = HEIGHT[layer_of(path)]
    for name in imports_of(path, at_import=False):
        parts = name.split(".")
        if parts[0] == "raydoctor" and len(parts) > 1 and parts[1] in HEIGHT:
            assert HEIGHT[parts[1]] <= own, f"{path.name} imports {name}"


@pytest.mark.parametrize(
    "path",
    sorted([*(ROOT / "rules").glob("*.py"), *(ROOT / "waits").glob("*.py")]),
    ids=lambda p: p.name,
)
def test_rules_are_pure(path: Path) -> None:
    if path.name == "__init__.py":
        return
    for name in imports_of(path, at_import=False):
        parts = name.split(".")
        assert parts[0] in PURE, f"a rule must not import {name}"
        assert parts[:2] not in (
            ["raydoctor", "read"],
            ["raydoctor", "capture"],
            ["raydoctor", "collect"],
        )
    calls = [n.func.id for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]  # fmt: skip
    assert "open" not in calls


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_ray_is_never_imported_here(path: Path) -> None:
    """Programs run as children may; and what user code calls inside its own Ray, when it is called."""
    library = str(path.relative_to(ROOT)) in LIBRARY
    found = imports_of(path, at_import=library)
    assert not [n for n in found if n.split(".")[0] == "ray"]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_slow_libraries_wait_until_they_are_needed(path: Path) -> None:
    if layer_of(path) == "demo":
        return  # itself loaded only by the command of that name
    slow = {"rich", "psutil", "asyncio", "zstandard", "importlib.metadata"}
    assert not [n for n in imports_of(path, at_import=True) if n in slow or n.split(".")[0] in slow]

"""Rules of other packages and of a folder, in addition to raydoctor's own.

A package provides rules by entry points of the group `raydoctor.rules`. Each names a module with one rule, a
package of such modules, a `Rule`, or an iterable of rules:

    [project.entry-points."raydoctor.rules"]
    acme = "acme_ray.rules"

A folder (`--rules DIR`) contains one rule per file, like `raydoctor/rules/`. Files with a leading underscore
in their names contain code that several rules share (`from ._words import …`). A package that cannot be
loaded is a gap; a folder that the user names must load.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from raydoctor import rules as own
from raydoctor.case.rule import Rule
from raydoctor.model import paste
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.values import Gap

GROUP = "raydoctor.rules"


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The rules of a run, and a gap for each that could not be loaded."""

    rules: tuple[Rule, ...]
    gaps: tuple[Gap, ...] = ()


def catalogue(folder: str | None = None) -> Catalogue:
    """Raydoctor's rules, those of installed packages, and those of the folder; names are unique.

    Raises `RaydoctorError` if a rule of the folder cannot be loaded.
    """
    rules, gaps = list(own.load()), list[Gap]()
    for where, rule in _installed(gaps):
        if taken := _clash(rule, rules):
            gaps.append(_unloaded(where, f"a rule named {taken} already exists"))
        else:
            rules.append(rule)
    for rule in from_folder(folder) if folder is not None else ():
        if taken := _clash(rule, rules):
            raise RaydoctorError(
                f"{folder}: a rule named {taken} already exists", "Give the file another name."
            )
        rules.append(rule)
    return Catalogue(tuple(sorted(rules, key=own.order)), tuple(gaps))


def find(name: str, folder: str | None = None) -> Rule | None:
    """A rule by its name, from any origin."""
    if found := own.find(name):
        return found
    others = catalogue(folder).rules
    return next((rule for rule in others if name == rule.name), None)


def _clash(rule: Rule, rules: Iterable[Rule]) -> str:
    """A name of the rule that another rule already has."""
    return rule.name if rule.name in {other.name for other in rules} else ""


# ---------------------------------------------------------------- a folder


def from_folder(folder: str) -> tuple[Rule, ...]:
    """The rules of a folder, one per file, by name.

    Raises `RaydoctorError` with the file and the reason if one cannot be loaded.
    """
    files = _rule_files(folder)
    if not files:
        raise RaydoctorError(
            f"no rule in {folder}: no file there ends in .py",
            "A rule is one file; raydoctor's CONTRIBUTING.md describes its content.",
        )
    package = _package_at(os.path.abspath(folder))
    return tuple(_from_file(package, folder, file) for file in files)


def _rule_files(folder: str) -> list[str]:
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise RaydoctorError(
            f"cannot read the folder of rules {folder}: {error.strerror}",
            "--rules takes a folder with one rule per file.",
        ) from None
    return sorted(n for n in names if n.endswith(".py") and not n.startswith("_"))


def _package_at(path: str) -> str:
    """Make the folder a package, so that its files can import from each other; returns the package's name."""
    name = f"raydoctor_rules_{zlib.crc32(os.fsencode(path)):08x}"
    if name not in sys.modules:
        package = ModuleType(name, "Rules of a folder.")
        package.__path__ = [path]
        sys.modules[name] = package
    return name


def _from_file(package: str, folder: str, file: str) -> Rule:
    where = os.path.join(folder, file)
    stem = file.removesuffix(".py")
    if not stem.isidentifier():
        raise RaydoctorError(
            f"{where}: {stem!r} is not a valid name of a Python module",
            paste.shell("Rename it to {name}.py", name=stem.replace("-", "_")),
        )
    try:
        with redirect_stdout(sys.stderr):  # standard output is the report's
            return own.only_rule(import_module(f"{package}.{stem}"))
    except (Exception, SystemExit) as error:
        hint = paste.shell("raydoctor rules test {folder:path}", folder=folder)
        raise RaydoctorError(f"{where}: {_why(error)}", hint) from error


def _why(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


# ---------------------------------------------------------------- installed packages


def _installed(gaps: list[Gap]) -> Iterator[tuple[str, Rule]]:
    """(entry point, rule) for each rule of installed packages."""
    if not any(_offers(place, _changed(place)) for place in sys.path):
        return
    from importlib.metadata import entry_points

    for point in sorted(entry_points(group=GROUP), key=lambda p: (p.name, p.value)):
        where = f"rules of {point.name} ({point.value})"
        try:
            with redirect_stdout(sys.stderr):
                rules = tuple(_rules_in(point.load()))
        except (Exception, SystemExit) as error:
            gaps.append(_unloaded(where, _why(error)))
            continue
        yield from ((where, rule) for rule in rules)


def _changed(place: str) -> int:
    """When a package was last installed there or removed; 0 if the folder does not exist."""
    try:
        return os.stat(place or ".").st_mtime_ns
    except OSError:
        return 0


@cache
def _offers(place: str, changed: int) -> bool:
    """Whether a package that is installed there has such entry points; `changed`: as of then.

    Searching for the group's name is much faster than importing `importlib.metadata` and parsing the
    metadata of every package, and few users have a plugin.
    """
    wanted = f"[{GROUP}]".encode()
    with suppress(OSError), os.scandir(place or ".") as entries:
        for entry in entries:
            if entry.name.endswith((".dist-info", ".egg-info")):
                with suppress(OSError), open(f"{entry.path}/entry_points.txt", "rb") as file:
                    if wanted in file.read():
                        return True
    return False


def _rules_in(offered: Any) -> Iterator[Rule]:
    if isinstance(offered, Rule):
        yield offered
    elif isinstance(offered, ModuleType) and hasattr(offered, "__path__"):
        for path in offered.__path__:
            for file in _rule_files(path):
                name = f"{offered.__name__}.{file.removesuffix('.py')}"
                yield own.only_rule(import_module(name))
    elif isinstance(offered, ModuleType):
        yield own.only_rule(offered)
    else:
        for each in offered:
            if not isinstance(each, Rule):
                raise TypeError(f"{each!r} is not a rule")
            yield each


def _unloaded(what: str, why: str) -> Gap:
    return Gap(what, f"not loaded: {why}", "Update or uninstall that package.")

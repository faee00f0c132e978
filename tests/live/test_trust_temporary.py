"""Temporary files are made where no other user can put files of their own in their place."""

from __future__ import annotations

import ast
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from raydoctor.act.run import runs
from raydoctor.capture import owners
from raydoctor.capture.temporary import private_folder
from raydoctor.demo import cluster
from raydoctor.model.errors import RaydoctorError
from tests.helpers import ROOT
from tests.helpers.other_users import AS_ROOT, ATTACKER


def _theirs(folder: Path) -> Path:
    os.chown(folder, ATTACKER, ATTACKER)
    return folder


def _theirs_and_sticky(folder: Path) -> Path:
    _theirs(folder).chmod(0o1777)
    return folder


def _below_theirs(folder: Path) -> Path:
    inner = folder / "inner"
    inner.mkdir(0o700)
    _theirs(folder)
    return inner


def _open_to_all(folder: Path) -> Path:
    folder.chmod(0o777)
    return folder


def _open_to_a_group(folder: Path) -> Path:
    os.chown(folder, 0, ATTACKER)
    folder.chmod(0o770)
    return folder


def _link_to_theirs(folder: Path) -> Path:
    link = folder.with_name("link")
    link.symlink_to(_theirs(folder))
    return link


def _demo() -> Path:
    with cluster.throw_away() as run:
        assert run.environment["TMPDIR"] == str(run.folder), "nor may Ray use the other one"
        return run.folder


def _private() -> Path:
    folder = private_folder()
    folder.remove()
    return folder.path


def _log_of_a_run() -> Path:
    return Path(runs.new_log()).parent


@AS_ROOT
@pytest.mark.parametrize("maker", [_demo, _private, _log_of_a_run], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "lay",
    [_theirs, _theirs_and_sticky, _below_theirs, _open_to_all, _open_to_a_group, _link_to_theirs],
    ids=lambda f: f.__name__,
)
def test_nothing_is_made_where_another_user_can_replace_it(
    lay: Callable[[Path], Path],
    maker: Callable[[], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(lay(folder)))
    monkeypatch.setattr(owners, "state_folder", lambda: "/proc/none")  # `run` keeps its log there
    monkeypatch.setattr(
        "raydoctor.observe.processes.driver_output.runs_folder", owners.state_folder
    )
    made = maker()
    assert folder not in Path(os.path.realpath(made)).parents
    assert made.parent == Path("/tmp")


@AS_ROOT
def test_without_a_safe_folder_no_file_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(_open_to_all(tmp_path)))
    monkeypatch.setattr(owners, "_SYSTEM_TEMPORARY", ())
    with pytest.raises(PermissionError, match="other users can replace"):
        private_folder()
    with pytest.raises(RaydoctorError, match="other users can replace"), cluster.throw_away():
        pass
    assert not list(tmp_path.iterdir())


def test_a_sticky_folder_of_root_and_a_folder_of_our_own_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("/tmp", str(tmp_path)):
        monkeypatch.setattr(tempfile, "tempdir", folder)
        assert owners.temporary_parent() == os.path.realpath(folder)


NAMED = {"mkdtemp", "mkstemp", "TemporaryDirectory", "NamedTemporaryFile"}
"""What makes a file or folder that is found by its name."""


def test_every_maker_of_a_named_file_names_its_folder() -> None:
    calls = [
        (path.name, node)
        for path in (ROOT / "raydoctor").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in NAMED
    ]
    assert len(calls) >= len(NAMED)
    for name, call in calls:
        is_third = len(call.args) > 2
        assert is_third or any(each.arg == "dir" for each in call.keywords), f"{name}:{call.lineno}"

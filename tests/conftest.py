"""Options of the test suite, its order, and how it is spread over processes."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from raydoctor.act.attach import by_gdb
from tests.helpers import ROOT, skips, workers
from tests.helpers.waiting import PATIENCE

# For `benchmarks` and `fixtures`; last, so that the tests import the installed raydoctor.
sys.path.append(str(ROOT))

# A shell's background job ignores the first, `nohup` the second, and so would what a test starts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Every worker and every program that a test starts would compile all modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Time is the machine's: a busy one generates inputs slowly.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

LONGEST = (
    "test_watch",
    "test_live_sizes",
    "test_demo",
    "test_live_state",
    "test_nodes",
    "test_live",
    "test_hung",
    "test_cancel",
    "test_poll",
    "test_agents_live",
    "test_zombies",
    "test_stack",
)
"""Modules that begin first, so that no worker has a long one left at the end."""

ALL_FIXTURES = (
    "tests/fixtures/test_accuracy.py",
    "tests/fixtures/test_fingerprints.py",
    "tests/fixtures/test_fixtures.py",
    "tests/fixtures/test_schemas.py",
    "tests/fixtures/test_settings.py",
    "tests/unit/test_rules.py",
)
"""Modules that read the reports on all fixtures or all examples of rules: one worker makes them once."""

COMPUTING = (
    *(Path(path).stem for path in ALL_FIXTURES),
    "test_paste",
    "test_attacks",
)
"""Of the modules that compute, the long ones, which begin first for the same reason."""


@pytest.fixture(scope="session")
def usable_gdb() -> None:
    """Skip where gdb is missing, or kills what it enters."""
    if not by_gdb.is_there():
        pytest.skip("gdb is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_gdb, "_TRIAL", PATIENCE)  # a busy machine is slow, and the answer is kept
        if not by_gdb.restores_registers():
            pytest.skip("gdb cannot restore registers here")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite golden reports and JSON schemas"
    )
    parser.addoption(
        "--fail-on-skip",
        action="store_true",
        help="fail if a test is skipped for a reason that tests/helpers/skips.py does not list",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Skips(config), "unexpected-skips")


# ------------------------------------------------------------------ workers


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Several for whole tiers; none for chosen files, where one wants to see and debug at once."""
    chosen = [Path(each.partition("::")[0]) for each in config.args]
    return workers.count() if all(path.is_dir() for path in chosen) else 0


def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    if workers.are_isolated():
        temporary: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        python = workers.interpreter(temporary)
        specs[:] = [type(spec)(f"popen//python={python}//id={spec.id}") for spec in specs]


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    is_package = (path / "__init__.py").is_file()
    return Rotated.from_parent(parent, path=path) if is_package else None


class Rotated(pytest.Package):
    """A folder of tests that each worker collects from another place on: what one compiles, the others only read."""

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        found = [*super().collect()]
        start = int(len(found) * workers.share_before())
        return found[start:] + found[:start]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return ByModule(config, log)


class ByModule(LoadScopeScheduling):
    """Gives whole modules to the workers, in the order of the collection: tests of a module share clusters."""

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        if module in ALL_FIXTURES:
            return "all fixtures"
        is_live = module.startswith("tests/live/")
        return "tests/live" if is_live and not workers.are_isolated() else module


def pytest_collection_finish() -> None:
    """Keep the garbage collector from thousands of collected tests: a fifth of the time of what computes."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_order)  # stable: within a module, the order stays


def _order(item: pytest.Item) -> tuple[int, bool, int, str]:
    """Long modules first, then those that wait, then those that compute."""
    name, computes = item.path.stem, "live" not in item.path.parts
    return _rank(name, LONGEST), computes, _rank(name, COMPUTING), str(item.path)


def _rank(name: str, first: tuple[str, ...]) -> int:
    return first.index(name) if name in first else len(first)


# ------------------------------------------------------------------ skips


class Skips:
    """Reports unexpected skips; with `--fail-on-skip`, they fail the run."""

    def __init__(self, config: pytest.Config) -> None:
        self.is_strict = config.getoption("--fail-on-skip") and not hasattr(config, "workerinput")
        self.unexpected: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            reason = report.longrepr[2]
            if not skips.is_expected(reason):
                self.unexpected.append(f"{report.nodeid}: {reason}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        went_well = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if self.is_strict and self.unexpected and session.exitstatus in went_well:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.is_strict and self.unexpected:
            terminalreporter.section("unexpected skips")
            for line in self.unexpected:
                terminalreporter.line(line)

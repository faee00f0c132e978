"""How often the first root is right for what Ray's own tests leave behind.

    python -m benchmarks.ray_tests FOLDER --ray-source CHECKOUT     # this interpreter's Ray
    python -m benchmarks.ray_tests FOLDER --ray-source CHECKOUT --python OTHER/bin/python --live 3
    python -m benchmarks.ray_tests FOLDER --again --only test_cancel -v

CHECKOUT is a checkout of Ray, whose tests are not part of this project. `ray_tests.toml` has their addresses
and the roots that a reader of each test accepts. Each test runs in processes, network, `/tmp` and
`/dev/shm` of its own (`unshare`; needs root), so its `ray stop` and ports harm no other. FOLDER keeps
the console and the sessions of each test. A test in it is not run again, so several programs can share it.
`--again` only diagnoses what it holds. `--live N` also diagnoses every Nth test's cluster, before the test's
tear-down.

Each run is judged twice: the session alone, and the session with the console.
* right: the first root of severity warning or above is accepted, or a healthy test has none;
* listed: an accepted root is there, but not first;
* nothing: no root;
* other: another root only; for a healthy test, any root;
* no rule: no root, and no rule of the catalogue names this failure;
* crash: raydoctor raised an exception.
A root of severity error or above that is neither accepted nor allowed by `may` is a false root. A test that
was skipped or did not pass does not count: it did not do what its label says.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from raydoctor.capture.open import open_capture
from raydoctor.diagnosis import engine

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENTRIES = Path(__file__).with_suffix(".toml")
INSIDE = Path(__file__).parent / "ray_tests_inside"
PROJECT = Path(__file__).parent.parent
OUTCOMES = ("right", "listed", "nothing", "other", "crash", "no rule")
UNKNOWN = "unknown-rule"
SERIOUS = ("critical", "error", "warning")
VIEWS = ("session", "session + console", "live")
TIME_LIMIT = 240.0
"""Seconds for one test."""

OWN_MACHINE = """
ip link set lo up
mount -t tmpfs tmpfs /dev/shm
mount --bind "$1" /tmp
shift
"$@"
rc=$?
exit $rc
"""


class RayTest(NamedTuple):
    """One test of Ray, and what is right for what it leaves behind."""

    address: str
    """File, below the checkout's `python/ray`, and name."""
    roots: frozenset[str]
    """Accepted roots; empty for a healthy test."""
    may: frozenset[str]
    """Roots that are true as well, but not what the test is about."""
    is_silent: bool
    """The test catches the error, and no log records it: no root is right as well, except live."""

    @property
    def is_healthy(self) -> bool:
        """Whether nothing fails."""
        return not self.roots

    def folder(self, keep: Path) -> Path:
        """Where a run of the test is kept."""
        return keep / "".join(c if c.isalnum() or c in "_." else "-" for c in self.address)


Root = tuple[str, str]
"""A rule and its severity."""


class Run(NamedTuple):
    """One diagnosis of a test's run."""

    test: RayTest
    view: str
    outcome: str
    roots: list[Root]

    @property
    def false_roots(self) -> list[str]:
        """Roots of severity error or above that the test does not accept."""
        true = self.test.roots | self.test.may
        return [rule for rule, severity in self.roots if severity != "warning" and rule not in true]


def tests() -> Iterator[RayTest]:
    """The tests of the table."""
    for address, entry in tomllib.loads(ENTRIES.read_text()).items():
        may = frozenset(entry.get("may", ()))
        yield RayTest(address, frozenset(entry["roots"]), may, entry.get("silent", False))


def judge(test: RayTest, view: str, roots: Sequence[str]) -> str:
    """The outcome of a diagnosis with these roots."""
    seen = [rule for rule in roots if rule not in test.may]
    if not seen:
        if UNKNOWN in test.roots:
            return "no rule"
        may_be_silent = test.is_healthy or (test.is_silent and view != "live")
        return "right" if may_be_silent else "nothing"
    if seen[0] in test.roots:
        return "right"
    return "listed" if test.roots.intersection(seen) else "other"


# ---------------------------------------------------------------- running


def run_test(test: RayTest, keep: Path, source: Path, python: str, is_live: bool) -> None:
    """Run a test in namespaces of its own."""
    folder = test.folder(keep)
    temporary = folder / "tmp"
    home = folder / "home"
    for path in (temporary, home):
        path.mkdir(parents=True, exist_ok=True)
    (folder / "pytest.ini").write_text("[pytest]\n")
    below = source / "python" / "ray"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY")}
    live = [
        *(sys.executable, "-c", "from raydoctor.cli import main; main()", "diagnose", "--json"),
        *("--output", str(folder / "live.json")),
    ]
    environment = {
        **kept,
        "HOME": str(home),
        "PATH": os.pathsep.join((str(Path(python).absolute().parent), os.environ["PATH"])),
        "PIP_NO_INDEX": "1",
        "PYTHONPATH": os.pathsep.join(
            (str(INSIDE), str((below / test.address.partition("::")[0]).parent))
        ),
        "PYTHONDONTWRITEBYTECODE": "1",
        "RAY_TESTS_SOURCE": str(below),
        "RAY_TESTS_RESULT": str(folder / "result.txt"),
        "RAY_TESTS_RAYDOCTOR": str(PROJECT),
        "RAY_TESTS_LIVE": json.dumps(live if is_live else []),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "120",
    }
    command = [
        *("unshare", "-p", "-n", "-m", "-f", "--mount-proc", "--kill-child"),
        *("bash", "-c", OWN_MACHINE, "own-machine", str(temporary)),
        *(python, "-m", "pytest", "-s", "-p", "ray_tests_plugin", "-p", "no:cacheprovider"),
        *("-c", str(folder / "pytest.ini"), "--rootdir", str(below), str(below / test.address)),
    ]
    began = time.monotonic()
    with (folder / "console.log").open("wb") as console:
        try:
            subprocess.run(
                command,
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                timeout=TIME_LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            console.write(b"\nstopped at the time limit\n")
    (folder / "seconds.txt").write_text(f"{time.monotonic() - began:.0f}\n")


def has_passed(folder: Path) -> bool:
    """Whether the test did what its label says."""
    result = folder / "result.txt"
    return result.exists() and "call passed" in result.read_text()


# ---------------------------------------------------------------- diagnosing


def runs_of(test: RayTest, keep: Path) -> Iterator[Run]:
    """The diagnoses of a test's run."""
    folder = test.folder(keep)
    sessions = sorted((folder / "tmp" / "ray").glob("session_2*"))
    if sessions:
        session = str(sessions[-1])
        yield _run(test, VIEWS[0], session, None)
        yield _run(test, VIEWS[1], session, str(folder / "console.log"))
    live = folder / "live.json"
    if live.exists():
        diagnoses = json.loads(live.read_text())["diagnoses"]
        below = {name for d in diagnoses for name in d["consequences"]}
        roots = [
            (d["rule"], d["severity"])
            for d in diagnoses
            if d["id"] not in below and d["severity"] in SERIOUS
        ]
        yield Run(test, VIEWS[2], judge(test, VIEWS[2], [rule for rule, _ in roots]), roots)


def _run(test: RayTest, view: str, session: str, console: str | None) -> Run:
    try:
        with open_capture(session, console) if console else open_capture(session) as capture:
            report = engine.run(capture, strict=True)
    except Exception as error:
        return Run(test, view, "crash", [(f"{type(error).__name__}: {error}", "warning")])
    roots = [(d.rule, str(d.severity)) for d in report.roots if d.severity in SERIOUS]
    return Run(test, view, judge(test, view, [rule for rule, _ in roots]), roots)


def table(runs: Collection[Run]) -> None:
    """Outcomes by view, failing and healthy tests apart."""
    print(f"\n{'':27}  " + "  ".join(f"{name:>7}" for name in OUTCOMES) + "  right  false roots")
    for view in VIEWS:
        for healthy in (False, True):
            some = [run for run in runs if run.view == view and run.test.is_healthy == healthy]
            counts = Counter(run.outcome for run in some)
            cells = "  ".join(f"{counts[name]:>7}" for name in OUTCOMES)
            able = len(some) - counts["no rule"]
            share = counts["right"] / able if able else 0.0
            wrong = sum(len(run.false_roots) for run in some)
            kind = "healthy" if healthy else "failing"
            print(f"{view + ', ' + kind:27}  {cells}  {share:>5.0%}  {wrong:>11}")


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where runs are kept; not below /tmp")
    parser.add_argument("--ray-source", type=Path, metavar="CHECKOUT")
    parser.add_argument("--python", default=sys.executable, help="the Python with the Ray to test")
    parser.add_argument(
        "--only", nargs="*", default=[""], metavar="WORD", help="part of an address"
    )
    parser.add_argument("--live", type=int, default=0, metavar="N", help="every Nth test")
    parser.add_argument("--again", action="store_true", help="run no test")
    parser.add_argument("-v", "--verbose", action="store_true", help="print right runs as well")
    return parser.parse_args()


def main() -> int:
    """Run and print; 0 if the targets are met."""
    given = options()
    keep = given.folder.resolve()
    chosen = [test for test in tests() if any(word in test.address for word in given.only)]
    runs: list[Run] = []
    ran = 0
    for number, test in enumerate(chosen):
        folder = test.folder(keep)
        if not given.again and not folder.exists():
            is_live = bool(given.live) and number % given.live == 0
            run_test(test, keep, given.ray_source.resolve(), given.python, is_live)
        if not has_passed(folder):
            if (folder / "seconds.txt").exists():
                print(f"not passed  {test.address}", flush=True)
            continue
        ran += 1
        for run in runs_of(test, keep):
            runs.append(run)
            if given.verbose or run.outcome != "right" or run.false_roots:
                wanted = ", ".join(sorted(test.roots)) or "nothing"
                roots = ", ".join(f"{rule} ({severity})" for rule, severity in run.roots) or "none"
                print(
                    f"{run.outcome:<8} {test.address} [{run.view}]: wanted {wanted}; roots {roots}",
                    flush=True,
                )
    print(f"\n{ran} of {len(chosen)} tests ran and passed")
    table(runs)
    both = [
        run
        for run in runs
        if run.view == VIEWS[1] and not run.test.is_healthy and run.outcome != "no rule"
    ]
    right = sum(run.outcome == "right" for run in both)
    is_clean = not any(run.false_roots or run.outcome == "crash" for run in runs)
    return 0 if is_clean and right >= 0.92 * len(both) else 1


if __name__ == "__main__":
    sys.exit(main())

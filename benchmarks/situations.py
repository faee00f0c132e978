"""What is reported to a new user: small programs that fail, wait or are well, on a real cluster.

    python -m benchmarks.situations                       # all, about two minutes each
    python -m benchmarks.situations --only queue -v
    python -m benchmarks.situations --late 0 --jobs 4     # without the second look
    python -m benchmarks.situations --reports FOLDER      # keep every report, to read it as a user

Each program of `situations.toml` runs on a cluster of its own with two CPUs, and its output goes to a file.
The views are: `early` (live, 12 s after the program connected to Ray or once it has ended), `late` (live,
80 s after it began; only while it runs), and after Ctrl-C and the cluster's end the session folder `with
output` and `without output` of the program. A live view asks `raydoctor` and, while the program runs, also
`raydoctor hung`. Programs of libraries need `ray[data,train,tune,serve]` and torch.

* right: an accepted root, or none for a healthy program;
* open: nothing was found, and the exit code says that something may be hidden (3);
* all-clear: nothing was found and exit code 0 of one of the two, although the program fails or waits;
* wrong: a root of severity error or above that is neither accepted nor listed under `may`; what other
  programs left on the machine does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from tests.helpers.real_ray import RealRay, real_ray

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENTRIES = Path(__file__).with_suffix(".toml")
VIEWS = ("early", "late", "with output", "without output")
OF_THE_MACHINE = "leftover-process"
OUTCOMES = ("right", "open", "all-clear", "wrong")
EARLY = 12.0
"""Seconds after the program has connected to Ray: a busy machine starts a worker in five, and no wait is
judged that is younger than five."""
_CONNECTS = 20.0
"""Seconds in which a program connects, unless it cannot."""
_OF_SERVE = ("fastapi", "starlette", "uvicorn")
"""Packages of `ray[serve]` that other parts of Ray do not need."""
TIME_LIMIT = 120.0
"""Seconds for one report, and for a program that ends by itself."""


class Situation(NamedTuple):
    """A program, and what may be said of it."""

    name: str
    program: str
    roots: frozenset[str]
    may: frozenset[str]
    ends: bool
    """It ends by itself."""
    waits: bool
    """It never goes on: a hang is right, of whatever kind."""


class Look(NamedTuple):
    """What raydoctor said at one time."""

    roots: list[str]
    """Of severity error or above."""
    code: int
    is_hung: bool = False
    """Whether `raydoctor hung` lists a hang."""
    reports: tuple[dict[str, Any], ...] = ()


class Result(NamedTuple):
    """The judgement of one view."""

    situation: Situation
    view: str
    outcome: str
    look: Look


def situations() -> Iterator[Situation]:
    """The programs of the table."""
    for name, entry in tomllib.loads(ENTRIES.read_text()).items():
        yield Situation(
            name,
            entry["program"],
            frozenset(entry["roots"]),
            frozenset(entry.get("may", ())),
            entry.get("ends", False),
            entry.get("waits", False),
        )


def judge(situation: Situation, look: Look) -> str:
    """The outcome of a report with these roots and this exit code."""
    is_wrong = any(root not in situation.roots | situation.may for root in look.roots)
    if is_wrong or (look.is_hung and not situation.waits):
        return "wrong"
    if not situation.roots or look.is_hung or situation.roots.intersection(look.roots):
        return "right"
    return "all-clear" if look.code == 0 else "open"


# ---------------------------------------------------------------- looking


def raydoctor(ray: RealRay, *words: str) -> tuple[dict[str, Any], int]:
    """A report's JSON and its exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "raydoctor", *words, "--json"],
        env=ray.environment,
        capture_output=True,
        timeout=TIME_LIMIT,
        check=False,
    )
    try:
        return json.loads(done.stdout), done.returncode
    except ValueError:
        raise RuntimeError(f"{words}: {done.stderr.decode()[-500:]}") from None


def diagnosed(ray: RealRay, *words: str) -> Look:
    """The roots of a diagnosis. A warning counts where nothing worse was found."""
    report, code = raydoctor(ray, "diagnose", *words)
    below = {name for each in report["diagnoses"] for name in each["consequences"]}
    found = [each for each in report["diagnoses"] if each["rule"] != OF_THE_MACHINE]
    roots = [each for each in found if each["id"] not in below]
    worst = [each["rule"] for each in roots if each["severity"] in ("critical", "error")]
    below_error = [each["rule"] for each in roots if each["severity"] == "warning"]
    return Look(worst or below_error, code, reports=(report,))


def live(ray: RealRay) -> Look:
    """What is said of the running cluster."""
    found = diagnosed(ray, "--address", ray.address)
    if ray.drivers[0].poll() is not None:
        return found
    hung, code = raydoctor(ray, "hung", "--address", ray.address)
    is_clear = not found.roots and not hung["hung"]
    worst = min(found.code, code) if is_clear else max(found.code, code)  # neither may call it well
    return Look(found.roots, worst, bool(hung["hung"]), (*found.reports, hung))


# ---------------------------------------------------------------- running


def keep(folder: Path, name: str, looks: dict[str, Look], output: str) -> None:
    """Write what a program printed, and the reports of every view."""
    folder.mkdir(parents=True, exist_ok=True)
    reports = {view: (f"exit code {look.code}", *look.reports) for view, look in looks.items()}
    (folder / f"{name}.json").write_text(json.dumps({"output": output, **reports}, indent=1))


def _wait_until_connected(output: Path, began: float) -> None:
    """Importing Ray and its libraries takes seconds, and many more on a busy machine."""
    while time.monotonic() < began + _CONNECTS:
        if b"Connected to Ray cluster" in output.read_bytes():
            return
        time.sleep(0.2)


def run(situation: Situation, late: float, reports: Path | None) -> list[Result]:
    """Run a program, and judge every view of it; the reports are kept in a folder if one is named."""
    looks: dict[str, Look] = {}
    with real_ray() as ray:
        ray.start()
        began = time.monotonic()
        driver = ray.run(situation.program, log="output.txt")
        if situation.ends:
            driver.wait(timeout=TIME_LIMIT)
            time.sleep(2.0)  # task events reach the GCS once a second
        else:
            _wait_until_connected(ray.folder / "output.txt", began)
            time.sleep(EARLY)
        looks["early"] = live(ray)
        if late and not situation.ends:
            time.sleep(max(0.0, began + late - time.monotonic()))
            looks["late"] = live(ray)
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(
                driver.pid, signal.SIGINT
            )  # as a terminal does: also other drivers that it started
            driver.wait(timeout=20)
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            ray.nodes[0].send_signal(signal.SIGTERM)
            ray.nodes[0].wait(timeout=20)
        output = (ray.folder / "output.txt").rename(ray.folder / "kept.txt")
        looks["without output"] = diagnosed(ray, str(ray.session))
        looks["with output"] = diagnosed(ray, str(ray.session), "--driver-log", str(output))
        if reports:
            keep(reports, situation.name, looks, output.read_text(errors="replace"))
    return [Result(situation, v, judge(situation, look), look) for v, look in looks.items()]


def table(results: list[Result]) -> None:
    """Outcomes by view."""
    print(f"\n{'':14}  " + "  ".join(f"{name:>9}" for name in OUTCOMES))
    for view in VIEWS:
        counts = Counter(each.outcome for each in results if each.view == view)
        print(f"{view:14}  " + "  ".join(f"{counts[name]:>9}" for name in OUTCOMES))


def main() -> int:
    """Run and print; 0 if nothing was wrong, and no failure was called well."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[""], metavar="WORD", help="part of a name")
    parser.add_argument(
        "--late", type=float, default=80.0, metavar="SECONDS", help="0: no late view"
    )
    parser.add_argument("--reports", type=Path, metavar="FOLDER", help="keep the reports there")
    parser.add_argument("--jobs", type=int, default=1, help="clusters at a time")
    parser.add_argument("-v", "--verbose", action="store_true", help="print right views as well")
    given = parser.parse_args()
    # A shell starts background jobs with Ctrl-C ignored, and programs would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = [each for each in situations() if any(word in each.name for word in given.only)]
    serving = [each.name for each in chosen if "import serve" in each.program]
    if serving and not all(map(find_spec, _OF_SERVE)):
        parser.error(
            f"{' and '.join(serving)} need ray[serve]. Install it: "
            f"{sys.executable} -m pip install 'ray[serve]', or choose others with --only"
        )
    results: list[Result] = []
    failed = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        running = {pool.submit(run, each, given.late, given.reports): each.name for each in chosen}
        for done in as_completed(running):
            if error := done.exception():
                failed += 1
                print(f"no result {running[done]}: {error}", flush=True)
                continue
            results += done.result()
            for each in done.result():
                if given.verbose or each.outcome != "right":
                    roots = ", ".join(each.look.roots) or "none"
                    hung = ", hung" if each.look.is_hung else ""
                    print(
                        f"{each.outcome:<9} {each.situation.name} [{each.view}]: "
                        f"roots {roots}{hung}, exit code {each.look.code}",
                        flush=True,
                    )
    table(results)
    bad = [each for each in results if each.outcome in ("wrong", "all-clear")]
    return 1 if bad or failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""How often the first root is right for logs that strangers pasted in public threads.

    python -m benchmarks.pastes FOLDER                # minutes; exit code 1 below --bar
    python -m benchmarks.pastes FOLDER --only verl    # pastes whose name contains a word

FOLDER holds `NAME.txt` for the entries of `pastes.toml`, which has the address of each thread and the roots
that a reader of the text accepts. The texts belong to their authors and are not part of the project: open an
address and save the pasted log. FOLDER may also be a folder with `cases/` and `truth.json`, which then
replaces `pastes.toml`.

The outcome of a paste, from its roots of severity warning or above:
* right: the first root is accepted (`any` accepts every root);
* other: the first root is not accepted;
* listed: no root, but an error is listed as unexplained;
* nothing: no root, and no error is listed;
* no rule: listed or nothing, and no rule of the catalogue names this failure;
* silent, or false alarm: a harmless text without a root, or with one;
* crash: raydoctor raised an exception.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from raydoctor.capture.open import open_capture
from raydoctor.diagnosis import engine

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENTRIES = Path(__file__).with_suffix(".toml")
RANGES = ("2.9+", "older", "no Ray")
OUTCOMES = (
    *("right", "other", "listed", "nothing", "crash"),
    *("no rule", "silent", "false alarm"),
)
FAILURES = OUTCOMES[:5]
SERIOUS = ("critical", "error", "warning")


class Paste(NamedTuple):
    """One text, and what is right for it."""

    name: str
    range: str
    wanted: frozenset[str]
    """Accepted roots; empty for a harmless text."""
    path: Path
    is_driver_log: bool = False

    def roots(self) -> tuple[list[str], bool]:
        """The rules of the roots, and whether an error is listed as unexplained."""
        path = str(self.path)
        with open_capture(None, path) if self.is_driver_log else open_capture(path) as capture:
            report = engine.run(capture, strict=True)
        return [d.rule for d in report.roots if d.severity in SERIOUS], bool(report.unexplained)


def pastes(folder: Path) -> Iterator[Paste]:
    """The pastes of a folder, whether or not their texts are there."""
    truth = folder / "truth.json"
    if truth.exists():
        for name, entry in json.loads(truth.read_text()).items():
            wanted = frozenset(entry["want"] if entry["kind"] == "failure" else ())
            is_driver_log = entry["file"] == "driver.log"
            path = folder / "cases" / name / ("driver.log" if is_driver_log else "")
            yield Paste(name, RANGES[not entry["in_range"]], wanted, path, is_driver_log)
        return
    for name, entry in tomllib.loads(ENTRIES.read_text()).items():
        yield Paste(name, entry["range"], frozenset(entry["roots"]), folder / f"{name}.txt")


def judge(wanted: Collection[str], roots: list[str], listed: bool) -> str:
    """The outcome of a paste."""
    if not wanted:
        return "false alarm" if roots else "silent"
    if roots:
        return "right" if roots[0] in wanted or "any" in wanted else "other"
    if "unknown-rule" in wanted:
        return "no rule"
    return "listed" if listed else "nothing"


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=[""], metavar="WORD")
    parser.add_argument("--bar", type=float, default=0.8, help="the share of right ones, Ray 2.9+")
    return parser.parse_args()


def main() -> int:
    """Run and print; 0 if the target is met."""
    given = options()
    chosen = [p for p in pastes(given.folder) if any(word in p.name for word in given.only)]
    there = [paste for paste in chosen if paste.path.exists()]
    if missing := len(chosen) - len(there):
        print(f"{missing} of {len(chosen)} texts are missing; {ENTRIES.name} has their addresses")
    counts: dict[str, Counter[str]] = {each: Counter() for each in RANGES}
    for paste in there:
        roots: list[str] = []
        try:
            roots, listed = paste.roots()
            outcome = judge(paste.wanted, roots, listed)
        except Exception as error:
            outcome = f"crash: {type(error).__name__}: {error}"
        counts[paste.range][outcome.partition(":")[0]] += 1
        if outcome not in ("right", "silent"):
            wanted = ", ".join(sorted(paste.wanted)) or "nothing"
            print(
                f"{outcome:<11} {paste.name}: wanted {wanted}; roots {', '.join(roots) or 'none'}"
            )
    print(f"\n{'':6}  " + "  ".join(f"{name:>7}" for name in OUTCOMES) + "  right")
    for each, found in counts.items():
        cells = "  ".join(f"{found[name]:>{max(7, len(name))}}" for name in OUTCOMES)
        print(f"{each:6}  {cells}  {share(found):>5.0%}")
    total = sum(counts.values(), Counter[str]())
    met = share(counts[RANGES[0]]) >= given.bar
    return 0 if met and not total["false alarm"] and not total["crash"] else 1


def share(found: Counter[str]) -> float:
    """Right pastes among the failures that a rule of the catalogue names."""
    failures = sum(found[name] for name in FAILURES)
    return found["right"] / failures if failures else 0.0


if __name__ == "__main__":
    sys.exit(main())

"""How often the first root is right: every fixture as it is, its logs perturbed, and its console rendered.

    python -m benchmarks.accuracy                     # all fixtures, all perturbations, one seed: minutes
    python -m benchmarks.accuracy --renderings        # all fixtures, the driver's output in all renderings
    python -m benchmarks.accuracy --seeds 3 --only oom node
    python -m benchmarks.accuracy -v                  # name every run that was not right

A run is
* right: the first root is the expected one (nothing at all for a healthy capture);
* less: the root's own evidence was taken away, and the report says less: a consequence, or nothing, and
  no wrong root;
* missed: the evidence is still there, and the root was not found;
* wrong: a root of severity error or above that is neither expected nor one of its consequences.

A rendering takes no evidence away, so it is compared with the same files unrendered, alone and beside the
other logs: what is right there and not here is missed. What is not right unrendered counts as less.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.perturb import Files, Perturbation, keeping_tables, perturbations, role
from benchmarks.renderings import RENDERINGS, Rendering
from raydoctor.capture.open import open_capture
from raydoctor.diagnosis import engine
from raydoctor.model.values import CONSOLES, Diagnosis, Event, Report
from tests.helpers import FIXTURES
from tests.helpers.captures import capture_of, report_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HEALTHY = capture_of(FIXTURES / "healthy--ray-2.60.0--1-node")
OUTCOMES = ("right", "less", "missed", "wrong")
SERIOUS = ("critical", "error")
SYMPTOMS = frozenset(
    {"worker-vanished", "node-died", "owner-died", "object-lost", "get-timeout", "job-failed"}
)
"""What may stand alone where the evidence of its cause is gone: it says that something ended."""

LESS_DEEP = {
    "nested-get-deadlock": {"cluster-starved"},
    "oom-kill-loop": {"ray-oom-kill"},
    "head-memory-pressure": {"ray-oom-kill"},
    "gcs-unreachable": {"gcs-died"},
    "driver-vanished": {"raylet-died"},
}
"""Rules that report a part of the same cause where the evidence for the rest is gone."""


class Case(NamedTuple):
    """A fixture, and what is right for it."""

    name: str
    wanted: dict[str, list[str]]
    files: Files
    plain: Report
    """The report on the capture as it is."""

    @property
    def rule(self) -> str:
        """The expected root."""
        return next(iter(self.wanted["roots"]), "(healthy)")


class Run(NamedTuple):
    """One fixture under one perturbation."""

    fixture: str
    rule: str
    ray: str
    perturbation: str
    outcome: str
    reply: str


def read_files(capture: Path) -> dict[str, bytes]:
    """A capture's files by path."""
    return {
        path.relative_to(capture).as_posix(): path.read_bytes()
        for path in sorted(capture.rglob("*"))
        if path.is_file()
    }


def report_on(files: Files) -> Report | None:
    """The report on these files, or None where nothing is left that could be read."""
    with tempfile.TemporaryDirectory(prefix="accuracy-") as name:
        for path, data in files.items():
            file = Path(name) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        if not files:
            return None
        with open_capture(name) as capture:
            return engine.run(capture, strict=True)


def judge(case: Case, report: Report | None, files: Files) -> str:
    """The outcome of a run: the report on these files of a fixture."""
    wanted, plain = case.wanted, case.plain
    roots = report.roots if report else ()
    serious = [d.rule for d in roots if d.severity in SERIOUS]
    below = {d.rule for d in plain.diagnoses} | set(wanted["consequences"]) | SYMPTOMS
    right = set(wanted["roots"])
    below = below.union(*(LESS_DEEP.get(rule, ()) for rule in right))
    if set(serious) - right - set(wanted["may"]) - (below if right else set()):
        return "wrong"
    if not right:
        harmless = [d for d in roots if d.severity != "info" and d.rule not in wanted["may"]]
        return "wrong" if harmless else "right"
    if roots and roots[0].rule in right:
        return "right"
    causes = [d for d in plain.roots if d.rule in right]
    missed = any(_still_there(cause, case.files, files) for cause in causes)
    return "missed" if missed else "less"


def _still_there(cause: Diagnosis, before: Files, files: Files) -> bool:
    """Whether every line of a diagnosis's chain still stands in the capture."""
    whole = b"\n".join(files.values())
    return all(_line_of(link.event, before) in whole for link in cause.chain)


def _line_of(event: Event, files: Files) -> bytes:
    """The end of an event's first line; a row of a table is shown in other words than it is written."""
    if event.source.role == "live":
        return files[event.source.path].split(b"\n")[event.line - 1]
    return event.text.partition("\n")[0].encode("utf-8", "replace")[-120:]


def case_of(fixture: Path) -> Case:
    """A fixture as a case."""
    wanted = tomllib.loads((fixture / "fixture.toml").read_text())
    return Case(fixture.name, wanted, read_files(capture_of(fixture)), report_of(fixture))


def runs_of(fixture: Path, chosen: Iterable[Perturbation], seeds: int) -> Iterator[Run]:
    """All runs of one fixture, the first as it is."""
    case = case_of(fixture)
    files = case.files
    yield _run(case, "as it is", case.plain, files)
    for seed in range(seeds):
        for perturbation in chosen:
            rng = random.Random(f"{fixture.name} {seed}")
            changed = keeping_tables(perturbation).change(files, rng)
            yield _run(case, perturbation.name, report_on(changed), changed)


def _run(case: Case, name: str, report: Report | None, files: Files) -> Run:
    reply = ", ".join(f"{d.rule} ({d.severity})" for d in report.roots) if report else ""
    outcome = judge(case, report, files)
    return Run(case.name, case.rule, str(case.wanted["ray"]), name, outcome, reply or "nothing")


MODES = ("alone", "with logs")


def rendered_runs_of(
    fixture: Path, chosen: Iterable[Rendering] = RENDERINGS, modes: Iterable[str] = MODES
) -> Iterator[Run]:
    """All runs of one fixture with a rendered console; none of a fixture whose driver printed nothing."""
    case = case_of(fixture)
    consoles = {p: d for p, d in case.files.items() if role(p) in CONSOLES and d.strip()}
    for mode in modes if consoles else ():
        files = consoles if mode == "alone" else case.files
        before = _run(case, "as it is", report_on(files), files)
        yield before._replace(perturbation=f"as it is, {mode}")
        for rendering in chosen:
            changed = {path: rendering.of(data) for path, data in consoles.items()}
            if changed != consoles:
                rendered = {**files, **changed}
                after = _run(case, rendering.name, report_on(rendered), rendered)
                yield after._replace(outcome=_compared(after.outcome, before.outcome))


def _compared(after: str, before: str) -> str:
    """The outcome of a rendered run, given that of the same files unrendered."""
    if after == "wrong":
        return "less" if before == "wrong" else "wrong"
    if before != "right":
        return "less"
    return "right" if after == "right" else "missed"


def _work(job: tuple[Path, int]) -> list[Run]:
    fixture, seeds = job
    return list(runs_of(fixture, perturbations(read_files(HEALTHY)), seeds))


def _rendered(fixture: Path) -> list[Run]:
    return list(rendered_runs_of(fixture))


# ---------------------------------------------------------------- the tables


def table(title: str, runs: Iterable[Run], key: str) -> None:
    """Outcomes by one field, one row a value."""
    counts: dict[str, Counter[str]] = {}
    for run in runs:
        counts.setdefault(str(getattr(run, key)), Counter())[run.outcome] += 1
    width = max(map(len, counts), default=0)
    print(f"\n{title:<{width}}  " + "  ".join(f"{name:>6}" for name in OUTCOMES) + "  right of all")
    for name, found in counts.items():
        cells = "  ".join(f"{found[outcome]:>6}" for outcome in OUTCOMES)
        print(f"{name:<{width}}  {cells}  {share(found):>11.1%}")


def share(found: Counter[str]) -> float:
    """Right runs among those in which the root's evidence is there."""
    able = found.total() - found["less"]
    return found["right"] / able if able else 1.0


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="names hold a word")
    parser.add_argument("--renderings", action="store_true", help="render the drivers' outputs")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("-v", "--verbose", action="store_true")
    return parser.parse_args()


def main() -> int:
    """Run and print; 0 where the targets are met."""
    reply = options()
    fixtures = [
        path.parent
        for path in sorted(FIXTURES.glob("*/fixture.toml"))
        if not reply.only or any(word in path.parent.name for word in reply.only)
    ]
    with multiprocessing.Pool(reply.jobs) as pool:
        if reply.renderings:
            found = pool.imap(_rendered, fixtures)
        else:
            found = pool.imap(_work, [(fixture, reply.seeds) for fixture in fixtures])
        runs = [run for each in found for run in each]
    for run in runs:
        if run.outcome in ("wrong", "missed") or (reply.verbose and run.outcome == "less"):
            print(
                f"{run.outcome:<6} {run.fixture}: {run.perturbation}: "
                f"wanted {run.rule}, got {run.reply}"
            )
    table("rule", sorted(runs, key=lambda r: r.rule), "rule")
    table("Ray", sorted(runs, key=lambda r: [*map(int, r.ray.split("."))]), "ray")
    table("perturbation", runs, "perturbation")
    as_they_are = [run for run in runs if run.perturbation.startswith("as it is")]
    plain = Counter(run.outcome for run in as_they_are)
    changed = Counter(run.outcome for run in runs) - plain
    print(
        f"\n{len(as_they_are)} runs as they are: {share(plain):.1%} right, {plain['wrong']} wrong; "
        f"{changed.total():,} changed runs: {share(changed):.1%} right, {changed['less']} say less, "
        f"{changed['wrong']} wrong"
    )
    if reply.renderings:
        return 0 if share(changed) >= 0.97 and not changed["wrong"] else 1
    met = share(plain) == 1.0 and share(changed) >= 0.95 and not changed["wrong"]
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())

"""Time and memory of whole processes, as ratios against `ray`'s own CLI and a bare `rg`.

    python -m benchmarks.run                  # everything: some minutes, 3 GB of disk
    python -m benchmarks.run startup small    # some cases
    python -m benchmarks.run --scale 0.2 quiet storm

Each case runs its commands in turn, so that a busy moment hits both, and prints medians, the ratio, the
target and whether it is met. Inputs are made of the real lines in `lines/`; `live` and `stuck` start a
real Ray.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import clusters, inputs
from benchmarks.measure import GB, MB, RAY, RAYDOCTOR, RG, alternate, say


def literals(folder: Path) -> Path:
    """The literals of all signals, one a line: what the bare `rg` looks for."""
    from raydoctor import rules
    from raydoctor.case import signals

    wanted = {s.find for s in signals.FACTS} | {s.find for r in rules.load() for s in r.looks_for}
    file = folder / "literals.txt"
    file.write_text("\n".join(sorted(wanted)) + "\n")
    return file


def bare_rg(folder: Path, tree: Path) -> list[str]:
    """`rg` with the same literals over the same tree, and nothing else."""
    return [
        RG,
        "--no-config",
        "--text",
        "--no-ignore",
        "--hidden",
        "-F",
        "-f",
        str(literals(folder)),
        str(tree),
    ]


def startup(folder: Path, scale: float) -> bool:
    """`--help`, `rules`, `explain` against `ray --help`: at least four times faster."""
    met = True
    for arguments in (("--help",), ("rules",), ("explain", "ray-oom-kill")):
        mine, ray = alternate([[RAYDOCTOR, *arguments], [RAY, "--help"]], runs=7)
        fast = mine.seconds * 4 <= ray.seconds
        met &= say(f"raydoctor {arguments[0]}", mine, ray, "ray --help: 4 x faster", fast)
    return met


def small(folder: Path, scale: float) -> bool:
    """A session of 1 MB against `ray --version`."""
    tree = inputs.quiet(folder / "small", MB, 40)
    mine, ray = alternate([[RAYDOCTOR, "diagnose", str(tree.path)], [RAY, "--version"]], runs=7)
    return say(
        "diagnose, 1 MB session", mine, ray, "ray --version: faster", mine.seconds < ray.seconds
    )


def quiet(folder: Path, scale: float) -> bool:
    """250 quiet files, 1 GB, against a bare `rg`."""
    tree = inputs.quiet(folder / "quiet", int(GB * scale), 250)
    mine, rg = alternate(
        [[RAYDOCTOR, "diagnose", str(tree.path)], bare_rg(folder, tree.path)], runs=5
    )
    met = mine.seconds <= 2 * rg.seconds + 0.3 and mine.peak_bytes <= 150 * MB
    return say(
        f"diagnose, {tree.bytes / GB:.1f} GB quiet", mine, rg, "rg: 2 x rg + 0.3 s, 150 MB", met
    )


def healthy(folder: Path, scale: float) -> bool:
    """250 files of a healthy session's own lines, 1 GB, against a bare `rg`."""
    tree = inputs.healthy(folder / "healthy", int(GB * scale), 250)
    mine, rg = alternate(
        [[RAYDOCTOR, "diagnose", str(tree.path)], bare_rg(folder, tree.path)], runs=5
    )
    met = mine.seconds <= 2.5 and mine.peak_bytes <= 150 * MB
    return say(f"diagnose, {tree.bytes / GB:.1f} GB healthy", mine, rg, "rg: 2.5 s, 150 MB", met)


def storm(folder: Path, scale: float) -> bool:
    """Every fourth line an error, 1 GB, against the same `rg`; counts must be exact."""
    tree = inputs.storm(folder / "storm", int(GB * scale))
    mine, rg = alternate(
        [[RAYDOCTOR, "diagnose", str(tree.path)], bare_rg(folder, tree.path)], runs=3
    )
    met = mine.seconds <= 10 * rg.seconds and mine.peak_bytes <= 250 * MB and _counts(tree)
    return say(
        f"diagnose, {tree.bytes / GB:.1f} GB storm",
        mine,
        rg,
        "rg: 10 x rg, 250 MB, true counts",
        met,
    )


def _counts(tree: inputs.Tree) -> bool:
    """Whether the events stand for just as many records as were written."""
    from raydoctor.capture.open import open_capture
    from raydoctor.case import signals
    from raydoctor.read import build

    with open_capture(str(tree.path)) as capture:
        case = build.read(capture, signals.FACTS).case
    counted = {kind: sum(e.count for e in case.of(kind)) for kind in tree.kinds}
    if counted != tree.kinds:
        print(f"  counts: {json.dumps(counted)} instead of {json.dumps(tree.kinds)}")
    return counted == tree.kinds


def many(folder: Path, scale: float) -> bool:
    """50,000 small files: per byte at most four times the quiet case."""
    files = int(50_000 * scale)
    base = inputs.quiet(folder / "base", int(GB * scale), 250)
    tree = inputs.quiet(folder / "many", int(GB * scale), files)
    mine, few = alternate([[RAYDOCTOR, "diagnose", str(t.path)] for t in (tree, base)], runs=3)
    met = mine.seconds / tree.bytes <= 4 * few.seconds / base.bytes
    return say(f"diagnose, {tree.files:,} files", mine, few, "250 files: 4 x per byte", met)


_DECODE = """
import json, sys
for name in sys.argv[1:]:
    with open(name) as file:
        for document in file if name.endswith("l") else [file.read()]:
            json.loads(document)
"""


def kubernetes(folder: Path, scale: float) -> bool:
    """5,000 pods and 100,000 events, against Python's `json.loads` of the same bytes."""
    path = folder / "kubernetes"
    tree = inputs.kubernetes(path, int(5000 * scale), int(100_000 * scale))
    mine, json_ = alternate([[RAYDOCTOR, "diagnose", str(path)], _decode(path)], runs=3)
    met = mine.seconds <= min(2 * json_.seconds, 3) and mine.peak_bytes <= 250 * MB
    what = f"diagnose, {tree.bytes / MB:.0f} MB of kubectl"
    return say(what, mine, json_, "json.loads: 2 x, 3 s, 250 MB", met)


def loki(folder: Path, scale: float) -> bool:
    """1 GB of Loki's lines, against Python's `json.loads` of each and a bare `rg`."""
    tree = inputs.loki(folder / "loki", int(GB * scale))
    commands = (
        [RAYDOCTOR, "diagnose", str(tree.path)],
        _decode(tree.path),
        bare_rg(folder, tree.path),
    )
    mine, json_, rg = alternate(commands, runs=3)
    is_fast = mine.seconds <= 2 * rg.seconds + json_.seconds
    met = is_fast and mine.peak_bytes <= 250 * MB
    what = f"diagnose, {tree.bytes / GB:.1f} GB of Loki"
    return say(what, mine, json_, "json.loads: 1 x + 2 x rg, 250 MB", met)


def _decode(path: Path) -> list[str]:
    """What decodes the JSON of a folder, and nothing else."""
    return [sys.executable, "-c", _DECODE, *sorted(map(str, path.iterdir()))]


CASES: dict[str, Callable[[Path, float], bool]] = {
    "startup": startup,
    "small": small,
    "quiet": quiet,
    "healthy": healthy,
    "storm": storm,
    "many": many,
    "kubernetes": kubernetes,
    "loki": loki,
    "live": clusters.thousand,
    "stuck": clusters.stuck,
}


def main(arguments: Sequence[str]) -> int:
    """Run the cases named, or all; 1 if a target was missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="default: all")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full sizes")
    options = parser.parse_args(arguments)
    subprocess.run([RAYDOCTOR, "--version"], check=True, stdout=subprocess.DEVNULL)
    met = True
    for name in options.cases or CASES:
        folder = Path(tempfile.mkdtemp(prefix="raydoctor-benchmark-"))
        try:
            met &= CASES[name](folder, options.scale)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

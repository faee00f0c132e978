"""How many secrets reach an output, and how many harmless look-alikes are replaced.

    python -m benchmarks.secrets            # every kind of secret in every place and output: some minutes
    python -m benchmarks.secrets --every 5  # each fifth kind

The kinds and the eight places are those of `tests/helpers/secret_corpus.py`. A place is first redacted as a
text; then a capture whose tasks fail with such texts is read by each command, and each output is searched for
eight characters in a row of each secret. An output that cuts a text may be better for that reason alone.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from raydoctor.act.attach import debug
from raydoctor.agents.programs import neighbours
from raydoctor.capture.open import open_capture
from raydoctor.cli._options import REPORT_FORMATS
from raydoctor.cli.diagnose import as_text
from raydoctor.cli.hung import _as_text as hung_as_text
from raydoctor.cli.hung import _view
from raydoctor.diagnosis import engine
from raydoctor.diagnosis import status as diagnosis_of_status
from raydoctor.observe import bundle
from raydoctor.observe.processes.redact import Redactor, name_of_task
from raydoctor.observe.stacks import worker_stacks
from raydoctor.read import build, story
from raydoctor.redact.report import scrub
from raydoctor.render import page
from raydoctor.render import status as status_page
from raydoctor.render import story as story_page
from tests.helpers import FIXTURES
from tests.helpers import secret_corpus as corpus
from tests.helpers.captures import capture_of
from tests.helpers.secret_corpus import Secret, leaked

MOST_LEAKED, MOST_REPLACED = 0.01, 0.05
WORKER = "ab" * 28
HUNG = "live-hung-lock--ray-2.60.0--1-node"
TITLE = b'"title":"'
Placed = list[tuple[Secret, str]]
"""Secrets, each with a text that holds it."""


def placed(place: str, every: int, seed: int) -> Placed:
    """One secret of each kind, in that place."""
    build_text = corpus.TEXT_PLACEMENTS[place]
    kinds = list(corpus.ALL.items())[::every]
    secrets = [made(random.Random(f"{label} {seed}")) for label, made in kinds]
    return [(secret, build_text(secret)) for secret in secrets]


# ---------------------------------------------------------------- outputs


def write_logs(given: Placed, folder: Path) -> Path:
    """A driver's output whose tasks fail with these texts, and a worker's log with them."""
    logs = folder / "logs"
    logs.mkdir(parents=True)
    (folder / "driver.log").write_text(
        "".join(
            "Traceback (most recent call last):\n"
            '  File "/app/main.py", line 7, in <module>\n    ray.get(load.remote())\n'
            f"ray.exceptions.RayTaskError(Failed{n}Error): \x1b[36mray::load{n}()\x1b[39m "
            f"(pid={n + 9}, ip=10.0.0.1)\n"
            f'  File "/app/main.py", line {n}, in load\n    raise Failed{n}Error(text)\n'
            f"Failed{n}Error: refused:\n{_printed(text)}\n"
            for n, (_, text) in enumerate(given)
        )
    )
    (logs / f"worker-{WORKER}-01000000-77.out").write_text(
        "".join(f"{_printed(text)}\n" for _, text in given)
    )
    return folder


def _printed(text: str) -> str:
    """Words between NULs as a program prints them: as a command line, and an environment one by line."""
    words = text.rstrip("\0").split("\0")
    return text if len(words) == 1 else "\n".join(words) if "=" in words[0] else shlex.join(words)


def of_logs(folder: Path) -> Iterator[tuple[str, str]]:
    """(output, text) of what commands make of these logs."""
    with open_capture(str(folder)) as capture:
        report = engine.run(capture, detailed=True)
        for form in REPORT_FORMATS:
            yield f"diagnose --format {form}", as_text(report, form, verbose=form == "text")
        told = story.story_of(capture, WORKER, everything=True)
        yield "story", story_page.to_json(told) + page.plain(story_page.render(told, None))
        target = folder.with_suffix(".tar")
        bundle.write(str(target), bundle.Bundle(dict(capture.files), {}, (), {}), Redactor())
        with tarfile.open(target) as tar:
            streams = [stream for each in tar if (stream := tar.extractfile(each))]
            yield "collect", b"\n".join(each.read() for each in streams).decode()
    request = {"path": str(folder), "driver_log": "", "session": "", "neighbours": 40}
    lines = [
        neighbours._reply({**request, "file": source.path, "line": line})["lines"]
        for source in capture.files
        for line in range(1, 900, 40)
    ]
    yield "mcp, evidence", "\n".join(text for each in lines for _, text in each)


def of_names(given: Placed, folder: Path) -> Iterator[tuple[str, str]]:
    """(output, text) of commands that show names of tasks, titles and values of a live cluster."""
    origin = capture_of(FIXTURES / HUNG)
    shutil.copytree(origin, folder, dirs_exist_ok=True)
    for file in (path for path in folder.rglob("live-*.json") if path.is_file()):
        whole = json.dumps(" and ".join(text for _, text in given))[1:-1].encode()
        file.write_bytes(file.read_bytes().replace(TITLE, TITLE + whole + b" "))
    with open_capture(str(folder)) as capture:
        view = _view(capture, 60.0, True)
        for form in ("text", "json", "html", "prometheus"):
            yield f"hung --format {form}", hung_as_text(view, form, "capture")
        reading = build.read(capture, diagnosis_of_status.SIGNALS)
        found = diagnosis_of_status.status(reading.case)
        if found is not None:
            seen = scrub(status_page.StatusView(found, (), ""), capture.secrets)
            yield "status", page.plain(status_page.render(seen, 200)) + status_page.to_json(seen)
    yield "watch, cancel: names", "\n".join(name_of_task(text) for _, text in given)
    values = [corpus._local(secret) for secret, _ in given]
    row = {"title": "x", "threads": [{"frames": [{"locals": each} for each in values]}]}
    worker_stacks._redact(row, Redactor())
    yield "stack --locals", json.dumps(row)
    rows = [{"name": name, "value": value} for each in values for name, value in each.items()]
    inside = debug.redacted(debug.Inspection(variables={"variables": rows}), Redactor())
    yield "attach --locals", json.dumps(inside.variables)


def outputs(given: Placed) -> Iterator[tuple[str, str]]:
    """Every (output, text)."""
    with tempfile.TemporaryDirectory() as into:
        yield from of_logs(write_logs(given, Path(into) / "logs"))
        yield from of_names(given, Path(into) / "names")


# ---------------------------------------------------------------- shares


def share(place: str, every: int, seeds: int) -> tuple[int, int]:
    """(leaks, trials) of the redactor alone."""
    trials = [each for seed in range(seeds) for each in placed(place, every, seed)]
    return sum(bool(leaked(s, Redactor().redact(text))) for s, text in trials), len(trials)


def replaced() -> list[str]:
    """The harmless texts that the redactor changes."""
    return [text for text in corpus.HARMLESS if Redactor().redact(text) != text]


def _row(name: str, part: int, of: int) -> str:
    return f"{name:<32} {part:>6,} of {of:>7,}  {100 * part / of:6.2f} %"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    found: dict[str, tuple[int, int]] = {}
    for place in corpus.TEXT_PLACEMENTS:
        found[place] = share(place, given.every, given.seeds)
        print(_row(place, *found[place]), flush=True)
    leaks, trials = (sum(each) for each in zip(*found.values(), strict=True))
    kinds = len(list(corpus.ALL)[:: given.every])
    print(_row(f"all: {kinds} kinds, 8 places", leaks, trials))
    changed = replaced()
    print(_row("look-alikes replaced", len(changed), len(corpus.HARMLESS)), flush=True)
    by_output: dict[str, tuple[int, int]] = {}
    for place in corpus.TEXT_PLACEMENTS:
        secrets = placed(place, given.every, 0)
        for name, text in outputs(secrets):
            before = by_output.get(name, (0, 0))
            here = sum(bool(leaked(s, text)) for s, _ in secrets)
            by_output[name] = before[0] + here, before[1] + len(secrets)
    for name, counts in by_output.items():
        print(_row(name, *counts))
    is_worst = max(part / of for part, of in by_output.values()) > MOST_LEAKED
    return int(
        leaks > MOST_LEAKED * trials
        or len(changed) > MOST_REPLACED * len(corpus.HARMLESS)
        or is_worst
    )


if __name__ == "__main__":
    sys.exit(main())

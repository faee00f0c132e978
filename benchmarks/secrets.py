"""How many secrets reach an output, and how many harmless look-alikes are replaced.

    python -m benchmarks.secrets            # every kind of secret in every place and output: some minutes
    python -m benchmarks.secrets --every 5  # each fifth kind
    python -m benchmarks.secrets --of tables  # only what commands make of live tables

The kinds and the eight places are those of `tests/helpers/secret_corpus.py`. A place is first redacted as a
text. Then a few kinds at a time are put into logs, live tables, command lines and variables, from which each
command makes its outputs, and each output is searched for eight characters in a row of each secret.

An output that cuts a text may be better for that reason alone, so everything is made a second time by a
redactor that replaces nothing: `shown` counts the secrets that the output holds then, and the share of leaks
is of those.
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
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest import mock

from raydoctor.act.attach import debug
from raydoctor.act.attach.target import FoundProcess
from raydoctor.act.cancel.ladder import Cancellation
from raydoctor.act.cancel.target import _of as target_of
from raydoctor.act.signals.process import Identity
from raydoctor.act.zombies.leftovers import Leftover
from raydoctor.act.zombies.sweep import SweepNode, SweepReport, SweptMachine
from raydoctor.agents import shapes
from raydoctor.agents.programs import neighbours
from raydoctor.agents.replies import ToolResult
from raydoctor.capture.open import Capture, open_capture
from raydoctor.cli._options import REPORT_FORMATS
from raydoctor.cli.diagnose import as_text
from raydoctor.cli.hung import _as_text as hung_as_text
from raydoctor.cli.hung import _view
from raydoctor.diagnosis import engine
from raydoctor.diagnosis import status as diagnosis_of_status
from raydoctor.model.status import WaitingGroup
from raydoctor.observe import bundle
from raydoctor.observe.processes import proc
from raydoctor.observe.processes.redact import Redactor, command_line, name_of_task, shared
from raydoctor.observe.stacks import worker_stacks
from raydoctor.observe.stacks.stack_targets import Known
from raydoctor.observe.watching.clocks import RunningClock
from raydoctor.observe.watching.watching import Attempt, ReportedTask, Snapshot
from raydoctor.read import build, story
from raydoctor.redact.report import scrub
from raydoctor.render import attach as attach_page
from raydoctor.render import cancel as cancel_page
from raydoctor.render import page
from raydoctor.render import stack as stack_page
from raydoctor.render import status as status_page
from raydoctor.render import story as story_page
from raydoctor.render import watch as watch_page
from raydoctor.render import zombies as zombies_page
from raydoctor.watch import guard
from raydoctor.watch.guard import _overdue
from raydoctor.watch.rounds import Watch
from raydoctor.watch.view import TaskLine, WatchView
from tests.helpers import FIXTURES
from tests.helpers import secret_corpus as corpus
from tests.helpers.captures import capture_of
from tests.helpers.secret_corpus import Secret, leaked

EVIDENCE = ("logs", "tables", "processes")
MOST_LEAKED, MOST_REPLACED = 0.01, 0.05
TOGETHER = 16
"""Kinds in one output: more of them would be cut."""
WORKER = "ab" * 28
HUNG = "live-hung-lock--ray-2.60.0--1-node"
Placed = list[tuple[Secret, str]]
"""Secrets, each with a text that holds it."""
Output = tuple[str, str]
"""The name of an output, and its text."""


def placed(place: str, every: int, seed: int) -> Placed:
    """One secret of each kind, in that place."""
    build_text = corpus.TEXT_PLACEMENTS[place]
    kinds = list(corpus.ALL.items())[::every]
    secrets = [made(random.Random(f"{label} {seed}")) for label, made in kinds]
    return [(secret, build_text(secret)) for secret in secrets]


# ---------------------------------------------------------------- logs


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


def of_logs(given: Placed, folder: Path) -> Iterator[Output]:
    """What commands make of these logs."""
    write_logs(given, folder)
    with open_capture(str(folder)) as capture:
        yield from _reports(capture, "diagnose")
        reply = story.story_of(capture, WORKER, everything=True)
        document = story_page.to_json(reply)
        yield "story", page.plain(story_page.render(reply, None))
        yield "story --format json", document
        yield "mcp story", _tool(shapes.story(json.loads(document), ()))
        target = folder.with_suffix(".tar")
        bundle.write(str(target), bundle.Bundle(dict(capture.files), {}, (), {}), Redactor())
        with tarfile.open(target) as tar:
            streams = [stream for each in tar if (stream := tar.extractfile(each))]
            yield "collect", b"\n".join(each.read() for each in streams).decode()
        files = [source.path for source in capture.files]
    request = {"path": str(folder), "driver_log": "", "session": "", "neighbours": 40}
    lines = [
        (neighbours._reply({**request, "file": file, "line": line})["lines"], line)
        for file in files
        for line in range(1, 10 * len(given) + 200, 80)
    ]
    yield "mcp evidence", "\n".join(_tool(shapes.evidence(near, at)) for near, at in lines if near)


def _reports(capture: Capture, name: str) -> Iterator[Output]:
    """Each form of a report, and the tools of an agent that read it."""
    report = engine.run(capture, detailed=True)
    for form in REPORT_FORMATS:
        yield f"{name} --format {form}", as_text(report, form, verbose=form == "text")
    document = json.loads(as_text(report, "json", verbose=False))
    yield f"mcp {name}", _tool(shapes.diagnosed(document, {}, ()))
    found = [shapes.finding(document, each["id"], {}) for each in document["diagnoses"]]
    yield f"mcp finding ({name})", "\n".join(_tool(each) for each in found if each)


def _tool(result: ToolResult) -> str:
    return "\n".join(_flat([result.head, *(row for _, row in result.items)]))


def _flat(value: Any) -> Iterator[str]:
    """The texts of a tree."""
    if isinstance(value, dict):
        yield from _flat([*value.keys(), *value.values()])
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _flat(each)
    else:
        yield str(value)


# ---------------------------------------------------------------- live tables


def write_tables(given: Placed, folder: Path) -> Path:
    """A live capture by another program than `collect`, which redacts such tables with the same function.

    Tasks with such names hang in processes with such titles.
    """
    shutil.copytree(capture_of(FIXTURES / HUNG), folder)
    for name, changed in (
        ("tasks", ("task_id", "worker_id", "worker_pid", "name")),
        ("samples", ("worker_id", "pid", "worker_pid", "title")),
        ("clues", ("worker_id", "pid", "worker_pid")),
        ("still-running", ("worker_id", "pid", "running_task_ids")),
        ("worker-stats", ("worker_id", "pid", "running_task_ids")),
        ("processes", ("pid", "title")),
        ("jobs", ("entrypoint", "message")),
    ):
        path = folder / f"live/live-{name}.json"
        table = json.loads(path.read_text())
        rows = [row for row in table["rows"] if row.get("pid", row.get("worker_pid", 434)) == 434]
        for n, (_, text) in enumerate(given):
            shown = _printed(text)
            fields = {
                "task_id": f"{n:016x}{'f' * 24}01000000",
                "worker_id": f"{n:056x}",
                "pid": n + 1000,
                "worker_pid": n + 1000,
                "running_task_ids": [f"{n:016x}{'f' * 24}01000000"],
                "title": shown,
                "entrypoint": shown,
                "message": shown,
                "name": shown,
            }
            table["rows"] += [{**row, **{each: fields[each] for each in changed}} for row in rows]
        head, kept = json.dumps({**table, "rows": []})[:-2], table["rows"]
        written = head + "\n" + ",\n".join(json.dumps(row) for row in kept) + "\n]}\n"
        path.write_text(written)
    return folder


def of_tables(given: Placed, folder: Path) -> Iterator[Output]:
    """What commands make of such tables."""
    write_tables(given, folder)
    with open_capture(str(folder)) as capture:
        view = _view(capture, 60.0, True)
        for form in ("text", "json", "html", "prometheus"):
            yield f"hung --format {form}", hung_as_text(view, form, "capture")
        document = json.loads(hung_as_text(view, "json", ""))
        yield "mcp hung", _tool(shapes.hung(document, 1, ()))
        yield "watch: hung", json.dumps(Redactor().redact_json(document["hung"]))
        yield from _reports(capture, "diagnose, live")
        reading = build.read(capture, diagnosis_of_status.SIGNALS)
        found = diagnosis_of_status.status(reading.case)
        assert found is not None
        assert found.tasks is not None
        waits = tuple(WaitingGroup("starved", _printed(t), "", 1, 9.0) for _, t in given)
        found = replace(found, tasks=replace(found.tasks, waits=waits))
        seen = scrub(status_page.StatusView(found, (), ""), capture.secrets)
        yield "status", page.plain(status_page.render(seen, 4000, is_whole=True))
        yield "status --format json", status_page.to_json(seen)


# ---------------------------------------------------------------- processes and tasks


def of_processes(given: Placed) -> Iterator[Output]:
    """What commands show of command lines, variables and names of tasks."""
    texts = [_printed(text) for _, text in given]
    words = [text.rstrip("\0").split("\0") for _, text in given]
    with mock.patch.object(proc, "command", lambda pid: words[pid]):
        titles = [command_line(n) for n in range(len(words))]
    yield from _of_sweep(titles)
    yield from _of_stacks(given, texts, titles)
    yield from _of_watch(texts)
    yield from _of_attach(given, texts)
    rows = [{"task_id": f"{n:048x}", "state": "RUNNING", "name": t} for n, t in enumerate(texts)]
    targets = [target_of(row, [row], []) for row in rows]
    yield "cancel", "".join(page.plain(cancel_page.render(Cancellation(t), 4000)) for t in targets)
    yield "cancel --format json", "".join(cancel_page.to_json(Cancellation(t)) for t in targets)


def _of_sweep(titles: list[str]) -> Iterator[Output]:
    leftovers = [
        Leftover(Identity(n + 9, 1.0), "orphan", "", f"worker {n}", title, "", "", 0, 1, 1)
        for n, title in enumerate(titles)
    ]
    machines = [SweptMachine(SweepNode(), SweepReport(leftovers, {}, (), {}), is_here=True)]
    yield "zombies", page.plain(zombies_page.render(machines, 4000, 9.0))
    yield "zombies --format json", zombies_page.to_json(machines)
    yield "zombies --format prometheus", zombies_page.to_metrics(machines)


def _of_stacks(given: Placed, texts: list[str], titles: list[str]) -> Iterator[Output]:
    rows: list[dict[str, Any]] = []
    tasks, stats = [], []
    for n, (secret, _) in enumerate(given):
        frame = {"function": "load", "file": "a.py", "line": n, "whose": "user"}
        thread = {"tid": n, "name": texts[n], "active": True, "gil": False, "state": "S"}
        frames = [{**frame, "locals": corpus._local(secret)}]
        worker = f"{n:056x}"
        rows.append(
            {"pid": n, "worker_pid": n, "worker_id": worker, "node_id": "", "title": titles[n]}
            | {"problem": "", "how": "py-spy", "started_at": 1.0}
            | {"threads": [{**thread, "frames": frames}]}
        )
        tasks.append({"task_id": worker, "name": texts[n]})
        stats.append({"worker_id": worker, "answers": True, "running_task_ids": [worker]})
    known = Known(stats, tasks)
    cleaned = worker_stacks._redacted(rows)
    found = worker_stacks.Found(
        [worker_stacks._stack(row, known, {row["pid"]: "worker"}, True) for row in cleaned]
    )
    style = stack_page.Style(4000, whole=True)
    document = stack_page.to_json(found)
    yield "stack --locals", page.plain(stack_page.render(found, style))
    yield "stack --locals --format json", document
    yield "mcp stacks", _tool(shapes.stacks(json.loads(document), ()))


def _of_watch(texts: list[str]) -> Iterator[Output]:
    running = [
        RunningClock(
            run := ReportedTask(f"{n:048x}", "w", n, "10.0.0.2", "n"),
            1.0,
            1.0,
            0.0,
            Attempt(run.task, text, "load", 0, "RUNNING", "w", "", 1.0),
        )
        for n, text in enumerate(texts)
    ]
    events = [_overdue(each, guard.GuardLimits(1.0), 9.0) for each in running]
    snapshot = Snapshot(9.0, "", (), tuple(each.run for each in running), 0, (), 1, 1, ())
    lines = [TaskLine(each, guard.title(each), None, "") for each in running]
    watch = Watch(_watched=mock.Mock(view=WatchView(snapshot, lines), spent=0.0))
    watch.events.extend(events)
    shown = watch_page.page(watch, 4000, 10 * len(texts) + 200)
    yield "watch", page.plain(shown)
    yield "watch --format json", "".join(map(watch_page.event_to_json, events))
    yield "watch --format json: rounds", watch_page.round_to_json(watch)


def _of_attach(given: Placed, texts: list[str]) -> Iterator[Output]:
    shown, documents = [], []
    for n, (secret, _) in enumerate(given):
        rows = [{"name": k, "value": v, "type": "str"} for k, v in corpus._local(secret).items()]
        stack = {"tid": n, "name": texts[n], "awaits": texts[n], "frames": []}
        inside = debug.redacted(
            debug.Inspection(
                stacks=[stack], variables={"variables": rows}, evaluated={"value": texts[n]}
            ),
            shared(),
        )
        name = name_of_task(texts[n])
        process = FoundProcess("task", f"{n:048x}", name, "RUNNING", n, "10.0.0.2")
        made = attach_page.AttachResult(process, {"seen": asdict(inside)}, {})
        shown.append(page.plain(attach_page.render(made, 4000, inside=True)))
        documents.append(attach_page.to_json(made))
    yield "attach --locals", "\n".join(shown)
    yield "attach --locals --format json", "\n".join(documents)


# ---------------------------------------------------------------- shares


def outputs(given: Placed, of: Sequence[str]) -> Iterator[Output]:
    """Every output of these kinds of evidence."""
    with tempfile.TemporaryDirectory() as into:
        if "logs" in of:
            yield from of_logs(given, Path(into) / "logs")
        if "tables" in of:
            yield from of_tables(given, Path(into) / "tables")
    if "processes" in of:
        yield from of_processes(given)


@contextmanager
def nothing_redacted() -> Iterator[None]:
    """Replace no secret: the outputs show what they would without a redactor."""
    with ExitStack() as stack:
        for name in ("redact", "redact_bytes", "redact_rows", "redact_json", "redact_stream"):
            stack.enter_context(mock.patch.object(Redactor, name, lambda self, given: given))
        stack.enter_context(
            mock.patch.object(Redactor, "redact_argv", lambda self, given: list(given))
        )
        name_of_task.cache_clear()
        yield
    name_of_task.cache_clear()


def through(given: Placed, of: Sequence[str]) -> tuple[dict[str, int], dict[str, int]]:
    """By output: the secrets that reach it, and those that it would show without the redactor."""

    def count() -> dict[str, int]:
        made = outputs(given, of)
        return {name: sum(bool(leaked(s, text)) for s, _ in given) for name, text in made}

    leaks = count()
    with nothing_redacted():
        return leaks, count()


def share(place: str, every: int, seeds: int) -> tuple[int, int]:
    """(leaks, trials) of the redactor alone."""
    trials = [each for seed in range(seeds) for each in placed(place, every, seed)]
    return sum(bool(leaked(s, Redactor().redact(text))) for s, text in trials), len(trials)


def replaced() -> list[str]:
    """The harmless texts that the redactor changes."""
    return [text for text in corpus.HARMLESS if Redactor().redact(text) != text]


def _row(name: str, part: int, of: int) -> str:
    return f"{name:<38} {part:>6,} of {of:>7,}  {100 * part / max(1, of):6.2f} %"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--of", nargs="+", choices=EVIDENCE, default=EVIDENCE)
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
    leaked_by, shown_by = Counter[str](), Counter[str]()
    for place in corpus.TEXT_PLACEMENTS:
        secrets = placed(place, given.every, 0)
        for at in range(0, len(secrets), TOGETHER):
            leaks_here, shown_here = through(secrets[at : at + TOGETHER], given.of)
            leaked_by.update(leaks_here)
            shown_by.update(shown_here)
        print(f"{place}: {leaked_by.total():,} of {shown_by.total():,} so far", flush=True)
    for name, shown in shown_by.items():
        print(_row(name, leaked_by[name], shown))
    is_worst = max(leaked_by[name] / max(1, shown) for name, shown in shown_by.items())
    return int(
        leaks > MOST_LEAKED * trials
        or len(changed) > MOST_REPLACED * len(corpus.HARMLESS)
        or is_worst > MOST_LEAKED
    )


if __name__ == "__main__":
    sys.exit(main())

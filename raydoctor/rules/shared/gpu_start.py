"""Consequences for an engine or actor that got no GPU or too little GPU memory: exits, exceptions, tracebacks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import Signal
from raydoctor.case.signals import OUTPUT
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event
from raydoctor.rules.shared.failures import failures
from raydoctor.rules.shared.task_error import error_entity

LINE_START = r"(?:^(?:E +)?|\] )"
"""Text before an exception's last line: pytest's mark, or the end of a logger's header."""

STARTED = (
    Signal(
        "vllm.started", "Starting to load model ", r"(?:^|\] )Starting to load model \S", OUTPUT,
        "INFO 03-30 14:12:02 [gpu_model_runner.py:3259] Starting to load model /models/qwen...",
    ),
    Signal(
        "vllm.started", "Model loading took ", r"(?:^|\] )Model loading took \d{1,20}(?:\.\d{1,20})? Gi?B", OUTPUT,
        "INFO 03-30 14:12:49 [gpu_model_runner.py:3338] Model loading took 7.1554 GiB memory and 31.8 seconds",
    ),
    Signal(
        "vllm.started", "Application startup complete", r"^INFO: +Application startup complete", OUTPUT,
        "INFO:     Application startup complete.",
    ),
)  # fmt: skip
"""Steps of vLLM's start after its placement group exists (0.5 to 0.33)."""

_ACTOR = pattern(r"\bactor_id=([0-9a-f]{32})")
_TEXTS = ("driver.exception", "log.traceback", "task.error_text", "actor.creation_exception")


class Consequences(NamedTuple):
    """The entities that the failure ended, and their records."""

    entities: tuple[Entity, ...]
    events: tuple[Event, ...]
    exits: tuple[WorkerExit, ...]


def consequences(case: Case, events: Sequence[Event], words: re.Pattern[str]) -> Consequences:
    """Exits, task errors and constructors with these words in their text, and exits of processes that printed them."""
    errors = [
        seen for seen in failures(case)
        if (raised := seen.failure.raised) and words.search(raised.message)
    ]  # fmt: skip
    texts = [e for e in case.of(*_TEXTS) if words.search(e.message)]
    actors = [id_ for e in texts if "__init__()" in e.message for id_ in _ACTOR.findall(e.message)]
    exits = [e for e in case.exits if e.exit_type == "USER_ERROR" and words.search(e.detail)]
    actors += [id_ for exit_ in exits for id_ in _ACTOR.findall(exit_.detail)[:1]]
    exits += evidence.unexpected_exits(
        case, (e for e in events if e["who"] or evidence.worker_of(e))
    )
    exits = list({exit_.entity: exit_ for exit_ in exits}.values())
    found = (
        *(error_entity(seen) for seen in errors),
        *(Entity("actor", actor) for actor in actors),
        *evidence.exit_entities(exits),
    )
    covered = (e for seen in errors for e in seen.records)
    return Consequences(
        tuple(dict.fromkeys(found)),
        (*texts, *covered, *evidence.exit_events(exits)),
        tuple(exits),
    )


def started_later(case: Case, events: Sequence[Event], step: str = "") -> bool:
    """Whether vLLM reports this step of its start (or any) after the last of these records of the same file."""
    last = {id(e.source): e.line for e in sorted(events, key=lambda e: e.line)}
    steps = (e for e in case.of("vllm.started") if step in e.message)
    return any(e.line > last.get(id(e.source), e.line) for e in steps)


def processes(events: Sequence[Event]) -> str:
    """`LLMRayActor (pid 2345)`, `RayWorkerWrapper in 8 processes`, or empty for the driver itself."""
    names = {e["who"]: None for e in events if e["who"]}
    pids = {(e["ip"], e.pid) for e in events if e["who"]}
    if not names:
        return ""
    name = evidence.join_names(names)
    if len(pids) > 1:
        return f"{name} in {len(pids)} processes"
    return f"{name} (pid {next(iter(pids))[1]})"

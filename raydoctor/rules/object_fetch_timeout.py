"""Ray could not find a copy of an existing object in time.

## What you see
`ray.exceptions.ObjectFetchTimedOutError: … timed out because no locations were found for the object. This may indicate
a system-level bug.` Before that, from the 60th second on, the log of the waiting process repeats every second: `Objects
… are still not local after 60s. If this message continues to print, ray.get() is likely hung.`

## Why
To read an object from another node, Ray asks the owner (the process that created the reference) where the copies are,
and gives up after 600 s without a location. Typically the last copy was lost with a node, and the owner, which would
rerun the task that created the object, does not answer. This happens when the owner is stopped or overloaded, or when
the network drops messages.

## Confirm
- `ray stack` on the owner's node shows what the owner is doing. `ps -o pid,stat,cmd -p PID` shows `T` if it is stopped.
- `ray list nodes --filter state=DEAD` lists the node that held the last copy.
- `ray list objects --filter object_id=OBJECT_ID`, while a process waits for the object, still lists the object.

## Fix
Reduce the owner's load. Usually it is a driver that owns very many objects: spread ownership over several processes,
with fewer references each. If the network is slow or recovery takes long, give the fetch more time: set
`RAY_fetch_fail_timeout_milliseconds` (default 600000) for `ray start` and for the driver.

## Not this when
- Ray reports that all copies are lost (`object-lost`), or why it cannot recreate the object
  (`object-unreconstructable`).
- the owner exited (`owner-died`).
- the `timeout` of a `ray.get` passed before the object was created (`get-timeout`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, rule
from raydoctor.case.signals import CORE, DRIVER, RAY_EXCEPTION
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Gap, Link, Remedy, Subject
from raydoctor.rules.shared import objects

_BODY = (
    f"Fetch for object {objects.A_TASKS} timed out because no locations were found for the object. This may indicate a "
    "system-level bug."
)
TIMED_OUT = Signal(
    "object.fetch_timed_out", objects.HEAD,
    objects.HEAD_PATTERN + r"Fetch for object [0-9a-f]{56} timed out because no locations were found", DRIVER,
    objects.error(_BODY), extent="record",
)  # fmt: skip
NOT_LOCAL = Signal(
    "object.not_local", " are still not local after ",
    r"^Objects? (?P<objects>[0-9a-f]{56}[0-9a-f, ]*?),? are still not local after (?P<seconds>\d+)s\.", CORE,
    f"Objects {objects.A_TASKS} are still not local after 61s. If this message continues to print, ray.get() is likely hung. Please "
    "file an issue at https://github.com/ray-project/ray/issues/.",
    fold=("objects",),
)  # fmt: skip
"""`plasma_store_provider.cc`: of objects that exist; from `RAY_fetch_warn_timeout_milliseconds` (60 s) on, once a second."""


@rule(
    tier="symptom",
    severity="error",
    rank=82,
    explains=("object", "waiting"),
    caused_by=("node", "raylet"),
    looks_for=(TIMED_OUT, NOT_LOCAL, *objects.NODE_SIGNALS, RAY_EXCEPTION),
)  # fmt: skip
def object_fetch_timeout(case: Case) -> Iterator[Finding]:
    """Fetches that Ray gave up, or that the program's own timeout ended while Ray still tried."""
    failed = case.of("object.fetch_timed_out")
    if failed:
        yield _finding(case, failed, objects.named(e["object"] for e in failed))
        return
    # The driver's timeout can only have ended a wait of the driver itself.
    waits = [e for e in case.of("object.not_local") if e.source.role == "core-driver"]
    for event in case.of("driver.exception"):
        if event["type"] == "GetTimeoutError" and (ended := _ended_by(event, waits)):
            lost = list(dict.fromkeys(o for e in ended for o in _listed(e)))
            yield _finding(case, [event], lost)
            return


_DEADLINE = pattern(r"within the timeout of (?P<ms>\d{1,20})ms")
_NEAR = 2
"""Seconds: Ray logs the wait once a second, and the program may begin to wait earlier."""


def _ended_by(timeout: Event, waits: list[Event]) -> list[Event]:
    """Waits as long as this timeout. Only Ray 2.51 and later print its length."""
    found = _DEADLINE.search(timeout["what"])
    seconds = int(found["ms"]) / 1000 if found else 0.0
    longest: dict[str, Event] = {}
    for event in waits:
        known = longest.get(event["objects"], event)
        longest[event["objects"]] = max(event, known, key=lambda e: int(e["seconds"]))
    return [e for e in longest.values() if found and abs(int(e["seconds"]) - seconds) <= _NEAR]


def _listed(event: Event) -> list[str]:
    return [o.strip() for o in event["objects"].split(",") if o.strip()]


def _finding(case: Case, failed: list[Event], lost: list[str]) -> Finding:
    waits = [e for e in case.of("object.not_local") if set(_listed(e)) & set(lost)]
    longest = max(waits, key=lambda e: int(e["seconds"]), default=None)
    waited = f" for {longest['seconds']} s" if longest else ""
    timed_out = failed[0].kind == "object.fetch_timed_out"
    ends = "gave up" if timed_out else "the timeout of ray.get ended the wait"
    return Finding(
        f"Ray found no copy of {objects.counted(case, lost)}{waited}, then {ends}",
        (
            *objects.recovery(case),
            *(Link(e, f"no copy on this node after {e['seconds']} s") for e in (longest,) if e),
            Link(failed[0], f"Ray {ends}" if timed_out else ends),
        ),
        explains=(*(Entity("object", o) for o in lost), *(() if timed_out else (Entity("waiting", "cluster"),))),
        caused_by=objects.with_nodes(objects.dead_nodes(case)),
        subjects=tuple(Subject("object", o) for o in lost[:10]),
        count=len(lost),
        remedies=(_OWNER, _LONGER, objects.PERSIST),
        covers=(*waits, *(failed if timed_out else ()), *objects.raised_for(case, {*lost, *(e["object"] for e in failed if e["object"])})),
        gaps=(_WHY_SILENT,),
        at=next((e.at for e in (failed[0], longest) if e and e.at is not None), None),
    )  # fmt: skip


_WHY_SILENT = Gap(
    "why the object's owner did not report where a copy is",
    "Ray logs neither the owner of the object nor that it does not answer",
    "Run ray stack on the owner's node while a process waits for the object: it shows whether the owner is stopped, or busy in one long call.",
)
_OWNER = Remedy(
    "Check the owner (the process that called .remote() or ray.put): resume it, or reduce its load",
    (
        "ray stack                                   # on its node, while a process waits for the object",
        "ps -eo pid,stat,etime,cmd | grep '[r]ay::'    # T: stopped by a signal or a debugger",
    ),
)
_LONGER = Remedy(
    "Raise the time limit (default 600 s), if the owner or the network is only slow",
    (
        "export RAY_fetch_fail_timeout_milliseconds=1800000   # on every node before ray start, and in the shell that starts the driver",
    ),
    risk="disruptive",
)


# ------------------------------------------------------------------ examples


_TIMEOUT = "ray.exceptions.GetTimeoutError: Could not fetch 1 objects within the timeout of 90000ms. 1 objects were not ready.\n"


def _waits(seconds: int) -> str:
    text = NOT_LOCAL.sample.replace("61s", f"{seconds}s")
    return (
        f"[2026-11-21 10:56:{seconds - 60:02d},303 W 16 16] plasma_store_provider.cc:448: {text}\n"
    )


EXAMPLES: tuple[Example, ...] = (
    Example(
        "Ray finds no location of a copy",
        {
            **QUIET_LOGS,
            "driver.log": f"ray.exceptions.ObjectFetchTimedOutError: {objects.error(_BODY)}",
            objects.DRIVER_LOG: _waits(60) + _waits(99),
        },
        says=("1 object", "99 s", "fetch_fail_timeout"),
    ),
    Example(
        "the program's own timeout passed while a finished object could not be fetched",
        {**QUIET_LOGS, "driver.log": _TIMEOUT, objects.DRIVER_LOG: _waits(60) + _waits(89)},
        consequences=("get-timeout",),
        says=("89 s", "ray stack"),
    ),
    Example(
        "the object arrived in the end, and the timeout was that of another call",
        {
            **QUIET_LOGS,
            "driver.log": _TIMEOUT.replace("90000", "30000"),
            objects.DRIVER_LOG: _waits(60) + _waits(61),
        },
        roots=("get-timeout",),
    ),
    Example(
        "the object arrived in the end, and a task prints the error",
        {
            **QUIET_LOGS,
            "driver.log": f"(check pid=12) {objects.error(_BODY)}",
            objects.DRIVER_LOG: _waits(60) + _waits(61),
        },
    ),
)

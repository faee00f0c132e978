"""These logs come from a version of Ray older than 2.9, which raydoctor does not fully support.

## What you see
The report contains fewer diagnoses than expected, or lists lines as unexplained because newer versions word them
differently.

## Why
The rules are written for the messages of Ray 2.9 to 2.60. Older versions word many messages differently, and some of
their mechanisms no longer exist. Messages of Python, torch and the kernel, and the driver's own traceback are still
recognized.

## Confirm
- `python -c 'import ray; print(ray.__version__)'`, in the environment of the cluster, prints a version before 2.9.
- The first lines of `gcs_server.out` contain it after `ray_version=`.

## Fix
Reproduce the failure with a supported version of Ray, and read the unexplained errors of this report.

## Not this when
- the version is 2.9 or newer.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import DRIVER, RAY_VERSION
from raydoctor.model.values import Event, Finding, Link, Remedy

_OLDEST = (2, 9)
OLD_WORDS = (
    Signal(
        "version.old_words",
        "A worker died or was killed while executing",
        r"WARNING worker\.py:\d{1,5} -- A worker died or was killed while executing",
        (*DRIVER, "raylet-echo"),
        "2021-06-22 10:12:52,244 WARNING worker.py:1114 -- A worker died or was killed while executing a task by an unexpected "
        "system error.",
        with_header=True,
    ),
    Signal(
        "version.old_words",
        "memory_monitor.RayOutOfMemoryError: ",
        r"\bray\.(?:_private\.)?memory_monitor\.RayOutOfMemoryError: More than \d",
        DRIVER,
        "ray.memory_monitor.RayOutOfMemoryError: More than 95% of the memory on node ray-head is used (61.0 / 62.0 GB).",
    ),
)
"""Lines that 2.9 and later do not print: the first has the prefix `(raylet)` today
(`listen_error_messages` in `worker.py`), and nothing calls the second monitor's check (`memory_monitor.py`)."""

_DOC = "https://docs.ray.io/en/latest/ray-overview/installation.html"


@rule(
    tier="symptom",
    severity="info",
    rank=98,
    explains=(),
    looks_for=(*RAY_VERSION, *OLD_WORDS),
)
def unsupported_version(case: Case) -> Iterator[Finding]:
    """At most one finding: by the recorded version, else by messages that only older versions print."""
    recorded = [e for e in case.of("ray.version") if _numbers(e["version"]) < _OLDEST]
    if recorded:
        yield _finding(recorded, recorded[0]["version"])
    elif case.version is None and (old := case.of(OLD_WORDS[0].kind)):
        yield _finding(old, "")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def _finding(events: list[Event], version: str) -> Finding:
    name = f"Ray {version}, which is" if version else "a version of Ray that is"
    shows = f"the log records Ray {version}" if version else "Ray 2.9 and newer do not print this"
    return Finding(
        f"These logs come from {name} older than 2.9: raydoctor does not recognize all of its messages",
        (Link(events[0], shows),),
        count=evidence.total(events),
        remedies=(
            Remedy(
                "Reproduce the failure with Ray 2.9 or newer, and read the unexplained errors",
                ("pip install -U 'ray>=2.9'   # in every environment of the cluster",),
                risk="disruptive",
                doc=_DOC,
            ),
        ),
    )


# ------------------------------------------------------------------ examples


def _gcs(version: str) -> str:
    return (
        f"[2026-11-21 07:40:00,000 I 13 13] (gcs_server) gcs_server_main.cc:98: Ray cluster metadata ray_version={version} "
        "ray_commit=b7f4259e944bf6959f721b106adc\n"
    )


EXAMPLES: tuple[Example, ...] = (
    Example(
        "the monitor's log records an old version",
        {"logs/monitor.log": "2026-11-21 07:40:00,000\tINFO monitor.py:691 -- Ray version: 2.7.1\n"},
        says=("2.7.1",),
    ),
    console(
        "a driver's output in the words of an old version",
        f"{OLD_WORDS[1].sample}\n",
        roots=("ray-oom-kill", "unsupported-version"),
        says=("older than 2.9",),
    ),
    console(
        "a driver logs what later versions print with a prefix",
        f"{OLD_WORDS[0].sample}\n",
        roots=("unsupported-version", "worker-vanished"),
        says=("older than 2.9",),
    ),
    Example(
        "a supported version",
        {**QUIET_LOGS, "logs/gcs_server.out": _gcs("2.9.3")},
    ),
    Example(
        "a new version whose driver quotes an old message",
        {
            **QUIET_LOGS,
            "logs/gcs_server.out": _gcs("2.60.0"),
            "driver.log": f"the old cluster printed {OLD_WORDS[1].sample}\n",
        },
    ),
)  # fmt: skip

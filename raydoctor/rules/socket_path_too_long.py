"""Ray did not start because the path of a Unix socket in its temporary directory is too long.

## What you see
`OSError: validate_socket_filename failed: AF_UNIX path length cannot exceed 107 bytes: …/sockets/plasma_store` from
`ray start` or `ray.init`. macOS allows 103 bytes.

## Why
Ray keeps the sockets of the raylet and the object store in `TEMP_DIR/session_<time>_<pid>/sockets/`. The part below
TEMP_DIR takes up to 64 bytes, so a TEMP_DIR of more than 43 bytes does not fit in the operating system's limit. Batch
systems often set `TMPDIR` to a long path, and Ray then uses `$TMPDIR/ray`. `RAY_TMPDIR` and `--temp-dir` set the
directory explicitly.

## Confirm
- The message ends with the path. Count the bytes before `/session_`.
- `echo "$RAY_TMPDIR" "$TMPDIR"`, in the environment that starts Ray, shows which variable sets the directory.

## Fix
Use a short temporary directory, or a short symbolic link to the long one. On a machine that several jobs share, give
each its own (`/tmp/r$SLURM_JOB_ID`). Objects can still spill to the long path (Ray 2.45 and later).

    ray start --head --temp-dir=/tmp/ray --object-spilling-directory=/LONG/PATH
    ray.init(_temp_dir="/tmp/ray", object_spilling_directory="/LONG/PATH")   # if the program starts Ray

## Not this when
- the path is short enough, and the socket is missing: the raylet died, or belongs to another session.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import OUTPUT
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy

TOO_LONG = Signal(
    "socket.too_long",
    "AF_UNIX path length cannot exceed ",
    r"\bOSError: (?:validate_socket_filename failed: )?AF_UNIX path length cannot exceed (?P<limit>\d{1,4}) bytes"
    r"(?:: '?(?P<path>/[^\n']{1,1000}))?",
    OUTPUT,
    "OSError: validate_socket_filename failed: AF_UNIX path length cannot exceed 107 bytes: /scratch/users/someone/projects/"
    "experiments/tmp/ray/session_2026-11-21_07-34-50_741226_50318/sockets/plasma_store",
)
"""`ray/_private/node.py` up to 2.44, `ray/_private/utils.py` of 2.45 to 2.60."""

_DOC = "https://docs.ray.io/en/latest/ray-core/configure.html#logging-and-debugging"


@rule(
    tier="root",
    severity="error",
    rank=11,
    explains=("store",),
    looks_for=(TOO_LONG,),
)
def socket_path_too_long(case: Case) -> Iterator[Finding]:
    """One finding for all records, which name one temporary directory or one per start."""
    if events := case.of(TOO_LONG.kind):
        yield _finding(events)


def _finding(events: list[Event]) -> Finding:
    first = max(events, key=lambda e: len(e["path"]))
    limit = int(first["limit"])
    path = first["path"].strip()
    base, session, rest = path.partition("/session_")
    numbers, fits = f"the limit is {limit} bytes", ""
    if session:
        length = len(path.encode())
        fits = f" of at most {limit - len(f'{session}{rest}'.encode())} bytes"
        numbers = f"{length} bytes, and {numbers}"
    return Finding(
        f"Ray did not start because the path of its Unix socket is too long: {numbers}",
        (Link(first, "Ray checked the length of its socket's path and stopped"),),
        explains=(Entity("store", "socket path"),),
        count=evidence.total(events),
        remedies=tuple(_remedies(fits, len(base.encode()) if session else 0)),
        covers=tuple(events),
    )


def _remedies(fits: str, now: int) -> Iterator[Remedy]:
    have = f" (now {now} bytes)" if now else ""
    yield Remedy(
        f"Use a temporary directory{fits}{have}",
        (
            "ray start --head --temp-dir=/tmp/r   # plus your other options. Since Ray 2.55 every node needs the option, before only the head",
            "ray.init(_temp_dir='/tmp/r')   # a cluster that the driver starts",
            "export RAY_TMPDIR=/tmp   # if a framework starts Ray",
        ),
        doc=_DOC,
    )
    yield Remedy(
        "Spill objects to the large disk if /tmp is small",
        (
            "ray start --head --temp-dir=/tmp/r --object-spilling-directory=/large/disk   # plus your other options",
            "ray.init(_temp_dir='/tmp/r', object_spilling_directory='/large/disk')   # if the program starts Ray",
        ),
        doc=_DOC,
        since=(2, 45),
    )


# ------------------------------------------------------------------ examples

_TRACE = (
    'Traceback (most recent call last):\n  File "/app/train.py", line 12, in <module>\n    ray.init()\n'
    '  File "/opt/venv/lib/python3.11/site-packages/ray/_private/node.py", line 320, in __init__\n    self._prepare()\n'
)
_OLD = (
    "OSError: AF_UNIX path length cannot exceed 103 bytes: '/private/var/folders/zz/abcdefgh0123456789/T/pytest-of-me/"
    "pytest-4/ray/session_2026-11-21_07-34-50_741226_318/sockets/plasma_store'\n"
)

EXAMPLES: tuple[Example, ...] = (
    console(
        "the temporary directory of a batch job is too long",
        f"{_TRACE}{TOO_LONG.sample}\n",
        says=("107", "--temp-dir=/tmp/r", "of at most 45 bytes (now 51 bytes)"),
    ),
    console(
        "the same on macOS, in the older wording",
        f"{_TRACE}{_OLD}",
        says=("103",),
    ),
    console(
        "a program explains why it chose a short directory",
        "using /tmp/r, because AF_UNIX path length cannot exceed 107 bytes\n",
        logs=QUIET_LOGS,
    ),
)

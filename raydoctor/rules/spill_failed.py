"""Ray could not write spilled objects to their storage, or could not read them back.

## What you see
The driver's output, after `(raylet)`, and the `io_worker-….err` files contain `An unexpected internal error occurred
while the IO worker was spilling objects: [Errno 28] No space left on device`, with a traceback through
`external_storage.py`. An `OutOfDiskError` follows, or programs hang. Or Ray does not start: `ray.init` fails in
`setup_external_storage`.

## Why
When the object store is full, Ray's IO workers write objects to a directory or to S3. That fails if the directory's
disk is full, read-only or not writable for Ray's user, if another process deletes the files, or if packages or
credentials for S3 are missing. Ray retries the write, and logs the error each time.

## Confirm
- Read the error in raydoctor's headline. Run `df -h` and `ls -ld` on the directory, on the node of the error, as Ray's
  user.
- If spilling is configured, the directory is the one in that configuration. Otherwise `raylet.out` names it after
  `fallback` in `Starting object store with directory …, fallback …`.
- For S3, `python -c 'import boto3, smart_open'` in Ray's environment on every node fails if a package is missing.

## Fix
Make the directory writable and large enough on every node, or set another one. For S3, install `boto3` and `smart_open`
on every node.

    ray start --object-spilling-directory=DIRECTORY   # Ray 2.45 and later
    ray start --head --system-config='{"object_spilling_config": "{\\"type\\": \\"filesystem\\", \\"params\\": {\\"directory_path\\": \\"DIRECTORY\\"}}"}'   # before Ray 2.45

## Not this when
- the file system was fuller than Ray's threshold, so Ray did not try to write (`disk-full`).
- the store spills a lot, slowly (`spill-heavy`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import DRIVER, RAY_EXCEPTION, RAYLET_STARTED
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Link, Remedy, Severity, Subject
from raydoctor.rules.shared import store
from raydoctor.rules.shared.setup.worker_start import TRACEBACK, UNREGISTERED
from raydoctor.rules.shared.traceback import BEGIN, is_usual, parse

_STORAGE = "/home/user/venv/lib/python3.11/site-packages/ray/_private/external_storage.py"
_SETUP_FRAME = f'  File "{_STORAGE}", line 599, in setup_external_storage\n'

IO_FAILED = Signal(
    "spill.failed", "An unexpected internal error occurred while the IO worker was ",
    r"An unexpected internal error occurred while the IO worker was (?P<doing>spilling|restoring|deleting)(?: spilled)? objects"
    r"(?:: (?P<error>[^\n]+)|\.)", ("io-worker", "raylet-echo", *DRIVER),
    "An unexpected internal error occurred while the IO worker was spilling objects: [Errno 28] No space left on device",
    extent="record", symptom=True, fold=("doing",),
)  # fmt: skip
"""`_raylet.pyx`, 2.9.3 to 2.60: the IO worker logs it, and Ray sends it to drivers after a traceback."""
_HANDLER = Signal(
    "spill.traceback", "_objects_handler",
    r'^ +File "python/ray/_raylet\.pyx", line \d{1,6}, in ray\._raylet\.(?P<doing>spill|restore_spilled|delete_spilled)_objects_handler(?P<what>(?:\n.*)?)',
    ("raylet-echo", *DRIVER),
    '  File "python/ray/_raylet.pyx", line 908, in ray._raylet.spill_objects_handler\n'
    '  File "/app/ray/_private/external_storage.py", line 149, in _write_multiple_objects\n    written_bytes = f.write(payload)\nOSError: disk quota exceeded',
    extent="record", fold=("doing",),
)  # fmt: skip
"""The outermost frame of that traceback (1.3 to 2.60), where a paste ends above the line of the IO worker."""
_DOING = {"spill": "spilling", "restore_spilled": "restoring", "delete_spilled": "deleting"}
_STARTED = Signal(
    "store.started", "Starting object store with directory ",
    r"^Starting object store with directory [^,\n]{1,300}, fallback (?P<directory>/[^,\n]{1,300}),", ("raylet-out",),
    "Starting object store with directory /dev/shm, fallback /mnt/spill, and huge page support disabled",
)  # fmt: skip
"""Behind `fallback` stands the directory for spilled objects, unless `object_spilling_config` names another (2.9.3 to 2.60)."""
SETUP_FAILED = Signal(
    "spill.setup_failed", ", in setup_external_storage",
    r'^ +File "[^"\n]*/external_storage\.py", line \d+, in setup_external_storage\n(?P<what>.*)',
    (*DRIVER, "raylet-err", "raylet-echo"),
    f'{_SETUP_FRAME}    _external_storage = FileSystemStorage(node_id, **config["params"])\n'
    "OSError: [Errno 30] Read-only file system: '/spill/ray_spilled_objects_9a36b643'",
    extent="record",
)  # fmt: skip
"""In a starting IO worker, and in the driver, which checks the configuration before Ray starts."""


@rule(
    tier="root",
    severity="error",
    rank=64,
    explains=("spilling", "start-crashed", "waiting"),
    caused_by=("arguments", "disk", "spilling"),
    daemons_record=True,
    looks_for=(IO_FAILED, SETUP_FAILED, _HANDLER, _STARTED, TRACEBACK, UNREGISTERED, RAY_EXCEPTION),
)  # fmt: skip
def spill_failed(case: Case) -> Iterator[Finding]:
    """One finding per node and failed operation, and one for an unusable configuration."""
    failed = [e for e in case.of("spill.failed") if not case.torn_down(e)]
    for node, events in store.by_node(case, failed).items():
        by_kind = evidence.grouped(events, lambda e: e["doing"])
        for doing, same in by_kind.items():
            yield _io_failed(case, node, doing, same)
    if not failed:
        yield from _cut_off(case)
    if setup := case.of("spill.setup_failed"):
        spilling = [e for e in failed if e["doing"] == "spilling"]
        yield _setup_failed(case, setup, set(store.by_node(case, spilling)))


# ---------------------------------------------------------------- IO workers


def _io_failed(case: Case, node: str, doing: str, events: list[Event]) -> Finding:
    own = [e for e in events if e.source.role == "io-worker"] or events
    raised = parse(own[0].message)
    error = own[0]["error"] or (str(raised) if raised else "the log breaks off before the error")
    count = evidence.total(own)
    errors = [e for name in _NO_ROOM for e in store.exceptions(case, name)]
    directory = _directory(case, node)
    operation = _OPERATION[doing]
    if (
        doing == "spilling"
        and directory
        and "/session_" not in directory
        and "s3" not in error.lower()
    ):
        operation = f"Spilling objects to {directory}"
    return Finding(
        f"{operation} failed {'once' if count == 1 else f'{count} times'}{store.where(case, node)}: {error}",
        (
            Link(own[0], f"an IO worker failed: {error}"),
            *(Link(e, f"the last of {count} failures") for e in own[1:][-1:]),
            *(Link(e, f"the driver got {store.raised(e)}") for e in errors[:1] if doing == "spilling"),
        ),
        explains=(Entity("spilling", node if doing == "spilling" else f"{node} {doing}"),),
        caused_by=(Entity("disk", node), Entity("arguments", "large")),
        subjects=(Subject("node", node, node=node),) if node else (),
        count=count,
        severity=_severity(case, doing, count, bool(errors)),
        remedies=_remedies(error, doing, directory),
        covers=(*events, *(errors if doing == "spilling" else ()), *_tracebacks(case, error)),
    )  # fmt: skip


def _cut_off(case: Case) -> Iterator[Finding]:
    """A failed operation of an IO worker of which a paste shows the traceback alone, perhaps not to its end."""
    for event in case.of(_HANDLER.kind)[:1]:
        raised = parse(f"{BEGIN}\n{event.message}")
        if not event.source.is_excerpt:
            continue
        shown = str(raised) if raised else ""
        is_whole = raised is not None and (bool(raised.message) or is_usual(raised.name))
        error = (
            shown if is_whole else f"the console cut off its error{f' ({shown}…)' if shown else ''}"
        )
        doing = _DOING[event["doing"]]
        yield Finding(
            f"{_OPERATION[doing]} failed: {error}",
            (Link(event, "an IO worker of Ray raised it, and sent it to the driver", raised.code if raised else ""),),
            explains=(Entity("spilling", "" if doing == "spilling" else f" {doing}"),),
            caused_by=(
                *(Entity("disk", e["dir"]) for e in case.of(store.DISK_OVER[0].kind)),
                *(Entity("disk", node) for node in ("", *case.ledger.node_ips)),
                Entity("arguments", "large"),
            ),
            severity="warning",
            remedies=_remedies(error, doing, ""),
            covers=(event, *_around(case, [event])),
        )  # fmt: skip


_NO_ROOM = ("OutOfDiskError", "ObjectStoreFullError")
_OPERATION = {
    "spilling": "Spilling objects to disk or storage",
    "restoring": "Reading spilled objects back",
    "deleting": "Deleting spilled objects",
}


_A_FEW = 10


def _severity(case: Case, doing: str, count: int, no_room: bool) -> Severity:
    """A few failed writes are harmless while the store has room; an object that cannot be read back is lost."""
    waiting = any(e["type"] == "GetTimeoutError" for e in case.of("driver.exception"))
    harmed = no_room or waiting or count > _A_FEW or doing == "restoring"
    return "error" if harmed and doing != "deleting" else "warning"


def _tracebacks(case: Case, error: str) -> Iterator[Event]:
    """The tracebacks that IO workers log, and that their raylet sends to drivers, with each failure."""
    for event in case.of("log.traceback"):
        if "external_storage.py" in event.text and (
            error in event.text or "IO worker" in event.text
        ):
            yield event


# ---------------------------------------------------------------- set-up


def _setup_failed(case: Case, events: list[Event], failing: set[str]) -> Finding:
    """The driver or starting IO workers could not set the storage up.

    `failing`: nodes on which writes fail as well. There the storage became unusable while Ray was running.
    """
    in_driver = [e for e in events if _is_of_driver(e)]
    shown = (in_driver or store.own_log_first(events))[0]
    raised = parse(f"Traceback (most recent call last):\n{shown.message}")
    error = str(raised) if raised else "the log breaks off before the error"
    node = "" if in_driver else store.node_of(case, shown)
    workers = [] if in_driver else case.of("worker.unregistered")
    what = (
        "Ray did not start because the storage for spilled objects is not usable"
        if in_driver
        else "Ray cannot spill objects because their storage is not usable"
    )
    return Finding(
        f"{what}{store.where(case, node)}: {error}",
        (
            Link(shown, f"{'ray.init' if in_driver else 'a starting IO worker'} could not set up the storage: {error}"),
            *(Link(e, "the raylet reports that an IO worker died before it registered") for e in workers[:1]),
        ),
        explains=(*(() if node in failing else (Entity("spilling", node),)), *_waiting(case, in_driver)),
        caused_by=(Entity("spilling", node),) if node in failing else (),
        subjects=(Subject("node", node, node=node),) if node else (),
        count=evidence.total(events) if not in_driver else 1,
        remedies=_remedies(error, "spilling", _directory(case, node)),
        covers=(*events, *workers, *_around(case, events)),
    )  # fmt: skip


def _is_of_driver(event: Event) -> bool:
    """Whether the driver itself printed it: Ray also sends `raylet.err` to the driver, with a prefix."""
    return event.source.role in DRIVER and not event.text.startswith("(raylet")


def _waiting(case: Case, in_driver: list[Event]) -> tuple[Entity, ...]:
    """The waiting cluster and the failed starts, if all of these were IO workers."""
    starts = case.of("worker.start_traceback")
    all_io = bool(starts) and all("external_storage" in e.text for e in starts)
    if in_driver or not all_io:
        return ()
    nodes = dict.fromkeys(store.node_of(case, e) for e in case.of("worker.unregistered"))
    return (Entity("waiting", "cluster"), *(Entity("start-crashed", node) for node in nodes))


def _around(case: Case, events: list[Event]) -> Iterator[Event]:
    """The tracebacks that contain these frames."""
    for outer in case.of("log.traceback", "worker.start_traceback"):
        end = outer.line + outer.text.count("\n")
        if any(e.source == outer.source and outer.line <= e.line <= end + 1 for e in events):
            yield outer


# ---------------------------------------------------------------- remedies


def _directory(case: Case, node: str) -> str:
    """The directory for spilled objects that the raylet of this node names; empty if unknown."""
    of_nodes = store.by_node(case, case.of(_STARTED.kind))
    started = of_nodes.get(node) or (next(iter(of_nodes.values())) if len(of_nodes) == 1 else ())
    return started[0]["directory"] if started else ""


def _remedies(error: str, doing: str, directory: str) -> tuple[Remedy, ...]:
    lowered = error.lower()
    if "no module named" in lowered or "smart_open" in lowered:
        return (_PACKAGES,)
    if any(
        word in lowered
        for word in (
            "credential",
            "accessdenied",
            "access denied",
            "botocore",
            "clienterror",
            "forbidden",
        )
    ):
        return (_CREDENTIALS,)
    if doing == "restoring" and ("no such file" in lowered or "filenotfound" in lowered):
        return (_KEEP_FILES,)
    if any(
        word in lowered
        for word in ("read-only", "permission", "not a directory", "could not be created")
    ):
        return (_writable(error), *store.spill_to("Or spill to another directory"))
    if "no such file" in lowered or "filenotfound" in lowered:
        return (_missing(error), *store.spill_to("Or spill to another directory"))
    return (_room(error, directory), *store.spill_to("Or spill to another directory"))


_PACKAGES = Remedy(
    "Install the packages for spilling to S3 in Ray's environment on every node",
    ("pip install 'smart_open[s3]' boto3",),
    doc=store.SPILLING_DOC,
)
_CREDENTIALS = Remedy(
    "Give Ray's user on every node write access to the bucket",
    (
        "aws sts get-caller-identity                 # on the node, as the user of Ray: which identity?",
        "aws s3 cp /etc/hostname s3://BUCKET/PATH/   # is writing allowed?",
    ),
    doc=store.SPILLING_DOC,
)
_KEEP_FILES = Remedy(
    "Exclude /tmp/ray from automatic clean-up: Ray deletes spilled objects itself",
    (
        "# exclude /tmp/ray in the jobs that clean /tmp (systemd-tmpfiles, tmpwatch, cron)",
        "grep -rs tmp /etc/tmpfiles.d /usr/lib/tmpfiles.d /etc/cron*",
    ),
    doc=store.SPILLING_DOC,
)
_QUOTED = pattern(r"'(?P<directory>/[^']*?)(?:/ray_spilled_objects[^']*)?'")


def _writable(error: str) -> Remedy:
    """For the directory that Python's error names."""
    found = _QUOTED.search(error)
    directory = found["directory"] if found else ""
    return Remedy(
        f"Make {directory if found else 'the directory'} writable for Ray's user on every node",
        (
            paste.shell(
                "ls -ld {directory:path}; grep {directory:path} /proc/mounts   # owner, mode, ro or rw",
                directory=directory,
            ),
            paste.shell("chown OWNER {directory:path}", directory=directory),
        ),
    )


def _missing(error: str) -> Remedy:
    """For the directory that Python's error names."""
    found = _QUOTED.search(error)
    return Remedy(
        "Create the directory for spilled objects on every node, as Ray's user",
        (
            paste.shell(
                "mkdir -p {directory:path}   # or mount its disk",
                directory=found["directory"] if found else "DIRECTORY",
            ),
        ),
    )


def _room(error: str, directory: str) -> Remedy:
    """For the directory that Python's error or the raylet names; otherwise Ray's default, the session's folder."""
    found = _QUOTED.search(error)
    return Remedy(
        "Free space in the directory for spilled objects",
        (
            paste.shell(
                "df -h {directory:path}; du -xh -d 1 {directory:path} | sort -h   # on the node",
                directory=found["directory"] if found else directory or "/tmp/ray/session_latest",
            ),
        ),
    )


# ------------------------------------------------------------------ examples


_TEXT = IO_FAILED.sample
_IO_LOG = f"logs/io_worker-{'ddc98cfc58b95b18f80482db01d4e742727e7fb4767bf3c729d7999e'}-520.err"
_LOGGED = (
    f"2026-11-21 10:48:16,087\tERROR __init__.py:1524 -- {_TEXT}\nTraceback (most recent call last):\n"
    f'  File "{_STORAGE}", line 347, in spill_objects\n'
    "    return self._write_multiple_objects(f, object_refs, owner_addresses, url)\nOSError: [Errno 28] No space left on device\n"
)
_OUT_OF_DISK = "ray.exceptions.OutOfDiskError: Local disk is full\nThe object cannot be created because the local object store is full\n"

_PUSHED = f"2026-11-21 10:55:41,241\tWARNING worker.py:1829 -- {BEGIN}\n{_HANDLER.sample.partition('r: disk')[0]}"

EXAMPLES: tuple[Example, ...] = (
    Example(
        "the spill directory is full",
        {**QUIET_LOGS, _IO_LOG: _LOGGED * 3, "driver.log": _OUT_OF_DISK},
        says=("3 times", "No space left on device", "object-spilling-directory"),
    ),
    Example(
        "the error names no directory, but the raylet does",
        {
            **QUIET_LOGS,
            "logs/raylet.out": f"[2026-11-21 10:47:52,197 I 291 291] (raylet) store_runner.cc:66: {_STARTED.sample}\n",
            _IO_LOG: _LOGGED * 3,
            "driver.log": _OUT_OF_DISK,
        },
        says=("Spilling objects to /mnt/spill failed 3 times", "df -h /mnt/spill"),
    ),
    Example(
        "a file took the place of the directory while Ray was running: one cause",
        {
            "logs/gcs_server.out": "",
            "logs/raylet.out": f"[2026-11-21 10:47:52,197 I 291 291] (raylet) main.cc:1082: {RAYLET_STARTED.sample}\n",
            _IO_LOG: 11
            * f"{_TEXT.partition(': ')[0]}: [Errno 20] Not a directory: '/spill/ray_spilled_objects_9a36b643/1-multi-2'\n",
            "logs/raylet.err": 'Traceback (most recent call last):\n  File "/home/user/venv/lib/python3.11/site-packages/ray/_private'
            '/workers/default_worker.py", line 261, in <module>\n    external_storage.setup_external_storage(\n'
            + SETUP_FAILED.sample.replace(
                "[Errno 30] Read-only file system", "[Errno 17] File exists"
            )
            + "\n",
        },
        says=("Not a directory",),
    ),
    console(
        "packages for S3 are missing, so Ray does not start",
        f'Traceback (most recent call last):\n  File "/app/main.py", line 7, in main\n    ray.init()\n{_SETUP_FRAME}'
        "    _external_storage = ExternalStorageSmartOpenImpl(\n"
        f"  File \"{_STORAGE}\", line 474, in __init__\n    import boto3  # noqa\nModuleNotFoundError: No module named 'boto3'\n",
        says=("No module named 'boto3'", "pip install"),
    ),
    Example(
        "a read-only directory, in which IO workers die while they start",
        {
            "logs/gcs_server.out": "",
            "logs/raylet.out": f"[2026-11-21 10:47:52,197 E 291 291] (raylet) worker_pool.cc:660: {UNREGISTERED.sample}\n",
            "logs/raylet.err": 'Traceback (most recent call last):\n  File "/home/user/venv/lib/python3.11/site-packages/ray/_private'
            '/workers/default_worker.py", line 261, in <module>\n    external_storage.setup_external_storage(\n'
            + SETUP_FAILED.sample
            + "\n",
        },
        says=("Read-only file system", "Make /spill writable"),
    ),
    console(
        "a task prints the same text",
        f"(check pid=12) {_TEXT}\n(check pid=12) {SETUP_FAILED.sample}\n",
        logs=QUIET_LOGS,
    ),
    console(
        "a paste ends within the error of an IO worker",
        _PUSHED,
        says=("failed: the console cut off its error (OSErro…)",),
        severity="warning",
    ),
    console(
        "the same below a disk that is too full",
        f"(raylet) [2026-11-21 10:55:31,567 E 29 29] (raylet) file_system_monitor.cc:105: {store.DISK_OVER[0].sample}\n{_PUSHED}",
        roots=("disk-full",),
        consequences=("spill-failed",),
        severity="warning",
    ),
    console(
        "the driver's own traceback below such a record",
        f"{_PUSHED}r: disk quota exceeded\n{BEGIN}\n  File \"/app/etl.py\", line 8, in <module>\n    rows['x']\nKeyError: 'x'\n",
        roots=("job-failed", "spill-failed"),
        severity="warning",
    ),
)

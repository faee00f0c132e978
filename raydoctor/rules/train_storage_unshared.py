"""Ray Train or Tune found that its storage path is not one storage that all nodes share.

## What you see
- `RuntimeError: Unable to set up cluster storage with the following settings:`, with `storage_filesystem='local'` and
  `storage_fs_path='/home/user/ray_results'` below it.
- Up to 2.6, a run on several nodes continues, and its checkpoints are missing on the head.

## Why
Every worker of a run writes its checkpoints to `storage_path`. Ray Train writes a marker file there from one node and
looks for it on another. With a local path such as `~/ray_results`, each node has a folder of its own, so the file is
missing. The same happens if a shared folder is not mounted on a node, or a bucket cannot be read from there.

## Confirm
- `ls -ld PATH; findmnt -T PATH` on each node shows a local disk, or nothing.
- With a bucket, `aws s3 ls s3://BUCKET/` (or the tool of that cloud) fails on the node of the worker.

## Fix
Set a bucket or a shared folder that every node mounts at the same path:

    RunConfig(storage_path="s3://my-bucket/runs", name="experiment-1")

## Not this when
- the path is shared, and the disk behind it is full (`disk-full`).
- the worker died while it wrote (`train-worker-failed`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import OUTPUT, TRACEBACK
from raydoctor.model import paste
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared.failures import SIGNALS, constructors, ended_programs, failures, program
from raydoctor.rules.shared.task_error import error_entities

_DOC = "https://docs.ray.io/en/latest/train/user-guides/persistent-storage.html"

UNSHARED = Signal(
    "train.storage",
    "Unable to set up cluster storage with the following settings:",
    r"RuntimeError: Unable to set up cluster storage with the following settings:"
    r"(?:[^\n]{0,40}\n[^\n]{0,100}StorageContext<\n[^\n]{0,100}storage_filesystem='(?P<filesystem>[^'\n]{1,40})',\n"
    r"[^\n]{0,100}storage_fs_path='(?P<path>[^'\n]{1,300})')?",
    OUTPUT,
    "RuntimeError: Unable to set up cluster storage with the following settings:\nStorageContext<\n  storage_filesystem='local',\n"
    "  storage_fs_path='/home/ana/ray_results',\n  experiment_dir_name='run-1',\n>",
    extent="record",
)
"""`train/_internal/storage.py` and `train/v2/_internal/execution/storage.py`, 2.7 to 2.60."""
_SAID = pattern(r"Unable to set up cluster storage with the following settings")


@rule(
    tier="root",
    severity="error",
    rank=43,
    explains=("program", "task-error"),
    looks_for=(UNSHARED, *SIGNALS, TRACEBACK),
)
def train_storage_unshared(case: Case) -> Iterator[Finding]:
    """At most one finding: a run has one storage."""
    errors = [
        seen
        for seen in (*failures(case), *constructors(case))
        if (raised := seen.failure.raised) and _SAID.match(raised.message)
    ]
    ended = [(e, raised) for e, raised in ended_programs(case) if _SAID.match(raised.message)]
    said = case.of(UNSHARED.kind)
    first = next((s.event for s in errors), None) or next((e for e, _ in ended), None)
    if first is None:
        return
    setting = next((e for e in said if e["path"]), None)
    where = f"{setting['path']} ({setting['filesystem']})" if setting else "its storage path"
    local = bool(setting and setting["filesystem"] == "local")
    why = (
        "a local path, of which each node has its own" if local else "not readable from every node"
    )
    yield Finding(
        f"Ray Train could not use {where} as the run's storage: it is {why}",
        (
            Link(first, "the worker does not find the file that another node wrote there"),
            *(Link(e, "the settings of the storage") for e in (setting,) if e and e is not first),
        ),
        explains=(*error_entities(errors), *(program(e) for e, _ in ended)),
        count=max(1, evidence.total([s.event for s in errors])),
        remedies=(
            Remedy(
                "Use a bucket, or a shared folder that every node mounts at the same path",
                (
                    'RunConfig(storage_path="s3://my-bucket/runs", name="experiment-1")   # or storage_path="/mnt/nfs/runs"',
                    paste.shell("ls -ld {path}; findmnt -T {path}   # on each node", path=setting["path"])
                    if setting
                    else "findmnt -T PATH   # on each node. PATH: the storage_path",
                ),
                doc=_DOC,
            ),
        ),
        covers=(*said, *(e for s in errors for e in s.records), *_tracebacks(case)),
    )  # fmt: skip


def _tracebacks(case: Case) -> list[Event]:
    return [e for e in case.of(TRACEBACK.kind) if _SAID.search(e.message)]


# ------------------------------------------------------------------ examples

_TASK = (
    "Traceback (most recent call last):\nray.exceptions.RayTaskError(RuntimeError): ray::_Inner.train() (pid=389, ip=10.0.0.3, "
    "actor_id=7dbdc85090b37cd39fb9e77001000000, repr=TorchTrainer)\n"
    '  File "/venv/lib/python3.11/site-packages/ray/train/_internal/storage.py", line 459, in _check_validation_file\n    raise RuntimeError(\n'
)

EXAMPLES: tuple[Example, ...] = (
    console(
        "a local folder on two nodes",
        f"{_TASK}{UNSHARED.sample}\nCheck that all nodes in the cluster have read/write access to the configured storage path.\n",
        says=("/home/ana/ray_results (local)", "each node has its own", "findmnt"),
    ),
    console(
        "the driver itself sets the storage up",
        'Traceback (most recent call last):\n  File "/app/train.py", line 9, in <module>\n    trainer.fit()\n'
        "RuntimeError: Unable to set up cluster storage with the following settings:\n",
        says=("could not use its storage path",),
    ),
    console(
        "a bucket that a node cannot read",
        f"{_TASK}{UNSHARED.sample.replace('local', 's3').replace('/home/ana', 'runs')}\n",
        says=("runs/ray_results (s3)", "not readable from every node"),
    ),
    console(
        "a program quotes the error and continues",
        f"last week: {UNSHARED.sample}\nnow on NFS\nloss 0.1\n",
        logs=QUIET_LOGS,
    ),
)

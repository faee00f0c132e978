"""Ray could not set up resource isolation, or reserved too little memory for its own processes.

## What you see
- `ray start --enable-resource-isolation` or `ray.init(enable_resource_isolation=True)` fails after about 40 s with `The
  current node timed out during startup`.
- The raylet's log ends with `Check failed: … Failed to start CgroupManager due to …` (2.50: `Could not create
  CgroupManager because of …`).
- Or, while Ray runs: `System slice memory usage … bytes has exceeded the reserved system memory of … bytes` (Ray 2.57
  and later).

## Why
With resource isolation (options since Ray 2.45, in effect since Ray 2.50) the raylet creates cgroup v2 groups for its
own processes and for workers. This needs three things: cgroup v2 without cgroup v1 beside it, the controllers `cpu` and
`memory` in the raylet's parent group, and write permission there. In a container all three are missing by default.
Ray's message calls it a bug in Ray, but the cause is the machine's configuration.

## Confirm
- Isolation needs cgroup v2 alone: `stat -fc %T /sys/fs/cgroup` must print `cgroup2fs`, and `grep cgroup /proc/mounts`
  must show no other type.
- `cat /sys/fs/cgroup/cgroup.controllers` must list `cpu` and `memory`. `ls -ld` shows whether Ray's user may write to
  the path given with `--cgroup-path`.

## Fix
Give the raylet a cgroup v2 group that it may write to, or start Ray without isolation. For the message about the system
slice, reserve more memory for Ray's own processes (`ray start --system-reserved-memory=BYTES`).

## Not this when
- the raylet died later for another reason (`raylet-died`).
- only the advice to enable isolation appears: Ray 2.56 and later print it after every sudden death of a worker.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, Signal, rule
from raydoctor.case.signals import DRIVER, RAYLET
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.text import clause, size
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared.cluster import CHECK_FAILED
from raydoctor.rules.shared.connect import NODE_NOT_STARTED

NOT_STARTED = Signal(
    "isolation.not_started",
    "CgroupManager",
    r"^.*Check failed: .*(?:Could not create CgroupManager because of|Failed to start CgroupManager due to) (?P<why>[^\n]+)",
    RAYLET,
    "An unexpected system state has occurred. You have likely discovered a bug in Ray. Please report this issue at "
    "https://github.com/ray-project/ray/issues and we'll work with you to fix it. Check failed: cgroup_manager_s.ok() Failed to "
    "start CgroupManager due to Invalid: Cgroupv1 and cgroupv2 are both mounted. Unmount cgroupv1..",
    symptom=True,
)
NOT_MOVED = Signal(
    "isolation.not_started",
    "Failed to move process ",
    r"Failed to move process (?:with pid )?\S+ into (?:the )?(?:system|application|workers) cgroup(?P<why>[^\n]*)",
    RAYLET,
    "Check failed: cgroup_mgr.AddProcessToSystemCgroup(pid) Failed to move process 305 into the system cgroup with error. "
    "PermissionDenied",
    symptom=True,
)
SLICE_FULL = Signal(
    "isolation.slice_full",
    " bytes has exceeded the reserved system memory of ",
    r"^System slice memory usage (?P<used>\d+) bytes has exceeded the reserved system memory of (?P<reserved>\d+) bytes",
    RAYLET,
    "System slice memory usage 2147483648 bytes has exceeded the reserved system memory of 1073741824 bytes. This can prevent "
    "Ray from being able to provide the proper protection",
    symptom=True,
)
REFUSED = (
    Signal(
        "isolation.refused",
        " cannot be set when resource isolation is not enabled.",
        r"^ValueError: (?P<option>\w+) cannot be set when resource isolation is not enabled\.",
        DRIVER,
        "ValueError: cgroup_path cannot be set when resource isolation is not enabled. Set enable_resource_isolation to True",
        symptom=True,
    ),
    Signal(
        "isolation.refused",
        "requested system_reserved_",
        r"^ValueError: The (?:total )?requested (?P<option>system_reserved_\w+)[= ](?P<why>[^\n]+)",
        DRIVER,
        "ValueError: The requested system_reserved_memory=1 is less than the minimum number of bytes that can be used for "
        "resource isolation.",
        symptom=True,
    ),
    Signal(
        "isolation.refused",
        " is less than the minimum amount that is required for ray",
        r"^ValueError: The available (?P<option>number of cpu cores|memory) on this system "
        r"(?P<why>\S+ is less than the minimum amount that is required for ray[^\n]*)",
        DRIVER,
        "ValueError: The available number of cpu cores on this system 1 is less than the minimum amount that is required for "
        "ray's system processes.",
        symptom=True,
    ),
)
_DOC = "https://docs.ray.io/en/latest/ray-core/resource-isolation-with-cgroupv2.html"
_SINCE = (2, 50)
"""The raylet of 2.50 is the first that creates cgroups: 2.45 to 2.49 accept the options without effect (`services.py`)."""


@rule(
    tier="root",
    severity="critical",
    rank=8,
    explains=("isolation",),
    looks_for=(NOT_STARTED, NOT_MOVED, SLICE_FULL, *REFUSED, *NODE_NOT_STARTED, CHECK_FAILED),
)  # fmt: skip
def resource_isolation_failed(case: Case) -> Iterator[Finding]:
    """One finding per raylet that could not start, per rejected option, and per node that reserves too little."""
    by_file = evidence.grouped(case.of(NOT_STARTED.kind), lambda e: e.source.path)
    for events in by_file.values():
        yield _not_started(case, events)
    for event in case.of(REFUSED[0].kind):
        yield _refused(event)
    by_node = evidence.grouped(
        (e for e in case.of(SLICE_FULL.kind) if not case.torn_down(e)),
        lambda e: case.node_of(e.source),
    )
    for node, events in by_node.items():
        yield _too_little(case, node, events)


def _not_started(case: Case, events: list[Event]) -> Finding:
    first = events[0]
    why = first["why"].strip().strip(".") or "a process could not be moved into its cgroup"
    timed_out = case.of(NODE_NOT_STARTED[0].kind)
    checks = [
        e for e in case.of(CHECK_FAILED.kind) if e.source is first.source and e.line == first.line
    ]
    links = [Link(first, f"the raylet fails at its start: {why}")]
    links += [Link(e, "the start of Ray times out") for e in timed_out[:1]]
    return Finding(
        f"The raylet (pid {first.pid}) could not start because it could not set up resource isolation: {clause(why)}",
        tuple(links),
        explains=(
            Entity("isolation", first.source.path),
            *((Entity("raylet", node),) if (node := case.node_of(first.source)) else ()),
        ),
        subjects=(Subject("raylet", None, "raylet", first.pid),),
        remedies=tuple(_remedies(why)),
        covers=(*events, *checks, *timed_out),
    )  # fmt: skip


def _refused(event: Event) -> Finding:
    detail = (
        f"={event['why'].partition('. ')[0]}"
        if event["why"]
        else " is set, but resource isolation is not enabled"
    )
    on = Remedy(
        "Enable resource isolation, or drop the option",
        (
            "ray.init(enable_resource_isolation=True)   # plus your other options; or ray start --enable-resource-isolation",
        ),
        doc=_DOC,
        since=(2, 45),
    )
    other = Remedy("Set a value within the limits that the message names", doc=_DOC)
    return Finding(
        f"Ray rejects a setting of resource isolation: {event['option']}{detail}",
        (Link(event, "Ray refuses to start with this option"),),
        explains=(Entity("isolation", event["option"]),),
        severity="error",
        remedies=(other if event["why"] else on,),
        covers=(event,),
    )


def _too_little(case: Case, node: str, events: list[Event]) -> Finding:
    worst = max(events, key=lambda e: int(e["used"]))
    used, reserved = int(worst["used"]), int(worst["reserved"])
    ip = case.ledger.node_ips.get(node, "")
    wanted = -(-used * 3 // 2 // 1024**2) * 1024**2
    return Finding(
        f"Ray's own processes{f' on node {ip}' if ip else ''} use {size(used)}, but only {size(reserved)} is reserved for "
        "them, so isolation cannot protect them",
        (Link(worst, "the system slice exceeds its reservation"),),
        explains=(Entity("isolation", node),),
        subjects=(Subject("node", node or None, ip or None),),
        count=evidence.total(events),
        severity="warning",
        remedies=(
            Remedy(
                f"Reserve {size(wanted)} for Ray's own processes instead of {size(reserved)}",
                (
                    paste.shell(
                        "ray start --enable-resource-isolation --system-reserved-memory={wanted}   # plus your other options",
                        wanted=wanted,
                    ),
                    paste.python(
                        "ray.init(enable_resource_isolation=True, system_reserved_memory={wanted})   # if the program starts Ray",
                        wanted=wanted,
                    ),
                ),
                risk="disruptive",
                doc=_DOC,
                since=_SINCE,
            ),
        ),
        covers=tuple(events),
    )  # fmt: skip


def _remedies(why: str) -> Iterator[Remedy]:
    title, steps = _by_reason(why)
    yield Remedy(title, steps, risk="disruptive", doc=_DOC, since=_SINCE)
    yield Remedy(
        "Start Ray without resource isolation, which changes nothing else",
        ("ray start   # with the options that this node was started with, without --enable-resource-isolation. ray.init(enable_resource_isolation=False)",),
        doc=_DOC,
        since=_SINCE,
    )  # fmt: skip


def _by_reason(why: str) -> tuple[str, tuple[str, ...]]:
    if "controllers" in why:
        return "Enable the cpu and memory controllers in all parent groups", (
            "cat /sys/fs/cgroup/cgroup.controllers",
            "echo '+cpu +memory' | sudo tee /sys/fs/cgroup/cgroup.subtree_control   # also in each group down to that of Ray",
        )
    if "permissions" in why or "Permission" in why:
        return "Create a group for the user that runs Ray", (
            "sudo mkdir -p /sys/fs/cgroup/ray && sudo chown -R $USER /sys/fs/cgroup/ray",
            "ray start --enable-resource-isolation --cgroup-path=/sys/fs/cgroup/ray   # plus your other options",
            "ray.init(enable_resource_isolation=True, cgroup_path='/sys/fs/cgroup/ray')   # if the program starts Ray",
        )
    if "already exists" in why:
        return "Remove the groups that an earlier Ray left behind, after that Ray has stopped", (
            "find /sys/fs/cgroup -depth -type d -name 'ray-node*' -exec rmdir {} \\;",
        )
    return "Configure the machine to use cgroup v2 only", (
        "stat -fc %T /sys/fs/cgroup   # must print cgroup2fs",
        "systemd.unified_cgroup_hierarchy=1   # on the command line of the kernel, then reboot",
    )


# ------------------------------------------------------------------ examples

_C = f"[2026-11-21 10:49:34,428 C 295 295] (raylet) linux_cgroup_manager_factory.cc:90:  {NOT_STARTED.sample}\n*** StackTrace Information ***\n"
_EXIT = (
    "[2026-11-21 10:49:50,741 W 8 8] (gcs_server) gcs_worker_manager.cc:70: Reporting worker exit, worker id = "
    f"{'c' * 56}, node id = {'a' * 56}, address = 10.0.0.2, exit_type = SYSTEM_ERROR, exit_detail = Worker unexpectedly exits with a "
    "connection error code 2. End of file. To protect Ray from memory pressure, consider enabling resource isolation via "
    "`--enable-resource-isolation`\n"
)

EXAMPLES: tuple[Example, ...] = (
    Example(
        "cgroup v1 is mounted in addition to v2",
        {
            "logs/raylet.out": _C,
            "logs/raylet.err": _C,
            "logs/gcs_server.out": "",
            "driver.log": f'Traceback (most recent call last):\n  File "/app/main.py", line 3, in <module>\n{NODE_NOT_STARTED[0].sample}\n',
        },
        says=("Cgroupv1 and cgroupv2 are both mounted", "unified_cgroup_hierarchy"),
    ),
    Example(
        "no permission to write the group",
        {
            "logs/raylet.out": _C.replace(
                "Invalid: Cgroupv1 and cgroupv2 are both mounted. Unmount cgroupv1..",
                "PermissionDenied: Failed to create cgroup at path /sys/fs/cgroup/ray-node with permissions 0700. The process does "
                "not have read, write, execute permissions for the parent cgroup.",
            ),
            "logs/gcs_server.out": "",
        },
        says=("/sys/fs/cgroup/ray-node", "chown", "--cgroup-path"),
    ),
    Example(
        "Ray's own processes use more than is reserved for them",
        {
            "logs/raylet.out": f"[2026-11-21 10:49:34,428 W 295 295] (raylet) m.cc:90: {SLICE_FULL.sample}\n",
            "logs/gcs_server.out": "",
        },
        says=("2.0 GiB", "1.0 GiB", "--system-reserved-memory=3221225472"),
        severity="warning",
    ),
    Example(
        "Ray prints the advice to enable it after every sudden death",
        {"logs/gcs_server.out": _EXIT, "logs/raylet.out": ""},
        roots=("worker-vanished",),
    ),
)

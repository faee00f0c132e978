"""A GPU kernel failed (illegal memory access, device-side assert), or the GPU itself failed.

## What you see
- The program raises `CUDA error: an illegal memory access was encountered` or `CUDA error: device-side assert
  triggered`, or torch prints it in `Process group watchdog thread terminated with exception: CUDA error: …`. The
  process then aborts (`SIGABRT`), and Ray reports a worker that ended suddenly. vLLM reports `EngineDeadError`.
- The program raises `CUDA error: invalid argument`, `operation not permitted` or a similar error of one call.
- AMD's runtime prints `Memory access fault by GPU node-N`.
- An Ascend NPU reports `NPU function error: …, error code is 507014` and `[Error]: The aicore execution times out.`
- A library that was built for other GPUs raises `CUDA error: no kernel image is available for execution on the device`.
- The kernel log may contain `NVRM: Xid (PCI:…): 31`.

## Why
A GPU kernel accessed an address outside its memory, or a check in the kernel failed: usually an index is out of range
(a token id above the vocabulary). CUDA reports the failure at a later call, so the Python line of the error is often
not the cause. No later call of that process succeeds. Even if the NCCL watchdog reports the error first, the network is
not the cause.

Errors such as `invalid argument` or `invalid resource handle` are different: CUDA refused one call, and the GPU is not at
fault. The cause is what the program or a library passed to the call, or their build.

The Xid (NVIDIA's error number) in the kernel log distinguishes faults of the program from faults of the hardware:

- 13, 31: usually the program or a library on the GPU.
- 48, 62, 64, 74, 79, 94, 95, 119, 120, 140: the GPU itself, its memory, link or firmware.

## Confirm
- `sudo dmesg -T | grep -i xid` on the worker's node shows the Xid and the GPU's PCI address.
- With `CUDA_LAUNCH_BLOCKING=1` the traceback ends at the call that failed.
- `nvidia-smi -q -d ECC,ROW_REMAPPER` counts memory errors if the GPU is defective. If the same input fails on another
  GPU, the program is the cause.

## Fix
After Xid 94 alone, start the program again. After Xid 79, restart the node. After any other hardware Xid, take the node
out of use and reset or replace the GPU. Without a hardware Xid, fix the input or the GPU kernel: check indices before
they reach the GPU, upgrade the library, or choose another attention backend.

## Not this when
- the message is `CUDA out of memory` (`cuda-oom`) or `Watchdog caught collective operation timeout` (`nccl-failure`).
- an NPU reports another code, for example 207001 (no memory) or 107002 (a wrong call).
- the kernel log contains only Xid 43 or 45, which follow the end of a process, or 63, which reports a repair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import QUIET_LOGS, Example, console, rule
from raydoctor.case.signals import WORKER_DIED, WORKER_EXIT
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import called
from raydoctor.model.values import Event, Finding, Link, Remedy, Severity, Subject
from raydoctor.rules.shared import ended, engine
from raydoctor.rules.shared import failures as user_errors
from raydoctor.rules.shared import gpu_fault as gpu
from raydoctor.rules.shared.crash import CRASH_SIGNALS
from raydoctor.rules.shared.gpu_fault import ASSERTION, LOGGED, WATCHDOG, XID, Fault
from raydoctor.rules.shared.task_error import Printed, error_entities

_DOC = "https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution"
_XID_DOC = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
_ASSERT = "device-side assert triggered"
_CRASH = tuple(dict.fromkeys(signal.kind for signal in CRASH_SIGNALS))
_OF_HARDWARE = ("uncorrectable ECC", "uncorrectable NVLink")
_OF_AMD = "Memory access fault"
_OF_BUILD = {
    "no kernel image": "the installed build (of torch or of another library) has no code for this GPU's architecture",
    "the provided PTX": "the GPU's driver is older than the CUDA with which the library was built",
}
_OF_START = ("initialization error", "system not yet initialized")
_PTA = "ERR00100 PTA call acl api failed"
_ADVICE = "For debugging consider passing CUDA_LAUNCH_BLOCKING"
_LOST = "cut off"
_CODE = pattern(r"error code(?: is |: ?)(?P<code>\d{6})")
_OF_NPU = pattern(r"error code|(?:aicore|aicpu|vector core)\b")


class _GpuIncident(NamedTuple):
    """One CUDA error, with all processes that report it."""

    what: str
    events: list[Event]
    """Lines of its processes, the earliest first."""
    exits: list[WorkerExit]
    errors: list[Printed]


@rule(
    tier="root",
    severity="error",
    rank=28,
    explains=("gpu-fault", "process", "task-error", "worker"),
    looks_for=(*gpu.SIGNALS, *user_errors.SIGNALS, *CRASH_SIGNALS, WORKER_EXIT, WORKER_DIED),
)
def gpu_fault(case: Case) -> Iterator[Finding]:
    """One finding per CUDA error, and one per GPU with an Xid that no CUDA error matches."""
    faults = list(gpu.faults(case))
    incidents = list(_incidents(case))
    for incident in incidents:
        yield _of_process(case, incident, faults if len(incidents) == 1 else [])
    if len(incidents) != 1:
        by_gpu: dict[tuple[str, str], list[Fault]] = {}
        for fault in faults:
            by_gpu.setdefault((fault.event.source.path, fault.pci), []).append(fault)
        for of_one in by_gpu.values():
            yield _of_gpu(case, of_one)


def _incidents(case: Case) -> Iterator[_GpuIncident]:
    lines = [e for e in gpu.printed(case) if not (_ended_well(case, e) or _is_survived(case, e))]
    by_text = evidence.grouped(lines, lambda e: e["what"])
    errors: dict[str, list[Printed]] = {}
    dead: list[Printed] = []
    for seen in (*user_errors.failures(case), *user_errors.constructors(case)):
        raised = seen.failure.raised
        if raised and (what := gpu.text_of(raised.message)):
            errors.setdefault(what, []).append(seen)
        elif engine.died(seen):
            dead.append(seen)
    texts = list(dict.fromkeys((*by_text, *errors)))
    checks = [] if texts else case.of(ASSERTION.kind)
    if checks and evidence.is_console(case):
        yield _GpuIncident(_ASSERT, checks, [], [])
    lost = [] if texts or checks or case.of(LOGGED.kind) else gpu.beheaded(case)
    if lost and not any(
        "CUDA error: " in e.message or "CUDA out of memory" in e.message for e in case.events
    ):
        yield _GpuIncident(_LOST, lost, [], [])
    if not (texts or checks or lost):
        for event in gpu.cut_off(case)[:1]:
            yield _GpuIncident(f"{event['what']}…", [event], [], [])
    for what in texts:
        events = by_text.get(what, [])
        exits = evidence.unexpected_exits(case, events)
        also = dead if len(texts) == 1 else []
        yield _GpuIncident(what, events, exits, [*errors.get(what, []), *also])


def _is_survived(case: Case, event: Event) -> bool:
    """Whether the program went on after a call that CUDA refused."""
    return event["what"] in gpu.REFUSED and evidence.goes_on(case, event, is_line=True)


def _ended_well(case: Case, event: Event) -> bool:
    exit_ = evidence.exit_of(case, event)
    return exit_ is not None and bool(exit_.expected)


# ------------------------------------------------------------------ a process


def _of_process(case: Case, incident: _GpuIncident, faults: list[Fault]) -> Finding:
    what, events, exits, errors = incident
    assertions = case.of(ASSERTION.kind) if what == _ASSERT else []
    first = events[0] if events else errors[0].event
    broken = any(f.is_hardware for f in faults) or what.startswith(_OF_HARDWARE)
    return Finding(
        f"{_subject(incident)} failed with {_error(what)}{_reason(what, assertions, faults, broken)}",
        tuple(_links(incident, assertions, faults)),
        explains=(
            Entity("gpu-fault", what),
            *(Entity("gpu-fault", f.pci) for f in faults),
            *evidence.exit_entities(exits),
            *evidence.process_entities(events),
            *error_entities(errors),
        ),
        subjects=tuple(_subjects(incident))[:10],
        count=max(1, len(_processes(events)), len(exits)),
        severity=_severity(case, incident, faults),
        remedies=tuple(_remedies(what, first, assertions, faults, broken)),
        covers=(
            *events,
            *assertions,
            *_aborts(case, incident),
            *gpu.tracebacks(case, what),
            *(e for e in case.of("log.error") if _is_part(e, what)),
            *(f.event for f in faults),
            *evidence.exit_events(exits),
            *evidence.attempts_covered(case, exits),
            *(e for seen in errors for e in seen.records),
        ),
    )


def _is_part(event: Event, what: str) -> bool:
    """Whether a logged line is a part of the error's text."""
    words = _PTA if _OF_NPU.match(what) else _ADVICE if what == _LOST else ""
    return bool(words) and words in event.message


def _aborts(case: Case, incident: _GpuIncident) -> Iterator[Event]:
    """Crash reports of these processes, which abort because of the error."""
    pids = {exit_.pid for exit_ in incident.exits} | {e.pid for e in incident.events}
    workers = {exit_.worker for exit_ in incident.exits} | set(
        map(evidence.worker_of, incident.events)
    )
    for event in case.of(*_CRASH):
        if event.pid in pids - {None} or evidence.worker_of(event) in workers - {""}:
            yield event


def _processes(events: Sequence[Event]) -> dict[tuple[str, int | None], Event]:
    """The first line of each process; a rank without a pid counts as a process."""
    found: dict[tuple[str, int | None], Event] = {}
    for event in events:
        where = event["ip"] if event.pid is not None else event["rank"]
        found.setdefault((where, event.pid), event)
    return found


def _subject(incident: _GpuIncident) -> str:
    processes = _processes(incident.events)
    ranks = sorted({int(e["rank"]) for e in incident.events if e["rank"]})
    if len(ranks) > 1:
        return f"{len(ranks)} ranks ({evidence.join_names(map(str, ranks), most=8)})"
    if len(processes) > 1:
        return f"{len(processes)} processes"
    rank = f"rank {ranks[0]}" if ranks else ""
    if incident.exits:
        return ended.workers(incident.exits[:1])
    for event in processes.values():
        name = "Rank" + rank[4:] if rank else event["who"] or "A process"
        return f"{called(name)} (pid {event.pid})" if event.pid is not None else called(name)
    return called(incident.errors[0].failure.function) if incident.errors else "A process"


def _error(what: str) -> str:
    if coded := _CODE.match(what):
        return f"NPU error {coded['code']}: {gpu.NPU_CODES[coded['code']]}"
    if _OF_NPU.match(what):
        return f"an NPU error: the {what}"
    if what == _LOST:
        return "a CUDA error whose text the console cut off"
    return what if what.startswith(_OF_AMD) else f"CUDA error: {what}"


def _reason(what: str, assertions: Sequence[Event], faults: Sequence[Fault], broken: bool) -> str:
    if faults:
        worst = max(faults, key=lambda f: f.is_hardware)
        verdict = "a hardware fault" if broken else "usually a bug in the program"
        return f": GPU {worst.pci} reports Xid {worst.xid} ({worst.meaning}, {verdict})"
    if broken:
        return ": a hardware fault"
    if what in gpu.REFUSED:
        return f": {gpu.REFUSED[what]}"
    if built := next((why for words, why in _OF_BUILD.items() if what.startswith(words)), ""):
        return f": {built}"
    if assertions:
        one = assertions[0]
        return f": {one['condition']} is false in {one['function'].rpartition(' ')[2]} ({one['file']}:{one['where']})"
    return ""


def _links(
    incident: _GpuIncident, assertions: Sequence[Event], faults: Sequence[Fault]
) -> Iterator[Link]:
    for event in assertions[:1]:
        yield Link(
            event,
            f"the check that failed on the GPU, in {evidence.many(evidence.total(assertions), 'line')}",
        )
    for fault in faults[:2]:
        yield Link(
            fault.event,
            f"the kernel log reports Xid {fault.xid} of GPU {fault.pci}: {fault.meaning}",
        )
    for event in [e for e in _processes(incident.events).values() if e not in assertions][:2]:
        is_watchdog = event.kind == WATCHDOG.kind
        action = (
            "torch's watchdog ended the process" if is_watchdog else "the process printed the error"
        )
        yield Link(event, f"{action} ({_error(incident.what)})")
    for seen in incident.errors[:1]:
        raised = seen.failure.raised
        place = f", in {raised.place}" if raised and raised.place else ""
        yield Link(seen.event, f"{called(seen.failure.function)} raised the error{place}")
    for exit_ in incident.exits[:1]:
        yield from evidence.exit_links(exit_, most=1)


def _subjects(incident: _GpuIncident) -> Iterator[Subject]:
    yield from (evidence.exit_subject(exit_) for exit_ in incident.exits)
    if not incident.exits:
        for event in _processes(incident.events).values():
            yield Subject("process", None, event["who"] or None, event.pid, event["ip"] or None)
    for seen in incident.errors[:1]:
        yield Subject("task", None, seen.failure.function, seen.failure.pid)


def _severity(case: Case, incident: _GpuIncident, faults: Sequence[Fault]) -> Severity:
    """A warning if a program only printed the exception and the GCS records no exit of its process."""
    if incident.exits:
        return evidence.severity(case, incident.exits)
    if incident.what == _LOST:
        return "warning"
    is_certain = incident.errors or faults or any(e.kind == WATCHDOG.kind for e in incident.events)
    return "error" if is_certain or "gcs-out" not in case.roles else "warning"


# ------------------------------------------------------------------ a GPU


def _of_gpu(case: Case, faults: list[Fault]) -> Finding:
    worst = max(faults, key=lambda f: f.is_hardware)
    event = worst.event
    comm, owner = event["comm"], event["owner"]
    by = f" for {comm}" if comm and comm != "<unknown>" else ""
    by += f" (pid {owner})" if by and owner.isdigit() else ""
    verdict = "a hardware fault" if worst.is_hardware else "usually a bug in the program"
    return Finding(
        f"GPU {worst.pci} reports Xid {worst.xid}{by}: {worst.meaning}, {verdict}",
        tuple(
            Link(f.event, f"the kernel log reports Xid {f.xid}: {f.meaning}")
            for f in sorted(faults, key=lambda f: not f.is_hardware)[:3]
        ),
        explains=(Entity("gpu-fault", worst.pci),),
        count=evidence.total([f.event for f in faults]),
        severity="warning" if "gcs-out" in case.roles and not case.exits else "error",
        remedies=tuple(_remedies("", event, (), faults, worst.is_hardware)),
        covers=tuple(f.event for f in faults),
    )


def _remedies(
    what: str, event: Event, assertions: Sequence[Event], faults: Sequence[Fault], broken: bool
) -> Iterator[Remedy]:
    if broken:
        yield _repair([f for f in faults if f.is_hardware])
        yield Remedy(
            "Then check whether the error returns",
            ("nvidia-smi -q -d ECC,ROW_REMAPPER; sudo dmesg -T | grep -i xid   # on that node",),
            doc=_XID_DOC,
        )
        return
    if what.startswith(tuple(_OF_BUILD)):
        yield Remedy(
            "Compare the GPU's architecture and its driver with those for which the library was built, and install a build that fits",
            (
                "python -c 'import torch; print(torch.cuda.get_device_capability(), torch.cuda.get_arch_list(), torch.version.cuda)'",
                "nvidia-smi   # the driver's version, and the newest CUDA that it supports",
                "pip install -U torch --index-url https://download.pytorch.org/whl/cu128   # and rebuild extensions (flash-attn, vLLM) for it",
            ),
        )
        return
    if _OF_NPU.match(what):
        yield Remedy(
            "Find the failed kernel: the NPU reports the error at a later call",
            (
                'ray.init(runtime_env={"env_vars": {"ASCEND_LAUNCH_BLOCKING": "1"}})   # slow, for one run',
                "ls -t ~/ascend/log/debug/plog/ | head   # the logs of CANN on the node of that process: the first ERROR is the cause",
            ),
        )
        yield Remedy("Check the NPU and its memory", ("npu-smi info; npu-smi info -t ecc -i 0",))
        return
    if assertions:
        yield Remedy(
            "Check indices and labels before they reach the GPU",
            (
                "assert 0 <= ids.min() and ids.max() < table.shape[0]   # token ids, labels, positions",
            ),
        )
    yield Remedy(
        "Find the failed call: CUDA reports the error at a later call",
        (
            'ray.init(runtime_env={"env_vars": {"CUDA_LAUNCH_BLOCKING": "1"}})   # slow, for one run',
        ),
        doc=_DOC,
    )
    if what in gpu.REFUSED:
        if what in _OF_START:
            yield Remedy(
                "Check the driver and its services on that node, and in the container",
                ("nvidia-smi; systemctl status nvidia-fabricmanager",),
            )
    elif what != _ASSERT:
        yield Remedy(
            "Check the hardware: search for an Xid at that time",
            (
                paste.shell("sudo dmesg -T | grep -i xid   # on node {ip:address}", ip=event["ip"])
                if event["ip"]
                else "sudo dmesg -T | grep -i xid   # on the node of that process",
                "nvidia-smi -q -d ECC,ROW_REMAPPER",
            ),
            doc=_XID_DOC,
        )


def _repair(faults: Sequence[Fault]) -> Remedy:
    """The first action of NVIDIA's Xid catalog: a restart of the machine, of the program, or a reset of the GPU."""
    xids = {f.xid for f in faults}
    if gpu.OFF_THE_BUS in xids:
        title = "Take the node out of use and restart it: a GPU that fell off the bus cannot be reset. Replace it if the error returns"
        reboot = "sudo reboot   # on that node: ends everything that runs there"
        return Remedy(title, (reboot,), risk="destructive", doc=_XID_DOC)
    # `nvidia-smi -i` takes domain:bus:device.function, and an Xid has no function.
    pci = next((f"{f.pci.partition('.')[0]}.0" for f in faults), "")
    reset = (
        paste.shell("nvidia-smi --gpu-reset -i {pci:id}   # no process may use the GPU", pci=pci)
        if pci
        else "nvidia-smi --gpu-reset -i GPU   # no process may use the GPU"
    )
    title = "Take the node out of use and reset the GPU. Replace it if the error returns"
    if xids == {gpu.CONTAINED}:
        title = "Start the program again, and reset the GPU when it is idle: the error was contained in that program"
    return Remedy(title, (reset,), risk="disruptive", doc=_XID_DOC)


# ------------------------------------------------------------------ examples

_W = "cd09fc46897e18918275a6d03cc3a6abc2becabe5e0fd27a533d35a7"
_EXIT = (
    "[2026-11-21 07:34:13,741 W 8 8] (gcs_server) gcs_worker_manager.cc:70: "
    f"{WORKER_EXIT.sample.replace('cd09fc46897e18918275a6d03cc3a6abc2becabe5e0fd27a533d35a7', _W)}\n"
)
_ILLEGAL = "CUDA error: an illegal memory access was encountered"


def _watchdog(rank: int) -> str:
    text = WATCHDOG.sample.replace("Rank 1]", f"Rank {rank}]").replace("[rank1]", f"[rank{rank}]")
    return f"{text}\nCUDA kernel errors might be asynchronously reported at some other API call.\n"


_TASK = (
    "Traceback (most recent call last):\nray.exceptions.RayTaskError(AcceleratorError): ray::Trainer.step() (pid=389, ip=10.0.0.2, "
    "actor_id=7dbdc85090b37cd39fb9e77001000000, repr=<train.Trainer object>)\n"
    '  File "/app/train.py", line 49, in step\n    loss = model(batch)\n'
    "torch.AcceleratorError: CUDA error: device-side assert triggered\n"
)
_XID31 = (
    "[Sat Nov 21 07:34:11 2026] NVRM: Xid (PCI:0000:3b:00): 31, pid=389, name=ray::Trainer.st, Ch 00000008, intr 00000000. MMU Fault: "
    "ENGINE GRAPHICS GPCCLIENT_T1_9 faulted @ 0x7f91_0220b000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE\n"
)
_XID95 = (
    "[Sat Nov 21 07:34:11 2026] NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 95, pid=389, name=ray::Trainer.st, Uncontained: LTC TAG (0x2, 0x1). "
    "RST: Yes, D-RST: No\n"
)
_XID79 = f"[Sat Nov 21 07:34:12 2026] {XID.sample}\n"
_APPENDED = (
    "CUDA kernel errors might be asynchronously reported at some other API call.",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
)

EXAMPLES: tuple[Example, ...] = (
    console(
        "torch has no code for the GPU",
        "(EngineCore_DP0 pid=812) ERROR 11-21 07:34:12 [core.py:708] RuntimeError: CUDA error: no kernel image is available for execution on "
        "the device\n",
        says=("has no code for this GPU's architecture", "get_arch_list"),
    ),
    console(
        "torch warns about an old GPU, and the program runs",
        "UserWarning: this GPU may have no kernel image is available for execution on the device\nstep 1\n",
    ),
    Example(
        "the worker's end is recorded",
        {
            f"logs/worker-{_W}-01000000-379.err": f"{_watchdog(0)}*** SIGABRT received at time=1795247733 on cpu 3 ***\nFatal Python error: Aborted\n\n",
            f"logs/python-core-worker-{_W}_379.log": "[2026-11-21 07:34:12,990 E 379 412] logging.cc:118: *** SIGABRT received at time=1795247733 on cpu 3 ***\n",
            "logs/gcs_server.out": _EXIT,
            "logs/raylet.out": "",
        },
        says=("pid 379",),
        is_typical=True,
    ),
    console(
        "two ranks report an illegal access in a console",
        f"(Trainer pid=379, ip=10.0.0.2) {_watchdog(0)}(Trainer pid=381, ip=10.0.0.2) {_watchdog(1)}",
        says=("2 ranks (0 and 1)", "illegal memory access", "CUDA_LAUNCH_BLOCKING", "10.0.0.2"),
    ),
    console(
        "vLLM logs the error within another sentence, and a peer ends",
        f"(raylet) {WORKER_DIED.sample}\n"
        + "".join(
            f"(Shard pid=381, ip=10.0.0.3) WARNING 11-21 04:32:47 model_runner_base.py:143] {line}\n"
            for line in (gpu.LOGGED.sample, *_APPENDED)
        ),
        consequences=("worker-vanished",),
        says=("Shard (pid 381)", "illegal memory access"),
    ),
    console(
        "an actor's log quotes the error, without the lines that torch appends",
        f"(Shard pid=381) WARNING 11-21 04:32:47 retry.py:43] last time: {_ILLEGAL}\n",
    ),
    Example(
        "a task raises a device-side assert, and the check is printed",
        {"driver.log": f"(Trainer pid=389) {ASSERTION.sample}\n{_TASK}", **QUIET_LOGS},
        says=(
            "srcSelectDimSize is false",
            "indexSelectLargeIndex",
            "Indexing.cu:1284",
            "table.shape",
        ),
    ),
    console(
        "a console shows nothing but the check that failed",
        f"{ASSERTION.sample}\n",
        says=("srcSelectDimSize is false", "table.shape"),
    ),
    console(
        "a kernel of an AMD GPU accessed an address that is not mapped",
        f"(Trainer pid=389) {gpu.ROCM.sample}\n(raylet) {WORKER_DIED.sample}\n",
        consequences=("worker-vanished",),
        says=("Memory access fault by GPU node-4",),
    ),
    console(
        "an actor counts the memory access faults that it read about",
        "(watch pid=12) 3 jobs had a Memory access fault by GPU node-4 last week\n",
    ),
    Example(
        "the kernel log shows a hardware fault",
        {"driver.log": f"(Trainer pid=389) {_watchdog(0)}", "dmesg.txt": _XID31 + _XID79},
        says=("Xid 79", "fell off the bus", "a hardware fault", "cannot be reset"),
    ),
    Example(
        "an uncontained memory error of a GPU with MIG",
        {"driver.log": f"(Trainer pid=389) {_watchdog(0)}", "dmesg.txt": _XID95},
        says=("Xid 95", "an uncontained ECC error", "--gpu-reset -i 0000:3b:00.0"),
    ),
    Example(
        "a contained memory error",
        {"dmesg.txt": _XID95.replace(": 95,", ": 94,").replace("Uncontained", "Contained")},
        says=("Xid 94", "Start the program again"),
    ),
    Example(
        "an Xid of a Ray process, without any other log",
        {"dmesg.txt": _XID31},
        says=("Xid 31", "ray::Trainer.st (pid 389)", "usually a bug in the program"),
    ),
    Example(
        "a program quotes the error, a desktop's GPU kernel failed, and channels are cleaned up",
        {
            "driver.log": f"retrying after RuntimeError: {_ILLEGAL}\n(embed pid=12) see docs for '{_ILLEGAL}'\n",
            "dmesg.txt": _XID31.replace("ray::Trainer.st", "Xorg")
            + _XID79.replace(": 79,", ": 45,"),
            **QUIET_LOGS,
        },
    ),
    console(
        "a kernel on an NPU times out",
        "[rank1]:[E1129 10:54:13.679153542 compiler_depend.ts:444] operator():torch_npu.dir/compiler_depend.ts:34 NPU function error: "
        "call aclnnRmsNorm failed, error code is 507014\n[ERROR] 2026-11-21-10:54:13 (PID:918, Device:1, RankID:-1) ERR00100 PTA call acl api failed\n"
        f"{gpu.NPU_WORDS.sample}\n",
        says=(
            "Rank 1 failed with NPU error 507014: a kernel on the AI core timed out",
            "ASCEND_LAUNCH_BLOCKING",
            "plog",
        ),
    ),
    console(
        "only CANN's words for it are left",
        f"(RayWorkerWrapper pid=918) {gpu.NPU_WORDS.sample}\n",
        says=(
            "RayWorkerWrapper (pid 918) failed with an NPU error: the aicore execution times out",
        ),
    ),
    console(
        "an NPU refuses a wrong call",
        "step 1\nNPU function error: aclrtSetDevice, error code is 107001\nstep 2\n",
    ),
    console(
        "a paste that begins below the text of a CUDA error",
        "ERROR 09-27 06:46:46 engine.py:157] For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
        "ERROR 09-27 06:46:46 engine.py:157] Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\nINFO:     Shutting down\n",
        says=("failed with a CUDA error whose text the console cut off",),
        severity="warning",
    ),
    console(
        "the same lines below an error that the GPU did not cause",
        "RuntimeError: CUDA error: invalid device ordinal\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n",
        roots=("gpu-unavailable",),
    ),
    *(
        console(
            f"CUDA refuses a call: {what}, in a paste that {shape}",
            f"{before}torch.AcceleratorError: CUDA error: {what}\n{after}",
            says=(f"Trainer (pid 77) failed with CUDA error: {what}: {why}", fix),
        )
        for what, why, fix, shape, before, after in (
            (
                "invalid argument",
                "a call passed a value",
                "CUDA_LAUNCH_BLOCKING",
                "begins within the traceback",
                '(Trainer pid=77)   File "/app/t.py", line 7, in pin\n(Trainer pid=77)     data.cpu().pin_memory()\n(Trainer pid=77) ',
                "(Trainer pid=77) CUDA kernel errors might be asynchronously reported at some other API call, so the stack",
            ),
            (
                "operation not permitted when stream is capturing",
                "CUDA does not allow the call while a graph is captured",
                "CUDA_LAUNCH_BLOCKING",
                "has only the last line",
                "(Trainer pid=77) ",
                "",
            ),
            (
                "system not yet initialized",
                "the driver's services are not ready",
                "nvidia-fabricmanager",
                "has only the last line",
                "(Trainer pid=77) ",
                "",
            ),
        )
    ),
    console(
        "a program quotes such an error, or tries another way after it",
        "pinning failed (CUDA error: invalid argument), copying without\n"
        "docs: 'RuntimeError: CUDA error: invalid argument' means a refused call\nepoch 2\n",
    ),
    console(
        "a program prints such an error and continues",
        "(Trainer pid=77) RuntimeError: CUDA error: invalid argument\n(Trainer pid=77) uses memory that is not pinned\n"
        "(Trainer pid=77) step 1\nepoch 2\nepoch 3\n",
    ),
)

"""A process of an inference engine (vLLM, SGLang) ended, and its own error is not in the output.

## What you see
- vLLM: `Worker proc VllmWorker-1 died unexpectedly, shutting down executor.`, `Engine core proc EngineCore_DP0 died
  unexpectedly, shutting down client.`, or `Engine core initialization failed. … Failed core proc(s): {'EngineCore_DP0':
  -9}`.
- SGLang: `Rank 0 scheduler died during initialization (exit code: -9)`, `Subprocess scheduler_0 (pid=812) crashed with
  exit code -9`, or only `Received sigquit from a child process. It usually means the child failed.`

## Why
These engines run each GPU's work in a process of its own. If one of them ends, the others end as well, and their
messages contain no reason. An exit code of -9 means SIGKILL: usually the operating system's OOM killer or the
container's memory limit, because all ranks load weights or pin host memory at the same time. -11, -7 and -6 mean a
crash in native code (GPU driver, CUDA library, GPU kernel, shared memory that is too small). -15 is SIGTERM: another
process ended it. Any other code means that the process printed an exception first.

## Confirm
- `sudo dmesg -T | grep -iE 'killed process|segfault|NVRM'` on that host shows the OOM kill, the crash or the GPU error
  at that time.
- In a pod, `kubectl describe pod` shows `Reason: OOMKilled`. If not, compare its memory limit with the size of the
  weights.
- Read the complete log upward from the first of these messages: an excerpt may have cut off the real error.

## Fix
For SIGKILL, give the container more memory, start fewer ranks on the host, or reduce what they hold in host memory: CPU
offload (`--cpu-offload-gb` of vLLM and SGLang) and vLLM's `--swap-space`. For a crash, start the engine again with
`PYTHONFAULTHANDLER=1` in its environment and read the stack that it prints, enlarge `/dev/shm` (`docker run
--shm-size=16g`; in a pod an `emptyDir` with `medium: Memory` at `/dev/shm`), and compare the versions of the GPU driver
and of CUDA.

## Not this when
- the output shows the exception of that process: the report then names it (`cuda-oom`, `gpu-memory-taken`,
  `job-failed`, …).
- the server was stopped: vLLM also prints this message after Ctrl-C.
- the engine timed out while its workers were alive (`vllm-engine-stalled`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import OUTPUT, TRACEBACK, TRACEBACKS
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import jobs
from raydoctor.rules.shared.failures import cause_above, ended_programs, exception_at_end
from raydoctor.rules.shared.gpu_start import LINE_START
from raydoctor.rules.shared.traceback import parse

_CODE = r"(?P<code>-?\d{1,4})"

DIED = (
    Signal(
        "engine.died",
        ", shutting down ",
        r"(?:^|\] )(?P<engine>Worker|Engine core) proc (?P<name>[\w-]{1,80}) died unexpectedly"
        rf"(?: \(exit code: (?:{_CODE}|None)\))?, shutting down (?:executor|client)\.",
        OUTPUT,
        "Worker proc VllmWorker-1 died unexpectedly, shutting down executor.",
        symptom=True,
        fold=("name",),
    ),
    Signal(
        "engine.died",
        " died, exit code: ",
        rf"(?:^|\] )(?P<engine>Worker) (?P<name>VllmWorkerProcess) pid (?P<child>\d{{1,10}}) died, exit code: {_CODE}\b",
        OUTPUT,
        "Worker VllmWorkerProcess pid 812 died, exit code: -15",
        symptom=True,
        fold=("child",),
    ),
    Signal(
        "engine.died",
        "Engine core initialization failed. See root cause above. Failed core proc(s): ",
        LINE_START + r"RuntimeError: (?P<engine>Engine core) initialization failed\. See root cause above\. Failed core proc\(s\): "
        rf"\{{'(?P<name>[\w-]{{1,80}})': {_CODE}[,}}]",
        OUTPUT,
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore_DP0': -9}",
        fold=("name",),
    ),
    Signal(
        "engine.died",
        " scheduler died during initialization (exit code: ",
        LINE_START + rf"RuntimeError: Rank (?P<rank>\d{{1,6}}) scheduler died during initialization \(exit code: {_CODE}\)",
        OUTPUT,
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common cause is the OS "
        "OOM killer.",
        fold=("rank",),
    ),
    Signal(
        "engine.died",
        " scheduler is dead. Please check if there are relevant logs.",
        r"(?:^|\] )Rank (?P<rank>\d{1,6}) scheduler is dead\. Please check if there are relevant logs\.",
        OUTPUT,
        "Rank 0 scheduler is dead. Please check if there are relevant logs.",
        symptom=True,
        fold=("rank",),
    ),
    Signal(
        "engine.died",
        ". Triggering SIGQUIT for cleanup",
        rf"(?:^|\] )Subprocess (?P<name>[\w-]{{1,80}}) \(pid=(?P<child>\d{{1,10}})\) crashed with exit code {_CODE}\. Triggering SIGQUIT for cleanup",
        OUTPUT,
        "Subprocess scheduler_0 (pid=812) crashed with exit code -9. Triggering SIGQUIT for cleanup...",
        symptom=True,
        fold=("name",),
    ),
    Signal(
        "engine.died",
        "Scheduler or DataParallelController ",
        rf"(?:^|\] )Scheduler or DataParallelController (?P<child>\d{{1,10}}) terminated with {_CODE}$",
        OUTPUT,
        "Scheduler or DataParallelController 812 terminated with -9",
        fold=("child",),
    ),
    Signal(
        "engine.died",
        "It usually means ",
        r"(?:^|\] )(?:Received sigquit from a child process\.|SIGQUIT received\. signum=[^\n]{1,600}) It usually means (?:the|one) child failed\.",
        OUTPUT,
        "Received sigquit from a child process. It usually means the child failed.",
        symptom=True,
    ),
    Signal(
        "engine.died",
        "WorkerProc initialization failed due to an exception in a background process",
        LINE_START + r"(?:Exception|RuntimeError): (?P<engine>Worker)Proc initialization failed due to an exception in a background process\.",
        OUTPUT,
        "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.",
    ),
    Signal(
        "engine.died",
        "Engine core initialization failed. See root cause above.",
        LINE_START + r"RuntimeError: (?P<engine>Engine core) initialization failed\. See root cause above\.(?: Failed core proc\(s\): \{\})?\s*$",
        OUTPUT,
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    ),
    Signal(
        "engine.died",
        "Engine process failed to start. See stack trace for the root cause.",
        LINE_START + r"RuntimeError: (?P<engine>Engine) process failed to start\. See stack trace for the root cause\.",
        OUTPUT,
        "RuntimeError: Engine process failed to start. See stack trace for the root cause.",
    ),
    Signal(
        "engine.died",
        "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        LINE_START + r"(?:[\w.]{1,80}\.)?EngineDeadError: (?P<engine>Engine)Core encountered an issue\. See stack trace \(above\) for the root cause\.",
        OUTPUT,
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
    ),
)  # fmt: skip
"""vLLM 0.6 to 0.20 (`multiproc_executor.py`, `core_client.py`, `engine/utils.py`, `exceptions.py`), SGLang 0.4 to 0.5 (`srt/entrypoints/engine.py`,
`srt/utils/watchdog.py`, `srt/managers/`)."""
_STOPPED = (
    Signal("engine.stopped", "Shutting down", r"^(?:INFO: +)?Shutting down(?: FastAPI HTTP server\.)?$", OUTPUT, "INFO:     Shutting down"),
    Signal("engine.stopped", "KeyboardInterrupt", r"^KeyboardInterrupt(?:: terminated)?$", OUTPUT, "KeyboardInterrupt"),
)  # fmt: skip
"""The server was asked to end: its processes may then report each other's end."""
_SIGKILL, _SIGTERM = "-9", "-15"


@rule(
    tier="symptom",
    severity="error",
    rank=94,
    explains=("program",),
    fallback=True,
    looks_for=(*DIED, *_STOPPED, TRACEBACK),
)
def engine_process_died(case: Case) -> Iterator[Finding]:
    """At most one finding for an output, if nothing else in the capture explains the end."""
    if case.accounted or _has_own_error(case):
        return
    for events in evidence.grouped(case.of(DIED[0].kind), lambda e: e.source).values():
        asked = [e for e in case.of(_STOPPED[0].kind) if e.source is events[0].source]
        has_cause = not any(e["code"] for e in events) and cause_above(case, events[-1])
        if not has_cause and not any(e.line < events[0].line for e in asked):
            yield _finding(case, events)


def _has_own_error(case: Case) -> bool:
    """Whether an output shows an exception that does not only refer to another process.

    A cut-off traceback shows none: it may be that of the engine's end.
    """
    found = [parse(e.message) for e in case.of(*TRACEBACKS)]
    found += [exception_at_end(each) for each in case.endings.values()]
    raised = [each for each in found if each and each.type]
    return any(not each.is_elsewhere and not _is_report(str(each)) for each in raised)


def _is_report(text: str) -> bool:
    """Whether an exception is one of the messages above."""
    return any(signal.regex.search(text) for signal in DIED)


def _finding(case: Case, events: list[Event]) -> Finding:
    by_signal = [e for e in events if e["code"].startswith("-") and e["code"] != _SIGTERM]
    best = (by_signal or [e for e in events if e["code"] not in {"", _SIGTERM}] or events)[0]
    source = events[0].source
    return Finding(
        f"{_who(best)} {_how(best['code'])}",
        (
            Link(best, "another process of the engine reports its end"),
            *(Link(e, "the server ends because of it") for e in events[-1:] if e is not best),
        ),
        explains=(Entity("program", source.path),),
        subjects=(Subject("process", None, best["name"] or None, int(best["child"]) if best["child"] else None),),
        count=max(1, len({(e["name"], e["rank"], e["child"]) for e in by_signal})),
        severity="warning" if best["code"] == _SIGTERM else "error",
        remedies=tuple(_remedies(best["code"])),
        covers=(
            *events,
            *(e for e in case.of(*TRACEBACKS) if e.source is source),
            *(ending for ending, _ in ended_programs(case) if ending.source is source),
        ),
    )  # fmt: skip


def _who(event: Event) -> str:
    pid = f" (pid {event['child']})" if event["child"] else ""
    if event["engine"]:
        kind = "worker" if event["engine"] == "Worker" else "engine"
        name = f" {event['name']}" if event["name"] else ""
        return f"{'The' if name else 'A' if kind == 'worker' else 'An'} {kind} process{name}{pid} of vLLM"
    if event["rank"]:
        return f"The scheduler of rank {event['rank']} of SGLang"
    if event["name"] or pid:
        return f"The process {event['name'] or 'of a scheduler'}{pid} of SGLang"
    return "A process of an SGLang server"


def _how(code: str) -> str:
    unknown = "and the output does not contain its own error"
    if not code:
        return f"ended, {unknown}"
    name = jobs.signal_of(int(code))
    if code == _SIGKILL:
        return "was killed (SIGKILL): its machine or container ran out of memory, or another program ended it"
    if code.startswith("-") and name:
        return f"was ended by {name}, {unknown}"
    return f"ended with exit code {code}, {unknown}"


def _remedies(code: str) -> Iterator[Remedy]:
    if code == _SIGKILL:
        yield Remedy(
            "Check whether the kernel or the container's limit killed it",
            (
                "sudo dmesg -T | grep -iE 'killed process|out of memory'   # on its host",
                "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory.peak; free -g   # in its container",
                "kubectl describe pod POD   # OOMKilled, limits",
            ),
            finds_cause=True,
        )
        yield Remedy(
            "If memory ran out, give the container more, or let the engine use less host memory",
            ("vllm serve MODEL --swap-space 0 --max-parallel-loading-workers 1   # SGLang: no CPU offload or hierarchical cache",),
            risk="disruptive",
        )  # fmt: skip
        return
    if code == _SIGTERM:
        yield Remedy(
            "Find what ended it: the server's own shutdown, a scheduler, a pod's deletion, or another rank that failed first",
            ("grep -niE -m20 'traceback|error|shutting down|sigterm' SERVER_LOG", "kubectl get events --sort-by=.lastTimestamp | tail"),
            finds_cause=True,
        )  # fmt: skip
        return
    yield Remedy(
        "Find the process's own error: it is above the first message of the others in the whole log",
        (
            "grep -niE -m20 'traceback|error|cuda|nccl|signal|fatal' SERVER_LOG",
            "sudo dmesg -T | grep -iE 'killed process|segfault|nvrm' | tail   # on its host",
        ),
        finds_cause=True,
    )
    if code.startswith("-"):
        yield Remedy(
            "Let Python print the stack of a crash, and check the size of the shared memory",
            ("export PYTHONFAULTHANDLER=1   # before the server starts", "df -h /dev/shm"),
        )


# ------------------------------------------------------------------ examples

_SERVER, _ENGINE = "(APIServer pid=700)", "(EngineCore_DP0 pid=812)"
_FRAMES = (
    'Traceback (most recent call last):\n  File "/app/serve.py", line 8, in <module>\n    main()\n'
)
_RAISED = f"{_FRAMES}RuntimeError: the tokenizer has no vocabulary\n"

EXAMPLES: tuple[Example, ...] = (
    console(
        "the kernel kills a scheduler of SGLang while the model is loaded",
        f"[2026-11-21 07:34:10 TP0] Load weight begin. avail mem=78.58 GB\n{_FRAMES}{DIED[3].sample} Run `dmesg -T | grep -i oom` to check.\n",
        says=("The scheduler of rank 0 of SGLang was killed (SIGKILL)", "dmesg"),
    ),
    console(
        "a worker of vLLM dies, and its engine with it",
        f"{_ENGINE} ERROR 11-21 07:34:12 [multiproc_executor.py:273] {DIED[0].sample}\n"
        f"{_SERVER} ERROR 11-21 07:34:14 [core_client.py:667] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.\n",
        says=("The worker process VllmWorker-1 of vLLM ended", "SERVER_LOG"),
    ),
    console(
        "the engine's process is killed at its start",
        f"{_FRAMES}{DIED[2].sample}\n",
        says=("EngineCore_DP0 of vLLM was killed (SIGKILL)",),
    ),
    console(
        "the kernel kills a worker, and the executor ends the others",
        f"ERROR 11-21 07:34:12 multiproc_worker_utils.py:120] {DIED[1].sample}\n"
        f"ERROR 11-21 07:34:12 multiproc_worker_utils.py:120] {DIED[1].sample.replace('812', '813').replace('-15', '-9')}\n",
        says=("(pid 813) of vLLM was killed (SIGKILL)",),
    ),
    console(
        "something ends a worker with SIGTERM",
        f"ERROR 11-21 07:34:12 multiproc_worker_utils.py:120] {DIED[1].sample}\n",
        says=("was ended by SIGTERM", "Find what ended it"),
        severity="warning",
    ),
    console(
        "a process of SGLang crashes in native code",
        f"[2026-11-21 07:34:12] {DIED[5].sample.replace('-9', '-11')}\n[2026-11-21 07:34:12] {DIED[7].sample}\nKilled\n",
        says=("scheduler_0 (pid 812) of SGLang was ended by SIGSEGV", "PYTHONFAULTHANDLER=1"),
    ),
    console(
        "only the end of SGLang's server is left",
        f"[2026-11-21 07:34:12] {DIED[7].sample}\nKilled\n",
        says=("A process of an SGLang server ended",),
    ),
    console(
        "the output contains the exception of the process",
        f"[2026-11-21 07:34:11 TP0] Scheduler hit an exception: {_RAISED}\n[2026-11-21 07:34:12] {DIED[7].sample}\nKilled\n",
        roots=("job-failed",),
    ),
    console(
        "an actor reports that its engine died, and the console ends within the driver's wait for the actor",
        "(Server pid=31) ERROR 11-21 07:34:14 [core_client.py:564] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.\n"
        'Traceback (most recent call last):\n  File "/app/train.py", line 8, in <module>\n    ray.get(server.run.remote())\n'
        '  File "/venv/lib/python3.12/site-packages/ray/_private/worker.py", line 2968, in get\n    values = worker.get_objects(\n',
        says=("The engine process EngineCore_DP0 of vLLM ended",),
    ),
    *(
        console(
            f"only the message of another process is left: {signal.find}",
            f"ERROR 11-21 07:34:14 [core.py:515] {_FRAMES.replace(chr(10), chr(10) + 'ERROR 11-21 07:34:14 [core.py:515] ')}{signal.sample}\n"
            f"Process EngineCore_0:\n{_FRAMES}",
            says=("process of vLLM ended",),
        )
        for signal in DIED[-4:]
    ),
    console(
        "only the message of another process is left, below that process's own exception",
        f"ERROR 11-21 07:34:13 [multiproc_executor.py:515] {_RAISED}{_FRAMES}{DIED[-4].sample}\n",
        roots=("job-failed",),
    ),
    console(
        "the server is stopped with Ctrl-C, and its engine with it",
        f"INFO:     Shutting down\n{_SERVER} ERROR 11-21 07:34:14 [core_client.py:667] Engine core proc EngineCore_DP0 died unexpectedly, "
        "shutting down client.\n",
    ),
    console(
        "a program quotes the messages, and continues",
        f"known: {DIED[0].sample}\nknown: {DIED[5].sample}\nloss 0.1\n",
        logs=QUIET_LOGS,
    ),
)

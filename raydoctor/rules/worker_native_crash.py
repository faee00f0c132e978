"""Native code crashed a worker (or the driver): SIGSEGV, SIGBUS, SIGILL, SIGFPE or SIGABRT.

## What you see
`WorkerCrashedError` or `ActorDiedError` with `connection error code 2. End of file` or `The leased worker has
unrecoverable failure`. The worker's `.err` file contains `*** SIGSEGV received at time=…` and `Fatal Python error:
Segmentation fault` with a stack. If the driver crashes, its job ends with it. If a paste shows only a part of a report,
raydoctor reads its frames (`_raylet.so(+0x…)`, `    @  0x…`), Paddle's `C++ Traceback`, and words that a library prints
before it aborts (`Assertion … failed.`, `double free or corruption`, `OMP: Error #15`).

## Why
A Python exception does not end a process like this: a C, C++, Rust or CUDA library does.

- SIGSEGV: native code accessed memory outside its mapped memory.
- SIGBUS: a mapped page cannot be backed (a truncated file, a full `/dev/shm`). If the logs show that `/dev/shm` is too
  small, the report lists `object-store-on-disk` as the root.
- SIGILL: the binary was built for another CPU.
- SIGFPE: native code divided an integer by zero.
- SIGABRT: a library detected an internal error and called `abort()`. It prints its reason above the report.

Ray's handler and Python's faulthandler print a report before the process dies. Ray sees only the closed socket.

## Confirm
- In the worker's `.err`, the first line of your own program in `Stack (most recent call first)` names the function.
- Call that function in a plain `python -X faulthandler`, without Ray, with the same input: it should crash as well.
- A core file (`ulimit -c unlimited` before `ray start`) opened in gdb shows the native frames.

## Fix
Fix, upgrade or roll back the library at the top of the stack. The usual cause is two packages that were built against
different versions of a third one. Until the library is fixed, retries (`max_retries`, `max_restarts`) help only if the
crash depends on timing.

## Not this when
- only Ray's three guesses mention SIGSEGV (`worker-vanished`).
- the kernel log names the pid (`kernel-oom-kill`).
- the report is that of a SIGTERM (`worker-terminated`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import QUIET_LOGS, Example, console, rule
from raydoctor.case.signals import LOCAL_RAYLET_FAILED, WORKER_DIED, WORKER_EXIT
from raydoctor.model import ids, paste
from raydoctor.model.entities import Entity
from raydoctor.model.values import Finding, Link, Remedy, Severity, Subject
from raydoctor.rules.shared import ended, store
from raydoctor.rules.shared.cluster import spelled
from raydoctor.rules.shared.crash import (
    BEHEADED,
    CRASH_SIGNALS,
    Crash,
    of_driver,
    of_exit,
    of_lone_echoes,
    of_lone_output,
    of_worker,
)

_DEBUG = (
    "https://docs.ray.io/en/latest/ray-observability/user-guides/debug-apps/debug-failures.html"
)

_MEANING = {
    "SIGSEGV": "native code accessed memory outside its mapped memory",
    "SIGBUS": "a mapped page could not be backed: a truncated file, or a full /dev/shm",
    "SIGILL": "the binary contains an instruction that this CPU does not have",
    "SIGFPE": "native code divided an integer by zero",
    "SIGABRT": "native code detected an internal error and called abort()",
}


@rule(
    tier="root",
    severity="error",
    rank=30,
    explains=("job", "process", "worker"),
    caused_by=("store",),
    daemons_record=True,
    looks_for=(*CRASH_SIGNALS, WORKER_EXIT, LOCAL_RAYLET_FAILED),
)
def worker_native_crash(case: Case) -> Iterator[Finding]:
    """One finding per signal, function and place; a crashed driver gets its own."""
    groups: dict[tuple[str, str, str], list[Crash]] = {}
    for crash in [*_recorded(case), *_unrecorded(case)]:
        key = (crash.signal, crash.name, str(crash.place or crash.symbol))
        groups.setdefault(key, []).append(crash)
    for crashes in groups.values():
        yield _finding(case, crashes)
    for job in sorted(_jobs_with_crash(case)):
        if found := of_driver(case, job):
            yield _driver_finding(case, job, found)
    if "core-driver" not in case.roles:
        for crash in of_lone_output(case):
            yield _driver_finding(case, "", crash)


def _recorded(case: Case) -> Iterator[Crash]:
    for exit_ in case.exits:
        if exit_.exit_type == "SYSTEM_ERROR" and (crash := of_exit(case, exit_)):
            yield crash


def _unrecorded(case: Case) -> Iterator[Crash]:
    """Crashes of workers whose end is not recorded in the capture: in core logs (only Ray writes these) or in a console."""
    if evidence.is_console(case):
        yield from of_lone_echoes(case)
    reported = set()
    for event in case.of("crash.handler"):
        worker = evidence.worker_of(event)
        if (
            worker in reported
            or ids.job_of_driver(worker)
            or case.exit_of(worker)
            or case.torn_down(event)
        ):
            continue
        reported.add(worker)
        end = WorkerExit(worker, "SYSTEM_ERROR", "", [], event.at, pid=event.source.pid)
        if crash := of_worker(case, end):
            yield crash


def _jobs_with_crash(case: Case) -> set[str]:
    workers = {e.value for event in case.of("crash.handler") for e in event.source.entities}
    return {job for worker in workers if (job := ids.job_of_driver(worker))}


# ---------------------------------------------------------------- workers


def _label(crash: Crash) -> str:
    pid = crash.exit.pid if crash.exit else None
    name = crash.name or "worker"
    return name if pid is None else f"{name} (pid {pid})"


def _finding(case: Case, crashes: list[Crash]) -> Finding:
    exits = [c.exit for c in crashes if c.exit]
    exits += _repeated(case, crashes, exits)
    best = max(crashes, key=lambda c: (bool(c.frames), len(c.events)))
    # One frame is in a stack several times, and Ray counts its repetitions.
    echoes = (e.count for c in crashes for e in c.events if e["who"] and e.kind not in _FRAMES)
    count = max((evidence.deaths(exits), *echoes))
    of_name = f" of {best.name}" if best.name else ""
    of_actor = bool(best.exit and best.exit.actor)
    one = ended.worker(_label(best), bool(best.name), of_actor)
    label = f"{one} crashed" if count == 1 else f"{count} workers{of_name} crashed"
    actor = best.exit.actor if best.exit else ""
    if count > 1 and actor and all(c.exit and c.exit.actor == actor for c in crashes):
        label = f"Actor {best.name or evidence.short(actor)} crashed {count} times"
    chain = [*_links(best, _label(best) if best.name else f"the {_label(best)}")]
    chain += evidence.exit_links(best.exit or exits[0], most=1)
    crashed = evidence.attempts_covered(case, exits)
    if crashed and len(chain) < 5:
        chain.append(Link(crashed[0], "the driver got WorkerCrashedError"))
    return Finding(
        f"{label}: {_what(best)}{evidence.recovery(case, exits)}",
        tuple(chain),
        explains=evidence.exit_entities(exits),
        caused_by=(
            *(Entity("node", e.node) for e in exits if e.node and _lost_raylet(case, e)),
            *(_small_memory(best) if best.signal == "SIGBUS" else ()),
        ),
        subjects=tuple(evidence.exit_subject(e) for e in exits[:10]),
        count=count,
        severity=evidence.severity(case, exits),
        remedies=_remedies(best),
        covers=(*(e for c in crashes for e in c.events), *evidence.exit_events(exits), *crashed),
    )


def _repeated(case: Case, crashes: list[Crash], exits: list[WorkerExit]) -> list[WorkerExit]:
    """Ends of unnamed workers that Ray merged in a console, as it merged these reports of the same crash."""
    reports = [e for c in crashes for e in (c.handler, c.python) if e]
    if not any(e.count > 1 and e.source.is_excerpt for e in reports):
        return []
    return [
        e
        for e in case.exits
        if e not in exits and not e.names and e.exit_type == "SYSTEM_ERROR" and _CLOSED in e.detail
    ]


_CLOSED = "connection error code 2"


def _small_memory(crash: Crash) -> tuple[Entity, ...]:
    """Findings about /dev/shm: a write to a mapped page that cannot be backed raises SIGBUS."""
    machines = {e.source.node for e in crash.events}
    found = (store.PLACE, store.SHRUNK, *(f"shm:{node}" for node in sorted(machines)))
    return tuple(Entity("store", value) for value in found)


def _lost_raylet(case: Case, exit_: WorkerExit) -> bool:
    """Whether the worker had lost its raylet before: then the crash is part of the node's end."""
    losses = case.about(Entity("worker", exit_.worker), "raylet.seen_dead")
    # Agents quote the end of the raylet's log, which names other workers.
    own = (e for e in losses if evidence.worker_of(e) == exit_.worker)
    return any(e.at is None or exit_.at is None or e.at <= exit_.at for e in own)


def _what(crash: Crash) -> str:
    """`SIGSEGV in brightness() (frames.py:32), native function FLOAT_pairwise_sum`."""
    text = crash.signal
    if deep := crash.recursive:
        calls = sum((f.file, f.function) == (deep.file, deep.function) for f in crash.frames)
        return f"{text} in {deep}, probably a stack overflow: {calls} of the last {len(crash.frames)} calls are its own"
    if crash.place:
        text += f" in {crash.place}"
    if crash.symbol and text == BEHEADED:
        return f"a fatal error in native function {crash.symbol}, of whose report the text contains only a part"
    if crash.symbol:
        text += f", native function {crash.symbol}"
    words = spelled(crash.words) if crash.words.startswith("Assertion") else crash.words
    return f"{text} ({words})" if words else text


def _links(crash: Crash, label: str) -> Iterator[Link]:
    if crash.said:
        yield Link(crash.said, f"{label} printed before it aborted: {crash.words}")
    if crash.handler:
        meaning = _MEANING.get(crash.signal, "native code crashed")
        yield Link(
            crash.handler, f"Ray's crash handler in {label} reports {crash.signal}: {meaning}"
        )
    if crash.python:
        yield Link(crash.python, _stack_shows(crash))
    if not (crash.handler or crash.python):
        first = crash.events[0]
        by = _REPORTED_BY.get(first.kind, "Python's list of modules ends the report of")
        by = "UCX's signal handler reports" if first["handler"] else by
        yield Link(first, f"{by} {crash.signal}")


_FRAMES = ("crash.frames", "crash.native")
_REPORTED_BY = {
    "crash.shell": "the shell reports",
    **dict.fromkeys(_FRAMES, "the process printed this native frame of"),
}


def _stack_shows(crash: Crash) -> str:
    text = "Python reports the crash, without a frame of the thread that crashed"
    if crash.frames:
        top, place = crash.frames[0], crash.place
        text = f"the Python stack ends in {top}"
        if place and place != top:
            text += f", called from {place}"
    if crash.module_count:
        others = ", ".join(crash.modules[:5])
        text += f". {evidence.many(crash.module_count, 'extension module')} were loaded"
        if others:
            text += f"; of these, {others} {'does' if len(crash.modules) == 1 else 'do'} not come with Ray"
    return text


# ---------------------------------------------------------------- the driver


def _driver_finding(case: Case, job: str, crash: Crash) -> Finding:
    first = crash.handler or crash.events[0]
    known = case.job(job)
    pid = known.driver_pid or first.pid
    late = known.ended is not None and first.at is not None and first.at > known.ended + first.slack
    severity: Severity = "warning" if late else "error"
    when = ", after its job had ended" if late else ""
    # Of a report without Python's stack, a console does not show which process printed it.
    is_drivers = bool(job or crash.python or not crash.handler) or not first.source.is_excerpt
    name = "driver" if is_drivers else "process"
    name = f"{name} (pid {pid})" if pid is not None else name
    return Finding(
        f"{'The' if is_drivers else 'A'} {name} crashed{when}: {_what(crash)}",
        tuple(_links(crash, f"the {name}")),
        explains=() if late or not job else (Entity("job", job),),
        subjects=(Subject("job", job or None, None, pid),),
        severity=severity,
        remedies=_remedies(crash),
        covers=crash.events,
    )


# ---------------------------------------------------------------- remedies


def _remedies(crash: Crash) -> tuple[Remedy, ...]:
    if deep := crash.recursive:
        return (_bound(deep.function), _reproduce(crash))
    if crash.words.startswith("OMP: ") or crash.symbol.startswith("__kmp_"):
        return (_OPENMP, _reproduce(crash), _core_file(crash))
    return (_reproduce(crash), *_by_signal(crash), _library(crash), _core_file(crash))


_OPENMP = Remedy(
    "Install packages that share one OpenMP library: OpenMP aborts a process that loads two",
    (
        "find $(python -c 'import sys; print(sys.prefix)') -name 'lib*omp*' -not -name '*.pyc'   # which packages bring one",
        "conda install nomkl   # conda: the packages then share one",
    ),
    risk="disruptive",
)


def _bound(function: str) -> Remedy:
    return Remedy(
        f"Bound the recursion of {function}(), or write it as a loop: each call takes a part of the C stack",
        (
            "grep -rn setrecursionlimit .   # a raised limit lets Python overflow the stack instead of raising RecursionError",
            "ulimit -s   # the size of the stack in KiB; a thread has a stack of its own (threading.stack_size)",
        ),
    )


def _reproduce(crash: Crash) -> Remedy:
    place = crash.place
    if place is None or not place.is_user_code or not place.function.isidentifier():
        return Remedy(
            "Reproduce the crash without Ray",
            ("python -X faulthandler your_script.py   # the same call, without Ray",),
            doc=_DEBUG,
        )
    # An import of the function may not work: it may be a method, and `@ray.remote` hides the plain function.
    return Remedy(
        f"Reproduce the crash of {place.function}() without Ray, with the same input",
        (
            paste.shell(
                "python -X faulthandler your_script.py   # a script that calls {function} with that input: line {line} of {file}",
                function=place.function,
                file=place.file,
                line=place.line,
            ),
        ),
        doc=_DEBUG,
    )


def _by_signal(crash: Crash) -> tuple[Remedy, ...]:
    if crash.signal == "SIGBUS":
        return (
            Remedy(
                "Check whether the shared memory is full or too small",
                (
                    "df -h /dev/shm",
                    "docker run --shm-size=SIZE   # plus your other options. SIZE: a third of the memory. Kubernetes: an emptyDir with medium: Memory",
                    "export RAY_preallocate_plasma_memory=1   # on every node, before ray start, or before your program if it starts Ray. A store without enough memory then fails when Ray starts, not later",
                ),
                risk="disruptive",
            ),
        )
    if crash.signal == "SIGILL":
        return (
            Remedy(
                "Install a build for this CPU: compare its flags with those of the build machine",
                (
                    "lscpu | grep -iE 'model name|flags'   # on this node and where the package was built",
                ),
            ),
        )
    return ()


def _library(crash: Crash) -> Remedy:
    top = crash.frames[0] if crash.frames else None
    if top and "/ctypes/" in top.file:
        return Remedy(
            f"Check the ctypes call in {crash.place or top}: its pointers, argtypes and restype, and whether the memory that they point to is still allocated"
        )
    blamed = [m for m in crash.modules if top and f"-packages/{m}/" in top.file]
    if not blamed:
        return Remedy(
            f"Upgrade or roll back the native library that {top} calls"
            if top
            else f"Upgrade or roll back the native library that contains {crash.symbol}"
            if crash.symbol
            else "Upgrade or roll back the native library that crashed",
            (
                "python -m pip list   # compare with an environment without the crash",
                "python -m pip check",
            ),
        )
    return Remedy(
        f"Reinstall or upgrade {blamed[0]}, whose native code the last Python frame called",
        (
            "python -m pip check",
            paste.shell(
                "python -m pip install --upgrade --force-reinstall {packages:package}",
                packages=blamed,
            ),
        ),
        risk="disruptive",
    )


def _core_file(crash: Crash) -> Remedy:
    if crash.is_macos:
        return Remedy(
            "Get the native stack from the report that macOS writes about the crash",
            (
                "ls -t ~/Library/Logs/DiagnosticReports/*.ips | head -3   # of the process and the time of the crash",
            ),
        )
    return Remedy(
        "Get the native stack from a core file",
        (
            "ulimit -c unlimited   # in the shell in which you then run ray start (or your program, if it starts Ray itself)",
            "cat /proc/sys/kernel/core_pattern   # where core files go: a file, or a program such as systemd-coredump",
            "gdb -batch -ex 'thread apply all bt' $(which python) CORE_FILE",
        ),
        risk="disruptive",
    )


# ------------------------------------------------------------------ examples


_W = "cd09fc46897e18918275a6d03cc3a6abc2becabe5e0fd27a533d35a7"
_ERR = f"logs/worker-{_W}-ffffffff-129.err"
_EXIT = (
    f"[2026-11-21 07:55:33,517 W 8 8] (gcs_server) gcs_worker_manager.cc:55: {WORKER_EXIT.sample}"
)
_GUESSES = " (3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors.\n"
_STACK = (
    "Fatal Python error: Segmentation fault\n\nStack (most recent call first):\n"
    '  File "/venv/lib/python3.11/site-packages/numpy/_core/_methods.py", line 49 in _sum\n'
    '  File "/app/frames.py", line 32 in brightness\n'
    '  File "/venv/lib/python3.11/site-packages/ray/_private/worker.py", line 847 in main_loop\n\n'
    "Extension modules: msgpack._cmsgpack, ray._raylet, numpy._core._multiarray_umath (total: 3)\n"
)
_TOP = '  File "/venv/lib/python3.11/site-packages/numpy/_core/_methods.py", line 49 in _sum\n'
_DEEP = "".join(
    f'  File "/app/pages.py", line {27 if n % 5 else 44} in {"common" if n % 5 else "shared"}\n'
    for n in range(1, 95)
)
_REPORT = (
    ":job_id:01000000\n:task_name:decode\n*** SIGSEGV received at time=1795247733 on cpu 0 ***\n"
    "[2026-11-21 07:55:33,507 E 129 129] logging.cc:361: *** SIGSEGV received at time=1795247733 on cpu 0 ***\n"
    + _STACK
)

_BUS = "(Loader pid=129) *** SIGBUS received at time=1795247733 on cpu 3 ***\n(Loader pid=129) Fatal Python error: Bus error\n"
_DIED = f"(raylet) {WORKER_DIED.sample.replace('Worker PID: 379', 'Worker PID: 129')}\n"
_NATIVE = (
    "/venv/site-packages/tok/_tok.so(_ZN3tok4LoadEv+0x47) [0x7f82159c84b7] tok::Load() [repeated 3x across cluster]",
    "ray::Tokens.init(+0x1f9298) [0x55b29e245298] cfunction_call [repeated 3x across cluster]",
    "ray::Tokens.init(_PyEval_EvalFrameDefault+0x70a) [0x55b29e22fdda] _PyEval_EvalFrameDefault [repeated 21x across cluster]",
)
_SMALL = "WARNING: The object store is using /tmp instead of /dev/shm because /dev/shm has only 67108864 bytes available.\n"

_HANDLER_LINE = "*** SIGSEGV received at time=1795247733 on cpu 0 ***"
_PC_LINE = "PC: @     0x7f1a0eb14923  (unknown)  raise"

EXAMPLES: tuple[Example, ...] = (
    Example(
        "a task's worker crashes inside numpy",
        {_ERR: _REPORT, "logs/gcs_server.out": _EXIT + _GUESSES, "logs/raylet.out": ""},
        says=(
            "SIGSEGV",
            "brightness() (frames.py:32)",
            "numpy",
            "python -X faulthandler your_script.py",
        ),
    ),
    console(
        "a thread of native code crashes: Python shows no frame, and the console ends",
        "".join(
            f"(Solver pid=80705) {line}\n"
            for line in (
                "*** SIGSEGV received at time=1795247733 ***",
                "[2026-11-21 07:55:33,434 E 80705 1008238] logging.cc:361: *** SIGSEGV received at time=1795247733 ***",
                "Fatal Python error: Segmentation fault",
                "",
                "Stack (most recent call first):",
                "<no Python frame>",
            )
        ),
        says=("Solver", "SIGSEGV"),
    ),
    Example(
        "a recursion overflows the stack, in whichever native function that is",
        {_ERR: _REPORT.replace(_TOP, _DEEP), "logs/gcs_server.out": _EXIT, "logs/raylet.out": ""},
        says=(
            "common() (pages.py:27), probably a stack overflow: 76 of the last 96",
            "Bound the recursion of common()",
        ),
    ),
    Example(
        "the driver itself crashes",
        {
            f"logs/python-core-driver-01000000{'f' * 48}_7.log": "[2026-11-21 08:07:02,476 E 7 7] logging.cc:474: "
            "*** SIGSEGV received at time=1795248422 on cpu 1 ***\n",
            "driver.log": _STACK,
            "logs/gcs_server.out": "[2026-11-21 08:06:50,476 I 8 8] (gcs_server) gcs_job_manager.cc:117: "
            "Registering job. job_id=01000000 driver_pid=7\n",
            "logs/raylet.out": "",
        },
        says=("The driver (pid 7) crashed", "brightness() (frames.py:32)"),
    ),
    console(
        "only the driver's output is available",
        "(raylet) A worker died or was killed while executing a task by an unexpected system error. To "
        "troubleshoot the problem, check the logs for the dead worker. RayTask ID: 00 Worker ID: "
        f"{_W} Node ID: {'a' * 56} Worker IP address: 10.0.0.2 Worker port: 1 Worker PID: 129 Worker exit type: "
        "SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.\n"
        + "".join(f"(decode pid=129) {line}\n" for line in _STACK.splitlines()),
        says=("SIGSEGV", "frames.py:32"),
    ),
    console(
        "only Python's reports are echoed, of which Ray prints one",
        "(Shard pid=412) Fatal Python error: Segmentation fault [repeated 3x across cluster]\n"
        "(Shard pid=412)  [repeated 6x across cluster]\n"
        "(Shard pid=412) Extension modules: msgpack._cmsgpack, ray._raylet, torch._C (total: 3) [repeated 3x across cluster]\n",
        says=("3 workers of Shard crashed: SIGSEGV", "native library"),
    ),
    console(
        "Ray's handler reports a SIGTERM as it reports a crash",
        "*** SIGTERM received at time=1795465804 on cpu 0 ***\nPC: @     0x7f01516a3f16  (unknown)  (unknown)\n"
        "    @     0x7f015165a050  (unknown)  (unknown)\n[2026-11-23 20:30:04,201 E 7 7] logging.cc:474: "
        "*** SIGTERM received at time=1795465804 on cpu 0 ***\n[2026-11-23 20:30:04,201 E 7 7] logging.cc:474: "
        "    @     0x7f015165a050  (unknown)  (unknown)\n",
    ),
    console(
        "UCX's handler reports the crash, in a console",
        "[gpu-3:74387:0:74387] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x7eff867f)\n"
        "==== backtrace (tid:  74387) ====\n 0  /usr/lib/libucs.so.0(ucs_handle_error+0x10c) [0x7eced5f1a08c]\n",
        says=("The driver crashed: SIGSEGV",),
    ),
    console(
        "a supervisor of processes goes on after the crash of one",
        "Caught signal 11 (Segmentation fault: address not mapped to object at address 0x7eff867f)\n"
        "child 3 was started again\nstep 12\n",
    ),
    console(
        "only Ray's handler is echoed",
        "(Shard pid=412, ip=10.0.0.7) [2026-11-21 08:07:02,476 E 412 430] logging.cc:497: "
        "*** SIGABRT received at time=1795248422 on cpu 1 ***\n",
        says=("Shard (pid 412)", "SIGABRT"),
    ),
    console(
        "a native thread crashed: the frames in Python's report are those of other threads",
        "[2026-11-21 08:07:02,476 E 7 7] logging.cc:474: *** SIGSEGV received at time=1795248422 on cpu 1 ***\n"
        "Fatal Python error: Segmentation fault\n\nThread 0x00007f1a0eb14700 (most recent call first):\n"
        '  File "/venv/lib/python3.11/site-packages/ray/_private/worker.py", line 947 in print_logs\n'
        '  File "/usr/lib/python3.11/threading.py", line 982 in run\n',
        says=("The driver (pid 7) crashed: SIGSEGV", "your_script.py"),
    ),
    console(
        "an actor prints crash reports that it reads",
        "(Reader pid=412) Fatal Python error: Segmentation fault\n"
        "(Reader pid=412) *** SIGSEGV received at time=1795248422 on cpu 1 ***\n"
        "(Reader pid=412) Extension modules: numpy._core._multiarray_umath (total: 1)\n",
    ),
    console(
        "only the output of a crashed driver is available",
        "[2026-11-21 08:07:02,476 E 7 7] logging.cc:474: *** SIGSEGV received at time=1795248422 on cpu 1 ***\n"
        + _STACK,
        says=("The driver (pid 7) crashed", "frames.py:32"),
    ),
    console(
        "a SIGBUS in a console that kept neither header nor stack",
        _BUS + _DIED,
        says=("The worker of Loader (pid 129) crashed: SIGBUS", "df -h /dev/shm"),
    ),
    console(
        "a console that kept one line of the report",
        _BUS.partition("\n")[0] + "\n" + _DIED,
        says=("The worker of Loader (pid 129) crashed: SIGBUS",),
    ),
    console(
        "the same, after Ray had found /dev/shm too small",
        f"2026-11-21 07:55:01,100\tWARNING services.py:2022 -- {_SMALL}{_BUS}{_DIED}",
        roots=("object-store-on-disk",),
        consequences=("worker-native-crash",),
    ),
    console(
        "a SIGBUS in a console that does not report the end of the process",
        "(Loader pid=129, ip=10.0.0.2) [2026-11-21 07:55:33,507 E 129 140] logging.cc:361: *** SIGBUS "
        "received at time=1795247733 on cpu 3 ***\n(Loader pid=129, ip=10.0.0.2) Fatal Python error: Bus error\n",
        says=("Loader (pid 129) crashed: SIGBUS",),
    ),
    console(
        "a console in which a task prints a report, and a process that ended for another reason",
        "(triage pid=12) *** SIGBUS received at time=1795247733 on cpu 3 ***\n"
        "(triage pid=12) most crash reports end in Fatal Python error: Bus error\n" + _DIED,
        roots=("worker-vanished",),
    ),
    Example(
        "a task prints a crash report from an archive and is then killed",
        {
            _ERR: "*** SIGSEGV received at time=1795247733 on cpu 0 ***\nSegmentation fault (core dumped)\n"
            "Fatal Python error: Segmentation fault\n",
            "logs/gcs_server.out": _EXIT + _GUESSES,
            "logs/raylet.out": "",
        },
        roots=("worker-vanished",),
    ),
    Example(
        "a driver's SIGTERM report comes from Ctrl-C or `ray job stop`",
        {
            f"logs/python-core-driver-01000000{'f' * 48}_7.log": "[2026-11-21 08:07:02,476 E 7 7] logging.cc:474: "
            "*** SIGTERM received at time=1795248422 on cpu 1 ***\n",
            **QUIET_LOGS,
        },
    ),
    console(
        "a console with the handler's report and its first frame",
        "(Party pid=379) *** SIGSEGV received at time=1795247733 on cpu 9 ***\n"
        f"(raylet) {WORKER_DIED.sample}\n(Party pid=379) PC: @     0x7fd011069d5e  (unknown)  link::Context::NextId()\n",
        says=("Party (pid 379) crashed: SIGSEGV",),
    ),
    console(
        "a console that begins with the handler's report and shows no end",
        "(Trial pid=379) *** SIGSEGV received at time=1795247733 on cpu 22 ***\n(Trial pid=379) PC: @     "
        "0x7fd011069d5e  (unknown)  link::Context::NextId()\n(Trial pid=379)     @     0x7fd011069d5e  3680  (unknown)\n",
        says=("Trial (pid 379) crashed: SIGSEGV",),
    ),
    console(
        "a driver's console with the handler's report and its first frame",
        "*** SIGABRT received at time=1795247733 on cpu 9 ***\n"
        "PC: @     0x7fd011069d5e  (unknown)  raise\n    @     0x7fd011069d5e  3680  (unknown)\n",
        says=("crashed: SIGABRT",),
    ),
    console(
        "a console that begins within Python's report",
        '(Trial pid=379)   File "/usr/lib/python3.11/site-packages/ray/_private/worker.py", line 953 in main_loop\n'
        "(Trial pid=379) \n(Trial pid=379) Extension modules: msgpack._cmsgpack, ray._raylet, pyarrow.lib (total: 3)\n",
        says=(
            "Trial (pid 379) crashed: a fatal error, of whose report the text contains only the end",
        ),
    ),
    console(
        "a console shows only the first line of Python's report",
        "(WorkerDict pid=412, ip=10.0.0.7) Fatal Python error: Aborted\n(WorkerDict pid=412, ip=10.0.0.7) \n"
        'Traceback (most recent call last):\n  File "/app/main.py", line 153, in main\n    ray.get(task)\n',
        says=("WorkerDict (pid 412) crashed: SIGABRT",),
    ),
    console(
        "a task prints such a line, and goes on",
        "(audit pid=12) Fatal Python error: Aborted\n(audit pid=12) 3 of 9 reports read\n",
    ),
    console(
        "a console that ends within a frame that has lost its indentation",
        "(WorkerDict pid=412) Fatal Python error: Floating point exception\n(WorkerDict pid=412) \n"
        '(WorkerDict pid=412) Stack (most recent call first):\n(WorkerDict pid=412)   File "/app/embed.py", line 40 in apply\n'
        '(WorkerDict pid=412) File "/app/mod',
        says=("WorkerDict (pid 412) crashed: SIGFPE in apply()",),
    ),
    console(
        "the list of modules is cut off",
        '(Trial pid=379)   File "/usr/lib/python3.11/site-packages/ray/_private/worker.py", line 953 in main_loop\n'
        "(Trial pid=379) \n(Trial pid=379) Extension modules: msgpack._cmsgpack, google._upb._mess\n",
        says=(
            "Trial (pid 379) crashed: a fatal error, of whose report the text contains only the end",
        ),
    ),
    console(
        "the shell reports how the program ended",
        "2026-11-21 07:34:50,739\tINFO worker.py:1843 -- Started a local Ray instance.\n(load pid=12) 3 of 9\n"
        "train.sh: line 12: 12345 Segmentation fault      (core dumped) python train.py\n",
        says=("The driver", "crashed: SIGSEGV"),
    ),
    console(
        "the shell reports a crash of another program, and the driver continues",
        "sh: line 1: 12345 Segmentation fault      (core dumped) ./convert a.png\nconverted 8 of 9\n"
        "Extension modules: numpy, scipy are built\n",
    ),
    console(
        "a program prints a line about a report, without a frame",
        "*** SIGSEGV received at time=1795247733 on cpu 9 ***\nreports read: 1\n",
    ),
    console(
        "another process prints a report than the one that died",
        "(triage pid=12) *** SIGSEGV received at time=1795247733 on cpu 9 ***\n(triage pid=12) PC: @     "
        f"0x7fd011069d5e  (unknown)  f()\n(raylet) {WORKER_DIED.sample}\n",
        roots=("worker-vanished",),
    ),
    console(
        "what other shells than bash print, at the end of a paste",
        "$ python3 train.py\nfish: Job 1, 'python3 train.py' terminated by signal SIGSEGV (Address boundary error)\n",
        says=("SIGSEGV",),
    ),
    Example(
        "zsh reports the end of a job, at the end of a paste",
        {
            "driver.log": "2026-11-21 07:34:50,739\tINFO worker.py:1843 -- Started a local Ray instance.\n"
            "[1]    12345 segmentation fault (core dumped)  python train.py --epochs 3\n"
        },
        roots=("worker-native-crash",),
        says=("The driver", "crashed: SIGSEGV"),
    ),
    console(
        "a build tool that quotes such a line and continues",
        "zsh: segmentation fault  python train.py\nthe line above is from ticket 4711\n",
    ),
    console(
        "programs that quote reports and continue",
        f"(sup pid=4) {_HANDLER_LINE}\n(sup pid=4) {_PC_LINE}\n(sup pid=4) child started again\n"
        f"{_HANDLER_LINE}\n{_PC_LINE}\nreport quoted above was from ticket 4711\nall tests passed\n",
    ),
    console(
        "a paste that begins within the native stack of a worker that OpenMP aborted",
        "".join(
            f"(Booster pid=51) [2026-11-21 07:34:44,332 E 51 458] logging.cc:317:     @     {frame}\n"
            for frame in (
                "0x700008484ba0  (unknown)  0x0",
                "0x7fff6d266808  (unknown)  abort",
                "0x1b11fa184  (unknown)  __kmp_abort_process",
            )
        ),
        says=("Booster (pid 51) crashed: SIGABRT, native function __kmp_abort_process",),
    ),
    console(
        "a paste that begins within the stacks that Ray prints for two workers",
        "".join(
            f"(Trainer pid={pid}, ip=10.0.0.2) /venv/site-packages/ray/_raylet.so(+0x9f330c) [0x7ffff662e30c] ray::core::TaskReceiver::HandleTask()\n"
            for pid in (51, 52)
        ),
        says=(
            "2 workers of Trainer crashed: a fatal error, of whose report the text contains only the end",
        ),
    ),
    console(
        "Paddle's handler of signals, and the console ends within its stack",
        "(Trainer pid=51) C++ Traceback (most recent call last):\n(Trainer pid=51) ----------\n(Trainer pid=51) 0   ray::core::CoreWorker::Run()\n",
        says=("Trainer (pid 51) crashed: a fatal signal, whose name the text does not contain",),
    ),
    console(
        "two OpenMP libraries in one process",
        "OMP: Error #15: Initializing libiomp5, but found libomp already initialized.\n",
        says=("crashed: SIGABRT (OMP: Error", "one OpenMP library"),
    ),
    console(
        "an assertion of a C library",
        "python: solver.c:12: solve: Assertion `n > 0 && m' failed.\n",
        says=("SIGABRT (Assertion",),
    ),
    console(
        "a program that logs such an assertion of a program that it started, and continues",
        "helper: solver.c:12: solve: Assertion `n > 0' failed.\nstarted the helper again\nloss 0.1\n",
    ),
    console(
        "a paste shows only the first line of Python's report",
        "(pid=7) Fatal Python error: Bus error\n(pid=7) \n",
        says=("crashed: SIGBUS",),
    ),
    *(
        console(
            f"a native stack without its head, {shape}",
            "".join(f"{before}{frame}\n" for frame in _NATIVE),
            says=(
                "The worker of Tokens (pid 51) crashed: a fatal error in native function tok::Load()",
            ),
        )
        for shape, before in (
            ("behind the prefix of its process", "(Tokens pid=51, ip=10.0.0.2) "),
            (
                "behind a stamp in other brackets",
                "【2026-11-21 16:32:05】(Tokens pid=51, ip=10.0.0.2) ",
            ),
        )
    ),
    console(
        "a program prints a frame of a library that reads such reports",
        f"(Tokens pid=51) {_NATIVE[0]}\n(Tokens pid=51) is frame 1 of the report\nepoch 2\n",
    ),
)

"""vLLM's engine waited for its GPU workers until the call timed out.

## What you see
vLLM prints `No available shared memory broadcast block found in 60 seconds` every minute, then `TimeoutError: RPC call
to execute_model timed out` (or `sample_tokens`). The server reports `EngineDeadError: EngineCore encountered an issue`.

## Why
The engine sends each step to all workers through a ring in shared memory. One worker does not accept or answer a step:
it is hung in a collective operation, compiles kernels, captures CUDA graphs, or has exited. After
`VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS` (300 s; a fixed 40 s in vLLM 0.8) the engine gives up and exits. `EngineDeadError`
itself contains no reason.

The first message alone can be harmless: it also appears once a minute while workers load weights or compile.

## Confirm
- Run `py-spy dump --pid PID` for all workers while the message repeats: the worker with a different stack blocks the
  others.
- Run `nvidia-smi dmon -s u`: a GPU with `sm` near 100 and `mem` near 0 waits in a collective operation. Inspect the
  worker of a GPU with `sm` near 0.
- The workers' own logs, on every node, may contain an error before the first message.

## Fix
Find the worker whose stack differs, and fix what it waits for. If the GPUs have no peer-to-peer access, disable vLLM's
own all-reduce, which hangs there, and NCCL's peer-to-peer transport. If the workers are still compiling, raise the
limit or turn compilation off.

    NCCL_P2P_DISABLE=1 vllm serve MODEL --disable-custom-all-reduce   # no peer-to-peer access
    VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=1800 vllm serve MODEL          # raise the limit
    vllm serve MODEL --enforce-eager                                  # do not compile

## Not this when
- the engine continues after the message (a request is answered, the warm-up ends).
- the error is `RayChannelTimeoutError` (`compiled-graph-timeout`).
- the engine ended for another reason: its own traceback then precedes `EngineDeadError`. If the log in the capture
  begins after that traceback, the report only says that an engine ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import RAY_EXCEPTION, WORKER_DIED, WORKER_EXIT
from raydoctor.model import paste
from raydoctor.model.text import duration
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import engine
from raydoctor.rules.shared import failures as user_errors
from raydoctor.rules.shared import gpu_fault as gpu
from raydoctor.rules.shared.failures import program
from raydoctor.rules.shared.task_error import error_entities

_DOC = "https://docs.vllm.ai/en/latest/usage/troubleshooting.html"
_OUTPUT = (*gpu.OUTPUT, "serve")
_LIMIT = 300
"""Seconds: the default of `VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS` in vLLM 0.9.2 to 0.33 (`envs.py`)."""
_REPEATED = 2
"""Minimum of messages of one process without progress between them: a single one is usual while workers compile.
`[repeated 2x across cluster]` may represent two processes, so it counts as one message."""

WAITING = Signal(
    "vllm.waiting",
    " block found in ",
    r"(?:^|\] )No available (?:shared memory broadcast )?block found in (?P<seconds>\d+) seconds?\b",
    _OUTPUT,
    "No available shared memory broadcast block found in 60 seconds. This typically happens when some processes are hanging or doing "
    "some time-consuming work (e.g. compilation, weight/kv cache quantization).",
)
STANDS = Signal(
    "vllm.stands",
    "Avg generation throughput: 0.0 tokens/s, Running: ",
    r"Avg generation throughput: 0\.0 tokens/s, Running: (?P<running>[1-9]\d{0,8}) reqs?\b",
    _OUTPUT,
    "Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, Running: 3 reqs, Waiting: 0 reqs",
)
"""The API server's statistics while no running request gets a token. During the start, no request runs."""
TIMED_OUT = Signal(
    "vllm.timeout",
    "TimeoutError: RPC call to ",
    r"(?:^|\] ) *TimeoutError: RPC call to (?P<method>\S.{0,200}?) timed out",
    _OUTPUT,
    "TimeoutError: RPC call to sample_tokens timed out.",
)
DEAD = Signal(
    "vllm.dead",
    "EngineDeadError: EngineCore encountered an issue",
    r"(?:^|\] ) *(?:[\w.]+\.)?EngineDeadError: EngineCore encountered an issue",
    _OUTPUT,
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
)
WATCHDOG = Signal(
    "sglang.watchdog",
    "atchdog timeout (self.watchdog_timeout=",
    r"(?:^|\] )(?:(?P<process>\w{1,40}) w|W)atchdog timeout \(self\.watchdog_timeout=(?P<seconds>\d{1,9}(?:\.\d{1,9})?)(?:, self\.soft=False)?\)$",
    _OUTPUT,
    "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
    symptom=True,
)
"""SGLang 0.4 to 0.5 (`srt/utils/watchdog.py`): a step took longer, and the server ends."""
START_TIMED_OUT = (
    Signal(
        "vllm.start_timeout",
        "TimeoutError: Timed out waiting for ",
        r"(?:^|\] )TimeoutError: Timed out waiting for (?:new )?engine core processes to start\.[^\n]{0,200}? Waited (?P<seconds>\d{1,9})s",
        _OUTPUT,
        "TimeoutError: Timed out waiting for engine core processes to start. This is often caused by slow weight loading for large "
        "models. Waited 600s (configured by VLLM_ENGINE_READY_TIMEOUT_S).",
    ),
    Signal(
        "vllm.start_timeout",
        "Did not receive response from front-end process within ",
        r"(?:^|\] )RuntimeError: Did not receive response from front-end process within (?P<minutes>\d{1,5}) minutes",
        _OUTPUT,
        "RuntimeError: Did not receive response from front-end process within 5 minutes",
    ),
)
ITERATION = Signal(
    "vllm.iteration",
    "Engine iteration timed out. This should never happen!",
    r"(?:^|\] )Engine iteration timed out\. This should never happen!",
    _OUTPUT,
    "Engine iteration timed out. This should never happen!",
    symptom=True,
)
"""vLLM 0.4 to 0.10 (`engine/async_llm_engine.py`): a step took longer than VLLM_ENGINE_ITERATION_TIMEOUT_S, and the engine ends."""
CONTINUES = (
    Signal(
        "vllm.continues",
        "Avg generation throughput: ",
        r"Avg generation throughput: (?!0\.0 )\d{1,20}(?:\.\d{1,20})? tokens/s",
        _OUTPUT,
        "Engine 000: Avg prompt throughput: 12.1 tokens/s, Avg generation throughput: 84.3 tokens/s, Running: 2 reqs, Waiting: 0 reqs",
    ),
    Signal(
        "vllm.continues",
        "init engine (profile, create kv cache, warmup model) took ",
        r"init engine \(profile, create kv cache, warmup model\) took ",
        _OUTPUT,
        "init engine (profile, create kv cache, warmup model) took 124.16 seconds",
    ),
    Signal(
        "vllm.continues",
        "Application startup complete",
        r"Application startup complete\.",
        _OUTPUT,
        "Application startup complete.",
    ),
)


@rule(
    tier="root",
    severity="error",
    rank=39,
    explains=("program", "task-error"),
    caused_by=("gpu-fault", "process", "worker"),
    looks_for=(
        *(WAITING, STANDS, TIMED_OUT, DEAD, *CONTINUES, WATCHDOG, ITERATION, *START_TIMED_OUT),
        *(*gpu.SIGNALS, *user_errors.SIGNALS, RAY_EXCEPTION, WORKER_EXIT, WORKER_DIED),
    ),
)
def vllm_engine_stalled(case: Case) -> Iterator[Finding]:
    """One finding for all calls that timed out; else a warning for an engine that still waits."""
    waiting = _unanswered(case)
    timeouts = case.of(TIMED_OUT.kind)
    if timeouts or waiting:
        yield _finding(case, timeouts, waiting)
    elif evidence.is_console(case) and (dead := case.of(DEAD.kind)) and not _has_own_error(case):
        yield _ended(case, dead)
    if hung := case.of(WATCHDOG.kind):
        yield _hung(case, hung)
    if (slow := case.of(ITERATION.kind)) and not (timeouts or waiting):
        yield _slow(case, slow)
    late = [e for e in case.of(START_TIMED_OUT[0].kind) if not evidence.goes_on(case, e)]
    if late and not (timeouts or waiting):
        yield _late(case, late)


def _hung(case: Case, events: Sequence[Event]) -> Finding:
    """A step of SGLang that its watchdog gave up on."""
    first = events[0]
    return Finding(
        f"An SGLang server ended because a step of its scheduler took longer than {first['seconds']} s: a rank is hung or too slow",
        (Link(first, "the watchdog found the scheduler in the same step"),),
        explains=(),
        caused_by=gpu.earlier(case, first),
        subjects=(Subject("process", None, first["who"] or None, first.pid, first["ip"] or None),),
        count=1,
        remedies=(
            Remedy(
                "Compare the stacks of the ranks: SGLang prints them if py-spy is installed, and the rank that differs is behind",
                (
                    "pip install py-spy",
                    "pgrep -f sglang::scheduler | xargs -n1 py-spy dump --pid   # on each node, while the server hangs",
                ),
            ),
            Remedy(
                "If steps need more time (long prompts, compilation), raise the limit",
                (paste.shell("python -m sglang.launch_server --watchdog-timeout {longer}   # plus your other options", longer=6 * _LIMIT),),
                risk="disruptive",
            ),
        ),
        covers=tuple(events),
    )  # fmt: skip


def _slow(case: Case, events: Sequence[Event]) -> Finding:
    """A step of an engine of version 0 that did not end in time."""
    first = events[0]
    source = first.source
    return Finding(
        "A vLLM engine ended because a step did not end within its time limit: a worker is hung or too slow",
        (Link(first, "the engine gives up on the step"),),
        explains=tuple(program(e) for e in case.endings.values() if e.source is source),
        caused_by=gpu.earlier(case, first),
        subjects=(Subject("process", None, first["who"] or None, first.pid, first["ip"] or None),),
        count=1,
        remedies=(
            Remedy(
                "Find the worker that blocks the others, while the engine waits",
                (
                    "pgrep -f 'VLLM::|RayWorker' | xargs -n1 py-spy dump --pid   # on each node: compare the stacks",
                    "nvidia-smi dmon -s u   # a GPU with sm near 0 among busy ones belongs to that worker",
                ),
                doc=_DOC,
                finds_cause=True,
            ),
            Remedy(
                "If steps need more time (long prompts, slow links), raise the limit of 60 s",
                ("export VLLM_ENGINE_ITERATION_TIMEOUT_S=300   # before the server starts",),
                doc=_DOC,
            ),
        ),
        covers=(
            *events,
            *(e for e in case.of("log.traceback", "log.error", "driver.exception") if e.source is source and _is_of_engine(e)),
        ),
    )  # fmt: skip


def _is_of_engine(event: Event) -> bool:
    return any(words in event.text for words in ("engine", "Engine", "TimeoutError"))


def _late(case: Case, events: Sequence[Event]) -> Finding:
    """Processes of vLLM that waited for each other at the start."""
    first = events[0]
    if first["minutes"]:
        headline = f"vLLM did not start: an engine process got no answer from the API server within {first['minutes']} min"
    else:
        headline = (
            f"vLLM did not start: its engine processes were not ready within {first['seconds']} s"
        )
    return Finding(
        headline,
        (Link(first, "a process of vLLM stops waiting for the others"),),
        explains=(),
        caused_by=gpu.earlier(case, first),
        subjects=(Subject("process", None, first["who"] or None, first.pid, first["ip"] or None),),
        count=1,
        remedies=(
            Remedy(
                "Find what the processes do: load weights, compile, or wait for a node that did not start",
                ("pgrep -f VLLM:: | xargs -n1 py-spy dump --pid   # on each node, while vLLM starts",),
                doc=_DOC,
                finds_cause=True,
            ),
            Remedy(
                "If the weights load slowly, raise the limit, or keep them on a local disk",
                ("export VLLM_ENGINE_READY_TIMEOUT_S=1800   # before vllm serve starts",),
                doc=_DOC,
            ),
        ),
        covers=(*events, *(e for e in case.of("log.traceback") if e.source is first.source)),
    )  # fmt: skip


def _unanswered(case: Case) -> list[Event]:
    """The messages of the process that waited longest, if no later record shows progress.

    A single message counts if the API server reports before it that running requests get no token.
    """
    longest: list[Event] = []
    for path, events in evidence.grouped(case.of(WAITING.kind), lambda e: e.source.path).items():
        answered = max(
            (e.line for e in case.of(CONTINUES[0].kind) if e.source.path == path), default=0
        )
        late = [e for e in events if e.line > answered]
        standing = [e.line for e in case.of(STANDS.kind) if e.source.path == path]
        is_standing = any(answered < line < late[-1].line for line in standing if late)
        for of_one in evidence.grouped(late, lambda e: (e["who"], e.pid)).values():
            is_stalled = is_standing or len(of_one) >= _REPEATED
            if is_stalled and len(of_one) > len(longest):
                longest = of_one
    return longest


def _finding(case: Case, timeouts: Sequence[Event], waiting: Sequence[Event]) -> Finding:
    dead = case.of(DEAD.kind) if timeouts else []
    errors = [seen for seen in user_errors.failures(case) if engine.died(seen)] if timeouts else []
    first = (*waiting, *timeouts)[0]
    exits = engine.earlier_exits(case, (*timeouts, *waiting)[0], [])
    return Finding(
        _headline(timeouts, waiting),
        (
            *(Link(e, "the engine has waited a minute for its workers") for e in waiting[:1]),
            *(Link(e, f"the engine has waited {_waited(waiting)} in total") for e in waiting[-1:] if len(waiting) > 1),
            *(Link(e, f"the call of {e['method']} timed out") for e in timeouts[:1]),
            *(Link(e, "the engine ended because of the timeout") for e in dead[:1]),
            *(link for exit_ in exits[:1] for link in evidence.exit_links(exit_, most=1)),
        ),
        explains=error_entities(errors),
        caused_by=(*gpu.earlier(case, first), *evidence.exit_entities(exits)),
        subjects=(Subject("process", None, first["who"] or None, first.pid, first["ip"] or None),),
        count=max(1, len(timeouts)),
        severity="error" if timeouts else "warning",
        remedies=tuple(_remedies(waiting)),
        covers=(
            *timeouts,
            *case.of(WAITING.kind),
            *dead,
            *(e for e in case.of("driver.exception") if e["inner"] == "EngineDeadError" and timeouts),
            *(e for seen in errors for e in seen.records),
        ),
    )  # fmt: skip


def _has_own_error(case: Case) -> bool:
    """Whether the capture has another error that may have ended the engine."""
    errors = case.of("driver.exception", "log.traceback", *(s.kind for s in gpu.SIGNALS))
    return bool(case.exits) or any("EngineDeadError" not in e.message for e in errors)


def _ended(case: Case, dead: Sequence[Event]) -> Finding:
    """An engine that ended for a reason that the capture does not contain."""
    first = dead[0]
    errors = [seen for seen in user_errors.failures(case) if engine.died(seen)]
    return Finding(
        "A vLLM engine ended, and the capture contains only its clients' errors, not its own",
        (Link(first, "a client of the engine finds that it has ended"),),
        explains=error_entities(errors),
        subjects=(Subject("process", None, first["who"] or None, first.pid, first["ip"] or None),),
        remedies=(
            Remedy(
                "Find the engine's own error: it is above the first EngineDeadError of the whole log",
                ("grep -n -m1 -B80 EngineDeadError SERVER_LOG | grep -nE 'EngineCore|ERROR|Traceback'",),
                doc=_DOC,
            ),
        ),
        covers=(
            *dead,
            *(e for e in case.of("driver.exception", "log.traceback") if "EngineDeadError" in e.message),
            *(e for seen in errors for e in seen.records),
        ),
    )  # fmt: skip


def _headline(timeouts: Sequence[Event], waiting: Sequence[Event]) -> str:
    after = f" after at least {_waited(waiting)} without an answer" if waiting else ""
    if timeouts:
        return f"A vLLM engine ended because {timeouts[0]['method']} timed out{after}: a worker is hung or too slow"
    return f"A vLLM engine has waited at least {_waited(waiting)} for a worker that is hung or still compiling"


def _waited(waiting: Sequence[Event]) -> str:
    return duration(len(waiting) * int(waiting[0]["seconds"][:6]))


def _remedies(waiting: Sequence[Event]) -> Iterator[Remedy]:
    waited = len(waiting) * int(waiting[0]["seconds"][:6]) if waiting else 0
    longer = max(6 * _LIMIT, 2 * waited)
    yield Remedy(
        "Find the worker that blocks the others, while the engine waits",
        (
            "pgrep -f 'VLLM::|RayWorker' | xargs -n1 py-spy dump --pid   # on each node: compare the stacks",
            "nvidia-smi dmon -s u   # a GPU with sm near 0 among busy ones belongs to that worker",
        ),
        doc=_DOC,
    )
    yield Remedy(
        f"If the workers are still compiling, raise the limit from {_LIMIT} s to {longer} s, or turn compilation off",
        (
            paste.shell(
                "export VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS={longer}   # before vllm serve starts",
                longer=longer,
            ),
            "vllm serve MODEL --enforce-eager   # without compilation",
        ),
        risk="disruptive",
        doc=_DOC,
    )
    yield Remedy(
        "If it hangs at the first step on several GPUs without NVLink, avoid peer-to-peer access",
        ("NCCL_P2P_DISABLE=1 vllm serve MODEL --disable-custom-all-reduce",),
        risk="disruptive",
        doc=_DOC,
    )


# ------------------------------------------------------------------ examples

_SERVER = "(APIServer pid=812)"
_ENGINE = "(EngineCore_DP0 pid=2025)"
_WAIT = f"{_ENGINE} {WAITING.sample}\n"
_TIMEOUT = f"{_ENGINE} {TIMED_OUT.sample}\n"
_END = f"(APIServer pid=812) {DEAD.sample}\n"
_TASK = (
    "Traceback (most recent call last):\nray.exceptions.RayTaskError(EngineDeadError): ray::Generator.run() (pid=389, ip=10.0.0.2, "
    "actor_id=7dbdc85090b37cd39fb9e77001000000, repr=<generate.Generator object>)\n"
    '  File "/app/generate.py", line 49, in run\n    out = self.llm.generate(prompts)\n'
    f"{DEAD.sample}\n"
)
_FAULT = f"(Worker_TP1 pid=2091) {gpu.WATCHDOG.sample}\n"
_EXIT = (
    f"[2026-11-21 07:34:13,741 W 8 8] (gcs_server) gcs_worker_manager.cc:70: {WORKER_EXIT.sample}\n"
)

EXAMPLES: tuple[Example, ...] = (
    console(
        "the engine waits until its call times out",
        _WAIT * 4 + _TIMEOUT + _END + _TASK,
        says=("sample_tokens", "4 min", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=1800"),
    ),
    console(
        "the engine still waits when the log ends",
        _WAIT * 3,
        says=("3 min", "still compiling"),
        severity="warning",
    ),
    console(
        "the engine has waited once, while running requests get no token",
        f"{_SERVER} {STANDS.sample}\n{_WAIT}",
        says=("at least 60 s",),
        severity="warning",
    ),
    console(
        "no request runs",
        f"{_SERVER} {STANDS.sample.replace('3 reqs', '0 reqs')}\n{_WAIT}",
    ),
    console(
        "the requests get tokens again",
        f"{_SERVER} {STANDS.sample}\n{_WAIT}{_SERVER} {CONTINUES[0].sample}\n",
    ),
    console(
        "a GPU fault in a worker came first",
        _FAULT + _WAIT * 4 + _TIMEOUT + _END,
        roots=("gpu-fault",),
        consequences=("vllm-engine-stalled",),
    ),
    Example(
        "a worker died before",
        {
            "driver.log": f"(raylet) {WORKER_DIED.sample}\n" + _WAIT * 4 + _TIMEOUT,
            "logs/gcs_server.out": _EXIT,
            "logs/raylet.out": "",
        },
        roots=("worker-vanished",),
        consequences=("vllm-engine-stalled",),
    ),
    console(
        "a log that begins after the engine's own error",
        "ERROR 11-21 07:34:13 [async_llm.py:416] AsyncLLM output_handler failed.\n"
        "ERROR 11-21 07:34:13 [async_llm.py:416] Traceback (most recent call last):\n"
        'ERROR 11-21 07:34:13 [async_llm.py:416]   File "/venv/vllm/v1/engine/async_llm.py", line 375, in output_handler\n'
        f"ERROR 11-21 07:34:13 [async_llm.py:416] {DEAD.sample}\n",
        says=("contains only its clients' errors", "grep"),
    ),
    console(
        "a server quotes the error of another one",
        f"the other server printed {DEAD.sample}\n",
    ),
    console(
        "eight workers wait once while one compiles, and the engine starts",
        "".join(f"(Worker_TP{n} pid={300 + n}) {WAITING.sample}\n" for n in range(8))
        + f"{_WAIT * 3}{_ENGINE} {CONTINUES[1].sample}\n{_WAIT}",
        logs=QUIET_LOGS,
    ),
    console(
        "a program quotes the messages",
        f"known harmless: {WAITING.sample}\n" * 3
        + "retry because of TimeoutError: RPC call to execute_model timed out.\n",
        logs=QUIET_LOGS,
    ),
    console(
        "SGLang's watchdog ends the server",
        f"[2026-11-21 07:34:12 TP0] {WATCHDOG.sample}\n[2026-11-21 07:34:17] Received sigquit from a child process. It usually means the "
        "child failed.\nKilled\n",
        says=("longer than 300 s", "--watchdog-timeout 1800"),
    ),
    console(
        "vLLM's engine does not start in time",
        f'Traceback (most recent call last):\n  File "/app/serve.py", line 5, in <module>\n    main()\n{START_TIMED_OUT[0].sample}\n',
        says=("not ready within 600 s", "VLLM_ENGINE_READY_TIMEOUT_S"),
    ),
    console(
        "an engine process gets no answer from the API server",
        f'Traceback (most recent call last):\n  File "/app/serve.py", line 5, in <module>\n    main()\n{START_TIMED_OUT[1].sample}\n',
        says=("within 5 min",),
    ),
    console(
        "a program quotes the watchdog and a time-out of the start, and continues",
        f"note: {WATCHDOG.sample}\nnote: {START_TIMED_OUT[0].sample}\nloss 0.1\n",
    ),
    console(
        "a step of an engine of version 0 does not end, and the console ends within its traceback",
        f"ERROR 11-21 02:36:52 async_llm_engine.py:532] {ITERATION.sample}\n"
        "ERROR 11-21 02:36:52 async_llm_engine.py:52] Engine background task failed\n"
        "ERROR 11-21 02:36:52 async_llm_engine.py:52] Traceback (most recent call last):\n"
        'ERROR 11-21 02:36:52 async_llm_engine.py:52]   File "/venv/vllm/engine/async_llm_engine.py", line 503, in engine_step\n'
        "ERROR 11-21 02:36:52 async_llm_engine.py:52]     outputs = await self.engine.step_async()\n",
        says=("a step did not end within its time limit",),
    ),
)

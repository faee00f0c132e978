"""An inference engine found too little free GPU memory when it started: other processes hold memory, or the model needs more.

## What you see
- `ValueError: Free memory on device (10.61/79.15 GiB) on startup is less than desired GPU memory utilization (0.9,
  71.24 GiB)`.
- `ValueError: No available memory for the cache blocks`, or `To serve at least one request with the model's max seq len
  (131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (9.64 GiB)`.
- SGLang, an inference engine like vLLM: `RuntimeError: Not enough memory. Please try to increase
  --mem-fraction-static`, or `The memory capacity is unbalanced. Some GPUs may be occupied by other processes`.
- `AssertionError: Error in memory profiling. Initial free memory 58.23 GiB, current free memory 59.34 GiB`.

## Why
vLLM reserves a share (`gpu_memory_utilization`) of the whole GPU, not of what is free. `Free memory on device … is less
than` and SGLang's `occupied by other processes` mean that other processes hold the memory: an `EngineCore` or `ray::`
worker of an earlier run, another engine, or the trainer on the same GPU. If that share is free, weights and activations
use part of it, and the KV cache gets the remainder. `No available memory for the cache blocks`, `larger than the
available KV cache memory` and `Not enough memory` mean that the remainder is too small. `Error in memory profiling`
means that another process freed memory while vLLM measured it.

## Confirm
- *Before* the engine starts, `nvidia-smi --query-compute-apps=pid,used_memory --format=csv` on the node lists the
  processes that hold GPU memory.
- `ps -eo pid,ppid,lstart,args | grep -E '[E]ngineCore|[r]ay::|[V]LLM'` shows when each started: older ones belong to an
  earlier run.
- `Model loading took … GiB` in the log is the size of the weights.

## Fix
End leftover processes: `raydoctor zombies --kill` ends those of Ray, `kill PID` those that `nvidia-smi` lists. If the
GPU is shared on purpose, set `gpu_memory_utilization` to the free share. If the KV cache is too small, raise
`gpu_memory_utilization` (SGLang: `--mem-fraction-static`), shorten `max_model_len`, or use more GPUs.

## Not this when
- the message is `CUDA out of memory`, while the model loads or runs (`cuda-oom`).
- no GPU is available (`gpu-unavailable`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import OUTPUT, WORKER_DIED, WORKER_EXIT
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import size
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared import gpu_start
from raydoctor.rules.shared.failures import SIGNALS
from raydoctor.rules.shared.gpu_start import LINE_START, STARTED

_DOC = "https://docs.vllm.ai/en/latest/configuration/conserving_memory.html"
_USEFUL = 0.3
"""Share of a GPU below which an engine is rarely worth starting: the memory must be freed instead."""

TAKEN = Signal(
    "gpu.memory_taken", " GiB) on startup is less than ",
    LINE_START + r"ValueError: Free memory on device(?: (?P<gpu>\w+:\d+))? \((?P<free>\d{1,20}(?:\.\d{1,20})?)/(?P<all>\d{1,20}(?:\.\d{1,20})?) GiB\) on startup is less than "
    r"(?:desired GPU memory utilization|the engine's budget after excluding external process's weights) \((?P<share>\d{1,20}(?:\.\d{1,20})?), (?P<needed>\d{1,20}(?:\.\d{1,20})?) GiB\)", OUTPUT,
    "ValueError: Free memory on device (10.61/79.15 GiB) on startup is less than desired GPU memory utilization (0.9, 71.24 GiB). Decrease "
    "GPU memory utilization or reduce GPU memory used by other processes.",
)  # fmt: skip
NO_CACHE = Signal(
    "gpu.no_cache", "No available memory for the cache blocks",
    LINE_START + r"ValueError: No available memory for the cache blocks", OUTPUT,
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
)  # fmt: skip
SMALL_CACHE = Signal(
    "gpu.small_cache", "KV cache is needed, which is larger than the available KV cache memory",
    LINE_START + r"(?:ValueError: )?To serve at least one request with the models?'s max seq len \((?P<length>\d{1,20})\), \(?(?P<needed>\d{1,20}(?:\.\d{1,20})?) Gi?B KV cache is needed, which is larger than the available KV cache memory "
    r"\((?P<free>\d{1,20}(?:\.\d{1,20})?) Gi?B\)(?:\. Based on the available memory, the estimated maximum model length is (?P<fits>\d{1,20}))?", OUTPUT,
    "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, which is larger than "
    "the available KV cache memory (9.64 GiB). Based on the available memory, the estimated maximum model length is 78976.",
)  # fmt: skip
CHANGED = Signal(
    "gpu.memory_changed", "Error in memory profiling. Initial free memory ",
    LINE_START + r"AssertionError: Error in memory profiling\. Initial free memory (?P<before>\d{1,20}(?:\.\d{1,20})?(?: GiB)?), current free memory (?P<after>\d{1,20}(?:\.\d{1,20})?(?: GiB)?)",
    OUTPUT, "AssertionError: Error in memory profiling. Initial free memory 58.23 GiB, current free memory 59.34 GiB. This happens when "
    "other processes sharing the same container release GPU memory while vLLM is profiling during initialization.",
)  # fmt: skip
FEW_TOKENS = Signal(
    "gpu.few_tokens", " is larger than the maximum number of tokens that can be stored in KV cache",
    LINE_START + r"(?:ValueError: )?The model's max seq len \((?P<length>\d+)\) is larger than the maximum number of tokens that can be stored in KV cache \((?P<fits>\d+)\)", OUTPUT,
    "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV cache (13456). Try "
    "increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
)  # fmt: skip
"""vLLM before 0.8 in place of SMALL_CACHE."""
SGLANG = Signal(
    "gpu.sglang_memory", "Not enough memory. Please try to increase --mem-fraction-static",
    LINE_START + r"RuntimeError: Not enough memory\. Please try to increase --mem-fraction-static", OUTPUT,
    "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
)  # fmt: skip
UNBALANCED = Signal(
    "gpu.sglang_unbalanced", "The memory capacity is unbalanced. Some GPUs may be occupied by other processes.",
    LINE_START + r"(?:RuntimeError|ValueError): The memory capacity is unbalanced\. Some GPUs may be occupied by other processes\."
    r"(?:.{0,200}?local_gpu_memory=(?P<free>\d{1,20}(?:\.\d{1,20})?))?", OUTPUT,
    "RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. pre_model_load_memory=61.2, "
    "local_gpu_memory=78.9, local_gpu_memory * 0.9=71.0",
)  # fmt: skip
"""`srt/model_executor/model_runner.py` of SGLang: after the weights, and before them."""
_ENGINES = (TAKEN, NO_CACHE, SMALL_CACHE, FEW_TOKENS, CHANGED, SGLANG, UNBALANCED)
_KINDS = tuple(signal.kind for signal in _ENGINES)
_WORDS = pattern(
    r"GiB\) on startup is less than |No available memory for the cache blocks"
    r"|KV cache is needed, which is larger than the available|tokens that can be stored in KV cache|Error in memory profiling\. Initial free memory"
    r"|Please try to increase --mem-fraction-static|The memory capacity is unbalanced\."
)


@rule(
    tier="root",
    severity="error",
    rank=44,
    explains=("actor", "gpu-memory", "process", "task-error", "worker"),
    looks_for=(
        *(*_ENGINES, *STARTED),
        *(*SIGNALS, WORKER_EXIT, WORKER_DIED),
    ),
)
def gpu_memory_taken(case: Case) -> Iterator[Finding]:
    """One finding for memory that other processes hold, or else one for a KV cache that does not fit."""
    events = [e for kind in _KINDS for e in case.of(kind)]
    if not events:
        return
    first = events[0]
    headline, shows, remedies = _JUDGES[first.kind](events)
    ended = gpu_start.consequences(case, events, _WORDS)
    yield Finding(
        headline,
        (
            Link(first, shows),
            *(link for exit_ in ended.exits[:1] for link in evidence.exit_links(exit_)),
        ),
        explains=(Entity("gpu-memory", first.kind), *ended.entities),
        subjects=tuple(evidence.exit_subject(exit_) for exit_ in ended.exits[:10]),
        count=max(1, len({(e["ip"], e.pid) for e in events if e.kind == first.kind})),
        # vLLM measures the KV cache after it has loaded the model, so only the end of the start counts.
        severity="warning" if gpu_start.started_later(case, events, "startup complete") else None,
        remedies=remedies,
        covers=(*events, *ended.events),
    )


_Verdict = tuple[str, str, tuple[Remedy, ...]]
"""Headline, meaning of the first event, remedies."""


def _taken(events: Sequence[Event]) -> _Verdict:
    event = min((e for e in events if e.kind == TAKEN.kind), key=lambda e: float(e["free"]))
    free, total, share = float(event["free"]), float(event["all"]), float(event["share"])
    fits = math.floor(100 * free / total) / 100 if total else 0.0
    gpu = f"GPU {event['gpu'].rpartition(':')[2]}" if event["gpu"] else "a GPU"
    names = gpu_start.processes([e for e in events if e.kind == TAKEN.kind])
    where = f" when {names} started" if names else " when vLLM started"
    return (
        f"Other processes held {total - free:.2f} of the {total:g} GiB of {gpu}{where}: "
        f"vLLM needs {event['needed']} GiB ({share:g} of the GPU), and {free:g} GiB were free",
        f"{free:g} GiB were free, and gpu_memory_utilization={share:g} needs {event['needed']} GiB",
        (_end_leftovers(), _share(fits)),
    )


def _end_leftovers() -> Remedy:
    return Remedy(
        "List the processes on the GPU, and end those of an earlier run",
        (
            "nvidia-smi --query-compute-apps=pid,used_memory --format=csv   # on its node",
            "ps -eo pid,ppid,lstart,args | grep -E '[E]ngineCore|[r]ay::|[V]LLM'   # ray::IDLE and old engines are leftovers",
        ),
    )


def _share(fits: float) -> Remedy:
    note = "" if fits >= _USEFUL else ", if the model and its KV cache fit"
    return Remedy(
        f"Set the utilization to the free share of the GPU: at most {fits:.2f}{note}",
        (
            paste.shell(
                "vllm serve MODEL --gpu-memory-utilization {fits}   # LLM(gpu_memory_utilization=…)",
                fits=f"{fits:.2f}",
            ),
        ),
        doc=_DOC,
    )


def _cache(events: Sequence[Event]) -> _Verdict:
    small = [e for e in events if e.kind == SMALL_CACHE.kind]
    if not small:
        return (
            "The model leaves no GPU memory for the KV cache within gpu_memory_utilization",
            "weights and activations fill vLLM's share of the GPU",
            (_more_memory(), _end_leftovers()),
        )
    event = small[0]
    length, fits = event["length"], event["fits"]
    longest = f"at most {fits} tokens fit" if fits else "a shorter length may fit"
    return (
        f"The KV cache for {length} tokens needs {event['needed']} GiB of GPU memory, but only {event['free']} GiB is left: {longest}",
        f"{event['needed']} GiB is needed, and {event['free']} GiB is left after loading the model",
        (
            Remedy(
                f"Limit the length of requests to {fits} tokens"
                if fits
                else "Limit the length of requests",
                (
                    paste.shell("vllm serve MODEL --max-model-len {fits}", fits=fits)
                    if fits
                    else "vllm serve MODEL --max-model-len=8192",
                ),
                doc=_DOC,
            ),
            _more_memory(),
        ),
    )


def _more_memory() -> Remedy:
    return Remedy(
        "Leave more memory for the KV cache: a higher utilization, more GPUs, or a smaller or quantized model",
        (
            "vllm serve MODEL --gpu-memory-utilization 0.95 --tensor-parallel-size 2",
            "vllm serve MODEL --max-num-batched-tokens 2048 --enforce-eager   # less for activations and CUDA graphs",
        ),
        doc=_DOC,
    )


def _changed(events: Sequence[Event]) -> _Verdict:
    event = events[0]
    before, after = (
        value if value.endswith("GiB") else size(float(value))
        for value in (event["before"], event["after"])
    )
    return (
        f"Another process freed GPU memory while vLLM measured it ({before} free before, {after} after)",
        "vLLM rejects its measurement and exits",
        (
            Remedy(
                "Start engines that share a GPU one after another, and wait until an earlier run has ended",
                ("nvidia-smi --query-compute-apps=pid,used_memory --format=csv   # on its node",),
                doc=_DOC,
            ),
        ),
    )


def _few_tokens(events: Sequence[Event]) -> _Verdict:
    event = events[0]
    headline = (
        f"The GPU memory that is left for vLLM's KV cache holds {event['fits']} tokens, and a request of the model may "
        f"need {event['length']}"
    )
    remedy = Remedy(
        "Limit the length of a request to what fits, or give vLLM more of the GPU",
        (
            paste.shell("vllm serve MODEL --max-model-len {fits}", fits=event["fits"]),
            "vllm serve MODEL --gpu-memory-utilization 0.95   # or a larger --tensor-parallel-size",
        ),
    )
    return headline, "vLLM compares the model's longest request with its KV cache", (remedy,)


def _sglang(events: Sequence[Event]) -> _Verdict:
    return (
        "The model leaves no GPU memory for SGLang's KV cache within --mem-fraction-static",
        "the weights fill SGLang's share of the GPU",
        (
            Remedy(
                "Give SGLang a larger share of the GPU, more GPUs, or a smaller or quantized model",
                (
                    "python -m sglang.launch_server --model-path MODEL --mem-fraction-static 0.9 --tp 2",
                ),
            ),
            _end_leftovers(),
        ),
    )


def _unbalanced(events: Sequence[Event]) -> _Verdict:
    return (
        "Other processes hold memory of some of the GPUs over which SGLang splits a model",
        "SGLang compared the free memory of its GPUs before it loaded the model",
        (_end_leftovers(),),
    )


_JUDGES = {
    SGLANG.kind: _sglang,
    UNBALANCED.kind: _unbalanced,
    TAKEN.kind: _taken,
    NO_CACHE.kind: _cache,
    SMALL_CACHE.kind: _cache,
    FEW_TOKENS.kind: _few_tokens,
    CHANGED.kind: _changed,
}


# ------------------------------------------------------------------ examples

_A = "7dbdc85090b37cd39fb9e77001000000"
_ON_TWO = (
    "(RayWorkerWrapper pid=71, ip=10.0.0.2) " + TAKEN.sample.replace("device (", "device cuda:0 (") + "\n"
    "(RayWorkerWrapper pid=72, ip=10.0.0.2) " + TAKEN.sample.replace("device (10.61", "device cuda:1 (9.15") + "\n"
)  # fmt: skip
_TASK = (
    "Traceback (most recent call last):\n"
    f"ray.exceptions.RayTaskError(ValueError): ray::Engine.load() (pid=463, ip=10.0.0.2, actor_id={_A}, repr=<engine.Engine object>)\n"
    f'  File "/app/engine.py", line 12, in load\n    self.llm = LLM(path)\n{NO_CACHE.sample}\n'
)
_INIT = (
    "[2026-11-21 07:42:41,363 W 13 13] (gcs_server) gcs_worker_manager.cc:70: Reporting worker exit, worker id = "
    f"{'6' * 56}, node id = {'3' * 56}, address = 10.0.0.2, exit_type = USER_ERROR, exit_detail = Worker exits because there was an "
    "exception in the initialization method (e.g., __init__). Fix the exceptions from the initialization to resolve the issue. Exception "
    "raised from an actor init method. Traceback: The actor died because of an error raised in its creation task, "
    f"ray::Engine.__init__() (pid=463, ip=10.0.0.2, actor_id={_A}, repr=<engine.Engine object>)\n"
    f'  File "/app/engine.py", line 12, in __init__\n    self.llm = LLM(path)\n{TAKEN.sample}. Unintentional worker '
    "failures have been reported. If there are lots of this logs, that might indicate there are unexpected failures in the cluster.\n"
)

EXAMPLES: tuple[Example, ...] = (
    console(
        "the paste ends within the statement that raises",
        "".join(
            f"(EngineCore_DP0 pid=812) ERROR 11-21 07:34:12 [core.py:708] {line}\n"
            for line in (
                '  File "/venv/lib/python3.12/site-packages/vllm/v1/core/kv_cache_utils.py", line 699, in check_enough',
                '    raise ValueError("No available memory for the cache blocks. "',
                '                     "Try increasing the utilization.")',
            )
        ),
        says=("The model leaves no GPU memory for the KV cache",),
    ),
    console(
        "a leftover engine holds most of the GPU",
        f"(EngineCore_DP0 pid=504) {TAKEN.sample}\n",
        says=("68.54 of the 79.15 GiB", "at most 0.13", "nvidia-smi"),
        is_typical=True,
    ),
    console(
        "two workers find their GPUs taken",
        _ON_TWO,
        says=("RayWorkerWrapper in 2 processes", "GPU 1", "9.15 GiB"),
    ),
    console(
        "the KV cache does not fit in addition to the model",
        f"{SMALL_CACHE.sample}\n",
        says=("131072 tokens", "16.00 GiB", "--max-model-len 78976"),
    ),
    console(
        "the model leaves nothing for the KV cache, in an actor's method",
        _TASK,
        says=("no GPU memory for the KV cache",),
    ),
    Example(
        "an actor's constructor, in the log of the GCS",
        {
            "driver.log": f"(Engine pid=463, ip=10.0.0.2) {TAKEN.sample}\n",
            f"logs/worker-{'6' * 56}-01000000-463.err": f"{TAKEN.sample}\n",
            "logs/gcs_server.out": _INIT,
            "logs/raylet.out": "",
        },
        says=("Engine (pid 463)",),
    ),
    console(
        "another process freed memory meanwhile",
        f"{CHANGED.sample}\n",
        says=("58.23 GiB", "59.34 GiB"),
    ),
    console(
        "another process freed memory meanwhile, as vLLM up to 0.8 reports it",
        "AssertionError: Error in memory profiling. Initial free memory 58233716736, current free memory "
        "59345035264. This happens when the GPU memory was not properly cleaned up before initializing the vLLM instance.\n",
        says=("54.2 GiB", "55.3 GiB"),
    ),
    console(
        "weights of another process leave too little for the engine (vLLM 0.32 and newer)",
        "ValueError: Free memory on device cuda:0 (10.61/79.15 GiB) on startup is less than the engine's budget "
        "after excluding external process's weights (0.9, 71.24 GiB). Decrease GPU memory utilization or reduce GPU memory used "
        "by other processes.\n",
        says=("68.54 of the 79.15 GiB", "at most 0.13"),
    ),
    console(
        "a program prints the words, and no engine fails",
        "hint: 'No available memory for the cache blocks' means a small GPU\n"
        "(train pid=12) Free memory on device (10.61/79.15 GiB), waiting for a free GPU\n",
        logs=QUIET_LOGS,
    ),
    console(
        "SGLang has no memory left for its KV cache",
        f"(SGLangEngine pid=12) {SGLANG.sample}\n",
        says=("SGLang's KV cache", "--mem-fraction-static"),
    ),
    console(
        "SGLang finds GPUs that other processes use",
        f"(SGLangEngine pid=12) {UNBALANCED.sample}\n",
        says=("Other processes hold memory", "nvidia-smi"),
    ),
    console(
        "a manual and a log of SGLang mention its option",
        "Not enough memory? Please try to increase --mem-fraction-static.\n"
        "(SGLangEngine pid=12) server_args=ServerArgs(mem_fraction_static=0.88)\n",
    ),
    console(
        "a program quotes the error that it avoids",
        "the model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV cache "
        "(13456), so requests are limited to 8192\n",
        logs=QUIET_LOGS,
    ),
    console(
        "older vLLM counts tokens",
        f"(RayWorkerWrapper pid=12) {FEW_TOKENS.sample}\n",
        says=("holds 13456 tokens", "32768"),
    ),
)  # fmt: skip

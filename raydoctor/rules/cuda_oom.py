"""A task or actor ran out of GPU memory.

## What you see
`torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 26.00 MiB. GPU 0 has a total capacity of 11.66 GiB of
which 9.81 MiB is free. …` (`torch.cuda.OutOfMemoryError` up to torch 2.4) inside a `RayTaskError`, a failed training
run or an actor's constructor. If the CUDA driver itself cannot allocate, for example when a process first uses the GPU,
the message is `CUDA error: out of memory`.

## Why
Ray assigns GPUs to processes and does not limit the memory that each may use: `num_gpus=0.25` lets four processes share
one GPU, and each of them may allocate all of the GPU's memory. Processes that should have exited may hold memory as
well: `ray::IDLE` workers that keep torch's cache, or survivors of an earlier session. The message lists every process
on the GPU.

If the message was only printed and no task failed, raydoctor reports a warning or nothing.

## Confirm
- `nvidia-smi` on the node lists the processes that hold the memory. The pids in the message are those of the host:
  inside a container `ps` shows others.
- Compare `Tried to allocate` with `is free` and with `reserved by PyTorch but unallocated`. A large reserved amount
  means fragmentation.

## Fix
Run fewer processes per GPU (`num_gpus=1`), use smaller batches, and end leftover processes. A task that requests a GPU
ends its process after each call, which frees torch's cache; for a task that uses a GPU without requesting one, set
`max_calls=1`. Against fragmentation, set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.

## Not this when
- the node's own memory ran out (`ray-oom-kill`, `kernel-oom-kill`).
- the program catches the exception and continues with smaller batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import DRIVER, OUTPUT, TRACEBACK, WORKER_DIED, WORKER_EXIT
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import called, size
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared.failures import SIGNALS, constructors, failures
from raydoctor.rules.shared.task_error import Printed, error_entity
from raydoctor.rules.shared.traceback import TracebackFrame, parse

PRINTED = Signal(
    "cuda.oom_printed",
    " out of memory. Tried to allocate ",
    r"(?:^|[\s\]])(?:(?P<raised>(?:torch\.(?:\w{1,20}\.)?)?OutOfMemoryError|RuntimeError|Exception: Capture (?:cuda|CPU) graph failed): )?"
    r"(?P<what>(?:CUDA|HIP|NPU|XPU|MUSA) out of memory\. Tried to allocate .*)",
    OUTPUT,
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB. GPU 0 has a total capacity of 44.52 GiB of "
    "which 2.31 GiB is free.",
)
"""The exception's own line, in the output of a driver, a worker or an inference engine; or its text within a log record.
torch names the device (HIP, XPU), and so do the plugins of other vendors (NPU, MUSA)."""
REFUSED = tuple(
    Signal(
        PRINTED.kind,
        words,
        rf"(?:^|[\s\]])(?P<raised>(?:torch\.)?(?:AcceleratorError|RuntimeError): )(?P<what>{words}\b.*)",
        OUTPUT,
        f"RuntimeError: {words}",
    )
    for words in (
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED",
        "CUDA out of memory occurred when warming up",
    )
)
"""What CUDA and cuBLAS themselves report, and vLLM at its start, without numbers."""
CANN = Signal(
    PRINTED.kind,
    " execute failed, reason=[driver error:out of memory]",
    r"\b(?P<raised>rt\w{1,40} execute failed), reason=\[(?P<what>driver error:out of memory)\]",
    OUTPUT,
    "rtMalloc execute failed, reason=[driver error:out of memory][FUNC:FuncErrorReason][FILE:error_message_manage.cc][LINE:53]",
)
"""The runtime of an Ascend NPU."""
CUT = tuple(
    Signal(
        PRINTED.kind,
        f"{name}: {device} out of memory",
        rf"(?:^|[\s\]])(?P<raised>(?:torch\.(?:\w{{1,20}}\.)?)?{name}: )(?P<what>{device} out of memory\b(?:$|\.(?! Tried to allocate )).*)",
        OUTPUT,
        f"torch.{name}: {device} out of memory."
        if name != "RuntimeError"
        else f"{name}: {device} out of memory.",
    )
    for name in ("OutOfMemoryError", "RuntimeError")
    for device in ("CUDA", "HIP", "NPU")
)
"""The same exception without its numbers: people shorten it, and consoles cut it."""
OTHERS = tuple(
    Signal(PRINTED.kind, find, rf"(?:^|[\s\]])(?P<raised>{name}: |)(?P<what>{words}.*)", OUTPUT, sample)
    for find, name, words, sample in (
        (
            "RESOURCE_EXHAUSTED: Out of memory ", r"(?:[\w.]{1,80}\.)?(?:XlaRuntimeError|JaxRuntimeError|ResourceExhaustedError)",
            "RESOURCE_EXHAUSTED: Out of memory (?:while trying to allocate|allocating) ",
            "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes.",
        ),
        (
            "OOM when allocating tensor with shape", r"(?:[\w.]{1,80}\.)?ResourceExhaustedError",
            r"(?:[^\n]{0,300}? )?OOM when allocating tensor with shape\[[^\]\n]{0,200}\][^\n]{0,300}?GPU:\d",
            "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[512,4096] and type float "
            "on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
        ),
        (
            "CUDA Error: out of memory at ", "RuntimeError", r"CUDA Error: out of memory at \S{1,300}cumem_allocator\.cpp:\d",
            "RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62",
        ),
        (
            "Out of memory allocating ", r"(?:cupy[\w.]{1,80}\.)OutOfMemoryError", "Out of memory allocating ",
            "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 4,294,967,296 bytes (allocated so far: 12,884,901,888 bytes).",
        ),
    )
)  # fmt: skip
"""JAX, TensorFlow, vLLM's allocator of a sleeping engine (also without an exception), and CuPy."""
_LEVEL = pattern(r"\b(?:(?P<error>ERROR|CRITICAL|FATAL)|TRACE|DEBUG|INFO|WARN(?:ING)?)\b")

_DOC = "https://docs.ray.io/en/latest/ray-core/scheduling/accelerators.html"
_TORCH_DOC = "https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf"
_OUT = pattern(
    r"(?:CUDA|HIP|NPU|XPU|MUSA) out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation"
    r"|RESOURCE_EXHAUSTED: Out of memory |OOM when allocating tensor with shape[^\n]{0,500}?GPU:\d|CUDA Error: out of memory at |^Out of memory allocating [\d,]{1,30} bytes"
)
_TRIED = pattern(r"Tried to allocate (?P<size>\d{1,20}(?:\.\d{1,20})? \w+)")
_GPU = pattern(
    r"[GNX]PU (?P<gpu>\d{1,10})(?: has a total capaci?ty of (?P<total>\d{1,20}(?:\.\d{1,20})? \w{1,10}) of which (?P<free>\d{1,20}(?:\.\d{1,20})? \w{1,10}) is free"
    r"|; (?P<old_total>\d{1,20}(?:\.\d{1,20})? \w{1,10}) total capacity;.{0,500}?(?P<old_free>\d{1,20}(?:\.\d{1,20})? \w{1,10}) free)"
)
_OTHER = pattern(
    r"Process (?P<pid>\d{1,20}) has (?P<size>\d{1,20}(?:\.\d{1,20})? \w+) memory in use"
)
_RESERVED = pattern(
    r"(?P<size>\d{1,20}(?:\.\d{1,20})? \w{1,10}) is reserved by PyTorch but unallocated"
)
_ACTOR = pattern(r"\bactor_id=([0-9a-f]{32})")
_UNITS = {"bytes": 1.0, "KiB": 1024.0, "MiB": 1024.0**2, "GiB": 1024.0**3, "TiB": 1024.0**4}
_PARTS = 2
_VLLM_WORKER = pattern(
    r"(?:NPU)?RayWorker(?:Wrapper|Vllm|Proc)\b|EngineCore|VllmWorker|Worker_(?:TP|PP|DP)\d"
)
"""Names of vLLM's processes and actors (0.3 to 0.20), and those of its plugin for Ascend."""
_ALLOCATOR = "cumem_allocator.cpp"
"""vLLM prints it, and its caller then raises an exception without a reason."""


@dataclass(slots=True)
class _Shortage:
    """All shortages of one function, or of one class's constructor."""

    name: str
    message: str
    place: TracebackFrame | None
    seen: list[Printed] = field(default_factory=list)
    exits: list[WorkerExit] = field(default_factory=list)

    @property
    def events(self) -> list[Event]:
        """Every record of it."""
        printed = [event for seen in self.seen for event in seen.records]
        return [*printed, *evidence.exit_events(self.exits)]

    @property
    def is_waking(self) -> bool:
        """Whether vLLM's allocator takes back the memory that its engine had released for training."""
        return "cumem_allocator" in self.message

    @property
    def is_of_vllm(self) -> bool:
        """Whether it is one of vLLM's own workers, whose share of a GPU vLLM decides."""
        return _VLLM_WORKER.match(self.name) is not None

    @property
    def count(self) -> int:
        """How many processes failed this way."""
        return len(self.exits) or max(1, evidence.total([seen.event for seen in self.seen]))


@rule(
    tier="root",
    severity="error",
    rank=43,
    explains=("actor", "process", "task-error", "worker"),
    looks_for=(
        *SIGNALS,
        PRINTED,
        *REFUSED,
        CANN,
        *CUT,
        *OTHERS,
        TRACEBACK,
        WORKER_EXIT,
        WORKER_DIED,
    ),
)
def cuda_oom(case: Case) -> Iterator[Finding]:
    """One finding per function or class."""
    found: dict[str, _Shortage] = {}
    for seen in (*failures(case), *constructors(case)):
        raised = seen.failure.raised
        if raised and not raised.is_rays_own and _OUT.search(raised.message):
            name = seen.failure.function.removesuffix(".__init__")
            found.setdefault(name, _Shortage(name, raised.message, raised.place)).seen.append(seen)
    for exit_ in case.exits:
        begin = exit_.detail.find("ray::") if exit_.exit_type == "USER_ERROR" else -1
        raised = parse(exit_.detail[begin:]) if begin >= 0 else None
        if raised and _OUT.search(raised.message):
            name = exit_.names[-1] if exit_.names else _class(exit_.detail[begin:])
            found.setdefault(name, _Shortage(name, raised.message, raised.place)).exits.append(
                exit_
            )
    for shortage in found.values():
        yield _finding(case, shortage)
    printed = [
        e
        for e in case.of(PRINTED.kind)
        if e["raised"] or _is_logged(e) or (_ALLOCATOR in e["what"] and e.source.is_excerpt)
    ]
    if printed and not found and not {"gcs-out", "gcs-err"} & case.roles:
        yield _of_console(case, printed)


def _is_logged(event: Event) -> bool:
    """Whether a program logged the text as an error, in a pasted console."""
    before = event.message[: max(event.message.find(event["what"]), 0)]
    level = _LEVEL.search(before)
    is_error = event.level == "E" or (not event.level and level is not None and level["error"])
    return bool(is_error) and event.source.is_excerpt


def _of_console(case: Case, printed: list[Event]) -> Finding:
    """The exception in a console without task failures, from the program itself or from its processes."""
    first = printed[0]
    writers = dict.fromkeys((e["ip"], e.pid) for e in printed)
    exits = evidence.unexpected_exits(case, printed)
    ends = [e for e in case.of(TRACEBACK.kind) if _is_end(e)]
    name = first["who"] or ("the worker" if first.source.role == "worker-err" else "the driver")
    raised = parse(ends[0].message) if ends else None
    shortage = _Shortage(name, first["what"], raised.place if raised else None)
    return Finding(
        _headline(shortage, len(writers)),
        (
            Link(first, f"{name} printed the out-of-memory error"),
            *(link for x in exits[:1] for link in evidence.exit_links(x, most=1)),
        ),
        explains=(
            Entity("task-error", f"{name} printed {shortage.place}"),
            Entity("task-error", f"GPU memory in {first.source.path}"),
            *(Entity("process", f"{ip}/{pid}") for ip, pid in writers if pid is not None),
            *evidence.exit_entities(exits),
        ),
        subjects=(Subject("process", None, name, first.pid),),
        count=max(1, len(writers)),
        severity=None if ends or exits or first.level == "E" else "warning",
        remedies=tuple(_remedies(case, shortage)),
        covers=(*printed, *ends, *evidence.exit_events(exits)),
    )


def _is_end(event: Event) -> bool:
    """Whether the record is the driver's own uncaught exception, and this error."""
    raised = parse(event.message) if event.source.role in DRIVER else None
    return raised is not None and bool(_OUT.search(raised.message))


def _class(text: str) -> str:
    return text.removeprefix("ray::").partition(".__init__()")[0].rpartition(":")[2]


def _finding(case: Case, shortage: _Shortage) -> Finding:
    ids = [e.actor or (_ACTOR.findall(e.detail) or [""])[0] for e in shortage.exits]
    actors = [Entity("actor", actor) for actor in ids if actor]
    errors = [error_entity(seen) for seen in shortage.seen]
    links = [
        Link(seen.event, f"{called(shortage.name)} raised the out-of-memory error")
        for seen in shortage.seen[:1]
    ]
    links += [link for exit_ in shortage.exits[:1] for link in evidence.exit_links(exit_)]
    reports = [
        e
        for actor in actors
        for e in case.about(actor, "driver.exception", "actor.creation_exception")
    ]
    return Finding(
        _headline(shortage, shortage.count),
        tuple(links),
        explains=tuple(dict.fromkeys((*errors, *actors, *evidence.exit_entities(shortage.exits)))),
        subjects=tuple(_subjects(shortage)),
        count=shortage.count,
        remedies=tuple(_remedies(case, shortage)),
        covers=(*shortage.events, *reports),
    )


def _subjects(shortage: _Shortage) -> Iterator[Subject]:
    yield from (evidence.exit_subject(exit_) for exit_ in shortage.exits[:10])
    for seen in shortage.seen[:1]:
        yield Subject("task", None, shortage.name, seen.failure.pid)


def _headline(shortage: _Shortage, count: int) -> str:
    where = f"actor {shortage.name}" if shortage.exits else called(shortage.name)
    often = f" in {count} processes" if count > 1 else ""
    device = "NPU" if shortage.message.startswith("NPU ") else "GPU"
    text = f"{device} memory ran out in {where}{often}"
    if tried := _TRIED.search(shortage.message):
        text += f", which tried to allocate {tried['size']}"
    if gpu := _GPU.search(shortage.message):
        free, total = gpu["free"] or gpu["old_free"], gpu["total"] or gpu["old_total"]
        text += f": {device} {gpu['gpu']} had {free} of {total} free"
    if others := list(_OTHER.finditer(shortage.message)):
        held = size(sum(_bytes(o["size"]) for o in others))
        holders = (
            "another process holds" if len(others) == 1 else f"{len(others)} other processes hold"
        )
        text += f" and {holders} {held}"
    return f"{text} ({shortage.place.short_file}:{shortage.place.line})" if shortage.place else text


def _bytes(text: str) -> float:
    number, _, unit = text.partition(" ")
    return float(number.rstrip(".") or 0) * _UNITS.get(unit, 1.0)


_WAKE = Remedy(
    "Leave room on the GPU for the engine that wakes up: give it less memory, and free that of the trainer before",
    (
        "gpu_memory_utilization=0.5   # vLLM. verl: actor_rollout_ref.rollout.gpu_memory_utilization, OpenRLHF: --vllm_gpu_memory_utilization",
        "torch.cuda.empty_cache()   # in the trainer, after it has moved its model off the GPU and before wake_up",
    ),
)
_OF_VLLM = Remedy(
    "Spread the model over more devices, or let each worker of vLLM hold less",
    (
        "vllm serve MODEL --tensor-parallel-size TP --max-model-len 8192 --max-num-seqs 64   # TP: more devices than now. A shorter context, fewer requests at once",
    ),
)


def _remedies(case: Case, shortage: _Shortage) -> Iterator[Remedy]:
    pids = [o["pid"] for o in _OTHER.finditer(shortage.message)]
    if pids:
        workers = {str(pid) for pid in case.ledger.pids.values()}
        own = ", among them workers of this cluster" if workers & set(pids) else ""
        yield Remedy(
            f"List the other processes on the GPU{own}",
            (
                paste.shell(
                    "ps -o pid,ppid,lstart,args -p {pids:pids}   # on its node. Leftovers: ray::IDLE workers and old sessions",
                    pids=",".join(pids),
                ),
                "nvidia-smi --query-compute-apps=pid,used_memory --format=csv",
            ),
        )
    if shortage.is_waking:
        yield _WAKE
    elif shortage.is_of_vllm:
        yield _OF_VLLM
    else:
        yield Remedy(
            f"Let fewer processes share a GPU, or let {called(shortage.name)} process less data at a time",
            (
                "@ray.remote(num_gpus=1)   # with 0.25, four processes share one GPU, and Ray limits none of them",
                "# use smaller batches or half precision",
            ),
            doc=_DOC,
        )
    reserved, tried = _RESERVED.search(shortage.message), _TRIED.search(shortage.message)
    if reserved and tried and _bytes(reserved["size"]) > _PARTS * _bytes(tried["size"]):
        yield Remedy(
            f"Reduce fragmentation: PyTorch reserves {reserved['size']} without a free block of {tried['size']}",
            (
                'ray.init(runtime_env={"env_vars": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}})',
            ),
            doc=_TORCH_DOC,
        )


# ------------------------------------------------------------------ examples


_MESSAGE = (
    "CUDA out of memory. Tried to allocate 26.00 MiB. GPU 0 has a total capacity of 11.66 GiB of which 9.81 MiB is free. Process 3893521 "
    "has 618.00 MiB memory in use. Process 1493972 has 1.28 GiB memory in use. Including non-PyTorch memory, this process has 9.74 GiB "
    "memory in use. Of the allocated memory 9.30 GiB is allocated by PyTorch, and 163.19 MiB is reserved by PyTorch but unallocated. If "
    "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
_RAISED = (
    "Traceback (most recent call last):\nray.exceptions.RayTaskError(OutOfMemoryError): ray::embed() (pid=389, ip=10.0.0.2)\n"
    '  File "/app/embed.py", line 49, in embed\n    return model(batch)\n'
    f"torch.OutOfMemoryError: {_MESSAGE}\n"
)
_OLD = _RAISED.replace("torch.OutOf", "torch.cuda.OutOf").replace(
    _MESSAGE,
    "CUDA out of memory. Tried to allocate 2.26 GiB (GPU 1; 6.00 GiB total capacity; 781.59 MiB already allocated; 3.03 GiB free; 1.24 GiB "
    "reserved in total by PyTorch)",
)
_TRAINING = (
    "Traceback (most recent call last):\nray.train.WorkerGroupError: Training failed due to worker errors:\n[Rank 0,1 Error Snippet]:\n"
    'Traceback (most recent call last):\n  File "/app/train.py", line 30, in train_loop\n    loss = step(batch)\n'
    f'  File "/app/train.py", line 12, in step\n    return model(batch)\ntorch.OutOfMemoryError: {_MESSAGE}\n'
)
_INIT = (
    "[2026-11-21 07:42:41,363 W 13 13] (gcs_server) gcs_worker_manager.cc:70: Reporting worker exit, worker id = "
    f"{'6' * 56}, node id = {'3' * 56}, address = 10.0.0.2, exit_type = USER_ERROR, exit_detail = Worker exits because there was an "
    "exception in the initialization method (e.g., __init__). Fix the exceptions from the initialization to resolve the issue. Exception "
    "raised from an actor init method. Traceback: The actor died because of an error raised in its creation task, "
    "ray::Engine.__init__() (pid=463, ip=10.0.0.2, actor_id=7dbdc85090b37cd39fb9e77001000000, repr=<engine.Engine object>)\n"
    f'  File "/app/engine.py", line 12, in __init__\n    self.model.cuda()\ntorch.OutOfMemoryError: {_MESSAGE}. Unintentional worker '
    "failures have been reported. If there are lots of this logs, that might indicate there are unexpected failures in the cluster.\n"
)

EXAMPLES: tuple[Example, ...] = (
    *(
        console(
            f"other libraries report it: {signal.find}",
            f'Traceback (most recent call last):\n  File "/app/train.py", line 8, in <module>\n    step()\n{signal.sample}\n',
            says=("GPU memory ran out",),
        )
        for signal in OTHERS
    ),
    console(
        "vLLM's allocator prints it without an exception",
        f"(WorkerDict pid=812) {OTHERS[2].sample.partition(': ')[2]}\n",
        says=("GPU memory ran out in WorkerDict",),
        severity="warning",
    ),
    console(
        "TensorFlow has too little memory of the host, and a server limits requests",
        "W tensorflow: OOM when allocating tensor with shape[512] on device:CPU:0\nRESOURCE_EXHAUSTED: Out of memory of patience\nstep 2\n",
    ),
    Example(
        "other processes hold a part of the GPU memory",
        {"driver.log": _RAISED * 2, **QUIET_LOGS},
        says=(
            "in embed() in 2 processes",
            "26.00 MiB",
            "9.81 MiB of 11.66 GiB",
            "1.9 GiB",
            "3893521,1493972",
        ),
        is_typical=True,
    ),
    Example(
        "the message of older torch versions",
        {"driver.log": _OLD, **QUIET_LOGS},
        says=("GPU 1", "3.03 GiB of 6.00 GiB"),
    ),
    Example(
        "a model does not fit, in an actor's constructor",
        {"logs/gcs_server.out": _INIT, "logs/raylet.out": ""},
        says=("Engine", "engine.py:12"),
    ),
    Example(
        "a rank of a training run",
        {"driver.log": _TRAINING, **QUIET_LOGS},
        consequences=("train-worker-failed",),
        says=("train_loop", "GPU 0"),
    ),
    console(
        "a program prints the message and no task fails",
        f"retrying after {_MESSAGE}\n(embed pid=12) torch.OutOfMemoryError: {_MESSAGE}\n",
        logs=QUIET_LOGS,
    ),
    console(
        "a plain program, without Ray's tasks",
        'Traceback (most recent call last):\n  File "/app/finetune.py", line 21, in <module>\n    loss.backward()\n'
        f"torch.OutOfMemoryError: {_MESSAGE}\n",
        says=("the driver", "9.81 MiB of 11.66 GiB", "finetune.py:21"),
    ),
    console(
        "four ranks of one worker group, in the driver's output",
        "".join(
            f"(WorkerDict pid={pid}, ip=10.0.0.5) torch.OutOfMemoryError: {_MESSAGE}\n"
            for pid in (81, 82, 83, 84)
        ),
        says=("WorkerDict in 4 processes", "26.00 MiB"),
        severity="warning",
    ),
    console(
        "a worker's logger writes the error, of another vendor's device",
        "(model_worker/3 pid=858) 20261121-02:31:28.927 worker ERROR: Worker encountered error "
        f"{_OLD[_OLD.index('CUDA') :].replace('CUDA', 'NPU').replace('GPU', 'NPU')}",
        says=("3.03 GiB of 6.00 GiB",),
        severity="warning",
    ),
    console(
        "a console that quotes the error",
        f"(search pid=12) batch 64 failed with '{_MESSAGE}', trying 32\n",
    ),
    console(
        "CUDA reports it without numbers",
        "(WorkerDict pid=12) RuntimeError: CUDA error: out of memory\n",
        says=("GPU memory ran out in WorkerDict",),
        severity="warning",
    ),
    console(
        "a program that handles the error",
        "INFO tuner.py:40 -- after ERROR at batch 64: CUDA out of memory. Tried to allocate 3.50 GiB, so the batch is halved\n",
    ),
    console(
        "an actor's constructor, in the driver's output alone",
        'Traceback (most recent call last):\n  File "/app/main.py", line 3, in <module>\n    ray.get(t.go.remote())\n'
        "ray.exceptions.ActorDiedError: The actor died because of an error raised in its creation task, ray::Trainer.__init__() "
        "(pid=2841, ip=10.0.0.2, actor_id=3e7272acace78763d2e9b9b101000000, repr=<main.Trainer object at 0x7f>)\n"
        '  File "/app/train.py", line 31, in __init__\n    self.model = Model().cuda()\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.15 GiB of "
        "which 5.75 GiB is free.\n",
        consequences=("actor-init-failed",),
        says=("GPU memory ran out in Trainer, which", "train.py:31"),
    ),
    console(
        "a task prints the exception, which the console cuts off",
        '(run pid=77) Traceback (most recent call last):\n(run pid=77)   File "/app/train.py", line 47, in run\n'
        "(run pid=77)     batch = torch.empty(n, device='cuda')\n(run pid=77) torch.cuda.OutOfMemoryError: CUDA out of memory.\n",
        says=("GPU memory ran out in run",),
        severity="warning",
    ),
    console(
        "an NPU of Ascend",
        f"(RayWorkerWrapper pid=7, ip=10.0.0.2)         {CANN.sample}\n",
        says=("GPU memory ran out in RayWorkerWrapper",),
        severity="warning",
    ),
    console(
        "a note about such errors, and a retry with smaller batches",
        "RuntimeError: CUDA out of memory errors are retried\nhint: RuntimeError: CUDA out of memory means smaller batches\n",
    ),
    console(
        "vLLM's engine wakes up beside a trainer",
        'ray::Policy.fit() (pid=77, ip=10.0.0.2)\n  File "/app/ppo.py", line 79, in fit\n    self.engine.wake_up()\n'
        "RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62\n",
        says=(
            "GPU memory ran out in Policy.fit()",
            "the engine that wakes up",
            "gpu_memory_utilization=0.5",
        ),
    ),
    console(
        "a worker of vLLM on an NPU",
        f"(NPURayWorkerWrapper pid=7) ERROR 11-21 06:57:48 worker_base.py:581] RuntimeError: {_OLD[_OLD.index('CUDA') :].replace('CUDA', 'NPU').replace('GPU', 'NPU')}",
        says=(
            "NPU memory ran out in NPURayWorkerWrapper",
            ": NPU ",
            "--tensor-parallel-size",
        ),
    ),
)

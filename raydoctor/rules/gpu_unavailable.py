"""A program needs GPUs that the cluster lacks, that are not free, or that Ray did not assign to the process.

## What you see
- torch in an actor: `RuntimeError: No CUDA GPUs are available`, or `CUDA error: invalid device ordinal`.
- vLLM: `Current node has no GPU available. current_node_resource={…}`, `Ray does not allocate any GPUs on the driver
  node`, `Waiting for creating a placement group of specs for 70 seconds`, and finally `Cannot provide a placement
  group`.
- vLLM, older wording: `The number of required GPUs exceeds the total number of available GPUs in the placement group`.
- vLLM without Ray as its executor: `World size (2) is larger than the number of available GPUs (1) in this node`.
- vLLM before it uses any device: `No supported device detected`, `Failed to infer device type`.
- verl: `Total available GPUs 0 is less than total desired GPUs 8`.

## Why
- Up to Ray 2.55, Ray hides all GPUs from a task or actor with `num_gpus=0`. From Ray 2.56 on, such a task sees the GPUs
  of its node, but Ray may place it on a node without any. A task whose GPUs are set in `.options(num_gpus=…)` counts as
  one with `num_gpus=0` if a call leaves out the options.
- vLLM and verl count only *free* GPUs. Actors and placement groups hold the others, including those of an earlier run
  that still exists and of the Ray actor that started the engine.
- vLLM up to 0.32 asks for one GPU on its own node by address (`node:10.0.0.2`). If the address that vLLM finds
  (`VLLM_HOST_IP`) differs from the address that Ray registered, no node can satisfy the request, however many GPUs are
  free.
- A node joined without GPUs (a container without `--gpus`), or did not join at all.
- A process numbers the GPUs that it sees from 0. If Ray or `CUDA_VISIBLE_DEVICES` leaves fewer GPUs visible, the
  process's rank on the machine or a GPU's number in `nvidia-smi` is invalid there: `invalid device ordinal`.

## Confirm
- `ray status` lists total, used and reserved GPUs (`used of … reserved in placement groups`).
- `ray list placement-groups --detail` and `ray list actors --filter state=ALIVE --detail` list their holders.
- `ray list nodes`: check that a node has the address in `specs=[{'node:…': 0.001, …}]`.
- In the process, `ray.get_runtime_context().get_accelerator_ids()` returns the GPUs that Ray assigned, and
  `os.environ.get("CUDA_VISIBLE_DEVICES")` those that the process sees.

## Fix
Request the GPU where it is used (`@ray.remote(num_gpus=1)`), or request fewer GPUs. End the programs of earlier runs
that hold placement groups and actors, and start each node with the address that vLLM uses (`VLLM_HOST_IP`):

    ray list placement-groups --filter state=CREATED
    ray start --address=HEAD:6379 --node-ip-address=ADDRESS

## Not this when
- a GPU is available, but its memory is in use (`gpu-memory-taken`, `cuda-oom`).
- vLLM warns `Tensor parallel size (16) exceeds available GPUs (8)` and then loads its model: it counts the GPUs of one
  machine, and other nodes have the remaining ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, Signal, console, rule
from raydoctor.case.signals import OUTPUT, WORKER_DIED, WORKER_EXIT
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Link, Remedy, Severity
from raydoctor.rules.shared import gpu_start
from raydoctor.rules.shared.failures import SIGNALS
from raydoctor.rules.shared.gpu_start import LINE_START, STARTED
from raydoctor.rules.shared.waiting import NO_NODE_TYPE

_DOC = "https://docs.ray.io/en/latest/ray-core/scheduling/accelerators.html"
_VLLM_DOC = "https://docs.vllm.ai/en/latest/serving/parallelism_scaling.html"
_SHOWS_ALL = (2, 56)
"""From here on Ray leaves `CUDA_VISIBLE_DEVICES` as it is if a task has no GPUs (`RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO` in
`ray/_private/accelerators/accelerator.py`: on by default in 2.50 to 2.55, then off)."""
_PATIENCE = 30
"""Seconds. vLLM reports its wait after 10, 30, 70 s and so on; nodes that are starting often cause the first report."""

INVISIBLE = (
    Signal(
        "gpu.invisible", "No CUDA GPUs are available",
        LINE_START + r"RuntimeError: No CUDA GPUs are available\s*$", OUTPUT,
        "RuntimeError: No CUDA GPUs are available",
    ),
    Signal(
        "gpu.invisible", "no CUDA-capable device is detected",
        LINE_START + r"(?:torch\.)?\w+Error: CUDA error: no CUDA-capable device is detected", OUTPUT,
        "RuntimeError: CUDA error: no CUDA-capable device is detected",
    ),
    Signal(
        "gpu.invisible", "Found no NVIDIA driver on your system",
        LINE_START + r"RuntimeError: Found no NVIDIA driver on your system", OUTPUT,
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver",
    ),
    Signal(
        "gpu.invisible", "0 active drivers ([]). There should only be one.",
        LINE_START + r"RuntimeError: 0 active drivers \(\[\]\)\. There should only be one\.", OUTPUT,
        "RuntimeError: 0 active drivers ([]). There should only be one.",
    ),
    Signal(
        "gpu.invisible", "No HIP GPUs are available",
        LINE_START + r"RuntimeError: No HIP GPUs are available\s*$", OUTPUT,
        "RuntimeError: No HIP GPUs are available",
    ),
    Signal(
        "gpu.invisible", "No supported device detected.",
        LINE_START + r"RuntimeError: No supported device detected\.\s*$", OUTPUT,
        "RuntimeError: No supported device detected.",
    ),
    Signal(
        "gpu.invisible", "Failed to infer device type",
        LINE_START + r"RuntimeError: Failed to infer device type(?:$|, please set |\s)", OUTPUT,
        "RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG` to turn on verbose "
        "logging to help debug the issue.",
    ),
    Signal(
        "gpu.invisible", "deserialize object on a CUDA device but ",
        LINE_START + r"(?:ray\.exceptions\.\w{1,40}: System error: |RuntimeError: )Attempting to deserialize object on a CUDA device but torch\.cuda\.is_available\(\) is False\.",
        OUTPUT, "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. If you are running on a "
        "CPU-only machine, please use torch.load with map_location=torch.device('cpu') to map your storages to the CPU.",
    ),
    Signal(
        "gpu.invisible", "Found 0 GPUs on your machine (GPU devices found: [])",
        LINE_START + r"(?:ValueError|RuntimeError): Found 0 GPUs on your machine \(GPU devices found: \[\]\)", OUTPUT,
        "ValueError: Found 0 GPUs on your machine (GPU devices found: []). If your machine does not have any GPUs, you should set the "
        "config keys `num_gpus` and `num_gpus_per_worker` to 0.",
    ),
    Signal(
        "gpu.invisible", "No accelerator (CUDA, XPU, HPU, NPU",
        LINE_START + r"RuntimeError: No accelerator \(CUDA, XPU, HPU, NPU[A-Z, ]{0,30}\) is available\.", OUTPUT,
        "RuntimeError: No accelerator (CUDA, XPU, HPU, NPU, MUSA, MPS) is available.",
    ),
)  # fmt: skip
"""torch, Triton, the two wordings of `DeviceConfig` in vLLM (0.3 to 0.6, and later), RLlib's policies (1.8 to 2.60), and SGLang's (`srt/utils/common.py`)."""
ORDINAL = Signal(
    "gpu.ordinal", " error: invalid device ordinal",
    LINE_START + r"(?:torch\.)?\w{1,40}Error: (?:CUDA|HIP) error: invalid device ordinal", OUTPUT,
    "RuntimeError: CUDA error: invalid device ordinal",
)  # fmt: skip
"""CUDA and HIP, as torch reports it in `set_device`."""
ASSERTED = Signal(
    ORDINAL.kind, "device >= 0 && device < num_gpus INTERNAL ASSERT FAILED",
    LINE_START + r"(?:[\w.]{1,80}Error: (?:CUDA call failed lazily at initialization with error: )?)?"
    r"device >= 0 && device < num_gpus INTERNAL ASSERT FAILED", OUTPUT,
    'RuntimeError: device >= 0 && device < num_gpus INTERNAL ASSERT FAILED at "../aten/src/ATen/cuda/CUDAContext.cpp":50, please '
    "report a bug to PyTorch. device=1, num_gpus=1",
)  # fmt: skip
"""The same where torch asks for a device's properties."""
BUSY = Signal(
    "gpu.busy", " busy or unavailable",
    LINE_START + r"[\w.]{1,80}Error: (?:System error: )?(?:CUDA|HIP) error: (?:all )?CUDA-capable devices?(?:\(s\) is/are| are) busy or unavailable", OUTPUT,
    "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
)  # fmt: skip
"""`cudaErrorDevicesUnavailable`: the GPU is visible, and the driver refuses the process a context on it."""
RENUMBERED = Signal(
    "gpu.renumbered", "_VISIBLE_DEVICES set incorrectly. Got ",
    LINE_START + r"(?:[\w.]{1,100}\()?RuntimeError\)?: (?P<variable>[A-Z_]{1,30}_VISIBLE_DEVICES) set incorrectly\. Got (?P<got>[^\n]{0,200}?), expected to include (?P<gpu>\S{1,60})\.", OUTPUT,
    "RuntimeError: CUDA_VISIBLE_DEVICES set incorrectly. Got 0,1, expected to include 3. Did you override the `CUDA_VISIBLE_DEVICES` "
    "environment variable?",
)  # fmt: skip
"""Ray Train compares the variable with the GPUs that Ray assigned (`air/_internal/device_manager`, 2.9 to 2.60)."""
NODE_HAS_NONE = Signal(
    "gpu.node_has_none", "Current node has no ",
    LINE_START + r"ValueError: Current node has no (?P<device>\w+) available\. current_node_resource=\{(?P<free>[^{}]*)(?P<end>\}|$)"
    r"(?:.{0,400}?current_ip='(?P<node_ip>[^'\s]+)')?", OUTPUT,
    "ValueError: Current node has no GPU available. current_node_resource={'accelerator_type:L4': 1.0, 'CPU': 3.0, 'node:10.0.0.2': 1.0}. "
    "vLLM engine cannot start without GPU. Make sure you have at least 1 GPU available in a node current_node_id='ab12' "
    "current_ip='10.0.0.2'.",
)  # fmt: skip
DRIVER_HAS_NONE = Signal(
    "gpu.driver_has_none", "Ray does not allocate any ",
    r"(?:^|\] )(?:ValueError: )?Ray does not allocate any (?P<device>\w+)s on the driver(?: node\.| ?[a-z]{0,4}$)"
    r"(?: ?Driver IP: (?P<node_ip>[^,\s]+), worker IPs: \[(?P<workers>[^\[\]]*)\])?", OUTPUT,
    "ValueError: Ray does not allocate any GPUs on the driver node.Driver IP: 10.0.0.1, worker IPs: ['10.0.0.2'].Consider adjusting the "
    "Ray placement group or running the driver on a GPU node.",
)  # fmt: skip
DRIVER_OUTSIDE = Signal(
    "gpu.driver_has_none", " is not included in a placement group ",
    LINE_START + r"RuntimeError: driver node id \w{1,60} is not included in a placement group (?:\w{1,40}\()?\w{1,60}\)?\. Node id -> bundles", OUTPUT,
    f"RuntimeError: driver node id {'a1' * 28} is not included in a placement group {'b2' * 18}. Node id -> bundles "
    "{'c3': [{'GPU': 1.0}]}. You don't have enough GPUs available in a current node. Check `ray status` and `ray list nodes` to see if "
    "you have available GPUs in a node before starting an vLLM engine.",
)  # fmt: skip
"""vLLM, where Ray put the whole group on other nodes."""
ENGINE_OUTSIDE = Signal(
    "gpu.driver_has_none", " not found in any placement group bundle ",
    LINE_START + r"RuntimeError: Engine node (?P<node_ip>[^,\s]{1,60}) not found in any placement group bundle \[(?P<workers>[^\[\]]{0,4000})\]\.", OUTPUT,
    "RuntimeError: Engine node 10.0.0.1 not found in any placement group bundle ['10.0.0.2']. Rank-0 scheduler must be co-located with the Engine.",
)  # fmt: skip
"""SGLang on Ray (`srt/ray/engine.py`, 0.5)."""
TOO_FEW = (
    Signal(
        "gpu.too_few", "Total available GPUs ",
        LINE_START + r"ValueError: Total available GPUs (?P<free>\d{1,20}(?:\.\d{1,20})?) is less than total desired GPUs (?P<asked>\d+)", OUTPUT,
        "ValueError: Total available GPUs 0 is less than total desired GPUs 8",
    ),
    Signal(
        "gpu.too_few", "s exceeds the total",
        LINE_START + r"ValueError: The number of required \w+s exceeds the total(?: number of available \w+s(?: in the (?:placement group|cluster))?\."
        r"(?: ?Required number of devices: (?P<asked>\d+)\. Total number of devices: (?P<free>\d+)|\s*$)|\s*$)", OUTPUT,
        "ValueError: The number of required GPUs exceeds the total number of available GPUs in the placement group. Required number of "
        "devices: 4. Total number of devices: 2.",
    ),
)  # fmt: skip
"""Newer versions of vLLM add the numbers. If it has no placement group yet, they only warn, and then wait for the GPUs."""
TOO_FEW_WRAPPED = Signal(
    "gpu.too_few", "failed: The number of",
    r"\bload failed: The number of\s{1,40}required\s{1,40}\w{1,20}s\s{1,40}exceeds\s{1,40}the\s{1,40}total\s{1,40}number\s{1,40}of\s{1,40}available\s{1,40}"
    r"\w{1,20}s\s{1,40}in\s{1,40}the\s{1,40}placement\s{1,40}group\.", OUTPUT,
    "Step load failed: The number of required GPUs exceeds the total number of available GPUs in the placement group.", extent="record",
)  # fmt: skip
"""The same in the log of distilabel, which wraps it to the width of the terminal."""
POOL = Signal(
    "gpu.pool", "cannot be satisfied in this ray cluster",
    LINE_START + r"ValueError: Resource pool (?P<pool>[\w.-]{1,100}): (?P<gpus>\d{1,9})\*(?P<nodes>\d{1,9}) ?cannot be satisfied in this ray cluster", OUTPUT,
    "ValueError: Resource pool global_pool: 8*2cannot be satisfied in this ray cluster",
)  # fmt: skip
"""verl: GPUs on each node, and nodes (`trainer/ppo/ray_trainer.py`, 0.3 to 0.6)."""
NOT_THERE = Signal(
    "gpu.not_there", "Not enough GPUs available. Requested ",
    LINE_START + r"(?:[\w.]{1,200}Error: )?Not enough GPUs available\. Requested (?P<asked>\d{1,9}) GPUs, but only (?P<free>\d{1,9}) are available "
    r"in the cluster", OUTPUT,
    "ValueError: Not enough GPUs available. Requested 16 GPUs, but only 8 are available in the cluster.",
)  # fmt: skip
"""NeMo RL compares with `ray.cluster_resources()`: all GPUs of the nodes that have joined, not only free ones."""
ONE_NODE = (
  Signal(
    "gpu.one_node", "is larger than the number of available GPUs (",
    r"(?:^(?:E +)?(?:ValueError: |\s*Value error, )|\] (?:ValueError: |\s*Value error, ))World size \((?P<asked>\d{1,9})\) is larger than "
    r"the number of available GPUs \((?P<free>\d{1,9})\)", OUTPUT,
    "  Value error, World size (2) is larger than the number of available GPUs (1) in this node. If this is intentional and you are using:",
  ),
  *(
    Signal(
        "gpu.one_node", find,
        LINE_START + rf"AssertionError: {words} \((?P<asked>\d{{1,9}})\) {rest} \((?P<free>\d{{1,9}})\)", OUTPUT,
        f"AssertionError: {words} (16) {rest} (8).",
    )
    for find, words, rest in (
        ("to less than max local gpu count (", "please set tensor_parallel_size", "to less than max local gpu count"),
        ("than max local gpu count (", "please ensure that world_size", "is less than than max local gpu count"),
        ("the number of visible devices (", "local_world_size", "must be less than or equal to the number of visible devices"),
    )
  ),
)  # fmt: skip
"""vLLM without Ray as its executor counts only the GPUs that its own process sees. Earlier and later versions assert it."""
MANY = Signal(
    "gpu.many", "Tensor parallel size (",
    r"(?:^|\] )Tensor parallel size \((?P<asked>\d+)\) exceeds available GPUs \((?P<here>\d+)\)", OUTPUT,
    "(EngineCore_DP0 pid=34) WARNING 03-30 14:11:45 [ray_utils.py:352] Tensor parallel size (16) exceeds available GPUs (8). This may "
    "result in Ray placement group allocation failures.",
)  # fmt: skip
WAITS = Signal(
    "gpu.group_waits", "Waiting for creating a placement group of specs for ",
    r"(?:^|\] )Waiting for creating a placement group of specs for (?P<seconds>\d+) seconds\. specs=\[(?P<specs>[^\[\]]*)(?:\]|$)", OUTPUT,
    "INFO 02-26 11:15:24 ray_utils.py:212] Waiting for creating a placement group of specs for 30 seconds. specs=[{'GPU': 1.0, "
    "'node:10.0.0.2': 0.001}, {'GPU': 1.0}]. Check `ray status` to see if you have enough resources",
)  # fmt: skip
GAVE_UP = Signal(
    "gpu.group_failed", "Cannot provide a placement group ",
    LINE_START + r"ValueError: Cannot provide a placement group (?:of |requiring \d{1,20}(?:\.\d{1,20})? \w+ \()placement_group_specs=\[(?P<specs>[^\[\]]*)\]\)? "
    r"within (?P<seconds>\d+) seconds", OUTPUT,
    "ValueError: Cannot provide a placement group of placement_group_specs=[{'GPU': 1.0, 'node:10.0.0.2': 0.001}, {'GPU': 1.0}] within "
    "1800 seconds. See `ray status` to make sure the cluster has enough resources.",
)  # fmt: skip

_WORDS = {
    INVISIBLE[0].kind: pattern(
        r"No CUDA GPUs are available(?! \w)|no CUDA-capable device is detected|Found no NVIDIA driver on your system"
        r"|No HIP GPUs are available(?! \w)|0 active drivers \(\[\]\)\. There should only be one"
        r"|No supported device detected|deserialize object on a CUDA device but torch|Failed to infer device type|Found 0 GPUs on your machine \(|No accelerator \(CUDA, XPU"
    ),
    ORDINAL.kind: pattern(
        r"(?:CUDA|HIP) error: invalid device ordinal|device >= 0 && device < num_gpus INTERNAL ASSERT"
    ),
    BUSY.kind: pattern(r"CUDA-capable devices?(?:\(s\) is/are| are) busy or unavailable"),
    RENUMBERED.kind: pattern(r"_VISIBLE_DEVICES set incorrectly\. Got "),
    NODE_HAS_NONE.kind: pattern(r"Current node has no \w+ available\. current_node_resource="),
    DRIVER_HAS_NONE.kind: pattern(
        r"Ray does not allocate any \w+s on the driver node|driver node id \w{1,60} is not included in a placement group"
        r"|Engine node \S{1,60} not found in any placement group bundle"
    ),
    TOO_FEW[0].kind: pattern(
        r"Total available GPUs \d{1,20}(?:\.\d{1,20})? is less than|exceeds the total number of available \w+s(?: in the (?:placement group|cluster))?\."
    ),
    ONE_NODE[0].kind: pattern(
        r"World size \(\d{1,9}\) is larger than the number of available GPUs \(|than max local gpu count \("
        r"|to the number of visible devices \("
    ),
    POOL.kind: pattern(r"cannot be satisfied in this ray cluster"),
    NOT_THERE.kind: pattern(r"Not enough GPUs available\. Requested \d"),
    GAVE_UP.kind: pattern(r"Cannot provide a placement group (?:of|requiring) "),
}
_AMOUNT = pattern(r"'(?P<name>[^']{1,200})': (?P<amount>\d{1,20}(?:\.\d{1,20})?)")
_GROUP = pattern(r"^\w+_group_(?:\d+_)?(?P<pg>[0-9a-f]{32,36})$")


@rule(
    tier="root",
    severity="error",
    rank=44,
    explains=("actor", "gpus", "process", "task-error", "worker"),
    caused_by=("waiting",),
    looks_for=(
        *INVISIBLE, ORDINAL, ASSERTED, BUSY, NODE_HAS_NONE, DRIVER_HAS_NONE, DRIVER_OUTSIDE, ENGINE_OUTSIDE, RENUMBERED, *TOO_FEW, TOO_FEW_WRAPPED, POOL, *ONE_NODE, NOT_THERE, MANY, WAITS, *NO_NODE_TYPE, GAVE_UP, *STARTED, *SIGNALS, WORKER_EXIT, WORKER_DIED,
    ),
)  # fmt: skip
def gpu_unavailable(case: Case) -> Iterator[Finding]:
    """One finding for each kind of refusal, and one for a placement group that was not created."""
    refused = False
    for kind, judge in _JUDGES.items():
        events = case.of(kind)
        if events:
            refused = True
            yield judge(case, events)
    if (waits := case.of(WAITS.kind, GAVE_UP.kind)) or not refused:
        yield from _placement(case, waits)


def _made(  # noqa: PLR0913 - one argument per part of a finding
    case: Case, events: list[Event], headline: str, shows: str, *, name: str, remedies: Sequence[Remedy], severity: Severity | None = None,
) -> Finding:  # fmt: skip
    ended = gpu_start.consequences(case, events, _WORDS[events[-1].kind])
    best = next((e for e in events if e["node_ip"]), events[0])
    if gpu_start.started_later(case, events):
        severity = "warning"
    return Finding(
        headline,
        (
            Link(best, shows),
            *(link for exit_ in ended.exits[:1] for link in evidence.exit_links(exit_)),
        ),
        explains=(Entity("gpus", name), *ended.entities),
        subjects=tuple(evidence.exit_subject(exit_) for exit_ in ended.exits[:10]),
        count=max(1, len({(e["ip"], e.pid) for e in events})),
        severity=severity,
        remedies=tuple(remedies),
        covers=(*events, *ended.events, *case.of(MANY.kind)),
    )


def _invisible(case: Case, events: list[Event]) -> Finding:
    names = gpu_start.processes(events)
    subject = _subject(events)
    hidden = "Ray assigned none to it (num_gpus=0), or its machine or container has none"
    if case.version and case.version >= _SHOWS_ALL:
        hidden = "its machine or container has none, or CUDA_VISIBLE_DEVICES hides them"
    return _made(
        case,
        events,
        f"CUDA found no GPU in {names or subject.lower()}: {hidden}",
        f"{subject} needs a GPU and sees none",
        name=f"invisible {names}",
        severity=_certainty(case, events),
        remedies=(
            Remedy(
                "Request the GPU for the task or actor that uses it, and check that .options() keeps it",
                (
                    "@ray.remote(num_gpus=1)   # without it, Ray chooses any node, and up to 2.55 hides its GPUs",
                    "Actor.options(num_gpus=1, scheduling_strategy=…).remote()",
                ),
                doc=_DOC,
            ),
            _where(events[0]["ip"]),
            Remedy(
                "Run CUDA code in a worker with a GPU, not in a driver on a node without one, and not while a module is imported",
                ("print(ray.get_runtime_context().get_accelerator_ids())   # in the process",),
            ),
        ),
    )


def _subject(events: Sequence[Event]) -> str:
    is_worker = events[0].source.role == "worker-err"
    return gpu_start.processes(events) or ("A worker" if is_worker else "The program")


def _certainty(case: Case, events: Sequence[Event]) -> Severity | None:
    """A warning if only workers print the exception: they may catch it and continue without a GPU."""
    ended = gpu_start.consequences(case, events, _WORDS[events[0].kind])
    proven = ended.entities or any(not e["who"] and e.source.role != "worker-err" for e in events)
    return None if proven else "warning"


def _busy(case: Case, events: list[Event]) -> Finding:
    names = gpu_start.processes(events)
    subject = _subject(events)
    return _made(
        case,
        events,
        f"CUDA refused {names or subject.lower()} its GPU: another process holds it in exclusive mode, or the GPU needs a reset",
        f"{subject} got no context on a visible GPU",
        name=f"busy {names}",
        severity=_certainty(case, events),
        remedies=(
            Remedy(
                "Look at the compute mode of each GPU and at the processes that hold it",
                (
                    "nvidia-smi --query-gpu=index,compute_mode,mig.mode.current --format=csv   # on the node",
                    "nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv",
                ),
            ),
            Remedy(
                "If the mode is Exclusive_Process, give each GPU to one process only, or allow several",
                ("nvidia-smi -c 0   # the default mode, as root, on the node",),
                risk="disruptive",
            ),
            Remedy(
                "Pass data between tasks in the memory of the host: a GPU tensor is loaded to the GPU of each receiver",
                ("tensor.cpu()   # before it becomes an argument or a result",),
            ),
            _where(events[0]["ip"]),
        ),
    )


def _ordinal(case: Case, events: list[Event]) -> Finding:
    names = gpu_start.processes(events)
    subject = _subject(events)
    return _made(
        case,
        events,
        f"{subject} selected a GPU by a number that is not visible to it: fewer GPUs are visible than its ranks expect",
        f"{subject} set a device that CUDA does not have",
        name=f"ordinal {names}",
        severity=_certainty(case, events),
        remedies=(
            Remedy(
                "Select the first GPU that Ray assigned to the process, not the rank's number on the machine",
                (
                    "torch.cuda.set_device(0)   # with num_gpus=1; CUDA_VISIBLE_DEVICES renumbers the GPUs from 0",
                    "print(ray.get_gpu_ids(), torch.cuda.device_count())   # in the process",
                ),
                doc=_DOC,
            ),
            Remedy(
                "If the GPU should be visible, start one process per visible GPU, and remove settings that hide or renumber GPUs",
                (
                    "env | grep VISIBLE_DEVICES   # CUDA_, HIP_ and ROCR_VISIBLE_DEVICES of ray start and of the job",
                    "ray status   # GPUs that Ray counts, against those that the ranks need",
                ),
            ),
            _where(events[0]["ip"]),
        ),
    )


def _renumbered(case: Case, events: list[Event]) -> Finding:
    first = events[0]
    subject, variable = _subject(events), first["variable"]
    return _made(
        case,
        events,
        f"{subject} was assigned GPU {first['gpu']} by Ray, but its {variable} contains {first['got'] or 'nothing'}: the program or its "
        "environment changed the variable",
        f"Ray Train does not find the assigned GPU in {variable}",
        name=f"renumbered {first['gpu']}",
        severity=_certainty(case, events),
        remedies=(
            Remedy(
                f"Remove {variable} from the program, the runtime environment and the container of the workers: Ray sets it",
                (
                    paste.shell("grep -rn {variable:id} .   # in the program: os.environ, env_vars, a Dockerfile", variable=variable),
                    "ray start --num-gpus=2   # plus your other options. 2: if the node may use fewer GPUs than it has",
                ),
                doc=_DOC,
            ),
        ),
    )  # fmt: skip


def _where(ip: str) -> Remedy:
    """A check whether the machine has a GPU."""
    on = (
        paste.shell("nvidia-smi -L   # on {ip:address}", ip=ip)
        if ip
        else "nvidia-smi -L   # on its node"
    )
    return Remedy(
        "Check that the machine, and the container in it, have a GPU and a driver",
        (
            on,
            "docker run --gpus all   # plus your other options. Kubernetes: limits: nvidia.com/gpu: 1",
        ),
    )


def _node_has_none(case: Case, events: list[Event]) -> Finding:
    event = events[0]
    free = {m["name"]: float(m["amount"].rstrip(".")) for m in _AMOUNT.finditer(event["free"])}
    device = event["device"]
    groups = list(dict.fromkeys(m["pg"] for name in free if (m := _GROUP.match(name))))
    models = [n.partition(":")[2] for n in free if n.startswith("accelerator_type:")]
    where = f"node {event['node_ip']}" if event["node_ip"] else "its node"
    if groups:
        held = "a placement group" if len(groups) == 1 else f"{len(groups)} placement groups"
        names = evidence.join_names(evidence.short(g) for g in groups)
        why = f"{held} ({names}) reserved resources there"
    elif free.get(device):
        why = f"only {free[device]:g} of a {device} is free there"
    elif models:
        why = f"actors or placement groups hold every {evidence.join_names(models)} {device} of the node"
    elif not event["end"]:
        why = "the console cuts off the list of the node's resources"
    elif free.get("GPU"):
        why = f"Ray lists {free['GPU']:g} GPU for this node, but no {device}"
    else:
        why = f"Ray lists no {device} for this node"
    return _made(
        case,
        events,
        f"vLLM found no free {device} on {where}, where its engine starts: {why}",
        f"vLLM lists the free resources of the node, which include no whole {device}",
        name=f"node {event['node_ip']}",
        remedies=(
            *([_holders(groups)] if groups or models else []),
            *([_own_group()] if groups else []),
            *(
                ()
                if groups or models
                else (_start_with_gpus(device), _where(event["node_ip"]))
                if device == "GPU"
                else (_start_with(device, free.get("GPU", _DEVICES)),)
            ),
        ),
    )


def _holders(groups: Sequence[str] = ()) -> Remedy:
    group = [
        paste.shell("ray get placement-groups {pg:id}   # its creator", pg=groups[0])
    ] if groups else []  # fmt: skip
    return Remedy(
        "Find the actors and placement groups that hold the GPUs, and remove those of earlier runs",
        (
            "ray status   # GPUs in use, and those reserved in placement groups",
            *group,
            "ray list placement-groups --detail --filter state=CREATED",
            "ray list actors --detail --filter state=ALIVE",
        ),
        doc=_DOC,
    )


def _own_group() -> Remedy:
    return Remedy(
        "If the group belongs to the actor that starts vLLM, let vLLM use the actor's own GPUs instead of asking Ray for more",
        ('LLM(…, distributed_executor_backend="mp")   # all GPUs on one node',),
        doc=_VLLM_DOC,
    )


_DECLARED = (
    "ray start --num-gpus=8   # plus your other options. 8: the number of GPUs that nvidia-smi -L lists",
    "ray.init(num_gpus=8)   # if the program starts Ray",
)


def _start_with_gpus(device: str) -> Remedy:
    title = f"Start the engine on a node with {device}s, or declare the GPUs of this node"
    return Remedy(
        title,
        _DECLARED,
        doc=_DOC,
    )


_DEVICES = 8
"""Devices of a machine in an example."""


def _start_with(device: str, count: float) -> Remedy:
    """Declare devices that Ray counts under another name than GPU, such as NPU."""
    resources = f'{{"{device}": {count:g}}}'
    return Remedy(
        f"Start the engine on a node with {device}s, or declare those of this node as {device} and not as GPU",
        (
            paste.shell(
                "ray start --resources={resources}   # plus your other options, without --num-gpus",
                resources=resources,
            ),
        ),
        doc=_DOC,
    )


def _driver_has_none(case: Case, events: list[Event]) -> Finding:
    event = next((e for e in events if e["node_ip"]), events[0])
    device, ip = event["device"] or "GPU", event["node_ip"]
    workers = [part.strip(" '\"") for part in event["workers"].split(",") if part.strip()]
    others = (
        f": Ray put the workers on node{'s' if len(workers) > 1 else ''} {evidence.join_names(workers)}"
        if workers
        else ""
    )
    engine = "SGLang's engine" if "placement group bundle" in event.message else "vLLM's driver"
    place = f"node {ip}, where {engine} runs" if ip else f"the node where {engine} runs"
    return _made(
        case,
        events,
        f"Ray allocated no {device} on {place}{others}",
        f"{engine} needs one of its workers on its own node",
        name=f"driver {ip}",
        remedies=(
            Remedy(
                f"Start the engine on a node with free {device}s, or without a placement group on other nodes",
                ("ray status", "ray list nodes --detail   # GPUs of each node"),
                doc=_VLLM_DOC,
            ),
            _address(ip),
        ),
    )


def _address(ip: str) -> Remedy:
    """The address of vLLM's own node must be the one that Ray registered."""
    return Remedy(
        "On every node, give Ray and vLLM the same address of that node, and restart Ray",
        (
            "ray list nodes   # the addresses that Ray registered",
            paste.shell(
                "export VLLM_HOST_IP={ip:address}; ray start --node-ip-address={ip:address}   # plus your other options. With the address of the node",
                ip=ip,
            ),
        ),
        risk="disruptive",
        doc=_VLLM_DOC,
    )


def _too_few(case: Case, events: list[Event]) -> Finding:
    event = next((e for e in events if e["asked"]), events[0])
    if not event["asked"]:
        return _too_few_unnumbered(case, events)
    asked, free = int(event["asked"]), float(event["free"])
    if "placement group" in event.message:
        headline = f"vLLM needs {asked} GPUs and its placement group has {free:g}"
    elif event.kind == NOT_THERE.kind:
        headline = f"The program needs {asked} GPUs and the cluster has {free:g}: a node has not joined, or did not declare its GPUs"
    else:
        what = f"only {free:g} are free" if free else "Ray has none free"
        headline = f"The program needs {asked} GPUs and {what}: a node has not joined, or other work holds its GPUs"
    return _made(
        case,
        events,
        headline,
        f"{asked} GPUs are needed, {free:g} are available",
        name=f"{asked} of {free:g}",
        remedies=(
            *(() if event.kind == NOT_THERE.kind else (_holders(),)),
            Remedy(
                "Check that every node joined, with its GPUs, before the program starts",
                ("ray list nodes --detail   # resources_total of each node",),
                doc=_DOC,
            ),
            Remedy(
                f"Or ask for at most {free:g} GPUs (verl: trainer.nnodes × trainer.n_gpus_per_node)"
                if free
                else "Or declare the GPUs, if Ray did not find them",
                () if free else _DECLARED,
            ),
        ),
    )  # fmt: skip


def _too_few_unnumbered(case: Case, events: list[Event]) -> Finding:
    where = "placement group" if "placement group" in events[0].message else "Ray cluster"
    return _made(
        case,
        events,
        f"vLLM needs more GPUs than its {where} has: tensor-parallel size × pipeline-parallel size exceeds them",
        "vLLM compares its world size with the GPUs that Ray lists",
        name=where,
        remedies=(
            Remedy(
                "Compare the GPUs that Ray lists with the world size, and start Ray on every node before vLLM",
                ("ray status   # 0.0 GPU: Ray found none, or vLLM started its own cluster",),
                doc=_VLLM_DOC,
            ),
            Remedy(
                "Or ask for no more GPUs than there are",
                ("vllm serve MODEL --tensor-parallel-size=TP --pipeline-parallel-size=PP   # OpenRLHF: --vllm_tensor_parallel_size",),
                doc=_VLLM_DOC,
            ),
        ),
    )  # fmt: skip


def _pool(case: Case, events: list[Event]) -> Finding:
    gpus, nodes = int(events[0]["gpus"]), int(events[0]["nodes"])
    wanted = f"{evidence.many(nodes, 'node')} with {evidence.many(gpus, 'free GPU')}" + (
        " each" if nodes > 1 else ""
    )
    return _made(
        case,
        events,
        f"verl needs {wanted}, which Ray does not have: a node has not joined, or other work holds its GPUs",
        f"verl found too few free GPUs for its pool {events[0]['pool']}",
        name=f"pool {gpus}*{nodes}",
        remedies=(
            _holders(),
            Remedy(
                "Check that every node joined, with its GPUs, before the program starts",
                ("ray list nodes --detail   # resources_total of each node",),
                doc=_DOC,
            ),
            Remedy(
                "Or ask for what the cluster has",
                ("python3 -m verl.trainer.main_ppo trainer.nnodes=1 trainer.n_gpus_per_node=1   # plus your other options",),
            ),
        ),
    )  # fmt: skip


def _one_node(case: Case, events: list[Event]) -> Finding:
    asked, free = int(events[0]["asked"]), int(events[0]["free"])
    return _made(
        case,
        events,
        f"vLLM needs {asked} GPUs and its process sees {free}: without Ray as its executor, it uses one machine only",
        f"{asked} GPUs are needed, the process sees {free}",
        name=f"{asked} of {free} in one process",
        remedies=(
            Remedy(
                "Let vLLM spread over the GPUs of the Ray cluster",
                ("vllm serve MODEL --distributed-executor-backend ray   # after ray start on every node",),
                doc=_VLLM_DOC,
            ),
            Remedy(
                "Or compare what the process sees with nvidia-smi, and ask for no more GPUs than that",
                ('python -c "import os, torch; print(torch.cuda.device_count(), os.environ.get(\'CUDA_VISIBLE_DEVICES\'))"',),
                doc=_VLLM_DOC,
            ),
        ),
    )  # fmt: skip


_JUDGES = {
    INVISIBLE[0].kind: _invisible,
    ORDINAL.kind: _ordinal,
    BUSY.kind: _busy,
    RENUMBERED.kind: _renumbered,
    NODE_HAS_NONE.kind: _node_has_none,
    DRIVER_HAS_NONE.kind: _driver_has_none,
    TOO_FEW[0].kind: _too_few,
    POOL.kind: _pool,
    ONE_NODE[0].kind: _one_node,
    NOT_THERE.kind: _too_few,
}


# ------------------------------------------------------------------ placement groups


def _placement(case: Case, waits: list[Event]) -> Iterator[Finding]:
    """vLLM's own placement group, from its wait, its error, or only its warning."""
    failed = [e for e in waits if e.kind == GAVE_UP.kind]
    waited = max((int(e["seconds"]) for e in waits), default=0)
    many = case.of(MANY.kind)
    refused = _refused_at_own_address(case, waits)
    if failed or waited >= _PATIENCE or refused:
        events = waits
    elif many and not waits and not case.of("driver.exception", "log.traceback"):
        events = many
    else:
        return
    if gpu_start.started_later(case, events):
        return
    ended = gpu_start.consequences(case, failed, _WORDS[GAVE_UP.kind])
    first = (failed or waits or many)[-1]
    asked, pinned = _request(first)
    if refused and not asked:
        asked = _gpus(refused[-1]["asked"])
    links = [
        Link(e, f"vLLM needs {e['asked']} GPUs, and its own machine has {e['here']}")
        for e in many[-1:]
    ]
    if waits:
        shows = f"vLLM asks Ray for {evidence.many(asked, 'GPU')} and waits for {waited} s"
        links.insert(0, Link(first, shows))
    links += [Link(e, "the autoscaler finds no node for the request") for e in refused[-1:]]
    yield Finding(
        _placement_headline(case, (asked, pinned), waited, many, failed=bool(failed)),
        tuple(links),
        explains=(Entity("gpus", f"group of {asked}"), *ended.entities),
        caused_by=(Entity("waiting", "cluster"),),
        severity="error" if failed else "warning",
        remedies=(
            *([_address(pinned)] if pinned else []),
            _holders(),
            Remedy(
                "Or let every node with GPUs join before vLLM starts"
                + (f", or ask for fewer than {asked} GPUs" if asked > 1 else ""),
                (
                    "ray status   # the sum of GPUs",
                    "vllm serve MODEL --tensor-parallel-size=TP --pipeline-parallel-size=PP",
                ),
                doc=_VLLM_DOC,
            ),
        ),
        covers=(*waits, *many, *refused, *ended.events),
    )


def _refused_at_own_address(case: Case, waits: list[Event]) -> list[Event]:
    """Reports of the autoscaler about the node that vLLM waits for.

    Nodes that are still starting do not matter: vLLM runs on that node, so Ray should have it.
    """
    pinned = {address for e in waits if (address := _request(e)[1])}
    return [
        e
        for e in case.of(NO_NODE_TYPE[0].kind)
        if any(f"'node:{address}'" in e["asked"] for address in pinned)
    ]


def _gpus(amounts: str) -> int:
    """The number of GPUs (or other devices) in a request."""
    found = [(m["name"], float(m["amount"].rstrip("."))) for m in _AMOUNT.finditer(amounts)]
    return round(
        sum(a for n, a in found if not n.startswith("node:") and n not in ("CPU", "memory"))
    )


def _request(event: Event) -> tuple[int, str]:
    """How many GPUs, and the address of the node that must have one of them."""
    if event.kind == MANY.kind:
        return int(event["asked"]), ""
    names = (m["name"] for m in _AMOUNT.finditer(event["specs"]))
    pinned = next((n.partition(":")[2] for n in names if n.startswith("node:")), "")
    return _gpus(event["specs"]), pinned


def _placement_headline(
    case: Case, request: tuple[int, str], waited: int, many: list[Event], *, failed: bool
) -> str:
    asked, pinned = request
    gpus = evidence.many(asked, "GPU")
    if not (waited or failed or pinned):
        here = int(many[-1]["here"])
        more = f"other Ray nodes have {asked - here} more"
        return f"vLLM needs {gpus} and its own machine has {here}: Ray cannot create its placement group unless {more}"
    done, when = ("did not create", "within") if failed else ("has not created", "after")
    text = f"Ray {done} vLLM's placement group of {gpus} {when} {waited} s"
    known = set(case.ledger.node_ips.values())
    if pinned and known and pinned not in known:
        return f"{text}: it needs a GPU on node {pinned}, and no Ray node has this address"
    if pinned:
        others = f", and {asked - 1} on any node" if asked > 1 else ""
        return f"{text}: it needs a free GPU on node {pinned} (vLLM's own address){others}"
    if many:
        return f"{text}: vLLM's own machine has {many[-1]['here']}"
    return text


# ------------------------------------------------------------------ examples

_ELSEWHERE = (
    "(autoscaler +13s) Error: No available node types can fulfill resource request {'node:203.0.113.7': 0.001, 'GPU': 1.0}. Add suitable "
    "node types to this cluster to resolve this issue."
)
_W = "5d23820dbe229cb263b9518218703d648acf0b1172ae0ef7a7aef242"
_A = "7dbdc85090b37cd39fb9e77001000000"
_N = "3" * 56
_CUDA = "RuntimeError: No CUDA GPUs are available\n"
_INIT = (
    f"(Rollout pid=463, ip=10.0.0.2) {_CUDA}"
    "Traceback (most recent call last):\n"
    f"ray.exceptions.RayTaskError(RuntimeError): ray::Rollout.__init__() (pid=463, ip=10.0.0.2, actor_id={_A}, repr=<rollout.Rollout object>)\n"
    f'  File "/app/rollout.py", line 12, in __init__\n    self.model.cuda()\n{_CUDA}'
)
_TRACEBACK = 'Traceback (most recent call last):\n  File "/app/serve.py", line 7, in <module>\n    engine = LLM(model)\n'
_EXIT = (
    "[2026-11-21 07:42:41,363 W 13 13] (gcs_server) gcs_worker_manager.cc:70: Reporting worker exit, worker id = "
    f"{_W}, node id = {_N}, address = 10.0.0.2, exit_type = USER_ERROR, exit_detail = Worker exits because there was an "
    "exception in the initialization method (e.g., __init__). Fix the exceptions from the initialization to resolve the issue. Exception "
    "raised from an actor init method. Traceback: The actor died because of an error raised in its creation task, "
    f"ray::Rollout.__init__() (pid=463, ip=10.0.0.2, actor_id={_A}, repr=<rollout.Rollout object>)\n"
    f'  File "/app/rollout.py", line 12, in __init__\n    self.model.cuda()\n{_CUDA.strip()}. Unintentional worker '
    "failures have been reported. If there are lots of this logs, that might indicate there are unexpected failures in the cluster.\n"
)
_VERL = (
    "Traceback (most recent call last):\n"
    "ray.exceptions.RayTaskError(ValueError): ray::Runner.run() (pid=51, ip=10.0.0.2, actor_id=7dbdc85090b37cd39fb9e77001000000, repr=<r>)\n"
    '  File "/app/trainer.py", line 80, in check\n    raise ValueError(f"Total available GPUs {free} is less than total desired GPUs {asked}")\n'
    "ValueError: Total available GPUs 6.0 is less than total desired GPUs 16\n"
)
_GROUP_KEYS = "'GPU_group_1_4b47a28355f832a07cdeb7a245f703000000': 1.0, 'CPU': 3.0"
_IN_GROUP = NODE_HAS_NONE.sample.replace("'CPU': 3.0", _GROUP_KEYS)
_NO_GPUS = NODE_HAS_NONE.sample.replace("'accelerator_type:L4': 1.0, ", "")

EXAMPLES: tuple[Example, ...] = (
    console(
        "a step of distilabel cannot load its model, in a narrow terminal",
        "[10/21/26 06:53:04] ERROR ['distilabel.pipeline'] Failed to local.py:302\nload step\n'rate_0': Step\n"
        "load failed: The number of required\nGPUs exceeds the total number of\navailable GPUs in the placement group.\n",
        says=("GPU",),
    ),
    console(
        "a sentence about it",
        "the load failed: The number of required GPUs exceeds what we own\nloss 0.1\n",
    ),
    console(
        "SGLang's engine runs on a node outside its placement group",
        f'Traceback (most recent call last):\n  File "/app/serve.py", line 3, in <module>\n    main()\n{ENGINE_OUTSIDE.sample}\n',
        says=("no GPU on node 10.0.0.1, where SGLang's engine runs", "10.0.0.2"),
    ),
    console(
        "a rank of Ray Train has another list of GPUs than Ray assigned",
        f'Traceback (most recent call last):\n  File "/app/train.py", line 3, in <module>\n    main()\n{RENUMBERED.sample}\n',
        says=("GPU 3", "contains 0,1", "grep -rn CUDA_VISIBLE_DEVICES ."),
    ),
    console(
        "torch asserts the number of a device",
        f"{_TRACEBACK}{ASSERTED.sample}\n",
        says=("selected a GPU by a number that is not visible to it",),
    ),
    console(
        "a GPU in exclusive mode",
        f"{_TRACEBACK}{BUSY.sample}\n",
        says=("another process holds it in exclusive mode", "compute_mode"),
    ),
    console(
        "a task's argument has a tensor on such a GPU",
        "Traceback (most recent call last):\nray.exceptions.RayTaskError(RaySystemError): ray::Pool.fill() (pid=463, ip=10.0.0.2)\n"
        "  At least one of the input arguments for this task could not be computed:\n"
        f"ray.exceptions.RaySystemError: System error: {BUSY.sample.removeprefix('RuntimeError: ')}\n",
        says=("in exclusive mode", "tensor.cpu()"),
    ),
    console(
        "a program quotes both errors of a GPU, and continues",
        f"note: {ASSERTED.sample}\nnote: {BUSY.sample}\nloss 0.1\n",
    ),
    *(
        console(
            f"a worker of vLLM uses {name} where no GPU is visible",
            f"{_INIT.replace(INVISIBLE[0].sample, sample)}",
            says=("Rollout (pid 463)", "num_gpus=1"),
        )
        for name, sample in (
            ("Triton", "RuntimeError: 0 active drivers ([]). There should only be one."),
            ("ROCm", "RuntimeError: No HIP GPUs are available"),
        )
    ),
    console(
        "a program quotes both errors, and continues",
        f"note: {ENGINE_OUTSIDE.sample}\nnote: {RENUMBERED.sample}\nloss 0.1\n",
    ),
    console(
        "the autoscaler has no node with vLLM's own address, and the output is cut off",
        f"{_ELSEWHERE}\nINFO 11-21 10:56:16 ray_utils.py:221] Waiting for creating a placement group of specs for 10 seconds. specs=[{{'node:203.0.113.7': 0\n",
        says=("placement group of 1 GPU after 10 s: it needs a free GPU on node 203.0.113.7 (vLLM's own address)", "VLLM_HOST_IP"),
        severity="warning",
    ),
    console(
        "the autoscaler reports another request, and vLLM has waited for ten seconds",
        f"{_ELSEWHERE}\n{WAITS.sample.replace('30 seconds', '10 seconds')}\n",
    ),
    console(
        "an actor without num_gpus uses CUDA",
        _INIT,
        says=("Rollout (pid 463)", "num_gpus=1"),
        is_typical=True,
    ),
    console(
        "a library compares with the GPUs of all nodes that joined",
        'Traceback (most recent call last):\n  File "/app/train.py", line 24, in <module>\n    main()\n'
        f"{NOT_THERE.sample}\n",
        says=("needs 16 GPUs and the cluster has 8", "ray list nodes"),
    ),
    console(
        "the library tries again",
        "Not enough GPUs available. Requested 16 GPUs, but only 8 are available in the cluster.\n"
        "Retrying placement group creation... 1/6. Next retry in 1 seconds.\n" * 2,
        says=("needs 16 GPUs and the cluster has 8",),
    ),
    console(
        "vLLM without Ray as its executor needs more GPUs than its process sees",
        "(APIServer pid=1) pydantic_core._pydantic_core.ValidationError: 1 validation error for ParallelConfig\n"
        f"(APIServer pid=1) {ONE_NODE[0].sample}\n",
        says=("needs 2 GPUs and its process sees 1", "--distributed-executor-backend ray"),
    ),
    *(
        console(
            f"an assertion of vLLM compares with the GPUs of its machine: {signal.sample[16:40]}",
            f"ERROR 11-21 10:11:45 [core.py:708] {signal.sample}\n",
            says=("needs 16 GPUs and its process sees 8",),
        )
        for signal in ONE_NODE[1:]
    ),
    console(
        "Ray put vLLM's whole placement group on other nodes",
        f"{DRIVER_OUTSIDE.sample}\n",
        says=("Ray allocated no GPU on the node where vLLM's driver runs",),
    ),
    console(
        "vLLM prints the placement group with its class",
        DRIVER_OUTSIDE.sample.replace("b2" * 18, f"PlacementGroupID({'b2' * 18})") + "\n",
        says=("no GPU on the node where vLLM's driver runs",),
    ),
    console(
        "a launcher reports the sizes that vLLM asserts",
        "note: local_world_size (16) must be less than or equal to the number of visible devices (8), using 8\nstep 10\n",
    ),
    console(
        "a script warns of a world size and goes on",
        "WARNING: World size (2) is larger than the number of available GPUs (1), using 1\nstep 10\n",
    ),
    console(
        "a scheduler of another project uses similar words",
        "Not enough GPUs available. Requested: 2, Available: 1\nqueued\n",
    ),
    Example(
        "the same with Ray 2.56, which hides no GPU",
        {
            "driver.log": _INIT,
            "logs/gcs_server.out": "[2026-11-21 07:40:00,000 I 13 13] (gcs_server) gcs_server_main.cc:98: Ray cluster metadata "
            "ray_version=2.56.0 ray_commit=b7f4259e944bf6959f721b106adc\n",
            "logs/raylet.out": "",
        },
        says=("CUDA_VISIBLE_DEVICES hides them", "num_gpus=1"),
    ),
    Example(
        "the same, with the logs of Ray's daemons",
        {
            "driver.log": _INIT,
            f"logs/worker-{_W}-01000000-463.err": _CUDA,
            "logs/gcs_server.out": _EXIT,
            "logs/raylet.out": "",
        },
        says=("10.0.0.2",),
    ),
    console(
        "placement groups hold the GPUs of the engine's node",
        f"(EngineCore_DP0 pid=504) {_IN_GROUP}\n",
        says=("10.0.0.2", "a placement group (4b47a283)", "distributed_executor_backend"),
    ),
    console(
        "the engine starts on a node without GPUs",
        f"(EngineCore_DP0 pid=504) {_NO_GPUS}\n",
        says=("Ray lists no GPU", "--num-gpus=8"),
    ),
    console(
        "all workers are on other nodes than vLLM's driver",
        f"{DRIVER_HAS_NONE.sample}\n",
        says=("10.0.0.1", "10.0.0.2", "VLLM_HOST_IP"),
    ),
    console(
        "verl needs more GPUs than are free",
        _VERL,
        says=("16 GPUs", "6 are free", "n_gpus_per_node"),
    ),
    console(
        "vLLM's placement group is never created",
        f"{WAITS.sample}\n{GAVE_UP.sample}\n",
        says=("2 GPUs within 1800 s", "VLLM_HOST_IP=10.0.0.2"),
    ),
    console(
        "an older vLLM, which names no numbers",
        f"{_TRACEBACK}{TOO_FEW[1].sample.partition('. Required')[0]}.\n",
        says=("more GPUs than its placement group", "--tensor-parallel-size"),
    ),
    console(
        "the same in a message that is cut off",
        "ValueError: The number of required GPUs exceeds the total\n",
        says=("vLLM needs more GPUs",),
    ),
    console(
        "the same for a whole cluster",
        "ValueError: The number of required GPUs exceeds the total number of available GPUs in the cluster.\n",
        says=("Ray cluster",),
    ),
    console(
        "vLLM finds no device while it reads its options",
        f"{_TRACEBACK}{INVISIBLE[3].sample}\n",
        says=("num_gpus=1",),
    ),
    console(
        "newer words for it, in an actor that starts vLLM",
        f"{_TRACEBACK}{INVISIBLE[4].sample}\n",
        roots=("gpu-unavailable",),
    ),
    console(
        "vLLM warns that the cluster is short, and then gets the GPUs",
        "WARNING 03-30 14:11:45 [ray_utils.py:315] The number of required GPUs exceeds the total number of available "
        f"GPUs in the placement group.\n{WAITS.sample}\n{STARTED[0].sample}\n",
    ),
    console(
        "a program and a manual quote the words",
        "No supported device detected.\nsee also RuntimeError: Failed to infer device type\n"
        "The number of required GPUs exceeds the total number of available GPUs in the placement group.\nepoch 2\n",
    ),
    console(
        "vLLM needs two machines, and the output ends there",
        f"{MANY.sample}\n",
        says=("16 GPUs", "8 more"),
        severity="warning",
    ),
    console(
        "the warning, and the other node has the remaining GPUs",
        f"{MANY.sample}\n{WAITS.sample}\n{STARTED[0].sample}\n{STARTED[2].sample}\n",
    ),
    console(
        "an actor selects the GPU by its rank on the machine",
        _INIT.replace(_CUDA, f"{ORDINAL.sample}\n"),
        says=("Rollout (pid 463)", "a number that is not visible", "VISIBLE_DEVICES"),
    ),
    console(
        "a program and a manual quote the number's error",
        "probe: CUDA error: invalid device ordinal, so GPU 1 is skipped\n"
        "see also RuntimeError: CUDA error: invalid device ordinal\nepoch 2\n",
    ),
    console(
        "a program looks for a GPU and uses the CPU instead",
        "torch says 'No CUDA GPUs are available', so the CPU is used\n"
        "(embed pid=12) warning: RuntimeError: No CUDA GPUs are available; falling back\n"
        "vLLM may report that Ray does not allocate any GPUs on the driver node. Then use another node.\n"
        "INFO retry after ValueError: Total available GPUs 0 is less than total desired GPUs 8\n",
    ),
    console(
        "verl compares its pool with the nodes",
        f"{POOL.sample}\n",
        says=("2 nodes with 8 free GPUs each",),
    ),
    console(
        "a program quotes verl's message",
        "retry 1: Resource pool global_pool: 8*2cannot be satisfied in this ray cluster\nepoch 2\n",
    ),
    console(
        "torch cannot restore a tensor of a GPU where none is visible",
        f"{INVISIBLE[-2].sample}\n",
        roots=("gpu-unavailable",),
    ),
    console(
        "a node on which NPUs are declared as GPUs",
        NODE_HAS_NONE.sample.replace("no GPU", "no NPU").replace("'CPU': 3.0", "'CPU': 3.0, 'GPU': 8.0").replace("'accelerator_type:L4': 1.0, ", "")
        + "\n",
        says=("Ray lists 8 GPU for this node, but no NPU", '{"NPU": 8}'),
    ),
    console(
        "the list of the node's resources is cut off",
        NODE_HAS_NONE.sample.replace("'accelerator_type:L4': 1.0, ", "").partition("'node:")[0] + "\n",
        says=("the console cuts off the list of the node's resources",),
    ),
)  # fmt: skip

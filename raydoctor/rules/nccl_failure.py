"""An NCCL collective operation timed out or failed: GPU workers waited for a rank that did not join.

## What you see
- Workers' `.err` files or the driver's output contain `[Rank 1] Watchdog caught collective operation timeout:
  WorkNCCL(SeqNum=158046, OpType=ALLREDUCE, …, Timeout(ms)=600000) ran for 600027 milliseconds before timing out.`, then
  `… we are taking the entire process down.` and SIGABRT. Ray reports workers that ended suddenly.
- A worker raises `torch.distributed.DistBackendError: NCCL error in: … unhandled system error`, `remote process exited
  or there was a network error`. vLLM also prints `RuntimeError: NCCL error: …`.
- A compiled graph, which uses NCCL through cupy, raises `NcclError`.
- Two ranks on one GPU end with `ncclInvalidUsage` and `Duplicate GPU detected : rank 1 and rank 0 both on CUDA device
  4000`.
- On Ascend NPUs the library is HCCL: `RuntimeError: … HCCL function error: hcclCommInitRootInfoConfig(…), error code is
  7`.

## Why
All ranks must make the same calls in the same order. A rank that raised, was killed, hangs in its data loader or took
another branch never joins. After ten minutes the *other* ranks report the timeout. So inspect the rank that does not
report, or whose `SeqNum` is lower, not the ranks that report. NCCL errors at the start usually come from the network
(the wrong interface, a firewall) or from too little `/dev/shm`.

Two ranks share a GPU if there are more ranks than GPUs, if a rank does not select its device (`torch.cuda.set_device`),
or if Ray does not set `CUDA_VISIBLE_DEVICES` (`RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES`). NCCL identifies a GPU by
host name, boot id and PCI bus id together. It therefore mistakes the GPUs of cloned machines for one GPU, unless
`NCCL_HOSTID` differs between the machines.

## Confirm
- Find the rank that did not report. Read its `worker-*.err`, and its stack (`py-spy dump`) while the others wait.
- With `TORCH_NCCL_TRACE_BUFFER_SIZE=2000` and `TORCH_NCCL_DUMP_ON_TIMEOUT=1`, torch writes what each rank did last.
- With `NCCL_DEBUG=INFO`, NCCL prints which interface it uses and which call failed.

## Fix
Fix the rank that did not join. If the work before a collective operation legitimately takes longer, raise the timeout:
`TorchConfig(timeout_s=…)`. For network errors, set `NCCL_SOCKET_IFNAME` to the interface that connects the nodes (`ip
-br addr` lists all). Give each rank a GPU of its own.

## Not this when
- a rank's process ended earlier for another reason (`ray-oom-kill`, `worker-native-crash`, `task-exception`, …): the
  report then lists that cause as the root.
- no worker ended, by the logs of the GCS and the raylets: the program survived the error, and raydoctor reports
  nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import Example, Signal, console, rule
from raydoctor.case.signals import OUTPUT, WORKER_DIED, WORKER_EXIT
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import called
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared import train
from raydoctor.rules.shared.engine import TIMED_OUT, WATCHDOG
from raydoctor.rules.shared.failures import SIGNALS, constructors, failures
from raydoctor.rules.shared.task_error import Printed, error_entity

_DOC = "https://docs.ray.io/en/latest/train/user-guides/using-gpus.html"
_TORCH_DOC = "https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html"
_LONGEST = 160
_MOST_RANKS = 100_000
_PEER_GONE = (
    *("remote process exited", "ncclRemoteError", "socketProgress"),
    *("Connection reset by peer", "Connection was likely closed"),
)
_NCCL = pattern(r"NCCL [Ee]rror(?: in: | \d{1,3}: |: )")
_HCCL = pattern(
    r"(?:HCCL|OPS) function error: (?P<call>[Hh]ccl\w{1,60})[^\n]{0,300}?, error code is (?P<code>\d{1,9})|HCCL error in: |ERR02200 DIST call (?:hccl|HCCL) api failed"
)
"""torch_npu's texts for a call of HCCL that failed."""
_USUAL = 600
"""Seconds: torch's default time limit of a collective operation."""
_EARLIER = 3600.0
"""Seconds before a report in which a peer's end may have caused it: longer than any usual timeout."""

PROGRESS = Signal(
    "nccl.progress",
    ", last completed ",
    r"\[(?P<group>PG [^\[\]]{0,200}?) ?Rank (?P<rank>\d{1,9})\] .{0,400}?"
    r"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>\d{1,18}), last completed (?:NCCL )?work: (?P<completed>\d{1,18})",
    OUTPUT,
    "[rank1]:[E1121 07:34:12.715588844 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 1] Exception (either an error or "
    "timeout) detected by watchdog at work: 158046, last enqueued NCCL work: 158048, last completed NCCL work: 158045.",
    fold=("group", "rank"),
)
"""The operations that a rank had enqueued and completed when it or another rank timed out."""
PRINTED = (
    Signal(
        "nccl.error",
        "DistBackendError: [",
        r"\b(?P<type>DistBackendError): (?P<what>\[\d{1,9}\] is setting up NCCL communicator .{1,500})",
        OUTPUT,
        "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value "
        "store by key '0', but store->get('0') got error: wait timeout after 600000ms, keys: /default_pg/0//cuda//0",
    ),
    Signal(
        "nccl.error",
        "Error: NCCL ",
        r"\b(?P<type>DistBackendError|RuntimeError): NCCL [Ee]rror(?: in: [^\s,]{1,300}, | \d{1,3}: |: )(?P<what>\S.{0,500})",
        OUTPUT,
        "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
    ),
    *(
        Signal(
            "nccl.error",
            words,
            rf"(?:^(?:E +)?|\]:? )(?P<type>RuntimeError): (?P<what>[^\n]{{0,200}}?{words}\S[^\n]{{0,500}})",
            OUTPUT,
            f"RuntimeError: {sample}",
        )
        for words, sample in (
            (
                "HCCL function error: ",
                "create:torch_npu/csrc/distributed/HCCLUtils.hpp:102 HCCL function error: HcclCommInitRootInfo(numRanks, &rootInfo, "
                "rank, &(comm->hcclComm_)), error code is 7",
            ),
            (
                "OPS function error: Hccl",
                "InnerRunOpApi:torch_npu/csrc/framework/OpParamMaker.cpp:281 OPS function error: HcclAllreduce, error code is 6",
            ),
            (
                "HCCL error in: ",
                "[ERROR] HCCL error in: torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:64",
            ),
        )
    ),
    Signal(
        "nccl.error",
        "ERR02200 DIST call ",
        r"(?:^|\] )\[ERROR\] \d{4}-\d\d-\d\d-[\d:]{8} \(PID:\d{1,10}, Device:-?\d{1,5}, RankID:(?P<rank>-?\d{1,9})\) "
        r"(?P<what>ERR02200 DIST call (?:hccl|HCCL) api failed)",
        OUTPUT,
        "[ERROR] 2026-11-21-07:34:12 (PID:812, Device:0, RankID:-1) ERR02200 DIST call hccl api failed.",
        symptom=True,
    ),
    *(
        Signal(
            "nccl.error",
            f"{name}: ",
            rf"^(?P<type>{name}): (?P<what>[A-Z].{{0,500}})",
            OUTPUT,
            f"{name}: Call to ibv_modify_qp failed",
        )
        for name in (
            *("ncclSystemError", "ncclInternalError", "ncclRemoteError"),
            *("ncclUnhandledCudaError", "ncclInvalidUsage"),
        )
    ),
    Signal(
        "nccl.error",
        "NcclError: NCCL_ERROR_",
        r"\b(?P<type>NcclError): (?P<what>NCCL_ERROR_[A-Z_]{1,40}: \S.{0,500})",
        OUTPUT,
        "cupy_backends.cuda.libs.nccl.NcclError: NCCL_ERROR_SYSTEM_ERROR: unhandled system error (run with NCCL_DEBUG=INFO for details)",
    ),
)
"""The last ones are lines within the exception's text (`NCCLUtils.cpp` of torch): a console may have lost its beginning."""
WARNED = tuple(
    Signal(
        "nccl.error", find, rf"(?:^|[\s\]])NCCL WARN (?P<what>{words}[^\n]{{0,300}})", OUTPUT,
        f"gpu-3:29881:30401 [0] misc/socket.cc:484 NCCL WARN {sample}",
    )
    for find, words, sample in (
        ("no socket interface found", r"Bootstrap : no socket interface found", "Bootstrap : no socket interface found"),
        ("No interface found in the same subnet", r"No interface found in the same subnet as remote address", "No interface found in the same subnet as remote address 10.0.0.5<43991>"),
        ("Connect to ", r"(?:socket\w{1,40}|ncclSocket\w{1,40}): Connect to \S{1,80} failed : ", "socketStartConnect: Connect to 10.0.0.5<43991> failed : Software caused connection abort"),
        ("Failed to open libibverbs.so", r"Failed to open libibverbs\.so(?=[^\n]{0,40}NCCL_IB_FORCE)", "Failed to open libibverbs.so[.1] NCCL_IB_FORCE"),
        ("Got completion ", r"NET/IB ?: (?:\S{1,60} )?Got completion (?:from peer \S{1,80} )?with (?:status|error) ?=?\d", "NET/IB : Got completion from peer 10.0.0.5<43991> with status=12 opcode=0 len=0 vendor err 129"),
    )
)  # fmt: skip
"""NCCL's own last words about its network: bootstrap, sockets and InfiniBand (2.10 to 2.28)."""
TAKEN_DOWN = tuple(
    Signal("nccl.taken_down", find, rf"(?P<what>{words})", OUTPUT, sample)
    for find, words, sample in (
        (
            "we are taking the entire process down", r"To avoid (?:data inconsistency|this|[\w ]{1,60}), we are taking the entire process down",
            "[E ProcessGroupNCCL.cpp:489] To avoid data inconsistency, we are taking the entire process down.",
        ),
        (
            "due to ProcessGroupNCCL watchdog hang", r"(?:Terminating the process after attempting to dump debug info, )?due to ProcessGroupNCCL watchdog hang",
            "[rank0]:[F1121 07:34:12.123 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0(default_pg) Rank 0] Terminating the process after "
            "attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.",
        ),
    )
)  # fmt: skip
"""torch ends a process whose collective operation failed; the reason is in the lines above, which a paste may have lost."""
_OTHER_ERRORS = ("gpu.watchdog", "gpu.raised", "gpu.assertion", "gpu.rocm", "cuda.oom_printed", "driver.exception")  # fmt: skip
DUPLICATE = Signal(
    "nccl.duplicate",
    "Duplicate GPU detected ",
    r"(?:^(?:E +)?|^.{0,200}\bNCCL WARN )Duplicate GPU detected : rank (?P<rank>\d{1,9}) and rank (?P<other>\d{1,9}) both on CUDA "
    r"device (?P<device>[0-9a-f]{1,16})",
    OUTPUT,
    "gpu-3:29881:30401 [0] init.cc:497 NCCL WARN Duplicate GPU detected : rank 2 and rank 0 both on CUDA device 1000",
    fold=("rank", "other"),
)
"""NCCL logs it, and torch repeats it as the last line of its exception. The device is the GPU's PCI bus in hexadecimal."""


class _Report(NamedTuple):
    """A rank that reported a timeout."""

    rank: int
    seq: int
    event: Event
    exit: WorkerExit | None


@rule(
    tier="root",
    severity="error",
    rank=29,
    explains=("collective", "process", "task-error", "worker"),
    caused_by=("process", "task-error", "worker"),
    looks_for=(
        WATCHDOG,
        PROGRESS,
        *PRINTED,
        *WARNED,
        *TAKEN_DOWN,
        DUPLICATE,
        *SIGNALS,
        WORKER_EXIT,
        WORKER_DIED,
    ),
)
def nccl_failure(case: Case) -> Iterator[Finding]:
    """One finding for the timeouts, and one per place for the exceptions.

    Without the logs of Ray's daemons, which would record the ends of processes, one line of torch is enough.
    """
    reports = _reports(case)
    is_console = evidence.is_console(case)
    if any(report.exit for report in reports) or (reports and is_console):
        yield _timed_out(case, reports)
    raised: dict[str, list[Printed]] = {}
    for seen in (*failures(case), *constructors(case)):
        error = seen.failure.raised
        if error and (error.name == "DistBackendError" or _is_of_library(error.message)):
            raised.setdefault(error_entity(seen).value, []).append(seen)
    for seen_alike in raised.values():
        yield _error(case, seen_alike)
    printed = case.of(PRINTED[0].kind, DUPLICATE.kind)
    if printed and is_console and not reports and not raised:
        yield _printed(case, printed)
    ended = case.of(TAKEN_DOWN[0].kind)
    if ended and is_console and not (reports or raised or printed or case.of(*_OTHER_ERRORS)):
        yield replace(
            _printed(case, ended),
            headline="torch ended a process because a collective operation of NCCL failed or hung",
        )


def _is_of_library(message: str) -> bool:
    return bool(_NCCL.match(message) or _HCCL.search(message))


def _library(what: str) -> tuple[str, str]:
    """The library that failed, and its own words."""
    if called := _HCCL.search(what):
        call = f"{called['call']}, error code {called['code']}" if called["call"] else ""
        return "HCCL", call or what
    return "NCCL", what


def _reports(case: Case) -> list[_Report]:
    found: dict[int, _Report] = {}
    for event in case.of("nccl.timeout"):
        exit_ = evidence.exit_of(case, event)
        if exit_ is None or not exit_.expected:
            report = _Report(int(event["rank"]), int(event["seq"] or 0), event, exit_)
            known = found.setdefault(report.rank, report)
            if known.exit is None and exit_ is not None:
                found[report.rank] = report
    return [found[rank] for rank in sorted(found)]


def _timed_out(case: Case, reports: list[_Report]) -> Finding:
    exits = list({e.entity: e for r in reports if (e := r.exit)}.values())
    first = max((report.event for report in reports), key=lambda e: bool(e["limit"]))
    seconds = int(first["limit"] or 0) // 1000
    after = f" after {seconds} s" if seconds else ""
    operation = f" ({first['op']})" if seconds else ""
    ranks = f"{len(reports)} ranks" if len(reports) > 1 else f"Rank {reports[0].rank}"
    ended = " and ended" if exits else ""
    progress = case.of(PROGRESS.kind)
    links = [
        Link(
            r.event,
            f"rank {r.rank} timed out{after} in operation {r.seq} ({r.event['op']})"
            if r.seq and r.event["op"]
            else f"rank {r.rank} timed out",
        )
        for r in reports[:2]
    ]
    links += [
        Link(
            e,
            f"rank {e['rank']} had enqueued work up to operation {e['enqueued']}",
        )
        for e in (_behind(progress) or progress)[:1]
    ]
    links += [link for exit_ in exits[:1] for link in evidence.exit_links(exit_, most=1)]
    return Finding(
        f"{ranks} timed out{after} in an {first['library'] or 'NCCL'} collective operation{operation}{ended}: {_absent(reports, progress)}",
        tuple(links),
        explains=(
            TIMED_OUT,
            *evidence.exit_entities(exits),
            *evidence.process_entities(report.event for report in reports),
        ),
        caused_by=tuple(_earlier(case, exits) if exits else _before(case, reports)),
        subjects=tuple(
            Subject("worker", r.exit.worker or None, f"rank {r.rank}", r.exit.pid)
            for r in reports
            if r.exit
        )[:10],
        count=len(reports),
        remedies=tuple(_remedies(seconds or _USUAL, _missing(reports))),
        covers=(
            *case.of("nccl.timeout"),
            *progress,
            *case.of(PRINTED[0].kind),
            *evidence.exit_events(exits),
        ),
    )


def _missing(reports: Sequence[_Report]) -> list[int]:
    """Ranks below the highest that did not report; none if only some of the reports were kept."""
    ranks = {report.rank for report in reports}
    is_partial = any(report.event.count > 1 for report in reports)
    if len(reports) == 1 or is_partial or max(ranks) >= _MOST_RANKS:
        return []
    return [rank for rank in range(max(ranks)) if rank not in ranks]


def _behind(progress: Sequence[Event]) -> list[Event]:
    """The last records of the ranks that had enqueued least, if the ranks of one process group differ."""
    latest = {(event["group"], event["rank"]): event for event in progress}
    for group in dict.fromkeys(event["group"] for event in progress):
        ranks = [event for (name, _), event in latest.items() if name == group]
        least = min(int(event["enqueued"]) for event in ranks)
        if any(int(event["enqueued"]) > least for event in ranks):
            return [event for event in ranks if int(event["enqueued"]) == least]
    return []


def _absent(reports: Sequence[_Report], progress: Sequence[Event]) -> str:
    """The rank to inspect: one that is behind, or one that does not report."""
    if behind := _behind(progress):
        most = max(int(e["enqueued"]) for e in progress if e["group"] == behind[0]["group"])
        names = evidence.join_names((e["rank"] for e in behind), most=6)
        was = "rank {} was" if len(behind) == 1 else "ranks {} were"
        return f"{was.format(names)} behind (operation {behind[0]['enqueued']} of {most})"
    if missing := _missing(reports):
        names = evidence.join_names(map(str, missing), most=6)
        ranks = "rank" if len(missing) == 1 else "ranks"
        return f"{ranks} {names} did not report, so look there first"
    known = [r for r in reports if r.seq] or reports  # a record that is cut off has no number
    last, ahead = min(known, key=lambda r: r.seq), max(r.seq for r in known)
    if last.seq < ahead:
        return f"rank {last.rank} was behind (operation {last.seq} of {ahead})"
    return f"the rank that {'it' if len(reports) == 1 else 'they'} waited for did not report"


def _earlier(case: Case, own: Sequence[WorkerExit]) -> Iterator[Entity]:
    """Earlier ends and exceptions of peers."""
    begin = min((e.at for e in own if e.at is not None), default=None)
    mine = {exit_.entity for exit_ in own}
    for exit_ in case.exits:
        if exit_.entity in mine or begin is None or exit_.at is None:
            continue
        if 0 < begin - exit_.at <= _EARLIER:
            yield from exit_.entities
    for seen in train.errors(case):
        if seen.event.at is None or begin is None or seen.event.at < begin:
            yield error_entity(seen)


def _before(case: Case, reports: Sequence[_Report]) -> Iterator[Entity]:
    """The recorded exits, and exceptions of peers above the first report: causes if no rank's exit is recorded."""
    yield from evidence.exit_entities(case.exits)
    first = reports[0].event
    for seen in failures(case):
        is_above = seen.event.source is first.source and seen.event.line < first.line
        if is_above and not seen.failure.is_rays_own:
            yield error_entity(seen)


def _printed(case: Case, events: list[Event]) -> Finding:
    first = events[0]
    processes = {(event["ip"], event.pid) for event in events}
    where = f" in {len(processes)} processes" if len(processes) > 1 else ""
    gone = any(text in first["what"] for text in _PEER_GONE)
    library, words = _library(first["what"])
    shared = case.of(DUPLICATE.kind)
    what = f": {words[:_LONGEST]}" if words else ""
    return Finding(
        _shared_gpu(shared) if shared else f"{library} failed{where}{what}",
        (
            *(
                Link(
                    e,
                    f"a rank raised {e['type']}" if e["type"] else "a rank reports the failed call",
                )
                for e in events[:1]
            ),
            *_shared_links(shared),
        ),
        caused_by=evidence.exit_entities(case.exits) if gone else (),
        severity="warning" if evidence.goes_on(case, events[-1]) else None,
        subjects=tuple(
            Subject("worker", None, None, pid) for _, pid in sorted(processes, key=str) if pid
        )[:10],
        count=len(processes),
        remedies=_repairs(library, shared),
        covers=tuple(events),
    )


def _error(case: Case, seen: list[Printed]) -> Finding:
    failure = seen[0].failure
    what = failure.raised.message if failure.raised else ""
    library, words = _library(what)
    detail = words if words != what else what.partition(": ")[2].partition(", ")[2] or what
    where = (
        called(failure.function) if len(seen) == 1 else f"{len(seen)} × {called(failure.function)}"
    )
    gone = any(text in what for text in _PEER_GONE)
    causes = [e for exit_ in case.exits for e in exit_.entities] if gone else []
    shared = case.of(DUPLICATE.kind)
    return Finding(
        _shared_gpu(shared) if shared else f"{library} failed in {where}: {detail[:_LONGEST]}",
        (
            Link(
                seen[0].event,
                f"{called(failure.function)} raised {failure.raised.name if failure.raised else 'the error'}",
            ),
            *_shared_links(shared),
        ),
        explains=(error_entity(seen[0]),),
        caused_by=tuple(causes),
        subjects=(Subject("task", None, failure.function, failure.pid),),
        count=max(1, evidence.total([s.event for s in seen])),
        remedies=_repairs(library, shared),
        covers=(*(e for s in seen for e in s.records), *case.of(PRINTED[0].kind), *shared),
    )


def _shared_gpu(shared: Sequence[Event]) -> str:
    first = shared[0]
    more = " (and other ranks)" if len({(e["rank"], e["other"]) for e in shared}) > 1 else ""
    return (
        f"NCCL could not start because ranks {first['rank']} and {first['other']} use the same GPU "
        f"(CUDA device {first['device']}){more}"
    )


def _shared_links(shared: Sequence[Event]) -> Iterator[Link]:
    for event in shared[:2]:
        yield Link(event, f"ranks {event['rank']} and {event['other']} have the same GPU")


def _repairs(library: str, shared: Sequence[Event]) -> tuple[Remedy, ...]:
    if shared:
        return (_own_gpu(),)
    return (_ascend(),) if library == "HCCL" else tuple(_remedies(0, []))


def _own_gpu() -> Remedy:
    return Remedy(
        "Give each rank a GPU of its own",
        (
            "nvidia-smi -L   # on each node: are there at least as many GPUs as ranks?",
            'print(ray.get_gpu_ids(), os.environ.get("CUDA_VISIBLE_DEVICES"))   # in each rank: no GPU may occur twice',
            "unset RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES   # before ray start on each node, unless each rank selects its device itself",
        ),
        risk="disruptive",
        doc=_DOC,
    )


def _ascend() -> Remedy:
    return Remedy(
        "End leftover processes on the NPUs, and check the interface between the nodes and the rank that is missing",
        (
            "npu-smi info   # on each node: processes of an earlier run",
            'ray.init(runtime_env={"env_vars": {"HCCL_SOCKET_IFNAME": "eth0", "HCCL_CONNECT_TIMEOUT": "600"}})   # the default is 120 s',
        ),
    )


def _remedies(seconds: int, missing: Sequence[int]) -> Iterator[Remedy]:
    if seconds:
        longer = max(1800, 2 * seconds)
        rank = f"rank {missing[0]}" if missing else "the rank that did not join"
        yield Remedy(
            f"Find out what {rank} did while the others waited",
            (
                "grep -L 'Watchdog caught collective' /tmp/ray/session_latest/logs/worker-*.err   # on each node: files of processes that report no timeout",
                'ray.init(runtime_env={"env_vars": {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}})',
                "export TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1   # without Ray, for each rank",
            ),
            doc=_TORCH_DOC,
        )
        yield Remedy(
            f"Raise the timeout to {longer} s, if the work before the operation may take that long",
            (
                paste.python(
                    "TorchTrainer(..., torch_config=TorchConfig(timeout_s={seconds}))",
                    seconds=longer,
                ),
                paste.python(
                    "torch.distributed.init_process_group(..., timeout=datetime.timedelta(seconds={seconds}))   # without Ray Train",
                    seconds=longer,
                ),
            ),
            doc=_DOC,
        )
        return
    yield Remedy(
        "Make NCCL log what failed, and set the network interface to use",
        (
            'ray.init(runtime_env={"env_vars": {"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "eth0"}})   # the interface between the nodes',
            "df -h /dev/shm   # in containers: --shm-size",
        ),
        doc=_DOC,
    )


# ------------------------------------------------------------------ examples

_W = "cd09fc46897e18918275a6d03cc3a6abc2becabe5e0fd27a533d35a7"
_W2 = "b12e2f43e80a8ffe0602be5efcee3d0268ebc7cb3760c4a29e21fad8"
_LOGS = {"logs/raylet.out": ""}


def _exit_line(worker: str, second: int = 50) -> str:
    text = WORKER_EXIT.sample.replace(_W, worker)
    return f"[2026-11-21 07:34:{second},741 W 8 8] (gcs_server) gcs_worker_manager.cc:70: {text}\n"


def _report(rank: int, seq: int = 158046) -> str:
    text = WATCHDOG.sample.replace("[Rank 1]", f"[Rank {rank}]").replace("[rank1]", f"[rank{rank}]")
    return text.replace("SeqNum=158046", f"SeqNum={seq}") + "\n"


_RAISED = (
    "Traceback (most recent call last):\nray.exceptions.RayTaskError(DistBackendError): ray::Trainer.step() (pid=389, ip=10.0.0.2, "
    "actor_id=7dbdc85090b37cd39fb9e77001000000, repr=<train.Trainer object>)\n"
    '  File "/app/train.py", line 49, in step\n    dist.all_reduce(loss)\n'
    "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3690, unhandled system "
    "error (run with NCCL_DEBUG=INFO for details), NCCL version 2.26.2\nncclSystemError: System call failed\n"
)

EXAMPLES: tuple[Example, ...] = (
    *(
        console(
            f"NCCL warns about its network, and the console ends: {signal.find}",
            f"gpu-3:29881:30401 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.4<0>\n{signal.sample}\n",
            says=("NCCL failed: ", "NCCL_SOCKET_IFNAME"),
        )
        for signal in WARNED
    ),
    *(
        console(
            f"only torch's last words are left: {signal.find}",
            f"{signal.sample}\n",
            says=("torch ended a process because a collective operation",),
        )
        for signal in TAKEN_DOWN
    ),
    console(
        "torch ends the process because of the GPU",
        "[rank1]:[E1121 07:34:12.715298746 ProcessGroupNCCL.cpp:2057] [PG ID 2 PG GUID 3 Rank 1] Process group watchdog thread terminated "
        f"with exception: CUDA error: an illegal memory access was encountered\n{TAKEN_DOWN[0].sample}\n",
        roots=("gpu-fault",),
    ),
    console(
        "NCCL connects at the second attempt",
        f"{WARNED[2].sample}\nstep 1 loss 0.4\nstep 2 loss 0.3\n",
        severity="warning",
    ),
    Example(
        "ranks 0 and 2 wait for rank 1",
        {
            f"logs/worker-{_W}-01000000-379.err": _report(0),
            f"logs/worker-{_W2}-01000000-381.err": _report(2),
            "logs/gcs_server.out": _exit_line(_W) + _exit_line(_W2, 51),
            **_LOGS,
        },
        says=("2 ranks", "600 s", "ALLREDUCE", "rank 1 did not report", "timeout_s=1800"),
        is_typical=True,
    ),
    console(
        "the NCCL group of a compiled graph (created through cupy) fails",
        "cupy_backends.cuda.libs.nccl.NcclError: NCCL_ERROR_SYSTEM_ERROR: unhandled system error (run with NCCL_DEBUG=INFO for details)\n",
        says=("NCCL_ERROR_SYSTEM_ERROR",),
    ),
    Example(
        "one rank is behind the other rank",
        {
            f"logs/worker-{_W}-01000000-379.err": _report(0, 96120),
            f"logs/worker-{_W2}-01000000-381.err": _report(1, 64088),
            "logs/gcs_server.out": _exit_line(_W) + _exit_line(_W2, 51),
            **_LOGS,
        },
        says=("rank 1 was behind (operation 64088 of 96120)",),
    ),
    Example(
        "a network error, raised as an exception",
        {"driver.log": _RAISED, "logs/gcs_server.out": "", **_LOGS},
        says=("unhandled system error", "NCCL_DEBUG", "NCCL_SOCKET_IFNAME"),
    ),
    console(
        "a console of four ranks, two of which report",
        _report(0) + f"(Trainer pid=379) {_report(3)}",
        says=("2 ranks", "600 s", "ranks 1 and 2 did not report"),
    ),
    console(
        "Ray's log deduplication hides the reports of other ranks",
        f"(Trainer pid=379) {_report(3).rstrip()} [repeated 3x across cluster]\n"
        f"(Trainer pid=379) {PROGRESS.sample}\n",
        says=("Rank 3 timed out", "the rank that it waited for did not report"),
    ),
    console(
        "a console in which one rank had enqueued less than the other",
        _report(1)
        + f"{PROGRESS.sample}\n"
        + PROGRESS.sample.replace("[rank1]", "[rank0]")
        .replace("Rank 1]", "Rank 0]")
        .replace("work: 158048", "work: 158045"),
        says=("rank 0 was behind (operation 158045 of 158048)",),
    ),
    console(
        "a rank raises, and the others wait for it",
        _RAISED.partition("torch.distributed.")[0] + "ValueError: bad batch\n" + _report(0),
        roots=("task-exception",),
        consequences=("nccl-failure",),
    ),
    Example(
        "a rank's worker ends ten minutes before the others give up",
        {
            f"logs/worker-{_W}-01000000-379.err": _report(0),
            "logs/gcs_server.out": _exit_line(_W2, 10) + _exit_line(_W),
            **_LOGS,
        },
        roots=("worker-vanished",),
        consequences=("nccl-failure",),
    ),
    console(
        "a console in which Ray reports a rank's end just before its peer's watchdog",
        f"(raylet) {WORKER_DIED.sample}\n(Trainer pid=381, ip=10.0.0.3) {_report(0)}",
        roots=("nccl-failure",),
        consequences=("worker-vanished",),
    ),
    console(
        "a console in which the driver lost a worker before another rank gave up",
        f"(raylet) {WORKER_DIED.sample}\nTraceback (most recent call last):\n"
        '  File "/app/train.py", line 24, in <module>\nRuntimeError: a rank is gone\nsaving what is left\n'
        f"(Trainer pid=381, ip=10.0.0.3) {_report(0)}",
        roots=("worker-vanished",),
        consequences=("nccl-failure",),
    ),
    console(
        "an OOM-killed rank, and a peer that waits for it",
        f"(raylet) {WORKER_DIED.sample.replace('SYSTEM_ERROR', 'NODE_OUT_OF_MEMORY')}\n"
        f"(Trainer pid=381, ip=10.0.0.3) {_report(0)}",
        roots=("ray-oom-kill",),
        consequences=("nccl-failure",),
    ),
    console(
        "a paste that ends within torch's line",
        f"(Trainer pid=381, ip=10.0.0.3) {_report(0).partition('ation timeout')[0]}",
        says=("Rank 0 timed out in an NCCL collective operation",),
    ),
    console(
        "a rank cannot set up its communicator",
        f"(Trainer pid=379) [rank1]: {PRINTED[0].sample}\n",
        says=("is setting up NCCL communicator",),
    ),
    console(
        "two workers of vLLM print an NCCL error",
        f"(RayWorkerWrapper pid=381, ip=10.0.0.2) ERROR 11-21 07:34:12 worker_base.py:148] {PRINTED[1].sample}\n"
        f"(RayWorkerWrapper pid=384, ip=10.0.0.3) {PRINTED[1].sample}\n",
        says=("in 2 processes", "unhandled system error", "NCCL_SOCKET_IFNAME"),
    ),
    *(
        console(
            f"HCCL, the library of Ascend NPUs, fails in a worker: {says}",
            f"(WorkerDict pid=381, ip=10.0.0.2) [rank1]: {signal.sample}\n",
            says=("HCCL failed", says, "npu-smi info"),
        )
        for signal, says in zip(
            PRINTED[2:5],
            (
                "HcclCommInitRootInfo, error code 7",
                "HcclAllreduce, error code 6",
                "ProcessGroupHCCL",
            ),
            strict=True,
        )
    ),
    console(
        "a program reports that it tried again after a failure of HCCL",
        f"(Trainer pid=381) INFO retry 1 after {PRINTED[2].sample}\n(Trainer pid=381) step 10\n",
    ),
    console(
        "HCCL fails in a task",
        _RAISED.partition("torch.distributed.")[0]
        + PRINTED[2].sample
        + "\n[ERROR] 2026-11-21-07:34:56 (PID:389, Device:0, "
        "RankID:2) ERR02200 DIST call hccl api failed.\n",
        says=("HCCL failed in Trainer.step(): HcclCommInitRootInfo, error code 7",),
    ),
    console(
        "two ranks were started on the same GPU",
        f"(Trainer pid=29881, ip=10.0.0.3) {DUPLICATE.sample}\n",
        says=(
            "ranks 2 and 0 use the same GPU (CUDA device 1000)",
            "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",
        ),
    ),
    console(
        "two ranks have the same GPU, and only the last line of torch's exception is left above the driver's wait",
        "(main_task pid=7) Duplicate GPU detected : rank 5 and rank 6 both on CUDA device 80\nTraceback (most recent call last):\n"
        '  File "/app/train.py", line 21, in <module>\n    main()\n  File "/app/train.py", line 10, in main\n    ray.get(ref)\n'
        '  File "/venv/lib/python3.12/site-packages/ray/_private/client_mode_hook.py", line 103, in wrapper\n',
        says=("ranks 5 and 6 use the same GPU (CUDA device 80)",),
    ),
    console(
        "a method of an actor raises because two ranks have the same GPU",
        _RAISED.replace("unhandled system error", "invalid usage").partition("ncclSystemError")[0]
        + "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000\n",
        says=("ranks 1 and 0 use the same GPU", "nvidia-smi -L"),
    ),
    console(
        "a program explains the message that it avoids",
        "step 1: with LOCAL_RANK set, NCCL does not print Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000\nstep 2\n",
    ),
    console(
        "a launcher logs how it avoids two ranks on a GPU",
        "note: NCCL WARN Duplicate GPU detected means that LOCAL_RANK is not set\n",
    ),
    console(
        "vLLM's engine logs a failed call of HCCL, and the traceback is cut",
        f"ERROR 11-21 07:34:12 [engine.py:458] {PRINTED[5].sample}\nERROR 11-21 07:34:12 [engine.py:458] Traceback (most recent call last):\n"
        'ERROR 11-21 07:34:12 [engine.py:458]   File "/app/vllm/engine/multiprocessing/engine.py", line 446, in run_mp_engine\n'
        "ERROR 11-21 07:34:12 [engine.py:458]     engine = MQLLMEngine.from_vllm_config(\n",
        says=("HCCL failed: ERR02200 DIST call hccl api failed", "npu-smi info"),
    ),
    console(
        "a program quotes the error's number, and continues",
        "(check pid=12) see the manual for ERR02200 DIST call hccl api failed\nstep 2\n",
    ),
    console(
        "HCCL's settings and another function's error code are printed",
        "HCCL_CONNECT_TIMEOUT=600\nnote: HCCL function error: see the manual\n"
        "retry after an error in HcclAllreduce, error code is 6\n",
    ),
    console(
        "NCCL's version and a setting are printed",
        "worker:379:379 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.2<0>\n"
        "NCCL error handling is asynchronous\nWatchdog caught collective operation timeout: see the manual\n",
    ),
    Example(
        "a worker prints such a line and keeps running",
        {
            f"logs/worker-{_W}-01000000-379.err": _report(0),
            "driver.log": f"(Trainer pid=379) {_report(0)}",
            "logs/gcs_server.out": "",
            **_LOGS,
        },
    ),
    console(
        "a console that begins within the exception's text",
        "(LLMEngine pid=234, ip=10.0.0.2) ncclInternalError: Internal check failed.\n(LLMEngine pid=234, "
        "ip=10.0.0.2) Last error:\n(LLMEngine pid=234, ip=10.0.0.2) Proxy Call to rank 7 failed (Connect)\n",
        says=("Internal check failed",),
    ),
    console(
        "a trial whose failure the program survives",
        "(tune pid=3) ncclRemoteError: A call failed possibly due to a network error\ntrial 3 pruned, continuing\ndone\n",
        severity="warning",
    ),
    console(
        "the watchdog of HCCL, on NPUs",
        "[rank1]:[E324 13:00:25.428029551 compiler_depend.ts:574] [Rank 1] Watchdog caught collective operation timeout: WorkHCCL(SeqNum=196, "
        "OpType=ALLREDUCE, Timeout(ms)=3600000) ran for 3600185 milliseconds before timing out.\n",
        says=("Rank 1 timed out after 3600 s in an HCCL collective operation (ALLREDUCE)",),
    ),
)

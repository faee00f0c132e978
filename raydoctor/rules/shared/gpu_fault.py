"""GPU errors after which all calls of the process fail, and GPU errors in the kernel log.

The error texts come from `cudaGetErrorString`. torch prints them after `CUDA error: ` (2.0 to 2.15), its NCCL
watchdog repeats them, and Triton prints its own prefix. The driver prints a GPU's errors as `NVRM: Xid`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Signal
from raydoctor.case.signals import DRIVER
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event
from raydoctor.rules.shared import kernel

OUTPUT = ("worker-err", "worker-out", "worker-echo", *DRIVER)
REFUSED = {
    "invalid argument": "a call passed a value that CUDA does not accept",
    "invalid configuration argument": "a kernel was started with a size that the GPU does not support",
    "invalid resource handle": "a call used a stream, event or handle of another process, GPU or context",
    "operation not permitted when stream is capturing": "CUDA does not allow the call while a graph is captured",
    "operation not permitted": "CUDA does not allow the call here",
    "operation not supported": "the GPU, its driver or the platform does not support the call",
    "too many resources requested for launch": "a kernel needs more registers or shared memory than the GPU has",
    "initialization error": "CUDA could not start in this process",
    "system not yet initialized": "the driver's services are not ready, for example the fabric manager of NVSwitch",
}
"""Errors of calls that CUDA refused: the GPU is not at fault, and the process may go on."""
_TEXTS = (
    r"an illegal memory access was encountered|device-side assert triggered|unspecified launch failure|misaligned address"
    r"|an illegal instruction was encountered|invalid program counter|hardware stack error|uncorrectable ECC error encountered"
    r"|uncorrectable NVLink error detected during the execution|the launch timed out and was terminated"
    r"|operation not supported on global/shared address space|Invalid access of peer GPU memory over nvlink or a hardware error"
    r"|no kernel image is available for execution on the device|the provided PTX was compiled with an unsupported toolchain"
    rf"|unknown error|(?:{'|'.join(REFUSED)})(?![\w/])"
)
NPU_CODES = {
    "507010": "the device lost its heartbeat",
    "507011": "the execution of a model failed",
    "507014": "a kernel on the AI core timed out",
    "507015": "a kernel on the AI core failed",
    "507016": "a kernel on the AI core trapped",
    "507017": "a kernel on the AI CPU timed out",
    "507018": "a kernel on the AI CPU failed",
    "507034": "a kernel on the vector core timed out",
    "507035": "a kernel on the vector core failed",
    "507036": "a kernel on the vector core trapped",
    "507046": "the synchronization of a stream timed out",
    "507048": "a group of kernels (FFTS+) timed out",
    "507049": "a group of kernels (FFTS+) failed",
    "507053": "the memory of the device failed",
    "507054": "the memory of the device failed (ECC)",
    "507056": "the memory of the device may be defective",
    "507057": "another device may have failed",
}
"""Errors of an Ascend NPU after which its process cannot go on (`rt_error_codes.h` of CANN)."""


def _npu(code: str) -> str:
    """What torch_npu and CANN print of these errors; `code`: the words in front of the number."""
    return (
        r"(?:\bNPU (?:function )?error\b[^\n]{0,300}?|\bACL stream synchronize failed), "
        rf"(?P<what>{code}(?:{'|'.join(NPU_CODES)}))\b"
    )


_TEXT = (
    pattern(rf"(?:CUDA error|Triton Error \[CUDA\]): (?P<what>{_TEXTS})"),
    pattern(_npu("error code(?: is |: ?)")),
)


def text_of(message: str) -> str:
    """The error within an exception's message; empty if there is none."""
    return next((found["what"] for each in _TEXT if (found := each.search(message))), "")


WATCHDOG = Signal(
    "gpu.watchdog",
    " watchdog thread terminated with exception: CUDA error: ",
    r"(?:\bRank (?P<rank>\d+)\] )?(?:Process group|NCCL) watchdog thread terminated with exception: CUDA error: "
    rf"(?P<what>{_TEXTS})",
    OUTPUT,
    "[rank1]:[E1121 07:34:12.715298746 ProcessGroupNCCL.cpp:2057] [PG ID 2 PG GUID 3 Rank 1] Process group watchdog thread terminated with "
    "exception: CUDA error: an illegal memory access was encountered",
    fold=("rank", "what"),
)
"""torch's watchdog thread ends its process with this exception."""
RAISED = (
    Signal(
        "gpu.raised",
        "Error: CUDA error: ",
        rf"(?:^|\] ) *(?:torch\.)?(?:RuntimeError|AcceleratorError): CUDA error: (?P<what>{_TEXTS})",
        OUTPUT,
        "torch.AcceleratorError: CUDA error: device-side assert triggered",
        fold=("what",),
    ),
    Signal(
        "gpu.raised",
        "Error: Triton Error [CUDA]: ",
        rf"(?:^|\] ) *RuntimeError: Triton Error \[CUDA\]: (?P<what>{_TEXTS})",
        OUTPUT,
        "RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered",
        fold=("what",),
    ),
    Signal(
        "gpu.raised",
        "(700) an illegal memory access",
        r"\b(?i:CUDA)(?: runtime| driver)? (?i:error|failure)\b.{0,600}?\(700\) (?P<what>an illegal memory access was encountered)",
        OUTPUT,
        "[ERROR] CUDA error /src/model/gpt.cc:278 'cudaMemcpy(a, b, n, kind)': (700) an illegal memory access was encountered",
        fold=("what",),
    ),
    Signal(
        "gpu.raised",
        "error code is 507",
        _npu("error code is "),
        OUTPUT,
        "RuntimeError: operator():torch_npu/csrc/core/npu/NPUStream.cpp:506 NPU function error: call aclnnRmsNorm failed, error code is 507014",
        fold=("what",),
    ),
    Signal(
        "gpu.raised",
        "error code:",
        _npu("error code: ?"),
        OUTPUT,
        "RuntimeError: ACL stream synchronize failed, error code:507018",
        fold=("what",),
    ),
)
"""Exceptions of torch, Triton and torch_npu, and what C++ engines print of a failed call, with its code."""
NPU_WORDS = Signal(
    "gpu.npu_words",
    "[Error]: The ",
    r"^\[Error\]: The (?P<what>(?:aicore|aicpu|vector core)(?: trap)? exec\w{0,10} (?:times out|is abnormal))",
    OUTPUT,
    "[Error]: The aicore execution times out.",
    fold=("what",),
)
"""CANN's meaning of the code, in the lines below torch_npu's exception: a paste may have lost the code."""
ROCM = Signal(
    "gpu.rocm",
    "emory access fault by GPU node-",
    r"^(?P<what>Memory access fault by GPU node-\d+) \(Agent handle: \w+\) on address \S+\. Reason: ",
    OUTPUT,
    "Memory access fault by GPU node-4 (Agent handle: 0x55d3c6e1a0b0) on address 0x7f31c8a00000. Reason: Page not present or supervisor "
    "privilege.",
    fold=("what",),
)
"""AMD's runtime (`runtime.cpp` of ROCR) prints it and aborts the process."""
LOGGED = Signal(
    "gpu.logged",
    "CUDA error: ",
    rf"(?:: |')CUDA error: (?P<what>{_TEXTS})",
    OUTPUT,
    "Failed to pickle inputs of failed execution: CUDA error: an illegal memory access was encountered",
    fold=("what",),
)
"""The error within another sentence. It counts only with the lines that torch appends to its text."""
_CUT = Signal(
    "gpu.cut",
    "Error: CUDA error: ",
    r"(?:^|\] ) *(?:torch\.)?(?:RuntimeError|AcceleratorError): CUDA error: (?P<what>[a-z][a-z -]{4,60}?) ?$",
    OUTPUT,
    "RuntimeError: CUDA error: an ill",
    fold=("what",),
)
"""The error of a paste that ends within it: it counts if every text that begins so is that of a fault."""
_APPENDED = Signal(
    "gpu.appended",
    "TORCH_USE_CUDA_DSA",
    r"(?:^|\] )Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions",
    OUTPUT,
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
)
ASSERTION = Signal(
    "gpu.assertion",
    "] Assertion `",
    r"(?P<file>[\w.+-]{1,200}\.cuh?):(?P<where>\d+): (?P<function>[^`]{1,1000}?): block: \[\d+,\d+,\d+\], thread: \[\d+,\d+,\d+\] "
    r"Assertion `(?P<condition>[^`]{1,300})` failed",
    OUTPUT,
    "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1284: indexSelectLargeIndex: block: [250,0,0], thread: [33,0,0] Assertion "
    "`srcIndex < srcSelectDimSize` failed.",
    fold=("condition",),
)
XID = Signal(
    "gpu.xid",
    "NVRM: Xid (",
    r"(?:^|\] |kernel: )NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F:.]{2,10})(?: GPU-I:\d{1,4}(?: GPU-CI:\d{1,4})?)?\): (?P<xid>\d+)(?:, pid='?(?P<owner>\d+|<unknown>)'?)?"
    r"(?:, name='?(?P<comm>[^,']{1,64})'?)?(?:, (?P<detail>.*))?",
    ("kernel", *DRIVER),
    "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    fold=("pci", "xid"),
)
"""Pasted consoles contain lines of `dmesg` as well. With MIG, a line also has the GPU's instance (`kernel_rc.c` of the driver)."""
SIGNALS = (WATCHDOG, *RAISED, NPU_WORDS, ROCM, LOGGED, _CUT, _APPENDED, ASSERTION, XID)
_APPENDED_LINES = 4
"""Lines from the error to torch's last line: one or two others are between them."""

OFF_THE_BUS, CONTAINED = 79, 94
HARDWARE = {
    48: "a double-bit ECC error",
    62: "its micro-controller halted",
    64: "remapping a row of its memory failed",
    74: "an NVLink error",
    79: "it fell off the bus",
    94: "a contained ECC error",
    95: "an uncontained ECC error",
    119: "its system processor (GSP) did not answer",
    120: "its system processor (GSP) failed",
    140: "an uncorrected ECC error",
}
"""Xids that report a fault of the GPU, its link or its firmware (NVIDIA's Xid catalog, `nverror.h` of its driver)."""
SOFTWARE = {
    13: "a kernel raised an exception",
    31: "a kernel accessed an address that is not mapped",
}
"""Xids that the program on the GPU usually causes."""
_LATER = 600.0
"""Seconds from a GPU fault to its consequences: longer than the usual timeouts of vLLM and compiled graphs."""


class Fault(NamedTuple):
    """An Xid that belongs to this capture."""

    event: Event
    xid: int
    pci: str
    is_hardware: bool

    @property
    def meaning(self) -> str:
        """The meaning of the Xid, as a clause."""
        return (HARDWARE if self.is_hardware else SOFTWARE)[self.xid]


def faults(case: Case) -> Iterator[Fault]:
    """Hardware errors since the capture's first event, and errors of kernels that a process of Ray may have started."""
    printed = [
        e.at
        for e in case.events
        if e.at is not None and e.source.role != "kernel" and e.kind != XID.kind
    ]
    begin = min(printed, default=float("-inf"))
    for event in case.of(XID.kind):
        xid, pci = int(event["xid"][:9]), event["pci"]
        if event.at is not None and event.at < begin:
            continue
        if xid in HARDWARE:
            yield Fault(event, xid, pci, is_hardware=True)
        elif xid in SOFTWARE and kernel.is_program(event["comm"]):
            yield Fault(event, xid, pci, is_hardware=False)


def printed(case: Case) -> list[Event]:
    """GPU errors that a process printed: raised, by torch's watchdog or AMD's runtime, or within another line with torch's text."""
    ends = case.of(_APPENDED.kind)
    logged = [
        e
        for e in case.of(LOGGED.kind)
        if any(
            e.source is end.source and e.pid == end.pid and 0 < end.line - e.line <= _APPENDED_LINES
            for end in ends
        )
    ]
    known = [*case.of(WATCHDOG.kind, RAISED[0].kind, ROCM.kind)] or case.of(NPU_WORDS.kind)
    return [
        *known,
        *(e for e in logged if not any(e.source is k.source and e.line == k.line for k in known)),
    ]


def cut_off(case: Case) -> list[Event]:
    """Errors within which an excerpt ends, if no error but that of a fault begins so."""
    texts = _TEXTS.split("|")
    return [
        e
        for e in case.of(_CUT.kind)
        if e.source.is_excerpt
        and any(each.startswith(e["what"]) and each != e["what"] for each in texts)
        and not evidence.later_output(case, e)
        and not any(each.startswith(e["what"]) for each in _OTHERS)
    ]


_OTHERS = ("out of memory", "invalid argument", "invalid device", "invalid resource", "unknown e")
"""Beginnings of errors of other kinds."""


def beheaded(case: Case) -> list[Event]:
    """The lines that torch appends to the text of a CUDA error, in an excerpt that begins below the text."""
    return [e for e in case.of(_APPENDED.kind) if e.source.is_excerpt and e.line <= _APPENDED_LINES]


def tracebacks(case: Case, *texts: str) -> tuple[Event, ...]:
    """Tracebacks that a program printed and that contain one of these texts."""
    return tuple(e for e in case.of("log.traceback") if any(text in e.message for text in texts))


def earlier(case: Case, event: Event) -> tuple[Entity, ...]:
    """GPU faults that may have caused this: those before it, if both times are known."""
    found = [Entity("gpu-fault", e["what"]) for e in printed(case) if _is_before(e, event)]
    found += [Entity("gpu-fault", f.pci) for f in faults(case) if _is_before(f.event, event)]
    return tuple(dict.fromkeys(found))


def _is_before(fault: Event, event: Event) -> bool:
    if fault.at is None or event.at is None:
        return True
    return -fault.slack - event.slack - 5 <= event.at - fault.at <= _LATER

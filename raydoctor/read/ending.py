"""The end of a program's output: its own last line, or the traceback that ended it.

A driver's output mixes the program's lines with Ray's (`2026-… INFO worker.py:1691 -- …`, `(raylet) …`,
`(train pid=12) …`, crash frames). A traceback ended the program if no line of the program follows it and its
first frame is the module's. A traceback that was caught and printed begins in the function that caught it
(`traceback.print_exc`, `logging.exception`), or the program continues.

Apart from that, the last line of each process that reports no failure shows which processes continued
after an earlier line.

An excerpt may end with a traceback whose beginning or end is cut off, or that was caught: later output is
not shown.

In a console, the program itself may have a prefix: `(main_task pid=12) …`, `[rank0]: …`, vLLM's
`(EngineCore_DP0 pid=12) ERROR … [core.py:845] …`. Each such process is a writer of its own, and the first
one that an exception ended counts where no exception ended the unprefixed program.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from raydoctor.case.case import OUTPUT
from raydoctor.case.signals import ELSEWHERE
from raydoctor.model.patterns import pattern
from raydoctor.model.values import CONSOLES, Event, Gap, Source
from raydoctor.read.records import parse_line

KIND = "driver.tail"
_TAIL = 64 << 10
_COUNTED = 64 << 20
"""Bytes; in larger outputs lines are not counted."""
_KEPT_LINES = 250
_INSPECTED = 400
"""Characters of a line that are searched for words of failure."""

_TRACEBACK = "Traceback (most recent call last):"
_RAYS_RECORD = pattern(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\t[A-Z]+ [\w./-]+\.py:\d+ -- |\[\d{4}-\d\d-\d\d "
)
_RAYS_FAILURE = pattern(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\t(?:WARNING|ERROR) \w+\.py:\d+ -- "
    r".{0,300} with the following error:\s*$"
)
"""Above another process's traceback: `The agent on node … failed with the following error:`."""
_IGNORED = "Exception ignored in"
"""Above the traceback of an exception that a finalizer or a callback raised: the program continues."""
_NOISE = (
    *("*** SIG", "PC: @", "    @ ", ":job_id:", ":task_name:", ":actor_name:"),
    # What other programs print after the end of this one: experiment trackers, launchers, Python at exit.
    *("wandb: ", "srun: ", "slurmstepd: ", "make: *** ", "make[", "ERROR conda.cli.main_run:"),
    *(_IGNORED, "Warning: WARNING: destroy_process_group() was not called"),
    "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace",
)
_AT_EXIT = pattern(
    r"resource_tracker: There appear to be \d+ leaked|  warnings\.warn\("
    r"|torch/distributed/elastic/\S+\.py:\d+\] "
)
_HYDRA = "Error executing job with overrides: "
"""Above the uncaught exception of a program that hydra starts; hydra leaves out its own frames."""
_OF_CHILD = (
    "subprocess.CalledProcessError: Command ",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError",
)
"""What a launcher (accelerate, torchrun) raises when the program that it started has failed."""
_FRAME = '  File "'
_OUTERMOST = pattern(r'  File "[^"]*", line \d+, in (?:<module>|_run_module_as_main)$')
_FATAL = (
    *("EngineCore failed to start.", "EngineCore encountered a fatal error."),
    *("WorkerProc failed", "WorkerProc hit an exception."),
)
"""What vLLM's processes log above the exception that ends them (`v1/engine/core.py`,
`v1/executor/multiproc_executor.py`, 0.8 to 0.20)."""
_LONE = pattern(
    r"(?:[a-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception): \S"
    r"|(?:[a-z_]\w{0,60}\.){0,8}(?:exceptions?|errors?)\.[A-Z]\w{1,60}: \S"
    r"|pyarrow\.lib\.Arrow[A-Z]\w{1,60}: \S"
)
"""An exception's own line, which may be all that an excerpt ends with."""
_GOES_ON = (" ", "\t", ":", "}", ")", "]")
"""Beginnings of the further lines of an exception's message, and of the stack of a JVM."""
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


_NO_OUTPUT = pattern(
    r"^\s|^[^\s:]{0,100}[$#%>](?: |$)|^File \"[^\"]{1,300}\", line \d"
    r"|^Stack \(most recent call|^<no Python frame>|^frame #|^OpenBLAS |^Extension modules: |^==== backtrace "
    r"|\b0x[0-9a-f]{6}"
    r"|(?i:error|exception|traceback|warn|fail|fatal|abort|kill|terminat|crash|died|dead|lost"
    r"|exit|shut|stop|segmentation|dumped|timed out|time ?out)"
)
"""Lines that do not show a process at work: parts of a report, a shell's prompt, and what precedes an end."""
_WORD = pattern(r"[^\W\d_]{2}")


@dataclass(frozen=True, slots=True)
class _Own:
    """A line of the program's own output."""

    offset: int
    text: str


def read(files: dict[Source, str], gaps: list[Gap]) -> list[Event]:
    """One event for each driver's output that is not empty. A pid means that the driver was still running."""
    events: list[Event] = []
    for source, file in files.items():
        if source.role in CONSOLES and not source.pid:
            try:
                events += _ending(source, file)
            except OSError as error:
                gaps.append(Gap(source.path, f"could not be read: {error.strerror}"))
    return events


def _ending(source: Source, file: str) -> Iterator[Event]:
    with open(file, "rb") as stream:
        size = stream.seek(0, 2)
        begin = max(0, size - _TAIL)
        stream.seek(begin)
        data = stream.read(_TAIL)
        first = _line_number(stream, begin) if size <= _COUNTED else 0
        writers, with_workers = _own_lines(source, data, begin)
        own = writers.get("", [])
        started = _last_traceback(_of_started(own), source.is_excerpt)
        block = started or _last_traceback(own, source.is_excerpt)
        if not block or _points_elsewhere(block):
            block = _first_of(writers, source.is_excerpt) or block
        ended_by = "traceback" if block else ""
        if not block and source.is_excerpt:
            block = _at_the_end(with_workers)
            ended_by = "excerpt" if block else ""
    shown = block or own[-1:]
    if shown:
        number = first and first + data.count(b"\n", 0, shown[0].offset - begin)
        text = "\n".join(line.text for line in shown[-_KEPT_LINES:])
        fields = {"ended_by": ended_by}
        yield Event(KIND, source, number, shown[0].offset, text, text, fields=fields)
    for writer, line in _last_outputs(with_workers, block):
        number = first and first + data.count(b"\n", 0, line.offset - begin)
        who, _, pid = writer.rpartition(" ")
        yield Event(
            OUTPUT, source, number, line.offset, line.text, line.text,
            pid=int(pid) if pid.isdecimal() and len(pid) < 11 else None, fields={"who": who},
        )  # fmt: skip


_OF_PROGRAM = ("", "driver")
_OF_WORKERS = (*_OF_PROGRAM, "worker")


def _own_lines(
    source: Source, data: bytes, offset: int
) -> tuple[dict[str, list[_Own]], dict[str, list[_Own]]]:
    """Lines in the tail by writer, without a partial first line: `` is the program without a prefix.

    Those of the program, and those of the program and its workers.
    """
    writers: dict[str, list[_Own]] = {}
    with_workers: dict[str, list[_Own]] = {}
    quoting: dict[str, str] = {}
    for number, raw in enumerate(data.splitlines(keepends=True)):
        whole = number > 0 or offset == 0
        line = parse_line(raw.decode("utf-8", "replace"), source.role)
        writer, text = (f"{line.who} {line.pid}", line.message) if line.echo else ("", line.text)
        quoting[writer] = _quoting(quoting.get(writer, ""), text)
        is_own = text.strip() and not quoting[writer] and not _is_rays(text)
        if whole and is_own and line.echo in _OF_WORKERS:
            own = _Own(offset, text)
            with_workers.setdefault(writer, []).append(own)
            if line.echo in _OF_PROGRAM:
                writers.setdefault(writer, []).append(own)
        offset += len(raw)
    return writers, with_workers


def _quoting(state: str, text: str) -> str:
    """A traceback that Ray quotes or Python ignores: announced, then its frame or exception; else empty."""
    if _RAYS_FAILURE.match(text) or text.startswith(_IGNORED):
        return "announced"
    if state == "announced":
        return "frame" if text.startswith(_TRACEBACK) else ""
    if state == "frame":
        return "frame" if text.startswith(" ") or not text.strip() else "exception"
    return ""


def _is_rays(text: str) -> bool:
    return (
        text.startswith(_NOISE)
        or bool(_RAYS_RECORD.match(text))
        or bool(_AT_EXIT.search(text[:200]))
    )


def _first_of(writers: dict[str, list[_Own]], is_cut: bool) -> list[_Own]:
    """The traceback that ended a process, and that was printed first."""
    blocks = [_fatal(lines) or _last_traceback(lines, is_cut) for lines in writers.values()]
    of_ends = [block for block in blocks if block]
    causes = [block for block in of_ends if not _points_elsewhere(block)]
    return min(causes or of_ends, key=lambda block: block[0].offset, default=[])


def _last_outputs(writers: dict[str, list[_Own]], block: list[_Own]) -> Iterator[tuple[str, _Own]]:
    """The last line of each writer that reports no failure, outside the tracebacks that ended a process."""
    ended = {line.offset for line in block}
    for writer, lines in writers.items():
        own = {line.offset for line in _last_traceback(lines, is_cut=True, is_uncaught=True)}
        for line in reversed(lines):
            is_of_end = line.offset in own or line.offset in ended
            text = line.text[:_INSPECTED]
            if not is_of_end and _WORD.search(text) and not _NO_OUTPUT.search(text):
                yield writer, line
                break


def _at_the_end(writers: dict[str, list[_Own]]) -> list[_Own]:
    """The traceback of any process with which an excerpt ends, wherever it begins."""
    last = max(
        (lines for lines in writers.values() if lines), key=lambda own: own[-1].offset, default=[]
    )
    if block := _last_traceback(last, is_cut=True, is_uncaught=True):
        return block
    first = len(last) - 1
    while first > 0 and last[first].text.startswith(_GOES_ON):
        first -= 1
    return last[first:] if last and _LONE.match(last[first].text) else []


def _points_elsewhere(block: list[_Own]) -> bool:
    return any(words in block[-1].text for words in ELSEWHERE)


def _fatal(own: list[_Own]) -> list[_Own]:
    """The traceback that vLLM logged as the end of a process."""
    for n, line in enumerate(own[:-1]):
        if line.text.startswith(_FATAL) and own[n + 1].text.startswith(_TRACEBACK):
            block = own[n + 1 :]
            for end, each in enumerate(block, 1):
                goes_on = end < len(block) and block[end].text.startswith(_CHAINED)
                if not goes_on and not each.text.startswith((" ", _TRACEBACK, *_CHAINED)):
                    return block[:end]
    return []


def _of_started(own: list[_Own]) -> list[_Own]:
    """The lines above the traceback with which a launcher reports that its program failed; else none."""
    starts = [n for n, line in enumerate(own) if line.text.startswith(_TRACEBACK)]
    if starts and any(line.text.startswith(_OF_CHILD) for line in own[starts[-1] :]):
        return own[: starts[-1]]
    return []


def _begins_above(own: list[_Own]) -> bool:
    """Whether a paste is the end of one traceback: frames, and below them the exception."""
    texts = [line.text for line in own]
    return (
        any(text.startswith(_FRAME) for text in texts[:-1])
        and all(text.startswith(" ") for text in texts[:-1])
        and not texts[-1].startswith(" ")
    )


def _last_traceback(own: list[_Own], is_cut: bool, is_uncaught: bool = False) -> list[_Own]:
    """The final chain of tracebacks; empty if the output ends otherwise.

    `is_cut`: whether the output may have been cut off within it, or begin within it. `is_uncaught`: whether
    it counts wherever its first frame is.
    """
    if is_cut and _begins_above(own):
        return own
    starts = [n for n, line in enumerate(own) if line.text.startswith(_TRACEBACK)]
    if not starts:
        return []
    first = starts[-1]
    is_hydras = first > 0 and own[first - 1].text.startswith(_HYDRA)
    if not _ends_with(own[first:], is_cut, is_uncaught or is_hydras):
        return []
    for start in reversed(starts[:-1]):
        if not any(line.text.startswith(_CHAINED) for line in own[start:first]):
            break
        first = start
    return own[first:]


def _ends_with(block: list[_Own], is_cut: bool, is_uncaught: bool) -> bool:
    """Whether a block is one traceback of an uncaught exception with nothing after it.

    `is_uncaught`: whether it certainly is; otherwise its first frame shows it.
    """
    texts = [line.text for line in block[1:]]
    frames = [n for n, text in enumerate(texts) if text.startswith(_FRAME)]
    if not frames or not (is_uncaught or _OUTERMOST.match(texts[frames[0]])):
        return False
    raised = [n for n, text in enumerate(texts) if n > frames[-1] and not text.startswith(" ")]
    if not raised:
        return is_cut
    return len(raised) == 1 or _is_rays_error(texts[raised[0] :])


def _is_rays_error(texts: list[str]) -> bool:
    """Ray's exceptions quote other processes for many lines."""
    return bool(texts) and texts[0].startswith("ray.exceptions.")


def _line_number(stream: BinaryIO, offset: int) -> int:
    """1-based number of the line at an offset."""
    stream.seek(0)
    return stream.read(offset).count(b"\n") + 1

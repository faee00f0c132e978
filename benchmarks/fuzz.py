"""Damages captures, archives, exports and examples, and diagnoses each: no crash, no disabled rule, no giant.

    python -m benchmarks.fuzz --count 2500 --seed 1
    python -m benchmarks.fuzz --seed 1 --only 417          # one of these again
    python -m benchmarks.fuzz --seed 1 --only 417 --keep DIR

Every case is made from its seed and number alone. A case fails if it raises anything but a RaydoctorError, if
a rule or collector crashes (its gap reports that), if a format of its report cannot be parsed, if it takes
more than 30 s of processor time, or if the process grows by 500 MB. `MUTATIONS` lists what is done to
a capture; add further kinds there.
"""

from __future__ import annotations

import argparse
import base64
import bz2
import gzip
import io
import json
import lzma
import os
import random
import re
import resource
import shutil
import sys
import tarfile
import tempfile
import time
import traceback
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from raydoctor import rules
from raydoctor.capture.contents import HEAD, role_of_text
from raydoctor.capture.open import open_capture
from raydoctor.case.rule import Example
from raydoctor.cli._options import REPORT_FORMATS
from raydoctor.cli.diagnose import as_text
from raydoctor.diagnosis import engine
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.values import Report
from tests.helpers import sinks
from tests.helpers.captures import capture_of, fixtures

SECONDS, MEGABYTES = 30.0, 500.0
_LINE = 1 << 20
"""Bytes of a line that is made huge."""
_SAMPLE = re.compile(r'#.*|\w+(?:\{(?:\w+="(?:[^"\\]|\\.)*",?)*\})? \S+|')
_ANNOTATION = re.compile(r"::(?:error|warning|notice)[ :]")
_CRASHED = re.compile(r"crashed|internal error")

Files = dict[str, bytes]
"""Path in the capture -> content."""
Mutation = Callable[[Files, random.Random], None]


class Failure(NamedTuple):
    """A case that must not be."""

    number: int
    made: str
    """Fixture and mutations."""
    why: str


class Outcome(NamedTuple):
    """What a case cost, and why it fails; empty where it does not."""

    made: str
    why: str
    seconds: float


# ---------------------------------------------------------------- one file's bytes


def _flip(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 10, 200)) if out else 0):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _cut(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] if rng.random() < 0.6 else data[at:]


def _drop_block(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.randrange(4096) :]


def _repeat_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    at = rng.randrange(len(lines) + 1)
    return b"".join(
        lines[:at] + lines[at : at + rng.randrange(1, 20)] * rng.choice((2, 50)) + lines[at:]
    )


def _shuffle_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    rng.shuffle(lines)
    return b"".join(lines)


def _join_lines(data: bytes, rng: random.Random) -> bytes:
    return data.replace(b"\n", rng.choice((b"", b" ", b"\r", b"\v", b"\0", "\u2028".encode())))


def _huge_line(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines(keepends=True) or [b"x"]
    at = rng.randrange(len(lines))
    part = lines[at].rstrip(b"\n")[-rng.randrange(1, 60) :] or b" "
    lines[at] = lines[at].rstrip(b"\n") + part * (_LINE // len(part)) + b"\n"
    return b"".join(lines)


def _numbers(data: bytes, rng: random.Random) -> bytes:
    """Some numbers become ones that nothing expects."""
    odd = (
        b"-1",
        b"0",
        b"9" * 19,
        b"9" * 400,
        b"1e999",
        b"nan",
        b"inf",
        "\u0663".encode(),
        b"",
        b"-0.0",
    )
    chance = rng.choice((0.01, 0.2))
    return re.sub(rb"\d+", lambda m: rng.choice(odd) if rng.random() < chance else m[0], data)


def _words(data: bytes, rng: random.Random) -> bytes:
    """Some words become another of the same text, or nothing."""
    words = re.findall(rb"\w+", data[:20_000]) or [b"x"]
    chance = rng.choice((0.01, 0.1))

    def other(match: re.Match[bytes]) -> bytes:
        return rng.choice((rng.choice(words), b"")) if rng.random() < chance else match[0]

    return re.sub(rb"\w+", other, data)


def _headers(data: bytes, rng: random.Random) -> bytes:
    """Each line gets the header of another one, and its own loses it."""
    headers = re.findall(
        rb"^\[[^\]\n]{10,60}\] \(\w+\) \S+ |^\S+ \S+\t\w+ ", data, re.MULTILINE
    ) or [b""]
    headers += [
        b"[",
        b"{",
        b"(raylet) ",
        b"(f pid=1, ip=x) ",
        b"E1121 04:58:43.606480 31606 f.cc:378] ",
    ]
    return b"".join(
        rng.choice(headers) + line.partition(b"] ")[2] + b"\n"
        if rng.random() < 0.3
        else line + b"\n"
        for line in data.split(b"\n")
    )


def _json_values(data: bytes, rng: random.Random) -> bytes:
    """Values of JSON become ones of another type."""
    odd = (b"null", b"[]", b"{}", b"-1e308", b'""', b"true", b"[" * 2000, b'"\\ud800"', b"1" * 5000)
    return re.sub(
        rb'(?<=": )(?:"[^"\n]*"|-?\d[\d.e+-]*|null|true|false)',
        lambda m: rng.choice(odd) if rng.random() < 0.1 else m[0],
        data,
    )


def _noise(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.choice((1, 100, 20_000))) + data[at:]


def _encoded(data: bytes, rng: random.Random) -> bytes:
    text = data.decode("utf-8", "replace")
    return rng.choice(
        (
            lambda: text.encode("utf-16"),
            lambda: text.encode("utf-16-be"),
            lambda: text.encode("utf-32"),
            lambda: text.encode("cp500", "replace"),
            lambda: data.replace(b"\n", b"\r"),
            lambda: gzip.compress(data, 1),
            lambda: lzma.compress(data, preset=0),
            lambda: bz2.compress(data, 1),
            lambda: base64.encodebytes(data),
            lambda: gzip.compress(text.encode("utf-16"), 1),
            lambda: b"",
            lambda: bytes(len(data)),
        )
    )()  # fmt: skip


BYTES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _flip, _cut, _drop_block, _repeat_lines, _shuffle_lines, _join_lines, _huge_line, _numbers, _words,
    _headers, _json_values, _noise, _encoded,
)  # fmt: skip


# ---------------------------------------------------------------- the files of a capture


def _one_file(files: Files, rng: random.Random) -> None:
    name = rng.choice(sorted(files))
    files[name] = rng.choice(BYTES)(files[name], rng)


def _all_files(files: Files, rng: random.Random) -> None:
    change = rng.choice([each for each in BYTES if each is not _huge_line])
    for name in files:
        files[name] = change(files[name], rng)


def _swap(files: Files, rng: random.Random) -> None:
    one, other = rng.choice(sorted(files)), rng.choice(sorted(files))
    files[one], files[other] = files[other], files[one]


def _rename(files: Files, rng: random.Random) -> None:
    name = rng.choice(sorted(files))
    folder, _, last = name.rpartition("/")
    odd = (
        f"{last}.gz", f"{last}.1", f"a\nb/{last}", f"{'x' * 200}/{last}", f"\x1b[31m/{last}",
        f"session_2/{last}", f"old/{last}", f"node-\udcff/{last}", "driver.log", "dmesg.txt",
        "live-tasks.json", "raydoctor.json",
        "event_RAYLET.log", "debug_state.txt", "ray-stack.txt", "live-events.jsonl", "gcs_server.out",
    )  # fmt: skip
    files["/".join(p for p in (folder, rng.choice(odd)) if p)] = files.pop(name)


def _forget(files: Files, rng: random.Random) -> None:
    if len(files) > 1:
        del files[rng.choice(sorted(files))]


def _duplicate(files: Files, rng: random.Random) -> None:
    for name in list(files):
        files[f"node-{rng.randrange(3)}/{name}"] = files[name]


MUTATIONS: tuple[Mutation, ...] = (
    *(_one_file,) * 6, _all_files, _swap, _rename, _forget, _duplicate,
)  # fmt: skip


# ---------------------------------------------------------------- a case


@cache
def _examples() -> list[Example]:
    """Of every rule: they have what no fixture has, such as documents of Kubernetes and tables of Slurm."""
    return [example for each in rules.load() for example in each.examples]


def _seed(rng: random.Random) -> tuple[str, Files]:
    """The name and the files of something to damage."""
    kind = rng.choice((_fixture, _fixture, _export, _history_server, _example, _orchestrated))
    return kind(rng)


def _fixture(rng: random.Random) -> tuple[str, Files]:
    folder = rng.choice(fixtures())
    return folder.name, _content(capture_of(folder))


def _export(rng: random.Random) -> tuple[str, Files]:
    folder = rng.choice(fixtures("*--1-node"))
    form = rng.choice((*sinks.FILES, *sinks.TREES))
    with tempfile.TemporaryDirectory() as into:
        made = sinks.export(capture_of(folder), form, Path(into))
        files = _content(made) if made.is_dir() else {made.name: made.read_bytes()}
    return f"{folder.name} as {form}", files


def _example(rng: random.Random) -> tuple[str, Files]:
    example = rng.choice(_examples())
    return example.title, {name: text.encode() for name, text in example.files.items()}


def _history_server(rng: random.Random) -> tuple[str, Files]:
    """A session as a KubeRay History Server keeps it."""
    folder = rng.choice([f for f in fixtures("*--1-node") if (capture_of(f) / "logs").is_dir()])
    session = "cluster-history/raycluster/ml/train/session_2026-11-21_07-34-00_123456_1"
    with tempfile.TemporaryDirectory() as into:
        sinks.keep(capture_of(folder) / "logs", Path(into) / session / sinks.NODE)
        files = _content(Path(into))
    for name in [each for each in files if each.endswith(".jsonl.gz")]:
        files[name.removesuffix(".gz")] = gzip.decompress(files.pop(name))
    return f"{folder.name} in a History Server", files


def _orchestrated(rng: random.Random) -> tuple[str, Files]:
    """Ray's logs beside what Kubernetes or Slurm recorded."""
    folder = rng.choice(fixtures("*--1-node"))
    records = rng.choice(_of_orchestrators())
    return f"{folder.name} beside {', '.join(records)}", {
        **_content(capture_of(folder)),
        **records,
    }


@cache
def _of_orchestrators() -> list[Files]:
    """The documents of Kubernetes and Slurm in the examples of the rules."""
    found = [
        {name: text.encode() for name, text in each.files.items() if role_of_text(text[:HEAD])}
        for each in _examples()
    ]
    return [files for files in found if files]


def _content(folder: Path) -> Files:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def make(seed: int, number: int, into: Path) -> tuple[Path, str]:
    """Write the input of a case; where it is, and what was done to what."""
    rng = random.Random(f"{seed}/{number}")
    name, files = _seed(rng)
    done = rng.choices(MUTATIONS, k=rng.choice((1, 1, 2, 4)))
    for mutation in done:
        mutation(files, rng)
    made = f"{name}: {', '.join(each.__name__ for each in done)}"
    if rng.random() < 0.35:
        return _as_archive(files, into, rng, made)
    for name, content in files.items():
        file = into / "capture" / os.fsdecode(name.encode("utf-8", "surrogateescape"))
        if not file.is_dir():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    return into / "capture", made


def _as_archive(files: Files, into: Path, rng: random.Random, made: str) -> tuple[Path, str]:
    kind = rng.choice(("tar", "tar.gz", "tar.xz", "tar.bz2", "tar.zst", "zip"))
    data = _packed(files, kind)
    change = rng.choice((None, _flip, _flip, _cut, _drop_block, _noise))
    if change:
        data = change(data, rng)
    file = into / f"x.{kind}"
    file.write_bytes(data)
    return file, f"{made}; {kind}{f' {change.__name__}' if change else ''}"


def _packed(files: Files, kind: str) -> bytes:
    out = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as bundle:
            for name, content in files.items():
                bundle.writestr(name.encode("utf-8", "replace").decode(), content)
        return out.getvalue()
    mode = {"tar.gz": "w:gz", "tar.xz": "w:xz", "tar.bz2": "w:bz2"}.get(kind, "w")
    with tarfile.open(fileobj=out, mode=mode) as tar:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    if kind == "tar.zst":
        import zstandard

        return zstandard.ZstdCompressor().compress(out.getvalue())
    return out.getvalue()


def judge(path: Path) -> str:
    """Diagnose an input and render the report in every format; why that failed, or empty."""
    try:
        with open_capture(str(path)) as capture:
            report = engine.run(capture)
    except RaydoctorError:
        return ""
    _render(report)
    return "; ".join(f"{g.what} {g.why}" for g in report.gaps if _CRASHED.search(g.why))


def _render(report: Report) -> None:
    """Every format is made, and is what its readers can parse. Raises ValueError and ParseError."""
    made = {form: as_text(report, form, verbose=True) for form in REPORT_FORMATS}
    for form, text in made.items():
        text.encode("utf-8")
        if any(unicodedata.category(char) == "Cc" and char not in "\n\t" for char in text):
            raise ValueError(f"a control character reaches the {form}")
    for form in ("json", "sarif"):
        json.loads(made[form])
    ElementTree.fromstring(made["junit"])
    for line in made["prometheus"].split("\n"):
        if not _SAMPLE.fullmatch(line):
            raise ValueError(f"no line of Prometheus: {line}")
    for line in made["github"].rstrip("\n").split("\n"):
        if not _ANNOTATION.match(line):
            raise ValueError(f"no annotation: {line}")


def run(seed: int, number: int, keep: Path | None = None) -> Outcome:
    """Make a case, judge it, and remove it."""
    into = Path(tempfile.mkdtemp(prefix="raydoctor-fuzz-"))
    made = "making it"
    began, before = _cpu(), _peak()
    try:
        path, made = make(seed, number, into)
        if keep:
            shutil.copytree(into, keep, dirs_exist_ok=True)
        began = _cpu()
        why = judge(path)
    except Exception:
        why = traceback.format_exc(limit=-4)
    finally:
        shutil.rmtree(into, ignore_errors=True)
    seconds, grown = _cpu() - began, _peak() - before
    if seconds > SECONDS:
        why += f" took {seconds:.0f} s"
    if grown > MEGABYTES:
        why += f" took {grown:.0f} MB"
    return Outcome(made, why, seconds)


def failures(seed: int, numbers: range) -> Iterator[Failure]:
    """The cases among these that fail."""
    for number in numbers:
        outcome = run(seed, number)
        if outcome.why:
            yield Failure(number, outcome.made, outcome.why)


def _cpu() -> float:
    """Seconds of processor time of this process and its ended children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _peak() -> float:
    """Megabytes: the most that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    """Run cases; 1 if one fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="one case")
    parser.add_argument("--keep", type=Path, help="copy the inputs here")
    given = parser.parse_args()
    numbers = range(given.first, given.first + given.count) if given.only is None else (given.only,)
    failed, slowest, began = 0, (0.0, 0), time.monotonic()
    for number in numbers:
        outcome = run(given.seed, number, given.keep)
        slowest = max(slowest, (outcome.seconds, number))
        if outcome.why:
            failed += 1
            print(
                f"--- seed {given.seed}, case {number}: {outcome.made}\n{outcome.why}", flush=True
            )
    print(
        f"{len(numbers)} cases, {failed} failed, {time.monotonic() - began:.0f} s; "
        f"slowest: case {slowest[1]} with {slowest[0]:.1f} s; peak {_peak():.0f} MB"
    )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

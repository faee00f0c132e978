"""What happens to logs before they are read: rotated, mixed, shifted, cut, lost. Seeded.

A capture is a mapping from path to bytes; each perturbation is a function of one and a `Random`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from raydoctor.capture.layout import identify, node_label

Files = Mapping[str, bytes]
Change = Callable[[Files, random.Random], dict[str, bytes]]

_STAMP = re.compile(rb"^(\[?)(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})", re.MULTILINE)
_KERNEL = re.compile(rb"^\[(\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4})\]", re.MULTILINE)
_EPOCH = re.compile(rb'("timestamp": ?"?|received at time=)(\d{10})')
_FORM = "%Y-%m-%d %H:%M:%S,%f"
_KERNEL_FORM = "%a %b %d %H:%M:%S %Y"
_ROTATED_BY_CPP = ("raylet-out", "raylet-err", "gcs-out", "gcs-err", "core-driver", "core-worker")
_ROTATED_BY_PYTHON = ("dashboard", "dashboard-agent", "monitor", "runtime-env-agent")


class Perturbation(NamedTuple):
    """A change, and whether it can take evidence away."""

    name: str
    change: Change
    loses: bool


def role(path: str) -> str:
    """The role of a file in a capture, or empty."""
    source = identify(path)
    return source.role if source else ""


# ---------------------------------------------------------------- nothing is lost


def rotated(files: Files, rng: random.Random) -> dict[str, bytes]:
    """Each log in two or three parts with the names that Ray's rotation gives; files shuffled."""
    parts = [part for path, data in files.items() for part in _rotation(path, data, rng)]
    rng.shuffle(parts)
    return dict(parts)


def _rotation(path: str, data: bytes, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    starts = [match.start() for match in _STAMP.finditer(data)][1:]
    stem, dot, extension = path.rpartition(".")
    said = role(path)
    cpp, python = said in _ROTATED_BY_CPP, said in _ROTATED_BY_PYTHON
    if not starts or not (cpp or python) or stem.rpartition(".")[2].isdigit():
        yield path, data
        return
    cuts = sorted(rng.sample(starts, min(len(starts), rng.randint(1, 2))))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    for age, piece in enumerate(reversed(pieces)):
        rotation = f"{stem}.{age}{dot}{extension}" if cpp else f"{path}.{age}"
        yield (rotation if age else path), piece


def mixed_with(healthy: Files) -> Change:
    """The logs of another job's workers, who were well, beside those of this capture."""

    def change(files: Files, rng: random.Random) -> dict[str, bytes]:
        folder = next((p.rpartition("/")[0] for p in files if role(p) == "raylet-out"), "logs")
        shift = _first(files) - _first(healthy) if _has_stamps(files) else timedelta()
        others = {
            f"{folder}/{path.rpartition('/')[2]}".replace("01000000", "0a000000"): _shifted(
                data.replace(b"01000000", b"0a000000"), shift
            )
            for path, data in healthy.items()
            if role(path) in ("worker-out", "worker-err", "core-worker", "io-worker", "core-io")
        }
        return {**others, **files}

    return change


def clocks_shifted(files: Files, rng: random.Random) -> dict[str, bytes]:
    """Every node's clock is wrong by up to two minutes, and each is in a time zone of its own."""
    wrong: dict[str, tuple[timedelta, timedelta]] = {}
    for path in sorted(files):
        node = node_label(path.rpartition("/")[0])
        off = timedelta(seconds=rng.uniform(-120, 120))
        wrong.setdefault(node, (off, timedelta(hours=rng.randint(-11, 12))))
    changed = {}
    for path, data in files.items():
        off, zone = wrong[node_label(path.rpartition("/")[0])]
        changed[path] = _epochs_shifted(_shifted(data, off + zone), off)
    return changed


def _epochs_shifted(data: bytes, by: timedelta) -> bytes:
    seconds = round(by.total_seconds())
    return _EPOCH.sub(lambda m: m[1] + b"%d" % (int(m[2]) + seconds), data)


# ---------------------------------------------------------------- evidence is lost


def first_third_of_time(files: Files, rng: random.Random) -> dict[str, bytes]:
    """Nothing is left of the first third of the time that the logs cover."""
    return _time_cut(files, lambda done: done >= 1 / 3)


def last_third_of_time(files: Files, rng: random.Random) -> dict[str, bytes]:
    """Nothing is left of the last third of the time that the logs cover."""
    return _time_cut(files, lambda done: done < 2 / 3)


def first_third_of_each(files: Files, rng: random.Random) -> dict[str, bytes]:
    """Each log has lost its first third, in the midst of a line."""
    return {path: data[len(data) // 3 :] for path, data in files.items()}


def last_third_of_each(files: Files, rng: random.Random) -> dict[str, bytes]:
    """Each log has lost its last third, in the midst of a line."""
    return {path: data[: len(data) - len(data) // 3] for path, data in files.items()}


def torn(files: Files, rng: random.Random) -> dict[str, bytes]:
    """From the midst of each log a fifth of the lines is missing."""
    changed = {}
    for path, data in files.items():
        lines = data.splitlines(keepends=True)
        size = len(lines) // 5
        start = rng.randint(0, len(lines) - size)
        changed[path] = b"".join(lines[:start] + lines[start + size :])
    return changed


def without(*prefixes: str) -> Change:
    """Files of some roles are not there."""

    def change(files: Files, rng: random.Random) -> dict[str, bytes]:
        return {p: d for p, d in files.items() if not role(p).startswith(prefixes)}

    return change


def only(*roles: str) -> Change:
    """Only files of some roles are there."""

    def change(files: Files, rng: random.Random) -> dict[str, bytes]:
        return {p: d for p, d in files.items() if role(p) in roles}

    return change


def keeping_tables(perturbation: Perturbation) -> Perturbation:
    """The same, done to the logs alone: what a live collection wrote is whole, or is not there."""

    def change(files: Files, rng: random.Random) -> dict[str, bytes]:
        tables = {p: d for p, d in files.items() if role(p) in ("live", "reading", "manifest")}
        logs = {p: d for p, d in files.items() if p not in tables}
        if not tables:
            return perturbation.change(files, rng)
        kept = {} if perturbation.name in _ALONE else tables
        return {**(perturbation.change(logs, rng) if logs else {}), **kept}

    return perturbation._replace(change=change)


_ALONE = ("driver output alone",)


def perturbations(healthy: Files) -> tuple[Perturbation, ...]:
    """All of them; `healthy` is a capture in which nothing failed."""
    return (
        Perturbation("rotated, shuffled", rotated, False),
        Perturbation("mixed with healthy logs", mixed_with(healthy), False),
        Perturbation("clocks shifted per node", clocks_shifted, False),
        Perturbation("first third of the time cut", first_third_of_time, True),
        Perturbation("last third of the time cut", last_third_of_time, True),
        Perturbation("first third of each file cut", first_third_of_each, True),
        Perturbation("last third of each file cut", last_third_of_each, True),
        Perturbation("torn in the middle", torn, True),
        Perturbation("no driver output", without("driver", "job-driver"), True),
        Perturbation("no GCS logs", without("gcs"), True),
        Perturbation("no raylet logs", without("raylet"), True),
        Perturbation("no worker logs", without("worker", "core-worker", "core-io", "io-worker"), True),
        Perturbation("no event files", without("event", "export-event"), True),
        Perturbation("driver output alone", only("driver", "job-driver", "kernel"), True),
    )  # fmt: skip


# ---------------------------------------------------------------- times


def _shifted(data: bytes, by: timedelta) -> bytes:
    def later(match: re.Match[bytes]) -> bytes:
        moment = datetime.strptime(match[2].decode(), _FORM) + by
        return match[1] + moment.strftime(_FORM)[:-3].encode()

    def kernel_later(match: re.Match[bytes]) -> bytes:
        moment = datetime.strptime(match[1].decode(), _KERNEL_FORM) + by
        return b"[" + moment.strftime(_KERNEL_FORM).encode() + b"]"

    return _KERNEL.sub(kernel_later, _STAMP.sub(later, data))


def _has_stamps(files: Files) -> bool:
    return any(_STAMP.search(data) for data in files.values())


def _moments(files: Files) -> list[datetime]:
    return [
        datetime.strptime(m[2].decode(), _FORM) for d in files.values() for m in _STAMP.finditer(d)
    ]


def _first(files: Files) -> datetime:
    return min(_moments(files))


def _time_cut(files: Files, stays: Callable[[float], bool]) -> dict[str, bytes]:
    """Keep the records for whose place in the whole span (0 to 1) `stays` is true.

    Lines without a time belong to the record above; a file without any is cut by its lines.
    """
    moments = _moments(files)
    if not moments:
        return dict(files)
    first, span = min(moments), (max(moments) - min(moments)).total_seconds() or 1.0
    changed = {}
    for path, data in files.items():
        lines, kept = data.splitlines(keepends=True), []
        stamped = _STAMP.search(data) is not None
        done = 0.0
        for number, line in enumerate(lines):
            if match := _STAMP.match(line):
                moment = datetime.strptime(match[2].decode(), _FORM)
                done = (moment - first).total_seconds() / span
            elif not stamped:
                done = number / len(lines)
            if stays(done):
                kept.append(line)
        changed[path] = b"".join(kept)
    return changed

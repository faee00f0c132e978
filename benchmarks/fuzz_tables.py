"""Damages the tables of live captures at random, and sees that every command still answers.

    python -m benchmarks.fuzz_tables                    # 2,500 captures
    python -m benchmarks.fuzz_tables --seed 7 --count 1 # one of them again

Seeded and in one process. Each capture is a `live-*` fixture with one to six damages: values of the wrong
type or out of range, missing and doubled keys, rows that are no objects, damaged heads, cut and re-encoded
files. It is diagnosed, and `hung` reads it; both reports are rendered in every format. Nothing may raise,
no rule may be given up, and no capture may take longer than 30 s.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from raydoctor.capture.open import Capture, open_capture
from raydoctor.diagnosis import engine
from tests.helpers.captures import FIXTURES, capture_of

LIMIT_S = 30.0
LIMIT_BYTES = 500 << 20
DEEP = 3000
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**30, -(10**30), 10**4000),
    *(0.5, -0.5, float("nan"), float("inf"), float("-inf"), 1e308, -1e308, 1e18, 1e12),
    *("", " ", "x", "-1", "nan", "inf", "1e400", "0x10", "²", "١٢", "9" * 5000, "true", "{}", "[]", "[[]]"),
    *("\ud800", "\x1b[2J", "a\nb", "\0", "é" * 300, "x" * 100_000, "../../etc/passwd", "%s{0}"),
    *([], [[]], [None], [1, "a", None, {}], [{}], {}, {"": ""}, {"a": []}, {"CPU": "many"}, {"CPU": None}),
    *([[[[[[1]]]]]], {"a": {"b": {"c": {"d": 1}}}}, [float("nan")], [{"tid": []}], [-1], ["x"] * 500),
)  # fmt: skip
Damage = Callable[[bytes, random.Random], bytes]


# ---------------------------------------------------------------- damages of one table


def value(data: bytes, rng: random.Random) -> bytes:
    """Another value somewhere in a row, however deep."""
    return _with_row(data, rng, lambda row: _changed(row, rng))


def column(data: bytes, rng: random.Random) -> bytes:
    """The same hostile value in every row of a column."""
    rows = _rows(data)
    names = sorted({name for row in rows if isinstance(row, dict) for name in row})
    if not names:
        return data
    name, new = rng.choice(names), rng.choice(HOSTILE)
    return _table(data, [{**row, name: new} if isinstance(row, dict) else row for row in rows])


def missing(data: bytes, rng: random.Random) -> bytes:
    """A key less."""
    return _with_row(
        data, rng, lambda row: dict(rng.sample(sorted(row.items()), max(0, len(row) - 1)))
    )


def swapped(data: bytes, rng: random.Random) -> bytes:
    """The values of a row under other keys."""

    def shuffle(row: dict[str, Any]) -> dict[str, Any]:
        values = list(row.values())
        rng.shuffle(values)
        return dict(zip(row, values, strict=True))

    return _with_row(data, rng, shuffle)


def doubled(data: bytes, rng: random.Random) -> bytes:
    """A row many times, or a key twice."""
    lines = data.split(b"\n")
    if len(lines) < 3 or not lines[1].startswith(b"{"):
        return data
    number = rng.randrange(1, len(lines) - 1)
    if rng.random() < 0.5:
        return b"\n".join([*lines[:number], *[lines[number]] * 200, *lines[number:]])
    lines[number] = lines[number].replace(b"{", b'{"state":[],"pid":"x","name":{},', 1)
    return b"\n".join(lines)


def no_row(data: bytes, rng: random.Random) -> bytes:
    """Something else where a row should be."""
    deep = "[" * DEEP + "]" * DEEP
    odd = [json.dumps(v) for v in HOSTILE] + [
        deep,
        '{"a":' + deep + "}",
        "{",
        '{"a":}',
        "\x00" * 99,
    ]
    lines = data.split(b"\n")
    lines.insert(
        rng.randrange(1, len(lines) + 1), rng.choice(odd).encode("utf-8", "surrogatepass") + b","
    )
    return b"\n".join(lines)


def head(data: bytes, rng: random.Random) -> bytes:
    """A head of another time, total, source or table."""
    first, _, rest = data.partition(b"\n")
    reply = _load(first + b"]}")
    if not isinstance(reply, dict):
        return data
    reply[rng.choice(["at", "total", "from", "table"])] = rng.choice(
        [*HOSTILE, "tasks", "processes"]
    )
    return (
        json.dumps({k: v for k, v in reply.items() if k != "rows"})[:-1].encode()
        + b', "rows": [\n'
        + rest
    )


def bytes_(data: bytes, rng: random.Random) -> bytes:
    """Cut, overwritten, with bytes that are no UTF-8, or in another encoding."""
    at = rng.randrange(len(data) + 1)
    kind = rng.randrange(6)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + bytes(rng.randrange(256) for _ in range(20)) + data[at + 20 :]
    if kind == 2:
        return data[:at] + b"\xff\xfe\xed\xa0\x80" + data[at:]
    if kind == 3:
        return data.decode("utf-8", "replace").encode("utf-16")
    if kind == 4:
        return data.replace(b"\n", b"\r\n")
    return data[:at] + b"\0" * 1000 + data[at:]


DAMAGES: tuple[tuple[Damage, int], ...] = (
    *((value, 10), (column, 6), (missing, 3), (swapped, 3), (doubled, 2)),
    *((no_row, 2), (head, 2), (bytes_, 2)),
)


def _load(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _rows(data: bytes) -> list[Any]:
    return [
        _load(line.removesuffix(b",")) for line in data.split(b"\n")[1:] if line.startswith(b"{")
    ]


def _table(data: bytes, rows: list[Any]) -> bytes:
    head_line = data.partition(b"\n")[0]
    return head_line + b"\n" + b",\n".join(_dumped(row) for row in rows) + b"\n]}"


def _dumped(row: Any) -> bytes:
    if sys.version_info >= (3, 11):
        sys.set_int_max_str_digits(0)
    try:
        return json.dumps(row).encode()
    finally:
        if sys.version_info >= (3, 11):
            sys.set_int_max_str_digits(4300)


def _with_row(
    data: bytes, rng: random.Random, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> bytes:
    rows = _rows(data)
    numbers = [n for n, row in enumerate(rows) if isinstance(row, dict) and row]
    if not numbers:
        return data
    number = rng.choice(numbers)
    rows[number] = change(rows[number])
    return _table(data, rows)


def _changed(node: Any, rng: random.Random) -> Any:
    """The value with one part of it replaced."""
    if isinstance(node, dict) and node and rng.random() < 0.9:
        key = rng.choice(sorted(node))
        return {
            **node,
            key: _changed(node[key], rng) if rng.random() < 0.6 else rng.choice(HOSTILE),
        }
    if isinstance(node, list) and node and rng.random() < 0.8:
        number = rng.randrange(len(node))
        return [*node[:number], _changed(node[number], rng), *node[number + 1 :]]
    return rng.choice(HOSTILE)


# ---------------------------------------------------------------- captures


def fixtures() -> list[Path]:
    """The fixtures that hold tables."""
    return sorted(path for path in FIXTURES.glob("live-*") if (path / "fixture.toml").exists())


def damaged(seed: int, folder: Path) -> str:
    """Lay a damaged capture out in an empty folder; its name."""
    rng = random.Random(seed)
    fixture = rng.choice(fixtures())
    origin = capture_of(fixture)
    with_logs = rng.random() < 0.3
    files = [file for file in sorted(origin.rglob("*")) if file.is_file()]
    tables = [file for file in files if file.name.startswith("live-") and file.suffix == ".json"]
    damages, weights = zip(*DAMAGES, strict=True)
    data = {file: file.read_bytes() for file in files if with_logs or file in tables}
    done = []
    for _ in range(rng.randint(1, 6)):
        table = rng.choice(tables)
        damage = rng.choices(damages, weights)[0]
        data[table] = damage(data[table], rng)
        done.append(f"{damage.__name__} {table.stem[5:]}")
    for file, content in data.items():
        place = folder / file.relative_to(origin)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    return f"{fixture.name}: {', '.join(done)}"


# ---------------------------------------------------------------- checks


def problems(folder: Path) -> Iterator[str]:
    """What goes wrong with a capture: tracebacks, rules given up, too much time."""
    began = time.process_time()
    for command in (_diagnosed, _hung):
        try:
            with open_capture(str(folder)) as capture:
                yield from command(capture)
        except Exception:
            yield f"{command.__name__}: {traceback.format_exc(limit=-4)}"
    if (took := time.process_time() - began) > LIMIT_S:
        yield f"took {took:.0f} s"


def _diagnosed(capture: Capture) -> Iterator[str]:
    from raydoctor.cli._options import REPORT_FORMATS
    from raydoctor.cli.diagnose import as_text

    report = engine.run(capture)
    for gap in report.gaps:
        if gap.what.startswith("rule "):
            yield f"{gap.what}: {gap.why}"
    for form in REPORT_FORMATS:
        as_text(report, form, verbose=form == "text").encode("utf-8")


def _hung(capture: Capture) -> Iterator[str]:
    from raydoctor.cli.hung import _as_text, _view
    from raydoctor.model.errors import RaydoctorError

    try:
        view = _view(capture, 60.0, True)
    except RaydoctorError:
        return
    for form in ("text", "json", "html", "prometheus"):
        _as_text(view, form, "capture").encode("utf-8")
    yield from ()


def run(first: int, count: int, seconds: float = 1e9) -> Counter[str]:
    """Damage and read that many captures; problem -> how often (the first seed is printed)."""
    found: Counter[str] = Counter()
    ends = time.monotonic() + seconds
    for seed in range(first, first + count):
        if time.monotonic() > ends:
            print(f"stopped before seed {seed}")
            break
        folder = Path(tempfile.mkdtemp(prefix="raydoctor-fuzz-"))
        try:
            name = damaged(seed, folder)
            for problem in problems(folder):
                key = problem if len(problem) < 400 else problem[-700:]
                if not found[key]:
                    print(f"seed {seed} ({name})\n  {key}", flush=True)
                found[key] += 1
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=2500)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time")
    given = parser.parse_args()
    found = run(given.seed, given.count, given.seconds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        f"captures from seed {given.seed} on: {sum(found.values()):,} problems, peak {peak / 2**20:.0f} MiB"
    )
    raise SystemExit(bool(found) or peak > LIMIT_BYTES)


if __name__ == "__main__":
    main()

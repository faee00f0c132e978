"""Attacks every signal and every other pattern with texts of 1 MB, in every form that a log has.

    python -m benchmarks.attack_patterns                       # everything: half an hour
    python -m benchmarks.attack_patterns --every 10 --first 3  # each tenth of them, from the fourth on
    python -m benchmarks.attack_patterns --part patterns       # one of the parts, to run them side by side

Of the attacks on a signal's pattern (`attacks.py`) the slowest ones are written to a file of one of the
signal's roles: plain, behind a C++ header, behind a driver's prefix, as JSON, coloured, and as a record of
many lines. The patterns that are no signal's come from a walk over all modules (`all_patterns.py`): they
are diagnosed in files of several kinds, or redacted. The redactor also reads different short lines that are
made of each of its words. Prints the slowest in processor seconds of this process;
above two is a failure.
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from benchmarks.all_patterns import Known, all_patterns
from benchmarks.attacks import Attack, attacks
from raydoctor import rules
from raydoctor.capture.cpu import CpuTimeSpent, cpu_limit
from raydoctor.capture.layout import SHAPES
from raydoctor.capture.open import open_capture
from raydoctor.case import signals
from raydoctor.case.rule import Signal
from raydoctor.diagnosis import engine, unexplained
from raydoctor.model.errors import RaydoctorError
from raydoctor.redact import reasons
from raydoctor.redact.places import PLACES
from raydoctor.redact.redactor import Redactor

SIZE = 1_000_000
MOST_S = 2.0
SLOWEST = 3
HEADER = "[2026-11-21 07:34:50,739 E 283 293] (raylet) a.cc:1: "
PARTS = ("repeats", "lines", "signals", "patterns")
FORMS: dict[str, Callable[[str], str]] = {
    "plain": lambda text: text,
    "header": lambda text: HEADER + text,
    "driver prefix": lambda text: f"(f pid=1, ip=10.0.0.2) {text}",
    "JSON": lambda text: json.dumps({"levelname": "E", "message": text}),
    "coloured": lambda text: f"\x1b[36m(f pid=1)\x1b[0m {text}\r",
    "lines": lambda text: HEADER + "\n".join(text[n : n + 300] for n in range(0, len(text), 300)),
}
ECHOED = {
    "raylet-echo": "(raylet) ",
    "gcs-echo": "(gcs_server) ",
    "autoscaler-echo": "(autoscaler) ",
}


def all_signals() -> list[Signal]:
    """Those of all rules, the facts and the unexplained errors."""
    found = {s for r in rules.load() for s in r.looks_for} | set(signals.FACTS)
    return sorted(found | set(unexplained.signals(())), key=lambda s: (s.kind, s.find, s.pattern))


def slowest(
    tries: Callable[[str], object], tried: Iterable[Attack], count: int = SLOWEST
) -> list[Attack]:
    """The attacks that a pattern takes longest for."""
    timed = []
    for attack in tried:
        began = time.thread_time()
        with suppress(CpuTimeSpent), cpu_limit(MOST_S):
            tries(attack.text(2000))
        timed.append((time.thread_time() - began, attack))
    timed.sort(key=lambda each: -each[0])
    return [attack for _, attack in timed[:count]]


def of_signal(signal: Signal) -> list[Attack]:
    """The literal repeated, the attacks that the pattern takes longest for, and a storm of the sample.

    The storm meets what follows a match: the record, its ids, the rules.
    """
    tried = attacks(signal.pattern, signal.regex.flags, signal.find, signal.sample)
    repeated = Attack("literal repeated", "", signal.find)
    storm = Attack("sample repeated", "", signal.sample)
    found = [repeated, *slowest(signal.regex.search, tried, SLOWEST - 1), storm]
    return list({attack[1:]: attack for attack in found}.values())


def name_of(signal: Signal) -> str:
    """A file of one of the signal's roles."""
    names = {shape.role: shape.sample for shape in SHAPES}
    return next((names[role] for role in signal.roles if role in names), names["driver"])


def cost(name: str, text: str) -> float:
    """Processor seconds of diagnosing a capture that holds one such file."""
    folder = Path(tempfile.mkdtemp(prefix="raydoctor-attack-"))
    try:
        (folder / name).write_text(text)
        began = time.process_time()
        # Of a file that is no log of Ray's, the refusal is measured.
        with suppress(RaydoctorError), open_capture(str(folder)) as capture:
            engine.run(capture)
        return time.process_time() - began
    finally:
        shutil.rmtree(folder)


def costs(signal: Signal) -> Iterator[tuple[float, str, str]]:
    """(seconds, form, attack) of each attack in each form."""
    echo = ECHOED.get(signal.roles[0], "")
    for number, attack in enumerate(of_signal(signal)):
        text = attack.text(SIZE)
        for form, wrap in FORMS.items():
            if number > 1 and form not in ("plain", "lines"):
                continue
            line = echo + text if echo and form == "plain" else wrap(text)
            yield cost(name_of(signal), line + "\n"), form, attack.name


FILES = (
    "driver.log",
    "raylet.out",
    f"worker-{'a' * 56}-01000000-503.err",
    "pods.yaml",
    "sacct.txt",
)


def costs_of_pattern(known: Known) -> Iterator[tuple[float, str, str]]:
    """(seconds, file, attack): the redactor's are redacted, others diagnosed in files of several kinds."""
    for attack in slowest(known.tries, attacks(known.text, known.flags), 2):
        text = attack.text(SIZE) + "\n"
        if known.name.startswith("redact"):
            began = time.process_time()
            Redactor().redact(text)
            yield time.process_time() - began, "redacted", attack.name
            continue
        for name in FILES:
            yield cost(name, text), name, attack.name


LINES: dict[str, Callable[[str, int], str]] = {
    "call": lambda word, n: f"{word}( \\'a{n}\\'",
    "value": lambda word, n: f'{n}{word}="{n}x',
    "random": lambda word, n: f"{word}=Ab{n}Cd9e{n}",
    "nested": lambda word, n: f"'\"'\"'{word}\\\\\\\"={n}%2522",
    "coloured": lambda word, n: f"\x1b[31m{word}\x1b[0m={n}",
    "elements": lambda word, n: f"--{word}\0{n}",
    "JSON": lambda word, n: json.dumps({"m": json.dumps({word: f"{word}={n:x}"})}),
    "base64": lambda word, n: base64.b64encode(f"{word}=z{n:07d}q".encode()).decode(),
    "wrapped": lambda word, n: f"{word}={n:x}".ljust(40, "z"),
    "block": lambda word, n: f"{word}:\n  a: {n:x}b",
}
"""Lines with a word of the redactor, each with another number in letters."""


def costs_of_lines(first: int, every: int) -> Iterator[tuple[float, str, str]]:
    """(seconds, form, word): the redactor reads a megabyte of different short lines."""
    words = {word for place in PLACES for word in place.words} | set(reasons.WORDS)
    digits = str.maketrans("0123456789", "qrstuvwxyz")
    for word in sorted(each.decode() for each in words)[first::every]:
        for form, make in LINES.items():
            lines, size = [], 0
            while size < SIZE:
                line = make(word, len(lines) + 100_000)
                lines.append(line if form == "base64" else line.translate(digits))
                size += len(line) + 1
            text = "\n".join(lines).encode()
            began = time.process_time()
            Redactor().redact_bytes(text)
            yield time.process_time() - began, form, word


def costs_of_repeats() -> Iterator[tuple[float, str, str]]:
    """(seconds, file, text): half a million short lines."""
    for head in ("", f"{HEADER}x\n"):
        for fill in ("", "x", " ", "}", "\r"):
            for name in FILES:
                yield cost(name, head + f"{fill}\n" * (SIZE // 2)), name, repr(head + fill)


def tries(
    part: str, first: int, every: int
) -> Iterator[tuple[str, Iterator[tuple[float, str, str]]]]:
    """What is attacked in a part, and the costs of the attacks on it."""
    if part == "repeats":
        yield "half a million short lines", costs_of_repeats()
    elif part == "lines":
        yield "different lines, redacted", costs_of_lines(first, every)
    elif part == "signals":
        for signal in all_signals()[first::every]:
            yield f"{signal.kind} {signal.find!r}", costs(signal)
    else:
        for known in all_patterns()[first::every]:
            if not known.name.startswith("rules"):  # they meet records of the signals
                yield known.name, costs_of_pattern(known)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--part", action="append", choices=PARTS, help="all, unless named")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time")
    given = parser.parse_args()
    ends, found, tried = time.monotonic() + given.seconds, [], 0
    cost("driver.log", "loads what a process loads once\n")
    for what, made in chain.from_iterable(
        tries(part, given.first, given.every) for part in given.part or PARTS
    ):
        if time.monotonic() > ends:
            print(f"stopped before {what}")
            break
        for seconds, form, attack in made:
            tried += 1
            found.append((seconds, f"{what}, {form}: {attack}"))
            if seconds > MOST_S:
                print(f"{seconds:7.2f} s  {found[-1][1]}", flush=True)
    found.sort(reverse=True)
    print(f"{tried:,} files; the slowest:")
    for seconds, what in found[:15]:
        print(f"{seconds:7.2f} s  {what}")
    raise SystemExit(any(seconds > MOST_S for seconds, _ in found))


if __name__ == "__main__":
    main()

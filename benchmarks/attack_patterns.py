"""Attacks every signal with lines and records of 1 MB, in every form that a log has, and diagnoses them.

    python -m benchmarks.attack_patterns                       # everything: some ten minutes
    python -m benchmarks.attack_patterns --every 10 --first 3  # each tenth signal, from the fourth on

Of the attacks on a signal's pattern (`attacks.py`) the slowest ones are written to a file of one of the
signal's roles: plain, behind a C++ header, behind a driver's prefix, as JSON, coloured, and as a record of
many lines. Prints the slowest diagnoses in processor seconds of this process; above two is a failure.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.attacks import Attack, attacks
from raydoctor import rules
from raydoctor.capture.layout import SHAPES
from raydoctor.capture.open import open_capture
from raydoctor.case import signals
from raydoctor.case.rule import Signal
from raydoctor.diagnosis import engine, unexplained

SIZE = 1_000_000
MOST_S = 2.0
SLOWEST = 3
HEADER = "[2026-11-21 07:34:50,739 E 283 293] (raylet) a.cc:1: "
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


def slowest(signal: Signal) -> list[Attack]:
    """The attacks that its pattern takes longest for, and its literal repeated."""
    timed = []
    for attack in attacks(signal.pattern, signal.regex.flags, signal.find, signal.sample):
        began = time.thread_time()
        signal.regex.search(attack.text(2000))
        timed.append((time.thread_time() - began, attack))
    timed.sort(key=lambda each: -each[0])
    return [Attack("literal repeated", "", signal.find), *(a for _, a in timed[:SLOWEST])]


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
        with open_capture(str(folder)) as capture:
            engine.run(capture)
        return time.process_time() - began
    finally:
        shutil.rmtree(folder)


def costs(signal: Signal) -> Iterator[tuple[float, str, str]]:
    """(seconds, form, attack) of each attack in each form."""
    echo = ECHOED.get(signal.roles[0], "")
    for number, attack in enumerate(slowest(signal)):
        text = attack.text(SIZE)
        for form, wrap in FORMS.items():
            if number > 1 and form not in ("plain", "lines"):
                continue
            line = echo + text if echo and form == "plain" else wrap(text)
            yield cost(name_of(signal), line + "\n"), form, attack.name


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time")
    given = parser.parse_args()
    ends, found, tried = time.monotonic() + given.seconds, [], 0
    for signal in all_signals()[given.first :: given.every]:
        if time.monotonic() > ends:
            print(f"stopped before {signal.kind}")
            break
        for seconds, form, attack in costs(signal):
            tried += 1
            found.append((seconds, f"{signal.kind} {signal.find!r}, {form}: {attack}"))
            if seconds > MOST_S:
                print(f"{seconds:7.2f} s  {found[-1][1]}", flush=True)
    found.sort(reverse=True)
    print(f"{tried:,} files; the slowest:")
    for seconds, what in found[:15]:
        print(f"{seconds:7.2f} s  {what}")
    raise SystemExit(any(seconds > MOST_S for seconds, _ in found))


if __name__ == "__main__":
    main()

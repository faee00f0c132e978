"""Every payload in every place of every rule's advice, read by bash, by zsh's prompt and by Python.

    python -m benchmarks.pasting          # half a minute
    python -m benchmarks.pasting oom      # rules with such a name

Prints what a paste would run, and exits 1 if there is any. The suite tries a part of the payloads.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from raydoctor import rules
from tests.helpers import tainted


def harm_of(lines: Sequence[str], kind: str) -> list[str]:
    """What a paste of these steps, or of this prose, would run."""
    harm = [*tainted.unprintable(lines), *tainted.harm_in_python(lines)]
    is_prose = kind == "prose"
    typed = [] if is_prose else [line for line in lines if "#" in line]
    with tempfile.TemporaryDirectory() as folder:
        for name, some in (("bash", lines), ("zsh", typed)):
            place = Path(folder, name)
            place.mkdir()
            comments = name == "bash"
            harm += tainted.harm_in_bash(some, place, comments=comments, prose=is_prose)
        if not is_prose and shutil.which("zsh"):
            (place := Path(folder, "prompt")).mkdir()
            harm += tainted.harm_in_zsh(lines, place)
    return harm


def main() -> int:
    """Try all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", default="")
    wanted = parser.parse_args().name
    shown = tainted.attacked(rule for rule in rules.load() if wanted in rule.name)
    harm = [f"{kind}: {h}" for kind, lines in shown._asdict().items() for h in harm_of(lines, kind)]
    lines = [*shown.steps, *shown.prose]
    print(*harm, f"{len(lines)} lines, {len(harm)} do harm", sep="\n")
    return 1 if harm else 0


if __name__ == "__main__":
    sys.exit(main())

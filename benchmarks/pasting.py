"""Every payload in every place of every rule's advice, read by bash, by zsh's prompt and by Python.

    python -m benchmarks.pasting          # half a minute
    python -m benchmarks.pasting oom      # rules with such a name

Prints what a paste would run, and exits 1 if there is any. The suite tries a part of the payloads.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from raydoctor import rules
from tests.helpers import tainted


def main() -> int:
    """Try all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", default="")
    wanted = parser.parse_args().name
    steps = [s for r in rules.load() if wanted in r.name for s in sorted(tainted.attacked(r))]
    harm = [*tainted.unprintable(steps), *tainted.harm_in_python(steps)]
    with tempfile.TemporaryDirectory() as folder:
        for name, some in (("bash", steps), ("zsh", [step for step in steps if "#" in step])):
            place = Path(folder, name)
            place.mkdir()
            harm += tainted.harm_in_bash(some, place, comments=name == "bash")
    print(*harm, f"{len(steps)} lines, {len(harm)} do harm", sep="\n")
    return 1 if harm else 0


if __name__ == "__main__":
    sys.exit(main())

"""Whether every fixture's logs give the same report after a log store or shipper exported them.

`python -m benchmarks.sinks [FORM …]` exports each fixture in each form of `tests/helpers/sinks.py`,
diagnoses the export, and prints each report that differs in more than names of files. Live tables are left
out: no store has them.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from raydoctor.capture.open import open_capture
from raydoctor.diagnosis import engine
from tests.fixtures.test_exports import without_places
from tests.helpers import sinks
from tests.helpers.captures import capture_of, fixtures

_NO_LOGS = shutil.ignore_patterns("live", "raydoctor.json")
"""Live tables, and the list of what `raydoctor collect` could not read."""
_NAME = re.compile(r"[\w.-]{1,99}\.(?:log|json)\b")
"""In sentences, such as `driver.log ends with this traceback`."""


def main(forms: list[str]) -> int:
    """Print what differs, and how many reports are equal."""
    wanted = forms or [*sinks.FILES, *sinks.TREES]
    counts = dict.fromkeys(wanted, 0)
    all_ = fixtures()
    for fixture in all_:
        with tempfile.TemporaryDirectory() as folder:
            logs = Path(folder) / "logs-alone"
            shutil.copytree(capture_of(fixture), logs, ignore=_NO_LOGS)
            expected = _report(logs)
            for form in wanted:
                exported = Path(folder) / form.replace(" ", "-")
                exported.mkdir()
                is_equal = _report(sinks.export(logs, form, exported)) == expected
                counts[form] += is_equal
                if not is_equal:
                    print(f"{form}: {fixture.name} differs")
    for form, count in counts.items():
        print(f"{form:20} {count} of {len(all_)}")
    print(f"{time.process_time():.0f} s of processor time")
    return 0 if set(counts.values()) == {len(all_)} else 1


def _report(path: Path) -> Any:
    with open_capture(str(path)) as capture:
        diagnoses, unexplained, gaps = without_places(engine.run(capture))
    # An export of a console alone is the console itself.
    for each in [unexplained, *(diagnosis["chain"] for diagnosis in diagnoses)]:
        for link in each:
            link["file"] = link["file"].replace("export.json", "")
            link["shows"] = _NAME.sub("", link.get("shows", ""))
    return diagnoses, unexplained, gaps


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

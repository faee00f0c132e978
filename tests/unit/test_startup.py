"""Start-up stays fast, and the offline path imports nothing that it does not need."""

from __future__ import annotations

import html
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

import raydoctor
from raydoctor.render.html import fragment as html_page
from raydoctor.render.page import line
from tests.helpers import ROOT

HEAVY = {
    *("ray", "psutil", "asyncio", "rich", "importlib.metadata", "numpy", "zstandard", "msgspec"),
    *("statistics", "tarfile", "zipfile"),
}
PYPROJECT = ROOT / "pyproject.toml"
WORKER = "cd09fc46897e18918275a6d03cc3a6abc2becabe5e0fd27a533d35a7"
EXIT = (
    f"Reporting worker exit, worker id = {WORKER}, node id = {WORKER[::-1]}, address = 127.0.0.1, "
    "exit_type = SYSTEM_ERROR, exit_detail = Worker unexpectedly exits"
)
PROBE = """
import json, sys
from raydoctor.cli import execute
codes = [execute(arguments) for arguments in json.loads(sys.argv[1])]
print(json.dumps([codes, sorted(sys.modules)]), file=sys.stderr)
"""


def imported_by(*commands: Sequence[str], **environment: str) -> tuple[list[int], set[str]]:
    """The exit codes of commands, and the modules that they left imported in one process."""
    clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(commands)],
        capture_output=True,
        text=True,
        env={**clean, **environment},
        check=True,
    )
    codes, modules = json.loads(done.stderr.splitlines()[-1])
    return codes, set(modules)


@pytest.fixture(name="logs")
def _logs(tmp_path: Path) -> str:
    logs = tmp_path / "logs"
    logs.mkdir()
    header = "[2026-11-21 07:34:50,741 W 8 8] (gcs_server) gcs_worker_manager.cc:70: "
    (logs / "gcs_server.out").write_text(header + EXIT + "\n")
    (logs / "raylet.out").write_text("")
    return str(tmp_path)


PAGES = [["--help"], ["--version"], ["rules"], ["explain", "worker-vanished"], ["demo", "--list"]]


def test_the_offline_path_imports_nothing_heavy(logs: str) -> None:
    diagnoses = [[logs, "--format", form] for form in ("text", "json", "markdown")]
    codes, modules = imported_by(*PAGES, *diagnoses, ["story", WORKER[:8], logs])
    assert codes == [0] * len(PAGES) + [1] * len(diagnoses) + [0]
    assert not modules & HEAVY


def test_colour_brings_nothing_heavy_in(logs: str) -> None:
    assert not imported_by([logs], FORCE_COLOR="1")[1] & HEAVY


def test_importing_the_package_loads_the_package_alone() -> None:
    probe = "import sys, raydoctor; print([m for m in sys.modules if m.startswith('raydoctor')])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['raydoctor']"


@cache
def cpu_seconds(*command: str) -> float:
    """What a command costs, at its best of two: other work on the machine does not count."""
    costs = []
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        costs.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(costs)


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is the measure")
@pytest.mark.parametrize("arguments", [["--help"], ["explain", "worker-vanished"]])
def test_start_up_costs_a_quarter_of_rays_at_most(arguments: list[str]) -> None:
    ours = cpu_seconds(sys.executable, "-m", "raydoctor", *arguments)
    assert ours * 4 <= cpu_seconds(sys.executable, "-m", "ray.scripts.scripts", "--help")


# ---------------------------------------------------------------- the package's own face


def test_the_api_diagnoses(logs: str) -> None:
    report = raydoctor.diagnose(logs)
    assert isinstance(report, raydoctor.Report)
    assert [d.rule for d in report.roots] == ["worker-vanished"]
    assert raydoctor.diagnose(logs, until=1.0).diagnoses == ()


def test_a_report_shows_itself(logs: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = raydoctor.diagnose(logs)
    assert repr(report) == f"<Report on {logs!r}: worker-vanished, evidence is missing>"
    assert repr(report.roots[0]).startswith("<Diagnosis d1 worker-vanished (error): 'The worker ")
    assert str(report).startswith("ERROR  worker-vanished  2026-11-21")
    report.show()
    assert capsys.readouterr().out == f"{report}\n"
    report.show(verbose=True)
    assert len(capsys.readouterr().out) > len(str(report))


def test_a_notebook_shows_text_of_logs_as_text(logs: str) -> None:
    report = raydoctor.diagnose(logs)
    assert html.unescape(re.sub(r"<[^>]*>", "", report._repr_html_())) == str(report)
    hostile = html_page.render([line(("<img src=x> & \x1b[2J", "error"), '"<b>')])
    assert re.findall(r"<(?!/?(?:pre|span)\b)", hostile) == []
    assert "&lt;img src=x&gt; &amp; \\x1b[2J</span>&quot;&lt;b&gt;" in hostile


def test_a_pasted_text_is_the_output_of_a_driver(logs: str) -> None:
    text = f"(raylet) {EXIT}\nray.exceptions.WorkerCrashedError: The worker died unexpectedly\n"
    alone = raydoctor.diagnose(text=text)
    assert alone.capture.kind == "driver"
    assert alone.recognized
    assert "raydoctor story" not in str(alone)  # there is no file for it
    assert raydoctor.diagnose(logs, text=text).capture.files == 3


def test_errors_are_public() -> None:
    with pytest.raises(raydoctor.RaydoctorError, match="nowhere"):
        raydoctor.diagnose("nowhere")
    assert issubclass(raydoctor.TaskTimeoutError, TimeoutError)
    assert all(getattr(raydoctor, name) for name in raydoctor.__all__)


def test_the_package_has_no_other_attribute() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        raydoctor.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_the_version_is_that_of_the_distribution() -> None:
    declared = re.search(r'^version = "(.+)"$', PYPROJECT.read_text(), re.MULTILINE)
    assert declared is not None
    assert declared[1] == raydoctor.__version__


def test_a_benchmark_starts_compiled_modules() -> None:
    """A start takes five times as long where Python may not write bytecode."""
    program = "import os, benchmarks.measure; print('PYTHONDONTWRITEBYTECODE' in os.environ)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
    )
    assert done.stdout == "False\n"

"""`%%raydoctor` in a real IPython on real Ray."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers import ROOT

CELLS = r"""
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.run_cell("%load_ext raydoctor")
done = shell.run_cell("%%raydoctor\n1 / 0")
print("WITHOUT RAY", done.success)
shell.run_cell("import ray; ray.init(num_cpus=1, include_dashboard=False, _node_ip_address='127.0.0.1')")
shell.run_cell("@ray.remote(max_retries=0)\ndef parse(text):\n    return float(text)")
done = shell.run_cell("%%raydoctor\nvalue = ray.get(parse.remote('1.5'))\nvalue")
print("VALUE", shell.user_ns["value"], done.success)
done = shell.run_cell("%%raydoctor\nray.get(parse.remote('n/a'))")
print("WITH RAY", done.success, type(done.error_in_exec).__name__)
"""


@pytest.mark.ray
@pytest.mark.skipif(find_spec("IPython") is None, reason="IPython is not installed")
def test_a_cell_that_raises_shows_its_diagnosis_and_stays_failed() -> None:
    folder = Path(tempfile.mkdtemp(prefix="rnb", dir="/tmp"))
    path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    env = {"PYTHONPATH": path, "RAY_TMPDIR": str(folder), "IPYTHONDIR": str(folder)}
    env |= {"RAY_AUTH_MODE": "disabled", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", CELLS],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    without, _, rest = done.stdout.partition("WITHOUT RAY False")
    assert "ZeroDivisionError" in without
    assert "task-exception" not in without
    assert "VALUE 1.5 True" in rest
    _, _, failed = rest.partition("VALUE 1.5 True")
    assert "WITH RAY False CellFailedError" in failed, done.stdout + done.stderr
    assert "task-exception" in failed
    assert "The cell raised RayTaskError" in failed

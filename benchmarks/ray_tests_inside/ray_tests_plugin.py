"""The pytest plug-in that runs inside a test of Ray: its result, a live diagnosis before its tear-down."""

import contextlib
import importlib
import json
import os
import subprocess
import sys

import pytest
import ray
from ray._private import test_utils, utils

RESULT = os.environ["RAY_TESTS_RESULT"]
LIVE = json.loads(os.environ.get("RAY_TESTS_LIVE", "[]"))
"""The command that diagnoses a cluster, to which its address is appended."""


MOVED = ("ray._common.test_utils", "ray._common.utils", "ray._common.network_utils")
"""Where later releases moved helpers to that the checkout's tests import from `ray._private`."""
MOVED_MODULES = {
    "ray._private.arrow_utils": "ray.data._internal.utils.arrow_utils",
    "ray._private.pydantic_compat": "ray._common.pydantic_compat",
    "ray._private.usage": "ray._common.usage",
    "ray._private.usage.usage_lib": "ray._common.usage.usage_lib",
}
REMOVED = (
    ("ray._private.test_utils", "skip_flaky_core_test_premerge"),
    ("ray._private.test_utils", "simulate_storage"),
    ("ray.air.util.tensor_extensions.arrow", "ArrowTensorArray"),
)
"""What later releases lack, and files import that also hold tests without need of it."""


def add_moved_helpers():
    """Put moved helpers where the checkout's tests import them from."""
    for source in MOVED:
        try:
            module = importlib.import_module(source)
        except ImportError:
            continue
        for name, value in vars(module).items():
            for old in (test_utils, utils):
                if not hasattr(old, name):
                    setattr(old, name, value)
    for old, new in MOVED_MODULES.items():
        try:
            importlib.import_module(old)
        except ImportError:
            with contextlib.suppress(ImportError):
                sys.modules[old] = importlib.import_module(new)
    for source, name in REMOVED:
        with contextlib.suppress(ImportError):
            module = importlib.import_module(source)
            if not hasattr(module, name):
                setattr(module, name, lambda *arguments: lambda test: test)


add_moved_helpers()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Append the outcome of each phase to the result."""
    report = (yield).get_result()
    with open(RESULT, "a") as file:
        file.write(f"{report.when} {report.outcome}\n")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item):
    """Diagnose the cluster while its failure is current."""
    if not LIVE:
        return
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    clean |= {name: value for name, value in os.environ.items() if name.startswith("RAY_AUTH")}
    clean["PYTHONPATH"] = os.environ["RAY_TESTS_RAYDOCTOR"]
    address = []
    if ray.is_initialized():
        address = ["--address", ray.get_runtime_context().gcs_address]
    subprocess.run([*LIVE, *address], env=clean, stdin=subprocess.DEVNULL, timeout=120, check=False)

"""The pytest plugin: a failed test that used Ray gets a section with raydoctor's diagnosis.

It does nothing unless `--raydoctor` is given, or `raydoctor = true` is set in pytest's configuration. The
diagnosis runs in a process of its own, so that a test that replaces `open` or the clock does not disturb it.
It reads the session that this process was a driver of, from the start of the test on, and changes no result.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Generator
from typing import Any

import pytest

_PATIENCE = 60.0
"""Seconds that a diagnosis may take."""
_FOUND, _INCOMPLETE = 1, 3


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--raydoctor`, and the setting of the same name."""
    text = "diagnose Ray for each failed test that used it"
    parser.getgroup("raydoctor").addoption("--raydoctor", action="store_true", help=text)
    parser.addini("raydoctor", text, type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Register the hooks only if the user wants them."""
    if config.getoption("--raydoctor") or config.getini("raydoctor"):
        config.pluginmanager.register(_Diagnoses(), "raydoctor-diagnoses")


class _Diagnoses:
    """The hooks of a run."""

    def __init__(self) -> None:
        self._since = 0.0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        """Remember when a test began."""
        self._since = time.time()

    # With `wrapper=True`, an older pluggy (< 1.2) would refuse this module, and so every run of pytest.
    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, None]:
        """Add the section to the report of a failed phase."""
        outcome = yield
        report: pytest.TestReport = outcome.get_result()
        if report.failed and "ray" in sys.modules:
            text = diagnosis(
                self._since, f"{report.capstdout}{report.capstderr}{report.longreprtext}"
            )
            if text:
                report.sections.append(("raydoctor", text))


def diagnosis(since: float, output: str) -> str:
    """The report on this process's session from a time on; empty if nothing is found, or Ray was not used.

    `output` is what the driver printed. A diagnosis that fails is one line.
    """
    from raydoctor.integrations import own_session

    session = own_session.folder(since)
    if not session:
        return ""
    command = [sys.executable, "-m", "raydoctor", "diagnose", session, "--driver-log", "-"]
    try:
        done = subprocess.run(
            [*command, "--since", f"{since:.3f}", "--fail-on", "info"],
            input=output.encode("utf-8", "backslashreplace"),
            capture_output=True,
            cwd="/",  # -m puts the working folder first on the path
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no diagnosis: {error}"
    text = done.stdout.decode("utf-8", "replace").rstrip()
    if done.returncode in (_FOUND, _INCOMPLETE):
        return text
    problem = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return "" if done.returncode == 0 else f"no diagnosis: {(problem or ['unknown'])[0]}"

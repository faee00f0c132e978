"""Options of the test suite."""

from __future__ import annotations

import signal
import sys

import pytest

from tests.helpers import ROOT

# For `benchmarks` and `fixtures`; last, so that the tests import the installed raydoctor.
sys.path.append(str(ROOT))

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell's background job ignores it, and so would every driver and worker that a test starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite fixtures/*/report.json")

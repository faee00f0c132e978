"""Calls side by side, and the time that they have."""

from __future__ import annotations

import os
import threading
import time

import pytest

from raydoctor.observe.collector import run
from raydoctor.observe.collector.parallel import parallel


def test_as_many_run_at_a_time_as_may() -> None:
    at_once, most, lock = [0], [0], threading.Lock()

    def call() -> int:
        with lock:
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
        time.sleep(0.02)
        with lock:
            at_once[0] -= 1
        return 7

    calls = {str(n): call for n in range(10)}
    assert sorted(parallel(calls, 5, at_once=3)) == sorted((name, 7) for name in calls)
    assert most == [3]


def test_what_has_not_begun_in_time_is_not_begun() -> None:
    begun: list[int] = []

    def call(number: int) -> None:
        begun.append(number)
        time.sleep(0.3)

    calls = {str(n): lambda n=n: call(n) for n in range(6)}
    assert list(parallel(calls, 0.1, at_once=2)) == []
    time.sleep(0.5)
    assert sorted(begun) == [0, 1]


def test_what_fails_is_given_back() -> None:
    found = dict(parallel({"good": lambda: 1, "bad": lambda: 1 // 0}, 5, at_once=1))
    assert found["good"] == 1
    assert isinstance(found["bad"], ZeroDivisionError)


@pytest.mark.parametrize(("load", "seconds"), [(0.0, 5), (1.0, 5), (2.5, 12.5), (40.0, 30)])
def test_a_machine_without_time_is_waited_for(
    load: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = load * (os.cpu_count() or 1)
    monkeypatch.setattr(os, "getloadavg", lambda: (wanted, 0.0, 0.0))
    assert run.usual_timeout() == pytest.approx(seconds)


def test_an_unknown_load_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreported() -> tuple[float, float, float]:
        raise OSError("Load averages are unobtainable")

    monkeypatch.setattr(os, "getloadavg", unreported)
    assert run.usual_timeout() == run.TIMEOUT

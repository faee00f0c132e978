"""Pastes that mix prose, logs and the output of kubectl."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydoctor.capture import mixed
from raydoctor.capture.open import open_capture
from raydoctor.diagnosis import engine
from raydoctor.model.values import Report

POD = """\
Name:             train-worker-x1
Namespace:        ml
Labels:           ray.io/cluster=train
Status:           Running
Containers:
  ray-worker:
    Image:         ray:2.46.0
    State:          Running
      Started:      Sun, 22 Nov 2026 18:52:12 +0000
    Last State:     Terminated
      Reason:       OOMKilled
      Exit Code:    137
      Started:      Sun, 22 Nov 2026 18:40:02 +0000
      Finished:     Sun, 22 Nov 2026 18:52:10 +0000
    Ready:          True
    Restart Count:  1
    Limits:
      memory:  2G
"""
STATE = POD[POD.index("    Last State:") : POD.index("    Limits:")]
TABLE = """\
NAME                 READY   STATUS      RESTARTS      AGE
train-head-abcde     1/1     Running     0             3h
train-worker-fghij   0/1     OOMKilled   1 (10s ago)   3h
"""
LOG = """\
Traceback (most recent call last):
  File "train.py", line 7, in <module>
    main()
  File "train.py", line 5, in main
    raise KeyError("price")
KeyError: 'price'
"""


def diagnosed(folder: Path, text: str) -> Report:
    file = folder / "paste.txt"
    file.write_text(text)
    with open_capture(str(file)) as capture:
        return engine.run(capture, strict=True)


@pytest.mark.parametrize(
    "text",
    [
        f"My job fails. The pod:\n\n$ kubectl describe pod train-worker-x1\n{POD}\nThe driver prints:\n\n{LOG}",
        f"This is what I get:\n{LOG}\nand the pods are\n\n$ kubectl get pods\n{TABLE}",
        f"{TABLE}\n$ python train.py\n{LOG}",
        f"{LOG}\n$ kubectl describe pod train-worker-x1 | tail\n{STATE}",
    ],
    ids=("described, then a log", "a log, then a table", "a table on top", "a container's state"),
)
def test_both_parts_are_read(text: str, tmp_path: Path) -> None:
    report = diagnosed(tmp_path, text)
    assert "pod-oom-killed" in {d.rule for d in report.diagnoses}
    events = [link.event for d in report.diagnoses for link in d.chain]
    crash = next(e for e in (*events, *report.unexplained) if "KeyError" in e.text)
    assert text.splitlines()[crash.line - 1] == LOG.splitlines()[0]


def test_the_output_of_kubectl_alone_stays_as_it_is() -> None:
    assert mixed.split(f"$ kubectl get pods\n{TABLE}", is_of_kubernetes=True) is None
    assert mixed.split(f"Look at this:\n{POD}", is_of_kubernetes=True) is None


def test_a_log_alone_stays_as_it_is() -> None:
    assert mixed.split(LOG, is_of_kubernetes=False) is None
    assert mixed.split(f"Name: Bob\n{LOG}", is_of_kubernetes=False) is None


def test_no_line_is_lost() -> None:
    text = f"Hello\n{POD}\n{LOG}"
    parts = mixed.split(text, is_of_kubernetes=False)
    assert parts is not None
    pairs = zip(parts.objects.splitlines(), parts.rest.splitlines(), strict=True)
    assert [objects or rest for objects, rest in pairs] == text.splitlines()

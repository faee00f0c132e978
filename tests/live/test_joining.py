"""Programs that wait in `ray.init()` for a cluster that does not answer: no cluster lists them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raydoctor.model.values import Gap
from raydoctor.observe.processes import proc
from raydoctor.observe.stacks import joining
from tests.helpers.real_ray import free_port, real_ray
from tests.helpers.waiting import until

pytestmark = pytest.mark.skipif(not proc.LINUX, reason="/proc")

RAY = "/usr/lib/python3/site-packages/ray"
INIT = ("init", f"{RAY}/_private/worker.py", 1992)
HOOK = ("wrapper", f"{RAY}/_private/client_mode_hook.py", 134)
NODE = ("Node.__init__", f"{RAY}/_private/node.py", 192)
CONNECTS = ("Node._init_gcs_client", f"{RAY}/_private/node.py", 996)
MODULE = ("<module>", "/app/train.py", 7)


def frames(*those: tuple[str, str, int]) -> list[dict[str, Any]]:
    return [{"name": name, "filename": file, "line": line} for name, file, line in those]


@pytest.mark.parametrize(
    ("stack", "place"),
    [
        ((CONNECTS, NODE, INIT, HOOK, MODULE), "train.py:7"),
        ((("_init_gcs_client", *CONNECTS[1:]), NODE, INIT, MODULE), "train.py:7"),
        ((CONNECTS, NODE, INIT, HOOK, ("Trainer.fit", "/app/fit.py", 3), MODULE), "fit.py:3"),
        (
            (
                ("_ChannelReadyFuture._block", "/usr/lib/python3/site-packages/grpc/_utilities.py", 1),
                ("Worker._connect_channel", f"{RAY}/util/client/worker.py", 299),
                ("ClientBuilder.connect", f"{RAY}/client_builder.py", 179),
                INIT,
                HOOK,
                MODULE,
            ),
            "train.py:7",
        ),
        ((CONNECTS, NODE, INIT), ""),
        # A program that starts its own cluster, a worker, a program that is past it or uses names like these.
        ((CONNECTS, ("start_head_processes", NODE[1], 1), NODE, INIT, MODULE), None),
        ((CONNECTS, NODE, ("<module>", f"{RAY}/_private/workers/default_worker.py", 9)), None),
        ((("connect", f"{RAY}/_private/worker.py", 1), INIT, MODULE), None),
        ((("_init_gcs_client", "/app/node.py", 1), ("init", "/app/worker.py", 2), MODULE), None),
        ((MODULE,), None),
        ((), None),
    ],
)  # fmt: skip
def test_which_stacks_wait_for_a_cluster(
    stack: tuple[tuple[str, str, int], ...], place: str | None
) -> None:
    assert joining.place_of(frames(*stack)) == place


def test_a_frame_that_lacks_everything_is_no_connection() -> None:
    assert joining.place_of([{}, {"name": None, "filename": None}]) is None


@contextmanager
def program(text: str, folder: Path) -> Iterator[int]:
    (folder / "train.py").write_text(text)
    without = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    with (
        (folder / "output.txt").open("w") as output,
        subprocess.Popen(
            [sys.executable, "train.py"], cwd=folder, env=without, stdout=output, stderr=output
        ) as process,
    ):
        try:
            yield process.pid
        finally:
            process.kill()


def found(pid: int) -> list[Gap]:
    """The gaps, as if every other process belonged to a cluster."""
    return list(joining.gaps(proc.table().keys() - {pid}))


@pytest.mark.ray
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_program_that_waits_for_an_address_without_a_listener(
    scheme: str, tmp_path: Path
) -> None:
    text = f'import ray\nray.init("{scheme}127.0.0.1:{free_port()}")\n'
    with program(text, tmp_path) as pid:
        gaps: list[Gap] = []
        until(lambda: gaps.extend(found(pid)) or gaps)
    (gap,) = gaps
    assert f"pid {pid} " in gap.what
    assert "train.py:2" in gap.why
    assert not gap.optional
    assert gap.about == joining.ABOUT


@pytest.mark.ray
def test_a_program_that_only_imports_ray_waits_for_nothing(tmp_path: Path) -> None:
    text = "import ray, time\nprint('ready', flush=True)\ntime.sleep(600)\n"
    with program(text, tmp_path) as pid:
        until(lambda: "ready" in (tmp_path / "output.txt").read_text())
        until(lambda: (each := proc.read(pid)) is not None and _is_old(each))
        assert joining.has_loaded_ray(pid)
        assert found(pid) == []


def _is_old(process: proc.Process) -> bool:
    return time.time() - process.started_at > joining.MIN_AGE


@pytest.mark.ray
def test_an_idle_cluster_is_no_all_clear_beside_a_program_that_never_reached_it(
    tmp_path: Path,
) -> None:
    text = f'import ray\nray.init("127.0.0.1:{free_port()}")\n'
    with real_ray() as ray:
        ray.start()
        asked = [sys.executable, "-m", "raydoctor", "hung", "--address", ray.address, "--json"]

        def hung() -> tuple[int, list[str]]:
            done = subprocess.run(asked, env=ray.environment, capture_output=True, check=False)
            return done.returncode, [gap["what"] for gap in json.loads(done.stdout)["gaps"]]

        with program(text, tmp_path) as pid:
            until(lambda: len(found(pid)) == 1)
            code, gaps = hung()
    assert code == 3
    assert any(f"pid {pid} " in gap for gap in gaps)

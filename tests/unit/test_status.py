"""The state of a cluster from its tables and the logs of its runtime environments, and how it is shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from raydoctor.capture.open import open_capture
from raydoctor.case import Case
from raydoctor.diagnosis.status import SIGNALS, status
from raydoctor.model.status import Gauge, LiveStatus
from raydoctor.read import build
from raydoctor.render import json as render_json
from raydoctor.render.page import plain
from raydoctor.render.status import SECTION, StatusView, render, section
from raydoctor.rules.shared.live import examples
from raydoctor.rules.shared.setup import builds

PIP, UV = '{"pip": {"packages": ["acme"]}}', '{"uv": {"packages": ["acme"]}}'
SETUP = "logs/runtime_env_setup-01000000.log"
AGENT = "logs/runtime_env_agent.log"
LOST = "ERROR: No matching distribution found for acme"
PYTHON = "/tmp/ray/session_x/runtime_resources/pip/0772/virtualenv/bin/python"


def said(second: int, text: str) -> str:
    return f"2026-11-21 11:02:{second:02},100\tINFO x.py:1 -- {text}\n"


def began(second: int, env: str) -> str:
    return said(second, f"Creating runtime env: {env} with timeout 600 seconds.")


def failed(second: int, env: str) -> str:
    return said(second, f"Failed to create runtime env {env}.") + (
        "Traceback (most recent call last):\nray.SubprocessCalledProcessError: Run cmd[9] failed with the following "
        f"details.\nLast 50 lines of stdout:\n    {LOST}\n"
    )


def runs(second: int, number: int, *options: str) -> str:
    return said(second, f"Run cmd[{number}] {[PYTHON, '-m', 'pip', 'install', *options]!r}")


def case_of(folder: Path, files: Mapping[str, str]) -> Case:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    with open_capture(str(folder)) as capture:
        return build.read(capture, SIGNALS).case


# ---------------------------------------------------------------- environments


def test_a_build_shows_its_attempt_its_command_and_the_last_error(tmp_path: Path) -> None:
    setup = (
        runs(1, 1)
        + said(3, "Output of cmd[1]: Looking in indexes")
        + runs(6, 2, "-r", "/x/requirements.txt")
    )
    case = case_of(tmp_path, {AGENT: began(0, PIP) + failed(5, PIP), SETUP: setup})
    (found,) = builds.builds(case)
    shown = found.at((found.begun.at or 0.0) + 30)
    assert (shown.tool, shown.age, shown.limit, shown.attempt) == ("pip", 30, 600, 2)
    assert (shown.command, shown.command_age) == ("pip install -r requirements.txt", 24)
    assert shown.last_error == "No matching distribution found for acme"


@pytest.mark.parametrize(
    "ending",
    [
        said(9, f"Successfully created runtime env: {PIP}, context: {{}}"),
        failed(7, PIP)
        + failed(8, PIP)
        + said(9, "runtime_env creation failed 3 times, giving up."),
        said(9, f"Runtime env already failed. Env: {PIP}, err: Traceback"),
        said(9, f"Unused runtime env {PIP}."),
        said(9, "Starting runtime env agent at pid 322"),
    ],
)
def test_a_build_ends(tmp_path: Path, ending: str) -> None:
    log = began(0, PIP) + began(1, UV) + failed(2, PIP) + ending
    left = {each.tool for each in builds.builds(case_of(tmp_path, {AGENT: log}))}
    assert left == (set() if "Starting" in ending else {"uv"})


def test_a_command_belongs_to_the_build_whose_folder_it_names(tmp_path: Path) -> None:
    other = '{"pip": {"packages": ["acme==2"]}}'
    named = runs(1, 1).replace("0772", "948d0ee778eacda1138066ec217583c0b243698c")
    for command, doing in ((named, ["pip install", ""]), (runs(1, 1), ["", ""])):
        case = case_of(tmp_path, {AGENT: began(0, PIP) + began(0, other), SETUP: command})
        assert [each.doing for each in builds.builds(case)] == doing


# ---------------------------------------------------------------- the state


def state_of(folder: Path, tasks: int = 1) -> LiveStatus:
    pending = [examples.task(n, f"task{n}", {}) for n in range(1, 1 + tasks)]
    live = examples.tables(
        nodes=[examples.node({"CPU": 2}), examples.node({}, "e" * 56, state="DEAD")],
        resources=[
            {
                "node_id": examples.NODE,
                "status": "DRAINING",
                "total": {"CPU": 2, "node:x": 1},
                "available": {"CPU": 2},
            }
        ],
        tasks=pending,
        node_usage=[
            {
                "node_id": "a" * 56,
                "ip": "10.0.0.9",
                "ray_node_mem_used": 9,
                "ray_node_mem_total": 10,
            }
        ],
    )
    found = status(case_of(folder, {**live, AGENT: began(0, PIP), SETUP: runs(1, 1)}))
    assert found is not None
    return found


@pytest.mark.parametrize("state", ["PENDING_NODE_ASSIGNMENT", "SUBMITTED_TO_WORKER"])
def test_tasks_with_an_environment_each_wait_for_workers_of_their_own(
    state: str, tmp_path: Path
) -> None:
    envs = "".join(began(n, f'{{"env_vars": {{"SHARD": "{n}"}}}}') for n in range(22))
    tables = examples.tables(
        nodes=[examples.node({"CPU": 2})],
        resources=[{"node_id": examples.NODE, "total": {"CPU": 2}, "available": {"CPU": 2}}],
        tasks=[{**examples.task(1, "load", {"CPU": 1}), "state": state}],
    )
    found = status(case_of(tmp_path, {**tables, AGENT: envs}))
    assert found is not None
    assert found.tasks is not None
    (group,) = found.tasks.waits
    several = "22 runtime environments, which differ in env_vars.SHARD"
    assert (several in group.reason) == (state == "PENDING_NODE_ASSIGNMENT")


def test_tasks_without_a_worker_wait_for_the_environment_that_is_being_set_up(
    tmp_path: Path,
) -> None:
    found = state_of(tmp_path)
    assert (found.nodes, found.dead_nodes, found.workers, found.actors) == (1, 1, None, None)
    assert "1 alive (1 draining), 1 dead" in plain(section(found, 80))
    assert found.tasks is not None
    (group,) = found.tasks.waits
    assert (group.kind, group.name, group.count, round(group.oldest)) == (
        "runtime-env",
        "task1",
        1,
        15,
    )
    assert [(use.name, use.used, use.total) for use in found.resources] == [("CPU", 0, 2)]
    gauge = Gauge("a" * 56, "10.0.0.9", "memory", "", 9, 10, 0.95, (), is_assumed=True)
    assert found.gauges == (gauge,)
    assert json.loads(json.dumps(render_json.status(found)))["gauges"][0]["level"] == "near"


@pytest.mark.parametrize("tasks", [1, 4, 40])
def test_the_section_of_a_report_has_twelve_lines(tmp_path: Path, tasks: int) -> None:
    found = state_of(tmp_path, tasks)
    page = plain(section(found, 80)).splitlines()
    assert len(page) <= SECTION
    assert all(len(each) <= 80 for each in page)
    listed = sum(" × task" in each for each in page)
    left = [each for each in page if "more, see raydoctor status -v" in each]
    assert (f"… and {tasks - listed} more" in left[0]) if left else listed == tasks
    whole = plain(render(StatusView(found, (), "10.0.0.1:6379"), 80, is_whole=True))
    assert whole.count(" × task") == tasks


def test_without_nodes_there_is_no_state(tmp_path: Path) -> None:
    assert status(case_of(tmp_path, examples.tables(tasks=[]))) is None


@pytest.mark.parametrize(
    ("states", "silent"),
    [
        ({"raylet": "S", "gcs_server": "S"}, []),
        ({"raylet": "T", "gcs_server": "S"}, [812]),
        ({"raylet": "Z", "gcs_server": "S"}, [0]),
        ({"gcs_server": "S"}, [0]),
    ],
)
def test_a_raylet_that_cannot_answer(
    states: dict[str, str], silent: list[int], tmp_path: Path
) -> None:
    rows = [
        {"kind": k, "pid": 812, "state": s, "node_id": examples.NODE, "is_this": True}
        for k, s in states.items()
    ]
    tables = examples.tables(nodes=[examples.node({"CPU": 2})], daemons=rows)
    found = status(case_of(tmp_path, tables))
    assert found is not None
    assert [each.pid for each in found.silent] == silent
    assert ("does not answer" in plain(section(found, 100))) is bool(silent)

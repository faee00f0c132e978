"""`ray start` without the daemons that WITHOUT names: each costs a second of a core, most of it for imports.

    WITHOUT="monitor log_monitor agents" WORKER=absent/python DAEMONS_PYTHONPATH= python start_ray.py start --head …

Names are those of the methods of Ray's `Node` that start them (2.60.0); a name that a version of Ray lacks has
no effect there. A raylet has to have its agents: without `agents` or `dashboard_agent`, idle ones are in their
place. WORKER is the interpreter of workers. Subcommands of `ray` that are of no use here are not imported: half of
the start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

for subcommands in (
    "ray.dashboard.modules.job.cli",
    "ray.serve.scripts",
    "ray.util.state.state_cli",
):
    sys.modules[subcommands] = None  # type: ignore[assignment]

WITHOUT, WORKER = os.environ.pop("WITHOUT", "").split(), os.environ.pop("WORKER", "")
os.environ["PYTHONPATH"] = os.environ.pop("DAEMONS_PYTHONPATH", "")

from ray._private import services  # noqa: E402
from ray._private.node import Node  # noqa: E402
from ray.scripts.scripts import main  # noqa: E402

IDLE_AGENT = Path(__file__).with_name("idle_agent.sh")
COMMANDS = {
    "dashboard_agent": ("--dashboard_agent_command",),
    "agents": ("--dashboard_agent_command", "--runtime_env_agent_command"),
}
HEADS = "--modules-to-load=JobHead,NodeHead,ReportHead,StateHead"
"""Parts of the dashboard that serve what raydoctor asks for. Each of the others is a process as well."""


def _start_nothing(*_: object, **__: object) -> None:
    """In place of a method that starts a daemon."""


def _start_leaner(changes: dict[str, Callable[[str], str]]) -> None:
    """Change options of the daemons' command lines."""
    starts = services.start_ray_process

    def changed(word: str) -> str:
        option, _, value = word.partition("=")
        return f"{option}={changes[option](value)}" if option in changes else word

    def start(command: list[str], *arguments: Any, **more: Any) -> Any:
        heads = [HEADS] if any(word.endswith("/dashboard.py") for word in command) else []
        return starts([*map(changed, command), *heads], *arguments, **more)

    services.start_ray_process = start


if __name__ == "__main__":
    changes: dict[str, Callable[[str], str]] = {}
    if WORKER:
        changes["--python_worker_command"] = lambda command: f"{WORKER} {command.split(' ', 1)[1]}"
    for name in WITHOUT:
        if name in COMMANDS:
            changes |= dict.fromkeys(COMMANDS[name], f"/bin/sh {IDLE_AGENT} ".__add__)
        else:
            setattr(Node, f"start_{name}", _start_nothing)
    _start_leaner(changes)
    main()

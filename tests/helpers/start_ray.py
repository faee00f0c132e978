"""`ray start` without the daemons that WITHOUT names: each costs a second of a core, most of it for imports.

    WITHOUT="monitor log_monitor agents" python start_ray.py start --head …

Names are those of the methods of Ray's `Node` that start them (2.60.0); a name that a version of Ray lacks has
no effect there. A raylet has to have its agents: without `agents`, idle ones are in their place.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ray._private import services
from ray._private.node import Node
from ray.scripts.scripts import main

IDLE_AGENT = Path(__file__).with_name("idle_agent.sh")
COMMANDS = ("--dashboard_agent_command", "--runtime_env_agent_command")


def _start_nothing(*_: object, **__: object) -> None:
    """In place of a method that starts a daemon."""


def _start_idle_agents() -> None:
    starts = services.start_ray_process

    def start(command: list[str], *arguments: Any, **more: Any) -> Any:
        return starts([_idle(word) for word in command], *arguments, **more)

    services.start_ray_process = start


def _idle(word: str) -> str:
    option, _, agent = word.partition("=")
    return f"{option}=/bin/sh {IDLE_AGENT} {agent}" if option in COMMANDS else word


if __name__ == "__main__":
    for name in os.environ.pop("WITHOUT", "").split():
        if name == "agents":
            _start_idle_agents()
        else:
            setattr(Node, f"start_{name}", _start_nothing)
    main()

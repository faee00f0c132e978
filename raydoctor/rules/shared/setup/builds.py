"""Runtime environments that were still being set up when the logs end: pure functions of the agent's records.

The agent logs the begin of a setup, each failed attempt and the end (`runtime_env_agent.py`, 2.9 to 2.60). The log
of the job (`runtime_env_setup-<job>.log`) has each command when it begins, and its output only after it has ended. So a
running pip shows neither its progress nor its retries; what the attempt before ended with is known.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from raydoctor.case import Case
from raydoctor.case.case import order
from raydoctor.case.rule import Signal
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.status import EnvironmentBuild
from raydoctor.model.values import Event
from raydoctor.rules.shared.setup.environments import AGENT, ATTEMPT, CREATED, KEPT
from raydoctor.rules.shared.setup.errors import read, tool_of

BEGUN = Signal(
    "runtime_env.begun",
    "Creating runtime env: ",
    r"^Creating runtime env: (?P<env>\{[^\n]*\}) with timeout (?P<seconds>\d{1,9}) seconds",
    AGENT,
    'Creating runtime env: {"pip": {"packages": ["acme==1.4.2"], "pip_check": false}} with timeout 600 seconds.',
    fold=("env",),
    precedes=True,
)
GAVE_UP = Signal(
    "runtime_env.gave_up",
    " creation failed ",
    r"^(?:runtime_env|Runtime env) creation failed (?:for )?(?P<times>\d{1,6}) times",
    AGENT,
    "runtime_env creation failed 3 times, giving up.",
)
UNUSED = Signal(
    "runtime_env.unused",
    "Unused runtime env ",
    r"^Unused runtime env (?P<env>\{[^\n]*\})\.",
    AGENT,
    'Unused runtime env {"pip": {"packages": ["acme==1.4.2"], "pip_check": false}}.',
    fold=("env",),
)
AGENT_STARTED = Signal(
    "runtime_env.agent_started",
    "Starting runtime env agent at pid ",
    r"^Starting runtime env agent at pid (?P<agent>\d+)",
    AGENT,
    "Starting runtime env agent at pid 322",
)
_SETUP = ("runtime-env-setup",)
COMMAND = Signal(
    "runtime_env.command",
    "Run cmd[",
    r"^Run cmd\[(?P<number>\d{1,9})\] (?P<command>\[[^\n]*)",
    _SETUP,
    "Run cmd[3] ['/tmp/ray/session_x/runtime_resources/pip/0772/virtualenv/bin/python', '-m', 'pip', 'install']",
)
COMMAND_ENDED = (
    Signal(
        "runtime_env.command_ended", "Output of cmd[", r"^Output of cmd\[(?P<number>\d{1,9})\]",
        _SETUP, "Output of cmd[3]: Looking in indexes: http://10.0.0.9/simple",
    ),
    Signal(
        "runtime_env.command_ended", "No output for cmd[", r"^No output for cmd\[(?P<number>\d{1,9})\]",
        _SETUP, "No output for cmd[1]",
    ),
)  # fmt: skip

SIGNALS = (
    *(BEGUN, ATTEMPT, CREATED, KEPT, GAVE_UP, UNUSED, AGENT_STARTED, COMMAND),
    *COMMAND_ENDED,
)

_WORD = pattern(r"'((?:[^'\\]|\\.){0,4000})'|\"((?:[^\"\\]|\\.){0,4000})\"")
"""A word of a list's `repr`."""
_MOST_WORDS = 40
LONG = 60.0
"""Seconds after which a setup that has not ended is reported; pip installs most environments in less."""
_STEPS = {"_clonevirtualenv.py": "the creation of the virtual environment"}


def uses_working_dir(case: Case) -> bool:
    """Whether an agent builds an environment with the files of a working_dir."""
    return any('"working_dir"' in event["env"] for event in case.of(BEGUN.kind))


@dataclass(slots=True)
class Build:
    """A setup that has begun and not ended."""

    begun: Event
    node: str
    attempts: list[Event] = field(default_factory=list)
    """The attempts that failed."""
    command: Event | None = None
    """The command that runs now, if it is known."""
    left: Event | None = None
    """The record that nothing needs the environment any more, although it was not set up."""

    @property
    def env(self) -> str:
        """The environment, as the agent writes it."""
        return self.begun["env"]

    @property
    def tool(self) -> str:
        """The parts to set up, such as `pip`; empty if unknown."""
        return tool_of(self.env)

    @property
    def limit(self) -> float:
        """Seconds that each attempt may take."""
        return float(self.begun["seconds"])

    @property
    def last_error(self) -> str:
        """The decisive line of the last failed attempt; empty if none failed."""
        return read(self.attempts[-1]["what"]).said if self.attempts else ""

    @property
    def last_begin(self) -> Event:
        """The record after which the current attempt runs."""
        return self.attempts[-1] if self.attempts else self.begun

    @property
    def doing(self) -> str:
        """`pip install -r requirements.txt`; empty if the command is not known."""
        return _shown(self.command["command"]) if self.command else ""

    @property
    def entity(self) -> Entity:
        """The entity that the rule about lasting setups explains."""
        return Entity("runtime-env", f"unfinished: {self.env}")

    @property
    def step(self) -> str:
        """`pip install`, `the creation of the virtual environment`: the command without its options."""
        words = self.doing.split(" ")
        options = [n for n, word in enumerate(words) if word.startswith("-")]
        return " ".join(words[: options[0]] if options else words)

    def ended_by(self, until: float) -> float:
        """When nothing needed it any more, or else `until`: epoch seconds."""
        return (self.left and self.left.at) or until

    def at(self, now: float) -> EnvironmentBuild:
        """The build at a time, in epoch seconds."""
        return EnvironmentBuild(
            self.tool,
            self.node,
            _age(self.begun, now),
            self.limit,
            len(self.attempts) + 1,
            self.doing,
            _age(self.command, now) if self.command else None,
            self.last_error,
        )


def _age(event: Event, now: float) -> float | None:
    return None if event.at is None else max(0.0, now - event.at)


def seen_until(case: Case) -> float:
    """When the capture ends, or the last job: what a driver left behind has no reader any more."""
    tables = [e.at for e in case.of("live.table") if e.at is not None]
    if tables:
        return max(tables)
    last = max((e.at for e in case.events if e.at is not None), default=0.0)
    ends = [job.ended for job in case.ledger.jobs.values()]
    known = [end for end in ends if end is not None]
    return min(last, max(known)) if known and len(known) == len(ends) else last


def builds(case: Case) -> list[Build]:
    """Every setup that goes on, oldest first."""
    return [build for build in unfinished(case) if build.left is None]


def unfinished(case: Case) -> list[Build]:
    """Every setup that has neither succeeded nor failed, even if nothing waits for it any more; oldest first."""
    found: dict[tuple[str, str], Build] = {}
    abandoned: list[Build] = []
    kinds = (BEGUN.kind, ATTEMPT.kind, CREATED.kind, KEPT.kind, UNUSED.kind, GAVE_UP.kind)
    for event in case.of(*kinds, AGENT_STARTED.kind):
        node, env = event.source.node, event["env"]
        if event.kind == AGENT_STARTED.kind:
            found = {key: build for key, build in found.items() if key[0] != node}
        elif event.kind == BEGUN.kind:
            found[node, env] = Build(event, node)
        elif event.kind == ATTEMPT.kind:
            if build := found.get((node, env)):
                build.attempts.append(event)
        elif event.kind == GAVE_UP.kind:
            _give_up(found, event)
        elif (ended := found.pop((node, env), None)) and event.kind == UNUSED.kind:
            ended.left = event
            abandoned.append(ended)
    every = sorted([*abandoned, *found.values()], key=lambda build: order(build.begun))
    _add_commands(case, every)
    return every


def lasting(case: Case) -> list[Build]:
    """Unfinished setups without a failed attempt that have lasted for long enough to be reported."""
    until = seen_until(case)
    found = [build for build in unfinished(case) if not build.attempts]
    return [b for b in found if (b.at(b.ended_by(until)).age or 0.0) >= LONG]


def _give_up(found: dict[tuple[str, str], Build], event: Event) -> None:
    """Remove the build whose last attempt the agent has just given up: the record does not name it."""
    spent = [
        build
        for build in found.values()
        if build.node == event.source.node and len(build.attempts) >= int(event["times"])
    ]
    if spent:
        last = max(spent, key=lambda build: order(build.attempts[-1]))
        del found[last.node, last.env]


def _add_commands(case: Case, found: list[Build]) -> None:
    """Give each build its last command without an end.

    Of several builds of a node, a build's commands are those that name the folder of its environment.
    """
    running: dict[tuple[str, str], Event] = {}
    for event in case.of(COMMAND.kind, *{each.kind for each in COMMAND_ENDED}) if found else ():
        key = (event.source.path, event["number"])
        if event.kind == COMMAND.kind:
            running[key] = event
        else:
            running.pop(key, None)
    for build in found:
        others = [b for b in found if b.node == build.node and b.left is None and b is not build]
        own = [e for e in running.values() if e.source.node == build.node and _runs(build, e)]
        if others:
            folders = _folders(build.env)
            own = [e for e in own if any(folder in e["command"] for folder in folders)]
        build.command = max(own, key=order, default=None)


def _folders(env: str) -> list[str]:
    """Where an environment is built: `pip/0772…`, the SHA-1 of its specification.

    So in `pip.py` and `uv.py` of 2.9 to 2.60, where the specification names no requirements file.
    """
    # It loads OpenSSL, which the start of every command would pay for.
    from hashlib import sha1

    try:
        parts = json.loads(env)
    except (ValueError, RecursionError):
        return []
    named = {tool: parts[tool] for tool in ("pip", "uv") if isinstance(parts.get(tool), dict)}
    texts = {tool: json.dumps(part, sort_keys=True).encode() for tool, part in named.items()}
    return [
        f"/{tool}/{sha1(text, usedforsecurity=False).hexdigest()}/" for tool, text in texts.items()
    ]


def _runs(build: Build, command: Event) -> bool:
    """Whether the command began during the current attempt of the build."""
    since, until = build.last_begin.at, build.left.at if build.left else float("inf")
    if command.at is None or since is None or until is None:
        return False
    return since <= command.at <= until


def _shown(command: str) -> str:
    """A command's `repr` without the long folders of Ray's."""
    words = (single or double for single, double in _WORD.findall(command))
    names = [word.rpartition("/")[2] if word.startswith("/") else word for word in words]
    if step := next((_STEPS[name] for name in names if name in _STEPS), ""):
        return step
    if "-c" in names:
        return f"{names[0]} -c …"
    if "-m" in names:
        names = names[names.index("-m") + 1 :]
    # A text that is cut hides its secrets from the redactor: pages cut it later.
    return " ".join(names[:_MOST_WORDS]).replace("ray_runtime_env_internal_pip_", "")

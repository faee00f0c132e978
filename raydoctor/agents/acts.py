"""The acts of `raydoctor mcp --allow-actions`, in two steps: a plan, and the act that was planned.

A plan returns what would be done, and a token for exactly that: a task in its worker, or processes with their
start times. The act runs the same command as a person, which compares these identities
before it does anything, and records everything in the audit.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from mcp.types import CallToolResult
from pydantic import Field

from raydoctor.agents import schemas, shapes
from raydoctor.agents.child import CommandResult
from raydoctor.agents.replies import Items, Row, ToolResult, page_of, shown
from raydoctor.agents.tools import Address, Cursor, Desk
from raydoctor.model.errors import RaydoctorError

_VALID = 300.0
"""Seconds that a token is valid: a person may have to be asked."""
_MOST = 50
"""Tokens at once; the oldest is dropped."""

Act = Literal["cancel", "end_leftovers", "run_statement"]
_WILL: Mapping[str, str] = {
    "cancel": "cancel this task, step by step, with its subprocesses and the tasks that it submitted",
    "end_leftovers": "end these processes, which a finished Ray left running",
    "run_statement": "run this statement in the process of this task",
}


class _PermittedAct(NamedTuple):
    """What a token permits."""

    words: tuple[str, ...]
    """The command, which refuses if it would act on something else than was shown."""
    expires: float
    """Of `time.monotonic`."""


class Acts:
    """Plans of one server, each of which can be carried out once."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._plans: dict[str, _PermittedAct] = {}

    async def plan(  # noqa: PLR0913, PLR0917 - one parameter per field of the schema
        self,
        act: Annotated[
            Act,
            Field(
                description="cancel: end one task. end_leftovers: end processes that a finished Ray left "
                "on this machine. run_statement: run Python in a task's process."
            ),
        ],
        target: Annotated[
            str, Field(description="Task for cancel and run_statement: its id, name or pid.")
        ] = "",
        statement: Annotated[str, Field(description="Python, for run_statement.")] = "",
        force: Annotated[
            bool, Field(description="cancel: end the worker if gentler steps fail.")
        ] = False,
        address: Address = "",
        cursor: Cursor = "",
    ) -> Annotated[CallToolResult, schemas.PlanReply]:
        """Show what an act would do, and return a token for exactly that. Nothing is changed.

        Show the plan to a person, and call `act` with the token once they agree. Without a token, there is
        nothing to do, or several tasks have the name: choose one by its id. `more` counts leftovers that a
        further plan shows, after the act.
        """
        _check(act, target, statement, address, force)
        where = [] if act == "end_leftovers" else await self._desk.at(address)
        options = _options(act, statement, force, where)
        arguments: tuple[str, ...] = ("--", target) if target else ()
        made = await self._desk.run([*options, "--dry-run", *arguments])
        rows, only, arguments = _shown(act, made.document)
        items = shapes.listed(rows)
        head: Row = {"will": _WILL[act], "token": None, "expires_in_s": 0, "count": len(rows)}
        if only:
            token = secrets.token_urlsafe(18)
            head |= {"token": token, "expires_in_s": int(_VALID), "more": 0}
            # The token is for what this reply shows, and not for what a further page would show.
            count = _fitting(act, head, items)
            head |= {"count": count, "more": len(rows) - count}
            items, only = items[:count], only[:count]
            self._keep(token, (*options, "--yes", f"--only={','.join(only)}", *arguments))
        return self._desk.first(ToolResult("plan", head, [*items, *shapes.noted(made.notes)]))

    def _keep(self, token: str, words: tuple[str, ...]) -> None:
        while len(self._plans) >= _MOST:
            del self._plans[next(iter(self._plans))]
        self._plans[token] = _PermittedAct(words, time.monotonic() + _VALID)

    async def act(
        self,
        token: Annotated[str, Field(description="token of a plan; valid once, for 5 min.")] = "",
        cursor: Cursor = "",
    ) -> Annotated[CallToolResult, schemas.ActReply]:
        """Do what a plan showed, after a person agreed. It is refused if the task or process has changed."""
        plan = self._plans.pop(token, None)
        if plan is None or plan.expires < time.monotonic():
            raise RaydoctorError(
                "nothing was done: the token is unknown, used or expired", "Make a new plan."
            )
        made = await self._desk.run(plan.words)
        items = [*shapes.listed(_results(made.document)), *shapes.noted(made.notes)]
        return self._desk.first(ToolResult("act", {"done": _is_done(made)}, items), made.size)


def _check(act: Act, target: str, statement: str, address: str, force: bool) -> None:
    """Raise RaydoctorError for fields that do not belong together."""
    if act == "end_leftovers" and (target or address):
        raise RaydoctorError(
            "end_leftovers is about this machine", "Pass no target and no address."
        )
    if act != "end_leftovers" and not target:
        raise RaydoctorError(f"{act} needs a target", "Pass the id of a task, as hung shows it.")
    if (act == "run_statement") != bool(statement):
        raise RaydoctorError("statement belongs to run_statement", "Pass both, or neither.")
    if force and act != "cancel":
        raise RaydoctorError("force belongs to cancel", "Leave it out.")
    if shown(statement) != statement:
        raise RaydoctorError(
            "a plan cannot show this statement exactly: it is too long, or has tabs or invisible characters",
            "Pass a shorter one, indented with spaces.",
        )


def _fitting(act: Act, head: Row, items: Items) -> int:
    """How many items of a plan its reply shows. Raises RaydoctorError if a statement is not among them whole.

    A process is identified by its pid and start; its command line may be cut.
    """
    page = page_of(ToolResult("plan", head, items))["items"]
    if act == "end_leftovers":
        return len(page)
    if act == "run_statement" and page != [row for _, row in items]:
        raise RaydoctorError("the plan is larger than a reply", "Pass a shorter statement.")
    return len(items)


def _options(act: Act, statement: str, force: bool, where: Sequence[str]) -> tuple[str, ...]:
    """The command and its options."""
    common = ("--format=json", *where)
    if act == "cancel":
        return "cancel", *common, "--force" if force else "--no-force"
    if act == "run_statement":
        return "attach", *common, f"--exec={statement}"
    return "zombies", *common, "--kill"


def _shown(
    act: Act, document: Mapping[str, Any]
) -> tuple[list[Row], Sequence[str], tuple[str, ...]]:
    """Rows to show, the identities that the token is for, and the arguments that name the target.

    There are no identities if there is nothing to do, or several tasks have the name.
    """
    if act == "end_leftovers":
        meant = [e for e in document["leftovers"] if e["outcome"] == "running" and not e["reason"]]
        return meant, [each["identity"] for each in meant], ()
    target = document.get("target")
    if target is None:
        return list(document.get("candidates", ())), (), ()
    steps = document.get("plan")
    is_over = bool(document.get("ended")) or not steps
    rows = [target, *(steps if isinstance(steps, list) else [steps or {}])]
    subject = target.get("task") or target.get("actor") or target
    where = _place(document["plan"]) if act == "run_statement" and not is_over else ()
    named = (*where, "--", subject.get("id") or str(target["pid"]))
    return rows, () if is_over else [target["identity"]], named


def _place(plan: Mapping[str, Any]) -> tuple[str, ...]:
    """Options for the thread and the frame that a plan shows. Raises RaydoctorError if it shows none."""
    if not (where := plan["where"]):
        raise RaydoctorError(
            "the thread and the frame in which it would run could not be read without entering the process",
            "A person can choose them: raydoctor attach TARGET --exec STATEMENT",
        )
    return f"--thread={where['tid']}", f"--frame={where['function']}"


def _is_done(made: CommandResult) -> bool:
    """Whether a command did what was planned; a sweep may add that it could not inspect other processes."""
    if made.document["schema"].startswith("raydoctor/zombies/"):
        return all(each["outcome"] == "gone" for each in made.document["leftovers"])
    return made.code == 0


def _results(document: Mapping[str, Any]) -> list[Row]:
    """What was done, and what is left."""
    skipped = ("schema", "version", "leftovers", "steps", "nodes", "stale_sessions", "launch")
    rest = {k: v for k, v in document.items() if k not in skipped and v not in (None, [], {}, "")}
    rows = [*document.get("steps", ()), *document.get("leftovers", ())]
    return [*([rest] if rest else []), *rows]

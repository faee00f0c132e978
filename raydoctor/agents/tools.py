"""The tools of `raydoctor mcp`: each runs one command, and returns the first page of its result."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any

import anyio
from mcp.types import CallToolResult, TextContent
from pydantic import Field

from raydoctor.agents import child, schemas, shapes
from raydoctor.agents.replies import Row, Shelf, ToolResult, as_text, shortened, shown, untrusted
from raydoctor.model import paste
from raydoctor.model.errors import RaydoctorError

_AT_ONCE = 4
"""Commands that run at the same time; others wait."""
_ERROR = 500
"""Characters of an error's message, and of its hint: a reply of only backslashes is four times as long."""
_EVIDENCE = "raydoctor.agents.programs.neighbours"

Cursor = Annotated[str, Field(description="next_cursor of an earlier reply, for its next page.")]
Report = Annotated[str, Field(description="`result` of an earlier diagnose; default: the newest.")]
Address = Annotated[str, Field(description="GCS host:port, if several clusters run here.")]


def replied(reply: Row) -> CallToolResult:
    """A reply, as an object and as text."""
    text = TextContent(type="text", text=as_text(reply))
    return CallToolResult(content=[text], structured_content=reply)


def refused(error: RaydoctorError) -> CallToolResult:
    """An error. Its message may name what a log or another user named."""
    texts = {"message": error.message, "hint": error.hint}
    short = {name: shortened(shown(text), _ERROR) for name, text in texts.items()}
    row = {"error": "raydoctor could not do it", **untrusted(**short)}
    return CallToolResult(content=[TextContent(type="text", text=as_text(row))], is_error=True)


class Desk:
    """The read-only tools of one server, with the results that they return page by page.

    A `cursor` never reaches a tool: `server.build` answers it with `page`. It is a parameter for the schema.
    """

    def __init__(self, address: str = "") -> None:
        self._typed = address
        self._shelf = Shelf()
        self._room = anyio.Semaphore(_AT_ONCE)

    async def run(self, words: Sequence[str], **more: Any) -> child.CommandResult:
        """Run a command. Raises RaydoctorError if it fails."""
        async with self._room:
            return await child.run(words, **more)

    async def at(self, address: str) -> list[str]:
        """The options for a cluster: the one that a person typed for the server, or one of this machine.

        An agent may have read an address in a log, and raydoctor sends the cluster's token to an address that
        is typed. Raises RaydoctorError for any other address.
        """
        if not address:
            return _named("address", self._typed)
        if address == self._typed:
            return _named("address", address)
        here = await anyio.to_thread.run_sync(_addresses_here)
        if address not in here:
            raise RaydoctorError(
                f"no cluster of this machine has the address {address!r}",
                paste.text(
                    "It has: {here}. For a cluster elsewhere, a person starts raydoctor mcp --address.",
                    here=", ".join(here) or "none",
                ),
            )
        return [*_named("address", address), "--found"]

    def first(self, result: ToolResult, weight: int = 0) -> CallToolResult:
        """The first page of a new result; `weight`: bytes of its JSON."""
        return self.page(f"{self._shelf.add(result._replace(weight=weight))}.0", result.tool)

    def page(self, cursor: str, tool: str) -> CallToolResult:
        """The page that a cursor names. Raises RaydoctorError if it is none of this tool."""
        return replied(_in_order(self._shelf.continued(cursor, tool)))

    def _report(self, name: str) -> ToolResult:
        return self._shelf.get(name or self._shelf.latest("diagnose"), "diagnose")

    async def diagnose(  # noqa: PLR0913, PLR0917 - one parameter per field of the schema
        self,
        path: Annotated[
            str,
            Field(
                description="Session folder, its logs, a tree of several nodes, an archive or one log "
                "file. Empty: the cluster of this machine, live."
            ),
        ] = "",
        since: Annotated[str, Field(description="Only incidents since: 2h, or an ISO time.")] = "",
        driver_log: Annotated[str, Field(description="File with the driver's output.")] = "",
        session: Annotated[
            str, Field(description="Of several sessions the one to read; default: the newest.")
        ] = "",
        address: Address = "",
        cursor: Cursor = "",
    ) -> Annotated[CallToolResult, schemas.DiagnoseReply]:
        """Find out why a Ray job or cluster failed: one line of health, then each root cause with its fixes.

        Call it first. `finding` has the evidence of a root cause, `next_cursor` further ones. The verdict
        inconclusive means that evidence is missing: it does not mean healthy.
        """
        if session == "all":
            raise RaydoctorError("a reply is about one session", "Name one session.")
        source = {"path": _absolute(path), "driver_log": _absolute(driver_log), "session": session}
        words = ["diagnose", "--format", "json", "--fail-on", "never", *_named("since", since)]
        if address or not (path or driver_log):
            words += await self.at(address)
        # The rules are imported while the command runs.
        threading.Thread(target=_meanings, daemon=True).start()
        made = await self.run([*words, *_of(source)])
        meanings = await anyio.to_thread.run_sync(_meanings)
        result = shapes.diagnosed(made.document, meanings, made.notes)
        if not path and not driver_log:
            source["path"] = str(made.document["capture"]["path"])
        return self.first(result._replace(source=source), made.size)

    async def finding(
        self,
        id: Annotated[str, Field(description="Id of a finding, such as d1.")] = "",  # noqa: A002
        report: Report = "",
        cursor: Cursor = "",
    ) -> Annotated[CallToolResult, schemas.FindingReply]:
        """Show one finding of a diagnosis in full: fixes, the chain of evidence, consequences and gaps."""
        document = self._report(report).document
        found = shapes.finding(document, id, await anyio.to_thread.run_sync(_meanings))
        if found is None:
            known = ", ".join(str(each["id"]) for each in document["diagnoses"][:50]) or "none"
            raise RaydoctorError(
                f"the report has no finding {id!r}", paste.text("It has: {known}", known=known)
            )
        return self.first(found)

    async def evidence(
        self,
        file: Annotated[str, Field(description="File of the capture, as a finding names it.")] = "",
        line: Annotated[int, Field(ge=1, le=10**12)] = 1,
        neighbours: Annotated[int, Field(ge=0, le=100, description="Lines before and after.")] = 5,
        report: Report = "",
        cursor: Cursor = "",
    ) -> Annotated[CallToolResult, schemas.EvidenceReply]:
        """Show lines of a log file around one line. Only files of the diagnosed capture can be read."""
        known = self._report(report)
        request = {**known.source, "file": file, "line": line, "neighbours": neighbours}
        made = await self.run([], module=_EVIDENCE, request=json.dumps(request).encode())
        lines = made.document["lines"]
        if lines is None:
            text = shapes.text_at(known.document, file, line)
            if not text:
                raise RaydoctorError(
                    f"the capture has no file {file!r}",
                    "Pass file and line as a finding names them.",
                )
            lines = [(line, text)]
        if not any(number == line for number, _ in lines):
            raise RaydoctorError(f"{file} has no line {line}", "Pass a line that a finding names.")
        return self.first(shapes.evidence(lines, line))

    async def story(
        self,
        id: Annotated[  # noqa: A002
            str,
            Field(
                description="Id (or its first 6 digits) of a worker, task, actor, object, node or job; "
                "pid:N; or name:X."
            ),
        ] = "",
        path: Annotated[str, Field(description="A capture; default: the diagnosed one.")] = "",
        everything: Annotated[bool, Field(description="Include routine lines.")] = False,
        report: Report = "",
        cursor: Cursor = "",
    ) -> Annotated[CallToolResult, schemas.StoryReply]:
        """Show every line about one worker, task, actor, object, node, job or process, in time order."""
        source = {"path": _absolute(path)} if path else self._report(report).source
        words = ["story", "--format", "json", *(["--all"] if everything else [])]
        made = await self.run([*words, *_of(source, id)])
        return self.first(shapes.story(made.document, made.notes), made.size)

    async def hung(
        self,
        path: Annotated[
            str, Field(description="A capture made during the hang; empty: the live cluster.")
        ] = "",
        min_age: Annotated[str, Field(description="Idle time that counts as hung.")] = "60s",
        address: Address = "",
        cursor: Cursor = "",
    ) -> Annotated[CallToolResult, schemas.HungReply]:
        """Find hung tasks and deadlocks: what blocks, what waits for it, its stack and the fixes."""
        words = ["hung", "--format", "json", f"--min-age={min_age}"]
        words += await self.at(address) if address or not path else []
        made = await self.run([*words, *_of({"path": _absolute(path)})])
        return self.first(shapes.hung(made.document, made.code, made.notes), made.size)

    async def stacks(
        self,
        target: Annotated[
            str, Field(description="Task, actor, pid or node; empty: all workers of this machine.")
        ] = "",
        native: Annotated[bool, Field(description="Include C and C++ frames.")] = False,
        address: Address = "",
        cursor: Cursor = "",
    ) -> Annotated[CallToolResult, schemas.StacksReply]:
        """Show the current call stacks of Ray workers and drivers, without stopping them."""
        words = ["stack", "--format", "json", *await self.at(address)]
        words += ["--native"] if native else []
        made = await self.run([*words, *(["--", target] if target else [])])
        return self.first(shapes.stacks(made.document, made.notes), made.size)

    async def explain(
        self,
        rule: Annotated[str, Field(description="Name of a rule, such as ray-oom-kill.")] = "",
        cursor: Cursor = "",
    ) -> Annotated[CallToolResult, schemas.ExplainReply]:
        """Explain a rule: what one sees, why it happens, how to confirm it, the fix, and when it is not
        this."""
        made = await self.run(["explain", "--format", "json", "--", rule])
        if "doc" not in made.document:
            raise RaydoctorError("rule is missing", "Pass the name of a rule.")
        return self.first(shapes.explained(made.document))

    async def check(self, cursor: Cursor = "") -> Annotated[CallToolResult, schemas.CheckReply]:
        """Check whether this machine, and the cluster that runs on it, are fit for Ray: before a run."""
        made = await self.run(["check", "--format", "json"])
        return self.first(shapes.checked(made.document, made.notes))

    @property
    def all(self) -> tuple[Any, ...]:
        """The tools, in the order in which an agent needs them."""
        return (
            *(self.diagnose, self.finding, self.evidence, self.story),
            *(self.hung, self.stacks, self.explain, self.check),
        )


@cache
def _meanings() -> Mapping[str, str]:
    """Rule -> its first sentence."""
    from raydoctor.diagnosis import plugins
    from raydoctor.render.rules import summary

    return {rule.name: summary(rule) for rule in plugins.catalogue().rules}


def _in_order(reply: Row) -> Row:
    """Lines of evidence as in the file; those nearest to the wanted one were chosen."""
    if "from_line" in reply:
        reply["lines"] = sorted(reply.get("lines", ()), key=lambda each: int(each["line"]))
    return reply


def _addresses_here() -> list[str]:
    """GCS addresses of the clusters that run on this machine, according to their own processes."""
    from raydoctor.observe.processes import discover

    return [each.gcs_address for each in discover.clusters() if each.gcs_address]


def _absolute(path: str) -> str:
    """A path that cannot be read as an option, and means the same in another working folder."""
    return os.path.abspath(os.path.expanduser(path)) if path else ""


def _named(option: str, value: str) -> list[str]:
    return [f"--{option}={value}"] if value else []


def _of(source: Mapping[str, Any], *arguments: str) -> list[str]:
    """Options and arguments that name a capture."""
    words = [*_named("driver-log", source.get("driver_log", ""))]
    words += _named("session", source.get("session", ""))
    return [*words, "--", *arguments, *filter(None, [source["path"]])]

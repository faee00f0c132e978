"""`raydoctor attach`: attach a debugger to a running process, or inspect it without an IDE."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raydoctor.cli import _options as options
from raydoctor.model import paste, target_names

if TYPE_CHECKING:
    from raydoctor.act.attach.target import FoundProcess
    from raydoctor.observe.collector.cluster import Cluster
    from raydoctor.render.attach import AttachResult

NOT_DONE = 1
SEVERAL = 2
_LOOPBACK = "127.0.0.1"
_INSIDE = ("stack", "variables", "evaluate", "execute")
_OF_A_PROCESS = (*_INSIDE, "frame", "thread", "port", "vscode", "close")
_NOTHING = (None, False, "")
_OWN_FRAME = " "
"""The value of `--locals` without a frame."""
_ANY = ("0.0.0.0", "::")
_NEAR = ("127.0.0.1", "::1", "localhost")

_HELP = """Attach a debugger to a running task, actor or driver, without changing its code.

TARGET is a task (id, its first six or more digits, or name), an actor (id, class or name) or a
pid. Without TARGET, raydoctor lists the tasks that wait at a breakpoint of Ray's own debugger.

The process keeps running and listens on loopback for a debugger: VS Code, PyCharm or any
other client of the Debug Adapter Protocol. Only the user of the process, and root, can
connect. The port stays open until --close; a second attach reuses it.

If the process runs on another node, a small Ray task opens the port there, and raydoctor
prints how to reach it.

\b
Without an IDE, and without a port that stays open:
  --stack, --locals   show call stacks or variables. py-spy reads them from outside. If it cannot,
                      raydoctor loads the debugger into the process
  --eval              evaluate an expression in the live process, without confirmation and without
                      halting a thread; functions that it calls run in the process
  --exec              run a statement in the frame, after confirmation; the frame's thread is
                      halted meanwhile

\b
Examples:
  raydoctor attach resample --vscode
  raydoctor attach c8ef45cc --stack --locals
  raydoctor attach Trainer --eval 'self.step' --frame train
  raydoctor attach resample --exec 'stop = True'

\b
Exit code:
  0    done
  1    not attached, because that was unsafe or impossible: raydoctor prints the reason, and the
       call stack if it is readable
  2    could not run, or the name matches nothing or more than one thing
  130  interrupted, or --exec was not confirmed
"""


@click.command(
    "attach", help=_HELP, short_help="Attach a debugger to a running task.", **options.SETTINGS
)
@click.argument("what", metavar="[TARGET]", required=False, shell_complete=options.complete_running)
@click.option("--stack", is_flag=True, help="Show the call stacks of all threads and coroutines.")
@click.option(
    "--locals",
    "variables",
    is_flag=False,
    flag_value=_OWN_FRAME,
    metavar="[FRAME]",
    help="Show the variables of a frame: its number or function; by default your innermost frame.",
)
@click.option(
    "--eval", "evaluate", metavar="EXPR", default="", help="Evaluate an expression in the frame."
)
@click.option(
    "--exec",
    "execute",
    metavar="STATEMENT",
    default="",
    help="Run a statement in the frame, after confirmation.",
)
@click.option(
    "--frame", metavar="FRAME", default="", help="The frame for --locals, --eval and --exec."
)
@click.option(
    "--thread",
    metavar="NAME",
    default="",
    help="The thread for --locals, --eval and --exec, by name or kernel thread id.",
)
@click.option(
    "--timeout",
    "--seconds",
    "seconds",
    type=options.Duration(0.1, 600),
    default="10s",
    show_default=True,
    help="Time limit of --eval and --exec.",
)
@click.option(
    "--port", type=click.IntRange(1, 65535), help="The port to listen on.  [default: any free port]"
)
@click.option(
    "--listen",
    metavar="HOST",
    default=_LOOPBACK,
    help="Listen on this address instead of loopback, with no check of who connects: anyone "
    "who can reach the port can run code in the process.",
)
@click.option(
    "--vscode",
    is_flag=True,
    help="Add a launch configuration for the port to .vscode/launch.json; its other entries stay.",
)
@click.option("--close", is_flag=True, help="Close the port that an earlier attach left open.")
@click.option(
    "--dry-run", is_flag=True, help="Show which process raydoctor would attach to, and stop."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation before --exec.")
@options.address_option()
@options.found_option()
@options.only_option()
@options.format_option("text", "json")
@options.verbose_option
def command(
    *, what: str | None, address: str | None, form: str, verbose: bool, **given: Any
) -> int:
    """Attach to a process."""
    del verbose
    if what is None and any(given[name] not in _NOTHING for name in _OF_A_PROCESS):
        raise click.UsageError("TARGET is missing: put it before the options")
    if given["close"] and any(given[name] not in _NOTHING for name in _OF_A_PROCESS[:-1]):
        raise click.UsageError("--close cannot be combined with other options of a process")
    pid = target_names.pid_of(what or "")
    is_of_pid = pid is not None and not address
    cluster = _cluster_of(pid) if pid and is_of_pid else _cluster(address, not given["is_found"])
    if what is None:
        return _print_waiting(cluster, form == "json")
    found = _found(cluster, what)
    if len(found) > 1:
        return _print_several(found, what, form == "json")
    return _Call(cluster, found[0], given, form == "json").run()


def _cluster(address: str | None, is_typed: bool) -> Cluster:
    from raydoctor.cli._progress import patience
    from raydoctor.observe import live

    with patience("looking for the cluster"):
        cluster, notes = live.find(address, is_typed)
    for each in notes:
        options.note(each)
    return cluster


def _cluster_of(pid: int) -> Cluster | None:
    """The cluster to whose logs a process writes; None if it does not belong to Ray."""
    from raydoctor.observe import live
    from raydoctor.observe.processes import discover, proc

    files = list(proc.files(pid).values())
    for each in discover.clusters():
        if each.gcs_address and any(path.startswith(each.session_dir + "/") for path in files):
            return live.find(each.gcs_address, is_typed=False)[0]
    return None


def _found(cluster: Cluster | None, what: str) -> list[FoundProcess]:
    from raydoctor.act.attach.target import find
    from raydoctor.cli._progress import patience

    with patience(f"looking for {what}"):
        return find(cluster, what)


def _print_waiting(cluster: Cluster | None, as_json: bool) -> int:
    from raydoctor.act.attach.target import paused
    from raydoctor.render import attach as render
    from raydoctor.render import terminal

    if cluster is None or not cluster.gcs_address:
        raise click.UsageError("no cluster runs here: name a process by its pid")
    found = paused(cluster)
    if as_json:
        options.print_text(render.waiting_to_json(found))
    else:
        options.print_page(render.waiting(found, terminal.width_of(sys.stdout)))
    return 0


def _print_several(found: list[FoundProcess], what: str, as_json: bool) -> int:
    from raydoctor.render import attach as render

    if as_json:
        options.print_text(render.several_to_json(found, what))
    else:
        options.print_page(render.several(found, what))
    return SEVERAL


class _Call:
    """One process, and the user's options for it."""

    def __init__(
        self, cluster: Cluster | None, found: FoundProcess, given: dict[str, Any], as_json: bool
    ) -> None:
        from raydoctor.act.attach.target import is_here

        self.cluster, self.found, self.given, self.as_json = cluster, found, given, as_json
        self.is_here = is_here(cluster, found)

    def run(self) -> int:
        """Attach, and print the result."""
        given = self.given
        identity = self._identity()
        options.check_only(given["only"], identity)
        if given["dry_run"]:
            self._show_plan(identity)
            return 0
        if given["listen"] not in _NEAR:
            options.note(
                f"anyone who can reach {given['listen']} can run code in the process: "
                "a debugger requires no password"
            )
        if not given["yes"] and (given["execute"] or self._goes_on()):
            self._ask()
        made = self._made(self._inside())
        self._print(made)
        reply = made.reply
        errors = [row for row in (reply.get("seen") or {}).values() if isinstance(row, dict)]
        bad = "failed" in reply or any("error" in row for row in errors)
        return NOT_DONE if bad else 0

    def _identity(self) -> str:
        """This attempt in this process: it differs once either has changed."""
        from raydoctor.observe.processes import proc

        found = self.found
        process = proc.read(found.pid) if self.is_here else None
        own = (
            proc.identity(found.pid, process.started_at, proc.boot_time()) if process else found.pid
        )
        return f"{found.id}:{found.attempt}:{found.worker}:{own}"

    def _show_plan(self, identity: str) -> None:
        from raydoctor.render import attach as render

        statement, where = self.given["execute"], self._where()
        if self.as_json:
            options.print_text(render.plan_to_json(self.found, statement, where, identity))
        else:
            options.print_page(render.planned(self.found, statement, where))

    def _where(self) -> dict[str, Any] | None:
        """Where the statement would run now; None if only a debugger in the process can find that out."""
        from raydoctor.act.attach import from_outside
        from raydoctor.act.attach.debug import DebugOptions
        from raydoctor.observe.processes import proc

        process = proc.read(self.found.pid) if self.is_here and self.given["execute"] else None
        if process is None:
            return None
        return from_outside.where(process.pid, process.started_at, DebugOptions(**self._inside()))

    def _inside(self) -> dict[str, Any]:
        given = self.given
        frame = given["frame"] or (given["variables"] or "").strip()
        return {
            "stack": given["stack"],
            "variables": given["variables"] is not None,
            "evaluate": given["evaluate"],
            "execute": given["execute"],
            "thread": given["thread"],
            "function": self._function(),
            "frame": frame,
            "seconds": given["seconds"],
        }

    def _function(self) -> str:
        """The function of a task; an actor may run several at once."""
        is_task = self.found.what in ("task", "method")
        return self.found.name.rpartition(".")[2] if is_task else ""

    def _goes_on(self) -> bool:
        """Whether the inspection ends a wait at a breakpoint; one by py-spy from outside does not."""
        return bool(self.found.debugger and self.given["evaluate"])

    def _stays(self) -> bool:
        """Whether the port is to stay open."""
        given = self.given
        return bool(given["vscode"] or given["port"]) or not any(
            given[name] not in _NOTHING for name in _INSIDE
        )

    def _ask(self) -> None:
        """Ask for confirmation. Raises click.Abort if refused, RaydoctorError if there is no terminal."""
        from raydoctor.model.errors import RaydoctorError
        from raydoctor.render import attach as render
        from raydoctor.render import terminal

        if not sys.stdin.isatty():
            raise RaydoctorError(
                "nothing was done: standard input is not a terminal, so no answer can be given",
                "Add --yes to do it without confirmation.",
            )
        if self._goes_on():
            click.confirm(
                "The thread is halted at a breakpoint, and this makes it continue. Do it?",
                abort=True,
                err=True,
            )
            return
        same = ("thread", "function", "frame", "seconds")
        choice = {"choose": True, **{name: self._inside()[name] for name in same}}
        reply = self._reply(choice)
        chosen = (reply.get("seen") or {}).get("chosen") or {}
        if "failed" in reply or "error" in chosen:
            raise RaydoctorError(reply.get("failed") or chosen["error"], reply.get("hint", ""))
        page = render.intent(chosen, self.given["execute"], terminal.width_of(sys.stderr))
        terminal.show(page, sys.stderr)
        click.confirm("Run it?", abort=True, err=True)
        # Only at this position: the thread may have continued meanwhile.
        where = chosen["where"]
        self.given.update(thread=where["key"], frame=where["function"])

    def _made(self, inside: dict[str, Any]) -> AttachResult:
        from raydoctor.act.attach import launch as _launch
        from raydoctor.model.errors import RaydoctorError
        from raydoctor.render.attach import AttachResult

        reply = self._reply(inside)
        found, attached = self.found, reply.get("attached")
        if not attached or not attached.get("open", True):
            return AttachResult(found, reply, {})
        is_near = attached["host"] in _NEAR
        mappings = _launch.mappings_of(reply.get("folder", ""), self.is_here)
        name = found.name if found.what != "process" else f"pid {found.pid}"
        port = attached["port"]
        to = found.ip or _LOOPBACK if attached["host"] in _ANY else attached["host"]
        launch = _launch.entry(name, to, port, mappings)
        tunnel = paste.shell(
            "ssh -N -L {port}:127.0.0.1:{port} {node:address}", port=port, node=found.ip
        )
        written = ""
        if self.given["vscode"]:
            try:
                done = _launch.write(Path(".vscode", "launch.json"), launch)
                written = f"{done} ({launch['name']})"
            except (
                RaydoctorError
            ) as error:  # the debugger is attached, and the page shows the entry
                options.note(f"{error.message}. {error.hint}")
        return AttachResult(
            found,
            reply,
            launch,
            tunnel if is_near and not self.is_here else "",
            written,
        )

    def _reply(self, inside: dict[str, Any]) -> dict[str, Any]:
        from raydoctor.act.attach import debug_there
        from raydoctor.cli._progress import Progress

        found = self.found
        request = {
            "pid": found.pid,
            "ip": found.ip,
            "worker": found.worker,
            "node": found.node,
            "title": found.name,
            "debugger": found.debugger,
            "host": self.given["listen"],
            "port": self.given["port"] or 0,
            "stays": self._stays(),
            "may_go_on": self.given["yes"] or self._goes_on(),  # that was asked
            "close": self.given["close"],
            "options": inside,
        }
        with Progress(f"attaching to {found.name}") as progress:
            reply = (
                debug_there.respond(request, progress.say)
                if self.is_here
                else self._elsewhere(request)
            )
        if problem := reply.get("audit_problem"):
            options.note(f"the audit log could not be written: {problem}")
        return self._without_token(reply)

    def _without_token(self, reply: dict[str, Any]) -> dict[str, Any]:
        """The inspected values, without the cluster's token."""
        if not reply.get("seen") or self.cluster is None or self.cluster.token is None:
            return reply
        from dataclasses import asdict

        from raydoctor.act.attach.debug import Inspection, redacted
        from raydoctor.observe.processes.redact import Redactor

        seen = redacted(Inspection(**reply["seen"]), Redactor([self.cluster.token.value]))
        return {**reply, "seen": asdict(seen)}

    def _elsewhere(self, request: dict[str, Any]) -> dict[str, Any]:
        """Attach on the node of the process."""
        from raydoctor.observe.nodes import there

        assert self.cluster is not None
        node, seconds = self.found.node, 30.0 + self.given["seconds"]
        answers = there.ask(
            self.cluster, {node: request}, "raydoctor.act.attach.debug_there:respond", seconds
        )
        for answer in answers:
            if answer.problem:
                return {"failed": f"{self.found.ip}: {answer.problem}", "hint": answer.hint}
            if isinstance(answer.value, dict):
                return answer.value
        return {"failed": f"{self.found.ip} did not reply"}

    def _print(self, made: AttachResult) -> None:
        from raydoctor.render import attach as render
        from raydoctor.render import terminal

        if self.as_json:
            options.print_text(render.to_json(made))
            return
        inside = self._inside()
        only_inside = any(inside[k] for k in _INSIDE)
        options.print_page(render.render(made, terminal.width_of(sys.stdout), only_inside))

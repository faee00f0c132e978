"""An attached process, how an IDE connects to it, and the values inspected in it -> page or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from raydoctor.act.attach.target import FoundProcess
from raydoctor.model import paste, text
from raydoctor.model.version import __version__
from raydoctor.render.json import dumps
from raydoctor.render.page import MAX_WIDTH, Line, Page, columns, line, paragraph

SCHEMA = "raydoctor/attach/1"
Row = dict[str, Any]
_KINDS = {"method": "actor method", "creation": "actor creation"}
_LISTED = 20
_FRAMES = 30
_METHODS = {
    "listening": "it listened already",
    "armed": "armed ahead",
    "entered": "entered before",
    "injected": "injected",
    "gdb": "by gdb",
    "remote-exec": "by Python's remote_exec",
    "ray-breakpoint": "Ray's own debugger",
}


class AttachResult(NamedTuple):
    """The result of one call of `raydoctor attach`."""

    found: FoundProcess
    reply: Row
    """The reply of `debug_there`."""
    launch: Row
    """The entry for VS Code; empty if no port is open."""
    tunnel: str = ""
    """The command that forwards the port of a process on another node."""
    written: str = ""
    """The change of `launch.json`."""


# ------------------------------------------------------------------ pages


def several(found: Sequence[FoundProcess], wanted: str) -> Page:
    """Processes of which the user has to choose one."""
    page = [
        line((f"{len(found)} processes match {wanted}", "strong")),
        *columns([_row(each) for each in found[:_LISTED]], 2),
    ]
    if len(found) > _LISTED:
        page.append(line((f"… and {len(found) - _LISTED:,} more", "dim"), indent=2))
    return [*page, line("Name one by its id.")]


def waiting(found: Sequence[FoundProcess], width: int = MAX_WIDTH) -> Page:
    """Processes that wait at a breakpoint."""
    if not found:
        return paragraph("No process of the cluster waits at a breakpoint for a debugger.", width)
    count = text.plural(len(found), "process waits", "processes wait")
    page = [line((f"{count} at a breakpoint for a debugger", "strong"))]
    for each in found[:_LISTED]:
        where = f"{each.ip}:{each.debugger}"
        page += columns([(*_row(each), (where, "path"))], 2)
        page.append(line((_attach(each), "code"), indent=4))
    if any(not each.ip.startswith("127.") for each in found):
        page += paragraph(_OPEN, width, style="warning")
    return page


def _attach(found: FoundProcess) -> str:
    return paste.shell("raydoctor attach {task}", task=_named(found))


def _named(found: FoundProcess) -> str:
    return found.id or str(found.pid)


_OPEN = (
    "Ray's debugger listens on the node's address, not on loopback, and requires no password: "
    "anyone who can reach the port can run code in the worker."
)


def _row(each: FoundProcess) -> tuple[str, ...]:
    who = each.id or f"pid {each.pid}"
    return (who, each.name, each.state, f"pid {each.pid} on {each.ip or 'this machine'}")


def render(made: AttachResult, width: int = MAX_WIDTH, inside: bool = False) -> Page:
    """The result, and how to connect; `inside`: only inspected values were requested."""
    page = _head(made.found)
    page += _doing(made.reply.get("doing") or {}, made.found.name.rpartition(".")[2], width)
    if "failed" in made.reply and not made.launch:
        return [*page, *_refused(made, width)]
    if "closed" in made.reply:
        return [*page, _closed(made.reply["closed"])]
    page += _attached(made, width)
    if "failed" in made.reply:
        return [*page, *_refused(made, width)]
    page += _seen(made.reply.get("seen") or {}, width)
    if not inside:
        page += _ways(made, width)
    if made.written:
        page += paragraph(f"launch.json: {made.written}.", width, style="ok")
    return page


def _head(found: FoundProcess) -> Page:
    parts = [_KINDS.get(found.what, found.what)]
    if found.state:
        parts.append(found.state)
    parts.append(f"pid {found.pid} on {found.ip}" if found.ip else f"pid {found.pid}")
    return [
        line((text.cut(text.one_line(found.name), 80), "strong"), f"  {found.id}"),
        line((" · ".join(parts), "path"), indent=2),
    ]


def _doing(doing: Row, function: str, width: int) -> Page:
    """The position of the thread that runs the user's code; of several threads, the one in this function."""
    if doing.get("words"):
        return paragraph(f"now {doing['words']}", width, indent=2)
    users = [t for t in doing.get("threads", ()) if any(map(_is_user, t["frames"]))]
    if not users:
        return []
    thread = next((t for t in users if any(_runs(f, function) for f in t["frames"])), users[0])
    own = next(f for f in thread["frames"] if _is_user(f))
    top = thread["frames"][0]
    what = f"now in {_place(own)}" + ("" if top is own else f", {_place(top)}")
    return paragraph(what, width, indent=2)


def _runs(frame: Row, function: str) -> bool:
    return str(frame["function"]).rpartition(".")[2] == function


def _is_user(frame: Row) -> bool:
    return bool(frame.get("whose") == "user" or frame.get("user"))


def _place(frame: Row) -> str:
    where = (
        f"{frame['file'].rpartition('/')[2]}:{frame['line']}" if frame["line"] else frame["file"]
    )
    return f"{frame['function']} ({where})"


def _refused(made: AttachResult, width: int) -> Page:
    page = paragraph(f"Not done: {made.reply['failed']}", width, style="error")
    if made.reply.get("hint"):
        page += paragraph(made.reply["hint"], width, indent=2)
    threads = [t for t in (made.reply.get("doing") or {}).get("threads", ()) if t["frames"]]
    if threads and not made.launch:
        page.append(line("Its stacks, read by py-spy:"))
        page += _stacks(threads, width)
    return page


def _closed(closed: Row) -> Line:
    if not closed:
        return line("raydoctor has no open port in this process.")
    return line(("closed ", "ok"), (f"{closed['host']}:{closed['port']}", "strong"))


def _attached(made: AttachResult, width: int) -> Page:
    attached = made.reply.get("attached")
    if not attached:
        return [line(("read by py-spy, from outside", "dim"), indent=2)]
    method = _METHODS.get(attached["method"], attached["method"])
    how = f" ({method}, {attached['seconds']:.1f} s)"
    where = f"{attached['host']}:{attached['port']}"
    is_open = attached.get("open", True)
    page = [
        line(("listening on ", "ok"), (where, "strong"), how)
        if is_open
        else line(("inspected through a debugger", "ok"), how, ", whose port is closed again")
    ]
    for note in attached["notes"]:
        page += paragraph(note, width, indent=2, style="warning")
    if is_open and attached["method"] != "ray-breakpoint":
        close = paste.shell("raydoctor attach {task} --close", task=_named(made.found))
        page.append(line("Close it: ", (close, "code"), indent=2))
    if attached["method"] in ("armed", "injected", "gdb", "remote-exec"):
        page += paragraph(_CHANGED, width, indent=2, style="dim")
    return page


_CHANGED = "Until the process ends, it contains a few threads of debugpy and a handler for SIGURG."


def _ways(made: AttachResult, width: int) -> Page:
    """How to connect from an IDE."""
    host, port = made.launch["connect"]["host"], made.launch["connect"]["port"]
    page: Page = []
    if made.tunnel:
        page += [line("First, on the machine of the IDE:"), line((made.tunnel, "code"), indent=2)]
    page.append(line("VS Code: an entry of .vscode/launch.json (--vscode writes it)"))
    page += [
        line((each, "code"), indent=2) for each in json.dumps(made.launch, indent=2).splitlines()
    ]
    page += paragraph(
        f"PyCharm 2025.3+: Run > Edit Configurations > + > Attach to DAP, remote address {host}:{port}",
        width,
    )
    nvim = paste.python(
        ":lua require('dap').run({{type='python', request='attach', justMyCode=false, "
        "connect={{host='{host:address}', port={port}}}}})",
        host=host,
        port=port,
    )
    return [*page, line("nvim-dap:"), line((nvim, "code"), indent=2)]


# ------------------------------------------------------------------ inspected values


def _seen(seen: Row, width: int) -> Page:
    page: Page = []
    if seen.get("stacks"):
        page += _stacks(seen["stacks"], width)
    if seen.get("variables"):
        page += _variables(seen["variables"], width)
    for name in ("evaluated", "executed"):
        if seen.get(name):
            page += _value(seen[name], width)
    for note in seen.get("notes", ()):
        page += paragraph(note, width, style="warning")
    return page


def _stacks(stacks: Sequence[Row], width: int) -> Page:
    page: Page = []
    for stack in stacks:
        tid = f"  {stack['tid']}" if stack.get("tid") else ""
        waits = f"  awaits {stack['awaits']}" if stack.get("awaits") else ""
        page.append(line((text.cut(f"{stack['name']}{tid}{waits}", width), "strong")))
        for number, frame in enumerate(stack["frames"][:_FRAMES]):
            style = "code" if _is_user(frame) else "dim"
            where = f"{frame['file']}:{frame['line']}" if frame["line"] else frame["file"]
            page.append(line(f"{number:>4}  ", (frame["function"], style), (f"  {where}", "dim")))
        if (more := len(stack["frames"]) - _FRAMES) > 0:
            page.append(line((f"      … and {more} more", "dim")))
    return page


def _where(row: Row) -> Page:
    where = row.get("where")
    if not where:
        return []
    place = f"in {where['function']} ({where['file']}:{where['line']})"
    return [line((f"{place}, frame {where['number']} of {where['thread']}", "path"))]


def _variables(row: Row, width: int) -> Page:
    page = _where(row)
    if "error" in row:
        return [*page, *paragraph(row["error"], width, style="error")]
    for each in row["variables"]:
        page.append(
            line(
                (each["name"], "strong"),
                (f": {each['type']}" if each["type"] else "", "dim"),
                f" = {each['value']}",
                indent=2,
            )
        )
    if not row["variables"]:
        page.append(line(("no variables", "dim"), indent=2))
    if row.get("more"):
        page.append(line((f"… and {row['more']} more", "dim"), indent=2))
    return page


def _value(row: Row, width: int) -> Page:
    page = _where(row)
    if "error" in row:
        lines = str(row["error"]).rstrip().splitlines() or [""]
        return [*page, *(line((each, "error"), indent=2) for each in lines)]
    value, how = str(row.get("value") or ""), row.get("how")
    if value and not (how and value == "None"):
        page.append(line(value, indent=2))
    if how:
        page.append(line(("done; the program continues", "ok"), indent=2))
    if how == "beside":
        page += paragraph(_BESIDE[row["where"]["kind"]], width, indent=2, style="dim")
    if row.get("lost"):
        page += paragraph(row["lost"], width, indent=2, style="error")
    return page


_BESIDE = {
    "thread": "The thread waits in native code and could not be halted: the statement ran in another "
    "thread of the process.",
    "coroutine": "The coroutine is awaiting: the statement ran in a thread other than its loop's.",
}


def intent(row: Row, statement: str, width: int = MAX_WIDTH) -> Page:
    """The statement of `--exec` and where it will run."""
    return [
        line(("This runs in the process, in the thread and the frame named here:", "strong")),
        *_where(row),
        *(line((each, "code"), indent=4) for each in statement.splitlines()),
        *paragraph(
            "The thread is halted meanwhile, if possible, and continues afterwards.", width, 2
        ),
    ]


def planned(found: FoundProcess, statement: str, where: Row | None) -> Page:
    """The process of a dry run, and the statement that would run in it, with its thread and frame."""
    place = (
        f"in {where['function']} ({where['file']}:{where['line']}), {where['thread']}:"
        if where
        else ""
    )
    return [
        line(("Nothing was done. It would attach to:", "strong")),
        *columns([_row(found)], 2),
        *([line((place, "path"), indent=2)] if place else []),
        *(line((each, "code"), indent=4) for each in statement.splitlines()),
    ]


# ------------------------------------------------------------------ JSON


def to_json(made: AttachResult) -> str:
    """One JSON object. Keys are added, never renamed."""
    found, reply = made.found, made.reply
    attached, seen = reply.get("attached") or {}, reply.get("seen") or {}
    is_open = bool(attached) and attached.get("open", True)
    return _dumped(
        **_process(found),
        host=attached.get("host") if is_open else None,
        port=attached.get("port") if is_open else None,
        method=attached.get("method") or reply.get("method"),
        closed=reply.get("closed"),
        seconds=attached.get("seconds"),
        notes=[*attached.get("notes", ()), *seen.get("notes", ())],
        launch=made.launch or None,
        tunnel=made.tunnel or None,
        doing=reply.get("doing") or None,
        stacks=seen.get("stacks") or [],
        variables=seen.get("variables") or None,
        evaluated=seen.get("evaluated") or None,
        executed=seen.get("executed") or None,
        problem=reply.get("failed"),
        hint=reply.get("hint"),
    )


def several_to_json(found: Sequence[FoundProcess], wanted: str) -> str:
    """Processes of which the user has to choose one."""
    return _dumped(wanted=wanted, candidates=[_process(each) for each in found])


def plan_to_json(found: FoundProcess, statement: str, where: Row | None, identity: str) -> str:
    """The process of a dry run, and the statement that would run in it, with its thread and frame."""
    names = ("thread", "tid", "function", "file", "line")
    place = {name: where[name] for name in names} if where else None
    target = {**_process(found), "identity": identity}
    return _dumped(plan={"statement": statement or None, "where": place}, target=target)


def waiting_to_json(found: Sequence[FoundProcess]) -> str:
    """Processes that wait at a breakpoint."""
    return _dumped(waiting=[{**_process(e), "host": e.ip, "port": e.debugger} for e in found])


def _dumped(**fields: Any) -> str:
    empty = dict.fromkeys(("pid", "node", "host", "port", "method", "task", "launch"))
    return dumps({"schema": SCHEMA, "version": __version__, **empty, **fields})


def _process(found: FoundProcess) -> Row:
    is_task = found.what in ("task", "method", "creation")
    return {
        "pid": found.pid,
        "node": found.node or None,
        "ip": found.ip or None,
        "kind": found.what,
        "task": {"id": found.id, "name": found.name} if is_task else None,
        "actor": {"id": found.actor, "class": found.name} if found.what == "actor" else None,
        "actor_id": found.actor or None,
        "worker_id": found.worker or None,
        "name": found.name,
        "state": found.state or None,
    }

"""`kubectl describe` and the tables of `kubectl get` -> objects in the shape of the API, as far as they go.

Ages (`5m`) are no times: what only has one carries none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from raydoctor.capture import kubectl
from raydoctor.model.patterns import pattern
from raydoctor.read.kubernetes.document import CUT, Damage, Document

_FIELD = pattern(
    r" {0,40}(?P<key>[A-Za-z][\w./()-]{0,100}(?: [\w./()-]{1,100}){0,6}):(?:\s+(?P<value>\S.*))?$"
)
"""A field's name has single blanks, a table's row several."""
_COLUMNS = pattern(r" {2,}")
_HEADER = pattern(r"NOMINATED NODE|READINESS GATES|(?:LAST|FIRST) SEEN|\S+")
_DESCRIBED = pattern(kubectl.DESCRIBED)
_TABLE = pattern(kubectl.TABLE)
_ROW = pattern(kubectl.ROW)
_ROW_HEADER = ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
_STATE = pattern(rf" {{0,12}}{kubectl.STATE}")
_HAPPENED = pattern(rf"\s*(?:{kubectl.EVENTS}|(?P<row>{kubectl.EVENT}))")
_HAPPENED_ROW = pattern(
    r"\s*(?P<type>Normal|Warning) +(?P<reason>\S+) +(?P<age>\S+(?: +\(x\d{1,9} over [^()]{1,20}\))?) +"
    r"\S+ +(?P<message>\S.*)"
)
_ASKED = pattern(
    r"\bkubectl\b[^\n|]{0,200}? describe (?:(?:-n [\w-]{1,63} )?(?:pods?|po)[ /]|-n [\w-]{1,63} (?=\S+$))(?P<pod>[a-z0-9][\w.-]{0,252})"
)
_ASSIGNED = pattern(r"Successfully assigned [\w-]{1,63}/(?P<pod>[\w.-]{1,253}) to ")
_COUNT = pattern(r"\(x(\d{1,9}) over ")
_WAITING = pattern(
    r"(?:\w{0,40}BackOff|ErrImage\w{1,40}|InvalidImageName|Create\w+Error|RunContainerError|P\w{2,3}StartHookError|ContainerCreating)"
)
_ENDED = pattern(
    r"OOMKilled|Error|Completed|ContainerCannotRun|StartError|DeadlineExceeded|(?:ExitCode|Signal):(?P<code>\d{1,3})"
)
_STARTING = pattern(r"Pending|PodInitializing|SchedulingGated|Init:\d{1,3}/\d{1,3}")
_FINE = frozenset({"Running", "Succeeded", "NotReady", "Terminating", "Unknown"})
"""Words for which the pod has no failed container; any other word is the reason for which it failed."""


def is_described(text: str) -> bool:
    """Whether a text is one of `kubectl describe`, its events alone, or a table of `kubectl get`."""
    forms = (_DESCRIBED, _TABLE, _ROW, _STATE, _HAPPENED)
    return any(form.match(line) for line in text[:4096].splitlines() for form in forms)


def documents(text: str) -> Iterator[Document | Damage]:
    """The objects that a text describes or lists."""
    lines = text.splitlines()
    header: list[str] = []
    message = -1
    begin = None
    pod = ""
    """Of events and states without their object."""
    below = 0
    for number, line in enumerate(lines):
        if named := _ASKED.search(line) or _ASSIGNED.search(line):
            pod = named["pod"]
        if begin is None and number >= below and _STATE.match(line):
            header = []
            below = next(
                (
                    n
                    for n, each in enumerate(lines[number:], number)
                    if not (each.strip() and each.startswith(" "))
                ),
                len(lines),
            )
            yield _state_alone(lines[number:below], number + 1, pod)
        elif begin is None and number >= below and not header and (found := _HAPPENED.match(line)):
            first = number if found["row"] else number + 1
            happened = list(_happened(lines, first, pod or _assigned(lines[first:])))
            below = max([number + 1, *(each.line for each in happened)])
            yield from happened
        elif _TABLE.match(line):
            header, message = _HEADER.findall(line), line.find("MESSAGE")
        elif (header and line[:1].strip() and not _DESCRIBED.match(line)) or (
            begin is None and _ROW.match(line)
        ):
            header = header or _ROW_HEADER
            row = _event_of_row(header, message, line) if "REASON" in header else _pod_of_row(header, line)  # fmt: skip
            if row:
                yield Document(row, number + 1, line)
        elif _DESCRIBED.match(line):
            header = []
            if begin is not None:
                yield _described(lines[begin:number], begin + 1)
            begin = number
    if begin is not None:
        yield _described(lines[begin:], begin + 1)
        fields = {line.partition(":")[0] for line in lines[begin:]}
        if "Containers" in fields and "Conditions" not in fields:
            yield Damage(begin + 1, CUT)


def _assigned(rows: list[str]) -> str:
    """The pod of these events, if the scheduler found a machine for it."""
    for row in rows:
        if row.strip(" -") and not _HAPPENED_ROW.match(row):
            return ""
        if named := _ASSIGNED.search(row):
            return named["pod"]
    return ""


# ---------------------------------------------------------------- tables

_KINDS = {"pod": "Pod", "node": "Node", "raycluster": "RayCluster", "rayjob": "RayJob", "rayservice": "RayService", "workload": "Workload"}  # fmt: skip
_EVENT = pattern(
    r"(?P<age>\S+(?: +\(x\d{1,9} over [^()]{1,20}\))?) +(?P<type>Normal|Warning) +(?P<reason>\S+) +"
    r"(?P<object>\S+) +(?P<message>\S.*)"
)
_RESTARTED = pattern(r"(?<=[0-9]) ?[(\uff08][^()\uff08\uff09]{1,40}[)\uff09]")
"""When a pod was restarted last, the only value of `get pods` with blanks: `3 (2m ago)`."""


def _event_of_row(header: list[str], message: int, line: str) -> dict[str, Any] | None:
    """A row of `get events`; `message` is the place of that column, if a chat did not squeeze the table."""
    namespace, _, rest = line.partition(" ") if header[0] == "NAMESPACE" else ("", "", line)
    found = _EVENT.match(rest.lstrip())
    if not found:
        return None
    kind, _, name = found["object"].rpartition("/")
    is_in_place = "SUBOBJECT" in header and line[message - 1 : message] == " "
    own = line[message:] if is_in_place else found["message"]
    return {
        "kind": "Event", "type": found["type"], "reason": found["reason"], "message": own,
        "count": (_COUNT.search(found["age"]) or ("", "1"))[1],
        "involvedObject": {"kind": _KINDS.get(kind, kind), "name": name, "namespace": namespace},
    }  # fmt: skip


def _pod_of_row(header: list[str], line: str) -> dict[str, Any] | None:
    """A row of `get pods`. Columns are found by words: the places of pasted ones are not reliable."""
    cells = dict(zip(header, _RESTARTED.sub("", line).split(), strict=False))
    ready, _, all_ = cells.get("READY", "").partition("/")
    if not cells.get("NAME") or not all_:
        return None
    shown = cells.get("STATUS", "")
    if not shown:  # a paste ends within the row
        return None
    status = shown.removeprefix("Init:")
    is_init = shown.startswith("Init:")
    container: dict[str, Any] = {"name": "", "restartCount": cells.get("RESTARTS", "0")}
    pod: dict[str, Any] = {"phase": status}
    ended = _ENDED.fullmatch(status)
    if is_init and "/" in status:
        container["state"] = {"running": {"age": cells.get("AGE", "")}}
    if _STARTING.fullmatch(shown) or _WAITING.fullmatch(status):
        pod["phase"] = "Pending"
        if _WAITING.fullmatch(status):
            container["state"] = {"waiting": {"reason": status}}
    elif ended:
        container["state"] = {"terminated": {"reason": status, "exitCode": ended["code"]}}
        pod["phase"] = "Pending" if is_init else "Succeeded" if status == "Completed" else "Failed"
    elif status not in _FINE:
        pod |= {"phase": "Failed", "reason": status}
    if container.get("state") or container["restartCount"] not in ("", "0"):
        pod["initContainerStatuses" if is_init else "containerStatuses"] = [container]
    ip = cells.get("IP", "")
    return {
        "kind": "Pod",
        "metadata": {
            "name": cells["NAME"], "namespace": cells.get("NAMESPACE"),
            "deletionTimestamp": "deleted" if status == "Terminating" else "",
        },
        "spec": {"nodeName": cells.get("NODE", "").removeprefix("<none>")},
        "status": {
            **pod, "podIP": ip.removeprefix("<none>"),
            "conditions": [{"type": "Ready", "status": str(ready == all_)}],
        },
    }  # fmt: skip


# ---------------------------------------------------------------- describe


def _happened(lines: list[str], first: int, pod: str) -> Iterator[Document]:
    """The events at the end of `kubectl describe pod`, pasted without what is above them. The pod may be unknown."""
    for at, line in enumerate(lines[first:], first + 1):
        row = _HAPPENED_ROW.match(line)
        if not row and (line.strip(" -") or not line):
            return
        if row:
            about = {"kind": "Pod", "name": pod}
            event = {"kind": "Event", **row.groupdict(), "involvedObject": about}
            event["count"] = (_COUNT.search(row["age"]) or ("", "1"))[1]
            yield Document(event, at, line)


def _described(lines: list[str], number: int) -> Document:
    tree = _tree(lines)
    kind = _kind(tree)
    name, namespace = _text(tree, "Name"), _text(tree, "Namespace")
    data: dict[str, Any]
    if kind == "Pod":
        data = _pod(tree)
    elif kind == "Node":
        data = _node(tree)
    else:
        data = {"status": _camel(tree.get("Status")), "spec": _camel(tree.get("Spec"))}
    data["kind"] = kind
    metadata = {"name": name, "namespace": namespace, "labels": _labels(tree, "Labels")}
    data["metadata"] = {**data.get("metadata", {}), **metadata}
    data["events"] = [
        {
            "kind": "Event", "type": row.get("Type"), "reason": row.get("Reason"), "message": row.get("Message"),
            "count": (_COUNT.search(row.get("Age", "")) or ("", "1"))[1],
            "involvedObject": {"kind": kind, "name": name, "namespace": namespace},
        }
        for row in _rows(tree.get("Events"))
    ]  # fmt: skip
    return Document(data, number, "\n".join(lines))


def _state_alone(lines: list[str], number: int, pod: str) -> Document:
    """A pod of which only the state of one container was pasted."""
    data = _pod({"Containers": {"": _tree(lines)}})
    return Document({**data, "kind": "Pod", "metadata": {"name": pod}}, number, "\n".join(lines))


def _kind(tree: dict[str, Any]) -> str:
    if kind := _text(tree, "Kind"):
        return kind
    if "Containers" in tree or "Init Containers" in tree:
        return "Pod"
    return "Node" if "Allocatable" in tree or "Taints" in tree else ""


def _tree(lines: list[str]) -> dict[str, Any]:
    """Nested fields by indentation; below a field without value and fields, the lines themselves (`""`)."""
    root: dict[str, Any] = {"": []}
    open_fields: list[tuple[int, dict[str, Any]]] = [(-1, root)]
    last: _Last | None = None
    for line in lines:
        depth = len(line) - len(line.lstrip())
        found = _FIELD.match(line) if depth < _DEEPEST else None
        if not line.strip():
            continue
        if not found:
            # A row of a table, or a further line of a value (labels, messages).
            if last is not None and last.depth < depth:
                last.fields[last.name] += f"\n{line.strip()}"
            elif depth > open_fields[-1][0]:
                open_fields[-1][1][""].append(line.strip())
            continue
        while open_fields[-1][0] >= depth:
            open_fields.pop()
        fields, name = open_fields[-1][1], found["key"]
        value = (found["value"] or "").strip()
        last = None
        if value and name not in _OPENERS:
            fields[name] = value
            last = _Last(fields, name, depth)
        else:
            fields[name] = {"": [], "=": value}
            open_fields.append((depth, fields[name]))
    return root


class _Last(NamedTuple):
    """The field that may have further lines."""

    fields: dict[str, Any]
    name: str
    depth: int


_DEEPEST = 40
_OPENERS = frozenset({"State", "Last State"})
"""Fields with a value and fields below it."""


def _text(tree: Any, *names: str) -> str:
    """A text below nested fields, in one line; empty where there is none."""
    for name in names:
        tree = tree.get(name) if isinstance(tree, dict) else None
    if isinstance(tree, dict):
        tree = tree.get("=")
    return " ".join(tree.split()) if isinstance(tree, str) else ""


def _labels(tree: dict[str, Any], name: str) -> dict[str, str]:
    value = tree.get(name)
    pairs = value.split("\n") if isinstance(value, str) else []
    return dict(pair.strip().split("=", 1) for pair in pairs if "=" in pair)


def _rows(table: Any) -> list[dict[str, str]]:
    """The rows of a table with a header and a line of dashes."""
    lines = table.get("", []) if isinstance(table, dict) else []
    if len(lines) < 3 or not lines[1].startswith("-"):
        return []
    names = _COLUMNS.split(lines[0])
    return [
        dict(zip(names, _COLUMNS.split(line, maxsplit=len(names) - 1), strict=False))
        for line in lines[2:]
    ]


def _pod(tree: dict[str, Any]) -> dict[str, Any]:
    conditions = [
        {"type": row.get("Type"), "status": row.get("Status")} for row in _rows(tree.get("Conditions"))
    ]  # fmt: skip
    first, named = _containers(tree, "Init Containers"), _containers(tree, "Containers")
    return {
        "metadata": {"deletionTimestamp": _text(tree, "Termination Grace Period") and "deleted"},
        "spec": {
            "nodeName": _text(tree, "Node").partition("/")[0].replace("<none>", ""),
            "containers": [
                {"name": name, "image": _text(c, "Image"), "resources": _resources(c)} for name, c in named.items()
            ],
        },
        "status": {
            "phase": _text(tree, "Status").partition(" ")[0],
            "reason": _text(tree, "Reason"),
            "message": _text(tree, "Message"),
            "podIP": _text(tree, "IP").replace("<none>", ""),
            "hostIP": _text(tree, "Node").partition("/")[2],
            "startTime": _text(tree, "Start Time"),
            "conditions": conditions,
            "containerStatuses": [_status(name, c) for name, c in named.items()],
            "initContainerStatuses": [_status(name, c) for name, c in first.items()],
        },
    }  # fmt: skip


def _containers(tree: dict[str, Any], name: str) -> dict[str, dict[str, Any]]:
    found = tree.get(name)
    return {n: c for n, c in found.items() if isinstance(c, dict)} if isinstance(found, dict) else {}  # fmt: skip


def _status(name: str, container: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name, "restartCount": _text(container, "Restart Count"),
        "state": _state(container.get("State")), "lastState": _state(container.get("Last State")),
    }  # fmt: skip


def _resources(container: dict[str, Any]) -> dict[str, Any]:
    return {
        name.lower(): {k: v for k, v in container[name].items() if isinstance(v, str)}
        for name in ("Limits", "Requests")
        if isinstance(container.get(name), dict)
    }


def _state(tree: Any) -> dict[str, Any]:
    kind = _text(tree).lower()
    if kind not in ("waiting", "running", "terminated"):
        return {}
    return {
        kind: {
            "reason": _text(tree, "Reason"), "message": _text(tree, "Message"),
            "exitCode": _text(tree, "Exit Code"), "signal": _text(tree, "Signal"),
            "startedAt": _text(tree, "Started"), "finishedAt": _text(tree, "Finished"),
        }
    }  # fmt: skip


def _node(tree: dict[str, Any]) -> dict[str, Any]:
    rows = _rows(tree.get("Conditions"))
    taints = [taint for taint in str(tree.get("Taints") or "").split("\n") if ":" in taint]
    return {
        "spec": {
            "taints": [
                {"key": taint.partition("=")[0].partition(":")[0], "effect": taint.rpartition(":")[2]} for taint in taints
            ]
        },
        "status": {
            "conditions": [
                {"type": r.get("Type"), "status": r.get("Status"), "reason": r.get("Reason"), "message": r.get("Message"),
                 "lastTransitionTime": r.get("LastTransitionTime")}
                for r in rows
            ],
            "allocatable": {k: v for k, v in (tree.get("Allocatable") or {}).items() if isinstance(v, str)}
            if isinstance(tree.get("Allocatable"), dict) else {},
        },
    }  # fmt: skip


def _camel(tree: Any) -> dict[str, Any]:
    """The fields of a custom resource, whose names `describe` splits into words: `Job Status` is `jobStatus`."""
    if not isinstance(tree, dict):
        return {}
    found: dict[str, Any] = {}
    for name, value in tree.items():
        words = name.split()
        if words:
            key = words[0].lower() + "".join(words[1:])
            is_text = isinstance(value, str) or value.get("=")
            found[key] = _text(tree, name) if is_text else _camel(value)
    return found

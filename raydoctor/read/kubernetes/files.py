"""The files of Kubernetes objects of a capture -> events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Gap, Source
from raydoctor.read import budget
from raydoctor.read.kubernetes.document import Damage, Document
from raydoctor.read.kubernetes.documents import documents
from raydoctor.read.kubernetes.objects import DESCHEDULED, PROGRESS, USED, Fact, facts
from raydoctor.redact import Redactor

_MOST_EVENTS = 200_000
_MOST_CHARS = 100_000_000
_MOST_GAPS = 5
"""Of one file."""
_SHOWN = (
    *(
        "reason",
        "message",
        "exit_code",
        "disruption",
        "disruption_message",
        "unschedulable_message",
    ),
    *("job_status", "deployment_status", "state", "phase", "memory_limit", "restarts", "taints"),
    *("pressures", "ready", "condition", "unhealthy", "owner", "count", "age"),
)
_LONGEST = 300


_ABOUT = pattern(r'"(?:involvedObject|regarding)": \{[^{}]{0,2000}?"name": "([^"\\]{1,253})"')


class _Held(NamedTuple):
    """The text of an event that is parsed if another event is about the same pod."""

    source: Source
    raw: str
    line: int
    name: str


def read(files: Mapping[Source, str], gaps: list[Gap]) -> list[Event]:
    """Events of every file of Kubernetes objects. What cannot be read is a gap."""
    events: list[Event] = []
    held: list[_Held] = []
    redactor = Redactor()
    for source, file in files.items():
        if source.role == "kubernetes":
            try:
                events += _file(source, file, gaps, held, redactor)
            except OSError as error:
                gaps.append(Gap(source.path, f"could not be read: {error.strerror}"))
    names = {e["name"] for e in events if e.kind == "kube.event" and e["reason"] not in PROGRESS}
    for each in held:
        if each.name in names:
            try:
                document = Document(json.loads(each.raw), each.line, each.raw)
            except (ValueError, RecursionError):
                gaps.append(Gap(each.source.path, f"line {each.line}: is damaged", _AGAIN))
                continue
            clean = _without_secrets(document.data, redactor)
            events += (_event(each.source, document, fact) for fact in facts(clean))
    warned = names | {""}
    return _distinct([e for e in events if e["reason"] not in PROGRESS or e["name"] in warned])


def _file(
    source: Source, file: str, gaps: list[Gap], held: list[_Held], redactor: Redactor
) -> Iterator[Event]:
    time = budget.of_file(source.size)
    events = chars = damaged = 0

    def leave_out(raw: str, line: int) -> bool:
        """Whether an object is a normal event that nothing uses, or that is held."""
        field = raw[1 : raw.find('"')]
        if f'{field}"kind": "Event"' not in raw or f'{field}"type": "Normal"' not in raw:
            return False
        found = raw.find(f'{field}"reason": "')
        begin = found + len(field) + 11
        reason = raw[begin : raw.find('"', begin)]
        if found < 0 or "\\" in reason:
            return False
        about = _ABOUT.search(raw) if reason in PROGRESS else None
        if about:
            held.append(_Held(source, raw, line, about[1]))
        return about is not None or (reason not in USED and DESCHEDULED not in raw)

    for document in _documents(file, leave_out):
        if isinstance(document, Damage):
            damaged += 1
            if damaged <= _MOST_GAPS:
                gaps.append(Gap(source.path, f"line {document.line}: {document.why}", _AGAIN))
            continue
        for fact in facts(_without_secrets(document.data, redactor)):
            events += 1
            chars += sum(map(len, fact.fields.values()))
            if time.spent or events > _MOST_EVENTS or chars > _MOST_CHARS:
                why = f"not read from line {document.line} on: too many objects"
                gaps.append(Gap(source.path, why, _PART))
                return
            yield _event(source, document, fact)


_TEXTS = ("status", "events", "message", "note")
"""Members of an object whose texts are shown."""
_LONG = 1 << 16


def _without_secrets(data: dict[str, Any], redactor: Redactor) -> dict[str, Any]:
    """An object whose texts of several lines hold no secrets.

    Facts join the lines of a message, after which a secret that was wrapped cannot be recognized any more.
    """
    return {
        name: _clean(value, redactor) if name in _TEXTS else value for name, value in data.items()
    }


def _clean(value: Any, redactor: Redactor) -> Any:
    if isinstance(value, dict):
        return {name: _clean(each, redactor) for name, each in value.items()}
    if isinstance(value, list):
        return [_clean(each, redactor) for each in value]
    if not isinstance(value, str) or not ("\n" in value or "\x1b" in value):
        return value
    if len(value) > _LONG:
        value = f"{value[: _LONG // 2]}\n{value[-_LONG // 2 :]}"
    return redactor.redact(value)


_AGAIN = "Write the file again, for example: kubectl get pods,events -o json"
_PART = "Give the objects of one namespace: kubectl get pods,events -n NAMESPACE -o json"


def _documents(file: str, leave_out: Callable[[str, int], bool]) -> Iterator[Document | Damage]:
    with open(file, encoding="utf-8", errors="replace") as stream:
        yield from documents(stream, leave_out)


def _event(source: Source, document: Document, fact: Fact) -> Event:
    fields = {name: value for name, value in fact.fields.items() if value}
    place = document.raw.find(fact.shows) if fact.shows else -1
    line = document.line + (document.raw.count("\n", 0, place) if place > 0 else 0)
    return Event(
        fact.kind,
        source,
        line,
        0,
        _shown(fact),
        fields.get("message", ""),
        fact.at,
        # Kubernetes rounds its times to seconds.
        1.0,
        fields=fields,
    )


def _shown(fact: Fact) -> str:
    """The fact as a line: `pod train-head, container ray-head: reason=OOMKilled exit_code=137 …`."""
    own = fact.fields
    what = fact.kind.removeprefix("kube.")
    name = own.get("pod") or own.get("node") or own.get("name") or ""
    if fact.kind == "kube.event":
        who = f"{own['about']} {name}"
    elif fact.kind == "kube.container":
        last = "last state " if own["is_last"] == "true" else ""
        what = "init container" if own["is_init"] else "container"
        who = f"pod {name or '?'}, {what} {own['container'] or '?'}: {last}{own['state']}"
    else:
        who = f"{_NAMES.get(what, what)} {name}"
    pairs = [f"{key}={value}" for key in _SHOWN if (value := own.get(key))]
    ended = f" at {fact.shows}" if fact.kind == "kube.container" and fact.at is not None else ""
    if own.get("is_init") and own["state"] == "running" and own["began"]:
        ended = f" since {own['began']}"
    line = f"{who}{ended}: {' '.join(pairs)}"
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} …"


_NAMES = {"cluster": "RayCluster", "job": "RayJob", "service": "RayService", "workload": "Workload"}


def _distinct(events: list[Event]) -> list[Event]:
    """Each fact once: `get` and `describe` of one pod say the same; the fuller or later one stays."""
    found: dict[tuple[str, ...], Event] = {}
    for event in events:
        key = (event.kind, *(event[name] for name in _IDENTITY[event.kind]))
        if event.at is not None:
            key = (*key, f"{event.at:.0f}")
        known = found.get(key)
        if known is None or len(event.fields) >= len(known.fields):
            found[key] = event
    return list(found.values())


_IDENTITY = {
    "kube.pod": ("namespace", "pod", "uid"),
    "kube.container": ("namespace", "pod", "container", "state", "is_last", "reason"),
    "kube.event": ("namespace", "about", "name", "reason", "message"),
    "kube.node": ("node",),
    "kube.cluster": ("namespace", "name"),
    "kube.job": ("namespace", "name"),
    "kube.service": ("namespace", "name"),
    "kube.workload": ("namespace", "name"),
}

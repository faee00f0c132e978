"""JSON schemas (draft 2020-12) of every JSON output: the contract as a document for other tools.

`schemas/NAME.json` beside this module is what `schema(NAME)` returns; `pytest --update-golden` writes it.
A key that is listed as required is always there; an output may have further keys in later versions. The tests
close every object and compare the schemas with real outputs, so that no key is missing here.
"""

from __future__ import annotations

from typing import Any

from raydoctor.model.values import SEVERITIES

_Schema = dict[str, Any]
_TEXT: _Schema = {"type": "string"}
_WHOLE: _Schema = {"type": "integer"}
_NUMBER: _Schema = {"type": "number"}
_FLAG: _Schema = {"type": "boolean"}
_ANY: _Schema = {}


def _or_null(schema: _Schema) -> _Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _list(of: _Schema) -> _Schema:
    return {"type": "array", "items": of}


def _map(of: _Schema) -> _Schema:
    """An object whose keys are names: of states, resources, files."""
    return {"type": "object", "additionalProperties": of}


def _one(*values: str) -> _Schema:
    return {"enum": list(values)}


def _object(optional: dict[str, _Schema] | None = None, /, **required: _Schema) -> _Schema:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
    }


def _texts(*names: str) -> dict[str, _Schema]:
    return dict.fromkeys(names, _TEXT)


_TEXT_OR_NULL, _WHOLE_OR_NULL, _NUMBER_OR_NULL = map(_or_null, (_TEXT, _WHOLE, _NUMBER))
_SEVERITY = _one(*SEVERITIES)
_TIER = _one("root", "cause", "symptom")
_GAP = _object({"optional": _FLAG, "about": _TEXT}, **_texts("what", "why", "hint"))
_REMEDY = _object(
    title=_TEXT,
    steps=_list(_TEXT),
    risk=_one("safe", "disruptive", "destructive"),
    doc=_TEXT_OR_NULL,
)
_LINK = _object(
    {"code": _TEXT},
    file=_TEXT,
    line=_WHOLE,
    at=_NUMBER_OR_NULL,
    text=_TEXT,
    shows=_TEXT,
    count=_WHOLE,
    also=_list(_object(file=_TEXT, line=_WHOLE)),
)
_SUBJECT = _object(
    kind=_TEXT, id=_TEXT_OR_NULL, name=_TEXT_OR_NULL, pid=_WHOLE_OR_NULL, node=_TEXT_OR_NULL
)
_DIAGNOSIS = _object(
    id=_TEXT,
    rule=_TEXT,
    tier=_TIER,
    severity=_SEVERITY,
    headline=_TEXT,
    count=_WHOLE,
    first_at=_NUMBER_OR_NULL,
    last_at=_NUMBER_OR_NULL,
    subjects=_list(_SUBJECT),
    chain=_list(_LINK),
    remedies=_list(_REMEDY),
    gaps=_list(_GAP),
    consequences=_list(_TEXT),
)
_UNEXPLAINED = _object(kind=_TEXT, file=_TEXT, line=_WHOLE, text=_TEXT, count=_WHOLE)

# ---------------------------------------------------------------- the state of a cluster

_GAUGE = _object(
    node_id=_TEXT,
    ip=_TEXT_OR_NULL,
    what=_one("memory", "disk"),
    path=_TEXT_OR_NULL,
    used=_WHOLE,
    limit=_WHOLE,
    threshold=_NUMBER,
    threshold_assumed=_FLAG,
    level=_one("ok", "near", "over"),
    users=_list(_object(pid=_WHOLE, name=_TEXT, bytes=_WHOLE, path=_TEXT)),
)
_TASK_AGE = _or_null(_object(name=_TEXT, age_s=_NUMBER))
_TASKS = _object(
    running=_WHOLE,
    pending=_WHOLE,
    oldest_running=_TASK_AGE,
    oldest_pending=_TASK_AGE,
    waits=_list(_object(kind=_TEXT, name=_TEXT, reason=_TEXT, count=_WHOLE, oldest_s=_NUMBER)),
    complete=_FLAG,
)
_BUILD = _object(
    tool=_TEXT_OR_NULL,
    node=_TEXT_OR_NULL,
    age_s=_NUMBER_OR_NULL,
    timeout_s=_NUMBER_OR_NULL,
    attempt=_WHOLE,
    command=_TEXT_OR_NULL,
    command_s=_NUMBER_OR_NULL,
    last_error=_TEXT_OR_NULL,
)
_STATUS: dict[str, _Schema] = {
    "at": _NUMBER,
    "nodes": _object(
        alive=_WHOLE, draining=_WHOLE, dead=_WHOLE, silent=_list(_object(node=_TEXT, pid=_WHOLE))
    ),
    "workers": _WHOLE_OR_NULL,
    "drivers": _WHOLE_OR_NULL,
    "resources": _list(_object(name=_TEXT, used=_NUMBER_OR_NULL, total=_NUMBER)),
    "tasks": _or_null(_TASKS),
    "actors": _or_null(_map(_WHOLE)),
    "gauges": _list(_GAUGE),
    "environments": _list(_BUILD),
}

# ---------------------------------------------------------------- hung tasks

_TARGET = _object(kind=_TEXT, id=_TEXT_OR_NULL, name=_TEXT)
_FRAME = _object({"whose": _TEXT}, function=_TEXT, file=_TEXT, line=_WHOLE)
_TASK = _object({"age_s": _NUMBER_OR_NULL}, id=_TEXT_OR_NULL, name=_TEXT_OR_NULL)
_ACTOR = _or_null(_object({"class": _TEXT_OR_NULL}, id=_TEXT_OR_NULL))
_HUNG = _object(
    {"may_end": _TEXT_OR_NULL},
    kind=_TEXT,
    task=_TASK,
    actor=_ACTOR,
    pid=_WHOLE_OR_NULL,
    node=_TEXT_OR_NULL,
    age_s=_NUMBER,
    state=_TEXT,
    cpu_percent=_NUMBER_OR_NULL,
    waits_for=_list(_TARGET),
    stack=_list(_object(thread=_TEXT, tid=_WHOLE_OR_NULL, frames=_list(_FRAME))),
    evidence=_list(_TEXT),
    words=_TEXT,
    why=_TEXT,
    place=_or_null(_FRAME),
    exact=_FLAG,
    group=_WHOLE_OR_NULL,
)
_GROUP = _object(
    headline=_TEXT,
    culprits=_list(_TEXT),
    waiting=_list(_TEXT),
    exact=_FLAG,
    remedies=_list(_REMEDY),
)

# ---------------------------------------------------------------- other commands

_RULE = _object(name=_TEXT, tier=_TIER, severity=_SEVERITY, summary=_TEXT)
_ENTITY: dict[str, _Schema] = _texts("kind", "id")
_STORY_LINE = _object(
    at=_NUMBER_OR_NULL,
    inherited=_FLAG,
    node=_TEXT,
    file=_TEXT,
    line=_WHOLE,
    level=_TEXT,
    message=_TEXT,
)
_SIDE = _object(
    {"from": _NUMBER_OR_NULL, "to": _NUMBER_OR_NULL},
    path=_TEXT,
    ray_versions=_list(_TEXT),
    nodes=_WHOLE,
)
_DIFF_STATE = _object(ids=_list(_TEXT), count=_WHOLE, severity=_SEVERITY)
_CHANGE = _object(rule=_TEXT, headline=_TEXT, before=_DIFF_STATE, after=_DIFF_STATE)
_LEFTOVER = _object(
    {"node": _TEXT, "pod": _TEXT},
    pid=_WHOLE,
    started_at=_NUMBER,
    identity=_TEXT,
    kind=_one("defunct", "orphan", "stale-daemon", "leaked-child", "idle-holder"),
    inherited_only=_FLAG,
    why=_TEXT,
    belongs_to=_TEXT,
    command=_TEXT,
    session=_TEXT,
    user=_TEXT,
    rss=_WHOLE,
    memory=_WHOLE,
    gpu_memory=_WHOLE,
    ports=_list(_WHOLE),
    action=_one("none", "term", "kill"),
    outcome=_one("running", "gone", "refused"),
    reason=_TEXT,
)
_STALE = _object(
    {"node": _TEXT, "pod": _TEXT},
    path=_TEXT,
    what=_TEXT,
    bytes=_WHOLE,
    age_s=_NUMBER,
    truncated=_FLAG,
    removed=_FLAG,
    reason=_TEXT,
)
_SWEPT = _object(
    {**_texts("node", "ip", "hint", "same_as", "unseen", "pod"), "notes": _list(_TEXT)},
    problem=_TEXT,
)
_ATTACH: dict[str, _Schema] = {
    "ip": _TEXT_OR_NULL,
    "kind": _TEXT,
    "actor": _ACTOR,
    **dict.fromkeys(("actor_id", "worker_id", "name", "state"), _TEXT_OR_NULL),
}
_PROCESS: dict[str, _Schema] = {
    "pid": _WHOLE_OR_NULL,
    "node": _TEXT_OR_NULL,
    "task": _or_null(_TASK),
}
_CANDIDATE = _object(_ATTACH, **_PROCESS)  # `attach` with a name of several processes
_PLACE = _object(thread=_TEXT, tid=_WHOLE, function=_TEXT, file=_TEXT, line=_WHOLE)
_ATTACH_TARGET = _object(_ATTACH, **_PROCESS, identity=_TEXT)  # `attach --dry-run`
_CANCEL_TARGET = _object(
    kind=_TEXT,
    id=_TEXT,
    name=_TEXT,
    attempt=_WHOLE_OR_NULL,
    pid=_WHOLE_OR_NULL,
    identity=_TEXT,
    **dict.fromkeys(
        ("state", "ip", "node_id", "worker_id", "owner_id", "job_id", "actor_id"), _TEXT_OR_NULL
    ),
)
_ENDED_PROCESS = _object(
    kind=_one("process"), pid=_WHOLE, started_at=_NUMBER, command=_TEXT, outcome=_TEXT, reason=_TEXT
)
_STEP = _object(step=_TEXT, outcome=_TEXT, seconds=_NUMBER, why=_TEXT, task=_TEXT)

# ---------------------------------------------------------------- documents

_BODIES: dict[str, _Schema] = {
    "report": _object(
        {"status": _object(**_STATUS)},
        capture=_object(
            {"from": _NUMBER_OR_NULL, "to": _NUMBER_OR_NULL},
            path=_TEXT,
            kind=_TEXT,
            ray_versions=_list(_TEXT),
            nodes=_list(_object(id=_TEXT, ip=_TEXT, head=_FLAG)),
            files=_WHOLE,
            bytes=_WHOLE,
        ),
        diagnoses=_list(_DIAGNOSIS),
        unexplained=_list(_UNEXPLAINED),
        gaps=_list(_GAP),
        stats=_object(
            seconds=_NUMBER, hits=_WHOLE, events=_WHOLE, rules=_WHOLE, outside_span=_WHOLE
        ),
    ),
    "hung": _object(
        hung=_list(_HUNG),
        cycles=_list(_list(_TARGET)),
        groups=_list(_GROUP),
        working=_list(_HUNG),
        early=_list(_HUNG),
        young=_list(_object(summary=_TEXT, judged_in_s=_NUMBER)),
        drivers=_list(_HUNG),
        open=_list(_HUNG),
        unfinished=_WHOLE,
        looked_at=_WHOLE,
        gaps=_list(_GAP),
    ),
    "status": _object(address=_TEXT, gaps=_list(_GAP), **_STATUS),
    "zombies": _object(
        leftovers=_list(_LEFTOVER), stale_sessions=_list(_STALE), nodes=_list(_SWEPT)
    ),
    "stack": _object(
        at=_NUMBER,
        processes=_list(
            _object(
                pid=_WHOLE,
                started_at=_NUMBER_OR_NULL,
                node_id=_TEXT_OR_NULL,
                worker_id=_TEXT_OR_NULL,
                kind=_TEXT,
                title=_TEXT_OR_NULL,
                idle=_FLAG,
                tasks=_list(_TASK),
                actor=_ACTOR,
                how=_TEXT_OR_NULL,
                problem=_TEXT_OR_NULL,
                threads=_list({"type": "object"}),
            )
        ),
        gaps=_list(_GAP),
    ),
    "story": _object(
        subject=_object(**_ENTITY),
        aliases=_list(_object(**_ENTITY, why=_TEXT)),
        lines=_list(_STORY_LINE),
        omitted=_list(_object(file=_TEXT, lines=_WHOLE)),
        related=_list(_object(**_ENTITY, count=_WHOLE)),
        known=_list(_object(**_ENTITY, label=_TEXT)),
        gaps=_list(_GAP),
    ),
    "check": _object(
        checks=_list(_object(name=_TEXT, outcome=_TEXT, found=_TEXT, fix=_TEXT_OR_NULL))
    ),
    "rules": _object(rules=_list(_RULE)),
    "rule": _object(
        **_RULE["properties"],
        doc=_TEXT,
        signals=_list(
            _object(
                kind=_TEXT,
                find=_TEXT,
                pattern=_TEXT,
                roles=_list(_TEXT),
                sample=_TEXT,
                symptom=_FLAG,
            )
        ),
        remedies=_list(_REMEDY),
        example=_or_null(
            _object(title=_TEXT, files=_map(_TEXT), roots=_list(_TEXT), consequences=_list(_TEXT))
        ),
    ),
    "diff": _object(
        a=_SIDE,
        b=_SIDE,
        new=_list(_DIAGNOSIS),
        gone=_list(_DIAGNOSIS),
        worse=_list(_CHANGE),
        better=_list(_CHANGE),
        same=_list(_CHANGE),
        unexplained=_object(new=_list(_UNEXPLAINED), gone=_list(_UNEXPLAINED)),
        gaps=_object(new=_list(_GAP), gone=_list(_GAP)),
    ),
    "attach": _object(
        {
            **_ATTACH,
            "closed": _ANY,
            "seconds": _NUMBER_OR_NULL,
            "notes": _list(_TEXT),
            "tunnel": _TEXT_OR_NULL,
            "doing": _ANY,
            "stacks": _list(_ANY),
            "variables": _ANY,
            "evaluated": _ANY,
            "executed": _ANY,
            "problem": _TEXT_OR_NULL,
            "hint": _TEXT_OR_NULL,
            "wanted": _TEXT,
            "candidates": _list(_CANDIDATE),
            "waiting": _list({"type": "object"}),
            "plan": _object(statement=_TEXT_OR_NULL, where=_or_null(_PLACE)),
            "target": _ATTACH_TARGET,
        },
        pid=_WHOLE_OR_NULL,
        node=_TEXT_OR_NULL,
        host=_TEXT_OR_NULL,
        port=_WHOLE_OR_NULL,
        method=_TEXT_OR_NULL,
        task=_or_null(_TASK),
        launch=_or_null({"type": "object"}),
    ),
    "cancel": _object(
        {
            "complete": _FLAG,
            "ended_by": _TEXT_OR_NULL,
            "accepted": _FLAG,
            "subprocesses": _list(_ENDED_PROCESS),
            "state": _TEXT_OR_NULL,
            "error_type": _TEXT_OR_NULL,
            "problem": _TEXT_OR_NULL,
            "next": _ANY,
            "plan": _list(_object(**_texts("step", "does"))),
            "wanted": _TEXT,
            "candidates": _list(_CANCEL_TARGET),
            "unknown": _list(_CANCEL_TARGET),
        },
        target=_or_null(_CANCEL_TARGET),
        ended=_FLAG,
        steps=_list(_STEP),
        leftovers=_list({"anyOf": [_ENDED_PROCESS, _CANCEL_TARGET]}),
    ),
    "capture": _object(raydoctor=_TEXT, files=_WHOLE, redactions=_ANY, gaps=_list(_GAP)),
}
"""Without `schema`, which each of them has, and `version`."""
_VERSIONLESS = ("watch", "capture")
"""A watch's lines are many, and a capture names its raydoctor under another key."""
_WATCH: _Schema = {
    "type": "object",
    "properties": {
        "event": _TEXT,
        "at": _NUMBER,
        "level": _one("ok", "info", "warning", "error"),
        "text": _TEXT,
    },
    "required": ["schema", "event", "at"],
    # A round has the state; every other event has one sentence, and facts that depend on the event.
    "if": {"properties": {"event": {"const": "round"}}},
    "then": {
        "required": ["state", "nodes", "tasks", "gauges", "diagnoses", "hung", "problems"],
    },
    "else": {"required": ["level", "text"]},
}
NAMES = (*_BODIES, "watch")


def schema(name: str) -> _Schema:
    """The schema of `raydoctor/NAME/1`; KeyError for another name."""
    body = _WATCH if name == "watch" else _BODIES[name]
    own = {"schema": {"const": f"raydoctor/{name}/1"}}
    version = {} if name in _VERSIONLESS else {"version": _TEXT}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"raydoctor/{name}/1",
        **body,
        "properties": {**own, **version, **body["properties"]},
        "required": list(dict.fromkeys((*own, *version, *body["required"]))),
    }

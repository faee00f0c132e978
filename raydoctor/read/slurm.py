"""Slurm's accounts of jobs and steps -> events `slurm.job`, one per job or step.

Read are `sacct --json` (data parser 0.0.37 to 0.0.42), `sacct -P` and `sacct`'s table with any fields, and
`scontrol show job`. Times are local times of the cluster, except those of JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from raydoctor.capture.contents import below_command
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Gap, Source
from raydoctor.read.clock import NodeClocks

_LIMIT = 64 << 20
_FIELDS = {
    "jobid": "job", "jobidraw": "raw", "jobname": "name", "state": "state", "jobstate": "state", "exitcode": "exit_code",
    "maxrss": "max_rss", "reqmem": "requested", "minmemorynode": "requested", "timelimit": "time_limit", "elapsed": "elapsed",
    "runtime": "elapsed", "nodelist": "nodes", "end": "end", "endtime": "end", "reason": "reason", "maxrssnode": "max_node",
    "derivedexitcode": "derived", "nnodes": "count", "numnodes": "count", "failednode": "failed_node",
}  # fmt: skip
_SHOWN = ("state", "reason", "exit_code", "max_rss", "requested", "time_limit", "elapsed", "nodes", "failed_node", "end")  # fmt: skip
_PAIR = pattern(r"\b(?P<name>[A-Za-z/]{1,40})=(?P<value>\S*)")
_DASHES = pattern(r"-{2,}")
_MOST = 20_000
_NEAR = 64 << 10
"""Characters in which the next account of a list begins; with their steps, some have 20,000."""


class _Account(NamedTuple):
    line: int
    fields: dict[str, str]
    at: float | None = None


def read(files: Mapping[Source, str], gaps: list[Gap], clock: NodeClocks) -> list[Event]:
    """Events of every file of accounts. What cannot be read is a gap."""
    events: list[Event] = []
    for source, file in files.items():
        if source.role != "slurm":
            continue
        try:
            with open(file, encoding="utf-8", errors="replace") as stream:
                text = stream.read(_LIMIT)
            rows = list(islice(_rows(text), _MOST + 1))
        except (OSError, ValueError, RecursionError) as error:
            why = getattr(error, "strerror", None) or "damaged or cut off"
            gaps.append(Gap(source.path, f"could not be read: {why}", "sacct -j JOB --json"))
            continue
        events += [_event(source, row, clock) for row in rows[:_MOST]]
        if len(rows) > _MOST or len(text) == _LIMIT:
            gaps.append(Gap(source.path, "was read in part: it is too long", "sacct -j JOB --json"))
        elif _ends_early(text):
            gaps.append(Gap(source.path, "is cut off in its last line", "sacct -j JOB --json"))
    return events


def _ends_early(text: str) -> bool:
    """Whether the last row of a table, which begins with a job's number, has fewer cells than its header."""
    rows = [
        line
        for line in (text[:_NEAR].splitlines()[:50] + text[-_NEAR:].splitlines()[-1:])
        if "|" in line
    ]
    return bool(rows) and rows[-1][:1].isdigit() and rows[-1].count("|") < rows[0].count("|")


def _event(source: Source, row: _Account, clock: NodeClocks) -> Event:
    fields = {name: value for name, value in row.fields.items() if value}
    at = row.at
    if at is None and "T" in fields.get("end", ""):
        at = clock.epoch(source.node, fields["end"].replace("T", " ", 1))
    shown = " ".join(f"{name}={fields[name]}" for name in _SHOWN if name in fields)
    return Event(
        "slurm.job", source, row.line, 0, f"Slurm job {fields.get('job', '')}: {shown}"[:400], "", at, 1.0, fields=fields
    )  # fmt: skip


def _rows(text: str) -> Iterator[_Account]:
    begin = below_command(text)
    if begin.startswith("{"):
        yield from _of_json(text)
    elif begin.startswith("JobId="):
        yield from _of_scontrol(text)
    else:
        yield from _of_table(text)


# ---------------------------------------------------------------- JSON


def _of_json(text: str) -> Iterator[_Account]:
    data = json.loads(text[text.index("{") :])
    lines = _Lines(text)
    for job in _dicts(data.get("jobs")):
        fields = _of_object(job, _job_name(job))
        yield _placed(lines, fields, job)
        for step in _dicts(job.get("steps")):
            identity = step.get("step")
            identity = identity if isinstance(identity, dict) else {}
            name = str(identity.get("id", "")) or str(identity.get("name", ""))
            yield _placed(lines, _of_object(step, name, fields), step)


def _job_name(job: dict[str, Any]) -> str:
    """The number of a job; `4700_3` of a task of an array, `4711+1` of a part of a heterogeneous job."""
    array, parts = job.get("array"), job.get("het")
    for group, mark, place in ((array, "_", "task_id"), (parts, "+", "job_offset")):
        first = _number(group.get("job_id")) if isinstance(group, dict) else None
        part = _number(group.get(place)) if isinstance(group, dict) and first else None
        if first and part is not None:
            return f"{first:.0f}{mark}{part:.0f}"
    return str(job.get("job_id", ""))


@dataclass(slots=True)
class _Lines:
    """The lines of accounts, in the order in which their numbers are looked up."""

    text: str
    _at: int = 0
    _line: int = 1

    def of(self, number: str) -> int:
        """The line with a number, from that of the last one on; the last one if it is not near."""
        end = self._at + _NEAR
        for form in (f'"{number}"', number):
            if (place := self.text.find(form, self._at, end)) >= 0:
                self._line += self.text.count("\n", self._at, place)
                self._at = place
                break
        return self._line


def _placed(lines: _Lines, fields: dict[str, str], data: dict[str, Any]) -> _Account:
    line = lines.of(fields["raw"] or fields["job"])
    times = data.get("time")
    ended = _number(times.get("end")) if isinstance(times, dict) else None
    return _Account(line, fields, ended or None)


def _of_object(
    data: dict[str, Any], name: str, job: Mapping[str, str] | None = None
) -> dict[str, str]:
    state = data.get("state")
    current = state.get("current") if isinstance(state, dict) else state
    words = current if isinstance(current, list) else [current]
    required, times = data.get("required"), data.get("time")
    required = required if isinstance(required, dict) else {}
    times = times if isinstance(times, dict) else {}
    per_node, per_cpu = _number(required.get("memory_per_node")), _number(required.get("memory_per_cpu"))  # fmt: skip
    limit = _number(times.get("limit"))
    nodes = data.get("nodes")
    listed = nodes.get("range") if isinstance(nodes, dict) else nodes
    return {
        "job": name,
        "raw": str(data.get("job_id") or ""),
        "name": str(data.get("name") or ""),
        "state": " ".join(str(word) for word in words if word),
        "reason": str(state.get("reason") or "") if isinstance(state, dict) else "",
        "exit_code": _exit_code(data.get("exit_code")),
        "max_rss": _max_rss(data),
        "requested": f"{per_node:.0f}M" if per_node else f"{per_cpu:.0f}Mc" if per_cpu else (job or {}).get("requested", ""),
        "time_limit": f"{limit:.0f}" if limit else (job or {}).get("time_limit", ""),
        "elapsed": str(times.get("elapsed") or ""),
        "nodes": str(listed or ""),
        "failed_node": str(data.get("failed_node") or ""),
    }  # fmt: skip


def _exit_code(value: object) -> str:
    if not isinstance(value, dict):
        return ""
    code, sent = _number(value.get("return_code")), value.get("signal")
    number = _number(sent.get("id") or sent.get("signal_id")) if isinstance(sent, dict) else None
    return f"{code or 0:.0f}:{number or 0:.0f}"


def _max_rss(data: dict[str, Any]) -> str:
    """The largest memory of a task in bytes."""
    used: Any = data.get("tres")
    for name in ("requested", "max"):
        used = used.get(name) if isinstance(used, dict) else None
    memory = (_number(each.get("count")) for each in _dicts(used) if each.get("type") == "mem")
    largest = max((amount for amount in memory if amount), default=0.0)
    return f"{largest:.0f}" if largest else ""


def _number(value: object) -> float | None:
    """A number, also where Slurm wraps it: `{"set": true, "infinite": false, "number": 5}`."""
    if isinstance(value, dict):
        value = None if value.get("infinite") or value.get("set") is False else value.get("number")
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e18 else None


def _dicts(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


# ---------------------------------------------------------------- text


def _of_scontrol(text: str) -> Iterator[_Account]:
    number = 1
    for block in re.split(r"(?m)^(?=JobId=)", text):
        if pairs := {found["name"].lower(): found["value"] for found in _PAIR.finditer(block)}:
            yield _Account(number, _named(pairs))
        number += block.count("\n")


def _of_table(text: str) -> Iterator[_Account]:
    header: list[str] = []
    spans: list[tuple[int, int]] = []
    for number, line in enumerate(text.splitlines(), 1):
        names = line.lower().split("|") if "|" in line else line.lower().split()
        if not {"jobid", "jobidraw"}.isdisjoint(names) and "state" in names:
            header, spans = [name.strip() for name in names], []
        elif header and not line.strip(" -"):
            spans = [found.span() for found in _DASHES.finditer(line)]
        elif header and line.strip():
            cells = [line[a:b] for a, b in spans] if spans else line.split("|")
            found = _named(dict(zip(header, (cell.strip() for cell in cells), strict=False)))
            if found.get("state"):
                yield _Account(number, found)


def _named(cells: Mapping[str, str]) -> dict[str, str]:
    """The known fields; a state such as `CANCELLED by 1000` keeps its words."""
    found = {_FIELDS[name]: value for name, value in cells.items() if name in _FIELDS}
    found["job"] = found.get("job") or found.get("raw", "")
    return {name: value for name, value in found.items() if value not in ("Unknown", "None", "(null)")}  # fmt: skip

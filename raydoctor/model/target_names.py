"""What people type to name a task, an actor or a process: what Ray and reports print. Pure.

An id in any of Ray's notations (`TaskID(…)`, `ObjectRef(…)`, `Actor(Trainer, …)`), a name, `pid 812`, or the
label of a report: `load() (pid 812)`. Ray names a task by its module's function or its class's method. Ray
Data joins the operators of a task with `->`, and calls its actors `MapWorker(OPERATOR)`. Ray Serve's classes
are `ServeReplica:APP:DEPLOYMENT` (all read on 2.60).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.model import ids
from raydoctor.model.patterns import pattern

_PID = pattern(r"(?:(?P<name>\S.*?)\s+\()?pid[ =](?P<pid>\d{1,7})(?(name)\))")
_NOTATION = pattern(
    r"(?P<kind>TaskID|ObjectRef|ObjectID|ActorID|WorkerID|NodeID|Actor)"
    r"\((?:\w[\w.]*, *)?(?P<id>[0-9a-fA-F]+)\)"
)
_LONGEST = 1000
"""Characters of a name that has short forms."""
_KIND = pattern(r"(?i:(?:(?:the|a) )?(?:worker|driver(?: of job (?P<job>\w+))?))")
"""How reports name a process that runs no task; it may begin a sentence."""
_POOL = pattern(r"MapWorker\((.+)\)(?:\.\w+)?")


class TargetName(NamedTuple):
    """A name, a pid, or both."""

    name: str
    """An id in lower case, of an object that of its task; a name; or empty."""
    pid: int | None = None
    """If there is a name as well, both have to match: the process may run another task by now."""

    @property
    def is_kind(self) -> bool:
        """Whether the name is only the kind of the process: `driver of job 3 (pid 812)`."""
        return self.pid is not None and _KIND.fullmatch(self.name) is not None


def parse(typed: str) -> TargetName:
    """The name and the pid in a target that the user typed."""
    text = typed.strip()
    match = _PID.fullmatch(text)
    if match:
        return TargetName(_plain(match["name"] or ""), int(match["pid"]))
    return TargetName(_plain(text))


def job_of_driver(name: str) -> int | None:
    """The number of the job in `driver of job 3`; None in any other name."""
    match = _KIND.fullmatch(name)
    number = match["job"] if match else None
    return int(number) if number and number.isdecimal() and number.isascii() else None


def pid_of(typed: str) -> int | None:
    """The pid if the target is only a pid: `812`, `pid 812`."""
    name, pid = parse(typed)
    if name:
        return int(name) if pattern(r"\d{1,7}").fullmatch(name) else None
    return pid


def _plain(text: str) -> str:
    """The id in one of Ray's notations, the task of an object's id; a function without parentheses."""
    inside = _NOTATION.fullmatch(text)
    digits = (inside["id"] if inside else text).lower()
    parts = ids.parse_object_id(digits)
    if parts and (inside is None or inside["kind"].startswith("Object")):
        return parts.task
    return digits if pattern("[0-9a-f]+").fullmatch(digits) else text.removesuffix("()")


def is_prefix(name: str, identifier: str | None, least: int = 6) -> bool:
    """Whether a name is this id, or at least `least` of its first digits."""
    is_digits = len(name) >= least and not name.strip("0123456789abcdef")
    return bool(identifier) and is_digits and str(identifier).startswith(name)


def short_names(full: str | None) -> Iterator[str]:
    """The names by which a task, a class or an operator is known: `pkg.Api.step`, `Api.step`, `step`."""
    if not full:
        return
    yield full
    if len(full) > _LONGEST:  # any length is possible, and each part gives another name
        return
    pool = _POOL.fullmatch(full)
    for operator in (pool[1] if pool else full).split("->"):
        yield operator
        bare, _, method = operator.rpartition(").")
        parts = ([method] if bare else operator.split(".")) if not operator.endswith(")") else []
        yield from (".".join(parts[n:]) for n in range(len(parts)))
    if ":" in full and "(" not in full:
        yield from short_names(full.rpartition(":")[2])

"""Calls on dead actors: the failed calls, and the cause of death that Ray reports.

There are two sources. The driver prints the exception that the caller got (`ActorDiedError`, up to 2.10 `RayActorError`).
The caller's core log records it with a time and the actor's owner, in the text form of a protobuf
(`ActorDiedErrorContext`), even if the program caught the exception.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Signal
from raydoctor.case.signals import CORE, DRIVER
from raydoctor.model import ids, paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Remedy, Subject

BY_KILL = "because it was killed by `ray.kill`"
BY_EXIT = "exit_actor() is called"
BY_SCOPE = "because all references to the actor were removed"
BY_OWNER = "because its owner has died"
BY_GROUP = "placement group was removed"

_FRAME = pattern(
    # Begins with characters that are always there: `search` skips to them.
    r"\n\t(?:class_name: (?P<class_name>[^\n]*)\n\t)?actor_id: (?P<actor>[0-9a-f]{32})(?:\n\tpid: (?P<pid>\d{1,20}))?"
    r"(?:\n\tname: (?P<name>[^\n]*))?(?:\n\tnamespace: (?P<ray_namespace>[^\n]*))?"
    r"(?:\n\tip: (?P<node_ip_address>[^\n]*))?\n(?P<error_message>.*)",
    re.DOTALL,
)
_UNNAMED = pattern(r"(?:^|\n)(?P<error_message>The actor is dead because [^\n]{1,600})")
_UNKNOWN = "f" * 32
"""In place of an actor whose details a paste has lost."""
_CONTEXT_FIELD = pattern(r'^ {4}(\w+): (?:"(.*)"|(\S+))$', re.MULTILINE)
_PID = pattern(r"[0-9]{1,10}")
_OWNER = pattern(r"Owner Id: (?P<owner>[0-9a-f]{56})")

CALL_FAILED = Signal(
    "actor.call_failed",
    "failed with error ACTOR_DIED",
    r"^Task attempt (?P<task>[0-9a-f]{48}) failed with error ACTOR_DIED .{0,2000}?actor_died_error_context \{\n(?P<context>.{0,4000}?)\n  \}",
    CORE,
    "Task attempt c2668a65bda616c1c4647def073eea9d8fbb251801000000 failed with error ACTOR_DIED Fail immediately? 0, status "
    "IOError: cancelling task of dead actor, error info actor_died_error {\n  actor_died_error_context {\n"
    '    error_message: "The actor is dead because it was killed by `ray.kill`."\n'
    f'    owner_id: "\\001\\000\\000\\000{chr(92) + "377"}"\n    pid: 386\n    name: "cache"\n    class_name: "Cache"\n  }}\n}}',
    extent="record",
)

CALL_RETRIED = Signal(
    "actor.call_retried",
    " retries remaining, so the task will be retried. Error: The actor is temporarily unavailable",
    r"^Task (?P<name>\S+) failed\. There are (?P<left>\w+) retries remaining, so the task will be retried\. "
    r"Error: The actor is temporarily unavailable",
    ("raylet-echo",),
    "Task Trainer.step failed. There are infinite retries remaining, so the task will be retried. Error: The actor is "
    "temporarily unavailable: RpcError: RPC error: Socket closed rpc_code: 14",
)

LEFT = tuple(
    Signal(
        "actor.left",
        reason,
        r"^Raylet(?:Ipc)?Client::Disconnect, exit_type=INTENDED_\w+, exit_detail="
        rf"(?P<detail>.*?{re.escape(reason)}.*?), has creation_task_exception",
        ("core-worker",),
        "RayletIpcClient::Disconnect, exit_type=INTENDED_SYSTEM_EXIT, exit_detail=Worker exits because the actor is killed. "
        f"The actor is dead {reason}., has creation_task_exception_pb_bytes=0",
    )
    for reason in (BY_KILL, BY_SCOPE, BY_EXIT)
)
"""How an actor's worker ended on purpose. Healthy workers disconnect as often, so the literals name the reason."""


@dataclass(slots=True)
class Death:
    """An actor's end, as its callers' errors report it."""

    actor: str
    class_name: str = ""
    name: str = ""
    namespace: str = ""
    pid: int | None = None
    cause: str = ""
    owner: str = ""
    """WorkerID of the process that created it, if the text names it."""
    seen: list[Event] = field(default_factory=list)
    """Exceptions in a driver's output."""
    calls: list[Event] = field(default_factory=list)
    """The same calls in callers' core logs, including failures that the program caught."""

    @property
    def entity(self) -> Entity:
        """The actor."""
        return Entity("actor", self.actor)

    @property
    def label(self) -> str:
        """`Cache (pid 386)`, or `Cache 'cache' (pid 386)` if it has a name."""
        label = self.class_name or "an actor"
        label += f" '{self.name}'" if self.name else ""
        return f"{label} (pid {self.pid})" if self.pid is not None else label

    @property
    def count(self) -> int:
        """How many calls failed, as far as is known."""
        return max(evidence.total(self.seen), evidence.total(self.calls))

    @property
    def subject(self) -> Subject:
        """For the report."""
        id_ = None if self.actor == _UNKNOWN else self.actor
        return Subject("actor", id_, self.class_name or None, self.pid)


def deaths(case: Case) -> list[Death]:
    """Actors on which calls failed, in the order of the first failure.

    If a driver's output is in the capture without such an exception, the program handled it: many programs
    detect a dead actor by calling it. Those deaths are left out.
    """
    printed = not case.roles.isdisjoint(DRIVER)
    return [d for d in all_deaths(case) if d.seen or not printed or _is_named(case, d)]


def all_deaths(case: Case) -> list[Death]:
    """The same, including failures that the program handled."""
    found: dict[str, Death] = {}
    for event in case.of("actor.call_failed", "driver.exception"):
        if case.torn_down(event):
            continue
        if event.kind == "actor.call_failed":
            fields = _context(event["context"])
            death = found.setdefault(actor := ids.actor_of_task(event["task"]), Death(actor))
            death.calls.append(event)
        elif frame := _frame(event):
            fields = frame
            death = found.setdefault(frame["actor"], Death(frame["actor"]))
            death.seen.append(event)
        else:
            continue
        _add_fields(death, fields)
    return [d for d in found.values() if d.actor]


def _is_named(case: Case, death: Death) -> bool:
    """Whether a driver's exception names the actor, even inside another error's text."""
    return bool(case.about(death.entity, "driver.exception"))


def _frame(event: Event) -> dict[str, str] | None:
    """The frame of `ActorDiedError` itself, not of an error that quotes one."""
    if event["type"] not in ("ActorDiedError", "RayActorError"):
        return None
    match = _FRAME.search(event["what"])
    if match is None and event.source.is_excerpt and (bare := _UNNAMED.search(event["what"])):
        return {"actor": _UNKNOWN, "error_message": bare["error_message"]}
    return {k: v for k, v in match.groupdict().items() if v} if match else None


def _context(text: str) -> dict[str, str]:
    return {name: quoted or bare for name, quoted, bare in _CONTEXT_FIELD.findall(text)}


def _add_fields(death: Death, fields: dict[str, str]) -> None:
    """Add the fields of one record that were still unknown."""
    death.class_name = death.class_name or fields.get("class_name", "")
    death.name = death.name or fields.get("name", "")
    death.namespace = death.namespace or fields.get("ray_namespace", "")
    death.cause = death.cause or fields.get("error_message", "")
    if death.pid is None and _PID.fullmatch(fields.get("pid", "")):
        death.pid = int(fields["pid"])
    named = _OWNER.search(fields.get("error_message", ""))
    death.owner = death.owner or (
        named["owner"] if named else worker_id(fields.get("owner_id", ""))
    )


def worker_id(escaped: str) -> str:
    """A WorkerID from protobuf's text form (octal escapes), or empty if it is none."""
    try:
        value = escaped.encode("latin-1").decode("unicode_escape").encode("latin-1").hex()
    except (UnicodeDecodeError, UnicodeEncodeError):
        return ""
    return value if len(value) == len(ids.NIL_WORKER) and value != ids.NIL_WORKER else ""


def all_events(found: Iterable[Death]) -> tuple[Event, ...]:
    """Every record of these deaths, to be covered."""
    return tuple(event for death in found for event in (*death.calls, *death.seen))


def kills(case: Case, actor: str) -> list[Event]:
    """Records of the actor's processes that `ray.kill` ended them."""
    words = (e for worker in case.actor(actor).workers for e in last_words(case, worker))
    return [e for e in words if BY_KILL in e["detail"]]


def last_words(case: Case, worker: str) -> list[Event]:
    """Records of an actor's process that exited on request (`ray.kill`, `exit_actor`, last reference gone)."""
    return case.about(Entity("worker", worker), "actor.left")


LIFETIMES = "https://docs.ray.io/en/latest/ray-core/actors/named-actors.html#actor-lifetimes"


def detached(title: str, cls: str, name: str) -> Remedy:
    """Create the actor detached, so that it needs neither handles nor its owner, and end it with `ray.kill`."""
    return Remedy(
        title,
        (
            paste.python(
                '{actor:name}.options(name={name}, namespace="NAMESPACE", lifetime="detached", get_if_exists=True).remote(ARGUMENTS)',
                actor=cls,
                name=name,
            ),
            paste.python(
                'ray.kill(ray.get_actor({name}, namespace="NAMESPACE"))   # when it is no longer needed: Ray does not end it',
                name=name,
            ),
        ),
        doc=LIFETIMES,
    )

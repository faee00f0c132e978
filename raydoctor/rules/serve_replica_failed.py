"""Replicas of a Serve deployment could not be started, or stopped answering health checks.

## What you see
- The driver gets `RuntimeError: Deploying application … failed`.
- `serve status` shows `DEPLOY_FAILED` or `UNHEALTHY`, with `The deployment failed to start 3 times in a row` or `A
  replica's health check failed`.
- `logs/serve/controller_*.log` contains `Exception in Replica(…), the replica will be stopped.`, `Didn't receive health
  check response for replica …` or `Replica … failed the health check 3 times in a row, marking it unhealthy.`
- Requests to such a replica fail with `ActorDiedError`, which names `ray.kill`: Serve killed the replica to replace it.

## Why
- Constructor: `__init__` (or `reconfigure`) raised an exception. Serve tries three times per replica, then marks the
  application as failed.
- Health, with a `check_health` of the deployment: it runs on the event loop of the requests, so a blocking call in an
  `async` method delays it.
- Health, without `check_health`: a separate event loop answers. Only a native call that holds the GIL, or a process
  that is stopped or gets no CPU time, delays the answer. Two exceptions: with
  `RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD=0` (which `RAY_SERVE_THROUGHPUT_OPTIMIZED=1` sets) checks and requests
  share one loop. Ray 2.60 reports `User event loop unresponsive` if the loop of the requests has been blocked for about
  18 minutes.
- Config: it sets options of a deployment that the application's code does not define.
- Crash: the process ended. The report lists the cause of that as the root.

## Confirm
- Constructor: read the traceback in the controller's log. The replica's log does not contain it.
- Health: while the replica does not answer, `ray stack` or `py-spy dump --pid PID` on its node shows the blocking call.

## Fix
Fix the constructor. With `check_health`, move blocking calls off the event loop: `await asyncio.to_thread(f, x)`. A
call that holds the GIL needs a process of its own: a Ray task, or a `ProcessPoolExecutor`. If a health check may
legitimately take longer, raise the limit: `@serve.deployment(health_check_timeout_s=120)`.

## Not this when
- replicas are not placed because no resources are free (`cluster-starved`, `infeasible-request`).
- Serve rejects requests because the queue is full (`serve-backpressure`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from textwrap import dedent

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import DRIVER, RAY_EXCEPTION, TRACEBACKS, WORKER_EXIT
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import clause, cut
from raydoctor.model.values import Event, Finding, Gap, Link, Remedy, Subject
from raydoctor.rules.shared import serve
from raydoctor.rules.shared.actor_deaths import BY_KILL, CALL_FAILED, LEFT, all_deaths
from raydoctor.rules.shared.cluster import LOST_WITH_CLUSTER
from raydoctor.rules.shared.failures import SIGNALS, failures, program
from raydoctor.rules.shared.serve import Said
from raydoctor.rules.shared.setup import environments
from raydoctor.rules.shared.task_error import Printed, error_entities
from raydoctor.rules.shared.traceback import Raised, parse

_DOC = "https://docs.ray.io/en/latest/serve/production-guide/fault-tolerance.html"
_LONGEST = 160
_DEAD_REPLICA = Signal(
    "serve.listed_dead",
    "class_name: ServeReplica:",
    r"\bclass_name: ServeReplica:(?P<class>[^\n]{1,300})(?:(?!class_name: ).){0,3000}?\bstate: DEAD\b(?:(?!\bstate: ).){0,4000}?"
    r"\berror_message: (?P<why>The actor is dead because it was killed by `?ray\.kill`?)",
    DRIVER,
    "    class_name: ServeReplica:chat:Generator\n    state: DEAD\n    death_cause:\n        actor_died_error_context:\n"
    "            error_message: The actor is dead because it was killed by `ray.kill`.",
    extent="record",
)
"""What `ray list actors --detail` and `ray get actors` print about a replica (2.2 to 2.60)."""
_NAMED = pattern(r"deployments \[(?P<names>'[^\]\n]{1,1000}')\]")
"""In the words of APP_FAILED."""
_QUOTED = "RuntimeError: Traceback (most recent call last):"
_BELOW = 3
"""Lines from a message down to its traceback."""
_STACK = Gap(
    "stack of the replica",
    "no log shows what an unresponsive replica is doing",
    "While the replica does not answer, run py-spy dump --pid PID on its node (PID: the replica), or ray stack.",
    optional=True,
)


@dataclass(slots=True)
class _Trouble:
    """Equal failures of one deployment."""

    said: list[Said] = field(default_factory=list)
    raised: Raised | None = None
    kills: list[Event] = field(default_factory=list)
    """Calls that failed because `ray.kill` had ended the replica."""

    @property
    def first(self) -> Said:
        return self.said[0]

    @property
    def kind(self) -> str:
        """`constructor`, `health`, `crash` or `application`."""
        kinds = {said.event.kind for said in self.said}
        if kinds & {"serve.replica_failed", "serve.raised"}:
            return "constructor"
        if kinds <= {"serve.deploy_failed", "serve.said_unhealthy", "serve.app_failed"}:
            return "application"
        if kinds == {"serve.status"}:
            return "health" if self.first.event["check"] else "constructor"
        return "crash" if kinds == {"serve.replica_crashed"} else "health"

    @property
    def replicas(self) -> list[str]:
        return list(dict.fromkeys(said.replica for said in self.said))

    @property
    def count(self) -> int:
        """Failed replicas; repeated records that were folded into one count as often as they occurred."""
        if self.kind == "health":
            return len(self.replicas)
        return max(len(self.replicas), evidence.total([said.event for said in self.said]))


@rule(
    tier="root",
    severity="error",
    rank=44,
    explains=("actor", "program", "serve-replicas", "task-error"),
    caused_by=("actor", "process", "runtime-env", "worker"),
    looks_for=(
        *serve.SIGNALS,
        _DEAD_REPLICA,
        serve.UNHEALTHY_SAID,
        RAY_EXCEPTION,
        WORKER_EXIT,
        CALL_FAILED,
        *LEFT,
        *SIGNALS,
    ),
)
def serve_replica_failed(case: Case) -> Iterator[Finding]:
    """One finding per deployment and kind of failure."""
    groups: dict[tuple[str, str, str, str], _Trouble] = {}
    for said in serve.said(case, "serve.replica_failed"):
        raised = _raised(said.event["what"])
        place = f"{raised.name} {raised.place}" if raised else ""
        group = groups.setdefault(
            (said.app, said.deployment, "failed", place), _Trouble(raised=raised)
        )
        group.said.append(said)
    crashed = {said.replica for said in serve.said(case, "serve.replica_crashed")}
    for kind in (
        "serve.health_timeout",
        "serve.health_failed",
        "serve.unhealthy",
        "serve.stopped",
        "serve.replica_crashed",
    ):
        for said in serve.said(case, kind):
            if kind == "serve.stopped" and said.replica in crashed:
                continue
            what = "crash" if kind == "serve.replica_crashed" else "health"
            group = groups.setdefault((said.app, said.deployment, what, ""), _Trouble())
            group.said.append(said)
            group.raised = group.raised or _raised(said.event["what"])
    misnamed = [] if groups else [*_of_names(case)]
    yield from misnamed
    if not (groups or misnamed):
        yield from _of_build(case)
    for trouble in groups.values():
        if trouble.kind != "health" or _matters(trouble):
            yield _finding(case, trouble)
    if not (groups or misnamed) and "serve" not in case.roles:
        yield from (
            [*_of_console(case)]
            or [*_of_starts(case)]
            or [*_of_application(case)]
            or [*_of_deployment(case)]
            or _of_list(case)
        )


def _of_deployment(case: Case) -> Iterator[Finding]:
    """A deployment that its caller waited for, and that became unhealthy."""
    for event in case.of(serve.UNHEALTHY_SAID.kind)[:1]:
        if not evidence.goes_on(case, event):
            trouble = _Trouble([Said(event, "", event["deployment"], "")])
            yield replace(
                _finding(case, trouble),
                headline=f"Deployment {event['deployment']} became unhealthy: {_cut(clause(event['why']))}",
            )


def _of_console(case: Case) -> Iterator[Finding]:
    """Failures of which a console has only a status, or the rest of the controller's record."""
    ready = case.of(serve.READY.kind)
    of_kind = (serve.controllers(case, serve.RAISED.kind), case.of(serve.STATUS[0].kind))
    for events in of_kind:
        left = [e for e in events if not any(evidence.is_before(e, r) for r in ready)]
        said = [_said_of(e) for e in left]
        if said:
            best = max(said, key=lambda one: bool(one.deployment))
            raised = next((r for one in said if (r := _raised(one.event["what"]))), None)
            yield _finding(
                case, _Trouble([best, *(one for one in said if one is not best)], raised)
            )
            return


def _said_of(event: Event) -> Said:
    """A status or a quoted exception; the failed call in its text names the deployment that it does not name itself."""
    call = _CALL.search(event["what"])
    found = _START.match(call["function"]) if call and not event["deployment"] else None
    if found:
        return Said(event, event["app"] or found["app"] or "", found["deployment"], "")
    return Said(event, event["app"], event["deployment"], "")


_CALL = pattern(r"\bray::(?P<function>ServeReplica:[^\n()]{1,300})\(\) \(pid=")
_START = pattern(
    r"ServeReplica:(?:(?P<app>[^:#]{1,100})[:#])?(?P<deployment>.{1,200}?)\.(?:initialize_and_get_metadata|is_initialized|is_allocated|__init__)$"
)
"""The calls with which the controller waits for a replica's constructor (`serve/_private/replica.py`, 1.9 to 2.60)."""


def _starts(case: Case) -> Iterator[tuple[Said, Printed]]:
    """Failures of replicas' constructors, as the controller gets them."""
    ready = case.of(serve.READY.kind)
    for seen in failures(case):
        found = _START.match(seen.failure.function)
        rays_own = seen.failure.is_rays_own or seen.failure.type in LOST_WITH_CLUSTER
        if found and not rays_own and not any(evidence.is_before(seen.event, r) for r in ready):
            yield Said(seen.event, found["app"] or "", found["deployment"], ""), seen


def _of_starts(case: Case) -> Iterator[Finding]:
    """Constructors that raised, if a console lacks the controller's record about them."""
    found: dict[tuple[str, str], list[Printed]] = {}
    for said, seen in _starts(case):
        found.setdefault((said.app, said.deployment), []).append(seen)
    for (app, deployment), alike in found.items():
        first = alike[0]
        raised = first.failure.raised
        what = (
            str(raised)
            if raised
            else f"{first.event['inner'] or 'an exception'}, whose text the console cut off"
        )
        place = f", in {raised.place}" if raised and raised.place else ""
        of_app = f" (application '{app}')" if app else ""
        yield Finding(
            f"A replica of {deployment}{of_app} could not be started: {_cut(what)}{place}",
            (Link(first.event, "the constructor of the replica raised an exception", raised.code if raised else ""),),
            explains=(
                Entity("serve-replicas", f"{app}#{deployment} start"),
                *error_entities(alike),
            ),
            subjects=(Subject("deployment", None, deployment),),
            count=max(1, evidence.total([each.event for each in alike])),
            remedies=(
                Remedy(
                    f"Fix {raised.place}, which the constructor calls"
                    if raised and raised.place
                    else "Read the whole exception in the log of the replica or of the controller",
                    ("less /tmp/ray/session_latest/logs/serve/replica_*.log   # on the node of the replica",),
                    doc=_DOC,
                ),
            ),
            covers=tuple(event for each in alike for event in each.records),
        )  # fmt: skip


def _reports(case: Case, kind: str) -> list[Event]:
    """What the controller, or the driver itself, reports about an application that is not ready later."""
    ready = case.of(serve.READY.kind)
    found = [*serve.controllers(case, kind)]
    found += [e for e in case.of(kind) if e.source.role in DRIVER and not (e.level or e["who"])]
    return [e for e in found if not any(evidence.is_before(e, r) for r in ready)]


def _of_names(case: Case) -> Iterator[Finding]:
    """Configs that set options of a deployment that the application does not have."""
    left = _reports(case, serve.NO_DEPLOYMENT.kind)
    for name, events in evidence.grouped(left, lambda e: e["deployment"]).items():
        last = events[-1]
        names = [each.strip(" '\"") for each in last["available"].split(",") if each.strip()]
        known = f"; it has {evidence.join_names(names, most=8)}" if names else ""
        inside = [
            e for e in case.of(*TRACEBACKS, serve.DEPLOY_FAILED.kind, "driver.exception")
            if e.source is last.source and e.line <= last.line <= e.line + e.text.count("\n")
        ]  # fmt: skip
        yield Finding(
            f"The config of Serve sets options of deployment {name!r}, which the application does not have{known}",
            (Link(last, "Serve compares the config with the deployments that the application's code defines"),),
            explains=(
                Entity("serve-replicas", f"{name} name"),
                *(program(e) for e in case.endings.values() if e.source is last.source),
            ),
            subjects=(Subject("deployment", None, name),),
            count=evidence.total(events),
            remedies=(
                Remedy(
                    f"Correct the name {name!r} in the config, or remove its entry",
                    ("serve build your_module:app   # prints a config with the names of all deployments",),
                    doc=_DOC,
                ),
            ),
            covers=(*events, *inside),
        )  # fmt: skip


def _of_build(case: Case) -> Iterator[Finding]:
    """Applications that Serve could not import or build: no replica was started."""
    left = _reports(case, serve.BUILD_FAILED.kind)
    for app, events in evidence.grouped(left, lambda e: e["app"]).items():
        first = events[0]
        found = [
            e
            for e in case.of(*TRACEBACKS)
            if e.source is first.source and 0 <= e.line - first.line <= _BELOW
        ]
        raised = _raised(_unindented(first["what"])) or next(
            (r for e in found if (r := parse(e.message))), None
        )
        place = f", in {raised.place}" if raised and raised.place else ""
        named = f"application '{app}'" if app else "an application"
        yield Finding(
            f"Serve could not build {named}: {_cut(str(raised)) if raised else 'its code raised an exception'}{place}{_of_config(raised)}",
            (Link(first, "the controller could not import or build the application"),),
            explains=(Entity("serve-replicas", f"{app} build"), *(program(e) for e in case.endings.values() if e.source is first.source)),
            caused_by=tuple(Entity("runtime-env", f"{f.error.kind}: {f.error.said}") for f in environments.failures(case)),
            subjects=(Subject("deployment", None, app),),
            count=evidence.total(events),
            remedies=(
                Remedy(
                    f"Fix the {raised.name}, which the application's code raises when the cluster imports it" if raised else "Read the exception in the controller's log",
                    ("serve run your_module:app   # in the same environment, or add the code with runtime_env: {working_dir: …}",),
                    doc=_DOC,
                ),
            ),
            covers=(*events, *found),
        )  # fmt: skip


def _unindented(text: str) -> str:
    """A status of YAML without the indent of its lines after the first."""
    begin, _, rest = text.partition("\n")
    return f"{begin}\n{dedent(rest)}" if begin.startswith("ray::") else text


_DEPLOYMENTS = "app.deployments["


def _of_config(raised: Raised | None) -> str:
    """For a name that the controller of 2.0 to 2.5 looks up in the application."""
    if raised is None or raised.name != "KeyError" or _DEPLOYMENTS not in raised.code:
        return ""
    return f" (the config names deployment {raised.message}, which the application does not have)"


def _of_list(case: Case) -> Iterator[Finding]:
    """A replica that Serve ended with `ray.kill`, if only the table of actors is left."""
    for event in case.of(_DEAD_REPLICA.kind)[:1]:
        name = event["class"].strip().rpartition(":")[2]
        yield Finding(
            f"Serve's controller ended a replica of {name} with ray.kill: it was unhealthy or did not start, or its deployment was replaced",
            (Link(event, "the table of actors shows how the replica ended"),),
            explains=(Entity("serve-replicas", f"listed {name}"),),
            severity="warning",
            subjects=(Subject("deployment", None, name),),
            remedies=(
                Remedy(
                    "Read in the controller's log why it ended the replica, and in the replica's own log what it did before",
                    ("serve status", "grep -n -i -e unhealthy -e 'health check' -e exception /tmp/ray/session_latest/logs/serve/controller_*.log | tail   # usually on the head"),
                    doc=_DOC,
                    finds_cause=True,
                ),
            ),
            covers=(event, *(e for e in case.of("log.error") if e.source is event.source and "ray.kill" in e.message)),
        )  # fmt: skip


def _of_application(case: Case) -> Iterator[Finding]:
    """The failure of an application, if a console shows nothing of its replicas."""
    logged = [
        *serve.controllers(case, serve.APP_FAILED[0].kind),
        *case.of(serve.APP_STATUS.kind),
    ]
    ready = case.of(serve.READY.kind)
    if not case.of("serve.deploy_failed") and (
        left := [e for e in logged if not any(evidence.is_before(e, r) for r in ready)]
    ):
        listed = left[-1]["names"].replace("'", "").split(", ")
        yield replace(
            _finding(case, _Trouble([Said(left[-1], "", listed[0], "")])),
            headline=f"Serve could not deploy an application: {evidence.join_names(listed)} did not become healthy",
            severity="warning",
        )
    for event in case.of("serve.deploy_failed")[:1]:
        names = _NAMED.search(event["why"])
        if names and not any(evidence.is_before(event, r) for r in case.of(serve.READY.kind)):
            listed = names["names"].replace("'", "").split(", ")
            trouble = _Trouble([Said(event, event["deployed"], listed[0], "")])
            yield replace(
                _finding(case, trouble),
                headline=f"Serve could not deploy application '{event['deployed']}': "
                f"{evidence.join_names(listed)} did not become healthy",
            )  # fmt: skip


def _matters(trouble: _Trouble) -> bool:
    """Whether Serve acted: it does so after three late answers in a row."""
    acted = {"serve.unhealthy", "serve.stopped"}
    return any(said.event.kind in acted for said in trouble.said)


def _raised(text: str) -> Raised | None:
    """The exception of a constructor: a replica quotes its traceback as the text of a RuntimeError."""
    begin = text.find(_QUOTED)
    if begin >= 0:
        return parse(text[begin + len("RuntimeError: ") :])
    begin = text.find("ray::")
    if begin < 0:
        return parse(text.lstrip())
    indent = text[text.rfind("\n", 0, begin) + 1 : begin]
    # A status of YAML indents the whole text.
    return parse(text[begin:] if indent.strip() else text[begin:].replace(f"\n{indent}", "\n"))


def _finding(case: Case, trouble: _Trouble) -> Finding:
    first = trouble.first
    exits = (
        [e for e in case.exits if _is_of(trouble, e.names, e.at)] if trouble.kind == "crash" else []
    )
    named = {said.actor_name for said in trouble.said}
    ended = [death for death in all_deaths(case) if death.name in named]
    actors = [death.actor for death in ended]
    if trouble.kind == "crash":
        trouble.kills = [e for death in ended if BY_KILL in death.cause for e in death.calls[:1]]
    actors += [a.id for a in case.ledger.actors.values() if a.name in named]
    own = (
        Entity("serve-replicas", f"{first.app}#{first.deployment} {trouble.kind} {trouble.raised}"),
    )
    killed = (
        tuple(Entity("actor", actor) for actor in dict.fromkeys(actors))
        if trouble.kind == "health"
        else ()
    )
    causes = [e for exit_ in exits for e in exit_.entities]
    if trouble.kind != "health":
        causes += [e for said in trouble.said for e in said.event.entities if e.kind == "actor"]
        causes += list(_environments(case, trouble))
    return Finding(
        _headline(trouble),
        tuple(_links(case, trouble)),
        explains=(*own, *killed, *error_entities(_own_starts(case, trouble))),
        caused_by=tuple(dict.fromkeys(causes)),
        subjects=(Subject("deployment", None, first.deployment or None),),
        count=trouble.count,
        remedies=tuple(_remedies(trouble)),
        severity="warning" if _may_recover(trouble) else None,
        covers=tuple(_covered(case, trouble, actors)),
        gaps=(_STACK,) if trouble.kind == "health" and trouble.raised is None else (),
    )


def _own_starts(case: Case, trouble: _Trouble) -> list[Printed]:
    """Failures of the constructor that the controller's record reports as well."""
    first = trouble.first
    return [
        seen
        for said, seen in _starts(case)
        if trouble.kind == "constructor" and said.deployment == first.deployment
    ]


def _may_recover(trouble: _Trouble) -> bool:
    """Whether a status is all that is known, and Serve still tries."""
    return all(said.event["check"] or said.event["retries"] for said in trouble.said)


def _environments(case: Case, trouble: _Trouble) -> Iterator[Entity]:
    """Runtime environments that could not be created, if that is why the replica did not start."""
    if any("RuntimeEnvSetupError" in said.event["what"] for said in trouble.said):
        for failure in environments.failures(case):
            yield Entity("runtime-env", f"{failure.error.kind}: {failure.error.said}")


_BEFORE = 90.0
"""Seconds: the longest time from a process's end to the controller's next check, by default settings."""


def _is_of(trouble: _Trouble, names: Iterable[str], at: float | None) -> bool:
    times = [said.event.at for said in trouble.said if said.event.at is not None]
    near = at is None or not times or any(-2.0 <= when - at <= _BEFORE for when in times)
    return near and bool({trouble.first.class_name, trouble.first.deployment} & set(names))


# ---------------------------------------------------------------- finding


def _subject(trouble: _Trouble, count: int) -> str:
    first = trouble.first
    name = first.deployment or "a deployment"
    app = f" (application '{first.app}')" if first.app else ""
    return f"{f'{count} replicas' if count > 1 else 'A replica'} of {name}{app}"


def _headline(trouble: _Trouble) -> str:
    subject, raised = _subject(trouble, trouble.count), trouble.raised
    what = _cut(str(raised)) if raised else ""
    where = f", in {raised.place}" if raised and raised.place else ""
    if trouble.kind == "constructor":
        source = _first_step(trouble)
        # Serve tries a replica again under another name: the number of names is that of the attempts.
        subject = _subject(trouble, 1)
        attempts = f" in {trouble.count} attempts" if trouble.count > 1 else ""
        return f"{subject} could not be started{attempts}: {what or f'its {source} raised an exception'}{where}"
    if trouble.kind == "crash":
        return f"{subject} was ended by ray.kill" if trouble.kills else f"{subject} crashed"
    silent = [said.event for said in trouble.said if said.event.kind == "serve.health_timeout"]
    if silent and not raised:
        seconds = max(float(event["seconds"]) for event in silent)
        checks = evidence.many(evidence.total(silent), "health check")
        each = f"{'' if trouble.count > 1 else ' in a row'}, {seconds:g} s each"
        return f"{subject} did not answer {checks}{each}, so Serve replaced {_them(trouble)}"
    return f"{subject} failed health checks{f': {what}{where}' if what else ''}, so Serve replaced {_them(trouble)}"


def _first_step(trouble: _Trouble) -> str:
    """What failed at the start: `initialize` runs the constructor, then the user's `check_health`."""
    if any("in _call_user_health_check" in said.event["what"] for said in trouble.said):
        return "health check"
    is_known = trouble.first.event.kind != "serve.status"
    return "constructor" if is_known else "constructor or first health check"


def _them(trouble: _Trouble) -> str:
    return "them" if trouble.count > 1 else "it"


def _cut(text: str) -> str:
    return cut(text, _LONGEST)


def _links(case: Case, trouble: _Trouble) -> Iterator[Link]:
    shows = {
        "serve.replica_failed": "the controller stops a replica whose constructor raised an exception",
        "serve.health_timeout": "the replica did not answer a health check",
        "serve.health_failed": "check_health raised an exception",
        "serve.unhealthy": "after the third failed check in a row Serve replaces the replica",
        "serve.stopped": "the controller replaces the replica that failed its health checks",
        "serve.replica_crashed": "the controller finds a replica's process gone",
        "serve.raised": "the controller quotes the exception of a replica that was starting",
        "serve.status": "Serve's status of the deployment",
        "serve.deploy_failed": "Serve reports to the driver that the application failed",
        "serve.app_failed": "the controller gives up on the application",
        "serve.said_unhealthy": "Serve reports the deployment's state to the driver",
    }
    kinds: set[str] = set()
    for said in trouble.said:
        kind = said.event.kind
        repeats = kind == "serve.stopped" and "serve.unhealthy" in kinds
        if kind not in kinds and not repeats:
            kinds.add(kind)
            yield Link(said.event, shows[kind])
    for event in trouble.kills[:1]:
        yield Link(event, "a call on the replica failed because ray.kill had ended it")
    for event in _about_app(case, trouble)[:2]:
        if event.kind in kinds:
            continue
        is_drivers = event.kind == "serve.deploy_failed"
        yield Link(
            event,
            f"{'Serve reports to the driver' if is_drivers else 'the controller reports'} that the application failed",
        )


def _about_app(case: Case, trouble: _Trouble) -> list[Event]:
    name = trouble.first.deployment
    reports = [e for e in serve.controllers(case, "serve.app_failed") if f"'{name}'" in e["names"]]
    deploys = [
        e
        for e in case.of("serve.deploy_failed")
        if f"'{name}'" in e["why"] or e["deployed"] == trouble.first.app
    ]
    return [*reports[:1], *deploys]


def _covered(case: Case, trouble: _Trouble, actors: list[str]) -> Iterator[Event]:
    yield from (said.event for said in trouble.said)
    yield from _about_app(case, trouble)
    name = trouble.first.deployment
    yield from (e for e in case.of("serve.app_failed") if f"'{name}'" in e["names"])
    for actor in actors:
        yield from case.about(Entity("actor", actor), "driver.exception")


# ---------------------------------------------------------------- remedies

_ABSENT = pattern(r"No such file or directory: '(?P<path>[^'\n]{1,300})'$")


def _correct(raised: Raised, place: str) -> str:
    """What to do about the exception of a constructor, not only its name."""
    if absent := _ABSENT.search(raised.message):
        return f"Make {absent['path']} available on every node that can run a replica, or correct the path{place}"
    if raised.place and not raised.place.is_user_code:
        return f"Check what the deployment passes to {raised.place}, which raises {raised.name}"
    return f"Correct what raises {raised.name}{place}"


def _remedies(trouble: _Trouble) -> Iterator[Remedy]:
    name, raised = trouble.first.deployment or "Deployment", trouble.raised
    if raised:
        place = f" at {raised.place.file}:{raised.place.line}" if raised.place else ""
        steps = (
            paste.python(
                "from MODULE import {deployment:name}; {deployment:name}.func_or_class(ARGUMENTS)   # in Python on a node of the cluster: runs the constructor without Serve, with the arguments of bind()",
                deployment=name,
            ),
        )
        yield Remedy(
            _correct(raised, place),
            steps if trouble.kind == "constructor" else (),
            doc=_DOC,
        )
    if trouble.kind in ("application", "constructor") and not raised:
        yield Remedy(
            "Read the exception in the controller's log: the replica's own log does not contain it",
            (
                "less /tmp/ray/session_latest/logs/serve/controller_*.log   # usually on the head",
                "serve status",
            ),
            doc=_DOC,
        )
    if trouble.kind == "health" and not raised:
        yield Remedy(
            "Find the call that keeps the replica from answering, and move it off the event loop, or into a process of its own if it "
            "holds the GIL",
            (
                "py-spy dump --pid PID   # of the replica, while it does not answer. Add --native for calls that hold the GIL",
                "answer = await asyncio.to_thread(model.predict, batch)   # if the deployment defines check_health, which runs on that loop",
            ),
            doc=_DOC,
        )
        longest = max(
            (float(s.event["seconds"]) for s in trouble.said if s.event["seconds"]), default=30.0
        )
        yield Remedy(
            "Give health checks more time, if a healthy replica may take that long to answer",
            (
                paste.python(
                    "@serve.deployment(health_check_period_s=10, health_check_timeout_s={seconds})",
                    seconds=max(60, round(longest * 2)),
                ),
            ),
            doc=_DOC,
        )
    if trouble.kills:
        yield Remedy(
            "Change the number of replicas through Serve: it replaces a replica that ray.kill ended, and its requests fail",
            (paste.python("{deployment:name}.options(num_replicas=N)", deployment=name),),
            doc=_DOC,
        )
    if trouble.kind == "crash":
        yield Remedy("List the replicas and their status", ("serve status",), doc=_DOC)


# ------------------------------------------------------------------ examples


_FAILED = (
    "ERROR 2026-11-21 10:43:0{second},589 controller 402 -- Exception in Replica(id='g7278tv{second}', deployment='Translator', "
    "app='translation'), the replica will be stopped.\nTraceback (most recent call last):\n"
    '  File "/usr/lib/python3.11/site-packages/ray/serve/_private/deployment_state.py", line 1555, in check_ready\n'
    "    ) = ray.get(self._ready_obj_ref)\n"
    "ray.exceptions.RayTaskError(RuntimeError): ray::ServeReplica:translation:Translator.initialize_and_get_metadata() (pid=493, "
    "ip=10.0.0.2, actor_id=6a4aaa270decb2481f5b22b401000000, repr=<ray.serve._private.replica.ServeReplica:translation:Translator>)\n"
    '  File "/usr/lib/python3.11/site-packages/ray/serve/_private/replica.py", line 1928, in initialize\n'
    "    raise RuntimeError(traceback.format_exc()) from None\n"
    "RuntimeError: Traceback (most recent call last):\n"
    '  File "/usr/lib/python3.11/site-packages/ray/serve/_private/replica.py", line 1867, in initialize\n'
    '  File "/app/translate.py", line 33, in __init__\n    self.weights = read_weights(path)\n'
    '  File "/app/translate.py", line 25, in read_weights\n    return Path(path).read_bytes()\n'
    '  File "/usr/lib/python3.11/pathlib.py", line 1044, in open\n'
    "FileNotFoundError: [Errno 2] No such file or directory: '/models/en-de.bin'\n"
)
_GIVEN_UP = "ERROR 2026-11-21 10:43:04,482 controller 402 -- Failed to update the deployments ['Translator'].\n"
_UNHEALTHY = "".join(
    f"WARNING 2026-11-21 10:45:{second},344 controller 389 -- {signal.sample}\n"
    for second, signal in (
        (41, serve.NO_ANSWER),
        (46, serve.NO_ANSWER),
        (51, serve.NO_ANSWER),
        (51, serve.UNHEALTHY),
    )
)
_OLD = "WARNING 2026-11-21 10:45:51,344 controller 389 deployment_state.py:823 - Replica scores#Scorer#aBcDeF failed the health check 3 times in a row, marking it unhealthy.\n"
_W = "cd09fc46897e18918275a6d03cc3a6abc2becabe5e0fd27a533d35a7"
_KILLED_CALL = CALL_FAILED.sample.replace(
    '"cache"', '"SERVE_REPLICA::translation#Translator#g7278tvw"'
)

_CUT = "".join(
    f"(ServeController pid=389) {line}\n"
    for line in (
        "    raise RuntimeError(traceback.format_exc()) from None",
        *_FAILED.splitlines()[7:9],
        "    await self.check_health()",
        '  File "/usr/lib/python3.11/site-packages/ray/serve/_private/replica.py", line 1498, in _call_user_health_check',
        "    await self._call_func_or_gen(self._user_health_check)",
    )
)
_CAUSE = (
    '(ServeController pid=389)   File "/app/translate.py", line 51, in ping\n'
    "(ServeController pid=389)     raise ConnectionError('no answer from the database')\n"
    "(ServeController pid=389) ConnectionError: no answer from the database\n"
)

_QUOTING_STATUS = (
    "applications:\n  text:\n    status: {}\n    deployments:\n      Loader:\n        status: {}\n        message: |-\n"
    "          {} Error:\n          ray::ServeReplica:text:Loader.initialize_and_get_metadata() (pid=40568, ip=10.0.0.2)\n"
    '            File "/venv/lib/python3.11/concurrent/futures/_base.py", line 449, in result\n              return self.__get_result()\n'
    '            File "/app/llm.py", line 30, in __init__\n              self.model = load(path)\n          ValueError: no such model\n'
)

EXAMPLES: tuple[Example, ...] = (
    console(
        "the config names a deployment that the application does not have",
        "  status: DEPLOY_FAILED\n  "
        + serve.NOT_APPLIED[0].sample.replace(
            "app.deployments[name]", "app.deployments[name].options"
        )
        + "\n",
        says=("KeyError: 'text'", "the config names deployment 'text'"),
    ),
    console(
        "Serve cannot apply a config",
        f"{serve.NOT_APPLIED[1].sample}\n",
        says=("application 'translation'", "ValueError: x"),
    ),
    console(
        "the table of actors shows a replica that Serve ended",
        f"{_DEAD_REPLICA.sample}\n            owner_ip_address: 10.0.0.2\n",
        says=("ended a replica of Generator with ray.kill",),
        severity="warning",
    ),
    console(
        "the table of actors shows an actor that is alive, and one that its program killed",
        _DEAD_REPLICA.sample.replace("state: DEAD", "state: ALIVE").replace(
            "because it was killed by", "because of"
        )
        + "\n"
        + _DEAD_REPLICA.sample.replace("ServeReplica:chat:", "")
        + "\n",
    ),
    Example(
        "the constructor cannot open its model file, three times",
        {
            "logs/serve/controller_402.log": "".join(_FAILED.replace("{second}", s) for s in "024")
            + _GIVEN_UP,
            "driver.log": f"{serve.DEPLOY_FAILED.sample}\n",
            **QUIET_LOGS,
        },
        says=(
            "A replica of Translator",
            "in 3 attempts",
            "FileNotFoundError: [Errno 2]",
            "read_weights() (translate.py:25)",
            "Translator.func_or_class",
        ),
    ),
    console(
        "serve.run fails, and the console shows nothing of the replicas",
        'Traceback (most recent call last):\n  File "/app/s.py", line 20, in <module>\n    serve.run(app)\n'
        f"{serve.DEPLOY_FAILED.sample}\n",
        says=("could not deploy application 'translation': Translator did not become healthy",),
    ),
    console(
        "the controller cannot import the application",
        "".join(
            f"(ServeController pid=402) {line}\n"
            for line in (
                f"WARNING 2026-11-21 10:43:01,589 controller 402 -- {serve.BUILD_FAILED.sample}"
            ).splitlines()
        ),
        says=("could not build application 'translation': ModuleNotFoundError",),
    ),
    console(
        "serve status of an application that could not be built",
        "applications:\n  translation:\n    status: DEPLOY_FAILED\n    message: |\n"
        "      Deploying app 'translation' failed with exception:\n      Traceback (most recent call last):\n"
        "        File \"/app/s.py\", line 3, in <module>\n      ModuleNotFoundError: No module named 'text'\n"
        "    deployments: {}\n",
        says=("could not build application 'translation': ModuleNotFoundError",),
    ),
    console(
        "the second deployment works, and a task quotes the words",
        f"WARNING 2026-11-21 10:43:01,589 controller 402 -- {serve.BUILD_FAILED.sample}\n{serve.READY.sample}\n"
        "(notes pid=12) Deploying app 'translation' failed with exception: see the ticket\n",
    ),
    Example(
        "a replica that ray.kill ended, according to the controller's core log",
        {
            **QUIET_LOGS,
            "logs/serve/controller_389.log": f"WARNING 2026-11-21 10:45:51,344 controller 389 -- {serve.CRASHED.sample}\n",
            f"logs/python-core-worker-{_W}_389.log": f"[2026-11-21 10:45:51,300 W 389 402] task_manager.cc:1678: {_KILLED_CALL}\n",
        },
        says=("A replica of Translator (application 'translation') was ended by ray.kill",),
    ),
    Example(
        "the records of Ray 2.9",
        {
            "logs/serve/controller_402.log": _FAILED.replace("{second}", "0")
            .replace("controller 402 --", "controller 402 deployment_state.py:658 -")
            .replace(
                "Replica(id='g7278tv0', deployment='Translator', app='translation')",
                "replica 'translation#Translator#TvRICR'",
            ),
            **QUIET_LOGS,
        },
        says=(
            "A replica of Translator (application 'translation') could not be started: FileNotFoundError",
        ),
    ),
    Example(
        "no answer to health checks, and Ray reports that the replica was killed",
        {
            "logs/serve/controller_389.log": _UNHEALTHY,
            "driver.log": "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
            "\tclass_name: ServeReplica:translation:Translator\n\tactor_id: eceb734f0950ba43fff0d0e701000000\n\tpid: 484\n"
            "\tname: SERVE_REPLICA::translation#Translator#g7278tvw\n\tnamespace: serve\n\tip: 10.0.0.2\n"
            "The actor is dead because it was killed by `ray.kill`.\n",
            **QUIET_LOGS,
        },
        says=(
            "did not answer 3 health checks in a row, 5 s each",
            "health_check_timeout_s=60",
            "asyncio.to_thread",
        ),
        is_typical=True,
    ),
    console(
        "an older Serve version: only the driver's output is available",
        f"(ServeController pid=389) {_OLD}",
        says=("Scorer",),
    ),
    Example(
        "a replica's process is killed: another rule reports the cause",
        {
            "logs/serve/controller_389.log": f"WARNING 2026-11-21 07:34:52,344 controller 389 -- {serve.CRASHED.sample}\n",
            f"logs/worker-{_W}-01000000-379.out": ":actor_name:ServeReplica:translation:Translator\n",
            "logs/gcs_server.out": f"[2026-11-21 07:34:50,741 W 8 8] (gcs_server) gcs_worker_manager.cc:70: {WORKER_EXIT.sample}\n",
            "logs/raylet.out": "",
        },
        roots=("worker-vanished",),
        consequences=("serve-replica-failed",),
    ),
    Example(
        "a replica's runtime environment cannot be created: another rule reports the cause",
        {
            "logs/serve/controller_402.log": f"ERROR 2026-11-21 07:43:31,344 controller 402 -- {serve.NOT_ALLOCATED.sample}\n",
            "logs/runtime_env_agent.log": "2026-11-21 07:43:30,100\tERROR runtime_env_agent.py:569 -- Failed to create runtime env "
            '{"pip": ["acme"]}.\nray._private.runtime_env.utils.SubprocessCalledProcessError: Run cmd[9] failed with the following '
            "details.\nCommand '['/tmp/ray/bin/python', '-m', 'pip', 'install', 'acme']' returned non-zero exit status 1.\nLast 50 lines "
            "of stdout:\n    ERROR: Could not find a version that satisfies the requirement acme (from versions: none)\n    ERROR: No "
            "matching distribution found for acme\n",
            **QUIET_LOGS,
        },
        roots=("runtime-env-failed",),
        consequences=("serve-replica-failed",),
        says=("RuntimeEnvSetupError",),
    ),
    console(
        "a console that begins inside the controller's record: the first health check of a starting replica failed",
        _CUT,
        says=("its health check raised an exception", "controller_*.log"),
    ),
    console(
        "a console with the rest of two such records and their exception",
        _CUT + _CAUSE + _CUT + _CAUSE,
        says=("ConnectionError: no answer from the database", "ping() (translate.py:51)"),
    ),
    console(
        "the output of serve status",
        "applications:\n  translation:\n    status: DEPLOY_FAILED\n    message: 'Failed to update the deployments "
        "[''Translator''].'\n    deployments:\n      Translator:\n        status: DEPLOY_FAILED\n        message: 'The deployment "
        "failed to start 3 times in a row. This may be due to a problem with its constructor or initial health check failing. See "
        "controller logs for details. Error:\n\n          ray::ServeReplica:translation:Translator.initialize_and_get_metadata()'\n",
        roots=("serve-replica-failed",),
    ),
    console(
        "an exception that quotes the status",
        "Traceback (most recent call last):\nRuntimeError: Deployment Translator is UNHEALTHY: A replica's health "
        "check failed. This deployment will be UNHEALTHY until the replica recovers or a new deploy happens.\n",
        says=("A replica of Translator failed health checks",),
        severity="warning",
    ),
    console(
        "a pasted log of the controller, of which only the last line was taken",
        f"WARNING 2026-11-21 10:45:51,345 controller 389 -- {serve.STOPPED.sample}\n",
        says=("Translator (application 'translation') failed health checks",),
    ),
    console(
        "Ray 2.9 replaces a replica, and a console shows the controller's second line",
        "(ServeController pid=389) WARNING 2026-11-21 10:45:51,345 controller 389 deployment_state.py:2120 - Replica "
        "scores#Scorer#aBcDeF of deployment Scorer in application 'scores' failed health check, stopping it.\n",
        says=("A replica of Scorer (application 'scores') failed health checks",),
    ),
    console(
        "a start that failed once, and an application that became ready",
        f"  {serve.STATUS[1].sample}\n2026-11-21 10:43:09,591 INFO client.py:492 -- {serve.READY.sample}\n",
    ),
    console(
        "two late answers to health checks before a good one, and a program that quotes a status",
        "".join(f"(ServeController pid=389) {line}\n" for line in _UNHEALTHY.splitlines()[:2])
        + "(ServeController pid=389) INFO 2026-11-21 10:45:50,344 controller 389 -- Replica(id='g7278tvw', deployment='Translator', "
        "app='translation') passed the health check after 2 consecutive failures.\n"
        "alert rule: fires if serve says 'The deployment failed to start 3 times in a row. This may be due to a problem with …'\n"
        f"(report pid=12) {serve.STATUS[0].sample}\n",
    ),
    Example(
        "a task prints a controller's record, and a healthy replica stops",
        {
            "driver.log": f"(report pid=12) {_UNHEALTHY.splitlines()[0]}\n",
            "logs/serve/controller_402.log": "INFO 2026-11-21 10:43:00,591 controller 402 -- Stopping Replica(id='g7278tvw', "
            "deployment='Translator', app='translation') (currently ReplicaState.RUNNING).\n",
            **QUIET_LOGS,
        },
    ),
    console(
        "the status of a deployment in old words",
        f"{serve.STATUS[1].sample}\n",
        says=("Translator",),
    ),
    console(
        "a deployment failed, in the words of Ray 1",
        f"{serve.STATUS[2].sample}\n",
        says=("translator",),
    ),
    console(
        "the program waits for a deployment that becomes unhealthy",
        'Traceback (most recent call last):\n  File "/app/deploy.py", line 5, in <module>\n    serve.run(app)\n'
        f"{serve.UNHEALTHY_SAID.sample}\n",
        says=("Deployment Translator became unhealthy", "3 times in a row"),
    ),
    console(
        "a program quotes the state of a deployment, and continues",
        f"yesterday: {serve.UNHEALTHY_SAID.sample}\n{serve.UNHEALTHY_SAID.sample}\nhealthy again\n",
    ),
    console(
        "a paste begins below the controller's record, and ends within the exception of the constructor",
        '  File "/venv/ray/serve/_private/deployment_state.py", line 771, in check_ready\n    ) = ray.get(self._ready_obj_ref)\n'
        "ray.exceptions.RayTaskError(RuntimeError): ray::ServeReplica:llms:LLMServer:small.initialize_and_get_metadata() (pid=316, "
        "ip=10.0.0.2, repr=<ray.serve._private.replica.ServeReplica:llms:LLMServer:small object at 0x71bf>)\n"
        '  File "/usr/lib/python3.11/concurrent/futures/_base.py", line 456, in result\n    return self.__get_result()\n',
        says=(
            "A replica of LLMServer:small (application 'llms') could not be started: RuntimeError",
        ),
    ),
    console(
        "a pasted log of the controller, with the whole exception",
        "INFO 2026-11-21 15:17:06,167 controller 19963 -- Adding 1 replica to Deployment(name='M', app='default').\n"
        "ERROR 2026-11-21 15:17:16,167 controller 19963 -- Exception in Replica(id='jghcsi4c', deployment='M', app='default'), the replica "
        "will be stopped.\nTraceback (most recent call last):\n"
        '  File "/venv/ray/serve/_private/deployment_state.py", line 694, in check_ready\n    ) = ray.get(self._ready_obj_ref)\n'
        "ray.exceptions.RayTaskError(RuntimeError): ray::ServeReplica:default:M.initialize_and_get_metadata() (pid=305, ip=10.0.0.2)\n"
        '  File "/app/m.py", line 3, in __init__\n    load()\nRuntimeError: no weights\n',
        roots=("serve-replica-failed",),
    ),
    console(
        "only the controller's verdict on an application",
        f"(ServeController pid=51) WARNING 2026-11-21 10:43:01,589 controller 51 -- {serve.APP_FAILED[1].sample}\n",
        says=("Translator did not become healthy",),
        severity="warning",
    ),
    console(
        "only the verdict in the output of serve status",
        f"applications:\n  default:\n    status: DEPLOY_FAILED\n{serve.APP_STATUS.sample}\n",
        says=("Translator did not become healthy",),
        severity="warning",
    ),
    console(
        "the application is ready later",
        f"(ServeController pid=51) WARNING 2026-11-21 10:43:01,589 controller 51 -- {serve.APP_FAILED[1].sample}\n{serve.READY.sample}\n",
    ),
    *(
        console(
            f"the config names a deployment that the application does not have: {where}",
            text,
            says=(
                "sets options of deployment 'Tanslator'",
                "it has Translator and Router",
                "serve build",
            ),
        )
        for where, text in (
            (
                "the controller's traceback, cut",
                "(ServeController pid=812)     raise ValueError(\n"
                f"(ServeController pid=812) {serve.NO_DEPLOYMENT.sample}\n(ServeController pid=812) INFO 2026-11-21 00:22:01,635 controller 8",
            ),
            (
                "the status of the application",
                "applications:\n  text:\n    status: DEPLOY_FAILED\n    message: |-\n      Traceback (most recent call last):\n"
                '        File "/venv/ray/serve/_private/application_state.py", line 1257, in override_deployment_info\n'
                f"          raise ValueError(\n      {serve.NO_DEPLOYMENT.sample}\n    deployments: {{}}\n",
            ),
            (
                "the driver",
                'Traceback (most recent call last):\n  File "/app/run.py", line 3, in <module>\n    serve.run(app)\n'
                "RuntimeError: Deploying application text failed: Traceback (most recent call last):\n"
                '  File "/venv/ray/serve/_private/application_state.py", line 1257, in override_deployment_info\n'
                f"    raise ValueError(\n{serve.NO_DEPLOYMENT.sample}\n",
            ),
        )
    ),
    console(
        "the config is corrected, and a program of another kind uses the same words",
        f"(ServeController pid=812) {serve.NO_DEPLOYMENT.sample}\n(deploy pid=7) {serve.NO_DEPLOYMENT.sample}\n{serve.READY.sample}\n",
    ),
    *(
        console(
            f"a status quotes the exception of the constructor: {said}",
            _QUOTING_STATUS.format(status, status, said),
            says=("Loader", "ValueError: no such model", "__init__() (llm.py:30)"),
            severity="warning" if status == "UPDATING" else None,
        )
        for status, said in (
            (
                "DEPLOY_FAILED",
                "The deployment failed to start 3 times in a row. This may be due to a problem with its constructor or initial health "
                "check failing. See controller logs for details.",
            ),
            (
                "UPDATING",
                "A replica failed to start with exception. Retrying 19 more time(s).",
            ),
        )
    ),
)

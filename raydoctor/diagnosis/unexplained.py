"""Symptoms that no diagnosis explains: those of known signals, failures that Kubernetes records, and errors
that match no rule.

Three kinds of records are read without a rule: records of level E or C of Ray's own processes (ERROR and
CRITICAL of those written in Python), and tracebacks. In a console without Ray's logs, also lines of any
process that look like errors: their level, an exception, a crash, or a component that died or failed.
Records that a rule recognizes are left to that rule. Records that only repeat a diagnosed failure (a
dashboard that cannot reach the dead node) are dropped. The rest is grouped by template, worst first, so that
a report is useful even if no rule matches.

Templates are made by folding ids, numbers, addresses, quoted words and paths, not by a log miner: Ray's
messages are format strings with constant words, while Drain's clusters depend on the order of lines and join
short messages with different meanings (`benchmarks/README.md` has the comparison).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from raydoctor.capture.console.prefixes import HEADER, STAMP
from raydoctor.case import Case, evidence
from raydoctor.case.rule import Signal
from raydoctor.case.signals import TRACEBACK, TRACEBACKS
from raydoctor.cluster.troubles import CONFLICT, failed_jobs, troubles
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import behind_preamble
from raydoctor.model.values import Event, Finding, Gap, Source, Unexplained
from raydoctor.read import ending

_TEXT = 300
_TEMPLATE = 160

_TWINS = (
    # C++ writes E and C to both files of a pair, so only the one without other records is read.
    ("raylet-err", "raylet-out"),
    ("gcs-err", "gcs-out"),
    ("worker-err", "core-worker"),
    ("io-worker", "core-io"),
)
_PYTHON = (
    *("dashboard", "dashboard-agent", "runtime-env-agent", "monitor", "log-monitor"),
    *("client-server", "serve", "data", "train"),
)
_OBSERVERS = frozenset(
    (*_PYTHON, "core-driver", "core-worker", "core-io", "worker-err", "io-worker")
)
"""Roles that report errors when a node or the GCS is gone."""

_KINDS = {
    "log.critical": 0, "log.traceback": 2, "log.echoed_traceback": 2, "log.error": 3, "log.failure": 4
}  # fmt: skip
"""Kinds of records without a rule, worst first; 1 is a rule's symptom that no finding explains."""
_SYMPTOM = 1
_MILD = ("D", "I", "W")
"""Levels of records in which a failure may still heal."""
_NEAR_S = 2.0
"""Seconds around a record of a diagnosis in which records of the same daemon count as its part."""
_NOT_ERRORS = (
    ":info_message:",  # advice for the driver, of level E so that it is streamed
    "PC: @",  # frames of a crash, each a separate record after `*** SIGSEGV received`
    "    @ ",
    "*** SIGTERM received",  # a driver that another process ended
    "Actor with class name: '",  # a warning about restarts with large arguments: Data and Train cause it
    # A second, healthy cluster on the machine (2.60).
    "An exception occurred while starting the metrics server.",
    # An agent's port is in use: only jobs submitted to this node fail, and `job-pending` reports these.
    "Agent port #",
    "Failed to start HTTP server with exception: [Errno 98]",
    # Without an effect on programs.
    "Failed to establish connection to the event+metrics exporter agent.",
    "Failed to establish connection to the metrics exporter agent.",
    "Report event failed: ",  # an agent (2.50) that gets the dashboard's address too late
)

_ANNOUNCEMENTS = pattern(
    r"An exception was raised from a task of operator "
    r"|Exception occurred in (?:user code|Ray Data or Ray Core)"
    r"|Full stack trace:|.{1,300}: actors died during initialization|Trial task failed for trial "
    r"|Trial status: |Trials did not complete: |Error in training function:"
    r"|Failed to query Ray Train Controller actor state|.{0,200}\bERR99999 UNKNOWN applic"
)
"""Lines of Ray's libraries that only announce, count or follow an exception, which is a record of its own."""


def signals(roles: Iterable[str]) -> list[Signal]:
    """The signals for a capture that has files of these roles."""
    present = frozenset(roles)
    cpp = tuple(err if err in present else out for err, out in _TWINS)
    return [*_cpp((*cpp, "core-driver")), *_python(), *_CONSOLE, TRACEBACK]


def _cpp(roles: tuple[str, ...]) -> Iterator[Signal]:
    for letter, kind in (("E", "log.error"), ("C", "log.critical")):
        yield Signal(
            kind,
            f" {letter} ",
            rf"^\[{STAMP} {letter} \d+ \d+\] (?:\([\w.-]+\) )?(?P<place>[\w./-]+):\d+: ?"
            r"(?P<begin>[A-Za-z' ]{0,24})",
            roles,
            f"[2026-11-21 07:34:50,739 {letter} 283 293] (raylet) store.cc:366: The end is near",
            extent="record",
            symptom=True,
            fold=("place", "begin"),
            with_header=True,
        )
        # RAY_BACKEND_LOG_JSON=1 (Ray 2.24+): one object a record.
        yield Signal(
            kind,
            f'"levelname":"{letter}"',
            rf'^\{{.*"levelname":"{letter}"',
            roles,
            f'{{"asctime":"2026-11-21 07:34:50,739","levelname":"{letter}","message":"The end is near"}}',
            symptom=True,
            with_header=True,
        )


def _python() -> Iterator[Signal]:
    for level, kind in (("ERROR", "log.error"), ("CRITICAL", "log.critical")):
        yield Signal(
            kind,
            f"{level} ",
            rf"^{STAMP}\s{level} (?P<place>[\w./-]+):\d+ -- (?P<begin>[A-Za-z' ]{{0,24}})",
            _PYTHON,
            f"2026-11-21 07:35:03,092\t{level} worker.py:2622 -- The end is near",
            extent="record",
            symptom=True,
            fold=("place", "begin"),
            with_header=True,
        )
        yield Signal(  # Serve's own format
            kind,
            f"{level} ",
            rf"^{level} {STAMP} (?P<place>\S+) (?:\S+ )?(?P<begin>[A-Za-z' ]{{0,24}})",
            ("serve",),
            f"{level} 2026-11-21 07:35:03,092 controller 812 -- The end is near",
            extent="record",
            symptom=True,
            fold=("place",),
            with_header=True,
        )


_PROCESS = r"\((?:[^()\n]|\((?:[^()\n]|\([^()\n]{0,200}\)){0,200}\)){1,300}\) "
"""The prefix of a process: `(MapWorker(ReadRange->MapBatches(f)) pid=12, ip=10.0.0.2) `."""
_REWRITTEN = rf"{HEADER}[^{HEADER}]*{HEADER}"
_BEFORE = rf"(?:{_PROCESS})?(?:{_REWRITTEN})?"
_AROUND = r"[ \t]{0,8}[^\w\s(]{0,4} ?"
"""Indentation, quotation marks, backticks and brackets around an error."""
_COMPONENT = (
    r"\b(?i:workers?|actors?|nodes?|raylet|process|driver|jobs?|replicas?|engine|agent|gcs|dashboard|tasks?"
    r"|trials?|ranks?|supervisor|autoscaler|object store|plasma)\b"
)


def _console(  # noqa: PLR0913, PLR0917 - one argument per part of a signal
    kind: str,
    literal: str,
    form: str,
    sample: str,
    with_header: bool = False,
    role: str = "console",
) -> Signal:
    return Signal(
        kind,
        literal,
        rf"{form}(?P<begin>[A-Za-z' ]{{0,24}})",
        (role,),
        sample,
        symptom=True,
        fold=("begin",),
        with_header=with_header,
    )


def _of_level(word: str, letter: str, kind: str) -> Iterator[Signal]:
    """Lines of a level, with a header that the console's rewriting keeps or does not recognize."""
    yield _console(
        kind,
        f"{HEADER}{letter}|",
        rf"{HEADER}{letter}\|[^{HEADER}]*{HEADER}",
        f"{HEADER}{letter}|||{HEADER}step failed",
        with_header=True,
    )
    yield _console(
        kind,
        word,
        rf"^{_BEFORE}(?:{_AROUND}|(?=.{{0,60}}\d\d:\d\d).{{0,120}}?[\s\[(|<]){word}\b\W{{0,3}}",
        f"2026-11-21 07:35:03 | node-1 | {word} | step failed",
        with_header=True,
    )
    yield _console(
        kind,
        f" {letter} ",
        rf"^(?=[({HEADER}]){_BEFORE}\[{STAMP} {letter} \d+ \d+\] "
        r"(?:\([\w.-]+\) )?(?P<place>[\w./-]+):\d+: ?",
        f"(train pid=12) [2026-11-21 07:34:50,739 {letter} 283 293] store.cc:366: The end is near",
        with_header=True,
        role="console-prefixed",
    )


_LINES: tuple[tuple[str, str, str, str], ...] = (
    *(
        (
            "log.error",
            f"{name}: ",
            rf"^{_AROUND}(?:[A-Za-z_][\w.]{{0,100}})?{name}: ",
            f"Value{name}: no rows",
        )
        for name in ("Error", "Exception")
    ),
    (
        "log.critical",
        "FATAL",
        rf"^(?:{_AROUND}|(?=.{{0,60}}\d\d:\d\d).{{0,120}}?[\s\[(|<])FATAL\b\W{{0,3}}",
        "FATAL: no disk",
    ),
    (
        "log.critical",
        "Fatal Python error: ",
        r"^\s{0,8}Fatal Python error: ",
        "Fatal Python error: Aborted",
    ),
    (
        "log.critical",
        "*** SIG",
        r"^\s{0,8}\*\*\* SIG",
        "*** SIGSEGV received at time=1795237984 on cpu 1 ***",
    ),
    (
        "log.critical",
        "Segmentation fault",
        r"^(?:.{0,200}\W)?Segmentation fault",
        "train.sh: line 3: 812 Segmentation fault",
    ),
    ("log.critical", "core dumped", r"\bcore dumped\b", "Aborted (core dumped)"),
    (
        "log.critical",
        "Assertion `",
        r"\bAssertion `.{1,400}' failed\b",
        "a.cpp:43: f(int): Assertion `n > 0' failed.",
    ),
    (
        "log.critical",
        "Aborted",
        r"^\s{0,8}(?:[^:]{1,100}: line \d+: +\d+ )?Aborted(?:$|[ !.])",
        "Aborted!",
    ),
    (
        "log.critical",
        "Killed",
        r"^\s{0,8}(?:[^:]{1,100}: line \d+: +\d+ )?Killed(?:$|[ !.])",
        "train.sh: line 3: 812 Killed",
    ),
    (
        "log.critical",
        "exit code 137",
        r"^\s{0,8}command terminated with exit code 137\b",
        "command terminated with exit code 137",
    ),
    (
        "log.error",
        "Trial status: ",
        r"^\s{0,8}Trial status: (?:\d{1,7} [A-Z]{5,12} \| ){0,6}\d{1,7} ERROR\b",
        "Trial status: 3 RUNNING | 1 ERROR | 2 TERMINATED",
    ),
    ("log.critical", "OOMKilled", r"\bOOMKilled\b", "reason: OOMKilled"),
    (
        "log.critical",
        "terminate called ",
        r"^\s{0,8}terminate called (?:after throwing|without an active)",
        "terminate called without an active exception",
    ),
    ("log.critical", "Check failed: ", r"\bCheck failed: ", " Check failed: count > 0"),
    (
        "log.critical",
        "Termination is unexpected",
        r"^.{0,60}\bTermination is unexpected",
        "Raylet is terminated. Termination is unexpected.",
    ),
    ("log.error", "Error ", rf"^{_AROUND}Error (?=\w)", "Error executing job with overrides: []"),
    (
        "log.error",
        "Exception ",
        r"^\s{0,8}(?:Unhandled |Uncaught )?Exception (?:raised|in|occurred|while|during)\b",
        "Exception raised in creation task: no rows",
    ),
    (
        "log.error",
        "exception was raised",
        r"^.{0,100}\bexception was raised\b",
        "An exception was raised from a task of an operator.",
    ),
    (
        "log.error",
        "() (pid=",
        r"ray::\S.{0,300}?\(\) \(pid=\d+",
        "ray::Trainer.__init__() (pid=12, ip=10.0.0.2)",
    ),
    (
        "log.error",
        "StatusCode.",
        r"\bStatusCode\.(?!OK\b)[A-Z_]{3,40}\b",
        "grpc.StatusCode.NOT_FOUND",
    ),
    ("log.error", "SYSTEM_ERROR", r"\bSYSTEM_ERROR\b", "Worker exit type: SYSTEM_ERROR"),
    (
        "log.error",
        "fork: retry",
        r"\bfork: retry\b",
        "bash: fork: retry: Resource temporarily unavailable",
    ),
    (
        "log.error",
        "Max retries exceeded with url: ",
        r"ConnectionPool\(.{0,300}?\): Max retries exceeded with url: ",
        "HTTPConnectionPool(host='127.0.0.1', port=5000): Max retries exceeded with url: /get_reward",
    ),
    (
        "log.error",
        "' not found (required by ",
        r"\bversion `[\w.]{1,40}' not found \(required by ",
        "libc.so.6: version `GLIBC_2.34' not found (required by libstdc++.so.6)",
    ),
    (
        "log.failure",
        "Could not connect to ",
        r"^(?:[\w.]{1,60}:\d{1,5}: )?Could not connect to ",
        "raylet_client.cc:60: Could not connect to socket /tmp/ray/session_1/sockets/raylet.1",
    ),
    (
        "log.error",
        "timeout=",
        r"\bUpdate instance [A-Z_]{3,30}->[A-Z_]{3,30} .{0,400}\btimeout=\d{1,9}s\b",
        "Update instance ALLOCATED->TERMINATING (id=1, type=gpu): timeout=300s at status ALLOCATED",
    ),
    ("log.error", "t pickle ", r"\b(?:[Cc]an.t|[Cc]annot) pickle ", "cannot pickle a lock"),
    ("log.error", "died", rf"{_COMPONENT}.{{0,160}}?\bdied\b", "The actor died unexpectedly."),
    (
        "log.error",
        "is dead",
        rf"{_COMPONENT}.{{0,160}}?\bis dead\b",
        "The actor is dead because its owner ended.",
    ),
    (
        "log.error",
        "killed",
        rf"{_COMPONENT}.{{0,160}}?\bkilled\b|\b(?:was|were|got) killed\b",
        "A worker was killed.",
    ),
    (
        "log.error",
        "crashed",
        rf"{_COMPONENT}.{{0,160}}?\bcrashed\b",
        "Actor for a replica crashed.",
    ),
    (
        "log.failure",
        "failed",
        rf"{_COMPONENT}.{{0,160}}?\bfailed\b",
        "The raylet exited because an agent failed",
    ),
    ("log.failure", "Failed to ", rf"^{_AROUND}Failed to ", "Failed to start supervisor actor"),
    (
        "log.failure",
        "Current thread 0x",
        r"^\s{0,8}Current thread 0x[0-9a-f]{6,16}\b.{0,60}\(most recent call first\):",
        "Current thread 0x00007f3b1c0d8740 (most recent call first):",
    ),
    (
        "log.failure",
        "Exit Code: ",
        r"^\s{0,40}Exit Code: {1,20}[1-9]\d{0,2}\s*$",
        "      Exit Code:    134",
    ),
)
"""(kind, literal, form, sample) of lines that look like errors in any program's output."""
_CONSOLE = (
    *_of_level("ERROR", "E", "log.error"),
    *_of_level("CRITICAL", "C", "log.critical"),
    *(_console(*line) for line in _LINES),
    replace(TRACEBACK, kind="log.echoed_traceback", roles=("console-echo",)),
)
"""Lines of a console that look like errors; they are listed if no rule recognizes them."""


# ---------------------------------------------------------------- accounting


class _Accounted:
    """The events and entities that the diagnoses account for."""

    def __init__(self, case: Case, findings: Sequence[Finding]) -> None:
        links = [link.event for finding in findings for link in finding.chain]
        self.events = [*links, *(event for finding in findings for event in finding.covers)]
        failures = [f for f in findings if f.severity not in ("info", "warning")]
        self.has_failure = bool(failures)
        self._failed_in = {link.event.source.path for f in failures for link in f.chain}
        self.entities: set[Entity] = {e for finding in findings for e in finding.explains}
        # The message as well: JSON escapes the text that a traceback elsewhere contains unescaped.
        texts = (
            text
            for event in self.events
            for text in (event.text, "" if event.message in event.text else event.message)
        )
        self.quoted = "\n".join(dict.fromkeys(texts))
        self._ids = {id(event) for event in self.events} | _of_ends(case, self.entities)
        hurt = [
            link.event.at
            for finding in findings
            if any(entity.kind in ("node", "raylet", "gcs") for entity in finding.explains)
            for link in finding.chain
            if link.event.at is not None
        ]
        self.cluster_hurt_at = min(hurt, default=None)
        """The time at which the first node, raylet or GCS ended, according to the diagnoses."""

    def holds(self, event: Event) -> bool:
        """Whether a diagnosis shows the event, covers it, or explains an entity in it."""
        return id(event) in self._ids or bool(event.entities & self.entities)

    def has_failure_of(self, source: Source) -> bool:
        """Whether a diagnosis reports a failure of the session, or of this console without logs."""
        return self.has_failure and (not source.is_excerpt or source.path in self._failed_in)

    def is_near(self, event: Event) -> bool:
        """Whether a diagnosis has a record of the same daemon within a few seconds of the event."""
        return event.source.role in _PYTHON and any(
            other.source.path == event.source.path
            and (event.at is None or other.at is None or abs(other.at - event.at) <= _NEAR_S)
            for other in self.events
        )


def _of_ends(case: Case, explained: set[Entity]) -> set[int]:
    """Sightings of worker exits that a diagnosis explains or that were expected."""
    return {
        id(event)
        for exit_ in case.all_exits
        if exit_.expected or explained & set(exit_.entities)
        for event in exit_.events
    }


def account(
    case: Case,
    symptoms: Iterable[str],
    findings: Sequence[Finding],
    since: float | None = None,
    until: float | None = None,
) -> tuple[Unexplained, ...]:
    """Symptoms that no finding accounts for, grouped by template: the worst first, then the most frequent.

    `symptoms`: kinds of events that show a failure. `since` and `until` (epoch seconds) limit the time.
    """
    accounted = _Accounted(case, findings)
    groups: dict[tuple[int, str, str], list[Event]] = {}
    lines: set[tuple[str, int]] = set()
    found = [e for e in _unexplained(case, set(symptoms), accounted) if not case.torn_down(e)]
    found += [e for e, entities in troubles(case) if not accounted.entities.intersection(entities)]
    found += failed_jobs(case) if not findings else []
    found += _last_words(case) if not accounted.has_failure else []
    for event in sorted(found, key=_weight):
        if accounted.holds(event) or _is_outside(case.span(event), since, until):
            continue
        if event.kind in _KINDS and _place(event) in lines:
            continue  # a line with a worse word
        lines.add(_place(event))
        weight = _weight(event)
        # Messages of Kubernetes name their pods: those of one reason are one error.
        form = event["reason"] if event.kind.startswith("kube.") else template(says(event))
        groups.setdefault((weight, event.kind, form), []).append(event)
    ordered = sorted(
        groups.items(), key=lambda g: (g[0][0], -evidence.total(g[1]), _place(g[1][0]))
    )
    return tuple(_listed(kind, group) for (_, kind, _), group in ordered)


def gaps_of(symptoms: Iterable[Unexplained]) -> list[Gap]:
    """What is missing to explain failures that Kubernetes or Slurm records: they are never harmless."""
    kinds = {kind for each in symptoms for kind in (each.kind, each.kind.partition(".")[0])}
    return [gap for kind, gap in _RECORDED.items() if kind in kinds]


_LAST_WORDS = pattern(
    r"\b[A-Z]\w{1,80}(?:Error|Exception)(?:\(\w{1,80}\))?(?:\(|: )|^(?:FATAL|CRITICAL|ERROR)\b[: ]"
    r"|\b(?:Segmentation fault|core dumped)|^(?:Killed|Aborted)$"
)


def _last_words(case: Case) -> Iterator[Event]:
    """Outputs beside Ray's logs whose last line reports an error: the program may have ended by it."""
    for source, last in case.endings.items():
        is_error = bool(last.level) or _LAST_WORDS.search(last.text)
        if source.is_excerpt or last["ended_by"] or not is_error:
            continue
        if last.text.startswith("ray.exceptions."):
            continue  # left to the rules, or an error of another cluster
        others = (e for e in case.events if e.source is source and e is not last)
        if not any(e.line < last.line <= e.line + e.text.count("\n") for e in others):
            yield last


_RECORDED = {
    ending.KIND: Gap(
        "why the program ended",
        "the last line that it printed reports an error, which no rule explains",
        "Print the whole exception where the program catches it: traceback.print_exc()",
    ),
    "kube": Gap(
        "why pods of Ray fail",
        "Kubernetes records failures that no rule explains",
        "kubectl describe pod POD; kubectl logs POD --all-containers --previous",
    ),
    "slurm": Gap(
        "why the job of Slurm failed",
        "Slurm records a failure that no rule explains",
        "Add the job's output, slurm-JOBID.out",
    ),
}


def _weight(event: Event) -> int:
    return _KINDS.get(event.kind, _SYMPTOM)


def _is_outside(span: tuple[float, float], since: float | None, until: float | None) -> bool:
    first, last = span
    return (since is not None and last < since) or (until is not None and first > until)


def _listed(kind: str, found: list[Event]) -> Unexplained:
    first = found[0]
    text = says(first) if kind in _KINDS else _recorded(first)
    line = first.source.line(first.line)
    return Unexplained(kind, first.source.path, line, text[:_TEXT], evidence.total(found))


def _recorded(event: Event) -> str:
    """The text of a symptom; of Kubernetes, its message first: a terminal cuts the rest."""
    if not (event.kind.startswith("kube.") and event["reason"] and event["message"]):
        return event.text
    return f"{event['reason']}: {event['message']} ({event.text.partition(': reason=')[0]})"


def _place(event: Event) -> tuple[str, int]:
    return event.source.path, event.line


def _unexplained(case: Case, symptoms: set[str], accounted: _Accounted) -> Iterator[Event]:
    """Symptoms without the records that a signal recognized or that only echo the end of a component."""
    known, over = _Recognised(_deciding(case, symptoms, accounted)), _is_over(case)
    for event in case.of(*sorted(symptoms | set(_KINDS))):
        if CONFLICT in event.message:  # the writer tries again
            continue
        if event.kind not in _KINDS or not (
            event.message.startswith(_NOT_ERRORS)
            or (event.kind == "log.failure" and event.level in _MILD)
            or known.holds(event)
            or (accounted.has_failure_of(event.source) and _ANNOUNCEMENTS.match(says(event)))
            or _is_echo(event, over, accounted.cluster_hurt_at)
            or _is_quoted(event, accounted.quoted)
            or _is_raised_after(case, event, accounted)
            or _is_part(event, accounted)
            or accounted.is_near(event)
        ):
            yield event


def _is_over(case: Case) -> bool:
    """Whether the session ended normally: every job ended, or a node or the GCS was stopped."""
    jobs = case.ledger.jobs.values()
    return bool(case.ledger.stops) or (bool(jobs) and all(j.ended is not None for j in jobs))


def _is_echo(event: Event, over: bool, hurt: float | None) -> bool:
    """Whether an observer wrote the record after a part of the cluster was gone.

    A record without a time (a bare traceback in `dashboard.err`) may have been the last one.
    """
    if event.source.role not in _OBSERVERS:
        return False
    if event.at is None:
        return event.source.role in _PYTHON and (over or hurt is not None)
    return hurt is not None and event.at + event.slack >= hurt


def _is_quoted(event: Event, quoted: str) -> bool:
    """Whether the exception of a traceback, or a line of a console, is already part of a diagnosis."""
    if event.kind in TRACEBACKS:
        return (raised := _raised(event)) != "" and raised in quoted
    return event.source.is_excerpt and (said := says(event)) != "" and said in quoted


def _deciding(case: Case, symptoms: set[str], accounted: _Accounted) -> Iterator[Event]:
    """Events whose records are left to the rules that recognize them.

    In an excerpt, only events that a diagnosis uses or that are listed themselves: without the other logs, a
    rule may recognize an error but conclude nothing.
    """
    used = {id(event) for event in accounted.events}
    for event in case.events:
        if (
            not event.source.is_excerpt
            or event.kind in symptoms
            or event.kind in _KINDS
            or id(event) in used
        ):
            yield event


def _is_raised_after(case: Case, event: Event, accounted: _Accounted) -> bool:
    """Whether the exception ended the program and is chained to one that a diagnosis shows."""
    end = case.endings.get(event.source)
    if event.kind != TRACEBACK.kind or end is None or end["ended_by"] != "traceback":
        return False
    last = end.line + end.text.count("\n")
    return end.line <= event.line <= last and any(
        e.source is event.source and end.line <= e.line < event.line for e in accounted.events
    )


def _is_part(event: Event, accounted: _Accounted) -> bool:
    """Whether a console's record is part of a diagnosed traceback, or a cut one below a diagnosis."""
    if not event.source.is_excerpt:
        return False
    if not _LETTERS.search(event.message):  # marks below a program's line
        return True
    is_cut = (
        not _raised(event) if event.kind in TRACEBACKS else event.message.startswith(_OF_FRAMES)
    )
    return is_cut and any(
        e.source is event.source
        and (e.pid, e["who"]) == (event.pid, event["who"])
        and 0 < event.line - e.line - e.text.count("\n") <= _NEAR
        for e in accounted.events
    )


class _Recognised:
    """Records that a rule's signal matched, by position and, for twins, by time and words."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._lines: dict[str, list[tuple[int, int]]] = {}
        self._tracebacks: dict[str, list[tuple[int, int]]] = {}
        self._words: set[tuple[object, ...]] = set()
        for event in events:
            if event.kind in _KINDS:
                of_tracebacks = event.kind in TRACEBACKS
                self._hold(event, self._tracebacks if of_tracebacks else self._lines, 1)
                continue
            for seen in (event, *event.sightings):
                self._hold(seen, self._lines, 0)
                self._words.add(_words(seen))
        for held in (self._lines, self._tracebacks):
            held.update({path: _merged(lines) for path, lines in held.items()})

    def _hold(self, event: Event, lines: dict[str, list[tuple[int, int]]], first: int) -> None:
        begin, end = event.line + first, event.line + event.text.count("\n")
        if begin <= end:
            lines.setdefault(event.source.path, []).append((begin, end))

    def holds(self, event: Event) -> bool:
        """Whether a signal recognized the record, a part of it, or the record that it is part of."""
        first, last = event.line, event.line + event.text.count("\n")
        held = [self._lines]
        if event.kind not in TRACEBACKS:
            last = first
            held.append(self._tracebacks)
            # The exception that reading a console made of a sentence in this line is below it.
            source = event.source
            last += source.is_excerpt and source.line(first) == source.line(first + 1)
        overlapping = any(
            _overlaps(lines.get(event.source.path, []), first, last) for lines in held
        )
        return overlapping or (event.at is not None and _words(event) in self._words)


def _merged(lines: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges in order, with those joined that overlap."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(lines):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _overlaps(merged: list[tuple[int, int]], first: int, last: int) -> bool:
    """Whether one of the ranges has a line from `first` to `last`."""
    at = bisect_right(merged, last, key=itemgetter(0))
    return at > 0 and first <= merged[at - 1][1]


def _words(event: Event) -> tuple[object, ...]:
    return (event.source.node, event.at, event.message.partition("\n")[0][:100])


# ---------------------------------------------------------------- templates

_FRAME = pattern(
    r'^  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE
)
_OF_FRAMES = ('  File "', "    ")
_NEAR = 40
"""Lines from a diagnosed record to the rest of its traceback: other processes may print between them."""
_LETTERS = pattern(r"\w")
_RAISED = pattern(r"^(?![ \t])(?P<raised>[\w.]+(?:: .*)?)$", re.MULTILINE)


def says(event: Event) -> str:
    """The most informative line: a traceback's exception with its location, otherwise the first line."""
    if event.kind in TRACEBACKS:
        raised = _raised(event) or "Traceback without its exception"
        frames = list(_FRAME.finditer(event.message))
        at = frames[-1] if frames else None
        return f"{raised}  ({at['file']}:{at['line']} in {at['function']})" if at else raised
    return behind_preamble((event.message.strip() or event.text).partition("\n")[0])


def _raised(event: Event) -> str:
    """The exception below the last frame: lines of the program may follow it."""
    below = event.message
    for frame in _FRAME.finditer(event.message):
        below = event.message[frame.end() :]
    if first := _RAISED.search(below) if below is not event.message else None:
        return first["raised"]
    found = _RAISED.findall(event.message)
    return str(found[-1]) if len(found) > 1 or (found and "Traceback" not in found[-1]) else ""


_FOLDS: Mapping[str, str] = {
    "'…'": r"'[^'\n]{1,120}'",
    "<id>": r"\b(?:0x[0-9a-f]+|(?=[0-9a-f]*\d)[0-9a-f]{8,}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b",
    "<ip>": r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?",
    "<path>": r"(?<![\w.])(?:/[\w.@+-]+){2,}/?",
    "<n>": r"\d+(?:\.\d+)?",
}
_FOLD = pattern("|".join(f"(?P<f{n}>{p})" for n, p in enumerate(_FOLDS.values())))
_NAMES = tuple(_FOLDS)


def template(message: str) -> str:
    """A message with ids, addresses, paths and numbers folded, so that equal errors have equal templates."""
    return _FOLD.sub(lambda m: _NAMES[int((m.lastgroup or "f3")[1:])], message[: _TEMPLATE * 2])[
        :_TEMPLATE
    ]

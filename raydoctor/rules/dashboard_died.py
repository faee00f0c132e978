"""The dashboard, the head's HTTP server, is gone or does not answer, while the cluster works.

## What you see
`ray job submit` and `ray list …` fail (`Failed to connect to API server`), and the page at port 8265 does not load.
`ray status` and running jobs continue to work. `dashboard.log` contains `The dashboard on node … failed with the
following error`. At the start, `ray.init` or `ray start` prints `Failed to start the dashboard`. Under `ray start
--block`, which KubeRay uses for heads, the whole head ends if the dashboard is killed.

## Why
`dashboard.py` serves the page, the job API and the state API. Since Ray 2.49 at the latest, each module runs in a
separate process. The dashboard exits by itself in two cases:
- A module does not start within 30 s (`Module … failed to start. Timeout after 30.0 seconds.`), because the head has
  too little CPU. `RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT` raises this timeout.
- A package is missing, too new or broken: then the dashboard ends before its log begins, and only `dashboard.err`
  records why.

The dashboard is usually the largest of Ray's daemons on a head. The kernel's OOM killer therefore ends it first if no
worker is larger. Ray does not restart the dashboard.

## Confirm
- `pgrep -af dashboard/dashboard.py` on the head prints nothing, and `dashboard_JobHead.log` ends with `Parent process …
  died. Exiting...`.
- `dashboard.log` or `dashboard.err` ends with the error. If neither does, `sudo dmesg -T | grep -i 'killed process'`
  shows whether the kernel's OOM killer ended the dashboard.

## Fix
Give the head more free CPU and memory. Restart the head only when no job needs the cluster any more: this ends all jobs
and actors, and every worker node must join again. Until then, use `ray status`, `ray memory` and `raydoctor diagnose`,
which need no dashboard.

## Not this when
- the head was started with `--include-dashboard=false`, or Ray was installed without `ray[default]`: the dashboard then
  serves nothing.
- the GCS is gone (`gcs-died`), or the cluster was shut down.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, Signal, console, rule
from raydoctor.case.signals import (
    DRIVER,
    GCS,
    JOB_FINISHED,
    JOB_STARTED,
    RAYLET_SIGTERM,
    WORKER_EXIT,
)
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.text import clause
from raydoctor.model.values import Event, Finding, Gap, Link, Remedy, Subject
from raydoctor.rules.shared import jobs, kernel
from raydoctor.rules.shared.cluster import RAY_STOP
from raydoctor.rules.shared.connect import STARTED_LOCAL
from raydoctor.rules.shared.live import daemons as live
from raydoctor.rules.shared.live import examples as sample
from raydoctor.rules.shared.traceback import parse

_DASHBOARD = ("dashboard",)
_DOC = "https://docs.ray.io/en/latest/ray-observability/getting-started.html"
_NOT_REPORTED = "Report event failed: "
"""An agent, after several attempts to reach the dashboard (`dashboard/modules/event`, 2.9 to 2.60)."""
_MISSED = 0.5
"""Seconds by which an agent must outlive the dashboard's modules: if all are killed at once, none reports it."""
_OUTLIVED = 30.0
"""Seconds by which the GCS must outlive the dashboard: at a shutdown both end within seconds."""

SERVES = Signal(
    "dashboard.serves", "http server initialized at ", r"^http server initialized at (?P<address>\S+)", _DASHBOARD,
    "http server initialized at 127.0.0.1:8265",
)  # fmt: skip
"""`dashboard/head.py`, 2.9 to 2.60; without a front end it prints `http server disabled.`"""
FAILED = Signal(
    "dashboard.failed", "The dashboard on node ",
    r"^The dashboard on node (?P<host>\S+) failed with the following error:\n(?P<what>.*)", _DASHBOARD,
    "The dashboard on node head failed with the following error:\nTraceback (most recent call last):\nRuntimeError: Module "
    "MetricsHead failed to start. Timeout after 30.0 seconds.", extent="record",
)  # fmt: skip
"""`dashboard/dashboard.py`, 2.9 to 2.60."""
ORPHANED = Signal(
    "dashboard.orphaned", " died. Exiting...", r"^Parent process (?P<dashboard_pid>\d+) died\. Exiting\.\.\.", _DASHBOARD,
    "Parent process 13572 died. Exiting...",
)  # fmt: skip
"""Each module, within a second (`dashboard/subprocesses/module.py`, 2.49 to 2.60); whatever ended the dashboard."""
SIGTERM = Signal(
    "dashboard.sigterm", "Exiting with SIGTERM immediately...", r"^Exiting with SIGTERM immediately\.\.\.", _DASHBOARD,
    "Exiting with SIGTERM immediately...",
)  # fmt: skip

NOT_STARTED = Signal(
    "dashboard.not_started", "Failed to start the dashboard",
    r"^Failed to start the dashboard(?: ?, return code (?P<code>-?\d+))?\s*$", DRIVER,
    "Failed to start the dashboard , return code 1",
)  # fmt: skip
"""`start_api_server` in `_private/services.py`, 2.9 to 2.60; without a code the dashboard was not ready in time."""
LAST_LINES = Signal(
    "dashboard.last_lines", " (it contains the error message from the dashboard):",
    r"^The last \d+ lines of (?P<file>\S{1,300}) \(it contains the error message from the dashboard\):", DRIVER,
    "The last 20 lines of /tmp/ray/session_1/logs/dashboard.err (it contains the error message from the dashboard): ",
)  # fmt: skip
NO_LOG = Signal(
    "dashboard.no_log", "Couldn't read dashboard.log file.",
    r"^Couldn't read dashboard\.log file\. Error: [^\n]{0,80}No such file or directory", DRIVER,
    "Couldn't read dashboard.log file. Error: [Errno 2] No such file or directory: '/tmp/ray/session_1/logs/dashboard.log'.",
)  # fmt: skip
_MESSAGES = (
    "Error should be written to 'dashboard.log'",
    "Couldn't read dashboard.log file.",
    "Failed to read dashboard.err file",
    "The last ",
)
"""Starts of the records that Ray prints below it."""
_QUOTED_LINES = 20


@rule(
    tier="root",
    severity="warning",
    rank=93,
    explains=("dashboard",),
    caused_by=("daemon", "gcs"),
    looks_for=(SERVES, FAILED, ORPHANED, SIGTERM, NOT_STARTED, LAST_LINES, NO_LOG, STARTED_LOCAL, *JOB_STARTED, *JOB_FINISHED, WORKER_EXIT),
)  # fmt: skip
def dashboard_died(case: Case) -> Iterator[Finding]:
    """At most one finding: how the dashboard ended, from its logs or the process table."""
    found = _failed(case) or _not_started(case) or _gone(case) or _silent(case)
    if found is None:
        return
    yield Finding(
        f"{found.summary}, so `ray job submit`, `ray list` and the web UI {found.effect}",
        (*found.chain, *_echo(case, found)),
        explains=(Entity("dashboard", "head"),),
        caused_by=(Entity("gcs", "gcs"), Entity("daemon", "dashboard")),
        subjects=(Subject("dashboard", None, "dashboard", found.pid),),
        remedies=found.remedies,
        covers=(
            *case.of(FAILED.kind, NOT_STARTED.kind, LAST_LINES.kind, NO_LOG.kind),
            *_same_failure(case),
            *_of_start(case),
        ),
        gaps=found.gaps,
    )


class _DashboardEnd(NamedTuple):
    """How the dashboard ended, or why it does not answer."""

    summary: str
    chain: tuple[Link, ...]
    pid: int | None
    remedies: tuple[Remedy, ...]
    gaps: tuple[Gap, ...] = ()
    effect: str = "fail; the cluster itself works"


def _failed(case: Case) -> _DashboardEnd | None:
    """Its own error. Without its web page alone the dashboard continues (`FrontendNotFoundError`)."""
    errors = [
        e
        for e in case.of(FAILED.kind)
        if "FrontendNotFoundError" not in e["what"] and not case.torn_down(e)
    ]
    if not errors:
        return None
    raised = parse(errors[-1]["what"])
    why = str(raised) if raised else evidence.last_line(errors[-1]["what"])
    return _DashboardEnd(
        f"The dashboard failed: {clause(why)}",
        (Link(errors[-1], "the dashboard reports why it exits"),),
        errors[-1].pid,
        (_find_end(), *_restart("Free CPU on the head, or fix the package that failed. When no job needs the cluster any more, restart the head")),
    )  # fmt: skip


def _not_started(case: Case) -> _DashboardEnd | None:
    """The process that starts the head reports that its dashboard ended, or was not ready in time."""
    said = [e for e in case.of(NOT_STARTED.kind) if e.level]
    reports = [e for e in said if e["code"] or not _ray_started(case, e)]
    if not said:
        reports = [e for e in case.of(LAST_LINES.kind) if _quoted(case, e)]
    if not reports:
        return None
    last = reports[-1]
    quoted = _quoted(case, last)
    raised = parse(quoted.message) if quoted else None
    if raised:
        why = str(raised)
    elif last["code"]:
        why = f"it ended with {_exit_code(int(last['code']))}"
    else:
        why = "it was not ready in time"
    no_log = [e for e in case.of(NO_LOG.kind) if e.source is last.source]
    is_late = bool(no_log) and not (raised or last["code"])
    return _DashboardEnd(
        f"The dashboard did not start: {clause(why)}{' and had written no log' if is_late else ''}",
        (
            Link(last, "Ray could not start the dashboard"),
            *(Link(e, "the end of the dashboard's own log") for e in (quoted,) if e),
        ),
        None,
        (_RUN_WITHOUT,)
        if is_late
        else (_READ_ERROR, _find_end(), *_restart("Free CPU on the head, or fix the package that failed. When no job needs the cluster any more, restart the head")),
        effect="do not work",
    )  # fmt: skip


def _ray_started(case: Case, report: Event) -> bool:
    """Whether Ray went on: a dashboard that was only late may be ready by then.

    Not so in a console that ends before the program works, and in which Ray names no address of a dashboard.
    """
    is_short = evidence.is_console(case) and not evidence.later_output(case, report)
    return any(
        e.source is report.source
        and e.offset > report.offset
        and ("dashboard at" in e.message or not is_short)
        for e in case.of(STARTED_LOCAL.kind)
    )


def _quoted(case: Case, report: Event) -> Event | None:
    """The traceback in the quoted end of the dashboard's log."""
    below = [
        e
        for e in case.of(LAST_LINES.kind)
        if e.source is report.source and e.offset >= report.offset
    ]
    last = below[0].line if below else 0
    tracebacks = (e for e in case.of("log.traceback") if below and e.source is report.source)
    return next((e for e in tracebacks if last < e.line <= last + _QUOTED_LINES), None)


def _exit_code(code: int) -> str:
    if code < 0:
        return jobs.signal_of(code) or f"signal {-code}"
    return f"Windows status 0x{code:08X}" if code > 0xFFFF else f"exit code {code}"


_READ_ERROR = Remedy(
    "Read why the dashboard ended, and check the packages that it needs",
    (
        "tail -n 50 /tmp/ray/session_latest/logs/dashboard.err /tmp/ray/session_latest/logs/dashboard.log",
        "pip check; pip install -U 'ray[default]'   # the version that the cluster runs",
        "ray start --head --include-dashboard=false   # plus your other options. Or run without the dashboard",
        "ray.init(include_dashboard=False)   # if the program starts Ray",
    ),
    doc=_DOC,
)


_RUN_WITHOUT = Remedy(
    "Run without the dashboard, which the cluster does not need, or find out why its imports are so slow",
    (
        "ray.init(include_dashboard=False)   # if the program starts Ray",
        "ray start --head --include-dashboard=false   # plus your other options, if ray start starts it",
        'time python -c "import ray.dashboard.dashboard"   # on the head: starts of Ray at the same time delay each other',
        "pip check",
    ),
    doc=_DOC,
)
"""Of a dashboard that wrote nothing in time: its log and its error output are empty or missing."""


def _of_start(case: Case) -> Iterator[Event]:
    """Records and tracebacks with which the start of a head reports its dashboard."""
    for report in case.of(NOT_STARTED.kind):
        quoted = _quoted(case, report)
        for event in case.of("log.error", "log.traceback"):
            inside = quoted and quoted.line <= event.line <= quoted.line + quoted.message.count(
                "\n"
            )
            words = event.message.lstrip()
            if event.source is report.source and (
                inside or words.startswith(_MESSAGES) or words.endswith(" --")
            ):
                yield event


def _gone(case: Case) -> _DashboardEnd | None:
    """It ended without an error: its process does not exist now, or the GCS long outlived it."""
    missing = live.dashboard_gone(case)
    orphaned = [] if case.of(SIGTERM.kind) else case.of(ORPHANED.kind)
    outlived = _outlived(case, orphaned) if orphaned else None
    if missing is None and outlived is None:
        return None
    links = (
        [Link(orphaned[0], "a module of the dashboard reports that its parent died")]
        if orphaned
        else []
    )
    if outlived:
        still = "the GCS was still running long after"
        if outlived.source.role not in GCS:
            still = "the agent of the node was still running, and could not connect to it"
        links.append(Link(outlived, still))
    if missing:
        links.append(Link(missing.asked, "the dashboard does not answer at its address now"))
        links.append(
            Link(
                missing.left,
                f"{missing.left['kind']} (pid {missing.left.pid}) runs on the same machine, but no dashboard does",
            )
        )
    pid = int(orphaned[0]["dashboard_pid"]) if orphaned else None
    process = f" (pid {pid})" if pid else ""
    where = f" at {missing.asked['address']}" if missing and missing.asked["address"] else ""
    how = (
        "SIGTERM stopped it"
        if case.of(SIGTERM.kind)
        else "it was killed, or ended without an error"
    )
    return _DashboardEnd(
        f"The dashboard{process}{where} is gone ({how})",
        tuple(links),
        pid,
        (_find_end(), *_restart("When no job needs the cluster any more, restart the head")),
        kernel.gaps(case, "the head", _ONLY_KERNEL_LOG, kernel.gcs_logs(case)),
    )


def _outlived(case: Case, orphaned: list[Event]) -> Event | None:
    """A record of the GCS from long after the dashboard's end, or one of an agent that misses it.

    A short record of an agent counts only if no raylet or GCS was asked to stop.
    """
    last = orphaned[-1].at or 0
    after = (orphaned[0].at or 0) + _OUTLIVED
    found = [e for e in case.events if e.source.role in GCS and (e.at or 0) > after]
    if not found and case.stopped_at() == float("inf"):
        found = [
            e
            for e in case.of("log.error")
            if e.message.startswith(_NOT_REPORTED) and (e.at or 0) > last + _MISSED
        ]
    return next(iter(found), None)


def _silent(case: Case) -> _DashboardEnd | None:
    """Its process exists and does not answer, although it once served."""
    asked = live.is_silent(case, "dashboard")
    running = live.daemons(case, "dashboard")
    stopped = live.stopped(case, "dashboard")
    if asked is None or not running or live.is_silent(case, "gcs"):
        return None
    if not stopped and (asked["outcome"] == "error" or not case.of(SERVES.kind)):
        return None  # it answered that its GCS is slow, or it serves nothing
    process = running[0]
    pid, where = process.pid, f" at {asked['address']}" if asked["address"] else ""
    chain = (
        Link(asked, f"a probe of the dashboard failed: {asked['outcome']}"),
        Link(process, f"the dashboard's process exists, in state {process['state']}"),
    )
    if stopped:
        summary = f"The dashboard{where} (pid {pid}) has been stopped by a signal (SIGSTOP)"
        return _DashboardEnd(summary, chain, pid, (_resume(pid),))
    remedies = (
        _inspect(pid),
        *_restart(
            "If the dashboard stays hung and no job needs the cluster any more, restart the head"
        ),
    )
    return _DashboardEnd(
        f"The dashboard{where} (pid {pid}) runs but does not answer", chain, pid, remedies
    )


def _echo(case: Case, found: _DashboardEnd) -> Iterator[Link]:
    """The failed probe, unless the finding already uses it."""
    asked = live.is_silent(case, "dashboard")
    if asked is not None and all(link.event is not asked for link in found.chain):
        yield Link(asked, "the dashboard does not answer at its address now")


def _same_failure(case: Case) -> Iterator[Event]:
    """Tracebacks of the same failure in `dashboard.err` and `dashboard.log`."""
    for event in case.of(FAILED.kind):
        for other in case.of("log.traceback", "log.error"):
            if other.source.role == "dashboard" and evidence.last_line(
                other.text
            ) == evidence.last_line(event["what"]):
                yield other


_ONLY_KERNEL_LOG = "only this log shows whether the kernel's OOM killer ended the dashboard"


def _resume(pid: int | None) -> Remedy:
    steps = (paste.shell("kill -CONT {pid:pid}   # on the head", pid=pid or ""),)
    return Remedy("Resume the dashboard, once you know what stopped it", steps, doc=_DOC)


def _inspect(pid: int | None) -> Remedy:
    steps = (
        paste.shell("py-spy dump --pid {pid:pid}   # on the head", pid=pid or ""),
        paste.shell("top -p {pid:pid}", pid=pid or ""),
        "tail -n 50 /tmp/ray/session_latest/logs/dashboard*.log   # on the head",
    )
    return Remedy("Find out what the dashboard is doing", steps, doc=_DOC)


def _find_end() -> Remedy:
    return Remedy(
        "Find out why the dashboard ended",
        (
            "tail -n 50 /tmp/ray/session_latest/logs/dashboard.log /tmp/ray/session_latest/logs/dashboard.err   # on the head. After a restart of Ray, read the old session instead of session_latest",
            "sudo dmesg -T | grep -i 'killed process'   # on the head",
        ),
        doc=_DOC,
    )


def _restart(when: str) -> tuple[Remedy, ...]:
    """First what is safe: a restart ends the whole cluster, which works."""
    return (
        Remedy(
            "Until the dashboard is back, use commands that work without it",
            ("ray status; ray memory; raydoctor diagnose",),
        ),
        Remedy(
            f"{when}: this ends all jobs and actors, and every worker node must join again",
            (
                RAY_STOP,
                "ray start --head   # plus your other options. If other nodes run the tasks, add --num-cpus=0: then no task takes CPU or memory from Ray itself",
            ),
            risk="destructive",
            doc=_DOC,
        ),
    )


# ------------------------------------------------------------------ examples


def _log(second: int, level: str, text: str) -> str:
    return f"2026-11-21 13:54:{second:02d},952\t{level} module.py:83 -- {text}\n"


_UP = _log(1, "INFO", SERVES.sample)
_TRACEBACK = (
    "The dashboard on node head failed with the following error:\nTraceback (most recent call last):\n"
    '  File "/home/user/venv/lib/python3.11/site-packages/ray/dashboard/dashboard.py", line 315, in <module>\n'
    "    loop.run_until_complete(dashboard.run())\n"
    '  File "/home/user/venv/lib/python3.11/site-packages/ray/dashboard/subprocesses/handle.py", line 186, in wait_for_module_ready\n'
    "    raise RuntimeError(\nRuntimeError: Module MetricsHead failed to start. Timeout after 30.0 seconds.\n"
)  # fmt: skip
_ERROR = "2026-11-21 13:54:03,952\tERROR services.py:{} -- {}\n"
_START_FAILED = _ERROR.format(1431, NOT_STARTED.sample) + _ERROR.format(
    1456, "Error should be written to 'dashboard.log' or 'dashboard.err'. We are printing the last 20 lines for you. See 'DOCS' to find "
    "where the log file is.",
)  # fmt: skip
_LAST = (
    _ERROR.format(1500, f"\n{LAST_LINES.sample}") + 'Traceback (most recent call last):\n  File "/venv/lib/python3.11/site-packages/'
    'ray/dashboard/dashboard.py", line 20, in <module>\n    from ray.dashboard import head\nImportError: cygrpc\n'
)  # fmt: skip
_ORPHANS = {
    f"logs/dashboard_{module}.log": _log(8, "WARNING", ORPHANED.sample) for module in ("JobHead", "NodeHead")
}  # fmt: skip


def _gcs(time: str, text: str = JOB_STARTED[0].sample) -> str:
    return f"[2026-11-21 {time},000 I 13 13] (gcs_server) gcs_job_manager.cc:115: {text}\n"


def _live(outcome: str, *running: tuple[str, str]) -> dict[str, str]:
    """Tables of a live collection: running daemons with their states, and the probe of the dashboard."""
    rows = [sample.daemon(kind, pid, state) for pid, (kind, state) in enumerate(running, 700)]
    probe = {"name": "dashboard", "address": "127.0.0.1:8265", "outcome": outcome, "detail": ""}
    return sample.tables(1795269300.0, daemons=rows, probes=[probe])


_HEAD = {"logs/gcs_server.out": _gcs("13:54:02"), "logs/raylet.out": ""}

EXAMPLES: tuple[Example, ...] = (
    Example(
        "a module was not ready in time",
        {**_HEAD, "logs/dashboard.log": _log(1, "ERROR", _TRACEBACK)},
        says=("MetricsHead failed to start. Timeout after 30.0 seconds, so", "ray job submit"),
    ),
    Example(
        "the dashboard was killed: its modules report it, and the GCS kept running for minutes",
        {
            "logs/gcs_server.out": _gcs("13:58:02"),
            "logs/raylet.out": "",
            "logs/dashboard.log": _UP,
            **_ORPHANS,
        },
        says=("pid 13572",),
    ),
    Example(
        "the dashboard was killed, and the agent reports a second later that it cannot reach it",
        {
            **_HEAD,
            "logs/dashboard.log": _UP,
            **_ORPHANS,
            "logs/dashboard_agent.log": _log(10, "ERROR", f"{_NOT_REPORTED}['event 1']"),
        },
        says=("pid 13572",),
    ),
    Example(
        "a shutdown: the raylet got SIGTERM, and the agent outlives the dashboard for a moment",
        {
            "logs/gcs_server.out": _gcs("13:54:02"),
            "logs/raylet.out": f"[2026-11-21 13:54:07,000 I 14 14] (raylet) main.cc:410: {RAYLET_SIGTERM.sample}\n",
            "logs/dashboard.log": _UP,
            **_ORPHANS,
            "logs/dashboard_agent.log": _log(10, "ERROR", f"{_NOT_REPORTED}['event 1']"),
        },
        roots=("ray-stopped",),
    ),
    console(
        "the process that starts the head quotes the end of the dashboard's log",
        f"Local node IP: 10.0.0.2\n{_START_FAILED}{_LAST}",
        says=("did not start: ImportError: cygrpc", "pip check"),
    ),
    console(
        "the dashboard of a Windows machine, and the report is cut off",
        _START_FAILED.replace("code 1", "code 3221225477"),
        says=("0xC0000005",),
    ),
    console(
        "the dashboard was not ready in time",
        _START_FAILED.replace(", return code 1", "").partition("\n")[0] + "\n",
        says=("not ready in time",),
    ),
    console(
        "only the quoted end of the dashboard's log is in the paste",
        "The last 20 lines of C:\\ray\\session_1\\logs\\dashboard.log (it contains the error message from the dashboard): \n"
        'Traceback (most recent call last):\n  File "C:\\venv\\Lib\\site-packages\\ray\\dashboard\\dashboard.py", line 246, in <module>\n'
        "    redirect()\nOSError: [WinError 6] The handle is invalid\n",
        says=("did not start: OSError: [WinError 6]",),
    ),
    console(
        "Ray went on without a dashboard, and the console ends",
        _START_FAILED.replace(", return code 1", "")
        + "2026-11-21 13:54:36,552\tINFO worker.py:1951 -- Started a local Ray instance.\n",
        says=("it was not ready in time",),
    ),
    console(
        "the dashboard was late, and Ray went on with it",
        _START_FAILED.replace(", return code 1", "")
        + f"2026-11-21 13:54:36,552\tINFO worker.py:1951 -- "
        f"{STARTED_LOCAL.sample}\nepoch 1\n",
    ),
    console(
        "other programs have dashboards, and a note quotes the words",
        "Failed to start the dashboard server.\nFailed to start the dashboard , return code 1\nepoch 2\n",
    ),
    Example(
        "the dashboard ended together with the cluster",
        {**_HEAD, "logs/dashboard.log": _UP, **_ORPHANS},
    ),
    Example(
        "SIGTERM stopped the dashboard",
        {
            "logs/gcs_server.out": _gcs("13:58:02"),
            "logs/raylet.out": "",
            "logs/dashboard.log": _UP + _log(7, "WARNING", SIGTERM.sample),
            **_ORPHANS,
        },
    ),
    Example(
        "the dashboard is gone now: no answer, and no process",
        {
            **_HEAD,
            "logs/dashboard.log": _UP,
            **_live("refused", ("gcs_server", "S"), ("raylet", "S")),
        },
        says=("127.0.0.1:8265",),
    ),
    Example(
        "the dashboard is hung",
        {
            **_HEAD,
            "logs/dashboard.log": _UP,
            **_live("timeout", ("dashboard", "S"), ("gcs_server", "S")),
        },
        says=("pid 700", "does not answer"),
    ),
    Example(
        "SIGSTOP stopped the dashboard",
        {
            **_HEAD,
            "logs/dashboard.log": _UP,
            **_live("timeout", ("dashboard", "T"), ("gcs_server", "S")),
        },
        says=("kill -CONT 700",),
    ),
    Example(
        "the dashboard was started without a front end",
        {
            **_HEAD,
            "logs/dashboard.log": _log(1, "INFO", "http server disabled."),
            **_live("refused", ("dashboard", "S"), ("gcs_server", "S")),
        },
    ),
    Example(
        "the dashboard answers that its GCS is slow",
        {
            **_HEAD,
            "logs/dashboard.log": _UP,
            **_live("error", ("dashboard", "S"), ("gcs_server", "S")),
        },
    ),
    Example(
        "the dashboard answers",
        {
            **_HEAD,
            "logs/dashboard.log": _UP,
            **_live("ok", ("dashboard", "S"), ("gcs_server", "S"), ("raylet", "S")),
        },
    ),
    console(
        "a paste without the space at the end of Ray's line",
        "2026-11-21 07:44:06,259\tERROR services.py:1207 -- Failed to start the dashboard\n"
        "2026-11-21 07:44:06,260\tERROR services.py:1232 -- Error should be written to 'dashboard.log' or 'dashboard.err'.\n",
        says=("it was not ready in time",),
    ),
    console(
        "a program that reports its own dashboard",
        "Failed to start the dashboard of the shop\nFailed to start the dashboard\n",
    ),
)

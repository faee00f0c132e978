"""Ray's own processes on this machine, of all clusters and users, each with its session and node.

A daemon is found by its command line: a raylet names session, node and GCS; the GCS, the dashboard, the
monitors and the agents name the session or its log folder (measured with Ray 2.9.3, 2.40 and 2.60;
`_private/services.py` starts them). Missing values are joined: for an agent that renamed itself from its
parent or its open log, for a defunct raylet from its workers or its own log.

A process can choose its name and command line freely, but not what the kernel reports: its user and, if
readable, its program file. A process counts as a daemon of a session only if its user owns the session's
folder. Other processes are reported and ignored.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from raydoctor.capture import owners
from raydoctor.observe.collector.cluster import Daemon
from raydoctor.observe.processes import proc
from raydoctor.observe.processes.proc import Process

_SCRIPTS = {
    "/ray/dashboard/dashboard.py": "dashboard",
    "/ray/dashboard/agent.py": "agent",
    "/ray/_private/runtime_env/agent/main.py": "runtime_env_agent",
    "/ray/_private/log_monitor.py": "log_monitor",
    "/ray/autoscaler/_private/monitor.py": "monitor",
    "/ray/autoscaler/v2/monitor.py": "monitor",
}
BINARIES = ("raylet", "gcs_server")
_RENAMED = {"ray::DashboardAgent": "agent", "ray::RuntimeEnvAgent": "runtime_env_agent"}
"""setproctitle in `dashboard/agent.py` and `runtime_env/agent/main.py`, Ray 2.60; not in older versions."""
_CLIENT_SERVER = "ray.util.client.server"
_FIRST_WORDS = 12
"""A script is among the first words of an interpreter's command line; its own arguments follow."""
_LOG_HEAD = 4096
_COMMAND = 64 << 10
"""Bytes of a command line: a raylet's has 8,000, that of another user's process may have any number."""
_EMULATORS = ("qemu-", "rosetta")
"""Emulators of another architecture, which the kernel reports as the program."""


class FoundDaemon(NamedTuple):
    """A daemon with the options of its command line."""

    daemon: Daemon
    options: Mapping[str, str]
    """Names with `_` for `-`: raylet has `--session_dir`, the others have `--session-dir`."""
    is_vouched: bool = False
    """Whether its program was verified; impossible for a defunct process and those of other users."""

    @property
    def ip(self) -> str:
        """The node's address."""
        return self.options.get("node_ip_address", "")


class Claim(NamedTuple):
    """A process that looks like a daemon of a session but is not."""

    kind: str
    pid: int
    session_dir: str
    user: str
    why: str


class Survey(NamedTuple):
    """The daemons of this machine, and the processes that only look like one."""

    daemons: list[FoundDaemon]
    claims: list[Claim]


def find(processes: Mapping[int, Process] | None = None) -> list[FoundDaemon]:
    """Ray's own processes on this machine, of all clusters; the session is empty if unknown."""
    return survey(processes).daemons


def survey(processes: Mapping[int, Process] | None = None) -> Survey:
    """Ray's own processes, and those that only look like one."""
    processes = proc.table() if processes is None else processes
    named = [s for p in processes.values() if (s := _candidate(p)) is not None]
    real, claims = [], []
    for each in named:
        checked = _identified(each)
        if isinstance(checked, FoundDaemon):
            real.append(checked)
        else:
            claims.append(checked)
    by_pid = {s.daemon.pid: s for s in real}
    joined = _by_address([_joined(s, processes, by_pid) for s in real])
    nodes = _nodes_of_agents(joined, processes)
    found, refused = _of_their_sessions([_with_node(s, nodes) for s in joined])
    return Survey(found, [c for c in (*claims, *refused) if c.session_dir])


# ------------------------------------------------------------------ verification


def _identified(seen: FoundDaemon) -> FoundDaemon | Claim:
    """The daemon with its user, if it runs as one user and, as far as visible, runs Ray's program."""
    daemon = seen.daemon
    uid = proc.credentials(daemon.pid)
    if uid is None:
        return _claim(seen, None, "it runs as several users at once, like a set-uid program")
    running = None if daemon.state == "Z" else proc.program(daemon.pid)
    if running is not None and not _is_program(daemon.kind, running):
        return _claim(seen, uid, f"it runs {running or 'a set-uid program'}")
    return FoundDaemon(daemon._replace(uid=uid), seen.options, bool(running))


def _is_program(kind: str, path: str) -> bool:
    name = posixpath.basename(path)
    if kind in BINARIES:
        return name == kind or name.startswith(_EMULATORS)
    return name.startswith(("python", "pypy", *_EMULATORS))


def _of_their_sessions(seen: Sequence[FoundDaemon]) -> tuple[list[FoundDaemon], list[Claim]]:
    """The daemons of sessions that their user owns, and claims for the others.

    Root may run a session in any folder, if the program was verified. If the folder is not visible (another
    container's), the processes of trusted users decide.
    """
    sessions = {s.daemon.session_dir for s in seen} - {""}
    owner = {session: owners.of_folder(session) for session in sessions}
    ours = {s.daemon.session_dir for s in seen if s.daemon.uid in owners.trusted()}
    found, claims = [], []
    for each in seen:
        session, uid = each.daemon.session_dir, each.daemon.uid
        owned_by = owner.get(session)
        if owned_by is None:
            fits = session not in ours or uid in owners.trusted()
        else:
            fits = owned_by == uid or (uid == 0 and each.is_vouched)
        if fits:
            found.append(each)
        else:
            user = "another user" if owned_by in (None, -1) else f"user {owners.user(owned_by)}"
            claims.append(_claim(each, uid, f"the session belongs to {user}"))
    return found, claims


def _claim(seen: FoundDaemon, uid: int | None, why: str) -> Claim:
    daemon = seen.daemon
    user = "unknown" if uid is None else owners.user(uid)
    return Claim(daemon.kind, daemon.pid, daemon.session_dir, user, why)


# ------------------------------------------------------------------ one process


def _candidate(process: Process) -> FoundDaemon | None:
    """A process that looks like a daemon, by its name and command line."""
    name = process.name
    if name in BINARIES:
        argv = proc.command(process.pid, _COMMAND)
        return _daemon(process, name, argv)
    if name.startswith(("ray::DashboardA", "ray::RuntimeEnv")):
        kind = _RENAMED.get((proc.command(process.pid, _COMMAND) or ("",))[0])
        return _daemon(process, kind, ()) if kind else None
    if "py" in name.lower():
        argv = proc.command(process.pid, _COMMAND)
        kind = _kind_of_script(argv)
        return _daemon(process, kind, argv) if kind else None
    return None


def _kind_of_script(argv: Sequence[str]) -> str:
    words = argv[:_FIRST_WORDS]
    for word in words:
        if word == "-c":
            # A helper of `multiprocessing`, followed by its parent's words: the dashboard's fork server
            # (Python 3.14).
            break
        if word == _CLIENT_SERVER:
            # In the mode `specific-server` it is a client's driver, not a daemon.
            return "client_server" if "--mode=proxy" in argv else ""
        if word.endswith(".py"):
            for end, kind in _SCRIPTS.items():
                if word.endswith(end):
                    return kind
    return ""


def _daemon(process: Process, kind: str, argv: Sequence[str]) -> FoundDaemon:
    options = _options(argv)
    daemon = Daemon(
        kind,
        process.pid,
        process.started_at,
        process.state,
        _session_of_options(options),
        options.get("node_id", ""),
    )
    return FoundDaemon(daemon, options)


def _options(argv: Iterable[str]) -> dict[str, str]:
    found = {}
    for word in argv:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            found[name.replace("-", "_")] = value
    return found


def _session_of_options(options: Mapping[str, str]) -> str:
    if session := options.get("session_dir"):
        return session.rstrip("/")
    logs = options.get("log_dir") or options.get("logs_dir") or ""
    return session_of(f"{logs}/")


def session_of(path: str) -> str:
    """The session's folder in the path of a log, or empty: Ray names it `session_<date>_…`."""
    session, found, _ = path.partition("/logs/")
    return session if found and posixpath.basename(session).startswith("session_2") else ""


# ------------------------------------------------------------------ joins


def _joined(
    seen: FoundDaemon, processes: Mapping[int, Process], others: Mapping[int, FoundDaemon]
) -> FoundDaemon:
    """The daemon with the session and the node that its own command line lacks."""
    daemon = seen.daemon
    parent = others.get(processes[daemon.pid].ppid)
    if parent is not None and parent.daemon.kind == "raylet" and parent.daemon.uid == daemon.uid:
        daemon = daemon._replace(
            session_dir=daemon.session_dir or parent.daemon.session_dir,
            node_id=daemon.node_id or parent.daemon.node_id,
        )
    if not daemon.session_dir:
        session = _session_of_files(daemon.pid)
        if not session and daemon.state == "Z":
            session = _session_of_defunct(daemon, processes, others)
        daemon = daemon._replace(session_dir=session)
    return seen._replace(daemon=daemon)


def _by_address(seen: Sequence[FoundDaemon]) -> list[FoundDaemon]:
    """The same with the sessions of client servers, which name only the GCS."""
    sessions = {s.options["gcs_address"]: s.daemon for s in seen if "gcs_address" in s.options}
    found = []
    for each in seen:
        daemon = sessions.get(each.options.get("address", ""))
        is_its = daemon is not None and daemon.uid == each.daemon.uid
        if (
            daemon
            and is_its
            and each.daemon.kind == "client_server"
            and not each.daemon.session_dir
        ):
            joined = each.daemon._replace(session_dir=daemon.session_dir)
            found.append(each._replace(daemon=joined))
        else:
            found.append(each)
    return found


def _session_of_files(pid: int) -> str:
    sessions = (session_of(path) for path in proc.files(pid).values())
    return next((session for session in sessions if session), "")


def _session_of_defunct(
    daemon: Daemon, processes: Mapping[int, Process], others: Mapping[int, FoundDaemon]
) -> str:
    """The session of a defunct process, which has only its name left.

    Its workers, which now have another parent, still have its pid in their environment; else its log has the
    pid in each header.
    """
    for process in processes.values():
        if process.name.startswith("ray::") and process.state != "Z":
            named = proc.environment(process.pid, ("RAY_RAYLET_PID",)) or {}
            is_its = named.get("RAY_RAYLET_PID") == str(daemon.pid)
            is_its = is_its and proc.credentials(process.pid) == daemon.uid
            if is_its and (session := _session_of_files(process.pid)):
                return session
    same = (s.daemon for s in others.values() if s.daemon.uid == daemon.uid)
    known = dict.fromkeys(d.session_dir for d in same)
    return next((s for s in known if s and _wrote(daemon, s)), "")


def _wrote(daemon: Daemon, session: str) -> bool:
    """Whether a session's log was written by this process: `[… I 812 812] (raylet) …`."""
    mark = f" {daemon.pid} {daemon.pid}] ({daemon.kind})".encode()
    with suppress(OSError):
        for name in os.listdir(f"{session}/logs"):
            if name.startswith(daemon.kind) and name.endswith(".out"):
                path = f"{session}/logs/{name}"
                if mark in owners.read_regular(path, _LOG_HEAD, (daemon.uid or 0,)).data:
                    return True
    return False


def _nodes_of_agents(
    seen: Sequence[FoundDaemon], processes: Mapping[int, Process]
) -> dict[int, str]:
    """Raylet's pid -> its node from its agents' environments, as raylets before 2.4x do not name their
    node."""
    nameless = {
        s.daemon.pid: s.daemon.uid
        for s in seen
        if s.daemon.kind == "raylet" and not s.daemon.node_id
    }
    found = {}
    for each in seen:
        raylet = processes[each.daemon.pid].ppid
        if raylet in nameless and raylet not in found and nameless[raylet] == each.daemon.uid:
            variables = proc.environment(each.daemon.pid, ("RAY_NODE_ID",)) or {}
            found[raylet] = variables.get("RAY_NODE_ID", "")
    return {
        **found,
        **{
            s.daemon.pid: found[ppid]
            for s in seen
            if (ppid := processes[s.daemon.pid].ppid) in found
        },
    }


def _with_node(seen: FoundDaemon, nodes: Mapping[int, str]) -> FoundDaemon:
    daemon = seen.daemon
    node = daemon.node_id or nodes.get(daemon.pid, "")
    return seen._replace(daemon=daemon._replace(node_id=node))

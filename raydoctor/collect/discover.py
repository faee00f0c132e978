"""Which clusters have processes on this machine: whole ones and half-dead ones, of any user.

A cluster is told by the command lines of its daemons, without asking it anything: a raylet names session,
node, GCS and dashboard; the GCS, the dashboard, the monitors and the agents name the session or its log
folder (measured with Ray 2.9.3, 2.40 and 2.60; `_private/services.py` of each starts them). What a process
does not name is joined: an agent that renamed itself by its parent or its open log, a defunct raylet by the
workers that were started by it or by its own log.
"""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from raydoctor.collect import proc
from raydoctor.collect.cluster import Cluster, Daemon
from raydoctor.collect.proc import Process
from raydoctor.collect.table import Piece, table
from raydoctor.model import Gap

_SCRIPTS = {
    "/ray/dashboard/dashboard.py": "dashboard",
    "/ray/dashboard/agent.py": "agent",
    "/ray/_private/runtime_env/agent/main.py": "runtime_env_agent",
    "/ray/_private/log_monitor.py": "log_monitor",
    "/ray/autoscaler/_private/monitor.py": "monitor",
    "/ray/autoscaler/v2/monitor.py": "monitor",
}
_BINARIES = ("raylet", "gcs_server")
_RENAMED = {"ray::DashboardAgent": "agent", "ray::RuntimeEnvAgent": "runtime_env_agent"}
"""setproctitle in `dashboard/agent.py` and `runtime_env/agent/main.py`, Ray 2.60; older ones keep theirs."""
_CLIENT_SERVER = "ray.util.client.server"
_FIRST_WORDS = 12
"""A script stands among an interpreter's first words; what follows are its own arguments."""
_LOG_HEAD = 4096
_NIL = ("", "None", "0.0.0.0", "::")


class Seen(NamedTuple):
    """A daemon, with what its command line says."""

    daemon: Daemon
    options: Mapping[str, str]
    """Names with `_` for `-`: raylet has `--session_dir`, the others have `--session-dir`."""
    program: str
    """Path of its binary or script."""

    @property
    def ip(self) -> str:
        """The node's address."""
        return self.options.get("node_ip_address", "")


def clusters() -> list[Cluster]:
    """Every cluster that has daemons on this machine: this user's own first, then the newest."""
    mine = os.geteuid() if hasattr(os, "geteuid") else None
    found = [_cluster(session, seen) for session, seen in _by_session(daemons()).items()]
    return sorted(found, key=lambda c: (proc.owner(c.daemons[0].pid) != mine, -_begun(c)))


def choose(
    found: Sequence[Cluster], address: str | None = None, session: str | None = None
) -> Cluster | None:
    """The cluster that is meant: by a session's path or name, by an address, else the first.

    An address that none here has gives a cluster that is elsewhere, so that it can be asked there.
    """
    if session:
        name = posixpath.basename(session.rstrip("/"))
        return next((c for c in found if posixpath.basename(c.session_dir) == name), None)
    if address and address not in ("auto", "local"):
        scheme, _, place = address.rpartition("://")
        place = place.rstrip("/")
        here = (c for c in found if _is_at(c, place))
        is_http = scheme.startswith("http")
        elsewhere = Cluster(
            gcs_address="" if is_http else place, dashboard_address=place if is_http else ""
        )
        return next(here, elsewhere)
    return found[0] if found else None


def tables(cluster: Cluster) -> Iterable[Piece | Gap]:
    """The tables `daemons` and `clusters`: of the whole machine, `is_this` marks the cluster looked at."""
    at = time.time()
    seen = daemons()
    yield table("daemons", [_row(s, cluster) for s in seen], source="proc", at=at)
    found = [_cluster(session, those) for session, those in _by_session(seen).items()]
    yield table("clusters", [_cluster_row(c, cluster) for c in found], source="proc", at=at)


def daemons(processes: Mapping[int, Process] | None = None) -> list[Seen]:
    """Ray's own processes on this machine, of all clusters; the session is empty where none can be told."""
    processes = proc.table() if processes is None else processes
    told = [s for p in processes.values() if (s := _seen(p)) is not None]
    by_pid = {s.daemon.pid: s for s in told}
    joined = _by_address([_joined(s, processes, by_pid) for s in told])
    nodes = _nodes_of_agents(joined, processes)
    return [_with_node(s, nodes) for s in joined]


# ------------------------------------------------------------------ one process


def _seen(process: Process) -> Seen | None:
    name = process.name
    if name in _BINARIES:
        argv = proc.command(process.pid)
        return _told(process, name, argv, argv[0] if argv else "")
    if name.startswith(("ray::DashboardA", "ray::RuntimeEnv")):
        kind = _RENAMED.get((proc.command(process.pid) or ("",))[0])
        return _told(process, kind, (), "") if kind else None
    if "py" in name.lower():
        argv = proc.command(process.pid)
        kind, program = _script(argv)
        return _told(process, kind, argv, program) if kind else None
    return None


def _script(argv: Sequence[str]) -> tuple[str, str]:
    words = argv[:_FIRST_WORDS]
    for word in words:
        if word == _CLIENT_SERVER:
            # In the mode `specific-server` it is a client's driver, no daemon.
            return ("client_server" if "--mode=proxy" in argv else ""), ""
        if word.endswith(".py"):
            for end, kind in _SCRIPTS.items():
                if word.endswith(end):
                    return kind, word
    return "", ""


def _told(process: Process, kind: str, argv: Sequence[str], program: str) -> Seen:
    options = _options(argv)
    daemon = Daemon(
        kind,
        process.pid,
        process.started_at,
        process.state,
        _session_of_options(options),
        options.get("node_id", ""),
    )
    return Seen(daemon, options, program)


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
    """The session's folder that a path of a log lies in, or empty: Ray names it `session_<date>_…`."""
    session, found, _ = path.partition("/logs/")
    return session if found and posixpath.basename(session).startswith("session_2") else ""


# ------------------------------------------------------------------ joins


def _joined(seen: Seen, processes: Mapping[int, Process], told: Mapping[int, Seen]) -> Seen:
    """With the session and the node that its own command line does not name."""
    daemon = seen.daemon
    parent = told.get(processes[daemon.pid].ppid)
    if parent is not None and parent.daemon.kind == "raylet":
        daemon = daemon._replace(
            session_dir=daemon.session_dir or parent.daemon.session_dir,
            node_id=daemon.node_id or parent.daemon.node_id,
        )
    if not daemon.session_dir:
        session = _session_of_files(daemon.pid)
        if not session and daemon.state == "Z":
            session = _session_of_defunct(daemon, processes, told)
        daemon = daemon._replace(session_dir=session)
    return seen._replace(daemon=daemon)


def _by_address(seen: Sequence[Seen]) -> list[Seen]:
    """With the session of a client server, another user's, that names nothing but the GCS."""
    sessions = {s.options["gcs_address"]: s.daemon for s in seen if "gcs_address" in s.options}
    found = []
    for each in seen:
        daemon = sessions.get(each.options.get("address", ""))
        if daemon and not each.daemon.session_dir and each.daemon.kind == "client_server":
            joined = each.daemon._replace(session_dir=daemon.session_dir)
            found.append(each._replace(daemon=joined))
        else:
            found.append(each)
    return found


def _session_of_files(pid: int) -> str:
    sessions = (session_of(path) for path in proc.files(pid).values())
    return next((session for session in sessions if session), "")


def _session_of_defunct(
    daemon: Daemon, processes: Mapping[int, Process], told: Mapping[int, Seen]
) -> str:
    """The session of a process that has ended and keeps nothing but its name.

    Its workers, which now belong to another parent, still name its pid; else its log does, in each header.
    """
    for process in processes.values():
        if process.name.startswith("ray::") and process.state != "Z":
            named = proc.environment(process.pid, ("RAY_RAYLET_PID",)) or {}
            is_its = named.get("RAY_RAYLET_PID") == str(daemon.pid)
            if is_its and (session := _session_of_files(process.pid)):
                return session
    known = dict.fromkeys(s.daemon.session_dir for s in told.values())
    return next((s for s in known if s and _wrote(daemon, s)), "")


def _wrote(daemon: Daemon, session: str) -> bool:
    """Whether a session's log was written by this process: `[… I 812 812] (raylet) …`."""
    mark = f" {daemon.pid} {daemon.pid}] ({daemon.kind})".encode()
    with suppress(OSError):
        for name in os.listdir(f"{session}/logs"):
            if name.startswith(daemon.kind) and name.endswith(".out"):
                with open(f"{session}/logs/{name}", "rb") as stream:
                    if mark in stream.read(_LOG_HEAD):
                        return True
    return False


def _nodes_of_agents(seen: Sequence[Seen], processes: Mapping[int, Process]) -> dict[int, str]:
    """Raylet's pid -> its node, as its agents' environments say it: no raylet before 2.4x names its node."""
    nameless = {s.daemon.pid for s in seen if s.daemon.kind == "raylet" and not s.daemon.node_id}
    found = {}
    for each in seen:
        raylet = processes[each.daemon.pid].ppid
        if raylet in nameless and raylet not in found:
            told = proc.environment(each.daemon.pid, ("RAY_NODE_ID",)) or {}
            found[raylet] = told.get("RAY_NODE_ID", "")
    return {
        **found,
        **{
            s.daemon.pid: found[ppid]
            for s in seen
            if (ppid := processes[s.daemon.pid].ppid) in found
        },
    }


def _with_node(seen: Seen, nodes: Mapping[int, str]) -> Seen:
    daemon = seen.daemon
    node = daemon.node_id or nodes.get(daemon.pid, "")
    return seen._replace(daemon=daemon._replace(node_id=node))


# ------------------------------------------------------------------ one cluster


def _by_session(seen: Iterable[Seen]) -> dict[str, list[Seen]]:
    found: dict[str, list[Seen]] = {}
    for each in sorted(seen, key=lambda s: (s.daemon.started_at, s.daemon.pid)):
        if each.daemon.session_dir:
            found.setdefault(each.daemon.session_dir, []).append(each)
    return found


def _cluster(session: str, seen: Sequence[Seen]) -> Cluster:
    named = (s.daemon.node_id for s in seen if s.daemon.kind in ("raylet", "gcs_server"))
    return Cluster(
        session_dir=session,
        gcs_address=_gcs_address(session, seen),
        dashboard_address=_dashboard_address(seen),
        node_ids=tuple(dict.fromkeys(node for node in named if node)),
        daemons=tuple(s.daemon for s in seen),
        token_mode=_token_mode(seen),
        ray_folder=next((f for s in seen if (f := _ray_folder(s.program))), ""),
    )


def _begun(cluster: Cluster) -> float:
    return min(d.started_at for d in cluster.daemons)


def _gcs_address(session: str, seen: Sequence[Seen]) -> str:
    for each in seen:
        told = each.options.get("gcs_address") or (
            each.options.get("address") if each.daemon.kind == "client_server" else ""
        )
        if told and told not in _NIL:
            return told
    for each in seen:
        if each.daemon.kind == "gcs_server" and each.ip:
            port = each.options.get("gcs_server_port", "0")
            if port == "0":  # It chose one itself and wrote it down (Ray 2.60).
                port = _first_line(f"{session}/gcs_server_port_{each.daemon.node_id}")
            return f"{each.ip}:{port}" if port else ""
    return ""


def _first_line(path: str) -> str:
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as stream:
        return stream.readline().strip()
    return ""


def _dashboard_address(seen: Sequence[Seen]) -> str:
    """What the raylet tells its workers; it knows the port that the dashboard got, not only asked for.

    Without a dashboard (`--include-dashboard=false`, or an installation without `ray[default]`) its process
    runs all the same, for usage statistics alone, and serves nothing (`dashboard/head.py`, 2.9 to 2.60).
    """
    if any("disable_frontend" in s.options or "minimal" in s.options for s in seen):
        return ""
    for each in seen:
        for word in each.options.get("python_worker_command", "").split():
            if word.startswith("--webui=") and (address := word.partition("=")[2]) not in _NIL:
                return address.rpartition("://")[2]
    for each in seen:
        if each.daemon.kind == "dashboard" and (port := each.options.get("port")):
            host = each.options.get("host", "")
            return f"{each.ip or '127.0.0.1' if host in _NIL else host}:{port}"
    return ""


def _token_mode(seen: Sequence[Seen]) -> bool | None:
    for each in seen:
        if each.daemon.kind in (*_BINARIES, "dashboard") and each.daemon.state != "Z":
            told = proc.environment(each.daemon.pid, ("RAY_AUTH_MODE",))
            if told is not None:
                return told.get("RAY_AUTH_MODE", "").lower() == "token"
    return None


def _ray_folder(program: str) -> str:
    for end in ("/core/src/ray/", "/dashboard/", "/_private/", "/autoscaler/"):
        folder, found, _ = program.partition(f"/ray{end}")
        if found and folder.startswith("/"):
            return f"{folder}/ray"
    return ""


def _is_at(cluster: Cluster, place: str) -> bool:
    """Whether `host:port` is this cluster's GCS or dashboard; loopback has several names."""
    return any(
        known and _canonical(known) == _canonical(place)
        for known in (cluster.gcs_address, cluster.dashboard_address)
    )


def _canonical(place: str) -> tuple[str, str]:
    host, _, port = place.rpartition(":")
    return ("127.0.0.1" if host in ("localhost", "::1", "[::1]") else host), port


# ------------------------------------------------------------------ rows


def _row(seen: Seen, cluster: Cluster) -> dict[str, object]:
    daemon = seen.daemon
    now = proc.read(daemon.pid)
    parent = proc.read(now.ppid) if now else None
    return {
        "kind": daemon.kind,
        "pid": daemon.pid,
        "started_at": daemon.started_at,
        "state": now.state if now else daemon.state,
        "ppid": now.ppid if now else None,
        "parent": parent.name if parent else "",
        "parent_state": parent.state if parent else "",
        "session_dir": daemon.session_dir,
        "node_id": daemon.node_id,
        "ip": seen.ip,
        "rss": now.rss if now else None,
        "is_this": _is_this(daemon.session_dir, cluster),
    }


def _cluster_row(found: Cluster, cluster: Cluster) -> dict[str, object]:
    uid = proc.owner(found.daemons[0].pid)
    return {
        "session_dir": found.session_dir,
        "gcs_address": found.gcs_address,
        "dashboard_address": found.dashboard_address,
        "node_ids": list(found.node_ids),
        "user": None if uid is None else proc.user(uid),
        "kinds": sorted({d.kind for d in found.daemons if d.state != "Z"}),
        "started_at": _begun(found),
        "is_this": _is_this(found.session_dir, cluster),
        "up": found.is_up,
    }


def _is_this(session: str, cluster: Cluster) -> bool:
    return bool(session) and session == cluster.session_dir

"""The clusters with processes on this machine, whole or half-dead, of any user.

They are found by their daemons' command lines, without a query: a dead or hung cluster is found as quickly as
a healthy one (5 ms with 200 processes).

The owner of a cluster is the user that its daemons run as. Only clusters of the current user and of root are
connected to, read by default, and sent a token. Root may also use those of other users, after its own and
that of the user who called `sudo`. Other clusters are only listed.
"""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Iterable, Sequence

from raydoctor.capture import owners
from raydoctor.model import paste
from raydoctor.model.values import Gap
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.table import Piece, table
from raydoctor.observe.processes import daemons, proc
from raydoctor.observe.processes.daemons import BINARIES, Claim, FoundDaemon
from raydoctor.observe.processes.proc import Process

_NIL = ("", "None", "0.0.0.0", "::")
_LINE = 64
_SHOWN = 120
_CLAIMS = 20
"""Largest number of ignored processes that are reported."""


def clusters() -> list[Cluster]:
    """The usable clusters with daemons on this machine: the user's own first, then the newest."""
    return [c for c in everything() if is_usable(c)]


def everything() -> list[Cluster]:
    """Every cluster with daemons on this machine, of any user."""
    found = [_cluster(*item) for item in _by_session(daemons.find())]
    return sorted(found, key=lambda c: (owners.rank(c.owner), -_begun(c)))


def is_usable(cluster: Cluster) -> bool:
    """Whether a cluster may be connected to and read without the user naming it."""
    return os.geteuid() == 0 or cluster.owner in owners.trusted()


def has_other_pids(cluster: Cluster, node: str = "") -> bool:
    """Whether its daemons, or those of a node, run in a container: recorded pids are not this machine's."""
    pids = [each.pid for each in cluster.daemons if node in ("", each.node_id)]
    return bool(pids) and all(map(proc.has_other_pids, pids))


def choose(
    found: Sequence[Cluster], address: str | None = None, session: str | None = None
) -> Cluster | None:
    """The cluster of a session's path or name, or of an address; without either, the first.

    For an address of no cluster here, returns a cluster that runs elsewhere and has this address.
    """
    if session:
        name = posixpath.basename(session.rstrip("/"))
        return next((c for c in found if posixpath.basename(c.session_dir) == name), None)
    if address and address not in ("auto", "local"):
        scheme, _, place = address.rpartition("://")
        return _at(found, scheme, place.rstrip("/"))
    return found[0] if found else None


def _at(found: Sequence[Cluster], scheme: str, place: str) -> Cluster | None:
    if scheme == "ray":
        # A client server's address identifies the host, not the cluster's own services.
        host = _split(place)[0]
        return next((c for c in found if host in (_split(c.gcs_address)[0], _LOOPBACK[0])), None)
    is_http = scheme.startswith("http")
    elsewhere = Cluster(
        gcs_address="" if is_http else place,
        dashboard_address=place if is_http else "",
        typed=(place,),
    )
    return next((c for c in found if _is_at(c, place)), elsewhere)


def tables(cluster: Cluster) -> Iterable[Piece | Gap]:
    """The tables `daemons` and `clusters` of the whole machine; `is_this` marks the inspected cluster."""
    at = time.time()
    seen, claims = daemons.survey()
    rows = [_row(s, now, cluster) for s in seen if (now := proc.read(s.daemon.pid)) is not None]
    yield table("daemons", rows, source="proc", at=at)
    found = [_cluster(*item) for item in _by_session(seen)]
    yield table("clusters", [_cluster_row(c, cluster) for c in found], source="proc", at=at)
    for claim in claims[:_CLAIMS]:
        yield _ignored(claim)


# ------------------------------------------------------------------ one cluster


def _by_session(seen: Iterable[FoundDaemon]) -> list[tuple[str, list[FoundDaemon]]]:
    """The daemons of each session and user: processes of two users never form one cluster."""
    found: dict[tuple[str, int | None], list[FoundDaemon]] = {}
    for each in sorted(seen, key=lambda s: (s.daemon.started_at, s.daemon.pid)):
        if each.daemon.session_dir:
            found.setdefault((each.daemon.session_dir, each.daemon.uid), []).append(each)
    return [(session, those) for (session, _), those in found.items()]


def _ignored(claim: Claim) -> Gap:
    """A gap for a process that only looks like a daemon; its text is escaped."""
    from raydoctor.model.text import one_line

    what = f"pid {claim.pid} of user {claim.user}"
    session = one_line(claim.session_dir)[:_SHOWN]
    why = (
        f"claims to be the {claim.kind} of {session} and is ignored: {one_line(claim.why)[:_SHOWN]}"
    )
    hint = paste.shell("To inspect it: ps -fp {pid:pid}", pid=claim.pid)
    return Gap(what, why, hint, optional=True)


def _cluster(session: str, seen: Sequence[FoundDaemon]) -> Cluster:
    named = (s.daemon.node_id for s in seen if s.daemon.kind in ("raylet", "gcs_server"))
    return Cluster(
        session_dir=session,
        gcs_address=_gcs_address(session, seen),
        dashboard_address=_dashboard_address(seen),
        node_ids=tuple(dict.fromkeys(node for node in named if node)),
        daemons=tuple(s.daemon for s in seen),
        token_mode=_token_mode(seen),
        owner=seen[0].daemon.uid,
        is_vouched=any(s.is_vouched for s in seen),
    )


def _begun(cluster: Cluster) -> float:
    return min(d.started_at for d in cluster.daemons)


def _gcs_address(session: str, seen: Sequence[FoundDaemon]) -> str:
    for each in seen:
        address = each.options.get("gcs_address") or (
            each.options.get("address") if each.daemon.kind == "client_server" else ""
        )
        if address and address not in _NIL:
            return address
    for each in seen:
        if each.daemon.kind == "gcs_server" and each.ip:
            port = each.options.get("gcs_server_port", "0")
            if port == "0":  # it chose one and wrote it to a file (Ray 2.60)
                port = _port_in(f"{session}/gcs_server_port_{each.daemon.node_id}", each.daemon.uid)
            return f"{each.ip}:{port}" if port else ""
    return ""


def _port_in(path: str, uid: int | None) -> str:
    """The port in a file of this user; any user can create one in a session's folder."""
    try:
        port = owners.read_regular(path, _LINE, (uid or 0,)).data.split(b"\n")[0].strip()
    except OSError:
        return ""
    return port.decode() if port.isdigit() and len(port) <= 5 else ""


def _dashboard_address(seen: Sequence[FoundDaemon]) -> str:
    """The address that the raylet passes to its workers, with the port that the dashboard actually got.

    Without a dashboard (`--include-dashboard=false`, or an installation without `ray[default]`) its process
    runs for usage statistics only, and serves nothing (`dashboard/head.py`, 2.9 to 2.60).
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


def _token_mode(seen: Sequence[FoundDaemon]) -> bool | None:
    for each in seen:
        if each.daemon.kind in (*BINARIES, "dashboard") and each.daemon.state != "Z":
            variables = proc.environment(each.daemon.pid, ("RAY_AUTH_MODE",))
            if variables is not None:
                return variables.get("RAY_AUTH_MODE", "").lower() == "token"
    return None


_LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")


def _is_at(cluster: Cluster, place: str) -> bool:
    """Whether `host:port` is this cluster's GCS or dashboard."""
    host, port = _split(place)
    known = [_split(a) for a in (cluster.gcs_address, cluster.dashboard_address) if a]
    # A GCS that runs here also listens on loopback, for any address.
    by_loopback = host == _LOOPBACK[0] and bool(cluster.of("gcs_server"))
    return any(port == p and (host == h or by_loopback) for h, p in known)


def _split(place: str) -> tuple[str, str]:
    host, _, port = place.rpartition(":")
    return (_LOOPBACK[0] if host in _LOOPBACK else host), port


# ------------------------------------------------------------------ rows


def _row(seen: FoundDaemon, now: Process, cluster: Cluster) -> dict[str, object]:
    daemon = seen.daemon
    parent = proc.read(now.ppid)
    return {
        "kind": daemon.kind,
        "pid": daemon.pid,
        "started_at": daemon.started_at,
        "state": now.state,
        "ppid": now.ppid,
        "parent": parent.name if parent else "",
        "parent_state": parent.state if parent else "",
        "session_dir": daemon.session_dir,
        "node_id": daemon.node_id,
        "ip": seen.ip,
        "rss": now.rss,
        "is_this": _is_this(daemon.session_dir, cluster),
    }


def _cluster_row(found: Cluster, cluster: Cluster) -> dict[str, object]:
    return {
        "session_dir": found.session_dir,
        "gcs_address": found.gcs_address,
        "dashboard_address": found.dashboard_address,
        "node_ids": list(found.node_ids),
        "user": None if found.owner is None else owners.user(found.owner),
        "kinds": sorted({d.kind for d in found.daemons if d.state != "Z"}),
        "started_at": _begun(found),
        "is_this": _is_this(found.session_dir, cluster),
        "up": found.is_up,
    }


def _is_this(session: str, cluster: Cluster) -> bool:
    return bool(session) and session == cluster.session_dir

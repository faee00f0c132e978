"""A running (or half-dead) cluster -> a capture: its logs where they lie, and beside them what no log says.

Finds the cluster, runs all collectors at once, redacts what they bring. A live diagnosis reads the capture
that this makes; `raydoctor collect` writes the same capture to a file.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from raydoctor.capture import owners, session
from raydoctor.capture.open import Capture, open_capture
from raydoctor.case.rule import Signal
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.values import Gap
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.run import TIMEOUT, Collection, Collector, run
from raydoctor.observe.collector.table import Piece
from raydoctor.observe.gcs import state, token
from raydoctor.observe.machine import (
    addresses,
    clocks,
    disks,
    gpus,
    host,
    kernel,
    sessions,
    settings,
)
from raydoctor.observe.processes import discover, processes
from raydoctor.observe.processes.redact import Redactor, shared

if TYPE_CHECKING:
    from raydoctor.observe.bundle import Bundle
    from raydoctor.observe.stacks.suspects import Sampling

Tell = Callable[[str], None]
_REACH = 1.0
"""Seconds for another machine to take a connection."""


def _some() -> Sampling:
    """Few looks, at what has run for a minute: nothing at all mostly."""
    from raydoctor.observe.stacks.suspects import Sampling

    return Sampling()


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """What the user asked for."""

    address: str | None = None
    """Of the GCS, as Ray's own tools take it (`auto` is this machine's); None: what runs here, if any."""
    timeout: float = TIMEOUT
    """Seconds for each collector."""
    all_nodes: bool = True
    logs: bool = True
    """Whether other nodes read their logs: not needed to see what hangs."""
    since: float | None = None
    signals: Callable[[], Iterable[Signal]] = tuple
    """What other nodes are to look for in their logs; called while the collectors wait for answers."""
    anonymize: bool = False
    samples: Sampling | None = field(default_factory=_some)
    """How to look at processes whose tasks have run for long; None: at none."""
    is_typed: bool = True
    """Whether the user named that address, so that its listener may belong to any user."""


@dataclass(slots=True)
class Live:
    """What was collected of one cluster."""

    cluster: Cluster
    collection: Collection
    redactor: Redactor
    notes: list[str] = field(default_factory=list)

    def capture(self) -> Capture:
        """The session's logs where they lie, and what was collected."""
        capture = _logs(self.cluster)
        capture.kind = "live" if self.cluster.is_up else capture.kind
        capture.notes += self.notes
        for path, data in self.collection.pieces.items():
            capture.add(path, data)
        capture.gaps += [*self.collection.gaps, *self._owner()]
        if self.cluster.token:
            capture.secrets = (self.cluster.token.value,)
        capture.secrets += self.redactor.secrets
        return capture

    def _owner(self) -> list[Gap]:
        """Whose cluster this is, where it is another user's: what it says is that user's word."""
        owner = self.cluster.owner
        if owner is None or owner in owners.trusted():
            return []
        why = f"belongs to user {owners.user(owner)}: this is what that user's processes report"
        return [Gap("the cluster", why, "Name another one: --address", optional=True)]


def collect(wishes: CollectOptions, tell: Tell = lambda doing: None) -> Live:
    """Look at a cluster. Raises RaydoctorError where there is neither a cluster nor a session here."""
    cluster, notes = find(wishes.address, wishes.is_typed)
    redactor = _redactor(cluster, wishes)
    tell("asking the cluster")
    signals: list[Signal] = []
    collection = run(
        _collectors(cluster, wishes), wishes.timeout, lambda: signals.extend(wishes.signals())
    )
    if wishes.samples is not None:
        _samples(cluster, wishes, wishes.samples, collection, tell)
    if wishes.all_nodes and wishes.logs:
        _other_nodes(cluster, wishes, signals, collection, tell)
    pieces = collection.pieces
    collection.pieces = {
        path: redactor.redact_rows(data)
        if path.endswith((".json", ".jsonl"))
        else redactor.redact_bytes(data)
        for path, data in pieces.items()
    }
    # What an environment or a command line holds is a secret in every log, too.
    redactor.learn(redactor.secrets)
    return Live(cluster, collection, redactor, notes)


def find(address: str | None = None, is_typed: bool = True) -> tuple[Cluster, list[str]]:
    """The cluster that is meant, and what to tell the user of the choice.

    `is_typed`: the user named the address, so that its listener may belong to any user. Raises RaydoctorError
    where no cluster of ours runs here and there is no session of one either.
    """
    found = discover.clusters()
    latest = session.latest()
    wanted = address or (None if found else _elsewhere(latest is not None))
    # Of several clusters of one owner, the one whose session is where this user's Ray puts them.
    first = [c for c in found if owners.rank(c.owner) == owners.rank(found[0].owner)]
    own = None if wanted or not latest else discover.choose(first, None, str(latest.path))
    cluster = own or discover.choose(found, wanted)
    notes: list[str] = []
    if cluster is None:
        cluster, notes = _dead_session()
    elif not wanted and len(found) > 1:
        notes = [_choice(cluster, [c for c in found if c is not cluster])]
    if cluster.owner is not None and cluster.owner not in owners.trusted():
        notes.insert(0, f"this cluster belongs to user {owners.user(cluster.owner)}")
    if not is_typed:
        cluster = replace(cluster, typed=())
    return replace(cluster, token=token.find(cluster)), notes


def _dead_session() -> tuple[Cluster, list[str]]:
    """The newest session here, where no cluster runs that may be used, and what to tell the user.

    Raises RaydoctorError where there is none.
    """
    others = [c for c in discover.everything() if not discover.is_usable(c)]
    refusal = _not_ours(others) if others else None
    try:
        choice = session.this_machine()
    except RaydoctorError as error:
        if refusal is None:
            raise
        raise refusal from error
    notes = [f"{refusal.message}. {refusal.hint}"] if refusal else []
    return Cluster(session_dir=str(choice.path)), [*notes, *([choice.note] if choice.note else [])]


def _not_ours(others: list[Cluster]) -> RaydoctorError:
    """Only clusters of other users run here."""
    import shlex

    first = others[0]
    owner = "another user" if first.owner is None else f"user {owners.user(first.owner)}"
    more = f" (and {len(others) - 1} more)" if len(others) > 1 else ""
    return RaydoctorError(
        f"the cluster that runs on this machine belongs to {owner}{more} and is not asked",
        "Run raydoctor as that user, or read its logs: "
        f"raydoctor diagnose {shlex.quote(first.session_dir)}",
    )


def _elsewhere(is_a_session_here: bool) -> str | None:
    """Where this shell's drivers go, if no cluster runs here: a dead head's own address leads nowhere."""
    address = os.environ.get("RAY_ADDRESS")
    host, _, port = (address or "").rpartition("://")[2].rpartition(":")
    if not is_a_session_here or not port.isdecimal():
        return address
    try:
        socket.create_connection((host, int(port)), _REACH).close()
    except (OSError, OverflowError):
        return None
    return address


def _choice(cluster: Cluster, others: list[Cluster]) -> str:
    named = [c.gcs_address or c.session_dir for c in others]
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return (
        f"looking at the cluster {cluster.gcs_address or cluster.session_dir}; {len(named)} more on this "
        f"machine ({', '.join(named[:3])}{more}): choose with --address"
    )


def _redactor(cluster: Cluster, wishes: CollectOptions) -> Redactor:
    secrets = [cluster.token.value] if cluster.token else []
    hosts = {os.uname().nodename, os.uname().nodename.partition(".")[0]} - {"", "localhost"}
    return shared(secrets, wishes.anonymize, sorted(hosts, key=len, reverse=True))


def _collectors(cluster: Cluster, wishes: CollectOptions) -> list[Collector]:
    """All there is to look at, the cluster itself first: its answers take longest."""
    # What the kernel said before there was this cluster is another's story.
    since = wishes.since or session.began(cluster.session_dir)
    own: list[tuple[str, Callable[[], Iterable[Piece | Gap]], bool]] = [
        ("the daemons of Ray", lambda: discover.tables(cluster), False),
        ("the process table", lambda: processes.tables(cluster), False),
        ("where drivers connect", lambda: addresses.tables(cluster), True),
        ("Ray's settings", lambda: settings.tables(cluster), True),
        ("this machine's memory and limits", lambda: host.tables(cluster), True),
        ("the clocks", lambda: clocks.tables(cluster), True),
        ("the kernel log", lambda: kernel.tables(cluster, since), True),
        ("the GPUs", lambda: gpus.tables(cluster), True),
        ("sessions on this machine", lambda: sessions.tables(cluster), True),
    ]
    # Whoever is looked at is compared with finished tasks of its function.
    peers_after = wishes.samples.min_age_s if wishes.samples else state.PEERS_AFTER
    return [
        *(state.collectors(cluster, wishes.timeout, peers_after) if cluster.is_up else ()),
        *disks.collectors(cluster),
        *(Collector(what, gather, optional) for what, gather, optional in own),
    ]


def _other_nodes(
    cluster: Cluster,
    wishes: CollectOptions,
    signals: Iterable[Signal],
    collection: Collection,
    tell: Tell,
) -> None:
    """What the logs of nodes say that are not on this machine."""
    alive = _alive_nodes(collection)
    if not set(alive) - set(cluster.node_ids[:1]):
        return
    from raydoctor.observe.nodes import nodes

    elsewhere = nodes.elsewhere(cluster, alive)
    if not elsewhere:
        return

    def told(done: int, total: int) -> None:
        tell(f"reading the logs of {total} more nodes: {done} done")

    for item in nodes.collect(cluster, elsewhere, wishes.timeout, signals, told):
        collection.add(item)


def _samples(
    cluster: Cluster, wishes: CollectOptions, sampling: Sampling, collection: Collection, tell: Tell
) -> None:
    """What the processes do whose tasks have run for long."""
    from raydoctor.observe.gcs import still_running
    from raydoctor.observe.stacks import sampling as looking
    from raydoctor.observe.stacks.suspects import suspects

    found = suspects(collection.pieces, sampling, cluster.node_ids)
    collectors = looking.collectors(cluster, found, sampling, wishes.timeout, wishes.all_nodes)
    if collectors:
        tell(f"looking at {found.total} processes that may hang")
        brought = run(collectors, looking.seconds(found, sampling, wishes.timeout))
        again = run([still_running.collector(cluster, wishes.timeout)], wishes.timeout)
        for each in (brought, again):
            collection.pieces.update(each.pieces)
            collection.gaps += each.gaps


def _alive_nodes(collection: Collection) -> list[str]:
    data = collection.pieces.get("live/live-nodes.json")
    rows = json.loads(data)["rows"] if data else []
    return [row["node_id"] for row in rows if row.get("state") == "ALIVE"]


def bundle_of(live: Live, capture: Capture, since: float | None = None) -> Bundle:
    """What an archive of this collection holds; log files that end before `since` are left out."""
    from raydoctor.observe.bundle import Bundle  # tarfile, zipfile: a diagnosis writes none

    gaps = list(capture.gaps)
    files, left_out = {}, 0
    for source, file in capture.files.items():
        if source.path in live.collection.pieces:
            continue
        if since is not None and _changed(file) < since:
            left_out += 1
        else:
            files[source] = file
    if left_out:
        why = f"{left_out} files had not changed since then and were left out"
        gaps.append(Gap("older logs", why, "Collect without --since.", optional=True))
    return Bundle(files, live.collection.pieces, tuple(gaps), _about(live, since))


def _changed(file: str) -> float:
    try:
        return os.stat(file).st_mtime
    except OSError:
        return 0.0


def _about(live: Live, since: float | None) -> dict[str, Any]:
    """Who took it, when, and of what: the manifest's first keys."""
    import platform

    cluster = live.cluster
    return {
        "at": time.time(),
        "since": since,
        "by": {"user": _user(), "host": os.uname().nodename, "python": platform.python_version()},
        "cluster": {
            "session": cluster.session_dir,
            "gcs_address": cluster.gcs_address,
            "dashboard_address": cluster.dashboard_address,
            "nodes_of_this_machine": list(cluster.node_ids),
        },
    }


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's uid without a name
        return str(os.geteuid())


def _logs(cluster: Cluster) -> Capture:
    """The session's logs on this machine; empty where the cluster is elsewhere."""
    if not cluster.session_dir:
        return Capture(cluster.gcs_address or cluster.dashboard_address, "live", {})
    try:
        return open_capture(cluster.session_dir)
    except RaydoctorError as error:
        gap = Gap("the session's logs", error.message, "Run raydoctor as the user who runs Ray.")
        return Capture(cluster.session_dir, "live", {}, gaps=[gap])

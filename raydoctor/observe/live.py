"""A running (or half-dead) cluster -> a capture: its logs in place, and tables of what no log records.

Finds the cluster, runs all collectors in parallel, and redacts their results. A live diagnosis reads this
capture directly; `raydoctor collect` writes it to a file.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from raydoctor.capture import owners, session
from raydoctor.capture.open import Capture, add_driver_output, open_capture
from raydoctor.case.rule import Signal
from raydoctor.model import paste
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.values import Gap, Source
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.run import (
    TIMEOUT,
    Collection,
    Collector,
    ReportProgress,
    run,
    silent,
)
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
from raydoctor.observe.processes import discover, driver_output, processes
from raydoctor.observe.processes.redact import Redactor, shared
from raydoctor.observe.watching import gauges

if TYPE_CHECKING:
    from raydoctor.observe.bundle import Bundle
    from raydoctor.observe.stacks.suspects import Sampling

_ADDRESSES = (
    "Give the GCS's address as `ray start --head` printed it, such as 10.0.0.2:6379; auto, or no address, is "
    "the cluster on this machine."
)
_REACH = 1.0
"""Seconds for another machine to accept a connection."""


def _default_sampling() -> Sampling:
    """Two samples of tasks that have been running for a minute: on most clusters there are none."""
    from raydoctor.observe.stacks.suspects import Sampling

    return Sampling()


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """The options of a collection."""

    address: str | None = None
    """Of the GCS, in the form of Ray's own tools (`auto` is this machine); None: the cluster that runs
    here."""
    timeout: float = TIMEOUT
    """Seconds for each collector."""
    all_nodes: bool = True
    logs: bool = True
    """Whether other nodes read their logs, and this one the output of drivers: `hung` needs neither."""
    since: float | None = None
    signals: Callable[[], Iterable[Signal]] = tuple
    """Signals that other nodes search for in their logs; called while the collectors wait for replies."""
    anonymize: bool = False
    samples: Sampling | None = field(default_factory=_default_sampling)
    """How to sample processes with long-running tasks; None: not at all."""
    is_typed: bool = True
    """Whether the user typed that address, so that its listener may belong to any user."""


@dataclass(slots=True)
class Live:
    """The collection of one cluster."""

    cluster: Cluster
    collection: Collection
    redactor: Redactor
    notes: list[str] = field(default_factory=list)
    logs: bool = True
    """Whether the output of drivers is read: the session's own logs always are."""

    def capture(self, roles: Container[str] | None = None) -> Capture:
        """The session's logs in place, and the collected tables; `roles`: only logs with these roles."""
        capture = _logs(self.cluster)
        capture.kind = "live" if self.cluster.is_up else capture.kind
        capture.notes += self.notes
        if roles is not None:
            capture.files = {s: file for s, file in capture.files.items() if s.role in roles}
        elif self.cluster.is_up and self.logs:
            _add_output_of_drivers(capture, self.cluster)
        driver_output.add_kept(capture, self.cluster.session_dir, self.cluster.is_up)
        for path, data in self.collection.pieces.items():
            capture.add(path, data)
        capture.gaps += [*self.collection.gaps, *self._owner()]
        if self.cluster.token:
            capture.secrets = (self.cluster.token.value,)
        capture.secrets += self.redactor.secrets
        return capture

    def _owner(self) -> list[Gap]:
        """A gap if the cluster belongs to another user, whose processes may report anything."""
        owner = self.cluster.owner
        if owner is None or owner in owners.trusted():
            return []
        why = f"belongs to user {owners.user(owner)}: this is what that user's processes report"
        return [Gap("the cluster", why, "Choose another cluster with --address.", optional=True)]


def collect(options: CollectOptions, report: ReportProgress = silent) -> Live:
    """Inspect a cluster.

    Raises RaydoctorError if there is neither a cluster nor a session here, or nothing answers at the address
    of a cluster that runs elsewhere.
    """
    cluster, notes = find(options.address, options.is_typed)
    redactor = redactor_of(cluster, options.anonymize)
    report("querying the cluster", limit=options.timeout)
    signals: list[Signal] = []
    collection = run(
        _collectors(cluster, options), options.timeout, lambda: signals.extend(options.signals())
    )
    if not cluster.session_dir:
        _require_an_answer(cluster, collection, _about_addresses(options.address))
    if options.address is None:
        collection.gaps += _newer_session(cluster)
    if options.samples is not None:
        _samples(cluster, options, options.samples, collection, report)
        collection.gaps += _joining(cluster, collection)
    if options.all_nodes and options.logs:
        _other_nodes(cluster, options, signals, collection, report)
    return replace(redacted(cluster, collection, redactor, notes), logs=options.logs)


def redacted(
    cluster: Cluster, collection: Collection, redactor: Redactor, notes: list[str]
) -> Live:
    """A collection without secrets."""
    pieces = collection.pieces
    collection.pieces = {
        path: redactor.redact_rows(data)
        if path.endswith((".json", ".jsonl"))
        else redactor.redact_bytes(data)
        for path, data in pieces.items()
    }
    # Secrets of environments and command lines are redacted in every log as well.
    redactor.learn(redactor.secrets)
    return Live(cluster, collection, redactor, notes)


def _about_addresses(typed: str | None) -> str:
    """The hint for an address that does not work."""
    origin = "" if typed else "It is that of RAY_ADDRESS. "
    return f"{origin}{_ADDRESSES}"


def _require_an_answer(cluster: Cluster, collection: Collection, hint: str) -> None:
    """Raise RaydoctorError if no service of a cluster that runs elsewhere has answered."""
    data = collection.pieces.get("live/live-probes.json")
    probes = json.loads(data)["rows"] if data else []
    if any(probe["outcome"] == "ok" or probe["refusal"] for probe in probes):
        return
    place = cluster.gcs_address or cluster.dashboard_address
    why = next((probe["detail"] or probe["outcome"] for probe in probes), "no reply in time")
    raise RaydoctorError(f"no cluster answers at {place}: {why}", hint)


def _check_address(address: str, hint: str) -> None:
    """Raise RaydoctorError for what cannot be an address."""
    scheme, _, place = address.rpartition("://")
    if address in ("auto", "local") or scheme or place.rpartition(":")[2].isdecimal():
        return
    raise RaydoctorError(f"{address!r} is not the address of a cluster", hint)


def find(address: str | None = None, is_typed: bool = True) -> tuple[Cluster, list[str]]:
    """The cluster to inspect, and notes for the user about the choice.

    `is_typed`: the user typed the address, so that its listener may belong to any user. Raises RaydoctorError
    if this user has neither a cluster nor a session here, or the address is invalid.
    """
    found = discover.clusters()
    latest = session.latest()
    wanted = address or _of_environment(found, latest is not None)
    if wanted:
        _check_address(wanted, _about_addresses(address))
    # Among several clusters of one owner, prefer the session in this user's default folder.
    first = [c for c in found if owners.rank(c.owner) == owners.rank(found[0].owner)]
    own = None if wanted or not latest else discover.choose(first, None, str(latest.path))
    cluster = own or discover.choose(found, wanted)
    notes: list[str] = []
    if cluster is None and wanted and wanted.startswith("ray://"):
        message = f"no cluster on this machine has the Ray Client server {wanted}"
        raise RaydoctorError(message, _about_addresses(address))
    if cluster is None:
        cluster, notes = _dead_session()
    elif not address and len(found) > 1:
        notes = [_choice(cluster, [c for c in found if c is not cluster], wanted)]
    if not wanted and (named := _named_by_environment()):
        notes.append(f"no cluster answers at RAY_ADDRESS={named}: it is not the one inspected here")
    if cluster.owner is not None and cluster.owner not in owners.trusted():
        notes.insert(0, f"this cluster belongs to user {owners.user(cluster.owner)}")
    if discover.has_other_pids(cluster):
        notes.insert(
            0,
            "this cluster runs in a container: the pids of its workers are not those of this machine. "
            "To act on a process, run raydoctor in the container",
        )
    if not is_typed:
        cluster = replace(cluster, typed=())
    return replace(cluster, token=token.find(cluster)), notes


def _dead_session() -> tuple[Cluster, list[str]]:
    """The newest session here, if no cluster may be used, and notes for the user.

    Raises RaydoctorError if there is none.
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
    first = others[0]
    owner = "another user" if first.owner is None else f"user {owners.user(first.owner)}"
    more = f" (and {len(others) - 1} more)" if len(others) > 1 else ""
    return RaydoctorError(
        f"the cluster that runs on this machine belongs to {owner}{more} and is not asked",
        paste.shell(
            "Run raydoctor as that user, or read its logs: raydoctor diagnose {folder}",
            folder=first.session_dir,
        ),
    )


def _newer_session(cluster: Cluster) -> list[Gap]:
    """A gap if a session of this user that is newer than the running cluster has ended.

    A user who asks after a failed program may mean that one. Ray names sessions by their start.
    """
    latest = session.latest()
    if latest is None or latest.is_foreign or not cluster.is_up or not cluster.session_dir:
        return []
    alive = [os.path.basename(c.session_dir) for c in discover.everything()]
    if latest.path.name in alive or latest.path.name <= os.path.basename(cluster.session_dir):
        return []
    why = "it has ended, and this report is on the running cluster. To diagnose it: "
    command = paste.shell("raydoctor diagnose {path:path}", path=str(latest.path))
    return [Gap("a newer session", paste.text(why) + command, optional=True)]


def _named_by_environment() -> str:
    """The address in RAY_ADDRESS; empty if there is none, or Ray itself chooses."""
    address = os.environ.get("RAY_ADDRESS") or ""
    return "" if address in ("auto", "local") else address


def _of_environment(found: list[Cluster], is_a_session_here: bool) -> str | None:
    """The address in RAY_ADDRESS, unless nothing answers there and this machine has something to inspect."""
    address = _named_by_environment()
    if not address or discover.choose(found, address) in found:
        return address or None
    scheme, _, place = address.rpartition("://")
    host, _, port = place.rpartition(":")
    if scheme == "ray" and found:
        return None  # a Ray Client server does not lead to its cluster
    if not (found or is_a_session_here) or not port.isdecimal():
        return None if found else address
    try:
        socket.create_connection((host, int(port)), _REACH).close()
    except (OSError, OverflowError):
        return None
    return address


def _choice(cluster: Cluster, others: list[Cluster], wanted: str | None) -> str:
    """`wanted`: the address in RAY_ADDRESS, which chose the cluster."""
    named = [c.gcs_address or c.session_dir for c in others]
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    by = " of RAY_ADDRESS" if wanted else ""
    return (
        f"looking at the cluster {cluster.gcs_address or cluster.session_dir}{by}; {len(named)} more on this "
        f"machine ({', '.join(named[:3])}{more}): choose with --address"
    )


def redactor_of(cluster: Cluster | None, anonymize: bool = False) -> Redactor:
    """A redactor that knows the cluster's token; `anonymize`: it also replaces names of this machine."""
    secrets = [cluster.token.value] if cluster and cluster.token else []
    hosts = {os.uname().nodename, os.uname().nodename.partition(".")[0]} - {"", "localhost"}
    return shared(secrets, anonymize, sorted(hosts, key=len, reverse=True))


def _collectors(cluster: Cluster, options: CollectOptions) -> list[Collector]:
    """All collectors, those of the cluster itself first: its replies take longest."""
    # Kernel messages from before the cluster's start do not concern it.
    since = options.since or session.began(cluster.session_dir)
    own: list[tuple[str, Callable[[], Iterable[Piece | Gap]], bool]] = [
        ("Ray's daemons", lambda: discover.tables(cluster), False),
        ("the process table", lambda: processes.tables(cluster), False),
        ("where drivers connect", lambda: addresses.tables(cluster), True),
        ("Ray's settings", lambda: settings.tables(cluster), True),
        ("this machine's memory and limits", lambda: host.tables(cluster), True),
        ("memory and disks", lambda: gauges.tables(cluster), True),
        ("the clocks", lambda: clocks.tables(cluster), True),
        ("the kernel log", lambda: kernel.tables(cluster, since), True),
        ("the GPUs", lambda: gpus.tables(cluster), True),
        ("sessions on this machine", lambda: sessions.tables(cluster), True),
    ]
    from raydoctor.waits.candidates import SETTLED

    # Each sampled task is compared with finished tasks of its function, and so is idle work in a diagnosis.
    after = options.samples.min_age_s if options.samples else state.PEERS_AFTER
    all_after = SETTLED if options.logs else math.inf
    tables = state.collectors(cluster, options.timeout, after, all_after) if cluster.is_up else ()
    return [
        *tables,
        *disks.collectors(cluster),
        *(Collector(what, gather, optional) for what, gather, optional in own),
    ]


def _other_nodes(
    cluster: Cluster,
    options: CollectOptions,
    signals: Iterable[Signal],
    collection: Collection,
    report: ReportProgress,
) -> None:
    """Add the readings of nodes that are not on this machine."""
    alive = _alive_nodes(collection)
    if not set(alive) - set(cluster.node_ids[:1]):
        return
    from raydoctor.observe.nodes import nodes

    elsewhere = nodes.elsewhere(cluster, alive)
    if not elsewhere:
        return

    def report_nodes(done: int, total: int) -> None:
        report(f"reading the logs of {total} more nodes: {done} done", done, total)

    for item in nodes.collect(cluster, elsewhere, options.timeout, signals, report_nodes):
        collection.add(item)


def _samples(
    cluster: Cluster,
    options: CollectOptions,
    plan: Sampling,
    collection: Collection,
    report: ReportProgress,
) -> None:
    """Add stack samples of processes with long-running tasks."""
    from raydoctor.observe.gcs import still_running
    from raydoctor.observe.stacks import sampling
    from raydoctor.observe.stacks.suspects import suspects

    found = suspects(collection.pieces, plan, cluster.node_ids)
    collectors = sampling.collectors(cluster, found, plan, options.timeout, options.all_nodes)
    if collectors:
        limit = sampling.seconds(found, plan, options.timeout)
        report(f"sampling {found.total} processes that may be hung", limit=limit)
        sampled = run(collectors, limit)
        after = run([still_running.collector(cluster, options.timeout)], options.timeout)
        for each in (sampled, after):
            collection.pieces.update(each.pieces)
            collection.gaps += each.gaps


def _joining(cluster: Cluster, collection: Collection) -> list[Gap]:
    """Programs of this machine that have not connected to any cluster."""
    from raydoctor.observe.stacks import joining
    from raydoctor.observe.stacks.suspects import rows

    processes = rows(collection.pieces, "processes")
    if not cluster.session_dir or not processes:
        return []
    # A child can be the program of a submitted job.
    return list(joining.gaps({row["pid"] for row in processes if row.get("kind") != "child"}))


def _alive_nodes(collection: Collection) -> list[str]:
    data = collection.pieces.get("live/live-nodes.json")
    rows = json.loads(data)["rows"] if data else []
    return [row["node_id"] for row in rows if row.get("state") == "ALIVE"]


def _add_output_of_drivers(capture: Capture, cluster: Cluster) -> None:
    """Add the files to which drivers on this machine write, which are not in the session."""
    for found in driver_output.find(cluster.session_dir, list(capture.files)):
        if isinstance(found, Gap):
            capture.gaps.append(found)
            continue
        try:
            add_driver_output(capture, found.path, found.stream, found.pid, driver_output.MOST)
        except (OSError, RaydoctorError) as error:
            why = f"cannot be copied: {getattr(error, 'strerror', None) or error}"
            capture.gaps.append(Gap(found.path, why, driver_output.HINT, about="driver"))


def bundle_of(live: Live, capture: Capture, since: float | None = None) -> Bundle:
    """The content of an archive of this collection, without log files last changed before `since`."""
    from raydoctor.observe.bundle import Bundle  # tarfile, zipfile: a diagnosis writes none

    gaps = list(capture.gaps)
    files: dict[Source, str] = {}
    left_out = 0
    # Several sources can be parts of one console.
    originals = dict(
        capture.originals.get((source.path, source.pid), (source, file))
        for source, file in capture.files.items()
    )
    for source, file in originals.items():
        if source.path in live.collection.pieces:
            continue
        if since is not None and _changed(file) < since:
            left_out += 1
        elif source.role == "driver" and source.pid:
            # A file anywhere on this machine; by such a name it is read from the archive.
            files[replace(source, path=f"driver-{source.pid}-{len(files)}.log")] = file
        elif source.role == "driver" and os.path.isabs(source.path):
            files[replace(source, path="driver.log")] = file
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
    """Who collected what, and when: the manifest's first keys."""
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
    """The session's logs on this machine; empty if the cluster runs elsewhere."""
    if not cluster.session_dir:
        return Capture(cluster.gcs_address or cluster.dashboard_address, "live", {})
    try:
        return open_capture(cluster.session_dir)
    except RaydoctorError as error:
        gap = Gap("the session's logs", error.message, "Run raydoctor as the user who runs Ray.")
        return Capture(cluster.session_dir, "live", {}, gaps=[gap])

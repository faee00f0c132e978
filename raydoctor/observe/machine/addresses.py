"""The address that a driver or a `ray` command of this shell would use: table `addresses`.

Ray uses `RAY_ADDRESS`, else the address in the file `ray_current_cluster` of its temp folder, written by the
last `ray start` on that machine, else that of a raylet on this machine (`services.py`,
`get_ray_address_from_environment`, Ray 2.9 to 2.60; for `auto`, the raylet takes precedence over the file).
The file remains when a cluster dies, and Ray's commands wait 40 s for an address that does not answer
(measured with Ray 2.60). Any user can write the file: a file of another user is shown with its owner, and its
address is not contacted.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from raydoctor.capture import owners
from raydoctor.model.values import Gap
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.programs.peers import Access, is_local, verify
from raydoctor.observe.collector.table import Piece, table

CONNECT = 0.5
"""Seconds for a TCP connection."""
_RESOLVE = 1.0
"""Seconds for name resolution and the connection together."""
_FILE = "ray_current_cluster"
_SHOWN = 200


class _Origin(NamedTuple):
    """One place that Ray takes an address from."""

    name: str
    address: str
    written_at: float | None = None
    owner: str | None = None
    """The other user who wrote the file; None: this user or root."""


class _HostPort(NamedTuple):
    host: str
    port: int


@dataclass(slots=True)
class _Answer:
    """Whether an address has a listener, and on which machine."""

    answers: bool = False
    peer: str = ""
    """IP address; empty if the name could not be resolved."""
    seconds: float | None = None
    """Until the connection succeeded, failed or timed out; None: name resolution did not finish."""


def tables(cluster: Cluster, environ: Mapping[str, str] | None = None) -> Iterator[Piece | Gap]:
    """The table `addresses`; `environ` is this shell's."""
    environ = os.environ if environ is None else environ
    origins: list[_Origin] = []
    for found in _origins(cluster, environ):
        if isinstance(found, Gap):
            yield found
        else:
            origins.append(found)
    targets = {o.address: _host_port(o.address) for o in origins}
    home = _host_port(cluster.gcs_address)
    tried = (targets[o.address] for o in origins if o.owner is None)
    own = {home: cluster.access(False)} if home is not None else {}
    answers = _try_all({t: own.get(t) for t in (*tried, home) if t is not None})
    here = answers.get(home) if home else None
    used = _used(origins, str(default_folder(environ) / _FILE))
    rows = [
        _row(origin, targets[origin.address], answers, _Home(home, here), origin is used)
        for origin in origins
    ]
    yield table("addresses", rows, source="environment")


def default_folder(environ: Mapping[str, str]) -> Path:
    """Ray's default temp folder (`_common/utils.py`, `get_default_system_temp_dir`)."""
    return Path(environ.get("RAY_TMPDIR") or environ.get("TMPDIR") or "/tmp", "ray")


# ---------------------------------------------------------------- origins


def _origins(cluster: Cluster, environ: Mapping[str, str]) -> Iterator[_Origin | Gap]:
    if environ.get("RAY_ADDRESS"):
        yield _Origin("RAY_ADDRESS", environ["RAY_ADDRESS"].strip())
    folders = [default_folder(environ), Path("/tmp/ray")]
    if cluster.session_dir:
        folders.append(Path(cluster.session_dir).parent)
    seen: set[str] = set()
    for folder in folders:
        path = folder / _FILE
        if (real := os.path.realpath(path)) not in seen:
            seen.add(real)
            yield from _of_file(path)
    if cluster.gcs_address and cluster.of("raylet"):
        yield _Origin("raylet", cluster.gcs_address)


def _of_file(path: Path) -> Iterator[_Origin | Gap]:
    try:
        found = owners.read_regular(str(path), _SHOWN)
        address = found.data.decode("utf-8", "replace").strip()
        owner = None if found.owner in owners.trusted() else owners.user(found.owner)
        yield _Origin(str(path), address, found.changed, owner)
        if owner is not None:
            why = f"belongs to user {owner}; its address was not contacted"
            hint = "Ray's commands of this shell use it: set RAY_ADDRESS."
            yield Gap(str(path), why, hint, optional=True)
    except FileNotFoundError:
        return
    except OSError as error:
        why = f"could not be read: {error.strerror}"
        yield Gap(str(path), why, "Run as the user who started Ray, or as root.", optional=True)


def _used(origins: list[_Origin], default_file: str) -> _Origin | None:
    """The origin that `ray.init()` and the `ray` commands of this shell use without an explicit address."""
    by_name = {o.name: o for o in origins}
    variable = by_name.get("RAY_ADDRESS")
    if variable and variable.address == "auto":
        return by_name.get("raylet") or by_name.get(default_file)
    return variable or by_name.get(default_file) or by_name.get("raylet")


# ---------------------------------------------------------------- answers


class _Home(NamedTuple):
    """The GCS of the inspected cluster."""

    target: _HostPort | None
    answer: _Answer | None


def _row(
    origin: _Origin,
    target: _HostPort | None,
    answers: Mapping[_HostPort, _Answer],
    home: _Home,
    used: bool,
) -> dict[str, object]:
    answer = answers.get(target) if target else None
    return {
        "origin": origin.name,
        "address": origin.address[:_SHOWN],
        "answers": answer and answer.answers,
        "is_this": bool(target and answer and _is_home(target, answer, home)),
        "used": used,
        "written_at": origin.written_at,
        "owner": origin.owner,
        "seconds": answer and answer.seconds,
    }


def _is_home(target: _HostPort, answer: _Answer, home: _Home) -> bool:
    """Whether this is the same port of the same machine: Ray replaces loopback by the NIC's address."""
    if home.target is None or target.port != home.target.port:
        return False
    if target.host == home.target.host:
        return True
    if home.answer is None or not answer.peer:
        return False
    if answer.peer == home.answer.peer:
        return True
    # Two addresses of this machine: a GCS listens on all of them, or only on its own.
    both = answer.answers and home.answer.answers
    return both and is_local(answer.peer) and is_local(home.answer.peer)


def _host_port(address: str) -> _HostPort | None:
    """Host and port; None for `auto`, `local`, `ray://…`, `http://…` and malformed addresses."""
    host, colon, port = address.rpartition(":")
    host = host.strip("[]")
    if not colon or not host or "/" in host or not (port.isascii() and port.isdigit()):
        return None
    return _HostPort(host, int(port)) if 0 < int(port) < 65536 else None


def _try_all(targets: Mapping[_HostPort, Access | None]) -> dict[_HostPort, _Answer]:
    """Try all targets in parallel, each in a thread: name resolution may hang longer than a connection.

    A listener that the target's access does not permit counts as no answer.
    """
    answers = {target: _Answer() for target in targets}
    threads = [
        threading.Thread(target=_try, args=(target, answer, targets[target]), daemon=True)
        for target, answer in answers.items()
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + _RESOLVE
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return answers


def _try(target: _HostPort, answer: _Answer, access: Access | None) -> None:
    began = time.monotonic()
    with suppress(OSError, UnicodeError):
        # A name may have several addresses (`localhost` is first ::1); one with a listener suffices.
        for _, _, _, _, where in socket.getaddrinfo(*target, type=socket.SOCK_STREAM)[:3]:
            answer.peer = answer.peer or str(where[0])
            ends = (str(where[0]), target.port)
            with suppress(OSError), socket.create_connection(ends, CONNECT) as link:
                if access is not None:
                    verify(link, f"{target.host}:{target.port}", access)
                answer.answers, answer.peer = True, str(where[0])
                break
    answer.seconds = round(time.monotonic() - began, 4)

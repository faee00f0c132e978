"""The cluster to inspect: where it is, and how to query it.

A value that discovery creates and collectors read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from raydoctor.capture import owners
from raydoctor.observe.collector.programs.peers import Access


class Token(NamedTuple):
    """The auth token that this user would send; never written to a file or shown."""

    value: str
    origin: str
    """Where it was found, for gaps and `check`: `RAY_AUTH_TOKEN`, a path."""

    def __repr__(self) -> str:
        """Without the value: a traceback or a log may print it."""
        return f"Token(origin={self.origin!r})"


class Daemon(NamedTuple):
    """One of Ray's own processes, by identity."""

    kind: str
    """`raylet`, `gcs_server`, `dashboard`, `monitor`, `log_monitor`, `agent`, `runtime_env_agent` or
    `client_server`."""
    pid: int
    started_at: float
    """Epoch seconds: pid and this identify a process."""
    state: str
    """One letter of `/proc/PID/stat`: `T` is stopped, `Z` defunct, `D` waits for the disk."""
    session_dir: str = ""
    node_id: str = ""
    uid: int | None = None
    """The user it runs as; None if unknown."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """One cluster, according to the processes and files of this machine."""

    session_dir: str = ""
    """Empty if the cluster runs elsewhere and only its address is known."""
    gcs_address: str = ""
    dashboard_address: str = ""
    """`host:port`; empty if unknown."""
    node_ids: tuple[str, ...] = ()
    """Nodes with a raylet that runs (or ran) on this machine: their logs and processes are here."""
    daemons: tuple[Daemon, ...] = ()
    token: Token | None = None
    token_mode: bool | None = None
    """Whether the cluster was started in token mode, according to the environment of its processes."""
    owner: int | None = None
    """The user that its daemons on this machine run as; None if none of them runs here."""
    typed: tuple[str, ...] = ()
    """Its addresses that the user typed: their listeners may belong to any user."""
    is_vouched: bool = True
    """Whether the programs of its daemons were verified: only then are addresses that they name trusted."""

    def access(self, demands_token: bool | None = None) -> Access:
        """The token to send, and the listeners that may receive it: on this machine, those of its owner.

        A cluster that requires no token receives none; `demands_token` None: as its processes were started.
        """
        needed = self.token_mode if demands_token is None else demands_token
        value = self.token.value if self.token is not None and needed is not False else ""
        uids = None if self.owner is None else (self.owner,)
        return Access(value, uids, self.typed, self.is_vouched)

    def may_have_started(self, uid: int | None) -> bool:
        """Whether a process of this user counts as one that the cluster left: any user can claim that.

        A task that changed its user is not seen here; `zombies` lists it.
        """
        owner = owners.of_folder(self.session_dir) if self.owner is None else self.owner
        return uid is None or uid == owner or uid in owners.trusted()

    def of(self, kind: str) -> tuple[Daemon, ...]:
        """Its daemons of one kind on this machine."""
        return tuple(d for d in self.daemons if d.kind == kind)

    @property
    def is_up(self) -> bool:
        """Whether any process of it runs here, or it runs elsewhere and has an address."""
        return any(d.state != "Z" for d in self.daemons) or not self.session_dir

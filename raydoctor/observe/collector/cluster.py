"""Which cluster is looked at: where it is, and how to ask it.

A value that discovery makes and collectors read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from raydoctor.observe.collector.programs.peers import Access


class Token(NamedTuple):
    """The auth token that this user would send; never written, never shown."""

    value: str
    origin: str
    """Where it is from, for gaps and `check`: `RAY_AUTH_TOKEN`, a path."""

    def __repr__(self) -> str:
        """Without the value: a traceback or a log may print it."""
        return f"Token(origin={self.origin!r})"


class Daemon(NamedTuple):
    """A process of Ray's own, by identity."""

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
    """The user whom it runs as; None where that is unknown."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """One cluster, as the processes and files of this machine show it."""

    session_dir: str = ""
    """Empty: it lives elsewhere, only its address is known."""
    gcs_address: str = ""
    dashboard_address: str = ""
    """`host:port`; empty where none is known."""
    node_ids: tuple[str, ...] = ()
    """Nodes whose raylet runs (or ran) on this machine: their logs and processes are here."""
    daemons: tuple[Daemon, ...] = ()
    token: Token | None = None
    token_mode: bool | None = None
    """Whether the cluster was started to demand a token, where a process of it says so."""
    owner: int | None = None
    """The user whom its daemons here run as; None where none of them runs here."""
    typed: tuple[str, ...] = ()
    """Its addresses that the user typed: their listeners may belong to any user."""
    is_vouched: bool = True
    """Whether the programs of its daemons could be read: only then may they name addresses elsewhere."""

    def access(self, demands_token: bool | None = None) -> Access:
        """What it is sent, and which listeners may receive it: its owner's, on this machine.

        No token goes to a cluster that demands none; `demands_token` None: as its processes were started.
        """
        needed = self.token_mode if demands_token is None else demands_token
        value = self.token.value if self.token is not None and needed is not False else ""
        uids = None if self.owner is None else (self.owner,)
        return Access(value, uids, self.typed, self.is_vouched)

    def of(self, kind: str) -> tuple[Daemon, ...]:
        """Its daemons of one kind on this machine."""
        return tuple(d for d in self.daemons if d.kind == kind)

    @property
    def is_up(self) -> bool:
        """Whether anything of it runs here, or it is elsewhere and has an address."""
        return any(d.state != "Z" for d in self.daemons) or not self.session_dir

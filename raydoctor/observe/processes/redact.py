"""The redactor for collectors: one numbering for the whole process, and command lines without secrets.

`raydoctor/redact/` defines what a secret is.
"""

from __future__ import annotations

from collections.abc import Iterable

from raydoctor.observe.processes import proc
from raydoctor.redact import RedactionLedger, Redactor

__all__ = ["LEDGER", "RedactionLedger", "Redactor", "command_line", "shared"]

LEDGER = RedactionLedger()
"""Shared by this process: a secret has the same placeholder in a command line and in the logs."""


def shared(
    secrets: Iterable[str] = (), anonymize: bool = False, hosts: Iterable[str] = ()
) -> Redactor:
    """A redactor that shares its numbering of placeholders with all others of this process."""
    return Redactor(secrets, anonymize, hosts, LEDGER)


def command_line(pid: int) -> str:
    """The redacted command line of a process; empty if it has none, or it is not readable.

    Its words are redacted before they are joined: afterwards their limits are lost.
    """
    words = proc.command(pid)
    return " ".join(shared().redact_argv(words)) if words else ""

"""The redactor as collectors use it: one numbering for all of a process, and command lines without secrets.

What a secret is, is in `raydoctor/redact/`, which touches nothing outside its arguments.
"""

from __future__ import annotations

from collections.abc import Iterable

from raydoctor.observe.processes import proc
from raydoctor.redact import RedactionLedger, Redactor

__all__ = ["LEDGER", "RedactionLedger", "Redactor", "command_line", "shared"]

LEDGER = RedactionLedger()
"""Of this process: a secret of a command line has the placeholder here that it has in the logs."""


def shared(
    secrets: Iterable[str] = (), anonymize: bool = False, hosts: Iterable[str] = ()
) -> Redactor:
    """A redactor whose placeholders are numbered with all others of this process."""
    return Redactor(secrets, anonymize, hosts, LEDGER)


def command_line(pid: int) -> str:
    """The command line of a process for people; empty where it has none, or it may not be read.

    Its elements are looked at before they are joined: afterwards nobody can tell which word belongs to which.
    """
    words = proc.command(pid)
    return " ".join(shared().redact_argv(words)) if words else ""

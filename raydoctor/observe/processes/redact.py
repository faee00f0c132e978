"""The redactor for collectors: one numbering for the whole process, and command lines without secrets.

`raydoctor/redact/` defines what a secret is.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from raydoctor.observe.processes import proc
from raydoctor.redact import RedactionLedger, Redactor

__all__ = ["LEDGER", "RedactionLedger", "Redactor", "command_line", "name_of_task", "shared"]

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


@lru_cache(maxsize=4096)  # a watch shows the same names in each round
def name_of_task(name: str) -> str:
    """The name of a task without secrets: `options(name=…)` can contain a URL with its password."""
    return shared().redact(name)

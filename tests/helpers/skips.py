"""Which tests CI may skip, and why. Any other skip there is a failure: a check that silently went away."""

from __future__ import annotations

from typing import NamedTuple


class Skip(NamedTuple):
    """A reason for a skip that says nothing bad about the machine."""

    reason: str
    """As the test gives it."""
    because: str
    """Why a machine of CI may lack it."""


EXPECTED = (
    Skip("there is no Python 3.14", "CI installs one Python"),
    Skip("this Python has a way of its own", "for Python 3.13 and older"),
    Skip("gdb is not installed", "gdb is an optional backend of `attach`"),
    Skip("gdb cannot restore registers here", "gdb 13 on processors with AMX"),
    Skip("zsh is not installed", "a shell of which prompts are tried"),
    Skip("fish is not installed", "a shell of which completions are tried"),
    Skip("Chromium is not installed", "a browser for the pages of `--format html`"),
    Skip("tmux is not installed", "a terminal to drive `watch` in"),
    Skip("promtool is not installed", "Prometheus' own tool checks metrics and alerts"),
    Skip("Sarif.Multitool is not installed", "the validator of SARIF's authors"),
    Skip("IPython is not installed", "notebooks are optional"),
    Skip("no memory cgroup", "containers without cgroup controllers"),
    Skip("no right to make a cgroup", "containers with read-only cgroups"),
    Skip("the memory controller is not handed on", "containers without a delegated controller"),
    Skip("no right to mount", "containers without CAP_SYS_ADMIN"),
    Skip("needs a pid namespace of its own", "containers without CAP_SYS_ADMIN"),
    Skip("needs a time namespace of its own", "containers without CAP_SYS_ADMIN"),
    Skip("other leftovers run on this machine", "containers without CAP_SYS_ADMIN"),
    Skip("needs namespaces and cgroups of its own", "containers with read-only cgroups"),
    Skip("Linux only", "machines with macOS"),
    Skip("this machine has a GPU", "the test is for machines without one"),
    Skip("every user may read it here, or none", "depends on kernel.dmesg_restrict"),
)


def is_expected(reason: str) -> bool:
    """Whether CI may skip a test for this reason."""
    return reason.removeprefix("Skipped: ") in {skip.reason for skip in EXPECTED}

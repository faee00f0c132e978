"""The limit of open files (`ulimit -n`) in Python's errors, and its remedy for programs that reach it themselves."""

from __future__ import annotations

from raydoctor.model.values import Remedy

OUT_OF_FILES = "[Errno 24]"
"""EMFILE, as Python prints it."""
MORE_FILES = Remedy(
    "Close files that are no longer needed, or raise the hard limit: Ray raises each worker's own limit to it",
    (
        "ulimit -n 65536   # before ray start, or before the program that calls ray.init(); if refused: nofile in /etc/security/limits.conf",
        "docker run --ulimit nofile=65536:65536   # plus your other options",
    ),
)

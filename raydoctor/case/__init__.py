"""The parts of rules and their input: a case, its facts, signals, the `rule` decorator."""

from __future__ import annotations

from raydoctor.case.case import Case as Case

__all__ = ["Case"]

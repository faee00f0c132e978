"""`raydoctor.json` at the root of a collected capture: its origin, its time, and its gaps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from raydoctor.model import paste
from raydoctor.model.values import Gap

NAME = "raydoctor.json"
SCHEMA = "raydoctor/capture/1"
_LIMIT = 8 << 20


def dump(gaps: Iterable[Gap], facts: Mapping[str, Any]) -> bytes:
    """A manifest as a file; `facts` are its further keys."""
    document = {"schema": SCHEMA, **facts, "gaps": [asdict(gap) for gap in gaps]}
    return (json.dumps(document, indent=1, default=str) + "\n").encode()


def gaps_of(file: str) -> list[Gap]:
    """The gaps of the collection, which every diagnosis of its capture reports.

    A manifest that cannot be read is itself a gap, because it may have listed others.
    """
    try:
        with open(file, "rb") as stream:
            document = json.loads(stream.read(_LIMIT))
        if not str(document["schema"]).startswith("raydoctor/capture/"):
            raise ValueError(document["schema"])
        return [_gap(g, optional=g.get("optional") is True) for g in document["gaps"]]
    except OSError as error:
        return [Gap(NAME, f"could not be read: {error.strerror}")]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return [Gap(NAME, "is damaged, so the gaps of the collection are unknown")]


_ABOUT = {"kernel log": "kernel"}
"""What a gap is about, for archives of versions that did not record it."""


def _gap(row: Mapping[str, Any], *, optional: bool) -> Gap:
    """A gap. Its hint becomes prose: an archive may come from anyone, so it must not be a line to paste.

    The hint of optional evidence is omitted: it is about the collector's machine, not the reader's.
    """
    hint = "" if optional else str(row.get("hint") or "")
    advice = paste.text("The collector advised: {hint}", hint=hint) if hint else ""
    what = str(row["what"])
    about = str(row.get("about") or _ABOUT.get(what, ""))
    return Gap(what, str(row["why"]), advice, optional, about)

"""`raydoctor.json` at the root of a collected capture: who took it, when, of what, and what is not in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from raydoctor.model import paste
from raydoctor.model.values import Gap

NAME = "raydoctor.json"
SCHEMA = "raydoctor/capture/1"
_LIMIT = 8 << 20


def dump(gaps: Iterable[Gap], told: Mapping[str, Any]) -> bytes:
    """A manifest as a file; `told` are its further keys."""
    document = {"schema": SCHEMA, **told, "gaps": [_as_json(gap) for gap in gaps]}
    return (json.dumps(document, indent=1, default=str) + "\n").encode()


def _as_json(gap: Gap) -> dict[str, Any]:
    return {"what": gap.what, "why": gap.why, "hint": gap.hint, "optional": gap.optional}


def gaps_of(file: str) -> list[Gap]:
    """What the collection could not have: its gaps are those of every diagnosis of its capture.

    A manifest that cannot be read is itself one: it may have told of others.
    """
    try:
        with open(file, "rb") as stream:
            document = json.loads(stream.read(_LIMIT))
        if not str(document["schema"]).startswith("raydoctor/capture/"):
            raise ValueError(document["schema"])
        return [
            Gap(str(g["what"]), str(g["why"]), _hint(g.get("hint")), g.get("optional") is True)
            for g in document["gaps"]
        ]
    except OSError as error:
        return [Gap(NAME, f"could not be read: {error.strerror}")]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return [Gap(NAME, "is damaged: what the collection could not have is not known")]


def _hint(told: object) -> str:
    """What the collector advised; an archive comes from anybody, so that this is no line to paste."""
    return paste.text("The collector advised: {hint}", hint=str(told)) if told else ""

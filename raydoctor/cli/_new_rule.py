"""`raydoctor rules new`: the skeleton of a rule file.

The skeleton loads, and its example message triggers it. Each part that the author has to replace contains
`FILL-IN`, which `raydoctor rules test` rejects.
"""

from __future__ import annotations

import os
import re

from raydoctor.capture import outputs, owners
from raydoctor.model.errors import RaydoctorError

_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")


def write(name: str, folder: str) -> str:
    """Write the skeleton of a rule into a folder, which is created if necessary; return the file's path.

    Raises RaydoctorError if the name is invalid, or the file exists or cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise RaydoctorError(
            f"{name!r} cannot be the name of a rule",
            "Use small letters, digits and hyphens: flux-hot.",
        )
    path = os.path.join(folder, name.replace("-", "_") + ".py")
    text = _SKELETON.replace("NAME", name).replace("FUNCTION", name.replace("-", "_"))
    try:
        os.makedirs(owners.output_path(folder), exist_ok=True)
        if os.path.lexists(path):
            raise RaydoctorError(f"{path} exists already", "Give the rule another name.")
        with outputs.place(path) as place, place.replaced(place.mode()) as file:
            file.write(text.encode())
    except OSError as error:
        raise RaydoctorError(
            f"cannot write {path}: {error.strerror}", "Give another folder with --dir."
        ) from None
    return path


_SKELETON = '''"""FILL-IN: one sentence that says what happened.

## What you see
FILL-IN: the message or exception, as code: `SomeError: the disk of … is on fire`.

## Why
FILL-IN: what went wrong, and which facts prove it.

## Confirm
- FILL-IN: a command, and what its output shows.

## Fix
FILL-IN: what to change.

## Not this when
- FILL-IN: a condition that continues the heading, and what it is then: the disk was fine (`other-rule`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case
from raydoctor.case.rule import Example, Signal, rule
from raydoctor.model.entities import Entity
from raydoctor.model.values import Finding, Link, Remedy

# FILL-IN: `find` is the literal that ripgrep searches. `pattern` is matched against the record without its
# header; named groups become fields. `roles` are the files that contain such lines. `sample` is a real line.
_SEEN = Signal(
    kind="NAME.seen",
    find="FILL-IN: the disk of ",
    pattern=r"FILL-IN: the disk of (?P<what>\\S+) is on fire",
    roles=("raylet-out",),
    sample="FILL-IN: the disk of /data is on fire",
    symptom=True,
)


@rule(
    tier="root",  # where an incident starts; `cause`: explains symptoms; `symptom`: what the program saw
    severity="error",
    rank=50,  # FILL-IN: which rule wins if two explain the same exit, the lower one: see CONTRIBUTING.md
    explains=("worker",),  # FILL-IN: the kinds of the entities below; raydoctor/model/entities.py lists all
    caused_by=("node",),
    looks_for=(_SEEN,),
    remedies=(Remedy("FILL-IN: what to do", ("FILL-IN: the line to paste",)),),
)
def FUNCTION(case: Case) -> Iterator[Finding]:
    """One finding per event."""
    for event in case.of(_SEEN.kind):
        yield Finding(
            f"FILL-IN: the disk of {event['what']} is on fire",
            (Link(event, "FILL-IN: what this line proves"),),
            # FILL-IN: the entities that this failure ended, and those whose end would explain it.
            explains=tuple(Entity("worker", e.value) for e in event.entities if e.kind == "worker"),
            caused_by=(Entity("node", node),) if (node := case.node_of(event.source)) else (),
        )


_HEADER = "[2026-11-21 07:34:50,739 E 283 293] (raylet) file.cc:3: "
EXAMPLES = (
    Example(
        "FILL-IN: what the rule finds",
        {"logs/raylet.out": f"{_HEADER}{_SEEN.sample}\\n", "logs/gcs_server.out": ""},
        roots=("NAME",),
    ),
    Example(
        "FILL-IN: what would fool a plain search",
        {
            "logs/raylet.out": f"{_HEADER}FILL-IN: the disk of /data is fine\\n",
            "logs/gcs_server.out": "",
        },
    ),
)
'''

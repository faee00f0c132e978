"""A remote function or an actor class captures a large object from the surrounding scope.

## What you see
`Warning: The remote function … is very large (22 MiB)` above 10 MB, or `ValueError: The remote function … is too
large (114 MiB > FUNCTION_SIZE_ERROR_THRESHOLD=95 MiB)` above 100 MB.

## Why
Ray pickles a function or class once, together with every global variable and every variable of an enclosing function
that it uses, and stores the result in the GCS. Each worker that runs the function loads all of it, and the pickle takes up the
head node's memory until the job ends.

## Confirm
- `inspect.getclosurevars(function._function)` lists the nonlocals and globals that a remote function uses.
- Look for arrays, tables or models that are created outside the function and used inside.

## Fix
Put the object into the object store once (`ray.put`) and pass the reference as an argument. Or load the object inside
the function or in the actor's `__init__`.

## Not this when
- large values are passed as *arguments*, by value, again and again (`large-argument`).
- the object cannot be pickled at all (`not-serializable`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import DRIVER, RAY_EXCEPTION
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared.task_error import ERROR_TEXT, Printed, printed

_ADVICE = (
    "Check that its definition is not implicitly capturing a large array or other object in scope. Tip: use ray.put() to put "
    "large objects in the Ray object store."
)
VERY_LARGE = Signal(
    "closure.large",
    " is very large (",
    r"^(?:Warning: )?The (?P<what>remote function|actor|function) (?P<name>.+?) is very large \((?P<mib>\d+) MiB\)",
    ("raylet-echo",),
    f"Warning: The remote function __main__.lookup is very large (22 MiB). {_ADVICE}",
    fold=("what", "name"),
)
TOO_LARGE = Signal(
    "closure.too_large",
    " MiB > FUNCTION_SIZE_ERROR_THRESHOLD=",
    r"^(?:\| )*ValueError: The (?P<what>remote function|actor|function) (?P<name>.+?) is too large \((?P<mib>\d+) MiB > "
    r"FUNCTION_SIZE_ERROR_THRESHOLD=(?P<limit>\d+) MiB\)",
    DRIVER,
    f"ValueError: The remote function __main__.lookup is too large (114 MiB > FUNCTION_SIZE_ERROR_THRESHOLD=95 MiB). {_ADVICE}",
    symptom=True,
    fold=("what", "name"),
)
_DOC = "https://docs.ray.io/en/latest/ray-core/patterns/closure-capture-large-objects.html"


@rule(
    tier="root",
    severity="warning",
    rank=78,
    explains=("closure",),
    looks_for=(VERY_LARGE, TOO_LARGE, RAY_EXCEPTION, ERROR_TEXT),
)
def large_closure(case: Case) -> Iterator[Finding]:
    """One finding per function or class."""
    groups = evidence.grouped(
        case.of("closure.large", "closure.too_large"), lambda e: (e["what"], e["name"])
    )
    around = list(printed(case))
    for (what, name), events in groups.items():
        yield _finding(what, name, events, around)


def _finding(what: str, name: str, events: list[Event], around: list[Printed]) -> Finding:
    refused = [e for e in events if e.kind == "closure.too_large"]
    worst = max(refused or events, key=lambda e: int(e["mib"]))
    size = f"{worst['mib']} MiB"
    limit = f" and exceeds the limit of {worst['limit']} MiB" if refused else ""
    outer = [p for e in events for p in around if p.contains(e)]
    shows = "refuses to export it" if refused else "only warns"
    return Finding(
        f"The {what} {name} captures a large object: its pickle takes {size}{limit}",
        (Link(worst, f"{what} {name}: {size}; Ray {shows}"),),
        explains=(Entity("closure", f"{what} {name}"),),
        subjects=(Subject("actor" if what == "actor" else "function", None, name),),
        count=evidence.total(refused or events),
        severity="error" if refused else None,
        remedies=_remedies(what, name, size, bool(refused)),
        covers=(*events, *(e for p in outer for e in p.records)),
    )


def _remedies(what: str, name: str, size: str, refused: bool) -> tuple[Remedy, ...]:
    bare = name.rpartition(".")[2]
    if what == "actor":
        use = "@ray.remote\nclass {actor:name}:\n    def __init__(self, table):   # Ray passes the value\n        self.table = table"
        call = "{actor:name}.remote(table)"
        inner = "import inspect; print(inspect.getclosurevars(inspect.unwrap({actor:name}.__ray_metadata__.modified_class.a_method)))"
    else:
        use = "@ray.remote\ndef {actor:name}(..., table):   # Ray passes the value\n    ..."
        call = "{actor:name}.remote(..., table)"
        inner = "import inspect; print(inspect.getclosurevars({actor:name}._function))"
    put = Remedy(
        f"Store the captured {size} once with ray.put and pass the reference to {bare}",
        (
            "table = ray.put(table)   # once, in the driver",
            paste.python(use, actor=bare),
            paste.python(call, actor=bare),
        ),
        doc=_DOC,
    )
    find = Remedy(
        f"List the variables that {bare} captures: its nonlocals and globals",
        (paste.python(inner, actor=bare),),
        doc=_DOC,
    )
    if not refused:
        return (put, find)
    gain_time = Remedy(
        "Raise the limit (in bytes) only to gain time: the GCS then stores every such pickle",
        ("FUNCTION_SIZE_ERROR_THRESHOLD=200000000 python your_script.py",),
        risk="disruptive",
        doc=_DOC,
    )
    return (put, find, gain_time)


# ------------------------------------------------------------------ examples


EXAMPLES: tuple[Example, ...] = (
    console(
        "over the limit: Ray refuses to export it",
        f'Traceback (most recent call last):\n  File "/app/main.py", line 30, in main\n{TOO_LARGE.sample}\n',
        logs=QUIET_LOGS,
        says=("__main__.lookup", "114 MiB", "95 MiB", "ray.put"),
        severity="error",
    ),
    console(
        "an actor below the limit: Ray only warns",
        f"(raylet) Warning: The actor Encoder is very large (22 MiB). {_ADVICE}\n",
        logs=QUIET_LOGS,
        says=("Encoder", "22 MiB", "__init__"),
    ),
    console(
        "a program prints a similar sentence",
        "The remote function lookup is very large (22 MiB), says the handbook\n",
        logs=QUIET_LOGS,
    ),
)

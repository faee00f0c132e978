"""An object had to be sent to another process, but cannot be pickled.

## What you see
`TypeError: Could not serialize the argument <…> for a task or actor …`, `… the function …`, `… the actor class …` or `…
the put value …`, with a block `Checking Serializability of …` that contains `FailTuple(…)`. For a task's result the
error is a `RayTaskError(TypeError)` that ends in `cannot pickle '…' object`. Up to Ray 2.49 an exception that cannot be
rebuilt appears as `RaySystemError: System error: Failed to unpickle serialized exception`. A `PicklingError: Can't
pickle <…>: it's not the same object as …` reaches the program unchanged.

## Why
Ray pickles functions, actor classes, arguments, results and exceptions to send them to another process. Locks, sockets,
database and GPU handles, open files, generators and running frames cannot be pickled. Pickling a function includes
every global variable, and every variable of an enclosing function, that it uses. Pickling a method includes its whole
object.

## Confirm
- `FailTuple(name [path=…, obj=…, parent=…])` names the object that cannot be pickled, and the object that holds it.
- `ray.util.inspect_serializability(obj, name=…)` prints the same for any object.

## Fix
Create the object where it is used: inside the task, or in an actor's `__init__`. Or leave it out of the pickle
(`__getstate__`, `__reduce__`), or register a serializer: `ray.util.register_serializer`.

## Not this when
- a line of your own program is directly above `cannot pickle`: your code then pickled something itself
  (`task-exception`).
- the worker cannot import a module: that is not a pickling problem.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.facts import WorkerExit
from raydoctor.case.rule import QUIET_LOGS, Example, console, rule
from raydoctor.case.signals import DRIVER, RAY_EXCEPTION, TRACEBACK, WORKER_EXIT
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared.exit_code import EXITING, Left, left_by_itself
from raydoctor.rules.shared.failures import ended_programs
from raydoctor.rules.shared.serialize import (
    CHECKED,
    CULPRIT,
    INSPECTED,
    NOT_REBUILT,
    PICKLE_ERROR,
    REFUSED,
    UNBUILT,
    is_about_pickling,
    is_by_ray,
    reason,
    without_address,
)
from raydoctor.rules.shared.task_error import ERROR_TEXT, printed
from raydoctor.rules.shared.traceback import Raised, parse

_DOC = "https://docs.ray.io/en/latest/ray-core/objects/serialization.html"


@rule(
    tier="root",
    severity="error",
    rank=52,
    explains=("serialization",),
    looks_for=(
        REFUSED,
        CULPRIT,
        INSPECTED,
        CHECKED,
        PICKLE_ERROR,
        UNBUILT,
        TRACEBACK,
        RAY_EXCEPTION,
        ERROR_TEXT,
        EXITING,
        WORKER_EXIT,
    ),
)
def not_serializable(case: Case) -> Iterator[Finding]:
    """One finding per object that could not be pickled or rebuilt."""
    groups: dict[str, list[_RefusedPickle]] = {}
    for refusal in [*_refused(case), *_results(case), *_exceptions(case), *_ends(case)]:
        groups.setdefault(refusal.object, []).append(refusal)
    if not groups:
        for refusal in [*_inspected(case)] or _plain(case):
            groups.setdefault(refusal.object, []).append(refusal)
    for refusals in groups.values():
        yield _finding(case, refusals)


class _RefusedPickle(NamedTuple):
    """One object that could not be pickled, or not rebuilt."""

    object: str
    """`the argument Database of main.count_rows`."""
    why: str
    events: tuple[Event, ...]
    """The refusal first, then the events that belong to it."""
    holder: str = ""
    """The class that holds the culprit, or the function that captures it."""
    is_object: bool = False
    """Whether the holder is an object of a class, not a function."""
    culprit: tuple[str, ...] = ()
    """The path to the culprit: the first is a variable, or an attribute of the refused object."""
    user: str = ""
    """The function that uses the captured variable, if Ray refused another one that leads to it."""
    is_exception: bool = False
    is_captured: bool = False
    function: str = ""
    exit: WorkerExit | None = None


# ---------------------------------------------------------------- where refusals are logged


def _refused(case: Case) -> Iterator[_RefusedPickle]:
    """`Could not serialize the …`, in the driver or inside a task."""
    events = case.of("serialize.refused")
    around = list(printed(case))
    for event in events:
        after = min(
            (e.line for e in events if e.source == event.source and e.line > event.line),
            default=1 << 62,
        )
        culprits = [
            e
            for e in case.of("serialize.culprit")
            if e.source == event.source and event.line < e.line < after
        ]
        outer = [p for p in around if p.contains(event)]
        what, described = _described(event)
        parent = without_address(culprits[0]["parent"]) if culprits else ""
        functions, culprit = _path(event, culprits[0]) if culprits else ([], ())
        yield _RefusedPickle(
            object=described,
            why=reason(event.message),
            events=(
                *(event, *culprits, *_causes(case, event)),
                *(e for p in outer for e in p.records),
            ),
            holder=_class_of(parent),
            is_object=bool(_OBJECT.match(parent)),
            culprit=culprit,
            user=functions[-1] if functions else "",
            is_captured=what in ("function", "actor class"),
            function=(event["target"] or event["object"]).strip().removesuffix(".__init__"),
        )


def _described(event: Event) -> tuple[str, str]:
    what, object_ = event["what"], without_address(event["object"].strip())
    name = _class_of(object_) or object_[:80].removesuffix(".__init__")
    if what == "argument":
        return what, f"the argument {name} of {event['target'] or 'a task or actor'}"
    return what, f"the {what} {name}".strip()


_OBJECT = pattern(r"<(?:\w+ )?(?P<type>[\w.]+) object\b")
_FUNCTION = pattern(r"<function (?P<name>.+?)>?$")


def _class_of(text: str) -> str:
    """`Database` of `<__main__.Database object at 0x…>`; of a function its name."""
    bare = without_address(text)
    if found := _OBJECT.match(bare):
        return found["type"].removeprefix("__main__.")
    found = _FUNCTION.match(bare)
    return found["name"] if found else ""


def _name_of(culprit: Event) -> str:
    if culprit["path"]:
        return culprit["path"]
    name = culprit["name"]
    return "" if name.startswith("<") or name == "unknown" else name


def _part_of(culprit: Event) -> str:
    """`database.lock, held by Database`."""
    name, holder = _name_of(culprit).replace(_ARROW, "."), _class_of(culprit["parent"])
    return f"{name or 'the object itself'}{f', held by {holder}' if holder else ''}"


_ARROW = " -> "
_FUNCTIONS = ("<function ", "<bound method ", "<cyfunction ")
_WRAPPED = "method"
"""The variable by which Ray's tracing refers to the method that it has wrapped (`tracing_helper.py`)."""


def _path(refusal: Event, culprit: Event) -> tuple[list[str], tuple[str, ...]]:
    """The functions that lead to the captured variable, and the path from this variable to the culprit.

    The inspection above the culprit shows what each name on the path is. A function cannot be moved as a variable can.
    """
    names = [name for name in _name_of(culprit).split(_ARROW) if name]
    functions: list[str] = []
    lines = [line.lstrip() for line in refusal.message.splitlines()]
    while len(names) > 1:
        shown = tuple(f"Serializing '{names[0]}' {kind}" for kind in _FUNCTIONS)
        if not any(line.startswith(shown) for line in lines):
            break
        name = names.pop(0)
        if not (functions and name == _WRAPPED):
            functions.append(name)
    return functions, tuple(names)


_LEADS_ON = "The above exception was the direct cause of the following exception:"


def _causes(case: Case, refusal: Event) -> list[Event]:
    """The pickler's own traceback above the one that ends in a refusal."""
    inside = [e for e in case.of(TRACEBACK.kind) if e.source is refusal.source]
    outer = [e for e in inside if _is_within(refusal, e)]
    return [
        e
        for e in inside
        if e.text.rstrip().endswith(_LEADS_ON)
        and any(0 < o.line - e.line - e.text.count("\n") <= _BELOW for o in outer)
    ]


def _results(case: Case) -> Iterator[_RefusedPickle]:
    """A `RayTaskError` that ends in the pickler's own exception: Ray could not pickle the task's result."""
    for seen in printed(case):
        raised = seen.failure.raised
        if (
            raised is None
            or not is_about_pickling(raised)
            or raised.message.startswith("Could not")
        ):
            continue
        function = seen.failure.function
        yield _RefusedPickle(
            f"the result of {function}",
            raised.message,
            seen.records,
            function=function,
        )


_BELOW = 2
"""Lines from the name of an inspected object to the reason."""


def _inspected(case: Case) -> Iterator[_RefusedPickle]:
    """The output of `inspect_serializability`, without the exception of Ray that usually stands above it."""
    for event in case.of(INSPECTED.kind):
        above = evidence.last_before(case, event, CHECKED.kind)
        if event.source.is_excerpt and above and event.line - above.line <= _BELOW:
            name = without_address(above["object"])
            yield _RefusedPickle(
                f"the object {_class_of(name) or name[:80]}", event["why"].strip(), (event, above)
            )
        elif event.source.is_excerpt and event.line <= _BELOW:
            yield _RefusedPickle("an object", event["why"].strip(), (event,))


_UNBUILT = pattern(
    r"^(?:\w{1,60}\.){0,9}(?P<type>\w{1,60}(?:Error|Exception)): (?P<why>(?:(?P<class>\w{1,200})\.__init__\(\))?.*)$",
    re.MULTILINE,
)
_NO_MODULE = pattern(r"No module named '(?P<module>[\w.]{1,200})'")


def _exceptions(case: Case) -> Iterator[_RefusedPickle]:
    """Up to 2.49: an exception that its receiver cannot rebuild. Ray logs it as well, and passes it on through tasks."""
    events = [
        event
        for event in case.of("driver.exception", ERROR_TEXT.kind, TRACEBACK.kind)
        if NOT_REBUILT in event.message
    ]
    reasons = {event: found for event in events if (found := _unbuilt(event))}
    groups = evidence.grouped(reasons, lambda e: reasons[e]["why"])
    if not events:
        events = [e for e in case.of(UNBUILT.kind) if e.source.is_excerpt]
        reasons = {event: found for event in events if (found := _UNBUILT.search(event["what"]))}
        groups = evidence.grouped(reasons, lambda e: reasons[e]["why"])
    cut_off = [event for event in events if event not in reasons]
    for why, about in groups.items():
        name = reasons[about[0]]["class"] or ""
        described = f"the exception {name}" if name else "an exception of a task"
        first = sorted(about, key=lambda e: e.kind != "driver.exception")
        rest = cut_off if len(groups) == 1 else []
        yield _RefusedPickle(described, why, (*first, *rest), name, is_exception=True)
    if events and not groups:
        yield _RefusedPickle("an exception of a task", "", tuple(events), is_exception=True)


def _unbuilt(event: Event) -> re.Match[str] | None:
    """The exception that ended the attempt to rebuild another one: the first of the chain."""
    text = event.message
    first = text.find("in from_ray_exception")
    found = _UNBUILT.search(text, first) if first >= 0 else None
    return found if found and NOT_REBUILT not in found["why"] else None


def _plain(case: Case) -> Iterator[_RefusedPickle]:
    """The pickler's own exception in a driver: below Ray's frames, or without any frames where a paste has lost them."""
    tracebacks = [e for e in case.of(TRACEBACK.kind) if e.source.role in DRIVER and not e["who"]]
    lines = case.of(PICKLE_ERROR.kind)
    reported = case.of(REFUSED.kind, "driver.exception")
    refused = {
        e.source for e in case.of(REFUSED.kind)
    }  # a refusal's first traceback is the pickler's
    for event in tracebacks:
        raised = parse(event.message)
        own = event.source not in refused and not any(_is_within(e, event) for e in reported)
        if raised and own and is_by_ray(raised):
            inside = [e for e in lines if _is_within(e, event)]
            user = [f for f in raised.frames if f.is_user_code]
            what = _named(raised.message, f"a value that {user[-1]} passes to Ray" if user else "")
            yield _RefusedPickle(what, raised.message, (event, *inside))
    for ending, raised in ended_programs(case):
        if not raised.frames and is_about_pickling(raised) and not (tracebacks or reported):
            yield _RefusedPickle(_named(raised.message), raised.message, (ending,))
    around = [*tracebacks, *reported, *case.of("task.error_text")]
    for event in lines:
        if not any(_is_within(event, other) for other in around):
            why = event.message[event.message.find("Can't pickle") :].strip().rstrip("`")
            yield _RefusedPickle(_named(why), why, (event,))


def _is_within(event: Event, other: Event) -> bool:
    begin = other.line
    return event.source is other.source and begin <= event.line <= begin + other.text.count("\n")


_PICKLED = pattern(r"[Cc]an(?:'t|not) pickle (?P<name><[^\n]{1,300}?>|'[^'\n]{1,200}')(?:$|[: ])")


def _named(message: str, otherwise: str = "") -> str:
    """`the object Counter.__init__` of a pickler's message."""
    found = _PICKLED.search(message)
    if not found:
        return otherwise or "an object that Ray has to send"
    bare = without_address(found["name"]).strip("<>'")
    return f"the object {bare.rpartition(' ')[2] or bare}"


def _ends(case: Case) -> Iterator[_RefusedPickle]:
    """Ray 2.9: an exception that cannot be pickled ends its worker."""
    for exit_ in case.exits:
        left = left_by_itself(case, exit_)
        raised = parse(left.traceback) if left and left.traceback else None
        if left and raised and is_about_pickling(raised):
            yield _end(exit_, left, raised)


def _end(exit_: WorkerExit, left: Left, raised: Raised) -> _RefusedPickle:
    first = raised.cause
    described = (
        f"the exception {first.name}, raised by {first.place}," if first else "a task's result"
    )
    events = (left.event, *exit_.events)
    name = first.name if first else ""
    return _RefusedPickle(
        described, raised.message, events, name, is_exception=first is not None, exit=exit_
    )


# ---------------------------------------------------------------- the finding


def _finding(case: Case, refusals: list[_RefusedPickle]) -> Finding:
    best = refusals[0]
    exits = [r.exit for r in refusals if r.exit]
    crashed = evidence.attempts_covered(case, exits) if exits else ()
    verb = (
        "could not be rebuilt by the process that received it"
        if _is_rebuild(best)
        else "cannot be pickled"
    )
    held = ""
    if best.culprit:
        path = ".".join(best.culprit)
        user = f"its function {best.user}" if best.user else "it"
        is_captured = best.is_captured or best.user
        held = (
            f" because {user} captures {path}"
            if is_captured
            else f" because of its attribute {path}"
        )
    why = f" ({best.why})" if best.why else ""
    links = [Link(best.events[0], f"{best.object} {verb}{why}")]
    links += [
        Link(e, f"Ray names the part that cannot be pickled: {_part_of(e)}")
        for e in best.events if e.kind == "serialize.culprit"
    ][:1]  # fmt: skip
    links += [Link(e, "the driver got WorkerCrashedError") for e in crashed[:1]]
    return Finding(
        f"{best.object[:1].upper()}{best.object[1:]} {verb}{held}{why}",
        tuple(links),
        explains=(Entity("serialization", best.object), *evidence.exit_entities(exits)),
        subjects=(Subject("function", None, best.function or best.holder or None),),
        count=len(refusals),
        remedies=tuple(_remedies(best)),
        covers=(*(e for r in refusals for e in r.events), *crashed),
    )


def _is_rebuild(refusal: _RefusedPickle) -> bool:
    return refusal.is_exception and refusal.exit is None


def _remedies(refusal: _RefusedPickle) -> Iterator[Remedy]:
    name = refusal.culprit[-1] if refusal.culprit else ""
    if refusal.is_exception and (missing := _NO_MODULE.search(refusal.why)):
        yield _importable(missing["module"])
    elif refusal.is_exception:
        yield _exception_remedy(refusal)
    elif "generator" in refusal.why:
        yield Remedy(
            "Pass a list: a generator cannot leave its process",
            ("values = list(generator)",),
            doc=_DOC,
        )
    elif refusal.is_captured:
        yield _captured(refusal)
    if any(words in refusal.why for words in _BY_NAME):
        yield _by_name()
    elif not refusal.is_exception:
        yield Remedy(
            "Create the object where it is used: in the task, or once in an actor that other tasks call",
            (
                "@ray.remote\nclass Owner:\n    def __init__(self, url):\n        self.resource = connect(url)   # created in the actor's process",
            ),
            doc=_DOC,
        )
    if (
        refusal.is_object
        and name.isidentifier()
        and refusal.holder.rpartition(".")[2].isidentifier()
    ):
        yield _leave_out(refusal.holder.rpartition(".")[2], name)
    if not refusal.is_exception and not any(words in refusal.why for words in _BY_NAME):
        yield Remedy(
            "Find other objects that cannot be pickled",
            (
                "ray.util.inspect_serializability(obj, name='obj')   # prints the object that fails, and the object that holds it",
            ),
            doc=_DOC,
        )


_BY_NAME = ("not the same object as", "not found as", "attribute lookup ", "import of module ")
"""Messages about functions and classes, which pickle only names."""


def _by_name() -> Remedy:
    return Remedy(
        "Make the name in the message refer to this function or class itself: pickle stores only the name",
        (
            "# do not wrap or define it again under the same name. Restart the kernel of a notebook after editing a class",
            "ray.cloudpickle.register_pickle_by_value(module)   # a module that the workers cannot import",
            "class Actor:   # around a compiled (Cython) class, in a plain Python module\n    def __init__(self, *args):\n"
            "        self.inner = Compiled(*args)",
        ),
        doc=_DOC,
    )  # fmt: skip


def _captured(refusal: _RefusedPickle) -> Remedy:
    function = refusal.user or refusal.function.rpartition(".")[2]
    variable = refusal.culprit[0] if refusal.culprit else "the variable"
    return Remedy(
        f"Do not capture {variable}: create it inside {function}, from values that are passed as arguments",
        (
            paste.python(
                "def {function:name}(...):\n    {variable:name} = ...   # created in the worker"
                if variable.isidentifier()
                else "# in {function}",
                function=function,
                variable=variable,
            ),
        ),
        doc=_DOC,
    )  # fmt: skip


def _leave_out(holder: str, name: str) -> Remedy:
    return Remedy(
        f"Or pickle {holder} without its attribute {name}",
        (
            paste.python(
                "class {holder:name}:\n    def __getstate__(self):\n        state = self.__dict__.copy()\n        del state[{name}]\n"
                "        return state\n    def __setstate__(self, state):\n        self.__dict__.update(state)\n"
                "        self.{name:name} = ...   # a new one",
                holder=holder,
                name=name,
            ),
        ),
        doc=_DOC,
    )


_BUILT_IN = "raise RuntimeError(str(error)) from None   # or, in the task: every process can rebuild a built-in exception"


def _importable(module: str) -> Remedy:
    return Remedy(
        f"Make {module}, which defines the exception, importable in the process that received it, or raise another exception",
        (
            paste.shell(
                "python -c {code}   # must succeed there: for the driver, in its own environment",
                code=f"import {module}",
            ),
            _BUILT_IN,
        ),
        doc=f"{_DOC}#custom-serializers-for-exceptions",
    )


def _exception_remedy(refusal: _RefusedPickle) -> Remedy:
    name = refusal.holder if refusal.holder.isidentifier() else "TheError"
    return Remedy(
        f"Define in __reduce__ how to rebuild {name}, with every argument that its __init__ takes",
        (
            paste.python(
                "class {name:name}(Exception):\n    def __init__(self, message, limit):\n        super().__init__(message)\n        self.limit = limit\n"
                "    def __reduce__(self):\n        return ({name:name}, (self.args[0], self.limit))   # nothing that cannot be pickled",
                name=name,
            ),
            _BUILT_IN,
        ),
        doc=f"{_DOC}#custom-serializers-for-exceptions",
    )


# ------------------------------------------------------------------ examples

_BLOCK = (
    "===\nChecking Serializability of <__main__.Database object at 0x7f0c2b3e5d10>\n===\n"
    "!!! FAIL serialization: cannot pickle '_thread.lock' object\n"
    "    Serializing 'lock' <unlocked _thread.lock object at 0x7f0c2b>...\n===\nVariable: \n\n"
)
_HEAD = 'Traceback (most recent call last):\n  File "/app/main.py", line 47, in main\n'
_ARGUMENT = (
    f"{_HEAD}TypeError: Could not serialize the argument <__main__.Database object at 0x7f0c2b3e5d10> for a task or actor "
    f"main.count_rows:\n{_BLOCK}\tFailTuple(lock [obj=<unlocked _thread.lock object at 0x7f0c2b>, "
    "parent=<__main__.Database object at 0x7f0c2b3e5d10>])\n"
)
_CAPTURED = (
    f"{_HEAD}TypeError: Could not serialize the function main.run.<locals>.export:\n{_BLOCK}\tFailTuple(lock [path=database -> "
    "lock, obj=<unlocked _thread.lock object at 0x7f0c2b>, parent=<__main__.Database object at 0x7f0c2b3e5d10>])\n"
)
_CAUSE = (
    'Traceback (most recent call last):\n  File "/venv/lib/python3.11/site-packages/ray/cloudpickle/cloudpickle.py", line 1313, '
    "in dump\n    return super().dump(obj)\nTypeError: cannot pickle '_thread.lock' object\n\n"
    "The above exception was the direct cause of the following exception:\n\n"
)
_OF_METHOD = (
    f"{_CAUSE}{_HEAD}TypeError: Could not serialize the actor class __main__.A.__init__:\n===\n"
    "Checking Serializability of <class '__main__._modify_class.<locals>.Class'>\n===\n"
    "!!! FAIL serialization: cannot pickle '_thread.lock' object\n    Serializing 'use' <function A.use at 0x7f1ee6d7d440>...\n"
    "    !!! FAIL serialization: cannot pickle '_thread.lock' object\n        Serializing 'method' <function A.use at 0x7f1ee6d7cc20>...\n"
    "            Serializing 'guard' <unlocked _thread.lock object at 0x7f1eeb1c3e40>...\n===\nVariable: \n\n"
    "\tFailTuple(guard [path=use -> method -> guard, obj=<unlocked _thread.lock object at 0x7f1eeb1c3e40>, "
    "parent=<function A.use at 0x7f1ee6d7cc20>])\n"
)
_OF_HELPER = (
    f"{_CAUSE}{_HEAD}TypeError: Could not serialize the function __main__.use:\n===\n"
    "Checking Serializability of <function use at 0x7f1c20d28b80>\n===\n"
    "!!! FAIL serialization: cannot pickle '_thread.lock' object\n    Serializing 'helper' <function helper at 0x7f1c252d84a0>...\n"
    "        Serializing 'model' <__main__.Model object at 0x7f1c251488d0>...\n            Serializing 'inner' {'a': [1]}...\n===\n"
    "Variable: \n\n\tFailTuple(inner [path=helper -> model -> inner, obj={'a': [1]}, parent=<__main__.Model object at 0x7f1c251488d0>])\n"
)
_RESULT = (
    f"{_HEAD}ray.exceptions.RayTaskError(TypeError): ray::connect() (pid=388, ip=127.0.0.1)\n"
    '  File "/venv/lib/python3.11/site-packages/ray/cloudpickle/cloudpickle.py", line 1313, in dump\n'
    "TypeError: cannot pickle '_thread.lock' object\n"
)
_REBUILD = (
    f"{_HEAD}ray.exceptions.RaySystemError: System error: Failed to unpickle serialized exception\n"
    "traceback: Traceback (most recent call last):\n"
    '  File "/venv/lib/python3.11/site-packages/ray/exceptions.py", line 46, in from_ray_exception\n'
    "TypeError: QuotaError.__init__() missing 1 required positional argument: 'limit'\n"
)
_REBUILD_INSIDE = (
    f"{_HEAD}ray.exceptions.RayTaskError(RaySystemError): ray::report() (pid=388, ip=127.0.0.1)\n"
    '  File "/app/report.py", line 9, in report\n    return ray.get(check.remote())\n'
    f"{_REBUILD.removeprefix(_HEAD)}\nThe above exception was the direct cause of the following exception:\n\n"
    "ray::report() (pid=388, ip=127.0.0.1)\n"
    '  File "/venv/lib/python3.11/site-packages/ray/exceptions.py", line 54, in from_ray_exception\n'
    "    raise RuntimeError(msg) from e\nRuntimeError: Failed to unpickle serialized exception\n"
    "(report pid=388) Failed to unpickle serialized exception\n(report pid=388) Traceback (most recent call last):\n"
    '(report pid=388)   File "/venv/lib/python3.11/site-packages/ray/exceptions.py", line 46, in from_ray_exception\n'
    "(report pid=388) TypeError: QuotaError.__init__() missing 1 required positional argument: 'limit'\n"
)
_MODULE = _HEAD.replace("in main", "in <module>")
_OWN_PICKLE = _RESULT.replace(
    "TypeError: cannot", '  File "/app/cache.py", line 9, in save\nTypeError: cannot'
)

EXAMPLES: tuple[Example, ...] = (
    Example(
        "an argument that holds a lock",
        {**QUIET_LOGS, "driver.log": _ARGUMENT},
        says=("main.count_rows", "Database", "lock", "__getstate__"),
    ),
    Example(
        "a function captures it; newer Ray prints the path",
        {**QUIET_LOGS, "driver.log": _CAPTURED},
        says=("main.run.<locals>.export", "captures database.lock"),
    ),
    Example(
        "a method of an actor class uses a global variable, below the wrapper of Ray's tracing",
        {**QUIET_LOGS, "driver.log": _OF_METHOD},
        says=("its function use captures guard", "def use(...):\n    guard = ..."),
    ),
    Example(
        "a task calls a function that uses a global variable",
        {**QUIET_LOGS, "driver.log": _OF_HELPER},
        says=("its function helper captures model.inner", "class Model:", "del state["),
    ),
    Example(
        "a task's result that holds a lock",
        {**QUIET_LOGS, "driver.log": _RESULT},
        says=("result of connect", "_thread.lock"),
    ),
    console(
        "an actor class compiled by Cython: the pickler's own exception below Ray's frames",
        f"{_HEAD}    Counter.remote()\n"
        '  File "/venv/lib/python3.11/site-packages/ray/cloudpickle/cloudpickle.py", line 88, in dumps\n    cp.dump(obj)\n'
        f"{PICKLE_ERROR.sample}\n",
        logs=QUIET_LOGS,
        says=("Counter.__init__", "not the same object as", "register_pickle_by_value"),
    ),
    console(
        "pytest's report, without Python's frames",
        f">       a = Counter.remote()\n\ntest_counter.py:9: \nE   {PICKLE_ERROR.sample}\n",
        roots=("not-serializable",),
    ),
    console(
        "the program's own multiprocessing cannot pickle a function",
        f'{_MODULE}    pool.map(f, rows)\n  File "/usr/lib/python3.11/multiprocessing/reduction.py", line 51, in dumps\n'
        "    cls(buf, protocol).dump(obj)\n_pickle.PicklingError: Can't pickle <function f at 0x7f0>: attribute lookup f on __main__ "
        "failed\n",
        logs=QUIET_LOGS,
        roots=("job-failed",),
    ),
    console(
        "a cache that warns and goes on",
        "WARNING cache.py:3 skipped, Can't pickle <function f at 0x7f0>: it's not the same object as m.f\nepoch 2\n",
    ),
    Example(
        "an exception whose class cannot be rebuilt",
        {**QUIET_LOGS, "driver.log": _REBUILD},
        says=("QuotaError", "__reduce__"),
    ),
    console(
        "a paste that begins within the traceback of an exception that cannot be rebuilt",
        '  File "/venv/lib/python3.11/site-packages/ray/exceptions.py", line 46, in from_ray_exception\n'
        + UNBUILT.sample
        + "\n",
        says=("QuotaError", "__reduce__"),
    ),
    Example(
        "a task passes on an exception that it cannot rebuild itself",
        {**QUIET_LOGS, "driver.log": _REBUILD_INSIDE},
        says=("The exception QuotaError could not be rebuilt", "return (QuotaError,"),
    ),
    Example(
        "the driver lacks the module of an exception",
        {
            **QUIET_LOGS,
            "driver.log": _REBUILD.replace(
                "TypeError: QuotaError.__init__() missing 1 required positional argument: 'limit'",
                "ModuleNotFoundError: No module named 'billing'",
            ),
        },
        says=("An exception of a task could not be rebuilt", "python -c 'import billing'"),
    ),
    Example(
        "the program pickles something itself",
        {**QUIET_LOGS, "driver.log": _OWN_PICKLE},
        roots=("task-exception",),
    ),
    console(
        "a worker prints the message",
        "(load pid=3) TypeError: Could not serialize the argument 1:\n",
        logs=QUIET_LOGS,
    ),
    console(
        "IPython shows a traceback that ends in Ray's pickler",
        "TypeError                                 Traceback (most recent call last)\n"
        "File /venv/lib/python3.11/site-packages/ray/_private/serialization.py:65, in pickle_dumps(obj, error_msg)\n"
        "     64 try:\n---> 65     return pickle.dumps(obj)\n\n"
        "File /venv/lib/python3.11/site-packages/ray/cloudpickle/cloudpickle.py:88, in dumps(obj)\n"
        "---> 88 cp.dump(obj)\n\nTypeError: cannot pickle '_tokenizer.Core' object\n",
        says=("cannot pickle '_tokenizer.Core' object",),
    ),
    console(
        "the output of inspect_serializability alone",
        _BLOCK,
        says=("The object Database", "cannot pickle '_thread.lock' object"),
    ),
    console(
        "a program that pickles something itself, and ends by it",
        'Traceback (most recent call last):\n  File "/app/save.py", line 9, in <module>\n    pickle.dumps(lock)\n'
        "TypeError: cannot pickle '_thread.lock' object\n",
        roots=("job-failed",),
    ),
    console(
        "a console that begins with the reason that inspect_serializability prints",
        f"{INSPECTED.sample}\n    Serializing '__init__' <function Trainable.__init_\n",
        roots=("not-serializable",),
    ),
    console(
        "only the last line of a traceback",
        "TypeError: cannot pickle '_thread.RLock' object\n",
        says=("'_thread.RLock'", "cannot be pickled"),
    ),
    console(
        "the program's own line pickles for a file",
        'Traceback (most recent call last):\n  File "/app/save.py", line 9, in <module>\n    pickle.dump(state, out)\n'
        "TypeError: cannot pickle '_thread.RLock' object\n",
        roots=("job-failed",),
    ),
)

"""Ordinary Python exceptions in which a program meets a property of Ray, and what to change."""

from __future__ import annotations

import re

from raydoctor.case import Case
from raydoctor.model import paste
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Remedy
from raydoctor.rules.shared.setup import builds
from raydoctor.rules.shared.traceback import Raised

SIGNALS = (builds.BEGUN,)
_KEY = pattern(r"^'(?P<name>[A-Za-z_]\w{0,200})'$")
_RELATIVE = pattern(r"^\[Errno 2\] [^:]{1,80}: '(?P<path>[^'/~:][^':]{0,300})'$")
_DIRECT = pattern(
    r" cannot be (?:called|instantiated) directly\. .{0,300}'(?:__main__\.)?(?P<call>[\w.]{1,200})\.remote\(\)'"
)
_RETURNED = pattern(
    r"^Task returned (?:(?P<count>\d{1,9}) objects, but num_returns=(?P<asked>\d{1,9})"
    r"|more than num_returns=(?P<least>\d{1,9}) objects)\.?\s*$"
)
_CONSTANT = pattern(
    r"(?<![\w.])(?P<module>[a-z_]\w{0,100})\.(?P<name>[A-Z][A-Z0-9_]{1,100})\b(?!\()"
)
_NOT_MODULES = ("self", "cls")
_READ_ONLY = pattern(r"\bread-only\b")
_ENV_DOC = "https://docs.ray.io/en/latest/ray-core/handling-dependencies.html"
_OBJECTS_DOC = "https://docs.ray.io/en/latest/ray-core/objects.html"
_ACTORS_DOC = "https://docs.ray.io/en/latest/ray-core/actors/async_api.html"
_NUMPY_DOC = "https://docs.ray.io/en/latest/ray-core/objects/serialization.html"


def in_worker(case: Case, raised: Raised | None) -> Remedy | None:
    """What to change if a property of Ray leads to this exception of a task or actor."""
    if raised is None:
        return None
    if raised.name == "KeyError":
        return _environment(raised)
    if raised.name == "FileNotFoundError":
        return _file(case, raised)
    if raised.name == "ValueError" and _READ_ONLY.search(raised.message):
        return Remedy(
            "Copy the array before changing it: arrays that Ray passes to a task are read-only",
            ("array = array.copy()   # before the line that changes it",),
            doc=_NUMPY_DOC,
        )
    return (
        _call(raised)
        or _returned(raised)
        or _signal(raised)
        or _reference(
            raised,
            Remedy(
                "Fetch the references with ray.get first: Ray replaces only references that are arguments themselves, "
                "none inside a list, dict or object",
                ("values = ray.get(references)   # in the task, before the line that uses them",),
                doc=_OBJECTS_DOC,
            ),
        )
    )


def of_module(raised: Raised | None) -> Remedy | None:
    """For a constant of a module that is None in a worker: the driver may have set it."""
    if raised is None or "NoneType" not in raised.message or not raised.frames:
        return None
    found = _CONSTANT.search(raised.code)
    if found is None or found["module"] in _NOT_MODULES:
        return None
    return Remedy(
        f"Pass {found[0]} to the task as an argument if the driver sets it: each worker imports {found['module']} "
        "itself, without what the driver assigned",
        (
            paste.python(
                "task.remote(ARGUMENTS, {constant:name})   # or set it in the task, before the first use",
                constant=found[0],
            ),
        ),
        doc=_OBJECTS_DOC,
    )


def in_driver(raised: Raised) -> Remedy | None:
    """What to change if a property of Ray leads to this exception of the driver's own program."""
    return _call(raised) or _reference(
        raised,
        Remedy(
            "Fetch the value with ray.get: a call of .remote returns a reference to it",
            ("value = ray.get(reference)   # before the line that uses it",),
            doc=_OBJECTS_DOC,
        ),
    )


def _environment(raised: Raised) -> Remedy | None:
    """`os.environ[NAME]` in a worker."""
    last = raised.frames[-1] if raised.frames else None
    is_read = last is not None and last.function == "__getitem__" and "os" in last.short_file
    name = _KEY.match(raised.message)
    if name is None or not (is_read or "environ[" in raised.code):
        return None
    return Remedy(
        f"Pass {name['name']} to the workers: they do not get variables that the driver sets after ray.init, "
        "nor those of the driver's shell if the cluster was started elsewhere",
        (
            paste.python(
                'ray.init(runtime_env={{"env_vars": {{{name}: VALUE}}}})   # for all tasks and actors of the program',
                name=name["name"],
            ),
        ),
        doc=_ENV_DOC,
    )


def _file(case: Case, raised: Raised) -> Remedy | None:
    """A relative path that a worker does not find."""
    found = _RELATIVE.match(raised.message)
    if found is None:
        return None
    if builds.uses_working_dir(case):
        return Remedy(
            f"Make sure that Ray uploads {found['path']} with working_dir: it leaves out files that .gitignore "
            "or .rayignore lists, and those in excludes",
            (
                paste.shell(
                    "git check-ignore -v {path:path}   # in working_dir", path=found["path"]
                ),
                "task.remote(VALUE)   # or pass the content of the file as an argument",
            ),
            doc=_ENV_DOC,
        )
    return Remedy(
        f"Give the task a path that exists on its node: {found['path']} is relative to the folder in which "
        "the worker runs",
        ('ray.init(runtime_env={"working_dir": FOLDER})   # or send the folder that contains it',),
        doc=_ENV_DOC,
    )


def _returned(raised: Raised) -> Remedy | None:
    """A task that returns another number of values than it declares."""
    found = _RETURNED.match(raised.message) if raised.name == "ValueError" else None
    if found is None:
        return None
    asked, count = found["asked"] or found["least"], found["count"] or "COUNT"
    return Remedy(
        f"Return {asked} values, or declare as many as the function returns",
        (
            f"@ray.remote(num_returns={count})   # a task",
            f"@ray.method(num_returns={count})   # a method of an actor",
        ),
        doc=_OBJECTS_DOC,
    )


def _signal(raised: Raised) -> Remedy | None:
    """A signal handler that a method of a concurrent actor installs."""
    if raised.name != "ValueError" or not raised.message.startswith(
        "signal only works in main thread"
    ):
        return None
    return Remedy(
        "Install the handler in __init__, and use no async methods: with max_concurrency or concurrency groups, Ray "
        "runs the actor's methods outside the main thread. In an async actor, it runs all code there",
        ("signal.signal(number, handler)   # in __init__ of the actor",),
        doc=_ACTORS_DOC,
    )


def _call(raised: Raised) -> Remedy | None:
    """A remote function, class or method that is called like a local one."""
    found = _DIRECT.search(raised.message) if raised.name == "TypeError" else None
    if found is None:
        return None
    # Ray calls the handle of an actor `object`.
    call = re.sub(r"^object\.", "actor.", found["call"])
    return Remedy(
        "Add .remote to the call, and fetch its result with ray.get",
        (paste.python("result = ray.get({call:name}.remote(ARGUMENTS))", call=call),),
        doc=_OBJECTS_DOC,
    )


def _reference(raised: Raised, advice: Remedy) -> Remedy | None:
    """A reference that is used like the value that it refers to."""
    is_one = raised.name in ("TypeError", "AttributeError") and "ObjectRef" in raised.message
    return advice if is_one else None

"""Records of values that could not be pickled: Ray's refusals, its inspection, exceptions.

`pickle_dumps` (`ray/_private/serialization.py`) refuses with `Could not serialize the <what> …` and the output of
`inspect_serializability` below. The texts are the same in 2.9.3 to 2.60; `path=` was added after 2.50. A result is
refused in the worker: a `RayTaskError` then ends in the pickler's own exception, without a line of the user's program
above it.
"""

from __future__ import annotations

import re

from raydoctor.case.rule import Signal
from raydoctor.case.signals import DRIVER
from raydoctor.model.patterns import pattern
from raydoctor.rules.shared.traceback import Raised

REFUSED = Signal(
    "serialize.refused",
    "Could not serialize the ",
    r"^[\w.]+(?:Error|Exception): Could not serialize the (?P<what>argument|function|actor class|put value|"
    r"deployment init args|deployment init kwargs|deployment|retry exception allowlist) ?(?P<object>.*?)"
    r"(?: for a task or actor (?P<target>\S+))?:(?:\n|$)",
    DRIVER,
    "TypeError: Could not serialize the argument <__main__.Database object at 0x7f0c2b3e5d10> for a task or actor "
    "app.count_rows:\n===\nChecking Serializability of <__main__.Database object at 0x7f0c2b3e5d10>\n===\n"
    "!!! FAIL serialization: cannot pickle '_thread.lock' object",
    extent="record",
    symptom=True,
    fold=("what", "target"),
)
CULPRIT = Signal(
    "serialize.culprit",
    "FailTuple(",
    r"^\s*FailTuple\((?P<name>.{0,300}?) \[(?:path=(?P<path>.{0,300}?), )?obj=(?P<object>.{0,4000}), parent=(?P<parent>.{0,4000})\]\)",
    DRIVER,
    "FailTuple(lock [path=database -> lock, obj=<unlocked _thread.lock object at 0x7f0>, parent=<__main__.Database object>])",
    fold=("name",),
)

INSPECTED = Signal(
    "serialize.inspected",
    "!!! FAIL serialization: ",
    r"^!!! FAIL serialization: (?P<why>.+)",
    DRIVER,
    "!!! FAIL serialization: cannot pickle '_thread.lock' object",
)
"""The first line of `inspect_serializability` about an object that fails; those about its parts are indented."""
CHECKED = Signal(
    "serialize.checked",
    "Checking Serializability of ",
    r"^Checking Serializability of (?P<object>.{1,4000})",
    DRIVER,
    "Checking Serializability of <__main__.Database object at 0x7f0c2b3e5d10>",
)
PICKLE_ERROR = Signal(
    "serialize.error",
    " pickle <",
    r"(?:^|`|Error: )Can't pickle (?P<object><[^\n]{1,300}?>): (?:it's not (?:the same object as|found as) |attribute lookup |import of module )",
    DRIVER,
    "_pickle.PicklingError: Can't pickle <cyfunction Counter.__init__ at 0x7f0>: it's not the same object as app.Counter.__init__",
    symptom=True,
    fold=("object",),
)
"""`pickle` itself (`save_global`): Ray adds nothing to a PicklingError, unlike to a TypeError."""

_WHY = pattern(r"^[ \t]*!!! FAIL serialization: (?P<why>.+)$", re.MULTILINE)
_ADDRESS = pattern(r" at 0x[0-9a-f]+")
_TYPES = ("PicklingError",)
_TEXTS = (
    *(
        "cannot pickle ",
        "can't pickle ",
        "Can't pickle ",
        "Could not serialize the ",
        "Can't get local object",
    ),
    *(
        "cannot be pickled",
        "is not picklable",
        "not possible to pickle",
        "cannot be converted to a Python object for pickling",
    ),
    *(
        "no default __reduce__ due to non-trivial __cinit__",
        "object proxy must define __reduce_ex__()",
    ),
    "instances is not enabled (http://www.boost.org/libs/python/doc/v2/pickle.html)",
)
"""Of CPython 3.6 to 3.13, Cython, wrapt and Boost.Python."""


def is_about_pickling(raised: Raised | None) -> bool:
    """Whether an exception reports that Ray could not pickle a value.

    With a line of the user's program above it, the program itself pickled something, unless it is Ray's refusal.
    """
    if raised is None:
        return False
    if raised.message.startswith("Could not serialize the "):
        return True
    pickled = raised.name in _TYPES or any(text in raised.message for text in _TEXTS)
    return pickled and not any(frame.is_user_code for frame in raised.frames)


NOT_REBUILT = "Failed to unpickle serialized exception"
"""Up to 2.49, for an exception of a task that its receiver cannot unpickle (`from_ray_exception`). The original is lost."""


UNBUILT = Signal(
    "serialize.unbuilt",
    "pickle.loads(ray_exception.serialized_exception)",
    r"^ {4,8}return pickle\.loads\(ray_exception\.serialized_exception\)\n(?P<what>.*)",
    DRIVER,
    "    return pickle.loads(ray_exception.serialized_exception)\n           ^^^^^^^^^^^^\n"
    "TypeError: QuotaError.__init__() missing 1 required positional argument: 'limit'",
    extent="record",
)
"""The line of Ray's that rebuilds an exception, if a paste begins within the traceback (`exceptions.py`, 2.0 to 2.60)."""


def is_about_rebuilding(raised: Raised | None) -> bool:
    """Whether an exception reports only that another one could not be unpickled."""
    return raised is not None and raised.message.endswith(NOT_REBUILT)


_PICKLERS = ("ray/_private/serialization.py", "ray/serialization.py", "ray/cloudpickle/")


def is_by_ray(raised: Raised | None) -> bool:
    """Whether the frames of a driver's traceback show that Ray pickled the value.

    Ray's own frames are below the program's last, unless Ray's pickler called the program (`__reduce__`).
    """
    if raised is None or not (
        raised.name in _TYPES or any(text in raised.message for text in _TEXTS)
    ):
        return False
    if any(part in frame.file for frame in raised.frames for part in _PICKLERS):
        return True
    own = [n for n, frame in enumerate(raised.frames) if frame.is_user_code]
    below = raised.frames[own[-1] + 1 if own else 0 :]
    return any("/ray/" in frame.file.replace("\\", "/") for frame in below)


def reason(text: str) -> str:
    """`cannot pickle '_thread.lock' object`, from the inspection's output."""
    found = _WHY.search(text)
    return found["why"].strip() if found else ""


def without_address(text: str) -> str:
    """A repr that is the same for two objects of one class."""
    return _ADDRESS.sub("", text)

"""Ray's exceptions as programs print them, spelled out as Python prints an uncaught one.

`print(e)`, `print(repr(e))`, `logger.error(e)`, `<class 'ray.exceptions.GetTimeoutError'> Get timed out`,
`GetTimeoutError: …` (IPython, rich, `traceback.format_exception_only`): the error occurred, and the program
may have continued. Such a line is rewritten as `ray.exceptions.GetTimeoutError: Get timed out` and marked as
printed. The names and first words come from `ray/exceptions.py` (2.9 to 2.60).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from raydoctor.capture.console.prefixes import Stripped, is_rays
from raydoctor.model.patterns import pattern

_NAME = (
    "RayError|RayTaskError|WorkerCrashedError|RayActorError|ActorDiedError|"
    "ActorUnavailableError|LocalRayletDiedError|NodeDiedError|OutOfMemoryError|"
    "OutOfDiskError|ObjectStoreFullError|ObjectLostError|ObjectFetchTimedOutError|"
    "ReferenceCountingAssertionError|ObjectFreedError|OwnerDiedError|"
    "ObjectReconstructionFailedError|ObjectReconstructionFailedMaxAttemptsExceededError|"
    "ObjectReconstructionFailedLineageEvictedError|GetTimeoutError|PlasmaObjectNotAvailable|"
    "AsyncioActorExit|RuntimeEnvSetupError|TaskPlacementGroupRemoved|"
    "ActorPlacementGroupRemoved|PendingCallsLimitExceeded|TaskUnschedulableError|"
    "ActorUnschedulableError|RayChannelError|RayChannelTimeoutError|"
    "RayCgraphCapacityExceeded|TaskCancelledError|RaySystemError|CrossLanguageError|"
    "UserCodeException|AuthenticationError|UnserializableException"
)
_WORDS = {
    "GetTimeoutError": r"Get timed out: some object\(s\) not ready\.",
    "WorkerCrashedError": r"The worker died unexpectedly while executing this task\.",
    "ActorDiedError": r"The actor died (?:unexpectedly before finishing this task\."
    r"|because of an error raised in its creation task)",
    "ActorUnavailableError": r"The actor (?:[0-9a-f]{32} is|is temporarily) unavailable: ",
    "ObjectLostError": r"Failed to retrieve object [0-9a-f]{56}(?! because)",
    "OutOfMemoryError": r"(?:Task was|\d{1,5} worker\(s\) were) killed due to the node running low "
    r"on memory\.",
    "NodeDiedError": r"The node died unexpectedly while executing this task",
    "RuntimeEnvSetupError": r"Failed to set up runtime environment\.",
    "ObjectStoreFullError": r"Failed to put object [0-9a-f]{56} in object store because it is full\.",
    "OutOfDiskError": r"Local disk is full",
    "TaskCancelledError": r"Task: (?:TaskID\()?[0-9a-f]{48}\)? was cancelled\.",
    "LocalRayletDiedError": r"The task's local raylet died\.",
    "TaskUnschedulableError": r"The task is not schedulable: ",
    "ActorUnschedulableError": r"The actor is not schedulable: ",
    "PendingCallsLimitExceeded": r"The task \S{1,300} could not be submitted to ",
    "RaySystemError": r"System error: Failed to startup worker after retrying ",
    "RayChannelTimeoutError": r"System error: (?:Channel )?[Tt]imed out waiting for ",
}
"""First words of an exception's text that identify its class: `print(e)` prints only the text."""
_ALL_WORDS = {
    **_WORDS,
    **dict.fromkeys(
        (
            *("OwnerDiedError", "ObjectFreedError", "ObjectFetchTimedOutError"),
            *("ObjectReconstructionFailedError", "ReferenceCountingAssertionError"),
            "ObjectReconstructionFailedMaxAttemptsExceededError",
            "ObjectReconstructionFailedLineageEvictedError",
        ),
        r"Failed to retrieve object [0-9a-f]{56}",
    ),
    "GetTimeoutError": r"Get timed out|.*[Tt]imed out|.*timeout",
    "RayActorError": r"The actor ",
    "ActorDiedError": r"The actor ",
    "ActorUnavailableError": r"The actor ",
    "RayTaskError": r"ray::",
    "RaySystemError": r"System error: ",
}
"""First words of exceptions, including those that several classes share."""
_IN_NAMES = ("Error", "Exception", "Exceeded", "Removed", "ActorExit", "NotAvailable")
"""Parts of `_NAME`, one of which each name has."""
_IN_WORDS = (
    *(
        "Get timed out",
        "The worker died",
        "The actor ",
        "Failed to ",
        "low on memory",
        "The node died",
    ),
    *("Local disk is full", "cancelled", "local raylet died", "The task ", "System error: "),
)
"""Parts of `_WORDS`, one of which each of them has."""
_NAMED = (
    pattern(
        rf"<class '(?:ray\.exceptions\.)?(?P<name>{_NAME})(?P<inner>\(\w+\))?'>[:,]? ?(?P<what>.*)"
    ),
    pattern(rf"\bray\.exceptions\.(?P<name>{_NAME})(?P<inner>\(\w+\))?: (?P<what>.*)"),
    pattern(
        rf"\b(?:ray\.exceptions\.)?(?P<name>{_NAME})(?P<inner>\(\w+\))?\((?P<quote>['\"])(?P<what>.*)"
    ),
    pattern(
        rf"(?:^|(?<=[:=,>(\[] )|(?<=[=(\[]))(?:ray\.exceptions\.)?(?P<name>{_NAME})(?P<inner>\(\w+\))?"
        r"\((?P<cause>[A-Za-z_][\w.]{0,200}\(.{0,2000}\))?\)[)\]},.;']{0,9}$"
    ),
    pattern(
        rf"(?:^|(?<=[:,>] ))(?P<name>{_NAME})(?P<inner>\(\w+\))?: (?!CUDA|HIP|Tried to)(?P<what>.*)"
    ),
)
"""Forms with the exception's name."""
_PARTS = (("<class '",), ("ray.exceptions.",), ("('", '("'), ("(",), (": ",))
"""Texts, one of which each of these forms has: a text without them is not searched."""
_FORMS = tuple(zip(_NAMED, _PARTS, strict=True))
_WORDED = (pattern("|".join(f"(?P<{name}>{words})" for name, words in _WORDS.items())),)
"""The text alone."""
_SAYS = {
    "WorkerCrashedError": "The worker died unexpectedly while executing this task.",
    "ActorDiedError": "The actor died unexpectedly before finishing this task.",
    "LocalRayletDiedError": "The task's local raylet died. Check raylet.out for more information.",
    "RuntimeEnvSetupError": "Failed to set up runtime environment.",
}
"""Texts of exceptions whose `repr` leaves them out: they get no arguments, or only named ones."""
_BEGINS = _SAYS | {
    "OutOfMemoryError": "Task was killed due to the node running low on memory.",
    "GetTimeoutError": "Get timed out: some object(s) not ready.",
    "NodeDiedError": "The node died unexpectedly while executing this task",
    "OutOfDiskError": "Local disk is full",
}
"""The first words of texts that mean the same in all versions."""
_OBJECT = pattern(r"(?P<object>[0-9a-f]{56})['\"], ")
"""The beginning of the arguments of `ObjectLostError` and its subclasses."""
_CUT = pattern(r"(?P<before>(?:\S.{0,300}?[\]):] )?ray\.exceptions\.)(?P<name>[A-Z]\w{3,50})$")
_AS_PYTHON = pattern(
    r"(?:\| )* *(?:raise )?ray\.exceptions\.\w+(?:\(\w+\))?(?:: |$)| +(?:raise|except|File) "
)
_LAST_QUOTE = pattern(r"['\"],?\)*[.,;]?\s*$")
_LONGEST = 16_384
"""Characters; records keep no more of a longer line."""


def may_hold(text: str) -> bool:
    """Whether a line may contain an exception: a quick test that few lines of a healthy program pass."""
    return (
        "Error" in text
        or "Exce" in text
        or "GroupRemoved" in text
        or "ActorExit" in text
        or "NotAvailable" in text
        or "died" in text
        or "imed out" in text
        or "Failed to" in text
        or "cancelled" in text
        or "Cancel" in text
        or "chedulable" in text
        or "be submitted to" in text
        or "unavailable: " in text
        or "ow on memory" in text
        or "disk is full" in text
        or ".exceptions." in text
        or "<class '" in text
    )


_OLD_CALL = pattern(
    r"(?P<before>^|\) |(?:^|[ .])RayTaskError(?:\(\w{1,100}\))?: )ray_(?P<of>[A-Za-z_]\w{0,200})"
    r"(?::(?P<function>[\w.<>]{1,200})(?:\(\))?)? \((?=pid=\d{1,10}, (?:host|ip)=)"
)
"""A worker's title above the traceback of its task, up to 0.8: `ray_Trainer:step() (pid=7, ip=10.0.0.2)`."""


_MASKED = pattern(
    r"(?P<call>\bray::[^\s()]{1,300}\(\) \(pid=)(?:\*{1,9}|X{1,9}|x{2,9}|<[\w -]{0,20}>|\.{3})(?=[,)])"
)
"""The process of a failed call, which a person has made unreadable."""


_MASKED_PREFIX = pattern(
    r"^\((?P<name>[A-Za-z][^()\n]{0,200}) pid=(?:\*{1,9}|X{1,9}|x{2,9}|<[\w -]{0,20}>)(?=\)|, ip=)"
)


def with_call(text: str) -> str:
    """The line with such a title as Ray writes it since 1.0, `ray::Trainer.step() (pid=7, …`, with a pid."""
    if text[:1] == "(" and " pid=" in text:
        text = _MASKED_PREFIX.sub(r"(\g<name> pid=0", text)
    if "ray::" in text and " (pid=" in text:
        text = _MASKED.sub(r"\g<call>0", text)
    found = _OLD_CALL.search(text) if "ray_" in text and " (pid=" in text else None
    if found is None:
        return text
    names = [name for name in (found["of"], found["function"]) if name and name != "worker"]
    called = f"{found['before']}ray::{'.'.join(names) or 'task'}() ("
    return f"{text[: found.start()]}{called}{text[found.end() :]}"


_CUT_CALL = pattern(
    r"(?P<before>(?:\S.{0,300}?[\]):] )?ray\.exceptions\.RayTaskError(?:(?:\(\w{1,100}\)): ?|: (?=r)))"
    r"(?:ray|ra|r|ray:|ray::(?P<function>[^\s()]{0,300})(?P<call>\(\)? ?(?:\((?:p|pi|pid)?)?)?)?$"
)


def completed(text: str) -> str:
    """The last line of a paste, with the name or the failed call completed within which it ends.

    Of names, if only one begins so; what is lost of a call's name becomes an ellipsis.
    """
    if "RayTaskError" in text and (call := _CUT_CALL.match(text)):
        name = (
            call["function"]
            if call["function"] and call["call"]
            else f"{call['function'] or 'task'}…"
        )
        return f"{call['before'].rstrip()} ray::{name}() (pid="
    match = _CUT.match(text) if "ray.exceptions." in text else None
    names = [name for name in _NAME.split("|") if match and name.startswith(match["name"])]
    is_cut = match is not None and len(names) == 1 and names[0] != match["name"]
    return f"{match['before']}{names[0]}: {_BEGINS.get(names[0], '')}" if match and is_cut else text


def named(name: str) -> str:
    """The name of an exception as a traceback would have it, with its module if only Ray has such."""
    is_rays = name in _NAME.split("|") and name != "OutOfMemoryError"  # torch has one
    return f"ray.exceptions.{name}" if is_rays else name


_OF_RAY = ("Status message: ", "Exception raised in creation task: ")
"""Ray's own messages about a submitted job and an actor's constructor, which rules match."""


def normalised(
    line: Stripped, is_new: bool, in_traceback: bool, is_alone: bool = True
) -> Iterator[str]:
    """The line as rules read it, and any exception that it prints in Python's own form.

    `in_traceback`: whether the line above is part of a traceback, so that this one may be its end.
    `is_alone`: whether Ray's logs are missing. If not, an exception within a sentence is a quotation.
    """
    text = line.text
    found = _exception(text) if may_hold(text) else None
    if found is None or not (is_alone or _is_value(found[0])):
        # A logger printed it, and it does not end a traceback.
        line.is_printed = (
            bool(line.level) and not in_traceback and text.startswith("ray.exceptions.")
        )
        yield line.line(is_new)
        return
    before, exception = found
    if before:
        yield line.line(is_new)
    line.text = exception
    line.is_printed = not in_traceback
    yield line.line(is_new_record=False)


def _is_value(before: str) -> bool:
    """Whether what follows a text is a quoted value, as in `error='…`; true for an empty text."""
    return not before or (before[-1:] in ("'", '"') and before[:-1].rstrip()[-1:] in (":", "="))


def _exception(text: str) -> tuple[str, str] | None:
    """(text before it, exception in Python's form) for a line that prints an exception in another form."""
    if len(text) > _LONGEST or _AS_PYTHON.match(text) or is_rays(text) or text.startswith(_OF_RAY):
        return None
    forms: list[re.Pattern[str]] = []
    if any(part in text for part in _IN_NAMES):
        forms += (form for form, parts in _FORMS if any(part in text for part in parts))
    if any(part in text for part in _IN_WORDS):
        forms += _WORDED
    bare = text.rstrip()
    found = [
        (match.start(), n, match) for n, form in enumerate(forms) if (match := form.search(bare))
    ]
    if not found:
        return None
    start, _, match = min(found, key=lambda each: each[:2])
    if match.re.groupindex.keys() >= _WORDS.keys():
        return text[:start], f"ray.exceptions.{match.lastgroup}: {text[start:]}"
    what = _what(match)
    if what is None:
        return None  # a program that writes about the exception
    return text[:start], f"ray.exceptions.{match['name']}{match['inner'] or ''}: {what}"


def _what(match: re.Match[str]) -> str | None:
    """The text of an exception that is named; None if this cannot be its text."""
    if "cause" in match.re.groupindex:
        is_whole = bool(match["cause"]) == bool(match["inner"])
        return match["cause"] or _SAYS.get(match["name"]) if is_whole else None
    what: str = match["what"]
    if "quote" in match.re.groupindex:
        if found_object := _OBJECT.match(what):
            what = f"Failed to retrieve object {found_object['object']}. "
        elif match["name"] == "RaySystemError":
            what = f"System error: {what}"
        what = _LAST_QUOTE.sub("", what.replace("\\n", "\n").replace("\\t", "\t"))
    return what if match["inner"] or _is_its_text(match["name"], what) else None


def _is_its_text(name: str, what: str) -> bool:
    """Whether this can be the text of the exception; true if its first words are not known."""
    words = _ALL_WORDS.get(name)
    return words is None or re.match(words, what) is not None

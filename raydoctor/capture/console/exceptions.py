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
    "OutOfMemoryError": r"Task was killed due to the node running low on memory\.",
    "NodeDiedError": r"The node died unexpectedly while executing this task",
    "RuntimeEnvSetupError": r"Failed to set up runtime environment\.",
    "ObjectStoreFullError": r"Failed to put object [0-9a-f]{56} in object store because it is full\.",
    "OutOfDiskError": r"Local disk is full",
    "TaskCancelledError": r"Task: (?:TaskID\()?[0-9a-f]{48}\)? was cancelled\.",
    "LocalRayletDiedError": r"The task's local raylet died\.",
    "TaskUnschedulableError": r"The task is not schedulable: ",
    "ActorUnschedulableError": r"The actor is not schedulable: ",
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
}
"""First words of exceptions, including those that several classes share."""
_FORMS = (
    pattern(
        rf"<class '(?:ray\.exceptions\.)?(?P<name>{_NAME})(?P<inner>\(\w+\))?'>[:,]? ?(?P<what>.*)"
    ),
    pattern(rf"\bray\.exceptions\.(?P<name>{_NAME})(?P<inner>\(\w+\))?: (?P<what>.*)"),
    pattern(
        rf"\b(?:ray\.exceptions\.)?(?P<name>{_NAME})(?P<inner>\(\w+\))?\((?P<quote>['\"])(?P<what>.*)"
    ),
    pattern(
        rf"(?:^|(?<=[:,>] ))(?P<name>{_NAME})(?P<inner>\(\w+\))?: (?!CUDA|HIP|Tried to)(?P<what>.*)"
    ),
    pattern("|".join(f"(?P<{name}>{words})" for name, words in _WORDS.items())),
)
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
        or "died" in text
        or "imed out" in text
        or "Failed to" in text
        or "cancelled" in text
        or "Cancel" in text
        or "nschedulable" in text
        or "not schedulable" in text
        or "unavailable: " in text
        or "ow on memory" in text
        or "disk is full" in text
        or ".exceptions." in text
        or "<class '" in text
    )


_OF_RAY = ("Status message: ", "Exception raised in creation task: ")
"""Ray's own messages about a submitted job and an actor's constructor, which rules match."""


def normalised(
    line: Stripped, is_new: bool, in_traceback: bool, is_alone: bool = True
) -> Iterator[str]:
    """The line as rules read it, and any exception that it prints in Python's own form.

    `in_traceback`: whether the line above is part of a traceback, so that this one may be its end.
    `is_alone`: whether Ray's logs are missing. If not, an exception after other words is a quotation.
    """
    text = line.text
    found = _exception(text) if may_hold(text) else None
    if found is None or (found[0] and not is_alone):
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


def _exception(text: str) -> tuple[str, str] | None:
    """(text before it, exception in Python's form) for a line that prints an exception in another form."""
    if len(text) > _LONGEST or _AS_PYTHON.match(text) or is_rays(text) or text.startswith(_OF_RAY):
        return None
    found = [
        (match.start(), n, match) for n, form in enumerate(_FORMS) if (match := form.search(text))
    ]
    if not found:
        return None
    start, _, match = min(found, key=lambda each: each[:2])
    if match.re.groupindex.keys() >= _WORDS.keys():
        return text[:start], f"ray.exceptions.{match.lastgroup}: {text[start:]}"
    what = match["what"]
    if "quote" in match.re.groupindex:
        what = _LAST_QUOTE.sub("", what.replace("\\n", "\n").replace("\\t", "\t"))
    if not match["inner"] and not _is_its_text(match["name"], what):
        return None  # a program that writes about the exception
    return text[:start], f"ray.exceptions.{match['name']}{match['inner'] or ''}: {what}"


def _is_its_text(name: str, what: str) -> bool:
    """Whether this can be the text of the exception; true if its first words are not known."""
    words = _ALL_WORDS.get(name)
    return words is None or re.match(words, what) is not None

"""Python tracebacks, plain or as `RayTaskError` prints them: the exception and its place.

`RayTaskError` replaces each `Traceback (most recent call last):` by `ray::f() (pid=…, ip=…)`. It omits Ray's own frames
(their carets may stay), and in a chain also the first frame of the first traceback (`format_error_message` in
`ray/_private/utils.py`, 2.9 to 2.60).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from raydoctor.case.signals import ELSEWHERE
from raydoctor.model.patterns import pattern

BEGIN = "Traceback (most recent call last):"
FIND_TRACEBACKS = (
    "grep -n -e Traceback -e 'Error: ' /tmp/ray/session_latest/logs/worker-*.err   # on each node"
)
"""The step for an exception that only the logs of workers show."""
_FRAME = pattern(
    r' {1,2}File "(?P<file>[^"]+)", line (?P<line>\d{1,20})(?:, in (?P<function>\S+))?'
)
_DRIVE = pattern(r"[A-Za-z]:\\")
_LIBRARY_OF_WINDOWS = pattern(r"(?i)[a-z]:/(?:.{0,300}/)?[^/]*(?:python|conda)[^/]*/lib/")
_CODE = pattern(r"(?P<indent> {4})(?P<code>\S.{0,300})")
_MARKS = pattern(r"[ ~^]{5,400}")
"""Since Python 3.11, unless the whole line failed."""
_RAISED = pattern(r"^(?P<type>[A-Za-z_][\w.]{0,300})(?:\([\w.]+\))?(?:: ?(?P<message>.*))?$")
_USUAL_NAME = pattern(r"(?:Error|Exception|Exit|Interrupt|Warning|Timeout|Failure|Failed)$")
_HEADER = pattern(r"^Traceback \(most recent call last\):|^(?:.{0,300}, )?ray::.{0,300}\(pid=\d+")
_RAYS_OWN = "ray.exceptions."
_NO_WORDS = ("", "what:")
"""First lines of messages that begin with a line break, also of those of C++."""
RAY_TASK_ERROR = f"{_RAYS_OWN}RayTaskError"
NO_FAILURES = ("KeyboardInterrupt", "SystemExit")
"""Exceptions by which a program is asked to end."""
CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_LIBRARIES = (
    "/site-packages/",
    "/dist-packages/",
    "/lib/python3",
    "python/ray/",
    ".pyx",
    "<frozen ",
)
_STRING = "<string>"
_OF_METHOD = "actor_method_executor"
_EXECUTORS = {
    "ray/_private/function_manager.py": _OF_METHOD,
    "ray/util/tracing/tracing_helper.py": "_resume_span",
    "ray/tune/function_runner.py": "run",
    "ray/tune/trainable/function_trainable.py": "run",
    "/single_controller/base/decorator.py": "inner",
}
"""Functions that only a worker calls, around a method of an actor: Ray's own (1.0 to 2.60), Tune's, and verl's."""
_CUT_OFF = "CutOffError"
_COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
"""Frames of their own until Python 3.11; generator expressions still have one."""
_COMMAND = pattern(r"/bin/(?P<name>[\w-]{1,60})$")
_INSIDE_LIBRARY = pattern(
    r"/(?:site-packages|dist-packages|lib/python3[^/]*)/(?!.*-packages/)(.+)$"
)


class TracebackFrame(NamedTuple):
    """One frame of a traceback."""

    file: str
    line: int
    function: str
    code: str = ""
    """The line of the program, if the traceback contains it, with Python's marks below its part that failed."""

    @property
    def is_user_code(self) -> bool:
        """Whether it is outside Python's library and installed packages, including Ray and compiled Cython.

        `<string>` is a program of `python -c`, but also the methods that `dataclass` generates.
        """
        if self.file == _STRING:
            return not self.function.startswith("__")
        is_library = any(part in self.file for part in _LIBRARIES)
        return not (is_library or _LIBRARY_OF_WINDOWS.match(self.file))

    @property
    def is_rays(self) -> bool:
        """Whether it is in an installed Ray."""
        return "-packages/ray/" in self.file.replace("\\", "/")

    @property
    def short_file(self) -> str:
        """The file's name; for a package the path inside it: `numpy/_core/_methods.py`."""
        if not self.is_user_code and (inside := _INSIDE_LIBRARY.search(self.file)):
            return inside[1]
        folder, _, name = self.file.rpartition("/")
        return f"{folder.rpartition('/')[2]}/{name}" if name == "__init__.py" else name

    @property
    def place(self) -> str:
        """`train.py:12`."""
        return f"{self.short_file}:{self.line}"

    def __str__(self) -> str:
        """`best() (train.py:12)`: with parentheses, so that a name does not read as a word."""
        called = "()" if self.function[-1:].isidentifier() or self.function[-1:].isdigit() else ""
        return f"{self.function}{called} ({self.place})" if self.function else self.place


class Raised(NamedTuple):
    """An exception, as its traceback shows it."""

    type: str
    """The class with its module, as Python prints it; empty where the text is cut off above it."""
    message: str
    """Its first line."""
    frames: tuple[TracebackFrame, ...] = ()
    """Outermost first."""
    cause: Raised | None = None
    """The exception that it was raised from, or while handling."""

    @property
    def name(self) -> str:
        """The class without its module."""
        return self.type.rpartition(".")[2]

    @property
    def place(self) -> TracebackFrame | None:
        """The innermost line of the user's program, or else the innermost line."""
        frames = self.frames[1:] if self.command else self.frames
        own = [frame for frame in frames if frame.is_user_code]
        if not own:
            return self.frames[-1] if self.frames else None
        around = [f for f in own if f.file == own[-1].file and f.function not in _COMPREHENSIONS]
        is_inside = own[-1].function in _COMPREHENSIONS and around
        return own[-1]._replace(function=around[-1].function) if is_inside else own[-1]

    @property
    def code(self) -> str:
        """The line of the user's program that raised, with marks; empty if the traceback has none."""
        return self.place.code if self.place and self.place.is_user_code else ""

    @property
    def command(self) -> str:
        """The installed command that failed: `ray` of `/home/user/venv/bin/ray`, whose script only calls a package."""
        if len(self.frames) < 2 or self.frames[1].is_user_code:
            return ""
        found = _COMMAND.search(self.frames[0].file)
        return found["name"] if found and self.frames[0].function == "<module>" else ""

    @property
    def first(self) -> Raised:
        """The first exception of the chain."""
        return self.cause.first if self.cause else self

    @property
    def is_elsewhere(self) -> bool:
        """Whether it reports only that another process failed, whose exception is above."""
        return any(words in self.message for words in ELSEWHERE)

    @property
    def executed(self) -> str:
        """The method that Ray executed in a worker; empty if no frame shows that."""
        for n, frame in reversed(list(enumerate(self.frames[:-1]))):
            file = frame.file.replace("\\", "/")
            if any(file.endswith(f) and frame.function == name for f, name in _EXECUTORS.items()):
                return self.frames[n + 1].function
        return ""

    @property
    def is_of_method(self) -> bool:
        """Whether a worker ran a method of an actor, even if the text ends above the method's own frame."""
        return any(frame.function == _OF_METHOD for frame in self.frames)

    @property
    def is_waiting(self) -> bool:
        """Whether its frames wait for a result of Ray, so that the exception may be that of the result."""
        return any("ray.get(" in frame.code for frame in self.frames)

    @property
    def is_rays_own(self) -> bool:
        """Whether it is one of `ray.exceptions`."""
        return self.type.startswith(_RAYS_OWN)

    def __str__(self) -> str:
        return f"{self.name}: {self.message}" if self.message else self.name


def parse(text: str) -> Raised | None:
    """The last exception of the first chain in `text`, with its causes; None if there is none.

    The end of a message cannot be distinguished from later output, so only its first line counts. One of Ray's own
    exceptions ends the chain, unless the next exception is announced right below it: other text belongs to another failure.
    """
    raised: Raised | None = None
    frames: list[TracebackFrame] = []
    begun = False
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if match := _FRAME.match(line):
            code = _code(lines[number : number + 2])
            file = _of_windows(match["file"])
            frames.append(TracebackFrame(file, int(match["line"]), match["function"] or "", code))
            begun = True
        elif _HEADER.match(line) and not line.startswith(_RAYS_OWN):
            begun = True
        elif found := _exception(line, begun, bool(frames)):
            message = found["message"]
            if message is not None and message.strip() in _NO_WORDS:
                message = next((each for each in lines[number : number + 2] if each.strip()), "")
            raised = Raised(found["type"], (message or "").strip(), tuple(frames), raised)
            frames, begun = [], False
            if raised.is_rays_own and not _is_chained(lines[number:]):
                break
        elif raised and not begun and line.strip() and not line.startswith(CHAINED):
            break
    return raised


def _of_windows(file: str) -> str:
    """A path with slashes, so that its parts are found; another system's may contain backslashes."""
    return file.replace("\\", "/") if _DRIVE.match(file) else file


def _is_chained(below: list[str]) -> bool:
    """Whether the next line that is not blank announces another exception."""
    return next((line for line in below[:3] if line.strip()), "").startswith(CHAINED)


def _code(below: list[str]) -> str:
    """The program's line below a frame, and Python's marks below the part that failed, if it made any."""
    found = _CODE.fullmatch(below[0]) if below else None
    if not found:
        return ""
    marks = below[1] if len(below) > 1 and _MARKS.fullmatch(below[1]) and "^" in below[1] else ""
    shown = marks[len(found["indent"]) :]
    return f"{found['code']}\n{shown}" if shown else found["code"]


def cut_off(text: str) -> Raised | None:
    """What is left of a traceback whose exception is cut off: its frames; None if there are none."""
    raised = parse(f"{text}\n{_CUT_OFF}")
    if raised is None or raised.type != _CUT_OFF or not raised.frames:
        return None
    # Of a line number that ends the text, digits may be missing.
    is_whole = bool(raised.frames[-1].function or raised.frames[-1].code)
    frames = raised.frames if is_whole or len(raised.frames) == 1 else raised.frames[:-1]
    return raised._replace(type="", frames=frames)


def is_usual(name: str) -> bool:
    """Whether a class has the usual name of an exception, so that a cut did not shorten it."""
    return _USUAL_NAME.search(name) is not None


def lone(text: str) -> Raised | None:
    """The exception of a line without a traceback; its name may be any if its module is known."""
    match = _RAISED.match(text.partition("\n")[0])
    if match and match["message"] and "." in match["type"]:
        return Raised(match["type"], match["message"].strip())
    return None


def _exception(line: str, begun: bool, has_frames: bool) -> re.Match[str] | None:
    """An exception's own line; before the first frame only a usual exception name counts.

    An actor's `repr` may span lines between the header and the first frame.
    """
    match = _RAISED.match(line) if begun else None
    if match and (has_frames or _USUAL_NAME.search(match["type"])):
        return match
    return None

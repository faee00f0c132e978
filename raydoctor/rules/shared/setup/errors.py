"""Why the setup of a runtime environment failed: from the error's text to its kind and the tool's decisive line.

The agent that sets environments up (`runtime_env_agent.py`) reports a Python traceback. If it ran a tool, the traceback
ends with `SubprocessCalledProcessError: Run cmd[n] failed …` and the last 50 lines of the tool's output, indented
(`ray/_private/runtime_env/utils.py`, 2.9 to 2.60). The patterns come from runs of pip 23 to 25 and uv 0.13; those of
conda and older uv from their documentation.
"""

from __future__ import annotations

import json
import re
from typing import Literal, NamedTuple

from raydoctor.model.patterns import pattern
from raydoctor.rules.shared.traceback import CHAINED, Raised, cut_off, parse

Kind = Literal[
    "timeout", "disk", "certificate", "network", "untrusted", "no-package", "conflict", "build",
    "ray-version", "no-tool", "too-large", "upload", "not-in-init", "invalid", "other",
]  # fmt: skip

_OUTPUT = pattern(
    r"Last \d+ lines of (?:stdout|stderr):\n(?P<output>(?:(?: {4}[^\n]*|\s*)(?:\n|$))+)"
)
_NODE = pattern(r"^\[Node (?P<ip>[^\]\s]+)\] ?", re.MULTILINE)
_WORDS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (
        "timeout",
        pattern(
            r"Failed to install runtime_env within the\s+timeout of (?P<seconds>\d{1,20}(?:\.\d{1,20})?) seconds|"
            r"Failed due to timeout; check runtime_env setup logs"  # up to 2.10
        ),
    ),
    ("disk", pattern(r"No space left on device|Disk quota exceeded")),
    (
        "certificate",
        pattern(r"CERTIFICATE_VERIFY_FAILED[^\n')]*|invalid peer certificate[^\n]*"),
    ),
    (
        "network",
        pattern(
            r"HTTPS?ConnectionPool\([^)]{0,300}\): Max retries exceeded with url: \S+|Failed to fetch: \S+|"
            r"CONNECTION FAILED for url \S+|\b[45]\d\d (?:Client|Server) Error: [^\n]*"
        ),
    ),
    (
        "network",
        pattern(
            r"Failed to establish a new connection: [^\n'\")]+|Temporary failure in name resolution|"
            r"Name or service not known|Read timed out|Connect(?:ion)?(?: to \S+)? timed out|"
            r"Network is unreachable|Connection (?:refused|reset by peer)|ProxyError[^\n]*"
        ),
    ),
    (
        "untrusted",
        pattern(
            r"The repository located at \S+ is not a trusted or secure host and is being ignored"
        ),
    ),
    (
        "no-package",
        pattern(
            r"No matching distribution found for (?P<requirement>[^\n]+)|"
            r"Because (?P<uv>\S+) was not found in the package registry|"
            r"Because there is no version of (?P<uv_version>\S+)|"
            r"(?:PackagesNotFoundError|ResolvePackageNotFound): ?[^\n]*"
        ),
    ),
    (
        "conflict",
        pattern(
            r"ResolutionImpossible[^\n]*|No solution found when resolving dependencies|UnsatisfiableError[^\n]*|"
            r"LibMambaUnsatisfiableError[^\n]*"
        ),
    ),
    (
        "build",
        pattern(
            r"subprocess-exited-with-error|Failed building wheel for [^\n]+|Failed to build [^\n]+|"
            r"metadata-generation-failed|The build backend returned an error"
        ),
    ),
    (
        "ray-version",
        pattern(r"Changing the ray version is not allowed[^\n]*(?:\n[^\n]*version: [^\n]*)*"),
    ),
    (
        "no-tool",
        pattern(
            r"Could not find Conda executable[^\n]*|Please install virtualenv[^\n]*|You must `pip install smart_open[^\n]*|"
            r"Cannot find command '[^\n]*|The given conda environment '[^\n]*"
        ),
    ),
    (
        "too-large",
        pattern(
            r"Package size \(\d{1,20}(?:\.\d{1,20})?MiB\) exceeds the maximum size of \d{1,20}(?:\.\d{1,20})?MiB"
        ),
    ),
    ("not-in-init", pattern(r"[^\n]{0,300} is only supported at the job level[^\n]*")),
    ("upload", pattern(r"Failed to upload (?:package|working_dir|module) [^\n]*")),
)
"""In order of certainty: pip also prints `No matching distribution` after a lost connection, and tools
print `failed to build` when a build dependency could not be fetched."""

_AWAITS = ("_create_runtime_env_with_retry", "wait_for")
_GOES_ON = (*CHAINED, "Command '", "Last ", "Output:")
"""Beginnings of lines that may follow the exception within an error."""
_AVAILABLE = pattern(
    r"satisfies the requirement [^\n]{0,500}?\(from versions: (?P<versions>[^)\n]{0,8000})\)"
)
_CAUSE_OF_BUILD = pattern(
    r"^[^\w\n]*((?:\w{1,100}\.){0,20}\w{0,100}(?:Error|Exception): [^\n]+)$", re.MULTILINE
)
_LAST_ERROR = pattern(r"^[^\w\n]*(?:ERROR|error|fatal): ?([^\n]+)$", re.MULTILINE)


class SetupError(NamedTuple):
    """Why an environment could not be set up."""

    kind: Kind
    said: str
    """The decisive line; the tool's, if a tool was run."""
    requirement: str = ""
    """The package that was not found."""
    available: str = ""
    """Versions of it that exist; `none` if the index does not have the name."""
    seconds: str = ""
    """The limit that was exceeded."""
    ip: str = ""
    """The node, if the text names it (2.50 and 2.60 do, 2.40 does not)."""


def read(text: str) -> SetupError:
    """Classify an error's text. Accepts any text: an unknown error is `other`, with its last line."""
    node = _NODE.search(text)
    ip = node["ip"] if node else ""
    plain = _own_text(_NODE.sub("", text))
    output = _OUTPUT.search(plain)
    body = output["output"] if output else _without_frames(plain)
    for kind, words in _WORDS:
        if match := words.search(body):
            groups = {k: v for k, v in match.groupdict().items() if v}
            requirement = (
                groups.get("requirement") or groups.get("uv") or groups.get("uv_version") or ""
            )
            versions = _AVAILABLE.search(body)
            return SetupError(
                kind, _said(kind, match[0], body), requirement.strip(),
                versions["versions"] if versions else "", groups.get("seconds", ""), ip,
            )  # fmt: skip
    if _ran_out_of_time(plain):
        return SetupError("timeout", "it exceeded its time limit", ip=ip)
    return SetupError("other", _last_words(body, plain), ip=ip)


_RAYS_CODE = pattern(r"\bray[/\\](?:_private[/\\])?runtime_env[/\\][a-z_]{1,40}\.py$")
"""Ray's checks of a runtime environment in the driver and the upload of its directories (2.0 to 2.60)."""


class Refusal(NamedTuple):
    """An exception with which Ray refused a runtime environment, and what it says."""

    raised: Raised
    error: SetupError


def refused(raised: Raised) -> Refusal | None:
    """Why Ray refused the runtime environment that a program passed; None if it raised something else.

    That is the first exception of the chain or, if that is one of Python's library, the last one.
    """
    chain = [raised]
    while chain[-1].cause:
        chain.append(chain[-1].cause)
    for each in (chain[-1], *chain):
        if each.type and each.frames and _RAYS_CODE.search(each.frames[-1].file):
            error = read(str(each))
            return Refusal(each, error._replace(kind="invalid") if error.kind == "other" else error)
    return None


def _ran_out_of_time(text: str) -> bool:
    """Whether the agent cancelled an attempt: its log has the bare traceback without the messages above.

    Up to 2.9 at least, the error of the cancelled command replaces the TimeoutError.
    """
    raised = parse(text)
    if raised is None or not any(frame.function in _AWAITS for frame in raised.frames):
        return False
    cancelled = raised.cause is not None and raised.first.name == "CancelledError"
    return cancelled or (raised.name == "TimeoutError" and not raised.message)


def _own_text(text: str) -> str:
    """The text up to the error's end: in a driver's record the program's next output follows."""
    own: list[str] = []
    inside, ended, chained = False, False, False
    for line in text.splitlines():
        if line.startswith("Traceback "):
            if ended and not chained:
                break
            inside, ended = True, False
        elif inside and line.strip() and not line.startswith(" "):
            inside, ended = False, True  # the exception's own line
        elif ended and line.strip() and not line.startswith((" ", *_GOES_ON)):
            break
        chained = line.startswith(CHAINED) or (chained and not line.strip())
        own.append(line)
        if ended and line == "Output:":  # conda's output: unindented, to the end
            return text
    return "\n".join(own)


def _without_frames(text: str) -> str:
    """A traceback without its frames: their source lines would match the messages that they print."""
    kept = [line for line in text.splitlines() if not line.startswith(("  File ", "    "))]
    return "\n".join(kept)


def _said(kind: Kind, words: str, body: str) -> str:
    if kind == "build" and (causes := _CAUSE_OF_BUILD.findall(body)):
        return str(causes[-1])
    return " ".join(words.split())


def _last_words(body: str, text: str) -> str:
    """The tool's last error, the exception, or the last line."""
    if errors := _LAST_ERROR.findall(body):
        return str(errors[-1])
    raised = parse(text)
    if raised:
        return str(raised)
    if cut := cut_off(text) or cut_off(text.replace('\\"', '"')):
        return f"an error that the console cut off, in {cut.place}"
    lines = [line.strip() for line in text.splitlines() if line.strip(" ^~")]
    return lines[-1] if lines else "no text"


def tool_of(serialized: str) -> str:
    """Which part of a runtime environment's JSON needs setting up: `pip`, `working_dir and uv`, or empty."""
    try:
        env = json.loads(serialized)
    except (ValueError, RecursionError):
        return ""
    wanted = (
        "pip",
        "uv",
        "conda",
        "working_dir",
        "py_modules",
        "image_uri",
        "container",
        "py_executable",
    )
    return " and ".join(key for key in wanted if isinstance(env, dict) and env.get(key))

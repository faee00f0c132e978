"""Runs `kubectl` with the user's options, within one deadline for all calls."""

from __future__ import annotations

import io
import json
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from raydoctor.capture.temporary import done_if_ended
from raydoctor.model import paste
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.patterns import pattern
from raydoctor.model.text import plural
from raydoctor.observe.collector import child
from raydoctor.read.kubernetes.document import Document
from raydoctor.read.kubernetes.documents import documents

_MOST_OBJECTS = 256 << 20
"""Bytes of the objects of one kind."""
GRACE = 2.0
"""Seconds for a thread to notice that its process was ended."""
LONGER = "Give it more time with --timeout."
FORBIDDEN = "forbidden"
"""First word of the problem of a call that the user's rights do not permit."""
_FORBIDDEN = pattern(
    r"\(Forbidden\): .{0,200}?(?:User \"(?P<user>[^\"]{1,200})\" )?cannot (?P<verb>\w{1,30}) "
    r"resource \"(?P<what>[\w/.-]{1,100})\""
)
_NO_KIND = ("the server doesn't have a resource type", "could not find the requested resource")
_ABSENT = ("executable file not found", "no such file or directory")
_NAME = pattern(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
"""A DNS subdomain, which every name of a pod, container, node or object of KubeRay is."""


def is_name(text: object) -> bool:
    """Whether a text can be a name of an object; other texts are never passed on."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


class Listed(NamedTuple):
    """The objects of one kind, and why there are none or not all."""

    items: list[dict[str, Any]]
    problem: str = ""
    is_unknown: bool = False
    """Whether the cluster has no such kind: KubeRay is not installed, or too old."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """The user's `kubectl`, with the options that choose the cluster and the namespace."""

    program: str
    options: tuple[str, ...]
    timeout: float
    """Seconds for all calls together."""
    began: float = field(default_factory=time.monotonic)
    over: threading.Event = field(default_factory=threading.Event)
    """Set at the end: what still runs in threads then starts nothing and writes nothing."""

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return max(0.1, self.began + self.timeout - time.monotonic())

    @property
    def patience(self) -> float:
        """Seconds after which a thread that has not come back is given up."""
        return max(0.0, self.began + self.timeout + GRACE - time.monotonic())

    def line(self, namespace: str, words: str, **values: str) -> str:
        """A line to paste that runs kubectl with the same options; `words` is a template."""
        given = {"namespace": namespace} if namespace else {}
        for option in self.options:
            name, _, value = option.removeprefix("--").partition("=")
            given[name] = value
        options = " ".join(f"--{name}={{{name}}}" for name in given)
        return paste.shell(f"kubectl {options} {words}", **given, **values)

    def get(self, kind: str, *words: str, share: float = 1.0) -> Listed:
        """The objects of a kind; `share` of the time that is left may be used."""
        out = io.BytesIO()
        done = self.stream(("get", kind, *words, "-o", "json"), out, _MOST_OBJECTS, share)
        problem = problem_of(done)
        if problem and not done.size:
            return Listed([], problem, any(text in done.errors for text in _NO_KIND))
        try:
            data = json.loads(out.getvalue())
        except (ValueError, RecursionError):
            part = _as_far_as_possible(out)
            problem = problem or "kubectl printed damaged JSON"
            if part:
                problem += f"; only {plural(len(part), 'object')} could be read"
            return Listed(part, problem)
        items = data.get("items") if isinstance(data, dict) else None
        if isinstance(data, dict) and items is None:
            items = [data]
        return Listed([each for each in items or () if isinstance(each, dict)], problem)

    def save(
        self, file: Path, words: Sequence[str], most: int, share: float = 1.0
    ) -> child.Streamed:
        """Write the output of a command to a new file, as far as it came. Raises OSError at the end."""
        if self.over.is_set():
            raise InterruptedError(None, "interrupted")
        with file.open("xb") as out:
            return self.stream(words, out, most, share)

    def stream(
        self, words: Sequence[str], out: IO[bytes], most: int, share: float = 1.0
    ) -> child.Streamed:
        """Copy the output of a command as it arrives, in a share of the time that is left."""
        return child.stream((self.program, *self.options, *words), self.left * share, out, most)


def _as_far_as_possible(out: io.BytesIO) -> list[dict[str, Any]]:
    """The complete objects of a list that is cut off."""
    out.seek(0)
    text = io.TextIOWrapper(out, "utf-8", "replace")
    return [each.data for each in documents(text) if isinstance(each, Document)]


def problem_of(done: child.Streamed, allowed: Sequence[int] = (0,)) -> str:
    """Why a command failed, in one line; empty if it did not."""
    if done.stopped:
        return done.stopped
    if done.code in allowed:
        return ""
    if found := _FORBIDDEN.search(done.errors):
        return f"{FORBIDDEN}: this user cannot {found['verb']} {found['what']}"
    lines = [line.strip() for line in done.errors.splitlines() if line.strip()]
    first = [line for line in lines if line.lower().startswith("error")]
    return (first or lines or [f"kubectl ended with exit code {done.code}"])[-1][:300]


_NO_CONTEXT = pattern(r"context \S{1,300} does not exist|no context exists with the name")


def advice(problem: str) -> str:
    """What helps against a problem."""
    if problem.startswith(FORBIDDEN):
        return (
            "The rights that raydoctor needs are on its page about Kubernetes: docs/kubernetes.md"
        )
    if _NO_CONTEXT.search(problem):
        return "See which contexts there are: kubectl config get-contexts"
    is_late = problem.startswith("did not answer")
    return LONGER if is_late else "See whether kubectl works: kubectl get pods"


def is_absent(done: child.Streamed) -> bool:
    """Whether the image of a container lacks the program of an `exec`."""
    return any(text in done.errors for text in _ABSENT)


@contextmanager
def connected(
    namespace: str | None, context: str | None, kubeconfig: str | None, timeout: float
) -> Iterator[Kubectl]:
    """The user's `kubectl`; its processes are ended with the block, and if a signal ends this process.

    Raises RaydoctorError if there is no `kubectl` or an option cannot be meant.
    """
    program = shutil.which("kubectl")
    if program is None:
        raise RaydoctorError(
            "there is no kubectl on PATH", "Install it, or give its output: raydoctor diagnose PATH"
        )
    if namespace is not None and not is_name(namespace):
        raise RaydoctorError(f"{namespace!r} cannot be the name of a namespace")
    given = (("namespace", namespace), ("context", context), ("kubeconfig", kubeconfig))
    options = tuple(f"--{name}={value}" for name, value in given if value is not None)
    kubectl = Kubectl(program, options, timeout)

    def end() -> None:
        kubectl.over.set()
        child.end_streams()

    with done_if_ended(end):
        try:
            yield kubectl
        finally:
            end()

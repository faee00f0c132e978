"""`raydoctor zombies` in each pod of a cluster: a dry run, as nothing is ended from here."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from raydoctor.observe.collector.parallel import parallel
from raydoctor.observe.kubectl.choice import Pod
from raydoctor.observe.kubectl.client import Kubectl, is_absent, problem_of

_MOST = 8 << 20
_AT_ONCE = 8


class PodLeftovers(NamedTuple):
    """What a pod's raydoctor reports, or why it does not."""

    pod: Pod
    report: dict[str, Any]
    problem: str = ""

    @property
    def leftovers(self) -> list[dict[str, Any]]:
        """The leftover processes."""
        return self._rows("leftovers")

    @property
    def stale(self) -> list[dict[str, Any]]:
        """The files of dead sessions."""
        return self._rows("stale_sessions")

    def _rows(self, name: str) -> list[dict[str, Any]]:
        found = self.report.get(name)
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def command(kubectl: Kubectl, namespace: str, pod: Pod) -> str:
    """The line that ends what is left in a pod; it shows its plan and asks."""
    words = "exec -it {pod} -c {container} -- raydoctor zombies --kill"
    return kubectl.line(namespace, words, pod=pod.name, container=pod.container)


def search(
    kubectl: Kubectl, pods: Iterable[Pod], report: Callable[[str], None] = lambda doing: None
) -> list[PodLeftovers]:
    """The leftovers in each pod whose container of Ray runs."""
    running = {pod.name: pod for pod in pods if pod.is_running}
    calls = {name: lambda pod=pod: _of(kubectl, pod) for name, pod in running.items()}
    found: dict[str, PodLeftovers] = {}
    for name, result in parallel(calls, kubectl.left + 1, _AT_ONCE):
        if isinstance(result, Exception):
            result = PodLeftovers(running[name], {}, str(result))  # noqa: PLW2901
        found[name] = result
        report(f"searching {len(running)} pods: {len(found)} done")
    late = "did not answer in time"
    return [found.get(name, PodLeftovers(pod, {}, late)) for name, pod in running.items()]


def _of(kubectl: Kubectl, pod: Pod) -> PodLeftovers:
    out = io.BytesIO()
    words = (
        "exec",
        pod.name,
        "-c",
        pod.container,
        "--",
        "raydoctor",
        "zombies",
        "--format",
        "json",
    )
    done = kubectl.stream(words, out, _MOST)
    try:
        report = json.loads(out.getvalue())
        if str(report["schema"]).startswith("raydoctor/zombies/"):
            return PodLeftovers(pod, report)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass  # kubectl reports why, with the same exit code as leftovers
    if is_absent(done):
        return PodLeftovers(pod, {}, "raydoctor is not in its image")
    return PodLeftovers(pod, {}, problem_of(done) or "its reply is malformed")

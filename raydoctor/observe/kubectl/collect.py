"""One RayCluster through `kubectl` -> the files of a capture, in a folder for each pod.

    pods.json, events.json, rayclusters.json, rayjobs.json, rayservices.json, nodes.json
    POD/driver-1.log                 output of the container's first process, pid 1
    POD/previous/driver-1.log        the same of the container that ran before
    POD/driver.log                   output of a RayJob's submitter, which prints that of the driver
    POD/logs/…, POD/live/…           what `raydoctor collect` in the head collected, or the logs of each pod

Steps that need rights which the user lacks, or that take too long, are gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path

from raydoctor.capture import members
from raydoctor.model import paste
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.text import plural
from raydoctor.model.values import Gap
from raydoctor.observe.collector import child
from raydoctor.observe.collector.parallel import parallel
from raydoctor.observe.gathered import Gathered
from raydoctor.observe.kubectl import objects
from raydoctor.observe.kubectl.choice import (
    CLUSTER_LABEL,
    KINDS,
    Chosen,
    Pod,
    choose,
    pods_of,
)
from raydoctor.observe.kubectl.client import (
    FORBIDDEN,
    GRACE,
    LONGER,
    Kubectl,
    Listed,
    advice,
    is_absent,
    problem_of,
)

_AT_ONCE = 8
_MOST_PODS = 50
"""Pods whose logs are read; the head and those with most restarts first."""
_MOST_LOG = 64 << 20
_TAIL = "200000"
"""Lines at the end of a container's log."""
_MOST_PACKED = 512 << 20
"""Bytes of the packed logs of one pod."""
_LISTING = 0.4
"""Share of the time in which objects are listed; the rest is for logs."""
_COLLECTING = 0.7
"""Share of the rest for `raydoctor collect` in the head; with what is left, its logs are copied."""
_INCOMPLETE = 3
"""Exit code of `raydoctor collect` that wrote an archive with gaps."""
_OPTIONAL = frozenset({"rayclusters", "rayservices"})
"""Objects that no rule needs if pods and events are known."""
_LIVE = "what raydoctor in the head collects"
_LOGS = "/tmp/ray/session_latest/logs"

ReportProgress = Callable[[str], None]


def find(kubectl: Kubectl, name: str | None) -> tuple[Chosen, list[Gap]]:
    """The cluster that the user means, and which objects could not be listed.

    Raises RaydoctorError if there is none, or it is not clear which.
    """
    kinds = {
        "pods": ("pods", "-l", CLUSTER_LABEL),
        "events": ("events",),
        **{kind: (f"{kind}.ray.io",) for kind in KINDS[2:]},
    }
    calls = {
        kind: lambda words=words: kubectl.get(*words, share=_LISTING)
        for kind, words in kinds.items()
    }
    silent = Listed([], "kubectl did not answer in time")
    listed = dict.fromkeys(KINDS, silent)
    for kind, result in parallel(calls, kubectl.left * _LISTING + GRACE):
        listed[kind] = Listed([], str(result)) if isinstance(result, Exception) else result
    chosen = choose(listed, name)
    gaps = [
        Gap(kind, each.problem, advice(each.problem), optional=kind in _OPTIONAL)
        for kind, each in listed.items()
        if each.problem and not each.is_unknown
    ]
    if not (chosen.objects["pods"] or listed["pods"].problem):
        why = "the cluster has none: their own logs are gone with them"
        gaps.append(Gap("pods", why, "Give an export of your log store: raydoctor diagnose PATH"))
    return chosen, gaps


def collect(
    kubectl: Kubectl, chosen: Chosen, into: Gathered, report: ReportProgress = lambda doing: None
) -> None:
    """Write all that the cluster's pods and their containers record."""
    for kind, items in chosen.objects.items():
        _write(into, kind, items)
    pods, refused = pods_of(chosen.objects["pods"])
    for name in refused:
        into.gaps.append(Gap("a pod", paste.text("has no valid name: {name}", name=name)))
    if len(pods) > _MOST_PODS:
        why = f"not read: only {_MOST_PODS} of {plural(len(pods), 'pod')} are"
        into.gaps.append(Gap("logs of further pods", why, "kubectl ray log writes those of all."))
    _Steps(kubectl, chosen, into, pods[:_MOST_PODS]).run(report)


def _write(into: Gathered, kind: str, items: Iterable[dict[str, object]]) -> None:
    try:
        clean = [objects.clean(each, into.redactor) for each in items]
        into.write_json(f"{kind}.json", {"apiVersion": "v1", "kind": "List", "items": clean})
    except RecursionError:
        into.gaps.append(Gap(kind, "nested too deeply to be read"))


def collect_live(kubectl: Kubectl, chosen: Chosen, into: Gathered) -> None:
    """Write only what raydoctor in the head collects. Raises RaydoctorError if that is nothing."""
    head = running_head(chosen)
    if head is None:
        raise RaydoctorError(f"no head of {chosen.shown} is running", "Run: kubectl get pods")
    steps = _Steps(kubectl, chosen, into, [])
    done, is_packed = steps.live(head, 1.0)
    steps.unpack()
    problem = problem_of(done, (0, _INCOMPLETE))
    if not is_packed:
        if is_absent(done):
            raise RaydoctorError(f"raydoctor is not in the image of {chosen.shown}", _INSTALL)
        why = problem or "its output is no archive"
        raise RaydoctorError(f"raydoctor in the head failed: {why}", advice(problem))
    if problem:
        # Tasks and stacks may be missing, which `hung` needs.
        into.gaps.append(Gap(_LIVE, f"incomplete: {problem}", LONGER, about="tasks"))


def running_head(chosen: Chosen) -> Pod | None:
    """The head whose container of Ray is running."""
    pods = pods_of(chosen.objects["pods"])[0]
    return next((pod for pod in pods if pod.is_head and pod.is_running), None)


class _Steps:
    """The calls for one cluster; each writes its files and yields what is missing."""

    def __init__(self, kubectl: Kubectl, chosen: Chosen, into: Gathered, pods: list[Pod]) -> None:
        self._kubectl, self._chosen, self._into, self._pods = kubectl, chosen, into, pods
        self._numbers = count()
        self._archives: list[tuple[Path, tuple[str, ...]]] = []

    def run(self, report: ReportProgress) -> None:
        """All calls, several at a time."""
        calls: dict[str, Callable[[], list[Gap]]] = {}
        heads = [pod for pod in self._pods if pod.is_head and pod.is_running]
        if heads:
            calls["Ray's logs"] = lambda: self._through_head(heads[0])
        else:
            calls.update(self._copies())
        for pod in self._pods:
            calls[f"output of {pod.name}"] = lambda pod=pod: self._output(pod)  # type: ignore[misc]
            if pod.has_previous:
                calls[f"previous output of {pod.name}"] = lambda pod=pod: self._output(  # type: ignore[misc]
                    pod, "--previous"
                )
        calls["nodes"] = self._nodes
        if self._pods and not any(pod.is_head for pod in self._pods):
            why = f"{self._chosen.shown} has no head pod: it was deleted, or could not be created"
            self._into.gaps.append(Gap("the head", why, self._look()))
        if self._chosen.job:
            calls["the submitter of the RayJob"] = self._submitter
        self._into.gaps += self._called(calls, report)
        self.unpack()

    def _look(self) -> str:
        """The command that shows why the operator made no pod."""
        return paste.shell(
            "kubectl describe raycluster {name} -n {namespace}",
            name=self._chosen.cluster,
            namespace=self._chosen.namespace or "default",
        )

    def _called(
        self, calls: Mapping[str, Callable[[], list[Gap]]], report: ReportProgress
    ) -> list[Gap]:
        """The gaps of all calls in their order: the same cluster yields the same report."""
        done: dict[str, list[Gap]] = {}
        for name, result in parallel(calls, self._kubectl.patience, _AT_ONCE):
            if isinstance(result, Exception):
                result = [Gap(name, f"could not be read: {result}")]  # noqa: PLW2901
            done[name] = result
            report(f"reading {len(calls)} logs of pods: {len(done)} done")
        late = "did not answer in time"
        return [gap for name in calls for gap in done.get(name, [Gap(name, late, LONGER)])]

    def _through_head(self, head: Pod) -> list[Gap]:
        """What raydoctor in the head collects of the whole cluster, else the logs of each pod."""
        done, is_packed = self.live(head, _COLLECTING)
        problem = problem_of(done, (0, _INCOMPLETE))
        if is_packed and not problem:
            return []
        if problem.startswith(FORBIDDEN):
            return [Gap("Ray's logs in the pods", problem, advice(problem))]
        if is_absent(done):
            why = "raydoctor is not in the image of the head: only logs are read"
            gaps = [Gap("the live state of the cluster", why, _INSTALL, optional=True)]
        else:
            part = "incomplete: " if is_packed else ""
            why = f"{part}{problem or 'its output is no archive'}"
            gaps = [Gap(_LIVE, why, LONGER)]
        return [*gaps, *self._called(self._copies(), lambda doing: None)]

    def live(self, head: Pod, share: float) -> tuple[child.Streamed, bool]:
        """Fetch what raydoctor in the head collects, and whether an archive came."""
        packed = self._packed()
        words = self._exec(head, "raydoctor", "collect", "-o", "-")
        done = self._kubectl.save(packed, words, _MOST_PACKED, share)
        return done, self._keep(packed, head.name)

    def _copies(self) -> dict[str, Callable[[], list[Gap]]]:
        return {
            f"Ray's logs in {pod.name}": lambda pod=pod: self._copy(pod)  # type: ignore[misc]
            for pod in self._pods
            if pod.is_running
        }

    def _copy(self, pod: Pod) -> list[Gap]:
        """Ray's logs in a pod, as `kubectl ray log` copies them."""
        packed = self._packed()
        words = self._exec(pod, "tar", "-czf", "-", "-C", _LOGS, ".")
        done = self._kubectl.save(packed, words, _MOST_PACKED)
        # tar's exit code 1: a file was written meanwhile, which is usual here.
        problem = problem_of(done, (0, 1) if "file changed as we read it" in done.errors else (0,))
        what = f"Ray's logs in pod {pod.name}"
        if not self._keep(packed, pod.name, "logs"):
            return [Gap(what, problem or "tar wrote no archive", advice(problem))]
        return [Gap(what, f"incomplete: {problem}", LONGER)] if problem else []

    def _keep(self, packed: Path, *folder: str) -> bool:
        """Unpack a file later, if it begins as an archive does."""
        is_packed = members.is_archive(packed)
        if is_packed:
            self._archives.append((packed, folder))
        return is_packed

    def unpack(self) -> None:
        """Unpack the archives, in the main thread: a signal removes the folder while others may write."""
        for packed, folder in self._archives:
            what = f"Ray's logs in pod {folder[0]}"
            try:
                self._into.unpack(packed, what, *folder)
            except RaydoctorError as error:
                self._into.gaps.append(Gap(what, error.message, _AGAIN))
            packed.unlink()

    def _output(self, pod: Pod, *options: str) -> list[Gap]:
        """The output of a pod's first container, whose process has the pid 1."""
        folder = ("previous",) if options else ()
        return self._saved(pod, (*folder, "driver-1.log"), *options)

    def _saved(self, pod: Pod, name: Sequence[str], *options: str) -> list[Gap]:
        if self._kubectl.over.is_set():
            return []
        file = self._into.place(pod.name, *name)
        words = ("logs", pod.name, "-c", pod.container, f"--tail={_TAIL}", *options)
        done = self._kubectl.save(file, words, _MOST_LOG)
        if not done.size:
            file.unlink()
        problem = problem_of(done)
        if not problem or not (pod.is_running or options or done.size):
            return []  # a container that has not started has no log
        which = "the previous output" if options else "the output"
        part = "incomplete: " if done.size else ""
        hint = paste.text(
            "kubectl logs {pod} -c {container}", pod=pod.name, container=pod.container
        )
        # The kubelet may have removed the log of a container that ended.
        return [Gap(f"{which} of pod {pod.name}", f"{part}{problem}", hint, optional=bool(options))]

    def _nodes(self) -> list[Gap]:
        """The Kubernetes nodes of these pods, which need a right of their own."""
        names = sorted({pod.host for pod in self._pods} - {""})
        if not names:
            return []
        found = self._kubectl.get("nodes", *names)
        if found.items:
            _write(self._into, "nodes", found.items)
        if found.problem:
            return [Gap("nodes", found.problem, advice(found.problem), optional=True)]
        return []

    def _submitter(self) -> list[Gap]:
        """The pods of the Kubernetes Job that submits a RayJob and prints its driver's output."""
        found = self._kubectl.get("pods", "-l", f"job-name={self._chosen.job}")
        gaps: list[Gap] = []
        if found.problem:
            gaps.append(Gap("the submitter of the RayJob", found.problem, advice(found.problem)))
        if found.items or not gaps:
            _write(self._into, "submitters", found.items)
        for pod in pods_of(found.items)[0][:_AT_ONCE]:
            gaps += self._saved(pod, ("driver.log",))
        return gaps

    def _exec(self, pod: Pod, *command: str) -> tuple[str, ...]:
        return ("exec", pod.name, "-c", pod.container, "--", *command)

    def _packed(self) -> Path:
        return self._into.folder / f"packed-{next(self._numbers)}"


_AGAIN = "Run it again; for all logs of the cluster: kubectl ray log"
_INSTALL = "Install raydoctor in the image to see tasks, actors, stacks and machines as well."

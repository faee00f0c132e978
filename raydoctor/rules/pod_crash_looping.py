"""A container of a Ray pod keeps ending, ended with an error, or cannot be started.

## What you see
- `kubectl get pods` shows `CrashLoopBackOff`, `Error`, `RunContainerError`, `CreateContainerError`,
  `CreateContainerConfigError` or `StartError`, and a growing number of restarts.
- `kubectl describe pod POD` shows `Last State: Terminated`, `Reason: Error` and an exit code.
- Workers appear in `ray status` for some seconds, or never.

## Why
Kubernetes only records that the first process of the container ended, and waits longer before each new attempt. The
exit code is that of `ray start`, or of the command in the pod's template:
- 0: the command ended by itself. In a pod without KubeRay, `ray start` lacks `--block`.
- 1: `ray start` or the program failed: no connection to the head, another version of Ray, a Python exception, or a
  daemon of the node that ended.
- 2: a wrong option. 126, 127: the command cannot be run, or is not in the image. 128 + N: signal N ended it.

`CreateContainerConfigError` means that a Secret or ConfigMap is missing. `StartError` and `RunContainerError` mean that
the command, a mount or a device does not exist.

## Confirm
- `kubectl logs POD -c CONTAINER --previous` ends with the error of the last attempt.
- `kubectl describe pod POD` shows the exit code, and the events of the kubelet.

## Fix
Correct what the last output names: the address of the head, the version of Ray in the image, the command, the missing
object.

## Not this when
- the container exceeded its memory limit (`pod-oom-killed`), its probe failed (`pod-unhealthy`), or its image cannot be
  pulled (`image-pull-failed`).
- the pod was evicted or preempted (`pod-evicted`, `pod-preempted`), or the head ended and runs again
  (`head-restarted`).
- a container that is meant to end has completed (the submitter of a RayJob), or a container ran for a long time before
  it was restarted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, rule
from raydoctor.cluster import hosts
from raydoctor.cluster.pods import SIGNALS, Pods
from raydoctor.cluster.troubles import troubles
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.text import clause, cut, plural
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared.hosts import kubernetes
from raydoctor.rules.shared.jobs import signal_of

_LONGEST = 160
_LOOPS = frozenset({"CrashLoopBackOff", "Error", "ContainerCannotRun"})
_OFTEN = 3
"""Ends of a container that runs at the moment."""
_RESET = 600.0
"""Seconds after which the kubelet no longer regards the next end of a container as part of a loop."""
_NOT_STARTED = {
    "RunContainerError": "cannot be started",
    "StartError": "cannot be started",
    "CreateContainerError": "cannot be created",
    "CreateContainerConfigError": "needs a Secret or ConfigMap that is missing or not valid",
    "PostStartHookError": "failed in its postStart hook",
}
"""Reasons of the kubelet, and what they mean."""
_MEANINGS = {
    "0": "its command ended by itself",
    "1": "ray start or the program in it failed",
    "2": "often a wrong option",
    "126": "its command cannot be run",
    "127": "its command is not in the image",
}


@rule(
    tier="symptom",
    severity="error",
    rank=91,
    explains=("host",),
    caused_by=("gcs", "host"),
    fallback=True,
    looks_for=SIGNALS,
)
def pod_crash_looping(case: Case) -> Iterator[Finding]:
    """One finding per group of pods that end in the same way."""
    pods = Pods(case)
    found = [
        each.event
        for each in troubles(case)
        if each.event.kind == "kube.container"
        and each.event["container"] != kubernetes.SUBMITTER
        and not case.is_explained(*each.entities)
        and (each.event["reason"] in _NOT_STARTED or _repeats(each.event))
    ]
    for group in evidence.grouped(
        found, lambda e: (*kubernetes.key(e), e["container"], _how(case, e))
    ).values():
        yield _finding(case, pods, group)


def _restarts(container: Event) -> int:
    return int(container["restarts"]) if container["restarts"].isdecimal() else 0


def _repeats(container: Event) -> bool:
    """Whether a container waits before its next start, failed and stays down, or ended more often than by chance."""
    if container["reason"] not in _LOOPS:
        return False
    if container["reason"] == "CrashLoopBackOff" or not container["pod"]:
        return True
    if container["is_last"] != "true":
        return bool(container["exit_code"] or _restarts(container))
    is_short = not container["lasted"] or float(container["lasted"]) < _RESET
    return is_short and _restarts(container) >= _OFTEN


def _code(case: Case, container: Event) -> str:
    """The exit code of the container, or of its last end."""
    ends = [
        e
        for e in case.of("kube.container")
        if (e["namespace"], e["pod"], e["container"]) == (container["namespace"], container["pod"], container["container"])
        and e["exit_code"]
    ]  # fmt: skip
    return container["exit_code"] or (ends[-1]["exit_code"] if ends else "")


def _is_of_ray(container: Event) -> bool:
    """Whether the container starts Ray: sidecars, init containers and KubeRay's operator do not."""
    return container["is_of_ray"] != "false" and not container["pod"].startswith("kuberay-operator")


def _how(case: Case, container: Event) -> str:
    """`its container ray-worker ends again and again with exit code 1 (…)`."""
    kind = "init container" if container["is_init"] else "container"
    which = f"its {kind} {container['container']}".rstrip()
    if why := _NOT_STARTED.get(container["reason"], ""):
        return f"{which} {why}"
    is_loop = container["reason"] == "CrashLoopBackOff" or _restarts(container) > 1
    ended = "ended" if not is_loop or container["is_last"] == "true" else "ends"
    ends = f"{which} {ended}{' again and again' if is_loop else ''}"
    code = _code(case, container)
    if not code:
        return ends
    meaning = signal_of(int(code)) if code.isdecimal() else ""
    if not meaning and _is_of_ray(container):
        meaning = _MEANINGS.get(code, "")
    return f"{ends} with exit code {code}" + (f" ({meaning})" if meaning else "")


def _finding(case: Case, pods: Pods, group: list[Event]) -> Finding:
    last = max(group, key=_restarts)
    times = f", {plural(_restarts(last), 'restart')} so far" if _restarts(last) else ""
    said = (
        f": {cut(clause(last['message']), _LONGEST)}"
        if last["message"] and last["reason"] in _NOT_STARTED
        else ""
    )
    runs_now = all(e["is_last"] == "true" for e in group)
    names = kubernetes.capital(kubernetes.named(group))
    state = "restarted" if runs_now else "not ready"
    many = len({e["pod"] for e in group}) > 1
    be = ("were" if many else "was") if runs_now else ("are" if many else "is")
    entities = dict.fromkeys(x for pod in group for x in pods.entities(pod))
    needs_head = (
        _code(case, last) == "1" and _is_of_ray(last) and hosts.entity("head") not in entities
    )
    return Finding(
        f"{names} {be} {state}: {_how(case, last)}{times}{said}",
        tuple(Link(e, "the container as Kubernetes shows it") for e in group[:2]),
        explains=tuple(entities),
        # `ray start` of a worker ends with this code if no head answers.
        caused_by=(hosts.entity("head"), Entity("gcs", "gcs")) if needs_head else (),
        subjects=kubernetes.subjects(group) if last["pod"] else (),
        count=len(group),
        severity="warning" if runs_now or (last["is_of_ray"] == "false" and not last["is_init"]) else "error",
        remedies=tuple(_remedies(case, last)),
        covers=tuple(group),
    )  # fmt: skip


def _remedies(case: Case, pod: Event) -> Iterator[Remedy]:
    where = {"pod": pod["pod"], "namespace": kubernetes.namespace(pod)}
    container = (pod["container"],) if pod["container"] else ()
    yield Remedy(
        "Read the end of the container's last output, and correct what it names",
        (
            paste.shell("kubectl logs {pod} -n {namespace} -c {container:id} --previous --tail=50", container=container[0], **where)
            if container
            else paste.shell("kubectl logs {pod} -n {namespace} --all-containers --previous --tail=50", **where),
            paste.shell("kubectl describe pod {pod} -n {namespace}   # exit code, events", **where),
        ),
        finds_cause=True,
    )  # fmt: skip
    if _code(case, pod) == "0":
        yield Remedy(
            "Let ray start stay in the foreground",
            ("ray start --address=HEAD:6379 --block   # the command of the container",),
            risk="disruptive",
            doc=kubernetes.CONFIG_DOC,
        )


# ------------------------------------------------------------------ examples

_TABLE = "NAME                       READY   STATUS             RESTARTS        AGE\n"
_WAITS = {
    "waiting": {
        "reason": "CrashLoopBackOff",
        "message": "back-off 5m0s restarting failed container",
    }
}
_READY = ({"type": "Ready", "status": "True"},)


def _with_sidecar() -> dict[str, Any]:
    pod = kubernetes.pod("train-worker-x1")
    pod["spec"]["containers"].append({"name": "log-shipper"})
    last = kubernetes.terminated("Error", 1)
    sidecar = {"name": "log-shipper", "restartCount": 9, "state": _WAITS, "lastState": last}
    pod["status"]["containerStatuses"].append(sidecar)
    return pod


def _submitter() -> dict[str, Any]:
    pod = kubernetes.pod("train-job-x7k2p", phase="Failed")
    own = {
        "name": kubernetes.SUBMITTER,
        "restartCount": 0,
        "state": kubernetes.terminated("Error", 1),
    }
    pod["metadata"]["labels"] = {"job-name": "train-job"}
    pod["spec"]["containers"] = [{"name": kubernetes.SUBMITTER}]
    pod["status"]["containerStatuses"] = [own]
    return pod


EXAMPLES: tuple[Example, ...] = (
    Example(
        "a worker ends again and again, and the capture holds only kubectl's table",
        {"pods.txt": f"{_TABLE}train-gpu-worker-7qsqp     1/1     Running            0               3h35m\n"
        "train-gpu-worker-m6j48     0/1     CrashLoopBackOff   51 (16s ago)    3h35m\n"},
        says=("Pod train-gpu-worker-m6j48 is not ready", "51 restarts", "--previous"),
    ),
    Example(
        "ray start is not in the foreground",
        {
            "all.json": kubernetes.listed(
                kubernetes.pod("train-worker-x1", state=_WAITS, last=kubernetes.terminated("Completed", 0), restarts=6)
            )
        },
        says=("exit code 0 (its command ended by itself)", "--block"),
    ),
    Example(
        "only the state of the container was pasted",
        {"describe.txt": "    Last State:     Terminated\n      Reason:       Error\n      Exit Code:    1\n    Ready:          True\n"},
        says=("A pod was restarted: its container ended with exit code 1",),
        severity="warning",
    ),
    Example(
        "a container that ended as it should",
        {"describe.txt": "    State:          Terminated\n      Reason:       Completed\n      Exit Code:    0\n    Ready:          False\n"},
    ),
    Example(
        "a Secret is missing",
        {
            "all.json": kubernetes.listed(
                kubernetes.pod(
                    "train-worker-x1", phase="Pending",
                    state={"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "hub-token" not found'}},
                )
            )
        },
        says=("its container ray-worker needs a Secret or ConfigMap that is missing", 'secret "hub-token" not found'),
    ),
    Example(
        "the container exceeds its memory limit",
        {
            "all.json": kubernetes.listed(
                kubernetes.pod("train-worker-x1", state=_WAITS, last=kubernetes.terminated("OOMKilled", 137), restarts=6)
            )
        },
        roots=("pod-oom-killed",),
    ),
    Example(
        "a pod that was restarted once and runs, and another program's pod",
        {"pods.txt": f"{_TABLE}train-gpu-worker-7qsqp     1/1     Running            1 (2h ago)      3h35m\n"
        "train-head-b7wzp           1/1     Running            0               3h35m\n"
        "postgres-0                 0/1     CrashLoopBackOff   51 (16s ago)    3h35m\n"
        "celery-worker-5c9d8        0/1     CrashLoopBackOff   51 (16s ago)    3h35m\n"},
    ),
    Example(
        "a container that was restarted once a week, and its pod is ready",
        {
            "all.json": kubernetes.listed(
                kubernetes.pod(
                    "train-worker-x1", restarts=5, conditions=_READY,
                    last={"terminated": {"reason": "Error", "exitCode": 1, "startedAt": "2026-11-15T18:40:02Z", "finishedAt": "2026-11-22T18:39:55Z"}},
                )
            )
        },
    ),
    Example(
        "a container that ran for a minute before each restart",
        {
            "all.json": kubernetes.listed(
                kubernetes.pod(
                    "train-worker-x1", restarts=5, conditions=_READY,
                    last={"terminated": {"reason": "Error", "exitCode": 1, "startedAt": "2026-11-22T18:38:55Z", "finishedAt": "2026-11-22T18:39:55Z"}},
                )
            )
        },
        says=("was restarted: its container ray-worker ended again and again with exit code 1", "5 restarts"),
        severity="warning",
    ),
    Example(
        "the head exceeds its memory limit, and the workers do not reach it",
        {
            "all.json": kubernetes.listed(
                kubernetes.pod("train-head", kind="head", state=_WAITS, last=kubernetes.terminated("OOMKilled", 137), restarts=3),
                kubernetes.pod("train-worker-x1", ip="10.244.1.8", state=_WAITS, last=kubernetes.terminated("Error", 1), restarts=4),
            )
        },
        roots=("pod-oom-killed",),
        consequences=("pod-crash-looping",),
    ),
    Example(
        "a sidecar of a pod in which Ray runs",
        {"all.json": kubernetes.listed(_with_sidecar())},
        says=("Pod train-worker-x1 is not ready: its container log-shipper ends again and again with exit code 1, 9 restarts so far",),
        severity="warning",
    ),
    Example(
        "the pod that submitted a RayJob, whose program failed",
        {"all.json": kubernetes.listed(_submitter())},
    ),
    Example(
        "a machine had too little memory left, and the image of another pod cannot be pulled",
        {
            "pods.txt": f"{_TABLE}train-head-b7wzp           1/1     Running            0               3h35m\n"
            "train-gpu-worker-7qsqp     0/1     Evicted            0               3h35m\n"
            "train-gpu-worker-m6j48     0/1     ImagePullBackOff   0               3h35m\n"
            "train-gpu-worker-9xk2f     0/1     OOMKilled          4 (2m ago)      3h35m\n"
        },
        roots=("pod-oom-killed", "pod-evicted", "image-pull-failed"),
    ),
    Example(
        "rows of `kubectl get pods` without the head of their table",
        {
            "pods.txt": "train-head-x1   0/1     CrashLoopBackOff   6 (41s ago)   18m\n"
            "train-gpu-x2    1/1     Running            0             18m\n"
        },
        says=("train-head-x1 (the head) is not ready", "6 restarts"),
    ),
    Example(
        "rows of `kubectl get pods` without a failure",
        {"pods.txt": "train-gpu-x2    1/1     Running            0             18m\n"},
    ),
)  # fmt: skip

"""A container of Ray ends again and again, or cannot be started, and Kubernetes waits longer before each new attempt.

## What you see
- `kubectl get pods` shows `CrashLoopBackOff`, `Error`, `RunContainerError`, `CreateContainerError` or `StartError`, and
  a growing number of restarts.
- `kubectl describe pod POD` shows `Last State: Terminated`, `Reason: Error` and an exit code.
- Workers appear in `ray status` for some seconds, or never.

## Why
Kubernetes only sees that the first process of the container ended. The exit code is that of `ray start`, or of the
command in the pod's template:
- 0: the command ended by itself. In a pod without KubeRay, `ray start` lacks `--block`.
- 1: `ray start` or the program failed: no connection to the head, another version of Ray, a Python exception, or a daemon
  of the node that ended.
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
The container exceeded its memory limit (`pod-oom-killed`), its probe failed (`pod-unhealthy`), the image cannot be pulled
(`image-pull-failed`), or the head ended and runs again (`head-restarted`).
"""

from __future__ import annotations

from collections.abc import Iterator

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
_NOT_STARTED = {
    "RunContainerError": "its container cannot be started",
    "StartError": "its container cannot be started",
    "CreateContainerError": "its container cannot be created",
    "CreateContainerConfigError": "a Secret or ConfigMap of its container is missing or not valid",
    "PostStartHookError": "its postStart hook failed",
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
        and not case.is_explained(*each.entities)
        and (each.event["reason"] in _NOT_STARTED or _repeats(each.event))
    ]
    for group in evidence.grouped(
        found, lambda e: (*kubernetes.key(e), e["container"], _how(case, e))
    ).values():
        yield _finding(case, pods, group)


def _repeats(container: Event) -> bool:
    """Whether a container ended more often than by chance, or waits before its next start."""
    if container["reason"] not in _LOOPS:
        return False
    restarts = int(container["restarts"]) if container["restarts"].isdecimal() else 0
    is_over = container["is_last"] != "true" and bool(container["exit_code"] or restarts)
    is_alone = not container["pod"]
    return container["reason"] == "CrashLoopBackOff" or is_over or is_alone or restarts >= _OFTEN


def _code(case: Case, container: Event) -> str:
    """The exit code of the container, or of its last end."""
    ends = [
        e
        for e in case.of("kube.container")
        if (e["namespace"], e["pod"], e["container"]) == (container["namespace"], container["pod"], container["container"])
        and e["exit_code"]
    ]  # fmt: skip
    return container["exit_code"] or (ends[-1]["exit_code"] if ends else "")


def _how(case: Case, container: Event) -> str:
    if why := _NOT_STARTED.get(container["reason"], ""):
        return why
    code = _code(case, container)
    is_loop = (
        container["restarts"] not in ("", "0", "1") or container["reason"] == "CrashLoopBackOff"
    )
    ends = "ends again and again" if is_loop else "ended"
    if not code:
        return f"its container {ends}"
    name = signal_of(int(code)) if code.isdecimal() else ""
    meaning = name or _MEANINGS.get(code, "")
    return f"its container {ends} with exit code {code}" + (f" ({meaning})" if meaning else "")


def _finding(case: Case, pods: Pods, group: list[Event]) -> Finding:
    last = max(group, key=lambda e: int(e["restarts"]) if e["restarts"].isdecimal() else 0)
    restarts = int(last["restarts"]) if last["restarts"].isdecimal() else 0
    times = f", after {plural(restarts, 'restart')}" if restarts else ""
    init = " (an init container)" if last["is_init"] else ""
    said = (
        f": {cut(clause(last['message']), _LONGEST)}"
        if last["message"] and last["reason"] in _NOT_STARTED
        else ""
    )
    runs_now = all(e["is_last"] == "true" for e in group)
    subject = kubernetes.capital(kubernetes.named(group))
    return Finding(
        f"{subject} {'was restarted' if runs_now else 'does not run'}: {_how(case, last)}{init}{times}{said}",
        tuple(Link(e, "the container as Kubernetes shows it") for e in group[:2]),
        explains=tuple(dict.fromkeys(x for pod in group for x in pods.entities(pod))),
        caused_by=(hosts.entity("head"), Entity("gcs", "gcs")) if last["is_init"] else (),
        subjects=kubernetes.subjects(group) if last["pod"] else (),
        count=len(group),
        severity="warning" if runs_now else "error",
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

EXAMPLES: tuple[Example, ...] = (
    Example(
        "a worker ends again and again, and only the table is left",
        {"pods.txt": f"{_TABLE}train-gpu-worker-7qsqp     1/1     Running            0               3h35m\n"
        "train-gpu-worker-m6j48     0/1     CrashLoopBackOff   51 (16s ago)    3h35m\n"},
        says=("Pod train-gpu-worker-m6j48 does not run", "51 restarts", "--previous"),
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
        says=("a Secret or ConfigMap", 'secret "hub-token" not found'),
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
        "postgres-0                 0/1     CrashLoopBackOff   51 (16s ago)    3h35m\n"},
    ),
)  # fmt: skip

"""A Ray pod fails its probes, and no other rule explains why.

## What you see
- `kubectl get pods` shows `0/1 Running`, or a growing number of restarts.
- `kubectl describe pod` shows `Unhealthy … Readiness probe failed` or `Liveness probe failed` many times, then `Killing
  … failed liveness probe, will be restarted`.
- The service of the head has no endpoints: clients, `ray job submit` and KubeRay's operator do not reach it.

## Why
KubeRay's probes query the raylet at port 52365 (`/api/local_raylet_healthz`) and, on the head, the GCS at port 8265
(`/api/gcs_healthz`). They fail if the agent or the dashboard does not run, if an image lacks `wget`, if the pod has too
little CPU to answer in time, or if a large cluster keeps the head busy. For a worker of a RayService, they also query
port 8000 (`/-/healthz`). Such a worker is not ready while no proxy of Serve runs on it, which is normal without a
replica.

## Confirm
- `kubectl describe pod POD` shows the probe's command, its timeout and its last message.
- `kubectl exec POD -c ray-head -- wget -q -O- http://localhost:52365/api/local_raylet_healthz` prints `success` if the
  raylet is healthy.
- `kubectl top pod POD --containers` shows whether the CPU limit is reached. `dashboard_agent.log` and `dashboard.log`
  in the pod show whether these daemons run.

## Fix
Fix the process that does not answer. Give the pod more CPU, or its probes more time (`timeoutSeconds`,
`failureThreshold`).

## Not this when
- the container was killed for memory (`pod-oom-killed`), the head's container ended (`head-restarted`), or a daemon
  of Ray died.
- the pod has just started: probes may fail for two minutes.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, rule
from raydoctor.cluster import hosts
from raydoctor.cluster.pods import SIGNALS, Pods, is_head
from raydoctor.cluster.troubles import troubles
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import clause, cut
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared.hosts import kubernetes

_FAILED = ("Unhealthy", "ProbeError")
_LONGEST = 120
_FEW = 5
"""Failures of a probe that a pod may have while it is busy."""
_PROBE = pattern(r"(?P<kind>[Rr]eadiness|[Ll]iveness|[Ss]tartup) probe")
_SAID = pattern(r"probe (?:failed|errored)[^:]{0,60}: ?(?P<said>.*)")


@rule(
    tier="symptom",
    severity="error",
    rank=90,
    explains=("host",),
    caused_by=("gcs", "host"),
    fallback=True,
    looks_for=SIGNALS,
)
def pod_unhealthy(case: Case) -> Iterator[Finding]:
    """One finding per pod."""
    pods = Pods(case)
    failing = [
        pods.pod_of(each.event)
        for each in troubles(case)
        if each.event.kind == "kube.event"
        and (each.event["reason"] in _FAILED or _is_kill(each.event))
        and not case.is_explained(*each.entities)
    ]
    for (namespace, name), events in evidence.grouped(
        failing, lambda e: (e["namespace"], e["name"])
    ).items():
        records = [
            event
            for event in case.of("kube.event")
            if (event["namespace"], event["name"]) == (namespace, name)
            and (event["reason"] in _FAILED or _is_kill(event))
        ]
        if any(_is_kill(event) for event in records) or _total(records) >= _FEW:
            yield _finding(pods, events[-1], records)


def _is_kill(event: Event) -> bool:
    return event["reason"] == "Killing" and "probe" in event["message"]


def _total(events: list[Event]) -> int:
    return sum(int(e["count"]) if e["count"].isdecimal() else 1 for e in events)


def _finding(pods: Pods, pod: Event, events: list[Event]) -> Finding:
    failed = [event for event in events if not _is_kill(event)] or events
    kinds = [
        found["kind"].lower() for event in events if (found := _PROBE.search(event["message"]))
    ]
    kind = "liveness" if "liveness" in kinds else kinds[-1] if kinds else "health"
    said = next((text for event in reversed(failed) if (text := _said(event))), "")
    is_serve = said == "success"
    times = _total(failed)
    counted = f" ({times} times)" if times > 1 else ""
    is_killed = any(map(_is_kill, events))
    fails = "failed" if is_killed else "fails"
    killed = ", and Kubernetes restarted its container" if is_killed else ""
    name = f"{pod['namespace']}/{pod['pod']}"
    return Finding(
        f"{kubernetes.capital(kubernetes.named([pod]))} {fails} its {kind} probe{counted}{killed}{_why(said)}",
        (
            *(Link(event, "the probe failed") for event in failed[-1:]),
            *(Link(event, "the kubelet ends the container") for event in events if _is_kill(event)),
        ),
        explains=(hosts.entity(f"probes of {name}"),),
        caused_by=(*pods.entities(pod), hosts.entity("head"), Entity("gcs", "gcs")),
        subjects=kubernetes.subjects([pod]),
        count=times,
        severity="info"
        if is_serve and not is_killed
        else None
        if kind == "liveness"
        else "warning",
        remedies=tuple(_remedies(pod, is_serve)),
        covers=tuple(events),
    )


def _said(event: Event) -> str:
    found = _SAID.search(event["message"])
    return found["said"].strip() if found else ""


def _why(said: str) -> str:
    if said == "success":
        return ": its raylet answers, but no proxy of Serve on this pod does"
    return f": {cut(clause(said), _LONGEST)}" if said else ""


def _remedies(pod: Event, is_serve: bool) -> Iterator[Remedy]:
    where = {"pod": pod["pod"], "namespace": kubernetes.namespace(pod)}
    if is_serve:
        yield Remedy(
            "See whether a replica should run on this worker: without one, it stays not ready",
            (paste.shell("kubectl exec {pod} -n {namespace} -- serve status", **where),),
        )
        return
    container = pod["container"] or ("ray-head" if is_head(pod) else "ray-worker")
    yield Remedy(
        "Ask the raylet as the probe does, and read why it does not answer",
        (
            paste.shell(
                "kubectl exec {pod} -n {namespace} -c {container:id} -- wget -q -O- http://localhost:52365/api/local_raylet_healthz",
                container=container,
                **where,
            ),
            paste.shell("kubectl logs {pod} -n {namespace} -c {container:id} --tail=50", container=container, **where),
        ),
    )  # fmt: skip
    yield Remedy(
        "Give the pod more CPU, or its probe more time",
        (
            paste.python(
                "livenessProbe: {{exec: {{command: [bash, -c, 'wget -T 10 -q -O- http://localhost:52365/api/local_raylet_healthz']}}, timeoutSeconds: 10, failureThreshold: 30}}   # {place}",
                place=kubernetes.place(pod),
            ),
        ),
        risk="disruptive",
        doc=kubernetes.CONFIG_DOC,
    )


# ------------------------------------------------------------------ examples

_FAILS = "Readiness probe failed: command timed out"

EXAMPLES: tuple[Example, ...] = (
    Example(
        "the head fails its probes",
        {
            "describe.txt": "$ kubectl describe -n ml train-head-x1\n...\nEvents:\n"
            "  Type     Reason     Age                    From     Message\n"
            "  ----     ------     ----                   ----     -------\n"
            "  Warning  Unhealthy  27m (x476 over 72m)    kubelet  Readiness probe failed:\n"
            "  Warning  Unhealthy  2m54s (x749 over 72m)  kubelet  Liveness probe failed:\n"
        },
        says=("Pod train-head-x1 (the head) fails its liveness probe (1225 times)",),
    ),
    Example(
        "a worker is restarted by its liveness probe",
        {
            "events.json": kubernetes.listed(
                kubernetes.event("Unhealthy", "Liveness probe failed: command timed out", "train-gpu-worker-x1", count=9),
                kubernetes.event("Killing", "Container ray-worker failed liveness probe, will be restarted", "train-gpu-worker-x1", type="Normal"),
            )
        },
        says=("failed its liveness probe (9 times), and Kubernetes restarted its container: command timed out", "-c ray-worker"),
    ),
    Example(
        "a worker that is not ready",
        {"events.json": kubernetes.listed(kubernetes.event("Unhealthy", _FAILS, "train-gpu-worker-x1", count=40))},
        says=("fails its readiness probe (40 times): command timed out",),
        severity="warning",
    ),
    Example(
        "a worker of a RayService without a replica",
        {"events.json": kubernetes.listed(kubernetes.event("Unhealthy", "Readiness probe failed: success", "train-gpu-worker-x1", count=40))},
        says=("no proxy of Serve on this pod",),
        severity="info",
    ),
    Example(
        "the head's container ended after its probe failed",
        {
            "all.json": kubernetes.listed(
                kubernetes.pod("train-head", kind="head", last=kubernetes.terminated("Error", 137), restarts=2),
                kubernetes.event("Unhealthy", "Liveness probe failed: command timed out", "train-head", count=9),
            )
        },
        roots=("head-restarted",),
    ),
    Example(
        "a pod that is ready now",
        {
            "all.json": kubernetes.listed(
                kubernetes.pod("train-gpu-x1", conditions=({"type": "Ready", "status": "True"},)),
                kubernetes.event("Unhealthy", _FAILS, "train-gpu-x1", count=40),
            )
        },
    ),
    Example(
        "a probe failed twice",
        {"events.json": kubernetes.listed(kubernetes.event("Unhealthy", _FAILS, "train-gpu-worker-x1", count=2))},
    ),
    Example(
        "another program's pod",
        {"events.json": kubernetes.listed(kubernetes.event("Unhealthy", _FAILS, "postgres-0", count=40))},
    ),
)  # fmt: skip

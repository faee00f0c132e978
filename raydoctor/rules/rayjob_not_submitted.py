"""KubeRay ended a RayJob before its entrypoint ran, or while it ran, for a reason outside the entrypoint.

## What you see
- `kubectl get rayjob` shows `Failed` or `ValidationFailed` as the deployment status. The job status is empty if the
  entrypoint never ran, and `RUNNING` or `FAILED` if it did.
- The conditions or events of the Kubernetes Job that submits it show `BackoffLimitExceeded`.
- `status.reason` is `SubmissionFailed`, `ValidationFailed`, `PreRunningDeadlineExceeded`, `DeadlineExceeded`,
  `JobStatusCheckTimeoutExceeded` or `JobDeploymentStatusTransitionGracePeriodExceeded`.

## Why
KubeRay makes a cluster, waits for it, and submits the entrypoint by a Kubernetes Job (`K8sJobMode`), by HTTP, or from a
sidecar. Each step can fail:
- Before the entrypoint runs: the manifest is not valid (`ValidationFailed`), the cluster does not become ready in time
  (`PreRunningDeadlineExceeded`), the submitter's pod cannot start or cannot reach the dashboard (`SubmissionFailed`).
- While it runs: `activeDeadlineSeconds` counts from the start of the RayJob and includes machines, images and the run
  itself (`DeadlineExceeded`). The operator could not read the job's status from the dashboard for five minutes
  (`JobStatusCheckTimeoutExceeded`). The submitter ended before the entrypoint (`SubmissionFailed` with a job status).

## Confirm
- `kubectl get rayjob NAME -n NAMESPACE -o jsonpath='{.status.jobStatus} {.status.reason}: {.status.message}'` prints
  whether the entrypoint ran, and the reason.
- `kubectl describe rayjob NAME -n NAMESPACE` shows the events.
- The submitter's output: `kubectl logs -n NAMESPACE -l job-name=NAME` (`K8sJobMode`), or `kubectl logs -n NAMESPACE
  HEAD_POD -c ray-job-submitter` (`SidecarMode`). With HTTP the operator submits, and its log has the error.

## Fix
- `DeadlineExceeded`: raise `spec.activeDeadlineSeconds` above waiting and running time together.
- `PreRunningDeadlineExceeded`: raise `spec.preRunningDeadlineSeconds` if machines or images are slow.
- `JobStatusCheckTimeoutExceeded`: find out why the operator cannot reach port 8265 of the head: the head or its
  dashboard ended, or a network policy forbids it.
- `SubmissionFailed`: read the submitter's output. If no head pod was found, `kubectl describe raycluster -n NAMESPACE`
  shows why it was not created.
- `ValidationFailed`: correct the field that `status.message` names.

## Not this when
- the entrypoint ran and failed: the reason is then `AppFailed` (`job-failed`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case
from raydoctor.case.rule import Example, Signal, console, rule
from raydoctor.case.signals import DRIVER
from raydoctor.cluster import autoscaler, hosts
from raydoctor.cluster.pods import SIGNALS, Pods
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.text import clause
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared.hosts import kubernetes

_DOC = "https://docs.ray.io/en/latest/cluster/kubernetes/getting-started/rayjob-quick-start.html"
_WHYS = {
    "SubmissionFailed": "its entrypoint could not be submitted",
    "ValidationFailed": "its manifest is not valid",
    "PreRunningDeadlineExceeded": "it did not start running in time",
    "DeadlineExceeded": "it exceeded its activeDeadlineSeconds",
    "JobStatusCheckTimeoutExceeded": "its status could not be read from the cluster any more",
    "JobDeploymentStatusTransitionGracePeriodExceeded": "its submitter ended without a result from Ray",
}
"""Values of `status.reason` (KubeRay 1.2 to 1.5) other than `AppFailed`."""
_SUBMITTER = Signal(
    "kube.submitter_failed", "Job submission has failed. Reason: ",
    r"Job submission has failed\. Reason: (?P<reason>\w{1,60})\b", DRIVER,
    "  message: 'Job submission has failed. Reason: BackoffLimitExceeded. Message: Job has reached the specified backoff limit'",
    symptom=True, fold=("reason",),
)  # fmt: skip
"""KubeRay's message, in a part of a RayJob's status that does not show its kind (`rayjob_controller.go`, 1.1 to 1.5)."""
_BACKOFF = Signal(
    "kube.backoff_reached", "BackoffLimitExceeded",
    r"^(?:[ -]{0,40}[Rr]eason: {1,40}\"?|(?:.{0,200} )?Warning {1,20})BackoffLimitExceeded\b", DRIVER,
    "      reason: BackoffLimitExceeded", symptom=True,
)  # fmt: skip
"""A condition or an event of a Kubernetes Job whose pods failed more often than its `backoffLimit` allows."""
_NEVER_RAN = frozenset({"SubmissionFailed", "ValidationFailed", "PreRunningDeadlineExceeded"})
_RAN = frozenset({"RUNNING", "STOPPED", "SUCCEEDED", "FAILED"})
"""Values of `status.jobStatus` of an entrypoint that has started."""


@rule(
    tier="root",
    severity="error",
    rank=6,
    explains=("submission",),
    caused_by=("autoscaler", "host"),
    looks_for=(*SIGNALS, _SUBMITTER, _BACKOFF),
)
def rayjob_not_submitted(case: Case) -> Iterator[Finding]:
    """One finding per RayJob."""
    pods = Pods(case)
    for job in case.of("kube.job"):
        has_failed = job["deployment_status"] in ("Failed", "ValidationFailed", "Retrying")
        is_ours = pods.is_of_ours(job["cluster"] or job["name"], job["namespace"])
        if has_failed and is_ours and _why(job):
            yield _finding(case, job)
    if not case.of("kube.job"):
        yield from _of_submitter(case)


def _of_submitter(case: Case) -> Iterator[Finding]:
    """The submitter's Job in a part of a status or in an event: why its pods failed is in their log."""
    said = case.of(_SUBMITTER.kind)
    failed = case.of(_BACKOFF.kind)
    if not said and not failed:
        return
    what = (
        "KubeRay ended a RayJob: the Kubernetes Job that submits it failed"
        if said
        else "A Kubernetes Job, such as the one that submits a RayJob, failed"
    )
    last = (*failed, *said)[-1]
    limit = (
        " as often as its backoffLimit allows"
        if failed or last["reason"] == "BackoffLimitExceeded"
        else f" ({last['reason']})"
    )
    yield Finding(
        f"{what}{limit}; the log of its pods shows why",
        (Link(last, "KubeRay's status of the job" if said else "Kubernetes starts no further pod of the Job"),),
        explains=(Entity("submission", ""),),
        caused_by=(*autoscaler.launches(case), hosts.entity("head")),
        count=1,
        severity=None if said else "warning",
        remedies=(
            Remedy(
                "Read what the submitter's pods printed before they failed",
                (
                    "kubectl get jobs -n NAMESPACE",
                    "kubectl logs -n NAMESPACE -l job-name=JOB --tail=50   # for a RayJob, JOB is its name",
                    "kubectl describe pods -n NAMESPACE -l job-name=JOB   # image pulls, limits, exit codes",
                ),
                finds_cause=True,
                doc=_DOC,
            ),
        ),
        covers=(*said, *failed, *(e for e in case.of("log.failure", "log.error") if e.line == last.line and e.source is last.source)),
    )  # fmt: skip


def _why(job: Event) -> str:
    if job["deployment_status"] == "ValidationFailed":
        return _WHYS["ValidationFailed"]
    if job["reason"] == "SubmissionFailed" and job["job_status"] in _RAN:
        return "its submitter ended before the entrypoint"
    return _WHYS.get(job["reason"], "")


def _finding(case: Case, job: Event) -> Finding:
    said = f" ({clause(job['message'])})" if job["message"] else ""
    is_new = job["reason"] in _NEVER_RAN and job["job_status"] not in _RAN
    never = "never ran" if is_new else "was ended by KubeRay"
    records = [
        e for e in case.of("kube.event") if e["about"] == "RayJob" and e["name"] == job["name"]
    ]
    return Finding(
        f"RayJob {job['name']} {never}: {_why(job)}{said}",
        (Link(job, "KubeRay's status of the job"),),
        explains=(Entity("submission", job["submission"] or job["name"]),),
        caused_by=(*autoscaler.launches(case), hosts.entity("head")),
        remedies=tuple(_remedies(job)),
        covers=(job, *records),
    )


def _remedies(job: Event) -> Iterator[Remedy]:
    where = {"name": job["name"], "namespace": kubernetes.namespace(job)}
    setting = {"DeadlineExceeded": "activeDeadlineSeconds", "PreRunningDeadlineExceeded": "preRunningDeadlineSeconds"}.get(job["reason"])  # fmt: skip
    if setting:
        now = job["deadline"] if setting.startswith("active") else job["waiting_deadline"]
        seconds = int(now) * 2 if now.isdecimal() else 3600
        yield Remedy(
            f"Allow more{f' than {now} s' if now else ' time'}, if the entrypoint needs longer, or machines or images are slow",
            (
                paste.python(
                    "{setting:name}: {seconds}   # spec of the RayJob",
                    setting=setting,
                    seconds=seconds,
                ),
            ),
            doc=_DOC,
        )
    yield Remedy(
        "Read what KubeRay and the submitter report",
        (
            paste.shell("kubectl describe rayjob {name} -n {namespace}", **where),
            paste.shell("kubectl logs -n {namespace} -l job-name={name:id} --tail=50", **where),
        ),
        doc=_DOC,
    )


# ------------------------------------------------------------------ examples


def _job(
    reason: str, status: str = "Failed", message: str = "", ran: str = "", **spec: object
) -> str:
    return kubernetes.listed(
        {
            "apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "train", "namespace": "ml"}, "spec": spec,
            "status": {"jobDeploymentStatus": status, "jobStatus": ran, "reason": reason, "message": message, "jobId": "train-x1", "endTime": "2026-11-22T18:55:00Z"},
        }
    )  # fmt: skip


EXAMPLES: tuple[Example, ...] = (
    console(
        "a part of the status of a RayJob",
        "status:\n  failed: 1\n  jobDeploymentStatus: Failed\n  message: 'Job submission has failed. Reason: BackoffLimitExceeded. Message: Job\n"
        "    has reached the specified backoff limit'\n  reason: SubmissionFailed\n",
        says=("KubeRay ended a RayJob", "as often as its backoffLimit allows", "job-name=JOB"),
    ),
    Example(
        "the submitter failed",
        {"rayjob.json": _job("SubmissionFailed", message="Ray head pod not found.")},
        says=("RayJob train never ran", "could not be submitted", "job-name=train"),
    ),
    Example(
        "the submitter's pod was lost while the entrypoint ran",
        {
            "rayjob.json": _job(
                "SubmissionFailed", message="Job submission has failed.", ran="RUNNING"
            )
        },
        says=("RayJob train was ended by KubeRay", "before the entrypoint"),
    ),
    Example(
        "the time was too short",
        {"rayjob.json": _job("DeadlineExceeded", activeDeadlineSeconds=600)},
        says=("activeDeadlineSeconds: 1200", "600 s"),
    ),
    Example(
        "the manifest is not valid",
        {"rayjob.json": _job("ValidationFailed", "ValidationFailed", "The RayJob spec is invalid")},
        says=("not valid",),
    ),
    Example(
        "the head never got a machine",
        {
            "all.json": kubernetes.listed(
                {
                    **kubernetes.pod("train-head-x1", kind="head", phase="Pending", ip="", conditions=(
                        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available: 2 Insufficient cpu."},)),
                },
            ),
            "rayjob.json": _job("PreRunningDeadlineExceeded", preRunningDeadlineSeconds=300),
        },
        roots=("pod-unschedulable",),
        consequences=("rayjob-not-submitted",),
        says=("preRunningDeadlineSeconds: 600",),
    ),
    console(
        "the status of the submitter's Job",
        "status:\n  conditions:\n    - type: Failed\n      status: 'True'\n      reason: BackoffLimitExceeded\n"
        "      message: Job has reached the specified backoff limit\n  failed: 3\n",
        says=("A Kubernetes Job, such as the one that submits a RayJob",),
        severity="warning",
    ),
    console(
        "a program's own words about the limit",
        "retry 3 of 4 (BackoffLimitExceeded would end the loop)\nepoch 2\n",
    ),
    Example("a RayJob that is done", {"rayjob.json": _job("", "Complete")}),
)  # fmt: skip

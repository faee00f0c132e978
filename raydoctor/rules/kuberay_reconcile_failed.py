"""KubeRay's operator could not do what a RayCluster, RayJob or RayService demands, or it crashed on one.

## What you see
- An error of `controllers.RayCluster` (or `RayJob`, `RayService`) such as `The RayCluster spec is invalid … {"error":
  "…"}` or `Reconciler error … {"error": "…"}`, in the log of the operator, again and again.
- Warnings such as `InvalidRayClusterSpec`, `AutoscalerServiceAccountNotFound` or `FailedToCreateService` in `kubectl
  describe raycluster NAME`.
- `panic: runtime error: …` with frames of `github.com/ray-project/kuberay/ray-operator/…`: the operator's pod restarts.
- No pod of the cluster appears, or the cluster stays as it was.

## Why
The operator repeatedly compares each object with what runs. It stops at the first step that fails: a manifest that
breaks one of its rules, a ServiceAccount, Secret or cluster that the manifest names and that does not exist, or an
existing object of the same name that belongs to another owner. A panic is a bug of the operator, usually triggered by
one manifest. While the operator keeps crashing, it reconciles no Ray resource at all.

## Confirm
- `kubectl logs deploy/kuberay-operator --tail=100` repeats the same error for the same object.
- `kubectl describe raycluster NAME` (or `rayjob`, `rayservice`) lists the operator's warnings.

## Fix
Correct what the error names, and apply the manifest again. After a panic, install a newer operator, or remove from the
manifest the option that the topmost `ray-operator` frame of the panic's stack trace deals with (for example a
scheduler, a gateway or autoscaler options).

## Not this when
- the API server refused the request (`kubernetes-refused`), or a pod was created and does not start
  (`pod-unschedulable`, `image-pull-failed`).
- the error is a conflict (`the object has been modified`) or appears once: the operator tries again.
- the error does not come from the manifest, and `kubectl get raycluster` has shown the cluster as `ready` since then.
- the operator does not reach the dashboard of the cluster (`dashboard-unreachable`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, Signal, console, rule
from raydoctor.case.signals import DRIVER
from raydoctor.cluster import autoscaler
from raydoctor.cluster.pods import SIGNALS, Pods
from raydoctor.cluster.troubles import CONFLICT
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import clause, cut
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared.hosts import kubernetes

_LONGEST = 160
_LONG = 60
_GENERAL = ("Reconciler error", "Error reconcile resources")
"""What the operator logs above any error."""
_DOC = "https://docs.ray.io/en/latest/cluster/kubernetes/troubleshooting/troubleshooting.html"
_UPGRADE_DOC = "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/upgrade-guide.html"

ERROR = Signal(
    "kuberay.error",
    "controller",
    r"\bcontrollers?\.(?P<controller>[Rr]ay[\w-]{1,60})\s+(?P<what>[^\s{][^{\n]{2,600})"
    r"\{(?P<about>[^\n]{0,2000}?)\"error\": \"(?P<error>(?:[^\"\\\n]|\\.){1,1000})\"",
    DRIVER,
    '2026-11-21T07:34:12.127Z\tERROR\tcontrollers.RayCluster\tThe RayCluster spec is invalid\t{"RayCluster": {"name": "train", '
    '"namespace": "ml"}, "error": "headGroupSpec should have at least one container"}',
    symptom=True,
    fold=("controller", "what"),
)
"""KubeRay 0.4 to 1.6 (`ray-operator/controllers/ray`), and the same from its log in JSON."""
PANIC = Signal(
    "kuberay.panic",
    "panic: ",
    r"^(?:[^\n]{0,200}Observed a )?panic: (?P<why>[^\n]{1,400})",
    DRIVER,
    "panic: runtime error: invalid memory address or nil pointer dereference",
)
FRAME = Signal(
    "kuberay.frame",
    "github.com/ray-project/kuberay/ray-operator/",
    r"^\s{0,8}github\.com/ray-project/kuberay/ray-operator/(?P<package>[\w./-]{1,200})\.(?P<function>(?:\(\*?\w{1,80}\)\.)?\w{1,80})(?:\(|$|\s|\.)",
    DRIVER,
    "github.com/ray-project/kuberay/ray-operator/controllers/ray/batchscheduler/volcano.(*VolcanoBatchScheduler).AddMetadataToPod(0x0)",
)
_NAMED = pattern(
    r"\"(?P<kind>Ray(?:Cluster|Job|Service|CronJob))\": \{\"name\": \"(?P<name>[\w.-]{1,253})\"(?:, \"namespace\": \"(?P<namespace>[\w.-]{1,63})\")?"
)
_LASTING = pattern(
    r"\bis invalid\b|\bnot found\. Please\b|(?i:service ?account)\b[^\n]{0,300}\bnot found\b|\bfound multiple\b|\bnot owned by\b"
)
"""Errors that a second attempt does not heal."""
_HEALS = pattern(
    rf"{CONFLICT}|\b(?:context (?:canceled|deadline exceeded)|connection refused|connection reset|i/o timeout|no such host|TLS handshake timeout|EOF)\b"
    r"|\brequeue|\bwill retry\b|\bleader election\b"
)
_EVENTS = pattern(
    r"Invalid(?:RayCluster|RayJob|RayService|RayCronJob)\w{1,30}|AutoscalerServiceAccountNotFound|FailedToCreate\w{1,40}"
)
"""Reasons of the operator's warnings. `pod-unschedulable` and `kubernetes-refused` explain some of the last kind."""
_AGAIN = 3
_STACK = 60
"""Lines from a panic down to the operator's own frame."""


@rule(
    tier="root",
    severity="error",
    rank=90,
    explains=("autoscaler",),
    fallback=True,
    looks_for=(*SIGNALS, ERROR, PANIC, FRAME),
)
def kuberay_reconcile_failed(case: Case) -> Iterator[Finding]:
    """One finding for panics, else one per object and error, unless another rule says why no pod appears."""
    if panics := list(_panics(case)):
        yield _panicked(panics)
        return
    if case.is_explained(*autoscaler.launches(case)):
        return
    ready = {
        e["name"] for e in case.of("kube.cluster") if e["state"] == "ready" and not e["condition"]
    }
    errors = [e for e in case.of(ERROR.kind) if not (e["who"] or _HEALS.search(_said(e)))]
    for events in evidence.grouped(errors, lambda e: (_object(e), _said(e))).values():
        lasting = _LASTING.search(f"{events[-1]['what']} {_said(events[-1])}")
        is_over = _object(events[-1])[1] in ready
        if lasting or (evidence.total(events) >= _AGAIN and not is_over):
            yield _rejected(events, "error" if lasting else "warning")
    seen, pods = {_object(e)[1] for e in errors}, Pods(case)
    warned = [
        e
        for e in case.of("kube.event")
        if e["about"].startswith("Ray") and e["type"] == "Warning" and _EVENTS.fullmatch(e["reason"])
        and e["name"] not in seen and not _HEALS.search(e["message"])
        and pods.is_of_ours(e["name"], e["namespace"])
        and not (e["name"] in ready and e["reason"].startswith("FailedTo"))
    ]  # fmt: skip
    for events in evidence.grouped(warned, lambda e: (e["about"], e["name"], e["reason"])).values():
        yield _warned(events)


def _panics(case: Case) -> Iterator[tuple[Event, Event]]:
    """Each panic with the operator's first own frame below it."""
    for event in case.of(PANIC.kind):
        frames = [
            e for e in case.of(FRAME.kind) if e.source is event.source and 0 < e.line - event.line <= _STACK
        ]  # fmt: skip
        if frames and not event["who"]:
            yield event, min(frames, key=lambda e: e.line)


def _panicked(panics: list[tuple[Event, Event]]) -> Finding:
    event, frame = panics[-1]
    function = frame["function"].replace("(*", "").replace(")", "")
    package = frame["package"].rpartition("/")[2]
    return Finding(
        f"KubeRay's operator panicked in {function} ({package}): {cut(clause(event['why']), _LONGEST)}",
        (Link(event, "the operator panics"), Link(frame, "the operator's function that panicked")),
        explains=(Entity("autoscaler", "launch"),),
        count=len(panics),
        remedies=(
            Remedy(
                "Install a newer operator, or remove from the manifest what this code is about",
                (
                    "kubectl get deploy kuberay-operator -o jsonpath='{..image}'   # add -n NAMESPACE",
                    "helm upgrade kuberay-operator kuberay/kuberay-operator --version VERSION",
                ),
                risk="disruptive",
                doc=_UPGRADE_DOC,
            ),
            Remedy(
                "Search KubeRay's issues for the function, and report it with the manifest if it is new",
                (paste.shell("https://github.com/ray-project/kuberay/issues?q={words:url}", words=f"panic {function}"),),
            ),
        ),
        covers=tuple(e for pair in panics for e in pair),
    )  # fmt: skip


def _object(event: Event) -> tuple[str, str]:
    """(kind, name) of the object that an error is about; empty if it names none."""
    found = _NAMED.search(event.text)
    return (found["kind"], found["name"]) if found else ("", "")


def _said(event: Event) -> str:
    return event["error"].replace('\\"', '"').replace("\\n", " ")


def _rejected(events: list[Event], severity: str) -> Finding:
    last = events[-1]
    kind, name = _object(last)
    what, said = last["what"].rstrip(". \t"), _said(last)
    is_told = what in _GENERAL or said in what or len(what) > _LONG
    text = said if is_told else f"{clause(what)}: {said}"
    return Finding(
        f"KubeRay's operator could not reconcile {f'{kind} {name}' if name else 'an object of Ray'}: {cut(text, _LONGEST)}",
        (Link(last, "the operator's error"),),
        explains=(Entity("autoscaler", "launch"),),
        count=evidence.total(events),
        severity="error" if severity == "error" else "warning",
        remedies=tuple(_remedies(kind, name)),
        covers=tuple(events),
    )  # fmt: skip


def _warned(events: list[Event]) -> Finding:
    last = events[-1]
    return Finding(
        f"KubeRay's operator could not reconcile {last['about']} {last['name']}: {cut(last['message'], _LONGEST)}",
        (Link(last, f"the operator's warning {last['reason']}"),),
        explains=(Entity("autoscaler", "launch"),),
        count=evidence.total(events),
        severity="error" if _LASTING.search(last["message"]) else "warning",
        remedies=tuple(_remedies(last["about"], last["name"])),
        covers=tuple(events),
    )  # fmt: skip


def _remedies(kind: str, name: str) -> Iterator[Remedy]:
    yield Remedy(
        "Correct what the error names, and apply the manifest again",
        (
            paste.shell("kubectl describe {kind:id} {name}   # add -n NAMESPACE", kind=kind.lower() or "raycluster", name=name),
            "kubectl logs deploy/kuberay-operator --tail=100   # add -n NAMESPACE of the operator",
        ),
        doc=_DOC,
    )  # fmt: skip


# ------------------------------------------------------------------ examples

_STACK_TEXT = (
    "[signal SIGSEGV: segmentation violation code=0x1 addr=0x0 pc=0x13cfc48]\n\ngoroutine 442 [running]:\n"
    f"{FRAME.sample}\n\t/src/ray-operator/controllers/ray/batchscheduler/volcano/volcano_scheduler.go:52 +0x48\n"
)
_JSON = (
    '{"level":"error","ts":"2026-11-21T07:34:12.127Z","logger":"controllers.RayCluster","msg":"Reconciler error","controller":'
    '"raycluster-controller","controllerGroup":"ray.io","controllerKind":"RayCluster","RayCluster":{"name":"train","namespace":"ml"},'
    '"error":"%s","stacktrace":"sigs.k8s.io/controller-runtime"}\n'
)
_CONFLICT = ERROR.sample.replace(
    "headGroupSpec should have at least one container", f"cannot update: {CONFLICT}"
)

EXAMPLES: tuple[Example, ...] = (
    console(
        "the manifest breaks a rule of the operator",
        f"{ERROR.sample}\n",
        says=("RayCluster train: The RayCluster spec is invalid: headGroupSpec should have", "kubectl describe raycluster train"),
    ),
    console(
        "a ServiceAccount is missing",
        "2026-11-21T07:34:12.127Z\tERROR\tcontrollers.RayCluster\tServiceAccount train-sa is not found. Please create one.\t"
        '{"ServiceAccount": "ml/train-sa", "error": "ServiceAccount \\"train-sa\\" not found"}\n',
        says=('ServiceAccount "train-sa" not found',),
    ),
    console(
        "the same error again and again, in a log of JSON",
        _JSON % "Secret not ready" * 3,
        says=("RayCluster train: Secret not ready",),
        severity="warning",
    ),
    Example(
        "the same errors, and the cluster became ready",
        {
            "driver.log": _JSON % "Secret not ready" * 3,
            "objects.json": kubernetes.listed(
                {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "train", "namespace": "ml"}, "status": {"state": "ready"}},
                kubernetes.event("FailedToCreateService", "Failed to create service ml/train-head-svc", "train", "RayCluster"),
            ),
        },
    ),
    Example(
        "the operator's warning about a RayService",
        {
            "events.json": kubernetes.listed(
                kubernetes.event("InvalidRayServiceSpec", "The RayService spec is invalid ml/chat: serveConfigV2 should be set", "chat", "RayService")
            )
        },
        says=("RayService chat: The RayService spec is invalid",),
    ),
    console(
        "the operator panics",
        f"{PANIC.sample}\n{_STACK_TEXT}",
        says=("panicked in VolcanoBatchScheduler.AddMetadataToPod (volcano): runtime error", "kuberay/issues"),
        is_typical=True,
    ),
    console(
        "a conflict, and errors that appear once, as in a race with the operator's cache",
        f"{_CONFLICT}\n{_JSON % 'Secret not ready'}{_JSON % 'services train-head-svc already exists'}",
    ),
    console(
        "a program in Go panics, and another quotes the operator's frame",
        f"{PANIC.sample}\n\ngoroutine 1 [running]:\nmain.main()\n\t/app/main.go:4 +0x18\n(check pid=12) {FRAME.sample}\n",
    ),
    console(
        "the API server does not allow it",
        ERROR.sample.replace(
            "headGroupSpec should have at least one container",
            'pods is forbidden: User \\"system:serviceaccount:ml:kuberay-operator\\" cannot create resource \\"pods\\" in API group \\"\\"',
        )
        + "\n",
        roots=("kubernetes-refused",),
    ),
)  # fmt: skip

"""Kubernetes refused a request for a Ray resource: a permission is missing, a policy denies the request, or the manifest is invalid.

## What you see
- `rayclusters.ray.io is forbidden: User "system:serviceaccount:ml:kuberay-operator" cannot list resource "rayclusters"
  …` in the operator's log, again and again.
- `admission webhook "…" denied the request: …` or `ValidatingAdmissionPolicy '…' … denied request: …`.
- `RayCluster.ray.io "train" is invalid: spec.workerGroupSpecs[1].rayStartParams: Required value`.
- `unknown field "spec.serveConfigV2"`, or `no matches for kind "RayCluster" in version "ray.io/v1"`.
- No pod appears, and a RayJob or RayService stays in its initial status.

## Why
The API server checks each request. RBAC decides whether the account has the permission. Admission webhooks and policies
of the cluster (Kueue, Kyverno, Gatekeeper, Pod Security) can require labels or limits. The schema of the kind, its
CustomResourceDefinition (CRD), decides which fields a manifest may have. Helm does not upgrade CRDs: after an upgrade
of KubeRay, they stay at the old version, and new fields and kinds are unknown.

## Confirm
- `kubectl logs -n NAMESPACE deploy/kuberay-operator | raydoctor diagnose --driver-log -` diagnoses the operator's log.
  `raydoctor diagnose --driver-log FILE` reads what `kubectl` or `helm` printed. Ray's own logs contain none of this.
- `kubectl auth can-i list rayclusters.ray.io --all-namespaces --as system:serviceaccount:NAMESPACE:kuberay-operator`
  prints `no` if the permission is missing. Leave out `--all-namespaces` for an operator that watches one namespace.
- `kubectl apply --dry-run=server -f FILE` prints the same error for a manifest. `kubectl get crd rayclusters.ray.io -o
  yaml` shows which fields and versions the installed CRD has.
- `kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations,validatingadmissionpolicies` lists the
  webhooks and policies that can deny a request.

## Fix
- A missing permission: `helm upgrade --install kuberay-operator kuberay/kuberay-operator -n NAMESPACE --reuse-values
  --version VERSION` installs the operator's own role (VERSION: the version of the installed operator, see below). For
  another account: `kubectl create clusterrole ray-access --verb=get,list,watch,create,update,patch,delete
  --resource=rayclusters.ray.io,rayjobs.ray.io,rayservices.ray.io`, and `kubectl create clusterrolebinding ray-access
  --clusterrole=ray-access --serviceaccount=NAMESPACE:NAME`.
- A policy: change the manifest as the message demands, or ask the owner of the policy for an exception.
- An invalid field: correct it, and check the manifest with `kubectl apply --dry-run=server -f FILE`.
- Missing or old CRDs: `kubectl replace -k 'github.com/ray-project/kuberay/ray-operator/config/crd?ref=vVERSION'`
  (`create` instead of `replace` if they are missing). VERSION is the operator's: `kubectl get deploy -n NAMESPACE
  kuberay-operator -o jsonpath='{..image}'` prints it.

## Not this when
- the RayCluster, RayJob or RayService was accepted, and only its pods are refused, by a quota, a limit range or a
  security policy (`pod-unschedulable`).
- the object was created, and its pods do not start (`image-pull-failed`, `pod-oom-killed`).
- KubeRay accepted the RayJob and then rejected its specification (`rayjob-not-submitted`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, Signal, console, rule
from raydoctor.case.signals import DRIVER
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import clause, cut, join_names
from raydoctor.model.values import Event, Finding, Link, Remedy

_RBAC_DOC = "https://kubernetes.io/docs/reference/access-authn-authz/rbac/"
_ADMISSION_DOC = (
    "https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/"
)
_UPGRADE_DOC = "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/upgrade-guide.html"
_LONGEST = 140
_KINDS = r"Ray(?:Cluster|Job|Service|CronJob)"
_RAYS = pattern(r"(?:\b|_)(?:kube)?ray(?:\b|[_-]|clusters?\b|jobs?\b|services?\b|cronjobs?\b)", 2)
"""Whether a request is about Ray: its record names KubeRay, a kind of KubeRay, or an object called `…ray…`."""

_FORBIDDEN = Signal(
    "kube.refused", " is forbidden: User ",
    r" is forbidden: User \\?[\"'](?P<user>[^\"'\\\n]{1,253})\\?[\"'] cannot (?P<verb>\w{1,40}) resource "
    r"\\?[\"'](?P<resource>[\w./-]{1,100})\\?[\"'] in API group \\?[\"'](?P<group>[\w.-]{0,100})",
    DRIVER,
    'E1127 12:42:08.725465       1 reflector.go:147] Failed to watch *v1.RayJob: rayjobs.ray.io is forbidden: User '
    '"system:serviceaccount:ml:kuberay-operator" cannot list resource "rayjobs" in API group "ray.io" at the cluster scope',
    symptom=True, fold=("user", "verb", "resource"),
)  # fmt: skip
_DENIED = (
    Signal(
        "kube.denied", "admission webhook ",
        r"admission webhook \\?\"(?P<by>[\w./-]{1,253})\\?\" denied the request: (?P<why>[^\n]{1,600})", DRIVER,
        'Error from server: error when creating "ray-cluster.yaml": admission webhook "vraycluster.kb.io" denied the request: '
        "spec.headGroupSpec: a limit is missing",
        symptom=True, fold=("by",),
    ),
    Signal(
        "kube.denied", "ValidatingAdmissionPolicy ",
        r"ValidatingAdmissionPolicy '(?P<by>[\w./-]{1,253})' with binding '[\w./-]{1,253}' denied request: (?P<why>[^\n\"]{1,600})", DRIVER,
        "rayclusters.ray.io \"train\" is forbidden: ValidatingAdmissionPolicy 'queue-policy' with binding 'queue-binding' denied request: "
        "The label 'kueue.x-k8s.io/queue-name' is either missing or does not have a value set.",
        symptom=True, fold=("by",),
    ),
    Signal(
        "kube.unanswered", "failed calling webhook ",
        r"failed calling webhook \\?\"(?P<by>[\w./-]{1,253})\\?\": (?P<why>[^\n]{1,600})", DRIVER,
        'Error from server (InternalError): error when creating "ray-cluster.yaml": Internal error occurred: failed calling webhook '
        '"vraycluster.kb.io": failed to call webhook: no endpoints available for service "webhook-service"',
        symptom=True, fold=("by",),
    ),
)  # fmt: skip
_INVALID = (
    Signal(
        "kube.invalid", " is invalid: ",
        r"\b(?P<kind>[A-Z]\w{1,60}(?:\.[\w.-]{1,100})?) \\?\"(?P<name>[\w.-]{1,253}?)\\?\" is invalid: "
        r"\[?(?P<field>(?:spec|metadata|status)\b[\w.\[\]/-]{0,200}): (?P<why>[^\n]{1,600})",
        DRIVER,
        'Error: RayCluster.ray.io "train" is invalid: spec.workerGroupSpecs[1].rayStartParams: Required value',
        symptom=True, fold=("kind", "name"),
    ),
    Signal(
        "kube.invalid", "unknown field ",
        r"(?P<kind>[A-Z]\w{1,60}) in version \\?\"[\w./-]{1,60}\\?\" cannot be handled as a \w{1,60}: strict decoding error: "
        r"(?P<why>unknown field \\?\"(?P<field>[\w.\[\]-]{1,200}))", DRIVER,
        'Error from server (BadRequest): error when creating "ray.yaml": RayService in version "v1alpha1" cannot be handled as a '
        'RayService: strict decoding error: unknown field "spec.serveConfigV2"',
        symptom=True, fold=("kind", "field"),
    ),
    Signal(
        "kube.invalid", "unknown field ",
        r"ValidationError\((?P<kind>[A-Z]\w{1,60})[\w.]{0,200}\): (?P<why>unknown field \\?\"(?P<field>[\w.\[\]-]{1,200}))", DRIVER,
        'error: error validating "ray.yaml": error validating data: ValidationError(RayService.spec): unknown field "serveConfigV2" in '
        "io.ray.v1alpha1.RayService.spec; if you choose to ignore these errors, turn validation off with --validate=false",
        symptom=True, fold=("kind", "field"),
    ),
)  # fmt: skip
_NO_KIND = (
    Signal(
        "kube.no_kind", "no matches for kind ",
        rf"no matches for kind \\?\"(?P<kind>{_KINDS})\\?\" in version \\?\"(?P<version>[\w./-]{{1,60}})", DRIVER,
        'ERROR\tcontroller-runtime.source\tif kind is a CRD, it should be installed before calling Start\t{"kind": "RayJob.ray.io", '
        '"error": "no matches for kind \\"RayJob\\" in version \\"ray.io/v1\\""}',
        symptom=True, fold=("kind",),
    ),
    Signal(
        "kube.no_kind", " have a resource type ",
        r"the server doesn't have a resource type \\?\"(?P<kind>ray(?:cluster|job|service|cronjob)s?)", DRIVER,
        'error: the server doesn\'t have a resource type "raycluster"',
        symptom=True, fold=("kind",),
    ),
    Signal(
        "kube.no_kind", " not found. Please ensure ",
        r"CRD \\?\"(?P<kind>ray(?:cluster|job|service|cronjob)s?)\.ray\.io\\?\" not found\. Please ensure ", DRIVER,
        '"error"="failed to validate CRD \'rayclusters.ray.io\': CRD \\"rayclusters.ray.io\\" not found. Please ensure \\"rayclusters.ray.io\\" is installed."',
        symptom=True, fold=("kind",),
    ),
)  # fmt: skip
_ACCEPTED = Signal(
    "kube.accepted", ".ray.io/",
    r"\bray(?P<kind>cluster|job|service|cronjob)\.ray\.io/[\w.-]{1,253} (?:created|configured|serverside-applied)", DRIVER,
    "raycluster.ray.io/train created",
)  # fmt: skip
_REFUSALS = ("kube.refused", "kube.denied", "kube.unanswered", "kube.invalid", "kube.no_kind")


@rule(
    tier="root",
    severity="error",
    rank=2,
    explains=("autoscaler",),
    looks_for=(_FORBIDDEN, *_DENIED, *_INVALID, *_NO_KIND, _ACCEPTED),
)
def kubernetes_refused(case: Case) -> Iterator[Finding]:
    """One finding per reason, unless Kubernetes accepted an object of Ray later in the same output."""
    accepted = case.of(_ACCEPTED.kind)
    refused = [
        event
        for event in case.of(*_REFUSALS)
        if _RAYS.search(event.text)
        and not any(each.source is event.source and each.offset > event.offset for each in accepted)
    ]
    for events in evidence.grouped(refused, _reason).values():
        yield Finding(
            _headline(events),
            (Link(events[-1], "the API server of Kubernetes refuses the request"),),
            explains=(Entity("autoscaler", "launch"),),
            count=evidence.total(events),
            remedies=tuple(_remedies(events)),
            covers=tuple(events),
        )


def _reason(event: Event) -> tuple[str, ...]:
    keys = {
        "kube.refused": ("user",),
        "kube.denied": ("by",),
        "kube.unanswered": ("by",),
        "kube.invalid": ("kind", "name"),
        "kube.no_kind": (),
    }
    return (event.kind, *(event[key] for key in keys[event.kind]))


def _headline(events: list[Event]) -> str:
    last = events[-1]
    if last.kind == "kube.refused":
        things = join_names(list(dict.fromkeys(event["resource"] for event in events)))
        return f"Kubernetes does not allow {_account(last['user'])} to {last['verb']} {things}: RBAC grants no such permission"
    if last.kind == "kube.unanswered":
        return f"Kubernetes could not ask {last['by']} about an object of Ray: {_cut(last['why'])}"
    if last.kind == "kube.denied":
        return f"Kubernetes refused an object of Ray: {last['by']} denied the request: {_cut(last['why'])}"
    if last.kind == "kube.no_kind":
        names = join_names(list(dict.fromkeys(event["kind"] for event in events)))
        return f"Kubernetes does not know {names} in the requested version: the CRD of KubeRay is missing or older"
    name = f" {last['name']}" if last["name"] else ""
    if "unknown field" in last["why"]:
        return f"Kubernetes refused a {last['kind']}: its CRD has no field {last['field']}"
    return f"Kubernetes refused {last['kind'].partition('.')[0]}{name}: {last['field']}: {_cut(last['why'])}"


def _account(user: str) -> str:
    """`service account kuberay-operator of namespace ml`."""
    _, is_service, account = user.rpartition("system:serviceaccount:")
    namespace, _, name = account.partition(":")
    if is_service and name:
        return f"service account {name} of namespace {namespace}"
    return f"user {user}"


def _cut(text: str) -> str:
    return cut(clause(text.replace('\\"', '"').rstrip("\\\"'}], ")), _LONGEST)


def _remedies(events: list[Event]) -> Iterator[Remedy]:
    last = events[-1]
    if last.kind == "kube.refused":
        thing = f"{last['resource']}.{last['group']}" if last["group"] else last["resource"]
        yield Remedy(
            f"Grant {_account(last['user'])} the permission with a ClusterRole and a binding",
            (
                paste.shell(
                    "kubectl auth can-i {verb:name} {thing:id} --as {user}   # now",
                    verb=last["verb"], thing=thing, user=last["user"],
                ),
                paste.shell(
                    "kubectl create clusterrole ray-access --verb=get,list,watch,create,update,patch,delete --resource={thing:id}",
                    thing=thing,
                ),
                paste.shell(
                    "kubectl create clusterrolebinding ray-access --clusterrole=ray-access --user={user:id}",
                    user=last["user"],
                ),
            ),
            risk="disruptive",
            doc=_RBAC_DOC,
        )  # fmt: skip
        if "kuberay" in last["user"]:
            yield Remedy(
                "Or install KubeRay's chart in one version: its role then fits the operator",
                (
                    "helm upgrade --install kuberay-operator kuberay/kuberay-operator --version VERSION",
                ),
                risk="disruptive",
                doc=_UPGRADE_DOC,
            )
    elif last.kind == "kube.denied":
        yield Remedy(
            "Change the manifest as the message demands, or ask the owner of the policy for an exception",
            (
                "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations,validatingadmissionpolicies",
            ),
            risk="disruptive",
            doc=_ADMISSION_DOC,
        )
    elif last.kind == "kube.unanswered":
        yield Remedy(
            "Start the program behind the webhook, or remove the webhook if that program is gone",
            (
                "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations -o wide",
                "kubectl get pods -A | grep -i webhook",
            ),
            risk="disruptive",
            doc=_ADMISSION_DOC,
        )
    elif last.kind == "kube.invalid" and "Too long" in last["why"]:
        yield Remedy(
            "Apply it on the server, which does not keep a copy of the manifest in an annotation",
            ("kubectl apply --server-side -k PATH",),
            risk="disruptive",
            doc=_UPGRADE_DOC,
        )
    elif last.kind == "kube.invalid" and "unknown field" not in last["why"]:
        yield Remedy(
            "Correct the field in the manifest, and let the server check it before you apply it",
            ("kubectl apply --dry-run=server -f PATH",),
        )
    else:
        yield Remedy(
            "Install the CRDs of the operator's version: Helm does not upgrade them",
            (
                "kubectl replace -k 'github.com/ray-project/kuberay/ray-operator/config/crd?ref=vVERSION'",
                "kubectl get crd rayclusters.ray.io rayjobs.ray.io rayservices.ray.io",
            ),
            risk="disruptive",
            doc=_UPGRADE_DOC,
        )


# ------------------------------------------------------------------ examples

EXAMPLES: tuple[Example, ...] = (
    console(
        "the operator is not allowed to list RayJobs",
        f"{_FORBIDDEN.sample}\n",
        says=("kuberay-operator of namespace ml to list rayjobs", "rayjobs.ray.io"),
    ),
    console(
        "Kueue demands a label",
        f"{_DENIED[1].sample}\n",
        says=("queue-policy denied the request", "kueue.x-k8s.io/queue-name"),
    ),
    console("a webhook denies the cluster", f"{_DENIED[0].sample}\n", says=("vraycluster.kb.io",)),
    console("KubeRay's webhook does not answer", f"{_DENIED[2].sample}\n", says=("could not ask vraycluster.kb.io", "no endpoints")),
    console(
        "a worker group lacks a field",
        f"{_INVALID[0].sample}\n",
        says=("RayCluster train: spec.workerGroupSpecs[1].rayStartParams: Required value", "--dry-run=server"),
    ),
    console(
        "the CRD is too large for kubectl apply",
        'The CustomResourceDefinition "rayclusters.ray.io" is invalid: metadata.annotations: Too long: must have at most 262144 bytes\n',
        says=("Too long", "--server-side"),
    ),
    console(
        "the CRD is older than the manifest",
        f"{_INVALID[1].sample}\n",
        says=("no field spec.serveConfigV2", "config/crd"),
    ),
    console(
        "the CRD is older than the manifest, in the words of an old kubectl",
        f"{_INVALID[2].sample}\n",
        says=("no field serveConfigV2",),
    ),
    console("the CRD is not installed", f"{_NO_KIND[0].sample}\n", says=("RayJob", "config/crd")),
    console("kubectl does not know the kind", f"{_NO_KIND[1].sample}\n", says=("raycluster",)),
    console("another operator needs the CRD", f"{_NO_KIND[2].sample}\n", says=("rayclusters",)),
    console(
        "the second manifest is accepted",
        f"{_INVALID[1].sample}\nrayservice.ray.io/serve created\n",
    ),
    console(
        "the account of another program",
        'Error from server (Forbidden): pods is forbidden: User "bob" cannot list resource "pods" in API group "" in the namespace "shop"\n',
    ),
    console(
        "another program's manifest",
        'The Deployment "web" is invalid: spec.template.spec.containers[0].image: Required value\n',
    ),
    console(
        "a quota refuses one pod",
        'ERROR\tReconciler error\t{"error": "pods \\"train-head-x1\\" is forbidden: exceeded quota: team, requested: limits.cpu=8, '
        'used: limits.cpu=28, limited: limits.cpu=32"}\n',
        roots=("pod-unschedulable",),
    ),
)  # fmt: skip

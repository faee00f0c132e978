"""A Ray pod does not start because its image cannot be pulled.

## What you see
- `kubectl get pods` shows `ErrImagePull`, `ImagePullBackOff`, `InvalidImageName` or `ErrImageNeverPull`.
- Events contain `Failed to pull image "…": … not found`, `pull access denied`, `401 Unauthorized`, `toomanyrequests`,
  `no such host`.
- Ray waits for the node, or the head never starts and the RayJob stays in `Initializing`.

## Why
The image's name or tag does not exist (a typo, or no image of that Ray version for this Python or CUDA). Or the
registry requires a secret that the pod does not name, limits anonymous pulls, or cannot be reached from the machine.
`no matching manifest` means that the image does not exist for the machine's CPU architecture.

## Confirm
- `kubectl describe pod POD` shows the event `Failed` with the registry's reply.
- `docker pull IMAGE` or `crane manifest IMAGE` on another machine fails as well if the image does not exist.

## Fix
- Correct the image's name or tag.
- Or reference a registry secret in the pod template's `imagePullSecrets` (`headGroupSpec` and each entry of
  `workerGroupSpecs`, below `template.spec`).
- A limit on anonymous pulls: log in with such a secret, or pull from a mirror. An unreachable registry: give the node
  network access to it, or push the image to a registry that the node can reach.

## Not this when
- the image was pulled later, and the pod runs.
- the pod waits for a machine (`pod-unschedulable`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, rule
from raydoctor.cluster import autoscaler
from raydoctor.cluster.pods import SIGNALS, Pods, is_head
from raydoctor.model import paste
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared.hosts import kubernetes

_DOC = "https://kubernetes.io/docs/concepts/containers/images/"
_SECRET_DOC = (
    "https://kubernetes.io/docs/tasks/configure-pod-container/pull-image-private-registry/"
)
_WAITING = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed")  # fmt: skip
_FAILED = pattern(r"(?:Failed to pull|Back-off pulling) image [\"'](?P<image>[^\"'\s]{1,300})[\"']")
_WHYS = (
    (pattern(r"toomanyrequests|rate limit|429 Too Many", 2), "the registry limits how often it may be pulled"),
    (pattern(r"no matching manifest|no match for platform", 2), "there is none for the machine's CPU architecture"),
    (pattern(r"no such host|i/o timeout|connection refused|dial tcp|TLS handshake|context deadline", 2), "the machine cannot reach the registry"),
    (pattern(r"x509|certificate", 2), "the registry's certificate is not accepted"),
    (pattern(r"unauthorized|denied|authorization failed|no basic auth|403 Forbidden", 2), "the registry refused access, or it does not exist"),
    (pattern(r"not found|manifest unknown|does not exist", 2), "it does not exist"),
    (pattern(r"no space left", 2), "the machine's disk is full"),
)  # fmt: skip
"""The first that matches decides: a registry also answers `denied` for an image that does not exist."""
_REFUSED, _LIMITED = _WHYS[4][1], _WHYS[0][1]


@rule(
    tier="root",
    severity="error",
    rank=2,
    explains=("autoscaler", "host"),
    looks_for=SIGNALS,
)
def image_pull_failed(case: Case) -> Iterator[Finding]:
    """One finding per image."""
    pods = Pods(case)
    failed = [event for event in pods.waiting() if event["reason"] in _WAITING]
    known = {pod["pod"] for pod in pods.all()}
    failed += [
        pods.pod_of(event)
        for event in pods.events("Failed", "BackOff")
        if event["name"] not in known
        and _FAILED.search(event["message"])
        and not pods.events_of(pods.pod_of(event), "Pulled", "Started")
    ]
    for image, group in evidence.grouped(failed, _image).items():
        yield _finding(pods, image, group)


def _image(pod: Event) -> str:
    found = _FAILED.search(pod["message"])
    return found["image"] if found else pod["image"]


def _finding(pods: Pods, image: str, failed: list[Event]) -> Finding:
    records = [e for pod in failed for e in pods.events_of(pod, "Failed", "BackOff", "FailedToPullImage", "InspectFailed")]  # fmt: skip
    texts = [event["message"] for event in (*failed, *records)]
    why = next((shown for form, shown in _WHYS if any(map(form.search, texts))), "")
    last = failed[-1]
    return Finding(
        f"{kubernetes.capital(kubernetes.named(failed))} cannot start: its image{f' {image}' if image else ''} "
        f"cannot be pulled{f', because {why}' if why else ''}",
        (
            *(Link(pod, "the container waits for its image") for pod in failed[:1]),
            *(Link(event, "the registry's reply") for event in _from_registry(records, failed)),
        ),
        explains=tuple(
            dict.fromkeys((*(x for pod in failed for x in pods.entities(pod)), autoscaler.POD_LAUNCH))
        ),
        subjects=kubernetes.subjects(failed),
        count=len({pod["pod"] for pod in failed}),
        severity="critical" if is_head(last) else None,
        remedies=tuple(_remedies(last, image, why)),
        covers=(*failed, *records),
    )  # fmt: skip


def _from_registry(records: list[Event], failed: list[Event]) -> list[Event]:
    """The event that says most: `Failed to pull image` with the registry's answer."""
    first = [e for e in records if e["message"].startswith("Failed to pull") and e not in failed]
    return first[:1]


def _remedies(pod: Event, image: str, why: str) -> Iterator[Remedy]:
    if why in (_REFUSED, _LIMITED):
        yield Remedy(
            "Give the pods a secret of the registry",
            (
                paste.shell(
                    "kubectl create secret generic regcred -n {namespace} --type=kubernetes.io/dockerconfigjson "
                    "--from-file=.dockerconfigjson=$HOME/.docker/config.json   # after docker login",
                    namespace=kubernetes.namespace(pod),
                ),
                "imagePullSecrets: [{name: regcred}]   # template.spec of headGroupSpec and of workerGroupSpecs",
            ),
            risk="disruptive",
            doc=_SECRET_DOC,
        )  # fmt: skip
    yield Remedy(
        "Check the image's name and tag, and that it exists for the machine's CPU architecture",
        (
            paste.shell("docker manifest inspect {image}", image=image or "IMAGE"),
            paste.python("image: rayproject/ray:2.46.0-py311   # {place}: an image that exists", place=kubernetes.place(pod)),
        ),
        doc=_DOC,
    )  # fmt: skip


# ------------------------------------------------------------------ examples


def _pending(
    reason: str, message: str = "", image: str = "rayproject/ray:2.46.0-py399"
) -> dict[str, object]:
    made = kubernetes.pod(
        "train-gpu-x1", phase="Pending", state={"waiting": {"reason": reason, "message": message}}
    )
    made["spec"]["containers"][0]["image"] = image
    return made


_MISSING = 'Failed to pull image "rayproject/ray:2.46.0-py399": rpc error: code = NotFound desc = failed to pull and unpack image: not found'  # fmt: skip

EXAMPLES: tuple[Example, ...] = (
    Example(
        "a tag that does not exist, in an excerpt of `kubectl get pods,events -o json`",
        {
            "pods-and-events.json": kubernetes.listed(
                _pending("ImagePullBackOff", 'Back-off pulling image "rayproject/ray:2.46.0-py399"'), kubernetes.event("Failed", _MISSING, "train-gpu-x1")
            )
        },
        says=("rayproject/ray:2.46.0-py399", "it does not exist", "docker manifest inspect"),
    ),
    Example(
        "the registry wants a password",
        {
            "pods.json": kubernetes.listed(
                _pending("ErrImagePull", "failed to authorize: 401 Unauthorized", "registry.example.com/ml/train:7")
            )
        },
        says=("refused access", "imagePullSecrets"),
    ),
    Example(
        "kubectl get pods",
        {"pods.txt": "NAME               READY   STATUS             RESTARTS   AGE\ntrain-head-abcde   0/1     ImagePullBackOff   0          3m\n"},
        says=("train-head-abcde (the head)",),
        severity="critical",
    ),
    Example(
        "the image was pulled later",
        {
            "events.json": kubernetes.listed(
                kubernetes.event("Failed", _MISSING, "train-gpu-worker-x1"), kubernetes.event("Pulled", "Successfully pulled image", "train-gpu-worker-x1")
            )
        },
    ),
    Example(
        "the pod runs: the event is old",
        {"all.json": kubernetes.listed(kubernetes.pod("train-gpu-x1"), kubernetes.event("Failed", _MISSING, "train-gpu-x1"))},
    ),
)  # fmt: skip

"""What Kubernetes prints: which files are recognised, how objects are read, and what damaged ones cost."""

from __future__ import annotations

import gzip
import json
import tarfile
import time
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from raydoctor.capture import contents
from raydoctor.capture.open import open_capture
from raydoctor.cluster.pods import quantity
from raydoctor.diagnosis import engine
from raydoctor.model.values import Report
from raydoctor.read import build
from raydoctor.read.clock import instant
from raydoctor.read.kubernetes.document import Damage, Document
from raydoctor.read.kubernetes.documents import documents
from raydoctor.read.kubernetes.objects import facts
from raydoctor.rules.shared.hosts import kubernetes

OOM = kubernetes.terminated("OOMKilled", 137)
KILLED = kubernetes.listed(kubernetes.pod("train-gpu-x1", last=OOM, restarts=1))


def diagnosed(folder: Path) -> Report:
    with open_capture(str(folder)) as capture:
        return engine.run(capture)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("pods.json", KILLED.encode()),
        ("pods.txt", KILLED.encode("utf-16")),
        ("pods.json.gz", gzip.compress(KILLED.encode())),
        ("compact", json.dumps(json.loads(KILLED)).encode()),
        ("one.json", json.dumps(json.loads(KILLED)["items"][0]).encode()),
        ("watch.json", "\n".join(map(json.dumps, json.loads(KILLED)["items"] * 2)).encode()),
        ("bare.json", json.dumps(json.loads(KILLED)["items"]).encode()),
        (
            "raw.json",
            json.dumps(
                {
                    "kind": "PodList",
                    "apiVersion": "v1",
                    "metadata": {},
                    "items": [
                        {
                            k: v
                            for k, v in json.loads(KILLED)["items"][0].items()
                            if k not in ("kind", "apiVersion")
                        }
                    ],
                }
            ).encode(),
        ),
        (
            "changes.json",
            "\n".join(
                json.dumps({"type": kind, "object": pod}, indent=4)
                for kind, pod in (
                    ("ADDED", kubernetes.pod("train-gpu-x1")),
                    ("MODIFIED", json.loads(KILLED)["items"][0]),
                )
            ).encode(),
        ),
        (
            "typescript.txt",
            b"ann@host:~$ kubectl get pods -o json\nW1122 10:00:00.000000      12 warnings.go:70] deprecated\n"
            b"Warning: deprecated\n" + KILLED.encode(),
        ),
    ],
)
def test_forms_of_json(name: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    (found,) = diagnosed(tmp_path).diagnoses
    assert found.rule == "pod-oom-killed"
    assert found.count == 1
    (link,) = found.chain
    assert link.event.source.path == name


@pytest.mark.parametrize(
    ("spec", "status", "limit"),
    [({"limits": {"memory": "8Gi"}}, {}, "8.0 GiB"), ({}, {"limits": {"memory": "2Gi"}}, "2.0 GiB"),
     ({"limits": {"memory": "8Gi"}}, {"limits": {"memory": "2Gi"}}, "2.0 GiB")],
)  # fmt: skip
def test_where_a_limit_is(
    spec: dict[str, Any], status: dict[str, Any], limit: str, tmp_path: Path
) -> None:
    """Of the pod as a whole, and of a container before a resize that has not happened."""
    pod = kubernetes.pod("train-gpu-x1", memory="", last=OOM, restarts=1)
    pod["spec"]["resources"] = spec
    pod["status"]["containerStatuses"][0]["resources"] = status
    (tmp_path / "pods.json").write_text(kubernetes.listed(pod))
    (found,) = diagnosed(tmp_path).diagnoses
    assert f"its memory limit of {limit}" in found.headline


def test_the_submitter_of_a_rayjob_runs_no_tasks(tmp_path: Path) -> None:
    pod = kubernetes.pod("train-9x2k4", phase="Failed", state=OOM)
    for each in (pod["spec"]["containers"][0], pod["status"]["containerStatuses"][0]):
        each["name"] = "ray-job-submitter"
    (tmp_path / "pods.json").write_text(kubernetes.listed(pod))
    (found,) = diagnosed(tmp_path).diagnoses
    (remedy,) = found.remedies
    assert "submitterPodTemplate.spec" in remedy.steps[0]


@pytest.mark.parametrize(
    ("text", "epoch"),
    [
        ("2026-11-22T10:00:00Z", 1_795_341_600),
        ("2026-11-22T10:00:00.250000Z", 1_795_341_600.25),
        ("2026-11-22T18:00:00.250000+08:00", 1_795_341_600.25),
        ("2026-11-22T06:30:00-03:30", 1_795_341_600),
        ("Sun, 22 Nov 2026 18:00:00 +0800", 1_795_341_600),
        ("2026-11-22T10:00:00.x", None),
        ("2026-11-22T10:00:00+8", None),
    ],
)
def test_times(text: str, epoch: float | None) -> None:
    assert instant(text) == epoch


def test_members_of_an_archive(tmp_path: Path) -> None:
    """By their first bytes, as in a folder; other texts are not unpacked."""
    archive = tmp_path / "train.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, text in (("a/pods.json", KILLED), ("a/notes.txt", "see pods.json\n" * 9)):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, BytesIO(text.encode()))
    with open_capture(str(archive)) as capture:
        assert [source.path for source in capture.sources] == ["a/pods.json"]
        (found,) = engine.run(capture).diagnoses
    assert found.rule == "pod-oom-killed"


def test_the_line_is_that_of_the_state(tmp_path: Path) -> None:
    (tmp_path / "pods.json").write_text(KILLED)
    (found,) = diagnosed(tmp_path).diagnoses
    number = found.chain[0].event.line
    assert '"finishedAt": "2026-11-22T18:52:10Z"' in KILLED.splitlines()[number - 1]


def test_a_list_that_is_cut_off_keeps_its_objects(tmp_path: Path) -> None:
    many = [kubernetes.pod(f"train-gpu-{n}", last=OOM, restarts=1) for n in range(3)]
    text = kubernetes.listed(*many)
    (tmp_path / "pods.json").write_text(text[: text.index("train-gpu-2")])
    report = diagnosed(tmp_path)
    (found,) = report.diagnoses
    assert found.count == 2
    assert any(gap.what == "pods.json" and "cut off" in gap.why for gap in report.gaps)


YAML = """apiVersion: v1
kind: Pod
metadata:
  labels: {ray.io/cluster: train}
  name: train-worker-a
  namespace: ml
spec:
  containers:
  - name: ray-worker
    env:
    - {name: API_KEY, value: hunter2secret}
status:
  containerStatuses:
  - name: ray-worker
    restartCount: 1
    lastState:
      terminated: {exitCode: 137, reason: OOMKilled, finishedAt: "2026-11-22T18:52:10Z"}
---
apiVersion: v1
kind: Service
metadata: {name: other}
---
apiVersion: ray.io/v1
kind: RayJob
metadata: {name: train, namespace: ml}
status: {jobDeploymentStatus: Failed, reason: SubmissionFailed}
"""


def test_several_documents_of_yaml(tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text(YAML)
    report = diagnosed(tmp_path)
    assert sorted(d.rule for d in report.roots) == ["pod-oom-killed", "rayjob-not-submitted"]
    assert "hunter2" not in str(report.diagnoses)


BOMB = "apiVersion: v1\nkind: Pod\na: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a]\nc: [*b,*b,*b]\n"
TAGGED = "apiVersion: v1\nkind: Pod\nmetadata: !!python/object/apply:os.system ['exit 1']\n"


@pytest.mark.parametrize(
    ("text", "why"), [(BOMB, "not valid YAML"), ("apiVersion: v1\nkind: Pod\n  a:\n b: [", "not valid YAML")]
)  # fmt: skip
def test_yaml_that_is_refused(text: str, why: str) -> None:
    (found,) = documents(StringIO(text))
    assert isinstance(found, Damage)
    assert why in found.why


def test_tags_have_no_effect() -> None:
    (found,) = documents(StringIO(TAGGED))
    assert isinstance(found, Document)
    assert found.data["metadata"] == ["exit 1"]


def as_yaml(*objects: dict[str, Any]) -> str:
    """What `kubectl get -o yaml` prints of these objects: a list, or one object."""
    made = {"apiVersion": "v1", "items": objects, "kind": "List"} if objects[1:] else objects[0]
    return str(yaml.safe_dump(json.loads(json.dumps(made))))


@pytest.mark.parametrize("part", range(1, 11))
def test_a_yaml_list_that_is_cut_off_is_a_gap(part: int, tmp_path: Path) -> None:
    """YAML that ends early is valid YAML: what is missing shows."""
    others = [kubernetes.pod(f"train-gpu-{n}", restarts=1) for n in range(3)]
    text = as_yaml(*others, kubernetes.pod("train-gpu-x1", last=OOM, restarts=1))
    (tmp_path / "pods.yaml").write_text(text[: len(text) * part // 11])
    report = diagnosed(tmp_path)
    assert any(gap.what == "pods.yaml" and "cut off" in gap.why for gap in report.gaps)
    assert not report.complete


@pytest.mark.parametrize(
    "end", ["status:", "  containerStatuses:", "    name: ray-worker\n    restart"]
)
def test_a_pod_that_is_cut_off_is_a_gap(end: str) -> None:
    """The API server always sets the phase; a manifest has none, but no UID either."""
    text = as_yaml(kubernetes.pod("train-gpu-x1", last=OOM, restarts=1))
    found = list(documents(StringIO(text[: text.index(end) + len(end)])))
    assert any(isinstance(each, Damage) for each in found)
    whole = list(documents(StringIO(text)))
    assert [type(each) for each in whole] == [Document]
    manifest = as_yaml({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {}})
    assert [type(each) for each in documents(StringIO(manifest))] == [Document]


DESCRIBED = (
    "Name:  train-gpu-x0\nNamespace:  ml\nContainers:\n  ray-worker:\n    State:  Running\n"
    "Conditions:\n  Type   Status\n  Ready  True\nEvents:  <none>\n"
)
QUIET, FAILED = kubernetes.pod("train-gpu-x0"), json.loads(KILLED)["items"][0]


@pytest.mark.parametrize(
    "parts",
    [
        (json.dumps(QUIET, indent=4), "---\n", as_yaml(FAILED)),
        (json.dumps(QUIET, indent=4), "", as_yaml(FAILED)),
        (as_yaml(QUIET), "---\n", json.dumps(FAILED, indent=4)),
        (as_yaml(QUIET), "", json.dumps(FAILED, indent=4)),
        (as_yaml(QUIET), "", as_yaml(FAILED)),
        (as_yaml(QUIET, QUIET), "", as_yaml(QUIET, FAILED)),
        (as_yaml(QUIET, QUIET), "", KILLED),
        (kubernetes.listed(QUIET), "", KILLED),
        (as_yaml(QUIET), "ann@host:~$ kubectl get pods -o yaml\n", as_yaml(QUIET, FAILED)),
        (as_yaml(QUIET, QUIET), "$ kubectl get pods -o json\n", KILLED),
        (DESCRIBED, "\n", json.dumps(FAILED, indent=4)),
        (DESCRIBED, "", as_yaml(FAILED)),
        (json.dumps(FAILED, indent=4), "", DESCRIBED),
        ("apiVersion: v1\nkind: Pod\nstatus: [a\n", "---\n", as_yaml(FAILED)),
        (KILLED[:600], "\n", KILLED),
    ],
)
def test_several_outputs_in_one_file(parts: tuple[str, str, str], tmp_path: Path) -> None:
    """With a mark between them, a command, or nothing: `kubectl … >> FILE`."""
    text = "".join((parts[0].rstrip("\n"), "\n", *parts[1:]))
    (tmp_path / "all.txt").write_text(text)
    (found,) = diagnosed(tmp_path).diagnoses
    assert (found.rule, found.count) == ("pod-oom-killed", 1)
    assert "2026-11-22T18:52:10Z" in text.splitlines()[found.chain[0].event.line - 1]


def test_a_description_that_is_cut_off_is_a_gap(tmp_path: Path) -> None:
    (tmp_path / "pod.txt").write_text(DESCRIBED[: DESCRIBED.index("Conditions")])
    report = diagnosed(tmp_path)
    assert any(gap.what == "pod.txt" and "cut off" in gap.why for gap in report.gaps)


def test_lines_of_documents() -> None:
    text = f"# comment\n{YAML}"
    lines = [each.line for each in documents(StringIO(text))]
    assert [text.splitlines()[line - 1].split(":")[0] for line in lines] == ["apiVersion"] * 3


@pytest.mark.parametrize(
    "text",
    [
        "NAME   READY\n",
        '{"kind": "chart", "apiVersion": 2}',
        "Name:  a person\nAge: 7\n",
        "{'kind': 'Pod'}",
        "kind: Deployment\n",
        "apiVersion: ray.io/v1\nkind: RayCluster\nmetadata:\n  name: train\nspec: {}\n",
    ],
)
def test_other_files_are_not_taken(text: str) -> None:
    assert contents.role_of_text(text) == ""


@pytest.mark.parametrize(
    "line", ["# kubectl x", " $ kubectl x", "Warning: $ kubectl x", "W1122 10:00:00 $ kubectl x", "---$ kubectl x"]
)  # fmt: skip
def test_many_commands_above_nothing(line: str) -> None:
    """A line that a pattern could take in two ways would cost 2 to the power of their number."""
    assert contents.role_of_text(f"{line}\n" * 5000) == ""


@pytest.mark.parametrize(
    ("text", "amount"),
    [("4Gi", 4 << 30), ("2G", 2e9), ("500m", 0.5), ("1e9", 1e9), ("", None), ("4 GB", None)],
)
def test_quantities(text: str, amount: float | None) -> None:
    assert quantity(text) == amount


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.data())
def test_objects_of_any_type(data: st.DataObject) -> None:
    """A part of an object may be of any type: nothing fails, and fields are text."""
    kind = data.draw(st.sampled_from(["Pod", "Event", "Node", "RayJob", "RayCluster"]))
    more = {
        "kind": kind,
        "type": data.draw(st.sampled_from(["Normal", "Warning"])),
        "reason": "Killing",
    }
    made: dict[str, Any] = json.loads(KILLED)["items"][0] | more
    place: Any = made
    while isinstance(place, dict) and place and data.draw(st.booleans()):
        key = data.draw(st.sampled_from(sorted(place)))
        if not isinstance(place[key], dict):
            break
        place = place[key]
    if isinstance(place, dict) and place:
        place[data.draw(st.sampled_from(sorted(place)))] = data.draw(ANY)
    text = json.dumps({"kind": "List", "items": [made]})
    for document in documents(StringIO(text)):
        assert isinstance(document, Document)
        for fact in facts(document.data):
            assert all(isinstance(value, str) for value in fact.fields.values())


def test_a_damaged_event_that_is_read_at_last_is_a_gap(tmp_path: Path) -> None:
    """Events that show progress are parsed only after a warning about their pod."""
    started = kubernetes.event("Started", "Started container", "train-gpu-x1", type="Normal")
    warning = kubernetes.event("BackOff", "Back-off restarting", "train-gpu-x1")
    quiet = kubernetes.pod("train-gpu-x2")
    text = kubernetes.listed(quiet, started, started, warning).replace(
        '"count": 1', '"count": 1x', 1
    )
    (tmp_path / "all.json").write_text(text)
    assert any(gap.what == "all.json" and "damaged" in gap.why for gap in diagnosed(tmp_path).gaps)


@pytest.mark.parametrize("kind", ["Normal", [], {"a": 1}])
@pytest.mark.parametrize("reason", ["Killing", [], {"a": 1}])
def test_a_type_and_a_reason_of_any_type(kind: object, reason: object, tmp_path: Path) -> None:
    odd = kubernetes.event("x", "x", "train-gpu-x1") | {"type": kind, "reason": reason}
    (tmp_path / "all.json").write_text(kubernetes.listed(odd, json.loads(KILLED)["items"][0]))
    (found,) = diagnosed(tmp_path).diagnoses
    assert found.rule == "pod-oom-killed"


def test_an_indented_list_gives_the_facts_of_a_compact_one(tmp_path: Path) -> None:
    """Normal events are passed by; those that show a recovery count only beside a warning about their pod."""
    normal = {"type": "Normal"}
    objects = [
        kubernetes.pod("train-gpu-x1", state={"waiting": {"reason": "CrashLoopBackOff"}}),
        *(kubernetes.event(reason, 'says "type": "Warning"', f"train-gpu-{name}", **normal)
          for name in ("x1", "x2") for reason in ("Pulling", "Pulled", "Started")),
        kubernetes.event("Unhealthy", "Readiness probe failed", "train-gpu-x2"),
        kubernetes.event("Odd", "a note", "train-gpu-x2", note=[{"kind": "Event", "type": "Normal"}], **normal),
        *(kubernetes.event("Scheduled", "Assigned", f"train-gpu-y{n}", **normal) for n in range(9)),
        kubernetes.pod("train-gpu-x3"),
    ]  # fmt: skip
    found = []
    for indent in (None, 1, 4):
        file = tmp_path / "objects.json"
        text = {"apiVersion": "v1", "kind": "List", "items": objects}
        file.write_text(json.dumps(text, indent=indent))
        with open_capture(str(tmp_path)) as capture:
            events = build.read(capture, ()).case.events
        found.append(sorted((e.kind, *sorted(e.fields.items()), e.at) for e in events))
        lines = file.read_text().splitlines()
        assert all(e["reason"] in lines[e.line - 1] for e in events if e.kind == "kube.event")
    assert found[0] == found[1] == found[2]
    reasons = [(event[0], dict(event[1:-1]).get("reason")) for event in found[0]]
    assert reasons.count(("kube.event", "Started")) == 1
    assert ("kube.event", "Scheduled") not in reasons


def test_a_list_that_is_indented_by_hand_keeps_its_objects() -> None:
    """The brace of an inner object, below that of its item, does not end the item."""
    item = '{\n  "kind": "Event",\n  "source": {\n   "host": ""\n },\n  "type": "Normal"\n }'
    text = f'{{"kind": "List", "items": [\n {item},\n {item},\n {item}\n]}}'
    found = list(documents(StringIO(text), lambda raw, line: True))
    assert [each.data["type"] for each in found if isinstance(each, Document)] == ["Normal"] * 3
    assert len(found) == 3


def test_one_event_among_many(tmp_path: Path) -> None:
    """Ten thousand events of other pods."""
    quiet = [
        kubernetes.event("Pulled", "Container image is present", f"web-{n}") for n in range(10_000)
    ]
    evicted = kubernetes.event(
        "Evicted", "The node was low on resource: memory.", "train-gpu-worker-x1"
    )
    (tmp_path / "events.json").write_text(kubernetes.listed(*quiet, evicted))
    (found,) = diagnosed(tmp_path).diagnoses
    assert found.rule == "pod-evicted"


def test_the_time_grows_with_the_events(tmp_path: Path) -> None:
    """Every pod has a warning and an event after which it may have recovered."""
    spent = []
    for number in (2_000, 16_000):
        made = [
            kubernetes.event(reason, "x", f"train-gpu-{n}", type=kind)
            for n in range(number)
            for reason, kind in (("BackOff", "Warning"), ("Started", "Normal"))
        ]
        folder = tmp_path / f"{number}"
        folder.mkdir()
        (folder / "events.json").write_text(kubernetes.listed(*made))
        with open_capture(str(folder)) as capture:
            began = time.process_time()
            assert len(build.read(capture, []).case.of("kube.event")) == 2 * number
            spent.append(time.process_time() - began)
    assert spent[1] < 14 * spent[0]


def test_a_secret_in_a_message_of_several_lines_is_replaced(tmp_path: Path) -> None:
    """The lines of a message are joined, after which a secret over two of them is not known any more."""
    token = "".join(f"{n * 37 % 256:02x}" for n in range(1, 33))
    began = "2026-11-21 07:35:03,092 INFO worker.py:26 -- started"
    message = f"{began} RAY_AUT\nH_TOKEN={token[:50]}\n{token[50:]}\nand so on\n"
    state = {"terminated": {"exitCode": 1, "reason": "Error", "message": message}}
    status = {"containerStatuses": [{"name": "ray-worker", "state": state}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "w"}, "status": status}
    (tmp_path / "pods.json").write_text(json.dumps(pod, indent=1))
    with open_capture(str(tmp_path)) as capture:
        (found,) = build.read(capture, []).case.of("kube.container")
    assert "and so on" in found["message"]
    for part in (token[:8], token[-8:]):
        assert part not in f"{found.text} {found['message']}"


@pytest.mark.parametrize("count", ["many", 1.5, -3, "9" * 3000, True, None])
def test_a_damaged_count_of_an_event_is_one(count: object) -> None:
    event = kubernetes.event("FailedScheduling", "no node fits", "train-head") | {"count": count}
    (fact,) = facts(event)
    assert fact.fields["count"] == "1"


@pytest.mark.parametrize("text", ["a\n---\n" * 10_000, '{"a":[\n' * 400 + '{"k":"v"},\n' * 20_000])
def test_many_small_or_unfinished_objects_do_not_take_long(text: str) -> None:
    began = time.process_time()
    assert len(list(documents(StringIO(text)))) <= 10_000
    assert time.process_time() - began < 2

"""Outputs of kubectl and Slurm as people paste them, with facts of public threads, rewritten.

Each names the rules that must report something, and no other rule about machines may.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from raydoctor.capture.open import open_capture
from raydoctor.diagnosis import engine
from raydoctor.rules.shared.hosts import kubernetes

OOM = kubernetes.terminated("OOMKilled", 137)
DESCRIBED = """\
Name:             {name}
Namespace:        ml
Node:             node20/10.1.0.29
Start Time:       Thu, 05 Nov 2026 15:32:26 +0800
Labels:           app.kubernetes.io/created-by=kuberay-operator
                  ray.io/cluster=train
                  ray.io/group=large-group
                  ray.io/node-type=worker
Annotations:      ray.io/ft-enabled: false
Status:           {status}
IP:               10.233.65.80
Controlled By:    RayCluster/train
Init Containers:
  wait-gcs-ready:
    Image:          rayproject/ray:2.41.0
    State:          {init}
    Ready:          True
    Restart Count:  0
Containers:
{containers}
Conditions:
  Type              Status
  Initialized       True
  Ready             True
  PodScheduled      {scheduled}
Events:
  Type     Reason     Age    From               Message
  ----     ------     ----   ----               -------
{events}
"""
CONTAINER = """\
  {name}:
    Image:          rayproject/ray:2.41.0
    State:          {state}
    Last State:     {last}
    Ready:          True
    Restart Count:  {restarts}
    Limits:
      memory:  8Gi
    Environment:
      RAY_ADDRESS:  train-head-svc:6379
"""
ENDED = """Terminated
      Reason:       {reason}
      Exit Code:    {code}
      Started:      Thu, 05 Nov 2026 15:33:01 +0800
      Finished:     Thu, 05 Nov 2026 15:58:45 +0800"""
RUNNING = """Running
      Started:      Thu, 05 Nov 2026 15:58:47 +0800"""
FAILED_GPU = (
    "0/3 nodes are available: 1 node(s) had untolerated taint {{node-role: cp}}, 2 Insufficient "
    "nvidia.com/gpu. preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod."
)


def container(
    name: str = "ray-worker", state: str = RUNNING, last: str = "", restarts: int = 0
) -> str:
    text = CONTAINER.format(name=name, state=state, last=last or "?", restarts=restarts)
    return text if last else text.replace("    Last State:     ?\n", "")


def described(*containers: str, **given: str) -> str:
    parts = {"name": "train-large-group-worker-nb2zq", "status": "Running", "scheduled": "True",
             "init": ENDED.format(reason="Completed", code=0), "events": "", **given}  # fmt: skip
    return DESCRIBED.format(containers="".join(containers or [container()]), **parts)


def sidecar(
    pod: dict[str, Any], name: str, last: dict[str, Any], *, is_first: bool
) -> dict[str, Any]:
    """The pod with another container beside Ray's."""
    at = 0 if is_first else 1
    status = {"name": name, "restartCount": 2, "state": {"running": {}}, "lastState": last}
    pod["spec"]["containers"].insert(at, {"name": name})
    pod["status"]["containerStatuses"].insert(at, status)
    return pod


def listed(*objects: dict[str, Any]) -> str:
    return kubernetes.listed(*objects)


OOM_TEXT = ENDED.format(reason="OOMKilled", code=137)
SACCT = "JobID|JobName|State|ExitCode|Timelimit|Elapsed|ReqMem|MaxRSS|NodeList\n"
CASES: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "an OOM kill of the worker, described": (
        {"a.txt": described(container(last=OOM_TEXT, restarts=1))}, ("pod-oom-killed",)),
    "an OOM kill of a sidecar behind Ray": (
        {"a.txt": described(container(), container("fluentbit", last=OOM_TEXT, restarts=3))}, ()),
    "an OOM kill of the mesh's proxy, which was inserted before Ray": (
        {"a.txt": described(container("istio-proxy", last=OOM_TEXT, restarts=3), container())}, ()),
    "an OOM kill of Ray behind the mesh's proxy": (
        {"a.txt": described(container("istio-proxy"), container(last=OOM_TEXT, restarts=1))},
        ("pod-oom-killed",)),
    "the same as objects, in a container with a name of its own": (
        {"p.json": listed(sidecar(kubernetes.pod("train-x1", last=OOM, restarts=1), "gke-gcsfuse-sidecar", {}, is_first=True)).replace("ray-worker", "machine-learning")},
        ("pod-oom-killed",)),
    "an OOM kill of the volume's container, as objects": (
        {"p.json": listed(sidecar(kubernetes.pod("train-x1"), "gke-gcsfuse-sidecar", OOM, is_first=True)).replace("ray-worker", "machine-learning")},
        ()),
    "exit code 137 with the reason Error: a kill, not lack of memory": (
        {"a.txt": described(container(last=ENDED.format(reason="Error", code=137), restarts=1))}, ()),
    "the init container failed and was started again": (
        {"a.txt": described(init=ENDED.format(reason="Error", code=1))}, ()),
    "all pods of a job completed": (
        {"p.json": listed(kubernetes.pod("train-submit", phase="Succeeded", state=kubernetes.terminated("Completed", 0)))},
        ()),
    "evicted for disk, as the API shows it": (
        {"p.json": listed(kubernetes.pod("train-x1", phase="Failed", reason="Evicted", message="The node was low on resource: ephemeral-storage. Threshold quantity: 2146223340, available: 1883424Ki. Container ray-worker was using 10304Ki, request is 0, has larger consumption of ephemeral-storage. "))},
        ("pod-evicted",)),
    "evicted, in the older wording of the event": (
        {"e.json": listed(kubernetes.event("Evicted", "The node was low on resource: ephemeral-storage. Container ray-worker was using 73712Ki, which exceeds its request of 0. ", "train-large-group-worker-nb2zq"))},
        ("pod-evicted",)),
    "an eviction of another team's pod": (
        {"e.json": listed(kubernetes.event("Evicted", "The node was low on resource: memory.", "calico-node-x2"))}, ()),
    "a pod that a GPU plugin refused at admission": (
        {"p.json": listed(kubernetes.pod("train-x1", phase="Failed", reason="UnexpectedAdmissionError", message="Pod Allocate failed due to unable to find GPU device allocation by scheduler, which is unexpected"))},
        ()),
    "no node with a free GPU; the scheduler's words name preemption": (
        {"a.txt": described(status="Pending", scheduled="False", events=f"  Warning  FailedScheduling  2m20s  default-scheduler  {FAILED_GPU.replace('{{', '{').replace('}}', '}')}")},
        ("pod-unschedulable",)),
    "a pod that waited for a node and then ran": (
        {"a.txt": described(events="  Warning  FailedScheduling  9m  default-scheduler  0/3 nodes are available: 3 Insufficient cpu.\n  Normal   Scheduled  8m  default-scheduler  Successfully assigned ml/train-large-group-worker-nb2zq to node20")},
        ()),
    "preempted by a pod of higher priority": (
        {"p.json": listed(kubernetes.pod("train-x1", phase="Failed", conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "default-scheduler: preempting to accommodate a higher priority pod", "lastTransitionTime": "2026-11-22T18:52:09Z"}]))},
        ("pod-preempted",)),
    "a preemption of another cluster's pod": (
        {"e.json": listed(kubernetes.event("Preempted", "Preempted by pod 3f on node node-a", "web-7d9c"))}, ()),
    "a pull that failed once and then succeeded": (
        {"a.txt": described(events="  Warning  Failed   19m  kubelet  Failed to pull image \"rayproject/ray:2.41.0\": i/o timeout\n  Warning  Failed   19m  kubelet  Error: ErrImagePull\n  Normal   Pulled   18m  kubelet  Successfully pulled image\n  Normal   Started  18m  kubelet  Started container ray-worker")},
        ()),
    "a step's kill for lack of memory, in the words of Slurm 20": (
        {"slurm-59137890.out": "slurmstepd: error: Detected 8 oom-kill event(s) in step 59137890.batch cgroup. Some of your processes may have been killed by the cgroup out-of-memory handler.\n"},
        ("slurm-oom-kill",)),
    "the same in the words of Slurm 22": (
        {"slurm-1130.out": "slurmstepd: error: Detected 1 oom_kill event in StepId=11300781.0. Some of the step tasks have been OOM Killed.\nsrun: error: sd6156: task 0: Out Of Memory\n"},
        ("slurm-oom-kill",)),
    "a time limit, for the job and its step": (
        {"slurm-494583.out": "srun: Job step aborted: Waiting up to 47 seconds for job step to finish.\nslurmstepd: error: *** JOB 494583 ON n1 CANCELLED AT 2026-04-20T09:09:37 DUE TO TIME LIMIT ***\nslurmstepd: error: *** STEP 494583.0 ON n1 CANCELLED AT 2026-04-20T09:09:37 DUE TO TIME LIMIT ***\n"},
        ("slurm-time-limit",)),
    "a job that its user cancelled": (
        {"slurm-494584.out": "slurmstepd: error: *** JOB 494584 ON n1 CANCELLED AT 2026-04-20T09:09:37 ***\n"}, ()),
    "sacct: cancelled by a user shortly before the limit": (
        {"sacct.txt": f"{SACCT}77|train|CANCELLED by 1000|0:15|01:00:00|00:59:58|16G||n1\n77.batch|batch|CANCELLED|0:15||00:59:59||9000K|n1\n"},
        ()),
    "sacct: lack of memory": (
        {"sacct.txt": f"{SACCT}77|train|OUT_OF_MEMORY|0:125|01:00:00|00:10:00|16G||n1\n77.batch|batch|OUT_OF_MEMORY|0:125||00:10:00||16777216K|n1\n"},
        ("slurm-oom-kill",)),
    "sacct: completed jobs only": (
        {"sacct.txt": f"{SACCT}78|train|COMPLETED|0:0|01:00:00|00:10:00|16G||n1\n78.batch|batch|COMPLETED|0:0||00:10:00||900K|n1\n"},
        ()),
    "sacct: a machine failed": (
        {"sacct.txt": f"{SACCT}79|train|NODE_FAIL|0:0|01:00:00|00:10:00|16G||n[1-2]\n"},
        ("slurm-node-failed",)),
    "a step killed by a signal while another was cancelled": (
        {"slurm-80.out": "srun: error: n1: task 0: Killed\nsrun: launch/slurm: _step_signal: Terminating StepId=80.0\n"}, ()),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_pasted_records(name: str, tmp_path: Path) -> None:
    files, expected = CASES[name]
    for path, text in files.items():
        (tmp_path / path).write_text(text)
    with open_capture(str(tmp_path)) as capture:
        report = engine.run(capture)
    found = {
        d.rule for d in report.diagnoses if d.rule.startswith(("pod-", "slurm-", "image-", "head-"))
    }
    assert found == set(expected), json.dumps([d.headline for d in report.diagnoses], indent=1)


TYPES = "  Type     Reason            Age                From     Message\n  ----     ------            ----               ----     -------\n"
FRAGMENTS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "the end of describe behind its command": (
        f"$ kubectl describe pod train-1-head-6668q | tail -n 3\n{TYPES}"
        "  Warning  FailedScheduling  4m5s               volcano  3/3 tasks in gang unschedulable: pod group is not ready\n",
        ("pod-unschedulable",), ""),
    "events alone, of which one names the pod": (
        f"Events:\n{TYPES}  Normal   Scheduled         82s                default-scheduler  Successfully assigned ml/train-gpu-worker-x1 to node0\n"
        '  Warning  FailedMount       8s (x5 over 50s)   kubelet  MountVolume.SetUp failed for volume "data"\n',
        (), "MountVolume"),
    "events alone, after which all was well": (
        f"Events:\n{TYPES}  Normal   Scheduled         82s                default-scheduler  Successfully assigned ml/train-gpu-worker-x1 to node0\n"
        "  Normal   Started           81s                kubelet  Started container init\n",
        (), ""),
    "a RayCluster that failed": (
        "Name:         train\nNamespace:    ml\nAPI Version:  ray.io/v1\nKind:         RayCluster\nStatus:\n  Head:\n  State:  failed\nEvents:   <none>\n",
        (), "RayCluster train: state=failed"),
    "KubeRay's operator does not start": (
        described(CONTAINER.format(name="kuberay-operator", state="Waiting\n      Reason:       CrashLoopBackOff", last=ENDED.format(reason="Error", code=1), restarts=5), name="kuberay-operator-799899ff46-6j2mm").replace("ray.io/", "app/"),
        ("pod-crash-looping",), ""),
    "another operator does not start": (
        described(CONTAINER.format(name="manager", state="Waiting\n      Reason:       CrashLoopBackOff", last=ENDED.format(reason="Error", code=1), restarts=5), name="other-799899ff46-6j2mm").replace("ray.io/", "app/"),
        (), ""),
    "a conflict in the operator's log": (
        '2026-07-14T08:59:28.502Z\tERROR\tcontrollers.RayCluster\tUpdate status error\t{"cluster name": "train", "error": "Operation cannot be fulfilled on rayclusters.ray.io: the object has been modified; please apply your changes to the latest version and try again"}\n',
        (), ""),
    "sacct behind its command": (
        "$ sacct -j 1023\n       JobID    JobName      State ExitCode \n------------ ---------- ---------- -------- \n1023         submit-ra+     FAILED      6:0 \n1023.1          RayHead  CANCELLED     0:15 \n",
        (), "Slurm job 1023: state=FAILED"),
    "scontrol behind its command": (
        "[ann@login ~]$ scontrol show job 77\nJobId=77 JobName=train\n   JobState=TIMEOUT Reason=TimeLimit TimeLimit=02:00:00\n",
        ("slurm-time-limit",), ""),
    "JSON of sacct behind its command": (
        'ann$ sacct -j 77 --json\n{"jobs": [{"job_id": 77, "allocation_nodes": 1, "state": {"current": ["TIMEOUT"]}}]}\n',
        ("slurm-time-limit",), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", FRAGMENTS)
def test_pasted_fragments(name: str, tmp_path: Path) -> None:
    text, rules, listed_ = FRAGMENTS[name]
    (tmp_path / "pasted.txt").write_text(text)
    with open_capture(str(tmp_path / "pasted.txt")) as capture:
        report = engine.run(capture)
    assert tuple(each.rule for each in report.roots) == rules
    assert any(listed_ in each.text for each in report.unexplained) == bool(listed_)


def test_the_end_that_slurm_prints_has_its_time_in_the_timeline(tmp_path: Path) -> None:
    """Other lines of a job's output have no time, so the zone is this machine's."""
    (tmp_path / "slurm-1.out").write_text(
        "epoch 3\nslurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-04-20T09:09:37 DUE TO TIME LIMIT ***\n"
    )
    with open_capture(str(tmp_path)) as capture:
        report = engine.run(capture, strict=True, detailed=True)
    expected = datetime(2026, 4, 20, 9, 9, 37).timestamp()
    assert [d.first_at for d in report.diagnoses] == [expected]
    assert report.timeline is not None
    assert [(m.at, m.diagnoses) for m in report.timeline.marks] == [(expected, ("d1",))]


def test_an_event_about_an_earlier_pod_of_the_same_name(tmp_path: Path) -> None:
    """It ran on a machine of its own."""
    about = {"kind": "Pod", "name": "train-x1", "namespace": "ml", "uid": "earlier"}
    evicted = kubernetes.event(
        "Evicted", "The node was low on resource: memory.", "train-x1", involvedObject=about
    )
    (tmp_path / "all.json").write_text(listed(kubernetes.pod("train-x1"), evicted))
    with open_capture(str(tmp_path)) as capture:
        (found,) = engine.run(capture).diagnoses
    assert found.rule == "pod-evicted"
    assert "node-a" not in found.headline


@pytest.mark.parametrize(
    ("path", "is_missing"), [("previous/driver-1.log", False), ("driver-1.log", True)]
)
def test_the_previous_output_of_the_head_is_no_gap(
    path: str, is_missing: bool, tmp_path: Path
) -> None:
    killed = kubernetes.terminated("Error", 1)
    (tmp_path / "p.json").write_text(
        listed(kubernetes.pod("train-head", kind="head", last=killed, restarts=1))
    )
    file = tmp_path / "train-head" / path
    file.parent.mkdir(parents=True)
    file.write_text(
        "[2026-11-22 18:52:09,100 C 8 8] (gcs_server) gcs_server.cc:9: Check failed: store\n"
    )
    with open_capture(str(tmp_path)) as capture:
        report = engine.run(capture)
    (restart,) = (d for d in report.diagnoses if d.rule == "head-restarted")
    assert [gap.what for gap in restart.gaps] == [
        "the previous output of the head's container"
    ] * is_missing


def test_the_output_of_a_container_that_kubectl_ray_log_wrote(tmp_path: Path) -> None:
    folder = tmp_path / "train-head"
    folder.mkdir()
    (folder / "stdout.log").write_text(
        'Traceback (most recent call last):\n  File "/a.py", line 3, in <module>\n    f()\nValueError: bad\n'
    )
    (folder / "raylet.out").write_text("")
    with open_capture(str(tmp_path)) as capture:
        assert [s.role for s in capture.files if s.path.endswith("stdout.log")] == ["driver"]


ACCOUNTS = "JobID|State|ExitCode|NodeList\n4710|COMPLETED|0:0|n1\n4711|COMPLETED|0:0|n2\n"
ANSWERED = '{\n "meta": {\n  "plugin": {\n   "type": "openapi/slurmdbd"\n  },\n  "Slurm": {"release": "24.05.1"}\n },\n "jobs": [\n'


@pytest.mark.parametrize("text", [ACCOUNTS[:-8], ANSWERED[:60], ANSWERED])
def test_accounts_that_are_cut_off_are_a_gap(text: str, tmp_path: Path) -> None:
    (tmp_path / "accounts.txt").write_text(text)
    with open_capture(str(tmp_path)) as capture:
        report = engine.run(capture)
    assert any(gap.what == "accounts.txt" and "cut off" in gap.why for gap in report.gaps)


def test_whole_accounts_are_no_gap(tmp_path: Path) -> None:
    (tmp_path / "accounts.txt").write_text(ACCOUNTS)
    with open_capture(str(tmp_path)) as capture:
        assert "accounts.txt" not in {gap.what for gap in engine.run(capture).gaps}

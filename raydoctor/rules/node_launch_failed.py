"""The autoscaler asked for nodes, and the cloud provider (or Kubernetes) refused.

## What you see
Tasks wait, and `monitor.log` repeats `Failed to launch 2 node(s) of type gpu-worker. (VcpuLimitExceeded): …`. The
driver prints the same with the prefix `(autoscaler +1m2s)`. `ray status` lists such failures under `Recent failures`.
If the provider creates nothing, version 2 of the autoscaler writes `Update instance REQUESTED->QUEUED (…): queue again
to launch after timeout=600s`.

## Why
The account has no quota left for the type (`VcpuLimitExceeded`, `QUOTA_EXCEEDED`), the zone has no capacity
(`InsufficientInstanceCapacity`, `ZONE_RESOURCE_POOL_EXHAUSTED`), the image does not exist, or the head is not allowed
to create machines (`UnauthorizedOperation`). On vSphere, there may be no host with enough unused GPUs. `ray up` also
ends with `Failed to setup head node.` if the machine runs but a command on it fails, most often because your computer
cannot log in by SSH.

A launcher can fail before it asks for a machine. Ray's own prints `PANIC` and `!!! Boto3 error:` if AWS denies a
request. `ray start`, `ray up` and other commands print `Usage: ray start [OPTIONS]` and `Error: Invalid value for …` if
they refuse an option, often one that a template wrote. SkyPilot then reports `Failed to start ray on the head node`.

## Confirm
- `ray status` on the head lists the failure under `Recent failures`.
- The traceback after the line in `monitor.log`, or the provider's own console, shows the provider's error.

## Fix
Follow the provider's error: raise the quota, use another zone or instance type, correct the image's name or the head's
permissions (IAM role). Until that is done, use a smaller `max_workers` or smaller requests.

## Not this when
- no type fits at all (`no-node-type-fits`).
- a later attempt succeeded (`Adding N node(s) of type …`).
- another program, not Ray's launcher, was refused by the provider (`job-failed`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import DRIVER, TRACEBACKS
from raydoctor.cluster import autoscaler, hosts
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import clause, cut
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared import waiting
from raydoctor.rules.shared.failures import ended_programs, is_certain_end, program
from raydoctor.rules.shared.traceback import Raised, parse

_LONGEST = 120
_ENDS = r"^(?:\s{0,8}(?:Error: )?|(?:[\d-]{10} [\d:,]{12}\s{1,4})?PANIC commands\.py:\d{1,5} -- )"
"""Above the last words of `ray up`, on a terminal and in a file."""
_NO_HEAD = Signal(
    "autoscaler.no_head", "Failed to setup head node.", _ENDS + r"Failed to setup head node\.", DRIVER, "  Failed to setup head node.",
    symptom=True,
)  # fmt: skip
_NOT_LISTED = Signal(
    "autoscaler.head_not_listed", "Failed to create head node.", _ENDS + r"Head node fetch timed out\. Failed to create head node\.", DRIVER,
    "Head node fetch timed out. Failed to create head node.", symptom=True,
)  # fmt: skip
"""`ray up`, 50 s after the provider accepted the request (`_private/commands.py`, 1.0 to 2.60)."""
_SSH_FAILED = Signal(
    "autoscaler.ssh_failed", "ssh: ", r"^\s{0,8}ssh: (?P<why>(?:connect to host|Could not resolve hostname) \S+[^\n]{1,200})", DRIVER,
    "ssh: connect to host 203.0.113.9 port 22: Connection timed out",
)  # fmt: skip
_SHELL = Signal(
    "autoscaler.shell", "bash: ", r"^\s{0,8}-?(?:/bin/)?bash: (?:-c: )?(?:line \d{1,6}: )?(?P<why>(?!cannot set terminal|no job control|warning: )[^\n`]{1,200}(?:`[^\n']{1,40}')?)", DRIVER,
    "bash: -c: line 1: syntax error near unexpected token `('",
)  # fmt: skip
"""What the shell of the new machine says about a command of the configuration."""
_SETUP_BEGAN = Signal(
    "autoscaler.setup_began", "] Running setup commands", r"^\s{0,8}\[\d{1,2}/\d{1,2}\] Running setup commands", DRIVER, "  [6/7] Running setup commands",
)  # fmt: skip
"""`ray up` has logged in to the machine before (`_private/updater.py`, 1.0 to 2.60)."""
_SETUP_FAILED = Signal(
    "autoscaler.setup_failed", "Error message: ", r"^\s{0,8}Error message: (?P<why>[^\n]{1,300})", DRIVER,
    "  Error message: SSH command failed.",
)  # fmt: skip
"""`ray up` (`_private/commands.py` and `updater.py`, 2.9 to 2.60)."""
_UPDATE_FAILED = (
    Signal(
        "autoscaler.update_failed", "New status:", r"(?:^|\s)New status: ?update-failed\b", DRIVER,
        "2026-11-21 11:40:16,543 ERR updater.py:158 -- New status: update-failed",
    ),
    Signal(
        "autoscaler.update_failed", "NodeUpdater: ", r"^NodeUpdater: (?:\S{1,200}: )?Error updating (?P<why>[^\n]{1,400})", DRIVER,
        "NodeUpdater: i-0b5c1: Error updating (Exit Status 255) ssh -i key.pem ubuntu@203.0.113.9", symptom=True,
    ),
    Signal(
        "autoscaler.update_failed", "/logs/", r"^ {0,4}\d{1,3}(?:\.\d{1,3}){3}: (?P<type>[\w.-]{1,100}), (?P<log>/\S{1,300}/logs/\S{1,100}\.out)$", DRIVER,
        " 10.0.0.136: gpu_node, /tmp/ray/session_2026-11-21_00-44-09_860475_4058/logs/i-0a8f78be9387.out",
    ),
)  # fmt: skip
"""A node that the launcher could not set up (`_private/updater.py`, 1.0 to 2.60; 0.3 to 0.8; and in the status of 1.2 to 1.4)."""
_UP_TO_DATE = Signal(
    "autoscaler.up_to_date", "New status:", r"(?:^|\s)New status: ?up-to-date\b", DRIVER,
    "2026-11-21 11:41:16,543 INFO updater.py:158 -- New status: up-to-date",
)  # fmt: skip
_COMMAND_FAILED = Signal(
    "autoscaler.command_failed", " failed with exit code ", r"\bSetup command `?(?P<command>[^`\n]{1,300})`? failed with exit code (?P<code>\d{1,3})\b", DRIVER,
    "ERR updater.py:163 -- Setup command `pip install boto3` failed with exit code 1. stderr: no such package",
)  # fmt: skip
_RUN_INSTANCES = Signal(
    "autoscaler.run_instances", "when calling the RunInstances operation",
    r"^(?:botocore\.exceptions\.\w{1,60}: )?An error occurred \((?P<code>[\w.]{1,80})\) when calling the RunInstances operation[^\n:]{0,60}: (?P<why>[^\n]{1,300})",
    DRIVER,
    "botocore.exceptions.ClientError: An error occurred (UnauthorizedOperation) when calling the RunInstances operation: You are not authorized "
    "to perform this operation.", symptom=True,
)  # fmt: skip
_ROUNDS = Signal(
    "autoscaler.rounds", "StandardAutoscaler", r"^StandardAutoscaler(?: \[|: )", DRIVER, "StandardAutoscaler: Launching 5 new nodes"
)  # fmt: skip
"""What the autoscaler of 0.5 to 1.0 logs in each round: the error above it is that of a thread which starts nodes."""
_GAVE_UP = tuple(
    Signal(
        "autoscaler.gave_up", find, rf"^\s{{0,8}}{words}", DRIVER, sample, symptom=True,
    )
    for find, words, sample in (
        ("Failed to launch instances. Max attempts exceeded.", r"Failed to launch instances\. Max attempts exceeded\.", "  Failed to launch instances. Max attempts exceeded."),
        ("create_instances: Max attempts (", r"create_instances: Max attempts \(\d{1,4}\) exceeded\.", "create_instances: Max attempts (5) exceeded."),
    )
)  # fmt: skip
"""AWS (`_private/aws/node_provider.py`, 1.0 to 2.60; and 0.8)."""
_PANIC = Signal(
    "autoscaler.panic", "PANIC ", r"(?:^|\s)PANIC (?:commands|config|utils?|scripts|providers|updater|command_runner|node_provider)\.py:\d{1,5} -- (?P<why>[^\n]{1,400})", DRIVER,
    "2026-11-21 11:43:16,160 PANIC utils.py:102 -- Failed to fetch IAM instance profile data for ray-autoscaler-v1 from AWS.",
)  # fmt: skip
"""The launcher's last message (`cli_logger.py`, 1.0 to 2.60), as it is logged where the output is not a terminal."""
_BOTO = Signal(
    "autoscaler.boto", "Boto3 error:", r"(?:^|\s)!!! Boto3 error:$", DRIVER, "!!! Boto3 error:",
)  # fmt: skip
_AWS_SAID = Signal(
    "autoscaler.aws_said", "An error occurred (",
    r"(?:^|\s)(?P<why>An error occurred \(\w{1,100}\) when calling the \w{1,100} operation(?: \([^)\n]{1,60}\))?: [^\n]{1,400})", DRIVER,
    "An error occurred (AccessDenied) when calling the GetInstanceProfile operation: not authorized",
)  # fmt: skip
"""Below `Boto3 error:`, which the launcher prints before it gives up (`_private/aws/utils.py`)."""
_USAGE = Signal(
    "cli.usage", "Usage: ray ", r"^\s{0,8}Usage: ray (?P<command>[a-z][a-z-]{1,30}(?: [a-z][a-z-]{1,30})?) \[OPTIONS\]", DRIVER,
    "Usage: ray start [OPTIONS]",
)  # fmt: skip
_USAGE_ERRORS = tuple(
    Signal("cli.usage_error", f"Error: {find}", rf"^\s{{0,8}}Error: (?P<why>{find}[^\n]{{1,300}})", DRIVER, f"Error: {sample}")
    for find, sample in (
        ("Invalid value for ", "Invalid value for '--num-cpus': '500m' is not a valid integer."),
        ("No such option", "No such option: --num-cpu Did you mean --num-cpus?"),
        ("No such command", "No such command 'strat'."),
        ("Missing ", "Missing argument 'CLUSTER_CONFIG_FILE'."),
        ("Got unexpected extra argument", "Got unexpected extra argument (head)"),
        ("Option '--", "Option '--port' requires an argument."),
        ("no such option", "no such option: --num-cpu"),
    )
)  # fmt: skip
"""What click prints for a command line that it refuses."""
_OF_USAGE = 6
"""Lines from the usage down to the error."""
_SKYPILOT = tuple(
    Signal("launcher.skypilot", find, pattern_, DRIVER, sample)
    for find, pattern_, sample in (
        (
            "Failed to start ray on the ", r"(?:^|: )Failed to start ray on the (?P<node>head|worker) nodes? \(exit code (?P<code>\d{1,3})\)",
            "RuntimeError: Failed to start ray on the head node (exit code 1). Error: ",
        ),
        (
            "Failed to set up SkyPilot runtime on cluster", r"(?:^|\s)Failed to set up SkyPilot runtime on cluster\b",
            "E 10-09 17:42:55 provisioner.py:740] Failed to set up SkyPilot runtime on cluster.  View logs: sky api logs",
        ),
    )
)  # fmt: skip
"""SkyPilot's launcher (`sky/provision/instance_setup.py` and `provisioner.py`)."""
_CREATES = frozenset({"create_node", "_create_node", "_launch_node", "_launch_node_inner"})
"""Functions of providers and of the launcher that start machines."""
_LAUNCHER = pattern(
    r"/ray/autoscaler/(?:_private/node_launcher|v2/instance_manager/node_provider)\.py$"
)
_OF_CLOUDS = (
    "botocore.", "boto3.", "googleapiclient.", "google.auth.", "google.api_core.", "azure.", "msrestazure.", "pyVmomi.", "com.vmware.",
)  # fmt: skip
"""Beginnings of the exceptions of providers' own libraries."""
_ADVICE = (
    (
        pattern(r"limit|quota", re.IGNORECASE),
        "Raise the provider's quota for the instance type of {name}, or lower max_workers of {name} to what the quota allows",
    ),
    (
        pattern(r"capacity|exhausted|stockout", re.IGNORECASE),
        "Use another zone or instance type for {name}: the provider has no free machine of this type in this zone",
    ),
    (
        pattern(r"unauthori[sz]ed|forbidden|denied|credential", re.IGNORECASE),
        "Give the head permission to start machines (its IAM role or service account)",
    ),
    (
        pattern(r"image|ami\b|notfound|not found", re.IGNORECASE),
        "Correct the image (or subnet, key, security group) of {name}",
    ),
)


@rule(
    tier="root",
    severity="error",
    rank=77,
    explains=("autoscaler", "program"),
    caused_by=("daemon", "gcs", "host", "raylet"),
    looks_for=(
        autoscaler.LAUNCH_FAILED, autoscaler.INSTANCES_FAILED, autoscaler.ADDING, autoscaler.ATTEMPT_FAILED, autoscaler.STARTED, autoscaler.NO_GPU_CARDS, autoscaler.GPU_CARDS,
        autoscaler.STUCK, autoscaler.JOINED, _NO_HEAD, _NOT_LISTED, _SSH_FAILED, _SHELL, _SETUP_BEGAN, _SETUP_FAILED, *_GAVE_UP, _RUN_INSTANCES, _ROUNDS,
        _PANIC, _BOTO, _AWS_SAID, _USAGE, *_USAGE_ERRORS, *_SKYPILOT, *_UPDATE_FAILED, _UP_TO_DATE, _COMMAND_FAILED,
    ),
)  # fmt: skip
def node_launch_failed(case: Case) -> Iterator[Finding]:
    """One finding per node type whose last attempt failed; one for GPUs that vSphere does not have."""
    by_type = evidence.grouped(case.of("autoscaler.launch_failed"), lambda e: e["type"])
    for name, failures in by_type.items():
        shown = waiting.one_role(failures)
        added = [e for e in waiting.one_role(case.of("autoscaler.adding")) if e["type"] == name]
        if not added or _place(added[-1]) < _place(shown[-1]):
            yield _finding(case, name, shown, failures)
    short = [e for e in case.of("autoscaler.no_gpu_cards") if e.level]
    found = case.of("autoscaler.gpu_cards")
    if short and not any(_place(e) > _place(short[-1]) for e in found):
        yield _without_cards(case, short)
    attempts = waiting.one_role(case.of("autoscaler.attempt_failed"))
    started = waiting.one_role(case.of("autoscaler.started"))
    if attempts and not by_type and not any(_place(e) > _place(attempts[-1]) for e in started):
        yield _of_attempts(case, attempts)
    if not by_type and not attempts:
        commands = list(_of_commands(case))
        yield from commands or [*_of_launchers(case)] or _of_rounds(case)
    for name, stuck in autoscaler.unjoined(case, "REQUESTED").items():
        if name not in by_type:
            yield _not_created(case, name, stuck)
    heads = [*_without_head(case), *_not_listed(case)]
    refused = heads or [*_given_up(case)] or [*_wrong_options(case)] or [*_not_set_up(case)]
    yield from refused or _of_skypilot(case)


def _not_created(case: Case, name: str, events: list[Event]) -> Finding:
    """Nodes that version 2 of the autoscaler requested and the provider did not create."""
    last = events[-1]
    waited = next((e["waited"] for e in reversed(events) if e["waited"]), "")
    refused = next((e["refused"] for e in reversed(events) if e["refused"]), "")
    nodes = len({e["id"] for e in events})
    if refused:
        what = f"did not create {evidence.many(nodes, 'node')} of type {name}: {cut(refused, _LONGEST)}"
    else:
        within = f" within {waited} s" if waited else ""
        what = f"created no node of type {name}{within} after the autoscaler had requested {evidence.many(nodes, 'node')}"
    return Finding(
        f"The provider {what}",
        (Link(last, "the autoscaler gives up on the request, or repeats it"),),
        explains=(Entity("autoscaler", name), Entity("autoscaler", "launch")),
        count=nodes,
        severity=waiting.severity(case),
        remedies=(
            Remedy(
                f"Find what holds the nodes of {name} back: on KubeRay the operator, maxReplicas, a quota, or no machine with room",
                (
                    "kubectl get pods,events --sort-by=.metadata.creationTimestamp   # pods that are Pending, FailedScheduling, FailedCreate",
                    "kubectl logs deploy/kuberay-operator --tail=50; kubectl describe raycluster",
                    "grep -B3 -A20 'Error launching nodes' /tmp/ray/session_latest/logs/monitor.log   # on the head, or kubectl logs HEAD -c autoscaler",
                ),
                doc=autoscaler.AUTOSCALING_DOC,
                finds_cause=True,
            ),
            *(_remedies(name, refused) if refused else ()),
        ),
        covers=tuple(e for e in case.of(autoscaler.STUCK.kind) if e["type"] == name and e["before"] == "REQUESTED"),
    )  # fmt: skip


def _of_commands(case: Case) -> Iterator[Finding]:
    """Ends of `ray up` and of the autoscaler by an exception of the provider's library."""
    gave_up = [e for e in case.of(_GAVE_UP[0].kind) if not evidence.goes_on(case, e)]
    for ending, raised in ended_programs(case):
        is_known = raised.type.startswith(_OF_CLOUDS)
        is_cut = not raised.type and any(f.function in _CREATES for f in raised.frames)
        if not ((is_known or is_cut) and _is_of_launcher(raised)):
            continue
        certain = is_certain_end(ending) and is_known
        what = cut(str(raised), _LONGEST) if is_known else "the console cut off its reason"
        yield Finding(
            f"The provider refused a request of Ray's cluster launcher: {what}",
            (
                Link(
                    ending,
                    f"the provider's library raised {raised.name or 'an exception'}",
                    raised.code,
                ),
                *(Link(e, "the launcher gives up after its last attempt") for e in gave_up[:1]),
            ),
            explains=(Entity("autoscaler", "launch"), program(ending)),
            severity=None if certain else "warning",
            remedies=tuple(_remedies("the head or the node type", str(raised))),
            covers=tuple(gave_up),
        )
        return
    for event in gave_up[:1]:
        yield Finding(
            "The provider refused each attempt of Ray's cluster launcher to start a machine",
            (Link(event, "the launcher gives up after its last attempt"),),
            explains=(Entity("autoscaler", "launch"),),
            remedies=tuple(_remedies("the head or the node type", "")),
            covers=tuple(gave_up),
        )


def _of_rounds(case: Case) -> Iterator[Finding]:
    """Refusals of AWS of which a paste has lost the traceback, in the log of an old autoscaler."""
    rounds = {e.source for e in case.of(_ROUNDS.kind)}
    refused = [e for e in case.of(_RUN_INSTANCES.kind) if e.source in rounds and not e["who"]]
    if refused:
        last = refused[-1]
        why = f"{last['code']}: {cut(last['why'], _LONGEST)}"
        yield Finding(
            f"The provider refused to start nodes: {why}",
            (Link(last, "the provider's library raised ClientError for the request"),),
            explains=(Entity("autoscaler", "launch"),),
            count=evidence.total(refused),
            remedies=tuple(_remedies("the node type", why)),
            covers=(*refused, *(e for e in case.of("log.error") if e.source is last.source)),
        )


def _of_launchers(case: Case) -> Iterator[Finding]:
    """Exceptions of the provider's library that a thread of the autoscaler logs: it tries again."""
    ended = {ending.line for ending, _ in ended_programs(case)}
    for event in case.of(*TRACEBACKS):
        raised = parse(event.message) if event["who"] in ("", "autoscaler") else None
        if (
            raised is None
            or event.line in ended
            or not raised.type.startswith(_OF_CLOUDS)
            or not any(_LAUNCHER.search(frame.file.replace("\\", "/")) for frame in raised.frames)
        ):
            continue
        yield Finding(
            f"The provider refused to start nodes: {cut(str(raised), _LONGEST)}",
            (Link(event, f"the provider's library raised {raised.name} in a launcher of the autoscaler", raised.code),),
            explains=(Entity("autoscaler", "launch"),),
            severity="warning",
            remedies=tuple(_remedies("the node type", str(raised))),
            covers=(event,),
        )  # fmt: skip
        return


def _is_of_launcher(raised: Raised) -> bool:
    return any("/ray/autoscaler/" in frame.file.replace("\\", "/") for frame in raised.frames)


def _without_head(case: Case) -> Iterator[Finding]:
    """`ray up` that could not set up the head: the machine runs, but a command on it failed."""
    for event in case.of(_NO_HEAD.kind)[:1]:
        above = [
            e for e in case.of(_SSH_FAILED.kind, _SETUP_FAILED.kind) if e.source is event.source
        ]
        began = [e for e in case.of(_SETUP_BEGAN.kind) if e.source is event.source]
        shell = [
            e
            for e in case.of(_SHELL.kind)
            if e.source is event.source and 0 < event.line - e.line <= _LINES_OF_END
        ]
        commands = [e for e in case.of(_COMMAND_FAILED.kind) if e.source is event.source]
        why = next((e for e in above if e.kind == _SSH_FAILED.kind), None)
        why = why or next(iter((*shell, *commands[-1:], *above[-1:])), None)
        said = f": {_said(why)}" if why else ""
        yield Finding(
            f"ray up could not set up the head node{said}",
            (
                *((Link(why, "a command on the new machine failed"),) if why else ()),
                Link(event, "ray up ends"),
            ),
            explains=(Entity("autoscaler", "launch"), *(program(e) for e in case.endings.values() if e.source is event.source)),
            remedies=(
                *(() if began or shell else (_LOG_IN,)),
                Remedy(
                    "Let the security group or firewall of the machine accept port 22 from this computer's address"
                )
                if why and why.kind == _SSH_FAILED.kind
                else Remedy(
                    "Correct the command in setup_commands or head_setup_commands that fails",
                    ("ray up cluster.yaml -vv   # prints each command and its output",) if began or shell else (),
                ),
            ),
            covers=(event, *above, *shell, *commands, *(e for e in case.of(_UPDATE_FAILED[0].kind) if e.source is event.source)),
        )  # fmt: skip


_LINES_OF_END = 12
"""Lines from what the shell says down to the last words of `ray up`."""
_LOG_IN = Remedy(
    "Log in to the machine by hand with the key and user of the cluster's configuration (auth), from this computer",
    (
        "ray attach cluster.yaml -vv",
        "ray up cluster.yaml -vv   # prints each command and its output",
    ),
    doc=autoscaler.AUTOSCALING_DOC,
)


def _said(event: Event) -> str:
    """Why the set-up failed, as the shell, the launcher or ssh says it."""
    if event["command"]:
        return f"{cut(event['command'], _LONGEST)} ended with exit code {event['code']}"
    why = event["why"].rstrip(".").replace("`", "'")
    return f"bash: {why}" if event.kind == _SHELL.kind else why


def _not_set_up(case: Case) -> Iterator[Finding]:
    """A node on which a command of the launcher failed, in a paste that does not show its end."""
    failed = [e for e in case.of(_UPDATE_FAILED[0].kind) if e.source.is_excerpt]
    for event in failed[-1:]:
        source = event.source
        set_up = [e for e in case.of(_UP_TO_DATE.kind) if e.source is source]
        if any(e.line > event.line for e in set_up):
            continue
        commands = [e for e in case.of(_COMMAND_FAILED.kind) if e.source is source]
        refused = [e for e in case.of(_SSH_FAILED.kind) if e.source is source]
        why = (
            f"ssh: {refused[-1]['why']}"
            if refused
            else f"{cut(commands[-1]['command'], _LONGEST)} ended with exit code {commands[-1]['code']}"
            if commands
            else f"{event['type']} (the head has its output: {event['log']})"
            if event["log"]
            else "a command on it failed"
        )
        yield Finding(
            f"Ray's cluster launcher could not set up a node: {why}",
            (Link(event, "the launcher gives up on the node"), *(Link(e, "a command on the node failed") for e in (*refused, *commands)[-1:])),
            explains=(Entity("autoscaler", "launch"), *(program(e) for e in case.endings.values() if e.source is source)),
            count=len(failed),
            remedies=(
                Remedy(
                    "Log in to the node by hand with the key and user of the cluster's configuration (auth), from the machine that runs the launcher or the autoscaler",
                    ("ray up cluster.yaml -vv   # prints each command and its output", "ray monitor cluster.yaml   # the same for nodes that the autoscaler starts"),
                    doc=autoscaler.AUTOSCALING_DOC,
                ),
                Remedy("Let the firewall of the node accept port 22 from that machine, and wait until the machine has booted")
                if refused
                else Remedy("Correct the command in setup_commands or worker_setup_commands that fails"),
            ),
            covers=(*failed, *commands, *refused, *(e for e in case.of(*TRACEBACKS, "log.error", "log.failure") if e.source is source)),
        )  # fmt: skip


def _not_listed(case: Case) -> Iterator[Finding]:
    """`ray up` that requested a head and did not find it among the provider's machines in time."""
    events = [e for e in case.of(_NOT_LISTED.kind) if not e["who"]]
    if not events:
        return
    yield Finding(
        "ray up gave up on the new head node: the provider accepted the request, but did not list the machine within 50 s",
        (Link(events[0], "ray up ends"),),
        explains=(Entity("autoscaler", "launch"), *(program(e) for e in case.endings.values() if e.source is events[0].source)),
        remedies=(
            Remedy(
                "Look at the machine in the provider's console: it may have failed, lack a quota, or still be starting",
                (
                    "ray down cluster.yaml   # first, as the machine may exist and cost",
                    "ray up cluster.yaml --no-config-cache -vv",
                ),
                doc=autoscaler.AUTOSCALING_DOC,
                risk="disruptive",
            ),
        ),
        covers=tuple(events),
    )  # fmt: skip


def _of_attempts(case: Case, attempts: list[Event]) -> Finding:
    """Refusals of the provider, of which the autoscaler has not yet given up the last."""
    last = attempts[-1]
    why = f"{last['category']}: {last['why']}"
    return Finding(
        f"The provider refused to start nodes in {evidence.many(evidence.total(attempts), 'attempt')}: {cut(why, _LONGEST)}",
        (Link(last, f"the provider refused {last['call']}, and the autoscaler will try again"),),
        explains=(Entity("autoscaler", "launch"),),
        count=evidence.total(attempts),
        severity="warning",
        remedies=tuple(_remedies("the node type", why)),
        covers=tuple(case.of("autoscaler.attempt_failed")),
    )


def _without_cards(case: Case, short: list[Event]) -> Finding:
    pool = next((e["pool"] for e in short if e["pool"]), "")
    asked = next((e for e in reversed(short) if e["asked"]), None)
    lacks = f": GPUs for {asked['enough']} of {asked['asked']} nodes" if asked else ""
    hosts = f"no host of pool {pool}" if pool else "no host"
    return Finding(
        f"vSphere cannot start a node, because {hosts} has enough unused GPUs{lacks}",
        (Link(short[-1], "the autoscaler found no host with enough unused GPUs, and launches no node"),),
        explains=(Entity("autoscaler", "launch"),),
        count=evidence.total(short),
        severity=waiting.severity(case),
        remedies=(
            Remedy(
                "Remove the VMs that hold the GPUs, or lower max_workers of the node type to the number of free GPUs",
                ("grep 'is used by VM' /tmp/ray/session_latest/logs/monitor.log   # on the head: which VM holds which GPU", "ray status   # nodes of this cluster"),
                doc=autoscaler.AUTOSCALING_DOC,
            ),
        ),
        covers=tuple(short),
    )  # fmt: skip


def _given_up(case: Case) -> Iterator[Finding]:
    """A launcher that ends with a message of its own: wrong credentials, permissions or configuration."""
    panics = [e for e in case.of(_PANIC.kind) if not e["who"]]
    boto = [e for e in case.of(_BOTO.kind) if not e["who"]]
    if not (panics or boto):
        return
    first = (panics or boto)[0]
    source = first.source
    said = [
        e for e in case.of(_AWS_SAID.kind) if e.source is source and boto and e.line > boto[0].line
    ][:1]
    why = (said or panics)[0]["why"] if said or panics else "AWS refused a request"
    yield Finding(
        f"Ray's cluster launcher ended: {cut(clause(why), _LONGEST)}",
        (Link(first, "the launcher ends"), *(Link(e, "AWS's reply") for e in said if e is not first)),
        explains=(Entity("autoscaler", "launch"), *(program(e) for e in case.endings.values() if e.source is source)),
        remedies=tuple(_of_refusal(why)),
        covers=(*panics, *boto, *said, *(e for e in case.of("log.error") if e.source is source)),
    )  # fmt: skip


def _of_refusal(why: str) -> Iterator[Remedy]:
    if _CREDENTIALS.search(why):
        yield Remedy(
            "Give the account that runs the launcher this permission, or renew its credentials: on the head, that is the head's own IAM role",
            ("aws sts get-caller-identity   # where the launcher runs",),
            doc=autoscaler.AUTOSCALING_DOC,
        )  # fmt: skip
    yield Remedy(
        "Correct what the message names in the cluster's configuration or in the command",
        ("ray up cluster.yaml -vv   # prints each step",),
        doc=autoscaler.AUTOSCALING_DOC,
    )


_CREDENTIALS = pattern(
    r"denied|unauthori[sz]ed|not authorized|forbidden|expired|credential|token", re.IGNORECASE
)


def _wrong_options(case: Case) -> Iterator[Finding]:
    """A command of Ray that refuses its command line: the node, cluster or job is never started."""
    usages = case.of(_USAGE.kind)
    for event in case.of(_USAGE_ERRORS[0].kind):
        above = [
            e for e in usages if e.source is event.source and 0 < event.line - e.line <= _OF_USAGE
        ]
        if not above or event["who"]:
            continue
        command = above[-1]["command"]
        yield Finding(
            f"ray {command} refused its options and did nothing: {cut(clause(event['why']), _LONGEST)}",
            (Link(event, f"ray {command} ends with a usage error"),),
            explains=(Entity("autoscaler", "launch"), *(program(e) for e in case.endings.values() if e.source is event.source)),
            remedies=(
                Remedy(
                    "Correct the option in the command, or in the template or launcher that writes it",
                    (paste.shell("ray {command:id} --help", command=command.partition(" ")[0]),),
                ),
            ),
            covers=(*above, event, *case.of(_SKYPILOT[0].kind), *(e for e in case.of("log.error") if e.source is event.source and e.line == event.line)),
        )  # fmt: skip
        return


def _of_skypilot(case: Case) -> Iterator[Finding]:
    """SkyPilot's launcher, which sets Ray up on its machines, and whose output shows no cause."""
    events = [e for e in case.of(_SKYPILOT[0].kind) if not e["who"]]
    if not events or evidence.goes_on(case, events[-1], is_line=True):
        return
    named = next((e for e in events if e["node"]), None)
    what = (
        f"start Ray on a {named['node']} node (exit code {named['code']})"
        if named
        else "set up its runtime on the cluster"
    )
    yield Finding(
        f"SkyPilot could not {what}",
        (Link(events[0], "SkyPilot's launcher gives up"),),
        explains=(Entity("autoscaler", "launch"), *(program(e) for e in case.endings.values() if e.source is events[0].source)),
        caused_by=(Entity("gcs", "gcs"), Entity("daemon", "gcs_server"), Entity("raylet", "local"), hosts.entity("head")),
        remedies=(
            Remedy(
                "Read the output of the command that failed, which SkyPilot keeps",
                (
                    "grep -n -e Error -e Traceback ~/sky_logs/sky-*/provision.log | tail   # of this launch",
                    "tail -n 50 /tmp/ray_skypilot/session_latest/logs/raylet.out   # on the node",
                ),
                finds_cause=True,
            ),
        ),
        covers=tuple(events),
    )  # fmt: skip


def _place(event: Event) -> tuple[float, int]:
    """Time, else the line: both events are from files of one role."""
    return (event.at or 0.0, event.line)


def _finding(case: Case, name: str, shown: list[Event], failures: list[Event]) -> Finding:
    first, last = shown[0], shown[-1]
    attempts = evidence.total(shown)
    why = f"{last['category']}: {last['why']}" if last["category"] else last["why"]
    return Finding(
        f"The provider refused to start {last['count']} {name} node{'' if last['count'] == '1' else 's'} in "
        f"{evidence.many(attempts, 'attempt')}" + (f": {cut(why, _LONGEST)}" if why else ""),
        (
            Link(first, f"the autoscaler could not start {name}"),
            *(Link(e, "the last attempt failed as well") for e in [last] if last is not first),
        ),
        explains=(Entity("autoscaler", name), Entity("autoscaler", "launch")),
        count=attempts,
        severity=waiting.severity(case),
        remedies=tuple(_remedies(name, why)),
        covers=tuple(failures),
    )


def _remedies(name: str, why: str) -> Iterator[Remedy]:
    for symptom, advice in _ADVICE:
        if symptom.search(why):
            yield Remedy(advice.replace("{name}", name), doc=autoscaler.AUTOSCALING_DOC)
            break
    yield Remedy(
        f"Read the provider's error for {name}",
        (
            "ray status   # lists it under Recent failures",
            "grep -A30 'Failed to launch' /tmp/ray/session_latest/logs/monitor.log   # on the head",
        ),
        doc=autoscaler.AUTOSCALING_DOC,
    )


# ------------------------------------------------------------------ examples


_STAMP = "2026-11-21 11:{},905\tINFO monitor.py:438 -- "
_FAILED = autoscaler.LAUNCH_FAILED.sample
_NO_CARDS = (
    f"2026-11-21 11:19:52,374\tERROR gpu_utils.py:114 -- {autoscaler.NO_GPU_CARDS.sample}\n"
    "2026-11-21 11:19:52,374\tWARNING node_provider.py:807 -- No enough available GPU cards to assigned to nodes expected enough for 1 "
    "nodes, only enough for 0 nodes, gpu_ids_map_array []\n"
)
_LAUNCHERS = (
    'Traceback (most recent call last):\n  File "/venv/lib/python3.8/site-packages/ray/autoscaler/_private/node_launcher.py", line 85, in run\n'
    "    self._launch_node(config, count, node_type)\n"
    '  File "/venv/lib/python3.8/site-packages/azure/mgmt/resource/operations.py", line 30, in create_or_update\n    raise exp\n'
    "msrestazure.azure_exceptions.CloudError: Azure Error: QuotaExceeded\n"
)
_UNANSWERED = "Update instance REQUESTED->QUEUED (id=7c1e, type=gpu-group, cloud_instance_id=, ray_id=): queue again to launch after timeout=600s"
_THRICE = "".join(f"{_STAMP.format(f'19:5{s}')}{_FAILED}\n" for s in (2, 4, 6))

EXAMPLES: tuple[Example, ...] = (
    Example(
        "the account has no quota left",
        {"logs/monitor.log": _THRICE, **QUIET_LOGS},
        says=("cpu-small", "VcpuLimitExceeded", "3 attempts", "quota"),
    ),
    console(
        "only the driver's output, with autoscaler v2",
        "(autoscaler +36s) Failed to launch 1 nodes of type gpu: InsufficientInstanceCapacity in us-west-2a\n"
        * 2,
        says=("gpu", "zone"),
    ),
    console(
        "vSphere has no host with a free GPU",
        _NO_CARDS,
        says=("no host of pool frozen-vms", "GPUs for 0 of 1 nodes"),
    ),
    Example(
        "a host with a free GPU was found later, and a note quotes the words",
        {
            "logs/monitor.log": f"{_NO_CARDS}{_STAMP.format('20:10')}{autoscaler.GPU_CARDS.sample}\n",
            "driver.log": f"{autoscaler.NO_GPU_CARDS.sample}\nepoch 2\n",
            **QUIET_LOGS,
        },
    ),
    Example(
        "the second attempt succeeded",
        {
            "logs/monitor.log": f"{_THRICE}{_STAMP.format('20:10')}{autoscaler.ADDING.sample}\n",
            **QUIET_LOGS,
        },
    ),
    Example(
        "a task prints the message, and the log has the launcher's template",
        {
            "driver.log": f"(check pid=12) {_FAILED}\n",
            "logs/monitor.log": f"{_STAMP.format('19:51')}NodeLauncher0: Failed to launch {{}} node(s) of type cpu-small.\n",
            **QUIET_LOGS,
        },
    ),
    Example(
        "AWS refuses every attempt, and the autoscaler tries again",
        {
            "logs/monitor.log": f"{_STAMP.format('19:51')}{autoscaler.ATTEMPT_FAILED.sample}\n" * 2,
            **QUIET_LOGS,
        },
        says=("2 attempts", "InsufficientInstanceCapacity", "Use another zone"),
        severity="warning",
    ),
    Example(
        "AWS refuses one subnet, and the next one has room",
        {
            "logs/monitor.log": f"{_STAMP.format('19:51')}{autoscaler.ATTEMPT_FAILED.sample}\n"
            f"{_STAMP.format('19:53')}{autoscaler.STARTED.sample}\n",
            **QUIET_LOGS,
        },
    ),
    console(
        "version 2 of the autoscaler gets no node",
        f"2026-11-21 10:05:59,820\tINFO instance_manager.py:263 -- {_UNANSWERED}\n",
        says=("no node of type gpu-group within 600 s", "kuberay-operator"),
    ),
    console(
        "the API server refuses the request",
        "2026-11-21 10:05:59,820 - INFO - Update instance REQUESTED->ALLOCATION_FAILED (id=7c1e, type=gpu-group, cloud_instance_id=, ray_id=): "
        "launch failed with LaunchNodeError(node_type=gpu-group, count=1, request_id=5f): 403 Client Error: Forbidden\n",
        says=("403 Client Error: Forbidden", "permission"),
    ),
    console(
        "the node joins after the second request, and a task prints such a line",
        f"2026-11-21 10:05:59,820\tINFO instance_manager.py:263 -- {_UNANSWERED}\n"
        f"2026-11-21 10:07:59,820\tINFO instance_manager.py:263 -- {autoscaler.JOINED.sample}\n(check pid=12) {_UNANSWERED.replace('gpu-', 'cpu-')}\n",
    ),
    console(
        "ray up has no credentials",
        'Traceback (most recent call last):\n  File "/venv/bin/ray", line 8, in <module>\n    sys.exit(main())\n'
        '  File "/venv/lib/python3.11/site-packages/ray/autoscaler/_private/aws/config.py", line 700, in _resource\n'
        "    return boto3.resource(\nbotocore.exceptions.NoCredentialsError: Unable to locate credentials\n",
        says=("Unable to locate credentials",),
    ),
    console(
        "a launcher's traceback, pasted with empty lines between, above other output",
        f"{_LAUNCHERS.replace(chr(10), chr(10) * 2)}Message: two errors occurred\n\nException Details:\n",
        says=("The provider refused to start nodes", "QuotaExceeded"),
        severity="warning",
    ),
    console(
        "an old autoscaler may not start machines",
        f"{_RUN_INSTANCES.sample}\n\n{_ROUNDS.sample}\n",
        says=("refused to start nodes: UnauthorizedOperation", "IAM role"),
    ),
    console(
        "a program's own use of the same library",
        'Traceback (most recent call last):\n  File "/app/etl.py", line 8, in <module>\n    s3.get_object(Bucket="b", Key="k")\n'
        "botocore.exceptions.NoCredentialsError: Unable to locate credentials\n",
        roots=("job-failed",),
    ),
    console(
        "ray up cannot log in to the head",
        f"{_SSH_FAILED.sample}\n    SSH still not available (SSH command failed.), retrying in 5 seconds.\n  New status: update-failed\n  !!!\n"
        f"{_SETUP_FAILED.sample}\n  !!!\n\n{_NO_HEAD.sample}\n",
        says=("connect to host 203.0.113.9 port 22", "port 22"),
    ),
    *(
        console(
            f"the provider does not list the new head in time, {version}",
            f"2026-11-21 15:29:31,574 INFO commands.py:640 -- Fetching the new head node\n{line}\n",
            says=("did not list the machine within 50 s", "ray down cluster.yaml"),
        )
        for version, line in (
            (
                "as Ray logs it",
                f"2026-11-21 15:30:26,453 PANIC commands.py:643 -- {_NOT_LISTED.sample}",
            ),
            ("as Ray prints it", f"{_NOT_LISTED.sample}\nError: {_NOT_LISTED.sample}"),
        )
    ),
    console(
        "a program quotes the time-out",
        f"(notes pid=12) {_NOT_LISTED.sample}\nwe had: {_NOT_LISTED.sample}\nloss 0.1\n",
    ),
    console(
        "ssh fails while the machine starts, and a task quotes the last words of ray up",
        f"{_SSH_FAILED.sample}\n  New status: up-to-date\n(notes pid=12) {_NO_HEAD.sample.strip()}\n",
    ),
    console(
        "Anyscale's autoscaler finds no machine",
        f"{autoscaler.INSTANCES_FAILED.sample}\n",
        says=("m5.large", "InsufficientInstanceCapacity", "another zone"),
    ),
    console(
        "AWS refuses each attempt of ray up",
        f"  create_instances: Attempt failed with An error occurred (VcpuLimitExceeded), retrying.\n{_GAVE_UP[0].sample}\n",
        says=("refused each attempt",),
    ),
    console(
        "an old autoscaler gives up, and the console ends within the traceback",
        f"2026-11-21 11:19:52,374\tERROR node_provider.py:302 -- {_GAVE_UP[1].sample}\n"
        "2026-11-21 11:19:52,374\tERROR autoscaler.py:349 -- Launch failed\nTraceback (most recent call last):\n"
        '  File "/venv/site-packages/ray/autoscaler/aws/node_provider.py", line 230, in create_node\n'
        "    self._create_node(node_config, tags, count)\n",
        says=("the console cut off its reason",),
        severity="warning",
    ),
    console(
        "AWS denies the head a request of the launcher",
        f"{_PANIC.sample}\nError code: AccessDenied\n2026-11-21 11:43:16,161 ERR utils.py:104 -- {_BOTO.sample}\n"
        f"2026-11-21 11:43:16,161 PANIC utils.py:106 -- {_AWS_SAID.sample}\n",
        says=("GetInstanceProfile operation: not authorized", "aws sts get-caller-identity"),
    ),
    console(
        "the launcher's configuration is wrong, in a terminal",
        f"  {_BOTO.sample}\n  {_AWS_SAID.sample}\n  !!!\n",
        says=("launcher ended: An error occurred (AccessDenied)",),
    ),
    console(
        "a program asks AWS itself, and logs its own panic",
        f"{_AWS_SAID.sample}\n2026-11-21 11:43:16,160 PANIC engine.py:102 -- too hot\nstep 2\n",
    ),
    *(
        console(
            f"a command of Ray refuses its command line: {signal.find}",
            f"{_USAGE.sample}\nTry 'ray start --help' for help.\n\n{signal.sample}\n",
            says=("ray start refused its options",),
        )
        for signal in _USAGE_ERRORS
    ),
    console(
        "SkyPilot passes an option that ray start refuses",
        f"{_SKYPILOT[0].sample}\n===== stdout ===== \n{_USAGE.sample}\nTry 'ray start --help' for help.\n\n{_USAGE_ERRORS[0].sample}\n",
        says=("'--num-cpus': '500m'",),
    ),
    console(
        "another program refuses its command line",
        f"Usage: train.py [OPTIONS]\nTry 'train.py --help' for help.\n\n{_USAGE_ERRORS[0].sample}\n",
        logs=QUIET_LOGS,
    ),
    console(
        "SkyPilot could not set up its runtime",
        f"{_SKYPILOT[1].sample}\n",
        says=("SkyPilot could not set up its runtime", "provision.log"),
    ),
    console(
        "SkyPilot could not start a worker node",
        f"{_SKYPILOT[0].sample.replace('head', 'worker')}\n",
        says=("SkyPilot could not start Ray on a worker node (exit code 1)",),
    ),
    console(
        "a program quotes the launcher",
        f"note: {_GAVE_UP[0].sample.strip()}\n",
    ),
    console(
        "the status of Ray 1.2 lists nodes that failed",
        "Pending:\n 10.0.0.133: gpu_node, waiting-for-ssh, /tmp/ray/session_1/logs/i-0c0df8ead39c.out\n"
        f"Recent failures:\n{_UPDATE_FAILED[2].sample}\n",
        says=("could not set up a node: gpu_node",),
    ),
    console(
        "a node that the launcher still sets up",
        "Pending:\n 10.0.0.133: gpu_node, waiting-for-ssh, /tmp/ray/session_1/logs/i-0c0df8ead39c.out\n",
    ),
    console(
        "the monitor logs that it could not set up a node, and the status comes below",
        f"{_UPDATE_FAILED[0].sample}\n2026-11-21 11:40:16,544 ERR updater.py:160 -- !!!\n"
        "2026-11-21 11:40:16,544 ERR updater.py:170 -- SSH command failed.\n",
        says=("could not set up a node: a command on it failed",),
    ),
    console(
        "the updater of Ray 0.3 ends with a traceback that the console cuts off",
        "ssh: connect to host 203.0.113.9 port 22: Operation timed out\n"
        "NodeUpdater: Error updating Command '['ssh', 'ubuntu@203.0.113.9']' returned non-zero exit status 255.\n"
        'Process NodeUpdaterProcess-1:\nTraceback (most recent call last):\n  File "/venv/lib/python3.6/multiprocessing/process.py", line 258, in _bootstrap\n'
        '    self.run()\n  File "/venv/lib/python3.6/site-packages/ray/autoscaler/updater.py", line 68, in run\n    raise e\n',
        says=("could not set up a node: ssh: connect to host 203.0.113.9 port 22",),
    ),
    console(
        "the updater sets a node up at its second attempt",
        f"{_UPDATE_FAILED[0].sample}\n{_UP_TO_DATE.sample}\n",
    ),
    console(
        "the shell of the new machine refuses a setup command",
        f"{_SETUP_BEGAN.sample}\n    (0/2) pip install -q torch\nbash: cannot set terminal process group (-1): Inappropriate ioctl for device\n"
        f"{_SHELL.sample}\n  New status: update-failed\n  !!!\n  SSH command failed.\n  !!!\n\n{_NO_HEAD.sample}\n",
        says=(
            "bash: syntax error near unexpected token '('",
            "Correct the command in setup_commands",
        ),
    ),
    console(
        "the shell complains, and the machine is set up",
        f"{_SETUP_BEGAN.sample}\n{_SHELL.sample}\n  New status: up-to-date\n",
    ),
)

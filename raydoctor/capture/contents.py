"""The role of a file whose name says nothing, by its first bytes: objects of Kubernetes, accounts of Slurm,
exports of log stores.

The forms are those of `kubectl get -o json|yaml` (one object, a list, several documents), of its tables, of
`kubectl describe`, of `sacct` (`--json`, `-P`, its table) and of `scontrol show job`; of exports, those that
`capture/exports/` takes apart.
"""

from __future__ import annotations

import os
import re
from os.path import splitext

from raydoctor.capture import kubectl
from raydoctor.capture.decode import text_of
from raydoctor.model.patterns import pattern

ROLES = ("kubernetes", "slurm", "export")
HEAD = 8 << 10
"""Bytes that decide: managed fields may stand in front of an object's kind."""
SUFFIXES = frozenset(
    (
        *(
            "",
            ".txt",
            ".text",
            ".log",
            ".out",
            ".json",
            ".yaml",
            ".yml",
            ".jsonl",
            ".ndjson",
            ".csv",
        ),
        ".describe",
    )
)
"""Suffixes of files that are looked into."""
_KINDS = (
    r"(?:Pod|Event|Node|RayCluster|RayJob|RayService|RayCronJob|Job|Workload|PersistentVolumeClaim)"
    r"(?:List)?"
)
ABOVE = (
    r"Warning: [^\n]*\n|[IWEF]\d{4} \d\d:\d\d:\d\d[^\n]*\n|(?!\s|Warning: |[IWEF]\d|---)"
    r"[^\n$#>%{]{0,200}[$#>%] ?kubectl [^\n]*\n"
)
"""Lines that a terminal shows above the output of kubectl: warnings, its own log, the command.

No line matches two of them: a pattern that repeats them would try all combinations.
"""
_JSON = pattern(
    rf'\A(?:\s|{ABOVE})*[{{\[](?=.*"apiVersion"\s*:).*"kind"\s*:\s*"(?:List|{_KINDS})"', re.DOTALL
)
_YAML = pattern(
    rf"\A(?:\s|{ABOVE}|#(?! ?kubectl )[^\n]*\n|---[^\n]*\n)*(?:items:\s*\n)?(?:- )?apiVersion: \S+[ \t\r]*\n"
    rf"(?:.*\n)?? *-? *kind: ['\"]?(?:List|{_KINDS})\b"
    r"(?=.*^[ -]*(?:uid|creationTimestamp|status|involvedObject):)",
    re.DOTALL | re.MULTILINE,
)
"""A manifest that was never applied has none of these fields: it is not evidence."""
_DESCRIBED = pattern(
    rf"\A(?:\s|{ABOVE})*{kubectl.DESCRIBED}[^\n]*\n"
    r"(?=.*?^(?:Containers|Init Containers|Conditions|Events|API Version|Taints|Node):)",
    re.DOTALL | re.MULTILINE,
)
_TABLE = pattern(rf"\A(?:\s|{ABOVE})*(?:{kubectl.TABLE}|{kubectl.ROW})", re.MULTILINE)
_STATE = pattern(rf"\A(?:\s|{ABOVE})*{kubectl.STATE}\s+(?:Reason|Started): {{2,}}\S", re.MULTILINE)
_STATUS = pattern(
    rf"\A(?:\s|{ABOVE})*status:[^\S\n]*\n(?=(?:[^\n]*\n){{0,60}}?\s+(?:- )?type: ['\"]?"
    r"(?:PodScheduled|PodReadyToStartContainers|Initialized|ContainersReady)\b)"
)
"""The status of a pod in YAML, without the rest of it."""
_HAPPENED = pattern(
    rf"(?:[^\n]*\n){{0,20}}?\s*(?:{kubectl.EVENTS}|{kubectl.EVENT})",
    re.MULTILINE,
)
"""The events of a pod, without the rest of `kubectl describe`."""
_COMMAND = pattern(r"[^\n$#>%]{0,200}[$#>%] ?(?:sacct|scontrol) [^\n]*\n")
_SLURM = pattern(
    r"\s*\{(?=.*\"jobs\"\s*:)(?=.*\"(?:allocation_nodes|derived_exit_code|association|data_parser|slurm)\"\s*:)"
    # Newer versions begin with the service that answered: the jobs may be cut off.
    r"|\s*\{\s*\"meta\"\s*:(?=.*\"(?:openapi/(?:slurmdbd|dbv)|accounting_storage))"
    # Each part is a pass of its own over the first line: one that backtracks into another is quadratic.
    r"|(?=[^\n]*\bJobID(?:Raw)?\b)(?=[^\n]*\bState\b)[^\n]*\b(?:JobID(?:Raw)?|State)\|"
    r"|\s*JobID\s(?=[^\n]*\bState\b)[^\n]*\n-{3,}|\s*JobId=\d+ .*?\bJobState=[A-Z]",
    re.DOTALL,
)
_TEXT = r'"(?:line|log|message|msg|textPayload|@message)"\s*:'
_EXPORT = pattern(
    # JSON with a text beside a label of its place: Loki, Cloud Logging, Fluent Bit, Vector, Filebeat.
    rf"\s*[\[{{](?=.*(?:{_TEXT}|\"jsonPayload\"\s*:))"
    r"(?=.*\"(?:labels|kubernetes|logName|insertId|filename|file|path|log\.file\.path|pod|pod_name|podName)\"\s*:"
    r"|.*:\s*\"/[^\"\s]*/logs/)"
    # Loki's API; CloudWatch; Docker's json-file; Fluent Bit's `file`.
    r'|\s*[\[{].*"values"\s*:\s*\[\s*\[\s*"\d{19}"'
    r'|\s*\{\s*"events"\s*:\s*\[\s*\{(?=.*"(?:logStreamName|ingestionTime)"\s*:)'
    r'|\s*\{"results":.*"@message"'
    r'|\{"log":".*","stream":"std(?:out|err)","time":"'
    r"|[\w.*-]{1,200}: \[\d{10}\.\d{1,9}, \{"
    # CRI; `kubectl logs --prefix`; with times, what a sidecar printed as JSON.
    r"|\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:\d\d) (?:(?:stdout|stderr) [FP]|\{\")"
    r"|\[pod/[^/\]\s]+/[^\]\s]+\]",
    re.DOTALL,
)
_ANNOUNCED = frozenset({"pods", "events", "nodes", "sacct", "scontrol"})
_ROTATED = pattern(r"\d{1,9}\.log\.\d{8}-\d{6}")
"""A container's log, rotated by the kubelet."""


def is_candidate(name: str) -> bool:
    """Whether a file of this name may be one of them."""
    plain = name.lower().removesuffix(".gz")
    return splitext(plain)[1] in SUFFIXES or _ROTATED.fullmatch(plain) is not None


def is_announced(name: str) -> bool:
    """Whether a file has a name under which our documentation has such output saved."""
    stem, _, suffix = name.lower().partition(".")
    return stem in _ANNOUNCED and bool(suffix) and is_candidate(name)


def role_of(file: str) -> str:
    """`kubernetes`, `slurm`, `export`, or empty for other and for unreadable files."""
    try:
        # O_NONBLOCK: a pipe that replaced the file must not block.
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    try:
        return role_of_text(text_of(os.read(handle, HEAD)))
    except OSError:
        return ""
    finally:
        os.close(handle)


def role_of_text(head: str) -> str:
    """The same for the beginning of a text."""
    if any(
        form.match(head) for form in (_JSON, _YAML, _STATUS, _DESCRIBED, _TABLE, _STATE, _HAPPENED)
    ):
        return "kubernetes"
    if _SLURM.match(below_command(head)):
        return "slurm"
    return "export" if _EXPORT.match(head) else ""


def below_command(text: str) -> str:
    """The output of a command of Slurm, without the line of the shell above it."""
    begin = text.lstrip("\ufeff \n\r\t")
    found = _COMMAND.match(begin)
    return begin[found.end() :].lstrip() if found else begin

"""Identifies the Ray process that wrote a record from the record's own header.

A pasted log of a raylet or of the GCS has lost its file name. Ray's C++ code prints the component after the
time (`(raylet)`, `(gcs_server)`). Before 2.10, and in drivers, only the source file identifies the process,
as for Ray's Python processes. Records of event files are JSON objects with fixed keys.
Observed in logs of Ray 2.9 to 2.60.
"""

from __future__ import annotations

from raydoctor.model.patterns import pattern

_RECORD = pattern(
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [TDIWECF] (?P<pid>\d{1,10}) \d+\] "
    r"(?:\((?P<component>[\w.-]{1,40})\) )?(?:[\w-]+/)*(?P<file>[\w.-]{1,100}\.(?:cc|h)):\d+:"
)
_PYTHON_RECORD = pattern(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}[\t ]+[A-Z]+ (?P<file>\w{1,40}\.py):\d+ -- "
)
_EVENT = pattern(
    r'\{(?=.{0,4000}"source_type": ?")(?=.{0,4000}"severity": ?")(?=.{0,4000}"event_id": ?")'
    r'(?=.{0,4000}"label": ?").*\}$'
)
_KERNEL = pattern(
    r"(?:\[ *\d+\.\d{6}\] |\[\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\] "
    r"|\w{3} +\d+ \d\d:\d\d:\d\d \S+ kernel: |\d{4}-\d\d-\d\dT\S+ \S+ kernel: )"
)
_OF_COMPONENT = {"raylet": "raylet-out", "gcs_server": "gcs-out"}
_FILES = {
    "raylet-out": (
        "node_manager worker_pool agent_manager store store_runner object_store "
        "local_resource_manager memory_monitor raylet local_object_manager pull_manager "
        "worker_killing_policy dlmalloc object_lifecycle_manager create_request_queue "
        "file_system_monitor worker_killing_policy_group_by_owner cluster_task_manager "
        "local_task_manager placement_group_resource_manager object_manager"
    ),
    "gcs-out": (
        "gcs_server gcs_server_main gcs_actor_manager gcs_node_manager gcs_job_manager "
        "gcs_actor_scheduler gcs_placement_group_manager gcs_placement_group_scheduler "
        "gcs_init_data gcs_worker_manager gcs_health_check_manager gcs_task_manager "
        "gcs_resource_manager gcs_autoscaler_state_manager"
    ),
    "core-driver": (
        "core_worker core_worker_process task_manager actor_manager actor_task_submitter "
        "direct_actor_task_submitter raylet_ipc_client normal_task_submitter "
        "direct_task_transport direct_actor_transport task_receiver plasma_store_provider "
        "core_worker_shutdown_executor reference_count reference_counter "
        "object_recovery_manager"
    ),
}
"""Source files, without `.cc`, that log only in a process of this kind."""
AGENT = "runtime-env-agent"
_OF_PYTHON_FILE = {"runtime_env_agent.py": AGENT}
"""Python files that log only in a process of this kind."""
_OF_FILE = {f"{name}.cc": role for role, names in _FILES.items() for name in names.split()}


def is_event(text: str) -> bool:
    """Whether a line is a record of one of Ray's event files (`event_GCS.log`)."""
    return text[:2] == '{"' and _EVENT.match(text) is not None


class Components:
    """Assigns roles to records, and to later records of the same processes that show no role."""

    def __init__(self) -> None:
        self._of_process: dict[str, str] = {}

    def role(self, text: str) -> str:
        """The role of the log that a record of Ray's or the kernel comes from; otherwise empty."""
        if is_event(text):
            return "event"
        if text[:1].isdigit() and (record := _PYTHON_RECORD.match(text)):
            return _OF_PYTHON_FILE.get(record["file"], "")
        match = _RECORD.match(text) if text[:1] == "[" else None
        if not match:
            return "kernel" if _KERNEL.match(text) else ""
        role = _OF_COMPONENT.get(match["component"] or "") or _OF_FILE.get(match["file"], "")
        if role:
            self._of_process[match["pid"]] = role
        return role or self._of_process.get(match["pid"], "")

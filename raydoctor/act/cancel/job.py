"""Stops a whole job: a submitted one through the dashboard, any other by ending its driver.

`ray job stop` sends `POST /api/jobs/<submission id>/stop` (2.9.3 to 2.60.0). The driver and its processes get
SIGTERM, and SIGKILL after three seconds.
"""

from __future__ import annotations

import json
import os
import posixpath
import time
from contextlib import suppress
from urllib.parse import quote

from raydoctor.act.audit import Audit
from raydoctor.act.cancel.owner import AskError, Owners
from raydoctor.act.signals.process import end, identity_of
from raydoctor.model import ids, paste
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.gcs import dashboard
from raydoctor.observe.processes import proc

_TIMEOUT = 5.0
"""Seconds that the dashboard has for all replies together."""


def stop(owners: Owners, cluster: Cluster, job: str, audit: Audit, all_users: bool = False) -> str:
    """Stop a job. Empty if the request succeeded, else why not."""
    try:
        found = owners.job(job)
    except AskError as error:
        return str(error)
    if not found:
        return f"the cluster has no job {job}"
    if found["submission_id"]:
        return _stop_submitted(cluster, found["submission_id"], audit)
    pid = int(found["driver_info"]["pid"])
    return _end_driver(cluster, job, pid, audit, all_users)


def _stop_submitted(cluster: Cluster, submission: str, audit: Audit) -> str:
    address = cluster.dashboard_address
    if not address:
        return f"the address of the dashboard is unknown. Run: {_by_hand(submission)}"
    deadline = time.monotonic() + _TIMEOUT
    answer = dashboard.get(address, "/api/version", _TIMEOUT, cluster.access(True))
    if other := _other_session(cluster, answer):
        return f"the dashboard at {address} belongs to another cluster ({other})"
    if answer.status:
        path, left = f"/api/jobs/{quote(submission, safe='')}/stop", deadline - time.monotonic()
        answer = dashboard.request("POST", address, path, max(0.1, left), cluster.access(True))
    if not answer.status:
        return f"the dashboard at {address} did not answer: {answer.detail or answer.outcome}"
    audit.write("job-stop", submission_id=submission, result=answer.status)
    if answer.status < 400:
        return ""
    return f"the dashboard answered HTTP {answer.status}. Run: {_by_hand(submission)}"


def _by_hand(submission: str) -> str:
    return paste.shell("ray job stop {submission}", submission=submission)


def _other_session(cluster: Cluster, version: dashboard.DashboardReply) -> str:
    """The session of that dashboard if it is not this cluster's: submission ids are not unique.

    Empty if either session is unknown: older versions of Ray do not report it.
    """
    name = ""
    with suppress(ValueError, AttributeError, RecursionError):
        name = str(json.loads(version.body or b"{}").get("session_name") or "")
    ours = _session(cluster)
    return name if name and ours and name != ours else ""


def _session(cluster: Cluster) -> str:
    return posixpath.basename(os.path.realpath(cluster.session_dir)) if cluster.session_dir else ""


def _end_driver(cluster: Cluster, job: str, pid: int, audit: Audit, all_users: bool) -> str:
    driver = identity_of(pid)
    # Job ids repeat across clusters: the driver's log must be in this cluster's session.
    session, worker = cluster.session_dir, ids.driver_of_job(job)
    files = (path for path in proc.logs(pid) if proc.is_log_of(path, session))
    if driver is None or not any(worker in path for path in files):
        return f"its driver (pid {pid}) is not on this machine"
    (outcome,) = end([driver], all_users=all_users, audit=audit)
    return "" if outcome.outcome == "gone" else outcome.reason

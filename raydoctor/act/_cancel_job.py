"""Stopping a whole job: a submitted one through the dashboard, another by its driver's end.

`POST /api/jobs/<submission id>/stop` is what `ray job stop` asks (2.9.3 to 2.60.0); the driver gets SIGTERM,
and SIGKILL after three seconds, with all that it started.
"""

from __future__ import annotations

from urllib.parse import quote

from raydoctor import ids, paste
from raydoctor.act.audit import Audit
from raydoctor.act.owner import AskError, Owners
from raydoctor.act.process import end, identity_of
from raydoctor.collect import dashboard, proc
from raydoctor.collect.cluster import Cluster

_TIMEOUT = 10.0


def stop(owners: Owners, cluster: Cluster, job: str, audit: Audit, all_users: bool = False) -> str:
    """Empty where the job was told to stop, else why it could not be."""
    try:
        found = owners.job(job)
    except AskError as error:
        return str(error)
    if not found:
        return f"nobody knows the job {job}"
    if found["submission_id"]:
        return _stop_submitted(cluster, found["submission_id"], audit)
    return _end_driver(job, int(found["driver_info"]["pid"]), audit, all_users)


def _stop_submitted(cluster: Cluster, submission: str, audit: Audit) -> str:
    address = cluster.dashboard_address
    if not address:
        return f"no dashboard is known: {_by_hand(submission)}"
    path = f"/api/jobs/{quote(submission, safe='')}/stop"
    answer = dashboard.request("POST", address, path, _TIMEOUT, cluster.access(True))
    if not answer.status:
        return f"the dashboard at {address} did not answer: {answer.detail or answer.outcome}"
    audit.write("job-stop", submission_id=submission, result=answer.status)
    if answer.status < 400:
        return ""
    return f"the dashboard answered HTTP {answer.status}: {_by_hand(submission)}"


def _by_hand(submission: str) -> str:
    return paste.shell("ray job stop {submission}", submission=submission)


def _end_driver(job: str, pid: int, audit: Audit, all_users: bool) -> str:
    driver = identity_of(pid)
    worker = ids.driver_of_job(job)
    if driver is None or not any(worker in path for path in proc.files(pid).values()):
        return f"its driver (pid {pid}) is not on this machine"
    (outcome,) = end([driver], all_users=all_users, audit=audit)
    return "" if outcome.outcome == "gone" else outcome.reason

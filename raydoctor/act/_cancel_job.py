"""Stopping a whole job: a submitted one through the dashboard, another by its driver's end.

`POST /api/jobs/<submission id>/stop` is what `ray job stop` asks (2.9.3 to 2.60.0); the driver gets SIGTERM,
and SIGKILL after three seconds, with all that it started.
"""

from __future__ import annotations

import http.client
from contextlib import closing

from raydoctor import ids, paste
from raydoctor.act.audit import Audit
from raydoctor.act.owner import AskError, Owners
from raydoctor.act.process import end, identity_of
from raydoctor.collect import proc
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
    host, _, port = cluster.dashboard_address.rpartition(":")
    if not host:
        return f"no dashboard is known: {_by_hand(submission)}"
    headers = {"User-Agent": "raydoctor"}  # Ray <= 2.50 refuses who does not say who asks
    if cluster.token:
        headers["Authorization"] = f"Bearer {cluster.token.value}"
    try:
        with closing(
            http.client.HTTPConnection(host.strip("[]"), int(port), timeout=_TIMEOUT)
        ) as link:
            link.request("POST", f"/api/jobs/{submission}/stop", headers=headers)
            status = link.getresponse().status
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"the dashboard at {cluster.dashboard_address} did not answer: {error}"
    audit.write("job-stop", submission_id=submission, result=status)
    if status < 400:
        return ""
    return f"the dashboard answered HTTP {status}: {_by_hand(submission)}"


def _by_hand(submission: str) -> str:
    return paste.shell("ray job stop {submission}", submission=submission)


def _end_driver(job: str, pid: int, audit: Audit, all_users: bool) -> str:
    driver = identity_of(pid)
    worker = ids.driver_of_job(job)
    if driver is None or not any(worker in path for path in proc.files(pid).values()):
        return f"its driver (pid {pid}) is not on this machine"
    (outcome,) = end([driver], all_users=all_users, audit=audit)
    return "" if outcome.outcome == "gone" else outcome.reason

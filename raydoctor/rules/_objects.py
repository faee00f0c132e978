"""What the rules about single objects share: an object's id in words."""

from __future__ import annotations

from raydoctor import ids
from raydoctor.case import Case
from raydoctor.rules import _evidence as evidence


def described(case: Case, object_: str) -> str:
    """Who created an object and how, from its id: `a return value of task c8ef45ccd011`."""
    parts = ids.parse_object_id(object_)
    if parts is None:
        return f"object {evidence.short(object_)}"
    how = "a ray.put value" if parts.put else "a return value"
    if parts.actor:
        name = case.actor(parts.actor).class_name
        return f"{how} of actor {name or evidence.short(parts.actor)}"
    if ids.is_driver_task(parts.task):
        return f"{how} of the driver of job {ids.job_number(parts.job)}"
    return f"{how} of task {evidence.short(parts.task)}"

"""Objects of Kubernetes without what may be a secret, before they are written anywhere.

Specifications of pods are in RayClusters, RayJobs and RayServices as well. Of an environment, names and
references (`valueFrom`) stay, and values go. Texts in which users write whole environments go as a whole.
"""

from __future__ import annotations

from typing import Any

from raydoctor.observe.processes.redact import Redactor

_GONE = frozenset(
    {
        "managedFields",
        "kubectl.kubernetes.io/last-applied-configuration",
        "runtimeEnvYAML",
        "serveConfigV2",
    }
)


def clean(value: Any, redactor: Redactor) -> Any:
    """A copy of an object; the redactor learns the values of its environments."""
    if isinstance(value, list):
        return [clean(each, redactor) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: [_variable(variable, redactor) for variable in each]
        if key == "env" and isinstance(each, list)
        else clean(each, redactor)
        for key, each in value.items()
        if key not in _GONE
    }


def _variable(value: Any, redactor: Redactor) -> Any:
    if not isinstance(value, dict):
        return None
    values = {"env_vars": {str(value.get("name")): value.get("value")}}
    (placeholder,) = redactor.redact_json(values)["env_vars"].values()
    kept = {key: each for key, each in value.items() if key in ("name", "valueFrom")}
    return {**kept, "value": placeholder} if value.get("value") is not None else kept

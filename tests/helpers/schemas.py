"""What is wrong with a JSON output, by its schema."""

from __future__ import annotations

from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from raydoctor.render.machine import schema

_OPEN = ("capture",)
"""Whose further keys say where a capture came from."""


def closed(value: Any) -> Any:
    """The schema without room for keys that it does not list."""
    if isinstance(value, list):
        return [closed(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {key: closed(each) for key, each in value.items()}
    if value.get("type") == "object" and isinstance(value.get("properties"), dict):
        found["properties"] = {key: closed(each) for key, each in value["properties"].items()}
        if "if" not in value:
            found["additionalProperties"] = False
    return found


@cache
def _validator(name: str) -> Draft202012Validator:
    made = schema.schema(name)
    return Draft202012Validator(made if name in _OPEN else closed(made))


def faults(document: dict[str, Any]) -> list[str]:
    """Where the document differs from the schema that it names."""
    name = document["schema"].split("/")[1]
    return [f"{e.json_path}: {e.message[:300]}" for e in _validator(name).iter_errors(document)]

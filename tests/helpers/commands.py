"""Commands of the MCP server that run in this process: a child would import raydoctor and all rules again."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout

import pytest

from raydoctor import cli
from raydoctor.agents import child

_in_a_child = child.run


async def _here(
    words: Sequence[str], module: str = child.COMMANDS, request: bytes = b""
) -> child.CommandResult:
    """What `child.run` returns and raises."""
    if module != child.COMMANDS:
        return await _in_a_child(words, module, request)
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        code = cli.execute(list(words))
    lines = errors.getvalue().splitlines()
    try:
        document = json.loads(output.getvalue())
    except ValueError:
        raise child._failure(lines, code) from None
    return child.CommandResult(code, document, child._notes(lines), len(output.getvalue()))


def run_here(patch: pytest.MonkeyPatch) -> None:
    """Run the commands of tools in this process."""
    patch.setattr(child, "run", _here)

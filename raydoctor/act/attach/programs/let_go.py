"""Resumes a paused program if the process that paused it has died: without its debugger, it would stay
paused.

    let_go.py HOST PORT

Standard input contains `done` if nothing is left to do. Otherwise the program opens and ends a new session:
it replaces the previous session of debugpy 1.8, and its disconnect resumes all threads.
"""

from __future__ import annotations

import sys

from raydoctor.act.attach import dap

_SECONDS = 5.0


def main(host: str, port: int) -> int:
    """Wait for the end of the input, then resume the program unless that was done."""
    if sys.stdin.buffer.read().strip() == b"done":
        return 0
    try:
        connection = dap.connect(host, port)
        connection.request("initialize", {"adapterID": "debugpy"}, _SECONDS)
    except dap.DapError:
        return 1
    return 0 if dap.farewell(connection, _SECONDS) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))

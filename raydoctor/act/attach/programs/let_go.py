"""Lets a halted program go when whoever halted it has died: what is halted stays so without its debugger.

    let_go.py HOST PORT

Standard input has `done` at its end where there is nothing to do. Else a new session is opened and ended:
debugpy 1.8 forgets who was attached before, and a disconnect lets all threads go on.
"""

from __future__ import annotations

import sys

from raydoctor.act.attach import dap

_SECONDS = 5.0


def main(host: str, port: int) -> int:
    """Wait for the end of the input, and do what is left to do."""
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

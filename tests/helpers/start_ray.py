"""`ray start` without the daemons that WITHOUT names: each costs a second of a core, most of it for imports.

    WITHOUT="monitor log_monitor" python start_ray.py start --head …

Names are those of the methods of Ray's `Node` that start them (2.60.0); a name that a version of Ray lacks has
no effect there.
"""

from __future__ import annotations

import os

from ray._private.node import Node
from ray.scripts.scripts import main


def _start_nothing(*_: object, **__: object) -> None:
    """In place of a method that starts a daemon."""


if __name__ == "__main__":
    for name in os.environ.pop("WITHOUT", "").split():
        setattr(Node, f"start_{name}", _start_nothing)
    main()

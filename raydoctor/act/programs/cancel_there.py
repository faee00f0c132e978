"""Has a task cancelled on the node where it runs: by one small Ray task, pinned to that node. A program.

It runs as a child, a driver of its own, as `collect/programs/fan_out.py` does and for its reasons; the task
needs no CPU and is not retried.

Standard input: one JSON object, `{"address", "token", "node", "seconds", "ask"}`. Standard output: one line,
`{"told": …}` or `{"problem": …}`.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from contextlib import suppress
from typing import Any

NAMESPACE = "_raydoctor"
TASK = "raydoctor: cancel a task here"
_CONNECT_S = 15
"""A cluster that accepts a driver does so within one or two; Ray itself would wait for 40."""
_GRACE_S = 4
"""Seconds to leave the cluster in good order."""


def there(ask: str) -> str:
    """The task: pickled by value, so that it can say that raydoctor is not there."""
    import json

    try:
        from raydoctor.act._cancel_elsewhere import respond
    except ImportError:
        return json.dumps({"problem": "raydoctor is not installed there"})
    try:
        return json.dumps({"told": respond(json.loads(ask))})
    except Exception as error:
        return json.dumps({"problem": f"{type(error).__name__}: {error}"[:500]})


def asked(request: dict[str, Any]) -> str:
    """What the node answers."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.init(
        address=request["address"],
        namespace=NAMESPACE,
        log_to_driver=False,
        configure_logging=False,
        logging_level=logging.CRITICAL,
    )
    signal.alarm(int(request["seconds"]) + _GRACE_S)
    where = NodeAffinitySchedulingStrategy(request["node"], soft=False)
    remote: Any = ray.remote(there)
    options = {"num_cpus": 0, "max_retries": 0, "name": TASK, "scheduling_strategy": where}
    ref = remote.options(**options).remote(json.dumps(request["ask"]))
    try:
        return str(ray.get(ref, timeout=request["seconds"]))
    except ray.exceptions.GetTimeoutError:
        ray.cancel(ref, force=True)
        return json.dumps({"problem": f"its raylet did not do it within {request['seconds']:g} s"})


def main() -> None:
    """Read the request, ask, answer."""
    request = json.load(sys.stdin)
    signal.alarm(_CONNECT_S)
    # Ray would put this folder on the path of every worker, where our modules hide others' names.
    here = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.realpath(place or ".") != here]
    if request["token"]:
        os.environ.update({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": request["token"]})
    out = os.fdopen(os.dup(1), "w")  # what Ray itself prints is not the answer
    os.dup2(2, 1)
    try:
        answer = asked(request)
    except Exception as error:
        answer = json.dumps({"problem": f"{type(error).__name__}: {error}"[:500]})
    print(answer, file=out, flush=True)
    if "ray" in sys.modules:
        import ray

        with suppress(Exception):
            ray.shutdown()


if __name__ == "__main__":
    main()
    os._exit(0)  # Ray's threads may still be at work

"""Cancelling a task that runs on another node: the whole ladder is taken there, by a small Ray task.

Signals, process trees and the interrupt work only on the machine of the worker. Where that machine cannot be
asked (raydoctor is not installed there, its raylet is frozen), the steps that go through the owner are
taken from here, and `Cancellation.problem` says why not more.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from raydoctor.act import cancel as act
from raydoctor.act._cancel_processes import Survivor
from raydoctor.act._cancel_steps import Hands, Wishes, worker_here
from raydoctor.act._cancel_target import Target, by_id, refreshed
from raydoctor.act.owner import Row, connected
from raydoctor.act.process import Identity
from raydoctor.collect import live
from raydoctor.collect.cluster import Cluster

_PROGRAM = Path(__file__).with_name("programs") / "cancel_there.py"
_STEPS = 8
"""As many graces as a ladder with a few retries may take."""
_REACH = 30.0
"""Seconds to connect, and to start a worker there, on a busy cluster."""
_NOT_OURS = (
    # What a job, a hook or another cluster's user put there.
    *("RAY_ADDRESS", "RAY_NAMESPACE", "RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_RUNTIME_ENV_HOOK"),
    *("RAY_OVERRIDE_JOB_RUNTIME_ENV", "RAY_RUNTIME_ENV", "RAY_LOG_TO_STDERR", "RAY_PROFILING"),
    # The child is told through a pipe: others of this user could read its environment.
    *("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_JOB_ID", "RAY_RAYLET_PID"),
)


def run_where_it_runs(
    hands: Hands, target: Target, tell: act.Tell = lambda doing: None
) -> act.Cancellation:
    """Cancel it on its worker's machine, from here as far as that cannot be."""
    if not target.runs or not target.node or isinstance(worker_here(target), Identity):
        return act.run(hands, target, tell)
    tell(f"cancelling it on {target.ip}")
    found = there(hands.cluster, target, hands.wishes)
    if isinstance(found, act.Cancellation):
        return found
    made = act.run(hands, refreshed(hands.owners, target), tell)
    made.problem = f"{target.ip} could not be asked to do it: {found}"
    return made


def there(cluster: Cluster, target: Target, wishes: Wishes) -> act.Cancellation | str:
    """What its node did, or why it did nothing."""
    seconds = _STEPS * (wishes.grace + 2.0) + _REACH
    request = {
        "address": cluster.gcs_address,
        "token": cluster.token.value if cluster.token else "",
        "node": target.node,
        "seconds": seconds,
        "ask": {"address": cluster.gcs_address, "task": target.task, "wishes": asdict(wishes)},
    }
    # Below `uv run`, Ray would pack the working folder and send it to every node (`collect/nodes.py`).
    plain = {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
    child = subprocess.Popen(
        [sys.executable, str(_PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**kept, **plain},
        cwd="/",  # Ray puts a driver's folder on the path of its workers
        start_new_session=True,
    )
    try:
        told = child.communicate(json.dumps(request).encode(), timeout=seconds + _REACH)[0]
        answer: Row = json.loads(told)
    except (subprocess.TimeoutExpired, ValueError):
        return "the cluster accepted no driver, or the node did not answer"
    finally:
        if child.poll() is None:
            with suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    return str(answer["problem"]) if "problem" in answer else unpacked(answer["told"])


def respond(asked: Row) -> Row:
    """On that node: cancel it, and tell what came of it."""
    cluster = live.find(asked["address"])[0]
    with connected(cluster, act.TIMEOUT) as owners:
        target = by_id(owners, asked["task"])
        hands = act.hands_of(owners, cluster, Wishes(**asked["wishes"]), target)
        return asdict(act.run(hands, target))


def unpacked(told: Row) -> act.Cancellation:
    """What `respond` has told, after its way through JSON."""
    plain = {key: told[key] for key in ("ended", "was_accepted", "last", "problem")}
    return act.Cancellation(
        target=Target(**told["target"]),
        steps=[act.Taken(*each) for each in told["steps"]],
        survivors=[Survivor(Identity(*each[0]), *each[1:]) for each in told["survivors"]],
        children=[Target(**each) for each in told["children"]],
        **plain,
    )

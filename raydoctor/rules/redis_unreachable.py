"""The GCS cannot reach the Redis server that stores its state.

## What you see
- `gcs_server.out` repeats `Failed to connect to Redis due to: RedisError: Could not establish connection to Redis
  10.0.0.9:6379`. `ray start --head` prints it below `Failed to start GCS. Last 10 lines of error files:`.
- Then `120 attempts to connect have all failed. Please check whether the redis storage is alive or not`.
- `Check failed: AuthenticateRedis(…)` or `Got an error in redis reply: NOPERM …`: Redis answers, and refuses the
  client.
- `Redis request [HSET …] failed due to error …. 3 retries left`, then `Failed to run redis cmds: [HSET …] for 5 times`.
- Raylets and drivers report `Failed to connect to GCS`.

## Why
With `RAY_REDIS_ADDRESS` or KubeRay's `gcsFaultToleranceOptions`, the GCS keeps its state in an external Redis. The GCS
ends itself if it cannot connect when it starts, or if Redis does not answer its requests or its health check.
`context.err = 1` means that the connection was refused, timed out or found no route. A wrong address, a missing
password, missing TLS (`rediss://`), a firewall and a Redis restart are the usual reasons.

## Confirm
- `redis-cli -h HOST -p PORT ping` from the head (with `--tls` and `-a PASSWORD` if the server requires them) fails.
- `echo $RAY_REDIS_ADDRESS` in the head's environment prints the address that the GCS uses. On Kubernetes, the restarts
  and the log of the Redis pod show whether Redis ended.

## Fix
Make Redis reachable from the head, then restart the head. The state is still in Redis if Redis kept its data: workers
and detached actors continue when the new GCS has loaded it. If Redis lost its data, start the whole cluster again.

## Not this when
- the program itself uses Redis, and its own client reports the error.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import DRIVER, GCS, TRACEBACK
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import clause, cut
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject
from raydoctor.rules.shared.cluster import (
    CHECK_FAILED,
    GCS_DOC,
    is_of_gcs,
    is_of_redis_client,
    spelled,
)
from raydoctor.rules.shared.crash import CHECK

_WHERE = (*GCS, *DRIVER, "gcs-echo")
_REDIS = r"Could not establish connection to Redis (?P<address>[^\s:]{1,120}:\d{1,5})"

RETRIED = (
    Signal(
        "redis.retried",
        "Failed to connect to Redis due to: ",
        rf"^Failed to connect to Redis due to: (?:RedisError: )?(?:{_REDIS})?",
        _WHERE,
        "Failed to connect to Redis due to: RedisError: Could not establish connection to Redis 10.0.0.9:6379 "
        "(context.err = 1).. Will retry in 500ms.",
    ),
    Signal(
        "redis.retried",
        " retries left.",
        r"^Redis request \[[^\n]{0,1000}\] failed due to error (?P<error>[^\n]{0,300}?)\. (?P<left>\d{1,6}) retries left\.",
        _WHERE,
        "Redis request [HGET RAY@NODE x] failed due to error Server closed the connection. 3 retries left.",
    ),
    Signal(
        "redis.retried",
        "t get reply for ",
        r"^Didn't get reply for (?P<command>[A-Z]{2,30}) ",
        GCS,
        "Didn't get reply for HINCRBY default default@:JobCounter 1",
    ),
    Signal(
        "redis.retried",
        " redis command (sync): ",
        r"^Failed to (?:send|run) redis command \(sync\): (?P<error>[^\n]{0,300})",
        _WHERE,
        "Failed to send redis command (sync): Server closed the connection",
    ),
)
"""The third up to 2.35; the last says `send` up to 2.55."""
GAVE_UP = (
    Signal(
        "redis.gave_up",
        " attempts to connect have all failed.",
        r"^(?P<attempts>\d{1,6}) attempts to connect have all failed\. Please check whether the redis storage is alive or not\."
        rf"(?:.{{0,200}}?{_REDIS})?",
        _WHERE,
        "120 attempts to connect have all failed. Please check whether the redis storage is alive or not. The last error message "
        "was: RedisError: Could not establish connection to Redis 10.0.0.9:6379 (context.err = 1).",
    ),
    Signal(
        "redis.gave_up",
        "Failed to run redis cmds: [",
        r"^ ?Failed to run redis cmds: \[[^\n]{0,1000}\] for (?P<attempts>\d{1,6}) times",
        _WHERE,
        " Failed to run redis cmds: [HGET RAY@NODE x] for 5 times.",
    ),
    Signal(
        "redis.gave_up",
        "Redis connection failed",
        r"Check failed: .{0,300}?Redis connection failed unexpectedly|^Redis connection failed\. Shutdown GCS\.",
        _WHERE,
        " Check failed: status Status not OK: RedisError: timed out Redis connection failed unexpectedly.",
    ),
    Signal(
        "redis.gave_up",
        "Got an error in redis reply: ",
        r"^ ?Got an error in redis reply: (?P<error>[^\n]{1,300})",
        _WHERE,
        "Got an error in redis reply: NOPERM User ray has no permissions to run the 'info' command",
    ),
)
"""`redis_context.cc` and `gcs_server.cc` of 2.9 to 2.60: the last says `Shutdown GCS` up to 2.49."""
_CLIENT = Signal(
    "redis.client",
    "Unable to connect to Redis at ",
    r"^RuntimeError: Unable to connect to Redis at (?P<address>[^\s:]{1,120}:\d{1,5}): (?P<error>[^\n]{1,300})",
    DRIVER,
    "RuntimeError: Unable to connect to Redis at 10.0.0.9:6379: Error 111 connecting to 10.0.0.9:6379. Connection refused.",
    symptom=True,
)
"""`ray start --head` before it starts the GCS (`_private/services.py`, 2.9 to 2.60)."""
NOT_STARTED = Signal(
    "redis.gcs_not_started",
    "Failed to start GCS.",
    r"^Failed to start GCS\. ",
    DRIVER,
    "Failed to start GCS. Last 10 lines of error files:",
)
"""`ray start --head` or `ray.init`, above the GCS's own records."""
_CHECKS = (
    "RedisError",
    "Failed to setup encrypted redis",
    "Failed to get Redis",
    "Failed to get redis sentinel",
    "The Redis cluster is not healthy",
    "Ray currently doesn't support Redis Cluster",
    "Setup Redis cluster failed",
)
"""Texts of failed checks: a status, TLS, the first command after the connection, and Redis' clusters."""
_OF_REDIS = pattern(
    r"\bAuthenticateRedis\(|\bValidateRedisDB\(|\bREDIS_OK\b|\bRedisError: |ssl context for redis client"
)
"""In checks that only the client of Redis makes, wherever a paste lost their header (`redis_context.cc`, 2.9 to 2.60)."""
_LOGIN = pattern(
    r"AuthenticateRedis\(|NOAUTH|WRONGPASS|invalid (?:username|password)|without any password"
)
_NO_RIGHT = pattern(r"NOPERM|no permissions? to")


@rule(
    tier="root",
    severity="critical",
    rank=4,
    explains=("daemon",),
    looks_for=(*RETRIED, *GAVE_UP, _CLIENT, NOT_STARTED, CHECK_FAILED, CHECK, TRACEBACK),
)
def redis_unreachable(case: Case) -> Iterator[Finding]:
    """At most one finding: a cluster has one Redis."""
    failed = [e for e in case.of(GAVE_UP[0].kind, RETRIED[0].kind) if _is_gcs(e)]
    checks = [
        e
        for e in case.of(CHECK_FAILED.kind, CHECK.kind)
        if (is_of_gcs(e) and any(text in e["expression"] for text in _CHECKS))
        or (is_of_redis_client(e) and e.level == "C" and not e["who"])
    ]
    bare = [e for e in case.of(CHECK.kind) if e not in checks and _is_bare(case, e)]
    ends = [e for e in (*failed, *checks) if e.level == "C"] + bare
    if failed:
        ends += case.of(NOT_STARTED.kind)
    ends += [e for e in case.of(_CLIENT.kind) if not evidence.goes_on(case, e)]
    ends = [e for e in ends if not case.torn_down(e)]
    failed = [e for e in failed if e not in ends and not case.torn_down(e)]
    if failed or ends:
        yield _finding(case, failed, ends)


def _is_bare(case: Case, event: Event) -> bool:
    """Whether an excerpt shows a check of the client of Redis without its header."""
    before = event.message.partition("Check failed: ")[0].strip()
    return (
        event.source.is_excerpt
        and not event["who"]
        and event.level in ("", "C")
        and (not before or "redis_context.cc:" in before)
        and _OF_REDIS.search(event["expression"]) is not None
        and not evidence.outlived(case, event)
    )


def _is_gcs(event: Event) -> bool:
    """Whether the GCS wrote the record: in a program's output it must carry the GCS's header."""
    if event.level not in ("E", "C", "W"):
        return False
    return event.source.role in (*GCS, "gcs-echo") or "(gcs_server) redis_" in event.text


def _finding(case: Case, failed: list[Event], ends: list[Event]) -> Finding:
    events = [*ends, *failed]
    ends.sort(key=lambda e: "RedisError" not in e["expression"])
    address = next((e["address"] for e in events if e["address"]), "")
    attempts = next((e["attempts"] for e in events if e["attempts"]), "")
    times = f" in {attempts} attempts" if attempts else ""
    is_client = bool(ends) and (
        ends[0].kind == _CLIENT.kind or ("expression" in ends[0].fields and not is_of_gcs(ends[0]))
    )
    end = (
        f", so it did not start: {cut(clause(ends[0]['error']), 120) or _said(ends[0])}"
        if is_client
        else ", and ended itself"
        if ends
        else f"; {evidence.many(evidence.total(failed), 'error')} so far"
    )
    said = " ".join(e["expression"] or e["error"] for e in events)
    is_refused = _LOGIN.search(said) or _NO_RIGHT.search(said)
    failed_to = "log in to" if _LOGIN.search(said) else "use" if is_refused else "reach"
    if is_refused and not is_client and ends and ends[0]["error"]:
        end += f": {cut(clause(ends[0]['error']), 120)}"
    return Finding(
        f"{'ray start' if is_client else 'The GCS'} could not {failed_to} its Redis server{f' at {address}' if address else ''}{times}{end}",
        (
            *(Link(e, "the GCS gets no answer from Redis") for e in failed[-1:]),
            *(Link(e, "Ray stops before it starts the GCS" if is_client else "the GCS ends itself because of it") for e in ends[:1]),
        ),
        explains=(Entity("daemon", "gcs_server"),),
        subjects=(Subject("gcs", None, "gcs_server"),),
        count=evidence.total(events),
        severity=None if ends else "warning",
        remedies=tuple(sorted(_remedies(address), key=lambda r: bool(is_refused) and r.risk == "safe")),
        covers=(*events, *(e for e in case.of("log.traceback") if is_client and e.source is ends[0].source)),
    )  # fmt: skip


def _said(check: Event) -> str:
    """The text of a failed check without its expression."""
    words = check["expression"].rpartition("REDIS_OK ")[2]
    return spelled(words.rpartition("Status not OK: ")[2])


def _remedies(address: str) -> Iterator[Remedy]:
    host, _, port = address.rpartition(":")
    steps = (
        (
            paste.shell(
                "redis-cli -h {host:address} -p {port:number} ping   # from the head", host=host, port=port
            ),
        )
        if address
        else ("redis-cli -h HOST -p PORT ping   # from the head. HOST:PORT of RAY_REDIS_ADDRESS",)
    )  # fmt: skip
    yield Remedy(
        f"Check that Redis{f' at {address}' if address else ''} runs, and that the head reaches it",
        (*steps, "kubectl get pods; kubectl logs REDIS_POD   # KubeRay"),
        doc=GCS_DOC,
    )
    yield Remedy(
        "Correct the address, the password or TLS, and restart the head",
        (
            "export RAY_REDIS_ADDRESS=HOST:PORT   # on the head, before ray start, or before your program if it starts Ray. TLS: rediss://HOST:PORT, the password: the option redis-password",
        ),
        risk="disruptive",
        doc=GCS_DOC,
    )


# ------------------------------------------------------------------ examples


def _line(second: int, level: str, text: str) -> str:
    return (
        f"[2026-11-22 18:48:{second},722 {level} 94 94] (gcs_server) redis_context.cc:562: {text}\n"
    )


_TRIED = _line(29, "E", RETRIED[0].sample) + _line(30, "E", RETRIED[0].sample)
_ENDED = (
    _line(31, "E", GAVE_UP[0].sample)
    + "[2026-11-22 18:48:31,774 C 94 94] (gcs_server) redis_store_client.cc:141:  Check failed: primary_context_->Connect(…) "
    "Status not OK: RedisError: Could not establish connection to Redis 10.0.0.9:6379 (context.err = 1).\n"
)

EXAMPLES: tuple[Example, ...] = (
    console(
        "the head does not start: the address of Redis is wrong",
        "2026-11-22 18:48:44,984 CRITICAL node.py:610 -- Failed to start GCS. Last 10 lines of error files:\n"
        + _TRIED,
        says=("10.0.0.9:6379", "ended itself", "redis-cli -h 10.0.0.9 -p 6379 ping"),
    ),
    Example(
        "the GCS ends itself, and its log contains the reason",
        {"logs/gcs_server.out": _TRIED + _ENDED, "logs/raylet.out": ""},
        consequences=("gcs-died",),
        says=("10.0.0.9:6379",),
    ),
    Example(
        "Redis does not speak TLS",
        {
            "logs/gcs_server.out": _line(31, "C", " Check failed: redisInitiateSSLWithContext(context_.get(), ssl_context_) == REDIS_OK "
            "Failed to setup encrypted redis: SSL_connect failed: wrong version number"),
            "logs/raylet.out": "",
        },
        says=("ended itself", "rediss://"),
    ),
    Example(
        "the health check of Ray up to 2.49",
        {"logs/gcs_server.out": _line(31, "C", "Redis connection failed. Shutdown GCS."), "logs/raylet.out": ""},
        says=("ended itself",),
    ),
    Example(
        "Redis stops answering a running GCS",
        {
            "logs/gcs_server.out": _line(29, "E", RETRIED[1].sample) + _line(35, "C", GAVE_UP[1].sample),
            "logs/raylet.out": "",
        },
        says=("5 attempts", "RAY_REDIS_ADDRESS"),
    ),
    Example(
        "Redis answers again before the GCS gives up",
        {"logs/gcs_server.out": _line(29, "E", RETRIED[1].sample), "logs/raylet.out": ""},
        says=("1 error so far",),
        severity="warning",
    ),
    console(
        "ray start reaches no Redis",
        'Traceback (most recent call last):\n  File "/venv/ray/_private/services.py", line 874, in wait_for_redis_to_start\n'
        f"    raise RuntimeError(\n{_CLIENT.sample}\n",
        says=("ray start could not reach", "Connection refused", "redis-cli -h 10.0.0.9 -p 6379 ping"),
    ),
    console(
        "ray start cannot verify the certificate of Redis",
        "[2026-11-22 18:48:31,664 C 8 8] (ray_init) redis_context.cc:484:  Check failed: redisInitiateSSLWithContext(context_, ssl_context_) == "
        "REDIS_OK Failed to setup encrypted redis: SSL_connect failed: CERTIFICATE_VERIFY_FAILED\n",
        says=("ray start could not reach its Redis server, so it did not start: Failed to setup encrypted redis", "TLS: rediss://"),
    ),
    console(
        "Redis closes the connection while ray start logs in, and the paste lost the header",
        "redis_context.cc:622: An unexpected system state has occurred. You have likely discovered a bug in Ray. Check failed: "
        "AuthenticateRedis(context_.get(), username, password) Status not OK: RedisError: Server closed the connection\n"
        "*** StackTrace Information ***\n",
        says=("ray start could not log in to its Redis server, so it did not start: RedisError: Server closed the connection",),
    ),
    Example(
        "Redis allows the user no command of Ray's",
        {"logs/gcs_server.out": _line(31, "C", GAVE_UP[3].sample), "logs/raylet.out": ""},
        says=("The GCS could not use its Redis server, and ended itself: NOPERM User ray has no permissions",),
    ),
    console(
        "a program that goes on after it printed such a check",
        "known: Check failed: AuthenticateRedis(context_.get(), username, password)\nusing the second cache\nloss 0.1\n",
    ),
    console(
        "a task prints the failed check of another process, and the job continues",
        "(check pid=12) [2026-11-22 18:48:31,664 C 8 8] (ray_init) redis_context.cc:484:  Check failed: ok Failed to setup encrypted redis: x\n"
        "loss 0.1\n",
        logs=QUIET_LOGS,
    ),
    console(
        "a program prints the error of its own cache, and continues",
        f"{_CLIENT.sample}\nusing the second cache\nloss 0.1\n",
        logs=QUIET_LOGS,
    ),
    console(
        "the program's own Redis client fails",
        "(Cache pid=31) Failed to connect to Redis due to: timeout\nFailed to connect to Redis due to: refused\n",
        logs=QUIET_LOGS,
    ),
)  # fmt: skip

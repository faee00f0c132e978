"""A process has no authentication token, or not the cluster's, and is turned away.

## What you see
`AuthenticationError: Token authentication is enabled but no authentication token was found`, `InvalidAuthToken:
Authentication token is missing or incorrect` (in a driver once a second, until it gives up with `Failed to connect to
GCS`), `GCS returned an authentication error` in a raylet that wants to join, HTTP 401 or 403 from port 8265.

## Why
With `RAY_AUTH_MODE=token` (Ray 2.52 and later) every process of a cluster must send one and the same token. It is read
from `RAY_AUTH_TOKEN`, else from the file that `RAY_AUTH_TOKEN_PATH` names, else from `~/.ray/auth_token`. From 2.59 on a
local `ray.init()` turns it on by itself and writes that file, and `ray start` turns it on where such a file
exists: a home that is shared or left over decides then.

## Confirm
- `echo $RAY_AUTH_MODE $RAY_AUTH_TOKEN_PATH; ls -l ~/.ray/auth_token`, as the same user, on both sides.
- `sha256sum ~/.ray/auth_token` on both sides: equal tokens have equal sums, and no token is shown.

## Fix
Give the process the head's token (a file with mode 600, or a Kubernetes Secret), or `RAY_AUTH_MODE=disabled` on both
sides where the network keeps strangers out.

## Not this when
`Missing authorization header in request!` alone: the GCS of a healthy cluster writes it about once a minute.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, Signal, rule
from raydoctor.case.signals import CORE, DRIVER, GCS, RAY_EXCEPTION, RAYLET, RAYLET_STARTED
from raydoctor.cluster import tables as live
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared.connect import CONNECTING, connected_to

_DOC = "https://docs.ray.io/en/latest/ray-security/token-auth.html"
_REFUSED = Signal(
    "auth.refused", "InvalidAuthToken: Authentication token", r"InvalidAuthToken: Authentication token is missing or incorrect",
    (*DRIVER, *CORE, *RAYLET, "dashboard-agent", "runtime-env-agent", "log-monitor", "monitor", "client-server"),
    "Failed to get cluster ID from GCS server: Unauthenticated: RPC error: InvalidAuthToken: Authentication token is missing or "
    "incorrect", symptom=True,
)  # fmt: skip
_NONE_FOUND = Signal(
    "auth.none_found", "find an authentication token.",
    r"Token authentication is enabled but Ray couldn't find an authentication token\.", (*DRIVER, *CORE, *RAYLET, *GCS),
    "Token authentication is enabled but Ray couldn't find an authentication token. Create a token file at ~/.ray/auth_token, or "
    "store the token in any file and set RAY_AUTH_TOKEN_PATH to point to it, or set the RAY_AUTH_TOKEN environment variable.",
    symptom=True,
)  # fmt: skip
_RAYLET_REFUSED = Signal(
    "auth.raylet_refused", "GCS returned an authentication error", r"GCS returned an authentication error", RAYLET,
    "GCS returned an authentication error. This may happen when the token of this node is not the cluster's.", symptom=True,
)  # fmt: skip
_SYNCER = Signal(
    "auth.node_refused", " in syncer connection from node ",
    r"^(?P<why>Missing authorization header|Invalid bearer token) in syncer connection from node (?P<node>[0-9a-f]{56})?", GCS,
    "Invalid bearer token in syncer connection from node 4392271d343578a32aee264b3908f06bdc8a6dc43675e3227cbbe483",
    symptom=True,
)  # fmt: skip

_MISSING = ("no authentication token was found", "Missing authentication token")


@rule(
    tier="root",
    severity="critical",
    rank=11,
    looks_for=(_REFUSED, _NONE_FOUND, _RAYLET_REFUSED, _SYNCER, RAY_EXCEPTION, RAYLET_STARTED, CONNECTING),
)  # fmt: skip
def auth_token(case: Case) -> Iterator[Finding]:
    """One finding for the drivers without a token, one for those that were refused, one for the nodes."""
    exceptions = [e for e in case.of("driver.exception") if e["type"] == "AuthenticationError"]
    without = [e for e in exceptions if any(text in e["what"] for text in _MISSING)]
    without += [e for e in case.of("auth.none_found") if _is_drivers(e)]
    refused = [e for e in case.of("auth.refused") if _is_drivers(e)]
    refused += [e for e in exceptions if e not in without]
    if without:
        yield _of_driver(case, without, missing=True)
    elif refused:
        yield _of_driver(case, refused, missing=False)
    asked = _asked(case)
    if asked and not (without or refused):
        yield _of_shell(asked)
    nodes = case.of("auth.raylet_refused", "auth.node_refused")
    nodes += [e for e in case.of("auth.none_found", "auth.refused") if not _is_drivers(e)]
    if nodes:
        yield _of_nodes(case, nodes)


def _asked(case: Case) -> list[Event]:
    """Services of the cluster that turned the live collection away, with what this shell has for a token."""
    return [e for e in live.rows(case, "probes") if e["outcome"] == "unauthenticated"]


def _of_shell(asked: list[Event]) -> Finding:
    """Drivers that this shell starts send what the live collection sent."""
    missing = any(e["detail"] == "token: missing" for e in asked)
    gcs = min(asked, key=lambda e: (e["name"] != "gcs", e["name"]))
    where = f" at {gcs['address']}" if gcs["address"] else ""
    has = "has none" if missing else "has another one than the cluster's"
    who = evidence.join_names(
        f"the {'GCS' if e['name'] == 'gcs' else e['name']}" for e in asked if e["name"] != "auth"
    )
    by = f" (refused by {who})" if who else ""
    mode = Remedy(
        "Turn tokens on in this shell, too: an explicit address and the `ray` commands do not do it by themselves",
        ("export RAY_AUTH_MODE=token",),
        since=(2, 52),
        doc=_DOC,
    )
    return Finding(
        f"The cluster{where} asks for an authentication token, and this shell {has}{by}: its drivers and `ray` commands are turned away",
        tuple(Link(e, f"{e['name']}: {e['detail'] or 'turned away'}") for e in asked[:3]),
        explains=(Entity("auth", "shell"),),
        severity="error",
        remedies=(
            *_remedies("this shell", missing)[:1],
            mode,
            *_remedies("this shell", missing)[1:],
        ),
    )


def _is_drivers(event: Event) -> bool:
    return event.source.role in (*DRIVER, "core-driver")


def _of_driver(case: Case, told: list[Event], missing: bool) -> Finding:
    first, last = told[0], told[-1]
    address = connected_to(case, first)
    where = f" at {address['address']}" if address else ""
    lines = [e for e in told if "ray.exceptions." not in e.message]
    times = evidence.total(lines)
    if missing:
        headline = f"The driver has no authentication token, and the cluster{where} asks for one"
    else:
        often = f" {evidence.many(times, 'time')}" if times > 1 else ""
        headline = f"The cluster{where} refused the driver's authentication token{often}: none was sent, or not this cluster's"
    links = [Link(address, "the driver goes to this cluster")] if address else []
    links.append(Link(first, "it finds no token" if missing else "the GCS refuses it"))
    if last is not first:
        links.append(Link(last, "the driver gives up"))
    sources = {e.source for e in told}
    return Finding(
        headline,
        tuple(links),
        explains=(Entity("auth", "driver"),),
        remedies=_remedies("the driver", missing),
        covers=(*told, *(e for e in case.of("log.traceback") if e.source in sources)),
    )


def _of_nodes(case: Case, told: list[Event]) -> Finding:
    nodes = [n for e in told if (n := e["node"] or case.node_of(e.source))]
    unique = list(dict.fromkeys(nodes))
    who = evidence.join_names(case.ledger.node_ips.get(n) or evidence.short(n) for n in unique)
    label = f"Node{'' if len(unique) == 1 else 's'} {who}" if who else "A process of the cluster"
    return Finding(
        f"{label} cannot talk to the GCS: the authentication token is missing there, or not the head's",
        tuple(Link(e, "turned away for its token") for e in told[:3]),
        explains=(
            Entity("auth", "nodes"),
            *(Entity(kind, n) for n in unique for kind in ("raylet", "node")),
        ),
        count=max(1, len(unique)),
        severity="error",
        remedies=_remedies("that node", missing=False),
        covers=tuple(told),
    )


def _remedies(who: str, missing: bool) -> tuple[Remedy, ...]:
    compare = (
        ()
        if missing
        else ("sha256sum ~/.ray/auth_token   # on the head and here: the sums must be equal",)
    )
    return (
        Remedy(
            f"Give {who} the head's token",
            (
                *compare,
                "scp HEAD:.ray/auth_token ~/.ray/auth_token && chmod 600 ~/.ray/auth_token",
                "export RAY_AUTH_TOKEN_PATH=/run/secrets/ray/token   # or: a mounted Secret; unset a stale RAY_AUTH_TOKEN, it wins",
            ),
            since=(2, 52),
            doc=_DOC,
        ),
        Remedy(
            "Or turn the tokens off on both sides, where the network keeps strangers out",
            ("export RAY_AUTH_MODE=disabled   # for ray start on every node, and for the driver",),
            risk="disruptive",
            since=(2, 52),
            doc=_DOC,
        ),
    )


# ------------------------------------------------------------------ examples

_N = "4392271d343578a32aee264b3908f06bdc8a6dc43675e3227cbbe483"
_CONNECTING = "2026-11-21 10:57:09,882\tINFO worker.py:1841 -- Connecting to existing Ray cluster at address: 10.0.0.2:6379...\n"
_FRAMES = 'Traceback (most recent call last):\n  File "/app/train.py", line 24, in <module>\n    ray.init()\n'
_ADVICE = " Ensure that the token for the cluster is available in a local file (e.g., ~/.ray/auth_token or via RAY_AUTH_TOKEN_PATH)\n"
_NO_TOKEN = (
    f"{_CONNECTING}{_FRAMES}ray.exceptions.AuthenticationError: Token authentication is enabled but no authentication token was "
    f"found.{_ADVICE}"
)
_WRONG = (
    _CONNECTING
    + "".join(f"[2026-11-21 10:57:{s:02d},919 W 419 419] gcs_client.cc:210: {_REFUSED.sample}\n" for s in range(9, 30))
    + f"{_FRAMES}ray.exceptions.AuthenticationError: RPC error: InvalidAuthToken: Authentication token is missing or incorrect.{_ADVICE}\n"
    f"The above exception was the direct cause of the following exception:\n\n{_FRAMES}"
    "ConnectionError: Failed to connect to Ray cluster at 10.0.0.2:6379\n"
)  # fmt: skip
_RAYLET = (
    f"[2026-11-21 10:57:09,000 I 307 307] (raylet) node_manager.cc:355: Raylet of id, {_N} started. Raylet consists of node_manager "
    "and object_manager. node_manager address: 10.0.0.3:0 object_manager address: 10.0.0.3:1 hostname: n\n"
    f"[2026-11-21 10:57:09,919 C 307 307] (raylet) gcs_client.cc:99: {_RAYLET_REFUSED.sample}\n"
)
_NOISE = "[2026-11-21 10:57:09,919 W 13 13] (gcs_server) server_call.h:220: Missing authorization header in request!\n"


def _probed(outcome: str, detail: str) -> dict[str, str]:
    """How the GCS answered the live collection."""
    head = '{"table": "probes", "at": 1795258700.0, "from": "tcp", "total": 1, "rows": ['
    refused = (
        "InvalidAuthToken: Authentication token is missing or incorrect" if outcome != "ok" else ""
    )
    rows = ",\n".join(
        f'{{"name":"{name}","address":"{address}","outcome":"{outcome}","seconds":0.01,"detail":"{told}"}}'
        for name, address, told in (
            ("auth", "10.0.0.2:8265", detail),
            ("gcs", "10.0.0.2:6379", refused),
        )
    )
    return {"live/live-probes.json": f"{head}\n{rows}\n]}}\n"}


EXAMPLES: tuple[Example, ...] = (
    Example(
        "a driver without a token",
        {"driver.log": _NO_TOKEN, "logs/gcs_server.out": "", "logs/raylet.out": ""},
        roots=("auth-token",),
        says=("no authentication token", "10.0.0.2:6379", "RAY_AUTH_TOKEN_PATH"),
    ),
    Example(
        "`JobSubmissionClient` without a token: HTTP 401",
        {
            "driver.log": f"{_FRAMES}ray.exceptions.AuthenticationError: Authentication required: Unauthorized: Missing authentication "
            "token\n\nToken authentication is enabled but no authentication token was found. Ensure that the token is available\n"
        },
        roots=("auth-token",),
        says=("no authentication token",),
    ),
    Example(
        "a driver with another cluster's token",
        {"driver.log": _WRONG, "logs/gcs_server.out": _NOISE, "logs/raylet.out": ""},
        roots=("auth-token",),
        says=("refused", "21 times", "10.0.0.2:6379"),
    ),
    Example(
        "a node with another token cannot join",
        {"logs/raylet.out": _RAYLET, "logs/gcs_server.out": _NOISE},
        roots=("auth-token",),
        says=("10.0.0.3",),
    ),
    Example(
        "the shell of the diagnosis has no token",
        {
            "logs/gcs_server.out": _NOISE,
            "logs/raylet.out": "",
            **_probed("unauthenticated", "token: missing"),
        },
        roots=("auth-token",),
        says=("10.0.0.2:6379", "this shell has none", "export RAY_AUTH_MODE=token"),
    ),
    Example(
        "the shell of the diagnosis has another cluster's token",
        {
            "logs/gcs_server.out": _NOISE,
            "logs/raylet.out": "",
            **_probed("unauthenticated", "token: wrong"),
        },
        roots=("auth-token",),
        says=("has another one", "sha256sum"),
    ),
    Example(
        "a token lies around, and the cluster asks for none",
        {"logs/gcs_server.out": "", "logs/raylet.out": "", **_probed("ok", "token: not needed")},
    ),
    Example(
        "what a healthy cluster writes each minute",
        {"logs/gcs_server.out": _NOISE * 9, "logs/raylet.out": "", "driver.log": "done\n"},
    ),
    Example(
        "a task that prints the words",
        {
            "driver.log": f"(check pid=12) {_REFUSED.sample}\n(check pid=12) {_NO_TOKEN.splitlines()[-1]}\n",
            "logs/gcs_server.out": "",
            "logs/raylet.out": "",
        },
    ),
)

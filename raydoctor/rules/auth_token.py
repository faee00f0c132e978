"""The cluster refused a process because it sent no authentication token, or a token of another cluster.

## What you see
- `AuthenticationError: Token authentication is enabled but no authentication token was found`.
- `InvalidAuthToken: Authentication token is missing or incorrect`, in a driver once a second until it gives up with
  `Failed to connect to GCS`.
- `GCS returned an authentication error` in a raylet that tries to join.
- HTTP 401 or 403 from port 8265.

## Why
With `RAY_AUTH_MODE=token` (Ray 2.52 and later) all processes of a cluster must send the same token. Ray reads it from
`RAY_AUTH_TOKEN`, else from the file in `RAY_AUTH_TOKEN_PATH`, else from `~/.ray/auth_token`. From Ray 2.59 on a local
`ray.init()` enables tokens by itself and writes that file, and `ray start` enables tokens if such a file exists. A
token file in a shared home directory, or of an earlier cluster, then takes effect.

## Confirm
- `echo $RAY_AUTH_MODE $RAY_AUTH_TOKEN_PATH; ls -l ~/.ray/auth_token`, run as the user of each process, shows which side
  has tokens enabled and where its token comes from.
- `sha256sum ~/.ray/auth_token` on both sides: equal tokens have equal sums, and the output does not reveal the token.

## Fix
Give the process the head's token (a file with mode 600, or a Kubernetes Secret). If only trusted machines can reach the
cluster, set `RAY_AUTH_MODE=disabled` on both sides instead.

## Not this when
- the only record is `Missing authorization header in request!`: the GCS of a healthy cluster logs it about once a
  minute.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import CORE, DRIVER, GCS, RAY_EXCEPTION, RAYLET, RAYLET_STARTED
from raydoctor.cluster import tables as live
from raydoctor.model.entities import Entity
from raydoctor.model.text import duration
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared.connect import CONNECTING, connected_to
from raydoctor.rules.shared.live import examples as sample

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

_NO_HEADER = Signal(
    "auth.no_header", "Missing authorization header in request!", r"^Missing authorization header in request!", GCS,
    "Missing authorization header in request!",
)  # fmt: skip
_BURST, _BURST_S = 8, 20.0
"""Requests without a token within seconds: a client that cannot connect repeats its request every second for
twenty seconds, and a healthy cluster logs one a minute."""

_MISSING = ("no authentication token was found", "Missing authentication token")


@rule(
    tier="root",
    severity="critical",
    rank=11,
    explains=("auth", "node", "raylet"),
    looks_for=(_REFUSED, _NONE_FOUND, _RAYLET_REFUSED, _SYNCER, _NO_HEADER, RAY_EXCEPTION, RAYLET_STARTED, CONNECTING),
)  # fmt: skip
def auth_token(case: Case) -> Iterator[Finding]:
    """One finding for drivers without a token or refused drivers, one for the shell of a live collection, one for nodes."""
    exceptions = [e for e in case.of("driver.exception") if e["type"] == "AuthenticationError"]
    without = [e for e in exceptions if any(text in e["what"] for text in _MISSING)]
    without += [e for e in case.of("auth.none_found") if _is_drivers(e)]
    refused = [e for e in case.of("auth.refused") if _is_drivers(e)]
    refused += [e for e in exceptions if e not in without]
    if without:
        yield _of_driver(case, without, missing=True)
    elif refused:
        yield _of_driver(case, refused, missing=False)
    probes = _refused_probes(case)
    if probes and not (without or refused):
        yield _of_shell(probes)
    nodes = case.of("auth.raylet_refused", "auth.node_refused")
    nodes += [e for e in case.of("auth.none_found", "auth.refused") if not _is_drivers(e)]
    if nodes:
        yield _of_nodes(case, nodes)
    if not (without or refused or probes or nodes) and (burst := _burst(case)):
        yield _of_client(burst)


def _burst(case: Case) -> list[Event]:
    """The first requests without a token that follow each other as those of a client that retries."""
    found = [e for e in case.of(_NO_HEADER.kind) if e.at is not None]
    for first, last in zip(found, found[_BURST - 1 :], strict=False):
        if (last.at or 0) - (first.at or 0) <= _BURST_S:
            return [e for e in found if first.at <= e.at <= first.at + 2 * _BURST_S]  # type: ignore[operator]
    return []


def _of_client(burst: list[Event]) -> Finding:
    """Only the GCS's log is there: the client that it refused never became a driver."""
    seconds = duration((burst[-1].at or 0) - (burst[0].at or 0))
    return Finding(
        f"The GCS refused {evidence.total(burst)} requests without an authentication token within {seconds}: a driver "
        "or a ray command tried to connect and sent none",
        (
            Link(burst[0], "the GCS refuses the first request"),
            Link(burst[-1], "the GCS refuses the last request"),
        ),
        explains=(Entity("auth", "driver"),),
        severity="error",
        remedies=(_mode("that driver"), *_remedies("that driver", missing=True)),
        covers=tuple(burst),
    )


def _refused_probes(case: Case) -> list[Event]:
    """Services of the cluster that refused the live collection, with the state of its shell's token."""
    return [e for e in live.rows(case, "probes") if e["outcome"] == "unauthenticated"]


def _of_shell(probes: list[Event]) -> Finding:
    """Drivers that its shell starts send the same token as the live collection."""
    missing = any(e["detail"] == "token: missing" for e in probes)
    gcs = min(probes, key=lambda e: (e["name"] != "gcs", e["name"]))
    where = f" at {gcs['address']}" if gcs["address"] else ""
    has = "has none" if missing else "sends a wrong one"
    return Finding(
        f"The cluster{where} requires an authentication token, and the shell that ran raydoctor {has}, so the cluster refuses drivers and ray commands started from that shell",
        tuple(Link(e, _refusal(e, has)) for e in probes[:3]),
        explains=(Entity("auth", "shell"),),
        severity="error",
        remedies=_remedies("the shell that ran raydoctor", missing, with_mode=True),
    )


def _refusal(probe: Event, has: str) -> str:
    if probe["name"] == "auth":
        return f"the cluster requires a token, and the shell that ran raydoctor {has}"
    service = "GCS" if probe["name"] == "gcs" else probe["name"]
    return f"the {service} refuses a call of raydoctor"


def _is_drivers(event: Event) -> bool:
    return event.source.role in (*DRIVER, "core-driver")


def _of_driver(case: Case, refusals: list[Event], missing: bool) -> Finding:
    first, last = refusals[0], refusals[-1]
    address = connected_to(case, first)
    where = f" at {address['address']}" if address else ""
    lines = [e for e in refusals if "ray.exceptions." not in e.message]
    times = evidence.total(lines)
    if all(e.kind == _NONE_FOUND.kind for e in refusals):
        # Checked before the driver connects: whether the cluster requires a token is unknown.
        headline = f"The driver has no authentication token, and its own settings require one{f' for the cluster{where}' if where else ''}"
    elif missing:
        headline = f"The driver has no authentication token, and the cluster{where} requires one"
    else:
        often = f" {evidence.many(times, 'time')}" if times > 1 else ""
        headline = f"The cluster{where} refused the driver{often}: the driver sent no authentication token, or that of another cluster"
    links = [Link(address, "the driver connects to this cluster")] if address else []
    links.append(
        Link(first, "the driver finds no token" if missing else "the GCS refuses the token")
    )
    if last is not first:
        links.append(Link(last, "the driver gives up"))
    sources = {e.source for e in refusals}
    return Finding(
        headline,
        tuple(links),
        explains=(Entity("auth", "driver"),),
        remedies=(
            *((_mode("the driver"),) if any(_OFF in e["what"] for e in refusals) else ()),
            *_remedies("the driver", missing),
        ),
        covers=(*refusals, *(e for e in case.of("log.traceback") if e.source in sources)),
    )


def _of_nodes(case: Case, refusals: list[Event]) -> Finding:
    nodes = [n for e in refusals if (n := e["node"] or case.node_of(e.source))]
    unique = list(dict.fromkeys(nodes))
    names = evidence.join_names(case.ledger.node_ips.get(n) or evidence.short(n) for n in unique)
    subject = (
        f"node{'' if len(unique) == 1 else 's'} {names}" if names else "a process of the cluster"
    )
    return Finding(
        f"The GCS refuses {subject}: the authentication token there is missing or differs from the head's",
        tuple(Link(e, "the GCS refuses the node because of its token") for e in refusals[:3]),
        explains=(
            Entity("auth", "nodes"),
            *(Entity(kind, n) for n in unique for kind in ("raylet", "node")),
        ),
        count=max(1, len(unique)),
        severity="error",
        remedies=_remedies("that node", missing=False),
        covers=tuple(refusals),
    )


_COPY = "scp HEAD:.ray/auth_token ~/.ray/auth_token && chmod 600 ~/.ray/auth_token   # overwrites the file, even if it holds the token of another cluster"
_ELSEWHERE = "# If the head has no such file, write what ray get-auth-token prints there to ~/.ray/auth_token here"
_ENABLE = "export RAY_AUTH_MODE=token   # otherwise a driver with an explicit address does not read the token file"
_UNSET = (
    "unset RAY_AUTH_TOKEN RAY_AUTH_TOKEN_PATH   # if either is set, Ray ignores ~/.ray/auth_token"
)
_COMPARE = "sha256sum ~/.ray/auth_token   # on the head and here: if the two sums match, do not copy the file"


_OFF = "RAY_AUTH_MODE is currently 'disabled'"
"""Part of the exception of a driver that sends no token, whatever its token file holds."""


def _mode(place: str) -> Remedy:
    return Remedy(
        f"Enable tokens in {place}: ray start enables them for the cluster, but with an explicit address a driver does "
        "not read the token file otherwise",
        (
            "export RAY_AUTH_MODE=token   # before the driver starts. On the machine of the head, this is all",
        ),
        since=(2, 52),
        doc=_DOC,
    )


def _remedies(place: str, missing: bool, with_mode: bool = False) -> tuple[Remedy, ...]:
    mode = (_ENABLE,) if with_mode else ()
    steps = (*mode, _COPY, _UNSET, _ELSEWHERE) if missing else (*mode, _UNSET, _COMPARE, _COPY)
    return (
        Remedy(
            f"Give {place} the head's token",
            steps,
            since=(2, 52),
            doc=_DOC,
        ),
        Remedy(
            f"Or, if {place} has the token in another file (such as a mounted Secret), name that file",
            ("export RAY_AUTH_TOKEN_PATH=TOKEN_FILE; unset RAY_AUTH_TOKEN",),
            since=(2, 52),
            doc=_DOC,
        ),
        Remedy(
            "Or disable tokens on both sides, if only trusted machines can reach the cluster",
            (
                "export RAY_AUTH_MODE=disabled   # on every node before ray start, and in the shell that starts the driver",
            ),
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
    """The reply of the GCS to the live collection."""
    refused = (
        "InvalidAuthToken: Authentication token is missing or incorrect" if outcome != "ok" else ""
    )
    auth = {"name": "auth", "address": "10.0.0.2:8265", "outcome": outcome, "detail": detail}
    gcs = {"name": "gcs", "address": "10.0.0.2:6379", "outcome": outcome, "detail": refused}
    return sample.tables(1795258700.0, probes=[auth, gcs])


EXAMPLES: tuple[Example, ...] = (
    Example(
        "a driver without a token",
        {"driver.log": _NO_TOKEN, "logs/gcs_server.out": "", "logs/raylet.out": ""},
        says=("no authentication token", "10.0.0.2:6379", "RAY_AUTH_TOKEN_PATH"),
    ),
    console(
        "a driver without a token fails Ray's own check",
        f"{_CONNECTING}[2026-11-21 10:57:09,885 C 66 66] authentication_token_loader.cc:80:  Check failed: "
        f"has_token || ignore_auth_mode {_NONE_FOUND.sample}\n*** StackTrace Information ***\n",
        logs=QUIET_LOGS,
        says=("its own settings require one", "10.0.0.2:6379"),
    ),
    console(
        "`JobSubmissionClient` without a token: HTTP 401",
        f"{_FRAMES}ray.exceptions.AuthenticationError: Authentication required: Unauthorized: Missing authentication "
        "token\n\nToken authentication is enabled but no authentication token was found. Ensure that the token is available\n",
        says=("no authentication token",),
    ),
    Example(
        "a driver with another cluster's token",
        {"driver.log": _WRONG, "logs/gcs_server.out": _NOISE, "logs/raylet.out": ""},
        says=("refused", "21 times", "10.0.0.2:6379"),
    ),
    Example(
        "a node with another token cannot join",
        {"logs/raylet.out": _RAYLET, "logs/gcs_server.out": _NOISE},
        says=("10.0.0.3",),
        severity="error",
    ),
    Example(
        "the shell of a live collection has no token",
        {
            "logs/gcs_server.out": _NOISE,
            "logs/raylet.out": "",
            **_probed("unauthenticated", "token: missing"),
        },
        says=(
            "10.0.0.2:6379",
            "the shell that ran raydoctor has none",
            "export RAY_AUTH_MODE=token",
        ),
        severity="error",
    ),
    Example(
        "the shell of a live collection has another cluster's token",
        {
            "logs/gcs_server.out": _NOISE,
            "logs/raylet.out": "",
            **_probed("unauthenticated", "token: wrong"),
        },
        says=("sends a wrong one", "sha256sum"),
        severity="error",
    ),
    Example(
        "a token file exists, and the cluster requires no token",
        {"logs/gcs_server.out": "", "logs/raylet.out": "", **_probed("ok", "token: not needed")},
    ),
    Example(
        "records of a healthy cluster, once a minute",
        {
            "logs/gcs_server.out": "".join(_NOISE.replace(":57:", f":{m}:") for m in range(30, 60)),
            "logs/raylet.out": "",
            "driver.log": "done\n",
        },
    ),
    Example(
        "a driver with tokens disabled on the machine of the head",
        {
            "driver.log": _WRONG.replace(
                f"incorrect.{_ADVICE}", f"incorrect. Note: {_OFF} (not 'token').{_ADVICE}"
            ),
            **QUIET_LOGS,
        },
        says=("export RAY_AUTH_MODE=token",),
    ),
    Example(
        "only the GCS's log shows a client that retries without a token",
        {
            "logs/gcs_server.out": "".join(
                _NOISE.replace(":09,", f":{n:02},") for n in range(9, 29)
            ),
            "logs/raylet.out": "",
        },
        says=("refused 20 requests without an authentication token", "RAY_AUTH_MODE=token"),
        severity="error",
    ),
    console(
        "a task prints the same message",
        f"(check pid=12) {_REFUSED.sample}\n(check pid=12) {_NO_TOKEN.splitlines()[-1]}\n",
        logs=QUIET_LOGS,
    ),
)

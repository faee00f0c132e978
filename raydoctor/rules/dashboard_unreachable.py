"""A job client, a `ray` command or KubeRay's operator could not reach the dashboard, or something else answered.

## What you see
- `ConnectionError: Failed to connect to Ray at address: http://127.0.0.1:8265.` at the end of `ray job submit` or of a
  program with `JobSubmissionClient`, often below `HTTPConnectionPool(host='…', port=8265): Max retries exceeded with
  url: /api/version`.
- `Request failed with status code 502` (or 503, 504), `503 Server Error: … for url: http://…/api/version`.
- `Failed to connect to API server.` (`ServerUnavailable`, `RayStateApiException`) from `ray list`, `ray summary` or
  `ray.util.state`, and `Failed to reach the dashboard head at http://… to read task events`.
- `JSONDecodeError: Expecting value: line 1 column 1` in `dashboard_sdk.py`: a web page came back instead of JSON.
- KubeRay: `Put "http://train-head-svc…:8265/api/serve/applications/": dial tcp …: connect: connection refused`, or
  `UpdateDeployments fail: 404 Not Found`.

## Why
The dashboard serves the job API over HTTP, by default at 127.0.0.1:8265 on the head. Other machines reach it only if
the head was started with `--dashboard-host=0.0.0.0`, or through a tunnel or a port-forward. The GCS (port 6379) and Ray
Client (port 10001) do not use HTTP. Without `ray[default]`, Ray starts no dashboard. A proxy or an ingress replies with
502 to 504 if it does not reach the dashboard, or with a login page if it requires a login. A dashboard that is older
than its client replies with 404. `RAY_API_SERVER_ADDRESS` and `RAY_ADDRESS` take precedence over the address in a
program.

## Confirm
- `curl -sS http://HEAD:8265/api/version` from the same machine fails as well. A working dashboard prints JSON with
  Ray's version.
- On the head: `ss -ltnp` shows which address and port the dashboard listens on.
- Kubernetes: if `kubectl get endpoints NAME-head-svc` lists no address, the head is not ready: read its log.

## Fix
Use the dashboard's address and port, start the head with `--dashboard-host=0.0.0.0`, or forward the port.

## Not this when
- the dashboard ended (`dashboard-died`), or the cluster was stopped.
- the job API replied with an error of its own (`job-pending`, `package-too-large`, `auth-token`).
- the program talked to a server of its own, at another port or path.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import DRIVER, TRACEBACK
from raydoctor.cluster import hosts
from raydoctor.cluster.pods import SIGNALS, Pods
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import clause, cut
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared import jobs
from raydoctor.rules.shared.failures import ended_programs
from raydoctor.rules.shared.traceback import Raised, parse

_KUBERAY_DOC = (
    "https://docs.ray.io/en/latest/cluster/kubernetes/troubleshooting/troubleshooting.html"
)
_LONGEST = 120
_API = r"/api/(?:version|jobs|packages|serve|v0|cluster_status|component_activities)\b"

_NO_CONNECTION = Signal(
    "dashboard.no_connection", "Failed to connect to Ray at address: ",
    r"^(?:ConnectionError: )?Failed to connect to Ray at address: https?://(?P<address>[^\s/]{1,300}?)(?:/\S{0,300})?\.?$", DRIVER,
    "ConnectionError: Failed to connect to Ray at address: http://127.0.0.1:8265.", symptom=True,
)  # fmt: skip
"""`dashboard/modules/dashboard_sdk.py`, 1.9 to 2.60."""
_NO_REPLY = Signal(
    "dashboard.no_reply", "Max retries exceeded with url: ",
    rf"HTTPS?ConnectionPool\(host='(?P<host>[^']{{1,253}})', port=(?P<port>\d{{1,5}})\): Max retries exceeded with url: (?P<url>{_API}\S{{0,300}})"
    r"(?: \(Caused by (?P<why>[^\n]{1,600}))?", DRIVER,
    "requests.exceptions.ConnectionError: HTTPConnectionPool(host='head', port=8265): Max retries exceeded with url: /api/version "
    "(Caused by NewConnectionError('<urllib3.connection.HTTPConnection object at 0x7f11fc8037c0>: Failed to establish a new "
    "connection: [Errno 111] Connection refused'))",
    fold=("host", "port"),
)  # fmt: skip
_OF_OPERATOR = Signal(
    "dashboard.operator", ": dial tcp ",
    r"\b(?:Get|Put|Post|Delete) \\?\"https?://(?P<host>[\w.-]{1,253}):(?P<port>8265|52365)/api/[^\"\s]{0,300}\": dial tcp (?P<why>[^\"\n]{1,300})", DRIVER,
    'ERROR\tcontroller.rayservice\tReconciler error\t{"name": "serve", "error": "Put '
    '\\"http://serve-head-svc.ml.svc.cluster.local:8265/api/serve/applications/\\": dial tcp 10.100.36.128:8265: connect: connection refused"}',
    symptom=True, fold=("host",),
)  # fmt: skip
"""KubeRay's operator (`utils/dashboardclient`, 0.3 to 1.5)."""
_REQUEST = pattern(
    r"\b(?:Get|Put|Post|Delete) \"https?://(?P<address>[\w.-]{1,253}:(?:8265|52365))/api/[^\"\s]{0,300}\": dial tcp (?P<why>[^\"\n]{1,300})"
)
"""The same in an event of a RayService or a RayJob."""
_NOT_YET = 5
"""Failed requests below which the head may still be starting."""
_NO_API = Signal(
    "dashboard.no_api", " fail: ",
    r"\b(?P<call>UpdateDeployments|GetServeDetails|GetServeApplications|SubmitJob) fail: (?P<why>(?:404|50[234]) [A-Za-z]{1,30}(?: [A-Za-z]{1,30}){0,2})", DRIVER,
    "err: UpdateDeployments fail: 404 Not Found 404: Not Found",
    symptom=True, fold=("call",),
)  # fmt: skip
_NOT_JSON = Signal(
    "dashboard.not_json", " looking for beginning of value",
    r"\bRay(?:Job|Service)\b[^\n]{0,1000}\binvalid character '.{1,4}' looking for beginning of value", DRIVER,
    "ERROR\tcontrollers.RayJob\tfailed to submit job\t{\"error\": \"invalid character 'T' looking for beginning of value\"}",
    symptom=True,
)  # fmt: skip
"""The same: the reply to a request is no JSON."""
_GATEWAY = (
    Signal(
        "dashboard.gateway", "Request failed with status code 50",
        r"^(?:RuntimeError: )?Request failed with status code (?P<code>50[234]): (?P<what>[^\n]{0,300})", DRIVER,
        "RuntimeError: Request failed with status code 503: upstream connect error or disconnect/reset before headers.",
        symptom=True, fold=("code",),
    ),
    Signal(
        "dashboard.gateway", " Server Error: ",
        rf"(?P<code>50[234]) Server Error: (?P<what>[^\n]{{0,200}}?) for url: https?://(?P<address>[^\s/]{{1,300}})\S{{0,300}}?{_API}", DRIVER,
        "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: http://ray.example.com/api/version",
        symptom=True, fold=("code", "address"),
    ),
)  # fmt: skip
_NO_JSON = Signal(
    "dashboard.no_json", "JSONDecodeError: Expecting value: ",
    r"JSONDecodeError: Expecting value: line 1 column 1 \(char 0\)", DRIVER,
    "requests.exceptions.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
)  # fmt: skip
_NO_VERSION = Signal(
    "dashboard.no_version", "Version check returned 404.",
    r"^(?:RuntimeError: )?Version check returned 404\.", DRIVER,
    "RuntimeError: Version check returned 404. Please ensure the cluster is running Ray 1.9 or higher.", symptom=True,
)  # fmt: skip
_NO_STATE = (
    Signal(
        "dashboard.no_state", "Failed to connect to API server. Please check the API server log",
        r"^(?:ray\.util\.state\.exception\.)?(?:ServerUnavailable|RayStateApiException): Failed to connect to API server\. Please check the API server log"
        r"(?:[^\n]{0,600}Response\(url=https?://(?P<address>[^\s/]{1,300})\S{0,300}?,status=(?P<code>\d{3})\))?", DRIVER,
        "ray.util.state.exception.RayStateApiException: Failed to connect to API server. Please check the API server log for details. "
        "Response(url=http://10.0.0.2:8265/api/v0/tasks?limit=100,status=502)", symptom=True, fold=("address", "code"),
    ),
    Signal(
        "dashboard.no_state", " to read task events. Is the dashboard running?",
        r"^RuntimeError: Failed to reach the dashboard head at https?://(?P<address>[^\s/]{1,300})\S{0,300} to read task events\. Is the dashboard running\?", DRIVER,
        "RuntimeError: Failed to reach the dashboard head at http://10.0.0.2:8265/api/v0/task_events to read task events. Is the dashboard "
        "running?", symptom=True, fold=("address",),
    ),
    Signal(
        "dashboard.no_state", "Could not find the dashboard address to read task events",
        r"^RuntimeError: Could not find the dashboard address to read task events", DRIVER,
        "RuntimeError: Could not find the dashboard address to read task events from the dashboard head. Is the dashboard running?",
        symptom=True,
    ),
    Signal(
        "dashboard.no_state", "Failed to query the data source.",
        r"^(?:ray\.util\.state\.exception\.)?RayStateApiException: API server internal error\.[^\n]{0,300}Error: (?P<source>Failed to query the data source)\.", DRIVER,
        "ray.util.state.exception.RayStateApiException: API server internal error. See dashboard.log file for more details. Error: Failed "
        "to query the data source. It is either there's a network issue, or the source is down.", symptom=True,
    ),
)  # fmt: skip
"""The state API and CLI (`util/state/api.py`, `_private/state.py`, 2.9 to 2.60): exceptions of the program that asks."""
_NOT_FORWARDED = Signal(
    "dashboard.not_forwarded", "Failed to forward dashboard from remote port ",
    r"^(?:Error: )?Failed to forward dashboard from remote port (?P<port>\d{1,5}) to local port (?P<local>\d{1,5})\.", DRIVER,
    "Error: Failed to forward dashboard from remote port 8265 to local port 8265. There are a couple possibilities: ", symptom=True,
)  # fmt: skip
"""`ray dashboard` (`scripts/scripts.py`, 0.8 to 2.60)."""
_TAKEN = Signal(
    "dashboard.local_port", "cannot listen to port: ",
    r"cannot listen to port: (?P<port>\d{1,5})\s*$", DRIVER, "channel_setup_fwd_listener_tcpip: cannot listen to port: 8265",
)  # fmt: skip
"""From ssh, above Ray's message."""
_COMMAND = Signal(
    "dashboard.command", "ray job ",
    r"^(?!.*my_script\.py)(?:[^\n`]{0,200}`|(?:[^\n]{0,200}[$#>%❯] )?(?:\w{1,60}=\S{0,300} )*)(?:kubectl )?ray job (?:submit|logs|status|list|stop)\b[^\n]{0,300}", DRIVER,
    'RAY_ADDRESS="http://10.0.0.9:8265" ray job submit --working-dir . -- python train.py', precedes=True,
)  # fmt: skip
_HTTP_CLIENTS = ("urllib3/connection.py", "urllib3/connectionpool.py", "urllib3/util/connection.py", "http/client.py", "requests/adapters.py")  # fmt: skip
_CLIENT_FILE = "dashboard/modules/dashboard_sdk.py"
_HTTP_ERRORS = frozenset(
    {"ConnectionRefusedError", "RemoteDisconnected", "BadStatusLine", "gaierror", "TimeoutError"}
)
_WHY = pattern(
    r"\[Errno -?\d+\] (?P<errno>[A-Z][\w ]{3,60})|(?P<words>connection refused|no such host|i/o timeout|timed out|no route to host)", 2
)  # fmt: skip
_OTHER_PORTS = {"6379": "the GCS", "10001": "Ray Client"}


@rule(
    tier="cause",
    severity="error",
    rank=7,
    explains=("choice-of-cluster",),
    caused_by=("dashboard", "gcs", "host"),
    looks_for=(
        *SIGNALS,
        *(
            _NO_CONNECTION,
            _NO_REPLY,
            _OF_OPERATOR,
            _NO_API,
            _NOT_JSON,
            *_GATEWAY,
            _NO_JSON,
            _NO_VERSION,
            *_NO_STATE,
        ),
        *(_NOT_FORWARDED, _TAKEN, _COMMAND, jobs.ACCEPTED, TRACEBACK),
    ),
)
def dashboard_unreachable(case: Case) -> Iterator[Finding]:
    """One finding per address."""
    answered = case.of(jobs.ACCEPTED.kind)
    kinds = (_NO_CONNECTION, _NO_REPLY, _OF_OPERATOR, _NO_API, _NOT_JSON, _GATEWAY[0], _NO_VERSION)
    failed = [
        event
        for event in case.of(*(each.kind for each in kinds))
        if not any(each.source is event.source and each.offset > event.offset for each in answered)
    ]
    failed += [event for event in case.of(_NO_JSON.kind) if _is_in_client(case, event)]
    failed += [event for event in case.of(_NO_STATE[0].kind) if not evidence.goes_on(case, event)]
    lines = [event for event in failed if event.kind != _NO_REPLY.kind]
    # The client's own words name the address; the exception below it, the reason.
    for events in evidence.grouped(lines or failed, _address).values():
        reasons = [e for e in failed if e.kind == _NO_REPLY.kind and e.source is events[-1].source]
        yield _finding(case, events, reasons)
    if not failed:
        yield from _of_commands(case)
        yield from _of_events(case)
    for events in evidence.grouped(case.of(_NOT_FORWARDED.kind), lambda e: e["local"]).values():
        yield _not_forwarded(case, events)


def _of_events(case: Case) -> Iterator[Finding]:
    """Requests of KubeRay's operator that failed again and again, as the events of an object report them."""
    ready = {
        e["name"]
        for e in case.of("kube.service", "kube.job")
        if e["state"] in ("Running", "SUCCEEDED")
    }
    found: dict[str, list[tuple[Event, str]]] = {}
    pods = Pods(case)
    for event in case.of("kube.event"):
        request = _REQUEST.search(event["message"])
        is_ours = event["about"] == "Pod" or pods.is_of_ours(event["name"], event["namespace"])
        is_lasting = int(event["count"] or 1) >= _NOT_YET and event["name"] not in ready
        if request and is_ours and is_lasting:
            found.setdefault(request["address"], []).append((event, request["why"]))
    for address, events in found.items():
        last, why = events[-1]
        words = _WHY.search(why)
        yield Finding(
            f"KubeRay's operator could not reach the dashboard{' agent' if address.endswith(':52365') else ''} at {address}"
            + (f": {words['words']}" if words and words["words"] else ""),
            (Link(last, f"the operator's request failed {last['count']} times"),),
            explains=(Entity("choice-of-cluster", address),),
            caused_by=(Entity("dashboard", "head"), Entity("gcs", "gcs"), hosts.entity("head")),
            count=sum(int(e["count"] or 1) for e, _ in events),
            remedies=(_OF_HEAD,),
            covers=tuple(e for e, _ in events),
        )  # fmt: skip


def _not_forwarded(case: Case, events: list[Event]) -> Finding:
    """A `ray dashboard` command whose ssh did not connect the ports."""
    first = events[0]
    taken = [
        e for e in case.of(_TAKEN.kind) if e.source is first.source and e["port"] == first["local"]
    ]
    why = (
        f"another process uses port {first['local']}"
        if taken
        else f"ssh did not reach the head, or another process uses port {first['local']}"
    )
    return Finding(
        f"`ray dashboard` could not forward port {first['local']} of this machine to the dashboard: {why}",
        (
            Link(first, "the command gives up"),
            *(Link(e, "ssh cannot listen on the port") for e in taken[:1]),
        ),
        explains=(Entity("choice-of-cluster", ""),),
        count=evidence.total(events),
        remedies=(
            Remedy(
                f"Find the process that listens on port {first['local']} of this machine, or forward another port",
                (
                    paste.shell("ss -ltnp 'sport = :{port:number}'", port=first["local"]),
                    "ray dashboard cluster.yaml --port FREE_PORT",
                ),
            ),
            *(
                ()
                if taken
                else (
                    Remedy(
                        "Check that ssh reaches the head and that the dashboard runs there",
                        (
                            paste.shell("ray exec cluster.yaml 'curl -sS http://127.0.0.1:{port:number}/api/version'", port=first["port"]),
                        ),
                    ),
                )
            ),
        ),
        covers=(*events, *taken),
    )  # fmt: skip


def _address(event: Event) -> str:
    return event["address"] or ":".join(filter(None, (event["host"], event["port"])))


def _is_in_client(case: Case, event: Event) -> bool:
    """Whether the reply that is no JSON was one to Ray's client: its file is in the traceback that ended the program."""
    return any(
        ending.source is event.source
        and any(
            frame.file.endswith("dashboard/modules/dashboard_sdk.py") for frame in raised.frames
        )
        for ending, raised in ended_programs(case)
    )


def _finding(case: Case, events: list[Event], reasons: list[Event]) -> Finding:
    last = events[-1]
    address = _address(last) or next((_address(e) for e in reasons), "")
    return Finding(
        _headline(last, address, reasons),
        (
            Link(last, "the client reports that it could not use the dashboard"),
            *(
                Link(event, "the client's request failed")
                for event in reasons[:1]
                if event is not last
            ),
        ),
        explains=(Entity("choice-of-cluster", address),),
        caused_by=(Entity("dashboard", "head"), Entity("gcs", "gcs"), hosts.entity("head")),
        count=evidence.total(events),
        remedies=tuple(_remedies(last, address, is_refused=_REFUSED in _reason(reasons))),
        covers=(*events, *reasons, *_tracebacks(case, last)),
    )


def _headline(last: Event, address: str, reasons: list[Event]) -> str:
    at = f" at {address}" if address else ""
    if last.kind == _GATEWAY[0].kind:
        what = f" ({cut(clause(last['what']), _LONGEST)})" if last["what"] else ""
        return f"A proxy{at} answered the job client with status {last['code']}{what}: it did not reach Ray's dashboard"
    if last["source"]:
        return "The dashboard could not answer a query of the cluster's state: the GCS or a node's agent did not answer it"
    if last.kind == _NO_STATE[0].kind and last["code"]:
        return f"The server{at} answered a query of the cluster's state with status {last['code']}: a proxy did not reach the dashboard, or the dashboard failed"
    if last.kind == _NO_STATE[0].kind and not address:
        return "No dashboard answered a query of the cluster's state: it does not run, was not started, or is out of reach"
    speaks = _OTHER_PORTS.get(address.rpartition(":")[2])
    wrong = f" (the port of {speaks})" if speaks else ""
    return {
        _OF_OPERATOR.kind: f"KubeRay's operator could not reach the dashboard{at}{_why([last])}",
        _NO_API.kind: f"The dashboard did not accept a request of KubeRay's operator: {last['call']} failed with {last['why']}",
        _NOT_JSON.kind: "The dashboard did not answer KubeRay's operator with JSON: the reply is an error message or another server's",
        _NO_JSON.kind: "The server answered the job client with a page instead of JSON: it is a proxy or a login, not Ray's dashboard",
        _NO_VERSION.kind: "The server answered the job client's version check with 404: it is not the dashboard of Ray 1.9 or later",
    }.get(last.kind, f"No dashboard answers{at}{wrong}{_why(reasons)}")


def _why(reasons: list[Event]) -> str:
    reason = _reason(reasons)
    return f": {reason}" if reason else ""


def _reason(reasons: list[Event]) -> str:
    """The system's words for the error, in lower case; empty if no record has them."""
    found = (_WHY.search(event["why"]) for event in reasons)
    return next((f"{each['errno'] or each['words']}".lower() for each in found if each), "")


def _of_commands(case: Case) -> Iterator[Finding]:
    """A `ray job` command that failed in its HTTP client, if the text ends before the client's own message."""
    tracebacks = [(event, parse(event.text)) for event in case.of(TRACEBACK.kind)]
    for event, raised in (*ended_programs(case), *tracebacks):
        command = evidence.last_before(case, event, _COMMAND.kind)
        submitted = evidence.last_before(case, event, jobs.ACCEPTED.kind)
        if command is None or submitted or raised is None or not _is_http(raised):
            continue
        said = f" ({raised.name})" if raised.name else ""
        yield Finding(
            f"The command `ray job` could not reach the dashboard: its HTTP request failed{said}",
            (
                Link(command, "the command"),
                Link(event, "its request to the dashboard failed here", raised.code),
            ),
            explains=(Entity("choice-of-cluster", ""),),
            caused_by=(Entity("dashboard", "head"), Entity("gcs", "gcs"), hosts.entity("head")),
            remedies=tuple(_remedies(command, "")),
            covers=(event, *_tracebacks(case, event)),
        )
        return


def _is_http(raised: Raised) -> bool:
    """Whether it was raised, or cut off, in an HTTP client."""
    files = [frame.file.replace("\\", "/") for frame in raised.frames]
    return bool(
        files
        and files[-1].endswith(_HTTP_CLIENTS)
        and (not raised.type or raised.name in _HTTP_ERRORS)
    )


def _tracebacks(case: Case, event: Event) -> list[Event]:
    """The tracebacks of the HTTP client and of Ray's client in the same output: parts of one chain."""
    return [
        each
        for each in case.of(TRACEBACK.kind)
        if each.source is event.source
        and any(name in each.text for name in (*_HTTP_CLIENTS, _CLIENT_FILE))
    ]


_OF_HEAD = Remedy(
    "Check whether the head runs, listens on 0.0.0.0, and has the Ray version that the manifest names",
    (
        "kubectl get pods,endpoints -n NAMESPACE -l ray.io/node-type=head",
        "kubectl logs -n NAMESPACE HEAD_POD -c ray-head --tail=50",
        'rayStartParams: {dashboard-host: "0.0.0.0"}   # headGroupSpec',
    ),
    doc=_KUBERAY_DOC,
)


_REFUSED = "connection refused"
_LOOPBACK = ("127.0.0.1", "localhost", "0.0.0.0", "[::1]")


def _remedies(last: Event, address: str, *, is_refused: bool = False) -> Iterator[Remedy]:
    host, _, port = address.rpartition(":")
    if last.kind in (_OF_OPERATOR.kind, _NO_API.kind, _NOT_JSON.kind):
        yield _OF_HEAD
        return
    if port in _OTHER_PORTS:
        yield Remedy(
            "Use the dashboard's port",
            (
                paste.shell(
                    "ray job submit --address http://{host:address}:8265 -- python your_script.py",
                    host=host,
                ),
            ),
            doc=jobs.JOBS_DOC,
        )
        return
    if is_refused and host in _LOOPBACK:
        yield Remedy(
            f"Check that Ray runs on this machine, and on which port its dashboard listens: nothing listens on port {port}",
            (
                "ray status",
                "ss -ltnp | grep -i dashboard   # its port: 8265, unless ray start got --dashboard-port",
                paste.shell("ray start --head --dashboard-port={port:number}   # if no head runs here", port=port),
            ),
            doc=jobs.JOBS_DOC,
        )  # fmt: skip
        yield Remedy(
            "Forward this port if the head is on another machine",
            (
                paste.shell("ssh -N -L {port:number}:127.0.0.1:8265 HEAD   # without Kubernetes", port=port),
                paste.shell("kubectl port-forward -n NAMESPACE service/NAME-head-svc {port:number}:8265", port=port),
            ),
            doc=jobs.JOBS_DOC,
        )  # fmt: skip
        return
    yield Remedy(
        "Query the dashboard directly, from the same machine: a dashboard that works prints JSON with Ray's version",
        (
            paste.shell("curl -sS http://{address:address}/api/version", address=address)
            if address
            else "curl -sS http://HEAD:8265/api/version",
        ),
        doc=jobs.JOBS_DOC,
    )
    yield Remedy(
        "Start the head so that other machines reach its dashboard, or forward the port",
        (
            "ray start --head --dashboard-host=0.0.0.0   # needs ray[default]",
            "ssh -N -L 8265:127.0.0.1:8265 HEAD   # without Kubernetes",
            "kubectl port-forward -n NAMESPACE service/NAME-head-svc 8265:8265",
        ),
        risk="disruptive",
        doc=jobs.JOBS_DOC,
    )


# ------------------------------------------------------------------ examples

_CLIENT = """\
  File "/venv/lib/python3.11/site-packages/ray/dashboard/modules/job/sdk.py", line 113, in __init__
    self._check_connection_and_version(
  File "/venv/lib/python3.11/site-packages/ray/dashboard/modules/dashboard_sdk.py", line 300, in _check_connection_and_version_with_url
"""
_URLLIB = """\
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/urllib3/connection.py", line 198, in _new_conn
    sock = connection.create_connection(
  File "/venv/lib/python3.11/site-packages/urllib3/util/connection.py", line 73, in create_connection
    sock.connect(sa)
ConnectionRefusedError: [Errno 111] Connection refused
"""
_CHAINED = (
    f"{_URLLIB}\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n"
    f'{_CLIENT}    r = self._do_request("GET", url)\n{_NO_REPLY.sample}\n\nDuring handling of the above exception, another exception '
    f"occurred:\n\nTraceback (most recent call last):\n{_CLIENT}    raise ConnectionError(\n"
)

EXAMPLES: tuple[Example, ...] = (
    console(
        "the state API finds no dashboard",
        'Traceback (most recent call last):\n  File "/app/tasks.py", line 3, in <module>\n    list_tasks()\n'
        f"{_NO_STATE[0].sample.partition(' Response')[0].replace('RayStateApiException', 'ServerUnavailable')} \n",
        says=("does not run, was not started, or is out of reach", "curl -sS"),
    ),
    console(
        "a proxy answers the state API",
        f'Traceback (most recent call last):\n  File "/app/tasks.py", line 3, in <module>\n    list_tasks()\n{_NO_STATE[0].sample}\n',
        says=("10.0.0.2:8265", "status 502"),
    ),
    console(
        "the state API's source does not answer",
        f'Traceback (most recent call last):\n  File "/app/tasks.py", line 3, in <module>\n    list_tasks()\n{_NO_STATE[3].sample}\n',
        says=("the GCS or a node's agent did not answer",),
    ),
    console(
        "a monitoring script catches the error and continues",
        "".join(f"{signal.sample}\n" for signal in _NO_STATE) + "loss 0.1\n",
    ),
    console(
        "no dashboard at the address",
        f"{_CHAINED}ConnectionError: Failed to connect to Ray at address: http://head:8265.\n",
        says=("No dashboard answers at head:8265: connection refused", "curl -sS http://head:8265/api/version", "--dashboard-host=0.0.0.0"),
        is_typical=True,
    ),
    console(
        "the port of the GCS",
        f"Traceback (most recent call last):\n{_CLIENT}    raise ConnectionError(\n"
        "ConnectionError: Failed to connect to Ray at address: http://10.0.0.9:6379.\n",
        says=("10.0.0.9:6379 (the port of the GCS)", "--address http://10.0.0.9:8265"),
    ),
    console(
        "a wrong port, beside the logs of a cluster that runs",
        f"{_CHAINED}ConnectionError: Failed to connect to Ray at address: http://head:8266.\n",
        logs=QUIET_LOGS,
        says=("No dashboard answers at head:8266",),
    ),
    console(
        "only the HTTP client's error is left",
        f"{_NO_REPLY.sample}\n",
        says=("No dashboard answers at head:8265: connection refused",),
    ),
    console(
        "the operator's request is refused",
        f"{_OF_OPERATOR.sample}\n",
        says=("KubeRay's operator could not reach the dashboard at serve-head-svc", "connection refused", "kubectl get pods,endpoints"),
    ),
    *(
        Example(
            f"events of a RayService report the operator's request {count} times",
            {
                "events.txt": "Events:\n  Type    Reason                       Age                 From                   Message\n"
                "  ----    ------                       ----                ----                   -------\n"
                "  Normal  WaitForServeDeploymentReady  9m (xCOUNT over 9m)    rayservice-controller  "
                'Put "http://chat-head-svc.ml.svc:52365/api/serve/deployments/": dial tcp 10.0.0.9:52365: connect: connection refused\n'.replace('COUNT', str(count))
            },
            says=says,
        )
        for count, says in (
            (31, ("the dashboard agent at chat-head-svc.ml.svc:52365: connection refused",)),
            (2, ()),
        )
    ),
    console(
        "the dashboard is too old for the operator's request",
        f"{_NO_API.sample}\n",
        says=("UpdateDeployments failed with 404 Not Found",),
    ),
    console(
        "the operator gets a text instead of JSON",
        f"{_NOT_JSON.sample}\n",
        says=("did not answer KubeRay's operator with JSON",),
    ),
    console(
        "a proxy does not reach the dashboard",
        f"Traceback (most recent call last):\n{_CLIENT}    self._raise_error(r)\n{_GATEWAY[0].sample}\n",
        says=("A proxy answered the job client with status 503 (upstream connect error",),
    ),
    console(
        "an ingress does not reach the dashboard",
        f"Traceback (most recent call last):\n{_CLIENT}    r.raise_for_status()\n{_GATEWAY[1].sample}\n",
        says=("A proxy at ray.example.com answered the job client with status 503 (Service Unavailable)",),
    ),
    console(
        "a login page instead of JSON",
        f"Traceback (most recent call last):\n{_CLIENT}    running_ray_version = r.json()[\"ray_version\"]\n{_NO_JSON.sample}\n",
        says=("a page instead of JSON",),
    ),
    console(
        "another server answers the version check",
        f"Traceback (most recent call last):\n{_CLIENT}    raise RuntimeError(\n{_NO_VERSION.sample}\n",
        says=("answered the job client's version check with 404",),
    ),
    console(
        "the paste ends in the HTTP client of ray job submit",
        f"$ {_COMMAND.sample}\n{_URLLIB}",
        says=("could not reach the dashboard: its HTTP request failed (ConnectionRefusedError)",),
    ),
    console(
        "the first attempt fails, and a later one submits the job",
        f"{_NO_CONNECTION.sample}\nJob submission server address: http://127.0.0.1:8265\n{jobs.ACCEPTED.sample}\n",
    ),
    console(
        "the job's own request fails",
        f"$ {_COMMAND.sample}\n{jobs.ACCEPTED.sample}\n{_URLLIB}",
        roots=("job-failed",),
    ),
    console(
        "a program's own server does not answer",
        f"{_URLLIB}\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n"
        '  File "/app/reward.py", line 24, in get_reward\n    requests.post(url)\n'
        "requests.exceptions.ConnectionError: HTTPConnectionPool(host='127.0.0.1', port=5000): Max retries exceeded with url: /get_reward "
        "(Caused by NewConnectionError('<urllib3.connection.HTTPConnection object at 0x7f11fc8037c0>: Failed to establish a new "
        "connection: [Errno 111] Connection refused'))\n",
        roots=("job-failed",),
    ),
    console(
        "a KubeRay submitter submits the job, whose own request then fails",
        "2026-11-21 10:26:21,931\tSUCC cli.py:61 -- Job 'train-r5mrk' submitted successfully\n"
        f"2026-11-21 10:26:21,932\tINFO cli.py:292 -- ray job status train-r5mrk\n{_URLLIB}",
        roots=("job-failed",),
    ),
    console(
        "what ray start advises, above a program's own error",
        "To submit a Ray job using the Ray Jobs CLI:\n  RAY_ADDRESS='http://127.0.0.1:8265' ray job submit --working-dir . -- python my_script.py\n"
        f"{_URLLIB}",
        roots=("job-failed",),
    ),
    console(
        "`ray dashboard` cannot forward the port",
        f"$ ray dashboard cluster.yaml\n{_NOT_FORWARDED.sample}\n 1. The remote port is incorrectly specified \n",
        says=("forward port 8265 of this machine to the dashboard: ssh did not reach the head", "ray dashboard cluster.yaml --port"),
    ),
    console(
        "the local port is in use",
        f"bind [127.0.0.1]:8265: Address already in use\n{_TAKEN.sample}\n{_NOT_FORWARDED.sample}\n",
        says=("another process uses port 8265", "ss -ltnp 'sport = :8265'"),
    ),
    console(
        "a program quotes the command",
        f"(help pid=12) if you see {_NOT_FORWARDED.sample}\n",
    ),
)  # fmt: skip

"""The driver joined or started another Ray than the one that was meant, or would.

## What you see
"Submitted, but nothing happens": no task appears in the dashboard. A job's log says `Started a local Ray
instance.`, or a driver says `Connecting to existing Ray cluster at address: …` with an address that is not this
cluster's, or `Found multiple active Ray instances`.

## Why
`ray.init()` takes, in this order: its `address` argument, `RAY_ADDRESS`, the Ray of this machine that started last, a new
local one. A submitted job gets `RAY_ADDRESS`; it is lost by `ray.init(address="local")`, by a list of
environment variables that replaces all others, and in a container or nested shell that does not pass them on. The program then
runs on one machine's resources, and everything it logs is in that other session.

The Ray that started last is the one whose address stands in `/tmp/ray/ray_current_cluster`. Nobody removes that file when
a cluster dies: `ray.init()` and every `ray` command then wait 40 s for an address where nobody answers, though another
Ray runs on the machine (`Timed out while waiting for GCS to become available`; measured with Ray 2.60).

## Confirm
- The `Connecting to …` or `Started a local …` line of the driver, against `ray status` on the head you meant.
- `echo $RAY_ADDRESS; cat /tmp/ray/ray_current_cluster`, against the address that `ps -eo args | grep gcs-address` shows.
- `ls -d /tmp/ray/session_2*` on the driver's machine: more than one live session.
- `ray list jobs` on the cluster you meant: the job is not there.

## Fix
Take the address out of the program and set `RAY_ADDRESS` where it runs, or submit it as a job. A stale file: remove it.

## Not this when
The address is another name or interface of the same head, or the program starts a local Ray on purpose (a test).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, Signal, rule
from raydoctor.case.signals import DRIVER, JOB_STARTED, NODE_REGISTERED
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared.connect import CONNECTING, INIT_DOC, STARTED_LOCAL, is_this_cluster
from raydoctor.rules.shared.live import addresses

_CONNECTED = Signal(
    "driver.connected", "Connected to Ray cluster.", r"^Connected to Ray cluster\.", DRIVER,
    "Connected to Ray cluster. View the dashboard at http://127.0.0.1:8265",
)  # fmt: skip
_SEVERAL = Signal(
    "driver.several_rays", "Found multiple active Ray instances: ",
    r"Found multiple active Ray instances: \{(?P<addresses>[^}]*)\}\. (?:Connecting to latest cluster at (?P<taken>\S+?)\. |Please specify)",
    DRIVER,
    "Found multiple active Ray instances: {'10.0.0.2:6379', '10.0.0.3:6390'}. Connecting to latest cluster at 10.0.0.3:6390. You can "
    "override this by setting the `--address` flag or `RAY_ADDRESS` environment variable.",
)  # fmt: skip
_NONE = Signal(
    "driver.no_ray", "Could not find any running Ray instance.", r"^ConnectionError: Could not find any running Ray instance\.", DRIVER,
    "ConnectionError: Could not find any running Ray instance. Please specify the one to connect to by setting `--address` flag or "
    "`RAY_ADDRESS` environment variable.", symptom=True,
)  # fmt: skip

_JOB_DOC = (
    "https://docs.ray.io/en/latest/cluster/running-applications/job-submission/quickstart.html"
)
_NUMERIC = pattern(r"\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}")
_LOOPBACK = ("127.", "0.0.0.0")


@rule(
    tier="root",
    severity="error",
    rank=13,
    looks_for=(STARTED_LOCAL, CONNECTING, _CONNECTED, _SEVERAL, _NONE, *NODE_REGISTERED, *JOB_STARTED),
)  # fmt: skip
def wrong_cluster(case: Case) -> Iterator[Finding]:
    """Jobs with a Ray of their own, a driver of another cluster, and drivers that found several or none."""
    local = _local_jobs(case)
    if local:
        yield _of_jobs(local)
    if elsewhere := _elsewhere(case):
        yield _of_other_cluster(case, elsewhere)
    if several := case.of("driver.several_rays"):
        yield _of_several(case, several)
    if none := case.of("driver.no_ray"):
        yield _of_none(case, none)
    if found := addresses.astray(case):
        yield found


def _local_jobs(case: Case) -> list[Event]:
    """Ray's own line (it has a header) in the output of a submitted job that did not join the cluster as well."""
    joined = {e.source for e in case.of("driver.connecting")}
    return [
        e
        for e in case.of("driver.started_local")
        if e.source.role == "job-driver" and e.level and e.source not in joined
    ]


def _of_jobs(local: list[Event]) -> Finding:
    ids = [
        e.source.path.rpartition("/")[2].removeprefix("job-driver-").partition(".log")[0]
        for e in local
    ]
    one = len(local) == 1
    return Finding(
        f"{'Job' if one else f'{len(local)} jobs:'} {evidence.join_names(ids)} started a local Ray of {'its' if one else 'their'} own "
        "instead of using the cluster: nothing of it runs there",
        tuple(
            Link(e, "the job's program starts a Ray, where it should join one") for e in local[:3]
        ),
        explains=tuple(Entity("choice-of-cluster", i) for i in ids),
        count=len(local),
        remedies=(
            Remedy(
                "Let the program take the cluster that it is given: RAY_ADDRESS is set for submitted jobs",
                (
                    'ray.init()                     # not ray.init(address="local"), no ray.init(num_cpus=…)',
                    "docker run -e RAY_ADDRESS …     # a container or env -i in the entrypoint must pass it on",
                ),
                doc=_JOB_DOC,
            ),
        ),
        covers=tuple(local),
    )


def _elsewhere(case: Case) -> Event | None:
    """The one driver here joined a cluster at an address that no node of this one has, and is unknown to this GCS."""
    connecting = [e for e in case.of("driver.connecting") if e.source.role == "driver"]
    known = bool(case.of("node.registered")) and "gcs-out" in case.roles
    if len(connecting) != 1 or not known or case.ledger.jobs or "core-driver" in case.roles:
        return None
    told = connecting[0]
    joined = any(e.source is told.source for e in case.of("driver.connected"))
    foreign = _NUMERIC.fullmatch(told["ip"]) and not told["ip"].startswith(_LOOPBACK)
    return told if joined and foreign and not is_this_cluster(case, told) else None


def _of_other_cluster(case: Case, told: Event) -> Finding:
    here = evidence.join_names(case.ledger.node_ips.values())
    connected = next(e for e in case.of("driver.connected") if e.source is told.source)
    registered = case.of("node.registered")[0]
    return Finding(
        f"The driver joined the Ray at {told['address']}, not the cluster whose logs these are ({here})",
        (
            Link(told, "the driver goes to this address"),
            Link(connected, "and is let in"),
            Link(registered, f"the captured cluster's nodes are {here}, and its GCS has no job of any driver"),
        ),
        explains=(Entity("choice-of-cluster", told["address"]),),
        severity="warning",
        remedies=(
            Remedy(
                "If it should run here, point it here, and take the address out of the program",
                (
                    paste.shell("export RAY_ADDRESS={head:address}:6379", head=registered["ip"]),
                    "ray.init()",
                ),
                doc=INIT_DOC,
            ),
            Remedy(
                "If it should run there, look at that cluster's logs",
                (
                    paste.shell(
                        "raydoctor diagnose /tmp/ray/session_latest   # on {node}", node=told["ip"]
                    ),
                ),
            ),
        ),
    )  # fmt: skip


def _of_several(case: Case, told: list[Event]) -> Finding:
    first = told[0]
    addresses = sorted(a.strip().strip("'\"") for a in first["addresses"].split(","))
    taken = first["taken"]
    end = (
        f"the driver took the latest, {taken}"
        if taken
        else "the driver does not know which to join"
    )
    return Finding(
        f"{len(addresses)} Rays run on the driver's machine ({evidence.join_names(addresses)}): {end}",
        (Link(first, "Ray finds more than one"),),
        explains=(Entity("choice-of-cluster", first["addresses"]),),
        severity="info" if taken else "critical",
        remedies=(
            Remedy(
                "Say which one is meant",
                tuple(
                    paste.shell("export RAY_ADDRESS={address:address}", address=a)
                    for a in addresses[:3]
                ),
                doc=INIT_DOC,
            ),
        ),
        covers=(*told, *_tracebacks(case, first)),
    )


def _of_none(case: Case, told: list[Event]) -> Finding:
    nodes = case.of("node.registered")
    where = f"; the captured cluster's head is {nodes[0]['ip']}" if nodes else ""
    head = nodes[0]["ip"] if nodes else ""
    return Finding(
        f"No Ray runs on the driver's machine, and the driver was given no address of another{where}",
        (Link(told[0], "Ray finds none to join"),),
        explains=(Entity("choice-of-cluster", ""),),
        severity="critical",
        remedies=(
            Remedy(
                "Say where the cluster is, or start a node of it on this machine",
                (
                    paste.shell("export RAY_ADDRESS={head:address}:6379", head=head),
                    paste.shell("ray start --address={head:address}:6379", head=head),
                ),
                doc=INIT_DOC,
            ),
        ),
        covers=(*told, *_tracebacks(case, told[0])),
    )


def _tracebacks(case: Case, event: Event) -> tuple[Event, ...]:
    return tuple(e for e in case.of("log.traceback") if e.source is event.source)


# ------------------------------------------------------------------ examples


_STAMP = "2026-11-21 10:51:13,506\tINFO worker.py:1841 -- "
_JOINED = f"{_STAMP}Connecting to existing Ray cluster at address: 10.0.0.3:6390...\n{_STAMP}{_CONNECTED.sample}\ntokens 6000\n"
_GCS = (
    "[2026-11-21 10:49:50,000 I 17 25] (gcs_server) gcs_node_manager.cc:111: Registering new node. "
    "node_id=233399e68a6ec96cfd874e4b728f4405d4991263918f070383188198 node_name=10.0.0.2 node_address=10.0.0.2\n"
)
_JOB = "[2026-11-21 10:51:13,600 I 17 17] (gcs_server) gcs_job_manager.cc:115: Registering job. job_id=01000000 driver_pid=7\n"
_ENTRYPOINT = "Running entrypoint for job raysubmit_grZVwcH86PK5tgyy: python job.py\n"
_RAYLET = {"logs/raylet.out": ""}
_TRACEBACK = 'Traceback (most recent call last):\n  File "/app/train.py", line 24, in <module>\n    ray.init("auto")\n'
_FILE = "/tmp/ray/ray_current_cluster"


def _addresses(origin: str, address: str, answers: str, is_this: str = "false") -> dict[str, str]:
    """What this shell goes by, and the raylet that runs here."""
    head = '{"table": "addresses", "at": 1795258300.0, "from": "environment", "total": 2, "rows": ['
    used = f'{{"origin":"{origin}","address":"{address}","answers":{answers},"is_this":{is_this},"used":true}}'
    here = (
        '{"origin":"raylet","address":"10.0.0.2:6379","answers":true,"is_this":true,"used":false}'
    )
    return {"live/live-addresses.json": f"{head}\n{used},\n{here}\n]}}\n"}


EXAMPLES: tuple[Example, ...] = (
    Example(
        "a submitted job starts a Ray of its own",
        {
            "logs/job-driver-raysubmit_grZVwcH86PK5tgyy.log": f"{_ENTRYPOINT}{_STAMP}{STARTED_LOCAL.sample}\ntokens 6000\n",
            "logs/gcs_server.out": _GCS,
            **_RAYLET,
        },
        roots=("wrong-cluster",),
        says=("raysubmit_grZVwcH86PK5tgyy", "ray.init()"),
    ),
    Example(
        "the driver went to another cluster than the one captured",
        {"driver.log": _JOINED, "logs/gcs_server.out": _GCS, **_RAYLET},
        roots=("wrong-cluster",),
        says=("10.0.0.3:6390", "10.0.0.2"),
    ),
    Example(
        "two Rays on the machine, and the driver may not choose",
        {
            "driver.log": f"{_TRACEBACK}ConnectionError: {_SEVERAL.sample.partition(' Connecting')[0]} Please specify the one to "
            "connect to by setting the `--address` flag or `RAY_ADDRESS` environment variable.\n"
        },
        roots=("wrong-cluster",),
        says=("10.0.0.2:6379, 10.0.0.3:6390", "export RAY_ADDRESS=10.0.0.2:6379"),
    ),
    Example(
        "no Ray on the driver's machine",
        {"driver.log": f"{_TRACEBACK}{_NONE.sample}\n", "logs/gcs_server.out": _GCS, **_RAYLET},
        roots=("wrong-cluster",),
        says=("10.0.0.2",),
    ),
    Example(
        "a file of a cluster that is gone stands before the one that runs",
        {"logs/gcs_server.out": _GCS, **_RAYLET, **_addresses(_FILE, "10.0.0.9:6379", "false")},
        roots=("wrong-cluster",),
        says=("40 s", "rm /tmp/ray/ray_current_cluster", "export RAY_ADDRESS=10.0.0.2:6379"),
    ),
    Example(
        "RAY_ADDRESS names another live cluster",
        {
            "logs/gcs_server.out": _GCS,
            **_RAYLET,
            **_addresses("RAY_ADDRESS", "10.0.0.9:6379", "true"),
        },
        roots=("wrong-cluster",),
        says=("another live cluster, 10.0.0.9:6379", "unset RAY_ADDRESS"),
    ),
    Example(
        "RAY_ADDRESS is no address of a GCS",
        {
            "logs/gcs_server.out": _GCS,
            **_RAYLET,
            **_addresses("RAY_ADDRESS", "ray://10.0.0.9:10001", "null"),
        },
    ),
    Example(
        "the file of the cluster that runs",
        {
            "logs/gcs_server.out": _GCS,
            **_RAYLET,
            **_addresses(_FILE, "10.0.0.2:6379", "true", "true"),
        },
    ),
    Example(
        "another name of the same head: its GCS knows the job",
        {"driver.log": _JOINED, "logs/gcs_server.out": _GCS + _JOB, **_RAYLET},
    ),
    Example(
        "a program that was run by hand starts a local Ray, as it should",
        {
            "driver.log": f"{_STAMP}{STARTED_LOCAL.sample}\n",
            "logs/gcs_server.out": _GCS + _JOB,
            **_RAYLET,
        },
    ),
    Example(
        "a job that prints the words, and one that joined first",
        {
            "logs/job-driver-raysubmit_x1.log": f"{_STAMP}Connecting to existing Ray cluster at address: 10.0.0.2:6379...\n"
            f"(check pid=12) {STARTED_LOCAL.sample}\nStarted a local Ray instance for the tests? no\n",
            "logs/gcs_server.out": _GCS + _JOB,
            **_RAYLET,
        },
    ),
)

"""The driver joined or started a different Ray cluster than intended, or the next driver on this machine will.

## What you see
- The program runs, but no task of it appears in the dashboard. The job's log contains `Started a local Ray instance.`
- A driver prints `Connecting to existing Ray cluster at address: …` with an address that is not this cluster's, or
  `Found multiple active Ray instances`.

## Why
`ray.init()` uses the first of these that exists: its `address` argument, `RAY_ADDRESS`, the cluster that was started
last on this machine, a new local cluster. A submitted job gets `RAY_ADDRESS`. The job does not use this address if it
calls `ray.init(address="local")`, if its entrypoint starts the program with a new environment (`env -i`,
`subprocess.run(env={…})`), or if a container or nested shell does not pass the variable on. The program then runs on
the resources of one machine, and its logs are in another session.

`/tmp/ray/ray_current_cluster` contains the address of the cluster that was started last. Nothing removes that file when
a cluster dies. `ray.init()` and every `ray` command then wait 40 s for an address that does not answer, even if another
cluster runs on the machine (`Timed out while waiting for GCS to become available`; measured with Ray 2.60).

## Confirm
- Compare the driver's `Connecting to …` or `Started a local …` line with `cat /tmp/ray/ray_current_cluster` on the
  intended head.
- Compare `echo $RAY_ADDRESS; cat /tmp/ray/ray_current_cluster` on the driver's machine with the address of the cluster
  that runs there: `ps -C raylet -o args= | grep -o 'gcs-address=[^ ]*'`.
- `pgrep -a gcs_server` on the driver's machine prints more than one line: several heads run there.
- `ray list jobs` on the intended cluster does not show the job.

## Fix
Remove the address from the program and set `RAY_ADDRESS` where it runs, or submit the program as a job. If no cluster
runs at the address in `/tmp/ray/ray_current_cluster`, remove that file.

## Not this when
- the address is another name or interface of the same head.
- the program starts a local cluster on purpose (a test).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, Signal, console, rule
from raydoctor.case.signals import DRIVER, JOB_STARTED, NODE_REGISTERED
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared.connect import (
    CONNECTED,
    CONNECTING,
    INIT_DOC,
    STARTED_LOCAL,
    is_this_cluster,
)
from raydoctor.rules.shared.live import addresses
from raydoctor.rules.shared.live import examples as sample

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
    explains=("choice-of-cluster",),
    looks_for=(STARTED_LOCAL, CONNECTING, CONNECTED, _SEVERAL, _NONE, *NODE_REGISTERED, *JOB_STARTED),
)  # fmt: skip
def wrong_cluster(case: Case) -> Iterator[Finding]:
    """Jobs that started a local Ray, a driver of another cluster, and drivers that found several clusters or none."""
    local = _local_jobs(case)
    if local:
        yield _of_jobs(local)
    if elsewhere := _elsewhere(case):
        yield _of_other_cluster(case, elsewhere)
    if several := [e for e in case.of("driver.several_rays") if len(_running(e)) > 1]:
        yield _of_several(case, several)
    if none := case.of("driver.no_ray"):
        yield _of_none(case, none)
    if found := addresses.astray(case):
        yield found


def _local_jobs(case: Case) -> list[Event]:
    """Ray's record (it has a header) in the output of submitted jobs that did not also join the cluster."""
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
        f"{'Job' if one else f'{len(local)} jobs:'} {evidence.join_names(map(repr, ids))} started {'its' if one else 'their'} own local cluster "
        "instead of joining the one of this capture",
        tuple(Link(e, "the job's program started a local cluster") for e in local[:3]),
        explains=tuple(Entity("choice-of-cluster", i) for i in ids),
        count=len(local),
        remedies=(
            Remedy(
                "Call ray.init() without an address: Ray sets RAY_ADDRESS for submitted jobs",
                (
                    'ray.init()                     # not ray.init(address="local")',
                    "docker run -e RAY_ADDRESS   # plus your other options: only if the entrypoint starts a container",
                    'env -i RAY_ADDRESS="$RAY_ADDRESS" python your_script.py   # only if the entrypoint clears the environment',
                ),
                doc=_JOB_DOC,
            ),
        ),
        covers=tuple(local),
    )


def _elsewhere(case: Case) -> Event | None:
    """The only driver, if it joined an address that no node of this cluster has, and this GCS has no job of it."""
    connecting = [e for e in case.of("driver.connecting") if e.source.role == "driver"]
    known = bool(case.of("node.registered")) and "gcs-out" in case.roles
    if len(connecting) != 1 or not known or case.ledger.jobs or "core-driver" in case.roles:
        return None
    only = connecting[0]
    joined = any(e.source is only.source for e in case.of("driver.connected"))
    foreign = _NUMERIC.fullmatch(only["ip"]) and not only["ip"].startswith(_LOOPBACK)
    return only if joined and foreign and not is_this_cluster(case, only) else None


def _of_other_cluster(case: Case, connecting: Event) -> Finding:
    here = evidence.join_names(case.ledger.node_ips.values())
    connected = next(e for e in case.of("driver.connected") if e.source is connecting.source)
    registered = case.of("node.registered")[0]
    return Finding(
        f"The driver joined the cluster at {connecting['address']}, not the captured cluster ({here})",
        (
            Link(connecting, "the driver connects to this address"),
            Link(connected, "the driver joined that cluster"),
            Link(registered, f"the captured cluster has only {here}, and its GCS records no job"),
        ),
        explains=(Entity("choice-of-cluster", connecting["address"]),),
        severity="warning",
        remedies=(
            Remedy(
                "If it should run on the captured cluster, set RAY_ADDRESS and remove the address from the program",
                (
                    paste.shell("export RAY_ADDRESS={head:address}:6379   # in the shell", head=registered["ip"]),
                    "ray.init()   # in the program",
                ),
                doc=INIT_DOC,
            ),
            Remedy(
                "If it should run on the other cluster, diagnose that cluster's logs",
                (
                    paste.shell(
                        "raydoctor diagnose /tmp/ray/session_latest   # on {node}", node=connecting["ip"]
                    ),
                ),
            ),
        ),
    )  # fmt: skip


def _running(event: Event) -> list[str]:
    listed = (a.strip().strip("'\"") for a in event["addresses"].split(","))
    return sorted(address for address in listed if address)


def _of_several(case: Case, records: list[Event]) -> Finding:
    first = records[0]
    addresses = _running(first)
    taken = first["taken"]
    end = (
        f"the driver joined the latest, {taken}"
        if taken
        else "the driver needs an address to choose one"
    )
    return Finding(
        f"{len(addresses)} Ray clusters run on the driver's machine ({evidence.join_names(addresses)}), and {end}",
        (Link(first, "Ray found more than one cluster"),),
        explains=(Entity("choice-of-cluster", first["addresses"]),),
        severity="critical" if not taken else "info" if _raised(case) else "warning",
        remedies=(
            Remedy(
                "Set the address of the intended cluster",
                (
                    paste.shell(
                        "export RAY_ADDRESS={address:address}   # or {others}",
                        address=addresses[0],
                        others=" or ".join(addresses[1:3]),
                    )
                    if addresses[1:]
                    else paste.shell("export RAY_ADDRESS={address:address}", address=addresses[0]),
                ),
                doc=INIT_DOC,
            ),
        ),
        covers=(*records, *_tracebacks(case, first)),
    )


def _raised(case: Case) -> bool:
    """Whether the capture has an exception, which the choice of a cluster need not have caused."""
    return bool(case.of("driver.exception", "log.traceback"))


def _of_none(case: Case, records: list[Event]) -> Finding:
    nodes = case.of("node.registered")
    where = f" (the captured cluster's head is {nodes[0]['ip']})" if nodes else ""
    head = nodes[0]["ip"] if nodes else ""
    return Finding(
        f"The driver found no Ray on its machine and has no address of another cluster{where}",
        (Link(records[0], "Ray found no cluster to join"),),
        explains=(Entity("choice-of-cluster", ""),),
        severity="critical",
        remedies=(
            Remedy(
                "Set the cluster's address, or start one of its nodes on this machine",
                (
                    paste.shell("export RAY_ADDRESS={head:address}:6379", head=head),
                    paste.shell(
                        "ray start --address={head:address}:6379   # to start a node here",
                        head=head,
                    ),
                ),
                doc=INIT_DOC,
            ),
            *(
                ()
                if head
                else (
                    Remedy(
                        "If there is no cluster yet, start one, or let the program start Ray itself",
                        (
                            "ray start --head   # then run the program again",
                            "ray.init()   # without an address, and without RAY_ADDRESS",
                        ),
                        doc=INIT_DOC,
                    ),
                )
            ),
        ),
        covers=(*records, *_tracebacks(case, records[0])),
    )


def _tracebacks(case: Case, event: Event) -> tuple[Event, ...]:
    return tuple(e for e in case.of("log.traceback") if e.source is event.source)


# ------------------------------------------------------------------ examples


_STAMP = "2026-11-21 10:51:13,506\tINFO worker.py:1841 -- "
_JOINED = f"{_STAMP}Connecting to existing Ray cluster at address: 10.0.0.3:6390...\n{_STAMP}{CONNECTED.sample}\ntokens 6000\n"
_GCS = (
    "[2026-11-21 10:49:50,000 I 17 25] (gcs_server) gcs_node_manager.cc:111: Registering new node. "
    "node_id=233399e68a6ec96cfd874e4b728f4405d4991263918f070383188198 node_name=10.0.0.2 node_address=10.0.0.2\n"
)
_JOB = "[2026-11-21 10:51:13,600 I 17 17] (gcs_server) gcs_job_manager.cc:115: Registering job. job_id=01000000 driver_pid=7\n"
_ENTRYPOINT = "Running entrypoint for job raysubmit_grZVwcH86PK5tgyy: python job.py\n"
_RAYLET = {"logs/raylet.out": ""}
_TRACEBACK = 'Traceback (most recent call last):\n  File "/app/train.py", line 24, in <module>\n    ray.init("auto")\n'
_FILE = "/tmp/ray/ray_current_cluster"


def _addresses(
    origin: str, address: str, answers: bool | None, is_this: bool = False
) -> dict[str, str]:
    """The address that this shell uses, and the raylet on this machine."""
    used: sample.Row = {
        "origin": origin,
        "address": address,
        "answers": answers,
        "is_this": is_this,
    }
    here: sample.Row = {
        "origin": "raylet",
        "address": "10.0.0.2:6379",
        "answers": True,
        "is_this": True,
    }
    rows = [{**used, "used": True}, {**here, "used": False}]
    return sample.tables(1795258300.0, addresses=rows)


EXAMPLES: tuple[Example, ...] = (
    Example(
        "a submitted job starts its own cluster, while the intended head, 10.0.0.2, is up",
        {
            "logs/job-driver-raysubmit_grZVwcH86PK5tgyy.log": f"{_ENTRYPOINT}{_STAMP}{STARTED_LOCAL.sample}\ntokens 6000\n",
            "logs/gcs_server.out": _GCS,
            **_RAYLET,
        },
        says=("raysubmit_grZVwcH86PK5tgyy", "ray.init()"),
    ),
    Example(
        "the driver joined another cluster than the captured one",
        {"driver.log": _JOINED, "logs/gcs_server.out": _GCS, **_RAYLET},
        says=("10.0.0.3:6390", "10.0.0.2"),
        severity="warning",
    ),
    console(
        "two clusters on the machine, and the driver cannot choose",
        f"{_TRACEBACK}ConnectionError: {_SEVERAL.sample.partition(' Connecting')[0]} Please specify the one to "
        "connect to by setting the `--address` flag or `RAY_ADDRESS` environment variable.\n",
        says=("10.0.0.2:6379 and 10.0.0.3:6390", "export RAY_ADDRESS=10.0.0.2:6379"),
        severity="critical",
    ),
    console(
        "two clusters on the machine, and Ray chose one",
        f"2026-11-21 10:51:13,506\tWARNING services.py:412 -- {_SEVERAL.sample}\n",
        says=("joined the latest, 10.0.0.3:6390",),
        severity="warning",
    ),
    Example(
        "no Ray on the driver's machine",
        {"driver.log": f"{_TRACEBACK}{_NONE.sample}\n", "logs/gcs_server.out": _GCS, **_RAYLET},
        says=("10.0.0.2",),
        severity="critical",
    ),
    console(
        "no cluster runs anywhere",
        f"{_TRACEBACK}{_NONE.sample}\n",
        says=("ray start --head", "ray.init()"),
        severity="critical",
    ),
    Example(
        "a stale address file of a dead cluster hides the running one",
        {"logs/gcs_server.out": _GCS, **_RAYLET, **_addresses(_FILE, "10.0.0.9:6379", False)},
        says=("40 s", "rm /tmp/ray/ray_current_cluster", "export RAY_ADDRESS=10.0.0.2:6379"),
    ),
    Example(
        "RAY_ADDRESS names another live cluster",
        {
            "logs/gcs_server.out": _GCS,
            **_RAYLET,
            **_addresses("RAY_ADDRESS", "10.0.0.9:6379", True),
        },
        says=("another live cluster, 10.0.0.9:6379", "unset RAY_ADDRESS"),
        severity="warning",
    ),
    Example(
        "RAY_ADDRESS is not the address of a GCS",
        {
            "logs/gcs_server.out": _GCS,
            **_RAYLET,
            **_addresses("RAY_ADDRESS", "ray://10.0.0.9:10001", None),
        },
    ),
    Example(
        "the address file of the running cluster",
        {
            "logs/gcs_server.out": _GCS,
            **_RAYLET,
            **_addresses(_FILE, "10.0.0.2:6379", True, True),
        },
    ),
    Example(
        "another name of the same head, whose GCS records the job",
        {"driver.log": _JOINED, "logs/gcs_server.out": _GCS + _JOB, **_RAYLET},
    ),
    Example(
        "a program started by hand uses a local Ray on purpose",
        {
            "driver.log": f"{_STAMP}{STARTED_LOCAL.sample}\n",
            "logs/gcs_server.out": _GCS + _JOB,
            **_RAYLET,
        },
    ),
    Example(
        "a job that joined the cluster prints the same text",
        {
            "logs/job-driver-raysubmit_x1.log": f"{_STAMP}Connecting to existing Ray cluster at address: 10.0.0.2:6379...\n"
            f"(check pid=12) {STARTED_LOCAL.sample}\nStarted a local Ray instance for the tests? no\n",
            "logs/gcs_server.out": _GCS + _JOB,
            **_RAYLET,
        },
    ),
)

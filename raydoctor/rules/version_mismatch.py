"""A driver could not join the cluster because its Ray or Python version differs from the cluster's.

## What you see
`ray.init` raises `RuntimeError: Version mismatch: The cluster was started with: Ray: … Python: … This process on … was
started with: …`. `ray drain-node`, `ray status` and the job client compare only the Ray versions: `Ray version
mismatch: cluster has Ray version 2.40.0 but local Ray version is 2.60.0`. If the versions are far apart, the driver
fails before it can compare them. Against a newer cluster, a driver older than Ray 2.55 then fails with
`ConnectionError: Could not read 'temp_dir' from GCS. Did GCS start successfully?`. Against an older cluster, a driver
of Ray 2.54 or newer fails with `No node info found matching attributes`.

## Why
Driver and cluster exchange pickled objects and Ray's own messages, and both differ between releases. Ray compares its
own version and Python's in full: 3.11.7 does not match 3.11.8. Ray Client (`ray://`) compares only the first two
numbers of Python's version.

## Confirm
- `python -c "import ray, sys; print(ray.__version__, sys.version)"` prints different versions on the driver's machine
  and on the head. The head's `gcs_server.out` has its version after `ray_version=`.

## Fix
Install the cluster's Ray (`pip install 'ray[default]==VERSION'`) and Python on the driver's machine, or submit the
program with `ray job submit`, which runs it on the cluster.

## Not this when
- the cluster is down or unreachable: the error is then `Failed to connect to GCS`, without a version
  (`gcs-unreachable`).
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import DRIVER, NODE_REGISTERED, RAY_VERSION
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared.connect import (
    CONNECTING,
    INIT_DOC,
    NO_NODE_INFO,
    connected_to,
    is_this_cluster,
)

_TOLD = Signal(
    "version.mismatch", "ersion mismatch: The cluster was started with:",
    r"^(?:(?:.{0,200}?[\s:])?(?P<raised>RuntimeError|Exception): )?(?P<what>Version|Python patch version) mismatch: The cluster was started with:\n"
    r" +Ray: (?P<ray>\S+)\n(?: +Ray location: [^\n]+\n)? +Python: (?P<python>\S+)\n(?: +Cloudpickle: (?P<pickle>\S+)\n)?(?: +Pyarrow: \S+\n)?"
    r"This process on (?P<where>[^\n]+) was started with:\n"
    r" +Ray: (?P<own_ray>\S+)\n(?: +Ray location: [^\n]+\n)? +Python: (?P<own_python>\S+)(?:\n +Cloudpickle: (?P<own_pickle>\S+))?", DRIVER,
    "RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.40.0\n    Python: 3.11.7\n"
    "This process on node 10.0.0.2 was started with:\n    Ray: 2.50.0\n    Python: 3.11.7\n",
    extent="record", symptom=True, fold=("ray", "python", "own_ray", "own_python"),
)  # fmt: skip
_OF_COMMAND = (
    Signal(
        "version.of_command", "Ray version mismatch: cluster has Ray version ",
        r"^(?:RuntimeError: )?Ray version mismatch: cluster has Ray version (?P<ray>[\w.+-]{1,60}) but local Ray version is (?P<own_ray>[\w.+-]{1,60})$",
        DRIVER, "RuntimeError: Ray version mismatch: cluster has Ray version 2.40.0 but local Ray version is 2.60.0", symptom=True,
    ),
    Signal(
        "version.of_command", " is running on the cluster. Please ensure the cluster is running Ray ",
        r"^(?:RuntimeError: )?Ray version (?P<ray>[\w.+-]{1,60}) is running on the cluster\. Please ensure the cluster is running Ray (?P<own_ray>[\d.]{1,20}\d) or higher",
        DRIVER, "RuntimeError: Ray version 1.8.0 is running on the cluster. Please ensure the cluster is running Ray 1.9 or higher.", symptom=True,
    ),
)  # fmt: skip
"""A `ray` command (`scripts/scripts.py`), and a client of the dashboard (`dashboard/modules/dashboard_sdk.py`)."""
_OF_CLIENT = (
    Signal(
        "version.of_client", " minor versions differ between client and server: client is ",
        r"^(?:[\w.]{1,80}: )?Python minor versions differ between client and server: client is (?P<own_python>[\d.]{1,20}\d), server is (?P<python>[\d.]{1,20}\d)",
        DRIVER, "RuntimeError: Python minor versions differ between client and server: client is 3.10.4, server is 3.9.16", symptom=True,
    ),
    Signal(
        "version.of_client", "Client Ray installation incompatible with server: ",
        r"^(?:[\w.]{1,80}: )?Client Ray installation incompatible with server: client is (?P<own>[\w.-]{1,60}), server is (?P<of_server>[\w.-]{1,60})",
        DRIVER, "RuntimeError: Client Ray installation incompatible with server: client is 2021-09-22, server is 2021-05-20", symptom=True,
    ),
)  # fmt: skip
"""Ray Client up to 2.4 (`util/client/__init__.py`): it compared versions of Python, and dates of its protocol."""
_CUT_OFF = Signal(
    "version.cut_off", "ersion mismatch: The cluster was started with:",
    r"^(?:.{0,200}?[\s:])?RuntimeError: Version mismatch: The cluster was started with:$", DRIVER,
    "RuntimeError: Version mismatch: The cluster was started with:",
)  # fmt: skip
"""Its first line, which is all that an excerpt may show."""
_NO_TEMP_DIR = Signal(
    "version.no_temp_dir", "from GCS. Did GCS start successfully?",
    r"^ConnectionError: Could not read '(?:temp_dir|session_dir)' from GCS\. Did GCS start successfully\?", DRIVER,
    "ConnectionError: Could not read 'temp_dir' from GCS. Did GCS start successfully?",
    symptom=True,
)  # fmt: skip

_TEMP_DIR_GONE = (2, 55)
"""The GCS stores `temp_dir` and `session_dir` as keys up to 2.54 (`_private/node.py` of 2.9.3 to 2.60)."""
_NODE_INFO_SINCE = (2, 54)
"""`get_node_to_connect_for_driver` requests them in 2.54, but not yet in 2.53 (`_private/services.py`)."""


@rule(
    tier="root",
    severity="critical",
    rank=12,
    explains=("versions",),
    looks_for=(
        _TOLD,
        _CUT_OFF,
        *_OF_CLIENT,
        *_OF_COMMAND,
        _NO_TEMP_DIR,
        NO_NODE_INFO,
        CONNECTING,
        *RAY_VERSION,
        *NODE_REGISTERED,
    ),
)
def version_mismatch(case: Case) -> Iterator[Finding]:
    """One finding per pair of versions that Ray compared, or one for an error that only a version mismatch causes."""
    pairs: dict[tuple[str, ...], list[Event]] = {}
    for event in case.of("version.mismatch"):
        if event["what"] == "Version":
            key = tuple(event[f] for f in ("ray", "python", "own_ray", "own_python"))
            pairs.setdefault(key, []).append(event)
    for events in pairs.values():
        yield _compared(case, events)
    for events in evidence.grouped(case.of(_OF_COMMAND[0].kind), lambda e: e.text).values():
        if not evidence.goes_on(case, events[-1]):
            yield _of_command(case, events)
    of_client = [e for e in case.of(_OF_CLIENT[0].kind) if not evidence.goes_on(case, e)]
    for events in evidence.grouped(of_client, lambda e: e["python"] or e["of_server"]).values():
        yield _of_client(case, events)
    if not pairs and (inferred := _inferred(case)):
        yield inferred
    elif not pairs:
        yield from _cut_off(case)


def _of_command(case: Case, events: list[Event]) -> Finding:
    """A command or client that compared Ray's version with the cluster's, and stopped."""
    first = events[0]
    ray, own = first["ray"], first["own_ray"]
    needs = f"it needs Ray {own} or later" if "or higher" in first.text else f"it is of Ray {own}"
    return Finding(
        f"A command or client does not work with this cluster: {needs}, and the cluster runs Ray {ray}",
        (Link(first, "Ray compared the versions"),),
        explains=(Entity("versions", f"{own} {ray}"),),
        severity="error",
        count=evidence.total(events),
        remedies=tuple(_remedies(ray, "", ["Ray"])),
        covers=(*events, *(e for e in case.of("log.traceback") if e.source is first.source)),
    )


def _of_client(case: Case, events: list[Event]) -> Finding:
    """A program of Ray Client that the server's versions do not fit."""
    first = events[0]
    python = first["python"]
    what = (
        f"it runs Python {first['own_python']}, and the cluster Python {python}"
        if python
        else f"its protocol is of {first['own']}, and the cluster's of {first['of_server']}: their versions of Ray differ"
    )
    return Finding(
        f"Ray Client cannot join the cluster: {what}",
        (Link(first, "Ray compared the versions of the client and the server"),),
        explains=(Entity("versions", f"client {python or first['of_server']}"),),
        count=evidence.total(events),
        remedies=(
            Remedy(
                "Run the program with the cluster's versions of Python and Ray: compare those in its environment and on the head",
                ("python -c 'import ray, sys; print(ray.__version__, sys.version)'",),
                doc=INIT_DOC,
            ),
        ),
        covers=(*events, *(e for e in case.of("log.traceback") if e.source is first.source)),
    )  # fmt: skip


def _cut_off(case: Case) -> Iterator[Finding]:
    """At most one finding, where a console cuts the versions off."""
    cut = [e for e in case.of(_CUT_OFF.kind) if e.source.is_excerpt]
    for event in [e for e in cut if not evidence.later_output(case, e)][:1]:
        yield Finding(
            "The driver cannot join the cluster: it runs another version of Ray or Python",
            (Link(event, "Ray compared the versions of the driver and the cluster"),),
            explains=(Entity("versions", event.source.path),),
            remedies=(
                Remedy(
                    "Compare the versions on both sides, and install the cluster's in the driver's environment",
                    ("python -c 'import ray, sys; print(ray.__version__, sys.version)'",),
                ),
            ),
            covers=(event,),
        )


def _compared(case: Case, events: list[Event]) -> Finding:
    first = events[0]
    differs = [
        (name, first[f"own_{field}"], first[field])
        for name, field in (("Ray", "ray"), ("Python", "python"), ("Cloudpickle", "pickle"))
        if first[f"own_{field}"] != first[field]
    ]
    here = " and ".join(f"{name} {own}" for name, own, _ in differs)
    there = " and ".join(f"{name} {cluster}" for name, _, cluster in differs)
    raised = any(e["raised"] for e in events)
    client = "Ray Client" if first["where"] == "Ray Client" else "The driver"
    end = "cannot join the cluster" if raised else "joins the cluster although the versions differ"
    address = connected_to(case, first)
    return Finding(
        f"{client} {end}: it runs {here}, and the cluster runs {there}",
        (
            *((Link(address, "the driver connects to this cluster"),) if address else ()),
            Link(first, f"Ray compared the versions of {first['where']} and the cluster"),
        ),
        explains=(Entity("versions", f"{here} {there}"),),
        count=sum(e.count for e in events),
        severity=None if raised else "warning",
        remedies=tuple(_remedies(first["ray"], first["python"], [name for name, _, _ in differs])),
        covers=tuple(events),
    )


def _inferred(case: Case) -> Finding | None:
    """A driver that requests data which the cluster's version does not have: its own version must differ."""
    cluster = case.version
    if cluster is None or "gcs" in case.ledger.stops or case.of("gcs.lost"):
        return None
    asked = case.of("version.no_temp_dir") if cluster >= _TEMP_DIR_GONE else []
    what, than = "'temp_dir', which the GCS has not stored since Ray 2.55", "older than 2.55"
    if not asked and cluster < _NODE_INFO_SINCE:
        asked = case.of(NO_NODE_INFO.kind)
        what, than = "nodes by attributes, which Ray up to 2.53 does not do", "newer than 2.53"
    asked = [e for e in asked if is_this_cluster(case, connected_to(case, e))]
    if not asked:
        return None
    first = asked[0]
    version = case.ledger.versions[0]
    address, versions = connected_to(case, first), case.of("ray.version")
    return Finding(
        f"The driver cannot join the cluster: its Ray version is {than}, and the cluster's is {version}",
        (
            *((Link(address, "the driver connects to this cluster"),) if address else ()),
            *(Link(e, f"the cluster runs Ray {version}") for e in versions[:1]),
            Link(first, f"the driver requested {what}"),
        ),
        explains=(Entity("versions", f"{than} {version}"),),
        remedies=tuple(_remedies(version, "", ["Ray"])),
        covers=(*asked, *(e for e in case.of("log.traceback") if e.source is first.source)),
    )


def _remedies(ray: str, python: str, differs: list[str]) -> Iterator[Remedy]:
    if "Python" in differs:
        short = ".".join(python.split(".")[:2])
        yield Remedy(
            f"Run the driver with the cluster's Python, {python}",
            (
                paste.shell(
                    "uv venv --python {python:version} .venv   # or: conda create -n ray python={python}",
                    python=python,
                ),
                paste.shell(
                    ".venv/bin/python -m pip install 'ray[default]=={ray:version}'   # python{short}",
                    ray=ray,
                    short=short,
                ),
            ),
            doc=INIT_DOC,
        )
        yield Remedy(
            "If only the last number of Python's version differs, make Ray compare the first two",
            ("export RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL=minor",),
            since=(2, 51),
        )
    elif "Ray" in differs:
        yield Remedy(
            f"Install the cluster's Ray, {ray}, where the driver runs",
            (paste.shell("pip install 'ray[default]=={ray:version}'", ray=ray),),
            doc=INIT_DOC,
        )
    if differs == ["Cloudpickle"]:
        yield Remedy(
            "Install the cluster's version of cloudpickle where the driver runs",
            ("pip install cloudpickle==VERSION   # of the cluster, as the message names it",),
        )
    yield Remedy(
        "Or run the program on the cluster, with the cluster's Ray and Python",
        ("ray job submit --address http://HEAD:8265 --working-dir . -- python your_script.py",),
        doc="https://docs.ray.io/en/latest/cluster/running-applications/job-submission/index.html",
    )


# ------------------------------------------------------------------ examples


_CONNECTING = "2026-11-21 10:40:11,306\tINFO worker.py:1833 -- Connecting to existing Ray cluster at address: 10.0.0.2:6379...\n"
_FRAMES = (
    'Traceback (most recent call last):\n  File "/app/train.py", line 28, in <module>\n    ray.init()\n'
    '  File "/app/venv/lib/python3.11/site-packages/ray/_private/node.py", line 437, in check_version_info\n'
    "    ray._private.utils.check_version_info(\n"
)
_OLD_DRIVER = (
    f"{_CONNECTING}{_FRAMES}{_NO_TEMP_DIR.sample}\n\n"
    "During handling of the above exception, another exception occurred:\n\n"
    'Traceback (most recent call last):\n  File "/app/train.py", line 28, in <module>\n    ray.init()\nConnectionError\n'
)
_NODE = "node_id=233399e68a6ec96cfd874e4b728f4405d4991263918f070383188198 node_name=10.0.0.2 node_address=10.0.0.2"


def _gcs(version: str) -> str:
    return (
        f"[2026-11-21 10:40:00,000 I 13 13] (gcs_server) gcs_server_main.cc:98: Ray cluster metadata ray_version={version} ray_commit=b7f\n"
        f"[2026-11-21 10:40:01,000 I 13 25] (gcs_server) gcs_node_manager.cc:111: Registering new node. {_NODE}\n"
    )


EXAMPLES: tuple[Example, ...] = (
    *(
        console(
            f"Ray Client compares its version: {signal.find}",
            f'Traceback (most recent call last):\n  File "/app/train.py", line 3, in <module>\n    ray.init("ray://head:10001")\n{signal.sample}\n',
            says=("Ray Client cannot join the cluster", says),
        )
        for signal, says in zip(
            _OF_CLIENT, ("Python 3.10.4", "their versions of Ray differ"), strict=True
        )
    ),
    console(
        "a program quotes Ray Client, and continues",
        f"{_OF_CLIENT[0].sample}\nusing another cluster\nloss 0.1\n",
    ),
    Example(
        "the cluster runs a different version of Ray",
        {
            "driver.log": f"{_CONNECTING}{_FRAMES}{_TOLD.sample}",
            "logs/gcs_server.out": _gcs("2.40.0"),
            "logs/raylet.out": "",
        },
        says=("Ray 2.50.0", "Ray 2.40.0", "ray[default]==2.40.0"),
        is_typical=True,
    ),
    console(
        "another version of Python in Ray Client",
        f"{_FRAMES}{_TOLD.sample}".replace("node 10.0.0.2", "Ray Client")
        .replace("2.50.0", "2.40.0")
        .replace("3.11.7", "3.10.13", 1),
        says=("Python 3.11.7", "Python 3.10.13", "python3.10"),
    ),
    Example(
        "a driver of 2.50 cannot request the version of a cluster of 2.60",
        {
            "driver.log": _OLD_DRIVER,
            "logs/gcs_server.out": _gcs("2.60.0"),
            "logs/raylet.out": "",
        },
        says=("older than 2.55", "ray[default]==2.60.0"),
    ),
    Example(
        "a newer driver and a cluster of 2.9",
        {
            "driver.log": f"{_CONNECTING}{_FRAMES}{NO_NODE_INFO.sample}\n",
            "logs/gcs_server.out": _gcs("2.9.3"),
            "logs/raylet.out": "",
        },
        says=("newer than 2.53", "ray[default]==2.9.3"),
    ),
    console(
        "only the last number of Python's version differs, and the program ignores it",
        "2026-11-21 10:40:11,306\tWARNING utils.py:1436 -- Python patch version mismatch: "
        + _TOLD.sample.partition("mismatch: ")[2].replace("2.50.0", "2.40.0")
        + "loss 0.1\n",
        logs=QUIET_LOGS,
    ),
    console(
        "a task that prints the same text",
        "".join(f"(check pid=12) {line}\n" for line in _TOLD.sample.splitlines()),
        logs=QUIET_LOGS,
    ),
    Example(
        "a driver of another cluster prints the same words",
        {
            "driver.log": f"{_CONNECTING.replace('10.0.0.2', '10.9.9.9')}loss 0.1\nVersion mismatch in the model's header\n",
            "logs/gcs_server.out": _gcs("2.60.0"),
            "logs/raylet.out": "",
        },
    ),
    console(
        "a launcher that prints the error of ray job submit behind its own words",
        f"submission failed: {_TOLD.sample}",
        says=("Ray 2.50.0", "Ray 2.40.0"),
    ),
    console(
        "Ray 0.8 compares pyarrow as well",
        "Traceback (most recent call last):\nException: Version mismatch: The cluster was started with:\n"
        "    Ray: 0.8.0\n    Python: 3.6.5\n    Pyarrow: 0.14.0.RAY\nThis process on node 10.0.0.2 was started with:\n"
        "    Ray: 0.8.0\n    Python: 3.6.7\n    Pyarrow: 0.14.0.RAY\n",
        says=("Python 3.6.7", "Python 3.6.5"),
    ),
    console(
        "a ray command of another version",
        f'Traceback (most recent call last):\n  File "/venv/ray/scripts/scripts.py", line 140, in _check_ray_version\n{_OF_COMMAND[0].sample}\n',
        says=("it is of Ray 2.60.0", "ray[default]==2.40.0"),
        severity="error",
    ),
    console(
        "a client that needs a newer dashboard",
        f'Traceback (most recent call last):\n  File "/app/submit.py", line 3, in <module>\n{_OF_COMMAND[1].sample}\n',
        says=("needs Ray 1.9 or later", "runs Ray 1.8.0"),
        severity="error",
    ),
    console(
        "a program quotes the command's error and runs",
        f"last week: {_OF_COMMAND[0].sample}\n{_OF_COMMAND[0].sample}\nnow running\n",
    ),
    console(
        "a console that ends with the first line of the error",
        f"{_CUT_OFF.sample}\n",
        says=("another version of Ray or Python",),
    ),
    console(
        "a program that quotes the line and runs",
        f"{_CUT_OFF.sample}\nfixed by a new installation, now running\n",
    ),
    console(
        "Ray 0.2 compares cloudpickle as well",
        "Traceback (most recent call last):\nException: Version mismatch: The cluster was started with:\n"
        "    Ray: 0.2.2\n    Ray location: /opt/ray/python/ray/__init__.py\n    Python: 3.5.2\n    Cloudpickle: 0.5.2\n"
        "This process on node 10.0.0.2 was started with:\n    Ray: 0.2.2\n    Ray location: /opt/ray/python/ray/__init__.py\n"
        "    Python: 3.5.2\n    Cloudpickle: 0.2.2\n",
        says=("Cloudpickle 0.2.2", "Cloudpickle 0.5.2"),
    ),
)

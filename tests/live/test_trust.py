"""One user against another and against root: no process, socket, file or link of the former is relied on.

Mallory's processes claim to be daemons of the victim's session, older than the real ones, which have died but for
the raylet; Mallory listens on their ports. The victim is root, and a user.
"""

from __future__ import annotations

import http.client  # noqa: F401  (a user who cannot enter this Python's folder loads nothing more)
import os
import queue  # noqa: F401
import shlex  # noqa: F401
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raydoctor.capture import open as opening
from raydoctor.capture import owners, session
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.values import Gap
from raydoctor.observe import live
from raydoctor.observe.collector.cluster import Cluster
from raydoctor.observe.collector.programs import peers
from raydoctor.observe.collector.programs.peers import Access
from raydoctor.observe.gcs import dashboard, gcs, state, token
from raydoctor.observe.gcs.programs import gcs_messages
from raydoctor.observe.machine import addresses
from raydoctor.observe.nodes.programs import fan_out
from raydoctor.observe.processes import daemons, discover, proc
from tests.helpers import hostile
from tests.helpers.hostile import ALICE, MALLORY, Ground, as_user
from tests.helpers.waiting import Program, clock, until

gcs_messages.versions()
"x".encode("idna")  # one of the modules that are loaded late

pytestmark = pytest.mark.skipif(
    not proc.LINUX or os.geteuid() != 0, reason="plays several users: Linux, as root"
)
SECRET = "the-token-of-the-victim"
VICTIMS = pytest.mark.parametrize("victim", [0, ALICE], ids=["root", "alice"])
REFUSED = "belongs to"


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    with hostile.ground() as found:
        for name in ("RAY_ADDRESS", "SUDO_UID", "TMPDIR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("RAY_TMPDIR", str(found.folder))
        monkeypatch.setenv("RAY_AUTH_TOKEN", SECRET)
        # Clusters of root's that other tests run on this machine would be used.
        every = proc.table
        monkeypatch.setattr(
            proc, "table", lambda: {p: s for p, s in every().items() if p in found.pids}
        )
        yield found


def arguments(session: Path, gcs: int = 9, board: int = 9, host: str = "127.0.0.1") -> list[str]:
    """Of a raylet."""
    return [
        f"--session_dir={session}",
        f"--gcs-address={host}:{gcs}",
        f"--python_worker_command=python default_worker.py --webui={host}:{board} X",
        f"--node_id={'ab' * 28}",
    ]


def raylet(ground: Ground, uid: int, folder: Path, **where: Any) -> int:
    """A real one, as far as the kernel shows."""
    program = ground.program("raylet")
    return ground.run(uid, program, arguments(folder, **where), {"RAY_AUTH_MODE": "token"})


# ------------------------------------------------------------------ processes that claim to be daemons


def _by_name(kind: str) -> Callable[[Ground, Path], int]:
    def start(ground: Ground, session: Path) -> int:
        return ground.run(MALLORY, ground.program(kind), arguments(session, 666, 667))

    return start


def _argv(ground: Ground, session: Path) -> int:
    path = "/usr/lib/python3/site-packages/ray/core/src/ray/raylet/raylet"
    return ground.run(MALLORY, ground.link("raylet"), arguments(session, 666), argv0=path)


def _port_of_its_own(ground: Ground, session: Path) -> int:
    words = [f"--session-dir={session}", "--node-ip-address=127.0.0.1", "--gcs_server_port=666"]
    return ground.run(MALLORY, ground.program("gcs_server"), words)


def _script(path: str, *words: str) -> Callable[[Ground, Path], int]:
    def start(ground: Ground, session: Path) -> int:
        program = ground.program("python3")
        reply = [f"--logs-dir={session}/logs", "--port=667", "--host=127.0.0.1", *words]
        return ground.run(MALLORY, program, reply, script=path)

    return start


def _agent(title: str) -> Callable[[Ground, Path], int]:
    def start(ground: Ground, session: Path) -> int:
        log = f"{session}/logs/raylet.out"
        return ground.run(MALLORY, ground.program(title), [], opened=log, argv0=title)

    return start


def _client_server(ground: Ground, session: Path) -> int:
    words = ["-m", "ray.util.client.server", "--address=127.0.0.1:9", "--mode=proxy"]
    program = ground.program("python3")
    return ground.run(MALLORY, program, words, script="ray.util.client.server")


def _set_uid(ground: Ground, session: Path) -> int:
    """A set-uid program of root's, by a hard link of the name that is wanted."""
    path = ground.program("raylet", mode=0o4755)
    pid = os.fork()
    if not pid:
        hostile.become(MALLORY)
        os.execv(path, [path, "-p", "-c", "kill -STOP $$", "x", *arguments(session, 666)])
    ground.pids.append(pid)
    until(lambda: (p := proc.read(pid)) is not None and p.state == "T")
    return pid


def _long(ground: Ground, session: Path) -> int:
    words = [*arguments(session, 666), *(["--x" * 40_000] * 8)]
    return ground.run(MALLORY, ground.program("raylet"), words)


def _escapes(ground: Ground, session: Path) -> int:
    words = [f"--session_dir={session}\n\x1b]0;owned\x07", "--gcs-address=\x1b[2J127.0.0.1:666"]
    return ground.run(MALLORY, ground.program("raylet"), words)


def _odd_name(ground: Ground, session: Path) -> int:
    return ground.run(MALLORY, ground.program("raylet) S 1\nUid: 0"), arguments(session, 666))


def _dotted(ground: Ground, session: Path) -> int:
    words = arguments(Path(f"{session.parent}/./{session.name}"), 666)
    return ground.run(MALLORY, ground.program("raylet"), words)


def _by_link(ground: Ground, session: Path) -> int:
    """Through a link of Mallory's to the victim's folder."""
    link = ground.folder / "mine" / "ray" / session.name
    link.parent.mkdir(parents=True)
    link.symlink_to(session)
    os.lchown(link, MALLORY, MALLORY)
    return ground.run(MALLORY, ground.program("raylet"), arguments(link, 666))


ATTACKS = {
    "name of a raylet": _by_name("raylet"),
    "name of a gcs_server": _by_name("gcs_server"),
    "argv[0]": _argv,
    "gcs_server with a port": _port_of_its_own,
    "dashboard.py": _script("x/ray/dashboard/dashboard.py"),
    "agent.py": _script("x/ray/dashboard/agent.py"),
    "monitor.py": _script("x/ray/autoscaler/_private/monitor.py", "--gcs-address=127.0.0.1:666"),
    "log_monitor.py": _script("x/ray/_private/log_monitor.py", "--session-dir=/tmp"),
    "ray::DashboardAgent": _agent("ray::DashboardAgent"),
    "ray::RuntimeEnvAgent": _agent("ray::RuntimeEnvAgent"),
    "client server": _client_server,
    "set-uid root": _set_uid,
    "long argv": _long,
    "escapes in argv": _escapes,
    "odd name": _odd_name,
    "path with a dot": _dotted,
    "path through a link": _by_link,
}


@VICTIMS
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_process_of_another_user_is_no_daemon(place: Ground, attack: str, victim: int) -> None:
    """It is older than the real one, and claims its session."""
    folder = place.session(1, victim)
    pid = ATTACKS[attack](place, folder)
    real = raylet(place, victim, folder, gcs=7001, board=7002)

    def look() -> dict[str, Any]:
        begun = time.process_time()
        found, _ = live.find()
        pieces = list(discover.tables(found))
        return {
            "cost": time.process_time() - begun,
            "cluster": [found.session_dir, found.gcs_address, found.dashboard_address, found.owner],
            "pids": [d.pid for d in found.daemons],
            "gaps": [f"{p.what} {p.why} {p.hint}" for p in pieces if isinstance(p, Gap)],
        }

    reply = as_user(victim, look)
    assert reply["cluster"] == [str(folder), "127.0.0.1:7001", "127.0.0.1:7002", victim]
    assert reply["pids"] == [real] != [pid]
    assert not [gap for gap in reply["gaps"] if "\x1b" in gap or "\n" in gap]
    assert reply["cost"] < 1


@VICTIMS
def test_the_report_names_who_claims_a_session(place: Ground, victim: int) -> None:
    folder = place.session(1, victim)
    pid = _argv(place, folder) if victim == 0 else _by_name("raylet")(place, folder)
    raylet(place, victim, folder)

    def gaps() -> list[str]:
        found = discover.tables(live.find()[0])
        return [f"{g.what}: {g.why}" for g in found if isinstance(g, Gap)]

    (gap,) = as_user(victim, gaps)
    assert gap.startswith(f"pid {pid} of user {MALLORY}: claims to be the raylet of {folder}")


def test_a_defunct_raylet_does_not_get_the_session_of_another_users_worker(place: Ground) -> None:
    """A defunct raylet keeps its name alone; its workers name its pid, and so can Mallory's."""
    theirs = place.session(2, MALLORY)
    dead = place.run(0, place.program("raylet"), [])
    os.kill(dead, signal.SIGKILL)
    until(lambda: (p := proc.read(dead)) is not None and p.state == "Z")
    log = theirs / "logs" / f"python-core-worker-{'ab' * 28}_1.log"
    log.touch()
    log.chmod(0o666)
    place.run(MALLORY, place.program("ray::f"), [], {"RAY_RAYLET_PID": str(dead)}, opened=str(log))
    (found,) = [s for s in daemons.find() if s.daemon.pid == dead]
    assert found.daemon.session_dir == ""


# ------------------------------------------------------------------ whose clusters are used


def test_only_another_users_cluster_runs(place: Ground) -> None:
    """A user does not ask it, and is shown the next step; root uses it and names the owner."""
    folder = place.session(1, MALLORY)
    raylet(place, MALLORY, folder, gcs=7001)

    def refused() -> list[str]:
        found, notes = live.find()
        return [found.gcs_address, *notes]

    address, *notes = as_user(ALICE, refused)
    assert address == ""
    assert f"belongs to user {MALLORY} and is not asked" in notes[0]
    assert f"raydoctor diagnose {folder}" in notes[0]
    address, *notes = as_user(0, refused)
    assert address == "127.0.0.1:7001"
    assert notes[0] == f"this cluster belongs to user {MALLORY}"


def test_roots_order_of_clusters(place: Ground) -> None:
    """Root's own, then that of the user behind sudo, then the newest."""
    names = {}
    for number, uid in enumerate((0, ALICE, MALLORY)):
        raylet(place, uid, place.session(number + 1, uid))
        names[uid] = number + 1
        time.sleep(0.02)  # the kernel counts starts in ticks of 10 ms

    def owners_found() -> list[int | None]:
        mine = str(place.folder)
        return [c.owner for c in discover.clusters() if c.session_dir.startswith(mine)]

    assert as_user(0, owners_found, {"SUDO_UID": str(ALICE)}) == [0, ALICE, MALLORY]
    assert as_user(0, owners_found, {"SUDO_UID": str(MALLORY)}) == [0, MALLORY, ALICE]
    assert as_user(0, owners_found) == [0, MALLORY, ALICE]
    assert as_user(ALICE, owners_found) == [ALICE, 0]


def test_root_sends_another_user_that_users_token_alone(place: Ground) -> None:
    """Neither its own nor one that the other user's environment or home leads to."""
    root = place.folder / "root-token"
    root.write_text(SECRET)
    root.chmod(0o600)
    home = place.folder / "home"
    (home / ".ray").mkdir(parents=True)
    link = home / ".ray" / "auth_token"
    for env, expected in (
        ({}, None),
        ({"RAY_AUTH_TOKEN_PATH": str(root)}, None),
        ({"HOME": str(home)}, None),
        ({"RAY_AUTH_TOKEN": "of-mallory"}, "of-mallory"),
    ):
        link.unlink(missing_ok=True)
        link.symlink_to(root)
        folder = place.session(len(place.pids) + 1, MALLORY)
        program = place.program("raylet")
        place.run(MALLORY, program, arguments(folder), {"RAY_AUTH_MODE": "token", **env})
        cluster = next(c for c in discover.clusters() if c.session_dir == str(folder))
        found = token.find(cluster)
        assert (found and found.value) == expected, env


# ------------------------------------------------------------------ listeners


def ask(cluster: Cluster) -> None:
    """All that a diagnosis asks of a cluster."""
    list(state.tables(cluster, 20.0))


HOSTS = {
    "127.0.0.1": "127.0.0.1",
    "0.0.0.0": "127.0.0.1",
    "::": "127.0.0.1",
    ":: over IPv6": "[::1]",
    "::1": "[::1]",
}


@VICTIMS
@pytest.mark.parametrize("host", HOSTS)
def test_a_listener_of_another_user_gets_no_token(place: Ground, host: str, victim: int) -> None:
    """It has the port of the dashboard, which is dead."""
    thief = place.listener(MALLORY, host.partition(" ")[0])
    address = f"{HOSTS[host]}:{thief.port}"
    reply = as_user(victim, lambda: dashboard.knock(address, Access(SECRET, (victim,)))[0][0])
    assert reply[2] == "error"
    assert f"{REFUSED} uid {MALLORY}" in reply[4]
    assert thief.received in (b"", b"CONNECTED\n")


@VICTIMS
def test_a_whole_look_sends_no_token(place: Ground, victim: int) -> None:
    """The raylet is real and alive; dashboard and GCS are dead, and Mallory has their ports."""
    board, gcs = place.listener(MALLORY), place.listener(MALLORY)
    raylet(place, victim, place.session(1, victim), gcs=gcs.port, board=board.port)

    def look() -> list[str]:
        cluster, _ = live.find()
        assert cluster.token is not None
        return [str(p) for p in state.tables(cluster, 20.0) if isinstance(p, Gap)]

    as_user(victim, look)
    for thief in (board, gcs):
        assert SECRET.encode() not in thief.received
        assert b"GET" not in thief.received
        assert b"PRI" not in thief.received


def test_ray_does_not_leave_loopback_for_another_users_listener(
    place: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray replaces 127.0.0.1 by this machine's address, for which 127.0.0.2 stands here."""
    monkeypatch.setattr(fan_out, "_own_ip", lambda: "127.0.0.2")
    ours, everywhere = place.listener(0), place.listener(0, "0.0.0.0")
    assert not fan_out._is_same_listener(f"127.0.0.1:{ours.port}")
    assert fan_out._is_same_listener(f"127.0.0.1:{everywhere.port}")
    place.listener(MALLORY, "127.0.0.2", ours.port)
    assert not fan_out._is_same_listener(f"127.0.0.1:{ours.port}")


def test_the_owner_gets_it(place: Ground) -> None:
    """That no token is sent elsewhere means nothing unless it is sent where it should be."""
    board, gcs = place.listener(0), place.listener(0)
    raylet(place, 0, place.session(1, 0), gcs=gcs.port, board=board.port)
    ask(live.find()[0])
    assert f"Authorization: Bearer {SECRET}".encode() in board.received
    assert f"Bearer {SECRET}".encode() in gcs.received


@VICTIMS
def test_a_typed_address_gets_it(place: Ground, victim: int) -> None:
    thief = place.listener(MALLORY)
    address = f"127.0.0.1:{thief.port}"

    def look() -> None:
        found, _ = live.find(f"http://{address}")
        dashboard.knock(found.dashboard_address, found.access(True))

    as_user(victim, look)
    assert SECRET.encode() in thief.received


def test_a_found_address_is_not_typed(place: Ground) -> None:
    """A cluster that ends between two looks: its port may be another user's by the second."""
    thief = place.listener(MALLORY)
    found, _ = live.find(f"127.0.0.1:{thief.port}", is_typed=False)
    ask(found)
    assert SECRET.encode() not in thief.received


def test_a_listener_that_changes_after_the_check(
    place: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check holds for the connection; the next listener has no part in it."""
    real = place.listener(0)
    thieves = []
    verify = peers.verify

    def then_changes(*given: Any) -> None:
        verify(*given)
        if not thieves:
            real.end()
            thieves.append(place.listener(MALLORY, port=real.port))

    monkeypatch.setattr(peers, "verify", then_changes)
    answer = dashboard.get(f"127.0.0.1:{real.port}", "/", 1.0, Access(SECRET))
    assert answer.outcome == "error"
    assert SECRET.encode() not in thieves[0].received


def test_a_listener_that_changes_while_grpc_is_connected(place: Ground) -> None:
    """gRPC connects again by itself: what it then reaches is checked as well."""
    program = """
import sys, time, types
sys.path.insert(0, sys.argv[1])
sys.path.insert(0, sys.argv[4])
import gcs_wire, peers
wire = gcs_wire.Wire(peers.Access(sys.argv[3]))
message = types.SimpleNamespace
class Raw:
    def SerializeToString(self): return b""
    FromString = staticmethod(lambda data: data)
call = gcs_wire.Call("/ray.rpc.X/Y", Raw(), Raw)
for line in sys.stdin:
    try:
        wire.ask(sys.argv[2], call, 30)
    except gcs_wire.CallError as error:
        print(error.code, flush=True)
"""
    real = place.listener(0)
    folder = str(Path(peers.__file__).parent)
    wires = str(Path(gcs.__file__).parent / "programs")
    with Program(
        [sys.executable, "-c", program, folder, f"127.0.0.1:{real.port}", SECRET, wires],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    ) as child:  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write("\n")
        assert child.stdout.readline().strip() == "UNAVAILABLE"
        assert f"Bearer {SECRET}".encode() in real.received
        real.end()
        thief = place.listener(MALLORY, port=real.port)
        for _ in range(3):
            child.stdin.write("\n")
            assert child.stdout.readline().strip() == "UNAVAILABLE"
        child.kill()  # the thief, a fork of ours, holds its standard input open
    assert SECRET.encode() not in thief.received
    assert b"PRI" not in thief.received


def test_the_relay_loses_nothing_where_both_ends_are_slow() -> None:
    """More than the buffers of the kernel hold, both ways at once."""
    much = os.urandom(1 << 20) * 8
    server = socket.create_server(("127.0.0.1", 0))

    def echo() -> None:
        link, _ = server.accept()
        with link:
            link.sendall(much)  # nothing is read before
            link.sendall(b"same" if _all(link) == much else b"other")

    thread = threading.Thread(target=echo)
    thread.start()
    address = f"127.0.0.1:{server.getsockname()[1]}"
    access = Access(SECRET)
    target = peers.Relay(access).lead(address, peers.connect(address, access))
    with socket.socket(socket.AF_UNIX) as link:
        link.connect("\0" + target.partition(":")[2])
        sender = threading.Thread(target=link.sendall, args=(much,))
        sender.start()
        assert _all(link) == much
        sender.join()
        assert link.recv(16) == b"same"
    thread.join()
    server.close()


def _all(link: socket.socket) -> bytes:
    """Eight MiB."""
    got = bytearray()
    while len(got) < 8 << 20 and (part := link.recv(min(1 << 16, (8 << 20) - len(got)))):
        got += part
    return bytes(got)


def test_owner_of_a_socket_by_both_ways(place: Ground) -> None:
    """`sock_diag` and `/proc/net/tcp` name the same owner, before and after the connection is accepted."""
    for host, to in (
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "127.0.0.1"),
        ("::1", "::1"),
    ):
        thief = place.listener(MALLORY, host)
        with socket.create_connection((to, thief.port)) as link:
            ends = link.getpeername()[:2], link.getsockname()[:2]
            until(lambda ends=ends: peers._by_proc(*ends).inode)  # type: ignore[misc]
            assert peers._by_netlink(*ends) == peers._by_proc(*ends)
            anyone = (ends[0], ("::" if ":" in to else "0.0.0.0", 0))
            assert peers._by_netlink(*anyone) == peers._by_proc(*anyone)
            assert peers._listener(*ends) == MALLORY


def test_a_queue_that_is_full(place: Ground) -> None:
    """A connection that the listener has not taken is judged by the listener."""
    pid, port = _deaf(place)
    links = [socket.socket() for _ in range(6)]
    for link in links:
        link.setblocking(False)
        link.connect_ex(("127.0.0.1", port))
    with pytest.raises(OSError, match=f"uid {MALLORY}|timed out"):
        peers.connect(f"127.0.0.1:{port}", Access(SECRET, (0,)), 0.5)
    for link in links:
        link.close()
    os.kill(pid, signal.SIGKILL)


def _deaf(place: Ground) -> tuple[int, int]:
    """A listener that accepts nothing, with room for one."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        hostile.become(MALLORY)
        server = socket.socket()
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        os.write(writing, str(server.getsockname()[1]).encode())
        time.sleep(60)
        os._exit(0)
    os.close(writing)
    place.pids.append(pid)
    return pid, int(os.read(reading, 16))


def test_a_root_process_that_a_user_cannot_verify_names_no_other_machine(place: Ground) -> None:
    """A user cannot see which program root runs: a set-uid one has the name and words that Mallory gave it."""
    folder = place.session(1, 0)
    raylet(place, 0, folder, host="192.0.2.1")
    reply = as_user(ALICE, lambda: live.find()[0].access(True)._asdict())
    assert reply["elsewhere"] is False
    with pytest.raises(OSError, match="another machine"):
        peers.verify(_Far(), "192.0.2.1:9", Access(SECRET, (0,), (), False))  # type: ignore[arg-type]
    assert live.find()[0].access(True).elsewhere, "root sees the program"


class _Far:
    def getpeername(self) -> tuple[str, int]:
        return "192.0.2.1", 9


def test_the_token_is_not_printed() -> None:
    assert SECRET not in repr(Access(SECRET))
    assert SECRET not in f"{Access(SECRET)}"


# ------------------------------------------------------------------ files and links


def plant(path: Path, how: str, uid: int = MALLORY) -> None:
    """Put a file of Mallory's there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if how == "fifo":
        os.mkfifo(path, 0o666)
    elif how == "huge":
        path.write_bytes(b"")
        os.truncate(path, 1 << 40)
    elif how == "link to a fifo":
        os.mkfifo(f"{path}.fifo", 0o666)
        path.symlink_to(f"{path}.fifo")
    elif how == "link to zeros":
        path.symlink_to("/dev/zero")
    else:
        path.write_text(how)
    os.lchown(path, uid, uid)


@VICTIMS
@pytest.mark.parametrize("how", ["666", "fifo", "huge", "link to a fifo", "link to zeros"])
def test_the_port_of_the_gcs_is_read_from_its_owners_file(
    place: Ground, how: str, victim: int
) -> None:
    """Ray leaves the session's folder open to all."""
    folder = place.session(1, victim)
    plant(folder / f"gcs_server_port_{'ab' * 28}", how)
    words = [f"--session-dir={folder}", "--node-ip-address=127.0.0.1", "--gcs_server_port=0"]
    place.run(victim, place.program("gcs_server"), [*words, f"--node-id={'ab' * 28}"])
    assert as_user(victim, lambda: live.find()[0].gcs_address) == ""


@VICTIMS
@pytest.mark.parametrize("how", ["address", "fifo", "huge", "link to a fifo", "link to zeros"])
def test_another_users_ray_current_cluster_is_not_followed(
    place: Ground, how: str, victim: int
) -> None:
    thief = place.listener(MALLORY)
    plant(
        place.folder / "ray" / "ray_current_cluster",
        f"127.0.0.1:{thief.port}" if how == "address" else how,
    )
    environ = {"RAY_TMPDIR": str(place.folder)}

    def look() -> list[str]:
        found = addresses.tables(Cluster(), environ)
        return [
            f"{g.what} {g.why}" for g in found if isinstance(g, Gap) and str(place.folder) in g.what
        ]

    reply = as_user(victim, look)
    assert len(reply) == 1
    if how in ("address", "huge"):
        assert f"belongs to user {MALLORY}" in reply[0]
    assert thief.received == b""


def test_a_listener_of_another_user_is_no_answer_of_our_gcs(place: Ground) -> None:
    thief = place.listener(MALLORY)
    folder = place.session(1, 0)
    raylet(place, 0, folder, gcs=thief.port)
    (found,) = [p for p in addresses.tables(live.find()[0], {}) if not isinstance(p, Gap)]
    assert b'"answers":false' in found.data.replace(b" ", b"")
    assert b'"answers":true' not in found.data.replace(b" ", b"")


def linked(place: Ground, link: int, target: Path) -> None:
    path = place.folder / "ray" / "session_latest"
    path.symlink_to(target)
    os.lchown(path, link, link)


def chosen(uid: int, env: dict[str, str] | None = None) -> tuple[str, str]:
    """What is read without a path, and what is reported to the user."""

    def look() -> tuple[str, str]:
        try:
            found = session.this_machine()
        except RaydoctorError as error:
            return "", f"{error.message}. {error.hint}"
        return found.path.name[-1], found.note

    path, note = as_user(uid, look, env)
    return path, note


@VICTIMS
def test_another_users_link_to_another_users_session(place: Ground, victim: int) -> None:
    """A user may read it, and is shown the owner; root is shown what to type."""
    theirs = place.session(1, MALLORY)
    linked(place, MALLORY, theirs)
    path, note = chosen(victim)
    assert f"user {MALLORY}" in note
    assert path == ("" if victim == 0 else "1")
    if victim == 0:
        assert f"raydoctor diagnose {theirs}" in note


@VICTIMS
def test_another_users_link_to_our_session_or_elsewhere(place: Ground, victim: int) -> None:
    """It chooses nothing: the newest of our own is read."""
    first, _ = place.session(1, victim), place.session(2, victim)
    linked(place, MALLORY, first)
    assert chosen(victim)[0] == "2"
    (place.folder / "ray" / "session_latest").unlink()
    linked(place, MALLORY, Path("/etc"))
    assert chosen(victim)[0] == "2"


@VICTIMS
def test_our_own_session_before_another_users_newer_one(place: Ground, victim: int) -> None:
    place.session(1, victim)
    linked(place, MALLORY, place.session(2, MALLORY))
    path, note = chosen(victim)
    assert path == "1"
    assert "your newest session" in note
    assert str(place.folder / "ray" / "session_2026-11-21_10-00-00_000000_2") in note


def test_links_that_are_followed(place: Ground) -> None:
    first, second = place.session(1, ALICE), place.session(2, 0)
    linked(place, ALICE, first)
    assert chosen(ALICE)[0] == "1"
    assert chosen(0)[0] == "2"
    assert chosen(0, {"SUDO_UID": str(ALICE)})[0] == "1"
    (place.folder / "ray" / "session_latest").unlink()
    linked(place, 0, first)
    assert chosen(ALICE)[0] == "1"
    assert second.exists()


def test_sudo_users_link_does_not_lead_root_elsewhere(place: Ground) -> None:
    place.session(2, ALICE)
    linked(place, ALICE, place.session(1, MALLORY))
    assert chosen(0, {"SUDO_UID": str(ALICE)})[0] == "2"


def test_a_path_that_was_typed_is_read_and_its_owner_named(place: Ground) -> None:
    theirs = place.session(1, MALLORY)
    (theirs / "logs" / "raylet.out").write_text(
        "[2026-11-21 10:00:00,000 I 1 1] (raylet) x.cc:1: up\n"
    )
    for path in (theirs, theirs.parent):
        with opening.open_capture(str(path)) as capture:
            assert any(f"belongs to user {MALLORY}" in note for note in capture.notes)


def test_logs_that_are_a_link_are_not_followed(place: Ground) -> None:
    """Root reads a session of Mallory's, whose `logs` lead to what only root can read."""
    secret = place.folder / "secret"
    secret.mkdir(mode=0o700)
    (secret / "raylet.out").write_text("[2026-11-21 10:00:00,000 I 1 1] (raylet) x.cc:1: secret\n")
    theirs = place.session(1, MALLORY)
    (theirs / "logs" / "raylet.out").unlink()
    (theirs / "logs").rmdir()
    (theirs / "logs").symlink_to(secret)
    with opening.open_capture(str(theirs)) as capture:
        assert not capture.files
        assert [(gap.what, gap.why) for gap in capture.gaps] == [
            ("logs", "is a symbolic link; not followed")
        ]


def test_owners_of_a_folder(place: Ground) -> None:
    folder = place.session(1, ALICE)
    assert owners.of_folder(str(folder)) == ALICE
    assert owners.of_folder(f"{folder}-not") is None
    assert owners.of_folder(f"{folder}/logs/raylet.out") == -1
    link = place.folder / "link"
    link.symlink_to(folder)
    assert owners.of_folder(str(link)) == -1


# ------------------------------------------------------------------ time


@pytest.mark.parametrize("until_body", [False, True], ids=["headers", "body"])
def test_a_dashboard_that_drips_has_one_deadline(until_body: bool) -> None:
    """One byte at a time keeps each read alive; the whole answer has its time."""
    server = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def drip() -> None:
        link, _ = server.accept()
        with link:
            link.recv(4096)
            text = b"HTTP/1.1 200 OK\r\n" + (b"\r\n" if until_body else b"X: ") + b"a" * 1000
            for byte in text:
                if stop.wait(0.03):
                    return
                try:
                    link.sendall(bytes([byte]))
                except OSError:
                    return

    thread = threading.Thread(target=drip)
    thread.start()
    begun = clock()
    answer = dashboard.get(f"127.0.0.1:{server.getsockname()[1]}", "/", 0.5)
    took = clock() - begun
    stop.set()
    thread.join()
    server.close()
    assert answer.outcome == "timeout"
    assert took < 1.5

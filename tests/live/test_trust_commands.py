"""Whole commands of root where another user holds the ports of root's dead daemons, or plants what they find.

`test_trust.py` attacks what the commands share; here each command is entered as a person enters it.
"""

from __future__ import annotations

import io
import os
import resource
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from typing import Any
from urllib.parse import urlsplit

import pytest

from raydoctor import cli
from raydoctor.integrations import own_session
from raydoctor.model.errors import RaydoctorError
from raydoctor.observe.processes import proc, titles
from raydoctor.watch import serve
from tests.helpers import hostile
from tests.helpers.hostile import MALLORY, OPEN_TO_ALL, Ground, as_user
from tests.live.test_trust import SECRET, raylet
from tests.unit.test_agents import http_server, status_of

pytestmark = pytest.mark.skipif(
    not proc.LINUX or os.geteuid() != 0, reason="plays several users: Linux, as root"
)


@pytest.fixture(name="place")
def _place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    with hostile.ground() as found:
        for name in ("RAY_ADDRESS", "SUDO_UID", "TMPDIR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("RAY_TMPDIR", str(found.folder))
        monkeypatch.setenv("RAY_AUTH_TOKEN", SECRET)
        monkeypatch.setenv("XDG_STATE_HOME", str(found.folder / "state"))
        every = proc.table
        monkeypatch.setattr(
            proc, "table", lambda: {p: s for p, s in every().items() if p in found.pids}
        )
        yield found


def entered(words: list[str]) -> tuple[int, str]:
    """Exit code and output of a command that root enters, in a process of its own."""

    def work() -> list[Any]:
        shown = io.StringIO()
        with redirect_stdout(shown), redirect_stderr(shown):
            code = cli.execute(words)
        return [code, shown.getvalue()]

    code, shown = as_user(0, work)
    return code, shown


COMMANDS: dict[str, list[str]] = {
    "diagnose": ["diagnose", "--timeout", "2s"],
    "status": ["status", "--timeout", "2s"],
    "check": ["check", "--timeout", "2s"],
    "hung": ["hung", "--timeout", "2s"],
    "stack": ["stack", "--timeout", "2s"],
    "zombies": ["zombies", "--this-node"],
    "collect": ["collect", "--timeout", "2s", "-o", "-"],
    "cancel": ["cancel", "load", "--yes"],
    "attach": ["attach", "load", "--stack"],
    "watch": ["watch", "--for", "3s"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_sends_nothing_to_who_took_the_ports(place: Ground, command: str) -> None:
    """Root's raylet lives; its GCS and its dashboard are dead, and Mallory listens on their ports."""
    board, gcs = place.listener(MALLORY), place.listener(MALLORY)
    raylet(place, 0, place.session(1, 0), gcs=gcs.port, board=board.port)
    code, shown = entered(COMMANDS[command])
    assert code != 0, shown
    assert SECRET not in shown
    for thief in (board, gcs):
        assert thief.received.replace(b"CONNECTED\n", b"") == b""


@pytest.mark.parametrize("what", ["stack", "cancel"])
def test_a_key_of_watch_sends_nothing_to_who_took_the_port(place: Ground, what: str) -> None:
    """The watched cluster died after its tasks were shown: the key acts on the address that watch found."""
    thief = place.listener(MALLORY)
    options = ["--yes"] if what == "cancel" else []
    address = ["--found", "--address", f"127.0.0.1:{thief.port}"]
    code, shown = entered([what, "f" * 48, *options, *address])
    assert code != 0, shown
    assert thief.received.replace(b"CONNECTED\n", b"") == b""


# ---------------------------------------------------------------- completion, pytest


def test_names_of_another_user_s_processes_are_not_completed(place: Ground) -> None:
    """`raydoctor cancel ra<Tab>` would otherwise complete what Mallory calls a process."""
    program = place.program("ray::harmless")
    for uid in (MALLORY, 0):
        place.run(uid, program, [], argv0=f"ray::task_of_{uid}")
    assert titles.names() == ["task_of_0"]


@pytest.mark.parametrize(("owner", "of_session"), [(MALLORY, MALLORY), (0, MALLORY), (0, 0)])
def test_a_failed_test_diagnoses_no_session_that_another_user_planted(
    place: Ground, owner: int, of_session: int
) -> None:
    """Mallory guesses the pid of the test, after which Ray names the log of a driver, or moves that log."""
    session = place.session(1, of_session)
    log = session / "logs" / f"python-core-driver-{'01' * 28}_{os.getpid()}.log"
    log.write_text("")
    os.chown(log, owner, owner)
    assert own_session.folder(0.0) == (str(session) if of_session == 0 else "")


# ---------------------------------------------------------------- servers


def said_to(address: str, token: str) -> str:
    """What the server sends to a client on IPv4 with this token, before it closes the connection."""
    split = urlsplit(address)
    head = f"GET /mcp HTTP/1.1\r\nHost: {split.netloc}\r\nAuthorization: Bearer {token}\r\n\r\n"
    with socket.create_connection((split.hostname, split.port), 10) as link:
        try:
            link.sendall(head.encode())
            return link.recv(4096).decode()
        except ConnectionError:
            return ""


def test_another_user_on_loopback_gets_nothing_from_mcp() -> None:
    with http_server() as (address, token):
        wrong = {"Authorization": f"Bearer {token[:-1]}"}
        assert status_of(address, **wrong) == 401
        assert status_of(address, Authorization=f"Bearer {token}") != 401
        assert as_user(MALLORY, lambda: said_to(address, token)) == ""
        assert "HTTP/1.1" in said_to(address, token)


def test_a_client_of_ours_may_use_a_socket_of_both_protocols() -> None:
    with http_server() as (address, _), socket.socket(socket.AF_INET6) as link:
        link.connect(("::ffff:127.0.0.1", urlsplit(address).port))
        link.sendall(b"GET /mcp HTTP/1.1\r\nHost: x\r\n\r\n")
        assert link.recv(12) == b"HTTP/1.1 401"


def test_connections_of_another_user_do_not_end_mcp() -> None:
    """A server without a free descriptor ended, and its port was free for the user who had taken them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    try:
        with http_server() as (address, token):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            split = urlsplit(address)
            links: list[socket.socket] = []

            def connect() -> None:
                links.append(socket.create_connection((split.hostname, split.port), 10))
                links[-1].sendall(b"GET /mcp HTTP/1.1\r\n")

            with hostile.repeating(MALLORY, connect):
                for _ in range(5):
                    assert status_of(address, Authorization=f"Bearer {token}") != 401
                    time.sleep(0.3)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("kind", ["file", "link", "pipe"])
def test_mcp_takes_no_token_that_another_user_knows(place: Ground, kind: str) -> None:
    from raydoctor.agents.http import token_from

    path = place.folder / "token"
    if kind == "pipe":
        os.mkfifo(path, 0o600)
    elif kind == "link":
        (place.folder / "known").write_text("0123456789abcdef0")
        (place.folder / "known").chmod(0o600)
        path.symlink_to("known")
    else:
        path.write_text("0123456789abcdef0")
        path.chmod(0o600)
    os.lchown(path, MALLORY, MALLORY)
    with pytest.raises(RaydoctorError, match=r"cannot read|not a private file of yours"):
        token_from(str(path))


@pytest.mark.parametrize("server", ["mcp", "watch --serve"])
def test_a_port_that_another_user_holds_is_not_shared(place: Ground, server: str) -> None:
    """Otherwise clients would send their token to Mallory, and get Mallory's metrics."""
    from raydoctor.agents import http

    thief = place.listener(MALLORY)
    listen: Callable[[], object] = {
        "mcp": lambda: http._listener(thief.port),
        "watch --serve": lambda: serve.MetricsServer("127.0.0.1", thief.port, "text/plain"),
    }[server]
    with pytest.raises(RaydoctorError, match="cannot listen"):
        listen()


def test_another_user_cannot_join_the_port_of_mcp_or_watch(place: Ground) -> None:
    from raydoctor.agents import http

    def joins(port: int) -> Callable[[], bool]:
        def work() -> bool:
            with socket.socket() as other:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                try:
                    other.bind(("127.0.0.1", port))
                    other.listen()
                except OSError:
                    return False
                return True

        return work

    with http._listener(0) as bound, serve.MetricsServer("127.0.0.1", 0, "text/plain") as metrics:
        for port in (bound.getsockname()[1], metrics.port):
            assert not as_user(MALLORY, joins(port))


def test_metrics_are_the_same_for_all_and_hold_no_token(place: Ground) -> None:
    with serve.MetricsServer("127.0.0.1", 0, "text/plain") as metrics:
        metrics.text = "raydoctor_x 1\n"

        def get(path: str) -> Callable[[], str]:
            def work() -> str:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}{path}") as reply:
                        return str(reply.read().decode())
                except urllib.error.HTTPError as error:
                    with error:
                        return str(error.code)

            return work

        assert as_user(MALLORY, get("/metrics")) == metrics.text
        for path in ("/../../etc/passwd", "//etc/passwd", "/metrics/../../x", "/%2e%2e/etc/passwd"):
            assert as_user(MALLORY, get(path)) == "404"


# ---------------------------------------------------------------- the working folder


def test_a_command_runs_no_module_of_the_folder_it_is_entered_in(
    place: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cd /tmp` and the processes that a command starts: `python -m` begins with the working folder."""
    shared = place.folder / "shared"
    (shared / "raydoctor").mkdir(parents=True)
    shared.chmod(OPEN_TO_ALL)
    for name in ("json", "os", "click", "psutil", "grpc", "ray", "raydoctor/__init__", "site"):
        (shared / f"{name}.py").write_text(f"open({str(shared / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(shared)
    board, gcs = place.listener(0), place.listener(0)
    raylet(place, 0, place.session(1, 0), gcs=gcs.port, board=board.port)
    for command in ("diagnose", "hung", "watch"):
        entered(COMMANDS[command])
    assert not (shared / "ran").exists()

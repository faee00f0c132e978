"""The port of a debugger: closed to other users before a byte is read, and closed after each look."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

import pytest

from raydoctor.act.attach import attach, dap, debug_there
from raydoctor.act.attach import door as _door
from raydoctor.act.attach.debug import DebugOptions
from raydoctor.act.attach.door import GuardedSocket
from raydoctor.act.audit import Audit
from raydoctor.observe.machine import holdings
from tests.helpers.other_users import AS_ROOT, ATTACKER, VICTIM, result_of, running_as
from tests.helpers.waiting import PATIENCE

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
HOSTS = ("127.0.0.1", "::1")
_REQUEST = (
    b'{"seq": 1, "type": "request", "command": "initialize", "arguments": {"adapterID": "x"}}'
)
INITIALIZE = b"Content-Length: %d\r\n\r\n%s" % (len(_REQUEST), _REQUEST)


# ------------------------------------------------------------------ the door alone


class House(NamedTuple):
    """A process of the victim's that reads what comes through its door."""

    host: str
    port: int
    said: int
    """A pipe with the first word of each connection that was let in, a line each."""

    def entered(self) -> str:
        """The next of these."""
        word = b""
        while not word.endswith(b"\n"):
            assert select.select([self.said], [], [], PATIENCE)[0]
            piece = os.read(self.said, 1)
            assert piece
            word += piece
        return word.decode().strip()


@contextmanager
def house(host: str) -> Iterator[House]:
    """One that listens."""
    readable, writable = os.pipe()

    def lives() -> None:
        door = GuardedSocket()
        os.write(writable, b"%d\n" % door.open(host, 0)[1])
        while True:
            connection, _ = door.accept()
            connection.settimeout(PATIENCE)
            with suppress(OSError):
                os.write(writable, socket.socket.recv(connection, 20) + b"\n")
            connection.close()

    with running_as(VICTIM, lives):
        os.close(writable)
        made = House(host, 0, readable)
        yield made._replace(port=int(made.entered()))
    os.close(readable)


def says(host: str, port: int, word: bytes) -> str:
    """What comes of saying something there."""
    with socket.create_connection((host, port), PATIENCE) as client:
        try:
            client.sendall(word)
            return client.recv(10).decode() or "closed"
        except OSError as error:
            return type(error).__name__


def says_and_leaves(host: str, port: int) -> None:
    """Some kernels list a socket that its process has closed as root's."""
    for _ in range(20):
        with socket.create_connection((host, port), PATIENCE) as client, suppress(OSError):
            client.sendall(b"attacker")


def says_and_resets(host: str, port: int) -> None:
    for _ in range(20):
        with socket.create_connection((host, port), PATIENCE) as client, suppress(OSError):
            client.sendall(b"attacker")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def says_all_at_once(host: str, port: int) -> None:
    for _ in range(5):
        says(host, port, b"attacker")


def says_half(host: str, port: int) -> None:
    with socket.create_connection((host, port), PATIENCE) as client, suppress(OSError):
        client.sendall(b"attacker")
        client.shutdown(socket.SHUT_WR)
        client.recv(10)


def comes_many_times(host: str, port: int) -> None:
    with ExitStack() as stack:
        for _ in range(8):
            client = stack.enter_context(socket.socket(family(host)))
            client.setblocking(False)
            client.connect_ex((host, port))
            with suppress(OSError):
                client.send(b"attacker")


def comes_mapped(host: str, port: int) -> None:
    """Its address of IPv4 is in the table of IPv6."""
    if ":" not in host:
        says(f"::ffff:{host}", port, b"attacker")


def comes_from_a_forked_child(host: str, port: int) -> None:
    """The process that made the socket is gone."""
    with socket.create_connection((host, port), PATIENCE) as client:
        if not os.fork():
            with suppress(OSError):
                client.sendall(b"attacker")
                client.recv(10)
            os._exit(0)


def comes_as_root_of_its_own_namespace(host: str, port: int) -> None:
    """There it has the user id 0; in ours it has not."""
    with suppress(OSError, AttributeError):
        os.unshare(os.CLONE_NEWUSER)  # type: ignore[attr-defined,unused-ignore]
    says(host, port, b"attacker")


def family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


INTRUSIONS: tuple[Callable[[str, int], None], ...] = (
    says_all_at_once, says_half, says_and_leaves, says_and_resets, comes_many_times, comes_mapped, comes_from_a_forked_child,
    comes_as_root_of_its_own_namespace,
)  # fmt: skip


@AS_ROOT
@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("intrude", INTRUSIONS, ids=lambda each: each.__name__)
def test_only_the_user_and_root_come_in(intrude: Callable[[str, int], None], host: str) -> None:
    with house(host) as there:
        result_of(VICTIM, lambda: says(host, there.port, b"before"))
        assert there.entered() == "before"
        result_of(ATTACKER, lambda: intrude(host, there.port))
        result_of(VICTIM, lambda: says(host, there.port, b"after"))
        assert there.entered() == "after", "what the attacker said was read"
        says(host, there.port, b"root")
        assert there.entered() == "root"


def test_a_door_closes_and_opens_again() -> None:
    door, came = GuardedSocket(), []
    host, port = door.open("127.0.0.1", 0)

    def accept() -> None:
        with door.accept()[0] as connection:
            came.append(socket.socket.recv(connection, 9))

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    assert door.open("127.0.0.1", 0) == (host, port), "it is open already"
    door.shut()
    with pytest.raises(ConnectionRefusedError):
        says(host, port, b"one")
    host, port = door.open("127.0.0.1", port)
    says(host, port, b"two")
    thread.join(PATIENCE)
    assert came == [b"two"]
    door.close()
    with pytest.raises(OSError, match="closed"):
        door.accept()


def test_a_door_closes_by_itself() -> None:
    door = GuardedSocket()
    host, port = door.open("127.0.0.1", 0, 0.05)
    threading.Thread(target=door.accept, daemon=True).start()
    deadline = time.monotonic() + PATIENCE
    while door.is_open:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with pytest.raises(ConnectionRefusedError):
        says(host, port, b"late")
    door.open("127.0.0.1", 0, 0.05)
    door.open("127.0.0.1", 0)
    time.sleep(0.1)
    assert door.is_open, "it was to stay open"


def test_what_the_kernel_does_not_list_alike_twice_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None, two, one that is being closed, another user's, one without an owner, one that changes."""
    rows = _door._rows
    changes: tuple[Callable[[list[list[str]]], list[list[str]]], ...] = (
        lambda rows: [],
        lambda rows: rows * 2,
        lambda rows: [with_value(each, 3, "08") for each in rows],
        lambda rows: [with_value(each, 7, "65000") for each in rows],
        lambda rows: [with_value(each, 9, "0") for each in rows],
        lambda rows: [with_value(each, 9, str(next(numbers))) for each in rows],
    )
    numbers = iter(range(1, 99))
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as stack:
        stack.enter_context(socket.create_connection(server.getsockname()[:2]))
        connection = stack.enter_context(server.accept()[0])
        assert _door.may_enter(connection)
        for change in changes:
            monkeypatch.setattr(_door, "_rows", lambda *a, c=change: c(rows(*a)))
            assert not _door.may_enter(connection)


def with_value(row: list[str], column: int, value: str) -> list[str]:
    return [*row[:column], value, *row[column + 1 :]]


# ------------------------------------------------------------------ a debugger behind it

PROGRAM = """
import threading, time
def works(number, word):
    stop = False
    print("ready", flush=True)
    while not stop:
        time.sleep(0.01)
    print("stopped", flush=True)
works(7, "hello")
"""


@pytest.fixture
def program() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


def reply(pid: int, **more: object) -> dict[str, object]:
    """What `raydoctor attach` would get."""
    asked = {"pid": pid, "ip": "", "worker": "", "node": "", "title": "", "debugger": 0}
    wishes = {name: more.pop(name) for name in DebugOptions._fields if name in more}
    where = {"host": "127.0.0.1", "port": 0, "stays": not wishes, "options": wishes}
    found = debug_there.respond({**asked, **where, **more})
    assert "failed" not in found, found
    return found


@AS_ROOT
@pytest.mark.parametrize("host", HOSTS)
def test_another_user_does_not_reach_the_debugger(
    program: subprocess.Popen[str], host: str
) -> None:
    """A session before, while another user tries, and after that."""
    made = attach.attach(
        attach.AttachTarget(program.pid),
        host=host,
        grace=PATIENCE,
        audit=Audit("test", path="/dev/null"),
    )
    with dap.attached(made.host, made.port, PATIENCE) as session:
        assert "error" not in session.request("threads", {}, PATIENCE)
        for _ in range(3):
            said = result_of(ATTACKER, lambda: says(made.host, made.port, INITIALIZE))
            assert said in ("closed", "ConnectionResetError", "BrokenPipeError")
        assert session.request("threads", {}, PATIENCE)["threads"]
    with dap.attached(made.host, made.port, PATIENCE) as session:
        assert session.request("threads", {}, PATIENCE)["threads"]
    assert any("stays open" in note and "root can connect" in note for note in made.notes) or any(
        "Only root can connect" in note for note in made.notes
    )


def test_a_web_page_cannot_send_commands(program: subprocess.Popen[str]) -> None:
    """The user's browser is the user: it must speak as a debugger does. In whatever pieces that comes."""
    made = reply(program.pid)["attached"]
    request = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + INITIALIZE
    with socket.create_connection((made["host"], made["port"]), PATIENCE) as browser:
        browser.sendall(request)
        assert browser.recv(100) == b""
    with socket.create_connection((made["host"], made["port"]), PATIENCE) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, 30, 3):
            client.sendall(INITIALIZE[at : at + 3])
        client.sendall(INITIALIZE[30:])
        assert client.recv(100).startswith(b"Content-Length: ")


def test_looks_leave_no_port(program: subprocess.Popen[str]) -> None:
    """py-spy needs none; an expression and a statement get one that is closed when they are done."""
    pid = program.pid
    seen = reply(pid, stack=True, variables=True)
    assert seen["method"] == "py-spy"
    assert "attached" not in seen
    values = {row["name"]: row["value"] for row in seen["seen"]["variables"]["variables"]}
    assert values["number"] == "7"
    assert seen["seen"]["variables"]["where"]["function"] == "works"
    assert "works" in [f["function"] for f in seen["seen"]["stacks"][0]["frames"]]
    assert len(os.listdir(f"/proc/{pid}/task")) == 1, "nothing was injected"

    for number in range(3):
        got = reply(pid, evaluate=f"number * {number}")
        assert got["seen"]["evaluated"]["value"] == str(7 * number)
        assert got["attached"]["open"] is False
        assert got["attached"]["method"] == ("entered" if number else "injected")
        assert holdings.ports([pid]) == {}
        assert attach.listening(pid) is None
    done = reply(pid, execute="stop = True")
    assert done["seen"]["executed"]["how"] == "halted"
    assert holdings.ports([pid]) == {}
    assert program.stdout
    assert program.stdout.readline() == "stopped\n"


def test_a_port_that_stays_is_closed_on_request(program: subprocess.Popen[str]) -> None:
    pid = program.pid
    made = reply(pid)["attached"]
    assert made["open"] is True
    assert any("stays open until" in note for note in made["notes"])
    assert holdings.ports([pid]) == {pid: (made["port"],)}
    looked = reply(pid, evaluate="number")["attached"]
    assert (looked["open"], looked["port"]) == (True, made["port"]), "it was open before"
    with dap.attached(made["host"], made["port"], PATIENCE):
        busy = debug_there.respond({**ASKED, "pid": pid, "close": True})
        assert "attached to pid" in busy["failed"]
    assert reply(pid, close=True)["closed"] == {"host": made["host"], "port": made["port"]}
    assert holdings.ports([pid]) == {}
    assert reply(pid, close=True)["closed"] == {}
    assert reply(pid)["attached"]["open"] is True


ASKED = {"ip": "", "worker": "", "node": "", "debugger": 0, "options": {}}


def test_what_py_spy_cannot_see_is_seen_from_inside() -> None:
    """A coroutine that waits, and the variables of a module."""
    text = (
        "import asyncio\nasync def waits(inner):\n  print('ready', flush=True)\n"
        "  await asyncio.sleep(600)\nasyncio.run(waits(42))"
    )
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        found = reply(process.pid, variables=True, frame="waits")
        assert found["seen"]["variables"]["where"]["kind"] == "coroutine"
        assert found["attached"]["open"] is False
        assert holdings.ports([process.pid]) == {}
    finally:
        process.kill()
        process.communicate()


def test_a_debugpy_that_would_bypass_the_door_is_not_used() -> None:
    """One that takes its socket from elsewhere: it is stopped, and the attempt refused."""
    text = (
        "import debugpy.server.api, pydevd, time\n"
        "real = pydevd.create_server_socket\n"
        "run = pydevd.PyDB._WaitForConnectionThread.run\n"
        "def own(self):\n  pydevd.create_server_socket = lambda host, port: real(host, 0); return run(self)\n"
        "pydevd.PyDB._WaitForConnectionThread.run = own\n"
        "print('ready', flush=True)\nwhile True: time.sleep(0.01)"
    )
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(attach.NotAttachedError, match="to every user"):
            attach.attach(
                attach.AttachTarget(process.pid),
                grace=PATIENCE,
                audit=Audit("test", path="/dev/null"),
            )
        assert holdings.ports([process.pid]) == {}
    finally:
        process.kill()
        process.communicate()

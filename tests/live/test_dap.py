"""The client of the Debug Adapter Protocol, and what is done through it, against a real debugpy and hostile servers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydoctor.act.attach import arm, dap, debug
from raydoctor.act.attach.attach import wake
from raydoctor.act.attach.dap import DapError, DapMessages
from raydoctor.act.attach.debug import DebuggerAddress, DebugOptions, act
from raydoctor.model.errors import RaydoctorError
from raydoctor.observe.stacks import stacks
from tests.helpers.waiting import PATIENCE, clock

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

PROGRAM = f"""
import os, signal, sys, threading, time
sys.path.insert(0, {str(Path(arm.__file__).parents[3])!r})
from raydoctor.act.attach import arm
signal.signal(arm.SIGNAL, arm.wake)
import debugpy

class Rude:
    def __repr__(self): raise SystemExit("no")

def loop(rate):
    stop, rounds, password, rude = False, 0, "hunter2hunter2", Rude()
    while not stop:
        rounds += 1
    return rounds

def blocked():
    lock = threading.RLock()
    got = []
    gate = threading.Lock()
    gate.acquire()
    gate.acquire()
    print("freed", flush=True)

def beside():
    word, gate = "waits", threading.Event()
    gate.wait()
    print("beside", word, flush=True)

threading.Thread(target=beside, name="beside", daemon=True).start()
print(debugpy.listen(("127.0.0.1", 0), in_process_debug_adapter=True)[1], flush=True)
print("gave", loop(2.5) > 0, flush=True)
blocked()
time.sleep(3600)
"""


class Debuggee(NamedTuple):
    """A process that listens."""

    process: subprocess.Popen[str]
    place: DebuggerAddress

    def said(self) -> str:
        """Its next line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def runs(self) -> bool:
        """Whether it is not stopped, by whatever."""
        return psutil.Process(self.place.pid).status() in ("running", "sleeping")


@pytest.fixture(scope="module")
def debuggee() -> Iterator[Debuggee]:
    process = subprocess.Popen(
        [sys.executable, "-Xfrozen_modules=off", "-c", PROGRAM],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    port = int(process.stdout.readline())
    yield Debuggee(process, DebuggerAddress(process.pid, "127.0.0.1", port))
    process.kill()
    process.communicate()


def done(debuggee: Debuggee, **wishes: Any) -> debug.Inspection:
    return act(debuggee.place, DebugOptions(**wishes), wake)


# ------------------------------------------------------------------ a real debugger


def test_reading_halts_nothing(debuggee: Debuggee) -> None:
    """Stacks of all threads but debugpy's, variables without secrets, values of expressions."""
    began = rounds(debuggee)
    seen = done(
        debuggee, stack=True, variables=True, evaluate="rate * 2 + len([x for x in (rate,)])"
    )
    assert [stack["name"] for stack in seen.stacks] == ["MainThread", "beside"]
    assert [f["function"] for f in seen.stacks[0]["frames"]] == ["loop", "<module>"]
    reply = {row["name"]: row["value"] for row in seen.variables["variables"]}
    assert reply["rate"] == "2.5"
    assert reply["password"].startswith("<secret:")
    assert "no" in reply["rude"]
    assert seen.evaluated["value"] == "6.0"
    assert done(debuggee, evaluate="password").evaluated["value"].startswith("<secret:")
    assert rounds(debuggee) > began


def rounds(debuggee: Debuggee) -> int:
    return int(done(debuggee, evaluate="rounds").evaluated["value"])


def test_frames_and_threads_are_chosen_by_name(debuggee: Debuggee) -> None:
    """A function names its thread, too; what is missing is reported."""
    assert done(debuggee, evaluate="word", frame="beside").evaluated["value"] == "'waits'"
    assert (
        done(debuggee, evaluate="word", thread="beside", frame="2").evaluated["value"] == "'waits'"
    )
    assert (
        "no thread has the name" in done(debuggee, evaluate="1", thread="nobody").evaluated["error"]
    )
    assert (
        "has no function nothing"
        in done(debuggee, evaluate="1", frame="nothing").evaluated["error"]
    )
    assert "frames" in done(debuggee, evaluate="1", frame="99").evaluated["error"]


def test_what_is_evaluated_may_fail_or_hang(debuggee: Debuggee) -> None:
    """The program is none the worse for it."""
    assert done(debuggee, evaluate="1 / 0").evaluated["error"].startswith("ZeroDivisionError")
    assert done(debuggee, evaluate="exit(3)").evaluated["error"].startswith("SystemExit")
    late = done(debuggee, evaluate="__import__('time').sleep(2)", seconds=0.3).evaluated
    assert late["late"] is True
    assert debuggee.runs()


def test_the_order_of_vs_code(debuggee: Debuggee) -> None:
    """As VS Code sends its requests: breakpoints, pause, variables, one of them set, continue; and again."""
    for value in ("3.5", "4.5"):
        session = dap.connect(debuggee.place.host, debuggee.place.port)
        attaching = dap.hello(session)
        session.request(
            "setBreakpoints", {"source": {"path": __file__}, "breakpoints": [{"line": 1}]}
        )
        session.request("setFunctionBreakpoints", {"breakpoints": []})
        session.request("setExceptionBreakpoints", {"filters": ["uncaught"]})
        dap.configured(session, attaching)
        threads = session.request("threads")["threads"]
        main = next(row["id"] for row in threads if row["name"] == "MainThread")
        session.request("pause", {"threadId": main})
        assert session.event("stopped", 10.0) is not None
        assert halted(debuggee)
        frames = session.request("stackTrace", {"threadId": main})["stackFrames"]
        frame = next(row["id"] for row in frames if row["name"] == "loop")
        scope = session.request("scopes", {"frameId": frame})["scopes"][0]["variablesReference"]
        names = session.request("variables", {"variablesReference": scope})["variables"]
        assert "rounds" in [row["name"] for row in names]
        session.request(
            "setVariable", {"variablesReference": scope, "name": "rate", "value": value}
        )
        session.request("continue", {"threadId": main})
        assert dap.farewell(session)
        assert done(debuggee, evaluate="rate").evaluated["value"] == value
    assert rounds(debuggee) < rounds(debuggee)


def halted(debuggee: Debuggee) -> bool:
    """Whether its main thread is held by debugpy, as an outsider sees it."""
    (row,) = stacks.rows(
        [stacks.ProcessToSample(debuggee.place.pid)], variables=False, native=False
    )
    return any("_do_wait_suspend" in each["function"] for each in row["threads"][0]["frames"])


def goes_on(debuggee: Debuggee) -> bool:
    """Whether it is let go, and soon."""
    deadline = time.monotonic() + PATIENCE
    while halted(debuggee) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not halted(debuggee)


def test_a_second_debugger_does_not_cut_off_the_first(debuggee: Debuggee) -> None:
    with dap.attached(debuggee.place.host, debuggee.place.port) as other:
        with pytest.raises(RaydoctorError, match=r"already attached to pid \d+, from 127\.0\.0\.1"):
            done(debuggee, stack=True)
        assert other.request("threads")["threads"]
    assert done(debuggee, evaluate="rate").evaluated


def test_what_is_halted_goes_on_when_its_debugger_is_killed(debuggee: Debuggee) -> None:
    """SIGKILL, in the middle of a statement's halt: another process sees to it."""
    program = (
        "import os, signal; from raydoctor.act.attach import debug\n"
        "debug._in_frame = lambda *a: (print('halted', flush=True), os.kill(os.getpid(), signal.SIGKILL))\n"
        f"debug.act(debug.DebuggerAddress{tuple(debuggee.place)!r}, debug.DebugOptions(execute='rate = 1'), lambda pid: None)"
    )
    killed = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, timeout=PATIENCE
    )
    assert killed.stdout == b"halted\n"
    assert killed.returncode == -signal.SIGKILL
    assert goes_on(debuggee)
    assert rounds(debuggee) < rounds(debuggee)


def test_an_interrupt_leaves_it_running(
    debuggee: Debuggee, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(debug, "_in_frame", interrupted)
    with pytest.raises(KeyboardInterrupt):
        done(debuggee, execute="rate = 1")
    assert goes_on(debuggee)
    assert rounds(debuggee) < rounds(debuggee)


def test_statements(debuggee: Debuggee) -> None:
    """In the thread, halted: a local ends a loop, a lock is released. Beside one that cannot be halted."""
    assert "NameError" in done(debuggee, execute="nothing").executed["error"]
    assert done(debuggee, execute="stop = True").executed["how"] == "halted"
    assert debuggee.said() == "gave True"
    # The thread's own number shows that it is the one: an RLock is its owner's alone.
    done(
        debuggee,
        execute="got.append(__import__('threading').current_thread().name); lock.acquire()",
    )
    freed = done(debuggee, execute="lock.release(); gate.release()")
    assert freed.executed.get("how") == "halted", freed
    assert debuggee.said() == "freed"
    reply = done(debuggee, execute="word = 'changed'; gate.set()", frame="beside").executed
    assert reply["how"] == "beside"
    assert debuggee.said() == "beside changed"
    assert debuggee.runs()


def test_sessions_leave_nothing(debuggee: Debuggee) -> None:
    """Neither threads nor open files: of the last one its connection alone, until the next."""

    def held() -> tuple[int, int]:
        process = psutil.Process(debuggee.place.pid)
        return process.num_threads(), process.num_fds()

    for _ in range(2):
        done(debuggee, stack=True)
    before = held()
    for _ in range(6):
        done(debuggee, stack=True)
    most = (before[0], before[1] + 1)
    deadline = time.monotonic() + PATIENCE
    while any(has > may for has, may in zip(held(), most, strict=True)):
        assert time.monotonic() < deadline, (before, held())
        time.sleep(0.05)  # threads of the last session are on their way out


def test_a_process_that_is_stopped_is_not_waited_for(debuggee: Debuggee) -> None:
    """The debugger in it takes connections, as the kernel does, and never answers."""
    os.kill(debuggee.place.pid, signal.SIGSTOP)
    try:
        began = clock()
        with pytest.raises(DapError) as caught, dap.attached(*debuggee.place[1:], seconds=0.5):
            pass
        assert caught.value.trouble == "late"
        assert clock() - began < 8
    finally:
        os.kill(debuggee.place.pid, signal.SIGCONT)


# ------------------------------------------------------------------ servers that are none


@contextlib.contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that does this to the first client."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                client, _ = server.accept()
                with client:
                    answer(client)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield int(server.getsockname()[1])
    thread.join(5)


def framed(**message: Any) -> bytes:
    text = json.dumps(message).encode()
    return b"Content-Length: %d\r\n\r\n%s" % (len(text), text)


@pytest.mark.parametrize(
    ("said", "trouble", "words"),
    [
        (b"", "closed", "closed the connection"),
        (b"HTTP/1.0 400 Bad Request\r\nServer: x\r\n\r\n", "broken", "not a debugger"),
        (b"SSH-2.0-OpenSSH_9.2\r\n" * 400, "broken", "not a debugger"),
        (b"Content-Length: 999999999999\r\n\r\n", "broken", "more than"),
        (b"Content-Length: " + b"9" * 3000 + b"\r\n\r\n", "broken", "more than"),
        (b"Content-Length: -5\r\n\r\n", "broken", "not a debugger"),
        (b"Content-Length: 4\r\n\r\nnope", "broken", "not a JSON object"),
        (b"Content-Length: 2\r\n\r\n[]", "broken", "not a JSON object"),
        (b"Content-Length: 200000\r\n\r\n" + b"[" * 200000, "broken", "not a JSON object"),
        (
            framed(type="response", request_seq=1, success=False, message="Server[0] is already being debugged"),
            "refused", "already being debugged",
        ),
        (framed(type="response", request_seq=7, success=True) * 3, "closed", "closed"),
    ],
)  # fmt: skip
def test_hostile_servers(said: bytes, trouble: str, words: str) -> None:
    def answer(client: socket.socket) -> None:
        client.recv(1000)
        client.sendall(said)

    with serving(answer) as port:
        session = dap.connect("127.0.0.1", port)
        with pytest.raises(DapError, match=words) as caught:
            session.request("initialize", {}, 5.0)
    assert caught.value.trouble == trouble
    session.close()


def test_a_server_that_never_answers() -> None:
    ready = threading.Event()

    def silent(client: socket.socket) -> None:
        ready.wait(5)

    with serving(silent) as port:
        session = dap.connect("127.0.0.1", port)
        began = clock()
        with pytest.raises(DapError) as caught:
            session.request("initialize", {}, 0.2)
        assert session.event("stopped", 0.1) is None
        assert clock() - began < 2
        ready.set()
    assert caught.value.trouble == "late"
    session.close()


def test_no_process_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(DapError, match="cannot connect") as caught:
        dap.connect("127.0.0.1", port)
    assert caught.value.trouble == "unreachable"


def test_events_and_requests_come_between() -> None:
    """Events are kept until they are asked for, a flood of them is not; what the server asks is refused."""
    refusals = []

    def answer(client: socket.socket) -> None:
        client.recv(1000)
        client.sendall(framed(type="event", event="stopped", body={"threadId": 1}))
        client.sendall(framed(type="event", event="output", body={"output": "x"}) * 2000)
        client.sendall(framed(type="request", seq=9, command="runInTerminal"))
        client.sendall(framed(type="response", request_seq=1, success=True, body={"a": 1}))
        refusals.append(client.recv(1000))

    with serving(answer) as port:
        session = dap.connect("127.0.0.1", port)
        assert session.request("initialize", {}, 5.0) == {"a": 1}
        assert session.event("stopped", 0.0, lambda body: body["threadId"] == 2) is None
        assert session.event("stopped", 0.0) == {"threadId": 1}
        assert session.event("stopped", 0.0) is None
    session.close()
    assert b'"request_seq": 9' in refusals[0]
    assert b'"success": false' in refusals[0]


@settings(max_examples=50)
@given(
    st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3), max_size=5),
    st.lists(st.integers(1, 40), min_size=1, max_size=10),
)
def test_messages_come_whole_however_they_are_cut(messages: list[Any], sizes: list[int]) -> None:
    wire = b"".join(framed(body=each) for each in messages)
    reader, at, turn = DapMessages(), 0, 0
    found: list[Any] = []
    while at < len(wire):
        size = sizes[turn % len(sizes)]
        found += reader.feed(wire[at : at + size])
        at, turn = at + size, turn + 1
    assert found == [{"body": each} for each in messages]


@pytest.mark.parametrize(
    ("file", "is_users"),
    [
        ("/tmp/raydoctor-1000/arm.py", False),
        ("/home/user/raydoctor/act/attach/arm.py", False),
        ("/home/user/project/arm.py", True),
        ("/home/user/project/train.py", True),
    ],
)
def test_our_own_way_in_is_no_code_of_the_user_s(file: str, is_users: bool) -> None:
    """A thread may stand in the handler that lets the debugger in, just after an attach."""
    from raydoctor.act.attach.programs import look_inside

    assert look_inside._is_user(file) is is_users

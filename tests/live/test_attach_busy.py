"""Processes that are busy keep running when they are attached to; what cannot be entered safely is refused."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from benchmarks.attach_busy import Target, attempt, target
from raydoctor.act.attach import arm, attach, by_gdb, elf, inject, progress, trampoline
from raydoctor.act.attach.handshake import handshake
from raydoctor.act.attach.programs import blocked, inject_main
from raydoctor.act.attach.programs.tracee import Registers
from raydoctor.act.audit import Audit
from tests.helpers.attaching import refused_as_late
from tests.helpers.waiting import PATIENCE, Program, until

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only"),
    pytest.mark.skipif(not trampoline.is_supported(), reason="x86-64 only"),
]


@pytest.fixture
def busy() -> Iterator[Target]:
    with target("threads-4") as process:
        yield process


# ------------------------------------------------------------------ it keeps running


@pytest.mark.parametrize("kind", ["threads-4", "waiting", "forking"])
def test_a_busy_process_keeps_running(kind: str) -> None:
    made = attempt(kind, sys.executable)
    assert made.result in {"attached", "refused"}, made


def test_many_entries_do_not_freeze_a_busy_process(busy: Target) -> None:
    """Code that was called, not queued, froze each of three processes within eight entries."""
    start = arm.start_of(busy.pid)
    for _ in range(10):
        made = inject.inject(busy.pid, start, "x = 1", now=False, holds_gil=False)
        assert made.did == "queued", made
        assert not busy.still(busy.moving)


@pytest.mark.usefixtures("usable_gdb")
def test_gdb_does_not_freeze_a_busy_process(busy: Target) -> None:
    start = arm.start_of(busy.pid)
    for now in (False, True):
        with suppress(OSError):  # it may be nowhere that gdb can enter
            assert by_gdb.inject(busy.pid, start, "x = 1", now=now, holds_gil=False) == "queued"
        assert not busy.still(busy.moving)


def test_what_is_queued_runs_in_no_child_that_is_forked_meanwhile(tmp_path: Path) -> None:
    with target("forking") as busy:
        mark, start = tmp_path / "pids", arm.start_of(busy.pid)
        text = f"import os; open({str(mark)!r}, 'a').write(f'{{os.getpid()}} ')"
        for number in range(5):
            made = inject.inject(busy.pid, start, text, now=False, holds_gil=False)
            assert made.did, made
            deadline = time.monotonic() + PATIENCE
            while not mark.exists() or len(mark.read_text().split()) <= number:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        assert set(mark.read_text().split()) == {str(busy.pid)}


@pytest.mark.parametrize("modules", ["hashlib", "hashlib, threading"])
def test_native_code_without_the_gil_gets_a_thread_of_its_own(modules: str) -> None:
    """The main thread would wait for the GIL with whatever lock that code holds."""
    text = f"""
import {modules}
print('ready', flush=True)
hashlib.pbkdf2_hmac('sha256', b'', b'', 3_000_000)
import threading
print('done', threading.current_thread() is threading.main_thread(), flush=True)
input()
"""
    with Program(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        made = attach.attach(
            attach.AttachTarget(process.pid), grace=PATIENCE, audit=Audit("test", path="/dev/null")
        )
        assert made.method == "injected"
        assert process.stdout.readline() == "done True\n"
        deadline = time.monotonic() + PATIENCE
        while not attach.handles(process.pid):  # the main thread has caught up
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.communicate("\n", timeout=PATIENCE)
        assert process.returncode == 0


def test_threads_take_turns_as_before_afterwards(tmp_path: Path) -> None:
    mark = tmp_path / "interval"
    with target("threads-4") as busy:
        attach.attach(
            attach.AttachTarget(busy.pid), grace=PATIENCE, audit=Audit("test", path="/dev/null")
        )
        text = f"import sys; open({str(mark)!r}, 'w').write(str(sys.getswitchinterval()))"
        inject.inject(busy.pid, arm.start_of(busy.pid), text, now=False, holds_gil=False)
        deadline = time.monotonic() + PATIENCE
        while not mark.exists() or not mark.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert mark.read_text() == "0.005"


PRINTS_ITS_INTERVAL = """
import sys
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print(sys.getswitchinterval(), flush=True)
"""
WAITS_FOR_A_FILE = """
import os, time
while not os.path.exists(os.path.join(os.path.dirname(__file__), "go on")):
    time.sleep(0.01)
raise RuntimeError("broken on purpose")
"""


@contextmanager
def intervals(**environment: str) -> Iterator[tuple[int, Callable[[str], float]]]:
    """A process, and what executes a line in it and returns the switch interval afterwards."""
    with Program(
        [sys.executable, "-c", PRINTS_ITS_INTERVAL],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment},
    ) as process:  # fmt: skip
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n"

        def after(line: str) -> float:
            assert process.stdin
            assert process.stdout
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        yield process.pid, after
        process.communicate(timeout=PATIENCE)


@pytest.mark.parametrize("broken", ["request", "enter.py", "arm.py"])
def test_a_request_that_is_withdrawn_or_fails_restores_the_switch_interval(broken: str) -> None:
    with intervals() as (pid, after), closing(handshake(pid)) as shake:
        shake.ask("127.0.0.1", 0, PATIENCE)
        text = shake.text()
        if broken == "request":
            assert shake.withdraw()
        else:
            text = text.replace(broken, f"missing-{broken}")
        after(f"exec({text!r})")
        # The main thread removes the handler when it runs again, so each look lets it run.
        until(lambda: after("") == 0.005 and not attach.handles(pid))


def test_a_refused_attach_restores_the_switch_interval_when_its_import_ends(tmp_path: Path) -> None:
    (tmp_path / "debugpy.py").write_text(WAITS_FOR_A_FILE)
    with intervals(PYTHONPATH=str(tmp_path)) as (pid, after):
        refused_as_late(pid)
        assert after("") < 0.005
        (tmp_path / "go on").touch()
        until(lambda: after("") == 0.005)


NOTES_IMPORTS = """
import sys, threading
class Notes:
    @staticmethod
    def find_spec(name, *_):
        if threading.get_ident() == threading.main_thread().ident:
            found.append(name)
found, stop = [], False
sys.meta_path.insert(0, Notes)
threading.Thread(target=lambda: globals().update(stop=bool(input()))).start()
print("ready", flush=True)
while not stop:
    pass
print(found, flush=True)
"""


def test_the_main_thread_imports_nothing() -> None:
    """With 64 busy threads, the import of `typing` kept it for more than 15 s."""
    with Program(
        [sys.executable, "-I", "-c", NOTES_IMPORTS],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        attach.attach(
            attach.AttachTarget(process.pid), grace=PATIENCE, audit=Audit("test", path="/dev/null")
        )
        assert process.communicate("stop\n", timeout=PATIENCE)[0] == "[]\n"


def test_many_threads_take_longer_turns() -> None:
    """64 threads that each wake up every 0.1 ms do little else."""
    text = (
        "import sys, threading; from raydoctor.act.attach import enter\n"
        "stop = threading.Event()\n"
        "for _ in range(int(sys.argv[1])): threading.Thread(target=stop.wait).start()\n"
        "assert enter.shorten_turns() and not enter.shorten_turns(); print(sys.getswitchinterval())\n"
        "enter.restore_turns(); print(sys.getswitchinterval()); stop.set()"
    )

    def intervals_of(threads: int) -> list[float]:
        program = [sys.executable, "-c", text, str(threads)]
        said = subprocess.run(program, capture_output=True, text=True, check=True).stdout
        return list(map(float, said.split()))

    assert intervals_of(4) == pytest.approx([0.0001, 0.005], rel=0.01)
    assert intervals_of(64) == pytest.approx([0.00064, 0.005], rel=0.01)


PRINTS_ITS_ENVIRONMENT = """
import ctypes, os
c_library = ctypes.CDLL(None)
def environment():
    array = ctypes.POINTER(ctypes.c_char_p).in_dll(c_library, "environ")
    count = next(number for number in range(10_000) if array[number] is None)
    return ctypes.addressof(array.contents), array[:count], dict(os.environ)
before = environment()
print("ready", flush=True)
input()
print(environment() == before)
"""


def test_an_attach_leaves_the_environment_as_it_is() -> None:
    """setenv(3) frees the array that a child of vfork(2) passes to execve(2), which then fails (EFAULT)."""
    with Program(
        [sys.executable, "-c", PRINTS_ITS_ENVIRONMENT],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        attach.attach(
            attach.AttachTarget(process.pid), grace=PATIENCE, audit=Audit("test", path="/dev/null")
        )
        assert process.communicate("\n", timeout=PATIENCE)[0] == "True\n"


def test_a_refusal_names_the_threads_that_compete_for_the_gil(
    monkeypatch: pytest.MonkeyPatch, busy: Target
) -> None:
    """Nothing is queued: the busy main thread never takes the request up."""
    monkeypatch.setattr(inject, "inject", lambda *_, **__: inject.Injection("queued"))

    def names_them() -> bool:
        with pytest.raises(attach.NotAttachedError) as caught:
            attach.attach(
                attach.AttachTarget(busy.pid), grace=0.5, audit=Audit("test", path="/dev/null")
            )
        assert caught.value.why == "gil"
        assert f"raydoctor stack --native {busy.pid}" in caught.value.hint
        return "threads compete for the GIL" in caught.value.message

    until(names_them)  # threads that wait for a processor do not compete for the GIL


HOLDS_THE_GIL = """
import ctypes, threading, time
threading.Thread(target=ctypes.PyDLL(None).sleep, args=(60,), daemon=True).start()
"""


def test_a_process_that_makes_no_progress_is_reported(
    monkeypatch: pytest.MonkeyPatch, busy: Target
) -> None:
    monkeypatch.setattr(progress, "is_stuck", lambda pid: True)
    with pytest.raises(attach.NotAttachedError) as caught:
        attach.attach(
            attach.AttachTarget(busy.pid), grace=PATIENCE, audit=Audit("test", path="/dev/null")
        )
    assert caught.value.why == "still"
    assert f"raydoctor stack --native {busy.pid}" in caught.value.hint


def test_a_process_whose_threads_wait_for_the_gil_for_ever_makes_no_progress() -> None:
    with Program([sys.executable, "-c", HOLDS_THE_GIL]) as process:
        deadline = time.monotonic() + PATIENCE
        while not progress.is_stuck(process.pid, 0.2):
            assert time.monotonic() < deadline
        process.kill()


def test_a_busy_or_idle_process_makes_progress(busy: Target) -> None:
    assert not progress.is_stuck(busy.pid, PATIENCE)
    idle = "import threading; print('ready', flush=True); threading.Event().wait()"
    with Program([sys.executable, "-c", idle], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        assert not progress.is_stuck(process.pid, 0.2)
        process.kill()


# ------------------------------------------------------------------ where a thread may be sent away from

RUNTIME, LIBC, PYTHON = [0x1000, 0x2000], [0x3000, 0x4000], [0x5000, 0x6000]
PLAN = {"system": [LIBC], "forbidden": [LIBC, PYTHON], "runtime": RUNTIME, "now": False}
NOTHING = Registers(*[0] * len(Registers._fields))._replace(cs=0x33, rip=0x8000, rsp=0x9000)
READ, MUNMAP, RESTART, INTERRUPTED = 0, 11, -512, -516


def stopped(number: int, first: int = 0, result: int = RESTART) -> Registers:
    return NOTHING._replace(orig_rax=number, rdi=first, rax=result)


def way(registers: Registers, *, lasts: bool, **plan: object) -> str:
    call = blocked.SystemCall(registers.orig_rax, registers.rdi, registers.rsp, registers.rip)
    return inject_main._way(registers, call if lasts else None, {**PLAN, **plan})


@pytest.mark.parametrize("now", [False, True])
def test_a_thread_that_waits_for_the_gil_never_executes_python_there(now: bool) -> None:
    gil = stopped(blocked.FUTEX, 0x1800, INTERRUPTED)
    assert way(gil, lasts=True, now=now) == "queueing"
    # Where the runtime is not known, every lock may be its own.
    other = stopped(blocked.FUTEX, 0x7000, INTERRUPTED)
    assert way(other, lasts=True, now=now, runtime=None) == "queueing"


def test_a_thread_executes_python_only_where_it_is_blocked() -> None:
    assert way(stopped(blocked.FUTEX, 0x7000), lasts=True) == "calling"
    assert way(stopped(READ), lasts=True) == "calling"
    assert way(stopped(READ), lasts=False) == "queueing"
    assert way(stopped(blocked.FUTEX, 0x7000), lasts=False) == "queueing"
    # The lock was released just now.
    assert way(stopped(blocked.FUTEX, 0x7000, 0), lasts=True) == "queueing"


def test_a_thread_amid_an_allocation_or_in_the_c_library_is_left_alone() -> None:
    for now in (False, True):
        assert way(stopped(MUNMAP), lasts=True, now=now) == ""
        assert way(NOTHING._replace(orig_rax=-1, rip=0x3100), lasts=False, now=now) == ""
    assert way(stopped(blocked.FUTEX, 0x7000), lasts=False, now=True) == ""
    python = NOTHING._replace(orig_rax=-1, rip=0x5100)
    assert way(python, lasts=False) == "queueing"
    assert way(python, lasts=False, now=True) == ""
    assert way(NOTHING._replace(orig_rax=-1), lasts=False, now=True) == "spawning"


class Recorded:
    """A thread whose registers are set."""

    registers = NOTHING

    def write(self, address: int, data: bytes) -> None:
        self.back = int.from_bytes(data, "little")

    def let_go(self) -> None:
        pass


@pytest.mark.parametrize(
    ("operation", "again"),
    [(9 | 128 | 256, blocked.FUTEX), (0 | 128, 219)],
    ids=["until a time", "for a time"],
)
def test_a_wait_that_was_interrupted_is_made_again(operation: int, again: int) -> None:
    thread = Recorded()
    registers = stopped(blocked.FUTEX, 0x7000, INTERRUPTED)._replace(rsi=operation)
    inject_main._send(thread, registers, 0x100, 256)  # type: ignore[arg-type]
    assert thread.back == registers.rip - 2
    assert (thread.registers.rax, thread.registers.orig_rax) == (again, -1)


def test_a_stack_that_is_nearly_full_is_left_alone() -> None:
    lines = Path("/proc/self/maps").read_text().splitlines()
    (stack,) = (line.split()[0] for line in lines if line.endswith("[stack]"))
    start, end = (int(each, 16) for each in stack.split("-"))
    assert inject_main._has_room(os.getpid(), end - 4096, 64 << 10)
    assert not inject_main._has_room(os.getpid(), start, 1 << 50)
    assert not inject_main._has_room(os.getpid(), 0x10, 1)


# ------------------------------------------------------------------ large and hostile files


def mapped(path: Path) -> elf.CodeMapping:
    return elf.CodeMapping(0x10000, 0x20000, 0, str(path))


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A copy of this Python's own library, or of the program."""
    path, ours = tmp_path / "libpython-copy.so", os.getpid()
    (used,) = {
        f.path
        for f in elf.code(ours)
        if elf.is_python(ours, f) and elf.exported(ours, [elf.RUNTIME], [f])
    }
    path.write_bytes(Path(used).read_bytes())
    return path


def test_a_large_library_is_not_read_as_a_whole(library: Path) -> None:
    os.truncate(library, 1536 << 20)
    code = (
        "import resource, sys, os; from raydoctor.act.attach import elf\n"
        f"m = elf.CodeMapping(0, 4096, 0, {str(library)!r})\n"
        "with elf.Library(os.getpid(), m) as l: l.unused(); l.symbols(['Py_AddPendingCall'])\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        # Not ru_maxrss, which begins with what the test's own process has.
        "peak = next(l.split()[1] for l in open('/proc/self/status') if l.startswith('VmHWM'))\n"
        "print(peak, used.ru_utime + used.ru_stime)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    memory, seconds = map(float, out.split())
    assert memory < 100 << 10  # KiB
    assert seconds < 2


def test_symbols_are_where_the_process_has_them() -> None:
    pid = os.getpid()
    files = [f for f in elf.code(pid) if elf.is_python(pid, f)]
    found = elf.exported(pid, ["Py_AddPendingCall", elf.RUNTIME], files)
    for name, where in found.items():
        address = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, name))
        assert where.start == address
        assert len(where) > 0
    assert len(found) == 2


def test_a_hostile_library_raises_nothing_else(library: Path) -> None:
    whole = library.read_bytes()
    (sections,) = struct.unpack_from("<Q", whole, 40)
    for at, layout, value in (
        (32, "<Q", 2**64 - 1),
        (40, "<Q", 2**63 - 1),
        (54, "<H", 1),
        (56, "<H", 0xFFFF),
        (58, "<H", 0),
        (60, "<H", 0xFFFF),
        *((sections + 64 * n + 24, "<Q", 2**64 - 1) for n in range(12)),
        *((sections + 64 * n + 32, "<Q", 2**62) for n in range(12)),
        *((sections + 64 * n + 40, "<I", 0xFFFFFFFF) for n in range(12)),
    ):
        damaged = bytearray(whole)
        struct.pack_into(layout, damaged, at, value)
        library.write_bytes(damaged)
        assert isinstance(elf.exported(os.getpid(), ["PyErr_SetString"], [mapped(library)]), dict)
    for size in (0, 3, 64, 5000, len(whole) // 2):
        library.write_bytes(whole[:size])
        assert elf.exported(os.getpid(), ["PyErr_SetString"], [mapped(library)]) == {}


def test_a_library_that_shrinks_while_it_is_read_does_no_harm(library: Path) -> None:
    """A mapping of it would end us with SIGBUS."""
    with elf.Library(os.getpid(), mapped(library)) as opened:
        os.truncate(library, 64)
        with pytest.raises(ValueError, match="ends before"):
            opened.unused()


def test_a_pipe_in_the_place_of_a_library_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "libpython.so")
    done = threading.Event()

    def read() -> None:
        elf.exported(os.getpid(), ["x"], [mapped(tmp_path / "libpython.so")])
        done.set()

    threading.Thread(target=read, daemon=True).start()
    assert done.wait(PATIENCE)

"""In what a process hangs: on a real cluster, by recorded looks at one, and by hand-made ones.

`recorded/hangs-*.json.gz` are the rows of `samples` and `clues` of the program of `tests.helpers.hangs`, as
`python -m tests.helpers.hangs FILE` wrote them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydoctor.cluster import samples
from raydoctor.cluster.samples import Sample, SampledFrame, SampledProcess, SampledThread
from raydoctor.model.values import Event, Source
from raydoctor.observe.stacks.stacks import SampleOptions
from raydoctor.rules.shared import stacks as text_stacks
from raydoctor.waits.kinds import frames as _frames
from raydoctor.waits.kinds import kernel
from raydoctor.waits.kinds.kind import Verdict, kind_of, verdicts_of
from tests.helpers import hangs
from tests.helpers.hangs import KINDS, Hang, HungTask
from tests.helpers.real_ray import real_ray

FILES = sorted((Path(__file__).parent / "recorded").glob("hangs-*.json.gz"))
MOVES = {"loop", "regex", "pbkdf2"}
"""What uses a processor: who hangs there is for others to say."""
_SOURCE = Source("live/live-samples.json", "live")
recorded = cache(hangs.recorded)
of_each = pytest.mark.parametrize(
    "file", FILES, ids=lambda file: file.name.removesuffix(".json.gz")
)


SELECTS = {"sleep", "select_socket"}
"""Python 3.10 sleeps in `select`: only native frames distinguish it from a wait for sockets."""


def check(hang: Hang, process: SampledProcess) -> Verdict | None:
    verdict = kind_of(process)
    if open_to_doubt(hang, process):
        assert verdict is not None
        assert (verdict.kind, verdict.still) == ("unknown", True)
        return None
    assert (verdict.kind if verdict else None) == hang.kind, (hang.name, verdict)
    if verdict is not None:
        assert verdict.moves == (hang.name in MOVES), (hang.name, verdict)
    return verdict


def open_to_doubt(hang: Hang, process: SampledProcess) -> bool:
    """Whether no sample of a process can show where it hangs."""
    main = next(t for t in process.last.threads if t.name == "MainThread")
    has_native = any(f.whose == "native" or f.file.endswith((".so", ".so.6")) for f in main.frames)
    old = not any(f.function == "Worker.main_loop" for f in main.frames)
    return hang.name in SELECTS and old and not has_native


def those(file: Path) -> Iterator[tuple[Hang, HungTask, SampledProcess]]:
    taken = recorded(file)
    for hang in KINDS:
        if hang.name in taken.tasks:
            task = taken.tasks[hang.name]
            yield hang, task, taken.processes[task.pid]


def changed(
    process: SampledProcess, change: Callable[[SampledThread], SampledThread]
) -> SampledProcess:
    samples = (
        s._replace(threads=tuple(change(thread) for thread in s.threads)) for s in process.samples
    )
    return process._replace(samples=tuple(samples))


# ------------------------------------------------------------------ recorded


def test_the_recordings_have_all_kinds() -> None:
    assert len(FILES) >= 3
    complete = [
        file for file in FILES if {h.name for h, _, _ in those(file)} == {h.name for h in KINDS}
    ]
    assert len(complete) >= 3


@of_each
def test_every_kind_is_reported_with_what_it_waits_on(file: Path) -> None:
    for hang, task, process in those(file):
        verdict = check(hang, process)
        if verdict is not None:
            said = "\n".join((verdict.summary, *verdict.evidence))
            assert all(each in said for each in task.says), (hang.name, said, task.says)
            assert verdict.user is not None
            assert verdict.user.file == "hanging_program.py"


@of_each
def test_stacks_of_python_alone_show_the_same(file: Path) -> None:
    for hang, _, process in those(file):
        check(hang, changed(process, without_native))


def without_native(thread: SampledThread) -> SampledThread:
    return thread._replace(frames=tuple(f for f in thread.frames if f.whose != "native"))


@of_each
def test_one_look_shows_the_same(file: Path) -> None:
    for hang, _, process in those(file):
        for sample in process.samples:
            check(hang, process._replace(samples=(sample,)))


@of_each
def test_the_owner_of_a_frame_is_known_from_its_file(file: Path) -> None:
    def unmarked(thread: SampledThread) -> SampledThread:
        return thread._replace(frames=tuple(f._replace(whose="") for f in thread.frames))

    for hang, _, process in those(file):
        check(hang, changed(process, unmarked))


ARM = {
    0: 63,
    7: 73,
    35: 101,
    45: 207,
    61: 260,
    73: 32,
    202: 98,
    230: 115,
    232: 22,
    270: 72,
    435: 435,
}
"""aarch64's numbers of the calls on x86_64 that the program hangs in."""


@of_each
@pytest.mark.parametrize("numbers", [{}, ARM], ids=["x86_64", "aarch64"])
def test_the_number_of_the_call_is_enough(file: Path, numbers: dict[int, int]) -> None:
    """Where the kernel does not report its own function."""

    def numbered(thread: SampledThread) -> SampledThread:
        number = thread.syscall
        found = numbers.get(number, 9999) if numbers and number is not None else number
        return without_native(thread)._replace(syscall=found, wchan="")

    for hang, _, process in those(file):
        if hang.name in ("starts_child", "fifo_read", "gil_sleep"):
            continue  # state D alone is the disk; a read is of a file or a pipe
        if numbers and len(process.last.threads) == 1:
            continue  # nothing beside this number says whose numbers they are (Ray 2.9.3)
        check(hang, changed(process, numbered))


@of_each
def test_without_any_stack_nothing_wrong_is_said(file: Path) -> None:
    sure = set()
    for hang, _, process in those(file):
        verdict = kind_of(changed(process, lambda thread: thread._replace(frames=())))
        assert verdict is not None
        if hang.name == "gil_sleep" and verdict.kind == "sleep":
            continue  # who has the interpreter's lock, only py-spy can show
        assert verdict.kind in (hang.kind, "unknown"), (hang.name, verdict)
        if verdict.kind != "unknown":
            sure.add(verdict.kind)
    assert sure >= {"socket", "subprocess", "debugger"}


@of_each
def test_a_dump_as_text_shows_what_a_text_can(file: Path) -> None:
    """`py-spy dump` and `ray stack`, with `--native`: one classification for both."""
    for hang, _, process in those(file):
        look = process.last
        threads = [
            text_stacks.DumpedThread(
                t.name, _state(t), tuple(f._replace(whose="") for f in t.frames)
            )
            for t in look.threads
        ]
        dump = text_stacks.StackDump(process.pid, "ray::f", tuple(threads), look.event)
        thread = dump.busy
        if hang.kind in ("async-blocked", None):
            assert thread is None
        elif hang.kind not in ("stopped", "native-gil") and hang.name not in (
            *("traced", "starts_child", "fifo_read"),  # only the kernel reports it
        ):
            assert thread is not None
            kinds = {hang.kind, "unknown"} if is_mute(thread) else {hang.kind}
            assert thread.doing[0] in kinds, hang.name


def is_mute(thread: text_stacks.DumpedThread) -> bool:
    """Whether its native frames have no names: so they are with Debian's Python 3.14."""
    native = _frames.natives(thread.sample)
    return bool(native) and not any(map(kernel.is_informative, native))


def _state(thread: SampledThread) -> str:
    return f"{'active' if thread.active else 'idle'}{'+gil' if thread.gil else ''}"


# ------------------------------------------------------------------ by hand

MAIN = (
    "main_loop (ray/_private/worker.py:1069)",
    "<module> (ray/_private/workers/default_worker.py:323)",
)
BOOT = ("_bootstrap_inner (threading.py:1045)", "_bootstrap (threading.py:1002)")


def frame(text: str) -> SampledFrame:
    match = re.fullmatch(r"(.+) \((.+?)(?::(\d+))?\)", text)
    assert match is not None, text
    return SampledFrame(match[1], match[2], int(match[3] or 0))


def thread(*stack: str, name: str = "MainThread", tid: int = 7, **more: Any) -> SampledThread:
    more = {"active": False, "gil": False, "state": "S", **more}
    return SampledThread(tid, name, frames=tuple(frame(each) for each in stack), **more)


def process(
    *looks: tuple[SampledThread, ...], title: str = "ray::f", **clues: Any
) -> SampledProcess:
    event = Event("live.samples", _SOURCE, 1, 0, "")
    samples = (
        Sample(float(at), float(sum(t.cpu_seconds for t in look)), look, "py-spy", "", event)
        for at, look in enumerate(looks)
    )
    return SampledProcess(7, "n", "w", title, tuple(samples), clues, ())


def one(*stack: str, looks: int = 3, **more: Any) -> Verdict | None:
    return kind_of(process(*[(thread(*stack, *MAIN, **more),)] * looks))


def test_a_worker_without_a_task_does_not_hang() -> None:
    gc = thread("Event.wait (threading.py:629)", *BOOT, name="PythonGCThread", tid=8)
    idle = (thread(*MAIN, wchan="do_epoll_wait", syscall=232), gc)
    assert kind_of(process(idle, idle, title="ray::IDLE")) is None
    assert kind_of(process(idle, idle, title="ray::Actor.method")) is None


def test_what_an_idle_actor_left_running_is_not_what_hangs() -> None:
    beat = thread(
        "beat (train.py:9)",
        "run (threading.py:982)",
        *BOOT,
        name="beat",
        tid=9,
        wchan="hrtimer_nanosleep",
    )
    assert kind_of(process(*[(thread(*MAIN), beat)] * 3, title="ray::Actor.method")) is None


def test_an_actor_that_awaits_is_not_blocked() -> None:
    loop = thread(
        "EpollSelector.select (selectors.py:468)", "BaseEventLoop._run_once (asyncio/base_events.py:1884)",
        "BaseEventLoop.run_forever (asyncio/base_events.py:607)", "Thread.run (threading.py:982)", *BOOT,
        name="AsyncIO Thread: default", tid=9, wchan="do_epoll_wait",
    )  # fmt: skip
    bare = loop._replace(frames=tuple(frame(each) for each in ("run (threading.py:982)", *BOOT)))
    for waiting in (loop, bare):  # uvloop's is all native
        assert kind_of(process(*[(thread(*MAIN), waiting)] * 3), is_async=True) is None


STEP = (
    "Handle._run (asyncio/events.py:80)",
    "BaseEventLoop._run_once (asyncio/base_events.py:1922)",
    "Thread.run (threading.py:982)",
    *BOOT,
)


def test_an_event_loop_that_rests_now_and_then_is_not_blocked() -> None:
    def at(*stack: str) -> tuple[SampledThread, ...]:
        return (thread(*MAIN), thread(*stack, *STEP[1:], name="AsyncIO Thread: default", tid=9))

    step = at("work (serve.py:3)", STEP[0])
    assert kind_of(process(step, at("EpollSelector.select (selectors.py:468)"), step)) is None
    verdict = kind_of(process(step, step, step))
    assert verdict is not None
    assert verdict.kind == "async-blocked"
    assert verdict.still
    other = at("work (serve.py:5)", STEP[0])
    verdict = kind_of(process(step, other, step))
    assert verdict is not None
    assert verdict.moves


def test_a_loop_of_ray_serve_is_judged_like_the_actors_own() -> None:
    """Ray Serve runs its users' code in a thread, with a loop, of its own (2.60: `serve/_private/replica.py`)."""
    rests = ("EpollSelector.select (selectors.py:468)", *STEP[1:])
    own = (
        "BaseEventLoop.run_forever (asyncio/base_events.py:607)",
        "_run_user_code_event_loop (ray/serve/_private/replica.py:9)",
        *BOOT,
    )
    loop = thread(*rests, name="AsyncIO Thread: default", tid=9)
    serving = thread(
        "Model.__call__ (app.py:12)",
        *STEP[:2],
        *own,
        name="Thread-2",
        tid=11,
        wchan="hrtimer_nanosleep",
    )
    verdict = kind_of(process(*[(thread(*MAIN), loop, serving)] * 2))
    assert verdict is not None
    assert (
        verdict.summary
        == "blocks its event loop, because it sleeps in Model.__call__() (app.py:12)"
    )
    resting = serving._replace(frames=tuple(frame(each) for each in (*rests[:2], *own)))
    assert kind_of(process(*[(thread(*MAIN), loop, resting)] * 2)) is None


def test_a_coroutine_that_waits_for_a_thread_is_judged_by_that_thread() -> None:
    pool = thread(
        "fetch (serve.py:9)", "_WorkItem.run (concurrent/futures/thread.py:58)", "_worker (concurrent/futures/thread.py:83)",
        *BOOT, name="asyncio_0", tid=11, wchan="wait_woken", syscall=45,
    )  # fmt: skip
    loop = thread(
        "EpollSelector.select (selectors.py:468)", *STEP[1:], name="AsyncIO Thread: default", tid=9
    )
    socket = {
        "fd": 5,
        "type": "tcp",
        "local": "10.0.0.2:4711",
        "peer": "10.0.0.9:5432",
        "state": "ESTABLISHED",
        "tids": [11],
    }
    verdict = kind_of(process(*[(thread(*MAIN), loop, pool)] * 3, sockets=[socket]))
    assert verdict is not None
    assert (verdict.kind, verdict.on) == ("socket", "10.0.0.9:5432")


def test_a_wait_for_a_pool_is_judged_by_what_the_pool_does() -> None:
    """Ray Data runs the user's class in a pool of one thread."""
    main = thread("Condition.wait (threading.py:327)", "Future.result (concurrent/futures/_base.py:451)", "_MapWorker.submit (ray/data/map.py:778)", *MAIN)  # fmt: skip
    pool = thread("Embed.__call__ (embed.py:12)", "_WorkItem.run (concurrent/futures/thread.py:58)", "_bootstrap (threading.py:1002)", tid=78, name="ThreadPoolExecutor-0_0", wchan="hrtimer_nanosleep")  # fmt: skip
    verdict = kind_of(process((main, pool), (main, pool)))
    assert verdict is not None
    assert verdict.summary == "sleeps in Embed.__call__() (embed.py:12)"
    busy = pool._replace(state="R", active=True)
    verdict = kind_of(process((main, busy), (main, busy)))
    assert verdict is not None
    assert verdict.moves


@pytest.mark.parametrize(("state", "moves"), [("S", False), ("R", True)])
def test_who_waits_for_an_event_gets_on_as_the_threads_do_that_may_set_it(
    state: str, moves: bool
) -> None:
    main = thread("Condition.wait (threading.py:327)", "Event.wait (threading.py:629)", "run (train.py:7)", *MAIN)  # fmt: skip
    other = thread("step (train.py:3)", "Thread.run (threading.py:982)", "_bootstrap (threading.py:1002)", tid=78, name="Thread-1", state=state, active=moves)  # fmt: skip
    verdict = kind_of(process((main, other), (main, other)))
    assert verdict is not None
    assert (verdict.kind, verdict.moves) == ("lock", moves)


@pytest.mark.parametrize(("state", "moves"), [("S", False), ("R", True)])
def test_who_waits_for_a_pool_of_processes_gets_on_as_those_do(state: str, moves: bool) -> None:
    main = thread("Condition.wait (threading.py:327)", "Future.result (concurrent/futures/_base.py:451)", "encode (video.py:7)", *MAIN)  # fmt: skip
    manager = thread("select (selectors.py:415)", "_ExecutorManagerThread.run (concurrent/futures/process.py:343)", "_bootstrap (threading.py:1002)", tid=78, name="Thread-1")  # fmt: skip
    child = {"pid": 812, "command": "python", "state": state}
    tracker = {"pid": 811, "command": "python -c from multiprocessing.resource_tracker import main;main(5)", "state": "S"}  # fmt: skip
    verdict = kind_of(process((main, manager), (main, manager), children=[tracker, child]))
    assert verdict is not None
    assert (verdict.kind, verdict.on, verdict.moves) == ("subprocess", "pid 812 (python)", moves)


def test_a_worker_that_imports_at_start_gets_on() -> None:
    importing = (
        "_find_and_load_unlocked (<frozen importlib._bootstrap>:1147)", "_find_and_load (<frozen importlib._bootstrap>:1176)",
        "<module> (torch/_tensor.py:14)", "exec_module (<frozen importlib._bootstrap_external>:940)",
        "_find_and_load (<frozen importlib._bootstrap>:1176)", "<module> (torch/__init__.py:1474)",
    )  # fmt: skip
    looks = [
        (thread(f"compile (<frozen x>:{at})", *importing, "load_actor_class (ray/_private/function_manager.py:9)", *MAIN, state="R", active=True, gil=True, cpu_seconds=at),)
        for at in range(3)
    ]  # fmt: skip
    verdict = kind_of(process(*looks))
    assert verdict is not None
    assert verdict.moves
    assert "imports torch/" in verdict.activity.summary
    before = [(t[0]._replace(frames=(*t[0].frames[:-2], frame(MAIN[1]))),) for t in looks]
    verdict = kind_of(process(*before))
    assert verdict is not None
    assert (verdict.kind, verdict.moves) == ("worker-start", True)


def test_a_worker_between_two_tasks_gets_on() -> None:
    busy, idle = (thread("step (train.py:3)", *MAIN),), (thread(*MAIN),)
    assert kind_of(process(busy, busy, idle)) is None
    verdict = kind_of(process(idle, idle, busy))
    assert verdict is not None
    assert verdict.moves


def test_who_waits_for_the_garbage_collector_waits_for_the_interpreter() -> None:
    collecting = thread(
        "run (ray/_private/gc_collect_manager.py:38)",
        *BOOT,
        name="PythonGCThread",
        tid=8,
        gil=True,
        active=True,
        state="R",
    )
    resting = collecting._replace(gil=False, active=False, state="S")
    main = thread("step (train.py:3)", *MAIN, wchan="futex_do_wait", syscall=202)
    going = main._replace(
        active=True, gil=True, state="R", frames=(frame("step (train.py:4)"), *main.frames[1:])
    )
    verdict = kind_of(process((main, collecting), (going, resting), (going, resting)))
    assert verdict is not None
    assert (verdict.kind, verdict.moves) == ("python-loop", True)
    asking = [(main._replace(voluntary=200 * at), collecting) for at in range(3)]
    verdict = kind_of(process(*asking))
    assert verdict is not None
    assert verdict.kind == "native-gil"
    assert "PythonGCThread" in verdict.activity.summary


def test_work_of_python_moves_between_its_lines() -> None:
    looks = [
        (thread(f"fit (train.py:{line})", *MAIN, active=True, gil=True, state="R"),)
        for line in (31, 35, 33)
    ]
    verdict = kind_of(process(*looks))
    assert verdict is not None
    assert verdict.kind == "python-loop"
    assert verdict.activity.summary == "runs Python code, lines 31 to 35"


def test_a_child_that_works_is_not_stood_still_for() -> None:
    child = {"pid": 812, "command": "ffmpeg -i a.mp4", "state": "R"}
    waiting = (
        thread("Popen.wait (subprocess.py:1264)", "encode (video.py:7)", *MAIN, wchan="do_wait"),
    )
    verdict = kind_of(process(waiting, waiting, children=[child]))
    assert verdict is not None
    assert (verdict.kind, verdict.on, verdict.moves) == (
        "subprocess",
        "pid 812 (ffmpeg -i a.mp4)",
        True,
    )


def test_who_sleeps_again_and_again_polls() -> None:
    looks = [
        (
            thread(
                "wait_for_file (etl.py:9)",
                *MAIN,
                wchan="hrtimer_nanosleep",
                syscall=230,
                voluntary=count,
            ),
        )
        for count in (100, 110, 120)
    ]
    verdict = kind_of(process(*looks))
    assert verdict is not None
    assert verdict.kind == "sleep"
    assert verdict.code == "polling"


@pytest.mark.parametrize(
    ("stack", "kind", "words"),
    [
        (("all_reduce (torch/distributed/distributed_c10d.py:2501)", "wrapper (torch/distributed/c10d_logger.py:83)"), "collective", "collective"),
        (("NCCLGroup.allreduce (ray/util/collective/collective_group/nccl_collective_group.py:230)", "allreduce (ray/util/collective/collective.py:312)"), "collective", "collective"),
        (("_store_based_barrier (torch/distributed/distributed_c10d.py:720)",), "collective", "collective"),
        (("pthread_cond_wait (libc.so.6)", "ncclCommInitRankConfig (libnccl.so.2)", "NcclCommunicator.__init__ (cupy_backends/cuda/libs/nccl.pyx:90)"), "collective", "collective"),
        (("synchronize (torch/cuda/__init__.py:792)",), "native", "GPU"),
        (("Condition.wait (threading.py:327)", "_blocking (grpc/_channel.py:1032)", "__call__ (grpc/_channel.py:1176)"), "socket", "gRPC"),
        (("SSLSocket.read (ssl.py:1166)", "recv_into (ssl.py:1311)", "readinto (socket.py:706)", "_read_status (http/client.py:286)", "urlopen (urllib3/connectionpool.py:715)"), "socket", "HTTP"),
        (("getaddrinfo (socket.py:962)", "create_connection (socket.py:827)"), "socket", "name"),
        (("create_connection (socket.py:836)", "_new_conn (urllib3/connection.py:198)"), "socket", "connects"),
        (("readinto (socket.py:706)", "read_response (redis/_parsers/base.py:10)"), "socket", "socket"),
        (("poll (multiprocessing/popen_fork.py:27)", "join (multiprocessing/process.py:149)"), "subprocess", "subprocess"),
        (("wait (threading.py:327)", "wait (threading.py:629)", "get (multiprocessing/pool.py:768)"), "subprocess", "pool"),
        (("select (selectors.py:415)", "_poll (multiprocessing/connection.py:440)", "get (multiprocessing/queues.py:113)"), "subprocess", "another process"),
        (("__enter__ (multiprocessing/synchronize.py:95)",), "lock", "several processes"),
        (("_acquire (filelock/_api.py:200)", "__enter__ (filelock/_api.py:260)"), "lock", "file"),
        (("wait (threading.py:327)", "result (concurrent/futures/_base.py:451)"), "lock", "future"),
        (("wait (threading.py:327)",), "lock", "condition"),
        (("wait (threading.py:327)", "wait (threading.py:607)"), "lock", "event"),
        (("Condition.wait (threading.py:327)", "Event.wait (threading.py:629)"), "lock", "event"),
        (("Condition.wait (threading.py:327)", "Barrier._wait (threading.py:700)", "Barrier.wait (threading.py:690)"), "lock", "barrier"),
        (("Condition.wait (threading.py:327)", "Semaphore.acquire (threading.py:480)"), "lock", "semaphore"),
        (("join (threading.py:1058)",), "lock", "end of a thread"),
        (("wait (threading.py:331)", "put (queue.py:140)"), "lock", "room"),
        (("get_objects (ray/_private/worker.py:893)", "get (ray/_private/worker.py:2667)"), "ray-get", "ray.get"),
        (("wait (ray/_private/worker.py:3237)",), "ray-get", "ray.wait"),
        (("get_objects (ray/_private/worker.py:893)", "get (ray/_private/worker.py:2667)", "get (ray/util/queue.py:150)"), "ray-get", "ray.get"),
        (("_cmdloop (pdb.py:330)", "interaction (pdb.py:379)"), "debugger", "pdb"),
        (("listen (ray/util/rpdb.py:120)",), "debugger", "debugger"),
        (("_do_wait_suspend (pydevd.py:2197)", "do_wait_suspend (pydevd.py:2120)"), "debugger", "breakpoint"),
        (("select (selectors.py:468)", "_run_once (asyncio/base_events.py:1884)", "run_until_complete (asyncio/base_events.py:640)"), "unknown", "asyncio"),
    ],
)  # fmt: skip
def test_shapes_of_libraries(stack: tuple[str, ...], kind: str, words: str) -> None:
    verdict = one(*stack, "step (train.py:31)", wchan="futex_do_wait", syscall=202)
    assert verdict is not None
    assert (verdict.kind, verdict.still) == (kind, True)
    assert words in verdict.activity.summary
    assert verdict.user is not None
    assert verdict.user.place == "step() (train.py:31)"


@pytest.mark.parametrize(
    ("native", "more", "kind", "words"),
    [
        (("ncclGroupEnd (libnccl.so.2)",), {}, "collective", "collective"),
        (("pthread_cond_wait (libc.so.6)", "arrow::FutureImpl::Wait (libarrow.so.1500)"), {"wchan": "futex_do_wait"}, "native", "arrow::FutureImpl::Wait"),
        (("nanosleep (libc.so.6)", "sleep (libc.so.6)", "ffi_call (libffi.so.8)"), {"gil": True}, "native-gil", "holds the interpreter's lock"),
        (("_PySemaphore_Wait (libpython3.13.so.1.0)", "PyThread_acquire_lock_timed (libpython3.13.so.1.0)"), {"wchan": "futex_do_wait"}, "lock", "lock"),
        (("select (libc.so.6)", "pysleep (libpython3.10.so.1.0)", "time_sleep (libpython3.10.so.1.0)"), {"wchan": "poll_schedule_timeout.constprop.0", "syscall": 270}, "sleep", "sleeps"),
        ((), {"wchan": "poll_schedule_timeout.constprop.0", "syscall": 270}, "unknown", "select"),
        (("take_gil (libpython3.11.so.1.0)", "PyEval_RestoreThread (libpython3.11.so.1.0)"), {"wchan": "futex_do_wait"}, "native-gil", "interpreter's lock"),
        ((), {"state": "D", "wchan": "rpc_wait_bit_killable"}, "disk", "NFS"),
        ((), {"state": "D", "wchan": "folio_wait_bit_common"}, "disk", "disk"),
        ((), {"state": "D", "wchan": "nvidia_uvm_ioctl"}, "disk", "nvidia_uvm_ioctl"),
        ((), {"state": "S", "wchan": "request_wait_answer"}, "disk", "disk"),
        ((), {"state": "D", "wchan": "__refrigerator"}, "stopped", "frozen"),
        ((), {"state": "S", "wchan": "do_freezer_trap"}, "stopped", "frozen"),
        ((), {"wchan": "tcp_recvmsg_locked"}, "socket", "socket"),
        ((), {"wchan": "inet_csk_accept"}, "socket", "incoming"),
        ((), {"wchan": "sk_stream_wait_memory"}, "socket", "more data"),
        ((), {"wchan": "n_tty_read"}, "socket", "terminal"),
        ((), {}, "unknown", "waits in a call"),
    ],
)  # fmt: skip
def test_what_the_kernel_and_native_code_show(
    native: tuple[str, ...], more: dict[str, Any], kind: str, words: str
) -> None:
    verdict = one(*native, "step (train.py:31)", **more)
    assert verdict is not None
    assert (verdict.kind, verdict.still) == (kind, True)
    assert words in verdict.activity.summary


def test_the_holder_of_a_lock_is_reported_with_what_it_does() -> None:
    waits = thread("load (train.py:8)", *MAIN, wchan="futex_do_wait", syscall=202)
    pump = thread(
        "fill (train.py:20)",
        "run (threading.py:982)",
        *BOOT,
        name="pump",
        tid=9,
        wchan="wait_woken",
        syscall=45,
    )
    other = thread(
        "log (train.py:40)",
        "run (threading.py:982)",
        *BOOT,
        name="log",
        tid=10,
        wchan="hrtimer_nanosleep",
    )
    lock = {
        "tid": 7,
        "type": "RLock",
        "name": "self.lock",
        "holder_tid": 9,
        "holder": "pump",
        "seen_in": [],
    }
    verdict = kind_of(process(*[(waits, other, pump)] * 2, locks=[lock]))
    assert verdict is not None
    assert verdict.summary == (
        "waits for the RLock self.lock in load() (train.py:8), while thread pump waits on a socket in fill() (train.py:20)"
    )
    assert "thread pump holds the lock" in verdict.evidence
    plain = lock | {"type": "Lock", "holder_tid": None, "holder": ""}
    verdict = kind_of(process(*[(waits, other, pump)] * 2, locks=[plain]))
    assert verdict is not None
    assert verdict.summary.startswith(
        "waits for the Lock self.lock (which it may already hold) in load() (train.py:8)"
    )


def test_of_an_actors_threads_the_one_that_others_wait_for_is_reported_first() -> None:
    def worker(tid: int, line: int, **more: Any) -> SampledThread:
        run = "actor_method_executor (ray/_private/function_manager.py:740)"
        return thread(f"Pool.take (pool.py:{line})", run, name="", tid=tid, **more)

    locked, socket = (
        {"wchan": "futex_do_wait", "syscall": 202},
        {"wchan": "wait_woken", "syscall": 45},
    )
    look = (thread(*MAIN), worker(8, 3, **locked), worker(9, 5, **socket), worker(10, 3, **locked))
    verdicts = verdicts_of(process(look, look, title="ray::Pool.take"))
    assert [v.kind for v in verdicts] == ["socket", "lock", "lock"]
    busy = look[2]._replace(state="R", active=True, gil=True)
    first = kind_of(process((*look[:2], busy), (*look[:2], busy)))
    assert first is not None
    assert first.kind == "lock"
    assert any("runs Python code" in each for each in first.evidence)


@pytest.mark.parametrize(("active", "kind"), [(True, "sleep"), (False, "native-gil")])
def test_a_loop_of_work_and_naps_does_not_hold_the_lock_asleep(active: bool, kind: str) -> None:
    """The kernel saw it nap, and py-spy, a moment later, at work."""
    asleep = {"wchan": "hrtimer_nanosleep", "syscall": 230}
    verdict = one("crunch (train.py:10)", gil=True, active=active, **asleep)
    assert verdict is not None
    assert verdict.kind == kind


@pytest.mark.parametrize(("state", "is_open"), [("LISTEN", True), ("ESTABLISHED", False)])
def test_who_polls_a_socket_that_listens_is_a_server(state: str, is_open: bool) -> None:
    polls = thread("serve (app.py:3)", *MAIN, wchan="do_epoll_wait", syscall=232)
    both = [
        {"fd": 8, "type": "tcp", "local": "10.0.0.1:80", "peer": "", "state": state, "tids": [7]},
        {"fd": 9, "type": "tcp", "peer": "10.0.0.9:5", "state": "ESTABLISHED", "tids": [7]},
    ]
    verdict = kind_of(process(*[(polls,)] * 3, sockets=both))
    assert verdict is not None
    assert (verdict.kind, verdict.is_open) == ("socket", is_open)


def test_a_driver_is_judged_by_its_main_thread() -> None:
    main = thread(
        "get_objects (ray/_private/worker.py:893)",
        "get (ray/_private/worker.py:2667)",
        "<module> (train.py:40)",
        wchan="futex_do_wait",
    )
    ray_own = thread(
        "wait (threading.py:331)",
        "listen_error_messages (ray/_private/worker.py:2000)",
        *BOOT,
        name="ray_listen_error_messages",
        tid=8,
    )
    verdict = kind_of(process((main, ray_own), title="python train.py"))
    assert verdict is not None
    assert verdict.summary == "waits in ray.get in <module> (train.py:40)"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_row_whatever_it_lacks_raises(data: st.DataObject) -> None:
    _, _, known = data.draw(st.sampled_from(list(those(FILES[0]))))
    count = data.draw(st.integers(1, len(known.samples)))
    without = data.draw(st.sets(st.sampled_from(SampledThread._fields[5:])))
    empty = dict(zip(SampledThread._fields[5:], samples.thread({})[5:], strict=True))

    def cut(thread: SampledThread) -> SampledThread:
        frames = thread.frames[data.draw(st.integers(0, 9)) :]
        return thread._replace(frames=frames, **{name: empty[name] for name in without})

    poorer = changed(known._replace(samples=known.samples[:count]), cut)
    clues = {name: known.clues[name] for name in known.clues if data.draw(st.booleans())}
    order = data.draw(st.permutations(range(len(poorer.last.threads))))
    shuffled = [
        s._replace(threads=tuple(s.threads[i] for i in order if i < len(s.threads)))
        for s in poorer.samples
    ]
    verdict = kind_of(poorer._replace(clues=clues))
    again = kind_of(poorer._replace(clues=clues, samples=tuple(shuffled)))
    assert (verdict.kind if verdict else None) == (again.kind if again else None)


# ------------------------------------------------------------------ real


ALIKE = {
    *(
        "lock_twice",
        "condition",
        "thread_join",
        "queue_get",
        "future_result",
        "unix_socket",
        "select_socket",
        "http",
    ),
    *("communicate", "process_join", "pool_map", "ray_wait", "SelfCall.outer", "LoopGets.block"),
}
"""Each has another one that hangs in the same way: the recordings have all, and a worker takes a while to start."""


@pytest.mark.ray
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="py-spy and /proc of Linux")
def test_every_kind_on_a_real_cluster() -> None:
    chosen = [hang for hang in KINDS if hang.name not in ALIKE]
    with real_ray() as ray:
        ray.start(dashboard=False, lean=True)
        ray.run(hangs.PROGRAM, *(hang.name for hang in chosen))
        tasks = hangs.wait_until_hung(ray)
        tables = hangs.sampled(tasks.values(), SampleOptions(samples=2, interval=0.5, native=True))
    seen = {p.pid: p for p in samples.processes(hangs.case_of(tables))}
    assert {hang.kind for hang in chosen} == {hang.kind for hang in KINDS}
    for hang in chosen:
        verdict = check(hang, seen[tasks[hang.name].pid])
        said = "\n".join((verdict.summary, *verdict.evidence)) if verdict else ""
        assert all(each in said for each in tasks[hang.name].says if verdict), (hang.name, said)

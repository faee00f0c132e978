"""What raylets and workers last said of themselves, and stacks that a user took."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydoctor.capture.open import open_capture
from raydoctor.case import Case
from raydoctor.case.signals import FACTS
from raydoctor.diagnosis import engine
from raydoctor.read import build
from raydoctor.rules.shared import calls, stacks

WORKER = "a" * 56
GAVE_UP = "ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.\n"


def row(what: str, total: int, active: int, *, running: int = 0, old: bool = False) -> str:
    """A row of the table; up to Ray 2.40 the unit stands apart."""
    more = f", {running} running" if running else ""
    times = "mean = 2.000 s, total = 4.000 s" if old else "mean = 2000.00ms, total = 4000.00ms"
    return f"\t{what} - {total} total ({active} active{more}), Execution time: {times}, Queueing time: mean = 0\n"


def table(at: str, *rows: str) -> str:
    return (
        f"[2026-11-21 {at},438 I 471 418] core_worker.cc:591: Event stats:\n\n\n{''.join(rows)}\n"
    )


def read(folder: Path, **files: str) -> Case:
    names = {
        "core": f"logs/python-core-worker-{WORKER}_471.log",
        "driver": "driver.log",
        "raylet": "logs/raylet.out",
        "stack": "ray-stack.txt",
    }
    for name, text in files.items():
        path = folder / names[name]
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    with open_capture(str(folder)) as capture:
        return build.read(capture, FACTS).case


@pytest.mark.parametrize("old", [False, True])
def test_two_equal_tables_show_how_long_nothing_moved(tmp_path: Path, old: bool) -> None:
    server = row("CoreWorkerService.grpc_server.PushTask", 4, 2, old=old)
    client = row("CoreWorkerService.grpc_client.PushTask", 1, 1, old=old)
    handler = row("CoreWorker.HandlePushTaskActor", 3, 2, running=1)
    core = table("10:41:54") + table("10:42:54", server, client, "" if old else handler)
    core += table("10:43:54", server, client, "" if old else handler)
    (worker,) = calls.busy(read(tmp_path, core=core, driver=GAVE_UP))
    assert (worker.serving, worker.running, worker.queued, worker.calling) == (2, 1, 1, 1)
    assert (worker.done, worker.mean, worker.unmoved) == (2, 2.0, 60.0)
    assert worker.waits


def test_tables_that_differ_prove_nothing(tmp_path: Path) -> None:
    first, second = (
        table(at, row("CoreWorkerService.grpc_server.PushTask", total, 1))
        for at, total in (("10:42:54", 3), ("10:43:54", 4))
    )
    (worker,) = calls.busy(read(tmp_path, core=first + second, driver=GAVE_UP))
    assert worker.unmoved == 0.0


def test_an_idle_worker_and_one_that_no_task_waits_for_are_left_out(tmp_path: Path) -> None:
    idle = table("10:42:54", row("CoreWorkerService.grpc_server.PushTask", 3, 0))
    busy = table("10:42:54", row("CoreWorkerService.grpc_server.PushTask", 3, 1))
    assert not calls.busy(read(tmp_path, core=idle, driver=GAVE_UP))
    assert not calls.busy(read(tmp_path, core=busy, driver="done\n"))


def test_tables_of_a_rotated_log_belong_together(tmp_path: Path) -> None:
    server = row("CoreWorkerService.grpc_server.PushTask", 3, 1)
    (tmp_path / "logs").mkdir()
    older = tmp_path / f"logs/python-core-worker-{WORKER}_471.1.log"
    older.write_text(table("10:42:54", server))
    (worker,) = calls.busy(read(tmp_path, core=table("10:43:54", server), driver=GAVE_UP))
    assert worker.unmoved == 60.0


def test_without_a_driver_the_workers_are_queried(tmp_path: Path) -> None:
    core = table("10:42:54", row("CoreWorkerService.grpc_server.PushTask", 3, 1))
    assert calls.busy(read(tmp_path, core=core, raylet=""))


def test_the_line_is_that_of_the_row(tmp_path: Path) -> None:
    core = "x\n" * 40_000 + table("10:42:54", row("CoreWorkerService.grpc_server.PushTask", 3, 1))
    (event,) = read(tmp_path, core=core * 5, driver=GAVE_UP).of("worker.calls")
    lines = (core * 5).splitlines()
    assert "grpc_server.PushTask" in lines[event.line - 1]
    assert (core * 5).encode()[event.offset :].startswith(b"\tCoreWorkerService.grpc_server")


def test_the_last_dump_with_a_queue_counts(tmp_path: Path) -> None:
    def dump(at: str, queue: int, granted: int) -> str:
        return (
            f"[2026-11-21 {at},028 I 285 285] (raylet) node_manager.cc:500: [state-dump] NodeManager:\n"
            f"[state-dump] Grant queue length: {queue}\n[state-dump] num_waiting_for_resource: {queue}\n"
            "[state-dump] Resource usage {\n[state-dump]     - (language=PYTHON actor_or_taskplan pid=7 worker_id=f3): {CPU: 1}\n"
            "[state-dump] }\n[state-dump] Granted leases by scheduling class:\n"
            "[state-dump]     - {depth=1 function_descriptor={type=PythonFunctionDescriptor, module_name=m, class_name=, "
            "function_name=plan, function_hash=0f} scheduling_strategy=default_scheduling_strategy {\n[state-dump] }\n"
            f"[state-dump]  resource_set={{CPU : 1, licence : 1, }}label_selector={{}}}}fallback_strategy=[]: {granted}/4\n"
            "[state-dump] ==========\n"
        )

    raylet = dump("10:42:00", 3, 2) + dump("10:43:00", 5, 4) + dump("10:44:00", 0, 0)
    (event,) = read(tmp_path, raylet=raylet, driver=GAVE_UP).of("raylet.dump")
    assert calls.queued(event) == 5
    assert [(b.function, b.count, b.each) for b in calls.blocked_in(event)] == [
        ("plan", 3, {"CPU": 1.0, "licence": 1.0})
    ]


STACK = """Stack dump for user 471 1.0 ray::train
Process 471: ray::train
Python v3.11.7 (/home/user/venv/bin/python3.11)

Thread 471 (active+gil): "MainThread"
    grind (train.py:12)
    train (train.py:31)
    main_loop (ray/_private/worker.py:947)
Thread 0x7F00 (idle): "ray_print_logs"
    wait (threading.py:331)

Process 472: ray::IDLE
Python v3.11.7 (/home/user/venv/bin/python3.11)

Thread 472 (idle): "MainThread"
    main_loop (ray/_private/worker.py:947)
"""


def test_stacks_are_distinguished_by_process(tmp_path: Path) -> None:
    first, second = stacks.dumps(read(tmp_path, stack=STACK))
    assert (first.pid, first.name, first.is_worker) == (471, "train", True)
    assert first.main is not None
    assert first.main.doing[0] == "python-loop"
    assert first.main.user is not None
    assert first.main.user.place == "grind() (train.py:12)"
    assert not second.is_worker


@pytest.mark.parametrize(
    ("state", "frames", "kind"),
    [
        ("idle", "get_objects (ray/_private/worker.py:1007)\n    get (ray/_private/worker.py:3009)", "ray-get"),
        ("idle", "Worker.get_objects (ray/_private/worker.py:1007)", "ray-get"),
        ("idle", "wait (ray/_private/worker.py:3200)", "ray-get"),
        ("idle", "acquire (threading.py:320)", "lock"),
        ("idle", "SocketIO.readinto (socket.py:706)", "socket"),
        ("idle", "_try_wait (subprocess.py:2010)", "subprocess"),
        ("idle", "clock_nanosleep (libc.so.6)\n    time_sleep (python3.11)", "sleep"),
        ("active", "pbkdf2_hmac (hash.py:3)", "native"),
        ("idle+gil", "spin (native.py:3)", "native-gil"),
        ("idle", "load (train.py:3)", "unknown"),
        ("idle", "Poller.poll (poller.py:3)", "unknown"),
        ("idle", "__recv (libc.so.6)\n    sock_recv (python3.11)", "socket"),
    ],
)  # fmt: skip
def test_what_a_thread_does(tmp_path: Path, state: str, frames: str, kind: str) -> None:
    text = (
        f'Process 5: ray::f\n\nThread 5 ({state}): "MainThread"\n    {frames}\n    f (train.py:9)\n'
    )
    (dump,) = stacks.dumps(read(tmp_path, stack=text))
    assert dump.main is not None
    assert dump.main.doing[0] == kind


def test_files_cut_anywhere_raise_nothing(tmp_path: Path) -> None:
    core = table("10:42:54", row("CoreWorkerService.grpc_server.PushTask", 4, 2)) * 2
    for end in range(0, len(core), 37):
        (tmp_path / "logs").mkdir(exist_ok=True)
        read(tmp_path, core=core[:end], stack=STACK[: end % len(STACK)], driver=GAVE_UP)
        with open_capture(str(tmp_path)) as capture:
            engine.run(capture, strict=True)

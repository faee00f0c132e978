"""How a driver's output ends: which traceback ended it, and which it survived."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import raydoctor
from raydoctor.case import Case, evidence
from raydoctor.case.case import LAST_LINE, OUTPUT
from raydoctor.case.facts import WorkerExit
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Gap, Source
from raydoctor.read import ending
from raydoctor.rules.shared.task_error import raised_by_task

FRAMES = 'Traceback (most recent call last):\n  File "/app/t.py", line 9, in <module>\n    main()\n  File "/app/t.py", line 4, in main\n    f()\n'
CAUGHT = 'Traceback (most recent call last):\n  File "/app/t.py", line 4, in main\n    f()\nValueError: x\n'
CHAIN = f"{CAUGHT}\nDuring handling of the above exception, another exception occurred:\n\n{FRAMES}KeyError: 'y'\n"
TRAIN_FAILED = (
    "ray.train.base_trainer.TrainingFailedError: The Ray Train run failed. After fixing the issue you can restart it.\n"
    'To continue this run, you can use: `trainer = TorchTrainer.restore("/results/a")`.\n'
)
RANK_FAILED = f"ray.train.WorkerGroupError: Training failed due to worker errors:\n[Rank 1 Error Snippet]:\n{CAUGHT}"
MESSAGES = (
    "ray.exceptions.RayTaskError(UserCodeException): ray::Map(f)() (pid=1, ip=10.0.0.2)\n"
    '  File "/app/t.py", line 4, in f\n    g()\nZeroDivisionError: division by zero\n\n'
    "The above exception was the direct cause of the following exception:\n\n"
    "ray::Map(f)() (pid=1, ip=10.0.0.2)\nray.exceptions.UserCodeException: UDF failed to process a data block.\n"
    "Failed to apply UDF transform after 1/1 attempts (total backoff 0.0s).\n",
    "ray.exceptions.RuntimeEnvSetupError: Failed to set up runtime environment.\n[Node h7] Traceback (most recent call last):\n"
    '  File "/app/a.py", line 4, in run\n    f()\nCalledError: Run cmd[9] failed.\n'
    "Last 50 lines of stdout:\n    ERROR: No matching distribution found for acme\n",
    "ray.exceptions.RuntimeEnvSetupError: Failed to set up runtime environment.\n[Node h7] It took 25 s. Traceback (most recent call last):\n"
    '  File "/app/a.py", line 4, in run\n    f()\nCancelledError\n\n'
    "The above exception was the direct cause of the following exception:\n\n"
    'Traceback (most recent call last):\n  File "/app/a.py", line 4, in wait\n    f()\nTimeoutError\n',
)
"""Exceptions of Ray."""
IN_RAY = '  File "/venv/lib/python3.11/site-packages/ray/_private/utils.py", line 9, in check\n    raise\n'
OF_RAY = (
    "RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.40.0\n"
    "This process on node h7 was started with:\n    Ray: 2.60.0\n",
    "TypeError: Could not serialize the function f:\n=====\nChecking Serializability of <function f>\n=====\n"
    "was found to be non-serializable.\n=====\n",
)
"""Exceptions that Ray's code raises."""
RAYS_NOISE = (
    "[2026-11-21 10:57:30,000 W 7 7] gcs_client.cc:1: disconnected\n"
    "2026-11-21 10:57:30,138\tINFO worker.py:2001 -- shutting down\n(raylet) a worker died\n(f pid=12) bye\n"
)


IGNORED = f"Exception ignored in: <function D.__del__ at 0x7f12>\n{CAUGHT}"


def end_of(folder: Path, text: str, *, is_excerpt: bool = False) -> Event:
    (folder / "driver.log").write_text(text)
    gaps: list[Gap] = []
    source = Source("driver.log", "driver", is_excerpt=is_excerpt)
    event, *_ = ending.read({source: str(folder / "driver.log")}, gaps)
    assert gaps == []
    return event


@pytest.mark.parametrize(
    "text",
    [
        f"epoch 1\n{FRAMES}ValueError: x\n",
        f"{FRAMES}ValueError: x\n{RAYS_NOISE}",
        f"{FRAMES}ValueError: x\n{IGNORED}",
        f"{FRAMES}ValueError: two lines\n  the second is indented\n",
        f"{CAUGHT}went on\n{FRAMES}ValueError: x\n",
        "2026-11-21 10:57:30,138\tWARNING worker.py:1829 -- " + CAUGHT + f"{FRAMES}ValueError: x\n",
        f"{FRAMES}ray.exceptions.RayTaskError(KeyError): ray::f() (pid=1, ip=10.0.0.2)\n  File \"/app/t.py\", line 4, in f\nKeyError: 'y'\n",
        CHAIN,
        f"{FRAMES}ValueError: x\nwandb: View run a at b\nsrun: error: h7: task 0: Exited with exit code 1\n",
        f"{FRAMES}ValueError: x\n/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: "
        "resource_tracker: There appear to be 1 leaked semaphore objects\n  warnings.warn('resource_tracker\n",
        f"Error executing job with overrides: ['a=1']\n{CAUGHT}\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n",
        f"{FRAMES}{TRAIN_FAILED}",
        f"{FRAMES}{TRAIN_FAILED}(RayTrainWorker pid=9) rank 1, step 0: 1.25\n",
        f"{FRAMES}{RANK_FAILED}",
        f"{FRAMES}{RANK_FAILED}[Rank 3 Error Snippet]:\n{CAUGHT}",
        f"{FRAMES}RuntimeError: CUDA error: an illegal memory access was encountered\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n"
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n",
        *(f"{FRAMES}{message}" for message in MESSAGES),
        *(f"{FRAMES}{IN_RAY}{message}" for message in OF_RAY),
    ],
)
def test_it_ended_the_program(tmp_path: Path, text: str) -> None:
    assert end_of(tmp_path, text)["ended_by"] == "traceback"


PUSHED = f"2026-11-21 10:57:30,138\tWARNING worker.py:1829 -- {CAUGHT}"
"""What an IO worker raised, as Ray sends it to the driver."""


@pytest.mark.parametrize(
    "text",
    [
        "done\n",
        f"done\n{PUSHED}",
        f"done\n{IGNORED}",
        f"{FRAMES}ValueError: x\nwent on\n",
        f"Error executing job with overrides: ['a=1']\n{CAUGHT}went on\n",
        CAUGHT,
        f"{FRAMES}ValueError: x\n{CAUGHT}",
        "".join(f"(f pid=12) {line}\n" for line in f"{FRAMES}ValueError: x".splitlines()) + "ok\n",
        f"{FRAMES}",
        f"{FRAMES}{TRAIN_FAILED}went on\n",
        f"{FRAMES}{TRAIN_FAILED}(f pid=12) bye\nThe next run begins with 2 workers.\n",
        f"{FRAMES}{RANK_FAILED}went on\n",
        *(f"{FRAMES}{message}went on\n" for message in MESSAGES),
        *(f"{FRAMES}{IN_RAY}{message}went on\n" for message in OF_RAY),
        *(f"{FRAMES}{message}" for message in OF_RAY),
        f"{FRAMES}ray.train.WorkerGroupError: Training failed.\n{CAUGHT}",
        f"{FRAMES.replace('<module>', 'run')}{RANK_FAILED}",
        f"done\n2026-11-21 10:57:30,138\tWARNING worker.py:1115 -- The agent on node h7 failed with the following error:\n{FRAMES}ValueError: x\n",
        f"done\n2026-11-21 10:57:30,138\tERROR dashboard.py:304 -- The dashboard on node h7 failed with the following error:\n{FRAMES}OSError: x\n",
    ],
)
def test_it_did_not(tmp_path: Path, text: str) -> None:
    assert end_of(tmp_path, text)["ended_by"] == ""


def test_a_chain_is_one_traceback(tmp_path: Path) -> None:
    event = end_of(tmp_path, f"epoch 1\n{CHAIN}")
    assert event.line == 2
    assert event.text.startswith("Traceback")
    assert event.text.endswith("KeyError: 'y'")


def test_the_cause_of_the_last_exception_may_be_a_task_s(tmp_path: Path) -> None:
    """Python prints it without a header; an earlier traceback in the output is another one."""
    cause = (
        "ray.exceptions.RayTaskError(ValueError): ray::f() (pid=1, ip=10.0.0.2)\nValueError: x\n"
    )
    text = (
        f"{CAUGHT}2026-11-21 10:57:30,138\tERROR tune.py:1037 -- Trials did not complete\n{cause}\n"
        f"The above exception was the direct cause of the following exception:\n\n{FRAMES}{TRAIN_FAILED}"
    )
    event = end_of(tmp_path, text)
    assert event["ended_by"] == "traceback"
    assert event.text.startswith(cause)


def test_a_paste_may_begin_within_the_traceback(tmp_path: Path) -> None:
    """Its first lines are missing then, so that only a paste which contains nothing else counts."""
    rest = FRAMES.partition("\n")[2]
    whole = Source("driver.log", "driver", is_excerpt=True)
    for text, ended_by in (
        (f"{rest}ValueError: x\n", "traceback"),
        (f"{rest}ValueError: x\nwent on\n", ""),
    ):
        (tmp_path / "driver.log").write_text(text)
        event, *_ = ending.read({whole: str(tmp_path / "driver.log")}, [])
        assert event["ended_by"] == ended_by
    assert end_of(tmp_path, f"{rest}ValueError: x\n")["ended_by"] == ""


def test_rays_own_lines_are_no_output(tmp_path: Path) -> None:
    (tmp_path / "driver.log").write_text(RAYS_NOISE)
    events = ending.read({Source("driver.log", "driver"): str(tmp_path / "driver.log")}, [])
    assert [(e.kind, e.message) for e in events] == [(OUTPUT, "bye"), (LAST_LINE, "bye")]


@pytest.mark.parametrize(
    ("err", "out", "last"),
    [
        (":task_name:f\nno license\n:task_name:f\n", "step 1\n", "no license"),
        (
            ":task_name:g\nno license\n:task_name:f\n",
            ":task_name:g\nsome\n:task_name:f\nstep 1\n",
            "step 1",
        ),
        (":task_name:g\nno license\n:task_name:f\n", ":task_name:g\nstep 1\n:task_name:f\n", None),
        ("[2026-11-21 10:57:30,000 C 12 12] a.cc:1: bad\n\n---\n", "step 1\nstep 2", "step 2"),
        (f"{'x' * 9000} license\n", "step 1\n", "step 1"),
        (":job_id:01000000\n", "", None),
    ],
    ids=[
        "its own",
        "an earlier task's",
        "only an earlier task's",
        "Ray's",
        "longer than the tail",
        "none",
    ],
)
def test_the_last_line_of_a_worker(tmp_path: Path, err: str, out: str, last: str | None) -> None:
    files: dict[Source, str] = {}
    for worker in ("a" * 56, "b" * 56):
        for role, text in (("worker-out", out), ("worker-err", err)):
            path = tmp_path / f"worker-{worker}.{role[-3:]}"
            path.write_text(text)
            source = Source(path.name, role, entities=(Entity("worker", worker),), pid=12)
            files[source] = str(path)
    found = [event.text for event in ending.of_workers(files, {"a" * 56})]
    assert found == ([last] if last else [])


def test_a_console_s_last_line_of_another_task_is_not_that_of_the_last_one() -> None:
    """A worker runs one task after the other: only lines with the prefix of the last one are its words."""
    source = Source("driver.log", "driver")
    lines = [
        Event(LAST_LINE, source, 1, 0, "no license", pid=12, fields={"who": who})
        for who in ("search", "Solver")
    ]
    case = Case((), endings=lines[:1])
    left = WorkerExit("a" * 56, "SYSTEM_ERROR", "", [], pid=12, names=("search", "publish"))
    assert evidence.printed_last(case, [left]) == ()
    ran = replace(left, names=("publish", "search"))
    (link,) = evidence.printed_last(case, [ran])
    assert link.shows == "the last line that search() (pid 12) printed"
    actor = replace(left, actor="b" * 32, names=("Base",))  # the prefix of an actor is its repr
    assert len(evidence.printed_last(Case((), endings=lines[1:]), [actor])) == 1


def test_of_a_long_output_the_end_is_read(tmp_path: Path) -> None:
    event = end_of(tmp_path, "".join(f"epoch {n}\n" for n in range(20_000)))
    assert event.text.splitlines()[-1] == "epoch 19999"
    assert event.line == 20_000


def test_what_cannot_be_read_is_a_gap(tmp_path: Path) -> None:
    gaps: list[Gap] = []
    assert ending.read({Source("driver.log", "driver"): str(tmp_path / "gone")}, gaps) == []
    assert [gap.what for gap in gaps] == ["driver.log"]


# ---------------------------------------------------------------- programs with a prefix


def of(writer: str, text: str) -> str:
    return "".join(f"{writer} {line}\n" for line in text.splitlines())


ENGINE, SERVER, RANK = "(EngineCore_DP0 pid=7)", "(APIServer pid=6)", "(rank 3 pid=9)"
LOGGED = f"EngineCore failed to start.\n{CAUGHT}"
POINTS_ELSEWHERE = f"{FRAMES}RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}\n"


@pytest.mark.parametrize(
    "writer", ["(main_task pid=7)", ENGINE, SERVER, RANK, "(TaskRunner pid=7)"]
)
def test_an_exception_ends_a_program_with_a_prefix(tmp_path: Path, writer: str) -> None:
    event = end_of(tmp_path, of(writer, f"step 1\n{FRAMES}ValueError: x") + "(f pid=12) bye\n")
    assert event["ended_by"] == "traceback"
    assert event.text == f"{FRAMES}ValueError: x"
    assert event.line == 2


@pytest.mark.parametrize(
    "text",
    [
        of(ENGINE, LOGGED) + of(SERVER, POINTS_ELSEWHERE),
        of(ENGINE, f"{LOGGED}bye") + POINTS_ELSEWHERE,
        f"{LOGGED}bye\n{POINTS_ELSEWHERE}",
        f"Scheduler hit an exception:\n{CAUGHT}Received sigquit from a child process.\nKilled\n",
        of(ENGINE, f"WorkerProc failed to start.\n{CAUGHT}") + of(SERVER, f"{FRAMES}KeyError: 'y'"),
    ],
)
def test_the_first_process_that_ended_counts(tmp_path: Path, text: str) -> None:
    assert end_of(tmp_path, text).text == CAUGHT.rstrip()


FAILED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n=====\nt.py FAILED\n-----\nFailures:\n"


@pytest.mark.parametrize(
    "launchers",
    [
        f"{FRAMES}subprocess.CalledProcessError: Command '['python', 't.py']' returned non-zero exit status 1.\n",
        f"E1121 07:35:03.000000 12 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1)\n{FRAMES}{FAILED}",
    ],
)
def test_what_the_started_program_raised_counts(tmp_path: Path, launchers: str) -> None:
    event = end_of(tmp_path, f"{FRAMES}KeyError: 'y'\n{launchers}")
    assert event["ended_by"] == "traceback"
    assert event.text.endswith("KeyError: 'y'")
    alone = end_of(tmp_path, f"step 1\n{launchers}")
    assert ("CalledProcessError" in alone.text) == ("CalledProcessError" in launchers)


def test_a_chain_that_was_logged_is_whole(tmp_path: Path) -> None:
    event = end_of(tmp_path, of(ENGINE, f"EngineCore failed to start.\n{CHAIN}bye"))
    assert event.text.startswith(CAUGHT[:40])
    assert event.text.endswith("KeyError: 'y'")


def test_an_exception_of_the_program_itself_counts_more(tmp_path: Path) -> None:
    event = end_of(tmp_path, of(RANK, f"{FRAMES}ValueError: x") + f"{FRAMES}KeyError: 'y'\n")
    assert event.text.endswith("KeyError: 'y'")


@pytest.mark.parametrize(
    "text",
    [
        of(ENGINE, f"{FRAMES}ValueError: x\nwent on"),
        of(ENGINE, f"request failed\n{CAUGHT}"),
        of("(train pid=7)", f"{FRAMES}ValueError: x"),
        of(ENGINE, "EngineCore failed to start.\nwent on"),
        of(ENGINE, f"EngineCore failed to start.\n{FRAMES}"),
    ],
)
def test_a_process_with_a_prefix_goes_on(tmp_path: Path, text: str) -> None:
    assert end_of(tmp_path, f"epoch 1\n{text}")["ended_by"] == ""


def test_an_exception_that_python_ignores_is_no_end_of_an_excerpt(tmp_path: Path) -> None:
    assert end_of(tmp_path, f"done\n{IGNORED}", is_excerpt=True)["ended_by"] == ""


def test_a_traceback_at_the_end_of_an_excerpt_may_be_cut_off(tmp_path: Path) -> None:
    assert end_of(tmp_path, FRAMES, is_excerpt=True)["ended_by"] == "traceback"
    assert end_of(tmp_path, f"{FRAMES}    f()\nwent\non\n", is_excerpt=True)["ended_by"] == ""
    in_main = FRAMES.replace("<module>", "run")
    assert end_of(tmp_path, in_main, is_excerpt=True)["ended_by"] == "excerpt"
    assert end_of(tmp_path, f"{in_main}KeyError: 1\n", is_excerpt=True)["ended_by"] == "excerpt"
    assert end_of(tmp_path, f"{in_main}KeyError: 1\nwent on\n", is_excerpt=True)["ended_by"] == ""
    assert end_of(tmp_path, f"{in_main}KeyError: 1\n")["ended_by"] == ""


@pytest.mark.parametrize("cut", [None, 30])
def test_an_excerpt_may_end_within_what_torch_adds(tmp_path: Path, cut: int | None) -> None:
    raised = f"{FRAMES.replace('<module>', 'run')}RuntimeError: CUDA error: no such luck\n"
    added = "CUDA kernel errors might be asynchronously reported at some other API call, so the trace is late."
    end = end_of(tmp_path, f"{raised}{added[:cut]}", is_excerpt=True)
    assert end["ended_by"] == "excerpt"
    assert end.text.splitlines()[-1] == "RuntimeError: CUDA error: no such luck"
    assert end_of(tmp_path, f"{raised}CUDA kernels are fine", is_excerpt=True)["ended_by"] == ""


def test_an_excerpt_may_end_with_a_message_of_several_sentences(tmp_path: Path) -> None:
    text = f"{FRAMES}ValueError: no slot\nCheck that a node has room for it.\n- or use fewer\n"
    assert end_of(tmp_path, text, is_excerpt=True)["ended_by"] == "excerpt"
    assert end_of(tmp_path, text)["ended_by"] == ""
    caught = text.replace("<module>", "run")
    assert end_of(tmp_path, caught, is_excerpt=True)["ended_by"] == ""
    assert end_of(tmp_path, f"{text}epoch 2\n", is_excerpt=True)["ended_by"] == ""


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        (
            "(tune pid=3) ncclRemoteError: A call failed possibly due to a network error",
            "nccl-failure",
        ),
        (
            "frame #12: gloo::rendezvous::Context::connectFullMesh(Store>&) + 0x109 (0x7f4e in /l.so)",
            "rendezvous-failed",
        ),
        (
            "ray.exceptions.NodeDiedError: Task failed because the node it was running on is dead.",
            "node-died",
        ),
        ("OSError: [Errno 28] No space left on device: '/mnt/usb/x'", "disk-full"),
        (
            "E1121 11:41:39.402580     469 thd.cc:157] pthread_create failed: Resource temporarily unavailable",
            "thread-limit",
        ),
    ],
)
@pytest.mark.parametrize("below", ["", "retrying\nepoch 2\n"])
def test_a_failure_that_the_program_survives_is_a_warning(
    tmp_path: Path, line: str, rule: str, below: str
) -> None:
    (tmp_path / "driver.log").write_text(f"epoch 1\n{line}\n{below}")
    (found,) = raydoctor.diagnose(tmp_path).diagnoses
    assert (found.rule, found.severity) == (rule, "warning" if below else "error")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (MESSAGES[0], "ZeroDivisionError"),
        (MESSAGES[0].partition("\n")[0], "UserCodeException"),
        ("ray.exceptions.RayTaskError(KeyError): ray::f() (pid=1, ip=10.0.0.2)\nKeyError: 'a'\n", "KeyError"),
        (
            "ray.exceptions.RayTaskError(KeyError): ray::f() (pid=1, ip=10.0.0.2)\nKeyError: 'a'\n\n"
            "ray.exceptions.RayTaskError(OSError): ray::g() (pid=2, ip=10.0.0.2)\nOSError: no\n",
            "OSError",
        ),
        ("ValueError: got ray.exceptions.RayTaskError(KeyError): ray::f() (pid=1)\n", ""),
        (MESSAGES[1], ""),
    ],
)  # fmt: skip
def test_the_exception_of_a_task_is_named_as_the_user_wrote_it(text: str, kind: str) -> None:
    assert raised_by_task(text) == kind

"""Excerpts of consoles that end within what matters, and look-alikes that are to stay as they are."""

from __future__ import annotations

import pytest

from raydoctor.case.rule import console
from raydoctor.model.values import Report
from raydoctor.render import page
from raydoctor.render import report as render_report
from tests.helpers.examples import run_of

BEGIN = "Traceback (most recent call last):\n"
EXECUTED = (
    f"{BEGIN}"
    '  File "python/ray/_raylet.pyx", line 1807, in ray._raylet.execute_task\n'
    '  File "python/ray/_raylet.pyx", line 1754, in ray._raylet.execute_task.function_executor\n'
    '  File "/venv/lib/python3.11/site-packages/ray/_private/function_manager.py", line 726, in actor_method_executor\n'
    "    return method(__ray_actor, *args, **kwargs)\n"
    '  File "/venv/lib/python3.11/site-packages/ray/util/tracing/tracing_helper.py", line 467, in _resume_span\n'
    "    return method(self, *_args, **_kwargs)\n"
)
METHOD = (
    f'{EXECUTED}  File "/app/shop/pricing.py", line 51, in quote\n    table = self.tables[region]\n'
)
MAIN = f'{BEGIN}  File "/app/shop/train.py", line 108, in <module>\n    main()\n'


def report_on(text: str) -> Report:
    return run_of(console("", text))[0]


def shown(text: str) -> str:
    return " ".join(page.plain(render_report.render(report_on(text))).split())


def roots_of(text: str) -> list[tuple[str, str]]:
    return [(root.rule, root.headline) for root in report_on(text).roots]


def of_raylet(text: str) -> str:
    return "".join(f"(raylet) {line}\n" for line in text.splitlines())


# ---------------------------------------------------------------- methods of actors


@pytest.mark.parametrize("text", [of_raylet(METHOD), f'"{METHOD}'.replace("\n", "\n ").rstrip(" ")])
def test_frames_of_a_worker_show_that_a_method_ran(text: str) -> None:
    ((rule, headline),) = roots_of(text)
    assert rule == "task-exception"
    assert headline.startswith("Method quote() of an actor raised an exception that the console")


def test_the_method_may_be_cut_off_itself() -> None:
    ((rule, headline),) = roots_of(
        of_raylet(EXECUTED.partition('  File "/venv/lib/python3.11/site-packages/ray/util')[0])
    )
    assert (rule, headline) == (
        "task-exception",
        "A method of an actor raised an exception that the console cut off",
    )


def test_a_worker_that_imports_still_dies_while_starting() -> None:
    text = f'{BEGIN}  File "/app/shop/site.py", line 3, in <module>\n    import core\n'
    ((rule, _),) = roots_of(of_raylet(text))
    assert rule == "worker-start-crashed"


def test_a_method_whose_worker_continues_is_no_failure() -> None:
    assert roots_of(f"{of_raylet(METHOD)}epoch 2\nepoch 3\nepoch 4\n") == []


# ---------------------------------------------------------------- submitted jobs


def test_a_job_whose_module_is_missing_above_a_cut_banner() -> None:
    text = f"Tailing logs until the job exits (disable with --no-wait):\n{MAIN}ModuleNotFoundError: No module named 'fastattn'\n\n----"
    ((rule, headline),) = roots_of(text)
    assert rule == "job-failed"
    assert "No module named 'fastattn'" in headline


def test_a_rule_above_more_output_proves_nothing() -> None:
    assert (
        roots_of(
            f"{MAIN}ModuleNotFoundError: No module named 'fastattn'\n----\nuses the slow path\nepoch 1\n"
        )
        == []
    )


@pytest.mark.parametrize("end", ["exi", "exit code", "", "exit code 1, last available"])
def test_a_status_message_may_be_cut_off(end: str) -> None:
    text = f"{MAIN}ValueError: no rows\n\nStatus message: Job entrypoint command failed{' with ' * bool(end)}{end}"
    ((rule, headline),) = roots_of(text)
    assert rule == "job-failed"
    assert "ValueError: no rows" in headline


def test_words_about_such_a_message_are_none() -> None:
    assert roots_of("Job entrypoint command failed with excuses, so we restart it\nepoch 1\n") == []


def test_frames_without_their_second_quotation_mark() -> None:
    text = f'{MAIN}  File "/app/shop/rows.py, line 9, in load\n    read()\nValueError: no rows\n'
    assert roots_of(text) == [
        ("job-failed", "The driver program ended with ValueError: no rows, in load() (rows.py:9)")
    ]


# ---------------------------------------------------------------- what a report says of an excerpt


def test_an_excerpt_does_not_show_what_followed() -> None:
    for text in (MAIN, f"{MAIN}ValueError: no rows\n"):
        assert "printed nothing after it" not in shown(text)


def test_lines_with_rays_prefix_are_rays() -> None:
    text = "(WorkerDict pid=17) loading shard 3 [repeated 7x across cluster]\n(WorkerDict pid=18) loaded\n"
    assert "right file" not in shown(text)
    assert "right file" in shown("loading shard 3\nloaded\n")


# ---------------------------------------------------------------- engines and notebooks

ENGINE = "(EngineCore_DP0 pid=977) ERROR 03-18 18:02:58 [core.py:1006] "
CORE = '  File "/venv/lib/python3.12/site-packages/vllm/v1/engine/core.py", line 996, in run_engine_core'


def of_engine(*lines: str) -> str:
    return "".join(f"(Server pid=976) {ENGINE}{line}\n" for line in lines)


def test_an_engine_that_fails_to_start_in_a_paste_that_ends_there() -> None:
    text = of_engine(
        "EngineCore failed to start.", BEGIN.rstrip(), CORE, "    engine_core = EngineCoreProc("
    )
    assert roots_of(text) == [
        (
            "job-failed",
            "The engine process of vLLM ended with an exception that the console cut off, "
            "in run_engine_core() (vllm/v1/engine/core.py:996)",
        )
    ]


def test_another_traceback_of_an_engine_is_not_its_end() -> None:
    text = of_engine("Profiler failed.", BEGIN.rstrip(), CORE, "    engine_core = EngineCoreProc(")
    assert roots_of(f"{text}(Server pid=976) served 3 requests\n") == []


def notebook(name: str) -> str:
    link = "vscode-notebook-cell:?execution_count=8"
    return (
        f"{'-' * 75}\n{name}{' ' * 20}Traceback (most recent call last)\n"
        f"Input [In [8]]({link}), in <cell line: 82>()\n"
        f"     [81]({link}&line=81) # fit\n---> [82]({link}&line=82) prices = fit(\n     [83]({link}&line=83)     rows,\n"
    )


def test_the_heading_of_a_notebook_names_the_exception() -> None:
    assert roots_of(notebook("RaySystemError")) == [
        (
            "job-failed",
            "The driver program ended with RaySystemError, at Input In [8]:82, whose message the console cut off",
        )
    ]


def test_the_name_of_torchs_exception_is_not_rays() -> None:
    ((_, headline),) = roots_of(notebook("OutOfMemoryError"))
    assert "memory monitor" not in headline


@pytest.mark.parametrize(
    ("text", "may_be"),
    [
        ("ERROR 03-18 18:02:58 [pool.py:9] slot 3 was refused\nepoch 1\n", True),
        (
            f'{BEGIN}  File "/app/shop/rows.py", line 9, in load\n    read()\nKeyError: 3\nepoch 1\n',
            False,
        ),
        ("2026-11-21 10:09:19,950 - shop - CRITICAL - no rows are left\nepoch 1\n", False),
    ],
)
def test_tracebacks_and_critical_records_are_not_called_harmless(text: str, may_be: bool) -> None:
    assert "No rule matches" in shown(text)
    assert ("may be harmless" in shown(text)) is may_be


# ---------------------------------------------------------------- collective operations


def watchdog(
    rank: int,
    rest: str = "OpType=BROADCAST, NumelIn=8, NumelOut=8, Timeout(ms)=900000) ran for 900010 milliseconds before timing out.",
) -> str:
    return (
        f"[rank{rank}]:[E424 01:11:21.160832730 ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum=4, {rest}\n"
    )


@pytest.mark.parametrize(
    "rest", ["OpTy", "OpType=BROADCAST, NumelIn=8, NumelO", "OpType=BROADCAST,", ""]
)
def test_a_rank_whose_report_is_cut_off_has_reported(rest: str) -> None:
    ((rule, headline),) = roots_of(watchdog(1) + watchdog(2) + watchdog(4) + watchdog(3, rest))
    assert rule == "nccl-failure"
    assert "4 ranks timed out after 900 s" in headline
    assert headline.endswith("rank 0 did not report, so look there first")


def test_a_rank_that_is_only_written_about_has_not() -> None:
    text = f"{watchdog(1)}{watchdog(3)}[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(see the manual)\n"
    ((_, headline),) = roots_of(text)
    assert "ranks 0 and 2 did not report" in headline


# ---------------------------------------------------------------- dashboards

HANDLING = "\nDuring handling of the above exception, another exception occurred:\n\n"
REFUSED = (
    "requests.exceptions.ConnectionError: HTTPConnectionPool(host='{}', port=8270): Max retries exceeded with url: /api/version "
    "(Caused by NewConnectionError('Failed to establish a new connection: [Errno 111] Connection refused'))\n"
)
LATE = (
    "2026-11-21 11:23:25,116\tERROR services.py:1207 -- Failed to start the dashboard \n"
    "2026-11-21 11:23:25,116\tERROR services.py:1242 -- Couldn't read dashboard.log file. Error: [Errno 2] No such file or directory: "
    "'/tmp/ray/session_1/logs/dashboard.log'. It means the dashboard is broken even before it initializes the logger.\n"
    "2026-11-21 11:23:25,116\tERROR services.py:1276 -- Failed to read dashboard.err file: cannot mmap an empty file.\n"
)


def steps_of(text: str) -> str:
    return "\n".join(
        step for d in report_on(text).diagnoses for r in d.remedies for step in r.steps
    )


def test_the_exception_below_one_that_is_explained_is_no_second_cause() -> None:
    text = f"{REFUSED.format('127.0.0.1')}{HANDLING}{MAIN}"
    assert [rule for rule, _ in roots_of(text)] == ["dashboard-unreachable"]
    assert "ray status" in steps_of(text)
    assert "-L 8270:127.0.0.1:8265" in steps_of(text)
    assert "dashboard-host" not in steps_of(text)


def test_an_exception_of_its_own_below_it_is_one() -> None:
    text = f"{REFUSED.format('127.0.0.1')}trying the next address\n{MAIN}ValueError: no address is left\n"
    assert "job-failed" in [rule for rule, _ in roots_of(text)]


def test_another_machine_may_have_to_listen_on_its_address() -> None:
    assert "dashboard-host=0.0.0.0" in steps_of(REFUSED.format("head"))


def test_no_fix_reads_a_log_that_does_not_exist() -> None:
    assert "tail -n" not in steps_of(LATE)
    assert report_on(LATE).unexplained == ()
    with_log = "".join(line for line in LATE.splitlines(keepends=True) if "Couldn't" not in line)
    assert "dashboard.err" in steps_of(with_log)


# ---------------------------------------------------------------- calls

GET = (
    f'{BEGIN}File "/app/shop/train.py", line 108, in <module> main()\n'
    'File "/venv/lib/python3.12/dist-packages/ray/_private/worker.py", line 2822, in get values = worker.get_objects(refs) ^^^^^^\n'
    'File "/venv/lib/python3.12/dist-packages/ray/_private/worker.py", line 930, in get_objects raise value.as_instanceof_cause() '
    "ray.exceptions.RayTaskError(AssertionError): "
)
"""Joined lines."""
CALL = "ray::Trainer.init() (pid=89, ip=10.0.0.2, actor_id=f847046dd56551e53b8fdcb002000000, repr=<shop.Tra"


def test_a_call_is_not_its_own_consequence() -> None:
    ((rule, headline),) = roots_of(f"{GET}{CALL}")
    assert (rule, headline) == (
        "task-exception",
        "Actor method Trainer.init() raised AssertionError",
    )


def test_a_call_that_waited_for_another_one_is_a_consequence() -> None:
    text = (
        f"ray.exceptions.RayTaskError(AssertionError): {CALL.replace('Trainer.init', 'Fit.run').partition(', actor')[0]})\n"
        '  File "/app/shop/fit.py", line 9, in run\n    ray.get(refs)\n'
        f"ray.exceptions.RayTaskError(AssertionError): {CALL}"
    )
    ((_, headline),) = roots_of(text)
    assert headline.endswith("so Fit.run() failed as well")


UNREACHABLE = (
    "The actor c5d60362068042d8669d510501000000 is unavailable: The actor is temporarily unavailable: RpcError: RPC Error message: "
    "Cancelling all calls; RPC Error details:  rpc_code: 14. The task may or may not have been executed on the actor."
)
LOGGED = "2026-11-21 07:57:12,658 - ERROR - shop.pipeline - [wiring] Error while it was confirmed: "


def test_an_actor_of_an_unknown_class_is_named_by_its_id() -> None:
    steps = steps_of(f"{LOGGED}{UNREACHABLE}\n")
    assert "--filter actor_id=c5d60362068042d8669d510501000000" in steps
    assert "class_name" not in steps
    assert "Actor.options" not in steps


def test_the_line_whose_exception_is_explained_is_not_listed_again() -> None:
    assert report_on(f"{LOGGED}{UNREACHABLE}\n").unexplained == ()
    other = f"{LOGGED}no slot is left\n{LOGGED}{UNREACHABLE}\n"
    assert [each.line for each in report_on(other).unexplained] == [1]


# ---------------------------------------------------------------- GPUs


def of_worker(error: str) -> str:
    return "".join(
        f"(VllmWorker rank=0 pid=102) ERROR 05-19 22:24:28 [multiproc_executor.py:522] {line}\n"
        for line in (
            '  File "/venv/lib/python3.12/dist-packages/vllm/v1/sample/sampler.py", line 126, in sample',
            "    logits = self.apply(logits)",
            error,
        )
    )


@pytest.mark.parametrize("rest", ["an ill", "device-side ass", "unspecified launch fail"])
def test_a_cuda_error_that_is_cut_off_is_a_fault(rest: str) -> None:
    ((rule, headline),) = roots_of(of_worker(f"RuntimeError: CUDA error: {rest}"))
    assert rule == "gpu-fault"
    assert f"CUDA error: {rest}…" in headline
    assert "CUDA_LAUNCH_BLOCKING" in steps_of(of_worker(f"RuntimeError: CUDA error: {rest}"))


@pytest.mark.parametrize("rest", ["out of mem", "invalid arg", "the quota of the pool"])
def test_another_cuda_error_is_none(rest: str) -> None:
    found = roots_of(of_worker(f"RuntimeError: CUDA error: {rest}"))
    assert "gpu-fault" not in [rule for rule, _ in found]


# ---------------------------------------------------------------- fixes

CHANNEL = "ray.exceptions.RayChannelTimeoutError: System error: Timed out waiting for object available to read. ObjectID: 00cc316456d392\n"


def of_graph(file: str) -> str:
    return f'{BEGIN}  File "{file}", line 496, in run\n    self.step()\n{CHANNEL}'


def test_the_limit_of_vllm_is_not_rays() -> None:
    assert "RAY_CGRAPH_get_timeout=1800" in steps_of(of_graph("/srv/vllm/vllm/v1/engine/core.py"))
    assert "RAY_CGRAPH_get_timeout=300" in steps_of(of_graph("/srv/shop/my_vllm.py"))


def died(task: str) -> str:
    return (
        "(raylet) A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the problem, "
        f"check the logs for the dead worker. RayTask ID: {task} Worker ID: {'1c' * 28} Node ID: {'6e' * 28} Worker IP address: 10.0.0.2 "
        "Worker port: 39003 Worker PID: 379 Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a "
        "connection error code 2. End of file.\n"
    )


def test_retries_of_tasks_do_not_help_an_actor() -> None:
    of_actor = steps_of(died(f"{'f' * 16}f680bb5b15f89ecbd572bfa102000000"))
    assert "max_task_retries" in of_actor
    assert "max_retries=10" not in of_actor
    assert "max_retries=10" in steps_of(died(f"{'c8' * 8}{'f' * 24}01000000"))


def test_a_failed_call_is_an_error_although_its_text_is_cut_off() -> None:
    text = (
        f"{MAIN}ray.exceptions.RayTaskError({{}}ray::Fit.run() (pid=39, ip=10.0.0.2, actor_id=12b7"
    )
    (root,) = report_on(text.format("ActorDiedError): ")).roots
    assert (root.rule, root.severity) == ("task-exception", "error")


def test_a_worker_whose_exception_is_cut_off_has_no_line_to_fix() -> None:
    frames = f'{BEGIN}  File "/app/shop/base.py", line 72, in __init__\n    self.start(rank)\n  File "/app/shop/di'
    text = "".join(f"(Trainer pid=11) {line}\n" for line in frames.splitlines())
    (root,) = report_on(text).roots
    assert root.rule == "task-exception"
    assert [fix.title for fix in root.remedies] == [
        "Read the end of this traceback in the whole output: it names the exception"
    ]


# ---------------------------------------------------------------- native crashes


def aborted(*frames: str) -> str:
    lines = [
        "*** SIGABRT received at time=1734086759 ***",
        "PC: @        0x19ea96600  (unknown)  __pthread_kill",
    ]
    lines += [f"    @        0x1046b6bf{n}  (unknown)  {frame}" for n, frame in enumerate(frames)]
    return "".join(f"(Trainer pid=73) {line}\n" for line in lines)


def test_the_function_that_called_abort_is_named() -> None:
    text = aborted(
        "absl::lts::WriteFailureInfo()",
        "_sigtramp",
        "pthread_kill",
        "abort",
        "wire::Device::listen()",
        "run",
    )
    ((rule, headline),) = roots_of(text)
    assert rule == "worker-native-crash"
    assert headline.endswith("SIGABRT, native function wire::Device::listen()")
    assert "core_pattern" not in steps_of(text)


def test_no_function_is_blamed_that_the_stack_does_not_show() -> None:
    text = aborted("absl::lts::WriteFailureInfo()", "gsignal", "abort", "std::terminate()")
    ((_, headline),) = roots_of(text)
    assert headline.endswith("SIGABRT")
    assert "core_pattern" in steps_of(text)


# ---------------------------------------------------------------- what programs log

STOPPED = (
    "2026-03-11 10:06:58,842|shop|INFO|entry.py:start:63| start command: ray start --head\n"
    "2026-03-11 10:09:19,950|shop|CRITICAL|entry.py:start:75| Failed to start "
)


@pytest.mark.parametrize("end", ["ra", "ray", "ray head."])
def test_a_program_that_could_not_start_ray(end: str) -> None:
    ((rule, headline),) = roots_of(f"{STOPPED}{end}")
    assert rule == "job-failed"
    assert headline.startswith("The program could not start Ray on this machine")


@pytest.mark.parametrize(
    "end", ["range 3", "rates", "ray\nuses the cluster that runs\nepoch 1\nepoch 2\n"]
)
def test_a_program_that_failed_to_start_something_else(end: str) -> None:
    assert roots_of(f"{STOPPED}{end}") == []


HANDLED = (
    f"(shop) 20260320-11:20:06.245 Pool ERROR: Error cleaning up worker 0: 'psmem'\n{BEGIN}"
    + (
        '  File "/app/shop/pool.py", line 97, in close\n    end(self.pid)\n  File "/app/shop/proc.py", line 14, in end\n    retu'
    )
)


def test_an_exception_that_a_logger_prints_did_not_end_the_program() -> None:
    ((rule, headline),) = roots_of(HANDLED)
    assert rule == "job-failed"
    assert headline.startswith(
        "The program logged an error and may have gone on: Error cleaning up worker 0: 'psmem'"
    )
    assert report_on(HANDLED).unexplained == ()


def test_an_error_further_up_is_another_one() -> None:
    ((_, headline),) = roots_of(HANDLED.replace(BEGIN, f"closing worker 1\n{BEGIN}"))
    assert "may have gone on" not in headline


# ---------------------------------------------------------------- interleaved lines

INTERLEAVED = (
    '  File "/venv/lib/python3.11/site-packages/ray/_private/auto_init_hook.py", line 22, in auto_init_wrapper    \n'
    "ray.get(runner.run.remote(config))                 \n"
    '  File "/venv/lib/python3.11/site-packages/ray/_private/worker.py", line 2849, in get   \n'
    "(Runner pid=16) metrics:              mean 0.33543   \n"
    "    values = worker.get_objects(object_refs, timeout=timeout)\n"
    '  File "/venv/lib/python3.11/site-packages/ray/_private/worker.py", line 937, in get_objects\n'
)


def test_frames_of_ray_get_between_the_lines_of_a_worker() -> None:
    ((rule, headline),) = roots_of(f"{INTERLEAVED}(pid=16) Runn")
    assert (rule, headline) == (
        "task-exception",
        "A call of ray.get raised an exception that the console cut off",
    )


def test_a_program_that_goes_on_below_such_frames() -> None:
    assert (
        roots_of(f"{INTERLEAVED}(Runner pid=16) step 7\nuses the last result\nepoch 2\nepoch 3\n")
        == []
    )


LABEL = "(Trainer pid=21) "
RECORD = f"{LABEL}ERROR 09-21 01:03:49 [trainer.py:93] "
SQUEEZED = (
    f"> {RECORD}Traceback (most recent call last): \n"
    f'> {RECORD}File "/app/shop/trainer.py", line 79, in train {RECORD}batch = await sample() \n'
    f'> {RECORD}File "/app/shop/strategy.py", line 59, in sample \n'
    f"> {RECORD}rows = await self.buffer.read() \n"
)


def test_a_quoted_traceback_whose_lines_have_a_header_and_no_indentation() -> None:
    ((rule, headline),) = roots_of(f"{SQUEEZED}> (Trainer pid=2")
    assert (rule, headline) == (
        "task-exception",
        "Trainer (pid 21) raised an exception that the console cut off, in sample() (strategy.py:59)",
    )


def test_a_record_with_another_header_is_no_line_of_the_frame_above() -> None:
    lines = f"{SQUEEZED.rpartition('> ')[0]}> {LABEL}INFO 09-21 01:03:50 [trainer.py:12] batch 8 of 9 was sampled\n"
    assert (
        roots_of(f"{lines}> {LABEL}INFO 09-21 01:03:51 [trainer.py:12] batch 9 of 9 was sampled\n")
        == []
    )


def test_a_quotation_of_a_name_that_is_cut_off_adds_no_call() -> None:
    text = "ray.exceptions.RayTaskError(RuntimeError): ray::ActorMod"
    assert "ray::ActorMod… " in shown(f"{MAIN}{text}")
    assert "ActorMod…()" not in shown(f"{MAIN}{text}")
    ((_, headline),) = roots_of(f"{MAIN}{text}")
    assert headline == "A task or actor method (ActorMod…) raised RuntimeError"
    whole = f"{text}el.fit() (pid=7, ip=10.0.0.2)\nRuntimeError: no rows"
    assert roots_of(f"{MAIN}{whole}")[0][1].startswith(
        "Actor method ActorModel.fit() raised RuntimeError"
    )


# ---------------------------------------------------------------- look-alikes of neighbours


def test_a_traceback_of_another_process_below_a_diagnosed_line_is_listed() -> None:
    full = (
        "(raylet) [2026-11-21 12:59:35,557 E 62 62] (raylet) file_system_monitor.cc:105: /tmp/ray/session_1 is over "
        "95% full, available space: 13307080704; capacity: 270475862016. Object creation will fail if spilling is required.\n"
    )
    text = f'{full}{BEGIN}  File "/app/train.py", line 8, in main\n    report(rows)\n'
    assert [rule for rule, _ in roots_of(text)] == ["disk-full"]
    assert "Traceback without its exception (/app/train.py:8 in main)" in shown(text)


def test_the_number_of_an_operation_that_is_cut_off_is_not_compared() -> None:
    begin = "[rank{0}]:[E1121 07:34:12.7 ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum="
    whole = "158046, OpType=ALLREDUCE, NumelIn=2, NumelOut=2, Timeout(ms)=600000) ran for 600027 milliseconds before timing out.\n"
    text = "".join(begin.format(rank) + end for rank, end in ((0, whole), (1, whole), (2, "15\n")))
    ((rule, headline),) = roots_of(text)
    assert rule == "nccl-failure"
    assert "was behind" not in headline


def test_the_driver_s_own_failure_below_a_worker_s_traceback_stays() -> None:
    worker = of_raylet(f"{METHOD}ValueError: bad\n")
    failed = roots_of(f"{worker}{MAIN}KeyError: 'lr'\n")
    assert ("job-failed", "The driver program ended with KeyError: 'lr', at train.py:108") in failed
    assert "worker-start-crashed" not in [rule for rule, _ in failed]


def test_an_error_below_a_long_line_of_a_worker_is_no_rest_of_it() -> None:
    prefix = "(Trainer pid=7, ip=10.0.0.2) "
    lines = ["start", "loading", "ready", "x" * 49, "", "y" * 48, ""]
    text = "".join(f"{prefix}{line}\n" if line else "{}\n" for line in lines).format(
        "epoch 1 done", "RuntimeError: CUDA error: an illegal memory access was encountered"
    )
    assert [rule for rule, _ in roots_of(text)] == ["gpu-fault"]

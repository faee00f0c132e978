"""The command line: what it takes, what it says, and its exit codes."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raydoctor import __version__, cli
from raydoctor.capture import session
from raydoctor.cli import _progress, collect
from raydoctor.cli._files import write_atomically
from raydoctor.cli._time import parse_time
from raydoctor.cli.diagnose import exit_code
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.values import CaptureInfo, Diagnosis, Event, Gap, Link, Report, Source
from raydoctor.observe import bundle
from tests.helpers.waiting import Program

WORKER = "cd09fc46897e18918275a6d03cc3a6abc2becabe5e0fd27a533d35a7"
NODE = "4392271d343578a32aee264b3908f06bdc8a6dc43675e3227cbbe483"
EXIT = (
    "[2026-11-21 07:34:50,741 W 8 8] (gcs_server) gcs_worker_manager.cc:70: Reporting worker exit, "
    f"worker id = {WORKER}, node id = {NODE}, address = 127.0.0.1, exit_type = SYSTEM_ERROR, "
    "exit_detail = Worker unexpectedly exits with a connection error code 2. End of file.\n"
)
Run = subprocess.CompletedProcess[str]


@pytest.fixture(name="logs")
def _logs(tmp_path: Path) -> Path:
    """A capture in which a worker vanished."""
    return write_logs(tmp_path / "session_2026-11-21_07-34-00_1_2", EXIT)


QUIET = "[2026-11-21 07:34:50,741 I 9 9] (x) event.cc:234: Set ray event level to warning\n"


def write_logs(session: Path, gcs: str) -> Path:
    logs = session / "logs"
    logs.mkdir(parents=True)
    (logs / "gcs_server.out").write_text(gcs or QUIET)
    (logs / "raylet.out").write_text(QUIET)
    return session


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "RAY_TMPDIR", "_RAYDOCTOR_COMPLETE"):
        monkeypatch.delenv(name, raising=False)


def say(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    capsys.readouterr()
    code = cli.execute([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return code, out, err


# ---------------------------------------------------------------- dispatch


def test_a_path_alone_is_diagnosed(capsys: pytest.CaptureFixture[str], logs: Path) -> None:
    code, out, _ = say(capsys, logs)
    assert code == 1
    assert "worker-vanished" in out
    assert say(capsys, "diagnose", logs)[1].split("\nInput:")[0] == out.split("\nInput:")[0]


def test_options_alone_are_a_diagnosis(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    driver = tmp_path / "train.log"
    driver.write_text("step 1\n")
    code, out, _ = say(capsys, "--driver-log", driver)
    assert code == 3
    assert "Inconclusive" in out


def test_the_driver_log_comes_from_standard_input(logs: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "raydoctor", logs, "--driver-log", "-", "--format", "json"],
        input="step 1\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert json.loads(done.stdout)["capture"]["files"] == 3


def test_nothing_given_and_nothing_there_offers_the_demo(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from raydoctor.observe.processes import discover

    monkeypatch.setattr(discover, "clusters", list)
    monkeypatch.setattr(session, "_roots", lambda: [tmp_path / "ray"])  # not this machine's /tmp
    code, out, err = say(capsys)
    assert (code, out) == (2, "")
    assert err.startswith("raydoctor: no Ray session on this machine")
    assert "raydoctor demo" in err


@pytest.mark.parametrize("command", [[], *([name] for name in cli.names())])
def test_every_help_has_examples(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    code, out, _ = say(capsys, *command, "--help")
    assert code == 0
    assert "Examples:\n" in out
    assert out.count("  raydoctor ") >= 2


def test_the_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"diagnose", "story", "explain", "rules", "demo"} <= set(cli.names())
    _, out, _ = say(capsys, "-h")
    assert all(f"\n  {name}" in out for name in cli.names())


def test_every_command_is_in_one_section_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    listed = [name for section in cli.SECTIONS.values() for name in section]
    assert len(listed) == len(set(listed))
    assert set(cli.names()) <= set(listed)
    assert "\nLive cluster:\n" in say(capsys, "-h")[1]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--version"], ["version"]):
        assert say(capsys, *words) == (0, f"raydoctor {__version__}\n", "")


def test_help_is_a_word_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert say(capsys, "help") == say(capsys, "--help")
    assert say(capsys, "help", "rules", "new") == say(capsys, "rules", "new", "--help")
    code, out, err = say(capsys, "help", "zombis")
    assert (code, out) == (2, "")
    assert "raydoctor zombies" in err


@pytest.mark.parametrize("command", ["diagnose", "zombies"])
def test_an_unknown_option_names_the_closest(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert "--format" in say(capsys, command, "--fromat", "json")[2]


def test_a_misspelt_command_is_not_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = say(capsys, "expalin", "ray-oom-kill")
    assert (code, out) == (2, "")
    assert "raydoctor explain" in err


def test_a_path_may_be_called_like_a_misspelt_command(
    capsys: pytest.CaptureFixture[str], logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(logs.parent)
    logs.rename("rule")
    assert say(capsys, "rule")[0] == 1


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    "arguments",
    [
        ["--bogus"],
        ["diagnose", "--format", "yaml"],
        ["diagnose", "--since", "yesterday"],
        ["diagnose", "--since", "1h", "--until", "2h"],
        ["story"],
        ["zombies", "--address", "auto"],
        ["demo", "earthquake"],
    ],
)
def test_usage_errors_are_two(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    code, out, err = say(capsys, *arguments)
    assert (code, out) == (2, "")
    assert "Error:" in err


def test_what_cannot_be_read_is_a_line_and_a_hint(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, err = say(capsys, tmp_path / "no\x1b[31mwhere")
    assert (code, out) == (2, "")
    message, hint, *more = err.splitlines()
    assert message.startswith("raydoctor: cannot read ")
    assert message.endswith("no\\x1b[31mwhere: No such file or directory")
    assert hint.startswith("  ")
    assert not more


@pytest.mark.parametrize(("closed", "code"), [(">&-", 0), ("<&- >&- 2>&-", 0), ("2>&-", 0)])
def test_an_output_that_was_closed_is_no_trouble(closed: str, code: int) -> None:
    command = [sys.executable, "-m", "raydoctor", "rules"]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "error" not in done.stderr


@pytest.fixture(name="broken")
def _broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from raydoctor.diagnosis import engine

    def fail(*arguments: object, **settings: object) -> None:
        raise KeyError("a defect \x1b[2J")

    monkeypatch.setattr(engine, "run", fail)
    return iter(())


@pytest.mark.usefixtures("broken")
def test_a_defect_is_a_line_and_how_to_report_it(
    capsys: pytest.CaptureFixture[str], logs: Path
) -> None:
    code, out, err = say(capsys, logs)
    assert (code, out) == (2, "")
    assert err.startswith("raydoctor: internal error: KeyError: ")
    assert "-v" in err
    assert "Traceback" not in err
    assert "Traceback" in say(capsys, logs, "-v")[2]
    assert "\x1b" not in say(capsys, logs, "-v")[2]


def test_an_interrupt_is_130(
    capsys: pytest.CaptureFixture[str], logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from raydoctor.diagnosis import engine

    def interrupt(*arguments: object, **settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "run", interrupt)
    assert say(capsys, logs) == (130, "", "raydoctor: interrupted\n")


@pytest.mark.parametrize("arguments", [["--help"], ["rules"], ["rules", "--format", "json"]])
def test_a_reader_that_leaves_early_is_no_error(arguments: list[str]) -> None:
    with Program(
        [sys.executable, "-m", "raydoctor", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 0


# ---------------------------------------------------------------- diagnose


def found(severity: str) -> Diagnosis:
    event = Event("x", Source("logs/raylet.out", "raylet-out"), 1, 0, "x")
    return Diagnosis("d1", "x", "root", severity, "x", 1, (Link(event, "x"),), ())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("severities", "gaps", "fail_on", "code"),
    [
        ((), (), "error", 0),
        (("error",), (), "error", 1),
        (("critical",), (), "error", 1),
        (("warning", "info"), (), "error", 0),
        (("warning",), (), "warning", 1),
        (("info",), (), "info", 1),
        (("critical",), (), "never", 0),
        (("error",), (), "critical", 0),
        ((), (Gap("gcs_server.out", "missing"),), "error", 3),
        ((), (Gap("kernel log", "missing", optional=True),), "error", 0),
        (("warning",), (Gap("gcs_server.out", "missing"),), "error", 3),
        (("error",), (Gap("gcs_server.out", "missing"),), "error", 1),
    ],
)
def test_exit_codes(
    severities: tuple[str, ...], gaps: tuple[Gap, ...], fail_on: str, code: int
) -> None:
    report = Report(CaptureInfo("x", "logs"), tuple(map(found, severities)), gaps=gaps)
    assert exit_code(report, fail_on) == code


def test_formats(capsys: pytest.CaptureFixture[str], logs: Path) -> None:
    document = json.loads(say(capsys, logs, "--format", "json")[1])
    assert document["diagnoses"][0]["rule"] == "worker-vanished"
    assert say(capsys, logs, "--format", "markdown")[1].startswith("## raydoctor: 1 root cause\n")


def test_the_report_goes_to_a_file(capsys: pytest.CaptureFixture[str], logs: Path) -> None:
    target = logs.parent / "report.md"
    code, out, err = say(capsys, logs, "--format", "markdown", "-o", target)
    assert (code, out) == (1, "")
    assert str(target) in err
    assert target.read_text().startswith("## raydoctor")


def test_a_span_leaves_out_what_lies_outside(
    capsys: pytest.CaptureFixture[str], logs: Path
) -> None:
    assert say(capsys, logs, "--since", "2026-11-21T07:00")[0] == 1
    early = say(capsys, logs, "--until", "2026-11-21 07:00:00,000")
    assert (early[0], "ERROR" in early[1]) == (3, False)  # no program is in these logs


@pytest.mark.parametrize(("place", "is_found"), [("..", True), ("logs", True), ("node-1", False)])
def test_a_drivers_output_alone_names_the_logs_beside_it(
    capsys: pytest.CaptureFixture[str],
    logs: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    is_found: bool,
) -> None:
    monkeypatch.setattr(session, "latest", lambda: None)
    folder = (logs / place).resolve()
    folder.mkdir(exist_ok=True)
    driver = folder / "my train.log"
    driver.write_text("step 1\n")
    err = say(capsys, "--driver-log", driver)[2]
    command = f"raydoctor diagnose {folder} --driver-log '{driver}'"
    assert (command in err) == is_found


def test_a_drivers_output_belongs_to_the_session_of_its_time(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = logs.parent / "out.txt"
    output.write_text("step 1\n")
    elsewhere = logs.parent / "elsewhere"
    elsewhere.mkdir()
    output = output.rename(elsewhere / "out.txt")
    monkeypatch.setattr(session, "latest", lambda: session.SessionChoice(logs))
    assert session.beside(str(output)) == logs
    assert session.beside("-") == logs
    began = session.began(str(logs))
    assert began is not None
    os.utime(output, (began - 10, began - 10))
    assert session.beside(str(output)) is None


@pytest.mark.parametrize(
    "content", [b"", b"root:x:0:0:root:/root:/bin/sh\n", bytes(range(256)) * 9]
)
def test_a_file_without_anything_of_ray_is_no_all_clear(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "passwd"
    file.write_bytes(content)
    code, out, _ = say(capsys, file)
    assert code == 3
    assert out.startswith("NOTHING RECOGNIZED")
    assert "nothing recognized" in say(capsys, file, "--format", "markdown")[1]


@pytest.mark.parametrize("address", ["foo", "127.0.0.1:1", "http://127.0.0.1:1", "ray://far:10001"])
def test_an_address_at_which_nothing_answers_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    from raydoctor.observe.processes import discover

    monkeypatch.setattr(discover, "clusters", list)
    code, out, err = say(capsys, "--address", address)
    assert (code, out) == (2, "")
    assert address.rpartition("://")[2] in err
    assert "10.0.0.2:6379" in err
    assert "RAY_ADDRESS" not in err
    monkeypatch.setattr(session, "latest", lambda: None)
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert "RAY_ADDRESS" in say(capsys)[2]


def test_which_session_was_chosen_is_said_beside_the_report(
    capsys: pytest.CaptureFixture[str], logs: Path
) -> None:
    write_logs(logs.parent / "session_2026-11-22_07-34-00_1_2", "")
    code, out, err = say(capsys, logs.parent)
    assert code == 3  # no program is in these logs
    assert "reading " in err
    assert "reading " not in out


def test_collect_counts_the_replaced_secrets_by_kind(capsys: pytest.CaptureFixture[str]) -> None:
    written = bundle.Written(12, 3 << 20, {"password": 2, "aws-key": 1})
    collect._print_summary("logs.tar.gz", written, ())
    assert (
        "12 files, 3.0 MiB, 3 secrets replaced (password ×2, aws-key ×1)" in capsys.readouterr().err
    )


# ---------------------------------------------------------------- explain, rules


def test_explain_shows_the_page_what_to_grep_for_and_an_example(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = say(capsys, "explain", "worker-vanished")
    assert code == 0
    for part in ("What you see", "Not this when", "grep -rF ", "Remedies", "Example: "):
        assert part in out
    document = json.loads(say(capsys, "explain", "Worker_Vanished", "--format", "json")[1])
    assert document["schema"] == "raydoctor/rule/1"
    assert document["signals"][0]["find"]
    assert document["example"]["files"]


def test_an_unknown_rule_names_the_closest(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = say(capsys, "explain", "worker-vanish")
    assert (code, out) == (2, "")
    assert "worker-vanished" in err


def test_explain_without_a_rule_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("text", "json"):
        rules = say(capsys, "rules", "--format", form)
        assert say(capsys, "explain", "--format", form) == rules


def test_the_catalogue_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    from raydoctor.rules import names

    text = say(capsys, "rules")[1]
    document = json.loads(say(capsys, "rules", "--format", "json")[1])
    table = say(capsys, "rules", "--format", "markdown")[1]
    assert {rule["name"] for rule in document["rules"]} == set(names())
    assert all(name in text and f"| `{name}` |" in table for name in names())
    assert max(map(len, text.splitlines())) <= 100


# ---------------------------------------------------------------- small parts


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1795237984", 1795237984.0),
        ("1795237984.25", 1795237984.25),
        ("2026-11-21T07:34:50Z", 1795246490.0),
        ("2026-11-21T07:34:50.5+01:00", 1795242890.5),
        ("2h", 1000.0 - 7200),
        ("30m", 1000.0 - 1800),
        ("1.5d ago", 1000.0 - 129600),
        (" 90s ", 910.0),
    ],
)
def test_times(text: str, seconds: float) -> None:
    assert parse_time(text, now=1000.0) == seconds


def test_rays_own_stamps_are_local_times() -> None:
    assert parse_time("2026-11-21 07:34:50,739") == parse_time("2026-11-21T07:34:50.739")


@pytest.mark.parametrize("text", ["", "yesterday", "12", "2026-13-01", "-1h", "9" * 30])
def test_what_is_no_time_says_so_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="write it like"):
        parse_time(text)


def test_a_file_is_written_whole_with_its_mode_and_through_its_link(tmp_path: Path) -> None:
    target, link = tmp_path / "report.txt", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    write_atomically(str(link), "new \ud800")
    assert target.read_text() == "new \\ud800"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert link.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["link", "report.txt"]


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RaydoctorError, match="cannot write"):
        write_atomically(str(tmp_path / "none" / "report.txt"), "x")
    with pytest.raises(RaydoctorError, match="cannot write"):
        write_atomically(str(tmp_path), "x")
    assert os.listdir(tmp_path) == []


def test_progress_is_for_terminals_and_long_waits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    monkeypatch.setattr(_progress, "PATIENCE", 0.01)
    with _progress.patience("reading"):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with _progress.patience("reading"):
        time.sleep(0.05)
    assert capsys.readouterr().err == "\r\x1b[Kreading … 0 s, time left unknown \r\x1b[K"
    with _progress.patience("querying", 5):
        time.sleep(0.05)
    assert "querying … 0 s, at most 5 s left" in capsys.readouterr().err
    with _progress.Progress("writing") as progress:
        progress.say("writing", 0, 4)
        progress.say("writing", 1, 4)
        time.sleep(0.05)
    assert "writing … 0 s, about 1 s left" in capsys.readouterr().err
    hostile = "a\x1b]0;b\x07\u202e\r\nc"  # the name of a task
    with _progress.patience(hostile) as progress:
        time.sleep(0.03)
        progress.say(hostile)
        time.sleep(_progress.PATIENCE + 0.03)
    shown = capsys.readouterr().err.replace("\r\x1b[K", "")
    assert shown
    assert shown.isprintable()
    monkeypatch.setattr(_progress, "PATIENCE", 10)
    with _progress.patience("reading"):
        pass
    assert capsys.readouterr().err == ""

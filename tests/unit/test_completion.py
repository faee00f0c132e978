"""Completions: for which shells, and of which names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from raydoctor import cli, rules
from raydoctor.observe.processes import titles
from tests.helpers.waiting import until

TITLES = (
    "ray::load_shard",
    "ray::Trainer.step",
    "ray::IDLE",
    "ray::IDLE_SpillWorker",
    "ray::load-shard",
    "ray::$(touch x)",
    "ray::a b",
    "ray::x;id",
    "ray::\u202eevil",
    "python train.py",
)
SLEEP = "import sys; sys.stdin.read()"


@pytest.fixture(name="workers")
def _workers() -> Iterator[None]:
    with running(TITLES):
        yield


@contextmanager
def running(names: Iterable[str]) -> Iterator[None]:
    """Processes with these titles, as Ray's workers have them."""
    with ExitStack() as stack:
        for title in names:
            code = f"open('/proc/self/comm', 'w').write({title[:15]!r}); print(flush=True); {SLEEP}"
            process = subprocess.Popen(
                [title, "-c", code],
                executable=sys.executable,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            stack.enter_context(process)
            assert process.stdout is not None
            process.stdout.readline()
        yield


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_running_tasks_are_completed_and_hostile_names_are_not(workers: None) -> None:
    until(lambda: {"load_shard", "Trainer.step"} <= set(titles.names()))
    ours = {
        name for name in titles.names() if name not in ("load_shard", "Trainer.step", "load-shard")
    }
    assert not {name for name in ours if not name.replace(".", "").replace("_", "").isalnum()}
    assert not ours & {"IDLE", "IDLE_SpillWorker", "a", "x", "evil"}


def completed(words: str) -> list[str]:
    environment = {
        "_RAYDOCTOR_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    return [line.partition(",")[2] for line in replies(environment).splitlines()]


def replies(environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "raydoctor"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--driver-l", ["--driver-log"]),
        ("--vers", ["--version"]),
        ("/tmp --fail", ["--fail-on"]),
        ("--format jun", ["junit"]),
        ("--format json --driver-l", ["--driver-log"]),
        ("hung --driver-l", []),
        ("completion ba", ["bash"]),
        ("help diag", ["diagnose"]),
    ],
)
def test_options_are_completed_without_a_command_as_well(words: str, expected: list[str]) -> None:
    assert completed(f"raydoctor {words}") == expected


@pytest.mark.parametrize(
    ("shell", "words", "word", "expected"),
    [
        ("bash", "raydoctor --format = jun", "3", "plain,junit"),
        ("bash", "raydoctor --format =", "2", "plain,text"),
        ("zsh", "raydoctor diagnose --format=jun", "2", "plain\n--format=junit\n_"),
        ("fish", "raydoctor --format=jun", "--format=jun", "plain,--format=junit"),
        ("fish", "raydoctor hung --format=j", "--format=j", "plain,--format=json"),
        ("fish", "raydoctor --format jun", "jun", "plain,junit"),
    ],
)
def test_the_value_behind_an_equals_sign_is_completed(
    shell: str, words: str, word: str, expected: str
) -> None:
    environment = {
        "_RAYDOCTOR_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": word,
    }
    assert replies(environment).startswith(f"{expected}\n")


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
def test_fish_completes_the_value_behind_an_equals_sign(tmp_path: Path) -> None:
    program = tmp_path / "raydoctor"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m raydoctor "$@"\n')
    program.chmod(0o700)
    done = subprocess.run(
        ["fish", "--no-config", "-c", "raydoctor completion fish | source; complete -C 'raydoctor --format=jun'"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout == "--format=junit\n"


def test_commands_and_rules_are_completed() -> None:
    assert completed("raydoctor dia") == ["diagnose"]
    assert completed("raydoctor explain ray-o") == ["ray-oom-kill"]
    assert completed("raydoctor explain ") == list(rules.names())


@pytest.mark.parametrize(
    "words",
    ["diagnose /tm", "diagnose -o /tm", "diff a /tm", "rules test /tm", "run -- /bin/tr", "/tm"],
)
def test_files_are_left_to_the_shell(words: str) -> None:
    assert completed(f"raydoctor {words}") == [words.rsplit(maxsplit=1)[-1]]
    assert completed("raydoctor comp") == ["completion"]


@pytest.mark.parametrize("words", [["completion", "--help"], ["help", "completion"]])
def test_the_help_of_completions(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.execute(words) == 0
    assert "bash|zsh|fish" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["stack", "attach", "cancel"])
@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_running_tasks_are_completed(command: str, workers: None) -> None:
    assert completed(f"raydoctor {command} load_sh") == ["load_shard"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.execute(["completion", shell]) == 0
    assert f"_RAYDOCTOR_COMPLETE={shell}_complete" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["tcsh"], ["bash", "zsh"]])
def test_another_shell_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.execute(["completion", *words]) == 2
    assert "bash, zsh or fish" in capsys.readouterr().err

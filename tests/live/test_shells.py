"""Completions in real shells: what the Tab key inserts, in a terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import pytest

from tests.helpers import ROOT
from tests.unit.test_completion import running

SHELLS = {
    "bash": (
        ["bash", "--norc", "--noprofile", "-i"],
        'PS1="> "; eval "$(raydoctor completion bash)"',
    ),
    "zsh": (["zsh", "-f", "-i"], 'PS1="> "; eval "$(raydoctor completion zsh)"'),
    "fish": (
        ["fish", "--no-config", "-i"],
        'function fish_prompt; echo "> "; end; raydoctor completion fish | source',
    ),
}


class Terminal:
    """A shell in a terminal of its own."""

    def __init__(self, shell: str, folder: Path) -> None:
        program, setup = SHELLS[shell]
        self.pid, self._fd = pty.fork()
        if not self.pid:
            os.chdir(folder)
            environment = {
                "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
                "HOME": str(folder),
                "TERM": "dumb",
                "LANG": "C.UTF-8",
                "PYTHONPATH": str(ROOT),
            }
            os.execvpe(program[0], program, environment)
        self.type(f"{setup}; echo re''ady\n")
        self.read("ready")

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def read(self, wanted: str, seconds: float = 30) -> str:
        """What the shell has printed since the last call, once it contains a text."""
        end, found = time.monotonic() + seconds, ""
        while wanted not in found and time.monotonic() < end:
            if select.select([self._fd], [], [], 0.2)[0]:
                found += os.read(self._fd, 65_536).decode("utf-8", "replace")
        assert wanted in found, found
        return found

    def completed(self, words: str) -> list[str]:
        """The words of the line after these keys and the Tab key, as the shell passes them on."""
        self.type(f"\x15{words}\t\x01show \x05\n")
        shown = self.read("<end>")
        return [line.strip("<>\r") for line in shown.split("\n") if line.startswith("<")][:-1]

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._fd)


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    """A folder with the command on its path, and files."""
    (tmp_path / "bin").mkdir()
    for name, text in {
        "raydoctor": f'exec {sys.executable} -m raydoctor "$@"',
        "show": 'printf "<%s>\\n" "$@" end',
    }.items():
        script = tmp_path / "bin" / name
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
    (tmp_path / "logs of today").mkdir()
    return tmp_path


_KNOWN = (
    "bash",
    pytest.param("zsh", marks=pytest.mark.skipif(not which("zsh"), reason="zsh is not installed")),
    pytest.param(
        "fish", marks=pytest.mark.skipif(not which("fish"), reason="fish is not installed")
    ),
)


@pytest.fixture(name="terminal", params=_KNOWN)
def _terminal(request: pytest.FixtureRequest, folder: Path) -> Iterator[Terminal]:
    terminal = Terminal(request.param, folder)
    yield terminal
    terminal.close()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_the_tab_key(terminal: Terminal, folder: Path) -> None:
    for words, expected in {
        "raydoctor diag": ["diagnose"],
        "raydoctor comp": ["completion"],
        "raydoctor completion fi": ["completion", "fish"],
        "raydoctor help zom": ["help", "zombies"],
        "raydoctor explain ray-oo": ["explain", "ray-oom-kill"],
        "raydoctor hung --min-a": ["hung", "--min-age"],
        "raydoctor --driver-l": ["--driver-log"],
        "raydoctor --format sar": ["--format", "sarif"],
        "raydoctor /tmp --until 3h --form": ["/tmp", "--until", "3h", "--format"],
    }.items():
        assert terminal.completed(words) == ["raydoctor", *expected], words
    found = terminal.completed("raydoctor logs")
    assert [each.rstrip("/") for each in found] == ["raydoctor", "logs of today"]
    with running(
        ["ray::zzz.load-shard", "ray::zz$(touch pwned)", "ray::zz`touch pwned`", "ray::zz*"]
    ):
        assert terminal.completed("raydoctor stack zz") == ["raydoctor", "stack", "zzz.load-shard"]
    assert not (folder / "pwned").exists()

"""A second user for tests: processes, listeners and files of another uid, started from a test that is root."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

MALLORY = 54321
ALICE = 54322
OPEN_TO_ALL = 0o777
_SETTINGS = b"\0\0\0\4\0\0\0\0\0"
"""An empty frame of HTTP/2: a gRPC client sends its headers after it."""
_MODE = b'{"authentication_mode":"token"}'


def become(uid: int) -> None:
    """Be this user, for good."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def as_user(uid: int, function: Callable[[], Any], env: Mapping[str, str] | None = None) -> Any:
    """What a function returns, as JSON has it, where this user calls it in a process of its own."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        os.environ.pop("SUDO_UID", None)
        os.environ.update(env or {})
        try:
            if uid:
                become(uid)
            reply = {"value": function()}
        except BaseException:
            reply = {"failed": traceback.format_exc()}
        with os.fdopen(writing, "w") as stream:
            json.dump(reply, stream)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        reply = json.load(stream)
    os.waitpid(pid, 0)
    assert "failed" not in reply, reply["failed"]
    return reply["value"]


_EXCHANGE = 2
"""RENAME_EXCHANGE (renameat2(2))."""
_HERE = -100


def exchange(one: Path, other: Path) -> bool:
    """Let two names change places, in one step; False if one does not exist."""
    names = os.fsencode(one), os.fsencode(other)
    return ctypes.CDLL(None).renameat2(_HERE, names[0], _HERE, names[1], _EXCHANGE) == 0


@contextmanager
def repeating(uid: int, step: Callable[[], object]) -> Iterator[None]:
    """This user does it again and again while the block runs; what fails is tried again."""
    pid = os.fork()
    if not pid:
        become(uid)
        while True:
            with suppress(Exception):
                step()
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


class Ground:
    """A folder that all users can enter, and the processes of several users."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pids: list[int] = []

    def session(self, number: int, uid: int) -> Path:
        """A session's folder of this user, open to all as Ray makes it."""
        path = self.folder / "ray" / f"session_2026-11-21_10-00-00_000000_{number}"
        (path / "logs").mkdir(parents=True)
        (path / "logs" / "raylet.out").write_text("")
        for each in (path, path / "logs", path / "logs" / "raylet.out"):
            os.chown(each, uid, uid)
            each.chmod(OPEN_TO_ALL)
        self.folder.joinpath("ray").chmod(OPEN_TO_ALL)
        return path

    def program(self, name: str, of: str = "/bin/bash", mode: int = 0o755) -> str:
        """A copy of a program below this name: the kernel then names this file."""
        path = self.folder / f"bin{len(os.listdir(self.folder))}" / name
        path.parent.mkdir(parents=True)
        shutil.copy(of, path)
        path.chmod(mode)
        return str(path)

    def link(self, name: str) -> str:
        """A link of this name to a program: the process is called so, and the kernel names another file."""
        path = self.folder / f"bin{len(os.listdir(self.folder))}" / name
        path.parent.mkdir(parents=True)
        path.symlink_to("/bin/bash")
        return str(path)

    def run(
        self,
        uid: int,
        program: str,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        opened: str = "",
        argv0: str = "",
        script: str = "",
    ) -> int:
        """Start a copy of bash that waits, with these words on its command line; its pid.

        `script`: the words begin with this path, as those of an interpreter do.
        """
        ready, reply = os.pipe()
        text = "echo x >&$READY; exec {READY}>&-; kill -STOP $$"
        if script:
            path = self.folder / script
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        pid = os.fork()
        if not pid:
            try:
                os.setsid()
                os.set_inheritable(reply, True)
                if uid:
                    become(uid)
                if opened:
                    os.dup2(os.open(opened, os.O_WRONLY | os.O_APPEND), 9, inheritable=True)
                code = [str(self.folder / script)] if script else ["-c", text, "x"]
                known = {"PATH": "/usr/bin:/bin", "READY": str(reply), **(env or {})}
                os.execve(program, [argv0 or program, *code, *argv], known)
            finally:
                os._exit(1)
        os.close(reply)
        self.pids.append(pid)
        assert os.read(ready, 1), f"{program} did not start"
        os.close(ready)
        return pid

    def listener(self, uid: int, host: str = "127.0.0.1", port: int = 0) -> Listener:
        """A listener of this user, which asks every client for its token."""
        found = Listener(self.folder, uid, host, port)
        self.pids.append(found.pid)
        return found

    def end(self) -> None:
        """End all that was started."""
        for pid in self.pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            with suppress(OSError):
                os.waitpid(pid, 0)


class Listener:
    """A process that listens, answers as a dashboard or a gRPC server would, and keeps what it is sent."""

    def __init__(self, folder: Path, uid: int, host: str, port: int) -> None:
        handle, self.log = tempfile.mkstemp(dir=folder)
        os.fchmod(handle, 0o666)
        reading, writing = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                if uid:
                    become(uid)
                self._serve(handle, writing, host, port)
            finally:
                os._exit(1)
        os.close(writing)
        os.close(handle)
        reply = os.read(reading, 16)
        os.close(reading)
        assert reply, f"user {uid} cannot listen on {host}:{port}"
        self.port = int(reply)

    def _serve(self, log: int, writing: int, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        both = host == "::"
        server = socket.create_server((host, port), family=family, dualstack_ipv6=both)
        os.write(writing, str(server.getsockname()[1]).encode())
        while True:
            link, _ = server.accept()
            os.write(log, b"CONNECTED\n")
            threading.Thread(target=self._answer, args=(link, log), daemon=True).start()

    def _answer(self, link: socket.socket, log: int) -> None:
        with suppress(OSError), link:
            while data := link.recv(1 << 16):
                os.write(log, data)
                if b"authorization" in data:
                    return  # a gRPC client then knows that it has no answer
                if data.startswith(b"PRI "):
                    link.sendall(_SETTINGS)
                elif data.startswith((b"GET ", b"POST ")):
                    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(_MODE)
                    link.sendall(head + _MODE)

    @property
    def received(self) -> bytes:
        """All that it was sent, and a line `CONNECTED` for each connection."""
        return Path(self.log).read_bytes()

    def end(self) -> None:
        """End it; its port is free again."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@contextmanager
def ground() -> Iterator[Ground]:
    """A place for several users; not pytest's own folders, which only their owner can enter."""
    folder = Path(tempfile.mkdtemp(prefix="rd-", dir="/tmp"))
    folder.chmod(0o755)
    found = Ground(folder)
    try:
        yield found
    finally:
        found.end()
        shutil.rmtree(folder, ignore_errors=True)

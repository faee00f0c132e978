"""Reports every process that a tracked task starts, by hooks in the lowest-level functions of Python.

`_posixsubprocess.fork_exec` (subprocess and all its wrappers, asyncio, multiprocessing's spawn), `os.fork`,
`os.forkpty`, `os.posix_spawn`, `os.system`, `multiprocessing.Process.start` (a fork server's children are not
children of this process), and a hook in forked children for processes that they start before they execute
another program. Checked with CPython 3.10 to 3.13. `sys.addaudithook` does not help: it cannot change an
environment, gets no pid, and slows down every import and every open for the rest of the process.

The task is found by the context (`contextvars`), which threads and work items of thread pools inherit, so
that tasks of one worker are never confused. Outside a tracked task, nothing is reported or changed. The fork
server and the resource tracker of multiprocessing belong to the worker, not to a task.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

from raydoctor.act.tracking.registry import MARK

_ENVIRONMENT = 5
"""Position of the environment in fork_exec's arguments (CPython 3.10 to 3.13)."""
_HELPERS = (
    b"from multiprocessing.forkserver import",
    b"from multiprocessing.resource_tracker import",
)
_INHERITED = "_raydoctor_listener"


class Listener(Protocol):
    """A tracked task."""

    @property
    def mark(self) -> str:
        """Value of `MARK` for its processes."""

    @property
    def is_open(self) -> bool:
        """Whether it still runs."""

    @property
    def is_here(self) -> bool:
        """Whether this process runs it, not a forked child."""

    def announce(self) -> None:
        """The task is about to start a process that is not reported afterwards. Never raises."""

    def started(self, pid: int) -> None:
        """The task has started a child. Never raises."""

    def forked(self) -> None:
        """This process is a forked descendant of the task. Never raises."""


@dataclass(slots=True)
class _State:
    """The state of the hooks in this process."""

    is_installed: bool = False
    only: Callable[[], Listener | None] = lambda: None


_state = _State()


NO_TASK: Any = SimpleNamespace(is_open=False)
"""A listener that stands for no task, even in a thread that inherited one."""
current: ContextVar[Listener | None] = ContextVar("raydoctor_tracking", default=None)


def listener() -> Listener | None:
    """The task that this code belongs to."""
    found = current.get()
    if found is None:
        import threading

        found = getattr(threading.current_thread(), _INHERITED, None) or _state.only()
    return found if found is not None and found.is_open else None


def install(only: Callable[[], Listener | None]) -> None:
    """Install the hooks, once in a process; `only` returns the task if the context has none."""
    _state.only = only
    if _state.is_installed:
        return
    _state.is_installed = True
    _install_processes()
    _install_threads()
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)


def _install_processes() -> None:
    import _posixsubprocess
    import subprocess
    from multiprocessing.process import BaseProcess

    own = _posixsubprocess.fork_exec
    _posixsubprocess.fork_exec = _fork_exec(own)
    theirs = getattr(subprocess, "_fork_exec", None)  # from CPython 3.11 on
    if theirs is not None:
        again = _posixsubprocess.fork_exec if theirs is own else _fork_exec(theirs)
        subprocess._fork_exec = again  # type: ignore[attr-defined]
    os.fork = _fork(os.fork)
    os.forkpty = _forkpty(os.forkpty)
    os.posix_spawn = _posix_spawn(os.posix_spawn)
    os.posix_spawnp = _posix_spawn(os.posix_spawnp)
    os.system = _system(os.system)  # type: ignore[assignment]
    BaseProcess.start = _start_process(BaseProcess.start)  # type: ignore[method-assign, assignment]


def _install_threads() -> None:
    import threading
    from concurrent.futures import ThreadPoolExecutor, thread

    _start, _submit = threading.Thread.start, ThreadPoolExecutor.submit
    pool_work = getattr(thread, "_worker", None)

    def start(self: Any) -> None:
        task = listener()
        # A thread of a pool works for many tasks; each work item has its own.
        if task is not None and getattr(self, "_target", None) is not pool_work:
            setattr(self, _INHERITED, task)
        _start(self)

    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        task = listener()
        if task is None:
            return _submit(self, fn, *args, **kwargs)
        return _submit(self, _run_for, task, fn, *args, **kwargs)

    threading.Thread.start = start  # type: ignore[method-assign]
    ThreadPoolExecutor.submit = submit  # type: ignore[method-assign]


def _run_for(task: Listener, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    before = current.get()
    current.set(task)
    try:
        return fn(*args, **kwargs)
    finally:
        current.set(before)


def _before_fork() -> None:
    task = listener()
    if task is not None:
        task.announce()


def _in_child() -> None:
    task = listener()
    if task is not None:
        os.environ[MARK] = task.mark
        task.forked()


# ------------------------------------------------------------------ the hooks


def _fork_exec(original: Callable[..., int]) -> Callable[..., int]:
    def fork_exec(*args: Any) -> int:
        task = listener()
        if task is None or (task.is_here and _is_helper(args[0])):
            return original(*args)
        marked = list(args)
        marked[_ENVIRONMENT] = _with_mark(args[_ENVIRONMENT], task.mark)
        pid = original(*marked)
        task.started(pid)
        return pid

    return fork_exec


def _is_helper(command: Sequence[Any]) -> bool:
    """Whether it is a helper that multiprocessing starts once per process."""
    code = command[-1] if command else b""
    code = code if isinstance(code, bytes) else os.fsencode(code)
    return code.startswith(_HELPERS)


def _with_mark(environment: Sequence[bytes] | None, mark: str) -> list[bytes]:
    if environment is None:
        environment = [key + b"=" + value for key, value in os.environb.items()]
    name = os.fsencode(MARK) + b"="
    return [*(e for e in environment if not e.startswith(name)), name + os.fsencode(mark)]


def _fork(original: Callable[[], int]) -> Callable[[], int]:
    def fork() -> int:
        pid = original()
        task = listener() if pid > 0 else None
        if task is not None:
            task.started(pid)
        return pid

    return fork


def _forkpty(original: Callable[[], tuple[int, int]]) -> Callable[[], tuple[int, int]]:
    def forkpty() -> tuple[int, int]:
        pid, terminal = original()
        task = listener() if pid > 0 else None
        if task is not None:
            task.started(pid)
        return pid, terminal

    return forkpty


def _posix_spawn(original: Callable[..., int]) -> Callable[..., int]:
    def posix_spawn(path: Any, argv: Any, env: Any = None, /, **options: Any) -> int:
        task = listener()
        if task is None:
            return original(path, argv, env, **options)
        given: Mapping[Any, Any] = os.environ if env is None else env
        is_bytes = any(isinstance(key, bytes) for key in given)
        mark = {os.fsencode(MARK): os.fsencode(task.mark)} if is_bytes else {MARK: task.mark}
        pid = original(path, argv, {**given, **mark}, **options)
        task.started(pid)
        return pid

    return posix_spawn


def _system(original: Callable[[Any], int]) -> Callable[[Any], int]:
    """The C library forks here without a hook, so the shell itself sets the mark."""

    def system(command: Any) -> int:
        task = listener()
        if task is None:
            return original(command)
        task.announce()
        return original(os.fsencode(f"export {MARK}={task.mark}\n") + os.fsencode(command))

    return system


def _start_process(original: Callable[[Any], None]) -> Callable[[Any], None]:
    def start(self: Any) -> None:
        original(self)
        task, pid = listener(), getattr(self, "pid", None)
        if task is not None and isinstance(pid, int):
            task.started(pid)

    return start

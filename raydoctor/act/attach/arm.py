"""Code that runs inside the process to debug: a signal handler and one thread.

There are two ways to run it. `raydoctor.arm()`, called in advance (Ray's `worker_process_setup_hook`), only
installs a handler of SIGURG, for machines where ptrace(2) is not permitted. And `raydoctor attach` has an
unprepared process execute this file. So it imports no other part of raydoctor: the thread loads three files
(`enter.py`, `private.py`, `door.py`) that import none either.

The main thread, which may be at any position, does very little (`enter.py`): it takes a request (a file of
the same user) and starts a thread. Only that thread executes this file and imports debugpy, because an import
takes long and may fork. (An import of debugpy in the main thread under ptrace(2) broke 5 of 7 workers, Ray
2.60.0.)

The handler stays as long as the debugger does: a debugger cannot pause a thread that waits in C code (a lock,
a socket), and a signal makes the thread run Python code for a moment.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

SIGNAL = int(getattr(signal, "SIGURG", 0))
"""Ignored unless a handler is installed, which is rare (signal(7))."""
FOLDERS = ("/run/user/{}/raydoctor", "/tmp/raydoctor-{}")
"""The folders for files shared by a user's processes and raydoctor: `act/private.py`."""
_PAUSE = 0.05
"""Seconds until the import begins: the injecting process has detached by then."""

_YIELD, _SLICE = 0.5, 0.005
"""Seconds that a woken main thread leaves to other threads: at most, during the import; and afterwards."""

_starting: _thread.LockType = vars(threading).setdefault(
    "_raydoctor_starting", _thread.allocate_lock()
)
"""Held while debugpy is imported; one lock per process, even if this file is executed several times."""
_loaded: dict[str, Any] = {}


def arm() -> None:
    """Allow `raydoctor attach` to enter this process later, without ptrace(2) and gdb.

    Pass it to Ray, as a function or by its name:

        ray.init(runtime_env={"worker_process_setup_hook": "raydoctor.arm"})

    It has no cost until it is used: one handler of SIGURG, which only this user and root can send.
    """
    if not (SIGNAL and load("enter").is_main() and load("enter").handle(wake)):
        _warn("raydoctor.arm: SIGURG cannot be handled here, this process is not armed")
        return
    try:
        # It is armed beyond the end of the user's login.
        with load("private").created(lasting=True) as folder:
            folder.forget_the_dead()
            folder.write(name_of("armed", os.getpid()), b"{}")
    except OSError as error:
        load("enter").restore_handler(SIGNAL, None)
        _warn(f"raydoctor.arm: {error}: this process is not armed")


def wake(number: int, frame: Any) -> None:
    """Handle the signal; a debugger can pause this thread in this function."""
    # Native code in this thread may hold the GIL and check for signals only now and then (`re`).
    if _starting.locked() and _starting.acquire(timeout=_YIELD):
        _starting.release()
    time.sleep(_SLICE)
    with suppress(OSError):
        name, user = name_of("request", os.getpid()), os.geteuid()
        for folder in FOLDERS:
            path = f"{folder.format(user)}/{name}"
            load("enter").take(path, _in_a_thread_of_its_own, path)


# ------------------------------------------------------------------ shared with raydoctor


def name_of(what: str, pid: int) -> str:
    """The name of a file of a process; `what` is `request`, `answer` or `armed`."""
    return f"{what}-{pid}-{start_of(pid)}"


def start_of(pid: int) -> str:
    """Start time of a process in ticks since boot (proc(5), field 22). Raises OSError."""
    with open(f"/proc/{pid}/stat", "rb") as stream:
        return stream.read().rpartition(b")")[2].split()[19].decode()


def path_of(name: str) -> str:
    """The path of a file that imports nothing of raydoctor: in this folder, or in its parent."""
    here = os.path.dirname(__file__)
    path = os.path.join(here, f"{name}.py")
    return path if os.path.exists(path) else os.path.join(os.path.dirname(here), f"{name}.py")


def load(name: str) -> Any:
    """The module of such a file, even in a process without raydoctor."""
    if name not in _loaded:
        path = path_of(name)
        space: dict[str, Any] = {"__name__": f"raydoctor{name}", "__file__": path}
        module = _loaded[name] = type(sys)(f"raydoctor{name}")
        vars(module).update(space)
        with open(path, "rb") as stream:
            exec(compile(stream.read(), path, "exec"), vars(module))
    return _loaded[name]


# ------------------------------------------------------------------ in a thread


def _in_a_thread_of_its_own(path: str) -> None:
    # A thread that `threading` did not start would get a permanent entry by `threading.current_thread`.
    thread = threading.Thread(target=_listen, args=(path,), daemon=True, name="raydoctor-attach")
    # Not a thread of the program: a debugger neither shows nor pauses it.
    vars(thread).update(pydev_do_not_trace=True, is_pydev_daemon_thread=True)
    try:
        thread.start()
    except BaseException:
        load("enter").restore_turns()
        raise


def _listen(path: str) -> None:
    try:
        _answer(path)
    finally:
        load("enter").restore_turns()


def _answer(path: str) -> None:
    """Carry out the request, and write the answer to the same folder."""
    import json

    where, name = os.path.split(path)
    with suppress(OSError), load("private").opened(where) as folder:
        # Nothing was read before this check: another user may have created the folder or the file.
        request = json.loads(folder.read(name + ".taken"))
        folder.remove(name + ".taken")
        if time.clock_gettime(time.CLOCK_MONOTONIC) > request["until"]:  # raydoctor was killed
            _release_handler()
            return
        time.sleep(_PAUSE)
        with _starting:
            try:
                answer = _started(request)
            except BaseException as error:  # no error may end the process
                answer = {"problem": f"{type(error).__name__}: {error}"[:500]}
                _release_handler()
        folder.write(name_of("answer", os.getpid()), json.dumps(answer).encode())


def _started(request: dict[str, Any]) -> dict[str, Any]:
    with _environment_kept():
        # debugpy warns on stderr about frozen modules, which would appear in the driver's log.
        os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
        debugpy = _debugpy(request["debugpy"])
        place = (request["host"], request["port"], request["seconds"])
        door = getattr(debugpy, "_raydoctor_door", None)
        was_open = door is not None and door.is_open
        if door is None:  # debugpy can listen only once
            _spare_the_list_of_packages()
            door = debugpy._raydoctor_door = _door(debugpy, *place)
        host, port = door.open(*place)
    return {"host": host, "port": port, "debugpy": debugpy.__version__, "was_open": was_open}


@contextmanager
def _environment_kept() -> Iterator[None]:
    """Keep this thread's changes of `os.environ` out of the C library's environment, and undo them.

    debugpy sets some as it is imported. setenv(3) frees the array that children of vfork(2) share, and pass
    to execve(2): `subprocess` in another thread would fail with EFAULT (3 of 80 attaches, glibc 2.36).
    """
    me, data = (os.getpid(), _thread.get_ident()), vars(os.environ)["_data"]
    # Python before 3.9 calls a method of `os.environ`, later versions the function of `os`.
    place: Any = os.environ if "putenv" in vars(os.environ) else os
    put, changed = place.putenv, {}

    def keep(name: bytes, value: bytes) -> None:
        if (
            os.getpid(),
            _thread.get_ident(),
        ) != me:  # a child forked meanwhile has this function, too
            put(name, value)
        elif name not in changed:
            changed[name] = data.get(name)

    place.putenv = keep
    try:
        yield
    finally:
        place.putenv = put
        for name, value in changed.items():
            if value is None:
                data.pop(name, None)
            else:
                data[name] = value


def _door(debugpy: Any, host: str, port: int, seconds: float) -> Any:
    """A guarded socket from which debugpy takes all its connections. Raises any error."""
    import importlib

    importlib.import_module("debugpy.server.api")
    pydevd: Any = sys.modules["pydevd"]  # imported by the previous line
    door = load("door").GuardedSocket()
    address = door.open(host, port, seconds)
    creates = pydevd.create_server_socket
    pydevd.create_server_socket = lambda host, port: door
    try:
        debugpy.listen(address, in_process_debug_adapter=True)
        debugger = pydevd.get_global_debugger()
        debugger.wait_for_server_socket_ready()
        waiting = debugger._waiting_for_connection_thread
        if waiting._server_socket is not door:
            waiting.do_kill_pydev_thread()
            raise RuntimeError(f"debugpy {debugpy.__version__} would open its port to every user")
    except BaseException:
        door.close()
        raise
    finally:
        pydevd.create_server_socket = creates
    return door


def _spare_the_list_of_packages() -> None:
    """Prevent debugpy from describing its environment in a log that is not written.

    It reads four files of each installed package (1.8.22), which is half the time until it listens.
    """
    if "DEBUGPY_LOG_DIR" in os.environ:
        return
    with suppress(ImportError):
        from debugpy.common import log

        log.describe_environment = lambda header: None


def _debugpy(folder: str) -> Any:
    """The debugpy of this process, else the one in that folder, which contains no other package."""
    try:
        import debugpy
    except ImportError:
        if not folder:
            raise
        sys.path.insert(0, folder)
        try:
            import debugpy
        finally:
            sys.path.remove(folder)
    return debugpy


def _release_handler() -> None:
    """Have the main thread restore the previous handler; an armed process keeps its handler."""
    if __name__ == "raydoctor_attached":
        load("enter").release_handler()


def _warn(message: str) -> None:
    import warnings

    warnings.warn(message, RuntimeWarning, stacklevel=3)


if __name__ == "raydoctor_attached":
    vars(threading)[load("enter").WAKE] = wake
    _in_a_thread_of_its_own(globals()["REQUEST"])

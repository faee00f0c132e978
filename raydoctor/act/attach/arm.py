"""What runs inside a process that a debugger is to enter: a signal's handler, and one thread.

Two ways lead here. `raydoctor.arm()`, called ahead (Ray's `worker_process_setup_hook`), leaves a handler of
SIGURG and nothing else, for machines where nobody may use ptrace(2). And `raydoctor attach` has a process
that nobody prepared execute this very file, which is why it imports no other part of raydoctor: the thread
loads three files beside it (`enter.py`, `private.py`, `door.py`), which import none either.

The main thread, which may be anywhere when it gets here, does next to nothing (`enter.py`): it takes a
request (a file of the same user) and starts a thread. Only that thread executes this file and imports
debugpy: an import takes long, and may fork. (An import of debugpy in the main thread under ptrace(2) broke 5
of 7 workers, Ray 2.60.0.)

The handler stays as long as the debugger does: a thread that waits in C code (a lock, a socket) gives a
debugger no chance to stop it, and a signal makes it run Python code for a moment.
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
"""Ignored where nobody handles it, and next to nobody does (signal(7))."""
FOLDERS = ("/run/user/{}/raydoctor", "/tmp/raydoctor-{}")
"""Where a user's processes and raydoctor leave each other files: `act/private.py`."""
_PAUSE = 0.05
"""Seconds until the import begins: whoever brought us here is gone by then."""

_YIELD, _SLICE = 0.5, 0.005
"""Seconds that this thread leaves to others when it is woken: to the import at most so many, then a few."""

_starting: _thread.LockType = vars(threading).setdefault(
    "_raydoctor_starting", _thread.allocate_lock()
)
"""Held while debugpy is on its way; the process's, however often it has executed this file."""
_loaded: dict[str, Any] = {}


def arm() -> None:
    """Let `raydoctor attach` into this process later on, without ptrace(2) and gdb.

    Pass it to Ray, as a function or by its name:

        ray.init(runtime_env={"worker_process_setup_hook": "raydoctor.arm"})

    It costs nothing until it is used: one handler of SIGURG, which only this user and root can send.
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
        load("enter").put_back(SIGNAL, None)
        _warn(f"raydoctor.arm: {error}: this process is not armed")


def wake(number: int, frame: Any) -> None:
    """Handle the signal. A debugger that wants this thread to stop has it stop in here."""
    # Native code in this thread may hold the GIL, and look for signals now and then (`re`).
    if _starting.locked() and _starting.acquire(timeout=_YIELD):
        _starting.release()
    time.sleep(_SLICE)
    with suppress(OSError):
        name, user = name_of("request", os.getpid()), os.geteuid()
        for folder in FOLDERS:
            path = f"{folder.format(user)}/{name}"
            load("enter").take(path, _in_a_thread_of_its_own, path)


# ------------------------------------------------------------------ what both sides know


def name_of(what: str, pid: int) -> str:
    """The file `what` of a process: `request`, `answer`, `armed`. Of a pid and its start there is but one."""
    return f"{what}-{pid}-{start_of(pid)}"


def start_of(pid: int) -> str:
    """When a process began, in ticks since the system did (proc(5), field 22). Raises OSError."""
    with open(f"/proc/{pid}/stat", "rb") as stream:
        return stream.read().rpartition(b")")[2].split()[19].decode()


def path_of(name: str) -> str:
    """The path of a program that needs nothing of raydoctor; `act/private.py` serves others as well."""
    here = os.path.dirname(__file__)
    beside = os.path.join(here, f"{name}.py")
    return beside if os.path.exists(beside) else os.path.join(os.path.dirname(here), f"{name}.py")


def load(name: str) -> Any:
    """The module of such a file; also in a process that has no raydoctor."""
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
    # Whoever asks in a thread that `threading` did not start who it is adds an entry that stays for ever.
    thread = threading.Thread(target=_listen, args=(path,), daemon=True, name="raydoctor-attach")
    # Not a thread of the program: a debugger that is there already neither shows nor halts it.
    vars(thread).update(pydev_do_not_trace=True, is_pydev_daemon_thread=True)
    try:
        thread.start()
    except BaseException:
        load("enter").take_time()
        raise


def _listen(path: str) -> None:
    try:
        _answer(path)
    finally:
        load("enter").take_time()


def _answer(path: str) -> None:
    """Do what the request says, and leave the answer beside it."""
    import json

    where, name = os.path.split(path)
    with suppress(OSError), load("private").opened(where) as folder:
        # Until here nothing has been read: another user may have made the folder, or the file.
        request = json.loads(folder.read(name + ".taken"))
        folder.remove(name + ".taken")
        if time.time() > request["until"]:  # whoever asked was killed
            _give_back()
            return
        time.sleep(_PAUSE)
        with _starting:
            try:
                answer = _started(request)
            except BaseException as error:  # the process must not end of it, whatever it is
                answer = {"problem": f"{type(error).__name__}: {error}"[:500]}
                _give_back()
        folder.write(name_of("answer", os.getpid()), json.dumps(answer).encode())


def _started(request: dict[str, Any]) -> dict[str, Any]:
    with _environment_kept():
        # It warns on stderr of modules that are frozen into Python: users would see that in the driver's log.
        os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
        debugpy = _debugpy(request["debugpy"])
        place = (request["host"], request["port"], request["seconds"])
        door = getattr(debugpy, "_raydoctor_door", None)
        was_open = door is not None and door.is_open
        if door is None:  # debugpy can listen but once
            _spare_the_list_of_packages()
            door = debugpy._raydoctor_door = _door(debugpy, *place)
        host, port = door.open(*place)
    return {"host": host, "port": port, "debugpy": debugpy.__version__, "was_open": was_open}


@contextmanager
def _environment_kept() -> Iterator[None]:
    """Let this thread set variables in `os.environ` for a while, and never in the C library's environment.

    debugpy sets some as it is imported. setenv(3) frees the array that children of vfork(2) share, and pass
    to execve(2): `subprocess` in another thread would fail with EFAULT (3 of 80 attaches, glibc 2.36).
    """
    me, data = (os.getpid(), _thread.get_ident()), vars(os.environ)["_data"]
    # Python before 3.9 calls the method of `os.environ`, later ones the function of `os`.
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
    """A door that debugpy takes its connections from, and from nothing else. Raises what goes wrong."""
    import importlib

    importlib.import_module("debugpy.server.api")
    pydevd: Any = sys.modules["pydevd"]  # it came with that
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
            raise RuntimeError(f"debugpy {debugpy.__version__} opens its port to every user")
    except BaseException:
        door.close()
        raise
    finally:
        pydevd.create_server_socket = creates
    return door


def _spare_the_list_of_packages() -> None:
    """Have debugpy not describe its environment for a log that nobody asked for.

    It reads four files of each package that is installed (1.8.22), which is half the time until it listens.
    """
    if "DEBUGPY_LOG_DIR" in os.environ:
        return
    with suppress(ImportError):
        from debugpy.common import log

        log.describe_environment = lambda header: None


def _debugpy(folder: str) -> Any:
    """This process's own debugpy, else the one of that folder, which has nothing else in it."""
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


def _give_back() -> None:
    """Have the main thread put the handler back that was there; one that was armed ahead stays."""
    if __name__ == "raydoctor_attached":
        load("enter").give_back()


def _warn(words: str) -> None:
    import warnings

    warnings.warn(words, RuntimeWarning, stacklevel=3)


if __name__ == "raydoctor_attached":
    vars(threading)[load("enter").WAKE] = wake
    _in_a_thread_of_its_own(globals()["REQUEST"])

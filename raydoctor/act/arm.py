"""What runs inside a process that a debugger is to enter: a signal's handler, and one thread.

Two ways lead here. `raydoctor.arm()`, called ahead (Ray's `worker_process_setup_hook`), leaves a handler of
SIGURG and nothing else, for machines where nobody may use ptrace(2). And `raydoctor attach` has a process
that nobody prepared execute this very file, which is why it needs no other part of raydoctor.

The main thread, which may be anywhere when it gets here, does next to nothing: it takes a request (a
file of the same user) and starts a thread. Only that thread imports debugpy: an import takes long, and
may fork. (A whole import in the main thread under ptrace(2) broke 5 of 7 workers, Ray 2.60.0.)

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
from contextlib import suppress
from typing import Any

SIGNAL = int(getattr(signal, "SIGURG", 0))
"""Ignored where nobody handles it, and next to nobody does (signal(7))."""
_PAUSE = 0.05
"""Seconds until the import begins: whoever brought us here is gone by then."""

_YIELD, _SLICE = 0.5, 0.005
"""Seconds that this thread leaves to others when it is woken: to the import at most so many, then a few."""

_HURRY = 1e-4
"""Seconds until a waiting thread asks for the GIL, while debugpy is imported (Python's own: 5 ms)."""
_INTERVAL, _UNHANDLED = "_raydoctor_interval", "_raydoctor_unhandled"
"""Of the process, however often it has executed this file: the interval that was set before, and the request
that a thread of its own took for the main thread, which has no handler yet."""

_starting: _thread.LockType = vars(threading).setdefault(
    "_raydoctor_starting", _thread.allocate_lock()
)
"""Held while debugpy is on its way; the process's, however often it has executed this file."""
_previous: Any = None
"""The handler that was there before."""
_has_failed = False


def arm() -> None:
    """Let `raydoctor attach` into this process later on, without ptrace(2) and gdb.

    Pass it to Ray, as a function or by its name:

        ray.init(runtime_env={"worker_process_setup_hook": "raydoctor.arm"})

    It costs nothing until it is used: one handler of SIGURG, which only this user and root can send.
    """
    folder = folder_of(os.geteuid())
    if not _handle():
        _warn("raydoctor.arm: SIGURG cannot be handled here, this process is not armed")
        return
    try:
        make(folder)
        forget_the_dead(folder)
        write(path_of("armed", os.getpid(), folder), {})
    except OSError as error:
        signal.signal(SIGNAL, _previous)
        _warn(f"raydoctor.arm: {error}: this process is not armed")


def wake(number: int, frame: Any) -> None:
    """Handle the signal. A debugger that wants this thread to stop has it stop in here."""
    if _has_failed:
        signal.signal(SIGNAL, _previous)
    # Native code in this thread may hold the GIL, and look for signals now and then (`re`).
    if _starting.locked() and _starting.acquire(timeout=_YIELD):
        _starting.release()
    time.sleep(_SLICE)
    with suppress(OSError):
        _take(path_of("request", os.getpid(), folder_of(os.geteuid())))


# ------------------------------------------------------------------ the folder where both sides meet


def folder_of(user: int) -> str:
    """Where a user's processes and `raydoctor attach` leave each other files."""
    # Not the folder of TMPDIR: a job may set that, and both sides have to name the same.
    return f"/tmp/raydoctor-{user}"


def make(folder: str, user: int | None = None) -> None:
    """Create that folder if need be. Raises OSError where it is not that user's alone."""
    owner = os.geteuid() if user is None else user
    try:
        os.mkdir(folder, 0o700)
        if owner != os.geteuid():
            os.chown(folder, owner, -1)
    except FileExistsError:
        pass
    found = os.lstat(folder)
    if found.st_uid != owner or found.st_mode & 0o170077 != 0o040000:
        raise PermissionError(f"{folder} is not a folder of user {owner} alone")


def path_of(what: str, pid: int, folder: str) -> str:
    """The file `what` of a process: `request`, `answer`, `armed`. Of a pid and its start there is but one."""
    return os.path.join(folder, f"{what}-{pid}-{start_of(pid)}")


def start_of(pid: int) -> str:
    """When a process began, in ticks since the system did (proc(5), field 22). Raises OSError."""
    with open(f"/proc/{pid}/stat", "rb") as stream:
        return stream.read().rpartition(b")")[2].split()[19].decode()


def write(path: str, told: dict[str, Any], user: int | None = None) -> None:
    """Write a file of JSON that only that user can read, at once as a whole. Raises OSError."""
    import json

    leave(path, json.dumps(told).encode(), user)


def leave(path: str, data: bytes, user: int | None = None) -> None:
    """Write any file that only that user can read, at once as a whole. Raises OSError."""
    fresh = f"{path}.{os.getpid()}.new"
    # O_EXCL follows no link: we may be root in a folder of somebody else.
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        os.write(file, data)
        if user is not None and user != os.geteuid():
            os.fchown(file, user, -1)
    finally:
        os.close(file)
    os.rename(fresh, path)


def forget_the_dead(folder: str) -> None:
    """Remove the files of processes that have ended."""
    for name in os.listdir(folder)[:1000]:
        pid = name.split("-")[1] if name.count("-") == 2 else ""
        if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            with suppress(OSError):  # another worker did
                os.unlink(os.path.join(folder, name))


# ------------------------------------------------------------------ in the main thread


def _handle() -> bool:
    """Take the signal, unless somebody else has."""
    global _previous  # noqa: PLW0603 - a signal's handler is the process's, and so is what it replaced
    if not SIGNAL or not _is_main():
        return False
    before = signal.getsignal(SIGNAL)
    if before not in (signal.SIG_DFL, signal.SIG_IGN):
        return getattr(before, "__name__", "") == "wake"  # ours, of an earlier call
    _previous = before
    signal.signal(SIGNAL, wake)
    return True


def _take(path: str) -> bool:
    """Take that request, if it is there; whoever made it takes it back by deleting it."""
    try:
        os.rename(path, path + ".taken")
    except OSError:
        return False
    _hurry()
    try:
        # Not Thread.start(): this thread may hold the lock that it needs.
        _thread.start_new_thread(_in_a_thread_of_its_own, (path,))
    except (RuntimeError, MemoryError):
        # It may not have one more thread; the code that we interrupt goes on all the same.
        _take_time()
        return False
    return True


def attached(path: str) -> None:
    """What `raydoctor attach` has a process execute: nothing if the request is gone by now.

    Where the main thread does not come to it, another thread executes this; the main one catches up later.
    """
    shared, is_main = vars(threading), _is_main()
    if not is_main:
        shared[_UNHANDLED] = path  # before it is taken: the main thread may come to it at once
    is_taken = _take(path)
    if is_main and (is_taken or shared.get(_UNHANDLED) == path):
        _handle()
    if not is_taken:
        shared.pop(_UNHANDLED, None)


def _is_main() -> bool:
    # current_thread() would add an entry for a thread that `threading` did not start, which stays for ever.
    return _thread.get_ident() == threading.main_thread().ident


def _hurry() -> None:
    """Let threads take turns faster for a while.

    An import gives the GIL back thousands of times, and waits each time for a turn of every busy thread: with
    16 of them a minute instead of seconds.
    """
    shared = vars(threading)
    if _INTERVAL not in shared:
        shared[_INTERVAL] = sys.getswitchinterval()
        os.register_at_fork(after_in_child=_forked)
    sys.setswitchinterval(_HURRY)


def _take_time() -> None:
    """Take turns as before."""
    interval = vars(threading).pop(_INTERVAL, None)
    if interval is not None:
        sys.setswitchinterval(interval)


def _forked() -> None:
    """In a child that was forked meanwhile: nothing is on its way there."""
    if _INTERVAL in vars(threading):
        _take_time()
        vars(threading)["_raydoctor_starting"] = _thread.allocate_lock()


# ------------------------------------------------------------------ in a thread


def _in_a_thread_of_its_own(path: str) -> None:
    # Whoever asks in a thread that `threading` did not start who it is adds an entry that stays for ever.
    thread = threading.Thread(target=_listen, args=(path,), daemon=True, name="raydoctor-attach")
    try:
        thread.start()
    except BaseException:
        _take_time()
        raise


def _listen(path: str) -> None:
    try:
        _answer(path)
    finally:
        _take_time()


def _answer(path: str) -> None:
    """Listen as the request says, and tell where."""
    import json

    answer: dict[str, Any] = {}
    with open(path + ".taken", encoding="utf-8") as stream:
        request = json.load(stream)
    os.unlink(path + ".taken")
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
    write(request["answer"], answer)


def _started(request: dict[str, Any]) -> dict[str, Any]:
    # It warns on stderr of modules that are frozen into Python: users would see that in the driver's log.
    quiet = "PYDEVD_DISABLE_FILE_VALIDATION"
    was_set = quiet in os.environ
    os.environ.setdefault(quiet, "1")
    try:
        debugpy = _debugpy(request["debugpy"])
        told = getattr(debugpy, "_raydoctor", None)
        if told is None:  # it can listen but once
            port = request["port"] or _free_port(request["host"])
            _spare_the_list_of_packages()
            debugpy.listen((request["host"], port), in_process_debug_adapter=True)
            told = {"host": request["host"], "port": port, "debugpy": debugpy.__version__}
            debugpy._raydoctor = told
    finally:
        if not was_set:
            os.environ.pop(quiet, None)
    return dict(told)


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


def _free_port(host: str) -> int:
    """A port that nobody has: most versions of debugpy do not tell which one they were given."""
    import socket

    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _give_back() -> None:
    """Have the main thread put the handler back that was there; one that was armed ahead stays."""
    global _has_failed  # noqa: PLW0603 - as above
    vars(threading).pop(_UNHANDLED, None)
    if __name__ == "raydoctor_attached" and _previous is not None:
        _has_failed = True
        signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)


def _warn(words: str) -> None:
    import warnings

    warnings.warn(words, RuntimeWarning, stacklevel=3)


if __name__ == "raydoctor_attached":
    attached(globals()["REQUEST"])

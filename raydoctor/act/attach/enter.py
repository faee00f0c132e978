"""What the main thread of a process does for a debugger: take a request, start a thread, handle a signal.

`raydoctor attach` has the main thread execute this file between two steps of its own code (`handshake.py`);
`arm.py` loads it as well. Each release of the GIL costs the main thread a turn of every busy thread, and an
import from a file releases it dozens of times: with 64 threads, a main thread that imported `typing` stood
still for more than 15 s. So this file imports only modules that Python has in memory, and makes one system
call, a rename, after it has shortened the turns.
"""

import _signal  # type: ignore[import-not-found]
import _thread
import posix
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

STATE = vars(threading)
"""Keeps the state of the process, which may execute this file several times."""
INTERVAL, PREVIOUS, UNHANDLED = "_raydoctor_interval", "_raydoctor_previous", "_raydoctor_unhandled"
"""The interval and the handler that were set before, and the request that another thread took for the main
thread, which has yet to install the handler."""
WAKE, FORKED = "_raydoctor_wake", "_raydoctor_forked"
"""What handles the signal once `arm.py` is loaded, and what runs in forked children."""
SHORTEST, PER_THREAD = 1e-4, 1e-5
"""Seconds until a waiting thread requests the GIL, while debugpy is imported (Python's own: 5 ms).

Each waiting thread wakes up as often. With 64 threads and 0.1 ms this alone occupies two processors, so that
each release of the GIL costs 1.6 s; with 0.3 ms it costs 2 ms, with 5 ms 110 ms (Python 3.11 measured).
"""


def hurry() -> bool:
    """Shorten the turns of all threads; False where they are short already.

    An import releases the GIL thousands of times, and waits each time for a turn of every busy thread: with
    16 of them a minute instead of seconds.
    """
    if INTERVAL in STATE:
        return False
    if FORKED not in STATE:
        STATE[FORKED] = forked
        posix.register_at_fork(after_in_child=forked)
    STATE[INTERVAL] = sys.getswitchinterval()
    sys.setswitchinterval(max(SHORTEST, PER_THREAD * _thread._count()))
    return True


def take_time() -> None:
    """Take turns as before."""
    interval = STATE.pop(INTERVAL, None)
    if interval is not None:
        sys.setswitchinterval(interval)


def forked() -> None:
    """In a child that was forked meanwhile: no thread of ours exists there."""
    if INTERVAL in STATE:
        take_time()
        STATE["_raydoctor_starting"] = _thread.allocate_lock()


def is_main() -> bool:
    """Whether this is the main thread."""
    # current_thread() would add an entry for a thread that `threading` did not start, which stays for ever.
    return _thread.get_ident() == threading.main_thread().ident


def take(path: str, run: "Callable[..., object]", *arguments: str) -> bool:
    """Take that request, if it is there, and start a thread; raydoctor withdraws a request by deleting it."""
    is_hurried, is_taken = hurry(), False
    try:
        posix.rename(path, path + ".taken")
        # Not Thread.start(): this thread may hold the lock that it needs. Nor debugpy's, which would add an
        # entry to the list of threads that stays for ever.
        start = getattr(_thread, "_original_start_new_thread", _thread.start_new_thread)
        start(run, arguments)
        is_taken = True
    except (OSError, RuntimeError, MemoryError):
        pass  # it was withdrawn, or no thread can be started: the code that we interrupt goes on all the same
    finally:
        if is_hurried and not is_taken:
            take_time()
    return is_taken


def handle(handler: "Callable[..., object]") -> bool:
    """Handle the signal, unless other code than raydoctor's does; whether raydoctor does."""
    before = _signal.getsignal(_signal.SIGURG)
    if before in (_signal.SIG_DFL, _signal.SIG_IGN):
        STATE[PREVIOUS] = before
        _signal.signal(_signal.SIGURG, handler)
        return True
    return getattr(before, "__name__", "") == "wake"  # of an earlier call


def wake(number: int, frame: "Any") -> None:
    """Handle the signal as `arm.py` does, once that is loaded."""
    if WAKE in STATE:
        STATE[WAKE](number, frame)


def put_back(number: int, frame: "Any") -> None:
    """Handle the signal for the last time."""
    _signal.signal(number, STATE.pop(PREVIOUS, _signal.SIG_DFL))


def give_back() -> None:
    """Have the main thread put the handler back that was there; one that was armed ahead stays."""
    STATE.pop(UNHANDLED, None)
    if PREVIOUS in STATE:
        STATE[WAKE] = put_back
        _signal.pthread_kill(threading.main_thread().ident or 0, _signal.SIGURG)


def load_arm(path: str, program: str) -> None:
    """Execute `arm.py`, which does what the request says, in a thread of its own."""
    space = {"__name__": "raydoctor_attached", "__file__": program, "REQUEST": path}
    try:
        with open(program, "rb") as stream:
            exec(compile(stream.read(), program, "exec"), space)
    except BaseException:  # the process must not notice
        take_time()
        give_back()


def enter(path: str, program: str) -> bool:
    """Take the request up, if it is not withdrawn; whether it was not.

    Where the main thread does not come to it, another thread executes this; the main one catches up later.
    """
    if not is_main():
        STATE[UNHANDLED] = path  # before it is taken: the main thread may come to it at once
    is_taken = take(path, load_arm, path, program)
    if is_main() and (is_taken or STATE.get(UNHANDLED) == path):
        handle(wake)
    if not is_taken:
        STATE.pop(UNHANDLED, None)
    return is_taken

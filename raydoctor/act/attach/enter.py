"""The main thread's part of attaching a debugger: take a request, start a thread, handle a signal.

`raydoctor attach` makes the main thread execute this file between two steps of its own code (`handshake.py`);
`arm.py` loads it as well. After each release of the GIL, the main thread waits for one turn of every busy
thread, and an import from a file releases the GIL dozens of times: with 64 threads, an import of `typing`
blocked the main thread for more than 15 s. Therefore this file imports only modules that are already loaded,
and makes a single system call, a rename, after it has shortened the turns.
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
"""State of the process, which may execute this file several times."""
INTERVAL, PREVIOUS, UNHANDLED = "_raydoctor_interval", "_raydoctor_previous", "_raydoctor_unhandled"
"""Keys of the previous switch interval, the previous handler, and the request that another thread took
although only the main thread can install the handler."""
WAKE, FORKED = "_raydoctor_wake", "_raydoctor_forked"
"""Keys of the function that handles the signal once `arm.py` is loaded, and of the one for forked
children."""
SHORTEST, PER_THREAD = 1e-4, 1e-5
"""Seconds until a waiting thread requests the GIL, while debugpy is imported (Python's default: 5 ms).

Each waiting thread wakes up at this interval. With 64 threads and 0.1 ms, that alone occupies two processors,
and each release of the GIL takes 1.6 s; with 0.3 ms it takes 2 ms, with 5 ms 110 ms (Python 3.11 measured).
"""


def shorten_turns() -> bool:
    """Shorten the turns of all threads; False if they are already short.

    An import releases the GIL thousands of times, and each time waits for a turn of every busy thread: with
    16 such threads, it takes a minute instead of seconds.
    """
    if INTERVAL in STATE:
        return False
    if FORKED not in STATE:
        STATE[FORKED] = forked
        posix.register_at_fork(after_in_child=forked)
    STATE[INTERVAL] = sys.getswitchinterval()
    sys.setswitchinterval(max(SHORTEST, PER_THREAD * _thread._count()))
    return True


def restore_turns() -> None:
    """Restore the previous length of turns."""
    interval = STATE.pop(INTERVAL, None)
    if interval is not None:
        sys.setswitchinterval(interval)


def forked() -> None:
    """Reset the state in a child that was forked meanwhile, as it has none of raydoctor's threads."""
    if INTERVAL in STATE:
        restore_turns()
        STATE["_raydoctor_starting"] = _thread.allocate_lock()


def is_main() -> bool:
    """Whether this is the main thread."""
    # current_thread() would add a permanent entry for a thread that `threading` did not start.
    return _thread.get_ident() == threading.main_thread().ident


def take(path: str, run: "Callable[..., object]", *arguments: str) -> bool:
    """Take a request, if it exists, and start a thread; raydoctor withdraws a request by deleting it."""
    has_shortened, is_taken = shorten_turns(), False
    try:
        posix.rename(path, path + ".taken")
        # Thread.start() needs a lock that this thread may hold; debugpy's replacement would add a permanent
        # entry to the list of threads.
        start = getattr(_thread, "_original_start_new_thread", _thread.start_new_thread)
        start(run, arguments)
        is_taken = True
    except (OSError, RuntimeError, MemoryError):
        pass  # it was withdrawn, or no thread can be started: the interrupted code must continue
    finally:
        if has_shortened and not is_taken:
            restore_turns()
    return is_taken


def handle(handler: "Callable[..., object]") -> bool:
    """Install the handler, unless another one is installed; returns whether raydoctor handles the signal."""
    before = _signal.getsignal(_signal.SIGURG)
    if before in (_signal.SIG_DFL, _signal.SIG_IGN):
        STATE[PREVIOUS] = before
        _signal.signal(_signal.SIGURG, handler)
        return True
    return getattr(before, "__name__", "") == "wake"  # from an earlier call


def wake(number: int, frame: "Any") -> None:
    """Handle the signal by the function of `arm.py`, once that is loaded."""
    if WAKE in STATE:
        STATE[WAKE](number, frame)


def restore_handler(number: int, frame: "Any") -> None:
    """Handle the signal for the last time, and restore the previous handler."""
    _signal.signal(number, STATE.pop(PREVIOUS, _signal.SIG_DFL))


def release_handler() -> None:
    """Make the main thread restore the previous handler; the handler of an armed process stays."""
    STATE.pop(UNHANDLED, None)
    if PREVIOUS in STATE:
        STATE[WAKE] = restore_handler
        _signal.pthread_kill(threading.main_thread().ident or 0, _signal.SIGURG)


def load_arm(path: str, program: str) -> None:
    """Execute `arm.py`, which carries out the request, in a separate thread."""
    space = {"__name__": "raydoctor_attached", "__file__": program, "REQUEST": path}
    try:
        with open(program, "rb") as stream:
            exec(compile(stream.read(), program, "exec"), space)
    except BaseException:  # an error must not affect the process
        restore_turns()
        release_handler()


def enter(path: str, program: str) -> bool:
    """Take the request; returns whether it had not been withdrawn.

    If the main thread cannot execute this, another thread does, and the main thread installs the handler
    later.
    """
    if not is_main():
        STATE[UNHANDLED] = path  # before it is taken: the main thread may execute this at any time
    is_taken = take(path, load_arm, path, program)
    if is_main() and (is_taken or STATE.get(UNHANDLED) == path):
        handle(wake)
    if not is_taken:
        STATE.pop(UNHANDLED, None)
    return is_taken

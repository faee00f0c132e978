"""raydoctor: from a broken Ray job to its cause, the evidence and the fix.

The same from Python as on the command line:

    import raydoctor

    report = raydoctor.diagnose("/tmp/ray/session_latest")
    print(report)                                          # as on the command line; a notebook shows it too
    for diagnosis in report.roots:
        print(diagnosis.rule, diagnosis.headline)

And for the code that launches tasks (each has its page: `help(raydoctor.poll)`):

    for result in raydoctor.poll(refs, timeout=100): ...   # no task runs longer
    raydoctor.cancel(ref)                                  # with what it started

    @ray.remote
    @raydoctor.tracked                                     # its subprocesses end with it
    def mesh(path): ...

    ray.init(runtime_env={"worker_process_setup_hook": "raydoctor.arm"})   # `raydoctor attach` without ptrace

Importing this package loads nothing but itself; what it offers loads what it needs when it is first used.
`diagnose` never loads Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raydoctor.act.attach.arm import arm as arm
    from raydoctor.act.cancel.cancel import cancel as cancel
    from raydoctor.act.poll.poll import as_completed as as_completed
    from raydoctor.act.poll.poll import poll as poll
    from raydoctor.act.poll.results import Result as Result
    from raydoctor.act.poll.results import TaskTimeoutError as TaskTimeoutError
    from raydoctor.act.tracking.tracking import tracked as tracked
    from raydoctor.act.tracking.tracking import tracking as tracking
    from raydoctor.model.errors import RaydoctorError as RaydoctorError
    from raydoctor.model.version import __version__ as __version__
    from raydoctor.render.printed import PrintedReport as Report

__all__ = [
    "RaydoctorError",
    "Report",
    "Result",
    "TaskTimeoutError",
    "__version__",
    "arm",
    "as_completed",
    "cancel",
    "diagnose",
    "poll",
    "tracked",
    "tracking",
]
_LATER = {
    "RaydoctorError": "raydoctor.model.errors:RaydoctorError",
    "Report": "raydoctor.render.printed:PrintedReport",
    "Result": "raydoctor.act.poll.results:Result",
    "TaskTimeoutError": "raydoctor.act.poll.results:TaskTimeoutError",
    "__version__": "raydoctor.model.version:__version__",
    "arm": "raydoctor.act.attach.arm:arm",
    "as_completed": "raydoctor.act.poll.poll:as_completed",
    "cancel": "raydoctor.act.cancel.cancel:cancel",
    "load_ipython_extension": "raydoctor.integrations.notebook:load",
    "poll": "raydoctor.act.poll.poll:poll",
    "tracked": "raydoctor.act.tracking.tracking:tracked",
    "tracking": "raydoctor.act.tracking.tracking:tracking",
}
"""What is loaded when it is asked for, and where it is."""


def diagnose(  # noqa: PLR0913 - each has a default
    path: str | None = None,
    *,
    driver_log: str | None = None,
    text: str | None = None,
    since: float | None = None,
    until: float | None = None,
    rules: str | None = None,
) -> Report:
    """Diagnose a capture and return what was found; nothing is printed, nothing is changed.

    `path` is any layout that the command line takes: a session folder, its `logs/`, a tree of several nodes,
    an archive, or one log file; None is the cluster that runs on this machine, live (its latest session, if
    none runs), or the driver's output alone. `driver_log` adds a file with the driver's output, `text` such
    output itself, as pasted from a console. `since` and `until` (epoch seconds) keep the incidents that touch
    that span. `rules` is a folder with further rules, one a file.

    `print(report)` and `report.show()` print it as the command line does; a notebook shows it by itself.

    Raises `raydoctor.RaydoctorError` where there is nothing that can be read, or a rule of
    that folder cannot be loaded.
    """
    from raydoctor.capture.open import open_capture
    from raydoctor.diagnosis.engine import run, signals_of
    from raydoctor.diagnosis.plugins import catalogue
    from raydoctor.render.printed import printed

    known = catalogue(rules)
    if path is None and driver_log is None and text is None:
        from raydoctor.observe.live import CollectOptions, collect

        capture = collect(CollectOptions(since=since, signals=lambda: signals_of(known))).capture()
    else:
        capture = open_capture(path, driver_log, text)
    with capture:
        return printed(run(capture, since=since, until=until, catalogue=known))


def __getattr__(name: str) -> object:
    """Load what is offered when it is asked for (PEP 562)."""
    if place := _LATER.get(name):
        from importlib import import_module

        module, _, own_name = place.partition(":")
        found = getattr(import_module(module), own_name)
        globals()[name] = found
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

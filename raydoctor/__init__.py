"""raydoctor: from a broken Ray job to its cause, the evidence and the fix.

The same from Python as on the command line:

    import raydoctor

    report = raydoctor.diagnose("/tmp/ray/session_latest")
    for diagnosis in report.roots:
        print(diagnosis.rule, diagnosis.headline)

Importing this package loads nothing but itself; `diagnose` and `Report` load what they need when
they are first used, and never Ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raydoctor.model import Report as Report

__version__ = "0.1.0"
__all__ = ["Report", "__version__", "diagnose"]


def diagnose(
    path: str | None = None,
    *,
    driver_log: str | None = None,
    since: float | None = None,
    until: float | None = None,
    rules: str | None = None,
) -> Report:
    """Diagnose a capture and return what was found; nothing is printed, nothing is changed.

    `path` is any layout that the command line takes: a session folder, its `logs/`, a tree of
    several nodes, an archive, or one log file; None is the cluster that runs on this machine, live
    (its latest session, if none runs), or the driver's output alone. `driver_log`
    adds a file with the driver's output. `since` and `until` (epoch seconds) keep the incidents
    that touch that span. `rules` is a folder with further rules, one a file.

    Raises `raydoctor.errors.RaydoctorError` where there is nothing that can be read, or a rule of
    that folder cannot be loaded.
    """
    from raydoctor.capture.open import open_capture
    from raydoctor.diagnosis import run, signals_of
    from raydoctor.plugins import catalogue

    known = catalogue(rules)
    if path is None and driver_log is None:
        from raydoctor.collect.live import Wishes, collect

        capture = collect(Wishes(since=since, signals=lambda: signals_of(known))).capture()
    else:
        capture = open_capture(path, driver_log)
    with capture:
        return run(capture, since=since, until=until, catalogue=known)


def __getattr__(name: str) -> object:
    """Load `Report` when it is asked for (PEP 562)."""
    if name == "Report":
        from raydoctor.model import Report

        return Report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

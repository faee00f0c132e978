"""Reports as files: written completely or not at all, and shown in a browser."""

from __future__ import annotations

import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from raydoctor.capture import outputs, owners
from raydoctor.capture.temporary import done_if_ended
from raydoctor.model.errors import RaydoctorError

_OTHER_FILE = "Choose another file with -o."


def write_atomically(path: str, text: str, hint: str = _OTHER_FILE) -> None:
    """Write text to a file, in one step for other processes.

    Raises RaydoctorError if the file cannot be written; an existing file then stays unchanged.
    """
    data = text.encode("utf-8", "backslashreplace")
    try:
        with outputs.place(path) as place:  # a link is kept, and its target is replaced
            found = place.status()
            if found is not None and not stat.S_ISREG(found.st_mode):
                # A pipe or device (`-o /dev/stderr`) cannot be replaced.
                with open(place.open(os.O_WRONLY), "wb") as out:
                    out.write(data)
                return
            with place.replaced(place.mode()) as out:
                out.write(data)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise RaydoctorError(f"cannot write {path}: {why}", hint) from None


# ---------------------------------------------------------------- the browser

_KEPT = 10
"""Pages of `--open`; older ones are removed."""
_PAGE = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-\w+\.html")


@contextmanager
def new_page() -> Iterator[str]:
    """A new file `raydoctor/reports/TIME.html` in the user's state folder, which only that user can read.

    It outlives this process, because the browser reads it later; the last ten are kept. A page that the block
    leaves empty is removed, and then no older one is. Raises RaydoctorError if it cannot be created.
    """
    path = _created_page()
    with done_if_ended(lambda: _settle(path)):
        try:
            yield path
        finally:
            _settle(path)


def _created_page() -> str:
    """An empty page. Raises RaydoctorError."""
    import time

    folder = os.path.join(owners.state_folder(), "reports")
    prefix = time.strftime("%Y-%m-%dT%H-%M-%S-")
    try:
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            _require_own(os.path.dirname(folder), folder)
            handle, path = tempfile.mkstemp(".html", prefix, folder)
        except OSError:  # the home folder is read-only, or another user's
            folder = tempfile.mkdtemp(prefix="raydoctor-report-", dir=owners.temporary_parent())
            handle, path = tempfile.mkstemp(".html", prefix, folder)
    except OSError as error:
        raise RaydoctorError(
            f"cannot create a file for the report: {error.strerror or error}",
            "Name a file with -o, or set TMPDIR to a writable folder.",
        ) from None
    os.close(handle)
    return path


def _settle(path: str) -> None:
    """Remove a page that was not written, or else the oldest pages in its folder."""
    folder = os.path.dirname(path)
    with suppress(OSError):
        if os.path.getsize(path):
            others = set(os.listdir(folder)) - {os.path.basename(path)}
            for name in sorted(filter(_PAGE.fullmatch, others))[: 1 - _KEPT]:
                os.unlink(os.path.join(folder, name))
            return
        os.unlink(path)
        os.rmdir(folder)  # fails if it has other pages


def _require_own(*folders: str) -> None:
    """Raise PermissionError for a link and for a folder of another user, as in a state folder below /tmp."""
    for folder in folders:
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners.trusted():
            raise PermissionError(0, "is a link, or belongs to another user", folder)


def show(path: str) -> str:
    """Open a page in the user's browser. Returns why that is not possible here, or an empty text."""
    if not _has_screen():
        return "no screen for a browser here: copy the file to a machine with one"
    import webbrowser
    from pathlib import Path

    is_shown = webbrowser.open(Path(os.path.abspath(path)).as_uri())
    return "" if is_shown else "no browser was found: open the file yourself"


def _has_screen() -> bool:
    """Whether a graphical browser of this user can appear.

    A browser in the terminal would take it over, and one that `sudo` starts would run as root.
    """
    if os.environ.get("SUDO_UID"):
        return False
    return sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))

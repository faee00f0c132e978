"""Writing files completely or not at all."""

from __future__ import annotations

import os
import tempfile

from raydoctor.model.errors import RaydoctorError


def write_atomically(path: str, text: str) -> None:
    """Write text to a file, in one step for other processes.

    Raises RaydoctorError if the file cannot be written; an existing file then stays unchanged.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        _write_into(path, text)
        return
    # A link is kept, and its target is replaced.
    target = os.path.realpath(path)
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(
            dir=os.path.dirname(target), prefix=f".{os.path.basename(target)}."
        )
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as out:
            out.write(text)
        os.chmod(temporary, _mode_of(target))
        os.replace(temporary, target)
    except (OSError, ValueError) as error:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        raise _refused(path, error) from None


def _write_into(path: str, text: str) -> None:
    """Write to a pipe or device (`-o /dev/stderr`), which cannot be replaced."""
    try:
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as out:
            out.write(text)
    except OSError as error:
        raise _refused(path, error) from None


def _mode_of(path: str) -> int:
    """The mode of the replaced file, or the default mode of a new one."""
    try:
        return os.stat(path).st_mode & 0o777
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


def _refused(path: str, error: Exception) -> RaydoctorError:
    why = getattr(error, "strerror", None) or str(error)
    return RaydoctorError(f"cannot write {path}: {why}", "Choose another file with -o.")

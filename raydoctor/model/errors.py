"""The one exception that the command line turns into a message instead of a traceback, and its causes."""

from __future__ import annotations

import errno

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a write to a full disk, beyond a quota and beyond a limit of the file's size."""


class RaydoctorError(Exception):
    """An error that the user can fix: `message` says what failed and why, `hint` what to do next."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

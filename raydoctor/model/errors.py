"""The one exception that the command line turns into a message instead of a traceback."""

from __future__ import annotations


class RaydoctorError(Exception):
    """An error that the user can fix: `message` says what failed and why, `hint` what to do next."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

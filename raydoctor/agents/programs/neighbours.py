"""Prints lines of one file of a capture, redacted; a process of its own. JSON in, JSON out.

The file is looked up among those that the capture has; its name is never used as a path.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

from raydoctor.capture.open import Capture, open_capture
from raydoctor.model.errors import RaydoctorError
from raydoctor.redact import Redactor

_CONTEXT = 200
"""Lines on both sides that the redactor sees: a key may begin above."""
_LONGEST = 16_384
"""Bytes of a line that are shown."""
_CHUNK = 1 << 20


def main() -> int:
    """Read a request from standard input, and print the lines."""
    request = json.load(sys.stdin)
    try:
        reply = _reply(request)
    except RaydoctorError as error:
        print(f"raydoctor: {error.message}\n  {error.hint}", file=sys.stderr)
        return 2
    json.dump(reply, sys.stdout)
    return 0


def _reply(request: dict[str, Any]) -> dict[str, Any]:
    path, driver_log = request["path"] or None, request["driver_log"] or None
    with open_capture(path, driver_log, session=request["session"]) as capture:
        if capture.kind == "session":
            from raydoctor.observe.processes import driver_output

            driver_output.add_kept(capture, capture.path)
        place = _place(capture, request["file"])
        if not place:
            return {"lines": None}
        lines = _lines(place, request["line"], request["neighbours"])
        redacted = Redactor(capture.secrets).redact("\n".join(text for _, text in lines))
    shown = zip((number for number, _ in lines), redacted.split("\n"), strict=True)
    near = request["neighbours"]
    return {"lines": [each for each in shown if abs(each[0] - request["line"]) <= near]}


def _place(capture: Capture, name: str) -> str:
    """Where the bytes of a source are, as reports count its lines; empty if the capture has none."""
    for (path, _), (_, file) in capture.originals.items():
        if path == name:
            return file
    return next((file for source, file in capture.files.items() if source.path == name), "")


def _lines(file: str, target: int, near: int) -> list[tuple[int, str]]:
    """The lines around one, with their numbers, and further ones for the redactor."""
    with open(file, "rb") as stream:
        kept = deque(
            islice(_numbered(stream), target + near + _CONTEXT), maxlen=2 * (near + _CONTEXT) + 1
        )
    return [(n, raw.decode("utf-8", "replace").replace("\n", "").rstrip("\r")) for n, raw in kept]


def _numbered(stream: Any) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers; of a long one only its beginning, whatever its length."""
    number = 0
    while line := stream.readline(_CHUNK):
        number += 1
        yield number, line[:_LONGEST]
        while len(line) == _CHUNK and not line.endswith(b"\n"):
            line = stream.readline(_CHUNK)


if __name__ == "__main__":
    sys.exit(main())

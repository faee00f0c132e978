"""Files of pods, or of a job of Slurm, in a private folder -> a capture, and an archive of it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raydoctor.capture import archive
from raydoctor.capture.budget import Budget
from raydoctor.capture.open import Capture, open_capture
from raydoctor.capture.temporary import private_folder
from raydoctor.model.errors import RaydoctorError
from raydoctor.model.values import Gap, Source
from raydoctor.observe.bundle import Bundle
from raydoctor.observe.processes.redact import Redactor


@dataclass(slots=True)
class Gathered:
    """A private folder with the files of a capture, and what is missing in it."""

    shown: str
    """What a report names as its input."""
    folder: Path
    redactor: Redactor
    gaps: list[Gap] = field(default_factory=list)
    sessions: dict[str, int] = field(default_factory=dict)
    """Folders of sessions on this machine, which are read where they are, and the user who owns each."""
    opened: list[Capture] = field(default_factory=list)

    def place(self, *parts: str) -> Path:
        """The path of a file to write. The parts must be checked: they are single names."""
        folder = self.folder / "capture"
        for part in parts[:-1]:
            folder /= part
            # Never with parents: a signal may have removed the private folder.
            folder.mkdir(exist_ok=True)
        return folder / parts[-1]

    def write_json(self, name: str, value: Any) -> None:
        """Write a value without its secrets, one member a line, so that evidence has a line."""
        clean = self.redactor.redact_json(value)
        self.place(name).write_text(json.dumps(clean, indent=1) + "\n", "utf-8", "backslashreplace")

    def unpack(self, packed: Path, what: str, *parts: str) -> None:
        """Unpack an archive of logs into a folder of the capture. What is refused or lost is a gap.

        `what`: the archive's content; a known gap of it is not repeated. Raises RaydoctorError if it is not
        an archive.
        """
        into = self.place(*parts)
        into.mkdir(exist_ok=True)
        budget = Budget()
        budget.limit_to_room(into)
        known = {gap.what for gap in self.gaps}
        found = archive.unpack(packed, into, budget, what).gaps
        self.gaps += [gap for gap in found if gap.what not in known]

    def capture(self) -> Capture:
        """The capture; it is valid as long as the folder."""
        # Secrets of the objects are replaced in the logs as well.
        self.redactor.learn(self.redactor.secrets)
        try:
            capture = open_capture(str(self.folder / "capture"))
        except RaydoctorError as error:
            why = "; ".join(f"{gap.what}: {gap.why}" for gap in self.gaps[:3]) or error.message
            raise RaydoctorError(f"nothing was collected of {self.shown}: {why}") from None
        capture.path = self.shown
        capture.gaps += self.gaps
        for folder, owner in self.sessions.items():
            self._add_session(capture, folder, owner)
        capture.secrets += self.redactor.secrets
        return capture

    def _add_session(self, capture: Capture, folder: str, owner: int) -> None:
        try:
            session = open_capture(folder, owner=owner)
        except RaydoctorError as error:
            capture.gaps.append(Gap(folder, error.message, error.hint))
            return
        self.opened.append(session)
        name = os.path.basename(folder)

        def placed(source: Source) -> Source:
            return replace(source, path=f"{name}/{source.path}")

        capture.files.update((placed(source), file) for source, file in session.files.items())
        capture.originals.update(
            ((f"{name}/{path}", pid), (placed(source), file))
            for (path, pid), (source, file) in session.originals.items()
        )
        capture.gaps += session.gaps

    def bundle(self, capture: Capture, about: Mapping[str, Any]) -> Bundle:
        """The content of an archive of the capture."""
        files = dict(
            capture.originals.get((source.path, source.pid), (source, file))
            for source, file in capture.files.items()
            # The gaps of the collections in the pods are in this one.
            if source.role != "manifest"
        )
        return Bundle(files, {}, tuple(capture.gaps), {"at": time.time(), **about})


@contextmanager
def gathered(shown: str, redactor: Redactor) -> Iterator[Gathered]:
    """An empty collection, whose folder is removed at the end."""
    private = private_folder()
    try:
        (private.path / "capture").mkdir()
        found = Gathered(shown, private.path, redactor)
        try:
            yield found
        finally:
            for each in found.opened:
                each.close()
    finally:
        private.remove()

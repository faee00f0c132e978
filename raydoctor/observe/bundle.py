"""Writes a capture to an archive: every file is redacted, and the archive is complete or absent.

The format follows from the archive's name: `.tar.gz` (`.tgz`), `.tar.zst`, `.tar.xz`, `.tar` or `.zip`.
"""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, cast

from raydoctor.capture import manifest, outputs
from raydoctor.capture.budget import ReportBytes
from raydoctor.model.errors import NO_ROOM, RaydoctorError
from raydoctor.model.values import Gap, Source
from raydoctor.model.version import __version__
from raydoctor.observe.processes.redact import Redactor

SUFFIXES = (".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar", ".zip")
_FULL = "Choose a file on another disk with -o. `raydoctor diagnose` writes no file."
_NO_FOLDER = (
    "Choose a file in an existing folder that you may write to with -o. `raydoctor diagnose` writes no "
    "file."
)
_IN_MEMORY = 8 << 20
"""Bytes of one redacted file that are kept in memory: tar requires the size before the content."""
_CHUNK = 1 << 20


class Bundle(NamedTuple):
    """The content of an archive."""

    files: Mapping[Source, str]
    """Each source and the file with its bytes; not yet redacted."""
    pieces: Mapping[str, bytes]
    """Path -> content from collectors; redacted."""
    gaps: tuple[Gap, ...]
    about: Mapping[str, Any]
    """Further keys of the manifest."""


class Written(NamedTuple):
    """The result of writing an archive."""

    files: int
    bytes: int
    """Of the archive."""
    redactions: Mapping[str, int]


class _Archive(Protocol):
    def add(self, path: str, content: IO[bytes], size: int, changed: float) -> None: ...


def kind_of(name: str) -> str:
    """The suffix that determines the format. Raises RaydoctorError for any other name."""
    for suffix in SUFFIXES:
        if name.lower().endswith(suffix):
            return suffix
    raise RaydoctorError(
        f"cannot write {name}: its suffix is not that of a supported archive format",
        f"Use one of {', '.join(SUFFIXES)}.",
    )


def write(
    target: str, bundle: Bundle, redactor: Redactor, report: ReportBytes = lambda done, total: None
) -> Written:
    """Write the archive atomically, readable only by its owner.

    Raises RaydoctorError if it cannot be written (a full disk, for example), and then leaves no file behind.
    """
    kind = kind_of(target)
    try:
        with outputs.place(target) as place, place.replaced(0o600) as out:
            return write_to(out, kind, bundle, redactor, report)
    except OSError as error:
        is_full = error.errno in NO_ROOM
        raise RaydoctorError(
            f"cannot write {target}: {error.strerror or error}", _FULL if is_full else _NO_FOLDER
        ) from None


def write_to(
    out: IO[bytes], kind: str, bundle: Bundle, redactor: Redactor, report: ReportBytes
) -> Written:
    """Write an archive of this format to a stream, without seeking."""
    count = _Counting(out)
    gaps = list(bundle.gaps)
    total, done, files = sum(source.size for source in bundle.files), 0, 0
    with _archive(count, kind) as archive:
        for source, file in bundle.files.items():
            report(done, total)
            if gap := _add_file(archive, source, file, redactor):
                gaps.append(gap)
            else:
                files += 1
            done += source.size
        for path, data in bundle.pieces.items():
            archive.add(path, io.BytesIO(data), len(data), time.time())
        about = {
            "raydoctor": __version__,
            **bundle.about,
            "files": files + len(bundle.pieces),
            "redactions": redactor.summary,
        }
        data = redactor.redact_bytes(manifest.dump(gaps, about))
        archive.add(manifest.NAME, io.BytesIO(data), len(data), time.time())
    return Written(files + len(bundle.pieces), count.bytes, redactor.summary)


def _add_file(archive: _Archive, source: Source, file: str, redactor: Redactor) -> Gap | None:
    """Add a log without its secrets, up to its size when it was listed."""
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as spool:
        try:
            with open(file, "rb") as stream:
                changed = os.fstat(stream.fileno()).st_mtime
                chunks = _chunks(stream, source.size)
                for chunk in redactor.redact_stream(chunks):
                    _spool(spool, chunk)
        except FileNotFoundError:
            return Gap(source.path, "was removed while the capture was written", optional=True)
        except PermissionError:
            return Gap(
                source.path, "this user has no permission to read it", "sudo raydoctor collect"
            )
        except OSError as error:
            return Gap(source.path, f"cannot be read: {error.strerror or error}")
        size = spool.tell()
        spool.seek(0)
        archive.add(source.path.removesuffix(".gz"), spool, size, changed)
    return None


def _spool(spool: IO[bytes], chunk: bytes) -> None:
    """Raises RaydoctorError if the temporary folder has no room, although the log itself is intact."""
    try:
        spool.write(chunk)
    except OSError as error:
        raise RaydoctorError(
            f"cannot write to {tempfile.gettempdir()}: {error.strerror or error}",
            "Set TMPDIR to a folder with room.",
        ) from None


def _chunks(stream: IO[bytes], size: int) -> Iterator[bytes]:
    left = size
    while left > 0 and (chunk := stream.read(min(left, _CHUNK))):
        left -= len(chunk)
        yield chunk


class _Counting:
    """A stream that counts its bytes."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self.bytes = 0

    def write(self, data: bytes) -> int:
        self._out.write(data)
        self.bytes += len(data)
        return len(data)

    def flush(self) -> None:
        self._out.flush()


class _Tar:
    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar

    def add(self, path: str, content: IO[bytes], size: int, changed: float) -> None:
        info = tarfile.TarInfo(path)
        info.size, info.mtime, info.mode = size, int(changed), 0o600
        self._tar.addfile(info, content)


class _Zip:
    def __init__(self, bundle: zipfile.ZipFile) -> None:
        self._zip = bundle

    def add(self, path: str, content: IO[bytes], size: int, changed: float) -> None:
        # Zip cannot represent years before 1980.
        info = zipfile.ZipInfo(path, time.localtime(max(changed, 315_619_200.0))[:6])
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = 0o600 << 16
        with self._zip.open(info, "w", force_zip64=size > 1 << 30) as out:
            while chunk := content.read(_CHUNK):
                out.write(chunk)


@contextmanager
def _archive(out: _Counting, kind: str) -> Iterator[_Archive]:
    with ExitStack() as stack:
        if kind == ".zip":
            yield _Zip(stack.enter_context(zipfile.ZipFile(cast("IO[bytes]", out), "w")))
            return
        stream: Any = out
        mode = {".tar.gz": "w|gz", ".tgz": "w|gz", ".tar.xz": "w|xz"}.get(kind, "w|")
        if kind == ".tar.zst":
            import zstandard  # 6 ms, and rarely needed

            stream = stack.enter_context(
                zstandard.ZstdCompressor().stream_writer(stream, closefd=False)
            )
        yield _Tar(stack.enter_context(tarfile.open(fileobj=stream, mode=mode)))  # type: ignore[call-overload]


def default_name(now: float) -> str:
    """`raydoctor-20261121-1403.tar.gz`, in the working folder."""
    return str(Path(time.strftime("raydoctor-%Y%m%d-%H%M%S.tar.gz", time.localtime(now))))

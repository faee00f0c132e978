"""A directory that a runtime environment uploads is larger than Ray's limit.

## What you see
- `ray.init` fails with `Package size (600.00MiB) exceeds the maximum size of 512.00MiB`, inside `RuntimeEnvSetupError:
  … Failed to upload working_dir … to the Ray cluster`.
- `ray job submit` fails with `Request failed with status code 413: Maximum request body size 104857600 exceeded`.
- Above the error, Ray prints one line for each file of 10 MiB or more: `File … is very large (580.00MiB)`.

## Why
Ray zips `working_dir` and local `py_modules` without compression and sends them through the GCS, which keeps them in
the head's memory. The limit is 512 MiB (500 MiB up to Ray 2.42). `ray job submit` uploads through the dashboard,
whose limit is 100 MiB. Ray packs everything inside the project, including checkpoints, data, `.git` and virtual
environments.

## Confirm
- The lines with `is very large` name the large files.
- Without such lines there are many small files: `du -sh .[!.]* * | sort -h | tail` shows the largest folders.

## Fix
Leave out what the job does not need (`excludes`, `.gitignore`), and provide data in another way. The patterns of
`excludes` have the syntax of `.gitignore`, relative to the directory. The absolute paths in Ray's own advice match
nothing.

    ray.init(runtime_env={"working_dir": ".", "excludes": ["/data/", ".git/", ".venv/", "*.ckpt"]})

## Not this when
- the upload succeeded, but a node could not fetch the package, or a tool failed in it (`runtime-env-failed`).
- a function captures a large value (`large-closure`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import DRIVER, RAY_EXCEPTION
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject

TOO_LARGE = Signal(
    "package.too_large",
    " exceeds the maximum size of ",
    r"^(?:(?:ray\.exceptions\.)?\w{1,60}Error: |Failed to upload (?:(?P<what>\w+) )?(?P<path>.+?) to the Ray cluster: )?"
    r"Package size \((?P<size>\d{1,20}(?:\.\d{1,20})?)MiB\) exceeds the maximum size of (?P<limit>\d{1,20}(?:\.\d{1,20})?)MiB\.",
    DRIVER,
    "Failed to upload working_dir /home/user/project/resnet to the Ray cluster: Package size (600.00MiB) exceeds the maximum "
    "size of 512.00MiB. To exclude large files, add them to '.gitignore' or '.rayignore' files, or use the 'excludes' option",
    symptom=True,
)
BODY_TOO_LARGE = (
    Signal(
        "package.body_too_large",
        "413: Maximum request body size ",
        r"^RuntimeError: Request failed with status code 413: Maximum request body size (?P<bytes>\d+) exceeded",
        DRIVER,
        "RuntimeError: Request failed with status code 413: Maximum request body size 104857600 exceeded..",
        symptom=True,
    ),
    Signal(
        "package.body_too_large",
        "HTTPRequestEntityTooLarge: Request Entity Too Large",
        r"^aiohttp\.web_exceptions\.HTTPRequestEntityTooLarge: Request Entity Too Large",
        DRIVER,
        "aiohttp.web_exceptions.HTTPRequestEntityTooLarge: Request Entity Too Large",
    ),
)
"""The dashboard's reply to an upload by `ray job submit`; Ray 2.9 prints the second form."""
UPLOADING = Signal(
    "package.uploading",
    ", in upload_package",
    r"job_head\.py., line \d+, in upload_package$",
    DRIVER,
    '  File "/usr/lib/python3.11/site-packages/ray/dashboard/modules/job/job_head.py", line 359, in upload_package',
)
"""The dashboard's own frame in its reply: the refused body was a package."""
MEASURED = Signal(
    "package.measured",
    ", approaching the maximum upload size of",
    r"^The runtime_env package(?: for '(?P<path>[^'\n]+)')? at '[^'\n]+' is (?P<size>\d{1,20}(?:\.\d{1,20})?)MiB, approaching the maximum upload size of",
    DRIVER,
    "The runtime_env package for '/home/user/project/resnet' at '/tmp/tmpwmz_1lgx/_ray_pkg_5433.zip' is 600.00MiB, approaching the "
    "maximum upload size of 512.00MiB. If the upload fails, exclude large directories",
)
LARGE_FILE = Signal(
    "package.large_file",
    " is very large (",
    r"^File (?P<path>.+?) is very large \((?P<size>\d{1,20}(?:\.\d{1,20})?)MiB\)\. Consider adding this file to the 'excludes' list",
    DRIVER,
    "File /home/user/project/resnet/checkpoints/last.ckpt is very large (580.00MiB). Consider adding this file to the "
    "'excludes' list to skip uploading it: `ray.init(..., runtime_env={'excludes': ['/home/user/project/resnet/last.ckpt']})`",
    fold=("path",),
)
PACKING = Signal(
    "package.packing",
    "Creating a file package for local ",
    r"^Creating a file package for local (?:module|directory) '(?P<path>[^'\n]+)'",
    DRIVER,
    "Creating a file package for local module '/home/user/project/resnet'.",
)

_DOC = "https://docs.ray.io/en/latest/ray-core/handling-dependencies.html#api-reference"
_BODY = 100 * 1024**2
"""The dashboard's limit in bytes (`client_max_size`, 2.9 to 2.60)."""
_FRAMES = 20
"""Lines between the dashboard's frame and the exception's last line."""
_MOST = 5
"""Most files that a remedy names."""


@rule(
    tier="root",
    severity="error",
    rank=67,
    explains=("package",),
    looks_for=(TOO_LARGE, *BODY_TOO_LARGE, UPLOADING, MEASURED, LARGE_FILE, PACKING, RAY_EXCEPTION),
)  # fmt: skip
def package_too_large(case: Case) -> Iterator[Finding]:
    """One finding per package."""
    groups = evidence.grouped(case.of(TOO_LARGE.kind), lambda e: (e["size"], e["limit"]))
    for events in groups.values():
        yield _finding(case, events, _refusal(events))
    for event in case.of(BODY_TOO_LARGE[0].kind):
        # Every aiohttp server prints the second form.
        if event["bytes"] or _folder(case, [event]) or _was_uploading(case, event):
            yield _finding(case, [event], _refusal_of_upload(case, event))


def _was_uploading(case: Case, event: Event) -> bool:
    return any(
        e.source is event.source and 0 < event.line - e.line <= _FRAMES
        for e in case.of(UPLOADING.kind)
    )


class _RefusedPackage(NamedTuple):
    """A refused package; sizes in MiB."""

    event: Event
    what: str
    size: float
    """0 if unknown."""
    limit: float
    component: str


def _refusal(events: list[Event]) -> _RefusedPackage:
    event = next((e for e in events if e["path"]), events[0])
    what = next((e["what"] for e in events if e["what"]), "working_dir or py_modules")
    return _RefusedPackage(event, what, float(event["size"]), float(event["limit"]), "Ray")


def _refusal_of_upload(case: Case, event: Event) -> _RefusedPackage:
    """Ray 2.56 and later print the size beforehand; otherwise the sum of the large files is a lower bound."""
    measured = [e for e in case.of(MEASURED.kind) if e.source is event.source]
    size = max(
        [float(e["size"]) for e in measured if e.line < event.line]
        or [sum(float(e["size"]) for e in _large_files(case, event))]
    )
    return _RefusedPackage(event, "working_dir", size, int(event["bytes"] or _BODY) / 1024**2, "ray job submit")  # fmt: skip


def _finding(case: Case, events: list[Event], refusal: _RefusedPackage) -> Finding:
    files = _large_files(case, events[0])
    folder = _folder(case, events)
    size, limit = refusal.size, refusal.limit
    names = [f"{_inside(folder, e['path'])} ({float(e['size']):.0f} MiB)" for e in files]
    text = f"The upload of {refusal.what} {folder}".strip()
    text += f" is {size:.0f} MiB, over" if size > limit else " exceeds"
    text += f" the limit of {limit:.0f} MiB for {refusal.component}"
    text += (
        f": the largest {'file is' if len(names) == 1 else 'files are'} {evidence.join_names(names)}"
        if names
        else ", although no single file is large"
        if folder or refusal.size
        else ""
    )
    links = [Link(e, f"the package includes {e['path']}, {e['size']} MiB") for e in files[:2]]
    return Finding(
        text,
        (
            *links,
            Link(
                refusal.event,
                f"{refusal.component} refuses the package: the limit is {limit:.0f} MiB",
            ),
        ),
        explains=(Entity("package", f"{folder} {limit:.0f}"),),
        subjects=(Subject("package", None, folder or None),),
        remedies=tuple(_remedies(folder, files, size, limit)),
        covers=(*events, *files, *_raised(case, refusal.event)),
    )


def _large_files(case: Case, refused: Event) -> list[Event]:
    """Files that Ray warned about before the refusal, largest first, each once."""
    found = {
        e["path"]: e
        for e in case.of(LARGE_FILE.kind)
        if e.source is refused.source and e.line < refused.line
    }
    return sorted(found.values(), key=lambda e: (-float(e["size"]), e["path"]))


def _folder(case: Case, events: list[Event]) -> str:
    """The directory that was packed: from the error (2.40) or from the line before it."""
    if named := next((e["path"] for e in events if e["path"]), ""):
        return named.rstrip("/")
    before = [
        e for e in case.of(PACKING.kind) if e.source is events[0].source and e.line < events[0].line
    ]
    return before[-1]["path"].rstrip("/") if before else ""


def _inside(folder: str, path: str) -> str:
    """The path as `excludes` needs it, relative to the folder: Ray prints the folder as the program wrote it."""
    if path.startswith(f"{folder}/"):
        return path.removeprefix(f"{folder}/")
    _, found, inside = path.partition(f"/{folder.removeprefix('./')}/")
    return inside if found else path.rpartition("/")[2]


def _raised(case: Case, refused: Event) -> list[Event]:
    """The exceptions that contain the refusal."""
    if not refused["size"]:
        return []
    carries = re.compile(rf"Package size \({re.escape(refused['size'])}MiB\) exceeds")
    return [e for e in case.of("driver.exception") if carries.search(e.text)]


def _remedies(folder: str, files: list[Event], size: float, limit: float) -> Iterator[Remedy]:
    needed: list[Event] = []
    for event in files[:_MOST]:
        if size - sum(float(e["size"]) for e in needed) < limit:
            break
        needed.append(event)
    left = max(size - sum(float(e["size"]) for e in needed), 0.0)
    if needed:
        patterns = [_inside(folder, e["path"]) for e in needed]
        more = "" if left < limit else ", still over the limit"
        yield Remedy(
            f"Exclude {evidence.many(len(needed), 'large file')} that the job does not need: {left:.0f} MiB remain{more}",
            (
                paste.python(
                    'ray.init(runtime_env={{"working_dir": ".", "excludes": [{patterns}]}})   # relative, as in a .gitignore',
                    patterns=patterns,
                ),
                "# or write the same lines in .gitignore (Ray 2.53+: also .rayignore) of that directory",
            ),
            doc=_DOC,
        )  # fmt: skip
    else:
        yield Remedy(
            "Find what fills the directory, and exclude it",
            (
                paste.shell(
                    "cd {working_dir:path} && du -sh .[!.]* * | sort -h | tail", working_dir=folder
                ),
                'ray.init(runtime_env={"working_dir": ".", "excludes": [".git", ".venv", "data/"]})   # relative, as in a .gitignore',
            ),
            doc=_DOC,
        )
    yield Remedy(
        "Provide data and checkpoints in another way: on storage that the nodes can reach, or in the image",
        ('runtime_env={"working_dir": "s3://bucket/project.zip"}   # the nodes fetch it: no limit',),
        doc=_DOC,
    )  # fmt: skip


# ------------------------------------------------------------------ examples


def _warning(path: str, size: str) -> str:
    text = LARGE_FILE.sample.replace("/home/user/project/resnet/checkpoints/last.ckpt", path)
    return f"2026-11-21 10:44:48,443\tWARNING packaging.py:536 -- {text.replace('580.00', size)}\n"


_PACKING = f"2026-11-21 10:44:48,406\tINFO packaging.py:785 -- {PACKING.sample}\n"
_VALUE_ERROR = (
    "Traceback (most recent call last):\n"
    '  File "/home/user/venv/lib/python3.11/site-packages/ray/_private/runtime_env/packaging.py", line 447, in _store_package_in_gcs\n'
    "    raise ValueError(\nValueError: Package size (600.00MiB) exceeds the maximum size of 512.00MiB. To exclude large files, add "
    "them to '.gitignore' or '.rayignore' files\n"
)

EXAMPLES: tuple[Example, ...] = (
    console(
        "a checkpoint in the project",
        _PACKING
        + _warning("/home/user/project/resnet/first.ckpt", "20.00")
        + _warning("/home/user/project/resnet/checkpoints/last.ckpt", "580.00")
        + f"{_VALUE_ERROR}\nThe above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n"
        '  File "/home/user/project/main.py", line 29, in <module>\n    ray.init(runtime_env={"working_dir": project})\n'
        f"ray.exceptions.RuntimeEnvSetupError: Failed to set up runtime environment.\n{TOO_LARGE.sample}\n",
        logs=QUIET_LOGS,
        says=(
            "600 MiB",
            "512 MiB",
            "checkpoints/last.ckpt (580 MiB)",
            '"excludes": ["checkpoints/last.ckpt"]',
        ),
    ),
    Example(
        "many small files, and only the inner error is left (2.9)",
        {**QUIET_LOGS, "driver.log": _VALUE_ERROR.replace("512", "500")},
        says=("500 MiB", "du -sh", ".git"),
    ),
    console(
        "a submitted job: the dashboard has a lower limit",
        _PACKING
        + _warning("/home/user/project/resnet/last.ckpt", "580.00")
        + f'Traceback (most recent call last):\n  File "/x/dashboard_sdk.py", line 305, in _raise_error\n{BODY_TOO_LARGE[0].sample}\n',
        logs=QUIET_LOGS,
        says=("580 MiB", "100 MiB", "ray job submit", '"excludes": ["last.ckpt"]'),
    ),
    console(
        "the same with Ray 2.9",
        _PACKING
        + _warning("/home/user/project/resnet/last.ckpt", "580.00")
        + "RuntimeError: Request failed with status code 500: Traceback (most recent call last):\n"
        '  File "/home/user/venv/lib/python3.11/site-packages/aiohttp/web_request.py", line 759, in read\n'
        f"    raise HTTPRequestEntityTooLarge(self._client_max_size)\n{BODY_TOO_LARGE[1].sample}\n.\n",
        logs=QUIET_LOGS,
        says=("100 MiB",),
    ),
    console(
        "large files, but the package fits",
        _PACKING + _warning("/home/user/project/resnet/first.ckpt", "20.00") + "done\n",
        logs=QUIET_LOGS,
    ),
    console(
        "a task prints the same words",
        "(pack pid=12) Package size (600.00MiB) exceeds the maximum size of 512.00MiB.\n",
        logs=QUIET_LOGS,
    ),
    console(
        "the end of a submission with Ray 2.9, without the lines above it",
        "RuntimeError: Request failed with status code 500: Traceback (most recent call last):\n"
        f"{UPLOADING.sample}\n    data = await req.read()\n"
        '  File "/home/user/venv/lib/python3.11/site-packages/aiohttp/web_request.py", line 759, in read\n'
        f"    raise HTTPRequestEntityTooLarge(\n{BODY_TOO_LARGE[1].sample}\n",
        says=("100 MiB", "du -sh"),
    ),
    console(
        "another server that refuses a large request",
        "Traceback (most recent call last):\n"
        '  File "/app/server.py", line 12, in upload\n    data = await request.read()\n'
        f"{BODY_TOO_LARGE[1].sample}\nupload refused\n",
    ),
    console(
        "the last line of an older Ray",
        "RuntimeError: Package size (812.31MiB) exceeds the maximum size of 500.00MiB. You can exclude large files using the 'excludes' option "
        "to the runtime_env or provide a remote URI of a zip file.\n",
        says=("812 MiB", "500 MiB"),
    ),
)

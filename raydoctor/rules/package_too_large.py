"""A directory to upload with a runtime environment is larger than Ray takes.

## What you see
`ray.init` fails: `Package size (600.00MiB) exceeds the maximum size of 512.00MiB`, inside `RuntimeEnvSetupError: …
Failed to upload working_dir … to the Ray cluster`; or `ray job submit`: `Request failed with status code 413: Maximum
request body size 104857600 exceeded`. Above it, one line for each file of 10 MiB or more: `File … is very large
(580.00MiB)`.

## Why
`working_dir` and local `py_modules` are zipped, without compression, and sent through the GCS, which keeps them in
the head's memory: 512 MiB at most (500 MiB up to 2.42 or so). `ray job submit` uploads through the dashboard, which takes
100 MiB. Checkpoints, data, `.git` and virtual environments that
lie in the project are packed with it.

## Confirm
- The lines `is very large` name the files. Without such lines it is many small ones: `du -sh .[!.]* * | sort -h | tail`.

## Fix
Leave out what the job does not need (`excludes`, `.gitignore`), and bring data another way. The patterns are those of a
`.gitignore`, relative to the directory: the absolute paths that Ray's own advice prints match nothing.

## Not this when
The package went up and could not be fetched by a node, or a tool failed in it (`runtime-env-failed`). A large value
that a function captures is `large-closure`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from raydoctor.case import Case, evidence
from raydoctor.case.rule import Example, Signal, rule
from raydoctor.case.signals import DRIVER, RAY_EXCEPTION
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.values import Event, Finding, Link, Remedy, Subject

TOO_LARGE = Signal(
    "package.too_large",
    " exceeds the maximum size of ",
    r"^(?:ValueError: |Failed to upload (?:(?P<what>\w+) )?(?P<path>.+?) to the Ray cluster: )?"
    r"Package size \((?P<size>[\d.]+)MiB\) exceeds the maximum size of (?P<limit>[\d.]+)MiB\.",
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
"""What `ray job submit` gets from the dashboard, through which it uploads; the second form is that of 2.9."""
MEASURED = Signal(
    "package.measured",
    ", approaching the maximum upload size of",
    r"^The runtime_env package(?: for '(?P<path>[^'\n]+)')? at '[^'\n]+' is (?P<size>[\d.]+)MiB, approaching the maximum upload size of",
    DRIVER,
    "The runtime_env package for '/home/user/project/resnet' at '/tmp/tmpwmz_1lgx/_ray_pkg_5433.zip' is 600.00MiB, approaching the "
    "maximum upload size of 512.00MiB. If the upload fails, exclude large directories",
)
LARGE_FILE = Signal(
    "package.large_file",
    " is very large (",
    r"^File (?P<path>.+?) is very large \((?P<size>[\d.]+)MiB\)\. Consider adding this file to the 'excludes' list",
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
"""What the dashboard takes (`client_max_size`, 2.9 to 2.60)."""
_MOST = 5
"""Files that a remedy names."""


@rule(
    tier="root",
    severity="error",
    rank=67,
    looks_for=(TOO_LARGE, *BODY_TOO_LARGE, MEASURED, LARGE_FILE, PACKING, RAY_EXCEPTION),
)  # fmt: skip
def package_too_large(case: Case) -> Iterator[Finding]:
    """One finding per package."""
    groups: dict[tuple[str, str], list[Event]] = {}
    for event in case.of(TOO_LARGE.kind):
        groups.setdefault((event["size"], event["limit"]), []).append(event)
    for events in groups.values():
        yield _finding(case, events, _refusal(events))
    for event in case.of(BODY_TOO_LARGE[0].kind):
        if event["bytes"] or _folder(case, [event]):  # any server of aiohttp's says the second form
            yield _finding(case, [event], _refusal_of_upload(case, event))


class _Refusal(NamedTuple):
    """Who refused what, in MiB."""

    told: Event
    what: str
    size: float
    """0 where nothing tells it."""
    limit: float
    who: str


def _refusal(events: list[Event]) -> _Refusal:
    told = next((e for e in events if e["path"]), events[0])
    what = next((e["what"] for e in events if e["what"]), "working_dir or py_modules")
    return _Refusal(told, what, float(told["size"]), float(told["limit"]), "Ray takes")


def _refusal_of_upload(case: Case, event: Event) -> _Refusal:
    """Ray 2.56 and later print the size beforehand; else the large files make it at least."""
    measured = [e for e in case.of(MEASURED.kind) if e.source is event.source]
    size = max(
        [float(e["size"]) for e in measured if e.line < event.line]
        or [sum(float(e["size"]) for e in _large_files(case, event))]
    )
    return _Refusal(event, "working_dir", size, int(event["bytes"] or _BODY) / 1024**2, "`ray job submit` can upload")  # fmt: skip


def _finding(case: Case, events: list[Event], refusal: _Refusal) -> Finding:
    files = _large_files(case, events[0])
    folder = _folder(case, events)
    size, limit = refusal.size, refusal.limit
    names = [f"{_inside(folder, e['path'])} ({float(e['size']):.0f} MiB)" for e in files]
    text = f"{refusal.what} {folder}".strip()
    text += f" makes a package of {size:.0f} MiB" if size > limit else " makes a larger package"
    text += f", and {refusal.who} {limit:.0f} MiB at most"
    text += f"; largest: {evidence.join_names(names)}" if names else "; no single file is large"
    links = [Link(e, f"packed with it: {e['path']}, {e['size']} MiB") for e in files[:2]]
    return Finding(
        text,
        (*links, Link(refusal.told, f"the package is refused: {limit:.0f} MiB is the limit")),
        explains=(Entity("package", f"{folder} {limit:.0f}"),),
        subjects=(Subject("package", None, folder or None),),
        remedies=tuple(_remedies(folder, files, size, limit)),
        covers=(*events, *files, *_raised(case, refusal.told)),
    )


def _large_files(case: Case, refused: Event) -> list[Event]:
    """Files that Ray warned of before it refused, the largest first, each once."""
    found = {
        e["path"]: e
        for e in case.of(LARGE_FILE.kind)
        if e.source is refused.source and e.line < refused.line
    }
    return sorted(found.values(), key=lambda e: (-float(e["size"]), e["path"]))


def _folder(case: Case, events: list[Event]) -> str:
    """The directory that was packed: the error tells it (2.40 does), or the line before it."""
    if told := next((e["path"] for e in events if e["path"]), ""):
        return told.rstrip("/")
    before = [
        e for e in case.of(PACKING.kind) if e.source is events[0].source and e.line < events[0].line
    ]
    return before[-1]["path"].rstrip("/") if before else ""


def _inside(folder: str, path: str) -> str:
    return path.removeprefix(f"{folder}/") if folder else path.rpartition("/")[2]


def _raised(case: Case, told: Event) -> list[Event]:
    """The exceptions that carry the refusal."""
    if not told["size"]:
        return []
    carries = re.compile(rf"Package size \({re.escape(told['size'])}MiB\) exceeds")
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
        more = "" if left < limit else "; more must go"
        yield Remedy(
            f"Leave out what the job does not need: without {evidence.many(len(needed), 'file')} {left:.0f} MiB remain{more}",
            (
                paste.python(
                    'ray.init(runtime_env={{"working_dir": …, "excludes": [{patterns}]}})   # relative, as in a .gitignore',
                    patterns=patterns,
                ),
                "or the same lines in .gitignore (Ray 2.54+: also .rayignore) of that directory",
            ),
            doc=_DOC,
        )  # fmt: skip
    else:
        yield Remedy(
            "Find what fills the directory, and leave it out",
            (
                paste.shell(
                    "cd {working_dir:path} && du -sh .[!.]* * | sort -h | tail", working_dir=folder
                ),
                'ray.init(runtime_env={"working_dir": …, "excludes": [".git", ".venv", "data/"]})   # relative, as in a .gitignore',
            ),
            doc=_DOC,
        )
    yield Remedy(
        "Bring data and checkpoints another way: from storage that the nodes reach, or in the image",
        ('runtime_env={"working_dir": "s3://bucket/project.zip"}   # fetched by the nodes: no limit',),
        doc=_DOC,
    )  # fmt: skip


# ------------------------------------------------------------------ examples

_EMPTY = {"logs/gcs_server.out": "", "logs/raylet.out": ""}


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
    Example(
        "a checkpoint in the project",
        {
            **_EMPTY,
            "driver.log": _PACKING
            + _warning("/home/user/project/resnet/first.ckpt", "20.00")
            + _warning("/home/user/project/resnet/checkpoints/last.ckpt", "580.00")
            + f"{_VALUE_ERROR}\nThe above exception was the direct cause of the following exception:\n\n"
            "Traceback (most recent call last):\n"
            '  File "/home/user/project/main.py", line 29, in <module>\n    ray.init(runtime_env={"working_dir": project})\n'
            f"ray.exceptions.RuntimeEnvSetupError: Failed to set up runtime environment.\n{TOO_LARGE.sample}\n",
        },
        roots=("package-too-large",),
        says=(
            "600 MiB",
            "512 MiB",
            "checkpoints/last.ckpt (580 MiB)",
            '"excludes": ["checkpoints/last.ckpt"]',
        ),
    ),
    Example(
        "many small files; only the inner error is left (2.9)",
        {**_EMPTY, "driver.log": _VALUE_ERROR.replace("512", "500")},
        roots=("package-too-large",),
        says=("500 MiB", "du -sh", ".git"),
    ),
    Example(
        "a submitted job: the dashboard takes less",
        {
            **_EMPTY,
            "driver.log": _PACKING
            + _warning("/home/user/project/resnet/last.ckpt", "580.00")
            + f'Traceback (most recent call last):\n  File "/x/dashboard_sdk.py", line 305, in _raise_error\n{BODY_TOO_LARGE[0].sample}\n',
        },
        roots=("package-too-large",),
        says=("580 MiB", "100 MiB", "ray job submit", '"excludes": ["last.ckpt"]'),
    ),
    Example(
        "the same, as Ray 2.9 says it",
        {
            **_EMPTY,
            "driver.log": _PACKING
            + _warning("/home/user/project/resnet/last.ckpt", "580.00")
            + "RuntimeError: Request failed with status code 500: Traceback (most recent call last):\n"
            '  File "/home/user/venv/lib/python3.11/site-packages/aiohttp/web_request.py", line 759, in read\n'
            f"    raise HTTPRequestEntityTooLarge(self._client_max_size)\n{BODY_TOO_LARGE[1].sample}\n.\n",
        },
        roots=("package-too-large",),
        says=("100 MiB",),
    ),
    Example(
        "large files, but the package fits",
        {
            **_EMPTY,
            "driver.log": _PACKING
            + _warning("/home/user/project/resnet/first.ckpt", "20.00")
            + "done\n",
        },
    ),
    Example(
        "a task speaks of packages",
        {
            **_EMPTY,
            "driver.log": "(pack pid=12) Package size (600.00MiB) exceeds the maximum size of 512.00MiB.\n",
        },
    ),
)

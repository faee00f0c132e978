"""The compiled part of Ray cannot be loaded: it does not fit this machine, its C library or this Python.

## What you see
- `import ray` fails with `ImportError: … version 'GLIBCXX_3.4.30' not found (required by …/ray/_raylet.so)`,
  `undefined symbol`, `incompatible architecture (have 'x86_64', need 'arm64')` or, on Windows, `DLL load failed while
  importing _raylet`.
- `ModuleNotFoundError: No module named 'ray._raylet'`.
- `ray start` fails, and `gcs_server.err` or `raylet.err` contains `version 'GLIBC_2.34' not found (required by …)` or
  `error while loading shared libraries: …`.

## Why
Ray consists of Python code, the library `_raylet.so` and the programs `gcs_server` and `raylet`, which are built for one
operating system, processor and version of Python. The dynamic loader refuses them if:
- the package was installed for another processor: an x86_64 Python under Rosetta, or an environment that was copied.
- an older C or C++ library is found first: by `LD_LIBRARY_PATH`, conda, nix or a module system.
- a folder named `ray` without the compiled part is found first, such as a checkout of Ray's sources.

## Confirm
- `python -c "import ray, platform; print(ray.__file__, platform.machine())"` fails in the same way.
- `ldd` on the file that the message names lists `not found` for each library or version that is missing.

## Fix
Install Ray for this Python and this processor in a fresh environment, and start it without variables that put other
libraries first:

    env -u LD_LIBRARY_PATH python -c "import ray"

## Not this when
- Ray is not installed at all (`No module named 'ray'`).
- another package's library cannot be loaded: its name is in the message instead of `_raylet`.
"""

from __future__ import annotations

from collections.abc import Iterator

from raydoctor.case import Case, evidence
from raydoctor.case.rule import QUIET_LOGS, Example, Signal, console, rule
from raydoctor.case.signals import GCS, OUTPUT, RAYLET
from raydoctor.model import paste
from raydoctor.model.entities import Entity
from raydoctor.model.patterns import pattern
from raydoctor.model.text import cut
from raydoctor.model.values import Event, Finding, Link, Remedy
from raydoctor.rules.shared.failures import ended_programs, program
from raydoctor.rules.shared.traceback import Raised

_DOC = "https://docs.ray.io/en/latest/ray-overview/installation.html"
_ROLES = (*OUTPUT, *GCS, *RAYLET)
_RAISED = r"^(?:E {1,8})?(?:ImportError|OSError): "
_OWN = r"/[^\s:,]{0,400}/ray/(?:_raylet\.so|core/src/ray/[\w/]{1,60})"
"""A file of Ray's that is compiled."""
VERSION = Signal(
    "ray.unloadable", " not found (required by ",
    rf"^(?:(?:E {{1,8}})?(?:ImportError|OSError): |(?P<started>{_OWN}): )(?P<library>/[^\s:]{{1,400}}): version [`'](?P<wants>[A-Z]{{3,8}}_[\d.]{{1,12}})' "
    r"not found \(required by (?P<by>[^()\n]{1,500})\)", _ROLES,
    "ImportError: /lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by "
    "/home/user/venv/lib/python3.11/site-packages/ray/_raylet.so)", symptom=True, fold=("library", "by"),
)  # fmt: skip
"""glibc's loader, as Python reports it, or below the name of the program that it did not start."""
SYMBOL = Signal(
    "ray.unloadable", "/ray/_raylet.so: undefined symbol: ", _RAISED + r"(?P<by>/[^\s:,]{0,400}/ray/_raylet\.so): undefined symbol: (?P<symbol>\w{1,300})", _ROLES,
    "ImportError: /home/user/venv/lib/python3.11/site-packages/ray/_raylet.so: undefined symbol: _PyGen_Send", symptom=True,
)  # fmt: skip
LIBRARY = Signal(
    "ray.unloadable", ": error while loading shared libraries: ",
    rf"^(?P<by>{_OWN}): error while loading shared libraries: (?P<library>[^\s:]{{1,200}}): ", _ROLES,
    "/home/user/venv/lib/python3.11/site-packages/ray/core/src/ray/gcs/gcs_server: error while loading shared libraries: librt.so.1: "
    "cannot open shared object file: No such file or directory", symptom=True,
)  # fmt: skip
ARCHITECTURE = Signal(
    "ray.unloadable", " incompatible architecture",
    _RAISED + rf"dlopen\((?P<by>{_OWN}), [^\n]{{1,3000}}? incompatible architecture(?: \(have '(?P<have>\w{{1,20}})', need '(?P<need>\w{{1,20}})'\))?",
    _ROLES,
    "ImportError: dlopen(/Users/me/venv/lib/python3.11/site-packages/ray/_raylet.so, 0x0002): tried: '/Users/me/venv/lib/python3.11/"
    "site-packages/ray/_raylet.so' (mach-o file, but is an incompatible architecture (have 'x86_64', need 'arm64'))", symptom=True,
)  # fmt: skip
DLL = Signal(
    "ray.unloadable", "DLL load failed while importing _raylet: ", _RAISED + r"(?P<dll>DLL load failed while importing _raylet): ", _ROLES,
    "ImportError: DLL load failed while importing _raylet: The specified module could not be found.", symptom=True,
)  # fmt: skip
MISSING = Signal(
    "ray.unloadable", "No module named 'ray._raylet'",
    r"^(?:E {1,8})?(?:ModuleNotFoundError|ImportError): (?P<missing>No module named 'ray\._raylet')", _ROLES,
    "ModuleNotFoundError: No module named 'ray._raylet'", symptom=True,
)  # fmt: skip


@rule(
    tier="root",
    severity="error",
    rank=11,
    explains=("program",),
    looks_for=(VERSION, SYMBOL, LIBRARY, ARCHITECTURE, DLL, MISSING),
)
def ray_import_failed(case: Case) -> Iterator[Finding]:
    """One finding for all records: they have one cause per environment."""
    if events := [e for e in case.of(VERSION.kind) if _is_of_ray(e) and not e["who"]]:
        yield _finding(case, events)
        return
    for ending, raised in ended_programs(case):
        if raised.name in _REFUSALS and _is_in_import(raised):
            yield _of_import(case, ending, raised)
            return


_REFUSALS = ("ImportError", "OSError", "SystemError")
_IMPORTS = pattern(r"[/\\]ray[/\\]__init__\.py$")
_COMPILED = pattern(r"_raylet\.pyx$|[/\\]ray[/\\]__init__\.py$")


def _is_in_import(raised: Raised) -> bool:
    """Whether `import ray` loads a compiled part: the last frame is in Ray's first file, or in Cython."""
    last = raised.frames[-1] if raised.frames else None
    begun = any(_IMPORTS.search(f.file) and f.function == "<module>" for f in raised.frames)
    return last is not None and begun and bool(_COMPILED.search(last.file))


def _of_import(case: Case, ending: Event, raised: Raised) -> Finding:
    """A loader's refusal in words that no signal knows."""
    return Finding(
        f"The compiled part of Ray cannot be loaded: {cut(str(raised), 200)}",
        (Link(ending, "`import ray` ends in its compiled part", raised.code),),
        explains=(program(ending),),
        count=1,
        remedies=(
            Remedy(
                "Install Ray again for this Python and machine, in a new environment",
                ("python -m venv ray-env && ray-env/bin/pip install ray && ray-env/bin/python -c 'import ray'",),
                doc=_DOC,
            ),
        ),
        covers=tuple(
            e for e in case.of("log.traceback", "log.error") if e.source is ending.source and e.line >= ending.line
        ),
    )  # fmt: skip


def _is_of_ray(event: Event) -> bool:
    """Whether the file that needs a version is Ray's, or was loaded for one of Ray's programs."""
    return not event["wants"] or bool(event["started"]) or "/ray/_raylet.so" in event["by"]


def _finding(case: Case, events: list[Event]) -> Finding:
    first = events[0]
    ended = [e for e in case.endings.values() if any(e.source is each.source for each in events)]
    return Finding(
        f"The compiled part of Ray cannot be loaded: {_why(first)}",
        (Link(first, "the loader refuses Ray's own file"),),
        explains=tuple(program(e) for e in ended) or (Entity("program", first.source.path),),
        count=evidence.total(events),
        remedies=tuple(_remedies(first)),
        covers=(*events, *(e for e in case.of("log.traceback") if any(e.source is each.source for each in events))),
    )  # fmt: skip


def _why(event: Event) -> str:
    if event["wants"]:
        return f"{event['library']} does not provide {event['wants']}"
    if event["symbol"]:
        return f"_raylet.so needs the symbol {event['symbol']}, which this Python or its libraries lack"
    if event["library"]:
        return f"the library {event['library']} is missing"
    if event["have"]:
        return f"it is built for {event['have']}, and this Python runs on {event['need']}"
    if event["missing"]:
        return "the ray package that Python finds first does not contain it"
    return "a DLL that it needs is missing" if event["dll"] else "it is built for another processor"


def _remedies(event: Event) -> Iterator[Remedy]:
    if event["wants"] or (event["library"] and not event["have"]):
        yield Remedy(
            "Start Ray without the variables that put other libraries first",
            (
                paste.shell("ldd {file}   # which library is found, and what is not", file=event["started"] or event["by"]),
                "env -u LD_LIBRARY_PATH ray start --head   # plus your other options",
            ),
            risk="disruptive",
        )  # fmt: skip
    elif event["missing"]:
        yield Remedy(
            "Start the program outside the folder that contains a ray folder of its own",
            ('python -c "import ray; print(ray.__file__)"   # from the same folder',),
        )
    yield Remedy(
        "Install Ray for this Python and this processor, in a fresh environment",
        (
            'python -c "import platform, sys; print(sys.version, platform.machine())"',
            "python -m venv fresh && fresh/bin/python -m pip install -U 'ray[default]==VERSION'",
        ),
        risk="disruptive",
        doc=_DOC,
    )


# ------------------------------------------------------------------ examples

_TRACE = (
    'Traceback (most recent call last):\n  File "/app/train.py", line 2, in <module>\n    import ray\n'
    '  File "/home/user/venv/lib/python3.11/site-packages/ray/__init__.py", line 85, in <module>\n    import ray._raylet\n'
)
_SERVER = LIBRARY.sample.partition(":")[0]
_OTHER = "/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found (required by /nix/store/gcc/lib/libstdc++.so.6)"

EXAMPLES: tuple[Example, ...] = (
    console(
        "the loader of a Mac does not find a symbol for a package that comes with Ray",
        'Traceback (most recent call last):\n  File "<stdin>", line 1, in <module>\n'
        '  File "/venv/lib/python3.8/site-packages/ray/__init__.py", line 108, in <module>\n    import ray._raylet  # noqa: E402\n'
        '  File "python/ray/_raylet.pyx", line 16, in init ray._raylet\n'
        "ImportError: dlopen(/venv/lib/python3.8/site-packages/ray/thirdparty_files/title.cpython-38-darwin.so, 2): Symbol not found: _Py_GetArgcArgv\n"
        "  Referenced from: /venv/lib/python3.8/site-packages/ray/thirdparty_files/title.cpython-38-darwin.so\n",
        says=("The compiled part of Ray cannot be loaded: ImportError: dlopen",),
    ),
    console(
        "a module of the program raises while Ray is already imported",
        'Traceback (most recent call last):\n  File "/app/train.py", line 3, in <module>\n    import shop\n'
        '  File "/app/shop.py", line 1, in <module>\n    from shopcore import price\nImportError: no price\n',
        roots=("job-failed",),
    ),
    console(
        "another libstdc++ is found first",
        f"{_TRACE}{VERSION.sample}\n",
        says=("libstdc++.so.6 does not provide GLIBCXX_3.4.30", "ldd /home/user/venv", "env -u LD_LIBRARY_PATH"),
        is_typical=True,
    ),
    Example(
        "a daemon of Ray cannot be started",
        {"logs/gcs_server.err": f"{_SERVER}: {_OTHER}\n"},
        says=("libc.so.6 does not provide GLIBC_2.34",),
    ),
    Example(
        "a library of a daemon is missing",
        {"logs/gcs_server.err": f"{LIBRARY.sample}\n"},
        says=("the library librt.so.1 is missing",),
    ),
    console("Ray is built for another processor", f"{_TRACE}{ARCHITECTURE.sample}\n", says=("built for x86_64, and this Python runs on arm64",)),
    console("Ray is built for another Python", f"{_TRACE}{SYMBOL.sample}\n", says=("the symbol _PyGen_Send",)),
    console("a library of Windows is missing", f"{_TRACE}{DLL.sample}\n", says=("a DLL that it needs is missing",)),
    console("the sources of Ray are in the way", f"{_TRACE}{MISSING.sample}\n", says=("does not contain it", "outside the folder")),
    console(
        "another package's library does not fit",
        "Traceback (most recent call last):\n  File \"/app/train.py\", line 2, in <module>\n    import flash\n"
        f"ImportError: {_OTHER}\n",
        roots=("job-failed",),
    ),
    console(
        "a program quotes the errors, and runs",
        f"note: {VERSION.sample}\n(check pid=12) {MISSING.sample}\nloss 0.1\n",
        logs=QUIET_LOGS,
    ),
)  # fmt: skip

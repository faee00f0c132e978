"""Modules that a worker could not import, and remedies that provide them."""

from __future__ import annotations

from raydoctor.case import Case
from raydoctor.model import paste
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Remedy
from raydoctor.rules.shared.setup import builds
from raydoctor.rules.shared.traceback import Raised

MISSING = pattern(r"No module named '(?P<module>[\w.]+)'")
"""In the message of a ModuleNotFoundError or ImportError."""
_UNPICKLES = "ray/cloudpickle/"
"""Where a worker imports the modules that a pickled function or class refers to."""
_DOC = "https://docs.ray.io/en/latest/ray-core/handling-dependencies.html"


def remedy(case: Case, raised: Raised | None) -> Remedy | None:
    """For an exception about a module that the worker could not import."""
    if raised is None or not (found := MISSING.search(raised.message)):
        return None
    place = raised.place
    of_driver = bool(place and _UNPICKLES in place.file)
    if of_driver and builds.uses_working_dir(case):
        return _left_out(found["module"].partition(".")[0])
    return install(found["module"], of_driver=of_driver)


def _left_out(package: str) -> Remedy:
    return Remedy(
        f"Check why working_dir does not give {package} to the workers: the driver has imported it. Ray leaves out "
        "files that .gitignore or .rayignore lists, and those in excludes",
        (
            paste.shell(
                "git check-ignore -v {module:path} {package:path}   # in working_dir, whose top folder must hold one of them. Print the excludes as well",
                module=f"{package}.py",
                package=package,
            ),
            paste.python(
                'ray.init(runtime_env={{"pip": [PACKAGE]}})   # if {package} is not your own module. PACKAGE: the PyPI package that contains it',
                package=package,
            ),
        ),
        doc=_DOC,
    )


def install(module: str, *, of_driver: bool = False) -> Remedy:
    """`of_driver`: the worker failed to unpickle a reference to the module, so the driver has imported it."""
    package = module.partition(".")[0]
    own = paste.python(
        'ray.init(runtime_env={{"working_dir": FOLDER}})   # the folder with {package}.py or {package}/, if it is your own module',
        package=package,
    )
    installed = paste.python(
        'ray.init(runtime_env={{"pip": [PACKAGE]}})   # PACKAGE: the PyPI package that contains {package}. Or install it on every node',
        package=package,
    )
    if of_driver:
        title = f"Send {package} to the workers: the driver has imported it, and the workers cannot find it"
        return Remedy(title, (own, installed), doc=_DOC)
    title = f"Install {package} for the workers, which cannot import it"
    return Remedy(title, (installed, own), doc=_DOC)


LIKELY = pattern(
    r"(?:abc|array|ast|asyncio|base64|bisect|calendar|cmd|code|codecs|collections|concurrent"
    r"|contextvars|copy|csv|ctypes|dataclasses|datetime|decimal|dis|email|enum|fractions|functools"
    r"|glob|gzip|hashlib|heapq|html|http|importlib|inspect|io|itertools|json|keyword|locale|logging"
    r"|math|multiprocessing|numbers|operator|pathlib|pickle|platform|profile|queue|random|ray|re"
    r"|resource|sched|secrets|select|selectors|shelve|shutil|signal|site|socket|sqlite3|ssl|stat"
    r"|statistics|string|struct|subprocess|tempfile|test|textwrap|threading|time|timeit|token"
    r"|tokenize|trace|traceback|types|typing|unittest|urllib|uuid|warnings|weakref|xml|zipfile)"
)
"""Modules that Ray or its dependencies import, and whose names programs are likely to have."""

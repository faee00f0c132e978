"""Modules that a worker could not import, and remedies that provide them."""

from __future__ import annotations

from raydoctor.model import paste
from raydoctor.model.patterns import pattern
from raydoctor.model.values import Remedy
from raydoctor.rules.shared.traceback import Raised

MISSING = pattern(r"No module named '(?P<module>[\w.]+)'")
"""In the message of a ModuleNotFoundError or ImportError."""
_UNPICKLES = "ray/cloudpickle/"
"""Where a worker imports the modules that a pickled function or class refers to."""
_DOC = "https://docs.ray.io/en/latest/ray-core/handling-dependencies.html"


def remedy(raised: Raised | None) -> Remedy | None:
    """For an exception about a module that the worker could not import."""
    if raised is None or not (found := MISSING.search(raised.message)):
        return None
    place = raised.place
    return install(found["module"], of_driver=bool(place and _UNPICKLES in place.file))


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

"""Lets every process of a test import Ray's test packages, which the wheel does not contain.

Python imports this file at start-up because its folder is on PYTHONPATH, also in Ray's daemons and workers.
RAY_TESTS_SOURCE is the checkout's `python/ray`.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

SOURCE = os.environ.get("RAY_TESTS_SOURCE", "")


class TestPackages(importlib.abc.MetaPathFinder):
    """Finds `ray.tests`, `ray.serve.tests` and their kind in the checkout."""

    def find_spec(self, name, path=None, target=None):
        """The package, or None for every other module."""
        parts = name.split(".")
        if parts[0] != "ray" or parts[-1] != "tests":
            return None
        folder = os.path.join(SOURCE, *parts[1:])
        if not os.path.isdir(folder):
            return None
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [folder]
        return spec


if SOURCE:
    sys.meta_path.insert(0, TestPackages())

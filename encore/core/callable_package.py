"""Let a package be called like its main function: `encore.report(…)` beside `encore.report.…`."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


def make_callable(package: str, *, function: str) -> None:
    """Let a loaded package be called; the function is loaded by the first call.

    Args:
        package: Name of the package.
        function: Name of the function, with its module.
    """
    module, _, name = function.rpartition(".")

    class CallablePackage(ModuleType):
        """Package that is called like a function."""

        def __call__(self, *arguments: Any, **options: Any) -> Any:
            return getattr(import_module(module), name)(*arguments, **options)

    sys.modules[package].__class__ = CallablePackage

"""Frameworks that a test imports when it first uses them: at collection, each of pytest's processes would do it."""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from typing import Any


class Lazy:
    """A module, or what one holds, that is imported at its first use, without the warnings of its own import."""

    def __init__(self, module: str, *names: str) -> None:
        self._module, self._names = module, names

    def _found(self) -> Any:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: Any = import_module(self._module)
        for name in self._names:
            found = getattr(found, name)
        return found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # pytest asks what it collects for __test__
            raise AttributeError(name)
        return getattr(self._found(), name)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Calls it."""
        return self._found()(*arguments, **keywords)

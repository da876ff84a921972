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

    def found(self) -> Any:
        """Returns it, imported."""
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: Any = import_module(self._module)
        for name in self._names:
            found = getattr(found, name)
        return found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks what it collects for __test__, _mock_name and others
            raise AttributeError(name)
        return getattr(self.found(), name)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Calls it."""
        return self.found()(*arguments, **keywords)

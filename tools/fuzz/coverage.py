"""Coverage of dlio's Python code for libFuzzer, by atheris."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

available = importlib.util.find_spec("atheris") is not None


def counted() -> AbstractContextManager[object]:
    """Returns a context in which modules of dlio that are imported count what they run."""
    import atheris

    sys.meta_path[:] = [_Unwrapping(finder) if hasattr(finder, "find_spec") else finder for finder in sys.meta_path]
    return atheris.instrument_imports(["dlio"], enable_loader_override=False)


class _Unwrapping:
    """A finder whose modules have Python's own loaders: atheris knows no others, and editable installs wrap them."""

    def __init__(self, finder: Any) -> None:
        self._finder = finder

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Returns what the finder finds."""
        spec: ModuleSpec | None = self._finder.find_spec(name, path, target)
        if spec is not None:
            spec.loader = getattr(spec.loader, "_skbuild_loader", spec.loader)
        return spec

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)

"""Loads one module from a mutated text, in every Python that has this folder on its path; see view.py.

Python imports this file at each start. It lies next to `mutant.json`, which names the module; without that nothing
changes. Each process that runs the mutated code leaves a mark, since a module that is not loaded proves nothing.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType

_VIEW = Path(__file__).parent


class _Mutated(SourceFileLoader):
    """Compiles the mutated text, past the cache of compiled modules."""

    def get_code(self, fullname: str) -> CodeType:
        """Returns the code of the module, and leaves a mark."""
        code = self.source_to_code(json.loads((_VIEW / "mutant.json").read_text())["text"], self.path)
        with suppress(OSError):
            (_VIEW / "loaded" / str(os.getpid())).touch()
        return code


class _Finder:
    """Finds the module as others do, and exchanges its loader."""

    def __init__(self, module: str) -> None:
        self._module = module

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Returns the spec of the mutated module, None for all others."""
        if name != self._module:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)  # type: ignore[arg-type]
        if found is not None and found.origin is not None:
            found.loader = _Mutated(name, found.origin)
        return found


if (_VIEW / "mutant.json").exists():
    sys.meta_path.insert(0, _Finder(json.loads((_VIEW / "mutant.json").read_text())["module"]))  # type: ignore[arg-type]

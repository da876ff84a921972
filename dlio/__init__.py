"""dlio packs small image files into shards, stages the shards, and feeds them to data-parallel trainers.

`pack` writes a Manifest, `stage` copies a data set and writes a Manifest there, the loaders read a Manifest. What each
step will do is planned first, by functions without effects.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlio import sources
    from dlio.cluster.topology import Topology
    from dlio.dataset.manifest import Manifest
    from dlio.dataset.schema import Field, Sample, Schema
    from dlio.look.bench import bench
    from dlio.look.doctor import doctor
    from dlio.look.mount import mount
    from dlio.look.order import order
    from dlio.look.plan import plan
    from dlio.look.report import report
    from dlio.look.show import show
    from dlio.pack.call import pack
    from dlio.pack.inspect.verify import verify
    from dlio.pack.python.pack_items import pack_items
    from dlio.pack.python.writer import Writer
    from dlio.pack.sets import merge, select, split
    from dlio.stage import stage
    from dlio.stage.client.resolve import resolve
    from dlio.stage.upkeep.clean import clean
    from dlio.verbs import convert, index, info

__all__ = [
    "Field",
    "Manifest",
    "Sample",
    "Schema",
    "Topology",
    "Writer",
    "bench",
    "clean",
    "convert",
    "doctor",
    "index",
    "info",
    "merge",
    "mount",
    "order",
    "pack",
    "pack_items",
    "plan",
    "report",
    "resolve",
    "select",
    "show",
    "sources",
    "split",
    "stage",
    "verify",
]
__version__ = "0.1.0"

_LAZY = {
    "Field": "dlio.dataset.schema",
    "Sample": "dlio.dataset.schema",
    "Schema": "dlio.dataset.schema",
    "Manifest": "dlio.dataset.manifest",
    "Topology": "dlio.cluster.topology",
    "Writer": "dlio.pack.python.writer",
    "bench": "dlio.look.bench",
    "clean": "dlio.stage.upkeep.clean",
    "convert": "dlio.verbs",
    "doctor": "dlio.look.doctor",
    "index": "dlio.verbs",
    "info": "dlio.verbs",
    "merge": "dlio.pack.sets",
    "mount": "dlio.look.mount",
    "order": "dlio.look.order",
    "pack": "dlio.pack.call",
    "pack_items": "dlio.pack.python.pack_items",
    "plan": "dlio.look.plan",
    "report": "dlio.look.report",
    "resolve": "dlio.stage.client.resolve",
    "select": "dlio.pack.sets",
    "show": "dlio.look.show",
    "split": "dlio.pack.sets",
    "stage": "dlio.stage",
    "verify": "dlio.pack.inspect.verify",
}


class _Package(ModuleType):
    """This package: `dlio.pack` and `dlio.stage` are functions, also once the packages of these names are imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in ("pack", "stage") or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """Returns a public name, importing its module (and numpy) only when it is first used."""
    if name == "sources":
        return importlib.import_module("dlio.sources")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'dlio' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Returns the public names, those not loaded yet too."""
    return sorted([*__all__, "__version__"])

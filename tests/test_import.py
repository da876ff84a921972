"""`import dlio` is light, and modules depend on one another in one direction only."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import dlio
from tests.helpers.images import image as encoded

ROOT = Path(dlio.__file__).parent
HEAVY = [
    "torch",
    "tensorflow",
    "jax",
    "lmdb",
    "h5py",
    "mpi4py",
    "dask",
    "distributed",
    "ray",
    "pyspark",
    "matplotlib",
    "PIL",
    "google",
]
HEAVY += ["fsspec", "aiohttp", "pyarrow"]

BASE = {"cached", "errors", "urls", "io"}

#: The packages, and which others the modules of each may import, at their top or inside a function. In short:
#: cli -> look -> pack, stage, loaders; these never one another, except for the loaders, which ask stage for
#: a staged copy;
#: pack, loaders -> dataset -> formats -> dataset.schema and sample_group; everything -> io, errors.
MAY_IMPORT = {
    "__init__": {"cluster", "dataset", "pack", "stage", "verbs"},
    "__main__": {"cli", "errors"},
    "cli": BASE
    | {"__init__", "cluster", "dataset", "executors", "formats", "images", "loaders", "look", "pack", "rights"}
    | {"stage", "verbs"},
    "look": BASE
    | {"cluster", "codecs", "dataset", "images", "loaders", "native", "pack", "random_keys", "stage", "targets"},
    "verbs": BASE | {"dataset", "loaders", "look.numbers", "pack"},
    "pack": BASE | {"codecs", "dataset", "executors", "formats", "locking", "native", "targets"},
    "stage": BASE | {"cluster", "dataset", "locking", "rights"},
    "loaders": BASE
    | {"cluster", "codecs", "dataset", "formats", "images", "locking", "random_keys", "stage", "targets"},
    "executors": BASE | {"cluster"},
    "codecs": BASE | {"dataset.schema", "images", "locking", "native", "random_keys"},
    "dataset": BASE | {"formats", "native"},
    "formats": BASE | {"dataset.sample_group", "dataset.schema", "native"},
    "locking": BASE | {"cluster"},
    "cluster": BASE,
    "rights": BASE,
    "sources": {"pack"},
    "testing": BASE | {"__init__", "cli", "dataset", "executors", "formats", "pack"},
    "images": BASE | {"native", "random_keys"},
    "targets": BASE | {"codecs.orientation", "dataset.schema", "images", "random_keys"},
    "cached": set(),
    "native": {"errors"},
    "io": {"errors", "native", "urls"},
    "errors": {"urls"},
    "environment": set(),
    "random_keys": {"native"},
    "urls": set(),
}
MAX_MODULES = 16


@cache
def modules() -> dict[str, Path]:
    """Returns the file of each module of dlio, by its dotted name without `dlio.`."""
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sorted(ROOT.rglob("*.py"))}
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


@cache
def imported_by(path: Path, *, for_types: bool = False) -> frozenset[str]:
    """Returns the modules of dlio that a file imports, wherever in it; also for type checkers alone if `for_types`."""
    found = set()
    tree = ast.parse(path.read_text())
    typing = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    unseen = set() if for_types else {id(below) for node in typing for child in node.body for below in ast.walk(child)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and id(node) not in unseen:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import) and id(node) not in unseen:
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in [name.removeprefix("dlio.") for name in names if name.startswith("dlio.")]:
            found.add(name if name in modules() else name.rpartition(".")[0] or "__init__")
    return frozenset(found)


def test_every_room_has_its_row():
    assert {name.partition(".")[0] for name in modules()} == MAY_IMPORT.keys()


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_follow_the_architecture(room):
    for name, path in modules().items():
        if name.partition(".")[0] == room:
            allowed = MAY_IMPORT[room] | {room}
            wrong = {of for of in imported_by(path) if not {of, of.partition(".")[0]} & allowed}
            assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


def test_no_module_imports_itself_through_others():
    left = {name: imported_by(path, for_types=True) - {name} for name, path in modules().items()}
    while lowest := [name for name, imports in left.items() if not imports & left.keys()]:
        for name in lowest:
            del left[name]
    assert not left


def folder_of_staging(name: str) -> str:
    """Returns the folder of a module of staging; "stage" for the modules at its top."""
    part = name.split(".")[1]
    return part if (ROOT / "stage" / part).is_dir() else "stage"


def test_no_two_folders_of_staging_import_each_other():
    folders: dict[str, set[str]] = {}
    for name, path in modules().items():
        if name.startswith("stage."):
            of = {folder_of_staging(other) for other in imported_by(path) if other.startswith("stage.")}
            folders.setdefault(folder_of_staging(name), set()).update(of)
    left = {folder: imports - {folder} for folder, imports in folders.items()}
    while lowest := [folder for folder, imports in left.items() if not imports & left.keys()]:
        for folder in lowest:
            del left[folder]
    assert not left


def test_no_folder_holds_more_modules_than_a_reader_remembers():
    folders = {path.parent for path in modules().values()}
    counts = {str(folder.relative_to(ROOT)): len(list(folder.glob("*.py"))) - 1 for folder in folders}  # but __init__
    assert max(counts.values()) <= MAX_MODULES and counts["."] <= 10, counts


@pytest.mark.parametrize("module", ["dlio", "dlio.cli", "dlio.pack.run", "dlio.formats", "dlio.dataset.manifest"])
def test_a_fresh_interpreter_loads_no_heavy_package(module):
    code = f"import sys, {module}; print(*(name for name in {HEAVY} if name in sys.modules))"
    assert printed_by(code) == []


def printed_by(code: str) -> list[str]:
    """Returns the words that code prints in a new interpreter."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_completion_offers_every_public_name_before_it_is_loaded():
    code = "import dlio; names = dir(dlio); print(*(name in names and hasattr(dlio, name) for name in dlio.__all__))"
    assert printed_by(code) == ["True"] * len(dlio.__all__)


def test_a_verb_stays_a_function_when_the_package_of_its_name_is_imported():
    code = (
        "import sys, dlio; print('dlio.pack.run' in sys.modules)\n"
        "import dlio.pack.plan, dlio.stage.run, pickle; from dlio.pack import pack; from dlio.stage import stage\n"
        "print(dlio.pack is pack, dlio.stage is stage, pickle.loads(pickle.dumps(dlio.pack)) is pack)"
    )
    assert printed_by(code) == ["False", "True", "True", "True"]


def test_the_command_line_starts_light():
    code = (
        "import os, sys, dlio.cli; print('numpy' in sys.modules)\n"
        "import numpy; print(len(os.listdir('/proc/self/task')))"
    )
    assert printed_by(code) == ["False", "1"]  # no numpy before it is used, and no idle threads of its BLAS


def test_a_shuffled_order_loads_no_masked_arrays():
    code = (
        "import sys, numpy as np; from dlio.loaders.sampling.order import EpochOrder\n"
        "order = EpochOrder(np.array([0, 9]), (np.array([0]),), 1, 0, True)\n"
        "print(order.lane(0).indices(np.arange(9)).sum(), 'numpy.ma' in sys.modules)"
    )
    assert printed_by(code) == ["36", "False"]  # they take 10 to 20 ms, before the first batch


def test_packing_files_as_they_are_loads_what_it_needs_only(tmp_path):
    image = tmp_path / "in" / "class" / "image.png"
    image.parent.mkdir(parents=True)
    image.write_bytes(encoded(0))
    words = ["pack", tmp_path / "in", tmp_path / "out", "--format", "webdataset", "--workers", "1", "--quiet"]
    unneeded = ["dlio.cli.stage", "dlio.cluster.topology", "dlio.images", "dlio.loaders.loader", *HEAVY]
    code = f"import sys; from dlio import cli; cli.main({[*map(str, words)]}); print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "dlio.pack.write" in found and not set(unneeded) & set(found)


#: What reaches the system past `dlio.io.world`, except for modules that start their own processes.
UNSEEN = {"time", "random", "socket", "threading", "selectors", "select", "secrets", "uuid", "concurrent", "queue"}
UNSEEN |= {"asyncio", "subprocess", "multiprocessing", "tempfile", "datetime", "platform", "signal"}
REAL = {"stage.client.launch", "stage.engine.__main__"}
#: Functions of `os` that are pure, the same in each run, or for a descriptor that `world.open` returned.
OF_OS = {"PathLike", "fspath", "path", "strerror", "environ", "geteuid", "close", "ftruncate", "posix_fadvise"}
SETS = (ast.Set, ast.SetComp)


def simulated() -> dict[str, ast.Module]:
    """Returns the trees of the modules that run in a simulator as they are."""
    rooms = ("stage.engine", "stage.protocol", "stage.client", "stage.meeting")
    found = {name: path for name, path in modules().items() if name.startswith(rooms) and name not in REAL}
    return {name: ast.parse(path.read_text()) for name, path in found.items()}


def is_set(node: ast.expr, named: set[str]) -> bool:
    """Returns whether an expression is a set, as far as one module tells; `named` are its variables that are sets."""
    if isinstance(node, ast.BinOp):
        return is_set(node.left, named) or is_set(node.right, named)
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(node, SETS) or ast.unparse(called or node) in {"set", "frozenset", *named}


def sets_of(tree: ast.Module) -> set[str]:
    """Returns the variables and attributes of a module that are annotated as sets."""
    annotated = [node for node in ast.walk(tree) if isinstance(node, ast.AnnAssign | ast.arg) and node.annotation]
    found = [node for node in annotated if ast.unparse(node.annotation).startswith(("set[", "frozenset["))]
    return {node.arg if isinstance(node, ast.arg) else ast.unparse(node.target) for node in found}


def strays(tree: ast.Module) -> Iterator[str]:
    """Yields what in a module differs between two runs, or takes time, and does not go through `dlio.io.world`."""
    named = sets_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            yield from (f"import {name}" for name in names if name.partition(".")[0] in UNSEEN)
            if names == ["os"] and isinstance(node, ast.ImportFrom):
                yield from (alias.name for alias in node.names if alias.name not in OF_OS)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            if node.attr not in OF_OS and not node.attr.startswith(("O_", "POSIX_")):
                yield f"os.{node.attr}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"id", "hash", "open"}:
            yield f"{node.func.id}()"
        elif isinstance(node, ast.For | ast.comprehension) and is_set(node.iter, named):
            yield f"the order of {ast.unparse(node.iter)}"


def test_the_engine_reaches_the_system_through_the_seam_only():
    assert {name: found for name, tree in simulated().items() if (found := list(strays(tree)))} == {}


@pytest.mark.parametrize(
    "stray",
    [
        "import time", "from concurrent.futures import wait", "import os\nos.urandom(8)", "from os import fsync",
        "id(x)", "open(path)", "for x in {1, 2}: pass", "all(a for a in set(b) | c)", "a: set[int]\n[x for x in a]",
    ],
)  # fmt: skip
def test_what_reaches_the_system_elsewhere_is_found(stray):
    assert list(strays(ast.parse(stray)))

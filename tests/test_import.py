"""`import dlio` is light, and modules depend on one another in one direction only."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dlio

ROOT = Path(dlio.__file__).parent
HEAVY = ["torch", "tensorflow", "lmdb", "h5py", "mpi4py", "dask", "distributed", "ray", "matplotlib", "PIL", "google"]

#: What each part may import of dlio; a part is a folder or a module. From ARCHITECTURE: cli -> pack, stage, loaders;
#: pack -> formats, manifest, sample, files, images; formats -> sample, errors; manifest -> files -> errors.
BASE = {"errors", "sizes"}
MAY_IMPORT = {
    "errors": set(),
    "sizes": BASE,
    "sample": BASE,
    "files": BASE,
    "topology": BASE | {"launchers"},
    "manifest": BASE | {"files", "sample"},
    "formats": BASE | {"sample"},
    "pack": BASE | {"formats", "manifest", "sample", "files", "images", "native", "executors"}
    | {"sample_table", "shards", "filesystems"},
}


def imported_by(path: Path) -> set[str]:
    """Returns the parts of dlio that a module imports, wherever in it."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "dlio" else [node.module]
        parts |= {name.split(".")[1] for name in names if name.startswith("dlio.")}
    return parts


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_imports_follow_the_architecture(part):
    paths = [ROOT / f"{part}.py"] if (ROOT / f"{part}.py").exists() else sorted((ROOT / part).rglob("*.py"))
    assert paths
    for path in paths:
        wrong = imported_by(path) - MAY_IMPORT[part] - {part}
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


def test_staging_knows_nothing_of_formats_and_loaders_nothing_of_packing():
    for path in (ROOT / "stage").rglob("*.py"):
        assert not imported_by(path) & {"formats", "loaders", "pack", "shards"}, path
    for path in (ROOT / "loaders").rglob("*.py"):
        assert "pack" not in imported_by(path), path


@pytest.mark.parametrize("module", ["dlio", "dlio.cli", "dlio.pack.run", "dlio.formats", "dlio.manifest"])
def test_a_fresh_interpreter_loads_no_heavy_package(module):
    code = f"import sys, {module}; print(*(name for name in {HEAVY} if name in sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.split() == []


def test_import_takes_less_than_a_seventh_of_a_second():
    code = "import time; began = time.perf_counter(); import dlio; print(time.perf_counter() - began)"

    def seconds() -> float:
        return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)

    deadline = time.monotonic() + 30  # a busy machine gets more tries, a slow import never passes
    best = min(seconds() for _ in range(5))
    while best >= 0.15 and time.monotonic() < deadline:
        best = min(best, seconds())
    assert best < 0.15

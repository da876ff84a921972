"""`import dlio` is light, and modules depend on one another in one direction only."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dlio
from tests.images import image as encoded

ROOT = Path(dlio.__file__).parent
HEAVY = ["torch", "tensorflow", "lmdb", "h5py", "mpi4py", "dask", "distributed", "ray", "matplotlib", "PIL", "google"]
HEAVY += ["fsspec", "aiohttp", "cv2"]

BASE = {"errors", "sizes", "urls"}
DATA = {"sample", "sample_table", "shards", "shard_pool", "manifest", "formats", "files", "positional"}

#: What each part may import of dlio; a part is a folder or a module. In short: cli -> pack, stage, loaders; these never
#: one another, but for the loaders, which ask stage for a staged copy; formats -> sample; manifest -> files -> errors.
MAY_IMPORT = {
    "__init__": {"pack", "sources", "stage", "manifest", "sample", "topology"},
    "__main__": {"cli"},
    "cli": BASE
    | {"formats", "manifest", "sample", "pack", "stage", "loaders", "executors", "progress", "topology"}
    | {"__version__"},
    "pack": BASE
    | DATA
    | {"limits", "jpeg", "native", "pillow", "executors", "claim", "open_folder", "owner", "threads"},
    "sources": {"pack"},
    "stage": BASE
    | {"limits", "manifest", "topology", "files", "filesystems", "claim", "claim_file", "open_folder", "owner"},
    "loaders": BASE
    | DATA
    | {"topology", "images", "decoders", "pictures", "keyed", "cores", "fork_lock", "stage", "threads"},
    "decoders": BASE | {"fork_lock", "images", "jpeg", "keyed", "native", "pictures", "pillow"},
    "pictures": BASE | {"images", "jpeg", "pillow", "png", "sample"},
    "png": set(),
    "jpeg": BASE | {"native"},
    "images": BASE | {"keyed"},
    "shards": BASE | {"formats", "manifest", "positional", "sample", "sample_crc", "sample_table", "bulk"},
    "shard_pool": {"manifest", "sample", "shards"},
    "bulk": {"checksums", "formats", "positional", "sample", "sample_table"},
    "sample_table": BASE | {"formats", "positional", "sample", "sample_crc", "stored_zip"},
    "stored_zip": BASE | {"positional"},
    "sample_crc": {"sample"},
    "formats": BASE | {"positional", "sample"},
    "manifest": BASE | {"files", "limits", "sample", "shard_entry"},
    "shard_entry": set(),
    "claim": BASE | {"claim_file", "open_folder"},
    "claim_file": BASE | {"files", "open_folder", "owner"},
    "open_folder": BASE | {"files"},
    "owner": BASE,
    "executors": BASE | {"cores"},
    "filesystems": BASE | {"files"},
    "topology": BASE | {"launchers"},
    "progress": BASE,
    "files": BASE,
    "positional": BASE,
    "sample": BASE,
    "native": BASE,
    "sizes": BASE,
    "launchers": set(),
    "keyed": set(),
    "cores": set(),
    "checksums": set(),
    "fork_lock": set(),
    "threads": set(),
    "pillow": set(),
    "limits": BASE,
    "errors": {"urls"},
    "urls": set(),
}


def parts() -> dict[str, list[Path]]:
    """Returns the modules of each part of dlio, by its name."""
    found = {path.stem: [path] for path in ROOT.glob("*.py")}
    return found | {path.parent.name: sorted(path.parent.rglob("*.py")) for path in ROOT.glob("*/__init__.py")}


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


def test_every_part_has_its_row():
    assert parts().keys() == MAY_IMPORT.keys()


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_imports_follow_the_architecture(part):
    for path in parts()[part]:
        wrong = imported_by(path) - MAY_IMPORT[part] - {part}
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


def test_no_part_depends_on_itself_by_way_of_others():
    left = {part: (imports & MAY_IMPORT.keys()) - {part} for part, imports in MAY_IMPORT.items()}
    while low := [part for part, imports in left.items() if not imports & left.keys()]:
        for part in low:
            del left[part]
    assert not left


@pytest.mark.parametrize("module", ["dlio", "dlio.cli", "dlio.pack.run", "dlio.formats", "dlio.manifest"])
def test_a_fresh_interpreter_loads_no_heavy_package(module):
    code = f"import sys, {module}; print(*(name for name in {HEAVY} if name in sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.split() == []


def test_completion_offers_every_public_name_before_it_is_loaded():
    code = "import dlio; names = dir(dlio); print(*(name in names and hasattr(dlio, name) for name in dlio.__all__))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.split() == ["True"] * len(dlio.__all__)


def test_import_takes_less_than_a_seventh_of_a_second():
    code = "import time; began = time.perf_counter(); import dlio; print(time.perf_counter() - began)"

    def seconds() -> float:
        return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)

    deadline = time.monotonic() + 30  # a busy machine gets more tries, a slow import never passes
    best = min(seconds() for _ in range(5))
    while best >= 0.15 and time.monotonic() < deadline:
        best = min(best, seconds())
    assert best < 0.15


def test_packing_files_as_they_are_loads_what_it_needs_only(tmp_path):
    image = tmp_path / "in" / "class" / "image.png"
    image.parent.mkdir(parents=True)
    image.write_bytes(encoded(0))
    words = ["pack", tmp_path / "in", tmp_path / "out", "--format", "webdataset", "--workers", "1", "--quiet"]
    unneeded = ["dlio.cli.staging", "dlio.topology", "dlio.shards", "dlio.pack.sources.csv", "email.message", "tarfile"]
    code = f"import sys; from dlio import cli; cli.main({[*map(str, words)]}); print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "dlio.pack.write" in found and not set(unneeded) & set(found)

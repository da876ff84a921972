"""The README's Python, run unchanged on a small data set."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import dlio
from dlio.stage.copies.folder import StagedFolder
from tests.examples import shell
from tests.examples.observe import NUM_TRAIN
from tests.helpers.agents import end_agent
from tests.helpers.lazy import Lazy

torch = Lazy("torch")


def test_the_lines_of_python_give_batches(imagenet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path))
    packed = imagenet / "photos-packed"
    dlio.pack(dlio.sources.image_folder(imagenet / "ILSVRC2012" / "train"), packed, engine="serial")
    (lines,) = re.findall(r"```python\n(.*?)```", (shell.REPOSITORY / "README.md").read_text(), re.DOTALL)
    assert lines.count("/lustre/photos-packed") == lines.count("range(90)") == lines.count("        ...\n") == 1
    lines = lines.replace("/lustre/photos-packed", str(packed)).replace("range(90)", "range(2)")
    names: dict[str, Any] = {"seen": []}
    exec(lines.replace("...\n", "seen.append((images.shape, images.dtype, labels.shape, labels.dtype))\n"), names)
    batch = ((NUM_TRAIN, 3, 224, 224), torch.uint8, (NUM_TRAIN,), torch.int64)
    assert names["seen"] == [batch, batch]
    names["loader"].close()
    root = Path(names["dataset"].root)
    assert root.parent.parent == tmp_path
    end_agent(StagedFolder(tmp_path, root.name))

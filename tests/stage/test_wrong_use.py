"""Staging and plans with wrong arguments: the error names the argument and what is expected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import Manifest
from dlio.errors import UsageError
from dlio.stage.choose.machine_file import described
from dlio.stage.client.start import ensure_agent
from dlio.stage.planning.cost import Machine

WRONG: dict[str, tuple[Callable[[Manifest, Path], object], str]] = {
    "a URL": (lambda source, _: dlio.stage(source, "s3://bucket/x"), "s3://bucket/x is a URL: give a path"),
    "a rate": (lambda source, _: dlio.plan(source, nodes=2, network_rate=0), "network_rate=0: expected bytes"),
    "no nodes": (lambda source, _: dlio.plan(source, nodes=0), "nodes=0: expected a whole number >= 1"),
    "a timeline alone": (
        lambda source, folder: dlio.plan(source, nodes=2, timeline=folder / "t.svg"),
        "a timeline needs a simulation: give --simulate",
    ),
    "striping in the background": (
        lambda source, folder: ensure_agent(source.root, folder / "local", strategy="stripe"),
        "stripe cannot run in the background: choose one of broadcast, partition, replicate",
    ),
    "a file": (lambda source, folder: dlio.stage(source, written(folder)), "/file is a file: name a folder to stage"),
    "a folder below a file": (
        lambda source, folder: ensure_agent(source.root, written(folder) / "local"),
        "/file is a file: name a folder to stage",
    ),
    "a broken link": (
        lambda source, folder: dlio.stage(source, broken_link(folder)),
        "/link is a broken link, or one to a file: name a folder to stage to",
    ),
    "no folder": (lambda source, folder: dlio.stage("", folder / "local"), "an empty path: is a variable"),
    "an empty folder": (lambda source, folder: dlio.stage(source, ""), "an empty path: is a variable"),
    "all": (lambda source, folder: dlio.stage("/", folder / "local"), "/ has no name: give a file or folder in it"),
    "a number too large": (
        lambda source, folder: described(machine_file(folder), Machine(2, 1)),
        "source as 10+: int too large",
    ),
}  # fmt: skip


def written(folder: Path) -> Path:
    (folder / "file").write_text("not empty")
    return folder / "file"


def broken_link(folder: Path) -> Path:
    (folder / "link").symlink_to("nowhere")
    return folder / "link"


def machine_file(folder: Path) -> str:
    (folder / "machine.toml").write_text(f"source = 1{'0' * 400}")
    return str(folder / "machine.toml")


@pytest.mark.parametrize("what", list(WRONG))
def test_what_cannot_be_is_named_and_nothing_is_staged(dataset: Manifest, tmp_path: Path, what: str) -> None:
    use, said = WRONG[what]
    with pytest.raises(UsageError, match=said):
        use(dataset, tmp_path)
    assert not (tmp_path / "local").exists() and not (tmp_path / "t.svg").exists()

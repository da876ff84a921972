"""A strategy from outside the package: one module, which every command that knows strategies takes."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dlio
from dlio import cli
from dlio.dataset.manifest import Manifest
from dlio.errors import UsageError
from dlio.stage import strategies
from dlio.stage.choose.auto import choose
from dlio.stage.planning.cost import Machine, Volume
from tests.helpers.staging import assert_staged, node

RELAY = '''
"""Relay: copies the whole data set, the second half first."""

from dlio.stage.planning.cost import Cost
from dlio.stage.planning.plan import Plan
from dlio.stage.strategies import Needs

NEEDS = Needs()


def cost(volume, machine, copies):
    return Cost(machine.num_nodes, volume.num_bytes, volume.num_bytes, 0.5, "the second half comes first")


def copy_name(job):
    return job.manifest.content_id


def plan(job):
    return Plan(job.manifest, begin=0.5)
'''


@pytest.fixture
def relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The dotted path of a strategy in a package of its own."""
    package = tmp_path / "modules" / "relaying"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "relay.py").write_text(RELAY)
    monkeypatch.syspath_prepend(package.parent)
    yield "relaying.relay"
    for name in ("relaying", "relaying.relay"):
        sys.modules.pop(name, None)


def said(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, object]:
    """Returns the JSON that a command prints."""
    assert cli.main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_a_strategy_of_another_package_stages(dataset: Manifest, tmp_path: Path, relay: str) -> None:
    assert_staged(dlio.stage(dataset, tmp_path / "local", strategy=relay, topology=node(0, 1)), dataset)


def test_the_commands_take_a_strategy_of_another_package(
    dataset: Manifest, tmp_path: Path, relay: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = ("stage", dataset.root, tmp_path / "local", "--strategy", relay)
    previewed = said(capsys, *stage, "--dry-run")
    assert (previewed["strategy"], previewed["seconds"]) == (relay, 0.5)
    assert not (tmp_path / "local").exists()
    planned = said(capsys, "plan", dataset.root, "--nodes", "4", "--strategy", relay)
    assert [way["strategy"] for way in planned["ways"]] == [*strategies.names(), relay]  # type: ignore[attr-defined]
    staged = said(capsys, *stage)
    assert (staged["strategy"], staged["path"]) == (relay, previewed["path"])
    assert_staged(Manifest.load(Path(str(staged["path"]))), dataset)


def test_auto_chooses_a_strategy_that_was_added_to_the_folder(
    tmp_path: Path, relay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "added"
    folder.mkdir()
    shutil.copy(tmp_path / "modules" / "relaying" / "relay.py", folder)
    monkeypatch.setattr(strategies, "__path__", [*strategies.__path__, str(folder)])
    importlib.invalidate_caches()
    assert "relay" in strategies.names()
    decision = choose(Volume(10**12), Machine(100, 10**13))
    assert (decision.strategy, decision.why) == (
        "relay",
        "1.0 TB fit into the 10.0 TB of each node, and the second half comes first",
    )
    sys.modules.pop("dlio.stage.strategies.relay")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("relay", "'relay' is not a strategy: expected auto, broadcast, partition, replicate, stripe"),
        ("no.such.module", "cannot be imported: No module named 'no'"),
        ("json.decoder", "is not a strategy: it lacks NEEDS, cost, copy_name, plan"),
    ],
)
def test_other_modules_are_refused_as_strategies(dataset: Manifest, tmp_path: Path, name: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        dlio.stage(dataset, tmp_path / "local", strategy=name)

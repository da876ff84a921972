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
from dlio.stage.client.filling import cached
from dlio.stage.planning.cost import Machine, Volume
from tests.helpers.agents import agents
from tests.helpers.live import eventually, is_complete, meet_in, nodes
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


THIRDS = (
    RELAY.split("def copy_name")[0].replace("Needs()", "Needs(parts=True)")
    + """
def copy_name(job):
    return f"{job.manifest.content_id}.1of3x1"


def plan(job):
    return Plan(replace(partitioned(job.manifest, 3), node=1))


from dataclasses import replace
from dlio.stage.planning.plan import partitioned
"""
)


@pytest.fixture
def relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The dotted path of a strategy in its own package; `relaying.thirds` keeps a third."""
    package = tmp_path / "modules" / "relaying"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "relay.py").write_text(RELAY)
    (package / "thirds.py").write_text(THIRDS)
    monkeypatch.syspath_prepend(package.parent)
    yield "relaying.relay"
    for name in ("relaying", "relaying.relay", "relaying.thirds"):
        sys.modules.pop(name, None)


def said(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, object]:
    """Returns the JSON that a command prints."""
    assert cli.main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_a_strategy_of_another_package_stages(dataset: Manifest, tmp_path: Path, relay: str) -> None:
    assert_staged(dlio.stage(dataset, tmp_path / "local", strategy=relay, topology=node(0, 1)), dataset)


def test_the_plan_of_a_strategy_of_another_package_is_the_same_for_all_doors(
    dataset: Manifest, tmp_path: Path, relay: str
) -> None:
    """In this process, in the background, and where a loader's `cache=` finds the agent of its job."""
    thirds = relay.replace(".relay", ".thirds")
    alone = dlio.stage(dataset, tmp_path / "alone", strategy=thirds, topology=node(0, 1))
    with agents(tmp_path) as start:
        (folder,) = start(dataset.root, thirds, 1)
        manifest, filling = cached(dataset.root, folder.dest)
        assert manifest.shards == dataset.shards and filling and filling.manifest.root == folder.path
        eventually(folder.has_manifest)
    assert folder.copy == alone.root.name
    staged = Manifest.load(folder.path)
    assert staged == alone and 0 < len(staged.shards_here) < len(dataset.shards)
    assert {file.name for shard in staged.shards_here for file in shard.files} == {
        path.name for path in folder.path.glob("*.bin")
    }


def test_agents_pass_files_to_each_other_whatever_the_strategy(
    dataset: Manifest, tmp_path: Path, relay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node of this one keeps all; the agents of a job read each byte once all the same."""
    meet_in(tmp_path / "meet", monkeypatch)
    with nodes(dataset.root, tmp_path, 2, strategy=relay) as found:
        eventually(lambda: all(map(is_complete, found)))
        assert sum(each.server.stat()["source_bytes"] for each in found) == dataset.num_bytes


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
        "1.0 TB fit into the 10.0 TB of a node, and the second half comes first",
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

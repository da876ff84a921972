"""A folder that is staged as it is goes to several nodes by broadcast, each byte read once, and they agree on it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import DigestError
from dlio.io.files import digest_bytes
from dlio.stage.planning.homes import PIECE_BYTES
from dlio.stage.planning.plan import Plan
from dlio.stage.sources.anything import anything
from tests.helpers.slow_source import bytes_read
from tests.helpers.staging import flip, node
from tests.helpers.trees import make_tree, snapshot
from tests.stage.launched import Cluster, needs_mpiexec

pytestmark = [pytest.mark.jobs, needs_mpiexec]


def _tree(tmp_path: Path) -> Path:
    """Returns a folder with a file that is divided among a few nodes."""
    tree = make_tree(tmp_path / "shared" / "env", small=600)
    (tree / "weights").write_bytes(random.Random(7).randbytes(6 * PIECE_BYTES + 5))
    return tree


@pytest.mark.parametrize("transport", ["mpi", "folder"])
def test_three_nodes_list_the_folder_once_read_each_byte_once_and_agree(
    tmp_path: Path, transport: str, slow_source: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOIN_SECONDS", "60")  # all come, on a busy machine maybe late
    tree = _tree(tmp_path)
    mounted, cluster = slow_source(tree.parent), Cluster(tmp_path, transport)
    source = anything(mounted / "env").manifest
    reports = cluster.run(mounted / "env", 3)
    copies = [cluster.staged(source, node) for node in range(3)]
    assert [snapshot(copy.path) == snapshot(tree) for copy in copies] == [True] * 3
    table = source.shards[0].num_bytes
    assert sum(report["source_bytes"] for report in reports.values()) == source.num_bytes
    assert bytes_read(mounted) == source.num_bytes - table
    assert min(report["source_bytes"] for report in reports.values()) >= 2 * PIECE_BYTES
    assert len({copy.digest for copy in copies}) == 1
    folders = [mounted / path.relative_to(tree.parent) for path in (tree, *tree.rglob("*")) if path.is_dir()]
    listed = [path for report in reports.values() for path in report["listed"]]
    assert sorted(listed) == sorted(str(path) for path in folders if not path.is_symlink())


def _plain(names: Sequence[str]) -> str:
    """Returns the last name that JSON holds without escapes."""
    return [name for name in names if re.fullmatch(r"env/[a-z/]+[-.\w]*", name)][-1]


def _changed(copy: Manifest, name: str) -> None:
    """Lets a node have other bytes of a file, and their digest; its copy is not published any more."""
    (copy.root / NAME).unlink(missing_ok=True)
    flip(copy.root / name)
    journal = copy.root / ".dlio" / "digests"
    digest = digest_bytes((copy.root / name).read_bytes())
    journal.write_text(re.sub(rf'(\["{name}", )"[^"]*"', rf'\1"{digest}"', journal.read_text()))


@pytest.mark.parametrize("kind", ["large", "small", "divided"])
def test_a_node_with_other_bytes_than_were_read_says_so(tmp_path: Path, kind: str) -> None:
    tree = _tree(tmp_path) if kind == "divided" else make_tree(tmp_path / "shared" / "env", small=600)
    cluster, source = Cluster(tmp_path, "folder"), anything(tree).manifest
    cluster.run(tree, 2)
    plan = Plan(source, 0, 2)
    wanted = [number for number, file in enumerate(plan.listed) if (file.name in plan.groups) == (kind == "small")]
    wanted = [number for number in wanted if plan.is_divided(number) == (kind == "divided")]
    one, owner = plan.listed[wanted[-1]].name, plan.home(wanted[-1])
    copy = cluster.staged(source, 1 - owner)
    name = _plain([file.name for file in plan.groups.get(one, [plan.listed[wanted[-1]]])])
    _changed(copy, name)
    error = cluster.run(tree, 2)[f"node{1 - owner}.{1 - owner}"]["error"]
    how = "got pieces of it from others" if kind == "divided" else "read it from the source"
    assert re.search(f"{one} has the digest .*, and node {owner} .*{how}", error)
    assert not (copy.root / NAME).exists() and not (copy.root / name).exists()
    cluster.run(tree, 2)
    assert snapshot(copy.path) == snapshot(tree)


def test_what_an_earlier_run_received_is_compared_with_the_source(tmp_path: Path) -> None:
    """Its nodes have ended and cannot report what they read."""
    tree = make_tree(tmp_path / "shared" / "env", small=600)
    cluster, source = Cluster(tmp_path, "folder"), anything(tree).manifest
    cluster.run(tree, 2)
    plan = Plan(source, 0, 2)
    for number in range(2):  # one of them receives the small files, and one the large ones
        copy = cluster.staged(source, number)
        journal = (copy.root / ".dlio" / "digests").read_text()
        received = [json.loads(line)[0] for line in journal.splitlines() if line.endswith("true]")]
        owned = [
            plan.groups.get(file.name, [file]) for each, file in enumerate(plan.listed) if plan.home(each) != number
        ]
        assert received and set(received) <= {file.name for group in owned for file in group}
        _changed(copy, name := _plain(received))
        where = tmp_path / "local" / f"node{number}"
        with pytest.raises(DigestError, match=r"has the digest xxh3-128:.*, and the source has"):
            dlio.stage(tree, where, strategy="replicate", topology=node(0, 1))
        assert not (copy.root / NAME).exists() and not (copy.root / name).exists()
        dlio.stage(tree, where, strategy="replicate", topology=node(0, 1))
        assert snapshot(copy.path) == snapshot(tree)

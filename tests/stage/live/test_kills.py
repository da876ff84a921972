"""Agents and whole nodes are killed at random moments: the remaining ranks get the right bytes, and continue."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dlio.dataset.manifest import Manifest
from dlio.dataset.schema import Sample, Schema
from dlio.dataset.shard import files_of
from dlio.errors import StorageError
from dlio.stage.copies.blocks import BLOCK_BYTES, Blocks
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import LiveFolder
from tests.helpers import fork_server
from tests.helpers.agents import end_agent
from tests.helpers.rounds import ROUNDS
from tests.helpers.staging import damaged_files
from tests.helpers.web import WebServer, running
from tests.loaders.packing import pack_samples

SCRIPT = Path(__file__).with_name("training_rank.py")
MODULES = ("fsspec.implementations.http", "dlio.loaders.dataset", "dlio.stage.client.start")
NODES, SAMPLES, SECONDS = 2, 160, 1.5
RUNS = ROUNDS
Block = tuple[str, int]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """160 samples of 50 kB in 8 shards."""
    schema, chosen = Schema.of({"image": "bytes", "label": "int64"}, ("a", "b"), 0), random.Random(3)
    samples = [Sample(f"{i:03}", {"image": chosen.randbytes(50_000), "label": i % 2}) for i in range(SAMPLES)]
    return pack_samples(tmp_path_factory.mktemp("packed"), schema, samples, num_shards=8)


@pytest.fixture
def web(packed: Manifest, tmp_path: Path) -> Iterator[WebServer]:
    """A slow server, by which each node reads under its own name."""
    (tmp_path / "web").mkdir()
    for rank in range(NODES):
        (tmp_path / "web" / f"n{rank}").symlink_to(packed.root)
    server = WebServer(tmp_path / "web", delay=0.1)
    with running(server):
        yield server


def started(rank: int, web: WebServer, packed: Manifest, around: Path, strategy: str) -> fork_server.Job:
    """Starts the rank of a node."""
    (folder := around / f"rank{rank}").mkdir()
    dest = around / f"node{rank}"
    numbers = {"RANK": rank, "WORLD_SIZE": NODES, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": rank,
               "GROUP_WORLD_SIZE": NODES, "TORCHELASTIC_RUN_ID": around.name}  # fmt: skip
    places = {"DLIO_MEET": around, "DLIO_INTERFACE": "127.0.0.1", "DLIO_STAGED": dest, "DLIO_LAUNCHER": "torchrun"}
    environ = os.environ | {name: str(value) for name, value in (numbers | places).items()}
    arguments = [f"{web.url}/n{rank}", str(dest), strategy, str(packed.root)]
    return fork_server.start(MODULES, SCRIPT, arguments, folder, environ)


def copies(around: Path, rank: int, packed: Manifest) -> list[StagedFolder]:
    """Returns the copy of a node, if it has begun."""
    dest = around / f"node{rank}"
    return [StagedFolder(dest, path.name) for path in (dest / "dlio").glob(f"{packed.content_id}*")]


def whole_blocks(folder: StagedFolder, packed: Manifest) -> set[Block]:
    """Returns the blocks of a copy that are whole."""
    found: set[Block] = set()
    for file in files_of(packed.shards):
        everything = set(range(-(-file.num_bytes // BLOCK_BYTES)))
        with suppress(StorageError):
            if folder.has(file):
                missing = []
            else:
                missing = Blocks.open(LiveFolder(folder).blocks(file), file.num_bytes).missing(0, file.num_bytes)
            lacking = {block for begin, end in missing for block in range(begin // BLOCK_BYTES, -(-end // BLOCK_BYTES))}
            found |= {(file.name, block) for block in everything - lacking}
    return found


def asked(web: WebServer, rank: int, since: int) -> set[Block]:
    """Returns the blocks that a node has asked the source for since a moment."""
    found: set[Block] = set()
    for path, span in web.ranges[since:]:
        node, _, name = path.partition("/")
        if node == f"n{rank}" and span:
            first, last = map(int, span.removeprefix("bytes=").split("-"))
            found |= {(name, block) for block in range(first // BLOCK_BYTES, last // BLOCK_BYTES + 1)}
    return found


def kill(around: Path, rank: int, packed: Manifest, number: int) -> set[Block]:
    """Ends the agent of a node, and returns what is whole there then."""
    whole: set[Block] = set()
    for folder in copies(around, rank, packed):
        end_agent(folder, number)
        whole |= whole_blocks(folder, packed)
    return whole


@pytest.mark.jobs
@pytest.mark.timeout(60 * RUNS + 300)
def test_kills_at_random_moments_deliver_nothing_wrong_and_read_nothing_twice(
    packed: Manifest, web: WebServer, tmp_path: Path
) -> None:
    """In half of the runs a whole node is lost, rank and agent; in the others its agent is killed, even twice."""
    pytest.importorskip("aiohttp")
    seed = int(os.environ.get("DLIO_TEST_SEED", time.time_ns() % 10**6))
    for run in range(RUNS):
        play(random.Random(seed + run), f"seed {seed + run}", packed, web, tmp_path / f"run{run}")


def play(choose: random.Random, name: str, packed: Manifest, web: WebServer, around: Path) -> None:
    """Runs one job, in which a node or its agent is killed."""
    around.mkdir(mode=0o700)
    web.ranges.clear()
    strategy, victim, is_lost = (
        choose.choice(("replicate", "partition")),
        choose.randrange(NODES),
        choose.random() < 0.5,
    )
    ranks = [started(rank, web, packed, around, strategy) for rank in range(NODES)]
    before: list[tuple[int, set[Block]]] = []
    try:
        for _ in range(1 if is_lost else 2):
            time.sleep(choose.uniform(0, SECONDS))
            if is_lost:
                ranks[victim].kill()
            whole = kill(around, victim, packed, choose.choice((signal.SIGKILL, signal.SIGTERM)))
            before.append((len(web.ranges), whole))
        for rank, job in enumerate(ranks):
            said = job.communicate()[0]
            assert (rank == victim and is_lost) or job.poll() == 0, f"{name}, rank {rank}: {said}"
    finally:
        for rank in range(NODES):
            kill(around, rank, packed, signal.SIGTERM)
    again = set().union(*(whole & asked(web, victim, since) for since, whole in before))
    assert not again, f"{name}: {sorted(again)[:5]} were whole on node {victim}, and read again"
    for rank in range(NODES):
        for folder in copies(around, rank, packed):
            assert damaged_files(folder.path, packed) == [], name

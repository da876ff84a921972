"""Open data sets, and what loaders of their samples share: files, counts, memory.

A data set is read in its own folder, or in its copy on this node, which may still be arriving.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path

from dlio.cluster.topology import Topology
from dlio.dataset.location import TREE
from dlio.dataset.manifest import Manifest
from dlio.dataset.pool import ShardPool
from dlio.errors import ManifestError, MissingError, UsageError
from dlio.io import world
from dlio.io.arrivals import Filling
from dlio.loaders.mixture import Data, Mixture
from dlio.loaders.numbering import Numbering, joined, mixed
from dlio.loaders.prefetch.memory import BatchMemory
from dlio.loaders.prefetch.reads import WaitTimes
from dlio.loaders.sampling.mixed_order import draws_of
from dlio.loaders.sampling.order import Indices, first_uses, num_lanes
from dlio.loaders.sampling.rank_share import Step
from dlio.loaders.stats import Clock, Skips
from dlio.stage.client.resolve import opened as found_copy
from dlio.stage.planning.plan import has_parts

_READ_PIECES = 16  # 64 MB, for samples that are read without a loader, which would set a limit


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """Open data sets whose samples are numbered; safe for several threads, picklable, and safe across fork.

    Attributes:
        numbering: the samples.
        pool: the open shards, by the numbering's shard numbers.
        skips, clock, pace: counts and times, of all numberings of these samples together.
        memory, read_memory: for batches, and for the records that they are made of.
    """

    numbering: Numbering
    pool: ShardPool
    skips: Skips
    clock: Clock = field(default_factory=Clock)
    pace: WaitTimes = field(default_factory=WaitTimes)
    memory: BatchMemory = field(default_factory=BatchMemory)
    read_memory: BatchMemory = field(default_factory=partial(BatchMemory, _READ_PIECES))

    @property
    def fillings(self) -> list[Filling]:
        """The fillers of the folders that are read."""
        return [folder.filling for folder in self.pool.folders if folder.filling is not None]

    def chosen(self, rows: Sequence[int] | Indices) -> Opened:
        """Returns some of the samples; raises as `Numbering.chosen`."""
        return replace(self, numbering=self.numbering.chosen(rows))

    def ascending(self) -> Opened:
        """Returns the same samples in the order of the shards."""
        return replace(self, numbering=self.numbering.ascending())

    def expect(self, coming: Iterable[Step]) -> None:
        """Sends the order in which batches use the shards to the folders' fillers, from its own thread."""
        if self.fillings:
            with suppress(MissingError):  # it is a hint
                world.start(partial(self._expect, coming), "dlio-order")

    def _expect(self, coming: Iterable[Step]) -> None:
        numbering = self.numbering
        shards = first_uses((numbering.stored(step.indices) for step in coming), numbering.offsets)
        for (_, filling), (first, end) in zip(self.pool.folders, pairwise(self.pool.firsts), strict=True):
            if filling is not None:
                filling.expect([shard - first for shard in shards if first <= shard < end])


def open_data(data: Data, cache: str | Path | bool | None = None, max_skipped: int = 0) -> Opened:
    """Returns the samples of a data set, of its copy on this node if it has one, or of a mixture.

    A staged part is used only by a job of as many nodes as it was staged to.

    Args:
        data: the folder or URL that holds `manifest.jsonl`, a manifest, or a mixture of these.
        cache: the node-local folder to stage to in the meantime; True chooses one, None or False does not stage.
        max_skipped: how many damaged samples may be replaced.

    Raises:
        ManifestError, StorageError: as Manifest.load.
        LauncherError: as Topology.from_env.
        DlioError: as `dlio.stage`, if there is a cache.
    """
    if isinstance(data, Mixture):
        parts = [open_data(part, cache, max_skipped) for part, _ in data.parts]
        numbering = mixed([part.numbering for part in parts], draws_of(data.weights), data.epoch_samples)
        return _together(parts, numbering)
    manifest, filling = _found(data, cache)
    if manifest.format == TREE:
        raise ManifestError(
            f"{manifest.path} is the copy of a file or folder, and holds no samples: stage a data set, or "
            "open its files by path"
        )
    return Opened(Numbering(manifest), ShardPool(manifest, filling=filling), Skips(max_skipped))


def joined_data(parts: Sequence[Opened]) -> Opened:
    """Returns the samples of several data sets, one after the other; raises as `joined`."""
    return _together(parts, joined([part.numbering for part in parts]))


def _together(parts: Sequence[Opened], numbering: Numbering) -> Opened:
    """Returns data sets under one numbering, which counts through their shards."""
    (manifest, filling), *more = chain.from_iterable(part.pool.folders for part in parts)
    return replace(parts[0], numbering=numbering, pool=ShardPool(manifest, filling=filling, more=more))


def _found(data: str | Path | Manifest, cache: str | Path | bool | None) -> tuple[Manifest, Filling | None]:
    """Returns the manifest of a data set or of its copy on this node, and who fills that; None if it is complete."""
    if isinstance(data, Manifest):
        if cache:
            raise UsageError("cache= needs the folder or URL of a data set, not its manifest")
        return data, None
    if cache:
        from dlio.stage.client.filling import cached  # with the engine of staging, a sixth of what the loaders import

        manifest, filling = cached(data, cache)
    else:
        manifest, filling = found_copy(data)
    if filling is None and has_parts(manifest) and num_lanes(manifest) != Topology.from_env().num_nodes:
        return Manifest.load(data), None
    return manifest, filling

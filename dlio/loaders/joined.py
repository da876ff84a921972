"""Several packed data sets one after the other, as torch's ConcatDataset joins them: with dlio's order and resume."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate, pairwise

from dlio.dataset.manifest import Manifest
from dlio.dataset.part_reader import PartReader
from dlio.dataset.reader import ShardReader
from dlio.errors import UsageError
from dlio.io.arrivals import Filling
from dlio.io.files import digest_bytes
from dlio.loaders.dataset import PackedSamples


class JoinedSamples(PackedSamples):
    """The samples of several data sets, numbered through; it shares their open files."""

    def __init__(self, parts: Sequence[PackedSamples]) -> None:
        """Joins data sets.

        Raises:
            UsageError: they differ in fields, classes, label offset, transform or `upright`, or are staged in parts.
        """
        first = parts[0]
        _check_alike(parts)
        vars(self).update(vars(first))
        for name in ("labels", "sample_bytes", "_offsets"):
            vars(self).pop(name, None)
        self._parts = tuple(parts)
        self.filling = None  # each part's pool has its own
        self.manifest = _joined([part.manifest for part in parts])
        self._pool = _Pools(parts)  # type: ignore[assignment]

    @property
    def fillings(self) -> list[Filling]:
        """Who fills the folders of the parts."""
        return [filling for part in self._parts for filling in part.fillings]


class _Pools:
    """The pools of several data sets as one, by the shards' numbers in the joined manifest."""

    def __init__(self, parts: Sequence[PackedSamples]) -> None:
        self._pools = [part._pool for part in parts]
        self._starts = list(accumulate((len(part.manifest.shards) for part in parts), initial=0))

    @property
    def most_lent(self) -> int:
        """How many shards a thread may borrow at a time."""
        most = [pool.most_lent for pool in self._pools]
        bounds = [each for each, (first, end) in zip(most, pairwise(self._starts), strict=True) if each < end - first]
        return min(bounds, default=self._starts[-1] or 1)

    @contextmanager
    def shard(self, number: int) -> Iterator[ShardReader | PartReader]:
        """Lends an open shard; see `ShardPool`."""
        part = bisect_right(self._starts, number) - 1
        with self._pools[part].shard(number - self._starts[part]) as reader:
            yield reader

    def close(self) -> None:
        """Closes every shard."""
        for pool in self._pools:
            pool.close()


def _check_alike(parts: Sequence[PackedSamples]) -> None:
    first = parts[0]
    for part in parts:
        where = f"{first.manifest.root} and {part.manifest.root} cannot be joined"
        if part.schema != first.schema:
            raise UsageError(f"{where}: their fields, classes or label offsets differ: pack both by one --classes")
        if (part.transform, part.upright) != (first.transform, first.upright):
            raise UsageError(f"{where}: their transforms differ: give both the same, and the same upright=")
        if any(shard.nodes for shard in part.manifest.shards):
            raise UsageError(f"{where}: {part.manifest.root} is staged in parts: stage it by another strategy")


def _joined(manifests: Sequence[Manifest]) -> Manifest:
    shards = tuple(shard for manifest in manifests for shard in manifest.shards)
    plans = " ".join(str(manifest.origin.get("plan") or manifest.content_id) for manifest in manifests)
    origin = dict(manifests[0].origin) | {"plan": digest_bytes(plans.encode())}
    return replace(manifests[0], shards=shards, origin=origin)

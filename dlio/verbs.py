"""The verbs of the command line that combine others, as functions with the same names and defaults.

`dlio.pack`, `stage`, `index` and `clean` have modules of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlio.dataset.manifest import Manifest, Shard
    from dlio.pack.inspect.verify import Damage
    from dlio.stage.planning.cost import Cost
    from dlio.stage.planning.live_cost import LiveCost


def convert(dataset: str | Path, out: str | Path, **options: Any) -> Manifest:
    """Writes the packed data set in the folder or at the URL `dataset` into `out`, in another format or other shards.

    Keys, labels, class names and order are kept; no image is decoded unless an option changes its pixels.

    Args:
        dataset: the folder or URL of a packed data set.
        out: the folder to write, or an object store's URL.
        **options: those of `dlio.pack`, such as `format`, by default "tfrecord".

    Raises:
        DlioError: as `dlio.pack`.
    """
    from dlio.pack import pack
    from dlio.pack.sources.packed import packed

    return pack(packed(dataset), out, **options)


def verify(
    dataset: str | Path | Manifest,
    *,
    decode: bool = False,
    workers: int | None = None,
    report: Callable[[Shard], None] = lambda shard: None,
) -> list[Damage]:
    """Returns all damage in a packed data set, in the order of shards and records; empty if it is whole.

    Args:
        dataset: the folder or URL of the data set, or its manifest. At a URL each file is read twice.
        decode: also decodes every image.
        workers: the number of processes; by default one for each core.
        report: called with each checked shard.

    Raises:
        ManifestError: `dataset` holds no data set, or its manifest is damaged.
        StorageError: this user may not read a file.
        MissingPackageError: the format's own package is not installed.
    """
    from dlio.pack.inspect.verify import verify as find_damage

    return find_damage(_manifest(dataset), decode=decode, workers=workers, report=report)


def info(
    dataset: str | Path | Manifest,
    *,
    shuffle_window: int | None = None,
    batch_size: int = 256,
    stats: bool = False,
    progress: Callable[[int, int], None] = lambda num_samples, num_bytes: None,
) -> dict[str, Any]:
    """Returns what a packed data set holds: the object that `dlio info --json` prints.

    Args:
        dataset: the folder or URL of the data set, or its manifest.
        shuffle_window: adds a score of how well a shuffle of this many shards at a time mixes; 1 is the exact one.
        batch_size: of a global batch.
        stats: adds mean and standard deviation of the channels, heights and widths, and class weights; up to 20,000
            samples are read, spread evenly. They are kept in `.dlio-stats.json` beside the manifest, if possible.
        progress: called with the samples and bytes read for `stats` since the last call.

    Raises:
        ManifestError, CorruptRecordError, StorageError: it cannot be read.
    """
    from dlio.look.numbers import stats_of
    from dlio.pack.inspect.summary import summarise
    from dlio.urls import without_credentials

    manifest = _manifest(dataset)
    origin = {name: value for name, value in manifest.origin.items() if name != "refused"}  # counted as skipped
    path = without_credentials(str(manifest.root))
    names = {"class_names": list(manifest.class_names), "origin": origin, "path": path}
    mixing = {} if shuffle_window is None else {"mixing_score": _mixing(manifest, shuffle_window, batch_size)}
    numbers = {"stats": stats_of(manifest, progress)} if stats else {}
    return describe(manifest) | asdict(summarise(manifest)) | names | mixing | numbers


def describe(manifest: Manifest) -> dict[str, Any]:
    """Returns the entries at the beginning of every report on a packed data set."""
    return {
        "format": manifest.format,
        "schema": manifest.schema.types(),
        "samples": manifest.num_samples,
        "bytes": manifest.num_bytes,
        "shards": len(manifest.shards),
        "classes": len(manifest.class_names),
        "skipped": len(manifest.skipped),
        "content_id": manifest.content_id,
    }


def _mixing(manifest: Manifest, shuffle_window: int, batch_size: int) -> dict[str, Any]:
    import numpy as np

    from dlio.loaders.sampling.mixing import mixing_score
    from dlio.loaders.sampling.order import Window
    from dlio.pack.inspect.summary import class_counts

    window, sizes = Window(shuffle_window), np.array([shard.num_samples for shard in manifest.shards], np.int64)
    counts = class_counts(manifest)
    return {
        "shuffle_window": shuffle_window,
        "batch_size": batch_size,
        "by_class": None if counts is None else round(mixing_score(window, batch_size, sizes, counts), 4),
        "at_worst": round(mixing_score(window, batch_size, sizes), 4),
    }


@dataclass(frozen=True, slots=True)
class Prediction:
    """What `auto` would choose on a described cluster, the cost of each strategy there, and while training runs."""

    chosen: Cost
    ways: tuple[Cost, ...]
    live: tuple[LiveCost, ...]


def plan(
    dataset: str | PathLike[str] | Manifest,
    *,
    nodes: int,
    local_free: int = 1 << 40,
    source_rate: float | None = None,
    client_rate: float | None = None,
    network_rate: float | None = None,
    local_rate: float | None = None,
    osts: int = 0,
    copies: int = 1,
    epochs: int = 0,
    strategy: str = "auto",
) -> Prediction:
    """Returns what it costs to stage a data set on a described cluster; writes nothing.

    Args:
        dataset: the folder, the URL or the manifest of a packed data set.
        nodes: the number of nodes.
        local_free: the room on each, in bytes.
        source_rate, client_rate, network_rate, local_rate: bytes per second from the source to all nodes, to one node,
            from one node to another, and to a node's storage; by default those that `dlio bench` measured, else those
            of a typical cluster.
        osts: storage targets of the source; 0 for enough.
        copies: nodes that hold each shard, in parts.
        epochs: the number planned; 0 if unknown.
        strategy: another one to look at, by its dotted path.

    Raises:
        ManifestError, StorageError: it cannot be read, or does not fit.
        UsageError: a number or the strategy is impossible.
    """
    from dlio.stage import strategies
    from dlio.stage.auto import choose
    from dlio.stage.measured import applied
    from dlio.stage.planning.cost import Machine, Volume
    from dlio.stage.planning.live_cost import live_cost
    from dlio.stage.transfer.source import source_of

    manifest = source_of(dataset).manifest
    volume = Volume.of(manifest)
    given = {"source": source_rate, "client": client_rate, "network": network_rate, "local": local_rate}
    rates: dict[str, Any] = {name: rate for name, rate in given.items() if rate is not None}
    machine = replace(applied(Machine(nodes, local_free, num_targets=osts), manifest, None), **rates)
    chosen = choose(volume, machine, epochs)
    names = [name for name in dict.fromkeys([*strategies.names(), strategy]) if name != strategies.AUTO]
    ways = {name: strategies.cost_of(name, volume, machine, copies) for name in names}
    wanted = {"replicate": volume.num_bytes, "partition": ways["partition"].bytes_per_node}
    live = (live_cost(name, volume, num_bytes, machine) for name, num_bytes in wanted.items())
    return Prediction(chosen, tuple(way.on(machine) for way in ways.values()), tuple(live))


def _manifest(dataset: str | Path | Manifest) -> Manifest:
    from dlio.dataset.manifest import Manifest
    from dlio.dataset.remote import load

    return dataset if isinstance(dataset, Manifest) else load(dataset)

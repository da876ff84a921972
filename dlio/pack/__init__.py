"""Packs a source of samples into shards; the public function is `pack`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from dlio.executors import Pool
    from dlio.manifest import Manifest, Shard
    from dlio.pack.listing import Source
    from dlio.pack.recode import Recode


def pack(
    source: Source,
    out: str | Path,
    *,
    format: str = "tfrecord",  # noqa: A002  the field's word
    shard_size: int | None = None,
    num_shards: int | None = None,
    shuffle: int | None = None,
    label_offset: int = 0,
    recode: Recode | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    overwrite: bool = False,
    workers: int | None = None,
    engine: str | Pool | None = "processes",
    digest: str = "xxh3-128",
    max_ops: float | None = None,
    max_rate: float | None = None,
    started: Callable[[int, int], None] = lambda num_samples, num_shards: None,
    report: Callable[[Shard], None] = lambda shard: None,
) -> Manifest:
    """Packs `source` into shards in the folder `out` and returns their manifest.

    A run that was stopped goes on where it was when it is called again with the same arguments; a run that was done
    does nothing. The shards depend on the source and the arguments, never on the number of workers or the engine.

    Args:
        source: where the samples come from; see `dlio.sources`.
        out: the folder to write; a new or an empty one, or one that holds the same data set in part.
        format: the container: tfrecord, recordio, lmdb, hdf5, webdataset, or a module's dotted path.
        shard_size: the size of a shard to aim at, in bytes; by default 256 MiB, or the shards that `source` has.
        num_shards: the number of shards, instead of `shard_size`.
        shuffle: a seed to shuffle the samples by; by default they keep the source's order.
        label_offset: what is added to class indices (1 for readers of TensorFlow's ImageNet files).
        recode: what becomes of each image: size, colour, encoding; by default they are packed as they are.
        on_error: `skip` leaves bad samples and bad entries of a list or folder out, and lists them in the manifest. Of
            an image the header is looked at, and whether its end is there; `verify(decode=True)` decodes it.
        overwrite: replaces another data set in `out`, which can be read until the new one is whole; only files that its
            manifest names are removed.
        workers: the number of workers; by default as many as the engine finds room for.
        engine: what runs the workers: the name of an engine in `dlio.executors`, or what such an engine's `open` has
            yielded, which stays open. Under mpi every rank makes this call, and all return when the first is done.
        digest: the algorithm of the files' digests: xxh3-128, or blake3 where somebody may forge them.
        max_ops: how many times a second, at most, all workers together ask the file system of the source for something:
            to open, read, close or look at a file, or to list a folder; by default there is no limit.
        max_rate: how many bytes a second, at most, they read together; by default there is no limit.
        started: called once with the numbers of samples and shards, before the first is written.
        report: called with each shard when it is on the disk; with those of an earlier run before `started` is.

    Raises:
        SourceError: the input is unreadable, empty, no image, or has bad labels.
        SchemaError: the format cannot hold such samples.
        StorageError: space, permission, input/output, or a worker that died; what is done is kept.
        UsageError: arguments that contradict each other, or `out` holds something else.
    """
    from dlio import files
    from dlio.claim import alone
    from dlio.errors import UsageError
    from dlio.executors import open_engine
    from dlio.manifest import NAME, PARTIAL_NAME, Manifest
    from dlio.open_folder import check_ground, check_manifests
    from dlio.pack.pace import Limits, limited
    from dlio.pack.recode import KEEP
    from dlio.pack.resume import CLAIMS, Held, clear_aside
    from dlio.pack.run import Running, make_plan, packed_already, run_plan
    from dlio.pack.write import ASIDE, Writing, here

    files.new_hash(digest)
    limits = Limits(max_ops, max_rate)
    if on_error not in ("raise", "skip"):
        raise UsageError(f"on_error={on_error!r}: expected 'raise' or 'skip'")
    out = Path(out)
    check_ground(out, ASIDE)
    check_manifests(out, NAME, PARTIAL_NAME)
    plans: dict[str, Any] = {"label_offset": label_offset, "seed": shuffle, "recode": recode or KEEP}
    plans |= {"shard_bytes": shard_size, "num_shards": num_shards}
    try:
        with open_engine(engine, workers) if isinstance(engine, str) else nullcontext(engine) as pool:
            if pool is None:  # this rank has worked for the first, which is done
                return Manifest.load(out)
            _check_apart(out.resolve(), source)
            with limited(limits):
                plan = make_plan(source, format=format, **plans)
            if on_error == "raise":
                plan.listing.check_whole()
            if done := packed_already(plan, Held.look(out)):
                return done
            how = Writing(on_error == "skip", digest, limits.share(pool.workers), here())
            with files.storage_errors("create", out):
                (out / ASIDE).mkdir(mode=0o755, parents=True, exist_ok=True)
            check_ground(out, ASIDE)  # from now on nobody else can replace it
            with alone(out / ASIDE / CLAIMS, f"dlio pack into {out}"):
                return run_plan(plan, Held.look(out), Running(pool, how, started, report), overwrite=overwrite)
    finally:
        clear_aside(out)


def _check_apart(out: Path, source: Source) -> None:
    """Makes sure that the output is neither the input nor a class of it, which the next run would find empty."""
    from dlio.errors import UsageError

    path = source.path.resolve()
    if out == path:
        raise UsageError(f"{out} is the input too: give another folder to write")
    if out.parent == path and source.name == "imagefolder":
        raise UsageError(f"{out} would be a class folder of the input: give a folder outside of {path}")

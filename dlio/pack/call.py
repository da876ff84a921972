"""`dlio.pack`: packs a source of samples into shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

from dlio.dataset.location import names_url
from dlio.dataset.manifest import Manifest, Shard
from dlio.errors import UsageError
from dlio.executors import Pool, open_engine
from dlio.pack.append import appendable, container
from dlio.pack.listing.base import Source
from dlio.pack.listing.classes import read_classes
from dlio.pack.listing.joined import joined
from dlio.pack.pace import Limits
from dlio.pack.recode import KEEP, Recode
from dlio.pack.request import Asked, PackRequest
from dlio.pack.run import pack_to_folder
from dlio.pack.sources import open_source
from dlio.pack.upload import pack_to_url
from dlio.pack.write import Writing


def pack(
    source: Source | str | Path | Sequence[Source | str | Path],
    out: str | Path,
    *,
    format: str | None = None,  # noqa: A002  the field's word
    shard_size: int | None = None,
    num_shards: int | None = None,
    shuffle: int | None = None,
    label_offset: int = 0,
    classes: str | Path | Sequence[str] | None = None,
    recode: Recode | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    overwrite: bool = False,
    append: bool = False,
    workers: int | None = None,
    engine: str | Pool | None = "processes",
    digest: str = "xxh3-128",
    max_ops: float | None = None,
    max_rate: float | None = None,
    started: Callable[[int, int], None] = lambda num_samples, num_shards: None,
    report: Callable[[Shard], None] = lambda shard: None,
) -> Manifest:
    """Packs `source` into shards in the folder or at the URL `out` and returns their manifest.

    If a run was stopped, the same call continues it; if it was finished, the call does nothing. The shards depend on
    the source and the arguments, never on the number of workers or the engine.

    Args:
        source: the origin of the samples: a source of `dlio.sources`, or the path of class folders, a list or an
            archive, whose kind is recognised; also the URL of class folders or of a list; or several of these with the
            same fields, whose samples follow one another and whose classes are joined.
        out: the folder to write: new, empty, or with a part of the same data set; or a URL of an object store, such
            as `s3://bucket/packed`. Then each worker has one shard at a time in its folder of temporary files (TMPDIR).
        format: the container: tfrecord, recordio, lmdb, hdf5, webdataset, squashfs, or a module's dotted path; by
            default tfrecord, with `append` the data set's.
        shard_size: the target size of a shard, in bytes; by default 256 MiB, or the shards of a packed `source`.
        num_shards: the number of shards, instead of `shard_size`.
        shuffle: a seed to shuffle the samples; by default they keep the source's order.
        label_offset: what is added to class indices (1 for readers of TensorFlow's ImageNet files).
        classes: the class names in the order of their indices, as a list, a file with a name in each line, or a packed
            data set; samples of other classes are refused. By default the source's own, sorted.
        recode: how each image is changed: size, colour, encoding; by default images are packed unchanged.
        on_error: `skip` leaves out bad samples and bad entries of a list or folder, and lists them in the manifest.
            Only the header and the end of an image are checked; `Recode(check="decode")` decodes it.
        overwrite: replaces another data set in `out`, which stays readable until the new one is complete; only files
            that its manifest names are removed. Of the same data set, shards with a wrong digest are packed again. At a
            URL nothing is replaced.
        append: packs the samples whose keys the data set in `out` does not have into new shards of its format; its own
            shards do not change, and new classes come after its classes. Not at a URL.
        workers: the number of workers; by default as many as the engine has room for.
        engine: what runs the workers: the name of an engine of `dlio.executors`, a module's dotted path, or a `Pool`,
            which stays open. With mpi, every rank makes this call, and all calls return when rank 0 is done.
        digest: the algorithm of the files' digests: xxh3-128, or blake3 if somebody may forge files.
        max_ops: the most operations a second of all workers together on the source's file system (open, read, close,
            look-up of a file, listing of a folder); by default unlimited.
        max_rate: the most bytes a second that they read together; by default unlimited.
        started: called once with the numbers of samples and shards, before the first shard is written. A part of a
            large SquashFS image, which all workers write, counts as a shard here.
        report: called with each shard that is on the disk; before `started` for shards of an earlier run.

    Raises:
        SourceError: the input is unreadable, empty, not an image, or has bad labels.
        SchemaError: the format cannot hold such samples.
        StorageError: space, permission, input/output, or a worker that died; finished shards are kept.
        UsageError: arguments contradict each other, or `out` holds something else.
    """
    if on_error not in ("raise", "skip"):
        raise UsageError(f"on_error={on_error!r}: expected 'raise' or 'skip'")
    if append and overwrite:
        raise UsageError("append keeps the existing data set, and overwrite replaces it: give one of the two")
    given: Sequence[Any] = source if isinstance(source, list | tuple) else [source]
    if not given:
        raise UsageError("there is no source to pack")
    onto = appendable(out) if append else None
    format = container(onto, format)  # noqa: A001
    whole = joined([each if hasattr(each, "listing") else open_source(each) for each in given])
    names = read_classes(classes)
    request = PackRequest(format, shard_size, num_shards, shuffle, label_offset, recode or KEEP, names, onto)
    writing = Writing(on_error == "skip", digest, Limits(max_ops, max_rate))
    workers_of = open_engine(engine, workers) if isinstance(engine, str) else nullcontext(engine)
    asked = Asked(whole, request, writing, workers_of, overwrite, started, report)
    return pack_to_url(str(out), asked) if names_url(out) else pack_to_folder(Path(out), asked)

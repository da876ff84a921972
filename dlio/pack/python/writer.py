"""`dlio.Writer`: a data set from samples that Python code writes one by one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from dlio import formats
from dlio.dataset import manifest
from dlio.dataset.location import names_url
from dlio.dataset.manifest import Manifest, Shard
from dlio.dataset.schema import Sample, Schema
from dlio.errors import SchemaError, SourceError, StorageError, UsageError
from dlio.io import files
from dlio.io.ground import check_ground, check_manifests
from dlio.io.threads import Threads
from dlio.pack.inspect.tables import keys_of
from dlio.pack.listing.classes import read_classes
from dlio.pack.plan import DEFAULT_SHARD_BYTES, shard_name
from dlio.pack.python.fields import Given, advised, inferred, key_of, kinds, schema_of
from dlio.pack.recode import KEEP, Recode
from dlio.pack.resume import FolderContents, PartialManifest, clear_all_aside, clear_aside, clear_manifests, working_on
from dlio.pack.write import ASIDE, WrittenShard, new_aside, publish_shard
from dlio.pack.write_samples import OpenShard, Prepared, Preparing

_SOURCE = "writer"  # the origin of the data sets
_PATIENT_SECONDS = 5.0  # the wait for a running sync after an exception; a dead server may never answer


class Writer:
    """Writes samples into shards in a folder; a context manager, used by one thread.

        with dlio.Writer("packed", encode={"image": "jpeg"}, classes=["cat", "dog"]) as writer:
            for number, (pixels, label) in enumerate(samples):
                writer.write({"image": pixels, "label": label}, key=f"{number:06d}")

    The data set appears, as a whole, when the context ends without an exception. If it does not end so, the same code
    run again continues: `write` passes over samples whose keys are in finished shards. A shard is finished when it has
    `shard_size` bytes, and by `flush`; what `flush` has confirmed survives a kill and a loss of power.

    Attributes:
        manifest: that of the data set, once the context has ended; before, None.
    """

    def __init__(
        self,
        out: str | Path,
        schema: Schema | Mapping[str, str] | None = None,
        format: str = "tfrecord",  # noqa: A002  the field's word
        *,
        shard_size: int = DEFAULT_SHARD_BYTES,
        classes: str | Path | Sequence[str] | None = None,
        encode: Mapping[str, str] | None = None,
        quality: int = KEEP.quality,
        recode: Recode = KEEP,
    ) -> None:
        """Checks the arguments; the context creates `out`.

        Args:
            out: the folder to write: new, empty, or with a part of the same data set.
            schema: names and types of the fields, such as `{"image": "bytes", "boxes": "float32[?,4]"}`; by default
                those of the first sample.
            format: the container, as for `dlio.pack`.
            shard_size: the size in bytes from which on a shard is finished.
            classes: the class names in the order of their indices, as for `dlio.pack`.
            encode: the fields whose arrays or Pillow images become files, such as `{"image": "jpeg", "mask": "png"}`.
            quality: of JPEGs.
            recode: how encoded images are changed, as for `dlio.pack`.

        Raises:
            UsageError: the format or an encoding is unknown, a size is wrong, or `out` is a URL.
            SchemaError: `schema` is not a schema, or the format cannot hold it.
        """
        if names_url(out):
            raise UsageError(
                "dlio.Writer writes to a folder only: then run dlio convert FOLDER URL, or use dlio.pack_items"
            )
        if not isinstance(shard_size, int) or shard_size <= 0:
            raise UsageError(f"the size of shards must be a whole number >= 1, found {shard_size!r}")
        self.manifest: Manifest | None = None
        self._out, self._format, self._shard_bytes = Path(out), format, shard_size
        self._given, self._recode = Given(encode or {}, quality), recode
        self._classes = read_classes(classes)
        self._schema = schema_of(schema, self._classes)
        self._is_inferred = schema is None
        formats.import_format(format) if self._schema is None else formats.require(format, self._schema)
        self._context = ExitStack()
        self._has_failed, self._is_open = False, False
        self._old: set[str] = set()  # keys in the shards of an earlier run
        self._seen: set[str] = set()  # keys that were written, or passed over
        self._shards: dict[str, Shard] = {}
        self._names: Iterator[str] = map(shard_name, itertools.count())
        self._partial: PartialManifest | None = None
        self._shard: OpenShard | None = None
        self._threads = Threads(0, "dlio-publisher")
        self._publishing: Future[None] | None = None

    def __enter__(self) -> Writer:
        """Creates or looks through `out`.

        Raises:
            UsageError: it holds something else.
            StorageError: it cannot be written, or another process writes into it.
        """
        out = self._out
        check_ground(out, ASIDE)
        check_manifests(out, manifest.NAME, manifest.PARTIAL_NAME)
        with ExitStack() as opened:
            opened.enter_context(working_on(out, f"dlio.Writer of {out}"))
            self._resume(FolderContents.look(out))
            self._threads.grow(1)
            self._context = opened.pop_all()
        self._is_open = True
        return self

    def _resume(self, found: FolderContents) -> None:
        held = found.published or found.partial  # of an earlier run
        if held is None:
            if not found.names:
                found.check_foreign()
            return
        if held.origin.get("source") != _SOURCE:
            raise UsageError(f"{self._out} holds a data set that no dlio.Writer has written: give another folder")
        self._schema = self._schema or replace(held.schema, class_names=self._classes or held.schema.class_names)
        mine = {name: value for name, value in self._header().items() if name != "origin"} | self._origin()
        theirs = {name: value for name, value in manifest.header(held).items() if name != "origin"} | dict(held.origin)
        if different := [name for name, value in mine.items() if theirs.get(name) != value]:
            pairs = ", ".join(f"{name} is {mine[name]}, there {theirs.get(name)}" for name in different)
            raise UsageError(f"{self._out} holds another data set: {pairs}: give another folder, or remove it")
        self._shards = found.finished(held, {})
        taken = frozenset(self._shards)
        self._names = filter(lambda name: name not in taken, self._names)
        kept = replace(held, shards=tuple(self._shards.values()), root=self._out)
        self._old = set(keys_of(kept))
        if found.published is not None and len(self._shards) == len(held.shards):
            self.manifest = held

    def _origin(self) -> dict[str, object]:
        told = {"encode": dict(self._given.encode), "quality": self._given.quality} if self._given.encode else {}
        recode = {"recode": asdict(self._recode)} if self._recode != KEEP else {}
        return {"source": _SOURCE, "path": "dlio.Writer", **told, **recode}

    def _header(self) -> dict[str, Any]:
        assert self._schema is not None
        return manifest.header(Manifest(self._format, self._schema, (), self._origin()))

    def __contains__(self, key: str) -> bool:
        """Returns whether `write` would pass over a sample of this key, so that it need not be made."""
        return key in self._old or key in self._seen

    def write(self, fields: Mapping[str, Any] | Sample, key: str | None = None) -> bool:
        """Appends a sample, and returns True; returns False if an earlier run has kept a sample of its key.

        Args:
            fields: the value of each field: bytes, text, numbers, arrays, lists, and mappings of these.
            key: the sample's key, different from all others; by default `fields["__key__"]`, else its number.

        Raises:
            SchemaError: a value does not follow the schema, or the key was written before. The sample is left out;
                others may follow.
            SourceError: an image is damaged; likewise.
            StorageError: the file system refused; nothing more can be written, and the same code run again continues.
            UsageError: `out` is complete without this sample, or the context is not open.
        """
        self._check_open()
        key = key_of(fields, key, f"{len(self._seen):06d}")
        if key in self._seen:
            raise SchemaError(f"the key {key!r} was written before: keys name samples, give each its own")
        if key in self._old:
            self._seen.add(key)
            return False
        sample = self._given.sample(fields, key, key)
        shard = self._shard or self._next_shard(sample)
        try:
            with files.storage_errors("write", shard.aside):
                shard.write(*self._prepared(shard, sample))
        except SchemaError:
            raise
        except SourceError as error:
            raise SourceError(f"sample {key!r}: {error}") from None
        except BaseException:
            self._has_failed = True
            raise
        self._seen.add(key)
        if shard.table.num_bytes >= self._shard_bytes:
            self._end_shard()
        return True

    def flush(self) -> None:
        """Finishes the shard that is being written, and returns when all samples so far are safe on the disk.

        Each call ends a shard, so call it every some thousand samples at the most.

        Raises:
            StorageError: the file system refused.
            UsageError: the context is not open.
        """
        self._check_open()
        self._end_shard()
        self._wait()

    def _check_open(self) -> None:
        if not self._is_open:
            raise UsageError("a dlio.Writer is open only inside its context: with dlio.Writer(...) as writer: ...")
        if self._has_failed:
            raise StorageError(f"{self._out}: an earlier error stopped the writer: run the same code again to continue")

    def _next_shard(self, sample: Sample) -> OpenShard:
        if self.manifest is not None:
            advice = "give another folder, or remove this one"
            raise UsageError(f"{self._out} is complete, and has no sample {sample.key!r}: {advice}")
        if self._partial is None:
            self._begin(sample)
        assert self._schema is not None
        name, images = next(self._names), self._given.image_fields(self._schema)
        prepared = Preparing.of(self._out, self._schema, images, self._recode, skip_bad=True)
        aside = new_aside(self._out, name)
        with files.storage_errors("create", aside):
            self._shard = OpenShard(aside, name, self._format, prepared, files.DEFAULT_DIGEST)
        return self._shard

    def _prepared(self, shard: OpenShard, sample: Sample) -> Prepared:
        try:
            return shard.prepared(sample)
        except SchemaError as error:
            raise advised(error) if self._is_inferred else error from None

    def _begin(self, sample: Sample) -> None:
        """Makes the partial manifest, once the schema is known."""
        if self._schema is None:
            schema = inferred(kinds(sample), self._classes)
            formats.require(self._format, schema)
            self._schema = schema
        self._recode.check_targets(self._out, self._schema)
        clear_aside(self._out)
        clear_manifests(self._out)
        started = Manifest(self._format, self._schema, tuple(self._shards.values()), self._origin())
        self._partial = self._context.enter_context(PartialManifest(self._out, started))

    def _end_shard(self) -> None:
        """Finishes the open shard, and lets the thread publish it."""
        if (shard := self._shard) is None:
            return
        self._shard, self._has_failed = None, True
        with files.storage_errors("write", shard.aside):
            finished = shard.finish()
        self._wait()
        self._publishing = self._threads.submit(partial(self._publish, WrittenShard(finished, self._out, shard.aside)))
        self._has_failed = False

    def _publish(self, written: WrittenShard) -> None:
        assert self._partial is not None
        shard = publish_shard(written)
        self._partial.append(shard)
        self._shards[shard.name] = shard

    def _wait(self) -> None:
        """Waits until the last shard is published."""
        if self._publishing is not None:
            self._has_failed = True
            self._publishing.result()
            self._has_failed, self._publishing = False, None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Publishes the data set, unless the context ends with an exception: then finished shards are kept.

        Raises:
            SourceError: no sample was written.
            StorageError: the file system refused, now or earlier.
        """
        with self._context:
            try:
                if kind is None:
                    self._complete()
            finally:
                self._is_open = False
                if self._shard is not None:
                    self._shard.close()
                self._threads.end(_PATIENT_SECONDS)

    def _complete(self) -> None:
        self.flush()
        if self.manifest is None:
            if not self._shards or self._schema is None:
                raise SourceError(f"{self._out}: no sample was written")
            shards = tuple(sorted(self._shards.values(), key=lambda shard: (len(shard.name), shard.name)))
            origin = self._origin() | {"num_shards": len(shards)}
            self.manifest = Manifest(self._format, self._schema, shards, origin, self._out)
            self.manifest.save(self._out)
        with files.storage_errors("remove", self._out / manifest.PARTIAL_NAME):
            (self._out / manifest.PARTIAL_NAME).unlink(missing_ok=True)
        clear_all_aside(self._out)

"""SquashFS images of any tool: every image file is a sample, and its class is the folder that ImageFolder takes.

The classes are the folders of all images together, sorted, below the deepest folder that holds all image files. An
image of dlio's says by itself what its samples are.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from dlio.dataset.schema import IMAGE_CLASSIFICATION, Schema
from dlio.errors import CorruptRecordError, SchemaError
from dlio.formats.layouts.squashfs.blocks import Image
from dlio.formats.layouts.squashfs.metadata import MAGIC
from dlio.formats.layouts.squashfs.records import HiddenFiles, class_folders, image_files
from dlio.formats.payloads.paths import IMAGE_EXTENSIONS
from dlio.io.random_access import RandomAccessFile
from dlio.pack.index._infer import beginning, own_keys
from dlio.pack.listing.classes import check_no_splits

log = logging.getLogger(__name__)
files = beginning(MAGIC)
keys = own_keys  # the paths of the files


def infer(records: Path) -> Schema:
    """Returns the schema of one image alone."""
    return infer_all([records])


def infer_all(shards: Sequence[Path]) -> Schema:
    """Returns the schema of images that are one set; logs what they hold other than files.

    Raises:
        SchemaError: an image has no image files, or another schema than the first.
        CorruptRecordError, StorageError, MissingPackageError: an image cannot be read.
    """
    schemas, names = [], set[str]()
    for path in shards:
        found = _schema(path)
        schemas.append(found)
        names.update(found.class_names)
    kinds = {(schema.fields, schema.label_offset) for schema in schemas}
    if len(kinds) > 1:
        other = next(path for path, schema in zip(shards, schemas, strict=True) if schema != schemas[0])
        raise SchemaError(f"{other} holds other samples than {shards[0]}: index each in its own folder")
    if all(schema.class_names == schemas[0].class_names for schema in schemas):
        return schemas[0]
    return Schema(schemas[0].fields, tuple(sorted(names)), schemas[0].label_offset)


def listed_classes(records: Path, schema: Schema) -> tuple[str, ...]:
    """Returns the names of all classes."""
    return schema.class_names or _schema(records).class_names if "label" in schema else ()


def _schema(path: Path) -> Schema:
    with closing(RandomAccessFile(path)) as file:
        image = Image(file)
        try:
            own = HiddenFiles.of(image)
        except ValueError as error:
            raise CorruptRecordError(path, f"{error}: restore the image") from error
        if own is not None:
            return own.description.schema
        if not len(image_files(image)):
            raise SchemaError(f"{path} holds no images ({' '.join(IMAGE_EXTENSIONS)})")
        others = len(image.files) - len(image_files(image))
        named = [f"{others} files of other kinds"] * (others > 0) + [image.left_out] * bool(image.left_out)
        if named:
            log.warning("%s: left out: %s", path, ", ".join(named))
        classes = class_folders(image)
    check_no_splits(path, classes, f"pack one of them: dlio pack {path} OUT --option root={(*classes, '')[0]}")
    return Schema(IMAGE_CLASSIFICATION.fields if classes else IMAGE_CLASSIFICATION.fields[:1], classes)

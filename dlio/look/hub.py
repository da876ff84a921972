"""What a hub shows of a data set: its description in Croissant, for programs, and a data card, for people.

Croissant is JSON-LD with the vocabulary of schema.org (https://docs.mlcommons.org/croissant/docs/croissant-spec.html,
version 1.0). It names each file with its size and SHA-256, and the classes. Text describes how records lie in a file:
Croissant has terms for it only where each sample is a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dlio.dataset.manifest import NAME, Manifest
from dlio.dataset.remote import load
from dlio.dataset.shard import files_of
from dlio.dataset.shard_files import contents_of
from dlio.errors import UsageError
from dlio.io import files
from dlio.io.sizes import counted, format_size
from dlio.pack.inspect.summary import summarise
from dlio.pack.prefetch import side_by_side

_TYPES = {".tar": "application/x-tar", ".json": "application/json", ".jsonl": "application/jsonl"}
_MOST_CLASSES = 50  # in the card
_CONTEXT = {
    "@language": "en", "@vocab": "https://schema.org/", "citeAs": "cr:citeAs", "column": "cr:column",
    "conformsTo": "dct:conformsTo", "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"}, "equivalentProperty": "cr:equivalentProperty",
    "samplingRate": "cr:samplingRate", "dataType": {"@id": "cr:dataType", "@type": "@vocab"}, "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"}, "extract": "cr:extract", "field": "cr:field",
    "fileObject": "cr:fileObject", "fileProperty": "cr:fileProperty", "fileSet": "cr:fileSet", "format": "cr:format",
    "includes": "cr:includes", "isLiveDataset": "cr:isLiveDataset", "jsonPath": "cr:jsonPath", "key": "cr:key",
    "md5": "cr:md5", "parentField": "cr:parentField", "path": "cr:path", "rai": "http://mlcommons.org/croissant/RAI/",
    "recordSet": "cr:recordSet", "references": "cr:references", "regex": "cr:regex", "repeated": "cr:repeated",
    "replace": "cr:replace", "sc": "https://schema.org/", "separator": "cr:separator", "source": "cr:source",
    "subField": "cr:subField", "transform": "cr:transform",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class About:
    """What a data set does not say of itself.

    Attributes:
        name: its title; by default its folder's name.
        description: of the samples, in a sentence or more.
        license: its URL, or its SPDX identifier such as `CC-BY-4.0`.
        url: where it is described.
        published: the date, such as `2026-11-24`.
    """

    name: str = ""
    description: str = ""
    license: str = ""
    url: str = ""
    published: str = ""


def croissant(
    dataset: str | Path | Manifest, about: About, progress: Callable[[int], None] = lambda num_bytes: None
) -> dict[str, Any]:
    """Returns the description of a data set in Croissant; reads each file once for its SHA-256.

    Args:
        dataset: the folder of the data set, or its manifest.
        about: what else is said of it.
        progress: called with the bytes of each file that was read.

    Raises:
        UsageError: the data set is at a URL, or `about` has no description, license, url or date.
        ManifestError, CorruptRecordError, StorageError: it cannot be read.
    """
    found = load(dataset)
    if found.url:
        raise UsageError(f"{found.root} is at a URL, and each file is read for its SHA-256: stage it, or give a folder")
    if missing := [name for name in ("description", "license", "url", "published") if not getattr(about, name)]:
        raise UsageError(f"Croissant needs facts that the data set does not contain: give --{', --'.join(missing)}")
    entries = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": _name(found, about),
        "description": f"{about.description} {_facts(found)}",
        "license": about.license,
        "url": about.url,
        "datePublished": about.published,
        "version": "1.0.0",
        "distribution": _distribution(found, progress),
    }
    return entries | ({"recordSet": [_classes(found)]} if found.class_names else {})


def card(dataset: str | Path | Manifest, about: About) -> str:
    """Returns the data card, in Markdown with the header that hubs read: description, license, counts, digests.

    Raises:
        ManifestError, CorruptRecordError, StorageError: the data set cannot be read.
    """
    found = load(dataset)
    counts = summarise(found).class_counts
    header = ["---", f"license: {about.license or 'unknown'}", f"pretty_name: {_quoted(_name(found, about))}", "---"]
    rows = {
        "samples": f"{found.num_samples:,}",
        "size": format_size(found.num_bytes),
        "format": f"{found.format}, {counted(len(found.shards), 'shard')}",
        "fields": ", ".join(f"`{name}: {kind}`" for name, kind in found.schema.types().items()),
        "skipped inputs": f"{len(found.skipped):,}",
        "content id": f"`{found.content_id}`",
        "digest of the manifest": f"`{found.digest or 'none'}`",
    }
    table = [f"| {name} | {value} |" for name, value in rows.items()]
    parts = ["\n".join(header), f"# {_name(found, about)}", about.description, about.url]
    parts.append("\n".join(["| what | value |", "|---|---|", *table]))
    if counts:
        shown = [f"| {_cell(name)} | {count:,} |" for name, count in list(counts.items())[:_MOST_CLASSES]]
        more = [f"| and {len(counts) - _MOST_CLASSES} more | |"] if len(counts) > _MOST_CLASSES else []
        parts.append("\n".join(["| class | samples |", "|---|---|", *shown, *more]))
    parts.append(
        "The manifest names each file with its digest, and each sample has a checksum: `dlio verify` compares both."
        if _has_digests(found)
        else "The lists have the size and the time of change of each file: `dlio verify` compares both."
    )
    return "\n\n".join(filter(None, parts)) + "\n"


def _name(found: Manifest, about: About) -> str:
    return about.name or found.root.absolute().name


def _facts(found: Manifest) -> str:
    """Returns what the data set holds, in a sentence."""
    shards = counted(len(found.shards), "shard")
    facts = f"{counted(found.num_samples, 'sample')} ({found.schema}) in {shards} of {found.format}"
    names = f"; {NAME} names the digest of each file" if _has_digests(found) else ""
    return f"{facts}, content id {found.content_id}{names}."


def _has_digests(found: Manifest) -> bool:
    """Returns whether the bytes of samples have digests: those that `dlio index` lists may have none."""
    return all(file.digest for file in files_of(found.shards))


def _distribution(found: Manifest, progress: Callable[[int], None]) -> list[dict[str, Any]]:
    contents: list[tuple[Path, Callable[[], Iterable[bytes | memoryview]]]]
    contents = [(found.root / NAME, partial(files.read_blocks, found.root / NAME))]
    for shard in found.shards_here:
        contents += contents_of(found, shard)
    entries = []
    for (path, _), (num_bytes, digest) in zip(contents, side_by_side(_sha256, contents), strict=True):
        name = str(path.relative_to(found.root))
        progress(num_bytes)
        entries.append(
            {
                "@type": "cr:FileObject",
                "@id": name,
                "name": name,
                "contentUrl": name,
                "contentSize": f"{num_bytes} B",
                "encodingFormat": _TYPES.get(path.suffix, "application/octet-stream"),
                "sha256": digest,
            }
        )
    return entries


def _sha256(file: tuple[Path, Callable[[], Iterable[bytes | memoryview]]]) -> tuple[int, str]:
    running, num_bytes = hashlib.sha256(), 0
    for block in file[1]():
        running.update(block)
        num_bytes += len(block)
    return num_bytes, running.hexdigest()


def _classes(found: Manifest) -> dict[str, Any]:
    """Returns the record set of the classes: the stored label, the name, and the number of samples of each."""
    counts = summarise(found).class_counts
    kinds = {"label": "sc:Integer", "name": "sc:Text", "samples": "sc:Integer"}
    offset = found.schema.label_offset
    rows = [
        {"classes/label": index + offset, "classes/name": name, "classes/samples": counts.get(name, 0)}
        for index, name in enumerate(found.class_names)
    ]
    return {
        "@type": "cr:RecordSet",
        "@id": "classes",
        "name": "classes",
        "dataType": "sc:Enumeration",
        "key": {"@id": "classes/label"},
        "field": [
            {"@type": "cr:Field", "@id": f"classes/{name}", "name": name, "dataType": kind}
            for name, kind in kinds.items()
        ],
        "data": rows,
    }


def _quoted(text: str) -> str:
    return "'" + " ".join(text.split()).replace("'", "''") + "'"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")

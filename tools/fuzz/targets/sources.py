"""What `dlio pack` reads: lists of images, archives, CIFAR-10's batches."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dlio.dataset.schema import Sample
from dlio.errors import DlioError
from dlio.pack.inspect.image_header import inspect_image
from dlio.pack.sources import open_source
from tests.helpers.cifar10 import python2_batch
from tests.helpers.images import image
from tools.fuzz.inputs import FIXED, Files, case_of, read_folder, with_case
from tools.fuzz.targets import Target, require

IMAGES = {f"{'cat' if n % 2 else 'dog'}/{n}é.png": image(n, width=8, height=6) for n in range(4)}
_FIXED_IMAGES = {FIXED + name: data for name, data in IMAGES.items()}


def check(root: Path, files: Files) -> None:
    """Lists the input and reads every sample of it, as `pack` does."""
    case = case_of(files)
    source = open_source(root / case["path"], name=case["source"], **case.get("options", {}))
    listing = source.listing()
    require(all(reason for _, reason in listing.refused), "what is refused has a reason")
    require(len(set(listing.keys)) == len(listing), "keys are distinct")
    crcs = _told_crcs(root / case["path"]) if case["source"] == "archive" else None
    with source.reader(listing) as read:
        for index in range(min(len(listing), 50)):
            try:
                sample = listing.schema.check(read(index))
                for name in listing.image_fields:
                    inspect_image(sample.fields[name])
            except DlioError:
                continue
            require(sample.key == listing.keys[index], "a sample has the key that was listed")
            _check_image(root, sample, crcs)


def _check_image(root: Path, sample: Sample, crcs: list[int] | None) -> None:
    """Compares an image with its file, or with the checksum in its archive."""
    data = sample.fields.get("image", b"")
    if crcs is not None:
        require(zlib.crc32(data) in crcs, f"a member has the checksum that is told ({sample.key!r})")
    elif not sample.key.startswith("/") and (root / sample.key).is_file():
        require((root / sample.key).read_bytes() == data, f"an image is its file's content ({sample.key!r})")


def _told_crcs(path: Path) -> list[int] | None:
    """Returns the CRC-32s of a zip, before its members and in its directory; None for a tar, which has none."""
    if path.suffix != ".zip":
        return None
    data = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    local = [int.from_bytes(data[entry.header_offset + 14 :][:4], "little") for entry in entries]
    return local + [entry.CRC for entry in entries]


def _list(path: str, source: str, text: str, **options: str) -> Files:
    return with_case({path: text.encode(), **_FIXED_IMAGES}, path=path, source=source, options=options)


def _csv() -> list[Files]:
    names = list(enumerate(IMAGES))
    rows = "".join(f'"{name}",{n % 2},{n / 2},class {n}\n' for n, name in names)
    return [
        _list("list.csv", "csv", "path,label\n" + "".join(f"{name},{n}\n" for n, name in names)),
        _list("list.csv", "csv", "\ufefffile, a ,b\r\n" + "".join(f"{name},{n},0.5\r\n" for n, name in names)),
        _list("list.csv", "csv", f"image_path,x,y,class\n{rows}"),
        _list("list.csv", "csv", f"image_path,x,y,kind\n{rows}", label_columns="x,y"),
    ]


def _lst() -> list[Files]:
    names = list(enumerate(IMAGES))
    return [
        _list("list.lst", "lst", "".join(f"{n}\t{n % 2}\t{name}\n" for n, name in names)),
        _list("list.lst", "lst", "".join(f"{n}\t{n % 2}\t0.5\t{name}\n" for n, name in names)),
    ]


def _caffe_list() -> list[Files]:
    return [_list("list.txt", "caffe-list", "".join(f"{name} {n}\n" for n, name in enumerate(IMAGES)))]


def _chestxray14() -> list[Files]:
    findings = ["No Finding", "Hernia|Mass", "Edema", "Atelectasis"]
    pictures = {f"{FIXED}images_00{n + 1}/images/{n:08d}_000.png": image(n, width=8, height=6) for n in range(4)}
    names = [path.rpartition("/")[2] for path in pictures]
    rows = "".join(f"{name},{found},0,1\n" for name, found in zip(names, findings, strict=True))
    table = {"Data_Entry_2017.csv": f"Image Index,Finding Labels,Follow-up #,Patient ID\n{rows}".encode()}
    part = {"test_list.txt": "".join(f"{name}\n" for name in names[:3]).encode()}
    return [
        with_case({**table, **pictures}, path=".", source="chestxray14"),
        with_case({**table, **part, **pictures}, path="test_list.txt", source="chestxray14"),
    ]


def _cifar10() -> list[Files]:
    data = np.random.default_rng(0).integers(0, 256, (2, 3072), dtype="uint8")
    names = {"label_names": [f"class {number}" for number in range(10)]}
    batches = [python2_batch(data, [1, 9])]
    batches += [pickle.dumps({b"data": data, b"labels": [1, 9]}, protocol=protocol) for protocol in (3, 4, 5)]
    return [
        with_case(
            {"test_batch": batch, "batches.meta": pickle.dumps(names, protocol=2)},
            path=".",
            source="cifar10",
            options={"split": "test", "form": "raw" if number else "png"},
        )
        for number, batch in enumerate(batches)
    ]


def _tar(format: int, prefix: str = "") -> bytes:  # noqa: A002  tarfile's word
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as archive:
        for name, data in {**IMAGES, f"dog/{'long' * 30}.png": image(9)}.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def _of_tars(inner: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in ("n0144.tar", "n0155.tar"):
            member = tarfile.TarInfo(name)
            member.size = len(inner)
            archive.addfile(member, io.BytesIO(inner))
    return out.getvalue()


def _tars() -> list[Files]:
    formats = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
    made = [_tar(kind, "./photos/") for kind in formats[1:]] + [_of_tars(_tar(formats[2]))]
    return [with_case({"photos.tar": data}, path="photos.tar", source="archive") for data in made]


def _zips() -> list[Files]:
    made = []
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", method) as archive:
            for name, data in IMAGES.items():
                with archive.open(name, "w", force_zip64=name.startswith("cat/1")) as member:
                    member.write(data)
        made.append(out.getvalue())
    return [with_case({"photos.zip": data}, path="photos.zip", source="archive") for data in made]


def _parquet() -> list[Files]:
    """As `datasets` writes them, then and now; the images are small, so that other bytes are hit as well."""
    from tests.helpers import arrow

    with tempfile.TemporaryDirectory() as folder:
        paths = [arrow.write_old(Path(folder) / "old.parquet", arrow.table(0, 4))]
        paths.append(arrow.write_new(Path(folder) / "new.parquet", arrow.table(0, 4, ("image", "label", "tags"))))
        return [with_case({path.name: path.read_bytes()}, path=path.name, source="parquet") for path in paths]


def _coco() -> list[Files]:
    listed = [{"id": n, "file_name": name, "width": 8, "height": 6} for n, name in enumerate(IMAGES)]
    objects = [
        {"id": n, "image_id": n % 4, "category_id": 3, "bbox": [1, 1.5, n, 2], "area": 2.5, "iscrowd": n % 2}
        for n in range(6)
    ]
    segments = [
        [[0, 0, 4, 0, 4, 4.5]],
        {"size": [6, 8], "counts": [9, 20, 19]},
        {"size": [6, 8], "counts": "01<2G000`0N"},
    ]
    traced = [each | {"segmentation": segments[n % 3]} for n, each in enumerate(objects)]
    found = {"images": listed, "categories": [{"id": 3, "name": "cat"}]}
    return [
        _list("coco.json", "coco", json.dumps(found | {"annotations": objects})),
        _list("coco.json", "coco", json.dumps(found | {"annotations": traced}), masks="classes"),
    ]


def _voc() -> list[Files]:
    box = "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>8</xmax><ymax>5</ymax></bndbox>"
    text = f"<object><name>cat</name><difficult>1</difficult>{box}</object>"
    size = "<size><width>8</width><height>6</height><depth>3</depth></size>"
    files = {f"Annotations/{n}.xml": f"<annotation>{size}{text * n}</annotation>".encode() for n in range(3)}
    pictures = {f"{FIXED}JPEGImages/{n}.jpg": image(n, "JPEG", width=8, height=6) for n in range(3)}
    lists = {"ImageSets/Main/train.txt": b"0\n2\n"}
    return [
        with_case({**files, **pictures}, path=".", source="voc"),
        with_case({**files, **lists, **pictures}, path=".", source="voc", options={"split": "train"}),
    ]


def _arrow() -> list[Files]:
    from tests.helpers import arrow

    with tempfile.TemporaryDirectory() as folder:
        saved = arrow.write_saved(Path(folder) / "saved", arrow.table(0, 2), arrow.table(2, 4))
        return [with_case(read_folder(saved), path=".", source="arrow")]


_SEEDS: dict[str, Callable[[], list[Files]]] = {
    "csv": _csv,
    "lst": _lst,
    "caffe-list": _caffe_list,
    "chestxray14": _chestxray14,
    "cifar10": _cifar10,
    "parquet": _parquet,
    "arrow": _arrow,
    "coco": _coco,
    "voc": _voc,
    "tar": _tars,
    "zip": _zips,
}
TARGETS = [Target(name, seeds, check) for name, seeds in _SEEDS.items()]

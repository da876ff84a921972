"""What all acts of a run share: the folder, photos, packed data sets, and how long dlio usually takes here."""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from dlio.dataset.manifest import Manifest
from tools.chaos.linux import unmount_below
from tools.chaos.process import Process, load_dlio

FORMATS = ("tfrecord", "recordio", "lmdb", "hdf5", "webdataset", "squashfs")
_IMAGE_SIDE = 256  # 196 kB each without compression, so that a copy takes long enough to be met in its middle
_NUM_IMAGES = 120


class World:
    """A folder that all users may enter, with data sets that are made on first use."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dlio-chaos-"))
        self.folder.chmod(0o755)
        self.photos = self.folder / "photos"
        self.pack_seconds = self.stage_seconds = 0.0
        self._packed: dict[str, Manifest] = {}

    def __enter__(self) -> World:
        load_dlio()
        try:
            _make_photos(self.photos)
            self.packed("tfrecord")
            self.stage_seconds = self._seconds("stage", str(self.packed("tfrecord").root), str(self.folder / "trial"))
            shutil.rmtree(self.folder / "trial")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        unmount_below(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)

    def packed(self, container: str) -> Manifest:
        """Returns the manifest of the photos packed in a format, which is packed first if it does not exist yet."""
        if container not in self._packed:
            root = self.folder / f"packed-{container}"
            self.pack_seconds = self._seconds(*self.pack_words(root, container))
            self._packed[container] = Manifest.load(root)
        return self._packed[container]

    def pack_words(self, out: Path, container: str) -> list[str]:
        """Returns the words of the command that packs the photos."""
        return ["pack", str(self.photos), str(out), "--format", container, "--shard-size", "1MiB", "--quiet"]

    def environ(self) -> dict[str, str]:
        """Returns the environment of every process: this one's without a job, and no thread that numpy would start."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        ours = {"HOME": str(self.folder), "PYTHONFAULTHANDLER": "1", "OPENBLAS_NUM_THREADS": "1"}
        return kept | ours | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

    def _seconds(self, *words: str) -> float:
        started = time.monotonic()
        process = Process(["dlio", *words], self.folder / "log", 0, self.environ())
        if process.wait(120):
            raise RuntimeError(f"{process} failed{process.tail()}")
        return time.monotonic() - started


def _make_photos(folder: Path) -> None:
    from PIL import Image

    pixels = random.Random(0)
    for number in range(_NUM_IMAGES):
        path = folder / f"class-{number % 3}" / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.frombytes("RGB", (_IMAGE_SIDE, _IMAGE_SIDE), pixels.randbytes(3 * _IMAGE_SIDE**2))
        image.save(path, compress_level=0)

"""Reads every sample of the copy that DLIO_STAGED names, as a training does: `read_all.py DATASET EPOCHS`.

Ends with 0 if each epoch had all samples of the data set, with the same bytes and labels.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # numpy makes an ImportError of an interrupt

# ruff: noqa: E402
from dlio.dataset.manifest import Manifest
from dlio.errors import EXIT_INTERRUPTED, DlioError
from dlio.io.files import digest_bytes
from dlio.loaders.batch_sources import ArrayBatches
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import Loader

_BATCH_SIZE = 8  # divides the number of samples (world.py), so that none is dropped


def _alone() -> tuple[int, int]:
    return 0, 1


def main() -> int:
    """Returns the exit code: dlio's, or 1 where samples are missing or differ."""
    dataset, epochs = sys.argv[1], int(sys.argv[2])
    expected, staged = PackedSamples(Manifest.load(dataset)), PackedSamples(dataset)
    if staged.manifest.root == expected.manifest.root:
        print("the staged copy was not found")
        return 1
    samples = _epoch(Loader(ArrayBatches(expected), _BATCH_SIZE, rank_and_size=_alone))
    loader = Loader(ArrayBatches(staged), _BATCH_SIZE, rank_and_size=_alone, shuffle=True, num_workers=2)
    wrong = [number for number in range(epochs) if _epoch(loader) != samples]
    print(f"epochs with missing or other samples: {wrong}")
    return int(bool(wrong))


def _epoch(loader: Loader) -> Counter[tuple[str, int]]:
    pairs = (pair for batch in loader for pair in zip(batch["image"], batch["label"], strict=True))
    return Counter((digest_bytes(bytes(image)), int(label)) for image, label in pairs)


if __name__ == "__main__":
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        sys.exit(main())
    except DlioError as error:
        print(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)

"""Runs the examples of a page whose packages are peers: `page_job.py PAGE FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

if not torch.version.cuda:
    import benchmarks.loaders.torchvision_on_cpu  # noqa: F401

from tests.helpers import documents

if __name__ == "__main__":
    documents.run(documents.blocks(Path(sys.argv[1])), Path(sys.argv[2]))

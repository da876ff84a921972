"""Photos, packed, and a way to run the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

import dlio
from dlio import cli
from tests.helpers.images import make_image_folder


@pytest.fixture
def photos(tmp_path) -> Path:
    make_image_folder(tmp_path / "photos", {"cat": 5, "dog": 7})
    return tmp_path / "photos"


@pytest.fixture
def packed(photos, tmp_path) -> Path:
    dlio.pack(dlio.sources.image_folder(photos), tmp_path / "packed", num_shards=2, engine="serial")
    return tmp_path / "packed"


@pytest.fixture
def run(capsys):
    """Runs a command line in this process; returns exit code, standard output and standard error."""

    def run(*argv: object) -> tuple[int, str, str]:
        try:
            code = cli.main([str(word) for word in argv])
        except SystemExit as end:
            code = end.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run

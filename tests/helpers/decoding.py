"""Decoding without the core."""

from __future__ import annotations

import pytest

from dlio import native


def without_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves all images to Pillow, as if the core were not built."""
    for part in ("available", "decodes_jpeg", "decodes_png"):
        monkeypatch.setattr(native, part, False)

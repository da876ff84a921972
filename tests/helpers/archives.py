"""Archives of images, as other tools make them."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path


def make_tar(path: Path, content: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def make_zip(path: Path, content: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in content.items():
            file.writestr(name, data)
    return path

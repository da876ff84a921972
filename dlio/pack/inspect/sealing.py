"""Adds the digest line to the manifest of a data set that dlio 0.1 has written."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import StorageError
from dlio.io import files
from dlio.io.ground import check_ground, check_manifests
from dlio.locking.claim import exclusively
from dlio.pack.index import CLAIMS as INDEX_CLAIMS
from dlio.pack.resume import CLAIMS, INDEXED, clear_aside
from dlio.pack.write import ASIDE

_SEALED = "sealed"  # below ASIDE: the new manifest


def seal(manifest: Manifest) -> None:
    """Publishes the manifest of a verified data set again, with a digest line, and the mode and group that it had.

    Raises:
        StorageError: the folder cannot be written, another process packs or indexes there, or the manifest is not the
            one that was verified.
    """
    root = manifest.root
    check_ground(root, ASIDE, INDEX_CLAIMS)
    check_manifests(root, NAME)
    aside = root / ASIDE / _SEALED
    is_indexed = manifest.origin.get("source") == INDEXED
    try:
        with files.storage_errors("create", aside):
            aside.mkdir(mode=0o755, parents=True, exist_ok=True)
        with exclusively(root / INDEX_CLAIMS if is_indexed else root / ASIDE / CLAIMS, f"dlio pack or index of {root}"):
            found = Manifest.load(root)
            if (found, found.node) != (manifest, manifest.node):
                raise StorageError(f"{root / NAME} was changed while it was verified: run the same command again")
            _publish(manifest.save(aside), root / NAME)
    finally:
        with suppress(OSError):
            (aside / NAME).unlink(missing_ok=True)
            aside.rmdir()
        clear_aside(root)


def _publish(new: Path, final: Path) -> None:
    with files.storage_errors("publish", final):
        status = final.stat()
        with suppress(PermissionError):  # another user's file, or a group that this user is not in
            os.chown(new, status.st_uid, status.st_gid)
        new.chmod(status.st_mode & 0o777)
    files.publish(new, final)

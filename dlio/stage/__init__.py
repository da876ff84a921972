"""Brings a packed data set to where it is read fast; the public function is `stage`.

    plan -> claim -> copy -> publish

The data set is read from a folder or a URL (transfer/source.py, transfer/remote.py). A strategy (strategies/) decides
which files a node gets. One of the node's processes claims the copy (dlio/locking/claim.py) and copies
(transfer/fetch.py) into a folder that is complete once its manifest is there (cache/folder.py).

The attribute `dlio.stage` is the function, so this package's modules are imported by `from dlio.stage.cache import
node_cache`; `import dlio.stage.cache.node_cache as cache` finds the function and fails.
"""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlio.cluster.topology import Topology
    from dlio.dataset.manifest import Manifest


def stage(
    dataset: str | PathLike[str] | Manifest,
    dest: str | PathLike[str] | None = None,
    *,
    strategy: str = "auto",
    topology: Topology | None = None,
    copies: int = 1,
    epochs: int = 0,
    allow_shared: bool = False,
    mode: int | None = None,
    report: Callable[[int], None] | None = None,
) -> Manifest:
    """Returns the manifest of the data set as it lies at `dest`, brought there first where it is not yet.

    Every process of a job may call it: one process of each node copies, the others return when it has finished. What an
    interrupted run has finished is not copied again. Safe to call from threads.

    Args:
        dataset: the folder of a packed data set, its URL (`s3://bucket/packed`, `https://...`), or its manifest.
        dest: a folder on node-local storage; the data set comes to lie in `dest/dlio/<content id>`, or below
            `dest/dlio-u<uid>` where that folder or copy is another user's: only root's are relied on. By default the
            first of the node's local folders that has it or has room for it (dlio/stage/destination.py).
        strategy: the name of a module of `dlio.stage.strategies`, or "auto" (dlio/stage/decide.py).
        topology: this process's place in the job; by default what its launcher tells.
        copies: how many nodes hold each shard, for the strategy partition.
        epochs: how many are planned, which "auto" takes into account; 0 where that is not known.
        allow_shared: take a `dest` that other machines see too.
        mode: the permission bits of the staged files, such as 0o644; folders can be entered by those who may read. By
            default those of the source, the folders around it included; a URL's files are the user's alone.
        report: called with the bytes written since the last call; from several threads, never at the same time.

    Raises:
        UsageError: an unknown strategy, a mode that lets others write, or a `dest` on a shared file system or in the
            data set itself.
        ManifestError: there is no data set, or its manifest is damaged.
        DigestError: a source file is damaged.
        StorageError: no room, no permission, an input/output error, a source that changes.
        MissingPackageError: a URL needs a package that is not installed.
        LauncherError: the launcher's variables contradict each other.
    """
    from dlio.stage.job import Options
    from dlio.stage.run import run

    options = Options(copies, epochs=epochs, mode=mode)
    return run(
        dataset, dest, strategy=strategy, topology=topology, options=options, allow_shared=allow_shared, report=report
    )[0]

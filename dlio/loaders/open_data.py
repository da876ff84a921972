"""Where a data set is read: in its own folder, or in its copy on this node, which may still be arriving."""

from __future__ import annotations

from pathlib import Path

from dlio.cluster.topology import Topology
from dlio.dataset.manifest import Manifest
from dlio.errors import UsageError
from dlio.io.arrivals import Filling
from dlio.loaders.sampling.order import num_lanes
from dlio.stage.cache.resolve import opened
from dlio.stage.live.filling import cached, has_parts


def open_data(data: str | Path | Manifest, cache: str | Path | bool | None) -> tuple[Manifest, Filling | None]:
    """Returns a data set's manifest, of its copy on this node if it has one, and who fills that; None if it is whole.

    A staged part is used only by a job of as many nodes as it was staged to.

    Args:
        data: the folder or URL that holds `manifest.jsonl`, or a manifest.
        cache: the node-local folder to stage to meanwhile; True chooses one, None or False does not stage.

    Raises:
        ManifestError, StorageError: as Manifest.load.
        LauncherError: as Topology.from_env.
        DlioError: as `dlio.stage`, if there is a cache.
    """
    if isinstance(data, Manifest):
        if cache:
            raise UsageError("cache= needs the folder or URL of a data set, not its manifest")
        return data, None
    manifest, filling = cached(data, cache) if cache else opened(data)
    if filling is None and has_parts(manifest) and num_lanes(manifest) != Topology.from_env().num_nodes:
        return Manifest.load(data), None
    return manifest, filling

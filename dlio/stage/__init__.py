"""Copies a packed data set to storage from which it is read fast; the public function is `stage`.

    choose -> plan -> claim -> fill -> publish

    run.py       the entry point: chooses, carries out, sums up; or shows what it would do
    choose/      the only door: the folder and the strategy, by the rates of this machine
    strategies/  one module for each way to stage: its cost, what it needs, and its plan
    planning/    pure plans: the nodes of each shard, the cost model, the simulator
    engine/      carries a plan out, in this process or in an agent
    meeting/     how the nodes of a job find each other: by a folder that all see, or by MPI
    protocol/    requests, replies and connections
    client/      requests of loaders and `--status` to an engine
    sources/     what is read from: a data set in a folder or at a URL, or any other file or folder
    copies/      what is staged: the copies of a node, their folders, leases and owners
    upkeep/      repair and removal of copies

A strategy decides which files a node gets. One of the node's processes claims the copy (dlio/locking/claim.py) and
fills a folder that is complete once it holds the manifest (copies/folder.py).

The attribute `dlio.stage` is the function. So import this package's modules by `from dlio.stage.copies import
node_cache`; `import dlio.stage.copies.node_cache as cache` finds the function and fails.
"""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING

from dlio.dataset.location import names_url
from dlio.errors import UsageError
from dlio.urls import shown

if TYPE_CHECKING:
    from dlio.cluster.topology import Topology
    from dlio.dataset.manifest import Manifest
    from dlio.stage.planning.cost import Machine
    from dlio.stage.planning.flows import Sizes
    from dlio.stage.planning.simulation import Simulation


def stage(
    dataset: str | PathLike[str] | Manifest,
    dest: str | PathLike[str] | None = None,
    *,
    strategy: str = "auto",
    topology: Topology | None = None,
    copies: int = 1,
    epochs: int = 0,
    machine: str | PathLike[str] = "",
    allow_shared: bool = False,
    mode: int | None = None,
    report: Callable[[int], None] | None = None,
) -> Manifest:
    """Returns the manifest of the staged data set, which is copied first if it is not staged yet.

    Any other file or folder is staged as it is, with its modes, times and links: an image, an environment, weights. The
    copy is at the `path` of what is returned. It is copied again when a name, a size, a mode or a time has changed.

    Every process of a job may call it: one process of each node copies, and the others return when it has finished.
    Files that an interrupted run has finished are not copied again. Safe to call from threads.

    Args:
        dataset: the folder of a packed data set, its URL (`s3://bucket/packed`, `https://...`), or its manifest; or any
            other file or folder.
        dest: a folder on node-local storage. The data set is copied to `dest/dlio/<content id>`, or to a folder below
            `dest/dlio-u<uid>` if the first belongs to another user than root. By default the first of the node's local
            folders that has the data set or room for it (dlio/stage/choose/choice.py).
        strategy: the name of a module of `dlio.stage.strategies`, the dotted path of another module, or "auto"
            (dlio/stage/choose/auto.py).
        topology: this process's rank and node in the job; by default read from the launcher's variables.
        copies: nodes that hold each shard, if the strategy gives each node a part.
        epochs: the number of epochs planned, for "auto"; 0 if unknown.
        machine: the machine file that "auto" decides by, or the name of one that is included
            (dlio/stage/choose/machine_file.py); by default what `dlio bench` measured.
        allow_shared: accept a `dest` that other machines see too.
        mode: the permission bits of the staged files, such as 0o644; users who may read a file may enter its folder. By
            default those of the source and of the folders around it; the files of a URL are readable by this user only.
        report: called with the bytes written since the last call; from several threads, never at the same time.

    Raises:
        UsageError: an unknown strategy or machine, a mode that lets others write, a `dest` on a shared file system, or
            in the data set itself, or a folder with a device, a socket or a pipe.
        ManifestError: `dataset` does not exist, is still being packed, or its manifest is damaged.
        DigestError: a source file is damaged.
        StorageError: no room, no permission, an input/output error, a source that changes.
        MissingPackageError: a URL needs a package that is not installed.
        LauncherError: the launcher's variables contradict each other.
    """
    from dlio.stage.planning.job import Listeners, Options
    from dlio.stage.run import run

    if dest is not None and names_url(dest):
        raise UsageError(f"{shown(str(dest))} is a URL: give a path, since data sets are staged to folders")
    options = Options(copies, epochs=epochs, mode=mode, allow_shared=allow_shared, machine=str(machine))
    listeners = Listeners(report=report)
    return run(dataset, dest, strategy=strategy, topology=topology, options=options, listeners=listeners)[0]


def simulate(
    dataset: str | PathLike[str] | Manifest | Sizes, machine: Machine, strategy: str, *, copies: int = 1, seed: int = 0
) -> Simulation:
    """Returns how a strategy stages a data set on a machine, event by event; `dlio plan --simulate` shows it.

    Args:
        dataset: as for `stage`, or its sizes.
        machine: the cluster; `dlio.stage.choose.machine_file.described` reads one.
        strategy: its name, or a module's dotted path.
        copies: nodes that hold each shard, in parts.
        seed: chooses the stragglers and the failures; all else is the same for any.

    Raises:
        UsageError: no such strategy, one that cannot be simulated, too many nodes, a negative seed, or nodes that fail
            too often for an end.
        DlioError: the data set cannot be read.
    """
    from dlio.stage.planning.flows import Sizes
    from dlio.stage.planning.simulation import MOST_NODES, simulated
    from dlio.stage.sources.anything import anything
    from dlio.stage.strategies import Simulated, load

    if machine.num_nodes > MOST_NODES or seed < 0:
        raise UsageError(
            f"{machine.num_nodes:,} nodes, seed {seed}: expected up to {MOST_NODES:,} nodes, a seed from 0"
        )
    chosen = load(strategy)
    if not isinstance(chosen, Simulated):
        raise UsageError(f"the strategy {strategy} cannot be simulated: its module has no function flows")
    sizes = dataset if isinstance(dataset, Sizes) else Sizes.of(anything(dataset).manifest)
    return simulated(strategy, chosen.flows(sizes, machine.num_nodes, copies), machine, seed)

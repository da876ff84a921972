"""Stripe: the nodes together copy the data set into a folder of the shared file system, laid out for being read.

Each node copies its share. Then it goes round the other shares: a share whose node works is waited for, one whose node
died or never came is done here. So the copy is complete when the first node comes back, whoever was lost meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dlio.dataset.manifest import File
from dlio.errors import StorageError
from dlio.io.filesystems import filesystem_of
from dlio.locking.claim import claimed
from dlio.stage.cache.folder import StagedFolder, check_names
from dlio.stage.cache.ground import open_up
from dlio.stage.cache.ownership import check_safe, folder_for_us
from dlio.stage.job import Job, Outcome, all_files
from dlio.stage.planning import striping
from dlio.stage.planning.placement import files_on, partitioned
from dlio.stage.planning.striping import Layout
from dlio.stage.transfer.copy import Tally
from dlio.stage.transfer.fetch import fill

_BEEGFS_TARGETS = 4  # its own default
_log = logging.getLogger(__name__)

Creator = Callable[[Path, File], None]


def carry_out(job: Job) -> Outcome:
    """Returns the data set in a folder that all nodes see.

    Raises:
        DlioError: as `dlio.stage.transfer.fetch.fetch` says, or a layout is refused.
    """
    check_names(job.manifest)
    whole = folder_for_us(job.dest, job.manifest.content_id, all_files(job.manifest))
    staged = replace(job.manifest, root=whole.path)
    if whole.holds(all_files(job.manifest)):
        check_safe(whole)
        return Outcome(staged)
    open_up(whole.dest)
    laid_out = layouts(job)
    create = _creator(job, laid_out)
    node, nodes = job.topology.node_rank or 0, job.topology.num_nodes or 1
    shares = partitioned(job.manifest, nodes).shards
    tally = Tally(job.report)
    for step in range(nodes):
        share = (node + step) % nodes
        _copy_share(job, replace(whole, share=f"{share}of{nodes}"), files_on(shares, share), tally, create)
    _check_layouts(whole.path, laid_out)
    with claimed(whole.claims / "manifest", whole.has_manifest) as claim:
        if claim is not None:
            whole.finish(job.manifest, [file.name for file in all_files(job.manifest)], job.access(None))
    check_safe(whole)
    return Outcome(staged, tally.read, tally.written)


def _copy_share(job: Job, folder: StagedFolder, wanted: list[File], tally: Tally, create: Creator | None) -> None:
    """Brings one share, or waits for the node that does."""
    with claimed(folder.claims, lambda: all(map(folder.has, wanted))) as claim:
        if claim is not None:
            fill(job, folder, wanted, claim, tally, create)


def layouts(job: Job) -> dict[str, Layout]:
    """Returns the layout of each file, by name; empty where the files are not to be laid out one by one.

    Raises:
        StorageError: stripes are asked for where they cannot be chosen, or the targets cannot be listed.
    """
    options, files = job.options, all_files(job.manifest)
    asked = options.stripe_count or options.stripe_size or options.pool or options.ost_per_rank
    if not striping.is_lustre(job.dest):
        system = filesystem_of(job.dest)
        if asked and system.type != "beegfs":
            raise StorageError(f"{job.dest} lies on {system}, where stripes cannot be chosen: ask for none")
        return {}
    if striping.has_site_layout(job.dest) and not asked:
        _log.info("%s has a progressive layout of its site: files are left to it", job.dest)
        return {}
    targets = striping.targets(job.dest)
    return {
        file.name: Layout(
            1 if options.ost_per_rank else options.stripe_count or _count(file, len(files), len(targets)),
            options.stripe_size or striping.STRIPE_BYTES,
            targets[number % len(targets)] if options.ost_per_rank else None,
            options.pool,
        )
        for number, file in enumerate(files)
    }


def _count(file: File, num_files: int, num_targets: int) -> int:
    return striping.stripe_count(file.num_bytes, num_files, num_targets)


def _creator(job: Job, laid_out: dict[str, Layout]) -> Creator | None:
    """Returns what makes an unfinished file before its first byte, or None where a plain file will do."""
    if laid_out:
        return lambda path, file: striping.create(path, laid_out[file.name])
    system = filesystem_of(job.dest)
    if system.type != "beegfs":
        _log.info("%s lies on %s, which has no stripes to choose: a plain copy", job.dest, system)
        return None
    layout = Layout(job.options.stripe_count or _BEEGFS_TARGETS, job.options.stripe_size or striping.STRIPE_BYTES)
    return lambda path, file: striping.stripe_beegfs(path.parent, layout)


def _check_layouts(root: Path, laid_out: dict[str, Layout]) -> None:
    """Raises StorageError where a file that was to be placed on a certain target lies elsewhere."""
    for name, wanted in laid_out.items():
        if wanted.first is None:
            continue
        found = striping.layout_of(root / name)
        if (found.count, found.size, found.first) != (wanted.count, wanted.size, wanted.first):
            raise StorageError(f"{root / name} was laid out as {found}, not {wanted}: stage without --ost-per-rank")

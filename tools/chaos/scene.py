"""The place of one act: a DEST that all users may write, with sentinels, and the processes that the act starts."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dlio.dataset.manifest import Manifest
from tools.chaos import oracle
from tools.chaos.linux import unmount_below
from tools.chaos.patience import until
from tools.chaos.process import DLIO, MARK, Command, Process, kill, members
from tools.chaos.violation import Violation
from tools.chaos.world import World

ALICE, BOB = 2001, 2002  # users without a name here; Bob is the hostile one
#: Time within which an unblocked process ends: 30 s until a silent owner is presumed dead, and a loaded machine.
LIMIT_SECONDS = 120.0
_LINGER_SECONDS = 10.0


class Scene:
    """The environment of an act; `finish` is the oracle.

    Attributes:
        choose: the act's own random generator.
        dest: the destination of the stages, of mode 1777.
        sources: data sets that must not change.
        distrusted: users who may spoil what is theirs.
        jobs: schedulers' jobs whose leases are ended before the check that nothing is left.
    """

    def __init__(self, world: World, folder: Path, choose: random.Random) -> None:
        self.world, self.folder, self.choose = world, folder, choose
        self.dest = folder / "local"
        self.processes: list[Process] = []
        self._started: list[Process] = []
        self.sources: list[Manifest] = []
        self.distrusted: set[int] = set()
        self.jobs: set[str] = set()
        folder.mkdir()
        self._plant_sentinels()
        self._before = oracle.snapshot(*self.sentinels, world.photos)
        self._kept: oracle.Snapshot = {}

    def _plant_sentinels(self) -> None:
        """Puts files around and below DEST that look like dlio's, and are not."""
        self.dest.mkdir()
        self.dest.chmod(0o1777)
        self.sentinels = [self.folder / "neighbour", self.dest / "of-alice", self.dest / "dlio-of-root"]
        for folder, user in zip(self.sentinels, (0, ALICE, 0), strict=True):
            for name in ("1", "2", "precious.txt", "sub/3", "sub/.dlio/copy.json", ".claims/x/1", "manifest.jsonl"):
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"{name} of {user}")
            for path in (folder, *folder.rglob("*")):
                if os.geteuid() == 0:
                    os.chown(path, user, user)

    def source(self, container: str | None = None) -> Manifest:
        """Returns a packed data set, by default of a random format, that must not change in this act."""
        manifest = self.world.packed(container or self.choose.choice(("tfrecord", "recordio", "webdataset")))
        if manifest not in self.sources:
            self.sources.append(manifest)
            self._kept |= oracle.snapshot(manifest.root)
        return manifest

    def run(self, words: Sequence[str], user: int = 0, **environ: str) -> Process:
        """Returns the process of a command that must end as dlio does."""
        self.processes.append(self.serve(words, user, **environ))
        return self.processes[-1]

    def serve(self, words: Command, user: int = 0, **environ: str) -> Process:
        """Returns the process of a command or function that is no part of dlio; it ends with the scene."""
        log = self.folder / f"{len(self._started)}.log"
        self._started.append(Process(words, log, user, self.world.environ() | {MARK: str(self.folder)} | environ))
        return self._started[-1]

    def dlio(self, *words: object, user: int = 0, within: Sequence[str] = (), job: str = "", **environ: str) -> Process:
        """Returns the process of a command of dlio; `within` are the words of the command that runs it, if any."""
        start = [*within, *DLIO] if within or (not user and self.choose.random() < 0.2) else ["dlio"]
        if job:
            self.jobs.add(job)
            environ["SLURM_JOB_ID"] = job
        return self.run([*start, *map(str, words)], user, **environ)

    def stage(self, manifest: Manifest, *options: str, **how: Any) -> Process:
        """Returns the process that stages a data set to DEST."""
        return self.dlio("stage", manifest.root, self.dest, *options, **how)

    def clean(self, *options: str, **how: Any) -> Process:
        """Returns the process that cleans DEST."""
        return self.dlio("clean", self.dest, *options, **how)

    def wait(self, *processes: Process, limit: float = LIMIT_SECONDS) -> None:
        """Waits for processes, and checks how they ended.

        Raises:
            Violation: one did not end in time, or not as dlio ends.
        """
        for process in processes:
            process.wait(limit)
            oracle.check_end(process)

    def do(self, process: Process, *codes: int) -> Process:
        """Waits for a process that must end with one of these codes, by default 0."""
        self.wait(process)
        oracle.check_code(process, *(codes or (0,)))
        return process

    def staged(self, process: Process, manifest: Manifest) -> None:
        """Checks the folder that a stage has named, if the stage succeeded.

        Raises:
            Violation: it does not hold the whole data set.
        """
        if process.code == 0:
            oracle.check_whole(Path(process.said().splitlines()[-1]), manifest)

    def check(self) -> None:
        """Checks what must hold at any time.

        Raises:
            Violation: it does not.
        """
        oracle.check_unchanged(self._before | self._kept, oracle.snapshot(*self._roots()))
        for manifest in self.sources:
            oracle.check_copies(self.dest, manifest, self.distrusted)

    def _roots(self) -> Iterable[Path]:
        return (*self.sentinels, self.world.photos, *(manifest.root for manifest in self.sources))

    def finish(self) -> None:
        """Checks what must hold at the end: all have ended, and clean finds what they left.

        Raises:
            Violation: it does not.
        """
        self.wait(*self.processes)
        self._check_nobody_left()
        self.check()
        for job in sorted(self.jobs) or [""]:
            self.do(self.clean(*(["--job", job] if job else [])))
        oracle.check_unchanged(self._before | self._kept, oracle.snapshot(*self._roots()))
        planted = [path for root in self.sentinels for path in (root, *root.rglob("*"))]
        of_others = [path for path in self.dest.rglob("*") if path.lstat().st_uid in self.distrusted]
        oracle.check_nothing_left(self.dest, [*planted, *of_others])

    def _check_nobody_left(self) -> None:
        """Raises Violation if a worker outlives its command."""
        ours = {process.pid for process in self.processes}
        served = {process.pid for process in self._started} - ours

        def left() -> list[int]:
            return sorted({*members(ours), *members((), str(self.folder))} - set(members(served)))

        if not until(lambda: not left(), _LINGER_SECONDS):
            names = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left()]
            raise Violation(f"processes outlive those that started them: {names}")

    def close(self) -> None:
        """Ends what still runs, unmounts and removes everything."""
        for process in self._started:
            process.end()
        kill(members((), str(self.folder)))
        unmount_below(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)

"""Topology: the rank, world size and node of this process, read from its launcher's environment variables.

Launchers nest: torchrun under srun, mpirun within a batch script, a Flux job within a SLURM allocation. Children
inherit every variable, so several launchers are often visible at once, and only the innermost describes this process.
Variables carry no depth. So `LAUNCHERS` is ordered by containment, from those that start Python processes to those that
allocate machines: in practice torchrun runs under mpirun, mpirun under srun, srun in a batch job, a batch job in a pod,
and not the other way round. The first launcher whose marks are all set wins. Two arrangements for which this order is
wrong show in the numbers and are refused (`_refuse_ambiguity`); `DLIO_LAUNCHER=<name>` decides them.

Not every allocation is a launch. The shell of `sbatch` or `salloc` has SLURM_PROCID=0 and SLURM_NTASKS of the whole
job, but runs once. So only a step (SLURM_STEP_ID) counts. Flux itself removes its task variables from a batch script.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dlio.cluster.launchers import LAUNCHERS, Launcher, expanded
from dlio.errors import LauncherError

OVERRIDE = "DLIO_LAUNCHER"


@dataclass(frozen=True, slots=True)
class Topology:
    """One process's rank and node in the job; plain numbers, so it pickles and compares.

    Attributes:
        rank: this process, 0 <= rank < world_size.
        world_size: processes in the job.
        local_rank: this process among those of its node; None if the launcher does not set it.
        local_world_size: processes on this node; None if the launcher does not set it.
        node_rank: this node, 0 <= node_rank < num_nodes; None if the launcher does not set it. A torchrun agent and
            a pod count as a node, though a machine may hold several; `dlio.locking.owner.node_id` identifies machines.
        num_nodes: nodes in the job; None if the launcher does not set it.
        launcher: the name in `LAUNCHERS` of the launcher read, or "single".
    """

    rank: int
    world_size: int
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    num_nodes: int | None = None
    launcher: str = "given"

    def __post_init__(self) -> None:
        problem = _contradiction(self)
        if problem:
            raise LauncherError(f"topology of launcher {self.launcher!r}: {problem}")

    @property
    def node_and_count(self) -> tuple[int, int] | None:
        """This node's rank and the number of nodes; None if the launcher does not number them."""
        return None if self.node_rank is None or self.num_nodes is None else (self.node_rank, self.num_nodes)

    @classmethod
    def single(cls) -> Topology:
        """Returns the topology of a process that no launcher started."""
        return cls(0, 1, 0, 1, 0, 1, "single")

    def numbered(self, machines: Sequence[str]) -> Topology:
        """Returns the topology with its nodes numbered as the machines of the processes, by rank, first appear.

        Args:
            machines: the name of each process's machine; "" of one that does not count.
        """
        mine, names = machines[self.rank], list(dict.fromkeys(filter(None, machines)))
        local = [rank for rank, name in enumerate(machines) if name == mine]
        return replace(
            self, local_rank=local.index(self.rank), local_world_size=len(local), node_rank=names.index(mine),
            num_nodes=len(names),
        )  # fmt: skip

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Topology:
        """Returns the topology set by the innermost launcher in `environ` (default `os.environ`), else `single()`.

        Raises:
            LauncherError: variables are missing, are not numbers, contradict each other, or do not show which launcher
                is the innermost. The message names them with their values and what to do.
        """
        variables = expanded(os.environ if environ is None else environ)
        chosen = variables.get(OVERRIDE, "")
        if chosen == "single":
            return cls.single()
        if chosen:
            return _read(_named(chosen), variables)
        seen = [launcher for launcher in LAUNCHERS if launcher.marked(variables)]
        if not seen:
            return cls.single()
        topology = _read(seen[0], variables)
        for other in seen[1:]:
            _refuse_ambiguity(seen[0], topology, other, variables)
        return topology


def _named(name: str) -> Launcher:
    for launcher in LAUNCHERS:
        if launcher.name == name:
            return launcher
    known = ", ".join(["single", *(launcher.name for launcher in LAUNCHERS)])
    raise LauncherError(f"{OVERRIDE}={name} names no launcher; choose one of {known}")


def _read(launcher: Launcher, variables: Mapping[str, str]) -> Topology:
    """Returns the topology from `launcher`'s variables, with what follows from them filled in."""
    rank = _number(launcher, "rank", variables)
    world_size = _number(launcher, "world_size", variables)
    if rank is None or world_size is None:
        missing = " or ".join(launcher.rank if rank is None else launcher.world_size)
        raise LauncherError(
            f"launcher {launcher.name}: {missing} is not set, though {_shown(launcher.names(), variables)}. "
            f"Start the process with the launcher, set the variable, or set {OVERRIDE}=single for a single process"
        )
    optional = {part: _number(launcher, part, variables) for part in _OPTIONAL}
    try:
        return Topology(rank, world_size, launcher=launcher.name, **_completed(rank, world_size, optional))
    except LauncherError as error:
        raise LauncherError(
            f"{error}, from {_shown(launcher.names(), variables)}. Unset the variables of an outer job, "
            f"or set {OVERRIDE} to the launcher to use"
        ) from None


_OPTIONAL = ("local_rank", "local_world_size", "node_rank", "num_nodes")


def _completed(rank: int, world_size: int, given: dict[str, int | None]) -> dict[str, int | None]:
    """Returns the four optional numbers with those filled in that follow from the others, whatever the placement.

    One node follows from a node that holds every process; one process per node, from as many nodes as processes.
    Nothing else is derived: ranks may be placed by block or round robin, and nodes may differ in size.
    """
    if given["num_nodes"] == 1 or given["local_world_size"] == world_size:
        derived = {"local_rank": rank, "local_world_size": world_size, "node_rank": 0, "num_nodes": 1}
    elif given["num_nodes"] == world_size:
        derived = {"local_rank": 0, "local_world_size": 1, "node_rank": rank}
    else:
        derived = {}
    return {part: derived.get(part) if value is None else value for part, value in given.items()}


def _number(launcher: Launcher, part: str, variables: Mapping[str, str]) -> int | None:
    """Returns the first of the launcher's variables for `part` that is set, as a number."""
    for name in getattr(launcher, part):
        text = variables.get(name, "")
        if not text:
            continue
        if not re.fullmatch(r"[0-9]{1,18}", text):
            raise LauncherError(
                f"launcher {launcher.name}: {name}={text} should be a number >= 0. "
                f"Correct it, or set {OVERRIDE} to the launcher to use"
            )
        return int(text)
    return None


def _contradiction(found: Topology) -> str:
    """Returns what is impossible about these numbers; empty if they are possible."""
    local_size, num_nodes = found.local_world_size, found.num_nodes
    if not 0 <= found.rank < found.world_size:
        return f"rank {found.rank} is not below world size {found.world_size}"
    if local_size is not None and not 1 <= local_size <= found.world_size:
        return f"{local_size} processes on this node, but {found.world_size} in all"
    if num_nodes is not None and not 1 <= num_nodes <= found.world_size:
        return f"{num_nodes} nodes for {found.world_size} processes"
    if found.local_rank is not None and not 0 <= found.local_rank < (local_size or found.world_size):
        return f"local rank {found.local_rank} is not below {local_size or found.world_size}"
    if found.node_rank is not None and not 0 <= found.node_rank < (num_nodes or found.world_size):
        return f"node rank {found.node_rank} is not below {num_nodes or found.world_size}"
    if local_size is not None and num_nodes is not None and local_size + num_nodes - 1 > found.world_size:
        return f"{local_size} processes here and {num_nodes - 1} other nodes exceed {found.world_size} processes"
    return ""


def _refuse_ambiguity(inner: Launcher, topology: Topology, outer: Launcher, variables: Mapping[str, str]) -> None:
    """Raises LauncherError if the numbers show that `outer` may be the inner launcher.

    RANK and WORLD_SIZE name no launcher: any script may export them, and any child inherits them. So torchrun's world
    must hold at least the tasks of the mpirun around it (one agent per task), and RANK and WORLD_SIZE exported by hand
    must agree with a launcher that is also visible.
    """
    if inner.name == "torchrun" and outer.starts_ranks:
        world_size = _number(outer, "world_size", variables)
        ambiguous = world_size is not None and world_size > topology.world_size
    elif inner.starts_ranks and outer.name == "env":
        outer_numbers = (_number(outer, "rank", variables), _number(outer, "world_size", variables))
        ambiguous = outer_numbers != (topology.rank, topology.world_size)
    else:
        ambiguous = False
    if ambiguous:
        raise LauncherError(
            f"launchers {inner.name} and {outer.name} both claim this process: "
            f"{_shown(inner.names(), variables)}; {_shown(outer.names(), variables)}. "
            f"Set {OVERRIDE}={inner.name} or {OVERRIDE}={outer.name}"
        )


def _shown(names: tuple[str, ...], variables: Mapping[str, str]) -> str:
    return " ".join(f"{name}={variables[name]}" for name in names if variables.get(name))

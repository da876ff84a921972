"""The launchers' variable names, as data; `LAUNCHERS` is ordered from the innermost kind to the outermost.

Sources: the launchers' manuals, and processes started by the real launchers listed in tests/data/environments. Two
names are misleading: Open MPI's OMPI_COMM_WORLD_NODE_RANK is a rank on the node, over all jobs, and SLURM_NTASKS of a
batch shell counts tasks that are not started.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, product

_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "COBALT_JOBID", "PJM_JOBID")


@dataclass(frozen=True, slots=True)
class Launcher:
    """The variables of one launcher; of several names for a number, the first that is set counts.

    Attributes:
        name: what `Topology.launcher` and DLIO_LAUNCHER call it.
        marks: variables that are all set in processes which this launcher started.
        unless: variables whose presence shows that the marks are another launcher's.
        starts_ranks: it starts one process per rank by itself (MPI and its kin), so its world size counts processes.
    """

    name: str
    marks: tuple[str, ...]
    rank: tuple[str, ...]
    world_size: tuple[str, ...]
    local_rank: tuple[str, ...] = ()
    local_world_size: tuple[str, ...] = ()
    node_rank: tuple[str, ...] = ()
    num_nodes: tuple[str, ...] = ()
    starts_ranks: bool = True
    unless: tuple[str, ...] = ()

    def marked(self, variables: Mapping[str, str]) -> bool:
        """Returns whether `variables` show this launcher."""
        return all(map(variables.get, self.marks)) and not any(map(variables.get, self.unless))

    def names(self) -> tuple[str, ...]:
        """Returns every variable that this launcher is read from, each once."""
        parts = (self.marks, self.rank, self.world_size, self.local_rank, self.local_world_size)
        return tuple(dict.fromkeys(chain(*parts, self.node_rank, self.num_nodes)))


# A table: its columns are the fields above, in order.
# fmt: off
LAUNCHERS = (
    # torchrun, accelerate, DeepSpeed (LOCAL_SIZE, CROSS_*) and Ray Train (NODE_RANK) share these names. PyTorchJob pods
    # have RANK and WORLD_SIZE without LOCAL_RANK, and count pods by one and processes by the other: never read here.
    Launcher(
        "torchrun", ("RANK", "LOCAL_RANK"), ("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",),
        ("LOCAL_WORLD_SIZE", "LOCAL_SIZE"), ("GROUP_RANK", "NODE_RANK", "CROSS_RANK"),
        ("GROUP_WORLD_SIZE", "CROSS_SIZE"), starts_ranks=False,
    ),
    Launcher(
        "horovod", ("HOROVOD_RANK",), ("HOROVOD_RANK",), ("HOROVOD_SIZE",), ("HOROVOD_LOCAL_RANK",),
        ("HOROVOD_LOCAL_SIZE",), ("HOROVOD_CROSS_RANK",), ("HOROVOD_CROSS_SIZE",),
    ),
    # jsrun on Spectrum MPI sets these, too.
    Launcher(
        "openmpi", ("OMPI_COMM_WORLD_RANK",), ("OMPI_COMM_WORLD_RANK",), ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",), ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    Launcher(
        "mvapich2", ("MV2_COMM_WORLD_RANK",), ("MV2_COMM_WORLD_RANK",), ("MV2_COMM_WORLD_SIZE",),
        ("MV2_COMM_WORLD_LOCAL_RANK",), ("MV2_COMM_WORLD_LOCAL_SIZE",),
    ),
    # MPICH and Intel MPI. srun --mpi=pmi2, PALS and Flux set PMI_RANK as well, but not MPI_LOCALRANKID.
    Launcher(
        "hydra", ("PMI_RANK", "MPI_LOCALRANKID"), ("PMI_RANK",), ("PMI_SIZE",), ("MPI_LOCALRANKID",),
        ("MPI_LOCALNRANKS",),
    ),
    Launcher(
        "jsrun", ("JSM_NAMESPACE_RANK",), ("JSM_NAMESPACE_RANK",), ("JSM_NAMESPACE_SIZE",),
        ("JSM_NAMESPACE_LOCAL_RANK",), ("JSM_NAMESPACE_LOCAL_SIZE",),
    ),
    # For Cray's MPI srun (mpi/cray_shasta) and Flux (cray-pals) set the same names, and others.
    Launcher(
        "pals", ("PALS_RANKID",), ("PALS_RANKID",), ("PMI_SIZE",), ("PALS_LOCAL_RANKID",),
        ("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"), ("PALS_NODEID",), unless=("SLURM_STEP_ID", "FLUX_TASK_RANK"),
    ),
    Launcher(
        "flux", ("FLUX_TASK_RANK",), ("FLUX_TASK_RANK",), ("FLUX_JOB_SIZE",), ("FLUX_TASK_LOCAL_ID",), (), (),
        ("FLUX_JOB_NNODES",),
    ),
    Launcher(
        "slurm", ("SLURM_STEP_ID", "SLURM_PROCID", "SLURM step"), ("SLURM_PROCID",),
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_LOCALID",),
        ("SLURM_STEP_TASKS_PER_NODE of SLURM_NODEID",), ("SLURM_NODEID",), ("SLURM_STEP_NUM_NODES", "SLURM_NNODES"),
    ),
    # A Prolog runs once on each node of a job, without a step; agents that it starts are to know each other.
    Launcher(
        "slurm-prolog", ("SLURMD_NODENAME in SLURM_NODELIST",), ("SLURMD_NODENAME in SLURM_NODELIST",),
        ("nodes of SLURM_NODELIST",), (), (), (), ("nodes of SLURM_NODELIST",), starts_ranks=False,
    ),
    # Any other PMI launcher, such as MPICH's gforker. In a SLURM job without a step, PMI_* come from another job.
    Launcher(
        "pmi", ("PMI_RANK", "PMI_SIZE"), ("PMI_RANK",), ("PMI_SIZE",), ("PMI_LOCAL_RANK",), ("PMI_LOCAL_SIZE",),
        unless=("SLURM_JOB_ID",),
    ),
    Launcher(
        "tensorflow", ("TF_CONFIG task",), ("TF_CONFIG task",), ("TF_CONFIG cluster",), ("TF_CONFIG task on host",),
        ("TF_CONFIG tasks on host",), ("TF_CONFIG host",), ("TF_CONFIG hosts",), starts_ranks=False,
    ),
    # A process of a PyTorchJob's pod that torchrun did not start is one per pod: pods are its world.
    Launcher(
        "pytorchjob", ("PET_NODE_RANK", "PET_NNODES"), ("PET_NODE_RANK",), ("PET_NNODES",), (), (),
        ("PET_NODE_RANK",), ("PET_NNODES",), starts_ranks=False,
    ),
    # The convention of torch.distributed's env:// for scripts that start their processes themselves.
    Launcher("env", ("RANK", "WORLD_SIZE"), ("RANK",), ("WORLD_SIZE",), starts_ranks=False),
    # An Indexed Job says which pod this is but not of how many: WORLD_SIZE must be in the pod's manifest.
    Launcher(
        "kubernetes", ("JOB_COMPLETION_INDEX",), ("JOB_COMPLETION_INDEX",), ("WORLD_SIZE",), (), (),
        ("JOB_COMPLETION_INDEX",), ("WORLD_SIZE",), starts_ranks=False,
    ),
    # Lightning's own subprocesses learn their rank in Python only: read to be refused, not taken for a world of one.
    Launcher("lightning", ("LOCAL_RANK", "WORLD_SIZE"), ("RANK",), ("WORLD_SIZE",), starts_ranks=False),
)
# fmt: on

_TRAINERS = ("chief", "master", "worker")


def expanded(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns `environ` with the numbers that SLURM's lists and TF_CONFIG's JSON hold under their own names."""
    return {**environ, **dict(_slurm_numbers(environ)), **dict(_tensorflow_numbers(environ.get("TF_CONFIG", "")))}


def _slurm_numbers(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields the tasks on this node, from a list like `2(x3),1`, and a mark that this is a step's own process.

    A job submitted from within a step inherits the step's variables, but its batch shell has SLURM_GTIDS=0, a single
    task on the node, whatever the inherited list says.
    """
    node, task_ids = environ.get("SLURM_NODEID", ""), environ.get("SLURM_GTIDS", "")
    numbered = re.fullmatch("[0-9]{1,9}", node)
    tasks = _tasks_on_node(environ.get("SLURM_STEP_TASKS_PER_NODE", ""), int(node)) if numbered else ""
    if tasks:
        yield "SLURM_STEP_TASKS_PER_NODE of SLURM_NODEID", tasks
    if not (tasks and task_ids) or len(task_ids.split(",")) == int(tasks):
        yield "SLURM step", "yes"
    nodes, here = list(_hosts(environ.get("SLURM_NODELIST", ""))), environ.get("SLURMD_NODENAME", "")
    if environ.get("SLURM_SCRIPT_CONTEXT") == "prolog_slurmd" and here in nodes:
        yield "SLURMD_NODENAME in SLURM_NODELIST", str(nodes.index(here))
        yield "nodes of SLURM_NODELIST", str(len(nodes))


def _hosts(names: str) -> Iterator[str]:
    """Yields the hosts of a list like `login,r[1-2]n[08-10,12]`."""
    for name in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", names):
        fixed, ranges = re.split(r"\[[^\]]*\]", name), re.findall(r"\[([^\]]*)\]", name)
        for numbers in product(*map(_numbers, ranges)):
            yield "".join(chain.from_iterable(zip(fixed, (*numbers, ""), strict=True)))


def _numbers(ranges: str) -> Iterator[str]:
    for first, last in re.findall(r"(\d{1,9})(?:-(\d{1,9}))?", ranges):
        yield from (str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1))


def _tasks_on_node(tasks_per_node: str, node: int) -> str:
    """Returns the count for node number `node` from a list of runs, like `2(x3),1`; empty beyond the list."""
    seen = 0
    for count, repeat in re.findall(r"(\d{1,9})(?:\(x(\d{1,9})\))?", tasks_per_node):
        seen += int(repeat or 1)
        if node < seen:
            return str(count)
    return ""


def _tensorflow_numbers(text: str) -> Iterator[tuple[str, str]]:
    """Yields rank, world and hosts from TF_CONFIG; the chief is rank 0, the workers follow.

    Evaluators and parameter servers belong to no data-parallel world: each is its own world.
    """
    try:
        config = json.loads(text or "{}")
        cluster = config.get("cluster") or {}
        if not cluster:
            return
        kind, index = config["task"]["type"], int(config["task"].get("index", 0))
        trainers = [(name, i) for name in _TRAINERS for i in range(len(cluster.get(name, [])))]
        rank = trainers.index((kind, index)) if kind in _TRAINERS else 0
        tasks = trainers if kind in _TRAINERS else [(kind, index)]
        hosts = [str(cluster.get(name, {index: kind})[i]).rpartition(":")[0] for name, i in tasks]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        # Said only if TF_CONFIG is what counts: an inner launcher makes it irrelevant.
        yield "TF_CONFIG task", f"unreadable ({type(error).__name__}: {error})"
        return
    yield "TF_CONFIG task", str(rank)
    yield "TF_CONFIG cluster", str(len(hosts))
    yield "TF_CONFIG task on host", str(hosts[:rank].count(hosts[rank]))
    yield "TF_CONFIG tasks on host", str(hosts.count(hosts[rank]))
    yield "TF_CONFIG host", str(list(dict.fromkeys(hosts)).index(hosts[rank]))
    yield "TF_CONFIG hosts", str(len(set(hosts)))


def job_name(environ: Mapping[str, str] | None = None) -> str:
    """Returns the scheduler's name for this job, such as `123.pbs`; "" outside a scheduler."""
    environ = os.environ if environ is None else environ
    return next((environ[name] for name in _JOB_VARIABLES if environ.get(name)), "").replace("/", "_")


def launch_name(environ: Mapping[str, str] | None = None) -> str:
    """Returns what a launcher gives all processes of a job and to no other job; "local" if it gives nothing."""
    environ = os.environ if environ is None else environ
    if (run := environ.get("TORCHELASTIC_RUN_ID", "none")) != "none":  # which torchrun has by default
        return run
    return "-".join(filter(None, map(environ.get, ("PMIX_NAMESPACE", "MASTER_ADDR", "MASTER_PORT")))) or "local"

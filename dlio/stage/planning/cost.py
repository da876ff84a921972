"""Cost model: the machine, the size of a data set, and the predicted time and space of staging it, also live; pure.

Each strategy's module holds its own formula. The formulas are lower bounds: they leave out queues, stragglers and other
users. The medians of staging logs from real machines are one to two times these figures.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace

from dlio.dataset.location import TREE
from dlio.dataset.manifest import Manifest
from dlio.errors import UsageError
from dlio.io.sizes import format_size
from dlio.stage.copies.blocks import BLOCK_BYTES

AGENT_SECONDS = 1.0  # until the agent of a node answers
_BATCH = 64
_LEAST, _MOST = 1e-9, 1e18  # of a machine's figures: far beyond real ones, and their products are still floats
UNKNOWN_ROOM = int(_MOST)


@dataclass(frozen=True, slots=True)
class Machine:
    """The cluster that data are staged on; rates are in bytes per second.

    If neither a machine file (dlio/stage/choose/machine_file.py) nor `dlio bench` gives them, the rates are those of a
    typical cluster: a shared file system of 5 GB/s, of which one node gets 2, an InfiniBand network of 10, and an NVMe
    disk of 2. The formulas of the strategies use the attributes up to `rates`; the simulator uses all.

    Attributes:
        num_nodes: nodes in the job.
        free_bytes: what a data set may take of each node's local storage; `UNKNOWN_ROOM` if the disk is not here.
        can_exchange: whether the nodes can pass blocks to each other.
        source: rate of the shared file system for all nodes together.
        client: rate of the shared file system for one node.
        network: rate at which a node sends while it receives as much.
        local: rate at which a node's local storage writes.
        num_targets: storage targets of the shared file system; 0 for more than are used.
        rates: the file of the rates, and which it lacks; "" for those of a typical cluster.
        opens: files that the source opens per second for all nodes together; 0 for any number.
        request_seconds: how long the source lets each request wait.
        switch_nodes: nodes below one switch, or behind one gateway to the source; 0 if none limits them.
        uplink: rate from the source through such a switch. Oversubscribed k : 1, it is switch_nodes * network / k.
        cache_bytes: written data that a node's memory takes ahead of its disk.
        slow_share: the share of nodes that are stragglers.
        slow_factor: their rates, divided by those of others.
        failures: of one node in an hour.
        restart_seconds: until a failed node is replaced by an empty one.
    """

    num_nodes: int
    free_bytes: int
    can_exchange: bool = True
    source: float = 5e9
    client: float = 2e9
    network: float = 10e9
    local: float = 2e9
    num_targets: int = 0
    rates: str = ""
    opens: float = 0.0
    request_seconds: float = 0.0
    switch_nodes: int = 0
    uplink: float = 0.0
    cache_bytes: int = 0
    slow_share: float = 0.0
    slow_factor: float = 1.0
    failures: float = 0.0
    restart_seconds: float = 60.0

    def __post_init__(self) -> None:
        """Raises UsageError if a figure is impossible."""
        positive = (
            "num_nodes",
            "source",
            "client",
            "network",
            "local",
            "slow_factor",
            *["uplink"] * (self.switch_nodes > 0),
        )
        for name, value in asdict(self).items():
            none = value == 0 and name not in positive
            if isinstance(value, float | int) and not (_LEAST <= value <= _MOST or none):
                expected = f"{'' if name in positive else '0, or '}a number from {_LEAST:g} to {_MOST:g}"
                raise UsageError(f"a machine whose {name} is {value}: expected {expected}")
        if self.slow_share > 1 or self.slow_factor > 1:
            raise UsageError(
                f"stragglers: {self.slow_share} of the nodes at {self.slow_factor} of the rates: expected 1 or less"
            )


@dataclass(frozen=True, slots=True)
class Volume:
    """The size of a data set.

    Attributes:
        num_bytes: of all files.
        num_files: the number of files.
        largest_shard: bytes of the largest shard; a node's part exceeds the mean part by less than that.
        num_samples: the number of samples.
        is_tree: whether it is a file or folder that is no data set, of which only the whole is of use.
    """

    num_bytes: int
    num_files: int = 1
    largest_shard: int = 0
    num_samples: int = 0
    is_tree: bool = False

    @classmethod
    def of(cls, manifest: Manifest) -> Volume:
        """Returns the size of a data set."""
        sizes = [shard.num_bytes for shard in manifest.shards]
        num_files = sum([len(shard.files) for shard in manifest.shards])
        return cls(sum(sizes), num_files, max(sizes, default=0), manifest.num_samples, manifest.format == TREE)


@dataclass(frozen=True, slots=True)
class Cost:
    """The predicted time and space of one way to stage.

    Attributes:
        strategy: its name.
        copies: of each shard, over all nodes.
        bytes_per_node: that are written to each node's storage.
        source_bytes: read from the source by all nodes together.
        seconds: predicted.
        why: one sentence.
        rates: as the machine's.
    """

    strategy: str = field(default="", kw_only=True)
    copies: int
    bytes_per_node: int
    source_bytes: int
    seconds: float
    why: str = ""
    rates: str = ""

    def on(self, machine: Machine) -> Cost:
        """Returns the same, with a remark if it does not fit."""
        if self.bytes_per_node <= machine.free_bytes:
            return self
        room = f"{format_size(self.bytes_per_node)} do not fit into the {format_size(machine.free_bytes)} of a node"
        return replace(self, why=f"{self.why}; {room}")


def pays_after_epochs(seconds: float, num_bytes: int, machine: Machine) -> float:
    """Returns after how many epochs staging that takes `seconds` has paid for itself; infinite for never.

    In an epoch all nodes together read each byte once, in large blocks.
    """
    shared = max(num_bytes / machine.source, num_bytes / (machine.num_nodes * machine.client))
    gain = shared - num_bytes / (machine.num_nodes * machine.local)
    return seconds / gain if gain > 0 else float("inf")


@dataclass(frozen=True, slots=True)
class LiveCost:
    """The predicted times and traffic of training while a data set is staged; the trainer's own time is left out.

    Each byte is read from the source once, by one node. In an epoch the N nodes read each byte of the set once: what a
    node does not keep comes from the others, and what none of them keeps comes from the source.

    Attributes:
        strategy: its name.
        first_batch_seconds: from the start of the agents to a batch of 64 samples, shuffled.
        first_epoch_seconds, later_epoch_seconds: if only the data is waited for.
        bytes_per_node: that a node keeps.
        later_source_bytes: read by all nodes together in each later epoch; in the first they read the set once.
        first_network_bytes, later_network_bytes: that a node receives from others, in the first and in a later epoch.
    """

    strategy: str
    first_batch_seconds: float
    first_epoch_seconds: float
    later_epoch_seconds: float
    bytes_per_node: int
    later_source_bytes: int
    first_network_bytes: int
    later_network_bytes: int


def live_cost(strategy: str, volume: Volume, wanted: int, machine: Machine) -> LiveCost:
    """Returns the cost of one strategy.

    Args:
        strategy: its name.
        volume: the data set.
        wanted: the bytes that a node keeps if it has room.
        machine: the cluster.
    """
    num_bytes, n = volume.num_bytes, machine.num_nodes
    kept = min(wanted, machine.free_bytes, num_bytes)
    together = min(n * kept, num_bytes)
    share = num_bytes // n  # that a node reads in an epoch
    from_source = (num_bytes - together) // n
    from_peers = share * (together - kept) // num_bytes if num_bytes else 0
    received = max(kept - share, 0) + from_peers
    return LiveCost(
        strategy,
        AGENT_SECONDS + _first_batch(volume) / _rate(machine),
        max(share / _rate(machine), received / machine.network, kept / machine.local),
        max(from_source / _rate(machine), from_peers / machine.network, (share - from_source) / machine.local),
        kept,
        num_bytes - together,
        received,
        from_peers,
    )


def _rate(machine: Machine) -> float:
    """Returns the bytes a second from the source to each node while all read."""
    return min(machine.client, machine.source / machine.num_nodes)


def _first_batch(volume: Volume) -> int:
    """Returns the bytes of a batch in blocks: one more for each sample, since none begins where a block does."""
    samples = min(_BATCH, volume.num_samples)
    mean = volume.num_bytes // max(volume.num_samples, 1)
    return min(samples * (mean + BLOCK_BYTES), volume.num_bytes)

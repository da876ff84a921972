"""What live staging costs: the first batch, the first epoch, later epochs, and the network; pure.

Each byte is read from the source once, by one node. In an epoch the N nodes read each byte of the set once: what a node
does not keep comes from the others, and what none of them keeps comes from the source. As in cost.py, the times are
lower bounds; the trainer's own time is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlio.stage.planning.cost import Machine, Volume

AGENT_SECONDS = 1.0  # until the agent of a node answers
_BATCH = 64
_BLOCK_BYTES = 16 << 10  # of which each sample needs one more, since none begins where a block does


@dataclass(frozen=True, slots=True)
class LiveCost:
    """The predicted times and traffic of training while a data set is staged.

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
    """Returns the bytes of a batch in blocks."""
    samples = min(_BATCH, volume.num_samples)
    mean = volume.num_bytes // max(volume.num_samples, 1)
    return min(samples * (mean + _BLOCK_BYTES), volume.num_bytes)

"""How long staging takes and what it needs, predicted for a machine that need not be there; pure.

With S bytes, N nodes, r copies, the rates of `Machine` and blocks of C bytes:

    replicate   max(N S / source, S / client, S / local)                     every node reads all
    broadcast   max(S / source, S / (N client), S (N-1) / (N network), S / local) + N C / network
                                                                             each byte read once, then passed on
    partition   max(r S / source, r S / (N client), r S / (N local))         each node reads its part
    stripe      2 max(S / source, S / (N client))                            read and written at the shared file system

The second is the lower bound for all nodes getting all bytes, plus the time to fill the pipeline. Queues, stragglers
and other users are not in it: on real machines the medians of staging logs lie at one to two times these figures.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from dlio.errors import StorageError
from dlio.io.sizes import format_size
from dlio.stage.planning.placement import BLOCK_BYTES, check_copies
from dlio.stage.planning.striping import stripe_count


@dataclass(frozen=True, slots=True)
class Machine:
    """What staging runs on; rates are in bytes per second.

    The default rates are those of a middling cluster: a shared file system of 5 GB/s, of which one node gets 2, an
    InfiniBand network of 10, and an NVMe disk of 2.

    Attributes:
        num_nodes: nodes in the job.
        free_bytes: what a data set may take of each node's local storage.
        can_exchange: whether the nodes can pass blocks on to each other (MPI).
        source: what the shared file system gives to all nodes together.
        client: what it gives to one node.
        network: what a node sends while it receives as much.
        local: what a node's local storage writes.
    """

    num_nodes: int
    free_bytes: int
    can_exchange: bool = True
    source: float = 5e9
    client: float = 2e9
    network: float = 10e9
    local: float = 2e9


@dataclass(frozen=True, slots=True)
class Decision:
    """One way to stage, with what it costs.

    Attributes:
        strategy: its name.
        copies: of each shard over all nodes.
        bytes_per_node: that land on each node.
        source_bytes: read from the source, by all nodes together.
        seconds: predicted.
        why: one sentence.
    """

    strategy: str
    copies: int
    bytes_per_node: int
    source_bytes: int
    seconds: float
    why: str = ""


def replicate(num_bytes: int, machine: Machine) -> Decision:
    """Returns the cost of every node reading all."""
    n = machine.num_nodes
    seconds = max(n * num_bytes / machine.source, num_bytes / machine.client, num_bytes / machine.local)
    return Decision("replicate", n, num_bytes, n * num_bytes, seconds)


def broadcast(num_bytes: int, machine: Machine) -> Decision:
    """Returns the cost of reading each byte once and passing it on."""
    n = machine.num_nodes
    reading = max(num_bytes / machine.source, num_bytes / (n * machine.client))
    passing = num_bytes * (n - 1) / (n * machine.network)
    fill = n * BLOCK_BYTES / machine.network
    return Decision("broadcast", n, num_bytes, num_bytes, max(reading, passing, num_bytes / machine.local) + fill)


def partition(num_bytes: int, machine: Machine, copies: int = 1) -> Decision:
    """Returns the cost of each shard going to `copies` of the nodes."""
    n, total = machine.num_nodes, copies * num_bytes
    seconds = max(total / machine.source, total / (n * machine.client), total / (n * machine.local))
    return Decision("partition", copies, -(-total // n), total, seconds)


def stripe(num_bytes: int, machine: Machine) -> Decision:
    """Returns the cost of copying within the shared file system, all nodes together."""
    seconds = 2 * max(num_bytes / machine.source, num_bytes / (machine.num_nodes * machine.client))
    return Decision("stripe", 1, 0, num_bytes, seconds)


def striped(num_bytes: int, num_files: int, machine: Machine, num_targets: int) -> Decision:
    """Returns the cost of `stripe` where there are so many storage targets, of which files may leave some unused."""
    count = stripe_count(num_bytes // max(1, num_files), num_files, num_targets)
    used = min(num_targets, max(1, num_files) * count)
    nodes = machine.num_nodes * machine.client
    seconds = num_bytes / min(machine.source, nodes) + num_bytes / min(machine.source * used / num_targets, nodes)
    why = f"{num_files:,} files over {count} of {num_targets} targets each use {used} of them"
    return Decision("stripe", 1, 0, num_bytes, seconds, why)


def all_ways(num_bytes: int, machine: Machine, copies: int = 1) -> list[Decision]:
    """Returns what each strategy costs, whether it fits or not.

    Raises:
        UsageError: there are fewer nodes than copies.
    """
    check_copies(copies, machine.num_nodes)
    return [
        replicate(num_bytes, machine),
        broadcast(num_bytes, machine),
        partition(num_bytes, machine, copies),
        stripe(num_bytes, machine),
    ]


def epochs_until_it_pays(staging: float, epoch_shared: float, epoch_local: float) -> float:
    """Returns after how many epochs staging has paid for itself; infinite where local reading is no faster.

    Args:
        staging: seconds that staging takes.
        epoch_shared: seconds of an epoch read from the shared file system.
        epoch_local: seconds of an epoch read from local storage.
    """
    gain = epoch_shared - epoch_local
    return staging / gain if gain > 0 else float("inf")


def pays_after_epochs(decision: Decision, num_bytes: int, machine: Machine) -> float:
    """Returns `epochs_until_it_pays` where an epoch reads each byte once over all nodes, in large blocks."""
    shared = max(num_bytes / machine.source, num_bytes / (machine.num_nodes * machine.client))
    return epochs_until_it_pays(decision.seconds, shared, num_bytes / (machine.num_nodes * machine.local))


def choose(num_bytes: int, largest_shard: int, machine: Machine, epochs: int = 0) -> Decision:
    """Returns the strategy that `auto` takes: the whole on every node if it fits, else parts in as many copies as fit.

    Where the epochs planned do not repay the whole on every node but one copy in parts, and the nodes can agree on
    that, it is parts as well.

    Args:
        num_bytes: the data set's size.
        largest_shard: its largest shard's size, in bytes: a node's part exceeds the mean by less than that.
        machine: what it runs on.
        epochs: how many are planned; 0 where that is not known.

    Raises:
        StorageError: it fits in no way. (On one node there is no choice: whether it fits shows when it is staged.)
    """
    decision = _what_fits(num_bytes, largest_shard, machine)
    pays_after = pays_after_epochs(decision, num_bytes, machine)
    if not epochs or pays_after <= epochs:
        return _because(decision, f"{decision.why}; it pays after {pays_after:.1f} epochs") if epochs else decision
    parts = partition(num_bytes, machine)
    fits = parts.bytes_per_node + largest_shard <= machine.free_bytes
    agreed = machine.can_exchange and machine.num_nodes > 1
    if fits and agreed and pays_after_epochs(parts, num_bytes, machine) <= epochs:
        return _because(parts, f"{epochs} epochs repay one copy in parts, but not all on every node")
    return _because(decision, f"{decision.why}; {epochs} epochs do not repay it: reading in place is as quick")


def _what_fits(num_bytes: int, largest_shard: int, machine: Machine) -> Decision:
    n, room = machine.num_nodes, machine.free_bytes
    fitting = f"{format_size(num_bytes)} fit into the {format_size(room)} of each node"
    if n == 1:
        return _because(replicate(num_bytes, machine), "there is one node")
    if num_bytes <= room:
        whole = [replicate(num_bytes, machine)]
        if machine.can_exchange:
            whole.append(broadcast(num_bytes, machine))
        best = min(whole, key=lambda decision: decision.seconds)
        reason = "each byte is read once and passed on" if best.strategy == "broadcast" else "each node reads all"
        return _because(best, f"{fitting}, and {reason}")
    copies = int((room - largest_shard) * n // num_bytes)
    if copies >= 1:
        return _because(
            partition(num_bytes, machine, min(copies, n - 1)),
            f"{format_size(num_bytes)} do not fit into the {format_size(room)} of each node, parts of them do",
        )
    raise StorageError(
        f"{num_bytes:,} bytes do not fit: {n} nodes with room for {room:,} bytes each. "
        "Take more nodes or another folder, or read from the shared file system (strategy stripe)"
    )


def _because(decision: Decision, why: str) -> Decision:
    return dataclasses.replace(decision, why=why)

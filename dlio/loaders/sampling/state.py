"""The state of a run: five scalars for a checkpoint, and the position that they stand for."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import SupportsIndex

from dlio.dataset.manifest import Manifest
from dlio.errors import UsageError
from dlio.io.files import digest_bytes
from dlio.loaders.sampling.mixed_order import MixedOrder
from dlio.loaders.sampling.order import EpochOrder, Shuffle
from dlio.loaders.sampling.rank_share import RankSteps

_VERSION = 1
_MAX_EPOCH = 2**63 - 1

State = dict[str, int | str]


@dataclass(frozen=True, slots=True)
class Position:
    """How far a run is: the epoch, and the position in every lane."""

    epoch: int = 0
    consumed: int = 0


def position_after(steps: RankSteps, number: int) -> Position:
    """Returns the position after a number of `steps`."""
    epoch = steps.order.epoch
    return Position(epoch + 1) if number == len(steps) else Position(epoch, steps.consumed(number))


@dataclass(slots=True)
class Progress:
    """The positions of a run that continues.

    Attributes:
        next: where the next iteration starts.
        reached: how far the run is.
        before: where the batch that was handed out last begins.
        loaded: where the run started.
    """

    next: Position = field(default_factory=Position)
    reached: Position = field(default_factory=Position)
    before: Position = field(default_factory=Position)
    loaded: Position = field(default_factory=Position)

    def begin(self) -> None:
        """Starts an iteration at `next`."""
        self.reached = self.before = self.next
        self.next = Position(self.next.epoch + 1)

    def hand_out(self, reached: Position) -> None:
        """Counts a batch that is handed out, and ends at a position."""
        self.before, self.reached = self.reached, reached

    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` the next one; keeps a loaded position in the same epoch."""
        if epoch != self.next.epoch:
            self.next = self.loaded = Position(epoch)

    def load(self, position: Position) -> None:
        """Makes the run continue at a position."""
        self.next = self.reached = self.before = self.loaded = position


@dataclass(frozen=True, slots=True)
class Run:
    """What determines the order of a run's samples, and the order of an epoch; the same on every rank."""

    manifest: Manifest
    shuffle: Shuffle
    seed: int
    lanes: int
    order: Callable[[int], EpochOrder | MixedOrder]

    def state(self, position: Position) -> State:
        """Returns the state at a position, valid for any number of ranks and threads, and any batch size."""
        return {
            "version": _VERSION,
            "order": order_id(self.manifest, self.shuffle, self.lanes),
            "seed": self.seed,
            "epoch": position.epoch,
            "samples": position.consumed * self.lanes,
        }

    def position(self, state: Mapping[str, object]) -> Position:
        """Returns the position at which `state` was taken.

        Raises:
            UsageError: the state is malformed, or of another data set, order or seed.
        """
        mine = self.state(Position())
        if state.keys() != mine.keys() or state["version"] != _VERSION:
            raise UsageError(f"not a state of this version of dlio's loader: {dict(state)!r:.200}")
        if state["order"] != mine["order"]:
            raise UsageError(
                f"the state belongs to another data set, shuffle or number of lanes than {self.manifest.root} "
                f"with shuffle={self.shuffle} and lanes={self.lanes}: resume with the same ones"
            )
        if state["seed"] != self.seed:
            raise UsageError(f"the state was saved with seed={state['seed']}, this loader has seed={self.seed}")
        samples = _count_in(state, "samples", int(self.order(0).lane_sizes.max()) * self.lanes)
        return Position(_count_in(state, "epoch", _MAX_EPOCH), samples // self.lanes)


def _count_in(state: Mapping[str, object], name: str, most: int) -> int:
    """Returns a count from a state; any integer type will do, such as a tensor; raises UsageError."""
    found = state[name]
    try:
        value = operator.index(found) if isinstance(found, SupportsIndex) else -1
    except TypeError:
        value = -1
    if not 0 <= value <= most:
        raise UsageError(f"the state has {name}={found!r}: expected a whole number from 0 to {most}")
    return value


def order_id(manifest: Manifest, shuffle: Shuffle, lanes: int) -> str:
    """Returns 32 hex digits that identify the order of samples, apart from the seed, in any format."""
    counts = [shard.num_samples for shard in manifest.shards]
    described = json.dumps([counts, manifest.schema.types(), manifest.origin.get("plan"), repr(shuffle), lanes])
    return digest_bytes(described.encode()).partition(":")[2]

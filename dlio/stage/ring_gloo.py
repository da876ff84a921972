"""A ring over torch.distributed: its key-value store for what all tell each other, gloo for the blocks.

The store is the one at MASTER_ADDR and MASTER_PORT, where the training's own process group meets as well; the keys are
under a prefix of their own for each ring, so neither disturbs the other, and no process group of the training is
needed. Waiting for a block blocks in gloo, without using a core.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import time
from collections.abc import Sequence
from datetime import timedelta
from itertools import count
from typing import Any

from dlio.errors import LauncherError, StorageError, missing_package
from dlio.stage import ring
from dlio.topology import Topology

_GATHER_SECONDS = 600.0  # what a node does between two gatherings, such as syncing its files, takes seconds
_MEETING_SECONDS = 60.0
_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS = 1e-3, 5e-2
_BLOCK_TAG = 1
_worlds = count()  # every process makes its worlds in the same order


class GlooRing:
    """Processes that share a store; `dlio.stage.ring.Ring` says what its methods do."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._store = store
        self._group: Any = None
        self._gatherings = count()
        self._rings = count()

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all; as `Ring` says.

        Raises:
            LostError: a process did not come within ten minutes.
        """
        number, pause = next(self._gatherings), _FIRST_POLL_SECONDS
        keys = [f"{number}/{rank}" for rank in range(self.size)]
        started = time.monotonic()
        try:
            self._store.set(keys[self.rank], json.dumps(value))
            while not self._store.check(keys):
                if time.monotonic() - started > _GATHER_SECONDS:
                    missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
                    raise ring.LostError(missing, f"no word for {_GATHER_SECONDS:.0f} s")
                time.sleep(pause)
                pause = min(2 * pause, _LAST_POLL_SECONDS)
            return [json.loads(told) for told in self._store.multi_get(keys)]
        except RuntimeError as error:  # all errors of torch's stores are
            raise ring.LostError([0], f"the store of its node does not answer: {error}") from error

    def among(self, ranks: Sequence[int]) -> GlooRing | None:
        """Returns the ring of some; as `Ring` says."""
        store = _distributed().PrefixStore(f"ring{next(self._rings)}", self._store)
        return GlooRing(store, ranks.index(self.rank), len(ranks)) if self.rank in ranks else None

    def shift(self, send: bytearray, receive: bytearray) -> None:
        """Passes one block on; as `Ring` says."""
        import torch

        started, wait = time.monotonic(), timedelta(seconds=ring.LOST_SECONDS)
        left, right = (torch.frombuffer(data, dtype=torch.uint8) for data in (receive, send))
        try:
            group = self._group = self._group or self._connected()
            coming = group.recv([left], (self.rank - 1) % self.size, _BLOCK_TAG)
            group.send([right], (self.rank + 1) % self.size, _BLOCK_TAG).wait(wait)
            coming.wait(wait)
        except RuntimeError as error:
            raise ring.LostError(self._missing(started), str(error).splitlines()[0]) from error

    def leave(self, exit_code: int = StorageError.exit_code) -> None:
        """Does nothing: gloo has no farewell that would wait."""

    def _connected(self) -> Any:
        """Returns gloo's process group, which every process of the ring joins."""
        gloo = _distributed().ProcessGroupGloo
        options = gloo._Options()
        options._timeout = timedelta(seconds=ring.LOST_SECONDS)
        names = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
        devices = [gloo.create_device(interface=name) for name in names]
        options._devices = devices or [gloo.create_device(hostname=_address_towards_master())]
        return gloo(_distributed().PrefixStore("gloo", self._store), self.rank, self.size, options)

    def _missing(self, started: float) -> list[int]:
        """Returns the places that do not answer a roll call.

        Gloo tells the neighbours of a dead process at once and the others when their waiting is over, so all answer
        within the same time after the block that did not come.
        """
        missing = set(range(self.size)) - {self.rank}
        try:
            self._store.set(f"here/{self.rank}", "")
            while missing and time.monotonic() - started < ring.LOST_SECONDS + ring.ROLL_CALL_SECONDS:
                missing -= {rank for rank in missing if self._store.check([f"here/{rank}"])}
                time.sleep(_LAST_POLL_SECONDS)
        except RuntimeError:
            return [0] if 0 in missing else sorted(missing)  # the store is on the node of place 0
        return sorted(missing)


def torch_world(topology: Topology) -> GlooRing:
    """Returns all processes that know the job's MASTER_ADDR.

    Raises:
        MissingPackageError: torch is not installed.
        LauncherError: there is no store at MASTER_ADDR.
    """
    address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    serves = topology.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = _distributed().TCPStore(
            address, int(port), is_master=serves, timeout=timedelta(seconds=_MEETING_SECONDS),
            wait_for_workers=False, multi_tenant=True,
        )  # fmt: skip
    except (RuntimeError, ValueError) as error:
        raise LauncherError(
            f"no process answers at MASTER_ADDR={address} MASTER_PORT={port}: {str(error).splitlines()[0]}. "
            "Set them to the node of rank 0 and a free port, as for torch.distributed, and stage from every process"
        ) from error
    prefix = f"dlio/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{next(_worlds)}"
    return GlooRing(_distributed().PrefixStore(prefix, store), topology.rank, topology.world_size)


def _distributed() -> Any:
    """Returns the package torch.distributed, whose stores and process groups torch does not describe to type checkers.

    Raises:
        MissingPackageError: torch is not installed.
    """
    try:
        return importlib.import_module("torch.distributed")
    except ImportError as error:
        raise missing_package("torch", "torch", "the strategy broadcast without MPI") from error


def _address_towards_master() -> str:
    """Returns this node's address in the network of MASTER_ADDR; connecting a datagram socket sends nothing."""
    target = socket.getaddrinfo(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), type=socket.SOCK_DGRAM)[0]
    with socket.socket(target[0], socket.SOCK_DGRAM) as probe:
        probe.connect(target[4])
        return str(probe.getsockname()[0])

"""A ring over torch.distributed: values are gathered in its key-value store, blocks are passed by gloo.

The store is the one at MASTER_ADDR and MASTER_PORT, which the training's own process group uses too. The keys of each
world have a prefix of their own, so neither disturbs the other. Waiting for a block uses no core. Heartbeats in the
store show which processes live (torch_store.py).
"""

from __future__ import annotations

import importlib
import ipaddress
import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from itertools import count
from typing import Any, TypeVar

from dlio.cluster import liveness
from dlio.cluster.topology import Topology
from dlio.errors import LauncherError, StorageError, missing_package
from dlio.stage.comm import base
from dlio.stage.comm.torch_store import LiveStore, answer_of

_MEETING_SECONDS = 60.0
_FIRST_POLL_SECONDS, _LAST_POLL_SECONDS = 1e-3, 5e-2
_BLOCK_TAG = 1
T = TypeVar("T")
_worlds = count()  # every process makes its worlds in the same order


class GlooRing:
    """Processes that share a store; the methods are those of `dlio.stage.comm.base.Ring`.

    Args:
        live: the store.
        name: the prefix of this ring's keys.
        members: the job's ranks of the ring's processes.
    """

    def __init__(self, live: LiveStore, name: str, members: Sequence[int]) -> None:
        self.rank = members.index(live.rank)
        self.size = len(members)
        self._live, self._name, self._members = live, name, list(members)
        self._group: Any = None
        self._gatherings = count()
        self._rings = count()

    def gather(self, value: T) -> list[T]:
        """Returns the values of all processes; see `Ring`. It waits no longer for a silent process than for a block.

        Raises:
            LostError: a process is lost, or did not come in time.
        """
        number, pause = next(self._gatherings), _FIRST_POLL_SECONDS
        keys = [f"{self._name}/{number}/{rank}" for rank in range(self.size)]
        started = looked = time.monotonic()
        self._live.call("set", keys[self.rank], json.dumps(value))
        while not self._live.call("check", keys):
            if time.monotonic() - looked > liveness.BEAT_SECONDS:
                self._look_for(keys, time.monotonic() - started)
                looked = time.monotonic()
            time.sleep(pause)
            pause = min(2 * pause, _LAST_POLL_SECONDS)
        return [json.loads(value) for value in self._live.call("multi_get", keys)]

    def _look_for(self, keys: Sequence[str], seconds: float) -> None:
        """Raises LostError, here and in the others, for processes that have set no key and are not alive.

        Raises:
            LostError: processes are lost, as seen here or by another process, or were waited for too long.
        """
        verdict = f"{self._name}/lost"
        if self._live.call("check", [verdict]):
            raise self._lost(json.loads(self._live.call("get", verdict)), "no heartbeat, as another node found")
        missing = [rank for rank, key in enumerate(keys) if not self._live.call("check", [key])]
        silent = [rank for rank in missing if self._live.is_silent(self._members[rank])]
        if silent:
            self._live.call("set", verdict, json.dumps(silent))
            raise self._lost(silent, f"no heartbeat for {liveness.LOST_SECONDS:.0f} s")
        absent = [rank for rank in missing if not self._live.beat(self._members[rank])]
        if absent and seconds > liveness.ARRIVAL_SECONDS:
            problem = f"did not come within {liveness.ARRIVAL_SECONDS:.0f} s; start dlio stage in every process"
            raise self._lost(absent, problem)
        if seconds > liveness.GATHER_SECONDS:
            raise self._lost(missing, f"no word for {liveness.GATHER_SECONDS:.0f} s")

    def _lost(self, ranks: Sequence[int], problem: str) -> base.LostError:
        self._live.lost.update(self._members[rank] for rank in ranks)
        return base.LostError(ranks, problem)

    def among(self, ranks: Sequence[int]) -> GlooRing | None:
        """Returns the ring of some ranks; see `Ring`."""
        name = f"{self._name}.{next(self._rings)}"
        return GlooRing(self._live, name, [self._members[rank] for rank in ranks]) if self.rank in ranks else None

    def shift(self, send: bytearray, receive: bytearray) -> None:
        """Passes one block on; see `Ring`."""
        import torch

        started, wait = time.monotonic(), timedelta(seconds=liveness.LOST_SECONDS)
        left, right = (torch.frombuffer(data, dtype=torch.uint8) for data in (receive, send))
        try:
            group = self._group = self._group or answer_of(self._connected, liveness.LOST_SECONDS)
            coming = group.recv([left], (self.rank - 1) % self.size, _BLOCK_TAG)
            group.send([right], (self.rank + 1) % self.size, _BLOCK_TAG).wait(wait)
            coming.wait(wait)
        except (RuntimeError, TimeoutError) as error:
            problem = str(error).partition("\n")[0] or f"no connection in {liveness.LOST_SECONDS:.0f} s"
            raise self._lost(self._missing(started), problem) from error

    def leave(self, exit_code: int = StorageError.exit_code) -> None:
        """Does nothing: gloo does not wait for others at its end."""

    def _connected(self) -> Any:
        """Returns gloo's process group, which every process of the ring joins."""
        gloo = _distributed().ProcessGroupGloo
        options = gloo._Options()
        options._timeout = timedelta(seconds=liveness.LOST_SECONDS)
        names = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
        devices = [gloo.create_device(interface=name) for name in names]
        options._devices = devices or [gloo.create_device(hostname=_address_towards_master())]
        return gloo(_distributed().PrefixStore(f"{self._name}/gloo", self._live.store), self.rank, self.size, options)

    def _missing(self, started: float) -> list[int]:
        """Returns the ranks that do not answer a roll call and have no heartbeat.

        Gloo notices a dead process in its neighbours at once, in the others when their waiting is over. So all answer
        within the same time after the block that did not come. A process that has already passed on its last block
        does not answer, but has a heartbeat.
        """
        missing = set(range(self.size)) - {self.rank}
        here = f"{self._name}/here"
        try:
            self._live.call("set", f"{here}/{self.rank}", "")
            beats = {rank: self._live.beat(self._members[rank]) for rank in missing}
            while missing and time.monotonic() - started < liveness.LOST_SECONDS + liveness.ROLL_CALL_SECONDS:
                missing -= {rank for rank in missing if self._live.call("check", [f"{here}/{rank}"])}
                time.sleep(_LAST_POLL_SECONDS)
            silent = {rank for rank in missing if self._live.beat(self._members[rank]) == beats[rank]}
        except base.LostError:
            return [0] if 0 in missing else sorted(missing)  # rank 0 serves the store
        return sorted(silent or missing)


@contextmanager
def torch_world(topology: Topology) -> Iterator[GlooRing]:
    """Yields the ring of all processes that know the job's MASTER_ADDR.

    Raises:
        MissingPackageError: torch is not installed.
        LauncherError: no store answers at MASTER_ADDR.
        LostError: the store does not answer.
    """
    live = LiveStore(job_store(topology, str(next(_worlds))), topology.rank, topology.world_size)
    try:
        yield GlooRing(live, "all", range(topology.world_size))
    finally:
        live.leave(_serves(topology))


def job_store(topology: Topology, name: str) -> Any:
    """Returns the store at MASTER_ADDR, restricted to keys under `name`.

    Raises:
        MissingPackageError, LauncherError: as `torch_world`.
    """
    store = _store(os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], _serves(topology), os.getpid())
    return _distributed().PrefixStore(f"dlio/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{name}", store)


def agent_serves() -> bool:
    """Returns whether torchrun says that its agent serves the store at MASTER_ADDR and MASTER_PORT."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _serves(topology: Topology) -> bool:
    return topology.rank == 0 and not agent_serves()


@cache
def _store(address: str, port: str, serves: bool, pid: int) -> Any:
    """Returns the job's store, one connection for each process `pid`; kept, since others may still need it."""
    listener = _listener(address, int(port)) if serves else None
    try:
        return _distributed().TCPStore(
            address, int(port), is_master=serves, timeout=timedelta(seconds=_MEETING_SECONDS),
            wait_for_workers=False, multi_tenant=True, master_listen_fd=listener,
        )  # fmt: skip
    except (RuntimeError, ValueError) as error:
        raise LauncherError(
            f"no process answers at MASTER_ADDR={address} MASTER_PORT={port}: {str(error).splitlines()[0]}. "
            "Set them to the node of rank 0 and a free port, as for torch.distributed, and stage from every process"
        ) from error


def _listener(address: str, port: int) -> int | None:
    """Returns a socket that listens at the job's address only, since the store does not authenticate its clients.

    Returns None, which stands for all addresses, if the address is not this node's, or is a host name that maps to the
    loopback on this node only (/etc/hosts).
    """
    try:
        family, _, _, _, found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        if ipaddress.ip_address(found[0]).is_loopback and address not in ("localhost", found[0]):
            return None
        return socket.create_server(found, family=family).detach()
    except OSError:
        return None


def _distributed() -> Any:
    """Returns the package torch.distributed, whose stores and process groups have no type hints.

    Raises:
        MissingPackageError: torch is not installed.
    """
    try:
        return importlib.import_module("torch.distributed")
    except ImportError as error:
        raise missing_package("torch", "torch", "communication between nodes without MPI") from error


def _address_towards_master() -> str:
    """Returns this node's address in the network of MASTER_ADDR; a datagram socket sends nothing when it connects."""
    target = socket.getaddrinfo(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), type=socket.SOCK_DGRAM)[0]
    with socket.socket(target[0], socket.SOCK_DGRAM) as probe:
        probe.connect(target[4])
        return str(probe.getsockname()[0])

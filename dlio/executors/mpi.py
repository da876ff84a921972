"""Ranks of an MPI job: the first plans and hands out tasks, the others run them.

Every rank runs the same command, started by the launcher:

    mpiexec -n 4 dlio pack photos packed --format tfrecord --engine mpi
    srun --mpi=pmi2 -n 4 dlio pack photos packed --format tfrecord --engine mpi

Four ranks are three workers. MPI cannot continue without a rank that died, so the job ends: mpiexec ends it at once,
srun at once with --kill-on-bad-exit and else when the rank has not been heard for five minutes. The same command
started again continues, on any number of ranks.
"""

from __future__ import annotations

import logging
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, InvalidStateError
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from dlio.cluster import liveness
from dlio.errors import DlioError, LauncherError, StorageError, needs_package
from dlio.executors import Pool, ReportedElsewhereError, refuse_address, refuse_workers
from dlio.io.world import start as start_thread

if TYPE_CHECKING:
    from mpi4py import MPI
    from mpi4py.futures import MPICommExecutor

_BEATS = 5  # rank 0 sends a message to every rank at a time, maybe thousands
_DEATH = "a rank of the MPI job has died: run the same command again, finished shards are kept"
T = TypeVar("T")
log = logging.getLogger(__name__)


@contextmanager
def open(workers: int | None, address: str | None) -> Iterator[Pool | None]:  # noqa: A001  the contract's word
    """Yields the other ranks as workers on rank 0; None on the others, when rank 0 has left the context.

    An error that leaves the context on rank 0 is raised on the others too, caused by `ReportedElsewhereError`.

    Raises:
        UsageError: an address or a number of workers is given; the launcher decides.
        LauncherError: there is one rank only, or no MPI library.
        MissingPackageError: mpi4py is not installed.
    """
    try:
        with needs_package("mpi4py", "mpi", "the engine mpi"):
            from mpi4py import MPI
            from mpi4py.futures import MPICommExecutor
    except RuntimeError as error:
        first = str(error).partition("\n")[0]
        raise LauncherError(f"{first}: load the module of the cluster's MPI, or pip install mpich") from error
    world = MPI.COMM_WORLD
    refusal = _refusal(world.size, workers, address)
    if refusal is not None:
        raise refusal from (ReportedElsewhereError("by rank 0") if world.rank > 0 else None)
    ranks = MPICommExecutor(world, root=0)
    if world.rank == 0:
        yield from _drive(world, ranks)
    else:
        _serve(world, ranks)
        yield None


def _refusal(num_ranks: int, workers: int | None, address: str | None) -> DlioError | None:
    try:
        refuse_address("mpi", address)
        refuse_workers("mpi", workers, "its launcher")
    except DlioError as error:
        return error
    if num_ranks > 1:
        return None
    return LauncherError(
        "the engine mpi needs at least 2 ranks, one that plans and one that works, but found one: start the command "
        "with mpiexec -n 4 ..., or srun --mpi=pmi2 -n 4 ...; if you did, mpi4py was built for another MPI "
        "than the launcher's"
    )


def _drive(world: MPI.Intracomm, ranks: Any) -> Iterator[Pool]:
    failure: BaseException | None = None
    executor = _RankExecutor()
    try:
        with _heartbeat(world, range(1, world.size), lambda: executor.give_up(world)), ranks as executor.ranks:
            try:
                yield Pool(executor, world.size - 1)
            except BaseException as error:
                failure = error
                raise
            finally:
                if executor.broken:
                    _abort(world, str(failure or _DEATH))
                executor.ranks.shutdown(wait=True, cancel_futures=True)
    finally:
        world.bcast(_portable(failure), root=0)


def _serve(world: MPI.Intracomm, ranks: MPICommExecutor) -> None:
    """Runs tasks until rank 0 has left the context, and raises what it raised; leaves interrupts to rank 0."""
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with _heartbeat(world, [0], lambda: _abort(world, _DEATH)), ranks:
            pass
        failure = world.bcast(None, root=0)
    finally:
        signal.signal(signal.SIGINT, interrupt)
    if failure is not None:
        raise failure from ReportedElsewhereError("by rank 0")


def _heartbeat(
    world: MPI.Intracomm, peers: Sequence[int], silent: Callable[[], None]
) -> AbstractContextManager[object]:
    """Returns the heartbeat between rank 0 and the others; nothing if MPI takes calls from one thread only."""
    from mpi4py import MPI

    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return nullcontext()
    return _Heartbeat(world.Dup(), peers, silent)


class _Heartbeat:
    """Sends heartbeats to some ranks, and listens for theirs, in its own thread: srun waits for a dead rank forever.

    Needs an MPI that takes calls from several threads (MPI_THREAD_MULTIPLE), and a communicator that nobody else uses.
    """

    def __init__(self, comm: MPI.Intracomm, peers: Sequence[int], silent: Callable[[], None]) -> None:
        """Starts; calls `silent`, in its thread, once one of `peers` sends none for LOST_WORKER_SECONDS."""
        self._comm = comm
        self._peers = peers
        self._silent = silent
        self._sent: dict[int, MPI.Request] = {}
        self._stopping = threading.Event()
        self._thread = start_thread(self._beat, "dlio-mpi-heartbeat")

    def __enter__(self) -> _Heartbeat:
        return self

    def __exit__(self, *_: object) -> None:
        """Says goodbye, and waits for the peers to do so."""
        self._stopping.set()
        self._thread.join()

    def _beat(self) -> None:
        beats, heartbeats = dict.fromkeys(self._peers, 0), liveness.Heartbeats()
        said_goodbye = False
        while beats or not said_goodbye:
            if said_goodbye:
                time.sleep(0.001)
            else:
                said_goodbye = self._stopping.wait(_BEATS * liveness.BEAT_SECONDS)
                self._send(said_goodbye)
            self._listen(beats)
            if any(heartbeats.note(peer, beat) > liveness.LOST_WORKER_SECONDS for peer, beat in beats.items()):
                self._silent()
                return

    def _send(self, goodbye: bool) -> None:
        for peer in self._peers:
            if goodbye or peer not in self._sent or self._sent[peer].test()[0]:  # a dead rank never receives
                self._sent[peer] = self._comm.isend((self._comm.rank, goodbye), peer)

    def _listen(self, beats: dict[int, int]) -> None:
        """Counts each peer's heartbeats, and forgets those that say goodbye."""
        while self._comm.iprobe():
            peer, goodbye = self._comm.recv()
            beats[peer] += 1
            if goodbye:
                del beats[peer]


def _abort(world: MPI.Intracomm, reason: str) -> None:
    """Ends all ranks at once, this one too: without the dead rank none can end in order."""
    log.error("%s", reason)
    world.Abort(StorageError.exit_code)


class _RankExecutor(Executor):
    """Hands tasks to ranks, and knows which are out, to give them up when a rank has died."""

    ranks: Executor

    def __init__(self) -> None:
        self.broken = False
        self._out: set[Future[Any]] = set()

    def submit(self, fn: Callable[..., T], /, *args: object, **kwargs: object) -> Future[T]:
        future = self.ranks.submit(fn, *args, **kwargs)
        self._out.add(future)
        future.add_done_callback(self._out.discard)
        if self.broken:
            self._break()
        return future

    def give_up(self, world: MPI.Intracomm) -> None:
        """Lets the tasks that are out raise BrokenExecutor; ends the job where nobody waits for them."""
        self.broken = True
        self._break()
        time.sleep(liveness.ABORT_SECONDS)
        _abort(world, _DEATH)

    def _break(self) -> None:
        for future in tuple(self._out):
            with suppress(InvalidStateError):  # it has just come
                future.set_exception(BrokenExecutor(_DEATH))


def _portable(failure: BaseException | None) -> BaseException | None:
    """Returns an error that can be sent: other ranks would wait forever for one that cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(failure))
    except Exception:
        return DlioError(f"rank 0 failed: {failure!r}")
    return failure

"""Simulated stream sockets, with the behaviour of Linux as far as the engine can see it."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Any

from dlio.io import world
from tools.simulate.pipe import END, RESET, Pipe
from tools.simulate.primitives import Waiting
from tools.simulate.process import Process
from tools.simulate.unread import Unread

if TYPE_CHECKING:
    from tools.simulate.network import Network

_MOST = 0x7FFF_F000  # bytes that one call sends
_UNKNOWN: int | None = -1  # the deadline of a call that has not waited yet


def failure(number: int) -> OSError:
    """Returns an error as the system raises it."""
    return OSError(number, os.strerror(number))


class SimSocket:
    """A `Socket`, of a process that is alive, or else nothing happens any more.

    Args:
        network: what it leads through.
        process: whose it is.
        name: of its own end: an address, or a path's.
        out: to the other end; None if it is not connected.
        peer_name: of the other end.
    """

    __slots__ = (
        "_error", "_has_ended", "_is_broken", "_is_shut", "_limit", "_name", "_network", "_peer_name",
        "_readers", "_scheduler", "_timeout", "_unread", "_writers", "backlog", "into", "is_closed", "out", "process",
        "real", "waiting", "watchers",
    )  # fmt: skip

    def __init__(
        self, network: Network, process: Process, name: Any, out: Pipe | None = None, peer_name: Any = ""
    ) -> None:
        self._network, self._scheduler, self.process = network, network.scheduler, process
        self._name, self._peer_name, self.out = name, peer_name, out
        self.into: Pipe | None = None
        self._timeout: float | None = None
        self._limit: float | None = None  # of `limit`
        self._unread = Unread()
        self._has_ended = self._is_shut = self._is_broken = self.is_closed = False
        self._error = 0
        self._readers, self._writers = Waiting(self._scheduler), Waiting(self._scheduler)
        self.watchers: dict[Any, None] = {}  #: selectors
        self.backlog = 0  #: how many may wait to be accepted; 0 if it does not listen
        self.waiting: list[SimSocket] = []  #: to be accepted
        self.real: socket.socket | None = None  #: bears a Unix socket's name in the file system
        network.opened(self)

    def link(self, out: Pipe, into: Pipe) -> None:
        """Connects it."""
        self.out, self.into = out, into
        out.source, into.target = self, self

    @property
    def is_readable(self) -> bool:
        """Whether `recv` or `accept` returns at once."""
        return bool(self._unread.count or self._has_ended or self._is_shut or self._error or self.waiting)

    @property
    def is_listening(self) -> bool:
        """Whether somebody can connect."""
        return self.backlog > 0 and not self._is_shut and not self.is_closed

    def receive(self, item: bytes | str) -> None:
        """Takes what has come by the pipe."""
        if self.is_closed:
            if isinstance(item, bytes):
                assert self.into
                self.into.used -= len(item)
            if item != RESET:
                assert self.out
                self.out.send(RESET)
            return
        if isinstance(item, bytes):
            self._unread.add(item)
        elif item == END:
            self._has_ended = True
        else:
            self.break_off(errno.EPIPE if self._has_ended else errno.ECONNRESET)
        self.wake_readers()

    def break_off(self, number: int) -> None:
        """Ends the connection with an error."""
        self._error, self._has_ended, self._is_broken = number, True, True
        self._writers.wake_all()
        self.wake_readers()

    def wake_readers(self) -> None:
        """Wakes the tasks that wait to receive."""
        if self._readers.tasks:
            self._readers.wake_all()
        for selector in list(self.watchers):
            selector.wake()

    def has_room(self) -> None:
        """Wakes the tasks that wait for room to send."""
        if self._writers.tasks:
            self._writers.wake_all()

    def _enter(self) -> None:
        if self._scheduler.eagerness:
            self._scheduler.pass_by()
        if self.is_closed:
            raise failure(errno.EBADF)

    def _deadline(self) -> int | None:
        seconds = self._limit if self._timeout is None else self._timeout
        ns = self.process.clock.ns(seconds)
        return None if ns is None else self._scheduler.now + ns

    def _wait(self, waiting: Waiting, deadline: int | None) -> bool:
        """Waits; returns whether it is not too late."""
        if self._timeout == 0 or (deadline is not None and self._scheduler.now >= deadline):
            return False
        waiting.wait(None if deadline is None else deadline - self._scheduler.now)
        if self.is_closed:
            raise failure(errno.EBADF)
        return True

    def _late(self) -> OSError:
        """Returns the error of a call that took too long."""
        return TimeoutError("timed out") if self._timeout else failure(errno.EAGAIN)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0, /) -> int:
        """As `socket.socket.recv_into`."""
        self._enter()
        if self._network.weather.reset:
            self._network.may_reset(self)
        target = memoryview(buffer).cast("B")
        wanted = min(nbytes or len(target), len(target))
        if self.into is None:
            raise failure(errno.ENOTCONN)
        is_peek = bool(flags & world.MSG_PEEK)
        is_all = self._timeout is None and flags & world.MSG_WAITALL and not is_peek
        if is_all and self._network.chance.happens(self._network.weather.part):
            is_all, wanted = False, self._network.chance.between(1, wanted)
        found, deadline = 0, _UNKNOWN
        while wanted:
            if self._unread.count:
                found += (taken := self._unread.take(target[found:wanted], is_peek=is_peek))
                if not is_peek:
                    self.into.taken(taken)
            if found == wanted or (found and not is_all):
                break
            if self._error and not found:
                number, self._error = self._error, 0
                raise failure(number)
            if self._has_ended or self._is_shut:
                break
            deadline = self._deadline() if deadline == _UNKNOWN else deadline
            if not self._wait(self._readers, deadline):
                if found:
                    break
                raise self._late()
        return found

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """As `socket.socket.recv`."""
        buffer = bytearray(bufsize)
        return bytes(buffer[: self.recv_into(buffer, 0, flags)])

    def sendall(self, data: Any, flags: int = 0, /) -> None:
        """As `socket.socket.sendall`."""
        left, deadline = memoryview(data).cast("B"), self._deadline() if self._timeout else _UNKNOWN
        while left:
            left = left[self.send(left, deadline) :]

    def send(self, data: memoryview, deadline: int | None = _UNKNOWN) -> int:
        """Sends some of the data, after waiting for room; returns how much."""
        self._enter()
        if self._network.weather.reset:
            self._network.may_reset(self)
        sent = 0
        while sent < len(data):
            if self._error:
                number, self._error = self._error, 0
                raise failure(number)
            if self.out is None:
                raise failure(errno.ENOTCONN)
            if self._is_shut or self._is_broken:
                raise failure(errno.EPIPE)
            if room := min(self.out.room, len(data) - sent, _MOST):
                self.out.send(bytes(data[sent : sent + room]))
                sent += room
                self._scheduler.note("send", room)
                continue
            deadline = self._deadline() if deadline == _UNKNOWN else deadline
            if not self._wait(self._writers, deadline):
                if sent:
                    break
                raise self._late()
        return sent

    def setblocking(self, flag: bool, /) -> None:
        """As `socket.socket.setblocking`."""
        self.settimeout(None if flag else 0.0)

    def settimeout(self, value: float | None, /) -> None:
        """As `socket.socket.settimeout`."""
        self._scheduler.check()
        self._timeout = value

    def gettimeout(self) -> float | None:
        """As `socket.socket.gettimeout`."""
        return self._timeout

    def limit(self, seconds: float) -> None:
        """Makes the kernel end each call after this many seconds."""
        self._scheduler.check()
        self._timeout, self._limit = None, seconds

    def getsockname(self) -> Any:
        """As `socket.socket.getsockname`."""
        return self._name

    def getpeername(self) -> Any:
        """As `socket.socket.getpeername`."""
        if self.out is None:
            raise failure(errno.ENOTCONN)
        return self._peer_name

    def fileno(self) -> int:
        """Returns a number without use: code that needs one goes through the world."""
        return -1 if self.is_closed else 1 << 20

    def bind(self, address: Any, /) -> None:
        """As `socket.socket.bind`, of a Unix socket, whose name is a real one in the file system."""
        self._enter()
        self.real = socket.socket(socket.AF_UNIX)
        os.fchmod(self.real.fileno(), 0o600)
        self.real.bind(address)
        self._name = address
        self._network.bound(self, os.stat(address))  # noqa: PTH116  a path below a descriptor

    def listen(self, backlog: int = 128, /) -> None:
        """As `socket.socket.listen`."""
        self._enter()
        self.backlog = backlog + 1

    def accept(self) -> tuple[SimSocket, Any]:
        """As `socket.socket.accept`."""
        self._enter()
        deadline = self._deadline()
        while not self.waiting:
            if self._is_shut or not self.backlog:
                raise failure(errno.EINVAL)
            if not self._wait(self._readers, deadline):
                raise self._late()
        peer = self.waiting.pop(0)
        self._scheduler.note("accept")
        return peer, peer.getpeername()

    def connect(self, address: Any, /) -> None:
        """As `socket.socket.connect`, of a Unix socket."""
        self._enter()
        self._network.connect_unix(self, address)

    def shutdown(self, how: int, /) -> None:
        """As `socket.socket.shutdown`, of both directions."""
        self._scheduler.check()
        if self.is_closed:
            raise failure(errno.EBADF)
        if self.out is None and not self.backlog:
            raise failure(errno.ENOTCONN)
        if not self._is_shut:
            self._is_shut = True
            if self.backlog:
                self._refuse_all()
            elif self.out is not None and not self._is_broken:
                self.out.send(END)
            self._writers.wake_all()
            self.wake_readers()

    def _refuse_all(self) -> None:
        while self.waiting:
            self.waiting.pop(0).abandon(is_reset=True)

    def close(self) -> None:
        """As `socket.socket.close`."""
        self._scheduler.check()
        self.abandon()

    def abandon(self, *, is_reset: bool = False) -> None:
        """Closes it, as the system does for a process that has ended, too."""
        if self.is_closed:
            return
        self.is_closed = True
        if self.real is not None:
            self.real.close()
        self._refuse_all()
        if self._unread.count:
            assert self.into
            self.into.used -= self._unread.clear()
            if self.out and not self._is_broken:
                self.out.send(RESET)
        elif self.out is not None and not self._is_broken and (is_reset or not self._is_shut):
            self.out.send(RESET if is_reset else END)
        self._network.closed(self)
        self._writers.wake_all()
        self.wake_readers()

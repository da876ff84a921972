"""The system itself, which adds nothing to what the operating system does.

Functions that connect import `socket` and `selectors` when they are called: a process that only reads files saves 3 ms.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlio.errors import LauncherError
from dlio.io import limits
from dlio.io.world.interface import Address, Selector, Socket

if TYPE_CHECKING:
    import socket

_LIMIT = struct.Struct("@ll")  # a struct timeval
_CREDENTIALS = struct.Struct("=iII")  # process, user, group: struct ucred of unix(7)
_PF_EXITING = 0x4  # in the flags of /proc/PID/stat, see linux/sched.h: killed, and freeing its memory


class SystemSelector:
    """A `Selector`."""

    def __init__(self) -> None:
        import selectors

        self._selector, self._event = selectors.DefaultSelector(), selectors.EVENT_READ

    def register(self, peer: Socket, data: object) -> None:
        self._selector.register(peer, self._event, data)

    def unregister(self, peer: Socket) -> None:
        self._selector.unregister(peer)

    def select(self, timeout: float | None = None) -> list[Any]:
        return [key.data for key, _ in self._selector.select(timeout)]

    def close(self) -> None:
        self._selector.close()


class System:
    """A `World`, which says what each method does; safe for threads and across fork."""

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
    sleep = staticmethod(time.sleep)
    lock = staticmethod(threading.Lock)
    condition = staticmethod(threading.Condition)
    event = staticmethod(threading.Event)
    random_bytes = staticmethod(os.urandom)
    pid = staticmethod(os.getpid)

    def start(self, call: Callable[[], object], name: str) -> threading.Thread:
        thread = threading.Thread(target=call, name=name, daemon=True)
        with limits.starting("a thread"):
            thread.start()
        return thread

    def host(self) -> str:
        return os.uname().nodename

    def address(self) -> str:
        from dlio.io.world.own_address import host_address

        return host_address()

    def boot_id(self) -> str:
        source = Path("/proc/sys/kernel/random/boot_id")
        try:
            return source.read_text().strip()
        except OSError as error:
            reason = limits.reached(error) or error.strerror
            raise LauncherError(f"{source}: cannot read the boot id that identifies this node: {reason}") from error

    def start_time(self, pid: int) -> int | None:
        try:
            status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            return None
        after_name = status.rpartition(")")[2].split()  # the name may hold spaces and brackets, see proc(5)
        is_over = after_name[0] in "ZX" or int(after_name[6]) & _PF_EXITING
        return None if is_over else int(after_name[19])

    def listen(self, host: str, backlog: int) -> socket.socket:
        import socket

        return socket.create_server((host, 0), backlog=backlog)

    def connect(self, address: Address, seconds: float) -> socket.socket:
        import socket

        return socket.create_connection(address, seconds)

    def unix_socket(self) -> socket.socket:
        import socket

        found = socket.socket(socket.AF_UNIX)
        os.fchmod(found.fileno(), 0o600)  # before it has a name
        return found

    def user_of(self, peer: Socket) -> int:
        import socket

        assert isinstance(peer, socket.socket)
        return int(_CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1])

    def limit(self, peer: Socket, seconds: float) -> None:
        """Makes the kernel end each call on a connection after this many seconds, with BlockingIOError.

        So one call can receive or send a whole body. With a timeout of Python's the kernel would not wait, and Python
        would wake up for each part that arrives.
        """
        import socket

        assert isinstance(peer, socket.socket)
        peer.settimeout(None)
        timeval = _LIMIT.pack(int(seconds), round(seconds % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            peer.setsockopt(socket.SOL_SOCKET, option, timeval)

    def keep_alive(self, peer: Socket) -> None:
        import socket

        assert isinstance(peer, socket.socket)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def selector(self) -> Selector:
        return SystemSelector()

    def send_file(self, peer: Socket, descriptor: int, begin: int, count: int) -> int:
        return os.sendfile(peer.fileno(), descriptor, begin, count)

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """As `os.open`, which is looked up at each call; so are those below."""
        return os.open(path, flags, mode, dir_fd=dir_fd)

    def pread(self, descriptor: int, count: int, offset: int) -> bytes:
        return os.pread(descriptor, count, offset)

    def preadv(self, descriptor: int, buffers: Sequence[Any], offset: int) -> int:
        return os.preadv(descriptor, buffers, offset)

    def pwrite(self, descriptor: int, data: Any, offset: int) -> int:
        return os.pwrite(descriptor, data, offset)

    def fsync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def replace(
        self, source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        os.replace(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    def names(self, folder: int) -> list[str]:
        return os.listdir(folder)

    def touch(self, path: Any, *, dir_fd: int | None = None) -> None:
        """Lets the file system set a file's times: on a shared one its server's clock counts; follows no link."""
        os.utime(path, dir_fd=dir_fd, follow_symlinks=False)

    def changed(self, status: os.stat_result) -> float:
        """Returns the change time, which the system alone sets."""
        return status.st_ctime

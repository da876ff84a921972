"""Connections to one agent, kept for the next requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dlio.locking.fork_lock import ForkLock
from dlio.stage.protocol.connection import AgentError, Connection

Answer = TypeVar("Answer")


class ConnectionPool:
    """Connections to one agent; for any number of threads.

    Args:
        most: connections that are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = ForkLock()
        self._idle: list[Connection] = []

    def use(self, ask: Callable[[Connection], Answer], connect: Callable[[], Connection]) -> Answer:
        """Returns what `ask` does, on a new connection if the one kept was closed meanwhile.

        Args:
            ask: uses a connection.
            connect: returns a new one; raises OSError.

        Raises:
            AgentError: the agent could not do it.
            OSError: it does not answer; what was not answered in time is not asked a second time.
        """
        if kept := self._kept():
            try:
                return self._on(kept, ask)
            except (AgentError, TimeoutError):
                raise
            except OSError:
                self.close()  # the agent has ended, and with it all connections
        return self._on(connect(), ask)

    def close(self) -> None:
        """Closes the connections that no request uses; the pool can be used again."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _on(self, connection: Connection, ask: Callable[[Connection], Answer]) -> Answer:
        """Returns what `ask` does, and keeps the connection unless it failed."""
        try:
            answer = ask(connection)
        except AgentError:
            self._keep(connection)
            raise
        except BaseException:
            connection.close()
            raise
        self._keep(connection)
        return answer

    def _kept(self) -> Connection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _keep(self, connection: Connection) -> None:
        with self._lock:
            if len(self._idle) < self._most:
                self._idle.append(connection)
                return
        connection.close()

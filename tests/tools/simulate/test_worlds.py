"""What the engine relies on, tested with the system and with a simulated world."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial
from inspect import isfunction, signature
from pathlib import Path

import pytest

from dlio.io import world
from tests.helpers.worlds import InWorld, in_world, run_in, simulated
from tools.simulate.network import Weather

__all__ = ["in_world"]

Pair = tuple[socket.socket, socket.socket]


def _tcp() -> Pair:
    listening = world.listen("127.0.0.1", 8)
    one = world.connect(listening.getsockname()[:2], 5.0)
    other, _ = listening.accept()
    listening.close()
    return one, other


def _unix(folder: Path) -> Pair:
    listening = world.unix_socket()
    name = str(folder / "socket")
    listening.bind(name)
    listening.listen(8)
    one = world.unix_socket()
    one.connect(name)
    other, _ = listening.accept()
    listening.close()
    Path(name).unlink()
    return one, other


@pytest.fixture(params=["tcp", "unix"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Pair]:
    return _tcp if request.param == "tcp" else partial(_unix, tmp_path)


def test_bytes_come_in_order_and_then_the_end(in_world: InWorld, pair: Callable[[], Pair]) -> None:
    sent = os.urandom(3_000_000)  # more than fits on the way

    def check() -> None:
        one, other = pair()
        found = bytearray()

        def receive() -> None:
            while more := other.recv(100_000):
                found.extend(more)

        thread = world.start(receive, "receive")
        one.sendall(sent)
        one.close()
        thread.join(20)
        assert found == sent
        assert other.recv(1) == b""
        other.close()

    in_world(check)


def test_waitall_fills_the_buffer_or_ends_short(in_world: InWorld, pair: Callable[[], Pair]) -> None:
    def check() -> None:
        one, other = pair()
        world.limit(other, 5.0)

        def send() -> None:
            for part in (b"ab", b"cd", b"ef"):
                one.sendall(part)
                world.sleep(0.01)
            one.close()

        thread = world.start(send, "send")
        buffer = bytearray(4)
        assert other.recv_into(memoryview(buffer), 0, world.MSG_WAITALL) == 4
        assert buffer == b"abcd"
        assert other.recv_into(memoryview(buffer), 0, world.MSG_WAITALL) == 2
        assert other.recv_into(memoryview(buffer), 0, world.MSG_WAITALL) == 0
        thread.join()
        other.close()

    in_world(check)


def test_a_peek_leaves_the_bytes(in_world: InWorld, pair: Callable[[], Pair]) -> None:
    def check() -> None:
        one, other = pair()
        one.sendall(b"ab")
        assert other.recv(1, world.MSG_PEEK) == b"a"
        assert other.recv(2, world.MSG_WAITALL) == b"ab"
        one.close()
        assert other.recv(1, world.MSG_PEEK) == b""
        other.close()

    in_world(check)


@pytest.mark.parametrize("kind", ["timeout", "limit", "non-blocking"])
def test_whoever_waits_too_long_is_told_so(in_world: InWorld, pair: Callable[[], Pair], kind: str) -> None:
    def check() -> None:
        one, other = pair()
        if kind == "timeout":
            other.settimeout(0.05)
        elif kind == "limit":
            world.limit(other, 0.05)
        else:
            other.setblocking(False)
        expected = TimeoutError if kind == "timeout" else BlockingIOError
        began = world.monotonic()
        with pytest.raises(expected):
            other.recv(1)
        with pytest.raises(expected):
            while True:  # nobody reads
                other.sendall(bytes(1 << 20))
        assert (world.monotonic() - began >= 0.04) == (kind != "non-blocking")
        one.close()
        other.close()

    in_world(check)


def test_a_limit_returns_what_has_come(in_world: InWorld, pair: Callable[[], Pair]) -> None:
    def check() -> None:
        one, other = pair()
        world.limit(other, 0.05)
        one.sendall(b"ab")
        buffer = bytearray(4)
        assert other.recv_into(memoryview(buffer), 0, world.MSG_WAITALL) == 2
        with pytest.raises(BlockingIOError):
            other.recv_into(memoryview(buffer), 0, world.MSG_WAITALL)
        one.close()
        other.close()

    in_world(check)


def test_an_end_with_unread_bytes_resets_the_connection(in_world: InWorld, pair: Callable[[], Pair]) -> None:
    def check() -> None:
        one, other = pair()
        one.sendall(b"never read")
        world.sleep(0.02)
        other.close()
        world.sleep(0.02)
        with pytest.raises(ConnectionResetError):
            one.recv(1)
        with pytest.raises(BrokenPipeError):
            one.sendall(b"more")
        one.close()

    in_world(check)


def test_sending_to_one_that_has_closed_breaks(in_world: InWorld, pair: Callable[[], Pair]) -> None:
    def check() -> None:
        one, other = pair()
        other.close()
        world.sleep(0.02)
        assert one.recv(1) == b""
        with pytest.raises(BrokenPipeError):
            for _ in range(10):
                one.sendall(b"more")
                world.sleep(0.02)
        one.close()

    in_world(check)


def test_a_shutdown_wakes_who_reads_and_ends_the_other(in_world: InWorld, pair: Callable[[], Pair]) -> None:
    def check() -> None:
        one, other = pair()
        found: list[bytes] = []
        thread = world.start(lambda: found.append(one.recv(1)), "reads")
        world.sleep(0.02)
        one.shutdown(world.SHUT_RDWR)
        thread.join(5)
        assert found == [b""]
        assert other.recv(1) == b""
        with pytest.raises(BrokenPipeError):
            one.sendall(b"more")
        one.close()
        with pytest.raises(OSError, match="9"):
            one.recv(1)
        other.close()

    in_world(check)


def test_nobody_listens(in_world: InWorld, tmp_path: Path) -> None:
    def check() -> None:
        listening = world.listen("127.0.0.1", 8)
        address = listening.getsockname()[:2]
        listening.close()
        with pytest.raises(ConnectionRefusedError):
            world.connect(address, 5.0)
        named = world.unix_socket()
        with pytest.raises(FileNotFoundError):
            named.connect(str(tmp_path / "none"))
        left = world.unix_socket()
        left.bind(str(tmp_path / "left"))
        left.close()
        with pytest.raises(ConnectionRefusedError):
            named.connect(str(tmp_path / "left"))
        named.close()
        (tmp_path / "left").unlink()

    in_world(check)


def test_a_selector_tells_who_can_be_read(in_world: InWorld) -> None:
    def check() -> None:
        listening = world.listen("127.0.0.1", 8)
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.accept()
        selector = world.selector()
        selector.register(listening, "comes")
        assert selector.select(0.01) == []
        one = world.connect(listening.getsockname()[:2], 5.0)
        assert selector.select(5.0) == ["comes"]
        other, address = listening.accept()
        assert address == one.getsockname()
        assert other.getsockname() == one.getpeername() == listening.getsockname()
        selector.register(other, "speaks")
        assert selector.select(0.01) == []
        one.sendall(b"a")
        assert selector.select(5.0) == ["speaks"]
        assert other.recv(1) == b"a"
        one.close()
        assert selector.select(5.0) == ["speaks"]
        selector.unregister(other)
        listening.shutdown(socket.SHUT_RDWR)
        assert selector.select(5.0) == ["comes"]
        with pytest.raises(OSError, match="22"):
            listening.accept()
        selector.close()
        other.close()
        listening.close()

    in_world(check)


def test_a_file_is_sent_as_far_as_it_goes(in_world: InWorld, pair: Callable[[], Pair], tmp_path: Path) -> None:
    content = os.urandom(700_000)

    def check() -> None:
        one, other = pair()
        found = bytearray()

        def receive() -> None:
            while more := other.recv(100_000):
                found.extend(more)

        thread = world.start(receive, "receive")
        descriptor = world.open(tmp_path / "file", os.O_RDWR | os.O_CREAT, 0o600)
        assert world.pwrite(descriptor, content, 0) == len(content)
        begin = 1
        while count := world.send_file(one, descriptor, begin, len(content)):
            begin += count
        assert begin == len(content)
        one.close()
        thread.join(20)
        assert found == content[1:]
        os.close(descriptor)
        other.close()

    in_world(check)


def test_a_lock_is_one_threads_at_a_time(in_world: InWorld) -> None:
    def check() -> None:
        lock, inside, most = world.lock(), 0, 0

        def work() -> None:
            nonlocal inside, most
            for _ in range(5):
                with lock:
                    inside += 1
                    most = max(most, inside)
                    world.sleep(0.001)
                    inside -= 1

        threads = [world.start(work, f"work{each}") for each in range(4)]
        for thread in threads:
            thread.join()
        assert (inside, most) == (0, 1)
        assert lock.acquire()
        assert not lock.acquire(False)
        assert not lock.acquire(timeout=0.01)
        lock.release()
        with pytest.raises(RuntimeError):
            lock.release()

    in_world(check)


def test_a_condition_wakes_as_many_as_it_is_told_to(in_world: InWorld) -> None:
    def check() -> None:
        changed, woken = world.condition(), list[int]()

        def wait(number: int) -> None:
            with changed:
                if changed.wait(5):
                    woken.append(number)

        threads = [world.start(partial(wait, each), f"wait{each}") for each in range(4)]
        world.sleep(0.05)
        with changed:
            changed.notify()
            assert not woken  # they need the lock
        world.sleep(0.05)
        assert len(woken) == 1
        with changed:
            changed.notify_all()
        for thread in threads:
            thread.join()
        assert sorted(woken) == [0, 1, 2, 3]
        with changed:
            assert not changed.wait(0.01)
        with pytest.raises(RuntimeError):
            changed.notify()
        with pytest.raises(RuntimeError):
            changed.wait(0.01)

    in_world(check)


def test_an_event_and_the_end_of_a_thread_are_waited_for(in_world: InWorld) -> None:
    def check() -> None:
        event = world.event()
        assert not event.wait(0.01)
        thread = world.start(lambda: event.wait(5), "waits")
        thread.join(0.01)
        assert thread.is_alive()
        event.set()
        thread.join()
        assert not thread.is_alive()
        assert event.is_set()
        assert event.wait()
        event.clear()
        assert not event.is_set()

    in_world(check)


def test_time_goes_on(in_world: InWorld, tmp_path: Path) -> None:
    def check() -> None:
        began, day = world.monotonic(), world.wall()
        world.sleep(0.02)
        assert world.monotonic() - began >= 0.0199
        assert world.wall() - day >= 0.0199
        descriptor = world.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT, 0o600)
        os.close(descriptor)
        made = world.changed((tmp_path / "file").stat())
        world.sleep(0.02)
        world.touch(tmp_path / "file")
        touched = world.changed((tmp_path / "file").stat())
        folder = world.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
        assert "file" in world.names(folder)
        os.close(folder)
        assert made < touched
        assert abs(world.wall() - touched) < 60
        (tmp_path / "file").unlink()

    in_world(check)


def test_a_process_knows_itself(in_world: InWorld) -> None:
    def check() -> None:
        assert world.start_time(world.pid()) is not None
        assert world.start_time(2_000_000_000) is None
        assert world.boot_id()
        assert world.host()
        assert world.random_bytes(8) != world.random_bytes(8)

    in_world(check)


def test_a_simulated_world_has_each_function_with_its_parameters(tmp_path: Path) -> None:
    own = {"installed", "contextmanager"}
    found = {name for name, value in vars(world).items() if callable(value) and name.islower() and name[0] != "_"} - own
    assert {"monotonic", "lock", "connect", "fsync", "touch"} <= found
    assert found <= set(dir(made := simulated(tmp_path)))
    written = [name for name in found if isfunction(getattr(world, name))]
    assert {name: _parameters(getattr(world, name)) for name in written} == {
        name: _parameters(getattr(made, name)) for name in written
    }


def _parameters(function: Callable[..., object]) -> list[tuple[str, object, object]]:
    return [(each.name, each.kind, each.default) for each in signature(function).parameters.values()]


def test_a_seed_is_the_same_on_every_machine_and_in_every_python(tmp_path: Path) -> None:
    """Who changes the simulated network, disks or scheduler on purpose puts the new digest here."""
    (folder := tmp_path / "disk").mkdir()
    made, sent = simulated(folder, 7, Weather(pieces=0.3, bandwidth=10_000_000), nodes=2), bytes(range(256)) * 1_000

    def check() -> None:
        listening = world.listen("", 8)

        def send() -> None:
            one = world.connect(listening.getsockname()[:2], 5.0)
            for begin in range(0, len(sent), 10_000):
                one.sendall(sent[begin : begin + 10_000])
            one.close()

        made.scheduler.spawn(made.process(1), send, "send")
        (other, _), found = listening.accept(), bytearray()
        file = world.open(folder / "part", os.O_RDWR | os.O_CREAT, 0o600)
        while more := other.recv(9_000):
            assert world.pwrite(file, more, len(found)) == len(more)
            found.extend(more)
        world.fsync(file)
        world.replace(folder / "part", folder / "whole")
        assert world.pread(file, len(sent), 0) == found == sent
        os.close(file)
        other.close()
        listening.close()
        made.scheduler.note("drawn", world.random_bytes(4).hex(), world.monotonic())

    run_in(made, check)
    assert (made.scheduler.events, made.scheduler.digest()) == (181, "87cd6220d50e98f3a2cd4d9d7a86d5e3")

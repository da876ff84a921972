"""On one node loaders reach the agent by a socket that no other user reaches, wherever the copy lies."""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dlio.dataset.manifest import Manifest
from dlio.errors import StorageError
from dlio.stage.copies import locations
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.copies.live_folder import LiveFolder
from dlio.stage.engine.node import Node
from dlio.stage.protocol import unix
from dlio.stage.protocol.connection import RefusedError
from dlio.stage.protocol.unix import UnixListener
from dlio.stage.protocol.wire import Origin
from dlio.stage.upkeep.clean import clean
from tests.helpers.forked import Forked
from tests.helpers.live import NAME, client_of, content, meet_in, task, working
from tests.helpers.staging import write_dataset
from tests.helpers.users import BOB, as_user, open_to_all

IS_ROOT = os.geteuid() == 0


@pytest.fixture
def small(tmp_path: Path) -> Manifest:
    """Two shards."""
    return write_dataset(tmp_path / "source", [100_000, 17])


@pytest.fixture
def live(tmp_path: Path) -> LiveFolder:
    """The folder of an agent that has not begun."""
    found = LiveFolder(StagedFolder(tmp_path, "0" * 32))
    found.staged.path.mkdir(parents=True)
    found.make()
    return found


@pytest.fixture
def refusing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Folders in which the system makes no sockets; /tmp is another folder."""
    folders: list[Path] = []
    plain = socket.socket.bind

    def bind(self: socket.socket, address: str) -> None:
        folder = Path(address).parent.readlink()
        if any(folder.is_relative_to(each) for each in folders):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        plain(self, address)

    class Socket(socket.socket):
        pass

    Socket.bind = bind  # type: ignore[method-assign, assignment]
    monkeypatch.setattr(socket, "socket", Socket)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(locations, "LISTED_AT", tmp_path / "tmp")
    yield folders


def ports() -> set[str]:
    """Returns the inodes of the TCP sockets on which this process listens."""
    tables = "".join(Path("/proc/self/net", name).read_text() for name in ("tcp", "tcp6"))
    listening = {words[9] for words in map(str.split, tables.splitlines()) if words[3] == "0A"}
    targets = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return {inode for inode in listening if f"socket:[{inode}]" in targets}


def reads(node: Node, manifest: Manifest) -> bool:
    """Returns whether a loader gets the right bytes."""
    data = bytearray(100_000)
    with closing(client_of(node)) as client:
        assert client.read(0, [(0, len(data))], memoryview(data)) in Origin
    return bytes(data) == content(manifest, 0)


def test_the_agent_of_one_node_opens_no_port_and_lets_its_user_in_only(small: Manifest, tmp_path: Path) -> None:
    before = ports()
    with working(task(small.root, tmp_path / "dest")) as node:
        assert reads(node, small) and ports() == before
        folder, found = node._live.path.stat(), (node._live.path / "socket").stat()
        assert (stat.S_IMODE(folder.st_mode), stat.S_IMODE(found.st_mode)) == (0o700, 0o600)
        assert stat.S_ISSOCK(found.st_mode) and not (node._live.path / "token").exists()
    assert not (node._live.path / "socket").exists()


def test_nodes_listen_on_one_port_of_the_interface(
    small: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet_in(tmp_path / "meet", monkeypatch)
    before = ports()
    with working(task(small.root, tmp_path / "dest", 0, 2)) as node:
        assert reads(node, small) and len(ports() - before) == 1 and node.address[0] == "127.0.0.1"


@pytest.mark.parametrize("length", [108, 250, 1000])
def test_a_deep_dest_serves_as_well(small: Manifest, tmp_path: Path, length: int) -> None:
    dest = tmp_path
    while len(str(dest)) < length:
        dest = dest / ("deep" * 20)
    with working(task(small.root, dest)) as node:
        assert reads(node, small)


def test_the_socket_that_a_killed_agent_left_is_replaced(small: Manifest, tmp_path: Path, live: LiveFolder) -> None:
    Forked(lambda: UnixListener(live)).wait()
    with pytest.raises(ConnectionRefusedError):
        unix.connect(live, "socket", NAME)
    listener = UnixListener(live)
    assert stat.S_ISSOCK((live.path / listener.where).stat().st_mode)
    listener.close()
    listener.listening.close()


def test_an_agent_that_ends_late_leaves_the_next_ones_socket(live: LiveFolder) -> None:
    first, second = UnixListener(live), UnixListener(live)
    for listener in (first, second):
        assert (live.path / "socket").exists()
        listener.close()
        listener.listening.close()
    assert not (live.path / "socket").exists()


def test_a_file_system_without_sockets_has_them_elsewhere(
    small: Manifest, tmp_path: Path, refusing: list[Path]
) -> None:
    refusing.append(tmp_path / "dest")
    agents = tmp_path / "tmp" / f"dlio-u{os.geteuid()}" / "agents"
    with working(task(small.root, tmp_path / "dest")) as node:
        (found,) = agents.iterdir()
        assert reads(node, small) and stat.S_ISSOCK(found.stat().st_mode)
        assert stat.S_IMODE(agents.stat().st_mode) == 0o700
    assert list(agents.iterdir()) == []


def test_a_node_that_has_sockets_nowhere_says_so(live: LiveFolder, tmp_path: Path, refusing: list[Path]) -> None:
    refusing.append(tmp_path)
    with pytest.raises(StorageError, match=rf"no Unix socket can be made in {re.escape(str(live.path))} \("):
        UnixListener(live)


def test_a_socket_elsewhere_is_in_no_folder_that_others_can_write(
    live: LiveFolder, tmp_path: Path, refusing: list[Path]
) -> None:
    refusing.append(live.path)
    (own := tmp_path / "tmp" / f"dlio-u{os.geteuid()}").mkdir()
    own.chmod(0o777)
    with pytest.raises(StorageError, match="or others can change it"):
        UnixListener(live)


def test_a_socket_behind_a_link_of_the_folder_is_not_reached(live: LiveFolder, tmp_path: Path) -> None:
    listener = UnixListener(live)
    live.path.rename(tmp_path / "elsewhere")
    live.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        unix.connect(live, "socket", NAME)
    listener.listening.close()


@pytest.mark.skipif(not IS_ROOT, reason="becomes another user")
def test_another_user_is_refused_even_if_all_modes_let_it_in(small: Manifest, tmp_path: Path) -> None:
    dest = open_to_all(tmp_path) / "dest"
    with working(task(small.root, dest)) as node:
        live = node._live

        def intrude() -> None:
            with pytest.raises(RefusedError):
                unix.connect(live, "socket", NAME)

        for path in (*live.path.parents, live.path, live.path / "socket"):
            if path.is_relative_to(dest):
                path.chmod(0o777)
        assert as_user(BOB, intrude) == 0
        assert reads(node, small)


@pytest.mark.skipif(not IS_ROOT, reason="becomes another user")
def test_another_users_server_is_refused(tmp_path: Path) -> None:
    live = LiveFolder(StagedFolder(open_to_all(tmp_path), "0" * 32))
    live.staged.path.mkdir(parents=True)
    live.make()
    for path in (live.path, *live.path.parents):
        if path.is_relative_to(tmp_path):
            path.chmod(0o1777)
    reader, writer = os.pipe()

    def listen() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            os.chdir(live.path)
            listener.bind("socket")
            listener.listen()
            os.write(writer, b"!")
            peer, _ = listener.accept()
            peer.sendall(peer.recv(8))

    def child() -> None:
        os.setgid(BOB)
        os.setuid(BOB)
        listen()

    bob = Forked(child)
    os.read(reader, 1)
    with pytest.raises(RefusedError, match=f"a server of user {BOB} was refused"):
        unix.connect(live, "socket", NAME)
    bob.kill()
    os.close(reader)
    os.close(writer)


def test_a_loader_that_finds_no_room_waits_for_it(live: LiveFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix, "_BACKLOG", 0)
    listener = UnixListener(live)
    monkeypatch.chdir(live.path)
    with listener.listening, socket.socket(socket.AF_UNIX) as first:
        first.connect("socket")
        monkeypatch.setattr(unix.wire, "PERSIST_SECONDS", 0.05)
        with pytest.raises(TimeoutError, match=r"ended each of [2-9] connections"):
            unix.connect(live, "socket", NAME)
        monkeypatch.setattr(unix.wire, "PERSIST_SECONDS", 60.0)
        waiting = threading.Thread(target=lambda: unix.connect(live, "socket", NAME).close())
        waiting.start()
        listener.listening.accept()[0].close()
        peer, _ = listener.listening.accept()
        with peer:
            peer.sendall(peer.recv(8))
            waiting.join()


def test_clean_removes_the_socket_that_a_killed_agent_left(small: Manifest, tmp_path: Path) -> None:
    with working(task(small.root, tmp_path / "dest")) as node:
        copy = node.folder
    node._live.make()
    Forked(lambda: UnixListener(node._live)).wait()
    assert (node._live.path / "socket").exists()
    assert clean(tmp_path / "dest") == [copy.path]

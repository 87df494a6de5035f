"""Who has connected to a port of this process."""

import contextlib
import socket
import subprocess
import sys

import pytest

from jaxformer.multihost import connections

CLIENT = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); print(flush=True); input()"


@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def other(port):
    """Another process that is connected to a port, until its input ends."""
    client = subprocess.Popen([sys.executable, "-c", CLIENT, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    client.stdout.readline()
    return client


def awaited(processes, port, process_id=0):
    return connections.awaited(process_id, processes, f"127.0.0.1:{port}")


@pytest.mark.skipif(not connections.NET.is_dir(), reason="Linux alone lists connections")
def test_the_connections_of_other_processes(server):
    """This process has one to itself, too, as process 0 has one to its coordinator."""
    port = server.getsockname()[1]
    assert awaited(4, port, process_id=1) == f"process 0 at 127.0.0.1:{port}, or another,"
    assert awaited(4, port) == "3 of the 3 others"
    with contextlib.ExitStack() as stack:
        stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        stack.enter_context(server.accept()[0])
        assert connections.connected(port) == []
        clients = [stack.enter_context(other(port)) for _ in range(2)]
        for _ in clients:
            stack.enter_context(server.accept()[0])
        assert connections.connected(port) == ["127.0.0.1"] * 2
        assert awaited(4, port) == "1 of the 3 others (all but 2 from 127.0.0.1)"
        assert awaited(3, port) == "some of the others"
        for client in clients:
            client.stdin.close()


def test_other_systems_list_none(server, monkeypatch, tmp_path):
    monkeypatch.setattr(connections, "NET", tmp_path / "net")
    monkeypatch.setattr(connections, "OWN", tmp_path / "fd")
    assert connections.connected(server.getsockname()[1]) is None
    assert awaited(3, server.getsockname()[1]) == "some of the others"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0100007F:1F90", ("127.0.0.1", 8080)),
        ("0000000000000000FFFF00000200000A:0050", ("10.0.0.2", 80)),
        ("00000000000000000000000001000000:0001", ("::1", 1)),
        ("B80D0120000000000000000001000000:0001", ("2001:db8::1", 1)),
    ],
)
def test_addresses(text, address):
    assert connections._address(text) == address

"""The kernel's counters, on a real connection."""

import math
import os
import socket
import struct
import sys
from types import SimpleNamespace

import pytest

from course_lib import tcp_bytes
from course_lib.exercises.probes import traffic


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts")
@pytest.mark.parametrize("family, host", [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_each_end_counts_what_it_sent(family, host):
    with socket.socket(family) as server:
        try:
            server.bind((host, 0))
        except OSError:
            pytest.skip(f"no {host} here")
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection((host, port)) as caller, server.accept()[0] as accepted:
            caller.sendall(b"x" * 1000)
            accepted.sendall(b"y" * 123_456)
            accepted.recv(1000, socket.MSG_WAITALL), caller.recv(123_456, socket.MSG_WAITALL)
            ports = {"server": port, "caller": caller.getsockname()[1]}
            sent = tcp_bytes.sent_bytes({name: f"localhost:{number}" for name, number in ports.items()})
            assert sent == {"server": 123_456, "caller": 1000}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts")
def test_a_ports_connections_count_together():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address) as one, server.accept()[0] as first:
            with socket.create_connection(address) as other, server.accept()[0] as second:
                for end, sent, far in ((first, 10, one), (second, 20, other)):
                    end.sendall(bytes(sent))
                    far.recv(sent, socket.MSG_WAITALL)
                found = tcp_bytes.sent_bytes({"server": f"[::ffff:127.0.0.1]:{address[1]}", "nobody": "localhost:1"})
                assert found == {"server": 30, "nobody": 0}


def test_the_count_stands_behind_other_attributes():
    """Each begins with its length and kind, and the next one at a multiple of four bytes."""
    others = struct.pack("=HHB3x", 5, 8, 1) + struct.pack("=HHI", 8, 15, 1)
    assert tcp_bytes._sent(others + struct.pack("=HH200xQ", 4 + 208, 2, 77)) == 77
    assert tcp_bytes._sent(others) == tcp_bytes._sent(b"") == 0


def test_elsewhere_nothing_is_told(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert math.isnan(tcp_bytes.sent_bytes({"ps 0": "localhost:80"})["ps 0"])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts")
def test_a_job_is_not_judged_by_bytes_that_nobody_counts(monkeypatch):
    running = SimpleNamespace(pids={"worker 0": os.getpid()})
    with traffic.counted_bytes(running) as sent:
        assert len(sent()) == 1
    monkeypatch.setattr(tcp_bytes.socket, "AF_NETLINK", 255)  # a family that no kernel has
    with traffic.counted_bytes(running) as sent:
        assert sent() == []

"""How tasks leave together where no supervisor holds them: under Slurm and on Kubernetes. Standard library only.

A task that leaves while another is in a collective breaks it, and servers never
leave by themselves. So every task connects to the first one, tells it when its
program has returned, and stays until the first one says that all have.
"""

import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence

GO, RETURNED = b"go\n", b"returned\n"
KNOCK_SECONDS = 0.2  # between two tries to reach a first task that has not started yet


class Gathering:
    """One task's part: the first task hosts, the others join.

    name       this task
    addresses  every task's name to its "host:port"; the gathering has the port after the tasks'
    programs   the tasks whose return is waited for; the others leave with them
    """

    def __init__(self, name: str, addresses: Mapping[str, str], programs: Sequence[str]):
        first, *self._others = addresses
        host, port = addresses[first].rsplit(":", 1)
        self._place = host, int(port) + len(addresses)
        self._name, self._programs = name, programs
        self._all_returned = threading.Event()
        if name == first:
            self._server = socket.create_server(("", self._place[1]), backlog=len(self._others))
        else:
            self._server = None
            self._own_return = threading.Event()
            threading.Thread(target=self._join, daemon=True).start()

    def leave(self) -> None:
        """Tell that this task's program has returned, and wait for the others."""
        if self._server:
            self._host()
        else:
            self._own_return.set()
            self._all_returned.wait()

    def _host(self) -> None:
        guests = [self._server.accept()[0] for _ in self._others]
        for guest in guests:
            with guest.makefile("rb") as said:
                name = said.readline().decode().strip()
                if name in self._programs and said.readline() != RETURNED:
                    os._exit(1)  # it was lost after it connected
        for guest in guests:
            guest.sendall(GO)

    def _join(self) -> None:
        while True:
            try:
                host = socket.create_connection(self._place)
                break
            except OSError:
                time.sleep(KNOCK_SECONDS)  # nothing tells when another machine's process listens
        host.sendall(self._name.encode() + b"\n")
        if self._name in self._programs:
            self._own_return.wait()
            host.sendall(RETURNED)
        if host.recv(len(GO)) != GO:
            os._exit(1)  # the first task was lost
        if self._name not in self._programs:
            os._exit(0)
        self._all_returned.set()

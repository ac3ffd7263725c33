"""How tasks end together without a supervisor, under Slurm and on Kubernetes. Standard library only.

A task that ends while another is in a collective breaks it, and servers never
end by themselves. So every task connects to the first one before its program
starts, reports when the program has returned, and stays until the first one says
that all have. A connection that ends earlier is a lost task: the others end too.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

from course_lib.cluster.job import Job
from course_lib.errors import CourseError

GO, RETURNED = "go", "returned"
LONGEST_LINE = 100  # bytes; a port scanner may send more
RETRY_SECONDS = 0.2  # between two tries to reach a first task that has not started yet
TRY_SECONDS = 10  # a name may still lead to a pod that is gone; the next try looks it up again
IDLE_SECONDS = 60  # until the kernel checks the other end; cloud firewalls drop connections idle for 10 minutes


class Rendezvous:
    """One task's part: the first task hosts; the others connect, and wait here until it listens.

    name       this task
    addresses  every task's name to its "host:port"; the host listens on the port after all of these
    Raises     CourseError when that port is taken
    """

    def __init__(self, name: str, addresses: Mapping[str, str], job: Job):
        self._name, self._job = name, job
        first, *self._others = job.tasks
        host, port = addresses[first].rsplit(":", 1)
        place = host, int(port) + len(addresses)
        self._changed = threading.Condition()
        self._guests: dict[str, socket.socket] = {}
        self._returned: set[str] = set()
        self._over = False
        self._released = threading.Event()  # of a guest
        if name == first:
            self.leave, act, self._socket = self._wait_for_others, self._welcome, listen(place[1])
        else:
            self.leave, act, self._socket = self._wait_for_host, self._read_host, _join(place, name)
        threading.Thread(target=act, daemon=True).start()

    def _wait_for_others(self) -> None:
        """Wait until every program has returned, and let all tasks leave."""
        programs = set(self._job.programs) - {self._name}
        with self._changed:
            self._changed.wait_for(lambda: self._returned >= programs and len(self._guests) == len(self._others))
            self._over = True
        for guest in self._guests.values():
            with suppress(OSError):  # it was lost after its program had returned
                _say(guest, GO)

    def _wait_for_host(self) -> None:
        """Report that this task's program has returned, and wait for the others."""
        with suppress(OSError):  # `_read_host` sees the loss
            _say(self._socket, RETURNED)
        self._released.wait()

    def _welcome(self) -> None:
        while True:
            guest, _ = self._socket.accept()
            threading.Thread(target=self._follow, args=(guest,), daemon=True).start()

    def _follow(self, guest: socket.socket) -> None:
        """Read from a guest until its program has returned, or it is lost."""
        _keep_alive(guest)
        said = _lines(guest)
        name = next(said, "")
        if name not in self._others:  # a port scanner
            guest.close()
            return
        with self._changed:
            self._guests[name] = guest  # in place of a lost one that was started again
            self._changed.notify_all()
        returned = next(said, "") == RETURNED
        with self._changed:
            if returned:
                self._returned.add(name)
                self._changed.notify_all()
            elif not self._over and not self._job.rejoins(name):
                _end(f"{name} was lost, so {self._name} ends as well")

    def _read_host(self) -> None:
        """Wait until the host lets everyone leave, or is lost."""
        if next(_lines(self._socket), "") != GO:
            _end(f"{self._job.tasks[0]} was lost, so {self._name} ends as well")
        if self._name not in self._job.programs:
            os._exit(0)  # a server has nothing to return
        self._released.set()


def listen(port: int) -> socket.socket:
    """A server's socket on every address of this machine.

    Raises  CourseError when the port is taken
    """
    try:
        return socket.create_server(("", port))
    except OSError as error:
        raise CourseError(
            f"port {port} of {socket.gethostname()} cannot be used ({os.strerror(error.errno)}): "
            f"set COURSE_FIRST_PORT to the first of a row of free ports, one per task and one more."
        ) from None


def _join(place: tuple[str, int], name: str) -> socket.socket:
    """The connection to the first task, once it listens."""
    while True:
        try:
            host = socket.create_connection(place, TRY_SECONDS)
            break
        except OSError:
            time.sleep(RETRY_SECONDS)  # nothing announces that another machine's process listens
    host.settimeout(None)
    _keep_alive(host)
    with suppress(OSError):  # the host sees the loss
        _say(host, name)
    return host


def _say(connection: socket.socket, word: str) -> None:
    connection.sendall(word.encode() + b"\n")


def _lines(connection: socket.socket) -> Iterator[str]:
    """What the other end sends, line by line, until it closes."""
    with suppress(OSError), connection.makefile("rb") as said:
        while line := said.readline(LONGEST_LINE):
            yield line.decode(errors="replace").strip()


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # Linux
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_SECONDS)


def _end(why: str) -> None:
    print(why, file=sys.stderr, flush=True)
    os._exit(1)

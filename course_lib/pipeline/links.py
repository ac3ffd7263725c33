"""Point-to-point messages between neighbouring stages, over TCP. Needs NumPy; taught in notebooks/06.

A thread per direction sends and receives, so that a stage computes while its
messages travel, and no order of sends can block it. A message is a micro-batch's
number, a shape, and float32 numbers; nothing in it is ever run.
"""

import os
import queue
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress

import numpy as np

from course_lib.errors import CourseError

NUMBER = np.dtype("<i8")  # of the head: its length in one byte, then the micro-batch and the array's shape
KNOCK_SECONDS = 0.05  # between two tries to reach a stage that does not listen yet


class Neighbour:
    """The connection to one neighbouring stage; messages arrive whole and are taken by micro-batch."""

    def __init__(self, stage: int, connection: socket.socket):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stage = stage
        self.sent_bytes = 0
        self._socket = connection
        self._outgoing: queue.SimpleQueue = queue.SimpleQueue()
        self._incoming: queue.SimpleQueue = queue.SimpleQueue()
        self._arrived: dict[int, np.ndarray] = {}
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._send_all, self._receive_all)]
        for thread in self._threads:
            thread.start()

    def send(self, micro_batch: int, array: np.ndarray) -> None:
        """Hand an array over to be sent; returns at once. The array must not change afterwards."""
        self.sent_bytes += array.nbytes
        self._outgoing.put((micro_batch, array))

    def receive(self, micro_batch: int) -> np.ndarray:
        """Wait for the array of a micro-batch.

        Raises  CourseError when the neighbour is gone
        """
        while micro_batch not in self._arrived:
            message = self._incoming.get()
            if message is None:
                raise CourseError(
                    f"stage {self.stage} is gone, and micro-batch {micro_batch} was still to come from it: "
                    f"see how it ended."
                )
            self._arrived[message[0]] = message[1]
        return self._arrived.pop(micro_batch)

    def close(self) -> None:
        """Send what is left, and wait until the neighbour has closed as well."""
        self._outgoing.put(None)
        for thread in self._threads:
            thread.join()
        self._socket.close()

    def abandon(self) -> None:
        """Let the neighbour see at once that nothing more will come."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send_all(self) -> None:
        with suppress(OSError):  # a lost neighbour shows in _receive_all
            while message := self._outgoing.get():
                micro_batch, array = message
                head = np.array([micro_batch, *array.shape], NUMBER)
                self._socket.sendall(bytes([head.size]) + head.tobytes())
                self._socket.sendall(memoryview(np.ascontiguousarray(array, np.float32)).cast("B"))
            self._socket.shutdown(socket.SHUT_WR)

    def _receive_all(self) -> None:
        try:
            with suppress(OSError, ValueError), self._socket.makefile("rb") as stream:
                while message := _read_message(stream):
                    self._incoming.put(message)
        finally:
            self._incoming.put(None)


class Links:
    """One stage's connections: `before` and `after` are its neighbours, or None at the ends.

    stage      this stage's number
    addresses  every stage's "host:port", in order; this stage's is free for it to listen on.
               By default a single stage, which has no neighbours
    Raises     CourseError when its address is taken

    Waits until both neighbours are there; use it in a `with` block.
    """

    def __init__(self, stage: int = 0, addresses: Sequence[str] = ("localhost:0",)):
        self.stage, self.stages = stage, len(addresses)
        self.before = self.after = None
        with ExitStack() as opened:
            if stage + 1 < len(addresses):
                listening = opened.enter_context(_listen(stage, addresses[stage]))
            if stage > 0:
                self.before = Neighbour(stage - 1, _reach(_place(addresses[stage - 1])))
            if stage + 1 < len(addresses):
                self.after = Neighbour(stage + 1, listening.accept()[0])

    @property
    def neighbours(self) -> list[Neighbour]:
        return [neighbour for neighbour in (self.before, self.after) if neighbour]

    @property
    def sent_bytes(self) -> int:
        """Bytes of activations and gradients that this stage has sent, headers left out."""
        return sum(neighbour.sent_bytes for neighbour in self.neighbours)

    def __enter__(self) -> "Links":
        return self

    def __exit__(self, error, *_) -> None:
        for neighbour in self.neighbours:
            neighbour.abandon() if error else neighbour.close()


def connect(task) -> Links:
    """The links of a job's worker: worker s is stage s of as many stages as the job has workers.

    task  a `cluster.Task`; its program must not start a TensorFlow server at the task's address
    """
    return Links(task.index, [task.addresses[f"worker {stage}"] for stage in range(task.workers)])


def _read_message(stream) -> tuple[int, np.ndarray] | None:
    """A micro-batch's number and its array; None when the neighbour has closed, or is lost during a message."""
    if not (length := stream.read(1)):
        return None
    micro_batch, *shape = np.frombuffer(stream.read(length[0] * NUMBER.itemsize), NUMBER).tolist()
    array = np.empty(shape, np.float32)
    whole = stream.readinto(memoryview(array).cast("B")) == array.nbytes
    return (micro_batch, array) if whole else None


def _listen(stage: int, address: str) -> socket.socket:
    try:
        return socket.create_server(_place(address))
    except OSError as error:
        raise CourseError(
            f"stage {stage} can't listen at {address} ({os.strerror(error.errno)}): start no other server there, "
            f"such as one of TensorFlow's strategies, and connect once at a time."
        ) from None


def _place(address: str) -> tuple[str, int]:
    host, port = address.rsplit(":", 1)
    return host, int(port)


def _reach(place: tuple[str, int]) -> socket.socket:
    while True:
        with suppress(OSError):
            return socket.create_connection(place)
        time.sleep(KNOCK_SECONDS)  # no event says when another process listens

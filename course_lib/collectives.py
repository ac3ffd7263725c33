"""Three all-reduces whose bytes you can count. NumPy only; taught in notebooks/02.

Each takes one buffer per worker and leaves every worker with the sum. They
differ in who sends what to whom, and so in how long the busiest worker sends.

Source: Patarasuk & Yuan (2009), "Bandwidth optimal all-reduce algorithms for
clusters of workstations", JPDC 69(2); Thakur, Rabenseifner & Gropp (2005),
"Optimization of collective communication operations in MPICH", IJHPCA 19(1).
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Message:
    """One transfer in one round: `size_bytes` from worker `source` to worker `target`."""

    round: int
    source: int
    target: int
    size_bytes: int


class Network:
    """Carries messages between workers and keeps the ledger.

    Raises ValueError when one worker would send, or receive, two messages in
    one round: a full-duplex link does one of each at a time.
    """

    def __init__(self, workers: int):
        self.workers = workers
        self.messages: list[Message] = []

    def exchange(self, transfers: Sequence[tuple[int, int, np.ndarray]]) -> list[np.ndarray]:
        """Carry (source, target, array) transfers at once, as one round; return the arrays as received."""
        sources, targets = [t[0] for t in transfers], [t[1] for t in transfers]
        for role, workers in (("send", sources), ("receive", targets)):
            if len(set(workers)) < len(workers):
                raise ValueError(f"a worker would {role} twice in one round: {workers}")
        number = self.rounds
        self.messages += [Message(number, source, target, array.nbytes) for source, target, array in transfers]
        return [array.copy() for _, _, array in transfers]

    def until(self, rounds: int) -> "Network":
        """The ledger after the first `rounds` rounds."""
        earlier = Network(self.workers)
        earlier.messages = [message for message in self.messages if message.round < rounds]
        return earlier

    @property
    def rounds(self) -> int:
        """Rounds so far; each costs one latency."""
        return self.messages[-1].round + 1 if self.messages else 0

    def sent_bytes(self, worker: int) -> int:
        """Bytes that `worker` sent."""
        return sum(m.size_bytes for m in self.messages if m.source == worker)

    def received_bytes(self, worker: int) -> int:
        """Bytes that `worker` received."""
        return sum(m.size_bytes for m in self.messages if m.target == worker)

    @property
    def round_starts_bytes(self) -> list[int]:
        """Where each round starts on the critical path, and where the last one ends: rounds + 1 numbers."""
        largest = [0] * self.rounds
        for message in self.messages:
            largest[message.round] = max(largest[message.round], message.size_bytes)
        return [0, *itertools.accumulate(largest)]

    @property
    def critical_bytes(self) -> int:
        """The largest message of each round, added up: bytes sent one after another before the last worker is done."""
        return self.round_starts_bytes[-1]

    def __str__(self) -> str:
        busiest = max(self.sent_bytes(w) for w in range(self.workers))
        total = sum(m.size_bytes for m in self.messages)
        return (
            f"{self.rounds} rounds, {total:,} B in all, busiest worker sends {busiest:,} B, "
            f"critical path {self.critical_bytes:,} B"
        )


def naive_all_reduce(buffers: Sequence[np.ndarray]) -> tuple[list[np.ndarray], Network]:
    """Send every buffer to worker 0, add there, send the sum to everyone.

    buffers  one (n,) array per worker, local; N workers
    Returns  N arrays (n,), each the global sum; the network's ledger:
             worker 0 sends (N-1) * n * itemsize bytes, 2(N-1) rounds
    """
    network = Network(len(buffers))
    total = buffers[0].copy()
    for worker in range(1, len(buffers)):
        (received,) = network.exchange([(worker, 0, buffers[worker])])
        total += received
    outputs = [total]
    for worker in range(1, len(buffers)):
        outputs += network.exchange([(0, worker, total)])
    return outputs, network


def tree_all_reduce(buffers: Sequence[np.ndarray]) -> tuple[list[np.ndarray], Network]:
    """Add pairwise up a binary tree, then send the sum down the same tree.

    buffers  one (n,) array per worker, local; any number N of workers
    Returns  N arrays (n,), each the global sum; the network's ledger:
             2*ceil(log2 N) rounds of n * itemsize bytes
    """
    workers = len(buffers)
    network = Network(workers)
    sums = [buffer.copy() for buffer in buffers]
    strides = [2**level for level in range((workers - 1).bit_length())]
    for stride in strides:  # up: the right child of each pair sends to the left one
        pairs = [(left + stride, left) for left in range(0, workers - stride, 2 * stride)]
        received = network.exchange([(right, left, sums[right]) for right, left in pairs])
        for (_, left), array in zip(pairs, received):
            sums[left] += array
    for stride in reversed(strides):  # down
        pairs = [(left, left + stride) for left in range(0, workers - stride, 2 * stride)]
        received = network.exchange([(left, right, sums[left]) for left, right in pairs])
        for (_, right), array in zip(pairs, received):
            sums[right] = array
    return sums, network


def ring_all_reduce(buffers: Sequence[np.ndarray]) -> tuple[list[np.ndarray], Network]:
    """Reduce-scatter around a ring, then all-gather around the same ring.

    buffers  one (n,) array per worker, local; N workers, N must divide n
    Returns  N arrays (n,), each the global sum; the network's ledger:
             every worker sends 2*(N-1)/N * n * itemsize bytes in 2(N-1) rounds
    Raises   ValueError if N does not divide n
    """
    workers = len(buffers)
    if buffers[0].size % workers:
        raise ValueError(f"{workers} workers can't split {buffers[0].size} elements into equal chunks; pad the buffer")
    network = Network(workers)
    chunks = [np.split(buffer.copy(), workers) for buffer in buffers]  # chunks[worker][chunk]: (n/N,)
    right = [(worker + 1) % workers for worker in range(workers)]

    for step in range(workers - 1):  # reduce-scatter: worker w ends with chunk w + 1 complete
        sends = [(worker - step) % workers for worker in range(workers)]  # the chunk that each worker sends
        received = network.exchange([(w, right[w], chunks[w][sends[w]]) for w in range(workers)])
        for worker, array in enumerate(received):
            chunks[right[worker]][sends[worker]] += array
    for step in range(workers - 1):  # all-gather: the complete chunks go round
        sends = [(worker + 1 - step) % workers for worker in range(workers)]
        received = network.exchange([(w, right[w], chunks[w][sends[w]]) for w in range(workers)])
        for worker, array in enumerate(received):
            chunks[right[worker]][sends[worker]] = array
    return [np.concatenate(worker_chunks) for worker_chunks in chunks], network

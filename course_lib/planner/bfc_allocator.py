"""Memory of a traced step under a copy of TensorFlow's allocator. Standard library only; used by measured_machine.py.

On GPUs, and on a CPU with oneDNN, TensorFlow takes memory for large tensors in regions of doubling size, never
gives one back, and hands out a free piece up to twice as large as the request. So a step holds more than its
tensors. Source: BFCAllocator in TensorFlow's xla/tsl/framework/bfc_allocator.cc.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from course_lib.planner.keras_model import Trace

ALIGNED, PAGE = 256, 4096
UPDATE_ARRAYS = 2  # of the size of a variable, that Keras' Adam works with beside the gradient
FIRST_REGION, MOST_WASTED = 2 * 2**20, 128 * 2**20  # bytes, as in the source


@dataclass
class Chunk:
    """A piece of a region; neighbours in the list are neighbours in memory when their region is the same."""

    region: int
    start: int
    size: int
    free: bool = True


class Pool:
    """Regions, cut into chunks; `resident_bytes` counts the pages that have been used."""

    def __init__(self):
        self._chunks: list[Chunk] = []
        self._pages: list[bytearray] = []  # of each region: 1 where used
        self._next_region = FIRST_REGION

    @property
    def resident_bytes(self) -> int:
        return PAGE * sum(map(sum, self._pages))

    def take(self, size: int) -> Chunk | None:
        """The best free chunk, cut when that leaves enough; None for small sizes, which the pool does not serve."""
        if size < PAGE:
            return None
        size = -(-size // ALIGNED) * ALIGNED
        large = [chunk for chunk in self._chunks if chunk.free and chunk.size >= size]
        chunk = min(large, key=lambda c: (c.size, c.region, c.start), default=None) or self._extend(size)
        if chunk.size >= 2 * size or chunk.size - size >= MOST_WASTED:
            rest = Chunk(chunk.region, chunk.start + size, chunk.size - size)
            self._chunks.insert(self._chunks.index(chunk) + 1, rest)
            chunk.size = size
        chunk.free = False
        first, last = chunk.start // PAGE, -(-(chunk.start + size) // PAGE)
        self._pages[chunk.region][first:last] = b"\1" * (last - first)
        return chunk

    def give_back(self, chunk: Chunk) -> None:
        """Free a chunk and join it with free neighbours."""
        chunk.free = True
        place = self._chunks.index(chunk)
        for left, right in ((place, place + 1), (place - 1, place)):
            if left >= 0 and right < len(self._chunks):
                one, other = self._chunks[left], self._chunks[right]
                if one.free and other.free and one.region == other.region:
                    one.size += other.size
                    del self._chunks[right]

    def _extend(self, size: int) -> Chunk:
        """A new region: the next power of two that is large enough, and twice the last one."""
        region = self._next_region
        while region < size:
            region *= 2
        chunk = Chunk(len(self._pages), 0, region)
        self._chunks.append(chunk)
        self._pages.append(bytearray(region // PAGE))
        self._next_region = region if region > self._next_region else 2 * region
        return chunk


def step_bytes(trace: Trace, gradients: Collection[object], held_bytes: Iterable[int]) -> int:
    """Bytes that a forward and backward pass and an update add to a process at their peak.

    gradients   their keys: they outlive the pass
    held_bytes  sizes of what is in memory before: weights, the optimizer's state, the batch
    """
    pool = Pool()
    for size in held_bytes:
        pool.take(size)
    before = pool.resident_bytes
    uses = Counter(key for op in trace.operations for key in op.reads) + Counter(gradients)
    buffers: dict[object, list] = {}  # [chunk, bytes, reads still to come], shared by what lies in the same memory
    for op in trace.operations:
        for place, key in enumerate(op.writes):
            size = trace.tensors[key].bytes
            buffers[key] = _buffer(op, place, size, buffers) or [pool.take(size), size, 0]
            buffers[key][2] += uses[key]
        for key in op.reads:
            if key in buffers:
                buffers[key][2] -= 1
        for buffer in [buffers[key] for key in (*op.reads, *op.writes) if key in buffers]:
            if buffer[2] == 0 and buffer[0] is not None:
                pool.give_back(buffer[0])
                buffer[0] = None
    largest = max((buffers[key][1] for key in gradients if key in buffers), default=0)
    backward_bytes = pool.resident_bytes + largest  # oneDNN computes a weight's gradient in a copy outside the pool
    for _ in range(UPDATE_ARRAYS):
        pool.take(largest)
    return max(backward_bytes, pool.resident_bytes) - before


def _buffer(op, place: int, size: int, buffers: dict) -> list | None:
    """An input's memory, where the operation reuses it."""
    if op.alias:
        return buffers.get(op.reads[min(place, len(op.reads) - 1)])
    last = [buffers[key] for key in op.reads if key in buffers and buffers[key][1:] == [size, 1]] if op.in_place else []
    return last[0] if last else None

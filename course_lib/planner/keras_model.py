"""A Keras model as a chain of blocks, counted from what its passes really do. Needs Keras, on TensorFlow or JAX.

The model is traced, never run: what the backward pass reads of the forward
pass is what a step keeps, and the matrix products show their shapes. Two
batches, of 2 and of 3 examples, tell what grows with the batch. Taught in notebooks/10.
"""

import importlib
import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

from course_lib.errors import CourseError
from course_lib.planner.blocks import Block, Chain

TRACERS = {"tensorflow": "course_lib.planner.trace_tensorflow", "jax": "course_lib.planner.trace_jax"}
SIZES = ("flops", "score_flops", "parameters", "kept", "masks")


@dataclass(frozen=True)
class Operation:
    """One operation of a traced pass.

    call    number of the innermost layer call that it belongs to, in the order of the calls; None outside of all
    reads, writes  the tensors' keys
    flops   of a matrix product, else 0
    alias   its result is its first input's memory: a reshape
    in_place  it writes into an input's memory when nothing else reads that
    """

    call: int | None
    backward: bool
    reads: tuple[object, ...]
    writes: tuple[object, ...]
    flops: float = 0.0
    alias: bool = False
    in_place: bool = False


@dataclass(frozen=True)
class Tensor:
    """What a key of an Operation stands for: how many numbers, and the bytes of each."""

    numbers: int
    item_bytes: int

    @property
    def bytes(self) -> int:
        return self.numbers * self.item_bytes


@dataclass(frozen=True)
class Trace:
    """A forward and a backward pass over some rows.

    operations  in an order in which they can run, those that nothing needs left out
    tensors     by key, in the order of their making
    parameters  key of each trainable variable that is read, to its position in the model's
    inputs, output  keys of the model's inputs and of its result
    calls       name of each layer call; `parents` are the calls that made others
    """

    operations: tuple[Operation, ...]
    tensors: dict[object, Tensor]
    parameters: dict[object, int]
    inputs: tuple[object, ...]
    output: tuple[object, ...]
    calls: tuple[str, ...]
    parents: frozenset[int]

    def call_blocks(self) -> list[int]:
        """The call of each operation's block, operation by operation.

        A layer that calls no other is a block each time it is called. What its
        callers do in between, such as adding a residual, goes with the block before it.
        """
        glue = {None, *self.parents}
        current = next((op.call for op in self.operations if op.call not in glue), 0)
        found = []
        for operation in self.operations:
            current = current if operation.call in glue else operation.call
            found.append(current)
        return found


def needed(operations: list[Operation], roots: set) -> tuple[Operation, ...]:
    """Those operations on which the roots, tensors' keys, depend."""
    wanted, kept = set(roots), []
    for op in reversed(operations):
        if wanted.intersection(op.writes):
            wanted.update(op.reads)
            kept.append(op)
    return tuple(reversed(kept))


@dataclass(frozen=True)
class Network(Chain):
    """A Keras model's chain, and the model, so that a measured machine can try its blocks."""

    model: object = field(default=None, compare=False, repr=False)
    optimizer: object = field(default=None, compare=False, repr=False)


def from_keras(model, optimizer="adam") -> Network:
    """Count a Keras model's blocks: one for each call of a layer that computes.

    A layer that is called twice has its parameters counted at the first call,
    and its arithmetic at both. The loss is taken to be the cross-entropy of the
    model's outputs. Loops over time (RNNs) count one turn on TensorFlow.

    model      functional, Sequential, or subclassed and built; every size but the batch's known
    optimizer  a name or a Keras optimizer: for the numbers it keeps per parameter
    Returns    a Chain; what tensor parallelism would divide is not known of a Keras model, and left 0
    Raises     CourseError for a model that is not built, cannot be called, or trains nothing
    """
    import keras

    if not isinstance(model, keras.Model) or not model.built:
        raise CourseError(
            f"the planner takes a built keras.Model, not {_described(model)}: call it once on a batch, "
            f"or give it a keras.Input."
        )
    if not model.trainable_variables:
        raise CourseError(f"the model {model.name!r} has no trainable variables, so there is no training step to plan.")
    made = _optimizer(optimizer)
    tracer = importlib.import_module(TRACERS[keras.backend.backend()])
    two, three = (_traced(tracer, model, rows) for rows in (2, 3))
    sizes = [math.prod(variable.shape) for variable in model.trainable_variables]
    return Network(model.name, _blocks(two, three, sizes), _slots(made), model=model, optimizer=made)


def input_shapes(model, rows: int):
    """The structure of a model's inputs for so many rows, with KerasTensors at its leaves.

    Raises  CourseError when a size other than the batch's is not known
    """
    import keras

    if getattr(model, "inputs", None):
        structure = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
        given = keras.tree.map_structure(lambda t: keras.KerasTensor((rows, *t.shape[1:]), t.dtype), structure)
    else:
        shape = (model.get_build_config() or {}).get("input_shape")
        if shape is None:
            raise CourseError(
                f"the model {model.name!r} does not tell its input's shape: call it once on one batch, "
                f"or give it a keras.Input."
            )
        given = keras.KerasTensor((rows, *shape[1:]), model.input_dtype)
    for tensor in keras.tree.flatten(given):
        if None in tensor.shape:
            raise CourseError(
                f"the model {model.name!r} has an input of shape {(None, *tensor.shape[1:])}: the planner needs every size "
                f"but the batch's, so give keras.Input the length that you train with."
            )
    return given


def _described(model) -> str:
    return f"the unbuilt model {model.name!r}" if hasattr(model, "built") else repr(model)


def _optimizer(optimizer):
    import keras

    try:
        return keras.optimizers.get(optimizer)
    except (ValueError, TypeError) as error:
        raise CourseError(f"Keras knows no optimizer {optimizer!r}: {str(error).splitlines()[0]}") from None


def _traced(tracer, model, rows: int) -> Trace:
    try:
        return tracer.trace(model, input_shapes(model, rows))
    except CourseError:
        raise
    except Exception as error:  # whatever the model's own code raises
        first = str(error).strip().splitlines()[0]
        raise CourseError(
            f"the model {model.name!r} can't be called on {rows} examples: {type(error).__name__}: {first}"
        ) from error


def _slots(optimizer) -> int:
    """Numbers per parameter that the optimizer keeps, counted on a copy that trains one small matrix."""
    import keras

    copy = keras.optimizers.get(keras.optimizers.serialize(optimizer))
    matrix = keras.Variable(keras.ops.zeros((8, 8)), name="matrix")
    copy.build([matrix])
    return round(
        sum(math.prod(variable.shape) for variable in copy.variables if variable.shape) / math.prod(matrix.shape)
    )


def _blocks(two: Trace, three: Trace, sizes: list[int]) -> tuple[Block, ...]:
    """Differences of the two traces are the sizes of one example."""
    if [(op.call, op.backward) for op in two.operations] != [(op.call, op.backward) for op in three.operations]:
        raise CourseError(
            "the model computes something else for 2 examples than for 3, so its sizes per example can't be told: "
            "plan for a part of it that does not look at the batch's size."
        )
    pairs = zip(two.tensors.items(), three.tensors.values())
    grown = {key: replace(one, numbers=more.numbers - one.numbers) for (key, one), more in pairs}
    flops = [b.flops - a.flops for a, b in zip(two.operations, three.operations)]
    return _Count(two, grown, flops, sizes).blocks()


class _Count:
    """One walk over a trace; `grown` are the tensors' sizes for one example."""

    def __init__(self, trace: Trace, grown, flops, sizes):
        self.trace, self.grown, self.flops = trace, grown, flops
        self.block_of = trace.call_blocks()
        self.root, self.maker = {}, dict.fromkeys(trace.inputs)  # nobody makes an input
        for position, op in enumerate(trace.operations):
            for key in op.writes:
                self.root[key] = self._root(op.reads[0]) if op.alias and op.reads else key
                if not op.backward:
                    self.maker[key] = self.block_of[position]
        self.parameters = _first_readers(trace, self.block_of, sizes)

    def blocks(self) -> tuple[Block, ...]:
        sums = defaultdict(Counter)
        for op, block, flops in zip(self.trace.operations, self.block_of, self.flops):
            if not op.backward:
                sums[block]["score_flops" if self._both_grow(op) else "flops"] += flops
        for block, numbers in self.parameters.items():
            sums[block]["parameters"] += numbers
        for (block, kind), numbers in (self._kept() + self._inputs()).items():
            sums[block][kind] += numbers
        for key in self.trace.output:
            sums[self.maker[key]]["logits"] += self._numbers(key)
        # What only reshapes or passes on is no block.
        works = [block for block in sorted(sums) if any(sums[block][kind] for kind in SIZES)]
        return tuple(Block(self.trace.calls[block], **sums[block]) for block in works)

    def _root(self, key):
        return self.root.get(key, key)

    def _numbers(self, key) -> int:
        return self.grown[key].numbers

    def _both_grow(self, op: Operation) -> bool:
        """An attention's product: neither factor is a weight."""
        return op.flops > 0 and all(self._numbers(key) for key in op.reads)

    def _kept(self) -> Counter:
        """What backward operations read of the forward pass, at the first block that needs it."""
        readers = defaultdict(set)
        for op, block in zip(self.trace.operations, self.block_of):
            for key in op.reads if op.backward else ():
                if key in self.maker and self._numbers(key):
                    readers[self._root(key)].add(block)
        found = Counter()
        for key, blocks in readers.items():
            found[min(blocks), "masks" if self.grown[key].item_bytes == 1 else "kept"] += self._numbers(key)
        return found

    def _inputs(self) -> Counter:
        entering = {
            (block, self._root(key))
            for op, block in zip(self.trace.operations, self.block_of)
            if not op.backward
            for key in op.reads
            if key in self.maker and self.maker[key] != block
        }
        found = Counter()
        for block, key in entering:
            found[block, "inputs"] += self._numbers(key)
        return found


def _first_readers(trace: Trace, block_of: list[int], sizes: list[int]) -> Counter:
    """Trainable numbers by block: of the variables that it is the first to read; the last has those that none reads."""
    owner = {}
    for position, op in enumerate(trace.operations):
        for key in op.reads:
            if key in trace.parameters:
                owner.setdefault(trace.parameters[key], block_of[position])
    last = max(block_of, default=0)
    found = Counter()
    for variable, numbers in enumerate(sizes):
        found[owner.get(variable, last)] += numbers
    return found

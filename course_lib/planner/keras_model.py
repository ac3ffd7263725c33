"""A Keras model as a chain of blocks, counted from a trace of its passes. Needs Keras, on TensorFlow or JAX.

The model is traced, never run: what the backward pass reads of the forward pass is what a step keeps, and the
matrix products show their shapes. Two batches, of 2 and of 3 examples, show what grows with the batch. Taught in
notebooks/10.
"""

import importlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from course_lib.errors import CourseError, telling_line
from course_lib.planner.blocks import Block, Chain

TRACERS = {"tensorflow": "course_lib.planner.trace_tensorflow", "jax": "course_lib.planner.trace_jax"}
SIZES = ("flops", "score_flops", "parameters", "kept", "masks")


@dataclass(frozen=True)
class Operation:
    """One operation of a traced pass.

    call      number of the innermost layer call that it belongs to, in the order of the calls; None outside all of them
    reads, writes  the tensors' keys
    flops     of a matrix product; 0 for all else
    alias     its result is its first input's memory: a reshape
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

    operations  in an order in which they can run, without those that nothing needs
    tensors     by key, in the order of their making
    parameters  key of each trainable variable that is read, to its position in the model's
    inputs, output  keys of the model's inputs and of its results
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

        A layer that calls no other is a block each time it is called. What its callers do in between, such as
        adding a residual, goes with the block before it.
        """
        between = {None, *self.parents}
        current = next((op.call for op in self.operations if op.call not in between), 0)
        found = []
        for operation in self.operations:
            current = current if operation.call in between else operation.call
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
class KerasChain(Chain):
    """A Keras model's chain, and the model, so that a measured machine can try its blocks."""

    model: object = field(default=None, compare=False, repr=False)
    optimizer: object = field(default=None, compare=False, repr=False)


def from_keras(model, optimizer="adam") -> KerasChain:
    """Count a Keras model's blocks: one for each call of a layer that computes.

    A layer that is called twice has its parameters counted at the first call, and its arithmetic at both. Frozen
    layers have weights, and the arithmetic of trained ones. The loss is taken to be the cross-entropy of the model's
    outputs. Loops over time (RNNs) count one turn on TensorFlow.

    model      functional, Sequential, or subclassed and built; every size but the batch's known
    optimizer  a name or a Keras optimizer: for the numbers it keeps per parameter
    Returns    a chain; what tensor parallelism would divide is not known of a Keras model, and left 0
    Raises     CourseError for a model that is not built, cannot be called, or trains nothing
    """
    import keras

    if not isinstance(model, keras.Model) or not model.built:
        given = f"the unbuilt model {model.name!r}" if hasattr(model, "built") else repr(model)
        remedy = "call it once on a batch, or give it a keras.Input"
        raise CourseError(f"the planner takes a built keras.Model, not {given}: {remedy}.")
    if not model.trainable_variables:
        raise CourseError(f"the model {model.name!r} has no trainable variables, so there is no training step to plan.")
    try:
        made = keras.optimizers.get(optimizer)
    except (ValueError, TypeError) as error:
        raise CourseError(f"Keras knows no optimizer {optimizer!r}: {telling_line(str(error))}") from None
    tracer = importlib.import_module(TRACERS[keras.backend.backend()])
    two, three = (_traced(tracer, model, rows) for rows in (2, 3))
    return KerasChain(model.name, _blocks(two, three, model), _slots(made), model=model, optimizer=made)


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
            remedy = "call it once on one batch, or give it a keras.Input"
            raise CourseError(f"the model {model.name!r} does not have a known input shape: {remedy}.")
        given = keras.KerasTensor((rows, *shape[1:]), model.input_dtype)
    for tensor in keras.tree.flatten(given):
        if None in tensor.shape:
            raise CourseError(
                f"the model {model.name!r} has an input of shape {(None, *tensor.shape[1:])}: the planner needs every "
                "size but the batch's, so give keras.Input the length that you train with."
            )
    return given


def _traced(tracer, model, rows: int) -> Trace:
    given = input_shapes(model, rows)
    try:
        return tracer.trace(model, given)
    except Exception as error:  # whatever the model's own code raises
        why = f"{type(error).__name__}: {telling_line(str(error))}"
        raise CourseError(f"the model {model.name!r} can't be called on {rows} examples: {why}") from error


def _slots(optimizer) -> int:
    """Numbers per parameter that the optimizer keeps, counted on a copy that trains one small matrix."""
    import keras

    copy = keras.optimizers.get(keras.optimizers.serialize(optimizer))
    matrix = keras.Variable(keras.ops.zeros((8, 8)), name="matrix")
    copy.build([matrix])
    kept = sum(math.prod(variable.shape) for variable in copy.variables if variable.shape)
    return round(kept / math.prod(matrix.shape))


def _blocks(two: Trace, three: Trace, model) -> tuple[Block, ...]:
    """Differences of the two traces are the sizes of one example."""
    if [(op.call, op.backward) for op in two.operations] != [(op.call, op.backward) for op in three.operations]:
        raise CourseError(
            "the model computes something else for 2 examples than for 3, so its sizes per example are not known: "
            "plan for a part of it that does not depend on the batch's size."
        )
    pairs = zip(two.tensors.items(), three.tensors.values())
    grown = {key: replace(one, numbers=more.numbers - one.numbers) for (key, one), more in pairs}
    flops = [b.flops - a.flops for a, b in zip(two.operations, three.operations)]
    blocks = _Count(two, grown, flops).blocks([math.prod(variable.shape) for variable in model.trainable_variables])
    return _with_frozen(blocks, model.non_trainable_variables)


def variable_bytes(variables) -> list[int]:
    """Of each of some Keras variables, in its own dtype."""
    import ml_dtypes  # noqa: F401, which names bfloat16 to NumPy
    import numpy as np

    return [math.prod(one.shape) * np.dtype(one.dtype).itemsize for one in variables]


def _with_frozen(blocks: tuple[Block, ...], variables) -> tuple[Block, ...]:
    """What is not trained, at the block whose layer the variable's path names; else at the last block."""
    held = Counter()
    for variable, size in zip(variables, variable_bytes(variables)):
        layers = variable.path.split("/")
        held[next((place for place, block in enumerate(blocks) if block.name in layers), len(blocks) - 1)] += size
    return tuple(replace(block, frozen_bytes=held[place]) for place, block in enumerate(blocks))


class _Count:
    """One walk over a trace; `grown` and `flops` are the sizes for one example."""

    def __init__(self, trace: Trace, grown: dict[object, Tensor], flops: list[float]):
        self.trace, self.grown, self.flops = trace, grown, flops
        self.in_blocks = list(zip(trace.operations, trace.call_blocks()))
        self.root, self.maker = {}, dict.fromkeys(trace.inputs)  # no block makes an input
        for op, block in self.in_blocks:
            for key in op.writes:
                self.root[key] = self._root(op.reads[0]) if op.alias and op.reads else key
                if not op.backward:
                    self.maker[key] = block

    def blocks(self, sizes: list[int]) -> tuple[Block, ...]:
        """sizes: numbers of each trainable variable."""
        sums = defaultdict(Counter)
        for (op, block), flops in zip(self.in_blocks, self.flops):
            if not op.backward:
                # In an attention's product neither factor is a weight.
                both_grow = op.flops > 0 and all(self._numbers(key) for key in op.reads)
                sums[block]["score_flops" if both_grow else "flops"] += flops
        for block, numbers in zip(self._first_readers(len(sizes)), sizes):
            sums[block]["parameters"] += numbers
        for block, kind, key in [*self._kept(), *self._inputs()]:
            sums[block][kind] += self._numbers(key)
        for key in self.trace.output:
            sums[self.maker[key]]["logits"] += self._numbers(key)
        # A call that only reshapes or passes on is not a block.
        works = [block for block in sorted(sums) if any(sums[block][kind] for kind in SIZES)]
        return tuple(Block(self.trace.calls[block], **sums[block]) for block in works)

    def _root(self, key):
        return self.root.get(key, key)

    def _numbers(self, key) -> int:
        return self.grown[key].numbers

    def _kept(self) -> Iterator[tuple[int, str, object]]:
        """What backward operations read of the forward pass, at the first block that needs it."""
        readers = defaultdict(set)
        for op, block in self.in_blocks:
            for key in op.reads if op.backward else ():
                if key in self.maker and self._numbers(key):
                    readers[self._root(key)].add(block)
        for key, blocks in readers.items():
            yield min(blocks), "masks" if self.grown[key].item_bytes == 1 else "kept", key

    def _inputs(self) -> set[tuple[int, str, object]]:
        """What forward operations read of other blocks."""
        forward = ((op, block) for op, block in self.in_blocks if not op.backward)
        read = ((block, key) for op, block in forward for key in op.reads if key in self.maker)
        return {(block, "inputs", self._root(key)) for block, key in read if self.maker[key] != block}

    def _first_readers(self, variables: int) -> list[int]:
        """The block that reads each trainable variable first; the last block for one that none reads."""
        owner = {}
        for op, block in self.in_blocks:
            for key in op.reads:
                if key in self.trace.parameters:
                    owner.setdefault(self.trace.parameters[key], block)
        last = max((block for _, block in self.in_blocks), default=0)
        return [owner.get(variable, last) for variable in range(variables)]

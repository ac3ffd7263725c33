"""The pieces of a training step, each run alone. Needs Keras on TensorFlow; used by measured_machine.py.

A convolution has no one rate on a CPU: its rate depends on every size. So each distinct piece is tried, and the
step is composed of them, as Yu and others (2021), "Habitat", USENIX ATC, and Jia and others (2019), "Beyond data
and model parallelism", MLSys, do it with operations.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import keras
import tensorflow as tf

from course_lib.planner.trace_tensorflow import SOURCES, TracedGraph

WARM_UP, FEWEST, MOST = 3, 5, 200  # calls before those that count, and of those
PATIENCE_SECONDS = 1.5  # for the rounds beyond the fewest


@dataclass(frozen=True)
class Piece:
    """A layer with a matrix product and what follows it without one, forward and backward.

    Smaller pieces would be wrong: TensorFlow fuses a convolution with the ReLU after it, and computes a pooling's
    gradient in another way beside the pooling.
    """

    name: str
    operations: tuple[tf.Operation, ...]

    @property
    def work(self) -> tuple:
        """Equal for pieces that do the same."""
        shapes = lambda tensors: tuple(str(tensor.shape) for tensor in tensors)  # noqa: E731
        return tuple((op.type, shapes(op.inputs), shapes(op.outputs)) for op in self.operations)


def pieces(program: TracedGraph) -> list[Piece]:
    """The pass, cut before each layer that has a matrix product."""
    trace, block_of = program.trace, program.trace.call_blocks()
    heads = sorted({block for op, block in zip(trace.operations, block_of) if op.flops and not op.backward})
    found: dict[int, list] = {}
    for op, block in zip(trace.operations, block_of):
        head = max((head for head in heads if head <= block), default=min(heads, default=0))
        found.setdefault(head, []).append(program.graph.get_tensor_by_name(op.writes[0]).op)
    return [Piece(trace.calls[head], tuple(operations)) for head, operations in sorted(found.items())]


def replay(program: TracedGraph, piece: Piece, devices: Sequence[str]) -> Callable[[], object]:
    """A call that runs a piece on each device at the same time, on random numbers of the right shapes."""
    graph_def, given, results = _cut(program, piece)

    def run(values: Mapping[str, tf.Tensor]) -> list[tf.Tensor]:
        inside = {name: tf.identity(value) for name, value in values.items()}
        return tf.graph_util.import_graph_def(graph_def, input_map=inside, return_elements=results, name="")

    return on_each(devices, run, lambda: {tensor.name: _made_up(tensor) for tensor in given})


def update(optimizer, shapes: Sequence[tuple[int, ...]], devices: Sequence[str]) -> Callable[[], object]:
    """A call that runs an optimizer's update of variables of these shapes on each device."""

    def made():
        variables = [keras.Variable(keras.ops.ones(shape)) for shape in shapes]
        copy = keras.optimizers.get(keras.optimizers.serialize(optimizer))
        copy.build(variables)
        return copy, variables, [tf.random.normal(shape) for shape in shapes]

    def run(trained) -> list[tf.Tensor]:
        copy, variables, gradients = trained
        copy.apply([tf.identity(gradient) for gradient in gradients], variables)
        return [tf.identity(copy.iterations.value)]

    return on_each(devices, run, made)


def all_reduce(numbers: int, devices: Sequence[str], key: int) -> Callable[[], object]:
    """A call that sums one float32 vector per device, as MirroredStrategy does with all its gradients at once.

    key  of the group of devices; no other group of the process may have it
    """

    settings = {"group_size": len(devices), "group_key": key, "instance_key": numbers}
    settings |= {"merge_op": "Add", "final_op": "Id"}

    def run(vector_and_token) -> list[tf.Tensor]:
        vector, token = vector_and_token
        # Without a token for each device, tf.function would run these one by one, and each waits for the others.
        return [tf.raw_ops.CollectiveReduceV2(input=vector, ordering_token=[token.handle], **settings)]

    return on_each(devices, run, lambda: (tf.ones((numbers,)), tf.Variable(0.0)))


def nothing(devices: Sequence[str]) -> Callable[[], object]:
    """A call without work: what every other call here costs beside its work."""
    return on_each(devices, lambda value: [tf.identity(value)], lambda: tf.constant(0.0))


def on_each(devices: Sequence[str], run: Callable, make: Callable[[], object]) -> Callable[[], object]:
    """A call of one TensorFlow function that runs `run(value)` on all devices at the same time.

    run   returns a list of tensors
    make  makes the value; called once on each device
    """
    held = []
    for device in devices:
        with tf.device(device):
            held.append(make())

    @tf.function(autograph=False)
    def together():
        outputs = []
        for device, value in zip(devices, held):
            with tf.device(device):
                outputs += run(value)
        return outputs

    ready = together.get_concrete_function()  # many tf.functions of one name would be reported as retracing

    def call():
        outputs = ready()
        if "GPU" in devices[0]:  # a CPU's call comes back when all is done
            tf.reshape(outputs[-1], [-1])[:1].numpy()

    return call


def median_seconds(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """The median time of each call; all take turns, so that what slows the machine slows all alike."""
    for call in calls.values():
        for _ in range(WARM_UP):
            call()
    once = sum(_seconds(call) for call in calls.values())
    rounds = min(MOST, max(FEWEST, round(PATIENCE_SECONDS / once)))
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(_seconds(call))
    return {name: statistics.median(found) for name, found in times.items()}


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _cut(program: TracedGraph, piece: Piece):
    """The piece as a separate graph, the tensors that enter it, and the names of those that leave it."""
    inside: set[tf.Operation] = set()
    for op in piece.operations:
        _gather(op, inside)
    whole = program.graph.as_graph_def()
    graph_def = tf.compat.v1.GraphDef(versions=whole.versions, library=whole.library)
    ordered = [op for op in program.graph.get_operations() if op in inside]
    for op in ordered:
        node = graph_def.node.add()
        node.CopyFrom(op.node_def)
        node.attr.pop("_class", None)  # asks to be placed beside an operation that may be outside
        del node.input[:]
        node.input.extend(tensor.name for tensor in op.inputs)
    given = {tensor.name: tensor for op in ordered for tensor in op.inputs if tensor.op not in inside}
    leaving = [tensor for op in piece.operations for tensor in op.outputs]
    read_outside = [any(reader not in inside for reader in tensor.consumers()) for tensor in leaving]
    names = [t.name for t, is_read in zip(leaving, read_outside) if is_read or t.name in program.results]
    return graph_def, list(given.values()), names


def _gather(op: tf.Operation, inside: set) -> None:
    """An operation, and the constants and shapes that it reads: their values matter."""
    inside.add(op)
    for tensor in op.inputs:
        shape = tensor.dtype.is_integer and tensor.shape.rank in (0, 1) and tensor.op.type not in SOURCES
        if tensor.op not in inside and (shape or tensor.op.type == "Const"):
            _gather(tensor.op, inside)


def _made_up(tensor: tf.Tensor) -> tf.Tensor:
    if tensor.dtype.is_floating:
        return tf.random.normal(tensor.shape, dtype=tensor.dtype)
    return tf.zeros(tensor.shape, tensor.dtype)

"""A Keras model's forward and backward pass, read from TensorFlow's graph. Needs Keras on TensorFlow."""

import math
from dataclasses import dataclass

import keras
import tensorflow as tf

from course_lib.planner.keras_model import Operation, Tensor, Trace, needed
from course_lib.planner.layer_calls import Calls, mean_loss

ALIASES = {"Reshape", "Squeeze", "ExpandDims", "Identity", "StopGradient", "PreventGradient"}
# Kernels that reuse an input's memory (forward_input_or_allocate_output in their sources).
IN_PLACE = {"BiasAdd", "Relu", "ReluGrad", "Tanh", "Sigmoid", "AddV2", "Sub", "Mul", "RealDiv"}
IN_PLACE |= {"Rsqrt", "Sqrt", "Square"}
SOURCES = {"ReadVariableOp", "Placeholder", "Const"}
CONVOLUTIONS = {"Conv2D", "Conv3D"}
GRADIENTS_OF_CONVOLUTIONS = {"Conv2DBackpropInput", "Conv3DBackpropInputV2"}  # of the third input


@dataclass(frozen=True)
class TracedGraph:
    """A traced pass and the graph that it was read from.

    gradients  names of the trainable variables' gradients, of those that have one
    """

    trace: Trace
    graph: tf.Graph
    gradients: tuple[str, ...]

    @property
    def results(self) -> set[str]:
        """The tensors that the pass is computed for."""
        return {*self.trace.output, *self.gradients}


def trace(model, inputs) -> Trace:
    return traced_graph(model, inputs).trace


def traced_graph(model, inputs) -> TracedGraph:
    """The two passes of a model over `inputs`, a structure of KerasTensors; nothing runs."""
    calls, seen = Calls(tf.name_scope), {}

    def both_passes(x):
        with calls.recorded(), tf.GradientTape() as tape:
            seen["output"] = keras.tree.flatten(model(x, training=True))
            loss = mean_loss(seen["output"])
        seen["forward"] = set(tf.compat.v1.get_default_graph().get_operations())
        gradients = tape.gradient(loss, model.trainable_variables)
        seen["gradients"] = [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]

    specs = keras.tree.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), inputs)
    made = tf.function(both_passes, autograph=False).get_concrete_function(specs)
    in_graph = made.graph.get_operations()
    operations = [_operation(op, seen["forward"]) for op in in_graph if op.type not in SOURCES]
    tensors = {tensor.name: _size(tensor) for op in in_graph for tensor in op.outputs}
    own = tuple(tensor.name for tensor in made.inputs[: len(made.inputs) - len(made.captured_inputs)])
    output = tuple(tensor.name for tensor in seen["output"])
    gradients = tuple(tensor.name for tensor in seen["gradients"])
    operations = needed(operations, {*output, *gradients})
    names, parents = tuple(calls.names), frozenset(calls.parents)
    found = Trace(operations, tensors, _parameters(made, model), own, output, names, parents)
    return TracedGraph(found, made.graph, gradients)


def _operation(op: tf.Operation, forward: set) -> Operation:
    reads = tuple(tensor.name for tensor in op.inputs)
    writes = tuple(tensor.name for tensor in op.outputs)
    kinds = {"alias": op.type in ALIASES, "in_place": op.type in IN_PLACE}
    return Operation(Calls.number(op.name), op not in forward, reads, writes, _flops(op), **kinds)


def _size(tensor: tf.Tensor) -> Tensor:
    shape = tensor.shape.as_list() if tensor.shape.rank is not None else [0]
    return Tensor(math.prod(length or 0 for length in shape), max(1, tensor.dtype.size))


def _parameters(made, model) -> dict[str, int]:
    """The reads of each trainable variable."""
    places = {id(v.value.handle): number for number, v in enumerate(model.trainable_variables)}
    captured = made.captured_inputs  # the last inputs
    held = {inner.name: id(outer) for inner, outer in zip(made.inputs[-len(captured) :], captured)}
    reads = [op for op in made.graph.get_operations() if op.type == "ReadVariableOp"]
    handles = {op.outputs[0].name: held.get(op.inputs[0].name) for op in reads}
    return {name: places[handle] for name, handle in handles.items() if handle in places}


def _flops(op: tf.Operation) -> float:
    """2 for each multiplication of a matrix product; 0 for everything else."""
    kind = op.type
    if kind in ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"):
        flipped = op.get_attr("transpose_a" if kind == "MatMul" else "adj_x")
        return 2 * math.prod(op.outputs[0].shape) * op.inputs[0].shape[-2 if flipped else -1]
    if kind in CONVOLUTIONS | GRADIENTS_OF_CONVOLUTIONS:  # the filter makes the channels of `made`
        made = op.outputs[0] if kind in CONVOLUTIONS else op.inputs[2]
        return 2 * math.prod(made.shape) * math.prod(op.inputs[1].shape[:-1])
    if kind == "DepthwiseConv2dNative":
        return 2 * math.prod(op.outputs[0].shape) * math.prod(op.inputs[1].shape[:2])
    return _einsum_flops(op) if kind == "Einsum" else 0


def _einsum_flops(op: tf.Operation) -> float:
    """2 for each combination of indices; an ellipsis stands for the leading dimensions."""
    terms = op.get_attr("equation").decode().split("->")[0].split(",")
    if len(terms) < 2:
        return 0
    lengths = {}
    for term, tensor in zip(terms, op.inputs):
        named = [*term.replace("...", "")]
        dots = tensor.shape.rank - len(named)
        before, _, after = term.partition("...")
        letters = [*before, *(f".{n}" for n in range(dots)), *after]
        lengths |= dict(zip(letters, tensor.shape))
    return 2 * math.prod(lengths.values())

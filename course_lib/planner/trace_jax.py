"""A Keras model's forward and backward pass, read from JAX's program. Needs Keras on JAX."""

import math
from collections.abc import Iterator

import jax
import keras

from course_lib.planner.keras_model import Operation, Tensor, Trace, needed
from course_lib.planner.layer_calls import Calls, mean_loss

ALIASES = {"reshape", "squeeze", "expand_dims", "stop_gradient", "copy"}
INLINED = ("jaxpr", "call_jaxpr", "fun_jaxpr")  # where a primitive that only wraps others has them
LOOPS = {"scan", "while", "cond"}


def trace(model, inputs) -> Trace:
    """The two passes of a model over `inputs`, a structure of KerasTensors; nothing runs."""
    calls, outputs = Calls(jax.named_scope), []
    shape = lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype)  # noqa: E731
    others = [v.value for v in model.non_trainable_variables]

    def loss(trained, x):
        output = keras.tree.flatten(model.stateless_call(trained, others, x, training=True)[0])
        outputs.append(len(output))
        return mean_loss(output), output

    trained = [shape(v) for v in model.trainable_variables]
    with calls.recorded():
        program = jax.make_jaxpr(jax.grad(loss, has_aux=True))(trained, keras.tree.map_structure(shape, inputs)).jaxpr
    walk = _Walk()
    keys = {var: walk.key(var.aval) for var in (*program.invars, *program.constvars)}
    operations = list(walk.operations(program, keys, None, False))
    parameters = {keys[var]: number for number, var in enumerate(program.invars[: len(trained)])}
    inputs = tuple(keys[var] for var in program.invars[len(trained) :])
    results = [keys[var] for var in program.outvars if var in keys]  # the gradients, then the model's output
    output = tuple(results[-outputs[0] :])
    operations, parents = needed(operations, set(results)), frozenset(calls.parents)
    return Trace(operations, walk.tensors, parameters, inputs, output, tuple(calls.names), parents)


class _Walk:
    """Goes through a program and the programs inside it, and numbers their arrays."""

    def __init__(self):
        self.tensors: dict[int, Tensor] = {}

    def key(self, aval) -> int:
        dtype = getattr(aval, "dtype", None)
        self.tensors[len(self.tensors)] = Tensor(math.prod(getattr(aval, "shape", ())), getattr(dtype, "itemsize", 4))
        return len(self.tensors) - 1

    def operations(self, program, keys: dict, call: int | None, backward: bool) -> Iterator[Operation]:
        """keys: of the program's inputs; gets those of its results."""
        for equation in program.eqns:
            scope = str(equation.source_info.name_stack)
            number, late = Calls.number(scope), backward or "transpose(" in scope
            number = call if number is None else number
            reads = tuple(self._of(var, keys) for var in equation.invars)
            inner = _inner(equation)
            if inner is None:
                keys |= {var: self.key(var.aval) for var in equation.outvars}
                writes = tuple(keys[var] for var in equation.outvars)
                yield Operation(number, late, reads, writes, _flops(equation), equation.primitive.name in ALIASES)
            else:
                inside = dict(zip(inner.invars, reads)) | {var: self.key(var.aval) for var in inner.constvars}
                yield from self.operations(inner, inside, number, late)
                keys |= {outer: self._of(var, inside) for outer, var in zip(equation.outvars, inner.outvars)}

    def _of(self, var, keys: dict) -> int:
        return self.key(var.aval) if hasattr(var, "val") else keys[var]  # a literal is a number written in place


def _inner(equation):
    """The program of a primitive that only wraps one, such as a jitted function; None for all others."""
    if equation.primitive.name in LOOPS:
        return None
    found = next((equation.params[name] for name in INLINED if name in equation.params), None)
    found = getattr(found, "jaxpr", found)  # of a closed one
    return found if hasattr(found, "eqns") else None


def _flops(equation) -> float:
    """2 for each multiplication of a matrix product, in every turn of a loop; 0 for everything else."""
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)
    if name == "conv_general_dilated":
        kernel, made = equation.invars[1].aval.shape, params["dimension_numbers"].rhs_spec[0]
        return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(kernel) / kernel[made]
    if name == "scan":
        return params["length"] * _program_flops(params["jaxpr"].jaxpr)
    if name == "cond":
        return max(_program_flops(branch.jaxpr) for branch in params["branches"])
    return _program_flops(params["body_jaxpr"].jaxpr) if name == "while" else 0


def _program_flops(program) -> float:
    inner = [_inner(equation) for equation in program.eqns]
    return sum(_flops(e) if within is None else _program_flops(within) for e, within in zip(program.eqns, inner))

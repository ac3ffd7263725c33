"""Where each variable lies on a mesh, and the bytes that one device then holds. Needs Keras on JAX.

Rajbhandari and others (2020), "ZeRO", arXiv 1910.02054: its third stage is "fsdp" here, and the rule is
that of sharding.state_sharding.
"""

import math
from collections.abc import Mapping
from types import SimpleNamespace

import jax
import keras
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from course_lib.layout_maps import plan_layout
from course_lib.tpu.compile_request import BATCH_AXIS
from course_lib.tpu.repeated import Repeated, stacked_paths
from course_lib.tpu.train_step import Training

Axes = tuple[str | None, ...]  # the mesh axis of each dimension
Placed = list[tuple[object, Axes]]  # variables, each with its axes


def place(
    training: Training, mesh: Mapping[str, int], layout: str, shards: Mapping[str, Axes]
) -> tuple[Placed, Placed, Placed]:
    """Choose the mesh axes of every variable: the model's trainable ones, its others, and the optimizer's.

    mesh    axis name to devices
    layout  "data": each device holds all that `shards` does not split; "fsdp": parameters and optimizer state are
            also split over the data axis, along the longest dimension that it divides
    shards  patterns of variable paths, as in a keras.distribution.LayoutMap, to the
            mesh axis of each dimension (of one block, for a `Repeated` layer's)
    Raises  CourseError as layout_maps.plan_layout does
    """
    model, stacked = training.model, stacked_paths(training.model)
    axes = _mapped(model, mesh, shards) if shards else {v.path: (None,) * len(v.shape) for v in model.variables}
    if layout == "fsdp":
        for variable in model.trainable_variables:
            axes[variable.path] = _with_data(tuple(variable.shape), axes[variable.path], mesh, variable.path in stacked)
    slots = [(slot, _of_slot(slot, model.trainable_variables, axes)) for slot in training.optimizer.variables]
    trainable, others = model.trainable_variables, model.non_trainable_variables
    return [(v, axes[v.path]) for v in trainable], [(v, axes[v.path]) for v in others], slots


def pin_rows(model: keras.Model, mesh: Mesh) -> None:
    """Keep the rows of every layer's result on the devices that hold these rows of the batch.

    Where weights are split over the data axis too, XLA otherwise splits some products along the weights
    and gathers the rows; a small transformer's activations then took ten times the memory. In Keras' own
    LayoutMap, keys that end in "/output" do this.
    """
    if BATCH_AXIS not in mesh.axis_names:
        return

    def pin(result):
        if not getattr(result, "shape", ()):
            return result
        free = [PartitionSpec.UNCONSTRAINED] * (len(result.shape) - 1)
        return jax.lax.with_sharding_constraint(result, NamedSharding(mesh, PartitionSpec(BATCH_AXIS, *free)))

    def pinned(call):
        return lambda *arguments, **named: jax.tree.map(pin, call(*arguments, **named))

    blocks = [layer.block for layer in model.layers if isinstance(layer, Repeated)]
    for layer in (layer for part in (model, *blocks) for layer in part.layers):
        layer.call = pinned(layer.call)


def shard_bytes(variable, axes: Axes, mesh: Mapping[str, int]) -> int:
    """Bytes of one device's part: every split dimension divides."""
    parts = math.prod(mesh[axis] for axis in axes if axis)
    return math.prod(variable.shape) // parts * np.dtype(variable.dtype).itemsize


def _mapped(model, mesh: Mapping[str, int], shards: Mapping[str, Axes]) -> dict[str, Axes]:
    """Axes by variable path, from the installed Keras' LayoutMap, which sees each variable as one block has it."""
    names = [f"tpu:{number}" for number in range(math.prod(mesh.values()))]
    layout_map = keras.distribution.LayoutMap(keras.distribution.DeviceMesh(tuple(mesh.values()), tuple(mesh), names))
    for key, axes in shards.items():
        layout_map[key] = tuple(axes)
    stacked = stacked_paths(model)
    shapes = {v.path: tuple(v.shape[1:] if v.path in stacked else v.shape) for v in model.variables}
    single = [SimpleNamespace(path=v.path, shape=shapes[v.path], dtype=v.dtype) for v in model.variables]
    coverage = plan_layout(SimpleNamespace(variables=single, layers=model.layers), layout_map)
    full = {v.path: (*v.axes, *[None] * (len(v.shape) - len(v.axes))) for v in coverage.variables}
    return {path: (None, *axes) if path in stacked else axes for path, axes in full.items()}


def _with_data(shape: tuple[int, ...], axes: Axes, mesh: Mapping[str, int], stacked: bool) -> Axes:
    devices = mesh.get(BATCH_AXIS, 1)
    free = [n for n, axis in enumerate(axes) if axis is None and n >= stacked and shape[n] % devices == 0]
    if BATCH_AXIS in axes or devices == 1 or not free:
        return axes
    longest = max(free, key=lambda n: shape[n])
    return tuple(BATCH_AXIS if n == longest else axis for n, axis in enumerate(axes))


def _of_slot(slot, parameters, axes: Mapping[str, Axes]) -> Axes:
    """A slot of its parameter's shape lies as its parameter; others, such as the step counter, are whole everywhere."""
    name = slot.path.rpartition("/")[2]
    owners = [p for p in parameters if name.startswith(p.path.replace("/", "_") + "_") and p.shape == slot.shape]
    return axes[max(owners, key=lambda p: len(p.path)).path] if owners else (None,) * len(slot.shape)

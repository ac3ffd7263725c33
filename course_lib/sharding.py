"""A layer and its training state, split over devices.

Needs JAX; taught in notebooks/07. Sources: Shoeybi and others (2019),
"Megatron-LM", arXiv 1909.08053, for columns, rows and the two operators;
Rajbhandari and others (2020), "ZeRO", arXiv 1910.02054, for the training state.
"""

import math
from collections import Counter
from dataclasses import dataclass

import jax
from jax.sharding import NamedSharding, PartitionSpec

from course_lib.errors import CourseError


def copy_to_devices(x, axis: str):
    """Megatron's f, for the inside of a shard_map with check_vma=False.

    x        the same on every device of the mesh axis
    Returns  x; its gradient is the sum of the devices' gradients over the axis
    """
    copy = jax.custom_vjp(lambda x: x)
    copy.defvjp(lambda x: (x, None), lambda _, gradient: (jax.lax.psum(gradient, axis),))
    return copy(x)


def sum_over_devices(x, axis: str):
    """Megatron's g, for the inside of a shard_map with check_vma=False.

    x        a part of a sum, another on each device of the mesh axis
    Returns  the sum, the same on every device; its gradient passes as it is
    """
    # psum's own gradient is a psum again: of N equal gradients, so N times too much.
    add = jax.custom_vjp(lambda x: jax.lax.psum(x, axis))
    add.defvjp(lambda x: (jax.lax.psum(x, axis), None), lambda _, gradient: (gradient,))
    return add(x)


def column_parallel(x, kernel, bias, axis: str):
    """One device's part of a dense layer split by columns; one all-reduce, backward.

    x        (..., n), the same on every device of `axis`
    kernel   (n, m / N) local; bias (m / N,) local
    Returns  (..., m / N) local
    """
    return copy_to_devices(x, axis) @ kernel + bias


def row_parallel(x, kernel, bias, axis: str):
    """One device's part of a dense layer split by rows; one all-reduce, forward.

    x        (..., n / N) local
    kernel   (n / N, m) local; bias (m,) the same on every device
    Returns  (..., m), the same on every device of `axis`
    """
    return sum_over_devices(x @ kernel, axis) + bias


@dataclass(frozen=True)
class StateBytes:
    """What one device holds of a model in training, activations left out."""

    parameters: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer


def zero_bytes(
    parameters: int,
    devices: int,
    stage: int,
    *,
    parameter_bytes: int = 4,
    gradient_bytes: int = 4,
    optimizer_bytes: int = 8,
) -> StateBytes:
    """Bytes per device under ZeRO; stage 3 is also known as FSDP.

    parameters       number of trained numbers in the model
    devices          N; a part that N does not divide is padded to the next whole number
    stage            0 splits nothing, 1 the optimizer's state, 2 the gradients too, 3 the parameters too
    optimizer_bytes  per parameter: Adam's two moments in float32 by default. The
                     paper's mixed precision is 2, 2 and 12 bytes
    Raises           CourseError for another stage
    """
    if stage not in range(4):
        raise CourseError(f"ZeRO has the stages 0, 1, 2 and 3, not {stage!r}.")
    share = math.ceil(parameters / devices)
    held = [share if stage >= first else parameters for first in (3, 2, 1)]
    return StateBytes(held[0] * parameter_bytes, held[1] * gradient_bytes, held[2] * optimizer_bytes)


def state_sharding(tree, mesh: jax.sharding.Mesh, axis: str):
    """Where ZeRO puts each array of a tree: split along its longest dimension that `axis` divides, else whole.

    Returns  a tree of NamedSharding, one per leaf: what jax.jit takes as in_shardings and out_shardings
    """

    def place(leaf):
        lengths = [length if length % mesh.shape[axis] == 0 else 0 for length in leaf.shape]
        spec = [None] * len(lengths)
        if max(lengths, default=0):
            spec[lengths.index(max(lengths))] = axis
        return NamedSharding(mesh, PartitionSpec(*spec))

    return jax.tree.map(place, tree)


def shard_state(tree, mesh: jax.sharding.Mesh, axis: str):
    """The same arrays, split as `state_sharding` says: optimizer state, gradients or parameters."""
    return jax.device_put(tree, state_sharding(tree, mesh, axis))


def device_bytes(tree) -> dict[str, int]:
    """Bytes that each device holds of a tree of JAX arrays or Keras variables, counted from the shards themselves.

    Returns  {"cpu:0": bytes, ...}, the devices of this process
    """
    held = Counter()
    for leaf in jax.tree.leaves(tree):
        for shard in getattr(leaf, "value", leaf).addressable_shards:
            held[f"{shard.device.platform}:{shard.device.id}"] += shard.data.nbytes
    return dict(held)

"""What a keras.distribution.LayoutMap does to each variable, and an error where it does nothing.

Needs NumPy, and the installed Keras through the layout map; taught in notebooks/07.
"""

import difflib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from course_lib.errors import CourseError
from course_lib.table import Table


@dataclass(frozen=True)
class VariableLayout:
    """One variable: the key that matched it or None, the mesh axis of each dimension, and a device's share of it."""

    path: str
    shape: tuple[int, ...]
    key: str | None
    axes: tuple[str | None, ...]
    shard_shape: tuple[int, ...]
    itemsize: int

    @property
    def devices(self) -> int:
        """Number of devices that it takes to hold the variable once."""
        return math.prod(self.shape) // math.prod(self.shard_shape)

    @property
    def bytes_per_device(self) -> int:
        return math.prod(self.shard_shape) * self.itemsize


@dataclass(frozen=True, repr=False)
class Coverage:
    """What a layout map does to each variable of a model; prints as a table."""

    variables: tuple[VariableLayout, ...]

    @property
    def bytes_per_device(self) -> int:
        return sum(variable.bytes_per_device for variable in self.variables)

    @property
    def total_bytes(self) -> int:
        return sum(variable.bytes_per_device * variable.devices for variable in self.variables)

    def __str__(self) -> str:
        headers = ("variable", "shape", "one device holds", "split over", "bytes a device")
        rows = [(v.path, v.shape, v.shard_shape, v.devices, f"{v.bytes_per_device:,}") for v in self.variables]
        split = sum(v.devices > 1 for v in self.variables)
        held = f"{self.bytes_per_device:,} of {self.total_bytes:,} B a device"
        return f"{Table(headers, rows)!r}\n{split} of {len(rows)} variables are split; {held}"

    __repr__ = __str__


def plan_layout(model, layout_map) -> Coverage:
    """What a LayoutMap would do to a built model, worked out from paths and shapes before anything is placed.

    The installed Keras decides what a key matches: the whole path (re.fullmatch,
    as in 3.15; keras pull 22164) or any part of it (re.search, as in 3.13).

    Raises  CourseError when a key matches nothing, two keys match one variable, or a
            layout has too many dimensions or one that its mesh axis does not divide
    """
    paths = [variable.path for variable in model.variables]
    outputs = [f"{layer.path}/output" for layer in model.layers]  # a key may place a layer's result
    for key in layout_map:
        if not any(_matches(layout_map, key, path) for path in paths + outputs):
            raise CourseError(_matches_nothing(key, paths))
    return Coverage(tuple(_planned(variable, layout_map) for variable in model.variables))


def layout_coverage(model, layout_map, must_split: str | Iterable[str] = ".*kernel") -> Coverage:
    """Which variable got which shard, read from the arrays; fails where the layout map did not do its work.

    model       built under keras.distribution.ModelParallel(layout_map=layout_map)
    must_split  patterns of paths, matched whole: these variables need a key that names a mesh axis
    Raises      CourseError as `plan_layout` does, and when a variable that must
                be split has no such key, or is not laid out as its key says
    """
    coverage = plan_layout(model, layout_map)
    patterns = [must_split] if isinstance(must_split, str) else list(must_split)
    for variable, layout in zip(model.variables, coverage.variables):
        if not any(layout.axes) and any(re.fullmatch(pattern, layout.path) for pattern in patterns):
            raise CourseError(
                f"{layout.path} {layout.shape} should be split and no key splits it, so every device holds all "
                f"{layout.bytes_per_device:,} B: add a key such as '.*{'/'.join(layout.path.split('/')[-2:])}'."
            )
        sharding = getattr(variable.value, "sharding", None)  # other backends hold variables whole
        held = sharding.shard_shape(layout.shape) if sharding else layout.shape
        if held != layout.shard_shape:
            raise CourseError(
                f"{layout.path} {layout.shape} should have shards of {layout.shard_shape} and has {held}: build the "
                f"model on the JAX backend, after keras.distribution.set_distribution(ModelParallel(...)) with it."
            )
    return coverage


def _matches(layout_map, key: str, path: str) -> bool:
    alone = type(layout_map)(layout_map.device_mesh)  # a map of this key alone: the installed Keras decides
    alone[key] = tuple(layout_map[key].axes)
    return alone[path] is not None


def _matches_nothing(key: str, paths: list[str]) -> str:
    inside = next((path for path in paths if re.search(key, path)), None)
    if inside:
        longer = next(pattern for pattern in (f".*{key}", f"{key}.*", f".*{key}.*") if re.fullmatch(pattern, inside))
        remedy = f"it is a part of {inside}, and this Keras compares whole paths: write {longer!r}."
    else:
        near = difflib.get_close_matches(key, paths, n=1, cutoff=0)
        remedy = f"the most similar path is {near[0]}." if near else "the model is not built yet."
    return f"The layout key {key!r} matches none of {len(paths)} variables and splits nothing: {remedy}"


def _planned(variable, layout_map) -> VariableLayout:
    path, shape = variable.path, tuple(variable.shape)
    # As Keras looks: the path itself first, then patterns. (`in` says yes of every path: a LayoutMap misses nothing.)
    keys = [path] if path in list(layout_map) else [key for key in layout_map if _matches(layout_map, key, path)]
    if len(keys) > 1:
        named = " and ".join(map(repr, keys))
        raise CourseError(f"{path} is matched by {len(keys)} layout keys, {named}: make them exclude each other.")
    axes = tuple(layout_map[keys[0]].axes) if keys else (None,) * len(shape)
    if len(axes) > len(shape):
        raise CourseError(
            f"{path} has {len(shape)} dimension(s) and the layout key {keys[0]!r} gives {len(axes)} axes {axes}."
        )
    mesh = layout_map.device_mesh
    sizes = [mesh.shape[mesh.axis_names.index(axis)] if axis else 1 for axis in axes] + [1] * (len(shape) - len(axes))
    for length, size, axis in zip(shape, sizes, axes):
        if length % size:
            raise CourseError(
                f"{path} {shape}: mesh axis {axis!r} has {size} devices and does not divide {length}, "
                f"as the key {keys[0]!r} asks; use another axis size or leave this dimension whole."
            )
    shard_shape = tuple(length // size for length, size in zip(shape, sizes))
    return VariableLayout(path, shape, keys[0] if keys else None, axes, shard_shape, np.dtype(variable.dtype).itemsize)

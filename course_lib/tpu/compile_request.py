"""What to compile, as plain data that another process can read. Standard library only."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from course_lib.errors import CourseError
from course_lib.tpu.chips import Slice, find_slice

LAYOUTS = ("data", "fsdp")
BATCH_AXIS = "data"
# The models of models.py, with the sizes that they have here by default.
MODELS = {
    "mlp": {"input_shape": [8, 8, 1], "classes": 10, "width": 128},
    "cnn": {"input_shape": [32, 32, 3], "classes": 10, "filters": [32, 64], "width": 64, "batch_norm": None},
    "transformer": {"vocabulary": 32000, "sequence_length": 1024, "layers": 4, "width": 2048, "heads": 16},
}


@dataclass(frozen=True)
class Request:
    """The arguments of compile_client.compile_step, which explains them, without Python objects.

    model  {"name": one of MODELS}, {"program": fields of a worker_program.WorkerProgram}
           or {"json": keras.Model.to_json()}, and "arguments" of the first two
    optimizer, loss  names, or as Keras serializes them
    """

    model: dict
    topology: str
    batch: int
    mesh: dict[str, int] = field(default_factory=dict)
    layout: str = "data"
    shards: dict[str, list] = field(default_factory=dict)
    precision: str = "float32"
    optimizer: object = "adam"
    loss: object = "sparse_categorical_crossentropy"
    remat: bool = False
    accumulation: int = 1

    @property
    def slice(self) -> Slice:
        return find_slice(self.topology)

    @property
    def model_name(self) -> str:
        return self.model.get("name") or self.model.get("program", {}).get("function") or "model"

    @property
    def words(self) -> str:
        """The training in words: all but the slice."""
        optimizer = self.optimizer if isinstance(self.optimizer, str) else self.optimizer["class_name"]
        parts = [self.model_name, *(f"{k}={_plain(v)}" for k, v in self.model.get("arguments", {}).items())]
        options = [optimizer, self.precision, f"batch {self.batch:,}"]
        if self.remat:
            options.append("remat")
        if self.accumulation > 1:
            options.append(f"accumulation over {self.accumulation}")
        return f"{' '.join(parts)}; {', '.join(options)}"

    @property
    def mesh_words(self) -> str:
        return " x ".join(f"{axis}={size}" for axis, size in self.mesh.items())

    @property
    def layout_words(self) -> str:
        shards = "; ".join(f"{key} over {','.join(axis or '' for axis in axes)}" for key, axes in self.shards.items())
        return f"mesh {self.mesh_words}, layout {self.layout}" + (f", {shards}" if shards else "")


def checked(request: Request) -> Request:
    """The request with its mesh filled in, once its numbers agree with each other.

    Raises  CourseError for an unknown topology or layout, a mesh that does not match
            the devices, or a batch that does not divide
    """
    part = request.slice
    request = replace(request, mesh=dict(request.mesh) or {BATCH_AXIS: part.devices})
    if request.layout not in LAYOUTS:
        raise CourseError(f"layout must be {' or '.join(map(repr, LAYOUTS))}, not {request.layout!r}.")
    if "float16" in request.precision.replace("bfloat16", ""):
        raise CourseError(
            f"TPUs compute in bfloat16, not float16: take 'mixed_bfloat16' instead of {request.precision!r}."
        )
    devices = math.prod(request.mesh.values())
    if min(request.mesh.values()) < 1 or devices != part.devices:
        raise CourseError(
            f"the mesh {request.mesh_words} has {devices} devices and {part} has {part.devices}: "
            f"their product must be {part.devices}."
        )
    data, steps = request.mesh.get(BATCH_AXIS, 1), request.accumulation
    if min(request.batch, steps) < 1 or request.batch % (data * steps):
        raise CourseError(
            f"a global batch of {request.batch:,} rows does not divide into {data} devices on the data axis "
            f"x {steps} micro-batches; take a multiple of {data * steps}."
        )
    unknown = {axis for axes in request.shards.values() for axis in axes if axis} - request.mesh.keys()
    if unknown:
        known = ", ".join(request.mesh)
        raise CourseError(f"the shards name the mesh axis {sorted(unknown)[0]!r}, and the mesh has {known}.")
    return request


def named_model(name: str, arguments: Mapping[str, object]) -> dict:
    """A model of models.py by name, with its sizes.

    Raises  CourseError for another name, or a size that it does not have
    """
    if name not in MODELS:
        raise CourseError(
            f'the model must be {", ".join(MODELS)}, or a function as "module:function" or "file.py:function", '
            f"not {name!r}."
        )
    unknown = arguments.keys() - MODELS[name].keys()
    if unknown:
        raise CourseError(f"{name} has no {sorted(unknown)[0]!r}; it has {', '.join(MODELS[name])}.")
    return {"name": name, "arguments": {**MODELS[name], **arguments}}


def _plain(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)

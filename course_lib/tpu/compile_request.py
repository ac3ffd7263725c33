"""What to compile, as plain data that another process can read. Standard library only."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from course_lib.errors import CourseError
from course_lib.tpu.chips import Slice, find_slice

LAYOUTS = ("data", "fsdp")
BATCH_AXIS = "data"
# The models of models.py, with the sizes that they have here unless told otherwise.
MODELS = {
    "mlp": {"input_shape": [8, 8, 1], "classes": 10, "width": 128},
    "cnn": {"input_shape": [32, 32, 3], "classes": 10, "filters": [32, 64], "width": 64, "batch_norm": None},
    "transformer": {"vocabulary": 32000, "sequence_length": 1024, "layers": 4, "width": 2048, "heads": 16},
}


@dataclass(frozen=True)
class Request:
    """One train step for one slice.

    model         {"name": one of MODELS}, {"program": fields of cluster.worker_program.WorkerProgram}
                  or {"json": keras.Model.to_json()}, and "arguments" of the first two
    batch         rows of the global batch
    mesh          axis name to devices; the batch is split over the axis "data"
    layout        "data" or "fsdp", see placing.place
    shards        patterns of variable paths to the mesh axis of each dimension
    precision     Keras' dtype policy
    optimizer, loss  names, or as Keras serializes them
    remat         compute a block's inner results anew in the backward pass
    accumulation  micro-batches that share one update
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
        options += ["remat"] * self.remat + [f"accumulation over {self.accumulation}"] * (self.accumulation > 1)
        return f"{' '.join(parts)}; {', '.join(options)}"

    @property
    def layout_words(self) -> str:
        mesh = " x ".join(f"{axis}={size}" for axis, size in self.mesh.items())
        shards = "; ".join(f"{key} over {','.join(axis or '' for axis in axes)}" for key, axes in self.shards.items())
        return f"mesh {mesh}, layout {self.layout}" + (f", {shards}" if shards else "")

    def as_dict(self) -> dict:
        return asdict(self)


def checked(request: Request) -> Request:
    """The request with its mesh filled in, once its numbers agree with each other.

    Raises  CourseError for an unknown topology or layout, a mesh that does not match
            the devices, or a batch that does not divide
    """
    part = request.slice
    request = replace(request, mesh=dict(request.mesh) or {BATCH_AXIS: part.devices})
    if request.layout not in LAYOUTS:
        raise CourseError(f"a layout is {' or '.join(map(repr, LAYOUTS))}, not {request.layout!r}.")
    if "float16" in request.precision.replace("bfloat16", ""):
        raise CourseError(
            f"TPUs compute in bfloat16, not float16: take 'mixed_bfloat16' instead of {request.precision!r}."
        )
    if any(size < 1 for size in request.mesh.values()) or math.prod(request.mesh.values()) != part.devices:
        sizes = " x ".join(f"{axis}={size}" for axis, size in request.mesh.items())
        raise CourseError(
            f"the mesh {sizes} has {math.prod(request.mesh.values())} devices and {part} has {part.devices}: their product must be {part.devices}."
        )
    parts = {"the data axis": request.mesh.get(BATCH_AXIS, 1), "accumulation": request.accumulation}
    if min(request.batch, request.accumulation) < 1 or request.batch % math.prod(parts.values()):
        raise CourseError(
            f"a global batch of {request.batch:,} rows does not divide into {parts['the data axis']} devices on the data axis "
            f"x {parts['accumulation']} micro-batches; take a multiple of {math.prod(parts.values())}."
        )
    unknown = {axis for axes in request.shards.values() for axis in axes if axis} - request.mesh.keys()
    if unknown:
        raise CourseError(
            f"the shards name the mesh axis {sorted(unknown)[0]!r}, and the mesh has {', '.join(request.mesh)}."
        )
    return request


def named_model(name: str, arguments: Mapping[str, object]) -> dict:
    """A model of models.py by name, with its sizes.

    Raises  CourseError for another name, or a size that it does not have
    """
    if name not in MODELS:
        raise CourseError(
            f'a model is {", ".join(MODELS)}, or a function as "module:function" or "file.py:function", not {name!r}.'
        )
    unknown = arguments.keys() - MODELS[name].keys()
    if unknown:
        raise CourseError(f"{name} has no {sorted(unknown)[0]!r}; it has {', '.join(MODELS[name])}.")
    return {"name": name, "arguments": {**MODELS[name], **arguments}}


def _plain(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)

"""The process that compiles: a request in, progress and one report out, each a line of JSON. Needs Keras on JAX, libtpu.

It is a process of its own because the TPU compiler must be set up before JAX
starts, and the notebook's JAX or TensorFlow has long started.
"""

import importlib.metadata
import json
import re
import sys
import time
import traceback
from collections.abc import Callable

from course_lib.cluster.worker_program import WorkerProgram
from course_lib.errors import CourseError
from course_lib.tpu import hlo, hlo_collectives, hlo_cost
from course_lib.tpu.compile_report import Memory, Report, Shortage
from course_lib.tpu.compile_request import BATCH_AXIS, Request
from course_lib.tpu.train_step import Training, batch_shapes, build, train_step
from course_lib.tpu.variable_placement import Placement, pin_rows, place, shard_bytes

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
AMOUNT = r"([\d.]+)([KMGT]?)"
REFUSALS = (  # of libtpu, most telling first: what needs memory, needed, available
    ("the whole program", rf"Used {AMOUNT} of {AMOUNT} hbm"),
    ("temporaries", rf"total memory required for HLO temporaries \({AMOUNT}\) exceeds available HBM \({AMOUNT}\)"),
    ("the whole program", rf"Attempting to (?:allocate|reserve) {AMOUNT}B?.*?There are {AMOUNT}"),
)


def serve(fields: dict, answer: Callable[[dict], None]) -> None:
    """Compile what `fields` of a Request say, and answer with {"report": ...}, {"error": a line} or {"traceback": text}."""
    try:
        request = Request(**fields)
        answer({"report": compile_here(request, lambda words: answer({"progress": words})).as_dict()})
    except CourseError as error:
        answer({"error": str(error)})
    except Exception:  # of the model's own code too
        answer({"traceback": traceback.format_exc()})


def compile_here(request: Request, show: Callable[[str], None]) -> Report:
    """Compile in this process, where nothing has started JAX yet."""
    import jax

    _spare_old_libtpu()
    show(f"shaping {request.model_name}")
    # A `Repeated` block keeps its input alone; elsewhere Keras recomputes layer by layer.
    repeats = request.model.get("name") == "transformer"
    training = build(
        _model_maker(request), request.optimizer, request.loss, request.precision, remat=request.remat and not repeats
    )
    placement = place(training, request.mesh, request.layout, request.shards)
    inputs, labels = batch_shapes(training, request.batch)
    memory = _counted(request, training, placement, jax.tree.leaves((inputs, labels)))
    known = {
        "request": request,
        "parameter_count": training.model.count_params(),
        "state_bytes": memory["parameters"] + memory["optimizer"],
        "compiler": f"libtpu {importlib.metadata.version('libtpu')}",
    }
    show(f"lowering for {request.topology}")
    began = time.perf_counter()
    lowered = _lower(request, training, placement, inputs, labels)
    show(f"compiling for {request.slice.chips:,} chips")
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        return Report(memory=None, shortage=_shortage(str(error)), compile_seconds=time.perf_counter() - began, **known)
    seconds = time.perf_counter() - began
    show("reading the program")
    program, analysis = hlo.parse(compiled.as_text()), compiled.cost_analysis()
    return Report(
        memory=_measured(memory, compiled.memory_analysis()),
        shortage=None,
        flops=analysis["flops"] + hlo_cost.repeated_flops(program),
        accessed_bytes=analysis["bytes accessed"],
        hbm_bytes=hlo_cost.hbm_bytes(program),
        collectives=hlo_collectives.find_collectives(program, request.mesh),
        unknown_loops=program.unknown_loops(),
        compile_seconds=seconds,
        **known,
    )


def _spare_old_libtpu() -> None:
    """libtpu 0.0.21, which Colab's TPU runtime has, crashes when JAX 0.7.2 asks a topology's device for its default layouts.

    Only a step that runs needs the answer. No upstream issue was found; libtpu 0.0.23 answers.
    """
    if tuple(map(int, importlib.metadata.version("libtpu").split(".")[:3])) < (0, 0, 23):
        from jax._src.interpreters import pxla

        pxla.is_default_layout = lambda *arguments: True


def _model_maker(request: Request) -> Callable:
    import keras

    from course_lib import models
    from course_lib.tpu.repeated import Repeated

    given, arguments = request.model, dict(request.model.get("arguments", {}))
    if "json" in given:
        return lambda: keras.models.model_from_json(given["json"])
    if "program" in given:
        function = WorkerProgram(**given["program"]).load()
        return lambda: function(**arguments)
    if given["name"] == "transformer":
        arguments["repeat"] = lambda make, times, name: Repeated(make, times, remat=request.remat, name=name)
    return lambda: getattr(models, given["name"])(**arguments)


def _lower(request: Request, training: Training, placement: Placement, inputs, labels):
    import jax
    from jax.experimental import mesh_utils, topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    part = request.slice
    topology = topologies.get_topology_desc(platform="tpu", topology_name=request.topology, **part.compiler_options)
    sizes = tuple(request.mesh.values())
    # Axes along the torus' dimensions where they match; else a dimension is split between axes.
    devices = mesh_utils.create_device_mesh(sizes, list(topology.devices), allow_split_physical_axes=True)
    mesh = Mesh(devices, tuple(request.mesh))

    pin_rows(training.model, mesh)

    def shapes(variables, rows_of_axes):
        return [
            jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=NamedSharding(mesh, PartitionSpec(*axes)))
            for v, axes in zip(variables, rows_of_axes)
        ]

    rows = NamedSharding(mesh, PartitionSpec(BATCH_AXIS if BATCH_AXIS in request.mesh else None))
    batch = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=rows), (inputs, labels))
    model = training.model
    state = (
        shapes(model.trainable_variables, placement.trainable),
        shapes(model.non_trainable_variables, placement.others),
        shapes(training.optimizer.variables, placement.slots),
    )
    # The state comes back as it went in, so that the new one takes the old one's memory.
    where = jax.tree.map(lambda shape: shape.sharding, state)
    step = jax.jit(train_step(training, request.accumulation), donate_argnums=(0, 1, 2), out_shardings=(None, *where))
    return step.lower(*state, *batch)


def _counted(request: Request, training: Training, placement: Placement, batch) -> dict[str, int]:
    count = lambda variables, axes: sum(shard_bytes(v, a, request.mesh) for v, a in zip(variables, axes))  # noqa: E731
    devices = request.mesh.get(BATCH_AXIS, 1)
    return {
        "parameters": count(training.model.trainable_variables, placement.trainable),
        "others": count(training.model.non_trainable_variables, placement.others),
        "optimizer": count(training.optimizer.variables, placement.slots),
        "batch": sum(s.size * s.dtype.itemsize // devices for s in batch),
    }


def _measured(counted: dict[str, int], analysis) -> Memory:
    return Memory(
        **counted,
        padding=analysis.argument_size_in_bytes - sum(counted.values()),
        outputs=analysis.output_size_in_bytes - analysis.alias_size_in_bytes,
        temporaries=analysis.temp_size_in_bytes,
        program=analysis.generated_code_size_in_bytes,
        peak=analysis.peak_memory_in_bytes,
    )


def _shortage(message: str) -> Shortage:
    """libtpu's refusal, read.

    Raises  CourseError when it refuses for another reason than memory
    """
    first = message.strip().splitlines()[0]
    if "RESOURCE_EXHAUSTED" not in message:
        raise CourseError(f"the TPU compiler refuses this step: {first}")
    for of, pattern in REFUSALS:
        if found := re.search(pattern, message):
            needed, available = (int(float(n) * UNITS[unit]) for n, unit in (found.groups()[:2], found.groups()[2:]))
            return Shortage(needed, available, of, first)
    return Shortage(None, None, "the whole program", first)


def main() -> None:
    """Started by compiling.py: this process' own stdout carries answers alone."""
    serve(json.loads(sys.stdin.readline()), lambda fields: print(json.dumps(fields), file=sys.stdout, flush=True))

"""The process that compiles: it reads requests and writes progress and one report for each, all lines of JSON.

Needs Keras on JAX, libtpu. It is a separate process because the TPU compiler must be set up before JAX
starts, and the notebook's JAX or TensorFlow has long started. It only imports, and compiles in forks.
"""

import gc
import importlib.metadata
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable

import jax
import keras
from jax.experimental import mesh_utils, topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from course_lib import models
from course_lib.cluster.worker_program import WorkerProgram
from course_lib.errors import CourseError
from course_lib.tpu import hlo, hlo_collectives, hlo_cost
from course_lib.tpu.compile_report import CompiledMemory, CompileReport, Shortage
from course_lib.tpu.compile_request import BATCH_AXIS, Request
from course_lib.tpu.repeated import Repeated
from course_lib.tpu.train_step import Training, batch_shapes, build, train_step
from course_lib.tpu.variable_placement import Placed, pin_rows, place, shard_bytes

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
AMOUNT = r"([\d.]+)([KMGT]?)"
REFUSALS = (  # libtpu's messages, the most precise first: what needs memory, needed, available
    ("the whole program", rf"Used {AMOUNT} of {AMOUNT} hbm"),
    ("temporaries", rf"total memory required for HLO temporaries \({AMOUNT}\) exceeds available HBM \({AMOUNT}\)"),
    ("the whole program", rf"Attempting to (?:allocate|reserve) {AMOUNT}B?.*?There are {AMOUNT}"),
)


def main() -> None:
    """Started by compile_client.py: requests from stdin, until it closes; for each, these answers on stdout alone.

    {"progress": words}, many times; {"report": fields}, {"error": line} or {"traceback": text}; {"ended": exit code}.
    """
    gc.freeze()  # a collection in a fork would touch, and so copy, all that the imports made
    for request in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _compile(json.loads(request))
            os._exit(0)
        _answer(ended=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _compile(fields: dict) -> None:
    try:
        report = compile_here(Request(**fields), lambda words: _answer(progress=words))
        _answer(report=report.as_dict())
    except CourseError as error:
        _answer(error=str(error))
    except Exception:  # of the model's own code too
        _answer(traceback=traceback.format_exc())


def _answer(**fields) -> None:
    print(json.dumps(fields), flush=True)


def compile_here(request: Request, show: Callable[[str], None]) -> CompileReport:
    """Compile in this process, where nothing has started JAX yet."""
    _spare_old_libtpu()
    show(f"shaping {request.model_name}")
    # A `Repeated` block keeps its input alone; elsewhere Keras recomputes layer by layer.
    remat = request.remat and request.model.get("name") != "transformer"
    training = build(_model_maker(request), request.optimizer, request.loss, request.precision, remat)
    placement = place(training, request.mesh, request.layout, request.shards)
    batch = batch_shapes(training, request.batch)
    held = _held_bytes(request, placement, batch)
    known = {
        "request": request,
        "parameter_count": training.model.count_params(),
        "state_bytes": held["parameters"] + held["optimizer"],
        "compiler": f"libtpu {importlib.metadata.version('libtpu')}",
    }
    show(f"lowering for {request.topology}")
    began = time.perf_counter()
    lowered = _lower(request, training, placement, batch)
    show(f"compiling for {request.slice.chips:,} chips")
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        shortage, seconds = _shortage(str(error)), time.perf_counter() - began
        return CompileReport(memory=None, shortage=shortage, compile_seconds=seconds, **known)
    seconds = time.perf_counter() - began
    show("reading the program")
    program = hlo.parse(compiled.as_text())
    return CompileReport(
        memory=_memory(held, compiled.memory_analysis()),
        shortage=None,
        flops=compiled.cost_analysis()["flops"] + hlo_cost.repeated_flops(program),
        hbm_bytes=hlo_cost.hbm_bytes(program),
        collectives=hlo_collectives.find_collectives(program, request.mesh),
        unknown_loops=program.unknown_loops(),
        compile_seconds=seconds,
        **known,
    )


def _spare_old_libtpu() -> None:
    """libtpu 0.0.21, which Colab's TPU runtime has, crashes when JAX 0.7.2 asks for a device's default layouts.

    Only a step that runs needs the answer. No upstream issue was found; libtpu 0.0.23 answers.
    """
    if tuple(map(int, importlib.metadata.version("libtpu").split(".")[:3])) < (0, 0, 23):
        from jax._src.interpreters import pxla

        pxla.is_default_layout = lambda *arguments: True


def _model_maker(request: Request) -> Callable[[], keras.Model]:
    given, arguments = request.model, dict(request.model.get("arguments", {}))
    if "json" in given:
        return lambda: keras.models.model_from_json(given["json"])
    if "program" in given:
        function = WorkerProgram(**given["program"]).load()
        return lambda: function(**arguments)
    if given["name"] == "transformer":
        arguments["repeat"] = lambda make, times, name: Repeated(make, times, remat=request.remat, name=name)
    return lambda: getattr(models, given["name"])(**arguments)


def _lower(request: Request, training: Training, placement: tuple[Placed, ...], batch) -> jax.stages.Lowered:
    part, model = request.slice, training.model
    topology = topologies.get_topology_desc(platform="tpu", topology_name=request.topology, **part.compiler_options)
    # Axes along the torus' dimensions where they match; otherwise a dimension is split between axes.
    sizes = tuple(request.mesh.values())
    devices = mesh_utils.create_device_mesh(sizes, list(topology.devices), allow_split_physical_axes=True)
    mesh = Mesh(devices, tuple(request.mesh))
    pin_rows(model, mesh)

    def sharded(array, *axes) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(mesh, PartitionSpec(*axes)))

    state = tuple([sharded(variable, *axes) for variable, axes in placed] for placed in placement)
    rows = BATCH_AXIS if BATCH_AXIS in request.mesh else None
    batch = jax.tree.map(lambda array: sharded(array, rows), batch)
    # The state comes back as it went in, so that the new one takes the old one's memory.
    results = (None, *jax.tree.map(lambda array: array.sharding, state))
    step = jax.jit(train_step(training, request.accumulation), donate_argnums=(0, 1, 2), out_shardings=results)
    return step.lower(*state, *batch)


def _held_bytes(request: Request, placement: tuple[Placed, ...], batch) -> dict[str, int]:
    """Bytes of one device's state and rows."""
    held = [sum(shard_bytes(variable, axes, request.mesh) for variable, axes in placed) for placed in placement]
    rows = sum(array.size * array.dtype.itemsize for array in jax.tree.leaves(batch))
    held.append(rows // request.mesh.get(BATCH_AXIS, 1))
    return dict(zip(("parameters", "others", "optimizer", "batch"), held))


def _memory(held: dict[str, int], analysis) -> CompiledMemory:
    return CompiledMemory(
        **held,
        padding=analysis.argument_size_in_bytes - sum(held.values()),
        outputs=analysis.output_size_in_bytes - analysis.alias_size_in_bytes,
        temporaries=analysis.temp_size_in_bytes,
        program=analysis.generated_code_size_in_bytes,
        peak=analysis.peak_memory_in_bytes,
    )


def _shortage(message: str) -> Shortage:
    """The numbers in libtpu's refusal.

    Raises  CourseError when it refuses for another reason than memory
    """
    first = message.strip().splitlines()[0]
    if "RESOURCE_EXHAUSTED" not in message:
        raise CourseError(f"the TPU compiler refuses this step: {first}")
    for of, pattern in REFUSALS:
        if found := re.search(pattern, message):
            number, unit, other, other_unit = found.groups()
            needed, available = (int(float(n) * UNITS[u]) for n, u in ((number, unit), (other, other_unit)))
            return Shortage(needed, available, of, first)
    return Shortage(None, None, "the whole program", first)

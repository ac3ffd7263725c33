"""What this machine does in a training step, measured. Needs Keras on TensorFlow; taught in notebooks/10."""

import math
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from course_lib.errors import CourseError
from course_lib.planner.keras_model import KerasChain, input_shapes, variable_bytes
from course_lib.planner.layout import Layout
from course_lib.planner.memory import Memory
from course_lib.planner.rented_chips import MEASURED, Chip, Cluster
from course_lib.planner.step_time import StepTime

SIDE, LONG = 1024, 2**23  # of a matrix and a vector that are timed
FEW, MANY = 2**8, 2**21  # numbers that the two timed all-reduces sum
# Measured over predicted: the aim, which the medians of tests/benchmark_plan.py meet.
TIME_AROUND, MEMORY_AROUND = (0.8, 1.2), (0.85, 1.15)
GROUPS = 7_000_000  # keys of its groups of devices: far from MirroredStrategy's, which begin at 1


@dataclass(frozen=True)
class MeasuredMachine(Cluster):
    """This machine as a cluster, on which the pieces of a Keras model can be tried.

    shared            the devices are simulated and take turns on the same cores
    devices           their names
    start_seconds     of a training step that does nothing
    exchange_seconds  of an all-reduce of nothing; `chip.within` is the rate of a large one
    framework_bytes   what TensorFlow's own buffers take at the first steps of a fresh process,
                      without and with convolutions; 0 where it was not measured
    """

    shared: bool = False
    devices: tuple[str, ...] = ()
    start_seconds: float = 0.0
    exchange_seconds: float = 0.0
    framework_bytes: tuple[float, float] = (0.0, 0.0)


def this_machine(devices: int = 1, memory: bool = True) -> MeasuredMachine:
    """Measure this machine, in a few seconds.

    devices  replicas: GPUs where there are as many, otherwise logical devices of the CPU, which
             course_lib.devices.simulate makes
    memory   measure the framework's own memory too, in a fresh process; on Linux, for devices of the CPU
    Returns  rates of one device that has the machine for itself, beside what is shared
    Raises   CourseError when TensorFlow does not have so many devices, or Keras runs on another backend
    """
    import keras

    if keras.backend.backend() != "tensorflow":
        raise CourseError(
            "this_machine() measures with TensorFlow, and Keras has another backend here: plan for a chip by its name."
        )
    names = _device_names(devices)
    import tensorflow as tf

    from course_lib.planner import replay

    matrix, vector = lambda: tf.random.normal((SIDE, SIDE)), lambda: tf.ones((LONG,))
    calls = {
        "product": replay.on_each(names[:1], lambda factor: [tf.matmul(factor, factor)], matrix),
        "copy": replay.on_each(names[:1], lambda numbers: [numbers + 1.0], vector),
        "nothing": replay.nothing(names[:1]),
        "nothing together": replay.nothing(names),
        "start": _empty_step(names),
    }
    if devices > 1:
        calls |= {f"sum {numbers}": replay.all_reduce(numbers, names, GROUPS + devices) for numbers in (FEW, MANY)}
    seconds = replay.median_seconds(calls)
    few, many = (max(seconds.get(f"sum {numbers}", 0) - seconds["nothing together"], 0) for numbers in (FEW, MANY))
    sent = 2 * (devices - 1) / devices * 4 * (MANY - FEW)  # bytes, by a ring
    link = sent / max(many - few, 1e-9) if devices > 1 else float("inf")
    product, copy = (max(seconds[name] - seconds["nothing"], 1e-9) for name in ("product", "copy"))
    rates, read, room = {"float32": 2 * SIDE**3 / product}, 2 * 4 * LONG / copy, _memory_bytes(names)
    chip = Chip("this-machine", MEASURED, room, rates, read, devices, link, link, "measured here")
    own = _framework_bytes() if memory and "CPU" in names[0] else (0.0, 0.0)
    return MeasuredMachine(chip, devices, "CPU" in names[0], names, seconds["start"], few, own)


@dataclass(frozen=True)
class StepParts:
    """The parts of a step that are timed to predict its time.

    calls  by name, each to be timed
    times  how often a step does each
    """

    calls: Mapping[object, Callable[[], object]]
    times: Mapping[object, int]
    machine: MeasuredMachine
    sent_bytes: float

    def step_time(self, seconds: Mapping[object, float]) -> StepTime:
        """The step's time, from the seconds of each call."""
        alone = {name: max(0.0, found - seconds["nothing"]) for name, found in seconds.items()}
        return StepTime(
            compute=sum(count * alone[name] for name, count in self.times.items()),
            memory=alone["update"],
            data=self.machine.exchange_seconds + self.sent_bytes / self.machine.chip.within,
            overhead=self.machine.start_seconds,
        )


def step_time(network: KerasChain, machine: MeasuredMachine, layout: Layout, global_batch: int) -> StepTime:
    """Seconds of one training step of a Keras model on this machine.

    Each distinct piece of the model runs alone, on all devices at once, with a replica's micro-batch; the step
    itself never runs.

    Raises  CourseError for a layout with more than data parallelism and accumulation
    """
    from course_lib.planner import replay

    parts = step_parts(network, machine, layout, global_batch)
    return parts.step_time(replay.median_seconds(parts.calls))


def step_parts(network: KerasChain, machine: MeasuredMachine, layout: Layout, global_batch: int) -> StepParts:
    """The calls that `step_time` times; arguments and errors are the same."""
    from course_lib.planner import replay, trace_tensorflow

    micro_batches = _checked(network, layout, global_batch)
    program = trace_tensorflow.traced_graph(network.model, input_shapes(network.model, layout.micro_batch))
    pieces = replay.pieces(program)
    times = Counter(piece.work for piece in pieces)
    calls = {piece.work: replay.replay(program, piece, machine.devices) for piece in pieces}
    shapes = [variable.shape for variable in network.model.trainable_variables]
    calls["update"] = replay.update(network.optimizer, shapes, machine.devices)
    calls["nothing"] = replay.nothing(machine.devices)
    sent_bytes = 2 * (layout.data - 1) / layout.data * 4 * network.parameters
    return StepParts(calls, {work: micro_batches * count for work, count in times.items()}, machine, sent_bytes)


def memory(network: KerasChain, machine: MeasuredMachine, layout: Layout, global_batch: int) -> Memory:
    """Memory of one of this machine's devices at a step's peak; simulated ones share the framework's part.

    The tensors are those of the traced step, and bfc_allocator.py places them as TensorFlow's allocator does.

    Raises  CourseError as `step_time` does
    """
    from course_lib.planner import trace_tensorflow
    from course_lib.planner.bfc_allocator import step_bytes

    _checked(network, layout, global_batch)
    program = trace_tensorflow.traced_graph(network.model, input_shapes(network.model, layout.micro_batch))
    weights = [4 * math.prod(variable.shape) for variable in network.model.trainable_variables]
    frozen = variable_bytes(network.model.non_trainable_variables)
    inputs = [program.trace.tensors[key].bytes for key in program.trace.inputs]
    added = step_bytes(program.trace, program.gradients, [*weights * (1 + network.slots), *frozen, *inputs])
    gradients = sum(weights)
    kept = 4 * layout.micro_batch * sum(block.kept for block in network.blocks)
    plain, convolving = machine.framework_bytes
    convolves = any(op.type.startswith("Conv") for op in program.graph.get_operations())
    return Memory(
        weights=gradients + sum(frozen),
        gradients=gradients,
        optimizer=gradients * network.slots,
        activations=kept,
        temporaries=max(0, added - gradients - kept),
        framework=(convolving if convolves else plain) / len(machine.devices),
    )


def _checked(network: KerasChain, layout: Layout, global_batch: int) -> int:
    """The micro-batches of a step that this machine can try."""
    if getattr(network, "model", None) is None:
        raise CourseError(
            "this machine tries the layers of a Keras model: plan with from_keras(model), or for a chip by its name."
        )
    if layout != Layout(data=layout.data, micro_batch=layout.micro_batch, precision=layout.precision):
        raise CourseError(f"this machine tries only data parallelism and accumulation, and the layout is {layout}.")
    policy = network.model.dtype_policy.name
    if layout.precision != policy:
        remedy = f"give the layout precision={policy!r}"
        raise CourseError(f"the layout is in {layout.precision} and the model computes in {policy}: {remedy}.")
    return layout.micro_batches(global_batch)


def _device_names(count: int) -> tuple[str, ...]:
    import tensorflow as tf

    kinds = {kind: len(tf.config.list_logical_devices(kind)) for kind in ("GPU", "CPU")}
    for kind, found in kinds.items():
        if found >= count:
            return tuple(f"{kind}:{number}" for number in range(count))
    raise CourseError(
        f"this_machine({count}) needs {count} devices and TensorFlow has {kinds['GPU']} GPUs and {kinds['CPU']} "
        f"logical CPU devices: call devices.simulate({count}) before anything else uses TensorFlow."
    )


def _memory_bytes(names: Sequence[str]) -> float:
    """Of one device: simulated ones share what is free now."""
    if "CPU" in names[0]:
        return psutil.virtual_memory().available / len(names)
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    printed = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    return float(printed.split()[0]) * 2**20  # MiB, of the first GPU


def _framework_bytes() -> tuple[float, float]:
    """Peaks of a fresh process' first steps, of models with next to no tensors: dense, then convolving."""
    from course_lib import cluster

    if not Path("/proc/self/clear_refs").exists():  # Linux's high-water mark, which measure.peak_memory_bytes reads
        return 0.0, 0.0
    job = cluster.Job(_first_steps, workers=1, resources=cluster.Resources(cpus=1))
    dense, convolution = cluster.run(job, show=None).result
    return dense, dense + convolution


def _first_steps(task) -> list[int]:
    import keras
    import tensorflow as tf

    from course_lib import measure, models, training

    def peak(model) -> int:
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        step = training.single_device_step(model, optimizer, loss)
        batch = tf.zeros((1, 8, 8, 1)), tf.zeros((1,), "int32")
        step.get_concrete_function(*batch)  # traced before it counts
        return measure.peak_memory_bytes(lambda: [step(*batch) for _ in range(2)])

    dense, convolving = models.mlp((8, 8, 1), 10, width=16), models.cnn((8, 8, 1), 10, filters=(16, 16), width=16)
    return [peak(dense), peak(convolving)]


def _empty_step(names: Sequence[str]):
    """A step over a batch, on one device or under a strategy, without a model."""
    import tensorflow as tf

    rows = tf.zeros((len(names), 1)), tf.zeros((len(names),), "int32")
    if len(names) == 1:
        step = tf.function(lambda x, y: tf.reduce_sum(x), autograph=False)
        return lambda: step(*rows).numpy()
    # Without collectives: theirs would be numbered like those of the learner's own strategy.
    strategy = tf.distribute.MirroredStrategy(names, cross_device_ops=tf.distribute.ReductionToOneDevice())
    dataset = tf.data.Dataset.from_tensor_slices(rows).batch(len(names))
    batch = next(iter(strategy.experimental_distribute_dataset(dataset)))

    @tf.function(autograph=False)
    def step(batch):
        return strategy.reduce("SUM", strategy.run(lambda x, y: tf.reduce_sum(x), args=batch), axis=None)

    return lambda: step(batch).numpy()

"""Asynchronous training of Keras 3 models on parameter servers; taught in notebooks/04.

Needs TensorFlow. These functions belong in the program of a job with parameter
servers (`cluster.Job(program, parameter_servers=1)`), which runs on the
coordinator: it schedules steps, the workers compute them, and the servers hold
the variables. Keras' `fit` does not take part: "Parameter server training is
not supported in Keras 3, generally speaking" (keras issue 18624).

Source: M. Li and others (2014), Scaling distributed machine learning with the
parameter server, OSDI.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import keras
import tensorflow as tf

from course_lib.step_rules import losses_of_layers, one_per_row, require_built, require_in_scope


@dataclass(frozen=True)
class Update:
    """One update, as the worker that made it saw it.

    loss       the batch's mean loss before the update
    staleness  updates that others applied between this one's read of the variables and its apply
    """

    loss: float
    staleness: int


@dataclass(frozen=True)
class Shard:
    """What one server holds of one variable."""

    server: str
    shape: tuple[int, ...]
    size_bytes: int


def connect(partitioner=None):
    """Wait until the job's workers and servers answer; return its strategy and its coordinator.

    partitioner  from `tf.distribute.experimental.partitioners`: which variables to cut over the servers
    """
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    make_room(resolver.cluster_spec())
    return strategy, tf.distribute.coordinator.ClusterCoordinator(strategy)


def make_room(cluster: tf.train.ClusterSpec) -> None:
    """Let TensorFlow's list of remote functions grow before several threads use it; `connect` does it.

    The coordinator has a thread per worker, and its process one list of the functions that run elsewhere, a C++ vector
    (`function_data_` in tensorflow/core/distributed_runtime/eager/cluster_function_library_runtime.h). `Run` keeps a
    pointer into it while another thread's first result lets it grow, and then reads freed memory: "Unable to parse
    request", or SIGSEGV. A vector doubles, so behind these 64 functions there is room for about as many. No issue of
    TensorFlow describes it, as far as we know.
    """
    devices = [
        f"/job:{job}/task:{task}" for job in cluster.jobs if job != "chief" for task in cluster.task_indices(job)
    ]
    for _ in range(0, 64 + 1, len(devices)):  # each function leaves one part on every device

        def on_every_device():
            for device in devices:
                with tf.device(device):
                    tf.raw_ops.NoOp()

        tf.function(on_every_device).get_concrete_function()()


def count_every_update(optimizer) -> None:
    """Let an optimizer count the updates of all workers; call it before its first step.

    Keras reads the counter, adds one, and assigns the sum (keras issue 18668).
    Two workers that read the same number count one update together, and Adam's
    bias correction uses that number. This adds one where the counter is, in one
    operation of the server.
    """
    counter = optimizer.iterations
    counter.assign_add = lambda number: counter.value.assign_add(tf.cast(number, counter.dtype))


def asynchronous_step(strategy, model, optimizer, per_example_loss) -> Callable:
    """A step for `run_steps`: read the variables, compute a gradient, apply it, wait for nobody.

    Make model and optimizer under `strategy.scope()`; this builds the optimizer.

    per_example_loss  (labels, outputs) -> (batch,)
    Returns           step(x, y) -> the batch's mean loss with what layers add to it, and the update's staleness, two
                      scalar tensors
    Raises            CourseError as training.single_device_step, and for what is made outside the scope
    """
    require_built(model)
    require_in_scope(strategy, model, optimizer)
    variables = parts(model.trainable_variables)
    with strategy.scope():
        optimizer.build(variables)
        version = tf.Variable(0, dtype=tf.int64, trainable=False)  # updates applied so far, by all workers
    count_every_update(optimizer)

    def worker_step(x, y):
        read_at = version.read_value()
        with tf.control_dependencies([read_at]), tf.GradientTape() as tape:
            outputs = model(x, training=True)
            losses = one_per_row(per_example_loss(y, outputs), outputs)
            loss = tf.reduce_mean(losses) + losses_of_layers(model)
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, variables)
        reached = [gradient for gradient in gradients if gradient is not None]  # None where no loss depends on it
        with tf.control_dependencies(reached):
            optimizer.apply_gradients(zip(gradients, variables))
            applied_at = version.assign_add(1, read_value=True)
        return loss, applied_at - 1 - read_at

    @tf.function(autograph=False)
    def step(x, y):
        return strategy.run(worker_step, args=(x, y))

    return step


def run_steps(coordinator, step: Callable, batches: Iterable, one_at_a_time: bool = False) -> list[Update]:
    """Schedule a step per batch, to whichever worker is free; wait for all.

    one_at_a_time  wait after each, so that every step reads what the last one wrote
    Returns        the updates in the order of their batches, which is not that of their arrival
    """
    scheduled = []
    for batch in batches:
        scheduled.append(coordinator.schedule(step, args=batch))
        if one_at_a_time:
            coordinator.join()
    coordinator.join()
    return [Update(*(value.numpy().item() for value in remote.get())) for remote in scheduled]


def evaluate(strategy, coordinator, model, per_example_loss, batches: Iterable) -> tuple[float, float]:
    """Mean loss and accuracy, each example counted once, also when a worker is lost on the way.

    Every batch comes back to the coordinator as three sums, and only there are
    they added: a batch that two workers evaluated still has one result.
    """

    @tf.function
    def sums(x, y):
        def worker_sums(x, y):
            logits = model(x, training=False)
            right = tf.equal(tf.argmax(logits, axis=-1), tf.cast(y, tf.int64))
            return tf.reduce_sum(per_example_loss(y, logits)), tf.reduce_sum(tf.cast(right, tf.float32)), tf.shape(y)[0]

        return strategy.run(worker_sums, args=(x, y))

    scheduled = [coordinator.schedule(sums, args=batch) for batch in batches]
    coordinator.join()
    loss, right, rows = (sum(value.numpy().item() for value in values) for values in zip(*(s.get() for s in scheduled)))
    return loss / rows, right / rows


class ServedEmbedding(keras.layers.Embedding):
    """An embedding that looks rows up on the servers that hold them, so that only those rows travel.

    Keras' own layer reads the variable first and then picks the rows, so that
    the whole table crosses the network at each step. Input ids (batch, ...)
    int32; output (batch, ..., output_dim).
    """

    def call(self, inputs):
        return tf.nn.embedding_lookup(self.embeddings.value, inputs)


def parts(variables: Sequence) -> list:
    """Each variable, or the pieces of one that is cut over several servers: what gradients and optimizers take."""
    return [part for variable in variables for part in _pieces(variable)]


def shards(variable) -> list[Shard]:
    """Where the values of a Keras or TensorFlow variable are."""
    return [_shard(piece.value if isinstance(piece, keras.Variable) else piece) for piece in _pieces(variable)]


def _pieces(variable) -> list:
    value = variable.value if isinstance(variable, keras.Variable) else variable
    return list(value.variables) if hasattr(value, "variables") else [variable]


def _shard(piece: tf.Variable) -> Shard:
    place = tf.DeviceSpec.from_string(piece.device)
    return Shard(f"{place.job} {place.task}", tuple(piece.shape), piece.shape.num_elements() * piece.dtype.size)

"""Asynchronous training on a real cluster of two workers and two servers, held against one device."""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from course_lib import cluster, compare, parameter_server, training
from course_lib.errors import CourseError

ROWS, WORKERS, STEPS = 64, 2, 100
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def new_model():
    """A table of 64 x 16 float32, 4 KiB, and a small dense layer."""
    layers = [parameter_server.ServedEmbedding(ROWS, 16), keras.layers.Flatten(), keras.layers.Dense(3)]
    return keras.Sequential([keras.Input((4,), dtype="int32"), *layers])


def new_batches(count):
    draw = np.random.default_rng(0)
    return [(draw.integers(0, ROWS, (8, 4), "int32"), draw.integers(0, 3, 8, "int32")) for _ in range(count)]


class AtOnce:
    """A coordinator that computes a step when it is scheduled, and counts how often it is waited for."""

    joined = 0

    def schedule(self, step, args):
        result = step(*args)
        return SimpleNamespace(get=lambda: result)

    def join(self):
        self.joined += 1


class DoublesInTraining(keras.layers.Layer):
    def call(self, x, training=None):
        return 2 * x if training else x


def linear_model(units=1):
    """x times a kernel of ones, with an L2 penalty of half its square, doubled in training; and a layer beside it."""
    settings = {"use_bias": False, "kernel_initializer": "ones"}
    x = keras.Input((2,))
    kernel = keras.layers.Dense(units, kernel_regularizer=keras.regularizers.L2(0.5), **settings)
    return keras.Model(x, [DoublesInTraining()(kernel(x)), keras.layers.Dense(1, **settings)(x)], name="linear")


def test_updates_by_hand():
    """The outputs' mean is the loss: its gradient is twice the rows' mean (2, 3), and the penalty adds the kernel."""
    model, optimizer = linear_model(), keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    everywhere, coordinator = tf.distribute.get_strategy(), AtOnce()
    first_output = lambda y, outputs: outputs[0] - y  # noqa: E731
    step = parameter_server.asynchronous_step(everywhere, model, optimizer, first_output)
    batch = tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.zeros((2, 1))
    (update,) = parameter_server.run_steps(coordinator, step, [batch])
    assert update == parameter_server.Update(loss=2 * 5 + 1, staleness=0) and coordinator.joined == 1
    kernel, beside = model.get_weights()
    np.testing.assert_allclose(kernel, [[1 - 0.1 * (4 + 1)], [1 - 0.1 * (6 + 1)]], rtol=1e-6)
    assert (beside == 1).all() and int(optimizer.iterations) == 1
    updates = parameter_server.run_steps(coordinator, step, [batch, batch], one_at_a_time=True)
    assert [one.staleness for one in updates] == [0, 0] and coordinator.joined == 1 + 3


def test_an_evaluation_by_hand():
    """Batches of two rows and of one; the loss of a row is its label, and training would double the logits."""
    inputs = keras.Input((3,))
    model = keras.Model(inputs, DoublesInTraining()(inputs))
    seen = []

    def loss(y, logits):
        seen.append(logits)
        return tf.cast(y, tf.float32) + 0 * logits[:, 0]

    batches = [
        (tf.constant([[1.0, 0, 0], [0, 0, 1.0]]), tf.constant([0, 1])),
        (tf.constant([[0, 1.0, 0]]), tf.constant([1])),
    ]
    coordinator = AtOnce()
    tf.config.run_functions_eagerly(True)
    try:
        found = parameter_server.evaluate(tf.distribute.get_strategy(), coordinator, model, loss, batches)
    finally:
        tf.config.run_functions_eagerly(False)
    assert found == pytest.approx((2 / 3, 2 / 3)) and coordinator.joined == 1
    assert [float(logits.numpy().max()) for logits in seen] == [1, 1]


def test_what_is_made_outside_the_scope_or_not_built_is_refused():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        inside, optimizer = linear_model(), keras.optimizers.SGD(name="inside")
    outside, other = linear_model(), keras.optimizers.SGD(name="outside")
    for model, chosen, name in ((outside, optimizer, "linear"), (inside, other, "outside")):
        with pytest.raises(CourseError, match=f"^{name} was made outside strategy.scope"):
            parameter_server.asynchronous_step(strategy, model, chosen, LOSS)
    with pytest.raises(CourseError, match="^the model later is not built"):
        later = keras.Sequential([keras.layers.Dense(1)], name="later")
        parameter_server.asynchronous_step(strategy, later, optimizer, LOSS)


def test_masked_outputs_are_refused():
    inputs = keras.Input((3,), dtype="int32")
    model = keras.Model(inputs, keras.layers.Embedding(4, 2, mask_zero=True)(inputs))
    per_token = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    step = parameter_server.asynchronous_step(tf.distribute.get_strategy(), model, keras.optimizers.SGD(), per_token)
    tokens = tf.constant([[1, 2, 0]])
    with pytest.raises(CourseError, match="mask"):
        step(tokens, tokens % 2)


def program(task):
    cut = tf.distribute.experimental.partitioners.MinSizePartitioner(2**11, max_shards=2)
    strategy, coordinator = parameter_server.connect(cut)
    with strategy.scope():
        model, optimizer = new_model(), keras.optimizers.Adam(0.01)
    variables = parameter_server.parts(model.trainable_variables)
    step = parameter_server.asynchronous_step(strategy, model, optimizer, LOSS)
    found = {"shards": parameter_server.shards(model.trainable_variables[0]), "start": [v.numpy() for v in variables]}
    found["in turns"] = parameter_server.run_steps(coordinator, step, new_batches(10), one_at_a_time=True)
    found["end"] = [v.numpy() for v in variables]
    found["evaluated"] = parameter_server.evaluate(strategy, coordinator, model, LOSS, new_batches(7))
    with strategy.scope():
        begun = tf.Variable(0, trainable=False)

    def meeting(y, outputs):
        """The loss, once every worker is in a step: however busy the machine is, two steps overlap."""
        known = begun.assign_add(1, read_value=True)
        known = tf.while_loop(lambda known: known < WORKERS, lambda known: begun.read_value(), [known])
        with tf.control_dependencies(known):
            return LOSS(y, tf.identity(outputs))

    meets = parameter_server.asynchronous_step(strategy, model, optimizer, meeting)
    found["together"] = parameter_server.run_steps(coordinator, meets, new_batches(STEPS))
    found["counted"] = int(optimizer.iterations.numpy())
    try:
        with contextlib.chdir(task.folder):  # a name that leads elsewhere in every other process
            training.ResumePoint(Path("points"), model, optimizer).save()
    except CourseError as error:
        found["unshared"] = str(error)
    point = training.ResumePoint(task.folder, model, optimizer)
    point.save()
    saved = [part.numpy() for part in variables]
    parameter_server.run_steps(coordinator, step, new_batches(3))
    moved = [not np.array_equal(one, part.numpy()) for one, part in zip(saved, variables)]
    again = point.restore(), *(np.array_equal(one, part.numpy()) for one, part in zip(saved, variables))
    found["restored"] = all(moved), again
    return found


@pytest.fixture(scope="module")
def found():
    return cluster.run(cluster.Job(program, workers=WORKERS, parameter_servers=2), show=None).result


def whole(parts):
    return [np.concatenate(parts[:2]), *parts[2:]]


def one_device(found):
    model, optimizer = new_model(), keras.optimizers.Adam(0.01)
    model.set_weights(whole(found["start"]))
    step = training.single_device_step(model, optimizer, LOSS)
    return model, [float(step(*batch)) for batch in new_batches(10)]


def test_one_at_a_time_it_equals_one_device(found):
    model, losses = one_device(found)
    weights = dict(enumerate(whole(found["end"])))
    servers = compare.Run("servers", weights, [update.loss for update in found["in turns"]])
    alone = compare.Run("one device", dict(enumerate(model.get_weights())), losses)
    compare.assert_equal(alone, servers, relative=1e-4, reason="float32; Adam magnifies rounding of small gradients")


def test_staleness_is_counted(found):
    assert [update.staleness for update in found["in turns"]] == [0] * 10
    stale = [update.staleness for update in found["together"]]
    # Each update makes at most the other worker's step one staler.
    assert 0 < sum(stale) <= (WORKERS - 1) * STEPS and min(stale) == 0


def test_the_count_is_read_before_the_weights():
    """In the graph, where nothing else orders two variables: else staleness is understated."""
    with tf.device("CPU:0"):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    step = parameter_server.asynchronous_step(tf.distribute.get_strategy(), model, keras.optimizers.SGD(), LOSS)
    graph = step.get_concrete_function(tf.TensorSpec((8, 4)), tf.TensorSpec((8,), tf.int32)).graph
    reads = [one for one in graph.get_operations() if one.type == "ReadVariableOp"]
    counter = next(one.inputs[0] for one in reads if one.outputs[0].dtype == tf.int64)
    first = next(one for one in reads if one.inputs[0] is counter)
    product = next(one for one in graph.get_operations() if one.type == "MatMul")
    (waited_for,) = product.inputs[1].op.control_inputs
    assert waited_for.inputs[0].op is first


def test_every_update_is_counted(found):
    assert found["counted"] == 10 + STEPS


def test_a_checkpoint_whose_parts_lie_on_several_disks_is_refused(found):
    """TensorFlow's own error is a traceback of an operation; the same save in a folder of all tasks succeeds."""
    assert re.match("a server's part of the checkpoint is not in points: give .* one folder", found["unshared"])
    moved, (steps, *equal) = found["restored"]
    assert moved and steps == 10 + STEPS and len(equal) == 4 and all(equal)


def test_evaluation_counts_every_example_once(found):
    model, _ = one_device(found)
    x, y = (np.concatenate(part) for part in zip(*new_batches(7)))
    logits = model.predict(x, verbose=0)
    expected = float(np.mean(LOSS(y, logits))), float(np.mean(logits.argmax(1) == y))
    np.testing.assert_allclose(found["evaluated"], expected, rtol=1e-4)


def test_the_table_is_cut_over_both_servers(found):
    assert {shard.server for shard in found["shards"]} == {"ps 0", "ps 1"}
    assert [shard.shape for shard in found["shards"]] == [(ROWS // 2, 16)] * 2
    assert sum(shard.size_bytes for shard in found["shards"]) == ROWS * 16 * 4


def test_tensorflow_still_keeps_remote_functions_in_a_vector():
    """When this fails, check whether `Run` may still read an element that moves; if not, remove make_room."""
    header = "tensorflow/core/distributed_runtime/eager/cluster_function_library_runtime.h"
    assert "std::vector<FunctionData> function_data_" in Path(tf.sysconfig.get_include(), header).read_text()


# A process of its own, because TensorFlow reads what to log when it is imported.
ROOM_MADE = """
import os, sys
import tensorflow as tf
from course_lib.cluster import processes
from course_lib.parameter_server import make_room

held = [processes.hold_port(0) for _ in range(int(sys.argv[1]))]
cluster = tf.train.ClusterSpec({"worker": [f"localhost:{socket.getsockname()[1]}" for socket, _ in held]})
servers = [tf.distribute.Server(cluster, job_name="worker", task_index=task) for task in range(len(held))]
tf.config.experimental_connect_to_cluster(cluster, job_name="localhost", protocol="grpc")
make_room(cluster)
sys.stderr.flush()
os._exit(0)  # servers cannot be stopped
"""


@pytest.mark.parametrize("tasks", [1, 3])
def test_room_is_made_before_threads_use_it(tasks):
    """TensorFlow logs each function that it puts into its vector; the 65th lets it grow to 128."""
    logged = {
        "TF_CPP_VMODULE": "cluster_function_library_runtime=1",
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "GRPC_VERBOSITY": "INFO",
    }
    call = [sys.executable, "-c", ROOM_MADE, str(tasks)]
    logs = subprocess.run(call, env={**os.environ, **logged}, capture_output=True, text=True, check=True)
    assert 64 < logs.stderr.count("CFLR::Instantiate") <= 64 + tasks


def counter_operations(optimizer):
    graph = tf.function(lambda: optimizer.iterations.assign_add(1)).get_concrete_function().graph
    return {operation.type for operation in graph.get_operations()}


def test_keras_still_loses_counts():
    """When this fails, keras issue 18668 is fixed: remove count_every_update and lesson 04's part on it."""
    operations = counter_operations(keras.optimizers.SGD())
    assert "AssignVariableOp" in operations and "AssignAddVariableOp" not in operations


def test_the_counter_is_counted_in_one_operation():
    optimizer = keras.optimizers.SGD()
    parameter_server.count_every_update(optimizer)
    operations = counter_operations(optimizer)
    assert "AssignAddVariableOp" in operations and "AssignVariableOp" not in operations
    optimizer.iterations.assign_add(3)
    assert int(optimizer.iterations.numpy()) == 3


def reads_the_table(layer):
    """Whether a graph reads the layer's table whole."""
    graph = tf.function(lambda: layer(tf.constant([[3, 1]]))).get_concrete_function().graph
    reads = [operation for operation in graph.get_operations() if operation.type == "ReadVariableOp"]
    return any(operation.outputs[0].shape == layer.embeddings.shape for operation in reads)


def test_rows_are_looked_up_where_they_are():
    usual, served = keras.layers.Embedding(ROWS, 16), parameter_server.ServedEmbedding(ROWS, 16)
    usual.build(), served.build()
    served.set_weights(usual.get_weights())
    ids = np.array([[3, 1], [1, 63]])
    np.testing.assert_array_equal(served(ids), usual(ids))
    assert not reads_the_table(served)
    assert reads_the_table(usual), (
        "Keras' own layer gathers rows now: remove ServedEmbedding, and its part of lesson 04"
    )


def test_an_uncut_variable_is_its_own_part():
    variable = keras.Variable(np.zeros((2, 3), "float32"))
    assert parameter_server.parts([variable]) == [variable]
    (shard,) = parameter_server.shards(variable)
    assert (shard.shape, shard.size_bytes) == ((2, 3), 24)


@pytest.mark.parametrize(
    "optimizer, by_rows",
    [(keras.optimizers.SGD(0.1), True), (keras.optimizers.SGD(0.1, 0.9), False), (keras.optimizers.Adam(), False)],
)
def test_keras_changes_the_rows_of_a_table_alone_for_sgd_without_momentum(optimizer, by_rows):
    """As lesson 04 says: all others write the whole table."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Embedding(50, 4)])
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

    graph = step.get_concrete_function(tf.constant([[1, 2, 3]])).graph
    assert ("ResourceScatterSub" in {operation.type for operation in graph.get_operations()}) == by_rows

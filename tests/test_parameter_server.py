"""Asynchronous training on a real cluster of two workers and two servers, held against one device."""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

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
    found["together"] = parameter_server.run_steps(coordinator, step, new_batches(STEPS))
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

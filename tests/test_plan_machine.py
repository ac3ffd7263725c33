"""This machine as a cluster: what is tried, and how a step is composed of it. No test compares times."""

import contextlib
from dataclasses import replace
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from installed import need

from course_lib import cluster, devices, measure, models, training
from course_lib.errors import CourseError

tf = need("tensorflow")

from course_lib import planner  # noqa: E402
from course_lib.planner import Layout, bfc_allocator, measured_machine, replay, trace_tensorflow  # noqa: E402
from course_lib.planner.bfc_allocator import FIRST_REGION, PAGE, Pool  # noqa: E402
from course_lib.planner.keras_model import from_keras, input_shapes  # noqa: E402
from course_lib.planner.models_by_numbers import read_model  # noqa: E402

FOUR = devices.simulate(4).names


def float32(replicas: int, rows: int) -> Layout:
    return Layout(data=replicas, micro_batch=rows, precision="float32")


def traced(model, rows: int = 4):
    return trace_tensorflow.traced_graph(model, input_shapes(model, rows))


@pytest.fixture(scope="module")
def here():
    return {count: measured_machine.this_machine(count, memory=False) for count in (1, 4)}


def test_this_machine_is_a_cluster_of_equal_devices(here):
    for count, found in here.items():
        assert (found.chips, found.shared, found.devices) == (count, True, FOUR[:count])
        rates = [found.chip.read_per_second, found.chip.memory_bytes, found.chip.flops_per_second["float32"]]
        positive = [found.start_seconds, *rates]
        assert all(np.isfinite(positive)) and min(positive) > 0
    assert here[1].exchange_seconds == 0 and here[1].chip.within == float("inf")
    assert 0 < here[4].chip.within < float("inf")
    assert here[4].chip.memory_bytes < here[1].chip.memory_bytes / 2
    assert (replay.WARM_UP, replay.FEWEST, replay.MOST) == (3, 5, 200)


def test_what_the_framework_takes_is_measured_unless_one_says_no(monkeypatch):
    monkeypatch.setattr(measured_machine, "_framework_bytes", lambda: (1.0, 2.0))
    asked = {memory: measured_machine.this_machine(1, memory=memory).framework_bytes for memory in (True, False)}
    assert asked == {True: (1.0, 2.0), False: (0.0, 0.0)}
    assert measured_machine.this_machine().framework_bytes == (1.0, 2.0)


def test_what_the_times_of_a_machine_say(monkeypatch):
    """A sum of few numbers takes 1 s and one of many 3 s; what is sent between has 2.0 s of its own."""
    few, many = measured_machine.FEW, measured_machine.MANY
    times = {"product": 1.5, "copy": 5, "nothing": 1, "nothing together": 0.5, "start": 0.1}
    times |= {f"sum {few}": 1.5, f"sum {many}": 3.5}
    on_each, ran_on = replay.on_each, []
    monkeypatch.setattr(replay, "on_each", lambda names, *how: ran_on.append(names) or on_each(names, *how))
    monkeypatch.setattr(replay, "median_seconds", lambda calls: {name: times[name] for name in calls})
    found = measured_machine.this_machine(4, memory=False)
    assert ran_on == [FOUR[:1], FOUR[:1], FOUR[:1], FOUR, FOUR, FOUR]  # product, copy and nothing alone
    assert (found.start_seconds, found.exchange_seconds) == (0.1, 1)
    assert found.chip.within == found.chip.between == pytest.approx(2 * 3 / 4 * 4 * (many - few) / 2)
    assert found.chip.flops_per_second == {"float32": 4 * measured_machine.SIDE**3}
    assert found.chip.read_per_second == 2 * measured_machine.LONG
    times |= {"copy": 1}  # faster than the clock sees
    assert measured_machine.this_machine(4, memory=False).chip.read_per_second == 8 * measured_machine.LONG / 1e-9


def test_an_empty_step_goes_through_a_strategy_where_there_are_several_devices(monkeypatch):
    made, strategy = [], tf.distribute.MirroredStrategy
    monkeypatch.setattr(
        tf.distribute, "MirroredStrategy", lambda names, **how: made.append(names) or strategy(names, **how)
    )
    assert [float(measured_machine._empty_step(FOUR[:count])()) for count in (1, 4)] == [0, 0]
    assert made == [FOUR]


@pytest.mark.parametrize("shape, numbers", [((), 1), ((2, 3), 6)])
def test_a_call_on_a_gpu_waits_for_its_last_result(monkeypatch, shape, numbers):
    monkeypatch.setattr(tf, "device", lambda name: contextlib.nullcontext())
    call = replay.on_each(["GPU:0"], lambda value: [tf.zeros((7,)), value], lambda: tf.ones(shape))
    waited, reshape = [], tf.reshape
    monkeypatch.setattr(tf, "reshape", lambda *how: waited.append(reshape(*how)) or waited[-1])
    call()
    assert [one.shape for one in waited] == [(numbers,)]


def test_a_step_is_cut_before_each_matrix_product():
    names = [piece.name for piece in replay.pieces(traced(models.cnn((8, 8, 1), 10, filters=(4, 6), width=16)))]
    assert names == ["conv1", "conv2", "hidden", "logits"]


def test_the_pieces_are_the_whole_pass_and_each_operation_is_in_one():
    program = traced(models.cnn((8, 8, 1), 10, filters=(4, 6), width=16, batch_norm="local"))
    pieces = replay.pieces(program)
    names = [op.name for piece in pieces for op in piece.operations]
    assert len(names) == len(set(names)) == len(program.trace.operations)
    kinds = {op.type for op in pieces[0].operations}
    assert {"Conv2D", "Conv2DBackpropFilter", "Relu", "ReluGrad", "MaxPool", "MaxPoolGrad"} <= kinds


def test_a_calls_seconds_are_those_between_its_begin_and_end(monkeypatch):
    clock = iter([90.0, 92.5])
    monkeypatch.setattr(replay.time, "perf_counter", lambda: next(clock))
    assert replay._seconds(lambda: None) == 2.5


def test_an_array_of_unknown_rank_counts_as_empty():
    with tf.Graph().as_default():
        unknown, rows = tf.compat.v1.placeholder(tf.float32), tf.compat.v1.placeholder(tf.float32, (None, 3))
        assert [trace_tensorflow._size(tensor).numbers for tensor in (unknown, rows, tf.ones((2, 3)))] == [0, 0, 6]


def test_what_other_pieces_read_leaves_a_piece():
    program = traced(keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(2)]))
    for piece in replay.pieces(program):
        computed = {tensor.name for op in piece.operations for tensor in op.outputs}
        others = {*program.graph.get_operations()} - {*piece.operations}
        read = {tensor.name for op in others for tensor in op.inputs}
        assert {*replay._cut(program, piece)[2]} == computed & (read | program.results) < computed


def test_equal_blocks_are_tried_once(here):
    model = models.transformer(50, 12, layers=3, width=16)
    pieces = replay.pieces(traced(model))
    assert len({piece.work for piece in pieces}) < len(pieces) / 2
    parts = measured_machine.step_parts(from_keras(model), here[1], float32(1, 2), 6)
    assert sum(parts.times.values()) == 3 * len(pieces)  # three micro-batches


@pytest.mark.parametrize("kind", ["cnn", "transformer"])
def test_every_piece_runs_alone_on_four_devices(kind):
    cnn = lambda: models.cnn((8, 8, 1), 10, filters=(4,), width=16, batch_norm="local")  # noqa: E731
    program = traced(cnn() if kind == "cnn" else models.transformer(50, 12, layers=1, width=16))
    for piece in replay.pieces(program):
        replay.replay(program, piece, FOUR)()


def test_a_piece_takes_along_a_size_that_an_earlier_one_computes():
    class Counted(keras.layers.Layer):
        def call(self, x):
            self.rows = tf.constant(3) + 1  # added where the graph runs
            self.shape = tf.stack([self.rows, 3])
            return x

    class Folded(keras.layers.Layer):
        def call(self, x):
            return tf.reshape(tf.reshape(x, counted.shape), tf.stack([counted.rows, 3]))

    counted = Counted()
    dense = [keras.layers.Dense(3) for _ in range(2)]
    program = traced(keras.Sequential([keras.Input((3,)), dense[0], counted, dense[1], Folded()]))
    for piece in replay.pieces(program):
        replay.replay(program, piece, FOUR[:1])()


def test_a_piece_computes_what_the_model_computes():
    """The gradient of a lone Dense layer, replayed on numbers of ones, against the product by hand."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False)])
    program = traced(model, rows=5)
    (piece,) = replay.pieces(program)
    results = []

    def run_once(devices, run, make):
        value = make()
        results.extend(tf.function(lambda: run(value), autograph=False)())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "_made_up", lambda tensor: tf.ones(tensor.shape, tensor.dtype))
        patch.setattr(replay, "on_each", run_once)
        replay.replay(program, piece, FOUR[:1])
    # The mean square of 1 + 1 + 1: its gradient is the mean of 2 * 3 * 1 over the rows.
    assert any(result.shape == (3, 1) and np.allclose(result, 6) for result in results)
    assert any(result.shape == (5, 1) and np.allclose(result, 3) for result in results)


def test_an_update_trains_copies_and_leaves_the_model_alone():
    model = models.mlp((4, 4, 1), 3, width=4)
    before, network = model.get_weights(), from_keras(model)
    call = replay.update(network.optimizer, [v.shape for v in model.trainable_variables], FOUR[:2])
    call()
    assert all((a == b).all() for a, b in zip(before, model.get_weights()))
    assert not network.optimizer.built


def test_a_machine_can_be_measured_with_other_numbers_of_devices_in_turn():
    """Its collectives must not take one group of devices for another, nor a MirroredStrategy's for its own."""
    strategy = tf.distribute.MirroredStrategy(FOUR)
    one_each = lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(1.0))  # noqa: E731
    total = tf.function(lambda: strategy.run(one_each), autograph=False)
    for count in (2, 4):
        replay.all_reduce(256, FOUR[:count], measured_machine.GROUPS + count)()
        assert float(strategy.experimental_local_results(total())[0]) == 4


def test_a_step_is_composed_of_what_was_tried(here):
    network = from_keras(models.mlp((8, 8, 1), 10, width=16))
    parts = measured_machine.step_parts(network, here[4], float32(4, 8), 64)  # two micro-batches of 8 on each of four
    seconds = dict.fromkeys(parts.times, 3.0) | {"nothing": 1.0, "update": 5.0}
    step = parts.step_time(seconds)
    assert (step.compute, step.memory, step.overhead) == (2 * 2 * (3 - 1), 5 - 1, here[4].start_seconds)
    sent_bytes = 2 * 3 / 4 * 4 * network.parameters
    assert step.data == pytest.approx(here[4].exchange_seconds + sent_bytes / here[4].chip.within)


def test_step_time_tries_it_all(here):
    step = measured_machine.step_time(from_keras(models.mlp((8, 8, 1), 10, width=16)), here[1], float32(1, 8), 8)
    assert step.total > 0 and step.data == step.tensor == step.bubble == 0


@pytest.mark.parametrize(
    "layout, message",
    [
        (Layout(tensor=2, data=2, precision="float32"), "tries only data parallelism and accumulation"),
        (
            Layout(data=4, precision="mixed_bfloat16"),
            "the layout is in mixed_bfloat16 and the model computes in float32",
        ),
        (Layout(data=4, micro_batch=3, precision="float32"), "does not divide into 4 replicas"),
    ],
)
def test_what_this_machine_cannot_try_gets_one_clear_line(here, layout, message):
    with pytest.raises(CourseError, match=message):
        measured_machine.step_parts(from_keras(models.mlp((4, 4, 1), 3, width=4)), here[4], layout, 64)


def test_too_few_devices_get_the_remedy():
    with pytest.raises(CourseError, match=r"needs 9 devices .* 4 logical CPU devices: call devices.simulate\(9\)"):
        measured_machine.this_machine(9)


def test_a_transformer_by_numbers_is_not_tried(here):
    with pytest.raises(CourseError, match=r"plan with from_keras\(model\), or for a chip by its name"):
        measured_machine.step_parts(read_model("gpt2-124m").chain(), here[1], float32(1, 8), 8)


def test_another_backend_is_not_measured(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(CourseError, match="measures with TensorFlow, and Keras has another backend here"):
        measured_machine.this_machine()


def test_what_the_framework_takes_is_the_peak_of_first_steps(monkeypatch):
    """Of a small dense model, and of a small convolving one beyond that; steps that run, and peaks made up."""
    ran = []

    def peak(steps):
        ran.append(len(steps()))
        return 10 * len(ran)

    def run(job, show):
        assert (job.workers, job.resources.cpus) == (1, 1)
        return SimpleNamespace(result=getattr(measured_machine, job.program.function)(None))

    step, sizes = training.single_device_step, []
    stepped = lambda model, *rest: sizes.append(model.count_params()) or step(model, *rest)  # noqa: E731
    monkeypatch.setattr(training, "single_device_step", stepped)
    monkeypatch.setattr(measure, "peak_memory_bytes", peak)
    monkeypatch.setattr(cluster, "run", run)
    assert measured_machine._framework_bytes() == (10, 10 + 20) and ran == [2, 2]
    dense = (64 + 1) * 16 + (16 + 1) * 10
    assert sizes == [dense, (9 + 1) * 16 + (9 * 16 + 1) * 16 + dense]  # of 2 x 2 places with 16 numbers, 64 again


def test_where_no_peak_can_be_read_the_framework_counts_as_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(measured_machine, "Path", lambda name: tmp_path / "none")
    assert measured_machine._framework_bytes() == (0.0, 0.0)


def test_a_gpus_memory_is_what_its_tool_says(monkeypatch):
    def run(command, **options):
        assert command[:2] == ["nvidia-smi", "--query-gpu=memory.total"] and options["check"]
        return SimpleNamespace(stdout="24576\n81920\n")

    monkeypatch.setattr(measured_machine.subprocess, "run", run)
    assert measured_machine._memory_bytes(["GPU:0", "GPU:1"]) == 24 * 2**30


def test_gpus_are_measured_where_there_are_as_many(monkeypatch):
    found = {"GPU": [0, 1], "CPU": [0, 1, 2]}
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: found[kind])
    assert [measured_machine._device_names(count) for count in (2, 3)] == [
        ("GPU:0", "GPU:1"),
        ("CPU:0", "CPU:1", "CPU:2"),
    ]


def test_memory_by_kind(here):
    network = from_keras(models.cnn((32, 32, 3), 10, filters=(16, 16)))
    known = replace(here[1], framework_bytes=(1.0, 2.0))
    small, large = (measured_machine.memory(network, known, float32(1, rows), rows) for rows in (16, 64))
    assert small.weights == small.gradients == small.optimizer / 2 == 4 * network.parameters
    assert large.activations == 4 * small.activations == 64 * 4 * sum(block.kept for block in network.blocks)
    assert large.framework == small.framework == 2.0  # it convolves
    # The backward pass of the first pooling holds its result beside all that was kept: 32 x 32 x 16 numbers a row.
    assert large.temporaries >= 64 * 4 * 32 * 32 * 16


def test_what_a_device_holds_before_a_step_begins(monkeypatch):
    """Each trained variable with Adam's two, what is frozen, and the batch; a frozen layer has weights alone."""
    base = keras.layers.Dense(3, name="base")
    network = from_keras(keras.Sequential([keras.Input((5,)), base, keras.layers.Dense(2, name="head")]))
    base.trainable = False
    network, held = from_keras(network.model), []
    monkeypatch.setattr(bfc_allocator, "step_bytes", lambda trace, gradients, sizes: held.append(sizes) or 10_000)
    found = measured_machine.memory(network, here_alone(), float32(1, 7), 7)
    base, head = 4 * (5 + 1) * 3, 4 * (3 + 1) * 2
    assert sorted(held[0]) == sorted([*[4 * 3 * 2, 4 * 2] * 3, 4 * 5 * 3, 4 * 3, 4 * 7 * 5])
    assert (found.weights, found.gradients, found.optimizer) == (base + head, head, 2 * head)
    assert found.temporaries == 10_000 - head - found.activations


def here_alone():
    return measured_machine.MeasuredMachine(planner.find_chip("t4"), 1, devices=FOUR[:1])


def test_the_pool_gives_back_what_was_given_back():
    pool = Pool()
    first = pool.take(10 * PAGE)
    pool.give_back(first)
    again = pool.take(10 * PAGE)
    assert (again.region, again.start) == (0, 0) and pool.resident_bytes == 10 * PAGE


def test_the_pool_wastes_up_to_half_of_a_free_chunk():
    pool = Pool()
    held = [pool.take(size * PAGE) for size in (19, 1)]
    pool.give_back(held[0])
    chunk = pool.take(10 * PAGE)
    assert chunk.size == 19 * PAGE  # not cut: less than twice as large
    pool.give_back(chunk)
    assert pool.take(9 * PAGE).size == 9 * PAGE
    assert pool.resident_bytes == 20 * PAGE  # a page that was used stays


def test_the_pool_joins_free_neighbours():
    pool = Pool()
    held = [pool.take(size * PAGE) for size in (10, 10, 10, 1)]
    for chunk in (held[0], held[2], held[1]):
        pool.give_back(chunk)
    assert pool.take(30 * PAGE).start == 0 and pool.resident_bytes == 31 * PAGE


def test_the_pools_regions_double():
    pool = Pool()
    for size in (FIRST_REGION, FIRST_REGION, 5 * FIRST_REGION):
        pool.take(size)
    assert [len(pages) * PAGE for pages in pool._pages] == [FIRST_REGION, 2 * FIRST_REGION, 8 * FIRST_REGION]

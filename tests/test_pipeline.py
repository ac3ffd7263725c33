"""Pipelines: schedules that keep the formulas, orders that are refused, stages that train as one device does."""

import io
import itertools
import socket
import struct
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from course_lib import cluster, compare, models, pipeline, show, training
from course_lib.errors import CourseError
from course_lib.pipeline import cutting, executor, links, op_devices
from course_lib.pipeline.links import Links

F, B = pipeline.forward, pipeline.backward
COUNTS = list(itertools.product(range(1, 9), range(1, 21)))
IN_TURNS = pipeline.one_forward_one_backward
FLOAT32 = {"relative": 1e-5, "reason": "float32 sums in another order, over 3 steps"}


@pytest.mark.parametrize("make", [pipeline.gpipe, IN_TURNS])
@pytest.mark.parametrize("costs", [(1, 2), (1, 1), (0.3, 0.5)])
def test_the_bubble_is_the_formulas(make, costs):
    for p, m in COUNTS:
        timeline = make(p, m).timeline(*costs)
        assert timeline.total == pytest.approx((m + p - 1) * sum(costs))
        assert timeline.bubble == pytest.approx((p - 1) / (m + p - 1))


def test_one_at_a_time_all_but_one_stage_idle():
    for p, m in COUNTS:
        timeline = pipeline.naive(p, m).timeline()
        assert timeline.bubble == pytest.approx((p - 1) / p)
        assert timeline.peak_in_flight == (1,) * p


def test_1f1b_holds_fewer_micro_batches_than_gpipe():
    for p, m in COUNTS:
        assert pipeline.gpipe(p, m).timeline().peak_in_flight == (m,) * p
        assert IN_TURNS(p, m).timeline().peak_in_flight == tuple(min(m, p - stage) for stage in range(p))


def test_chunks_shorten_the_bubble():
    for p, rounds, v in itertools.product(range(1, 7), range(1, 5), range(1, 5)):
        m = p * rounds
        timeline = pipeline.interleaved(p, m, v).timeline()
        assert timeline.bubble == pytest.approx((p - 1) / (v * m + p - 1))
        assert timeline.total == pytest.approx(3 * m + 3 * (p - 1) / v)  # a chunk costs a v-th of the stage
    assert pipeline.interleaved(3, 6, 1).orders == IN_TURNS(3, 6).orders


def test_stages_of_unequal_cost_wait_for_the_slowest():
    timeline = pipeline.gpipe(2, 2).timeline(forward=[1, 3], backward=[2, 6])
    ends = {(slot.stage, str(slot.work)): slot.end for slot in timeline.slots}
    assert [ends[0, "F1"], ends[1, "F1"], ends[1, "B1"], ends[0, "B0"], ends[0, "B1"]] == [2, 7, 19, 15, 21]
    assert timeline.idle == (21 - 6, 21 - 18)


def test_a_schedule_prints_as_its_timeline():
    assert repr(pipeline.gpipe(2, 2)) == (
        "GPipe: 2 stage(s), 2 micro-batch(es), 33.3% idle\n"
        "stage 0  F0 F1 .........B0--- B1---   holds 2\n"
        "stage 1  ...F0 F1 B0--- B1--- ......  holds 2"
    )


def test_measured_slots_make_a_timeline_whatever_their_clock():
    first = [pipeline.Slot(0, F(0), 100.0, 101.0), pipeline.Slot(0, B(0), 104.0, 106.0)]
    timeline = pipeline.gather("measured", [first, [pipeline.Slot(1, F(0), 101.0, 104.0)]])
    assert (timeline.total, timeline.idle, timeline.bubble) == (6.0, (3.0, 3.0), 0.5)


def test_unequal_stages_idle_on_average_and_hold_what_is_not_yet_backward():
    """By hand: stages idle 5, 3 and 4 of 6, so 12 of 18; micro-batches are held from forward until after backward."""
    busy = [(0, 0, 1), (1, 1, 4), (2, 4, 6)]
    timeline = pipeline.gather("uneven", [[pipeline.Slot(stage, F(0), *times)] for stage, *times in busy])
    assert timeline.idle == (5, 3, 4) and timeline.bubble == pytest.approx(2 / 3)
    order = F(0), F(1), B(0), F(2), B(1), B(2)
    one = pipeline.gather("one", [[pipeline.Slot(0, work, place, place + 1) for place, work in enumerate(order)]])
    assert one.in_flight(0) == [1, 2, 2, 2, 2, 1] and one.peak_in_flight == (2,)


def test_a_measured_timeline_prints_whatever_the_times():
    slots = [pipeline.Slot(0, F(0), 0.0, 1e-9), pipeline.Slot(0, F(1), 0.5, 1.0), pipeline.Slot(0, B(0), 1.0, 1.0)]
    assert "50.0% idle" in repr(pipeline.gather("measured", [slots]))


ORDER = (F(0), F(1), B(0), B(1))
REFUSED = {
    "'x' never ends, because stages wait for each other: stage 0, before B0, for B0 of stage 1; "
    "stage 1, before F1, for F1 of stage 0.": [(F(0), B(0), F(1), B(1)), ORDER],
    "stage 1 of 'x' does B0 before F0, which makes what it needs: put F0 first.": [ORDER, (B(0), F(0), F(1), B(1))],
    "stage 0 of 'x' leaves out B1: every micro-batch goes forward and backward.": [ORDER[:3], ORDER],
    "stage 0 of 'x' does F1 twice: every piece of work is done once.": [(*ORDER, F(1)), ORDER],
    "stage 1 of 'x' does F2, which is not among 2 micro-batches in 1 chunk(s).": [ORDER, (*ORDER, F(2))],
    "stage 1 of 'x' has nothing to do: give it layers and work, or use 1 stage(s).": [ORDER, ()],
    "a schedule has 1 or more of stages, micro-batches and chunks; 'x' has 0, 2 and 1.": [],
}


@pytest.mark.parametrize("message", REFUSED)
def test_illegal_orders_are_refused_in_one_line(message):
    with pytest.raises(CourseError) as refused:
        pipeline.Schedule("x", 2, REFUSED[message])
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pipeline.gpipe(0, 4), "1 or more of stages"),
        (lambda: IN_TURNS(2, 0), "1 or more of stages"),
        (lambda: pipeline.interleaved(0, 4, 2), "1 or more of stages"),
        (lambda: pipeline.interleaved(4, 6, 2), "groups of 4, one per stage, and 6 don't divide"),
        (lambda: pipeline.gpipe(2, 4).timeline(forward=[1, 2, 3]), "2 stages needs one cost of 0 or more, or 2"),
        (lambda: pipeline.balance([1.0, 2.0], 3), "2 layers can't make 3 stages"),
        (lambda: pipeline.balance([1.0], 0), "1 layers can't make 0 stages"),
        (lambda: executor.split_batch(np.zeros((8, 2)), 3), "3 micro-batches don't divide a batch of 8"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(make, message):
    with pytest.raises(CourseError, match=message) as refused:
        make()
    assert "\n" not in str(refused.value)


def test_a_legal_order_of_ones_own_is_taken():
    """Micro-batches may overtake each other between stages."""
    schedule = pipeline.Schedule("x", 2, [(F(0), F(1), B(1), B(0)), (F(1), F(0), B(0), B(1))])
    assert schedule.timeline().total > pipeline.gpipe(2, 2).timeline().total


def test_balance_finds_the_best_cut():
    draw = np.random.default_rng(0)
    for layers, stages in itertools.product(range(1, 9), range(1, 5)):
        if stages > layers:
            continue
        costs = draw.integers(0, 20, layers).tolist()
        cuts = itertools.combinations(range(1, layers), stages - 1)
        best = min(max(sum(costs[a:b]) for a, b in itertools.pairwise([0, *cut, layers])) for cut in cuts)
        found = pipeline.balance(costs, stages)
        assert [layer for part in found for layer in part] == list(range(layers))
        assert len(found) == stages and all(found)
        assert max(sum(costs[layer] for layer in part) for part in found) == best


def test_balance_weighs_the_largest_stage_alone():
    """By hand 35, 27 and 19; the squares of 22, 23 and 36 add up to less, and 36 is more than 35."""
    assert pipeline.balance([15, 7, 13, 10, 17, 19], 3) == [range(3), range(3, 5), range(5, 6)]


def test_timelines_are_drawn():
    figure = show.timelines({"plan": pipeline.interleaved(2, 4, 2).timeline()}, "One ninth is idle.")
    assert figure.svg.startswith("<svg ") and "plan: 11% idle" in figure.svg


def test_only_what_stands_under_a_device_in_the_step_runs_there():
    dense, x = keras.layers.Dense(8), tf.ones((4, 16))
    with tf.device("CPU:2"):
        dense.build(x.shape)

    def step(x):
        with tf.device("CPU:1"):
            return dense(x)

    assert [device for _, device in op_devices.where_it_ran(dense, x)] == ["CPU:0"]
    dense(x)  # TensorFlow makes a graph of this as well, and would tell of it below
    assert [device for _, device in op_devices.where_it_ran(tf.function(step), x)] == ["CPU:1"]
    assert op_devices.where_it_ran(step, x, kind="Conv2D") == []


ORDERS_BY_HAND = {
    "naive": (pipeline.naive(2), ["F0 B0", "F0 B0"]),
    "GPipe": (pipeline.gpipe(2, 2), ["F0 F1 B0 B1"] * 2),
    "1F1B": (IN_TURNS(2, 3), ["F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"]),
    "interleaved, 2 chunks": (
        pipeline.interleaved(2, 4, 2),
        [
            "F0 F1 F0.1 F1.1 F2 B0.1 F3 B1.1 F2.1 B0 F3.1 B1 B2.1 B3.1 B2 B3",
            "F0 F1 F0.1 B0.1 F1.1 B1.1 F2 B0 F3 B1 F2.1 B2.1 F3.1 B3.1 B2 B3",
        ],
    ),
}


@pytest.mark.parametrize("name", ORDERS_BY_HAND)
def test_orders_by_hand(name):
    schedule, orders = ORDERS_BY_HAND[name]
    assert schedule.name == name and [" ".join(map(str, order)) for order in schedule.orders] == orders


def test_what_a_chunk_needs_by_hand():
    """Two stages with two chunks: the model's parts are 0 and 2 on stage 0, 1 and 3 on stage 1."""
    schedule = pipeline.interleaved(2, 2, 2)
    assert schedule.needs(0, F(1)) == []
    assert schedule.needs(1, F(1)) == [(0, F(1))]
    assert schedule.needs(0, F(1, 1)) == [(1, F(1))]
    assert schedule.needs(1, B(1, 1)) == [(1, F(1, 1))]
    assert schedule.needs(0, B(1, 1)) == [(0, F(1, 1)), (1, B(1, 1))]
    assert schedule.needs(1, B(1)) == [(1, F(1)), (0, B(1, 1))]


PRINTED = {
    "stages that work at once": (pipeline.gpipe(2, 2).timeline(1, 1), ["F0 F1 ......B0 B1 ", "...F0 F1 B0 B1 ..."]),
    "times that begin late": (
        pipeline.gather("late", [[pipeline.Slot(0, F(0), 10.0, 11.0), pipeline.Slot(0, B(0), 12.0, 14.0)]]),
        ["F0 ...B0--- "],
    ),
    "chunks": (pipeline.interleaved(1, 1, 2).timeline(2, 4), ["F0-- F0.1 B0.1----- B0------- "]),
    "more than a line holds": (pipeline.gpipe(1, 60).timeline(1, 1), ["F" * 60 + "B" * 60]),
    "a forward of no time": (pipeline.gpipe(1, 1).timeline(0, 3), ["B0" + "-" * 117 + " "]),
}


@pytest.mark.parametrize("what", PRINTED)
def test_rows_of_a_timeline_by_hand(what):
    timeline, rows = PRINTED[what]
    held = timeline.peak_in_flight
    assert repr(timeline).splitlines()[1:] == [
        f"stage {stage}  {row}  holds {held[stage]}" for stage, row in enumerate(rows)
    ]


def test_a_cost_may_be_zero_and_none_negative():
    assert pipeline.gpipe(2, 2).timeline(forward=0, backward=[0, 1]).total == 2
    for costs in (-1, [1, -1], [1]):
        with pytest.raises(CourseError, match="2 stages needs one cost of 0 or more"):
            pipeline.gpipe(2, 2).timeline(backward=costs)


@pytest.fixture
def wire():
    """A neighbour, and the other end of its connection."""
    with socket.create_server(("localhost", 0)) as server:
        there = socket.create_connection(server.getsockname())
        connection, _ = server.accept()
    with there:
        yield links.Neighbour(3, connection), connection, there


def test_a_message_is_a_head_and_float32(wire):
    """By hand: the head's length, the micro-batch and the shape as 8 bytes each, then the rows."""
    neighbour, connection, there = wire
    assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    whole = struct.pack("<B3q6f", 3, 7, 3, 2, 0, 3, 1, 4, 2, 5) + struct.pack("<B1q1f", 1, 8, 0.5)
    neighbour.send(7, np.arange(6, dtype="float32").reshape(2, 3).T)
    neighbour.send(8, np.array(0.5))
    assert neighbour.sent_bytes == 6 * 4 + 8
    there.shutdown(socket.SHUT_WR)
    neighbour.close()
    with there.makefile("rb") as stream:
        assert stream.read() == whole


def test_messages_are_taken_by_micro_batch_and_half_a_message_is_none(wire):
    neighbour, _, there = wire
    there.sendall(struct.pack("<B3q2f", 3, 7, 1, 2, 3, 4) + struct.pack("<B1q1f", 1, 8, 0.5) + bytes([2, 0]))
    there.shutdown(socket.SHUT_WR)
    assert neighbour.receive(8) == np.float32(0.5)
    found = neighbour.receive(7)
    assert found.tolist() == [[3, 4]] and found.dtype == "float32"
    with pytest.raises(CourseError, match="stage 3 is gone, and micro-batch 9 was still to come"):
        neighbour.receive(9)
    neighbour.close()


@pytest.mark.parametrize("size", [0, 18, 24])
def test_a_message_that_ends_early_is_none(size):
    message = struct.pack("<B2q2f", 2, 7, 2, 3, 4)
    assert links._read_message(io.BytesIO(message[:size])) is None
    number, array = links._read_message(io.BytesIO(message + b"more"))
    assert (number, array.tolist()) == (7, [3, 4])


def test_an_address_may_hold_colons():
    assert links._place("fe80::1:4000") == ("fe80::1", 4000)


class DoublesInTraining(keras.layers.Layer):
    def call(self, x, training=None):
        return 2 * x if training else x


def test_a_stage_computes_as_in_training():
    """By hand: outputs are 2 x 3, with a gradient of 2 by the kernel for each x of 1."""
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer=keras.initializers.Constant(3.0))
    model = keras.Sequential([keras.Input((1,)), dense, DoublesInTraining()])
    with Links() as alone:
        stage = executor.Stage(alone, model, keras.optimizers.SGD(0.5), lambda y, outputs: outputs[:, 0] - y)
        ones = np.ones((4, 1), "float32")
        (gradient,), loss = stage.gradients(pipeline.gpipe(1, 2), ones, np.float32([0, 0, 4, 4]))
        assert (loss, gradient.numpy().tolist(), dense.kernel.numpy()) == (4.0, [[2.0]], 3.0)
        assert stage.step(pipeline.gpipe(1, 1), ones, np.zeros(4, "float32")) == 6.0
        assert dense.kernel.numpy() == 3 - 0.5 * 2
    assert [slot.work for slot in stage.slots] == [F(0), B(0)]
    assert all(slot.stage == 0 and 0 < slot.start <= slot.end for slot in stage.slots)


def test_one_thread_is_asked_of_tensorflow(monkeypatch):
    asked = []
    for kind in ("intra", "inter"):
        name = f"set_{kind}_op_parallelism_threads"
        monkeypatch.setattr(tf.config.threading, name, lambda count, kind=kind: asked.append((kind, count)))
    executor.use_one_thread()
    assert asked == [("intra", 1), ("inter", 1)]


@pytest.mark.parametrize("micro_batches", [0, 3])
def test_a_batch_is_cut_into_equal_parts_or_refused(micro_batches):
    with pytest.raises(CourseError, match=f"^{micro_batches} micro-batches don't divide a batch of 4"):
        executor.split_batch(np.zeros((4, 2)), micro_batches)
    assert [part.numpy().tolist() for part in executor.split_batch(np.arange(4), 2)] == [[0, 1], [2, 3]]
    assert [part.numpy().tolist() for part in executor.split_batch(np.arange(4), 1)] == [[0, 1, 2, 3]]


def new_model():
    return models.transformer(vocabulary=20, sequence_length=8, layers=2, width=16, heads=2)


CUTS = ["block2_attention_norm", "final_norm"]


def test_stages_one_after_another_are_the_model():
    model = new_model()
    tokens = np.random.default_rng(0).integers(0, 20, (4, 8))
    x = tokens
    for stage in cutting.cut(model, CUTS):
        x = stage(x)
    np.testing.assert_array_equal(x, model(tokens))
    assert cutting.cut(model, CUTS)[1].trainable_variables[0] is model.get_layer(CUTS[0]).trainable_variables[0]


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (["nothing"], "has no layer 'nothing' to cut before"),
        (["block2_mlp_in"], "needs more than the tensor at its beginning"),  # the residual goes past it
        (CUTS[::-1], "needs more than the tensor at its beginning"),
        (["token_embedding"], "before token_embedding has no weights"),
    ],
)
def test_cuts_that_leave_something_out_are_refused(before, message):
    with pytest.raises(CourseError, match=message):
        cutting.cut(new_model(), before)


def test_a_model_without_an_order_of_layers_is_not_cut():
    class Own(keras.Model):
        pass

    with pytest.raises(CourseError, match="'own' is not a functional model"):
        cutting.cut(Own(name="own"), [])


LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
OVERTAKING = pipeline.Schedule(
    "overtaking",
    4,
    [(F(0), F(1), F(2), F(3), B(3), B(1), B(2), B(0)), (F(1), F(0), F(3), B(3), F(2), B(0), B(1), B(2))],
)
SCHEDULES = {
    3: [pipeline.gpipe(3, 4), IN_TURNS(3, 4), pipeline.naive(3, 4)],
    2: [pipeline.gpipe(2, 4), IN_TURNS(2, 4), OVERTAKING],
}


def batch():
    tokens = np.random.default_rng(0).integers(0, 20, (8, 9), "int32")
    return tokens[:, :-1], tokens[:, 1:]


def program(task):
    """Three stages, then two of the workers as two stages; in each, three steps in orders that differ."""
    found = {}
    for stages, schedules in SCHEDULES.items():
        if task.index < stages:
            addresses = [task.addresses[f"worker {stage}"] for stage in range(stages)]
            with Links(task.index, addresses) as links:
                part = cutting.cut(new_model(), CUTS[: stages - 1])[task.index]
                stage = executor.Stage(links, part, keras.optimizers.SGD(0.5, momentum=0.9), LOSS)
                losses, sent_bytes, slots = [], [], []
                for schedule in schedules:
                    losses.append(stage.step(schedule, *batch()))
                    sent_bytes.append(links.sent_bytes)
                    slots.append(stage.slots)
                found[stages] = compare.Run.of(task.name, part).weights, losses, sent_bytes, slots
    return found


@pytest.fixture(scope="module")
def found():
    job = cluster.Job(program, workers=3, resources=cluster.Resources(cpus=1))
    return list(cluster.run(job, show=None).results.values())


@pytest.fixture(scope="module")
def one_device():
    model = new_model()
    step = training.single_device_step(model, keras.optimizers.SGD(0.5, momentum=0.9), LOSS)
    return compare.Run.of("one device", model, [float(step(*batch())) for _ in range(3)])


def without_key_biases(name, weights, losses):
    """Softmax does not see them: their gradient is zero, and rounding all that is left of it."""
    kept = {path: weight for path, weight in weights.items() if not path.endswith("key/bias")}
    return compare.Run(name, kept, losses)


@pytest.mark.parametrize("stages", [2, 3])
def test_stages_in_processes_train_as_one_device_does(found, one_device, stages):
    weights = {path: weight for worker in found[:stages] for path, weight in worker[stages][0].items()}
    in_order = {path: weights[path] for path in one_device.weights}
    losses = found[stages - 1][stages][1]
    one = without_key_biases("one device", one_device.weights, one_device.losses)
    compare.assert_equal(one, without_key_biases("stages", in_order, losses), **FLOAT32)
    assert found[0][stages][1] == [None] * 3


def test_neighbours_send_the_boundary_once_each_way(found):
    boundary_bytes = 8 * 8 * 16 * 4  # (b, s, h) float32, however many micro-batches
    assert [worker[3][2] for worker in found] == [[k * n * boundary_bytes for k in (1, 2, 3)] for n in (1, 2, 1)]


@pytest.mark.parametrize("stages", [2, 3])
def test_stages_keep_to_their_orders_and_wait_for_what_those_need(found, stages):
    for number, schedule in enumerate(SCHEDULES[stages]):
        rows = [worker[stages][3][number] for worker in found[:stages]]
        assert tuple(tuple(slot.work for slot in row) for row in rows) == schedule.orders
        slots = {(slot.stage, slot.work): slot for row in rows for slot in row}
        for stage, work in slots:
            assert all(slots[need].end <= slots[stage, work].start for need in schedule.needs(stage, work))


@pytest.fixture
def alone():
    with Links() as links:
        yield executor.Stage(links, new_model(), keras.optimizers.SGD(0.5), LOSS)


def test_a_single_stage_adds_its_micro_batches_up(alone):
    paths = [variable.path for variable in alone.model.trainable_variables]

    def run(schedule):
        gradients, loss = alone.gradients(schedule, *batch())
        return without_key_biases(schedule.name, dict(zip(paths, map(np.asarray, gradients))), [loss])

    compare.assert_equal(run(pipeline.naive(1, 1)), run(IN_TURNS(1, 4)), **FLOAT32)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (pipeline.gpipe(1, 3), "3 micro-batches don't divide a batch of 8"),
        (pipeline.gpipe(2, 4), "'GPipe' is for 2 stages and 1 are connected"),
        (pipeline.interleaved(1, 4, 2), "2 chunks per stage, and a stage here runs one"),
    ],
)
def test_a_stage_refuses_what_it_cannot_run(alone, schedule, message):
    with pytest.raises(CourseError, match=message):
        alone.step(schedule, *batch())


def test_a_stage_with_nothing_in_it_is_refused():
    empty = keras.Sequential([keras.Input((4,)), keras.layers.ReLU()])
    with Links() as links, pytest.raises(CourseError, match="stage 0 has no weights to train"):
        executor.Stage(links, empty, keras.optimizers.SGD(), LOSS)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.SGD(0.1, global_clipnorm=1.0),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
    ],
)
def test_an_optimizer_that_needs_all_stages_gradients_is_refused(optimizer):
    with Links() as links, pytest.raises(CourseError, match="clips by the norm of all gradients or scales the loss"):
        executor.Stage(links, new_model(), optimizer(), LOSS)


def stage_that(kind):
    inputs = keras.Input((8,), dtype="int32")
    hidden = keras.layers.Embedding(20, 4, mask_zero=kind == "masks")(inputs)
    regularizer = "l2" if kind == "adds to the loss" else None
    outputs = keras.layers.Dense(20, kernel_regularizer=regularizer)(hidden)
    return keras.Model(inputs, [outputs, hidden] if kind == "has two outputs" else outputs)


@pytest.mark.parametrize("kind", ["adds to the loss", "masks", "has two outputs"])
def test_a_stage_whose_loss_needs_more_than_its_tensor_is_refused_before_it_trains(kind):
    model = stage_that(kind)
    before = model.get_weights()
    with Links() as links, pytest.raises(CourseError, match="^stage 0 has layers that add to the loss") as refused:
        executor.Stage(links, model, keras.optimizers.SGD(0.5), LOSS).step(pipeline.gpipe(1, 2), *batch())
    assert "\n" not in str(refused.value)
    assert all((one == other).all() for one, other in zip(before, model.get_weights()))


def test_a_batch_of_several_arrays_is_refused():
    with pytest.raises(CourseError, match="a batch here is one array, not a list"):
        executor.split_batch([np.ones((4, 2)), np.ones((4, 2))], 2)


def free_addresses(count):
    with socket.create_server(("localhost", 0)) as one, socket.create_server(("localhost", 0)) as other:
        return [f"localhost:{server.getsockname()[1]}" for server in (one, other)][:count]


def test_an_address_in_use_is_refused():
    with socket.create_server(("localhost", 0)) as taken:
        address = f"localhost:{taken.getsockname()[1]}"
        with pytest.raises(CourseError, match=f"stage 0 can't listen at {address}"):
            Links(0, [address, address])


def test_a_lost_neighbour_ends_the_wait():
    addresses = free_addresses(2)

    def dies():
        with pytest.raises(ZeroDivisionError), Links(1, addresses) as links:
            links.before.send(0, np.ones((2, 3), np.float32))
            links.before.receive(0)
            raise ZeroDivisionError

    other = threading.Thread(target=dies)
    other.start()
    gone = pytest.raises(CourseError, match="stage 1 is gone, and micro-batch 1 was still to come")
    with gone, Links(0, addresses) as links:
        np.testing.assert_array_equal(links.after.receive(0), np.ones((2, 3)))
        links.after.send(0, np.zeros(5, np.float32))
        links.after.receive(1)
    other.join()

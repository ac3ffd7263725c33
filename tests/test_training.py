"""Replicas against one device: ten optimizer steps on real digits, float32, 1e-5 relative.

The tolerance: float32 sums reordered over four replicas differ in the last of
seven digits, and ten steps carry that on. Gradients are large, because training
starts from random weights.
"""

import contextlib
import math
import subprocess
import sys
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from course_lib import data, devices, models, precision, training
from course_lib.compare import Run, assert_equal, compare
from course_lib.errors import CourseError

FLOAT32 = {"relative": 1e-5, "reason": "float32 sums in another order"}
GLOBAL_BATCH = 64
EVEN, UNEVEN = 10 * GLOBAL_BATCH, 9 * GLOBAL_BATCH + 21  # 21 rows on 4 replicas: 6, 6, 6, 3
OPTIMIZERS = {"momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9), "adam": lambda: keras.optimizers.Adam(1e-3)}

per_example_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


class ExactModel(training.ExactPartialBatches, keras.Model):
    pass


@pytest.fixture(scope="module")
def strategy():
    return tf.distribute.MirroredStrategy(devices.simulate(4).names)


def digits(rows: int) -> tf.data.Dataset:
    images, labels = data.arrays("digits", "train")
    return tf.data.Dataset.from_tensor_slices((images[:rows], labels[:rows])).batch(GLOBAL_BATCH)


def new_model() -> keras.Model:
    return models.cnn((8, 8, 1), 10, seed=0)


def fit(strategy, dataset, optimizer, exact: bool) -> Run:
    with strategy.scope():
        model = new_model()
        model = ExactModel(model.inputs, model.outputs) if exact else model
        model.compile(optimizer(), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    history = model.fit(dataset, shuffle=False, verbose=0).history
    return Run.of(
        f"fit, {strategy.num_replicas_in_sync} replicas", model, history["loss"], {"accuracy": history["accuracy"][0]}
    )


def loop(strategy, dataset, optimizer) -> Run:
    """The custom loop: the reference under the default strategy, replicas under another."""
    alone = strategy.num_replicas_in_sync == 1
    with strategy.scope():
        model, chosen, accuracy = new_model(), optimizer(), keras.metrics.SparseCategoricalAccuracy()
    if alone:
        step = training.single_device_step(model, chosen, per_example_loss, [accuracy])
        losses = [step(x, y) for x, y in dataset]
    else:
        step = training.replicated_step(strategy, model, chosen, per_example_loss, [accuracy])
        losses = [step(batch) for batch in strategy.experimental_distribute_dataset(dataset)]
    return Run.of(f"loop, {strategy.num_replicas_in_sync} replicas", model, losses, {"accuracy": accuracy.result()})


class ZeroUntilTrained(keras.layers.Layer):
    """Zeros outside training: the loss is then ln 10 whatever the weights."""

    def call(self, x, training=None):
        return x if training else 0 * x


@pytest.mark.parametrize("replicas", [1, 4])
def test_a_step_trains_in_training_mode(strategy, replicas):
    with strategy.scope() if replicas > 1 else contextlib.nullcontext():
        inner, optimizer = new_model(), keras.optimizers.SGD(0.1)
        model = keras.Model(inner.inputs, ZeroUntilTrained()(inner.outputs[0]))
    images, labels = data.arrays("digits", "train")
    if replicas == 1:
        loss = training.single_device_step(model, optimizer, per_example_loss)(images[:64], labels[:64])
    else:
        step = training.replicated_step(strategy, model, optimizer, per_example_loss)
        (batch,) = strategy.experimental_distribute_dataset(digits(64))
        loss = step(batch)
    assert abs(float(loss) - math.log(10)) > 1e-3


def test_on_two_replicas_the_mixin_refuses_what_is_no_mean_over_rows():
    two = tf.distribute.MirroredStrategy([device.name for device in tf.config.list_logical_devices("CPU")[:2]])
    with two.scope():
        inner = new_model()
        model = ExactModel(inner.inputs, inner.outputs)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
        model.compile(keras.optimizers.SGD(1e-3), loss)
    with pytest.raises(CourseError, match="ExactPartialBatches"):
        model.fit(digits(64), verbose=0)


def test_on_one_device_the_mixin_takes_any_loss_as_keras_does():
    runs = []
    for kind in (keras.Model, ExactModel):
        inner = new_model()
        model = kind(inner.inputs, inner.outputs)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
        model.compile(keras.optimizers.SGD(1e-3, clipnorm=1.0), loss)
        history = model.fit(digits(EVEN), shuffle=False, verbose=0).history
        runs.append(Run.of(kind.__name__, model, history["loss"]))
    assert_equal(*runs, **FLOAT32)


def test_the_logs_of_multi_worker_fit_have_the_axis_that_keras_reduces():
    """A scalar would be summed away: each log is (1,) on a replica, and holds what Keras' own step gives."""
    inner = new_model()
    stock = keras.Model(inner.inputs, inner.outputs)
    model = type("Model", (training.MultiWorkerFit, keras.Model), {})(inner.inputs, inner.outputs)
    (batch,) = digits(64)
    for one in (stock, model):
        one.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    wanted, found = stock.test_step(batch), model.test_step(batch)
    assert {name: value.shape.as_list() for name, value in found.items()} == {"loss": [1]}
    assert float(found["loss"][0]) == pytest.approx(float(wanted["loss"]))
    assert model.train_step(batch)["loss"].shape.as_list() == [1]


@pytest.mark.parametrize("how, replicas", [("step", 1), ("step", 4), ("fit", 1)])
def test_one_update_by_hand(strategy, how, replicas):
    """Seven rows times a kernel (2, 1) with L2 of 1/2; the loss is the outputs' mean, 9, and a penalty of 5/2.

    Its gradient is the rows' mean (4, 1) and the kernel.
    """
    x = [[1.0, 0.0], [2.0, 2.0], [3.0, 0.0], [4.0, 2.0], [5.0, 0.0], [6.0, 2.0], [7.0, 1.0]]
    y, outputs = [[0.0]] * 7, [2, 6, 6, 10, 10, 14, 15]
    strategy = strategy if replicas > 1 else tf.distribute.get_strategy()
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(7)
    with strategy.scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_regularizer=keras.regularizers.L2(0.5))
        inner = keras.Sequential([keras.Input((2,)), layer])
        model, squares = ExactModel(inner.inputs, inner.outputs), keras.metrics.MeanSquaredError(name="squares")
        optimizer = training.AgreeingLossScale(keras.optimizers.SGD(0.1), initial_scale=2.0**10)
        model.compile(optimizer, lambda labels, outputs: outputs, metrics=[squares])
    model.set_weights([np.array([[2.0], [1.0]])])
    if how == "fit":
        logs = model.fit(batches, shuffle=False, verbose=0).history
        (loss,), (mean_square,) = logs["loss"], logs["squares"]
    else:
        loss_of = lambda labels, outputs: outputs  # noqa: E731, (rows, 1): the mean over the second axis counts
        if replicas > 1:
            step = training.replicated_step(strategy, model, optimizer, loss_of, [squares])
            loss = step(next(iter(strategy.experimental_distribute_dataset(batches))))
        else:
            step = training.single_device_step(model, optimizer, loss_of, [squares])
            loss = step(tf.constant(x), tf.constant(y))
        mean_square = squares.result()
    assert (float(loss), float(mean_square)) == pytest.approx((9 + 2.5, sum(one**2 for one in outputs) / 7))
    np.testing.assert_allclose(model.get_weights()[0], [[2 - 0.1 * (4 + 2)], [1 - 0.1 * (1 + 1)]], rtol=1e-6)


def test_a_loss_scale_hands_on_what_is_left_out_of_weight_decay():
    listed, named, other = (keras.Variable([1.0], name=name) for name in ("listed", "named", "other"))
    scale = training.AgreeingLossScale(keras.optimizers.AdamW(weight_decay=0.1))
    scale.exclude_from_weight_decay([listed], ["named"])
    assert [scale.inner_optimizer._use_weight_decay(one) for one in (listed, named, other)] == [False, False, True]


def test_an_agreeing_loss_scale_takes_kerass_settings_and_tells_what_is_finite():
    by_place = training.AgreeingLossScale(keras.optimizers.SGD(), 2.0**10, 7)
    by_name = training.AgreeingLossScale(keras.optimizers.SGD(), initial_scale=2.0**10, dynamic_growth_steps=7)
    for scale in (by_place, by_name):
        assert (scale.initial_scale, scale.dynamic_growth_steps) == (1024, 7)
        assert isinstance(scale.inner_optimizer, keras.optimizers.SGD)
        found = [bool(scale.check_finite([tf.constant([1.0, last])])) for last in (2.0, math.nan, math.inf)]
        assert found == [True, False, False]


def test_a_resume_point_keeps_two_checkpoints_and_reads_the_chiefs(tmp_path):
    model, optimizer = new_model(), keras.optimizers.SGD(0.1, momentum=0.9)
    with pytest.raises(CourseError, match="the optimizer has no variables yet"):
        training.ResumePoint(tmp_path, model, optimizer)
    optimizer.build(model.trainable_variables)
    chief = training.ResumePoint(tmp_path, model, optimizer)
    others = [training.ResumePoint(str(tmp_path), model, optimizer, is_chief=False) for _ in range(2)]
    assert chief.restore() == 0, "there is none yet"
    for steps in (1, 2, 3):
        optimizer.iterations.assign(steps)
        chief.save()
    saved = model.get_weights()
    assert {path.name for path in (tmp_path / "checkpoint").glob("*.index")} == {"ckpt-2.index", "ckpt-3.index"}
    optimizer.iterations.assign(9)
    model.set_weights([0 * weight for weight in saved])
    for other in others:
        other.save()
    assert len(list((tmp_path / "not-the-chiefs").iterdir())) == 2, "each writes beside the chief's"
    assert others[0].restore() == 3 and int(optimizer.iterations) == 3
    assert all((one == other).all() for one, other in zip(saved, model.get_weights()))


@pytest.mark.parametrize("rows", [EVEN, UNEVEN])
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_custom_loop_equals_one_device(strategy, optimizer, rows):
    assert_equal(
        loop(tf.distribute.get_strategy(), digits(rows), optimizer), loop(strategy, digits(rows), optimizer), **FLOAT32
    )


@pytest.mark.parametrize("rows", [EVEN, UNEVEN])
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_fit_with_exact_partial_batches_equals_one_device(strategy, optimizer, rows):
    one = fit(tf.distribute.get_strategy(), digits(rows), optimizer, exact=False)
    assert_equal(one, fit(strategy, digits(rows), optimizer, exact=True), **FLOAT32)


def test_a_loop_scales_the_loss_that_its_optimizer_unscales(strategy):
    """A power of two changes no digit, so the plain optimizer's run must come out."""

    def scaled():
        return training.AgreeingLossScale(keras.optimizers.SGD(0.05, momentum=0.9))

    for here in (tf.distribute.get_strategy(), strategy):
        assert_equal(loop(here, digits(EVEN), OPTIMIZERS["momentum"]), loop(here, digits(EVEN), scaled), **FLOAT32)


def test_a_float16_loop_without_a_loss_scale_is_warned(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, dtype="mixed_float16")])
        plain, scaled = keras.optimizers.SGD(0.1), training.AgreeingLossScale(keras.optimizers.SGD(0.1))
    for make in (training.single_device_step, lambda *rest: training.replicated_step(strategy, *rest)):
        with pytest.warns(precision.UnscaledFloat16, match="lesson 09"):
            make(model, plain, per_example_loss)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            make(model, scaled, per_example_loss)


def test_the_mixin_changes_nothing_on_one_device():
    one = tf.distribute.get_strategy()
    plain, exact = (fit(one, digits(UNEVEN), OPTIMIZERS["adam"], exact=exact) for exact in (False, True))
    assert_equal(plain, exact, **FLOAT32)


def test_the_mixin_honours_sample_weights_and_regularisers(strategy):
    def weighted_run(strategy, exact):
        with strategy.scope():
            inputs = keras.Input((8, 8, 1))
            outputs = keras.layers.Dense(10, kernel_regularizer="l2")(keras.layers.Flatten()(inputs))
            keras.utils.set_random_seed(1)
            model = (ExactModel if exact else keras.Model)(inputs, outputs)
            model.set_weights([0.1 * tf.ones_like(w) for w in model.get_weights()])
            model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        dataset = digits(UNEVEN).map(lambda x, y: (x, y, tf.cast(y, tf.float32) / 5))
        return Run.of("weighted", model, model.fit(dataset, shuffle=False, verbose=0).history["loss"])

    assert_equal(weighted_run(tf.distribute.get_strategy(), False), weighted_run(strategy, True), **FLOAT32)


def test_an_agreeing_loss_scale_is_saved_and_loaded(tmp_path):
    model = new_model()
    model.compile(training.AgreeingLossScale(keras.optimizers.SGD(0.1)), "sparse_categorical_crossentropy")
    model.fit(digits(GLOBAL_BATCH), verbose=0)
    model.save(tmp_path / "scaled.keras")
    loaded = keras.models.load_model(tmp_path / "scaled.keras")
    assert type(loaded.optimizer) is training.AgreeingLossScale
    assert int(loaded.optimizer.iterations) == 1


def test_train_on_batch_takes_one_step_where_an_execution_has_several(strategy):
    def trained(kind, here):
        with here.scope():
            network = new_model()
            model = kind(network.inputs, network.outputs)
            several = {"steps_per_execution": 4} if kind is Several else {}
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.SGD(0.1), loss, **several)
        losses = [model.train_on_batch(x, y) for x, y in digits(2 * GLOBAL_BATCH).as_numpy_iterator()]
        return Run.of("train_on_batch", model, losses)

    class Several(training.SeveralSteps, keras.Model):
        pass

    assert_equal(trained(keras.Model, tf.distribute.get_strategy()), trained(Several, strategy), **FLOAT32)


def test_fit_takes_several_steps_an_execution_and_trains_on_every_batch(strategy):
    """Three batches and two, two an execution: Keras' own fit on one device ends at the same weights."""

    class Several(training.SeveralSteps, keras.Model):
        pass

    def fitted(kind, here, **several):
        ends = []
        with here.scope():
            network = new_model()
            model = kind(network.inputs, network.outputs)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.SGD(0.1), loss, **several)
        ended = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: ends.append(batch))
        model.fit(digits(3 * GLOBAL_BATCH), shuffle=False, verbose=0, callbacks=[ended])
        made = model.train_function
        model.fit(digits(2 * GLOBAL_BATCH), shuffle=False, verbose=0, callbacks=[ended])
        assert model.train_function is made  # a second fit traces nothing again
        return Run.of("fit", model), ends, int(model.optimizer.iterations.numpy())

    alone, _, steps = fitted(keras.Model, tf.distribute.get_strategy())
    several, ends, taken = fitted(Several, strategy, steps_per_execution=2)
    assert (len(ends), taken) == (3, steps) == (3, 5)
    assert_equal(alone, several, **FLOAT32)


def test_what_a_step_refuses_where_an_execution_has_several_is_one_line(strategy):
    """AutoGraph, which traces the loop of steps, puts the traced lines before it."""

    calls = []

    def refuse(y, outputs):
        calls.append(y)
        if len(calls) > 1:  # Keras calls it once before it traces a step
            raise CourseError("this loss wants none of it")
        return tf.reduce_mean(outputs, axis=-1)

    class Several(training.SeveralSteps, keras.Model):
        pass

    with strategy.scope():
        network = new_model()
        model = Several(network.inputs, network.outputs)
        model.compile(keras.optimizers.SGD(0.1), refuse, steps_per_execution=4)
    with pytest.raises(CourseError) as refused:
        model.fit(digits(4 * GLOBAL_BATCH), verbose=0)
    assert str(refused.value) == "this loss wants none of it"


def test_a_loss_that_is_one_number_already_is_refused(strategy):
    mean = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with strategy.scope():
        model, optimizer = new_model(), keras.optimizers.SGD(0.1)
    step = training.replicated_step(strategy, model, optimizer, mean)
    before = model.get_weights()
    with pytest.raises(CourseError, match='one number for the whole batch.*reduction="none"') as refused:
        step(next(iter(strategy.experimental_distribute_dataset(digits(GLOBAL_BATCH)))))
    assert "\n" not in str(refused.value)
    assert all((one == other).all() for one, other in zip(before, model.get_weights()))


@pytest.mark.parametrize("outside", ["functional", "sgd", "accuracy"])
def test_what_is_made_outside_the_scope_is_refused_by_its_name(strategy, outside):
    made = {}
    for name, make in {
        "functional": new_model,
        "sgd": lambda: keras.optimizers.SGD(0.1, name="sgd"),
        "accuracy": lambda: keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
    }.items():
        with (tf.distribute.get_strategy() if name == outside else strategy).scope():
            made[name] = make()
    model, optimizer, metric = made.values()
    with pytest.raises(CourseError, match=f"^{made[outside].name} was made outside strategy.scope()"):
        training.replicated_step(strategy, model, optimizer, per_example_loss, [metric])


def test_a_loss_scale_around_another_is_refused():
    with pytest.raises(CourseError, match="AgreeingLossScale is around another loss scale"):
        training.AgreeingLossScale(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))


def test_keras_still_needs_the_mixin(strategy):
    """When this fails, Keras weights uneven shards correctly: remove `ExactPartialBatches` (see keras pull 20609)."""
    one = fit(tf.distribute.get_strategy(), digits(UNEVEN), OPTIMIZERS["momentum"], exact=False)
    four = fit(strategy, digits(UNEVEN), OPTIMIZERS["momentum"], exact=False)
    assert not compare(one, four, **FLOAT32).equal


def test_keras_still_needs_the_optimizer_built_first(strategy):
    """When this fails, keras issue 23085 is fixed: drop `optimizer.build` from `replicated_step`."""
    with strategy.scope():
        model, optimizer = new_model(), keras.optimizers.SGD(0.05, momentum=0.9)

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(per_example_loss(y, model(x))) / GLOBAL_BATCH
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

    batch = next(iter(strategy.experimental_distribute_dataset(digits(GLOBAL_BATCH))))
    with pytest.raises(tf.errors.InvalidArgumentError, match="placeholder"):
        tf.function(lambda batch: strategy.run(replica_step, args=batch))(batch)


def test_tensorflow_still_confuses_two_strategies():
    """When this fails, lesson 02 need not say "make one strategy", and probes/ex02.py may use collectives."""
    code = """
from course_lib import devices
names = devices.simulate(4).names
import tensorflow as tf

def reduce(strategy, numbers):
    sum_up = lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.ones(numbers))
    tf.function(lambda: strategy.run(sum_up))()

reduce(tf.distribute.MirroredStrategy(names), 3)
try:
    reduce(tf.distribute.MirroredStrategy(names), 5)
except tf.errors.OpError as error:
    print("Shape mismatch in the collective instance" in str(error))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip().endswith("True"), done.stdout + done.stderr

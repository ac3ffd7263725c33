"""Accumulated micro-batches against the big batch on one device: ten updates on real digits, float32, 1e-5 relative.

The tolerance: float32 sums over 64 rows come in another order when they are made of
16 and 16; ten updates carry that on. Keras on JAX is in test_jax_only.py.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from course_lib import accumulate, cluster, data, devices, models, tcp_bytes, training
from course_lib.compare import Run, assert_equal, compare
from course_lib.errors import CourseError

FLOAT32 = {"relative": 1e-5, "reason": "float32 sums in another order"}
GROUP, MICRO_BATCH, K = 64, 16, 4
ROWS = 9 * GROUP + MICRO_BATCH + 7  # the last group has one whole micro-batch, and 7 rows: 4 and 3 on two replicas
OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(1e-3),
    "clipped adamw": lambda: keras.optimizers.AdamW(1e-3, weight_decay=0.05, global_clipnorm=0.5),
    "scheduled": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.PiecewiseConstantDecay([3, 6], [0.1, 0.05, 0.01])
    ),
    "averaged": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1, clipnorm=0.1), initial_scale=2.0**10
    ),
}
cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
alone = tf.distribute.get_strategy()


class Model(accumulate.ExactGroups, keras.Model):
    pass


def test_a_models_own_loss_gets_what_keras_gives_it():
    class Penalised(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            seen.append((x.shape[1:], y.shape[1:], y_pred.shape[1:], sample_weight.shape[1:], training))
            return super().compute_loss(x, y, y_pred, sample_weight, training=training)

    class Exact(accumulate.ExactGroups, Penalised):
        pass

    seen, network = [], models.mlp((8, 8, 1), classes=10)
    images, labels = data.arrays("digits", "train")
    for kind in (Penalised, Exact):
        model = kind(network.inputs, network.outputs)
        model.compile(accumulate.Accumulating(keras.optimizers.SGD(0.1), 2), cross_entropy)
        model.fit(images[:32], labels[:32], 16, sample_weight=np.ones(32), verbose=0)
    assert seen[0] == seen[-1] == ((8, 8, 1), (), (10,), (), True)


@pytest.fixture(scope="module")
def two():
    return tf.distribute.MirroredStrategy(devices.simulate(4).names[:2])


def batches(size: int, rows: int = ROWS) -> tf.data.Dataset:
    images, labels = data.arrays("digits", "train")
    return tf.data.Dataset.from_tensor_slices((images[:rows], labels[:rows])).batch(size)


@functools.cache
def big_batch(optimizer, rows: int = ROWS) -> Run:
    model = models.mlp((8, 8, 1), classes=10)
    model.compile(optimizer(), cross_entropy)
    return Run.of("big batch", model, model.fit(batches(GROUP, rows), shuffle=False, verbose=0).history["loss"])


def new_model(strategy, optimizer, kind=Model) -> keras.Model:
    with strategy.scope():
        network = models.mlp((8, 8, 1), classes=10)
        model = kind(network.inputs, network.outputs)
        model.compile(accumulate.Accumulating(optimizer(), K), cross_entropy)
        model.optimizer.build(model.trainable_variables)
    return model


def loop_step(strategy, model):
    """One micro-batch of a custom loop, and what ends an epoch."""
    optimizer = model.optimizer

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(cross_entropy(y, model(x, training=True)))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), rows=tf.shape(y)[0])

    step = tf.function(lambda batch: strategy.run(replica_step, args=batch), reduce_retracing=True)
    return step, tf.function(lambda: strategy.run(optimizer.apply_rest))


def refused(call) -> str:
    with pytest.raises(CourseError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_group_by_hand():
    """Three micro-batches of equal weight; then a group that is not full, of one row and three."""
    variable, optimizer = keras.Variable([1.0, 2.0]), accumulate.Accumulating(keras.optimizers.SGD(1.0), 3)
    optimizer.apply_rest()  # has no sums yet
    optimizer.build([variable])
    optimizer.apply_rest()
    for gradient, after in (([3.0, 6.0], [1, 2]), ([0.0, 3.0], [1, 2]), ([6.0, 0.0], [1 - 3, 2 - 3])):
        optimizer.apply([tf.constant(gradient)])
        np.testing.assert_allclose(variable, after, rtol=1e-6)
    for rows, gradient in ((1, [4.0, 0.0]), (3, [0.0, 4.0])):
        optimizer.apply([tf.constant(gradient)], rows=rows)
    for _ in range(2):  # the second time there is no rest
        optimizer.apply_rest()
        np.testing.assert_allclose(variable, [-2 - 1, -1 - 3], rtol=1e-6)
        assert int(optimizer.iterations) == 2


def test_an_inner_optimizer_of_ones_own_is_read_back_by_its_name():
    class Own(keras.optimizers.SGD):
        pass

    kept = accumulate.Accumulating(Own(0.1), 2).get_config()
    again = accumulate.Accumulating.from_config(kept, custom_objects={"Own": Own})
    assert type(again.inner_optimizer) is Own and again.micro_batches == 2


def test_settings_are_the_inner_optimizers():
    inner = keras.optimizers.LossScaleOptimizer(keras.optimizers.AdamW(0.5, weight_decay=0.1))
    optimizer = accumulate.Accumulating(inner, 2, name="mine")
    assert float(optimizer.learning_rate) == 0.5
    optimizer.learning_rate = 0.25
    again = accumulate.Accumulating.from_config(optimizer.get_config())
    assert (again.name, again.micro_batches, float(again.inner_optimizer.learning_rate)) == ("mine", 2, 0.25)
    listed, named, other = (keras.Variable([1.0], name=name) for name in ("listed", "named", "other"))
    optimizer.exclude_from_weight_decay([listed], ["named"])
    decays = inner.inner_optimizer._use_weight_decay
    assert [decays(one) for one in (listed, named, other)] == [False, False, True]


@pytest.mark.parametrize("dtype, wanted", [("float16", "float32"), ("bfloat16", "float32"), ("float64", "float64")])
def test_a_sum_is_as_precise_as_its_variable_or_float32(dtype, wanted):
    optimizer = accumulate.Accumulating("sgd", 2)
    optimizer.build([keras.Variable([1.0, 2.0], dtype=dtype)])
    (total,) = optimizer.sums
    assert (total.dtype, total.shape, total.numpy().tolist()) == (wanted, (2,), [0, 0])


@pytest.mark.parametrize("sizes, wanted", [((4, 1), 4), ((4, 4), 1), ((12, 3, 2), 2), ((1, 1, 1), 1)])
def test_the_size_of_a_micro_batch(sizes, wanted):
    assert accumulate.micro_batch_size(*sizes) == wanted


def test_set_weights_takes_the_inner_optimizers_too():
    def trained(steps):
        optimizer, variable = accumulate.Accumulating(keras.optimizers.Adam(0.1), 2), keras.Variable([1.0, 2.0])
        optimizer.build([variable])
        for _ in range(steps):
            optimizer.apply([tf.constant([0.5, -1.0])])
        return optimizer

    one, other = trained(5), trained(0)
    other.set_weights(one.variables)
    assert int(other.iterations) == 2 and int(other.added) == 1
    for here, there in zip(one.variables, other.variables):
        np.testing.assert_array_equal(here.numpy(), there.numpy())
    with pytest.raises(ValueError, match="shorter"):
        other.set_weights(one.variables[:-1])


def test_a_tf_variable_is_taken_as_kerass_own_optimizers_take_it():
    plain, accumulating = keras.optimizers.SGD(0.1), accumulate.Accumulating(keras.optimizers.SGD(0.1), 1)
    ends = []
    for optimizer in (plain, accumulating):
        variables = [tf.Variable([1.0, 2.0], name="theirs"), keras.Variable([3.0])]
        optimizer.build(variables)
        optimizer.apply([tf.constant([0.5, -1.0]), tf.constant([2.0])], variables)
        ends.append(np.concatenate([np.ravel(variable.numpy()) for variable in variables]))
    np.testing.assert_allclose(*ends, rtol=1e-6)


def test_stateless_apply_is_refused_on_tensorflow_as_keras_refuses_it():
    optimizer = accumulate.Accumulating(keras.optimizers.SGD(0.1), 2)
    optimizer.build([keras.Variable([1.0])])
    with pytest.raises(ValueError, match="not supported with the TensorFlow backend"):
        optimizer.stateless_apply([], [], [])


def test_gradients_may_come_in_any_order():
    draw = np.random.default_rng(0)

    def run(optimizer, direction):
        model = models.mlp((8, 8, 1), classes=10)
        optimizer.build(model.trainable_variables)
        gradients = [tf.constant(draw.normal(size=v.shape), "float32") for v in model.trainable_variables]
        optimizer.apply(gradients[::direction], model.trainable_variables[::direction])
        return gradients, model.get_weights(), models.mlp((8, 8, 1), classes=10).get_weights()

    gradients, after, before = run(accumulate.Accumulating(keras.optimizers.SGD(1.0), 1), -1)
    for gradient, new, old in zip(gradients, after, before):
        np.testing.assert_allclose(new, old - gradient, rtol=1e-6)


def test_two_outputs_in_fit():
    def run(size, optimizer, kind):
        inputs = keras.Input((8, 8, 1))
        x = keras.layers.Flatten()(inputs)
        heads = [
            keras.layers.Dense(10, kernel_initializer=keras.initializers.GlorotUniform(seed=seed))(x) for seed in (1, 2)
        ]
        model = kind(inputs, heads)
        model.compile(optimizer, [cross_entropy, cross_entropy])
        model.fit(batches(size).map(lambda x, y: (x, (y, y))), shuffle=False, verbose=0)
        return Run.of(f"batches of {size}", model)

    sgd = OPTIMIZERS["momentum"]
    assert_equal(run(GROUP, sgd(), keras.Model), run(MICRO_BATCH, accumulate.Accumulating(sgd(), K), Model), **FLOAT32)


@pytest.mark.parametrize("policy", ["bfloat16", "float16"])
def test_weights_of_half_precision_are_summed_in_float32(policy):
    def run(size, optimizer):
        model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10, dtype=policy)])
        model.set_weights([np.zeros((64, 10)), np.zeros(10)])
        optimizer.build(model.trainable_variables)
        for x, y in batches(size, GROUP):
            with tf.GradientTape() as tape:
                loss = cross_entropy(y, model(x))
            optimizer.apply(tape.gradient(loss, model.trainable_variables))
        return Run(f"batches of {size}", {v.path: np.float32(v) for v in model.weights})

    adam = OPTIMIZERS["adam"]
    big, group = run(GROUP, adam()), run(MICRO_BATCH, accumulate.Accumulating(adam(), K))
    assert_equal(big, group, relative=2e-2, reason=f"each micro-batch's gradient is rounded to {policy}")


def test_a_model_with_exact_groups_goes_on_from_its_file(tmp_path):
    optimizer, rows = OPTIMIZERS["adam"], 2 * GROUP
    model = new_model(alone, optimizer)
    model.fit(batches(MICRO_BATCH, GROUP), shuffle=False, verbose=0, callbacks=keras.callbacks.History())
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras", custom_objects={"Model": Model})
    again.fit(batches(MICRO_BATCH, rows).skip(K), shuffle=False, verbose=0)
    assert again.optimizer.iterations.numpy() == 2
    assert_equal(Run("big batch", big_batch(optimizer, rows).weights), Run.of("resumed", again), **FLOAT32)


def test_refusals(two):
    sgd = keras.optimizers.SGD
    for k in (0, 2.5, "4", None):
        assert f"1 or more, not {k!r}" in refused(lambda k=k: accumulate.Accumulating("sgd", k))
    assert "leave its gradient_accumulation_steps out" in refused(
        lambda: accumulate.Accumulating(keras.optimizers.LossScaleOptimizer(sgd(gradient_accumulation_steps=2)), 2)
    )
    assert "take a multiple of 12, such as 96." in refused(lambda: accumulate.micro_batch_size(100, 3, 4))
    assert "take a multiple of 12, such as 12." in refused(lambda: accumulate.micro_batch_size(1, 3, 4))
    two_variables = accumulate.Accumulating("sgd", 2)
    two_variables.build([keras.Variable([1.0]), keras.Variable([1.0])])
    assert "1 gradients for 2 variables: pass one" in refused(lambda: two_variables.apply([tf.constant([1.0])]))
    assert "are 1 or more, not 16, 0 and 1" in refused(lambda: accumulate.micro_batch_size(16, 0))
    assert accumulate.micro_batch_size(96, 3, 4) == 8
    with two.scope():
        model, unbuilt = models.mlp((8, 8, 1), classes=10), accumulate.Accumulating(sgd(), 2)

    def step():
        zeros = [tf.zeros(v.shape) for v in model.trainable_variables]
        two.run(lambda: unbuilt.apply(zeros, model.trainable_variables))

    assert "call optimizer.build(model.trainable_variables)" in refused(step)
    built = new_model(alone, sgd).optimizer
    assert "3 gradients for 4 variables (none for logits/bias)" in refused(lambda: built.apply([1.0, 1.0, 1.0, None]))
    float8 = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)])
    float8.quantize("float8")
    assert "accumulate in another precision" in refused(
        lambda: accumulate.Accumulating("sgd", 2).build(float8.trainable_variables)
    )
    plain = Model(model.inputs, model.outputs)
    plain.compile("sgd", cross_entropy)
    assert "ExactGroups is for accumulate.Accumulating" in refused(lambda: plain.fit(batches(GROUP), verbose=0))
    summed = Model(model.inputs, model.outputs)
    of_rows = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    summed.compile(accumulate.Accumulating("sgd", 2), of_rows)
    assert refused(lambda: summed.fit(batches(GROUP), verbose=0)).startswith("ExactGroups weights every row alike")
    padded = keras.Input((3,))
    masked = Model(padded, keras.layers.Embedding(5, 2, mask_zero=True)(padded))
    masked.compile(accumulate.Accumulating("sgd", 2), "mse")
    refusal = refused(lambda: masked.fit(np.ones((4, 3)), np.ones((4, 3, 2)), verbose=0))
    assert "a mean over the tokens that its mask leaves" in refusal
    for scale in (keras.optimizers.LossScaleOptimizer, training.AgreeingLossScale):
        assert "put it inside" in refused(lambda scale=scale: scale(accumulate.Accumulating("sgd", 2)))
    half = keras.Model(model.inputs, model.outputs)
    half.dtype_policy = keras.DTypePolicy("mixed_float16")
    scaled = keras.optimizers.LossScaleOptimizer(sgd())
    assert "auto_scale_loss=False" in refused(lambda: half.compile(accumulate.Accumulating(scaled, 2), cross_entropy))
    half.compile(accumulate.Accumulating(scaled, 2), cross_entropy, auto_scale_loss=False)


class Counts(keras.callbacks.Callback):
    epochs = 0

    def on_epoch_end(self, epoch, logs=None):
        self.epochs += 1


@pytest.mark.parametrize("how", ["none", "one", "several", "by place"])
def test_fit_keeps_the_callbacks_that_it_is_given(how):
    model, own = new_model(alone, OPTIMIZERS["momentum"]), Counts()
    rows, given = batches(GROUP, 70), {"one": own, "several": [Counts(), own], "none": None}.get(how)
    if how == "by place":
        history = model.fit(rows, None, None, 2, 0, [own])
    else:
        history = model.fit(rows, epochs=2, verbose=0, callbacks=given)
    assert own.epochs == (0 if how == "none" else 2) and len(history.history["loss"]) == 2
    # 70 rows are two micro-batches here, and an epoch's end updates from them
    assert int(model.optimizer.iterations) == 2 and int(model.optimizer.added.numpy()) == 0


def test_an_accumulating_optimizers_own_variables_are_named_and_not_trained():
    variable = keras.Variable([[1.0, 2.0]], name="kernel")
    optimizer = accumulate.Accumulating(keras.optimizers.SGD(0.5), 2, name="mine")
    optimizer.build([variable])
    own = {one.name: one for one in (*optimizer.sums, optimizer.examples, optimizer.added)}
    assert list(own) == ["kernel_sum", "examples", "micro_batches_added"]
    assert [tuple(one.shape) for one in own.values()] == [(1, 2), (), ()]
    assert [one.dtype for one in own.values()] == ["float32", "float32", "int32"]
    assert not any(one.trainable for one in own.values()) and all(
        any(one is kept for kept in optimizer.variables) for one in own.values()
    )
    assert (optimizer.name, optimizer.micro_batches, accumulate.Accumulating("sgd", 1).micro_batches) == ("mine", 2, 1)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_fit_equals_the_big_batch(two, optimizer, replicas):
    model = new_model(two if replicas == 2 else alone, optimizer)
    losses = model.fit(batches(MICRO_BATCH), shuffle=False, verbose=0).history["loss"]
    assert_equal(big_batch(optimizer), Run.of(f"{replicas} replicas", model, losses), **FLOAT32)
    assert model.optimizer.iterations.numpy() == 10


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("name", ["momentum", "adam", "clipped adamw"])
def test_a_loop_equals_the_big_batch(two, name, replicas):
    strategy = two if replicas == 2 else alone
    model = new_model(strategy, OPTIMIZERS[name])
    step, rest = loop_step(strategy, model)
    for batch in strategy.experimental_distribute_dataset(batches(MICRO_BATCH)):
        step(batch)
    rest()
    expected = big_batch(OPTIMIZERS[name])
    assert_equal(Run("big batch", expected.weights), Run.of(f"{replicas} replicas", model), **FLOAT32)


@pytest.mark.parametrize("replicas", [1, 2])
def test_stock_fit_needs_no_more_than_the_optimizer(two, replicas):
    """Where groups are full and micro-batches whole."""
    optimizer, rows = OPTIMIZERS["clipped adamw"], 10 * GROUP
    model = new_model(two if replicas == 2 else alone, optimizer, kind=keras.Model)
    losses = model.fit(batches(MICRO_BATCH, rows), shuffle=False, verbose=0).history["loss"]
    assert_equal(big_batch(optimizer, rows), Run.of(f"{replicas} replicas", model, losses), **FLOAT32)


def test_stock_fit_still_needs_exact_groups():
    """When this fails, Keras weights examples by itself: retire `ExactGroups`."""
    model = new_model(alone, OPTIMIZERS["momentum"], kind=keras.Model)
    model.fit(batches(MICRO_BATCH), shuffle=False, verbose=0)
    assert not compare(
        Run("big batch", big_batch(OPTIMIZERS["momentum"]).weights), Run.of("stock", model), **FLOAT32
    ).equal


def test_keras_still_accumulates_on_one_device_alone(two):
    """When this fails, keras issue 20582 is fixed: say so in lesson 08."""
    with two.scope():
        model = models.mlp((8, 8, 1), classes=10)
        model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=K), cross_entropy)
    with pytest.raises(Exception, match="merge_call"):
        model.fit(batches(MICRO_BATCH, GROUP), verbose=0)


def test_keras_still_clips_before_it_sums(two):
    """When this fails, Keras sums first, and `_sum_no_more` is no longer needed."""
    optimizer, rows = OPTIMIZERS["clipped adamw"], 10 * GROUP
    with two.scope():
        model = models.mlp((8, 8, 1), classes=10)
        model.compile(optimizer(), cross_entropy)
    model.fit(batches(GROUP, rows), shuffle=False, verbose=0)
    assert not compare(Run("one device", big_batch(optimizer, rows).weights), Run.of("stock", model), **FLOAT32).equal


def test_validation_sees_the_last_group(two):
    model = new_model(two, OPTIMIZERS["momentum"])
    validation = batches(64).take(1)
    seen = model.fit(batches(MICRO_BATCH), validation_data=validation, shuffle=False, verbose=0).history["val_loss"][0]
    assert model.evaluate(validation, verbose=0) == pytest.approx(seen, rel=1e-6)
    assert model.optimizer.iterations.numpy() == 10


@pytest.mark.parametrize("bad_replica", [0, 1])
def test_one_overflow_on_one_replica_skips_its_group_everywhere(two, bad_replica):
    model = new_model(two, OPTIMIZERS["loss scale"])
    optimizer, before = model.optimizer, model.get_weights()

    @tf.function
    def add(overflow):
        def replica_step():
            bad = overflow & (tf.distribute.get_replica_context().replica_id_in_sync_group == bad_replica)
            optimizer.apply([tf.where(bad, np.inf, 1024.0) * tf.ones(v.shape) for v in model.trainable_variables])

        two.run(replica_step)

    for overflow in (False, True, False, False):
        add(overflow)
    inner = optimizer.inner_optimizer
    for variable, value in zip(model.variables, before):
        for copy in two.experimental_local_results(variable.value):
            np.testing.assert_array_equal(copy, value)
    assert (float(inner.dynamic_scale.numpy()), int(optimizer.iterations.numpy())) == (2.0**9, 0)
    for _ in range(K):  # the sums have forgotten the infinity
        add(False)
    assert int(optimizer.iterations.numpy()) == 1 and all(np.isfinite(value).all() for value in model.get_weights())


def test_float16_learns_as_its_big_batch(two):
    """On TensorFlow's CPU float16 is slow, so a tiny model; each micro-batch rounds by itself: 2e-3."""

    def run(strategy, micro_batches):
        with strategy.scope():
            keras.utils.set_random_seed(3)
            inputs = keras.Input((8, 8, 1))
            hidden = keras.layers.Dense(4, "relu", dtype="mixed_float16")(keras.layers.Flatten()(inputs))
            model = Model(inputs, keras.layers.Dense(10, dtype="float32")(hidden))
            optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
            model.compile(accumulate.Accumulating(optimizer, micro_batches), cross_entropy)
        model.fit(batches(GROUP // micro_batches, 2 * GROUP), shuffle=False, verbose=0)
        return Run.of(f"{micro_batches} micro-batches", model)

    assert_equal(run(alone, 1), run(two, K), relative=2e-3, reason="float16 sums, rounded to 11 bits in another order")


@pytest.mark.parametrize("saved_on, restored_on", [(1, 2), (2, 1)])
def test_a_checkpoint_in_the_middle_of_a_group(two, tmp_path, saved_on, restored_on):
    """Six of ten micro-batches on some replicas, the rest on others."""
    optimizer, rows = OPTIMIZERS["adam"], 10 * MICRO_BATCH
    strategies = {1: alone, 2: two}
    for replicas, done, todo in ((saved_on, 0, 6), (restored_on, 6, 4)):
        strategy = strategies[replicas]
        model = new_model(strategy, optimizer)
        point = training.ResumePoint(tmp_path, model, model.optimizer)
        if done:
            assert point.restore() * K + model.optimizer.added.numpy() == done
        step, rest = loop_step(strategy, model)
        for batch in strategy.experimental_distribute_dataset(batches(MICRO_BATCH, rows).skip(done).take(todo)):
            step(batch)
        point.save()
    rest()
    assert_equal(Run("big batch", big_batch(optimizer, rows).weights), Run.of("resumed", model), **FLOAT32)


def test_a_keras_file_in_the_middle_of_a_group(tmp_path):
    optimizer, rows = OPTIMIZERS["adam"], 2 * GROUP
    model = new_model(alone, optimizer, kind=keras.Model)
    model.fit(batches(MICRO_BATCH, rows).take(6), shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    again.fit(batches(MICRO_BATCH, rows).skip(6), shuffle=False, verbose=0)
    assert_equal(Run("big batch", big_batch(optimizer, rows).weights), Run.of("resumed", again), **FLOAT32)


def test_an_embedding_accumulates():
    tokens = np.random.default_rng(0).integers(0, 32, (16, 9))

    def run(size, optimizer):
        model = models.transformer(32, 8, layers=1, width=16, heads=2)
        model.compile(optimizer, cross_entropy)
        model.fit(tokens[:, :-1], tokens[:, 1:], batch_size=size, shuffle=False, verbose=0)
        weights = Run.of(f"batches of {size}", model).weights
        # No loss depends on the key's bias, so its gradient is rounding alone.
        return Run(f"batches of {size}", {path: value for path, value in weights.items() if "key/bias" not in path})

    sgd = OPTIMIZERS["momentum"]
    assert_equal(run(16, sgd()), run(4, accumulate.Accumulating(sgd(), 4)), **FLOAT32)


def on_two_workers(task, micro_batch, k):
    """Every optimizer, by fit and by loop; then the bytes that a plain and an accumulating one send for one group."""

    class Model(training.MultiWorkerFit, accumulate.ExactGroups, keras.Model):
        pass

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    micro_batches = batches(micro_batch).with_options(options)

    def new_model(name, size=k):
        with strategy.scope():
            network = models.mlp((8, 8, 1), classes=10)
            model = Model(network.inputs, network.outputs)
            model.compile(accumulate.Accumulating(OPTIMIZERS[name](), size), cross_entropy)
            model.optimizer.build(model.trainable_variables)
        return model

    runs = {}
    for name in ("momentum", "adam", "clipped adamw"):
        model = new_model(name)
        model.fit(micro_batches, shuffle=False, verbose=0)
        runs[f"fit, {name}"] = Run.of(task.name, model)
        model = new_model(name)
        step, rest = loop_step(strategy, model)
        for batch in strategy.experimental_distribute_dataset(micro_batches):
            step(batch)
        rest()
        runs[f"loop, {name}"] = Run.of(task.name, model)

    def sent_bytes(size):
        model = new_model("momentum", size)
        step, _ = loop_step(strategy, model)
        batch = next(iter(strategy.experimental_distribute_dataset(micro_batches)))
        counts = []
        for _ in range(2):  # the first round makes the connections
            for _ in range(10 * k):
                step(batch)
            counts.append(sum(tcp_bytes.sent_bytes(task.addresses).values()))
        return counts[1] - counts[0]

    return runs, {size: sent_bytes(size) for size in (1, k)}


def test_two_workers_equal_the_big_batch_and_send_a_quarter():
    # The workers run this file, so that they share its models and steps.
    results = cluster.run(
        cluster.Job(f"{__file__}:on_two_workers", arguments={"micro_batch": MICRO_BATCH, "k": K}), show=None
    ).results
    for runs, sent in results.values():
        for name, run in runs.items():
            expected = big_batch(OPTIMIZERS[name.split(", ")[1]])
            assert_equal(Run("big batch", expected.weights), run, **FLOAT32)
        # The rest is what the workers say to each other about each step, however small it is.
        assert sent[K] / sent[1] == pytest.approx(1 / K, abs=0.05)

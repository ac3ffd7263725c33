"""What a training step counts and refuses, against NumPy and the whole lines of its refusals."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from course_lib import accumulate, step_rules, training
from course_lib.errors import CourseError

WHAT = "ThisClass"


def compiled(loss):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", loss)
    return model


def masked_model():
    return keras.Sequential([keras.Input((3,)), keras.layers.Embedding(5, 2, mask_zero=True)])


@pytest.mark.parametrize("x", [np.zeros((7, 3)), [np.zeros((7, 3)), np.zeros((2, 3))], {"a": None, "b": np.zeros(7)}])
def test_rows_are_those_of_the_first_array(x):
    assert int(step_rules.rows_of(x)) == 7


@pytest.mark.parametrize(
    "loss",
    ["mse", keras.losses.MeanSquaredError(), keras.losses.Huber(reduction="mean"), lambda y, out: (y - out) ** 2],
)
def test_a_mean_over_rows_is_taken(loss):
    step_rules.require_row_mean(compiled(loss), np.zeros((7, 1)), WHAT)


@pytest.mark.parametrize("reduction", ["sum", "mean_with_sample_weight", None])
def test_another_reduction_is_refused(reduction):
    loss = keras.losses.MeanSquaredError(reduction=reduction, name="squares")
    line = (
        f"ThisClass weights every row alike, and the loss squares has reduction={reduction!r}: "
        "take Keras' default, 'sum_over_batch_size', or leave ThisClass out."
    )
    model = compiled("mse")
    model.loss = ["mae", loss]  # of two outputs
    with pytest.raises(CourseError) as error:
        step_rules.require_row_mean(model, np.zeros((7, 1)), WHAT)
    assert str(error.value) == line


def test_a_mask_on_any_output_is_refused():
    masked = masked_model()(np.ones((4, 3)))
    assert step_rules.has_mask({"plain": np.zeros((4, 3)), "masked": masked})
    assert not step_rules.has_mask([np.zeros((4, 3)), tf.zeros((4, 3))])
    with pytest.raises(
        CourseError, match="^ThisClass weights every row alike, and this model's loss is a mean over th"
    ):
        step_rules.require_row_mean(compiled("mse"), masked, WHAT)
    with pytest.raises(
        CourseError, match="^this step weights every row alike, and .*: end the model with a layer that"
    ):
        step_rules.one_per_row(np.zeros(4), masked)


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 3, 2)])
def test_a_row_has_one_loss(shape):
    losses = np.random.default_rng(0).normal(size=shape).astype("float32")
    found = step_rules.one_per_row(tf.constant(losses), np.zeros(4))
    np.testing.assert_allclose(found, losses.reshape(4, -1).mean(1), atol=1e-6)


def test_one_loss_for_a_whole_batch_is_refused():
    with pytest.raises(CourseError) as error:
        step_rules.one_per_row(tf.constant(1.0), np.zeros(4))
    assert str(error.value) == (
        "per_example_loss gives one number for the whole batch, and a step weights each row by itself: "
        'use reduction="none".'
    )


def test_what_layers_add_is_summed():
    class Adds(keras.layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.cast(keras.ops.sum(x, axis=1), "float16"))  # a vector, in half precision
            return x

    dense = keras.layers.Dense(2, kernel_regularizer=keras.regularizers.L2(0.5))
    model = keras.Sequential([keras.Input((2,)), dense, Adds()])
    out = model(np.array([[1.0, 2.0], [3.0, 4.0]]), training=True)
    found = step_rules.losses_of_layers(model)
    assert found.dtype == "float32"
    np.testing.assert_allclose(found, 0.5 * np.square(dense.kernel).sum() + np.sum(out), rtol=1e-2)
    assert float(step_rules.losses_of_layers(compiled("mse"))) == 0


@pytest.mark.parametrize("clip", ["clipnorm", "global_clipnorm", "clipvalue"])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_clipping_before_the_sum_is_refused(clip, depth):
    optimizer = keras.optimizers.SGD(0.1, **{clip: 0.5})
    for _ in range(depth):
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    with pytest.raises(CourseError) as error:
        step_rules.require_sum_before_clipping(optimizer)
    assert str(error.value) == (
        f"SGD has {clip}=0.5 and would clip each replica's gradient before the sum: "
        "wrap it in accumulate.Accumulating(optimizer, 1), which sums first."
    )


def test_no_clipping_and_clipping_after_the_sum_are_taken():
    step_rules.require_sum_before_clipping(keras.optimizers.SGD(0.1))
    step_rules.require_sum_before_clipping(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)))
    step_rules.require_sum_before_clipping(accumulate.Accumulating(keras.optimizers.SGD(0.1, clipnorm=0.5), 1))


def test_a_model_without_weights_is_refused():
    model = keras.Sequential([keras.layers.Dense(1)], name="later")
    with pytest.raises(CourseError) as error:
        step_rules.require_built(model)
    assert str(error.value) == (
        "the model later is not built, so it has no weights to train: begin it with keras.Input, or "
        "call it on a batch once, under strategy.scope() where there is a strategy."
    )
    model(np.zeros((1, 2)))
    step_rules.require_built(model)


def test_what_is_made_outside_the_scope_is_refused_by_its_name():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        inside = keras.metrics.Mean(name="inside")
    outside = keras.metrics.Mean(name="outside")
    step_rules.require_in_scope(strategy, inside)
    with pytest.raises(CourseError) as error:
        step_rules.require_in_scope(strategy, inside, outside)
    assert str(error.value) == (
        "outside was made outside strategy.scope(), so its variables are on one device: "
        "make model, optimizer and metrics inside `with strategy.scope():`."
    )


class OwnStep(keras.Model):
    def train_step(self, data):
        return super().train_step(data)


def new_class(*bases, **methods):
    return type("Model", (*bases, *[keras.Model][: OwnStep not in bases]), methods)


MULTI, EXACT, GROUPS = training.MultiWorkerFit, training.ExactPartialBatches, accumulate.ExactGroups


@pytest.mark.parametrize("bases", [(EXACT, OwnStep), (GROUPS, OwnStep), (EXACT, GROUPS), (GROUPS, EXACT)])
@pytest.mark.parametrize("outside", [(), (MULTI,)])
def test_a_second_train_step_is_refused_because_one_would_hide_the_other(outside, bases):
    above, below = (base.__name__ for base in bases)
    with pytest.raises(CourseError) as error:
        new_class(*outside, *bases)
    assert str(error.value) == (
        f"Model has two train_steps, of {above} and of {below}, and one would hide the other: "
        "leave one out; MultiWorkerFit goes first."
    )


@pytest.mark.parametrize("mixin", [MULTI, EXACT, GROUPS])
def test_a_train_step_above_the_mixins_is_refused(mixin):
    with pytest.raises(CourseError, match=f"^Model has two train_steps, of Model and of {mixin.__name__}"):
        new_class(mixin, train_step=OwnStep.train_step)


def test_multi_worker_fit_goes_before_any_train_step():
    assert issubclass(new_class(MULTI, OwnStep), OwnStep)
    assert issubclass(new_class(MULTI, EXACT), EXACT)
    with pytest.raises(CourseError, match="of ExactPartialBatches and of MultiWorkerFit.* MultiWorkerFit goes first"):
        new_class(EXACT, MULTI)


class Tells(keras.layers.Layer):
    """Passes on what it is given, and tells whether that was in training."""

    def __init__(self, tell):
        super().__init__()
        self.tell = tell

    def call(self, x, training=None):
        self.tell(("training", training))
        return x


@pytest.mark.parametrize("mixin", [training.ExactPartialBatches, accumulate.ExactGroups])
def test_a_step_hands_on_to_a_models_own_methods_what_keras_step_hands_on(mixin):
    def handed_on(*bases):
        found = []

        class Own(*bases, keras.Model):
            def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
                found.append(("loss", x is rows, y is labels, sample_weight is weights, training))
                return super().compute_loss(x, y, y_pred, sample_weight, training)

            def compute_metrics(self, x, y, y_pred, sample_weight=None):
                found.append(("metrics", x is rows, y is labels, sample_weight is weights, y_pred.shape))
                return super().compute_metrics(x, y, y_pred, sample_weight)

        inputs = keras.Input((2,))
        dense = keras.layers.Dense(1, kernel_initializer="ones")
        model = Own(inputs, Tells(found.append)(dense(inputs)))
        optimizer = keras.optimizers.SGD(0.1)
        optimizer = accumulate.Accumulating(optimizer, 1) if accumulate.ExactGroups in bases else optimizer
        model.compile(optimizer, "mse", weighted_metrics=["mae"])
        optimizer.build(model.trainable_variables)
        found.clear()
        logs = model.train_step((rows, labels, weights))
        return found, {name: float(value) for name, value in logs.items()}, model.get_weights()

    rows, labels = tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant([[1.0], [2.0]])
    weights = tf.constant([1.0, 3.0])
    (wanted, wanted_logs, wanted_weights), (found, logs, found_weights) = handed_on(), handed_on(mixin)
    assert found == wanted and ("training", True) in found and len(found) == 3
    assert logs == pytest.approx(wanted_logs)
    np.testing.assert_allclose(found_weights[0], wanted_weights[0], rtol=1e-6)

"""What `fit` leaves at an epoch's end, accumulated exactly: a group that is not full, a micro-batch that is smaller.

Needs Keras, on TensorFlow or JAX; taught in notebooks/08.
"""

import inspect

import keras

from course_lib.accumulate.optimizer import Accumulating
from course_lib.errors import CourseError
from course_lib.step_rules import OneTrainStep, require_row_mean, rows_of


class ExactGroups(OneTrainStep):
    """Mix into a `keras.Model` so that `fit` with `Accumulating` weights every row alike, also at an epoch's end.

    Stock `fit` gives each micro-batch the same weight, however small, and carries a group
    that is not full into the next epoch. This class counts rows, and updates from a group
    that is not full before validation and at the end of each epoch.

        class Model(accumulate.ExactGroups, keras.Model): pass
        model.compile(accumulate.Accumulating(keras.optimizers.Adam(), 4), loss)

    Raises  CourseError for a class with another train_step; from `fit` for another optimizer, and for a loss that
            is not a mean over rows: another reduction, or outputs with a mask
    """

    def fit(self, *args, **kwargs):
        if not isinstance(self.optimizer, Accumulating):
            raise CourseError(
                f"ExactGroups is for accumulate.Accumulating, and this optimizer is {type(self.optimizer).__name__}."
            )
        call = inspect.signature(super().fit).bind(*args, **kwargs)
        callbacks = call.arguments.get("callbacks") or []
        callbacks = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
        call.arguments["callbacks"] = [ApplyRest(), *callbacks]
        return super().fit(*call.args, **call.kwargs)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if training:  # here, because on JAX a mask does not leave the function that is differentiated
            require_row_mean(self, y_pred, "ExactGroups")
        return super().compute_loss(x, y, y_pred, sample_weight, training=training)

    def train_step(self, *arguments):
        step = _jax_step if keras.backend.backend() == "jax" else _tensorflow_step
        return step(self, *arguments)


class ApplyRest(keras.callbacks.Callback):
    """Update from a group that is not full at the end of an epoch, before its validation; `ExactGroups` adds it."""

    def on_train_begin(self, logs=None):
        self._update = None

    def on_test_begin(self, logs=None):
        self._update = self._update or self._in_replicas(self.model.optimizer.apply_rest)
        self._update()

    def on_epoch_end(self, epoch, logs=None):
        self.on_test_begin()

    def _in_replicas(self, apply_rest):
        if keras.backend.backend() == "jax":
            return apply_rest
        import tensorflow as tf

        # Traced by hand: TensorFlow would count one trace per model as needless retracing, and warn.
        return tf.function(lambda: self.model.distribute_strategy.run(apply_rest)).get_concrete_function()


def _tensorflow_step(model, data):
    """Keras' own step, with the number of rows passed on."""
    import tensorflow as tf

    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    rows, replicas = rows_of(x), tf.distribute.get_strategy().num_replicas_in_sync
    with tf.GradientTape() as tape:
        predictions = model(x, training=True)
        loss = model.compute_loss(x, y, predictions, sample_weight, training=True)
        scaled = model.optimizer.scale_loss(loss)
    gradients = tape.gradient(scaled, model.trainable_variables)
    model.optimizer.apply(gradients, model.trainable_variables, rows=rows)
    model._loss_tracker.update_state(loss * replicas, sample_weight=rows)
    return model.compute_metrics(x, y, predictions, sample_weight)


def _jax_step(model, state, data):
    """Keras' own step, with the number of rows passed on."""
    import jax

    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    trainable, other, optimizer, metrics = state
    gradients_of = jax.value_and_grad(model.compute_loss_and_updates, has_aux=True)
    (_, (loss, predictions, other, metrics)), gradients = gradients_of(
        trainable, other, metrics, x, y, sample_weight, training=True, optimizer_variables=optimizer
    )
    rows = rows_of(x)
    trainable, optimizer = model.optimizer.stateless_apply(optimizer, gradients, trainable, rows=rows)
    logs, metrics = model._update_metrics_variables(metrics, loss, x, y, predictions, sample_weight)
    return logs, (trainable, other, optimizer, metrics)

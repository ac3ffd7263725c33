"""Training steps: one device as the reference, and replicas that must equal it.

Needs TensorFlow; taught in notebooks/02. A step minimises the mean loss over
the global batch, whatever number of replicas the batch is divided over.
"""

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf


def single_device_step(model, optimizer, per_example_loss, metrics: Sequence = ()) -> Callable:
    """The reference: one device, the whole batch.

    per_example_loss  (labels, logits) -> (batch,), e.g. a Keras loss with reduction="none"
    metrics           Keras metrics that take (labels, logits)
    Returns           step(x, y) -> the batch's mean loss, a scalar tensor
    """

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = tf.reduce_mean(per_example_loss(y, logits))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        for metric in metrics:
            metric.update_state(y, logits)
        return loss

    return step


def replicated_step(strategy, model, optimizer, per_example_loss, metrics: Sequence = ()) -> Callable:
    """The same mathematics on every replica of a strategy.

    Each replica divides the sum of its losses by the size of the global batch,
    so that summing the gradients over replicas gives the gradient of the global
    mean, also when a partial batch leaves the replicas unequal numbers of rows.
    Make model, optimizer and metrics under `strategy.scope()`.

    Returns  step((x, y)) -> the global batch's mean loss, a scalar tensor;
             x and y as a distributed dataset gives them
    """

    with strategy.scope():
        # Built inside the tf.function, it fails: "must feed a value for placeholder" (keras issue 23085).
        optimizer.build(model.trainable_variables)

    def replica_step(x, y):
        global_batch = sum_over_replicas(tf.shape(y)[0])
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = tf.reduce_sum(per_example_loss(y, logits)) / tf.cast(global_batch, tf.float32)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # sums them over the replicas
        for metric in metrics:
            metric.update_state(y, logits)
        return loss

    @tf.function
    def step(batch):
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    return step


class ExactPartialBatches:
    """Mix into a `keras.Model` so that `fit` under a strategy weighs every example alike.

    Keras 3 averages over each replica's rows and then over the replicas (keras
    pull 20609). When a partial batch divides unevenly, a row on a shorter shard counts more, and the
    weights drift from the single-device run while the shown loss is right. This
    step weighs each replica's loss by its share of the rows. Every replica needs
    at least one row: `data.input_pipeline(replicas=...)` refuses a batch that
    leaves one without. x and y are single tensors.

        class Model(training.ExactPartialBatches, keras.Model): pass
        model = Model(inputs, outputs)
    """

    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        rows = tf.shape(y)[0]
        share = tf.cast(rows * replicas, tf.float32) / tf.cast(sum_over_replicas(rows), tf.float32)
        with tf.GradientTape() as tape:
            predictions = self(x, training=True)
            loss = self.compute_loss(x, y, predictions, sample_weight, training=True)  # local mean / replicas
            scaled = self.optimizer.scale_loss(loss * share)
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        self.metrics[0].update_state(loss * replicas, sample_weight=rows)  # Keras' own loss tracker
        return self.compute_metrics(x, y, predictions, sample_weight)


def sum_over_replicas(value):
    """All-reduce a tensor, or a list of them, inside a replica's step; the value itself outside a strategy."""
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)

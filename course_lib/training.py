"""Training steps: one device as the reference, and replicas that must equal it.

Needs TensorFlow; taught in notebooks/02, 03 and 09. A step minimises the mean loss over
the global batch, whatever number of replicas the batch is divided over. The
classes fix what Keras 3 gets wrong under a strategy; course_lib/support_matrix says where.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import tensorflow as tf

from course_lib import precision
from course_lib.errors import CourseError
from course_lib.step_rules import (
    OneTrainStep,
    losses_of_layers,
    one_per_row,
    require_built,
    require_in_scope,
    require_row_mean,
    require_sum_before_clipping,
    rows_of,
)


def single_device_step(model, optimizer, per_example_loss, metrics: Sequence = ()) -> Callable:
    """The reference: one device, the whole batch.

    per_example_loss  (labels, logits) -> (batch,), e.g. a Keras loss with reduction="none"; of (batch, tokens), the
                      mean over tokens counts
    metrics           Keras metrics that take (labels, logits)
    Returns           step(x, y) -> the batch's mean loss with what layers add to it, a scalar tensor
    Warns             precision.UnscaledFloat16 for a float16 model and an optimizer without a loss scale
    Raises            CourseError for a model that is not built, and from the first step for a loss that is one
                      number, or outputs with a mask
    """
    require_built(model)
    precision.warn_unscaled(model, optimizer)

    @tf.function(autograph=False)
    def step(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = tf.reduce_mean(one_per_row(per_example_loss(y, logits), logits)) + losses_of_layers(model)
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
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
    What layers add (regularizers, `add_loss`) is weighted by rows too: a penalty on
    weights counts once, a mean over rows is the global batch's. A sum over rows, as
    Keras 3.13's activity regularizers are, is divided by the replicas, as in `fit`.
    Make model, optimizer and metrics under `strategy.scope()`.

    Returns  step((x, y)) -> the global batch's mean loss with what layers add to it, a scalar tensor;
             x and y as a distributed dataset gives them
    Warns    as `single_device_step`
    Raises   as `single_device_step`, and CourseError for what is made outside the scope or clips before the sum
    """
    require_built(model)
    require_in_scope(strategy, model, optimizer, *metrics)
    require_sum_before_clipping(optimizer)
    precision.warn_unscaled(model, optimizer)
    with strategy.scope():
        # Built inside the tf.function, it fails: "must feed a value for placeholder" (keras issue 23085).
        optimizer.build(model.trainable_variables)

    def replica_step(x, y):
        rows = rows_of(x)
        global_batch = tf.cast(sum_over_replicas(rows), tf.float32)
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            losses = one_per_row(per_example_loss(y, logits), logits)
            added = tf.cast(rows, tf.float32) * losses_of_layers(model)
            loss = (tf.reduce_sum(losses) + added) / global_batch
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # sums them over the replicas
        for metric in metrics:
            metric.update_state(y, logits)
        return loss

    @tf.function(autograph=False)
    def step(batch):
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    return step


class ExactPartialBatches(OneTrainStep):
    """Mix into a `keras.Model` so that `fit` under a strategy weights every example alike.

    Keras 3 averages over each replica's rows and then over the replicas (keras
    pull 20609). When a partial batch divides unevenly, a row on a shorter shard counts more, and the
    weights drift from the single-device run while the shown loss is right. This
    step weights each replica's loss by its share of the rows. Every replica needs
    at least one row: `data.input_pipeline(replicas=...)` refuses a batch that
    leaves one without. x and y are tensors, or lists or dicts of them.

        class Model(training.ExactPartialBatches, keras.Model): pass
        model = Model(inputs, outputs)

    Raises  CourseError for a class with another train_step; from `fit` on several replicas for a loss that is not
            a mean over rows (another reduction, or outputs with a mask), and for an optimizer that clips before the sum
    """

    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        rows = rows_of(x)
        share = tf.cast(rows * replicas, tf.float32) / tf.cast(sum_over_replicas(rows), tf.float32)
        with tf.GradientTape() as tape:
            predictions = self(x, training=True)
            if replicas > 1:
                require_row_mean(self, predictions, "ExactPartialBatches")
                require_sum_before_clipping(self.optimizer)
            loss = self.compute_loss(x, y, predictions, sample_weight, training=True)  # local mean / replicas
            scaled = self.optimizer.scale_loss(loss * share)
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        self._loss_tracker.update_state(loss * replicas, sample_weight=rows)
        return self.compute_metrics(x, y, predictions, sample_weight)


class MultiWorkerFit(OneTrainStep):
    """Mix into a `keras.Model` so that `fit` and `evaluate` run under MultiWorkerMirroredStrategy.

    Keras 3 stops there twice (keras issue 20585): it builds the metrics from a
    batch that is spread over the workers, and reduces logs that are scalars
    along an axis they lack. This builds from the local part, and gives the logs
    that axis. Make model and optimizer under `strategy.scope()`, and call
    `fit` outside it. Combine with `ExactPartialBatches` by naming this one first.

        class Model(training.MultiWorkerFit, keras.Model): pass
    """

    calls_next = True

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        strategy = self.distribute_strategy
        if iterator is not None:
            _, _, batches = next(iter(iterator))
            data_batch = keras.tree.map_structure(
                lambda part: strategy.experimental_local_results(part)[0], next(batches)
            )
        with strategy.scope():
            self._symbolic_build(data_batch=data_batch)

    def train_step(self, data):
        return {name: tf.expand_dims(value, 0) for name, value in super().train_step(data).items()}

    def test_step(self, data):
        return {name: tf.expand_dims(value, 0) for name, value in super().test_step(data).items()}


class SeveralSteps:
    """Mix into a `keras.Model` so that `fit` under a strategy takes `steps_per_execution`.

    Keras 3 puts the loop over the steps inside `strategy.run`, where it fails
    ("must feed a value for placeholder", keras issue 23085). Here the loop is
    outside, and each of its steps is a separate `strategy.run`. `train_on_batch` takes one.

        class Model(training.SeveralSteps, keras.Model): pass
    """

    def make_train_function(self, force=False):
        if self.train_function is not None and not force:
            return
        strategy = self.distribute_strategy

        @tf.autograph.experimental.do_not_convert  # as Keras' own step
        def one(batch):
            logs = strategy.run(self.train_step, args=(batch,))
            return {name: strategy.reduce("MEAN", value, axis=None) for name, value in logs.items()}

        one_traced = tf.function(one, reduce_retracing=True)

        @tf.function(reduce_retracing=True)
        def several(iterator):
            logs = one(next(iterator))
            for _ in tf.range(self.steps_per_execution - 1):
                batch = iterator.get_next_as_optional()
                if not batch.has_value():
                    break
                logs = one(batch.get_value())
            return logs

        def until_the_end(iterator):
            if not hasattr(iterator, "get_next_as_optional"):  # a generator, from train_on_batch
                return one_traced(next(iterator))
            try:
                return several(iterator)
            except tf.errors.OutOfRangeError:
                raise StopIteration from None
            except CourseError as error:  # AutoGraph, which the loop needs, puts the traced lines before it
                raise CourseError(str(error).rpartition("CourseError: ")[2].strip()) from None

        self.train_function = until_the_end


@keras.saving.register_keras_serializable(package="course_lib")
class AgreeingLossScale(keras.optimizers.LossScaleOptimizer):
    """A loss scale under a strategy: as soon as one replica's gradients overflow, all replicas skip the step.

    Keras 3 asks one replica, before the gradients are summed (keras pull 18691).
    An overflow on another one then poisons the weights, or the workers diverge and hang.
    It takes an optimizer without a loss scale: two would divide the gradients twice.
    """

    def __init__(self, inner_optimizer, *args, **kwargs):
        if isinstance(inner_optimizer, keras.optimizers.LossScaleOptimizer):
            raise CourseError("AgreeingLossScale is around another loss scale: give it that one's inner_optimizer.")
        super().__init__(inner_optimizer, *args, **kwargs)

    def check_finite(self, grads):
        bad = tf.cast(tf.logical_not(super().check_finite(grads)), tf.float32)
        return tf.equal(sum_over_replicas(bad), 0.0)

    def exclude_from_weight_decay(self, var_list=None, var_names=None):  # Keras' own has no effect on the inner one
        self.inner_optimizer.exclude_from_weight_decay(var_list, var_names)


class ResumePoint:
    """Checkpoints of a model and its optimizer in a folder that all workers see, each whole or absent.

    Every worker takes part in a save, because reading a variable that workers hold in parts is a collective.
    The chief's files count. TensorFlow writes a new checkpoint beside the old one and then renames one small
    file, so that a worker killed at any moment leaves the old one or the new one.

    Raises  CourseError when the optimizer is not built; from `restore`, on all workers, when they find other
            steps; from `save`, when a parameter server does not see the folder
    """

    def __init__(self, folder: Path, model, optimizer, is_chief: bool = True):
        if not optimizer.built:
            raise CourseError(
                "the optimizer has no variables yet, so its state would not be restored: "
                "call optimizer.build(model.trainable_variables) under strategy.scope() first."
            )
        self._chiefs = Path(folder) / "checkpoint"
        self._optimizer, self._strategy = optimizer, model.distribute_strategy
        own = self._chiefs if is_chief else Path(folder) / "not-the-chiefs" / str(id(self))
        cut = any(hasattr(variable.value, "variables") for variable in model.variables)  # over servers
        kept = [variable.value for variable in model.variables] if cut else model
        self._manager = tf.train.CheckpointManager(
            tf.train.Checkpoint(model=kept, optimizer=optimizer), str(own), max_to_keep=2
        )

    def save(self) -> None:
        """Write a checkpoint; call it on every worker after the same step."""
        try:
            self._manager.save()
        except (tf.errors.NotFoundError, tf.errors.InvalidArgumentError):  # each server writes its own part
            if not isinstance(self._strategy, tf.distribute.ParameterServerStrategy):
                raise
            raise CourseError(
                f"a server's part of the checkpoint is not in {self._chiefs.parent}: give the coordinator and all "
                "servers one folder, on a disk that each of them sees."
            ) from None

    def restore(self) -> int:
        """Restore the chief's newest checkpoint, if there is one; return the number of steps taken up to it.

        Call it on every worker: they compare their steps.
        """
        if newest := tf.train.latest_checkpoint(str(self._chiefs)):
            self._manager.checkpoint.restore(newest).assert_existing_objects_matched()
        steps = int(self._optimizer.iterations.numpy())
        found = self._steps_of_all(steps)
        if len(set(found)) > 1:
            raise CourseError(
                f"the workers found different steps to go on from, {', '.join(map(str, found))}: they do not share "
                f"{self._chiefs.parent}; give all workers one folder, on a disk that each of them sees."
            )
        return steps

    def _steps_of_all(self, steps: int) -> list[int]:
        """The step of each replica, gathered where workers may differ."""
        if not isinstance(self._strategy, tf.distribute.MultiWorkerMirroredStrategy):
            return [steps]
        own = self._strategy.run(lambda: tf.constant([steps]))
        return self._strategy.gather(own, axis=0).numpy().tolist()


def sum_over_replicas(value):
    """All-reduce a tensor, or a list of them, inside a replica's step; the value itself outside a strategy."""
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)

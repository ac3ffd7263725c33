"""How often each replica computes gradients in a learner's training, whoever applies them. Needs TensorFlow."""

import contextlib
from collections.abc import Callable, Iterator
from unittest import mock


class _Counters:
    """Of one replica, in variables that any graph on its device can write to."""

    def __init__(self, device: str):
        import tensorflow as tf

        with tf.device(device):
            self.other_than_zero, self.changes = (tf.Variable(0, trainable=False, dtype=tf.int64) for _ in range(2))
            self.last = tf.Variable(0.0, trainable=False)

    def note(self, weight, gradient) -> None:
        import tensorflow as tf

        numbers = getattr(gradient, "values", gradient)  # of rows alone, for an embedding
        self.other_than_zero.assign_add(tf.cast(tf.reduce_any(numbers != 0), tf.int64))
        now = tf.reduce_sum(tf.cast(tf.convert_to_tensor(weight), tf.float32))
        self.changes.assign_add(tf.cast(now != self.last, tf.int64))
        self.last.assign(now)


@contextlib.contextmanager
def watched_gradients(strategy) -> Iterator[Callable[[], dict[str, object]]]:
    """Watch every `tape.gradient` with respect to variables that the block calls on the strategy's replicas.

    Gives  a function that returns "other_than_zero", how many of them each replica computed, by the last variable's
           gradient; and "changes", how often the first variable had other numbers than the time before
    """
    import tensorflow as tf

    counters, gradient = [_Counters(device) for device in strategy.extended.worker_devices], tf.GradientTape.gradient

    def watching(tape, target, sources, *args, **kwargs):
        found, context = gradient(tape, target, sources, *args, **kwargs), tf.distribute.get_replica_context()
        pairs = zip(tf.nest.flatten(sources), tf.nest.flatten(found))
        of_variables = [pair for pair in pairs if hasattr(pair[0], "assign") and pair[1] is not None]
        if of_variables and context is not None and context.strategy is strategy:
            replica = counters[tf.get_static_value(context.replica_id_in_sync_group)]
            replica.note(of_variables[0][0], of_variables[-1][1])
        return found

    with mock.patch.object(tf.GradientTape, "gradient", watching):
        yield lambda: {
            "other_than_zero": [int(one.other_than_zero) for one in counters],
            "changes": max(int(one.changes) for one in counters),
        }

"""Which rows a run's models are called with in training, on each replica: of exercise 02 q6.

Needs NumPy and TensorFlow. A row is known by a hash of its float32 numbers, whatever its shape; integers wrap alike in
NumPy, in TensorFlow and in XLA, so that a row that reaches a model unchanged has the hash that it had in x_train.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from unittest import mock

import numpy as np

PLACES = 2**18  # for hashes; two rows may share one
LOGGED = 4096  # calls on each replica, the first ones
MOST_MODELS = 8  # that are watched
FACTORS = 0x9E3779B97F4A7C15 - 2**64, 0x3F58476D1CE4E5B9, 0x14D049BB133111EB


def hashes(x: np.ndarray) -> np.ndarray:
    """An int64 for each row."""
    parts = [_hashes(x[start : start + 1024]) for start in range(0, len(x), 1024)]
    return np.concatenate(parts) if parts else np.zeros(0, "int64")


def _hashes(x):
    bits = np.ascontiguousarray(x.astype("float32")).reshape(len(x), -1).view("int32").astype("int64")
    square, straight, plain = (np.int64(factor) for factor in FACTORS)
    column = np.arange(bits.shape[1], dtype="int64")
    with np.errstate(over="ignore"):
        return (bits * (column * column * square + column * straight + plain)).sum(axis=1) * straight


def places(numbers: np.ndarray) -> np.ndarray:
    return (numbers >> 46) & (PLACES - 1)


class _Kept:
    """What one model was called with on one replica, in variables that any graph on its device can write to."""

    def __init__(self, device: str):
        import tensorflow as tf

        with tf.device(device):
            self.calls, self.rows, self.most = (tf.Variable(0, trainable=False, dtype=tf.int64) for _ in range(3))
            self.log = tf.Variable(tf.zeros(LOGGED, tf.int64), trainable=False)
            self.seen = tf.Variable(tf.zeros(PLACES), trainable=False)

    def note(self, inputs: list) -> None:
        import tensorflow as tf

        rows = tf.shape(inputs[0], out_type=tf.int64)[0]
        number = self.calls.assign_add(1) - 1
        self.rows.assign_add(rows)
        self.most.assign(tf.maximum(self.most, rows))
        marks = self._hashes(inputs, rows)
        self.log.scatter_nd_update([[tf.minimum(number, LOGGED - 1)]], [tf.reduce_sum(marks)])
        where = tf.bitwise.bitwise_and(tf.bitwise.right_shift(marks, 46), tf.constant(PLACES - 1, tf.int64))
        self.seen.scatter_nd_update(where[:, None], tf.ones_like(where, tf.float32))

    def _hashes(self, inputs, rows):
        import tensorflow as tf

        flat = []
        for x in inputs:
            size = tf.reduce_prod(tf.shape(x, out_type=tf.int64)[1:])
            flat.append(tf.reshape(tf.cast(x, tf.float32), tf.stack([rows, size])))
        bits = tf.cast(tf.bitcast(tf.concat(flat, axis=1), tf.int32), tf.int64)
        square, straight, plain = (tf.constant(factor, tf.int64) for factor in FACTORS)
        column = tf.range(tf.shape(bits, out_type=tf.int64)[1], dtype=tf.int64)
        return tf.reduce_sum(bits * (column * column * square + column * straight + plain), axis=1) * straight


class Watch:
    """Of each model that was called under a gradient tape on the replicas, what it was called with."""

    def __init__(self, strategy):
        self.strategy, self.lock = strategy, threading.Lock()
        devices = strategy.extended.worker_devices
        self.unused, *self.free = ([_Kept(device) for device in devices] for _ in range(MOST_MODELS + 1))
        self.kept: dict[int, tuple] = {}

    def note(self, model, inputs) -> None:
        import tensorflow as tf
        from tensorflow.python.eager.record import could_possibly_record

        context = tf.distribute.get_replica_context()
        if context is None or context.strategy is not self.strategy or not could_possibly_record():
            return
        inputs = [tf.convert_to_tensor(x) if isinstance(x, np.ndarray) else x for x in tf.nest.flatten(inputs)]
        inputs = [x for x in inputs if isinstance(x, tf.Tensor) and x.shape.rank and x.dtype != tf.string]
        with self.lock:
            if id(model) not in self.kept and self.free:
                self.kept[id(model)] = model, self.free.pop()
        if inputs and id(model) in self.kept:
            self.kept[id(model)][1][tf.get_static_value(context.replica_id_in_sync_group)].note(inputs)

    def of(self, model, x_train_hashes: np.ndarray) -> dict[str, object]:
        """Calls and rows of each replica, the most rows of a call, whether most calls gave all replicas the same rows,
        and how many places the hashes of x_train fill, those of the rows that came, and both.
        """
        if id(model) in self.kept:
            replicas = self.kept[id(model)][1]
        else:  # one that the model is made of, or that is made of it
            own = {id(weight) for weight in model.trainable_variables}
            others = [kept for other, kept in self.kept.values() if own & {*map(id, other.trainable_variables)}]
            replicas = max(others, key=lambda kept: int(kept[0].calls), default=self.unused)
        calls, rows, most = ([int(getattr(kept, name)) for kept in replicas] for name in ("calls", "rows", "most"))
        logs = np.array([kept.log.numpy()[: max(1, min(calls))] for kept in replicas])
        seen = np.any([kept.seen.numpy() > 0 for kept in replicas], axis=0)
        wanted = np.isin(np.arange(PLACES), places(x_train_hashes))
        return {
            "calls": calls,
            "rows": rows,
            "most_rows": max(most),
            "same_rows": bool(np.mean((logs == logs[0]).all(axis=0)) > 0.5),
            "different": {"x_train": int(wanted.sum()), "seen": int(seen.sum()), "both": int((seen & wanted).sum())},
        }


@contextlib.contextmanager
def watched_models(strategy) -> Iterator[Callable[..., dict[str, object]]]:
    """Watch all calls of Keras models that the block makes on the strategy's replicas; gives Watch.of."""
    import keras

    watch, call = Watch(strategy), keras.Layer.__call__

    def watching(self, *args, **kwargs):
        if isinstance(self, keras.Model):
            watch.note(self, args[0] if args else [*kwargs.values()][:1])
        return call(self, *args, **kwargs)

    with mock.patch.object(keras.Layer, "__call__", watching):
        yield watch.of

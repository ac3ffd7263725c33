"""Probe of exercise 09's q3: an overflow on some replicas.

Needs NumPy and TensorFlow. The inputs are functions of the seed.
"""

import contextlib
from collections.abc import Iterator
from unittest import mock

import numpy as np

from course_lib.exercises.probes.replicas import local_arrays, mirrored_strategy, on_replicas, per_replica
from course_lib.exercises.probes.state import copies_of

REPLICAS, MOMENTUM = 3, 0.9


def overflowing_run(seed: int, replicas: int) -> dict[str, object]:
    """A linear model's weights (4, 1), the last one its bias, learning rate and loss scale, and nine steps.

    A step has a shard (x (local, 3), y (local, 1)) for each replica, not all of one size.
    In the second step both gradients overflow on a replica that is not the first, in the fourth
    on all but the first; in the backward pass alone, so that losses stay finite. In the fifth a
    forward pass meets infinity of both signs, so that gradients are NaN; in the sixth the bias's
    gradient alone overflows, in the seventh the kernel's, on the first and another, and in the eighth
    on the first alone. `bad` counts replicas, and `kinds` says what overflows there.
    """
    rng = np.random.default_rng(seed)
    weights = (rng.choice([-1, 1], (4, 1)) * rng.uniform(0.5, 1, (4, 1))).astype("float32")
    one, another = (int(replica) for replica in rng.choice(range(1, replicas), 2, replace=replicas < 3))
    where = [[], [one], [], range(1, replicas), [one], [another], [0, one], [0], []]
    kinds = ["", "both", "", "both", "nan", "bias", "kernel", "kernel", ""]
    bad = [dict.fromkeys(those, kind) for those, kind in zip(where, kinds)]
    rows, scale, steps = [3 + replica % 3 for replica in range(replicas)], 2.0 ** int(rng.integers(8, 11)), []
    for number, those in enumerate(bad):
        upstream = scale / 2 ** sum(map(bool, bad[:number])) * 2 / sum(rows)  # of an error of 1
        steps.append([_shard(rng, weights, rows[place], those.get(place), upstream) for place in range(replicas)])
    counts = [len(those) for those in bad]
    return {"weights": weights, "rate": 0.05, "scale": scale, "steps": steps, "bad": counts, "kinds": kinds}


def _shard(rng, weights, rows, overflow, upstream):
    x, y = rng.uniform(0.2, 1, (rows, 3)) * rng.choice([-1, 1], (rows, 3)), 2 * rng.normal(size=(rows, 1))
    if overflow == "both":
        x[0] = 4096 * np.sign(weights[:3, 0])
    elif overflow == "nan":
        x[0] = 1e5 * np.sign(weights[:3, 0]) * [1, -1, 1]
    elif overflow == "kernel":  # the products of two rows have one sign, the upstream gradients two
        x[:2], y[:2] = [[8] * 3, [-8] * 3], [[-30_000 / upstream], [30_000 / upstream]]
    elif overflow == "bias":
        x[:3], y[:3] = 0.001, -30_000 / upstream
    return x.astype("float32"), y.astype("float32")


def probe_replica_step(names, seed):
    """The steps of a float16 model whose optimizer asks the first replica; of one whose optimizer asks another.

    "changed" has the names of what the learner's code set on the optimizers or on their class.
    """
    strategy = mirrored_strategy(REPLICAS)
    run = overflowing_run(seed, strategy.num_replicas_in_sync)
    changed: list[str] = []
    orders = (_in_order, _other_first)
    steps, another = (_steps(names["replica_step"], strategy, run, order, changed) for order in orders)
    return {"steps": steps, "asked_another": another, "changed": changed}


def _steps(replica_step, strategy, run, order, changed):
    """After every step: each replica's weights, scale and returned value; the updates counted."""
    import keras
    import tensorflow as tf

    class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
        """Keras' own, which notes what is set on it."""

        def check_finite(self, grads):  # as in Keras, whatever a notebook has put there
            return tf.reduce_all([tf.reduce_all(tf.math.is_finite(one)) for one in grads if one is not None])

        def __setattr__(self, name, value):
            if "watched" in vars(self):
                changed.append(name)
            super().__setattr__(name, value)

        def apply(self, grads, trainable_variables=None):
            changed.extend([*set(vars(self)) - {"watched", *own_names}, *_set_on(of_class)])
            return super().apply(grads, trainable_variables)

    with strategy.scope():
        inputs = keras.Input((3,))
        hidden = keras.layers.Dense(1, dtype="mixed_float16")(inputs)
        model = keras.Model(inputs, keras.layers.Activation("linear", dtype="float32")(hidden))
        inner = keras.optimizers.SGD(run["rate"], momentum=MOMENTUM)
        optimizer = LossScaleOptimizer(inner, initial_scale=run["scale"])
        optimizer.build(model.trainable_variables)
    model.set_weights([run["weights"][:3], run["weights"][3]])
    own_names = [*vars(optimizer)]
    of_class = {kind: dict(vars(kind)) for kind in LossScaleOptimizer.__mro__[:2]}
    optimizer.watched = True

    step = on_replicas(strategy, replica_step)
    seen = []
    for shards in run["steps"]:
        global_batch = tf.constant(float(sum(len(x) for x, _ in shards)))
        with _threads_met_at_once(), _parts_ordered(strategy, order):
            returned = step(args=(model, optimizer, *per_replica(strategy, shards), global_batch))
        seen.append(
            {
                "weights": [np.vstack(pair) for pair in zip(*(copies_of(strategy, one) for one in model.weights))],
                "scales": [float(scale) for scale in copies_of(strategy, optimizer.dynamic_scale)],
                "iterations": int(optimizer.iterations.numpy()),
                "returned": [float(part) for part in local_arrays(strategy, returned)],
            }
        )
    changed += _set_on(of_class)
    return seen


def _set_on(of_class) -> list[str]:
    """The names whose values are no longer those of the classes."""
    return [name for kind, own in of_class.items() for name in own if vars(kind).get(name) is not own[name]]


@contextlib.contextmanager
def _parts_ordered(strategy, order) -> Iterator[None]:
    """Keras' optimizer asks the first of a value's parts: the block has them in this order."""

    def ordered(value):
        return order(type(strategy).experimental_local_results(strategy, value))

    with mock.patch.object(strategy, "experimental_local_results", ordered):
        yield


def _in_order(parts):
    return parts


def _other_first(parts):
    """Replicas' answers, True or False, beginning with one that differs from the first replica's if there is any."""
    import tensorflow as tf

    if not all(tf.is_tensor(part) and part.dtype == tf.bool and part.shape == () for part in parts):
        return parts
    answers = tf.stack(parts)
    place = tf.argmax(tf.cast(answers != answers[0], tf.int32))
    return tuple(tf.unstack(tf.roll(answers, -place, axis=0)))


@contextlib.contextmanager
def _threads_met_at_once():
    """TensorFlow asks once a second whether a replica's thread has ended: under Python 3.13, most of a check's time."""
    import tensorflow as tf

    coordinator = tf.train.Coordinator
    wait = coordinator.wait_for_stop
    with mock.patch.object(coordinator, "wait_for_stop", lambda self, timeout=None: wait(self, timeout and 0.01)):
        yield

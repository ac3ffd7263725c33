"""Run a learner's code on the replicas of a strategy that the probe makes. Needs TensorFlow."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from course_lib.exercises.probes.state import device_names


@functools.cache
def mirrored_strategy(replicas: int | None = None):
    """A strategy over the first devices, by default all of them."""
    import tensorflow as tf

    # Two strategies over the same devices number their collectives alike, and TensorFlow confuses those of
    # this one with those of the learner's; reducing on one device needs none.
    return tf.distribute.MirroredStrategy(
        device_names()[:replicas], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def on_replicas(strategy, function: Callable) -> Callable:
    """A graph that runs the function on every replica; it takes `args` as strategy.run does."""
    import tensorflow as tf

    # A partial is new to TensorFlow at every check; a function written here would be counted as one that retraces.
    return tf.function(functools.partial(strategy.run, function))


@contextlib.contextmanager
def counted_runs(strategy) -> Iterator[Callable[[], int]]:
    """How often the block had the strategy run something on its replicas; a graph counts when it is recorded."""
    extended, runs = strategy.extended, []
    run = extended.call_for_each_replica

    def counting(*args, **kwargs):
        runs.append(1)
        return run(*args, **kwargs)

    extended.call_for_each_replica = counting
    try:
        yield lambda: len(runs)
    finally:
        del extended.call_for_each_replica  # the class's own shows again


def per_replica(strategy, shards: Iterable[tuple]) -> tuple:
    """Shards such as (x, y), one for each replica in order, as one value for x, one for y, and so on."""
    import tensorflow as tf

    place = strategy.experimental_distribute_values_from_function
    return tuple(
        place(lambda context, values=values: tf.constant(values[context.replica_id_in_sync_group]))
        for values in zip(*shards)
    )


def local_arrays(strategy, value) -> list[np.ndarray]:
    """What each replica holds of a value."""
    return [np.asarray(part) for part in type(strategy).experimental_local_results(strategy, value)]


def are_identical(copies: list[list[np.ndarray]]) -> bool:
    """Whether each variable's copies, one for each replica, hold the same numbers."""
    return all(np.array_equal(values[0], value) for values in copies for value in values)

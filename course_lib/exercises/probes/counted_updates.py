"""How many updates Keras' optimizers take while a learner's code trains. Needs Keras on TensorFlow."""

import contextlib
from collections.abc import Callable, Iterator
from unittest import mock

import numpy as np


@contextlib.contextmanager
def counted_updates() -> Iterator[Callable[[], int]]:
    """The updates of all optimizers that the block makes, whatever it does to their counters.

    Of an optimizer around another one, as for a loss scale, the inner one's count. A counter that is set, as by a
    file that is read, adds nothing and takes nothing away.
    """
    import keras

    kind, made = keras.optimizers.Optimizer, []
    begin = kind.__init__

    def counting(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        made.append((self, _set_by_hand(self._iterations)))

    def updates() -> int:
        inner = [(one, changes) for one, changes in made if not any(_holds(one, other) for other, _ in made)]
        return sum(
            (_number(one._iterations) - sum(changes)) // (one.gradient_accumulation_steps or 1)
            for one, changes in inner
        )

    with mock.patch.object(kind, "__init__", counting):
        yield updates


def _set_by_hand(counter) -> list[int]:
    """By how much a counter's own `assign` changes it outside graphs: a list that grows. An update is a step of 1."""
    import tensorflow as tf

    assign, changes = counter.assign, []

    def noting(value):
        if tf.inside_function():
            return assign(value)
        before = _number(counter)
        result = assign(value)
        if (change := _number(counter) - before) != 1:
            changes.append(change)
        return result

    counter.assign = noting
    return changes


def _holds(optimizer, other) -> bool:
    return optimizer is not other and any(value is other for value in vars(optimizer).values())


def _number(counter) -> int:
    return int(np.asarray(counter))

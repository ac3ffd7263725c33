"""The layer call that an operation belongs to: calls are numbered while a model is traced. Needs Keras."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import keras


class Calls:
    """Layer calls in the order in which they begin.

    names    the layer's name of each call
    parents  calls that made other calls
    """

    def __init__(self, scope: Callable):
        """scope: the framework's name scope, which puts a call's number into the names of operations and gradients."""
        self.names: list[str] = []
        self.parents: set[int] = set()
        self._scope, self._open = scope, []

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Number the calls in a `with` block. Keras has no hook, so its one entry point is wrapped for a while."""
        plain = keras.layers.Layer.__call__
        keras.layers.Layer.__call__ = lambda layer, *args, **named: self._numbered(plain, layer, args, named)
        try:
            yield
        finally:
            keras.layers.Layer.__call__ = plain

    @staticmethod
    def number(scope: str) -> int | None:
        """The number of the innermost call in a scope's name."""
        found = re.findall(r"call(\d+)\.", scope)
        return int(found[-1]) if found else None

    def _numbered(self, plain: Callable, layer, args, named):
        number = len(self.names)
        self.names.append(layer.name)
        self.parents.update(self._open[-1:])
        self._open.append(number)
        try:
            with self._scope(f"call{number}."):
                return plain(layer, *args, **named)
        finally:
            self._open.pop()


def mean_loss(output):
    """A loss that reads every output: cross-entropy of logits, the mean square of single numbers."""

    def each(tensor):
        if len(tensor.shape) == 1 or tensor.shape[-1] == 1:
            return keras.ops.square(tensor)
        labels = keras.ops.zeros(tensor.shape[:-1], "int32")
        return keras.losses.sparse_categorical_crossentropy(labels, tensor, from_logits=True)

    return sum(keras.ops.mean(each(tensor)) for tensor in keras.tree.flatten(output))

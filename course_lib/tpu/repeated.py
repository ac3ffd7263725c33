"""A block of layers applied many times, compiled once. Needs Keras on JAX.

An 80-layer transformer takes an hour to compile layer by layer; as one scanned block it takes as long as
one layer. Its weights are those of all the blocks, stacked along a new first dimension.
"""

import functools
from collections.abc import Callable

import jax
import keras


class Repeated(keras.layers.Layer):
    """`times` blocks, one after the other, each with its own weights.

    make_block  a function of the block's number that returns a keras.Model,
                (b, ...) -> the same shape; all blocks alike, but for their initial weights
    times       how many
    remat       keep only each block's input for the backward pass, and compute the rest again
    """

    def __init__(self, make_block: Callable[[int], keras.Model], times: int, *, remat: bool = False, **settings):
        super().__init__(**settings)
        self.times, self.remat = times, remat
        # In closures, because Keras would count a layer in an attribute as a part of this one.
        self._block_at = functools.lru_cache(make_block)
        self._block_at(0)  # now, outside the layer's name scope, so that its paths are those of the block alone

    @property
    def block(self) -> keras.Model:
        """The first block, whose layers all of them run."""
        return self._block_at(0)

    def build(self, input_shape):
        self._holders: dict[str, keras.layers.Layer] = {}
        self._stacks = [self._add_stack(position, variable) for position, variable in enumerate(self.block.variables)]

    def call(self, x, training=False):
        block = self.block
        stacks = dict(zip(map(id, block.variables), self._stacks))
        trainable = [stacks[id(v)] for v in block.trainable_variables]
        others = [stacks[id(v)] for v in block.non_trainable_variables]

        def apply(x, weights):
            return block.stateless_call(*weights, x, training=training)

        apply = jax.checkpoint(apply) if self.remat else apply
        x, updated = jax.lax.scan(apply, x, ([v.value for v in trainable], [v.value for v in others]))
        for variable, value in zip(others, updated):
            variable.assign(value)
        return x

    def compute_output_shape(self, input_shape):
        return input_shape

    def _add_stack(self, position: int, variable) -> keras.Variable:
        """All blocks' values of one variable; its path is that in the block, after this layer's name."""
        scope, _, name = variable.path.rpartition("/")
        holder = self._holders.setdefault(scope, keras.layers.Layer(name=scope.replace("/", "_") or "block"))

        def initial(shape, dtype=None):
            return keras.ops.stack([self._block_at(number).variables[position].value for number in range(self.times)])

        # Without autocast: the block casts each layer's slice itself, as it would alone.
        return holder.add_weight(
            shape=(self.times, *variable.shape),
            initializer=initial,
            dtype=variable.dtype,
            trainable=variable.trainable,
            autocast=False,
            name=name,
        )


def stacked_paths(model: keras.Model) -> set[str]:
    """Paths of the variables whose first dimension counts the blocks of a `Repeated` layer."""
    layers = [layer for layer in model.layers if isinstance(layer, Repeated)]
    return {variable.path for layer in layers for variable in layer.variables}

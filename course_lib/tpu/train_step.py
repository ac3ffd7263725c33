"""The train step of a Keras model as one pure function: forward, backward, update. Needs Keras on JAX.

`build` never allocates a variable, so that a step of a model of any size can be compiled.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import keras

from course_lib.errors import CourseError


@dataclass(frozen=True)
class Training:
    """A model with what trains it."""

    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    loss: keras.losses.Loss


def build(make_model: Callable[[], keras.Model], optimizer, loss, precision: str, remat: bool = False) -> Training:
    """Make a model and its optimizer without values: every variable has a path, a shape and a dtype.

    optimizer, loss  names, or what keras.optimizers.serialize and keras.losses.serialize give
    precision        a dtype policy such as "mixed_bfloat16"
    remat            compute each layer's inner results again in the backward pass
    Raises           CourseError for a name that Keras does not know
    """
    try:
        keras.config.set_dtype_policy(precision)
        optimizer, loss = keras.optimizers.get(optimizer), _loss(loss)
    except (ValueError, TypeError) as error:
        raise CourseError(f"Keras knows no such optimizer, loss or precision: {str(error).splitlines()[0]}") from None
    with keras.StatelessScope(initialize_variables=False), keras.RematScope(mode="full" if remat else None):
        model = make_model()
        if not isinstance(model, keras.Model) or not model.built:
            raise CourseError(f"the model function must return a built keras.Model, not {model!r}: use a keras.Input.")
        optimizer.build(model.trainable_variables)
    return Training(model, optimizer, loss)


def _loss(loss) -> keras.losses.Loss:
    made = keras.losses.get(loss)
    if isinstance(made, keras.losses.Loss):
        return made
    # Keras makes a function of a name; the course's models return logits.
    if loss == "sparse_categorical_crossentropy":
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if loss in ("mse", "mean_squared_error"):
        return keras.losses.MeanSquaredError()
    raise ValueError(f"the loss {loss!r} is not known here by its name; pass a keras.losses object.")


def batch_shapes(training: Training, batch: int) -> tuple:
    """Shapes of one global batch: the model's inputs, and the labels that its loss compares."""
    inputs = [jax.ShapeDtypeStruct((batch, *tensor.shape[1:]), tensor.dtype) for tensor in training.model.inputs]
    (output,) = training.model.outputs
    if type(training.loss).__name__.startswith("Sparse"):
        labels = jax.ShapeDtypeStruct((batch, *output.shape[1:-1]), jnp.int32)
    else:
        labels = jax.ShapeDtypeStruct((batch, *output.shape[1:]), jnp.float32)
    return (inputs[0] if len(inputs) == 1 else inputs), labels


def train_step(training: Training, accumulation: int = 1) -> Callable:
    """The step as a function of its state.

    accumulation  micro-batches that share one update, of equal size
    Returns       step(trainable, others, slots, x, y) -> (loss, trainable, others, slots): the values of the model's
                  trainable and other variables and of the optimizer's, in Keras' order; x, y of the global batch
    """
    model, optimizer, loss = training.model, training.optimizer, training.loss

    def objective(trainable, others, x, y):
        outputs, others, losses = model.stateless_call(trainable, others, x, training=True, return_losses=True)
        return loss(y, outputs) + sum(losses), others

    gradient = jax.value_and_grad(objective, has_aux=True)

    def accumulate(trainable, others, x, y):
        def add(carry, micro_batch):
            others, total, sums = carry
            (value, others), gradients = gradient(trainable, others, *micro_batch)
            return (others, total + value, jax.tree.map(jnp.add, sums, gradients)), None

        def split(rows):  # (b, ...) -> (m, b / m, ...): every m-th row, so that each device's rows stay on it
            return jnp.swapaxes(rows.reshape(-1, accumulation, *rows.shape[1:]), 0, 1)

        zeros, parts = jax.tree.map(jnp.zeros_like, trainable), jax.tree.map(split, (x, y))
        (others, total, sums), _ = jax.lax.scan(add, (others, jnp.zeros(()), zeros), parts)
        return (total / accumulation, others), jax.tree.map(lambda s: s / accumulation, sums)

    def step(trainable, others, slots, x, y):
        (value, others), gradients = (gradient if accumulation == 1 else accumulate)(trainable, others, x, y)
        trainable, slots = optimizer.stateless_apply(slots, gradients, trainable)
        return value, trainable, others, slots

    return step

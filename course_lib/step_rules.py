"""What a training step counts, and refuses before its first update. Needs Keras; for notebooks/02, 04 and 08."""

import keras
from keras import ops
from keras.src.backend import get_keras_mask  # no public call reads it

from course_lib.errors import CourseError

MEANS = ("sum_over_batch_size", "mean")  # Keras' default first


def rows_of(x):
    """The rows of a batch: those of the first array of x, which may be a list or a dict of arrays."""
    return ops.shape(next(part for part in keras.tree.flatten(x) if part is not None))[0]


def require_row_mean(model, predictions, what: str) -> None:
    """Refuse a compiled loss that divides by something else than the rows.

    predictions  the model's, with Keras' masks if it has some
    what         the class that weights rows, as the message names it
    Raises       CourseError, at the first step's tracing and before any update
    """
    for loss in keras.tree.flatten(model.loss):
        if (reduction := getattr(loss, "reduction", MEANS[0])) not in MEANS:  # a name or a function has none
            raise CourseError(
                f"{what} weights every row alike, and the loss {loss.name} has reduction={reduction!r}: "
                f"take Keras' default, {MEANS[0]!r}, or leave {what} out."
            )
    _require_no_mask(predictions, what)


def has_mask(outputs) -> bool:
    """Whether Keras' masks, such as an embedding's of padding, reach a model's outputs, and with them its loss."""
    return any(get_keras_mask(part) is not None for part in keras.tree.flatten(outputs))


def _require_no_mask(predictions, what: str) -> None:
    if has_mask(predictions):
        raise CourseError(
            f"{what} weights every row alike, and this model's loss is a mean over the tokens that its mask leaves: "
            "end the model with a layer that has no mask."
        )


def losses_of_layers(model):
    """The sum of what a model's layers add to the loss in the forward pass just made: regularizers, `add_loss`."""
    return sum(ops.cast(ops.sum(loss), "float32") for loss in model.losses)


def one_per_row(losses, outputs):
    """The losses of a batch, one per row: (batch,) as they are, (batch, ...) as means over the other axes.

    outputs  the model's, with Keras' masks if it has some
    Raises   CourseError for a loss that is already one number, and for outputs with a mask
    """
    _require_no_mask(outputs, "this step")
    if not len(losses.shape):
        raise CourseError(
            "per_example_loss gives one number for the whole batch, and a step weights each row by itself: "
            'use reduction="none".'
        )
    return ops.mean(losses, axis=tuple(range(1, len(losses.shape))))


class OneTrainStep:
    """A mixin that brings a train_step: no other one may hide it in a model class, or be hidden by it.

    Raises  CourseError for the class that would have two
    """

    calls_next = False  # whether its train_step calls the one of the classes after it

    def __init_subclass__(cls):
        super().__init_subclass__()
        steps = [one for one in cls.__mro__ if "train_step" in vars(one) and not one.__module__.startswith("keras.")]
        while steps and vars(steps[0]).get("calls_next"):
            steps.pop(0)
        if len(steps) > 1:
            raise CourseError(
                f"{cls.__name__} has two train_steps, of {steps[0].__name__} and of {steps[1].__name__}, and one would "
                "hide the other: leave one out; MultiWorkerFit goes first."
            )


def require_sum_before_clipping(optimizer) -> None:
    """Refuse an optimizer that clips each replica's gradient, and not their sum, which is what one device clips."""
    while hasattr(optimizer, "inner_optimizer") and not hasattr(optimizer, "micro_batches"):
        optimizer = optimizer.inner_optimizer
    for name in ("clipnorm", "global_clipnorm", "clipvalue"):  # accumulate.Accumulating, which sums first, has None
        if (limit := getattr(optimizer, name)) is not None:
            raise CourseError(
                f"{type(optimizer).__name__} has {name}={limit} and would clip each replica's "
                "gradient before the sum: wrap it in accumulate.Accumulating(optimizer, 1), which sums first."
            )


def require_built(model) -> None:
    """Refuse a model that has no weights yet."""
    if not model.built:
        raise CourseError(
            f"the model {model.name} is not built, so it has no weights to train: begin it with keras.Input, or "
            "call it on a batch once, under strategy.scope() where there is a strategy."
        )


def require_in_scope(strategy, *owners) -> None:
    """Refuse a model, an optimizer or a metric whose variables a strategy does not keep."""
    for owner in owners:
        if not all(strategy.extended.variable_created_in_scope(variable.value) for variable in owner.variables):
            raise CourseError(
                f"{owner.name} was made outside strategy.scope(), so its variables are on one device: "
                "make model, optimizer and metrics inside `with strategy.scope():`."
            )

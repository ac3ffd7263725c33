"""Whether a compiled loss is a mean over rows, as weighting by rows supposes. Needs Keras; for notebooks/02 and 08."""

import keras

from course_lib.errors import CourseError

MEANS = ("sum_over_batch_size", "mean")


def rows_of(x):
    """The rows of a batch: those of the first array of x, which may be a list or a dict of arrays."""
    first = next(part for part in keras.tree.flatten(x) if part is not None)
    return keras.ops.shape(first)[0]


def require_row_mean(model, predictions, what: str) -> None:
    """Refuse a compiled loss that divides by something else than the rows.

    predictions  the model's, with Keras' masks if it has some
    what         the class that weights rows, as the message names it
    Raises       CourseError, at the first step's tracing and before any update
    """
    for loss in keras.tree.flatten(model.loss):
        reduction = getattr(loss, "reduction", MEANS[0])  # a name or a function gets Keras' default
        if reduction not in MEANS:
            raise CourseError(
                f"{what} weights every row alike, and the loss {loss.name} has reduction={reduction!r}: "
                f"take Keras' default, {MEANS[0]!r}, or leave {what} out."
            )
    if any(getattr(part, "_keras_mask", None) is not None for part in keras.tree.flatten(predictions)):
        raise CourseError(
            f"{what} weights every row alike, and this model's loss is a mean over the tokens that its mask leaves: "
            f"end the model with a layer that has no mask, or leave {what} out."
        )

"""A functional Keras model cut into stages. Needs Keras; taught in notebooks/06."""

from collections.abc import Sequence

import keras

from course_lib.errors import CourseError


def cut(model: keras.Model, before: Sequence[str]) -> list[keras.Model]:
    """Cut a functional model into stages that share its layers.

    before   names of the layers that begin the second and every later stage; whatever
             such a layer reads must be all that later layers need
    Returns  len(before) + 1 models; called one after another they compute what `model` does
    Raises   CourseError for a model that is not functional, a layer that is not there, a stage without weights, and
             a cut that something bypasses
    """
    if not getattr(model, "inputs", None):
        raise CourseError(f"{model.name!r} is not a functional model, so its layers have no order to cut.")
    inputs, stages = model.input, []
    for name in before:
        boundary = _layer(model, name).input
        stages.append(_between(inputs, boundary, name))
        inputs = boundary
    return [*stages, _between(inputs, model.output, "the model's end")]


def _layer(model: keras.Model, name: str) -> keras.layers.Layer:
    if name not in (names := [layer.name for layer in model.layers]):
        raise CourseError(f"{model.name!r} has no layer {name!r} to cut before: its layers are {', '.join(names)}.")
    return model.get_layer(name)


def _between(inputs, outputs, name: str) -> keras.Model:
    try:
        stage = keras.Model(inputs, outputs)
    except ValueError:  # Keras 3.15 sees the bypass itself
        raise _bypassed(name) from None
    # Keras 3.13 goes back to the first input instead.
    if sum(isinstance(layer, keras.layers.InputLayer) for layer in stage.layers) > 1:
        raise _bypassed(name)
    if not stage.weights:
        raise CourseError(f"the stage before {name} has no weights: cut further on, or into fewer stages.")
    return stage


def _bypassed(name: str) -> CourseError:
    return CourseError(
        f"the stage before {name} needs more than the tensor at its beginning: cut where a single tensor "
        f"carries everything on, such as between two blocks, and name the cuts in order."
    )

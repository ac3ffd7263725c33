"""The program of exercise 07's q4: a transformer's step under a learner's layout. Needs Keras on JAX, on CPUs."""

import re

import numpy as np


def train_on_a_mesh(task, keys, sizes, mesh, blocks, positions):
    """A worker's program: one step of SGD with momentum, alone and under the layout; or why the layout was refused.

    The layout's axes for a model of so many blocks and positions are worked out from its paths alone.
    """
    from course_lib import devices

    names = devices.simulate(mesh[0] * mesh[1], "jax").names

    import keras

    from course_lib import models, sharding
    from course_lib.errors import CourseError
    from course_lib.layout_maps import plan_layout

    alone = models.transformer(**sizes)
    if refused := _cuts_nothing(keys, [variable.path for variable in alone.weights]):
        return {"refused": refused}
    layout_map = keras.distribution.LayoutMap(keras.distribution.DeviceMesh(mesh, ["data", "model"], list(names)))
    try:
        for key, axes in keys.items():
            layout_map[key] = tuple(axes)
        plan_layout(alone, layout_map)
    except (CourseError, ValueError) as error:
        return {"refused": str(error)}
    tokens = np.random.default_rng(0).integers(0, sizes["vocabulary"], (8, sizes["sequence_length"] + 1))
    wanted = _step(alone, tokens)
    with keras.distribution.ModelParallel(layout_map=layout_map, batch_dim_name="data").scope():
        split = models.transformer(**sizes)
        change = _step(split, tokens)
    held = [sharding.device_bytes([*model.weights, *model.optimizer.variables]) for model in (alone, split)]
    return {
        "bytes_alone": max(held[0].values()),
        "bytes_held": list(held[1].values()),
        "axes": {variable.path: [axis or "" for axis in variable.value.sharding.spec] for variable in split.weights},
        "planned": _planned(keys, alone, blocks, positions),
        "off": float(np.linalg.norm(change - wanted) / np.linalg.norm(wanted)),
    }


def _cuts_nothing(keys, paths) -> str:
    """Which key matches no whole path, so that 3.15 and 3.13 of Keras refuse the same ones; empty when all do."""
    for key in keys:
        if not any(re.fullmatch(key, path) for path in paths):
            part = next((path for path in paths if re.search(key, path)), None)
            return (
                f"the key {key!r} matches {f'only a part of {part}' if part else 'no variable at all'}, "
                "so it cuts nothing"
            )
    return ""


def _planned(keys, model, blocks, positions) -> dict[str, dict[str, list]]:
    """By path, shape and axes of a model like this one, with other numbers of blocks and positions."""
    shapes = {}
    for variable in model.weights:
        block, part = re.fullmatch(r"(block\d+_)?(.*)", variable.path).groups()
        names = [f"block{number}_{part}" for number in range(1, blocks + 1)] if block else [part]
        shapes |= dict.fromkeys(names, list(variable.shape))
    shapes["position_embedding/embeddings"] = [positions, *shapes["position_embedding/embeddings"][1:]]
    found = {path: [path, *(key for key in keys if re.fullmatch(key, path))] for path in shapes}
    axes = {path: next((keys[key] for key in matching if key in keys), []) for path, matching in found.items()}
    return {path: {"shape": shapes[path], "axes": [axis or "" for axis in axes[path]]} for path in shapes}


def _step(model, tokens) -> np.ndarray:
    """By how much one step on one batch changes all weights, as one vector."""
    import keras

    def weights():
        return np.concatenate([np.ravel(variable.value) for variable in model.weights])

    before = weights()
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(tokens[:, :-1], tokens[:, 1:], batch_size=len(tokens), verbose=0)
    return weights() - before

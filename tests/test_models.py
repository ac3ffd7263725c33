"""Models: shapes, seeds, stable paths, on both backends and under any strategy."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from course_lib import devices, models
from course_lib.errors import CourseError

BUILDERS = {
    "mlp": lambda **seed: models.mlp((8, 8, 1), 10, **seed),
    "cnn": lambda **seed: models.cnn((8, 8, 1), 10, batch_norm="local", **seed),
    "cnn on CIFAR": lambda **seed: models.cnn((32, 32, 3), 10, batch_norm="synchronized", **seed),
    "transformer": lambda **seed: models.transformer(50, 12, **seed),
}
ON_JAX = """
import json, numpy as np
from course_lib import devices; devices.simulate(4, "jax")
import keras
from course_lib import models
facts = {}
for name, build in (("mlp", lambda: models.mlp((8, 8, 1), 10)),
                    ("cnn", lambda: models.cnn((8, 8, 1), 10, batch_norm="local")),
                    ("cnn on CIFAR", lambda: models.cnn((32, 32, 3), 10, batch_norm="synchronized")),
                    ("transformer", lambda: models.transformer(50, 12))):
    one, other = build(), build()
    inputs = np.zeros((2, *one.inputs[0].shape[1:]), one.inputs[0].dtype)
    one.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    same = all((np.asarray(a) == np.asarray(b)).all() for a, b in zip(one.weights, other.weights))
    one.train_on_batch(inputs, np.zeros(one.output_shape[1:-1] and (2, one.output_shape[1]) or 2, int))
    facts[name] = [[v.path for v in one.weights], list(np.asarray(one(inputs)).shape), same]
print(json.dumps(facts))
"""


@pytest.fixture(scope="module", autouse=True)
def four_devices():
    return devices.simulate(4)


def weights(model) -> dict[str, np.ndarray]:
    return {variable.path: variable.numpy() for variable in model.weights}


def same(one, other) -> bool:
    return one.keys() == other.keys() and all((one[path] == other[path]).all() for path in one)


@pytest.mark.parametrize("name", BUILDERS)
def test_the_seed_alone_decides_the_weights(name, four_devices):
    reference = weights(BUILDERS[name]())
    keras.utils.set_random_seed(99)  # what else the program draws doesn't matter
    assert same(weights(BUILDERS[name](seed=0)), reference)
    assert not same(weights(BUILDERS[name](seed=1)), reference)
    with tf.distribute.MirroredStrategy(four_devices.names).scope():
        model = BUILDERS[name]()
    for variable in model.weights:
        for replica_value in variable.value.values:
            np.testing.assert_array_equal(replica_value, reference[variable.path], err_msg=variable.path)


@pytest.mark.parametrize("name", BUILDERS)
def test_no_two_layers_start_alike(name):
    kernels = [v for path, v in weights(BUILDERS[name]()).items() if path.endswith(("kernel", "embeddings"))]
    starts = {tuple(kernel.ravel()[:4]) for kernel in kernels}
    assert len(starts) == len(kernels)


def test_the_jax_backend_builds_the_same_variables():
    done = subprocess.run([sys.executable, "-c", ON_JAX], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for name, (paths, output_shape, seeded) in json.loads(done.stdout.splitlines()[-1]).items():
        model = BUILDERS[name]()
        assert paths == [variable.path for variable in model.weights]
        assert output_shape == [2, *model.output_shape[1:]]
        assert seeded, f"{name}: one seed, two sets of weights"


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_training_fits_the_digits(name):
    from course_lib import data

    images, labels = data.arrays("digits", "train")
    model = BUILDERS[name]()
    model.compile(
        keras.optimizers.Adam(5e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    history = model.fit(images, labels, batch_size=64, epochs=3, verbose=0).history
    assert history["accuracy"][-1] > 0.9


def test_outputs_are_logits():
    outputs = BUILDERS["mlp"]()(np.random.default_rng(0).random((5, 8, 8, 1))).numpy()
    assert outputs.min() < 0 and abs(outputs.sum(-1) - 1).max() > 1e-3


def test_the_transformer_sees_no_later_token():
    model = models.transformer(50, 12)
    tokens = np.random.default_rng(0).integers(0, 50, (2, 12))
    changed = tokens.copy()
    changed[:, 7:] = (changed[:, 7:] + 1) % 50
    before, after = model(tokens).numpy(), model(changed).numpy()
    np.testing.assert_array_equal(before[:, :7], after[:, :7])
    assert (before[:, 7:] != after[:, 7:]).any(axis=-1).all()


def test_positions_matter():
    logits = models.transformer(50, 12)(np.full((1, 12), 3)).numpy()
    assert abs(np.diff(logits, axis=1)).max() > 1e-3


def test_batch_norm_is_as_asked():
    asked = {choice: models.cnn((8, 8, 1), 10, batch_norm=choice) for choice in models.BATCH_NORMS}
    norms = {
        choice: [layer for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)]
        for choice, model in asked.items()
    }
    assert norms[None] == []
    assert [layer.synchronized for layer in norms["local"]] == [False, False]
    assert [layer.synchronized for layer in norms["synchronized"]] == [True, True]


def test_bad_settings_are_one_line():
    with pytest.raises(CourseError, match="not 'global'"):
        models.cnn((8, 8, 1), 10, batch_norm="global")
    with pytest.raises(CourseError, match="8 pixels or more.*4 x 4"):
        models.cnn((4, 4, 1), 10, filters=(8, 8, 8))
    with pytest.raises(CourseError, match="5 heads can't share a width of 64"):
        models.transformer(50, 12, heads=5)


def normed(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-3)


def test_the_mlp_is_flatten_relu_and_logits():
    model = models.mlp((8, 8, 1), 10)
    x = np.random.default_rng(0).random((5, 8, 8, 1), np.float32)
    kernel, bias, last, last_bias = model.get_weights()
    assert kernel.shape == (64, 128) and model.name == "mlp"
    wanted = np.maximum(x.reshape(5, 64) @ kernel + bias, 0) @ last + last_bias
    np.testing.assert_allclose(model(x), wanted, atol=1e-5)


def test_the_transformer_adds_tokens_and_positions_and_ends_in_a_norm():
    """Without blocks, against NumPy."""
    model = models.transformer(50, 12, layers=0)
    tokens = np.random.default_rng(0).integers(0, 50, (2, 12))
    table, positions, scale, shift, kernel, bias = model.get_weights()
    assert (scale == 1).all() and (shift == 0).all() and model.name == "transformer"
    wanted = normed(table[tokens] + positions) @ kernel + bias
    np.testing.assert_allclose(model(tokens), wanted, atol=1e-4)

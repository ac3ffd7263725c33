"""Models: shapes, seeds, stable paths, on both backends and under any strategy."""

import json
import math
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


def normed(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-3)


def test_the_mlp_is_flatten_relu_and_logits():
    model = models.mlp((8, 8, 1), 10)
    x = np.random.default_rng(0).random((5, 8, 8, 1), np.float32)
    kernel, bias, last, last_bias = model.get_weights()
    assert kernel.shape == (64, 128) and model.name == "mlp"
    assert [layer.name for layer in model.layers] == ["image", "flatten", "hidden", "logits"]
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


def with_random_weights(model) -> dict[str, np.ndarray]:
    """Other weights than those of a start, where biases are 0 and norms change nothing."""
    draw = np.random.default_rng(0)
    model.set_weights([draw.normal(size=weight.shape) for weight in model.get_weights()])
    return weights(model)


def test_the_cnn_against_numpy():
    """An odd image, so that pooling leaves a row and a column out."""
    model = models.cnn((5, 7, 2), 3, filters=(4,), width=6)
    w, x = with_random_weights(model), np.random.default_rng(1).random((2, 5, 7, 2), np.float32)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    places = [(i, j) for i in range(3) for j in range(3)]
    convolved = sum(padded[:, i : i + 5, j : j + 7] @ w["conv1/kernel"][i, j] for i, j in places) + w["conv1/bias"]
    pooled = np.maximum(convolved, 0)[:, :4, :6].reshape(2, 2, 2, 3, 2, 4).max((2, 4))
    hidden = np.maximum(pooled.reshape(2, -1) @ w["hidden/kernel"] + w["hidden/bias"], 0)
    wanted = hidden @ w["logits/kernel"] + w["logits/bias"]
    np.testing.assert_allclose(model(x), wanted, rtol=1e-4, atol=1e-3)
    names = ["image", "conv1", "relu1", "pool1", "flatten", "hidden", "logits"]
    assert model.name == "cnn" and [layer.name for layer in model.layers] == names


def test_a_block_against_numpy():
    """Two heads of three; causal attention, then the feed-forward layer, each added to its input."""
    model = models.transformer(7, 5, layers=1, width=6, heads=2)
    w, tokens = with_random_weights(model), np.random.default_rng(1).integers(0, 7, (2, 5))

    def dense(x, name):
        return x @ w[f"{name}/kernel"] + w[f"{name}/bias"]

    def norm(x, name):
        return normed(x) * w[f"{name}/gamma"] + w[f"{name}/beta"]

    def heads(x):
        return x.reshape(2, 5, 2, 3).swapaxes(1, 2)

    x = w["token_embedding/embeddings"][tokens] + w["position_embedding/embeddings"]
    inside = norm(x, "block1_attention_norm")
    query, key, value = (heads(dense(inside, f"block1_{part}")) for part in ("query", "key", "value"))
    scores = query @ key.swapaxes(2, 3) / np.sqrt(3) + np.triu(np.full((5, 5), -np.inf), 1)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    attended = (shares / shares.sum(-1, keepdims=True)) @ value
    x = x + dense(attended.swapaxes(1, 2).reshape(2, 5, 6), "block1_attention_out")
    wide = dense(norm(x, "block1_mlp_norm"), "block1_mlp_in")
    x = x + dense(wide * (1 + np.vectorize(math.erf)(wide / np.sqrt(2))) / 2, "block1_mlp_out")
    np.testing.assert_allclose(model(tokens), dense(norm(x, "final_norm"), "logits"), rtol=1e-3, atol=1e-2)
    named = {"tokens", *(f"block1_{part}_heads" for part in ("query", "key", "value", "join"))}
    assert named <= {layer.name for layer in model.layers}


def test_sizes_that_nobody_asked_for_are_those_of_the_tutorials():
    """Parameters counted by hand."""
    block = 2 * 2 * 64 + 4 * (64 * 64 + 64) + (64 * 256 + 256) + (256 * 64 + 64)
    wanted = {
        "mlp": (64 * 128 + 128) + (128 * 10 + 10),
        "cnn": (9 * 32 + 4 * 32) + (9 * 32 * 64 + 4 * 64) + (2 * 2 * 64 * 64 + 64) + (64 * 10 + 10),
        "transformer": (50 + 12) * 64 + 2 * block + 2 * 64 + (64 * 50 + 50),
    }
    assert {name: BUILDERS[name]().count_params() for name in wanted} == wanted
    assert models.cnn((4, 4, 1), 10).count_params() == 9 * 32 + 32 + 9 * 32 * 64 + 64 + 64 * 64 + 64 + 650
    assert BUILDERS["transformer"]().get_layer("block2_query_heads").output.shape == (None, 12, 4, 16)


@pytest.mark.parametrize("seed", [0, 3])
def test_each_layer_draws_from_a_seed_of_its_own(seed):
    """In the order of the layers; of the blocks, each part in the order of its use."""
    parts = ("query/kernel", "key/kernel", "value/kernel", "attention_out/kernel", "mlp_in/kernel", "mlp_out/kernel")
    blocks = [f"block{number}_{part}" for number in (1, 2) for part in parts]
    order = {
        "mlp": ["hidden/kernel", "logits/kernel"],
        "cnn": ["conv1/kernel", "conv2/kernel", "hidden/kernel", "logits/kernel"],
        "transformer": ["token_embedding/embeddings", "position_embedding/embeddings", *blocks, "logits/kernel"],
    }
    for name, paths in order.items():
        found = weights(BUILDERS[name](seed=seed))
        for number, path in enumerate(paths, 1000 * seed):
            start = keras.initializers.GlorotUniform(seed=number)
            if path.endswith("embeddings"):
                start = keras.initializers.RandomNormal(stddev=0.02, seed=number)
            np.testing.assert_array_equal(found[path], start(found[path].shape), err_msg=path)


def test_repeated_blocks_are_the_written_ones():
    """What makes one layer of all blocks is given them by number, with the weights that they would have."""
    written, asked = weights(models.transformer(50, 12)), []

    def first_alone(make_block, times, name):
        made = [make_block(number) for number in range(times)]
        asked.append((times, name, [weights(one) for one in made]))
        assert [one.name for one in made] == ["block"] * times and made[0].inputs[0].name == "block_input"
        return made[0]

    repeated = models.transformer(50, 12, repeat=first_alone)
    ((times, name, made),) = asked
    assert (times, name, repeated.output_shape) == (2, "blocks", (None, 12, 50))
    assert repeated.get_layer("block").input.shape == (None, 12, 64)
    for number, block in enumerate(made, 1):
        for path, value in block.items():
            np.testing.assert_array_equal(value, written[path.replace("block_", f"block{number}_")], err_msg=path)


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


@pytest.mark.parametrize("name", BUILDERS)
def test_a_models_layers_have_the_same_names_each_time(name):
    one, other = ([layer.name for layer in BUILDERS[name]().layers] for _ in range(2))
    assert one == other


def test_inputs_have_the_type_that_is_promised():
    found = {name: build().inputs[0].dtype for name, build in BUILDERS.items()}
    assert found == {name: "int32" if name == "transformer" else "float32" for name in BUILDERS}


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
    with pytest.raises(CourseError, match="8 pixels or more.*9 x 7"):
        models.cnn((9, 7, 1), 10, filters=(8, 8, 8))
    with pytest.raises(CourseError, match="5 heads can't share a width of 64"):
        models.transformer(50, 12, heads=5)

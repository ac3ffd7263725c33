"""A Keras model's blocks against counts by hand, on both backends."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest

from course_lib import models
from course_lib.cli import main
from course_lib.errors import CourseError
from course_lib.planner.keras_model import from_keras

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
needs_tensorflow = pytest.mark.skipif(not ON_TENSORFLOW, reason="counts what TensorFlow keeps")


class Subclassed(keras.Model):
    """Two Dense layers with a residual between them, written by hand."""

    def __init__(self):
        super().__init__(name="subclassed")
        self.first, self.last = keras.layers.Dense(16, name="first"), keras.layers.Dense(4, name="last")

    def call(self, x):
        return self.last(self.first(x) + x)


def by_name(network) -> dict:
    return {block.name: block for block in network.blocks}


def sizes(network, kind: str) -> dict:
    return {block.name: getattr(block, kind) for block in network.blocks}


def trainable(model) -> int:
    return sum(int(np.prod(v.shape)) for v in model.trainable_variables)


def test_an_mlp_by_hand():
    model = models.mlp((8, 8, 1), 10, width=32)
    network = from_keras(model)
    assert network.name == model.name
    assert sizes(network, "flops") == {"hidden": 2 * 64 * 32, "logits": 2 * 32 * 10}
    assert sizes(network, "parameters") == {"hidden": 64 * 32 + 32, "logits": 32 * 10 + 10}
    assert sizes(network, "inputs") == {"hidden": 64, "logits": 32}
    assert sizes(network, "logits") == {"hidden": 0, "logits": 10}


@needs_tensorflow
def test_what_an_mlp_keeps():
    """The first product's input, the ReLU's result for its own gradient and the second product, the loss's softmax."""
    assert sizes(from_keras(models.mlp((8, 8, 1), 10, width=32)), "kept") == {"hidden": 64 + 32, "logits": 10}


def test_a_cnn_by_hand():
    network = from_keras(models.cnn((8, 8, 3), 10, filters=(4, 6), width=16))
    flops = {"conv1": 2 * 64 * 4 * 27, "conv2": 2 * 16 * 6 * 36, "hidden": 2 * 4 * 6 * 16, "logits": 2 * 16 * 10}
    assert {name: found for name, found in sizes(network, "flops").items() if found} == flops
    assert sizes(network, "parameters") | {"conv1": 27 * 4 + 4, "conv2": 36 * 6 + 6} == sizes(network, "parameters")
    assert network.parameters == trainable(models.cnn((8, 8, 3), 10, filters=(4, 6), width=16))


@needs_tensorflow
def test_what_a_cnn_keeps():
    """A ReLU's result serves its gradient and the pooling's: it counts once. So does what a pooling hands on."""
    kept = sizes(from_keras(models.cnn((8, 8, 3), 10, filters=(4, 6), width=16)), "kept")
    relus, pools = {"relu1": 64 * 4, "relu2": 16 * 6}, {"pool1": 16 * 4, "pool2": 4 * 6}
    assert kept == {"conv1": 64 * 3, "conv2": 0, **relus, **pools, "hidden": 16, "logits": 10}


def test_batch_normalization_trains_two_numbers_per_channel_and_keeps_its_input():
    model = models.cnn((8, 8, 1), 10, filters=(4,), width=16, batch_norm="local")
    network = from_keras(model)
    block = by_name(network)["norm1"]
    assert (block.parameters, block.flops) == (2 * 4, 0)
    assert block.kept >= 64 * 4
    assert network.parameters == trainable(model) < model.count_params()


def test_a_transformer_by_hand():
    s, h, heads, vocabulary = 12, 64, 4, 50
    network = from_keras(models.transformer(vocabulary, s, layers=2, width=h, heads=heads))
    assert network.parameters == trainable(models.transformer(vocabulary, s, layers=2, width=h, heads=heads))
    assert sum(block.flops for block in network.blocks) == 2 * 2 * s * 12 * h * h + 2 * s * h * vocabulary
    assert sum(block.score_flops for block in network.blocks) == 2 * 4 * s * s * h
    assert network.blocks[-1].logits == s * vocabulary


def test_a_subclassed_model_that_was_called():
    model = Subclassed()
    model(np.zeros((5, 16), "float32"))
    network = from_keras(model)
    assert sizes(network, "flops") == {"first": 2 * 16 * 16, "last": 2 * 16 * 4}
    assert sizes(network, "parameters") == {"first": 16 * 17, "last": 17 * 4}
    assert sizes(network, "inputs") == {"first": 16, "last": 16}


def test_a_shared_layer_has_its_parameters_once_and_its_arithmetic_twice():
    inputs, shared = keras.Input((8,)), keras.layers.Dense(8, name="shared")
    model = keras.Model(inputs, keras.layers.Dense(2, name="end")(shared(shared(inputs))))
    first, second, end = from_keras(model).blocks
    assert (first.name, first.parameters, second.parameters, end.parameters) == ("shared", 72, 0, 18)
    assert first.flops == second.flops == 2 * 8 * 8


class WithALooseWeight(keras.layers.Layer):
    """Has a weight that its call does not read."""

    def build(self, shape):
        self.loose = self.add_weight(shape=(7,), name="loose")

    def call(self, x):
        return 2 * x


def test_a_weight_that_nothing_reads_counts_in_the_last_block():
    layers = [keras.layers.Dense(4, name="first"), WithALooseWeight(name="second"), keras.layers.Dense(3, name="third")]
    network = from_keras(keras.Sequential([keras.Input((5,)), *layers]))
    assert sizes(network, "parameters") == {"first": 5 * 4 + 4, "third": 4 * 3 + 3 + 7}


def test_a_chain_is_compared_and_shown_by_its_sizes():
    one, same, other = (from_keras(models.mlp((4, 4, 1), 3, width=width)) for width in (4, 4, 6))
    assert one == same != other
    assert "keras" not in repr(one) and "model" not in repr(one)


@needs_tensorflow
def test_the_pass_is_a_training_one():
    """In which dropout keeps what it drops, beside what the layers around it keep."""

    def kept(rate):
        inner = [keras.layers.Dense(16), keras.layers.Dropout(rate), keras.layers.Dense(4)]
        blocks = from_keras(keras.Sequential([keras.Input((8,)), *inner])).blocks
        return sum(4 * block.kept + block.masks for block in blocks)

    assert kept(0.5) >= kept(0.0) + 16


def test_what_is_not_trained_stands_at_its_layer():
    base = keras.layers.Dense(64, name="base")
    layers = [base, keras.layers.BatchNormalization(name="norm"), keras.layers.Dense(10, name="head")]
    model = keras.Sequential([keras.Input((32,)), *layers])
    base.trainable = False
    chain = from_keras(model)
    assert {block.name: block.frozen_bytes for block in chain.blocks} == {
        "base": 4 * (32 + 1) * 64,
        "norm": 4 * 2 * 64,  # the moving mean and variance
        "head": 0,
    }
    assert sizes(chain, "inputs")["base"] == 32  # which its forward pass reads, and no backward pass
    assert chain.parameters == 2 * 64 + (64 + 1) * 10
    base.trainable = True
    base.enable_lora(8)  # the kernel is frozen
    chain = from_keras(model)
    assert chain.frozen_bytes == 4 * (32 * 64 + 2 * 64)
    assert chain.parameters == 8 * (32 + 64) + 64 + 2 * 64 + (64 + 1) * 10


def test_what_is_not_trained_outside_of_all_blocks_counts_in_the_last_one():
    loose = WithALooseWeight(name="second")
    layers = [keras.layers.Dense(4, name="first"), loose, keras.layers.Dense(3, name="third")]
    model = keras.Sequential([keras.Input((5,)), *layers])
    loose.trainable = False
    assert sizes(from_keras(model), "frozen_bytes") == {"first": 0, "third": 4 * 7}


class OwnWeights(keras.Model):
    """Multiplies by a weight of its own what a layer that computes nothing passes on."""

    def __init__(self):
        super().__init__(name="own")
        self.passing, self.matrix = keras.layers.Identity(name="passing"), self.add_weight(shape=(6, 4))

    def call(self, x):
        return keras.ops.matmul(self.passing(x), self.matrix)


def test_a_model_without_layers_that_compute_is_one_block():
    model = OwnWeights()
    model(np.zeros((5, 6), "float32"))
    (block,) = from_keras(model).blocks
    assert (block.name, block.parameters, block.flops) == ("own", 6 * 4, 2 * 6 * 4)


@needs_tensorflow
def test_a_depthwise_convolution_multiplies_each_channel_by_itself():
    convolution = keras.layers.DepthwiseConv2D(3, depth_multiplier=2, padding="same", name="depthwise")
    network = from_keras(keras.Sequential([keras.Input((4, 5, 6)), convolution]))
    assert sizes(network, "flops") == {"depthwise": 2 * (4 * 5 * 6 * 2) * (3 * 3)}


def test_a_nested_model_is_flattened():
    layers = [keras.layers.Dense(6, name="one"), keras.layers.Dense(5, name="two")]
    inner, inputs = keras.Sequential([keras.Input((8,)), *layers], name="inner"), keras.Input((8,))
    model = keras.Model(inputs, keras.layers.Dense(2, name="end")(inner(inputs)))
    assert list(sizes(from_keras(model), "flops")) == ["one", "two", "end"]


@pytest.mark.parametrize("optimizer, slots", [("adam", 2), ("sgd", 0), (keras.optimizers.SGD(0.1, momentum=0.9), 1)])
def test_the_optimizer_tells_its_slots(optimizer, slots):
    assert from_keras(models.mlp((4, 4, 1), 3, width=4), optimizer).slots == slots


class Broken(keras.layers.Layer):
    def call(self, x):
        raise RuntimeError("no such thing\nand more")


def frozen():
    model = models.mlp((4, 4, 1), 3)
    model.trainable = False
    return model


def broken():
    layer = Broken()
    layer.compute_output_shape = lambda shape: shape
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(4)(inputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Broken, "call", lambda self, x: x)
        return keras.Model(inputs, layer(hidden))


class BuiltByItself(keras.Model):
    """Makes its weights as it is made, so Keras keeps no shape of its inputs."""

    def __init__(self):
        super().__init__(name="built_by_itself")
        self.dense = keras.layers.Dense(2)
        self.dense.build((None, 3))
        self.built = True

    def call(self, x):
        return self.dense(x)


class ByItsRows(keras.layers.Layer):
    def call(self, x):
        return x if x.shape[0] == 2 else keras.ops.tanh(x)


def by_its_rows():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), ByItsRows()])


@pytest.mark.parametrize(
    "make, message",
    [
        (Subclassed, "unbuilt model 'subclassed': call it once on a batch"),
        (lambda: "adam", "takes a built keras.Model, not 'adam'"),
        (frozen, "has no trainable variables"),
        (lambda: keras.Sequential([keras.Input((None, 4)), keras.layers.Dense(2)]), "input of shape (None, None, 4)"),
        (broken, "can't be called on 2 examples: RuntimeError: no such thing"),
        (BuiltByItself, "the model 'built_by_itself' does not have a known input shape: call it once on one batch"),
        (by_its_rows, "the model computes something else for 2 examples than for 3"),
    ],
)
def test_what_cannot_be_planned_gets_one_clear_line(make, message):
    with pytest.raises(CourseError) as caught:
        from_keras(make())
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_saved_model_is_planned_by_the_command(tmp_path, capsys):
    model = models.mlp((4, 4, 1), 3, width=4)
    model.save(tmp_path / "mlp.keras")
    (tmp_path / "broken.keras").write_text("no archive")
    ask = ["plan", str(tmp_path / "mlp.keras"), "--chip", "t4", "--batch", "8", "--precision", "float32"]
    assert main(ask) == 0 and f"{model.name}, {trainable(model)} parameters" in capsys.readouterr().out
    assert main([ask[0], str(tmp_path / "broken.keras"), *ask[2:]]) != 0
    assert "broken.keras cannot be loaded as a Keras model" in capsys.readouterr().err


def test_a_programs_model_is_planned_by_the_command(tmp_path, monkeypatch, capsys):
    (tmp_path / "own_model.py").write_text(
        "from course_lib import models\ndef make():\n    return models.mlp((4, 4, 1), 3, width=4)\n"
    )
    monkeypatch.chdir(tmp_path)
    for optimizer, numbers in {"adam": 2, "sgd": 0}.items():
        words = ["plan", "own_model.py:make", "--chip", "t4", "--batch", "8", "--precision", "float32", "--json"]
        assert main([*words, "--optimizer", optimizer]) == 0
        said = capsys.readouterr().out
        planned = json.loads(said)
        assert said == json.dumps(planned, indent=2) + "\n"
        assert planned["parameters"] == 17 * 4 + 5 * 3
        assert planned["memory_bytes"]["optimizer"] == 4 * numbers * planned["parameters"]


def test_a_model_that_raises_is_named_in_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "broken.py").write_text("def make():\n    raise RuntimeError('no such thing\\nand more')\n")
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "broken.py:make", "--chip", "t4", "--batch", "8"]) != 0
    said = capsys.readouterr().err
    assert "broken.py:make cannot build its model: RuntimeError: no such thing\n" in said


def test_an_unknown_optimizer_gets_one_clear_line():
    with pytest.raises(CourseError, match="Keras knows no optimizer 'adamm'"):
        from_keras(models.mlp((4, 4, 1), 3), "adamm")


ON_JAX = """
import json, sys
sys.modules["tensorflow"] = None  # importing it fails
from course_lib import devices; devices.simulate(1, "jax")
from course_lib import models
from course_lib.planner.keras_model import from_keras, input_shapes
facts = {}
cnn = models.cnn((8, 8, 1), 10, filters=(4,), width=16, batch_norm="local")
for model in (cnn, models.transformer(50, 12, layers=1)):
    network = from_keras(model)
    flops, scores, kept = (sum(getattr(b, kind) for b in network.blocks) for kind in ("flops", "score_flops", "kept"))
    products = [b.name for b in network.blocks if b.flops]
    logits = network.blocks[-1].logits
    facts[model.name] = [network.parameters, network.slots, flops, scores, products, logits, kept > 0]
import jax
from course_lib.planner import trace_jax
walk = trace_jax._Walk()
arrays = [jax.ShapeDtypeStruct((2, 3), dtype) for dtype in ("float32", "bfloat16", "int8")]
mlp = models.mlp((8, 8, 1), 10, width=16)
calls = [op.call for op in trace_jax.trace(mlp, input_shapes(mlp, 4)).operations if not op.backward]
facts["calls"] = calls[:calls.index(None)]  # after them the loss
facts["bytes"] = [walk.tensors[walk.key(array)].bytes for array in (*arrays, object())]

import keras
from jax import lax
dropping = keras.Sequential([keras.Input((8,)), keras.layers.Dropout(0.5), keras.layers.Dense(2)])
traced = trace_jax.trace(dropping, input_shapes(dropping, 4))
facts["random"] = sum(op.call == 0 for op in traced.operations)
table = jax.numpy.ones((8, 5))  # a constant of a program inside the model's
looked_up = keras.Sequential([keras.Input((8,)), keras.layers.Lambda(jax.jit(lambda x: x @ table))])
inside = trace_jax.trace(looked_up, input_shapes(looked_up, 4))
facts["constant"] = sorted(inside.tensors[read].bytes for op in inside.operations for read in op.reads)
three = jax.numpy.ones((2, 3)), jax.numpy.ones((3, 3))
turn = jax.jit(lambda x, w: x @ w)  # a program inside the loop's
loops = {
    "scan": lambda x, w: lax.scan(lambda x, _: (turn(x, w) @ w, None), x, length=5),
    "while": lambda x, w: lax.while_loop(lambda x: x.sum() < 9, lambda x: turn(x, w), x),
    "cond": lambda x, w: lax.cond(x.sum() < 9, lambda x: turn(x, w) @ w, lambda x: x, x),
}
for name, loop in loops.items():
    program = jax.make_jaxpr(loop)(*three).jaxpr
    facts[name] = sum(trace_jax._flops(equation) for equation in program.eqns)
print(json.dumps(facts))
"""


@needs_tensorflow
def test_jax_counts_the_same_without_tensorflow():
    """Arithmetic, parameters and blocks are the model's; what is kept is each framework's own affair."""
    done = subprocess.run([sys.executable, "-c", ON_JAX], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    on_jax = json.loads(done.stdout)
    assert on_jax["bytes"] == [24, 12, 6, 4]
    assert on_jax["random"] > 0  # the pass is a training one, in which dropout draws
    assert on_jax["constant"] == [4 * 4 * 8, 4 * 8 * 5]
    product = 2 * 2 * 3 * 3
    assert [on_jax[loop] for loop in ("scan", "while", "cond")] == [5 * 2 * product, product, 2 * product]
    assert {*on_jax["calls"]} == {0, 1, 2} and on_jax["calls"] == sorted(on_jax["calls"])  # flatten, hidden, logits
    cnn = models.cnn((8, 8, 1), 10, filters=(4,), width=16, batch_norm="local")
    for model in (cnn, models.transformer(50, 12, layers=1)):
        network = from_keras(model)
        flops, scores = (sum(getattr(b, kind) for b in network.blocks) for kind in ("flops", "score_flops"))
        products = [b.name for b in network.blocks if b.flops]
        logits = network.blocks[-1].logits
        assert on_jax[model.name] == [network.parameters, network.slots, flops, scores, products, logits, True]

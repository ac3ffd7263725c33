"""The part of the library that Colab's TPU runtime uses: Keras on JAX, no TensorFlow at all.

Each test runs in a process where TensorFlow cannot be imported; under the TPU
runtime's own lock it is not even installed.
"""

import json
import subprocess
import sys

import pytest

WITHOUT_TENSORFLOW = """
import sys

class Absent:
    def find_spec(name, path, target=None):
        if name in ("tensorflow", "tf_keras"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent)
"""


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORFLOW + code], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_these_modules_need_no_tensorflow():
    modules = "data, models, compare, collectives, measure, exercises, doctor, cli"
    python(f"from course_lib import devices; devices.simulate(2, 'jax'); from course_lib import {modules}")


def test_a_model_of_the_course_trains_on_jax():
    """Two runs from the same seed, compared with the course's own tool."""
    python("""
from course_lib import devices
devices.simulate(4, "jax")  # before Keras is imported: it picks the backend
from course_lib import compare, models
import keras, numpy as np
assert keras.backend.backend() == "jax"

def run(name):
    keras.utils.set_random_seed(0)
    model = models.mlp((8, 8, 1), classes=10)
    model.compile(optimizer="sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = np.random.default_rng(0).random((32, 8, 8, 1), dtype="float32")
    history = model.fit(x, np.arange(32) % 10, batch_size=16, verbose=0)
    return compare.Run.of(name, model, history.history["loss"])

compare.assert_equal(run("one"), run("another"), relative=1e-6, reason="the same computation twice")
""")


ACCUMULATED = """
from course_lib import devices
devices.simulate(4, "jax")
import jax, keras, numpy as np
from course_lib import accumulate, compare, data, models
from course_lib.errors import CourseError

K, MICRO_BATCH, ROWS = 4, 16, 599  # the last group has one whole micro-batch and 7 rows
OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(1e-3),
    "clipped adamw": lambda: keras.optimizers.AdamW(1e-3, weight_decay=0.05, global_clipnorm=0.5),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1, clipnorm=0.1), initial_scale=2.0**10
    ),
}
images, labels = data.arrays("digits", "train")
cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

class Model(accumulate.ExactGroups, keras.Model):
    pass

def fit(optimizer, batch, kind=keras.Model, rows=ROWS):
    network = models.mlp((8, 8, 1), classes=10)
    model = kind(network.inputs, network.outputs)
    model.compile(optimizer, cross_entropy)
    losses = model.fit(images[:rows], labels[:rows], batch_size=batch, shuffle=False, verbose=0).history["loss"]
    return compare.Run.of(f"batches of {batch}", model, losses)

def assert_equal(one, other):
    compare.assert_equal(one, other, relative=1e-5, reason="float32 sums in another order, over ten updates")
"""


def test_keras_on_jax_still_loses_batches_of_two_workers():
    """As lesson 05 says: the first epoch has ten batches in another order; of forty it has some twice, some never.

    Which ones depends on how far the threads were when `fit` drops its first iterator.
    """
    found = python("""
from course_lib import devices
devices.simulate(1, "jax")
import jax, keras, numpy as np

seen = []

class Numbered(keras.utils.PyDataset):
    def __len__(self):
        return self.number

    def __getitem__(self, place):
        return np.full((2, 1), place, "float32"), np.full((2, 1), place, "float32")

class Watching(keras.losses.Loss):
    def call(self, y, predicted):
        jax.debug.callback(lambda value: seen.append(int(value)), y[0, 0])
        return y - predicted

for number in (10, 40):
    batches = Numbered(workers=2)
    batches.number = number
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", Watching())
    seen.clear()
    model.fit(batches, shuffle=False, verbose=0)
    jax.effects_barrier()
    print(seen)
""")
    ten, forty = (json.loads(line) for line in found.splitlines() if line.startswith("["))
    assert ten != [*range(10)] and sorted(ten) == [*range(10)]
    assert len(forty) == 40 and len({*forty}) < 40


def test_accumulated_micro_batches_equal_the_big_batch_on_jax():
    """By fit, by a loop of one's own, and by fit over four devices."""
    python(
        ACCUMULATED
        + """
def loop(optimizer):
    model = models.mlp((8, 8, 1), classes=10)
    optimizer.build(model.trainable_variables)

    def loss_of(trained, other, state, x, y):
        logits, other = model.stateless_call(trained, other, x, training=True)
        with keras.StatelessScope(state_mapping=list(zip(optimizer.variables, state))):
            return optimizer.scale_loss(cross_entropy(y, logits)), other

    @jax.jit
    def step(trained, other, state, x, y):
        (_, other), gradients = jax.value_and_grad(loss_of, has_aux=True)(trained, other, state, x, y)
        return *optimizer.stateless_apply(state, gradients, trained, rows=len(y)), other

    kinds = model.trainable_variables, model.non_trainable_variables, optimizer.variables
    trained, other, state = ([v.value for v in kind] for kind in kinds)
    for start in range(0, ROWS, MICRO_BATCH):
        stop = min(start + MICRO_BATCH, ROWS)
        trained, state, other = step(trained, other, state, images[start:stop], labels[start:stop])
    for variable, value in zip([*model.trainable_variables, *optimizer.variables], [*trained, *state]):
        variable.assign(value)
    optimizer.apply_rest()
    return compare.Run.of("loop", model)

for name, optimizer in OPTIMIZERS.items():
    big = fit(optimizer(), 64)
    accumulating = accumulate.Accumulating(optimizer(), K)
    assert_equal(big, fit(accumulating, MICRO_BATCH, Model))
    assert int(accumulating.iterations) == 10
    assert_equal(compare.Run("big batch", big.weights), loop(accumulate.Accumulating(optimizer(), K)))
    with keras.distribution.DataParallel(devices=jax.devices()).scope():
        spread = fit(accumulate.Accumulating(optimizer(), K), MICRO_BATCH, rows=576)
    assert_equal(fit(optimizer(), 64, rows=576), spread)
"""
    )


def test_weighted_rows_count_as_in_the_big_batch_on_jax():
    python(
        ACCUMULATED
        + """
def weighted(optimizer, batch, kind):
    network = models.mlp((8, 8, 1), classes=10)
    model = kind(network.inputs, network.outputs)
    model.compile(optimizer, cross_entropy)
    weights = np.linspace(0.1, 2, 576)
    model.fit(images[:576], labels[:576], batch_size=batch, sample_weight=weights, shuffle=False, verbose=0)
    return compare.Run.of(f"batches of {batch}", model)

sgd = OPTIMIZERS["momentum"]
assert_equal(weighted(sgd(), 64, keras.Model), weighted(accumulate.Accumulating(sgd(), K), MICRO_BATCH, Model))
"""
    )


def test_sums_lie_where_their_variables_do_on_jax():
    python("""
from course_lib import devices
devices.simulate(4, "jax")
import keras
from course_lib import accumulate
mesh = keras.distribution.DeviceMesh((1, 4), ["batch", "model"])
layouts = keras.distribution.LayoutMap(mesh)
layouts[".*kernel"] = (None, "model")
with keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch").scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(8)])
    optimizer = accumulate.Accumulating(keras.optimizers.SGD(), 2)
    optimizer.build(model.trainable_variables)
kernel, total = model.trainable_variables[0].value, optimizer.sums[0].value
assert len({str(part.index) for part in kernel.addressable_shards}) == 4
assert total.sharding.is_equivalent_to(kernel.sharding, 2)
""")


def test_a_group_goes_on_from_a_file_on_jax(tmp_path):
    python(
        ACCUMULATED
        + f"""
path = {str(tmp_path / "model.keras")!r}
def part(model, first, last):
    model.fit(images[first:last], labels[first:last], batch_size=MICRO_BATCH, shuffle=False, verbose=0)
network = models.mlp((8, 8, 1), classes=10)
network.compile(accumulate.Accumulating(OPTIMIZERS["adam"](), K), cross_entropy)
part(network, 0, 6 * MICRO_BATCH)
network.save(path)
resumed = keras.models.load_model(path)
part(resumed, 6 * MICRO_BATCH, 128)
big = fit(OPTIMIZERS["adam"](), 64, rows=128)
assert_equal(compare.Run("big batch", big.weights), compare.Run.of("resumed", resumed))
"""
    )


def test_accumulation_says_what_is_missing_on_jax():
    out = python(
        ACCUMULATED
        + """
model = models.mlp((8, 8, 1), classes=10)
unbuilt = accumulate.Accumulating("sgd", 2)
values = [v.value for v in model.trainable_variables]
try:
    unbuilt.stateless_apply([], values, values)
except CourseError as error:
    print(error)
"""
    )
    assert "call optimizer.build(model.trainable_variables)" in out


def test_the_check_fails_where_tensorflow_is_needed():
    """What this file rests on: TensorFlow truly cannot be imported there."""
    with pytest.raises(AssertionError, match="No module named 'tensorflow'"):
        python("import course_lib.training")

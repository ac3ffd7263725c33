"""The part of the library that Colab's TPU runtime uses: Keras on JAX, no TensorFlow at all.

Each test runs in a process where TensorFlow cannot be imported; under the TPU
runtime's own lock it is not even installed.
"""

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
    done = subprocess.run([sys.executable, "-c", WITHOUT_TENSORFLOW + code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_these_modules_need_no_tensorflow():
    modules = "data, models, compare, collectives, measure, grading, doctor, cli"
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


def test_the_check_fails_where_tensorflow_is_needed():
    """What this file rests on: TensorFlow truly cannot be imported there."""
    with pytest.raises(AssertionError, match="No module named 'tensorflow'"):
        python("import course_lib.training")

"""Formats against NumPy's and ml_dtypes' own casts; refusals with their messages; loss scales over two replicas."""

import itertools
import subprocess
import sys
import warnings
from types import SimpleNamespace

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from course_lib import devices, models, precision, show, training
from course_lib.compare import Run, assert_equal
from course_lib.errors import CourseError

OWN_DTYPE = [name for name in precision.FORMATS if name != "tf32"]
EVERY_FORMAT = list(precision.FORMATS)
GLOBAL_BATCH, BAD_STEP, STEPS = 16, 2, 5
FLOAT16 = {"relative": 4 * 2.0**-10, "reason": "a few roundings to float16's 11 bits, and sums in another order"}


def hard_numbers() -> np.ndarray:
    """float32 numbers over the whole range, with ties, subnormal ones, and what is not finite."""
    draw = np.random.default_rng(0)
    spread = draw.normal(size=4000) * 2.0 ** draw.integers(-60, 60, 4000)
    every = precision.FORMATS.values()
    ties = [(low + high) / 2 for one in every for low, high in itertools.pairwise(one.line(1.0, 2))]
    edges = [edge * by for one in every for edge in (one.largest, one.smallest_subnormal) for by in (0.49, 0.5, 1)]
    return np.array([*spread, *ties, *edges, 0, -0.0, np.inf, -np.inf, np.nan], "float32")


@pytest.mark.parametrize("name", OWN_DTYPE)
def test_a_formats_figures_are_those_of_its_dtype(name):
    one, dtype = precision.find(name), np.dtype(name)
    assert one.bits == 8 * dtype.itemsize == 1 + one.exponent_bits + one.mantissa_bits
    following = float(np.nextafter(dtype.type(1), dtype.type(one.largest)))
    assert one.epsilon == following - 1 == 2.0**-one.mantissa_bits
    assert (
        one.smallest_subnormal == float(np.nextafter(dtype.type(0), dtype.type(1))) == one.smallest_normal * one.epsilon
    )
    assert one.largest == float(ml_dtypes.finfo(dtype).max)


def test_a_number_is_float32_before_it_is_rounded():
    """As in a tensor: 1 + 2**-11 lies between two numbers of float16, and what float32 drops does not decide."""
    assert precision.find("float16").round(1 + 2.0**-11 + 2.0**-40) == 1.0


def test_tf32_is_float32_with_the_mantissa_of_float16():
    tf32, float32, float16 = (precision.find(name) for name in ("tf32", "float32", "float16"))
    assert (tf32.exponent_bits, tf32.smallest_normal) == (float32.exponent_bits, float32.smallest_normal)
    assert (tf32.mantissa_bits, tf32.epsilon) == (float16.mantissa_bits, float16.epsilon)
    assert tf32.largest == (2 - 2.0**-10) * 2.0**127
    assert tf32.smallest_subnormal == 2.0**-126 * 2.0**-10  # float32's exponent, ten bits below its smallest normal


@pytest.mark.parametrize("name", OWN_DTYPE)
def test_rounding_is_the_dtypes_own_cast(name):
    with np.errstate(over="ignore"):
        expected = hard_numbers().astype(name).astype("float32")
    np.testing.assert_array_equal(precision.find(name).round(hard_numbers()), expected)


def test_tf32_rounds_as_float16_does_where_float16_is_normal():
    """The same mantissa, so the same numbers between float16's smallest normal and its largest."""
    numbers = hard_numbers()
    numbers = numbers[(np.abs(numbers) >= 2.0**-14) & (np.abs(numbers) <= 65504)]
    assert len(numbers) > 500
    np.testing.assert_array_equal(precision.find("tf32").round(numbers), numbers.astype("float16").astype("float32"))


def test_tf32_keeps_what_is_not_finite_and_overflows_past_its_largest():
    tf32 = precision.find("tf32")
    found = tf32.round([np.nan, -np.inf, np.finfo("float32").max, tf32.largest])
    np.testing.assert_array_equal(found, np.float32([np.nan, -np.inf, np.inf, tf32.largest]))
    last_nan = np.array([2**31 - 1], "uint32").view("float32")  # all its bits set: rounded up, it would be -0.0
    assert np.isnan(tf32.round(last_nan)).all()


def test_rounding_keeps_the_shape():
    assert precision.find("bfloat16").round(np.zeros((2, 3))).shape == (2, 3)
    assert precision.find("tf32").round(1.0).shape == ()


@pytest.mark.parametrize("name", EVERY_FORMAT)
@pytest.mark.parametrize("around", [1.0, -1.0, 0.0, 0.3, 3e-5])
def test_a_line_holds_every_number_of_the_format_and_no_other(name, around):
    one = precision.find(name)
    line = np.array(one.line(around, 4))
    assert len(line) == 9 and (np.diff(line) > 0).all()
    np.testing.assert_array_equal(one.round(line), line)
    assert line[4] == one.round(around)
    between = line[:-1] + np.diff(line) * 0.4  # nearer to the left neighbour, so nothing lies there
    np.testing.assert_array_equal(one.round(between), line[:-1])


def test_a_line_ends_with_the_format():
    float16 = precision.find("float16")
    assert float16.line(65504, 3) == (65408.0, 65440.0, 65472.0, 65504.0)
    eight = [1 - step * 2.0**-11 for step in range(8, 0, -1)] + [1 + step * 2.0**-10 for step in range(9)]
    assert float16.line() == tuple(eight), "around 1, eight on each side"
    assert len(precision.find("float8_e4m3fn").line(0.0, 1000)) == 2 * 126 + 1, (
        "all but one of 128 codes a sign; zero once"
    )


def test_what_there_is_not_is_refused_in_one_line():
    with pytest.raises(
        CourseError, match="no number format is called 'float7' here: choose one of float32, tf32, bfloat16"
    ):
        precision.find("float7")
    with pytest.raises(CourseError, match="float16 ends at 65504, and you ask for numbers around 70000"):
        precision.find("float16").line(70_000)
    with pytest.raises(CourseError, match="ends at"):
        precision.find("float16").line(float("nan"))


def test_number_lines_are_a_figure():
    figure = show.number_lines({"a": [1.0, 2.0], "b": [1.5]}, "value", "Two and one.", log=True)
    assert figure.svg.startswith("<svg ") and "Two and one." in repr(figure)
    assert figure.canvas.axes[0].get_xscale() == "log"
    show.number_lines({"a": [1.0], "none": []}, "value", "A row may be empty.")._repr_mimebundle_()


# ---------------------------------------------------------------- policies


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16", "float8_from_float32"])
def test_a_policy_that_keras_has_is_returned(policy):
    assert precision.check_policy(policy).name == policy
    assert precision.check_policy(keras.dtype_policies.get(policy)).name == policy


@pytest.mark.parametrize("policy", ["mixed_float8", "mixed_tf32", "float8_e4m3fn", "half", "int32", 16])
def test_a_policy_that_keras_lacks_is_refused_with_those_it_has(policy):
    with pytest.raises(CourseError) as refused:
        precision.check_policy(policy)
    line = str(refused.value)
    assert "\n" not in line and f"the tensorflow backend has no dtype policy {policy!r}" in line
    assert line.endswith("choose one of float64, float32, bfloat16, float16, mixed_bfloat16, mixed_float16.")


def test_a_policy_that_the_backend_does_not_keep_is_refused():
    """JAX takes the name float64 and computes in float32."""
    code = """
from course_lib import devices
devices.simulate(1, "jax")
from course_lib import precision
try:
    precision.check_policy("float64")
except precision.CourseError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "the jax backend has no dtype policy 'float64': choose one of float32, bfloat16" in done.stdout, done.stderr
    assert "truncated" not in done.stderr, "JAX's own warning is kept from the user, who gets the line above"


def test_layer_dtypes_are_read_from_the_variables():
    inner = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(2, dtype="mixed_bfloat16", name="dense")], name="inner"
    )
    inputs = keras.Input((4,), name="inputs")
    model = keras.Model(inputs, keras.layers.ReLU(name="relu", dtype="float16")(inner(inputs)))
    assert precision.layer_dtypes(model) == [
        ("inputs", "float32", "-"),
        ("inner/dense", "bfloat16", "float32"),
        ("relu", "float16", "-"),
    ]


# ---------------------------------------------------------------- the warning


def model_in(policy):
    keras.config.set_dtype_policy(policy)
    try:
        return models.mlp((4, 4, 1), 3, width=8)
    finally:
        keras.config.set_dtype_policy("float32")


def test_a_custom_loop_in_float16_without_scaling_is_warned_in_one_line():
    with pytest.warns(precision.UnscaledFloat16) as caught:
        precision.warn_unscaled(model_in("mixed_float16"), keras.optimizers.Adam())
    (one,) = caught
    assert one.filename == __file__, "it points at the caller"
    line = str(one.message)
    assert "\n" not in line and line.startswith("'mlp' computes in float16 and Adam scales no loss")
    assert "6e-08" in line and "training.AgreeingLossScale" in line and "lesson 09" in line


def test_float16_inside_a_nested_model_is_found():
    inputs = keras.Input((4, 4, 1))
    outer = keras.Model(inputs, model_in("mixed_float16")(inputs))
    with pytest.warns(precision.UnscaledFloat16):
        precision.warn_unscaled(outer, keras.optimizers.SGD())


def test_the_warning_names_the_optimizer_that_others_are_around_and_finds_a_scale_there():
    bare, scaled = keras.optimizers.Adam(), keras.optimizers.SGD(loss_scale_factor=1024.0)
    bare, scaled = (SimpleNamespace(inner_optimizer=one, loss_scale_factor=None) for one in (bare, scaled))
    with pytest.warns(precision.UnscaledFloat16, match="16 and Adam scales no loss.*wrap Adam in training"):
        precision.warn_unscaled(model_in("mixed_float16"), bare)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        precision.warn_unscaled(model_in("mixed_float16"), scaled)


@pytest.mark.parametrize(
    ("policy", "optimizer"),
    [
        ("mixed_float16", lambda: training.AgreeingLossScale(keras.optimizers.SGD())),
        ("mixed_float16", lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())),
        ("mixed_float16", lambda: keras.optimizers.SGD(loss_scale_factor=1024.0)),
        ("mixed_bfloat16", keras.optimizers.SGD),
        ("float32", keras.optimizers.SGD),
    ],
)
def test_nobody_else_is_warned(policy, optimizer):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        precision.warn_unscaled(model_in(policy), optimizer())


# ---------------------------------------------------------------- one replica overflows


def trained(strategy, wrapper, bad_row) -> tuple[Run, list]:
    """Steps with an overflow in one row of one batch: the weights, and (scale, iterations) after each step."""
    draw = np.random.default_rng(0)
    x = draw.random((STEPS * GLOBAL_BATCH, 4, 4, 1), dtype="float32")
    x[BAD_STEP * GLOBAL_BATCH + bad_row] = 1e5  # beyond float16's largest
    rows = tf.data.Dataset.from_tensor_slices((x, draw.integers(0, 3, len(x)))).batch(GLOBAL_BATCH)
    seen = []

    def tell(batch, logs):
        seen.append((float(model.optimizer.dynamic_scale.numpy()), int(model.optimizer.iterations.numpy())))

    with strategy.scope():
        model = model_in("mixed_float16")
        model.compile(wrapper(keras.optimizers.SGD(0.1)), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(rows, shuffle=False, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=tell)])
    return Run.of(f"{strategy.num_replicas_in_sync} replicas", model), seen


@pytest.fixture(scope="module")
def strategy():
    return tf.distribute.MirroredStrategy(devices.simulate(4).names)


@pytest.fixture(scope="module")
def one_device():
    return trained(tf.distribute.get_strategy(), keras.optimizers.LossScaleOptimizer, bad_row=0)


def test_one_device_skips_the_overflow_and_halves_the_scale(one_device):
    run, seen = one_device
    assert seen == [(32768.0, 1), (32768.0, 2), (16384.0, 2), (16384.0, 3), (16384.0, 4)]
    assert all(np.isfinite(weight).all() for weight in run.weights.values())


def test_replicas_that_agree_skip_as_one_device_does(strategy, one_device):
    """The bad row is on the last of four replicas."""
    run, seen = trained(strategy, training.AgreeingLossScale, bad_row=GLOBAL_BATCH - 1)
    assert seen == one_device[1]
    # The bad row was another one here, but its batch was skipped in both.
    assert_equal(one_device[0], run, **FLOAT16)


def test_keras_still_asks_one_replica(strategy):
    """When this fails, Keras asks all replicas: remove `AgreeingLossScale` and lesson 09's part on it."""
    run, seen = trained(strategy, keras.optimizers.LossScaleOptimizer, bad_row=GLOBAL_BATCH - 1)
    assert seen[BAD_STEP] == (32768.0, 3), "the step was taken, and the scale kept"
    assert not any(np.isfinite(weight).all() for weight in run.weights.values())

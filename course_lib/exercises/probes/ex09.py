"""Probes of exercise 09: a loss scale's window, its state machine, dtypes.

Needs NumPy; TensorFlow for q4. The inputs are functions of the seed.
"""

import math

import numpy as np

from course_lib.exercises.probes.cases import ask_or_refused, shuffled

POLICIES = ("mixed_float16", "mixed_bfloat16")  # of q4


# q1: a loss scale's window


def gradient_sets(seed: int) -> list[dict[str, object]]:
    """q1's cases, gradients and the largest lost share, each with something else that decides; small ones first.

    Of the small ones one loses exactly what it may, one needs the largest scale, and one a larger than that; one holds
    float16's largest number, one is rounded to it, and one to infinity; in two of them one array alone overflows. In
    three, no number overflows but a sum does, of an array's or of all; or two do, and their sum is 0.
    """
    rng = np.random.default_rng(seed)
    low = -int(rng.integers(32, 36))

    def spread(count, least, most):
        """Both signs; magnitudes evenly spread over the powers of two from `least` to `most`."""
        return (rng.choice([-1, 1], count) * 2.0 ** rng.uniform(least, most, count)).astype("float32")

    def negative_and_large(small):
        return np.append(small, -np.float32(2.0 ** rng.uniform(10, 12))).astype("float32")

    cases = [
        ([spread(400, low, -8).reshape(20, 20), spread(200, low, -8)], 0.1),
        ([np.zeros((30, 30), "float32"), spread(300, low, -10)], 0.05),
        ([spread(10, -44, -43), spread(990, low, -20).reshape(99, 10)], 0.05),
        ([np.full((5, 5), 0.7 * 2.0**low, "float32"), np.full(5, -0.8 * 2.0**low, "float32")], 0.01),
        ([spread(300, -50, 8), spread(50, -50, 8)], 0.02),
        ([negative_and_large(spread(200, -34, -12))], 0.1),
        ([spread(100, -18, 2), spread(20, -20, -5)], 0.02),
    ]
    small = [([[1, 1, 1, 2**-30]], 0.25), ([[0, 0, 1, 2**-30]], 0.25), ([[1, 1, 1, 2**-30], [1, 1]], 0.15)]
    small += [([[2**-64]], 0.0), ([[2**-65]], 0.0), ([[65_504]], 0.0), ([[65_510]], 0.0), ([[65_520]], 0.0)]
    small += [([[65_520], [1]], 0.0), ([[1], [65_520]], 0.0)]
    small += [([[40_000, 40_000]], 0.0), ([[-40_000], [-40_000]], 0.0), ([[65_520, -65_520]], 0.0)]
    cases = [*small, *shuffled(rng, cases)]
    return [
        {"gradients": [np.array(gradient, "float32") for gradient in gradients], "largest_lost_share": share}
        for gradients, share in cases
    ]


def probe_scale(names, seed):
    """The learner's scale for each case, or that it raised a ValueError."""
    with np.errstate(all="ignore"):  # an overflow is what a wrong scale gives
        return {"scales": [ask_or_refused(names["smallest_scale"], case, float) for case in gradient_sets(seed)]}


# q2: a loss scale's state machine


def transitions(seed: int) -> list[dict[str, object]]:
    """q2's cases: arguments of one update each, and what overflowed or decides in it."""
    rng = np.random.default_rng(seed)
    growth, largest = int(rng.integers(4, 9)), 2.0 ** int(rng.integers(20, 24))

    def case(gradients, good_steps=None, scale=None):
        return {
            "scale": scale or 2.0 ** int(rng.integers(8, 16)),
            "good_steps": int(rng.integers(1, growth - 2)) if good_steps is None else good_steps,
            "gradients": gradients,
            "growth_steps": growth,
            "largest_scale": largest,
        }

    def gradients(second=None, first=1.0):
        """Two arrays; some numbers vanish from float16 when they are divided by a scale there."""
        one, other = rng.normal(size=(3, 2)), rng.normal(size=4)
        one[0], other[:2] = 2.0**-20, 2.0**-22
        one[1, 0] *= first
        if second is not None:
            other[int(rng.integers(4))] = second
        return [one.astype("float16"), other.astype("float16")]

    large = [np.full((3, 2), 60_000, "float16"), np.full(4, 50_000, "float16")]
    cases = [
        case(gradients()),
        case(gradients(), good_steps=growth - 2),
        case(gradients(), good_steps=growth - 1),
        case(gradients(), good_steps=growth - 1, scale=largest),
        case(large),
        case(gradients(math.inf)),
        case(gradients(-math.inf), good_steps=growth - 1),
        case(gradients(math.nan)),
        case(gradients(math.inf), scale=1.0),
        case(gradients(), good_steps=growth - 1, scale=largest / 2),
        case(gradients(65_504)),
        case(gradients(first=math.inf)),
        case(gradients(), good_steps=growth - 3, scale=largest),
        case([np.full((3, 2), math.inf, "float16"), np.full(4, math.nan, "float16")]),
        case(gradients(math.inf), scale=2.0),
        case(gradients(), good_steps=growth - 1, scale=1.0),
        case(gradients(math.nan), scale=largest),
        {**case(gradients(), good_steps=0), "growth_steps": 1},
        {**case(gradients(), good_steps=0, scale=1.0), "growth_steps": 1, "largest_scale": 1.0},
        {**case(gradients(), good_steps=growth - 1, scale=2.0**39), "largest_scale": 2.0**40},
        case([np.array(2.0**-20, "float16"), np.ones((1, 2, 3), "float16")]),
        *({**case(gradients(), good_steps=good), "growth_steps": 2_000} for good in (1_300, 1_999)),  # Keras' number
        case([*np.ones((120, 2), "float16"), np.array(math.inf, "float16")]),
    ]
    return shuffled(rng, cases)


def probe_updates(names, seed):
    """What the learner's update gives for each case."""
    with np.errstate(all="ignore"):
        return {"updates": [_updated(names["update"], case) for case in transitions(seed)]}


def _updated(update, case):
    scale, good_steps, unscaled = update(**{**case, "gradients": [np.copy(gradient) for gradient in case["gradients"]]})
    arrays = None if unscaled is None else [np.asarray(gradient) for gradient in unscaled]
    return {
        "scale": float(scale),
        "good_steps": int(good_steps),
        "unscaled": arrays,
        "dtypes": sorted({str(array.dtype) for array in arrays or ()}),
    }


# q4: dtypes by layer


def counting_model(seed: int) -> dict[str, object]:
    """q4's sizes, the weights of the three dense layers, and counts (4, features) up to the largest.

    The width is odd, so that rounding it up to a multiple gives another model.
    """
    rng = np.random.default_rng(seed)
    features, half, classes = (int(rng.integers(*bounds)) for bounds in ((20, 30), (25, 32), (3, 6)))
    width = 2 * half + 1
    largest = int(rng.integers(2_000_000, 4_000_000))  # far from the million of the picture
    sizes = {"features": features, "width": width, "classes": classes, "largest_count": largest}
    shapes, spreads = ((features, width), (width, width), (width, classes)), (3.0, 16.0, 1.0)
    kernels = [spread * rng.normal(size=shape) for shape, spread in zip(shapes, spreads)]
    biases = [spread * rng.normal(size=kernel.shape[1]) for spread, kernel in zip((10.0, 1.0, 1.0), kernels)]
    weights = [array.astype("float32") for pair in zip(kernels, biases) for array in pair]
    counts = rng.integers(largest // 2, largest, (4, features), endpoint=True) // np.array([[1], [2], [4], [8]])
    return {"sizes": sizes, "weights": weights, "counts": counts.astype("float32")}


def probe_mixed_model(names, seed):
    """For each policy, the dtypes of the learner's layers and matrix products, and its logits for large counts."""
    return {policy: _built(names["mixed_model"], policy, counting_model(seed)) for policy in POLICIES}


def _built(mixed_model, policy, wanted):
    import keras

    from course_lib import precision

    before, kept = keras.config.dtype_policy(), []
    try:
        for other in ("mixed_bfloat16", "float32"):  # the second model is the one that is looked at
            keras.config.set_dtype_policy(other)
            model = mixed_model(policy, **wanted["sizes"])
            kept.append(keras.config.dtype_policy().name == other)
    finally:
        keras.config.set_dtype_policy(before)
    model.set_weights(wanted["weights"])
    logits = model(wanted["counts"])
    return {
        "layers": {name: [computes, variables] for name, computes, variables in precision.layer_dtypes(model)},
        "products": _products(model, wanted["counts"]),
        "global_policy_kept": kept,  # where it was another one, and where it was float32
        "logits_dtype": keras.backend.standardize_dtype(logits.dtype),
        "logits": np.asarray(keras.ops.cast(logits, "float32")),
    }


def _products(model, counts) -> list[list[object]]:
    """[dtype, multiplications for one example] of each product with a matrix in the model's graph."""
    import tensorflow as tf

    shape = tf.TensorSpec(np.shape(counts), np.asarray(counts).dtype)
    operations = tf.function(lambda values: model(values)).get_concrete_function(shape).graph.get_operations()
    products = [one for one in operations if one.type in ("MatMul", "BatchMatMulV2", "Einsum")]
    return [[one.outputs[0].dtype.name, int(np.prod(one.inputs[1].shape))] for one in products]

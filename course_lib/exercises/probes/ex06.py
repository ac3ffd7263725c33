"""Probes of exercise 06: a model on two devices, a number of micro-batches, 1F1B, balance; q5's is in ex06_stage.

Needs NumPy; TensorFlow for q1. The inputs are functions of the seed.
"""

import re

import numpy as np

from course_lib.exercises.probes.cases import REFUSED, ask_or_refused, shuffled
from course_lib.exercises.probes.state import device_names, device_of

# q1: a model on two devices

FROZEN = 1  # the place of the layer that is not trained, in each stage


def two_stages(seed: int) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """q1's model: two stages, each with two or three layers tanh(x @ kernel + bias), as (kernel, bias), float32."""
    rng = np.random.default_rng(seed)
    width, stages = int(rng.integers(3, 7)), []
    for layers in rng.permutation([2, 3]):
        stages.append([])
        for _ in range(layers):
            wide = int(rng.integers(3, 7))
            # Small, so that the sums stay far from tanh's flat ends.
            kernel, bias = rng.normal(size=(width, wide)) / width, rng.normal(size=wide) / 4
            stages[-1].append((kernel.astype("float32"), bias.astype("float32")))
            width = wide
    return stages


def two_stage_batch(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """x (b, n) and y (b, k) for q1's model, float32."""
    rng, stages = np.random.default_rng(seed + 1), two_stages(seed)
    rows, inputs, outputs = int(rng.integers(5, 10)), len(stages[0][0][0]), len(stages[1][-1][1])
    return rng.normal(size=(rows, inputs)).astype("float32"), rng.normal(size=(rows, outputs)).astype("float32")


def probe_placement(names, seed):
    """The weights' devices, the gradients, [stage, pass, device] of each matrix product; again with devices exchanged.

    What is under no device runs on the default one, which must not be right by luck.
    Both functions were called before: for stages of halved weights, and with another batch.
    A missing gradient is None. Devices are numbered as the function's argument has them.
    """
    two = device_names()[:2]
    return {"runs": [_placed(names, seed, order) for order in (two, two[::-1])]}


def _placed(names, seed, two):
    import tensorflow as tf

    from course_lib.pipeline import op_devices

    x, y = map(tf.constant, two_stage_batch(seed))
    names["place"](_makers(halved(two_stages(seed))), two)
    stages = names["place"](_makers(two_stages(seed)), two)

    def step(x, y):
        return names["gradients"](stages, two, x, y)

    before = [variable.numpy() for stage in stages for variable in stage.weights]
    step(x[1:], -y[1:])
    gradients, ran = step(x, y), op_devices.where_it_ran(step, x, y)
    after = [variable.numpy() for stage in stages for variable in stage.weights]
    return {
        "trained": not all(map(np.array_equal, before, after)),
        "variables": [[_number(device_of(v), two) for v in stage.weights] for stage in stages],
        "gradients": [None if one is None else np.asarray(one) for one in gradients],
        "products": [[_stage(name), _pass(name), _number(device, two)] for name, device in ran],
    }


def halved(stages: list) -> list:
    """The stages with half of each kernel and bias."""
    return [[(kernel / 2, bias / 2) for kernel, bias in layers] for layers in stages]


def _makers(stages):
    return tuple(_maker(number, layers) for number, layers in enumerate(stages))


def _maker(number, layers):
    def make():
        import keras

        dense = [
            keras.layers.Dense(
                len(bias), activation="tanh", trainable=place != FROZEN, name=f"stage{number}_layer{place}"
            )
            for place, (_, bias) in enumerate(layers)
        ]
        stage = keras.Sequential([keras.Input((len(layers[0][0]),)), *dense])
        stage.set_weights([array for pair in layers for array in pair])
        return stage

    return make


def _number(device, two):
    return two.index(device) if device in two else -1


def _stage(name):
    found = re.search(r"stage(\d)_layer", name)
    return int(found[1]) if found else -1


def _pass(name):
    return "backward" if "gradient_tape" in name else "forward"


# q2: a number of micro-batches


def pipelines(seed: int) -> list[dict[str, object]]:
    """q2's cases: small ones, where memory is exactly full; then, in no order, drawn ones that differ in what decides.

    Where a bubble equals the largest one allowed, the rounding of floats does not decide. A bubble that is no short
    decimal has one just below it and one just above it; one stage has none.
    """
    rng = np.random.default_rng(seed)
    small = [("GPipe", 4, [3, 3], 0.5, 12), ("1F1B", 4, [3, 3], 0.5, 6), ("1F1B", 4, [3, 3], 0.25, 6)]
    small += [("1F1B", 4, [3, 3], 0.5, 5), ("1F1B", 6, [1, 2], 0.5, 6)]
    cases = [
        ("GPipe", 84, [1.0] * 4, 0.1, 90.0),
        ("1F1B", 72, [1.0] * 4, 0.25, 80.0),
        ("1F1B", 96, [1.0] * 4, 0.25, 20.5),
        ("1F1B", 96, [1.0, 2.0, 5.0, 1.0], 0.25, 61.0),
        ("GPipe", 60, [1.0, 1.5, 1.0], 0.2, 95.0),
        ("GPipe", 60, [1.0, 1.5, 1.0], 0.2, 85.0),
        ("1F1B", 96, [2.0] * 5, 0.2, 9.5),
        ("1F1B", 12, [1.0] * 8, 0.1, 50.0),
        ("1F1B", 12, [1.0] * 8, 0.75, 13.0),
        ("1F1B", 12, [1.0], 0.0, 3.5),
        ("GPipe", 12, [1.0, 1.0], 0.0, 50.0),
        ("1F1B", 3000, [1.0] * 4, 0.002, 50.0),
        ("GPipe", 720, [1.0] * 120, 0.15, 800.0),
    ]
    p, m = ((3, 12), (4, 10), (4, 20), (5, 20))[rng.integers(4)]
    schedules = rng.permutation(["GPipe", "1F1B"]).tolist()
    cases += [
        (schedule, 60, [1.0] * p, float((p - 1) / (m + p - 1) * factor), 80.0)
        for schedule, factor in zip(schedules, (0.9999, 1.0001))
    ]
    drawn = [_pipeline(*case, rng.uniform(1e6, 1e8)) for case in shuffled(rng, cases)]
    return [*(_pipeline(*case, 1) for case in small), *drawn]


def _pipeline(schedule, batch, example, largest_bubble, memory, scale):
    return {
        "schedule": schedule,
        "batch": batch,
        "example_bytes": [int(one * scale) for one in example],
        "largest_bubble": largest_bubble,
        "memory_bytes": int(memory * scale),
    }


def probe_micro_batches(names, seed):
    """The learner's m for each case, or that it raised a ValueError."""
    return {"counts": [ask_or_refused(names["choose_micro_batches"], case) for case in pipelines(seed)]}


# q3: 1F1B


def shapes(seed: int) -> list[tuple[int, int]]:
    """q3's pipelines: (stages, micro-batches).

    Micro-batches of two digits, fewer than stages, one, as many as stages; two stages, and one; many of both.
    """
    rng = np.random.default_rng(seed)
    stages, more = int(rng.integers(4, 7)), int(rng.integers(2, 5))
    long, equal = (stages, int(rng.integers(11, 16))), (stages + 1, stages + 1)
    few = [long, (stages, stages - 2), (stages - 1, 1), equal, (2, 2 + more), (1, more)]
    return [*few, (2, 100 + long[1]), (12 + stages, 30 + more)]


def probe_orders(names, seed):
    """The learner's order of work for every stage of each pipeline; the last stage is asked first."""
    order_of = names["order_of"]
    return {"orders": [[list(order_of(stage, p, m)) for stage in range(p)[::-1]][::-1] for p, m in shapes(seed)]}


# q4: balance


def layer_rows(seed: int) -> list[dict[str, object]]:
    """q4's cases: seconds and bytes of each layer, stages, a device's memory; times a scale, the seconds a little off.

    The first is small, and its best cut fills a memory. The next ones are of whole seconds, of one stage, or of as many
    as layers; in one, a byte decides. The others differ in what decides: one slow layer, memory, an order in which a
    careless cut fails; no cut fits the last two of few layers, of which one has a sum and layers that are small enough.
    The last one has many layers.
    """
    rng = np.random.default_rng(seed)
    cases = [
        ([2, 1, 1, 1, 3, 3, 3, 2, 6], [1, 3, 3, 1, 1, 2, 1, 1, 2], 3, 20),
        ([1, 4, 4, 4, 4, 1, 1, 1], [9, 2, 2, 2, 2, 4, 4, 3], 3, 12),
        ([3, 3, 1, 5, 2, 2, 2, 4, 1, 3], [2, 2, 2, 2, 2, 2, 2, 2, 2, 2], 4, 9),
        ([2, 2, 1, 3, 2, 6, 3], [1, 2, 1, 1, 2, 1, 1], 3, 8),
        ([1, 1, 12, 1, 1], [1, 1, 1, 1, 1], 4, 9),
        ([2, 2, 1, 1, 2, 2], [1, 1, 5, 5, 1, 1], 3, 8),
        ([2, 2, 2, 2, 2, 2], [5, 5, 1, 1, 5, 5], 2, 10),
        ([1, 2, 1, 2, 1], [3, 3, 3, 3, 3], 3, 5),
        (rng.integers(1, 9, 130).tolist(), [1] * 130, 2, 100),
    ]
    block = 2**20 * int(rng.integers(100, 1000))  # its multiples are exact in float32, and one byte less is not
    small = [
        ([3.0, 1.0, 1.0], [1, 1, 1], 2, 2),
        ([1.0, 2.0, 1.0, 5.0], [1, 1, 1, 1], 2, 4),
        ([1.0, 2.0], [2, 3], 1, 5),
        ([1.0, 2.0], [2, 3], 1, 4),
        ([1.0, 2.0, 1.0], [2, 4, 3], 3, 4),
        ([1.0, 2.0, 1.0], [2, 4, 3], 3, 3),
        ([2.0, 2.0, 3.0, 1.0], [3 * block, 2 * block, block, block], 2, 5 * block - 1),
    ]
    made = [dict(zip(("seconds", "weight_bytes", "stages", "memory_bytes"), case)) for case in small]
    for seconds, sizes, stages, memory in cases:
        times = 10 ** rng.uniform(-6, -1) * np.array(seconds) * rng.uniform(0.99, 1.01, len(seconds))
        unit = int(rng.integers(10**6, 10**8))
        made.append(
            {
                "seconds": times.tolist(),
                "weight_bytes": [unit * size for size in sizes],
                "stages": stages,
                "memory_bytes": unit * memory,
            }
        )
    return made


def probe_balance(names, seed):
    """The learner's cut of each row, as lists of layer numbers, or that it raised a ValueError."""
    cuts = [ask_or_refused(names["cut_layers"], case) for case in layer_rows(seed)]
    return {"cuts": [cut if cut == REFUSED else [[int(layer) for layer in part] for part in cut] for cut in cuts]}

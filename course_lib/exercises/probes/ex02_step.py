"""Probe of exercise 02 q2: replicated steps of a linear model, with several optimizers.

Needs NumPy and TensorFlow. The inputs are functions of the seed.
"""

import numpy as np

from course_lib.exercises.probes.ex02_rows import watched_models
from course_lib.exercises.probes.replicas import local_arrays, mirrored_strategy, on_replicas, per_replica
from course_lib.exercises.probes.state import copies_of

REPLICAS = 3  # fewer than the notebook's four, so that no fixed number of replicas is right
FEATURES = 5  # of a row, another number than of replicas
CUT = 2  # features of the model's first variable, and the others are its second's
MOMENTUM = 0.9  # so that a step by hand is another step
WEIGHT_DECAY = 0.1  # of AdamW
FAR = 10_000  # times as far are the targets of one run, whose gradients are as long


def linear_problem(seed: int, replicas: int) -> tuple[np.ndarray, float, list[list[tuple[np.ndarray, np.ndarray]]]]:
    """Weights (5, 1), a learning rate, and two steps of shards (x (local, 5), y (local, 1)): even, then uneven.

    The two global batches have different sizes, so that no fixed number of rows is right for both.
    """
    rng = np.random.default_rng(seed)
    uneven = [int(rng.integers(3, 6))] * (replicas - 1) + [1]
    steps = [
        [tuple(rng.normal(size=(rows, columns)).astype("float32") for columns in (FEATURES, 1)) for rows in sizes]
        for sizes in ([6] * replicas, uneven)
    ]
    return rng.normal(size=(FEATURES, 1)).astype("float32"), 0.05, steps


def other_steps(seed: int, replicas: int) -> dict[str, list[list[tuple[np.ndarray, np.ndarray]]]]:
    """Two uneven steps for each of two other optimizers. With Nesterov momentum the targets are far away."""
    rng = np.random.default_rng([seed, 1])
    sizes = [int(rng.integers(3, 6))] * (replicas - 1) + [1]

    def shard(rows, far):
        x, y = rng.normal(size=(rows, FEATURES)), far * rng.normal(size=(rows, 1))
        return x.astype("float32"), y.astype("float32")

    distances = {"Nesterov": FAR, "AdamW": 1}
    return {name: [[shard(rows, far) for rows in sizes] for _ in range(2)] for name, far in distances.items()}


def probe_replica_step(names, seed):
    """Weights on every replica and every replica's loss after each step of a linear model, with three optimizers.

    Its layers have penalties, which are no part of the loss that q2 asks for.
    """
    import keras

    strategy = mirrored_strategy(REPLICAS)
    weights, rate, steps = linear_problem(seed, strategy.num_replicas_in_sync)
    others = other_steps(seed, strategy.num_replicas_in_sync)

    def run(optimizer, steps):
        return _run(strategy, names["replica_step"], weights, optimizer, steps)

    def watched(optimizer, steps):
        with watched_models(strategy) as rows_of:
            model, seen = run(optimizer, steps)
        rows = rows_of(model, np.zeros(0, "int64"))
        return {**seen, "calls": rows["calls"], "rows": rows["rows"]}

    # Without watching: a class grader looks at the first of the learner's calls whether anything has been replaced.
    _, own = run(lambda: keras.optimizers.SGD(rate, momentum=MOMENTUM), steps)
    nesterov = watched(lambda: keras.optimizers.SGD(rate, momentum=MOMENTUM, nesterov=True), others["Nesterov"])
    adamw = watched(lambda: keras.optimizers.AdamW(rate, weight_decay=WEIGHT_DECAY), others["AdamW"])
    return {**own, "others": {"Nesterov": nesterov, "AdamW": adamw}}


def _run(strategy, replica_step, weights, make_optimizer, steps):
    """The model, and its weights and the replicas' losses after each step.

    Its weights are two variables, so that an optimizer that is applied to one at a time counts too many steps.
    """
    import keras

    with strategy.scope():
        inputs = keras.Input((FEATURES,))
        parts = (inputs[:, :CUT], inputs[:, CUT:])
        added = [keras.layers.Dense(1, use_bias=False, kernel_regularizer="l2")(part) for part in parts]
        model = keras.Model(inputs, keras.layers.add(added))
        optimizer = make_optimizer()
        optimizer.build(model.trainable_variables)
    model.set_weights([weights[:CUT], weights[CUT:]])

    step = on_replicas(strategy, replica_step)
    parts, copies, axes = [], [], []
    for shards in steps:
        returned = local_arrays(strategy, step(args=(model, optimizer, *per_replica(strategy, shards))))
        parts.append([float(part.sum()) for part in returned])
        axes += [part.ndim for part in returned]
        each = [copies_of(strategy, variable) for variable in model.trainable_variables]
        copies.append([np.concatenate(copy) for copy in zip(*each, strict=True)])
    return model, {"weights": copies, "parts": parts, "axes_of_a_loss": max(axes)}

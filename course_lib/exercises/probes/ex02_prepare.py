"""Probe of exercise 02 q3: what each replica holds and gets, of a run that the learner has set up.

Needs NumPy and TensorFlow. The inputs are functions of the seed.
"""

import functools

import numpy as np

from course_lib.exercises.probes.replicas import local_arrays, mirrored_strategy, on_replicas
from course_lib.exercises.probes.state import copies_of

LABELS = "uint64"  # whose numbers are not what Python's int makes of them
REPLICAS = 3  # fewer than the notebook's four, so that no fixed number of replicas is right


def full_steps(seed: int) -> int:
    """Of an epoch: so many that batches in another order seldom leave the short one last."""
    return int(np.random.default_rng([seed, 1]).integers(19, 30))


def local_batch(seed: int) -> int:
    """Rows that the replicas should each see in a step, never as many that a fixed number of the notebook's fits."""
    return int(np.random.default_rng(seed).integers(5, 9))


def examples_of(seed: int, replicas: int) -> int:
    """How many examples there are: some full global batches, and a short one."""
    return full_steps(seed) * local_batch(seed) * replicas + replicas + 1


def few_left(seed: int, replicas: int) -> int:
    """How many examples a second data set has: after its full global batches fewer are left than there are replicas."""
    rng = np.random.default_rng([seed, 2])
    return int(rng.integers(2, 5)) * local_batch(seed) * replicas + int(rng.integers(1, replicas))


def rows(seed: int, count: int) -> np.ndarray:
    """The examples: float64 (count, 4), three features and a whole number as label, none of which float32 can hold."""
    rng = np.random.default_rng(seed)
    labels = 2 * rng.integers(2**30, 2**40, size=(count, 1)) + 1
    return np.hstack([rng.normal(size=(count, 3)), labels.astype("float64")])


def probe_prepare(names, seed):
    """How many replicas hold each variable, and how the examples reach them."""
    import keras
    import tensorflow as tf

    strategy = mirrored_strategy(REPLICAS)
    replicas = strategy.num_replicas_in_sync
    global_batch = local_batch(seed) * replicas

    def prepared(examples):
        return names["prepare"](
            strategy,
            lambda: keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]),
            lambda: keras.optimizers.SGD(0.1, momentum=0.9),
            tf.data.Dataset.from_tensor_slices((examples[:, :3], examples[:, 3:].astype(LABELS))),
            global_batch,
        )

    examples = rows(seed, examples_of(seed, replicas))
    model, optimizer, batches = prepared(examples)
    epochs = [[]]
    for _ in range(2):
        if _read(epochs[-1]) <= 2 * len(examples):
            epochs.append(_epoch(strategy, batches, 2 * len(examples)))
    model_copies, optimizer_copies = (
        [len(copies_of(strategy, variable)) for variable in held] for held in (model.weights, optimizer.variables)
    )
    built = len(optimizer.variables) > 2  # more than its step count and learning rate
    replicated = {*model_copies, *optimizer_copies} == {replicas}
    fewer = rows(seed, few_left(seed, replicas))
    _, _, batches = prepared(fewer)
    return {
        "replicas": replicas,
        "model_copies": model_copies,
        "optimizer_copies": optimizer_copies,
        "optimizer_built": built,
        "optimizer_fits": built and replicated and _takes_gradients(strategy, model, optimizer),
        "epochs": [_seen(steps) for steps in epochs[1:]],
        "few_left": _seen(_epoch(strategy, batches, 2 * len(fewer))),
    }


def _epoch(strategy, batches, most):
    """One epoch's steps, each the x and y of every replica; cut off after more than `most` examples."""
    steps = []
    for x, y in batches:
        steps.append([*zip(local_arrays(strategy, x), local_arrays(strategy, y))])
        if _read(steps) > most:  # it may never end
            break
    return steps


def _seen(steps):
    dtypes = sorted({f"{x.dtype} and {y.dtype}" for step in steps for x, y in step})
    shapes = [[list(x.shape) for x, _ in step] for step in steps]
    return {"shapes": shapes, "examples": _examples(steps), "dtypes": dtypes}


def _read(steps):
    return sum(x.size for step in steps for x, _ in step) // 3


def _examples(steps):
    """Features and label of every example that arrives in a batch, as one row."""
    batches = [(x, y) for step in steps for x, y in step if x.ndim == 2]
    return [np.concatenate([row, np.ravel(label)]).astype("float64") for x, y in batches for row, label in zip(x, y)]


def _takes_gradients(strategy, model, optimizer):
    """Whether the optimizer is built for the variables of this model that are trained, and for no others."""
    import tensorflow as tf

    if len(optimizer.variables) != 2 + len(model.trainable_variables):  # its count, its rate and the momenta
        return False
    pairs = [(tf.ones(variable.shape), variable) for variable in model.trainable_variables]
    try:
        on_replicas(strategy, functools.partial(optimizer.apply_gradients, pairs))()
    except ValueError:  # an unknown variable
        return False
    return True

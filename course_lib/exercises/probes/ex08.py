"""Probes of exercise 08: a group's gradient, three loops, a plan, two replicas.

Needs NumPy; TensorFlow for q2 and q5. The inputs are functions of the seed.
"""

import numpy as np

from course_lib.errors import CourseError
from course_lib.exercises.probes.cases import ask_or_refused, shuffled
from course_lib.exercises.probes.counted_sums import counted_sums
from course_lib.exercises.probes.replicas import local_arrays, mirrored_strategy, on_replicas, per_replica

LOOPS = ("loop_a", "loop_b", "loop_c")  # of q2
OPTIMIZERS = ("plain SGD", "momentum", "Adam")
RATE, MOMENTUM = 0.05, 0.8  # of q2's optimizers: not what an optimizer of somebody's own would have
PLAN_ARGUMENTS = ("global_batch", "replicas", "memory_bytes", "state_bytes", "gradient_bytes", "example_bytes")
PLAN_ARGUMENTS += ("examples", "epochs", "warmup_examples")
VARIABLES = (2, 1, 1)  # numbers in each of q5's: a kernel in two parts, and a bias
SMALL_SCALE = 1e-5  # of q5's last group: there, what somebody adds to a norm decides
LARGE_RATE = 0.5  # of q5, and of q3 in ex08_memory.py, so that a change is not lost in the rounding of what it changes


# q1: a group's gradient

WITH_A_REST = [(2, 1), (5, 2), (8, 3)]
TINY_STREAMS = (  # (gradient, rows) of each micro-batch, k
    ([(2, 1), (5, 2)], 2),
    ([(6, 3), (1, 2)], 1),
    (WITH_A_REST, 2),
    (WITH_A_REST, 2),
    ([(2, 3), (-3, 2), (5, 5), (0, 2), (4, 6)], 3),  # what is added up is zero after two, and after four
    ([(1, 2), (4, 1), (7, 1)], 2),
    ([(1, 2), (4, 1), (0, 3)], 2),  # gradients of zero, in a group that is not full
    ([(0, 2), (0, 1), (7, 1)], 2),
    ([(3, 1), (-3, 1), (2, 4), (3, 2), (-1, 6)], 3),
    ([(1, 300), (3, 100), (2, 2**16), (4, 2**16), (2, 2**31), (4, 2**31)], 2),  # as many rows as people count in
)
ASKED_TWICE, GIVEN_AS_LIST = (2, 3), 5  # places among the streams


def streams(seed: int) -> list[tuple[list[tuple[np.ndarray, int]], int]]:
    """q1's cases, (micro-batches, k), with micro-batches (gradient (n,) float64, rows): the tiny ones, then drawn ones
    with a rest, with none, and with a rest alone.

    The drawn ones have gradients of one size, so that what somebody keeps of one fits the next, and shows there.
    """
    rng = np.random.default_rng(seed)
    cases = [
        ([(np.array([float(gradient)]), rows) for gradient, rows in micro_batches], k)
        for micro_batches, k in TINY_STREAMS
    ]
    for count, k in ((8, 3), (8, 4), (3, 5)):
        rows = rng.permutation(np.arange(2, 2 + count))
        cases.append(([(rng.normal(size=4), int(number)) for number in rows], k))
    return cases


def probe_group_gradients(names, seed):
    """The learner's gradients for each stream, and whether the stream's arrays are as they were."""
    answers = []
    for place, ((micro_batches, k), (given, _)) in enumerate(zip(streams(seed), streams(seed))):
        handed = list(given) if place == GIVEN_AS_LIST else iter(given)
        gradients = [np.asarray(gradient) for gradient in names["group_gradients"](handed, k)]
        unchanged = all(np.array_equal(one, other) for (one, _), (other, _) in zip(micro_batches, given))
        answers.append({"gradients": gradients, "unchanged": unchanged})
    return {"streams": answers}


# q2: three loops


def epochs(seed: int) -> list[tuple[str, list[np.ndarray], list[tuple[np.ndarray, np.ndarray]], int]]:
    """q2's runs: (optimizer, [kernel (n, 1), bias (1,)], micro-batches (x (rows, n), y (rows, 1)) of equal rows, k).

    First small ones by plain SGD, of a full group, of two and a rest, and of a rest alone; then a larger one, whose
    last group lacks one, by every optimizer; then two full groups by those with a state.
    """
    rng = np.random.default_rng(seed)
    runs = [("plain SGD", *_epoch(rng, 1, 1, count, k)) for count, k in ((2, 2), (5, 2), (1, 3))]
    rows, k = int(rng.integers(5, 9)), int(rng.integers(3, 5))
    large = _epoch(rng, rows, 3, 3 * k - 1, k)
    full = _epoch(rng, rows, 3, 2 * k, k)
    return runs + [(optimizer, *large) for optimizer in OPTIMIZERS] + [(one, *full) for one in OPTIMIZERS[1:]]


def _epoch(rng, rows, width, count, k):
    shapes = [((rows, width), (rows, 1))] * count
    micro_batches = [tuple(rng.normal(size=shape).astype("float32") for shape in pair) for pair in shapes]
    return [_far_weights(rng, shape) for shape in ((width, 1), (1,))], micro_batches, k


def _far_weights(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Weights far from the minimum: near zero, gradients are not clipped and Adam amplifies their rounding."""
    return (rng.uniform(2, 4, shape) * rng.choice([-1, 1], shape)).astype("float32")


def probe_loops(names, seed):
    """Of each loop after each run: the weights, as a vector, the updates that it returned, the optimizer's steps."""
    import keras

    makers = (
        lambda: keras.optimizers.SGD(RATE),
        lambda: keras.optimizers.SGD(RATE, momentum=MOMENTUM),
        lambda: keras.optimizers.Adam(RATE, beta_1=MOMENTUM),
    )
    new_optimizer = dict(zip(OPTIMIZERS, makers))
    answers = {loop: [] for loop in LOOPS}
    for optimizer, first, micro_batches, k in epochs(seed):
        model = keras.Sequential([keras.Input((len(first[0]),)), keras.layers.Dense(1)])
        for loop in LOOPS:
            model.set_weights(first)
            own = new_optimizer[optimizer]()
            updates = names[loop](model, own, list(micro_batches), k)
            weights = np.concatenate([np.ravel(array) for array in model.get_weights()])
            answers[loop].append({"weights": weights, "updates": int(updates), "steps": int(own.iterations)})
    return answers


# q4: a plan


def runs_to_plan(seed: int) -> list[dict[str, int]]:
    """q4's cases: small ones, in most of which memory is exactly full; then drawn ones, each decided by something else.

    In some nothing fits, or the replicas do not divide the batch.
    """
    rng = np.random.default_rng(seed)
    small = [  # values of PLAN_ARGUMENTS
        (1, 1, 2, 1, 5, 1, 1, 1, 1),
        (4, 1, 9, 1, 4, 2, 10, 1, 5),
        (6, 1, 6, 2, 1, 1, 7, 2, 8),
        (6, 2, 9, 2, 2, 1, 9, 2, 5),  # the warm-up ends in an epoch of 6 and 3 examples
        (8, 2, 5, 2, 2, 1, 16, 3, 16),  # one example at a time
        (8, 2, 4, 2, 2, 1, 16, 3, 16),  # one too many
        (5, 2, 99, 2, 2, 1, 16, 3, 16),
        (3, 1, 5, 2, 4, 1, 5, 2, 4),  # whole, but no smaller part beside its sums
        (8, 4, 9, 2, 2, 1, 17, 2, 17),  # one example is left, for four replicas
        (4, 1, 2**34 - 1, 2**33, 1, 2**31, 10, 1, 5),  # a byte too few for all four
    ]
    base = {"global_batch": 80, "replicas": 2}
    special = [
        base | {"memory": 37.0},  # with the sums, 17 examples of 40 fit; without, 20
        base | {"memory": 61.5},  # all 40 fit, if there are no sums
        base | {"memory": 100.0},
        {"memory": 37.0, "global_batch": 120, "replicas": 3},
        {"memory": 21.0, "global_batch": 60, "replicas": 4},
        base | {"memory": 14.5},  # two fit, if there are no sums
        base | {"memory": 27.0},  # nine fit, and eight divide: half, a quarter and an eighth of 40 are 20, 10 and 5
        base | {"memory": 100.0, "global_batch": 82, "replicas": 4},
        {"memory": 37.0, "global_batch": 40_960, "replicas": 1_280},
    ]
    drawn = shuffled(rng, [_run_to_plan(rng, **case) for case in special])
    return [dict(zip(PLAN_ARGUMENTS, values)) for values in small] + drawn


def _run_to_plan(rng: np.random.Generator, memory: float, global_batch: int, replicas: int) -> dict[str, int]:
    gigabyte = rng.uniform(0.5e9, 2e9)
    examples = global_batch * int(rng.integers(20, 40)) + int(rng.integers(1, global_batch // 2))
    return {
        "global_batch": global_batch,
        "replicas": replicas,
        "memory_bytes": int(memory * gigabyte),
        "state_bytes": int(12 * gigabyte),
        "gradient_bytes": int(4 * gigabyte),
        "example_bytes": int(1.2 * gigabyte),
        "examples": examples,
        "epochs": int(rng.integers(7, 12)),
        "warmup_examples": 3 * examples + int(rng.integers(2, 15)) * global_batch + int(rng.integers(1, global_batch)),
    }


def probe_plan(names, seed):
    """The learner's plan of each run, or that it raised a ValueError."""
    return {"plans": [ask_or_refused(names["plan_group"], case, dict) for case in runs_to_plan(seed)]}


# q5: two replicas


def replica_runs(seed: int) -> list[tuple[float, list[np.ndarray], list[tuple[float, list]]]]:
    """q5's two runs: (scale, first weights (2, 1), (1, 1) and (1,), groups), with groups (clip_norm, micro-batches
    [replica] of x (rows, 3), y (rows, 1)).

    Of the first run the first group is clipped and the second is not. The second run has one, clipped group, and its
    targets, weights and gradients are smaller, by its scale. One replica has more rows than the other in each group,
    and no group has the 14 rows of the exercise's own.
    """
    rng = np.random.default_rng(seed)

    def shard(rows, scale):
        x, y = (rng.normal(size=(rows, width)) for width in (3, 1))
        return x.astype("float32"), (scale * y).astype("float32")

    def group(scale):
        pairs = (rng.choice(numbers, 2, replace=False) for numbers in ([5, 7, 8, 9], [1, 2, 3]))
        sizes = rng.permutation(list(pairs))  # [replica][micro-batch]
        return [[shard(int(rows), scale) for rows in micro_batch] for micro_batch in sizes.T]

    *kernels, bias = VARIABLES
    runs = []
    for scale in (1.0, SMALL_SCALE):
        groups = [(float(scale * rng.uniform(0.5, 1.0)), group(scale)), (1000.0 * scale, group(scale))]
        shapes = (*((rows, 1) for rows in kernels), (bias,))
        first = [(scale * _far_weights(rng, shape)).astype("float32") for shape in shapes]
        runs.append((scale, first, groups if scale == 1 else groups[:1]))
    return runs


def probe_two_replicas(names, seed):
    """Each replica's weights after each group, as a vector; the numbers in each sum over the replicas in `add` and in
    `update`, and in those that the given all_reduce made; how many tensors each `update` returned.
    """
    import tensorflow as tf

    strategy, runs = mirrored_strategy(2), replica_runs(seed)
    summed, given, returned, called = {"add": [], "update": []}, [], [], ["add"]

    def all_reduce(tensors):
        context = tf.distribute.get_replica_context()
        tensors = tf.nest.map_structure(tf.convert_to_tensor, tensors)
        if tf.get_static_value(context.replica_id_in_sync_group) == 0:  # each replica asks for the same
            given.append(sum(tensor.shape.num_elements() for tensor in tf.nest.flatten(tensors)))
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tensors)

    def call(name, *arguments):
        called[:] = [name]
        return names[name](*arguments, all_reduce)

    def after_each_group(first, groups, shards):
        weights, velocity = first, [0.0] * len(first)
        for (clip_norm, _), micro_batches in zip(groups, shards):
            sums = [*(tf.zeros(variable.shape) for variable in weights), tf.zeros(())]
            for x, y in micro_batches:
                sums = call("add", sums, _gradients(weights, x, y), tf.cast(tf.shape(x)[0], tf.float32))
                _require_form(sums, weights)
            gradients = list(call("update", sums, clip_norm))
            returned.append(len(gradients))
            gradients += [0.0] * len(weights)  # what is too few or too many shows in their number
            velocity = [MOMENTUM * v - LARGE_RATE * gradient for v, gradient in zip(velocity, gradients)]
            weights = [variable + v for variable, v in zip(weights, velocity)]
            yield tf.concat([tf.reshape(variable, [-1]) for variable in weights], axis=0)

    def replica_run(shards):
        parts = zip(runs, shards)
        return tf.stack([one for (_, *run), own in parts for one in after_each_group(*run, own)])

    shards = [
        [[per_replica(strategy, micro_batch) for micro_batch in micro_batches] for _, micro_batches in groups]
        for _, _, groups in runs
    ]
    with counted_sums(strategy, lambda numbers: summed[called[0]].append(numbers)):
        weights = local_arrays(strategy, on_replicas(strategy, replica_run)(args=(shards,)))
    return {"weights": weights, "summed": summed, "given": given, "returned": returned}


def _require_form(sums, weights) -> None:
    """Refuse sums of other numbers or shapes than at first: they grow with the micro-batches of a group."""
    returned = [tuple(one.shape) if hasattr(one, "shape") else type(one).__name__ for one in sums]
    wanted = [*(tuple(variable.shape) for variable in weights), ()]
    if returned != wanted:
        line = f"add was given tensors of the shapes {wanted}, and returned {returned}"
        raise CourseError(line)


def _gradients(weights, x, y):
    """Of the mean squared error over the rows, by each of the linear model's variables."""
    import tensorflow as tf

    *kernels, bias = weights
    errors = 2 * (x @ tf.concat(kernels, axis=0) + bias - y) / tf.cast(tf.shape(x)[0], tf.float32)
    return [*tf.split(tf.transpose(x) @ errors, VARIABLES[:-1]), tf.reduce_sum(errors, axis=0)]

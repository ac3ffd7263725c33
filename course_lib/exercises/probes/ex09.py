"""Probes of exercise 09: a loss scale's window, its state machine, an overflow among replicas, dtypes, a comparison.

Needs NumPy; TensorFlow for q3 and q4. The inputs are functions of the seed.
"""

import contextlib
import functools
import itertools
import math
from unittest import mock

import numpy as np

from course_lib.exercises.probes.state import copies_of, device_names

NO_SCALE = "ValueError"  # q1's answer where no scale is right
REPLICAS, MOMENTUM = 3, 0.9  # of q3
POLICIES = ("mixed_float16", "mixed_bfloat16")  # of q4
TOLERANCE = 0.01  # q5's verdicts
CONTROL, HELD_OUT = "float32", "held out"
DISTURBED = {0: 20.0, 1: 25.0, 2: 30.0, 3: 0.2}  # a mixed trial's steps after its warm-up: how many times as long


# q1: a loss scale's window


def gradient_sets(seed: int) -> list[dict[str, object]]:
    """q1's cases, gradients and the largest lost share, each with something else that decides, in any order."""
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
    shuffled = [cases[place] for place in rng.permutation(len(cases))]
    return [{"gradients": gradients, "largest_lost_share": share} for gradients, share in shuffled]


def probe_scale(names, seed):
    """The learner's scale for each case, or that it raised a ValueError."""
    with np.errstate(all="ignore"):  # an overflow is what a wrong scale gives
        return {"scales": [_ask_scale(names["smallest_scale"], case) for case in gradient_sets(seed)]}


def _ask_scale(smallest_scale, case):
    try:
        return float(smallest_scale(**case))
    except ValueError:
        return NO_SCALE


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

    def gradients(second=None):
        """Two arrays; some numbers vanish from float16 when they are divided by a scale there."""
        one, other = rng.normal(size=(3, 2)), rng.normal(size=4)
        one[0], other[:2] = 2.0**-20, 2.0**-22
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
    ]
    return [cases[place] for place in rng.permutation(len(cases))]


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


# q3: an overflow on some replicas


def overflowing_run(seed: int, replicas: int) -> dict[str, object]:
    """A linear model's weights (3, 1), learning rate and loss scale, and five steps.

    A step has a shard (x (local, 3), y (local, 1)) for each replica, not all of one size.
    In the second step one replica overflows that is not the first, in the fourth the
    first and another; in the backward pass alone, so that losses stay finite. `bad`
    counts them.
    """
    rng = np.random.default_rng(seed)
    weights = (rng.choice([-1, 1], (3, 1)) * rng.uniform(0.5, 1, (3, 1))).astype("float32")
    one, another = rng.integers(1, replicas, 2)
    bad = [set(), {int(one)}, set(), {0, int(another)}, set()]
    steps = [[_shard(rng, weights, 3 + replica % 3, replica in those) for replica in range(replicas)] for those in bad]
    scale = 2.0 ** int(rng.integers(8, 11))
    return {"weights": weights, "rate": 0.05, "scale": scale, "steps": steps, "bad": [len(those) for those in bad]}


def _shard(rng, weights, rows, overflows):
    x, y = rng.uniform(0.2, 1, (rows, 3)) * rng.choice([-1, 1], (rows, 3)), 2 * rng.normal(size=(rows, 1))
    if overflows:
        x[0] = 4096 * np.sign(weights[:, 0])
    return x.astype("float32"), y.astype("float32")


def probe_replica_step(names, seed):
    """After every step of a float16 model: each replica's weights, scale and returned value; the updates counted."""
    import keras
    import tensorflow as tf

    strategy = _strategy()
    run = overflowing_run(seed, strategy.num_replicas_in_sync)
    with strategy.scope():
        inputs = keras.Input((3,))
        hidden = keras.layers.Dense(1, use_bias=False, dtype="mixed_float16")(inputs)
        model = keras.Model(inputs, keras.layers.Activation("linear", dtype="float32")(hidden))
        inner = keras.optimizers.SGD(run["rate"], momentum=MOMENTUM)
        optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=run["scale"])
        optimizer.build(model.trainable_variables)
    model.set_weights([run["weights"]])

    step = tf.function(functools.partial(strategy.run, names["replica_step"]))  # as in exercise 02
    seen = []
    for shards in run["steps"]:
        x, y = (_per_replica(strategy, part) for part in zip(*shards))
        global_batch = tf.constant(float(sum(len(x) for x, _ in shards)))
        with _threads_met_at_once():
            returned = step(args=(model, optimizer, x, y, global_batch))
        seen.append(
            {
                "weights": copies_of(strategy, model.trainable_variables[0]),
                "scales": [float(scale) for scale in copies_of(strategy, optimizer.dynamic_scale)],
                "iterations": int(optimizer.iterations.numpy()),
                "returned": [float(np.asarray(part)) for part in strategy.experimental_local_results(returned)],
            }
        )
    return {"steps": seen}


@functools.cache
def _strategy():
    import tensorflow as tf

    # As in exercise 02: this strategy's collectives must not meet those of the learner's.
    names, reduction = device_names()[:REPLICAS], tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(names, cross_device_ops=reduction)


@contextlib.contextmanager
def _threads_met_at_once():
    """TensorFlow asks once a second whether a replica's thread has ended: under Python 3.13, most of a check's time."""
    import tensorflow as tf

    coordinator = tf.train.Coordinator
    wait = coordinator.wait_for_stop
    with mock.patch.object(coordinator, "wait_for_stop", lambda self, timeout=None: wait(self, timeout and 0.01)):
        yield


def _per_replica(strategy, values):
    import tensorflow as tf

    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(values[context.replica_id_in_sync_group])
    )


# q4: dtypes by layer


def counting_model(seed: int) -> dict[str, object]:
    """q4's sizes, the weights of the three dense layers, and counts (4, features) up to the largest."""
    rng = np.random.default_rng(seed)
    features, width, classes = (int(rng.integers(*bounds)) for bounds in ((20, 30), (48, 64), (3, 6)))
    largest = int(rng.integers(500_000, 2_000_000))
    sizes = {"features": features, "width": width, "classes": classes, "largest_count": largest}
    shapes, spreads = ((features, width), (width, width), (width, classes)), (3.0, 16.0, 1.0)
    kernels = [spread * rng.normal(size=shape) for shape, spread in zip(shapes, spreads)]
    weights = [array.astype("float32") for kernel in kernels for array in (kernel, rng.normal(size=kernel.shape[1]))]
    counts = rng.integers(largest // 2, largest, (4, features), endpoint=True)
    return {"sizes": sizes, "weights": weights, "counts": counts.astype("float32")}


def probe_mixed_model(names, seed):
    """For each policy, the dtypes of the learner's layers and what the model gives for large counts."""
    return {policy: _built(names["mixed_model"], policy, counting_model(seed)) for policy in POLICIES}


def _built(mixed_model, policy, wanted):
    import keras

    from course_lib import precision

    before = keras.config.dtype_policy()
    try:
        model = mixed_model(policy, **wanted["sizes"])
        left = keras.config.dtype_policy().name
    finally:
        keras.config.set_dtype_policy(before)
    model.set_weights(wanted["weights"])
    logits = model(wanted["counts"])
    return {
        "layers": {name: [computes, variables] for name, computes, variables in precision.layer_dtypes(model)},
        "global_policy_kept": left == before.name,
        "logits_dtype": keras.backend.standardize_dtype(logits.dtype),
        "logits": np.asarray(keras.ops.cast(logits, "float32")),
    }


# q5: a fair comparison


def comparison(seed: int) -> dict[str, object]:
    """q5's arguments without the trials, and how much time the mixed steps really take."""
    rng = np.random.default_rng(seed)
    policy = str(rng.choice(POLICIES))
    return {
        "arguments": {
            "mixed": policy,
            "seeds": [int(number) for number in rng.choice(1000, 5, replace=False)],
            "warmup": int(rng.integers(17, 20)),  # more than the repeats, so that a median shows them
            "repeats": 15,
        },
        "ratio": float(rng.uniform(0.5, 0.75)),
    }


def held_out_difference(seed: int, trial_seed: int, updates: int) -> float:
    """By how much the mixed trial's error on held-out examples exceeds float32's."""
    mixed = comparison(seed)["arguments"]["mixed"]
    return _error(seed, mixed, trial_seed, updates, HELD_OUT) - _error(seed, CONTROL, trial_seed, updates, HELD_OUT)


def _error(seed, policy, trial_seed, updates, split) -> float:
    """Falls with the updates; differs by seeds far more than by policy; mixed looks better where it was trained."""
    unlucky = trial_seed == comparison(seed)["arguments"]["seeds"][0]
    by_seed = np.random.default_rng([seed, trial_seed]).uniform(0.1, 0.3) + (0.25 if unlucky else 0.0)
    noise = np.random.default_rng([seed, trial_seed, policy == CONTROL]).uniform(0, 0.01)
    mixed = 0.0 if policy == CONTROL else 0.02 if split == HELD_OUT else -0.02
    return float(by_seed * (0.5 if split != HELD_OUT else 1) + noise + mixed + 0.5 * math.exp(-updates / 20))


class PrecisionBench:
    """A machine with its own clock that gets slower with every step, and the trials that run on it.

    The first steps of a trial are slow, and a few of mixed's later ones are far too slow or too fast.
    """

    SLOWER = 1.01  # by so much after every step

    def __init__(self, seed: int):
        self._seed, self._case = seed, comparison(seed)
        self._now, self._steps = 100.0, 0
        self.asked: list[list[object]] = []  # [policy, trial's seed, updates, split]
        self.timed: list[str] = []  # the policies of all steps after the warm-up, in order

    def clock(self) -> float:
        return self._now

    def new_trial(self, policy: str, seed: int) -> "PrecisionTrial":
        return PrecisionTrial(self, policy, int(seed))

    def run(self, policy: str, trial_seed: int, number: int) -> None:
        """Take one step, the trial's `number`-th from 0."""
        mixed = policy != CONTROL
        rng = np.random.default_rng([self._seed, trial_seed, number, mixed])
        late = number - self._case["arguments"]["warmup"]
        if late < 0:
            seconds = (80.0 if mixed else 10.0) * (5 if number == 0 else 1)
        elif mixed:
            seconds = self._case["ratio"] * DISTURBED.get(late, 1.0)
        else:
            seconds = 1.0
        self._now += seconds * rng.uniform(0.995, 1.005) * self.SLOWER**self._steps
        self._steps += 1
        if late >= 0:
            self.timed.append(policy)

    def error(self, policy: str, trial_seed: int, updates: int, split: str) -> float:
        self.asked.append([policy, trial_seed, updates, split])
        return _error(self._seed, policy, trial_seed, updates, split)


class PrecisionTrial:
    """One training run on the bench: what q5's `new_trial` gives."""

    def __init__(self, bench: PrecisionBench, policy: str, seed: int):
        self._bench, self._who, self._updates = bench, (policy, seed), 0

    def step(self) -> None:
        self._bench.run(*self._who, self._updates)
        self._updates += 1

    def error(self, split: str) -> float:
        return self._bench.error(*self._who, self._updates, split)


def verdicts(seed: int) -> list[dict[str, object]]:
    """q5's cases: differences with a mean and a standard error, both in tolerances, and the verdict that they allow."""
    rng = np.random.default_rng(seed)
    cases = [
        (0.1, 0.1, 6, "no difference"),
        (0.5, 0.15, 6, "no difference"),
        (-0.4, 0.1, 7, "no difference"),
        (0.5, 0.4, 6, "undecided"),
        (0.9, 0.4, 6, "undecided"),
        (1.5, 0.4, 6, "undecided"),
        (-1.6, 0.4, 5, "undecided"),
        (0.02, 0.525, 5, "undecided"),
        (2.0, 0.3, 9, "worse"),
        (-2.0, 0.3, 9, "better"),
    ]
    return [
        {"differences": TOLERANCE * _sample(rng, *cases[place][:3]), "verdict": cases[place][3]}
        for place in rng.permutation(len(cases))
    ]


def _sample(rng, mean, standard_error, count) -> np.ndarray:
    """Numbers with exactly this mean and standard error."""
    numbers = rng.normal(size=count)
    numbers -= numbers.mean()
    return mean + numbers * standard_error * math.sqrt(count) / numbers.std(ddof=1)


def probe_comparison(names, seed):
    """What the learner's comparison measures on the bench, what it asked for, and its verdicts."""
    bench, arguments = PrecisionBench(seed), comparison(seed)["arguments"]
    ratio, differences = names["compare_precisions"](bench.new_trial, bench.clock, **arguments)
    said = [names["verdict"](list(map(float, case["differences"])), TOLERANCE) for case in verdicts(seed)]
    return {
        "ratio": float(ratio),
        "differences": [float(difference) for difference in differences],
        "asked": bench.asked,
        "most_in_a_row": max((len(list(run)) for _, run in itertools.groupby(bench.timed)), default=0),
        "verdicts": [str(one) for one in said],
    }

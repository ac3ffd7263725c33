"""Exercise 00: split a batch, count steps, place tensors, combine statistics exactly.

Needs NumPy; the wrong answers of q3 and q4 need TensorFlow when they run.
"""

import math

import numpy as np

from course_lib.exercises.judges import forms
from course_lib.exercises.probes import ex00 as probes
from course_lib.exercises.question import Mistake, Question, Target

MEAN_TOLERANCE = 1e-5  # float32 rounds at 6e-8; a mean of some tens of numbers loses little
VARIANCE_TOLERANCE = 2e-3  # near 4,000 float32 steps by 2e-4, on deviations of about 1


def _sums_right(answers, seed):
    for (batch, replicas), sizes in zip(probes.batches(seed), answers["sizes"], strict=True):
        if sum(sizes) != batch:
            return f"shard_sizes({batch}, {replicas}) gives {sizes}, which adds up to {sum(sizes)}"
    return True


def _one_each(answers, seed):
    for (batch, replicas), sizes in zip(probes.batches(seed), answers["sizes"], strict=True):
        if len(sizes) != replicas or not all(type(size) is int and size >= 0 for size in sizes):
            return f"shard_sizes({batch}, {replicas}) gives {sizes}"
    return True


def _differ_by_one(answers, seed):
    for (batch, replicas), sizes in zip(probes.batches(seed), answers["sizes"], strict=True):
        if max(sizes) - min(sizes) > 1:
            return f"shard_sizes({batch}, {replicas}) gives {sizes}, which differ by up to {max(sizes) - min(sizes)}"
    return True


def _chunks(batch, replicas):
    size = math.ceil(batch / replicas)
    return [max(0, min(size, batch - start * size)) for start in range(replicas)]


SHARD_SIZES = Question(
    name="q1",
    title="Split a batch fairly",
    asks_for=("shard_sizes",),
    probe=probes.probe_shard_sizes,
    targets=(
        Target("one whole number per replica, 0 or more", _one_each),
        Target("the sizes add up to the global batch", _sums_right),
        Target("no two sizes differ by more than 1", _differ_by_one),
    ),
    mistakes=(
        Mistake(
            "remainder dropped",
            "Your sizes lose the examples that are left over when the batch does not divide.",
            "`global_batch // replicas` throws `global_batch % replicas` examples away: who takes them?",
            lambda batch, replicas: [batch // replicas] * replicas,
        ),
        Mistake(
            "remainder on one replica",
            "One replica takes all the examples that are left over, and the others wait for it at every step.",
            "There are fewer left-over examples than replicas: hand them out one by one.",
            lambda batch, replicas: [batch // replicas] * (replicas - 1) + [batch - batch // replicas * (replicas - 1)],
        ),
        Mistake(
            "rounded up everywhere",
            "Every replica's size is rounded up, so that you hand out more examples than the batch has.",
            "Rounding up is right for `global_batch % replicas` of the replicas, not for all.",
            lambda batch, replicas: [math.ceil(batch / replicas)] * replicas,
        ),
        Mistake(
            "full shards first",
            "You fill shards to the rounded-up size until nothing is left; the last ones run short or stay empty.",
            "Compare your largest and smallest size; start from the rounded-down size and add.",
            _chunks,
        ),
        Mistake(
            "fractions",
            "You give replicas fractions of an example.",
            "`/` gives a float; `//` and `%` give the whole examples and the left-over ones.",
            lambda batch, replicas: [batch / replicas] * replicas,
        ),
        Mistake(
            "one number",
            "You return one number, and each replica needs a size of its own.",
            "The docstring's Returns: a list with `replicas` sizes.",
            lambda batch, replicas: batch // replicas,
        ),
    ),
)


def _all_whole(answers, seed):
    for name in ("kept", "dropped"):
        for (examples, batch), steps in zip(probes.epochs(seed), answers[name], strict=True):
            if type(steps) is not int:
                return f"for {examples:,} examples in batches of {batch} you return {steps!r}"
    return True


def _steps_see(name, wanted, sees):
    def holds(answers, seed):
        for (examples, batch), steps in zip(probes.epochs(seed), answers[name], strict=True):
            if steps != wanted(examples, batch):
                return f"{steps} steps for {examples:,} examples in batches of {batch} {sees(steps, examples, batch)}"
        return True

    return holds


def _kept_sees(steps, examples, batch):
    unseen = examples - steps * batch
    return f"leave {unseen:g} examples unseen" if unseen > 0 else "end with a batch that has no example"


def _dropped_sees(steps, examples, batch):
    spare = examples - steps * batch
    return "need more examples than there are" if spare < 0 else f"leave {spare:g} examples, enough for another batch"


STEPS = Question(
    name="q2",
    title="Count an epoch's steps",
    asks_for=("steps_per_epoch",),
    probe=probes.probe_steps,
    targets=(
        Target("the number of steps is an int", _all_whole),
        Target(
            "with drop_remainder=False every example is seen once",
            _steps_see("kept", lambda examples, batch: -(-examples // batch), _kept_sees),
        ),
        Target(
            "with drop_remainder=True there are as many steps as full batches",
            _steps_see("dropped", lambda examples, batch: examples // batch, _dropped_sees),
        ),
    ),
    mistakes=(
        Mistake(
            "always rounded down",
            "You drop the short last batch whether or not you are asked to.",
            "With drop_remainder=False the examples that are left over make one more step.",
            lambda examples, global_batch, drop_remainder: examples // global_batch,
        ),
        Mistake(
            "always rounded up",
            "You keep the short last batch whether or not you are asked to.",
            "With drop_remainder=True only full batches count.",
            lambda examples, global_batch, drop_remainder: -(-examples // global_batch),
        ),
        Mistake(
            "swapped",
            "You keep the short last batch exactly when you should drop it, and the other way round.",
            "Read your `if`: what does drop_remainder=True ask for?",
            lambda examples, global_batch, drop_remainder: (
                (examples - 1) // global_batch + 1 if drop_remainder else examples // global_batch
            ),
        ),
        Mistake(
            "one step too many",
            "You add a step for left-over examples even when the batches divide the examples exactly.",
            "Try 1,024 examples in batches of 64: is there anything left for another step?",
            lambda examples, global_batch, drop_remainder: examples // global_batch + (not drop_remainder),
        ),
        Mistake(
            "a fraction",
            "You return a fraction, and an epoch has a whole number of steps.",
            "`/` gives a float. Use `//`, and decide what happens to the rest.",
            lambda examples, global_batch, drop_remainder: (
                examples // global_batch if drop_remainder else examples / global_batch
            ),
        ),
    ),
)


def _each_on_its_own(answers, seed):
    if len(answers["asked"]) < 2:
        return "there is only one device: run the set-up cell, which simulates four, in a fresh kernel"
    return answers["lives_on"] == answers["asked"] or f"yours live on {', '.join(answers['lives_on'])}"


def _doubled(answers, seed):
    values, arrays = answers["values"], probes.arrays(seed, len(answers["asked"]))
    if [value.shape for value in values] != [array.shape for array in arrays]:
        return f"the arrays' lengths are {[array.size for array in arrays]}, yours {[value.size for value in values]}"
    return (
        all(map(np.allclose, values, [2 * array for array in arrays])) or "the lengths are right, the numbers are not"
    )


def _place(values, device_names, factor=2):
    import tensorflow as tf

    placed = []
    for value, name in zip(values, device_names):
        with tf.device(name):
            placed.append(factor * tf.constant(value))
    return placed


def _live_on(pick):
    def recognise(answers, seed):
        return len(answers["asked"]) > 1 and answers["lives_on"] == pick(answers["asked"])

    return recognise


def _on_default_device(answers, seed):
    """All on one: the first device asked for, or a lone GPU that nobody asked for."""
    first, *others = answers["lives_on"]
    elsewhere = first in answers["asked"][1:] or first.startswith("no device")
    return bool(others) and set(others) == {first} and not elsewhere


PLACE = Question(
    name="q3",
    title="Compute where you say",
    asks_for=("place",),
    probe=probes.probe_place,
    targets=(
        Target("tensor i lives on device i", _each_on_its_own),
        Target("tensor i is the double of array i", _doubled),
    ),
    mistakes=(
        Mistake(
            "default device",
            "All your tensors live on the first device, where TensorFlow puts what nobody places.",
            "An operation runs where it is written: which lines of yours stand inside the `with tf.device(name):` of their array?",
            lambda values, device_names: _place(values, [None] * len(values)),
            _on_default_device,
        ),
        Mistake(
            "last device",
            "All your tensors live on the last device.",
            "Which name does `tf.device` get when the tensor is made: this array's, or the loop's last one?",
            lambda values, device_names: _place(values, device_names[-1:] * len(values)),
            _live_on(lambda asked: asked[-1:] * len(asked)),
        ),
        Mistake(
            "reversed",
            "Your tensors are on the devices in the opposite order.",
            "Pair arrays and names from the front: `zip(values, device_names)`.",
            lambda values, device_names: _place(values, device_names[::-1]),
            _live_on(lambda asked: asked[::-1]),
        ),
        Mistake(
            "left the devices",
            "You return NumPy arrays or Python numbers, which live on no device.",
            "Return the tensor itself; `.numpy()` copies it away from its device.",
            lambda values, device_names: [2 * value for value in values],
            lambda answers, seed: all(place.startswith("no device") for place in answers["lives_on"]),
        ),
        Mistake(
            "moved, not doubled",
            "Your tensors are on the right devices and hold the arrays' own numbers.",
            "The docstring asks for the double; multiply inside the `with`, so that the device computes it.",
            lambda values, device_names: _place(values, device_names, factor=1),
            lambda answers, seed: all(
                map(np.array_equal, answers["values"], probes.arrays(seed, len(answers["asked"])))
            ),
        ),
    ),
)


def _few_numbers(answers, seed):
    if len(answers["numbers_sent"]) != len(answers["asked"]):
        return f"{len(answers['numbers_sent'])} statistics for {len(answers['asked'])} devices"
    return max(answers["numbers_sent"]) <= 4 or f"yours send {answers['numbers_sent']}"


def _mean_right(answers, seed):
    return _within(answers["combined"][0], _whole(answers, seed).mean(), MEAN_TOLERANCE)


def _variance_right(answers, seed):
    return _within(answers["combined"][1], _whole(answers, seed).var(), VARIANCE_TOLERANCE)


def _bright_variances_right(answers, seed):
    for by, variance in zip(probes.BRIGHTNESSES, answers["bright_variances"], strict=True):
        held = _within(variance, _whole(answers, seed, by).var(), VARIANCE_TOLERANCE)
        if held is not True:
            return f"with {by:,.0f} added to every value, {held}"
    return True


def _within(value, wanted, tolerance):
    error = abs(value - wanted) / abs(wanted)
    return bool(error <= tolerance) or f"yours is off by {100 * error:.2g}%"


def _shards(answers, seed, brighter=0.0):
    plain = probes.shards(seed, len(answers["asked"]))
    return [shard.astype("float64") for shard in probes.brightened(plain, brighter)]


def _whole(answers, seed, brighter=0.0):
    return np.concatenate(_shards(answers, seed, brighter))


def _spread_within(answers, seed):
    shards = _shards(answers, seed)
    return np.average([shard.var() for shard in shards], weights=[shard.size for shard in shards])


def _combined_is(mean, variance):
    """Recognise an answer whose whole-batch mean and variance are these of the seed's shards."""

    def recognise(answers, seed):
        wanted = [mean(answers, seed), variance(answers, seed)]
        return np.allclose(answers["combined"], wanted, rtol=1e-4)  # nearer to it than to the right answer

    return recognise


def _mean_of_means(answers, seed):
    return np.mean([shard.mean() for shard in _shards(answers, seed)])


def _sums(shard):
    import tensorflow as tf

    return tf.stack([float(shard.size), tf.reduce_sum(shard), tf.reduce_sum(tf.square(shard))])


def _moments(shard):
    import tensorflow as tf

    mean = tf.reduce_mean(shard)
    return tf.stack([float(shard.size), mean, tf.reduce_mean(tf.square(shard - mean))])


def _on_devices(compute):
    def local_statistics(shards, device_names):
        import tensorflow as tf

        statistics = []
        for shard, name in zip(shards, device_names):
            with tf.device(name):
                statistics.append(compute(shard))
        return statistics

    return local_statistics


def _weighted(statistics, lost=0, between=1):
    counts, means, variances = np.array(statistics, dtype="float64").T
    mean = np.average(means, weights=counts)
    squares = counts * (variances + between * (means - mean) ** 2)
    return mean, squares.sum() / (counts.sum() - lost)


def _unweighted(statistics):
    _, means, variances = np.array(statistics, dtype="float64").T
    return means.mean(), variances.mean() + means.var()


def _from_sums(statistics):
    count, total, squares = np.sum(statistics, axis=0)
    return total / count, squares / count - (total / count) ** 2


def _of_everything(shards):
    everything = np.concatenate([np.ravel(shard) for shard in shards])
    return everything.mean(), everything.astype("float64").var()


STATISTICS = Question(
    name="q4",
    title="One batch's statistics from many devices",
    asks_for=("local_statistics", "combine"),
    probe=probes.probe_statistics,
    targets=(
        Target("the statistics of shard i live on device i", _each_on_its_own),
        Target("at most 4 numbers leave each device", _few_numbers),
        Target("the whole batch's mean, to 0.001%", _mean_right),
        Target("the whole batch's variance, to 0.2%", _variance_right),
        Target("the variance still, to 0.2%, when the values are thousands", _bright_variances_right),
    ),
    mistakes=(
        Mistake(
            "not on the devices",
            "You compute every shard's statistics on the first device.",
            "q3's `with tf.device(name):` belongs around the computation of each shard.",
            {
                "local_statistics": lambda shards, device_names: [_moments(shard) for shard in shards],
                "combine": _weighted,
            },
            _on_default_device,
        ),
        Mistake(
            "the whole shard sent",
            "Your statistics are the shards themselves, so that all the data leaves its device.",
            "Which few numbers of a shard does the mean need, and which the variance?",
            {"local_statistics": lambda *at: _place(*at, factor=1), "combine": _of_everything},
            lambda answers, seed: answers["numbers_sent"] == [shard.size for shard in _shards(answers, seed)],
        ),
        Mistake(
            "mean of means",
            "Your mean is the mean of the shards' means, which counts a short shard as much as a long one.",
            "Weigh each shard's mean by its number of examples; lesson 00 breaks this on purpose.",
            {"local_statistics": _on_devices(_moments), "combine": _unweighted},
            lambda answers, seed: np.isclose(answers["combined"][0], _mean_of_means(answers, seed)),
        ),
        Mistake(
            "spread between shards lost",
            "Your variance averages the shards' variances, and forgets that the shards' means differ.",
            "An example's distance from the whole mean is its distance from its shard's mean, and then some.",
            {"local_statistics": _on_devices(_moments), "combine": lambda sent: _weighted(sent, between=0)},
            _combined_is(lambda *at: _whole(*at).mean(), _spread_within),
        ),
        Mistake(
            "n - 1",
            "Your variance divides by the number of examples less 1, as for a sample drawn from something larger.",
            "The docstring's variance is the mean squared distance from the mean of this very batch.",
            {"local_statistics": _on_devices(_moments), "combine": lambda sent: _weighted(sent, lost=1)},
            _combined_is(lambda *at: _whole(*at).mean(), lambda *at: _whole(*at).var(ddof=1)),
        ),
        Mistake(
            "sums of squares",
            "Your variance is right for small values, and lost to rounding for large ones: "
            "it is the small difference of two huge numbers.",
            "float32 keeps 7 digits. Subtract the shard's own mean on its device, before you square.",
            {"local_statistics": _on_devices(_sums), "combine": _from_sums},
            lambda answers, seed: (
                _variance_right(answers, seed) is True and _bright_variances_right(answers, seed) is not True
            ),
        ),
    ),
)

_PLACED = {"asked": forms.devices, "lives_on": [forms.text]}
QUESTIONS = (
    forms.formed(SHARD_SIZES, {"sizes": [[forms.scalar]]}),
    forms.formed(STEPS, {"kept": [forms.number], "dropped": [forms.number]}),
    forms.formed(PLACE, {**_PLACED, "values": [forms.array]}),
    forms.formed(
        STATISTICS,
        {
            **_PLACED,
            "numbers_sent": [forms.count],
            "combined": (forms.number, forms.number),
            "bright_variances": [forms.number],
        },
    ),
)

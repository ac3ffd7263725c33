"""Exercise 00: split a batch, count steps, place tensors, combine statistics exactly.

Needs NumPy; TensorFlow to compare an answer with known mistakes.
"""

import numpy as np

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.probes import ex00 as probes
from course_lib.exercises.question import Target

question = question_maker.of("00_start_here")
MEAN_TOLERANCE = 1e-5  # float32 rounds at 6e-8; a mean of some tens of numbers loses little
VARIANCE_TOLERANCE = 2e-3  # near 4,000 float32 steps by 2e-4, on deviations of about 1


def _each_split(problem):
    """A target: problem(sizes, batch, replicas) is None for every batch, or says what the sizes do."""

    def holds(answers, seed):
        for (batch, replicas), sizes in zip(probes.batches(seed), answers["sizes"], strict=True):
            if (said := problem(sizes, batch, replicas)) is not None:
                return f"shard_sizes({batch}, {replicas}) gives {sizes}{said}"
        return True

    return holds


def _not_one_each(sizes, batch, replicas):
    one_each = len(sizes) == replicas and all(type(size) is int and size >= 0 for size in sizes)
    return None if one_each else ""


def _another_sum(sizes, batch, replicas):
    return None if sum(sizes) == batch else f", which adds up to {sum(sizes)}"


def _differ(sizes, batch, replicas):
    difference = max(sizes) - min(sizes)
    return None if difference <= 1 else f", which differ by up to {difference}"


SHARD_SIZES = question(
    name="q1",
    title="Split a batch fairly",
    asks_for=("shard_sizes",),
    probe=probes.probe_shard_sizes,
    form={"sizes": [[forms.scalar]]},
    targets=(
        Target("one whole number per replica, 0 or more", _each_split(_not_one_each)),
        Target("the sizes add up to the global batch", _each_split(_another_sum)),
        Target("no two sizes differ by more than 1", _each_split(_differ)),
    ),
)


def _all_whole(answers, seed):
    for name in ("kept", "dropped"):
        for (examples, batch), steps in zip(probes.epochs(seed), answers[name], strict=True):
            if type(steps) is not int:
                return f"for {examples:,} examples in batches of {batch} you return {steps!r}"
    return True


def _steps_are(name, wanted):
    """A target: as many steps as wanted(examples, batch)."""

    def holds(answers, seed):
        for (examples, batch), steps in zip(probes.epochs(seed), answers[name], strict=True):
            if steps != wanted(examples, batch):
                spare = steps * batch - examples
                said = f"take {spare:g} examples more than there are" if spare > 0 else f"leave {-spare:g} unseen"
                return f"{steps} steps for {examples:,} examples in batches of {batch} {said}"
        return True

    return holds


STEPS = question(
    name="q2",
    title="Count an epoch's steps",
    asks_for=("steps_per_epoch",),
    probe=probes.probe_steps,
    form={"kept": [forms.number], "dropped": [forms.number]},
    targets=(
        Target("the number of steps is an int", _all_whole),
        Target(
            "with drop_remainder=False every example is seen once",
            _steps_are("kept", lambda examples, batch: -(-examples // batch)),
        ),
        Target(
            "with drop_remainder=True there are as many steps as full batches",
            _steps_are("dropped", lambda examples, batch: examples // batch),
        ),
    ),
)


def _each_on_its_device(answers, seed):
    if len(answers["asked"]) < 2:
        return "there is only one device: run the set-up cell, which simulates four, in a fresh kernel"
    return answers["lives_on"] == answers["asked"] or f"yours live on {', '.join(answers['lives_on'])}"


def _doubled(answers, seed):
    values, arrays = answers["values"], probes.arrays(seed, len(answers["asked"]))
    if [value.shape for value in values] != [array.shape for array in arrays]:
        return f"the arrays' lengths are {[array.size for array in arrays]}, yours {[value.size for value in values]}"
    right = all(map(np.allclose, values, [2 * array for array in arrays]))
    return right or "the lengths are right, the numbers are not"


_PLACED = {"asked": forms.devices, "lives_on": [forms.text]}
PLACE = question(
    name="q3",
    title="Compute where you say",
    asks_for=("place",),
    probe=probes.probe_place,
    form={**_PLACED, "values": [forms.array]},
    targets=(
        Target("tensor i lives on device i", _each_on_its_device),
        Target("tensor i is the double of array i", _doubled),
    ),
    recognise={
        "left the devices": lambda answers, seed: all(place.startswith("no device") for place in answers["lives_on"])
    },
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


def _on_default_device(answers, seed):
    """All on one: the first device asked for, or a lone GPU that nobody asked for."""
    first, *others = answers["lives_on"]
    elsewhere = first in answers["asked"][1:] or first.startswith("no device")
    return bool(others) and set(others) == {first} and not elsewhere


def _mean_of_means(answers, seed):
    return np.isclose(answers["combined"][0], np.mean([shard.mean() for shard in _shards(answers, seed)]))


def _variance_is(variance):
    """Recognise the right mean beside this variance of the seed's shards, nearer to it than to the right one."""

    def recognise(answers, seed):
        shards = _shards(answers, seed)
        return np.allclose(answers["combined"], [np.concatenate(shards).mean(), variance(shards)], rtol=1e-4)

    return recognise


_STATISTICS = {"numbers_sent": [forms.count], "combined": (forms.number,) * 2, "bright_variances": [forms.number]}
STATISTICS = question(
    name="q4",
    title="One batch's statistics from many devices",
    asks_for=("local_statistics", "combine"),
    probe=probes.probe_statistics,
    form={**_PLACED, **_STATISTICS},
    targets=(
        Target("the statistics of shard i live on device i", _each_on_its_device),
        Target("at most 4 numbers leave each device", _few_numbers),
        Target("the whole batch's mean, to 0.001%", _mean_right),
        Target("the whole batch's variance, to 0.2%", _variance_right),
        Target("the variance still, to 0.2%, when the values are thousands", _bright_variances_right),
    ),
    recognise={
        "not on the devices": _on_default_device,
        "mean of means": _mean_of_means,
        "spread between shards lost": _variance_is(
            lambda shards: np.average([shard.var() for shard in shards], weights=list(map(len, shards)))
        ),
        "n - 1": _variance_is(lambda shards: np.concatenate(shards).var(ddof=1)),
        "sums of squares": lambda answers, seed: (
            _variance_right(answers, seed) is True and _bright_variances_right(answers, seed) is not True
        ),
    },
)

QUESTIONS = (SHARD_SIZES, STEPS, PLACE, STATISTICS)

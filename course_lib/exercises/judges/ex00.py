"""Exercise 00: split a batch, count steps, place tensors, combine statistics exactly.

Needs NumPy; TensorFlow to compare an answer with known mistakes.
"""

import functools
import math

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
    return None if one_each else f", and {replicas} whole numbers of at least 0 are wanted"


def _another_sum(sizes, batch, replicas):
    return None if sum(sizes) == batch else f", which adds up to {sum(sizes):g} and not to {batch}"


def _differ(sizes, batch, replicas):
    difference = max(sizes, default=0) - min(sizes, default=0)
    return None if difference <= 1 else f", which differ by up to {difference:g}"


def _splits_are(split):
    """Recognise sizes that are split(batch, replicas) for every batch, whichever replica gets which."""

    def recognise(answers, seed):
        asked = zip(probes.batches(seed), answers["sizes"], strict=True)
        return all(sorted(sizes) == sorted(split(*batch)) for batch, sizes in asked)

    return recognise


def _one_makes_up(answers, seed):
    """All sizes but one are alike, and that one makes up the difference."""

    def all_but_one_alike(sizes):
        return len(set(sizes[1:])) <= 1 or len(set(sizes[:-1])) <= 1

    asked = zip(probes.batches(seed), answers["sizes"], strict=True)
    return all(
        len(sizes) == replicas and sum(sizes) == batch and all_but_one_alike(sorted(sizes))
        for (batch, replicas), sizes in asked
    )


def _small_ones_whole(batch, replicas):
    size, left_over = divmod(batch, replicas)
    return [size + (replica < left_over) for replica in range(replicas)] if size else [0] * (replicas - 1) + [batch]


def _halves(batch, replicas, more):
    """Of an odd number of replicas the second half has one more; more: of an odd batch the first half has."""
    if replicas == 1:
        return [batch]
    half = (batch + more) // 2
    return _halves(half, replicas // 2, more) + _halves(batch - half, replicas - replicas // 2, more)


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
    recognise={
        "floats": lambda answers, seed: any(type(size) is float for sizes in answers["sizes"] for size in sizes),
        "remainder on one replica": _one_makes_up,
        "one left-over example only": _splits_are(
            lambda batch, replicas: [batch // replicas] * (replicas - 1) + [batch // replicas + (batch % replicas > 0)]
        ),
        "another number of replicas": lambda answers, seed: len({len(sizes) for sizes in answers["sizes"]}) == 1,
        "small batch on one replica": _splits_are(_small_ones_whole),
        "halved again and again": lambda answers, seed: any(
            _splits_are(functools.partial(_halves, more=more))(answers, seed) for more in (0, 1)
        ),
    },
)


def _all_whole(answers, seed):
    for name, dropped in _STEPS.items():
        for epoch, steps in zip(probes.epochs(seed), answers[name], strict=True):
            if type(steps) is not int:
                return f"{_call(epoch, dropped)} gives {steps!r}"
    return True


def _steps_are(name, wanted):
    """A target: as many steps as wanted(examples, batch)."""

    def holds(answers, seed):
        for epoch, steps in zip(probes.epochs(seed), answers[name], strict=True):
            if steps != wanted(*epoch):
                said = f", and {wanted(*epoch)} is wanted" if epoch[0] < 10 else ""
                return f"{_call(epoch, _STEPS[name])} gives {steps}{said}"
        return True

    return holds


def _call(epoch, dropped):
    return f"steps_per_epoch({epoch[0]}, {epoch[1]}, drop_remainder={dropped})"


def _some(kind):
    return lambda answers, seed: any(type(steps) is kind for name in _STEPS for steps in answers[name])


def _parts_of_steps(answers, seed):
    return any(steps % 1 for name in _STEPS for steps in answers[name])


def _dropped_is(*wanted):
    """Recognise one of wanted(examples, batch) for what is dropped, and right steps with all kept, of any examples."""

    def recognise(answers, seed):
        epochs = probes.epochs(seed)
        kept = all(not of or -(-of // batch) == steps for (of, batch), steps in zip(epochs, answers["kept"]))
        return kept and any(answers["dropped"] == [one(*epoch) for epoch in epochs] for one in wanted)

    return recognise


def _nearest(answers, seed):
    """A half up, down, or to the even one."""
    return all(
        steps in (round(examples / batch), math.floor(examples / batch + 0.5), math.ceil(examples / batch - 0.5))
        for (examples, batch), steps in zip(probes.epochs(seed), answers["kept"], strict=True)
    )


def _of_an_earlier_data_set(answers, seed):
    """Whether all tiny data sets have the steps of the first that has their batch size.

    The others' batch sizes may have been asked for before the check.
    """
    for name, first in (("kept", {2: 3, 3: 1}), ("dropped", {2: 2, 3: 0})):
        for (examples, batch), steps in zip(probes.epochs(seed), answers[name], strict=True):
            if type(steps) is not int or examples < 10 and steps != first[batch]:
                return False
    return True


_STEPS = {"kept": False, "dropped": True}  # drop_remainder
STEPS = question(
    name="q2",
    title="Count an epoch's steps",
    asks_for=("steps_per_epoch",),
    probe=probes.probe_steps,
    form=dict.fromkeys(_STEPS, [forms.scalar]),
    targets=(
        Target("the number of steps is a whole number", _all_whole),
        Target(
            "with drop_remainder=False every example is seen once",
            _steps_are("kept", lambda examples, batch: -(-examples // batch)),
        ),
        Target(
            "with drop_remainder=True there are as many steps as full batches",
            _steps_are("dropped", lambda examples, batch: examples // batch),
        ),
    ),
    recognise={
        "parts of steps": _parts_of_steps,
        "a float": _some(float),
        "a comparison": _some(bool),
        "rounded to the nearest": _nearest,
        "at least one step": _dropped_is(
            lambda examples, batch: max(1, examples // batch),
            lambda examples, batch: max(1, examples // batch) if examples else 0,
        ),
        "one fewer than kept": _dropped_is(
            lambda examples, batch: -(-examples // batch) - 1, lambda examples, batch: max(0, -(-examples // batch) - 1)
        ),
        "kept from an earlier data set": _of_an_earlier_data_set,
    },
)


def _each_on_its_device(lives_on, asked):
    if len(asked) < 2:
        return "there is only one device: run the set-up cell, which simulates four, in a fresh kernel"
    return None if lives_on == asked else f"on {', '.join(asked)} yours live on {', '.join(lives_on) or 'none'}"


def _doubled(call, asked, seed):
    values, arrays = call["values"], probes.arrays(seed, len(asked))
    if len(values) != len(arrays):
        return f"{len(values)} of them for {len(arrays)} arrays"
    if call["kept"] != [True] * len(arrays):
        return f"array {[*call['kept'], False].index(False)} itself has changed"
    for place, (value, array) in enumerate(zip(values, arrays)):
        if np.shape(value) != array.shape:
            return f"array {place} has the shape {array.shape}, tensor {place} {np.shape(value)}"
        if not np.allclose(value, 2 * array):
            said = f": {array.tolist()} has become {np.asarray(value).tolist()}" if place == 0 else ""
            return f"tensor {place} has the right length and other numbers{said}"
    return None


def _calls(answers):
    return zip(answers["calls"], probes.orders(answers["asked"]), strict=True)


def _each_call(problem):
    """A target: problem(call, devices asked for, seed) is None for both calls, or says what is wrong with one."""
    return lambda answers, seed: next(filter(None, (problem(*call, seed) for call in _calls(answers))), True)


def _both_calls(fits):
    """Recognise answers whose calls both fit(call, devices asked for, seed)."""
    return lambda answers, seed: all(fits(*call, seed) for call in _calls(answers))


def _whole_numbers(call, asked, seed):
    """Cut before or after they are doubled."""
    return all(
        any(np.array_equal(value, cut) for cut in (2 * np.trunc(array), np.trunc(2 * array)))
        for value, array in zip(call["values"], probes.arrays(seed, len(asked)), strict=True)
    )


def _one_axis_more(call, asked, seed):
    pairs = list(zip(call["values"], probes.arrays(seed, len(asked)), strict=True))
    return all(np.ndim(value) == 2 and np.allclose(np.ravel(value), 2 * array) for value, array in pairs)


def _of_an_earlier_call(answers, seed):
    """Whether the second call gives the first one's tensor of a device wherever it is as long as the array, once wrong.

    All but [1, 3] of the first call may be of an earlier check.
    """
    (first, before), (second, asked) = _calls(answers)
    arrays, earlier = probes.arrays(seed, len(asked)), [first["values"][before.index(name)] for name in asked]
    again = [
        (np.array_equal(value, tensor), len(array) == len(tensor), np.array_equal(value, 2 * array))
        for value, array, tensor in zip(second["values"], arrays, earlier, strict=True)
    ]
    placed = first["lives_on"] == before and second["lives_on"] == asked
    return (
        placed
        and np.array_equal(first["values"][0], 2 * arrays[0])
        and any(kept and not right for kept, _, right in again)
        and all(kept for kept, alike, _ in again if alike)
    )


def _on_no_device(places):
    return all(place.startswith("no device") for place in places)


def _are_variables(places):
    return bool(places) and all(place.endswith("Variable, no tensor)") for place in places)


_KEPT = {"lives_on": [forms.text], "values": [forms.array], "kept": [forms.flag]}
PLACE = question(
    name="q3",
    title="Compute where you say",
    asks_for=("place",),
    probe=probes.probe_place,
    form={"asked": forms.devices, "calls": (_KEPT,) * 2},
    targets=(
        Target(
            "tensor i lives on device i",
            _each_call(lambda call, asked, seed: _each_on_its_device(call["lives_on"], asked)),
        ),
        Target("tensor i is the double of array i", _each_call(_doubled)),
    ),
    recognise={
        "always the same devices": lambda answers, seed: all(
            call["lives_on"] == answers["asked"][: len(asked)] for call, asked in _calls(answers)
        ),
        "left the devices": _both_calls(lambda call, asked, seed: _on_no_device(call["lives_on"])),
        "variables": _both_calls(lambda call, asked, seed: _are_variables(call["lives_on"])),
        "only the first": _both_calls(lambda call, asked, seed: len(call["lives_on"]) == 1 < len(asked)),
        "in another order": _both_calls(
            lambda call, asked, seed: sorted(call["lives_on"]) == sorted(asked) and call["lives_on"] != asked
        ),
        "arrays changed": lambda answers, seed: not all(kept for call in answers["calls"] for kept in call["kept"]),
        "whole numbers": _both_calls(_whole_numbers),
        "one axis too many": _both_calls(_one_axis_more),
        "kept from an earlier call": _of_an_earlier_call,
    },
)


def _on_its_own_device(answers, seed):
    if said := _each_on_its_device(answers["lives_on"], answers["asked"]):
        return said
    return answers["first_is_its_own"] or "on the first device they are others when the other shards are left out"


def _few_numbers(answers, seed):
    if len(answers["numbers_sent"]) != len(answers["asked"]):
        return f"{len(answers['numbers_sent'])} statistics for {len(answers['asked'])} devices"
    if answers["formats"] != ["float32"] * len(answers["asked"]):
        return f"yours send {' and '.join(sorted({*answers['formats']}))}"
    return max(answers["numbers_sent"]) <= 4 or f"yours send {answers['numbers_sent']}"


def _combined(place, name, tolerance):
    """A target: the mean or the variance, first of the tiny shards."""

    def holds(answers, seed):
        tiny = probes.tiny_shards(len(answers["asked"]))
        own, wanted = answers["tiny"][place], _MOMENTS[place](np.concatenate(tiny))
        if _within(own, wanted, tolerance) is not True:
            shown = ", ".join(f"[{', '.join(f'{number:g}' for number in shard)}]" for shard in tiny[:4])
            return f"for the shards {shown} your {name} is {own:.4g}, and {wanted:.4g} is wanted"
        *_, last = _shards(answers, seed)
        alone = _within(answers["last_alone"][place], _MOMENTS[place](last), tolerance)
        if alone is not True:
            return f"of the last shard alone, {alone}"
        return _within(answers["combined"][place], _MOMENTS[place](_whole(answers, seed)), tolerance)

    return holds


_MOMENTS = (np.mean, np.var)
_variance_right = _combined(1, "variance", VARIANCE_TOLERANCE)


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


def _variance_is(*variances):
    """Recognise the right mean beside one of these variances of the seed's shards.

    variances  functions of the shards' counts n, means m and sums of squared distances q, an array each
    """

    def recognise(answers, seed):
        shards = _shards(answers, seed)
        n, m, v = (np.array([part(shard) for shard in shards]) for part in (len, np.mean, np.var))
        wanted = [[np.average(m, weights=n), variance(n, m, n * v)] for variance in variances]
        return any(np.allclose(answers["combined"], one, rtol=1e-4) for one in wanted)

    return recognise


def _between(n, m):
    return np.average((m - np.average(m, weights=n)) ** 2, weights=n)


def _shift_of_the_last_call(answers, seed):
    """Whether all variances are right, and the means are too large by about what the last call's values were raised."""
    tiny, shards = probes.tiny_shards(len(answers["asked"])), _shards(answers, seed)
    asked = [(answers["tiny"], tiny), (answers["combined"], shards), (answers["last_alone"], shards[-1:])]
    by = probes.BRIGHTNESSES[-1]
    return _variance_right(answers, seed) is True and all(
        abs(mean - np.concatenate(whole).mean() - by) < by / 100 for (mean, _), whole in asked
    )


def _moments_of_the_last_call(answers, seed):
    """Whether the mean and variance are always those of the last call's shards, whatever combine is given."""
    whole = _whole(answers, seed, probes.BRIGHTNESSES[-1])
    return all(
        _within(answers[asked][place], moment(whole), VARIANCE_TOLERANCE) is True
        for asked in ("tiny", "combined", "last_alone")
        for place, moment in enumerate(_MOMENTS)
    )


def _single_left_out(answers, seed):
    """Whether all is right, but for the tiny shards, whose first one of one example does not count."""
    others = np.concatenate(probes.tiny_shards(len(answers["asked"]))[1:])
    return np.allclose(answers["tiny"], [moment(others) for moment in _MOMENTS], rtol=1e-4) and all(
        _within(answers["combined"][place], moment(_whole(answers, seed)), VARIANCE_TOLERANCE) is True
        for place, moment in enumerate(_MOMENTS)
    )


def _changed_by_the_others(answers, seed):
    return answers["lives_on"] == answers["asked"] and not answers["first_is_its_own"]


_STATISTICS = {
    "asked": forms.devices,
    "lives_on": [forms.text],
    "numbers_sent": [forms.count],
    "formats": [forms.text],
    "first_is_its_own": forms.flag,
    "last_alone": (forms.any_number,) * 2,
    "tiny": (forms.any_number,) * 2,
    "combined": (forms.number,) * 2,
    "bright_variances": [forms.number],
}
STATISTICS = question(
    name="q4",
    title="One batch's statistics from many devices",
    asks_for=("local_statistics", "combine"),
    probe=probes.probe_statistics,
    form=_STATISTICS,
    targets=(
        Target("the statistics of shard i, and of no other, live on device i", _on_its_own_device),
        Target("at most 4 numbers, in float32, leave each device", _few_numbers),
        Target("the whole batch's mean, to 0.001%", _combined(0, "mean", MEAN_TOLERANCE)),
        Target("the whole batch's variance, to 0.2%", _variance_right),
        Target("the variance still, to 0.2%, when the values are thousands", _bright_variances_right),
    ),
    recognise={
        "not on the devices": _on_default_device,
        "left the devices": lambda answers, seed: _on_no_device(answers["lives_on"]),
        "variables": lambda answers, seed: _are_variables(answers["lives_on"]),
        "float64 leaves": lambda answers, seed: answers["formats"] == ["float64"] * len(answers["asked"]),
        "whole shards": lambda answers, seed: answers["numbers_sent"] == [len(one) for one in _shards(answers, seed)],
        "mean of means": _mean_of_means,
        "spread between shards lost": _variance_is(lambda n, m, q: q.sum() / n.sum(), lambda n, m, q: np.mean(q / n)),
        "spread within shards lost": _variance_is(lambda n, m, q: _between(n, m), lambda n, m, q: np.var(m)),
        "spread not weighted": _variance_is(
            lambda n, m, q: q.sum() / n.sum() + np.var(m),
            lambda n, m, q: q.sum() / n.sum() + np.mean((m - np.average(m, weights=n)) ** 2),
            lambda n, m, q: (q + (m - np.average(m, weights=n)) ** 2).sum() / n.sum(),
        ),
        "a shard of one": lambda answers, seed: (
            math.isnan(answers["tiny"][1])
            and _variance_is(lambda n, m, q: q.sum() / n.sum() + _between(n, m))(answers, seed)
        ),
        "n - 1": _variance_is(lambda n, m, q: (q.sum() + n.sum() * _between(n, m)) / (n.sum() - 1)),
        "n - 1 in each shard": _variance_is(
            lambda n, m, q: np.average(q / (n - 1), weights=n) + _between(n, m),
            lambda n, m, q: np.average(q / (n - 1), weights=n) + n.sum() / (n.sum() - 1) * _between(n, m),
        ),
        "sums of squares": lambda answers, seed: (
            _variance_right(answers, seed) is True
            and _bright_variances_right(answers, seed) is not True
            and answers["first_is_its_own"]
        ),
        "kept for combine": _shift_of_the_last_call,
        "combine reads the shards": _moments_of_the_last_call,
        "a shard of one left out": _single_left_out,
        "the other shards used": _changed_by_the_others,
    },
)

QUESTIONS = (SHARD_SIZES, STEPS, PLACE, STATISTICS)

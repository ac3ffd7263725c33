"""Exercise 08, q5: two replicas, one communication."""

import math

import numpy as np

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.judges.numbers import ROUGH, off
from course_lib.exercises.judges.stops import stopped_by
from course_lib.exercises.probes import ex08 as probes
from course_lib.exercises.question import Target

question = question_maker.of("08_gradient_accumulation")
FLOAT32 = 1e-5  # relative: a dozen products and sums in float32


def _clipped(gradient, clip_norm):
    return gradient * min(1, clip_norm / np.linalg.norm(gradient))


def _variables_clipped(gradient, clip_norm):
    return np.concatenate([_clipped(part, clip_norm) for part in np.split(gradient, np.cumsum(probes.VARIABLES)[:-1])])


def _weights_of(seed, **wrong):
    """[replica][group of both runs]: the weights, as a vector, over the run's scale; see _weights_of_run."""
    return np.concatenate([_weights_of_run(*run, **wrong) for run in probes.replica_runs(seed)], axis=1)


def _weights_of_run(
    scale,
    first,
    groups,
    weight=lambda rows: rows,
    count=lambda rows: rows,
    summed=("sums", "rows"),
    clip=_clipped,
    own=None,
    **late,
):
    """[replica][group]: the weights, as a vector and over the scale, by these sums.

    weight   rows -> a micro-batch's weight in the sum; count, in what the sum is divided by
    summed  what is summed over the replicas
    clip    (mean, clip_norm) -> gradient
    own     (sums, rows, clip_norm) -> what of them each replica hands over, and a factor of its gradient
    late    last=True: the rows are those of the last micro-batch; sums=True: sums are clipped, and then divided;
            by: rows -> divisor
    """
    weights = np.tile(np.concatenate([variable.ravel() for variable in first]).astype("float64"), (2, 1))
    velocity, seen = np.zeros_like(weights), []
    for clip_norm, micro_batches in groups:
        sums, rows = np.zeros_like(weights), np.zeros((2, 1))
        for shards in micro_batches:
            for replica, (x, y) in enumerate(shards):
                x = np.hstack([x, np.ones_like(y)])
                sums[replica] += weight(len(x)) * 2 * x.T @ (x @ weights[replica] - y[:, 0]) / len(x)
                rows[replica] = count(len(x)) + (0 if late.get("last") else rows[replica])
        sums, rows, factor = own(sums, rows, clip_norm) if own else (sums, rows, 1)
        sums, rows = (
            np.tile(part.sum(axis=0), (2, 1)) if name in summed else part
            for name, part in (("sums", sums), ("rows", rows))
        )
        before, after = (1, rows) if late.get("sums") else (late.get("by", _as_it_is)(rows), 1)
        gradients = np.array([clip(mean, clip_norm) for mean in sums / before]) / after * factor
        velocity = probes.MOMENTUM * velocity - probes.LARGE_RATE * gradients
        weights = weights + velocity
        seen.append(weights)
    return np.stack(seen, axis=1) / scale


def _got(answers, seed):
    """The learner's weights, in the form of _weights_of."""
    scales = [scale for scale, _, groups in probes.replica_runs(seed) for _ in groups]
    return np.array(answers["weights"]) / np.reshape(scales, (-1, 1))


def _as_it_is(value, *_):
    return value


def _one(rows):
    return 1


def _weights_are(*wrongs, **wrong):
    """Recognise the weights of both replicas after all groups, whatever crossed, by one wrong or any of several."""

    def recognise(answers, seed):
        got, found = _got(answers, seed), [_weights_of(seed, **each) for each in wrongs or [wrong]]
        return any(np.allclose(got, each, rtol=1e-4, atol=1e-4, equal_nan=True) for each in found)

    return recognise


def _parts_clipped(whole):
    """Each replica clips its sums over whole(rows), and they are not clipped again."""

    def own(sums, rows, clip_norm):
        return whole(rows) * np.array([_clipped(part, clip_norm) for part in sums / whole(rows)]), rows, 1

    return {"own": own, "clip": _as_it_is}


def _scaled(factor):
    return {"own": lambda sums, rows, clip_norm: (sums, rows, factor)}


def _own_norms(sums, rows, clip_norm):
    norms = np.linalg.norm(sums / rows, axis=1, keepdims=True)
    return sums, rows, np.minimum(1, clip_norm / norms)


def _errors(answers, seed):
    """How far the weights' change after each group is from one device's: as a share, or inf where shapes differ."""
    wanted = _changes(_weights_of(seed), seed)[0]
    if np.shape(answers["weights"]) != (2, *wanted.shape):
        return [math.inf] * len(wanted)
    got = _changes(_got(answers, seed), seed)
    return [np.max([off(replica[group], whole) for replica in got]) for group, whole in enumerate(wanted)]


def _changes(weights, seed):
    first = [
        np.concatenate([np.ravel(variable) for variable in first]) / scale
        for scale, first, groups in probes.replica_runs(seed)
        for _ in groups
    ]
    return weights - np.array(first)


def _one_device(answers, seed):
    if extra := [number for number in answers["returned"] if number != len(probes.VARIABLES)]:
        return f"your update returns {extra[0]} tensors, and there are {len(probes.VARIABLES)} variables"
    if np.shape(answers["weights"]) != (2, *_weights_of(seed)[0].shape):
        return "your update returns gradients of other shapes"
    small = f"third, clipped group (weights and clip_norm near {probes.SMALL_SCALE:g})"
    for name, error in zip(("first, clipped group", "second group", small), _errors(answers, seed), strict=True):
        if not np.isfinite(error):
            return f"after the {name} a weight is not finite"
        if not error <= FLOAT32:
            return f"after the {name} the weights' change is off by {100 * error:,.4g}%"
    return True


def _replicas_alike(answers, seed):
    error = off(*_got(answers, seed))
    return bool(error <= FLOAT32) or (f"they differ by {100 * error:,.4g}%" if np.isfinite(error) else "")


def _add_is_silent(answers, seed):
    numbers = answers["summed"]["add"]
    return not numbers or f"yours sums {sum(numbers)} numbers in {len(numbers)} all-reduces"


def _one_crossing(answers, seed):
    wanted, got = 1 + sum(probes.VARIABLES), _numbers_per_group(answers, seed)
    if got > wanted:
        return f"yours sums {got:g} numbers per group; weights and rows are {wanted}"
    if not answers["given"]:
        return "nothing goes through the `all_reduce` that you are given"
    return not _goes_past(answers, seed) or "not all that crosses goes through the `all_reduce` that you are given"


def _numbers_per_group(answers, seed):
    return sum(answers["summed"]["update"]) / sum(len(groups) for _, _, groups in probes.replica_runs(seed))


def _goes_past(answers, seed):
    """Whether more crosses the replicas than the given all_reduce has summed."""
    return sum(answers["summed"]["add"] + answers["summed"]["update"]) > sum(answers["given"])


def _summed_in_add(answers, seed):
    return bool(answers["summed"]["add"]) and _one_device(answers, seed) is True


def _crosses_again(answers, seed):
    right_and_silent = _one_device(answers, seed) is True is _add_is_silent(answers, seed)
    return right_and_silent and _numbers_per_group(answers, seed) > 1 + sum(probes.VARIABLES)


def _without_the_rows(answers, seed):
    wrong = _one_device(answers, seed) is not True and set(answers["returned"]) == {len(probes.VARIABLES)}
    return wrong and _numbers_per_group(answers, seed) == sum(probes.VARIABLES) and not answers["summed"]["add"]


def _one_tensor_more(answers, seed):
    return set(answers["returned"]) == {len(probes.VARIABLES) + 1} and max(_errors(answers, seed)) <= FLOAT32


def _shorter_where_small(answers, seed):
    """The small group's change has the right direction and is too short; the groups before it are as good as right."""
    *large, _ = _errors(answers, seed)
    wanted, changes = _changes(_weights_of(seed), seed)[0, -1], _changes(_got(answers, seed), seed)[:, -1]
    lengths = [np.linalg.norm(change) / np.linalg.norm(wanted) for change in changes]
    return max(large) <= ROUGH and all(
        length < 1 - FLOAT32 and off(change, length * wanted) <= FLOAT32 for change, length in zip(changes, lengths)
    )


REPLICAS = question(
    name="q5",
    title="Two replicas, one communication",
    asks_for=("add", "update"),
    probe=probes.probe_two_replicas,
    form={
        "weights": (forms.any_array,) * 2,
        "summed": {"add": [forms.size], "update": [forms.size]},
        "given": [forms.size],
        "returned": [forms.size],
    },
    targets=(
        Target("after each group the weights equal one device's big batch, to 0.001% of their change", _one_device),
        Target("both replicas have the same weights", _replicas_alike),
        Target("`add` sums nothing over the replicas", _add_is_silent),
        Target("`update` sums each gradient once, and the rows", _one_crossing),
    ),
    recognise={
        "every micro-batch": _summed_in_add,
        "a fixed number of variables": stopped_by("values to unpack (expected"),
        "never summed": _weights_are(summed=()),
        "parts clipped": _weights_are(_parts_clipped(_as_it_is), _parts_clipped(np.sum)),
        "clipped by the own norm": _weights_are({"own": _own_norms, "clip": _as_it_is}),
        "limit divided": _weights_are(clip=lambda mean, clip_norm: _clipped(mean, clip_norm / 2)),
        "mean of local means": _weights_are(own=lambda sums, rows, clip_norm: (sums / rows, rows / rows, 1)),
        "rows of the last one": _weights_are(last=True),
        "sum clipped": _weights_are(sums=True),
        "each variable alone": _weights_are(clip=_variables_clipped),
        "unweighted": _weights_are(weight=_one),
        "not clipped": _weights_are(clip=_as_it_is),
        "always that long": _weights_are(clip=lambda mean, clip_norm: mean * clip_norm / np.linalg.norm(mean)),
        "local rows": _weights_are(summed=["sums"]),
        "own rows doubled": _weights_are(summed=["sums"], by=lambda rows: 2 * rows),
        "rows returned": _one_tensor_more,
        "something beside the norm": _shorter_where_small,
        "rows not counted": _weights_are(count=lambda rows: 0),
        "not divided": _weights_are(by=_one),
        "micro-batches counted": _weights_are({"count": _one}, {"count": _one, "weight": _one}),
        "summed twice": lambda answers, seed: (
            bool(answers["summed"]["add"]) and _weights_are(by=lambda rows: rows / 2)(answers, seed)
        ),
        "divided twice": _weights_are({"by": lambda rows: 2 * rows}, _scaled(0.5)),
        "summed again": _weights_are({"by": lambda rows: rows / 2}, _scaled(2)),
        "two crossings": _crosses_again,
        "another all-reduce": _goes_past,
        "few digits": lambda answers, seed: FLOAT32 < max(_errors(answers, seed)) <= ROUGH,
        "rows in the norm": _weights_are(clip=lambda mean, norm: mean * min(1, norm / math.hypot(*mean, 1))),
        "rows never summed": _without_the_rows,
        "norm squared": _weights_are(clip=lambda mean, norm: mean * min(1, norm / np.linalg.norm(mean) ** 2)),
    },
)

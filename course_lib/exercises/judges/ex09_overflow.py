"""Exercise 09, q3: an overflow on some replicas."""

import numpy as np

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.judges.numbers import off
from course_lib.exercises.probes import ex09_overflow as probes
from course_lib.exercises.question import Target

question = question_maker.of("09_mixed_precision")
FLOAT32 = 1e-5  # relative: one division in float32
ROUNDED = 0.02  # relative: products of float16 numbers, 11 bits each, in two updates and their momentum


def _change(run, weights, shards, local_mean=False):
    """By how much one step without momentum changes the weights, in NumPy."""
    rows = sum(len(x) for x, _ in shards)
    shards = [(np.hstack([x, np.ones((len(x), 1))]), y) for x, y in shards]
    parts = [2 * x.T @ (x @ weights - y) / (len(x) if local_mean else rows) for x, y in shards]
    return -run["rate"] * sum(parts)


def _run_of(answers, seed):
    """The run that was asked. Raises ValueError when a step has values of more or fewer replicas than the first."""
    replicas = len(answers["steps"][0]["weights"])
    counts = {len(step[what]) for step in answers["steps"] for what in ("weights", "scales", "returned")}
    if counts != {replicas}:
        raise ValueError(f"the steps have values of {' and '.join(map(str, sorted(counts)))} replicas")
    return probes.overflowing_run(seed, replicas)


def _one_device(run, steps):
    """The weights after so many steps, with those skipped that have an overflow."""
    weights, velocity = run["weights"].astype("float64"), 0.0
    for shards, bad in zip(run["steps"][:steps], run["bad"]):
        if not bad:
            velocity = probes.MOMENTUM * velocity + _change(run, weights, shards)
            weights = weights + velocity
    return weights


def _finite(step):
    return all(np.isfinite(copy).all() for copy in step["weights"])


def _as_planned(answers, seed):
    """Each step, how many replicas overflow in it, and the step before.

    It ends where weights are no longer finite, or a scale is another than planned: others may overflow from there on.
    """
    run, halvings, before = _run_of(answers, seed), 0, None
    for step, bad in zip(answers["steps"], run["bad"], strict=True):
        if before and not (_finite(before) and {*before["scales"]} == {run["scale"] / 2**halvings}):
            break
        yield step, bad, before
        before, halvings = step, halvings + (bad > 0)


def _skipped_everywhere(answers, seed):
    for step, bad, before in _as_planned(answers, seed):
        if bad and not _finite(step):
            return "a weight is no longer finite"
        if bad and not all(map(np.array_equal, step["weights"], before["weights"])):
            return "weights have changed"
        if bad and step["iterations"] != before["iterations"]:
            return f"iterations counts it: {before['iterations']} and then {step['iterations']}"
    return True


def _scale_halved(answers, seed):
    run = _run_of(answers, seed)
    for step, halvings in zip(answers["steps"], np.cumsum(np.array(run["bad"]) > 0), strict=True):
        wanted = run["scale"] / 2**halvings
        if any(scale != wanted for scale in step["scales"]):
            scales = ", ".join(f"{scale:g}" for scale in step["scales"])
            return f"after {halvings} of them the replicas have the scales {scales}"
    return True


def _as_one_device(answers, seed):
    run, planned = _run_of(answers, seed), list(_as_planned(answers, seed))
    if not all(map(_finite, answers["steps"])):
        return "the weights are no longer finite"
    way = _one_device(run, len(planned)) - run["weights"]
    error = np.max([off(copy - run["weights"], way) for copy in planned[-1][0]["weights"]])
    return bool(error <= ROUNDED) or f"off by {error:.1%} of the way"


def _overflows_counted(answers, seed):
    for step, bad, _ in _as_planned(answers, seed):
        if any(count != bad for count in step["returned"]):
            counts = ", ".join(f"{count:g}" for count in step["returned"])
            return f"the replicas return {counts} where {bad} of them overflowed"
    return True


def _same_whoever_is_asked(answers, seed):
    if answers["changed"]:
        return f"your code sets the optimizer's {answers['changed'][0]}"
    for one, other in zip(answers["steps"], answers["asked_another"], strict=True):
        if _finite(one) and not _finite(other):
            return "where it asks another replica, a weight is no longer finite"
        numbers = ("scales", "iterations", "returned")
        as_one = np.allclose(one["weights"], other["weights"], rtol=ROUNDED, atol=ROUNDED, equal_nan=True)
        if not as_one or any(not np.array_equal(one[what], other[what], equal_nan=True) for what in numbers):
            return "where it asks another replica, your steps go otherwise"
    return True


def _first_step_is(factor, local_mean=False):
    """Recognise a first step, which has no overflow, that is factor(run) times as long as this one."""

    def recognise(answers, seed):
        run = _run_of(answers, seed)
        change = factor(run) * _change(run, run["weights"], run["steps"][0], local_mean)
        return off(answers["steps"][0]["weights"][0] - run["weights"], change) < ROUNDED

    return recognise


def _returned(answers, seed, of_bad):
    """Whether every replica returns of_bad(the number that overflowed) after each step."""
    pairs = zip(answers["steps"], _run_of(answers, seed)["bad"], strict=True)
    return all(one == of_bad(bad) for step, bad in pairs for one in step["returned"])


def _counted(**by_kind):
    """Recognise a right first step, then the numbers returned and the scales, to the first overflow that isn't counted.

    by_kind  for what overflows, how often each bad replica counts: else once
    """
    first_is_right = _first_step_is(lambda run: 1)

    def recognise(answers, seed):
        run, halvings = _run_of(answers, seed), 0
        for step, bad, kind in zip(answers["steps"], run["bad"], run["kinds"], strict=True):
            count = bad * by_kind.get(kind, 1)
            halvings += count > 0
            if {*step["returned"]} != {count}:
                return False
            if bad and not count:
                break
            if {*step["scales"]} != {run["scale"] / 2**halvings}:
                return False
        return first_is_right(answers, seed)

    return recognise


def _mean_returned(answers, seed):
    pairs = zip(answers["steps"], _run_of(answers, seed)["bad"], strict=True)
    return all(abs(one - bad / len(step["returned"])) < FLOAT32 for step, bad in pairs for one in step["returned"])


def _quartered(answers, seed):
    """Whether each overflow that it saw made the scale a quarter; the smaller scale then spares it a later one."""
    halvings = np.cumsum([max(step["returned"]) > 0 for step in answers["steps"]])
    scale = _run_of(answers, seed)["scale"]
    steps = zip(answers["steps"], halvings)
    return halvings[-1] > 0 and all(one == scale / 4**number for step, number in steps for one in step["scales"])


def _poisoned(answers, step=1):
    return not np.isfinite(answers["steps"][step]["weights"]).all()


def _first_is_told_alone(answers, seed):
    judges = (_skipped_everywhere, _scale_halved, _as_one_device, _overflows_counted)
    right = all(judge(answers, seed) is True for judge in judges)
    return right and not answers["changed"] and not all(map(_finite, answers["asked_another"]))


def _one_bad_alone_is_told(answers, seed):
    counted = zip(answers["steps"][:4], _run_of(answers, seed)["bad"])
    right = all({*step["returned"]} == {bad} for step, bad in counted)
    return right and _poisoned(answers, 3) and not _poisoned(answers)


_REPLICAS = {"weights": forms.each_replica(forms.any_array), "scales": [forms.any_number]}
_STEP = _REPLICAS | {"iterations": forms.size, "returned": [forms.any_number]}
OVERFLOW = question(
    name="q3",
    title="One replica overflows, all skip",
    asks_for=("replica_step",),
    probe=probes.probe_replica_step,
    form={"steps": [_STEP], "asked_another": [_STEP], "changed": [forms.text]},
    targets=(
        Target("an overflow anywhere changes no weight and counts as no update, on any replica", _skipped_everywhere),
        Target("it halves every replica's scale once", _scale_halved),
        Target("the other steps end where one device in float32 does, to 2% of the way", _as_one_device),
        Target("every replica returns the number of replicas that overflowed", _overflows_counted),
        Target("all of this whichever replica the optimizer asks, and without a change to it", _same_whoever_is_asked),
    ),
    recognise={
        "optimizer changed": lambda answers, seed: bool(answers["changed"]),
        "first replica alone": _first_is_told_alone,
        "a branch": lambda answers, seed: "`merge_call` called while defining" in answers["stopped"]["error"],
        "infinity passes": lambda answers, seed: _poisoned(answers) and not any(answers["steps"][1]["returned"]),
        "halved twice": _quartered,
        "last gradient alone": _counted(kernel=0),
        "first replica asked": lambda answers, seed: _poisoned(answers),
        "one bad replica alone": _one_bad_alone_is_told,
        "NaN passes": _counted(nan=0),
        "first gradient alone": _counted(bias=0),
        "not scaled": _first_step_is(lambda run: 1 / run["scale"]),
        "local mean": _first_step_is(lambda run: 1, local_mean=True),
        "mean of means": _first_step_is(lambda run: 1 / len(run["steps"][0]), local_mean=True),
        "four replicas": _first_step_is(lambda run: 1 / 4, local_mean=True),
        "gradients over four": _first_step_is(lambda run: len(run["steps"][0]) / 4),
        "divided twice": _first_step_is(lambda run: 1 / len(run["steps"][0])),
        "not divided": _first_step_is(lambda run: sum(len(x) for x, _ in run["steps"][0])),
        "summed twice": _first_step_is(lambda run: len(run["steps"][0])),
        "whether any": lambda answers, seed: _returned(answers, seed, lambda bad: min(bad, 1)),
        "mean of the flags": _mean_returned,
        "tensors counted": _counted(both=2, nan=2),
        "numbers counted": _counted(both=4, nan=4, kernel=3),
        "own replica alone": lambda answers, seed: all(
            sum(step["returned"]) == bad for step, bad in zip(answers["steps"], _run_of(answers, seed)["bad"])
        ),
        "bad ones zeroed": lambda answers, seed: (
            [step["iterations"] for step in answers["steps"][:2]] == [1, 2] and not _poisoned(answers)
        ),
    },
)

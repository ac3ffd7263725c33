"""Exercise 02's q2: one replica's part of a step, with several optimizers.

Needs NumPy; TensorFlow to compare an answer with known mistakes.
"""

import numpy as np

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.probes import ex02_step as probes
from course_lib.exercises.question import Target

question = question_maker.of("02_data_parallelism")
FLOAT32 = 1e-5  # relative: a dozen products and sums in float32


def _linear_run(
    answers, seed, gradient=lambda rows, all_rows, replicas: 1 / all_rows, loss=None, momentum=probes.MOMENTUM
):
    """The linear model's weights and losses after each of the probe's steps, in NumPy.

    gradient, loss  what a replica multiplies its sum of squared errors by before it differentiates, and before it
                    returns; (rows, all_rows, replicas) -> number; `loss` is `gradient` unless given
    """
    replicas = len(answers["weights"][0])
    weights, rate, steps = probes.linear_problem(seed, replicas)
    weights, velocity, after, losses = weights.astype("float64"), 0, [], []
    for shards in steps:
        all_rows, slope, lost = sum(len(x) for x, _ in shards), 0, 0
        for x, y in shards:
            error = x @ weights - y
            slope = slope + gradient(len(x), all_rows, replicas) * 2 * x.T @ error
            lost += (loss or gradient)(len(x), all_rows, replicas) * (error**2).sum()
        velocity = momentum * velocity - rate * slope
        weights = weights + velocity
        after.append(weights)
        losses.append(lost)
    return after, losses


def _weights_off(answers, wanted):
    """How far the weights are off after each step, as a part of the largest."""
    return [
        max(np.abs(copy - right).max() for copy in copies) / np.abs(right).max()
        for copies, right in zip(answers["weights"], wanted, strict=True)
    ]


def _other_runs(answers, seed, plain=False, counted=lambda number: number):
    """One device's weights after each step with the other optimizers.

    plain    takes Nesterov's for plain momentum
    counted  of a step's number what the optimizer takes for it, for each weight where they differ
    """
    replicas = len(answers["weights"][0])
    weights, rate, _ = probes.linear_problem(seed, replicas)
    updates = {"Nesterov": _momentum(rate, nesterov=not plain), "AdamW": _adamw(rate)}
    runs = {}
    for name, steps in probes.other_steps(seed, replicas).items():
        now, runs[name] = weights.astype("float64"), []
        for number, shards in enumerate(steps, 1):
            x, y = (np.concatenate(parts).astype("float64") for parts in zip(*shards))
            now = updates[name](counted(number), now, 2 / len(x) * x.T @ (x @ now - y))
            runs[name].append(now)
    return runs


def _momentum(rate, nesterov):
    velocity = 0

    def update(number, weights, slope):
        nonlocal velocity
        velocity = probes.MOMENTUM * velocity - rate * slope
        return weights + (probes.MOMENTUM * velocity - rate * slope if nesterov else velocity)

    return update


def _adamw(rate, first=0.9, second=0.999, epsilon=1e-7):
    mean, square = 0, 0

    def update(number, weights, slope):
        nonlocal mean, square
        mean, square = first * mean + (1 - first) * slope, second * square + (1 - second) * slope**2
        step = rate * np.sqrt(1 - second**number) / (1 - first**number)
        return weights * (1 - rate * probes.WEIGHT_DECAY) - step * mean / (np.sqrt(square) + epsilon)

    return update


def _others_off(answers, seed, **other):
    """How far the weights are off after the two steps with each of the other optimizers; `other` as in _other_runs."""
    wanted = _other_runs(answers, seed, **other)
    return {name: max(_weights_off(run, wanted[name])) for name, run in answers["others"].items()}


def _others_exact(answers, seed):
    shape = probes.linear_problem(seed, len(answers["weights"][0]))[0].shape
    if any(np.shape(copy) != shape for run in answers["others"].values() for step in run["weights"] for copy in step):
        return "yours have another shape"
    off = _others_off(answers, seed)
    said = ", ".join(f"with {name} by {100 * part:,.3g}%" for name, part in off.items())
    return bool(max(off.values()) <= FLOAT32) or f"yours are off {said}, after two uneven steps"


def _weights_exact(answers, seed):
    wanted, _ = _linear_run(answers, seed)
    if any(np.shape(copy) != wanted[0].shape for copies in answers["weights"] for copy in copies):
        return "yours have another shape"
    even, both = _weights_off(answers, wanted)
    return bool(max(even, both) <= FLOAT32) or (
        f"yours are off by {100 * even:,.3g}% after the even step, by {100 * both:,.3g}% after the uneven one too"
    )


def _parts_of(run, start, steps):
    """What each replica's rows add to the mean squared error of each step, for the weights that it began it with."""
    began, parts = ([start] * len(steps[0]), run["weights"][0]), []
    for weights, shards in zip(began, steps, strict=True):
        all_rows = sum(len(x) for x, _ in shards)
        errors = [x @ np.asarray(own, "float64") - y for own, (x, y) in zip(weights, shards, strict=True)]
        parts.append([np.sum(error**2) / all_rows for error in errors])
    return np.array(parts)


def _losses(answers):
    """The sum of the replicas' losses in each step."""
    return np.sum(answers["parts"], axis=1)


def _loss_exact(answers, seed):
    if answers["axes_of_a_loss"]:
        return "a part of yours is an array with axes, and a scalar is asked for"
    start, _, steps = probes.linear_problem(seed, len(answers["weights"][0]))
    even, uneven = np.abs(_losses(answers) / _parts_of(answers, start, steps).sum(axis=1) - 1)
    return bool(max(even, uneven) <= FLOAT32) or (
        f"the sum of your replicas' losses is off by {100 * even:,.3g}% in the even step, "
        f"by {100 * uneven:,.3g}% in the uneven one"
    )


def _parts_exact(answers, seed):
    start, _, steps = probes.linear_problem(seed, len(answers["weights"][0]))
    runs = {"SGD": (answers, steps)}
    for name, steps in probes.other_steps(seed, len(answers["weights"][0])).items():
        runs[name] = answers["others"][name], steps
    for name, (run, steps) in runs.items():
        if run["axes_of_a_loss"]:
            return "a part of yours is an array with axes, and a scalar is asked for"
        wanted = _parts_of(run, start, steps)
        off = np.abs(np.array(run["parts"]) / wanted - 1)
        if not off.max() <= 10 * FLOAT32:
            step, replica = np.unravel_index(np.argmax(off), off.shape)
            return f"with {name}, replica {replica}'s is off by {100 * off.max():,.3g}% in step {step + 1}"
    return True


def _own_rows(answers, seed):
    """With each of the other optimizers no replica calls the model with more rows than it has."""
    for name, steps in probes.other_steps(seed, len(answers["weights"][0])).items():
        run = answers["others"][name]
        for replica, (x, _) in enumerate(steps[0]):
            rows = run["rows"][replica] / max(1, run["calls"][replica])
            if rows > len(x):
                return f"replica {replica} has {len(x)} of the rows, and its model was called with {rows:g}"
            if (rows := run["rows"][replica] / len(steps)) > 2 * len(x):  # in calls of fewer
                return f"replica {replica} has {len(x)} of the rows, and its model was called with {rows:g} a step"
    return True


def _step_of(gradient, loss=None, momentum=probes.MOMENTUM):
    """Recognise weights after steps in which a replica multiplies as in _linear_run; and losses where given."""

    def recognise(answers, seed):
        weights, losses = _linear_run(answers, seed, gradient, loss, momentum)
        fits = max(_weights_off(answers, weights)) <= 10 * FLOAT32
        return fits and (loss is None or np.allclose(_losses(answers), losses, rtol=10 * FLOAT32, atol=0))

    return recognise


def _mean(rows, all_rows, replicas):
    return 1 / all_rows


def _n_times(rows, all_rows, replicas):
    return replicas / all_rows


def _n_fourths(rows, all_rows, replicas):
    return replicas / 4 / all_rows


def _fixed_rows(answers, seed):
    """Both steps divide by one number, whatever it is."""
    replicas = len(answers["weights"][0])
    _, _, steps = probes.linear_problem(seed, replicas)
    _, losses = _linear_run(answers, seed)
    divisor = sum(len(x) for x, _ in steps[0]) * losses[0] / _losses(answers)[0]
    return _step_of(*[lambda rows, all_rows, replicas: 1 / divisor] * 2)(answers, seed)


def _other_length(answers, seed, momentum=probes.MOMENTUM):
    """Steps that are longer or shorter by one factor, whatever it is, and the losses before them."""
    start, _, _ = probes.linear_problem(seed, len(answers["weights"][0]))
    (first, _), _ = _linear_run(answers, seed)
    moved, right = np.asarray(answers["weights"][0][0]) - start, first - start
    times = float((moved * right).sum() / (right**2).sum())
    fits = _step_of(lambda rows, all_rows, replicas: times / all_rows, momentum=momentum)(answers, seed)
    exact, losses_exact = (target(answers, seed) is True for target in (_weights_exact, _loss_exact))
    return fits and losses_exact and not exact


def _by_hand(answers, seed):
    """Steps that are the gradient times a number, with nothing of the step before, and the losses before them."""
    return _other_length(answers, seed, momentum=0)


def _after_the_update(answers, seed):
    """The right weights, and the losses that they have."""
    weights, losses = _linear_run(answers, seed)[0], []
    _, _, steps = probes.linear_problem(seed, len(answers["weights"][0]))
    for after, shards in zip(weights, steps, strict=True):
        losses.append(np.mean(np.concatenate([(x @ after - y) ** 2 for x, y in shards])))
    return _weights_exact(answers, seed) is True and np.allclose(_losses(answers), losses, rtol=10 * FLOAT32, atol=0)


def _called_outside_its_context(answers, seed):
    error = answers.get("stopped", {}).get("error", "")
    return "cross-replica context" in error or "Mixing different tf.distribute.Strategy" in error


def _all_but(*targets):
    """Recognise answers that miss some of these targets, and meet the others."""

    def recognise(answers, seed):
        return all((target(answers, seed) is True) == (target not in targets) for target in _TARGETS.values())

    return recognise


def _too_short_where_far(answers, seed):
    """The steps are right but for the long gradients' first, which is shorter than one device's."""
    start = probes.linear_problem(seed, len(answers["weights"][0]))[0]
    moved = np.linalg.norm(np.asarray(answers["others"]["Nesterov"]["weights"][0][0]) - start)
    right = np.linalg.norm(_other_runs(answers, seed)["Nesterov"][0] - start)
    adamw = _others_off(answers, seed)["AdamW"] <= FLOAT32
    return _weights_exact(answers, seed) is True and adamw and moved < 0.99 * right


def _plain_momentum(answers, seed):
    """Nesterov's steps are those of plain momentum, and the first optimizer's are right."""
    fits = _others_off(answers, seed, plain=True)["Nesterov"] <= 10 * FLOAT32
    return fits and _weights_exact(answers, seed) is True


def _a_step_each(answers, seed):
    """AdamW counts a step for each of the model's two variables, and all else is right."""

    def counted(number):
        return np.where(np.arange(probes.FEATURES) < probes.CUT, 2 * number - 1, 2 * number)[:, None]

    off = _others_off(answers, seed, counted=counted)
    return max(off.values()) <= 10 * FLOAT32 and _weights_exact(answers, seed) is True


_RUN = {
    "weights": (forms.each_replica(forms.array),) * 2,
    "parts": (forms.each_replica(forms.number),) * 2,
    "axes_of_a_loss": forms.size,
}
_WATCHED = {**_RUN, **dict.fromkeys(("calls", "rows"), forms.each_replica(forms.size))}
_TARGETS = {
    "every replica's weights equal one device's to 0.001%, also with unequal shards": _weights_exact,
    "so they do with Nesterov momentum and far targets, and with AdamW": _others_exact,
    "the replicas' losses add up to the mean over the global batch, to 0.001%": _loss_exact,
    "each of these losses is what its replica's own rows add to that mean": _parts_exact,
    "under the tape no replica calls the model on more rows than it has": _own_rows,
}
REPLICA_STEP = question(
    name="q2",
    title="One replica's part of a step",
    asks_for=("replica_step",),
    probe=probes.probe_replica_step,
    form={**_RUN, "others": {"Nesterov": _WATCHED, "AdamW": _WATCHED}},
    targets=tuple(Target(goal, holds) for goal, holds in _TARGETS.items()),
    recognise={
        "strategy inside the step": _called_outside_its_context,
        "local mean": _step_of(lambda rows, all_rows, replicas: 1 / rows),
        "mean of means": _step_of(lambda rows, all_rows, replicas: 1 / rows / replicas),
        "sum": _step_of(lambda rows, all_rows, replicas: 1),
        "divided once more": _step_of(lambda rows, all_rows, replicas: 1 / all_rows / replicas),
        "nothing applied": _step_of(lambda rows, all_rows, replicas: 0),
        "half of the squares": _step_of(lambda rows, all_rows, replicas: 0.5 / all_rows),
        "N times": _step_of(_n_times, _n_times),
        "summed twice": _step_of(_n_times),
        "the notebook's replicas": lambda answers, seed: any(
            _step_of(gradient)(answers, seed)
            for gradient in (_n_fourths, lambda rows, all_rows, replicas: 1 / rows / 4)
        ),
        "not a scalar": lambda answers, seed: answers["axes_of_a_loss"] > 0,
        "local mean returned": _step_of(_mean, lambda rows, all_rows, replicas: 1 / rows),
        "mean of means returned": _step_of(_mean, lambda rows, all_rows, replicas: 1 / rows / replicas),
        "sum returned": _step_of(_mean, lambda rows, all_rows, replicas: 1),
        "global loss returned": _step_of(_mean, _n_times),
        "loss after the update": _after_the_update,
        "numbers counted": _step_of(*[lambda rows, all_rows, replicas: 1 / (probes.FEATURES * all_rows)] * 2),
        "a fixed number of rows": _fixed_rows,
        "steps by hand": _by_hand,
        "another length": _other_length,
        "long gradients cut": _too_short_where_far,
        "plain momentum": _plain_momentum,
        "a step for each variable": _a_step_each,
        "equal parts": _all_but(_parts_exact),
        "the whole batch gathered": _all_but(_own_rows),
    },
)

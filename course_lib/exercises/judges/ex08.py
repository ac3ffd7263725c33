"""Exercise 08: a group's gradient, three loops, a plan; q3 is in ex08_big_step, q5 in ex08_replicas.

Needs NumPy; mistakes that a check runs need TensorFlow.
"""

import fractions
import functools
import itertools
import math
import re

import numpy as np

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.judges.ex08_big_step import BIG_STEP
from course_lib.exercises.judges.ex08_replicas import FLOAT32, REPLICAS
from course_lib.exercises.judges.numbers import ROUGH, off
from course_lib.exercises.probes import ex08 as probes
from course_lib.exercises.probes.cases import REFUSED
from course_lib.exercises.question import Target

question = question_maker.of("08_gradient_accumulation")
OTHER_K = range(2, 9)  # what people write for k
UNITS = ("1000", "2**10", "2**20", "10**9", "2**30")  # of bytes, beside 10**6


def _groups(micro_batches, k):
    return [micro_batches[at : at + k] for at in range(0, len(micro_batches), k)]


# q1: a group's gradient


def _is_small(micro_batches):
    return len(micro_batches[0][0]) == 1


def _setting(micro_batches, k):
    if _is_small(micro_batches):
        return f"{', '.join(f'([{gradient[0]:g}], {rows})' for gradient, rows in micro_batches)} and k = {k}"
    return f"{len(micro_batches)} micro-batches of {' '.join(str(rows) for _, rows in micro_batches)} rows, k = {k}"


def _one_per_group(answers, seed):
    for (micro_batches, k), answer in zip(probes.streams(seed), answers["streams"], strict=True):
        wanted = len(_groups(micro_batches, k))
        if (returned := len(answer["gradients"])) != wanted:
            return f"{_setting(micro_batches, k)}: you return {returned}, wanted: {wanted}"
    return True


def _as_one_batch(answers, seed):
    for (micro_batches, k), answer in zip(probes.streams(seed), answers["streams"], strict=True):
        for number, (group, got) in enumerate(zip(_groups(micro_batches, k), answer["gradients"]), 1):
            gradients, rows = zip(*group)
            wanted = np.average(gradients, axis=0, weights=rows)
            error = off(got, wanted)
            if np.shape(got) != wanted.shape:
                return f"{_setting(micro_batches, k)}: group {number} has the shape {np.shape(got)}, not {wanted.shape}"
            if not error <= FLOAT32:
                said = f"is off by {100 * error:,.4g}%"
                if not np.isfinite(got).all():
                    said = "has a number that is not finite"
                elif _is_small(micro_batches):
                    said = f"gives {got[0]:.3g}, and {wanted[0]:.3g} is wanted"
                return f"{_setting(micro_batches, k)}: group {number} {said}"
    return _one_per_group(answers, seed) is True


def _left_as_given(answers, seed):
    return all(answer["unchanged"] for answer in answers["streams"]) or "they hold other numbers after your call"


def _each_is(*wrongs):
    """Recognise that each group's gradient is this, of (gradients (count, n), rows (count,), k)."""

    def recognise(answers, seed):
        return any(_all_are(wrong, answers, seed) for wrong in wrongs)

    return recognise


def _all_are(wrong, answers, seed, at_most_off=FLOAT32, most_rows=math.inf):
    """Of groups with more rows nothing is asked."""
    for (micro_batches, k), answer in zip(probes.streams(seed), answers["streams"], strict=True):
        for group, got in zip(_groups(micro_batches, k), answer["gradients"], strict=True):
            gradients, rows = map(np.array, zip(*group))
            if sum(rows) <= most_rows and not off(got, wrong(gradients, rows, k)) <= at_most_off:
                return False
    return True


def _mean_over_rows(gradients, rows, k):
    return np.average(gradients, axis=0, weights=rows)


def _halved(gradients, rows, k):
    return functools.reduce(lambda mean, gradient: (mean + gradient) / 2, gradients)


def _one_array(answers, seed):
    several = [answer["gradients"] for answer in answers["streams"] if len(answer["gradients"]) > 2]
    return bool(several) and all(np.ndim(one) and np.array_equal(one, other) for one, other, *_ in several)


def _by_the_rows_before(gradients, rows, k):
    mean = gradients[0]
    for gradient, before, own in zip(gradients[1:], rows, rows[1:]):
        mean = (before * mean + own * gradient) / (before + own)
    return mean


def _only_changed(answers, seed):
    return _as_one_batch(answers, seed) is True and _left_as_given(answers, seed) is not True


def _read_twice(answers, seed):
    """No iterator gives a gradient, and the list does, which can be read again."""
    found = [answer["gradients"] for answer in answers["streams"]]
    given = [any(np.ndim(one) and np.size(one) for one in gradients) for gradients in found]
    return given.pop(probes.GIVEN_AS_LIST) and not any(given)


def _first_one_lost(answers, seed):
    """All is right but that the first micro-batch of each iterator, and perhaps of the list, is in no gradient."""
    return any(_all_right_without_the_first(answers, seed, of_list) for of_list in (False, True))


def _all_right_without_the_first(answers, seed, of_list):
    for place, ((micro_batches, k), answer) in enumerate(zip(probes.streams(seed), answers["streams"], strict=True)):
        left = micro_batches if place == probes.GIVEN_AS_LIST and not of_list else micro_batches[1:]
        wanted = [_mean_over_rows(*map(np.array, zip(*group)), k) for group in _groups(left, k)]
        got = answer["gradients"]
        if len(got) != len(wanted) or not np.allclose(got, wanted, FLOAT32, 1e-9):
            return False
    return True


def _kept_for_the_next_call(answers, seed):
    one, other = (answers["streams"][place]["gradients"] for place in probes.ASKED_TWICE)
    return len(one) != len(other) or not all(map(np.array_equal, one, other))


def _kept_from_other_calls(answers, seed):
    """More gradients lie in one array than any call was given; in one call they all have one size."""
    most = max(len(micro_batches) for micro_batches, _ in probes.streams(seed))
    found = re.search(r"inhomogeneous shape .* detected shape was \((\d+),\)", answers["stopped"]["error"])
    return bool(found) and int(found[1]) > most


def _groups_are(number):
    return lambda answers, seed: (
        [len(answer["gradients"]) for answer in answers["streams"]]
        == [number(len(micro_batches), k) for micro_batches, k in probes.streams(seed)]
    )


def _groups_of(size):
    return _groups_are(lambda count, k: -(-count // size))


GROUPS = question(
    name="q1",
    title="The group's gradient",
    asks_for=("group_gradients",),
    probe=probes.probe_group_gradients,
    form={"streams": [{"gradients": [forms.any_array], "unchanged": forms.flag}]},
    targets=(
        Target("one gradient per group, also for a last one that is not full", _one_per_group),
        Target("each is the gradient of the mean over all rows of its group, to 0.001%", _as_one_batch),
        Target("the arrays that you are given stay as they are", _left_as_given),
    ),
    recognise={
        "mean of means": _each_is(lambda gradients, rows, k: gradients.mean(axis=0)),
        "divided by k": _each_is(lambda gradients, rows, k: gradients.sum(axis=0) / k),
        "sum of means": _each_is(lambda gradients, rows, k: gradients.sum(axis=0)),
        "one buffer": _one_array,
        "in place": _only_changed,
        "rows not divided out": _each_is(
            lambda gradients, rows, k: rows @ gradients,
            lambda gradients, rows, k: rows @ gradients / len(rows),
            lambda gradients, rows, k: rows @ gradients / k,
        ),
        "rows not multiplied": _each_is(lambda gradients, rows, k: gradients.sum(axis=0) / rows.sum()),
        "last one alone": _each_is(lambda gradients, rows, k: gradients[-1]),
        "halved each time": _each_is(_halved),
        "empty group": lambda answers, seed: "ZeroDivisionError" in answers["stopped"]["error"],
        "read twice": _read_twice,
        "first one lost": _first_one_lost,
        "kept for the next call": _kept_for_the_next_call,
        "kept from other calls": _kept_from_other_calls,
        "iterators alone": lambda answers, seed: "'list' object is not an iterator" in answers["stopped"]["error"],
        "one group too many": _groups_are(lambda count, k: count // k + 1),  # where the last one is full
        "k groups": _groups_are(min),
        "another k": lambda answers, seed: any(_groups_of(size)(answers, seed) for size in OTHER_K),
        "the rows before alone": _each_is(_by_the_rows_before),
        "short group scaled": _each_is(lambda gradients, rows, k: _mean_over_rows(gradients, rows, k) * len(rows) / k),
        "few digits": lambda answers, seed: _all_are(_mean_over_rows, answers, seed, ROUGH, most_rows=1000),
    },
)


# q2: three loops


def _last_or_full(number, count, k, last):
    return count == k or number == last


class _Linear:
    """A linear model with one of q2's optimizers, in NumPy, by Keras' own formulas."""

    def __init__(self, weights, optimizer, rate, momentum, beta_1):
        self.weights, self.optimizer, self.rate = weights.astype("float64"), optimizer, rate
        self.momentum, self.beta_1 = momentum if optimizer == "momentum" else 0, beta_1
        self.first, self.second, self.steps = 0.0, 0.0, 0

    def gradient_of(self, x, y):
        return 2 * x.T @ (x @ self.weights - y) / len(y)

    def apply(self, gradient):
        if self.optimizer == "Adam":
            self.steps += 1
            self.first = self.beta_1 * self.first + (1 - self.beta_1) * gradient
            self.second = 0.999 * self.second + 0.001 * gradient**2
            rate = self.rate * math.sqrt(1 - 0.999**self.steps) / (1 - self.beta_1**self.steps)
            self.weights = self.weights - rate * self.first / (np.sqrt(self.second) + 1e-7)
        else:
            self.first = self.momentum * self.first - self.rate * gradient
            self.weights = self.weights + self.first


def _weights_after(
    run,
    divisor=lambda count, k: count,
    due=_last_or_full,
    masked=False,
    kept=(),
    added=True,
    faster=False,
    more=False,
    momentum=probes.MOMENTUM,
    beta_1=probes.MOMENTUM,
    counted=False,
):
    """The weights after one of q2's runs, kernel and bias as a vector.

    divisor  (count, k) -> what a group's sum is divided by
    due      (number, at least 1; count in the group; k; last number) -> whether to update now
    masked   the optimizer gets zeros instead of nothing
    kept     what does not start again with a group: "sums", and "count", by which they are divided
    added    a group's gradients are added up; else its last one is alone
    faster   the learning rate is multiplied by k
    more     the optimizer gets zeros at the end, where the last group is full
    momentum, beta_1  SGD's, Adam's
    counted  the optimizer counts the other micro-batches as updates, too
    """
    optimizer, first, micro_batches, k = run
    rate = probes.RATE * (k if faster else 1)
    model = _Linear(np.concatenate([first[0][:, 0], first[1]]), optimizer, rate, momentum, beta_1)
    total, count, summed = 0.0, 0, 0
    for number, (x, y) in enumerate(micro_batches, 1):
        gradient = model.gradient_of(np.hstack([x, np.ones_like(y)]), y[:, 0])
        total, count = total + gradient if added else gradient, count + 1
        summed += 1
        if due(number, count, k, len(micro_batches)):
            model.apply(total / divisor(summed, k))
            total, count = total if "sums" in kept else 0.0, 0
            summed = summed if "count" in kept else 0
        elif masked:
            model.apply(0.0 * total)
        else:
            model.steps += counted
    if more and len(micro_batches) % k == 0:
        model.apply(0.0 * total)
    return model.weights


def _is_big_batch(loop):
    """A target: this loop's weights are those of the big batch, in every run."""

    def holds(answers, seed):
        for run, ran in zip(probes.epochs(seed), answers[loop], strict=True):
            error = off(ran["weights"], _weights_after(run))
            if not error <= FLOAT32:
                return f"off by {100 * error:,.4g}% with {run[0]}, {len(run[2])} micro-batches, k = {run[3]}"
        return True

    return holds


def _updates_of_all(answers, seed):
    for loop in probes.LOOPS:
        for (_, _, micro_batches, k), ran in zip(probes.epochs(seed), answers[loop], strict=True):
            wanted = len(_groups(micro_batches, k))
            if ran["updates"] != wanted:
                case = f"{len(micro_batches)} micro-batches and k = {k}"
                return f"{loop} returns {ran['updates']} for {case}, and {wanted} is wanted"
    return True


def _ran_as(*loops, **wrong):
    """Recognise that one of these loops has run with this wrong, in every run."""

    def recognise(answers, seed):
        wanted = [_weights_after(run, **wrong) for run in probes.epochs(seed)]
        return any(
            all(
                off(ran["weights"], weights) <= 10 * FLOAT32 for ran, weights in zip(answers[loop], wanted, strict=True)
            )
            for loop in loops
        )

    return recognise


def _ran_in_groups_of(size):
    return _ran_as(*probes.LOOPS, due=lambda number, count, k, last: count == size or number == last)


def _right_with_plain_sgd_alone(steps):
    """Recognise a loop that is, by the steps that the optimizer has counted: steps(micro-batches)."""

    def fits(run, ran):
        right = off(ran["weights"], _weights_after(run)) <= FLOAT32
        return ran["steps"] == steps(len(run[2])) and right == (run[0] == "plain SGD")

    return lambda answers, seed: any(all(map(fits, probes.epochs(seed), answers[loop])) for loop in probes.LOOPS)


def _bias_as_it_was(run, ran):
    return ran["weights"][-1] == run[1][1][0] and ran["steps"] > 0


def _never_changes_the_bias(answers, seed):
    return any(all(map(_bias_as_it_was, probes.epochs(seed), answers[loop])) for loop in probes.LOOPS)


def _only_updates_wrong(answers, seed):
    return all(_is_big_batch(loop)(answers, seed) is True for loop in probes.LOOPS)


_LOOP = [{"weights": forms.any_array, "updates": forms.whole, "steps": forms.size}]
LOOPS = question(
    name="q2",
    title="Repair three loops",
    asks_for=probes.LOOPS,
    probe=probes.probe_loops,
    form=dict.fromkeys(probes.LOOPS, _LOOP),
    targets=(
        *(
            Target(f"{loop} equals the big batch to 0.001%, with every optimizer", _is_big_batch(loop))
            for loop in probes.LOOPS
        ),
        Target("each returns its updates: one per group, the last one included", _updates_of_all),
    ),
    recognise={
        "a as it was": _ran_as("loop_a", divisor=lambda count, k: count * k),
        "b as it was": _ran_as("loop_b", masked=True),
        "c as it was": _ran_as("loop_c", due=lambda number, count, k, last: number % k == 1 or number == last),
        "no mean": _ran_as(*probes.LOOPS, divisor=lambda count, k: 1),
        "divided by k": _ran_as(*probes.LOOPS, divisor=lambda count, k: k),
        "last group forgotten": _ran_as(*probes.LOOPS, due=lambda number, count, k, last: count == k),
        "every micro-batch": _ran_as(*probes.LOOPS, due=lambda number, count, k, last: True),
        "one update": _ran_as(*probes.LOOPS, due=lambda number, count, k, last: number == last),
        "sums not reset": lambda answers, seed: any(
            _ran_as(*probes.LOOPS, kept=kept)(answers, seed) for kept in (["sums"], ["sums", "count"])
        ),
        "last one alone": _ran_as(*probes.LOOPS, divisor=lambda count, k: 1, added=False),
        "one too few": _ran_as(*probes.LOOPS, due=lambda number, count, k, last: count >= k - 1 or number == last),
        "one too many": _ran_as(*probes.LOOPS, due=lambda number, count, k, last: count > k or number == last),
        "another k": lambda answers, seed: any(_ran_in_groups_of(size)(answers, seed) for size in OTHER_K),
        "last but one": _ran_as(
            *probes.LOOPS, due=lambda number, count, k, last: number % k == 0 or number == last - 1
        ),
        "rest in the group before": _ran_as(
            *probes.LOOPS, due=lambda number, count, k, last: number == last or (count >= k and last - number >= k)
        ),
        "update from nothing": _ran_as(*probes.LOOPS, more=True),
        "other settings": lambda answers, seed: any(
            _ran_as(*probes.LOOPS, momentum=momentum, beta_1=beta_1)(answers, seed)
            for momentum, beta_1 in itertools.product((0, 0.9, probes.MOMENTUM), (0.9, probes.MOMENTUM))
            if (momentum, beta_1) != (probes.MOMENTUM, probes.MOMENTUM)
        ),
        "micro-batches counted by Adam": _ran_as(*probes.LOOPS, counted=True),
        "bias left out": _never_changes_the_bias,
        "weights put back": _right_with_plain_sgd_alone(lambda micro_batches: micro_batches),
        "rate times k": _ran_as(*probes.LOOPS, divisor=lambda count, k: count * k, faster=True),
        "by hand": _right_with_plain_sgd_alone(lambda micro_batches: 0),
        "updates miscounted": _only_updates_wrong,
    },
)


# q4: a plan


def _updates_in(examples, case):
    """Updates until so many examples were seen; each epoch ends with one."""
    epochs, rest = divmod(examples, case["examples"])
    return -(-case["examples"] // case["global_batch"]) * epochs - (-rest // case["global_batch"])


def _wanted_plan(case):
    local, uneven = divmod(case["global_batch"], case["replicas"])
    room = case["memory_bytes"] - case["state_bytes"]
    several = [size for size in range(1, local) if local % size == 0]
    fitting = [size for size in several if case["gradient_bytes"] + size * case["example_bytes"] <= room]
    if local * case["example_bytes"] <= room:
        fitting.append(local)
    if uneven or not fitting:
        return REFUSED
    return {
        "micro_batch": fitting[-1],
        "micro_batches": local // fitting[-1],
        "updates": _updates_in(case["epochs"] * case["examples"], case),
        "warmup_updates": _updates_in(case["warmup_examples"], case),
    }


def _plans(answers, seed):
    """(case, the learner's plan, the wanted one) for each run."""
    for case, plan in zip(probes.runs_to_plan(seed), answers["plans"], strict=True):
        yield case, plan, _wanted_plan(case)


def _is_tiny(case):
    return case["memory_bytes"] < 100


def _given(case, plan, wanted, *names):
    """What the learner's plan has under these names for a small case, and what is wanted."""
    arguments = ", ".join(f"{name}={value}" for name, value in case.items())
    said = [one if one == REFUSED else ", ".join(f"{name} {one[name]:g}" for name in names) for one in (plan, wanted)]
    return f"{arguments}: you give {said[0]}, and {said[1]} is wanted"


def _run_line(case):
    gigabytes = {name: case[f"{name}_bytes"] / 1e9 for name in ("memory", "state", "gradient", "example")}
    sizes = ", ".join(f"{name} {size:.2f} GB" for name, size in gigabytes.items())
    return f"global batch {case['global_batch']} on {case['replicas']} replicas, {sizes}"


def _size_right(answers, seed):
    for case, plan, wanted in _plans(answers, seed):
        if REFUSED in (plan, wanted):
            continue
        if any(plan[name] != wanted[name] for name in _SIZES):
            if _is_tiny(case):
                return _given(case, plan, wanted, *_SIZES)
            return f"{_run_line(case)}: you take {plan['micro_batches']} micro-batches of {plan['micro_batch']}"
    return any(plan != REFUSED for plan in answers["plans"])


def _updates_right(name):
    def holds(answers, seed):
        for case, plan, wanted in _plans(answers, seed):
            if REFUSED not in (plan, wanted) and plan[name] != wanted[name]:
                if _is_tiny(case):
                    return _given(case, plan, wanted, name)
                sizes = f"{case['examples']} examples in global batches of {case['global_batch']}"
                length = f"{case['epochs']} epochs" if name == "updates" else f"{case['warmup_examples']} of warm-up"
                return f"{sizes}, {length}: you say {plan[name]}"
        return any(plan != REFUSED for plan in answers["plans"])

    return holds


def _refuses_what_does_not_work(answers, seed):
    for case, plan, wanted in _plans(answers, seed):
        if (plan == REFUSED) != (wanted == REFUSED):
            if _is_tiny(case):
                return _given(case, plan, wanted, *_SIZES)
            return f"{_run_line(case)}: you {'raise one' if plan == REFUSED else 'raise none'}"
    return True


def _sizes_as(name, *fields):
    """Recognise a mistake by the sizes alone, since people may count otherwise too."""

    def sizes(plans):
        return [plan if plan == REFUSED else [plan[field] for field in fields] for plan in plans]

    def recognise(answers, seed):
        (edit,) = (mistake.edit for mistake in PLAN.mistakes if mistake.name == name)
        edits = [edit]
        if name == "whole units":
            edits += [{text: new.replace("10**6", unit) for text, new in edit.items()} for unit in UNITS]
        found = (probes.probe_plan(PLAN.answer.names(one), seed)["plans"] for one in edits)
        return any(sizes(answers["plans"]) == sizes(plans) for plans in found)

    return recognise


def _need(case, plan):
    """The bytes that a plan takes."""
    sums = case["gradient_bytes"] if plan["micro_batches"] > 1 else 0
    return case["state_bytes"] + sums + plan["micro_batch"] * case["example_bytes"]


def _refused_now_and_then(answers, seed):
    """All sizes are right but some of those that fill the memory exactly, and some of those are right too."""
    full = []
    for case, plan, wanted in _plans(answers, seed):
        right = plan == wanted if REFUSED in (plan, wanted) else all(plan[name] == wanted[name] for name in _SIZES)
        if wanted != REFUSED and _need(case, wanted) == case["memory_bytes"]:
            full.append(right)
        elif not right:
            return False
    return {*full} == {True, False}


def _counts_as(*wrongs):
    """Recognise a mistake by the updates of the run, or by those of the warm-up.

    wrongs  (examples, case, plan) -> updates until so many were seen
    """

    def recognise(answers, seed):
        rows = [row for row in _plans(answers, seed) if REFUSED not in row]
        return any(_count_is(rows, count, wrong) for count in ("updates", "warmup_updates") for wrong in wrongs)

    return recognise


def _count_is(rows, count, wrong):
    differs = False
    for case, plan, right in rows:
        seen = case["epochs"] * case["examples"] if count == "updates" else case["warmup_examples"]
        updates = wrong(seen, case, plan)
        if plan[count] != updates:
            return False
        differs = differs or updates != right[count]
    return differs


def _up(examples, batch):
    return -(-examples // max(1, batch))


def _full_groups(examples, case, plan):
    epochs, rest = divmod(examples, case["examples"])
    return epochs * (case["examples"] // case["global_batch"]) + rest // case["global_batch"]


def _rounded_down(examples, case, plan):
    epochs, rest = divmod(examples, case["examples"])
    return epochs * _up(case["examples"], case["global_batch"]) + rest // case["global_batch"]


def _without_uneven_rests(examples, case, plan):
    """Updates, where no epoch has one from a rest that the replicas cannot share equally."""
    full, left = divmod(case["examples"], case["global_batch"])
    of_epoch = full + (left > 0 and left % case["replicas"] == 0)
    epochs, rest = divmod(examples, case["examples"])
    return epochs * of_epoch + min(of_epoch, _up(rest, case["global_batch"]))


def _share(examples, case):
    """Of the updates of an epoch; exact."""
    return fractions.Fraction(examples * _up(case["examples"], case["global_batch"]), case["examples"])


def _by_local_batch(examples, case, plan):
    return _updates_in(examples, case | {"global_batch": case["global_batch"] // case["replicas"]})


_SIZES = ("micro_batch", "micro_batches")
_WRONG_SIZES = ("sums forgotten", "sums always", "replicas forgotten", "not quite full", "smallest", "powers of two")
_WRONG_SIZES += ("never refuses", "uneven ignored", "state forgotten", "never in one", "swapped", "of all replicas")
_WRONG_SIZES += ("whole not quite full", "halves alone", "halves of even numbers", "never one", "whole in one replica")
_WRONG_SIZES += ("divides the global batch", "state divided", "a copy each", "halves, then one", "whole units")
_WRONG_SIZES += ("k up to the root", "sums for all at first")
_PLAN = dict.fromkeys((*_SIZES, "updates", "warmup_updates"), forms.number)
PLAN = question(
    name="q4",
    title="Plan a group",
    asks_for=("plan_group",),
    probe=probes.probe_plan,
    form={"plans": [forms.either(_PLAN | {str: forms.anything}, forms.words(REFUSED))]},
    targets=(
        Target("the largest micro-batch that divides the local batch and fits, and k", _size_right),
        Target("the updates of all epochs", _updates_right("updates")),
        Target("the updates of the warm-up", _updates_right("warmup_updates")),
        Target("a ValueError where nothing fits or divides, and nowhere else", _refuses_what_does_not_work),
    ),
    recognise={
        **{name: _sizes_as(name, *_SIZES) for name in _WRONG_SIZES},
        "does not divide": _sizes_as("does not divide", "micro_batch"),
        "counted in micro-batches": _counts_as(
            lambda examples, case, plan: plan["micro_batches"] * _updates_in(examples, case),
            lambda examples, case, plan: _up(case["examples"], int(plan["micro_batch"])) * examples // case["examples"],
        ),
        "full groups alone": _counts_as(_full_groups),
        "epochs glued together": _counts_as(
            lambda examples, case, plan: _up(examples, case["global_batch"]),
            lambda examples, case, plan: examples // case["global_batch"],
        ),
        "counted per replica": _counts_as(_by_local_batch),
        "rounded down": _counts_as(_rounded_down),
        "share of the epoch": _counts_as(
            lambda examples, case, plan: math.ceil(_share(examples, case)),
            lambda examples, case, plan: math.floor(_share(examples, case)),
            lambda examples, case, plan: round(_share(examples, case)),
        ),
        "rest that cannot be shared": _counts_as(_without_uneven_rests),
        "rounded bytes": _refused_now_and_then,
        "nothing found": lambda answers, seed: answers["stopped"]["error"].startswith("StopIteration"),
        "assertion": lambda answers, seed: answers["stopped"]["error"].startswith("AssertionError"),
        "one for no rest": _counts_as(lambda examples, case, plan: _rounded_down(examples, case, plan) + 1),
        "one epoch": _counts_as(lambda examples, case, plan: _updates_in(min(examples, case["examples"]), case)),
        "whole epochs": _counts_as(
            lambda examples, case, plan: _up(examples, case["examples"]) * _up(case["examples"], case["global_batch"])
        ),
    },
)


QUESTIONS = (GROUPS, LOOPS, BIG_STEP, PLAN, REPLICAS)

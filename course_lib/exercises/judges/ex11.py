"""Exercise 11: a replica's input, a rate in updates, a resume, a run to 97%, scaling and its limit.

Needs NumPy; the mistakes of q4 need no run to be recognised.
"""

import math
from collections import Counter

import numpy as np

from course_lib.exercises.given import capstone_cases
from course_lib.exercises.given.trainer import Trainer
from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.judges.numbers import off
from course_lib.exercises.probes import ex11 as probes
from course_lib.exercises.question import Target

question = question_maker.of("11_capstone")
FLOAT64 = 1e-5  # relative: float64 throughout; its rounding is far smaller
FLOAT32 = 1e-5  # of the peak: near its end a cosine in float32 has few digits left
FLOOR, BUDGET = 0.97, 700  # of q4: test accuracy, updates
PLAIN_EFFICIENCY = 1e-6  # relative: a median and two divisions


# q1: a replica's input


def _steps_of(epoch):
    """Per step, the replicas' rows; replicas with fewer steps have empty ones."""
    longest = max(len(steps) for steps in epoch["replicas"])
    empty = np.array([], int)
    return [[steps[at] if at < len(steps) else empty for steps in epoch["replicas"]] for at in range(longest)]


def _rows_of(epoch):
    return [int(row) for step in _steps_of(epoch) for rows in step for row in rows]


def _every_row_once(answers, seed):
    rows = probes.input_case(seed)["rows"]
    for (_, training), epoch in zip(probes.EPOCHS, answers["epochs"], strict=True):
        seen = Counter(_rows_of(epoch))
        if strange := [row for row in seen if not 0 <= row < rows]:
            return f"there is no row {strange[0]}"
        if missing := rows - len(seen):
            return f"{missing} of {rows} rows reach no replica{'' if training else ' in testing'}"
        if double := sum(count > 1 for count in seen.values()):
            return f"{double} of {rows} rows come more than once in an epoch"
    return True


def _even_shares(answers, seed):
    case = probes.input_case(seed)
    whole, last = divmod(case["rows"], case["global_batch"])
    for epoch in answers["epochs"]:
        if len(epoch["replicas"]) != case["replicas"]:
            return f"there are rows of {len(epoch['replicas'])} replicas"
        sizes = [[len(rows) for rows in step] for step in _steps_of(epoch)]
        totals = [sum(step) for step in sizes]
        if totals != [case["global_batch"]] * whole + [last]:
            return f"with global batches of {case['global_batch']} for {case['rows']} rows, your steps have {totals}"
        if odd := [step for step in sizes if max(step) - min(step) > 1]:
            return f"a step's rows are shared out as {odd[0]}"
    return True


def _order_by_epoch(answers, seed):
    first, second, again, test = map(_rows_of, answers["epochs"])
    if first != again:
        return "epoch 0, asked for again, comes in another order"
    if first == second:
        return "epochs 0 and 1 come in the same order"
    for step in _steps_of(answers["epochs"][-1]):
        rows, test = sorted(row for rows in step for row in rows), sorted(test)
        if rows != test[: len(rows)]:
            return f"in testing a step has the rows {rows}, where {test[: len(rows)]} come next"
        test = test[len(rows) :]
    return True


def _labels_fit(answers, seed):
    return all(epoch["labels_fit"] for epoch in answers["epochs"]) or "some images come with the label of another one"


def _augmented_in_training_alone(answers, seed):
    for (_, training), epoch in zip(probes.EPOCHS, answers["epochs"], strict=True):
        if epoch["augmented"] != float(training):
            return f"{epoch['augmented']:.0%} of the images are augmented in {'training' if training else 'testing'}"
    return True


def _own_keys(answers, seed):
    first, second, again, test = ([tuple(key) for key in epoch["keys"]] for epoch in answers["epochs"])
    if test or first != again:
        return "testing has keys, or the same epoch has others when it is asked for again"
    if len(first) < (batches := sum(map(len, answers["epochs"][0]["replicas"]))):
        return f"of {batches} local batches in an epoch, {len(first)} are augmented with a key"
    shared = len(first + second) - len(set(first + second))
    return shared == 0 or f"{shared} local batches of two epochs share their key with another one"


def _another_order_each_time(answers, seed):
    return _every_row_once(answers, seed) is not True and _rows_of(answers["epochs"][0]) != _rows_of(
        answers["epochs"][2]
    )


INPUT = question(
    name="q1",
    title="A replica's input",
    asks_for=("replica_batches",),
    probe=probes.probe_batches,
    form={
        "epochs": [
            {"replicas": [[forms.array]], "labels_fit": forms.flag, "augmented": forms.number, "keys": [[forms.whole]]}
        ]
    },
    targets=(
        Target("in every epoch each row reaches exactly one replica, the last ones included", _every_row_once),
        Target("a step has global_batch rows, the last one the rest; shares differ by one row at most", _even_shares),
        Target("each epoch has its own order, the same when asked again; in testing the rows keep theirs", _order_by_epoch),
        Target("every image comes with its own label", _labels_fit),
        Target("all training images are augmented, and no test image", _augmented_in_training_alone),
        Target("each local batch of two epochs has its own key", _own_keys),
    ),
    recognise={"no seed": _another_order_each_time},
)


# q2: a rate in updates


def _lengths(run):
    """An update's examples over base_batch; the updates of the warm-up and of the run."""
    update = run["local_batch"] * run["replicas"] * run["micro_batches"]
    per_epoch = run["examples"] // update
    return update / run["base_batch"], run["warmup_epochs"] * per_epoch, run["epochs"] * per_epoch


def _phase(run, step):
    return "warm-up" if step // run["micro_batches"] < _lengths(run)[1] else "decay"


def _wanted_rate(step, run):
    factor, warmup, total = _lengths(run)
    update = step // run["micro_batches"]
    if _phase(run, step) == "warm-up":
        return run["base_rate"] * (1 + (factor - 1) * update / warmup)
    return run["base_rate"] * factor * math.cos(math.pi / 2 * (update - warmup) / (total - warmup)) ** 2


def _rates_in(phase):
    def holds(answers, seed):
        for (step, run), rate in zip(probes.rate_cases(seed), answers["rates"], strict=True):
            missed = abs(rate - _wanted_rate(step, run)) / (run["base_rate"] * _lengths(run)[0])
            if _phase(run, step) == phase and not missed <= FLOAT32:
                setting = f"with {run['replicas']} replicas and {run['micro_batches']} micro-batches"
                return f"micro-step {step}, {setting}: yours is off by {missed:.2g} of the peak"
        return True

    return holds


def _one_rate_per_group(answers, seed):
    pairs = list(zip(probes.rate_cases(seed), answers["rates"], strict=True))
    for ((step, run), rate), ((_, _), next_rate) in zip(pairs, pairs[1:]):
        if step == 0 and rate != next_rate:
            return f"the first and the last of a group of {run['micro_batches']} have different rates"
    return True


def _at_the_peak(answers, seed):
    for (step, run), rate in zip(probes.rate_cases(seed), answers["rates"], strict=True):
        factor, warmup, _ = _lengths(run)
        times = rate / run["base_rate"]
        if step == run["micro_batches"] * warmup and not math.isclose(times, factor, rel_tol=FLOAT64):
            return f"an update has {factor:g} times base_batch examples, and your rate is {times:.4g} times base_rate"
    return True


RATE = question(
    name="q2",
    title="A rate, counted in updates",
    asks_for=("rate_at",),
    probe=probes.probe_rates,
    form={"rates": [forms.number]},
    targets=(
        Target("all micro-steps of a group have one rate", _one_rate_per_group),
        Target("the warm-up rises from base_rate, right to 0.001% of the peak", _rates_in("warm-up")),
        Target("after the warm-up the rate is the linear rule's, right to 0.001%", _at_the_peak),
        Target("then it falls as a half cosine to 0 at the end of the run, to 0.001% of the peak", _rates_in("decay")),
    ),
)


# q3: a resume


def _undisturbed(seed, before):
    trainer = Trainer(seed)
    losses = [trainer.step() for _ in range(before + probes.AFTER)]
    return losses[before:], trainer


def _off_at(got, wanted):
    """The first place, counted from 1, where two lists of losses differ, or None."""
    pairs = enumerate(zip(got, wanted, strict=True), 1)
    return next((at for at, (one, other) in pairs if not math.isclose(one, other, rel_tol=FLOAT64)), None)


def _same_losses(which, said):
    def holds(answers, seed):
        for before, answer in zip(probes.kills(seed), answers["kills"], strict=True):
            wanted, _ = _undisturbed(seed, before)
            if at := _off_at(answer[which], wanted):
                return f"{said} after micro-batch {before}, its loss number {at} differs"
        return True

    return holds


def _same_end(answers, seed):
    for before, answer in zip(probes.kills(seed), answers["kills"], strict=True):
        _, trainer = _undisturbed(seed, before)
        if answer["updates"] != trainer.updates:
            return f"it ends with {answer['updates']} updates, and the undisturbed run with {trainer.updates}"
        if not off(answer["weights"], trainer.weights) <= FLOAT64:
            return "the weights differ"
    return True


RESUME = question(
    name="q3",
    title="A resume that loses nothing",
    asks_for=("save", "restore"),
    probe=probes.probe_resume,
    form={
        "kills": [
            {"continued": [forms.number], "resumed": [forms.number], "weights": forms.array, "updates": forms.whole}
        ]
    },
    targets=(
        Target(
            f"the next {probes.AFTER} losses are the undisturbed run's, to 0.001%", _same_losses("resumed", "resumed")
        ),
        Target("so are the weights, and the number of updates, at the end", _same_end),
        Target("the saved run goes on undisturbed", _same_losses("continued", "saved")),
    ),
)


# q4: a run to 97%


def _on_all_replicas(answers, seed):
    if answers["replicas"] != answers["wanted_replicas"]:
        return f"a weight has {answers['replicas']} of {answers['wanted_replicas']} copies"
    return answers["identical"] or "the copies differ"


def _within_budget(answers, seed):
    return answers["updates"] <= BUDGET or f"you take {answers['updates']:,}"


def _reaches_floor(answers, seed):
    return answers["test_accuracy"] >= FLOOR or f"yours is {answers['test_accuracy']:.1%}"


def _by_heart(answers, seed):
    return answers["train_accuracy"] >= 0.99 and 0.85 <= answers["test_accuracy"] < FLOOR


RUN = question(
    name="q4",
    title="97%, on four replicas, within a budget",
    asks_for=("train",),
    probe=probes.probe_training,
    form={
        "wanted_replicas": forms.replicas,
        "replicas": forms.whole,
        "identical": forms.flag,
        "updates": forms.count,
        "finite": forms.flag,
        "train_accuracy": forms.share,
        "test_accuracy": forms.share,
        "first_answers": forms.array,
    },
    takes_long=True,
    points=2,
    targets=(
        Target("the model trains on all replicas, with identical copies of every trained weight", _on_all_replicas),
        Target(f"at most {BUDGET} updates", _within_budget),
        Target(f"at least {FLOOR:.0%} of the test images are right", _reaches_floor),
    ),
    recognise={
        "outside the scope": lambda answers, seed: answers["replicas"] == 1 < answers["wanted_replicas"],
        "over the budget": lambda answers, seed: answers["updates"] > BUDGET,
        "diverged": lambda answers, seed: not answers["finite"] or answers["train_accuracy"] < 0.3,
        "learned by heart": _by_heart,
        "hardly trained": lambda answers, seed: answers["updates"] < BUDGET / 4 and answers["test_accuracy"] < FLOOR,
    },
)


# q5: scaling and its limit


def _wanted_efficiencies(kind, seed):
    """Efficiency by replicas: the seconds of one replica over those of many, which share its work or multiply it."""
    times = capstone_cases.measured(seed)
    batches = sorted({batch for _, batch in times})
    middle = {case: sorted(steps[capstone_cases.WARMUP :]) for case, steps in times.items()}
    seconds = {case: (steps[(len(steps) - 1) // 2] + steps[len(steps) // 2]) / 2 for case, steps in middle.items()}
    counts = sorted({replicas for replicas, _ in times})
    if kind == "strong":
        return {many: seconds[1, batches[-1]] / seconds[many, batches[-1]] / many for many in counts}
    return {many: seconds[1, batches[0]] / seconds[many, many * batches[0]] for many in counts}


def _step_seconds(parts):
    return max(parts["input"], parts["compute"] + parts["communication"])


def _gain(parts, part):
    return _step_seconds(parts) / _step_seconds({**parts, part: parts[part] / 2})


def _best_part(parts):
    return max(parts, key=lambda part: _gain(parts, part))


def _efficiency_is(kind):
    def holds(answers, seed):
        wanted = _wanted_efficiencies(kind, seed)
        if [replicas for replicas, _ in answers[kind]] != list(wanted):
            return f"yours are for {', '.join(str(replicas) for replicas, _ in answers[kind])} replicas"
        for replicas, found in answers[kind]:
            if not math.isclose(found, wanted[replicas], rel_tol=PLAIN_EFFICIENCY):
                return f"for {replicas} replicas yours is {found / wanted[replicas]:.4g} times the right one"
        return True

    return holds


def _names_the_limit(answers, seed):
    for parts, found in zip(capstone_cases.loops(seed), answers["parts"], strict=True):
        if found != _best_part(parts):
            shares = ", ".join(f"{part} {seconds / _step_seconds(parts):.2f}" for part, seconds in parts.items())
            return f"with {shares} of a step, you name {found}"
    return True


def _says_the_gain(answers, seed):
    for parts, found in zip(capstone_cases.loops(seed), answers["gains"], strict=True):
        if not math.isclose(found, _gain(parts, _best_part(parts)), rel_tol=PLAIN_EFFICIENCY):
            return f"one of yours, {found:.3f}, is wrong"
    return True


_EFFICIENCIES = [(forms.whole, forms.number)]
SCALING = question(
    name="q5",
    title="Efficiency, and what limits it",
    asks_for=("efficiencies", "bottleneck"),
    probe=probes.probe_scaling,
    form={"strong": _EFFICIENCIES, "weak": _EFFICIENCIES, "parts": [forms.text], "gains": [forms.number]},
    targets=(
        Target(
            "strong efficiency, for every number of replicas, from medians without the warm-up",
            _efficiency_is("strong"),
        ),
        Target(
            "weak efficiency, for every number of replicas, from medians without the warm-up", _efficiency_is("weak")
        ),
        Target("the part that is worth making twice as fast", _names_the_limit),
        Target("how many times as fast the loop is then", _says_the_gain),
    ),
)

QUESTIONS = (INPUT, RATE, RESUME, RUN, SCALING)

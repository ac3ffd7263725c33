"""Exercise 11: a replica's input, a rate in updates, a resume, a run to 97%, scaling and its limit.

Needs NumPy; the mistakes of q4 need no run to be recognised.
"""

import math
from collections import Counter

import numpy as np

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


def _epochs(answers, seed):
    """The case, whether it is training, and the learner's epoch; of all cases and epochs, small ones first."""
    for case, epochs in zip(probes.input_cases(seed), answers["cases"], strict=True):
        for (_, training), epoch in zip(probes.EPOCHS, epochs, strict=True):
            yield case, training, epoch


def _setting(case, training=True):
    batches = f"{case['rows']} rows in global batches of {case['global_batch']} on {case['replicas']} replicas"
    return batches + ("" if training else ", in testing")


def _every_row_once(answers, seed):
    for case, training, epoch in _epochs(answers, seed):
        seen, setting = Counter(_rows_of(epoch)), _setting(case, training)
        if strange := [row for row in seen if not 0 <= row < case["rows"]]:
            return f"{setting}: there is no row {strange[0]}"
        if missing := case["rows"] - len(seen):
            return f"{setting}: {missing} of the rows reach no replica"
        if double := sum(count > 1 for count in seen.values()):
            return f"{setting}: {double} of the rows come more than once in an epoch"
    return True


def _even_shares(answers, seed):
    for case, training, epoch in _epochs(answers, seed):
        whole, last = divmod(case["rows"], case["global_batch"])
        sizes = [[len(rows) for rows in step] for step in _steps_of(epoch)]
        totals, setting = [sum(step) for step in sizes], _setting(case, training)
        if totals != [case["global_batch"]] * whole + [last] * bool(last):
            return f"{setting}: your steps have {totals} rows"
        if odd := [step for step in sizes if max(step) - min(step) > 1]:
            return f"{setting}: a step's rows are shared out as {odd[0]}"
    return True


def _order_by_epoch(answers, seed):
    first, second, again, test = answers["cases"][-1]
    if _rows_of(first) != _rows_of(again):
        return "epoch 0, asked for again, comes in another order"
    if _rows_of(first) == _rows_of(second):
        return "epochs 0 and 1 come in the same order"
    return _in_order(test) or "in testing a replica's rows are not in the arrays' order"


def _in_order(epoch):
    return all((np.diff(np.concatenate(steps)) > 0).all() for steps in epoch["replicas"] if steps)


def _labels_fit(answers, seed):
    fit = all(epoch["labels_fit"] for _, _, epoch in _epochs(answers, seed))
    return fit or "some images come with the label of another one"


def _augmented_in_training_alone(answers, seed):
    for _, training, epoch in _epochs(answers, seed):
        if epoch["augmented"] != float(training):
            return f"{epoch['augmented']:.0%} of the images are augmented in {'training' if training else 'testing'}"
    return True


def _keys(epoch):
    return [tuple(key) for keys in epoch["keys"] for key in keys]


def _own_keys(answers, seed):
    for case, (first, second, again, test) in zip(probes.input_cases(seed), answers["cases"], strict=True):
        if _keys(test) or _keys(first) != _keys(again):
            return "testing has keys, or the same epoch has others when it is asked for again"
        batches = sum(len(rows) > 0 for steps in first["replicas"] for rows in steps)
        if len(_keys(first)) < batches:
            return f"{_setting(case)}: {len(_keys(first))} of {batches} local batches are augmented with a key"
        keys = _keys(first) + _keys(second)
        if shared := len(keys) - len(set(keys)):
            return f"{_setting(case)}: {shared} local batches of two epochs share their key with another one"
    return True


def _another_order_each_time(answers, seed):
    first, _, again, _ = answers["cases"][-1]
    return _rows_of(first) != _rows_of(again)


def _in_every_epoch(fits):
    """Recognise answers by fits(case, steps, rows) of all epochs: its steps with rows in them, and their rows."""

    def recognise(answers, seed):
        epochs = [(case, _steps_of(epoch), _rows_of(epoch)) for case, _, epoch in _epochs(answers, seed)]
        return all(fits(case, [step for step in steps if any(map(len, step))], rows) for case, steps, rows in epochs)

    return recognise


def _last_rows_dropped(case, steps, rows):
    full = case["rows"] // case["global_batch"]
    return len(set(rows)) == len(rows) == full * case["global_batch"] and len(steps) == full


def _leftovers_dropped(case, steps, rows):
    """In each step every replica has the same number of rows, which `//` gives."""
    starts = range(0, case["rows"], case["global_batch"])
    shares = [min(case["global_batch"], case["rows"] - start) // case["replicas"] for start in starts]
    return [[*map(len, step)] for step in steps] == [[share] * case["replicas"] for share in shares if share]


def _filled_up(case, steps, rows):
    return len(set(rows)) == case["rows"] and {sum(map(len, step)) for step in steps} == {case["global_batch"]}


def _whole_batches(case, steps, rows):
    """Each row is on one replica, and each replica's own steps are of global_batch rows but for its last."""
    return sorted(rows) == [*range(case["rows"])] and all(
        {len(step[replica]) for step in steps[:-1]} <= {case["global_batch"]}
        and len(steps[-1][replica]) <= case["global_batch"]
        for replica in range(case["replicas"])
    )


def _last_unevenly(case, steps, rows):
    full = case["rows"] // case["global_batch"]
    sizes = [[*map(len, step)] for step in steps]
    return (
        sorted(rows) == [*range(case["rows"])]
        and sizes[:full] == [[case["global_batch"] // case["replicas"]] * case["replicas"]] * full
    )


def _own_orders(answers, seed):
    """Training has the right number of rows and not each once, and testing has."""
    everything = [*range(probes.drawn_input(seed)["rows"])]
    first, _, _, test = map(sorted, map(_rows_of, answers["cases"][-1]))
    return test == everything != first and len(first) == len(everything)


def _one_key_per(of):
    """Recognise keys that are alike where of(epoch, replica, step) is, and nowhere else; of rows that are right."""

    def recognise(answers, seed):
        if not _shared_out(answers, seed):
            return False
        groups = {}
        for number, epoch in enumerate(answers["cases"][-1][:2]):
            for replica, own in enumerate(epoch["keys"]):
                for step, key in enumerate(own):
                    groups.setdefault(of(number, replica, step), set()).add(tuple(key))
        keys = set().union(*groups.values())
        return bool(keys) and len(keys) == len(groups) == sum(map(len, groups.values()))

    return recognise


def _shared_out(answers, seed):
    return _every_row_once(answers, seed) is True and _even_shares(answers, seed) is True


def _of_last(fits):
    """Recognise answers by the epochs of their last case."""
    return lambda answers, seed: fits(*answers["cases"][-1])


_EPOCH = {"replicas": [[forms.array]], "labels_fit": forms.flag, "augmented": forms.number, "keys": [[[forms.whole]]]}
INPUT = question(
    name="q1",
    title="A replica's input",
    asks_for=("replica_batches",),
    probe=probes.probe_batches,
    form={"cases": [(_EPOCH,) * len(probes.EPOCHS)]},
    targets=(
        Target("in every epoch each row reaches exactly one replica, the last ones included", _every_row_once),
        Target("a step has global_batch rows, the last one the rest; shares differ by one row at most", _even_shares),
        Target("each epoch has its own order, the same when asked again; in testing rows keep theirs", _order_by_epoch),
        Target("every image comes with its own label", _labels_fit),
        Target("all training images are augmented, and no test image", _augmented_in_training_alone),
        Target("each local batch of two epochs has its own key", _own_keys),
    ),
    recognise={
        "no seed": _another_order_each_time,
        "last rows dropped": _in_every_epoch(_last_rows_dropped),
        "leftovers dropped": _in_every_epoch(_leftovers_dropped),
        "filled up": _in_every_epoch(_filled_up),
        "not sharded": _in_every_epoch(
            lambda case, steps, rows: (
                all(len(own) == len(step[0]) for step in steps for own in step)
                and len(rows) >= case["replicas"] * (case["rows"] // case["global_batch"] * case["global_batch"])
            )
        ),
        "an order for each replica": _own_orders,
        "labels left behind": lambda answers, seed: (
            _every_row_once(answers, seed) is True is not _labels_fit(answers, seed)
        ),
        "never shuffled": _of_last(lambda first, second, *_: _in_order(first) and _in_order(second)),
        "the same order in every epoch": _of_last(lambda first, second, *_: _rows_of(first) == _rows_of(second)),
        "shuffled in testing": _of_last(lambda *epochs: not _in_order(epochs[-1])),
        "augmented in testing": _of_last(lambda *epochs: [epoch["augmented"] for epoch in epochs] == [1] * 4),
        "result not used": _of_last(lambda first, *_: bool(_keys(first)) and first["augmented"] == 0),
        "not augmented": _of_last(lambda first, *_: not _keys(first) and first["augmented"] == 0),
        "one key for all replicas": _one_key_per(lambda epoch, replica, step: (epoch, step)),
        "a key without the epoch": _one_key_per(lambda epoch, replica, step: (replica, step)),
        "a key for all steps": _one_key_per(lambda epoch, replica, step: (epoch, replica)),
        "keys that meet": lambda answers, seed: (
            _shared_out(answers, seed) and "share their key" in str(_own_keys(answers, seed))
        ),
        "a replica takes whole batches": _in_every_epoch(_whole_batches),
        "last batch uneven": lambda answers, seed: (
            _even_shares(answers, seed) is not True and _in_every_epoch(_last_unevenly)(answers, seed)
        ),
    },
)


# q2: a rate in updates


def _lengths(run):
    """An update's examples over base_batch; the updates of the warm-up and of the run."""
    update = run["local_batch"] * run["replicas"] * run["micro_batches"]
    per_epoch = run["examples"] // update
    return update / run["base_batch"], run["warmup_epochs"] * per_epoch, run["epochs"] * per_epoch


def _phase(run, step):
    return "warm-up" if step // run["micro_batches"] < _lengths(run)[1] else "decay"


def _wanted_rate(step, run, most=math.inf):
    """The rate of a micro-step; most: how much of the decay may pass."""
    factor, warmup, total = _lengths(run)
    update = step // run["micro_batches"]
    if update < warmup:
        return run["base_rate"] * (1 + (factor - 1) * update / warmup)
    return run["base_rate"] * factor * math.cos(math.pi / 2 * min(most, (update - warmup) / (total - warmup))) ** 2


def _asked(answers, seed):
    """(micro-step, run, the learner's rate, by how much of the peak it is off), of all cases."""
    for (step, run), rate in zip(probes.rate_cases(seed), answers["rates"], strict=True):
        yield step, run, rate, abs(rate - _wanted_rate(step, run)) / (run["base_rate"] * _lengths(run)[0])


def _says(step, run, rate, missed):
    """A wrong rate in one line, beside the right one where that can be worked out by hand."""
    if run == probes.SMALL_RUN:
        given = ", ".join(f"{name}={value}" for name, value in run.items())
        return f"rate_at({step}, {given}) gives {rate:.3g}, and {probes.SMALL_STEPS[step]} is wanted"
    setting = f"with {run['replicas']} replicas and {run['micro_batches']} micro-batches"
    return f"micro-step {step}, {setting}: yours is off by {missed:.2g} of the peak"


def _rates_in(phase):
    def holds(answers, seed):
        for step, run, rate, missed in _asked(answers, seed):
            if _phase(run, step) == phase and not missed <= FLOAT32:
                return _says(step, run, rate, missed)
        return True

    return holds


def _one_rate_per_group(answers, seed):
    cases = [(step, run, rate) for step, run, rate, _ in _asked(answers, seed)]
    for (step, run, rate), (next_step, next_run, next_rate) in zip(cases, cases[1:]):
        k = run["micro_batches"]
        if run == next_run and step // k == next_step // k and rate != next_rate:
            return f"micro-steps {step} and {next_step} are of one group of {k} and have different rates"
    return True


def _at_the_peak(answers, seed):
    for step, run, rate, missed in _asked(answers, seed):
        factor, warmup, _ = _lengths(run)
        if step == run["micro_batches"] * warmup and not missed <= FLOAT32:
            times = rate / run["base_rate"]
            return f"an update has {factor:g} times base_batch examples, and your rate is {times:.4g} times base_rate"
    return True


def _rates_are(step_of=lambda step, run: step, **changed):
    """Recognise the right formula on other arguments: of the micro-step and the run, and instead of some of its."""

    def recognise(answers, seed):
        cases = [(step_of(step, run), {**run, **changed}) for step, run in probes.rate_cases(seed)]
        rates = ([_wanted_rate(step, run, most) for step, run in cases] for most in (1, math.inf))
        return any(np.allclose(answers["rates"], other, rtol=1e-4, atol=1e-6) for other in rates)

    return recognise


def _update(step, run):
    return step // run["micro_batches"]


def _changes_in_a_group(answers, seed):
    asked = [row for row in _asked(answers, seed) if row[0] % row[1]["micro_batches"] == 0]
    return _one_rate_per_group(answers, seed) is not True and all(missed <= FLOAT32 for *_, missed in asked)


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
    recognise={
        "micro-steps counted": _rates_are(lambda step, run: step * run["micro_batches"]),
        "no accumulation": _rates_are(micro_batches=1),
        "an update of one micro-batch": _rates_are(_update, micro_batches=1),
        "replicas forgotten": _rates_are(replicas=1),
        "one local batch": _rates_are(_update, micro_batches=1, replicas=1),
        "no warm-up": _rates_are(warmup_epochs=0),
        "parts of updates": _changes_in_a_group,
    },
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


def _medians(times, warmup):
    middle = {case: sorted(steps[warmup:]) for case, steps in times.items()}
    return {case: (steps[(len(steps) - 1) // 2] + steps[len(steps) // 2]) / 2 for case, steps in middle.items()}


def _strong(seconds, many, local, large):
    return seconds[1, large] / seconds[many, large] / many


def _weak(seconds, many, local, large):
    return seconds[1, local] / seconds[many, many * local]


def _step_seconds(parts):
    return max(parts["input"], parts["compute"] + parts["communication"])


def _gain(parts, part):
    return _step_seconds(parts) / _step_seconds({**parts, part: parts[part] / 2})


def _best_part(parts):
    return max(parts, key=lambda part: _gain(parts, part))


def _efficiencies(kind, efficiency, answers, seed):
    """(times, warm-up, what efficiency gives by replicas, the learner's) of one kind, of all benchmarks."""
    for (times, warmup), found in zip(probes.benchmarks(seed), answers["found"], strict=True):
        seconds, batches = _medians(times, warmup), sorted({batch for _, batch in times})
        counts = sorted({replicas for replicas, _ in times})
        wanted = {many: efficiency(seconds, many, batches[0], batches[-1]) for many in counts}
        own = dict(map(tuple, found[kind]))
        yield times, warmup, wanted, own if len(own) == len(found[kind]) else {}


def _efficiency_is(kind, efficiency):
    def holds(answers, seed):
        for times, warmup, wanted, found in _efficiencies(kind, efficiency, answers, seed):
            if [*found] != [*wanted]:
                return f"yours are for {', '.join(map(str, found))} replicas, of {', '.join(map(str, wanted))}"
            for replicas, own in found.items():
                if not math.isclose(own, wanted[replicas], rel_tol=PLAIN_EFFICIENCY):
                    if len(wanted) == 2:  # the one to be worked out by hand
                        said = f"efficiencies({times}, {warmup}) gives {own:.3g} for {replicas} replicas"
                        return f"{said}, and {wanted[replicas]:.3g} is wanted"
                    return f"for {replicas} replicas yours is {own / wanted[replicas]:.4g} times the right one"
        return True

    return holds


def _names_the_limit(answers, seed):
    for parts, found in zip(probes.loops_to_judge(seed), answers["parts"], strict=True):
        if found != _best_part(parts):
            shares = ", ".join(f"{part} {seconds / _step_seconds(parts):.2f}" for part, seconds in parts.items())
            return f"with {shares} of a step, you name {found}"
    return True


def _says_the_gain(answers, seed):
    for parts, found in zip(probes.loops_to_judge(seed), answers["gains"], strict=True):
        wanted = _gain(parts, _best_part(parts))
        if not math.isclose(found, wanted, rel_tol=PLAIN_EFFICIENCY):
            by_hand = f"bottleneck({parts}) says {found:.3g} times, and {wanted:.3g} is wanted"
            return by_hand if parts in probes.LOOPS_BY_HAND else f"one of yours, {found:.3f}, is wrong"
    return True


def _efficiencies_are(**others):
    """Recognise what other functions than _strong and _weak give, by kind."""

    def recognise(answers, seed):
        compared = (row for kind, other in others.items() for row in _efficiencies(kind, other, answers, seed))
        return all(
            [*found] == [*wanted] and np.allclose([*found.values()], [*wanted.values()], rtol=PLAIN_EFFICIENCY)
            for _, _, wanted, found in compared
        )

    return recognise


def _gains_are(other):
    """Recognise gains that are another function of the loop's seconds before the change and after it."""

    def recognise(answers, seed):
        seconds = [(_step_seconds(parts), _gain(parts, _best_part(parts))) for parts in probes.loops_to_judge(seed)]
        return np.allclose(answers["gains"], [other(before, before / gain) for before, gain in seconds])

    return recognise


_EFFICIENCIES = [(forms.whole, forms.number)]
SCALING = question(
    name="q5",
    title="Efficiency, and what limits it",
    asks_for=("efficiencies", "bottleneck"),
    probe=probes.probe_scaling,
    form={"found": [{"strong": _EFFICIENCIES, "weak": _EFFICIENCIES}], "parts": [forms.text], "gains": [forms.number]},
    targets=(
        Target(
            "strong efficiency, for every number of replicas, from medians without the warm-up",
            _efficiency_is("strong", _strong),
        ),
        Target(
            "weak efficiency, for every number of replicas, from medians without the warm-up",
            _efficiency_is("weak", _weak),
        ),
        Target("the part that is worth making twice as fast", _names_the_limit),
        Target("how many times as fast the loop is then", _says_the_gain),
    ),
    recognise={
        "speed-up for strong": _efficiencies_are(strong=lambda s, many, local, large: s[1, large] / s[many, large]),
        "weak divided again": _efficiencies_are(weak=lambda s, many, *batches: _weak(s, many, *batches) / many),
        "speed-up for weak": _efficiencies_are(weak=lambda s, many, *batches: _weak(s, many, *batches) * many),
        "upside down": _efficiencies_are(strong=lambda *of: 1 / _strong(*of), weak=lambda *of: 1 / _weak(*of)),
        "kinds swapped": _efficiencies_are(strong=_weak, weak=_strong),
        "weak from the largest": _efficiencies_are(
            weak=lambda s, many, local, large: s[1, large] / s[many, many * local]
        ),
        "seconds for gain": _gains_are(lambda before, after: after),
        "part of the time": _gains_are(lambda before, after: after / before),
        "gained share": lambda answers, seed: (
            _gains_are(lambda before, after: before / after - 1)(answers, seed)
            or _gains_are(lambda before, after: 1 - after / before)(answers, seed)
        ),
    },
)

QUESTIONS = (INPUT, RATE, RESUME, RUN, SCALING)

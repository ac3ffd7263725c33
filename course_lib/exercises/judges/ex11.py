"""Exercise 11: a rate in updates, a resume, a run to 97%, scaling and its limit; q1 is in ex11_input.

Needs NumPy; the mistakes of q4 need no run to be recognised.
"""

import itertools
import math

import numpy as np

from course_lib.exercises.given.trainer import Trainer
from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.judges.ex11_input import INPUT
from course_lib.exercises.judges.numbers import off
from course_lib.exercises.judges.stops import outside_the_scope, stopped_by
from course_lib.exercises.probes import ex11 as probes
from course_lib.exercises.probes import ex11_resume
from course_lib.exercises.question import Target

question = question_maker.of("11_capstone")
FLOAT64 = 1e-5  # relative: float64 throughout; its rounding is far smaller
FLOAT32 = 1e-5  # of the peak: near its end a cosine in float32 has few digits left
FLOOR, BUDGET = 0.97, 700  # of q4: test accuracy, updates
PLAIN_EFFICIENCY = 1e-6  # relative: a median and two divisions
CHANGED = ("the saved run's training", "another save", "a restore, or the run after it,")  # what q3's probe looks after


# q2: a rate in updates


def _lengths(run):
    """An update's examples over base_batch; the updates of the warm-up and of the run."""
    update = run["local_batch"] * run["replicas"] * run["micro_batches"]
    per_epoch = run["examples"] // update
    return update / run["base_batch"], run["warmup_epochs"] * per_epoch, run["epochs"] * per_epoch


def _phase(run, step):
    return "warm-up" if step // run["micro_batches"] < _lengths(run)[1] else "decay"


def _wanted_rate(step, run, most=math.inf, lengths=_lengths):
    """The rate of a micro-step; most: how much of the decay may pass."""
    factor, warmup, total = lengths(run)
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
    setting += "" if run["warmup_epochs"] else ", and no warm-up"
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


def _rest_kept(in_decay):
    """Recognise epochs with as many updates as their examples or their micro-batches give, with a part of one.

    in_decay  whether also where the decay ends; else in the warm-up alone
    """

    def lengths(unit, whole):
        def of(run):
            update = run["local_batch"] * run["replicas"] * run["micro_batches"]
            per_epoch = run["examples"] // unit(run) * unit(run) / update
            warmup, total = (whole(run[name] * per_epoch) for name in ("warmup_epochs", "epochs"))
            return update / run["base_batch"], warmup, total if in_decay else _lengths(run)[2]

        return of

    units = (lambda run: 1, lambda run: run["local_batch"] * run["replicas"])
    ways = [*itertools.product(units, (float, math.floor, math.ceil, round))]
    return lambda answers, seed: any(
        np.allclose(
            answers["rates"],
            [_wanted_rate(*case, lengths=lengths(*way)) for case in probes.rate_cases(seed)],
            rtol=1e-4,
            atol=1e-6,
        )
        for way in ways
    )


def _whole_multiples(answers, seed):
    """The batches' ratio is rounded down: the update's over base_batch, to 0 or to 1 at least; or the larger one's."""
    ways = (
        math.floor,
        lambda factor: max(1, math.floor(factor)),
        lambda factor: math.floor(factor) if factor >= 1 else 1 / math.floor(1 / factor),
    )

    def rates(way):
        for step, run in probes.rate_cases(seed):
            yield _wanted_rate(step, run, lengths=lambda run: (way(_lengths(run)[0]), *_lengths(run)[1:]))

    return any(np.allclose(answers["rates"], [*rates(way)], rtol=1e-4) for way in ways)


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
        Target(
            "the warm-up leads straight from base_rate to the peak, right to 0.001% of the peak", _rates_in("warm-up")
        ),
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
        "the rest kept": _rest_kept(in_decay=True),
        "a warm-up with the rest": _rest_kept(in_decay=False),
        "parts of updates": _changes_in_a_group,
        "whole multiples": _whole_multiples,
        "rounded rates": lambda answers, seed: max(missed for *_, missed in _asked(answers, seed)) < 1e-3,
    },
)


# q3: a resume


def _undisturbed(seed, before):
    trainer = Trainer(seed, ex11_resume.SAVED_AS)
    losses = [trainer.step() for _ in range(before + ex11_resume.AFTER)]
    return losses[before:], trainer


def _off_at(got, wanted):
    """The first place, counted from 1, where two lists of losses differ, or None."""
    pairs = enumerate(zip(got, wanted, strict=True), 1)
    return next((at for at, (one, other) in pairs if not math.isclose(one, other, rel_tol=FLOAT64)), None)


def _same_losses(which, said):
    def holds(answers, seed):
        for before, answer in zip(ex11_resume.kills(seed), answers["kills"], strict=True):
            wanted, _ = _undisturbed(seed, before)
            if at := _off_at(answer[which], wanted):
                return f"{said} after micro-batch {before}, its loss number {at} differs"
        return True

    return holds


def _off_by(answers, seed):
    """The largest distance of a resumed run's losses from the undisturbed one's, over the largest of these."""
    wanted = [_undisturbed(seed, before)[0] for before in ex11_resume.kills(seed)]
    return max(np.abs(np.subtract(one["resumed"], own)).max() / max(own) for one, own in zip(answers["kills"], wanted))


def _same_end(answers, seed):
    for before, answer in zip(ex11_resume.kills(seed), answers["kills"], strict=True):
        _, trainer = _undisturbed(seed, before)
        if answer["updates"] != trainer.updates:
            return f"it ends with {answer['updates']} updates, and the undisturbed run with {trainer.updates}"
        if not off(answer["weights"], trainer.weights) <= FLOAT64:
            return "the weights differ"
    return True


def _goes_on(answers, seed):
    """The trainer that restore was given, which it returned, has the undisturbed run's losses."""
    if _another_trainer(answers, seed):
        return "restore returns another trainer than the one that it was given"
    return _same_losses("resumed", "resumed")(answers, seed)


def _noise_drawn_again(answers, seed):
    """As from the start of a first process' generator, or of the fresh trainer's own."""

    def losses(before, process):
        trainer = Trainer(seed, ex11_resume.SAVED_AS)
        for _ in range(before):
            trainer.step()
        trainer.generator = np.random.default_rng([seed, process])
        trainer.generator.normal(size=(before, Trainer.MICRO_BATCH, 4))
        return [trainer.step() for _ in range(ex11_resume.AFTER)]

    pairs = [*zip(ex11_resume.kills(seed), answers["kills"], strict=True)]
    return any(
        all(not _off_at(answer["resumed"], losses(before, process)) for before, answer in pairs)
        for process in (0, ex11_resume.RESUMED_AS)
    )


def _another_trainer(answers, seed):
    return not all(answer["itself"] for answer in answers["kills"])


def _first_change(answers):
    """The first of CHANGED that changed something that was saved, or None."""
    kept = [all(flags) for flags in zip(*(answer["kept"] for answer in answers["kills"]))]
    return CHANGED[kept.index(False)] if False in kept else None


def _stays(answers, seed):
    by = _first_change(answers)
    return not by or f"{by} changes what was saved"


def _changed_by(which):
    return lambda answers, seed: _first_change(answers) == CHANGED[which]


RESUME = question(
    name="q3",
    title="A resume that loses nothing",
    asks_for=("save", "restore"),
    probe=ex11_resume.probe_resume,
    form={
        "kills": [
            {
                **dict.fromkeys(("continued", "resumed"), [forms.number]),
                "weights": forms.array,
                "updates": forms.whole,
                "itself": forms.flag,
                "kept": (forms.flag,) * len(CHANGED),
            }
        ]
    },
    targets=(
        Target(f"the next {ex11_resume.AFTER} losses are the undisturbed run's, to 0.001%", _goes_on),
        Target("so are the weights, and the number of updates, at the end", _same_end),
        Target("the saved run goes on undisturbed", _same_losses("continued", "saved")),
        Target("what was saved stays as it is, whatever is trained, saved or restored later", _stays),
    ),
    recognise={
        "array of objects": stopped_by("it holds an array of objects"),
        "not plain": stopped_by("what save returns cannot be written to a file"),
        "left in the process": stopped_by("restore works in the process that saved"),
        "not copied": _changed_by(0),
        "the same dict at each save": _changed_by(1),
        "changed by a restore": _changed_by(2),
        "another trainer": _another_trainer,
        "noise drawn again": _noise_drawn_again,
        "digits lost": lambda answers, seed: FLOAT64 < _off_by(answers, seed) < 0.01,
        "saving disturbs": lambda answers, seed: _same_losses("continued", "saved")(answers, seed) is not True,
    },
)


# q4: a run to 97%


def _on_all_replicas(answers, seed):
    if answers["replicas"] != answers["wanted_replicas"]:
        return f"a weight has {answers['replicas']} of {answers['wanted_replicas']} copies"
    if _few_on_a_replica(answers, seed):
        fewest = min(answers["gradients"]["other_than_zero"])
        return f"of {answers['updates']:,} updates a replica has had a part in {fewest:,}, by gradients other than zero"
    differ = "the copies differ" if answers["finite"] else "its numbers are not finite"
    return answers["identical"] or differ


def _few_on_a_replica(answers, seed):
    """Whether some replica's gradients are missing or zero in most updates; a last batch may bring it no row."""
    return min(answers["gradients"]["other_than_zero"]) < max(1, answers["updates"] / 2)


def _within_budget(answers, seed):
    updates, changes = answers["updates"], answers["gradients"]["changes"]
    if max(3 * updates, BUDGET) < changes:  # some methods change the weights twice for an update
        return f"optimizers of Keras count {updates:,}, and gradients were computed with {changes:,} different weights"
    return updates <= BUDGET or f"you take {updates:,}"


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
        "gradients": {"other_than_zero": [forms.size], "changes": forms.size},
        "updates": forms.size,
        "finite": forms.flag,
        "train_accuracy": forms.share,
        "test_accuracy": forms.share,
        "first_answers": forms.array,
    },
    takes_long=True,
    points=2,
    targets=(
        Target("the model trains on all replicas, with identical copies of every trained weight", _on_all_replicas),
        Target(f"at most {BUDGET} updates, of all optimizers", _within_budget),
        Target(f"at least {FLOOR:.0%} of the test images are right", _reaches_floor),
    ),
    recognise={
        "outside the scope": outside_the_scope,
        "not compiled": stopped_by("object has no attribute 'optimizer'"),
        "other images": stopped_by("does not take such images as train is given"),
        "trained elsewhere": lambda answers, seed: answers["updates"] <= BUDGET and _few_on_a_replica(answers, seed),
        "copies differ": lambda answers, seed: (
            answers["replicas"] > 1 and answers["finite"] and not answers["identical"]
        ),
        "over the budget": lambda answers, seed: _within_budget(answers, seed) is not True,
        "diverged": lambda answers, seed: not answers["finite"] or answers["train_accuracy"] < 0.3,
        "learned by heart": _by_heart,
        "hardly trained": lambda answers, seed: (
            max(answers["updates"], answers["gradients"]["changes"]) < BUDGET / 4 and answers["test_accuracy"] < FLOOR
        ),
        "not learned yet": lambda answers, seed: answers["train_accuracy"] < 0.99 and answers["test_accuracy"] < FLOOR,
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
                    return f"for {replicas} replicas yours is {own / wanted[replicas]:.7g} times the right one"
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


def _gains_without_a_limit(answers, seed):
    """As if the side that became faster were still the slower one."""
    gains = []
    for parts in probes.loops_to_judge(seed):
        best = _best_part(parts)
        gains.append(
            2.0 if best == "input" else 1 / (1 - parts[best] / 2 / (parts["compute"] + parts["communication"]))
        )
    return _names_the_limit(answers, seed) is True and np.allclose(answers["gains"], gains)


def _as_if_gone(answers, seed):
    """Each part is one that leaves the shortest step when it is gone, and some are not the right ones."""
    right = []
    for parts, found in zip(probes.loops_to_judge(seed), answers["parts"], strict=True):
        left = {part: _step_seconds({**parts, part: 0.0}) for part in parts}
        if left.get(found) != min(left.values()):
            return False
        right.append(found == _best_part(parts))
    return not all(right)


def _without_one(answers, seed):
    counts = [
        [many for many, _ in found[kind]] == sorted({many for many, _ in times} - {1})
        for (times, _), found in zip(probes.benchmarks(seed), answers["found"], strict=True)
        for kind in ("strong", "weak")
    ]
    return all(counts)


def _some_left_out(answers, seed):
    """Each list of numbers lacks nothing but some that were timed, and one lacks some."""
    lacking = []
    for (times, _), found in zip(probes.benchmarks(seed), answers["found"], strict=True):
        for kind in ("strong", "weak"):
            own, timed = {many for many, _ in found[kind]}, {many for many, _ in times}
            lacking.append(len(timed - own) if own <= timed else -1)
    return min(lacking) >= 0 < max(lacking)


_EFFICIENCIES = [(forms.whole, forms.number)]
SCALING = question(
    name="q5",
    title="Efficiency, and what limits it",
    asks_for=("efficiencies", "bottleneck"),
    probe=probes.probe_scaling,
    form={
        "found": [{"strong": _EFFICIENCIES, "weak": _EFFICIENCIES}],
        "lists_kept": forms.flag,
        "parts": [forms.text],
        "gains": [forms.number],
    },
    targets=(
        Target(
            "strong efficiency, for every number of replicas, from medians without the warm-up",
            _efficiency_is("strong", _strong),
        ),
        Target(
            "weak efficiency, for every number of replicas, from medians without the warm-up",
            _efficiency_is("weak", _weak),
        ),
        Target("the lists of times stay as they are", lambda answers, seed: answers["lists_kept"]),
        Target("the part that is worth making twice as fast", _names_the_limit),
        Target("how many times as fast the loop is then", _says_the_gain),
    ),
    recognise={
        "as if it took no time": _as_if_gone,
        "one replica left out": _without_one,
        "numbers written down": _some_left_out,
        "not timed": stopped_by("KeyError: ("),
        "other side forgotten": _gains_without_a_limit,
        "speed-up for strong": _efficiencies_are(strong=lambda s, many, local, large: s[1, large] / s[many, large]),
        "weak divided again": _efficiencies_are(weak=lambda s, many, *batches: _weak(s, many, *batches) / many),
        "speed-up for weak": _efficiencies_are(weak=lambda s, many, *batches: _weak(s, many, *batches) * many),
        "upside down": _efficiencies_are(strong=lambda *of: 1 / _strong(*of), weak=lambda *of: 1 / _weak(*of)),
        "kinds swapped": _efficiencies_are(strong=_weak, weak=_strong),
        "weak from the largest": _efficiencies_are(
            weak=lambda s, many, local, large: s[1, large] / s[many, many * local]
        ),
        "lists changed": lambda answers, seed: not answers["lists_kept"],
        "seconds for gain": _gains_are(lambda before, after: after),
        "part of the time": _gains_are(lambda before, after: after / before),
        "gained share": lambda answers, seed: (
            _gains_are(lambda before, after: before / after - 1)(answers, seed)
            or _gains_are(lambda before, after: 1 - after / before)(answers, seed)
        ),
    },
)

QUESTIONS = (INPUT, RATE, RESUME, RUN, SCALING)

"""Exercise 01: a stopwatch, an input pipeline, several steps a call; q4 is in ex01_traces, q5 in ex01_profile.

Needs NumPy; TensorFlow to compare an answer with known mistakes.
"""

import itertools

import numpy as np

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.judges.ex01_profile import PROFILE
from course_lib.exercises.judges.ex01_traces import BOTTLENECK
from course_lib.exercises.probes import ex01 as probes
from course_lib.exercises.question import Target

question = question_maker.of("01_one_device")
EXACT = 1e-6  # relative: the probe's clock is a float64


def _steady(seed):
    """The seconds of the repeats of each stopwatch, as one that waits sees them."""
    return [calls.seconds[calls.warmup :] for calls in probes.stopwatches(seed)]


def _spread(seconds, method="linear"):
    low, high = np.percentile(seconds, [25, 75], method=method)
    return (high - low) / np.median(seconds)


def _calls(seed):
    return [calls.warmup + calls.repeats for calls in probes.stopwatches(seed)]


def _called(answers, seed):
    for calls, called in zip(probes.stopwatches(seed), answers["calls"], strict=True):
        if called != calls.warmup + calls.repeats:
            return f"step() was called {called} times, for {calls.warmup} warm-up calls and {calls.repeats} repeats"
    return True


def _as_steady(key, name, of):
    def holds(answers, seed):
        for place, (own, seconds) in enumerate(zip(answers[key], _steady(seed), strict=True)):
            if not np.isclose(own, of(seconds), rtol=EXACT, atol=0):
                if place == 0:
                    warm_up, repeats = ", ".join(_TINY[: -len(seconds)]), ", ".join(_TINY[-len(seconds) :])
                    said = f"for warm-up calls of {warm_up} s and repeats of {repeats} s your {name} is {own:.3g}"
                    return f"{said}, and {of(seconds):g} is wanted"
                times = own / of(seconds)
                if abs(times - 1) < 0.01:
                    return f"yours is off by {100 * abs(times - 1):.2g}%"
                return f"yours is {times:.3g} times the {name}"
        return True

    return holds


_TINY = [f"{seconds:g}" for seconds in probes.stopwatches(0)[0].seconds]


def _stopwatch(key, of):
    """Recognise medians or spreads that are of(durations, the seconds of the repeats)."""

    def recognise(answers, seed):
        wanted = [of(calls, calls.seconds[calls.warmup :]) for calls in probes.stopwatches(seed)]
        return np.allclose(answers[key], wanted, rtol=EXACT, atol=0)

    return recognise


def _warm_up_left(answers, seed):
    """The first repeat also lasts as long as all that the device still has to do."""

    def left(calls, seconds):
        return np.median([sum(calls.seconds), *seconds[1:]] if calls.warmup else seconds)

    return answers["calls"] == _calls(seed) and _stopwatch("medians", left)(answers, seed)


def _some_left_out(answers, seed):
    """Median and spread are those of repeats that follow one another in order of size, half of them or more."""

    def of_a_part(median, spread, seconds):
        many, parts = len(seconds), itertools.combinations(range(len(seconds) + 1), 2)
        chosen = [np.sort(seconds)[low:high] for low, high in parts if many / 2 <= high - low < many]
        return any(np.allclose([median, spread], [np.median(part), _spread(part)], rtol=EXACT) for part in chosen)

    return all(map(of_a_part, answers["medians"], answers["spreads"], _steady(seed)))


def _float32_readings(calls, _):
    step = probes.AsynchronousStep(calls)
    readings = [np.float32(step.clock())]
    for _ in calls.seconds:
        step().numpy()
        readings.append(np.float32(step.clock()))
    return np.median(np.diff(readings)[calls.warmup :])


def _own_clock(answers, seed):
    """The given clock never reads as little as a launch of a millisecond takes, and another one knows no other."""
    return all(0 < median < 5e-4 for median in answers["medians"])


def _swapped(answers, seed):
    medians, spreads = map(list, zip(*((np.median(seconds), _spread(seconds)) for seconds in _steady(seed))))
    return np.allclose([answers["medians"], answers["spreads"]], [spreads, medians], rtol=EXACT)


STOPWATCH = question(
    name="q1",
    title="A stopwatch for a steady state",
    asks_for=("steady_seconds",),
    probe=probes.probe_stopwatch,
    form={
        **dict.fromkeys(("medians", "spreads"), (forms.number,) * 3),
        **dict.fromkeys(("calls", "overlapping"), (forms.size,) * 3),
    },
    targets=(
        Target("step() runs warmup + repeats times", _called),
        Target("the median of the repeats, each until its result is there", _as_steady("medians", "median", np.median)),
        Target("the spread: interquartile range over median", _as_steady("spreads", "spread", _spread)),
    ),
    recognise={
        "not waited for": _stopwatch("medians", lambda calls, _: np.median(calls.launch_seconds[calls.warmup :])),
        "another clock": _own_clock,
        "warm-up counted": _stopwatch("medians", lambda calls, _: np.median(calls.seconds)),
        "clock started late": _stopwatch("medians", lambda calls, _: np.median(calls.compute_seconds[calls.warmup :])),
        "warm-up not waited for": _warm_up_left,
        "several at once": lambda answers, seed: all(
            overlapping >= calls.repeats - 1
            for overlapping, calls in zip(answers["overlapping"], probes.stopwatches(seed))
        ),
        "no warm-up": lambda answers, seed: answers["calls"] == [calls.repeats for calls in probes.stopwatches(seed)],
        "one call more": lambda answers, seed: answers["calls"] == [calls + 1 for calls in _calls(seed)],
        "a warm-up call of your own": lambda answers, seed: (
            answers["calls"] == [max(calls.warmup, 1) + calls.repeats for calls in probes.stopwatches(seed)]
        ),
        "one clock for all": lambda answers, seed: max(answers["spreads"]) < EXACT,
        "float32 clock": _stopwatch("medians", _float32_readings),
        "mean": _stopwatch("medians", lambda _, seconds: np.mean(seconds)),
        "one of two in the middle": lambda answers, seed: any(
            _stopwatch("medians", lambda _, seconds, back=back: np.sort(seconds)[(len(seconds) - back) // 2])(
                answers, seed
            )
            for back in (0, 1)
        ),
        "in milliseconds": _stopwatch("medians", lambda _, seconds: 1000 * np.median(seconds)),
        "fastest": _stopwatch("medians", lambda _, seconds: min(seconds)),
        "swapped": _swapped,
        "standard deviation": lambda answers, seed: any(
            _stopwatch("spreads", of)(answers, seed)
            for of in (
                lambda _, seconds: np.std(seconds) / np.median(seconds),
                lambda _, seconds: np.std(seconds, ddof=1) / np.median(seconds),
                lambda _, seconds: np.std(seconds) / np.mean(seconds),
            )
        ),
        "over the mean": _stopwatch(
            "spreads", lambda _, seconds: _spread(seconds) * np.median(seconds) / np.mean(seconds)
        ),
        "in percent": _stopwatch("spreads", lambda _, seconds: 100 * _spread(seconds)),
        "fractions for percents": _stopwatch(
            "spreads", lambda _, seconds: np.ptp(np.percentile(seconds, [0.25, 0.75])) / np.median(seconds)
        ),
        "other percentiles": lambda answers, seed: any(
            _stopwatch("spreads", lambda _, seconds, way=way: _spread(seconds, way))(answers, seed)
            for way in ("weibull", "hazen", "median_unbiased", "nearest", "lower", "higher", "midpoint")
        ),
        "spread in seconds": _stopwatch("spreads", lambda _, seconds: _spread(seconds) * np.median(seconds)),
        "largest less smallest": _stopwatch("spreads", lambda _, seconds: np.ptp(seconds) / np.median(seconds)),
        "some left out": _some_left_out,
    },
)


def _numbers(answers, epoch):
    return np.concatenate([np.ravel(batch) for batch in answers["epochs"][epoch]])


def _full_batches(answers, seed):
    examples, batch = probes.pipeline_sizes(seed)
    for epoch in answers["epochs"]:
        sizes = [int(rows.size) for rows in epoch]
        if sizes != [batch] * (examples // batch):
            said = f"{len(sizes)} batches or more" if len(sizes) > -(-examples // batch) else f"{len(sizes)} batches"
            said += f" of {min(sizes, default=0)} to {max(sizes, default=0)} examples"
            return f"the examples fill {examples // batch} batches of {batch}; an epoch gave {said}"
    if answers["of_too_few"]:
        return f"of {batch - 1} examples, which fill no batch of {batch}, an epoch gave one"
    return True


def _none_twice(answers, seed):
    examples, _ = probes.pipeline_sizes(seed)
    for epoch in range(2):
        numbers = _numbers(answers, epoch)
        if len(numbers) and (unknown := np.mean(~np.isin(numbers, np.arange(examples)))):
            return f"{unknown:.1%} of an epoch's examples are not in the data set"
        if len(set(numbers)) < len(numbers):
            return f"{1 - len(set(numbers)) / len(numbers):.1%} of an epoch's examples are there again"
    return True


def _decoded_once(answers, seed):
    examples, runs = probes.pipeline_sizes(seed)[0], answers["decode_runs"]
    if (more := runs - examples) and abs(more) < 0.005 * examples:
        times = f"{abs(more)} time{'s' * (abs(more) > 1)}"
        return f"in two epochs it ran {times} {'more' if more > 0 else 'fewer'} than once for each example"
    return runs == examples or f"in two epochs it ran {runs / examples:.3g} times for each example"


def _augmented_by_batches(answers, seed):
    examples, batch = probes.pipeline_sizes(seed)
    wanted, runs = 2 * (examples // batch), answers["augment_runs"]
    return runs == wanted or f"for {wanted} batches in two epochs it ran {runs} times"


def _augmented_afresh(answers, seed):
    repeated = answers["repeated"]
    return repeated < 0.1 or f"{100 * repeated:.0f}% of the examples came out of both epochs alike"


def _shuffled_afresh(answers, seed):
    if _same_order(answers):
        return "both epochs have the same order"
    if _same_members(answers):
        return "both epochs have the same batches, in another order"
    one, other = (set(_numbers(answers, epoch).tolist()) for epoch in range(2))
    if one == other:
        return f"both epochs leave the same {probes.pipeline_sizes(seed)[0] - len(one)} examples out"
    if never := sorted({*range(5)} - {*answers["first_of_five"]}):
        return f"of 5 examples in batches of 4, number {never[0]} never comes first, in {probes.TINY_EPOCHS} epochs"
    early, examples = _most_early(answers), probes.pipeline_sizes(seed)[0]
    if early <= _EARLY * examples:
        return f"none comes early by more than {early / examples:.1%} of the data set"
    return _places_change(answers)


def _places_change(answers):
    """Whether an example's place, and who comes next, say nothing of the next epoch."""
    if (kept := _neighbours_kept(answers)) > _ALIKE:
        return f"{kept:.0%} of the examples are followed by the same one in both epochs"
    one, other = (dict(zip(_numbers(answers, epoch).tolist(), itertools.count())) for epoch in range(2))
    places = np.array([(one[number], other[number]) for number in one.keys() & other.keys()])
    if len(places) < 2:
        return False
    if (alike := np.corrcoef(places.T)[0, 1]) > _ALIKE:
        return f"whoever comes early in an epoch comes early in the next: the places' correlation is {alike:.2f}"
    for every, name in ((2, "second"), (3, "third"), (4, "fourth")):
        same = np.mean(places[:, 0] % every == places[:, 1] % every)
        if same > 1 / every + _ALIKE:
            return f"of the examples in every {name} place of an epoch {same:.0%} are in those places in the next too"
    return True


def _neighbours_kept(answers):
    """The share of an epoch's examples that the same one follows in the other epoch."""
    one, other = ({*itertools.pairwise(_numbers(answers, epoch).tolist())} for epoch in range(2))
    return len(one & other) / max(len(one), 1)


def _nearly_the_same_order(answers):
    one, other = (dict(zip(_numbers(answers, epoch).tolist(), itertools.count())) for epoch in range(2))
    places = np.array([(one[number], other[number]) for number in one.keys() & other.keys()])
    far_enough = _most_early(answers) > _EARLY * len(places)
    return bool(far_enough and np.corrcoef(places.T)[0, 1] > 0.9) and not _same_order(answers)


_ALIKE = 0.1  # of two full shuffles of 12,000 examples both are within 0.05


def _same_order(answers):
    return np.array_equal(_numbers(answers, 0), _numbers(answers, 1))


def _same_members(answers):
    one, other = ({frozenset(np.ravel(batch).tolist()) for batch in epoch} for epoch in answers["epochs"])
    return one == other


# In full shuffles of 12,000 examples one in 1e50 has none that comes as early as this share of all places.
_EARLY = 0.85


def _most_early(answers):
    numbers = _numbers(answers, 0)
    return int((numbers - np.arange(len(numbers))).max())


def _decoded_again(answers, seed):
    examples, batch = probes.pipeline_sizes(seed)
    return answers["decode_runs"] >= 2 * (examples - batch)


def _decoded_by_batches(answers, seed):
    examples, batch = probes.pipeline_sizes(seed)
    return 0 < answers["decode_runs"] <= 2 * -(-examples // batch)


def _a_few_decoded_more(answers, seed):
    examples, batch = probes.pipeline_sizes(seed)
    return examples < answers["decode_runs"] <= examples + batch


def _repeats(answers, seed):
    examples, batch = probes.pipeline_sizes(seed)
    return all(
        len(epoch) > -(-examples // batch) and sum(rows.size for rows in epoch) > examples
        for epoch in answers["epochs"]
    )


def _another_batch_size(answers, seed):
    examples, batch = probes.pipeline_sizes(seed)
    sizes = {rows.size for epoch in answers["epochs"] for rows in epoch}
    return len(sizes) == 1 and 1 < min(sizes) and min(sizes) not in (batch, examples % batch)


def _filled_up(answers, seed):
    """One full batch more than the examples fill, with some of them twice."""
    examples, batch = probes.pipeline_sizes(seed)
    wanted = [batch] * (examples // batch + 1)
    return all([rows.size for rows in epoch] == wanted for epoch in answers["epochs"])


def _same_left_over(answers, seed):
    """In both epochs the last examples of the data set are missing, and no others."""
    examples, batch = probes.pipeline_sizes(seed)
    whole = set(range(examples // batch * batch))
    return all(set(_numbers(answers, epoch)) == whole for epoch in range(2))


def _some_twice(answers, seed):
    """Full batches of known examples, some of them twice."""
    numbers = [_numbers(answers, epoch) for epoch in range(2)]
    known = all(set(one) <= set(range(probes.pipeline_sizes(seed)[0])) for one in numbers)
    return known and _full_batches(answers, seed) is True and all(len(set(one)) < len(one) for one in numbers)


def _filtered_late(answers, seed):
    examples, batch = probes.pipeline_sizes(seed)
    return _full_batches(answers, seed) is True and answers["augment_runs"] == 2 * (examples // batch + 1)


def _short_batch_kept(answers, seed):
    examples, batch = probes.pipeline_sizes(seed)
    wanted = [batch] * (examples // batch) + [examples % batch]
    return all([rows.size for rows in epoch] == wanted for epoch in answers["epochs"])


_EPOCHS = {"epochs": ([forms.array], [forms.array])}
PIPELINE = question(
    name="q2",
    title="Order an input pipeline",
    asks_for=("pipeline",),
    probe=probes.probe_pipeline,
    form={
        **_EPOCHS,
        "first_of_five": [forms.size],
        **dict.fromkeys(("decode_runs", "augment_runs", "augment_runs_before", "of_too_few"), forms.size),
        "repeated": forms.share,
    },
    targets=(
        Target("full batches only", _full_batches),
        Target("no example twice in an epoch", _none_twice),
        Target("decode runs once per example in two epochs", _decoded_once),
        Target("augment runs once per batch in every epoch", _augmented_by_batches),
        Target("augmented afresh in every epoch", _augmented_afresh),
        Target("shuffled afresh in every epoch, over the whole data set", _shuffled_afresh),
    ),
    recognise={
        "no cache": _decoded_again,
        "decoded by batches": _decoded_by_batches,
        "not batched": lambda answers, seed: all(rows.size == 1 for epoch in answers["epochs"] for rows in epoch),
        "repeats itself": _repeats,
        "augment left out": lambda answers, seed: answers["augment_runs"] == 0,
        "augmentation frozen": lambda answers, seed: answers["repeated"] > 0.9 and answers["augment_runs"] > 0,
        "order frozen": lambda answers, seed: _same_order(answers),
        "batches shuffled": lambda answers, seed: _same_members(answers),
        "small buffer": lambda answers, seed: (
            _most_early(answers) < _EARLY * probes.pipeline_sizes(seed)[0] and _neighbours_kept(answers) < _ALIKE
        ),
        "kept from another data set": lambda answers, seed: all(
            min(_numbers(answers, epoch)) >= probes.pipeline_sizes(seed)[0] for epoch in range(2)
        ),
        "nearly the same order": lambda answers, seed: _nearly_the_same_order(answers),
        "decoded in advance": _a_few_decoded_more,
        "another batch size": _another_batch_size,
        "filled up": _filled_up,
        "the same left over": _same_left_over,
        "some twice": _some_twice,
        "dropped after augment": _filtered_late,
        "read ahead": lambda answers, seed: (
            0 < answers["augment_runs_before"] == answers["augment_runs"] - 2 * len(answers["epochs"][0])
        ),
        "one by one": lambda answers, seed: answers["augment_runs"] >= 2 * len(_numbers(answers, 0)),
        "short batch kept": _short_batch_kept,
    },
)


def _in_each_run(problem):
    """A target: problem(run, steps_per_call, batches) is None in every run, or says what is wrong."""

    def holds(answers, seed):
        for run, case in zip(answers["runs"], probes.batches_of_numbers(seed), strict=True):
            if said := problem(run, *case):
                return said
        return True

    return holds


def _steps_taken(run, steps_per_call, batches):
    one, two = run["steps"]
    if [one, two] != [steps_per_call, 2 * steps_per_call]:
        return f"asked for {steps_per_call} a call, you have taken {one} after one call and {two} after two"
    return None


def _next_batches(run, steps_per_call, batches):
    used = len(batches) - run["batches_left"]
    if used != 2 * steps_per_call:
        return f"{2 * steps_per_call} steps have used {used} batches"
    sums = batches.sum(axis=1).cumsum()[[steps_per_call - 1, 2 * steps_per_call - 1]]
    return None if np.allclose(run["totals"], sums) else "a step met another batch than the next"


def _mean_loss(run, steps_per_call, batches):
    wanted = batches[: 2 * steps_per_call].mean(axis=1).reshape(2, -1).mean(axis=1)
    if np.allclose(run["losses"], wanted, rtol=1e-5, atol=0):
        others = [dtype or "no tensor" for dtype in run["dtypes"] if dtype != "float32"]
        return f"yours is {others[0]}" if others else None
    if steps_per_call == 2:
        one, two, three, four = batches.mean(axis=1)[:4]
        given = " and ".join(f"{loss:.4g}" for loss in run["losses"])
        said = f"two calls of 2 steps, with losses {one:g}, {two:g} and {three:g}, {four:g}, return {given}"
        return f"{said}; {wanted[0]:g} and {wanted[1]:g} are wanted"
    return f"in calls of {steps_per_call} steps yours is off by up to {abs(run['losses'] / wanted - 1).max():.1%}"


def _no_python(run, steps_per_call, batches):
    first, second = run["python_runs"]
    if first != second:
        return f"its Python lines ran {second - first} times in the second call"
    if again := run["runs_with_another"]:
        return f"its Python lines ran {again} times in a third call, with another iterator of the data set"
    if run["back"]:
        return "your graph calls Python (tf.py_function or tf.numpy_function) while it runs"
    pulled = run["pulled_by_python"]
    return f"in two calls of {steps_per_call} steps Python pulled {pulled} batches" if pulled else None


def _all_in_tensorflow(answers, seed):
    if (said := _in_each_run(_no_python)(answers, seed)) is not True:
        return said
    many = max(steps_per_call for steps_per_call, _ in probes.batches_of_numbers(seed))
    more = f"in a call of {many} steps Python starts more operations or graphs than in one of 2"
    return more if answers["python_grows"] else True


def _short_trace(answers, seed):
    for run, (steps_per_call, _) in zip(answers["runs"], probes.batches_of_numbers(seed), strict=True):
        if (runs := run["python_runs"][0]) > 2:
            return f"tracing {steps_per_call} steps a call ran them {runs} times"
    many, grown = max(steps_per_call for steps_per_call, _ in probes.batches_of_numbers(seed)), answers["grown"]
    return grown <= _GROWN or f"the graph for {many} steps a call has {grown} more operations than that for 2"


_GROWN = 20  # operations; one for each step would be four times as many


def _every_run(fits):
    """Recognise answers of which fits(run, steps_per_call) holds in every run, which also has its batches used."""
    return lambda answers, seed: all(
        fits({**run, "batches_used": len(batches) - run["batches_left"]}, asked)
        for run, (asked, batches) in zip(answers["runs"], probes.batches_of_numbers(seed), strict=True)
    )


def _losses_are(*ways):
    """Recognise answers that give, in every run, way(the losses (2, k) of the steps of two calls)."""

    def fits(way, answers, seed):
        for run, (steps, batches) in zip(answers["runs"], probes.batches_of_numbers(seed), strict=True):
            if not np.allclose(run["losses"], way(batches[: 2 * steps].mean(axis=1).reshape(2, -1)), rtol=1e-5, atol=0):
                return False
        return True

    return lambda answers, seed: any(fits(way, answers, seed) for way in ways)


def _halved(mean, losses):
    """The new loss always gets the weight of the mean so far."""
    for loss in losses:
        mean = (mean + loss) / 2
    return mean


def _one_is_plain(answers, seed):
    """Python pulls the batch where a call has one step, and nowhere else."""
    pulled = [run["pulled_by_python"] for run in answers["runs"]]
    one_step = [steps_per_call == 1 for steps_per_call, _ in probes.batches_of_numbers(seed)]
    return [number > 0 for number in pulled] == one_step


MULTI_STEP = question(
    name="q3",
    title="Several steps a call",
    asks_for=("make_multi_step",),
    probe=probes.probe_multi_step,
    form={
        "runs": [
            {
                **dict.fromkeys(("losses", "totals"), (forms.number,) * 2),
                **dict.fromkeys(("steps", "python_runs"), (forms.size,) * 2),
                "dtypes": (forms.text,) * 2,
                **dict.fromkeys(("batches_left", "pulled_by_python", "runs_with_another"), forms.size),
                "back": forms.flag,
            }
        ],
        "grown": forms.size,
        "python_grows": forms.flag,
    },
    targets=(
        Target("steps_per_call steps in each call", _in_each_run(_steps_taken)),
        Target("every step on the next batch", _in_each_run(_next_batches)),
        Target("the mean loss of the call's steps, a float32 scalar tensor, to 0.001%", _in_each_run(_mean_loss)),
        Target(
            "no Python of the step after the first call, none that pulls a batch, none that starts more for more steps",
            _all_in_tensorflow,
        ),
        Target(
            "tracing runs the step's Python at most twice, and 100 steps a call need at most 20 operations more than 2",
            _short_trace,
        ),
    ),
    recognise={
        "back to Python": _every_run(lambda run, asked: run["back"]),
        "pulled by Python": _every_run(
            lambda run, asked: run["pulled_by_python"] == 2 * asked and run["python_runs"][0] == run["python_runs"][1]
        ),
        "the first batch pulled by Python": _every_run(
            lambda run, asked: (
                run["pulled_by_python"] == 2 and run["steps"] == [asked, 2 * asked] and run["batches_used"] == 2 * asked
            )
        ),
        "one batch again and again": _every_run(
            lambda run, asked: run["batches_used"] == 2 and run["steps"] == [asked, 2 * asked]
        ),
        "a graph of one step": lambda answers, seed: (
            answers["python_grows"]
            and all(
                run["pulled_by_python"] == 0 and run["python_runs"][0] == run["python_runs"][1] <= 2
                for run in answers["runs"]
            )
        ),
        "a graph for each iterator": _every_run(
            lambda run, _: (
                run["pulled_by_python"] == 0
                and run["python_runs"][0] == run["python_runs"][1] > 0 < run["runs_with_another"]
            )
        ),
        "traced at every call": _every_run(
            lambda run, asked: (
                run["steps"] == [asked, 2 * asked] and run["python_runs"][1] == 2 * run["python_runs"][0] <= 4
            )
        ),
        "no tensor": _every_run(lambda run, _: not any(run["dtypes"])),
        "a batch ahead": lambda answers, seed: all(
            len(batches) - run["batches_left"] == 2 * (steps + 1) and run["steps"] == [steps, 2 * steps]
            for run, (steps, batches) in zip(answers["runs"], probes.batches_of_numbers(seed), strict=True)
        ),
        "never set back": _losses_are(
            lambda losses: losses.mean(axis=1).cumsum(), lambda losses: [losses[0].mean(), losses.mean()]
        ),
        "unrolled": _every_run(
            lambda run, asked: run["python_runs"] == [asked, asked] and run["pulled_by_python"] == 0
        ),
        "last loss": _losses_are(lambda losses: losses[:, -1]),
        "first loss": _losses_are(lambda losses: losses[:, 0]),
        "summed, not averaged": _losses_are(lambda losses: losses.sum(axis=1)),
        "halved": _losses_are(
            lambda losses: [_halved(one, others) for one, *others in losses], lambda losses: _halved(0, losses.T)
        ),
        "one step is plain Python": _one_is_plain,
        "only the step is in the loop": lambda answers, seed: (
            answers["grown"] > _GROWN and all(run["python_runs"][0] <= 2 for run in answers["runs"])
        ),
        "another dtype": _every_run(lambda run, _: "float32" not in run["dtypes"]),
        "one step a call": _every_run(lambda run, asked: run["steps"] == [1, 2]),
        "to the end of the data": _every_run(lambda run, asked: run["steps"][0] == run["steps"][1] > 2 * asked),
        "one step too many": _every_run(lambda run, asked: run["steps"] == [asked + 1, 2 * asked + 2]),
        "one step too few": _every_run(lambda run, asked: run["steps"] == [asked - 1, 2 * asked - 2]),
    },
)


QUESTIONS = (STOPWATCH, PIPELINE, MULTI_STEP, BOTTLENECK, PROFILE)

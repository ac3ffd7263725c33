"""Exercise 01: a stopwatch, an input pipeline, several steps a call, and what a profile says.

Needs NumPy; TensorFlow to compare an answer with known mistakes.
"""

import numpy as np

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.probes import ex01 as probes
from course_lib.exercises.question import Target
from course_lib.profiler import covered_seconds

question = question_maker.of("01_one_device")
EXACT = 1e-6  # relative: the probe's clock is a float64


def _steady(seed):
    """Median and relative spread of the steady calls, as a stopwatch that waits sees them."""
    durations = probes.durations(seed)
    seconds = (durations.launch_seconds + durations.compute_seconds)[durations.warmup :]
    low, high = np.percentile(seconds, [25, 75])
    return {"median": np.median(seconds), "spread": (high - low) / np.median(seconds)}


def _called(answers, seed):
    warmup, repeats = probes.durations(seed).warmup, probes.durations(seed).repeats
    return answers["calls"] == warmup + repeats or (
        f"step() was called {answers['calls']} times, for {warmup} warm-up calls and {repeats} repeats"
    )


def _as_steady(key):
    def holds(answers, seed):
        times = answers[key] / _steady(seed)[key]
        return bool(abs(times - 1) < EXACT) or f"yours is {times:.3g} times the {key}"

    return holds


STOPWATCH = question(
    name="q1",
    title="A stopwatch for a steady state",
    asks_for=("steady_seconds",),
    probe=probes.probe_stopwatch,
    form={"median": forms.number, "spread": forms.number, "calls": forms.size},
    targets=(
        Target("step() runs warmup + repeats times", _called),
        Target("the median of the repeats, each until its result is there", _as_steady("median")),
        Target("the spread: interquartile range over median", _as_steady("spread")),
    ),
)


def _numbers(answers, epoch):
    return np.concatenate([np.ravel(batch) for batch in answers["epochs"][epoch]])


def _full_batches(answers, seed):
    examples, batch = probes.pipeline_sizes(seed)
    for epoch in answers["epochs"]:
        sizes = [int(rows.size) for rows in epoch]
        if sizes != [batch] * (examples // batch):
            said = f"{len(sizes)} batches, from {min(sizes)} to {max(sizes)} examples"
            return f"{examples} examples in batches of {batch} came out as {said}"
    return True


def _none_twice(answers, seed):
    examples, _ = probes.pipeline_sizes(seed)
    for epoch in range(2):
        numbers = _numbers(answers, epoch)
        if len(set(numbers)) < len(numbers) or not set(numbers) <= set(range(examples)):
            return f"an epoch of {len(numbers)} examples has {len(set(numbers))} different ones"
    return True


def _decoded_once(answers, seed):
    examples, runs = probes.pipeline_sizes(seed)[0], answers["decode_runs"]
    return runs == examples or f"in two epochs over {examples} examples it ran {runs} times"


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
    early, examples = _most_early(answers), probes.pipeline_sizes(seed)[0]
    return early > examples / 2 or f"of {examples} examples, none comes more than {early} places early"


def _same_order(answers):
    return np.array_equal(_numbers(answers, 0), _numbers(answers, 1))


def _same_members(answers):
    one, other = ({frozenset(np.ravel(batch).tolist()) for batch in epoch} for epoch in answers["epochs"])
    return one == other


def _most_early(answers):
    numbers = _numbers(answers, 0)
    return int((numbers - np.arange(len(numbers))).max())


def _decoded_again(answers, seed):
    examples, batch = probes.pipeline_sizes(seed)
    return answers["decode_runs"] >= 2 * (examples - batch)


_EPOCHS = {"epochs": ([forms.array], [forms.array])}
PIPELINE = question(
    name="q2",
    title="Order an input pipeline",
    asks_for=("pipeline",),
    probe=probes.probe_pipeline,
    form={**_EPOCHS, "decode_runs": forms.size, "augment_runs": forms.size, "repeated": forms.share},
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
        "augmentation frozen": lambda answers, seed: answers["repeated"] > 0.9,
        "order frozen": lambda answers, seed: _same_order(answers),
        "batches shuffled": lambda answers, seed: _same_members(answers),
        "small buffer": lambda answers, seed: _most_early(answers) < probes.pipeline_sizes(seed)[0] / 2,
        "one by one": lambda answers, seed: answers["augment_runs"] >= 2 * len(_numbers(answers, 0)),
    },
)


def _steps_taken(answers, seed):
    steps_per_call, _ = probes.batches_of_numbers(seed)
    one, two = answers["steps"]
    return [one, two] == [steps_per_call, 2 * steps_per_call] or (
        f"asked for {steps_per_call} a call, you have taken {one} after one call and {two} after two"
    )


def _next_batches(answers, seed):
    steps_per_call, batches = probes.batches_of_numbers(seed)
    used = len(batches) - answers["batches_left"]
    if used != 2 * steps_per_call:
        return f"{2 * steps_per_call} steps have used {used} batches"
    sums = batches.sum(axis=1).cumsum()[[steps_per_call - 1, 2 * steps_per_call - 1]]
    return np.allclose(answers["totals"], sums) or "a step met another batch than the next"


def _mean_loss(answers, seed):
    steps_per_call, batches = probes.batches_of_numbers(seed)
    wanted = batches[: 2 * steps_per_call].mean(axis=1).reshape(2, -1).mean(axis=1)
    off = abs(answers["losses"] / wanted - 1).max()
    return bool(off <= 1e-5) or f"yours is off by {off:.1%}"


def _traced_once(answers, seed):
    first, second = answers["python_runs"]
    return first == second or f"its Python lines ran {second - first} times in the second call"


def _short_trace(answers, seed):
    steps_per_call, _ = probes.batches_of_numbers(seed)
    runs = answers["python_runs"][0]
    return runs <= 2 or f"tracing {steps_per_call} steps a call ran them {runs} times"


MULTI_STEP = question(
    name="q3",
    title="Several steps a call",
    asks_for=("make_multi_step",),
    probe=probes.probe_multi_step,
    form={
        **dict.fromkeys(("losses", "totals"), (forms.number,) * 2),
        **dict.fromkeys(("steps", "python_runs"), (forms.size,) * 2),
        "batches_left": forms.size,
    },
    targets=(
        Target("steps_per_call steps in each call", _steps_taken),
        Target("every step on the next batch", _next_batches),
        Target("the mean loss of the call's steps, to 0.001%", _mean_loss),
        Target("no Python of the step in the second call", _traced_once),
        Target("tracing runs the step's Python at most twice, however many steps a call has", _short_trace),
    ),
)


def _share(kind, events):
    """The part of the steps after the first during which something of this kind is busy."""
    _, *steps = sorted((event for event in events if event.name == "train"), key=lambda event: event.start_seconds)
    begin, end = steps[0].start_seconds, steps[-1].end_seconds
    spent = [event for event in events if event.name == kind and begin <= event.start_seconds < end]
    return covered_seconds(spent) / sum(step.duration_seconds for step in steps)


def _verdicts_right(answers, seed):
    known = [kind for kind, _ in probes.traces(seed)]
    wrong = [said for said, right in zip(answers["kinds"], known, strict=True) if said != right]
    return not wrong or f"{len(wrong)} of {len(known)} wrong; for the first of them you say {wrong[0]!r}"


def _shares_right(answers, seed):
    wanted = [_share(*trace) for trace in probes.traces(seed)]
    off = max(abs(own / right - 1) for own, right in zip(answers["shares"], wanted, strict=True))
    return bool(off < 1e-3) or f"the worst is off by {off:.1%}"


BOTTLENECK = question(
    name="q4",
    title="Find the bottleneck in a trace",
    asks_for=("bottleneck",),
    probe=probes.probe_bottleneck,
    form={"kinds": [forms.text], "shares": [forms.number]},
    targets=(
        Target("the known bottleneck of four distributed runs", _verdicts_right),
        Target("its share of the steps' time, to 0.1%", _shares_right),
    ),
)


def _both(problem):
    """A target: problem(run, steps, heavy) is None for each of the two runs, or says what is wrong with it."""

    def holds(answers, seed):
        said = [problem(answers[heavy], probes.profiled_steps(seed), heavy) for heavy in probes.HEAVY]
        return said[0] or said[1] or True

    return holds


def _once_a_step(**counts):
    """A target: in both runs there are as many of each as steps."""

    def problem(run, steps, heavy):
        wrong = [f"{run[key]} {what}, for {steps} steps" for key, what in counts.items() if run[key] != steps]
        return wrong[0] if wrong else None

    return _both(problem)


def _warm(run, steps, heavy):
    if run["first_recorded"]:
        return "the recording has the first call of the step, which traces its graph"
    return None if run["recorded_calls"] == steps else f"it has {run['recorded_calls']} calls for {steps} steps"


def _all_replicas(run, steps, heavy):
    replicas, wanted = run["replicas"], run["wanted_replicas"]
    return None if replicas == wanted else f"{replicas} of {wanted} were at work in your recording"


def _verdict(run, steps, heavy):
    if not run["returned_all"]:
        return "profile_steps returns other events than the recording has"
    return None if run["verdict"] == heavy else f"the run that is heavy in its {heavy} is called {run['verdict']!r}"


_PROFILE = {
    **dict.fromkeys(("trains", "inputs_in_train", "computes_in_train", "pulls_in_input"), forms.size),
    **dict.fromkeys(("calls_in_compute", "waits_in_compute", "recorded_calls"), forms.size),
    **dict.fromkeys(("first_recorded", "returned_all"), forms.flag),
    "wanted_replicas": forms.replicas,
    "replicas": forms.count,
    "verdict": forms.text,
}
PROFILE = question(
    name="q5",
    title="Profile a distributed run",
    asks_for=("profile_steps", "bottleneck"),
    probe=probes.probe_profile,
    form=dict.fromkeys(probes.HEAVY, _PROFILE),
    points=2,
    targets=(
        Target("a train mark for each of the steps asked for", _once_a_step(trains="train marks")),
        Target("one warm-up step before the recording, none of it inside", _both(_warm)),
        Target(
            "in each train mark one input mark around the pull and one compute mark around the step",
            _once_a_step(
                inputs_in_train="train marks hold one input mark",
                computes_in_train="train marks hold one compute mark",
                pulls_in_input="input marks hold the pull of one batch",
                calls_in_compute="compute marks hold one call of the step",
            ),
        ),
        Target(
            "each compute mark ends when its loss is there",
            _once_a_step(waits_in_compute="compute marks wait for the loss"),
        ),
        Target("all replicas at work in the recording", _both(_all_replicas)),
        Target("your q4 names the bottleneck of both runs from it", _both(_verdict)),
    ),
    recognise={
        "first step recorded": lambda answers, seed: all(run["first_recorded"] for run in answers.values()),
        "one mark for all": lambda answers, seed: all(run["trains"] == 1 for run in answers.values()),
        "input not marked": lambda answers, seed: all(run["inputs_in_train"] == 0 for run in answers.values()),
        "pulled outside its mark": lambda answers, seed: all(run["pulls_in_input"] == 0 for run in answers.values()),
        "not waited for": lambda answers, seed: all(
            run["calls_in_compute"] > run["waits_in_compute"] == 0 for run in answers.values()
        ),
    },
)

QUESTIONS = (STOPWATCH, PIPELINE, MULTI_STEP, BOTTLENECK, PROFILE)

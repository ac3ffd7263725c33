"""Exercise 01: a stopwatch, an input pipeline, several steps a call, and what a profile says.

Needs NumPy; the wrong answers of q2, q3 and q5 need TensorFlow when they run.
"""

import numpy as np

from course_lib.exercises.judges import forms
from course_lib.exercises.probes import ex01 as probes
from course_lib.exercises.question import Mistake, Question, Target
from course_lib.profiler import covered_seconds

EXACT = 1e-6  # relative: the probe's clock is a float64


# q1: a stopwatch


def _steady(seed):
    """Median and relative spread of the steady calls, as a stopwatch that waits sees them."""
    durations = probes.course(seed)
    seconds = (durations.launch_seconds + durations.compute_seconds)[durations.warmup :]
    low, high = np.percentile(seconds, [25, 75])
    return np.median(seconds), (high - low) / np.median(seconds)


def _called(answers, seed):
    durations = probes.course(seed)
    wanted = durations.warmup + durations.repeats
    return answers["calls"] == wanted or (
        f"step() was called {answers['calls']} times, for {durations.warmup} warm-up calls and {durations.repeats} repeats"
    )


def _as_steady(key, place):
    def holds(answers, seed):
        wanted = _steady(seed)[place]
        return bool(abs(answers[key] / wanted - 1) < EXACT) or f"yours is {answers[key] / wanted:.3g} times the {key}"

    return holds


def _stopwatch(warm=True, wait=True, middle=np.median, spread=None, one_clock=False):
    """The solution, with one thing wrong: see the mistakes for which."""

    def steady_seconds(step, clock, warmup, repeats):
        calls = warmup + repeats
        seconds = []
        for _ in range(calls):
            start = clock()
            result = step()
            if wait:
                result.numpy()
            seconds.append(clock() - start)
        if one_clock:
            seconds = [sum(seconds[warmup:]) / repeats] * repeats
        elif warm:
            seconds = seconds[warmup:]
        low, high = np.percentile(seconds, [25, 75])
        return middle(seconds), spread(seconds) if spread else (high - low) / np.median(seconds)

    return steady_seconds


STOPWATCH = Question(
    name="q1",
    title="A stopwatch for a steady state",
    asks_for=("steady_seconds",),
    probe=probes.probe_stopwatch,
    targets=(
        Target("step() runs warmup + repeats times", _called),
        Target("the median of the repeats, each until its result is there", _as_steady("median", 0)),
        Target("the spread: interquartile range over median", _as_steady("spread", 1)),
    ),
    mistakes=(
        Mistake(
            "not waited for",
            "You time how long it takes to launch the step, and the device computes on after your clock has stopped.",
            "step() returns a result that is not there yet; which call waits for it, and on which side of clock()?",
            _stopwatch(wait=False),
        ),
        Mistake(
            "warm-up counted",
            "Your numbers include the warm-up calls, and with them the tracing and compiling.",
            "Keep the first `warmup` calls out of the list that you take the median of.",
            _stopwatch(warm=False),
        ),
        Mistake(
            "mean",
            "You return the mean, which three calls that were disturbed pull far away from the rest.",
            "The docstring asks for the value in the middle: `np.median`.",
            _stopwatch(middle=np.mean),
        ),
        Mistake(
            "best time",
            "You return the fastest repeat, which tells what the machine can do once and not what it does.",
            "The docstring asks for the value in the middle: `np.median`.",
            _stopwatch(middle=np.min),
        ),
        Mistake(
            "one clock for all",
            "You time all repeats together, so that one disturbed call is in every number and there is no spread.",
            "Read the clock around each call, and keep every difference.",
            _stopwatch(one_clock=True),
        ),
        Mistake(
            "spread in seconds",
            "Your spread is in seconds, and so says nothing about two steps of different length.",
            "Divide the interquartile range by the median.",
            _stopwatch(spread=lambda seconds: np.subtract(*np.percentile(seconds, [75, 25]))),
        ),
        Mistake(
            "standard deviation",
            "Your spread is the standard deviation over the median, which a few disturbed calls decide.",
            "The interquartile range is the distance between the 25th and the 75th percentile: `np.percentile`.",
            _stopwatch(spread=lambda seconds: np.std(seconds) / np.median(seconds)),
        ),
    ),
)


# q2: an input pipeline


def _numbers(answers, epoch):
    return np.concatenate([np.ravel(batch) for batch in answers["epochs"][epoch]])


def _full_batches(answers, seed):
    examples, batch = probes.pipeline_sizes(seed)
    for epoch in answers["epochs"]:
        sizes = [int(rows.size) for rows in epoch]
        if sizes != [batch] * (examples // batch):
            return f"{examples} examples in batches of {batch} came out as {len(sizes)} batches, from {min(sizes)} to {max(sizes)} examples"
    return True


def _none_twice(answers, seed):
    examples, _ = probes.pipeline_sizes(seed)
    for epoch in range(2):
        numbers = _numbers(answers, epoch)
        if len(set(numbers)) < len(numbers) or not set(numbers) <= set(range(examples)):
            return f"an epoch of {len(numbers)} examples has {len(set(numbers))} different ones"
    return True


def _decoded_once(answers, seed):
    examples, _ = probes.pipeline_sizes(seed)
    return (
        answers["decode_runs"] == examples
        or f"in two epochs over {examples} examples it ran {answers['decode_runs']} times"
    )


def _augmented_by_batches(answers, seed):
    examples, batch = probes.pipeline_sizes(seed)
    wanted = 2 * (examples // batch)
    return (
        answers["augment_runs"] == wanted
        or f"for {wanted} batches in two epochs it ran {answers['augment_runs']} times"
    )


def _augmented_anew(answers, seed):
    return (
        answers["repeated"] < 0.1 or f"{100 * answers['repeated']:.0f}% of the examples came out of both epochs alike"
    )


def _mixed_anew(answers, seed):
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


def _pipeline(build):
    """The probe's functions, under the names that `build` uses."""

    def pipeline(examples, decode, augment, global_batch):
        return build(examples, decode, augment, global_batch, len(examples))

    return pipeline


PIPELINE = Question(
    name="q2",
    title="Order an input pipeline",
    asks_for=("pipeline",),
    probe=probes.probe_pipeline,
    targets=(
        Target("full batches only", _full_batches),
        Target("no example twice in an epoch", _none_twice),
        Target("decode runs once per example in two epochs", _decoded_once),
        Target("augment runs once per batch in every epoch", _augmented_by_batches),
        Target("augmented anew in every epoch", _augmented_anew),
        Target("mixed anew in every epoch, over the whole data set", _mixed_anew),
    ),
    mistakes=(
        Mistake(
            "no cache",
            "You decode every example again in every epoch.",
            "What is the same in each epoch belongs before a `cache()`.",
            _pipeline(
                lambda e, decode, augment, b, n: e.map(decode).shuffle(n).batch(b, drop_remainder=True).map(augment)
            ),
            lambda answers, seed: (
                answers["decode_runs"] >= 2 * probes.pipeline_sizes(seed)[0] - 2 * probes.pipeline_sizes(seed)[1]
            ),
        ),
        Mistake(
            "augmentation frozen",
            "Your cache comes after `augment`, so that the second epoch repeats what chance did in the first.",
            "Cache after `decode`, and leave what is random behind the cache.",
            _pipeline(
                lambda e, decode, augment, b, n: (
                    e.map(decode).shuffle(n).batch(b, drop_remainder=True).map(augment).cache()
                )
            ),
            lambda answers, seed: answers["repeated"] > 0.9,
        ),
        Mistake(
            "not shuffled",
            "Your examples come in the order of the data set.",
            "`shuffle(buffer_size)`, between the cache and the batch.",
            _pipeline(
                lambda e, decode, augment, b, n: e.map(decode).cache().batch(b, drop_remainder=True).map(augment)
            ),
            lambda answers, seed: (np.diff(_numbers(answers, 0)) == 1).all(),
        ),
        Mistake(
            "order frozen",
            "Every epoch has the same order.",
            "A cache repeats what it saw, the order too; and `reshuffle_each_iteration=False` keeps an order as well.",
            _pipeline(
                lambda e, decode, augment, b, n: (
                    e.map(decode).shuffle(n).cache().batch(b, drop_remainder=True).map(augment)
                )
            ),
            lambda answers, seed: _same_order(answers),
        ),
        Mistake(
            "batches shuffled",
            "You shuffle whole batches: they change places, and their members stay together for ever.",
            "Does `shuffle` see examples or batches? It sees what the line before it makes.",
            _pipeline(
                lambda e, decode, augment, b, n: (
                    e.map(decode).cache().batch(b, drop_remainder=True).shuffle(n).map(augment)
                )
            ),
            lambda answers, seed: _same_members(answers),
        ),
        Mistake(
            "small buffer",
            "Your shuffle mixes neighbours only: its buffer is much shorter than the data set.",
            "An example can come early by the buffer's length at most: how long must the buffer be?",
            _pipeline(
                lambda e, decode, augment, b, n: (
                    e.map(decode).cache().shuffle(b).batch(b, drop_remainder=True).map(augment)
                )
            ),
            lambda answers, seed: _most_early(answers) < probes.pipeline_sizes(seed)[0] / 2,
        ),
        Mistake(
            "one by one",
            "You augment example by example, which is a call for each where one for the batch would do.",
            "`augment` takes a whole batch too: put it behind `batch`.",
            _pipeline(
                lambda e, decode, augment, b, n: (
                    e.map(decode).cache().shuffle(n).map(augment).batch(b, drop_remainder=True)
                )
            ),
            lambda answers, seed: answers["augment_runs"] >= 2 * len(_numbers(answers, 0)),
        ),
        Mistake(
            "short last batch",
            "Your last batch is shorter than the others.",
            "`batch` has an argument that drops the remainder.",
            _pipeline(lambda e, decode, augment, b, n: e.map(decode).cache().shuffle(n).batch(b).map(augment)),
            lambda answers, seed: answers["epochs"][0][-1].size < probes.pipeline_sizes(seed)[1],
        ),
    ),
)


# q3: several steps a call


def _steps_taken(answers, seed):
    steps_per_call, batches = probes.batches_of_numbers(seed)
    if answers["steps"] != [steps_per_call, 2 * steps_per_call]:
        return f"asked for {steps_per_call} a call, you have taken {answers['steps'][0]} after one call and {answers['steps'][1]} after two"
    return True


def _next_batches(answers, seed):
    steps_per_call, batches = probes.batches_of_numbers(seed)
    sums = batches.sum(axis=1).cumsum()
    if answers["batches_left"] != len(batches) - 2 * steps_per_call:
        return f"{2 * steps_per_call} steps have used {len(batches) - answers['batches_left']} batches"
    return (
        np.allclose(answers["totals"], sums[[steps_per_call - 1, 2 * steps_per_call - 1]])
        or "a step met another batch than the next"
    )


def _mean_loss(answers, seed):
    steps_per_call, batches = probes.batches_of_numbers(seed)
    wanted = batches[: 2 * steps_per_call].mean(axis=1).reshape(2, -1).mean(axis=1)
    return (
        np.allclose(answers["losses"], wanted, rtol=1e-5)
        or f"yours is off by {abs(answers['losses'] / wanted - 1).max():.1%}"
    )


def _recorded_once(answers, seed):
    first, second = answers["python_runs"]
    return first == second or f"its Python lines ran {second - first} times in the second call"


def _recording_short(answers, seed):
    steps_per_call, _ = probes.batches_of_numbers(seed)
    return (
        answers["python_runs"][0] <= 2
        or f"recording {steps_per_call} steps a call ran them {answers['python_runs'][0]} times"
    )


def _multi_step(extra=0, same_batch=False, last=False, unrolled=False, graph=True, anew=False):
    """The solution, with one thing wrong: see the mistakes for which."""

    def make_multi_step(step, steps_per_call):
        import tensorflow as tf

        count = steps_per_call + extra

        def in_a_row(iterator):
            losses = [step(next(iterator)) for _ in range(count)]
            return tf.add_n(losses) / count

        def in_a_loop(iterator):
            held = next(iterator) if same_batch else None

            def one_more(number, total, _):
                loss = step(held if same_batch else next(iterator))
                return number + 1, total + loss, loss

            _, total, final = tf.while_loop(lambda number, *_: number < count, one_more, (0, 0.0, 0.0))
            return final if last else total / count

        body = in_a_row if unrolled else in_a_loop
        if anew:
            return lambda iterator: tf.function(body, autograph=False)(iterator)
        return tf.function(body, autograph=False) if graph else in_a_row

    return make_multi_step


MULTI_STEP = Question(
    name="q3",
    title="Several steps a call",
    asks_for=("make_multi_step",),
    probe=probes.probe_multi_step,
    targets=(
        Target("steps_per_call steps in each call", _steps_taken),
        Target("every step on the next batch", _next_batches),
        Target("the mean loss of the call's steps, to 0.001%", _mean_loss),
        Target("no Python of the step in the second call", _recorded_once),
        Target("the recording runs the step's Python twice at most, however many steps a call has", _recording_short),
    ),
    mistakes=(
        Mistake(
            "a Python loop",
            "You call the step from a Python loop, so every step is still a call from Python.",
            "Let `tf.function` record the loop: one call of yours should run all the steps inside TensorFlow.",
            _multi_step(graph=False),
        ),
        Mistake(
            "recorded at every call",
            "You make a new `tf.function` in every call, and it records everything again.",
            "Make it once in make_multi_step, and return it.",
            _multi_step(anew=True),
        ),
        Mistake(
            "unrolled",
            "Your loop is recorded step by step, so the graph grows with steps_per_call, and so does the time to record it.",
            "Python's `range` is gone when the graph runs; `tf.range` or `tf.while_loop` is part of it.",
            _multi_step(unrolled=True),
        ),
        Mistake(
            "one batch again and again",
            "All the steps of a call train on the same batch.",
            "`next(iterator)` belongs inside the loop.",
            _multi_step(same_batch=True),
        ),
        Mistake(
            "last loss",
            "You return the loss of the call's last step.",
            "Add the losses up in the loop, and divide at its end.",
            _multi_step(last=True),
        ),
        Mistake(
            "one step too many",
            "Your loop takes one step more than asked for.",
            "Count from 0 while the number is less than steps_per_call.",
            _multi_step(extra=1),
        ),
        Mistake(
            "one step too few",
            "Your loop takes one step less than asked for.",
            "Count from 0 while the number is less than steps_per_call; the first step counts too.",
            _multi_step(extra=-1),
        ),
    ),
)


# q4: a trace's bottleneck


def _spans(events, first=1):
    return sorted((event for event in events if event.name == "train"), key=lambda event: event.start_seconds)[first:]


def _within(events, spans):
    return [
        event for event in events if any(span.start_seconds <= event.start_seconds < span.end_seconds for span in spans)
    ]


def _summed(events):
    return sum(event.duration_seconds for event in events)


def _longest(events):
    return max((event.duration_seconds for event in events), default=0.0)


def _bottleneck(seconds=covered_seconds, first=1, anywhere=False, whole=None):
    """The solution, with one thing wrong: see the mistakes for which."""

    def bottleneck(events):
        spans = _spans(events, first)
        chosen = events if anywhere else _within(events, spans)
        spent = {kind: seconds([event for event in chosen if event.name == kind]) for kind in probes.KINDS}
        kind = max(spent, key=spent.get)
        return kind, spent[kind] / (whole(events, spent) if whole else covered_seconds(spans))

    return bottleneck


def _verdicts_right(answers, seed):
    known = [kind for kind, _ in probes.traces(seed)]
    wrong = [place for place, pair in enumerate(zip(answers["kinds"], known, strict=True)) if len(set(pair)) > 1]
    return (
        not wrong or f"{len(wrong)} of {len(known)} wrong; for the first of them you say {answers['kinds'][wrong[0]]!r}"
    )


def _shares_right(answers, seed):
    wanted = [_bottleneck()(events)[1] for _, events in probes.traces(seed)]
    off = max(abs(own / right - 1) for own, right in zip(answers["shares"], wanted, strict=True))
    return bool(off < 1e-3) or f"the worst is off by {off:.1%}"


BOTTLENECK = Question(
    name="q4",
    title="Find the bottleneck in a trace",
    asks_for=("bottleneck",),
    probe=probes.probe_bottleneck,
    targets=(
        Target("the known bottleneck of four distributed runs", _verdicts_right),
        Target("its share of the steps' time, to 0.1%", _shares_right),
    ),
    mistakes=(
        Mistake(
            "replicas added up",
            "You add the durations of events that run at the same time, so four replicas count four times.",
            "The loop waits for the clock on the wall: `profiler.covered_seconds` counts overlapping events once.",
            _bottleneck(seconds=_summed),
        ),
        Mistake(
            "first step counted",
            "You count the first step, which records and compiles and is not like the others.",
            "Sort the train marks by their start, and leave the first one out with everything inside it.",
            _bottleneck(first=0),
        ),
        Mistake(
            "outside the steps",
            "You count events outside the train marks, such as filling a buffer before the first step.",
            "Keep the events whose start lies inside one of the train marks that count.",
            _bottleneck(anywhere=True),
        ),
        Mistake(
            "longest event",
            "You compare the longest single events, and a part that is cut into many short ones escapes you.",
            "Compare the time that all events of a kind cover together.",
            _bottleneck(seconds=_longest),
        ),
        Mistake(
            "most events",
            "You compare how many events each kind has, not how long they take.",
            "An event has `duration_seconds`.",
            _bottleneck(seconds=len),
        ),
        Mistake(
            "share of the parts",
            "Your share compares with the three parts together, and a step has gaps and waits besides.",
            "Divide by the time that the train marks cover.",
            _bottleneck(whole=lambda events, spent: sum(spent.values())),
        ),
        Mistake(
            "share of the whole trace",
            "Your share compares with the whole trace, from its first event to its last.",
            "Divide by the time that the train marks cover, without the first.",
            _bottleneck(
                whole=lambda events, spent: max(e.end_seconds for e in events) - min(e.start_seconds for e in events)
            ),
        ),
    ),
)


# q5: the profile of a distributed run


def _both(holds):
    """A target for each of the two runs."""

    def both(answers, seed):
        for heavy in probes.HEAVY:
            held = holds(answers[heavy], probes.profiled_steps(seed), heavy)
            if held is not True:
                return held
        return True

    return both


def _as_many(answers, steps, heavy):
    return answers["trains"] == steps or f"for {steps} steps the recording has {answers['trains']} train marks"


def _warm(answers, steps, heavy):
    if answers["first_recorded"]:
        return "the recording has the first call of the step, which records its graph"
    return answers["recorded_calls"] == steps or f"it has {answers['recorded_calls']} calls for {steps} steps"


def _marked(answers, steps, heavy):
    for inner, key in (("input", "inputs_in_train"), ("compute", "computes_in_train")):
        if answers[key] != steps:
            return f"{answers[key]} of {steps} train marks hold one {inner} mark"
    for what, key in (("pulling one batch", "pulls_in_input"), ("one call of the step", "calls_in_compute")):
        if answers[key] != steps:
            return f"{what} lies inside its mark in {answers[key]} of {steps} steps"
    return True


def _waited(answers, steps, heavy):
    return (
        answers["waits_in_compute"] == steps
        or f"{answers['waits_in_compute']} of {steps} compute marks wait for the loss"
    )


def _all_replicas(answers, steps, heavy):
    replicas, wanted = answers["replicas"], answers["wanted_replicas"]
    return replicas == wanted or f"{replicas} of {wanted} were at work in your recording"


def _verdict(answers, steps, heavy):
    if not answers["returned_all"]:
        return "profile_steps returns other events than the recording has"
    return answers["verdict"] == heavy or f"the run that is heavy in its {heavy} is called {answers['verdict']!r}"


def _profile(warm=True, one_mark=False, loop=False, wait=True, unlimited=False, early_pull=False):
    """The solution, with one thing wrong: see the mistakes for which."""

    def profile_steps(step, batches, steps, folder):
        import contextlib

        import tensorflow as tf

        from course_lib import profiler

        mark = tf.profiler.experimental.Trace
        pulled = iter(batches)
        if warm:
            step(next(pulled)).numpy()

        def compute(batch):
            with mark("compute"):
                loss = step(batch)
                if wait:
                    loss.numpy()

        def train(number):
            around = contextlib.nullcontext() if one_mark else mark("train", step_num=number, _r=1)
            before = next(pulled) if early_pull else None
            with around:
                with contextlib.nullcontext() if loop else mark("input"):
                    batch = before if early_pull else next(pulled)
                compute(batch)

        with profiler.profile(folder):
            with mark("train") if one_mark else contextlib.nullcontext():
                for number in range(12 if unlimited else steps):
                    train(number)
        return profiler.read_trace(folder)

    return {"profile_steps": profile_steps, "bottleneck": _bottleneck()}


def _in_both(fits):
    """Recognise a mistake that shows in both runs."""
    return lambda answers, seed: all(fits(answers[heavy], probes.profiled_steps(seed)) for heavy in probes.HEAVY)


PROFILE = Question(
    name="q5",
    title="Profile a distributed run",
    asks_for=("profile_steps", "bottleneck"),
    probe=probes.probe_profile,
    points=2,
    targets=(
        Target("a train mark for each of the steps asked for", _both(_as_many)),
        Target("one warm-up step before the recording, none of it inside", _both(_warm)),
        Target(
            "in each train mark one input mark around the pull and one compute mark around the step", _both(_marked)
        ),
        Target("each compute mark ends when its loss is there", _both(_waited)),
        Target("all replicas at work in the recording", _both(_all_replicas)),
        Target("your q4 names the bottleneck of both runs from it", _both(_verdict)),
    ),
    mistakes=(
        Mistake(
            "first step recorded",
            "You record the first step, in which TensorFlow records the graph.",
            "Run one step, and wait for its loss, before `profiler.profile` begins.",
            _profile(warm=False),
            _in_both(lambda answers, steps: answers["first_recorded"]),
        ),
        Mistake(
            "one mark for all",
            "You have one train mark around all the steps, so that no step can be told from another.",
            "Open the train mark inside the loop.",
            _profile(one_mark=True),
            _in_both(lambda answers, steps: answers["trains"] == 1),
        ),
        Mistake(
            "every batch",
            "You record more steps than asked for, and a recording grows by thousands of events a step.",
            "The data set has more batches than you need: stop after `steps`.",
            _profile(unlimited=True),
            _in_both(lambda answers, steps: answers["trains"] > steps),
        ),
        Mistake(
            "input not marked",
            "The batch is pulled inside the train mark but not inside an input mark.",
            "A `for batch in batches` pulls where you cannot mark it: take an `iter` and call `next` under the mark.",
            _profile(loop=True),
            _in_both(lambda answers, steps: answers["inputs_in_train"] == 0),
        ),
        Mistake(
            "pulled outside its mark",
            "Your input marks are there, but the batch is pulled outside of them.",
            "`next` itself belongs inside the input mark.",
            _profile(early_pull=True),
            _in_both(lambda answers, steps: answers["inputs_in_train"] == steps and answers["pulls_in_input"] == 0),
        ),
        Mistake(
            "not waited for",
            "Your compute marks end when the step is launched, and on a GPU it has hardly begun then.",
            "Call the loss's `numpy()` inside the compute mark.",
            _profile(wait=False),
            _in_both(lambda answers, steps: answers["calls_in_compute"] == steps and answers["waits_in_compute"] == 0),
        ),
    ),
)

_PROFILE = {
    **dict.fromkeys(("trains", "inputs_in_train", "computes_in_train", "pulls_in_input"), forms.size),
    **dict.fromkeys(("calls_in_compute", "waits_in_compute", "recorded_calls"), forms.size),
    "first_recorded": forms.flag,
    "wanted_replicas": forms.replicas,
    "replicas": forms.count,
    "returned_all": forms.flag,
    "verdict": forms.text,
}
QUESTIONS = (
    forms.formed(STOPWATCH, {"median": forms.number, "spread": forms.number, "calls": forms.size}),
    forms.formed(
        PIPELINE,
        {
            "epochs": ([forms.array], [forms.array]),
            "decode_runs": forms.size,
            "augment_runs": forms.size,
            "repeated": forms.share,
        },
    ),
    forms.formed(
        MULTI_STEP,
        {
            "losses": (forms.number, forms.number),
            "steps": (forms.size, forms.size),
            "totals": (forms.number, forms.number),
            "python_runs": (forms.size, forms.size),
            "batches_left": forms.size,
        },
    ),
    forms.formed(BOTTLENECK, {"kinds": [forms.text], "shares": [forms.number]}),
    forms.formed(PROFILE, dict.fromkeys(probes.HEAVY, _PROFILE)),
)

"""Exercise 10: bytes of states and of activations, a layout for a cluster, bottlenecks in recorded profiles, scaling.

Needs NumPy.
"""

import functools

import numpy as np

from course_lib.exercises.judges import forms
from course_lib.exercises.probes import ex10 as probes
from course_lib.exercises.question import Mistake, Question, Target
from course_lib.planner import Layout, predict, search
from course_lib.profiler import covered_seconds

EXACT = 1e-6  # relative: float64 arithmetic in another order
NEAR = 0.05  # q3: slower than the fastest by so much at most


# q1: states


def _state_bytes(
    shards=lambda layout: layout.data,
    stages=(1, 2, 3),
    table_stages=lambda layout: 1,
    tables=lambda layout: 1 + (layout.pipeline == 1),
    tensor=True,
    master=True,
    slots=8,
):
    """The solution, with one thing wrong: see the mistakes for which."""

    def state_bytes(layers, layer_parameters, table_parameters, layout):
        table = tables(layout) * table_parameters / table_stages(layout)
        parameters = (layers / layout.pipeline * layer_parameters + table) / (layout.tensor if tensor else 1)
        optimizer, gradients, weights = (shards(layout) if layout.zero >= stage else 1 for stage in stages)
        numbers = layout.numbers
        per_parameter = numbers.weights / weights + numbers.gradients / gradients
        return parameters * (per_parameter + (slots + (numbers.master if master else 0)) / optimizer)

    return state_bytes


def _bytes_are(cases, reference, chosen):
    """A target: in the chosen cases, the learner's bytes are the reference's."""

    def holds(answers, seed):
        for case, got in zip(cases(seed), answers["bytes"], strict=True):
            wanted = reference(**case)
            if chosen(case) and not abs(got / wanted - 1) < EXACT:
                return f"for {_described(case)} yours are {got / wanted:.3g} times as many"
        return True

    return holds


def _described(case):
    layout = case["layout"]
    if "stage" not in case:
        return f"{layout}, {case['layers']} layers"
    micro_batches = layout.micro_batches(case["global_batch"])
    return f"stage {case['stage']} of {layout.pipeline}, {micro_batches} micro-batches, recompute {layout.recompute}"


def _states_are(chosen):
    return _bytes_are(probes.state_cases, _state_bytes(), lambda case: chosen(case["layout"]))


STATES = Question(
    name="q1",
    title="Bytes of states",
    asks_for=("state_bytes",),
    probe=probes.probe_states,
    targets=(
        Target(
            "without ZeRO, in every precision", _states_are(lambda layout: not layout.zero and layout.pipeline == 1)
        ),
        Target("under ZeRO's three stages", _states_are(lambda layout: layout.zero and layout.pipeline == 1)),
        Target(
            "with tensor parallelism and a pipeline, the fullest device",
            _states_are(lambda layout: layout.pipeline > 1),
        ),
    ),
    mistakes=(
        Mistake(
            "master copy forgotten",
            "You leave out the float32 master copy that half-precision weights need beside them.",
            "`layout.numbers` has the bytes of weights, gradients and master copy for each precision.",
            _state_bytes(master=False),
        ),
        Mistake(
            "one number of Adam's",
            "You count one float32 number per parameter for Adam.",
            "Adam keeps a mean of the gradients and a mean of their squares.",
            _state_bytes(slots=4),
        ),
        Mistake(
            "divided by all chips",
            "You let ZeRO divide by all chips.",
            "Who holds the same part of the model? Only those can share it.",
            _state_bytes(shards=lambda layout: layout.chips),
        ),
        Mistake(
            "stages in another order",
            "You divide the weights before the gradients.",
            "Stage 1 divides the optimizer's state, stage 2 the gradients too, stage 3 the weights too.",
            _state_bytes(stages=(1, 3, 2)),
        ),
        Mistake(
            "one stage early",
            "You divide the gradients in stage 1 and the weights in stage 2.",
            "Stage 1 divides the optimizer's state alone, with the master copy.",
            _state_bytes(stages=(1, 1, 2)),
        ),
        Mistake(
            "tables spread",
            "You spread the two tables over all stages of the pipeline.",
            "The embedding is on the first stage and the output on the last. Which device is the fullest?",
            _state_bytes(table_stages=lambda layout: layout.pipeline, tables=lambda layout: 2),
        ),
        Mistake(
            "both tables everywhere",
            "You count both tables on one device of a pipeline.",
            "The embedding is on the first stage and the output on the last. Which device is the fullest?",
            _state_bytes(tables=lambda layout: 2),
        ),
        Mistake(
            "one table",
            "Without a pipeline one device holds both tables, and you count one.",
            "The embedding and the output layer are two tables of the same size here.",
            _state_bytes(tables=lambda layout: 1),
        ),
        Mistake(
            "tensor parallelism forgotten",
            "You don't divide by the devices that share each matrix.",
            "`layout.tensor` devices share every matrix, tables too.",
            _state_bytes(tensor=False),
        ),
    ),
)


# q2: activations in flight


def _in_flight(stage, stages, micro_batches):
    return min(micro_batches, stages - stage)


def _activation_bytes(in_flight=_in_flight, at_work=True, inputs="per block", recompute=True, micro=1):
    """The solution, with one thing wrong: see the mistakes for which."""

    def activation_bytes(stage, layers, block_bytes, input_bytes, layout, global_batch):
        held = layout.micro_batch**micro * in_flight(stage, layout.pipeline, layout.micro_batches(global_batch))
        blocks = layers / layout.pipeline
        if layout.recompute == "none" or not recompute:
            return held * blocks * block_bytes
        kept = held * (blocks if inputs == "per block" else 1) * input_bytes
        return kept + layout.micro_batch * block_bytes * at_work

    return activation_bytes


def _activations_are(chosen):
    return _bytes_are(probes.activation_cases, _activation_bytes(), chosen)


def _keeps_all(case):
    return case["layout"].recompute == "none"


def _few(case):
    return case["layout"].micro_batches(case["global_batch"]) < case["layout"].pipeline


ACTIVATIONS = Question(
    name="q2",
    title="Activations in flight",
    asks_for=("activation_bytes",),
    probe=probes.probe_activations,
    targets=(
        Target(
            "on any stage, with many micro-batches", _activations_are(lambda case: _keeps_all(case) and not _few(case))
        ),
        Target("with fewer micro-batches than stages", _activations_are(lambda case: _keeps_all(case) and _few(case))),
        Target("with full recomputation", _activations_are(lambda case: not _keeps_all(case))),
    ),
    mistakes=(
        Mistake(
            "GPipe",
            "You hold all micro-batches at once, as GPipe does.",
            "One forward, one backward: when does stage 0 begin its first backward pass?",
            _activation_bytes(in_flight=lambda stage, stages, micro_batches: micro_batches),
        ),
        Mistake(
            "as the first stage",
            "You let every stage hold as many micro-batches as the first.",
            "The last stage runs a backward pass right after each forward pass.",
            _activation_bytes(in_flight=lambda stage, stages, micro_batches: min(micro_batches, stages)),
        ),
        Mistake(
            "one too few",
            "A stage of yours holds one micro-batch too few.",
            "How many does the last one hold? Stages count from 0.",
            _activation_bytes(in_flight=lambda stage, stages, micro_batches: min(micro_batches, stages - 1 - stage)),
        ),
        Mistake(
            "more than there are",
            "You hold more micro-batches than a step has.",
            "With two micro-batches, how many can a stage hold?",
            _activation_bytes(in_flight=lambda stage, stages, micro_batches: stages - stage),
        ),
        Mistake(
            "one input per stage",
            "You keep one input for the whole stage under recomputation.",
            "Full recomputation keeps the input of every block.",
            _activation_bytes(inputs="per stage"),
        ),
        Mistake(
            "block at work forgotten",
            "You count the inputs alone, and not what comes back while a block is recomputed.",
            "In its backward pass a block has all its activations again. How many blocks at once, of how many examples?",
            _activation_bytes(at_work=False),
        ),
        Mistake(
            "recomputation ignored",
            "You keep whole blocks, whatever `recompute` says.",
            "With full recomputation a block keeps its input.",
            _activation_bytes(recompute=False),
        ),
        Mistake(
            "one example",
            "You count one example of each micro-batch.",
            "The bytes are those of one example; `layout.micro_batch` go together.",
            _activation_bytes(micro=0),
        ),
    ),
)


# q3: a choice of layouts


@functools.lru_cache(maxsize=32)
def _found(seed):
    return tuple(search(*given, precision="bfloat16_master").ranked for given in probes.choices(seed))


def _sure(ranked):
    return [found for found in ranked if found.surely_fits]


def _near(ranked):
    return [found for found in ranked if found.step.total <= (1 + NEAR) * ranked[0].step.total]


def _first(found):
    if not found:
        raise ValueError("nothing is sure to fit")
    return found[0].layout


def _leanest(found):
    return _first(sorted(found, key=lambda one: one.memory.total))


def _choose(rule):
    """A learner's function that searches and lets `rule` choose among those that fit, the fastest first."""

    def choose_layout(model, cluster, global_batch):
        return rule(search(model, cluster, global_batch, precision="bfloat16_master").ranked)

    return choose_layout


def _rule_mistake(name, what, where, rule):
    """Recognised by applying the rule to one search per pair, not to a search for each mistake."""

    def recognise(answers, seed):
        return answers["layouts"] == [probes.sizes(rule, (ranked,)) for ranked in _found(seed)]

    return Mistake(name, what, where, _choose(rule), recognise)


def _each_choice(judge):
    """A target: judge(chosen prediction, those that surely fit) for every pair that has an answer, and an answer."""

    def holds(answers, seed):
        rows = zip(probes.choices(seed), _found(seed), answers["layouts"], strict=True)
        for number, (given, ranked, sizes) in enumerate(rows, 1):
            sure = _sure(ranked)
            if not sure or sizes == probes.NO_LAYOUT:
                continue
            model, cluster, batch = given
            said = judge(predict(model, cluster, Layout(**sizes), batch), sure)
            if said is not True:
                return f"for pair {number}, {model.layers} layers on {cluster.chips} x {cluster.chip.name}, {said}"
        return True

    return holds


def _fits_surely(chosen, sure):
    limit, end = chosen.cluster.chip.memory_bytes, chosen.memory_interval[1]
    return bool(chosen.surely_fits) or f"the interval of yours ends at {end / limit:.0%} of the memory"


def _is_fast(chosen, sure):
    longer = chosen.step.total / min(one.step.total for one in sure) - 1
    return longer <= NEAR + EXACT or f"yours takes {longer:.0%} longer"


def _is_lean(chosen, sure):
    least = min(found.memory.total for found in _near(sure))
    return chosen.memory.total <= (1 + EXACT) * least or f"yours takes {chosen.memory.total / least:.2f} times as much"


def _in_precision(chosen, sure):
    return chosen.layout.precision == "bfloat16_master" or f"yours is in {chosen.layout.precision}"


def _precisions(answers):
    return {sizes["precision"] for sizes in answers["layouts"] if sizes != probes.NO_LAYOUT}


def _refused_alone(answers, seed):
    for number, (ranked, sizes) in enumerate(zip(_found(seed), answers["layouts"], strict=True), 1):
        if sizes == probes.NO_LAYOUT and _sure(ranked):
            return f"you raise it for pair {number}, which has a layout that surely fits"
        if sizes != probes.NO_LAYOUT and not _sure(ranked):
            return f"you return a layout for pair {number}, where none is sure to fit"
    return True


CHOICE = Question(
    name="q3",
    title="A layout for a cluster",
    asks_for=("choose_layout",),
    probe=probes.probe_choice,
    targets=(
        Target("bfloat16 with a master copy", _each_choice(_in_precision)),
        Target("it surely fits: the whole interval is within the memory", _each_choice(_fits_surely)),
        Target("within 5% of the fastest that surely fits", _each_choice(_is_fast)),
        Target("no other of those takes less memory", _each_choice(_is_lean)),
        Target("a ValueError where nothing is sure to fit, and only there", _refused_alone),
    ),
    mistakes=(
        _rule_mistake(
            "the search's best",
            "You take the fastest layout whose middle figure fits, and its interval reaches beyond the memory.",
            "A prediction has `surely_fits`; filter before you rank.",
            _first,
        ),
        _rule_mistake(
            "lean, and not sure",
            "You take the leanest of the fast ones without asking whether the whole interval fits.",
            "A prediction has `surely_fits`; filter before you rank.",
            lambda ranked: _leanest(_near(ranked)),
        ),
        _rule_mistake(
            "the fastest",
            "You take the fastest that surely fits, and another one is nearly as fast in less memory.",
            "Within 5% a prediction can't tell them apart. What can it tell?",
            lambda ranked: _first(_sure(ranked)),
        ),
        _rule_mistake(
            "the leanest of all",
            "You take the layout that needs the least memory, whatever it costs in time.",
            "First keep those within 5% of the fastest that surely fits.",
            lambda ranked: _leanest(_sure(ranked)),
        ),
        _rule_mistake(
            "something always",
            "You return a layout where none is sure to fit.",
            "The docstring says what to return then.",
            lambda ranked: _leanest(_near(_sure(ranked))) if _sure(ranked) else _leanest(ranked),
        ),
        Mistake(
            "Keras' precision",
            "You search in the search's usual precision, which keeps the weights in float32.",
            "`search` has a `precision`, and the question names one.",
            lambda model, cluster, batch: _leanest(_near(_sure(search(model, cluster, batch).ranked))),
            lambda answers, seed: _precisions(answers) == {"mixed_bfloat16"},
        ),
    ),
)


# q4: recorded profiles


def _is_operation(event):
    return ":" in event.name


def _of_the_input(event):
    return event.thread.startswith("tf_data")


def _summed(events):
    return sum(event.duration_seconds for event in events)


def _bottleneck(
    covered=covered_seconds, skip=_of_the_input, hidden=False, inputs=lambda event: event.name == "input", whole=None
):
    """The solution, with one thing wrong: see the mistakes for which."""

    def bottleneck(events):
        operations = [event for event in events if _is_operation(event) and not skip(event)]
        sums = [event for event in operations if event.name.endswith(":CollectiveReduceV2")]
        others = [event for event in operations if not event.name.endswith(":CollectiveReduceV2")]
        seconds = {
            "input": covered([event for event in events if inputs(event)]),
            "compute": covered(others),
            "communication": covered(sums) if hidden else covered(operations) - covered(others),
        }
        total = whole(events) if whole else covered([event for event in events if event.name == "train"])
        return max(seconds, key=seconds.get), {kind: spent / total for kind, spent in seconds.items()}

    return bottleneck


def _span(events):
    return max(event.end_seconds for event in events) - min(event.start_seconds for event in events)


def _kinds_right(answers, seed):
    known = [kind for kind, _ in probes.profiles(seed)]
    wrong = [(said, right) for said, right in zip(answers["kinds"], known, strict=True) if said != right]
    return not wrong or f"{len(wrong)} of {len(known)} wrong; for one of them you say {wrong[0][0]!r}"


def _share_right(kind):
    place = probes.KINDS.index(kind)

    def holds(answers, seed):
        wanted = [_bottleneck()(events)[1][kind] for _, events in probes.profiles(seed)]
        off = max(abs(own[place] - right) for own, right in zip(answers["shares"], wanted, strict=True))
        return bool(off < 1e-3) or f"the worst is off by {100 * off:.1f} points"

    return holds


PROFILES = Question(
    name="q4",
    title="Bottlenecks in recorded profiles",
    asks_for=("bottleneck",),
    probe=probes.probe_bottleneck,
    targets=(
        Target("the bottleneck of three recorded runs", _kinds_right),
        Target("the share of the steps that waits for input, to 0.1 points", _share_right("input")),
        Target("the share that computes, to 0.1 points", _share_right("compute")),
        Target("the share that communicates and computes nothing, to 0.1 points", _share_right("communication")),
    ),
    mistakes=(
        Mistake(
            "the input's own work",
            "You count the operations of the input pipeline as the step's.",
            "Look at the threads: tf.data has its own.",
            _bottleneck(skip=lambda event: False),
        ),
        Mistake(
            "the input's threads",
            "You take all that the input's threads do for waiting, although they also work while the step computes.",
            "The loop waits inside the `input` marks.",
            _bottleneck(inputs=_of_the_input),
        ),
        Mistake(
            "durations added",
            "You add up durations, and operations that run side by side count twice.",
            "`profiler.covered_seconds` counts overlapping events once.",
            _bottleneck(covered=_summed),
        ),
        Mistake(
            "hidden communication",
            "You count communication behind which the device computes.",
            "What does the sum over replicas add to the time in which something computes?",
            _bottleneck(hidden=True),
        ),
        Mistake(
            "share of the recording",
            "You divide by the whole recording, with the pauses between the steps.",
            "Divide by the time that the `train` marks cover.",
            _bottleneck(whole=_span),
        ),
        Mistake(
            "most events",
            "You compare how many events there are, not how long they take.",
            "An event has `duration_seconds`.",
            _bottleneck(covered=len),
        ),
    ),
)


# q5: scaling


def _efficiency(first=min, count=True, invert=False, kinds=("strong", "weak")):
    """The solution, with one thing wrong: see the mistakes for which."""

    def efficiency(seconds, kind):
        start = first(seconds)
        base = seconds[start] if start in seconds else seconds[min(seconds)]
        found = {}
        for n, time in seconds.items():
            value = base / time
            if kind == kinds[0] and count:
                value *= start / n
            found[n] = 1 / value if invert else value
        return found

    return efficiency


def _law(points):
    """a and b of t = a + b / n, by least squares over the points."""
    devices, times = map(np.array, zip(*points))
    return np.linalg.lstsq(np.stack([np.ones(len(devices)), 1 / devices], axis=1), times, rcond=None)[0]


def _fitted_seconds(seconds, more):
    a, b = _law(list(seconds.items()))
    return a + b / more


def _buy_more(forecast=_fitted_seconds, start=min, at_least=np.greater_equal):
    def buy_more(seconds, more, least_efficiency):
        predicted = forecast(seconds, more)
        share = start(seconds) * seconds[start(seconds)] / (more * predicted)
        return predicted, bool(at_least(share, least_efficiency))

    return buy_more


def _ideal_seconds(seconds, more):
    return seconds[max(seconds)] * max(seconds) / more


def _last_two(seconds, more):
    return _fitted_seconds(dict(sorted(seconds.items())[-2:]), more)


def _scaling(efficiency=None, buy_more=None):
    return {"efficiency": efficiency or _efficiency(), "buy_more": buy_more or _buy_more()}


def _efficient(kind):
    def holds(answers, seed):
        for case, own in zip(probes.timings(seed), answers[kind], strict=True):
            wanted = _efficiency()(case[kind], kind)
            for (n, right), got in zip(wanted.items(), own, strict=True):
                if not abs(got / right - 1) < EXACT:
                    return f"measured from {min(case[kind])} on, yours for {n} devices is {got / right:.3g} times that"
        return True

    return holds


def _forecast_right(answers, seed):
    wanted = [_fitted_seconds(case["strong"], case["more"]) for case in probes.timings(seed)]
    off = max(abs(own / right - 1) for own, right in zip(answers["seconds"], wanted, strict=True))
    return bool(off < 1e-4) or f"the worst is off by {off:.1%}"


def _decision_right(answers, seed):
    wanted = [_buy_more()(case["strong"], case["more"], case["least_efficiency"])[1] for case in probes.timings(seed)]
    wrong = sum(own != right for own, right in zip(answers["buys"], wanted, strict=True))
    return not wrong or f"{wrong} of {len(wanted)} are decided otherwise"


SCALING = Question(
    name="q5",
    title="Would more chips help?",
    asks_for=("efficiency", "buy_more"),
    probe=probes.probe_scaling,
    targets=(
        Target("strong efficiency, from the smallest number of devices that was measured", _efficient("strong")),
        Target("weak efficiency, the same", _efficient("weak")),
        Target("the predicted time on more devices, to 0.01%", _forecast_right),
        Target("bought where the predicted efficiency is enough, and only there", _decision_right),
    ),
    mistakes=(
        Mistake(
            "from one device",
            "You compare with one device, and where the smallest measurement has more you are off by that factor.",
            "How much faster should 16 devices be than 8?",
            _scaling(_efficiency(first=lambda seconds: 1)),
        ),
        Mistake(
            "speed-up",
            "Your strong efficiency is a speed-up.",
            "Divide by how many times as many devices there are.",
            _scaling(_efficiency(count=False)),
        ),
        Mistake(
            "the two swapped",
            "You divide the weak times by the devices, and the strong ones not.",
            "In which of the two does the work grow with the devices?",
            _scaling(_efficiency(kinds=("weak", "strong"))),
        ),
        Mistake(
            "upside down",
            "Your efficiencies are upside down: above 1 where there is a loss.",
            "The ideal time over the measured one.",
            _scaling(_efficiency(invert=True)),
        ),
        Mistake(
            "ideal from here",
            "You divide the last time by the devices, as if from there on everything divided.",
            "What the measurements show of a part that doesn't divide: fit `a + b / n`.",
            _scaling(buy_more=_buy_more(forecast=_ideal_seconds)),
        ),
        Mistake(
            "two points",
            "You fit the line through the last two measurements.",
            "Least squares over all of them: one measurement's noise should not decide.",
            _scaling(buy_more=_buy_more(forecast=_last_two)),
        ),
        Mistake(
            "against the last",
            "You compare the forecast with the largest measurement instead of the smallest.",
            "Its efficiency is meant from the smallest measured number of devices on, as in `efficiency`.",
            _scaling(buy_more=_buy_more(start=max)),
        ),
        Mistake(
            "bought when poor",
            "You buy where the efficiency is below what was asked.",
            "The comparison at the end.",
            _scaling(buy_more=_buy_more(at_least=np.less)),
        ),
    ),
)


_LAYOUT = {
    **dict.fromkeys(("data", "tensor", "pipeline", "sequence", "micro_batch", "interleave"), forms.count),
    **dict.fromkeys(("split_norms", "keep_gathered"), forms.flag),
    "zero": forms.size,
    "recompute": forms.text,
    "precision": forms.text,
}
QUESTIONS = (
    forms.formed(STATES, {"bytes": [forms.number]}),
    forms.formed(ACTIVATIONS, {"bytes": [forms.number]}),
    forms.formed(CHOICE, {"layouts": [forms.either(_LAYOUT, forms.words(probes.NO_LAYOUT))]}),
    forms.formed(PROFILES, {"kinds": [forms.text], "shares": [(forms.number,) * len(probes.KINDS)]}),
    forms.formed(
        SCALING, {"strong": [[forms.number]], "weak": [[forms.number]], "seconds": [forms.number], "buys": [forms.flag]}
    ),
)

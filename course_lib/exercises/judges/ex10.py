"""Exercise 10: bytes of states and of activations, a layout for a cluster, bottlenecks in recorded profiles, scaling.

Needs NumPy; TensorFlow to compare an answer with known mistakes.
"""

import functools
import math
import re

import numpy as np

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.probes import ex10 as probes
from course_lib.exercises.probes import ex10_profiles as profile_probes
from course_lib.exercises.question import Target
from course_lib.planner import Layout, predict, search
from course_lib.profiler import covered_seconds

question = question_maker.of("10_choosing_a_strategy")
EXACT = 1e-10  # relative: float64 arithmetic in another order, and not float32's
NEARLY = 1e-6  # relative
NEAR_ONE = 5e-3  # relative: three digits of such a ratio would say 1


def _bytes_are(cases, reference, chosen):
    """A target: in the chosen cases, the learner's bytes are the reference's."""

    def holds(answers, seed):
        for case, got in zip(cases(seed), answers["bytes"], strict=True):
            ratio = got / reference(**case)
            if chosen(case) and not abs(ratio - 1) < EXACT:
                near = abs(ratio - 1) < NEAR_ONE
                off = f"off by one part in {1 / abs(ratio - 1):,.0f}" if near else f"{ratio:.3g} times as many"
                return f"for {_described(case)} yours are {off}"
        return True

    return holds


def _in_few_digits(cases, reference):
    """A recogniser: all bytes are right to float32's digits, and some not beyond."""

    def recognise(answers, seed):
        rows = zip(cases(seed), answers["bytes"], strict=True)
        off = [abs(got / reference(**case) - 1) for case, got in rows]
        return EXACT < max(off) < NEARLY

    return recognise


def _counted_by(cases, *counts):
    """A recogniser: count(**case) gives all bytes, for one of the counts."""

    def recognise(answers, seed):
        rows = list(zip(cases(seed), answers["bytes"], strict=True))
        return any(all(abs(got / count(**case) - 1) < EXACT for case, got in rows) for count in counts)

    return recognise


def _described(case):
    layout = case["layout"]
    if "stage" not in case:
        return f"{layout}, {case['layers']} layers"
    micro_batches = layout.micro_batches(case["global_batch"])
    stage = f"stage {case['stage']} of {layout.pipeline}, {case['layers']} layers"
    return f"{stage}, {micro_batches} micro-batches, recompute {layout.recompute}"


def _state_bytes(layers, layer_parameters, table_parameters, layout):
    """Weights, gradients, then master copy and Adam's two float32 numbers, each divided from its stage of ZeRO on."""
    parameters = layers * layer_parameters / layout.pipeline + table_parameters
    if layout.pipeline == 1:
        parameters += table_parameters
    numbers = layout.numbers
    by_stage = {3: numbers.weights, 2: numbers.gradients, 1: numbers.master + 4 + 4}
    each = sum(count / layout.data if layout.zero >= stage else count for stage, count in by_stage.items())
    return parameters * each / layout.tensor


def _with_a_layer(of_layer):
    """A count: under ZeRO-3 the bytes of a layer's weights are added, times of_layer(layout)."""

    def count(layers, layer_parameters, table_parameters, layout):
        added = layer_parameters * layout.numbers.weights * of_layer(layout) if layout.zero == 3 else 0
        return _state_bytes(layers, layer_parameters, table_parameters, layout) + added

    return count


def _states_are(zero, cut):
    """cut: with tensor parallelism, and mostly a pipeline."""

    def chosen(case):
        layout = case["layout"]
        return bool(layout.zero) in zero and (layout.tensor * layout.pipeline > 1) == cut

    return _bytes_are(probes.state_cases, _state_bytes, chosen)


STATES = question(
    name="q1",
    title="Bytes of states",
    asks_for=("state_bytes",),
    probe=probes.probe_states,
    form={"bytes": [forms.number]},
    recognise={
        "few digits": _in_few_digits(probes.state_cases, _state_bytes),
        "with the layer at work": _counted_by(
            probes.state_cases,
            _with_a_layer(lambda layout: 1),
            _with_a_layer(lambda layout: 1 / layout.tensor),
            _with_a_layer(lambda layout: (1 - 1 / layout.data) / layout.tensor),
        ),
    },
    targets=(
        Target("without ZeRO, in every precision", _states_are(zero=[False], cut=False)),
        Target("under ZeRO's three stages", _states_are(zero=[True], cut=False)),
        Target("with tensor parallelism and a pipeline, the fullest device", _states_are(zero=[False, True], cut=True)),
    ),
)


def _activation_bytes(stage, layers, block_bytes, input_bytes, layout, global_batch):
    """What one micro-batch leaves on a stage, times those in flight; then the block that is computed again."""
    keeps_all = layout.recompute == "none"
    left = layers / layout.pipeline * (block_bytes if keeps_all else input_bytes)
    in_flight = min(layout.pipeline - stage, layout.micro_batches(global_batch))
    return layout.micro_batch * (in_flight * left + (0 if keeps_all else block_bytes))


def _of_whole_bytes(rounded):
    """A count of the bytes of one example, rounded."""

    def count(block_bytes, input_bytes, **case):
        return _activation_bytes(block_bytes=rounded(block_bytes), input_bytes=rounded(input_bytes), **case)

    return count


def _activations_are(recompute, few=(False, True)):
    def chosen(case):
        is_few = case["layout"].micro_batches(case["global_batch"]) < case["layout"].pipeline
        return case["layout"].recompute == recompute and is_few in few

    return _bytes_are(probes.activation_cases, _activation_bytes, chosen)


ACTIVATIONS = question(
    name="q2",
    title="Activations in flight",
    asks_for=("activation_bytes",),
    probe=probes.probe_activations,
    form={"bytes": [forms.number]},
    recognise={
        "few digits": _in_few_digits(probes.activation_cases, _activation_bytes),
        "whole bytes": _counted_by(probes.activation_cases, *map(_of_whole_bytes, (math.floor, math.ceil, round))),
    },
    targets=(
        Target("on any stage, with many micro-batches", _activations_are("none", few=[False])),
        Target("with fewer micro-batches than stages", _activations_are("none", few=[True])),
        Target("with full recomputation", _activations_are("full")),
    ),
)


@functools.lru_cache(maxsize=32)
def _found(seed, precision="bfloat16_master"):
    return tuple(search(*given, precision=precision).ranked for given in probes.choices(seed))


def _sure(ranked):
    return [found for found in ranked if found.surely_fits]


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
    return longer <= probes.NEAR + NEARLY or f"yours takes {longer:.2%} longer"


def _is_lean(chosen, sure):
    slowest = (1 + probes.NEAR) * min(one.step.total for one in sure)
    least = min(one.memory.total for one in sure if one.step.total <= slowest)
    figures = chosen.memory.total, chosen.step.total
    tried = any(np.allclose(figures, (one.memory.total, one.step.total), rtol=NEARLY, atol=0) for one in sure)
    if chosen.surely_fits and _in_precision(chosen, sure) is True and not tried:
        return "yours is none of those that the search tries"
    return chosen.memory.total <= (1 + NEARLY) * least or f"yours takes {_times(chosen.memory.total / least)} as much"


def _times(ratio):
    return f"{ratio:.7g} times" if abs(ratio - 1) < NEAR_ONE else f"{ratio:.3g} times"


def _in_precision(chosen, sure):
    return chosen.layout.precision == "bfloat16_master" or f"yours is in {chosen.layout.precision}"


def _refused_alone(answers, seed):
    for number, (ranked, sizes) in enumerate(zip(_found(seed), answers["layouts"], strict=True), 1):
        if sizes == probes.NO_LAYOUT and _sure(ranked):
            return f"you raise it for pair {number}, which has a layout that surely fits"
        if sizes != probes.NO_LAYOUT and not _sure(ranked):
            return f"you return a layout for pair {number}, where none is sure to fit"
    return True


def _chooses(rule, precision="bfloat16_master", but=()):
    """A recogniser: rule(ranked, those that surely fit) is the prediction that is chosen, or None for a ValueError.

    It needs no search of its own in the question's precision, unlike a comparison with an edited answer.
    precision  of the search; None for its usual one
    but        fields of the layout that may be anything
    """

    def recognise(answers, seed):
        for ranked, sizes in zip(_found(seed, precision), answers["layouts"], strict=True):
            chosen = rule(ranked, _sure(ranked))
            if not chosen or sizes == probes.NO_LAYOUT:
                if chosen or sizes != probes.NO_LAYOUT:
                    return False
            elif any(sizes[key] != plain(value) for key, value in vars(chosen.layout).items() if key not in but):
                return False
        return True

    def plain(value):
        return list(value) if isinstance(value, tuple) else value

    return recognise


def _chooses_either(*rules):
    return lambda answers, seed: any(_chooses(rule)(answers, seed) for rule in rules)


def _only(rule):
    """A rule for those that surely fit; a ValueError where none does."""
    return lambda ranked, sure: rule(ranked, sure) if sure else None


def _seconds(one):
    return one.step.total


def _memory(one):
    return one.memory.total


def _near_in_memory(ranked, sure):
    least = min(map(_memory, sure))
    return min((one for one in sure if _memory(one) <= (1 + probes.NEAR) * least), key=_seconds)


def _in_the_interval(ranked, sure):
    return probes.near(sure, min(sure, key=_seconds).step_interval[1], factor=1)


def _of_the_best(best, otherwise):
    """Within 5% of best(ranked), which may not fit; otherwise(sure) where none of those is sure."""

    def rule(ranked, sure):
        limit = (1 + probes.NEAR) * _seconds(best(ranked))
        kept = [one for one in sure if _seconds(one) <= limit]
        return min(kept, key=_memory) if kept else otherwise(sure)

    return _chooses(_only(rule))


def _first(found):
    return found[0]


def _fastest(found):
    return min(found, key=_seconds)


_LEFT_OUT = ("split_norms", "interleave")


def _right(ranked, sure):
    return probes.near(sure) if sure else None


def _made_again(answers, seed):
    """The right layouts, but that fields which `search` sets have their defaults in some."""
    if not _chooses(_right, but=_LEFT_OUT)(answers, seed):
        return False
    for ranked, sizes in zip(_found(seed), answers["layouts"], strict=True):
        right = _right(ranked, _sure(ranked))
        for key in _LEFT_OUT if right else ():
            if sizes[key] not in (getattr(Layout(), key), getattr(right.layout, key)):
                return False
    return True


def _raises_another(answers, seed):
    """The learner's own line raises what stopped the probe; nothing but such a line raises a MemoryError."""
    own = re.search(r" of its cell: (raise|assert)\b", answers["stopped"]["line"])
    return own or answers["stopped"]["error"].startswith("MemoryError:")


def _among(keep):
    """The right rule, for those that surely fit and that `keep(ranked, sure)` leaves."""
    return lambda ranked, sure: probes.near(kept) if (kept := keep(ranked, sure)) else None


def _of_the_first(count):
    return lambda ranked, sure: [one for one in ranked[:count] if one.surely_fits]


_LAYOUT = {
    **dict.fromkeys(("data", "tensor", "pipeline", "sequence", "micro_batch", "interleave", "expert"), forms.count),
    **dict.fromkeys(("split_norms", "keep_gathered", "chunked_loss"), forms.flag),
    **dict.fromkeys(("recompute", "precision"), forms.text),
    "zero": forms.size,
    "shard": forms.either(forms.count, forms.nothing),
    "offload": [forms.text],
}
CHOICE = question(
    name="q3",
    title="A layout for a cluster",
    asks_for=("choose_layout",),
    probe=probes.probe_choice,
    form={"layouts": [forms.either(_LAYOUT, forms.words(probes.NO_LAYOUT))]},
    recognise={
        "the search's best, where something is sure": _chooses(_only(lambda ranked, sure: ranked[0])),
        "the search's best": _chooses_either(
            lambda ranked, sure: ranked[0],
            lambda ranked, sure: probes.near(ranked, factor=1),
            lambda ranked, sure: probes.near(ranked),
        ),
        "something where nothing is sure": _chooses(lambda ranked, sure: probes.near(sure or ranked)),
        "50 percent": _chooses(_only(lambda ranked, sure: probes.near(sure, factor=1.5))),
        "the interval of the fastest": _chooses(_only(_in_the_interval)),
        "the first of the ranking": _chooses_either(
            *(_among(_of_the_first(count)) for count in (10, 8)),
            *(_only(lambda ranked, sure, count=count: probes.near(sure[:count])) for count in (10, 8)),
        ),
        "nothing recomputed": _chooses(
            _among(lambda ranked, sure: [one for one in sure if one.layout.recompute == "none"])
        ),
        "Keras' precision": _chooses(_right, precision=None, but=["precision"]),
        "5% of the search's best": lambda answers, seed: any(
            _of_the_best(best, otherwise)(answers, seed)
            for best in (_first, _fastest)
            for otherwise in (_first, _fastest, lambda sure: None)
        ),
        "the first for the fastest": _chooses(_only(lambda ranked, sure: probes.near(sure, _seconds(sure[0])))),
        "up to the first slow one": _chooses(
            _only(lambda ranked, sure: min(probes.up_to_the_first_slow(sure), key=_memory))
        ),
        "made again": _made_again,
        "divided by 0.95": _chooses(_only(lambda ranked, sure: probes.near(sure, factor=1 / (1 - probes.NEAR)))),
        "another error": _raises_another,
        "thresholds swapped": _chooses(_only(_near_in_memory)),
        "the first that is sure": _chooses(_only(lambda ranked, sure: sure[0])),
        "the fullest": _chooses(_only(lambda ranked, sure: probes.near(sure, key=lambda one: -_memory(one)))),
    },
    targets=(
        Target("bfloat16 with a master copy", _each_choice(_in_precision)),
        Target("it surely fits: the whole interval is within the memory", _each_choice(_fits_surely)),
        Target("within 5% of the fastest that surely fits", _each_choice(_is_fast)),
        Target("no other of those takes less memory", _each_choice(_is_lean)),
        Target("a ValueError where nothing is sure to fit, and only there", _refused_alone),
    ),
)


def _shares(events, steps=None, cut=True):
    """The parts of the steps' time for each kind: the mark, what computes, and the sums while nothing computes.

    steps  of the events, or all; cut: what runs in the pauses is left out
    """
    kinds = {"train": [], "input": [], "compute": [], "sum": []}
    for event in events:
        if event.name in kinds:
            kinds[event.name].append(event)
        elif ":" in event.name and not event.thread.startswith("tf_data"):
            kinds["sum" if event.name.endswith(":CollectiveReduceV2") else "compute"].append(event)
    steps = steps or kinds["train"]
    whole = covered_seconds(steps)

    def inside(found):
        return covered_seconds(found) + (whole - covered_seconds(steps + found) if cut else 0)

    seconds = {kind: inside(found) for kind, found in kinds.items()}
    alone = inside(kinds["compute"] + kinds["sum"]) - seconds["compute"]
    return {kind: spent / whole for kind, spent in (seconds | {"communication": alone}).items()}


def _in_order(events, **how):
    shares = _shares(events, **how)
    return np.array([shares[kind] for kind in profile_probes.KINDS])


def _steps(events):
    return [event for event in events if event.name == "train"]


def _all_shares(fits):
    """A recogniser: fits(a profile's events, its shares as the learner gives them) for all three."""

    def recognise(answers, seed):
        rows = zip(profile_probes.profiles(seed), answers["shares"], strict=True)
        return all(fits(events, np.array(own)) for (_, events), own in rows)

    return recognise


def _of_one_step(events, own):
    return any(np.allclose(own, _in_order(events, steps=[step]), atol=1e-6) for step in _steps(events))


def _mean_of_steps(events, own):
    each = [_in_order(events, steps=[step]) for step in _steps(events)]
    return np.allclose(own, np.mean(each, axis=0), atol=1e-6)


def _of_longer(cut):
    """All shares too small by one factor; with cut=False, they also count what runs in the pauses."""

    def fits(events, own):
        right = _in_order(events, cut=cut)
        factor = own.sum() / right.sum()
        return 0 < factor < 0.97 and np.allclose(own, factor * right, atol=1e-6)

    return _all_shares(fits)


def _few_digits(events, own):
    return np.allclose(own, own.round(2), atol=1e-9) and np.abs(own - _in_order(events)).max() <= 0.0501


def _loses_reach(events, own):
    """Each event reaches to its own end, also where an earlier one ends later."""
    seconds, reached, steps = 0.0, -np.inf, sorted((step.start_seconds, step.end_seconds) for step in _steps(events))
    merged = []
    for event in sorted(events, key=lambda event: (event.start_seconds, event.end_seconds)):
        if ":" not in event.name or event.thread.startswith("tf_data") or event.name.endswith(":CollectiveReduceV2"):
            continue
        if event.start_seconds <= reached:
            merged[-1][1] = event.end_seconds
        else:
            merged.append([event.start_seconds, event.end_seconds])
        reached = event.end_seconds
    for start, end in merged:
        seconds += sum(max(0, min(end, stop) - max(start, begin)) for begin, stop in steps)
    right = _in_order(events)
    compute = seconds / sum(stop - begin for begin, stop in steps)
    return abs(own[0] - right[0]) < 1e-6 and abs(own[1] - compute) < 1e-6


def _sorted_out(events):
    """(computing, sums) of a profile, by operations' types."""
    operations = [one for one in events if ":" in one.name and not one.thread.startswith("tf_data")]
    computing = [one for one in operations if not one.name.endswith(":CollectiveReduceV2")]
    return computing, [one for one in operations if one not in computing]


def _inside(events, found):
    steps = _steps(events)
    return covered_seconds(found) + covered_seconds(steps) - covered_seconds(steps + list(found))


def _threads_added(events, own):
    """Input right, and the time of each thread's computing added up; of the communication nothing is asked."""
    computing = _sorted_out(events)[0]
    each = [_inside(events, [one for one in computing if one.thread == thread]) for thread in _threads(computing)]
    right = _in_order(events)
    return abs(own[0] - right[0]) < 1e-6 and abs(own[1] - sum(each) / covered_seconds(_steps(events))) < 1e-6


def _threads(events):
    return {event.thread for event in events}


def _one_pool_computes(events, own):
    """Input right, and the computing of TensorFlow's own pool alone; of the communication nothing is asked."""
    computing = [one for one in _sorted_out(events)[0] if one.thread.startswith("tf_Compute")]
    wanted = _in_order(events)[0], _inside(events, computing) / covered_seconds(_steps(events))
    return np.allclose(own[:2], wanted, atol=1e-6)


def _kinds_right(answers, seed):
    known = [kind for kind, _ in profile_probes.profiles(seed)]
    wrong = [said for said, right in zip(answers["kinds"], known, strict=True) if said != right]
    return not wrong or f"{len(wrong)} of {len(known)} wrong; for one of them you say {wrong[0]!r}"


def _not_the_largest(answers, seed):
    """The shares are right, and the verdict is not the largest of them."""
    for (_, events), own in zip(profile_probes.profiles(seed), answers["shares"], strict=True):
        if np.abs(np.array(own) - _in_order(events)).max() > 1e-3:
            return False
    return _kinds_right(answers, seed) is not True


def _share_right(kind):
    place = profile_probes.KINDS.index(kind)

    def holds(answers, seed):
        wanted = [_shares(events)[kind] for _, events in profile_probes.profiles(seed)]
        off = max(abs(own[place] - right) for own, right in zip(answers["shares"], wanted, strict=True))
        return bool(off < 1e-3) or f"the worst is off by {100 * off:.1f} points"

    return holds


PROFILES = question(
    name="q4",
    title="Bottlenecks in recorded profiles",
    asks_for=("bottleneck",),
    probe=profile_probes.probe_bottleneck,
    form={"kinds": [forms.text], "shares": [(forms.number,) * len(profile_probes.KINDS)]},
    recognise={
        "share of the recording": _of_longer(cut=True),
        "share of the recording, and the pauses": _of_longer(cut=False),
        "one step only": _all_shares(_of_one_step),
        "mean of the steps' shares": _all_shares(_mean_of_steps),
        "few digits": _all_shares(_few_digits),
        "an early end": _all_shares(_loses_reach),
        "not the largest": _not_the_largest,
        "threads added": _all_shares(_threads_added),
        "tf_Compute alone": _all_shares(_one_pool_computes),
    },
    targets=(
        Target("the bottleneck of three recorded runs", _kinds_right),
        Target("the share of the steps that waits for input, to 0.1 points", _share_right("input")),
        Target("the share that computes, to 0.1 points", _share_right("compute")),
        Target("the share that communicates and computes nothing, to 0.1 points", _share_right("communication")),
    ),
)


def _efficiencies(seconds, kind):
    base = min(seconds) * seconds[min(seconds)] if kind == "strong" else seconds[min(seconds)]
    return {n: base / (n * time if kind == "strong" else time) for n, time in seconds.items()}


def _counted(share_of, kinds=("strong", "weak")):
    """A recogniser: share_of(seconds, kind, n) gives the efficiencies in these kinds, whatever else is answered."""

    def recognise(answers, seed):
        for case, *found in zip(probes.timings(seed), *(answers[kind] for kind in kinds), strict=True):
            for kind, own in zip(kinds, found, strict=True):
                if not np.allclose(own, [share_of(case[kind], kind, n) for n in case[kind]], rtol=NEARLY):
                    return False
        return True

    return recognise


def _from(seconds, kind, n, start):
    return seconds[start] / seconds[n] * (start / n if kind == "strong" else 1)


def _from_one_device(seconds, kind, n):
    return seconds[min(seconds)] / (n * seconds[n])


def _speed_up(seconds, kind, n):
    return seconds[min(seconds)] / seconds[n]


def _upside_down(seconds, kind, n):
    return 1 / _from(seconds, kind, n, min(seconds))


def _never_above_one(seconds, kind, n):
    return min(1.0, _from(seconds, kind, n, min(seconds)))


def _from_the_first(seconds, kind, n):
    return _from(seconds, kind, n, next(iter(seconds)))


def _from_the_one_before(seconds, kind, n):
    return _from(seconds, kind, n, max((one for one in seconds if one < n), default=n))


def _forecast(seconds, more):
    """a + b / more, with a and b by least squares over the measurements."""
    devices, times = map(np.array, zip(*seconds.items()))
    a, b = np.linalg.lstsq(np.stack([np.ones(len(devices)), 1 / devices], axis=1), times, rcond=None)[0]
    return a + b / more


def _efficient(kind):
    def holds(answers, seed):
        for case, own in zip(probes.timings(seed), answers[kind], strict=True):
            for (n, right), got in zip(_efficiencies(case[kind], kind).items(), own, strict=True):
                if not abs(got / right - 1) < NEARLY:
                    return f"measured from {min(case[kind])} on, yours for {n} devices is {_times(got / right)} that"
        return True

    return holds


def _forecast_right(answers, seed):
    wanted = [_forecast(case["strong"], case["more"]) for case in probes.timings(seed)]
    off = max(abs(own / right - 1) for own, right in zip(answers["seconds"], wanted, strict=True))
    return bool(off < 1e-4) or f"the worst is off by {off:.1%}"


def _decision_right(answers, seed):
    wrong, cases = 0, probes.timings(seed)
    for case, own in zip(cases, answers["buys"], strict=True):
        seconds, more = case["strong"], case["more"]
        predicted = _efficiencies({**seconds, more: _forecast(seconds, more)}, "strong")[more]
        wrong += own != (predicted >= case["least_efficiency"])
    return not wrong or f"{wrong} of {len(cases)} are decided otherwise"


_SCALING = {**dict.fromkeys(("strong", "weak"), [[forms.number]]), "seconds": [forms.number], "buys": [forms.flag]}
SCALING = question(
    name="q5",
    title="Would more chips help?",
    asks_for=("efficiency", "buy_more"),
    probe=probes.probe_scaling,
    form=_SCALING,
    recognise={
        "from one device": _counted(_from_one_device, ["strong"]),
        "speed-up": _counted(_speed_up, ["strong"]),
        "the first of the dict": _counted(_from_the_first),
        "upside down": _counted(_upside_down),
        "never above 1": _counted(_never_above_one),
        "from the number before": _counted(_from_the_one_before),
    },
    targets=(
        Target("strong efficiency, from the smallest number of devices that was measured", _efficient("strong")),
        Target("weak efficiency, the same", _efficient("weak")),
        Target("the predicted time on more devices, to 0.01%", _forecast_right),
        Target("bought where the predicted efficiency is enough, and only there", _decision_right),
    ),
)


QUESTIONS = (STATES, ACTIVATIONS, CHOICE, PROFILES, SCALING)

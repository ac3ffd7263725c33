"""Probes of exercise 10: states, activations in flight, a choice of layouts, scaling; q4's is in ex10_profiles.

Needs NumPy. The inputs are functions of the seed.
"""

import functools
import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from course_lib.exercises.probes.cases import shuffled
from course_lib.planner import Cluster, Layout, Transformer, find_chip, search

NEAR = 0.05  # q3: how much slower than the fastest a layout may be
NO_LAYOUT = "ValueError"  # q3's answer where nothing is sure to fit
PRECISIONS = ("float32", "mixed_bfloat16", "bfloat16_master", "float16_master")


# q1: states


def state_cases(seed: int) -> list[dict[str, object]]:
    """q1's arguments: each ZeRO stage alone, each with everything else, all precisions; one model in three layouts."""
    rng = np.random.default_rng(seed)

    def case(zero, precision, data, tensor=1, pipeline=1, widest=640):
        width = 8 * int(rng.integers(widest // 5, widest))  # so the devices divide it, and float32 rounds the bytes
        return {
            "layers": pipeline * int(rng.integers(2, 7)),
            "layer_parameters": 12 * width**2 + 13 * width,
            "table_parameters": width * int(rng.integers(30_000, 60_000)),
            "layout": Layout(data=data, tensor=tensor, pipeline=pipeline, zero=zero, precision=precision),
        }

    alone = [case(zero, precision, data=8) for zero in (0, 1, 2, 3) for precision in PRECISIONS]
    stages = int(rng.integers(3, 6))  # over two stages, two tables spread evenly would be one each
    tensors = shuffled(rng, [2, 4, 4, 8])  # among two devices, both tables whole would be one
    spread = [case(zero, "bfloat16_master", 4, tensor, stages) for zero, tensor in enumerate(tensors)]
    both = case(0, "bfloat16_master", 4, 4, pipeline=2)  # nor do two stages hold both tables on one device
    uncut = case(1, "bfloat16_master", 4, 4)  # both tables on each device, and both are divided
    huge = case(0, "float32", 8, widest=4000) | {"layers": 1_200}  # more parameters than an int32 counts
    more_cut = replace(spread[0]["layout"], tensor=2 * tensors[0])
    again = [{**spread[0], "layout": layout} for layout in (more_cut, Layout(data=4, precision="bfloat16_master"))]
    return [*alone, *spread, both, uncut, huge, *again]


def probe_states(names, seed):
    """The learner's bytes for each case."""
    return {"bytes": [float(names["state_bytes"](**case)) for case in state_cases(seed)]}


# q2: activations in flight


def activation_cases(seed: int) -> list[dict[str, object]]:
    """q2's arguments: first, middle and last stage; few and many micro-batches; with and without recomputation.

    Without a pipeline too, where one micro-batch is in flight, and with one block on a stage, which recomputation
    makes no leaner. In some, the bytes of an example have a fraction.
    """
    rng = np.random.default_rng(seed)
    cases = []
    for recompute in ("none", "full"):
        stages = (
            (0, 32),
            (0, 2),
            (2, 32),
            (-1, 32),
            (3, 2),
            (3, -1),
            (1, 0),
            ("alone", 6),
            ("one block", 4),
            ("deep", 500),
        )
        for stage, many in stages:
            pipeline = 1 if stage == "alone" else int(rng.integers(5, 9))
            each = {"one block": 1, "deep": 300}.get(stage) or int(rng.integers(2, 9))
            place = 1 if stage == "deep" else stage if stage in (0, 1, 2, 3) else pipeline - 1
            block_input = int(rng.integers(5 * 2**20, 60 * 2**20)) if many > 2 else int(rng.integers(5, 60)) + 0.25
            data = 2 if many == 2 else int(rng.integers(2, 5))  # so that even all replicas' are fewer than stages
            sizes = {"data": data, "micro_batch": int(rng.integers(3, 6))}
            layout = Layout(pipeline=pipeline, recompute=recompute, **sizes)
            micro_batches = many if many > 0 else pipeline + many  # one fewer than stages, or as many
            cases.append(
                {
                    "stage": place,
                    "layers": pipeline * each,
                    "block_bytes": block_input * int(rng.integers(15, 40)),
                    "input_bytes": block_input,
                    "layout": layout,
                    "global_batch": layout.data * layout.micro_batch * micro_batches,
                }
            )
    return cases


def probe_activations(names, seed):
    """The learner's bytes for each case."""
    return {"bytes": [float(names["activation_bytes"](**case)) for case in activation_cases(seed)]}


# q3: a choice of layouts


@functools.lru_cache(maxsize=8)
def choices(seed: int) -> tuple[tuple[Transformer, Cluster, int], ...]:
    """q3's model, cluster and global batch: five that have an answer, and one where nothing is sure to fit.

    A chip's memory is set between what a layout takes by the planner's middle figure and by its interval's end, as
    happens sooner or later in practice; which layout, so that as many of `slips` as can be choose another one. In the
    fifth, nothing is sure to fit but what recomputes.
    """
    rng, decided = np.random.default_rng(seed), set()
    pairs = shuffled(
        rng, [("h100-80gb", 24, False), ("a100-80gb", 16, True), ("tpu-v5p", 20, True), ("a100-80gb", 20, None)]
    )
    made = [_pair(rng, *pair, decided) for pair in pairs]
    for model, cluster, batch in made:
        ranked = search(model, cluster, batch, precision="bfloat16_master").ranked
        if kept := [found for found in ranked if found.layout.recompute == "none"]:
            break
    least, least_kept = (min(found, key=lambda one: one.memory.total) for found in (ranked, kept))
    rooms = [(least.memory_interval[1] + end) / 2 for end in (least_kept.memory_interval[1], least.memory.total)]
    chips = [replace(cluster.chip, memory_bytes=room) for room in rooms]
    return (*made, *((model, Cluster(chip, cluster.chips), batch) for chip in chips))


def _pair(rng, chip, layers, is_slow, decided) -> tuple[Transformer, Cluster, int]:
    """A model, cluster and batch. is_slow: what surely fits is slower by much than what may fit.

    decided  names of the slips that the pairs before decide; its own are added. It draws again where a rare one is
             left out
    """
    best = None
    for drawn in range(14):
        if drawn >= 4 and best and RARE <= decided | best[1]:
            break
        width, batch = 128 * int(rng.integers(24, 40)), 16 * int(rng.integers(1, 5))
        model = Transformer(layers, width, width // 128, 32_000, 2048)
        roomy = replace(find_chip(chip), memory_bytes=1e15)
        every = [_figures(one) for one in search(model, Cluster(roomy, 8), batch, precision="bfloat16_master").ranked]
        for one in every[:200]:
            room = 0.7 * one.memory.total + 0.3 * one.memory_interval[1]
            ranked = [found for found in every if found.memory.total <= room]
            sure = [found for found in ranked if found.memory_interval[1] <= room]
            if not sure:
                continue
            slow = min(found.step.total for found in sure) > (1 + NEAR) * ranked[0].step.total
            found = slips(ranked, sure, room)
            score = (is_slow in (slow, None), len(found - decided) + 5 * len((found - decided) & RARE), len(found))
            if best is None or score > best[0]:
                best = score, found, (model, Cluster(replace(roomy, memory_bytes=room), 8), batch)
    decided |= best[1]
    return best[2]


def _figures(one) -> SimpleNamespace:
    """A prediction's figures that `slips` compares thousands of times, each added up once."""
    memory = SimpleNamespace(total=one.memory.total, states=_states(one))
    return SimpleNamespace(
        step=SimpleNamespace(total=one.step.total), memory=memory, memory_interval=one.memory_interval
    )


def near(sure, fastest=None, factor=1 + NEAR, key=lambda one: one.memory.total):
    """The prediction that takes the least memory, or the least of another key, among those near the fastest."""
    fastest = fastest or min(one.step.total for one in sure)
    return min((one for one in sure if one.step.total <= factor * fastest), key=key)


def up_to_the_first_slow(sure):
    """Those that a ranking has before the first that is too slow, though it orders by time only roughly."""
    limit = (1 + NEAR) * min(one.step.total for one in sure)
    return [sure[0], *itertools.takewhile(lambda one: one.step.total <= limit, sure)]


RARE = {  # of `slips`
    "divided by 0.95 alone",
    "the first for the fastest",
    "the first ten",
    "the first eight",
    "up to the first slow one alone",
}


def _states(one):
    return one.memory.weights + one.memory.gradients + one.memory.optimizer


def slips(ranked, sure, room) -> set[str]:
    """Ways to choose that strangers took for right, and that choose otherwise here.

    ranked, sure  figures of the predictions that fit by their middle one, and of those that do with their whole
                  interval, as a search ranks them
    room          bytes of the chip's memory
    """
    fastest, right = min(one.step.total for one in sure), near(sure)
    chosen = {
        "the fastest": min(sure, key=lambda one: one.step.total),
        "the search's best": ranked[0],
        "the leanest of all": min(sure, key=lambda one: one.memory.total),
        "the first for the fastest": near(sure, sure[0].step.total),
        "up to the first slow one": near(up_to_the_first_slow(sure), factor=np.inf),
        "the first eight": near(sure[:8]),
        "4%": near(sure, factor=1.04),
        "divided by 0.95": near(sure, factor=1 / 0.95),
        "0.05 seconds": near(sure, factor=1 + 0.05 / fastest),
        "states alone": near(sure, key=lambda one: one.memory.states),
    }
    sure_first = {count: [one for one in ranked[:count] if one.memory_interval[1] <= room] for count in (8, 10)}
    firsts = {count: near(first) for count, first in sure_first.items() if first}
    if 10 in firsts:
        chosen["the first ten"] = firsts[10]
    if fastest <= (1 + NEAR) * ranked[0].step.total:  # else nobody of those is sure
        chosen["5% of the search's best"] = near(sure, ranked[0].step.total)
    for share in (0.8, 0.9):
        if small := [one for one in ranked if one.memory.total <= share * room]:
            chosen[f"a margin of {1 - share:.0%}"] = near(small)
    if chosen["up to the first slow one"] not in (chosen["the first eight"], near(sure[:10]), *firsts.values()):
        chosen["up to the first slow one alone"] = chosen["up to the first slow one"]
    if chosen["divided by 0.95"] is not chosen["the first for the fastest"]:
        chosen["divided by 0.95 alone"] = chosen["divided by 0.95"]
    wrong = {name for name, one in chosen.items() if one not in sure or one.step.total > (1 + NEAR) * fastest}
    return wrong | {name for name, one in chosen.items() if one.memory.total > 1.001 * right.memory.total}


def probe_choice(names, seed):
    """The learner's layout for each pair, as its sizes, or that it raised a ValueError."""
    model, cluster, batch = choices(seed)[0]
    _sizes(names["choose_layout"], (model, cluster, 2 * batch))  # nothing of it may show in the next ones
    return {"layouts": [_sizes(names["choose_layout"], given) for given in choices(seed)]}


def _sizes(choose_layout, given) -> dict[str, object] | str:
    """The layout that a function chooses, as a dict, or NO_LAYOUT."""
    try:
        layout = choose_layout(*given)
    except ValueError:
        return NO_LAYOUT
    if not isinstance(layout, Layout):
        raise TypeError(f"choose_layout() returns a Layout, not {type(layout).__name__}")
    return dict(vars(layout))


# q5: scaling


def timings(seed: int) -> list[dict[str, object]]:
    """q5's measurements: seconds of a step by number of devices, strong and weak, from one device or from more on.

    In the fifth case the decision hangs on the smallest number's time: measured, not as fitted. In one the time falls
    faster than the number of devices grows, as where data begins to fit caches. In three the wanted efficiency lies
    just above the predicted, just below it, and between it and its whole percents. In the last two, the smallest number
    does not divide the others.
    """
    rng = np.random.default_rng(seed)
    cases = []
    runs = ((1, 0.98, 0.8), (4, 0.85, 0.15), (8, 0.995, 0.2), (2, 0.999, 0.7), (2, 0.98, "fitted"), (1, 1.01, 1.1))
    runs += ((2, 0.97, "above"), (4, 0.96, "below"), (2, 0.985, "rounded"))
    uneven = {3: (3, 8, 14, 20, 32), 6: (6, 8, 16)}
    runs += ((3, 0.98, "above"), (6, 0.97, "below"), (64, 0.999, "above"))
    for start, divided, least in runs:
        devices = uneven.get(start, [start * 2**n for n in range(4)])
        seconds = rng.uniform(1, 20) * rng.uniform(0.999, 1.001, (2, len(devices)))
        strong = [start * (1 - divided + divided / n) for n in devices] * seconds[0]
        weak = [1.02 + 0.03 * np.log2(n / start) for n in devices] * seconds[1]
        weak[1] *= 0.9 if start == 8 else 1  # faster than on the smallest number
        first = int(rng.integers(1, len(devices) - 1))  # a dict's order says nothing: neither smallest nor largest
        order = [first, *shuffled(rng, [place for place in range(len(devices)) if place != first])]
        measured = {
            kind: {devices[place]: float(times[place]) for place in order}
            for kind, times in (("strong", strong), ("weak", weak))
        }
        more = 4 * devices[-1] + 2 * (start in uneven)
        b, a = np.polyfit(1 / np.array(devices), strong, 1)
        predicted = start * strong[0] / (more * (a + b / more))
        limits = {
            "fitted": start * (strong[0] + a + b / start) / 2 / (more * (a + b / more)),
            "above": 1.003 * predicted,
            "below": 0.997 * predicted,
            "rounded": (predicted + round(predicted, 2)) / 2,
        }
        cases.append({**measured, "more": more, "least_efficiency": float(limits.get(least, least))})
    return cases


def probe_scaling(names, seed):
    """The learner's efficiencies, and the forecast for more devices."""
    answers = {"strong": [], "weak": [], "seconds": [], "buys": []}
    for case in timings(seed):
        for kind in ("strong", "weak"):
            found = names["efficiency"](dict(case[kind]), kind)
            answers[kind].append([float(found[n]) for n in case[kind]])
        seconds, buy = names["buy_more"](dict(case["strong"]), case["more"], case["least_efficiency"])
        answers["seconds"].append(float(seconds))
        answers["buys"].append(bool(buy))
    return answers

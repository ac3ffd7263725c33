"""Exercise 06: a model on two devices, a number of micro-batches, balance; q3 is in ex06_orders, q5 in ex06_stage.

Needs NumPy; the wrong answers of q1 need TensorFlow when they run.
"""

import itertools
import math

import numpy as np

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.judges.ex06_orders import ONE_FORWARD_ONE_BACKWARD
from course_lib.exercises.judges.ex06_stage import FLOAT32, ONE_STAGE
from course_lib.exercises.judges.numbers import ROUGH, off
from course_lib.exercises.probes import ex06 as probes
from course_lib.exercises.probes.cases import REFUSED
from course_lib.exercises.question import Target

question = question_maker.of("06_model_parallelism")


# q1: a model on two devices


def _one_device(seed, upstream=None, change=list, rows=slice(None)):
    """The gradients of every kernel and bias that is trained, layer by layer, in NumPy and float64.

    upstream  the gradient that stage 0 gets for its output in place of the right one
    change    of the stages: which take their place
    rows      of the batch
    """
    stages = change(probes.two_stages(seed))
    values, y = (part[rows].astype("float64") for part in probes.two_stage_batch(seed))
    activations = [[], []]
    for stage, layers in enumerate(stages):
        for kernel, bias in layers:
            inputs, values = values, np.tanh(values @ kernel + bias)
            activations[stage].append((inputs, values))
    gradient, found = 2 * (values - y) / y.size, []
    for stage in (1, 0):
        if stage == 0 and upstream is not None:
            gradient = np.full_like(gradient, upstream)
        for place in reversed(range(len(stages[stage]))):
            (kernel, _), (inputs, values) = stages[stage][place], activations[stage][place]
            by_sum = gradient * (1 - values**2)
            if place != probes.FROZEN:
                found = [inputs.T @ by_sum, by_sum.sum(axis=0), *found]
            gradient = by_sum @ kernel.T
    return found


def _of_stage_0(seed):
    """How many of the gradients are stage 0's."""
    return 2 * (len(probes.two_stages(seed)[0]) - 1)


def _weights_placed(run, seed):
    wanted = [2 * len(layers) for layers in probes.two_stages(seed)]
    if (counts := list(map(len, run["variables"]))) != wanted:
        return f"your stages have {counts} variables, and the makers' have {wanted}"
    for stage, devices in enumerate(run["variables"]):
        if wrong := sum(device != stage for device in devices):
            return f"{wrong} of the {len(devices)} variables of stage {stage} are on another device"
    return ""


def _products(run, stage, kind):
    """The devices of a stage's matrix products in one pass."""
    return [device for number, which, device in run["products"] if (number, which) == (stage, kind)]


def _expected(seed, stage, kind):
    layers = len(probes.two_stages(seed)[stage])
    # Nobody needs the gradient of x, and the frozen layer's kernel has none.
    return layers if kind == "forward" else 2 * layers - 1 - (stage == 0)


def _forward_misses(run, seed, kind="forward"):
    for stage in (0, 1):
        ran, wanted = _products(run, stage, kind), _expected(seed, stage, kind)
        if len(ran) < wanted:
            return f"of {wanted} products of stage {stage}, {len(ran)} are in the graph under its layers' names"
        if wrong := sum(device != stage for device in ran):
            return f"{wrong} of the {len(ran)} products of stage {stage} ran on another device"
    return ""


def _backward_misses(run, seed):
    return _forward_misses(run, seed, "backward")


def _gradients_off(run, seed):
    if run["trained"]:
        return "your call changes the weights, and nothing is trained yet"
    got, wanted = run["gradients"], _one_device(seed)
    if len(got) != len(wanted):
        return f"you return {len(got)} gradients for {len(wanted)} trainable variables"
    if missing := sum(gradient is None for gradient in got):
        return f"{missing} of {len(got)} gradients are None"
    for one, other in zip(got, wanted, strict=True):
        if one.shape != other.shape:
            return f"a gradient has the shape {one.shape}, and its variable has {other.shape}"
    most = max(map(off, got, wanted))
    return "" if most <= FLOAT32 else f"off by {100 * most:,.4g}%"


def _in_both_runs(misses):
    """A target over both orders of the devices: misses(run, seed) says what is wrong, or nothing."""

    def holds(answers, seed):
        for how, run in zip(("", "with the devices exchanged, "), answers["runs"], strict=True):
            if wrong := misses(run, seed):
                return how + wrong
        return True

    return holds


def _backward_on_one(answers, seed):
    """Whether the forward pass is placed, and all of the backward pass runs on one device."""
    return all(
        not _forward_misses(run, seed)
        and len({device for stage in (0, 1) for device in _products(run, stage, "backward")}) == 1
        for run in answers["runs"]
    )


def _more_than_once(answers, seed):
    """Whether the backward pass of the second stage has more products than it needs, and some on the wrong device."""
    more = len(_products(answers["runs"][0], 1, "backward")) > _expected(seed, 1, "backward")
    return more and any(_backward_misses(run, seed) for run in answers["runs"])


def _on_one_device(run):
    """Whether a run's variables and products are all on one device."""
    return len({device for stage in run["variables"] for device in stage} | {one[2] for one in run["products"]}) == 1


def _products_on_one(answers, seed):
    """Whether the variables are placed, and all products run on one device."""
    placed = not any(_weights_placed(run, seed) for run in answers["runs"])
    return placed and all(len({one[2] for one in run["products"]}) == 1 for run in answers["runs"])


def _by_luck(answers, seed):
    misses = [_weights_placed, _forward_misses, _backward_misses]
    return sum(any(miss(run, seed) for miss in misses) for run in answers["runs"]) == 1


def _names_ignored(answers, seed):
    """Whether all is right with the first order, and all variables, or all of a pass, stay when it is exchanged.

    What the exchanged run has in the wrong place has stayed on both stages: the default device is only one of them.
    """
    misses = [_weights_placed, _forward_misses, _backward_misses]
    first, exchanged = answers["runs"]
    wrong = [miss(exchanged, seed) for miss in misses]
    places = [[(stage, device) for stage, devices in enumerate(exchanged["variables"]) for device in devices]]
    for kind in ("forward", "backward"):
        places.append([(stage, device) for stage in (0, 1) for device in _products(exchanged, stage, kind)])
    stayed = [all(device == 1 - stage for stage, device in group) for group in places]
    return (
        not any(miss(first, seed) for miss in misses)
        and any(wrong)
        and all(has_stayed for missed, has_stayed in zip(wrong, stayed) if missed)
    )


def _another_loss(answers, seed):
    """All gradients are the right ones times one factor."""
    got = np.concatenate([np.ravel(one) for one in answers["runs"][0]["gradients"]])
    wanted = np.concatenate([np.ravel(one) for one in _one_device(seed)])
    factor = got @ wanted / (wanted @ wanted)
    return factor > 0 and abs(factor - 1) > 0.01 and off(got, factor * wanted) <= FLOAT32


def _without_the_loss(answers, seed):
    got = answers["runs"][0]["gradients"]
    return all(one is not None for one in got) and max(map(off, got, _one_device(seed, upstream=1))) <= FLOAT32


def _no_gradient_before_the_boundary(answers, seed):
    first = _of_stage_0(seed)
    missing = [gradient is None or not np.any(gradient) for gradient in answers["runs"][0]["gradients"]]
    return all(missing[:first]) and not any(missing[first:])


def _last_stage_first(answers, seed):
    wanted, first = _one_device(seed), _of_stage_0(seed)
    got = answers["runs"][0]["gradients"]
    return len(got) == len(wanted) and max(map(off, got, wanted[first:] + wanted[:first])) <= FLOAT32


def _of_all_variables(answers, seed):
    """Whether there is an entry for each variable, and those of the trainable ones are right."""
    trained = [place != probes.FROZEN for layers in probes.two_stages(seed) for place in range(len(layers))]
    pairs = zip(answers["runs"][0]["gradients"], np.repeat(trained, 2), strict=True)  # a kernel and a bias each
    ours = [one for one, is_trained in pairs if is_trained]
    return max(map(off, ours, _one_device(seed))) <= FLOAT32


def _of_earlier_stages(answers, seed):
    wanted = _one_device(seed, change=probes.halved)
    return all(max(map(off, run["gradients"], wanted)) <= FLOAT32 for run in answers["runs"])


def _parts_alike(answers, seed):
    """Whether the gradients are the mean of some parts' of the batch, of which one has more rows than another."""
    rows = len(probes.two_stage_batch(seed)[0])
    cuts = [[0, first, rows] for first in range(1, rows)]
    for count in range(2, rows):
        ends = np.cumsum([len(part) for part in np.array_split(range(rows), count)])
        cuts += [[0, *ends], [*range(0, rows, count), rows]]
    for cut in (cut for cut in cuts if len({*np.diff(cut)}) > 1):
        parts = [_one_device(seed, rows=slice(*ends)) for ends in itertools.pairwise(cut)]
        means = [sum(each) / len(parts) for each in zip(*parts)]
        pairs = [zip(run["gradients"], means, strict=True) for run in answers["runs"]]
        if all(off(*pair) <= FLOAT32 for run in pairs for pair in run):
            return True
    return False


def _few_digits(answers, seed):
    """Whether only the gradients are wrong, and are right to half precision."""
    wanted, misses = _one_device(seed), [_weights_placed, _forward_misses, _backward_misses]
    return all(
        not run["trained"]
        and not any(miss(run, seed) for miss in misses)
        and len(run["gradients"]) == len(wanted)
        and max(map(off, run["gradients"], wanted)) <= ROUGH
        for run in answers["runs"]
    )


def _made_on_one_device(answers, seed):
    """Whether all variables lie on one device, exchanged or not, and all products run where they must."""
    places = [{device for stage in run["variables"] for device in stage} for run in answers["runs"]]
    computed = not any(miss(run, seed) for miss in (_forward_misses, _backward_misses) for run in answers["runs"])
    return computed and all(len(place) == 1 for place in places)


def _forward_on_one(answers, seed):
    """Whether the variables and the backward pass are placed, and all of the forward pass runs on one device."""
    return all(
        not _weights_placed(run, seed)
        and not _backward_misses(run, seed)
        and len({device for stage in (0, 1) for device in _products(run, stage, "forward")}) == 1
        for run in answers["runs"]
    )


_RUN = {
    "trained": forms.flag,
    "variables": [[forms.whole]],
    "gradients": [forms.either(forms.array, forms.nothing)],
    "products": [(forms.whole, forms.text, forms.whole)],
}
PLACEMENT = question(
    name="q1",
    title="Two devices, and the proof",
    asks_for=("place", "gradients"),
    probe=probes.probe_placement,
    form={"runs": (_RUN, _RUN)},
    targets=(
        Target(
            "every variable of stage 0 is on the first device, of stage 1 on the second", _in_both_runs(_weights_placed)
        ),
        Target("every matrix product of the forward pass runs on its stage's device", _in_both_runs(_forward_misses)),
        Target("every matrix product of the backward pass runs on its stage's device", _in_both_runs(_backward_misses)),
        Target("the gradients equal one device's, to 0.001%", _in_both_runs(_gradients_off)),
    ),
    recognise={
        "through NumPy": lambda answers, seed: (
            "has no attribute 'numpy'" in answers.get("stopped", {}).get("error", "")
        ),
        "names ignored": _names_ignored,
        "another loss": _another_loss,
        "last stage first": _last_stage_first,
        "all weights": _of_all_variables,
        "stages kept": _of_earlier_stages,
        "few digits": _few_digits,
        "parts count alike": _parts_alike,
        "boundary cut": _no_gradient_before_the_boundary,
        "boundary gradient missing": _without_the_loss,
        "trained": lambda answers, seed: any(run["trained"] for run in answers["runs"]),
        "no device": lambda answers, seed: all(map(_on_one_device, answers["runs"])),
        "usual snippet": _products_on_one,
        "stages computed twice": _more_than_once,
        "backward on one device": _backward_on_one,
        "forward on one device": _forward_on_one,
        "made on one device": _made_on_one_device,
        "right by luck": _by_luck,
    },
)


# q2: a number of micro-batches


def _described(case, m):
    """The case and the answer, for a detail."""
    unit, name = (1, "B") if _is_small(case) else (1e6, "MB")
    sizes = [f"{one / unit:.4g}" for one in case["example_bytes"]]
    each = sizes[0] if len(set(sizes)) == 1 else ", ".join(sizes)
    wanted = f", and {_smallest(case)} is wanted" if _is_small(case) else ""
    return (
        f"{case['schedule']} on {_stages(len(sizes))}, a batch of {case['batch']}, {each} {name} an example, "
        f"{case['memory_bytes'] / unit:.4g} {name} for each stage, bubble at most {case['largest_bubble']:g}: "
        f"yours " + ("raises ValueError" if m == REFUSED else f"is {m}") + wanted
    )


def _stages(number):
    return "1 stage" if number == 1 else f"{number} stages"


def _is_small(case):
    return case["memory_bytes"] < 100


def _not_divided(case, m):
    return m < 1 or bool(case["batch"] % m)


def _bubble_too_large(case, m):
    p = len(case["example_bytes"])
    return (p - 1) / (m + p - 1) > case["largest_bubble"]


def _too_much_memory(case, m):
    p = len(case["example_bytes"])
    held = [m if case["schedule"] == "GPipe" else min(m, p - stage) for stage in range(p)]
    most = max(count * one * case["batch"] / m for count, one in zip(held, case["example_bytes"]))
    return most > case["memory_bytes"]


def _smallest(case):
    """The smallest number that meets all limits, or REFUSED."""
    limits = (_not_divided, _bubble_too_large, _too_much_memory)
    allowed = (m for m in range(1, case["batch"] + 1) if not any(breaks(case, m) for breaks in limits))
    return next(allowed, REFUSED)


def _no_count(wrong):
    """A target that no answer is wrong(case, answer)."""

    def holds(answers, seed):
        for case, got in zip(probes.pipelines(seed), answers["counts"], strict=True):
            if wrong(case, got):
                return _described(case, got)
        return True

    return holds


def _given(wrong):
    return _no_count(lambda case, got: got != REFUSED and wrong(case, got))


def _answers_where_none_fits(answers, seed):
    pairs = zip(probes.pipelines(seed), answers["counts"], strict=True)
    return all((got != REFUSED) if _smallest(case) == REFUSED else got == _smallest(case) for case, got in pairs)


_REFUSED = forms.words(REFUSED)
MICRO_BATCHES = question(
    name="q2",
    title="How many micro-batches?",
    asks_for=("choose_micro_batches",),
    probe=probes.probe_micro_batches,
    form={"counts": [forms.either(forms.number, _REFUSED)]},
    targets=(
        Target("the micro-batches divide the batch", _given(_not_divided)),
        Target("the bubble is at most the given share", _given(_bubble_too_large)),
        Target("no stage holds more activations than its memory", _given(_too_much_memory)),
        Target(
            "a ValueError where nothing fits, and only there",
            _no_count(lambda case, got: (got == REFUSED) != (_smallest(case) == REFUSED)),
        ),
        Target(
            "no smaller number would do",
            _no_count(lambda case, got: REFUSED not in (got, _smallest(case)) and got > _smallest(case)),
        ),
    ),
    recognise={
        "does not divide": lambda answers, seed: any(
            got != REFUSED and got >= 1 and case["batch"] % got
            for case, got in zip(probes.pipelines(seed), answers["counts"], strict=True)
        ),
        "none not refused": _answers_where_none_fits,
    },
)


# q4: balance


def _sums(parts, costs):
    return [sum(costs[layer] for layer in part) for part in parts]


def _fewest_seconds(seconds, weight_bytes, stages, memory_bytes):
    """The slowest stage's seconds in the best cut that fits; infinite where none does."""
    if stages == 1:
        return sum(seconds) if seconds and sum(weight_bytes) <= memory_bytes else math.inf
    cuts = [n for n in range(1, len(seconds)) if sum(weight_bytes[:n]) <= memory_bytes]
    rest = (_fewest_seconds(seconds[n:], weight_bytes[n:], stages - 1, memory_bytes) for n in cuts)
    return min((max(sum(seconds[:n]), least) for n, least in zip(cuts, rest)), default=math.inf)


def _equal_numbers(seconds, weight_bytes, stages, memory_bytes):
    return [part.tolist() for part in np.array_split(np.arange(len(seconds)), stages)]


def _greedy(seconds, weight_bytes, stages, memory_bytes):
    """A stage takes layers until it has its share of the seconds."""
    share, parts = sum(seconds) / stages, [[]]
    for layer, cost in enumerate(seconds):
        left = len(seconds) - layer
        full = sum(seconds[one] for one in parts[-1]) + cost > share
        if parts[-1] and len(parts) < stages and (full or left == stages - len(parts)):
            parts.append([])
        parts[-1].append(layer)
    return parts


def _filled(seconds, weight_bytes, stages, memory_bytes):
    """A stage takes layers until its memory is full."""
    parts = [[]]
    for layer, size in enumerate(weight_bytes):
        left, held = len(seconds) - layer, sum(weight_bytes[one] for one in parts[-1])
        if parts[-1] and len(parts) < stages and (held + size > memory_bytes or left == stages - len(parts)):
            parts.append([])
        parts[-1].append(layer)
    return parts


def _as_balance_cuts(answers, seed):
    """Every cut is as fast as one can be that asks for no memory, and not every one fits."""
    pairs = list(zip(probes.layer_rows(seed), answers["cuts"], strict=True))
    least = [_fewest_seconds(**case | {"memory_bytes": math.inf}) for case, _ in pairs]
    fast = all(max(_sums(parts, case["seconds"])) <= one * (1 + 1e-9) for (case, parts), one in zip(pairs, least))
    return fast and any(_too_heavy(case, parts) for case, parts in pairs)


def _each_cut(detail):
    """A target over the rows: detail(case, cut) says what is wrong, or nothing. Skips answers without a cut."""

    def holds(answers, seed):
        for case, parts in zip(probes.layer_rows(seed), answers["cuts"], strict=True):
            if parts != REFUSED and detail is not _not_in_order and _not_in_order(case, parts):
                return f"not known: {_case_name(case)} yours does not meet the first target"
            if parts != REFUSED and (wrong := detail(case, parts)):
                return f"{_case_name(case)} {wrong}"
        return True

    return holds


def _case_name(case):
    return f"of {len(case['seconds'])} layers on {_stages(case['stages'])}"


def _not_in_order(case, parts):
    if [layer for part in parts for layer in part] != list(range(len(case["seconds"]))):
        return f"yours gives {parts}"
    if len(parts) != case["stages"] or not all(parts):
        return f"yours has {sum(map(bool, parts))} with a layer in it"


def _too_heavy(case, parts):
    most = max(_sums(parts, case["weight_bytes"]))
    return most > case["memory_bytes"] and f"one has {most:,} B, and {case['memory_bytes']:,} B are allowed"


def _cut_or_error(answers, seed):
    for case, parts in zip(probes.layer_rows(seed), answers["cuts"], strict=True):
        if (parts == REFUSED) != (_fewest_seconds(**case) == math.inf):
            return f"{_case_name(case)} yours {'raises ValueError' if parts == REFUSED else 'is a cut'}"
    return True


def _not_the_best(case, parts):
    got, best = max(_sums(parts, case["seconds"])), _fewest_seconds(**case)
    return got > best * (1 + 1e-9) and f"your slowest takes {got / best:.1%} of what it could"


def _cuts_where_none_fits(answers, seed):
    pairs = list(zip(probes.layer_rows(seed), answers["cuts"], strict=True))
    given = [pair for pair in pairs if _fewest_seconds(**pair[0]) < math.inf]
    right = all(
        parts != REFUSED and not (_not_in_order(case, parts) or _not_the_best(case, parts) or _too_heavy(case, parts))
        for case, parts in given
    )
    return right and all(pair in given or pair[1] != REFUSED for pair in pairs)


def _fewer_stages(answers, seed):
    pairs = zip(probes.layer_rows(seed), answers["cuts"], strict=True)
    return any(parts != REFUSED and all(parts) and 0 < len(parts) < case["stages"] for case, parts in pairs)


def _not_neighbours(answers, seed):
    """Every layer is there once, and some stage is no run of neighbours."""
    pairs = zip(probes.layer_rows(seed), answers["cuts"], strict=True)
    cuts = [(case, parts) for case, parts in pairs if parts != REFUSED]
    whole = all(sorted(sum(parts, [])) == list(range(len(case["seconds"]))) for case, parts in cuts)
    return whole and any(np.any(np.diff(part) != 1) for _, parts in cuts for part in map(sorted, parts))


def _cuts_that_fit(seconds, weight_bytes, stages, memory_bytes):
    layers = list(range(len(seconds)))
    for cuts in itertools.combinations(layers[1:], stages - 1):
        parts = [layers[start:end] for start, end in itertools.pairwise([0, *cuts, len(layers)])]
        if max(_sums(parts, weight_bytes)) <= memory_bytes:
            yield parts


def _most_alike(answers, seed):
    """Whether every cut has the smallest range of seconds of all that fit, or every one the smallest variance."""

    def smallest(spread):
        for case, parts in zip(probes.layer_rows(seed), answers["cuts"], strict=True):
            spreads = [spread(_sums(cut, case["seconds"])) for cut in _cuts_that_fit(**case)]
            if (parts == REFUSED) == bool(spreads) or spreads and _not_in_order(case, parts):
                return False
            if spreads and spread(_sums(parts, case["seconds"])) > min(spreads) + 1e-9 * sum(case["seconds"]) ** 2:
                return False
        return True

    return smallest(np.ptp) or smallest(np.var)


def _equal_or_refused(answers, seed):
    """Each cut has equal numbers of layers, or is refused where those do not fit; some are."""
    for case, parts in zip(probes.layer_rows(seed), answers["cuts"], strict=True):
        equal = _equal_numbers(**case)
        if parts != (REFUSED if _too_heavy(case, equal) else equal):
            return False
    return True


def _ends(answers, seed):
    """Whether every stage is two numbers, from which the next one goes on, to the number of layers."""
    pairs = zip(probes.layer_rows(seed), answers["cuts"], strict=True)
    return any(parts != REFUSED for parts in answers["cuts"]) and all(
        parts == REFUSED
        or all(len(part) == 2 for part in parts)
        and [start for start, _ in parts] + [len(case["seconds"])] == [0] + [end for _, end in parts]
        for case, parts in pairs
    )


def _greedy_that_fits(seconds, weight_bytes, stages, memory_bytes):
    """A stage takes layers until it has its share of the seconds or its memory is full."""
    share, parts = sum(seconds) / stages, [[]]
    for layer, cost in enumerate(seconds):
        left, bytes_held = len(seconds) - layer, sum(weight_bytes[one] for one in parts[-1])
        full = sum(seconds[one] for one in parts[-1]) + cost > share or bytes_held + weight_bytes[layer] > memory_bytes
        if parts[-1] and len(parts) < stages and (full or left <= stages - len(parts)):
            parts.append([])
        parts[-1].append(layer)
    if max(_sums(parts, weight_bytes)) > memory_bytes:
        raise ValueError
    return parts


BALANCE = question(
    name="q4",
    title="Balance, within a memory",
    asks_for=("cut_layers",),
    probe=probes.probe_balance,
    form={"cuts": [forms.either([[forms.size]], _REFUSED)]},
    targets=(
        Target(
            "as many stages as asked for, each of 1 or more neighbouring layers, in order, every layer once",
            _each_cut(_not_in_order),
        ),
        Target("no stage has more bytes than its memory", _each_cut(_too_heavy)),
        Target("a ValueError where no cut fits, and only there", _cut_or_error),
        Target("the slowest stage takes as few seconds as it can", _each_cut(_not_the_best)),
    ),
    recognise={
        "memory forgotten": _as_balance_cuts,
        "smallest spread": _most_alike,
        "none not refused": _cuts_where_none_fits,
        "fewer stages": _fewer_stages,
        "ends for layers": _ends,
        "not neighbours": _not_neighbours,
        "equal or nothing": _equal_or_refused,
    },
    wrong={
        "equal numbers": _equal_numbers,
        "greedy": _greedy,
        "filled up": _filled,
        "greedy within the memory": _greedy_that_fits,
    },
)


QUESTIONS = (PLACEMENT, MICRO_BATCHES, ONE_FORWARD_ONE_BACKWARD, BALANCE, ONE_STAGE)

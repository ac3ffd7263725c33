"""Exercise 12, q5: a step that is traced again and again. Needs NumPy."""

import functools
import itertools
import operator

import numpy as np

from course_lib.exercises.judges import ex12_runs as runs
from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.probes import ex12 as probes
from course_lib.exercises.probes import ex12_cases
from course_lib.exercises.question import Target

question = question_maker.of("12_when_it_hangs")
RUNS = 3


def _distinct(sizes, rates):
    return len({*zip(sizes, rates)})


def _rule_holds(answers, seed):
    for (sizes, rates), count in zip(probes.schedules(seed), answers["counts"], strict=True):
        if count != _distinct(sizes, rates):
            return f"with sizes {sizes} and rates {rates} you say {count}"
    return True


def _counts(rule):
    """A recogniser of another rule."""
    return lambda answers, seed: answers["counts"] == [rule(*one) for one in probes.schedules(seed)]


def _rounded_rates(answers, seed):
    """Rates that are equal to some decimal place count as one, as Python or NumPy rounds, or in float32."""

    def rule(rounded, sizes, rates):
        return _distinct(sizes, [rounded(rate) for rate in rates])

    ways = [functools.partial(way, decimals) for decimals in range(16) for way in (_python_rounds, _numpy_rounds)]
    return any(_counts(functools.partial(rule, way))(answers, seed) for way in (*ways, np.float32))


def _python_rounds(decimals, rate):
    return round(rate, decimals)


def _numpy_rounds(decimals, rate):
    return np.round(rate, decimals)


def _last_of_each_size(sizes, rates):
    return sum(_changes([rate for other, rate in zip(sizes, rates) if other == size]) for size in {*sizes})


def _changes(values):
    return 1 + sum(a != b for a, b in itertools.pairwise(values))


def _two_sizes_at_most(sizes, rates):
    return sum(min(2, len({size for size, other in zip(sizes, rates) if other == rate})) for rate in {*rates})


def _added_up(answers, seed):
    added = [len({*sizes}) + len({*rates}) for sizes, rates in probes.schedules(seed)]
    return answers["counts"] in (added, [count - 1 for count in added])


def _of_one_number(answers, seed):
    """The rule counts products, or sums."""

    def counted(one_of):
        return _counts(lambda sizes, rates: len({one_of(*pair) for pair in zip(sizes, rates)}))(answers, seed)

    return counted(operator.mul) or counted(operator.add)


def _few_traces(answers, seed):
    for number, counted in enumerate(answers["traces"]):
        if not all(1 <= count <= 2 for count in counted):
            return f"the workers traced it {' and '.join(map(str, counted))} times, {_words(seed, number)}"
    for number, counted in enumerate(answers["in_graphs"]):
        if min(counted) < len(_schedule(seed, number)[0]):
            return f"it computes {' and '.join(map(str, counted))} gradients on the workers, {_words(seed, number)}"
    return True


def _schedule(seed, number):
    """(sizes, rates) of a run."""
    settings = ex12_cases.programs_schedules(seed)[number]
    return [len(y) for _, y in settings["shards"][0]], settings["rates"]


def _words(seed, number):
    sizes, _ = _schedule(seed, number)
    *more, last = sorted({*sizes})
    return f"in {len(sizes)} steps with {', '.join(map(str, more))} and {last} rows" if more else "in a single step"


@functools.lru_cache(maxsize=64)
def _trained(seed, number, rule="right"):
    """The final weights of one device; or what a known mistake makes of them.

    rule  "first": the first rate stays; "second": but for the first size, that of the first step of another size;
          "since then": from that step on, whatever the size; "padded": the mean is over the largest size;
          "sorted", "with rates": steps by size, and their rates with them
    """
    settings = ex12_cases.programs_schedules(seed)[number]
    weights, rates = np.array(settings["first_weights"]), settings["rates"]
    steps = [tuple(np.concatenate(parts) for parts in zip(*batches)) for batches in zip(*settings["shards"])]
    sizes = [len(y) for _, y in steps]
    later = next((step for step, size in enumerate(sizes) if size != sizes[0]), 0)
    by_size = np.argsort(sizes, kind="stable")
    places = by_size if rule in ("sorted", "with rates") else range(len(steps))
    if rule == "with rates":
        rates = [rates[place] for place in by_size]
    for step, place in enumerate(places):
        (x, y), rate = steps[place], rates[step]
        if rule in ("first", "second", "since then"):
            second = rule == "second" and len(y) != sizes[0] or rule == "since then" and step >= later
            rate = rates[later if second else 0]
        weights = weights - rate * 2 * x.T @ (x @ weights - y) / (max(sizes) if rule == "padded" else len(y))
    return weights


def _trained_by(*rules):
    """A recogniser: the weights of every run are those of one of these mistakes."""
    fitting = [
        runs.in_every_run(lambda run, seed, number, rule=rule: runs.close(run, _trained(seed, number, rule)))
        for rule in rules
    ]
    return lambda answers, seed: any(fits(answers, seed) for fits in fitting)


def _traced(least, most=None):
    """A recogniser: so many traces in each run on both workers, by its sizes and rates; or between two numbers."""

    def recognise(answers, seed):
        return all(
            least(*_schedule(seed, number)) <= count <= (most or least)(*_schedule(seed, number))
            for number, counted in enumerate(answers["traces"])
            for count in counted
        )

    return recognise


def _by_sizes(answers, seed):
    """In the first run a trace for each size, in others as many at most."""
    sizes = [len({*_schedule(seed, number)[0]}) for number in range(RUNS)]
    fits = all(max(counted) <= most for counted, most in zip(answers["traces"], sizes))
    return fits and {*answers["traces"][0]} == {sizes[0]}


def _eager_in_some(answers, seed):
    """Traced as often as it should be, it computes fewer gradients than there are steps."""
    counts = [count for counted in answers["traces"] for count in counted]
    steps = [len(_schedule(seed, number)[0]) for number in range(RUNS)]
    fewer = any(min(counted) < due for counted, due in zip(answers["in_graphs"], steps))
    return fewer and {*counts} <= {1, 2}


_TRAINED = {"weights": forms.any_array, str: forms.anything}
SCHEDULE = question(
    name="q5",
    title="It crawls",
    asks_for=("traces_of", "train_quickly"),
    probe=probes.probe_schedule,
    form={
        "counts": [forms.whole],
        "runs": runs.pairs(_TRAINED, RUNS),
        "traces": runs.pairs(forms.size, RUNS),
        "in_graphs": runs.pairs(forms.size, RUNS),
    },
    takes_long=True,
    targets=(
        Target("your rule gives the broken program's traces, exactly", _rule_holds),
        Target("your step is traced once or twice, and computes the gradient of each step", _few_traces),
        runs.each_run(
            "the weights are identical, and equal one device's to 0.001%", runs.identical_and(_trained), _words
        ),
    ),
    recognise={
        "a function each step": _traced(lambda sizes, rates: len(sizes)),
        "sizes still": _by_sizes,
        "rates still": _traced(lambda sizes, rates: len({*rates}), _distinct),
        "no tf.function": _traced(lambda sizes, rates: 0),
        "eager in some steps": _eager_in_some,
        "first rate for ever": _trained_by("first", "second", "since then"),
        "padding counts": _trained_by("padded"),
        "steps by size": _trained_by("sorted", "with rates"),
        "one trace a step": _counts(lambda sizes, rates: len(sizes)),
        "rates alone": _counts(lambda sizes, rates: len({*rates})),
        "sizes alone": _counts(lambda sizes, rates: len({*sizes})),
        "changes": _counts(lambda sizes, rates: _changes(zip(sizes, rates))),
        "last rate of each size": _counts(_last_of_each_size),
        "two sizes at most": _counts(_two_sizes_at_most),
        "products": _of_one_number,
        "rates rounded": _rounded_rates,
        "added up": _added_up,
        "all pairs": _counts(lambda sizes, rates: len({*sizes}) * len({*rates})),
    },
)

"""Exercise 12, q3: sums in each worker's own order. Needs NumPy."""

import functools
import itertools

import numpy as np

from course_lib.exercises.given import incidents
from course_lib.exercises.judges import ex12_runs as runs
from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.probes import ex12 as probes
from course_lib.exercises.probes import ex12_cases

question = question_maker.of("12_when_it_hangs")
RUNS = 3
NO_ROW = [np.full(3, np.nan)]  # the means of a worker that has no kind, where it divides all the same


def _orders_part():
    """Of the notebook's incident: who departs from the order of `kinds`, and when first."""
    settings = incidents.mixed_order(probes.OWN_SEED)
    for step, batches in enumerate(zip(*settings["shards"])):
        for worker, batch in enumerate(batches):
            if list(dict.fromkeys(kind for kind, _, _ in batch)) != settings["kinds"]:
                return f"worker {worker}", "other order", step


@functools.lru_cache(maxsize=64)
def _by_kind(seed, number, rule="right"):
    """The weights after each step on one device, (steps, 3); or what a known mistake of _MEANS makes of them.

    rule  "kept": the sums of earlier steps stay; "last mean": of a kind that nobody has, the mean of earlier does;
          "side by side": of a worker's rows of a kind, those since another kind came in between;
          "met": a kind that was there before counts; "letters": kinds of one first letter are one
    """
    settings = ex12_cases.mixed_orders(seed)[number]
    weights, history, kept = np.array(settings["first_weights"]), [], {}
    if rule == "letters":
        settings = _by_first_letter(settings)
    for batches in zip(*settings["shards"]):
        batches = [_last_of_each(batch) for batch in batches] if rule == "side by side" else batches
        found = {kind: [_of_kind(batch, weights, kind) for batch in batches] for kind in settings["kinds"]}
        if rule == "kept":
            kept = {kind: parts + kept.get(kind, []) for kind, parts in found.items()}
            found = kept
        means = _MEANS.get(rule, _means_of_kinds)(found.values())
        if rule == "last mean":
            kept |= {kind: _pooled(parts) for kind, parts in found.items() if _rows(parts)}
            means = [*kept.values()]
        if rule == "met":
            kept |= {kind: True for kind, parts in found.items() if _rows(parts)}
            means = [_pooled(found[kind]) for kind in kept]
        weights = weights - settings["learning_rate"] * np.mean(means or NO_ROW, axis=0)
        history.append(weights)
    return np.array(history)


def _by_first_letter(settings):
    shards = [[[(kind[0].lower(), x, y) for kind, x, y in batch] for batch in own] for own in settings["shards"]]
    return {**settings, "shards": shards, "kinds": sorted({kind[0].lower() for kind in settings["kinds"]})}


def _last_of_each(batch):
    """The rows of the last group of each kind."""
    last = {kind: list(rows) for kind, rows in itertools.groupby(batch, lambda row: row[0])}
    return [row for rows in last.values() for row in rows]


def _means_of_kinds(found):
    """The mean of each kind that is there. found: of each kind (the sum of its rows' gradients, rows) by worker"""
    return [_pooled(parts) for parts in found if _rows(parts)]


def _pooled(parts):
    return sum(sums for sums, _ in parts) / max(1, _rows(parts))


def _rows(parts):
    return sum(rows for _, rows in parts)


_MEANS = {
    "absent": lambda found: [_pooled(parts) for parts in found],
    "nobody's": lambda found: [_pooled(parts) if _rows(parts) else NO_ROW[0] for parts in found],
    "rows": lambda found: [_pooled([part for parts in found for part in parts])],
    "means": lambda found: [np.mean([s / n for s, n in parts if n], axis=0) for parts in found if _rows(parts)],
    "means of all": lambda found: [
        np.mean([s / max(1, n) for s, n in parts], axis=0) for parts in found if _rows(parts)
    ],
    "added": lambda found: [np.sum(_means_of_kinds(found), axis=0)],
    "both have": lambda found: [_pooled(parts) for parts in found if all(rows for _, rows in parts)],
    "worker 0 has": lambda found: [_pooled(parts) for parts in found if parts[0][1]],
    "worker 1 has": lambda found: [_pooled(parts) for parts in found if parts[1][1]],
    "not 0": lambda found: [_pooled(parts) for parts in found if _pooled(parts).any()],
    "a row more": lambda found: [_pooled([(sums, max(1, rows)) for sums, rows in parts]) for parts in found],
}


def _kinds_by(*rules):
    """A recogniser: the weights of every run are those of one of these mistakes."""
    fitting = [
        runs.in_every_run(lambda run, seed, number, rule=rule: runs.close(run, _by_kind(seed, number, rule)))
        for rule in rules
    ]
    return lambda answers, seed: any(fits(answers, seed) for fits in fitting)


def _before_the_update(run, seed, number):
    first, history = ex12_cases.mixed_orders(seed)[number]["first_weights"], _by_kind(seed, number)
    return runs.close(run, [first, *history[:-1]])


def _last_ones(run, seed, number):
    history = _by_kind(seed, number)
    return runs.close(run, [history[-1]] * len(history))


def _sums_of_two_kinds(answers, seed):
    """After the first run's first step the weights are those where the workers go through the kinds each in another
    order.
    """
    settings = ex12_cases.mixed_orders(seed)[0]
    first, kinds = np.array(settings["first_weights"]), settings["kinds"]
    one, other = (
        np.array([np.append(*_of_kind(batches[0], first, kind)) for kind in kinds]) for batches in settings["shards"]
    )
    sums = one + other[list(itertools.permutations(range(len(kinds))))]  # (orders, kinds, 4)
    means = np.nanmean(sums[..., :3] / sums[..., 3:], axis=1)
    right, *others = first - settings["learning_rate"] * means
    weights = runs.weights_of(answers["runs"][0])[0][0]
    return not np.allclose(right, weights) and any(np.allclose(due, weights, rtol=runs.CLOSE) for due in others)


def _of_kind(batch, weights, kind):
    """(the sum of the gradients of a batch's rows of that kind, their number)."""
    rows = [(np.array(x), y) for found, x, y in batch if found == kind]
    return sum((2 * (x @ weights - y) * x for x, y in rows), np.zeros(3)), len(rows)


@functools.lru_cache(maxsize=64)
def _each_by_its_kinds(seed, number, without):
    """Both workers' weights after each step, where each takes its mean over the kinds that it has itself.

    without  its mean where it has none
    """
    settings = ex12_cases.mixed_orders(seed)[number]
    weights, history = [np.array(settings["first_weights"])] * incidents.WORKERS, []
    for batches in zip(*settings["shards"]):
        found = [[_of_kind(*one, kind) for one in zip(batches, weights)] for kind in settings["kinds"]]
        own = [[_pooled(parts) for parts in found if parts[k][1]] for k in range(incidents.WORKERS)]
        weights = [
            w - settings["learning_rate"] * np.mean(means or [without], axis=0) for w, means in zip(weights, own)
        ]
        history.append(weights)
    return np.swapaxes(history, 0, 1)


def _own_mean(run, seed, number):
    found = runs.weights_of(run)
    due = [_each_by_its_kinds(seed, number, without) for without in (0, np.nan)]
    return any(np.allclose(found, one, rtol=runs.CLOSE, equal_nan=True) for one in due)


def _words(seed, number):
    settings = ex12_cases.mixed_orders(seed)[number]
    kinds, steps = len(settings["kinds"]), len(settings["shards"][0])
    return f"with {kinds} kind{'s'[: kinds - 1]} and {steps} step{'s'[: steps - 1]}"


_HISTORY = {"weights": forms.any_array, str: forms.anything}
MIXED_ORDER = question(
    name="q3",
    title="It diverges",
    asks_for=("diagnosis_3", "sum_in_order"),
    probe=probes.probe_mixed_order,
    form={"diagnosis": runs.DIAGNOSIS, "runs": runs.pairs(_HISTORY, RUNS)},
    takes_long=True,
    targets=(
        runs.diagnosed(_orders_part),
        runs.each_run(
            "after every step the weights are identical, and equal one device's to 0.001%",
            runs.identical_and(_by_kind),
            _words,
        ),
    ),
    recognise={
        "own kinds": runs.hangs,
        "nobody's mean": _kinds_by("nobody's"),
        "own mean": runs.in_every_run(_own_mean),
        "absent kinds count": _kinds_by("absent"),
        "all rows alike": _kinds_by("rows"),
        "mean of means": _kinds_by("means", "means of all"),
        "means added up": _kinds_by("added"),
        "one lacks it": _kinds_by("both have", "worker 0 has", "worker 1 has"),
        "a row for none": _kinds_by("a row more"),
        "sums kept": _kinds_by("kept"),
        "kinds of earlier steps": _kinds_by("met"),
        "first letters": _kinds_by("letters"),
        "last mean kept": _kinds_by("last mean"),
        "rows side by side": _kinds_by("side by side"),
        "before the update": runs.in_every_run(_before_the_update),
        "one array": runs.in_every_run(_last_ones),
        "two kinds in a sum": _sums_of_two_kinds,
        "two sums in one": runs.unlike_sums,
        "gradient of 0": _kinds_by("not 0"),
        "who keeps the order": runs.other_task(_orders_part),
        "another cause": runs.other_cause(_orders_part),
        "one step late": runs.said(runs.STEP, lambda step: step == _orders_part()[runs.STEP] + 1),
        "a later step": runs.said(runs.STEP, lambda step: step > _orders_part()[runs.STEP] + 1),
    },
)

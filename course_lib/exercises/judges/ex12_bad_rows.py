"""Exercise 12, q4: bad batches. Needs NumPy."""

import functools

import numpy as np

from course_lib.exercises.given import incidents
from course_lib.exercises.judges import ex12_runs as runs
from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.probes import ex12 as probes
from course_lib.exercises.probes import ex12_cases

question = question_maker.of("12_when_it_hangs")
RUNS = 4


def _lost_each_other():
    """Of the notebook's incident: whose rows are bad, and when."""
    for step, batches in enumerate(zip(*incidents.bad_rows(probes.OWN_SEED)["shards"])):
        for worker, batch in enumerate(batches):
            if not _finite(batch):
                return f"worker {worker}", "data ended", step


def _finite(batch):
    return all(np.isfinite(part).all() for part in batch)


def _settings(seed, number):
    return ex12_cases.bad_batches(seed)[number]


_LEAST_BAD = {"zeros": 3, "rows": 3, "numbers": 3, "good rows": 3, "half": 2, "good workers": 2}


@functools.lru_cache(maxsize=128)
def _skipping(seed, number, rule="right"):
    """(updates, the final weights) of one device; or what a known mistake makes of them.

    rule  "zeros": a bad part counts as a gradient of 0; "rows": bad rows do; "good rows": the mean is over the others;
          "numbers": bad numbers count as 0; "steps": the rate falls with the steps; "stops": at the first bad batch;
          "half": as "zeros", but skipped where both parts are bad; "good workers": skipped there, and in the other
          batches the mean is over good parts; "sums": a sum for the mean; "paired": each worker leaves its own bad
          batches out; "of zeros": a gradient of zeros is skipped, too; "loss": where a loss is not finite;
          "float32": where a gradient is beyond float32, "numbers in float32": where a number is
    """
    settings = _settings(seed, number)
    weights, updates, shards = np.array(settings["first_weights"]), 0, settings["shards"]
    if rule == "paired":
        shards = [filter(_finite, shard) for shard in shards]
    for step, batches in enumerate(zip(*shards)):
        batches = [tuple(map(np.array, batch)) for batch in batches]
        if sum(not _finite(batch) for batch in batches) >= _LEAST_BAD.get(rule, 1):
            if rule == "stops":
                break
            continue
        gradient = _gradient(batches, weights, rule)
        if rule in _SKIPS_MORE and _SKIPS_MORE[rule](gradient, batches, weights):
            continue
        weights = weights - settings["first_rate"] / (1 + (step if rule == "steps" else updates)) * gradient
        updates += 1
    return updates, weights


def _loss_overflows(gradient, batches, weights):
    return not np.isfinite([np.mean((x @ weights - y) ** 2) for x, y in batches]).all()


_SKIPS_MORE = {
    "of zeros": lambda gradient, batches, weights: not gradient.any(),
    "loss": _loss_overflows,
    "float32": lambda gradient, batches, weights: not _finite([np.float32(gradient)]),
    "numbers in float32": lambda gradient, batches, weights: (
        not all(_finite([np.float32(part) for part in batch]) for batch in batches)
    ),
}


def _gradient(batches, weights, rule):
    parts = [_part(*batch, weights, rule) for batch in batches]
    if rule == "good workers":
        parts = [part for part, batch in zip(parts, batches) if _finite(batch)]
    if rule == "good rows":
        rows, good = (
            sum(count(x, y) for x, y in batches) for count in (lambda x, y: len(y), lambda *b: _good(*b).sum())
        )
        return np.mean(parts, axis=0) * rows / good
    return np.mean(parts, axis=0) * (len(parts) if rule == "sums" else 1)


def _good(x, y):
    """Which rows are finite, with their targets."""
    return np.isfinite(x).all(axis=1) & np.isfinite(y)


def _part(x, y, weights, rule):
    """One worker's gradient: the mean over its rows."""
    if rule in ("zeros", "half") and not _finite((x, y)):
        return np.zeros(3)
    if rule == "numbers":
        x, y = (np.where(np.isfinite(part), part, 0) for part in (x, y))
    elif rule != "as it is":
        x, y = np.where(_good(x, y)[:, None], x, 0), np.where(_good(x, y), y, 0)
    return 2 * x.T @ (x @ weights - y) / len(y)


_GOES_ON = {
    "no nan": lambda batches, parts, own: not np.isnan(np.sum(parts, axis=0)).any(),
    "own": lambda batches, parts, own: _finite([parts[own]]),
    "all": lambda batches, parts, own: _finite(parts),
    "always": lambda batches, parts, own: True,
    "one good": lambda batches, parts, own: any(_finite([part]) for part in parts),
    "not one bad": lambda batches, parts, own: sum(not _finite([part]) for part in parts) != 1,
    "targets": lambda batches, parts, own: _finite([y for _, y in batches]),
    "numbers": lambda batches, parts, own: _finite([x for x, _ in batches]),
}


@functools.lru_cache(maxsize=128)
def _each_goes_on(seed, number, rule, sends_zeros=False, counts=None):
    """[(updates, the final weights)] of the workers, where each goes on with the sum by a rule of its own.

    sends_zeros  in place of a gradient that is not finite
    counts       the rule by which it counts an update; that one where there is none
    """
    settings = _settings(seed, number)
    found = [(0, np.array(settings["first_weights"]))] * incidents.WORKERS
    for batches in zip(*settings["shards"]):
        batches = [tuple(map(np.array, batch)) for batch in batches]
        parts = [_part(*batch, weights, "as it is") for batch, (_, weights) in zip(batches, found)]
        mean = np.mean([part if _finite([part]) or not sends_zeros else np.zeros(3) for part in parts], axis=0)
        goes, counted = (
            [_GOES_ON[one](batches, parts, own) for own in range(incidents.WORKERS)] for one in (rule, counts or rule)
        )
        found = [
            (updates + counted[own], weights - settings["first_rate"] / (1 + updates) * mean if goes[own] else weights)
            for own, (updates, weights) in enumerate(found)
        ]
    return found


def _goes_on(*rules, **more):
    """A recogniser: the workers' updates and weights are those of one of these rules, the same one in every run."""

    def by(rule):
        def fits(run, seed, number):
            updates, due = zip(*_each_goes_on(seed, number, rule, **more))
            weights = runs.weights_of(run)
            return _counted(run) == [*updates] and np.allclose(weights, due, rtol=runs.CLOSE, equal_nan=True)

        return runs.in_every_run(fits)

    return _any_of([by(rule) for rule in rules])


def _any_of(recognisers):
    return lambda answers, seed: any(fits(answers, seed) for fits in recognisers)


def _counted(run):
    return [worker["updates"] for worker in run]


def _as_many_updates(run, seed, number):
    wanted, _ = _skipping(seed, number)
    said = " and ".join(map(str, _counted(run)))
    return _counted(run) == [wanted] * 2 or f"they count {said} for {_batches(_settings(seed, number))} batches"


def _batches(settings):
    return len(settings["shards"][0])


def _words(seed, number):
    bad = [not all(map(_finite, batches)) for batches in zip(*_settings(seed, number)["shards"])]
    which = "no batch is" if not any(bad) else "all batches are" if all(bad) else f"{sum(bad)} of {len(bad)} are"
    return f"where {which} bad"


def _by_rule(*rules, somewhere=lambda run, seed, number: True):
    """A recogniser: the weights of every run are those of one of these mistakes."""
    return _any_of(
        [
            runs.in_every_run(
                lambda run, seed, number, rule=rule: runs.close(run, _skipping(seed, number, rule)[1]), somewhere
            )
            for rule in rules
        ]
    )


def _skips(rule):
    """A recogniser: updates and weights are those of one of _SKIPS_MORE in every run."""

    def fits(run, seed, number):
        updates, weights = _skipping(seed, number, rule)
        return _counted(run) == [updates] * 2 and runs.close(run, weights)

    return runs.in_every_run(fits)


def _counts_otherwise(run, seed, number):
    return _as_many_updates(run, seed, number) is not True


_SKIPPED = {"updates": forms.size, "weights": forms.any_array, str: forms.anything}
BAD_ROWS = question(
    name="q4",
    title="It hangs on one bad batch",
    asks_for=("diagnosis_4", "skip_together"),
    probe=probes.probe_bad_rows,
    form={"diagnosis": runs.DIAGNOSIS, "runs": runs.pairs(_SKIPPED, RUNS)},
    takes_long=True,
    targets=(
        runs.diagnosed(_lost_each_other),
        runs.each_run("both workers count one device's updates", _as_many_updates, _words),
        runs.each_run(
            "their weights are identical, and equal one device's to 0.001%",
            runs.identical_and(lambda seed, number: _skipping(seed, number)[1]),
            _words,
        ),
    ),
    recognise={
        "own gradient": runs.hangs,
        "nothing skipped": _goes_on("always"),
        "nan alone": _goes_on("no nan"),
        "bad on one alone": _goes_on("own", "one good"),
        "bad on both": _goes_on("not one bad"),
        "own count": _goes_on("all", counts="own"),
        "halves of two batches": _by_rule("paired"),
        "two sums in one": runs.unlike_sums,
        "rows or targets": _goes_on("targets", "numbers"),
        "zeros instead": _by_rule("zeros", "half", "good workers"),
        "bad rows left out": _by_rule("rows", "good rows"),
        "bad numbers replaced": _by_rule("numbers"),
        "skipped steps counted": _by_rule("steps"),
        "sum for the mean": _by_rule("sums"),
        "stops for good": _by_rule("stops"),
        "one goes on": _goes_on("own", sends_zeros=True),
        "gradient of 0": _skips("of zeros"),
        "loss beyond float64": _skips("loss"),
        "sums in float32": _any_of([_skips("float32"), _skips("numbers in float32")]),
        "another count": _by_rule("right", somewhere=_counts_otherwise),
        "where it ended": runs.said(runs.STEP, lambda step: step == _batches(incidents.bad_rows(probes.OWN_SEED)) - 1),
        "who waits": runs.other_task(_lost_each_other),
        "another cause": runs.other_cause(_lost_each_other),
    },
)

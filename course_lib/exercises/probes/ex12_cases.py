"""The incidents that a check of exercise 12 runs, several for each question. Needs NumPy.

What a question's text leaves free is drawn for each of them, and at its ends. The first of each list is of the
notebook's kind, in which every known mistake shows.
"""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from course_lib.exercises.given import incidents
from course_lib.exercises.given.seen_tasks import SeenTask

STEPS = 11, 13  # until the threshold: prime, so that whoever looks at the loss in every kth step alone is late
MORE_STEPS = 50
FAR = incidents.CLEAR  # no loss is nearer to the threshold than this factor
HUGE = 1e200  # its square is not finite
BAD = [(part, value) for part in range(2) for value in (np.nan, np.inf, -np.inf)]  # in rows, in targets
NAMES = ["".join(letters) for letters in itertools.permutations("ants")]  # the same letters, first ones and lengths
NAMES += [name.capitalize() for name in NAMES]


JOBS = 250
BETWEEN = " ", ",", ", ", "\n", "\t", "|", "/", "->", ";", "", "', '"  # names, in a text of several
CALLS = "train_step", "step", "save", "evaluate", "train_step_2"


@functools.lru_cache(maxsize=32)
def more_jobs(seed: int) -> list[list[SeenTask]]:
    """q1: jobs in which what all others do is drawn, and then what differs in one. A rule fits each.

    The last have lists of hundreds and thousands of calls, and names that hold what may stand between names.
    """
    rng, jobs = np.random.default_rng([seed, 1]), []
    while len(jobs) < JOBS:
        calls = rng.choice(CALLS, int(rng.choice([0, 1, 2, 3, 8, 80]))).tolist()
        others, odd = (_seen(rng, own) for own in (calls, _other_calls(rng, calls)))
        if rng.integers(2):  # they differ in one respect alone
            name = str(rng.choice(["state", "joined", "calls", "inside", "at"]))
            odd = replace(others, **{name: getattr(odd, name)})
        if odd != others and _can_be(odd) and _can_be(others) and _has_a_cause(odd, others):
            jobs.append(_job(rng, others, odd))
    return jobs + [_job(rng, *pair) for pair in (*_long_lists(rng), *_odd_names(rng))]


def _job(rng, others, odd) -> list[SeenTask]:
    tasks = int(rng.integers(3, 6))
    names = [f"worker {place}" for place in rng.permutation(9)[:tasks]]
    place = int(rng.integers(tasks))
    return [replace(odd if k == place else others, name=name) for k, name in enumerate(names)]


def _long_lists(rng) -> Iterator[tuple[SeenTask, SeenTask]]:
    """What all others do and what one does: another call beyond the 100th place or the 1,000th, or fewer calls."""
    for first, last in ((110, 900), (1010, 1900)):
        calls = ["save", *rng.choice(CALLS[:2], last + 50).tolist()]
        place, others = int(rng.integers(first, last)), _inside(calls)
        yield others, _inside([*calls[:place], "save", *calls[place + 1 :]])  # another order
        yield others, _inside([*calls[:place], "export", *calls[place + 1 :]])  # alone
        yield others, SeenTask("", "running", True, tuple(calls[:place]), False, "input")


def _odd_names(rng) -> Iterator[tuple[SeenTask, SeenTask]]:
    """Of which a text that holds all names would look the same, or begin as the other; and empty names."""
    for between in BETWEEN:
        both, one, other = f"a{between}b", "a", "b"
        yield _inside([both, one, other]), _inside([one, other])
        yield _inside([one, other, both]), _inside([both, one, other])
    yield _inside(["", "step"]), _inside(["step", ""])
    yield _inside(["step"]), _inside(["step", ""])
    yield _inside(["step", "step "]), _inside(["step ", "step"])
    yield _inside(["step", ""]), SeenTask("", "running", True, ("step",), False, "own code")


def _inside(calls) -> SeenTask:
    return SeenTask("", "running", True, tuple(calls), True, "")


def _other_calls(rng, calls) -> list[str]:
    place = int(rng.integers(len(calls) + 1))
    more = [str(rng.choice([*CALLS, "export"]))]
    swapped = [*calls[:place], *calls[place : place + 2][::-1], *calls[place + 2 :]]
    ways = (calls, calls[:place], [*calls, *more], [*calls[:place], *more, *calls[place:]], more, swapped)
    return ways[int(rng.integers(len(ways)))]


def _seen(rng, calls) -> SeenTask:
    state = str(rng.choice(["running", "running", "returned", "ended"]))
    joined = bool(calls) or bool(rng.integers(2))
    inside = bool(calls) and state != "returned" and bool(rng.integers(2))
    at = "" if inside or state != "running" else str(rng.choice(["strategy", "input", "own code"]))
    return SeenTask("", state, joined, tuple(calls), inside, at)


def _can_be(task) -> bool:
    """Whether SeenTask's docstring allows it."""
    if not task.joined and (task.calls or task.at == "strategy") or task.inside and not task.calls:
        return False
    if task.state != "running":
        return not task.at and not (task.inside and task.state == "returned")
    return (task.at == "") == task.inside and not (task.at == "strategy" and task.calls)


def _has_a_cause(odd, others) -> bool:
    own_call, other_place = {*odd.calls} - {*others.calls}, any(a != b for a, b in zip(odd.calls, others.calls))
    return odd.state != "running" or not odd.joined or bool(own_call) or other_place or odd.at in ("input", "own code")


@functools.lru_cache(maxsize=32)
def early_stops(seed: int) -> list[dict[str, object]]:
    """q2: one is through after a single update, and one after all but one of its many steps.

    The last is the first, where more steps may be taken.
    """
    rng = np.random.default_rng([seed, 2])
    one, small, large = 1, int(rng.integers(18, 30)), int(rng.integers(31, 50))
    steps = int(rng.integers(80, 120))
    early = {"rows": (one, small), "steps": 1, "most_steps": int(rng.integers(5, 50)), "scale": 1000}
    late = {"rows": (small, large), "steps": steps, "most_steps": steps + 1, "scale": 0.001}
    first = incidents.early_stop(seed, STEPS)
    longer = {**first, "most_steps": first["most_steps"] + MORE_STEPS}
    return [first, _stopping(rng, **early), _stopping(rng, **late), longer]


def _stopping(rng, rows, steps, most_steps, scale) -> dict[str, object]:
    """scale  of targets and weights; the losses are of its square"""
    while True:
        goal, sizes = rng.normal(size=3) * scale, rng.permutation(rows)
        xs = [rng.normal(size=(size, 3)) for size in sizes]
        shards = [(x, x @ goal + 0.01 * scale * rng.normal(size=len(x))) for x in xs]
        weights, x, y = goal + rng.normal(size=3) * 3 * scale, *map(np.concatenate, zip(*shards))
        settings = {"first_weights": weights.tolist(), "learning_rate": float(rng.uniform(0.015, 0.025))}
        losses = []
        for _ in range(steps + 1):
            errors = x @ weights - y
            losses.append(np.mean(errors**2))
            weights = weights - settings["learning_rate"] * 2 * x.T @ errors / len(y)
        threshold = float(np.sqrt(losses[-1] * losses[-2]))
        if losses[-1] * FAR < threshold:
            plain = [[part.tolist() for part in shard] for shard in shards]
            return {"shards": plain, **settings, "threshold": threshold, "most_steps": most_steps}


@functools.lru_cache(maxsize=32)
def mixed_orders(seed: int) -> list[dict[str, object]]:
    """q3: one has many kinds whose rows are not side by side, and one a single kind and step, on one worker alone."""
    rng = np.random.default_rng([seed, 3])
    many = _mixed(rng, rng.permutation(NAMES)[: int(rng.integers(27, 30))].tolist(), int(rng.integers(9, 12)))
    single = _mixed(rng, ["kind 1"], 1)
    single["shards"][int(rng.integers(incidents.WORKERS))] = [[]]
    return [incidents.mixed_order(seed, gaps=True), many, single]


def _mixed(rng, kinds, steps) -> dict[str, object]:
    """Each worker has some of the kinds in a step, and 1 row to 9 of each, in any order."""
    goals = dict(zip(kinds, rng.normal(size=(len(kinds), 3)) * 2))

    def batch():
        present = rng.permutation(kinds)[: max(1, len(kinds) // 3)]
        rows = rng.permutation([kind for kind in present for _ in range(min(9, rng.geometric(0.3)))]).tolist()
        x = rng.normal(size=(len(rows), 3))
        return [(kind, row.tolist(), float(row @ goals[kind])) for kind, row in zip(rows, x)]

    return {
        "shards": [[batch() for _ in range(steps)] for _ in range(incidents.WORKERS)],
        "kinds": kinds,
        "first_weights": rng.normal(size=3).tolist(),
        "learning_rate": float(rng.uniform(0.05, 0.1)),
    }


@functools.lru_cache(maxsize=32)
def bad_batches(seed: int) -> list[dict[str, object]]:
    """q4: in one the first batch, the last and most are bad, in one none is, and in one all are.

    In the first of these the numbers are large, batches have other numbers of rows, and rows of zeros make a gradient
    of zeros: of both workers in one step, of one in another, and beside a huge target in a third. Where none is bad,
    no number is one of float32.
    """
    rng = np.random.default_rng([seed, 4])
    steps = int(rng.integers(18, 23))
    between = rng.permutation(np.arange(1, steps - 1))
    worst = _batches(rng, rng.integers(2, 10, size=steps), scale=1e9)
    _spoil(rng, worst, [0, steps - 1, *between[:8]])
    zeros, one, huge = between[8:11]
    own = int(rng.integers(incidents.WORKERS))
    for worker, batches in enumerate(worst["shards"]):
        batches[zeros][0][:] = 0
        if worker == own:
            batches[one][0][:] = 0
            batches[huge][0][0], batches[huge][1][0] = 0, HUGE
    none = _batches(rng, [1, 1, 5], scale=1e50)
    all_bad = _batches(rng, [4, 1, 3], scale=1)
    _spoil(rng, all_bad, range(3))
    return [incidents.bad_rows(seed, several=True), *map(_plain, (worst, none, all_bad))]


def _batches(rng, rows, scale) -> dict[str, object]:
    goal = rng.normal(size=3)
    xs = [[rng.normal(size=(size, 3)) * scale for size in rows] for _ in range(incidents.WORKERS)]
    shards = [[(x, x @ goal + 0.1 * scale * rng.normal(size=len(x))) for x in own] for own in xs]
    rate = float(rng.uniform(0.1, 0.2)) / scale**2
    return {"shards": shards, "first_weights": rng.normal(size=3), "first_rate": rate}


def _spoil(rng, settings, steps) -> None:
    """Put a bad number into the rows or the targets of one worker or both, in each of these steps.

    Of many steps some have each kind of bad number once, on one worker alone.
    """
    kinds = rng.permutation(len(BAD)).tolist() if len(steps) > len(BAD) else []
    for place, step in enumerate(rng.permutation(steps)):
        alone = place < len(kinds)
        for worker in {*rng.integers(incidents.WORKERS, size=1 if alone else 2).tolist()}:
            number, value = BAD[kinds[place] if alone else rng.integers(len(BAD))]
            part = settings["shards"][worker][step][number]
            part.flat[rng.integers(part.size)] = value


def _plain(settings) -> dict[str, object]:
    shards = [[(x.tolist(), y.tolist()) for x, y in batches] for batches in settings["shards"]]
    return {**settings, "shards": shards, "first_weights": settings["first_weights"].tolist()}


@functools.lru_cache(maxsize=32)
def programs_schedules(seed: int) -> list[dict[str, object]]:
    """q5: sizes far apart, then sizes side by side with a new rate in each step, then one step alone."""
    rng = np.random.default_rng([seed, 5])
    apart = [int(rng.integers(*ends)) for ends in ((4, 8), (66, 72), (130, 136))]  # no multiples of 8 in the middle
    apart = [size + (size % 8 == 0) for size in rng.permutation(apart)]
    near = int(rng.integers(9, 30)) + rng.permutation(3)
    many = int(rng.integers(19, 25))
    every = [*range(3), *rng.integers(3, size=many - 3)]
    few = (rng.choice(np.arange(20, 150), 5, replace=False) / 1000).tolist()
    wide = np.append(np.nextafter(few[0], [0, 1]), 10.0 ** rng.uniform(-6, -1, size=many - 2))
    single = [int(rng.integers(1, 3))]
    return [
        _scheduled(rng, rng.permutation([*apart] * 4 + apart[:2]), [*few, *rng.choice(few, 9)]),
        _scheduled(rng, near[rng.permutation(every)], rng.permutation(wide)),
        _scheduled(rng, single, few[:1]),
    ]


def _scheduled(rng, sizes, rates) -> dict[str, object]:
    goal = rng.normal(size=3)

    def batch(size):
        x = rng.normal(size=(int(size), 3))
        return x.tolist(), (x @ goal + 0.1 * rng.normal(size=int(size))).tolist()

    shards = [[batch(size) for size in sizes] for _ in range(incidents.WORKERS)]
    return {"shards": shards, "first_weights": rng.normal(size=3).tolist(), "rates": [float(rate) for rate in rates]}

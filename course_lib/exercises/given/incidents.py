"""The incidents of exercise 12: arguments of small programs on two workers, drawn by a seed. Needs NumPy.

`shards` has one part for each worker, so that each reads its own.
"""

import numpy as np

WORKERS = 2
KINDS = ("ant", "bee", "cat", "dog")
MORE_KINDS = (*KINDS, "elk", "fox", "gnu", "hen")
CLEAR = 1.001  # no loss is nearer to the threshold than this factor, so that rounding decides nothing


def early_stop(seed: int, steps: tuple[int, ...] = ()) -> dict[str, object]:
    """q2: (rows (n, 3), targets (n,)) for each worker, n not alike, and a threshold that their losses pass apart.

    The one's own loss falls below it first, then the loss of all rows, then the other's own. The mean of the two
    own losses does so at another step than each of these.

    steps  the numbers of them after which the loss of all rows may fall below it; any where there are none
    """
    rng = np.random.default_rng(seed)
    while True:
        goal, noises, sizes = rng.normal(size=3), rng.permutation([0.1, 0.9]), rng.permutation([6, 11])
        shards = []
        for noise, size in zip(noises, sizes):
            x = rng.normal(size=(size, 3))
            shards.append((x, x @ goal + noise * rng.normal(size=size)))
        settings = {"first_weights": rng.normal(size=3) * 2, "learning_rate": float(rng.uniform(0.02, 0.04))}
        curves = _losses(shards, **settings, steps=60)
        both = np.concatenate([curves, [curves.mean(axis=0), np.average(curves, axis=0, weights=sizes)]])
        threshold = float(both[-1][rng.integers(8, 16)] * rng.uniform(0.98, 0.998))
        first, off = (both < threshold).argmax(axis=1), np.abs(np.log(both / threshold)).min()
        (early, late), mean, wanted = sorted(first[:WORKERS]), *first[WORKERS:]
        apart = min(wanted - early, late - wanted, abs(mean - wanted)) > 1 and mean not in (early, late)
        if early > 3 and apart and off > np.log(CLEAR) and (not steps or wanted in steps):
            return {"shards": _plain(shards), **_plain(settings), "threshold": threshold, "most_steps": 60}


def _losses(shards, first_weights, learning_rate, steps) -> np.ndarray:
    """Each worker's own loss before each step of descent on all rows, (workers, steps)."""
    weights, curves = first_weights, []
    rows = sum(len(y) for _, y in shards)
    for _ in range(steps):
        errors = [x @ weights - y for x, y in shards]
        curves.append([np.mean(error**2) for error in errors])
        weights = weights - learning_rate * 2 * sum(x.T @ error for (x, _), error in zip(shards, errors)) / rows
    return np.transpose(curves)


def mixed_order(seed: int, gaps: bool = False) -> dict[str, object]:
    """q3: for each worker and step rows of (kind, 3 numbers, target), and the kinds.

    gaps  False: every worker has every kind, in the order of `kinds`, but for one worker from some step on.
          True: other kinds, orders of all sorts, kinds that one worker lacks in a step, or in all, or both lack; a
          step in which one has no row; and one in which the rows of a kind are 0, as is their gradient
    """
    rng, steps = np.random.default_rng(seed), 8
    kinds = [str(kind) for kind in (rng.permutation(MORE_KINDS)[:6] if gaps else rng.permutation(KINDS))]
    goals = dict(zip(kinds, rng.normal(size=(len(kinds), 3)) * 2))
    odd, since = int(rng.integers(WORKERS)), int(rng.integers(2, 5))
    lacking, zeros = _lacking(rng, steps, len(kinds)) if gaps else ({}, None)

    def batch(worker, step):
        order = kinds
        if gaps or worker == odd and step >= since:
            shift = int(rng.integers(1, len(kinds)))  # another order than that of `kinds`
            order = kinds[shift:] + kinds[:shift]
        present = [kind for kind in order if kinds.index(kind) not in lacking.get((worker, step), ())]
        rows = [kind for kind in present for _ in range(rng.integers(1, 4))]
        x = rng.normal(size=(len(rows), 3))
        if zeros and step == zeros[0]:
            x[[kind == kinds[zeros[1]] for kind in rows]] = 0
        return [(kind, row.tolist(), float(row @ goals[kind])) for kind, row in zip(rows, x)]

    shards = [[batch(worker, step) for step in range(steps)] for worker in range(WORKERS)]
    return {
        "shards": shards,
        "kinds": kinds,
        "first_weights": rng.normal(size=3).tolist(),
        "learning_rate": float(rng.uniform(0.05, 0.1)),
    }


def _lacking(rng, steps, kinds) -> tuple[dict[tuple[int, int], set[int]], tuple[int, int]]:
    """(worker, step) to the places of kinds that it lacks there, and the (step, kind's place) of rows of zeros.

    Three times one worker lacks a kind, once both, and once it has no row; there is one that the other never has.
    """
    one = int(rng.integers(WORKERS))
    chosen = rng.permutation(steps)
    lacking = {(one, int(step)): {int(rng.integers(kinds))} for step in chosen[:3]}
    lacking[one, int(chosen[3])] = set(range(kinds))
    nobodys, never = {int(rng.integers(kinds))}, int(rng.integers(kinds))
    lacking |= {(worker, int(chosen[4])): nobodys for worker in range(WORKERS)}
    for step in range(steps):
        lacking[1 - one, step] = lacking.get((1 - one, step), set()) | {never}
    return lacking, (int(chosen[5]), int(rng.integers(kinds)))


def bad_rows(seed: int, several: bool = False) -> dict[str, object]:
    """q4: for each worker and step (rows (6, 3), targets (6,)); in some a number is not finite.

    several  False: one worker has one bad batch. True: one has a nan, and later -inf; after both, the other has a
             bad target, and in two steps both are bad, in the first by inf
    """
    rng, steps, rows = np.random.default_rng(seed), 10, 6
    goal = rng.normal(size=3)
    x = rng.normal(size=(WORKERS, steps, rows, 3))
    y = x @ goal + 0.1 * rng.normal(size=(WORKERS, steps, rows))
    one, chosen = int(rng.integers(WORKERS)), rng.permutation(np.arange(2, steps - 1))
    places = [(one, chosen[0])]
    if several:
        early, late = np.split(np.sort(chosen[:5]), [2])
        target, *both = rng.permutation(late)
        places = [(one, early[0]), (one, early[1]), (1 - one, target)]
        places += [(worker, step) for step in both for worker in range(WORKERS)]
    fixed = {0: np.nan, 1: -np.inf, 3: np.inf, 4: np.inf} if several else {}
    for number, place in enumerate(places):
        row, column, value = rng.integers(rows), rng.integers(3), rng.choice([np.nan, np.inf])
        bad = y[place] if number == 2 else x[place][:, column]
        bad[row] = fixed.get(number, value)
    shards = [[(x[w, step].tolist(), y[w, step].tolist()) for step in range(steps)] for w in range(WORKERS)]
    return {"shards": shards, "first_weights": rng.normal(size=3).tolist(), "first_rate": float(rng.uniform(0.1, 0.2))}


def schedule(seed: int, largest: tuple[int, int] = (9, 12)) -> dict[str, object]:
    """q5: for each worker and step (rows (n, 3), targets (n,)), and each step's learning rate.

    n is alike on both workers. Rates come back, and so do sizes and pairs of them.

    largest  the largest n is from this number on, and below that one
    """
    rng, steps = np.random.default_rng(seed), 14
    choices = rng.choice(np.arange(20, 200), 5, replace=False) / 1000
    three = [*rng.choice(np.arange(3, 9), 2, replace=False), rng.integers(*largest)]
    while True:
        rates, sizes = rng.choice(choices, steps), rng.choice(three, steps)
        pairs = set(zip(rates.tolist(), sizes.tolist()))
        if len(set(rates)) == 5 and len(set(sizes)) == 3 and len(pairs) in (10, 11, 12):
            break
    goal = rng.normal(size=3)

    def batch(size):
        x = rng.normal(size=(size, 3))
        return x.tolist(), (x @ goal + 0.1 * rng.normal(size=size)).tolist()

    shards = [[batch(int(size)) for size in sizes] for _ in range(WORKERS)]
    return {"shards": shards, "first_weights": rng.normal(size=3).tolist(), "rates": rates.tolist()}


def _plain(value: object) -> object:
    """Arrays as lists, at any depth."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value.tolist() if isinstance(value, np.ndarray) else value

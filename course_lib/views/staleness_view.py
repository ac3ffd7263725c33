"""One weight, moved by gradients of an older weight. Needs matplotlib when it is shown; used in notebooks/04."""

import math

from course_lib.views.controls import LogRange, Range
from course_lib.views.explorer import View, explorer

MOST_ROWS = 10
FLAT = 1e-9  # a rate so near to a border counts as on it


def descend(staleness: int, rate: float, updates: int) -> list[float]:
    """w before the first update, 1, and after each of them: w becomes w - rate * (w of `staleness` updates ago).

    rate     learning rate times curvature
    Returns  updates + 1 numbers. What is older than the start is the start, as for
             `staleness` + 1 equal workers that begin at once
    """
    weights = [1.0]
    for update in range(updates):
        weights.append(weights[-1] - rate * weights[max(0, update - staleness)])
    return weights


def limit(staleness: int) -> float:
    """The rate above which w runs away (lesson 04): there z^(s + 1) - z^s + rate has a root of length 1."""
    return 2 * math.sin(math.pi / (2 * (2 * staleness + 1)))


def smooth(staleness: int) -> float:
    """The largest rate at which w never changes its sign: there that polynomial has a double root."""
    return staleness**staleness / (staleness + 1) ** (staleness + 1)


def verdict(staleness: int, rate: float) -> str:
    if rate > limit(staleness) + FLAT:
        return "diverges"
    if rate > limit(staleness) - FLAT:
        return "neither converges nor diverges"
    return "converges, oscillating" if rate > smooth(staleness) + FLAT else "converges without oscillating"


@explorer(
    staleness=Range("staleness", 0, 8, ahead=(0, 1, 2, 3, 7)),
    rate=LogRange("learning rate x curvature", 0.02, 2.5, (0.1, 0.25, 0.5, 0.9, 1.0, 1.8), step=0.02),
    updates=Range("updates so far", 1, 40, plays=True, ahead=(1, 2, 4, 8, 15, 30)),
)
def staleness(staleness: int = 1, rate: float = 0.9, updates: int = 30) -> View:
    """The weight after each update, beside the same rate without staleness.

    staleness  updates that were applied since the weight was read; W equal workers have W - 1
    rate       learning rate times curvature
    updates    how many to play, 1 to 40
    """
    from course_lib import show

    stale, fresh = descend(staleness, rate, updates), descend(0, rate, updates)
    counts = range(updates + 1)
    caption = (
        f"Staleness {staleness}, learning rate x curvature {rate:.3g}: {verdict(staleness, rate)}. It oscillates above "
        f"{smooth(staleness):.3g} and diverges above {limit(staleness):.3g}; without staleness those are 1 and 2, "
        f"and this rate {verdict(0, rate)}. "
        f"After {updates} updates w is {stale[-1]:.3g}, and {fresh[-1]:.3g} without staleness."
    )
    shown = sorted({round(row * updates / (MOST_ROWS - 1)) for row in range(MOST_ROWS)})
    rows = [[f"{count}", f"{stale[count]:.4g}", f"{fresh[count]:.4g}"] for count in shown]
    drawn = {f"staleness {staleness}": (counts, stale), "no staleness": (counts, fresh)}
    figure = show.lines(drawn, "updates", "w, whose minimum is at 0", caption)
    return View(figure, ("updates", f"w, staleness {staleness}", "w, no staleness"), rows)

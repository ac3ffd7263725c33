"""Which layers go to which stage: as equal as whole layers allow. Standard library only; taught in notebooks/06."""

from collections.abc import Sequence
from itertools import accumulate

from course_lib.errors import CourseError


def balance(costs: Sequence[float], stages: int) -> list[range]:
    """Cut a row of layers into stages, so that the stage with the most cost has as little as possible.

    costs    one per layer, 0 or more, in any unit, such as seconds forward and backward
    Returns  one range of layer numbers per stage, none empty
    Raises   CourseError for more stages than layers, or fewer than one

    Exact: the best cut of the first n layers into k stages from the best cuts into k - 1.
    """
    if not 1 <= stages <= len(costs):
        raise CourseError(
            f"{len(costs)} layers can't make {stages} stages with a layer in each: "
            f"use 1 to {len(costs)} stages, or cut the model into smaller layers."
        )
    sums = [0, *accumulate(costs)]
    best = {0: (0.0, [])}  # layers so far: largest stage, and where the stages end
    for stage in range(1, stages + 1):
        most = len(costs) - (stages - stage)  # layers: each later stage gets one or more
        best = {
            end: min(
                (max(largest, sums[end] - sums[start]), [*ends, end])
                for start, (largest, ends) in best.items()
                if start < end
            )
            for end in range(stage, most + 1)
        }
    _, ends = best[len(costs)]
    return [range(start, end) for start, end in zip([0, *ends], ends)]

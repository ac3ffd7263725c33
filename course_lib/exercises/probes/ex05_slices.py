"""Probe of exercise 05, q5: chips worth having. Needs NumPy. The inputs are functions of the seed."""

import numpy as np

from course_lib import tpu
from course_lib.exercises.probes.cases import shuffled


def trainings(seed: int) -> list[dict[str, object]]:
    """q5's cases: a model, a chip's figures, slices in no order, and the largest global batch that still learns.

    In the first tiny ones the rows are whole, whatever is divided first, and a global batch is as large as is allowed.
    No case hangs on a rounding error of float64.
    """
    rng = np.random.default_rng(seed)
    tiny = {"parameters": 8, "row_flops": 12, "gradient_bytes": 4, "flops_per_second": 4, "sent_per_second": 4}
    cases = [tiny | {"slices": [4, 1, 8, 2], "largest_batch": 24}, tiny | {"slices": [1], "largest_batch": 9}]
    # On four chips 5.5 rows hide the sending: 22 in all, and 24 once they are whole.
    cases.append(tiny | {"row_flops": 13, "slices": [2, 4, 1], "largest_batch": 23})
    cases.append(tiny | {"row_flops": 14, "slices": [2, 1], "largest_batch": 8})  # 3.4 rows: 3 do not hide it
    cases += [tiny | one for one in _near_whole(rng)]
    for name, gradient_bytes, room in (("v5e", 4, 0.7), ("v5p", 2, 0.4), ("v6e", 4, 1.6), ("v4", 2, 30)):
        chip, parameters = tpu.CHIPS[name], int(rng.integers(2e8, 9e8))
        row_flops = 6 * parameters * int(rng.integers(8, 60))
        figures = {"flops_per_second": chip.flops_per_second, "sent_per_second": chip.sent_per_second}
        # The first three allow some of the slices, the fourth all of them.
        hidden = 3 * parameters * gradient_bytes / chip.sent_per_second * chip.flops_per_second / row_flops
        cases.append(
            {
                "parameters": parameters,
                "row_flops": row_flops,
                "gradient_bytes": gradient_bytes,
                **figures,
                "slices": shuffled(rng, [1, 4, 8, 16, 32, 64, 256]),
                "largest_batch": int(40 * room * hidden * rng.uniform(0.8, 1.2)) + 1,
            }
        )
    return [*cases, *_far_links(rng)]


def _near_whole(rng) -> list[dict[str, object]]:
    """Two chips whose sending takes the time of as many rows as `flops_per_second` says: of nearly a whole number."""
    few, many = int(rng.integers(6, 30)), int(rng.integers(30_000, 60_000))
    return [
        {"flops_per_second": few + 1e-6, "slices": [1, 2], "largest_batch": 2 * few + 2},
        {"flops_per_second": few - 1e-6, "slices": [2, 1], "largest_batch": 2 * few},
        {"flops_per_second": many + 4e-4, "slices": [2, 1], "largest_batch": 2 * many + 3},  # whole in float32
    ]


def _far_links(rng) -> list[dict[str, object]]:
    """Links so slow that more than a million rows hide the sending, so fast that one row always does; and a model of
    a million million parameters on very many chips.
    """
    parameters, speed = int(rng.integers(2e8, 9e8)), tpu.CHIPS["v5e"].flops_per_second
    rows = int(rng.integers(1_060_000, 1_200_000)) + rng.uniform(0.3, 0.7)  # on two chips
    model = {"parameters": parameters, "row_flops": 6.0 * parameters, "gradient_bytes": 4, "flops_per_second": speed}
    return [
        model | {"sent_per_second": speed / rows, "slices": [2, 4096, 1], "largest_batch": int(7000 * rows)},
        model | {"sent_per_second": speed / rng.uniform(0.002, 0.009), "slices": [64, 1, 256], "largest_batch": 256},
        {
            **model,
            "parameters": 5_000 * parameters,
            "row_flops": 6.0 * 5_000 * parameters,
            "sent_per_second": speed / (100 + rng.uniform(0.2, 0.4)),  # 201 rows on very many chips
            "slices": [8, 2**17, 1],
            "largest_batch": 202 * 2**17,
        },
    ]


def probe_slices(names, seed):
    """The learner's slice for each case."""
    return {"slices": [dict(names["best_slice"](**case)) for case in trainings(seed)]}

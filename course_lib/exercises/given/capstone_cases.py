"""The cases of exercise 11: digits with other class names, times of a benchmark, loops. Needs NumPy.

All are functions of a seed; learners try a few of them, and the check draws others.
"""

import numpy as np

from course_lib import data

PARTS = ("input", "compute", "communication")  # of a step
REPEATS, WARMUP = 12, 3  # steps timed, and how many of them trace and compile


def digits_case(seed: int) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """The digits' training and test splits, with the classes renamed: a fresh permutation of 0 to 9."""
    names = np.random.default_rng(seed).permutation(10)
    return tuple(
        (images, names[labels].astype("int32"))
        for images, labels in (data.arrays("digits", s) for s in ("train", "test"))
    )


def measured(seed: int, counts: tuple[int, ...] = (1, 2, 4, 8)) -> dict[tuple[int, int], list[float]]:
    """Times of a benchmark: (replicas, global batch) to seconds of each step; the first are slow, others disturbed.

    counts  of replicas; the last one is the largest
    """
    rng = np.random.default_rng(seed)
    local, compute, sums = int(rng.choice([32, 64, 128])), rng.uniform(0.8e-3, 2e-3), rng.uniform(0.01, 0.04)
    times = {}
    for replicas in counts:
        for global_batch in (counts[-1] * local, replicas * local):
            seconds = 0.02 + compute * global_batch / replicas + sums * np.log2(replicas)
            steps = seconds * rng.uniform(0.99, 1.01, REPEATS)
            steps[:WARMUP] *= rng.uniform(5, 20, WARMUP)
            disturbed = rng.choice(np.arange(WARMUP, REPEATS), 2, replace=False)
            steps[disturbed] *= [rng.uniform(3, 6), rng.uniform(0.3, 0.6)]
            times[replicas, global_batch] = steps.tolist()
    return times


def loops(seed: int) -> list[dict[str, float]]:
    """Parts of training loops, in seconds: each part is worth most in two loops; in two the longest part is hidden."""
    rng = np.random.default_rng(seed)
    shapes = [(9, 4, 2), (3, 6, 2), (3, 2, 6), (5, 4, 3), (6, 3, 5), (8, 5, 1)]
    unit = rng.uniform(0.005, 0.02)
    return [
        {name: float(unit * part * rng.uniform(0.98, 1.02)) for name, part in zip(PARTS, shapes[place])}
        for place in rng.permutation(len(shapes))
    ]

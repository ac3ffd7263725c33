"""Probe of exercise 09's q5: a fair comparison of two precisions, and its verdict.

Needs NumPy. The inputs are functions of the seed.
"""

import itertools
import math

import numpy as np

from course_lib.exercises.probes.cases import shuffled
from course_lib.exercises.probes.ex09 import POLICIES

TOLERANCE = 2**-7  # of the verdicts; a power of two, so that rounding decides no case
CONTROL, HELD_OUT = "float32", "held out"
DISTURBED = {0: 20.0, 1: 25.0, 2: 30.0, 3: 0.2}  # a mixed trial's steps after its warm-up: how many times as long


def comparison(seed: int) -> dict[str, object]:
    """q5's arguments without the trials, and how much time the mixed steps really take."""
    rng = np.random.default_rng(seed)
    policy = str(rng.choice(POLICIES))
    return {
        "arguments": {
            "mixed": policy,
            "seeds": [int(number) for number in rng.choice(1000, 5, replace=False)],
            "warmup": int(rng.integers(17, 20)),  # more than the repeats, so that a median shows them
            "repeats": 15,
        },
        "ratio": float(rng.uniform(0.5, 0.75)),
    }


def held_out_difference(seed: int, trial_seed: int, updates: int) -> float:
    """By how much the mixed trial's error on held-out examples exceeds float32's."""
    mixed = comparison(seed)["arguments"]["mixed"]
    return _error(seed, mixed, trial_seed, updates, HELD_OUT) - _error(seed, CONTROL, trial_seed, updates, HELD_OUT)


def _error(seed, policy, trial_seed, updates, split) -> float:
    """Falls with the updates; differs by seeds far more than by policy; mixed looks better where it was trained."""
    unlucky = trial_seed == comparison(seed)["arguments"]["seeds"][0]
    by_seed = np.random.default_rng([seed, trial_seed]).uniform(0.1, 0.3) + (0.25 if unlucky else 0.0)
    noise = np.random.default_rng([seed, trial_seed, policy == CONTROL]).uniform(0, 0.01)
    mixed = 0.0 if policy == CONTROL else 0.02 if split == HELD_OUT else -0.02
    return float(by_seed * (0.5 if split != HELD_OUT else 1) + noise + mixed + 0.5 * math.exp(-updates / 20))


class PrecisionBench:
    """A machine with its own clock that gets slower with every step, and the trials that run on it.

    The first steps of a trial are slow, and a few of mixed's later ones are far too slow or too fast.

    ratio  of the times; comparison's own without it
    """

    SLOWER = 1.01  # by so much after every step

    def __init__(self, seed: int, ratio: float | None = None):
        self._seed, self._case = seed, comparison(seed)
        self._ratio = ratio or self._case["ratio"]
        self._now, self._steps = 100.0, 0
        self.made: list[list[object]] = []  # [policy, trial's seed]
        self.asked: list[list[object]] = []  # [policy, trial's seed, updates, split]
        self.timed: list[str] = []  # the policies of all steps after the warm-up, in order

    def clock(self) -> float:
        return self._now

    def new_trial(self, policy: str, seed: int) -> "PrecisionTrial":
        self.made.append([policy, int(seed)])
        return PrecisionTrial(self, policy, int(seed))

    def run(self, policy: str, trial_seed: int, number: int) -> None:
        """Take one step, the trial's `number`-th from 0."""
        mixed = policy != CONTROL
        rng = np.random.default_rng([self._seed, trial_seed, number, mixed])
        late = number - self._case["arguments"]["warmup"]
        if late < 0:
            seconds = (80.0 if mixed else 10.0) * (5 if number == 0 else 1)
        elif mixed:
            seconds = self._ratio * DISTURBED.get(late, 1.0)
        else:
            seconds = 1.0
        self._now += seconds * rng.uniform(0.995, 1.005) * self.SLOWER**self._steps
        self._steps += 1
        if late >= 0:
            self.timed.append(policy)

    def error(self, policy: str, trial_seed: int, updates: int, split: str) -> float:
        self.asked.append([policy, trial_seed, updates, split])
        return _error(self._seed, policy, trial_seed, updates, split)


class PrecisionTrial:
    """One training run on the bench: what q5's `new_trial` gives."""

    def __init__(self, bench: PrecisionBench, policy: str, seed: int):
        self._bench, self._who, self._updates = bench, (policy, seed), 0

    def step(self) -> None:
        self._bench.run(*self._who, self._updates)
        self._updates += 1

    def error(self, split: str) -> float:
        return self._bench.error(*self._who, self._updates, split)


def verdicts(seed: int) -> list[dict[str, object]]:
    """q5's cases, the verdict that differences allow: small ones, then of a mean and a standard error in tolerances.

    In two of the small ones all differences are the tolerance, on one side of zero or the other; in two the interval
    begins or ends there, with all of it beyond.
    """
    rng = np.random.default_rng(seed)
    cases = [
        (0.1, 0.1, 6, "no difference"),
        (0.5, 0.15, 6, "no difference"),
        (-0.4, 0.1, 7, "no difference"),
        (0.5, 0.4, 6, "undecided"),
        (0.9, 0.4, 6, "undecided"),
        (1.5, 0.4, 6, "undecided"),
        (-1.6, 0.4, 5, "undecided"),
        (0.02, 0.525, 5, "undecided"),
        (0.01, 0.5, 6, "undecided"),  # 1.96 standard errors, or one with n, would say no difference
        (2.0, 0.3, 9, "worse"),
        (-2.0, 0.3, 9, "better"),
        (1.5, 0.2, 8, "worse"),
        (-1.5, 0.2, 8, "better"),
        (0.5, 0.24, 5, "no difference"),
    ]
    drawn = [(_sample(rng, *spread), verdict) for *spread, verdict in shuffled(rng, cases)]
    small = [([2, 3, 2, 3], "worse"), ([0, 0, 0, 0, 0, 0, 0, 0, 4], "undecided"), ([0, 0.1, 0, 0.1], "no difference")]
    small += [([1, 1], "no difference"), ([-1, -1], "no difference"), ([2, 4], "undecided"), ([-4, -2], "undecided")]
    small += [([4, 5], "worse"), ([-5, -4], "better")]
    return [{"differences": TOLERANCE * np.array(sample), "verdict": verdict} for sample, verdict in [*small, *drawn]]


def _sample(rng, mean, standard_error, count) -> np.ndarray:
    """Numbers with exactly this mean and standard error."""
    numbers = rng.normal(size=count)
    numbers -= numbers.mean()
    return mean + numbers * standard_error * math.sqrt(count) / numbers.std(ddof=1)


def probe_comparison(names, seed):
    """What the learner's comparison measures on the bench, what it asked for, and its verdicts."""
    bench, arguments = PrecisionBench(seed), comparison(seed)["arguments"]
    earlier = PrecisionBench(seed + 1, ratio=2.5)  # of the same seeds; nothing of it may show in the next one
    other = comparison(seed + 1)["arguments"] | {name: arguments[name] for name in ("mixed", "seeds")}
    names["compare_precisions"](earlier.new_trial, earlier.clock, **other)
    ratio, differences = names["compare_precisions"](bench.new_trial, bench.clock, **arguments)
    said = [names["verdict"](list(map(float, case["differences"])), TOLERANCE) for case in verdicts(seed)]
    return {
        "ratio": float(ratio),
        "differences": [float(difference) for difference in differences],
        "made": bench.made,
        "asked": bench.asked,
        "most_in_a_row": max((len(list(run)) for _, run in itertools.groupby(bench.timed)), default=0),
        "verdicts": [str(one) for one in said],
    }

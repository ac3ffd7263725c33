"""The steps that exercise 01's q1 has timed: asynchronous, on a clock of their own. Needs NumPy."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Durations:
    """How long a step takes, call by call.

    launch_seconds   until `step()` returns
    compute_seconds  until its result is there, counted from its return
    clock_start      what the clock reads before the first call
    """

    launch_seconds: np.ndarray
    compute_seconds: np.ndarray
    warmup: int
    clock_start: float

    @property
    def repeats(self) -> int:
        return len(self.launch_seconds) - self.warmup

    @property
    def seconds(self) -> np.ndarray:
        """Of every call, until its result is there."""
        return self.launch_seconds + self.compute_seconds


def stopwatches(seed: int) -> list[Durations]:
    """A tiny one, a drawn one, and one without warm-up whose repeats are of an even number, two in five very slow."""
    tiny = Durations(np.full(8, 0.5), np.array([20, 7, 6, 2, 16, 4, 3, 5]) - 0.5, warmup=3, clock_start=90_000.0)
    rng = np.random.default_rng(seed)
    drawn = _durations(rng, int(rng.integers(2, 6)), int(rng.integers(15, 30)), slow=3)
    even = 2 * int(rng.integers(7, 12))
    return [tiny, drawn, _durations(rng, 0, even, slow=2 * even // 5)]


def _durations(rng: np.random.Generator, warmup: int, repeats: int, slow: int) -> Durations:
    """A slow first call, a slowish warm-up, then a steady state with some very slow calls.

    The first repeat is the fastest, so that work that is left over from the warm-up shows in it.
    """
    compute = rng.uniform(0.8, 1.2, warmup + repeats) * 0.01
    compute[:warmup] *= rng.uniform(2, 4, warmup)
    compute[warmup + 1 + rng.choice(repeats - 1, slow, replace=False)] *= rng.uniform(10, 30)
    compute[warmup] = 0.007
    if warmup:
        compute[0] = rng.uniform(1, 2)
    # A clock that has run for a day: float32 knows its seconds to 8 ms.
    clock_start = float(rng.integers(70_000, 130_000))
    return Durations(rng.uniform(0.8, 1.2, warmup + repeats) * 0.001, compute, warmup, clock_start)


class AsynchronousStep:
    """A step on a device, and the clock, which only the step's calls and waits move.

    A call returns before its result is there; `numpy()` waits for it. The device
    computes one step after the other. `overlapping` counts the calls that find it at work.
    """

    def __init__(self, calls: Durations):
        self._durations, self._now, self._free_at = calls, calls.clock_start, calls.clock_start
        self.calls = self.overlapping = 0

    def __call__(self):
        number = self.calls % len(self._durations.launch_seconds)
        self.calls += 1
        self.overlapping += self._free_at > self._now
        self._now += self._durations.launch_seconds[number]
        self._free_at = max(self._free_at, self._now) + self._durations.compute_seconds[number]
        return _Pending(self, self._free_at)

    def clock(self) -> float:
        return self._now

    def begin_again(self) -> None:
        """As before the first call."""
        self._now = self._free_at = self._durations.clock_start
        self.calls = self.overlapping = 0

    def wait_until(self, seconds: float) -> None:
        self._now = max(self._now, seconds)


@dataclass(frozen=True)
class _Pending:
    step: AsynchronousStep
    ready_at: float

    def numpy(self) -> float:
        self.step.wait_until(self.ready_at)
        return 0.0

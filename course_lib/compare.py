"""Do two training runs agree? NumPy only; taught in notebooks/02.

Two programs that add the same float32 numbers in another order differ in the
last bits, so "equal" needs a tolerance, and a tolerance needs a reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Run:
    """What a training run left behind, as host arrays.

    name     what a reader calls this run
    weights  variable path to its value
    losses   the loss of each step or epoch
    metrics  metric name to its last value
    """

    name: str
    weights: Mapping[str, np.ndarray]
    losses: Sequence[float] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, model, losses: Sequence[float] = (), metrics: Mapping[str, float] | None = None) -> "Run":
        """Read the weights of a built Keras model (any backend, replicated or not)."""
        weights = {variable.path: np.asarray(variable.numpy()) for variable in model.weights}
        return cls(name, weights, tuple(map(float, losses)), {k: float(v) for k, v in (metrics or {}).items()})


@dataclass(frozen=True)
class Difference:
    """One compared quantity.

    what       the variable's path, "losses" or a metric's name
    largest    the largest absolute difference
    allowed    the absolute difference that the tolerance allows
    """

    what: str
    largest: float
    allowed: float

    @property
    def equal(self) -> bool:
        return self.largest <= self.allowed  # False for NaN, as it should be


@dataclass(frozen=True, repr=False)
class Comparison:
    """The differences between two runs; prints the worst ones."""

    one: str
    other: str
    relative: float
    reason: str
    differences: tuple[Difference, ...]

    @property
    def equal(self) -> bool:
        return all(difference.equal for difference in self.differences)

    @property
    def worst(self) -> Difference:
        """The quantity that uses most of its allowance, or exceeds it most."""
        return max(
            self.differences, key=lambda d: np.inf if np.isnan(d.largest) else d.largest / max(d.allowed, 1e-300)
        )

    def __str__(self) -> str:
        within = sum(difference.equal for difference in self.differences)
        verdict = "equal" if self.equal else "DIFFERENT"
        head = (
            f"{self.one} and {self.other}: {verdict}, {within} of {len(self.differences)} quantities "
            f"within {self.relative:g} relative ({self.reason})"
        )
        beyond = [difference for difference in self.differences if not difference.equal]
        return "\n".join([head, *(f"  {d.what}: off by {d.largest:.1e}, allowed {d.allowed:.1e}" for d in beyond[:5])])

    __repr__ = __str__


def compare(one: Run, other: Run, *, relative: float, reason: str) -> Comparison:
    """Compare weights, losses and metrics of two runs.

    relative  allowed difference as a share of the quantity's largest magnitude
    reason    why that much is allowed, in words; it is printed with the result
    Raises    ValueError when the runs hold different quantities or shapes
    """
    pairs = _paired_weights(one, other)
    if len(one.losses) != len(other.losses) or one.metrics.keys() != other.metrics.keys():
        raise ValueError(f"{one.name} and {other.name} recorded different steps or metrics")
    if len(one.losses):
        pairs["losses"] = np.asarray(one.losses), np.asarray(other.losses)
    for name in one.metrics:
        pairs[f"metric {name}"] = np.asarray(one.metrics[name]), np.asarray(other.metrics[name])
    return Comparison(
        one.name,
        other.name,
        relative,
        reason,
        tuple(_difference(what, *pair, relative) for what, pair in pairs.items()),
    )


def assert_equal(one: Run, other: Run, *, relative: float, reason: str) -> Comparison:
    """Return `compare(...)`; raise an AssertionError with its text when the runs differ."""
    comparison = compare(one, other, relative=relative, reason=reason)
    if not comparison.equal:
        raise AssertionError(str(comparison))
    return comparison


def _paired_weights(one: Run, other: Run) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Pair weights in creation order: Keras numbers automatic names, so paths may differ between two builds."""
    shapes, other_shapes = ([w.shape for w in run.weights.values()] for run in (one, other))
    if shapes != other_shapes:
        raise ValueError(f"{one.name} and {other.name} are different models: shapes {shapes} and {other_shapes}")
    return dict(zip(one.weights, zip(one.weights.values(), other.weights.values())))


def _difference(what: str, one: np.ndarray, other: np.ndarray, relative: float) -> Difference:
    one, other = one.astype(np.float64), other.astype(np.float64)
    scale = max(np.abs(one).max(initial=0), np.abs(other).max(initial=0))
    return Difference(what, float(np.abs(one - other).max(initial=0)), float(relative * scale))

"""How far an answer is from what is wanted. Needs NumPy."""

import math

import numpy as np

ROUGH = 1e-2  # relative: what half precision leaves right


def off(got, wanted) -> float:
    """The distance of an array from what is wanted, as a share of its norm; infinite where the shapes differ."""
    got, wanted = np.asarray(got, "float64"), np.asarray(wanted, "float64")
    return np.linalg.norm(got - wanted) / np.linalg.norm(wanted) if got.shape == wanted.shape else math.inf

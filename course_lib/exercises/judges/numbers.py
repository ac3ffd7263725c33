"""How far an answer is from what is wanted. Needs NumPy."""

import math

import numpy as np

ROUGH = 1e-2  # relative: what half precision leaves right


def off(got, wanted) -> float:
    """The distance of an array from what is wanted, as a share of its norm; infinite where the shapes differ.

    Of a wanted 0 it is 0 or infinite.
    """
    got, wanted = np.asarray(got, "float64"), np.asarray(wanted, "float64")
    if got.shape != wanted.shape or not wanted.any():
        return 0.0 if np.array_equal(got, wanted) else math.inf
    return np.linalg.norm(got - wanted) / np.linalg.norm(wanted)

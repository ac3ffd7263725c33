"""Draw a question's cases in any order, and ask a learner's function that may refuse one. Needs NumPy."""

from collections.abc import Callable

import numpy as np

REFUSED = "ValueError"  # the answer to a case that has none


def shuffled(rng: np.random.Generator, cases: list) -> list:
    """The same cases in an order drawn from the generator."""
    return [cases[place] for place in rng.permutation(len(cases))]


def ask_or_refused(function: Callable, case: dict[str, object], as_plain: Callable = lambda answer: answer) -> object:
    """What a function returns for a case, made a plain value, or REFUSED where a ValueError is raised."""
    try:
        return as_plain(function(**case))
    except ValueError:
        return REFUSED

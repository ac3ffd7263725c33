"""A training run with visible state, to save and to resume. NumPy only; given in exercise 11."""

import numpy as np


class Trainer:
    """A training run with all its state visible: least squares with noise on its inputs, and accumulation.

    weights, velocity  (4,), of SGD with momentum; changed in place
    sums, added        (4,), the present group's gradients, and how many were added
    updates            so far; the learning rate falls with them
    position           of the next micro-batch, counted over all epochs
    generator          NumPy's, draws the noise; a new process has a new one, and its number, `process`, decides which
    """

    MICRO_BATCH, GROUP, ROWS = 4, 3, 48

    def __init__(self, seed: int, process: int = 0):
        rng = np.random.default_rng(seed)
        self._x, self._seed = rng.normal(size=(self.ROWS, 4)), seed
        self._y = self._x @ rng.normal(size=4) + 0.1 * rng.normal(size=self.ROWS)
        self.weights, self.velocity, self.sums = np.zeros(4), np.zeros(4), np.zeros(4)
        self.added = self.updates = self.position = 0
        self.generator = np.random.default_rng([seed, process])

    def step(self) -> float:
        """Train on the next micro-batch; return its loss before the step."""
        epoch, place = divmod(self.position, self.ROWS // self.MICRO_BATCH)
        order = np.random.default_rng([self._seed, epoch]).permutation(self.ROWS)
        rows = order[place * self.MICRO_BATCH : (place + 1) * self.MICRO_BATCH]
        x = self._x[rows] + 0.1 * self.generator.normal(size=(self.MICRO_BATCH, 4))
        error = x @ self.weights - self._y[rows]
        self.sums += x.T @ error / self.MICRO_BATCH
        self.added, self.position = self.added + 1, self.position + 1
        if self.added == self.GROUP:
            self._update()
        return float(np.mean(error**2))

    def _update(self) -> None:
        rate = 0.1 / (1 + 0.2 * self.updates)
        self.velocity *= 0.8
        self.velocity -= rate * self.sums / self.GROUP
        self.weights += self.velocity
        self.sums[:] = 0
        self.added, self.updates = 0, self.updates + 1

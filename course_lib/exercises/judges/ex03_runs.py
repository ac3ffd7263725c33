"""What the workers of exercise 03's q2 train, in NumPy, and what tells its known mistakes from each other.

Needs NumPy.
"""

import numpy as np

from course_lib.exercises.probes import ex03 as probes

CLOSE = 1e-4  # relative: looser than a right answer's, and mistakes differ by far more


def updates_wanted(seed):
    settings = probes.worker_settings(seed)
    return settings["epochs"] * len(settings["y"]) // settings["global_batch"]


def all_gradients(seed):
    """Bytes that each of two workers sends at least: the gradient of three weights, once an update."""
    return 3 * 4 * updates_wanted(seed)


def all_examples(answers, seed):
    """Every worker's targets, (workers, epochs, rows); None unless each epoch shares as many as there are rows."""
    seen, settings = [worker["targets"] for worker in answers["workers"]], probes.worker_settings(seed)
    if {len(seen) * len(targets) for targets in seen} != {len(settings["y"]) * settings["epochs"]}:
        return None
    return np.array(seen, "float32").reshape(len(seen), settings["epochs"], -1)


def are_targets(answers, seed):
    """Whether all that the workers list as targets stands in y."""
    y = np.float32(probes.worker_settings(seed)["y"])
    return all(np.isin(np.float32(worker["targets"]), y).all() for worker in answers["workers"])


def one_device(seed, gradient_factor=1, batches=None, bias=False):
    """The three weights at the end, and each step's loss before and after its update, of one device on whole batches.

    batches  row numbers of each step of the run; else the next ones of the arrays
    """
    x, y, weights, batch, rate = _problem(seed)
    if bias:
        x, weights = np.c_[x, np.ones(len(x))], np.append(weights, 0.0)
    if batches is None:
        batches = np.tile(np.arange(len(y)).reshape(-1, batch), (probes.worker_settings(seed)["epochs"], 1))
    before, after = [], []
    for rows in batches:
        errors = x[rows] @ weights - y[rows]
        before.append(np.mean(errors**2))
        weights = weights - rate * gradient_factor * 2 * x[rows].T @ errors / batch
        after.append(np.mean((x[rows] @ weights - y[rows]) ** 2))
    return weights[:3], before, after


def ends_as(answers, run):
    """Whether the workers' first weights at the end are those of a run of one_device."""
    return np.allclose(answers["workers"][0]["weights"][:3], run[0], rtol=CLOSE)


def every_row_twice(answers, seed):
    settings, workers = probes.worker_settings(seed), answers["workers"]
    every = len(settings["y"]) * settings["epochs"]
    return len(workers) == probes.WORKERS and all(len(worker["targets"]) == every for worker in workers)


def half_of_the_rows(answers, seed):
    settings = probes.worker_settings(seed)
    return 2 * _shared(answers) == len(settings["y"]) * settings["epochs"]


def targets_of_one_epoch(answers, seed):
    """All steps have a loss, and all targets together are one epoch's."""
    rows, wanted = len(probes.worker_settings(seed)["y"]), updates_wanted(seed)
    return _shared(answers) == rows and all(len(worker["losses"]) == wanted for worker in answers["workers"])


def one_epoch(answers, seed):
    return _steps(answers) == {updates_wanted(seed) // probes.worker_settings(seed)["epochs"]}


def half_a_global_batch(answers, seed):
    """Twice as many steps have every row once."""
    settings = probes.worker_settings(seed)
    return _shared(answers) == len(settings["y"]) * settings["epochs"] and _steps(answers) == {2 * updates_wanted(seed)}


def a_batch_too_few(answers, seed):
    return _steps(answers) == {updates_wanted(seed) - probes.worker_settings(seed)["epochs"]}


def errors_of_all_pairs(answers, seed):
    """The first loss is that of each worker's every output with its every target, one or all of them a row."""
    x, y, weights, batch, _ = _problem(seed)
    rows = _rows_of_steps(answers, seed)[0].reshape(probes.WORKERS, -1)
    table = (x[rows] @ weights)[:, :, None] - y[rows][:, None, :]
    sums = np.sum(table**2) / batch
    return any(np.isclose(answers["workers"][0]["losses"][0], sums / number, CLOSE) for number in (1, rows.shape[1]))


def halves_of_the_set(answers, seed):
    """Each worker has the same half of the arrays in every epoch."""
    halves = np.split(np.float32(probes.worker_settings(seed)["y"]), probes.WORKERS)
    seen = all_examples(answers, seed)
    return all(np.isin(epochs, half).all() for epochs, half in zip(seen, halves, strict=True))


def other_rows_together(answers, seed):
    """The weights are those of steps on the rows that came, and some step's are not the arrays' next ones."""
    rows = _rows_of_steps(answers, seed)
    own = np.arange(rows.size).reshape(rows.shape) % len(probes.worker_settings(seed)["y"])
    return not np.array_equal(np.sort(rows), own) and ends_as(answers, one_device(seed, batches=rows))


def with_a_bias(answers, seed):
    return ends_as(answers, one_device(seed, bias=True))


def own_losses(answers, seed):
    """The workers' losses differ, and their means are the global batches'."""
    losses = _losses(answers)
    return not np.allclose(*losses) and np.allclose(losses.mean(axis=0), one_device(seed)[1], rtol=CLOSE)


def own_shares(answers, seed):
    """The workers' losses differ, and their sums are the global batches'."""
    losses = _losses(answers)
    return not np.allclose(*losses) and np.allclose(losses.sum(axis=0), one_device(seed)[1], rtol=CLOSE)


def losses_after(answers, seed):
    return np.allclose(_losses(answers), one_device(seed)[2], rtol=CLOSE)


def losses_times_a_number(answers, seed):
    """The weights are the right ones; the losses are too, but for one factor."""
    run = one_device(seed)
    factors = _losses(answers) / run[1]
    alike = np.allclose(factors, factors[0, 0], rtol=CLOSE) and not np.isclose(factors[0, 0], 1, rtol=CLOSE)
    return alike and ends_as(answers, run)


def _problem(seed):
    """x, y, first weights, global batch, learning rate."""
    settings = probes.worker_settings(seed)
    x, y, weights = (np.float64(settings[name]) for name in ("x", "y", "first_weights"))
    return x, y, weights, settings["global_batch"], settings["learning_rate"]


def _shared(answers):
    return sum(len(worker["targets"]) for worker in answers["workers"])


def _steps(answers):
    """How many steps the workers took, by their losses and by their optimizers."""
    return {number for worker in answers["workers"] for number in (worker["updates"], len(worker["losses"]))}


def _losses(answers):
    return np.array([worker["losses"] for worker in answers["workers"]], "float64")


def _rows_of_steps(answers, seed):
    """The rows of each step of the run, worker after worker, by the targets that came; every one stands in y."""
    seen, settings = all_examples(answers, seed), probes.worker_settings(seed)
    y = np.float32(settings["y"])
    order = np.argsort(y)
    found = order[np.searchsorted(y[order], seen).clip(max=len(y) - 1)]
    if not np.array_equal(y[found], seen):
        raise ValueError("a target that is not in y")
    steps = found.reshape(len(seen), updates_wanted(seed), -1)
    return np.moveaxis(steps, 0, 1).reshape(updates_wanted(seed), -1)

"""Probes of exercise 12: reports of jobs that stand still, and four repaired programs on two real workers.

Needs NumPy; TensorFlow in the worker processes. The inputs are functions of the seed, given in given/incidents.py.
"""

import numpy as np

from course_lib.exercises.given import incidents
from course_lib.exercises.given.seen_tasks import seen_jobs
from course_lib.exercises.probes import ex12_workers, workers

OWN_SEED = 12  # of the incidents in the notebook
STEPS = 11, 13  # until the threshold: prime, so that whoever looks at the loss in every kth step alone is late
LARGEST = 20, 60  # rows of a batch: no number that fits the notebook's own fits all
HANG_SECONDS = 15  # without progress; a step takes milliseconds, and the workers' start counts as computing


def probe_diagnose(names, seed):
    """[task, cause] for each job."""
    return {"jobs": [list(names["diagnose"](list(job))) for job in seen_jobs(seed)]}


def probe_early_stop(names, seed):
    """The diagnosis, and what each worker returned."""
    return _diagnosed_and_run(names, "diagnosis_2", "stop_together", incidents.early_stop(seed, STEPS))


def probe_mixed_order(names, seed):
    """The diagnosis, and what each worker returned."""
    settings = incidents.mixed_order(seed, gaps=True)
    apart = {"PYTHONHASHSEED": "random"}  # as on machines of their own, workers order a set each in its own way
    return _diagnosed_and_run(names, "diagnosis_3", "sum_in_order", settings, environment=apart)


def probe_bad_rows(names, seed):
    """The diagnosis, and what each worker returned."""
    return _diagnosed_and_run(names, "diagnosis_4", "skip_together", incidents.bad_rows(seed, several=True))


def schedules(seed: int) -> list[tuple[list[int], list[float]]]:
    """(sizes, rates): a small one, then drawn ones, then pairs with one product, one sum, and rates that are close."""
    drawn = [incidents.schedule(seed + k, LARGEST) for k in range(4)]
    rng = np.random.default_rng(seed)
    size, rate = int(rng.integers(3, 7)), int(rng.integers(20, 100)) / 1000
    pairs = [(size, 2 * rate), (2 * size, rate), (size, 1.5), (size + 1, 0.5)]
    pairs += [(size, round(rate + more, 6)) for more in (0, 1e-6, 2e-6)]
    alike = [pairs[place] for place in rng.permutation([*range(7), 1, 3, 5])]
    found = [([len(y) for _, y in one["shards"][0]], one["rates"]) for one in drawn]
    return [([4, 4], [0.1, 0.1]), *found, tuple(map(list, zip(*alike)))]


def probe_schedule(names, seed):
    """The learner's number of traces for each schedule; what each worker returned, and the traces counted there."""
    counts = [names["traces_of"](list(sizes), list(rates)) for sizes, rates in schedules(seed)]
    outcome = _run(names["train_quickly"], incidents.schedule(seed, LARGEST))
    found = list(outcome.results.values())
    return {"counts": counts, "workers": [one["result"] for one in found], "traces": [one["traces"] for one in found]}


def _diagnosed_and_run(names, diagnosis, program, settings, **more):
    said = list(names[diagnosis]())
    outcome = _run(names[program], settings, **more)
    return {"diagnosis": said, "workers": [found["result"] for found in outcome.results.values()]}


def _run(program, settings, **more):
    job = workers.job(program, workers=incidents.WORKERS, arguments=settings, hang_seconds=HANG_SECONDS, **more)
    return workers.run(job, job.program.function, watch=ex12_workers.watched)

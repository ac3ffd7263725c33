"""Probes of exercise 12: reports of jobs that stand still, and four repaired programs on two real workers.

Needs NumPy; TensorFlow in the worker processes. The inputs are functions of the seed, in given/incidents.py and in
ex12_cases.py.
"""

import math

import numpy as np

from course_lib.exercises.given import incidents
from course_lib.exercises.given.seen_tasks import seen_jobs
from course_lib.exercises.probes import ex12_cases, ex12_workers, workers

OWN_SEED = 12  # of the incidents in the notebook
LARGEST = 20, 60  # rows of a batch: no number that fits the notebook's own fits all
HANG_SECONDS = 15  # without progress; a step takes milliseconds, and the workers' start counts as computing


def probe_diagnose(names, seed):
    """[task, cause] for each job."""
    drawn = {"jobs": seen_jobs(seed), "more": ex12_cases.more_jobs(seed)}
    return {key: [list(names["diagnose"](list(job))) for job in jobs] for key, jobs in drawn.items()}


def probe_early_stop(names, seed):
    """The diagnosis, what each worker returned, and the collective calls that it made."""
    return _diagnosed_and_run(names, "diagnosis_2", "stop_together", ex12_cases.early_stops(seed), counted=["calls"])


def probe_mixed_order(names, seed):
    """The diagnosis, and what each worker returned."""
    apart = {"PYTHONHASHSEED": "random"}  # as on machines of their own, workers order a set each in its own way
    return _diagnosed_and_run(names, "diagnosis_3", "sum_in_order", ex12_cases.mixed_orders(seed), environment=apart)


def probe_bad_rows(names, seed):
    """The diagnosis, and what each worker returned."""
    return _diagnosed_and_run(names, "diagnosis_4", "skip_together", ex12_cases.bad_batches(seed))


def schedules(seed: int) -> list[tuple[list[int], list[float]]]:
    """(sizes, rates): small ones, then drawn ones, then pairs with one product, one sum, and rates that are close."""
    drawn = [incidents.schedule(seed + k, LARGEST) for k in range(4)]
    rng = np.random.default_rng(seed)
    size, rate = int(rng.integers(3, 7)), int(rng.integers(20, 100)) / 1000
    pairs = [(size, 2 * rate), (2 * size, rate), (size, 1.5), (size + 1, 0.5)]
    pairs += [(size, round(rate + more, 6)) for more in (0, 1e-6, 2e-6)]
    alike = [pairs[place] for place in rng.permutation([*range(7), 1, 3, 5])]
    found = [([len(y) for _, y in one["shards"][0]], one["rates"]) for one in drawn]
    next_ones = np.nextafter(rate, [0, 1]).tolist()  # as 0.1 + 0.2 is the next one to 0.3
    nearest = [rate, *next_ones, next_ones[0], rate]
    return [
        ([4, 4], [0.1, 0.1]),
        ([size], [rate]),
        *found,
        tuple(map(list, zip(*alike))),
        ([size] * len(nearest), nearest),
    ]


def probe_schedule(names, seed):
    """The learner's number of traces for each schedule; what each worker returned, and what was counted there."""
    counts = [names["traces_of"](list(sizes), list(rates)) for sizes, rates in schedules(seed)]
    runs = _run(names["train_quickly"], ex12_cases.programs_schedules(seed))
    traces = [[_traces(*parts) for parts in zip(run, runs[-1])] for run in runs]
    in_graphs = [[_steps_in_graphs(*parts) for parts in zip(run, runs[-1])] for run in runs]
    results = [[found["result"] for found in run] for run in runs]
    return {"counts": counts, "runs": results, "traces": traces, "in_graphs": in_graphs}


def _traces(found, single) -> int:
    """How often a worker's step was traced, in whichever functions it stands.

    found, single  what was counted in a run, and in the run of a single step. There its products are those of a single
                   trace; a few more may come with a trace for any size
    """
    unit = single["products"]
    return max(found["traces"], math.ceil(found["products"] / unit - 0.3) if unit else 0)


def _steps_in_graphs(found, single) -> int:
    """In how many steps of a run the gradient was computed in a traced graph, as in the run of a single step."""
    return round(found["run"] / single["run"]) if single["run"] else 0


def _diagnosed_and_run(names, diagnosis, program, cases, counted=(), **more):
    said = list(names[diagnosis]())
    runs = _run(names[program], cases, **more)
    found = {name: [[one[name] for one in run] for run in runs] for name in ("result", *counted)}
    return {"diagnosis": said, "runs": found.pop("result"), **found}


def _run(program, cases, **more):
    """For each case what was found on each worker; all cases one after the other in the same processes."""
    arguments = {"cases": cases}
    job = workers.job(program, workers=incidents.WORKERS, arguments=arguments, hang_seconds=HANG_SECONDS, **more)
    outcome = workers.run(job, job.program.function, watch=ex12_workers.watched)
    return [list(run) for run in zip(*(found["runs"] for found in outcome.results.values()))]

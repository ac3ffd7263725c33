"""Probes of exercise 03: TF_CONFIG, rows of each worker, two real workers, a killed one, a local batch.

Needs NumPy; TensorFlow for q2 and q4, in separate processes. The inputs are functions of the seed.
"""

import contextlib
import dataclasses
import itertools
import json

import numpy as np

from course_lib.exercises.probes import ex03_workers, traffic, workers
from course_lib.exercises.probes.salted_hash import alike_in_processes

WORKERS = 2  # of q2 and q4: real processes
EPOCHS = 4  # of q4
STEPS_PER_EPOCH = 4
SAVE_EVERY = 3  # steps of q4
MANY = 66_000  # examples, more than 16 bits can number
# Of one case of q3.
FAR = {"worker": (1_000, 1_300), "workers": 1_500, "global_batch": 20_000, "epoch": 3_000, "seed": 40_000}
HOST_NAMES = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen")


def clusters(seed: int) -> list[tuple[list[str], dict[str, int], int]]:
    """(hosts, counts, first_port): small ones; with and without parameter servers and an evaluator; a large one.

    Two of the small ones have the types in another order than the rest, one of them on a single host.
    """
    rng = np.random.default_rng(seed)
    whole = {"chief": 1, "worker": int(rng.integers(3, 6)), "ps": 2, "evaluator": 1}
    alike = {"worker": int(rng.integers(3, 6))}
    hosts = [str(host) for host in rng.permutation(HOST_NAMES)[:2]]
    small = [(["ant", "bee"], {"worker": 3}, 70), (["cat", "ant", "dog"], {"worker": 1, "ps": 4}, 80)]
    small += [
        (["elk"], {"ps": 1, "worker": 2, "chief": 1}, 90),
        (["elk", "fox"], {"ps": 2, "worker": 1, "chief": 1}, 60),
    ]
    usual = [(hosts, counts, int(rng.integers(20, 90)) * 100) for counts in (whole, alike)]
    return [*small, *usual, ([f"host{number}" for number in range(40)], {"worker": int(rng.integers(41, 50))}, 40)]


def worker_settings(seed: int) -> dict[str, object]:
    """Arguments of q2's program: x (n, 3) and y (n,) as lists, n = 4 global batches; no two targets alike.

    So many updates that the gradients alone outweigh the 2,000 to 2,900 B that two workers send each other to connect.
    """
    rng = np.random.default_rng(seed)
    global_batch = int(rng.choice([4, 6, 8]))
    return {
        **_linear_problem(rng, 4 * global_batch),
        "learning_rate": float(rng.uniform(0.03, 0.06)),
        "global_batch": global_batch,
        "epochs": 100,
    }


def recovery_settings(seed: int) -> dict[str, object]:
    """Arguments of q4's program: the chief dies three times, first after a step whose save was due, then after others.

    The last save before the second kill, of step 12, sorts before that of step 9 as a text. The third comes before
    its attempt has saved anything. It is the chief, since another worker may die while the chief still saves.
    """
    rng = np.random.default_rng(seed)
    global_batch = int(rng.choice([8, 12, 16]))
    return {
        **_linear_problem(rng, STEPS_PER_EPOCH * global_batch),
        "global_batch": global_batch,
        "epochs": EPOCHS,
        "save_every": SAVE_EVERY,
        "victim": "worker 0",
        "dies_after": [6, 13, 14],
    }


def epochs_to_share(seed: int) -> list[dict[str, int]]:
    """q3's cases: neither do the workers divide the global batch, nor the global batch the examples.

    In the first one the last batch has fewer rows than there are workers; the second has its seed, and fewer examples.
    """
    rng = np.random.default_rng(seed)
    cases = [{"workers": 3, "examples": 11, "global_batch": 5, "seed": 0}]
    cases.append({"workers": 2, "examples": 10, "global_batch": 3, "seed": 0})
    for workers_ in (2, 3, 4):
        global_batch = workers_ * int(rng.integers(3, 6)) + int(rng.integers(1, workers_))
        examples = global_batch * int(rng.integers(3, 6)) + int(rng.integers(1, global_batch))
        cases.append(
            {"workers": workers_, "examples": examples, "global_batch": global_batch, "seed": int(rng.integers(1000))}
        )
    return cases


def scaling_problems(seed: int) -> list[dict[str, float]]:
    """q5's cases: just enough are 2 rows, 2.7, 2.2, and 1.5 million, where some searches have ended; 5.00002; 3.3, of
    3 bytes; more than float32 counts one by one. Then drawn ones, of which the last has thousands of workers; and one
    whose fixed time hides everything.
    """
    rng = np.random.default_rng(seed)
    exact = {"workers": 2, "seconds_per_example": 1.0, "step_overhead_seconds": 0.0, "gradient_bytes": 250_000_000}
    exact |= {"latency_seconds": 0.0, "gigabits_per_second": 1.0, "efficiency": 0.5}

    def problem(step_overhead_seconds: float) -> dict[str, float]:
        return {
            "workers": int(rng.integers(3, 33)),
            "seconds_per_example": float(rng.uniform(1e-4, 5e-4)),
            "step_overhead_seconds": step_overhead_seconds,
            "gradient_bytes": int(rng.integers(20, 100)) * 1_000_000,
            "latency_seconds": float(rng.uniform(1e-4, 1e-3)),
            "gigabits_per_second": float(rng.choice([1, 2.5, 10])),
            "efficiency": float(rng.uniform(0.75, 0.92)),
        }

    parts = [exact | {"seconds_per_example": seconds} for seconds in (0.73, 0.9, 1.3e-6, 2 / 5.00002)]
    parts.append(exact | {"seconds_per_example": 0.9, "gradient_bytes": 3, "gigabits_per_second": 8e-9})
    parts.append(exact | {"seconds_per_example": float(rng.uniform(1e-8, 3e-8))})
    drawn = [problem(float(rng.uniform(0.01, 0.02))) for _ in range(5)]
    drawn[-1]["workers"] = int(rng.integers(2_000, 9_000))
    return [exact, *parts, *drawn, problem(60.0)]


def probe_tf_configs(names, seed):
    """The learner's texts, as JSON reads them; None for what JSON cannot read."""
    answers = []
    for hosts, counts, first_port in clusters(seed):
        configs = names["tf_configs"](list(hosts), dict(counts), first_port)
        answers.append([[task, type(text).__name__, _read(text)] for task, text in configs.items()])
    return {"configs": answers}


def probe_train(names, seed):
    """What each of the learner's workers returned and sent to others, in the order of their tasks.

    And its losses in one epoch where the rows that it had not in the first one hold other numbers.
    """
    settings, sent = worker_settings(seed), []
    job = names["make_job"](settings)
    with contextlib.ExitStack() as stack:

        def count(running):
            sent_bytes = stack.enter_context(traffic.counted_bytes(running))
            for task in running.addresses:
                running.wait_report(task, through=True)
            sent.extend(sent_bytes())
            (running.shared / ex03_workers.COUNTED).touch()

        outcome = workers.run(job, "make_job", count, watch=ex03_workers.until_counted)
    found = [worker["result"] for worker in outcome.results.values()]
    return {"workers": found, "sent_bytes": sent, "among_others": _among_others(job, found, settings)}


def _among_others(job, found, settings):
    """Each worker's losses; none where the first epoch's rows are not shared out, or the job's arguments are others."""
    try:
        own = [[float(target) for target in worker["targets"]][: len(settings["y"]) // WORKERS] for worker in found]
    except (KeyError, TypeError, ValueError):
        return []
    shared_out = np.array_equal(np.sort(np.float32(sum(own, []))), np.sort(np.float32(settings["y"])))
    if len(found) != WORKERS or not shared_out or not settings.keys() <= job.arguments.keys():
        return []
    again = dataclasses.replace(job, arguments={**job.arguments, "epochs": 1, "own_targets": own})
    outcome = workers.run(again, "make_job", watch=ex03_workers.among_others)
    return [worker["result"]["losses"] for worker in outcome.results.values()]


def probe_rows_of(names, seed):
    """Everybody's rows in two epochs, asked for twice, and those of a worker that is alone: [epoch][worker][step].

    And what it has in epoch 0 with the next seed, and in epochs 10, 100, 1,000 and as many as there are examples, by
    their number as text. Of many examples the lowest and the highest row, and how many there are; last, with large
    numbers everywhere, how many rows each step of two workers has, how many of both are in the batch of a worker that
    is alone, and whether that order is another than those of a smaller epoch and of a smaller seed.
    """
    rows_of = alike_in_processes(names["rows_of"])

    def ask(case, worker, workers_, epoch, seed=None):
        shared = {"examples": case["examples"], "global_batch": case["global_batch"]}
        seed = case["seed"] if seed is None else seed
        steps = rows_of(worker=worker, workers=workers_, **shared, epoch=epoch, seed=seed)
        return [[int(row) for row in np.ravel(np.asarray(rows))] for rows in steps]

    answers = []
    for case in epochs_to_share(seed):
        everybody = range(case["workers"])
        rows = [[ask(case, worker, case["workers"], epoch) for worker in everybody] for epoch in (0, 1)]
        again = [[ask(case, worker, case["workers"], epoch) for worker in everybody] for epoch in (0, 1)]
        alone, other = [ask(case, 0, 1, epoch) for epoch in (0, 1)], ask(case, 0, 1, 0, case["seed"] + 1)
        later = {str(epoch): ask(case, 0, 1, epoch) for epoch in (10, 100, 1000, case["examples"])}
        answers.append({"rows": rows, "again": again, "alone": alone, "other_seed": other, "later": later})
    many = {*itertools.chain(*ask({"examples": MANY, "global_batch": MANY // 3 + 1, "seed": 0}, 0, 1, 0))}
    far = {"examples": MANY, "global_batch": FAR["global_batch"], "seed": FAR["seed"]}
    one, other = (ask(far, worker, FAR["workers"], FAR["epoch"]) for worker in FAR["worker"])
    whole = ask(far, 0, 1, FAR["epoch"])
    return {
        "cases": answers,
        "many": [min(many, default=0), max(many, default=0), len(many)],
        "far_rows": [[len(rows) for rows in part] for part in (one, other)],
        "far_rows_of_the_batch": [len({*batch} & {*rows, *more}) for rows, more, batch in zip(one, other, whole)],
        "far_orders": [whole != ask(far, 0, 1, 1_000), whole != ask({**far, "seed": 1_000}, 0, 1, FAR["epoch"])],
    }


def probe_recovery(names, seed):
    """Every report and result of two workers, one of which is killed three times: [task, attempt, step, loss].

    With each report the updates that its process had made, and with each result its optimizers' own counts.
    """
    settings = recovery_settings(seed)
    kills = len(settings["dies_after"])
    job = workers.job(names["train_through"], workers=WORKERS, arguments=settings, restarts=kills)
    outcome = workers.run(job, "train_through", watch=ex03_workers.counted)
    reports = [report for report in outcome.reports if {"step", "loss"} <= report.values.keys()]
    found = list(outcome.results.values())
    return {
        "reports": [[one.task, one.attempt, one.values["step"], one.values["loss"]] for one in reports],
        "updates_made": [one.values["updates_made"] for one in reports],
        "restarts": outcome.restarts,
        "workers": [one["result"] for one in found],
        "counts": [one["counts"] for one in found],
    }


def probe_local_batch(names, seed):
    """The learner's batch for each problem."""
    return {"batches": [names["smallest_local_batch"](**problem) for problem in scaling_problems(seed)]}


def _linear_problem(rng: np.random.Generator, rows: int) -> dict[str, list]:
    x = rng.normal(size=(rows, 3)).astype("float32")
    y = (x @ rng.normal(size=3) + rng.normal(size=rows)).astype("float32")
    return {"x": x.tolist(), "y": y.tolist(), "first_weights": rng.normal(size=3).astype("float32").tolist()}


def _read(text: object) -> object:
    if not isinstance(text, str):
        return text  # its type stands beside it
    try:
        return json.loads(text)
    except ValueError:
        return None

"""Probes of exercise 04: a record of staleness, a server, two real clusters, a size; q3's table is in ex04_table.

Needs NumPy; TensorFlow for q4 and q5, in separate processes. The inputs are functions of the seed.
"""

import array
import itertools
import time

import numpy as np

from course_lib import cluster
from course_lib.errors import CourseError
from course_lib.exercises.ask import Stopped
from course_lib.exercises.probes import ex04_servers, workers

WORKERS = 2  # of q4 and q5: real processes
UPDATES = 400  # of q4: so many that Keras' counter misses some
TOGETHER, SAVE_EVERY, RUN = 10, 30, 160  # updates of q5
LISTS = (list, tuple, np.ndarray, array.array)  # of q1: what has a length and can be gone through again
NOBODY_DIED = "nobody died: call power_cut(done) at the end of each group"


def records(seed: int) -> list[list[tuple[str, str]]]:
    """q1's records: (worker, "read" or "applied") in the server's order.

    First five small ones; in the second a worker falls further behind than there are others, the fourth has no update,
    and the fifth nothing at all. Each of the rest has a worker that is lost after its read and starts again, and one
    that is lost for good. The last has more lines than Python has calls in calls; its workers' names are alike, and one
    is as slow as all the others' updates take.
    """
    rng = np.random.default_rng(seed)
    small = [("ant", "read"), ("bee", "read"), ("bee", "applied"), ("ant", "applied")]
    slow = [("ant", "read"), *(("bee", event) for _ in range(3) for event in ("read", "applied")), ("ant", "applied")]
    lost = [("ant", "read"), ("bee", "read"), ("bee", "applied"), ("ant", "read"), ("ant", "applied")]
    few = [("gnu", "read"), *_record(rng, ("ant", "bee"), 30)]
    many = _record(rng, ("worker 1", "worker 2", "worker 10", "worker 12"), 2_000)
    many = [("worker 0", "read"), ("worker 20", "read"), *many, ("worker 20", "applied")]
    return [small, slow, lost, [("ant", "read"), ("bee", "read")], [], few, many]


def _record(rng: np.random.Generator, names: tuple[str, ...], applied: int) -> list[tuple[str, str]]:
    one, other = names[:2]
    record = [(one, "read"), (other, "read"), (other, "applied"), (one, "read")]  # the first one was lost between
    reading, left = {one}, applied - 1
    while left:
        name = str(rng.choice(names))
        if name not in reading or rng.random() < 0.15:
            record.append((name, "read"))
            reading.add(name)
        else:
            record.append((name, "applied"))
            reading.remove(name)
            left -= 1
    return record


def server_runs(seed: int) -> list[dict[str, object]]:
    """q2's runs: the server's settings, a gradient curvature * (weights - goal), and who does what in turn.

    In the last but one a gradient is the weights themselves, as on the notebook's parabola, and in the last one zero:
    its updates change nothing, and a gradient is stale none the less.
    """
    rng = np.random.default_rng(seed)
    runs = [
        {
            "settings": {
                "first_weights": rng.normal(size=3),
                "rate": float(rng.uniform(0.05, 0.15)),
                "momentum": float(rng.uniform(0.4, 0.8)),
                "bound": bound,
            },
            "curvature": rng.uniform(0.5, 2, 3),
            "goals": rng.normal(size=(3, 3)),
            "turns": _record(rng, ("0", "1", "2"), applied=24),
        }
        for bound in (0, 1, 2, 24, 1)
    ]
    runs[-1] |= {"curvature": np.ones(3), "goals": np.zeros((3, 3))}
    still = {**runs[0], "goals": np.tile(runs[0]["settings"]["first_weights"], (3, 1))}
    return [*runs, still]


def visits(seed: int) -> dict[str, object]:
    """Arguments of q4's program: an odd table, batches of (row numbers (batch, visited), values (batch,)) as lists."""
    return _visits(np.random.default_rng(seed), UPDATES)


def visits_through(seed: int) -> dict[str, object]:
    """Arguments of q5's program. The server dies three times: when a save is due, before the next attempt's first save,
    and after saves of a later attempt; the alphabet has the last of them before the others.
    """
    rng = np.random.default_rng(seed)
    dies_after = rng.choice([[30, 50, 130], [30, 50, 140], [60, 80, 130]]).tolist()
    return {**_visits(rng, RUN), "together": TOGETHER, "save_every": SAVE_EVERY, "dies_after": dies_after}


def _visits(rng: np.random.Generator, updates: int) -> dict[str, object]:
    rows, batch, visited = 2 * int(rng.integers(40, 60)) + 1, 8, int(rng.integers(3, 6))
    return {
        "batches": [
            [rng.integers(0, rows, (batch, visited)).tolist(), rng.uniform(1, 3, batch).astype("float32").tolist()]
            for _ in range(updates)
        ],
        "rows": rows,
        "width": int(rng.integers(2, 5)),
        "learning_rate": float(rng.uniform(1, 4)) / 1000,  # a table that does not begin with zeros shows beside it
    }


def loads(seed: int) -> list[dict[str, float]]:
    """q6's cases: memory for exactly 4, links for exactly 2; drawn ones where the links rule, with wide rows and many
    workers too, and the memory; one.

    A dense part whole on each server has room in one of the first, and takes it away from the table.
    """
    rng = np.random.default_rng(seed)
    # 4 in whatever order the formula is worked out: other sizes give 4.000000000000001 in one or another.
    full = {"workers": 1, "compute_seconds": 10.0, "dense_parameters": 500_000_000, "table_rows": 250_000_000}
    full |= {"row_width": 1, "looked_up_rows": 1_000, "slots": 1, "memory_gigabytes": 1.5, "gigabits_per_second": 8.0}
    busy = {"workers": 4, "compute_seconds": 1.0, "dense_parameters": 0, "table_rows": 1_000_000_000, "row_width": 1}
    busy |= {"looked_up_rows": 1_000_000_000, "slots": 0, "memory_gigabytes": 200.0, "gigabits_per_second": 32.0}

    def load(**special) -> dict[str, float]:
        return {
            "workers": int(rng.integers(100, 200)),
            "compute_seconds": float(rng.uniform(0.02, 0.05)),
            "dense_parameters": int(rng.integers(500, 1_000)) * 1_000,
            "table_rows": int(rng.integers(100, 300)) * 1_000_000,
            "row_width": int(rng.choice([4, 8])),
            "looked_up_rows": int(rng.integers(200, 400)) * 1_000,
            "slots": int(rng.integers(1, 3)),
            "memory_gigabytes": 200.0,
            "gigabits_per_second": float(rng.choice([5, 10])),
        } | special

    large = {"memory_gigabytes": float(rng.uniform(1, 2)), "workers": 2, "table_rows": 2_000_000_000, "slots": 2}
    small = {"workers": 1, "table_rows": 1_000_000, "compute_seconds": 10.0}
    sizes = (2.2, 2.7, 4.4, 2.1e-3, 1.9973)  # 2.7, 2.2, 1.4, 2,857.1 and 3.004 servers
    parts = [full | {"memory_gigabytes": size} for size in sizes]
    wide = {"workers": 2_000, "row_width": 4_096, "looked_up_rows": 1_000, "table_rows": 1_000_000}
    return [full, busy, *parts, *(load() for _ in range(3)), load(**wide), load(**large), load(**small)]


def probe_staleness(names, seed):
    """The learner's staleness of each update, for each record; of what is not a list or an array its type's name."""
    found = [names["staleness_of"](list(record)) for record in records(seed)]
    others = [None if isinstance(one, LISTS) else type(one).__name__ for one in found]
    return {"staleness": list(map(list, found)), "others": others}


def probe_server(names, seed):
    """After each turn the server's weights; what `apply` returned; at the end the updates, and first_weights.

    The servers of all runs are there at once, and their turns alternate.
    """
    runs = server_runs(seed)
    servers = [names["Server"](**run["settings"]) for run in runs]
    weights, used = [[] for _ in runs], [[] for _ in runs]
    turns = [_turns(*one) for one in zip(servers, runs, weights, used)]
    for _ in itertools.zip_longest(*turns):
        pass
    return {
        "runs": [
            {
                "weights": np.array(seen),
                "used": answers,
                "updates": server.updates,
                "first_weights": run["settings"]["first_weights"],
            }
            for server, run, seen, answers in zip(servers, runs, weights, used)
        ]
    }


def _turns(server, run, weights, used):
    """Take one turn of a run at a time; keep the weights after each, and what `apply` returned."""
    read = {}
    for worker, turn in run["turns"]:
        if turn == "read":
            read[worker] = server.read(worker)
        else:
            gradient = run["curvature"] * (np.asarray(read[worker]) - run["goals"][int(worker)])
            used.append(server.apply(worker, gradient if run["goals"].any() else read[worker]))
        weights.append(np.array(server.weights, "float64"))
        yield


def probe_train(names, seed):
    """What the coordinator returned, what its process saw, and how many workers and servers the learner's job has."""
    job = names["make_job"](visits(seed))
    outcome = workers.run(job, "make_job", watch=ex04_servers.watched)
    return {**_returned_and_seen(outcome), "tasks": [job.workers, job.parameter_servers]}


def probe_recovery(names, seed):
    """(attempt, updates done) as reported; the coordinator's result and what its process saw; after all kills.

    "saved" has, for each report, the bytes in the task's folder that were new since the report before.

    "at_once" is the most steps that any attempt had scheduled, and not yet waited for, by its last report.
    """
    arguments = visits_through(seed)
    kills = arguments["dies_after"]
    job = workers.job(
        names["train_through"], workers=WORKERS, parameter_servers=1, arguments=arguments, restarts=len(kills)
    )

    def kill_the_server(running):
        _await_first_cut(running, kills[0])
        running.kill("ps 0")
        for done in kills[1:]:
            if _is_cut_again(running, done):
                running.kill("ps 0")

    outcome = workers.run(job, "train_through", kill_the_server, watch=ex04_servers.watched)
    reports = [report for report in outcome.reports if "done" in report.values]
    return {
        **_returned_and_seen(outcome),
        "reports": [[report.attempt, report.values["done"]] for report in reports],
        "saved": [report.values["new_bytes"] for report in reports],
        "at_once": max((report.values["at_once"] for report in reports), default=0),
    }


def _returned_and_seen(outcome: cluster.Outcome) -> dict[str, object]:
    """The program's own dict, and "seen" beside it, which it cannot replace."""
    found = outcome.results["chief 0"]
    return {**found["result"], "seen": {name: value for name, value in found.items() if name != "result"}}


def _await_first_cut(running: cluster.LocalCluster, done: int) -> None:
    try:
        running.wait_report("chief 0", power_cut=done)
    except cluster.RunFailed:
        raise
    except CourseError:  # the program returned without that report
        raise workers.failure_at_first(running) or Stopped("raised", NOBODY_DIED, NOBODY_DIED) from None


def _is_cut_again(running: cluster.LocalCluster, done: int) -> bool:
    """Wait for a later kill's report. False where the program has ended without it, and is judged by what it left.

    A wait of the cluster's own would clean up what it left.
    """
    end = time.monotonic() + workers.LIMIT_SECONDS
    while time.monotonic() < end:
        if any(report.values.get("power_cut") == done for report in running.reports):
            return True
        of_chief = [exit for exit in running.exits if exit.task == "chief 0"]
        if any(exit.returned or exit.attempt == running.job.restarts for exit in of_chief):
            return False
        time.sleep(0.05)
    return False


def probe_servers(names, seed):
    """The learner's number of servers for each case."""
    return {"servers": [names["servers_needed"](**load) for load in loads(seed)]}

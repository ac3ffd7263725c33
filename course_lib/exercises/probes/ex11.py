"""Probes of exercise 11: a replica's input, a rate in updates, a whole run, efficiencies; q3 is in ex11_resume.

Needs NumPy; TensorFlow for q4. The inputs are functions of the seed.
"""

import numpy as np

from course_lib.exercises.ask import Stopped, in_one_line
from course_lib.exercises.given.capstone_cases import PARTS, WARMUP, digits_case, loops, measured
from course_lib.exercises.probes.cases import shuffled
from course_lib.exercises.probes.counted_updates import counted_updates
from course_lib.exercises.probes.new_process import memory_of
from course_lib.exercises.probes.replicas import are_identical, mirrored_strategy
from course_lib.exercises.probes.salted_hash import alike_in_processes
from course_lib.exercises.probes.state import copies_of
from course_lib.exercises.probes.watched_gradients import watched_gradients

EPOCHS = ((0, True), (1, True), (0, True), (0, False))  # of q1: (epoch, training), one of them asked for again
ELSEWHERE = (5, 1, 0)  # epochs that q1's drawn case is asked for in other processes
MARK = 0.5  # what q1's augmentation adds to every pixel
OTHER_IMAGES = 10_000  # the first one's number, where as many images as before are others


# q1: a replica's input


def input_cases(seed: int) -> list[dict[str, int]]:
    """q1's sizes: small ones, with a last batch of one row, of most, and a full one; many replicas; many steps; large
    batches; a drawn one, with so many rows that no two of its orders are alike by chance.
    """
    small = [
        {"replicas": replicas, "global_batch": batch, "rows": rows} for replicas, batch, rows in ((2, 2, 3), (3, 6, 17))
    ]
    large = [{"replicas": 12, "global_batch": 24, "rows": 61}, {"replicas": 2, "global_batch": 2, "rows": 203}]
    large.append({"replicas": 2, "global_batch": 512, "rows": 601})
    return [*small, {"replicas": 2, "global_batch": 4, "rows": 8}, *large, drawn_input(seed)]


def drawn_input(seed: int) -> dict[str, int]:
    """q1's last sizes: replicas, a global batch that they divide, and rows whose last batch they do not."""
    rng = np.random.default_rng(seed)
    replicas = int(rng.integers(3, 5))
    global_batch = replicas * int(rng.integers(3, 5))
    last = replicas + int(rng.integers(1, replicas))
    return {"replicas": replicas, "global_batch": global_batch, "rows": 3 * global_batch + last}


LONG = {"replicas": 2, "global_batch": 2, "rows": 10_007}  # of q1: more local batches than people leave room for


def later_epochs(seed: int) -> tuple[int, ...]:
    """Epochs of training that q1's drawn case is asked for too; after as many as rows, a rolled order comes back."""
    return (*range(2, 13), drawn_input(seed)["rows"], 100, 256, 1000)


def probe_batches(names, seed):
    """Who saw which rows in each case's epochs, with which keys they were augmented, and whether labels fit.

    `elsewhere` are epochs as replicas see them that are processes of their own, begun with another epoch; `long_shared`
    counts the local batches of two long epochs whose key was used before; `others` is epoch 0 of as many other images.
    """
    elsewhere = memory_of(names["replica_batches"])
    replica_batches, drawn = alike_in_processes(names["replica_batches"]), drawn_input(seed)
    return {
        "cases": [[_one_epoch(replica_batches, case, *epoch) for epoch in EPOCHS] for case in input_cases(seed)],
        "later": [_one_epoch(replica_batches, drawn, epoch, True) for epoch in later_epochs(seed)],
        "elsewhere": _in_other_processes(replica_batches, elsewhere, drawn),
        "long_shared": _shared_keys(replica_batches),
        "others": _one_epoch(replica_batches, drawn, 0, True, OTHER_IMAGES),
    }


def _shared_keys(replica_batches):
    two = [_seen(replica_batches, LONG, replica, epoch, True) for epoch in (0, 1) for replica in range(2)]
    keys = [tuple(key) for one in two for key in one["keys"]]
    return len(keys) - len({*keys})


def _one_epoch(replica_batches, case, epoch, training, first=0):
    replicas = range(case["replicas"])
    return _together([_seen(replica_batches, case, replica, epoch, training, first) for replica in replicas])


def _in_other_processes(replica_batches, elsewhere, case):
    """Epochs in the order of ELSEWHERE, which is each replica's own process' first one on."""
    replicas = []
    for replica in range(case["replicas"]):
        try:
            with elsewhere():
                replicas.append([_seen(replica_batches, case, replica, epoch, True) for epoch in ELSEWHERE])
        except Exception as error:
            said = in_one_line(type(error).__name__, str(error))
            line = "replica_batches works in a process that is asked for epoch 0 first; in one that begins with "
            line += f"epoch {ELSEWHERE[0]} it raises {said}"
            raise Stopped("raised", line, line) from None
    return [_together(of_epoch) for of_epoch in zip(*replicas)]


def _seen(replica_batches, case, replica, epoch, training, first=0):
    """One replica's epoch: its rows, counted from the first one's number, its keys, and whether the labels fit."""
    ids, keys = first + np.arange(case["rows"]), []
    images = np.ones((case["rows"], 2, 2, 1), "float32") * ids[:, None, None, None]

    def augment(local_images, key):
        keys.append([int(number) for number in np.ravel(key)])
        return local_images + np.float32(MARK)

    given, labels = images.copy(), 3 * ids
    steps = replica_batches(given, labels, case["global_batch"], case["replicas"], replica, epoch, training, augment)
    pairs = [(np.asarray(x), np.asarray(y)) for x, y in steps]
    rows = [np.floor(x[:, 0, 0, 0]).astype(int) for x, _ in pairs]
    return {
        "rows": [seen - first for seen in rows],
        "keys": keys,
        "labels_fit": all(np.array_equal(3 * seen, y) for seen, (_, y) in zip(rows, pairs)),
        "kept": np.array_equal(given, images) and np.array_equal(labels, 3 * ids),
        "marked": [bool(pixel % 1) for x, _ in pairs for pixel in x[:, 0, 0, 0]],
    }


def _together(replicas):
    """An epoch out of what its replicas have seen."""
    return {
        "replicas": [one["rows"] for one in replicas],
        "labels_fit": all(one["labels_fit"] for one in replicas),
        "arrays_kept": all(one["kept"] for one in replicas),
        "augmented": float(np.mean([mark for one in replicas for mark in one["marked"]])),
        "keys": [one["keys"] for one in replicas],
    }


# q2: a rate in updates


SMALL_RUN = {
    "base_rate": 0.1,
    "base_batch": 2,
    "local_batch": 1,
    "replicas": 2,
    "micro_batches": 2,
    "examples": 9,
    "epochs": 3,
    "warmup_epochs": 1,
}
SMALL_STEPS = {0: 0.1, 1: 0.1, 2: 0.15, 3: 0.15, 4: 0.2, 8: 0.1, 9: 0.1}  # of SMALL_RUN: micro-step to its rate


def rate_cases(seed: int) -> list[tuple[int, dict]]:
    """q2's cases: a micro-step and the run that it belongs to; starts, ends and middles of warm-up and decay.

    The first are of a run so small that its rates can be worked out by hand, and of another one of its length; of the
    last three runs one has no warm-up, one thousands of replicas, and an update of the other has fewer examples than
    base_batch.
    """
    rng = np.random.default_rng(seed)
    cases = [(step, SMALL_RUN) for step in SMALL_STEPS] + [(step, {**SMALL_RUN, "base_rate": 0.3}) for step in (0, 4)]
    for special in (None, None, "no warm-up", "many replicas", "a lower peak"):
        run = {
            "base_rate": float(rng.uniform(0.01, 0.1)),
            "base_batch": int(rng.choice([28, 44, 52])),  # divides no update's examples
            "local_batch": int(rng.choice([16, 64])),
            "replicas": int(rng.choice([2, 4, 8])),
            "micro_batches": int(rng.choice([3, 5])),  # never as many as replicas
            "epochs": int(rng.integers(8, 20)),
            "warmup_epochs": 0 if special == "no warm-up" else int(rng.integers(2, 5)),
        }
        if special == "many replicas":
            run |= {"base_batch": 4_100, "local_batch": 1_200, "replicas": 2_048}
        global_batch = run["local_batch"] * run["replicas"] * run["micro_batches"]
        if special == "a lower peak":
            run["base_batch"] = 2 * global_batch + 1
        per_epoch = int(rng.integers(7, 30))
        run["examples"] = per_epoch * global_batch + int(rng.integers(global_batch // 2, global_batch))
        warmup, total, k = per_epoch * run["warmup_epochs"], per_epoch * run["epochs"], run["micro_batches"]
        steps = (
            0,
            k - 1,
            k,
            k * (warmup // 2) + 1,
            k * warmup - 1,
            k * warmup,
            k * (warmup + total) // 2,
            k * total - 1,
        )
        cases += [(int(step), run) for step in steps if step >= 0]
    return cases


def probe_rates(names, seed):
    """The learner's rate for every case."""
    return {"rates": [float(names["rate_at"](step, **run)) for step, run in rate_cases(seed)]}


# q4: a whole run


def probe_training(names, seed):
    """What q4's run leaves on the replicas, how many updates it took, and how many answers are right."""
    strategy = mirrored_strategy()
    (x, y), (test_x, test_y) = digits_case(seed)
    with watched_gradients(strategy) as gradients, counted_updates() as updates:
        model = names["train"](strategy, x.copy(), y.copy())
    copies = [copies_of(strategy, variable) for variable in model.trainable_variables]
    logits = {name: _logits(model, images) for name, images in (("train", x), ("test", test_x))}
    return {
        "wanted_replicas": strategy.num_replicas_in_sync,
        "replicas": min(len(values) for values in copies),
        "gradients": gradients(),
        "identical": are_identical(copies),
        "updates": max(updates(), int(copies_of(strategy, model.optimizer.iterations)[0])),
        "finite": bool(np.isfinite(logits["test"]).all()),
        "train_accuracy": _accuracy(logits["train"], y),
        "test_accuracy": _accuracy(logits["test"], test_y),
        "first_answers": np.argmax(logits["test"][:20], axis=-1),
    }


def _logits(model, images):
    try:
        return np.asarray(model.predict(images, batch_size=120, verbose=0))
    except ValueError as error:
        line = f"the model that train returns does not take such images as train is given ({error!s:.200})"
        raise Stopped("raised", line, line) from None


def _accuracy(logits, labels) -> float:
    return float(np.mean(np.argmax(logits, axis=-1) == labels))


# q5: efficiencies


COUNTS = (((3, 6, 12), (2, 5, 10), (3, 9, 18)), ((2, 4, 8), (4, 8, 16), (5, 15, 30)))  # of replicas, beside 1


def benchmarks(seed: int) -> list[tuple[dict[tuple[int, int], list[float]], int]]:
    """q5's (times, warm-up steps): one to be worked out by hand, and two drawn ones in an order of their own.

    They have an odd number of other steps and an even one, of some cases two fewer, other numbers of replicas, and on
    the most replicas a batch more, of which no efficiency is asked. In the last one the most replicas are better than
    ideal, and some of the first steps are the quickest.
    """
    rng = np.random.default_rng(seed)
    by_hand = {(2, 8): [9.0, 5.0, 5.0, 5.0, 5.0], (1, 4): [9.0, 2.0, 4.0, 4.0, 2.0], (1, 8): [9.0, 4.0, 4.0, 4.0, 4.0]}
    cases = [(by_hand, 1)]
    for place, left_out in enumerate(rng.choice(3, size=2, replace=False)):
        counts = (1, *COUNTS[place][rng.integers(len(COUNTS[place]))])
        times = {case: s for case, s in measured(seed + place, counts).items() if case[0] != counts[1 + left_out]}
        most, local = max(times)[0], min(batch for _, batch in times)
        times[most, 2 * local] = [0.8 * seconds for seconds in times[most, most * local]]
        if place:
            times |= {case: [0.1 * seconds for seconds in steps] for case, steps in times.items() if case[0] == most}
        steps_of = dict(shuffled(rng, [*times.items()]))
        times = {case: steps[: len(steps) - place - 2 * (k % 2)] for k, (case, steps) in enumerate(steps_of.items())}
        more = int(rng.integers(1, 3))  # steps at the beginning
        first = {case: min(steps) / 2 if place else steps[0] for case, steps in times.items()}
        times = {case: steps[:WARMUP] + [first[case]] * more + steps[WARMUP:] for case, steps in times.items()}
        cases.append((times, WARMUP + more))
    return cases


LOOPS_BY_HAND = [dict(zip(PARTS, seconds)) for seconds in ((1.0, 2.0, 1.0), (5.0, 1.0, 1.0), (1.0, 2.0, 6.0))]


def loops_to_judge(seed: int) -> list[dict[str, float]]:
    """q5's loops: three to be worked out by hand, and those of the case, their parts in any order."""
    rng = np.random.default_rng(seed)
    return [*LOOPS_BY_HAND, *(dict(shuffled(rng, [*parts.items()])) for parts in loops(seed))]


def probe_scaling(names, seed):
    """The learner's efficiencies for each benchmark, by replicas in order, and the limits of the loops."""
    found, kept = [], []
    for times, warmup in benchmarks(seed):
        given = {case: list(steps) for case, steps in times.items()}
        own = names["efficiencies"](given, warmup)
        kept.append(given == times)
        found.append({kind: [[int(r), float(own[kind][r])] for r in sorted(own[kind])] for kind in ("strong", "weak")})
    limits = [names["bottleneck"](dict(parts)) for parts in loops_to_judge(seed)]
    parts, gains = [str(part) for part, _ in limits], [float(gain) for _, gain in limits]
    return {"found": found, "lists_kept": all(kept), "parts": parts, "gains": gains}

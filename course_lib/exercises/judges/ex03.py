"""Exercise 03: TF_CONFIG, two real workers, a killed worker, a local batch; q3 is in ex03_rows.

Needs NumPy; TensorFlow to know q4's order of rows, and in the worker processes of q2 and q4.
"""

import bisect
from itertools import chain

import numpy as np

from course_lib.exercises.judges import ex03_recovery as recovery
from course_lib.exercises.judges import ex03_runs as runs
from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.judges.ex03_rows import ROWS_OF
from course_lib.exercises.probes import ex03 as probes
from course_lib.exercises.question import Target

question = question_maker.of("03_multi_worker")
FLOAT32 = 1e-5  # relative: a dozen steps of sums over some tens of products in float32


# q1: TF_CONFIG


def _placed(hosts, counts, first_port):
    """Every task but the evaluator with its address, by type, in order."""
    kinds = [kind for kind, number in counts.items() for _ in range(number) if kind != "evaluator"]
    addresses = {kind: [] for kind in kinds}
    for place, kind in enumerate(kinds):
        round_, host = divmod(place, len(hosts))
        addresses[kind].append(f"{hosts[host]}:{first_port + round_}")
    return addresses


def _configs(answers, seed):
    """(hosts, counts, first_port), task, type name of its text, what JSON reads in it; of all clusters."""
    for case, configs in zip(probes.clusters(seed), answers["configs"], strict=True):
        yield from ((case, *config) for config in configs)


def _one_text_each(answers, seed):
    for (_, counts, _), configs in zip(probes.clusters(seed), answers["configs"], strict=True):
        wanted = [f"{kind} {i}" for kind, number in counts.items() for i in range(number)]
        if sorted(task for task, _, _ in configs) != sorted(wanted):
            return f"for {counts} yours are for {', '.join(task for task, _, _ in configs)}"
    for _, task, kind, read in _configs(answers, seed):
        if kind != "str":
            return f"{task}'s is of type {kind}"
        if not isinstance(read, dict) or not {"cluster", "task"} <= read.keys():
            return f"{task}'s text is {'not JSON' if read is None else 'not an object with the keys cluster and task'}"
    return True


def _same_cluster(answers, seed):
    for configs in answers["configs"]:
        if different := [task for task, _, read in configs if read["cluster"] != configs[0][2]["cluster"]]:
            return f"{different[0]}'s differs from {configs[0][0]}'s"
    return True


def _all_but_the_evaluator(answers, seed):
    for (_, counts, _), task, _, read in _configs(answers, seed):
        wanted = {kind: number for kind, number in counts.items() if kind != "evaluator"}
        listed = {kind: len(addresses) for kind, addresses in read["cluster"].items()}
        if listed != wanted:
            return f"for {counts} {task}'s lists {listed}"
    return True


def _by_the_rule(answers, seed):
    for (hosts, counts, port), task, _, read in _configs(answers, seed):
        listed = list(chain(*read["cluster"].values()))
        if len(set(listed)) < len(listed):
            return f"{task}'s has {len(listed)} addresses, {len(set(listed))} of them different"
        for kind, addresses in _placed(hosts, counts, port).items():
            if read["cluster"].get(kind) != addresses:
                where = f"hosts {' and '.join(hosts)}, {counts} and first port {port}"
                return f"for {where} the addresses of type {kind} are {read['cluster'].get(kind)}"
    return True


def _place_in_its_list(answers, seed):
    for _, task, _, read in _configs(answers, seed):
        kind, index = task.split()
        if read["task"] != {"type": kind, "index": int(index)} or type(read["task"]["index"]) is not int:
            return f"{task}'s says {read['task']}"
    return True


def _clusters(answers, seed):
    """counts, task, type name to listed addresses, and to those by the rule; of all texts of all clusters."""
    for (hosts, counts, port), task, _, read in _configs(answers, seed):
        yield counts, task, read.get("cluster", {}), _placed(hosts, counts, port)


def _own_type_only(answers, seed):
    return all(set(listed) <= {task.split()[0]} for _, task, listed, _ in _clusters(answers, seed))


def _evaluator_without_addresses(answers, seed):
    return all(any(listed.values()) != task.startswith("evaluator") for _, task, listed, _ in _clusters(answers, seed))


def _addresses_in_another_order(answers, seed):
    pairs = [(listed, placed) for _, _, listed, placed in _clusters(answers, seed)]
    ordered = [{kind: sorted(each) for kind, each in cluster.items()} for pair in pairs for cluster in pair]
    return ordered[::2] == ordered[1::2] and any(listed != placed for listed, placed in pairs)


def _types_of_the_picture(answers, seed):
    return all(set(listed) == {"worker", "ps"} & counts.keys() for counts, _, listed, _ in _clusters(answers, seed))


TF_CONFIGS = question(
    name="q1",
    title="Tell every task its place",
    asks_for=("tf_configs",),
    probe=probes.probe_tf_configs,
    form={"configs": [[(forms.text, forms.text, forms.anything)]]},
    targets=(
        Target("one text per task, JSON with the keys cluster and task", _one_text_each),
        Target("all tasks get the same cluster", _same_cluster),
        Target("the cluster lists every task but the evaluator", _all_but_the_evaluator),
        Target("every listed task has its own address, by the rule", _by_the_rule),
        Target("a task's index is its place in its own type's list", _place_in_its_list),
    ),
    recognise={
        "own type alone": _own_type_only,
        "evaluator without addresses": _evaluator_without_addresses,
        "addresses in another order": _addresses_in_another_order,
        "types of the picture": _types_of_the_picture,
    },
)


# q2: two real workers


def _two_in_step(answers, seed):
    replicas = [worker["replicas"] for worker in answers["workers"]]
    if len(replicas) != probes.WORKERS:
        return f"the number of workers in your job is {len(replicas)}"
    if min(answers["sent_bytes"], default=runs.all_gradients(seed)) < runs.all_gradients(seed):
        sent = f"{min(answers['sent_bytes']):,} B over its connections"
        return (
            f"a worker sent {sent}, and {runs.updates_wanted(seed)} gradients alone are {runs.all_gradients(seed):,} B"
        )
    in_step = " and ".join(map(str, replicas))
    return replicas == [probes.WORKERS] * len(replicas) or f"the workers' strategies keep {in_step} replica in step"


def _each_once(answers, seed):
    seen, y = runs.all_examples(answers, seed), np.float32(probes.worker_settings(seed)["y"])
    if seen is None:
        counts = " and ".join(str(len(worker["targets"])) for worker in answers["workers"])
        return f"of {len(y)} rows in {probes.worker_settings(seed)['epochs']} epochs the workers got {counts}"
    for epoch in range(seen.shape[1]):
        if missing := len(y) - len(np.intersect1d(seen[:, epoch], y)):
            return f"{missing} of {len(y)} rows reached nobody in epoch {epoch}"
    return True


def _count(answers, wanted):
    updates = {worker["updates"] for worker in answers["workers"]}
    return updates == {wanted} or f"{' or '.join(map(str, sorted(updates)))} updates for {wanted} steps"


def _identical(answers, seed):
    weights = [np.array(worker["weights"]) for worker in answers["workers"]]
    apart = max(np.abs(other - weights[0]).max() for other in weights)
    return bool(apart == 0) or f"they are apart by up to {apart:.2g}"


def _off(answers, key, wanted):
    """Whether every worker's values are the wanted ones, or by how much they are off."""
    values = [np.array(worker[key], "float64") for worker in answers["workers"]]
    if any(own.shape != np.shape(wanted) for own in values):
        return f"there are {len(wanted)} of them, and yours are {' and '.join(str(own.size) for own in values)}"
    off = max(np.abs(own - wanted).max() for own in values) / np.abs(wanted).max()
    return bool(off <= FLOAT32) or f"yours are off by {100 * off:,.3g}%"


def _own_rows_alone(answers, seed):
    """The losses of an epoch in which all rows but a worker's own hold other numbers; there are none of rows that are
    not shared out, nor of a job whose program takes other arguments.
    """
    if not answers["among_others"]:
        return _each_once(answers, seed) is True or "the rows are not shared out"
    wanted = runs.one_device(seed)[1][: runs.updates_wanted(seed) // probes.worker_settings(seed)["epochs"]]
    said = _off({"workers": [{"losses": losses} for losses in answers["among_others"]]}, "losses", wanted)
    return said is True or f"where each finds other numbers in the other's rows, the losses change ({said})"


def _not_in_scope(answers, seed):
    """Keras' `fit` refuses the model's variables; training.replicated_step refuses the model or the optimizer."""
    texts = "variable created in this tf.distribute.Strategy.scope()", "was made outside strategy.scope()"
    return any(text in answers["stopped"]["error"] for text in texts)


_OF_WORKER = {"weights": forms.array, "updates": forms.whole, str: forms.anything}
_TRAINED = {"replicas": forms.whole, "losses": forms.array, "targets": forms.array, **_OF_WORKER}
TRAIN = question(
    name="q2",
    title="Train on a cluster of two",
    asks_for=("train", "make_job"),
    probe=probes.probe_train,
    form={"workers": [_TRAINED], "sent_bytes": [forms.size], "among_others": [forms.array]},
    takes_long=True,
    targets=(
        Target("two workers run, and each keeps two replicas in step", _two_in_step),
        Target("in every epoch each row reaches one worker, half of them each", _each_once),
        Target(
            "the optimizers count one update per global batch",
            lambda answers, seed: _count(answers, runs.updates_wanted(seed)),
        ),
        Target("the workers end with identical weights, to the last bit", _identical),
        Target(
            "those equal one device's to 0.001%",
            lambda answers, seed: _off(answers, "weights", runs.one_device(seed)[0]),
        ),
        Target(
            "the losses are the global batches', to 0.001%",
            lambda answers, seed: _off(answers, "losses", runs.one_device(seed)[1]),
        ),
        Target("a worker computes with its own rows alone", _own_rows_alone),
    ),
    recognise={
        "model outside the scope": _not_in_scope,
        "each alone": lambda answers, seed: [worker["replicas"] for worker in answers["workers"]] == [1, 1],
        "every row twice": runs.every_row_twice,
        "shuffled apart": lambda answers, seed: (
            runs.all_examples(answers, seed) is not None
            and runs.are_targets(answers, seed)
            and _each_once(answers, seed) is not True
        ),
        "targets of one epoch": runs.targets_of_one_epoch,
        "one epoch": runs.one_epoch,
        "sharded twice": runs.half_of_the_rows,
        "global batch on each": lambda answers, seed: (
            _each_once(answers, seed) is True
            and all(2 * worker["updates"] == runs.updates_wanted(seed) for worker in answers["workers"])
        ),
        "half a global batch": runs.half_a_global_batch,
        "a batch too few": runs.a_batch_too_few,
        "errors of all pairs": runs.errors_of_all_pairs,
        "halves of the data set": runs.halves_of_the_set,
        "other rows together": runs.other_rows_together,
        "local mean": lambda answers, seed: runs.ends_as(answers, runs.one_device(seed, probes.WORKERS)),
        "half a step": lambda answers, seed: runs.ends_as(answers, runs.one_device(seed, 0.5)),
        "with a bias": runs.with_a_bias,
        "own rows' losses": runs.own_losses,
        "own share of the loss": runs.own_shares,
        "loss after the update": runs.losses_after,
        "losses times a number": runs.losses_times_a_number,
        "everybody's rows": lambda answers, seed: all(
            (target.holds(answers, seed) is True) == (target is not TRAIN.targets[-1]) for target in TRAIN.targets
        ),
        "nothing sent": lambda answers, seed: (
            answers["workers"][0]["replicas"] == probes.WORKERS
            and min(answers["sent_bytes"]) < runs.all_gradients(seed)
            and all(target.holds(answers, seed) is True for target in TRAIN.targets[1:-1])
        ),
    },
)


# q4: a killed worker


def _losses_undisturbed(answers, seed):
    _, losses, _ = recovery.undisturbed(seed)
    wanted = dict(enumerate(losses, 1))
    for task, attempt, step, loss in answers["reports"]:
        if step not in wanted:
            return f"{task} reports a step {step}, and the last one is {recovery.LAST_STEP}"
        off = abs(loss - wanted[step]) / wanted[step]
        if not off <= FLOAT32:
            when = "before any kill" if attempt == 0 else "after a kill"
            return f"{task}'s loss of step {step}, {when}, is off by {100 * off:,.3g}%"
    missing = wanted.keys() - {step for task, _, step, _ in answers["reports"] if task == "worker 0"}
    return not missing or f"no loss was reported for step {min(missing)}"


def _goes_on_after_the_save(answers, seed):
    for attempt, died, _ in recovery.kills(seed):
        if not recovery.reported(answers, attempt + 1):
            return f"nobody died after step {died}: call power_cut(done) after each step's report"
    for died, saved, first in recovery.first_steps(answers, seed):
        if first != saved + 1:
            return (
                f"killed after step {died}, with a save after every {probes.SAVE_EVERY}, yours go on with step {first}"
            )
    for (task, attempt, step, _), made in zip(answers["reports"], answers["updates_made"], strict=True):
        if made != (due := step - min(recovery.reported(answers, attempt, task)) + 1):
            return f"{task} reports step {step} after {made} updates since its attempt {attempt} began, not {due}"
    return True


def _final_weights(answers, seed):
    identical = _identical(answers, seed)
    return _off(answers, "weights", recovery.undisturbed(seed)[2][-1][0]) if identical is True else identical


def _counted_by_the_optimizers(answers, seed):
    if (said := _count(answers, recovery.LAST_STEP)) is not True:
        return said
    counts = [max(own, default=0) for own in answers["counts"]]
    return {*counts} == {recovery.LAST_STEP} or f"at the end they hold {' and '.join(map(str, counts))}"


def _all_but(place, answers, seed):
    """Whether one target alone is missed."""
    held = [target.holds(answers, seed) is True for target in RECOVERY.targets]
    return [number for number, one in enumerate(held) if not one] == [place]


def _counted_since_the_restart(answers, seed):
    *_, (_, _, saved) = recovery.kills(seed)
    counts = {worker["updates"] for worker in answers["workers"]}
    return _all_but(3, answers, seed) and counts == {recovery.LAST_STEP - saved}


def _count_lost(answers, seed):
    """The program's own count is right, and each optimizer's has the updates since its last restart."""
    *_, (_, _, saved) = recovery.kills(seed)
    counts = {max(own, default=0) for own in answers["counts"]}
    updates = {worker["updates"] for worker in answers["workers"]}
    return _all_but(3, answers, seed) and (updates, counts) == ({recovery.LAST_STEP}, {recovery.LAST_STEP - saved})


_REPORT = (forms.words("worker 0", "worker 1"), forms.size, forms.whole, forms.number)
RECOVERY = question(
    name="q4",
    title="Lose a worker, and nothing else",
    asks_for=("train_through",),
    probe=probes.probe_recovery,
    form={
        "reports": [_REPORT],
        "updates_made": [forms.whole],
        "restarts": forms.size,
        "workers": (_OF_WORKER, _OF_WORKER),
        "counts": ([forms.whole], [forms.whole]),
    },
    takes_long=True,
    targets=(
        Target(
            "all workers' losses, before and after a kill, equal the undisturbed run's to 0.001%", _losses_undisturbed
        ),
        Target("after each kill both go on with the step that follows the last save", _goes_on_after_the_save),
        Target("both end with identical weights, and those equal the undisturbed run's to 0.001%", _final_weights),
        Target("the optimizers count one update for each step of the run", _counted_by_the_optimizers),
    ),
    recognise={
        "another order": recovery.other_order,
        "state without a home": lambda answers, seed: recovery.goes_on(answers, seed, first=1, state=0, batch=0),
        "step forgotten": lambda answers, seed: recovery.goes_on(
            answers, seed, first=1, state=recovery.saved_step(seed), batch=0
        ),
        "saved once an epoch": recovery.saved_once_an_epoch,
        "everybody the chief": lambda answers, seed: any(
            operation in answers["stopped"]["error"] for operation in ("MergeV2Checkpoints", "SaveV2")
        ),
        "cut before the save": recovery.cut_before_the_save,
        "saved at every step": lambda answers, seed: recovery.after_the_last(answers, seed, lambda step: True),
        "due within the epoch": recovery.due_within_the_epoch,
        "saved a step late": lambda answers, seed: recovery.after_the_last(
            answers, seed, lambda step: (step - 1) % probes.SAVE_EVERY == 0
        ),
        "saved by the first attempt": recovery.saved_by_the_first_attempt,
        "last as text": recovery.last_as_text,
        "epochs from 0": recovery.from_epoch_0,
        "next epoch": recovery.next_epoch,
        "nothing left": recovery.nothing_left,
        "restored once": recovery.restored_once,
        "cut before the report": recovery.cut_before_the_report,
        "cut once": recovery.cut_once,
        "counted since the restart": _counted_since_the_restart,
        "count lost": _count_lost,
        "computed again in silence": recovery.computed_again_in_silence,
        "last attempt's save alone": recovery.last_attempts_save_alone,
        "nobody killed": lambda answers, seed: answers["restarts"] == 0 and _all_but(1, answers, seed),
        "other weights": lambda answers, seed: _identical(answers, seed) is True and _all_but(2, answers, seed),
        "step of the epoch": recovery.numbered_otherwise,
        "skipped in every epoch": recovery.skips_in_every_epoch,
        "optimizer forgotten": recovery.fresh_momentum,
        "epoch again": recovery.epoch_again,
    },
)


# q5: a local batch for a wanted efficiency


def _efficiency(batch, problem):
    """One worker's step time as a share of N workers' step time, both with this local batch."""
    message_seconds = 8 * problem["gradient_bytes"] / problem["workers"] / (problem["gigabits_per_second"] * 1e9)
    all_reduce_seconds = 2 * (problem["workers"] - 1) * (problem["latency_seconds"] + message_seconds)
    compute_seconds = problem["step_overhead_seconds"] + batch * problem["seconds_per_example"]
    return compute_seconds / (compute_seconds + all_reduce_seconds)


def _whole_batch(answers, seed):
    wrong = [batch for batch in answers["batches"] if type(batch) is not int or batch < 1]
    return not wrong or f"you return {wrong[0]!r}"


def _reaches(answers, seed):
    for problem, batch in zip(probes.scaling_problems(seed), answers["batches"], strict=True):
        if not _efficiency(batch, problem) >= problem["efficiency"]:
            said = f"a local batch of {batch} on {problem['workers']} workers reaches {_efficiency(batch, problem):.6%}"
            return f"{said} where {problem['efficiency']:.6%} are wanted"
    return True


def _no_smaller_one(answers, seed):
    for problem, batch in zip(probes.scaling_problems(seed), answers["batches"], strict=True):
        if batch > 1 and _efficiency(batch - 1, problem) >= problem["efficiency"]:
            return f"for {problem['workers']} workers you give {batch}, and {batch - 1} reaches the efficiency too"
    return True


def _smallest(problem):
    """As a search by halves finds it."""
    most = 1
    while _efficiency(most, problem) < problem["efficiency"]:
        most *= 2
    return bisect.bisect_left(range(most), problem["efficiency"], lo=1, key=lambda batch: _efficiency(batch, problem))


def _ends_too_early(answers, seed):
    """All are the right ones, or the largest that was tried."""
    wanted, most = [_smallest(problem) for problem in probes.scaling_problems(seed)], max(answers["batches"])
    return max(wanted) > most + 1 and [min(batch, most) for batch in wanted] == answers["batches"]


LOCAL_BATCH = question(
    name="q5",
    title="Buy efficiency with a larger batch",
    asks_for=("smallest_local_batch",),
    probe=probes.probe_local_batch,
    form={"batches": [forms.number]},
    targets=(
        Target("the local batch is an int, 1 or more", _whole_batch),
        Target("with it the workers reach the wanted efficiency", _reaches),
        Target("with one example less they do not", _no_smaller_one),
    ),
    recognise={
        "search that ends": _ends_too_early,
        "not rounded": lambda answers, seed: any(batch % 1 for batch in answers["batches"]),
        "a float": lambda answers, seed: any(type(batch) is float for batch in answers["batches"]),
    },
)


QUESTIONS = (TF_CONFIGS, TRAIN, ROWS_OF, RECOVERY, LOCAL_BATCH)

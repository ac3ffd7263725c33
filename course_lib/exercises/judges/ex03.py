"""Exercise 03: TF_CONFIG, two real workers, everybody's rows, a killed worker, a local batch.

Needs NumPy; TensorFlow to know q4's order of rows, and in the worker processes of q2 and q4.
"""

import bisect
from itertools import chain, zip_longest

import numpy as np

from course_lib.exercises.judges import ex03_recovery as recovery
from course_lib.exercises.judges import ex03_runs as runs
from course_lib.exercises.judges import forms, question_maker
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
        "nothing sent": lambda answers, seed: (
            answers["workers"][0]["replicas"] == probes.WORKERS
            and min(answers["sent_bytes"]) < runs.all_gradients(seed)
            and all(target.holds(answers, seed) is True for target in TRAIN.targets[1:-1])
        ),
    },
)


# q3: everybody's rows


def _shared_out(answers, seed):
    """case, [worker][step] -> rows, [step] -> rows of a worker that is alone; of all cases and epochs."""
    for case, answer in zip(probes.epochs_to_share(seed), answers["cases"], strict=True):
        for epoch in (0, 1):
            yield case, answer["rows"][epoch], answer["alone"][epoch]


def _setting(case):
    return f"{case['examples']} examples in batches of {case['global_batch']} on {case['workers']} workers"


def _every_row_once(answers, seed):
    for case, rows, _ in _shared_out(answers, seed):
        flat = _flat(rows)
        if strange := [row for row in flat if not 0 <= row < case["examples"]]:
            return f"{_setting(case)}: there is no row {strange[0]}"
        counts = np.bincount(flat, minlength=case["examples"])
        if (counts != 1).any():
            return f"{_setting(case)}: {(counts == 0).sum()} rows are on no worker, {(counts > 1).sum()} on several"
    low, high, different = answers["many"]
    said = f"of {probes.MANY:,} examples a worker that is alone has {different:,} rows, from {low:,} to {high:,}"
    return (low, high, different) == (0, probes.MANY - 1, probes.MANY) or said


def _same_batches(answers, seed):
    for case, rows, alone in _shared_out(answers, seed):
        full, rest = divmod(case["examples"], case["global_batch"])
        if [len(step) for step in alone] != [case["global_batch"]] * full + [rest]:
            return f"{_setting(case)}: a worker that is alone has steps of {[len(step) for step in alone]} rows"
        if len(rows) != case["workers"]:
            return f"{_setting(case)}: there are rows of {len(rows)}"
        together = [sorted(chain(*step)) for step in zip(*rows)]
        if {len(worker) for worker in rows} != {len(alone)} or together != [sorted(step) for step in alone]:
            differ = [sorted(step) for step in alone] != together[: len(alone)]
            said = "a step's rows together are another batch" if differ else "a worker has other steps"
            return f"{_setting(case)}: {said}"
    return True


def _even(answers, seed):
    for case, rows, _ in _shared_out(answers, seed):
        for step, parts in enumerate(zip(*rows)):
            sizes = [len(part) for part in parts]
            if max(sizes) - min(sizes) > 1:
                return f"{_setting(case)}: step {step} gives them {sizes} rows"
    return True


def _orders(answers, seed):
    for case, answer in zip(probes.epochs_to_share(seed), answers["cases"], strict=True):
        if answer["rows"] != answer["again"]:
            return "the same call gives other rows when it is repeated"
        if answer["alone"][0] == answer["alone"][1]:
            return "epochs 0 and 1 have the same order"
        if _same_company(answer):
            return "epochs 0 and 1 have the same rows in each batch"
        if (beside := _same_neighbours(answer)) > max(10, case["examples"] / 2):
            return f"of {case['examples']} rows {beside} have the same next row in epochs 0 and 1"
        if answer["alone"][0] == answer["later"][str(case["examples"])]:
            return f"epochs 0 and {case['examples']} have the same order"
        if answer["alone"][0] == answer["other_seed"]:
            return "two seeds have the same order"
        if answer["alone"][1] == answer["other_seed"]:
            return "epoch 1 of a seed has the order of epoch 0 of the next seed"
        if alike := [epoch for epoch, order in answer["later"].items() if order == answer["other_seed"]]:
            return f"epoch {alike[0]} of a seed has the order of epoch 0 of the next seed"
    return True


def _same_company(answer):
    """Whether each batch has the same rows in both epochs, which among 20 rows chance does not do."""
    one, other = ({frozenset(step) for step in alone} for alone in answer["alone"])
    return one == other and sum(map(len, one)) > 20


def _same_neighbours(answer):
    """How many rows have the same one after them in both epochs, the first after the last."""
    orders = [[*chain(*alone)] for alone in answer["alone"]]
    one, other = ({*zip(order, order[1:] + order[:1])} for order in orders)
    return len(one & other)


def _flat(rows):
    return [row for worker in rows for step in worker for row in step]


def _short_batch_dropped(answers, seed):
    return all(len(rows[0]) == case["examples"] // case["global_batch"] for case, rows, _ in _shared_out(answers, seed))


def _even_exactly(answers, seed):
    """Each worker has the same number of rows of each full batch, and the rest is on nobody."""
    for case, rows, _ in _shared_out(answers, seed):
        full, local = case["examples"] // case["global_batch"], case["global_batch"] // case["workers"]
        sizes = {len(part) for worker in rows for part in worker[:full]}
        if sizes != {local} or len(_flat(rows)) == case["examples"]:
            return False
    return True


def _parts_of(answers, seed, sizes):
    """The batches are right, and each has parts of sizes(rows of the batch, workers)."""
    parts = [
        ([len(part) for part in step], sizes(sum(map(len, step)), case["workers"]))
        for case, rows, _ in _shared_out(answers, seed)
        for step in zip(*rows)
    ]
    return _same_batches(answers, seed) is True and all(own == wanted for own, wanted in parts)


def _rounded_up(rows, workers):
    local = -(-rows // workers)
    return [min(max(rows - local * worker, 0), local) for worker in range(workers)]


def _rest_to_the_last(rows, workers):
    return [rows // workers] * (workers - 1) + [rows - rows // workers * (workers - 1)]


def _global_batch_on_each(answers, seed):
    """The workers together take `workers` batches of a worker that is alone in each step."""
    return all(
        [sorted(chain(*step)) for step in zip_longest(*rows, fillvalue=[])]
        == [sorted(chain(*alone[i : i + case["workers"]])) for i in range(0, len(alone), case["workers"])]
        for case, rows, alone in _shared_out(answers, seed)
    )


def _equal_batches(answers, seed):
    """A worker that is alone has every row once, in batches that differ by a row at most, and not in the asked ones."""
    alones = [alone for _, _, alone in _shared_out(answers, seed)]
    sizes = [[*map(len, alone)] for alone in alones]
    each_once = all(sorted(chain(*alone)) == [*range(sum(map(len, alone)))] for alone in alones)
    return (
        each_once and all(max(each) - min(each) <= 1 < len(each) for each in sizes) and not _whole_alone(answers, seed)
    )


def _last_row_lost(answers, seed):
    """A worker that is alone lacks one row at most, of the last batch."""
    lost = [case["examples"] - len(set(chain(*alone))) for case, _, alone in _shared_out(answers, seed)]
    return set(lost) in ({0, 1}, {1})


def _epochs_differ(answer, wanted=True):
    return (answer["alone"][0] != answer["alone"][1]) == wanted and answer["alone"][0] == answer["other_seed"]


def _product(answers, seed):
    """A seed of 0 has one order, and epoch 0 has one for all seeds."""
    cases = zip(probes.epochs_to_share(seed), answers["cases"], strict=True)
    return all(_epochs_differ(answer, wanted=case["seed"] != 0) for case, answer in cases)


def _whole_alone(answers, seed):
    """Whether a worker that is alone has every row once, in full batches but for the last."""
    return all(
        sorted(chain(*alone)) == [*range(case["examples"])]
        and [len(step) for step in alone[:-1]] == [case["global_batch"]] * (case["examples"] // case["global_batch"])
        for case, _, alone in _shared_out(answers, seed)
    )


def _own_orders(answers, seed):
    right_number = all(len(_flat(rows)) == case["examples"] for case, rows, _ in _shared_out(answers, seed))
    return right_number and _whole_alone(answers, seed) and _every_row_once(answers, seed) is not True


def _with_replacement(answers, seed):
    flat = [(case["examples"], [*chain(*alone)]) for case, _, alone in _shared_out(answers, seed)]
    return all(len(rows) == examples > len(set(rows)) for examples, rows in flat if examples > 20)


def _batches_shuffled(answers, seed):
    """Each batch is some rows that follow one another, and the batches have an order of their own."""
    alones = [alone for _, _, alone in _shared_out(answers, seed)]
    runs = all(sorted(step) == [*range(min(step), min(step) + len(step))] for alone in alones for step in alone if step)
    firsts = [[min(step) for step in alone if step] for alone in alones]
    return runs and any(first != sorted(first) for first in firsts)


def _empty_step_left_out(answers, seed):
    """The batches are right, and a worker without a row in the last one has no step there."""
    shared = [(rows, alone) for _, rows, alone in _shared_out(answers, seed)]
    together = [[sorted(chain(*step)) for step in zip_longest(*rows, fillvalue=[])] for rows, _ in shared]
    right = together == [[sorted(step) for step in alone] for _, alone in shared]
    return right and any(len(worker) < len(alone) for rows, alone in shared for worker in rows)


def _own_shards(answers, seed):
    """Each worker has the same rows in both epochs, in another order."""
    pairs = [pair for answer in answers["cases"] for pair in zip(*answer["rows"])]
    return all(sorted(chain(*one)) == sorted(chain(*other)) for one, other in pairs) and any(
        one != other for one, other in pairs
    )


_ALONE = [[forms.whole]]
_ALL = ([_ALONE], [_ALONE])
_ROWS = {"rows": _ALL, "again": _ALL, "alone": (_ALONE, _ALONE), "other_seed": _ALONE, "later": {str: _ALONE}}
ROWS_OF = question(
    name="q3",
    title="Share every batch out",
    asks_for=("rows_of",),
    probe=probes.probe_rows_of,
    form={"cases": [_ROWS], "many": (forms.whole, forms.whole, forms.whole)},
    targets=(
        Target("in every epoch each row is on one worker, once, the short last batch included", _every_row_once),
        Target("at each step all workers' rows together are the batch of a worker that is alone", _same_batches),
        Target("at no step two workers' numbers of rows differ by more than 1", _even),
        Target("each pair of seed and epoch has an order of its own, and the same call gives the same rows", _orders),
    ),
    recognise={
        "no seed": lambda answers, seed: any(answer["rows"] != answer["again"] for answer in answers["cases"]),
        "short batch dropped": _short_batch_dropped,
        "leftovers dropped": _even_exactly,
        "last one takes the rest": lambda answers, seed: _parts_of(answers, seed, _rest_to_the_last),
        "rounded up": lambda answers, seed: _parts_of(answers, seed, _rounded_up),
        "local batch for global": _global_batch_on_each,
        "own orders": _own_orders,
        "one order": lambda answers, seed: all(answer["alone"][0] == answer["alone"][1] for answer in answers["cases"]),
        "seed ignored": lambda answers, seed: all(map(_epochs_differ, answers["cases"])),
        "seed times epoch": _product,
        "seed times a number": lambda answers, seed: all(
            answer["other_seed"] in answer["later"].values() for answer in answers["cases"]
        ),
        "one row lost": _last_row_lost,
        "equal batches": _equal_batches,
        "shuffled within batches": lambda answers, seed: all(
            _same_company(answer) for answer in answers["cases"] if len([*chain(*answer["other_seed"])]) > 20
        ),
        "seed plus epoch": lambda answers, seed: all(
            answer["alone"][0] != answer["alone"][1] == answer["other_seed"] for answer in answers["cases"]
        ),
        "first epoch in order": lambda answers, seed: all(
            [*chain(*answer["alone"][0])] == sorted(chain(*answer["alone"][0])) for answer in answers["cases"]
        ),
        "last batch filled up": lambda answers, seed: all(
            {len(step) for step in alone} == {case["global_batch"]} and case["examples"] < len([*chain(*alone)])
            for case, _, alone in _shared_out(answers, seed)
        ),
        "own shard for ever": _own_shards,
        "with replacement": _with_replacement,
        "batches shuffled": _batches_shuffled,
        "empty step left out": _empty_step_left_out,
        "epoch cut first": lambda answers, seed: (
            _whole_alone(answers, seed)
            and _every_row_once(answers, seed) is True
            and _same_batches(answers, seed) is not True
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
        "saved once an epoch": lambda answers, seed: recovery.after_the_last(
            answers, seed, lambda step: step % probes.STEPS_PER_EPOCH == 0
        ),
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

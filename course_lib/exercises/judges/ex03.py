"""Exercise 03: TF_CONFIG, two real workers, everybody's rows, a killed worker, a local batch.

Needs NumPy; TensorFlow to know q4's order of rows, and in the processes of q2's and q4's wrong programs.
"""

import functools
import json
import math
from itertools import chain

import numpy as np

from course_lib import cluster
from course_lib.exercises.judges import ex03_programs as programs
from course_lib.exercises.judges import forms
from course_lib.exercises.probes import ex03 as probes
from course_lib.exercises.question import Mistake, Question, Target

FLOAT32 = 1e-5  # relative: a dozen steps of sums over some tens of products in float32


# q1: TF_CONFIG


def _placed(hosts, counts, first_port, port):
    """Every task but the evaluator with its address, by type, in order."""
    addresses, place = {}, 0
    for kind, number in counts.items():
        for _ in range(number if kind != "evaluator" else 0):
            addresses.setdefault(kind, []).append(f"{hosts[place % len(hosts)]}:{first_port + port(place, len(hosts))}")
            place += 1
    return addresses


def _own_index(kind, i, counts):
    return i


def _everybody(addresses, kind, i):
    return addresses


def _next_port(place, hosts):
    return place // hosts


def _tf_configs(index=_own_index, cluster=_everybody, port=_next_port, write=json.dumps):
    """The solution, with one thing wrong: see the mistakes for which."""

    def tf_configs(hosts, counts, first_port):
        addresses = _placed(hosts, counts, first_port, port)
        return {
            f"{kind} {i}": write(
                {"cluster": cluster(addresses, kind, i), "task": {"type": kind, "index": index(kind, i, counts)}}
            )
            for kind, number in counts.items()
            for i in range(number)
        }

    return tf_configs


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
        if not isinstance(read, dict) or read.keys() != {"cluster", "task"}:
            return f"{task}'s text is {'no JSON' if read is None else 'not an object with the keys cluster and task'}"
    return True


def _same_cluster(answers, seed):
    for configs in answers["configs"]:
        different = [task for task, _, read in configs if read["cluster"] != configs[0][2]["cluster"]]
        if different:
            return f"{different[0]}'s differs from {configs[0][0]}'s"
    return True


def _all_but_the_evaluator(answers, seed):
    for (_, counts, _), task, _, read in _configs(answers, seed):
        wanted = {kind: number for kind, number in counts.items() if kind != "evaluator"}
        listed = {kind: len(addresses) for kind, addresses in read["cluster"].items()}
        if listed != wanted:
            return f"for {counts} {task}'s lists {listed}"
    return True


def _one_address_each(answers, seed):
    for _, task, _, read in _configs(answers, seed):
        listed = list(chain(*read["cluster"].values()))
        if len(set(listed)) < len(listed):
            return f"{task}'s has {len(listed)} addresses, {len(set(listed))} of them different"
    for (hosts, counts, port), task, _, read in _configs(answers, seed):
        if sorted(chain(*read["cluster"].values())) != sorted(
            chain(*_placed(hosts, counts, port, _next_port).values())
        ):
            return f"on {' and '.join(hosts)} from port {port} {task}'s has {read['cluster']}"
    return True


def _order_and_place(answers, seed):
    for (hosts, counts, port), task, _, read in _configs(answers, seed):
        kind, index = task.split()
        if read["task"] != {"type": kind, "index": int(index)} or type(read["task"]["index"]) is not int:
            return f"{task}'s says {read['task']}"
        wanted = _placed(hosts, counts, port, _next_port).get(kind)
        if wanted and read["cluster"][kind] != wanted:
            return f"for {hosts}, {counts} and port {port} the addresses of {task}'s type are {read['cluster'][kind]}"
    return True


def _whole_index(kind, i, counts):
    before = list(counts)[: list(counts).index(kind)]
    return sum(counts[earlier] for earlier in before) + i


def _own_as_localhost(addresses, kind, i):
    own = {kind: list(addresses.get(kind, []))}
    if own[kind]:
        own[kind][i] = "localhost:" + own[kind][i].split(":")[1]
    return {**addresses, **{k: v for k, v in own.items() if v}}


TF_CONFIGS = Question(
    name="q1",
    title="Tell every task its place",
    asks_for=("tf_configs",),
    probe=probes.probe_tf_configs,
    targets=(
        Target("one text per task, JSON with the keys cluster and task", _one_text_each),
        Target("all tasks are told the same cluster", _same_cluster),
        Target("the cluster lists every task but the evaluator", _all_but_the_evaluator),
        Target("every listed task has an address of its own, on its host, from first_port on", _one_address_each),
        Target("a task's index is its place in its own type's list", _order_and_place),
    ),
    mistakes=(
        Mistake(
            "index of the whole cluster",
            "Your indices count through all types, and TensorFlow looks each up in the list of its own type.",
            "The first parameter server has index 0, whatever stands before it.",
            _tf_configs(index=_whole_index),
        ),
        Mistake(
            "counted from 1",
            "Your indices start at 1, so nobody is worker 0, the chief, and the last one is beyond its list.",
            "An index is a place in a list.",
            _tf_configs(index=lambda kind, i, counts: i + 1),
        ),
        Mistake(
            "index as text",
            'Your indices are texts, such as "0".',
            "In JSON an index is written without quotation marks: leave it a number before `json.dumps`.",
            _tf_configs(index=lambda kind, i, counts: str(i)),
        ),
        Mistake(
            "evaluator in the cluster",
            "Your cluster lists the evaluator, so the workers wait for it as for one of them.",
            "The evaluator reads checkpoints and takes part in no step: it has a `task` and no address.",
            _tf_configs(cluster=lambda addresses, kind, i: {**addresses, "evaluator": ["ant:1"]}),
            lambda answers, seed: any("evaluator" in read["cluster"] for _, _, _, read in _configs(answers, seed)),
        ),
        Mistake(
            "localhost",
            "A task calls itself localhost in its own copy of the cluster, so no two copies agree.",
            "Write the addresses once, as the others reach them, and give everybody the same.",
            _tf_configs(cluster=_own_as_localhost),
            lambda answers, seed: any("localhost" in str(read["cluster"]) for _, _, _, read in _configs(answers, seed)),
        ),
        Mistake(
            "own type alone",
            "A task is told the addresses of its own type, and must reach the others too.",
            "`cluster` has one entry per type, for every task the same.",
            _tf_configs(cluster=lambda addresses, kind, i: {k: v for k, v in addresses.items() if k == kind}),
        ),
        Mistake(
            "one port",
            "Tasks on one host get the same port, and the second one to start cannot have it.",
            "How many tasks stand on this host before this one?",
            _tf_configs(port=lambda place, hosts: 0),
        ),
        Mistake(
            "not text",
            "You return dicts, and an environment variable holds text.",
            "`json.dumps` at the end.",
            _tf_configs(write=lambda config: config),
        ),
        Mistake(
            "not JSON",
            "Your texts are Python's way to print a dict, and JSON cannot read them.",
            "`str` writes single quotation marks; `json.dumps` writes JSON.",
            _tf_configs(write=str),
        ),
    ),
)


# q2: two real workers


def _two_in_step(answers, seed):
    replicas = [worker["replicas"] for worker in answers["workers"]]
    if len(replicas) != probes.WORKERS:
        return f"your job has {len(replicas)} worker{'s' * (len(replicas) != 1)}"
    in_step = " and ".join(map(str, replicas))
    return replicas == [probes.WORKERS] * len(replicas) or f"the workers' strategies keep {in_step} replica in step"


def _all_examples(answers, seed):
    """Every worker's targets, (workers, epochs, rows); None when the workers saw different numbers of them."""
    seen = [worker["targets"] for worker in answers["workers"]]
    epochs = probes.worker_settings(seed)["epochs"]
    if len({len(targets) for targets in seen}) > 1 or len(seen[0]) % epochs:
        return None
    return np.array(seen, "float32").reshape(len(seen), epochs, -1)


def _each_once(answers, seed):
    seen, y = _all_examples(answers, seed), np.float32(probes.worker_settings(seed)["y"])
    if seen is None or seen.shape[0] * seen.shape[2] != len(y):
        counts = " and ".join(str(len(worker["targets"])) for worker in answers["workers"])
        return f"of {len(y)} rows in {probes.worker_settings(seed)['epochs']} epochs the workers got {counts}"
    for epoch in range(seen.shape[1]):
        missing = len(y) - len(np.intersect1d(seen[:, epoch], y))
        if missing:
            return f"{missing} of {len(y)} rows reached nobody in epoch {epoch}"
    return True


def _updates_wanted(seed):
    settings = probes.worker_settings(seed)
    return settings["epochs"] * len(settings["y"]) // settings["global_batch"]


def _updates_counted(answers, seed):
    updates, wanted = {worker["updates"] for worker in answers["workers"]}, _updates_wanted(seed)
    return updates == {wanted} or f"{' or '.join(map(str, sorted(updates)))} updates for {wanted} global batches"


def _identical(answers, seed):
    weights = [np.array(worker["weights"]) for worker in answers["workers"]]
    apart = max(np.abs(other - weights[0]).max() for other in weights)
    return apart == 0 or f"they are apart by up to {apart:.2g}"


def _one_device(seed, gradient_factor=1.0):
    """The weights and losses of one device on the whole batches, in NumPy; and each worker's own losses."""
    settings = probes.worker_settings(seed)
    x, y, weights = (np.float64(settings[name]) for name in ("x", "y", "first_weights"))
    batch, losses, own_losses = settings["global_batch"], [], []
    for start in [*range(0, len(y), batch)] * settings["epochs"]:
        rows = slice(start, start + batch)
        errors = x[rows] @ weights - y[rows]
        losses.append(np.mean(errors**2))
        own_losses.append(np.mean(errors.reshape(probes.WORKERS, -1) ** 2, axis=1))
        weights = weights - settings["learning_rate"] * gradient_factor * 2 * x[rows].T @ errors / batch
    return weights, losses, np.transpose(own_losses)


def _weights_exact(answers, seed):
    return _off([worker["weights"] for worker in answers["workers"]], _one_device(seed)[0])


def _losses_exact(answers, seed):
    return _off([worker["losses"] for worker in answers["workers"]], _one_device(seed)[1])


def _off(values, wanted):
    """Whether every worker's values are the wanted ones, or by how much they are off."""
    values = [np.array(own, "float64") for own in values]
    if any(own.shape != np.shape(wanted) for own in values):
        return f"there are {len(wanted)} of them, and yours are {' and '.join(str(own.size) for own in values)}"
    off = max(np.abs(own - wanted).max() for own in values) / np.abs(wanted).max()
    return bool(off <= FLOAT32) or f"yours are off by {100 * off:,.3g}%"


def _fields(*wanted):
    """Recognise a run by (replicas, rows seen per worker and epoch as a share of all, complete)."""

    def recognise(answers, seed):
        seen, y = _all_examples(answers, seed), np.float32(probes.worker_settings(seed)["y"])
        complete = all(set(seen[:, epoch].ravel().tolist()) == set(y.tolist()) for epoch in range(seen.shape[1]))
        replicas = {worker["replicas"] for worker in answers["workers"]}
        return replicas == {wanted[0]} and (seen.shape[2] / len(y), complete) == wanted[1:]

    return recognise


def _updates_are(factor):
    return lambda answers, seed: (
        {worker["updates"] for worker in answers["workers"]} == {factor * _updates_wanted(seed)}
    )


def _gradient_times(factor):
    def recognise(answers, seed):
        return np.allclose(answers["workers"][0]["weights"], _one_device(seed, factor)[0], rtol=1e-4)

    return recognise


def _own_losses(answers, seed):
    weights, _, own = _one_device(seed)
    first = answers["workers"][0]
    return np.allclose(first["weights"], weights, rtol=1e-4) and np.allclose(first["losses"], own[0], rtol=1e-4)


def _not_in_scope(answers, seed):
    """An optimizer under the scope refuses the model's variables; one outside it fails when it updates them."""
    error = answers["stopped"]["error"]
    return (
        "variable created in this tf.distribute.Strategy.scope()" in error or "distribution.extended.update(" in error
    )


def _runs(program, workers=probes.WORKERS):
    """The names of a learner whose worker program is this one."""
    return {"train": program, "make_job": lambda arguments: cluster.Job(program, workers, arguments=arguments)}


TRAIN = Question(
    name="q2",
    title="Train on a cluster of two",
    asks_for=("train", "make_job"),
    probe=probes.probe_train,
    takes_long=True,
    targets=(
        Target("two workers run, and each keeps two replicas in step", _two_in_step),
        Target("in every epoch each row reaches one worker, half of them each", _each_once),
        Target("the optimizers count one update per global batch", _updates_counted),
        Target("the workers end with identical weights, to the last bit", _identical),
        Target("those equal one device's to 0.001%", _weights_exact),
        Target("the losses are the global batches', to 0.001%", _losses_exact),
    ),
    mistakes=(
        Mistake(
            "one worker",
            "Your job starts one worker.",
            "`cluster.Job` takes the number of workers.",
            _runs(programs.train, workers=1),
            lambda answers, seed: len(answers["workers"]) == 1,
        ),
        Mistake(
            "model outside the scope",
            "A variable was made outside the strategy's scope, so the workers have no common one.",
            "Make model and optimizer inside `with strategy.scope():`.",
            _runs(programs.outside_the_scope),
            _not_in_scope,
        ),
        Mistake(
            "each alone",
            "Both workers train on all rows, each alone: their strategies do not know of each other.",
            "`MirroredStrategy` ends where its process ends. Which one reads TF_CONFIG?",
            _runs(programs.alone),
            _fields(1, 1.0, True),
        ),
        Mistake(
            "own half, own model",
            "Each worker trains on its own half, and never hears of the other's gradients.",
            "The rows are divided rightly. Which strategy sums over processes?",
            _runs(programs.alone_on_own_half),
            _fields(1, 0.5, True),
        ),
        Mistake(
            "every row twice",
            "Both workers get every row of each global batch, so all the work is done twice.",
            "The data set's `auto_shard_policy`: which one divides the examples of a batch?",
            _runs(programs.not_sharded),
            _fields(2, 1.0, True),
        ),
        Mistake(
            "shuffled apart",
            "The workers put the rows into different orders before each takes its part: some reach both, some nobody.",
            "The question asks for the arrays' own order; and a shuffle needs one seed for all workers.",
            _runs(programs.unseeded_shuffle),
            _fields(2, 0.5, False),
        ),
        Mistake(
            "global batch on each",
            "Your steps take twice `global_batch` rows, so there are half as many updates.",
            "The strategy divides the batch that you give it by the number of workers.",
            _runs(programs.global_batch_each),
            _updates_are(0.5),
        ),
        Mistake(
            "divided twice",
            "Your steps take half of `global_batch` rows, so there are twice as many updates.",
            "You divide the batch by the number of workers, and the strategy does so again.",
            _runs(programs.local_batch_shared),
            _updates_are(2),
        ),
        Mistake(
            "local mean",
            "Your step is as many times too long as there are workers: each averages over its own rows.",
            "The optimizer sums the workers' gradients. By how many rows must each divide?",
            _runs(programs.local_mean),
            _gradient_times(probes.WORKERS),
        ),
        Mistake(
            "own loss",
            "The weights are right, but each worker tells the loss of its own rows.",
            "The global batch's loss is what all workers' parts add up to.",
            _runs(programs.own_loss),
            _own_losses,
        ),
    ),
)


# q3: everybody's rows


def _shared_out(answers, seed):
    """case, epoch, [worker][step] -> rows, [step] -> rows of a worker that is alone; of all cases and epochs."""
    for case, answer in zip(probes.epochs_to_share(seed), answers["cases"], strict=True):
        for epoch in (0, 1):
            yield case, epoch, answer["rows"][epoch], answer["alone"][epoch]


def _setting(case):
    return f"{case['examples']} examples in batches of {case['global_batch']} on {case['workers']} workers"


def _every_row_once(answers, seed):
    for case, _, rows, _ in _shared_out(answers, seed):
        flat = _flat(rows)
        if strange := [row for row in flat if not 0 <= row < case["examples"]]:
            return f"{_setting(case)}: there is no row {strange[0]}"
        counts = np.bincount(flat, minlength=case["examples"])
        if (counts != 1).any():
            return f"{_setting(case)}: {(counts == 0).sum()} rows are on no worker, {(counts > 1).sum()} on several"
    return True


def _same_batches(answers, seed):
    for case, _, rows, alone in _shared_out(answers, seed):
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
    for case, _, rows, _ in _shared_out(answers, seed):
        for step, parts in enumerate(zip(*rows)):
            sizes = [len(part) for part in parts]
            if max(sizes) - min(sizes) > 1:
                return f"{_setting(case)}: step {step} gives them {sizes} rows"
    return True


def _new_order_each_epoch(answers, seed):
    for answer in answers["cases"]:
        if answer["rows"] != answer["again"]:
            return "the same call gives other rows when it is repeated"
        if answer["alone"][0] == answer["alone"][1]:
            return "epochs 0 and 1 have the same order"
    return True


def _flat(rows):
    return [row for worker in rows for step in worker for row in step]


def _by_epoch(worker, epoch, seed):
    return [seed, epoch]


def _even_part(batch, worker, workers):
    return np.array_split(batch, workers)[worker]


def _all_batches(order, batch):
    return np.array_split(order, range(batch, len(order), batch))


def _rows_of(generator=_by_epoch, share=_even_part, cut=_all_batches, block=False):
    """The solution, with one thing wrong: see the mistakes for which."""

    def rows_of(worker, workers, examples, global_batch, epoch, seed):
        order = np.random.default_rng(generator(worker, epoch, seed)).permutation(examples)
        if block:
            return cut(np.array_split(order, workers)[worker], -(-global_batch // workers))
        return [share(batch, worker, workers) for batch in cut(order, global_batch)]

    return rows_of


def _full_batches(order, batch):
    whole = len(order) // batch * batch
    return np.split(order[:whole], whole // batch)


def _rounded_down(batch, worker, workers):
    local = len(batch) // workers
    return batch[worker * local : (worker + 1) * local]


def _rounded_up(batch, worker, workers):
    local = -(-len(batch) // workers)
    return batch[worker * local : (worker + 1) * local]


def _rows_in_all(count):
    """Recognise how many rows the workers have in an epoch, by count(examples, global_batch, workers)."""

    def recognise(answers, seed):
        return all(
            len(_flat(rows)) == count(case["examples"], case["global_batch"], case["workers"])
            for case, _, rows, _ in _shared_out(answers, seed)
        )

    return recognise


def _own_orders(answers, seed):
    repeated = all(answer["rows"] == answer["again"] for answer in answers["cases"])
    right_number = _rows_in_all(lambda examples, batch, workers: examples)(answers, seed)
    return repeated and right_number and _every_row_once(answers, seed) is not True


ROWS_OF = Question(
    name="q3",
    title="Share every batch out",
    asks_for=("rows_of",),
    probe=probes.probe_rows_of,
    targets=(
        Target("in every epoch each row is on one worker, once, the short last batch included", _every_row_once),
        Target("at each step all workers' rows together are the batch of a worker that is alone", _same_batches),
        Target("at no step two workers' numbers of rows differ by more than 1", _even),
        Target(
            "each epoch has an order of its own, and the same call gives the same rows again", _new_order_each_epoch
        ),
    ),
    mistakes=(
        Mistake(
            "no seed",
            "The order comes out of nothing, so it differs from call to call, and from worker to worker.",
            "Make the generator from `seed` and `epoch`.",
            _rows_of(lambda worker, epoch, seed: None),
            lambda answers, seed: any(answer["rows"] != answer["again"] for answer in answers["cases"]),
        ),
        Mistake(
            "all rows to all",
            "Every worker gets the whole of each batch.",
            "Cut each batch into `workers` parts, and return part number `worker`.",
            _rows_of(share=lambda batch, worker, workers: batch),
            _rows_in_all(lambda examples, batch, workers: examples * workers),
        ),
        Mistake(
            "short batch dropped",
            "The rows of the last, short batch are on no worker.",
            "Count your steps: does the last one have the rows that are left over?",
            _rows_of(cut=_full_batches),
            _rows_in_all(lambda examples, batch, workers: examples // batch * batch),
        ),
        Mistake(
            "leftovers dropped",
            "When the workers do not divide a batch, the rows left over are on no worker.",
            "`//` throws `len(batch) % workers` rows of each batch away: who takes them?",
            _rows_of(share=_rounded_down),
            _rows_in_all(
                lambda examples, batch, workers: (
                    examples // batch * (batch // workers * workers) + examples % batch // workers * workers
                )
            ),
        ),
        Mistake(
            "own orders",
            "Each worker shuffles in an order of its own and takes its part of that: some rows are on several.",
            "All workers must see one order. What may the generator's seed depend on?",
            _rows_of(lambda worker, epoch, seed: [seed, epoch, worker]),
            _own_orders,
        ),
        Mistake(
            "one order",
            "Every epoch has the same order, so the same rows stand in one batch for ever.",
            "Let the generator's seed depend on `epoch` too.",
            _rows_of(lambda worker, epoch, seed: seed),
            lambda answers, seed: all(answer["alone"][0] == answer["alone"][1] for answer in answers["cases"]),
        ),
        Mistake(
            "epoch cut first",
            "You cut the epoch into the workers' parts first, so the batches depend on how many workers there are.",
            "Cut the epoch into global batches first, and each of those into parts.",
            _rows_of(block=True),
            lambda answers, seed: _every_row_once(answers, seed) is True and _same_batches(answers, seed) is not True,
        ),
        Mistake(
            "uneven parts",
            "Some worker has two rows or more than another at the same step, and the others wait for it.",
            "Fewer rows are left over than there are workers: one each for some of them.",
            _rows_of(share=_rounded_up),
            lambda answers, seed: (
                _every_row_once(answers, seed) is True
                and _same_batches(answers, seed) is True
                and _even(answers, seed) is not True
            ),
        ),
    ),
)


# q4: a killed worker


def _last_step():
    return probes.EPOCHS * probes.STEPS_PER_EPOCH


def _saved_step(seed):
    return probes.recovery_settings(seed)["dies_after"] // probes.SAVE_EVERY * probes.SAVE_EVERY


@functools.lru_cache(maxsize=8)
def _batches(seed, epoch):
    """The global batches of an epoch, (x, y) each, in the order that the question asks for."""
    from course_lib import data

    settings = probes.recovery_settings(seed)
    x, y = np.float32(settings["x"]), np.float32(settings["y"])
    batches = data.epoch_batches(x, y, settings["global_batch"], epoch)
    return [(x.numpy().astype("float64"), y.numpy().astype("float64")) for x, y in batches]


class _Undisturbed:
    """The run without a kill, in NumPy: losses of steps 1 to the last; state[s], weights and momentum after s steps."""

    def __init__(self, seed):
        self.batches = [batch for epoch in range(probes.EPOCHS) for batch in _batches(seed, epoch)]
        self.state = [(np.float64(probes.recovery_settings(seed)["first_weights"]), np.zeros(3))]
        self.losses = {}
        for number, batch in enumerate(self.batches, 1):
            self.losses[number], after = _momentum_step(self.state[-1], batch)
            self.state.append(after)

    def from_state(self, state, first):
        """The losses of the steps from `first` on, when they start from this state."""
        losses = {}
        for number in range(first, len(self.batches) + 1):
            losses[number], state = _momentum_step(state, self.batches[number - 1])
        return losses


def _momentum_step(state, batch):
    (weights, momentum), (x, y) = state, batch
    errors = x @ weights - y
    momentum = 0.9 * momentum - 0.02 * 2 * x.T @ errors / len(y)
    return np.mean(errors**2), (weights + momentum, momentum)


def _told(answers, attempt, task="worker 0"):
    """step -> loss, as a task reported them in one attempt."""
    return {step: loss for name, number, step, loss in answers["reports"] if (name, number) == (task, attempt)}


def _losses_undisturbed(answers, seed):
    wanted = _Undisturbed(seed).losses
    for task, attempt, step, loss in answers["reports"]:
        if step not in wanted:
            return f"{task} reports a step {step}, and the last one is {_last_step()}"
        off = abs(loss - wanted[step]) / wanted[step]
        if not off <= FLOAT32:
            when = "before the kill" if attempt == 0 else "after the kill"
            return f"{task}'s loss of step {step}, {when}, is off by {100 * off:,.3g}%"
    missing = wanted.keys() - {step for task, _, step, _ in answers["reports"] if task == "worker 0"}
    return not missing or f"no loss was reported for step {min(missing)}"


def _goes_on_after_the_save(answers, seed):
    again = _told(answers, attempt=1)
    if not again:
        return "nobody died: call power_cut(done) after each step's report"
    first, wanted = min(again), _saved_step(seed) + 1
    killed = probes.recovery_settings(seed)["dies_after"]
    every = probes.SAVE_EVERY
    return (
        first == wanted or f"killed after step {killed}, with a save after every {every}, yours go on with step {first}"
    )


def _final_weights(answers, seed):
    weights = [worker["weights"] for worker in answers["workers"]]
    if not all(np.array_equal(weights[0], other) for other in weights):
        return "the two workers' differ"
    return _off(weights, _Undisturbed(seed).state[-1][0])


def _updates_of_a_whole_run(answers, seed):
    updates = {worker["updates"] for worker in answers["workers"]}
    return updates == {_last_step()} or f"{' or '.join(map(str, sorted(updates)))} updates for {_last_step()} steps"


def _fresh_momentum(answers, seed):
    run, saved = _Undisturbed(seed), _saved_step(seed)
    wanted, told = run.from_state((run.state[saved][0], np.zeros(3)), saved + 1), _told(answers, attempt=1)
    return told.keys() == wanted.keys() and np.allclose([told[s] for s in wanted], list(wanted.values()), rtol=1e-4)


def _begins_again(with_saved_state):
    def recognise(answers, seed):
        run, told = _Undisturbed(seed), _told(answers, attempt=1)
        state = run.state[_saved_step(seed) if with_saved_state else 0]
        return min(told) == 1 and math.isclose(told[1], _momentum_step(state, run.batches[0])[0], rel_tol=1e-4)

    return recognise


def _first_batch_again(wanted):
    """Recognise the batch that the first step after the save took, by wanted(seed, saved step)."""

    def recognise(answers, seed):
        saved, told = _saved_step(seed), _told(answers, attempt=1)
        loss, _ = _momentum_step(_Undisturbed(seed).state[saved], wanted(seed, saved))
        return math.isclose(told[saved + 1], loss, rel_tol=1e-4)

    return recognise


def _process_order(seed, saved):
    return _batches(seed, epoch=0)[saved % probes.STEPS_PER_EPOCH]


def _epochs_first(seed, saved):
    return _batches(seed, saved // probes.STEPS_PER_EPOCH)[0]


def _other_order(answers, seed):
    told, wanted = _told(answers, attempt=0), _Undisturbed(seed).losses
    return any(not math.isclose(told[step], wanted[step], rel_tol=1e-4) for step in told)


def _after_an_epoch(answers, seed):
    steps = probes.STEPS_PER_EPOCH
    return min(_told(answers, attempt=1)) == probes.recovery_settings(seed)["dies_after"] // steps * steps + 1


RECOVERY = Question(
    name="q4",
    title="Lose a worker, and nothing else",
    asks_for=("train_through",),
    probe=probes.probe_recovery,
    takes_long=True,
    targets=(
        Target(
            "all workers' losses, before and after the kill, equal the undisturbed run's to 0.001%", _losses_undisturbed
        ),
        Target("after the kill both go on with the step that follows the last save", _goes_on_after_the_save),
        Target("both end with identical weights, and those equal the undisturbed run's to 0.001%", _final_weights),
        Target("the optimizers count one update for each step of the run", _updates_of_a_whole_run),
    ),
    mistakes=(
        Mistake(
            "nobody killed",
            "The run was never disturbed, because your loop does not let the power be cut.",
            "Call `power_cut(done)` at the end of each step.",
            programs.never_cut,
            lambda answers, seed: answers["restarts"] == 0,
        ),
        Mistake(
            "another order",
            "Your losses differ before anyone is killed: you take the rows in another order than the question's.",
            "`data.epoch_batches` with the number of the epoch, anew for each epoch.",
            programs.one_order,
            _other_order,
        ),
        Mistake(
            "state without a home",
            "After the kill your workers start from nothing: what was saved is not found again.",
            "Which folder do all attempts share? And is the restore called before the loop?",
            programs.folder_of_its_own,
            _begins_again(with_saved_state=False),
        ),
        Mistake(
            "step forgotten",
            "The weights come back, but the run begins again with its first step.",
            "How many updates does the restored optimizer have behind it? Start the loop there.",
            programs.first_step_again,
            _begins_again(with_saved_state=True),
        ),
        Mistake(
            "saved once an epoch",
            "You save at the end of an epoch, so a kill costs up to a whole one.",
            "Save after every `save_every` steps, inside the loop over the batches.",
            programs.saved_once_an_epoch,
            _after_an_epoch,
        ),
        Mistake(
            "optimizer forgotten",
            "The weights come back, but the optimizer's momentum starts from zero.",
            "The saved state needs the optimizer as well, and it must be built before the restore.",
            programs.weights_alone,
            _fresh_momentum,
        ),
        Mistake(
            "order of the process",
            "After the kill you take the first epoch's order again, though the run is in a later one.",
            "The order may depend on the epoch's number in the whole run, not on what this process has read.",
            programs.order_of_the_process,
            _first_batch_again(_process_order),
        ),
        Mistake(
            "epoch again",
            "After the kill the epoch begins again, so some of its rows are trained on twice.",
            "Skip the batches of this epoch that the saved state has seen.",
            programs.epoch_again,
            _first_batch_again(_epochs_first),
        ),
    ),
)


# q5: a local batch for a wanted efficiency


def _smallest_local_batch(
    bits=8,
    rounds=lambda workers: 2 * (workers - 1),
    message=lambda gradient, workers: gradient / workers,
    ratio=lambda e: e / (1 - e),
    latency=True,
    overhead=True,
    whole=math.ceil,
    least=1,
    batch=lambda local, workers: local,
):
    """The solution, with one thing wrong: see the mistakes for which."""

    def smallest_local_batch(
        workers,
        seconds_per_example,
        step_overhead_seconds,
        gradient_bytes,
        latency_seconds,
        gigabits_per_second,
        efficiency,
    ):
        message_seconds = bits * message(gradient_bytes, workers) / (gigabits_per_second * 1e9)
        all_reduce_seconds = rounds(workers) * (latency_seconds * latency + message_seconds)
        compute_seconds = ratio(efficiency) * all_reduce_seconds
        local = whole((compute_seconds - step_overhead_seconds * overhead) / seconds_per_example)
        return batch(max(local, least), workers)

    return smallest_local_batch


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
            said = f"a local batch of {batch} on {problem['workers']} workers reaches {_efficiency(batch, problem):.3%}"
            return f"{said} where {problem['efficiency']:.3%} are wanted"
    return True


def _no_smaller_one(answers, seed):
    for problem, batch in zip(probes.scaling_problems(seed), answers["batches"], strict=True):
        if batch > 1 and _efficiency(batch - 1, problem) >= problem["efficiency"]:
            return f"for {problem['workers']} workers you give {batch}, and {batch - 1} reaches the efficiency too"
    return True


LOCAL_BATCH = Question(
    name="q5",
    title="Buy efficiency with a larger batch",
    asks_for=("smallest_local_batch",),
    probe=probes.probe_local_batch,
    targets=(
        Target("the local batch is an int, 1 or more", _whole_batch),
        Target("with it the workers reach the wanted efficiency", _reaches),
        Target("with one example less they do not", _no_smaller_one),
    ),
    mistakes=(
        Mistake(
            "bits and bytes",
            "You divide bytes by bits per second, so the network looks eight times as fast.",
            "A byte has 8 bits.",
            _smallest_local_batch(bits=1),
        ),
        Mistake(
            "half a ring",
            "You count the reduce-scatter alone, and an all-reduce has an all-gather too.",
            "A ring takes N-1 rounds to sum, and as many to hand the sums round.",
            _smallest_local_batch(rounds=lambda workers: workers - 1),
        ),
        Mistake(
            "whole gradient each round",
            "You send the whole gradient in every round, and a ring sends a chunk of it.",
            "A ring's message is 1/N of the buffer.",
            _smallest_local_batch(message=lambda gradient, workers: gradient),
        ),
        Mistake(
            "upside down",
            "Your batch gives the efficiency that is missing, not the one that is wanted.",
            "Efficiency e means compute / (compute + all-reduce) = e: solve it for compute.",
            _smallest_local_batch(ratio=lambda e: (1 - e) / e),
        ),
        Mistake(
            "compute equals e times all-reduce",
            "You ask for e times as much computing as communicating; at e = 1 that is half of the step.",
            "Efficiency e means compute / (compute + all-reduce) = e: solve it for compute.",
            _smallest_local_batch(ratio=lambda e: e),
        ),
        Mistake(
            "no latency",
            "You leave the latency out, and every round pays it.",
            "A round costs the latency plus its message over the bandwidth.",
            _smallest_local_batch(latency=False),
        ),
        Mistake(
            "no overhead",
            "You leave out the part of a step that does not grow with the batch; it is computing time too.",
            "One worker's step takes `step_overhead_seconds` before its first example.",
            _smallest_local_batch(overhead=False),
        ),
        Mistake(
            "rounded down",
            "Your batch is rounded down, and just misses the efficiency.",
            "The smallest whole number that is large enough: `math.ceil`.",
            _smallest_local_batch(whole=math.floor),
        ),
        Mistake(
            "global batch",
            "You return the global batch.",
            "The docstring's Returns: rows of one worker.",
            _smallest_local_batch(batch=lambda local, workers: local * workers),
        ),
        Mistake(
            "a fraction",
            "You return a fraction of an example.",
            "The smallest whole number that is large enough: `math.ceil`.",
            _smallest_local_batch(whole=float),
        ),
        Mistake(
            "less than one",
            "Where the overhead alone is enough, your batch is below 1.",
            "A worker computes one example or more.",
            _smallest_local_batch(least=-(10**9)),
        ),
    ),
)


_OF_WORKER = {"weights": forms.array, "updates": forms.whole, str: forms.anything}
_WORKERS = [f"worker {number}" for number in range(probes.WORKERS)]
_ROWS_BY_STEP = [[forms.whole]]
QUESTIONS = (
    forms.formed(TF_CONFIGS, {"configs": [[(forms.text, forms.text, forms.anything)]]}),
    forms.formed(
        TRAIN, {"workers": [{"replicas": forms.whole, "losses": forms.array, "targets": forms.array, **_OF_WORKER}]}
    ),
    forms.formed(
        ROWS_OF,
        {
            "cases": [
                {
                    "rows": ([_ROWS_BY_STEP], [_ROWS_BY_STEP]),
                    "again": ([_ROWS_BY_STEP], [_ROWS_BY_STEP]),
                    "alone": (_ROWS_BY_STEP, _ROWS_BY_STEP),
                }
            ]
        },
    ),
    forms.formed(
        RECOVERY,
        {
            "reports": [(forms.words(*_WORKERS), forms.size, forms.whole, forms.number)],
            "restarts": forms.size,
            "workers": (_OF_WORKER,) * probes.WORKERS,
        },
    ),
    forms.formed(LOCAL_BATCH, {"batches": [forms.number]}),
)

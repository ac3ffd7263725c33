"""Exercise 04: staleness, a server, a table in pieces, asynchronous training, a killed server, a number of servers.

Needs NumPy; TensorFlow for q3's mistakes, and in the processes of q4 and q5.
"""

import math

import numpy as np

from course_lib.exercises.judges import forms, published
from course_lib.exercises.probes import ex04 as probes
from course_lib.exercises.question import Mistake, Question, Target

ANSWERS = published.answers("04_parameter_server")
FLOAT32 = 1e-5  # relative: some tens of additions to each number in float32
# Servers add without a lock, so under load an addition to one row is lost now and then: seen once in 7 runs, 0.6% of
# the largest number and 0.004% of the sum. A batch that is lost or applied twice changes the sum by 0.2% or more.
LOST_OF_SUM, LOST_OF_LARGEST = 1e-3, 2e-2
TABLE_IS_RIGHT = (
    "the table is what every batch, applied once, makes of it: its sum to 0.1%, each number to 2% of the largest"
)


# q1: staleness from a record


def _updates_of(record):
    """Of each applied update its staleness, and whether its worker had read more than once for it."""
    events, updates = [event for _, event in record], []
    for place, (worker, event) in enumerate(record):
        if event == "applied":
            own = [at for at in range(place) if record[at][0] == worker]
            again = [events[at] for at in own[-2:]] == ["read", "read"]
            updates.append((events[own[-1] : place].count("applied"), again))  # own[-1] is always a read
    return updates


def _one_number_each(answers, seed):
    for record, staleness in zip(probes.records(seed), answers["staleness"], strict=True):
        applied = sum(event == "applied" for _, event in record)
        if len(staleness) != applied:
            return f"{applied} updates were applied, and you return {len(staleness)} numbers"
        if wrong := [number for number in staleness if type(number) is not int or number < 0]:
            return f"{wrong[0]!r} is among yours"
    return True


def _stale_by(read_again):
    def holds(answers, seed):
        for record, staleness in zip(probes.records(seed), answers["staleness"], strict=True):
            updates = _updates_of(record)
            kind = [place for place, (_, again) in enumerate(updates) if again == read_again]
            if wrong := [place for place in kind if staleness[place] != updates[place][0]]:
                return f"{len(wrong)} of {len(kind)} are wrong, the first is update {wrong[0]}, counted from 0"
        return True

    return holds


STALENESS = Question(
    name="q1",
    title="How stale is each update?",
    asks_for=("staleness_of",),
    probe=probes.probe_staleness,
    answer=ANSWERS["q1"],
    targets=(
        Target("one int per applied update, 0 or more", _one_number_each),
        Target("right for the updates of workers that read once", _stale_by(read_again=False)),
        Target("right for the updates of workers that were lost and read again", _stale_by(read_again=True)),
    ),
    mistakes=(
        Mistake(
            "reads counted",
            "You count how often others read, and a read makes nobody stale.",
            "Which event changes the weights on the server?",
            edit={
                "\n            applied += 1": "",
                "read_at[worker] = applied": "applied += 1\n            read_at[worker] = applied",
            },
        ),
        Mistake(
            "every event counted",
            "You count all lines between a worker's read and its update.",
            "Only one kind of line changes the weights on the server.",
            edit={"read_at[worker] = applied": "applied += 1\n            read_at[worker] = applied"},
        ),
        Mistake(
            "since its last update",
            "You count from a worker's last update, and it may read much later than that.",
            "The weights that a gradient belongs to are those of the worker's last read.",
            edit={
                "read_at[worker] = applied": "continue",
                "read_at[worker])": "read_at.get(worker, 0))",
                "applied += 1": "applied += 1\n            read_at[worker] = applied",
            },
        ),
        Mistake(
            "first read",
            "A worker that was lost started again, and you still count from the read that was lost.",
            "A second read by the same worker takes the place of the first.",
            edit={
                "read_at[worker] = applied": "read_at.setdefault(worker, applied)",
                "read_at[worker])": "read_at.pop(worker))",
            },
        ),
        Mistake(
            "itself counted",
            "Yours are 1 too many: an update does not make itself stale.",
            "Count what was applied between the read and this update, neither of them included.",
            edit={"append(applied -": "append(applied + 1 -"},
        ),
    ),
)


# q2: a server that refuses what is too stale


def _wanted(run):
    """What a right server gives in one run: "weights" after each turn, "used" for each gradient, "updates"."""
    first_weights, rate, momentum, bound = run["settings"].values()
    weights, velocity, read, served, used = np.float64(first_weights), 0, {}, [], []
    for worker, turn in run["turns"]:
        if turn == "read":
            read[worker] = weights, sum(used)
        else:
            read_weights, updates = read[worker]
            used.append(sum(used) - updates <= bound)
            if used[-1]:
                velocity = momentum * velocity - rate * run["curvature"] * (read_weights - run["goals"][int(worker)])
                weights = weights + velocity
        served.append(weights)
    return {"weights": np.array(served), "used": used, "updates": sum(used)}


def _runs(answers, seed):
    """(run, what a right server gives, the learner's answer), of all runs."""
    return [(run, _wanted(run), own) for run, own in zip(probes.server_runs(seed), answers["runs"], strict=True)]


def _bounds_kept(answers, seed):
    for run, wanted, answer in _runs(answers, seed):
        if strange := [used for used in answer["used"] if type(used) is not bool]:
            return f"apply returns {strange[0]!r}"
        if (wrong := np.flatnonzero(np.array(answer["used"]) != wanted["used"])).size:
            said = f"{len(wrong)} of {len(wanted['used'])} are wrong, the first is number {wrong[0]}"
            what = "used" if answer["used"][wrong[0]] else "refused"
            return f"bound {run['settings']['bound']}: {said}, which yours {what}"
    return True


def _weights_served(answers, seed):
    for run, wanted, answer in _runs(answers, seed):
        if answer["weights"].shape != wanted["weights"].shape:
            return f"yours have the shape {answer['weights'].shape[1:]}"
        off = np.abs(answer["weights"] - wanted["weights"]).max(axis=1) / np.abs(wanted["weights"]).max()
        if (wrong := np.flatnonzero(~(off <= FLOAT32))).size:
            worker, turn = run["turns"][wrong[0]]
            when = f"after turn {wrong[0]}, in which worker {worker} {'read' if turn == 'read' else 'applied'}"
            return f"bound {run['settings']['bound']}: they are off by {off[wrong[0]]:.2%} {when}"
    return True


def _used_counted(answers, seed):
    for run, wanted, answer in _runs(answers, seed):
        if answer["updates"] != wanted["updates"]:
            return f"bound {run['settings']['bound']}: updates is {answer['updates']} at the end"
    return True


SERVER = Question(
    name="q2",
    title="Build the server",
    asks_for=("Server",),
    probe=probes.probe_server,
    answer=ANSWERS["q2"],
    targets=(
        Target(
            "apply uses a gradient that is stale by at most the bound, refuses others, and returns which", _bounds_kept
        ),
        Target("after every turn the weights are right to 0.001%", _weights_served),
        Target("updates counts the gradients that were used", _used_counted),
    ),
    mistakes=(
        Mistake(
            "says nothing",
            "`apply` returns nothing, so a worker never learns what became of its gradient.",
            "True where the gradient was used, False where it was refused.",
            recognise=lambda answers, seed: all(used is None for run in answers["runs"] for used in run["used"]),
            edit={"return False": "return", "return True": "return"},
        ),
        Mistake(
            "shared array",
            "What `read` returns changes under the worker's hands whenever somebody else's gradient is applied.",
            "`+=` on an array changes it for everybody who holds it.",
            edit={
                "weights.copy()": "weights",
                "self.weights = self.weights + self.velocity": "self.weights += self.velocity",
            },
        ),
        Mistake(
            "others' updates lost",
            "You add the step to the weights that the worker read, which undoes what others applied since.",
            "A gradient may be stale; the weights that it is added to are the server's present ones.",
            edit={
                "self.velocity, self.read_at = np": "self.seen = {}\n        self.velocity, self.read_at = np",
                "return self.weights.copy()": "self.seen[worker] = self.weights\n        return self.weights.copy()",
                "self.weights + self.velocity": "self.seen[worker] + self.velocity",
            },
        ),
        Mistake(
            "bound too tight",
            "You refuse a gradient whose staleness is the bound itself.",
            "At most the bound: what does bound 0 allow?",
            edit={"> self.bound": ">= self.bound"},
        ),
        Mistake(
            "no bound",
            "You use every gradient, however stale it is.",
            "Compare the updates since this worker's read with `bound`.",
            edit={"> self.bound": '> float("inf")'},
        ),
        Mistake(
            "refused ones counted",
            "A refused gradient counts as an update, so the others look staler than they are.",
            "Only what changes the weights is an update.",
            edit={"return False": "self.updates += 1\n            return False"},
        ),
    ),
)


# q3: a table in pieces


def _one_each(answers, seed):
    if wrong := [device for variable, device, _ in answers["shards"] if not variable]:
        return f"{len(wrong)} of {len(answers['shards'])} are not a tf.Variable"
    devices = [device for _, device, _ in answers["shards"]]
    wanted = [name.rsplit("device:", 1)[-1] for name in answers["devices"]]
    return devices == wanted or f"for {', '.join(wanted)} yours are on {', '.join(devices)}"


def _whole_table(answers, seed):
    table, _ = probes.table_to_cut(seed)
    joined = np.concatenate([rows for _, _, rows in answers["shards"]])
    if len(joined) != len(table):
        return f"the table has {len(table)} rows, and your shards have {len(joined)}"
    return np.array_equal(joined, table) or "one shard below the other, they are not the table"


def _within_a_row(answers, seed):
    sizes = [len(rows) for _, _, rows in answers["shards"]]
    return max(sizes) - min(sizes) <= 1 or f"they have {', '.join(map(str, sizes))} rows"


def _rows_found(answers, seed):
    if answers["lookups"] is None:
        return "nothing is looked up before the table is cut evenly"
    table, batches = probes.table_to_cut(seed)
    for numbers, lookup in zip(batches, answers["lookups"], strict=True):
        if lookup["found"].shape != table[numbers].shape:
            return f"for {len(numbers)} numbers you return {list(lookup['found'].shape)}"
        if wrong := np.any(lookup["found"] != table[numbers], axis=1).sum():
            return f"{wrong} of {len(numbers)} rows are not the ones asked for"
    return True


def _rows_alone(answers, seed):
    if answers["lookups"] is None:
        return "nothing is looked up before the table is cut evenly"
    for numbers, lookup in zip(probes.table_to_cut(seed)[1], answers["lookups"], strict=True):
        if lookup["read_whole"]:
            return f"{lookup['read_whole']} of {len(lookup['touched'])} shards are read whole"
        if not len(np.unique(numbers)) <= sum(lookup["touched"]) <= len(numbers):
            return f"for {len(numbers)} numbers the shards' gradients have {sum(lookup['touched'])} rows"
    return True


def _table_joined(answers, seed):
    return _rows_found(answers, seed) is True and answers["lookups"][0]["read_whole"] > 1


TABLE = Question(
    name="q3",
    title="Cut a table, and leave it where it is",
    asks_for=("cut_table", "look_up"),
    probe=probes.probe_table,
    answer=ANSWERS["q3"],
    targets=(
        Target("one variable on each device, in order", _one_each),
        Target("one below the other, the shards are the table: nothing twice, nothing missing", _whole_table),
        Target("no two of them differ by more than 1 row", _within_a_row),
        Target("look_up gives the rows asked for, in that order", _rows_found),
        Target("of all shards together no more rows are taken than numbers are asked for", _rows_alone),
    ),
    mistakes=(
        Mistake(
            "no variables",
            "Your shards are tensors: no update can change them.",
            "`tf.Variable`.",
            recognise=lambda answers, seed: not any(variable for variable, _, _ in answers["shards"]),
            edit={"tf.Variable(part)": "tf.constant(part)"},
        ),
        Mistake(
            "all on one device",
            "All your shards are on one device, which then holds the whole table.",
            "A variable lives where it is made: `with tf.device(name):`.",
            recognise=lambda answers, seed: len({device for _, device, _ in answers["shards"]}) == 1,
            edit={"tf.device(name)": "tf.device(device_names[0])"},
        ),
        Mistake(
            "leftovers dropped",
            "The rows that are left over when you divide are on no device.",
            "`//` throws `len(table) % len(device_names)` rows away: who takes them?",
            edit={
                "parts = [], np.array_split(table, len(device_names))": (
                    "count = [], len(device_names)\n    parts = np.split(table[: len(table) // count * count], count)"
                )
            },
        ),
        Mistake(
            "table joined",
            "You put the table together before you pick from it, so all of it travels for a few rows.",
            "Pick from each shard what it holds, and join what was picked.",
            recognise=_table_joined,
            edit={"places, rows, first = [], [], 0": "return tf.gather(tf.concat(shards, 0), numbers)"},
        ),
        Mistake(
            "everywhere and masked",
            "Every shard gives a row for every number, and most of them are thrown away on the other side.",
            "Which of the numbers does a shard hold? Take those alone.",
            edit={
                "rows.append(tf.gather(shard, numbers[held] - first))": (
                    "found = tf.gather(shard, tf.clip_by_value(numbers - first, 0, shard.shape[0] - 1))\n"
                    "        rows.append(tf.where(held[:, None], found, 0.0))"
                ),
                "tf.dynamic_stitch(places, rows)": "tf.add_n(rows)",
            },
        ),
        Mistake(
            "shard by shard",
            "Your rows are right but in the order of the shards.",
            "Remember where in `numbers` each row was asked for: `tf.dynamic_stitch` puts them back.",
            edit={"tf.dynamic_stitch(places, rows)": "tf.concat(rows, 0)"},
        ),
        Mistake(
            "the table's numbers",
            "You ask a shard for a row by its number in the whole table.",
            "A shard counts its rows from 0: subtract the number of its first row.",
            recognise=lambda answers, seed: "is not in [0," in answers["stopped"]["error"],
            edit={"numbers[held] - first": "numbers[held]"},
        ),
    ),
)


# q4: asynchronous training on real servers


def _table_after(settings, batches):
    """The table, in NumPy, after every one of these batches was applied once; the order does not matter."""
    table = np.zeros((settings["rows"], settings["width"]))
    for numbers, values in batches:
        step = settings["learning_rate"] * np.float64(values) / len(values)  # (batch,)
        np.add.at(table, np.array(numbers), step[:, None, None])
    return table


def _is_table(table, wanted):
    table = np.array(table, "float64")
    if table.shape != wanted.shape:
        return f"it has shape {table.shape}"
    off, of_sum = np.abs(table - wanted).max() / np.abs(wanted).max(), abs(table.sum() / wanted.sum() - 1)
    is_right = of_sum <= LOST_OF_SUM and off <= LOST_OF_LARGEST
    return bool(is_right) or f"it is off by up to {off:.3%}, its sum by {of_sum:.3%}"


def _two_and_two(answers, seed):
    return answers["tasks"] == [2, 2] or f"your job has {' and '.join(map(str, answers['tasks']))}"


def _cut_over_both(answers, seed):
    rows, shards = probes.visits(seed)["rows"], sorted(answers["shards"])
    right = [server for server, _ in shards] == ["ps 0", "ps 1"]
    right = right and sorted(held for _, held in shards) == [rows // 2, rows - rows // 2]
    return right or f"of {rows} rows yours are {', '.join(f'{server} with {held} rows' for server, held in shards)}"


def _counted(answers, wanted):
    return answers["counted"] == wanted or f"{answers['counted']} of {wanted}"


def _each_applied_once(answers, seed):
    settings = probes.visits(seed)
    return _is_table(answers["table"], _table_after(settings, settings["batches"]))


def _asynchronous(answers, seed):
    staleness = answers["staleness"]
    if len(staleness) != probes.UPDATES:
        return f"you return {len(staleness)} of them for {probes.UPDATES} updates"
    return sum(staleness) > 0 or "none of yours is stale: nobody worked while another did"


def _summed(answers, seed):
    """Whether the table is what the batches give when their losses are sums."""
    settings = probes.visits(seed)
    batches = [(numbers, np.float64(values) * len(values)) for numbers, values in settings["batches"]]
    return _is_table(answers["table"], _table_after(settings, batches)) is True


TRAIN = Question(
    name="q4",
    title="Train on two servers",
    asks_for=("train", "make_job"),
    probe=probes.probe_train,
    answer=ANSWERS["q4"],
    takes_long=True,
    targets=(
        Target("two workers and two servers", _two_and_two),
        Target("the table is in two shards, one on each server, within one row of equal", _cut_over_both),
        Target(
            f"the optimizer counts all {probes.UPDATES} updates",
            lambda answers, seed: _counted(answers, probes.UPDATES),
        ),
        Target(TABLE_IS_RIGHT, _each_applied_once),
        Target("workers overlap: some updates are stale", _asynchronous),
    ),
    mistakes=(
        Mistake(
            "model outside the scope",
            "The table is on the coordinator, and the servers hold nothing of it.",
            "Make model and optimizer inside `with strategy.scope():`.",
            recognise=lambda answers, seed: not any(server.startswith("ps") for server, _ in answers["shards"]),
            edit={"with strategy.scope():": "if True:"},
        ),
        Mistake(
            "not waited for",
            "You look at the table while steps are still under way.",
            "`schedule` returns at once. What waits until all of them are done?",
            recognise=lambda answers, seed: (
                answers["counted"] < probes.UPDATES and _each_applied_once(answers, seed) is not True
            ),
            edit={
                "parameter_server.run_steps(coordinator, step, batches)": (
                    "[coordinator.schedule(step, args=batch) for batch in batches]"
                ),
                "update.staleness for": "int(update.fetch()[1]) for",
            },
        ),
        Mistake(
            "not cut",
            "One server holds the whole table: nothing makes TensorFlow cut it.",
            "`parameter_server.connect` takes a partitioner.",
            recognise=lambda answers, seed: len(answers["shards"]) == 1,
            edit={"connect(cut)": "connect()"},
        ),
        Mistake(
            "lost counts",
            "Every update is in the table, but the optimizer has not counted all of them.",
            "Keras reads its counter, adds one and assigns it. What fixed that in the lesson?",
            recognise=lambda answers, seed: (
                answers["counted"] < probes.UPDATES and _each_applied_once(answers, seed) is True
            ),
            edit={
                "    batches = [": "    del optimizer.iterations.assign_add  # count_every_update's\n    batches = ["
            },
        ),
        Mistake(
            "in turns",
            "You wait after each step, so one worker is always idle.",
            "Schedule all steps, and then wait once.",
            recognise=lambda answers, seed: not any(answers["staleness"]),
            edit={"step, batches)": "step, batches, one_at_a_time=True)"},
        ),
        Mistake(
            "summed",
            "Your steps are too long, by a factor of the visits in a batch.",
            "The loss of a batch is the mean over its visits.",
            recognise=_summed,
            edit={"-values *": "-values * values.shape[0] *"},
        ),
    ),
)


# q5: a killed server


def _saved(seed):
    return probes.visits_through(seed)["dies_after"] // probes.SAVE_EVERY * probes.SAVE_EVERY


def _done(answers, attempt):
    return [done for number, done in answers["reports"] if number == attempt]


def _goes_on_after_the_save(answers, seed):
    if not (reported := _done(answers, attempt=1)):
        return "the second attempt reports nothing: report `done` after each group"
    died, first = probes.visits_through(seed)["dies_after"], min(reported)
    said = f"killed after update {died}, with a save after every {probes.SAVE_EVERY}"
    return first == _saved(seed) + probes.TOGETHER or f"{said}, yours report {first} done after one group"


def _applied(answers, seed, *spans):
    """Whether the table is what these spans of the batches make of it."""
    settings = probes.visits_through(seed)
    batches = [batch for first, last in spans for batch in settings["batches"][first:last]]
    return _is_table(answers["table"], _table_after(settings, batches))


def _applied_through(answers, seed):
    return _applied(answers, seed, (0, probes.RUN))


def _began(answers, seed, update, *spans):
    """Whether the second attempt began after so many updates, and the table is what these spans of batches give."""
    began = min(_done(answers, attempt=1)) - probes.TOGETHER
    return began == update and _applied(answers, seed, *spans) is True


def _saved_too_often(answers, seed):
    return min(_done(answers, attempt=1)) == probes.visits_through(seed)["dies_after"] + probes.TOGETHER


def _counter_again(answers, seed):
    return answers["counted"] == probes.RUN - _saved(seed) and _applied_through(answers, seed) is True


RECOVERY = Question(
    name="q5",
    title="Lose the server, and nothing else",
    asks_for=("train_through",),
    probe=probes.probe_recovery,
    answer=ANSWERS["q5"],
    takes_long=True,
    targets=(
        Target("after the kill the run goes on after the last save", _goes_on_after_the_save),
        Target(
            f"the optimizer counts {probes.RUN} updates, no fewer and no more",
            lambda answers, seed: _counted(answers, probes.RUN),
        ),
        Target(TABLE_IS_RIGHT, _applied_through),
    ),
    mistakes=(
        Mistake(
            "nobody killed",
            "The run was never disturbed, because your loop does not let the power be cut.",
            "Call `power_cut(done)` at the end of each group.",
            recognise=lambda answers, seed: answers["stopped"]["error"] == probes.NOBODY_DIED,
            edit={"\n        power_cut(done)\n": "\n"},
        ),
        Mistake(
            "counter forgotten",
            "The table comes back, and the optimizer counts from zero.",
            "The saved state needs the optimizer as well.",
            recognise=_counter_again,
            edit={"    while done <": "    optimizer.iterations.assign(0)\n    while done <"},
        ),
        Mistake(
            "state without a home",
            "After the kill your run starts from nothing: what was saved is not found again.",
            "Which folder do all attempts share? And is the restore called before the loop?",
            recognise=lambda answers, seed: _began(answers, seed, 0, (0, probes.RUN)),
            edit={"ResumePoint(task.folder": 'ResumePoint(f"{task.folder}/{task.attempt}"'},
        ),
        Mistake(
            "all batches again",
            "The table comes back, and then all batches are applied to it once more.",
            "How many updates does the restored optimizer have behind it? Start the loop there.",
            recognise=lambda answers, seed: _began(answers, seed, 0, (0, _saved(seed)), (0, probes.RUN)),
            edit={"    while done <": "    done = 0\n    while done <"},
        ),
        Mistake(
            "table forgotten",
            "The count comes back, and the table starts from zeros.",
            "The saved state needs the model as well, and nothing may set its weights after the restore.",
            recognise=lambda answers, seed: _began(answers, seed, _saved(seed), (_saved(seed), probes.RUN)),
            edit={"    while done <": "    model.set_weights([np.zeros((rows, width))])\n    while done <"},
        ),
        Mistake(
            "saved too often",
            "You save after every group; on a large model that costs more than it saves.",
            "Save where `save_every` divides the updates that are done.",
            recognise=_saved_too_often,
            edit={"done % save_every": "done % together"},
        ),
    ),
)


# q6: a number of servers


def _needed(load):
    """(by memory, by bandwidth): the servers that one load needs, each part alone."""
    link_bytes = load["gigabits_per_second"] * 1e9 / 8  # per second, in each direction
    read_numbers = load["dense_parameters"] + load["looked_up_rows"] * load["row_width"]
    sent_numbers = read_numbers + load["looked_up_rows"]
    step_seconds = load["compute_seconds"] + 4 * (read_numbers + sent_numbers) / link_bytes
    busy_links = load["workers"] * 4 * sent_numbers / step_seconds / link_bytes
    numbers = (load["dense_parameters"] + load["table_rows"] * load["row_width"]) * (1 + load["slots"])
    return math.ceil(4 * numbers / (load["memory_gigabytes"] * 1e9)), math.ceil(busy_links)


def _whole_servers(answers, seed):
    wrong = [servers for servers in answers["servers"] if type(servers) is not int or servers < 1]
    return not wrong or f"you return {wrong[0]!r}"


def _for(load):
    return f"for workers: {load['workers']}, and a table of {load['table_rows']:,} rows"


def _enough(part):
    """A target: the learner's servers are as many as this part of `_needed` alone."""

    def holds(answers, seed):
        for load, servers in zip(probes.loads(seed), answers["servers"], strict=True):
            if servers < _needed(load)[part]:
                return f"{servers} are too few {_for(load)}"
        return True

    return holds


def _no_fewer(answers, seed):
    for load, servers in zip(probes.loads(seed), answers["servers"], strict=True):
        if servers > max(1, *_needed(load)):
            return f"{servers} are more than needed {_for(load)}"
    return True


SERVERS = Question(
    name="q6",
    title="How many servers?",
    asks_for=("servers_needed",),
    probe=probes.probe_servers,
    answer=ANSWERS["q6"],
    targets=(
        Target("the number of servers is an int, 1 or more", _whole_servers),
        Target("their memories hold the parameters and the optimizer's slots", _enough(part=0)),
        Target("no link carries more than it can", _enough(part=1)),
        Target("with one server less, where that leaves any, one of the two fails", _no_fewer),
    ),
    mistakes=(
        Mistake(
            "bits and bytes",
            "You divide bytes by bits per second, so the links look eight times as fast.",
            "A byte has 8 bits.",
            edit={"* 1e9 / 8": "* 1e9"},
        ),
        Mistake(
            "slots forgotten",
            "Your servers hold the parameters and not what the optimizer keeps for each.",
            "Adam has two slots: three numbers per parameter.",
            edit={" * (1 + slots)": ""},
        ),
        Mistake(
            "whole table",
            "You let a worker read the whole table in each step, as Keras' own `Embedding` does.",
            "Here a worker reads `looked_up_rows` rows.",
            edit={"looked_up_rows * row_width": "table_rows * row_width"},
        ),
        Mistake(
            "row numbers forgotten",
            "You leave out the rows' numbers, which travel with their gradients.",
            "A worker sends more than it reads: 4 bytes for each row.",
            edit={"(row_width + 1)": "row_width"},
        ),
        Mistake(
            "both ways added",
            "You add up the two directions of a link.",
            "A link carries its rate in each direction at the same time: which of the two is the busier?",
            edit={"workers * sent_bytes": "workers * (read_bytes + sent_bytes)"},
        ),
        Mistake(
            "transfers take no time",
            "Your workers compute without a break, though they wait for their own links in every step.",
            "A step is reading, computing and sending, one after the other.",
            edit={"compute_seconds + (read_bytes + sent_bytes) / link_bytes": "compute_seconds"},
        ),
    ),
)


_LOOKUP = {"found": forms.array, "touched": [forms.size], "read_whole": forms.size}
_TABLE = {"shards": [(forms.flag, forms.text, forms.array)], "lookups": forms.either([_LOOKUP], forms.nothing)}
_TRAINED = {"counted": forms.number, "table": forms.array, str: forms.anything}
_TASKS = {"tasks": (forms.whole, forms.whole), "shards": [(forms.text, forms.size)], "staleness": [forms.distance]}
QUESTIONS = (
    forms.formed(STALENESS, {"staleness": [[forms.number]]}),
    forms.formed(SERVER, {"runs": [{"weights": forms.array, "used": [forms.scalar], "updates": forms.number}]}),
    forms.formed(TABLE, {"devices": forms.devices, **_TABLE}),
    forms.formed(TRAIN, {**_TASKS, **_TRAINED}),
    forms.formed(RECOVERY, {"reports": [(forms.whole, forms.number)], **_TRAINED}),
    forms.formed(SERVERS, {"servers": [forms.number]}),
)

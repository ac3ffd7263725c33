"""Exercise 04: staleness, a server, a table in pieces, asynchronous training, a killed server, a number of servers.

Needs NumPy; TensorFlow for q3's mistakes, and in the processes of q4's and q5's wrong programs.
"""

import math

import numpy as np

from course_lib import cluster
from course_lib.exercises.judges import ex04_programs as programs
from course_lib.exercises.judges import forms
from course_lib.exercises.probes import ex04 as probes
from course_lib.exercises.question import Mistake, Question, Target

FLOAT32 = 1e-5  # relative: some tens of additions to each number in float32
# Servers add without a lock, so under load an addition to one row is lost now and then: seen once in 7 runs, 0.6% of the
# largest number and 0.004% of the sum. A batch that is lost or applied twice changes the sum by 0.2% or more.
LOST_OF_SUM, LOST_OF_LARGEST = 1e-3, 2e-2


# q1: staleness from a record


def _staleness_of(counts=("applied",), since="read", first_read=False, own=0, by_worker=False, version=False):
    """The solution, with one thing wrong: see the mistakes for which."""

    def staleness_of(record):
        counted, began, found = 0, {}, []
        for worker, event in record:
            if event == "applied":
                at = began.get(worker, 0)
                found.append((worker, at if version else counted - at + own))
                began.pop(worker, None)
            counted += event in counts
            if event == since and not (first_read and worker in began):
                began[worker] = counted
        return [number for _, number in (sorted(found, key=lambda one: one[0]) if by_worker else found)]

    return staleness_of


def _updates_of(record):
    """Of each applied update its staleness, and whether its worker had read more than once for it."""
    reads, again = {}, []
    for worker, event in record:
        if event == "read":
            reads[worker] = reads.get(worker, 0) + 1
        else:
            again.append(reads.pop(worker) > 1)
    return list(zip(_staleness_of()(record), again))


def _one_number_each(answers, seed):
    for record, staleness in zip(probes.records(seed), answers["staleness"], strict=True):
        applied = sum(event == "applied" for _, event in record)
        if len(staleness) != applied:
            return f"{applied} updates were applied, and you return {len(staleness)} numbers"
        wrong = [number for number in staleness if type(number) is not int or number < 0]
        if wrong:
            return f"{wrong[0]!r} is among yours"
    return True


def _stale_by(read_again):
    def holds(answers, seed):
        for record, staleness in zip(probes.records(seed), answers["staleness"], strict=True):
            updates = _updates_of(record)
            kind = [place for place, (_, again) in enumerate(updates) if again == read_again]
            wrong = [place for place in kind if staleness[place] != updates[place][0]]
            if wrong:
                return f"{len(wrong)} of {len(kind)} are wrong, the first is update {wrong[0]}, counted from 0"
        return True

    return holds


STALENESS = Question(
    name="q1",
    title="How stale is each update?",
    asks_for=("staleness_of",),
    probe=probes.probe_staleness,
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
            _staleness_of(counts=("read",)),
        ),
        Mistake(
            "every event counted",
            "You count all lines between a worker's read and its update.",
            "Only one kind of line changes the weights on the server.",
            _staleness_of(counts=("read", "applied")),
        ),
        Mistake(
            "since its last update",
            "You count from a worker's last update, and it may read much later than that.",
            "The weights that a gradient belongs to are those of the worker's last read.",
            _staleness_of(since="applied"),
        ),
        Mistake(
            "first read",
            "A worker that was lost began anew, and you still count from the read that was lost.",
            "A second read by the same worker takes the place of the first.",
            _staleness_of(first_read=True),
        ),
        Mistake(
            "itself counted",
            "Yours are 1 too many: an update does not make itself stale.",
            "Count what was applied between the read and this update, neither of them included.",
            _staleness_of(own=1),
        ),
        Mistake(
            "worker by worker",
            "Your numbers are right and grouped by worker.",
            "One number per applied update, in the order of the record.",
            _staleness_of(by_worker=True),
        ),
        Mistake(
            "version read",
            "You return the version that each worker read, and not how far the server has gone on since.",
            "Staleness is the version when it is applied less the version when it was read.",
            _staleness_of(version=True),
        ),
    ),
)


# q2: a server that refuses what is too stale


def _server(
    copies=True,
    onto_read=False,
    refuses=lambda staleness, bound: staleness > bound,
    refused_counts=False,
    refused_fades=False,
    own_momentum=False,
    keeps_momentum=True,
    direction=-1,
    tells=True,
    own_version=False,
):
    """The solution, with one thing wrong: see the mistakes for which."""

    class Server:
        def __init__(self, first_weights, rate, momentum, bound):
            self.weights, self.updates = np.array(first_weights, "float64"), 0
            self._rate, self._momentum, self._bound = rate, momentum * keeps_momentum, bound
            self._began, self._velocity = {}, {}

        def read(self, worker):
            self._began[worker] = 0 if own_version else self.updates, self.weights.copy()
            return self.weights.copy() if copies else self.weights

        def apply(self, worker, gradient):
            read_at, read_weights = self._began[worker]
            owner = worker if own_momentum else "everybody"
            velocity = self._velocity.get(owner, np.zeros_like(self.weights))
            if refuses(self.updates - read_at, self._bound):
                self.updates += refused_counts
                if refused_fades:
                    self._velocity[owner] = self._momentum * velocity
                return False if tells else None
            velocity = self._velocity[owner] = self._momentum * velocity + direction * self._rate * gradient
            self.weights += read_weights + velocity - self.weights if onto_read else velocity
            self.updates += 1
            return True if tells else None

    return Server


def _driven(seed):
    return [(run, probes.drive(_server(), run)) for run in probes.server_runs(seed)]


def _bounds_kept(answers, seed):
    for (run, wanted), answer in zip(_driven(seed), answers["runs"], strict=True):
        used, bound = answer["used"], run["settings"]["bound"]
        if any(type(told) is not bool for told in used):
            return f"apply returns {next(told for told in used if type(told) is not bool)!r}"
        wrong = [place for place, (one, other) in enumerate(zip(used, wanted["used"], strict=True)) if one != other]
        if wrong:
            told = "used" if used[wrong[0]] else "refused"
            return f"bound {bound}: {len(wrong)} of {len(used)} are wrong, the first is number {wrong[0]}, which yours {told}"
    return True


def _weights_served(answers, seed):
    for (run, wanted), answer in zip(_driven(seed), answers["runs"], strict=True):
        if answer["weights"].shape != wanted["weights"].shape:
            return f"yours have the shape {answer['weights'].shape[1:]}"
        off = np.abs(answer["weights"] - wanted["weights"]).max(axis=1) / np.abs(wanted["weights"]).max()
        wrong = np.flatnonzero(~(off <= FLOAT32))
        if wrong.size:
            worker, turn = run["turns"][wrong[0]]
            when = f"after turn {wrong[0]}, in which worker {worker} {'read' if turn == 'read' else 'applied'}"
            return f"bound {run['settings']['bound']}: they are off by {off[wrong[0]]:.2%} {when}"
    return True


def _used_counted(answers, seed):
    for (run, wanted), answer in zip(_driven(seed), answers["runs"], strict=True):
        if answer["updates"] != wanted["updates"]:
            return f"bound {run['settings']['bound']}: updates is {answer['updates']} at the end"
    return True


SERVER = Question(
    name="q2",
    title="Build the server",
    asks_for=("Server",),
    probe=probes.probe_server,
    targets=(
        Target(
            "apply uses a gradient that is stale by at most the bound, refuses others, and tells which", _bounds_kept
        ),
        Target("after every turn the weights are right to 0.001%", _weights_served),
        Target("updates counts the gradients that were used", _used_counted),
    ),
    mistakes=(
        Mistake(
            "says nothing",
            "`apply` returns nothing, so a worker never learns what became of its gradient.",
            "True where the gradient was used, False where it was refused.",
            _server(tells=False),
            lambda answers, seed: all(told is None for run in answers["runs"] for told in run["used"]),
        ),
        Mistake(
            "shared array",
            "What `read` returns changes under the worker's hands whenever somebody else's gradient is applied.",
            "`+=` on an array changes it for everybody who holds it.",
            _server(copies=False),
        ),
        Mistake(
            "others' updates lost",
            "You add the step to the weights that the worker read, which undoes what others applied since.",
            "A gradient may be stale; the weights that it is added to are the server's present ones.",
            _server(onto_read=True),
        ),
        Mistake(
            "bound too tight",
            "You refuse a gradient whose staleness is the bound itself.",
            "At most the bound: what does bound 0 allow?",
            _server(refuses=lambda staleness, bound: staleness >= bound),
        ),
        Mistake(
            "no bound",
            "You use every gradient, however stale it is.",
            "Compare the updates since this worker's read with `bound`.",
            _server(refuses=lambda staleness, bound: False),
        ),
        Mistake(
            "refused ones counted",
            "A refused gradient counts as an update, so the others look staler than they are.",
            "Only what changes the weights is an update.",
            _server(refused_counts=True),
        ),
        Mistake(
            "worker's own count",
            "You take all updates since the start for staleness, not those since the worker's read.",
            "What must `read` remember of the moment at which it is called?",
            _server(own_version=True),
        ),
        Mistake(
            "refused ones fade",
            "A refused gradient still wears the momentum off.",
            "Refused means that nothing on the server changes.",
            _server(refused_fades=True),
        ),
        Mistake(
            "momentum per worker",
            "Each worker has a velocity of its own, and the server's optimizer has one.",
            "The weights have one owner, and so has the optimizer's state.",
            _server(own_momentum=True),
        ),
        Mistake(
            "no momentum",
            "Your steps are plain SGD's: `momentum` changes nothing.",
            "velocity = momentum * velocity - rate * gradient, kept from one update to the next.",
            _server(keeps_momentum=False),
        ),
        Mistake(
            "uphill",
            "You add the gradient, and the weights climb.",
            "The sign of rate * gradient.",
            _server(direction=1),
        ),
    ),
)


# q3: a table in pieces


def _parts_even(table, count):
    return np.array_split(table, count)


def _cut_table(parts=_parts_even, placed=True, variables=True):
    """The solution, with one thing wrong: see the mistakes for which."""

    def cut_table(table, device_names):
        import tensorflow as tf

        shards = []
        for part, name in zip(parts(table, len(device_names)), device_names):
            with tf.device(name if placed else device_names[0]):
                shards.append(tf.Variable(part) if variables else tf.constant(part))
        return shards

    return cut_table


def _parts_rounded_up(table, count):
    size = -(-len(table) // count)
    return [table[size * place : size * (place + 1)] for place in range(count)]


def _parts_rest_to_the_last(table, count):
    size = len(table) // count
    return [*(table[size * place : size * (place + 1)] for place in range(count - 1)), table[size * (count - 1) :]]


def _parts_rounded_down(table, count):
    size = len(table) // count
    return [table[size * place : size * (place + 1)] for place in range(count)]


def _look_up(shards, numbers):
    return _stitched(*_found_by_shard(shards, numbers))


def _found_by_shard(shards, numbers, local=True):
    """Of each shard the places in `numbers` that it holds, and their rows."""
    import tensorflow as tf

    places, rows, start = [], [], 0
    for shard in shards:
        held = tf.where((numbers >= start) & (numbers < start + shard.shape[0]))[:, 0]
        places.append(tf.cast(held, "int32"))
        rows.append(tf.gather(shard, tf.gather(numbers, held) - start * local))
        start += shard.shape[0]
    return places, rows


def _stitched(places, rows):
    import tensorflow as tf

    return tf.dynamic_stitch(places, rows)


def _table_joined(shards, numbers):
    import tensorflow as tf

    return tf.gather(tf.concat(shards, 0), numbers)


def _everywhere_and_masked(shards, numbers):
    import tensorflow as tf

    found, start = 0, 0
    for shard in shards:
        last = shard.shape[0] - 1
        held = tf.cast((numbers >= start) & (numbers <= start + last), "float32")
        found += held[:, None] * tf.gather(shard, tf.clip_by_value(numbers - start, 0, last))
        start += shard.shape[0]
    return found


def _shard_by_shard(shards, numbers):
    import tensorflow as tf

    return tf.concat(_found_by_shard(shards, numbers)[1], 0)


def _tables_numbers(shards, numbers):
    return _stitched(*_found_by_shard(shards, numbers, local=False))


def _one_each(answers, seed):
    wrong = [device for variable, device, _ in answers["shards"] if not variable]
    if wrong:
        return f"{len(wrong)} of {len(answers['shards'])} are no tf.Variable"
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
        wrong = np.any(lookup["found"] != table[numbers], axis=1).sum()
        if wrong:
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


def _cuts(name, what, where, recognise, **wrong):
    return Mistake(name, what, where, {"cut_table": _cut_table(**wrong), "look_up": _look_up}, recognise)


def _looks_up(name, what, where, recognise, wrong):
    return Mistake(name, what, where, {"cut_table": _cut_table(), "look_up": wrong}, recognise)


def _shards_like(parts):
    """Recognise shards by their rows."""

    def recognise(answers, seed):
        table, _ = probes.table_to_cut(seed)
        wrong = parts(table, len(answers["devices"]))
        return all(np.array_equal(rows, part) for (_, _, rows), part in zip(answers["shards"], wrong, strict=True))

    return recognise


def _found_in_order_of_shards(answers, seed):
    table, batches = probes.table_to_cut(seed)
    sorted_by_shard = (np.argsort(_shard_of(numbers, answers["shards"]), kind="stable") for numbers in batches)
    return all(
        np.array_equal(lookup["found"], table[numbers][order])
        for numbers, order, lookup in zip(batches, sorted_by_shard, answers["lookups"], strict=True)
    )


def _shard_of(numbers, shards):
    return np.searchsorted(np.cumsum([len(rows) for _, _, rows in shards]), numbers, side="right")


def _found_right(answers, seed):
    return _rows_found(answers, seed) is True


TABLE = Question(
    name="q3",
    title="Cut a table, and leave it where it is",
    asks_for=("cut_table", "look_up"),
    probe=probes.probe_table,
    targets=(
        Target("one variable on each device, in order", _one_each),
        Target("one below the other, the shards are the table: nothing twice, nothing missing", _whole_table),
        Target("no two of them differ by more than 1 row", _within_a_row),
        Target("look_up gives the rows asked for, in that order", _rows_found),
        Target("of all shards together no more rows are taken than numbers are asked for", _rows_alone),
    ),
    mistakes=(
        _cuts(
            "no variables",
            "Your shards are tensors: no update can change them.",
            "`tf.Variable`.",
            lambda answers, seed: not any(variable for variable, _, _ in answers["shards"]),
            variables=False,
        ),
        _cuts(
            "all on one device",
            "All your shards are on one device, which then holds the whole table.",
            "A variable lives where it is made: `with tf.device(name):`.",
            lambda answers, seed: len({device for _, device, _ in answers["shards"]}) == 1,
            placed=False,
        ),
        _cuts(
            "table on each",
            "Every device holds the whole table; that is replication, and it saves no memory.",
            "Each device gets its part of the rows.",
            _shards_like(lambda table, count: [table] * count),
            parts=lambda table, count: [table] * count,
        ),
        _cuts(
            "dealt out in turn",
            "You deal the rows out like cards; the question asks for neighbouring rows.",
            "One shard below the other must be the table.",
            _shards_like(lambda table, count: [table[place::count] for place in range(count)]),
            parts=lambda table, count: [table[place::count] for place in range(count)],
        ),
        _cuts(
            "leftovers dropped",
            "The rows that are left over when you divide are on no device.",
            "`//` throws `len(table) % len(device_names)` rows away: who takes them?",
            _shards_like(_parts_rounded_down),
            parts=_parts_rounded_down,
        ),
        _cuts(
            "rounded up",
            "You round the size up for all, so the last device gets what is left, which is too little.",
            "Fewer rows are left over than there are devices: one each for some of them.",
            _shards_like(_parts_rounded_up),
            parts=_parts_rounded_up,
        ),
        _cuts(
            "rest to the last",
            "The last device gets all that is left over.",
            "Fewer rows are left over than there are devices: one each for some of them.",
            _shards_like(_parts_rest_to_the_last),
            parts=_parts_rest_to_the_last,
        ),
        _looks_up(
            "table joined",
            "You put the table together before you pick from it, so all of it travels for a few rows.",
            "Pick from each shard what it holds, and join what was picked.",
            lambda answers, seed: _found_right(answers, seed) and answers["lookups"][0]["read_whole"] > 1,
            _table_joined,
        ),
        _looks_up(
            "everywhere and masked",
            "Every shard gives a row for every number, and most of them are thrown away on the other side.",
            "Which of the numbers does a shard hold? Take those alone.",
            lambda answers, seed: (
                _found_right(answers, seed)
                and all(
                    lookup["touched"] == [len(numbers)] * len(answers["shards"])
                    for numbers, lookup in zip(probes.table_to_cut(seed)[1], answers["lookups"], strict=True)
                )
            ),
            _everywhere_and_masked,
        ),
        _looks_up(
            "shard by shard",
            "Your rows are right but in the order of the shards.",
            "Remember where in `numbers` each row was asked for: `tf.dynamic_stitch` puts them back.",
            _found_in_order_of_shards,
            _shard_by_shard,
        ),
        _looks_up(
            "the table's numbers",
            "You ask a shard for a row by its number in the whole table.",
            "A shard counts its rows from 0: subtract the number of its first row.",
            lambda answers, seed: "is not in [0," in answers["stopped"]["error"],
            _tables_numbers,
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
    workers, servers = answers["tasks"]
    return [workers, servers] == [2, 2] or f"your job has {workers} and {servers}"


def _cut_over_both(answers, seed):
    rows = {server: 0 for server, _ in answers["shards"]}
    for server, held in answers["shards"]:
        rows[server] += held
    said = ", ".join(f"{server} with {held} rows" for server, held in answers["shards"])
    table = probes.visits(seed)["rows"]
    even = rows.keys() == {"ps 0", "ps 1"} and abs(rows["ps 0"] - rows["ps 1"]) <= 1
    return even and len(answers["shards"]) == 2 and sum(rows.values()) == table or f"of {table} rows yours are {said}"


def _all_counted(answers, seed):
    counted = answers["counted"]
    return counted == probes.UPDATES or f"{counted} of {probes.UPDATES}"


def _each_applied_once(answers, seed):
    settings = probes.visits(seed)
    return _is_table(answers["table"], _table_after(settings, settings["batches"]))


def _asynchronous(answers, seed):
    staleness = answers["staleness"]
    if len(staleness) != probes.UPDATES:
        return f"you return {len(staleness)} of them for {probes.UPDATES} updates"
    return sum(staleness) > 0 or "none of yours is stale: nobody worked while another did"


def _table_is(factor=lambda settings, batch: batch):
    """Recognise the table that the batches give once each is changed."""

    def recognise(answers, seed):
        settings = probes.visits(seed)
        changed = [factor(settings, batch) for batch in settings["batches"]]
        return _is_table(answers["table"], _table_after(settings, changed)) is True

    return recognise


def _summed_batch(settings, batch):
    numbers, values = batch
    return numbers, np.float64(values) * len(values)


def _worth_one(settings, batch):
    numbers, values = batch
    return numbers, np.ones(len(values))


def _runs(program, servers=2):
    """The names of a learner whose coordinator's program is this one."""

    def make_job(arguments):
        return cluster.Job(program, workers=2, parameter_servers=servers, arguments=arguments)

    return {"train": program, "make_job": make_job}


TRAIN = Question(
    name="q4",
    title="Train on two servers",
    asks_for=("train", "make_job"),
    probe=probes.probe_train,
    takes_long=True,
    targets=(
        Target("two workers and two servers", _two_and_two),
        Target("the table is in two shards, one on each server, within one row of equal", _cut_over_both),
        Target(f"the optimizer counts all {probes.UPDATES} updates", _all_counted),
        Target(
            "the table is what every batch, applied once, makes of it: its sum to 0.1%, each number to 2% of the largest",
            _each_applied_once,
        ),
        Target("workers overlap: some updates are stale", _asynchronous),
    ),
    mistakes=(
        Mistake(
            "one server",
            "Your job has one server, so the whole table is on it.",
            "`cluster.Job` takes the number of parameter servers.",
            _runs(programs.train, servers=1),
            lambda answers, seed: answers["tasks"] == [2, 1],
        ),
        Mistake(
            "model outside the scope",
            "The table is on the coordinator, and the servers hold nothing of it.",
            "Make model and optimizer inside `with strategy.scope():`.",
            _runs(programs.outside_the_scope),
            lambda answers, seed: not any(server.startswith("ps") for server, _ in answers["shards"]),
        ),
        Mistake(
            "not waited for",
            "You look at the table while steps are still under way.",
            "`schedule` returns at once. What waits until all of them are done?",
            _runs(programs.not_waited_for),
            lambda answers, seed: answers["counted"] < probes.UPDATES and _each_applied_once(answers, seed) is not True,
        ),
        Mistake(
            "not cut",
            "One server holds the whole table: nothing told TensorFlow to cut it.",
            "`parameter_server.connect` takes a partitioner.",
            _runs(programs.not_cut),
            lambda answers, seed: len(answers["shards"]) == 1,
        ),
        Mistake(
            "cut too often",
            "Your table is in more pieces than there are servers.",
            "The number of shards that you give the partitioner.",
            _runs(programs.cut_in_four),
            lambda answers, seed: len(answers["shards"]) > 2,
        ),
        Mistake(
            "lost counts",
            "Every update is in the table, and the optimizer has not counted all of them.",
            "Keras reads its counter, adds one and assigns it. What mended that in the lesson?",
            _runs(programs.counted_as_keras_counts),
            lambda answers, seed: answers["counted"] < probes.UPDATES and _each_applied_once(answers, seed) is True,
        ),
        Mistake(
            "in turns",
            "You wait after each step, so one worker is always idle.",
            "Schedule all steps, and then wait once.",
            _runs(programs.in_turns),
            lambda answers, seed: not any(answers["staleness"]),
        ),
        Mistake(
            "summed",
            "Your steps are as many times too long as a batch has visits.",
            "The loss of a batch is the mean over its visits.",
            _runs(programs.summed),
            _table_is(_summed_batch),
        ),
        Mistake(
            "without values",
            "You count every visit as worth 1.",
            "The loss of a visit has its value as a factor.",
            _runs(programs.without_values),
            _table_is(_worth_one),
        ),
    ),
)


# q5: a killed server


def _saved(seed):
    return probes.visits_through(seed)["dies_after"] // probes.SAVE_EVERY * probes.SAVE_EVERY


def _told(answers, attempt):
    return [done for number, done in answers["reports"] if number == attempt]


def _goes_on_after_the_save(answers, seed):
    first = min(_told(answers, attempt=1), default=None)
    if first is None:
        return "the second attempt reports nothing: report `done` after each group"
    died, every = probes.visits_through(seed)["dies_after"], probes.SAVE_EVERY
    said = (
        f"killed after update {died}, with a save after every {every}, yours have {first} behind them after one group"
    )
    return first == _saved(seed) + probes.TOGETHER or said


def _counted_through(answers, seed):
    return answers["counted"] == probes.RUN or f"{answers['counted']} of {probes.RUN}"


def _applied_through(answers, seed):
    return _applied(seed, (0, probes.RUN))(answers)


def _applied(seed, *spans):
    """Whether the table is what these spans of the batches make of it."""
    settings = probes.visits_through(seed)
    batches = [batch for first, last in spans for batch in settings["batches"][first:last]]
    return lambda answers: _is_table(answers["table"], _table_after(settings, batches))


def _began(update, *spans):
    """Recognise a second attempt by the updates before its first group, and the batches in the final table."""

    def recognise(answers, seed):
        saved = _saved(seed)
        given = [tuple(place(saved) for place in span) for span in spans]
        right_table = _applied(seed, *given)(answers) is True
        return min(_told(answers, attempt=1)) == update(saved) + probes.TOGETHER and right_table

    return recognise


def _zero(saved):
    return 0


def _save(saved):
    return saved


def _end(saved):
    return probes.RUN


def _rest(saved):
    return probes.RUN - saved


def _saved_too_often(answers, seed):
    return min(_told(answers, attempt=1)) == probes.visits_through(seed)["dies_after"] + probes.TOGETHER


def _counter_anew(answers, seed):
    return answers["counted"] == probes.RUN - _saved(seed) and _applied_through(answers, seed) is True


RECOVERY = Question(
    name="q5",
    title="Lose the server, and nothing else",
    asks_for=("train_through",),
    probe=probes.probe_recovery,
    takes_long=True,
    targets=(
        Target("after the kill the run goes on behind the last save", _goes_on_after_the_save),
        Target(f"the optimizer counts {probes.RUN} updates, neither less nor more", _counted_through),
        Target(
            "the table is what every batch, applied once, makes of it: its sum to 0.1%, each number to 2% of the largest",
            _applied_through,
        ),
    ),
    mistakes=(
        Mistake(
            "nobody killed",
            "The run was never disturbed, because your loop does not let the power be cut.",
            "Call `power_cut(done)` at the end of each group.",
            programs.never_cut,
            lambda answers, seed: answers["stopped"]["error"] == probes.NOBODY_DIED,
        ),
        Mistake(
            "counter forgotten",
            "The table comes back, and the optimizer counts from zero.",
            "The saved state needs the optimizer as well.",
            programs.counter_forgotten,
            _counter_anew,
        ),
        Mistake(
            "state without a home",
            "After the kill your run starts from nothing: what was saved is not found again.",
            "Which folder do all attempts share? And is the restore called before the loop?",
            programs.folder_of_its_own,
            _began(_zero, (_zero, _end)),
        ),
        Mistake(
            "all batches again",
            "The table comes back, and then all batches are applied to it once more.",
            "How many updates does the restored optimizer have behind it? Start the loop there.",
            programs.all_batches_again,
            _began(_zero, (_zero, _save), (_zero, _end)),
        ),
        Mistake(
            "first batches again",
            "After the kill the number of updates is right, but the batches begin with the first one.",
            "The batches from number `done` on are still to come.",
            programs.first_batches_again,
            _began(_save, (_zero, _save), (_zero, _rest)),
        ),
        Mistake(
            "table forgotten",
            "The count comes back, and the table starts from zeros.",
            "The saved state needs the model as well, and nothing may set its weights after the restore.",
            programs.table_forgotten,
            _began(_save, (_save, _end)),
        ),
        Mistake(
            "saved too often",
            "You save after every group; on a large model that costs more than it saves.",
            "Save where `save_every` divides the updates that are done.",
            programs.saved_after_every_group,
            _saved_too_often,
        ),
    ),
)


# q6: a number of servers


def _servers_needed(
    bits=8,
    gigabyte=1e9,
    slots=True,
    reads=lambda looked_up, table: looked_up,
    numbers_sent=True,
    dense=True,
    busier=max,
    transfers=True,
    memory=True,
    links=True,
    whole=math.ceil,
):
    """The solution, with one thing wrong: see the mistakes for which."""

    def servers_needed(
        workers,
        compute_seconds,
        dense_parameters,
        table_rows,
        row_width,
        looked_up_rows,
        slots_,
        memory_gigabytes,
        gigabits_per_second,
    ):
        link_bytes = gigabits_per_second * 1e9 / bits
        read_bytes = 4 * (dense_parameters * dense + reads(looked_up_rows, table_rows) * row_width)
        sent_bytes = 4 * (dense_parameters * dense + looked_up_rows * row_width + looked_up_rows * numbers_sent)
        step_seconds = compute_seconds + transfers * (read_bytes + sent_bytes) / link_bytes
        busy = workers * busier((read_bytes, sent_bytes)) / step_seconds / link_bytes
        held_bytes = 4 * (dense_parameters + table_rows * row_width) * (1 + slots_ * slots)
        full = held_bytes / (memory_gigabytes * gigabyte)
        return max(1, whole(busy * links), whole(full * memory))

    def by_name(*, slots, **load):
        return servers_needed(slots_=slots, **load)

    return by_name


def _whole_servers(answers, seed):
    wrong = [servers for servers in answers["servers"] if type(servers) is not int or servers < 1]
    return not wrong or f"you return {wrong[0]!r}"


def _for(load):
    return f"for {load['workers']} worker{'s' * (load['workers'] > 1)} and a table of {load['table_rows']:,} rows"


def _needs(**without):
    """A target: the learner's servers are as many as this part of the task alone needs."""

    def holds(answers, seed):
        for load, servers in zip(probes.loads(seed), answers["servers"], strict=True):
            if servers < _servers_needed(**without)(**load):
                return f"{servers} are too few {_for(load)}"
        return True

    return holds


def _no_fewer(answers, seed):
    for load, servers in zip(probes.loads(seed), answers["servers"], strict=True):
        if servers > _servers_needed()(**load):
            return f"{servers} are more than needed {_for(load)}"
    return True


SERVERS = Question(
    name="q6",
    title="How many servers?",
    asks_for=("servers_needed",),
    probe=probes.probe_servers,
    targets=(
        Target("the number of servers is an int, 1 or more", _whole_servers),
        Target("their memories hold the parameters and the optimizer's slots", _needs(links=False)),
        Target("no link carries more than it can", _needs(memory=False)),
        Target("with one server less, where that leaves any, one of the two fails", _no_fewer),
    ),
    mistakes=(
        Mistake(
            "bits and bytes",
            "You divide bytes by bits per second, so the links look eight times as fast.",
            "A byte has 8 bits.",
            _servers_needed(bits=1),
        ),
        Mistake(
            "slots forgotten",
            "Your servers hold the parameters and not what the optimizer keeps for each.",
            "Adam has two slots: three numbers per parameter.",
            _servers_needed(slots=False),
        ),
        Mistake(
            "whole table",
            "You let a worker read the whole table in each step, as Keras' own `Embedding` does.",
            "Here a worker reads `looked_up_rows` rows.",
            _servers_needed(reads=lambda looked_up, table: table),
        ),
        Mistake(
            "row numbers forgotten",
            "You leave out the rows' numbers, which travel with their gradients.",
            "A worker sends more than it reads: 4 bytes for each row.",
            _servers_needed(numbers_sent=False),
        ),
        Mistake(
            "dense ones forgotten",
            "You count the rows alone; the dense parameters travel whole, both ways.",
            "What besides the table does a worker need for a step?",
            _servers_needed(dense=False),
        ),
        Mistake(
            "both ways added",
            "You put both directions on one wire.",
            "A link carries its rate in each direction at the same time: which of the two is the busier?",
            _servers_needed(busier=sum),
        ),
        Mistake(
            "reads alone",
            "You look at what the servers send, and they receive more than that.",
            "Which of the two directions is the busier?",
            _servers_needed(busier=min),
        ),
        Mistake(
            "transfers take no time",
            "Your workers compute without a break, though they wait for their own links in every step.",
            "A step is reading, computing and sending, one after the other.",
            _servers_needed(transfers=False),
        ),
        Mistake(
            "memory forgotten",
            "You look at the links alone, and a table may not fit.",
            "The larger of two numbers: enough memory, and enough bandwidth.",
            _servers_needed(memory=False),
        ),
        Mistake(
            "links forgotten",
            "Your servers are enough for the memory, and not for what all workers together read and send.",
            "The larger of two numbers: enough memory, and links for the traffic of all workers.",
            _servers_needed(links=False),
        ),
        Mistake(
            "rounded down",
            "You round down, and have a little too little.",
            "The smallest whole number that is large enough: `math.ceil`.",
            _servers_needed(whole=math.floor),
        ),
        Mistake(
            "a fraction",
            "You return a fraction of a server.",
            "The smallest whole number that is large enough: `math.ceil`.",
            _servers_needed(whole=float),
        ),
        Mistake(
            "binary gigabytes",
            "You take a gigabyte for 1,073,741,824 bytes.",
            "A gigabyte is 1e9 bytes, as a gigabit is 1e9 bits.",
            _servers_needed(gigabyte=2**30),
        ),
    ),
)


_LOOKUP = {"found": forms.array, "touched": [forms.size], "read_whole": forms.size}
_TRAINED = {"counted": forms.number, "table": forms.array, str: forms.anything}
QUESTIONS = (
    forms.formed(STALENESS, {"staleness": [[forms.number]]}),
    forms.formed(SERVER, {"runs": [{"weights": forms.array, "used": [forms.scalar], "updates": forms.number}]}),
    forms.formed(
        TABLE,
        {
            "devices": forms.devices,
            "shards": [(forms.flag, forms.text, forms.array)],
            "lookups": forms.either([_LOOKUP], forms.nothing),
        },
    ),
    forms.formed(
        TRAIN,
        {
            "tasks": (forms.whole, forms.whole),
            "shards": [(forms.text, forms.size)],
            "staleness": [forms.distance],
            **_TRAINED,
        },
    ),
    forms.formed(RECOVERY, {"reports": [(forms.whole, forms.number)], **_TRAINED}),
    forms.formed(SERVERS, {"servers": [forms.number]}),
)

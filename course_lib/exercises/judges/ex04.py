"""Exercise 04: staleness, a server, a table in pieces, asynchronous training, a killed server, a number of servers.

Needs NumPy; TensorFlow for q3's mistakes, and in the processes of q4 and q5.
"""

import math

import numpy as np

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.probes import ex04 as probes
from course_lib.exercises.question import Target

question = question_maker.of("04_parameter_server")
SHORT = 5  # events of a record that a line can hold
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
                if len(record) <= SHORT:
                    wanted = [number for number, _ in updates]
                    return f"for {', '.join(map(' '.join, record))} you return {staleness}, and {wanted} is wanted"
                return f"{len(wrong)} of {len(kind)} are wrong, the first is update {wrong[0]}, counted from 0"
        return True

    return holds


STALENESS = question(
    name="q1",
    title="How stale is each update?",
    asks_for=("staleness_of",),
    probe=probes.probe_staleness,
    form={"staleness": [[forms.number]]},
    targets=(
        Target("one int per applied update, 0 or more", _one_number_each),
        Target("right for the updates of workers that read once", _stale_by(read_again=False)),
        Target("right for the updates of workers that were lost and read again", _stale_by(read_again=True)),
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


def _first_weights_kept(answers, seed):
    kept = [
        np.array_equal(own["first_weights"], run["settings"]["first_weights"]) for run, _, own in _runs(answers, seed)
    ]
    return all(kept) or "after the run the array that the server was made with holds other numbers"


SERVER = question(
    name="q2",
    title="Build the server",
    asks_for=("Server",),
    probe=probes.probe_server,
    form={
        "runs": [
            {"weights": forms.array, "used": [forms.scalar], "updates": forms.number, "first_weights": forms.array}
        ]
    },
    targets=(
        Target(
            "apply uses a gradient that is stale by at most the bound, refuses others, and returns which", _bounds_kept
        ),
        Target("after every turn the weights are right to 0.001%", _weights_served),
        Target("updates counts the gradients that were used", _used_counted),
        Target("first_weights, which is the caller's, stays as it was", _first_weights_kept),
    ),
    recognise={
        "says nothing": lambda answers, seed: all(used is None for run in answers["runs"] for used in run["used"])
    },
)


# q3: a table in pieces


def _tables(answers, seed):
    """Each table, its batches of numbers, and what was made of them; the first alone where that failed."""
    return [(table, batches, made) for (table, batches), made in zip(probes.tables_to_cut(seed), answers["tables"])]


def _one_each(answers, seed):
    cases = zip(_tables(answers, seed), (answers["devices"], answers["devices"][1:]))
    for (table, _, made), names in cases:
        if wrong := [device for variable, device, _ in made["shards"] if not variable]:
            return f"{len(wrong)} of {len(made['shards'])} are not a tf.Variable"
        devices = [device for _, device, _ in made["shards"]]
        wanted = [name.rsplit("device:", 1)[-1] for name in names]
        if devices != wanted:
            return f"for {len(table)} rows on {', '.join(wanted)} yours are on {', '.join(devices)}"
    return True


def _whole_table(answers, seed):
    for table, _, made in _tables(answers, seed):
        if other := [rows.shape for _, _, rows in made["shards"] if rows.shape[1:] != table.shape[1:]]:
            return f"the table has the shape {table.shape}, and a shard of yours {other[0]}"
        joined = np.concatenate([rows for _, _, rows in made["shards"]])
        if len(joined) != len(table):
            return f"the table has {len(table)} rows, and your shards have {len(joined)}"
        if not np.array_equal(joined, table):
            return "one shard below the other, they are not the table"
    return True


def _within_a_row(answers, seed):
    for _, _, made in _tables(answers, seed):
        sizes = [len(rows) for _, _, rows in made["shards"]]
        if max(sizes) - min(sizes) > 1:
            return f"they have {', '.join(map(str, sizes))} rows"
    return True


def _lookups(answers, seed):
    """Table, numbers, what was looked up; None where a table was not cut evenly."""
    tables = _tables(answers, seed)
    if any(made["lookups"] is None for _, _, made in tables):
        return None
    return [
        (table, numbers, lookup)
        for table, batches, made in tables
        for numbers, lookup in zip(batches, made["lookups"], strict=True)
    ]


def _rows_found(answers, seed):
    if (lookups := _lookups(answers, seed)) is None:
        return "nothing is looked up before the table is cut evenly"
    for table, numbers, lookup in lookups:
        if lookup["found"].shape != table[numbers].shape:
            return f"for {len(numbers)} numbers you return {list(lookup['found'].shape)}"
        if wrong := np.any(lookup["found"] != table[numbers], axis=1).sum():
            return f"{wrong} of {len(numbers)} rows are not the ones asked for"
    return True


def _rows_alone(answers, seed):
    if (lookups := _lookups(answers, seed)) is None:
        return "nothing is looked up before the table is cut evenly"
    for _, numbers, lookup in lookups:
        if lookup["read_whole"]:
            return f"{lookup['read_whole']} of {len(lookup['touched'])} shards are read whole"
        if not len(np.unique(numbers)) <= sum(lookup["touched"]) <= len(numbers):
            return f"for {len(numbers)} numbers the shards' gradients have {sum(lookup['touched'])} rows"
    return len(answers["tables"]) == 2 or "no other table is cut before the first one's rows are found"


def _number_in_the_whole_table(answers, seed):
    """Whether a shard was asked for the first batch's one number, which is in its middle."""
    _, batches = probes.tables_to_cut(seed)[0]
    return f"= {batches[0].item()} is not in [0," in answers["stopped"]["error"]


def _table_joined(answers, seed):
    return _rows_found(answers, seed) is True and answers["tables"][0]["lookups"][0]["read_whole"] > 1


def _dealt_out(answers, seed):
    table, _, made = _tables(answers, seed)[0]
    dealt = [table[place :: len(made["shards"])] for place in range(len(made["shards"]))]
    return all(np.array_equal(rows, one) for (_, _, rows), one in zip(made["shards"], dealt))


def _no_gradient(answers, seed):
    """The right rows, and no shard has a gradient."""
    lookups = answers["tables"][0]["lookups"]
    return _rows_found(answers, seed) is True and not any(sum(lookup["touched"]) for lookup in lookups)


_LOOKUP = {"found": forms.array, "touched": [forms.size], "read_whole": forms.size}
_SHARDS = [(forms.flag, forms.text, forms.array)]
_TABLE = {"shards": _SHARDS, "lookups": forms.either([_LOOKUP], forms.nothing)}
TABLE = question(
    name="q3",
    title="Cut a table, and leave it where it is",
    asks_for=("cut_table", "look_up"),
    probe=probes.probe_table,
    form={"devices": forms.devices, "tables": forms.either((_TABLE,), (_TABLE, _TABLE))},
    targets=(
        Target("one variable on each device, in order", _one_each),
        Target("one below the other, the shards are the table: nothing twice, nothing missing", _whole_table),
        Target("no two of them differ by more than 1 row", _within_a_row),
        Target("look_up gives the rows asked for, in that order", _rows_found),
        Target("of all shards together no more rows are taken than numbers are asked for", _rows_alone),
    ),
    recognise={
        "no variables": lambda answers, seed: (
            not any(variable for made in answers["tables"] for variable, _, _ in made["shards"])
        ),
        "all on one device": lambda answers, seed: all(
            len({device for _, device, _ in made["shards"]}) == 1 for made in answers["tables"]
        ),
        "not differentiable": _no_gradient,
        "table joined": _table_joined,
        "rows dealt out": _dealt_out,
        "equal parts alone": lambda answers, seed: (
            "does not result in an equal division" in answers["stopped"]["error"]
        ),
        "the table's numbers": _number_in_the_whole_table,
    },
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
    rows, held = probes.visits(seed)["rows"], sorted([server, len(held)] for server, held in answers["seen"]["shards"])
    right = [server for server, _ in held] == ["ps 0", "ps 1"]
    if not (right and sorted(number for _, number in held) == [rows // 2, rows - rows // 2]):
        return f"of {rows} rows the servers hold {_listed(held)}"
    return sorted(answers["shards"]) == held or f"the servers hold {_listed(held)}, and you return {answers['shards']}"


def _listed(shards):
    return ", ".join(f"{rows} on {server}" for server, rows in shards) or "none"


def _counted(answers, wanted):
    if wanted not in answers["seen"]["counted"]:
        return f"{' or '.join(map(str, answers['seen']['counted'])) or 'no optimizer has counted any'} of {wanted}"
    return answers["counted"] == wanted or f"it counts {wanted}, and you return {answers['counted']}"


def _each_applied_once(answers, seed):
    settings = probes.visits(seed)
    wanted = _table_after(settings, settings["batches"])
    found = _is_table(answers["table"], wanted)
    return found if found is not True else _are_on_servers(answers, wanted)


def _are_on_servers(answers, wanted):
    """Whether the servers hold these rows, cut as they are and in whatever order."""
    held = np.array([row for _, rows in answers["seen"]["shards"] for row in rows])
    same_sum = held.shape == wanted.shape and abs(held.sum() / wanted.sum() - 1) <= LOST_OF_SUM
    return bool(same_sum) or "what you return is, and the servers hold another table"


def _asynchronous(answers, seed):
    staleness = answers["staleness"]
    if len(staleness) != probes.UPDATES:
        return f"you return {len(staleness)} of them for {probes.UPDATES} updates"
    if answers["seen"]["at_once"] < 2 or not any(staleness):
        return "none of yours is stale: nobody worked while another did"
    return min(staleness) == 0 or f"your least is {min(staleness)}, and the first update comes after no other"


def _summed(answers, seed):
    """Whether the table is what the batches give when their losses are sums."""
    settings = probes.visits(seed)
    batches = [(numbers, np.float64(values) * len(values)) for numbers, values in settings["batches"]]
    return _is_table(answers["table"], _table_after(settings, batches)) is True


def _not_zeros(answers, seed):
    """Whether the table is off by what Keras' initial embedding may be, and every update is counted."""
    settings = probes.visits(seed)
    off = np.array(answers["table"]) - _table_after(settings, settings["batches"])
    return answers["counted"] == probes.UPDATES and 0.04 < np.abs(off).max() < 0.0501 and abs(off.mean()) < 0.01


_SEEN = {"shards": [(forms.text, forms.array)], "counted": [forms.whole], "at_once": forms.size}
_TRAINED = {"counted": forms.number, "table": forms.array, "seen": _SEEN, str: forms.anything}
_TASKS = {"tasks": (forms.whole, forms.whole), "shards": [(forms.text, forms.size)], "staleness": [forms.distance]}
TRAIN = question(
    name="q4",
    title="Train on two servers",
    asks_for=("train", "make_job"),
    probe=probes.probe_train,
    form={**_TASKS, **_TRAINED},
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
    recognise={
        "model outside the scope": lambda answers, seed: (
            "was made outside strategy.scope()" in answers["stopped"]["error"]
        ),
        "not waited for": lambda answers, seed: (
            answers["counted"] < probes.UPDATES
            and answers["seen"]["at_once"] > 1
            and _each_applied_once(answers, seed) is not True
        ),
        "not cut": lambda answers, seed: len(answers["seen"]["shards"]) == 1,
        "lost counts": lambda answers, seed: (
            answers["counted"] < probes.UPDATES and _each_applied_once(answers, seed) is True
        ),
        "in turns": lambda answers, seed: answers["seen"]["at_once"] == 1,
        "itself counted": lambda answers, seed: min(answers["staleness"]) == 1,
        "not zeros at first": _not_zeros,
        "summed": _summed,
    },
)


# q5: a killed server


def _kills(seed):
    """(updates done, those at the last save) at each kill."""
    return [(done, done // probes.SAVE_EVERY * probes.SAVE_EVERY) for done in probes.visits_through(seed)["dies_after"]]


def _done(answers, attempt):
    return [done for number, done in answers["reports"] if number == attempt]


def _began_after(answers, seed):
    """For each kill: updates done, those saved, and the updates with which the next attempt began."""
    return [
        (done, saved, min(_done(answers, attempt)) - probes.TOGETHER)
        for attempt, (done, saved) in enumerate(_kills(seed), 1)
    ]


def _goes_on_after_the_save(answers, seed):
    if not all(_done(answers, attempt) for attempt, _ in enumerate(_kills(seed), 1)):
        return "an attempt after a kill reports nothing: report `done` after each group"
    for done, saved, began in _began_after(answers, seed):
        if began != saved:
            said = f"killed after update {done}, with a save after every {probes.SAVE_EVERY}"
            return f"{said}, yours report {began + probes.TOGETHER} done after one group"
    return True


def _applied(answers, seed, *spans):
    """Whether the table is what these spans of the batches make of it."""
    settings = probes.visits_through(seed)
    batches = [batch for first, last in spans for batch in settings["batches"][first:last]]
    return _is_table(answers["table"], _table_after(settings, batches))


def _applied_through(answers, seed):
    found, settings = _applied(answers, seed, (0, probes.RUN)), probes.visits_through(seed)
    return found if found is not True else _are_on_servers(answers, _table_after(settings, settings["batches"]))


def _began(answers, seed, first, *spans):
    """Whether each next attempt began after `first(done, saved)` updates, and the table is what these spans give."""
    began = all(at == first(done, saved) for done, saved, at in _began_after(answers, seed))
    return began and (not spans or _applied(answers, seed, *spans) is True)


def _from_the_start(done, saved):
    return 0


def _from_the_save(done, saved):
    return saved


def _from_a_save_too_early(done, saved):
    return (done - 1) // probes.SAVE_EVERY * probes.SAVE_EVERY


def _from_nothing(answers, seed):
    """Every attempt goes through all batches, as far as it comes."""
    last = max(_done(answers, len(_kills(seed))))
    return last == probes.RUN and _began(answers, seed, _from_the_start, (0, probes.RUN))


def _counter_again(answers, seed):
    """The table is right, and what was applied up to the last save is not counted."""
    counted = answers["counted"] == probes.RUN - _kills(seed)[-1][1]
    return counted and _began(answers, seed, _from_the_save, (0, probes.RUN))


def _saved_too_often(answers, seed):
    return answers["counted"] == probes.RUN and _began(answers, seed, lambda done, saved: done)


def _a_group_too_late(answers, seed):
    """Both attempts, which go on from one save, leave out the group that follows it."""
    _, saved = _kills(seed)[0]
    left_out = saved + probes.TOGETHER
    return _began(answers, seed, lambda done, saved: left_out, (0, saved), (left_out, probes.RUN))


RECOVERY = question(
    name="q5",
    title="Lose the server, and nothing else",
    asks_for=("train_through",),
    probe=probes.probe_recovery,
    form={"reports": [(forms.whole, forms.number)], **_TRAINED},
    takes_long=True,
    targets=(
        Target("after the kill the run goes on after the last save", _goes_on_after_the_save),
        Target(
            f"the optimizer counts {probes.RUN} updates, no fewer and no more",
            lambda answers, seed: _counted(answers, probes.RUN),
        ),
        Target(TABLE_IS_RIGHT, _applied_through),
    ),
    recognise={
        "nobody killed": lambda answers, seed: answers["stopped"]["error"] == probes.NOBODY_DIED,
        "counter forgotten": _counter_again,
        "state without a home": _from_nothing,
        "all batches again": lambda answers, seed: _began(
            answers, seed, _from_the_start, *((0, saved) for _, saved in _kills(seed)), (0, probes.RUN)
        ),
        "table forgotten": lambda answers, seed: _began(
            answers, seed, _from_the_save, (_kills(seed)[-1][1], probes.RUN)
        ),
        "saved too often": _saved_too_often,
        "one group too late": _a_group_too_late,
        "cut before the save": lambda answers, seed: _began(answers, seed, _from_a_save_too_early),
    },
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


SERVERS = question(
    name="q6",
    title="How many servers?",
    asks_for=("servers_needed",),
    probe=probes.probe_servers,
    form={"servers": [forms.number]},
    targets=(
        Target("the number of servers is an int, 1 or more", _whole_servers),
        Target("their memories hold the parameters and the optimizer's slots", _enough(part=0)),
        Target("no link carries more than it can", _enough(part=1)),
        Target("with one server less, where that leaves any, one of the two fails", _no_fewer),
    ),
)


QUESTIONS = (STALENESS, SERVER, TABLE, TRAIN, RECOVERY, SERVERS)

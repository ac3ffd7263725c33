"""Exercise 04: staleness, a server, a table in pieces, a number of servers; q4 and q5 are in ex04_clusters.

Needs NumPy; TensorFlow for q3's mistakes.
"""

import itertools
import math

import numpy as np

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.judges.ex04_clusters import RECOVERY, TRAIN
from course_lib.exercises.probes import ex04 as probes
from course_lib.exercises.probes import ex04_table as table_probes
from course_lib.exercises.question import Target

question = question_maker.of("04_parameter_server")
SHORT = 5  # events of a record that a line can hold
FLOAT32 = 1e-5  # relative: some tens of additions to each number in float32


# q1: staleness from a record


def _updates_of(record):
    """Of each applied update its staleness, and whether its worker had read more than once for it."""
    updates, read_at, again = [], {}, {}
    for worker, event in record:
        if event == "read":
            read_at[worker], again[worker] = len(updates), worker in again
        else:
            updates.append((len(updates) - read_at[worker], again.pop(worker)))
    return updates


def _one_number_each(answers, seed):
    for record, staleness in zip(probes.records(seed), answers["staleness"], strict=True):
        applied = sum(event == "applied" for _, event in record)
        if others := [kind for kind in answers["others"] if kind is not None]:
            return f"you return an object of type {others[0]}"
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
                return f"{len(wrong)} of {len(kind)} are wrong, the first is update {wrong[0] + 1}, counted from 1"
        return True

    return holds


def _grouped_by_worker(answers, seed):
    """The right numbers, the workers one after another in whatever order."""
    for record, staleness in zip(probes.records(seed), answers["staleness"], strict=True):
        numbers, by_worker = iter(_updates_of(record)), {}
        for worker in (worker for worker, event in record if event == "applied"):
            by_worker.setdefault(worker, []).append(next(numbers)[0])
        if staleness not in [sum(order, []) for order in itertools.permutations(by_worker.values())]:
            return False
    return True


def _since_its_last_update_of(record, from_first_read, from_second_read):
    applied, since, reads, staleness = 0, {}, {}, []
    for worker, event in record:
        if event == "read":
            reads[worker] = reads.get(worker, 0) + 1
            if from_first_read and worker not in since or from_second_read and reads[worker] > 1:
                since[worker] = applied
        else:
            staleness.append(applied - since.get(worker, 0))
            applied += 1
            since[worker], reads[worker] = applied, 0
    return staleness


def _since_its_last_update_in_records(answers, seed):
    """Whether a first read, or a second one without an update between, counts as a start or not."""
    return any(
        answers["staleness"] == [_since_its_last_update_of(record, *way) for record in probes.records(seed)]
        for way in itertools.product((False, True), repeat=2)
    )


_EMPTY = ("(expected 2, got 0)", "empty sequence", "iterable argument is empty")


def _wanted_staleness(seed):
    return [[number for number, _ in _updates_of(record)] for record in probes.records(seed)]


def _one_number_for_all(answers, seed):
    pairs = zip(answers["staleness"], _wanted_staleness(seed), strict=True)
    return all(len(set(numbers)) <= 1 and len(numbers) == len(wanted) for numbers, wanted in pairs)


def _floats(answers, seed):
    """The right numbers, and some of them are floats."""
    numbers = sum(answers["staleness"], [])
    return answers["staleness"] == _wanted_staleness(seed) and any(type(number) is float for number in numbers)


def _in_eight_bits(answers, seed):
    """The right numbers but for those that 8 bits do not hold, with a sign or without."""
    wanted = _wanted_staleness(seed)
    ways = ([[(number + low) % 256 - low for number in numbers] for numbers in wanted] for low in (0, 128))
    return answers["staleness"] != wanted and answers["staleness"] in ways


def _lost_reads_numbered(answers, seed):
    """A number for each read; or for each update, and for each worker that was lost for good."""
    for record, staleness in zip(probes.records(seed), answers["staleness"], strict=True):
        applied, reads = (sum(event == one for _, event in record) for one in ("applied", "read"))
        last = dict(record)
        if len(staleness) not in (reads, applied + list(last.values()).count("read")):
            return False
    return any(
        len(staleness) > [event for _, event in record].count("applied")
        for record, staleness in zip(probes.records(seed), answers["staleness"])
    )


STALENESS = question(
    name="q1",
    title="How stale is each update?",
    asks_for=("staleness_of",),
    probe=probes.probe_staleness,
    form={"staleness": [[forms.number]], "others": [forms.either(forms.text, forms.nothing)]},
    targets=(
        Target("a list, a tuple or an array with one int per applied update, 0 or more", _one_number_each),
        Target("right for the updates of workers that read once", _stale_by(read_again=False)),
        Target("right for the updates of workers that were lost and read again", _stale_by(read_again=True)),
    ),
    recognise={
        "gone through once": lambda answers, seed: any(
            kind in ("generator", "map", "filter", "zip") for kind in answers["others"]
        ),
        "since its last update": _since_its_last_update_in_records,
        "one call for each line": lambda answers, seed: "RecursionError" in answers["stopped"]["error"],
        "no update": lambda answers, seed: any(said in answers["stopped"]["error"] for said in _EMPTY),
        "by worker": _grouped_by_worker,
        "floats": _floats,
        "eight bits": _in_eight_bits,
        "a number for lost reads": _lost_reads_numbered,
        "one number for all": _one_number_for_all,
    },
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


def _offers_in_updates(answers, seed):
    """All is right but `updates`, which counts the refused gradients, too."""
    right = _bounds_kept(answers, seed) is True and _weights_served(answers, seed) is True
    return right and all(answer["updates"] == len(answer["used"]) for answer in answers["runs"])


def _since_its_last_update(answers, seed):
    """Whether what is used is what is fresh since its worker's last update, in one of the ways to count that."""
    ways = itertools.product((False, True), ("as before", "now", "at the next read"))
    return any(all(answer["used"] == _used_since(run, *way) for run, _, answer in _runs(answers, seed)) for way in ways)


def _used_since(run, from_first_read, after_refusal):
    since, used = {}, []
    for worker, turn in run["turns"]:
        if turn == "read" and from_first_read:
            since.setdefault(worker, sum(used))
        elif turn == "applied":
            used.append(sum(used) - since.get(worker, 0) <= run["settings"]["bound"])
            if used[-1] or after_refusal == "now":
                since[worker] = sum(used)
            elif after_refusal == "at the next read":
                since.pop(worker, None)
    return used


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
        "says nothing": lambda answers, seed: any(used is None for run in answers["runs"] for used in run["used"]),
        "offers in updates": _offers_in_updates,
        "since its last update": _since_its_last_update,
    },
)


# q3: a table in pieces


def _tables(answers, seed):
    """Each table, its batches of numbers, and what was made of them; the first alone where that failed."""
    return [
        (table, batches, made) for (table, batches), made in zip(table_probes.tables_to_cut(seed), answers["tables"])
    ]


def _one_each(answers, seed):
    cases = zip(_tables(answers, seed), table_probes.devices_to_cut_for(answers["devices"]))
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
            return f"the table has {len(table)} rows, and your {len(made['shards'])} shards have {len(joined)}"
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
            return f"numbers asked for: {len(numbers)}, rows in the shards' gradients: {sum(lookup['touched'])}"
    return len(answers["tables"]) > 1 or "smaller tables are not tried before the first one's rows are found"


def _number_in_the_whole_table(answers, seed):
    """Whether a shard was asked for the first batch's one number, which is in its middle."""
    _, batches = table_probes.tables_to_cut(seed)[0]
    return f"= {batches[0].item()} is not in [0," in answers["stopped"]["error"]


def _shards_taken_for_equal(answers, seed):
    """Whether a shard was asked for a row that it does not have, or gave the one that equal shards would have there."""
    if "stopped" in answers:
        return "is not in [0," in answers["stopped"]["error"]
    _, batches, made = _tables(answers, seed)[0]
    shards = [rows for _, _, rows in made["shards"]]
    owner, place = divmod(batches[0].item(), len(shards[0]))
    return np.array_equal(made["lookups"][0]["found"], [shards[owner][place]])


_NO_VALUE = (
    "'SymbolicTensor' object has no attribute",
    "must be integers or slices, not SymbolicTensor",
    "symbolic tf.Tensor",
    "symbolic `tf.Tensor`",
)
_NO_LENGTH = (
    "'NoneType' object cannot be interpreted as an integer",
    "len is not well defined for a symbolic Tensor",
    "Attempt to convert a value (None)",
    "None values not supported",
    "but got None of type 'NoneType'",
    "Failed to convert elements of [None",
    "or a single integer, got '<tf.Tensor",
    "Cannot convert a partially known TensorShape",
)


def _table_joined(answers, seed):
    return _rows_found(answers, seed) is True and answers["tables"][0]["lookups"][0]["read_whole"] > 1


def _dealt_out(answers, seed):
    table, _, made = _tables(answers, seed)[0]
    dealt = [table[place :: len(made["shards"])] for place in range(len(made["shards"]))]
    return all(np.array_equal(rows, one) for (_, _, rows), one in zip(made["shards"], dealt))


def _always_four(answers, seed):
    """Whether two devices, and one, have the first of four pieces, and the other pieces are lost."""
    tables = _tables(answers, seed)[2:]
    pieces = [(np.array_split(table, 4), [rows for _, _, rows in made["shards"]]) for table, _, made in tables]
    return bool(tables) and all(all(map(np.array_equal, own, four)) for four, own in pieces)


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
    probe=table_probes.probe_table,
    form={"devices": forms.devices, "tables": forms.either((_TABLE,), (_TABLE,) * len(table_probes.tables_to_cut(0)))},
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
        "always four": _always_four,
        "equal parts alone": lambda answers, seed: (
            "does not result in an equal division" in answers["stopped"]["error"]
        ),
        "the table's numbers": _number_in_the_whole_table,
        "shards taken for equal": _shards_taken_for_equal,
        "not in a graph": lambda answers, seed: any(said in answers["stopped"]["error"] for said in _NO_VALUE),
        "n in Python": lambda answers, seed: any(said in answers["stopped"]["error"] for said in _NO_LENGTH),
        "divided by zero": lambda answers, seed: "by zero" in answers["stopped"]["error"],
        "no empty shards": lambda answers, seed: (
            [len(rows) for _, _, rows in answers["tables"][1]["shards"]]
            == [1] * len(table_probes.tables_to_cut(seed)[1][0])
        ),
    },
)


# q6: a number of servers


def _step(reading, computing, sending):
    return reading + computing + sending


def _shares(load, step=_step):
    """(of all memories, of all links): what one load needs of servers, not rounded; `step` gives a step's seconds."""
    link_bytes = load["gigabits_per_second"] * 1e9 / 8  # per second, in each direction
    read_numbers = load["dense_parameters"] + load["looked_up_rows"] * load["row_width"]
    sent_numbers = read_numbers + load["looked_up_rows"]
    seconds = step(4 * read_numbers / link_bytes, load["compute_seconds"], 4 * sent_numbers / link_bytes)
    busy_links = load["workers"] * 4 * sent_numbers / seconds / link_bytes
    numbers = (load["dense_parameters"] + load["table_rows"] * load["row_width"]) * (1 + load["slots"])
    return 4 * numbers / (load["memory_gigabytes"] * 1e9), busy_links


def _needed(load):
    """(by memory, by bandwidth): the servers that one load needs, each part alone."""
    return tuple(map(math.ceil, _shares(load)))


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


def _is_always(servers_of):
    """A recogniser: the learner's servers are those that this function gives for each load; None fits any."""

    def recognises(answers, seed):
        pairs = [(servers_of(load), own) for load, own in zip(probes.loads(seed), answers["servers"], strict=True)]
        return all(servers in (None, own) for servers, own in pairs)

    return recognises


def _dense_part_on_each(load):
    held = 4 * (1 + load["slots"])
    room = load["memory_gigabytes"] * 1e9 - held * load["dense_parameters"]
    rows = held * load["table_rows"] * load["row_width"]
    return max(1, math.ceil(rows / room), _needed(load)[1]) if room > 0 else None


# (of memory, of links)
_ONE_TOO_MANY = [
    _is_always(
        lambda load, more=more: max(1, *(int(x) + 1 if one else math.ceil(x) for x, one in zip(_shares(load), more)))
    )
    for more in ((True, True), (True, False), (False, True))
]
_OVERLAPPING = [
    _is_always(lambda load, step=step: max(1, *map(math.ceil, _shares(load, step))))
    for step in (max, lambda r, c, s: max(r, c) + s, lambda r, c, s: r + max(c, s), lambda r, c, s: max(r + s, c))
]


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
    recognise={
        "one too many": lambda answers, seed: any(fits(answers, seed) for fits in _ONE_TOO_MANY),
        "dense part on each": _is_always(_dense_part_on_each),
        "parts of a step overlap": lambda answers, seed: any(fits(answers, seed) for fits in _OVERLAPPING),
    },
)


QUESTIONS = (STALENESS, SERVER, TABLE, TRAIN, RECOVERY, SERVERS)

"""Exercise 11, q1: a replica's input. Needs NumPy."""

import itertools
import math
from collections import Counter

import numpy as np

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.judges.stops import stopped_by
from course_lib.exercises.probes import ex11 as probes
from course_lib.exercises.probes.salted_hash import SALTED
from course_lib.exercises.question import Target

question = question_maker.of("11_capstone")


def _steps_of(epoch):
    """Per step, the replicas' rows; replicas with fewer steps have empty ones."""
    longest = max(len(steps) for steps in epoch["replicas"])
    empty = np.array([], int)
    return [[steps[at] if at < len(steps) else empty for steps in epoch["replicas"]] for at in range(longest)]


def _rows_of(epoch):
    return [int(row) for step in _steps_of(epoch) for rows in step for row in rows]


def _epochs(answers, seed):
    """The case, whether it is training, and the learner's epoch; of all cases and epochs, small ones first."""
    for case, epochs in zip(probes.input_cases(seed), answers["cases"], strict=True):
        for (_, training), epoch in zip(probes.EPOCHS, epochs, strict=True):
            yield case, training, epoch
    for _, epoch in zip(probes.later_epochs(seed), answers["later"], strict=True):
        yield probes.drawn_input(seed), True, epoch
    yield probes.drawn_input(seed), True, answers["others"]


def _setting(case, training=True):
    batches = f"{case['rows']} rows in global batches of {case['global_batch']} on {case['replicas']} replicas"
    return batches + ("" if training else ", in testing")


def _every_row_once(answers, seed):
    for case, training, epoch in _epochs(answers, seed):
        seen, setting = Counter(_rows_of(epoch)), _setting(case, training)
        if strange := [row for row in seen if not 0 <= row < case["rows"]]:
            if epoch is answers["others"]:
                return f"{setting}: given other images, you return those of an earlier call"
            return f"{setting}: there is no row {strange[0]}"
        if missing := case["rows"] - len(seen):
            return f"{setting}: {missing} of the rows reach no replica"
        if double := sum(count > 1 for count in seen.values()):
            return f"{setting}: {double} of the rows come more than once in an epoch"
    return True


def _even_shares(answers, seed):
    for case, training, epoch in _epochs(answers, seed):
        whole, last = divmod(case["rows"], case["global_batch"])
        sizes = [[len(rows) for rows in step] for step in _steps_of(epoch)]
        totals, setting = [sum(step) for step in sizes], _setting(case, training)
        if totals != [case["global_batch"]] * whole + [last] * bool(last):
            return f"{setting}: your steps have {totals} rows"
        if odd := [step for step in sizes if max(step) - min(step) > 1]:
            return f"{setting}: a step's rows are shared out as {odd[0]}"
    return True


def _order_by_epoch(answers, seed):
    first, _, again, test = answers["cases"][-1]
    if _rows_of(first) != _rows_of(again):
        return "epoch 0, asked for again, comes in another order"
    if alike := _epochs_alike(answers, seed):
        return "epochs {} and {} come in the same order".format(*alike[0])
    if other := _other_elsewhere(answers, seed, _rows_of_replicas):
        return f"epoch {other[0]} comes in another order in a process that begins with epoch {other[1]}"
    return _in_order(test) or "in testing a replica's rows are not in the arrays' order"


def _trained(answers, seed):
    """The last case's epochs of training, by their numbers."""
    return {
        0: answers["cases"][-1][0],
        1: answers["cases"][-1][1],
        **dict(zip(probes.later_epochs(seed), answers["later"])),
    }


def _epochs_alike(answers, seed):
    """The pairs of epochs, by their numbers, that come in the same order."""
    orders = {epoch: _rows_of(rows) for epoch, rows in _trained(answers, seed).items()}
    return [pair for pair in itertools.combinations(orders, 2) if orders[pair[0]] == orders[pair[1]]]


def _rows_of_replicas(epoch):
    return [[int(row) for step in steps for row in step] for steps in epoch["replicas"]]


def _other_elsewhere(answers, seed, of):
    """The first epoch of which processes that began with another epoch have something else, and that one; or None."""
    here, begin = _trained(answers, seed), probes.ELSEWHERE[0]
    pairs = zip(probes.ELSEWHERE, answers["elsewhere"], strict=True)
    return next(((epoch, begin) for epoch, there in pairs if of(there) != of(here[epoch])), None)


def _in_order(epoch):
    return all((np.diff(np.concatenate(steps)) > 0).all() for steps in epoch["replicas"] if steps)


def _labels_fit(answers, seed):
    fit = all(epoch["labels_fit"] for _, _, epoch in _epochs(answers, seed))
    return fit or "some images come with the label of another one"


def _arrays_kept(answers, seed):
    kept = all(epoch["arrays_kept"] for _, _, epoch in _epochs(answers, seed))
    return kept or "your function changes the images or the labels that it is given"


def _augmented_in_training_alone(answers, seed):
    for _, training, epoch in _epochs(answers, seed):
        if epoch["augmented"] != float(training):
            return f"{epoch['augmented']:.0%} of the images are augmented in {'training' if training else 'testing'}"
    return True


def _keys(epoch):
    return [tuple(key) for keys in epoch["keys"] for key in keys]


def _own_keys(answers, seed):
    for case, (first, second, again, test) in zip(probes.input_cases(seed), answers["cases"], strict=True):
        if _keys(test) or _keys(first) != _keys(again):
            return "testing has keys, or the same epoch has others when it is asked for again"
        batches = sum(len(rows) > 0 for steps in first["replicas"] for rows in steps)
        if len(_keys(first)) < batches:
            return f"{_setting(case)}: {len(_keys(first))} of {batches} local batches are augmented with a key"
        keys = _keys(first) + _keys(second)
        if shared := len(keys) - len(set(keys)):
            return f"{_setting(case)}: in two epochs {shared} local batches have a key that was used before"
    if other := _other_elsewhere(answers, seed, lambda epoch: epoch["keys"]):
        return f"epoch {other[0]} has other keys in a process that begins with epoch {other[1]}"
    keys = [key for epoch in _trained(answers, seed).values() for key in _keys(epoch)]
    shared = len(keys) - len(set(keys))
    epochs = len(probes.later_epochs(seed)) + 2
    if not shared:
        case, epochs, shared = probes.LONG, 2, answers["long_shared"]
    return not shared or f"{_setting(case)}: in {epochs} epochs {shared} local batches have a key that was used before"


def _meet_in_long_epochs(answers, seed):
    return answers["long_shared"] > 0 and _own_keys(answers | {"long_shared": 0}, seed) is True


def _several_in_one(answers, seed):
    """Local batches share keys, and no two that do have two of epoch, replica and step in common."""
    sharing = False
    for epochs in [_trained(answers, seed), *({0: first, 1: second} for first, second, *_ in answers["cases"])]:
        groups = {}
        for epoch, of_epoch in epochs.items():
            for replica, own in enumerate(of_epoch["keys"]):
                for step, key in enumerate(own):
                    groups.setdefault(tuple(key), []).append((epoch, replica, step))
        for group in groups.values():
            for two in itertools.combinations(range(3), 2):
                if len({tuple(place[at] for at in two) for place in group}) < len(group):
                    return False
            sharing = sharing or len(group) > 1
    return sharing and _shared_out(answers, seed)


def _another_order_each_time(answers, seed):
    first, _, again, _ = answers["cases"][-1]
    return _rows_of(first) != _rows_of(again)


def _in_every_epoch(fits):
    """Recognise answers by fits(case, steps, rows) of all epochs: its steps with rows in them, and their rows."""

    def recognise(answers, seed):
        epochs = [(case, _steps_of(epoch), _rows_of(epoch)) for case, _, epoch in _epochs(answers, seed)]
        return all(fits(case, [step for step in steps if any(map(len, step))], rows) for case, steps, rows in epochs)

    return recognise


def _last_rows_dropped(case, steps, rows):
    full = case["rows"] // case["global_batch"]
    return len(set(rows)) == len(rows) == full * case["global_batch"] and len(steps) == full


def _leftovers_dropped(case, steps, rows):
    """In each step every replica has the same number of rows, which `//` gives."""
    starts = range(0, case["rows"], case["global_batch"])
    shares = [min(case["global_batch"], case["rows"] - start) // case["replicas"] for start in starts]
    return [[*map(len, step)] for step in steps] == [[share] * case["replicas"] for share in shares if share]


def _filled_up(case, steps, rows):
    """The last step has global_batch rows, or so many that the replicas divide them."""
    whole, last = divmod(case["rows"], case["global_batch"])
    totals, full = [sum(map(len, step)) for step in steps], [case["global_batch"]]
    ends = (full, [math.ceil(last / case["replicas"]) * case["replicas"]]) if last else ([],)
    return len(set(rows)) == case["rows"] and totals in [full * whole + end for end in ends]


def _whole_batches(case, steps, rows):
    """Each row is on one replica, and each replica's own steps are of global_batch rows but for its last."""
    return sorted(rows) == [*range(case["rows"])] and all(
        {len(step[replica]) for step in steps[:-1]} <= {case["global_batch"]}
        and len(steps[-1][replica]) <= case["global_batch"]
        for replica in range(case["replicas"])
    )


def _even_steps(case, steps, rows):
    """Each row is on one replica, and the steps are of about the same size."""
    count = math.ceil(case["rows"] / case["global_batch"])
    totals = [sum(map(len, step)) for step in steps]
    return sorted(rows) == [*range(case["rows"])] and totals == [
        len(part) for part in np.array_split(np.arange(case["rows"]), count)
    ]


def _rows_of_other_data(answers, seed):
    """All data have the first ones' order in training, or its rows are none of these data's."""
    first, *others = probes.input_cases(seed)
    if "stopped" in answers:
        return stopped_by(f"out of bounds for axis 0 with size {first['rows']}")(answers, seed)
    return all(
        {*_rows_of(epoch)} == {*range(first["rows"])}
        for epochs in answers["cases"]
        for (_, training), epoch in zip(probes.EPOCHS, epochs, strict=True)
        if training
    )


def _last_unevenly(case, steps, rows):
    full = case["rows"] // case["global_batch"]
    sizes = [[*map(len, step)] for step in steps]
    return (
        len(sizes) == math.ceil(case["rows"] / case["global_batch"])
        and sorted(rows) == [*range(case["rows"])]
        and sizes[:full] == [[case["global_batch"] // case["replicas"]] * case["replicas"]] * full
    )


def _a_step_too_many(answers, seed):
    """Every row has its replica, and epochs have no step too few, and some of them, or all, one too many."""
    more = []
    for case, _, epoch in _epochs(answers, seed):
        more.append(len(_steps_of(epoch)) - math.ceil(case["rows"] / case["global_batch"]))
    return _every_row_once(answers, seed) is True and {*more} in ({0, 1}, {1})


def _own_orders(answers, seed):
    """Training has the right number of rows and not each once, and testing has."""
    everything = [*range(probes.drawn_input(seed)["rows"])]
    first, _, _, test = map(sorted, map(_rows_of, answers["cases"][-1]))
    return test == everything != first and len(first) == len(everything)


def _one_key_per(of):
    """Recognise keys that are alike where of(epoch, replica, step) is, and nowhere else; of rows that are right."""

    def recognise(answers, seed):
        if not _shared_out(answers, seed):
            return False
        groups = {}
        for number, epoch in enumerate(answers["cases"][-1][:2]):
            for replica, own in enumerate(epoch["keys"]):
                for step, key in enumerate(own):
                    groups.setdefault(of(number, replica, step), set()).add(tuple(key))
        keys = set().union(*groups.values())
        return bool(keys) and len(keys) == len(groups) == sum(map(len, groups.values()))

    return recognise


def _shared_out(answers, seed):
    return _every_row_once(answers, seed) is True and _even_shares(answers, seed) is True


def _of_last(fits):
    """Recognise answers by the epochs of their last case."""
    return lambda answers, seed: fits(*answers["cases"][-1])


_EPOCH = {
    "replicas": [[forms.array]],
    **dict.fromkeys(("labels_fit", "arrays_kept"), forms.flag),
    "augmented": forms.number,
    "keys": [[[forms.whole]]],
}
INPUT = question(
    name="q1",
    title="A replica's input",
    asks_for=("replica_batches",),
    probe=probes.probe_batches,
    form={
        "cases": [(_EPOCH,) * len(probes.EPOCHS)],
        "later": [_EPOCH],
        "elsewhere": (_EPOCH,) * len(probes.ELSEWHERE),
        "long_shared": forms.size,
        "others": _EPOCH,
    },
    targets=(
        Target("in every epoch each row reaches exactly one replica, the last ones included", _every_row_once),
        Target("a step has global_batch rows, the last one the rest; shares differ by one row at most", _even_shares),
        Target("each epoch has its own order, the same when asked again; in testing rows keep theirs", _order_by_epoch),
        Target("every image comes with its own label", _labels_fit),
        Target("the arrays that it is given stay as they are", _arrays_kept),
        Target("all training images are augmented, and no test image", _augmented_in_training_alone),
        Target("no two local batches share a key, of one epoch or of two", _own_keys),
    ),
    recognise={
        "hash of a text": stopped_by(SALTED),
        "no seed": _another_order_each_time,
        "depends on earlier calls": lambda answers, seed: (
            bool(_other_elsewhere(answers, seed, _rows_of_replicas)) and not _another_order_each_time(answers, seed)
        ),
        "last rows dropped": _in_every_epoch(_last_rows_dropped),
        "leftovers dropped": _in_every_epoch(_leftovers_dropped),
        "filled up": _in_every_epoch(_filled_up),
        "not sharded": _in_every_epoch(
            lambda case, steps, rows: (
                all(len(own) == len(step[0]) for step in steps for own in step)
                and len(rows) >= case["replicas"] * (case["rows"] // case["global_batch"] * case["global_batch"])
            )
        ),
        "an order for each replica": _own_orders,
        "labels left behind": lambda answers, seed: (
            _every_row_once(answers, seed) is True is not _labels_fit(answers, seed)
        ),
        "rows of other data": _rows_of_other_data,
        "never shuffled": lambda answers, seed: (
            _every_row_once(answers, seed) is True and all(map(_in_order, answers["cases"][-1][:2]))
        ),
        "the same order in every epoch": lambda answers, seed: (
            len(_epochs_alike(answers, seed)) == math.comb(len(_trained(answers, seed)), 2)
        ),
        "an order that comes back": lambda answers, seed: bool(_epochs_alike(answers, seed)),
        "arrays changed": lambda answers, seed: _arrays_kept(answers, seed) is not True,
        "shuffled in testing": lambda answers, seed: (
            _every_row_once(answers, seed) is True and not _in_order(answers["cases"][-1][-1])
        ),
        "augmented in testing": _of_last(lambda *epochs: [epoch["augmented"] for epoch in epochs] == [1] * 4),
        "result not used": _of_last(lambda first, *_: bool(_keys(first)) and first["augmented"] == 0),
        "not augmented": _of_last(lambda first, *_: not _keys(first) and first["augmented"] == 0),
        "one key for all replicas": _one_key_per(lambda epoch, replica, step: (epoch, step)),
        "a key without the epoch": _one_key_per(lambda epoch, replica, step: (replica, step)),
        "a key for all steps": _one_key_per(lambda epoch, replica, step: (epoch, replica)),
        "always the same key": _one_key_per(lambda *of: None),
        "keys that meet in long epochs": _meet_in_long_epochs,
        "keys that meet": _several_in_one,
        "a replica takes whole batches": _in_every_epoch(_whole_batches),
        "a step too many": _a_step_too_many,
        "steps of one size": lambda answers, seed: (
            _even_shares(answers, seed) is not True and _in_every_epoch(_even_steps)(answers, seed)
        ),
        "last batch uneven": lambda answers, seed: (
            _even_shares(answers, seed) is not True and _in_every_epoch(_last_unevenly)(answers, seed)
        ),
    },
)

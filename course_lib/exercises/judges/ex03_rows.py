"""Exercise 03, q3: which rows of an epoch each worker computes."""

from itertools import chain, zip_longest

import numpy as np

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.probes import ex03 as probes
from course_lib.exercises.question import Target

question = question_maker.of("03_multi_worker")


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


_FAR = f"{probes.MANY:,} examples in batches of {probes.FAR['global_batch']:,} on {probes.FAR['workers']:,} workers"
_TWO = f"workers {probes.FAR['worker'][0]:,} and {probes.FAR['worker'][1]:,}"


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
    wanted, (one, other) = -(-probes.MANY // probes.FAR["global_batch"]), answers["far_rows"]
    if len(one) != wanted or len(other) != wanted:
        return f"{_FAR}: {_TWO} have {len(one)} and {len(other)} steps"
    together = [sum(rows) for rows in zip(one, other)]
    return together == answers["far_rows_of_the_batch"] or f"{_FAR}: {_TWO} share rows, or have those of another batch"


def _even(answers, seed):
    for case, rows, _ in _shared_out(answers, seed):
        for step, parts in enumerate(zip(*rows)):
            sizes = [len(part) for part in parts]
            if not {*sizes} <= _shares(step, case["examples"], case["global_batch"], case["workers"]):
                return f"{_setting(case)}: step {step} gives them {sizes} rows"
    for step, (one, other) in enumerate(zip(*answers["far_rows"])):
        if not {one, other} <= _shares(step, probes.MANY, probes.FAR["global_batch"], probes.FAR["workers"]):
            return f"{_FAR}: step {step} gives {_TWO} {one} and {other} rows"
    return True


def _shares(step, examples, global_batch, workers):
    """The numbers of rows that a worker may have in a step."""
    batch = min(global_batch, max(0, examples - step * global_batch))
    return {batch // workers, -(-batch // workers)}


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
    of_epochs, of_seeds = answers["far_orders"]
    if not of_epochs:
        return f"epochs 1,000 and {probes.FAR['epoch']:,} have the same order"
    return of_seeds or f"seeds 1,000 and {probes.FAR['seed']:,} have the same order"


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
    """The batches are right, and each has parts of sizes(rows of the batch, workers, rows of a full batch)."""
    parts = [
        ([len(part) for part in step], sizes(sum(map(len, step)), case["workers"], case["global_batch"]))
        for case, rows, _ in _shared_out(answers, seed)
        for step in zip(*rows)
    ]
    return _same_batches(answers, seed) is True and all(own == wanted for own, wanted in parts)


def _in_runs_of(local, rows, workers):
    return [min(max(rows - local * worker, 0), local) for worker in range(workers)]


def _rounded_up(rows, workers, full):
    return _in_runs_of(-(-rows // workers), rows, workers)


def _full_ones_rounded_up(rows, workers, full):
    return _in_runs_of(-(-full // workers), rows, workers)


def _rest_to_the_last(rows, workers, full):
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
    shared = [(case["examples"], _flat(rows)) for case, rows, _ in _shared_out(answers, seed)]
    right_number = all(len(rows) == examples for examples, rows in shared)
    return right_number and _whole_alone(answers, seed) and any(len({*rows}) < examples for examples, rows in shared)


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
    form={
        "cases": [_ROWS],
        "many": (forms.whole, forms.whole, forms.whole),
        "far_rows": ([forms.size], [forms.size]),
        "far_rows_of_the_batch": [forms.size],
        "far_orders": (forms.flag, forms.flag),
    },
    targets=(
        Target("in every epoch each row is on one worker, once, the short last batch included", _every_row_once),
        Target("at each step all workers' rows together are the batch of a worker that is alone", _same_batches),
        Target("at each step every worker has an even share of the batch's rows, rounded down or up", _even),
        Target("each pair of seed and epoch has an order of its own, and the same call gives the same rows", _orders),
    ),
    recognise={
        "no seed": lambda answers, seed: any(answer["rows"] != answer["again"] for answer in answers["cases"]),
        "short batch dropped": _short_batch_dropped,
        "leftovers dropped": _even_exactly,
        "last one takes the rest": lambda answers, seed: _parts_of(answers, seed, _rest_to_the_last),
        "rounded up": lambda answers, seed: _parts_of(answers, seed, _rounded_up),
        "a full batch's part": lambda answers, seed: _parts_of(answers, seed, _full_ones_rounded_up),
        "local batch for global": _global_batch_on_each,
        "own orders": _own_orders,
        "one order, turned": lambda answers, seed: all(
            _same_neighbours(answer) == sum(map(len, answer["alone"][0])) for answer in answers["cases"]
        ),
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

"""Exercise 05: batches of few shapes, a layout that fits a chip, rows per host; q3 is in ex05_tiles, q5 in ex05_slices.

Needs NumPy; the wrong answers need JAX when they run, and those of q2 the TPU compiler.
"""

import math
from collections import Counter

import numpy as np

from course_lib import tpu
from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.judges.ex05_slices import SLICES
from course_lib.exercises.judges.ex05_tiles import TILES
from course_lib.exercises.judges.numbers import off
from course_lib.exercises.judges.stops import stopped_by
from course_lib.exercises.probes import ex05 as probes
from course_lib.exercises.probes.salted_hash import SALTED
from course_lib.exercises.question import Target

question = question_maker.of("05_tpu")
FLOAT32 = 1e-5  # relative: a mean of a hundred numbers in float32


# q1: few shapes


def _found(answers) -> list[list[tuple[int, ...]]]:
    """Of each batch the examples in it: the tokens of a row that have a weight."""
    return [
        [tuple(row[mask != 0].tolist()) for row, mask in zip(tokens, weights, strict=True) if mask.any()]
        for tokens, weights in zip(answers["tokens"], answers["weights"], strict=True)
    ]


def _counts(answers, seed):
    """By example: how often it is there, and how often it should be."""
    found = Counter(row for batch in _found(answers) for row in batch)
    wanted = Counter(tuple(example.tolist()) for example in probes.corpus(seed)["examples"])
    return {row: (found[row], wanted[row]) for row in {*found, *wanted}}


def _missing(answers, seed):
    return [row for row, (found, wanted) in _counts(answers, seed).items() if found < wanted]


def _repeated(answers, seed):
    return [row for row, (found, wanted) in _counts(answers, seed).items() if found > wanted]


def _nothing_lost(answers, seed):
    if missing := _missing(answers, seed):
        shortest = min(missing, key=len)
        one = f", such as {list(shortest)}" if len(shortest) < 9 else ""
        return f"{len(missing)} of {len(probes.corpus(seed)['examples'])} examples are not there as they were{one}"
    if repeated := _repeated(answers, seed):
        return f"{len(repeated)} rows with weight are not an example, or one that was there already"
    for weights in answers["weights"]:
        lengths = (weights != 0).sum(axis=1)
        if not np.array_equal(weights, np.arange(weights.shape[1]) < lengths[:, None]):
            return "a row's weights are not ones and then zeros"
    return True


def _few_compilations(answers, seed):
    compiled, allowed = answers["compilations"], len(probes.corpus(seed)["buckets"])
    return compiled <= allowed or f"{compiled} compilations for {len(answers['tokens'])} batches"


def _little_padding(answers, seed):
    given = probes.corpus(seed)
    sizes = [min(size for size in given["buckets"] if size >= len(example)) for example in given["examples"]]
    needed = sum(size * given["batch"] * math.ceil(sizes.count(size) / given["batch"]) for size in given["buckets"])
    tokens, positions = sum(map(len, given["examples"])), sum(batch.size for batch in answers["tokens"])
    yours, enough = (f"{1 - tokens / taken:.0%}" for taken in (positions, needed))
    return positions <= needed or f"{yours} of your positions are padding, and {enough} would do"


def _unpadded(answers, seed, shares_of):
    """Each batch's loss and gradient in NumPy, where shares_of(weights) is the part of each position in the mean."""
    model = probes.table(seed).astype("float64")
    for tokens, weights in zip(answers["tokens"], answers["weights"], strict=True):
        shares, gradient = shares_of(weights), np.zeros_like(model)
        np.add.at(gradient, tokens, (2 * shares * (model[tokens].sum(axis=-1) - 1))[..., None])
        yield (probes.token_losses(model, tokens) * shares).sum(), gradient


OVER = {  # what a mean is taken over: of a batch's weights, the part of each position
    "tokens": lambda weights: weights / weights.sum(),
    "positions": lambda weights: weights / weights.size,
    "rows": lambda weights: weights / np.maximum(weights.sum(axis=1, keepdims=True), 1) / weights.any(axis=1).sum(),
}


def _mean_is(*means):
    """Recognise a mean_loss that is one of these, and is not the right one.

    means  functions of a batch's weights: the part of each position in the mean
    """
    return lambda answers, seed: (
        _as_unpadded(answers, seed) is not True
        and any(_worst(answers, seed, shares_of) <= FLOAT32 for shares_of in means)
    )


def _worst(answers, seed, shares_of):
    """How far losses and gradients are from those of this mean, as a share of them."""
    pairs = zip(answers["losses"], answers["gradients"], _unpadded(answers, seed, shares_of), strict=True)
    return max(
        max(abs(loss / wanted - 1), off(gradient, wanted_gradient))
        for loss, gradient, (wanted, wanted_gradient) in pairs
    )


def _as_unpadded(answers, seed):
    losses, weights = (list(map(list, part)) for part in probes.TINY_MEAN)
    if abs(answers["tiny_mean"] - 4) > FLOAT32:
        return f"mean_loss({losses}, {weights}) gives {answers['tiny_mean']:.4g}, and 4 is wanted"
    worst = _worst(answers, seed, OVER["tokens"])
    return bool(worst <= FLOAT32) or f"off by up to {100 * worst:,.4g}%"


def _shapes(answers, seed):
    """The rows and the lengths that batches have, and what they may have."""
    given = probes.corpus(seed)
    rows, lengths = ({tokens.shape[axis] for tokens in answers["tokens"]} for axis in (0, 1))
    return rows, lengths, given["batch"], set(given["buckets"])


def _to_longest_of_batch(answers, seed):
    rows, lengths, batch, buckets = _shapes(answers, seed)
    return rows == {batch} and not lengths <= buckets


def _ragged(answers, seed):
    rows, lengths, batch, buckets = _shapes(answers, seed)
    return max(rows) == batch and min(rows) < batch and lengths <= buckets


def _one_shape(answers, seed):
    _, lengths, _, buckets = _shapes(answers, seed)
    return _nothing_lost(answers, seed) is True and lengths == {max(buckets)}


def _longer_than_needed(answers, seed):
    rows, lengths, batch, buckets = _shapes(answers, seed)
    padded = _little_padding(answers, seed) is not True
    return _nothing_lost(answers, seed) is True and rows == {batch} and lengths <= buckets and padded


def _whole_rows_weighted(answers, seed):
    alike = all((weights == weights[:, :1]).all() for weights in answers["weights"])
    rows = sum(int((weights != 0).any(axis=1).sum()) for weights in answers["weights"])
    return alike and rows == len(probes.corpus(seed)["examples"])


def _several_in_a_row(answers, seed):
    """All tokens have a weight, and stand in fewer rows than there are examples."""
    examples = probes.corpus(seed)["examples"]
    rows = sum(int((weights != 0).any(axis=1).sum()) for weights in answers["weights"])
    return rows < len(examples) and sum(weights.sum() for weights in answers["weights"]) == sum(map(len, examples))


def _in_pieces(answers, seed):
    """All tokens have a weight, and stand in more rows than there are examples."""
    examples = probes.corpus(seed)["examples"]
    rows = sum(int((weights != 0).any(axis=1).sum()) for weights in answers["weights"])
    return rows > len(examples) and sum(weights.sum() for weights in answers["weights"]) == sum(map(len, examples))


def _refilled(answers, seed):
    """All batches of one shape are the same, and some shape has several."""
    shapes = [tokens.shape for tokens in answers["tokens"]]
    same = {(tokens.shape, tokens.tobytes(), w.tobytes()) for tokens, w in zip(answers["tokens"], answers["weights"])}
    return len(same) == len({*shapes}) < len(shapes)


def _one_weight_short(answers, seed):
    found = Counter(row for batch in _found(answers) for row in batch)
    examples = [tuple(example.tolist()) for example in probes.corpus(seed)["examples"]]
    return found in (
        Counter(filter(None, (one[:-1] for one in examples))),
        Counter(one[:-1] or one for one in examples),
    )


def _padded_in_front(answers, seed):
    """Every example is there, at the end of its row."""
    if _missing(answers, seed) or _repeated(answers, seed):
        return False
    return all(
        np.array_equal(weights[:, ::-1], np.arange(weights.shape[1]) < (weights != 0).sum(axis=1)[:, None])
        for weights in answers["weights"]
    )


FEW_SHAPES = question(
    name="q1",
    title="Remove the recompilation",
    asks_for=("make_batches", "mean_loss"),
    probe=probes.probe_batches,
    form=dict.fromkeys(("tokens", "weights", "gradients"), [forms.array])
    | {"compilations": forms.count, "losses": [forms.number], "tiny_mean": forms.number},
    targets=(
        Target("every example is there once, with weight 1, and everything else has weight 0", _nothing_lost),
        Target("JAX compiles at most once for each bucket", _few_compilations),
        Target("no more padding than shortest buckets and one unfilled batch of each need", _little_padding),
        Target("each batch's loss and gradient equal those without padding, to 0.001%", _as_unpadded),
    ),
    recognise={
        "zero taken for padding": lambda answers, seed: all(
            np.array_equal(t != 0, w != 0) for t, w in zip(answers["tokens"], answers["weights"], strict=True)
        ),
        "whole rows weighted": _whole_rows_weighted,
        "several in a row": _several_in_a_row,
        "in pieces": _in_pieces,
        "filled again": _refilled,
        "one weight short": _one_weight_short,
        "copies as filling": lambda answers, seed: bool(_repeated(answers, seed)) and not _missing(answers, seed),
        "remainder dropped": lambda answers, seed: bool(_missing(answers, seed)) and not _repeated(answers, seed),
        "padded in front": _padded_in_front,
        "longest of each batch": _to_longest_of_batch,
        "last batch shorter": _ragged,
        "one shape": _one_shape,
        "longer than needed": _longer_than_needed,
        "mean over all positions": _mean_is(OVER["positions"]),
        "mean of means": _mean_is(OVER["rows"]),
        "padding counted": _mean_is(
            lambda weights: np.full(weights.shape, 1 / weights.size),
            lambda weights: np.full(weights.shape, 1 / weights.sum()),
        ),
        "mean over rows": _mean_is(
            lambda weights: weights / weights.any(axis=1).sum(), lambda weights: weights / len(weights)
        ),
        "sum": _mean_is(lambda weights: weights),
    },
)


# q2: a layout that fits

SHARE_OF_COMPUTE = 1 / 4
MOST_WORK = 1.05  # times a chip's part of the matrix products; what the compiler counts beside them is far less
TRAINING_BYTES = 16  # of a parameter in float32 with Adam: itself, two moments and, within the step, its gradient
_COLUMNS, _ROWS, _WHOLE = (None, "model"), ("model", None), (None, None)


def _kernel_axes(answers):
    """The mesh axis that cuts each dimension of the two kernels, or None; an axis of one device cuts nothing."""
    mesh = answers["chosen"]["mesh"]
    return tuple(tuple(a if mesh.get(a, 2) > 1 else None for a in answers["axes"][path]) for path in probes.KERNELS)


def _counted_bytes(answers, seed):
    """A chip's part of the kernels' training state and gradients, without a compiler."""
    chosen, sizes = answers["chosen"], probes.block_sizes(seed)
    mesh = chosen["mesh"] or {"data": tpu.find_slice(probes.TOPOLOGY).devices}
    total = 0
    for axes in _kernel_axes(answers):
        cut = {axis for axis in axes if axis} | ({"data"} if chosen["layout"] == "fsdp" else set())
        total += TRAINING_BYTES * sizes["width"] * sizes["inner"] // math.prod(mesh.get(axis, 1) for axis in cut)
    return total


def _fits(answers, seed):
    if answers["compiled"]:
        return answers["fits"] or answers["verdict"]
    chips, mesh = tpu.find_slice(probes.TOPOLOGY), answers["chosen"]["mesh"]
    if mesh and math.prod(mesh.values()) != chips.devices:
        return f"your mesh has {math.prod(mesh.values())} devices, and the slice has {chips.devices}"
    counted, memory = (size / 2**30 for size in (_counted_bytes(answers, seed), chips.device_memory_bytes))
    return counted <= memory or f"{counted:.2f} GiB of the {memory:.0f} GiB, counted without a TPU compiler"


def _shares_work(answers, seed):
    chosen, sizes, chips = answers["chosen"], probes.block_sizes(seed), tpu.find_slice(probes.TOPOLOGY).devices
    if answers["compiled"]:
        # Six operations for each weight and row, and down's input gradient has no counterpart in the layer up.
        least = 10 * sizes["width"] * sizes["inner"] * probes.ROWS / chips
        share = answers["flops"] / least
    else:
        mesh = chosen["mesh"] or {"data": chips}
        cuts = [{"data", *filter(None, axes)} for axes in _kernel_axes(answers)]
        share = max(chips / math.prod(mesh.get(axis, 1) for axis in axes) for axes in cuts)
    return share <= MOST_WORK or f"yours does {share:.3g} times an eighth"


def _sends_little(answers, seed):
    if not answers["compiled"]:
        return True  # only the compiler knows
    if not answers["fits"]:
        return "unknown, as long as it does not fit"
    share = answers["seconds"]["interconnect"] / answers["seconds"]["compute"]
    return share <= SHARE_OF_COMPUTE or f"yours sends for {share:.2f} of that time"


def _nothing_cut(layout):
    return lambda answers, seed: answers["chosen"]["layout"] == layout and _kernel_axes(answers) == (_WHOLE, _WHOLE)


def _wide_result_travels(answers, seed):
    up, down = _kernel_axes(answers)
    return answers["chosen"]["layout"] == "data" and up != down[::-1] and (up[0] or down[1]) not in (None, "data")


def _idle_axis(answers, seed):
    """Whether an axis of the mesh cuts neither the batch nor a kernel."""
    used = {"data"}.union(*_kernel_axes(answers))
    return any(size > 1 and axis not in used for axis, size in answers["chosen"]["mesh"].items())


_AXES = [forms.either(forms.text, forms.nothing)]
_CHOSEN = {
    "chosen": {"mesh": {str: forms.count}, "layout": forms.text, "shards": {str: _AXES}},
    "axes": dict.fromkeys(probes.KERNELS, _AXES),
    "compiled": forms.flag,
}
_COMPILED = {
    "fits": forms.flag,
    "verdict": forms.text,
    "state_bytes": forms.whole,
    "seconds": {"compute": forms.distance, "interconnect": forms.distance, str: forms.distance},
    "flops": forms.distance,
}
FITS = question(
    name="q2",
    title="Make it fit",
    asks_for=("chip_layout",),
    probe=probes.probe_fit,
    form=forms.either(_CHOSEN, _CHOSEN | _COMPILED),
    takes_long=True,
    targets=(
        Target("the TPU compiler fits the step into the 16 GiB of each chip", _fits),
        Target("each chip does an eighth of the step's arithmetic, to 5%", _shares_work),
        Target(
            "at published peaks, a chip sends for at most 1/4 of the time that it computes (where a compiler can tell)",
            _sends_little,
        ),
    ),
    recognise={
        "key matches nothing": lambda answers, seed: "matches none of" in answers.get("stopped", {}).get("error", ""),
        "idle axis": _idle_axis,
        "copies everywhere": _nothing_cut("data"),
        "fsdp alone": _nothing_cut("fsdp"),
        "order of the cuts": _wide_result_travels,
        "rows, then columns": lambda answers, seed: _kernel_axes(answers) == (_ROWS, _COLUMNS),
        "one kernel whole": lambda answers, seed: (
            answers["chosen"]["layout"] == "data" and _kernel_axes(answers).count(_WHOLE) == 1
        ),
        "model axis too short": lambda answers, seed: (
            _kernel_axes(answers) == (_COLUMNS, _ROWS) and answers["chosen"]["mesh"]["model"] == 2
        ),
    },
)


# q4: rows per host


def _wanted_shape(cluster, host, seed):
    given = probes.data_set(seed)
    return given["examples"] // given["global_batch"], len(cluster.parts(host)) * given["global_batch"] // cluster.data


def _shapes_right(answers, seed):
    for cluster, read in zip(probes.CLUSTERS, answers["read"], strict=True):
        if len(read) != cluster.hosts:
            return f"{_mesh_words(cluster)}: there are examples of {len(read)}"
        for host, rows in enumerate(read):
            wanted = _wanted_shape(cluster, host, seed)
            if rows.shape != wanted:
                return f"{_mesh_words(cluster)}: host {host} reads {rows.shape}, and its chips compute {wanted}"
    if (got := answers["no_rest"].shape) != (wanted := (3, probes.data_set(seed)["global_batch"])):
        return f"of three whole batches one host reads {got}, and its chips compute {wanted}"
    return True


def _mesh_words(cluster):
    hosts = "1 host" if cluster.hosts == 1 else f"{cluster.hosts} hosts"
    return f"{hosts}, data={cluster.data}, model={cluster.model}"


def _chips(cluster, read, seed):
    """Every chip's rows, (steps, rows), by its place in the mesh (data, model)."""
    part = probes.data_set(seed)["global_batch"] // cluster.data
    rows = {}
    for chip in range(cluster.data * cluster.model):
        host, place = chip // cluster.chips, chip // cluster.model
        first = (place - cluster.parts(host).start) * part
        rows[place, chip % cluster.model] = read[host][:, first : first + part]
    return rows


def _assembled(answers, seed):
    """Each cluster's global batches, (steps, global_batch), from the chips that stand first along model."""
    made = []
    for cluster, read in zip(probes.CLUSTERS, answers["read"], strict=True):
        rows = _chips(cluster, read, seed)
        made.append(np.concatenate([rows[place, 0] for place in range(cluster.data)], axis=1))
    return made


def _needs_shapes(holds):
    """A target that says nothing before every host has the rows that its chips compute."""
    return lambda answers, seed: (
        holds(answers, seed) if _shapes_right(answers, seed) is True else "not put together: other shapes"
    )


def _copies_agree(answers, seed):
    for cluster, read in zip(probes.CLUSTERS, answers["read"], strict=True):
        rows = _chips(cluster, read, seed)
        for place, copy in rows:
            if not np.array_equal(rows[place, copy], rows[place, 0]):
                return f"{_mesh_words(cluster)}: chips of part {place} have other examples"
    return True


def _each_once(answers, seed):
    for cluster, batches in zip(probes.CLUSTERS, _assembled(answers, seed), strict=True):
        twice = batches.size - len(np.unique(batches))
        if twice:
            return f"{_mesh_words(cluster)}: {twice} of {batches.size} rows repeat another"
        if not np.isin(batches, np.arange(probes.data_set(seed)["examples"])).all():
            return "a number is not an example's"
    return True


def _same_on_all(answers, seed):
    first, *others = _assembled(answers, seed)
    for cluster, batches in zip(probes.CLUSTERS[1:], others):
        if not np.array_equal(batches, first):
            return f"{_mesh_words(cluster)}: {np.mean(batches != first):.0%} of the rows differ from those on one host"
    return True


def _order_right(answers, seed):
    if not np.array_equal(answers["read"][0][0], answers["again"]):
        return "asked twice, host 0 reads other examples"
    following = answers["next_epoch"]
    if following.shape != answers["again"].shape or following.size != len(np.unique(following)):
        return "in the next epoch host 0 reads an example twice, or another number of them"
    for what in ("epoch", "seed"):
        if np.array_equal(answers["again"], answers[f"next_{what}"]):
            return f"the next {what} gives the same order"
        if _members(answers["again"]) == _members(answers[f"next_{what}"]):
            return f"the next {what} gives the same batches, in another order"
    return True


def _members(batches):
    return {frozenset(batch) for batch in batches.tolist()}


def _widths(answers, seed, width_of):
    """Whether every host reads width_of(cluster) rows in each of the right number of steps."""
    given = probes.data_set(seed)
    return all(
        rows.shape == (given["examples"] // given["global_batch"], width_of(cluster))
        for cluster, read in zip(probes.CLUSTERS, answers["read"], strict=True)
        for rows in read
    )


def _once_for_each_chip(answers, seed):
    """Where neighbouring chips share a part, a host's rows are there as often."""
    batch = probes.data_set(seed)["global_batch"]
    wide = _widths(answers, seed, lambda cluster: cluster.chips * batch // cluster.data)
    return wide and all(
        _repeats(read[0]) == (len(cluster.parts(0)) < cluster.chips)
        for cluster, read in zip(probes.CLUSTERS, answers["read"], strict=True)
    )


def _fewer_steps(answers, seed):
    """Whether hosts read as many rows in a step as their chips compute, but some run out early."""
    pairs = [(read[0].shape, _wanted_shape(c, 0, seed)) for c, read in zip(probes.CLUSTERS, answers["read"])]
    return all(got[1] == wanted[1] for got, wanted in pairs) and any(got[0] < wanted[0] for got, wanted in pairs)


def _repeats(rows):
    return rows.size > len(np.unique(rows))


def _orders_of_hosts(answers, seed):
    """Whether each host of a cluster reads nothing twice, and two of them read the same without sharing a part."""
    if _shapes_right(answers, seed) is not True or any(_repeats(rows) for read in answers["read"] for rows in read):
        return False
    return _repeats(np.concatenate(answers["read"][1], axis=1))  # of four hosts, and no two share a part


def _another_part(answers, seed):
    """Whether hosts that share no part read different rows, and those that share one do as well."""
    if _shapes_right(answers, seed) is not True or _copies_agree(answers, seed) is True:
        return False
    return not _repeats(np.concatenate(answers["read"][1], axis=1))


def _same_order(other):
    """Recognise everything right but that another epoch or seed (other) has the same order."""
    return lambda answers, seed: (
        np.array_equal(answers["again"], answers[other])
        and np.array_equal(answers["again"], answers["read"][0][0])
        and _shapes_right(answers, seed) is True
    )


def _another_batch_on_others(answers, seed):
    if _shapes_right(answers, seed) is not True or _same_on_all(answers, seed) is True:
        return False
    return _copies_agree(answers, seed) is _each_once(answers, seed) is _order_right(answers, seed) is True


HOSTS = question(
    name="q4",
    title="Which host reads what",
    asks_for=("host_examples",),
    probe=probes.probe_hosts,
    form={"read": [[forms.array]], **dict.fromkeys(("again", "next_epoch", "next_seed", "no_rest"), forms.array)},
    targets=(
        Target("on every host as many steps, and in each the rows that its chips compute", _shapes_right),
        Target("chips that compute the same part of the batch get the same examples", _needs_shapes(_copies_agree)),
        Target("no example twice in an epoch", _needs_shapes(_each_once)),
        Target("the same global batches, row for row, on any number of hosts", _needs_shapes(_same_on_all)),
        Target("asked again the same order, in the next epoch and with another seed another one", _order_right),
    ),
    recognise={
        "model axis forgotten": lambda answers, seed: _widths(
            answers, seed, lambda cluster: probes.data_set(seed)["global_batch"] // cluster.hosts
        ),
        "a share for each host": _fewer_steps,
        "whole batch on each": lambda answers, seed: _widths(
            answers, seed, lambda cluster: probes.data_set(seed)["global_batch"]
        ),
        "once for each chip": _once_for_each_chip,
        "one part for each host": lambda answers, seed: _widths(
            answers, seed, lambda cluster: probes.data_set(seed)["global_batch"] // cluster.data
        ),
        "drawn twice": lambda answers, seed: _repeats(answers["read"][0][0]),
        "shuffled on each host": _orders_of_hosts,
        "another part of the mesh": _another_part,
        "another order each time": lambda answers, seed: (
            answers["again"].shape == answers["read"][0][0].shape
            and not np.array_equal(answers["again"], answers["read"][0][0])
        ),
        "batches shuffled": lambda answers, seed: (
            _members(answers["again"]) == _members(answers["next_epoch"]) == _members(answers["next_seed"])
        ),
        "same order in each epoch": _same_order("next_epoch"),
        "seed ignored": _same_order("next_seed"),
        "hash of a text": stopped_by(SALTED),
        "by the number of hosts": _another_batch_on_others,
    },
)


QUESTIONS = (FEW_SHAPES, FITS, TILES, HOSTS, SLICES)

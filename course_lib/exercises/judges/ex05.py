"""Exercise 05: a layout that fits a chip, rows per host; q1 is in ex05_batches, q3 in ex05_tiles, q5 in ex05_slices.

Needs NumPy; the wrong answers need JAX when they run, and those of q2 the TPU compiler.
"""

import itertools
import math

import numpy as np

from course_lib import tpu
from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.judges.ex05_batches import FEW_SHAPES
from course_lib.exercises.judges.ex05_slices import SLICES
from course_lib.exercises.judges.ex05_tiles import TILES
from course_lib.exercises.judges.stops import stopped_by
from course_lib.exercises.probes import ex05 as probes
from course_lib.exercises.probes.salted_hash import SALTED
from course_lib.exercises.question import Target

question = question_maker.of("05_tpu")


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


def _sizes_of_cuts(answers):
    """By how many devices each kernel is cut."""
    mesh = answers["chosen"]["mesh"]
    return [math.prod(mesh.get(axis, 1) for axis in axes if axis) for axes in _kernel_axes(answers)]


def _cut_over_data(answers, seed):
    return {axis for axes in _kernel_axes(answers) for axis in axes if axis} == {"data"}


def _columns_then_rows(answers):
    (up_rows, up_columns), (down_rows, down_columns) = _kernel_axes(answers)
    return (
        up_rows is down_columns is None
        and "data" not in (up_columns, down_rows)
        and None not in (up_columns, down_rows)
    )


def _halves(layout):
    """Recognise kernels that are cut in two, in the right order, with this layout for what is left."""
    return lambda answers, seed: (
        answers["chosen"]["layout"] == layout and _columns_then_rows(answers) and _sizes_of_cuts(answers) == [2, 2]
    )


def _last_bias_cut(answers, seed):
    """Whether the last bias is cut as well, and the work alone is too much."""
    axis = answers["axes"]["down/bias"][0]
    return (
        answers["chosen"]["mesh"].get(axis, 1) > 1
        and _columns_then_rows(answers)
        and _shares_work(answers, seed) is not True
        and _fits(answers, seed) is _sends_little(answers, seed) is True
    )


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
    "axes": dict.fromkeys(probes.CUT_BY_HAND, _AXES),
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
        "not a layout": stopped_by("chip_layout chooses"),
        "idle axis": _idle_axis,
        "cut over data": _cut_over_data,
        "copies everywhere": _nothing_cut("data"),
        "fsdp alone": _nothing_cut("fsdp"),
        "order of the cuts": _wide_result_travels,
        "rows, then columns": lambda answers, seed: _kernel_axes(answers) == (_ROWS, _COLUMNS),
        "one kernel whole": lambda answers, seed: (
            answers["chosen"]["layout"] == "data" and _kernel_axes(answers).count(_WHOLE) == 1
        ),
        "model axis too short": _halves("data"),
        "halves and fsdp": _halves("fsdp"),
        "last bias cut": _last_bias_cut,
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
    for read, given in _on_one_host(answers, seed):
        wanted = given["examples"] // given["global_batch"], given["global_batch"]
        if read.shape != wanted:
            return f"of {given['examples']:,} examples one host reads {read.shape}, and its chips compute {wanted}"
    for name, read, wanted in _hosts_of_wide(answers, seed):
        if read.shape != wanted.shape:
            return f"{_mesh_words(probes.WIDE)}: {name} reads {read.shape}, and its chips compute {wanted.shape}"
    return True


def _hosts_of_wide(answers, seed):
    """Of some hosts in hundreds: the name, what it reads, and its columns of what one host reads in their place."""
    part = probes.wide_data_set(seed)["global_batch"] // probes.WIDE.data
    *of_hosts, whole = answers["wide"]
    for host, read in zip(probes.ASKED_OF_WIDE, of_hosts, strict=True):
        parts = probes.WIDE.parts(host)
        yield f"host {host}", read, whole[:, parts.start * part : parts.stop * part]


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
        if not _are_examples(batches, probes.data_set(seed)):
            return "a number is not an example's"
    for read, given in _on_one_host(answers, seed):
        if _repeats(read) or not _are_examples(read, given):
            return f"with {given['examples']:,} examples some come twice, or have a number that is not an example's"
    if others := [dtype for dtype in answers["dtypes"] if np.dtype(dtype).kind not in "iu"]:
        return f"the numbers are of {others[0]}, and integers are asked for"
    return True


def _on_one_host(answers, seed):
    """What one host reads of a data set that batches fill and of larger ones, each with that data set."""
    return [
        (answers["no_rest"], _no_rest(seed)),
        (answers["large"], probes.large_data_set(seed)),
        (answers["wide"][-1], probes.wide_data_set(seed)),
    ]


def _no_rest(seed):
    return probes.data_set(seed) | {"examples": 3 * probes.data_set(seed)["global_batch"]}


def _are_examples(read, given):
    return bool(np.isin(read, np.arange(given["examples"])).all())


def _same_on_all(answers, seed):
    first, *others = _assembled(answers, seed)
    for cluster, batches in zip(probes.CLUSTERS[1:], others):
        if not np.array_equal(batches, first):
            return f"{_mesh_words(cluster)}: {np.mean(batches != first):.0%} of the rows differ from those on one host"
    for name, read, wanted in _hosts_of_wide(answers, seed):
        if not np.array_equal(read, wanted):
            return f"{_mesh_words(probes.WIDE)}: what {name} reads differs from what one host reads in its place"
    return True


def _order_right(answers, seed):
    if not np.array_equal(answers["read"][0][0], answers["again"]):
        return "asked twice, host 0 reads other examples"
    for following in (answers["next_epoch"], *answers["other_orders"]):
        if following.shape != answers["again"].shape or _repeats(following):
            return "in another epoch, or with another seed, host 0 reads an example twice, or another number of them"
    for what in ("epoch", "seed"):
        if np.array_equal(answers["again"], answers[f"next_{what}"]):
            return f"the next {what} gives the same order"
        if _members(answers["again"]) == _members(answers[f"next_{what}"]):
            return f"the next {what} gives the same batches, in another order"
    for (one, read), (other, another) in itertools.combinations(_orders(answers, seed), 2):
        same = next((key for key in one if one[key] == other[key]), None)
        if same and _members(read) == _members(another):
            names = [", ".join(f"{key} {value}" for key, value in order.items()) for order in (one, other)]
            return f"{names[0]} and {names[1]} have the same batches"
    return True


def _orders(answers, seed):
    """Seed and epoch, and what one host reads."""
    return list(zip(probes.other_orders(seed), answers["other_orders"], strict=True))


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
    one_host = pairs[0][0] == pairs[0][1]
    few = any(got[0] < wanted[0] for got, wanted in pairs)
    return one_host and few and all(got[1] == wanted[1] for got, wanted in pairs)


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


def _columns_are(columns_of):
    """Recognise hosts that read the columns columns_of(cluster, host, rows of a part) of what one host reads."""

    def recognise(answers, seed):
        (whole,), batch = answers["read"][0], probes.data_set(seed)["global_batch"]
        made = zip(probes.CLUSTERS, answers["read"], strict=True)
        return all(
            np.array_equal(rows, whole[:, list(columns_of(cluster, host, batch // cluster.data))])
            for cluster, read in made
            for host, rows in enumerate(read)
        )

    return recognise


def _another_batch_on_others(what):
    """Recognise batches that are another for other hosts, of one mesh, or for other meshes alone; else all is right."""

    def recognise(answers, seed):
        if _shapes_right(answers, seed) is not True or _same_on_all(answers, seed) is True:
            return False
        rest_right = _copies_agree(answers, seed) is _each_once(answers, seed) is _order_right(answers, seed) is True
        made = list(zip(probes.CLUSTERS, _assembled(answers, seed), strict=True))
        alike = all(
            np.array_equal(batches, others)
            for (one, batches), (other, others) in itertools.combinations(made, 2)
            if (one.data, one.model) == (other.data, other.model)
        )
        return rest_right and alike == (what == "mesh")

    return recognise


def _seed_0_stays(answers, seed):
    """With seed 0 every epoch has the same order, and with the other seed each has its own."""
    orders = [(given["seed"], read.tobytes()) for given, read in _orders(answers, seed)]
    of_0, others = ([read for one, read in orders if (one == 0) == zero] for zero in (True, False))
    return len({*of_0}) == 1 and len({*others}) == len(others)


def _too_few_bits(answers, seed):
    """Small seeds and epochs have orders of their own, and some with large numbers have the order of others."""
    orders = [
        (max(given["epoch"], given["seed"] >> 8) < 2**8, read.tobytes()) for given, read in _orders(answers, seed)
    ]
    small, all_of_them = [read for is_small, read in orders if is_small], [read for _, read in orders]
    shared = len({*all_of_them}) < len(all_of_them)
    return shared and len({*small}) == len(small) and _shapes_right(answers, seed) is True


def _batches_stay(answers, seed):
    """The next epoch has the same batches in another order, and another seed has others."""
    again, following, other = (answers[key] for key in ("again", "next_epoch", "next_seed"))
    return (
        _members(again) == _members(following) != _members(other)
        and not np.array_equal(again, following)
        and _shapes_right(answers, seed) is True
    )


def _turned(answers, seed):
    """Every epoch of a seed has the order of its epoch 0, turned by some places."""
    if _shapes_right(answers, seed) is not True or _order_right(answers, seed) is True:
        return False
    orders = [(given, read.ravel()) for given, read in _orders(answers, seed)]
    if any(read.size != answers["read"][0][0].size for _, read in orders):
        return False
    first = {given["seed"]: read for given, read in orders if given["epoch"] == 0}
    turns = [_is_turn(read, first[given["seed"]]) or _is_turn(first[given["seed"]], read) for given, read in orders]
    by_none = sum(np.array_equal(read, first[given["seed"]]) for given, read in orders if given["epoch"] in (1, 2))
    return all(turns) and not by_none


def _is_turn(read, other):
    """Whether `read` begins as `other` goes on from some place, for at least a third of it."""
    return any(np.array_equal(read[: len(read) - by], other[by:]) for by in range(2 * len(read) // 3 + 1))


def _kept_order(answers, seed):
    """Another data set of the same seed and epoch has the first one's batches."""
    again, small = answers["again"], answers["no_rest"]
    as_kept = any(np.array_equal(small, again[:steps]) for steps in (len(small), len(again)))
    return as_kept and not (_are_examples(small, _no_rest(seed)) and len(small) == 3)


def _wraps(answers, seed):
    """All is right but the numbers of a large data set, which are whole and small."""
    wrapped = answers["large"]
    return (
        _shapes_right(answers, seed) is _copies_agree(answers, seed) is _order_right(answers, seed) is True
        and _each_once(answers, seed) is not True
        and not any(_repeats(batches) for batches in _assembled(answers, seed))
        and all(np.dtype(dtype).kind in "iu" for dtype in answers["dtypes"])
        and _repeats(wrapped)
        and abs(wrapped).max() < 2**16
    )


def _strided(cluster, host, part):
    """Every N-th row, for N groups of hosts that share a part."""
    groups = cluster.data // len(cluster.parts(host))
    return range(cluster.parts(host).start // len(cluster.parts(host)), cluster.data * part, groups)


def _neighbours_strided(cluster, host, part):
    """Every N-th row, for N parts, one part behind the other."""
    return [row * cluster.data + place for row in range(part) for place in cluster.parts(host)]


def _of_parts(parts_of):
    """The rows of the parts parts_of(cluster, host), as far as there are such."""
    return lambda cluster, host, part: [
        place * part + row for place in parts_of(cluster, host) if place < cluster.data for row in range(part)
    ]


def _of_eight(cluster, host):
    chips = range(8 // cluster.hosts * host, 8 // cluster.hosts * (host + 1))
    return sorted({chip // cluster.model for chip in chips})


def _of_pairs(cluster, host):
    return cluster.parts(host) if cluster.chips >= cluster.model else [host // 2]


HOSTS = question(
    name="q4",
    title="Which host reads what",
    asks_for=("host_examples",),
    probe=probes.probe_hosts,
    form={
        "read": [[forms.array]],
        **dict.fromkeys(("again", "next_epoch", "next_seed", "no_rest", "large"), forms.array),
        "other_orders": [forms.array],
        "wide": (forms.array,) * (len(probes.ASKED_OF_WIDE) + 1),
        "dtypes": [forms.text],
    },
    targets=(
        Target("on every host as many steps, and in each the rows that its chips compute", _shapes_right),
        Target("chips that compute the same part of the batch get the same examples", _needs_shapes(_copies_agree)),
        Target("no example twice in an epoch", _needs_shapes(_each_once)),
        Target(
            "the same global batches, row for row, on any number of hosts, in any mesh", _needs_shapes(_same_on_all)
        ),
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
        "last batch filled up": lambda answers, seed: (
            answers["read"][0][0].shape[0] == _wanted_shape(probes.CLUSTERS[0], 0, seed)[0] + 1
            and len(answers["no_rest"]) == 3
        ),
        "eight chips": _columns_are(_of_parts(_of_eight)),
        "pairs of hosts": _columns_are(_of_parts(_of_pairs)),
        "every N-th row": lambda answers, seed: (
            _same_on_all(answers, seed) is not True
            and any(_columns_are(one)(answers, seed) for one in (_strided, _neighbours_strided))
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
        "by the number of hosts": _another_batch_on_others("hosts"),
        "by the mesh": _another_batch_on_others("mesh"),
        "seed times epoch": _seed_0_stays,
        "batches stay together": _batches_stay,
        "too few bits": _too_few_bits,
        "one order, turned": _turned,
        "order kept": _kept_order,
        "numbers wrap": _wraps,
        "no integers": lambda answers, seed: any(np.dtype(dtype).kind == "f" for dtype in answers["dtypes"]),
    },
)


QUESTIONS = (FEW_SHAPES, FITS, TILES, HOSTS, SLICES)

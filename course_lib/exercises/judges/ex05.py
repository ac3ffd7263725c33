"""Exercise 05: batches of few shapes, a layout that fits a chip, tiles, rows per host, chips worth having.

Needs NumPy; the wrong answers of q1 need JAX when they run, and those of q2 the TPU compiler.
"""

import math
from collections import Counter

import numpy as np

from course_lib import tpu
from course_lib.exercises.judges import forms
from course_lib.exercises.probes import ex05 as probes
from course_lib.exercises.question import Mistake, Question, Target

FLOAT32 = 1e-5  # relative: a mean of a hundred numbers in float32


# q1: few shapes


def _found(answers) -> list[list[tuple[int, ...]]]:
    """Of each batch the examples in it: the tokens of a row that have a weight."""
    return [
        [tuple(row[mask != 0].tolist()) for row, mask in zip(tokens, weights, strict=True) if mask.any()]
        for tokens, weights in zip(answers["tokens"], answers["weights"], strict=True)
    ]


def _counts(answers, seed):
    """How often each example is there, and how often it should be."""
    found = Counter(row for batch in _found(answers) for row in batch)
    wanted = Counter(tuple(example.tolist()) for example in probes.corpus(seed)["examples"])
    return {row: (found[row], wanted[row]) for row in {*found, *wanted}}


def _missing(answers, seed):
    return [row for row, (found, wanted) in _counts(answers, seed).items() if found < wanted]


def _repeated(answers, seed):
    return [row for row, (found, wanted) in _counts(answers, seed).items() if found > wanted]


def _nothing_lost(answers, seed):
    if missing := _missing(answers, seed):
        return f"{len(missing)} of {len(probes.corpus(seed)['examples'])} examples are not there as they were"
    if repeated := _repeated(answers, seed):
        return f"{len(repeated)} rows with weight are no example, or one that was there already"
    for weights in answers["weights"]:
        lengths = (weights != 0).sum(axis=1)
        if not np.array_equal(weights, np.arange(weights.shape[1]) < lengths[:, None]):
            return "a row's weights are not ones and then zeros"
    return True


def _few_compilations(answers, seed):
    allowed = len(probes.corpus(seed)["buckets"])
    return (
        answers["compilations"] <= allowed
        or f"{answers['compilations']} compilations for {len(answers['tokens'])} batches"
    )


def _bucket(length, buckets):
    return next(size for size in buckets if size >= length)


def _little_padding(answers, seed):
    given = probes.corpus(seed)
    sizes = [_bucket(len(example), given["buckets"]) for example in given["examples"]]
    needed = sum(size * given["batch"] * math.ceil(sizes.count(size) / given["batch"]) for size in given["buckets"])
    positions, tokens = sum(tokens.size for tokens in answers["tokens"]), sum(map(len, given["examples"]))
    return (
        positions <= needed
        or f"{1 - tokens / positions:.0%} of your positions are padding, and {1 - tokens / needed:.0%} would do"
    )


def _unpadded(mean):
    """Each batch's loss and gradient with this mean(losses, weights) -> (mean, its derivative by each loss)."""

    def results(answers, seed):
        model, made = probes.table(seed).astype("float64"), []
        for tokens, weights in zip(answers["tokens"], answers["weights"], strict=True):
            loss, shares = mean(probes.token_losses(model, tokens), weights)
            gradient = np.zeros_like(model)
            np.add.at(gradient, tokens, (2 * shares * (model[tokens].sum(axis=-1) - 1))[..., None])
            made.append((loss, gradient))
        return made

    return results


def _over_tokens(losses, weights):
    total = weights.sum()
    return (losses * weights).sum() / total, weights / total


def _over_positions(losses, weights):
    return (losses * weights).sum() / losses.size, weights / losses.size


def _over_everything(losses, weights):
    return losses.mean(), np.full_like(losses, 1 / losses.size)


def _over_rows(losses, weights):
    shares = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1) / (weights.any(axis=1).sum() or 1)
    return (losses * shares).sum(), shares


def _worst(answers, seed, mean):
    """How far losses and gradients are from those of this mean, as a share of them."""
    pairs = zip(answers["losses"], answers["gradients"], _unpadded(mean)(answers, seed), strict=True)
    if any(gradient.shape != probes.table(seed).shape for gradient in answers["gradients"]):
        return math.inf
    return max(
        max(abs(loss / wanted - 1), np.linalg.norm(gradient - wanted_gradient) / np.linalg.norm(wanted_gradient))
        for loss, gradient, (wanted, wanted_gradient) in pairs
    )


def _as_unpadded(answers, seed):
    off = _worst(answers, seed, _over_tokens)
    return bool(off <= FLOAT32) or f"off by up to {100 * off:,.4g}%"


def _mean_is(mean):
    return lambda answers, seed: _worst(answers, seed, mean) <= FLOAT32


def _batches(
    size=lambda group, buckets: _bucket(max(map(len, group)), buckets),
    by_bucket=True,
    full=True,
    copies=False,
    drop=False,
    fill=True,
    cut=False,
    weigh=None,
    later=False,
    mean=None,
):
    """The names of a learner with one thing wrong: see the mistakes for which."""

    def own_bucket(example, buckets):
        if cut:
            return max([size for size in buckets if size <= len(example)] or [buckets[0]])
        if later:
            return next((size for size in buckets if size > len(example)), buckets[-1])
        return _bucket(len(example), buckets)

    def make_batches(examples, batch, buckets):
        groups = {}
        for example in examples:
            groups.setdefault(own_bucket(example, buckets) if by_bucket else 0, []).append(example)
        made = []
        for bucket, members in groups.items():
            for start in range(0, len(members), batch):
                group = members[start : start + batch]
                if drop and len(group) < batch:
                    continue
                length = bucket if cut or later else size(group, buckets)
                group = group + [group[-1]] * (batch - len(group)) if copies else group
                shape = (batch if fill else len(group), length)
                tokens, weights = np.zeros(shape, "int32"), np.zeros(shape, "float32")
                for row, example in enumerate(group):
                    tokens[row, : len(example)] = example[:length]
                    weights[row, : len(example)] = 1
                made.append((tokens, (tokens != 0).astype("float32") if weigh else weights))
        return made

    def mean_loss(losses, weights):
        import jax.numpy as jnp

        if mean is _over_everything:
            return losses.mean()
        if mean is _over_positions:
            return (losses * weights).sum() / losses.size
        if mean is _over_rows:
            rows = (losses * weights).sum(axis=1) / jnp.maximum(weights.sum(axis=1), 1)
            return rows.sum() / (weights.sum(axis=1) > 0).sum()
        return (losses * weights).sum() / weights.sum()

    return {"make_batches": make_batches, "mean_loss": mean_loss}


def _shapes(answers, seed):
    """The rows and the lengths that batches have, and what they may have."""
    given = probes.corpus(seed)
    rows, lengths = ({tokens.shape[axis] for tokens in answers["tokens"]} for axis in (0, 1))
    return rows, lengths, given["batch"], set(given["buckets"])


def _to_longest_of_batch(answers, seed):
    rows, lengths, batch, buckets = _shapes(answers, seed)
    return rows == {batch} and not lengths <= buckets


def _to_longest_of_all(answers, seed):
    rows, lengths, batch, buckets = _shapes(answers, seed)
    return lengths == {max(buckets)}


def _ragged(answers, seed):
    rows, lengths, batch, buckets = _shapes(answers, seed)
    return max(rows) == batch and min(rows) < batch and lengths <= buckets


def _cut_short(answers, seed):
    ends = {row[: len(short)] for row in _missing(answers, seed) for short in _repeated(answers, seed)}
    return any(short in ends for short in _repeated(answers, seed))


def _own_length_too_long(answers, seed):
    """Nothing is in too long a row, but for examples that are as long as a bucket."""
    buckets, boundary = probes.corpus(seed)["buckets"], False
    for tokens, batch in zip(answers["tokens"], _found(answers), strict=True):
        for example in batch:
            if tokens.shape[1] != _bucket(len(example), buckets):
                if len(example) not in buckets:
                    return False
                boundary = True
    return boundary


def _unsorted(answers, seed):
    rows, lengths, batch, buckets = _shapes(answers, seed)
    mixed = any(len({_bucket(len(example), sorted(buckets)) for example in found}) > 1 for found in _found(answers))
    return rows == {batch} and lengths <= buckets and mixed


FEW_SHAPES = Question(
    name="q1",
    title="Remove the recompilation",
    asks_for=("make_batches", "mean_loss"),
    probe=probes.probe_batches,
    targets=(
        Target("every example is there once, with weight 1, and all else has weight 0", _nothing_lost),
        Target("JAX compiles at most once for each bucket", _few_compilations),
        Target("no more padding than shortest buckets and one unfilled batch of each need", _little_padding),
        Target("each batch's loss and gradient equal those without padding, to 0.001%", _as_unpadded),
    ),
    mistakes=(
        Mistake(
            "zero taken for padding",
            "You give weight 0 to every token 0, and here 0 is a token like others.",
            "You know each example's length when you copy it: the weights come from there.",
            _batches(weigh=True),
            lambda answers, seed: all(
                np.array_equal(t != 0, w != 0) for t, w in zip(answers["tokens"], answers["weights"], strict=True)
            ),
        ),
        Mistake(
            "copies as filling",
            "You fill the last batch with copies of an example, and they count as examples.",
            "A row can be there for its shape alone: which weights make it count for nothing?",
            _batches(copies=True),
            lambda answers, seed: bool(_repeated(answers, seed)) and not _missing(answers, seed),
        ),
        Mistake(
            "examples cut short",
            "You put an example into a bucket that is too short for it, and lose its end.",
            "The bucket is the shortest that holds the whole example.",
            _batches(cut=True),
            _cut_short,
        ),
        Mistake(
            "remainder dropped",
            "You drop the last batch of a bucket, so the same examples may never be learned from.",
            "What can stand in the rows that no example fills?",
            _batches(drop=True),
            lambda answers, seed: bool(_missing(answers, seed)) and not _repeated(answers, seed),
        ),
        Mistake(
            "longest of each batch",
            "You pad to the longest example of each batch, and nearly each batch has a length of its own.",
            "Only the lengths in `buckets` are compiled for.",
            _batches(size=lambda group, buckets: max(map(len, group))),
            _to_longest_of_batch,
        ),
        Mistake(
            "last batch shorter",
            "The last batch of a bucket has fewer rows: another shape, and another compilation.",
            "A shape has two dimensions. Fill up the rows too.",
            _batches(fill=False),
            _ragged,
        ),
        Mistake(
            "longest of all",
            "One shape is the fewest compilations, and most of what you compute is padding.",
            "Three shapes are allowed: sort the examples into buckets first.",
            _batches(size=lambda group, buckets: buckets[-1], by_bucket=False),
            _to_longest_of_all,
        ),
        Mistake(
            "bucket's own length",
            "An example that is as long as a bucket lands in the next longer one.",
            "`<` or `<=`? `bisect_left` or `bisect_right`?",
            _batches(later=True),
            _own_length_too_long,
        ),
        Mistake(
            "not sorted",
            "You batch the examples as they come, so one long example makes a batch of short ones long.",
            "Sort them into buckets first, then batch each bucket.",
            _batches(by_bucket=False),
            _unsorted,
        ),
        Mistake(
            "mean over all positions",
            "The weights leave the sum right, and you divide it by all positions.",
            "How many tokens are real?",
            _batches(mean=_over_positions),
            _mean_is(_over_positions),
        ),
        Mistake(
            "padding learned from",
            "Your mean loss takes no notice of the weights, so the model learns from padding.",
            "`mean_loss` gets two arrays.",
            _batches(mean=_over_everything),
            _mean_is(_over_everything),
        ),
        Mistake(
            "mean of means",
            "You take each row's mean first, so a token of a short example counts for more.",
            "One sum over all tokens, and one number to divide it by.",
            _batches(mean=_over_rows),
            _mean_is(_over_rows),
        ),
    ),
)


# q2: a layout that fits

SHARE_OF_COMPUTE = 1 / 4
TRAINING_BYTES = 16  # of a parameter in float32 with Adam: itself, two moments and, within the step, its gradient
_COLUMNS, _ROWS = (None, "model"), ("model", None)


def _kernel_axes(answers):
    """The mesh axis of each dimension of the two kernels; (None, None) for a kernel that no key matches."""
    return tuple(tuple(answers["axes"][path]) for path in probes.KERNELS)


def _model_devices(answers):
    """Number of devices along all axes but data."""
    return math.prod(size for axis, size in answers["chosen"]["mesh"].items() if axis != "data")


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
    chips, mesh = tpu.find_slice(probes.TOPOLOGY).devices, answers["chosen"]["mesh"]
    if mesh and math.prod(mesh.values()) != chips:
        return f"your mesh has {math.prod(mesh.values())} devices, and the slice has {chips}"
    counted, memory = _counted_bytes(answers, seed), tpu.find_slice(probes.TOPOLOGY).device_memory_bytes
    return (
        counted <= memory
        or f"counted, for want of a TPU compiler: {counted / 2**30:.2f} GiB of the {memory / 2**30:.0f} GiB"
    )


def _sends_little(answers, seed):
    if not answers["compiled"]:
        return True  # only the compiler tells
    if not answers["fits"]:
        return "unknown, as long as it does not fit"
    share = answers["seconds"]["interconnect"] / answers["seconds"]["compute"]
    return share <= SHARE_OF_COMPUTE or f"yours sends for {share:.2f} of that time"


def _layout(up=_COLUMNS, down=_ROWS, data=1, model=8, **more):
    """A learner who cuts the two kernels like this."""
    shards = {path: axes for path, axes in zip(probes.KERNELS, (up, down)) if axes}
    return lambda: {"mesh": {"data": data, "model": model}, "shards": shards, **more}


def _said(answers, words):
    return words in answers.get("stopped", {}).get("error", "")


def _cuts(*axes):
    return lambda answers, seed: _kernel_axes(answers) == axes and _model_devices(answers) > 1


FITS = Question(
    name="q2",
    title="Make it fit",
    asks_for=("chip_layout",),
    probe=probes.probe_fit,
    takes_long=True,
    targets=(
        Target("the TPU compiler fits the step into the 16 GiB of each chip", _fits),
        Target(
            "at published peaks, a chip sends for at most 1/4 of the time that it computes (where a compiler can tell)",
            _sends_little,
        ),
    ),
    mistakes=(
        Mistake(
            "key matches nothing",
            "A key of your `shards` matches no variable, so it cuts nothing.",
            "The question names the four variables; a key matches a whole path.",
            lambda: {"mesh": {"data": 1, "model": 8}, "shards": {"block/up": _COLUMNS, "block/down": _ROWS}},
            lambda answers, seed: _said(answers, "matches none of"),
        ),
        Mistake(
            "mesh of another size",
            "Your mesh has another number of devices than the slice has chips.",
            "v5e:2x4 has eight chips, and the mesh uses all of them.",
            _layout(data=4, model=4),
            lambda answers, seed: _said(answers, "their product must be"),
        ),
        Mistake(
            "axis unknown",
            "Your `shards` name an axis that your mesh does not have.",
            "The mesh names the axes, and the shards use these names.",
            _layout(up=(None, "columns")),
            lambda answers, seed: _said(answers, "the shards name the mesh axis"),
        ),
        Mistake(
            "copies everywhere",
            "Every chip holds both kernels whole: splitting the batch splits no weights.",
            "`shards` cut kernels along an axis of the mesh. How many bytes does a parameter need in training?",
            _layout(up=None, down=None, data=8, model=1),
            lambda answers, seed: (
                answers["chosen"]["layout"] == "data" and _kernel_axes(answers) == ((None, None),) * 2
            ),
        ),
        Mistake(
            "fsdp alone",
            "It fits: fsdp cuts the state. But each step gathers all weights and sums all gradients over eight chips.",
            "Which layout lets each chip multiply with its part of a kernel, and never gather it?",
            lambda: {"layout": "fsdp"},
            lambda answers, seed: (
                answers["chosen"]["layout"] == "fsdp" and _kernel_axes(answers) == ((None, None),) * 2
            ),
        ),
        Mistake(
            "one kernel whole",
            "You cut one kernel, and every chip holds the other one whole.",
            "The kernels are of one size: what is left of 16 GiB beside half of the state?",
            _layout(down=None),
            lambda answers, seed: (
                answers["chosen"]["layout"] == "data" and _kernel_axes(answers).count((None, None)) == 1
            ),
        ),
        Mistake(
            "columns twice",
            "You cut both kernels by columns, so the wide result between them has to be gathered.",
            "By what is the second layer's input cut already? Lesson 07 has the order.",
            _layout(down=_COLUMNS),
            _cuts(_COLUMNS, _COLUMNS),
        ),
        Mistake(
            "rows first",
            "You cut the first kernel by rows, so the wide result between the layers has to be summed over the chips.",
            "Which order leaves the narrow result to be summed? Lesson 07 has it.",
            _layout(up=_ROWS, down=_COLUMNS),
            _cuts(_ROWS, _COLUMNS),
        ),
        Mistake(
            "rows twice",
            "You cut both kernels by rows, so the wide result between the layers has to be summed over the chips.",
            "Which way of cutting the first kernel leaves each chip with finished numbers?",
            _layout(up=_ROWS, data=2, model=4),
            _cuts(_ROWS, _ROWS),
        ),
        Mistake(
            "model axis too short",
            "You cut the kernels in two: too much stays on each chip, and too many gradients travel.",
            "Four copies of every part are left on eight chips. What does a longer `model` axis change?",
            _layout(data=4, model=2),
            lambda answers, seed: _kernel_axes(answers) == (_COLUMNS, _ROWS) and _model_devices(answers) == 2,
        ),
    ),
)


# q3: tiles


def _up(count, multiple):
    return -(-count // multiple) * multiple


def _best_side(rows, columns, itemsize):
    return min(_up(a, 8) * _up(b, 128) for a, b in ((rows, columns), (columns, rows))) * itemsize


def _as_written(rows, columns, itemsize):
    return _up(rows, 8) * _up(columns, 128) * itemsize


def _longer_side(rows, columns, itemsize):
    return _as_written(min(rows, columns), max(rows, columns), itemsize)


def _tile_of_sixteen(rows, columns, itemsize):
    deep = 32 // itemsize
    return min(_up(a, deep) * _up(b, 128) for a, b in ((rows, columns), (columns, rows))) * itemsize


def _squares(rows, columns, itemsize):
    return _up(rows, 128) * _up(columns, 128) * itemsize


def _unpadded_bytes(rows, columns, itemsize):
    return rows * columns * itemsize


def _rounded_once(rows, columns, itemsize):
    return _up(rows * columns, 8 * 128) * itemsize


def _tiles(stored=_best_side, counted=None, both=True, step=1, above=False, none=None):
    """The names of a learner with one thing wrong: see the mistakes for which."""
    counted = counted or stored

    def widest(inputs, outputs, itemsize, budget_bytes):
        best, width = none, max(8, step)
        while counted(inputs, width, itemsize) + both * counted(width, outputs, itemsize) <= budget_bytes:
            best, width = width, width + step
        if best is None:
            raise ValueError("no width fits")
        return width if above else best

    return {"stored_bytes": stored, "widest": widest}


def _bytes_exact(answers, seed):
    for (rows, columns, itemsize), got in zip(probes.matrices(seed), answers["bytes"], strict=True):
        if got != _best_side(rows, columns, itemsize):
            return f"({rows}, {columns}) of {itemsize} B each: yours is {got:,} B, and the numbers alone are {rows * columns * itemsize:,} B"
    return True


def _wanted_widths(seed):
    return [probes.ask_width(_tiles()["widest"], case) for case in probes.budgets(seed)]


def _search_words(case):
    return "inputs {inputs}, outputs {outputs}, {itemsize} B each, budget {budget_bytes:,} B".format(**case)


def _widths_right(answers, seed):
    for case, got, wanted in zip(probes.budgets(seed), answers["widths"], _wanted_widths(seed), strict=True):
        if probes.NO_FIT not in (got, wanted) and got != wanted:
            taken = _best_side(case["inputs"], got, case["itemsize"]) + _best_side(
                got, case["outputs"], case["itemsize"]
            )
            return f"{_search_words(case)}: yours is {got:,}, and takes {taken:,} B"
    return True


def _widths_exist(answers, seed):
    for case, got, wanted in zip(probes.budgets(seed), answers["widths"], _wanted_widths(seed), strict=True):
        if (got == probes.NO_FIT) != (wanted == probes.NO_FIT):
            return f"{_search_words(case)}: yours " + ("raises ValueError" if got == probes.NO_FIT else f"is {got}")
    return True


TILES = Question(
    name="q3",
    title="What a matrix takes in tiles",
    asks_for=("stored_bytes", "widest"),
    probe=probes.probe_tiles,
    targets=(
        Target("every matrix' bytes as the chip stores it, to the byte", _bytes_exact),
        Target("the largest width whose two kernels stay within the budget", _widths_right),
        Target("a ValueError where no width from 8 on does, and only there", _widths_exist),
    ),
    mistakes=(
        Mistake(
            "no tiles",
            "You count the numbers, and the chip stores whole tiles.",
            "Round both sides up, each to its own multiple.",
            _tiles(stored=_unpadded_bytes),
        ),
        Mistake(
            "rounded once",
            "You round up the number of numbers; every row and column of tiles is padded by itself.",
            "Round each side, and then multiply.",
            _tiles(stored=_rounded_once),
        ),
        Mistake(
            "one way round",
            "You always put columns along the 128, and the compiler may turn the matrix.",
            "A (1000, 10) matrix on its side: how many tiles?",
            _tiles(stored=_as_written),
        ),
        Mistake(
            "longer side along 128",
            "You put the longer side along the 128, and that is not always the smaller one.",
            "Try (130, 100) both ways.",
            _tiles(stored=_longer_side),
        ),
        Mistake(
            "square tiles",
            "You round both sides to 128. That is the matrix unit; memory has tiles of 8 by 128.",
            "One side is rounded to 8 alone.",
            _tiles(stored=_squares),
        ),
        Mistake(
            "sixteen for bfloat16",
            "You round bfloat16 to tiles of 16 by 128; in memory they are 8 by 128 as well.",
            "What depends on `itemsize` here, beside the last multiplication?",
            _tiles(stored=_tile_of_sixteen),
        ),
        Mistake(
            "budget without tiles",
            "Your bytes are right, and your width does not use them.",
            "Call `stored_bytes` in `widest`.",
            _tiles(counted=_unpadded_bytes),
        ),
        Mistake(
            "one kernel counted",
            "Your width leaves room for the first kernel alone.",
            "(inputs, width) and (width, outputs) share the budget.",
            _tiles(both=False),
        ),
        Mistake(
            "multiples of 128",
            "You try multiples of 128 alone, and a wider layer fits.",
            "The width may lie along the side that is rounded to 8.",
            _tiles(step=128),
        ),
        Mistake(
            "one too many",
            "Yours is the first width that does not fit.",
            "What does your loop return when it stops?",
            _tiles(above=True),
        ),
        Mistake(
            "width of nothing",
            "You return 0 where no width fits, and a layer of no units fails much later.",
            "The docstring says what to raise.",
            _tiles(none=0),
        ),
    ),
)


# q4: rows per host


def _own_order(examples, epoch, seed, host):
    return np.random.default_rng([seed, epoch]).permutation(examples)


def _own_rows(cluster, host, global_batch):
    part = global_batch // cluster.data
    return slice(cluster.parts(host).start * part, cluster.parts(host).stop * part)


def _rows_by_host(cluster, host, global_batch):
    rows = global_batch // cluster.hosts
    return slice(host * rows, (host + 1) * rows)


def _all_rows(cluster, host, global_batch):
    return slice(global_batch)


def _first_rows(cluster, host, global_batch):
    return _own_rows(cluster, 0, global_batch)


def _of_global_batches(batches, rows):
    return batches[:, rows]


def _every_nth_row(batches, rows):
    count = rows.stop - rows.start
    return batches[:, rows.start // count :: batches.shape[1] // count]


def _run_of_examples(batches, rows):
    count = rows.stop - rows.start
    return batches.reshape(-1, len(batches), count)[rows.start // count]


def _host_examples(order=_own_order, rows=_own_rows, take=_of_global_batches, fill=False):
    """The solution, with one thing wrong: see the mistakes for which."""

    def host_examples(host, hosts, data, model, examples, global_batch, epoch, seed):
        steps = examples // global_batch + fill
        batches = np.resize(order(examples, epoch, seed, host), (steps, global_batch))
        return take(batches, rows(probes.Hosts(hosts, data, model), host, global_batch))

    return host_examples


def _dealt_to_hosts(host, hosts, data, model, examples, global_batch, epoch, seed):
    rows = _own_rows(probes.Hosts(hosts, data, model), host, global_batch)
    count, mine = rows.stop - rows.start, _own_order(examples, epoch, seed, host)[host::hosts]
    return mine[: len(mine) // count * count].reshape(-1, count)


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
    return True


def _mesh_words(cluster):
    return f"{cluster.hosts} host{'s' * (cluster.hosts > 1)}, data={cluster.data}, model={cluster.model}"


def _chips(cluster, read, seed):
    """Every chip's rows, (steps, rows), by its place in the mesh (data, model)."""
    part = probes.data_set(seed)["global_batch"] // cluster.data
    rows = {}
    for chip in range(cluster.data * cluster.model):
        host, place = chip // cluster.chips, chip // cluster.model
        first = (place - cluster.parts(host).start) * part
        rows[place, chip % cluster.model] = read[host][:, first : first + part]
    return rows


def _assembled(cluster, read, seed):
    """The global batches, (steps, global_batch), of the chips that stand first along model."""
    rows = _chips(cluster, read, seed)
    return np.concatenate([rows[place, 0] for place in range(cluster.data)], axis=1)


def _each_assembled(answers, seed):
    return [_assembled(cluster, read, seed) for cluster, read in zip(probes.CLUSTERS, answers["read"], strict=True)]


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
    for cluster, batches in zip(probes.CLUSTERS, _each_assembled(answers, seed), strict=True):
        twice = batches.size - len(np.unique(batches))
        if twice:
            return f"{_mesh_words(cluster)}: {twice} of {batches.size} rows repeat another"
        if not np.isin(batches, np.arange(probes.data_set(seed)["examples"])).all():
            return "a number is no example"
    return True


def _same_on_all(answers, seed):
    first, *others = _each_assembled(answers, seed)
    for cluster, batches in zip(probes.CLUSTERS[1:], others):
        if not np.array_equal(batches, first):
            return f"{_mesh_words(cluster)}: {np.mean(batches != first):.0%} of the rows are others than on one host"
    return True


def _order_right(answers, seed):
    if not np.array_equal(answers["read"][0][0], answers["again"]):
        return "asked twice, host 0 reads other examples"
    following = answers["next_epoch"]
    if following.shape != answers["again"].shape or following.size != len(np.unique(following)):
        return "in the next epoch host 0 reads an example twice, or other numbers of them"
    return not np.array_equal(answers["again"], answers["next_epoch"]) or "the next epoch has the same order"


def _all_shapes_are(shape):
    """Recognise what each host's array has, from shape(cluster, host, seed)."""
    return lambda answers, seed: all(
        rows.shape == shape(cluster, host, seed)
        for cluster, read in zip(probes.CLUSTERS, answers["read"], strict=True)
        for host, rows in enumerate(read)
    )


def _share_of_hosts(cluster, host, seed):
    steps, _ = _wanted_shape(cluster, host, seed)
    return steps, probes.data_set(seed)["global_batch"] // cluster.hosts


def _whole_batch(cluster, host, seed):
    return _wanted_shape(cluster, host, seed)[0], probes.data_set(seed)["global_batch"]


def _one_more(cluster, host, seed):
    steps, rows = _wanted_shape(cluster, host, seed)
    return steps + 1, rows


def _fewer_steps(answers, seed):
    wanted = [_wanted_shape(cluster, 0, seed) for cluster in probes.CLUSTERS]
    got = [read[0].shape for read in answers["read"]]
    fewer = [cluster.chips < cluster.model and g[0] < w[0] for cluster, g, w in zip(probes.CLUSTERS, got, wanted)]
    return any(fewer) and all(g[1] == w[1] for g, w in zip(got, wanted))


def _hosts_alike(answers):
    return np.array_equal(*answers["read"][1][:2])


def _holds(*targets):
    return lambda answers, seed: (
        _shapes_right(answers, seed) is True and all(target(answers, seed) is True for target in targets)
    )


def _same_sets(answers, seed):
    first, *others = (np.sort(batches, axis=1) for batches in _each_assembled(answers, seed))
    return all(np.array_equal(first, other) for other in others)


HOSTS = Question(
    name="q4",
    title="Which host reads what",
    asks_for=("host_examples",),
    probe=probes.probe_hosts,
    targets=(
        Target("on every host as many steps, and in each the rows that its chips compute", _shapes_right),
        Target("chips that compute the same part of the batch get the same examples", _needs_shapes(_copies_agree)),
        Target("no example twice in an epoch", _needs_shapes(_each_once)),
        Target("the same global batches, row for row, on any number of hosts", _needs_shapes(_same_on_all)),
        Target("asked again the same order, and in the next epoch another", _order_right),
    ),
    mistakes=(
        Mistake(
            "model axis forgotten",
            "You divide the global batch by the hosts, and hosts along `model` need the same rows.",
            "With data=2 and model=4 on four hosts, how many hosts share a part of the batch?",
            _host_examples(rows=_rows_by_host),
            _all_shapes_are(_share_of_hosts),
        ),
        Mistake(
            "whole batch",
            "Every host reads the whole global batch, and its chips use a part of it.",
            "Which of the `data` parts do this host's chips compute?",
            _host_examples(rows=_all_rows),
            _all_shapes_are(_whole_batch),
        ),
        Mistake(
            "last batch filled",
            "You fill the last batch with examples that were there already.",
            "The docstring says what becomes of the examples that fill no batch.",
            _host_examples(fill=True),
            _all_shapes_are(_one_more),
        ),
        Mistake(
            "a share for each host",
            "You deal the data set out to the hosts. Hosts that share a part of the batch then disagree, and run out early.",
            "Make the global batches first; a host then takes its rows of each.",
            _dealt_to_hosts,
            _fewer_steps,
        ),
        Mistake(
            "not repeatable",
            "Asked twice, you give another order. Hosts do not talk about it, so each would have its own.",
            "All randomness comes from `seed` and `epoch`.",
            _host_examples(order=lambda examples, epoch, seed, host: np.random.default_rng().permutation(examples)),
            lambda answers, seed: not np.array_equal(answers["read"][0][0], answers["again"]),
        ),
        Mistake(
            "shuffled on each host",
            "Each host shuffles in its own order, so some examples are there twice and others never.",
            "The order must be the same on every host: what may the seed depend on?",
            _host_examples(
                order=lambda examples, epoch, seed, host: np.random.default_rng([seed, epoch, host]).permutation(
                    examples
                )
            ),
            lambda answers, seed: (
                _holds()(answers, seed) and not _hosts_alike(answers) and _each_once(answers, seed) is not True
            ),
        ),
        Mistake(
            "host unused",
            "All hosts read the same rows.",
            "Host 0 has the first chips of the mesh, and so the first part of the batch.",
            _host_examples(rows=_first_rows),
            lambda answers, seed: _holds()(answers, seed) and _hosts_alike(answers),
        ),
        Mistake(
            "same order in each epoch",
            "Every epoch has the same order.",
            "`epoch` belongs into the seed.",
            _host_examples(order=lambda examples, epoch, seed, host: np.random.default_rng(seed).permutation(examples)),
            lambda answers, seed: np.array_equal(answers["again"], answers["next_epoch"]),
        ),
        Mistake(
            "rows interleaved",
            "The global batches hold the right examples in other rows than on one host.",
            "A part of the batch is a run of neighbouring rows.",
            _host_examples(take=_every_nth_row),
            lambda answers, seed: _holds(_copies_agree, _each_once)(answers, seed) and _same_sets(answers, seed),
        ),
        Mistake(
            "a run for each host",
            "You give each host a run of the data set, so the global batches depend on the number of hosts.",
            "Make the global batches first, as if there were one host.",
            _host_examples(take=_run_of_examples),
            lambda answers, seed: _holds(_copies_agree, _each_once)(answers, seed) and not _same_sets(answers, seed),
        ),
    ),
)


# q5: chips worth having


def _best_slice(
    parts=lambda chips: 2 * (chips - 1) / chips,
    share=2 / 3,
    rounded=math.ceil,
    itemsize=None,
    batch=lambda chips, rows: chips * rows,
    pick=max,
    reported="chips",
):
    """The solution, with one thing wrong: see the mistakes for which."""

    def best_slice(parameters, row_flops, gradient_bytes, flops_per_second, sent_per_second, slices, largest_batch):
        def planned(chips):
            sent = parts(chips) * parameters * (itemsize or gradient_bytes)
            rows = max(1, rounded(sent / sent_per_second * flops_per_second / (share * row_flops)))
            return {"chips": chips, "sent_bytes": round(sent), "chip_batch": rows}

        plans = [planned(chips) for chips in slices]
        allowed = [plan for plan in plans if batch(plan["chips"], plan["chip_batch"]) <= largest_batch]
        return pick(allowed, key=lambda plan: plan["chips"])

    return best_slice


def _plans(seed):
    return [(case, _best_slice()(**case)) for case in probes.trainings(seed)]


def _plan_is(part):
    def holds(answers, seed):
        for (case, _), got in zip(_plans(seed), answers["slices"], strict=True):
            # Each figure is judged for the slice that was chosen, so that one error is not counted twice.
            wanted = _best_slice()(**case | {"slices": [got["chips"]], "largest_batch": math.inf})[part]
            if abs(got[part] - wanted) > (
                1 if part == "sent_bytes" else 0
            ):  # a fraction of a byte may be rounded either way
                return f"{case['parameters']:,} parameters on {got['chips']} chips: yours is {got[part]:,}"
        return True

    return holds


def _most_chips(answers, seed):
    for (case, wanted), got in zip(_plans(seed), answers["slices"], strict=True):
        if got["chips"] != wanted["chips"]:
            batch = got["chips"] * got["chip_batch"]
            return f"yours has {got['chips']} chip(s) and a global batch of {batch:,}; {case['largest_batch']:,} rows are allowed"
    return True


SLICES = Question(
    name="q5",
    title="How many chips are worth it",
    asks_for=("best_slice",),
    probe=probes.probe_slices,
    targets=(
        Target("the bytes that each chip sends for the gradients, to the byte", _plan_is("sent_bytes")),
        Target("the fewest rows on a chip that hide the sending", _plan_is("chip_batch")),
        Target("the largest slice whose global batch is allowed", _most_chips),
    ),
    mistakes=(
        Mistake(
            "half an all-reduce",
            "You count the reduce-scatter, and the all-gather behind it sends as much again.",
            "A ring goes round twice.",
            _best_slice(parts=lambda chips: (chips - 1) / chips),
        ),
        Mistake(
            "whole buffer twice",
            "You count the whole buffer twice; a chip's own part need not travel.",
            "Of N parts, each trip around the ring moves N - 1.",
            _best_slice(parts=lambda chips: 2 * (chips > 1)),
        ),
        Mistake(
            "all chips together",
            "Your bytes are those of all chips together.",
            "Every chip has links of its own: `sent_bytes` is what one chip sends.",
            _best_slice(parts=lambda chips: 2 * (chips - 1)),
        ),
        Mistake(
            "always float32",
            "You count 4 bytes for every gradient.",
            "`gradient_bytes` is one of the arguments.",
            _best_slice(itemsize=4),
        ),
        Mistake(
            "forward pass counted",
            "You hide the sending behind the whole step, and in the forward pass there are no gradients yet.",
            "Which share of `row_flops` is the backward pass?",
            _best_slice(share=1),
        ),
        Mistake(
            "rounded down",
            "You round the rows down, and then the sending takes a little longer than the arithmetic.",
            "The fewest rows that are enough: round up.",
            _best_slice(rounded=math.floor),
        ),
        Mistake(
            "chip's batch limited",
            "You compare one chip's rows with the limit, and it is for the global batch.",
            "All chips have `chip_batch` rows each.",
            _best_slice(batch=lambda chips, rows: rows),
        ),
        Mistake(
            "no limit",
            "You take the largest slice, whatever batch it needs.",
            "`largest_batch` rules some slices out.",
            _best_slice(batch=lambda chips, rows: 0),
        ),
        Mistake(
            "smallest slice",
            "You take the smallest slice that is allowed.",
            "The goal is the most chips.",
            _best_slice(pick=min),
        ),
    ),
)


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
}
_NO_FIT = forms.words(probes.NO_FIT)
QUESTIONS = (
    forms.formed(
        FEW_SHAPES,
        {
            "tokens": [forms.array],
            "weights": [forms.array],
            "compilations": forms.count,
            "losses": [forms.number],
            "gradients": [forms.array],
        },
    ),
    forms.formed(FITS, forms.either(_CHOSEN, _CHOSEN | _COMPILED)),
    forms.formed(TILES, {"bytes": [forms.number], "widths": [forms.either(forms.number, _NO_FIT)]}),
    forms.formed(HOSTS, {"read": [[forms.array]], "again": forms.array, "next_epoch": forms.array}),
    forms.formed(
        SLICES,
        {
            "slices": [
                {"chips": forms.number, "sent_bytes": forms.number, "chip_batch": forms.number, str: forms.anything}
            ]
        },
    ),
)

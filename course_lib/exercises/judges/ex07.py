"""Exercise 07: an attention block cut by heads, row-parallel backward, layouts, ZeRO's bytes, a mesh.

Needs NumPy; the wrong answers of q2 need JAX when they run, and those of q4 Keras on JAX in another process.
"""

import math
import re

import numpy as np

from course_lib.exercises.judges import forms
from course_lib.exercises.probes import ex07 as probes
from course_lib.exercises.question import Mistake, Question, Target

FLOAT32 = 1e-5  # relative: sums of a dozen products in float32


def _off(got, wanted) -> float:
    """How far an array is from what is wanted, as a share of it; infinite where the shapes differ."""
    got, wanted = np.asarray(got), np.asarray(wanted)
    return np.linalg.norm(got - wanted) / np.linalg.norm(wanted) if got.shape == wanted.shape else math.inf


# q1: attention, cut by heads


def _a_part_each(answers, seed):
    for block, answer in zip(probes.blocks(seed), answers["blocks"], strict=True):
        width, devices = len(block["fused"]), block["devices"]
        if len(answer["shapes"]) != devices:
            return f"you return {len(answer['shapes'])} pairs for {devices} devices"
        for fused, out in answer["shapes"]:
            if fused != [width, 3 * width // devices] or out != [width // devices, width]:
                kernels = f"({width}, {3 * width}) and ({width}, {width})"
                return f"with kernels {kernels}, one of {devices} devices holds {tuple(fused)} and {tuple(out)}"
    return True


def _sums_to_one_device(answers, seed):
    for block, answer in zip(probes.blocks(seed), answers["blocks"], strict=True):
        if answer["total"] is None:
            return "not computed: the shards have other shapes"
        off = _off(answer["total"], probes.attend(block["x"], block["fused"], block["out"], block["heads"]))
        if not off <= FLOAT32:
            return f"with {block['heads']} heads on {block['devices']} devices it is off by {100 * off:,.4g}%"
    return True


def _merged_again(answers, seed):
    for block, answer in zip(probes.blocks(seed), answers["blocks"], strict=True):
        if answer["merged"] is None:
            return "not merged: the shards have other shapes"
        for name, merged in zip(("fused", "out"), answer["merged"], strict=True):
            if merged.shape != block[name].shape:
                return f"{name} {block[name].shape} comes back as {merged.shape}"
            if not np.array_equal(merged, block[name]):
                return f"{np.mean(merged != block[name]):.0%} of {name} comes back elsewhere"
    return True


def _cut_thirds(fused, devices):
    """One array per device: its columns of query, of key and of value, side by side."""
    thirds = [np.split(third, devices, axis=1) for third in np.split(fused, 3, axis=1)]
    return [np.concatenate(parts, axis=1) for parts in zip(*thirds)]


def _merge_thirds(shards):
    return np.concatenate(
        [np.concatenate(third, axis=1) for third in zip(*(np.split(s, 3, axis=1) for s in shards))], axis=1
    )


def _side_by_side(shards):
    return np.concatenate(shards, axis=1)


def _one_below_the_other(shards):
    return np.concatenate(shards, axis=0)


def _columns(kernel, devices):
    return np.split(kernel, devices, axis=1)


def _rows(kernel, devices):
    return np.split(kernel, devices, axis=0)


def _dealt_out(kernel, devices):
    return [kernel[:, device::devices] for device in range(devices)]


def _on_each(kernel, devices):
    return [kernel] * devices


def _attention(fused=_cut_thirds, out=_rows, merge_fused=_merge_thirds, merge_out=_one_below_the_other):
    """The names of a learner who cuts and merges the two kernels like this."""

    def cut_attention(fused_kernel, out_kernel, devices):
        return list(zip(fused(fused_kernel, devices), out(out_kernel, devices)))

    def merge_attention(shards):
        fused_shards, out_shards = map(list, zip(*shards))
        return merge_fused(fused_shards), merge_out(out_shards)

    return {"cut_attention": cut_attention, "merge_attention": merge_attention}


HEADS = Question(
    name="q1",
    title="Cut attention by heads",
    asks_for=("cut_attention", "merge_attention"),
    probe=probes.probe_heads,
    targets=(
        Target("every device holds 1/N of both kernels", _a_part_each),
        Target("the devices' outputs add up to one device's, to 0.001%", _sums_to_one_device),
        Target("merging gives back both kernels, number for number", _merged_again),
    ),
    mistakes=(
        Mistake(
            "neighbouring columns",
            "You cut the fused kernel as if it were one layer, so the first device has queries and the last has values.",
            "The columns are query, key and value, one after the other. Which columns does one head need?",
            _attention(fused=_columns, merge_fused=_side_by_side),
        ),
        Mistake(
            "merged side by side",
            "The shards are right, but merged they are no longer query, key, value.",
            "In what order do the columns of one shard lie, and in what order those of the whole kernel?",
            _attention(merge_fused=_side_by_side),
        ),
        Mistake(
            "dealt out",
            "Each device gets every N-th column, and so a part of every head.",
            "Softmax needs a head's whole score. A head is a run of neighbouring columns.",
            _attention(fused=_dealt_out, merge_fused=_side_by_side),
        ),
        Mistake(
            "out by columns",
            "You cut the output layer by columns, and its input arrives cut by columns.",
            "What does a device hold of the output layer's input? It needs just the rows that meet it.",
            _attention(out=_columns, merge_out=_side_by_side),
        ),
        Mistake(
            "fused by rows",
            "You cut the fused kernel by rows, and every device has the block's whole input.",
            "Two layers behind each other: which of the two is cut by columns?",
            _attention(fused=_rows, merge_fused=_one_below_the_other),
        ),
        Mistake(
            "query alone",
            "You cut the query, and every device holds all of key and value.",
            "A head has a query, a key and a value of its own.",
            _attention(
                fused=lambda fused, devices: [
                    np.hstack([q, fused[:, len(fused) :]]) for q in _columns(fused[:, : len(fused)], devices)
                ]
            ),
        ),
        Mistake(
            "nothing cut",
            "Every device holds both kernels whole.",
            "One list entry per device, with that device's heads alone.",
            _attention(
                fused=_on_each, out=_on_each, merge_fused=lambda shards: shards[0], merge_out=lambda shards: shards[0]
            ),
        ),
        Mistake(
            "output kernels added",
            "You add the output layer's shards up. It is their products that are added.",
            "The shards are different rows of one kernel: what puts rows together again?",
            _attention(merge_out=sum),
        ),
    ),
)


# q2: a row-parallel layer's backward pass


def _is_one_device(name, wanted):
    """A target: on every device `name` is that device's part of what one device computes."""

    def holds(answers, seed):
        got, parts = answers[name], wanted(probes.layer_inputs(seed))
        if got.shape != parts.shape:
            return f"a device holds {got.shape[2:]}, and its part is {parts.shape[2:]}"
        off = _off(got, parts)
        return bool(off <= FLOAT32) or f"off by {100 * off:,.4g}%"

    return holds


def _mesh_of(array, data_axis=None, model_axis=None):
    """(data, model, ...): each device's part of an array, cut along the dimensions that are named."""
    data, model = probes.MESH
    rows = [array] * data if data_axis is None else np.split(array, data, axis=data_axis)
    return np.array([[row] * model if model_axis is None else np.split(row, model, axis=model_axis) for row in rows])


def _y(one):
    return _mesh_of(one["x"] @ one["kernel"] + one["bias"], data_axis=0)


def _x_gradient(one):
    return _mesh_of(one["y_gradient"] @ one["kernel"].T, data_axis=0, model_axis=1)


def _kernel_gradient(one):
    return _mesh_of(one["x"].T @ one["y_gradient"], model_axis=0)


def _bias_gradient(one):
    return _mesh_of(one["y_gradient"].sum(axis=0))


def _summed_numbers(sums, axis):
    return sum(math.prod(shape) for along, shape in sums if along == axis)


def _little_forward(answers, seed):
    sums, wanted = answers["sums"]["forward"], math.prod(answers["y"].shape[2:])
    if [axis for axis, _ in sums] != ["model"]:
        return f"yours sums along {', '.join(axis for axis, _ in sums) or 'no axis'}"
    return (
        _summed_numbers(sums, "model") == wanted
        or f"yours sums {_summed_numbers(sums, 'model')} numbers and y has {wanted}"
    )


def _little_backward(answers, seed):
    sums, one = answers["sums"]["backward"], probes.layer_inputs(seed)
    if model := _summed_numbers(sums, "model"):
        return f"yours sums {model} numbers along model"
    wanted = one["kernel"].size // probes.MESH[1] + one["bias"].size
    got = _summed_numbers(sums, "data")
    return got <= wanted or f"yours sums {got} numbers along data, and a device's kernel and bias have {wanted}"


def _sum(array, all_reduce, *axes):
    for axis in axes:
        array = all_reduce(array, axis)
    return array


def _row_parallel(
    y=lambda x, kernel, bias, all_reduce: all_reduce(x @ kernel, "model") + bias,
    x_axes=(),
    kernel_axes=("data",),
    bias_axes=("data",),
    divide=1,
    transposed=False,
    bias=lambda gradient: gradient.sum(axis=0),
):
    """The names of a learner with this forward pass, who sums the gradients along these axes."""

    def backward(x, kernel, y_gradient, all_reduce):
        kernel_gradient = y_gradient.T @ x if transposed else x.T @ y_gradient
        return (
            _sum(y_gradient @ kernel.T, all_reduce, *x_axes),
            _sum(kernel_gradient, all_reduce, *kernel_axes) / divide,
            _sum(bias(y_gradient), all_reduce, *bias_axes) / divide,
        )

    return {"forward": y, "backward": backward}


ROW_PARALLEL = Question(
    name="q2",
    title="Row-parallel, forward and backward",
    asks_for=("forward", "backward"),
    probe=probes.probe_row_parallel,
    targets=(
        Target("every device's y equals its rows of one device's, to 0.001%", _is_one_device("y", _y)),
        Target("x's gradient: each device's part, to 0.001%", _is_one_device("x", _x_gradient)),
        Target("the kernel's gradient: each device's part, to 0.001%", _is_one_device("kernel", _kernel_gradient)),
        Target("the bias' gradient: all of it on every device, to 0.001%", _is_one_device("bias", _bias_gradient)),
        Target("forward sums y along model, and nothing else", _little_forward),
        Target("backward sums nothing along model; along data no more than kernel and bias", _little_backward),
    ),
    mistakes=(
        Mistake(
            "bias in the sum",
            "Every device adds the bias before the sum, so y has it N times.",
            "The order of `all_reduce` and `+ bias`.",
            _row_parallel(y=lambda x, kernel, bias, all_reduce: all_reduce(x @ kernel + bias, "model")),
        ),
        Mistake(
            "no sum forward",
            "Each device goes on with its own term of y.",
            "A row-parallel layer has one all-reduce. Which pass is it in?",
            _row_parallel(y=lambda x, kernel, bias, all_reduce: x @ kernel + bias),
        ),
        Mistake(
            "forward over data",
            "Your forward pass adds up different examples.",
            "Which axis cuts the kernel's rows? Devices along the other one have other rows of the batch.",
            _row_parallel(y=lambda x, kernel, bias, all_reduce: all_reduce(x @ kernel, "data") + bias),
        ),
        Mistake(
            "x summed",
            "You sum x's gradient over the devices of `model`, as a column-parallel layer has to.",
            "Here each device has other columns of x. Are their gradients terms of one sum?",
            _row_parallel(x_axes=("model",)),
        ),
        Mistake(
            "x summed over data",
            "You sum x's gradient over `data`, and so over different examples.",
            "Which of the three gradients belong to something that all rows of the batch share?",
            _row_parallel(x_axes=("data",)),
        ),
        Mistake(
            "half the batch",
            "Each group of `data` has gradients of its own rows of the batch alone, so the copies drift apart.",
            "A kernel and a bias meet all rows of the batch: which axis cuts those?",
            _row_parallel(kernel_axes=(), bias_axes=()),
        ),
        Mistake(
            "bias forgotten",
            "The kernel's gradient is right, and the bias' covers only one group's rows of the batch.",
            "The bias is shared by the whole batch as the kernel is.",
            _row_parallel(bias_axes=()),
        ),
        Mistake(
            "bias over all devices",
            "The bias' gradient is as many times too large as the `model` axis is long.",
            "Along `model`, every device has the same gradient of y.",
            _row_parallel(bias_axes=("data", "model")),
        ),
        Mistake(
            "kernel over all devices",
            "You add up gradients of different parts of the kernel.",
            "Along `model`, devices hold different rows of the kernel.",
            _row_parallel(kernel_axes=("data", "model")),
        ),
        Mistake(
            "mean over data",
            "You take the mean over `data`, and the gradients come out too small.",
            "The upstream gradient belongs to the whole batch's loss already: its parts only need adding.",
            _row_parallel(divide=probes.MESH[0]),
        ),
        Mistake(
            "kernel transposed",
            "The kernel's gradient has its rows and columns exchanged.",
            "A gradient has its variable's shape, here (n / N, m).",
            _row_parallel(transposed=True),
        ),
        Mistake(
            "bias per example",
            "You return a bias gradient for each row of the batch.",
            "The same bias is added to every row: what happens to the rows' gradients?",
            _row_parallel(bias=lambda gradient: gradient),
        ),
    ),
)


# q3: what a layout cuts


def _by_rule(match=re.fullmatch, exact_first=True, length=None, idle=None):
    """The solution, with one thing wrong: see the mistakes for which."""

    def shard_length(size, axis, mesh, others):
        return size // mesh[axis] if axis else size

    def key_of(layout, path):
        if exact_first and path in layout:
            return path
        return next((key for key in layout if match(key, path)), None)

    def covered(layout, shapes, mesh):
        held, working = {}, set()
        for path, shape in shapes.items():
            key = key_of(layout, path)
            axes = layout[key] if key else (None,) * len(shape)
            axes = (*axes, *(None,) * (len(shape) - len(axes)))
            held[path] = tuple((length or shard_length)(size, axis, mesh, axes) for size, axis in zip(shape, axes))
            if held[path] != shape:
                working.add(key)
        if idle:
            return held, [key for key in layout if idle(key, layout, shapes)]
        return held, [key for key in layout if key not in working]

    return covered


def _contained(key, path):
    return key in path


def _no_match(key, layout, shapes):
    return not any(re.fullmatch(key, path) for path in shapes)


def _by_all_devices(size, axis, mesh, axes):
    return size // math.prod(mesh.values()) if axis else size


def _first_axis_alone(size, axis, mesh, axes):
    first = next((named for named in axes if named), None)
    return size // mesh[axis] if axis and axis == first else size


def _held_right(answers, seed):
    for case, held in zip(probes.layouts(seed), answers["held"], strict=True):
        wanted, _ = _by_rule()(**case)
        if missing := wanted.keys() - held.keys():
            return f"{min(missing)} is missing"
        for path, shape in wanted.items():
            if tuple(held[path]) != shape:
                return f"{path} {case['shapes'][path]} comes out as {tuple(held[path])} on the mesh {case['mesh']}"
    return True


def _idle(over):
    """A target about the keys that are named without being idle (over) or are idle and not named."""

    def holds(answers, seed):
        for case, named in zip(probes.layouts(seed), answers["idle"], strict=True):
            _, wanted = _by_rule()(**case)
            wrong = set(named) - set(wanted) if over else set(wanted) - set(named)
            if wrong:
                return f"{min(wrong)!r} {'is named, and cuts' if over else 'is not named'}"
        return True

    return holds


LAYOUTS = Question(
    name="q3",
    title="Find the keys that cut nothing",
    asks_for=("covered",),
    probe=probes.probe_coverage,
    targets=(
        Target("every variable's shape on a device, as Keras 3.15 places it", _held_right),
        Target("every key that cuts nothing is named", _idle(over=False)),
        Target("no key that cuts something is named", _idle(over=True)),
    ),
    mistakes=(
        Mistake(
            "anywhere in the path",
            "You accept a key anywhere in the path, as Keras 3.13 did.",
            "Keras 3.15 wants the whole path to match: which function of `re` does that?",
            _by_rule(match=re.search),
        ),
        Mistake(
            "beginning of the path",
            "You accept a key that matches the beginning of a path alone.",
            "`re.match` anchors one end. Which function anchors both?",
            _by_rule(match=re.match),
        ),
        Mistake(
            "plain text",
            "You look for keys as plain text, and they are regular expressions.",
            "`.*` and `(a|b)` mean something: use `re`.",
            _by_rule(match=_contained),
        ),
        Mistake(
            "exact path not first",
            "A key that is the path itself goes before all patterns, wherever it stands.",
            "Look for the path among the keys before you try any pattern.",
            _by_rule(exact_first=False),
        ),
        Mistake(
            "matching is enough",
            "You name the keys that match nothing. There are others: a key may match, and still cut nothing.",
            "What does an axis of one device cut? And `(None,)`? And a key whose only variable another key has?",
            _by_rule(idle=_no_match),
        ),
        Mistake(
            "all devices",
            "You divide by all devices of the mesh.",
            "An axis divides a dimension by its own number of devices.",
            _by_rule(length=_by_all_devices),
        ),
        Mistake(
            "one axis alone",
            "You cut one dimension of a variable, and a key may name an axis for each.",
            "Go through shape and axes together, dimension by dimension.",
            _by_rule(length=_first_axis_alone),
        ),
    ),
)


# q4: a transformer on eight devices

_BY_COLUMNS = r"block\d_(query|key|value|mlp_in)/kernel|logits/kernel"
_BY_ROWS = r"block\d_(attention_out|mlp_out)/kernel"

_RIGHT = {
    "columns": (".*_(query|key|value|mlp_in)/kernel", ("data", "model")),
    "rows": (".*_(attention_out|mlp_out)/kernel", ("model", "data")),
    "tables": (".*embeddings", ("model", "data")),
    "logits": ("logits/kernel", ("data", "model")),
    "bias": (".*_(query|key|value|mlp_in)/bias", ("model",)),
}


def _layout_keys(*left_out, **changed):
    """The solution with entries left out or changed."""
    entries = {name: entry for name, entry in (_RIGHT | changed).items() if name not in left_out}
    return lambda: dict(entries.values())


def _along(*axes):
    """The solution with only these mesh axes."""

    def keep(key, named):
        return key, tuple(axis if axis in axes else None for axis in named)

    return _layout_keys(**{name: keep(*entry) for name, entry in _RIGHT.items()})


def _fits(answers, seed):
    allowed, most = answers["bytes_alone"] // probes.SHARE, max(answers["bytes_held"])
    return most <= allowed or f"a device holds {most:,} B, and {allowed:,} B are allowed"


def _tensor_parallel(answers, seed):
    layers = probes.transformer_sizes(seed)["layers"]
    for pattern, kernels in ((_BY_COLUMNS, 4 * layers + 1), (_BY_ROWS, 2 * layers)):
        if (found := sum(bool(re.fullmatch(pattern, path)) for path in answers["axes"])) != kernels:
            return f"the model has {found} of {kernels} such kernels"
    for path, axes in answers["axes"].items():
        for pattern, side, place in ((_BY_COLUMNS, "columns", 1), (_BY_ROWS, "rows", 0)):
            if re.fullmatch(pattern, path) and "model" not in axes[place : place + 1]:
                return (
                    f"{path} has axes ({', '.join(axis or 'None' for axis in axes)}), and model should cut its {side}"
                )
    return True


def _equals_one_device(answers, seed):
    return bool(answers["off"] <= FLOAT32) or f"off by {100 * answers['off']:,.4g}%"


def _said(answers, text):
    return text in answers.get("stopped", {}).get("error", "")


def _uncut(answers, pattern):
    """Whether some weight of these paths lies whole or half cut, and every other kernel and table is cut along both axes."""
    cut = {
        path: {"data", "model"} <= set(axes)
        for path, axes in answers["axes"].items()
        if "kernel" in path or "embed" in path
    }
    left = [path for path, both in cut.items() if not both]
    return bool(left) and all(re.fullmatch(pattern, path) for path in left)


def _named_axes(answers):
    return {axis for axes in answers["axes"].values() for axis in axes if axis}


TRANSFORMER = Question(
    name="q4",
    title="A transformer in a seventh of the memory",
    asks_for=("layout_keys",),
    probe=probes.probe_layout,
    takes_long=True,
    targets=(
        Target(f"weights and momentum on each device: at most 1/{probes.SHARE} of one device's", _fits),
        Target(
            "model cuts query, key, value, mlp_in and logits by columns, the two layers out by rows", _tensor_parallel
        ),
        Target("a training step changes the weights as on one device, to 0.001%", _equals_one_device),
    ),
    mistakes=(
        Mistake(
            "a part of the path",
            "A key of yours matches a part of a path, and Keras 3.15 wants the whole one, so it cuts nothing.",
            "How do the lesson's keys begin?",
            _layout_keys(columns=("(query|key|value|mlp_in)/kernel", ("data", "model"))),
            lambda answers, seed: _said(answers, "matches only a part of"),
        ),
        Mistake(
            "another model's keys",
            "A key of yours matches no variable of this model.",
            "Look at the paths in the table: in this model a layer's name has underscores, and one slash follows it.",
            _layout_keys(columns=(".*/attention/(query|key|value)/kernel", ("data", "model"))),
            lambda answers, seed: _said(answers, "matches no variable at all"),
        ),
        Mistake(
            "two keys for one variable",
            "Two of your keys match the same variable, and Keras refuses to choose.",
            "Make the patterns exclude each other.",
            _layout_keys(bias=(".*_(query|mlp_in)/.*", ("model",))),
            lambda answers, seed: _said(answers, "layout keys"),
        ),
        Mistake(
            "too many axes",
            "You name two axes for a variable with one dimension.",
            "A bias has one dimension, a kernel has two: can they share a key?",
            _layout_keys(bias=(".*_(query|key|value|mlp_in)/bias", ("data", "model"))),
            lambda answers, seed: _said(answers, "dimension(s) and the layout key"),
        ),
        Mistake(
            "model axis alone",
            "You cut along `model` alone, so each part lies on two devices.",
            "Eight devices, and a part lies on two of them: which axis has not cut yet? A kernel has two dimensions.",
            _along("model"),
            lambda answers, seed: _named_axes(answers) == {"model"},
        ),
        Mistake(
            "data axis alone",
            "You cut along `data` alone: that is ZeRO on two devices.",
            "`model` has four devices, and the lesson's layout used it.",
            _along("data"),
            lambda answers, seed: _named_axes(answers) == {"data"},
        ),
        Mistake(
            "tables whole",
            "The kernels are cut in eight, and an embedding table is not.",
            "There are two tables: one for tokens, one for positions.",
            _layout_keys("tables"),
            lambda answers, seed: _uncut(answers, ".*embeddings"),
        ),
        Mistake(
            "logits whole",
            "The blocks are cut in eight, and the last layer's kernel is not.",
            "The layer that gives the logits belongs to no block.",
            _layout_keys("logits"),
            lambda answers, seed: _uncut(answers, "logits/kernel"),
        ),
        Mistake(
            "one block alone",
            "One block is cut, and the other is not.",
            "Your key names a block. What do the blocks have in common?",
            _layout_keys(columns=("block1_(query|key|value|mlp_in)/kernel", ("data", "model"))),
            lambda answers, seed: _uncut(answers, r"block1_.*") or _uncut(answers, r"block2_.*"),
        ),
        Mistake(
            "columns everywhere",
            "It fits, but `model` cuts two layers in a row by columns, so between them everything is gathered.",
            "Behind a layer cut by columns comes one cut by rows: attention_out and mlp_out.",
            _layout_keys(rows=(".*_(attention_out|mlp_out)/kernel", ("data", "model"))),
            lambda answers, seed: _fits(answers, seed) is True and _tensor_parallel(answers, seed) is not True,
        ),
    ),
)


# q5: bytes under ZeRO


def _zero(
    padded=True,
    whole_model=False,
    frozen_learns=False,
    frozen_cut=True,
    optimizer=12,
    gradient=2,
    first_stages=(3, 2, 1),
    gathered=max,
):
    """The solution, with one thing wrong: see the mistakes for which."""

    def device_bytes(layers, devices, stage):
        if whole_model:
            learning = sum(numbers for numbers, trained in layers if trained)
            frozen = sum(numbers for numbers, trained in layers if not trained)
            layers = [(learning, True), (frozen, False)]

        def held(numbers, first):
            if stage < first:
                return numbers
            return -(-numbers // devices) if padded else numbers // devices

        learning = [numbers for numbers, trained in layers if trained or frozen_learns]
        always, now_and_then, in_update = first_stages
        parameters = 2 * sum(
            held(numbers, always if trained or frozen_cut else math.inf) for numbers, trained in layers
        )
        gradients = gradient * sum(held(numbers, now_and_then) for numbers in learning)
        state = optimizer * sum(held(numbers, in_update) for numbers in learning)
        largest = gathered(2 * devices * held(numbers, always) for numbers, _ in layers) if stage >= always else 0
        return {
            "parameters": parameters,
            "gradients": gradients,
            "optimizer": state,
            "peak": parameters + gradients + state + largest,
        }

    return device_bytes


def _bytes_right(part):
    def holds(answers, seed):
        for case, got in zip(probes.buffers(seed), answers["bytes"], strict=True):
            wanted = _zero()(**case)[part]
            if got[part] != wanted:
                return f"at stage {case['stage']} on {case['devices']} devices yours is {got[part] - wanted:+,} B off"
        return True

    return holds


ZERO = Question(
    name="q5",
    title="Bytes under ZeRO",
    asks_for=("device_bytes",),
    probe=probes.probe_bytes,
    targets=(
        Target("the parameters' bytes on a device, at every stage, to the byte", _bytes_right("parameters")),
        Target("the gradients' bytes, to the byte", _bytes_right("gradients")),
        Target("the optimizer's bytes, to the byte", _bytes_right("optimizer")),
        Target("the peak, with the layer that is gathered, to the byte", _bytes_right("peak")),
    ),
    mistakes=(
        Mistake(
            "rounded down",
            "You round down, and the last numbers of a layer have no device.",
            "Each device holds the same whole number: round up.",
            _zero(padded=False),
        ),
        Mistake(
            "padded once",
            "You pad the whole model once, and each layer has a buffer of its own.",
            "Divide layer by layer, then add up.",
            _zero(whole_model=True, gathered=max),
            lambda answers, seed: _padded_once(answers, seed),
        ),
        Mistake(
            "frozen layers learn",
            "You count gradients and optimizer state for layers that are not trained.",
            "What does training keep of a layer whose `trained` is False?",
            _zero(frozen_learns=True),
        ),
        Mistake(
            "frozen layers whole",
            "At stage 3 you leave the frozen layers whole.",
            "Stage 3 cuts parameters, whether they are trained or not.",
            _zero(frozen_cut=False),
        ),
        Mistake(
            "no master copy",
            "The optimizer's bytes are too few: two moments, and no float32 copy of the parameters.",
            "Three numbers in float32 for each trained one.",
            _zero(optimizer=8),
        ),
        Mistake(
            "gradients in float32",
            "Your gradients take 4 bytes each, and they are bfloat16 here.",
            "The table of what is kept, and in which precision.",
            _zero(gradient=4),
        ),
        Mistake(
            "one stage early",
            "You cut one thing too early: the gradients at stage 1, the parameters at stage 2.",
            "Stage 1 cuts the optimizer's state, 2 the gradients too, 3 the parameters too.",
            _zero(first_stages=(2, 1, 1)),
        ),
        Mistake(
            "gradients only with parameters",
            "You cut the gradients at stage 3, and stage 2 cuts them already.",
            "Stage 1 cuts the optimizer's state, 2 the gradients too, 3 the parameters too.",
            _zero(first_stages=(3, 3, 1)),
        ),
        Mistake(
            "nothing gathered",
            "Your peak leaves out the layer that a device gathers to compute it.",
            "At stage 3 a layer's arithmetic needs all its parameters. At which layer is it most?",
            _zero(gathered=lambda sizes: 0),
        ),
        Mistake(
            "everything gathered",
            "Your peak gathers all layers at once, and then nothing is saved.",
            "A layer is gathered, used and dropped. At which layer is it most?",
            _zero(gathered=sum),
        ),
    ),
)


def _padded_once(answers, seed):
    """The peak may hold any idea of what is gathered then."""
    parts = ("parameters", "gradients", "optimizer")
    expected = [_zero(whole_model=True)(**case) for case in probes.buffers(seed)]
    return all(
        got[part] == wanted[part] for got, wanted in zip(answers["bytes"], expected, strict=True) for part in parts
    )


# q6: a mesh


def _mesh(
    divides_heads=True,
    divides_machine=True,
    divides_batch=True,
    powers=False,
    activations=True,
    local_batch=True,
    cut_examples=True,
    all_by_model=False,
    state_whole=True,
    state_by="model",
    best=lambda fitting, needs: fitting[0],
    swap=False,
):
    """The solution, with one thing wrong: see the mistakes for which."""

    def choose_mesh(
        devices,
        machine_devices,
        heads,
        global_batch,
        whole_bytes,
        cut_bytes,
        example_whole_bytes,
        example_cut_bytes,
        memory_bytes,
    ):
        def allowed(model):
            return not (
                devices % model
                or (divides_heads and heads % model)
                or (divides_machine and machine_devices % model)
                or (divides_batch and global_batch % (devices // model))
                or (powers and model & (model - 1))
            )

        def needed(model):
            by = {"model": model, "devices": devices}[state_by]
            state = whole_bytes / (1 if state_whole else model) + cut_bytes / by
            whole = example_whole_bytes / (model if all_by_model else 1)
            example = whole + example_cut_bytes / (model if cut_examples else 1)
            examples = global_batch / (devices // model if local_batch else 1)
            return state + activations * examples * example

        needs = {model: needed(model) for model in range(1, devices + 1) if allowed(model)}
        fitting = [model for model, need in needs.items() if need <= memory_bytes]
        if not fitting:
            raise ValueError("no mesh fits")
        model = best(fitting, needs)
        return (model, devices // model) if swap else (devices // model, model)

    return choose_mesh


def _meshes(seed):
    return [(case, probes.ask_mesh(_mesh(), case)) for case in probes.clusters(seed)]


def _told(case):
    sizes = (case["memory_bytes"], case["whole_bytes"], case["cut_bytes"])
    state = "{:.3g} GB for {:.3g} GB whole and {:.3g} GB cut".format(*(size / 1e9 for size in sizes))
    return f"on {case['devices']} devices, {case['machine_devices']} a machine, with {case['heads']} heads and {state}"


def _product_is_devices(answers, seed):
    for (case, _), mesh in zip(_meshes(seed), answers["meshes"], strict=True):
        if mesh != probes.NO_MESH and math.prod(mesh) != case["devices"]:
            return f"{tuple(mesh)} for {case['devices']} devices"
    return True


def _exists(answers, seed):
    for (case, wanted), mesh in zip(_meshes(seed), answers["meshes"], strict=True):
        if (mesh == probes.NO_MESH) != (wanted == probes.NO_MESH):
            return f"{_told(case)} yours " + ("raises ValueError" if mesh == probes.NO_MESH else f"is {tuple(mesh)}")
    return True


def _least_model(answers, seed):
    for (case, wanted), mesh in zip(_meshes(seed), answers["meshes"], strict=True):
        if probes.NO_MESH not in (mesh, wanted) and mesh != wanted:
            return f"{_told(case)} yours is {tuple(mesh)}"
    return True


MESHES = Question(
    name="q6",
    title="Choose a mesh",
    asks_for=("choose_mesh",),
    probe=probes.probe_mesh,
    targets=(
        Target("data times model is the number of devices", _product_is_devices),
        Target("a mesh where one is allowed and fits; a ValueError where none is", _exists),
        Target("the smallest model axis that is allowed and fits", _least_model),
    ),
    mistakes=(
        Mistake(
            "axes swapped",
            "You return the model axis first.",
            "The docstring gives the order: data, model.",
            _mesh(swap=True),
        ),
        Mistake(
            "activations forgotten",
            "You count what a device holds between steps, and not the activations in a step.",
            "How many examples does a device have at once, and how much of each?",
            _mesh(activations=False),
        ),
        Mistake(
            "global batch on each",
            "You give every device the activations of the whole batch.",
            "The data axis cuts the batch.",
            _mesh(local_batch=False),
        ),
        Mistake(
            "activations not cut",
            "You let the data axis alone cut the activations.",
            "Of an example's activations, the model axis cuts `example_cut_bytes`.",
            _mesh(cut_examples=False),
        ),
        Mistake(
            "whole activations cut",
            "You divide all activations by the model axis.",
            "`example_whole_bytes` lie on every device of a group.",
            _mesh(all_by_model=True),
        ),
        Mistake(
            "whole state cut",
            "You divide all of the training state by the model axis.",
            "`whole_bytes` lie on every device.",
            _mesh(state_whole=False),
        ),
        Mistake(
            "state cut by all",
            "You divide the training state by all devices, and only the model axis cuts it here.",
            "What does the data axis do to the state, without ZeRO?",
            _mesh(state_by="devices"),
        ),
        Mistake(
            "heads forgotten",
            "Your model axis does not divide the heads.",
            "Each device of a group has as many heads as the others.",
            _mesh(divides_heads=False),
        ),
        Mistake(
            "machine forgotten",
            "Your groups do not fill machines evenly, so some of their all-reduces cross the slow links.",
            "The model axis divides `machine_devices`.",
            _mesh(divides_machine=False),
        ),
        Mistake(
            "batch forgotten",
            "Your data axis does not divide the global batch.",
            "Each group has as many examples as the others.",
            _mesh(divides_batch=False),
        ),
        Mistake(
            "powers of two",
            "You try powers of two alone.",
            "Is 3 allowed, with 12 heads and machines of 12 devices?",
            _mesh(powers=True),
        ),
        Mistake(
            "largest model axis",
            "You take the largest model axis that fits. Each layer then waits for more devices than it has to.",
            "The lesson's rule: as little `model` as fits.",
            _mesh(best=lambda fitting, needs: fitting[-1]),
        ),
        Mistake(
            "least memory",
            "You take the mesh with the least memory on a device, and memory that is left over buys nothing.",
            "The lesson's rule: as little `model` as fits.",
            _mesh(best=lambda fitting, needs: min(fitting, key=needs.get)),
        ),
    ),
)


_SUMS = [(forms.text, [forms.whole])]
_BYTES = dict.fromkeys(("parameters", "gradients", "optimizer", "peak"), forms.number)
QUESTIONS = (
    forms.formed(
        HEADS,
        {
            "blocks": [
                {
                    "shapes": [([forms.whole], [forms.whole])],
                    "total": forms.either(forms.array, forms.nothing),
                    "merged": forms.either([forms.array], forms.nothing),
                }
            ]
        },
    ),
    forms.formed(
        ROW_PARALLEL,
        {**dict.fromkeys(("y", "x", "kernel", "bias"), forms.array), "sums": {"forward": _SUMS, "backward": _SUMS}},
    ),
    forms.formed(LAYOUTS, {"held": [{str: [forms.number]}], "idle": [[forms.text]]}),
    forms.formed(
        TRANSFORMER,
        {
            "bytes_alone": forms.whole,
            "bytes_held": (forms.count,) * math.prod(probes.MESH),
            "axes": {str: [forms.text]},
            "off": forms.distance,
        },
    ),
    forms.formed(ZERO, {"bytes": [_BYTES | {str: forms.anything}]}),
    forms.formed(MESHES, {"meshes": [forms.either([forms.number], forms.words(probes.NO_MESH))]}),
)

"""Exercise 07: an attention block cut by heads, row-parallel backward, layouts, ZeRO's bytes, a mesh.

Needs NumPy; the wrong answers need JAX when they run, and those of q4 Keras on JAX in another process.
"""

import itertools
import math
import re

import numpy as np

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.judges.numbers import ROUGH, off
from course_lib.exercises.judges.stops import stopped_by
from course_lib.exercises.probes import ex07 as probes
from course_lib.exercises.probes.cases import REFUSED
from course_lib.exercises.question import Target

question = question_maker.of("07_tensor_parallelism_and_sharding")
FLOAT32 = 1e-5  # relative: sums of a dozen products in float32


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
        far = off(answer["total"], probes.attend(block["x"], block["fused"], block["out"], block["heads"]))
        if not far <= FLOAT32:
            return f"with {block['heads']} heads on {block['devices']} devices it is off by {100 * far:,.4g}%"
    return True


def _merged_again(answers, seed):
    for block, answer in zip(probes.blocks(seed), answers["blocks"], strict=True):
        if answer["merged"] is None:
            return "not merged: the shards have other shapes"
        for name, merged in zip(("fused", "out"), answer["merged"], strict=True):
            if merged.shape != block[name].shape:
                return f"{name} {block[name].shape} comes back as {merged.shape}"
            if not np.array_equal(merged, block[name]):
                return f"{np.mean(merged != block[name]):.0%} of the numbers of {name} differ"
    return True


def _cut_as(*cuts):
    """Recognise sums of shards that one of the functions cuts: (fused, out, device, devices) -> one device's pair."""

    def fits(cut, block, answer):
        devices, arrays = block["devices"], (block["fused"], block["out"])
        pairs = [cut(*arrays, device, devices) for device in range(devices)]
        total = sum(probes.attend(block["x"], *pair, block["heads"] // devices) for pair in pairs)
        return answer["total"] is not None and off(answer["total"], total) <= FLOAT32

    def recognise(answers, seed):
        pairs = list(zip(probes.blocks(seed), answers["blocks"], strict=True))
        return any(all(fits(cut, *pair) for pair in pairs) for cut in cuts)

    return recognise


def _rows(out, device, devices):
    return np.split(out, devices)[device]


def _columns_dealt(rows):
    def cut(fused, out, device, devices):
        parts = [part[:, device::devices] for part in np.split(fused, 3, axis=1)]
        return np.concatenate(parts, axis=1), rows(out, device, devices)

    return cut


def _third_of(fused, device, devices):
    return np.concatenate([np.split(part, devices, axis=1)[device] for part in np.split(fused, 3, axis=1)], axis=1)


def _nearly_right(answers, seed):
    pairs = zip(probes.blocks(seed), answers["blocks"], strict=True)
    totals = [(a["total"], probes.attend(b["x"], b["fused"], b["out"], b["heads"])) for b, a in pairs]
    right = _sums_to_one_device(answers, seed) is True
    return not right and all(total is not None and off(total, wanted) <= ROUGH for total, wanted in totals)


def _whole_on_each(answers, seed):
    widths = [len(block["fused"]) for block in probes.blocks(seed)]
    return all(
        pair == [[width, 3 * width], [width, width]]
        for width, answer in zip(widths, answers["blocks"], strict=True)
        for pair in answer["shapes"]
    )


def _in_order(order):
    def cut(fused, out, device, devices):
        parts = [np.split(part, devices, axis=1)[device] for part in np.split(fused, 3, axis=1)]
        return np.concatenate([parts[place] for place in order], axis=1), _rows(out, device, devices)

    return cut


_BLOCK = {
    "shapes": [([forms.whole], [forms.whole])],
    "total": forms.either(forms.array, forms.nothing),
    "merged": forms.either([forms.array], forms.nothing),
}
HEADS = question(
    name="q1",
    title="Cut attention by heads",
    asks_for=("cut_attention", "merge_attention"),
    probe=probes.probe_heads,
    form={"blocks": [_BLOCK]},
    targets=(
        Target("every device holds 1/N of both kernels", _a_part_each),
        Target("the devices' outputs add up to one device's, to 0.001%", _sums_to_one_device),
        Target("merging gives back both kernels, number for number", _merged_again),
    ),
    recognise={
        "columns dealt out": _cut_as(
            _columns_dealt(_rows), _columns_dealt(lambda out, device, devices: out[device::devices])
        ),
        "another order of the three": _cut_as(*map(_in_order, [*itertools.permutations(range(3))][1:])),
        "output divided": _cut_as(
            lambda fused, out, device, devices: (
                _third_of(fused, device, devices),
                _rows(out, device, devices) / devices,
            )
        ),
        "output transposed": _cut_as(
            lambda fused, out, device, devices: (_third_of(fused, device, devices), _rows(out.T, device, devices))
        ),
        "whole on each": _whole_on_each,
        "few digits": _nearly_right,
    },
)


# q2: a row-parallel layer's backward pass


def _is_one_device(name, wanted):
    """A target: on every device `name` is that device's part of what one device computes."""

    def holds(answers, seed):
        got, parts = answers[name], wanted(probes.layer_inputs(seed), probes.layer_mesh(seed))
        if got.shape != parts.shape:
            return f"a device holds {got.shape[2:]}, and its part is {parts.shape[2:]}"
        far = off(got, parts)
        return bool(far <= FLOAT32) or f"off by {100 * far:,.4g}%"

    return holds


def _mesh_of(array, mesh, data_axis=None, model_axis=None):
    """(data, model, ...): each device's part of an array, cut along the dimensions that are named."""
    data, model = mesh
    rows = [array] * data if data_axis is None else np.split(array, data, axis=data_axis)
    return np.array([[row] * model if model_axis is None else np.split(row, model, axis=model_axis) for row in rows])


def _y(one, mesh):
    return _mesh_of(one["x"] @ one["kernel"] + one["bias"], mesh, data_axis=0)


def _x_gradient(one, mesh):
    return _mesh_of(one["y_gradient"] @ one["kernel"].T, mesh, data_axis=0, model_axis=1)


def _kernel_gradient(one, mesh):
    return _mesh_of(one["x"].T @ one["y_gradient"], mesh, model_axis=0)


def _bias_gradient(one, mesh):
    return _mesh_of(one["y_gradient"].sum(axis=0), mesh)


def _summed_numbers(sums, axis):
    return sum(math.prod(shape) for along, shape in sums if along == axis)


def _little_forward(answers, seed):
    sums, wanted = answers["sums"]["forward"], math.prod(answers["y"].shape[2:])
    if [axis for axis, _ in sums] != ["model"]:
        return f"yours sums along {', '.join(axis for axis, _ in sums) or 'no axis'}"
    got = _summed_numbers(sums, "model")
    return got == wanted or f"yours sums {got} numbers and y has {wanted}"


def _little_backward(answers, seed):
    sums, one = answers["sums"]["backward"], probes.layer_inputs(seed)
    if model := _summed_numbers(sums, "model"):
        return f"yours sums {model} numbers along model"
    wanted = one["kernel"].size // probes.layer_mesh(seed)[1] + one["bias"].size
    got = _summed_numbers(sums, "data")
    return got <= wanted or f"yours sums {got} numbers along data, and a device's kernel and bias have {wanted}"


def _only(*names):
    """Whether y and the three gradients are right but for those of these names."""
    wanted = {"y": _y, "x": _x_gradient, "kernel": _kernel_gradient, "bias": _bias_gradient}

    def holds(answers, seed):
        return all(_is_one_device(name, wanted[name])(answers, seed) is True for name in wanted.keys() - {*names})

    return holds


def _times(factor, **wanted):
    """Recognise gradients that are the right ones times factor(data, model, rows of all), all else being right."""

    def recognise(answers, seed):
        one, mesh = probes.layer_inputs(seed), probes.layer_mesh(seed)
        return _only(*wanted)(answers, seed) and all(
            off(answers[name], factor(*mesh, len(one["x"])) * part(one, mesh)) <= FLOAT32
            for name, part in wanted.items()
        )

    return recognise


def _mean_over_rows(answers, seed):
    """The kernel's or the bias's gradient, or both, are divided by a device's rows, or by all."""
    wanted = {"kernel": _kernel_gradient, "bias": _bias_gradient}
    return any(
        _times(factor, **{name: wanted[name] for name in names})(answers, seed)
        for factor in (lambda data, model, rows: data / rows, lambda data, model, rows: 1 / rows)
        for names in (("kernel", "bias"), ("kernel",), ("bias",))
    )


def _upstream_first(answers, seed):
    """The kernel's gradient is that of a device's x and of all devices' upstream gradients added up."""
    one, (data, model) = probes.layer_inputs(seed), probes.layer_mesh(seed)
    summed = sum(np.split(one["y_gradient"], data))
    parts = [[x.T @ summed for x in np.split(rows, model, axis=1)] for rows in np.split(one["x"], data)]
    return _only("kernel")(answers, seed) and off(answers["kernel"], parts) <= FLOAT32


_SUMS = [(forms.text, [forms.whole])]
ROW_PARALLEL = question(
    name="q2",
    title="Row-parallel, forward and backward",
    asks_for=("forward", "backward"),
    probe=probes.probe_row_parallel,
    form={**dict.fromkeys(("y", "x", "kernel", "bias"), forms.array), "sums": {"forward": _SUMS, "backward": _SUMS}},
    targets=(
        Target("every device's y equals its rows of one device's, to 0.001%", _is_one_device("y", _y)),
        Target("x's gradient: each device's part, to 0.001%", _is_one_device("x", _x_gradient)),
        Target("the kernel's gradient: each device's part, to 0.001%", _is_one_device("kernel", _kernel_gradient)),
        Target("the bias's gradient: all of it on every device, to 0.001%", _is_one_device("bias", _bias_gradient)),
        Target("forward sums y along model, and nothing else", _little_forward),
        Target("backward sums nothing along model; along data no more than kernel and bias", _little_backward),
    ),
    recognise={
        "bias over all devices": _times(lambda data, model, rows: model, bias=_bias_gradient),
        "mean over data": _times(lambda data, model, rows: 1 / data, kernel=_kernel_gradient, bias=_bias_gradient),
        "mean over the rows": _mean_over_rows,
        "upstream gradients first": _upstream_first,
        "more than y": lambda answers, seed: _only()(answers, seed) and _little_backward(answers, seed) is True,
        "more than the gradients": lambda answers, seed: _only()(answers, seed),
    },
)


# q3: what a layout cuts


def _covered(layout, shapes, mesh):
    """The shapes that a device holds, by path, and the keys that cut nothing."""
    held, working = {}, set()
    for path, shape in shapes.items():
        keys = [key for key in layout if key == path] + [key for key in layout if re.fullmatch(key, path)]
        axes = layout[keys[0]] if keys else [None] * len(shape)
        held[path] = tuple(size // mesh.get(axis, 1) for size, axis in zip(shape, axes))
        if held[path] != shape:
            working.add(keys[0])
    return held, set(layout) - working


def _held_right(answers, seed):
    for case, held in zip(probes.layouts(seed), answers["held"], strict=True):
        wanted, _ = _covered(**case)
        if missing := wanted.keys() - held.keys():
            return f"{min(missing)} is missing"
        for path, shape in wanted.items():
            if tuple(held[path]) != shape:
                return f"{path} {case['shapes'][path]} comes out as {tuple(held[path])} on the mesh {case['mesh']}"
    return True


def _idle(over):
    """A target: no key is named that cuts something (over), or every key is named that cuts nothing."""

    def holds(answers, seed):
        for case, named in zip(probes.layouts(seed), answers["idle"], strict=True):
            _, wanted = _covered(**case)
            if wrong := set(named) - wanted if over else wanted - set(named):
                return f"{min(wrong)!r} {'is named, and cuts' if over else 'is not named'}"
        return True

    return holds


LAYOUTS = question(
    name="q3",
    title="Find the keys that cut nothing",
    asks_for=("covered",),
    probe=probes.probe_coverage,
    form={"held": [{str: [forms.number]}], "idle": [[forms.text]]},
    targets=(
        Target("every variable's shape on a device, as Keras 3.15 places it", _held_right),
        Target("every key that cuts nothing is named", _idle(over=False)),
        Target("no key that cuts something is named", _idle(over=True)),
    ),
)


# q4: a transformer on eight devices

_PAIRS = (
    (r"block\d_(query|key|value)/kernel", r"block\d_attention_out/kernel"),
    (r"block\d_mlp_in/kernel", r"block\d_mlp_out/kernel"),
)
_BY_COLUMNS = r"block\d_(query|key|value|mlp_in)/kernel|logits/kernel"
_BY_ROWS = r"block\d_(attention_out|mlp_out)/kernel"


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
                named = ", ".join(axis or "None" for axis in axes)
                return f"{path} has axes ({named}), and model should cut its {side}"
    return True


def _equals_one_device(answers, seed):
    return bool(answers["off"] <= FLOAT32) or f"off by {100 * answers['off']:,.4g}%"


def _uncut(answers):
    """Paths of the kernels and tables that are not cut along both axes."""
    kernels = {path: axes for path, axes in answers["axes"].items() if "kernel" in path or "embed" in path}
    return [path for path, axes in kernels.items() if not {"data", "model"} <= set(axes)]


def _some_blocks_whole(answers, seed):
    """Whether all that is not cut along both axes is in some of the blocks, and not in all of them."""
    left = [re.match(r"block(\d+)_", path) for path in _uncut(answers)]
    return all(left) and 0 < len({found[1] for found in left}) < probes.transformer_sizes(seed)["layers"]


def _cut_at(answers, pattern, place):
    """Whether `model` cuts this dimension of every kernel with such a path."""
    return all(
        "model" in axes[place : place + 1] for path, axes in answers["axes"].items() if re.fullmatch(pattern, path)
    )


def _in_a_pair(first, second):
    """Whether `model` cuts these dimensions of two layers in a row, in the attention or in the MLP of every block."""
    return lambda answers, seed: any(
        _cut_at(answers, one, first) and _cut_at(answers, other, second) for one, other in _PAIRS
    )


_TRAINED = {
    "bytes_alone": forms.whole,
    "bytes_held": (forms.count,) * math.prod(probes.MESH),
    "axes": {str: [forms.text]},
    "off": forms.distance,
}
TRANSFORMER = question(
    name="q4",
    title="A transformer in a seventh of the memory",
    asks_for=("layout_keys",),
    probe=probes.probe_layout,
    form=_TRAINED,
    takes_long=True,
    targets=(
        Target(f"weights and momentum on each device: at most 1/{probes.SHARE} of one device's", _fits),
        Target(
            "model cuts query, key, value, mlp_in and logits by columns, the two layers out by rows", _tensor_parallel
        ),
        Target("a training step changes the weights as on one device, to 0.001%", _equals_one_device),
    ),
    recognise={
        "a part of the path": stopped_by("matches only a part of"),
        "two keys for one variable": stopped_by("layout keys"),
        "a key for nothing": stopped_by("matches no variable at all"),
        "kernels' axes for biases": stopped_by("has 1 dimension(s)"),
        "model axis alone": lambda answers, seed: set().union(*answers["axes"].values()) - {""} == {"model"},
        "data axis alone": lambda answers, seed: set().union(*answers["axes"].values()) - {""} == {"data"},
        "tables whole": lambda answers, seed: (
            bool(_uncut(answers)) and all(path.endswith("embeddings") for path in _uncut(answers))
        ),
        "some blocks whole": _some_blocks_whole,
        "columns everywhere": _in_a_pair(1, 1),
        "columns for rows": _in_a_pair(0, 1),
        "logits by rows": lambda answers, seed: _cut_at(answers, "logits/kernel", 0),
        "some kernels whole": lambda answers, seed: bool(_uncut(answers)),
    },
)


# q5: bytes under ZeRO


def _zero(layers, devices, stage, is_padded=True):
    """The bytes on a device; stage 1 cuts the optimizer's state, 2 the gradients too, 3 the parameters too."""

    def held(numbers, first_stage):
        if stage < first_stage:
            return numbers
        return -(-numbers // devices) if is_padded else numbers / devices

    kept = {
        "parameters": 2 * sum(held(numbers, 3) for numbers, _ in layers),
        "gradients": 2 * sum(held(numbers, 2) for numbers, trained in layers if trained),
        "optimizer": 12 * sum(held(numbers, 1) for numbers, trained in layers if trained),
    }
    gathered = max(2 * devices * held(numbers, 3) for numbers, _ in layers) if stage == 3 else 0
    return kept | {"peak": sum(kept.values()) + gathered}


def _bytes_right(part):
    def holds(answers, seed):
        for case, got in zip(probes.buffers(seed), answers["bytes"], strict=True):
            wanted = _zero(**case)[part]
            if got[part] != wanted:
                if len(case["layers"]) == 4:
                    where = f"with layers {case['layers']} on {case['devices']} devices at stage {case['stage']}"
                    return f"{where} yours is {got[part]:g}, and {wanted} is wanted"
                return f"at stage {case['stage']} on {case['devices']} devices yours is {got[part] - wanted:+,} B off"
        return True

    return holds


def _without_padding(answers, seed):
    """Within what it takes to round each of the sums down."""
    return all(
        abs(got[part] - wanted) < 4
        for case, got in zip(probes.buffers(seed), answers["bytes"], strict=True)
        for part, wanted in _zero(**case, is_padded=False).items()
    )


_BYTES = dict.fromkeys(("parameters", "gradients", "optimizer", "peak"), forms.number)
ZERO = question(
    name="q5",
    title="Bytes under ZeRO",
    asks_for=("device_bytes",),
    probe=probes.probe_bytes,
    form={"bytes": [_BYTES | {str: forms.anything}]},
    targets=(
        Target("the parameters' bytes on a device, at every stage, to the byte", _bytes_right("parameters")),
        Target("the gradients' bytes, to the byte", _bytes_right("gradients")),
        Target("the optimizer's bytes, to the byte", _bytes_right("optimizer")),
        Target("the peak, with the layer that is gathered, to the byte", _bytes_right("peak")),
    ),
    recognise={"no padding": _without_padding},
)


# q6: a mesh


def _allowed_meshes(case):
    """(data, model, whether it fits) of each mesh that is allowed, the shortest model axis first."""
    devices, batch = case["devices"], case["global_batch"]
    for model in range(1, devices + 1):
        state = case["whole_bytes"] + case["cut_bytes"] / model
        example = case["example_whole_bytes"] + case["example_cut_bytes"] / model
        divides = not any(count % model for count in (devices, case["machine_devices"], case["heads"]))
        if divides and batch * model % devices == 0:
            yield devices // model, model, state + batch * model / devices * example <= case["memory_bytes"]


def _best_mesh(case):
    """[data, model], or REFUSED."""
    return next(([data, model] for data, model, fits in _allowed_meshes(case) if fits), REFUSED)


def _each_mesh(detail):
    """A target over the clusters: detail(case, mesh, the best mesh) says what is wrong, or nothing."""

    def holds(answers, seed):
        for case, mesh in zip(probes.clusters(seed), answers["meshes"], strict=True):
            if wrong := detail(case, mesh, _best_mesh(case)):
                return wrong
        return True

    return holds


def _described(case, mesh):
    if case["memory_bytes"] < 100:
        best = _best_mesh(case)
        arguments = ", ".join(f"{name}={number}" for name, number in case.items())
        said, wanted = (one if one == REFUSED else tuple(one) for one in (mesh, best))
        return f"choose_mesh({arguments}) gives {said}, and {wanted} is wanted"
    sizes = (case["memory_bytes"], case["whole_bytes"], case["cut_bytes"])
    state = "{:.3g} GB for {:.3g} GB whole and {:.3g} GB cut".format(*(size / 1e9 for size in sizes))
    where = f"on {case['devices']} devices, {case['machine_devices']} a machine, with {case['heads']} heads"
    return f"{where} and {state} yours {'raises ValueError' if mesh == REFUSED else f'is {tuple(mesh)}'}"


def _other_product(case, mesh, best):
    if mesh != REFUSED and math.prod(mesh) != case["devices"]:
        return f"{tuple(mesh)} for {case['devices']} devices"


def _mesh_or_error(case, mesh, best):
    return (mesh == REFUSED) != (best == REFUSED) and _described(case, mesh)


def _another_mesh(case, mesh, best):
    return REFUSED not in (mesh, best) and mesh != best and _described(case, mesh)


def _batch_not_cut_evenly(answers, seed):
    given = [pair for pair in zip(probes.clusters(seed), answers["meshes"], strict=True) if pair[1] != REFUSED]
    whole = all(math.prod(mesh) == case["devices"] and not case["machine_devices"] % mesh[1] for case, mesh in given)
    return whole and any(case["global_batch"] % mesh[0] for case, mesh in given)


def _meshes_where_none_fits(answers, seed):
    pairs = [(_best_mesh(case), mesh) for case, mesh in zip(probes.clusters(seed), answers["meshes"], strict=True)]
    return all((mesh != REFUSED) if best == REFUSED else mesh == best for best, mesh in pairs)


def _wrong_where_a_longer_axis_needs_more(answers, seed):
    """Right where every mesh fits that has a longer model axis than one that fits."""
    for case, mesh in zip(probes.clusters(seed), answers["meshes"], strict=True):
        fitting = [fits for *_, fits in _allowed_meshes(case)]
        if fitting == sorted(fitting) and mesh != _best_mesh(case):
            return False
    return True


MESHES = question(
    name="q6",
    title="Choose a mesh",
    asks_for=("choose_mesh",),
    probe=probes.probe_mesh,
    form={"meshes": [forms.either([forms.number], forms.words(REFUSED))]},
    targets=(
        Target("data times model is the number of devices", _each_mesh(_other_product)),
        Target("a mesh where one is allowed and fits; a ValueError where none is", _each_mesh(_mesh_or_error)),
        Target("the smallest model axis that is allowed and fits", _each_mesh(_another_mesh)),
    ),
    recognise={
        "none not refused": _meshes_where_none_fits,
        "batch forgotten": _batch_not_cut_evenly,
        "the longest decides": _wrong_where_a_longer_axis_needs_more,
    },
)


QUESTIONS = (HEADS, ROW_PARALLEL, LAYOUTS, TRANSFORMER, ZERO, MESHES)

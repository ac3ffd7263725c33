"""Exercise 07: an attention block cut by heads, row-parallel backward, layouts, bytes, a mesh; q4: ex07_transformer.

Needs NumPy; the wrong answers need JAX when they run, and those of q4 Keras on JAX in another process.
"""

import itertools
import math
import re

import numpy as np

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.judges.ex07_transformer import FLOAT32, TRANSFORMER
from course_lib.exercises.judges.numbers import ROUGH, off
from course_lib.exercises.probes import ex07 as probes
from course_lib.exercises.probes import ex07_clusters
from course_lib.exercises.probes.cases import REFUSED
from course_lib.exercises.question import Target

question = question_maker.of("07_tensor_parallelism_and_sharding")


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
        columns = block["devices"], 3 * len(block["fused"]) // block["devices"]
        if answer["total"] is None or np.shape(answer["columns"]) != columns:
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
        if answer["trained"] != [True, True]:
            return "shards that were trained after the cut do not come back as kernels that were trained so"
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


def _heads_torn(answers, seed):
    """Whether the columns of each shard are columns of the fused kernel, and a device has some of a head's, not all."""
    torn = False
    for block, answer in zip(probes.blocks(seed), answers["blocks"], strict=True):
        if answer["columns"] is not None:
            first, held = block["fused"][0], answer["columns"]
            places = np.abs(held[:, :, None] - first).argmin(axis=2)  # (devices, 3h / devices)
            if off(held, first[places]) > FLOAT32:
                return False
            size = len(block["fused"]) // block["heads"]
            counts = [np.bincount(np.unique(row) // size, minlength=3 * block["heads"]) for row in places]
            torn = torn or bool(set(np.ravel(counts)) - {0, size})
    return torn


def _four_heads(answers, seed):
    """Whether each shard has the shape of its part of four heads, whatever the number of heads."""
    for block, answer in zip(probes.blocks(seed), answers["blocks"], strict=True):
        width, devices = len(block["fused"]), block["devices"]
        held = width // 4 * (4 // devices)
        if answer["shapes"] != [[[width, 3 * held], [held, width]]] * devices:
            return False
    return True


def _two_merged(answers, seed):
    """Whether the shards are right, and merged kernels have as many columns and rows as two shards have."""
    for block, answer in zip(probes.blocks(seed), answers["blocks"], strict=True):
        width, held = len(block["fused"]), 2 * len(block["fused"]) // block["devices"]
        if [part.shape for part in answer["merged"]] != [(width, 3 * held), (held, width)]:
            return False
    return _sums_to_one_device(answers, seed) is True


def _digits_lost(answers, seed):
    merged = [
        off(part, block[name])
        for block, answer in zip(probes.blocks(seed), answers["blocks"], strict=True)
        for name, part in zip(("fused", "out"), answer["merged"], strict=True)
    ]
    return _sums_to_one_device(answers, seed) is True and max(merged) <= FLOAT32


def _nearly_right(answers, seed):
    pairs = zip(probes.blocks(seed), answers["blocks"], strict=True)
    totals = [(a["total"], probes.attend(b["x"], b["fused"], b["out"], b["heads"])) for b, a in pairs]
    right = _sums_to_one_device(answers, seed) is True
    return not right and all(total is not None and off(total, wanted) <= ROUGH for total, wanted in totals)


def _whole_on_each(answers, seed):
    widths = [len(block["fused"]) for block in probes.blocks(seed)]
    return all(
        answer["shapes"] == [[[width, 3 * width], [width, width]]] * block["devices"]
        for width, block, answer in zip(widths, probes.blocks(seed), answers["blocks"], strict=True)
    )


def _in_order(order):
    def cut(fused, out, device, devices):
        parts = [np.split(part, devices, axis=1)[device] for part in np.split(fused, 3, axis=1)]
        return np.concatenate([parts[place] for place in order], axis=1), _rows(out, device, devices)

    return cut


_BLOCK = {
    "shapes": [([forms.whole], [forms.whole])],
    "columns": forms.either(forms.array, forms.nothing),
    "total": forms.either(forms.array, forms.nothing),
    "merged": forms.either([forms.array], forms.nothing),
    "trained": forms.either([forms.flag], forms.nothing),
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
        "rows dealt out": _cut_as(
            lambda fused, out, device, devices: (_third_of(fused, device, devices), out[device::devices])
        ),
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
        "four heads": _four_heads,
        "two merged": _two_merged,
        "torn heads": _heads_torn,
        "few digits": _nearly_right,
        "digits lost": _digits_lost,
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
    axes = {axis for axis, _ in sums}
    if axes != {"model"}:
        return f"all_reduce sums along {' and '.join(sorted(axes)) or 'no axis'}"
    got = _summed_numbers(sums, "model")
    return got == wanted or f"yours sums {got} numbers and y has {wanted}"


def _little_backward(answers, seed):
    sums, one = answers["sums"]["backward"], probes.layer_inputs(seed)
    if model := _summed_numbers(sums, "model"):
        return f"yours sums {model} numbers along model"
    wanted = one["kernel"].size // probes.layer_mesh(seed)[1] + one["bias"].size
    got = _summed_numbers(sums, "data")
    if got < wanted and _only("y", "x")(answers, seed):
        return f"your gradients are right with {got} numbers summed by all_reduce, so others were summed without it"
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


def _mean_over_data(answers, seed):
    """Both are divided by the length of `data`, this mesh's or the notebook's."""
    wanted = {"kernel": _kernel_gradient, "bias": _bias_gradient}
    return any(_times(factor, **wanted)(answers, seed) for factor in (lambda data, *_: 1 / data, lambda *_: 1 / 2))


def _rounded(answers, seed):
    """All are nearly right, and not all are right."""
    one, mesh = probes.layer_inputs(seed), probes.layer_mesh(seed)
    wanted = {"y": _y, "x": _x_gradient, "kernel": _kernel_gradient, "bias": _bias_gradient}
    far = [off(answers[name], part(one, mesh)) for name, part in wanted.items()]
    return FLOAT32 < max(far) <= ROUGH


def _another_all_reduce(answers, seed):
    """All numbers are right, and fewer than they take went through the all_reduce that was passed."""
    sums, y = answers["sums"], math.prod(answers["y"].shape[2:])
    gradients = math.prod(answers["kernel"].shape[2:]) + math.prod(answers["bias"].shape[2:])
    few = _summed_numbers(sums["forward"], "model") < y or _summed_numbers(sums["backward"], "data") < gradients
    return few and _only()(answers, seed)


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
        "mean over data": _mean_over_data,
        "mean over the rows": _mean_over_rows,
        "upstream gradients first": _upstream_first,
        "few digits": _rounded,
        "another all-reduce": _another_all_reduce,
        "along data in forward": lambda answers, seed: _summed_numbers(answers["sums"]["forward"], "data") > 0,
        "more than y": lambda answers, seed: _only()(answers, seed) and _little_backward(answers, seed) is True,
        "along model in backward": lambda answers, seed: (
            _only()(answers, seed) and _summed_numbers(answers["sums"]["backward"], "model") > 0
        ),
        "more than the gradients": lambda answers, seed: _only()(answers, seed),
    },
)


# q3: what a layout cuts


def _covered(layout, shapes, mesh, matches=re.fullmatch, own_first=True):
    """The shapes that a device holds, by path, and the keys that cut nothing."""
    held, working = {}, set()
    for path, shape in shapes.items():
        keys = [key for key in layout if own_first and key == path] + [key for key in layout if matches(key, path)]
        axes = layout[keys[0]] if keys else ()
        held[path] = tuple(size // mesh.get(axis, 1) for size, axis in itertools.zip_longest(shape, axes[: len(shape)]))
        if held[path] != shape:
            working.add(keys[0])
    return held, set(layout) - working


def _held_right(answers, seed):
    for case, held in zip(probes.layouts(seed), answers["held"], strict=True):
        wanted, _ = _covered(**case)
        if missing := wanted.keys() - held.keys():
            return f"{min(missing)} is missing"
        for path, shape in wanted.items():
            if tuple(held[path]) != shape or not all(map(forms.whole, held[path])):
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


def _matched_by(matches, own_first=True):
    """Recognise keys that are matched in another way, on more than one device.

    A key with too few axes may leave out a shape's other sizes.
    """

    def recognise(answers, seed):
        for case, held, named in zip(probes.layouts(seed), answers["held"], answers["idle"], strict=True):
            if max(case["mesh"].values()) == 1:
                continue
            wanted, idle = _covered(**case, matches=matches, own_first=own_first)
            if held.keys() != wanted.keys() or set(named) != idle:
                return False
            if any(not held[path] or tuple(held[path]) != shape[: len(held[path])] for path, shape in wanted.items()):
                return False
        return True

    return recognise


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
    recognise={
        "exact path not first": lambda answers, seed: any(
            _matched_by(matches, own_first=False)(answers, seed)
            for matches in (re.fullmatch, lambda key, path: key == path or re.fullmatch(key, path))
        ),
        "anywhere in the path": _matched_by(re.search),
        "the path's beginning": _matched_by(re.match),
        "the path's end": _matched_by(lambda key, path: re.search(f"({key})$", path)),
        "one alternative alone": _matched_by(lambda key, path: re.match(key + "$", path)),
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


def _allowed_meshes(case, rounded=(float, float, float)):
    """(data, model, whether it fits) of each mesh that is allowed, the shortest model axis first.

    rounded  how the parts of state, of an example and their sum are rounded
    """
    of_state, of_example, of_all = rounded
    devices, batch = case["devices"], case["global_batch"]
    for model in range(1, devices + 1):
        state = case["whole_bytes"] + of_state(case["cut_bytes"] / model)
        example = case["example_whole_bytes"] + of_example(case["example_cut_bytes"] / model)
        divides = not any(count % model for count in (devices, case["machine_devices"], case["heads"]))
        if divides and batch * model % devices == 0:
            needed = of_all(state + batch * model / devices * example)
            yield devices // model, model, needed <= case["memory_bytes"]


def _best_mesh(case):
    """[data, model], or REFUSED."""
    return next(([data, model] for data, model, fits in _allowed_meshes(case) if fits), REFUSED)


def _each_mesh(detail):
    """A target over the clusters: detail(case, mesh, the best mesh) says what is wrong, or nothing."""

    def holds(answers, seed):
        for case, mesh in zip(ex07_clusters.clusters(seed), answers["meshes"], strict=True):
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
    if mesh != REFUSED and (math.prod(mesh) != case["devices"] or not all(map(forms.whole, mesh))):
        return f"{tuple(mesh)} for {case['devices']} devices"


def _mesh_or_error(case, mesh, best):
    return (mesh == REFUSED) != (best == REFUSED) and _described(case, mesh)


def _another_mesh(case, mesh, best):
    return REFUSED not in (mesh, best) and mesh != best and _described(case, mesh)


def _batch_not_cut_evenly(answers, seed):
    given = [pair for pair in zip(ex07_clusters.clusters(seed), answers["meshes"], strict=True) if pair[1] != REFUSED]
    whole = all(math.prod(mesh) == case["devices"] and not case["machine_devices"] % mesh[1] for case, mesh in given)
    return whole and any(case["global_batch"] % mesh[0] for case, mesh in given)


def _part_rounded_down(answers, seed):
    """The best mesh where parts of either kind of bytes, of both, or of their sum are rounded down."""
    roundings = ((math.floor, float, float), (float, math.floor, float), (math.floor, math.floor, float))
    return any(
        all(
            mesh == next(([data, model] for data, model, fits in _allowed_meshes(case, how) if fits), REFUSED)
            for case, mesh in zip(ex07_clusters.clusters(seed), answers["meshes"], strict=True)
        )
        for how in (*roundings, (float, float, math.floor))
    )


def _meshes_where_none_fits(answers, seed):
    pairs = [
        (_best_mesh(case), mesh) for case, mesh in zip(ex07_clusters.clusters(seed), answers["meshes"], strict=True)
    ]
    return all((mesh != REFUSED) if best == REFUSED else mesh == best for best, mesh in pairs)


def _wrong_where_a_longer_axis_needs_more(answers, seed):
    """Right where every mesh fits that has a longer model axis than one that fits."""
    for case, mesh in zip(ex07_clusters.clusters(seed), answers["meshes"], strict=True):
        fitting = [fits for *_, fits in _allowed_meshes(case)]
        if fitting == sorted(fitting) and mesh != _best_mesh(case):
            return False
    return True


MESHES = question(
    name="q6",
    title="Choose a mesh",
    asks_for=("choose_mesh",),
    probe=ex07_clusters.probe_mesh,
    form={"meshes": [forms.either([forms.number], forms.words(REFUSED))]},
    targets=(
        Target("data times model is the number of devices", _each_mesh(_other_product)),
        Target("a mesh where one is allowed and fits; a ValueError where none is", _each_mesh(_mesh_or_error)),
        Target("the smallest model axis that is allowed and fits", _each_mesh(_another_mesh)),
    ),
    recognise={
        "rounded down": _part_rounded_down,
        "none not refused": _meshes_where_none_fits,
        "batch forgotten": _batch_not_cut_evenly,
        "the longest decides": _wrong_where_a_longer_axis_needs_more,
    },
)


QUESTIONS = (HEADS, ROW_PARALLEL, LAYOUTS, TRANSFORMER, ZERO, MESHES)

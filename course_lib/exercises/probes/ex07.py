"""Probes of exercise 07: an attention block cut by heads, a row-parallel layer, layouts, bytes; q6 is in ex07_clusters.

Needs NumPy; JAX for q2, and Keras on JAX for q4 in another process. The inputs are functions of the seed.
"""

import numpy as np

from course_lib import cluster
from course_lib.exercises.ask import Stopped
from course_lib.exercises.probes import workers
from course_lib.exercises.probes.cases import shuffled
from course_lib.exercises.probes.ex07_mesh_step import train_on_a_mesh

MESH = (2, 4)  # of q4: data, model
SHARE = 7  # q4: a device may hold one part in this many; its eight devices cannot hold less than one in eight
BLOCKS, POSITIONS = 12, 4096  # of q4's model that is laid out and not trained


# q1: attention, cut by heads


def blocks(seed: int) -> list[dict[str, object]]:
    """q1's blocks: x (tokens, h), fused (h, 3h), out (h, h); heads, and devices that divide them: 2, 3 and 1 on each.

    All of float32, but for the third one's float64. The fourth is of the first one's size, in the fifth one a device
    has a single column, and the last one has many heads and devices.
    """
    rng = np.random.default_rng(seed)
    made = []
    drawn = [(4, 2, (2, 3), "float32"), (9, 3, (4, 6), "float32"), (4, 4, (3, 5), "float64"), (4, 2, (), "float32")]
    for heads, devices, sizes, kind in [*drawn, (3, 3, (1,), "float32"), (130, 65, (1,), "float32")]:
        width = heads * int(rng.choice(sizes)) if sizes else len(made[0]["fused"])
        made.append(
            {
                "x": rng.normal(size=(int(rng.integers(4, 8)), width)).astype(kind),
                "fused": (rng.normal(size=(width, 3 * width)) / 2).astype(kind),
                "out": (rng.normal(size=(width, width)) / 2).astype(kind),
                "heads": heads,
                "devices": devices,
            }
        )
    return made


def attend(x: np.ndarray, fused: np.ndarray, out: np.ndarray, heads: int) -> np.ndarray:
    """Causal attention: x (t, n) by fused (n, 3c), its columns query, key and value, to (t, m) by out (c, m)."""
    tokens = len(x)
    query, key, value = (part.reshape(tokens, heads, -1) for part in np.split(x @ fused, 3, axis=1))  # (t, heads, d)
    scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(query.shape[-1])
    scores = np.where(np.tri(tokens, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, value).reshape(tokens, -1) @ out


def probe_heads(names, seed):
    """Of each block the shards' shapes, the first row of each device's fused kernel, the sum of what the devices
    compute, the merged kernels, and for each number of trained() its place after the shards were trained and merged.

    Nothing is computed with shards of other shapes than a device's part of the heads has. All are cut before any is
    merged.
    """
    cuts = [names["cut_attention"](b["fused"].copy(), b["out"].copy(), b["devices"]) for b in blocks(seed)]
    return {"blocks": [_merged(names, block, cut) for block, cut in zip(blocks(seed), cuts)]}


def _merged(names, block, cut):
    width, devices = len(block["fused"]), block["devices"]
    shards = [tuple(np.asarray(part) for part in pair) for pair in cut]
    shapes = [[list(part.shape) for part in pair] for pair in shards]
    answers = {"shapes": shapes, "columns": None, "total": None, "merged": None, "trained": None}
    if shapes == [[[width, 3 * width // devices], [width // devices, width]]] * devices:
        answers["columns"] = np.array([fused[0] for fused, _ in shards])
        answers["total"] = sum(attend(block["x"], *pair, block["heads"] // devices) for pair in shards)
        copies = [tuple(part.copy() for part in pair) for pair in shards]  # no views of an array that holds all
        answers["merged"] = [np.asarray(part) for part in names["merge_attention"](copies)]
        merged = [np.asarray(part) for part in names["merge_attention"]([tuple(map(trained, pair)) for pair in shards])]
        answers["trained"] = [
            one.shape == whole.shape and np.array_equal(one, trained(whole))
            for one, whole in zip(merged, answers["merged"])
        ]
    return answers


def trained(part: np.ndarray) -> np.ndarray:
    """A kernel, or a shard of it, after a step: every number is another one, which hangs on the old one alone."""
    return -2 * part


# q2: a row-parallel layer on a mesh


def layer_mesh(seed: int) -> tuple[int, int]:
    """(data, model) of q2: another one than the notebook's, along both axes."""
    return ((3, 2), (3, 5), (5, 2), (5, 3))[np.random.default_rng([seed, 2]).integers(4)]


def layer_inputs(seed: int) -> dict[str, np.ndarray]:
    """One device's x (b, n), kernel (n, m), bias (m,) and upstream gradient (b, m), float32. The mesh divides b, n.

    A device has other numbers of rows than there are devices along an axis, so that no mean over one is one over those.
    """
    rng = np.random.default_rng(seed)
    data, model = layer_mesh(seed)
    rows, inputs, outputs = data * int(rng.choice([4, 6, 7])), model * int(rng.integers(2, 5)), int(rng.integers(3, 7))
    shapes = {"x": (rows, inputs), "kernel": (inputs, outputs), "bias": (outputs,), "y_gradient": (rows, outputs)}
    return {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}


def probe_row_parallel(names, seed):
    """What each device has of y and the gradients, (data, model, ...); what was summed over which axis, in which pass.

    `vmap` with a name for each axis runs one program for all devices of a mesh, on however many there are.
    """
    import jax

    whole, (data, model) = layer_inputs(seed), layer_mesh(seed)
    per_data = {name: np.split(whole[name], data) for name in ("x", "y_gradient")}
    x = np.stack([np.split(part, model, axis=1) for part in per_data["x"]])
    kernel = np.stack([np.split(whole["kernel"], model)] * data)
    bias = np.broadcast_to(whole["bias"], (data, model, *whole["bias"].shape))
    y_gradient = np.stack([[part] * model for part in per_data["y_gradient"]])
    sums = {"forward": [], "backward": []}

    def counted(kind):
        def all_reduce(array, axis):
            sums[kind] += [[axis, list(np.shape(one))] for one in jax.tree.leaves(array)]
            return jax.lax.psum(array, axis)

        return all_reduce

    def on_one(x, kernel, bias, y_gradient):
        y = names["forward"](x, kernel, bias, counted("forward"))
        return y, *names["backward"](x, kernel, y_gradient, counted("backward"))

    on_all = jax.vmap(jax.vmap(on_one, axis_name="model"), axis_name="data")
    with jax.disable_jit():  # a loop's body, and a function that is traced once, run as often as they are called
        y, *gradients = map(np.asarray, on_all(x, kernel, bias, y_gradient))
    return {"y": y, **dict(zip(("x", "kernel", "bias"), gradients, strict=True)), "sums": sums}


# q3: what a layout cuts


def layouts(seed: int) -> list[dict[str, object]]:
    """q3's cases: variables' shapes by path, a layout with good and idle keys, and a mesh; the last is one device."""
    rng = np.random.default_rng(seed)
    meshes = {"data": 2, "model": 4, "expert": 1}, {"rows": 2, "columns": 2, "experts": 1}
    cases = [_layout(rng, mesh, other) for other, mesh in enumerate(meshes, 1)]
    return [*cases, {**cases[0], "mesh": dict.fromkeys(meshes[0], 1)}]


def _layout(rng: np.random.Generator, mesh: dict[str, int], other: int) -> dict[str, object]:
    """other  of two blocks, the one of which a pattern's variable has a key of its own"""
    data, model, expert = mesh
    width, vocabulary = 8 * int(rng.integers(2, 6)), 8 * int(rng.integers(6, 20))
    shapes = {"token_embedding/embeddings": (vocabulary, width), "final_norm/gamma": (width,)}
    for block in ("block1", "block2"):
        for part in ("query", "value", "attention_out"):
            shapes |= {f"{block}_{part}/kernel": (width, width), f"{block}_{part}/bias": (width,)}
        shapes |= {f"{block}_mlp_in/kernel": (width, 4 * width), f"{block}_mlp_out/kernel": (4 * width, width)}
    shapes |= {"expert[0]/kernel": (width, width), "expert0/kernel": (width, width)}
    keys = [
        (".*_(query|value)/kernel", (None, model)),
        (".*_mlp_out/kernel", (model, None)),
        (".*query/bias", (model,)),
        (".*_attention_out/(b|bias)", (model,)),  # whose first choice matches less than the whole path
        ("mlp_in/kernel", (None, model)),  # a part of two paths
        ("block1_value", (model,)),  # the beginning of two
        ("block1_attention_out|block2_value/bias", (model,)),  # the beginning of two, or the whole of another
        (".*attention/out/kernel", (model, None)),  # of another model
        (".*final_norm/gamma", (None,)),
        (".*embeddings", (expert, None)),
        ("block2_attention_out/k.*", (model, None)),  # the last key is before it for its only variable
    ]
    exact = {f"block{other}_mlp_out/kernel": (data, model), "block2_attention_out/kernel": (data, model)}
    exact |= {"block2_query/kernel": (None, None), "block2_mlp_in/kernel": (expert, model)}
    exact |= {"expert[0]/kernel": (None, model)}  # as an expression it matches the other one alone
    return {"shapes": shapes, "layout": dict(shuffled(rng, keys)) | exact, "mesh": mesh}


def probe_coverage(names, seed):
    """What the learner's function says of each case."""
    said = [names["covered"](dict(case["layout"]), dict(case["shapes"]), dict(case["mesh"])) for case in layouts(seed)]
    return {
        "held": [{path: list(shape) for path, shape in held.items()} for held, _ in said],
        "idle": [sorted(idle, key=str) for _, idle in said],
    }


# q4: a transformer on eight devices


def transformer_sizes(seed: int) -> dict[str, int]:
    """Arguments of models.transformer: eight divides every dimension of its kernels and tables."""
    rng = np.random.default_rng(seed)
    return {
        "vocabulary": 8 * int(rng.integers(8, 25)),
        "sequence_length": 8 * int(rng.integers(2, 5)),
        "layers": 3,  # the notebook shows two
        "width": 64,
    }


def probe_layout(names, seed):
    """Where a real training step leaves each weight, the bytes on each device, the distance from one device's step.

    And of a model with more blocks and positions, which is not trained, each variable's shape and axes.
    """
    keys = {str(key): list(axes) for key, axes in names["layout_keys"]().items()}
    for key, axes in keys.items():
        if odd := [axis for axis in axes if axis not in ("data", "model", None)]:
            line = f"the key {key!r} has {odd[0]!r} for a dimension, which takes 'data', 'model' or None"
            raise Stopped("raised", line, line)
    arguments = {"keys": keys, "sizes": transformer_sizes(seed), "mesh": list(MESH)}
    arguments |= {"blocks": BLOCKS, "positions": POSITIONS}
    job = cluster.Job(
        train_on_a_mesh, workers=1, framework="jax", arguments=arguments, environment={"JAX_PLATFORMS": "cpu"}
    )
    result = workers.run(job, "layout_keys").result
    if "refused" in result:
        raise Stopped("raised", result["refused"], result["refused"])
    return result


# q5: bytes under ZeRO


def buffers(seed: int) -> list[dict[str, object]]:
    """q5's cases: layers as (numbers, trained), devices that divide one of them, and a stage; first small ones.

    In the last ones every buffer, cut or not, has more numbers than float32 can tell apart, and in the very last ones
    there are hundreds of layers, and thousands of devices.
    """
    rng = np.random.default_rng(seed)
    cases = [
        {"layers": [(3, True), (5, True), (5, True), (7, False)], "devices": 2, "stage": stage} for stage in range(4)
    ]
    for stage, scale in ((0, 1), (1, 1), (2, 1), (3, 1), (3, 2**20)):
        devices = int(rng.integers(5, 12))
        numbers = devices * rng.integers(50 * scale, 500 * scale, size=6) + rng.integers(1, devices // 2 + 1, size=6)
        numbers[0] -= numbers[0] % devices
        trained = rng.permutation([True] * 4 + [False] * 2)
        layers = [(int(count), bool(learns)) for count, learns in zip(numbers, trained)]
        cases.append({"layers": layers, "devices": devices, "stage": stage})
    for stage in (2, 3):
        devices = int(rng.integers(5_000, 9_000))
        layers = [(int(count), bool(count % 3)) for count in rng.integers(10**8, 10**9, size=300)]
        cases.append({"layers": layers, "devices": devices, "stage": stage})
    return cases


def probe_bytes(names, seed):
    """The learner's bytes for each case."""
    return {"bytes": [dict(names["device_bytes"](**case)) for case in buffers(seed)]}

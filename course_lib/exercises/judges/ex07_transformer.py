"""Exercise 07, q4: a transformer laid out on eight devices. Needs NumPy."""

import math
import re

from course_lib.exercises.judges import forms, question_maker
from course_lib.exercises.judges.stops import stopped_by
from course_lib.exercises.probes import ex07 as probes
from course_lib.exercises.question import Target

question = question_maker.of("07_tensor_parallelism_and_sharding")
FLOAT32 = 1e-5  # relative: sums of a dozen products in float32

_PAIRS = (
    (r"block\d+_(query|key|value)/kernel", r"block\d+_attention_out/kernel"),
    (r"block\d+_mlp_in/kernel", r"block\d+_mlp_out/kernel"),
)
_BY_COLUMNS = r"block\d+_(query|key|value|mlp_in)/kernel|logits/kernel"
_BY_ROWS = r"block\d+_(attention_out|mlp_out)/kernel"
_TOKENS = {"token_embedding/embeddings": 0, "logits/kernel": 1, "logits/bias": 0}  # the dimension of the tokens
MORE_TOKENS = 1000  # times as many as the model has that is trained


def _numbers_held(variables):
    """How many numbers the variables have, and how many of them a device holds."""
    mesh, held = dict(zip(("data", "model"), probes.MESH)), 0
    for one in variables:
        held += math.prod(one["shape"]) // math.prod(mesh.get(axis, 1) for axis in one["axes"])
    return sum(math.prod(one["shape"]) for one in variables), held


def _fits(answers, seed):
    allowed, most = answers["bytes_alone"] // probes.SHARE, max(answers["bytes_held"])
    if most > allowed:
        return f"a device holds {most:,} B, and {allowed:,} B are allowed"
    several = answers["planned"]
    single = {path: one for path, one in several.items() if not re.match(r"block(?!1_)", path)}
    for blocks, variables in ((1, single), (probes.BLOCKS, several)):
        for times in (1, MORE_TOKENS):
            numbers, held = _numbers_held(_with_tokens(variables, times).values())
            if held * probes.SHARE > numbers:
                tokens = f"{times * probes.transformer_sizes(seed)['vocabulary']:,} tokens"
                words = f"{blocks} block{'s' * (blocks > 1)}, {probes.POSITIONS} positions and {tokens}"
                return f"of a model with {words} a device would hold {held / numbers:.1%}"
    return True


def _with_tokens(variables, times):
    """Path -> shape and axes, with so many times the tokens."""

    def shape(path, sizes):
        return [size * times if place == _TOKENS.get(path) else size for place, size in enumerate(sizes)]

    return {path: {"shape": shape(path, one["shape"]), "axes": one["axes"]} for path, one in variables.items()}


def _planned_axes(answers):
    return {path: one["axes"] for path, one in answers["planned"].items()}


def _tensor_parallel(answers, seed):
    trained = answers["axes"], probes.transformer_sizes(seed)["layers"]
    for variables, layers in (trained, (_planned_axes(answers), probes.BLOCKS)):
        for pattern, kernels in ((_BY_COLUMNS, 4 * layers + 1), (_BY_ROWS, 2 * layers)):
            if (found := sum(bool(re.fullmatch(pattern, path)) for path in variables)) != kernels:
                return f"the model has {found} of {kernels} such kernels"
        if wrong := _cut_otherwise(variables):
            return wrong
    return True


def _cut_otherwise(variables):
    """A kernel that `model` doesn't cut as it should; nothing where there is none."""
    for path, axes in variables.items():
        for pattern, side, place in ((_BY_COLUMNS, "columns", 1), (_BY_ROWS, "rows", 0)):
            if re.fullmatch(pattern, path) and "model" not in axes[place : place + 1]:
                named = ", ".join(axis or "None" for axis in axes)
                return f"{path} has axes ({named}), and model should cut its {side}"


def _equals_one_device(answers, seed):
    return bool(answers["off"] <= FLOAT32) or f"off by {100 * answers['off']:,.4g}%"


def _uncut(answers):
    """Paths of the kernels and tables that are not cut along both axes, in the model of many blocks."""
    kernels = {path: axes for path, axes in _planned_axes(answers).items() if "kernel" in path or "embed" in path}
    return [path for path, axes in kernels.items() if not {"data", "model"} <= set(axes)]


def _some_blocks_whole(answers, seed):
    """Whether all that is not cut along both axes is in some of the blocks, and not in all of them."""
    left = [re.match(r"block(\d+)_", path) for path in _uncut(answers)]
    return all(left) and 0 < len({found[1] for found in left}) < probes.BLOCKS


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
    "planned": {str: {"shape": [forms.count], "axes": [forms.text]}},
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

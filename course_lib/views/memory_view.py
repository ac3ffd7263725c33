"""What a model and a layout need of one device's memory. Needs matplotlib when it is shown; used in notebooks/10."""

from course_lib import planner
from course_lib.planner.layout import PRECISIONS, RECOMPUTE, ZERO
from course_lib.planner.models_by_numbers import MODELS
from course_lib.planner.rented_chips import GIB, TPU, find_chip
from course_lib.views.controls import Choice
from course_lib.views.explorer import View, explorer

MICRO_BATCHES = 16  # that each replica takes one after another in a step: more than any pipeline here has stages
CHIPS = tuple(
    name for name, chip in planner.CHIPS.items() if chip.family != TPU
)  # a TPU's memory is asked of its compiler


def prediction(model, chip, data, tensor, pipeline, zero, recompute, precision) -> planner.Prediction:
    """`planner.predict` for micro-batches of one example, MICRO_BATCHES a replica."""
    sizes = {"data": data, "tensor": tensor, "pipeline": pipeline}
    layout = planner.Layout(**sizes, zero=zero, recompute=recompute, precision=precision, split_norms=tensor > 1)
    return planner.predict(MODELS[model], planner.Cluster(find_chip(chip), layout.chips), layout, data * MICRO_BATCHES)


def command(model, chip, data, tensor, pipeline, zero, recompute, precision) -> str:
    """The same question in a terminal."""
    sizes = (
        f"--data {data} --tensor {tensor} --pipeline {pipeline} --micro-batch 1 --zero {zero} --recompute {recompute}"
    )
    chips, batch = data * tensor * pipeline, data * MICRO_BATCHES
    return f"course plan {model} --chip {chip} --chips {chips} --batch {batch} {sizes} --precision {precision}"


def _divides_heads(size, values) -> bool:
    return MODELS[values["model"]].heads % size == 0


def _has_layers(stages, values) -> bool:
    return stages <= MODELS[values["model"]].layers


def _computes(precision, values) -> bool:
    return PRECISIONS[precision].format in find_chip(values["chip"]).flops_per_second


@explorer(
    model=Choice("model", tuple(MODELS), ahead=("gpt2-124m", "llama2-7b", "llama2-70b")),
    chip=Choice("device", CHIPS, ahead=("h100-80gb",)),
    data=Choice("data (replicas)", (1, 2, 4, 8, 16, 32, 64, 128), ahead=(1, 8, 64)),
    tensor=Choice("tensor", (1, 2, 4, 8), _divides_heads, ahead=(1, 8)),
    pipeline=Choice("pipeline (stages)", (1, 2, 4, 8, 16), _has_layers, ahead=(1, 8)),
    zero=Choice("ZeRO stage", ZERO),
    recompute=Choice("recompute", RECOMPUTE, ahead=("none", "full")),
    precision=Choice("precision", tuple(PRECISIONS), _computes, ahead=("bfloat16_master",)),
)
def memory(
    model: str = "llama2-7b",
    chip: str = "h100-80gb",
    data: int = 8,
    tensor: int = 1,
    pipeline: int = 1,
    zero: int = 0,
    recompute: str = "none",
    precision: str = "bfloat16_master",
) -> View:
    """The memory of the fullest device by kind, against what the device has; micro-batches of one example.

    model, chip             as `course plan` names them
    data, tensor, pipeline  devices along each way of splitting
    zero, recompute         as in `planner.Layout`
    precision               one that the device computes in
    """
    from course_lib import show

    asked = (model, chip, data, tensor, pipeline, zero, recompute, precision)
    one = prediction(*asked)
    limit, (low, high) = one.cluster.chip.memory_bytes / GIB, (bound / GIB for bound in one.memory_interval)
    kinds = {kind: size / GIB for kind, size in one.memory.kinds.items()}
    total, largest = one.memory.total / GIB, max(kinds, key=kinds.get)
    caption = (
        f"{model} on {one.cluster.chips} x {chip} ({one.layout}): {total:,.3g} GiB a device of {limit:,.4g}, "
        f"likely {low:,.3g} to {high:,.3g}: {one.verdict}. "
        f"Most goes to {largest}, {kinds[largest]:,.3g} GiB. Dashed: the device's memory."
    )
    rows = [[kind, f"{size:,.2f}", f"{size / limit:.1%}"] for kind, size in {**kinds, "in all": total}.items()]
    rows.append(["the device has", f"{limit:,.2f}", "100.0%"])
    figure = show.stack(kinds, "memory of a device, GiB", limit, caption)
    return View(figure, ("", "GiB", "of the device"), rows, command(*asked))

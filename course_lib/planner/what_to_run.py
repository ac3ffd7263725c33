"""From a planned layout to a start: the program or command of this course that has it. Standard library only."""

import math
from collections.abc import Iterable

from course_lib.planner import tpu_memory
from course_lib.planner.blocks import Chain
from course_lib.planner.layout_search import Search
from course_lib.planner.prediction import Prediction
from course_lib.planner.rented_chips import TPU, Chip, Cluster
from course_lib.planner.transformer import Transformer
from course_lib.tpu.chips import CHIPS as TPUS
from course_lib.tpu.chips import find_slice

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")  # Keras' own
# Keras scales a float16 loss in fit; of the loops, mixed-precision alone does. Over several workers fit scales it too,
# but each worker decides alone whether to skip a step (Keras pull 18691).
SCALES_FLOAT16 = ("mixed-precision", "layout-map")
MAKERS = {"multi-worker-fit": "new_layers", "pipeline": "new_stages"}  # what makes the model, else new_model
OTHERS = "Megatron-Core, DeepSpeed, torchtitan or MaxText may"
# Of one machine, where the fast links join several: an NVL72's trays (4 GPUs each), and nodes of GH200 such as Alps'.
GPUS_OF_A_MACHINE = {"gb200-186gb": 4, "h100-96gb": 4}
# Of the course's transformer: queries, keys and values by columns, what follows them by rows.
SHARDS = "--shard '.*(query|key|value|mlp_in|logits)/kernel=,model' --shard '.*(attention_out|mlp_out)/kernel=model,'"


def what_to_run(answer: Prediction | Search, model: Transformer | Chain) -> str:
    """How to start a layout, in lines for a shell; or what of it no program of this course has.

    A program trains a small model of its own, in whose place yours goes. Of a search it is the
    best layout, and where no program has that, also the fastest that one has. Empty where nothing fits.
    """
    ranked = answer.ranked if isinstance(answer, Search) else (answer,) if answer.fits else ()
    if not ranked:
        return ""
    best = ranked[0]
    if beyond := _beyond(best):
        lines = [f"No program of this course has {', '.join(beyond)}; {OTHERS}."]
        other = next((one for one in ranked if not _beyond(one)), None)
        if other:
            slower = f"{other.step.total / best.step.total:.3g} times as long"
            lines += [f"The fastest layout that one has, {other.layout}, takes {slower}.", *_start(other)]
    else:
        lines = _start(best)
    if compiled := _compile(best, model):
        lines.append(f"What the TPU's compiler says: {compiled}")
    return "\n".join(lines)


def _start(prediction: Prediction) -> list[str]:
    layout, cluster = prediction.layout, prediction.cluster
    name, commands, where = _program(prediction)
    files = f"--data data.npz --folder {'run' if _machines(cluster) == 1 else '/shared/run'}"
    runs = " & ".join(f"{chosen}python train.py {files} {arguments}" for chosen, arguments in commands)
    lines = [f"To start{where}, with your model in its {MAKERS.get(name, 'new_model')}():"]
    if layout.precision != "float32" and name != "mixed-precision":
        lines.append(f'Before the model is made: keras.config.set_dtype_policy("{layout.precision}")')
    lines.append(f"  course program {name} > train.py; {runs}")
    many = layout.micro_batches(prediction.global_batch)
    if name == "pipeline" and many > 2:
        lines.append(f"It is GPipe, which holds {many} micro-batches at once; the plan counts 2.")
    return lines


def _program(prediction: Prediction) -> tuple[str, list[tuple[str, str]], str]:
    """A program's name, the devices and arguments of each of its processes, and where to run them."""
    layout, batch, cluster = prediction.layout, prediction.global_batch, prediction.cluster
    many, rows, machines = layout.micro_batches(batch), f"--global-batch {batch}", _machines(cluster)
    cpus = f" --cpus {cluster.chips}" if cluster.measured and cluster.shared else ""
    whole_machine = cluster.chips == _of_a_machine(cluster.chip) and not cluster.measured
    gpus = "" if cpus or whole_machine or cluster.chip.family == TPU else _visible(range(cluster.chips))
    if layout.pipeline == 2:
        host, where = ("localhost", "") if machines == 1 else ("HOST1", " on each of 2 machines, its --stage alone")
        whole = f"{rows} --micro-batches {many} --address {host}:5000"
        own = machines == 1 and not cpus  # or both would take the first GPU, and the memory of both
        return "pipeline", [(_visible([one]) if own else "", f"{whole} --stage {one}") for one in (1, 0)], where
    if layout.tensor > 1 or layout.zero == 3:
        cut = f"{rows} --model-axis {layout.tensor}{' --fsdp' if layout.zero else ''}{cpus}"
        return "layout-map", [(gpus, cut)], ""
    if many > 1:
        return "accumulation", [(gpus, f"{rows} --micro-batches {many}{cpus}")], ""
    if cluster.chip.family == TPU and machines > 1:
        several = f"{rows} --coordinator HOST:PORT --processes {machines} --process 0"
        return "jax-data-parallel", [("", several)], f" on each of {machines} hosts, each with a --process of its own"
    if cluster.chip.family == TPU:
        return "jax-data-parallel", [("", rows)], ""
    if machines > 1:
        where = f" on each of {machines} machines, with a TF_CONFIG as its first lines show"
        return "multi-worker-fit", [("", rows)], where
    if layout.precision != "float32":
        return "mixed-precision", [(gpus, f"{rows} --policy {layout.precision}{cpus}")], ""
    return "mirrored-fit", [(gpus, f"{rows}{cpus}")], ""


def _visible(gpus: Iterable[int]) -> str:
    """A program takes all GPUs that it sees, and a machine may have more than the plan."""
    return f"CUDA_VISIBLE_DEVICES={','.join(map(str, gpus))} "


def _machines(cluster: Cluster) -> int:
    """Hosts of the cluster's chips. A TPU's has four; a small slice of a flat generation has one host."""
    chips, chip = cluster.chips, cluster.chip
    if chip.family != TPU:
        return math.ceil(chips / _of_a_machine(chip))
    flat = len(TPUS[chip.name.removeprefix("tpu-")].shapes[0].split("x")) == 2
    return 1 if chips <= (8 if flat else 4) else chips // 4


def _of_a_machine(chip: Chip) -> int:
    return GPUS_OF_A_MACHINE.get(chip.name, chip.per_node)


def _beyond(prediction: Prediction) -> list[str]:
    """What of a layout no program of the course has."""
    layout, cluster = prediction.layout, prediction.cluster
    many = layout.micro_batches(prediction.global_batch) > 1
    cut, several = layout.tensor > 1 or layout.zero == 3, _machines(cluster) > 1
    one_machine = cut or many and layout.pipeline == 1
    mixed = layout.pipeline > 1 and layout.chips > layout.pipeline
    float16, scaled = layout.precision == "mixed_float16", _program(prediction)[0] in SCALES_FLOAT16
    found = {
        f"ZeRO-{layout.zero}": layout.zero in (1, 2),
        f"ZeRO-3 in groups of {layout.shard}": layout.shard,
        f"recomputation ({layout.recompute})": layout.recompute != "none",
        "sequence parallelism": layout.sequence > 1,
        "expert parallelism": layout.expert > 1,
        "offload": layout.offload,
        f"a pipeline of {layout.pipeline} stages": layout.pipeline > 2,
        "interleaved stages": layout.interleave > 1,
        "a pipeline beside other parallelism": mixed,
        "micro-batches of a model that is cut": cut and many,
        "a model that is cut, or accumulation, on several machines": one_machine and several,
        "machines that are not full": several
        and cluster.chip.family != TPU
        and cluster.chips % _of_a_machine(cluster.chip),
        "tensor parallelism that divides the norms": layout.split_norms,
        "a loss in chunks": layout.chunked_loss,
        "accumulation on a TPU": many and cluster.chip.family == TPU and layout.pipeline == 1,
        "a global batch that the devices do not divide": cut and prediction.global_batch % layout.chips,
        f"the formats of {layout.precision}": layout.precision not in POLICIES,
        "float16's loss scale beside micro-batches, stages or several machines": float16 and not scaled,
        f"two devices on a chip, as {cluster.chip.name} has": _twofold(cluster.chip),
    }
    return [name for name, there in found.items() if there]


def _twofold(chip: Chip) -> bool:
    """JAX sees two devices on each chip, where the plan counts one."""
    return chip.family == TPU and TPUS[chip.name.removeprefix("tpu-")].devices > 1


def _compile(prediction: Prediction, model: Transformer | Chain) -> str | None:
    """The call of `course compile` that builds the same step, for a transformer that it can make."""
    layout, chip = prediction.layout, prediction.cluster.chip
    if chip.family != TPU or _twofold(chip) or not tpu_memory.compilable(model, layout):
        return None
    if model.ffn != 4 * model.hidden or model.hidden % model.heads or model.vocabulary % layout.tensor:
        return None
    tpu, many = TPUS[chip.name.removeprefix("tpu-")], layout.micro_batches(prediction.global_batch)
    slices = [f"{tpu.name}:{shape}" for shape in tpu.shapes]
    topology = next(name for name in slices if find_slice(name).chips == layout.chips)
    options = f"{' --layout fsdp' if layout.zero == 3 else ''}{' --remat' if layout.recompute == 'full' else ''}"
    options += f" --accumulation {many}" if many > 1 else ""
    options += f" --mesh data={layout.data},model={layout.tensor} {SHARDS}" if layout.tensor > 1 else ""
    return (
        f"course compile transformer --layers {model.layers} --width {model.hidden} --heads {model.heads} "
        f"--vocabulary {model.vocabulary} --sequence-length {model.sequence_length} --topology {topology} "
        f"--batch {prediction.global_batch} --precision {layout.precision}{options}"
    )

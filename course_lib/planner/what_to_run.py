"""From a planned layout to a start: the program or command of this course that has it. Standard library only."""

import math

from course_lib.planner import tpu_memory
from course_lib.planner.blocks import Chain
from course_lib.planner.layout_search import Search
from course_lib.planner.prediction import Prediction
from course_lib.planner.rented_chips import TPU, Cluster
from course_lib.planner.transformer import Transformer
from course_lib.tpu.chips import CHIPS as TPUS
from course_lib.tpu.chips import find_slice

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")  # Keras' own
FILES = "--data data.npz --folder run"
MAKERS = {"multi-worker-fit": "new_layers", "pipeline": "new_stages"}  # what makes the model, else new_model
OTHERS = "Megatron-Core, DeepSpeed, torchtitan or MaxText may"


def what_to_run(answer: Prediction | Search, model: Transformer | Chain) -> str:
    """How to start a layout, in lines for a shell; or what of it no program of this course has.

    A program trains a small model of its own, in whose place yours goes. Of a search it is the
    best layout, and where no program has that, also the fastest that one has. Empty where nothing fits.
    """
    ranked = answer.ranked if isinstance(answer, Search) else (answer,) if answer.fits else ()
    if not ranked:
        return ""
    best, lines = ranked[0], []
    if beyond := _beyond(best):
        lines.append(f"No program of this course has {', '.join(beyond)}; {OTHERS}.")
        other = next((one for one in ranked if not _beyond(one)), None)
        if other:
            slower = f"{other.step.total / best.step.total:.3g} times as long"
            lines += [f"The fastest layout that one has, {other.layout}, takes {slower}.", *_start(other)]
    else:
        lines += _start(best)
    if compiled := _compile(best, model):
        lines.append(f"What the TPU's compiler says: {compiled}")
    return "\n".join(lines)


def _start(prediction: Prediction) -> list[str]:
    name, commands, where = _program(prediction)
    runs = " & ".join(f"python train.py {FILES} {arguments}" for arguments in commands)
    lines = [f"To start{where}, with your model in its {MAKERS.get(name, 'new_model')}():"]
    lines.append(f"  course program {name} > train.py; {runs}")
    policy = prediction.layout.precision
    if policy != "float32" and name != "mixed-precision":
        lines.append(f'Before the model is made: keras.config.set_dtype_policy("{policy}")')
    return lines


def _program(prediction: Prediction) -> tuple[str, list[str], str]:
    """A program's name, the arguments of each of its processes, and where to run them."""
    layout, batch, cluster = prediction.layout, prediction.global_batch, prediction.cluster
    many, rows = layout.micro_batches(batch), f"--global-batch {batch}"
    cpus = f" --cpus {cluster.chips}" if cluster.measured and cluster.shared else ""
    if layout.pipeline == 2:
        whole = f"{rows} --micro-batches {many} --address localhost:5000"
        return "pipeline", [f"{whole} --stage {stage}" for stage in (1, 0)], ""
    if layout.tensor > 1 or layout.zero == 3:
        return "layout-map", [f"{rows} --model-axis {layout.tensor}{' --fsdp' if layout.zero else ''}{cpus}"], ""
    if many > 1:
        return "accumulation", [f"{rows} --micro-batches {many}{cpus}"], ""
    machines = _machines(cluster)
    if cluster.chip.family == TPU and machines > 1:
        several = f"{rows} --coordinator HOST:PORT --processes {machines} --process 0"
        return "jax-data-parallel", [several], f" on each of {machines} hosts, each with a --process of its own"
    if cluster.chip.family == TPU:
        return "jax-data-parallel", [rows], ""
    if machines > 1:
        return "multi-worker-fit", [rows], f" on each of {machines} machines, with a TF_CONFIG as its first lines show"
    if layout.precision != "float32":
        return "mixed-precision", [f"{rows} --policy {layout.precision}{cpus}"], ""
    return "mirrored-fit", [f"{rows}{cpus}"], ""


def _machines(cluster: Cluster) -> int:
    """Hosts of the cluster's chips. A TPU's has four; a small slice of a flat generation has one host."""
    chips, chip = cluster.chips, cluster.chip
    if chip.family != TPU:
        return math.ceil(chips / chip.per_node)
    flat = len(TPUS[chip.name.removeprefix("tpu-")].shapes[0].split("x")) == 2
    return 1 if chips <= (8 if flat else 4) else chips // 4


def _beyond(prediction: Prediction) -> list[str]:
    """What of a layout no program of the course has."""
    layout, cluster = prediction.layout, prediction.cluster
    many = layout.micro_batches(prediction.global_batch) > 1
    cut, several = layout.tensor > 1 or layout.zero == 3, _machines(cluster) > 1
    one_machine = cut or many and layout.pipeline == 1
    mixed = layout.pipeline > 1 and layout.chips > layout.pipeline
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
        "machines that are not full": several and cluster.chip.family != TPU and cluster.chips % cluster.chip.per_node,
        "accumulation on a TPU": many and cluster.chip.family == TPU and layout.pipeline == 1,
        "a global batch that the devices do not divide": cut and prediction.global_batch % layout.chips,
        f"the formats of {layout.precision}": layout.precision not in POLICIES,
    }
    return [name for name, there in found.items() if there]


def _compile(prediction: Prediction, model: Transformer | Chain) -> str | None:
    """The call of `course compile` that builds the same step, for a transformer that it can make."""
    layout, chip = prediction.layout, prediction.cluster.chip
    if chip.family != TPU or layout.tensor > 1 or not tpu_memory.compilable(model, layout):
        return None
    if model.ffn != 4 * model.hidden:
        return None
    tpu, many = TPUS[chip.name.removeprefix("tpu-")], layout.micro_batches(prediction.global_batch)
    slices = [f"{tpu.name}:{shape}" for shape in tpu.shapes]
    topology = next(name for name in slices if find_slice(name).chips == layout.chips)
    options = f"{' --layout fsdp' if layout.zero == 3 else ''}{' --remat' if layout.recompute == 'full' else ''}"
    options += f" --accumulation {many}" if many > 1 else ""
    return (
        f"course compile transformer --layers {model.layers} --width {model.hidden} --heads {model.heads} "
        f"--vocabulary {model.vocabulary} --sequence-length {model.sequence_length} --topology {topology} "
        f"--batch {prediction.global_batch} --precision {layout.precision}{options}"
    )

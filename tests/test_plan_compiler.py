"""The planner's memory of a compiled transformer against the TPU compiler's own figures."""

import importlib.util

import pytest

from course_lib import planner, tpu
from course_lib.planner.layout import Layout
from course_lib.planner.tpu_memory import compilable, compiled_memory
from course_lib.planner.transformer import Transformer

HAS_COMPILER = importlib.util.find_spec("libtpu") is not None
compiles = pytest.mark.skipif(not HAS_COMPILER, reason="libtpu, the TPU compiler, is not installed")

# Narrow, because the compiler takes longer over wide layers; and deep, so that the program and on-chip memory are a
# small part.
MODEL = Transformer(layers=48, hidden=256, heads=2, vocabulary=512, sequence_length=128, tied=False, flash=False)
LAYOUTS = {
    "data": Layout(data=4, micro_batch=8),
    "fsdp": Layout(data=4, micro_batch=8, zero=3),
    "data x model": Layout(data=2, tensor=2, micro_batch=8),
    "remat": Layout(data=4, micro_batch=24, recompute="full"),
}
SPLIT = {
    ".*(query|key|value|mlp_in|logits)/kernel": (None, "model"),
    ".*(attention_out|mlp_out)/kernel": ("model", None),
}


def compiled(model: Transformer, layout: Layout) -> tpu.CompileReport:
    """The same step, compiled for v5e:2x2."""
    sizes = {"layers": model.layers, "width": model.hidden, "heads": model.heads, "vocabulary": model.vocabulary}
    return tpu.compile_step(
        "transformer",
        "v5e:2x2",
        layout.data * layout.micro_batch,
        mesh={"data": layout.data, "model": layout.tensor} if layout.tensor > 1 else {"data": layout.data},
        layout="fsdp" if layout.zero == 3 else "data",
        shards=SPLIT if layout.tensor > 1 else {},
        precision=layout.precision,
        remat=layout.recompute == "full",
        arguments={**sizes, "sequence_length": model.sequence_length},
    )


@compiles
@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_planner_is_within_a_tenth_of_the_compiler(name):
    layout = LAYOUTS[name]
    planned = compiled_memory(MODEL, layout, layout.data * layout.micro_batch)
    found = compiled(MODEL, layout).memory
    assert planned.weights + planned.optimizer == pytest.approx(
        found.parameters + found.optimizer, rel=1e-6
    )  # Adam counts its steps
    assert planned.total == pytest.approx(found.total, rel=0.1), (
        f"total {planned.total / found.total - 1:+.1%}: {planned}"
    )
    assert planned.total - planned.framework == pytest.approx(found.peak, rel=0.1), f"peak: {planned} and {found}"


def test_a_pod_of_the_70_billion_model_that_is_stored():
    """Compiled on another machine: 87 blocks on 512 chips of v5p. The constants were chosen on a thousandth of it."""
    report = next(each for each in tpu.stored() if each.request.model_name == "transformer")
    sizes, request = report.request.model["arguments"], report.request
    model = Transformer(
        sizes["layers"],
        sizes["width"],
        sizes["heads"],
        sizes["vocabulary"],
        sizes["sequence_length"],
        tied=False,
        flash=False,
    )
    layout = Layout(data=64, tensor=8, micro_batch=request.batch // 64, recompute="full", zero=3)
    planned = compiled_memory(model, layout, request.batch)
    assert planned.total - planned.framework == pytest.approx(report.memory.peak, rel=0.1)


def test_the_memory_of_a_compiled_step_is_given_to_a_tenth():
    layout, cluster = Layout(data=4, micro_batch=8), planner.Cluster(planner.find_chip("tpu-v5e"), 4)
    low, high = planner.predict(MODEL, cluster, layout, 32).memory_interval
    total = compiled_memory(MODEL, layout, 32).total
    assert (low, high) == pytest.approx((0.9 * total, 1.1 * total))


def test_a_block_keeps_68_bytes_and_its_scores():
    """Korthikanti and others' form of it, s b h (68 + 6 a s / h), per block."""
    planned = compiled_memory(MODEL, Layout(micro_batch=3), 3)
    s, h, a = MODEL.sequence_length, MODEL.hidden, MODEL.heads
    assert planned.activations == MODEL.layers * s * 3 * h * (68 + 6 * a * s / h)


OTHERS = [Transformer(2, 64, 4, 100, 16), Transformer(2, 64, 4, 100, 16, tied=False, flash=False, gated=True)]
CHANGES = [{"pipeline": 2}, {"zero": 1}, {"recompute": "selective"}, {"precision": "float16_master"}]


def test_other_models_and_layouts_are_not_counted_here():
    assert compilable(MODEL, Layout()) and not any(compilable(other, Layout()) for other in OTHERS)
    assert not any(compilable(MODEL, Layout(**change)) for change in CHANGES)

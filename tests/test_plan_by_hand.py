"""The planner's formulas, one at a time, against numbers worked out by hand; without a framework."""

import collections
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from course_lib import planner
from course_lib.cli import main
from course_lib.errors import CourseError
from course_lib.planner import bfc_allocator, calibrate, layout_search, plan_command, published_runs, tpu_memory
from course_lib.planner.blocks import Block, Chain
from course_lib.planner.calibration import Calibration
from course_lib.planner.layout_search import Search
from course_lib.planner.memory import Memory, memory, stage_kept_bytes
from course_lib.planner.prediction import in_bytes, in_seconds
from course_lib.planner.step_time import StepTime, step_time, with_input

GIB = 2**30
A100 = planner.find_chip("a100-80gb")
# Every byte travels at the link's peak, nothing hides it, and to start something takes no time.
PLAIN = replace(planner.fitted(), data_exposed=1, link=1, launch=0, launch_compiled=0, latency=0)
HAND = Calibration(
    {"ampere": 0.5, "hopper": 0.5, "tpu": 0.5},
    float8=0.25,
    attention=0.2,
    traffic=3,
    traffic_tpu=2,
    link=0.5,
    data_exposed=0.25,
    launch=0,
    latency=0,
    fragmentation=2,
    framework_bytes=5e9,
)


@pytest.mark.parametrize(
    "sizes, options, flops, moved",  # at the chip's peak; bytes
    [
        ({"flops": 100}, {}, 3 * 100 / 0.5, 0),  # forward once, backward twice, at half of the peak
        ({"flops": 100}, {"recompute": "full"}, 4 * 100 / 0.5, 0),
        ({"flops": 100, "logits": 10}, {"recompute": "full"}, 3 * 100 / 0.5, 3 * 10 * (2 + 4 + 4)),
        ({"score_flops": 100}, {}, 3 * 100 / 0.2, 0),  # a fused attention
        ({"score_flops": 100}, {"recompute": "full"}, 4 * 100 / 0.2, 0),
        ({"score_flops": 100, "kept_scores": 10}, {}, 3 * 100 / 0.5, 3 * 3 * 20),  # plain products
        ({"score_flops": 100, "kept_scores": 10}, {"recompute": "selective"}, 4 * 100 / 0.5, 3 * 3 * 20),
        ({"score_flops": 100, "kept_scores": 10}, {"recompute": "full"}, 4 * 100 / 0.5, 3 * 4 * 20),
        ({"flops": 100, "kept": 10}, {"micro_batch": 4, "sequence": 2}, 2 * 3 * 100 / 0.5, 2 * 3 * 3 * 20),
        ({"flops": 100, "kept": 10, "kept_split": 30}, {"tensor": 2}, 3 * 100 / 0.5 / 2, 3 * 3 * (20 + 60 / 2)),
        ({"logits": 10}, {"tensor": 2, "micro_batch": 6}, 0, 3 * 3 * 10 * 10),
    ],
)
def test_a_blocks_arithmetic_and_traffic_by_hand(sizes, options, flops, moved):
    layout, chain = planner.Layout(**options), Chain("by hand", (Block("only", **sizes),))
    step = step_time(chain, planner.Cluster(A100, layout.chips), layout, layout.micro_batch, HAND)
    assert step.compute * A100.flops_per_second["bfloat16"] == pytest.approx(flops)
    assert step.memory * A100.read_per_second == pytest.approx(moved)


@pytest.mark.parametrize(
    "chip, precision, kind, sizes, flops, moved",
    [
        ("h100-80gb", "float8_master", "float8", {"flops": 100, "kept": 10}, 3 * 100 / 0.5 / 0.25, 3 * 3 * 20),
        ("h100-80gb", "float8_master", "bfloat16", {"score_flops": 100}, 3 * 100 / 0.2, 0),
        ("tpu-v5e", "mixed_bfloat16", "bfloat16", {"flops": 100, "kept": 10}, 3 * 100 / 0.5, 2 * 3 * 20),
    ],
)
def test_attention_avoids_float8_and_a_tpu_moves_less(chip, precision, kind, sizes, flops, moved):
    chip, chain = planner.find_chip(chip), Chain("by hand", (Block("only", **sizes),))
    step = step_time(chain, planner.Cluster(chip, 1), planner.Layout(precision=precision), 1, HAND)
    assert step.compute * chip.flops_per_second[kind] == pytest.approx(flops)
    assert step.memory * chip.read_per_second == pytest.approx(moved)


@pytest.mark.parametrize(
    "kind, sizes, degree, share",
    [
        ("tensor", {"exchanged": 600}, "tensor", 1),
        ("tensor", {"keys": 600}, "sequence", 1),
        ("bubble", {"inputs": 600}, "pipeline", 1),
        ("data", {"parameters": 1200}, "data", 1),  # there is no work that could hide it
        ("data", {"parameters": 1200, "flops": 1e12}, "data", 0.25),  # the backward pass hides the rest
    ],
)
def test_collectives_at_half_of_the_links_peak_take_twice_as_long(kind, sizes, degree, share):
    chain, layout = Chain("by hand", (Block("one", **sizes), Block("other", **sizes))), planner.Layout(**{degree: 2})
    times = [
        getattr(step_time(chain, planner.Cluster(A100, 2), layout, 4, constants), kind)
        for constants in (PLAIN, replace(PLAIN, link=0.5, data_exposed=0.25))
    ]
    assert times[1] == pytest.approx(2 * share * times[0]) and times[0] > 0


def test_a_tensor_parallel_group_sums_its_share_of_the_tokens():
    """600 bfloat16 numbers of 6 examples, a third of the tokens, around a ring of two."""
    chain, layout = (
        Chain("by hand", (Block("only", exchanged=600),)),
        planner.Layout(tensor=2, sequence=3, micro_batch=6),
    )
    step = step_time(chain, planner.Cluster(A100, 6), layout, 6, PLAIN)
    assert step.tensor * A100.within == pytest.approx(2 * 600 * 2 * 6 / 3)
    forward = Chain("by hand", (Block("only", exchanged=600, backward=0),))  # what nothing behind it needs
    step = step_time(forward, planner.Cluster(A100, 6), layout, 6, PLAIN)
    assert step.tensor * A100.within == pytest.approx(600 * 2 * 6 / 3)
    frozen = Chain("by hand", (Block("only", exchanged=600, backward=1),))  # the gradient of its input alone
    step = step_time(frozen, planner.Cluster(A100, 6), layout, 6, PLAIN)
    assert step.tensor * A100.within == pytest.approx(2 * 600 * 2 * 6 / 3)


def test_one_device_waits_for_no_collective():
    chain = Chain("by hand", (Block("only", exchanged=600),))
    assert step_time(chain, planner.Cluster(A100, 1), planner.Layout(), 1, replace(PLAIN, latency=1e-3)).tensor == 0


def test_the_update_is_that_of_the_stage_with_the_most_parameters():
    """5,000 of them against 1,000 experts': read and written are two float32 slots and the float32 weight."""
    blocks = Block("experts", 1000, expert_parameters=1000, split_parameters=1000), Block("dense", 5000)
    step = step_time(Chain("by hand", blocks, slots=2), planner.Cluster(A100, 2), planner.Layout(pipeline=2), 1, PLAIN)
    assert step.memory * A100.read_per_second == pytest.approx(5000 * 2 * (2 * 4 + 4))


def test_frozen_weights_are_gathered_twice_between_the_nodes_of_a_tensor_group():
    """Of ZeRO-3's two shares each holds half, and sends it for the forward and for the backward pass."""
    chain, layout = Chain("by hand", (Block("only", frozen_bytes=800),)), planner.Layout(data=2, tensor=8, zero=3)
    step = step_time(chain, planner.Cluster(A100, 16), layout, 2, PLAIN)
    assert step.data * A100.between == pytest.approx(2 * 800 / 2)


@pytest.mark.parametrize("hidden, wanted", [(0.5, 0.5), (2, 0)])
def test_the_attentions_products_hide_its_ring(hidden, wanted):
    ring = 3 / 4 * 3 * 500 * 2 / A100.within
    flops = hidden * ring * 4 / 3 * A100.flops_per_second["bfloat16"] * PLAIN.attention  # a quarter on each device
    chain = Chain("by hand", (Block("only", keys=500, score_flops=flops),))
    step = step_time(chain, planner.Cluster(A100, 4), planner.Layout(sequence=4), 1, PLAIN)
    assert step.tensor == pytest.approx(wanted * ring)


@pytest.mark.parametrize("examples_per_second, waits", [(0, 0), (2, 8 / 2 - 0.75), (16, 0)])
def test_a_step_waits_for_its_input(examples_per_second, waits):
    assert with_input(StepTime(0.5, 0.25), 8, examples_per_second) == StepTime(0.5, 0.25, input=waits)


@pytest.mark.parametrize(
    "sizes, options, activations, temporaries",  # bytes, before fragmentation doubles them
    [
        ({"kept": 100}, {}, 200, 100),  # a block's gradients beside it: half of what it keeps
        ({"kept": 100, "inputs": 10}, {"recompute": "full"}, 20, 300),  # what it keeps is there again
        ({"kept": 100, "logits": 100}, {}, 200, 100 * (2 + 4 + 4)),
        ({"kept": 100, "logits": 100}, {"tensor": 2, "micro_batch": 4, "sequence": 2}, 400, 1000),
        ({"kept": 100, "masks": 8}, {"tensor": 4, "split_norms": True}, 52, 26),
        ({"kept": 100, "masks": 8}, {"tensor": 4, "split_norms": True, "keep_gathered": True}, 152, 76),
        ({"kept": 100, "masks": 8}, {"tensor": 4, "keep_gathered": True}, 208, 104),
        ({"parameters": 3000}, {"data": 2, "tensor": 2, "zero": 3}, 0, 2 * 3000 * 2 / 2),
    ],
)
def test_what_is_kept_and_what_lives_for_a_moment_by_hand(sizes, options, activations, temporaries):
    layout, chain = planner.Layout(**options), Chain("by hand", (Block("only", **sizes),))
    need = memory(chain, layout, layout.data * layout.micro_batch, HAND)
    assert (need.activations, need.temporaries) == (2 * activations, 2 * temporaries)


@pytest.mark.parametrize("options, bytes_each", [({}, 200), ({"sequence": 2}, 100), ({"tensor": 2}, 200)])
@pytest.mark.parametrize("split_norms", [False, True])
def test_a_stage_holds_what_it_kept_and_what_it_sent_on(options, bytes_each, split_norms):
    """7 and 50 bfloat16 numbers of each of two examples; two micro-batches are in flight."""
    layout = planner.Layout(pipeline=2, micro_batch=2, split_norms=split_norms, **options)
    chain = Chain("by hand", (Block("first", kept=7), Block("last", inputs=50)))
    each = (bytes_each + bytes_each * 7 / 50) / (layout.tensor if split_norms else 1)
    assert memory(chain, layout, 8, HAND).activations == pytest.approx(2 * 2 * each)


def test_each_stage_holds_what_enters_the_next_one():
    chain = Chain("by hand", (Block("first", kept=7), Block("middle", kept=7, inputs=50), Block("last", inputs=30)))
    held = [stage_kept_bytes(chain.stages(3), stage, planner.Layout(pipeline=3)) for stage in range(3)]
    assert held == [2 * (7 + 50), 2 * (7 + 30), 0]


@pytest.mark.parametrize("chips, framework, wanted", [(1, 5e9, 1.6e9), (1, 1e9, 1e9), (2, 5e9, 5e9), (2, 1e9, 1e9)])
def test_a_device_alone_needs_its_context_and_no_communicators(chips, framework, wanted):
    constants, chain = replace(HAND, framework_bytes=framework), Chain("by hand", (Block("only"),))
    assert memory(chain, planner.Layout(data=chips), chips, constants).framework == wanted


def test_a_transformers_blocks_by_hand():
    """Three tokens of width 8 and 4 heads; in the second model two heads of keys and values, and a gate."""
    embedding, head = Block("embedding", 80, 80), Block("output", flops=480, kept=24, inputs=24, logits=30)
    layer = Block(
        "layer",
        parameters=4 * 64 + 2 * 8 * 32 + 13 * 8,
        split_parameters=4 * 64 + 2 * 8 * 32,
        flops=2 * 3 * 768,
        score_flops=2 * 2 * 3 * 3 * 8,
        kept=4 * 24,
        kept_split=4 * 24 + 2 * 3 * 32,
        kept_scores=2.5 * 4 * 9,
        masks=2 * 24,
        inputs=24,
        exchanged=2 * 24,
        keys=2 * 24,
        operations=20,
    )
    plain = planner.Transformer(2, 8, 4, 10, 3, flash=False, dropout=True)
    assert plain.chain() == Chain("transformer", (embedding, layer, layer, head), 2, 2, 80, 4)
    gated = replace(plain, ffn=20, kv_heads=2, gated=True, tied=False, dropout=False, slots=1)
    layer = replace(
        layer,
        parameters=3 * 64 + 3 * 8 * 20 + 2 * 8,
        split_parameters=3 * 64 + 3 * 8 * 20,
        flops=2 * 3 * 672,
        kept_split=3 * 24 + 4 * 3 * 20,
        kept_scores=4 * 9,
        masks=0,
        keys=24,
    )
    head = replace(head, parameters=80, split_parameters=80)
    assert gated.chain() == Chain("transformer", (embedding, layer, layer, head), 1, 2, 0, 4)
    assert replace(gated, flash=True).chain().blocks[1] == replace(layer, kept_scores=0)
    assert all(type(replace(gated, lora=rank).chain().parameters) is int for rank in (0, 2))


def test_what_is_not_said_of_a_model_or_a_layout_counts_as_nothing():
    nothing = dict.fromkeys(vars(Block("only")), 0)
    assert vars(Block("only")) == {**nothing, "name": "only", "backward": 2, "operations": 1}
    chain = {"slots": 2, "layers": 0, "tied": 0, "heads": 0, "experts": 1, "tied_bytes": 0}
    assert vars(Chain("by hand", ())) == {"name": "by hand", "blocks": (), **chain}
    one = dict.fromkeys(("data", "tensor", "pipeline", "sequence", "micro_batch", "interleave", "expert"), 1)
    no = dict.fromkeys(("split_norms", "keep_gathered", "chunked_loss"), False)
    rest = {"recompute": "none", "zero": 0, "precision": "mixed_bfloat16", "shard": None, "offload": ()}
    assert vars(planner.Layout()) == one | no | rest
    assert {*vars(StepTime(1, 2)).values()} == {1, 2, 0.0}


def test_the_planners_names_are_all_offered():
    names = {name for name, one in vars(planner).items() if callable(one) and not name.startswith("_")}
    assert {*planner.__all__} == names | {"CHIPS"}


def test_all_layers_may_be_frozen_and_no_more():
    sizes = dict(hidden=8, heads=2, vocabulary=10, sequence_length=3)
    assert planner.Transformer(2, **sizes, frozen_layers=2).chain().blocks[1].parameters == 0
    with pytest.raises(CourseError):
        planner.Transformer(2, **sizes, frozen_layers=3)


@pytest.mark.parametrize("name, most", [("layers", 10_000), ("hidden", 10**8), ("vocabulary", 10**8)])
def test_a_transformers_numbers_have_limits(name, most):
    sizes = dict(layers=1, hidden=1, heads=1, vocabulary=1, sequence_length=1, ffn=1)
    for number in (1, most):
        assert getattr(planner.Transformer(**{**sizes, name: number}), name) == number
    for number in (0, most + 1, 1.5):
        with pytest.raises(CourseError, match=f"Transformer.{name} must be a whole number between 1 and {most:,}, not"):
            planner.Transformer(**{**sizes, name: number})


ON_TPU = planner.Transformer(3, 64, 4, 500, 32, tied=False, flash=False)  # its blocks have 12 h^2 numbers in matrices
MATRICES, TABLE = 3 * 12 * 64**2, 500 * 64
OTHERS = 32 * 64 + 3 * 13 * 64 + 2 * 64 + 500  # positions, norms and biases
NUMBERS, TOKENS = MATRICES + 2 * TABLE + OTHERS, 2 * 32


@pytest.mark.parametrize(
    "options, batch, parameters, gradients, activations, logits, matrices",
    [
        # Korthikanti's form, as the module's docstring has it: s b h (68 + 6 a s / h) bytes a block, 92 in float32.
        ({}, 2, NUMBERS, MATRICES + TABLE, 3 * TOKENS * 64 * (68 + 12), 2 * TOKENS * 500, MATRICES),
        ({"recompute": "full"}, 2, NUMBERS, MATRICES + TABLE, 3 * TOKENS * 64 * 2, 2 * TOKENS * 500, MATRICES),
        (
            {"precision": "float32"},
            2,
            NUMBERS,
            MATRICES + TABLE,
            3 * TOKENS * 64 * (92 + 12),
            8 * TOKENS * 500,
            MATRICES,
        ),
        # Two micro-batches: all gradients are there before the second one's.
        ({}, 4, NUMBERS, NUMBERS + MATRICES + TABLE, 3 * TOKENS * 64 * 80, 2 * TOKENS * 500, MATRICES),
        # FSDP divides all but the output's gradient.
        (
            {"data": 4, "zero": 3},
            8,
            NUMBERS / 4,
            MATRICES / 4 + TABLE,
            3 * TOKENS * 64 * 80,
            2 * TOKENS * 500,
            MATRICES / 4,
        ),
        ({"data": 4}, 8, NUMBERS, MATRICES + TABLE, 3 * TOKENS * 64 * 80, 2 * TOKENS * 500, MATRICES),
        # Of a block's 68 bytes, 24 of the norms and 4 of their results are on every device.
        (
            {"tensor": 4},
            2,
            (MATRICES + TABLE) / 4 + TABLE + OTHERS,
            (MATRICES + TABLE) / 4,
            3 * TOKENS * 64 * (28 + (40 + 12) / 4),
            2 * TOKENS * 500 / 4,
            MATRICES / 4,
        ),
    ],
)
def test_a_tpus_compiled_step_by_hand(options, batch, parameters, gradients, activations, logits, matrices):
    found = tpu_memory.compiled_memory(ON_TPU, planner.Layout(micro_batch=2, **options), batch)
    assert (found.weights, found.optimizer) == (4 * parameters, 8 * parameters)
    assert (found.gradients, found.activations, found.temporaries) == (4 * gradients, activations, 0)
    assert found.framework == pytest.approx(20 * 2**20 + logits + 0.6 * 4 * matrices)


@pytest.mark.parametrize(
    "changes, options, batch, temporaries, fullest",  # beyond the 96 MiB that find a place on the chip
    [
        # The logits, the output's matrix and its gradient in bfloat16, and the blocks' matrices: 12 h^2 each.
        ({"vocabulary": 10**6}, {"micro_batch": 8}, 8, 2 * 256 * 10**6 + 2 * 64 * 10**6 + 2 * 49152, "loss"),
        # The gradient of 2048 x 2048 scores of 8 heads; or all that the block would have kept: 44 T h and 6 a score.
        ({"sequence_length": 2048, "heads": 8}, {}, 1, 4 * 8 * 2048**2 + 2 * 49152, "backward"),
        (
            {"sequence_length": 2048, "heads": 8},
            {"recompute": "full"},
            1,
            44 * 2048 * 64 + 6 * 8 * 2048**2 + 2 * 49152,
            "backward",
        ),
        (  # micro-batches share the other matrices' copies
            {"sequence_length": 2048, "heads": 8},
            {},
            2,
            4 * 8 * 2048**2 + 2 * (49152 + 2 * TABLE),
            "backward",
        ),
    ],
)
def test_a_tpus_step_is_fullest_at_the_loss_or_in_the_backward_pass(changes, options, batch, temporaries, fullest):
    model = replace(ON_TPU, layers=1, **changes)
    found = tpu_memory.compiled_memory(model, planner.Layout(**options), batch)
    assert found.temporaries == temporaries - 96 * 2**20
    assert (found.gradients == 0) == (fullest == "loss")


@pytest.mark.parametrize(
    "of_model, of_layout, wanted",
    [
        ({}, {}, True),
        ({}, {"tensor": 2, "zero": 3, "recompute": "full", "precision": "float32"}, True),
        *(({name: True}, {}, False) for name in ("tied", "gated", "flash", "dropout")),
        *(({name: 1}, {}, False) for name in ("kv_heads", "slots", "lora", "frozen_layers", "window", "head_size")),
        ({"experts": 2}, {}, False),
        ({}, {"data": 4, "zero": 3, "shard": 2}, False),
        *(({}, {name: 2}, False) for name in ("pipeline", "sequence", "interleave", "zero")),
        ({}, {"zero": 1}, False),
        ({}, {"recompute": "selective"}, False),
        ({}, {"precision": "mixed_float16"}, False),
        ({}, {"split_norms": True}, False),
    ],
)
def test_what_the_compile_command_can_build(of_model, of_layout, wanted):
    assert tpu_memory.compilable(replace(ON_TPU, **of_model), planner.Layout(**of_layout)) is wanted


@pytest.mark.parametrize(
    "size, shown",
    [(0.1 * GIB, "0.1 GiB"), (0.09 * GIB, "92.2 MiB"), (2500 * GIB, "2.5e+03 GiB"), (2**20, "1 MiB"), (512, "0.5 KiB")],
)
def test_bytes_as_they_are_shown(size, shown):
    assert in_bytes(size) == shown


@pytest.mark.parametrize("seconds, shown", [(1, "1 s"), (1.5, "1.5 s"), (0.25, "250 ms"), (4e-6, "0.004 ms")])
def test_seconds_as_they_are_shown(seconds, shown):
    assert in_seconds(seconds) == shown


def by_hand(step: StepTime, **layout) -> planner.Prediction:
    """Two A100s whose step of 8 examples has 10^12 FLOPs an example and takes what a test says; 20 of 80 GiB."""
    chain, need = Chain("by hand", (Block("only", 1000, flops=1e12),)), Memory(4 * GIB, 0, 0, 16 * GIB, 0)
    layout = planner.Layout(**layout)
    intervals = (18 * GIB, 24 * GIB), (0.9 * step.total, 1.1 * step.total)
    return planner.Prediction(chain, planner.Cluster(A100, layout.chips), layout, 8, need, step, *intervals, "A note.")


def test_a_prediction_as_it_is_shown():
    """3 x 8 x 10^12 FLOPs in 0.5 s on two chips of 312 x 10^12 a second: a thirteenth of the peak."""
    found = by_hand(StepTime(compute=0.125, memory=0.375), data=2)
    assert found.model_flops_share == pytest.approx(24e12 / (2 * 312e12 * 0.5))
    assert repr(found).splitlines() == [
        "by hand, 1,000 parameters, global batch 8, on 2 x a100-80gb: data 2, micro-batch 1, mixed_bfloat16",
        "kind           amount  share, interval",
        "weights         4 GiB  5%",
        "activations    16 GiB  20%",
        "memory in all  20 GiB  of 80 GiB, 18 GiB to 24 GiB: fits",
        "compute        125 ms  25%",
        "memory         375 ms  75%",
        "step in all    500 ms  450 ms to 550 ms; 8% of the peak for the model",
        "A note.",
    ]
    billions = replace(found, chain=Chain("large", (Block("only", 1_500_000_000),)))
    assert repr(billions).startswith("large, 1.5 billion parameters, global batch 8")


def test_a_layout_as_it_is_shown():
    layout = planner.Layout(2, 4, 3, 5, 6, "full", 1, "float32")
    assert str(layout) == "data 2, tensor 4, pipeline 3, sequence 5, micro-batch 6, recompute full, ZeRO-1, float32"
    assert (layout.chips, layout.replicas, layout.micro_batches(24)) == (120, 10, 2)
    for batch in (0, 18):
        with pytest.raises(CourseError, match=r"does not divide into 2 replicas x micro-batches of 6: .* of 12\."):
            layout.micro_batches(batch)


@pytest.mark.parametrize(
    "step, words",
    [
        (StepTime(1, 0, tensor=0.5), "takes 1.5 times as long: 500 ms more tensor."),
        (StepTime(0.8, 0, tensor=0.5), "takes 1.3 times as long: 500 ms more tensor, 200 ms less compute."),
        (
            StepTime(1, 0, data=0.05),
            "takes 1.05 times as long: 50 ms more data. That is within the interval: measure both.",
        ),
        (StepTime(1, 0, data=0.015), "is as fast: 15 ms more data. That is within the interval: measure both."),
        (StepTime(1, 0, data=0.005), "is as fast. That is within the interval: measure both."),
    ],
)
def test_why_the_next_one_loses(step, words):
    best, other = by_hand(StepTime(1, 0), data=2), by_hand(step, tensor=2)
    again = by_hand(StepTime(1.2, 0), data=2, micro_batch=2)  # splits the model as the best does
    found = Search((best, again, other), (best,))
    assert (found.best, found.runner_up) == (best, other)
    assert found.reason == f"3 of 4 layouts fit. {other.layout} {words}"
    assert Search((best, again), ()).reason == "2 of 2 layouts fit, and all split the model in the same way."
    assert Search((), ()).best is None


def test_a_row_of_a_search_has_its_longest_wait():
    step = StepTime(compute=0.25, memory=0.05, data=0.2)
    shown = repr(Search((by_hand(step, data=2),), ())).splitlines()[1]
    assert shown.split() == "data 2, micro-batch 1, mixed_bfloat16 20 GiB 500 ms 8% data 40%".split()


def test_of_equally_fast_layouts_the_simpler_goes_first():
    found = by_hand(StepTime(1, 0), tensor=2, pipeline=3, micro_batch=4, zero=1, recompute="full")
    assert layout_search._preference(found) == (0, 1, 2, 3, 2, 1, 1, -4)
    assert layout_search._preference(replace(found, step=StepTime(2, 0)))[0] == 35  # ln 2 in steps of 2%


def counted(layouts) -> dict:
    """How many layouts have each (tensor, pipeline)."""
    return dict(collections.Counter((one.tensor, one.pipeline) for one in layouts))


def test_the_layouts_that_a_search_tries_by_hand():
    """Four chips, two heads, two layers; micro-batches of powers of two, without and with full recomputation."""
    chain = planner.Transformer(2, 8, 2, 10, 4).chain()
    cluster = planner.Cluster(A100, 4)
    tried = list(layout_search.layouts(chain, cluster, 4, "float32"))
    stages = {(1, 1): 1 * 4 * 2, (1, 2): 2 * 2 * 2, (2, 1): 2 * 4 * 2, (2, 2): 3 * 1 * 2}
    assert counted(tried) == stages and len(set(tried)) == len(tried)
    assert all(one.data * one.tensor * one.pipeline == 4 and one.sequence == 1 for one in tried)
    assert {one.micro_batch for one in tried if one.data == 1} == {1, 2, 4}
    assert all(one.split_norms == (one.tensor > 1) and one.precision == "float32" for one in tried)
    fewer = layout_search.layouts(chain, cluster, 2, "float32")  # four replicas do not divide it
    assert counted(fewer) == {(1, 2): 1 * 2 * 2, (2, 1): 1 * 4 * 2, (2, 2): 2 * 1 * 2}
    scores = planner.Transformer(2, 8, 2, 10, 4, flash=False).chain()  # which selective recomputation does not keep
    assert len(list(layout_search.layouts(scores, cluster, 4, "float32"))) == 3 / 2 * len(tried)
    three_heads = planner.Transformer(2, 9, 3, 10, 4).chain()
    assert {tensor for tensor, _ in counted(layout_search.layouts(three_heads, cluster, 4, "float32"))} == {1}
    many_heads = planner.Transformer(1, 32, 32, 10, 4).chain()  # within a node
    wide = counted(layout_search.layouts(many_heads, planner.Cluster(A100, 16), 16, "float32"))
    assert max(tensor for tensor, _ in wide) == 8
    here = planner.Cluster(replace(A100, family="measured"), 2)
    assert [one.micro_batch for one in layout_search.layouts(chain, here, 8, "float32")] == [4, 2, 1]
    assert [one.data for one in layout_search.layouts(chain, here, 4, "float32")] == [2, 2]
    tpus = planner.Cluster(planner.find_chip("tpu-v5e"), 4)
    assert not any(one.split_norms for one in layout_search.layouts(chain, tpus, 4, "float32"))


def test_links_by_hand():
    cluster = planner.Cluster(A100, 64)  # eight in a node
    assert (cluster.hop(8), cluster.hop(9)) == (A100.within, A100.between) == (300e9, 25e9)
    assert cluster.link(4, 2) == A100.within and cluster.link(4, 4) == 2 * A100.between
    assert cluster.link(2, 16) == A100.between
    assert cluster.link(4, 3) == 2 * A100.between  # two of a node's eight chips stand three apart


@pytest.mark.parametrize("name", ["A100_80GB", "a100 80gb"])
def test_a_chips_name_is_taken_as_people_write_it(name):
    assert planner.find_chip(name) is A100
    with pytest.raises(CourseError, match="'v100'; near ones are v100-[0-9]+gb, v100-[0-9]+gb"):
        planner.find_chip("v100")
    with pytest.raises(CourseError, match="'zz'; near ones are v100-16gb, .*, tpu-v5e"):
        planner.find_chip("zz")


GDDR6 = ("t4", "l4", "a10-24gb", "l40s-48gb")  # their ECC takes a sixteenth of the memory itself


def test_a_gpu_has_nearly_the_memory_that_its_name_says():
    sold = {"t4": 16, "l4": 24}
    for name, chip in planner.CHIPS.items():
        if not name.startswith("tpu"):
            named = sold.get(name) or int(re.search(r"-(\d+)gb$", name)[1])
            whole = named * (15 / 16 if name in GDDR6 else 1)
            assert 0.985 * whole < chip.memory_bytes / GIB <= whole, name


def test_the_usual_precision_of_a_chip():
    names = {"a100-80gb": "mixed_bfloat16", "v100-32gb": "mixed_float16", "tpu-v5e": "mixed_bfloat16"}
    assert {name: planner.find_chip(name).usual_precision for name in names} == names
    assert replace(A100, flops_per_second={"float32": 1.0}).usual_precision == "float32"


def test_no_share_of_a_peak_is_fitted_above_it():
    """Runs ten times as fast as any chip's peak: what is left stays unexplained."""
    found = calibrate.samples(published_runs.read_table(published_runs.PUBLISHED))["time"]
    fast = {"time": [replace(one, measured=one.measured / 10) for one in found[:3]]}
    fitted = vars(calibrate._fit(fast, "time", calibrate.START))
    shares = [*fitted["matrix"].values(), *(fitted[name] for name in calibrate.SHARES)]
    assert max(shares) == pytest.approx(1, rel=1e-3)


def test_errors_and_times_of_published_runs_by_hand():
    """Measured over predicted 1, 2 and 1/2: predicted over measured misses by 0, 1/2 and 1."""
    assert calibrate.errors([1, 2, 0.5]) == pytest.approx((0.5, 0.9))
    row = next(one for one in published_runs.read_table(published_runs.PUBLISHED) if "BLOOM 176B (p" in one["model"])
    run = published_runs.read_run(row)
    assert calibrate._seconds({**row, "step_time_s": "12.5"}, run) == 12.5
    of_peak = calibrate._seconds({**row, "step_time_s": "", "mfu": "0.5"}, run)
    flops = 3 * run.model.chain().flops * 2048
    assert of_peak == pytest.approx(flops / (384 * 312e12 * 0.5))
    assert calibrate._seconds({**row, "step_time_s": "", "mfu": ""}, run) is None
    assert calibrate._rounded({"a": 1.23456, "b": {"c": 12345.0}}) == {"a": 1.23, "b": {"c": 12300.0}}
    given = calibrate._with(HAND, ("hopper", "link"), (0.9, 0.8))
    assert given == replace(HAND, matrix={**HAND.matrix, "hopper": 0.9}, link=0.8)


def test_a_published_models_output_layer_is_its_own_where_its_parameters_say_so():
    row = dict.fromkeys(published_runs.NUMBERS) | {"layers": 2, "hidden": 8, "heads": 2, "vocab": 100, "seq_len": 4}
    for tied in (True, False):
        given = planner.Transformer(2, 8, 2, 100, 4, tied=tied).parameters / 1e9
        assert published_runs._shape(row | {"params_B": given})["tied"] == tied


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("H100 80 gb", ["h100-80gb", "a100-80gb", "h100-96gb"]),  # close by their letters
        ("h1 of the first kind that was sold", ["h100-80gb", "h100-96gb"]),
        ("??", [*planner.CHIPS]),
    ],
)
def test_the_names_near_an_unknown_chip(name, near):
    with pytest.raises(CourseError) as refused:
        planner.find_chip(name)
    shown = str(refused.value).removeprefix(f"no chip is called {name!r}; near ones are ").removesuffix(".").split(", ")
    assert shown == near


def test_a_page_shows_the_note_and_escapes_it():
    found = replace(by_hand(StepTime(1, 0)), note="a < b")
    assert found._repr_html_().endswith("<p>a &lt; b</p>")
    assert not replace(found, note="")._repr_html_().endswith("</p>")


def test_a_model_without_heads_is_split_over_no_tensor_group():
    chain = Chain("by hand", tuple(Block(f"layer {number}", 1000, flops=1e9) for number in range(4)), layers=4)
    assert chain.heads == 0
    found = list(layout_search.layouts(chain, planner.Cluster(A100, 8), 16, "mixed_bfloat16"))
    assert {layout.tensor for layout in found} == {1} and {layout.pipeline for layout in found} == {1, 2, 4}


def test_a_step_without_gradients_takes_what_its_operations_write():
    """One operation writes 1,000 bytes, in whole pages; nothing is kept and no update follows."""
    operation = SimpleNamespace(reads=(), writes=("out",), alias=False, in_place=False)
    trace = SimpleNamespace(operations=[operation], tensors={"out": SimpleNamespace(bytes=3 * 2**20)})
    taken = bfc_allocator.step_bytes(trace, [], [bfc_allocator.FIRST_REGION - 256])
    more = bfc_allocator.step_bytes(trace, [], [bfc_allocator.FIRST_REGION - 256, 256])
    assert taken == more == 3 * 2**20


def test_a_result_that_lies_in_its_inputs_memory_takes_none():
    """The second operation's results are the first one's 3 MiB, reshaped."""
    made = SimpleNamespace(reads=(), writes=("out",), alias=False, in_place=False)
    reshaped = SimpleNamespace(reads=("out",), writes=("flat", "same"), alias=True, in_place=False)
    sizes = dict.fromkeys(("out", "flat", "same"), SimpleNamespace(bytes=3 * 2**20))
    trace = SimpleNamespace(operations=[made, reshaped], tensors=sizes)
    assert bfc_allocator.step_bytes(trace, [], [bfc_allocator.FIRST_REGION - 256]) == 3 * 2**20


@pytest.mark.parametrize(
    "bytes_, reads, wanted",
    [
        (3 * 2**20, 1, 3 * 2**20),
        (3 * 2**20, 2, 6 * 2**20),  # a later operation reads the first result too
        (2 * 2**20, 1, 5 * 2**20),  # another size
    ],
)
def test_a_result_takes_the_place_of_an_input_of_its_size_that_nothing_else_reads(bytes_, reads, wanted):
    made = SimpleNamespace(reads=(), writes=("out",), alias=False, in_place=False)
    added = SimpleNamespace(reads=("out",), writes=("sum",), alias=False, in_place=True)
    later = SimpleNamespace(reads=("out",) * (reads - 1), writes=(), alias=False, in_place=False)
    sizes = {"out": SimpleNamespace(bytes=3 * 2**20), "sum": SimpleNamespace(bytes=bytes_)}
    trace = SimpleNamespace(operations=[made, added, later], tensors=sizes)
    assert bfc_allocator.step_bytes(trace, [], [bfc_allocator.FIRST_REGION - 256]) == wanted


@pytest.mark.parametrize("size, cut", [(384 * 2**20, True), (384 * 2**20 + 256, False), (256 * 2**20, True)])
def test_a_chunk_is_cut_in_half_or_where_it_would_waste_128_mib(size, cut):
    """As in bfc_allocator.cc: of 512 MiB, 384 waste exactly 128."""
    pool = bfc_allocator.Pool()
    pool.give_back(pool.take(512 * 2**20))
    assert pool.take(size).size == (size if cut else 512 * 2**20)
    assert sum(chunk.size for chunk in pool._chunks) == 512 * 2**20


def test_without_a_chip_this_machines_devices_are_measured(monkeypatch):
    asked = []
    monkeypatch.setattr(plan_command.devices, "simulate", asked.append)
    monkeypatch.setattr(plan_command, "this_machine", lambda count: asked.append(count) or "measured")
    options = {"chips": 3, "chip": None, "model": "program.py:make", **dict.fromkeys(plan_command.OWN_CHIP)}
    assert plan_command._cluster(SimpleNamespace(**options)) == "measured" and asked == [3, 3]


def test_a_search_says_what_a_whole_training_takes_with_its_best(capsys):
    """100,000 steps of 8 sequences of 1,024 tokens, with the best layout's seconds a step."""
    words = ["plan", "gpt2-124m", "--chip", "a100-80gb", "--chips", "2", "--batch", "8"]
    words += ["--tokens", "819.2e6", "--price", "2"]
    assert main([*words, "--json"]) == 0
    hours = json.loads(capsys.readouterr().out)["ranked"][0]["step_seconds"]["total"] * 100_000 / 3600
    assert main(words) == 0
    said = capsys.readouterr().out
    assert (
        f"8.19e+08 tokens: {hours:.3g} hours (" in said
        and f"{2 * hours:.3g} of a chip, at 2 each {4 * hours:.3g}" in said
    )

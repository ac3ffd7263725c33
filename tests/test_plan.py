"""The planner's formulas against printed figures, schedules and rings, and its answers to mistakes."""

import csv
import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from course_lib import collectives, pipeline, planner
from course_lib.cli import main
from course_lib.errors import CourseError
from course_lib.planner import calibrate, published_runs, tpu_memory
from course_lib.planner.blocks import Block, Chain
from course_lib.planner.calibration import FITTED
from course_lib.planner.layout import PRECISIONS
from course_lib.planner.memory import in_flight, kept_bytes, memory, stage_parameters
from course_lib.planner.models_by_numbers import MODELS
from course_lib.planner.step_time import step_time

GIB = 2**30
EXACT = replace(planner.fitted(), fragmentation=1, framework_bytes=0, launch=0, launch_compiled=0, latency=0)
A100 = planner.find_chip("a100-80gb")
GPT_22B = planner.Transformer(48, 6144, 64, 51200, 2048, flash=False, dropout=True)
GPT_175B = planner.Transformer(96, 12288, 96, 51200, 2048, flash=False, dropout=True)


@pytest.mark.parametrize(
    "name, parameters",  # the published checkpoints' own counts; GPT-2's has learned positions beside
    [
        ("gpt2-124m", 124_439_808 - 1024 * 768),
        ("llama2-7b", 6_738_415_616),
        ("llama2-70b", 68_976_648_192),
        ("llama3-8b", 8_030_261_248),
    ],
)
def test_parameters_are_those_of_the_published_models(name, parameters):
    """A norm's scale or a bias more or less is the final norm, which the planner leaves out: 1e-4."""
    assert MODELS[name].parameters == pytest.approx(parameters, rel=1e-4)


def test_mistrals_first_model_looks_back_4096_tokens():
    """As its config.json says; it has Llama 3 8B's shape, with 32,000 words."""
    model = replace(MODELS["llama3-8b"], vocabulary=32_000, window=4096)
    assert MODELS["mistral-7b"] == model and model.parameters == pytest.approx(7_241_732_096, rel=1e-4)


def test_arithmetic_is_narayanans_formula():
    """96 B s l h^2 (1 + s / 6h + V / 16lh) counts the forward pass four times; arXiv 2104.04473, equation 3."""
    layers, h, s, vocabulary = 96, 12288, 2048, 51200
    chain = GPT_175B.chain()
    layer, head = chain.blocks[1], chain.blocks[-1]
    four_passes = 4 * layers * (layer.flops + layer.score_flops) + 3 * head.flops
    assert four_passes == pytest.approx(
        96 * s * layers * h**2 * (1 + s / (6 * h) + vocabulary / (16 * layers * h)), rel=1e-12
    )


@pytest.mark.parametrize(
    "model, layout, batch, printed_gib",
    [
        (GPT_22B, planner.Layout(tensor=8, micro_batch=4), 4, 59.25),
        (GPT_22B, planner.Layout(tensor=8, micro_batch=4, recompute="selective", split_norms=True), 4, 9.5625),
        (GPT_175B, planner.Layout(tensor=8, pipeline=8, interleave=3), 64, 66.84375),
        (
            GPT_175B,
            planner.Layout(tensor=8, pipeline=8, interleave=3, recompute="selective", split_norms=True),
            64,
            12.3515625,
        ),
    ],
)
def test_activations_are_korthikantis_figure_1(model, layout, batch, printed_gib):
    """arXiv 2205.05198, figure 1, as Calculon transcribes it.

    To 1%: we hold a stage's sent boundary and the head's input too.
    """
    layout = replace(layout, precision="float16_master")
    assert memory(model.chain(), layout, batch, EXACT).activations / GIB == pytest.approx(printed_gib, rel=0.011)


def test_a_layer_keeps_34_bytes_a_number_and_5_a_score():
    """arXiv 2205.05198, equation 1: s b h (34 + 5 a s / h) bytes."""
    s, b, h, a = 2048, 4, 6144, 64
    layer = GPT_22B.chain().blocks[1]
    layout = planner.Layout(micro_batch=b, precision="float16_master")
    assert kept_bytes(layer, layout) == pytest.approx(s * b * h * (34 + 5 * a * s / h), rel=1e-12)
    assert kept_bytes(layer, replace(layout, recompute="selective")) == s * b * h * 34
    assert kept_bytes(layer, replace(layout, recompute="full")) == s * b * h * 2
    split = replace(layout, recompute="full", tensor=8, split_norms=True)
    assert kept_bytes(layer, split) == s * b * h * 2 / 8
    assert kept_bytes(layer, replace(layout, tensor=8)) == pytest.approx(
        s * b * h * (10 + 24 / 8 + 5 * a * s / h / 8), rel=1e-12
    )
    assert kept_bytes(layer, replace(layout, tensor=8, split_norms=True)) == pytest.approx(
        s * b * h * (34 + 5 * a * s / h) / 8, rel=1e-12
    )


@pytest.mark.parametrize("zero, share", [(0, (1, 1, 1)), (1, (1, 1, 64)), (2, (1, 64, 64)), (3, (64, 64, 64))])
def test_zero_divides_what_its_stage_says(zero, share):
    """arXiv 1910.02054, figure 1: with 64 replicas; float32 Adam keeps 4 + 4 + 8 bytes a parameter."""
    chain = Chain("one block", (Block("only", parameters=10**6),))
    need = memory(chain, planner.Layout(data=64, zero=zero, precision="float32"), 64, EXACT)
    assert (need.weights, need.gradients, need.optimizer) == tuple(
        size * 10**6 / n for size, n in zip((4, 4, 8), share)
    )


@pytest.mark.parametrize("stages, micro_batches", [(2, 1), (4, 4), (4, 9), (8, 32)])
def test_micro_batches_in_flight_are_the_schedules(stages, micro_batches):
    drawn = pipeline.one_forward_one_backward(stages, micro_batches).timeline().peak_in_flight
    layout = planner.Layout(pipeline=stages)
    assert [in_flight(stage, layout, micro_batches) for stage in range(stages)] == list(drawn)


@pytest.mark.parametrize("stages, micro_batches, chunks", [(2, 4, 2), (4, 8, 2), (4, 8, 3)])
def test_interleaved_micro_batches_in_flight_are_the_schedules(stages, micro_batches, chunks):
    """The schedule counts a micro-batch once in each chunk, which holds a v-th of the stage."""
    drawn = pipeline.interleaved(stages, micro_batches, chunks).timeline().peak_in_flight
    layout = planner.Layout(pipeline=stages, interleave=chunks)
    held = [chunks * in_flight(stage, layout, micro_batches) for stage in range(stages)]
    assert held == pytest.approx(drawn)


@pytest.mark.parametrize("stages, micro_batches", [(2, 4), (4, 4), (8, 16)])
def test_the_bubble_is_the_schedules(stages, micro_batches):
    """Equal stages, nothing sent: idle share of the step = (p - 1) / (m + p - 1)."""
    chain = Chain("equal", tuple(Block(f"block{n}", flops=1e12, kept=1e6) for n in range(stages)))
    layout = planner.Layout(pipeline=stages)
    step = step_time(chain, planner.Cluster(A100, stages), layout, micro_batches, EXACT)
    drawn = pipeline.one_forward_one_backward(stages, micro_batches).timeline().bubble
    assert step.bubble / step.total == pytest.approx(drawn, rel=1e-6)


def test_the_gradients_travel_as_a_ring_sends_them():
    d, numbers = 4, 1200
    _, network = collectives.ring_all_reduce([np.ones(numbers, "float32") for _ in range(d)])
    chain = Chain("one block", (Block("only", parameters=numbers, flops=1),))
    constants = replace(EXACT, data_exposed=1, link=1)
    step = step_time(chain, planner.Cluster(A100, d), planner.Layout(data=d, precision="float32"), d, constants)
    assert step.data * A100.within == pytest.approx(network.sent_bytes(0), rel=1e-12)


PLAIN = replace(EXACT, data_exposed=1, link=1)  # every byte travels at the link's peak, and nothing hides it


def seconds_of(layout, micro_batches, *blocks, **chain):
    """A step of a model of these blocks on so many chips of one node."""
    cluster = planner.Cluster(A100, layout.chips)
    batch = layout.data * layout.micro_batch * micro_batches
    return step_time(Chain("by hand", blocks, **chain), cluster, layout, batch, PLAIN)


@pytest.mark.parametrize(
    "zero, micro_batches, moved",  # three quarters of 1,200 float32 numbers a pass, as a ring of four moves them
    [
        (0, 3, 2 * 3600),  # scattered and gathered once
        (1, 3, 2 * 3600),
        (2, 3, (3 + 1) * 3600),  # each micro-batch's gradients scattered, the parameters gathered once
        (3, 1, 3 * 3600),
        (3, 3, 3 * 3 * 3600),  # gathered forward, gathered backward, gradients scattered, for each micro-batch
    ],
)
@pytest.mark.parametrize("replicas", [{"data": 4}, {"sequence": 4}, {"data": 2, "sequence": 2}])
def test_gradients_and_parameters_travel_as_zero_needs(zero, micro_batches, moved, replicas):
    layout = planner.Layout(**replicas, zero=zero, precision="float32")
    step = seconds_of(layout, micro_batches, Block("only", parameters=1200))
    assert step.data * A100.within == pytest.approx(moved, rel=1e-12)


@pytest.mark.parametrize("recompute, passes", [("none", 2), ("full", 3)])
def test_tensor_parallelism_sums_forward_backward_and_again_to_recompute(recompute, passes):
    """600 numbers of 2 examples in bfloat16 are 2,400 bytes, of which a ring of four sends 2 * 3/4; 5 micro-batches."""
    layout = planner.Layout(tensor=4, micro_batch=2, recompute=recompute)
    step = seconds_of(layout, 5, Block("only", exchanged=600))
    assert step.tensor * A100.within == pytest.approx(5 * passes * 2 * 3 / 4 * 2400, rel=1e-12)


def test_sequence_parallelism_passes_keys_and_values_forward_backward_and_their_gradients():
    step = seconds_of(planner.Layout(sequence=4), 5, Block("only", keys=500))
    assert step.tensor * A100.within == pytest.approx(5 * 3 / 4 * 3 * 500 * 2, rel=1e-12)


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_pipeline_waits_for_its_hops_and_a_chunks_share_of_the_others(chunks):
    """A boundary of 1,000 bfloat16 numbers and its gradient, once a chunk; 6 micro-batches in 3 stages."""
    layout = planner.Layout(pipeline=3, interleave=chunks)
    step = seconds_of(layout, 6, *(Block(f"block{n}", flops=1e9, inputs=1000) for n in range(3)))
    alone = seconds_of(planner.Layout(), 1, Block("block", flops=1e9, inputs=1000)).total
    hop = 2 * chunks * 2000 / A100.within
    waits = 6 * hop if chunks == 1 else 0  # a chunk's hop is shorter than another chunk's work, and hidden by it
    assert step.bubble == pytest.approx(waits + 2 / chunks * (alone + hop), rel=1e-9)
    assert step.compute + step.memory == pytest.approx(6 * alone, rel=1e-9)


def test_hops_of_interleaved_stages_show_only_where_they_outlast_the_work():
    layout = planner.Layout(pipeline=2, interleave=2)
    step = seconds_of(layout, 6, *(Block(f"block{n}", flops=1e6, inputs=10**6) for n in range(2)))
    alone = seconds_of(planner.Layout(), 1, Block("block", flops=1e6, inputs=10**6)).total
    hop = 2 * 2 * 2e6 / A100.within
    assert hop > alone
    assert step.bubble == pytest.approx(6 * (hop - alone) + 1 / 2 * (alone + hop), rel=1e-9)


@pytest.mark.parametrize("zero, room", [(0, 2 / 3), (3, 6)])
def test_gradients_hide_behind_the_last_backward_pass_and_under_zero_3_behind_the_step(zero, room):
    """Of a share, here a tenth, nothing is hidden; 1,200 float32 numbers or 12 million in 6 micro-batches."""
    constants = replace(PLAIN, data_exposed=0.1)
    for parameters in (1200, 12 * 10**6):
        chain = Chain("by hand", (Block("only", parameters=parameters, flops=1e9),))
        layout = planner.Layout(data=4, zero=zero, precision="float32")
        step = step_time(chain, planner.Cluster(A100, 4), layout, 24, constants)
        sent = (2 if zero == 0 else 3 * 6) * 3 / 4 * 4 * parameters / A100.within
        assert step.data == pytest.approx(max(0.1 * sent, sent - room * step.compute / 6), rel=1e-9)


@pytest.mark.parametrize("recompute, passes", [("none", 3), ("full", 4)])
@pytest.mark.parametrize("precision, seconds", [("bfloat16_master", 1e-4), ("mixed_bfloat16", 1e-5)])
def test_small_work_waits_for_its_operations_to_start(recompute, passes, precision, seconds):
    """20 operations a pass in 5 micro-batches; next to nothing to compute. Beside long work the starts vanish."""
    constants = replace(PLAIN, launch=1e-4, launch_compiled=1e-5)
    layout = planner.Layout(micro_batch=2, recompute=recompute, precision=precision)
    for flops in (1, 1e15):
        chain = Chain("by hand", (Block("only", flops=flops, operations=20),))
        step = step_time(chain, planner.Cluster(A100, 1), layout, 10, constants)
        floor = 5 * passes * 20 * seconds
        if flops == 1:
            assert step.total == pytest.approx(floor, rel=1e-6)
        else:
            assert step.compute > 100 * floor and step.overhead < 1e-6 * step.compute


def test_a_tpu_waits_for_no_operation_to_start():
    chain, tpu = Chain("by hand", (Block("only", flops=1, operations=20),)), planner.find_chip("tpu-v5e")
    step = step_time(chain, planner.Cluster(tpu, 1), planner.Layout(), 1, replace(PLAIN, launch_compiled=1))
    assert step.overhead == 0


@pytest.mark.parametrize("recompute, sums", [("none", 4), ("full", 6)])
def test_each_tensor_parallel_sum_has_its_latency(recompute, sums):
    """Two sums a pass, forward and backward, and forward again to recompute; 5 micro-batches."""
    constants = replace(PLAIN, latency=1.0)
    chain = Chain("by hand", (Block("only", exchanged=1),))
    layout = planner.Layout(tensor=2, recompute=recompute)
    step = step_time(chain, planner.Cluster(A100, 2), layout, 5, constants)
    assert step.tensor == pytest.approx(5 * sums, rel=1e-6)


@pytest.mark.parametrize("chunked, parts", [(False, 1), (True, 8)])
def test_logits_are_held_whole_or_an_eighth_at_a_time(chunked, parts):
    """2 bytes in half precision, 4 for the float32 copy, 4 for its gradient; 3 examples of 700 numbers."""
    chain = Chain("only logits", (Block("head", logits=700),))
    need = memory(chain, planner.Layout(micro_batch=3, chunked_loss=chunked), 3, EXACT)
    assert need.temporaries == 3 * 700 * (2 + 4 + 4) / parts


@pytest.mark.parametrize(
    "precision, size",
    [("mixed_bfloat16", 16), ("bfloat16_fsdp", 16), ("bfloat16_deepspeed", 16), ("bfloat16_megatron", 18)]
    + [("bfloat16_master", 20), ("float32", 16)],
)
def test_each_stack_has_its_bytes_per_parameter(precision, size):
    chain = Chain("one block", (Block("only", parameters=1000),))
    need = memory(chain, planner.Layout(precision=precision), 1, EXACT)
    assert need.weights + need.gradients + need.optimizer == 1000 * size == 1000 * PRECISIONS[precision].adam_bytes


def test_the_slowest_stage_sets_the_time_of_a_micro_batch():
    fast, slow = Block("fast", flops=1e9), Block("slow", flops=3e9)
    step = seconds_of(planner.Layout(pipeline=2), 4, fast, slow)
    alone = [seconds_of(planner.Layout(), 1, block).compute for block in (fast, slow)]
    assert alone[1] == pytest.approx(3 * alone[0]) and step.compute == pytest.approx(4 * alone[1])
    assert step.bubble == pytest.approx((alone[0] + alone[1]) / 2)


@pytest.mark.parametrize("zero, share", [(0, 1), (1, 4), (2, 4), (3, 4)])
def test_the_update_reads_and_writes_what_an_optimizer_keeps(zero, share):
    """Adam in float32: the weight and two slots, 12 bytes, read and written."""
    layout = planner.Layout(data=4, zero=zero, precision="float32")
    step = seconds_of(layout, 2, Block("only", parameters=1200), slots=2)
    assert step.memory * A100.read_per_second == pytest.approx(1200 * 2 * 12 / share, rel=1e-12)


def test_a_pipelines_last_stage_holds_the_tied_parameters_again():
    chain = Chain("tied", (Block("first", 100, 80, flops=1), Block("last", 30, 20, flops=1)), tied=80)
    for stages, wanted in ((1, [30 + 100 / 2]), (2, [20 + 80 / 2, 10 + (20 + 80) / 2])):
        layout, parts = planner.Layout(tensor=2, pipeline=stages), chain.stages(stages)
        assert [sum(stage_parameters(chain, stage, parts, layout)) for stage in range(stages)] == wanted


def test_a_link_across_nodes_is_the_outer_one():
    cluster = planner.Cluster(A100, 64)
    assert cluster.link(8) == A100.within
    assert cluster.link(8, apart=8) == A100.between  # one chip of each node
    assert cluster.link(64) == min(A100.within, 8 * A100.between)  # a ring through whole nodes uses eight outer links


@pytest.mark.parametrize("layers, stages, sizes", [(8, 4, [3, 2, 2, 3]), (70, 12, [6] * 12), (6, 4, [2, 2, 2, 2])])
def test_layers_are_dealt_out_as_megatron_and_bloom_do(layers, stages, sizes):
    """Evenly; where they do not divide, embedding and output count as a layer each. BLOOM: 72 over 12 stages."""
    chain = planner.Transformer(layers, 64, 4, 100, 16).chain()
    assert [sum(times for _, times in stage.runs) for stage in chain.stages(stages)] == sizes


def test_every_kind_costs_what_its_cause_costs():
    """Each option moves the kind that it is about, and only in its direction."""
    chain, cluster = GPT_22B.chain(), planner.Cluster(A100, 64)
    base = planner.predict(chain, cluster, planner.Layout(data=8, tensor=8, precision="bfloat16_master"), 64)
    again = planner.predict(chain, cluster, replace(base.layout, recompute="full"), 64)
    assert again.memory.activations < base.memory.activations / 5
    assert again.step.compute == pytest.approx(
        4 / 3 * base.step.compute, rel=0.02
    )  # the output layer is not recomputed
    assert (
        planner.predict(chain, cluster, replace(base.layout, zero=1), 64).memory.optimizer == base.memory.optimizer / 8
    )
    fed = planner.predict(chain, cluster, base.layout, 64, examples_per_second=1)
    assert fed.step.total == pytest.approx(64) and fed.step.input == pytest.approx(64 - base.step.total)
    narrow = planner.predict(chain, cluster, replace(base.layout, precision="float32"), 64)
    assert narrow.step.compute > base.step.compute


def test_zero_3_has_two_blocks_gathered_at_once():
    """The next one's parameters arrive while this one's are in use: twice the larger one's 3,000 bfloat16 numbers."""
    chain = Chain("two blocks", (Block("large", parameters=3000), Block("small", parameters=1000)))
    layout = planner.Layout(data=4, precision="bfloat16_master")
    assert memory(chain, layout, 4, EXACT).temporaries == 0
    assert memory(chain, replace(layout, zero=3), 4, EXACT).temporaries == 2 * 3000 * 2


@pytest.mark.parametrize("verdict", ["fits", "fits, with little to spare", "may not fit", "does not fit"])
def test_a_verdict_is_where_the_chips_memory_lies_in_the_interval(verdict):
    chain = Chain("one block", (Block("only", parameters=10**9, flops=1e9),))
    prediction = planner.predict(chain, planner.Cluster(A100, 1), planner.Layout(), 1)
    total, (low, high) = prediction.memory.total, prediction.memory_interval
    assert low < total < high
    places = {"fits": high, "fits, with little to spare": total, "may not fit": low, "does not fit": 0.99 * low}
    chip = replace(A100, memory_bytes=places[verdict])
    assert replace(prediction, cluster=planner.Cluster(chip, 1)).verdict == verdict


def test_the_search_ranks_all_that_fits_also_with_little_to_spare():
    cluster = planner.Cluster(A100, 64)
    every = planner.search(MODELS["llama2-70b"], cluster, 256)
    least = min((*every.ranked, *every.refused), key=lambda one: one.memory.total)
    tight = replace(A100, memory_bytes=1.001 * least.memory.total)
    assert not replace(least, cluster=planner.Cluster(tight, 64)).surely_fits
    found = planner.search(MODELS["llama2-70b"], planner.Cluster(tight, 64), 256)
    assert least.layout in [one.layout for one in found.ranked]


def test_the_search_ranks_what_fits_and_says_why():
    found = planner.search(MODELS["llama2-70b"], planner.Cluster(A100, 64), 256)
    assert all(p.fits for p in found.ranked) and not any(p.fits for p in found.refused)
    assert found.best.step.total <= 1.02 * min(p.step.total for p in found.ranked)
    assert all(math.prod((p.layout.data, p.layout.tensor, p.layout.pipeline)) == 64 for p in found.ranked)
    other = found.runner_up
    assert str(other.layout) in found.reason
    kinds = [
        kind
        for kind, time in other.step.kinds.items()
        if time - found.best.step.kinds[kind] > 0.01 * found.best.step.total
    ]
    assert all(f"more {kind}" in found.reason for kind in kinds)


def test_the_search_predicts_what_predict_does():
    """Of a model by numbers too, for whose TPU steps there are the compiler's formulas."""
    model = planner.Transformer(4, 512, 8, 8192, 512, tied=False, flash=False)
    cluster = planner.Cluster(planner.find_chip("tpu-v5e"), 4)
    found = planner.search(model, cluster, 256)
    for one in (*found.ranked, *found.refused):
        again = planner.predict(model, cluster, one.layout, 256)
        assert (one.memory, one.step) == (again.memory, again.step)
        as_compiled = one.layout.pipeline == 1 and one.layout.zero in (0, 3) and one.layout.recompute != "selective"
        assert (one.note == "") == as_compiled
    assert any(one.layout.tensor > 1 and not one.note for one in (*found.ranked, *found.refused))


def test_the_search_leaves_out_what_one_stack_alone_can_build():
    found = planner.search(MODELS["llama3-8b"], planner.Cluster(A100, 16), 64)
    tried = {(one.layout.pipeline > 1, one.layout.zero) for one in (*found.ranked, *found.refused)}
    assert tried == {(False, 0), (False, 1), (False, 2), (False, 3), (True, 0), (True, 1)}


def test_a_slice_that_does_not_exist_is_refused():
    small = planner.Transformer(4, 512, 8, 8192, 512)
    v5e, v5p = (planner.find_chip(name) for name in ("tpu-v5e", "tpu-v5p"))
    with pytest.raises(CourseError, match=r"no slice of tpu-v5e has 12 chips.*take 1, 4, 8, 16, .* or 256\."):
        planner.predict(small, planner.Cluster(v5e, 12), planner.Layout(12), 12)
    with pytest.raises(CourseError, match="no slice of tpu-v5p has 512,000 chips"):
        planner.predict(small, planner.Cluster(v5p, 512_000), planner.Layout(512_000), 512_000)
    assert planner.predict(small, planner.Cluster(v5p, 512), planner.Layout(512), 512).memory.total


@pytest.mark.parametrize("optimizer, slots", [("adam", 2), ("adam8bit", 0.5), ("lion", 1), ("sgd", 0)])
def test_the_optimizer_counts_for_a_transformer_by_numbers(optimizer, slots, capsys):
    call = ["plan", "llama2-7b", "--chip", "a100-80gb", "--batch", "1", "--optimizer", optimizer, "--json"]
    main(call)
    answer = json.loads(capsys.readouterr().out)
    assert answer["memory_bytes"]["optimizer"] == 4 * slots * answer["parameters"]


def test_another_optimizer_of_a_transformer_by_numbers_gets_one_clear_line(capsys):
    assert main(["plan", "llama2-7b", "--chip", "a100-80gb", "--batch", "1", "--optimizer", "shampoo"]) == 2
    assert "the planner knows the optimizers adam, adamw, adam8bit, lion, lion8bit, momentum" in capsys.readouterr().err


def test_frozen_weights_are_held_without_gradients_and_slots():
    """Under ZeRO-3 they are divided with the others."""
    trained, frozen = Block("trained", parameters=100, flops=1), Block("frozen", flops=1, frozen_bytes=4_000)
    chain = Chain("two", (frozen, trained))
    for zero, share in ((0, 1), (3, 4)):
        need = memory(chain, planner.Layout(4, zero=zero, precision="float32"), 4, EXACT)
        assert need.weights == (4 * 100 + 4_000) / share
        assert (need.gradients, need.optimizer) == (4 * 100 / share, 8 * 100 / share)
    prediction = planner.predict(chain, planner.Cluster(A100, 1), planner.Layout(), 1)
    assert "100 parameters that are trained, beside 3.91 KiB that are not" in repr(prediction)


def test_the_search_says_when_nothing_fits():
    found = planner.search(
        MODELS["gpt3-175b"], planner.Cluster(planner.find_chip("t4"), 4), 8, precision="mixed_float16"
    )
    assert found.best is None and found.reason.startswith("None of ") and "of 15 GiB" in found.reason


# Published runs.


def test_the_stored_constants_are_the_fits():
    """Memory alone is quick to fit again; the whole fit is repeated in the slow test below."""
    found = calibrate.samples(published_runs.read_table(published_runs.PUBLISHED))
    again = calibrate._fit(found, "memory", calibrate.START)
    stored = planner.fitted()
    assert (again.fragmentation, again.framework_bytes) == pytest.approx(
        (stored.fragmentation, stored.framework_bytes), rel=0.01
    )


def test_sources_left_out_of_the_fit_are_predicted_well_enough():
    """The figures that lesson 10 states, as the fit stored them."""
    stored = json.loads(FITTED.read_text())["left_out"]
    runs, median, most, _, plain, _ = stored["memory"]["all"]
    assert runs >= 100 and median <= 0.10 and most <= 0.25 and median < plain / 2
    runs, median, _, inside, plain, _ = stored["time"]["all"]
    assert runs >= 700 and median <= 0.17 and median < plain / 2 and 0.7 <= inside <= 0.9


def test_every_source_counts_the_same_in_an_interval():
    """A hundred runs of one team at 1, and one run of another at 2: half of the weight each."""
    low, high = calibrate.interval({"many": [1.0] * 100, "one": [2.0]})
    assert low == pytest.approx(1) and 1.5 < high <= 2
    assert calibrate.coverage({"a": [1.0], "b": [1.0], "c": [3.0]}) == {"a": 1, "b": 1, "c": 0}


def lost_by_choice(own, constants) -> list[float]:
    """Of runs of one model, batch and number of chips: the time of the one planned fastest over the fastest's."""
    choices = {}
    for one in own:
        seconds = published_runs.row_seconds(one.run, constants)
        same = one.run.model, one.run.layout.chips, one.run.global_batch
        choices.setdefault(same, []).append((seconds, one.measured))
    return [min(each)[1] / min(measured for _, measured in each) for each in choices.values() if len(each) > 1]


def test_the_layout_that_is_planned_fastest_is_nearly_the_fastest():
    """Of vTrain's runs, known to the fit and, as README says, unknown to it."""
    found, own, others = calibrate.published(), [], {}
    for kind, of_kind in found.items():
        others[kind] = [one for one in of_kind if not one.source.startswith("vTrain")]
        own += [one for one in of_kind if one.source.startswith("vTrain")]
    lost = lost_by_choice(own, planner.fitted())
    assert len(lost) > 80 and np.median(lost) < 1.1 and max(lost) < 1.5
    unseen = lost_by_choice(own, calibrate.fit(others))
    assert (len(unseen), np.median(unseen), round(max(unseen), 1)) == (94, 1.0, 1.5)


def leaves(tree, path=()):
    branches = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return {key: leaf for at, part in branches for key, leaf in leaves(part, (*path, at)).items()} or {path: tree}


@pytest.mark.slow(seconds=60)
def test_fitting_again_with_and_without_each_source_gives_what_is_stored():
    """To a percent, because three digits are stored."""
    again, stored = calibrate.report(calibrate.published()), json.loads(FITTED.read_text())
    assert again.pop("chips") == stored.pop("chips")
    assert leaves(again) == pytest.approx(leaves(stored), rel=0.01)


def rows(**changes):
    with published_runs.PUBLISHED.open(newline="") as file:
        bloom = next(row for row in csv.DictReader(file) if row["model"] == "BLOOM 176B (production run)")
    return {**bloom, **changes}


def write(path, given):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(given[0]))
        writer.writeheader()
        writer.writerows(given)
    return path


def test_a_table_comes_back_with_predictions(tmp_path, capsys):
    given = [rows(), rows(seq_len="", note=""), rows(global_batch=""), rows(hidden="many"), rows(chip="abacus")]
    source, target = write(tmp_path / "in.csv", given), tmp_path / "out.csv"
    assert main(["plan", "--table", str(source), "--out", str(target)]) == 1
    with target.open(newline="") as file:
        answered = list(csv.DictReader(file))
    assert [{name: row[name] for name in given[0]} for row in answered] == given  # nothing of the table is lost
    memories, times = ([row[name] for row in answered] for name in published_runs.PREDICTED)
    assert [bool(text) for text in memories] == [True, False, True, False, False]
    assert [bool(text) for text in times] == [True, False, False, False, False]
    assert float(times[0]) == pytest.approx(float(given[0]["step_time_s"]), rel=0.3)
    complaint = capsys.readouterr().err.strip().splitlines()
    assert complaint == ["course plan: row 5: column hidden holds 'many', which is not a number of at least 0."]
    assert main(["plan", "--table", str(write(source, given[:1])), "--out", str(target)]) == 0


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"zero_stage/fsdp": "ZeRO-3"}, ""),
        ({"zero_stage/fsdp": "stage 2"}, ""),
        ({"chip": "A100-SXM4-80GB"}, ""),
        ({"zero_stage/fsdp": "3 + CPU offload"}, "column zero_stage/fsdp holds '3 + CPU offload', which is no ZeRO"),
        ({"zero_stage/fsdp": "always"}, "column zero_stage/fsdp holds 'always'"),
        ({"recompute": "yes"}, "column recompute holds 'yes': say none, selective or full."),
        ({"precision": "int8"}, "column precision holds 'int8': say fp32, fp16, bf16 or fp8."),
        ({"n_chips": "16"}, "n_chips is 16, and dp, tp, pp and cp multiply to 384."),
        ({"global_batch": "2049"}, "global_batch is 2049, which 8 x microbatch, 16, does not divide."),
        ({"params_B": "70"}, "params_B is 70, and the dimensions make 150 billion parameters."),
        ({"tp": "5", "n_chips": "480"}, "tp is 5, which does not divide 112 heads."),
        ({"chip": "RTX 5090"}, "no chip is called 'RTX 5090'"),
        ({"chip": ""}, "it names no chip"),
        ({"model": "Qwen3-30B-A3B"}, "mixtures of experts are not planned"),
        ({"vocab": "", "seq_len": ""}, "it does not say vocab, seq_len"),
        ({"layers": "", "params_B": ""}, "it says neither layers nor params_B"),
        ({"global_batch": ""}, "a step's time needs a global_batch"),
    ],
    ids=str,
)
def test_a_row_without_an_answer_says_why(changes, why):
    (row, complaint), *_ = published_runs.fill([rows(**changes)], planner.fitted())
    assert row[published_runs.WHY_NOT].startswith(why) and bool(row[published_runs.WHY_NOT]) == bool(why)
    assert all(bool(row[name]) == (not why) for name in published_runs.PREDICTED[1:])
    assert complaint in (None, f"row 2: {row[published_runs.WHY_NOT]}")


def test_words_of_a_row_are_read_as_they_are_meant():
    def layout(**changes):
        return published_runs.read_run(rows(**changes)).layout

    assert [layout(**{"zero_stage/fsdp": text}).zero for text in ("ZeRO-3", "stage 2", "FSDP", "0", "")] == [
        3,
        2,
        3,
        0,
        0,
    ]
    assert [layout(precision=text).precision for text in ("fp32", "tf32", "bf16 compute, fp32 weights")] == [
        "float32",
        "float32",
        "mixed_bfloat16",
    ]
    two = {"dp": "192", "tp": "2", "pp": "1", "n_chips": "384", "global_batch": "1536", "cp_or_sp": ""}
    hopper = two | {"chip": "H100"}
    assert [layout(**row).split_norms for row in (two, hopper, hopper | {"cp_or_sp": "1"})] == [False, True, False]


def test_every_published_row_is_answered_or_left_empty(tmp_path):
    target = tmp_path / "out.csv"
    main(["plan", "--table", str(published_runs.PUBLISHED), "--out", str(target)])
    with target.open(newline="") as file:
        answered = list(csv.DictReader(file))
    assert len(answered) == 710
    assert [sum(bool(row[name]) for row in answered) > 400 for name in published_runs.PREDICTED] == [True, True]
    assert all(float(row[name]) > 0 for row in answered for name in published_runs.PREDICTED if row[name])


# The command, and mistakes.


def refused(capsys, *arguments) -> str:
    assert main(["plan", *arguments]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    return lines[0].removeprefix("course plan: ")


GIVEN = ("llama2-7b", "--chip", "h100-80gb", "--chips", "8", "--batch", "64")


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((), "name a model and its global batch"),
        (("llama2-7b", "--chip", "t4"), "name a model and its global batch"),
        (("--chip", "t4", "--batch", "8"), "name a model and its global batch"),
        (("resnet", "--chip", "t4", "--batch", "8"), "no model is called 'resnet': name one of gpt2-124m"),
        ((*GIVEN, "--micro-batch", "4"), "--micro-batch belongs to one layout, and this call searches them all"),
        (("llama2-7b", "--chip", "a10", "--batch", "8"), "no chip is called 'a10'; near ones are a10-24gb"),
        ((*GIVEN, "--data", "3"), "takes 3 chips and the cluster has 8: their product must be 8"),
        (
            (*GIVEN, "--data", "8", "--micro-batch", "5"),
            "64 does not divide into 8 replicas x micro-batches of 5: take a multiple of 40",
        ),
        ((*GIVEN, "--pipeline", "8", "--tensor", "0"), "Layout.tensor must be a whole number of at least 1, not 0"),
        (
            (
                "layers=2,hidden=64,heads=3,vocabulary=9,sequence_length=4",
                "--chip",
                "t4",
                "--chips",
                "2",
                "--tensor",
                "2",
                "--batch",
                "2",
            ),
            "2 tensor-parallel devices can't share 3 heads",
        ),
        (("layers=2,hidden=64", "--chip", "t4", "--batch", "2"), "also needs heads, vocabulary, sequence_length"),
        (("layers=2,width=64", "--chip", "t4", "--batch", "2"), "has no 'width'; it has layers"),
        (("layers=two", "--chip", "t4", "--batch", "2"), "layers must be a whole number, or true or false, not 'two'"),
        (
            ("llama2-7b", "--chip", "v100-32gb", "--chips", "8", "--batch", "8", "--precision", "mixed_bfloat16"),
            "v100-32gb has no matrix products in bfloat16; it has float32, float16",
        ),
        (
            ("llama2-7b", "--chip", "t4", "--chips", "0", "--batch", "8"),
            "--chips must be a whole number of at least 1, not 0",
        ),
        (
            (
                "llama2-7b",
                "--chip",
                "t4",
                "--chips",
                "64",
                "--batch",
                "8",
                "--pipeline",
                "64",
                "--precision",
                "mixed_float16",
            ),
            "32 layers can't fill 64 pipeline stages",
        ),
        (("--table", "missing.csv", "--out", "x.csv"), "missing.csv cannot be read"),
        (
            ("llama2-7b", "--batch", "8"),
            "a transformer by numbers is planned for a chip: add --chip, such as a100-40gb",
        ),
        (("--table", "missing.csv"), "both --table IN.csv and --out OUT.csv"),
        (("layers=2,hidden=64,hidden=8", "--chip", "t4", "--batch", "2"), "hidden is given twice, as 64 and as 8"),
        (
            ("llama2-7b", "--chip", "t4", "--batch", "9" * 20),
            "--batch must be a whole number between 1 and 1,000,000,000",
        ),
        ((*GIVEN, "--pipeline", "8", "--zero", "3"), "ZeRO-3 divides its states over replicas, and there is one"),
        (("llama2-7b", "--tflops", "100", "--batch", "8"), "a chip of your own also needs --memory-gib, --read-gbs."),
        ((*GIVEN, "--memory-gib", "-1"), "--memory-gib must be a number above 0"),
        ((*GIVEN, "--memory-gib", "inf"), "--memory-gib must be a number above 0"),
        ((*GIVEN, "--per-node", "2.5"), "--per-node must be a number above 0, and a whole one of chips"),
        ((*GIVEN, "--tokens", "nan"), "--tokens is a number above 0"),
        ((*GIVEN, "--tokens", "inf"), "--tokens is a number above 0"),
        ((*GIVEN, "--tokens", "0"), "--tokens is a number above 0"),
        ((*GIVEN, "--price", "2"), "--price is a number of at least 0, and counts for --tokens"),
    ],
)
def test_a_mistake_gets_one_line(capsys, arguments, words):
    assert words in refused(capsys, *arguments)


OWN = ("--tflops", "200", "--memory-gib", "64", "--read-gbs", "1000", "--link-within", "50", "--per-node", "4")


def test_a_chip_of_your_own_is_what_its_figures_say(capsys):
    """Twice the operations and half the traffic of a chip take half of each time; a link twice as fast half of its."""
    call = ("plan", "llama2-7b", "--chips", "4", "--batch", "4", "--tensor", "4", "--json")
    main([*call, *OWN])
    first = json.loads(capsys.readouterr().out)
    main([*call, *OWN, "--tflops", "400", "--read-gbs", "2000", "--link-within", "100"])
    second = json.loads(capsys.readouterr().out)
    assert first["chip"] == "your chip" and first["memory_bytes"] == second["memory_bytes"]
    for kind in ("compute", "memory"):
        assert second["step_seconds"][kind] == pytest.approx(first["step_seconds"][kind] / 2)
    assert second["step_seconds"]["tensor"] < first["step_seconds"]["tensor"]
    assert main(["plan", "llama2-7b", "--batch", "1", *OWN[:3], "200", *OWN[4:]]) == 0  # 200 GiB: it fits
    assert "of 200 GiB" in capsys.readouterr().out


def test_an_option_changes_one_figure_of_a_known_chip(capsys):
    main(["plan", *GIVEN, "--data", "8", "--zero", "3", "--memory-gib", "300"])
    assert "of 300 GiB" in capsys.readouterr().out


def test_hours_and_cost_of_a_training(capsys):
    """64 examples of 4,096 tokens a step; 8 chips."""
    one = ("--data", "8", "--zero", "3", "--micro-batch", "1", "--tokens", "1e9", "--price", "0.5", "--json")
    main(["plan", *GIVEN, *one])
    answer = json.loads(capsys.readouterr().out)
    hours = 1e9 / (64 * 4096) * answer["step_seconds"]["total"] / 3600
    words = f"1e+09 tokens: {hours:,.3g} hours"
    assert answer["training"].startswith(words) and answer["training"].endswith(f"at 0.5 each {hours * 8 * 0.5:,.3g}")
    main(["plan", *GIVEN, *one[:7], "1"])
    assert "\n1 tokens: " in capsys.readouterr().out


def test_one_layout_waits_for_its_input_as_a_search_does(capsys):
    for layout, found in (
        (("--data", "8", "--zero", "3"), lambda answer: answer),
        ((), lambda answer: answer["ranked"][0]),
    ):
        main(["plan", *GIVEN, *layout, "--examples-per-second", "0.5", "--json"])
        assert found(json.loads(capsys.readouterr().out))["step_seconds"]["input"] > 100  # of the 128 s of 64 examples


def test_a_table_without_its_columns_is_refused(tmp_path, capsys):
    source = write(tmp_path / "in.csv", [{"model": "x", "layers": "3"}])
    line = refused(capsys, "--table", str(source), "--out", str(tmp_path / "out.csv"))
    assert f"{source} lacks the column(s) params_B, hidden" in line


def test_the_command_answers_a_program(capsys):
    assert main(["plan", *GIVEN, "--data", "8", "--zero", "3", "--recompute", "full", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["fits"] and answer["step_seconds"]["total"] == pytest.approx(
        sum(v for k, v in answer["step_seconds"].items() if k != "total")
    )
    assert main(["plan", *GIVEN, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["fit"] + answer["refused"] > 50 and answer["ranked"][0]["fits"]


def test_what_does_not_fit_exits_with_1(capsys):
    assert main(["plan", "gpt3-175b", "--chip", "a100-80gb", "--chips", "8", "--batch", "8"]) == 1
    assert "None of" in capsys.readouterr().out


def test_a_plan_is_drawn(tmp_path):
    picture = tmp_path / "plan.svg"
    assert main(["plan", *GIVEN, "--picture", str(picture)]) == 0
    drawn = picture.read_text()
    assert "memory of a device, GiB" in drawn and "micro-batch 1," in drawn  # of a layout's name


def test_a_model_by_numbers_needs_no_framework():
    code = "import json, sys; from course_lib.cli import main; "
    code += f"main(['plan', *{GIVEN!r}]); print(json.dumps(list(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert not {"tensorflow", "jax", "keras", "numpy"} & set(json.loads(ran.stdout.splitlines()[-1]))


def test_on_a_tpu_the_course_transformer_is_counted_as_the_compiler_does():
    model = planner.Transformer(4, 1024, 8, 8192, 512, tied=False, flash=False)
    layout = planner.Layout(data=8, micro_batch=8)
    tpu = planner.Cluster(planner.find_chip("tpu-v5e"), 8)
    assert planner.predict(model, tpu, layout, 64).memory == tpu_memory.compiled_memory(model, layout, 64)
    other = planner.Layout(data=4, pipeline=2, micro_batch=8)  # which compile_step has not
    counted = memory(model.chain(), other, 64, planner.fitted())
    assert planner.predict(model, tpu, other, 64).memory == replace(counted, framework=tpu_memory.RESERVED_BYTES)


def test_a_compiled_step_holds_adams_two_moments_for_each_parameter():
    layout = planner.Layout(data=4, micro_batch=2, precision="mixed_bfloat16")
    model = planner.Transformer(2, 64, 4, 500, 32, tied=False, flash=False)
    assert tpu_memory.compilable(model, layout) and not tpu_memory.compilable(Chain("own", ()), layout)
    kinds = tpu_memory.compiled_memory(model, layout, 8).kinds
    assert kinds["optimizer"] == 2 * kinds["weights"] > 0


def test_a_gpus_links_lie_in_their_order():
    """Bytes a second: its memory, its node's links, and the network, which is no slower than 25 gigabit/s."""
    for chip in planner.CHIPS.values():
        if chip.family != planner.rented_chips.TPU:
            assert chip.read_per_second > chip.within >= chip.between >= 25e9 / 8, chip.name


@pytest.mark.parametrize("degrees, wanted", [(("--data", "4", "--tensor", "2"), 16), (("--pipeline", "8"), 1)])
def test_a_micro_batch_is_a_replicas_share_or_one_example_in_a_pipeline(capsys, degrees, wanted):
    main(["plan", "llama2-7b", "--chip", "h100-80gb", "--chips", "8", "--batch", "64", *degrees, "--json"])
    assert json.loads(capsys.readouterr().out)["layout"]["micro_batch"] == wanted

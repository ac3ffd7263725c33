"""Adapters, frozen layers, experts, groups of ZeRO-3, offload, images and translation, against numbers by hand."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from test_plan_by_hand import A100, HAND, PLAIN

from course_lib import cli, planner
from course_lib.errors import CourseError
from course_lib.planner import layout_search
from course_lib.planner.blocks import Block, Chain
from course_lib.planner.memory import frozen_bytes, host_bytes, memory
from course_lib.planner.models_by_numbers import MODELS, read_model
from course_lib.planner.other_transformers import encoder_decoder, vision_transformer
from course_lib.planner.step_time import step_time
from course_lib.planner.transformer import inference_bytes

GIB = 2**30
SMALL = planner.Transformer(4, 64, 4, 100, 16, ffn=96, kv_heads=2, gated=True, tied=False)
EXACT = replace(planner.fitted(), fragmentation=1, framework_bytes=0)


def test_adapters_have_the_trained_parameters_of_peft():
    """Hugging Face's peft prints 39,976,960 for rank 16 beside all seven matrices of Llama 2's 32 layers."""
    assert replace(MODELS["llama2-7b"], lora=16).parameters == 39_976_960
    plain = planner.Transformer(2, 64, 4, 100, 16)  # six matrices: four of 64 x 64, 64 x 256, 256 x 64
    assert replace(plain, lora=2).parameters == 2 * 2 * (4 * 128 + 2 * 320)


@pytest.mark.parametrize("bits, size", [(16, 2), (8, 1), (4, (4 + 8 / 64 + 32 / (64 * 256)) / 8)])
def test_frozen_matrices_take_their_bits_and_all_else_two_bytes(bits, size):
    """QLoRA, section 3: 0.127 bits a number for the scales. Two tables and the norms are not quantised."""
    matrices = 64 * (64 + 32 + 32 + 64) + 3 * 64 * 96
    for model, layers in ((replace(SMALL, lora=2, frozen_bits=bits), 4), (replace(SMALL, frozen_layers=3), 3)):
        tables = 2 if model.lora else 1  # the output is trained where only layers are frozen
        each = size if model.lora else 2
        held = tables * 2 * 100 * 64 + layers * (each * matrices + 2 * 2 * 64)
        assert model.chain().frozen_bytes == pytest.approx(held)
    assert SMALL.chain().frozen_bytes == 0


def test_tensor_parallelism_divides_the_thin_matrix_at_the_divided_side():
    """Of a column-parallel pair the second, of a row-parallel pair the first; the others are on every device."""
    chain = replace(SMALL, lora=2, frozen_bits=8).chain()
    alone, half = (memory(chain, planner.Layout(tensor=t, precision="float32"), 1, EXACT) for t in (1, 2))
    divided = 4 * 2 * (64 + 32 + 32 + 96 + 96 + 64 + 96)  # q, k, v, gate, up; into o and down
    assert (alone.weights, alone.gradients) == pytest.approx(
        (4 * chain.parameters + chain.frozen_bytes, 4 * chain.parameters)
    )
    assert half.gradients == pytest.approx(4 * (chain.parameters - divided / 2))
    norms = 4 * 2 * 2 * 64
    assert half.weights == pytest.approx(half.gradients + norms + (chain.frozen_bytes - norms) / 2)


def test_of_frozen_layers_a_tensor_group_divides_no_trained_parameter():
    """A layer's matrices: 64 x 64 twice, 64 x 32 twice, 64 x 96 three times; the table 64 x 100."""
    blocks = replace(SMALL, frozen_layers=3).chain().blocks
    assert [block.split_parameters for block in blocks] == [0, 0, 0, 0, 2 * 4096 + 2 * 2048 + 3 * 6144, 6400]


def test_frozen_matrices_have_no_gradient_of_their_own_and_layers_below_no_backward_pass():
    """Arithmetic in products with weights: 3 where all is trained, 2 through frozen ones, 1 below the trained."""
    chip, layout = planner.Cluster(A100, 1), planner.Layout(precision="float32")
    blocks = {b: Chain("one", (Block("only", flops=100, score_flops=10, backward=b),)) for b in (2, 1, 0)}
    times = {b: step_time(chain, chip, layout, 1, HAND).compute for b, chain in blocks.items()}
    peak = A100.flops_per_second["float32"]
    for backward, passes in ((2, 3), (1, 3), (0, 1)):
        wanted = (100 * (1 + backward) / 0.5 + 10 * passes / 0.2) / peak
        assert times[backward] == pytest.approx(wanted)
        again = step_time(blocks[backward], chip, replace(layout, recompute="full"), 1, HAND).compute
        assert again - wanted == pytest.approx((100 / 0.5 + 10 / 0.2) / peak if backward else 0)
        assert blocks[backward].step_flops == 100 * (1 + backward) + 10 * passes
    kept = {b: Chain("one", (Block("only", kept=100, backward=b),)) for b in (2, 1, 0)}
    assert [memory(kept[b], layout, 1, EXACT).activations for b in kept] == [400, 400, 0]
    adapted = replace(SMALL, lora=2).chain().blocks[1]
    base, thin = SMALL.chain().blocks[1].flops, 2 * 16 * adapted.parameters
    assert adapted.operations == 20 + 7 * 4 and adapted.kept == SMALL.chain().blocks[1].kept + 7 * 2 * 16
    assert adapted.flops * (1 + adapted.backward) == pytest.approx(2 * base + 3 * thin)


def test_a_tied_table_is_frozen_or_trained_once():
    """Frozen layers leave the table to the output, which trains it; adapters freeze it, twice in a pipeline."""
    tied = replace(SMALL, tied=True)
    chain = replace(tied, frozen_layers=2).chain()
    assert [block.parameters for block in (chain.blocks[0], chain.blocks[-1])] == [6400, 0]
    assert chain.tied == 6400 and chain.blocks[0].frozen_bytes == 0
    adapted = replace(tied, lora=2).chain()
    assert adapted.blocks[-1].frozen_bytes == 0 and adapted.blocks[0].frozen_bytes == 2 * 6400
    parts = [memory(adapted, planner.Layout(pipeline=p, precision="float32"), 2, EXACT).weights for p in (1, 2)]
    layers = 4 * adapted.parameters + adapted.frozen_bytes - 2 * 6400
    assert parts == pytest.approx([layers + 2 * 6400, layers / 2 + 2 * 6400])
    halves = [frozen_bytes(adapted, stage, adapted.stages(2), planner.Layout(pipeline=2)) for stage in (0, 1)]
    assert halves == [adapted.frozen_bytes / 2 + 6400] * 2


def test_zero_3_divides_and_gathers_frozen_weights_too():
    chain = Chain("one", (Block("only", parameters=100, frozen_bytes=6000),))
    layout = planner.Layout(4, zero=3, precision="bfloat16_master")
    need = memory(chain, layout, 4, EXACT)
    assert need.weights == (200 + 6000) / 4 and need.temporaries == 2 * (200 + 6000)
    step = step_time(chain, planner.Cluster(A100, 4), layout, 4, PLAIN)
    # Parameters are gathered twice and their gradients scattered; frozen weights are gathered twice.
    assert step.data * A100.within == pytest.approx(3 / 4 * (3 * 200 + 2 * 6000))


def test_a_mixture_has_the_parameters_of_mixtral_and_the_arithmetic_of_two_experts():
    """46,702,792,704 as released, with a last norm; 12.9 billion of them a token uses (arXiv 2401.04088)."""
    mixtral = MODELS["mixtral-8x7b"]
    assert mixtral.parameters + 4096 == 46_702_792_704
    used = sum(block.flops for block in mixtral.chain().blocks) / (2 * 8192) + 4096 * 32000  # the embedding's rows
    assert used == pytest.approx(12.9e9, rel=0.002)
    one, both = SMALL.chain().blocks[1], replace(SMALL, experts=8, experts_per_token=2).chain().blocks[1]
    assert replace(SMALL, experts=8, frozen_layers=1).chain().blocks[1].expert_parameters == 0  # none is trained
    feed_forward = 3 * 64 * 96
    assert both.parameters - one.parameters == 7 * feed_forward + 64 * 8
    assert both.flops - one.flops == 2 * 16 * (feed_forward + 64 * 8)
    # Gate, up, their product and its activation of another expert; copies of two experts' tokens and results.
    assert both.kept_split - one.kept_split == 16 * (4 * 96 + 2 * 2 * 64)
    assert (both.dispatched, one.dispatched) == (2 * 16 * 64, 0)
    assert (both.operations, one.operations) == (28, 20)


@pytest.mark.parametrize("zero, share", [(0, (1, 1)), (1, (1, 8)), (3, (8, 8))])
def test_experts_are_dealt_out_among_replicas_and_zero_divides_the_rest(zero, share):
    """Eight replicas of which four share the experts, 800 of 1,000 parameters; float32 Adam keeps 4 + 4 + 8 bytes."""
    block = Block("only", parameters=1000, split_parameters=900, expert_parameters=800)
    layout = planner.Layout(8, zero=zero, expert=4, precision="float32")
    need = memory(Chain("one", (block,), experts=4), layout, 8, EXACT)
    weights, states = share
    parts = {1: 200 + 800 / 4, 8: 200 / 8 + 800 / 8}
    assert (need.weights, need.optimizer) == (4 * parts[weights], 8 * parts[states])
    if zero == 3:
        assert need.temporaries == 2 * 4 * (200 + 800 / 4)


def test_tokens_travel_to_their_experts_and_back():
    """Four devices keep a quarter; each way in the forward and in the backward pass, and again to recompute."""
    chain = Chain("one", (Block("only", dispatched=1000, inputs=1),), experts=8)
    for recompute, times in (("none", 4), ("full", 6)):
        layout = planner.Layout(4, micro_batch=2, expert=4, recompute=recompute)
        step = step_time(chain, planner.Cluster(A100, 4), layout, 8, PLAIN)
        assert step.tensor * A100.within == pytest.approx(times * 3 / 4 * 1000 * 2 * 2)
    layout = planner.Layout(16, expert=16)  # two nodes
    wide = step_time(replace(chain, experts=16), planner.Cluster(A100, 16), layout, 16, PLAIN)
    assert wide.tensor * A100.between == pytest.approx(4 * 15 / 16 * 1000 * 2)
    for split, share in ((False, 1), (True, 1 / 2)):  # of the tokens that a device of a tensor group sends
        layout = planner.Layout(4, tensor=2, expert=4, split_norms=split)
        step = step_time(chain, planner.Cluster(A100, 8), layout, 4, PLAIN)
        assert step.tensor * A100.within == pytest.approx(share * 4 * 3 / 4 * 1000 * 2)


def test_experts_gradients_are_summed_over_fewer_replicas():
    block = Block("only", parameters=1000, split_parameters=800, expert_parameters=800)
    chain, cluster = Chain("one", (block,), experts=4), planner.Cluster(A100, 8)
    for expert, wanted in ((1, 2 * 7 / 8 * 1000), (4, 2 * (7 / 8 * 200 + 1 / 2 * 800 / 4)), (8, 2 * 7 / 8 * 200)):
        layout = planner.Layout(8, expert=expert, precision="float32")
        step = step_time(replace(chain, experts=expert), cluster, layout, 8, PLAIN)
        assert step.data * A100.within == pytest.approx(4 * wanted)
    # Eight experts in each of two nodes: an expert's ring takes one card of each, and the ring of all others eight.
    layout, cluster = planner.Layout(16, expert=8, precision="float32"), planner.Cluster(A100, 16)
    step = step_time(replace(chain, experts=8), cluster, layout, 16, PLAIN)
    ring, others = 2 * 1 / 2 * 800 / 8 / A100.between, 2 * 15 / 16 * 200 / (8 * A100.between)
    assert step.data == pytest.approx(4 * (ring + others))


def test_groups_divide_the_states_and_sum_what_they_scattered():
    """Sixteen chips of two nodes, in groups of a node: gathers and scatters inside, one all-reduce of an eighth."""
    chain = Chain("one", (Block("only", parameters=1600),))
    whole, grouped = (planner.Layout(16, zero=3, shard=shard, precision="float32") for shard in (None, 8))
    assert [memory(chain, one, 16, EXACT).weights for one in (whole, grouped)] == [4 * 100, 4 * 200]
    step = step_time(chain, planner.Cluster(A100, 16), grouped, 16, PLAIN)
    inside, between = 3 * 7 / 8 * 1600, 2 * 1 / 2 * 200
    assert step.data == pytest.approx(4 * (inside / A100.within + between / A100.between))


def test_what_is_offloaded_lies_in_the_hosts_memory_and_has_to_travel():
    chain = Chain("two", (Block("a", parameters=1000, kept=500), Block("b", kept=300)))
    plain = planner.Layout(2, precision="bfloat16_master")  # 4 bytes of a master copy, 8 of Adam
    need = memory(chain, plain, 4, EXACT)
    optimizer, both = (replace(plain, offload=some) for some in (("optimizer",), ("optimizer", "activations")))
    assert memory(chain, optimizer, 4, EXACT) == replace(need, optimizer=0)
    assert host_bytes(chain, optimizer, 4) == need.optimizer == 12 * 1000
    # One block's are in use while another's travel: of 800 numbers, twice the larger 500 would be more.
    assert memory(chain, both, 4, EXACT).activations == need.activations == 800 * 2
    assert host_bytes(chain, both, 4) == 12 * 1000 + 800 * 2
    many = replace(chain, blocks=(Block("a", kept=500), Block("b", kept=500), Block("c", kept=500)))
    assert memory(many, both, 4, EXACT).activations == 2 * 500 * 2
    step = step_time(chain, planner.Cluster(A100, 2), optimizer, 4, PLAIN)
    moved = 1000 * (6 + 2) / A100.host + 2 * 2 * 1000 * (4 + 8 + 4) / 200e9  # two devices have one host
    assert step.host == pytest.approx(moved)
    alone = step_time(chain, planner.Cluster(A100, 2), plain, 4, PLAIN)
    assert alone.memory - step.memory == pytest.approx(2 * 1000 * 16 / A100.read_per_second)
    activations = step_time(chain, planner.Cluster(A100, 2), replace(plain, offload=("activations",)), 4, PLAIN)
    one = (alone.compute + alone.memory) / 2 - 1000 * 16 / A100.read_per_second  # a micro-batch's work
    assert activations.host == pytest.approx(2 * (2 * 800 * 2 / A100.host - one))


def test_a_window_bounds_scores_and_cache():
    wide, narrow = replace(SMALL, flash=False), replace(SMALL, flash=False, window=4)
    (whole, bounded) = (model.chain().blocks[1] for model in (wide, narrow))
    assert (bounded.score_flops, bounded.kept_scores) == (whole.score_flops / 4, whole.kept_scores / 4)
    assert replace(SMALL, window=99).chain() == SMALL.chain()
    cache = 2 * 2 * 4 * 64 / 2  # keys and values of half of the heads, 2 bytes, 4 layers, for each token
    assert [inference_bytes(model)[1] for model in (wide, narrow)] == [16 * cache, 4 * cache]


def test_heads_of_another_size_than_the_width_divided():
    """Qwen3-8B's 32 heads of 128 units fill its width; twice as wide, everything inside the attention doubles."""
    doubled, plain = replace(SMALL, head_size=32, flash=False), replace(SMALL, flash=False)
    assert replace(SMALL, head_size=16).chain() == SMALL.chain()
    (wide,), (own,) = ([model.chain().blocks[1]] for model in (doubled, plain))
    assert wide.parameters - own.parameters == 64 * 64 * 3  # half of the heads have keys and values
    assert wide.flops - own.flops == 2 * 16 * 64 * 64 * 3
    assert wide.kept_split - own.kept_split == 16 * 64 * 3
    assert (wide.score_flops, wide.keys) == (2 * own.score_flops, 2 * own.keys)
    assert (wide.kept_scores, wide.exchanged) == (own.kept_scores, own.exchanged)
    thin = 2 * 4 * ((64 + 128) * 2 + (64 + 64) * 2 + 3 * (64 + 96))
    assert replace(doubled, lora=2).parameters == thin
    assert inference_bytes(doubled)[1] == 2 * inference_bytes(plain)[1]


def test_inference_of_llama_2_in_one_line(capsys):
    """13.5 GB of weights, and half a MiB of keys and values a token (2 x 32 layers x 4,096 x 2 bytes)."""
    weights, cache = inference_bytes(MODELS["llama2-7b"])
    assert weights == 2 * 6_738_411_520 and cache == 4096 * 2**19
    four = inference_bytes(replace(MODELS["llama2-7b"], lora=1, frozen_bits=4))[0]
    tables = 2 * 32_000 * 4096  # keep 16 bits, as do the norms
    assert four == pytest.approx((6.738e9 - tables) * 4.127 / 8 + 2 * tables, rel=0.01)
    arguments = ["plan", "llama2-7b", "--chip", "a100-80gb", "--inference", "--batch"]
    room = int((80 * GIB - 1.6e9 - weights) // cache)
    assert cli.main([*arguments, str(room)]) == 0 and cli.main([*arguments, str(room + 1)]) == 1
    assert f"each sequence of 4,096 tokens; {room} sequences fit 1 x a100-80gb" in capsys.readouterr().out
    assert cli.main([*arguments, "1", "--json"]) == 0
    said = capsys.readouterr().out
    assert json.loads(said)["sequences"] == room and said.startswith("{\n  ")


def test_a_vision_transformer_has_the_parameters_of_vit_b_16():
    """86,567,656 as released, with a last norm of 2 x 768; 17.6 GFLOPs a forward pass, two for each product."""
    chain = vision_transformer(12, 768, 12, 224, 16, 1000)
    assert chain.parameters + 2 * 768 == 86_567_656
    assert chain.flops / 2 == pytest.approx(17.56e9, rel=0.005)
    assert chain.blocks[0].backward == 1 and chain.tied == 0
    patches, pixels = 14 * 14 * 768, 3 * 224 * 224
    assert (chain.blocks[0].flops, chain.blocks[0].kept, chain.blocks[0].inputs) == (2 * patches * 768, pixels, pixels)
    numbers = 197 * 768  # of the class's token alone are a head's products
    head = Block("output", 769_000, flops=2 * 768_000, kept=numbers, inputs=numbers, logits=1000)
    assert chain.blocks[-1] == head
    thin = vision_transformer(12, 768, 12, 224, 16, 1000, ffn=768)
    assert chain.parameters - thin.parameters == 12 * (2 * 768 + 1) * 3 * 768  # of 3,072 the first 768 are left
    not_whole = "classes must be a whole number between 1 and 100,000,000, not 0"
    for sizes, words in (((224, 15, 10), "patches of 15 pixels do not divide"), ((224, 16, 0), not_whole)):
        with pytest.raises(CourseError, match=words):
            vision_transformer(12, 768, 12, *sizes)


def test_an_encoder_and_decoder_by_hand():
    """T5-base: 222,903,552 parameters as released, without biases and with a table of relative positions."""
    assert encoder_decoder(12, 768, 12, 32128, 512, 12, 114).parameters == pytest.approx(222_903_552, rel=0.002)
    chain = encoder_decoder(2, 64, 4, 100, 16, 3, 8, ffn=96, gated=True)
    assert chain.name == "encoder and decoder"
    assert [block.name for block in chain.blocks] == ["embedding", *["layer"] * 2, *["decoder layer"] * 3, "output"]
    own, block = replace(SMALL, kv_heads=4, sequence_length=8).chain().blocks[1], chain.blocks[3]
    assert block.parameters - own.parameters == 4 * 64 * 64 + 64
    assert block.flops - own.flops == 2 * (8 * 2 + 16 * 2) * 64 * 64  # queries and result; keys and values
    assert block.score_flops - own.score_flops == 2 * 2 * 8 * 16 * 64
    assert block.split_parameters - own.split_parameters == 4 * 64 * 64
    assert block.kept_split - own.kept_split == 2 * 8 * 64 + 2 * 16 * 64
    assert block.kept - own.kept == 2 * 8 * 64 and block.inputs == 8 * 64 + 16 * 64
    assert block.exchanged - own.exchanged == 8 * 64 and block.operations > own.operations
    assert chain.blocks[-1].inputs == 8 * 64
    assert chain.blocks[-1].logits == 8 * 100 and chain.tied == 6400
    assert planner.predict(chain, planner.Cluster(A100, 2), planner.Layout(pipeline=2), 2).fits


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("llama2-7b,lora=16, frozen_bits=4", replace(MODELS["llama2-7b"], lora=16, frozen_bits=4)),
        ("layers=12,hidden=768,heads=12,image=224,patch=16,classes=10", vision_transformer(12, 768, 12, 224, 16, 10)),
        (
            "layers=2,hidden=64,heads=4,vocabulary=100,sequence_length=16,decoder_layers=3,target_length=8",
            encoder_decoder(2, 64, 4, 100, 16, 3, 8),
        ),
    ],
)
def test_a_model_in_words(text, wanted):
    assert read_model(text) == wanted
    assert read_model(text, "sgd") == replace(wanted, slots=0)


def test_a_published_configuration_in_words(tmp_path, capsys):
    """Numbers after the file change it, and its length is the file's own where none is given."""
    llama = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32}
    llama |= {"intermediate_size": 11008, "vocab_size": 32000, "max_position_embeddings": 4096}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(llama))
    assert read_model(str(path)) == MODELS["llama2-7b"]
    short = replace(MODELS["llama2-7b"], sequence_length=512, lora=8)
    assert read_model(f"{path},sequence_length=512,lora=8") == short
    assert cli.main(["plan", str(path), "--chip", "h200-141gb", "--batch", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == 6_738_411_520
    assert cli.main(["plan", str(tmp_path / "none.json"), "--chip", "a100-80gb", "--batch", "1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "text, words",
    [
        ("llama2-7b,rank=4", "a transformer has no 'rank'"),
        ("llama2-7b,image=4", "a transformer has no 'image'"),
        ("layers=2,hidden=8,heads=2,image=8", "a transformer by numbers also needs patch, classes"),
        ("layers=2,hidden=8,heads=2,image=8,patch=4,classes=2,lora=2", "vision-transformer has no 'lora'"),
        ("llama2-7b,lora=4,frozen_layers=2", "2 frozen layers of 32, and adapters of rank 4"),
        ("llama2-7b,frozen_bits=4", "nothing is frozen in 4 bits"),
        ("llama2-7b,frozen_layers=33", "33 frozen layers of 32"),
        ("llama2-7b,lora=4,frozen_bits=5", "frozen_bits must be 16, 8 or 4, not 5"),
        ("mixtral-8x7b,lora=4", "no adapters for mixtures of experts"),
        ("mixtral-8x7b,experts_per_token=9", "9 experts per token are more than the 8 of a layer"),
        ("llama2-7b,window=0", "Transformer.window must be a whole number between 1"),
    ],
)
def test_numbers_that_make_no_model(text, words):
    with pytest.raises(CourseError, match=words):
        read_model(text)


ONE = ("plan", "llama2-7b", "--chip", "a100-80gb", "--chips", "8", "--batch", "8")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("--data", "8", "--zero", "3", "--shard", "3"), "8 replicas can't be cut into groups of 3"),
        (("--data", "8", "--zero", "1", "--shard", "4"), "groups of 4 replicas divide their states by ZeRO-3"),
        (("--data", "8", "--shard", "0"), "Layout.shard must be a whole number of at least 1"),
        (("--data", "8", "--expert", "2"), "2 devices can't share a layer's 1 experts"),
        (("--data", "2", "--pipeline", "4", "--interleave", "2", "--micro-batch", "2"), "2 micro-batches can't be"),
        (("--shard", "4"), "--shard belongs to one layout"),
        (("--offload", "optimizer"), "--offload belongs to one layout"),
        (("--inference", "--tensor", "2"), "--tensor belongs to a training step, and --inference asks for none"),
        (("--inference", "--zero", "3"), "--zero belongs to a training step"),
        (("--inference", "--picture", "x.svg"), "--picture belongs to a training step"),
        (("--inference", "--optimizer", "lion"), "--optimizer belongs to a training step"),
    ],
)
def test_layouts_that_cannot_be(capsys, arguments, words):
    assert cli.main([*ONE, *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_no_link_to_a_host_is_known_of_a_tpu(capsys):
    tpu = ("plan", "llama2-7b", "--chip", "tpu-v5e", "--chips", "8", "--batch", "8", "--data", "8")
    assert cli.main([*tpu, "--offload", "optimizer"]) == 2
    assert "knows no link from tpu-v5e to its host" in capsys.readouterr().err


def test_what_the_published_runs_were_read_without_is_said():
    notes = {
        "another optimizer than Adam": (replace(MODELS["gpt2-124m"], slots=1), {}),
        "frozen weights": (replace(MODELS["gpt2-124m"], lora=8), {}),
        "experts": (MODELS["mixtral-8x7b"], {"expert": 2}),
        "groups that divide the states": (MODELS["gpt2-124m"], {"zero": 3, "shard": 2}),
        "offload": (MODELS["gpt2-124m"], {"offload": ("optimizer",)}),
    }
    for words, (model, options) in notes.items():
        found = planner.predict(model, planner.Cluster(A100, 4), planner.Layout(4, **options), 4)
        assert (
            found.note
            == f"The published runs behind the interval were read without {words}: it may be too narrow here."
        )
    cluster = planner.Cluster(planner.find_chip("l40s-48gb"), 1)
    line = "The published runs behind the interval were read without the chip l40s-48gb: it may be too narrow"
    found = planner.search(MODELS["gpt2-124m"], cluster, 4)
    assert planner.predict(MODELS["gpt2-124m"], cluster, planner.Layout(), 4).note == found.note == f"{line} here."
    assert repr(found).endswith(f"\n{found.note}") and found._repr_html_().endswith(f"<p>{found.note}</p>")
    few = Chain("with moving averages", (Block("only", parameters=10_000, frozen_bytes=400),))
    for model in (MODELS["gpt2-124m"], few):
        assert planner.predict(model, planner.Cluster(A100, 1), planner.Layout(), 1).note == ""


def test_a_search_cuts_stages_into_chunks_and_deals_out_experts():
    """Eight layers over two or four stages: chunks of 2 or 4 layers, with whole rounds of micro-batches."""
    mixture = planner.Transformer(8, 64, 4, 100, 16, experts=4, experts_per_token=2)
    tried = list(layout_search.layouts(mixture.chain(), planner.Cluster(A100, 8), 8, "float32"))
    assert len(set(tried)) == len(tried)
    chunks = {(one.pipeline, one.interleave) for one in tried}
    assert chunks == {(1, 1), (2, 1), (2, 2), (2, 4), (4, 1), (4, 2), (8, 1)}
    assert {(one.data, one.expert) for one in tried} == {(1, 1), (2, 1), (2, 2), (4, 1), (4, 4), (8, 1), (8, 4)}
    assert all(one.micro_batches(8) % one.pipeline == 0 for one in tried if one.interleave > 1)
    # Two stages of four replicas: micro-batches of 1 alone make whole rounds, and of 2 or 4 examples do not.
    some = Counter((one.micro_batch, one.interleave) for one in tried if (one.data, one.pipeline) == (4, 2))
    assert some == {(1, 1): 8, (1, 2): 8, (1, 4): 8, (2, 1): 8}
    for one in tried:
        planner.predict(mixture, planner.Cluster(A100, 8), one, 8)


@pytest.mark.parametrize("shape, chip", [((80, 8192, 64, 22016), "l40s-48gb"), ((60, 6656, 52, 17920), "rtx4090-24gb")])
def test_quantised_adapters_fit_the_cards_that_qlora_trained_on(shape, chip):
    """Its abstract: 65 billion parameters on one 48 GB GPU; section 1: 33 billion on 24 GB. Rank 64, 8-bit states."""
    layers, hidden, heads, ffn = shape
    model = planner.Transformer(layers, hidden, heads, 32_000, 512, ffn, gated=True, tied=False, slots=2 / 4, lora=64)
    cluster, layout = planner.Cluster(planner.find_chip(chip), 1), planner.Layout(recompute="full")
    found = {bits: planner.predict(replace(model, frozen_bits=bits), cluster, layout, 1) for bits in (4, 8, 16)}
    assert [found[bits].fits for bits in (4, 8, 16)] == [True, False, False]

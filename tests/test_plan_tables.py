"""The planner's tables against their sources' own units, and its reading of published runs by hand; no framework."""

import argparse
import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from test_plan_by_hand import A100, GIB, HAND

from course_lib import planner
from course_lib.cli import main
from course_lib.errors import CourseError
from course_lib.planner import calibrate, layout_search, measured_machine, plan_command, published_runs
from course_lib.planner.blocks import Block, Chain
from course_lib.planner.calibration import FITTED
from course_lib.planner.layout import PRECISIONS
from course_lib.planner.memory import Memory
from course_lib.planner.models_by_numbers import MODELS, SLOTS, read_model
from course_lib.planner.plan_command import _figures
from course_lib.planner.published_runs import PublishedRun
from course_lib.planner.rented_chips import OWN
from course_lib.planner.step_time import StepTime
from course_lib.tpu import compile_command


@pytest.mark.parametrize(
    "name, parameters, final_norm, head_width, context",  # the released checkpoints'; GPT-2's positions left out
    [
        ("gpt2-124m", 124_439_808 - 1024 * 768, 2 * 768, 64, 1024),
        # Narayanan and others (2021), arXiv 2104.04473, equation 2, without its positions.
        ("gpt3-175b", 12 * 96 * 12288**2 + 13 * 96 * 12288 + 50257 * 12288, 0, 128, 2048),
        ("llama2-7b", 6_738_415_616, 4096, 128, 4096),
        ("llama2-70b", 68_976_648_192, 8192, 128, 4096),
        ("llama3-8b", 8_030_261_248, 4096, 128, 8192),
        ("llama3-405b", 405_853_388_800, 16384, 128, 8192),
    ],
)
def test_a_models_numbers_make_the_published_count(name, parameters, final_norm, head_width, context):
    """To the last parameter: the planner leaves out the norm before the output alone."""
    model = MODELS[name]
    assert model.parameters == parameters - final_norm
    assert (model.hidden / model.heads, model.sequence_length) == (head_width, context)


# Written a second time in the units of data sheets, so that a wrong factor shows; the sheets were not read for it.
# Of one chip: TFLOPS in half precision, those in float8 and TF32 (float32 on V100 and T4)
# over it; GB of memory as sold; GB/s of memory; GB/s of its links in a node in both directions, gigabit/s to others.
SHEETS = {
    "v100-16gb": (125, 0, 15.7 / 125, 16, 900, 300, 100),
    "v100-32gb": (125, 0, 15.7 / 125, 32, 900, 300, 100),
    "t4": (65, 0, 8.1 / 65, 16, 320, 32, 50),
    "l4": (121, 2, 60 / 121, 24, 300, 64, 100),
    "a10-24gb": (125, 0, 1 / 2, 24, 600, 64, 100),
    "a100-40gb": (624 / 2, 0, 1 / 2, 40, 1555, 600, 200),  # 624 with sparsity
    "a100-80gb": (624 / 2, 0, 1 / 2, 80, 2039, 600, 200),
    "h100-80gb": (989, 1979 / 989, 1 / 2, 80, 3350, 900, 400),
    "h200-141gb": (989, 1979 / 989, 1 / 2, 141, 4800, 900, 400),
    "h100-96gb": (989, 1979 / 989, 1 / 2, 96, 4000, 900, 400),
    "b200-180gb": (36_000 / 2 / 8, 2, 1 / 2, 180, 8000, 1800, 400),  # a system of 8, with sparsity
    "gb200-186gb": (360_000 / 2 / 72, 2, 1 / 2, 186, 8000, 1800, 400),  # a rack of 72
    "l40s-48gb": (362, 733 / 362, 183 / 362, 48, 864, 64, 200),
    "mi300x-192gb": (1307.4, 2614.9 / 1307.4, 163.4 / 1307.4, 192, 5325, 7 * 128, 400),  # seven links
    "rtx3090-24gb": (71, 0, 35.6 / 71, 24, 936, 32, 25.6),
    "rtx4090-24gb": (165.2, 0, 1 / 2, 24, 1008, 32, 25.6),
}
NODES = {"t4": 4, "gb200-186gb": 72, "rtx3090-24gb": 4, "rtx4090-24gb": 4}


@pytest.mark.parametrize("name", SHEETS)
def test_a_gpus_figures_are_right_in_a_data_sheets_units(name):
    half, float8, float32, sold, read, within, between = SHEETS[name]
    chip = planner.CHIPS[name]
    rates = {"float32": float32 * half, "float16": half, "float8": float8 * half}
    rates |= {} if chip.family == "volta" else {"bfloat16": half}
    wanted = {kind: rate * 1e12 for kind, rate in rates.items() if rate}
    assert chip.flops_per_second == pytest.approx(wanted, rel=1e-6)
    links = chip.read_per_second, chip.within, chip.between, chip.per_node
    assert links == pytest.approx((read * 1e9, within / 2 * 1e9, between / 8 * 1e9, NODES.get(name, 8)))
    # The maker's tool shows GiB, of which error correction takes a part.
    assert 0.92 * sold < chip.memory_bytes / GIB <= sold
    maker = "nvidia.com/en-us/" + ("geforce/" if name.startswith("rtx") else "data-center/")
    maker = "amd.com/en/" if name.startswith("mi") else maker
    assert chip.name == name and chip.source.startswith(f"https://www.{maker}")
    # To the host three quarters of PCIe 3, 4 or 5, 16 lanes; or of NVLink to a Grace processor.
    paper = 900 / 2 if name in ("h100-96gb", "gb200-186gb") else {"volta": 16, "ampere": 32, "hopper": 64}[chip.family]
    assert chip.host == int(3 / 4 * paper) * 1e9


def test_a_tpus_figures_are_those_of_its_page():
    """The page's TFLOPS, GiB, GB/s, and gigabit/s in both directions over all links; the largest slice."""
    for name, figures in {
        "tpu-v4": (275, 32, 1200, 4800, 4096),
        "tpu-v5e": (197, 16, 819, 3200, 256),
        "tpu-v5p": (459, 95, 2765, 9600, 4096),
        "tpu-v6e": (918, 32, 1600, 6400, 256),
        "tpu7x": (2307, 192, 7380, 9600, 4096),
    }.items():
        half, memory, read, both_ways, largest = figures
        chip, sent = planner.CHIPS[name], both_ways / 8 / 2 * 1e9
        assert (chip.family, chip.flops_per_second, chip.memory_bytes) == (
            "tpu",
            {"bfloat16": half * 1e12},
            memory * GIB,
        )
        assert (chip.read_per_second, chip.within, chip.between, chip.per_node) == (read * 1e9, sent, sent, largest)
        assert chip.source.endswith(name.removeprefix("tpu-"))


def test_a_stack_says_its_format_and_what_it_keeps():
    """Half precision's weights have a float32 master copy beside them; float32 weights need none."""
    for name, one in PRECISIONS.items():
        policy = name == "float32" or name.startswith("mixed")
        assert one.format == name.removeprefix("mixed_").partition("_")[0]
        assert one.compute == (4 if name == "float32" else 2) and one.compiled is policy
        whole = policy or name.endswith("fsdp")
        assert (one.weights, one.master) == ((4, 0) if whole else (2, 8 if name == "float16_master" else 4))
    gradients = {"float16_master": 2, "bfloat16_deepspeed": 2, "bfloat16_master": 6, "float8_master": 6}
    assert all(one.gradients == gradients.get(name, 4) for name, one in PRECISIONS.items())


def test_each_optimizers_numbers_per_parameter():
    bytes_each = {"adam": 8, "adamw": 8, "adam8bit": 2, "lion": 4, "lion8bit": 1, "momentum": 4, "rmsprop": 4}
    assert {name: 4 * slots for name, slots in SLOTS.items()} == bytes_each | {"adafactor": 0, "sgd": 0}


def test_constants_that_no_run_was_fitted_for():
    assert HAND.launch_compiled == 5e-6
    assert (HAND.memory_low, HAND.memory_high, HAND.time_low, HAND.time_high) == (1, 1, 1, 1)


def test_a_predictions_intervals_are_the_fits():
    fitted, chain = planner.fitted(), Chain("by hand", (Block("only", parameters=1000, flops=1e12),))
    found = planner.predict(chain, planner.Cluster(A100, 1), planner.Layout(), 1)
    memory, step = found.memory.total, found.step.total
    assert found.memory_interval == pytest.approx((memory * fitted.memory_low, memory * fitted.memory_high))
    assert found.step_interval == pytest.approx((step * fitted.time_low, step * fitted.time_high))


@pytest.mark.parametrize(
    "layout", [{"interleave": 2}, {"pipeline": 2, "interleave": 3}, {"pipeline": 2, "interleave": 4}]
)
def test_chunks_that_layers_do_not_make_are_refused(layout):
    model, layout = planner.Transformer(4, 64, 4, 100, 16), planner.Layout(**layout)
    with pytest.raises(CourseError, match="4 layers can't be cut into . chunks for each of . pipeline stages"):
        planner.predict(model, planner.Cluster(A100, layout.chips), layout, 8)
    fine = planner.Layout(pipeline=2, interleave=2)
    assert planner.predict(model, planner.Cluster(A100, 2), fine, 8).step.bubble > 0


def test_a_search_waits_for_its_input():
    """Eight examples at four a second take two seconds, and the work next to nothing."""
    model = planner.Transformer(2, 64, 4, 100, 16)
    found = planner.search(model, planner.Cluster(A100, 2), 8, examples_per_second=4)
    assert all(one.step.total == pytest.approx(2) for one in found.ranked)


def test_the_figures_of_a_chip_of_your_own_by_hand():
    given = {"tflops": 200, "memory_gib": 64, "read_gbs": 900, "link_within": 50, "link_between": 25, "per_node": 4.0}
    assert _figures(given) == {
        "flops_per_second": {"bfloat16": 2e14, "float16": 2e14, "float32": 1e14},
        "memory_bytes": 64 * GIB,
        "read_per_second": 9e11,
        "within": 5e10,
        "between": 2.5e10,
        "per_node": 4,
    }
    assert _figures({"read_gbs": 1}) == {"read_per_second": 1e9}


def test_a_chip_of_your_own_begins_with_common_links():
    """PCIe 4 in a node of eight; 100 gigabit/s to others."""
    assert (OWN.per_node, OWN.within, OWN.between, OWN.family) == (8, 25e9, 100e9 / 8, "ampere")


def test_a_layout_left_alone_is_one_device():
    degrees = dict.fromkeys(("data", "tensor", "pipeline", "sequence", "micro_batch", "interleave"), 1)
    degrees |= {"expert": 1, "shard": None}
    words = {"recompute": "none", "zero": 0, "precision": "mixed_bfloat16", "offload": ()}
    options = dict.fromkeys(("split_norms", "keep_gathered", "chunked_loss"), False)
    assert vars(planner.Layout()) == degrees | words | options


def test_a_transformer_in_words():
    sizes = "layers=2, hidden=64 ,heads=4,vocabulary=100,sequence_length=16"
    wanted = planner.Transformer(2, 64, 4, 100, 16, kv_heads=2, gated=True, tied=False)
    assert read_model(f"{sizes},kv_heads=2,gated=True,tied=false") == wanted


@pytest.mark.parametrize("command", [plan_command, compile_command])
def test_every_argument_has_its_help(command):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert [action.dest for action in parser._actions if not action.help] == []


def test_no_layout_divides_the_batch():
    with pytest.raises(CourseError, match="no layout on 4 chips divides a global batch of 3: take a multiple of 4"):
        planner.search(Chain("one block", (Block("only", 8, flops=8),)), planner.Cluster(A100, 4), 3)


def test_a_measured_machine_is_asked_for_its_own_figures(monkeypatch):
    """Memory on a CPU and time everywhere are the machine's; on a GPU the formulas count the memory."""
    asked, chain = [], Chain("by hand", (Block("only", 1000, flops=8),))
    answers = {"memory": Memory(100, 0, 0, 0, 0), "step_time": StepTime(2.0)}
    for name, answer in answers.items():
        monkeypatch.setattr(measured_machine, name, lambda *given, answer=answer: asked.append(given) or answer)
    chip, layout = replace(A100, family="measured"), planner.Layout(data=2, precision="float32")
    for shared in (True, False):
        here = measured_machine.MeasuredMachine(chip, 2, shared)
        found = planner.predict(chain, here, layout, 8)
        assert asked == [(chain, here, layout, 8)] * (2 if shared else 1)
        assert (found.step.total, found.step_interval) == (2, pytest.approx((0.8 * 2, 1.2 * 2)))
        assert (found.memory.total == 100) is shared
        assert (found.memory_interval == pytest.approx((0.85 * 100, 1.15 * 100))) is shared
        asked.clear()
    tried = layout_search.layouts(chain, here, 8, "float32")
    assert {(one.precision, one.data) for one in tried} == {("float32", 2)}


@pytest.mark.parametrize("chip, split", [("h100-80gb", True), ("tpu-v5e", False)])
def test_one_layout_divides_the_norms_as_a_search_does(capsys, chip, split):
    main(["plan", "llama2-7b", "--chip", chip, "--chips", "8", "--batch", "8", "--tensor", "8", "--json"])
    assert json.loads(capsys.readouterr().out)["layout"]["split_norms"] is split


# Published runs.


def bloom(**changes) -> dict[str, str]:
    """BLOOM's row: 70 layers of 14,336 on 384 A100s, 8 replicas of 4 x 12; a micro-batch of 2."""
    given = published_runs.read_table(published_runs.PUBLISHED)
    return {**next(one for one in given if one["model"] == "BLOOM 176B (production run)"), **changes}


@pytest.mark.parametrize(
    "text, name",
    [("A100", "a100-80gb"), ("V100", "v100-32gb"), ("H100 (Eos)", "h100-80gb"), ("a100-SXM4-40GB", "a100-40gb")]
    + [("RTX 4090", "rtx4090-24gb"), ("TPU_v5e", "tpu-v5e"), ("H200", "h200-141gb"), ("A100-80GB PCIe", "a100-80gb")],
)
def test_a_published_runs_chip_as_people_write_it(text, name):
    assert published_runs._chip(text).name == name


H100 = {"chip": "H100-SXM5-80GB"}
OTHER = {"source": "a lab", "note": ""}


@pytest.mark.parametrize(
    "changes, wanted",
    [
        ({}, {"data": 8, "tensor": 4, "pipeline": 12, "sequence": 1, "micro_batch": 2, "interleave": 1}),
        ({"dp": ""}, {"data": 8}),
        ({"note": "interleaving 2"}, {"interleave": 2}),
        ({"note": "VP 3"}, {"interleave": 3}),
        ({"note": "VP 3", "pp": "1", "dp": ""}, {"interleave": 1, "data": 96}),
        ({"cp_or_sp": "CP2", "dp": ""}, {"sequence": 2, "data": 4, "split_norms": False}),
        ({"cp_or_sp": "SP"}, {"split_norms": True, "keep_gathered": False}),
        ({"cp_or_sp": "SP reduce_scatter"}, {"split_norms": True, "keep_gathered": True}),
        (H100, {"split_norms": False}),
        (H100 | {"cp_or_sp": ""}, {"split_norms": True}),
        (H100 | {"cp_or_sp": "", "tp": "1", "dp": ""}, {"split_norms": False, "data": 32}),
        ({"seq_len": "16384"}, {"chunked_loss": True}),
        ({"seq_len": "16383"}, {"chunked_loss": False}),
        ({"seq_len": "32768", "cp_or_sp": "cp4", "dp": ""}, {"chunked_loss": False, "sequence": 4}),
        ({"recompute": "custom"}, {"recompute": "selective"}),
        ({"recompute": "no"}, {"recompute": "none"}),
        (H100 | {"precision": "fp8"}, {"precision": "float8_megatron"}),
        (H100 | {"precision": "fp8 amp"}, {"precision": "float8_fsdp"}),
        ({"precision": "fp8"}, {"precision": "bfloat16_master"}),  # an A100 has none
        ({"precision": "fp16"}, {"precision": "float16_master"}),
        ({"precision": "fp16 and bf16"}, {"precision": "bfloat16_master"}),
        ({"precision": "amp bf16"}, {"precision": "bfloat16_fsdp"}),
        ({"precision": "bf16", "chip": "V100"}, {"precision": "float16_master"}),
        ({"precision": "bf16", **OTHER}, {"precision": "bfloat16_deepspeed"}),
        ({"precision": "bf16, fp32 grads", **OTHER}, {"precision": "bfloat16_master"}),
        ({"precision": "bf16", **OTHER, "note": "NeMo 24"}, {"precision": "bfloat16_megatron"}),
        ({"precision": "bf16", **OTHER, "note": "nanotron"}, {"precision": "bfloat16_master"}),
        ({"precision": "bf16", "chip": "TPU v5e", **OTHER}, {"precision": "mixed_bfloat16"}),
    ],
    ids=str,
)
def test_a_published_runs_layout_by_hand(changes, wanted):
    found = vars(published_runs.read_run(bloom(**changes)).layout)
    assert {name: found[name] for name in wanted} == wanted


LLAMA3_8B = {"params_B": "8.03", "layers": "32", "hidden": "4096", "heads": "32", "ffn": "14336", "vocab": "128256"}


@pytest.mark.parametrize(
    "changes, wanted",
    [
        ({}, {"layers": 70, "heads": 112, "ffn": 57344, "gated": False, "tied": True, "flash": False, "dropout": True}),
        ({"layers": ""}, {"layers": 70}),  # (176e9 - 250,880 x 14,336) / (12 x 14,336^2) is 69.9
        ({"heads": "", "ffn": ""}, {"heads": 112, "ffn": 57344}),  # 128 units a head; four times the width
        ({"hidden": "100", "heads": "", "params_B": "", "ffn": ""}, {"heads": 1, "ffn": 400}),
        (LLAMA3_8B, {"gated": True, "tied": False, "kv_heads": 8, "flash": True, "dropout": False}),
        (LLAMA3_8B | {"params_B": ""}, {"gated": False, "tied": True, "kv_heads": 32}),
        ({"zero_stage/fsdp": "fsdp"}, {"flash": True, "dropout": False}),
        (H100, {"flash": True}),
        ({"chip": "V100"}, {"flash": False}),
    ],
    ids=str,
)
def test_a_published_runs_model_by_hand(changes, wanted):
    found = vars(published_runs.read_run(bloom(**changes)).model)
    assert {name: found[name] for name in wanted} == wanted


def test_a_published_runs_batch_and_memory_by_hand():
    runs = [published_runs.read_run(bloom(**one)) for one in ({}, {"global_batch": ""}, {"global_batch": "40"})]
    # Without one, a micro-batch of each replica for each stage; what 8 x 2 does not divide is rounded.
    assert [run.global_batch for run in runs] == [2048, 8 * 2 * 12, 32]
    assert runs[0].allocated and not published_runs.read_run(bloom(note="by nvidia-smi")).allocated
    for changes in ({"hidden": ""}, {"tp": "", "dp": "4"}, {"microbatch": "1.5"}, {"params_B": "1", "layers": ""}):
        assert published_runs.read_run(bloom(**changes)) is None


# The fit.


@pytest.mark.parametrize("recompute, factor", [("none", 6), ("selective", 6), ("full", 8)])
def test_a_time_without_a_planner_by_hand(recompute, factor):
    """12 x 8^2 + 13 x 8 + 10 x 8 parameters, 6 examples of 4 tokens; at 40% of the peak of two chips."""
    model, layout = planner.Transformer(1, 8, 1, 10, 4), planner.Layout(2, recompute=recompute)
    for chip, peak in (("a100-80gb", 312e12), ("v100-32gb", 125e12)):
        run = PublishedRun(model, planner.Cluster(planner.find_chip(chip), 2), layout, 6, True)
        assert calibrate.plain_seconds(run) == pytest.approx(factor * 952 * 24 / (2 * peak * 0.4))


@pytest.mark.parametrize("zero, size", [(0, 16), (1, 12 / 4 + 4), (2, 12 / 4 + 2 / 4 + 2), (3, 16 / 4)])
def test_a_memory_without_a_planner_by_hand(zero, size):
    layout = planner.Layout(4, 2, 3, zero=zero)
    run = PublishedRun(planner.Transformer(1, 8, 1, 10, 4), planner.Cluster(A100, 24), layout, 4, True)
    assert calibrate.plain_gib(run) == pytest.approx(952 * size / 6 / GIB)


def test_the_samples_of_a_table_by_hand():
    """What cannot be read or predicted is left out, and so is what the fit must not take for measured."""
    given = [bloom(hidden="many"), bloom(chip=""), bloom(source="s", mem_GiB="40"), bloom(heads="")]
    given += [bloom(mem_GiB="41", note="NOT a measurement"), bloom(mem_GiB="42", layers=""), bloom(step_time_s="")]
    found = calibrate.samples(given)
    assert [(one.source, one.measured, one.run.layout.tensor) for one in found["memory"]] == [("s", 40, 4)]
    assert [(one.measured, one.run.layout.pipeline) for one in found["time"]] == [(105.22, 12)] * 2
    stored = json.loads(FITTED.read_text())["left_out"]
    assert {kind: len(of_kind) for kind, of_kind in calibrate.published().items()} == {
        kind: of_kind["all"][0] for kind, of_kind in stored.items()
    }


def test_some_published_runs_took_up_to_2_7_times_as_long_as_planned():
    """As lesson 10b says: the fit is no bound."""
    predicted, fit = calibrate.PREDICTED["time"], planner.fitted()
    ratios = [one.measured / predicted(one.run, fit) for one in calibrate.published()["time"]]
    assert round(max(ratios), 1) == 2.7


def test_no_source_gives_the_fit_more_than_sixty_rows():
    many, few = (
        [calibrate.Sample(name, None, n) for n in range(count)] for name, count in (("many", 130), ("few", 60))
    )
    thin = calibrate._thinned([*many, *few])
    assert [one.measured for one in thin if one.source == "many"] == [*range(0, 130, 3)]
    assert [one.measured for one in thin if one.source == "few"] == [*range(60)]


def test_an_interval_by_hand():
    """Ten runs of one source stand in the middle of their tenths: a tenth of the way is between the first two."""
    assert calibrate.interval({"only": [*range(1, 11)]}) == pytest.approx((1.5, 9.5))
    # A half of the weight each: 1 and 2 stand at an eighth and three eighths, 3 at three quarters.
    assert calibrate.interval({"a": [2, 1], "b": [3]}) == pytest.approx((1, 3))


def test_each_source_is_predicted_without_itself(monkeypatch):
    """Constants that count the samples they come from: one of memory and one of time without a, two without b."""
    counts = lambda others: len(others["memory"]) + 10 * len(others["time"])  # noqa: E731
    predicted = {"memory": lambda run, constants: run * constants, "time": lambda run, constants: constants}
    monkeypatch.setattr(calibrate, "fit", counts)
    monkeypatch.setattr(calibrate, "PREDICTED", predicted)
    memory = [calibrate.Sample("a", 2, 8), calibrate.Sample("a", 4, 8), calibrate.Sample("b", 1, 3)]
    ratios = calibrate.left_out({"memory": memory, "time": [calibrate.Sample("b", None, 6)]})
    assert ratios == {"memory": {"a": [8 / 22, 8 / 44], "b": [3 / 2]}, "time": {"b": [6 / 2]}}


def test_the_fits_report_by_hand(monkeypatch, tmp_path, capsys):
    """Of source a, measured over predicted is 1 and 2, of b 1; the plain figure is 4 for each."""
    runs = [SimpleNamespace(cluster=planner.Cluster(planner.find_chip(name), 1)) for name in ("t4", "l4", "t4")]
    samples = [calibrate.Sample(*one) for one in zip("aab", runs, (8, 2, 4))]
    monkeypatch.setattr(calibrate, "BASELINES", {"memory": lambda run: 4})
    monkeypatch.setattr(calibrate, "published", lambda: {"memory": samples})
    monkeypatch.setattr(calibrate, "fit", lambda found: replace(HAND, traffic=1.23456))
    ratios = {"a": [1.0, 2.0], "b": [1.0]}
    monkeypatch.setattr(calibrate, "left_out", lambda found: {"memory": ratios} if found["memory"] == samples else {})
    monkeypatch.setattr(calibrate, "FITTED", tmp_path / "stored.json")
    # Errors: 0 and 1/2, of the plain figure 1/2 and 1. Half of a lies where b does, and b where a does.
    rows = {"a": [2, 0.25, 0.45, 0.5, 0.75, 0.95], "b": [1, 0, 0, 1, 0, 0], "all": [3, 0, 0.4, 0.75, 0.5, 0.9]}
    for words in ([], ["--store"]):
        monkeypatch.setattr(sys, "argv", ["calibrate", *words])
        assert not (tmp_path / "stored.json").exists()
        calibrate.main()
    text = (tmp_path / "stored.json").read_text()
    stored = json.loads(text)
    assert text == json.dumps(stored, indent=1) + "\n" and stored["left_out"] == {"memory": rows}
    assert stored["chips"] == ["l4", "t4"]
    constants = stored["constants"]
    assert (constants["traffic"], constants["memory_low"], constants["memory_high"]) == (1.23, 1, 2)
    assert (constants["link"], constants["matrix"]["hopper"]) == (0.5, 0.5)
    printed = capsys.readouterr().out
    line = "2 runs  median  25%  90th percentile  45%  inside  50%  baseline  75%"
    assert "memory: errors on sources left out of the fit" in printed and line in printed and '"link": 0.5' in printed

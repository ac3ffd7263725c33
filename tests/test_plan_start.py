"""What a plan says to run is what the programs and commands that it names take, and is that layout."""

import argparse
import re
import shlex
import socket
import subprocess
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from course_lib import cli, planner, programs
from course_lib.planner import layout_search
from course_lib.planner.measured_machine import MeasuredMachine
from course_lib.planner.rented_chips import MEASURED
from course_lib.planner.what_to_run import what_to_run
from course_lib.tpu import compile_command
from course_lib.tpu.chips import find_slice
from course_lib.tpu.compile_request import Request, checked

MODEL = planner.Transformer(4, 64, 8, 100, 16)
FOR_TPU = replace(MODEL, tied=False, flash=False)
SPLIT = {  # as in test_plan_compiler.py, which compiles it
    ".*(query|key|value|mlp_in|logits)/kernel": (None, "model"),
    ".*(attention_out|mlp_out)/kernel": ("model", None),
}


def started(chip: str, layout: planner.Layout, batch: int, model=MODEL) -> str:
    cluster = planner.Cluster(planner.find_chip(chip), layout.chips)
    return what_to_run(planner.predict(model, cluster, layout, batch), model)


def parsed(said: str) -> tuple[str, list[argparse.Namespace]]:
    """The program that a start names, and its processes' arguments as the program's own parser reads them.

    `gpus` among them: the numbers of those that a process sees, or none for all of its machine
    """
    where, command = (line for line in said.splitlines() if line.startswith(("To start", "  course program")))
    name, processes = re.fullmatch(r"  course program ([\w-]+) > train\.py; (.*)", command).groups()
    lines = programs.text(name).split("arguments = parser.parse_args()")[0].splitlines()
    scope = {"argparse": argparse}
    exec("\n".join(line for line in lines if line.startswith(("parser", "policies"))), scope)
    made = re.search(r"with your model in its (\w+)\(\):", where)[1]
    assert f"def {made}(" in programs.text(name)
    found = []
    for one in processes.split(" & "):
        gpus, words = re.fullmatch(r"(?:CUDA_VISIBLE_DEVICES=([\d,]+) )?python train\.py (.*)", one).groups()
        found.append(scope["parser"].parse_args(shlex.split(words)))
        found[-1].gpus = gpus and [*map(int, gpus.split(","))]
    return name, found


FULL, HALF = planner.Layout(precision="float32"), planner.Layout()


@pytest.mark.parametrize(
    "chip, layout, batch, program, wanted",
    [
        ("a100-80gb", replace(FULL, data=8), 8, "mirrored-fit", {"global_batch": 8}),
        ("v100-32gb", planner.Layout(4, precision="mixed_float16"), 4, "mixed-precision", {"policy": "mixed_float16"}),
        ("a100-80gb", replace(FULL, data=4, micro_batch=2), 32, "accumulation", {"micro_batches": 4}),
        ("a100-80gb", replace(FULL, data=16), 16, "multi-worker-fit", {"global_batch": 16}),
        (
            "a100-80gb",
            replace(FULL, data=2, tensor=4, micro_batch=4),
            8,
            "layout-map",
            {"model_axis": 4, "fsdp": False},
        ),
        ("a100-80gb", replace(FULL, data=8, zero=3), 8, "layout-map", {"model_axis": 1, "fsdp": True}),
        (
            "v100-32gb",
            planner.Layout(8, zero=3, precision="mixed_float16"),
            8,
            "layout-map",
            {"model_axis": 1, "fsdp": True},
        ),
        ("a100-80gb", replace(FULL, pipeline=2), 6, "pipeline", {"micro_batches": 6, "stage": 0}),
        ("tpu-v5e", replace(HALF, data=8), 8, "jax-data-parallel", {"processes": 1}),
        ("tpu-v5e", replace(HALF, data=16), 16, "jax-data-parallel", {"processes": 4, "coordinator": "HOST:PORT"}),
        ("tpu-v5p", replace(HALF, data=8), 8, "jax-data-parallel", {"processes": 2}),
    ],
)
def test_a_layout_that_a_program_has(chip, layout, batch, program, wanted):
    said = started(chip, layout, batch)
    name, processes = parsed(said)
    assert name == program and {one.global_batch for one in processes} == {batch}
    assert {key: getattr(processes[-1], key) for key in wanted} == wanted
    assert len(processes) == layout.pipeline
    assert ("set_dtype_policy" in said) == (layout.precision != "float32" and program != "mixed-precision")
    if chip != "v100-32gb":
        half = started(chip, replace(layout, precision="mixed_bfloat16"), batch)
        assert ('set_dtype_policy("mixed_bfloat16")' in half) == (program not in ("mirrored-fit", "mixed-precision"))
    assert ("on each of 2 machines" in said) == (program == "multi-worker-fit")
    several = program == "jax-data-parallel" and wanted["processes"] > 1
    assert (f"on each of {wanted.get('processes')} hosts" in said) == several


@pytest.mark.parametrize(
    "layout, batch, words",
    [
        (replace(FULL, data=2, zero=1), 2, "ZeRO-1"),
        (replace(FULL, data=2, zero=2), 2, "ZeRO-2"),
        (replace(FULL, data=4, zero=3, shard=2), 4, "ZeRO-3 in groups of 2"),
        (replace(FULL, recompute="full"), 1, "recomputation (full)"),
        (replace(FULL, sequence=2), 1, "sequence parallelism"),
        (replace(FULL, data=2, offload=("optimizer",)), 2, "offload"),
        (replace(FULL, pipeline=4), 4, "a pipeline of 4 stages"),
        (replace(FULL, pipeline=2, interleave=2), 4, "interleaved stages"),
        (replace(FULL, data=2, pipeline=2), 4, "a pipeline beside other parallelism"),
        (replace(FULL, tensor=2), 4, "micro-batches of a model that is cut"),
        (replace(FULL, data=8, tensor=2), 8, "a model that is cut, or accumulation, on several machines"),
        (replace(FULL, data=16), 32, "a model that is cut, or accumulation, on several machines"),
        (replace(FULL, data=12), 12, "machines that are not full"),
        (replace(FULL, tensor=2), 1, "a global batch that the devices do not divide"),
        (planner.Layout(precision="bfloat16_megatron"), 1, "the formats of bfloat16_megatron"),
        (replace(FULL, tensor=2, split_norms=True), 2, "tensor parallelism that divides the norms"),
        (replace(FULL, chunked_loss=True), 1, "a loss in chunks"),
        (replace(HALF, data=2, precision="mixed_float16"), 4, "float16's loss scale beside micro-batches"),
        (replace(HALF, pipeline=2, precision="mixed_float16"), 2, "float16's loss scale beside micro-batches, stages"),
        (replace(HALF, data=16, precision="mixed_float16"), 16, "loss scale beside micro-batches, stages or several"),
    ],
)
def test_a_layout_that_no_program_has(layout, batch, words):
    said = started("a100-80gb", layout, batch)
    assert said.startswith("No program of this course has ") and words in said and "course program" not in said


def test_a_search_takes_no_tensor_parallelism_of_keras_for_megatrons():
    """On GPUs the planner's tensor parallelism divides the norms, which a LayoutMap of layers alone does not."""
    cluster = planner.Cluster(planner.find_chip("a100-80gb"), 4)
    split = [one for one in layout_search.layouts(MODEL.chain(), cluster, 32, "float32") if one.tensor > 1]
    assert split and all(one.split_norms for one in split)
    for layout in split:
        assert what_to_run(planner.predict(MODEL, cluster, layout, 32), MODEL).startswith("No program")


@pytest.mark.parametrize(
    "chip, layout, batch, gpus",
    [
        ("a100-80gb", replace(FULL, data=4), 4, [[0, 1, 2, 3]]),  # of a machine's eight
        ("a100-80gb", replace(FULL, data=8), 8, [None]),
        ("t4", replace(FULL, data=4, micro_batch=2), 16, [None]),
        ("a100-80gb", FULL, 1, [[0]]),
        ("a100-80gb", replace(FULL, data=2, tensor=2, micro_batch=2), 4, [[0, 1, 2, 3]]),
        ("a100-80gb", replace(FULL, pipeline=2), 2, [[1], [0]]),  # or both stages would be on the first
        ("tpu-v5e", replace(HALF, data=4), 4, [None]),
    ],
)
def test_a_program_sees_the_devices_of_the_plan_and_no_more(chip, layout, batch, gpus):
    _, processes = parsed(started(chip, layout, batch))
    assert [one.gpus for one in processes] == gpus


@pytest.mark.parametrize("simulated, gpus, cpus", [(True, None, 2), (False, [0, 1], None)])
def test_on_this_machine_a_program_sees_as_many_devices(simulated, gpus, cpus):
    chip = planner.find_chip("a100-80gb")
    here = MeasuredMachine(replace(chip, family=MEASURED, per_node=2), 2, shared=simulated)
    planned = planner.predict(MODEL, planner.Cluster(chip, 2), replace(FULL, data=2), 2)
    _, (process,) = parsed(what_to_run(replace(planned, cluster=here), MODEL))
    assert (process.gpus, process.cpus) == (gpus, cpus)


def test_a_rack_is_no_machine():
    """72 GPUs share fast links in an NVL72, and 18 computers have four each."""
    said = started("gb200-186gb", replace(FULL, data=72), 72)
    assert "on each of 18 machines" in said and "--folder /shared/run" in said
    assert "on each of 2 machines" in started("h100-96gb", replace(FULL, data=8), 8)  # nodes of four
    assert "several machines" in started("gb200-186gb", replace(FULL, data=8, zero=3), 8)
    assert " --folder run " in started("gb200-186gb", replace(FULL, data=4), 4)
    assert parsed(started("gb200-186gb", replace(FULL, data=4, zero=3), 4))[0] == "layout-map"


def test_stages_on_two_machines_have_an_address():
    chip = replace(planner.find_chip("a100-80gb"), per_node=1)
    layout = replace(FULL, pipeline=2)
    said = what_to_run(planner.predict(MODEL, planner.Cluster(chip, 2), layout, 2), MODEL)
    assert "on each of 2 machines" in said and {one.address for one in parsed(said)[1]} == {"HOST1:5000"}
    assert [one.gpus for one in parsed(said)[1]] == [None, None]  # each machine has the one


@pytest.mark.parametrize("batch, said", [(2, False), (3, True), (8, True)])
def test_stages_say_that_they_hold_more_than_planned(batch, said):
    assert (f"GPipe, which holds {batch}" in started("a100-80gb", replace(FULL, pipeline=2), batch)) == said


def test_where_jax_sees_two_devices_on_a_chip_nothing_is_started():
    said = started("tpu7x", replace(HALF, data=4), 8, FOR_TPU)
    assert "two devices on a chip, as tpu7x has" in said and "course " not in said.replace("this course ", "")


def test_the_policy_is_read_before_the_line_that_runs():
    lines = started("a100-80gb", replace(HALF, data=16), 16).splitlines()
    assert "set_dtype_policy" in lines[1] and "course program" in lines[2]


def test_what_a_program_lacks_is_all_that_keeps_it_from_a_layout():
    """Of every layout of a search either a program's own parser reads the line, or something is named."""
    counted = 0
    for chip, chips in (("a100-80gb", 4), ("h100-80gb", 16), ("tpu-v5e", 8)):
        cluster = planner.Cluster(planner.find_chip(chip), chips)
        for precision in {"mixed_bfloat16", *cluster.chip.flops_per_second} & {"float32", "mixed_bfloat16"}:
            for layout in layout_search.layouts(MODEL.chain(), cluster, 32, precision):
                said = what_to_run(planner.predict(MODEL, cluster, layout, 32), MODEL)
                if said.startswith("To start"):
                    arguments = parsed(said)[1][0]
                    assert arguments.global_batch == 32
                    assert getattr(arguments, "model_axis", 1) == layout.tensor
                    assert getattr(arguments, "fsdp", False) == (layout.zero == 3)
                    assert getattr(arguments, "micro_batches", 1) == layout.micro_batches(32)
                    assert arguments.gpus == (layout.pipeline == 1 and chip.startswith("a100") and [0, 1, 2, 3] or None)
                    counted += 1
                else:
                    assert re.match(r"No program of this course has [\w(].*; ", said)
    assert counted == 19


@pytest.mark.parametrize(
    "layout, batch, options",
    [
        (replace(HALF, data=8), 8, {"layout": "data", "remat": False, "accumulation": 1}),
        (replace(HALF, data=8, zero=3, recompute="full"), 8, {"layout": "fsdp", "remat": True}),
        (planner.Layout(8, micro_batch=2), 64, {"accumulation": 4, "precision": "mixed_bfloat16"}),
        (planner.Layout(2, 4, micro_batch=4), 8, {"mesh": "data=2,model=4", "layout": "data"}),
    ],
)
def test_the_tpus_compiler_is_asked_for_the_same_step(layout, batch, options):
    said = started("tpu-v5e", layout, batch, FOR_TPU).splitlines()[-1]
    assert ("--shard" in said) == (layout.tensor > 1)
    parser = argparse.ArgumentParser()
    compile_command.add_arguments(parser)
    words = shlex.split(said.partition("course compile ")[2])
    read = parser.parse_args(words)
    assert {key: getattr(read, key) for key in options} == options
    assert (read.model, read.layers, read.width, read.heads) == ("transformer", 4, 64, 8)
    assert (read.vocabulary, read.sequence_length, read.batch) == (100, 16, batch)
    assert find_slice(read.topology).chips == 8
    shards = dict(map(compile_command._shard, read.shard))
    assert shards == (SPLIT if layout.tensor > 1 else {})
    mesh = compile_command._mesh(read.mesh)
    checked(Request({"name": "transformer"}, read.topology, batch, mesh, read.layout, shards, read.precision))
    for other in (MODEL, replace(FOR_TPU, ffn=100)):  # which the command can't make
        assert "course compile" not in started("tpu-v5e", layout, batch, other)
    assert "course compile" not in started("a100-80gb", layout, batch, FOR_TPU)
    assert "course compile" not in started("tpu-v5e", replace(layout, chunked_loss=True), batch, FOR_TPU)
    uneven = (
        {"vocabulary": 101} if layout.tensor > 1 else {"hidden": 60, "ffn": None}
    )  # that the logits' shards, or heads, divide
    assert "course compile" not in started("tpu-v5e", layout, batch, replace(FOR_TPU, **uneven))


def test_the_command_ends_with_a_start_where_something_fits(capsys):
    arguments = ["plan", "gpt2-124m", "--chip", "a100-80gb", "--chips", "8", "--batch", "64"]
    assert cli.main([*arguments, "--data", "8"]) == 0
    assert (
        "To start, with your model in its new_model():\n  course program mixed-precision > train.py; python"
        in capsys.readouterr().out
    )
    assert cli.main(["plan", "llama2-7b", "--chip", "a100-80gb", "--batch", "1"]) == 1
    out = capsys.readouterr().out
    assert "To start" not in out and "No program" not in out


def test_a_search_also_gives_the_fastest_that_a_program_has():
    cluster = planner.Cluster(planner.find_chip("a100-80gb"), 16)
    model = planner.Transformer(12, 768, 12, 50257, 1024)
    found = planner.search(model, cluster, 64)
    none, fastest, *start = what_to_run(found, model).splitlines()
    (first,) = [one for one in found.ranked if one.layout == planner.Layout(16, micro_batch=4)]
    assert found.best.layout.zero == 3 and none.startswith("No program of this course has a model that is cut")
    wanted = (
        f"The fastest layout that one has, {first.layout}, takes {first.step.total / found.best.step.total:.3g} times"
    )
    assert (
        fastest == f"{wanted} as long."
        and parsed("\n".join(start))[0] == "multi-worker-fit"
        and "mixed_bfloat16" in start[1]
    )
    small = planner.search(planner.Transformer(12, 768, 12, 50257, 1024), planner.Cluster(cluster.chip, 2), 2)
    assert what_to_run(replace(small, ranked=()), model) == ""


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize(
    "layout, wanted",
    [
        (planner.Layout(2, 2, micro_batch=4, zero=3), "hidden/kernel: (64, 64), of which a device holds (32, 32)"),
        (planner.Layout(4, micro_batch=2), "4 replicas"),
        (planner.Layout(pipeline=2, micro_batch=4), "epoch 2: loss"),
    ],
)
def test_a_line_runs_as_it_is_printed(tmp_path, layout, wanted, precision):
    """With the policy where the line before says, and four devices made of the CPU, which a line for a GPU does not."""
    batch = 16 if layout.data == 4 else 8
    said = started("a100-80gb", replace(layout, precision=precision), batch)
    name, _ = parsed(said)
    policy = re.search(r"Before the model is made: (.*)", said)
    made = "keras.utils.set_random_seed(0)\n"
    assert programs.text(name).count(made) == 1
    (tmp_path / "train.py").write_text(programs.text(name).replace(made, f"{policy[1] if policy else ''}\n{made}"))
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.random((32, 8, 8, 1), "float32"), y=rng.integers(0, 10, 32))
    (command,) = [line for line in said.splitlines() if line.startswith("  course program")]
    with socket.create_server(("localhost", 0)) as free:
        runs = command.partition("; ")[2].replace("localhost:5000", f"localhost:{free.getsockname()[1]}").split(" & ")
    cpus = [] if name == "pipeline" else ["--cpus", "4"]
    words = [[sys.executable, *shlex.split(one.partition("python ")[2]), *cpus] for one in runs]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started_now = [subprocess.Popen(one, cwd=tmp_path, **pipes) for one in words]
    try:
        done = [(*one.communicate(timeout=240), one.returncode) for one in started_now]
    finally:
        for one in started_now:
            one.kill()
    assert not any(code for _, _, code in done), [errors[-2000:] for _, errors, _ in done]
    assert wanted in "".join(printed for printed, _, _ in done)
    for file in (tmp_path / "run").glob("*.keras"):
        with zipfile.ZipFile(file) as opened:
            assert ("mixed_bfloat16" in opened.read("config.json").decode()) == (precision != "float32")

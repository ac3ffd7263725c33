"""What is read of a compiled step and said of it, one line at a time by hand; nothing is compiled."""

import argparse
import importlib.util
import json
import subprocess
import sys
from dataclasses import replace

import pytest

from course_lib import tpu
from course_lib.errors import CourseError
from course_lib.tpu import chips, compile_client, compile_command, compile_report, hlo, hlo_collectives, hlo_cost
from course_lib.tpu.compile_request import Request, checked, named_model

GIVEN = ("%x = f32[8]{0} parameter(0)", "%i = s32[]{:S(4)} parameter(1)", "%u = f32[2]{0} parameter(2)")


def program(*lines: str, fused: tuple[str, ...] = ()) -> hlo.HloProgram:
    """An entry of these lines, and a computation %f that a fusion calls."""
    body = ["%f (p: f32[8]) -> f32[8] {", *(f"  {line}" for line in fused), "}"] if fused else []
    return hlo.parse("\n".join([*body, "ENTRY %e (x: f32[8]) -> f32[8] {", *(f"  {line}" for line in lines), "}"]))


@pytest.mark.parametrize(
    "line, moved",  # %x has 32 bytes, %u 8, and %i lies on the chip
    [
        ("%r = f32[8]{0} add(%x, %x)", 3 * 32),
        ("%r = f32[8]{0:S(1)} add(%x, %i)", 32),
        ("%r = f32[2]{0} dynamic-slice(%x, %i)", 2 * 8),
        ("%r = f32[2]{0} slice(%x)", 2 * 8),
        ("%r = f32[2]{0:S(1)} gather(%x, %i)", 0),
        ("%r = f32[8]{0} dynamic-update-slice(%x, %u, %i)", 2 * 8),
        ("%r = (f32[8]{0:S(1)}, f32[8]{0}, u32[]{:S(2)}) copy-start(%x)", 32),
        ("%r = (f32[8]{0}, f32[8]{0}, u32[]) copy-start(%x)", 2 * 32),
        ("%r = (f32[8]{0}, f32[2]{0:S(1)}, u32[]) slice-start(%x)", 8),
        ("%r = f32[8]{0} copy-done(%x)", 0),
        ("%r = f32[8]{0} all-gather-update(%x)", 0),
        ("%r = f32[8]{0} bitcast(%x)", 0),
        ("%r = f32[8]{0} fusion(%x, %u), kind=kLoop", 2 * 32 + 8),
        ("%r = f32[8]{0} add(%x, %elsewhere)", 2 * 32),
        ("%r = token[] send(%x)", 32),
    ],
)
def test_traffic_of_an_instruction_by_hand(line, moved):
    assert hlo_cost.hbm_bytes(program(*GIVEN, line)) == moved


PARTS = ("%p = f32[8]{0} parameter(0)", "%n = s32[]{:S(4)} parameter(1)", "%v = f32[2]{0} parameter(2)")
UPDATE = "dynamic-update-slice(%p, %v, %n)"


@pytest.mark.parametrize(
    "inner, result, moved",
    [
        # Only the slice is read, and %u is not used.
        (("ROOT %s = f32[2]{0} dynamic-slice(%p, %n)",), "f32[2]{0}", 8 + 8 + 8),
        (("%s = f32[2]{0} slice(%p)", "ROOT %t = f32[2]{0} slice(%p)"), "f32[2]{0}", 2 * 8 + 8 + 8),
        # A slice beside a use of the whole.
        (("%s = f32[2]{0} slice(%p)", "ROOT %t = f32[8]{0} negate(%p)"), "f32[8]{0}", 32 + 8 + 32),
        # Updated in place: neither read nor written but for %u.
        ((f"ROOT %s = f32[8]{{0}} {UPDATE}",), "f32[8]{0}", 8 + 8),
        ((f"%s = f32[8]{{0}} {UPDATE}", "ROOT %t = f32[8]{0} bitcast(%s)"), "f32[8]{0}", 8 + 8),
        ((f"ROOT %s = f32[8]{{0:S(1)}} {UPDATE}",), "f32[8]{0:S(1)}", 8),
        # Of a tuple, what is made is written, and what only passes through is not.
        (
            ("%s = f32[8]{0} add(%p, %p)", "ROOT %t = (f32[8]{0}, f32[2]{0}) tuple(%s, %v)"),
            "(f32[8]{0}, f32[2]{0})",
            32 + 8 + 32,
        ),
    ],
)
def test_traffic_of_a_fusion_by_hand(inner, result, moved):
    line = f"ROOT %r = {result} fusion(%x, %i, %u), kind=kLoop, calls=%f"
    assert hlo_cost.hbm_bytes(program(*GIVEN, line, fused=(*PARTS, *inner))) == moved


@pytest.mark.parametrize(
    "left, right, line, flops",
    [
        ("4,5", "5,6", "f32[4,6]{1,0} dot(%x, %k), lhs_contracting_dims={1}, rhs_contracting_dims={0}", 2 * 24 * 5),
        ("3,4,5", "3,4,6", "f32[5,6]{1,0} dot(%x, %k), lhs_contracting_dims={0,1}", 2 * 30 * 12),
        ("4", "6", "f32[4,6]{1,0} dot(%x, %k)", 2 * 24),
        ("4", "4", "f32[4]{0} multiply(%x, %k)", 0),
        # Of two images, from 5 to 7 channels: how many pairs of an output and a kernel position meet an input.
        ("2,5,5", "3,5,7", "f32[2,2,7]{2,1,0} convolution(%x, %k), window={size=3 stride=2}", 140 * 6),
        ("2,3,5", "2,5,7", "f32[2,4,7]{2,1,0} convolution(%x, %k), window={size=2 lhs_dilate=2}", 140 * 4),
        ("2,5,5", "2,5,7", "f32[2,5,7]{2,1,0} convolution(%x, %k), window={size=2 pad=1_1 rhs_dilate=2}", 140 * 8),
        ("2,5,5", "2,5,7", "f32[2,4,7]{2,1,0} convolution(%x, %k)", 140 * 8),
    ],
)
def test_arithmetic_of_a_product_by_hand(left, right, line, flops):
    labels = ", dim_labels=b0f_0io->b0f" if "convolution" in line else ""
    given = (f"%x = f32[{left}]{{0}} parameter(0)", f"%k = f32[{right}]{{0}} parameter(1)")
    computation = program(*given, f"ROOT %r = {line}{labels}").computations["e"]
    assert hlo_cost._product_flops(computation["r"], computation) == flops


@pytest.mark.parametrize(
    "text, size",
    [("pred[3]", 3), ("s4[4]", 2), ("u4[6]", 3), ("bf16[5]", 10), ("f16[5]", 10), ("f32[2,3]", 24), ("f64[2]", 16)]
    + [("c64[2]", 16), ("c128[2]", 32), ("f8e4m3fn[5]", 5), ("s32[]", 4), ("u8[7]", 7), ("token[]", 0)],
)
def test_bytes_of_a_shape(text, size):
    (shape,) = hlo._shapes(text)
    assert shape.bytes == size and shape.in_hbm


@pytest.mark.parametrize(
    "kind, groups, row",  # of 32 bytes, over the four devices of "data"
    [
        ("all-reduce", "replica_groups=[2,4]<=[4,2]T(1,0)", ("data", 4, 32, 48)),
        ("all-reduce-start", "replica_groups=[2,4]<=[4,2]T(1,0)", ("data", 4, 32, 48)),
        ("reduce-scatter", "replica_groups=[2,4]<=[4,2]T(1,0)", ("data", 4, 32, 24)),
        ("all-gather", "replica_groups=[2,4]<=[4,2]T(1,0)", ("data", 4, 128, 96)),
        ("all-to-all", "replica_groups=[2,4]<=[4,2]T(1,0)", ("data", 4, 32, 24)),
        ("ragged-all-to-all", "replica_groups=[2,4]<=[4,2]T(1,0)", ("data", 4, 32, 24)),
        ("collective-broadcast", "replica_groups=[2,4]<=[4,2]T(1,0)", ("data", 4, 32, 32)),
        ("collective-permute", "source_target_pairs={{0,2}, {2,4}, {4,6}, {6,0}}", ("data", 2, 32, 32)),
        ("collective-permute", "source_target_pairs={{0,1},{1,0}}", ("model", 2, 32, 32)),
        ("all-reduce", "to_apply=%a", ("data+model", 8, 32, 56)),
    ],
)
def test_what_each_kind_of_collective_sends(kind, groups, row):
    found = hlo_collectives.find_collectives(
        program(GIVEN[0], f"ROOT %r = f32[8]{{0}} {kind}(%x), {groups}"), {"data": 4, "model": 2}
    )
    axis, devices, buffer, sent = row
    assert found == (tpu.Collective(kind.removesuffix("-start"), axis, devices, 1, buffer, sent),)


def test_collectives_come_the_largest_sender_first():
    lines = (f"%r{n} = f32[8]{{0}} {kind}(%x), to_apply=%a" for n, kind in enumerate(("all-to-all", "all-reduce")))
    rows = hlo_collectives.find_collectives(program(GIVEN[0], *lines), {"data": 4})
    assert [(row.kind, row.sent_bytes) for row in rows] == [("all-reduce", 48), ("all-to-all", 24)]
    alone = program(GIVEN[0], "ROOT %r = f32[8]{0} all-reduce(%x), to_apply=%a")
    assert hlo_collectives.find_collectives(alone, {"data": 1}) == ()


@pytest.mark.parametrize(
    "start, direction, note, turns",
    [("0", "LT", "", 8), ("3", "LT", "", 5), ("0", "LE", "", None), ("0", "NE", '"known_trip_count":{"n":"12"}', 12)],
)
def test_the_turns_of_a_loop_by_hand(start, direction, note, turns):
    """A counter from `start` to 8 at place 1 of the state."""
    text = f"""%body (s: (f32[8], s32[])) -> (f32[8], s32[]) {{
  ROOT %s = (f32[8]{{0}}, s32[]) parameter(0)
}}

%test (s: (f32[8], s32[])) -> pred[] {{
  %s = (f32[8]{{0}}, s32[]) parameter(0)
  %limit = s32[] constant(8)
  %counter = s32[] get-tuple-element(%s), index=1
  ROOT %c = pred[] compare(%counter, %limit), direction={direction}
}}

ENTRY %e (x: f32[8]) -> f32[8] {{
  %x = f32[8]{{0}} parameter(0)
  %start = s32[] constant({start})
  %state = (f32[8]{{0}}, s32[]) tuple(%x, %start)
  ROOT %w = (f32[8]{{0}}, s32[]) while(%state), condition=%test, body=%body, backend_config={{{note}}}
}}"""
    found = hlo.parse(text)
    assert found.turns(found.computations["e"]["w"], "e") == turns
    assert found.executions()["body"] == (turns or 1) and found.unknown_loops() == (turns is None)


TWO_DEVICES_A_CHIP = Request(
    named_model("cnn", {"filters": [4, 8]}),
    "tpu7x:2x2x1",
    64,
    shards={".*kernel": [None, "data"]},
    remat=True,
    accumulation=2,
)


def test_a_report_as_it_is_shown():
    """At a chip's peaks 0.2, 0.2 and 0.6 ms: 2,307 TFLOPS, 7,380 and 600 GB/s, for the two devices of each chip."""
    memory = tpu.CompiledMemory(100, 200, 0, 50, 6, 4, 1000, 40, peak=2**30)
    rows = (tpu.Collective("all-reduce", "data", 8, 2000, 100, 180_000_000),)
    figures = {"flops": 230.7e9, "hbm_bytes": 738_000_000, "collectives": rows, "unknown_loops": 3}
    found = tpu.CompileReport(checked(TWO_DEVICES_A_CHIP), 2500, 2**29, memory, None, **figures, compiler="libtpu 1")
    assert repr(found).splitlines() == [
        "cnn input_shape=32x32x3 classes=10 filters=4x8 width=64 batch_norm=None; adam, float32, batch 64, remat, "
        "accumulation over 2; 2,500 parameters",
        "tpu7x:2x2x1, 4 chips, mesh data=8, layout data, .*kernel over ,data; compiled by libtpu 1",
        "Fits: at the fullest moment 1.00 GiB of the 96 GiB of a device, 1/2 of a chip.",
        "",
        "Memory of a device, 1/2 of a chip",
        "                                     bytes    GiB",
        "parameters                             100  0.000",
        "optimizer state                        200  0.000",
        "other variables                          0  0.000",
        "batch                                   50  0.000",
        "padding of these to tiles                6  0.000",
        "outputs                                  4  0.000",
        "activations and temporaries          1,000  0.000",
        "program                                 40  0.000",
        "total                                1,400  0.000",
        "alive at the fullest moment  1,073,741,824  1.000",
        "",
        "Collectives in a step",
        "kind        mesh axis  devices  count  buffer bytes   sent bytes",
        "all-reduce  data             8  2,000           100  180,000,000",
        "",
        "Roofline, peaks from https://cloud.google.com/tpu/docs/tpu7x",
        "                         work  least ms  share",
        "compute       2.307e+11 flops       0.2    20%",
        "memory          738,000,000 B       0.2    20%",
        "interconnect    180,000,000 B       0.6    60%",
        "3 loop(s) do not show their number of turns and are counted once.",
    ]
    assert "\n\nCollectives in a step: none\nkind " in repr(replace(found, collectives=()))
    assert found._repr_html_().endswith("<p>3 loop(s) do not show their number of turns and are counted once.</p>")
    answer = found.as_dict()
    assert (answer["fits"], answer["total_bytes"]) == (True, 1400)
    assert answer["roofline_seconds"] == pytest.approx({"compute": 2e-4, "memory": 2e-4, "interconnect": 6e-4})


@pytest.mark.parametrize(
    "shortage, words",
    [
        ((3 * 2**30, 2**30, "temporaries", "said"), "temporaries need 3.00 GiB and the chip has room for 1.00 GiB"),
        ((3 * 2**30, None, "the whole program", "said"), "the whole program needs 3.00 GiB"),
        ((None, None, "the whole program", "said"), "said"),
    ],
)
def test_a_step_that_does_not_fit_as_it_is_shown(shortage, words):
    request = checked(Request(named_model("mlp", {}), "v5e:1x1", 8))
    found = tpu.CompileReport(request, 10, 2**29, None, compile_report.Shortage(*shortage), compiler="libtpu 1")
    title, slice_, verdict = repr(found).splitlines()
    assert title.endswith("; adam, float32, batch 8; 10 parameters")
    assert slice_ == "v5e:1x1, 1 chip, mesh data=1, layout data; compiled by libtpu 1"
    state = "Parameters and optimizer state alone take 0.50 GiB."
    assert verdict == f"Does not fit the 16 GiB of a chip: {words}. {state}"
    answer = found.as_dict()
    assert (answer["fits"], answer["total_bytes"], answer["roofline_seconds"]) == (False, None, None)
    nothing = (answer["flops"], answer["hbm_bytes"], answer["collectives"], answer["unknown_loops"])
    assert nothing == (0, 0, (), 0) and (answer["compile_seconds"], answer["stored"]) == (0, False)
    assert sum(found.roofline_shares.values()) == 0 and found.sent_bytes == 0


def test_a_request_left_alone():
    sizes = {"vocabulary": 32000, "sequence_length": 1024, "layers": 4, "width": 2048, "heads": 16}
    assert named_model("transformer", {}) == {"name": "transformer", "arguments": sizes}
    pixels = {"input_shape": [32, 32, 3], "classes": 10, "filters": [32, 64], "width": 64, "batch_norm": None}
    assert named_model("cnn", {}) == {"name": "cnn", "arguments": pixels}
    small = {"input_shape": [8, 8, 1], "classes": 10, "width": 16}
    assert named_model("mlp", {"width": 16}) == {"name": "mlp", "arguments": small}
    wanted = {"mesh": {"data": 8}, "layout": "data", "shards": {}, "precision": "float32", "optimizer": "adam"}
    wanted |= {"loss": "sparse_categorical_crossentropy", "remat": False, "accumulation": 1, "batch": 64}
    found = vars(checked(Request({}, "v5e:2x4", 64)))
    assert {name: found[name] for name in wanted} == wanted
    assert named_model("mlp", {})["arguments"]["width"] == 128


@pytest.mark.parametrize(
    "model, name", [({"name": "mlp"}, "mlp"), ({"program": {"function": "make"}}, "make"), ({"json": "{}"}, "model")]
)
def test_a_models_name_in_words(model, name):
    request = Request(model, "v5e:1x1", 8, optimizer={"class_name": "SGD"})
    assert request.model_name == name and request.words == f"{name}; SGD, float32, batch 8"


@pytest.mark.parametrize(
    "change", [{"mesh": {"data": 4, "model": 3}}, {"mesh": {"data": 0, "model": 8}}, {"accumulation": 0}, {"batch": 12}]
)
def test_numbers_that_disagree_are_refused(change):
    good = {"model": {}, "topology": "v5e:2x4", "batch": 64}
    with pytest.raises(CourseError, match="their product must be 8|take a multiple of"):
        checked(Request(**{**good, **change}))
    assert checked(Request(**{**good, "mesh": {"model": 8}, "batch": 3})).mesh == {"model": 8}  # no axis for the batch


@pytest.mark.parametrize(
    "name, options",
    [
        ("v4:2x2x1", {"chip_config_name": "megacore"}),
        ("v5e:1x1", {"chips_per_host_bounds": (1, 1, 1)}),
        ("v5e:2x2", {}),
    ],
)
def test_what_the_compiler_is_told_of_a_slice(name, options):
    assert chips.find_slice(name).compiler_options == options
    assert chips.find_slice(name).device_memory_bytes == {"v4": 32, "v5e": 16}[name[: name.index(":")]] * 2**30


@pytest.mark.parametrize(
    "name, near",
    [("v5e:2x5", "v5e:2x4"), ("zz", "v4:2x2x1, v4:2x2x2, v4:2x2x4, v4:2x4x4"), ("tpu7x:8x8x7", "tpu7x:8x8x8")],
)
def test_near_slices_are_of_the_same_chip(name, near):
    with pytest.raises(CourseError, match=f"called '{name}'; near ones are .*{near}") as error:
        chips.find_slice(name)
    assert str(error.value).count(", ") == 3


@pytest.mark.parametrize(
    "traceback, reason",
    [
        ("Traceback:\n  line\nValueError: bad\n", "ValueError: bad"),
        ("a.b.SomeError: one\nlater.OtherException: two\nFor more words\n", "later.OtherException: two"),
        ("\x1b[1mValueError: Exception encountered when calling Dense.call().\x1b[0m\n\n  the cause \n", None),
        ("first\nlast words\n", "last words"),
    ],
)
def test_the_reason_in_a_traceback(traceback, reason):
    wanted = reason or "ValueError: Exception encountered when calling Dense.call(). the cause"
    assert compile_client._reason(traceback) == wanted


def test_the_commands_words_become_a_request(monkeypatch, capsys):
    given = {}

    def compiled(*words, show, **options):
        show("shaping")
        given.update(options, words=words)
        return tpu.CompileReport(
            checked(Request({}, "v5e:2x4", 64)), 1, 1, None, compile_report.Shortage(None, None, "it", "no")
        )

    monkeypatch.setattr(compile_command, "compile_step", compiled)
    parser, kept = argparse.ArgumentParser(), []
    monkeypatch.setattr(compile_command, "store", kept.append)
    compile_command.add_arguments(parser)
    words = ["mlp", "--topology", "v5e:2x4", "--batch", "64"]
    assert compile_command.compile_model(parser.parse_args([*words, "--json"])) == 1 and kept == []
    printed = capsys.readouterr()
    assert json.loads(printed.out)["fits"] is False and printed.err == "    0 s  shaping\n"
    plain = {"mesh": {}, "shards": {}, "arguments": {}, "layout": "data", "precision": "float32", "optimizer": "adam"}
    plain |= {"loss": "sparse_categorical_crossentropy", "remat": False, "accumulation": 1}
    assert given == {"words": ("mlp", "v5e:2x4", 64), **plain}
    more = ["--mesh", "data=4,model=2", "--shard", "a=,model", "--shard", "b=x=model", "--sequence-length", "8"]
    more += ["--argument", "heads=2", "--remat", "--layout", "fsdp", "--accumulation", "2", "--store"]
    assert compile_command.compile_model(parser.parse_args([*words, *more])) == 1 and len(kept) == 1
    assert (given["mesh"], given["layout"], given["remat"]) == ({"data": 4, "model": 2}, "fsdp", True)
    assert given["shards"] == {"a": (None, "model"), "b=x": ("model",)} and given["accumulation"] == 2
    assert given["arguments"] == {"sequence_length": 8, "heads": 2}
    for mistake in (["--mesh", "data=x"], ["--mesh", "2=2"], ["--mesh", "data"], ["--shard", "kernel"]):
        with pytest.raises(CourseError, match=f"{mistake[0]} takes .*, not '{mistake[1]}'"):
            compile_command.compile_model(parser.parse_args([*words, *mistake]))


@pytest.mark.parametrize(
    "system, machine, jax, words",
    [
        ("Darwin", "arm64", True, "has no build for Darwin arm64, only for Linux x86_64. tpu.stored.. has 0 results"),
        ("Linux", "aarch64", True, "has no build for Linux aarch64"),
        ("Linux", "x86_64", True, r"is not installed: pip install 'jax\[tpu\]==9.8'"),
        ("Linux", "x86_64", False, r"is not installed: pip install 'jax\[tpu\]'\."),
    ],
)
def test_why_there_is_no_compiler(monkeypatch, tmp_path, system, machine, jax, words):
    monkeypatch.setattr(compile_client, "STORED", tmp_path / "none.json")
    monkeypatch.setattr(compile_client.platform, "system", lambda: system)
    monkeypatch.setattr(compile_client.platform, "machine", lambda: machine)
    monkeypatch.setattr(compile_client.importlib.metadata, "version", lambda name: {"jax": "9.8"}[name])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "jax" and jax else None)
    with pytest.raises(tpu.NoCompiler, match=words):
        compile_client.require_compiler()


@pytest.mark.parametrize(("amount", "of"), [("3.5K", 3584), ("2.5M", 2_621_440), ("1.5G", 1_610_612_736), ("7", 7)])
def test_amounts_in_the_compilers_refusals(amount, of):
    from course_lib.tpu.compile_worker import _shortage

    found = _shortage(f"RESOURCE_EXHAUSTED: Used {amount} of 1T hbm. Exceeded hbm capacity\nmore")
    assert (found.needed, found.available, found.of) == (of, 2**40, "the whole program")
    assert found.message == f"RESOURCE_EXHAUSTED: Used {amount} of 1T hbm. Exceeded hbm capacity"


def test_a_compiler_that_ends_without_an_answer_says_its_last_lines(tmp_path):
    asked = compile_client._Compiler.__new__(compile_client._Compiler)
    asked.log = open(tmp_path / "log", "w+")
    words = 'import sys; sys.stdin.readline(); print(\'{"progress": "compiling"}\'); sys.exit(3)'
    pipe = subprocess.PIPE
    asked.process = subprocess.Popen([sys.executable, "-c", words], stdin=pipe, stdout=pipe, text=True)
    shown = []
    request = checked(Request({}, "v5e:2x4", 64))
    assert asked.ask(request, shown.append) == {"traceback": "no output\nthe compiler's process ended with 3"}
    assert shown == ["compiling"]
    asked.process.communicate()
    asked.log.close()

"""Train steps compiled for absent TPUs: reading what the compiler prints, laying out, counting, compiling."""

import importlib.metadata
import importlib.util
import json
import math
import subprocess
import sys
import textwrap

import pytest

from course_lib import models, tpu
from course_lib.cli import main
from course_lib.errors import CourseError
from course_lib.tpu import chips, compile_client, hlo, hlo_collectives, hlo_cost
from course_lib.tpu.compile_request import Request, checked, named_model

HAS_COMPILER = importlib.util.find_spec("libtpu") is not None
compiles = pytest.mark.skipif(not HAS_COMPILER, reason="libtpu, the TPU compiler, is not installed")
OLD_COMPILER = HAS_COMPILER and tuple(map(int, importlib.metadata.version("libtpu").split(".")[:3])) < (0, 0, 23)

# Lines that libtpu 0.0.42.1 printed for a scanned step on a mesh of data=4, model=2; what is not read is cut out.
SCANNED = """\
HloModule jit_step, is_scheduled=true, num_partitions=8

%fused_start (param_0.95: bf16[1,2048,256]) -> (bf16[1,2048,256], bf16[1,2048,1024]) {
  %param_0.95 = bf16[1,2048,256]{2,1,0:T(8,128)(2,1)S(1)} parameter(0)
  %all-gather.27 = bf16[1,2048,1024]{2,1,0:T(8,128)(2,1)} all-gather(%param_0.95), channel_id=15, replica_groups=[2,4]<=[4,2]T(1,0), dimensions={2}, use_global_device_ids=true, backend_config={"flag_configs":[],"async_collective_fusion_config":{"flag_start":"-1","flag_end":"-1"}}
  ROOT %custom-call.4 = (bf16[1,2048,256]{2,1,0:T(8,128)(2,1)S(1)}, bf16[1,2048,1024]{2,1,0:T(8,128)(2,1)S(1)}, s32[2]{0:S(4)}) custom-call(%all-gather.27), custom_call_target="AsyncCollectiveStart"
}

%fused_beside (param_0.99: bf16[1,2048,256]) -> bf16[1,2048,1024] {
  %param_0.99 = bf16[1,2048,256]{2,1,0:T(8,128)(2,1)S(1)} parameter(0)
  ROOT %all-gather.29 = bf16[1,2048,1024]{2,1,0:T(8,128)(2,1)S(1)} all-gather(%param_0.99), channel_id=15, replica_groups=[2,4]<=[4,2]T(1,0), dimensions={2}, use_global_device_ids=true, backend_config={"flag_configs":[],"async_collective_fusion_config":{"flag_start":"2","flag_end":"8"}}
}

%fused_done (param_0.103: bf16[1,2048,256]) -> bf16[1,2048,1024] {
  %param_0.103 = bf16[1,2048,256]{2,1,0:T(8,128)(2,1)S(1)} parameter(0)
  %all-gather.31 = bf16[1,2048,1024]{2,1,0:T(8,128)(2,1)} all-gather(%param_0.103), channel_id=15, replica_groups=[2,4]<=[4,2]T(1,0), dimensions={2}, use_global_device_ids=true
  ROOT %custom-call.6 = bf16[1,2048,1024]{2,1,0:T(8,128)(2,1)S(1)} custom-call(%param_0.103, %all-gather.31), custom_call_target="AsyncCollectiveDone"
}

%all-reduce-scatter.clone.1 (input.5: f32[1024,2048]) -> f32[256,2048] {
  %input.5 = f32[1024,2048]{1,0:T(8,128)} parameter(0)
  %all-reduce.15 = f32[1024,2048]{1,0:T(8,128)} all-reduce(%input.5), channel_id=10, replica_groups={{0,2,4,6},{1,3,5,7}}, use_global_device_ids=true, to_apply=%add.3.clone
  ROOT %dynamic-slice.69 = f32[256,2048]{1,0:T(8,128)S(1)} dynamic-slice(%all-reduce.15, %zero, %zero), dynamic_slice_sizes={256,2048}
}

%body (wide.param.4: (s32[], f32[64,1024], f32[1024,2048])) -> (s32[], f32[64,1024], f32[1024,2048]) {
  %wide.param.4 = (s32[]{:T(128)}, f32[64,1024]{1,0:T(8,128)S(1)}, f32[1024,2048]{1,0:T(8,128)}) parameter(0)
  %get-tuple-element.1 = s32[]{:T(128)} get-tuple-element(%wide.param.4), index=0
  %get-tuple-element.2 = f32[64,1024]{1,0:T(8,128)S(1)} get-tuple-element(%wide.param.4), index=1
  %get-tuple-element.3 = f32[1024,2048]{1,0:T(8,128)} get-tuple-element(%wide.param.4), index=2
  %async-collective-start = (bf16[1,2048,256]{2,1,0:T(8,128)(2,1)S(1)}, bf16[1,2048,1024]{2,1,0:T(8,128)(2,1)S(1)}) fusion(%get-tuple-element.2), kind=kCustom, calls=%fused_start
  %fusion.69 = bf16[1,2048,1024]{2,1,0:T(8,128)(2,1)S(1)} fusion(%get-tuple-element.2), kind=kCustom, calls=%fused_beside
  %async-collective-done = bf16[1,2048,1024]{2,1,0:T(8,128)(2,1)S(1)} fusion(%get-tuple-element.2), kind=kCustom, calls=%fused_done
  %convolution.29 = f32[64,2048]{1,0:T(8,128)S(1)} convolution(%get-tuple-element.2, %get-tuple-element.3), dim_labels=bf_io->bf
  %all-reduce.13 = f32[64,1024]{1,0:T(8,128)S(1)} all-reduce(%get-tuple-element.2), channel_id=4, replica_groups=[4,2]<=[8], use_global_device_ids=true, to_apply=%add.clone
  %fusion.65 = f32[256,2048]{1,0:T(8,128)S(1)} fusion(%get-tuple-element.3), kind=kCustom, calls=%all-reduce-scatter.clone.1
  ROOT %tuple.56 = (s32[]{:T(128)}, f32[64,1024]{1,0:T(8,128)S(1)}, f32[1024,2048]{1,0:T(8,128)}) tuple(%get-tuple-element.1, %all-reduce.13, %get-tuple-element.3)
}

%condition (wide.param.1: (s32[], f32[64,1024], f32[1024,2048])) -> pred[] {
  %constant.68.clone.1 = s32[]{:T(128)} constant(8)
  %wide.param.1 = (s32[]{:T(128)}, f32[64,1024]{1,0:T(8,128)S(1)}, f32[1024,2048]{1,0:T(8,128)}) parameter(0)
  %get-tuple-element.278 = s32[]{:T(128)} get-tuple-element(%wide.param.1), index=0
  ROOT %lt.10 = pred[]{:T(512)} compare(%get-tuple-element.278, %constant.68.clone.1), direction=LT, metadata={op_name="jit(step)/jvp()/while/cond/lt" stack_frame_id=13}
}

ENTRY %main.6_spmd (param.5: f32[64,1024], param.6: f32[1024,2048]) -> f32[] {
  %constant.73.clone = s32[]{:T(128)} constant(0)
  %param.5 = f32[64,1024]{1,0:T(8,128)} parameter(0), sharding={devices=[4,1,2]<=[8] last_tile_dim_replicate}
  %param.6 = f32[1024,2048]{1,0:T(8,128)} parameter(1)
  %copy.38 = s32[]{:T(128)} copy(%constant.73.clone)
  %tuple.74 = (s32[]{:T(128)}, f32[64,1024]{1,0:T(8,128)S(1)}, f32[1024,2048]{1,0:T(8,128)}) tuple(%copy.38, %param.5, %param.6)
  %while.32 = (s32[]{:T(128)}, f32[64,1024]{1,0:T(8,128)S(1)}, f32[1024,2048]{1,0:T(8,128)}) while(%tuple.74), condition=%condition, body=%body
  %get-tuple-element.9 = f32[64,1024]{1,0:T(8,128)S(1)} get-tuple-element(%while.32), index=1
  %multiply_reduce_fusion = f32[]{:T(128)} reduce(%get-tuple-element.9, %constant.73.clone), dimensions={0,1}, to_apply=%add.clone
  ROOT %all-reduce.6 = f32[]{:T(128)} all-reduce(%multiply_reduce_fusion), channel_id=13, replica_groups=mesh['axis_0'=4,'axis_1'=1,'axis_2'=2] {'axis_0'}, use_global_device_ids=true, to_apply=%add.clone
}
"""  # noqa: E501, the compiler's own lines
MESH = {"data": 4, "model": 2}


@pytest.fixture(scope="module")
def program():
    return hlo.parse(SCANNED)


def test_a_loop_counts_its_turns(program):
    runs = program.executions()
    assert program.entry == "main.6_spmd" and runs["main.6_spmd"] == 1
    assert runs["body"] == runs["fused_start"] == 8 and program.unknown_loops() == 0


def test_a_loop_of_unknown_length_counts_once_and_is_named():
    program = hlo.parse(SCANNED.replace("direction=LT", "direction=NE"))
    assert program.executions()["body"] == 1 and program.unknown_loops() == 1


def test_each_collective_counts_once_per_turn_with_its_axis_and_bytes(program):
    gather, scatter, reduce, loss = 2 * 2048 * 1024, 4 * 1024 * 2048, 4 * 64 * 1024, 4
    expected = {
        ("all-gather", "data", 4, 8, 8 * gather, 8 * gather * 3 // 4),
        ("reduce-scatter", "data", 4, 8, 8 * scatter, 8 * scatter * 3 // 4),
        ("all-reduce", "model", 2, 8, 8 * reduce, 8 * reduce),
        ("all-reduce", "data", 4, 1, loss, round(loss * 1.5)),
    }
    rows = hlo_collectives.find_collectives(program, MESH)
    assert {(r.kind, r.axis, r.devices, r.count, r.buffer_bytes, r.sent_bytes) for r in rows} == expected


def all_reduce(groups: str) -> str:
    """A program of one all-reduce over these groups."""
    body = (
        "%x = f32[8]{0} parameter(0)",
        f"ROOT %r = f32[8]{{0}} all-reduce(%x), replica_groups={groups}, to_apply=%a",
    )
    return "\n".join(["ENTRY %e (x: f32[8]) -> f32[8] {", *(f"  {line}" for line in body), "}"])


@pytest.mark.parametrize(
    ("groups", "axis"),
    [
        ("{{0,2,4,6},{1,3,5,7}}", "data"),
        ("[4,2]<=[8]", "model"),
        ("[2,4]<=[4,2]T(1,0)", "data"),
        ("mesh['axis_0'=4,'axis_1'=2] {'axis_0'}", "data"),
        ("mesh['axis_0'=2,'axis_1'=4], device_ids=([4,2]T(1,0)) {'axis_1'}", "data"),
        ("mesh['a'=8] {'a':(4)2}", "model"),
        ("{{0,2},{4,6},{1,3},{5,7}}", "data"),
        ("[1,8]<=[8]", "data+model"),
        ("{}", "data+model"),
    ],
)
def test_every_way_of_naming_groups_is_read(groups, axis):
    (row,) = hlo_collectives.find_collectives(hlo.parse(all_reduce(groups)), MESH)
    assert row.axis == axis


def test_half_a_ring_is_part_of_its_axis():
    (row,) = hlo_collectives.find_collectives(hlo.parse(all_reduce("[2,4]<=[8]")), {"data": 8})
    assert row.axis == "part of data" and row.devices == 4


def test_a_new_way_of_naming_groups_is_an_error_not_a_guess():
    with pytest.raises(ValueError, match="cannot read these replica groups"):
        hlo_collectives.find_collectives(
            hlo.parse(SCANNED.replace("replica_groups=[4,2]<=[8]", "replica_groups=<4x2>" + " " * 80)), MESH
        )


def test_the_other_turns_of_a_loop_add_their_matrix_products(program):
    assert hlo_cost.repeated_flops(program) == 7 * 2 * 64 * 1024 * 2048


def test_a_convolution_counts_the_pairs_that_meet():
    """A 3x3 kernel over 4x4 pixels with padding: 4+4+2 pairs along each side, as XLA counts."""
    line = (
        "ENTRY %e (x: f32[2,4,4,5]) -> f32[2,4,4,7] {\n"
        "  %x = f32[2,4,4,5]{3,2,1,0} parameter(0)\n  %k = f32[3,3,5,7]{3,2,1,0} parameter(1)\n"
        "  ROOT %c = f32[2,4,4,7]{3,2,1,0} convolution(%x, %k), window={size=3x3 pad=1_1x1_1}, "
        "dim_labels=b01f_01io->b01f\n}"
    )
    computation = hlo.parse(line).computations["e"]
    assert hlo_cost._product_flops(computation["c"], computation) == 2 * 2 * 7 * 5 * 10 * 10


def test_only_hbm_traffic_counts(program):
    """In each of 8 turns the product and the scatter read the weights; the rest is scalars, or stays on the chip."""
    weights, condition, scalars = 4 * 1024 * 2048, 4 + 4 + 1, 6 * 4
    assert hlo_cost.hbm_bytes(program) == 8 * (2 * weights + condition) + scalars


@pytest.mark.parametrize(
    ("request_", "line"),
    [
        ({"topology": "v5e:2x5"}, "near ones are v5e:2x4"),
        ({"topology": "v8:2x4"}, "near ones are"),
        ({"mesh": {"data": 4}}, "has 4 devices and v5e:2x4 has 8"),
        ({"batch": 60}, "take a multiple of 8"),
        ({"batch": 8, "accumulation": 2}, "8 devices on the data axis x 2 micro-batches; take a multiple of 16"),
        ({"batch": 0}, "does not divide"),
        ({"layout": "zero"}, "layout must be 'data' or 'fsdp'"),
        ({"precision": "mixed_float16"}, "mixed_bfloat16"),
        ({"shards": {".*kernel": [None, "model"]}}, "the mesh axis 'model', and the mesh has data"),
    ],
)
def test_a_mistake_in_the_numbers_is_one_line(request_, line):
    good = {"model": named_model("cnn", {}), "topology": "v5e:2x4", "batch": 64}
    with pytest.raises(CourseError) as error:
        checked(Request(**{**good, **request_}))
    assert line in str(error.value) and "\n" not in str(error.value)


def test_slices_and_their_chips():
    part = chips.find_slice("v5p:4x4x8")
    assert (part.chips, part.devices, str(part)) == (128, 128, "v5p:4x4x8")
    assert chips.find_slice("tpu7x:2x2x1").devices == 8
    assert all(chips.find_slice(name).chips >= 1 for name in chips.names())


def test_unknown_models_and_sizes_are_named():
    with pytest.raises(CourseError, match="the model must be mlp, cnn, transformer"):
        tpu.compile_step("cnm", "v5e:2x4", 64)
    with pytest.raises(CourseError, match="cnn has no 'layers'"):
        tpu.compile_step("cnn", "v5e:2x4", 64, arguments={"layers": 3})


def report(**changes) -> tpu.CompileReport:
    memory = tpu.CompiledMemory(100, 200, 0, 50, 6, 4, 1000, 40, peak=1300)
    rows = (tpu.Collective("all-reduce", "data", 8, 2, 100, 175),)
    request = checked(Request(named_model("cnn", {}), "v5e:2x4", 64))
    fields = {"memory": memory, "shortage": None, "flops": 197e9, "hbm_bytes": 819_000_000, "collectives": rows}
    return tpu.CompileReport(
        **{"request": request, "parameter_count": 25, "state_bytes": 300, **fields, "compiler": "libtpu 1", **changes}
    )


def test_a_report_adds_up_prints_and_survives_json():
    shown = report()
    assert shown.memory.total == 1400 and shown.fits
    assert shown.roofline_seconds["compute"] == pytest.approx(1e-3) and shown.roofline_seconds[
        "memory"
    ] == pytest.approx(1e-3)
    assert sum(shown.roofline_shares.values()) == pytest.approx(1)
    assert tpu.CompileReport.of(json.loads(json.dumps(shown.as_dict()))) == shown
    for text in (repr(shown), shown._repr_html_()):
        assert "1,400" in text and "all-reduce" in text and "docs/v5e" in text


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (48.00G) "
            "exceeds available HBM (15.75G).",
            "temporaries need 48.00 GiB and the chip has room for 15.75 GiB",
        ),
        (
            "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
            "Used 20.50G of 15.75G hbm.",
            "the whole program needs 20.50 GiB and the chip has room for 15.75 GiB",
        ),
        ("RESOURCE_EXHAUSTED: some new words", "RESOURCE_EXHAUSTED: some new words"),
    ],
)
def test_the_compilers_refusal_is_read(message, said):
    read = f"found = _shortage({message!r}); print(found, found.message == {message!r})"
    refusals = python(f"from course_lib.tpu.compile_worker import _shortage; {read}")
    assert refusals.strip() == f"{said} True"


def test_without_a_compiler_the_stored_result_or_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(compile_client.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(compile_client.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(compile_client, "STORED", tmp_path / "stored.json")
    with pytest.raises(tpu.NoCompiler, match="no build for Darwin"):
        tpu.compile_step("cnn", "v5e:2x4", 64)
    tpu.store(report())
    tpu.store(report())
    assert len(tpu.stored()) == 1
    same = tpu.compile_step("cnn", "v5e:2x4", 64)
    assert same.stored and "stored result" in repr(same)
    assert main(["compile", "cnn", "--topology", "v5e:2x4", "--batch", "128"]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and "Stored results:" in captured.out


def python(code: str, devices: int = 1) -> str:
    """A separate process, because this one may run Keras on TensorFlow."""
    start = f"from course_lib import devices; devices.simulate({devices}, 'jax')\n"
    done = subprocess.run(
        [sys.executable, "-c", start + textwrap.dedent(code)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_step_equals_keras_own_on_eight_devices():
    """Tolerance 1e-5 relative: float32, and sums in another order. Plain, sharded, accumulated; three updates each."""
    python(
        """
        import jax, keras, numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        from course_lib import models
        from course_lib.tpu.variable_placement import pin_rows, place
        from course_lib.tpu.train_step import Training, train_step

        rng = np.random.default_rng(0)
        x, y = rng.random((32, 8, 8, 1), dtype="float32"), rng.integers(0, 8, 32)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        def made():
            model = models.cnn((8, 8, 1), 8, filters=(8,), width=16, seed=3)
            optimizer = keras.optimizers.Adam(1e-2)
            optimizer.build(model.trainable_variables)
            return Training(model, optimizer, loss)

        reference = made()
        reference.model.compile(optimizer=reference.optimizer, loss=loss)
        before = [np.asarray(v) for v in reference.model.trainable_variables]
        for _ in range(3):
            reference.model.train_on_batch(x, y)
        expected = [np.asarray(v) for v in reference.model.trainable_variables]
        assert max(np.abs(a - b).max() for a, b in zip(before, expected)) > 1e-2  # it moved

        def run(layout, shards, accumulation):
            training, sizes = made(), {"data": 4, "model": 2}
            placement = place(training, sizes, layout, shards)
            mesh = Mesh(np.array(jax.devices()).reshape(4, 2), tuple(sizes))
            pin_rows(training.model, mesh)
            put = lambda placed: [jax.device_put(v.value, NamedSharding(mesh, P(*axes))) for v, axes in placed]
            model, state = training.model, tuple(map(put, placement))
            batch = [jax.device_put(v, NamedSharding(mesh, P("data"))) for v in (x, y)]
            where = jax.tree.map(lambda v: v.sharding, state)
            step = jax.jit(train_step(training, accumulation), out_shardings=(None, *where))
            for _ in range(3):
                _, *state = step(*state, *batch)
            if layout == "fsdp":
                kernel = next(v for v, k in zip(state[0], model.trainable_variables) if k.path == "hidden/kernel")
                assert kernel.addressable_shards[0].data.size == kernel.size // (8 if shards else 4)
            for v, want in zip(state[0], expected):
                np.testing.assert_allclose(np.asarray(v), want, rtol=1e-5, atol=1e-6)

        run("data", {}, 1)
        run("fsdp", {".*hidden/kernel": (None, "model")}, 1)
        run("fsdp", {}, 4)
        """,
        devices=8,
    )


def test_repeated_blocks_equal_blocks_written_out():
    """Forward and backward, also with remat.

    To 1e-5 of the largest gradient: float32 is fused in another way, and the gradient of a key's bias is all rounding.
    """
    python(
        """
        import jax, jax.numpy as jnp, numpy as np
        from course_lib import models
        from course_lib.tpu.repeated import Repeated, stacked_paths

        tokens = np.random.default_rng(0).integers(0, 50, (4, 8))
        sizes = dict(layers=3, width=16, heads=2)
        flat = models.transformer(50, 8, **sizes)

        def gradients(model):
            def objective(tv):
                logits, _ = model.stateless_call(tv, [v.value for v in model.non_trainable_variables], tokens)
                return jnp.square(logits).mean() * 100
            trainable = [v.value for v in model.trainable_variables]
            written.append(str(jax.make_jaxpr(objective)(trainable)))
            value, grads = jax.value_and_grad(objective)(trainable)
            return value, dict(zip([v.path for v in model.trainable_variables], grads))

        written = []
        value, grads = gradients(flat)
        largest = max(float(jnp.abs(gradient).max()) for gradient in grads.values())
        for remat in (False, True):
            repeat = lambda make, times, name: Repeated(make, times, remat=remat, name=name)
            repeated = models.transformer(50, 8, **sizes, repeat=repeat)
            assert repeated.count_params() == flat.count_params() and len(stacked_paths(repeated)) == 16
            again, stacked = gradients(repeated)
            assert ("remat" in written[-1] or "checkpoint" in written[-1]) == remat
            np.testing.assert_allclose(again, value, rtol=1e-5)
            for path, gradient in stacked.items():
                if path.startswith("blocks/"):
                    want = jnp.stack([grads[path.replace("blocks/block_", f"block{n}_")] for n in (1, 2, 3)])
                else:
                    want = grads[path]
                np.testing.assert_allclose(gradient, want, rtol=1e-4, atol=1e-5 * largest)
        """
    )


def test_layouts_reach_stacked_weights_and_optimizer_slots_and_nothing_is_allocated():
    """A model of 65 thousand million parameters, laid out in a process that stays small."""
    python(
        """
        import sys
        from pathlib import Path
        from course_lib import models
        from course_lib.tpu.variable_placement import place, shard_bytes
        from course_lib.tpu.repeated import Repeated
        from course_lib.tpu.train_step import build

        repeat = lambda make, times, name: Repeated(make, times, name=name)
        make = lambda: models.transformer(32000, 4096, layers=80, width=8192, heads=64, repeat=repeat)
        training = build(make, "adam", "sparse_categorical_crossentropy", "mixed_bfloat16")
        mesh = {"data": 64, "model": 8}
        shards = {".*(query|mlp_in)/kernel": (None, "model"), ".*mlp_out/kernel": ("model", None)}
        trainable, _, optimizers = place(training, mesh, "fsdp", shards)
        where = {v.path: axes for v, axes in trainable}
        assert where["blocks/block_mlp_in/kernel"] == (None, "data", "model")
        assert where["blocks/block_mlp_out/kernel"] == (None, "model", "data")
        assert where["token_embedding/embeddings"] == ("data", None)
        slots = {v.path: axes for v, axes in optimizers}
        assert slots["adam/blocks_block_mlp_in_kernel_velocity"] == (None, "data", "model")
        assert slots["adam/iteration"] == ()
        count = lambda placed: sum(shard_bytes(v, axes, mesh) for v, axes in placed)
        assert count(optimizers) == 2 * count(trainable) + 8  # two moments, and two scalars
        assert training.model.count_params() > 64e9
        if sys.platform == "linux":  # ru_maxrss would count this test's own process, which started that one
            peak_kib = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
            assert peak_kib < 2 * 2**20  # the parameters are 260 GB
        """
    )


@pytest.fixture(scope="module")
def small():
    """A step of 49,000 parameters, sharded both ways."""
    shards = {".*hidden/kernel": (None, "model"), ".*logits/kernel": ("model", None)}
    settings = {"input_shape": [8, 8, 1], "filters": [8], "width": 16}
    return tpu.compile_step(
        "cnn", "v5e:2x4", 64, mesh={"data": 4, "model": 2}, shards=shards, layout="fsdp", arguments=settings
    )


@pytest.mark.parametrize(
    "shape, axes, devices, wanted",
    [
        ((4, 16, 8), (None, None, None), 4, (None, "data", None)),  # the longest, wherever it stands
        ((4, 18, 8), (None, None, None), 4, (None, None, "data")),  # that 4 divides
        ((16, 8), ("model", None), 4, ("model", "data")),  # and that nothing splits yet
        ((16, 8), (None, None), 1, (None, None)),
        ((3, 5), (None, None), 4, (None, None)),
    ],
)
def test_fsdp_splits_the_longest_free_dimension(shape, axes, devices, wanted):
    from course_lib.tpu import variable_placement  # imports JAX

    assert variable_placement._with_data(shape, axes, {"data": devices}, stacked=False) == wanted


@compiles
def test_the_bytes_of_a_compiled_step_are_the_layouts(small):
    """Counted by hand: fsdp over 4, the two kernels over 2 as well; what 4 does not divide is whole."""
    assert small.stored or 0 < small.compile_seconds < 600
    elements = {(3, 3, 1, 8): 4, (8,): 4, (128, 16): 8, (16,): 4, (16, 10): 2, (10,): 1}
    parameters = 4 * sum(math.prod(shape) // parts for shape, parts in elements.items())
    assert small.memory.parameters == parameters == small.state_bytes - small.memory.optimizer
    assert small.memory.optimizer == 2 * parameters + 8
    assert small.memory.batch == 16 * (8 * 8 * 4 + 4)
    assert small.fits and small.memory.padding >= 0 and small.memory.peak > small.state_bytes


@compiles
def test_a_compiled_step_tells_its_collectives(small):
    assert small.unknown_loops == 0 and small.flops > 0 and small.hbm_bytes > 0
    assert any("data" in row.axis for row in small.collectives) and small.sent_bytes > 0
    assert all(row.axis in ("data", "model", "data+model", "part of data") for row in small.collectives)


@compiles
def test_data_parallelism_reduces_every_gradient_once():
    """On 4 chips each gradient is reduced over all of them: its bytes are the parameters', and the loss's 4."""
    result = tpu.compile_step("mlp", "v5e:2x2", 32, arguments={"width": 16}, optimizer="sgd")
    assert {(row.kind, row.axis, row.devices) for row in result.collectives} == {("all-reduce", "data", 4)}
    assert sum(row.buffer_bytes for row in result.collectives) == result.memory.parameters + 4


@compiles
def test_a_model_that_exists_is_compiled_from_its_configuration():
    """Made on whatever backend runs here; the compiler's process makes it again, without values."""
    model = models.mlp((8, 8, 1), classes=10, width=16)
    result = tpu.compile_step(model, "v5e:1x1", 8)
    assert result.parameter_count == model.count_params() and result.memory.parameters == 4 * model.count_params()


@compiles
def test_the_process_stays_and_what_ends_in_one_step_leaves_the_next_alone(monkeypatch):
    def crash():
        import os

        os.kill(os.getpid(), 11)

    def progress_interrupted(words):
        raise KeyboardInterrupt

    said, mlp = [], lambda show: tpu.compile_step("mlp", "v5e:1x1", 8, arguments={"width": 16}, show=show)
    mlp(None)
    with pytest.raises(compile_client.StepFailed, match="the compiler's process ended with -11"):
        tpu.compile_step(crash, "v5e:1x1", 8)
    mlp(said.append)
    assert "starting Keras on JAX" not in said
    with pytest.raises(KeyboardInterrupt):
        mlp(progress_interrupted)
    mlp(said.append)
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "")  # read once, by the process that imports
    mlp(said.append)
    (compiler,) = compile_client._compilers.values()
    compiler.process.kill()
    compiler.process.wait()
    mlp(said.append)
    assert said.count("starting Keras on JAX") == 3


@pytest.mark.skipif(
    not OLD_COMPILER, reason="only libtpu before 0.0.23 needs the workaround; CI has it on Colab's TPU stack"
)
def test_an_old_compiler_still_crashes_without_the_workaround(monkeypatch):
    without = (
        "from course_lib.tpu import compile_worker as worker; worker._spare_old_libtpu = lambda: None; worker.main()"
    )
    monkeypatch.setattr(
        compile_client,
        "START",
        compile_client.START.replace("from course_lib.tpu.compile_worker import main; main()", without),
    )
    with pytest.raises(compile_client.StepFailed, match="the compiler's process ended with"):
        tpu.compile_step("mlp", "v5e:1x1", 8, arguments={"width": 16})


@compiles
def test_a_notebooks_function_and_one_that_does_not_fit():
    def make(units):
        import keras

        inputs = keras.Input((8,))
        return keras.Model(inputs, keras.layers.Dense(units)(inputs))

    result = tpu.compile_step(make, "v6e:1x1", 8, arguments={"units": 4}, loss="mse", optimizer="sgd")
    assert result.parameter_count == 36 and result.collectives == () and result.request.model_name == "make"
    refused = tpu.compile_step(make, "v5e:2x2", 8, arguments={"units": 10**9}, loss="mse")
    assert not refused.fits and "Does not fit" in refused.verdict and refused.state_bytes > 100e9
    with pytest.raises(CourseError, match="matches none of"):
        tpu.compile_step(
            make,
            "v5e:2x2",
            8,
            mesh={"data": 2, "model": 2},
            shards={".*kernl": (None, "model")},
            arguments={"units": 4},
        )


@compiles
def test_the_command_prints_json_and_progress_apart(capfd):
    words = ["compile", "mlp", "--topology", "v5e:2x2", "--batch", "32", "--width", "16", "--json"]
    assert main(words) == 0
    captured = capfd.readouterr()
    fields = json.loads(captured.out)
    assert fields["fits"] and fields["total_bytes"] == sum(v for k, v in fields["memory"].items() if k != "peak")
    assert "compiling for 4 chips" in captured.err and "libtpu" not in captured.err

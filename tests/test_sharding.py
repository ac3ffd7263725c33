"""Split layers, split state and split models against one device.

What needs eight devices runs in one process of its own, where TensorFlow cannot
be imported: this session's devices belong to TensorFlow where it is installed.
"""

import ast
import json
import subprocess
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest

from course_lib import devices, layout_maps, sharding
from course_lib.errors import CourseError

LESSON = Path(__file__).parents[1] / "notebooks/07_tensor_parallelism_and_sharding.ipynb"
CHECKS = {}
FLOAT32 = {"rtol": 0, "atol": 1e-5}  # values near 1, sums of at most 64 products in another order


class Absent:
    """A finder that says of TensorFlow what a machine without it would say."""

    def find_spec(name, path, target=None):
        if name in ("tensorflow", "tf_keras"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def on_eight_devices(check):
    """Make a check a test that passes when it passed in the process with eight devices."""
    CHECKS[check.__name__] = check

    def test(found_on_eight_devices):
        assert found_on_eight_devices[check.__name__] == "passed"

    return test


@pytest.fixture(scope="module")
def found_on_eight_devices(tmp_path_factory):
    results = tmp_path_factory.mktemp("sharding") / "results.json"
    done = subprocess.run([sys.executable, __file__, str(results)], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return json.loads(results.read_text())


def outcome(check) -> str:
    try:
        check()
    except (Exception, pytest.fail.Exception):
        return traceback.format_exc()
    return "passed"


def arrays(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype("float32") for shape in shapes]


def layer_mesh(count=4):
    import jax

    return jax.sharding.Mesh(np.array(jax.devices("cpu")[:count]), ("model",))


def small_transformer():
    from course_lib import models

    return models.transformer(128, 32, layers=1)


def layout(shape=(2, 4), **keys):
    import keras

    layout_map = keras.distribution.LayoutMap(keras.distribution.DeviceMesh(shape, ["data", "model"]))
    for key, axes in keys.items():
        layout_map[key] = axes
    return layout_map


def error_of(call, *arguments, **named) -> str:
    with pytest.raises(CourseError) as caught:
        call(*arguments, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)


KEYS = {
    ".*_(query|key|value|mlp_in)/kernel": (None, "model"),
    ".*_(query|key|value|mlp_in)/bias": ("model",),
    ".*_(attention_out|mlp_out)/kernel": ("model", None),
    ".*logits/kernel": (None, "model"),
}


def test_zero_bytes_are_the_papers():
    """Figure 1 of the paper: 7.5 billion parameters, 64 devices, 2 + 2 + 12 bytes a parameter."""
    mixed = {"parameter_bytes": 2, "gradient_bytes": 2, "optimizer_bytes": 12}
    totals = [sharding.zero_bytes(7_500_000_000, 64, stage, **mixed).total / 1e9 for stage in range(4)]
    assert [round(total, 1) for total in totals] == [120.0, 31.4, 16.6, 1.9]


def test_zero_bytes_pads_a_part_that_does_not_divide():
    assert sharding.zero_bytes(10, 4, 3) == sharding.StateBytes(parameters=12, gradients=12, optimizer=24)


def test_zero_has_four_stages():
    assert "not 4" in error_of(sharding.zero_bytes, 100, 4, 4)


def test_each_stage_of_zero_splits_one_part_more():
    """By hand: 8 parameters on 4 devices, of 4, 4 and 8 bytes."""
    found = [sharding.zero_bytes(8, 4, stage) for stage in range(4)]
    assert [(one.parameters, one.gradients, one.optimizer) for one in found] == [
        (32, 32, 64),
        (32, 32, 16),
        (32, 8, 16),
        (8, 8, 16),
    ]
    assert [one.total for one in found] == [128, 80, 56, 32]


def planned_layout(keys, units=12, build=True):
    """The plan for one dense layer on a mesh of 2 x 4, and its model: no device is needed for it."""
    import keras

    mesh = keras.distribution.DeviceMesh((2, 4), ["data", "model"], [f"cpu:{device}" for device in range(8)])
    layout_map = keras.distribution.LayoutMap(mesh)
    for key, axes in keys.items():
        layout_map[key] = axes
    model = keras.Sequential([keras.layers.Dense(units, name="dense")])
    if build:
        inputs = keras.Input((8,))
        model = keras.Model(inputs, keras.layers.Dense(units, name="dense")(inputs))
    return layout_maps.plan_layout(model, layout_map), model, layout_map


def test_a_plan_by_hand():
    plan, _, _ = planned_layout({".*kernel": ("data",), ".*bias": ("model",)})
    kernel, bias = plan.variables
    assert kernel == layout_maps.VariableLayout("dense/kernel", (8, 12), ".*kernel", ("data",), (4, 12), 4)
    assert bias == layout_maps.VariableLayout("dense/bias", (12,), ".*bias", ("model",), (3,), 4)
    assert (kernel.devices, bias.devices, plan.bytes_per_device, plan.total_bytes) == (2, 4, 204, 432)
    assert str(plan) == (
        "variable        shape  one device holds  split over  bytes a device\n"
        "dense/kernel  (8, 12)           (4, 12)           2             192\n"
        "dense/bias      (12,)              (3,)           4              12\n"
        "2 of 2 variables are split; 204 of 432 B a device"
    )
    plan, _, _ = planned_layout({".*kernel": ("model", "data"), "dense/output": ("data", None)})
    assert [one.shard_shape for one in plan.variables] == [(2, 6), (12,)]
    assert (plan.variables[1].key, plan.variables[1].axes) == (None, (None,))
    assert str(plan).endswith("1 of 2 variables are split; 96 of 432 B a device")


@pytest.mark.parametrize(
    ("keys", "units", "line"),
    [
        (
            {".*kernel": (None, "model")},
            10,
            "dense/kernel (8, 10): mesh axis 'model' has 4 devices and does not divide 10, as the key '.*kernel' asks; "
            "use another axis size or leave this dimension whole.",
        ),
        (
            {".*bias": ("model", None)},
            12,
            "dense/bias has 1 dimension(s) and the layout key '.*bias' gives 2 axes ('model', None).",
        ),
        (
            {"dense/.*": ("model",), ".*kernel": (None, "model"), ".*bias": ("model",)},
            12,
            "dense/kernel is matched by 2 layout keys, 'dense/.*' and '.*kernel': make them exclude each other.",
        ),
        (
            {"dence/kernl": ("model",)},
            12,
            "The layout key 'dence/kernl' matches none of 2 variables and splits nothing: the most similar path is "
            "dense/kernel.",
        ),
        (
            {"a far name": ("model",)},  # alike by less than Python's usual cutoff
            12,
            "The layout key 'a far name' matches none of 2 variables and splits nothing: the most similar path is "
            "dense/bias.",
        ),
    ],
)
def test_a_plan_that_does_not_fit_is_one_line(keys, units, line):
    assert error_of(planned_layout, keys, units) == line


def test_a_model_without_variables_and_one_that_no_key_splits_are_one_line():
    assert error_of(planned_layout, {".*kernel": ("model",)}, build=False) == (
        "The layout key '.*kernel' matches none of 0 variables and splits nothing: the model is not built yet."
    )
    _, model, layout_map = planned_layout({".*bias": ("model",)})
    assert error_of(layout_maps.layout_coverage, model, layout_map) == (
        "dense/kernel (8, 12) should be split and no key splits it, so every device holds all 384 B: "
        "add a key such as '.*dense/kernel'."
    )
    _, model, layout_map = planned_layout({".*kernel": (None, None)})
    assert layout_maps.layout_coverage(model, layout_map, must_split=[]).bytes_per_device == 432
    assert "should be split" in error_of(layout_maps.layout_coverage, model, layout_map, must_split=["x", "dense/bias"])


def test_a_layout_on_the_tensorflow_backend_is_refused():
    """There Keras accepts a layout map, or fails with an AttributeError, and splits nothing."""
    import keras

    if keras.backend.backend() != "tensorflow":
        pytest.skip("TensorFlow is not installed")
    mesh = keras.distribution.DeviceMesh((2, 4), ["data", "model"], [f"cpu:{device}" for device in range(8)])
    keys = keras.distribution.LayoutMap(mesh)
    keys[".*_in/kernel"] = (None, "model")
    assert "on the JAX backend" in error_of(
        layout_maps.layout_coverage, small_transformer(), keys, must_split=".*_in/kernel"
    )


@on_eight_devices
def test_a_column_then_a_row_parallel_layer_equal_one_device_forward_and_backward():
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    x, kernel_in, bias_in, kernel_out, bias_out = values = arrays((6, 8), (8, 64), (64,), (64, 8), (8,))

    def loss(x, kernel_in, bias_in, kernel_out, bias_out):
        return jnp.mean((jnp.tanh(x @ kernel_in + bias_in) @ kernel_out + bias_out) ** 2)

    def local_loss(x, kernel_in, bias_in, kernel_out, bias_out):
        hidden = jnp.tanh(sharding.column_parallel(x, kernel_in, bias_in, "model"))
        assert hidden.shape == (6, 16)
        return jnp.mean(sharding.row_parallel(hidden, kernel_out, bias_out, "model") ** 2)

    every = tuple(range(5))
    specs = (P(), P(None, "model"), P("model"), P("model", None), P())
    step = jax.shard_map(
        jax.value_and_grad(local_loss, every),
        mesh=layer_mesh(),
        in_specs=specs,
        out_specs=(P(), specs),
        check_vma=False,
    )
    (one, one_gradients), (split, split_gradients) = jax.value_and_grad(loss, every)(*values), jax.jit(step)(*values)
    np.testing.assert_allclose(split, one, rtol=1e-5)
    forward = jax.shard_map(local_loss, mesh=layer_mesh(), in_specs=specs, out_specs=P(), check_vma=False)
    np.testing.assert_allclose(forward(*values), one, rtol=1e-5)  # which no gradient asks for
    for expected, got in zip(one_gradients, split_gradients):
        assert np.abs(expected).max() > 0.1
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    # The gradient of x is whole on every device only through f: read each device's copy.
    copies = [np.asarray(shard.data) for shard in split_gradients[0].addressable_shards]
    assert len(copies) == 4 and all((copy == copies[0]).all() for copy in copies)


@on_eight_devices
def test_state_is_split_along_the_longest_dimension_that_divides():
    mesh = layer_mesh(8)
    kernel, odd, whole = arrays((24, 64), (3, 16), (5,))
    tree = {"kernel": kernel, "odd": odd, "whole": whole, "step": np.int32(3)}
    placed = sharding.shard_state(tree, mesh, "model")
    held = {name: placed[name].addressable_shards[0].data.shape for name in tree}
    assert held == {"kernel": (24, 8), "odd": (3, 2), "whole": (5,), "step": ()}
    for name in tree:
        np.testing.assert_array_equal(placed[name], tree[name])
    shards = 24 * 8 * 4 + 3 * 2 * 4 + 5 * 4 + 4
    assert sharding.device_bytes(placed) == {f"cpu:{device}": shards for device in range(8)}


@on_eight_devices
def test_coverage_tells_what_the_arrays_hold():
    import keras

    layout_map = layout(**KEYS)
    with keras.distribution.ModelParallel(layout_map=layout_map, batch_dim_name="data").scope():
        model = small_transformer()
    coverage = layout_maps.layout_coverage(model, layout_map)
    by_path = {variable.path: variable for variable in coverage.variables}
    query = by_path["block1_query/kernel"]
    assert (query.key, query.shard_shape, query.devices) == (next(iter(KEYS)), (64, 16), 4)
    assert (by_path["final_norm/gamma"].key, by_path["final_norm/gamma"].devices) == (None, 1)
    assert set(sharding.device_bytes(model.variables).values()) == {coverage.bytes_per_device}
    assert coverage.total_bytes == 4 * model.count_params()
    assert f"11 of {len(model.variables)} variables are split" in str(coverage)


@on_eight_devices
def test_a_key_that_matches_nothing_is_refused():
    message = error_of(
        layout_maps.plan_layout, small_transformer(), layout(**KEYS, **{".*/query/kernel": (None, "model")})
    )
    assert "'.*/query/kernel' matches none of 22 variables" in message and "block1_query/kernel" in message


@on_eight_devices
def test_a_key_without_its_prefix_is_judged_as_the_installed_keras_does():
    keys, model = layout(**{"query/kernel": (None, "model")}), small_transformer()
    if keys["block1_query/kernel"] is None:  # whole paths, as newer releases of Keras compare
        assert "write '.*query/kernel'" in error_of(layout_maps.plan_layout, model, keys)
        assert "write '.*query.*'" in error_of(layout_maps.plan_layout, model, layout(query=(None, "model")))
    else:
        assert sum(variable.key is not None for variable in layout_maps.plan_layout(model, keys).variables) == 1


@on_eight_devices
def test_two_keys_for_one_variable_are_refused():
    message = error_of(layout_maps.plan_layout, small_transformer(), layout(**KEYS, **{".*block1_query.*": ("model",)}))
    assert "block1_query/kernel is matched by 2 layout keys" in message


@on_eight_devices
def test_a_whole_path_as_key_wins_over_patterns_as_in_keras():
    planned = layout_maps.plan_layout(small_transformer(), layout(**KEYS, **{"block1_query/kernel": ("model", None)}))
    query = next(variable for variable in planned.variables if variable.path == "block1_query/kernel")
    assert query.shard_shape == (16, 64)


@on_eight_devices
def test_a_key_may_place_the_output_of_a_layer():
    layout_maps.plan_layout(small_transformer(), layout(**KEYS, **{"block1_mlp_in/output": ("data", None, "model")}))


@on_eight_devices
def test_an_axis_that_does_not_divide_and_too_many_axes_are_refused():
    import keras

    from course_lib import models

    odd = models.mlp((8, 8, 1), classes=10, width=64)
    message = error_of(layout_maps.plan_layout, odd, layout(**{".*logits/kernel": (None, "model")}))
    assert "logits/kernel (64, 10)" in message and "4 devices and does not divide 10" in message
    assert "1 dimension(s)" in error_of(layout_maps.plan_layout, odd, layout(**{".*hidden/bias": (None, "model")}))
    refused = keras.distribution.ModelParallel(
        layout_map=layout(**{".*logits/kernel": (None, "model")}), batch_dim_name="data"
    )
    with refused.scope(), pytest.raises(ValueError, match="divisible|evenly divide"):  # as JAX says it
        models.mlp((8, 8, 1), classes=10, width=64)


@on_eight_devices
def test_a_variable_that_should_be_split_and_is_not_is_refused():
    import keras

    layout_map = layout(**{key: axes for key, axes in KEYS.items() if "logits" not in key})
    with keras.distribution.ModelParallel(layout_map=layout_map, batch_dim_name="data").scope():
        model = small_transformer()
    message = error_of(layout_maps.layout_coverage, model, layout_map)
    assert "logits/kernel (64, 128) should be split" in message and "32,768 B" in message
    layout_maps.layout_coverage(model, layout_map, must_split=".*(query|mlp_in)/kernel")
    assert "embeddings" in error_of(
        layout_maps.layout_coverage, model, layout_map, must_split=[".*mlp_in/kernel", ".*embeddings"]
    )


@on_eight_devices
def test_a_model_built_outside_the_distribution_is_refused():
    message = error_of(layout_maps.layout_coverage, small_transformer(), layout(**KEYS))
    assert "and has (64, 64)" in message and "set_distribution" in message


@on_eight_devices
def test_a_figure_names_the_devices_of_each_block():
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from course_lib import show

    mesh = Mesh(np.array(jax.devices("cpu")).reshape(2, 4), ("data", "model"))
    kernel = jax.device_put(np.ones((8, 8), "float32"), NamedSharding(mesh, PartitionSpec(None, "model")))
    figure = show.shards({"kernel": kernel}, "Each block lies on two devices.")
    (axes,) = figure.canvas.axes
    assert [text.get_text() for text in axes.texts] == ["0\n4", "1\n5", "2\n6", "3\n7"]
    assert [(bar.get_x(), bar.get_width(), bar.get_height()) for bar in axes.patches] == [
        (x, 2, 8) for x in (0, 2, 4, 6)
    ]
    assert figure.caption == "Each block lies on two devices."


@on_eight_devices
def test_what_lesson_07_imports_needs_no_tensorflow():
    """All of it but the one program that the lesson runs in a process of its own, where TensorFlow is installed."""
    cells = json.loads(LESSON.read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    nodes = [node for source in sources for node in ast.parse(source.replace("%pip", "pass  # %pip")).body]
    imports = [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert len(imports) > 5
    for node in imports:
        exec(compile(ast.Module([node], []), "lesson 07", "exec"), {})
    with pytest.raises(ModuleNotFoundError):
        import tensorflow  # noqa: F401
    elsewhere = [source for source in sources if "tensorflow" in source and "def dtensor_program(task)" not in source]
    assert elsewhere == []


if __name__ == "__main__":
    sys.meta_path.insert(0, Absent)
    devices.simulate(8, "jax")
    with open(sys.argv[1], "w") as results:
        json.dump({name: outcome(check) for name, check in CHECKS.items()}, results)

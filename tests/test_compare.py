"""Comparisons: equal within a stated tolerance, readable when not, never fooled by NaN."""

import keras
import numpy as np
import pytest

from course_lib.compare import Run, assert_equal, compare

WHY = {"relative": 1e-5, "reason": "a test"}


def run(name="a run", shift=0.0, losses=(1.0, 0.5), metrics=None) -> Run:
    kernel = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3) + np.float32(shift)
    return Run(name, {"dense/kernel": kernel, "dense/bias": np.zeros(3, np.float32)}, losses, metrics or {})


def test_rounding_is_equal_and_more_is_not():
    assert compare(run(), run(shift=1e-6), **WHY).equal
    assert not compare(run(), run(shift=1e-3), **WHY).equal


def test_one_wrong_entry_is_held_against_the_largest_magnitude_of_its_own_array():
    """By hand: 0.0010 and 0.0011 differ by 1e-4; a tenth of the larger one allows 1.1e-4, a twentieth 0.55e-4."""
    one = Run("one", {"a": np.array([-0.001, 0.0, 0.0005]), "b": np.full(2, 7.0)})
    other = Run("other", {"a": np.array([-0.0011, 0.0, 0.0005]), "b": np.full(2, 7.0)})
    for first, second in ((one, other), (other, one)):
        close = compare(first, second, relative=0.1, reason="a test")
        assert [d.largest for d in close.differences] == pytest.approx([1e-4, 0])
        assert [d.allowed for d in close.differences] == pytest.approx([1.1e-4, 0.7])
        assert close.equal and not compare(first, second, relative=0.05, reason="a test").equal


def test_the_text_counts_what_is_within_and_names_five_that_are_not():
    weights = {f"w{number}": np.ones(1) for number in range(8)}
    moved = {name: value + (name not in ("w1", "w4")) for name, value in weights.items()}
    head, *lines = str(compare(Run("one", weights), Run("other", moved), **WHY)).splitlines()
    assert head == "one and other: DIFFERENT, 2 of 8 quantities within 1e-05 relative (a test)"
    assert [line.split(":")[0].strip() for line in lines] == ["w0", "w2", "w3", "w5", "w6"]
    same = compare(Run("one", weights), Run("same", weights), **WHY)
    assert repr(same) == str(same) and str(same).startswith("one and same: equal, 8 of 8 ")


def test_a_difference_names_the_weight_the_size_and_the_reason():
    with pytest.raises(AssertionError) as caught:
        assert_equal(run("one device"), run("four replicas", shift=0.5), **WHY)
    text = str(caught.value)
    assert "one device and four replicas: DIFFERENT" in text and "a test" in text
    assert "dense/kernel: off by 5.0e-01, allowed 2.5e-05" in text


def test_nan_is_never_equal():
    broken = run(losses=(1.0, float("nan")))
    comparison = compare(broken, broken, **WHY)
    assert not comparison.equal and comparison.worst.what == "losses"


def test_losses_and_metrics_count():
    assert not compare(run(), run(losses=(1.0, 0.6)), **WHY).equal
    half = run(metrics={"accuracy": 0.5})
    assert not compare(half, run(metrics={"accuracy": 0.6}), **WHY).equal
    assert compare(half, half, **WHY).equal


def test_other_models_or_other_steps_are_not_compared():
    with pytest.raises(ValueError, match="different models"):
        compare(run(), Run("other", {"dense/kernel": np.zeros((3, 3))}), **WHY)
    with pytest.raises(ValueError, match="different models"):  # as many arrays
        compare(Run("one", {"a": np.zeros((2, 3))}), Run("other", {"a": np.zeros((3, 2))}), **WHY)
    with pytest.raises(ValueError, match="different steps or metrics"):
        compare(run(), run(losses=(1.0,)), **WHY)


def test_a_run_reads_a_models_weights_in_their_dtype():
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.Dense(1, name="dense")(inputs))
    model.set_weights([np.array([[1.0], [2.0]]), np.array([3.0])])
    found = Run.of("by hand", model, np.float32([1.5, 0.5]), {"accuracy": np.float32(0.25)})
    assert found.name == "by hand" and list(found.weights) == ["dense/kernel", "dense/bias"]
    assert [(w.tolist(), w.dtype) for w in found.weights.values()] == [([[1], [2]], "float32"), ([3], "float32")]
    assert (found.losses, found.metrics) == ((1.5, 0.5), {"accuracy": 0.25})
    assert (Run.of("", model).losses, Run.of("", model).metrics) == ((), {})


def test_arrays_without_entries_are_equal():
    one, other = (Run(name, {"none": np.ones((0, 3), "float32")}) for name in ("one", "other"))
    (found,) = compare(one, other, **WHY).differences
    assert found.equal and (found.largest, found.allowed) == (0, 0)


def test_the_worst_uses_most_of_what_it_is_allowed():
    """By hand: 1e-6 of 1 is a tenth of the allowance, 1e-9 of 1e-5 ten times it."""
    one = Run("one", {"large": np.array([1.0]), "small": np.array([1e-5])})
    other = Run("other", {"large": np.array([1.0 - 1e-6]), "small": np.array([1e-5 - 1e-9])})
    assert compare(one, other, **WHY).worst.what == "small"


def test_automatic_names_may_differ():
    renamed = Run("built later", {f"{path}_1": value for path, value in run().weights.items()}, (1.0, 0.5))
    assert_equal(run(), renamed, **WHY)
